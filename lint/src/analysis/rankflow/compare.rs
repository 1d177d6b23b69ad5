//! Compares the runs of two ranks step by step, where something in them is unknown but the
//! same on all ranks.

#![expect(
    clippy::many_single_char_names,
    reason = "`a` and `b` are two runs, `x` and `y` a step of each: pairs are what this is about"
)]

use std::rc::Rc;

use super::{Divergence, Run, Step, Steps, events_of, first_event_of, first_events};
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
    Comparison { program, samples, found }.compare(&a, &b);
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

struct Comparison<'c, 'p> {
    program: &'c Program<'p>,
    samples: (Sample, Sample),
    found: &'c mut Vec<Divergence>,
}

impl Comparison<'_, '_> {
    fn compare(&mut self, a: &[Step], b: &[Step]) {
        let start = a.iter().zip(b).take_while(|(x, y)| same(x, y)).count();
        let (a, b) = (&a[start..], &b[start..]);
        let end = a.iter().rev().zip(b.iter().rev()).take_while(|(x, y)| same(x, y)).count();
        let (rest_a, rest_b) = (&a[..a.len() - end], &b[..b.len() - end]);
        match (rest_a, rest_b) {
            ([], []) => {}
            (
                [Step::If { condition: x, then, otherwise, .. }],
                [Step::If { condition: y, then: then_b, otherwise: otherwise_b, .. }],
            ) if x == y => {
                self.compare(then, then_b);
                self.compare(otherwise, otherwise_b);
            }
            (
                [Step::Loop { site: x, body, header: h, .. }],
                [Step::Loop { site: y, body: body_b, header: g, .. }],
            ) if x == y && h == g => {
                self.compare(body, body_b);
            }
            _ => self.tell_difference(rest_a, rest_b, (a, b)),
        }
    }

    fn tell_difference(&mut self, a: &[Step], b: &[Step], (all_a, all_b): (&[Step], &[Step])) {
        for pair in aligned(a, b) {
            match pair {
                (Some(x), Some(y)) if !same(x, y) => {
                    self.compare(std::slice::from_ref(x), std::slice::from_ref(y));
                }
                (Some(x), None) => {
                    let instead = b.iter().find_map(first_event_of);
                    self.push(x, instead, (all_a, all_b), false);
                }
                (None, Some(y)) => {
                    let instead = a.iter().find_map(first_event_of);
                    self.push(y, instead, (all_b, all_a), true);
                }
                _ => {}
            }
        }
    }

    /// The first thing that a step does, and what it does under further rank tests.
    fn push(
        &mut self,
        step: &Step,
        instead: Option<EventId>,
        (mine, theirs): (&[Step], &[Step]),
        swapped: bool,
    ) {
        let mut events = Vec::new();
        events_of(step, &mut events);
        let mut told: Vec<Option<Site>> = Vec::new();
        for event in events {
            let test = self.rank_test_around(event);
            if told.is_empty() || test.is_some() && !told.contains(&test) {
                told.push(test);
                self.push_event(event, instead, (mine, theirs), swapped);
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
        (mine, theirs): (&[Step], &[Step]),
        swapped: bool,
    ) {
        let (does, does_not) =
            if swapped { (self.samples.1, self.samples.0) } else { self.samples };
        if self.found.iter().any(|f| f.event == event || f.instead == Some(event)) {
            return;
        }
        self.found.push(Divergence {
            event,
            instead,
            does,
            does_not,
            trace: first_events(mine),
            other_trace: first_events(theirs),
            undecided: None,
        });
    }
}

/// Pairs of steps: equal ones paired as far as order allows, ifs and loops of one place too.
fn aligned<'s>(a: &'s [Step], b: &'s [Step]) -> Vec<(Option<&'s Step>, Option<&'s Step>)> {
    let mut pairs = Vec::new();
    let (mut i, mut j) = (0, 0);
    while i < a.len() || j < b.len() {
        match (a.get(i), b.get(j)) {
            (Some(x), Some(y)) if alike(x, y) => {
                pairs.push((Some(x), Some(y)));
                i += 1;
                j += 1;
            }
            (Some(x), Some(y)) => {
                let in_b = b[j..].iter().position(|s| alike(s, x));
                let in_a = a[i..].iter().position(|s| alike(s, y));
                if in_b.is_some_and(|n| in_a.is_none_or(|m| n <= m)) {
                    pairs.push((None, Some(y)));
                    j += 1;
                } else {
                    pairs.push((Some(x), None));
                    i += 1;
                }
            }
            (Some(x), None) => {
                pairs.push((Some(x), None));
                i += 1;
            }
            (None, Some(y)) => {
                pairs.push((None, Some(y)));
                j += 1;
            }
            (None, None) => break,
        }
    }
    pairs
}

/// The same step, or the same place with other contents.
fn alike(a: &Step, b: &Step) -> bool {
    match (a, b) {
        (Step::If { condition: x, .. }, Step::If { condition: y, .. }) => x == y,
        (Step::Loop { site: x, header: h, .. }, Step::Loop { site: y, header: g, .. }) => {
            x == y && h == g
        }
        _ => same(a, b),
    }
}

fn same(a: &Step, b: &Step) -> bool {
    match (a, b) {
        (Step::Together { key: x, .. }, Step::Together { key: y, .. }) => x == y,
        (Step::Leave(x), Step::Leave(y)) => x == y,
        (
            Step::If { condition: x, then: t, otherwise: o, .. },
            Step::If { condition: y, then: u, otherwise: p, .. },
        ) => x == y && same_list(t, u) && same_list(o, p),
        (
            Step::Loop { header: x, counted: a, body, .. },
            Step::Loop { header: y, counted: b, body: other, .. },
        ) => {
            // That two loops over unknown things run equally often is for the user to say.
            (x == y || !a && !b) && same_list(body, other)
        }
        _ => false,
    }
}

fn same_list(a: &Steps, b: &Steps) -> bool {
    Rc::ptr_eq(a, b) || same_steps(a, b)
}

pub(super) fn same_steps(a: &[Step], b: &[Step]) -> bool {
    a.len() == b.len() && a.iter().zip(b).all(|(x, y)| same(x, y))
}
