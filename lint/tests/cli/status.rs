//! Exit status, and what goes to which stream.

use std::io::Read as _;
use std::process::Stdio;

use crate::support::{FAULT, MENDABLE, Scratch, run};

#[test]
fn clean_code_ends_with_zero() {
    let scratch = Scratch::new(&[("a.py", "x = 1\n"), ("src/main.rs", "fn main() {}\n")]);
    let run = scratch.run(&[]);
    assert_eq!((run.status, &*run.stderr), (0, ""));
    assert_eq!(run.stdout, "no errors or warnings in 3 files\n");
}

#[test]
fn findings_end_with_one() {
    let scratch = Scratch::new(&[("a.py", FAULT)]);
    let run = scratch.run(&["check"]);
    assert_eq!((run.status, &*run.stderr), (1, ""));
    assert!(run.stdout.ends_with("1 warning in 2 files\n"), "{}", run.stdout);
    assert_eq!(scratch.run(&["--exit-zero"]).status, 0);
}

#[test]
fn advice_does_not_count() {
    let scratch = Scratch::new(&[
        ("a.py", FAULT),
        ("ddp-lint.toml", "[rules]\nunknown-suppression = \"advice\"\n"),
    ]);
    let run = scratch.run(&["--output-format", "concise"]);
    assert_eq!(run.status, 0);
    assert_eq!(
        run.stdout,
        "no errors or warnings in 2 files; 1 piece of advice (--advice lists them)\n"
    );
    let listed = scratch.run(&["--output-format", "concise", "--advice"]);
    assert_eq!(listed.status, 0);
    assert!(listed.stdout.starts_with("a.py:1:27: advice[unknown-suppression]"), "{listed:?}");
    assert_eq!(scratch.findings(&[]).len(), 1, "machine formats always hold advice");
}

#[test]
fn what_cannot_be_done_ends_with_two() {
    let scratch = Scratch::new(&[("a.py", "x = 1\n")]);
    for arguments in [
        &["no/such/path"][..],
        &["--no-such-flag"],
        &["--select", "no-such-rule"],
        &["--target-torch", "two"],
        &["--config", "missing.toml"],
        &["--baseline", "missing.json"],
        &["--per-file-ignores", "no-colon"],
        &["--output-file", "no/such/folder/f"],
        &["explain", "no-such-rule"],
        &["config", "no-such-key"],
        &["--fix", "--diff"],
    ] {
        let run = scratch.run(arguments);
        assert_eq!(run.status, 2, "{arguments:?}: {run:?}");
        assert!(run.stderr.contains("error"), "{arguments:?}: {run:?}");
        assert_eq!(run.stdout, "", "{arguments:?}");
    }
}

#[test]
fn a_mistyped_rule_is_told_with_the_nearest() {
    let scratch = Scratch::new(&[]);
    let run = scratch.run(&["--ignore", "unused-supression"]);
    assert!(run.stderr.contains("did you mean `unused-suppression`?"), "{run:?}");
    let run = scratch.run(&["explain", "unused-supression"]);
    assert!(run.stderr.contains("did you mean `unused-suppression`?"), "{run:?}");
}

#[cfg(unix)]
#[test]
fn what_cannot_be_read_does_not_hide_the_rest() {
    use std::os::unix::fs::PermissionsExt as _;
    let scratch = Scratch::new(&[("a.py", FAULT), ("closed/b.py", "")]);
    let closed = scratch.path("closed");
    std::fs::set_permissions(&closed, std::fs::Permissions::from_mode(0o000)).unwrap();
    let is_open_anyway = std::fs::read_dir(&closed).is_ok();
    let run = scratch.run(&["--output-format", "concise"]);
    std::fs::set_permissions(&closed, std::fs::Permissions::from_mode(0o755)).unwrap();
    assert!(run.stdout.contains("a.py:1:27"), "{run:?}");
    if is_open_anyway {
        // The superuser reads everything; a broken link cannot be read by anybody.
        std::os::unix::fs::symlink("nowhere", scratch.path("broken")).unwrap();
        let run = scratch.run(&["--output-format", "concise", ".", "broken"]);
        assert_eq!(run.status, 2, "{run:?}");
    } else {
        assert_eq!(run.status, 2, "{run:?}");
        assert!(run.stderr.contains("closed"), "{run:?}");
    }
}

