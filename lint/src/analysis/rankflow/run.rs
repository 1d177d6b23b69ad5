//! The specialised run of a tree on one rank.

use rustc_hash::{FxHashMap, FxHashSet};

use super::steps::{first_event, same_steps};
use super::{Counted, Key, Op, Step, Steps};
use crate::analysis::facts::Wrapper;
use crate::analysis::{
    Call, Caught, Const, EventId, EventKind, ExitKind, Header, Node, Program, Sample, Taint, Term,
    TermKind, Tree, Value, Via,
};
use crate::model::{Language, Site};
use crate::table::{CollectiveKind, Flag, Role, Row};

/// A run, and how it ends.
#[derive(Clone, Debug)]
pub struct Run {
    /// Arms that end the process by an error are left out.
    pub steps: Steps,
    /// With these arms, each ending in `Leave(Error)`.
    pub(super) full: Steps,
    /// Ends the process by an error.
    pub errs: bool,
    /// Too long to be told in full.
    pub is_cut: bool,
    /// Nodes of the tree that were looked at.
    pub n_nodes: usize,
}

/// Parameters that name the rank a collective sends from or to.
pub(super) const ROOTS: [&str; 4] = ["src", "dst", "root", "group_src"];

impl Run {
    /// The same rank's run with other steps, in which arms that end by an error are told.
    pub(super) fn with_steps(&self, full: Vec<Step>) -> Self {
        Self { steps: without_errors(&full).into(), full: full.into(), errs: false, ..self.clone() }
    }
}

const SPLICED_MAX: usize = 20_000;
const BUDGET: usize = 200_000;
/// Loops that run more often are compared as loops.
const UNROLLED_MAX: i64 = 32;
/// Loops that run so seldom are run even where nothing in them hangs on a rank.
const FEW: i64 = 4;

struct Flow<'a, 'p> {
    program: &'a Program<'p>,
    sample: Sample,
    counted: Counted,
    budget: usize,
    unrolls: bool,
    is_cut: bool,
    /// What the loops that are being run count.
    items: FxHashMap<Term, i64>,
    /// Loops of the function that is in, which are not run but told as loops.
    open_loops: usize,
    /// Runs of shared subtrees that hang on no loop around them.
    known: FxHashMap<*const Node, (Steps, Ends)>,
    by_rank: FxHashMap<*const Node, bool>,
}

/// How control leaves a list of nodes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Ends {
    Falls,
    By(ExitKind),
    /// Arms of an unknown condition leave in different ways.
    Several,
}

const ERROR: Ends = Ends::By(ExitKind::Error);

/// What an arm does, and how it ends.
type Arm = (Vec<Step>, Ends);

impl Program<'_> {
    /// The specialised run of a tree on one rank.
    pub(super) fn run_on(&self, tree: &[Node], sample: Sample, counted: Counted) -> Run {
        let run = self.run_within(tree, sample, counted, true);
        if run.is_cut { self.run_within(tree, sample, counted, false) } else { run }
    }

    fn run_within(&self, tree: &[Node], sample: Sample, counted: Counted, unrolls: bool) -> Run {
        let mut flow = Flow {
            program: self,
            sample,
            counted,
            budget: BUDGET,
            unrolls,
            is_cut: false,
            items: FxHashMap::default(),
            open_loops: 0,
            known: FxHashMap::default(),
            by_rank: FxHashMap::default(),
        };
        let (steps, ends) = flow.list(tree);
        let steps_alone: Steps = without_errors(&steps).into();
        Run {
            steps: steps_alone,
            full: steps.into(),
            errs: ends == ERROR,
            is_cut: flow.is_cut,
            n_nodes: BUDGET - flow.budget,
        }
    }
}

