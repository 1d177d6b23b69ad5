//! Runs cargo and other programs in the checkout, and tells plainly when they fail.

use std::env;
use std::ffi::OsStr;
use std::path::PathBuf;
use std::process::Command;

use anyhow::{Context, Result, bail};

use crate::workspace::Workspace;

/// A cargo command in the root of the checkout.
pub(crate) fn cargo(workspace: &Workspace) -> Command {
    let mut command = Command::new(env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    command.current_dir(workspace.root());
    command
}

/// Builds in the release profile what these arguments select.
pub(crate) fn build_release(workspace: &Workspace, selection: &[&str]) -> Result<()> {
    let mut build = cargo(workspace);
    build.args(["build", "--release"]).args(selection);
    succeed(&mut build)
}

/// A program that a release build made.
pub(crate) fn release_program(workspace: &Workspace, name: &str) -> PathBuf {
    let target = env::var_os("CARGO_TARGET_DIR")
        .map_or_else(|| workspace.root().join("target"), |folder| workspace.root().join(folder));
    target.join("release").join(name).with_extension(env::consts::EXE_EXTENSION)
}

/// Runs a command to its end; its failure is an error that shows the command.
pub(crate) fn succeed(command: &mut Command) -> Result<()> {
    let shown = show(command);
    let status = command.status().with_context(|| format!("cannot start `{shown}`"))?;
    if !status.success() {
        bail!("`{shown}` failed ({status})");
    }
    Ok(())
}

/// A command as one would type it.
pub(crate) fn show(command: &Command) -> String {
    let program = PathBuf::from(command.get_program());
    let name = program.file_stem().unwrap_or(program.as_os_str()).to_string_lossy().into_owned();
    let words = command.get_args().map(OsStr::to_string_lossy);
    words.fold(name, |line, word| format!("{line} {word}"))
}
