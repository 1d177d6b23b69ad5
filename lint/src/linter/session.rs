//! A project whose texts change: what does not depend on a change is not done again.

use std::sync::Arc;

use rustc_hash::FxHashSet;

use super::programs::{Ran, run_all};
use super::settle::{conclude, conclude_without_programs};
use super::{Input, Outcome, SettingsOf, Source, entries, load, lower, matters, wanted};
use crate::analysis::Entry;
use crate::crash::Crash;
use crate::imports::ByLanguage;
use crate::model::{FileId, Language, ParseError};
use crate::project::Project;
use crate::rules::RULES;

/// Settings must stay the same during a session.
pub struct Session {
    project: Project,
    ran: Vec<Arc<Ran>>,
    /// Files whose text changed since the programs ran.
    changed: FxHashSet<FileId>,
    /// Nothing that ran may be taken over.
    is_new: bool,
    /// Our own bugs, by the file in which they were met.
    crashes: Vec<(FileId, Crash)>,
}

impl Session {
    pub fn new(project: Project) -> Self {
        Self {
            project,
            ran: Vec::new(),
            changed: FxHashSet::default(),
            is_new: true,
            crashes: Vec::new(),
        }
    }

    pub fn project(&self) -> &Project {
        &self.project
    }

    /// Replaces a text. `error` tells what went wrong when it was read.
    pub fn set_text(&mut self, file: FileId, text: Arc<str>, error: Option<ParseError>) {
        let old = self.project.file(file);
        if old.text == text && error.is_none() {
            return;
        }
        let language = old.module.language;
        let moved = shape(language, &old.text) != shape(language, &text);
        let path = old.path.clone();
        let source = Source { path, text, reported: old.reported, error };
        if moved && language == Language::Rust {
            // The crate of a file decides how it is lowered.
            self.load_again(file, &source);
            return;
        }
        let (new, crash) = lower(file, source, &self.project.crates);
        self.crashes.retain(|(of, _)| *of != file);
        self.crashes.extend(crash.map(|crash| (file, crash)));
        self.project.files[file.0 as usize] = new;
        self.changed.insert(file);
        if moved {
            let crates = self.project.crates.clone();
            self.project.imports = Box::new(ByLanguage::new(&self.project.files, crates));
            self.is_new = true;
        }
    }

    fn load_again(&mut self, file: FileId, source: &Source) {
        let old = std::mem::take(&mut self.project.files);
        let sources = old.into_iter().map(|old| {
            if old.id == file {
                return source.clone();
            }
            Source { path: old.path, text: old.text, reported: old.reported, error: None }
        });
        let (project, _) = load(Input {
            root: self.project.root.clone(),
            sources: sources.collect(),
            manifests: self.project.manifests.clone(),
            torch: self.project.torch,
        });
        *self = Self::new(project);
    }

    /// The same as linting the project anew.
    pub fn lint(&mut self, settings: SettingsOf<'_, '_>) -> Outcome {
        let mut outcome = if matters(&self.project, settings) {
            match entries(&self.project) {
                Ok(entries) => self.run(&entries, settings),
                Err(crash) => Outcome { findings: Vec::new(), crashes: vec![crash] },
            }
        } else {
            self.is_new = true;
            conclude_without_programs(&self.project, settings)
        };
        self.changed.clear();
        outcome.crashes.splice(0..0, self.crashes.iter().map(|(_, crash)| crash.clone()));
        outcome
    }

    fn run(&mut self, entries: &[Entry], settings: SettingsOf<'_, '_>) -> Outcome {
        let kept = if self.is_new { Vec::new() } else { self.kept() };
        let rules = wanted(RULES, &self.project, settings);
        let known = |entry: Entry| kept.iter().find(|ran| ran.entry == entry).cloned();
        self.ran = run_all(&rules, &self.project, entries, settings, &known);
        self.is_new = false;
        conclude(&self.project, &self.ran, settings)
    }

    /// The programs that the changes do not touch: a program is a matter of its own files.
    fn kept(&self) -> Vec<Arc<Ran>> {
        let is_touched = |ran: &Ran| self.changed.iter().any(|file| ran.reached.contains(file));
        self.ran.iter().filter(|ran| !is_touched(ran)).cloned().collect()
    }
}

/// What of a text decides how files find each other.
fn shape(language: Language, text: &str) -> Vec<&str> {
    match language {
        Language::Python => {
            text.match_indices("sys.path").map(|(_, found)| found).take(1).collect()
        }
        Language::Rust => {
            let says = |line: &&str| {
                ["mod ", "fn main", "path", "cfg"].iter().any(|word| line.contains(word))
            };
            text.lines().filter(says).collect()
        }
    }
}
