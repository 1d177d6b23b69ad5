//! DistributedDataParallel for [`tch`], over libtorch's own c10d: process groups, the Reducer that
//! overlaps the averaging of gradients with the backward pass, samplers and checkpoints.
//!
//! Each process is one rank with its own copy of the model and its own share of every batch. The
//! gradients are averaged over the ranks, so that the copies stay equal and train as one process
//! would on the whole batch.
//!
//! ```no_run
//! use tch::nn::{self, ModuleT, OptimizerConfig};
//! use tch_ddp::{Ddp, DdpOptions, DistributedSampler, GroupOptions, Launch, ProcessGroup};
//!
//! fn main() -> anyhow::Result<()> {
//!     let launch = Launch::from_env()?; // torchrun, ddp-run, Slurm, Open MPI, or alone
//!     let group = ProcessGroup::init(&launch, GroupOptions::default())?;
//!     let vs = nn::VarStore::new(group.device());
//!     let net = nn::linear(vs.root(), 64, 10, Default::default());
//!     let mut opt = nn::AdamW::default().build(&vs, 1e-3)?;
//!     let ddp = Ddp::new(net, vs, &group, DdpOptions::default())?;
//!     # let (images, labels) = (tch::Tensor::from(0), tch::Tensor::from(0));
//!     let sampler = DistributedSampler::new(1797, &group).batch_size(32);
//!     for epoch in 0..10 {
//!         for rows in sampler.epoch(epoch) {
//!             let (x, y) = (images.index_select(0, &rows), labels.index_select(0, &rows));
//!             let loss = ddp.forward_t(&x, true).cross_entropy_for_logits(&y);
//!             ddp.backward_step(&mut opt, &loss)?;
//!         }
//!         ddp.save("digits.safetensors")?;
//!     }
//!     Ok(())
//! }
//! ```
//!
//! # Linking
//! Link arguments do not travel between packages, so a program that uses this crate needs a
//! `build.rs` for its binaries to find libtorch when they run:
//!
//! ```no_run
//! if let Ok(libdir) = std::env::var("DEP_TCH_DDP_LIBDIR") {
//!     println!("cargo:rustc-link-arg=-Wl,-rpath,{libdir}");
//! }
//! ```

#[doc(hidden)]
#[path = "private.rs"]
pub mod __private;
mod checkpoint;
mod collectives;
mod data_parallel;
mod ddp;
mod error;
mod ffi;
mod group;
mod hook;
mod join;
mod launch;
mod loader;
#[cfg(feature = "tracing")]
mod main_filter;
mod memory;
pub mod module;
pub mod optim;
pub mod output;
mod peers;
mod plan;
mod random;
mod rank_zero;
mod record;
mod sampler;
mod snapshot;
mod stats;
mod sync_batch_norm;
mod tensorboard;
mod variables;
mod walk;
mod weight;

pub use checkpoint::{save, write_atomically};
pub use data_parallel::DataParallel;
pub use ddp::{BufferSync, Ddp, DdpOptions};
pub use error::{CollectiveError, Error, Result};
pub use group::{Backend, GroupOptions, ProcessGroup, ReduceOp, Work};
pub use hook::{CommHook, Compress, GradBucket, Reduction};
pub use launch::{Launch, Launcher};
pub use loader::Prefetch;
#[cfg(feature = "tracing")]
pub use main_filter::MainFilter;
pub use module::{Registered, Replicable};
pub use output::TensorOutput;
pub use plan::BatchPlan;
pub use random::seed_everything;
pub use record::record;
pub use sampler::{DistributedSampler, EvaluationSampler};
pub use snapshot::{Progress, Snapshots};
pub use stats::DdpStats;
pub use sync_batch_norm::SyncBatchNorm;
pub use tch_ddp_macros::{TensorOutput, data_parallel};
pub use tensorboard::EventWriter;
pub use weight::{Weight, Weighted};