impl<'p> Flow<'_, 'p> {
    fn list(&mut self, nodes: &[Node]) -> (Vec<Step>, Ends) {
        let mut steps = Vec::new();
        for (index, node) in nodes.iter().enumerate() {
            if self.budget == 0 || steps.len() > SPLICED_MAX {
                self.is_cut = true;
                return (steps, Ends::Falls);
            }
            self.budget -= 1;
            let rest = &nodes[index + 1..];
            let ends = match node {
                Node::Branch { condition, site, then, otherwise } => {
                    self.branch(*condition, *site, (then, otherwise), rest, &mut steps)
                }
                Node::Try { body, handlers, .. } => self.attempt(body, handlers, rest, &mut steps),
                _ => Some(self.node(node, &mut steps)).filter(|ends| *ends != Ends::Falls),
            };
            if let Some(ends) = ends {
                return (steps, ends);
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
            Node::Call { body, .. } => self.call(body, steps),
            Node::Loop { header, item, site, body } => {
                self.run_loop(header, *item, *site, body, steps)
            }
            Node::Exit { kind, .. } => {
                let told = match kind {
                    ExitKind::Break | ExitKind::Stop => true,
                    ExitKind::Return => self.open_loops > 0,
                    ExitKind::Continue | ExitKind::Error => false,
                };
                if told {
                    steps.push(Step::Leave(*kind));
                }
                Ends::By(*kind)
            }
            Node::Branch { .. } | Node::Try { .. } => Ends::Falls,
        }
    }

    fn call(&mut self, body: &Tree, steps: &mut Vec<Step>) -> Ends {
        let Some(first) = body.first() else { return Ends::Falls };
        let place = std::ptr::from_ref(first);
        if self.items.is_empty()
            && let Some((inner, ends)) = self.known.get(&place).cloned()
        {
            steps.extend(inner.iter().cloned());
            return ends;
        }
        let outer = std::mem::take(&mut self.open_loops);
        let (mut inner, ends) = self.list(body);
        self.open_loops = outer;
        let ends = match ends {
            // A return ends the callee alone.
            Ends::By(ExitKind::Stop | ExitKind::Error) => ends,
            _ => Ends::Falls,
        };
        if self.items.is_empty() {
            let shared: Steps = inner.clone().into();
            self.known.insert(place, (shared, ends));
        }
        steps.append(&mut inner);
        ends
    }

    fn run_loop(
        &mut self,
        header: &Header,
        item: Option<Term>,
        site: Site,
        body: &Tree,
        steps: &mut Vec<Step>,
    ) -> Ends {
        let bounds = self.bounds(header);
        if let (Some((from, to)), true) = (bounds, self.unrolls)
            && to.saturating_sub(from) <= UNROLLED_MAX
            && (to.saturating_sub(from) <= FEW || self.hangs_on_rank(header, body))
        {
            let before = steps.len();
            match self.unroll((from, to), item, body, steps) {
                Some(ends) => return ends,
                None => steps.truncate(before),
            }
        }
        let never = match header {
            Header::While(condition) => self.holds(*condition) == Some(false),
            _ => bounds.is_some_and(|(from, to)| to <= from),
        };
        if never {
            return Ends::Falls;
        }
        self.open_loops += 1;
        let (inner, ends) = self.list(body);
        self.open_loops -= 1;
        let certain = matches!(header, Header::Forever)
            || bounds.is_some()
            || matches!(header, Header::While(c) if self.holds(*c) == Some(true));
        match ends {
            // It runs once at most.
            Ends::By(ExitKind::Break) if certain => {
                steps.extend(without_last_leave(inner));
                return Ends::Falls;
            }
            Ends::By(ExitKind::Return) if certain => {
                let mut inner = without_last_leave(inner);
                steps.append(&mut inner);
                if self.open_loops > 0 {
                    steps.push(Step::Leave(ExitKind::Return));
                }
                return ends;
            }
            Ends::By(ExitKind::Stop | ExitKind::Error) if certain => {
                steps.extend(inner);
                return ends;
            }
            _ => {}
        }
        if first_event(&inner).is_some() || leaves_program(&inner) {
            let header = self.header(header, bounds, site);
            let place = TermKind::Happened(site);
            let counted = *self.program.terms().kind(header) != place;
            steps.push(Step::Loop { header, counted, site, body: inner.into() });
        }
        Ends::Falls
    }

    /// Runs a loop as often as it runs; not where how it goes on is unknown.
    fn unroll(
        &mut self,
        (from, to): (i64, i64),
        item: Option<Term>,
        body: &Tree,
        steps: &mut Vec<Step>,
    ) -> Option<Ends> {
        let outer = item.and_then(|item| self.items.get(&item).copied());
        let mut result = Some(Ends::Falls);
        for value in from..to {
            if let Some(item) = item {
                self.items.insert(item, value);
            }
            let before = steps.len();
            let (inner, ends) = self.list(body);
            steps.extend(inner);
            match ends {
                Ends::Falls | Ends::By(ExitKind::Continue) => {}
                Ends::By(ExitKind::Break) => {
                    if matches!(steps.last(), Some(Step::Leave(ExitKind::Break)))
                        && steps.len() > before
                    {
                        steps.pop();
                    }
                    break;
                }
                Ends::Several => {
                    result = None;
                    break;
                }
                Ends::By(_) => {
                    result = Some(ends);
                    break;
                }
            }
        }
        if let Some(item) = item {
            match outer {
                Some(value) => self.items.insert(item, value),
                None => self.items.remove(&item),
            };
        }
        result
    }

    /// First and last but one number of a range, where this rank knows them.
    fn bounds(&self, header: &Header) -> Option<(i64, i64)> {
        let Header::Over(value) = header else { return None };
        self.range(self.chosen(value)?)
    }

    fn range(&self, term: Term) -> Option<(i64, i64)> {
        let (from, to) = self.program.terms().range_bounds(term)?;
        let number = |term: Term| match self.evaluate(term)? {
            Const::Int(number) => Some(number),
            Const::Bool(value) => Some(i64::from(value)),
            _ => None,
        };
        Some((from.map_or(Some(0), number)?, number(to)?))
    }

    /// The alternative of a value that this rank gets.
    fn chosen(&self, value: &Value) -> Option<Term> {
        let mut chosen = None;
        for alternative in &value.alternatives {
            match self.holds(alternative.when) {
                Some(false) => {}
                Some(true) if chosen.is_none() => chosen = Some(alternative.term),
                _ => return None,
            }
        }
        chosen
    }

    /// Running the loop tells more than its header does: a rank went into what it decides.
    fn hangs_on_rank(&mut self, header: &Header, body: &Tree) -> bool {
        let counts = match header {
            Header::Over(value) => value.taint(self.program.terms()).has(Taint::RANK),
            _ => false,
        };
        counts || self.tests_rank(body)
    }

    fn tests_rank(&mut self, tree: &[Node]) -> bool {
        let Some(first) = tree.first() else { return false };
        let place = std::ptr::from_ref(first);
        if let Some(&known) = self.by_rank.get(&place) {
            return known;
        }
        let terms = self.program.terms();
        let of_rank = |term: Term| terms.taint(term).has(Taint::RANK);
        let found = tree.iter().any(|node| match node {
            Node::Branch { condition, then, otherwise, .. } => {
                of_rank(*condition) || self.tests_rank(then) || self.tests_rank(otherwise)
            }
            Node::Loop { header, body, .. } => {
                let counts = match header {
                    Header::Over(value) => value.taint(terms).has(Taint::RANK),
                    Header::While(condition) => of_rank(*condition),
                    Header::Forever => false,
                };
                counts || self.tests_rank(body)
            }
            Node::Try { body, .. } | Node::Call { body, .. } => self.tests_rank(body),
            _ => false,
        });
        self.by_rank.insert(place, found);
        found
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
        let known = self.holds(condition).filter(|_| !self.program.is_declared_uniform(site));
        if let Some(value) = known {
            let (inner, ends) = self.list(if value { then } else { otherwise });
            steps.extend(inner);
            return (ends != Ends::Falls).then_some(ends);
        }
        let arms = (self.list(then), self.list(otherwise));
        self.fork(condition, site, arms, rest, steps)
    }

    /// A `try` that catches. Where ranks meet in it, an error that one rank alone has leads it
    /// away from there: the body, or the first handler that such an error may go to.
    fn attempt(
        &mut self,
        body: &[Node],
        handlers: &[Caught],
        rest: &[Node],
        steps: &mut Vec<Step>,
    ) -> Option<Ends> {
        let (inner, ends) = self.list(body);
        // Caught: it ends nothing.
        let inner = without_errors(&inner);
        let ends = if ends == ERROR { Ends::Falls } else { ends };
        if first_event(&inner).is_some() && self.may_fail_alone(body) {
            for handler in handlers.iter().filter(|h| self.program.is_caught(h.when)) {
                let caught = self.list(&handler.body);
                if caught.1 != ERROR {
                    let arms = (caught, (inner, ends));
                    return self.fork(handler.when, handler.site, arms, rest, steps);
                }
            }
        }
        steps.extend(inner);
        (ends != Ends::Falls).then_some(ends)
    }

    /// Something in it may go wrong on one rank alone: more than the meeting itself.
    fn may_fail_alone(&self, nodes: &[Node]) -> bool {
        nodes.iter().any(|node| match node {
            Node::Event(event) => {
                let kind = &self.program.event(*event).kind;
                matches!(kind, EventKind::Call(_) | EventKind::Forward(_) | EventKind::Raise)
                    && (self.op(*event).is_none() || matches!(kind, EventKind::Forward(_)))
            }
            Node::Branch { then, otherwise, .. } => {
                self.may_fail_alone(then) || self.may_fail_alone(otherwise)
            }
            Node::Loop { body, .. } | Node::Try { body, .. } | Node::Call { body, .. } => {
                self.may_fail_alone(body)
            }
            Node::Exit { .. } => false,
        })
    }

    /// Both arms of something unknown, with what follows folded in where one of them leaves.
    fn fork(
        &mut self,
        condition: Term,
        site: Site,
        ((mut a, mut a_ends), (mut b, mut b_ends)): (Arm, Arm),
        rest: &[Node],
        steps: &mut Vec<Step>,
    ) -> Option<Ends> {
        match (a_ends, b_ends) {
            (ERROR, ERROR) => return Some(ERROR),
            (ERROR, ends) => {
                push_failing(steps, condition, site, (Some(a), None));
                return only(b, ends, steps);
            }
            (ends, ERROR) => {
                push_failing(steps, condition, site, (None, Some(b)));
                return only(a, ends, steps);
            }
            (Ends::Falls, Ends::Falls) if self.program.is_selection(condition) => {
                steps.extend(a);
                steps.extend(b);
                return None;
            }
            (Ends::Falls, Ends::Falls) => {
                push_if(steps, condition, site, a, b);
                return None;
            }
            _ => {}
        }
        // What follows belongs to the arm that goes on.
        if a_ends == Ends::Falls || b_ends == Ends::Falls {
            let (more, more_ends) = self.list(rest);
            if a_ends == Ends::Falls {
                a.extend(more);
                a_ends = more_ends;
            } else {
                b.extend(more);
                b_ends = more_ends;
            }
        }
        match (a_ends, b_ends) {
            (ERROR, ends) if ends != ERROR => {
                push_failing(steps, condition, site, (Some(a), None));
                return Some(only_then(b, ends, steps));
            }
            (ends, ERROR) if ends != ERROR => {
                push_failing(steps, condition, site, (None, Some(b)));
                return Some(only_then(a, ends, steps));
            }
            _ => {}
        }
        push_if(steps, condition, site, a, b);
        let goes_on = |ends| matches!(ends, Ends::Falls | Ends::By(ExitKind::Continue));
        Some(match (a_ends, b_ends) {
            _ if a_ends == b_ends => a_ends,
            _ if goes_on(a_ends) && goes_on(b_ends) => Ends::By(ExitKind::Continue),
            _ => Ends::Several,
        })
    }

    fn holds(&self, condition: Term) -> Option<bool> {
        self.evaluate(condition).map(crate::analysis::term::truth)
    }

    fn evaluate(&self, term: Term) -> Option<Const> {
        let item = |term: Term| self.items.get(&term).copied().map(Const::Int);
        self.program.terms().evaluate_with(term, self.sample, &item, 64)
    }

    /// What decides how often a loop runs, as one term.
    fn header(&self, header: &Header, bounds: Option<(i64, i64)>, site: Site) -> Term {
        let terms = self.program.terms();
        let own = terms.find(&TermKind::Happened(site)).unwrap_or(terms.yes);
        match header {
            Header::Over(value) => {
                let by_rank = value.taint(terms).has(Taint::RANK);
                match bounds {
                    Some((from, to)) if by_rank => {
                        terms.find(&TermKind::Const(Const::Int(to - from))).unwrap_or(own)
                    }
                    None if by_rank => value.single().unwrap_or(own),
                    _ => own,
                }
            }
            Header::While(condition) => *condition,
            Header::Forever => own,
        }
    }

    fn op(&self, event: EventId) -> Option<Op> {
        match &self.program.event(event).kind {
            EventKind::Call(call) => self.collective(call).or_else(|| self.backward(event, call)),
            EventKind::Forward(forward) if self.counted != Counted::Collectives => {
                let Via::Wrapper(wrapper) = forward.via else { return None };
                let trains = || {
                    self.program.event(event).modes.grad && self.program.trained().contains(&event)
                };
                let counts = self.program.wrapper_kind(wrapper) == Some(Wrapper::Ddp)
                    && (self.counted == Counted::Forwards || trains());
                counts.then_some(of_all(Key::Train(wrapper)))
            }
            _ => None,
        }
    }

    fn collective(&self, call: &Call<'p>) -> Option<Op> {
        let row = call.row?;
        let named = of_all(Key::Named(row.name?, self.root(call)));
        match call.role {
            Role::WrapDdp => Some(of_all(Key::Construct)),
            Role::NewGroup => Some(named),
            Role::Collective => {
                let pairwise =
                    matches!(row.kind, Some(CollectiveKind::Send | CollectiveKind::Recv));
                if pairwise {
                    return None;
                }
                let Some(group) = self.sub_group(call) else { return Some(named) };
                let members = self.members(group)?;
                let is_member = members & bit(self.sample.rank) != 0;
                is_member.then_some(Op { group: Some(group), members, ..named })
            }
            _ if row.has(Flag::Hidden) && row.kind.is_some() => Some(named),
            _ => None,
        }
    }

    /// A backward that reduces the gradients of a wrapper; in tch the wrapper's own call does.
    fn backward(&self, event: EventId, call: &Call<'p>) -> Option<Op> {
        if self.counted == Counted::Collectives {
            return None;
        }
        let reduces = match self.program.language {
            Language::Rust => {
                matches!(call.role, Role::Backward | Role::FusedStep)
                    && !self.program.has_flag(call, Flag::Hidden)
                    && !self.program.event(event).modes.no_sync
            }
            Language::Python => call.role == Role::Backward,
        };
        let through = self.program.reduces(call);
        let (_, wrapper) = through.first().filter(|_| reduces)?;
        Some(of_all(Key::Reduce(*wrapper)))
    }

    fn root(&self, call: &Call<'p>) -> Option<i64> {
        ROOTS.iter().find_map(|name| {
            let given = call.argument(name).known()?;
            match self.evaluate(self.chosen(&given.value)?)? {
                Const::Int(root) => Some(root),
                _ => None,
            }
        })
    }

    /// A group of its own: its members, whoever they are, call it together.
    fn sub_group(&self, call: &Call<'p>) -> Option<Term> {
        let terms = self.program.terms();
        if let Some(part) = call.receiver.as_ref().and_then(Value::single)
            && self.maker(part).is_some_and(|made| made.role == Role::NewGroup)
        {
            return Some(part);
        }
        ["group", "process_group", "pg"].iter().find_map(|name| {
            let given = call.argument(name).known()?;
            let of_all = given.value.single() == Some(terms.none)
                || given
                    .value
                    .terms()
                    .any(|t| matches!(terms.kind(t), TermKind::Outside(n) if n.ends_with("WORLD")));
            let group = given.value.single().or_else(|| given.value.terms().next())?;
            (!of_all).then_some(group)
        })
    }

    /// The call that made an object.
    fn maker(&self, term: Term) -> Option<&Call<'p>> {
        self.program.event(self.program.object_of(term)?.event?).call()
    }

    /// The ranks of a group, where they are written down.
    fn members(&self, group: Term) -> Option<u64> {
        let origin = || self.program.terms().origins(group).last().copied();
        let call = self.maker(group).or_else(|| self.program.event(origin()?).call())?;
        if call.role != Role::NewGroup {
            return None;
        }
        let ranks = call.argument("ranks").known()?.value.single()?;
        if let Some((from, to)) = self.range(ranks) {
            return Some((from..to).map(bit).fold(0, |all, one| all | one));
        }
        let mut members = 0;
        let mut seen = FxHashSet::default();
        for value in self.program.contents(ranks) {
            let Some(Const::Int(rank)) = self.evaluate(self.chosen(&value)?) else { return None };
            if seen.insert(rank) {
                members |= bit(rank);
            }
        }
        (members != 0).then_some(members)
    }
}

