//! Exact gradients when the ranks count different numbers of samples. Each rank's mean loss is
//! multiplied by its count and the Reducer divides by the sum of the counts, which the ranks add up
//! in one small reduction per step.

use tch::Tensor;

use crate::ddp::Ddp;
use crate::error::{Error, Result};
use crate::optim::Optimizer;

/// What a rank's mean loss was divided by: rows, or valid tokens or targets; never a share.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Weight(i64);

impl Weight {
    /// `n` samples (rows, tokens, targets) are behind this rank's mean loss.
    pub fn of(n: i64) -> Self {
        Self(n)
    }

    /// The count.
    pub fn count(self) -> i64 {
        self.0
    }
}

/// The training calls of a [`Ddp`], weighted by this rank's count. All ranks must use the weighted
/// form in the same step.
#[derive(Debug)]
#[must_use = "a weight does nothing by itself: call `backward` or `backward_step` on it"]
pub struct Weighted<'a, M> {
    ddp: &'a Ddp<M>,
    weight: Weight,
}

impl<'a, M> Weighted<'a, M> {
    pub(crate) fn new(ddp: &'a Ddp<M>, weight: Weight) -> Self {
        Self { ddp, weight }
    }

    /// [`Ddp::backward`] with `loss` weighted by this rank's count, so that the gradients are those
    /// of the mean over all samples of all ranks. Inside `no_sync` the weight is added up for the
    /// step's reduced pass, which must be weighted too.
    ///
    /// # Errors
    /// As for [`Ddp::backward`]; a count below 1 or a sum of counts beyond 2³¹ - 1.
    pub fn backward(&self, loss: &Tensor) -> Result<()> {
        let n = self.weight.0;
        if n < 1 {
            return Err(Error::Argument(format!(
                "the weight of a step must be at least 1, but it is {n}: it counts the samples \
                 behind the mean loss"
            )));
        }
        let loss = loss * n as f64;
        let ddp = self.ddp;
        ddp.group().usable()?;
        if ddp.is_in_no_sync() {
            ddp.backward_local(&loss)?;
            ddp.state.pending_weight.set(ddp.state.pending_weight.get() + n);
            return Ok(());
        }
        ddp.check_prepared()?;
        ddp.divide_by_weights(ddp.state.pending_weight.get() + n)?;
        let done = ddp.backward_reduced(&loss);
        let total = ddp.take_weights();
        done?;
        debug_assert!(total? >= n, "the sum of the weights contains this rank's");
        Ok(())
    }

    /// Clears the gradients, runs [`Weighted::backward`], then steps the optimizer.
    ///
    /// # Errors
    /// As for [`Weighted::backward`] and [`Ddp::backward_step`].
    pub fn backward_step(&self, opt: &mut impl Optimizer, loss: &Tensor) -> Result<()> {
        self.ddp.fused_step(opt, |_| {}, || self.backward(loss))
    }

    /// As [`Ddp::backward_step_clip`], weighted.
    ///
    /// # Errors
    /// As for [`Weighted::backward_step`].
    pub fn backward_step_clip(
        &self,
        opt: &mut impl Optimizer,
        loss: &Tensor,
        max: f64,
    ) -> Result<()> {
        self.ddp.fused_step(opt, |opt| opt.clip_grad_value(max), || self.backward(loss))
    }

    /// As [`Ddp::backward_step_clip_norm`], weighted.
    ///
    /// # Errors
    /// As for [`Weighted::backward_step`].
    pub fn backward_step_clip_norm(
        &self,
        opt: &mut impl Optimizer,
        loss: &Tensor,
        max: f64,
    ) -> Result<()> {
        self.ddp.fused_step(opt, |opt| opt.clip_grad_norm(max), || self.backward(loss))
    }
}
