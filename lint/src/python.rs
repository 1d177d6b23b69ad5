//! The Python front end: source text to the program model, places of modules, text edits.
//!
//! The only part of the linter that knows Python's grammar, and the only one that names the
//! parser. It does no I/O and judges nothing.

#[cfg(test)]
mod dump;
mod errors;
mod lower;

pub use lower::{DEPTH_MAX, lower};
