//! How many samples each rank takes per step: equal, given, in shares, by memory, or found by
//! trying. All ranks hold the same plan, so that they also agree on the number of steps.

use tch::Tensor;

use crate::error::{Error, Result};
use crate::group::ProcessGroup;

/// Batch sizes of all ranks, the same list on every rank.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BatchPlan {
    sizes: Vec<usize>,
    rank: usize,
}

impl BatchPlan {
    /// Every rank states its own size, at least 1. A collective.
    ///
    /// # Errors
    /// A size of 0 (on all ranks alike), or a rank failed.
    pub fn explicit(group: &ProcessGroup, own: usize) -> Result<Self> {
        let sizes = group.all_gather(&Tensor::from_slice(&[own as i64]))?;
        let sizes: Vec<usize> = sizes.iter().map(|size| size.int64_value(&[0]) as usize).collect();
        match sizes.iter().position(|size| *size == 0) {
            None => Ok(Self { sizes, rank: group.rank() }),
            Some(rank) => Err(Error::Argument(format!(
                "the batch size of rank {rank} is 0; every rank needs at least 1 sample per step"
            ))),
        }
    }

    /// The same size on every rank.
    pub fn equal(group: &ProcessGroup, per_rank: usize) -> Self {
        Self { sizes: vec![per_rank.max(1); group.world_size()], rank: group.rank() }
    }

    /// Splits a global batch in proportion to `shares`, one per rank, at least 1 sample each.
    ///
    /// # Errors
    /// Not one share per rank, a share that is not a positive number, or fewer samples than ranks.
    pub fn shares(group: &ProcessGroup, total: usize, shares: &[f64]) -> Result<Self> {
        let sizes = split(total, shares, group.world_size())?;
        Ok(Self { sizes, rank: group.rank() })
    }

    /// Splits a global batch in proportion to a number that each rank states, such as its free
    /// memory or its speed. A collective.
    ///
    /// # Errors
    /// As for [`BatchPlan::shares`] (on all ranks alike), or a rank failed.
    pub fn proportional(group: &ProcessGroup, total: usize, own_share: f64) -> Result<Self> {
        let shares = group.all_gather(&Tensor::from_slice(&[own_share]))?;
        let shares: Vec<f64> = shares.iter().map(|share| share.double_value(&[0])).collect();
        Self::shares(group, total, &shares)
    }

    /// Splits a global batch in proportion to the memory that each rank has free: on its GPU, or,
    /// for CPU ranks, its part of the machine's. A collective.
    ///
    /// # Errors
    /// As for [`BatchPlan::proportional`].
    pub fn by_memory(group: &ProcessGroup, total: usize) -> Result<Self> {
        Self::proportional(group, total, crate::memory::free_bytes(group) as f64)
    }

    /// Finds the largest batch of each rank by trying. Every rank calls `attempt` on its own with
    /// growing sizes (1, 2, 4 … up to `max`, then between) until it fails; of the largest size that
    /// worked, `margin` (a fraction, such as 0.1) is kept free. A collective at its end only.
    ///
    /// `attempt` should run a forward and a backward pass on the bare model (outside of `Ddp::run`),
    /// because the ranks try different sizes at different times.
    ///
    /// # Errors
    /// A rank cannot even do 1 sample (on all ranks alike, with its error), or a rank failed.
    pub fn probe<E: std::fmt::Display>(
        group: &ProcessGroup,
        max: usize,
        margin: f64,
        attempt: impl FnMut(usize) -> Result<(), E>,
    ) -> Result<Self> {
        let (largest, failure) = largest_that_works(max.max(1), attempt);
        let outcome = if largest == 0 { Err(failure.unwrap_or_default()) } else { Ok(()) };
        if let Some((rank, reason)) = group.agree(outcome)? {
            return Err(Error::Argument(format!(
                "rank {rank} cannot do a batch of even 1 sample: {reason}"
            )));
        }
        let kept = (largest as f64 * (1.0 - margin.clamp(0.0, 0.9))).floor() as usize;
        Self::explicit(group, kept.max(1))
    }

    /// Samples per step of this rank.
    pub fn own(&self) -> usize {
        self.sizes[self.rank]
    }

