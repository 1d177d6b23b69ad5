//! The one error type of the runtime. It says what failed, where (rank and step), why, and what to
//! do; it must never be made from user input by a panic.

use std::fmt;

/// What every fallible call of this crate returns.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// An error of the distributed runtime.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The launch environment is incomplete, contradictory or not a number.
    #[error("{0}")]
    Launch(String),
    /// The process group could not be set up.
    #[error("rank {rank} of {world_size} could not join the process group: {reason}")]
    Init {
        /// This rank.
        rank: usize,
        /// How many ranks were expected.
        world_size: usize,
        /// What went wrong and what to do.
        reason: String,
    },
    /// A collective failed: another rank died, left, or is stuck.
    #[error("{0}")]
    Collective(CollectiveError),
    /// The ranks do not agree on the model or on the options; the same text on every rank.
    #[error("the ranks disagree: {0}")]
    Disagreement(String),
    /// The model, its variables or the order of calls do not fit data-parallel training.
    #[error("rank {rank}, step {step}: {reason}")]
    Misuse {
        /// This rank.
        rank: usize,
        /// Synchronised backward passes done so far.
        step: u64,
        /// What is wrong and what to do.
        reason: String,
    },
    /// The tensors that a model holds cannot be made ready; every problem is listed.
    #[error("{}", list(problems))]
    Model {
        /// One sentence each: which field, what is wrong and what to do.
        problems: Vec<String>,
    },
    /// An argument of a call does not fit.
    #[error("{0}")]
    Argument(String),
    /// Reading or writing a checkpoint failed; the same text on every rank.
    #[error("{0}")]
    Checkpoint(String),
    /// libtorch refused a call that involves no other rank.
    #[error("{what}: {message}")]
    Torch {
        /// What was being done.
        what: String,
        /// libtorch's own words.
        message: String,
    },
    /// An error of tch.
    #[error(transparent)]
    Tch(#[from] tch::TchError),
}

/// What is known about a collective that failed.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct CollectiveError {
    /// What this rank was doing, as in `all_reduce` or `the reduction of gradients`.
    pub operation: String,
    /// This rank.
    pub rank: usize,
    /// Synchronised backward passes this rank had done.
    pub step: u64,
    /// The ranks held responsible, if they could be found out.
    pub culprits: Vec<usize>,
    /// What the roll call found, in words.
    pub diagnosis: String,
    /// libtorch's own words.
    pub message: String,
}

impl fmt::Display for CollectiveError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "rank {}, step {}: {} failed: {}; the group cannot be used any more, end this process \
             and let the launcher restart all ranks (torch: {})",
            self.rank, self.step, self.operation, self.diagnosis, self.message
        )
    }
}

impl Error {
    /// The ranks that a failed collective holds responsible; empty for other errors.
    pub fn culprits(&self) -> &[usize] {
        match self {
            Error::Collective(error) => &error.culprits,
            _ => &[],
        }
    }
}

fn list(problems: &[String]) -> String {
    match problems {
        [one] => format!("the model is not ready: {one}"),
        many => {
            format!("the model is not ready, {} problems:\n  - {}", many.len(), many.join("\n  - "))
        }
    }
}