#[test]
fn a_reader_that_goes_away_is_no_failure() {
    let scratch = Scratch::new(&[]);
    // More than any pipe holds.
    scratch.write("a.py", FAULT.repeat(3000));
    let mut child = scratch
        .command()
        .args(["--output-format", "json"])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut first = [0; 1];
    child.stdout.take().unwrap().read_exact(&mut first).unwrap();
    let output = child.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(1));
    assert_eq!(String::from_utf8_lossy(&output.stderr), "");
}

#[test]
fn cargo_and_plain_calls_are_the_same_program() {
    let scratch = Scratch::new(&[("a.py", FAULT)]);
    let plain = scratch.run(&["check", "--output-format", "concise", "a.py"]);
    let cargo = std::path::Path::new(env!("CARGO_BIN_EXE_cargo-ddp-lint"));
    let arguments = ["ddp-lint", "--output-format", "concise", "a.py"];
    let as_cargo = run(scratch.command_of(cargo).args(arguments), "");
    assert_eq!((as_cargo.status, as_cargo.stdout), (plain.status, plain.stdout));
}

#[test]
fn cargo_lints_the_workspace_by_default() {
    let scratch = Scratch::new(&[
        ("Cargo.toml", "[workspace]\nmembers = [\"a\", \"b\"]\n"),
        ("a/Cargo.toml", "[package]\nname = \"a\"\n"),
        ("a/src/main.rs", "fn main() {} // ddp-lint: allow(x)\n"),
        ("b/Cargo.toml", "[package]\nname = \"b\"\n"),
        ("b/src/main.rs", "fn main() {} // ddp-lint: allow(y)\n"),
    ]);
    let arguments = ["--output-format", "concise"];
    let lines = |program: &str| {
        let mut command = scratch.command_of(program.as_ref());
        let run = run(command.current_dir(scratch.path("a")).args(arguments), "");
        run.stdout.lines().filter(|line| line.contains("warning[")).count()
    };
    assert_eq!(lines(env!("CARGO_BIN_EXE_cargo-ddp-lint")), 2);
    assert_eq!(lines(env!("CARGO_BIN_EXE_ddp-lint")), 1);
}

#[test]
fn standard_input_stands_for_a_file() {
    let scratch = Scratch::new(&[("a.py", "x = 1\n")]);
    let arguments = ["--output-format", "concise", "--stdin-filename", "a.py"];
    let run = scratch.run_with_input(&arguments, FAULT);
    assert_eq!(run.status, 1);
    assert!(run.stdout.starts_with("a.py:1:27: "), "{run:?}");
    let arguments = ["--fix", "--stdin-filename", "new/b.py"];
    let run = scratch.run_with_input(&arguments, MENDABLE);
    assert_eq!((run.status, &*run.stdout), (0, "x = 1\n"));
    assert_eq!(scratch.read("a.py"), "x = 1\n");
}

#[test]
fn version_names_the_parsers() {
    let run = Scratch::new(&[]).run(&["--version"]);
    assert_eq!(run.status, 0);
    assert!(run.stdout.contains("ruff_python_parser 0.0.10"), "{run:?}");
    assert!(run.stdout.contains("syn 3."), "{run:?}");
}

#[test]
fn completions_and_manual_are_made() {
    let scratch = Scratch::new(&[]);
    for shell in ["bash", "zsh", "fish", "powershell", "elvish"] {
        let run = scratch.run(&["completions", shell]);
        assert_eq!(run.status, 0, "{shell}");
        assert!(run.stdout.contains("ddp-lint"), "{shell}");
    }
    let manual = scratch.run(&["man"]);
    assert!(manual.stdout.contains(".TH ddp-lint"), "{manual:?}");
}