/// Some ranks may have to make the call together.
pub(super) fn may_be_together(call: &Call<'_>) -> bool {
    let is_hidden = |row: &Row| row.has(Flag::Hidden) && row.kind.is_some();
    matches!(call.role, Role::WrapDdp | Role::NewGroup | Role::Collective)
        || call.row.is_some_and(is_hidden)
}

fn of_all(key: Key) -> Op {
    Op { key, group: None, members: u64::MAX }
}

/// Ranks that no word holds are members of nothing.
fn bit(rank: i64) -> u64 {
    u32::try_from(rank).ok().and_then(|rank| 1_u64.checked_shl(rank)).unwrap_or(0)
}

/// Takes an arm whose other arm ends by an error.
fn only(arm: Vec<Step>, ends: Ends, steps: &mut Vec<Step>) -> Option<Ends> {
    steps.extend(arm);
    (ends != Ends::Falls).then_some(ends)
}

/// The same where what follows is in the arm already.
fn only_then(arm: Vec<Step>, ends: Ends, steps: &mut Vec<Step>) -> Ends {
    steps.extend(arm);
    if ends == Ends::Falls { Ends::Several } else { ends }
}

fn without_last_leave(mut steps: Vec<Step>) -> Vec<Step> {
    if matches!(steps.last(), Some(Step::Leave(_))) {
        steps.pop();
    }
    steps
}

