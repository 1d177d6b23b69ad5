//! The linter on the fixture programs: exactly what the marks name, and nothing in corrected twins.

use std::collections::BTreeSet;
use std::fs;

use ddp_tests::findings::{self, compare, marks_below};
use ddp_tests::{repository, tidy};

#[track_caller]
fn gives_exactly_the_marked_findings(path: &str) {
    let report = findings::check(&[path]);
    if let Err(difference) = compare(path, &report.findings) {
        panic!("(+ found and not marked, - marked and not found)\n{difference}");
    }
}

#[test]
fn python_programs_give_exactly_the_marked_findings() {
    gives_exactly_the_marked_findings("fixtures/python");
    assert_eq!(findings::check(&["fixtures/python"]).exit_code, 1);
}

#[test]
fn rust_programs_give_exactly_the_marked_findings() {
    gives_exactly_the_marked_findings("fixtures/rust");
    assert_eq!(findings::check(&["fixtures/rust"]).exit_code, 1);
}

/// Linted one by one as well: a program must not depend on what lies beside it.
#[test]
fn each_program_gives_the_same_alone() {
    for program in programs() {
        gives_exactly_the_marked_findings(&program);
    }
}

#[test]
fn corrected_programs_are_silent() {
    let is_corrected = |name: &String| name.trim_end_matches(".rs").ends_with("_after");
    let corrected: Vec<String> = programs().into_iter().filter(is_corrected).collect();
    assert!(corrected.len() >= 3, "{corrected:?}");
    for program in corrected {
        let report = findings::check(&[&program]);
        assert_eq!(report.findings, [], "{program}");
        assert_eq!(report.exit_code, 0, "{program}");
        assert_eq!(marks_below(&program), [], "{program} has marks");
    }
}

/// The rules that the two recipes are about are all seen at work.
#[test]
fn faulty_programs_show_the_rules_of_the_recipes() {
    let marked: BTreeSet<String> =
        marks_below("fixtures").into_iter().map(|(_, mark)| mark.rule).collect();
    for rule in [
        "attribute-of-wrapped-model",
        "data-parallel-in-use",
        "fixed-device-in-forward",
        "forward-bypasses-wrapper",
        "invalid-syntax",
        "loss-inside-model",
        "module-of-unwrapped-model",
        "non-tensor-forward-output",
        "parameters-read-on-replica",
        "uneven-batch-average",
        "uneven-epoch-output",
        "unguarded-log",
        "unguarded-save",
        "unregistered-parameters",
    ] {
        assert!(marked.contains(rule), "no fixture shows {rule}");
    }
}

/// As the finding says it, with the user's own names in it.
#[test]
fn findings_say_what_why_and_what_to_do_in_lower_case_without_stop() {
    let report = findings::check(&["fixtures/python", "fixtures/rust"]);
    assert!(!report.findings.is_empty());
    for found in report.findings {
        for text in [&found.message, &found.why, &found.help] {
            assert!(!text.is_empty(), "{found:?}");
            assert_eq!(tidy::fault(text), None, "{text}");
        }
    }
}

#[test]
fn long_programs_are_followed_to_their_end() {
    // In `torch_macro` hundreds of tests hand thousands of conditions on.
    let report = findings::check(&["tests/tests"]);
    let reused = report.findings.iter().filter(|finding| finding.rule == "path-reused");
    let places: BTreeSet<_> = reused.map(|finding| finding.path.clone()).collect();
    let shapes = ["common.rs", "convolutions.rs"].map(|file| {
        ["tests", "tests", "torch_macro", "shapes", file].iter().collect::<std::path::PathBuf>()
    });
    assert_eq!(places, BTreeSet::from(shapes));
}

#[test]
fn findings_do_not_depend_on_the_number_of_threads() {
    let all = findings::check(&["fixtures/python", "fixtures/rust"]);
    assert!(!all.findings.is_empty());
    for threads in ["1", "2", "7"] {
        let paths = ["fixtures/python", "fixtures/rust"];
        let same = findings::check_with(&[("RAYON_NUM_THREADS", threads)], &paths);
        assert_eq!(same.findings, all.findings, "with {threads} threads");
    }
}

