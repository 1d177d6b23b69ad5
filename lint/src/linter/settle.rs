//! From what programs reported to what the user is told: once each, as settings and comments
//! say, sorted.

use std::collections::hash_map;
use std::sync::Arc;

use rustc_hash::{FxHashMap, FxHashSet};

use super::programs::Ran;
use super::{Outcome, SettingsOf};
use crate::finding::{Finding, Level};
use crate::model::{FileId, Site};
use crate::project::Project;
use crate::rules::invalid_syntax;
use crate::suppress;

/// The outcome of all programs.
pub(super) fn conclude(
    project: &Project,
    ran: &[Arc<Ran>],
    settings: SettingsOf<'_, '_>,
) -> Outcome {
    let with_torch = ran.iter().filter(|ran| ran.uses_torch);
    let parts: FxHashSet<FileId> = with_torch.flat_map(|ran| &ran.reached).copied().collect();
    let errors = invalid_syntax::errors(project, |file| parts.contains(&file));
    let findings = ran.iter().flat_map(|ran| ran.outcome.findings.iter().cloned()).chain(errors);
    let findings = without_repetitions(findings);
    let reached = ran.iter().flat_map(|ran| &ran.reached).copied().collect();
    let mut findings = settle(project, findings, &reached, settings);
    sort(project, &mut findings);
    let crashes = ran.iter().flat_map(|ran| ran.outcome.crashes.iter().cloned()).collect();
    Outcome { findings, crashes }
}

/// The outcome when no program can have findings: only comments are judged.
pub(super) fn conclude_without_programs(
    project: &Project,
    settings: SettingsOf<'_, '_>,
) -> Outcome {
    let all = project.files.iter().map(|file| file.id).collect();
    let mut findings = settle(project, Vec::new(), &all, settings);
    sort(project, &mut findings);
    Outcome { findings, crashes: Vec::new() }
}

/// Several programs reach the same code: a finding is told once, at its highest level.
pub(super) fn without_repetitions(findings: impl IntoIterator<Item = Finding>) -> Vec<Finding> {
    let mut kept: Vec<Finding> = Vec::new();
    let mut index_of = FxHashMap::<(&'static str, Site), usize>::default();
    for finding in findings {
        match index_of.entry((finding.rule, finding.site)) {
            hash_map::Entry::Vacant(entry) => {
                entry.insert(kept.len());
                kept.push(finding);
            }
            hash_map::Entry::Occupied(entry) => {
                let other = &mut kept[*entry.get()];
                if finding.level > other.level {
                    *other = finding;
                }
            }
        }
    }
    kept
}

/// Keeps what the settings and the comments of each reported file let pass.
fn settle(
    project: &Project,
    findings: Vec<Finding>,
    reached: &FxHashSet<FileId>,
    settings: SettingsOf<'_, '_>,
) -> Vec<Finding> {
    let mut by_file: Vec<Vec<Finding>> = vec![Vec::new(); project.files.len()];
    for finding in findings {
        by_file[finding.file().0 as usize].push(finding);
    }
    let reported = project.files.iter().zip(by_file).filter(|(file, _)| file.reported);
    let told = reported.filter(|(file, own)| !own.is_empty() || suppress::is_spoken_of(file));
    let settled = told.flat_map(|(file, mut findings)| {
        let path = project.root.join(&file.path);
        let settings = settings(file);
        let level = |rule: &str, level| settings.level(rule, &path, level);
        findings.retain(|finding| level(finding.rule, finding.level).is_some());
        let runs = |rule: &str| level(rule, Level::Error).is_some();
        let is_reached = reached.contains(&file.id);
        let mut findings = suppress::apply(file, findings, runs, is_reached);
        for finding in &mut findings {
            finding.level = level(finding.rule, finding.level).unwrap_or(finding.level);
        }
        findings
    });
    settled.collect()
}

fn sort(project: &Project, findings: &mut [Finding]) {
    findings.sort_by(|a, b| {
        let key =
            |finding: &Finding| (finding.site.span.start, finding.rule, finding.site.span.end);
        let path = |finding: &Finding| &project.file(finding.file()).path;
        path(a).cmp(path(b)).then_with(|| key(a).cmp(&key(b)))
    });
}
