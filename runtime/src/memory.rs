//! How much memory a rank may use.

use std::fs;

use tch::Device;

use crate::ffi;
use crate::group::ProcessGroup;

/// Free bytes of this rank's device; for the CPU, the machine's available memory divided by the
/// ranks on it.
pub(crate) fn free_bytes(group: &ProcessGroup) -> u64 {
    if let Device::Cuda(index) = group.device()
        && let Ok(bytes) = ffi::cuda_free_bytes(index)
    {
        return bytes;
    }
    let n_ranks = group.local_world_size().max(1) as u64;
    available_bytes(&fs::read_to_string("/proc/meminfo").unwrap_or_default()) / n_ranks
}

/// `MemAvailable` of `/proc/meminfo`; 1 GiB where there is none, so that shares are equal.
fn available_bytes(meminfo: &str) -> u64 {
    const UNKNOWN: u64 = 1 << 30;
    meminfo
        .lines()
        .find_map(|line| line.strip_prefix("MemAvailable:"))
        .and_then(|rest| rest.trim().strip_suffix(" kB")?.parse::<u64>().ok())
        .map_or(UNKNOWN, |kib| kib * 1024)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn available_memory_is_read_in_kib() {
        let text = "MemTotal:       100 kB\nMemAvailable:    24 kB\n";
        assert_eq!(available_bytes(text), 24 * 1024);
        assert_eq!(available_bytes(""), 1 << 30);
    }
}
