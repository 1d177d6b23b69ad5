//! ddp-lint: finds what will hang, crash or go silently wrong under DistributedDataParallel.
//!
//! Source text in, findings and edits out. Only the binary and the language server do I/O.

pub mod analysis;
pub mod baseline;
pub mod cli;
pub mod config;
pub mod crash;
pub mod driver;
pub mod finding;
pub mod fixes;
pub mod imports;
pub mod lines;
pub mod linter;
pub mod lsp;
pub mod marks;
pub mod model;
mod name;
mod nearest;
pub mod prelude;
pub mod project;
pub mod python;
pub mod render;
pub mod rule;
pub mod rules;
pub mod rust;
pub mod suppress;
pub mod table;
pub mod torch;
