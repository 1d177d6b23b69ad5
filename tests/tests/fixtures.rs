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
fn findings_do_not_depend_on_the_number_of_threads() {
    let all = findings::check(&["fixtures/python", "fixtures/rust"]);
    assert!(!all.findings.is_empty());
    for threads in ["1", "2", "7"] {
        let paths = ["fixtures/python", "fixtures/rust"];
        let same = findings::check_with(&[("RAYON_NUM_THREADS", threads)], &paths);
        assert_eq!(same.findings, all.findings, "with {threads} threads");
    }
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
