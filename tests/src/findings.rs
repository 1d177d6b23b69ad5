//! Runs the linter on real files and compares what it finds with their marks, exactly both ways.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use ddp_lint::linter::language_of;
use ddp_lint::marks::{self, Found, Mark};
use serde_json::Value;

use crate::{binaries, repository};

/// One element of what `--output-format json` prints.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Finding {
    pub rule: String,
    pub level: String,
    /// As printed: relative to the working directory.
    pub path: PathBuf,
    /// From 1.
    pub line: u32,
    pub message: String,
    pub why: String,
    pub help: String,
}

/// What a run of the linter gave.
#[derive(Debug)]
pub struct Report {
    pub findings: Vec<Finding>,
    pub exit_code: i32,
}

/// `ddp-lint check --output-format json PATHS`, run in the root of the checkout.
#[track_caller]
pub fn check(arguments: &[&str]) -> Report {
    check_with(&[], arguments)
}

/// The same, with environment variables.
#[track_caller]
pub fn check_with(variables: &[(&str, &str)], arguments: &[&str]) -> Report {
    run(repository::root(), variables, arguments)
}

/// The same as [`check`], in another folder.
#[track_caller]
pub fn check_in(folder: &Path, arguments: &[&str]) -> Report {
    run(folder, &[], arguments)
}

#[track_caller]
fn run(folder: &Path, variables: &[(&str, &str)], arguments: &[&str]) -> Report {
    let output = Command::new(binaries::ddp_lint())
        .args(["check", "--output-format", "json"])
        .args(arguments)
        .envs(variables.iter().copied())
        .current_dir(folder)
        .output()
        .expect("ddp-lint starts");
    let exit_code = output.status.code().unwrap_or(-1);
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(matches!(exit_code, 0 | 1), "ddp-lint {arguments:?} ended with {exit_code}: {errors}");
    let text = String::from_utf8(output.stdout).expect("the output is UTF-8");
    let findings = parse(&text).unwrap_or_else(|why| panic!("{why} in:\n{text}"));
    Report { findings, exit_code }
}

fn parse(json: &str) -> Result<Vec<Finding>, String> {
    let value: Value = serde_json::from_str(json).map_err(|error| error.to_string())?;
    let list = value.as_array().ok_or("no array")?;
    list.iter().map(|item| finding(item).ok_or(format!("no finding: {item}"))).collect()
}

fn finding(item: &Value) -> Option<Finding> {
    let text = |key: &str| item.get(key)?.as_str().map(str::to_owned);
    Some(Finding {
        rule: text("rule")?,
        level: text("level")?,
        path: text("path")?.into(),
        line: u32::try_from(item.get("start")?.get("line")?.as_u64()?).ok()?,
        message: text("message")?,
        why: text("why")?,
        help: text("help")?,
    })
}

/// Compares findings with the marks of a source, or of all sources below a folder; the path is
/// relative to the checkout.
///
/// The error shows the places that differ: `+` was found and not marked, `-` the reverse.
pub fn compare(folder: &str, findings: &[Finding]) -> Result<(), String> {
    let sources = sources(&repository::root().join(folder));
    let mut by_path: BTreeMap<&Path, Vec<&Finding>> = BTreeMap::new();
    for finding in findings {
        by_path.entry(&finding.path).or_default().push(finding);
    }
    let mut difference = String::new();
    for path in &sources {
        let relative = path.strip_prefix(repository::root()).expect("sources lie in the checkout");
        let found = by_path.remove(relative).unwrap_or_default();
        if let Err(shown) = compare_file(&repository::read(path), relative, &found) {
            let _ = writeln!(difference, "{}\n{}", relative.display(), around_notes(&shown));
        }
    }
    for (path, found) in by_path {
        let _ = writeln!(difference, "outside {folder}: {}: {found:?}", path.display());
    }
    if difference.is_empty() { Ok(()) } else { Err(difference) }
}

fn compare_file(text: &str, path: &Path, found: &[&Finding]) -> Result<(), String> {
    let language = language_of(&path.to_string_lossy()).expect("only sources are compared");
    let found: Vec<Found<'_>> = found
        .iter()
        .map(|finding| Found { line: finding.line, rule: &finding.rule, message: &finding.message })
        .collect();
    marks::compare(text, &marks::parse(text, language), &found)
}

/// All marks below a folder of the checkout: path relative to the checkout, and mark.
pub fn marks_below(folder: &str) -> Vec<(PathBuf, Mark)> {
    let mut all = Vec::new();
    for path in sources(&repository::root().join(folder)) {
        let language = language_of(&path.to_string_lossy()).expect("only sources are listed");
        let relative = path.strip_prefix(repository::root()).expect("in the checkout").to_owned();
        let marks = marks::parse(&repository::read(&path), language);
        all.extend(marks.into_iter().map(|mark| (relative.clone(), mark)));
    }
    all
}

fn sources(folder: &Path) -> Vec<PathBuf> {
    let mut sources = repository::files(folder, "py");
    sources.extend(repository::files(folder, "rs"));
    sources.sort();
    sources
}

/// Of an annotated source, the notes and two lines on either side.
fn around_notes(annotated: &str) -> String {
    let lines: Vec<&str> = annotated.lines().collect();
    let is_note = |line: &&str| line.trim_start().starts_with("! ");
    let near = |index: usize| {
        let start = index.saturating_sub(3);
        lines[start..lines.len().min(index + 3)].iter().any(is_note)
    };
    let kept: Vec<&str> =
        (0..lines.len()).filter(|&index| near(index)).map(|index| lines[index]).collect();
    kept.join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn finding(path: &str, line: u32, rule: &str) -> Finding {
        Finding {
            rule: rule.into(),
            level: "error".into(),
            path: path.into(),
            line,
            message: "words".into(),
            why: "because".into(),
            help: "do this".into(),
        }
    }

    #[test]
    fn json_of_the_linter_is_understood() {
        let json = r#"[{"rule": "unguarded-save", "level": "error", "harm": "corrupt",
            "message": "m", "why": "w", "help": "h", "path": "a/b.py",
            "start": {"line": 3, "column": 5}, "end": {"line": 3, "column": 9},
            "related": [], "fix": null}]"#;
        let parsed = parse(json).unwrap();
        assert_eq!(parsed.len(), 1);
        assert_eq!((parsed[0].path.to_str(), parsed[0].line), (Some("a/b.py"), 3));
        assert!(parse(r#"[{"rule": "x"}]"#).is_err());
        assert!(parse("{}").is_err());
    }

    #[test]
    fn differences_are_shown_with_their_surroundings() {
        let folder = "fixtures/python/imagenet_before";
        let path = "fixtures/python/imagenet_before/main.py";
        let marked: Vec<Finding> = marks_below(folder)
            .into_iter()
            .map(|(_, mark)| finding(path, mark.line, &mark.rule))
            .collect();
        assert!(marked.len() >= 5, "{marked:?}");
        assert_eq!(compare(folder, &marked), Ok(()));

        let missing = compare(folder, &marked[1..]).unwrap_err();
        assert!(missing.contains(path) && missing.contains("! - "), "{missing}");
        assert!(missing.lines().count() < 12, "{missing}");

        let mut more = marked.clone();
        more.push(finding(path, 1, "unguarded-log"));
        let unexpected = compare(folder, &more).unwrap_err();
        assert!(unexpected.contains("! + unguarded-log: words"), "{unexpected}");

        more.pop();
        more.push(finding("elsewhere.py", 1, "unguarded-log"));
        assert!(compare(folder, &more).unwrap_err().contains("elsewhere.py"));
    }
}
