//! Which rows of the data set each rank reads, in which order: index by index what Python's
//! `torch.utils.data.DistributedSampler` gives. It never touches the global random state.

use tch::Tensor;

use crate::error::Result;
use crate::ffi;
use crate::group::ProcessGroup;
use crate::plan::BatchPlan;

/// Shares out `len` samples over the ranks, in batches of indices.
///
/// Every rank gets equally many samples: the list is padded from its start, or cut with
/// [`drop_last`](DistributedSampler::drop_last). Rank `r` of `W` reads places `r, r + W, …` of the
/// (shuffled) list. The defaults are Python's: shuffled, seed 0, padded; batches of one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DistributedSampler {
    n_samples_total: usize,
    n_replicas: usize,
    rank: usize,
    batch_size: usize,
    shuffle: bool,
    seed: u64,
    drop_last: bool,
    plan: Option<BatchPlan>,
}

impl DistributedSampler {
    /// For a data set of `len` samples and the ranks of `group`.
    pub fn new(len: usize, group: &ProcessGroup) -> Self {
        Self::with_replicas(len, group.world_size(), group.rank())
    }

    /// For `n_replicas` ranks of which this is number `rank`.
    ///
    /// # Panics
    /// `rank` is not below `n_replicas`.
    pub fn with_replicas(len: usize, n_replicas: usize, rank: usize) -> Self {
        assert!(rank < n_replicas, "rank {rank} is not among {n_replicas} replicas");
        Self {
            n_samples_total: len,
            n_replicas,
            rank,
            batch_size: 1,
            shuffle: true,
            seed: 0,
            drop_last: false,
            plan: None,
        }
    }

    /// Shares out each step's samples by a plan: every step takes the plan's global batch from the
    /// (shuffled) list, and each rank its own number of them, in rank order. All ranks have the same
    /// number of steps, and an epoch means the same on all of them.
    pub fn with_plan(len: usize, plan: &BatchPlan) -> Self {
        let sampler = Self::with_replicas(len, plan.sizes().len(), 0).batch_size(plan.own());
        Self { plan: Some(plan.clone()), ..sampler }
    }

    /// Samples per batch on this rank; the last batch of an epoch may be smaller. Zero counts as 1.
    #[must_use]
    pub fn batch_size(mut self, batch_size: usize) -> Self {
        self.batch_size = batch_size.max(1);
        self
    }

    /// Whether each epoch has its own random order (the default) or the order of the data set.
    #[must_use]
    pub fn shuffle(mut self, shuffle: bool) -> Self {
        self.shuffle = shuffle;
        self
    }

    /// Seed of the orders; must be the same on all ranks. Epoch `e` uses `seed + e`.
    #[must_use]
    pub fn seed(mut self, seed: u64) -> Self {
        self.seed = seed;
        self
    }

    /// Cuts the list to a multiple of the number of ranks instead of padding it.
    #[must_use]
    pub fn drop_last(mut self, drop_last: bool) -> Self {
        self.drop_last = drop_last;
        self
    }

    /// Samples of an epoch on this rank; without a plan the same on all.
    pub fn n_samples(&self) -> usize {
        if let Some(plan) = &self.plan {
            return self.n_planned_steps(plan) * plan.own();
        }
        let (n, replicas) = (self.n_samples_total, self.n_replicas);
        if self.drop_last && n % replicas != 0 {
            // ceil((n - replicas) / replicas), which is 0 for fewer samples than ranks.
            n.saturating_sub(replicas).div_ceil(replicas)
        } else {
            n.div_ceil(replicas)
        }
    }

    /// Batches of an epoch on this rank, the same on all.
    pub fn len(&self) -> usize {
        self.n_samples().div_ceil(self.batch_size)
    }

    /// Whether an epoch has no batch.
    pub fn is_empty(&self) -> bool {
        self.n_samples() == 0
    }

    /// Steps of an epoch with a plan.
    fn n_planned_steps(&self, plan: &BatchPlan) -> usize {
        if self.drop_last {
            self.n_samples_total / plan.global_batch()
        } else {
            self.n_samples_total.div_ceil(plan.global_batch())
        }
    }

    /// The indices this rank reads in the given epoch, in order.
    ///
    /// # Panics
    /// libtorch cannot allocate the permutation.
    pub fn indices(&self, epoch: u64) -> Vec<i64> {
        let n = self.n_samples_total;
        let order: Vec<i64> = if self.shuffle && n > 0 {
            let order = ffi::randperm(n as i64, self.seed.wrapping_add(epoch))
                .expect("a permutation fits into memory");
            Vec::try_from(&order).expect("a permutation is a list of Int64")
        } else {
            (0..n as i64).collect()
        };
        // Padding repeats the list from its start, as often as it takes.
        if let Some(plan) = &self.plan {
            let places = (0..self.n_planned_steps(plan)).flat_map(|step| {
                let first = step * plan.global_batch() + plan.offset();
                first..first + plan.own()
            });
            return places.map(|place| order[place % n]).collect();
        }
        let padded = order.iter().cycle().take(self.n_samples() * self.n_replicas);
        padded.skip(self.rank).step_by(self.n_replicas).copied().collect()
    }

