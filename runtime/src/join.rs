//! Ranks that run out of data before the others. They stand in for the missing batches with a
//! count of zero: they take part in every collective of the step, get the same gradients and step
//! their optimizer alike, so that parameters and optimizer state stay equal on all ranks.

use crate::ddp::Ddp;
use crate::error::Result;
use crate::optim::Optimizer;

impl<M> Ddp<M> {
    /// Waits, at the end of an epoch of *weighted* steps, for the ranks that still have data, and
    /// takes part in their steps. Every rank calls it after its last batch; it returns on all ranks
    /// together, with the number of steps this rank stood in for.
    ///
    /// The other ranks' steps must each be one `run` and one
    /// [`weighted(..)`](Ddp::weighted) `backward_step` (micro-batches inside `no_sync` do not
    /// count). Batch statistics follow rank 0 and rest while it has no data.
    ///
    /// # Errors
    /// Gradients of `no_sync` passes are left over, a communication hook is registered, or a rank
    /// failed.
    pub fn join(&self, opt: &mut impl Optimizer) -> Result<u64> {
        self.join_with(opt, |_| {})
    }

    /// As [`join`](Ddp::join), with `adjust` between reduction and step, as in clipping. It must
    /// be what the other ranks do.
    ///
    /// # Errors
    /// As for [`join`](Ddp::join).
    pub fn join_with<O: Optimizer>(&self, opt: &mut O, adjust: impl Fn(&mut O)) -> Result<u64> {
        let mut n_steps = 0;
        while self.stand_in()? {
            adjust(opt);
            opt.step()?;
            self.zero_grad()?;
            n_steps += 1;
        }
        Ok(n_steps)
    }
}
