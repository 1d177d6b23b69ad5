//! `--fix` and `--diff`.

use crate::support::{FAULT, MENDABLE, Scratch};

#[test]
fn fixes_are_written_and_what_is_left_is_told() {
    let scratch = Scratch::new(&[("a.py", &format!("{MENDABLE}{FAULT}"))]);
    let run = scratch.run(&["--fix", "--output-format", "concise"]);
    assert_eq!(run.status, 1, "{run:?}");
    assert_eq!(scratch.read("a.py"), format!("x = 1\n{FAULT}"));
    assert!(run.stdout.starts_with("a.py:2:27: warning[unknown-suppression]"), "{run:?}");
    assert!(run.stdout.ends_with("mended 1 finding\n1 warning in 2 files\n"), "{run:?}");
    let again = scratch.run(&["--fix"]);
    assert!(!again.stdout.contains("mended"), "{again:?}");
}

#[test]
fn a_diff_changes_nothing_and_applies() {
    let scratch = Scratch::new(&[("sub/a.py", &format!("y = 0\n\n{MENDABLE}"))]);
    let run = scratch.run(&["--diff"]);
    assert_eq!(run.status, 1);
    let expected = "--- a/sub/a.py\n+++ b/sub/a.py\n@@ -1,3 +1,3 @@\n y = 0\n \n-x = 1  # ddp-lint: \
                    allow(unknown-suppression)\n+x = 1\n";
    assert_eq!(run.stdout, expected);
    assert!(scratch.read("sub/a.py").contains("ddp-lint"));
    assert_eq!(scratch.run(&["--diff", "--select", "unknown-suppression"]).stdout, "");
}

#[test]
fn line_ends_and_byte_order_marks_stay() {
    let scratch = Scratch::new(&[]);
    let text = "\u{feff}y = 0\r\n# ddp-lint: allow(unknown-suppression)\r\nx = 1\r\n";
    scratch.write("a.py", text);
    assert_eq!(scratch.run(&["--fix"]).status, 0);
    assert_eq!(scratch.read("a.py"), "\u{feff}y = 0\r\nx = 1\r\n");
}

#[test]
fn files_that_cannot_be_written_back_are_left_alone() {
    let scratch = Scratch::new(&[]);
    let latin = b"# coding: latin-1\nx = '\xe9'  # ddp-lint: allow(unknown-suppression)\n";
    scratch.write("a.py", latin);
    let run = scratch.run(&["--fix"]);
    assert_eq!(run.status, 1, "{run:?}");
    assert_eq!(std::fs::read(scratch.path("a.py")).unwrap(), latin);
}

#[test]
fn files_outside_the_given_paths_are_not_edited() {
    let scratch = Scratch::new(&[("a.py", MENDABLE), ("sub/b.py", MENDABLE)]);
    assert_eq!(scratch.run(&["--fix", "sub"]).status, 0);
    assert_eq!(scratch.read("a.py"), MENDABLE);
    assert_eq!(scratch.read("sub/b.py"), "x = 1\n");
}

#[cfg(unix)]
#[test]
fn permissions_and_links_stay() {
    use std::os::unix::fs::{PermissionsExt as _, symlink};
    let scratch = Scratch::new(&[]);
    let elsewhere = Scratch::new(&[("real.py", MENDABLE)]);
    let mode = std::fs::Permissions::from_mode(0o751);
    std::fs::set_permissions(elsewhere.path("real.py"), mode).unwrap();
    symlink(elsewhere.path("real.py"), scratch.path("link.py")).unwrap();
    assert_eq!(scratch.run(&["--fix"]).status, 0);
    assert!(scratch.path("link.py").is_symlink());
    assert_eq!(elsewhere.read("real.py"), "x = 1\n");
    let mode = std::fs::metadata(elsewhere.path("real.py")).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o751);
}
