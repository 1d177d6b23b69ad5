//! Source texts in, findings out: lowering, rules, settings, suppressions, one sorted list.
//!
//! No I/O. The result does not depend on the number of threads or the order of the texts.

use std::collections::hash_map;
use std::path::PathBuf;
use std::sync::Arc;

use rayon::prelude::*;
use rustc_hash::{FxHashMap, FxHashSet};

use crate::analysis::{self, Entry, Program};
use crate::config::Settings;
use crate::crash::{Crash, catch};
use crate::finding::{Finding, Level};
use crate::imports::ByLanguage;
use crate::model::{FileId, Language, Module, ParseError, Site};
use crate::project::{Project, SourceFile};
use crate::rule::{Report, Rule};
use crate::rules::RULES;
use crate::rust::crates::{Crates, Manifest, RustFile};
use crate::suppress;
use crate::table::Table;
use crate::torch::TorchRange;

/// A text to lint.
#[derive(Clone, Debug)]
pub struct Source {
    /// Relative to the project root, with `/`.
    pub path: String,
    pub text: Arc<str>,
    /// Findings in it are wanted; else it is read for facts only.
    pub reported: bool,
    /// What went wrong when it was read; told with the parser's own errors.
    pub error: Option<ParseError>,
}

/// All that is known of a project before it is lowered.
#[derive(Clone, Debug, Default)]
pub struct Input {
    pub root: PathBuf,
    pub sources: Vec<Source>,
    /// `Cargo.toml`, `pyproject.toml` and `setup.cfg` files: path relative to the root, with
    /// `/`, and text.
    pub manifests: Vec<(String, Arc<str>)>,
    /// The releases of torch that the project runs on.
    pub torch: TorchRange,
}

/// Gives the settings that govern a file.
pub type SettingsOf<'f, 's> = &'f (dyn Fn(&SourceFile) -> &'s Settings + Sync);

/// Findings, and our own bugs on the way to them.
#[derive(Debug, Default)]
pub struct Outcome {
    /// Sorted by path, place and rule.
    pub findings: Vec<Finding>,
    pub crashes: Vec<Crash>,
}

/// The language of a path, by its ending.
pub fn language_of(path: &str) -> Option<Language> {
    match path.rsplit_once('.')?.1 {
        "py" | "pyi" | "ipynb" => Some(Language::Python),
        "rs" => Some(Language::Rust),
        _ => None,
    }
}

/// Lowers all texts. Those of no known language are left out, and so are those in a language of
/// which no file is reported: a program in one language reaches no file in another.
pub fn load(input: Input) -> (Project, Vec<Crash>) {
    let Input { root, mut sources, manifests, torch } = input;
    let reported = sources.iter().filter(|source| source.reported);
    let wanted: FxHashSet<_> = reported.filter_map(|source| language_of(&source.path)).collect();
    sources.retain(|source| language_of(&source.path).is_some_and(|l| wanted.contains(&l)));
    sources.sort_by(|a, b| a.path.cmp(&b.path));
    let crates = Arc::new(crates(&sources, &manifests));
    let lowered: Vec<(SourceFile, Option<Crash>)> = sources
        .into_par_iter()
        .enumerate()
        .map(|(index, source)| lower(FileId(index as u32), source, &crates))
        .collect();
    let (files, crashes): (Vec<_>, Vec<_>) = lowered.into_iter().unzip();
    let imports = Box::new(ByLanguage::new(&files, crates));
    (Project { root, files, torch, manifests, imports }, crashes.into_iter().flatten().collect())
}

/// All findings in reported files. `settings` gives those that govern a file.
pub fn lint(project: &Project, settings: SettingsOf<'_, '_>) -> Outcome {
    lint_with(RULES, project, settings)
}

