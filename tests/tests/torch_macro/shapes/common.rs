//! Trains a model in two ranks and in one process, and demands the same variables.

use std::time::Duration;

use anyhow::{Result, ensure};
use ddp_tests::torch::models::{fill, store};
use ddp_tests::torch::{Rank, Ranks};
use tch::nn::{self, OptimizerConfig};
use tch::{Device, Kind, Tensor};
use tch_ddp::{Ddp, DdpOptions, TensorOutput};

/// Rows of the global batch.
pub(crate) const ROWS: i64 = 8;
const STEPS: usize = 4;
/// In float64; what differs is the order of sums.
const TOLERANCE: f64 = 1e-12;

/// A model and how it learns.
pub(crate) struct Shape<M, O> {
    /// Builds the model and registers what its lists hold.
    pub(crate) build: fn(&nn::Path<'_>) -> Result<M>,
    pub(crate) forward: fn(&M, &Tensor) -> O,
    /// A mean over the rows, of the output and the targets.
    pub(crate) loss: fn(&O, &Tensor) -> Tensor,
    /// The inputs and targets of the global batch.
    pub(crate) batch: fn() -> (Tensor, Tensor),
    /// Some parameters have no part in the loss.
    pub(crate) unused: bool,
}

impl<M, O: TensorOutput> Shape<M, O> {
    /// Two ranks with half of the rows each end where one process with all of them ends.
    pub(crate) fn trains_alike(&self, test: impl Into<String>) {
        Ranks::new(test, 2).run(|rank| {
            let alone = self.alone()?;
            let together = self.together(rank)?;
            let (alone, together) = (alone.variables(), together.variables());
            ensure!(alone.len() == together.len(), "other variables");
            for (name, expected) in alone {
                let difference = f64::try_from((&together[&name] - expected).abs().max())?;
                ensure!(difference <= TOLERANCE, "`{name}` differs by {difference:e}");
            }
            Ok(())
        });
    }

    fn alone(&self) -> Result<nn::VarStore> {
        let vs = store(Kind::Double);
        let model = (self.build)(&vs.root())?;
        fill(&vs);
        let mut opt = nn::Sgd { momentum: 0.9, ..nn::Sgd::default() }.build(&vs, 0.05)?;
        let (x, y) = (self.batch)();
        let before: Vec<_> = vs.trainable_variables().iter().map(Tensor::copy).collect();
        for _ in 0..STEPS {
            opt.backward_step(&(self.loss)(&(self.forward)(&model, &x), &y));
        }
        let moved = vs.trainable_variables().into_iter().zip(before).any(|(a, b)| !a.equal(&b));
        ensure!(moved, "nothing was trained");
        Ok(vs)
    }

    fn together(&self, rank: &Rank) -> Result<nn::VarStore> {
        let group = rank.group(Duration::from_secs(30))?;
        let vs = store(Kind::Double);
        let model = (self.build)(&vs.root())?;
        if group.is_main() {
            fill(&vs);
        }
        let mut opt = nn::Sgd { momentum: 0.9, ..nn::Sgd::default() }.build(&vs, 0.05)?;
        let options = DdpOptions { find_unused_parameters: self.unused, ..DdpOptions::default() };
        let ddp = Ddp::new(model, vs, &group, options)?;
        let rows = ROWS / group.world_size() as i64;
        let share = |t: Tensor| t.narrow(0, group.rank() as i64 * rows, rows);
        let (x, y) = (self.batch)();
        let (x, y) = (share(x), share(y));
        for _ in 0..STEPS {
            let output = ddp.run(|model| (self.forward)(model, &x))?;
            ddp.backward_step(&mut opt, &(self.loss)(&output, &y))?;
        }
        Ok(ddp.into_parts().1)
    }
}

/// The names in a store, in their order.
pub(crate) fn names(vs: &nn::VarStore) -> Vec<String> {
    let mut names: Vec<_> = vs.variables().into_keys().collect();
    names.sort();
    names
}

/// Numbers between -1 and 1, `[ROWS, ..size]`.
pub(crate) fn waves(size: &[i64], pace: f64) -> Tensor {
    let size: Vec<_> = std::iter::once(ROWS).chain(size.iter().copied()).collect();
    let steps = Tensor::arange(size.iter().product::<i64>(), (Kind::Double, Device::Cpu));
    (steps * pace).sin().view(size.as_slice())
}

/// Classes below `n`, `[ROWS, ..size]`.
pub(crate) fn classes(size: &[i64], n: i64) -> Tensor {
    ((waves(size, 2.3) + 1.0) * (n as f64 / 2.001)).to_kind(Kind::Int64)
}

/// A linear layer with the usual settings.
pub(crate) fn linear<'p>(
    path: impl std::borrow::Borrow<nn::Path<'p>>,
    inputs: i64,
    outputs: i64,
) -> nn::Linear {
    nn::linear(path, inputs, outputs, nn::LinearConfig::default())
}
