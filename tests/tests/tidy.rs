//! The house keeps its own rules: layering, length, wording, generated texts that are fresh.

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use ddp_lint::model::Language;
use ddp_lint::rules::RULES;
use ddp_tests::repository::{files, read, root};
use ddp_tests::tidy::{self, Complaint};
use ddp_tests::{binaries, findings};

/// Rust sources of the checkout, relative to it, with their texts.
fn rust_sources() -> Vec<(String, String)> {
    files(root(), "rs").into_iter().map(|path| (relative(&path), read(&path))).collect()
}

fn relative(path: &Path) -> String {
    let path = path.strip_prefix(root()).expect("sources lie in the checkout");
    path.to_string_lossy().replace('\\', "/")
}

#[track_caller]
fn none_of(complaints: impl IntoIterator<Item = (String, Vec<Complaint>)>) {
    let mut text = String::new();
    for (path, complaints) in complaints {
        for Complaint { line, what } in complaints {
            let _ = writeln!(text, "{path}:{line}: {what}");
        }
    }
    assert!(text.is_empty(), "\n{text}");
}

#[track_caller]
fn check_rust(check: impl Fn(&str, &str) -> Vec<Complaint>) {
    let sources = rust_sources();
    assert!(sources.len() > 20, "the sources are not where this test looks");
    none_of(sources.into_iter().map(|(path, text)| {
        let complaints = check(&path, &text);
        (path, complaints)
    }));
}

#[test]
fn each_layer_keeps_its_names_to_itself() {
    check_rust(tidy::layers);
}

#[test]
fn functions_fit_on_a_screen() {
    check_rust(|_, text| tidy::long_functions(text));
}

#[test]
fn lines_fit_the_page() {
    check_rust(|_, text| tidy::long_lines(text));
}

#[test]
fn nothing_is_left_unfinished_or_switched_off() {
    check_rust(|_, text| tidy::unfinished(text));
}

/// Not asked of what the macros emit (an expectation that the user's code does not meet would be a
/// warning in it) nor of modules that several test programs share, each of them in part.
#[test]
fn lints_are_expected_with_a_reason_rather_than_allowed() {
    check_rust(|path, text| {
        let exempt = ["macros/", "tests/tests/"].iter().any(|folder| path.starts_with(folder));
        if exempt { Vec::new() } else { tidy::allowances(text) }
    });
}

#[test]
fn files_open_with_what_they_are_for() {
    check_rust(|path, text| {
        // A rule opens with its documentation; programs of the macros' tests are as users' are.
        let told_otherwise = ["lint/src/rules/", "macros/ui/programs/"];
        let told_otherwise = told_otherwise.iter().any(|folder| path.starts_with(folder));
        if told_otherwise { Vec::new() } else { tidy::missing_module_docs(text) }
    });
}

#[test]
fn messages_are_lowercase_without_final_stop() {
    check_rust(|path, text| {
        let told = ["lint/src/", "macros/src/", "runtime/", "xtask/src/"];
        let told = told.iter().any(|folder| path.starts_with(folder));
        if told { tidy::messages(path, text) } else { Vec::new() }
    });
}

#[test]
fn texts_name_no_place_of_one_computer() {
    let endings = ["rs", "md", "toml", "py", "cc", "h", "json", "yml", "yaml", "sh"];
    let texts = endings.iter().flat_map(|ending| files(root(), ending));
    none_of(texts.map(|path| (relative(&path), tidy::machine_places(&read(&path)))));
}

#[test]
fn each_rule_is_one_file_and_one_entry() {
    let names: Vec<String> = RULES.iter().map(|rule| rule.name.replace('-', "_")).collect();
    let registry = read(&root().join("lint/src/rules.rs"));
    let modules: Vec<&str> = registry
        .lines()
        .map(|line| line.strip_prefix("pub(crate) ").unwrap_or(line))
        .filter_map(|line| line.strip_prefix("mod ")?.strip_suffix(';'))
        .collect();
    assert_eq!(modules, names, "the `mod` lines and `RULES` differ");
    assert!(names.is_sorted(), "{names:?}");

    let folder = root().join("lint/src/rules");
    let entries = fs::read_dir(folder).into_iter().flatten().filter_map(Result::ok);
    let is_rule = |name: &String| !names.contains(name);
    let files: BTreeSet<String> = entries
        .map(|entry| entry.path().with_extension(""))
        .filter_map(|path| Some(path.file_name()?.to_string_lossy().into_owned()))
        .collect();
    let strangers: Vec<&String> = files.iter().filter(|name| is_rule(name)).collect();
    assert!(strangers.is_empty(), "in lint/src/rules without being a rule: {strangers:?}");
    assert!(names.iter().all(|name| files.contains(name)), "a rule lies elsewhere");
}