fn lint_with(rules: &[&Rule], project: &Project, settings: SettingsOf<'_, '_>) -> Outcome {
    let wanted: Vec<&Rule> = rules
        .iter()
        .filter(|rule| project.files.iter().any(|file| settings(file).runs(rule.name)))
        .copied()
        .collect();
    let mut outcome = Outcome::default();
    // Users may have declared names of their own.
    let matters = |file: &SourceFile| {
        crate::torch::is_mentioned(&file.text) || settings(file).names.is_some()
    };
    if !project.files.par_iter().any(matters) {
        let all = project.files.iter().map(|file| file.id).collect();
        outcome.findings = settle(project, Vec::new(), &all, settings);
        sort(project, &mut outcome.findings);
        return outcome;
    }
    let entries = match catch(|| "finding the programs".to_owned(), || analysis::entries(project)) {
        Ok(entries) => entries,
        Err(crash) => return Outcome { findings: Vec::new(), crashes: vec![crash] },
    };
    let tables = Tables::new(project, &entries, settings);
    let ran: Vec<(Outcome, FxHashSet<FileId>)> = entries
        .par_iter()
        .map(|&entry| run(&wanted, project, tables.of(project, entry, settings), entry))
        .collect();
    let mut reached = FxHashSet::default();
    for (one, files) in ran {
        outcome.findings.extend(one.findings);
        outcome.crashes.extend(one.crashes);
        reached.extend(files);
    }
    let findings = without_repetitions(outcome.findings);
    outcome.findings = settle(project, findings, &reached, settings);
    sort(project, &mut outcome.findings);
    outcome
}

/// The tables of outside names: the built-in one, and those with rows of users, by these rows.
struct Tables {
    extended: FxHashMap<Arc<str>, Table>,
}

impl Tables {
    fn new(project: &Project, entries: &[Entry], settings: SettingsOf<'_, '_>) -> Self {
        let mut extended = FxHashMap::default();
        for entry in entries {
            let Some(rows) = Self::rows(project, *entry, settings) else { continue };
            extended.entry(rows.clone()).or_insert_with(|| {
                let mut table = Table::built_in().clone();
                // Rows that are none were refused when the configuration was read.
                let _ = table.add(rows);
                table
            });
        }
        Self { extended }
    }

    fn of(&self, project: &Project, entry: Entry, settings: SettingsOf<'_, '_>) -> &Table {
        let rows = Self::rows(project, entry, settings);
        rows.and_then(|rows| self.extended.get(rows)).unwrap_or_else(|| Table::built_in())
    }

    /// The user's rows for a program: those of its entry's configuration.
    fn rows<'s>(
        project: &Project,
        entry: Entry,
        settings: SettingsOf<'_, 's>,
    ) -> Option<&'s Arc<str>> {
        let file = entry.file.map_or_else(|| project.files.first(), |id| Some(project.file(id)));
        settings(file?).names.as_ref()
    }
}

/// Runs one program and all rules over it; also tells which files it reaches.
fn run(
    rules: &[&Rule],
    project: &Project,
    table: &Table,
    entry: Entry,
) -> (Outcome, FxHashSet<FileId>) {
    let doing = || {
        let file = entry.file.map_or("a library", |entry| &project.file(entry).path);
        format!("following the program `{file}`")
    };
    match catch(doing, || Program::new(project, table, entry)) {
        Ok(program) => {
            let ids = project.files.iter().map(|file| file.id);
            (check(rules, &program), ids.filter(|id| program.reaches(*id)).collect())
        }
        Err(crash) => {
            let outcome = Outcome { findings: Vec::new(), crashes: vec![crash] };
            (outcome, FxHashSet::default())
        }
    }
}

fn check(rules: &[&Rule], program: &Program<'_>) -> Outcome {
    let project = program.project();
    let mut outcome = Outcome::default();
    for rule in rules.iter().filter(|rule| rule.languages.contains(&program.language)) {
        let doing = || {
            let entry = program.entry.map_or("a library", |entry| &project.file(entry).path);
            format!("rule `{}` on the program `{entry}`", rule.name)
        };
        let checked = catch(doing, || {
            let mut report = Report::new(rule);
            (rule.check)(program, &mut report);
            report.into_findings()
        });
        match checked {
            Ok(findings) => outcome.findings.extend(findings),
            Err(crash) => outcome.crashes.push(crash),
        }
    }
    outcome
}

