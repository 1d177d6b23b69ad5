//! Which files are linted.

use crate::support::{FAULT, Scratch};

#[test]
fn files_that_git_ignores_and_other_peoples_code_are_left_out() {
    let scratch = Scratch::new(&[
        ("a.py", FAULT),
        (".gitignore", "generated/\n*_pb2.py\n"),
        ("generated/b.py", FAULT),
        ("c_pb2.py", FAULT),
        (".venv/lib/d.py", FAULT),
        ("env/pyvenv.cfg", ""),
        ("env/lib/e.py", FAULT),
        ("node_modules/f.py", FAULT),
        ("lib/site-packages/g.py", FAULT),
        ("target/CACHEDIR.TAG", ""),
        ("target/package/h.rs", "fn main() {} // ddp-lint: allow(x)\n"),
        ("build/lib/i.py", FAULT),
        ("pkg/__pycache__/j.py", FAULT),
        ("notes.txt", FAULT),
    ]);
    assert_eq!(scratch.places(&["."]), ["a.py:1 unknown-suppression"]);
    // What is named is meant.
    assert_eq!(scratch.places(&["generated/b.py"]).len(), 1);
}

#[test]
fn only_what_is_named_is_reported() {
    let scratch = Scratch::new(&[
        ("a.py", FAULT),
        ("sub/b.py", FAULT),
        ("sub/c.rs", "fn main() {} // ddp-lint: allow(x)\n"),
    ]);
    assert_eq!(
        scratch.places(&["sub"]),
        ["sub/b.py:1 unknown-suppression", "sub/c.rs:1 unknown-suppression"]
    );
    assert_eq!(scratch.places(&["a.py"]), ["a.py:1 unknown-suppression"]);
    assert_eq!(scratch.places(&[".", "sub", "a.py"]).len(), 3, "nothing is told twice");
}

#[test]
fn roots_inside_a_root_are_not_told_twice() {
    let scratch = Scratch::new(&[("a.py", FAULT), ("sub/setup.py", ""), ("sub/b.py", FAULT)]);
    assert_eq!(scratch.places(&[".", "sub"]).len(), 2);
    assert_eq!(scratch.places(&["sub", "."]).len(), 2);
}

#[cfg(unix)]
#[test]
fn links_do_not_lead_astray() {
    use std::os::unix::fs::symlink;
    let scratch = Scratch::new(&[("a.py", FAULT), ("sub/b.py", "x = 1\n")]);
    symlink("..", scratch.path("sub/loop")).unwrap();
    symlink("a.py", scratch.path("again.py")).unwrap();
    symlink("nowhere.py", scratch.path("broken.py")).unwrap();
    assert_eq!(scratch.places(&["."]), ["a.py:1 unknown-suppression"]);
    let elsewhere = Scratch::new(&[]);
    symlink(scratch.path("a.py"), elsewhere.path("linked.py")).unwrap();
    assert_eq!(elsewhere.places(&["."]), ["linked.py:1 unknown-suppression"]);
}

#[test]
fn odd_files_do_no_harm() {
    let scratch = Scratch::new(&[("empty.py", ""), ("empty.ipynb", ""), ("a.py", FAULT)]);
    scratch.write("binary.py", b"\x7fELF\0\xff\xfe");
    scratch.write("latin.py", b"x = '\xe9'\n");
    scratch.write("huge.py", "x = 1\n".repeat(1_500_000));
    scratch.write("deep.py", format!("x = {}1{}\n", "(".repeat(50_000), ")".repeat(50_000)));
    scratch.write(
        "deep.rs",
        format!("fn main() {{ {}1{} }}\n", "(".repeat(50_000), ")".repeat(50_000)),
    );
    let run = scratch.run(&["--output-format", "concise", "--select", "unknown-suppression"]);
    assert_eq!(run.status, 1, "{run:?}");
    assert!(run.stdout.starts_with("a.py:1:27: "), "{run:?}");
    assert!(run.stderr.contains("huge.py: larger than 8 MiB, left out"), "{run:?}");
    assert_eq!(run.stderr.lines().count(), 1, "{run:?}");
}

#[test]
fn a_folder_without_sources_is_clean() {
    let scratch = Scratch::new(&[("docs/readme.md", "")]);
    let run = scratch.run(&["docs"]);
    assert_eq!((run.status, &*run.stdout), (0, "no errors or warnings in 0 files\n"));
}
