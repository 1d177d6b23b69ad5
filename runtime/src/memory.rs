//! How much memory a rank may use, and that it keeps what it will use again.

use std::fs;
use std::sync::Once;

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

/// Lets glibc's allocator keep up to 1 GiB of freed memory. A step on the CPU frees its gradients
/// and activations and allocates the same again; returned to the kernel in between, they come back
/// page by page, which took a third of the time of a ResNet's step. Once per process; whoever set
/// one of glibc's own variables has decided otherwise.
pub(crate) fn keep_for_the_next_step() {
    const KEPT_BYTES_MAX: i32 = 1 << 30;
    /// glibc takes no more: larger pieces always go back.
    const PIECE_BYTES_MAX: i32 = 32 << 20;
    const VARIABLES: [&str; 3] =
        ["MALLOC_TRIM_THRESHOLD_", "MALLOC_MMAP_THRESHOLD_", "GLIBC_TUNABLES"];
    static DONE: Once = Once::new();
    DONE.call_once(|| {
        if VARIABLES.iter().all(|name| std::env::var_os(name).is_none()) {
            ffi::keep_freed_memory(KEPT_BYTES_MAX, PIECE_BYTES_MAX);
        }
    });
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