/// Several programs reach the same code: a finding is told once, at its highest level.
fn without_repetitions(findings: Vec<Finding>) -> Vec<Finding> {
    let mut kept: Vec<Finding> = Vec::with_capacity(findings.len());
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
    let settled = reported.flat_map(|(file, mut findings)| {
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

/// Which crates the Rust sources are.
fn crates(sources: &[Source], manifests: &[(String, Arc<str>)]) -> Crates {
    let files = sources.iter().enumerate().filter_map(|(index, source)| {
        let is_rust = language_of(&source.path) == Some(Language::Rust);
        let id = FileId(index as u32);
        is_rust.then_some(RustFile { id, path: &source.path, text: &source.text })
    });
    let manifests: Vec<Manifest<'_>> = manifests
        .iter()
        .filter(|(path, _)| path.ends_with("Cargo.toml"))
        .map(|(path, text)| Manifest { path, text })
        .collect();
    Crates::new(&files.collect::<Vec<_>>(), &manifests)
}

fn lower(id: FileId, source: Source, crates: &Crates) -> (SourceFile, Option<Crash>) {
    let language = language_of(&source.path).unwrap_or(Language::Python);
    let doing = || format!("reading `{}`", source.path);
    let lowered = catch(doing, || match language {
        Language::Python => crate::python::lower(&source.text),
        Language::Rust => crate::rust::lower(&source.text, crates.module_path(id)),
    });
    let (mut module, crash) = match lowered {
        Ok(module) => (module, None),
        Err(crash) => (empty(language), Some(crash)),
    };
    module.errors.extend(source.error);
    let file =
        SourceFile { id, path: source.path, text: source.text, module, reported: source.reported };
    (file, crash)
}

fn empty(language: Language) -> Module {
    Module {
        language,
        body: Vec::new(),
        functions: Vec::new(),
        classes: Vec::new(),
        impls: Vec::new(),
        comments: Vec::new(),
        errors: Vec::new(),
        has_main: false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::finding::Harm;
    use crate::model::Span;
    use crate::rule::testing::project;
    use crate::rule::{BOTH, FixKind};

    const fn rule(name: &'static str, check: fn(&Program<'_>, &mut Report<'_>)) -> Rule {
        Rule {
            name,
            docs: "",
            level: Level::Error,
            harm: Harm::Crash,
            tier: 1,
            languages: BOTH,
            fix: FixKind::No,
            check,
            file: "",
            line: 0,
        }
    }

    /// Reports the first byte of each file; the names are those of real rules, so that
    /// settings apply.
    fn first_bytes(program: &Program<'_>, report: &mut Report<'_>) {
        for file in &program.project().files {
            report.at(Site { file: file.id, span: Span::new(0, 1) }, "here");
        }
    }

    static FIRST: Rule = rule("unused-suppression", first_bytes);
    static BROKEN: Rule = rule("unknown-suppression", |_, _| panic!("broken on purpose"));

    fn lint_two(settings: &Settings) -> Outcome {
        let mut project =
            project(&[("b.py", "x = 1\n"), ("a.py", "import torch\n"), ("c.py", "z")]);
        project.files[2].reported = false;
        let settings: &Settings = Box::leak(Box::new(settings.clone()));
        lint_with(&[&BROKEN, &FIRST], &project, &|_| settings)
    }

    #[test]
    fn a_broken_rule_leaves_the_others_alone() {
        let outcome = lint_two(&Settings::default());
        let places: Vec<u32> = outcome.findings.iter().map(|finding| finding.file().0).collect();
        assert_eq!(places, [0, 1]);
        assert_eq!(outcome.crashes.len(), 1);
        let told = outcome.crashes[0].to_string();
        assert!(told.contains("rule `unknown-suppression` on the program"), "{told}");
        assert!(told.contains("broken on purpose"), "{told}");
    }

    #[test]
    fn settings_have_the_last_word_on_levels() {
        let text = "per-file-ignores = { 'b.py' = ['all'] }\n\
                    [rules]\nunused-suppression = 'advice'\nunknown-suppression = 'off'";
        let path = std::path::Path::new("ddp-lint.toml");
        let config = crate::config::parse(path, text).unwrap().unwrap();
        let outcome = lint_two(&Settings::new(Some(&config), &crate::config::Overrides::default()));
        assert_eq!(outcome.crashes, []);
        assert_eq!(outcome.findings.len(), 1);
        assert_eq!(
            (outcome.findings[0].file(), outcome.findings[0].level),
            (FileId(0), Level::Advice)
        );
    }

    #[test]
    fn a_finding_of_several_programs_is_told_once_at_its_highest_level() {
        let finding = |level, message: &str| Finding {
            rule: "some-fault",
            level,
            harm: Harm::Hang,
            site: Site { file: FileId(0), span: Span::new(3, 5) },
            message: message.to_owned(),
            why: String::new(),
            help: String::new(),
            related: Vec::new(),
            fix: None,
        };
        let kept = without_repetitions(vec![
            finding(Level::Advice, "first"),
            finding(Level::Error, "second"),
            finding(Level::Error, "third"),
        ]);
        assert_eq!(kept, [finding(Level::Error, "second")]);
    }
}
