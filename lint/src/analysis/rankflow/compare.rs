//! Compares the runs of two ranks step by step, where something in them is unknown but the
//! same on all ranks.

#![expect(
    clippy::many_single_char_names,
    reason = "`a` and `b` are two runs, `x` and `y` a step of each: pairs are what this is about"
)]

use super::ahead::{Behind, ahead};
use super::steps::{first_event, same, same_steps};
use super::{Divergence, Run, Step, Steps, events_of};
use crate::analysis::{EventId, Program, Sample, Taint};
use crate::model::Site;

/// Tells where the runs of two ranks part.
pub(super) fn runs(
    program: &Program<'_>,
    a: &Run,
    b: &Run,
    samples: (Sample, Sample),
    found: &mut Vec<Divergence>,
) {
    let common = bit(samples.0) | bit(samples.1);
    let (a, b) = (common_steps(&a.steps, common), common_steps(&b.steps, common));
    Comparison { program, samples, found }.compare(Place::top(&a), Place::top(&b));
}

fn bit(sample: Sample) -> u64 {
    1_u64.checked_shl(sample.rank as u32).unwrap_or(0)
}

/// The steps in groups that both ranks are members of.
fn common_steps(steps: &Steps, ranks: u64) -> Steps {
    let is_common = |members: u64| members & ranks == ranks;
    if all_common(steps, &is_common) {
        return steps.clone();
    }
    let kept = steps.iter().filter_map(|step| match step {
        Step::Together { key, .. } => is_common(key.members).then(|| step.clone()),
        Step::If { condition, site, then, otherwise } => {
            let (then, otherwise) = (common_steps(then, ranks), common_steps(otherwise, ranks));
            let (condition, site) = (*condition, *site);
            let differ = !same_steps(&then, &otherwise);
            differ.then_some(Step::If { condition, site, then, otherwise })
        }
        Step::Loop { header, counted, site, body } => {
            let body = common_steps(body, ranks);
            let (header, counted, site) = (*header, *counted, *site);
            (!body.is_empty()).then_some(Step::Loop { header, counted, site, body })
        }
        Step::Leave(_) => Some(step.clone()),
    });
    kept.collect()
}

fn all_common(steps: &[Step], is_common: &dyn Fn(u64) -> bool) -> bool {
    steps.iter().all(|step| match step {
        Step::Together { key, .. } => is_common(key.members),
        Step::If { then, otherwise, .. } => {
            all_common(then, is_common) && all_common(otherwise, is_common)
        }
        Step::Loop { body, .. } => all_common(body, is_common),
        Step::Leave(_) => true,
    })
}

/// A list of one rank, and where it stands.
#[derive(Clone, Copy)]
struct Place<'s> {
    steps: &'s [Step],
    is_round: bool,
    outer: Option<&'s Behind<'s>>,
}

impl<'s> Place<'s> {
    fn top(steps: &'s [Step]) -> Self {
        Self { steps, is_round: false, outer: None }
    }

    fn behind(self, index: usize) -> Behind<'s> {
        let round = self.is_round.then_some(self.steps);
        Behind { rest: &self.steps[index + 1..], round, outer: self.outer }
    }

    /// What is ahead of a rank that is about to do this step.
    fn ahead(self, index: usize) -> Vec<super::Ahead> {
        if let Some(step) = self.steps.get(index) {
            return ahead(std::slice::from_ref(step), Some(&self.behind(index)));
        }
        let round = self.is_round.then_some(self.steps);
        ahead(&[], Some(&Behind { rest: &[], round, outer: self.outer }))
    }
}

struct Comparison<'c, 'p> {
    program: &'c Program<'p>,
    samples: (Sample, Sample),
    found: &'c mut Vec<Divergence>,
}

impl Comparison<'_, '_> {
    fn compare(&mut self, a: Place<'_>, b: Place<'_>) {
        let (stay_a, stay_b) = (self.staying(a.steps), self.staying(b.steps));
        let (a, b) = (Place { steps: &stay_a, ..a }, Place { steps: &stay_b, ..b });
        let (all_a, all_b) = (a.steps, b.steps);
        let start = all_a.iter().zip(all_b).take_while(|(x, y)| same(x, y)).count();
        let (rest_a, rest_b) = (&all_a[start..], &all_b[start..]);
        let pairs = rest_a.iter().rev().zip(rest_b.iter().rev());
        let end = pairs.take_while(|(x, y)| same(x, y)).count();
        let (end_a, end_b) = (all_a.len() - end, all_b.len() - end);
        let mut at = (start, start);
        for pair in aligned(&all_a[start..end_a], &all_b[start..end_b]) {
            match pair {
                (Some(x), Some(y)) => {
                    if !same(x, y) {
                        self.inside((x, a.behind(at.0)), (y, b.behind(at.1)));
                    }
                }
                (Some(x), None) => {
                    let instead = first_event(&all_b[start..end_b]);
                    self.push(x, instead, (a.ahead(at.0), b.ahead(at.1)), false);
                }
                (None, Some(y)) => {
                    let instead = first_event(&all_a[start..end_a]);
                    self.push(y, instead, (b.ahead(at.1), a.ahead(at.0)), true);
                }
                (None, None) => {}
            }
            at.0 += usize::from(pair.0.is_some());
            at.1 += usize::from(pair.1.is_some());
        }
    }

