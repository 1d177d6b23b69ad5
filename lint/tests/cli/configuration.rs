//! Configuration files: where they are found, what they change, how mistakes are told.

use crate::support::{FAULT, MENDABLE, Scratch};

#[test]
fn the_closest_configuration_wins() {
    let scratch = Scratch::new(&[
        ("a.py", FAULT),
        ("sub/b.py", FAULT),
        ("sub/deep/c.py", FAULT),
        ("ddp-lint.toml", "ignore = [\"unknown-suppression\"]\n"),
        ("sub/pyproject.toml", "[tool.ddp-lint]\nselect = [\"all\"]\n"),
        ("sub/deep/pyproject.toml", "[tool.other]\nx = 1\n"),
    ]);
    let expected = ["sub/b.py:1 unknown-suppression", "sub/deep/c.py:1 unknown-suppression"];
    assert_eq!(scratch.places(&["."]), expected);
    assert_eq!(scratch.places(&["."]), scratch.places(&["sub"]));
    assert_eq!(scratch.places(&["--isolated", "."]).len(), 3);
    assert_eq!(scratch.places(&["--config", "ddp-lint.toml", "."]), [""; 0]);
    let own = "sub/ddp-lint.toml";
    scratch.write(own, "ignore = [\"all\"]\n");
    assert_eq!(scratch.places(&["."]), [""; 0], "ddp-lint.toml wins in its folder");
}

#[test]
fn cargo_metadata_is_a_configuration() {
    let scratch = Scratch::new(&[
        ("a.py", FAULT),
        ("Cargo.toml", "[package.metadata.ddp-lint.rules]\nunknown-suppression = \"off\"\n"),
    ]);
    assert_eq!(scratch.places(&[]), [""; 0]);
}

#[test]
fn levels_change_the_status() {
    let scratch = Scratch::new(&[
        ("a.py", FAULT),
        ("ddp-lint.toml", "[rules]\nunknown-suppression = \"error\"\n"),
    ]);
    assert_eq!(scratch.findings(&[])[0]["level"], "error");
}

#[test]
fn patterns_leave_files_out() {
    let scratch = Scratch::new(&[
        ("a.py", FAULT),
        ("vendored/b.py", FAULT),
        ("tests/c.py", FAULT),
        (
            "ddp-lint.toml",
            "exclude = [\"vendored/\"]\n[per-file-ignores]\n\"tests/\" = [\"all\"]\n",
        ),
    ]);
    assert_eq!(scratch.places(&[]), ["a.py:1 unknown-suppression"]);
    // A file that is named is meant.
    assert_eq!(scratch.places(&["vendored/b.py"]).len(), 1);
    assert_eq!(scratch.places(&["--exclude", "a.py"]), [""; 0]);
    let ignores = ["--per-file-ignores", "a.py:unknown-suppression,z.py:all"];
    assert_eq!(scratch.places(&ignores), [""; 0]);
}

#[test]
fn the_command_line_selects_rules() {
    let scratch = Scratch::new(&[("a.py", FAULT), ("b.py", MENDABLE)]);
    let both = ["a.py:1 unknown-suppression", "b.py:1 unused-suppression"];
    assert_eq!(scratch.places(&["--select", "unknown-suppression,unused-suppression"]), both);
    assert_eq!(scratch.places(&["--select", "unknown-suppression"]), both[..1]);
    assert_eq!(scratch.places(&["--ignore", "unknown-suppression"]), [""; 0]);
    let extended = ["--ignore", "all", "--extend-select", "unknown-suppression"];
    assert_eq!(scratch.places(&extended), both[..1]);
}

#[test]
fn mistakes_are_told_all_at_once() {
    let scratch = Scratch::new(&[
        ("a.py", FAULT),
        (
            "pyproject.toml",
            "[tool.ddp-lint]\nslect = [\"all\"]\nignore = [\"unused-supression\"]\n",
        ),
    ]);
    let run = scratch.run(&[]);
    assert_eq!((run.status, &*run.stdout), (2, ""));
    let lines: Vec<&str> = run.stderr.lines().collect();
    assert!(lines[0].contains("pyproject.toml:2:1: unknown key `slect`; did you mean `select`?"));
    assert!(lines[1].contains("pyproject.toml:3:11: unknown rule `unused-supression`"), "{run:?}");
    assert_eq!(scratch.run(&["--isolated"]).status, 1);
}

#[test]
fn keys_are_explained_from_the_code() {
    let scratch = Scratch::new(&[]);
    let all = scratch.run(&["config"]).stdout;
    for key in ["select", "ignore", "rules", "names", "exclude", "target-torch"] {
        assert!(all.contains(&format!("\n{key}\n")), "{key}");
        let one = scratch.run(&["config", key]);
        assert!(one.stdout.starts_with(key), "{one:?}");
    }
    let schema = scratch.run(&["config", "--schema"]).stdout;
    let schema: serde_json::Value = serde_json::from_str(&schema).unwrap();
    assert_eq!(schema["additionalProperties"], false);
    assert!(schema["properties"]["per-file-ignores"].is_object());
}
