//! Rank flow: the sequence of collectives that each class of ranks runs, and where two
//! sequences part. In the spirit of PARCOACH, with classes of ranks instead of branches.
//!
//! The run's tree is specialised to each sample rank: arms it cannot take are dropped, callees
//! are spliced in, paths that end the process by an error are left out, and what follows an
//! arm that leaves is folded into the other arm.

#![expect(
    clippy::many_single_char_names,
    reason = "`a` and `b` are two runs, `x` and `y` a step of each: pairs are what this is about"
)]

use std::rc::Rc;

use super::facts::Wrapper;
use super::{
    Call, EventId, EventKind, ExitKind, Header, Node, Program, SAMPLES, Sample, Term, TermKind, Via,
};
use crate::model::{Name, Site};
use crate::table::{CollectiveKind, Flag, Role};

/// Something that several ranks must do together.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
enum Key {
    Named(Name),
    Construct,
    /// Forward (and backward) of a wrapper, with gradients.
    Train(super::ObjectId),
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
    /// Leaves the loop around it (`Break`) or the program (`Stop`).
    Leave(ExitKind),
}

pub type Steps = Rc<[Step]>;

/// What is compared of a collective: equal ones pair.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Op(Key);

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
    /// These, and training forwards of a wrapper.
    Training,
}

const SPLICED_MAX: usize = 4096;

struct Flow<'a, 'p> {
    program: &'a Program<'p>,
    sample: Sample,
    counted: Counted,
    budget: usize,
}

/// How control leaves a list of nodes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Ends {
    Falls,
    Leaves,
    /// By an error: the path is not compared.
    Error,
}

