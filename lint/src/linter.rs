//! Source texts in, findings out: lowering, rules, one list without repetitions.
//!
//! No I/O. The result does not depend on the number of threads or the order of the texts.

use std::path::PathBuf;
use std::sync::Arc;

use rayon::prelude::*;

use crate::analysis::{self, Program};
use crate::finding::Finding;
use crate::model::{FileId, Language, Module, Site};
use crate::project::{Project, SourceFile};
use crate::rule::{Report, Rule};
use crate::rules::RULES;

/// A text to lint.
#[derive(Clone, Debug)]
pub struct Source {
    /// Relative to the project root, with `/`.
    pub path: String,
    pub text: Arc<str>,
    /// Findings in it are wanted; else it is read for facts only.
    pub reported: bool,
}

/// The language of a path, by its ending.
pub fn language_of(path: &str) -> Option<Language> {
    match path.rsplit_once('.')?.1 {
        "py" | "pyi" | "ipynb" => Some(Language::Python),
        "rs" => Some(Language::Rust),
        _ => None,
    }
}

/// Lowers all texts. Those of no known language are left out.
pub fn load(root: PathBuf, mut sources: Vec<Source>) -> Project {
    sources.retain(|source| language_of(&source.path).is_some());
    sources.sort_by(|a, b| a.path.cmp(&b.path));
    let files = sources.into_par_iter().enumerate().map(|(index, source)| SourceFile {
        id: FileId(index as u32),
        module: lower(&source),
        path: source.path,
        text: source.text,
        reported: source.reported,
    });
    Project { root, files: files.collect() }
}

/// All findings in reported files, sorted by path, place and rule.
pub fn lint(project: &Project) -> Vec<Finding> {
    let programs = analysis::programs(project);
    let findings = programs.par_iter().flat_map(check).collect();
    let mut findings = without_repetitions(findings);
    findings.retain(|finding| project.file(finding.file()).reported);
    sort(project, &mut findings);
    findings
}

fn check(program: &Program<'_>) -> Vec<Finding> {
    let applies = |rule: &&&Rule| rule.languages.contains(&program.language);
    RULES
        .iter()
        .filter(applies)
        .flat_map(|rule| {
            let mut report = Report::new(rule);
            (rule.check)(program, &mut report);
            report.into_findings()
        })
        .collect()
}

/// Several programs reach the same code: a finding is told once, at its highest level.
fn without_repetitions(findings: Vec<Finding>) -> Vec<Finding> {
    let mut kept: Vec<Finding> = Vec::with_capacity(findings.len());
    let mut index_of = rustc_hash::FxHashMap::<(&'static str, Site), usize>::default();
    for finding in findings {
        match index_of.entry((finding.rule, finding.site)) {
            std::collections::hash_map::Entry::Vacant(entry) => {
                entry.insert(kept.len());
                kept.push(finding);
            }
            std::collections::hash_map::Entry::Occupied(entry) => {
                let other = &mut kept[*entry.get()];
                if finding.level > other.level {
                    *other = finding;
                }
            }
        }
    }
    kept
}

fn sort(project: &Project, findings: &mut [Finding]) {
    findings.sort_by(|a, b| {
        let key =
            |finding: &Finding| (finding.site.span.start, finding.rule, finding.site.span.end);
        let path = |finding: &Finding| &project.file(finding.file()).path;
        path(a).cmp(path(b)).then_with(|| key(a).cmp(&key(b)))
    });
}

fn lower(source: &Source) -> Module {
    match language_of(&source.path) {
        Some(language) => Module {
            language,
            body: Vec::new(),
            functions: Vec::new(),
            classes: Vec::new(),
            impls: Vec::new(),
            comments: Vec::new(),
            errors: Vec::new(),
            has_main: false,
        },
        None => unreachable!("`load` keeps only texts of a known language"),
    }
}
