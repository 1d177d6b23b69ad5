//! Findings on public repositories, read by hand: the tables in `tests/corpus`.
//!
//! The repositories are not part of this one; `DDP_LINT_CORPUS` names a folder that holds them,
//! each as `<owner>+<name>`, at the commits of `tests/corpus/repositories.tsv`.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use crate::{findings, repository};

/// The variable that names the folder of repositories.
pub const FOLDER: &str = "DDP_LINT_CORPUS";

/// A finding of level error or warning, and what a careful reader thinks of it.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Row {
    /// `owner/name`.
    pub repository: String,
    /// Relative to the repository.
    pub path: String,
    /// From 1.
    pub line: u32,
    pub rule: String,
    pub is_right: bool,
    pub why: String,
}

impl Row {
    /// Where and what, without the verdict.
    #[must_use]
    pub fn place(&self) -> Place {
        let Self { repository, path, line, rule, .. } = self.clone();
        (repository, path, line, rule)
    }
}

/// Repository, path, line, rule.
pub type Place = (String, String, u32, String);

/// The rows of `tests/corpus/<name>.tsv`, in the order of the file.
///
/// # Panics
/// Names the line that is no row.
#[must_use]
pub fn table(name: &str) -> Vec<Row> {
    let path = repository::root().join(format!("tests/corpus/{name}.tsv"));
    let text =
        std::fs::read_to_string(&path).unwrap_or_else(|why| panic!("{}: {why}", path.display()));
    let lines = text.lines().enumerate().skip(1);
    let row = |(index, line): (usize, &str)| {
        row(line)
            .unwrap_or_else(|| panic!("{}, line {}: no row: {line}", path.display(), index + 1))
    };
    lines.map(row).collect()
}

fn row(line: &str) -> Option<Row> {
    let columns: Vec<&str> = line.split('\t').collect();
    let [repository, path, line, rule, verdict, why] = columns.as_slice() else { return None };
    let is_right = match *verdict {
        "right" => true,
        "wrong" => false,
        _ => return None,
    };
    Some(Row {
        repository: (*repository).to_owned(),
        path: (*path).to_owned(),
        line: line.parse().ok()?,
        rule: (*rule).to_owned(),
        is_right,
        why: (!why.is_empty()).then(|| (*why).to_owned())?,
    })
}

/// The repositories of a table, `owner/name`.
///
/// # Panics
/// Where a line of `tests/corpus/repositories.tsv` lacks a column.
#[must_use]
pub fn repositories(table: &str) -> Vec<String> {
    let path = repository::root().join("tests/corpus/repositories.tsv");
    let text =
        std::fs::read_to_string(&path).unwrap_or_else(|why| panic!("{}: {why}", path.display()));
    let columns = text.lines().skip(1).map(|line| {
        let columns: Vec<&str> = line.split('\t').collect();
        let [repository, _commit, of] = columns[..] else { panic!("no repository: {line}") };
        (repository.to_owned(), of == table)
    });
    columns.filter_map(|(repository, wanted)| wanted.then_some(repository)).collect()
}

/// The folder of a repository, where it is present.
#[must_use]
pub fn folder(repository: &str) -> Option<PathBuf> {
    let corpus = std::env::var_os(FOLDER)?;
    let folder = Path::new(&corpus).join(repository.replace('/', "+"));
    folder.is_dir().then_some(folder)
}

/// All findings of level error or warning in a repository.
#[must_use]
pub fn findings(repository: &str, folder: &Path) -> BTreeSet<Place> {
    let report = findings::check_in(folder, &["."]);
    let loud = report.findings.into_iter().filter(|f| f.level != "advice");
    let place = |f: findings::Finding| {
        let path = f.path.strip_prefix(".").unwrap_or(&f.path).to_string_lossy().into_owned();
        (repository.to_owned(), path, f.line, f.rule)
    };
    loud.map(place).collect()
}
