//! Baselines and `--add-allow`: how a project with findings begins.

use crate::support::{FAULT, MENDABLE, RULE, Scratch};

#[test]
fn a_baseline_hides_what_it_knows_wherever_it_moves() {
    let scratch = Scratch::new(&[("a.py", FAULT), ("b.py", &FAULT.repeat(2))]);
    let run = scratch.run(&["--write-baseline", "known.json"]);
    assert_eq!((run.status, &*run.stdout), (0, "remembered 3 findings in known.json\n"));
    assert_eq!(scratch.places(&["--baseline", "known.json"]), [""; 0]);
    scratch.write("b.py", format!("import os\n\nif os:\n    {FAULT}\n{FAULT}"));
    assert_eq!(scratch.places(&["--baseline", "known.json"]), [""; 0]);
    scratch.write("b.py", FAULT.repeat(3));
    assert_eq!(scratch.places(&["--baseline", "known.json"]), [format!("b.py:3 {RULE}")]);
    scratch.write("c.py", FAULT);
    assert_eq!(scratch.places(&["--baseline", "known.json", "c.py"]), [format!("c.py:1 {RULE}")]);
}

#[test]
fn a_baseline_does_not_depend_on_the_working_folder() {
    let scratch = Scratch::new(&[("sub/a.py", FAULT)]);
    scratch.run(&["--write-baseline", "known.json"]);
    let mut command = scratch.command();
    command.current_dir(scratch.path("sub")).args(["--baseline", "../known.json"]);
    assert_eq!(crate::support::run(&mut command, "").status, 0);
}

#[test]
fn a_file_that_is_no_baseline_is_refused() {
    let scratch = Scratch::new(&[("a.py", FAULT), ("known.json", "[]")]);
    let run = scratch.run(&["--baseline", "known.json"]);
    assert_eq!(run.status, 2);
    assert!(run.stderr.contains("known.json is no baseline"), "{run:?}");
    scratch.write("known.json", "{\"version\": 99, \"findings\": []}");
    let run = scratch.run(&["--baseline", "known.json"]);
    assert!(run.stderr.contains("version 99"), "{run:?}");
}

#[test]
fn every_finding_gets_its_comment() {
    let long = format!("{} = 1  # ddp-lint: allow(oops)\n", "x".repeat(90));
    let scratch = Scratch::new(&[
        ("a.py", &format!("if True:\n    {FAULT}{long}")),
        ("b.py", MENDABLE),
        ("src/main.rs", "fn main() {\n    f(); // ddp-lint: allow(oops)\n}\n"),
    ]);
    let run = scratch.run(&["--add-allow"]);
    assert_eq!((run.status, &*run.stdout), (0, "allowed 4 findings in 3 files\n"), "{run:?}");
    assert_eq!(scratch.places(&[]), [""; 0]);
    let rust = scratch.read("src/main.rs");
    assert_eq!(rust, "fn main() {\n    f(); // ddp-lint: allow(oops, unknown-suppression)\n}\n");
    let python = scratch.read("a.py");
    assert!(python.contains("    é🦀 = 1  # ddp-lint: allow(no-such-rule, unknown-suppression)\n"));
}
