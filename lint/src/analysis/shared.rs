//! What the programs of a project ask about each other, found once for all that ask. It holds
//! while no text of the project changes.

use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use rustc_hash::FxHashMap;

use super::checkpoints::ToldStates;
use super::{Entry, OTHERS_MAX, Planned, entries, plan};
use crate::model::{FileId, Language};
use crate::project::Project;
use crate::table::Table;

/// A program, and the address of the table that it is run with.
type Key = (Entry, usize);

#[derive(Debug, Default)]
pub struct Shared {
    candidates: OnceLock<Vec<Planned>>,
    states: Mutex<FxHashMap<Key, Arc<OnceLock<Arc<ToldStates>>>>>,
}

impl Shared {
    /// Takes the programs of the project over from who has found them already.
    pub(crate) fn take_plan(&self, project: &Project, plan: &[Planned]) {
        self.candidates.get_or_init(|| candidates(project, plan));
    }

    /// The programs of a language that may know something of states, the entries that load
    /// themselves first.
    pub(super) fn candidates(&self, project: &Project, language: Language) -> Vec<Planned> {
        let of_language = |planned: &&Planned| planned.entry.language == language;
        if let Some(known) = self.candidates.get() {
            return known.iter().filter(of_language).cloned().collect();
        }
        // Not kept: finding them shares work with other threads, which may wait for it.
        let found = candidates(project, &plan(project, &entries(project)));
        found.iter().filter(of_language).cloned().collect()
    }

    /// What a program saves and loads, by `run` where nobody has asked before.
    pub(super) fn states(
        &self,
        entry: Entry,
        table: &Table,
        run: impl FnOnce() -> ToldStates,
    ) -> Arc<ToldStates> {
        let key = (entry, std::ptr::from_ref(table).addr());
        let mut states = self.states.lock().unwrap_or_else(PoisonError::into_inner);
        let cell = states.entry(key).or_default().clone();
        drop(states);
        cell.get_or_init(|| Arc::new(run())).clone()
    }
}

/// Programs that handle states, to be run without the code that nothing calls: as many of each
/// language as one of them asks.
fn candidates(project: &Project, plan: &[Planned]) -> Vec<Planned> {
    let speaks = |file: FileId, word: &str| project.file(file).text.contains(word);
    let handles = |planned: &&Planned| {
        planned.entry.file.is_some() && planned.files.iter().any(|&f| speaks(f, "state_dict"))
    };
    let mut found: Vec<&Planned> = plan.iter().filter(handles).collect();
    found.sort_by_key(|p| !p.entry.file.is_some_and(|file| speaks(file, "load_state_dict")));
    let mut candidates = Vec::new();
    for language in [Language::Python, Language::Rust] {
        let of_language = found.iter().filter(|planned| planned.entry.language == language);
        candidates.extend(of_language.take(OTHERS_MAX + 1).map(|&planned| Planned {
            is_parallel: true,
            owned: rustc_hash::FxHashSet::default(),
            ..planned.clone()
        }));
    }
    candidates
}
