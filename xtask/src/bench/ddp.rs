//! Speed of the runtime beside Python's DDP: the example `bench_ddp` starts both in turns. Measures
//! nothing itself.

use std::process::Command;

use anyhow::{Context, Result};
use clap::Args;

use crate::cargo::{build_release, release_program, succeed};
use crate::setup;
use crate::workspace::Workspace;

#[derive(Debug, Args)]
pub(crate) struct Options {
    /// Runs of each program per model, taken in turns.
    #[arg(long, default_value_t = 3)]
    rounds: usize,
    /// mlp64, mlp256, mlp1024 or resnet18 [default: all; with `--link`, resnet18].
    #[arg(long)]
    model: Option<String>,
    /// Momentum of the SGD.
    #[arg(long, default_value_t = 0.0)]
    momentum: f64,
    /// Over a link that needs as long for the gradients as the ranks for computing them: shows how
    /// much of the reduction hides behind the backward pass. Needs root, `ip` and `tc`.
    #[arg(long)]
    link: bool,
}

pub(crate) fn run(workspace: &Workspace, options: &Options) -> Result<()> {
    let libtorch = setup::run(workspace)?;
    let python = setup::python_of(&libtorch).with_context(|| {
        format!(
            "`{}` belongs to no Python, so there is no Python DDP to compare with\n  unset LIBTORCH \
             and run `cargo x setup`, which takes libtorch from a Python torch",
            libtorch.display()
        )
    })?;
    build_release(workspace, &["--package", "tch-ddp", "--example", "bench_ddp"])?;
    let program = release_program(workspace, "examples/bench_ddp");
    let mut compare = Command::new(program);
    compare.arg("--compare").arg(python);
    compare.arg("--rounds").arg(options.rounds.max(1).to_string());
    compare.arg("--momentum").arg(options.momentum.to_string());
    if let Some(model) = &options.model {
        compare.arg("--model").arg(model);
    }
    if options.link {
        compare.arg("--link");
    }
    succeed(&mut compare)
}
