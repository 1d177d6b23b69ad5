//! Ways in which conditions may turn out that are unknown but the same on all ranks. Where such
//! a condition and a rank decide together who leaves or stays, what follows is only understood
//! with the same answer in mind.

use std::hash::{Hash, Hasher};

use rustc_hash::{FxHashMap, FxHashSet};

use super::run::{leaves_program, push_if};
use super::steps::first_event;
use super::{Divergence, Run, Step};
use crate::analysis::term::{self, three_valued, truth};
use crate::analysis::{Const, EventId, ExitKind, Program, Sample, Term, TermKind, Terms};
use crate::model::{CompareOp, Site};

/// Ways looked at of one world: all of them, or so many drawn from them.
const WAYS_MAX: usize = 64;
/// Fewer ways than this show little.
const WAYS_MIN: usize = 8;
/// Ways looked at for one place where ranks may part.
const WAYS_TO_ONE: usize = 4;
/// Steps looked at in all ways of one world.
const STEPS_MAX: usize = 500_000;
/// What is settled at once, and how often something is.
const ATOMS_MAX: usize = 64;
const ROUNDS_MAX: usize = 6;

/// How unknown conditions turn out.
#[derive(Clone, Default, Debug)]
pub(super) struct Way {
    holds: FxHashMap<Term, bool>,
    /// The conditions among them about one value.
    about: FxHashMap<Term, Vec<Term>>,
}

/// A way to be settled further.
struct Open {
    way: Way,
    budget: usize,
    rounds: usize,
}

/// What a condition says of one value.
#[derive(Clone, Copy)]
enum Claim {
    Holds,
    IsNone,
    Equals(Const),
}

impl Way {
    /// All ways in which these may turn out together.
    pub(super) fn all<'a>(
        terms: &'a Terms,
        atoms: &'a [Term],
    ) -> impl Iterator<Item = Self> + use<'a> {
        let of_bits = |bits: usize| {
            let mut way = Self::default();
            let mut answers = atoms.iter().enumerate().map(|(i, &atom)| (atom, bits & 1 << i != 0));
            answers.all(|(atom, holds)| way.insert(terms, atom, holds)).then_some(way)
        };
        (0..1_usize << atoms.len()).filter_map(of_bits)
    }

    /// False where it contradicts the others.
    fn insert(&mut self, terms: &Terms, condition: Term, holds: bool) -> bool {
        let known = self.holds.get(&condition).copied();
        if known.or_else(|| self.implied(terms, condition)).is_some_and(|known| known != holds) {
            return false;
        }
        if self.holds.insert(condition, holds).is_none() {
            self.about.entry(claim(terms, condition).0).or_default().push(condition);
        }
        true
    }

    /// Whether a condition holds then, where its parts are known or assumed.
    pub(super) fn decides(
        &self,
        terms: &Terms,
        condition: Term,
        known: &dyn Fn(Term) -> Option<Const>,
    ) -> Option<bool> {
        if self.holds.is_empty() || terms.is_huge(condition) {
            return known(condition).map(truth);
        }
        let part = |&part: &Term| self.decides(terms, part, known);
        match terms.kind(condition) {
            TermKind::And(parts) => three_valued(parts.iter().map(part), true),
            TermKind::Or(parts) => three_valued(parts.iter().map(part), false),
            TermKind::Not(inner) => self.decides(terms, *inner, known).map(|holds| !holds),
            _ => known(condition)
                .map(truth)
                .or_else(|| self.holds.get(&condition).copied())
                .or_else(|| self.implied(terms, condition)),
        }
    }

    /// What the others say of it.
    fn implied(&self, terms: &Terms, term: Term) -> Option<bool> {
        let (of, wanted) = claim(terms, term);
        self.about.get(&of)?.iter().find_map(|&other| {
            let holds = *self.holds.get(&other)?;
            (other != term).then(|| follows(claim(terms, other).1, holds, wanted)).flatten()
        })
    }
}

fn claim(terms: &Terms, term: Term) -> (Term, Claim) {
    let TermKind::Compare(op, a, b) = *terms.kind(term) else { return (term, Claim::Holds) };
    let (of, constant) = match (terms.as_const(a), terms.as_const(b)) {
        (None, Some(constant)) => (a, constant),
        (Some(constant), None) => (b, constant),
        _ => return (term, Claim::Holds),
    };
    match op {
        CompareOp::Is if constant == Const::None => (of, Claim::IsNone),
        CompareOp::Eq => (of, Claim::Equals(constant)),
        _ => (term, Claim::Holds),
    }
}

