//! Errors that a user can mend, with the exit code that they end in.

use std::fmt;

/// The launcher cannot do what it was asked to: what, why, and what to do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Trouble {
    pub code: u8,
    pub text: String,
}

impl Trouble {
    /// Wrong flags or a wrong environment.
    pub(crate) fn usage(text: impl Into<String>) -> Self {
        Self { code: 2, text: text.into() }
    }

    /// The machine or the other nodes did not play along.
    pub(crate) fn work(text: impl Into<String>) -> Self {
        Self { code: 1, text: text.into() }
    }

    /// The program cannot be started: 127 not found, 126 found but not executable.
    pub(crate) fn program(code: u8, text: impl Into<String>) -> Self {
        Self { code, text: text.into() }
    }
}

impl fmt::Display for Trouble {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(&self.text)
    }
}

impl std::error::Error for Trouble {}
