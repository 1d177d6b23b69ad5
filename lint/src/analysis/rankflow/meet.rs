//! Plain sequences of collectives, one per rank, played against each other: where all steps
//! are known, this tells exactly whether the ranks meet.

use super::ways::Way;
use super::{Ahead, Divergence, Op, Run, Step};
use crate::analysis::{EventId, ExitKind, Program, Sample, Term, TermKind};

/// Unknown conditions whose ways to turn out are all tried.
const ATOMS_MAX: usize = 5;

/// Places told of one world.
const TOLD_MAX: usize = 64;

/// What one rank does, in order.
pub(super) struct Line {
    steps: Vec<(Op, EventId)>,
    /// Then it ends by an error, and the job with it.
    errs: bool,
}

impl Program<'_> {
    /// The runs as plain sequences, for each way in which conditions may turn out that are
    /// unknown but the same on all ranks; none where something else is unknown.
    pub(super) fn lines(&self, runs: &[Run], world: &[Sample]) -> Option<Vec<Vec<Line>>> {
        let mut atoms = Vec::new();
        for (run, &sample) in runs.iter().zip(world) {
            self.collect_atoms(&run.full, sample, &mut atoms)?;
        }
        let ways = Way::all(self.terms(), &atoms);
        ways.map(|way| {
            let lines = runs.iter().zip(world).map(|(run, &sample)| {
                let mut line = Line { steps: Vec::new(), errs: false };
                let ended = self.play_line(&run.full, sample, &way, &mut line)?;
                line.errs |= run.errs && !ended;
                Some(line)
            });
            lines.collect()
        })
        .collect()
    }

    /// The unknown parts of all conditions. None where there are too many of them, or where a
    /// loop or the rank itself is unknown.
    fn collect_atoms(&self, steps: &[Step], sample: Sample, atoms: &mut Vec<Term>) -> Option<()> {
        for step in steps {
            match step {
                Step::If { condition, then, otherwise, .. } => {
                    self.atoms_of(*condition, sample, atoms)?;
                    self.collect_atoms(then, sample, atoms)?;
                    self.collect_atoms(otherwise, sample, atoms)?;
                }
                Step::Loop { .. } => return None,
                Step::Together { .. } | Step::Leave(_) => {}
            }
        }
        Some(())
    }

    fn atoms_of(&self, condition: Term, sample: Sample, atoms: &mut Vec<Term>) -> Option<()> {
        if self.terms().is_huge(condition) {
            return None;
        }
        match self.terms().kind(condition) {
            TermKind::And(parts) | TermKind::Or(parts) => {
                parts.iter().try_for_each(|&part| self.atoms_of(part, sample, atoms))
            }
            TermKind::Not(inner) => self.atoms_of(*inner, sample, atoms),
            _ if self.terms().evaluate(condition, sample).is_some() => Some(()),
            _ if self.parts_ranks(condition) => None,
            _ if atoms.contains(&condition) => Some(()),
            _ => {
                atoms.push(condition);
                (atoms.len() <= ATOMS_MAX).then_some(())
            }
        }
    }

    /// Adds what a rank does to its line; whether it left the program.
    fn play_line(
        &self,
        steps: &[Step],
        sample: Sample,
        way: &Way,
        line: &mut Line,
    ) -> Option<bool> {
        for step in steps {
            match step {
                Step::Together { key, event } => line.steps.push((*key, *event)),
                Step::If { condition, then, otherwise, .. } => {
                    let known = |term: Term| self.terms().evaluate(term, sample);
                    let holds = way.decides(self.terms(), *condition, &known)?;
                    let arm = if holds { then } else { otherwise };
                    if self.play_line(arm, sample, way, line)? {
                        return Some(true);
                    }
                }
                Step::Leave(kind) => {
                    line.errs |= *kind == ExitKind::Error;
                    return Some(true);
                }
                Step::Loop { .. } => return None,
            }
        }
        Some(false)
    }
}

/// Plays the sequences; tells where they do not meet. Collectives wait for all
/// members of their group, so that the order in which ranks are played does not matter.
pub(super) fn check(world: &[Sample], lines: &[Line], found: &mut Vec<Divergence>) {
    let mut at = vec![0; lines.len()];
    for _ in 0..TOLD_MAX {
        let Some(stuck) = play(world, lines, &mut at) else { return };
        let does = tell(world, lines, &at, stuck, found);
        // As if that step were not there: what comes behind may be a fault of its own.
        at[does] += 1;
    }
}

/// Plays as far as it goes; a rank that waits, and one that it waits for in vain.
fn play(world: &[Sample], lines: &[Line], at: &mut [usize]) -> Option<(usize, usize)> {
    loop {
        if (0..lines.len()).any(|r| lines[r].errs && at[r] >= lines[r].steps.len()) {
            return None;
        }
        let mut moved = false;
        let mut stuck = None;
        for rank in 0..lines.len() {
            let Some((op, _)) = lines[rank].steps.get(at[rank]) else { continue };
            let members: Vec<usize> =
                (0..lines.len()).filter(|&r| is_member(world[r], *op)).collect();
            let here = |r: usize| lines[r].steps.get(at[r]).is_some_and(|(o, _)| o == op);
            match members.iter().find(|&&r| !here(r)) {
                None => {
                    for member in members {
                        at[member] += 1;
                    }
                    moved = true;
                }
                Some(&absent) => stuck = stuck.or(Some((rank, absent))),
            }
        }
        if !moved {
            return stuck;
        }
    }
}

fn is_member(sample: Sample, op: Op) -> bool {
    op.members & 1_u64.checked_shl(sample.rank as u32).unwrap_or(0) != 0
}

/// Tells one place; the rank whose step is left over there.
fn tell(
    world: &[Sample],
    lines: &[Line],
    at: &[usize],
    (waits, absent): (usize, usize),
    found: &mut Vec<Divergence>,
) -> usize {
    let rest = |rank: usize| &lines[rank].steps[at[rank].min(lines[rank].steps.len())..];
    // Of the two, the one that does what the other never does is at fault.
    let lacks = |a: usize, b: usize| {
        rest(a).first().is_some_and(|(op, _)| !rest(b).iter().any(|(other, _)| other == op))
    };
    let (does, does_not) = if !lacks(waits, absent) && lacks(absent, waits) {
        (absent, waits)
    } else {
        (waits, absent)
    };
    let Some((_, event)) = rest(does).first() else { return does };
    let instead = rest(does_not).first().map(|(_, event)| *event);
    let known = |f: &Divergence| f.event == *event || f.instead == Some(*event);
    if found.iter().any(known) {
        return does;
    }
    let shown = |rank: usize| {
        let events = rest(rank).iter().map(|(_, event)| Ahead::Does(*event));
        events.take(super::ahead::SHOWN_MAX).collect()
    };
    found.push(Divergence {
        event: *event,
        instead,
        does: world[does],
        does_not: world[does_not],
        trace: shown(does),
        other_trace: shown(does_not),
        undecided: None,
    });
    does
}