/// What one claim, true or not, tells of another about the same value.
fn follows(known: Claim, holds: bool, wanted: Claim) -> Option<bool> {
    let value = match (known, holds) {
        (Claim::IsNone, true) => Const::None,
        (Claim::Equals(constant), true) => constant,
        (Claim::Holds, holds) => {
            let is_true = match wanted {
                Claim::Holds => return Some(holds),
                Claim::IsNone => false,
                Claim::Equals(constant) => truth(constant),
            };
            return (is_true != holds).then_some(false);
        }
        (Claim::IsNone | Claim::Equals(_), false) => return None,
    };
    match wanted {
        Claim::Holds => Some(truth(value)),
        Claim::IsNone => Some(value == Const::None),
        Claim::Equals(constant) => term::compare(CompareOp::Eq, value, constant),
    }
}

/// Whether a rank comes to an event in a way.
#[derive(Clone, Copy)]
enum Passage {
    Open,
    /// A condition keeps it away.
    Barred(Site),
    /// The event is none of these steps.
    Absent,
}

impl Passage {
    fn barred_if(self, bars: bool, by: Site) -> Self {
        if bars && !matches!(self, Self::Absent) { Self::Barred(by) } else { self }
    }
}

/// The steps of one rank in one way.
struct Settling<'s, 'p> {
    program: &'s Program<'p>,
    sample: Sample,
    way: &'s Way,
    decided: FxHashMap<Term, Option<bool>>,
}

impl Settling<'_, '_> {
    fn decide(&mut self, condition: Term) -> Option<bool> {
        let terms = self.program.terms();
        let known = |term: Term| terms.evaluate(term, self.sample);
        *self.decided.entry(condition).or_insert_with(|| self.way.decides(terms, condition, &known))
    }

    fn keeps_from(&mut self, steps: &[Step], event: EventId) -> Passage {
        for step in steps {
            let found = match step {
                Step::Together { event: here, .. } if *here == event => Passage::Open,
                Step::Together { .. } | Step::Leave(_) => Passage::Absent,
                Step::If { condition, site, then, otherwise } => {
                    let taken = self.decide(*condition);
                    let (first, second) =
                        if taken == Some(false) { (otherwise, then) } else { (then, otherwise) };
                    match self.keeps_from(first, event) {
                        Passage::Absent => {
                            self.keeps_from(second, event).barred_if(taken.is_some(), *site)
                        }
                        found => found,
                    }
                }
                Step::Loop { header, site, body, .. } => {
                    let never = self.decide(*header) == Some(false);
                    self.keeps_from(body, event).barred_if(never, *site)
                }
            };
            if !matches!(found, Passage::Absent) {
                return found;
            }
        }
        Passage::Absent
    }

    /// The steps without arms that are not taken, and how they are left for certain.
    fn list(&mut self, steps: &[Step]) -> (Vec<Step>, Option<ExitKind>) {
        let mut kept = Vec::with_capacity(steps.len());
        for step in steps {
            let left = match step {
                Step::If { condition, site, then, otherwise } => {
                    if let Some(holds) = self.decide(*condition) {
                        let (inner, left) = self.list(if holds { then } else { otherwise });
                        kept.extend(inner);
                        left
                    } else {
                        let ((a, a_left), (b, b_left)) = (self.list(then), self.list(otherwise));
                        push_if(&mut kept, *condition, *site, a, b);
                        a_left.filter(|_| a_left == b_left)
                    }
                }
                Step::Loop { header, .. } if self.decide(*header) == Some(false) => None,
                Step::Loop { header, counted, site, body } => {
                    let (body, left) = self.list(body);
                    let (header, counted, site) = (*header, *counted, *site);
                    if first_event(&body).is_some() || leaves_program(&body) {
                        kept.push(Step::Loop { header, counted, site, body: body.into() });
                    }
                    left.filter(|kind| *kind == ExitKind::Error)
                }
                Step::Together { .. } => {
                    kept.push(step.clone());
                    None
                }
                Step::Leave(kind) => {
                    kept.push(step.clone());
                    Some(*kind)
                }
            };
            if left.is_some() {
                return (kept, left);
            }
        }
        (kept, None)
    }
}