    /// The batches of the given epoch: Int64 tensors of indices on the CPU, of shape `[batch]`.
    pub fn epoch(&self, epoch: u64) -> impl Iterator<Item = Tensor> + use<> {
        let (indices, batch_size) = (self.indices(epoch), self.batch_size);
        let n_batches = indices.len().div_ceil(batch_size);
        (0..n_batches).map(move |batch| {
            let first = batch * batch_size;
            let end = (first + batch_size).min(indices.len());
            Tensor::from_slice(&indices[first..end])
        })
    }
}

/// Shares out a data set for evaluation: no shuffling, no padding, every sample on exactly one rank.
/// Ranks may have one sample more or less, so no collective belongs inside its loop.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct EvaluationSampler {
    n_samples_total: usize,
    n_replicas: usize,
    rank: usize,
    batch_size: usize,
}

impl EvaluationSampler {
    /// For a data set of `len` samples and the ranks of `group`.
    pub fn new(len: usize, group: &ProcessGroup) -> Self {
        let (n_replicas, rank) = (group.world_size(), group.rank());
        Self { n_samples_total: len, n_replicas, rank, batch_size: 1 }
    }

    /// Samples per batch; the last may be smaller. Zero counts as 1.
    #[must_use]
    pub fn batch_size(mut self, batch_size: usize) -> Self {
        self.batch_size = batch_size.max(1);
        self
    }

    /// The batches: Int64 tensors of indices on the CPU, of shape `[batch]`. Rank `r` of `W` reads
    /// samples `r`, `r + W`, ….
    pub fn batches(&self) -> impl Iterator<Item = Tensor> + use<> {
        let indices = (self.rank as i64..self.n_samples_total as i64).step_by(self.n_replicas);
        let batch_size = self.batch_size;
        let indices: Vec<i64> = indices.collect();
        (0..indices.len().div_ceil(batch_size)).map(move |batch| {
            let first = batch * batch_size;
            Tensor::from_slice(&indices[first..(first + batch_size).min(indices.len())])
        })
    }

    /// The results of all ranks, each sample once, in the order of the data set. `own` holds this
    /// rank's, one row per sample in the order of [`batches`](EvaluationSampler::batches). A
    /// collective.
    ///
    /// # Errors
    /// `own` has not one row per sample, or a rank failed.
    pub fn gather(&self, own: &Tensor, group: &ProcessGroup) -> Result<Tensor> {
        let n_own = (self.rank..self.n_samples_total).step_by(self.n_replicas).len() as i64;
        let n_rows = own.size().first().copied().unwrap_or(0);
        let outcome = if n_rows == n_own {
            Ok(())
        } else {
            Err(format!("gather: {n_rows} rows for the {n_own} samples of rank {}", self.rank))
        };
        if let Some((_, reason)) = group.agree(outcome)? {
            return Err(crate::Error::Argument(reason));
        }
        let parts = group.all_gather_ragged(own)?;
        // Sample `i` is row `i / W` of rank `i % W`; rank `r`'s rows begin behind the others'.
        let mut begin = vec![0i64];
        for part in &parts {
            begin.push(begin[begin.len() - 1] + part.size()[0]);
        }
        let rows: Vec<i64> = (0..self.n_samples_total)
            .map(|sample| begin[sample % self.n_replicas] + (sample / self.n_replicas) as i64)
            .collect();
        let rows = Tensor::from_slice(&rows).to_device(own.device());
        Ok(Tensor::cat(&parts, 0).index_select(0, &rows))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn all(len: usize, replicas: usize, drop_last: bool) -> Vec<Vec<i64>> {
        (0..replicas)
            .map(|rank| {
                DistributedSampler::with_replicas(len, replicas, rank)
                    .shuffle(false)
                    .drop_last(drop_last)
                    .indices(0)
            })
            .collect()
    }

    #[test]
    fn padding_repeats_from_the_start() {
        assert_eq!(all(5, 3, false), [[0, 3], [1, 4], [2, 0]]);
        assert_eq!(all(1, 3, false), [[0], [0], [0]]);
        assert_eq!(all(0, 2, false), [[0i64; 0]; 2]);
    }

    #[test]
    fn drop_last_cuts_the_tail() {
        assert_eq!(all(5, 3, true), [[0], [1], [2]]);
        assert_eq!(all(2, 3, true), [[0i64; 0]; 3]);
        assert_eq!(all(6, 3, true), [[0, 3], [1, 4], [2, 5]]);
    }

    #[test]
    fn batches_cover_the_indices_in_order() {
        let sampler = DistributedSampler::with_replicas(11, 2, 1).batch_size(4).seed(3);
        let batches: Vec<Vec<i64>> =
            sampler.epoch(2).map(|batch| Vec::try_from(&batch).unwrap()).collect();
        assert_eq!(batches.len(), sampler.len());
        assert_eq!(batches.concat(), sampler.indices(2));
        assert_ne!(sampler.indices(2), sampler.indices(3));
    }
}
