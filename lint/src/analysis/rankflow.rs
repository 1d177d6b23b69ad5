//! Rank flow: the sequence of collectives that each class of ranks runs, and where two
//! sequences part. In the spirit of PARCOACH, with classes of ranks instead of branches.
//!
//! The run's tree is specialised to ranks of small worlds: arms that a rank cannot take are
//! dropped, callees are spliced in, loops that count by rank are run, paths that end the process
//! by an error are left out, and what follows an arm that leaves is folded into the other arm.

mod ahead;
mod classes;
mod compare;
mod meet;
mod run;
mod steps;
#[cfg(test)]
mod tests;
mod ways;
mod words;

use rustc_hash::FxHashSet;

use super::{EventId, ObjectId, Program, SAMPLES, Sample, Taint, Term, TermKind};
use crate::model::{Name, Site};
use crate::table::Role;
use ahead::Behind;
use ways::Way;

pub use ahead::Ahead;
pub use run::Run;
pub use steps::{Step, Steps};

/// Something that several ranks must do together.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
enum Key {
    /// A collective of that name, with its root where it has one that is known.
    Named(Name, Option<i64>),
    Construct,
    /// Forward of a wrapper.
    Train(ObjectId),
    /// Backward through a wrapper, which reduces its gradients.
    Reduce(ObjectId),
}

/// What is compared of a collective: equal ones pair.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Op {
    key: Key,
    /// The group it runs in; none is the group of all ranks.
    group: Option<Term>,
    /// The ranks of that group, one bit each.
    members: u64,
}

/// Two classes of ranks do not do the same together.
#[derive(Clone, Debug)]
pub struct Divergence {
    /// Done by one class and not, or not there, by the other.
    pub event: EventId,
    /// What the other class does there instead, if anything.
    pub instead: Option<EventId>,
    /// The sample ranks of the two classes: the one that does it first.
    pub does: Sample,
    pub does_not: Sample,
    /// What the two do from there on, the first few steps.
    pub trace: Vec<Ahead>,
    pub other_trace: Vec<Ahead>,
    /// The condition that parts the ranks, where it is not known which of them pass.
    pub undecided: Option<Site>,
}

/// A divergence that shows in one way, and what keeps the one rank from there.
struct Parting {
    divergence: Divergence,
    kept_by: Option<Site>,
}

impl Parting {
    /// It is what was found without this way in mind.
    fn shows(&self, found: &Divergence) -> bool {
        match (found.undecided, self.kept_by) {
            (Some(undecided), Some(by)) => {
                undecided.file == by.file && undecided.span.contains(by.span)
            }
            (Some(_), None) => self.divergence.is_about(found),
            (None, _) => {
                let (mine, other) = (&self.divergence, found);
                mine.is_about(other) && (mine.does == other.does || mine.does_not == other.does_not)
            }
        }
    }
}

impl Divergence {
    fn is_about(&self, other: &Self) -> bool {
        self.event == other.event
            || self.instead == Some(other.event)
            || other.instead == Some(self.event)
    }
}

/// A condition that each rank decides for itself, and what hangs on it.
#[derive(Clone, Debug)]
pub struct LocalDecision {
    pub condition: Term,
    pub site: Site,
    /// Something that only some ranks then do together.
    pub event: Option<EventId>,
    /// It is the handler of an error that one rank alone may have.
    pub is_caught: bool,
    /// What a rank does for which it holds, and what one does for which it does not.
    pub trace: Vec<Ahead>,
    pub other_trace: Vec<Ahead>,
}

/// Which events count as done together.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Counted {
    /// Collectives, open and hidden.
    Collectives,
    /// These, and training forwards and backwards of a wrapper.
    Training,
    /// These, and forwards of a wrapper without gradients.
    Forwards,
}

/// What a tensor tells of how it was made rather than of its numbers.
const STRUCTURE: [&str; 5] = ["requires_grad", "is_leaf", "is_cuda", "is_sparse", "grad_fn"];

/// Deep trees are walked on a stack of their own.
const STACK: usize = 64 * 1024 * 1024;

