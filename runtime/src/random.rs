//! Random numbers of the ranks: different where ranks must differ (dropout, augmentation), the
//! same where they must agree (samplers use generators of their own).

use crate::error::{Error, Result};
use crate::ffi::{self, TorchError};

/// Seeds this process's global generators, CPU and CUDA, with `seed + rank`.
///
/// Dropout and augmentation then differ between ranks, as they must. Initial parameters differ too,
/// which is fine: `Ddp::new` gives all ranks those of rank 0. Samplers have seeds of their own,
/// which must be the same on all ranks.
pub fn seed_everything(seed: u64, rank: usize) {
    tch::manual_seed(seed.wrapping_add(rank as u64) as i64);
    tch::Cuda::manual_seed_all(seed.wrapping_add(rank as u64));
}

/// The state of the CPU's global generator.
pub(crate) fn state() -> Result<tch::Tensor> {
    ffi::random_state().map_err(|TorchError(message)| Error::Torch {
        what: "reading the random state".to_owned(),
        message,
    })
}

/// Sets the state of the CPU's global generator.
pub(crate) fn set_state(state: &tch::Tensor) -> Result<()> {
    ffi::set_random_state(state).map_err(|TorchError(message)| Error::Torch {
        what: "restoring the random state".to_owned(),
        message,
    })
}
