//! Runs programs and the rules over them.

use std::cmp::Reverse;
use std::sync::Arc;

use rayon::prelude::*;
use rustc_hash::{FxHashMap, FxHashSet};

use super::{Outcome, SettingsOf};
use crate::analysis::{Entry, Planned, Program};
use crate::crash::catch;
use crate::model::FileId;
use crate::project::Project;
use crate::rule::{Report, Rule};
use crate::table::Table;

/// What came of one program.
#[derive(Debug)]
pub(super) struct Ran {
    pub(super) entry: Entry,
    /// Of this program alone; settings and suppressions are not applied.
    pub(super) outcome: Outcome,
    /// The files that it is made of.
    pub(super) reached: FxHashSet<FileId>,
    /// The files whose uncalled code it answers for.
    owned: FxHashSet<FileId>,
    /// Some of these files speak of torch.
    pub(super) uses_torch: bool,
}

/// Runs all programs; those that `kept` has a result for are taken from there.
pub(super) fn run_all(
    rules: &[&Rule],
    project: &Project,
    plan: &[Planned],
    settings: SettingsOf<'_, '_>,
    kept: &(dyn Fn(Entry) -> Option<Arc<Ran>> + Sync),
) -> Vec<Arc<Ran>> {
    let tables = Tables::new(project, plan, settings);
    project.shared.take_plan(project, plan);
    let ran = |planned: &Planned| {
        let known = kept(planned.entry).filter(|known| known.owned == planned.owned);
        known.unwrap_or_else(|| {
            let table = tables.of(project, planned.entry, settings);
            Arc::new(run(rules, project, table, planned))
        })
    };
    // Large programs first, or the last one may keep a single thread busy.
    let mut order: Vec<usize> = (0..plan.len()).collect();
    order.sort_by_key(|&index| Reverse(size(&plan[index])));
    let all = order.into_iter().par_bridge().map(|index| (index, ran(&plan[index])));
    let mut all: Vec<(usize, Arc<Ran>)> = all.collect();
    all.sort_unstable_by_key(|(index, _)| *index);
    all.into_iter().map(|(_, ran)| ran).collect()
}

/// How much there is to run, roughly: code that is called, and code that nobody calls.
fn size(planned: &Planned) -> usize {
    if planned.is_parallel { planned.files.len() + 4 * planned.owned.len() } else { 0 }
}

/// The tables of outside names: the built-in one, and those with rows of users, by these rows.
struct Tables {
    extended: FxHashMap<Arc<str>, Table>,
}

impl Tables {
    fn new(project: &Project, plan: &[Planned], settings: SettingsOf<'_, '_>) -> Self {
        let mut extended = FxHashMap::default();
        for planned in plan {
            let Some(rows) = Self::rows(project, planned.entry, settings) else { continue };
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

/// Runs one program and all rules over it.
fn run(rules: &[&Rule], project: &Project, table: &Table, planned: &Planned) -> Ran {
    let (entry, owned) = (planned.entry, planned.owned.clone());
    let doing = || {
        let file = entry.file.map_or("a library", |entry| &project.file(entry).path);
        format!("following the program `{file}`")
    };
    match catch(doing, || Program::new(project, table, planned)) {
        Ok(program) => {
            let ids = project.files.iter().map(|file| file.id);
            let reached: FxHashSet<FileId> = ids.filter(|id| program.reaches(*id)).collect();
            let uses_torch = reached.iter().any(|id| project.file(*id).mentions_torch);
            Ran { entry, outcome: check(rules, &program), reached, owned, uses_torch }
        }
        Err(crash) => {
            let outcome = Outcome { findings: Vec::new(), crashes: vec![crash] };
            // Whatever changes may mend it.
            let reached = project.files.iter().map(|file| file.id).collect();
            Ran { entry, outcome, reached, owned, uses_torch: false }
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
