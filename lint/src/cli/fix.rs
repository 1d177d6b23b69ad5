//! `--fix` and `--diff`: applies fixes until there are none left, and never breaks a file.

use std::path::Path;

use similar::TextDiff;

use crate::crash::Crash;
use crate::driver::Loaded;
use crate::finding::{Applicability, Finding, Fix};
use crate::fixes;
use crate::model::FileId;
use crate::project::SourceFile;
use crate::render::relative_path;

/// Rounds after which fixes that keep making each other necessary are our bug.
const N_ROUNDS_MAX: usize = 20;

/// A project after its fixes.
pub(super) struct Fixed {
    pub(super) loaded: Loaded,
    pub(super) findings: Vec<Finding>,
    /// The findings before.
    pub(super) before: Vec<Finding>,
    /// The texts before, by file id.
    texts_before: Vec<std::sync::Arc<str>>,
    pub(super) n_mended: usize,
    pub(super) crashes: Vec<Crash>,
}

impl Fixed {
    /// The files whose text is another than before.
    pub(super) fn changed(&self) -> impl Iterator<Item = &SourceFile> {
        let files = self.loaded.project.files.iter().zip(&self.texts_before);
        files.filter(|(file, before)| file.text != **before).map(|(file, _)| file)
    }
}

pub(super) fn fix(loaded: Loaded, findings: Vec<Finding>, unsafe_too: bool) -> Fixed {
    let mut fixed = Fixed {
        texts_before: loaded.project.files.iter().map(|file| file.text.clone()).collect(),
        loaded,
        before: findings.clone(),
        findings,
        n_mended: 0,
        crashes: Vec::new(),
    };
    // Fixes that would break a file, by what they say of themselves.
    let mut refused: Vec<(&'static str, String)> = Vec::new();
    for _ in 0..N_ROUNDS_MAX {
        let candidates: Vec<&Finding> = fixed
            .findings
            .iter()
            .filter(|finding| wanted(finding, &fixed.loaded, unsafe_too).is_some())
            .filter(|finding| !refused.iter().any(|(rule, _)| *rule == finding.rule))
            .collect();
        let fixes = candidates.iter().filter_map(|finding| finding.fix.as_ref());
        let round = fixes::apply(&fixed.loaded.project, fixes);
        if round.texts.is_empty() {
            return fixed;
        }
        let next = fixed.loaded.with_texts(&round.texts);
        if let Some(broken) = first_broken(&fixed.loaded, &next, &round.texts) {
            let rule = culprit(&fixed.loaded, &candidates).unwrap_or(candidates[0].rule);
            refused.push((rule, broken.clone()));
            fixed.crashes.push(Crash {
                doing: format!("a fix of rule `{rule}`"),
                message: format!("it would break the syntax of {broken}; it was not made"),
            });
            continue;
        }
        fixed.n_mended += round.n_applied;
        let outcome = next.lint();
        fixed.crashes.extend(outcome.crashes);
        fixed.findings = outcome.findings;
        fixed.loaded = next;
    }
    fixed.crashes.push(Crash {
        doing: "mending".to_owned(),
        message: format!("fixes make each other necessary; stopped after {N_ROUNDS_MAX} rounds"),
    });
    fixed
}

/// The finding's fix, if it may be made.
fn wanted<'f>(finding: &'f Finding, loaded: &Loaded, unsafe_too: bool) -> Option<&'f Fix> {
    let fix = finding.fix.as_ref()?;
    let may_edit =
        |file: FileId| loaded.project.file(file).reported && loaded.facts(file).frozen.is_none();
    let allowed = unsafe_too || fix.applicability == Applicability::Safe;
    (allowed && fix.edits.iter().all(|edit| may_edit(edit.site.file))).then_some(fix)
}

/// The first file that has more syntax errors than before.
fn first_broken(old: &Loaded, new: &Loaded, texts: &[(FileId, String)]) -> Option<String> {
    let n_errors = |loaded: &Loaded, id: FileId| loaded.project.file(id).module.errors.len();
    let broken = texts.iter().find(|(id, _)| n_errors(new, *id) > n_errors(old, *id))?;
    Some(old.project.file(broken.0).path.clone())
}

/// The rule whose fix breaks a file when it is made alone.
fn culprit(loaded: &Loaded, candidates: &[&Finding]) -> Option<&'static str> {
    candidates.iter().find_map(|finding| {
        let round = fixes::apply(&loaded.project, finding.fix.as_ref());
        let next = loaded.with_texts(&round.texts);
        first_broken(loaded, &next, &round.texts).map(|_| finding.rule)
    })
}

/// What changed, as a unified diff that `patch` and `git apply` take.
pub(super) fn diff(fixed: &Fixed, folder: &Path) -> String {
    fixed.changed().fold(String::new(), |mut text, file| {
        let before = &fixed.texts_before[file.id.0 as usize];
        let path = relative_path(&fixed.loaded.facts(file.id).path, folder);
        let diff = TextDiff::from_lines(&**before, &*file.text);
        let shown =
            diff.unified_diff().header(&format!("a/{path}"), &format!("b/{path}")).to_string();
        text.push_str(&shown);
        text
    })
}
