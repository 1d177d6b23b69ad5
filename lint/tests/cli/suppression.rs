//! Suppression comments, where they count and what is said about them.

use crate::support::Scratch;

/// `PLACE` is where a finding of `unused-suppression` is; allowing it there is the test.
fn left(path: &str, text: &str) -> Vec<String> {
    Scratch::new(&[(path, text)]).places(&[])
}

#[test]
fn a_suppression_can_be_suppressed() {
    let suppressed = "x = 1  # ddp-lint: allow(unused-suppression, unknown-suppression)\n";
    assert_eq!(left("a.py", suppressed), [""; 0]);
    let above = "# ddp-lint: allow(unused-suppression) -- kept for the next release\n\
                 x = 1  # ddp-lint: allow(unknown-suppression)\n";
    assert_eq!(left("a.py", above), [""; 0]);
    let file = "# ddp-lint: allow-file(unknown-suppression)\nx = 1  # ddp-lint: allow(oops)\n";
    assert_eq!(left("a.py", file), [""; 0]);
}

#[test]
fn rust_comments_count_above_attributes_and_inside_functions() {
    let rust = "\
// ddp-lint: allow(unknown-suppression)
#[inline]
fn a() {} // ddp-lint: allow(oops)

fn main() {
    // ddp-lint: allow(unknown-suppression)
    let x = vec![
        1, // ddp-lint: allow(oops)
    ];
    /* ddp-lint: allow(oops) */
    let text = \"// ddp-lint: allow(oops)\";
}
";
    assert_eq!(left("src/main.rs", rust), ["src/main.rs:10 unknown-suppression"]);
}

#[test]
fn an_unreached_file_is_not_judged() {
    let scratch = Scratch::new(&[
        ("main.py", "import torch\nif __name__ == \"__main__\":\n    print(1)\n"),
        ("lonely.py", "x = 1  # ddp-lint: allow(unknown-suppression)\n"),
    ]);
    assert_eq!(scratch.places(&[]), [""; 0]);
    let scratch = Scratch::new(&[
        ("main.py", "import lonely, torch\nif __name__ == \"__main__\":\n    print(1)\n"),
        ("lonely.py", "x = 1  # ddp-lint: allow(unknown-suppression)\n"),
    ]);
    assert_eq!(scratch.places(&[]), ["lonely.py:1 unused-suppression"]);
}

#[test]
fn rules_that_are_off_are_not_judged() {
    let scratch = Scratch::new(&[("a.py", "x = 1  # ddp-lint: allow(unknown-suppression)\n")]);
    assert_eq!(scratch.places(&["--ignore", "unknown-suppression"]), [""; 0]);
    assert_eq!(scratch.places(&["--ignore", "unused-suppression"]), [""; 0]);
    assert_eq!(scratch.places(&["--select", "unused-suppression"]), [""; 0]);
}