/// Beside its documentation's examples: varied names and structure, over files too, and
/// look-alikes.
#[test]
fn each_python_rule_is_tested_on_programs_of_its_own() {
    let of_python = RULES.iter().filter(|rule| rule.languages.contains(&Language::Python));
    let mut few = String::new();
    for rule in of_python {
        let path = format!("lint/src/rules/{}.rs", rule.name.replace('-', "_"));
        let programs = tidy::programs(&read(&root().join(&path)), rule.name);
        if programs.all < 6 || programs.over_files < 2 || programs.silent < 2 {
            let _ = writeln!(few, "{path}: {programs:?}");
        }
    }
    assert!(few.is_empty(), "at least 6 programs, 2 over files, 2 silent:\n{few}");
}

#[test]
fn the_document_of_the_rules_is_fresh() {
    let mut command = Command::new(binaries::ddp_lint());
    let output = command.args(["rules", "--markdown"]).output().expect("ddp-lint starts");
    assert!(output.status.success());
    let fresh = String::from_utf8(output.stdout).expect("the output is UTF-8");
    assert!(
        read(&root().join("docs/rules.md")) == fresh,
        "docs/rules.md is old: `cargo run --package ddp-lint -- rules --markdown > docs/rules.md`"
    );
}

/// What we show others as the way to do it must hold before our own eyes.
#[test]
fn our_examples_have_no_findings() {
    let report = findings::check(&["runtime/examples"]);
    let loud: Vec<_> = report.findings.iter().filter(|found| found.level != "advice").collect();
    assert!(loud.is_empty(), "{loud:#?}");
}

#[test]
fn header_and_ffi_declare_the_same_functions() {
    let declared = tidy::declarations(&read(&root().join("runtime/src/ddp_shim.h")));
    let foreign = tidy::foreign_functions(&read(&root().join("runtime/src/ffi.rs")));
    let foreign = foreign.expect("ffi.rs is Rust");
    assert!(declared.len() > 5, "the header is not understood: {declared:?}");
    assert_eq!(declared, foreign, "left: the header, right: ffi.rs (name, number of parameters)");
}

#[test]
fn there_is_one_cpp_source() {
    let sources = files(&root().join("runtime"), "cc");
    assert_eq!(sources.len(), 1, "{sources:?}");
    let others = ["cpp", "cxx", "c"].map(|ending| files(root(), ending)).concat();
    assert!(others.is_empty(), "{others:?}");
}

#[test]
fn documents_name_paths_that_exist() {
    let documents = ["ARCHITECTURE.md", "README.md", "fixtures/README.md"];
    let all: Vec<PathBuf> = ["rs", "md", "toml", "cc", "h", "py", "csv"]
        .iter()
        .flat_map(|ending| files(root(), ending))
        .collect();
    none_of(documents.map(|document| {
        let path = root().join(document);
        let folder = path.parent().expect("a document lies in a folder").to_owned();
        let exists = |name: &str| {
            // Users write this one.
            name == "ddp-lint.toml"
                || root().join(name).exists()
                || folder.join(name).exists()
                || (!name.contains('/') && all.iter().any(|path| path.ends_with(name)))
        };
        (document.to_owned(), tidy::missing_paths(&read(&path), exists))
    }));
}

#[test]
fn linter_and_launcher_do_not_depend_on_libtorch() {
    for manifest in ["lint", "macros", "runtime/launch", "xtask"] {
        let text = read(&root().join(manifest).join("Cargo.toml"));
        let linked =
            text.lines().find(|line| line.starts_with("tch") || line.contains("torch-sys"));
        assert_eq!(linked, None, "in {manifest}/Cargo.toml");
    }
}
