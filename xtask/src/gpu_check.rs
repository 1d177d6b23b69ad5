//! `cargo x gpu-check`: what the tests cannot try without a GPU. Outside of `cargo x test`.

use std::path::Path;
use std::process::{Command, ExitCode};

use anyhow::{Result, bail};

use crate::cargo::{cargo, release_program, succeed};
use crate::setup;
use crate::workspace::Workspace;

/// Builds the runtime with NCCL and runs its example `gpu_check`: one rank over NCCL, then two
/// ranks of Gloo on the same GPU.
pub(crate) fn run(workspace: &Workspace) -> Result<ExitCode> {
    let libtorch = setup::run(workspace)?;
    if !has_gpu() {
        bail!(
            "this machine has no NVIDIA GPU (there is no `/dev/nvidia0`)\n  run `cargo x gpu-check` \
             where there is one; everything else is in `cargo x test`"
        );
    }
    setup::nccl_headers(&libtorch)?;
    let mut build = cargo(workspace);
    build.args(["build", "--release", "--package", "tch-ddp", "--features", "nccl"]);
    succeed(build.args(["--example", "gpu_check"]))?;
    let program = release_program(workspace, "examples/gpu_check");
    for backend in ["nccl", "gloo"] {
        succeed(Command::new(&program).arg(backend))?;
    }
    Ok(ExitCode::SUCCESS)
}

fn has_gpu() -> bool {
    Path::new("/dev/nvidia0").exists() || Path::new("/dev/dxg").exists()
}
