//! What a rank does from some step on: what people are shown of its sequence.

use super::{Counted, Step, run::Run};
use crate::analysis::{EventId, ExitKind, Program, SAMPLES, Sample};
use crate::model::Site;

/// How many steps of a sequence are shown.
pub(super) const SHOWN_MAX: usize = 4;

/// One thing that a rank does next.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Ahead {
    Does(EventId),
    /// Leaves a loop, a function or the program.
    Leaves(ExitKind),
}

/// What follows a step of a list, from the inside out.
#[derive(Clone, Copy)]
pub(super) struct Behind<'s> {
    pub(super) rest: &'s [Step],
    /// The whole list, where it is the body of a loop.
    pub(super) round: Option<&'s [Step]>,
    pub(super) outer: Option<&'s Behind<'s>>,
}

/// The first few things of these steps and of what is behind them.
pub(super) fn ahead(first: &[Step], behind: Option<&Behind<'_>>) -> Vec<Ahead> {
    let mut told = Vec::new();
    let (mut list, mut inside, mut next) = (first, behind, behind);
    let mut round: Option<&[Step]> = None;
    while told.len() < SHOWN_MAX {
        match tell(list, &mut told) {
            Some(ExitKind::Break) => {
                let mut around = inside;
                while around.is_some_and(|b| b.round.is_none()) {
                    around = around.and_then(|b| b.outer);
                }
                next = around.and_then(|b| b.outer);
                round = None;
            }
            Some(_) => break,
            None => {}
        }
        if let Some(body) = round {
            tell(body, &mut told);
            break;
        }
        let Some(behind) = next else { break };
        (list, inside, next, round) = (behind.rest, next, behind.outer, behind.round);
    }
    told.truncate(SHOWN_MAX);
    told
}

/// Tells the steps of a list; how it is left early, if it is.
fn tell(steps: &[Step], told: &mut Vec<Ahead>) -> Option<ExitKind> {
    for step in steps {
        if told.len() >= SHOWN_MAX {
            return None;
        }
        match step {
            Step::Together { event, .. } => told.push(Ahead::Does(*event)),
            Step::If { then, otherwise, .. } => {
                tell(if then.first_event().is_some() { then } else { otherwise }, told);
            }
            Step::Loop { body, .. } => {
                tell(body, told);
            }
            Step::Leave(kind) => {
                told.push(Ahead::Leaves(*kind));
                return Some(*kind);
            }
        }
    }
    None
}

/// The same from the first event on that is such, wherever it stands.
fn from_event(
    (steps, is_round): (&[Step], bool),
    is_such: &dyn Fn(EventId) -> bool,
    outer: Option<&Behind<'_>>,
) -> Option<Vec<Ahead>> {
    steps.iter().enumerate().find_map(|(index, step)| {
        let round = is_round.then_some(steps);
        let behind = Behind { rest: &steps[index + 1..], round, outer };
        match step {
            Step::Together { event, .. } => {
                is_such(*event).then(|| ahead(std::slice::from_ref(step), Some(&behind)))
            }
            Step::If { then, otherwise, .. } => from_event((then, false), is_such, Some(&behind))
                .or_else(|| from_event((otherwise, false), is_such, Some(&behind))),
            Step::Loop { body, .. } => from_event((body, true), is_such, Some(&behind)),
            Step::Leave(_) => None,
        }
    })
}

/// What follows the loop at a place.
fn behind_loop(
    (steps, is_round): (&[Step], bool),
    wanted: Site,
    outer: Option<&Behind<'_>>,
) -> Option<Vec<Ahead>> {
    steps.iter().enumerate().find_map(|(index, step)| {
        let round = is_round.then_some(steps);
        let behind = Behind { rest: &steps[index + 1..], round, outer };
        match step {
            Step::Loop { site, .. } if *site == wanted => Some(ahead(&[], Some(&behind))),
            Step::Loop { body, .. } => behind_loop((body, true), wanted, Some(&behind)),
            Step::If { then, otherwise, .. } => behind_loop((then, false), wanted, Some(&behind))
                .or_else(|| behind_loop((otherwise, false), wanted, Some(&behind))),
            Step::Together { .. } | Step::Leave(_) => None,
        }
    })
}

impl Program<'_> {
    /// What a rank does that is through with the loop at this place.
    pub fn behind_loop(&self, site: Site) -> Vec<Ahead> {
        stacker::grow(super::STACK, || {
            let run = self.run_on(self.tree(), SAMPLES[1], Counted::Training);
            behind_loop((&run.steps, false), site, None).unwrap_or_default()
        })
    }

    /// What two ranks do from an event on that only the first of them comes to: collectives and
    /// forwards of wrappers.
    pub fn sequences(
        &self,
        event: EventId,
        (does, does_not): (Sample, Sample),
    ) -> (Vec<Ahead>, Vec<Ahead>) {
        stacker::grow(super::STACK, || {
            let run = |sample| self.run_on(self.tree(), sample, Counted::Forwards);
            let from = |run: &Run, wanted: EventId| {
                let site = self.event(wanted).site;
                from_event((&run.steps, false), &|event| self.event(event).site == site, None)
            };
            let mine = from(&run(does), event).unwrap_or_else(|| vec![Ahead::Does(event)]);
            let others = run(does_not);
            let theirs = mine[1..].iter().find_map(|step| match step {
                Ahead::Does(next) => from(&others, *next),
                Ahead::Leaves(_) => None,
            });
            (mine, theirs.unwrap_or_default())
        })
    }
}
