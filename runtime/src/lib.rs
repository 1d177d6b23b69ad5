//! DistributedDataParallel for tch: the runtime that a model made ready by `#[data_parallel]`
//! trains on.

#[doc(hidden)]
#[path = "private.rs"]
pub mod __private;
mod error;
pub mod module;
pub mod output;

pub use self::error::{Error, Result};
pub use self::module::{Registered, Replicable};
pub use self::output::TensorOutput;
pub use tch_ddp_macros::{TensorOutput, data_parallel};
