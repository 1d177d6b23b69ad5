//! Checks of the house's own rules, as functions from a text to complaints.
//!
//! `tests/tidy.rs` runs them over the checkout; each is tested here on a text that breaks it.

mod code;
mod documents;
mod header;
mod messages;
mod programs;
mod tokens;

pub use code::{allowances, layers, long_functions, long_lines, missing_module_docs, unfinished};
pub use documents::{machine_places, missing_paths};
pub use header::{declarations, foreign_functions};
pub use messages::{fault, messages};
pub use programs::{Programs, programs};

/// What is wrong and where, ready to be printed behind a path.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Complaint {
    /// From 1.
    pub line: usize,
    pub what: String,
}

impl Complaint {
    fn new(line: usize, what: impl Into<String>) -> Complaint {
        Complaint { line, what: what.into() }
    }
}