impl Program<'_> {
    /// The runs in ways in which every condition is settled that a rank decides, too. None of
    /// them where there is no such condition, or too much to look at. Among the ways are some
    /// that lead to each of these places.
    pub(super) fn runs_by_way(
        &self,
        runs: &[Run],
        world: &[Sample],
        places: &[Divergence],
    ) -> Option<Vec<(Way, Vec<Run>)>> {
        let n_steps: usize = runs.iter().map(|run| 1 + n_steps(&run.full)).sum();
        let n_ways = (STEPS_MAX / n_steps).min(WAYS_MAX);
        if n_ways < WAYS_MIN || self.mixed_atoms(&Way::default(), runs, world).is_empty() {
            return None;
        }
        let mut open = vec![Open { way: Way::default(), budget: n_ways, rounds: 0 }];
        for place in places.iter().take(n_ways / WAYS_TO_ONE) {
            open.extend(self.way_to(place, runs, world));
        }
        let mut settled = Vec::new();
        while let Some(next) = open.pop() {
            let Some(runs) = self.runs_in(&next.way, runs, world) else { continue };
            let atoms = self.mixed_atoms(&next.way, &runs, world);
            if atoms.is_empty() || next.rounds >= ROUNDS_MAX {
                settled.push((next.way, runs));
            } else {
                open.extend(self.settle(&next, &atoms));
            }
        }
        Some(settled)
    }

    /// A way in which a rank comes to the place.
    fn way_to(&self, place: &Divergence, runs: &[Run], world: &[Sample]) -> Option<Open> {
        let index = world.iter().position(|&sample| sample == place.does)?;
        let mut path = Vec::new();
        if !find(&runs[index].steps, place.event, &mut path) {
            return None;
        }
        let mut way = Way::default();
        for (condition, holds) in path {
            self.lead(&mut way, condition, holds, world[index]);
        }
        Some(Open { way, budget: WAYS_TO_ONE, rounds: 0 })
    }

    /// What keeps a rank from a place in that way, if it comes there in another.
    pub(super) fn keeps_from(
        &self,
        event: EventId,
        way: &Way,
        run: &Run,
        sample: Sample,
    ) -> Option<Site> {
        let decided = FxHashMap::default();
        let mut settling = Settling { program: self, sample, way, decided };
        match settling.keeps_from(&run.steps, event) {
            Passage::Barred(by) => Some(by),
            Passage::Open | Passage::Absent => None,
        }
    }

    /// Settles what makes a condition hold, or not.
    fn lead(&self, way: &mut Way, condition: Term, holds: bool, sample: Sample) {
        let terms = self.terms();
        let known = |term: Term| terms.evaluate(term, sample);
        if terms.is_huge(condition) || way.decides(terms, condition, &known).is_some() {
            return;
        }
        match terms.kind(condition) {
            TermKind::Not(inner) => self.lead(way, *inner, !holds, sample),
            TermKind::And(parts) if holds => {
                parts.iter().for_each(|&part| self.lead(way, part, true, sample));
            }
            TermKind::Or(parts) if !holds => {
                parts.iter().for_each(|&part| self.lead(way, part, false, sample));
            }
            TermKind::And(parts) | TermKind::Or(parts) => {
                let open = parts.iter().find(|&&part| way.decides(terms, part, &known).is_none());
                if let Some(&part) = open {
                    self.lead(way, part, holds, sample);
                }
            }
            TermKind::Happened(_) => {}
            _ if self.parts_ranks(condition) => {}
            _ => {
                way.insert(terms, condition, holds);
            }
        }
    }

    /// None where a rank ends by an error, and the job with it.
    fn runs_in(&self, way: &Way, runs: &[Run], world: &[Sample]) -> Option<Vec<Run>> {
        let run_in = |(run, &sample): (&Run, &Sample)| {
            let mut settling =
                Settling { program: self, sample, way, decided: FxHashMap::default() };
            let (steps, left) = settling.list(&run.full);
            (left != Some(ExitKind::Error)).then(|| run.with_steps(steps))
        };
        runs.iter().zip(world).map(run_in).collect()
    }

    /// The way with these settled, too: in all ways that are possible, or in some that are drawn.
    fn settle(&self, open: &Open, atoms: &[Term]) -> Vec<Open> {
        let atoms = &atoms[..atoms.len().min(ATOMS_MAX)];
        let n_all = u32::try_from(atoms.len()).ok().and_then(|n| 1_usize.checked_shl(n));
        let n_each = n_all.map_or(0, |n_all| open.budget / n_all);
        // Of more, those where all hold or none does, and some between.
        let n_tried = if n_each > 0 { n_all.unwrap_or(0) } else { 4 * open.budget };
        let mut settled = Vec::new();
        for index in 0..n_tried {
            let mut way = open.way.clone();
            let known = way.holds.len();
            let is_possible = atoms.iter().enumerate().all(|(position, &atom)| {
                let holds = match index {
                    _ if n_each > 0 => index & 1 << position != 0,
                    0 | 1 => index == 1,
                    _ => is_drawn(index, known + position),
                };
                way.insert(self.terms(), atom, holds)
            });
            if is_possible && settled.len() < open.budget {
                settled.push(Open { way, budget: n_each.max(1), rounds: open.rounds + 1 });
            }
        }
        settled
    }

    /// The unknown parts of conditions that a rank decides, too: itself, or by its being asked
    /// on some ranks only.
    fn mixed_atoms(&self, way: &Way, runs: &[Run], world: &[Sample]) -> Vec<Term> {
        let mut asked: Vec<FxHashSet<Term>> = Vec::new();
        let mut in_order = Vec::new();
        for run in runs {
            let mut of_run = FxHashSet::default();
            collect_conditions(&run.steps, &mut |condition| {
                if of_run.insert(condition) {
                    in_order.push(condition);
                }
            });
            asked.push(of_run);
        }
        let is_mixed = |condition: &Term| {
            asked.iter().any(|of_run| !of_run.contains(condition)) || self.parts_ranks(*condition)
        };
        let mut seen = FxHashSet::default();
        let mut atoms = Vec::new();
        in_order.retain(|&condition| seen.insert(condition) && is_mixed(&condition));
        for condition in in_order {
            self.collect_atoms_of(condition, world[0], way, &mut atoms);
        }
        atoms
    }

    fn collect_atoms_of(&self, condition: Term, sample: Sample, way: &Way, atoms: &mut Vec<Term>) {
        let terms = self.terms();
        if terms.is_huge(condition) {
            return;
        }
        match terms.kind(condition) {
            TermKind::And(parts) | TermKind::Or(parts) => {
                parts.iter().for_each(|&part| self.collect_atoms_of(part, sample, way, atoms));
            }
            TermKind::Not(inner) => self.collect_atoms_of(*inner, sample, way, atoms),
            TermKind::Happened(_) => {}
            _ if atoms.contains(&condition) || self.parts_ranks(condition) => {}
            _ => {
                let known = |term: Term| terms.evaluate(term, sample);
                if way.decides(terms, condition, &known).is_none() {
                    atoms.push(condition);
                }
            }
        }
    }
}

