//! `--add-allow`: writes a suppression comment for every finding.

use std::fmt::Write as _;

use rustc_hash::FxHashMap;

use crate::driver::Loaded;
use crate::finding::Finding;
use crate::model::{FileId, Language};
use crate::project::SourceFile;
use crate::suppress::{self, Spot};

/// Longer lines get the comment above them.
const COLUMNS_MAX: usize = 100;

/// A text with new comments.
pub(super) struct Allowed {
    pub(super) file: FileId,
    pub(super) text: String,
    pub(super) n_findings: usize,
}

/// The new texts of the files that hold findings. A comment that would not be one where it had
/// to stand (inside a text over several lines) is left out.
pub(super) fn add(loaded: &Loaded, findings: &[&Finding]) -> Vec<Allowed> {
    let mut by_file: Vec<(FileId, Vec<&Finding>)> = Vec::new();
    for finding in findings {
        match by_file.last_mut() {
            Some((file, list)) if *file == finding.file() => list.push(finding),
            _ => by_file.push((finding.file(), vec![finding])),
        }
    }
    by_file
        .into_iter()
        .filter(|(file, _)| loaded.facts(*file).frozen.is_none())
        .filter_map(|(file, findings)| add_to_file(loaded, file, &findings))
        .collect()
}

fn add_to_file(loaded: &Loaded, file: FileId, findings: &[&Finding]) -> Option<Allowed> {
    let source = loaded.project.file(file);
    let mut rules_of: FxHashMap<u32, (Spot, Vec<&str>)> = FxHashMap::default();
    let spots = suppress::spots(source, findings);
    for (finding, spot) in findings.iter().zip(spots) {
        let (_, rules) = rules_of.entry(spot.line).or_insert((spot, Vec::new()));
        if !rules.contains(&finding.rule) {
            rules.push(finding.rule);
        }
    }
    let mut comments: Vec<(Spot, Vec<&str>)> = rules_of.into_values().collect();
    comments.sort_by_key(|(spot, _)| spot.line);
    let mut text = write_comments(source, &comments);
    let n_errors = source.module.errors.len();
    let breaks = |text: &str| {
        let new = loaded.with_texts(&[(file, text.to_owned())]);
        let module = &new.project.file(file).module;
        module.errors.len() > n_errors
    };
    if breaks(&text) {
        comments.retain(|comment| !breaks(&write_comments(source, std::slice::from_ref(comment))));
        text = write_comments(source, &comments);
    }
    let after = loaded.with_texts(&[(file, text.clone())]).lint();
    let left = after.findings.iter().filter(|finding| finding.file() == file);
    let is_left = |finding: &&&Finding| {
        left.clone().any(|other| other.rule == finding.rule && other.message == finding.message)
    };
    let n_allowed = findings.iter().filter(|finding| !is_left(finding)).count();
    (n_allowed > 0).then_some(Allowed { file, text, n_findings: n_allowed })
}

fn write_comments(source: &SourceFile, comments: &[(Spot, Vec<&str>)]) -> String {
    let sign = match source.module.language {
        Language::Python => "#",
        Language::Rust => "//",
    };
    let mut text = String::with_capacity(source.text.len());
    let mut comments = comments.iter().peekable();
    for (index, line) in source.text.split_inclusive('\n').enumerate() {
        let Some((spot, rules)) = comments.next_if(|(spot, _)| spot.line as usize == index + 1)
        else {
            text.push_str(line);
            continue;
        };
        let code = line.trim_end_matches(['\n', '\r']);
        let end = if line.ends_with("\r\n") { "\r\n" } else { "\n" };
        if let Some((before, list, after)) = split_allow(code, *spot) {
            let _ = write!(text, "{before}{list}, {}{after}{end}", rules.join(", "));
            continue;
        }
        let comment = format!("{sign} ddp-lint: allow({})", rules.join(", "));
        let fits = code.chars().count() + 2 + comment.chars().count() <= COLUMNS_MAX;
        if spot.is_whole_statement && fits {
            let gap = if source.module.language == Language::Python { "  " } else { " " };
            let _ = write!(text, "{code}{gap}{comment}{}", &line[code.len()..]);
        } else {
            let indent = &code[..code.len() - code.trim_start().len()];
            let _ = write!(text, "{indent}{comment}{end}{line}");
        }
    }
    text
}

/// The line around the list of an `allow(…)` that stands on it.
fn split_allow(code: &str, spot: Spot) -> Option<(&str, &str, &str)> {
    if !spot.has_allow {
        return None;
    }
    let open = code.find("ddp-lint:").and_then(|at| Some(at + code[at..].find("allow(")? + 6))?;
    let close = open + code[open..].find(')')?;
    Some((&code[..open], code[open..close].trim_end_matches([',', ' ']), &code[close..]))
}
