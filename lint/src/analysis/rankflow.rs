//! Rank flow: the sequence of collectives that each class of ranks runs, and where two
//! sequences part. In the spirit of PARCOACH, with classes of ranks instead of branches.
//!
//! The run's tree is specialised to ranks of small worlds: arms that a rank cannot take are
//! dropped, callees are spliced in, loops that count by rank are run, paths that end the process
//! by an error are left out, and what follows an arm that leaves is folded into the other arm.

mod classes;
mod compare;
mod meet;
mod run;
#[cfg(test)]
mod tests;

use std::rc::Rc;

use rustc_hash::FxHashSet;

use super::{EventId, ExitKind, ObjectId, Program, SAMPLES, Sample, Taint, Term, TermKind};
use crate::model::{Name, Site};

pub use run::Run;

/// Something that several ranks must do together.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
enum Key {
    /// A collective of that name, with its root where it has one that is known.
    Named(Name, Option<i64>),
    Construct,
    /// Forward of a wrapper, with gradients.
    Train(ObjectId),
    /// A backward that reduces the gradients of a wrapper.
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

/// One step of a specialised run.
#[derive(Clone, Debug)]
pub enum Step {
    Together {
        key: Op,
        event: EventId,
    },
    If {
        condition: Term,
        site: Site,
        then: Steps,
        otherwise: Steps,
    },
    /// `counted`: how often it runs is known by its header; else only by its place.
    Loop {
        header: Term,
        counted: bool,
        site: Site,
        body: Steps,
    },
    /// Leaves the loop around it (`Break`), its function, or the program (`Stop`).
    Leave(ExitKind),
}

pub type Steps = Rc<[Step]>;

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
    pub trace: Vec<EventId>,
    pub other_trace: Vec<EventId>,
    /// The condition that parts the ranks, where it is not known which of them pass.
    pub undecided: Option<Site>,
}

/// A condition that each rank decides for itself, and what hangs on it.
#[derive(Clone, Debug)]
pub struct LocalDecision {
    pub condition: Term,
    pub site: Site,
    /// Something that only some ranks then do together.
    pub event: Option<EventId>,
}

/// Which events count as done together.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Counted {
    /// Collectives, open and hidden.
    Collectives,
    /// These, and training forwards and backwards of a wrapper.
    Training,
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
            self.undecided(&run.steps, sample, found);
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
                    self.decisions(&run.steps, &mut found);
                }
            }
            found
        })
    }

    fn decisions(&self, steps: &[Step], found: &mut Vec<LocalDecision>) {
        for step in steps {
            match step {
                Step::If { condition, site, then, otherwise } => {
                    if self.is_local(*condition, *site) && !found.iter().any(|f| f.site == *site) {
                        let event = first_event(then).or_else(|| first_event(otherwise));
                        found.push(LocalDecision { condition: *condition, site: *site, event });
                    }
                    self.decisions(then, found);
                    self.decisions(otherwise, found);
                }
                Step::Loop { header, site, body, .. } => {
                    let decides = matches!(self.terms().kind(*header), TermKind::Happened(_));
                    if !decides
                        && self.is_local(*header, *site)
                        && !found.iter().any(|f| f.site == *site)
                    {
                        let event = first_event(body);
                        found.push(LocalDecision { condition: *header, site: *site, event });
                    }
                    self.decisions(body, found);
                }
                _ => {}
            }
        }
    }

    fn is_local(&self, condition: Term, site: Site) -> bool {
        self.terms().taint(condition).has(Taint::LOCAL)
            && !self.is_declared_uniform(site)
            && !self.asks_how_it_was_made(condition)
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
    fn undecided(&self, steps: &[Step], sample: Sample, found: &mut Vec<Divergence>) {
        for step in steps {
            let (condition, site, arms) = match step {
                Step::If { condition, site, then, otherwise } => {
                    (*condition, *site, [then.clone(), otherwise.clone()])
                }
                Step::Loop { header, site, body, .. } => {
                    (*header, *site, [body.clone(), Rc::from([])])
                }
                _ => continue,
            };
            let [then, otherwise] = arms;
            if self.parts_ranks(condition) && !self.is_declared_uniform(site) {
                let event = first_event(&then).or_else(|| first_event(&otherwise));
                let known = |e| found.iter().any(|f| f.event == e || f.instead == Some(e));
                if let Some(event) = event.filter(|&e| !known(e)) {
                    found.push(Divergence {
                        event,
                        instead: None,
                        does: sample,
                        does_not: sample,
                        trace: first_events(&then),
                        other_trace: first_events(&otherwise),
                        undecided: Some(site),
                    });
                }
                continue;
            }
            self.undecided(&then, sample, found);
            self.undecided(&otherwise, sample, found);
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

fn first_event(steps: &[Step]) -> Option<EventId> {
    steps.iter().find_map(first_event_of)
}

fn first_event_of(step: &Step) -> Option<EventId> {
    match step {
        Step::Together { event, .. } => Some(*event),
        Step::If { then, otherwise, .. } => first_event(then).or_else(|| first_event(otherwise)),
        Step::Loop { body, .. } => first_event(body),
        Step::Leave(_) => None,
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

/// How many steps of a sequence are shown.
const SHOWN_MAX: usize = 4;

/// The first few events of a sequence.
fn first_events(steps: &[Step]) -> Vec<EventId> {
    let mut events = Vec::new();
    collect_events(steps, &mut events);
    events
}

fn collect_events(steps: &[Step], events: &mut Vec<EventId>) {
    for step in steps {
        if events.len() >= SHOWN_MAX {
            return;
        }
        match step {
            Step::Together { event, .. } => events.push(*event),
            Step::If { then, otherwise, .. } => {
                collect_events(if first_event(then).is_some() { then } else { otherwise }, events);
            }
            Step::Loop { body, .. } => collect_events(body, events),
            Step::Leave(_) => {}
        }
    }
}
