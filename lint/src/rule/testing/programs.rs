//! The Rust programs of `tests/programs/<rule>.md`: whole small programs with marks, as people
//! write them. They are read when the tests run, so that a new one needs no build.

use std::fmt::Write as _;
use std::path::PathBuf;

use super::{compare, lint, project};
use crate::finding::{Finding, Level};
use crate::marks;
use crate::model::Language;
use crate::rules::RULES;

/// Each rule has at least so many programs,
const N_PROGRAMS_MIN: usize = 6;
/// of them so many over several files,
const N_SPREAD_MIN: usize = 2;
/// and so many that look alike and stay silent.
const N_SILENT_MIN: usize = 2;

/// A section of a rule's file: a title and the files of one program.
struct Sample {
    title: String,
    files: Vec<(String, String)>,
}

fn samples_of(text: &str) -> Vec<Sample> {
    let mut samples = Vec::new();
    let mut is_code = false;
    for line in text.lines() {
        if let Some(title) = line.strip_prefix("## ").filter(|_| !is_code) {
            samples.push(Sample { title: title.to_owned(), files: Vec::new() });
            continue;
        }
        if line.starts_with("```") {
            is_code = !is_code;
            continue;
        }
        let Some(sample) = samples.last_mut().filter(|_| is_code) else { continue };
        if let Some(path) = line.strip_prefix("// file: ") {
            sample.files.push((path.trim().to_owned(), String::new()));
            continue;
        }
        if sample.files.is_empty() {
            sample.files.push(("src/main.rs".to_owned(), String::new()));
        }
        let code = &mut sample.files.last_mut().expect("just pushed").1;
        code.push_str(line);
        code.push('\n');
    }
    samples
}

/// The findings of the rule, and all that are more than advice, are those that are marked.
fn check(rule: &str, sample: &Sample) -> Result<(), String> {
    let files: Vec<_> = sample.files.iter().map(|(p, t)| (p.as_str(), t.as_str())).collect();
    let project = project(&files);
    let mut counted = vec![rule.to_owned()];
    for (_, text) in &files {
        counted.extend(marks::parse(text, Language::Rust).into_iter().map(|mark| mark.rule));
    }
    let findings = lint(&project);
    let is_counted =
        |f: &&Finding| f.level > Level::Advice || counted.iter().any(|name| name == f.rule);
    compare(&project, &findings.iter().filter(is_counted).collect::<Vec<_>>())
}

fn complaints_about(rule: &str, text: &str) -> String {
    let samples = samples_of(text);
    let is_silent = |sample: &&Sample| {
        sample.files.iter().all(|(_, text)| {
            marks::parse(text, Language::Rust).iter().all(|mark| mark.rule != rule)
        })
    };
    let n_spread = samples.iter().filter(|sample| sample.files.len() > 1).count();
    let n_silent = samples.iter().filter(is_silent).count();
    let mut complaints = String::new();
    for (n, least, what) in [
        (samples.len(), N_PROGRAMS_MIN, "programs"),
        (n_spread, N_SPREAD_MIN, "programs over several files"),
        (n_silent, N_SILENT_MIN, "silent programs"),
    ] {
        if n < least {
            let _ = writeln!(complaints, "{rule}: {n} {what}, at least {least} are wanted");
        }
    }
    for sample in &samples {
        if let Err(difference) = check(rule, sample) {
            let _ = writeln!(complaints, "{rule}: {}\n{difference}", sample.title);
        }
    }
    complaints
}

/// `DDP_LINT_PROGRAMS=unguarded` checks the rules with that in their name only.
#[test]
fn rust_programs_give_what_is_marked() {
    let folder = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/programs");
    let only = std::env::var("DDP_LINT_PROGRAMS").unwrap_or_default();
    let of_rust = RULES.iter().filter(|rule| rule.languages.contains(&Language::Rust));
    let mut complaints = String::new();
    for rule in of_rust.filter(|rule| rule.name.contains(&only)) {
        let path = folder.join(format!("{}.md", rule.name));
        match std::fs::read_to_string(&path) {
            Ok(text) => complaints.push_str(&complaints_about(rule.name, &text)),
            Err(error) => {
                let _ = writeln!(complaints, "{}: {error}", path.display());
            }
        }
    }
    assert!(complaints.is_empty(), "{complaints}");
}
