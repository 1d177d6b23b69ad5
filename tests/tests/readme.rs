//! The README tells the truth: its sample program gives the output that stands below it.

use std::fs;
use std::process::Command;

use ddp_tests::{binaries, repository};

/// The text of the first block in this language after `start`, and where it ends.
fn block<'t>(text: &'t str, language: &str, start: usize) -> (&'t str, usize) {
    let fence = format!("```{language}\n");
    let begin = start + text[start..].find(&fence).expect("the README has such a block");
    let begin = begin + fence.len();
    let end = begin + text[begin..].find("```\n").expect("the block ends");
    (&text[begin..end], end)
}

#[test]
fn sample_program_gives_the_shown_findings() {
    let readme = repository::read(&repository::root().join("README.md"));
    let (program, end) = block(&readme, "python", 0);
    let (shown, _) = block(&readme, "console", end);
    let (command, expected) = shown.split_once('\n').expect("a command and what it prints");
    assert_eq!(command, "$ ddp-lint check train.py");

    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("train.py"), program).unwrap();
    let mut lint = Command::new(binaries::ddp_lint());
    let output = lint.args(["check", "train.py"]).current_dir(folder.path()).output().unwrap();
    let printed = String::from_utf8([output.stdout, output.stderr].concat()).unwrap();
    assert_eq!(printed, expected, "paste this into the README:\n{printed}");
    assert_eq!(output.status.code(), Some(1));
}
