//! Runs cargo and other programs in the checkout, and tells plainly when they fail.

use std::env;
use std::ffi::OsStr;
use std::io::{BufRead, BufReader};
use std::path::PathBuf;
use std::process::{Command, ExitStatus, Stdio};

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

/// Builds the linter and the launcher, and returns the linter. Always both in one build: alone,
/// each would have other features of the crates that they share, and all would be built again.
pub(crate) fn release_linter(workspace: &Workspace) -> Result<PathBuf> {
    build_release(workspace, &["--bin", "ddp-lint", "--bin", "ddp-run"])?;
    Ok(release_program(workspace, "ddp-lint"))
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

/// Runs a command to its end, passing on what it prints line by line and showing each to `see`.
pub(crate) fn relay(command: &mut Command, mut see: impl FnMut(&str)) -> Result<ExitStatus> {
    let shown = show(command);
    let start = command.stdout(Stdio::piped()).spawn();
    let mut child = start.with_context(|| format!("cannot start `{shown}`"))?;
    let output = child.stdout.take().context("what it prints cannot be read")?;
    for line in BufReader::new(output).split(b'\n') {
        let line = line.with_context(|| format!("cannot read what `{shown}` prints"))?;
        let line = String::from_utf8_lossy(&line);
        println!("{line}");
        see(&line);
    }
    child.wait().with_context(|| format!("cannot wait for `{shown}`"))
}

/// A command as one would type it.
pub(crate) fn show(command: &Command) -> String {
    let program = PathBuf::from(command.get_program());
    let name = program.file_stem().unwrap_or(program.as_os_str()).to_string_lossy().into_owned();
    let words = command.get_args().map(OsStr::to_string_lossy);
    words.fold(name, |line, word| format!("{line} {word}"))
}
