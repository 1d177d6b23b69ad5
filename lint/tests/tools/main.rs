//! The linter in other people's tools: editors, pip, pre-commit. Each test skips with a message
//! where its tool is missing; `.ci/run` gets them.

mod neovim;
mod packages;
mod pre_commit;
mod pytest;
mod sarif;
mod vscode;
mod wheel;

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

/// The checkout.
fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("the package lies in the checkout")
}

fn ddp_lint() -> &'static Path {
    Path::new(env!("CARGO_BIN_EXE_ddp-lint"))
}

/// A program among the Python tools that `.ci/run` installs (`DDP_LINT_TOOLS`, else their place
/// in the user's cache). None, with a message, where it is missing.
fn tool(name: &str) -> Option<PathBuf> {
    let named = std::env::var_os("DDP_LINT_TOOLS").map(PathBuf::from);
    let cache = std::env::var_os("XDG_CACHE_HOME").map(PathBuf::from);
    let cache = cache.or_else(|| Some(PathBuf::from(std::env::var_os("HOME")?).join(".cache")));
    let folder = named.or_else(|| Some(cache?.join("ddp-lint/tools-1")))?;
    let tool = folder.join("bin").join(name);
    if tool.is_file() {
        return Some(tool);
    }
    eprintln!("skipped: no `{name}` in {} (`.ci/run` installs it)", folder.display());
    None
}

/// Whether a program on the PATH can be started; says so if not.
fn is_there(name: &str) -> bool {
    let is_there = Command::new(name).arg("--version").output().is_ok();
    if !is_there {
        eprintln!("skipped: no `{name}` on the PATH");
    }
    is_there
}

/// Runs a command that must end well; what it printed.
#[track_caller]
fn succeed(command: &mut Command) -> String {
    let output = command.output().unwrap_or_else(|error| panic!("{command:?}: {error}"));
    let told = told(&output);
    assert!(output.status.success(), "{command:?} ended with {}\n{told}", output.status);
    told
}

fn told(output: &Output) -> String {
    let text = |bytes| String::from_utf8_lossy(bytes).into_owned();
    text(&output.stdout) + &text(&output.stderr)
}
