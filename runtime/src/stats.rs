//! What c10d's Logger measured, as numbers: how long the passes take and how much of the reduction
//! hides behind the backward pass.

use std::collections::HashMap;
use std::time::Duration;

/// Averages over the steps that c10d sampled (the first ten, then one in a hundred).
#[derive(Debug, Clone, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct DdpStats {
    /// Steps whose gradients were reduced, as c10d counts them; 0 before the second step.
    pub n_iterations: u64,
    /// Sizes of the gradient buckets in bytes, in the order in which they are reduced.
    pub bucket_bytes: Vec<u64>,
    /// Average time of the forward pass.
    pub forward: Duration,
    /// Average time from the start of the backward pass to its last gradient.
    pub backward_compute: Duration,
    /// Average time from the start of the first reduction to the end of the last.
    pub backward_communication: Duration,
    /// How much of the last two ran at the same time.
    pub overlap: Duration,
    /// The used and unused parameters have been the same in all steps.
    pub can_set_static_graph: bool,
}

impl DdpStats {
    /// From `key=value` lines, as DDPLoggingData names them.
    pub(crate) fn parse(text: &str) -> Self {
        let data: HashMap<&str, &str> =
            text.lines().filter_map(|line| line.split_once('=')).collect();
        let number = |key: &str| -> u64 {
            data.get(key).and_then(|value| value.parse().ok()).unwrap_or_default()
        };
        let sizes = |key: &str| -> Vec<u64> {
            let list = data.get(key).copied().unwrap_or_default();
            list.split(',').filter_map(|size| size.trim().parse().ok()).collect()
        };
        let rebuilt = sizes("rebuilt_bucket_sizes");
        let time = |key: &str| Duration::from_nanos(number(key));
        Self {
            n_iterations: number("iteration"),
            bucket_bytes: if rebuilt.is_empty() { sizes("bucket_sizes") } else { rebuilt },
            forward: time("avg_forward_compute_time"),
            backward_compute: time("avg_backward_compute_time"),
            backward_communication: time("avg_backward_comm_time"),
            overlap: time("avg_backward_compute_comm_overlap_time"),
            can_set_static_graph: number("can_set_static_graph") == 1,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rebuilt_buckets_replace_the_first_ones() {
        let text = "bucket_sizes=10\nrebuilt_bucket_sizes=4, 6\niteration=7\n\
                    avg_backward_comm_time=1500\n";
        let stats = DdpStats::parse(text);
        assert_eq!(stats.bucket_bytes, [4, 6]);
        assert_eq!(stats.n_iterations, 7);
        assert_eq!(stats.backward_communication, Duration::from_nanos(1500));
    }
}