    /// Samples per step of all ranks, in rank order.
    pub fn sizes(&self) -> &[usize] {
        &self.sizes
    }

    /// Samples per step of all ranks together: the batch size that learning rates go by.
    pub fn global_batch(&self) -> usize {
        self.sizes.iter().sum()
    }

    /// Samples of the ranks before this one.
    pub(crate) fn offset(&self) -> usize {
        self.sizes[..self.rank].iter().sum()
    }
}

/// Largest remainders: the parts add up to `total`, each at least 1.
fn split(total: usize, shares: &[f64], world_size: usize) -> Result<Vec<usize>> {
    if shares.len() != world_size {
        return Err(Error::Argument(format!(
            "there are {} shares for {world_size} ranks; give one per rank",
            shares.len()
        )));
    }
    if let Some(rank) = shares.iter().position(|share| !share.is_finite() || *share <= 0.0) {
        let share = shares[rank];
        return Err(Error::Argument(format!(
            "the share of rank {rank} is {share}; shares must be positive numbers"
        )));
    }
    if total < world_size {
        return Err(Error::Argument(format!(
            "a global batch of {total} has not one sample for each of {world_size} ranks"
        )));
    }
    let sum: f64 = shares.iter().sum();
    let exact = shares.iter().map(|share| total as f64 * share / sum);
    let mut sizes: Vec<usize> = exact.clone().map(|size| (size.floor() as usize).max(1)).collect();
    let mut by_remainder: Vec<usize> = (0..world_size).collect();
    let remainder: Vec<f64> = exact.map(f64::fract).collect();
    by_remainder.sort_by(|a, b| remainder[*b].total_cmp(&remainder[*a]).then(a.cmp(b)));
    // Flooring leaves less than one sample per rank over; raising to 1 may take some too many.
    let mut next = by_remainder.iter().cycle();
    while sizes.iter().sum::<usize>() < total {
        if let Some(rank) = next.next() {
            sizes[*rank] += 1;
        }
    }
    while sizes.iter().sum::<usize>() > total {
        if let Some(largest) = (0..world_size).max_by_key(|rank| sizes[*rank]) {
            sizes[largest] -= 1;
        }
    }
    Ok(sizes)
}

/// The largest size up to `max` for which `attempt` succeeds (0 if none), and the first failure.
fn largest_that_works<E: std::fmt::Display>(
    max: usize,
    mut attempt: impl FnMut(usize) -> Result<(), E>,
) -> (usize, Option<String>) {
    let (mut works, mut fails, mut failure) = (0, max + 1, None);
    while works + 1 < fails {
        let size =
            if failure.is_none() { (works * 2).clamp(1, max) } else { works + (fails - works) / 2 };
        match attempt(size) {
            Ok(()) => works = size,
            Err(error) => {
                fails = size;
                failure.get_or_insert_with(|| error.to_string());
            }
        }
    }
    (works, failure)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_add_up_and_leave_nobody_out() {
        assert_eq!(split(10, &[1.0, 1.0, 1.0], 3).unwrap(), [4, 3, 3]);
        assert_eq!(split(13, &[1.0, 4.0, 4.0, 4.0], 4).unwrap(), [1, 4, 4, 4]);
        assert_eq!(split(4, &[0.001, 1.0, 1.0, 1.0], 4).unwrap(), [1, 1, 1, 1]);
        assert_eq!(split(100, &[1e-9, 1.0], 2).unwrap(), [1, 99]);
    }

    #[test]
    fn bad_shares_are_explained() {
        let text = |total, shares: &[f64]| split(total, shares, 2).unwrap_err().to_string();
        assert!(text(4, &[1.0]).contains("1 shares for 2 ranks"));
        assert!(text(4, &[1.0, 0.0]).contains("share of rank 1 is 0"));
        assert!(text(1, &[1.0, 1.0]).contains("not one sample for each of 2 ranks"));
    }

    #[test]
    fn probing_finds_the_edge() {
        for edge in [0usize, 1, 2, 3, 7, 8, 100, 500] {
            let attempt =
                |n: usize| if n <= edge { Ok(()) } else { Err(format!("{n} is too much")) };
            assert_eq!(largest_that_works(100, attempt).0, edge.min(100));
        }
    }
}
