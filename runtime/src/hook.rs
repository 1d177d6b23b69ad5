//! Communication hooks: what is sent in place of a bucket's gradients. A hook takes over the whole
//! reduction of a bucket, the averaging too, and runs inside the backward pass.

use tch::{Kind, Tensor};

use crate::error::{Error, Result};
use crate::group::{ProcessGroup, Work};

/// The gradients of some parameters, ready on this rank.
#[derive(Debug)]
#[non_exhaustive]
pub struct GradBucket {
    /// All gradients of the bucket, flattened one after the other: one dimension.
    pub gradients: Tensor,
    /// Its place among the buckets, in the order in which they are reduced.
    pub index: usize,
    /// No other bucket of this step follows.
    pub is_last: bool,
}

/// Makes the result when the communication has ended; runs on a thread of the backend.
type Finish = Box<dyn FnOnce() -> Result<Tensor> + Send>;

/// A reduction that a hook started.
pub enum Reduction {
    /// The average over the ranks is already there.
    Done(Tensor),
    /// The average is what the closure makes once the collective has ended.
    Pending(Work, Finish),
}

/// How the gradients of a bucket are averaged over the ranks.
///
/// The result must have the bucket's shape and kind, and must be the *average*: with a hook c10d
/// does not divide. All ranks must register the same hook.
pub trait CommHook: Send + 'static {
    /// A name by which the ranks compare their hooks.
    fn name(&self) -> String;

    /// Starts the reduction of one bucket. To overlap with the backward pass, start an asynchronous
    /// collective and return [`Reduction::Pending`].
    ///
    /// # Errors
    /// What goes wrong; the backward pass fails with it.
    fn reduce(&self, bucket: GradBucket, group: &ProcessGroup) -> Result<Reduction>;
}

/// Sends gradients in a smaller floating-point kind: half the bytes for `float32`.
///
/// `Kind::Half` is PyTorch's `fp16_compress_hook`, `Kind::BFloat16` its `bf16_compress_hook`: each
/// gradient is divided by the world size, rounded, summed in that kind and widened again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Compress(Kind);

impl Compress {
    /// Half precision: 10 bits of fraction, overflow above 65504.
    pub fn fp16() -> Self {
        Self(Kind::Half)
    }

    /// Brain floats: the range of `float32`, 7 bits of fraction.
    pub fn bf16() -> Self {
        Self(Kind::BFloat16)
    }
}

impl CommHook for Compress {
    fn name(&self) -> String {
        format!("compress to {:?}", self.0)
    }

    fn reduce(&self, bucket: GradBucket, group: &ProcessGroup) -> Result<Reduction> {
        let mut gradients = bucket.gradients;
        let small = gradients.f_to_kind(self.0)?.f_div_scalar(group.world_size() as f64)?;
        let work = group.all_reduce_async(&small)?;
        let finish = move || {
            tch::no_grad(|| gradients.f_copy_(&small))?;
            Ok(gradients)
        };
        Ok(Reduction::Pending(work, Box::new(finish)))
    }
}

/// A hook with the group it reduces over, as the shim calls it.
pub(crate) struct BoundHook {
    pub(crate) hook: Box<dyn CommHook>,
    pub(crate) group: ProcessGroup,
}

impl crate::ffi::Hook for BoundHook {
    fn start(
        &self,
        gradients: Tensor,
        index: usize,
        is_last: bool,
    ) -> Result<crate::ffi::Started, String> {
        let bucket = GradBucket { gradients, index, is_last };
        match self.hook.reduce(bucket, &self.group).map_err(|error| error.to_string())? {
            Reduction::Done(tensor) => Ok(crate::ffi::Started::Done(tensor)),
            Reduction::Pending(work, finish) => {
                let work = work.into_raw().ok_or("the hook's work was waited for already")?;
                let finish = Box::new(move || finish().map_err(|error: Error| error.to_string()));
                Ok(crate::ffi::Started::Pending(work, finish))
            }
        }
    }
}
