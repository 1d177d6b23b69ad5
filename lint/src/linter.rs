//! Source texts in, findings out: lowering, rules, settings, suppressions, one sorted list.
//!
//! No I/O. The result does not depend on the number of threads or the order of the texts.

mod outline;
mod programs;
mod session;
mod settle;

use std::path::PathBuf;
use std::sync::Arc;

use rayon::prelude::*;
use rustc_hash::FxHashSet;

use crate::analysis::shared::Shared;
use crate::analysis::{self, Planned};
use crate::config::Settings;
use crate::crash::{Crash, catch};
use crate::finding::Finding;
use crate::imports::ByLanguage;
use crate::model::{FileId, Language, Module, ParseError};
use crate::project::{Project, SourceFile};
use crate::rule::Rule;
use crate::rules::RULES;
use crate::rust::crates::{Crates, Manifest, RustFile};
use crate::torch::TorchRange;
use programs::run_all;
use settle::{conclude, conclude_without_programs};

pub use session::Session;

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

/// How many syntax errors a text has, as the file of that path.
pub fn n_syntax_errors(path: &str, text: &str) -> usize {
    let module = match language_of(path) {
        Some(Language::Python) => crate::python::lower(text),
        Some(Language::Rust) => crate::rust::lower(text, "crate"),
        None => return 0,
    };
    module.errors.len()
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
    let imports = Box::new(ByLanguage::new(&files, crates.clone()));
    (
        Project { root, files, torch, manifests, crates, imports, shared: Shared::default() },
        crashes.into_iter().flatten().collect(),
    )
}

/// All findings in reported files. `settings` gives those that govern a file.
pub fn lint(project: &Project, settings: SettingsOf<'_, '_>) -> Outcome {
    lint_with(RULES, project, settings)
}

fn lint_with(rules: &[&Rule], project: &Project, settings: SettingsOf<'_, '_>) -> Outcome {
    if !matters(project, settings) {
        return conclude_without_programs(project, settings);
    }
    match planned(project) {
        Ok(plan) => {
            let wanted = wanted(rules, project, settings);
            conclude(project, &run_all(&wanted, project, &plan, settings, &|_| None), settings)
        }
        Err(crash) => Outcome { findings: Vec::new(), crashes: vec![crash] },
    }
}

/// Some file speaks of torch, so that rules can find something.
fn matters(project: &Project, settings: SettingsOf<'_, '_>) -> bool {
    // Users may have declared names of their own.
    project.files.iter().any(|file| file.mentions_torch || settings(file).names.is_some())
}

/// The rules that run in some file.
fn wanted<'r>(
    rules: &[&'r Rule],
    project: &Project,
    settings: SettingsOf<'_, '_>,
) -> Vec<&'r Rule> {
    let runs = |rule: &&&Rule| project.files.iter().any(|file| settings(file).runs(rule.name));
    rules.iter().filter(runs).copied().collect()
}

fn planned(project: &Project) -> Result<Vec<Planned>, Crash> {
    let doing = || "finding the programs".to_owned();
    catch(doing, || analysis::plan(project, &analysis::entries(project)))
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
    // Crates that have nothing to do with tch need no reading, but for what is said to us.
    let is_ours =
        language != Language::Rust || crates.is_relevant(id) || source.text.contains("ddp-lint:");
    let doing = || format!("reading `{}`", source.path);
    let lowered = catch(doing, || match language {
        _ if !is_ours => empty(language),
        Language::Python => crate::python::lower(&source.text),
        Language::Rust => crate::rust::lower(&source.text, crates.module_path(id)),
    });
    let (mut module, crash) = match lowered {
        Ok(module) => (module, None),
        Err(crash) => (empty(language), Some(crash)),
    };
    module.errors.extend(source.error);
    let file = SourceFile::new(id, source.path, source.text, module, source.reported);
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
    use super::settle::without_repetitions;
    use super::*;
    use crate::analysis::Program;
    use crate::finding::{Harm, Level};
    use crate::model::{Site, Span};
    use crate::rule::Report;
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
