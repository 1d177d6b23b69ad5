//! `cargo x bench`: how good and how fast the linter is, and how fast the runtime, measured with
//! release builds; and what the macros cost.

mod ddp;
mod growth;
mod lint;
mod macros;
mod score;
mod server;

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::Result;
use clap::Subcommand;

use crate::workspace::Workspace;

#[derive(Subcommand)]
pub(crate) enum Bench {
    /// Faults found and look-alikes left alone, against the judged cases in `../shared`.
    Score {
        /// Folder of checked-out repositories (`<owner>+<name>`), for the score over real projects.
        #[arg(long, env = "DDP_LINT_CORPUS")]
        repos: Option<PathBuf>,
    },
    /// Time to lint a folder of Python code, against `ruff check --select F` on the same folder.
    Lint {
        /// The folder [default: the Python package torch].
        folder: Option<PathBuf>,
        /// Runs of each program, taken in turns.
        #[arg(long, default_value_t = 7)]
        runs: usize,
    },
    /// Time from a keystroke to its findings in a large workspace, memory, and whether the server
    /// then knows what a fresh run finds.
    Server(server::Options),
    /// How the time grows with a project, and what deep and long code takes.
    Growth(growth::Options),
    /// Steps per second, memory and overlap of the runtime, against Python's DDP on two ranks.
    Ddp(ddp::Options),
    /// What `#[data_parallel]` adds to the time of compiling a model of forty fields.
    Macro {
        /// Runs of rustc on each form of the model, taken in turns.
        #[arg(long, default_value_t = 15)]
        rounds: usize,
    },
}

/// Without a choice: all measurements of the linter, with their defaults.
pub(crate) fn run(workspace: &Workspace, bench: Option<Bench>) -> Result<ExitCode> {
    match bench {
        Some(Bench::Score { repos }) => score::run(workspace, repos.as_deref())?,
        Some(Bench::Lint { folder, runs }) => lint::run(workspace, folder, runs)?,
        Some(Bench::Server(options)) => server::run(workspace, &options)?,
        Some(Bench::Ddp(options)) => ddp::run(workspace, &options)?,
        Some(Bench::Growth(options)) => growth::run(workspace, &options)?,
        Some(Bench::Macro { rounds }) => macros::run(workspace, rounds)?,
        None => {
            score::run(workspace, None)?;
            lint::run(workspace, None, 7)?;
            server::run(workspace, &server::Options::default())?;
        }
    }
    Ok(ExitCode::SUCCESS)
}

fn median(mut times: Vec<Duration>) -> Duration {
    times.sort_unstable();
    let middle = times.len() / 2;
    if times.len().is_multiple_of(2) {
        (times[middle - 1] + times[middle]) / 2
    } else {
        times[middle]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn median_is_the_middle_or_between_the_two_middle_ones() {
        let ms = Duration::from_millis;
        assert_eq!(median(vec![ms(9), ms(1), ms(4)]), ms(4));
        assert_eq!(median(vec![ms(9), ms(1), ms(4), ms(6)]), ms(5));
    }
}