pub(super) fn leaves_program(steps: &[Step]) -> bool {
    steps.iter().any(|step| match step {
        Step::Leave(kind) => *kind == ExitKind::Stop,
        Step::If { then, otherwise, .. } => leaves_program(then) || leaves_program(otherwise),
        Step::Loop { body, .. } => leaves_program(body),
        Step::Together { .. } => false,
    })
}

/// An arm that ends the process by an error; the other one goes on behind the `If`.
fn push_failing(
    steps: &mut Vec<Step>,
    condition: Term,
    site: Site,
    failing: (Option<Vec<Step>>, Option<Vec<Step>>),
) {
    let ended = |arm: Option<Vec<Step>>| {
        arm.map_or_else(Vec::new, |mut arm| {
            arm.push(Step::Leave(ExitKind::Error));
            arm
        })
    };
    let (then, otherwise) = (ended(failing.0), ended(failing.1));
    steps.push(Step::If { condition, site, then: then.into(), otherwise: otherwise.into() });
}

/// The steps without arms that end the process by an error.
fn without_errors(steps: &[Step]) -> Vec<Step> {
    let errs = |arm: &Steps| matches!(arm.last(), Some(Step::Leave(ExitKind::Error)));
    let mut kept = Vec::with_capacity(steps.len());
    for step in steps {
        match step {
            Step::If { then, otherwise, .. } if errs(then) || errs(otherwise) => {}
            Step::If { condition, site, then, otherwise } => {
                let (then, otherwise) = (without_errors(then), without_errors(otherwise));
                push_if(&mut kept, *condition, *site, then, otherwise);
            }
            Step::Loop { header, counted, site, body } => {
                let body: Steps = without_errors(body).into();
                let (header, counted, site) = (*header, *counted, *site);
                if body.first_event().is_some() || leaves_program(&body) {
                    kept.push(Step::Loop { header, counted, site, body });
                }
            }
            _ => kept.push(step.clone()),
        }
    }
    kept
}

/// An `If` whose arms do the same is none.
pub(super) fn push_if(
    steps: &mut Vec<Step>,
    condition: Term,
    site: Site,
    a: Vec<Step>,
    b: Vec<Step>,
) {
    if same_steps(&a, &b) {
        steps.extend(a);
        return;
    }
    steps.push(Step::If { condition, site, then: a.into(), otherwise: b.into() });
}