#[test]
fn findings_do_not_depend_on_the_order_of_files_or_on_an_earlier_run() {
    let ahead = findings::check(&["fixtures/python", "fixtures/rust"]);
    let again = findings::check(&["fixtures/python", "fixtures/rust"]);
    assert_eq!(again.findings, ahead.findings, "in a second run");
    let mut files = repository::files(&repository::root().join("fixtures"), "rs");
    files.extend(repository::files(&repository::root().join("fixtures"), "py"));
    let relative = |path: &std::path::PathBuf| {
        let path = path.strip_prefix(repository::root()).expect("in the checkout");
        path.to_string_lossy().into_owned()
    };
    let mut names: Vec<String> = files.iter().map(relative).collect();
    names.sort();
    names.reverse();
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    let mut behind = findings::check(&names).findings;
    behind.sort_by(|a, b| (&a.path, a.line, &a.rule).cmp(&(&b.path, b.line, &b.rule)));
    let mut sorted = ahead.findings;
    sorted.sort_by(|a, b| (&a.path, a.line, &a.rule).cmp(&(&b.path, b.line, &b.rule)));
    assert_eq!(behind, sorted, "with the files named backwards");
}

/// Line ends, a byte order mark, tabs: the lines stay, and so do the findings on them.
#[test]
fn findings_do_not_depend_on_how_lines_are_written() {
    let mut folders = vec![repository::root().join("fixtures/python")];
    let cases = repository::root().join("../shared/cases");
    if cases.exists() {
        folders.push(cases);
    } else {
        eprintln!("skipped: {} is not there", cases.display());
    }
    for folder in folders {
        let plain = rewritten(&folder, str::to_owned);
        let crlf = rewritten(&folder, |text| text.replace('\n', "\r\n"));
        let marked = rewritten(&folder, |text| format!("\u{feff}{text}"));
        let tabs = rewritten(&folder, |text| {
            let lines = text.split('\n').map(|line| {
                let code = line.trim_start_matches("    ");
                format!("{}{code}", "\t".repeat((line.len() - code.len()) / 4))
            });
            lines.collect::<Vec<_>>().join("\n")
        });
        assert!(plain.len() > 5, "{plain:?}");
        assert_eq!(crlf, plain, "with CRLF in {}", folder.display());
        assert_eq!(marked, plain, "with a byte order mark in {}", folder.display());
        assert_eq!(tabs, plain, "with tabs in {}", folder.display());
    }
}

/// What a copy of the folder's Python files gives, each written anew: place, rule and message.
fn rewritten(
    folder: &std::path::Path,
    write: impl Fn(&str) -> String,
) -> Vec<(std::path::PathBuf, u32, String, String)> {
    let copy = tempfile::tempdir().expect("a folder can be made");
    for path in repository::files(folder, "py") {
        let to = copy.path().join(path.strip_prefix(folder).expect("below the folder"));
        fs::create_dir_all(to.parent().expect("in the copy")).expect("folders can be made");
        fs::write(&to, write(&repository::read(&path))).expect("files can be written");
    }
    let found = findings::check_in(copy.path(), &["."]).findings;
    found.into_iter().map(|f| (f.path, f.line, f.rule, f.message)).collect()
}

/// One per program: the folders of Python programs, the files of Rust ones.
fn programs() -> Vec<String> {
    let mut programs = entries("fixtures/python");
    programs.retain(|path| repository::root().join(path).is_dir() && !path.contains("__"));
    programs.extend(entries("fixtures/rust/src/bin"));
    programs
}

/// What lies directly in a folder, relative to the checkout, sorted.
fn entries(folder: &str) -> Vec<String> {
    let entries = fs::read_dir(repository::root().join(folder)).expect("the fixtures are there");
    let names = entries.map(|entry| entry.expect("the fixtures can be read").file_name());
    let mut paths: Vec<String> =
        names.map(|name| format!("{folder}/{}", name.to_string_lossy())).collect();
    paths.sort();
    paths
}