impl Program<'_> {
    /// Where classes of ranks part ways, in the entry's run and in code nobody calls.
    pub fn divergences(&self) -> Vec<Divergence> {
        if !self.events().iter().any(|event| event.call().is_some_and(run::may_be_together)) {
            return Vec::new();
        }
        stacker::grow(STACK, || {
            let mut found = Vec::new();
            let orphans = self.orphan_trees().iter().map(|(_, tree)| tree);
            for tree in std::iter::once(self.tree()).chain(orphans) {
                for world in self.worlds(tree) {
                    self.compare_world(tree, &world, &mut found);
                }
            }
            found
        })
    }

    fn compare_world(&self, tree: &[super::Node], world: &[Sample], found: &mut Vec<Divergence>) {
        let runs: Vec<Run> =
            world.iter().map(|&sample| self.run_on(tree, sample, Counted::Collectives)).collect();
        if runs.iter().any(|run| run.is_cut) {
            return;
        }
        if let Some(played) = self.lines(&runs, world) {
            for lines in played {
                meet::check(world, &lines, found);
            }
            return;
        }
        // Each parting is told once, whatever the ways in which it shows.
        let mut told = found.clone();
        self.compare_runs(&runs, world, &mut told);
        let told = told.split_off(found.len());
        let Some(settled) = self.runs_by_way(&runs, world, &told) else {
            found.extend(told);
            return;
        };
        let apart: Vec<Vec<Parting>> =
            settled.iter().map(|(way, by_way)| self.partings(way, by_way, &runs, world)).collect();
        for f in told {
            let shown = apart.iter().flatten().find(|parting| parting.shows(&f));
            found.extend(shown.map(|parting| match f.undecided {
                Some(_) => Divergence { undecided: f.undecided, ..parting.divergence.clone() },
                None => f,
            }));
        }
        // What shows in some way alone.
        for way in apart {
            let is_told = |parting: &Parting| {
                found.iter().any(|f| parting.divergence.is_about(f) || parting.shows(f))
            };
            if !way.iter().any(is_told) {
                found.extend(way.into_iter().next().map(|parting| parting.divergence));
            }
        }
    }

    /// Where ranks part in one way, and what keeps the one of them from there.
    fn partings(&self, way: &Way, by_way: &[Run], runs: &[Run], world: &[Sample]) -> Vec<Parting> {
        let mut found = Vec::new();
        self.compare_runs(by_way, world, &mut found);
        let parting = |divergence: Divergence| {
            let away = world.iter().position(|&sample| sample == divergence.does_not);
            let kept_by = away.and_then(|index| {
                self.keeps_from(divergence.event, way, &runs[index], world[index])
            });
            Parting { divergence, kept_by }
        };
        found.into_iter().map(parting).collect()
    }

    fn compare_runs(&self, runs: &[Run], world: &[Sample], found: &mut Vec<Divergence>) {
        // A rank that ends by an error ends the job.
        if runs.iter().any(|run| run.errs) {
            return;
        }
        for (first, a) in runs.iter().enumerate().take(2) {
            for (second, b) in runs.iter().enumerate().skip(first + 1) {
                let samples = (world[first], world[second]);
                compare::runs(self, a, b, samples, found);
            }
        }
        for (run, &sample) in runs.iter().zip(world).take(2) {
            self.undecided((&run.steps, false), None, sample, found);
        }
    }

    /// Conditions on a rank's own data that decide what ranks do together.
    pub fn local_decisions(&self) -> Vec<LocalDecision> {
        stacker::grow(STACK, || {
            let mut found = Vec::new();
            let orphans = self.orphan_trees().iter().map(|(_, tree)| tree);
            for tree in std::iter::once(self.tree()).chain(orphans) {
                for sample in [SAMPLES[0], SAMPLES[1]] {
                    let run = self.run_on(tree, sample, Counted::Training);
                    self.decisions((&run.steps, false), None, &mut found);
                }
            }
            found
        })
    }

    /// `is_round`: the list is the body of a loop.
    fn decisions(
        &self,
        (steps, is_round): (&[Step], bool),
        outer: Option<&Behind<'_>>,
        found: &mut Vec<LocalDecision>,
    ) {
        let nothing = Steps::from(Vec::new());
        for (index, step) in steps.iter().enumerate() {
            let round = is_round.then_some(steps);
            let behind = Behind { rest: &steps[index + 1..], round, outer };
            let (condition, site, then, otherwise) = match step {
                Step::If { condition, site, then, otherwise } => {
                    (*condition, *site, then, otherwise)
                }
                Step::Loop { header, site, body, .. } => (*header, *site, body, &nothing),
                _ => continue,
            };
            let is_loop = matches!(step, Step::Loop { .. });
            let counts = is_loop && matches!(self.terms().kind(condition), TermKind::Happened(_));
            if !counts
                && self.is_local(condition, site)
                && !found.iter().any(|known| known.site == site)
            {
                found.push(LocalDecision {
                    condition,
                    site,
                    event: then.first_event().or(otherwise.first_event()),
                    is_caught: self.is_caught(condition),
                    trace: ahead::ahead(then, Some(&behind)),
                    other_trace: ahead::ahead(otherwise, Some(&behind)),
                });
            }
            self.decisions((then, is_loop), Some(&behind), found);
            self.decisions((otherwise, false), Some(&behind), found);
        }
    }

    fn is_local(&self, condition: Term, site: Site) -> bool {
        let taint = self.terms().taint(condition);
        let differs = taint.has(Taint::LOCAL) && !self.asks_how_it_was_made(condition)
            || taint.has(Taint::RANDOM) && self.is_drawn(condition) && self.draws_apart()
            || self.is_caught(condition);
        differs && !self.is_declared_uniform(site)
    }

    /// Nothing but random numbers went into it.
    fn is_drawn(&self, condition: Term) -> bool {
        let mut origins = self.terms().origins(condition).iter();
        origins.all(|&origin| self.event(origin).call().is_some_and(|c| c.role == Role::Random))
    }

    /// Ranks draw random numbers of their own: nobody seeds them, or by the rank.
    fn draws_apart(&self) -> bool {
        let mut seeds = self.calls(Role::Seed).peekable();
        seeds.peek().is_none()
            || seeds.any(|(_, call)| {
                call.arguments.iter().any(|a| a.value.taint(self.terms()).has(Taint::RANK))
            })
    }

    /// `loss.requires_grad`: the same for all data.
    fn asks_how_it_was_made(&self, condition: Term) -> bool {
        match self.terms().kind(condition) {
            TermKind::Not(inner) => self.asks_how_it_was_made(*inner),
            TermKind::Attribute(_, name) => STRUCTURE.contains(&name.as_str()),
            TermKind::Apply(name, _) => {
                STRUCTURE.contains(&name.rsplit('.').next().unwrap_or_default())
            }
            TermKind::Opaque { site, .. } => {
                let text = self.text(*site);
                STRUCTURE
                    .iter()
                    .any(|name| text.strip_suffix(name).is_some_and(|before| before.ends_with('.')))
            }
            _ => false,
        }
    }

    /// Tests of the rank against something unknown: whoever passes, it is not all ranks.
    fn undecided(
        &self,
        (steps, is_round): (&[Step], bool),
        outer: Option<&Behind<'_>>,
        sample: Sample,
        found: &mut Vec<Divergence>,
    ) {
        let nothing = Steps::from(Vec::new());
        for (index, step) in steps.iter().enumerate() {
            let round = is_round.then_some(steps);
            let behind = Behind { rest: &steps[index + 1..], round, outer };
            let (condition, site, then, otherwise) = match step {
                Step::If { condition, site, then, otherwise } => {
                    (*condition, *site, then, otherwise)
                }
                Step::Loop { header, site, body, .. } => (*header, *site, body, &nothing),
                _ => continue,
            };
            if self.parts_ranks(condition) && !self.is_declared_uniform(site) {
                let event = then.first_event().or(otherwise.first_event());
                let known = |e| found.iter().any(|f| f.event == e || f.instead == Some(e));
                if let Some(event) = event.filter(|&e| !known(e)) {
                    found.push(Divergence {
                        event,
                        instead: None,
                        does: sample,
                        does_not: sample,
                        trace: ahead::ahead(then, Some(&behind)),
                        other_trace: ahead::ahead(otherwise, Some(&behind)),
                        undecided: Some(site),
                    });
                }
                continue;
            }
            let is_loop = matches!(step, Step::Loop { .. });
            self.undecided((then, is_loop), Some(&behind), sample, found);
            self.undecided((otherwise, false), Some(&behind), sample, found);
        }
    }

    /// The condition tests the number of the rank itself, not just something made with it.
    fn parts_ranks(&self, condition: Term) -> bool {
        let terms = self.terms();
        let mut seen = FxHashSet::default();
        let mut open = vec![condition];
        while let Some(part) = open.pop() {
            // Conditions of long programs have many parts in common.
            if !terms.taint(part).has(Taint::RANK) || !seen.insert(part) {
                continue;
            }
            match terms.kind(part) {
                TermKind::And(parts) | TermKind::Or(parts) => open.extend(parts.iter().copied()),
                TermKind::Not(inner) => open.push(*inner),
                _ if self.tests_the_rank(part) => return true,
                _ => {}
            }
        }
        false
    }

    fn tests_the_rank(&self, condition: Term) -> bool {
        let terms = self.terms();
        // "Is it distributed at all" holds on all ranks alike.
        let on = SAMPLES.map(|sample| terms.evaluate(condition, sample));
        if on[0].is_some() && on.iter().all(|value| *value == on[0]) {
            return false;
        }
        self.mentions(condition, &|kind| {
            terms.find(kind).is_some_and(|term| {
                terms.rank_kind(term).is_some_and(super::RankKind::differs)
                    || self.is_counter(term) && terms.taint(term).has(Taint::RANK)
            })
        })
    }

    /// `# ddp-lint: uniform` at the condition, or alone on the line above it.
    pub fn is_declared_uniform(&self, site: Site) -> bool {
        let file = self.project().file(site.file);
        let line_of = |at: u32| file.text[..at as usize].matches('\n').count();
        let mut declared = file.module.comments.iter().filter(|comment| {
            comment
                .text
                .strip_prefix("ddp-lint:")
                .is_some_and(|t| t.trim_start().starts_with("uniform"))
        });
        declared.any(|comment| {
            let (line, at) = (line_of(comment.span.start), line_of(site.span.start));
            line == at || comment.own_line && line + 1 == at
        })
    }
}

fn events_of(step: &Step, into: &mut Vec<EventId>) {
    match step {
        Step::Together { event, .. } => into.push(*event),
        Step::If { then, otherwise, .. } => {
            then.iter().chain(otherwise.iter()).for_each(|step| events_of(step, into));
        }
        Step::Loop { body, .. } => body.iter().for_each(|step| events_of(step, into)),
        Step::Leave(_) => {}
    }
}
