//! Speed of the runtime beside Python's DDP: the example `bench_ddp` starts both in turns. Measures
//! nothing itself.

use std::process::Command;

use anyhow::{Context, Result};

use crate::cargo::{build_release, release_program, succeed};
use crate::setup;
use crate::workspace::Workspace;

pub(crate) fn run(workspace: &Workspace, rounds: usize) -> Result<()> {
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
    compare.arg("--compare").arg(python).arg("--rounds").arg(rounds.max(1).to_string());
    succeed(&mut compare)
}
