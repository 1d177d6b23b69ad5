//! The Python front end: source text to the program model, places of modules, text edits.
//!
//! The only part of the linter that knows Python's grammar, and the only one that names the
//! parser. It does no I/O and judges nothing.

mod config;
#[cfg(test)]
mod dump;
pub mod edit;
mod entries;
mod errors;
mod known;
mod lower;
mod modules;
pub mod notebook;
mod walk;

pub use entries::{Start, entries, start};
pub use lower::{DEPTH_MAX, lower};
pub use modules::{Modules, search_path};