fn n_steps(steps: &[Step]) -> usize {
    let of = |step: &Step| match step {
        Step::If { then, otherwise, .. } => n_steps(then) + n_steps(otherwise),
        Step::Loop { body, .. } => n_steps(body),
        Step::Together { .. } | Step::Leave(_) => 0,
    };
    steps.iter().map(|step| 1 + of(step)).sum()
}

/// The conditions that lead to an event.
fn find(steps: &[Step], event: EventId, path: &mut Vec<(Term, bool)>) -> bool {
    steps.iter().any(|step| match step {
        Step::Together { event: here, .. } => *here == event,
        Step::If { condition, then, otherwise, .. } => {
            [(then, true), (otherwise, false)].into_iter().any(|(arm, holds)| {
                path.push((*condition, holds));
                let found = find(arm, event, path);
                if !found {
                    path.pop();
                }
                found
            })
        }
        Step::Loop { header, body, .. } => {
            path.push((*header, true));
            let found = find(body, event, path);
            if !found {
                path.pop();
            }
            found
        }
        Step::Leave(_) => false,
    })
}

fn collect_conditions(steps: &[Step], into: &mut dyn FnMut(Term)) {
    for step in steps {
        match step {
            Step::If { condition, then, otherwise, .. } => {
                into(*condition);
                collect_conditions(then, into);
                collect_conditions(otherwise, into);
            }
            Step::Loop { header, body, .. } => {
                into(*header);
                collect_conditions(body, into);
            }
            Step::Together { .. } | Step::Leave(_) => {}
        }
    }
}

/// One of two answers, the same in every run of the linter.
fn is_drawn(index: usize, position: usize) -> bool {
    let mut hasher = rustc_hash::FxHasher::default();
    (index, position).hash(&mut hasher);
    hasher.finish() >> 40 & 1 != 0
}
