//! `pip install .`, and the program in an environment that knows no Rust.

use std::path::Path;
use std::process::Command;

use crate::{root, succeed, told, tool};

#[test]
fn the_wheel_runs_without_rust() {
    let (Some(python), Some(_)) = (tool("python"), tool("maturin")) else { return };
    let scratch = tempfile::tempdir().expect("a scratch folder");
    let wheels = scratch.path().join("wheels");
    // The unoptimised build, which the other tests have made already.
    succeed(
        Command::new(&python)
            .args(["-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation", "-w"])
            .args([&wheels, root()])
            .env("MATURIN_PEP517_ARGS", "--profile dev")
            .env("PATH", with_folder_of(&python)),
    );
    let wheel = std::fs::read_dir(&wheels).expect("a folder").next();
    let wheel = wheel.expect("one wheel").expect("an entry").path();
    let venv = scratch.path().join("venv");
    succeed(Command::new(&python).args(["-m", "venv"]).arg(&venv));
    let bin = venv.join("bin");
    let install = ["-m", "pip", "install", "--quiet", "--no-index"];
    succeed(Command::new(bin.join("python")).args(install).arg(&wheel));

    let program = bin.join("ddp-lint");
    let run = |arguments: &[&str]| {
        let mut command = Command::new(&program);
        command.args(arguments).current_dir(scratch.path()).env_clear().env("PATH", &bin);
        command.output().expect("the program starts")
    };
    let version = told(&run(&["--version"]));
    assert!(version.contains("ruff_python_parser") && version.contains("syn"), "{version}");
    std::fs::write(scratch.path().join("a.py"), "x = 1  # ddp-lint: allow(oops)\n")
        .expect("a file");
    let checked = run(&["check", "--output-format", "concise", "a.py"]);
    assert_eq!(checked.status.code(), Some(1), "{}", told(&checked));
    assert!(told(&checked).starts_with("a.py:1:26: warning[unknown-suppression]"));
    let names = std::fs::read_dir(&bin).expect("a folder");
    let names: Vec<_> = names.map(|entry| entry.expect("an entry").file_name()).collect();
    assert!(names.iter().any(|name| name == "cargo-ddp-lint"), "{names:?}");
}

/// The PATH with the folder of the tools in front.
fn with_folder_of(program: &Path) -> std::ffi::OsString {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let folder = program.parent().map(Path::to_owned);
    std::env::join_paths(folder.into_iter().chain(std::env::split_paths(&path))).expect("a PATH")
}
