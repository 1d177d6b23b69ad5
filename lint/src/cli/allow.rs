//! `--add-allow`: writes a suppression comment for every finding.

use crate::driver::Loaded;
use crate::finding::{Edit, Finding};
use crate::fixes;
use crate::linter;
use crate::model::FileId;
use crate::suppress;

/// New texts, with comments.
#[derive(Debug, Default)]
pub(super) struct Allowed {
    pub(super) texts: Vec<(FileId, String)>,
    /// Findings that are suppressed now.
    pub(super) n_findings: usize,
}

/// The new texts of the files that hold findings. A comment that would not be one where it had
/// to stand (inside a text over several lines) is left out.
pub(super) fn add(loaded: &Loaded, findings: &[&Finding]) -> Allowed {
    let by_file = findings.chunk_by(|a, b| a.file() == b.file());
    let texts: Vec<(FileId, String)> = by_file
        .filter(|findings| loaded.facts(findings[0].file()).frozen.is_none())
        .filter_map(|findings| text_with_comments(loaded, findings[0].file(), findings))
        .collect();
    if texts.is_empty() {
        return Allowed::default();
    }
    let after = loaded.with_texts(&texts).lint().findings;
    let is_left = |finding: &Finding| {
        after.iter().any(|other| {
            other.file() == finding.file()
                && other.rule == finding.rule
                && other.message == finding.message
        })
    };
    let n_findings = findings.iter().filter(|finding| !is_left(finding)).count();
    Allowed { texts, n_findings }
}

fn text_with_comments(
    loaded: &Loaded,
    file: FileId,
    findings: &[&Finding],
) -> Option<(FileId, String)> {
    let source = loaded.project.file(file);
    let edits = suppress::additions(source, findings);
    let edited = |edits: &[&Edit]| fixes::edited(&source.text, edits);
    let n_errors = source.module.errors.len();
    let breaks = |text: &str| linter::n_syntax_errors(&source.path, text) > n_errors;
    let mut made: Vec<&Edit> = edits.iter().collect();
    if breaks(&edited(&made)) {
        made.retain(|edit| !breaks(&edited(&[edit])));
    }
    (!made.is_empty()).then(|| (file, edited(&made)))
}
