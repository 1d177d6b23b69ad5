//! ddp-lint: finds what will hang, crash or go silently wrong under DistributedDataParallel.
//!
//! Source text in, findings and edits out. Only the binary and the language server do I/O.

pub mod finding;
pub mod model;
mod name;
pub mod project;
pub mod table;
