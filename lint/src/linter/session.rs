//! A project whose texts change: what does not depend on a change is not done again.

use std::sync::Arc;

use rustc_hash::{FxHashMap, FxHashSet};

use super::outline::Outline;
use super::programs::{Ran, run_all};
use super::settle::{conclude, conclude_without_programs};
use super::{Input, Outcome, SettingsOf, Source, load, lower, matters, planned, wanted};
use crate::analysis::shared::Shared;
use crate::analysis::{Entry, Planned};
use crate::crash::Crash;
use crate::imports::ByLanguage;
use crate::model::{FileId, ParseError};
use crate::project::{Imports as _, Project};
use crate::rules::RULES;

/// Settings must stay the same during a session.
pub struct Session {
    project: Project,
    /// The programs and what they are made of, as long as no outline changes.
    plan: Option<Vec<Planned>>,
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
            plan: None,
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
        if old.text == text && error.is_none() && old.module.errors.is_empty() {
            return;
        }
        let before = Outline::of(old);
        let path = old.path.clone();
        let source = Source { path, text, reported: old.reported, error };
        let (new, crash) = lower(file, source.clone(), &self.project.crates);
        let after = Outline::of(&new);
        if !before.has_crates_of(&after) {
            // The crate of a file decides how it is lowered.
            self.load_again(file, &source);
            return;
        }
        self.crashes.retain(|(of, _)| *of != file);
        self.crashes.extend(crash.map(|crash| (file, crash)));
        self.project.files[file.0 as usize] = new;
        self.project.shared = Shared::default();
        self.changed.insert(file);
        if before != after {
            self.plan = None;
            self.find_imports_again();
        }
    }

    fn find_imports_again(&mut self) {
        let crates = self.project.crates.clone();
        let imports = Box::new(ByLanguage::new(&self.project.files, crates));
        if imports.beyond_paths() != self.project.imports.beyond_paths() {
            // Any import may lead elsewhere now.
            self.is_new = true;
        }
        self.project.imports = imports;
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
            self.run(settings)
        } else {
            self.is_new = true;
            conclude_without_programs(&self.project, settings)
        };
        self.changed.clear();
        outcome.crashes.splice(0..0, self.crashes.iter().map(|(_, crash)| crash.clone()));
        outcome
    }

    fn run(&mut self, settings: SettingsOf<'_, '_>) -> Outcome {
        let plan = match self.plan.take() {
            Some(plan) => plan,
            None => match planned(&self.project) {
                Ok(plan) => plan,
                Err(crash) => return Outcome { findings: Vec::new(), crashes: vec![crash] },
            },
        };
        let kept = if self.is_new { FxHashMap::default() } else { self.kept() };
        let rules = wanted(RULES, &self.project, settings);
        let known = |entry: Entry| kept.get(&entry).cloned();
        self.ran = run_all(&rules, &self.project, &plan, settings, &known);
        self.plan = Some(plan);
        self.is_new = false;
        conclude(&self.project, &self.ran, settings)
    }

    /// The programs that the changes do not touch: a program is a matter of its own files.
    fn kept(&self) -> FxHashMap<Entry, Arc<Ran>> {
        let is_touched = |ran: &Ran| self.changed.iter().any(|file| ran.reached.contains(file));
        let kept = self.ran.iter().filter(|ran| !is_touched(ran));
        kept.map(|ran| (ran.entry, ran.clone())).collect()
    }
}