impl Program<'_> {
    /// The specialised run of a tree on one rank.
    pub fn steps(&self, tree: &[Node], sample: Sample, counted: Counted) -> Steps {
        let mut flow = Flow { program: self, sample, counted, budget: 200_000 };
        let (steps, _) = flow.list(tree);
        steps.into()
    }

    /// Where classes of ranks part ways, in the entry's run and in code nobody calls.
    pub fn divergences(&self) -> Vec<Divergence> {
        let mut found = Vec::new();
        let orphans = self.orphan_trees().iter().map(|(_, tree)| tree);
        for tree in std::iter::once(self.tree()).chain(orphans) {
            let runs = SAMPLES.map(|s| self.steps(tree, s, Counted::Collectives));
            for (a, b) in [(0, 1), (0, 2), (1, 2), (1, 3), (0, 3)] {
                self.compare(&runs[a], &runs[b], (SAMPLES[a], SAMPLES[b]), &mut found);
            }
        }
        found
    }

    /// Conditions on a rank's own data that decide what ranks do together.
    pub fn local_decisions(&self) -> Vec<LocalDecision> {
        let mut found = Vec::new();
        let orphans = self.orphan_trees().iter().map(|(_, tree)| tree);
        for tree in std::iter::once(self.tree()).chain(orphans) {
            for sample in [SAMPLES[0], SAMPLES[1]] {
                let steps = self.steps(tree, sample, Counted::Training);
                self.decisions(&steps, &mut found);
            }
        }
        found
    }

    fn decisions(&self, steps: &[Step], found: &mut Vec<LocalDecision>) {
        for step in steps {
            match step {
                Step::If { condition, site, then, otherwise } => {
                    let taint = self.terms().taint(*condition);
                    if taint.has(super::Taint::LOCAL) && !found.iter().any(|f| f.site == *site) {
                        let event = first_event(then).or_else(|| first_event(otherwise));
                        found.push(LocalDecision { condition: *condition, site: *site, event });
                    }
                    self.decisions(then, found);
                    self.decisions(otherwise, found);
                }
                Step::Loop { header, site, body, .. } => {
                    let decides = matches!(self.terms().kind(*header), TermKind::Happened(_));
                    if !decides
                        && self.terms().taint(*header).has(super::Taint::LOCAL)
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

    fn compare(
        &self,
        a: &[Step],
        b: &[Step],
        samples: (Sample, Sample),
        found: &mut Vec<Divergence>,
    ) {
        let start = a.iter().zip(b).take_while(|(x, y)| same(x, y)).count();
        let (a, b) = (&a[start..], &b[start..]);
        let end = a.iter().rev().zip(b.iter().rev()).take_while(|(x, y)| same(x, y)).count();
        let (a, b) = (&a[..a.len() - end], &b[..b.len() - end]);
        match (a, b) {
            ([], []) => {}
            (
                [Step::If { condition: x, then, otherwise, .. }],
                [Step::If { condition: y, then: then_b, otherwise: otherwise_b, .. }],
            ) if x == y => {
                self.compare(then, then_b, samples, found);
                self.compare(otherwise, otherwise_b, samples, found);
            }
            (
                [Step::Loop { site: x, body, header: h, .. }],
                [Step::Loop { site: y, body: body_b, header: g, .. }],
            ) if x == y && h == g => {
                self.compare(body, body_b, samples, found);
            }
            _ => self.tell_difference(a, b, samples, found),
        }
    }

    fn tell_difference(
        &self,
        a: &[Step],
        b: &[Step],
        samples: (Sample, Sample),
        found: &mut Vec<Divergence>,
    ) {
        let pairs = aligned(a, b);
        for pair in pairs {
            match pair {
                (Some(x), Some(y)) => {
                    self.compare(std::slice::from_ref(x), std::slice::from_ref(y), samples, found);
                }
                (Some(x), None) => {
                    let instead = b.iter().find_map(first_event_of);
                    self.push_parted(found, x, instead, samples);
                }
                (None, Some(y)) => {
                    let instead = a.iter().find_map(first_event_of);
                    self.push_parted(found, y, instead, (samples.1, samples.0));
                }
                (None, None) => {}
            }
        }
    }

    /// The first thing that a step does, and what it does under further rank tests.
    fn push_parted(
        &self,
        found: &mut Vec<Divergence>,
        step: &Step,
        instead: Option<EventId>,
        samples: (Sample, Sample),
    ) {
        let mut events = Vec::new();
        events_of(step, &mut events);
        let test = |event: EventId| {
            let mut nodes = self.conditions(self.event(event).path);
            nodes.find(|n| self.terms().taint(n.condition).has(super::Taint::RANK)).map(|n| n.site)
        };
        let mut told: Vec<Option<Site>> = Vec::new();
        for event in events {
            let site = test(event);
            if told.is_empty() || site.is_some() && !told.contains(&site) {
                told.push(site);
                push(found, Some(event), instead, samples);
            }
        }
    }
}

fn push(
    found: &mut Vec<Divergence>,
    event: Option<EventId>,
    instead: Option<EventId>,
    (does, does_not): (Sample, Sample),
) {
    let Some(event) = event else { return };
    if !found.iter().any(|f| f.event == event || f.instead == Some(event)) {
        found.push(Divergence { event, instead, does, does_not });
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
        (Step::Loop { site: x, .. }, Step::Loop { site: y, .. }) => x == y,
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
    Rc::ptr_eq(a, b) || a.len() == b.len() && a.iter().zip(b.iter()).all(|(x, y)| same(x, y))
}

fn first_event(steps: &[Step]) -> Option<EventId> {
    steps.iter().find_map(first_event_of)
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

fn first_event_of(step: &Step) -> Option<EventId> {
    match step {
        Step::Together { event, .. } => Some(*event),
        Step::If { then, otherwise, .. } => first_event(then).or_else(|| first_event(otherwise)),
        Step::Loop { body, .. } => first_event(body),
        Step::Leave(_) => None,
    }
}

impl<'p> Flow<'_, 'p> {
    fn list(&mut self, nodes: &[Node]) -> (Vec<Step>, Ends) {
        let mut steps = Vec::new();
        for (index, node) in nodes.iter().enumerate() {
            if self.budget == 0 {
                return (steps, Ends::Falls);
            }
            self.budget -= 1;
            let rest = &nodes[index + 1..];
            let ends = match node {
                Node::Branch { condition, site, then, otherwise } => {
                    match self.branch(*condition, *site, (then, otherwise), rest, &mut steps) {
                        Some(ends) => return (steps, ends),
                        None => continue,
                    }
                }
                _ => self.node(node, &mut steps),
            };
            match ends {
                Ends::Falls => {}
                Ends::Leaves | Ends::Error => return (steps, ends),
            }
        }
        (steps, Ends::Falls)
    }

    fn node(&mut self, node: &Node, steps: &mut Vec<Step>) -> Ends {
        match node {
            Node::Event(event) => {
                if let Some(key) = self.op(*event) {
                    steps.push(Step::Together { key, event: *event });
                }
                Ends::Falls
            }
            Node::Call { body, .. } => {
                let (inner, ends) = self.list(body);
                if steps.len() + inner.len() <= SPLICED_MAX {
                    steps.extend(inner);
                }
                // A return ends the callee alone.
                let stops = matches!(steps.last(), Some(Step::Leave(ExitKind::Stop)));
                match ends {
                    Ends::Error => Ends::Error,
                    Ends::Leaves if stops => Ends::Leaves,
                    _ => Ends::Falls,
                }
            }
            Node::Loop { header, site, body } => {
                let (inner, _) = self.list(body);
                if first_event(&inner).is_some() {
                    let header = self.header(header, *site);
                    let place = TermKind::Happened(*site);
                    let counted = *self.program.terms().kind(header) != place;
                    steps.push(Step::Loop { header, counted, site: *site, body: inner.into() });
                }
                Ends::Falls
            }
            Node::Try { body, .. } => {
                let (inner, ends) = self.list(body);
                steps.extend(inner);
                if ends == Ends::Error { Ends::Falls } else { ends }
            }
            Node::Exit { kind, .. } => {
                if matches!(kind, ExitKind::Break | ExitKind::Stop) {
                    steps.push(Step::Leave(*kind));
                }
                if *kind == ExitKind::Error { Ends::Error } else { Ends::Leaves }
            }
            Node::Branch { .. } => Ends::Falls,
        }
    }

    /// The arm that this rank takes; where that is unknown, both, with what follows folded in.
    fn branch(
        &mut self,
        condition: Term,
        site: Site,
        (then, otherwise): (&[Node], &[Node]),
        rest: &[Node],
        steps: &mut Vec<Step>,
    ) -> Option<Ends> {
        let known = self.program.terms().evaluate(condition, self.sample);
        if let Some(value) = known {
            let taken = if super::term::truth(value) { then } else { otherwise };
            let (inner, ends) = self.list(taken);
            steps.extend(inner);
            return match ends {
                Ends::Falls => None,
                _ => Some(ends),
            };
        }
        let (mut a, mut a_ends) = self.list(then);
        let (mut b, mut b_ends) = self.list(otherwise);
        match (a_ends, b_ends) {
            (Ends::Error, Ends::Error) => return Some(Ends::Error),
            (Ends::Error, ends) => return only(b, ends, steps),
            (ends, Ends::Error) => return only(a, ends, steps),
            (Ends::Falls, Ends::Falls) => {
                push_if(steps, condition, site, a, b);
                return None;
            }
            _ => {}
        }
        // What follows belongs to the arm that goes on.
        let (more, more_ends) = self.list(rest);
        if a_ends != Ends::Leaves {
            a.extend(more.iter().cloned());
            a_ends = more_ends;
        }
        if b_ends != Ends::Leaves {
            b.extend(more);
            b_ends = more_ends;
        }
        if more_ends == Ends::Error && a_ends != b_ends {
            let arm = if a_ends == Ends::Error { b } else { a };
            steps.extend(arm);
            return Some(Ends::Leaves);
        }
        push_if(steps, condition, site, a, b);
        Some(if a_ends == b_ends { a_ends } else { Ends::Leaves })
    }

    /// What decides how often a loop runs, as one term.
    fn header(&self, header: &Header, site: Site) -> Term {
        let terms = self.program.terms();
        let own = terms.find(&TermKind::Happened(site)).unwrap_or(terms.yes);
        match header {
            Header::Over(value) => match value.single() {
                Some(term) if terms.taint(term).has(super::Taint::RANK) => {
                    self.evaluated(term).unwrap_or(own)
                }
                _ => own,
            },
            Header::While(condition) => *condition,
            Header::Forever => own,
        }
    }

    /// A term that this rank's number settles.
    fn evaluated(&self, term: Term) -> Option<Term> {
        let value = self.program.terms().evaluate(term, self.sample)?;
        self.program.terms().find(&TermKind::Const(value))
    }

    fn op(&self, event: EventId) -> Option<Op> {
        match &self.program.event(event).kind {
            EventKind::Call(call) => self.collective(call),
            EventKind::Forward(forward) if self.counted == Counted::Training => {
                let Via::Wrapper(wrapper) = forward.via else { return None };
                let trains = self.program.wrapper_kind(wrapper) == Some(Wrapper::Ddp)
                    && self.program.event(event).modes.grad
                    && self.program.trained().contains(&event);
                trains.then_some(Op(Key::Train(wrapper)))
            }
            _ => None,
        }
    }

    fn collective(&self, call: &Call<'p>) -> Option<Op> {
        let row = call.row?;
        let named = Op(Key::Named(row.name?));
        match call.role {
            Role::WrapDdp => Some(Op(Key::Construct)),
            Role::NewGroup => Some(named),
            Role::Collective => {
                let pairwise =
                    matches!(row.kind, Some(CollectiveKind::Send | CollectiveKind::Recv));
                (!pairwise && !self.in_sub_group(call)).then_some(named)
            }
            _ if row.has(Flag::Hidden) && row.kind.is_some() => Some(named),
            _ => None,
        }
    }

    /// A group of its own: its members, whoever they are, call it together.
    fn in_sub_group(&self, call: &Call<'p>) -> bool {
        ["group", "process_group", "pg"].iter().any(|name| {
            call.argument(name).known().is_some_and(|a| {
                a.value.single() != Some(self.program.terms().none)
                    && !a.value.terms().any(|t| {
                        matches!(self.program.terms().kind(t), TermKind::Outside(n) if n.ends_with("WORLD"))
                    })
            })
        })
    }
}

/// Takes an arm whose other arm ends by an error.
fn only(arm: Vec<Step>, ends: Ends, steps: &mut Vec<Step>) -> Option<Ends> {
    steps.extend(arm);
    (ends != Ends::Falls).then_some(ends)
}

/// An `If` whose arms do the same is none.
fn push_if(steps: &mut Vec<Step>, condition: Term, site: Site, a: Vec<Step>, b: Vec<Step>) {
    if a.len() == b.len() && a.iter().zip(&b).all(|(x, y)| same(x, y)) {
        steps.extend(a);
        return;
    }
    steps.push(Step::If { condition, site, then: a.into(), otherwise: b.into() });
}
