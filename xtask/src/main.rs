//! The project's own commands: `cargo x setup | demo | test | bench | gpu-check`.
//!
//! Nothing here is needed to build or to use the linter; it is how a clone is set up, shown, tested
//! and measured. It must never link libtorch, because it is what fetches it.

mod bench;
mod cargo;
mod demo;
mod gpu_check;
mod setup;
mod test;
mod workspace;

use std::process::ExitCode;

use anyhow::Result;
use clap::{Parser, Subcommand};

use workspace::Workspace;

#[derive(Parser)]
#[command(name = "cargo x", bin_name = "cargo x", about, version, disable_help_subcommand = true)]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Find libtorch, or fetch it once, and link it as `.libtorch`.
    Setup {
        /// Also get the headers that the runtime's feature `nccl` is built with.
        #[arg(long)]
        nccl: bool,
    },
    /// See it all at work: findings in real programs, and a training that two ranks share.
    Demo,
    /// Test everything; the last line counts the tests.
    Test,
    /// Measure the linter (`score`, `lint`, `server`; by default all), the runtime (`ddp`) or the
    /// macros (`macro`).
    Bench {
        #[command(subcommand)]
        bench: Option<bench::Bench>,
    },
    /// Try what needs a GPU: one rank over NCCL, two ranks of Gloo on CUDA tensors.
    GpuCheck,
}

fn main() -> ExitCode {
    match run(Arguments::parse().command) {
        Ok(code) => code,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::from(2)
        }
    }
}

fn run(command: Command) -> Result<ExitCode> {
    let workspace = Workspace::find()?;
    match command {
        Command::Setup { nccl } => {
            let libtorch = setup::run(&workspace)?;
            if nccl {
                setup::nccl_headers(&libtorch)?;
            }
            Ok(ExitCode::SUCCESS)
        }
        Command::Demo => demo::run(&workspace),
        Command::Test => test::run(&workspace),
        Command::Bench { bench } => bench::run(&workspace, bench),
        Command::GpuCheck => gpu_check::run(&workspace),
    }
}