    /// The steps of those who stay, where a test of the rank that is not settled makes others
    /// leave: all that follows stands in the other arm. Who they are is asked of the condition;
    /// what follows is no new difference.
    fn staying(&self, steps: &[Step]) -> Vec<Step> {
        let Some((last, before)) = steps.split_last() else { return Vec::new() };
        let mut kept = before.to_vec();
        match last {
            Step::If { condition, then, otherwise, .. }
                if (then.is_empty() || otherwise.is_empty())
                    && self.program.parts_ranks(*condition) =>
            {
                kept.extend(self.staying(if then.is_empty() { otherwise } else { then }));
            }
            _ => kept.push(last.clone()),
        }
        kept
    }

    /// Two steps of one place with other contents: the difference is inside.
    fn inside(&mut self, (x, behind_x): (&Step, Behind<'_>), (y, behind_y): (&Step, Behind<'_>)) {
        match (x, y) {
            (Step::If { then, otherwise, .. }, Step::If { then: t, otherwise: o, .. }) => {
                let place_x = |steps| Place { steps, is_round: false, outer: Some(&behind_x) };
                let place_y = |steps| Place { steps, is_round: false, outer: Some(&behind_y) };
                self.compare(place_x(then), place_y(t));
                self.compare(place_x(otherwise), place_y(o));
            }
            (Step::Loop { body, .. }, Step::Loop { body: other, .. }) => {
                let a = Place { steps: body, is_round: true, outer: Some(&behind_x) };
                let b = Place { steps: other, is_round: true, outer: Some(&behind_y) };
                self.compare(a, b);
            }
            _ => {}
        }
    }

    /// The first thing that a step does, and what it does under further rank tests.
    fn push(
        &mut self,
        step: &Step,
        instead: Option<EventId>,
        (mine, theirs): (Vec<super::Ahead>, Vec<super::Ahead>),
        swapped: bool,
    ) {
        let mut events = Vec::new();
        events_of(step, &mut events);
        let mut told: Vec<Option<Site>> = Vec::new();
        for event in events {
            let test = self.rank_test_around(event);
            if told.is_empty() || test.is_some() && !told.contains(&test) {
                told.push(test);
                self.push_event(event, instead, (mine.clone(), theirs.clone()), swapped);
            }
        }
    }

    fn rank_test_around(&self, event: EventId) -> Option<Site> {
        let mut conditions = self.program.conditions(self.program.event(event).path);
        let of_rank = |condition| self.program.terms().taint(condition).has(Taint::RANK);
        conditions.find(|node| of_rank(node.condition)).map(|node| node.site)
    }

    fn push_event(
        &mut self,
        event: EventId,
        instead: Option<EventId>,
        (trace, other_trace): (Vec<super::Ahead>, Vec<super::Ahead>),
        swapped: bool,
    ) {
        let (does, does_not) =
            if swapped { (self.samples.1, self.samples.0) } else { self.samples };
        if self.found.iter().any(|f| f.event == event || f.instead == Some(event)) {
            return;
        }
        let undecided = None;
        let found = Divergence { event, instead, does, does_not, trace, other_trace, undecided };
        self.found.push(found);
    }
}

/// Pairs of steps: equal ones paired as far as order allows, ifs and loops of one place too.
fn aligned<'s>(a: &'s [Step], b: &'s [Step]) -> Vec<(Option<&'s Step>, Option<&'s Step>)> {
    let likes = |steps: &[Step]| steps.iter().map(Step::likeness).collect::<Vec<u64>>();
    let (like_a, like_b) = (likes(a), likes(b));
    let mut pairs = Vec::new();
    let (mut i, mut j) = (0, 0);
    while i < a.len() || j < b.len() {
        let (x, y) = (like_a.get(i), like_b.get(j));
        let takes_a = match (x, y) {
            (Some(x), Some(y)) if x == y => {
                pairs.push((Some(&a[i]), Some(&b[j])));
                i += 1;
                j += 1;
                continue;
            }
            (Some(x), Some(y)) => {
                let in_b = like_b[j..].iter().position(|other| other == x);
                let in_a = like_a[i..].iter().position(|other| other == y);
                in_b.is_none_or(|n| in_a.is_some_and(|m| m < n))
            }
            (one, _) => one.is_some(),
        };
        if takes_a {
            pairs.push((Some(&a[i]), None));
            i += 1;
        } else {
            pairs.push((None, Some(&b[j])));
            j += 1;
        }
    }
    pairs
}
