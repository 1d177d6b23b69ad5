//! The programs under test. Cargo tells only a package's own tests where its programs are, so they
//! are built here, once per test program; that is quick when they are up to date.

use std::env;
use std::path::PathBuf;
use std::process::Command;
use std::sync::OnceLock;

use crate::repository;

/// The linter, built in the profile of the tests.
pub fn ddp_lint() -> PathBuf {
    static BUILT: OnceLock<PathBuf> = OnceLock::new();
    BUILT.get_or_init(|| build("ddp-lint")).clone()
}

/// The launcher, built in the profile of the tests.
pub fn ddp_run() -> PathBuf {
    static BUILT: OnceLock<PathBuf> = OnceLock::new();
    BUILT.get_or_init(|| build("ddp-run")).clone()
}

fn build(name: &str) -> PathBuf {
    let folder = profile_folder();
    let cargo = env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let mut command = Command::new(cargo);
    // Without `--package` the features are those of a plain `cargo build`, which is what a user
    // has built already; with it everything below would be compiled once more.
    command.args(["build", "--quiet", "--bin", name]).current_dir(repository::root());
    command.arg("--target-dir").arg(folder.parent().expect("a profile folder has a parent"));
    if folder.ends_with("release") {
        command.arg("--release");
    }
    let status = command.status().expect("cargo runs");
    assert!(status.success(), "`cargo build --bin {name}` failed");
    folder.join(name).with_extension(env::consts::EXE_EXTENSION)
}

/// `target/debug` or `target/release`: test programs lie in its folder `deps`.
fn profile_folder() -> PathBuf {
    let test_program = env::current_exe().expect("a test program knows its path");
    let deps = test_program.parent().expect("a program lies in a folder");
    deps.parent().expect("deps lies in the profile's folder").to_path_buf()
}
