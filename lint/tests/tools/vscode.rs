//! The extension for VS Code: its tests, a session over the editor's own protocol library among
//! them, and its package.

use std::io::Read as _;
use std::path::PathBuf;
use std::process::Command;

use crate::{ddp_lint, is_there, root, succeed, tool};

/// npm: that on the PATH, or the one among the tools where Node is missing or too old.
fn npm() -> Option<Command> {
    let version = Command::new("node").arg("--version").output().ok();
    let version = version.and_then(|output| String::from_utf8(output.stdout).ok());
    let major = version.and_then(|text| text[1..].split('.').next()?.parse::<u32>().ok());
    if major.is_some_and(|major| major >= 20) && is_there("npm") {
        return Some(Command::new("npm"));
    }
    let npm = tool("npm")?;
    let folder = npm.parent()?.to_owned();
    let path = std::env::var_os("PATH").unwrap_or_default();
    let folders = std::iter::once(folder).chain(std::env::split_paths(&path));
    let mut command = Command::new(npm);
    command.env("PATH", std::env::join_paths(folders).ok()?);
    Some(command)
}

fn folder() -> PathBuf {
    root().join("lint/editors/vscode")
}

#[test]
fn the_extension_passes_its_tests_and_is_packaged() {
    if !folder().join("node_modules").is_dir() {
        eprintln!("skipped: run `npm ci` in lint/editors/vscode first (`.ci/run` does)");
        return;
    }
    let run = |script: &str| {
        let mut npm = npm()?;
        let scratch = tempfile::tempdir().expect("a scratch folder");
        npm.args(["run", script]).current_dir(folder()).env("DDP_LINT", ddp_lint());
        Some(succeed(npm.env("XDG_CACHE_HOME", scratch.path())))
    };
    let Some(told) = run("test") else { return };
    let says = |line: &str| told.lines().any(|said| said == line);
    assert!(says("# skipped 0") && says("# fail 0") && !says("# pass 0"), "{told}");
    run("package");
    let mut package = std::fs::File::open(folder().join("ddp-lint.vsix")).expect("the package");
    let mut signature = [0; 4];
    package.read_exact(&mut signature).expect("it is not empty");
    assert_eq!(&signature, b"PK\x03\x04", "a package is a zip archive");
}
