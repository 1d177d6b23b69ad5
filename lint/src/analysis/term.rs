//! Terms: what a value is, as far as the program text tells. Hash-consed, so that equal
//! expressions over equal inputs are one term; conditions are terms too.
//!
//! A term can be evaluated for a sample rank: that is how guards are recognised.

use std::cell::RefCell;
use std::hash::{Hash, Hasher};

use hashbrown::HashTable;
use rustc_hash::{FxHashMap, FxHasher};
use smallvec::SmallVec;

use super::event::EventId;
use crate::model::{BinaryOp, ClassIndex, CompareOp, FileId, FunctionIndex, Name, Site};

#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, PartialOrd, Ord)]
pub struct Term(pub(super) u32);

#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, PartialOrd, Ord)]
pub struct ObjectId(pub u32);

#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, PartialOrd, Ord)]
pub struct FrameId(pub u32);

#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct FunctionRef {
    pub file: FileId,
    pub index: FunctionIndex,
}

#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct ClassRef {
    pub file: FileId,
    pub index: ClassIndex,
}

/// A float that compares by its bits.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Bits(u64);

#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Const {
    None,
    Bool(bool),
    Int(i64),
    Float(Bits),
    Str(Name),
}

/// Where a number about ranks comes from. Different types, never mixed up.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum RankKind {
    /// Global rank.
    Rank,
    /// Rank on its node.
    LocalRank,
    /// Index of the node.
    NodeRank,
    /// Number of ranks.
    WorldSize,
    /// Number of ranks on this node.
    LocalWorldSize,
    /// Number of devices this process sees.
    DeviceCount,
}

#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub enum TermKind {
    Const(Const),
    Rank(RankKind),
    /// First argument that a spawned function gets: rank on this node.
    SpawnIndex,
    /// "This run is distributed": true wherever it is asked in a distributed program.
    Distributed,
    /// Nothing is known but where it came from: a call's result, a loop's item.
    Opaque {
        site: Site,
        instance: u32,
    },
    /// A parameter nobody is seen to fill; known by its name.
    Parameter {
        site: Site,
        name: Name,
    },
    /// A name outside the project: `torch.nn.Linear`.
    Outside(Name),
    /// A project folder or a module path that leads on into the project.
    Package(Name),
    Module(FileId),
    /// `closure`: the frame whose variables it sees. `bound`: its receiver.
    Function {
        function: FunctionRef,
        closure: Option<FrameId>,
        bound: Option<Term>,
    },
    Class(ClassRef),
    Object(ObjectId),
    /// The module inside a wrapper, reached through the wrapper.
    Inner(ObjectId),
    /// A method of an outside type or of an unknown receiver, bound to it.
    Method {
        receiver: Term,
        name: Name,
    },
    Attribute(Term, Name),
    Item(Term, Term),
    /// A pure function of the outside world, applied.
    Apply(Name, Box<[Term]>),
    Binary(BinaryOp, Term, Term),
    Negative(Term),
    /// Operators normalised: only `Eq`, `Lt`, `LtE`, `Is`, `In`; the rest by `Not` and order.
    Compare(CompareOp, Term, Term),
    Not(Term),
    And(Box<[Term]>),
    Or(Box<[Term]>),
    /// The loop at this place ran at least once; a handler was entered; and the like.
    Happened(Site),
    /// An immutable sequence.
    Tuple(Box<[Term]>),
    /// A context manager, decorator or generator of the outside world, called.
    Text(Box<[Term]>),
}

/// What a term depends on.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct Taint(u8);

impl Taint {
    /// Differs between ranks because a rank number went into it.
    pub const RANK: Taint = Taint(1);
    /// Differs between ranks because it comes from this rank's data, clock or disk.
    pub const LOCAL: Taint = Taint(2);
    /// Drawn from a random generator.
    pub const RANDOM: Taint = Taint(4);
    /// A share that a rank picked for itself: how many items it has may differ between ranks.
    pub const SHARE: Taint = Taint(8);
    pub const NONE: Taint = Taint(0);

    pub fn has(self, other: Taint) -> bool {
        self.0 & other.0 != 0
    }

    #[must_use]
    pub fn with(self, other: Taint) -> Taint {
        Taint(self.0 | other.0)
    }

    #[must_use]
    pub fn without(self, other: Taint) -> Taint {
        Taint(self.0 & !other.0)
    }
}

pub type Origins = SmallVec<[EventId; 4]>;
/// Of more events than these the first are kept.
pub const ORIGINS_MAX: usize = 48;

#[derive(Clone, Debug, Default)]
struct Facts {
    taint: Taint,
    /// The events whose results went into it, sorted.
    origins: Origins,
    /// Number of terms it is written with, shared parts counted again.
    size: u32,
    /// The change of any term's facts that last made these grow.
    changed: u32,
    /// The last change that was looked at for growth.
    refreshed: u32,
}

/// Conditions larger than this are not looked into: they count as unknown.
const SIZE_MAX: u32 = 400;

/// Terms nested deeper than this are not evaluated.
const EVALUATED_DEPTH_MAX: u32 = 64;

/// A rank of some run for which conditions are evaluated.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
pub struct Sample {
    pub rank: i64,
    pub local_rank: i64,
    pub node_rank: i64,
    pub world_size: i64,
    pub local_world_size: i64,
}

impl Sample {
    /// A rank of two nodes with eight ranks each.
    const fn of_two_nodes(rank: i64) -> Self {
        let (local_rank, node_rank) = (rank % 8, rank / 8);
        Self { rank, local_rank, node_rank, world_size: 16, local_world_size: 8 }
    }

    /// A rank of one node with that many ranks.
    pub const fn of_one_node(rank: i64, world_size: i64) -> Self {
        Self { rank, local_rank: rank, node_rank: 0, world_size, local_world_size: world_size }
    }
}

/// One rank of each class that code tells apart: rank 0, another rank of the first node, the
/// first rank of another node, another rank there.
pub const SAMPLES: [Sample; 4] = [
    Sample::of_two_nodes(0),
    Sample::of_two_nodes(1),
    Sample::of_two_nodes(8),
    Sample::of_two_nodes(10),
];

#[derive(Debug)]
pub struct Terms {
    kinds: Vec<TermKind>,
    facts: Vec<Facts>,
    ids: HashTable<Term>,
    /// How often facts of a term grew that was there before.
    changes: u32,
    /// What the sample ranks make of terms, as far as somebody asked.
    evaluated: RefCell<FxHashMap<Term, Evaluated>>,
    /// Arithmetic that a process group was told is a rank or a number of ranks.
    told: FxHashMap<Term, RankKind>,
    pub yes: Term,
    pub no: Term,
    pub none: Term,
}

/// By sample: whether it is known yet, and what it is.
type Evaluated = [Option<Option<Const>>; SAMPLES.len()];

impl Default for Terms {
    fn default() -> Self {
        let mut terms = Self {
            kinds: Vec::new(),
            facts: Vec::new(),
            ids: HashTable::new(),
            changes: 0,
            evaluated: RefCell::default(),
            told: FxHashMap::default(),
            yes: Term(0),
            no: Term(1),
            none: Term(2),
        };
        terms.constant(Const::Bool(true));
        terms.constant(Const::Bool(false));
        terms.constant(Const::None);
        terms
    }
}

impl Terms {
    pub fn kind(&self, term: Term) -> &TermKind {
        &self.kinds[term.0 as usize]
    }

    pub fn taint(&self, term: Term) -> Taint {
        self.facts[term.0 as usize].taint
    }

    /// So large that nobody looks into it.
    pub fn is_huge(&self, term: Term) -> bool {
        self.facts[term.0 as usize].size > SIZE_MAX
    }

    pub fn origins(&self, term: Term) -> &[EventId] {
        &self.facts[term.0 as usize].origins
    }

    /// Some term of the run is such.
    pub fn any(&self, is_such: impl FnMut(&TermKind) -> bool) -> bool {
        self.kinds.iter().any(is_such)
    }

    /// The term of this kind, if there is one.
    pub fn find(&self, kind: &TermKind) -> Option<Term> {
        self.ids.find(hash_of(kind), |term| *self.kind(*term) == *kind).copied()
    }

    pub fn make(&mut self, kind: TermKind) -> Term {
        if let Some(term) = self.find(&kind) {
            self.refresh(term);
            return term;
        }
        let facts = self.facts_of(&kind);
        self.insert(kind, facts)
    }

    /// What a term is made of may have come to depend on more since it was made.
    fn refresh(&mut self, term: Term) {
        let since = self.facts[term.0 as usize].refreshed;
        if since == self.changes {
            return;
        }
        let mut is_stale = false;
        each_part(&self.kinds[term.0 as usize], |part| {
            is_stale |= self.facts[part.0 as usize].changed > since;
        });
        if is_stale {
            let new = self.facts_of(&self.kinds[term.0 as usize]);
            self.grow(term, new.taint, &new.origins);
        }
        self.facts[term.0 as usize].refreshed = self.changes;
    }

    fn grow(&mut self, term: Term, taint: Taint, origins: &[EventId]) {
        let facts = &mut self.facts[term.0 as usize];
        let (old_taint, n_old) = (facts.taint, facts.origins.len());
        facts.taint = facts.taint.with(taint);
        merge(&mut facts.origins, origins);
        if facts.taint != old_taint || facts.origins.len() != n_old {
            self.changes += 1;
            facts.changed = self.changes;
        }
    }

    fn insert(&mut self, kind: TermKind, mut facts: Facts) -> Term {
        let term = Term(self.kinds.len() as u32);
        let hash = hash_of(&kind);
        facts.refreshed = self.changes;
        self.kinds.push(kind);
        self.facts.push(facts);
        let kinds = &self.kinds;
        self.ids.insert_unique(hash, term, |term| hash_of(&kinds[term.0 as usize]));
        term
    }

    /// An opaque value with what went into it. The same place and instance give one term;
    /// its facts grow when it is made again.
    pub fn opaque(&mut self, site: Site, instance: u32, taint: Taint, origins: &[EventId]) -> Term {
        let kind = TermKind::Opaque { site, instance };
        if let Some(term) = self.find(&kind) {
            self.grow(term, taint, origins);
            return term;
        }
        let mut facts = Facts { taint, ..Facts::default() };
        merge(&mut facts.origins, origins);
        self.insert(kind, facts)
    }

    fn facts_of(&self, kind: &TermKind) -> Facts {
        let mut facts = Facts { size: 1, ..Facts::default() };
        each_part(kind, |part| {
            let of = &self.facts[part.0 as usize];
            facts.taint = facts.taint.with(of.taint);
            merge(&mut facts.origins, &of.origins);
            facts.size = facts.size.saturating_add(of.size);
        });
        match kind {
            TermKind::Rank(RankKind::Rank | RankKind::LocalRank | RankKind::NodeRank)
            | TermKind::SpawnIndex => facts.taint = Taint::RANK,
            TermKind::Attribute(_, name) => {
                if is_of_the_program(name) {
                    facts.taint = facts.taint.without(Taint::LOCAL).without(Taint::RANDOM);
                }
                if tells_ranks_apart(name) {
                    facts.taint = facts.taint.with(Taint::RANK);
                }
            }
            TermKind::Parameter { name, .. } if tells_ranks_apart(name) => {
                facts.taint = Taint::RANK;
            }
            // Whether there is something is no matter of what it is.
            TermKind::Compare(CompareOp::Is, a, b) if *a == self.none || *b == self.none => {
                facts.taint = facts.taint.without(Taint::LOCAL).without(Taint::RANDOM);
            }
            TermKind::Item(a, b) if self.is_own_rank(*a, *b) => {
                facts.taint = facts.taint.with(Taint::RANK);
            }
            _ => {}
        }
        facts
    }

    pub fn constant(&mut self, value: Const) -> Term {
        self.make(TermKind::Const(value))
    }

    pub fn int(&mut self, value: i64) -> Term {
        self.constant(Const::Int(value))
    }

    pub fn str(&mut self, text: &str) -> Term {
        self.constant(Const::Str(Name::new(text)))
    }

    pub fn float(&mut self, value: f64) -> Term {
        self.constant(Const::Float(Bits(value.to_bits())))
    }

    pub fn bool(&mut self, value: bool) -> Term {
        if value { self.yes } else { self.no }
    }

    pub fn as_const(&self, term: Term) -> Option<Const> {
        match self.kind(term) {
            TermKind::Const(value) => Some(*value),
            _ => None,
        }
    }

    pub fn as_str(&self, term: Term) -> Option<Name> {
        match self.as_const(term)? {
            Const::Str(text) => Some(text),
            _ => None,
        }
    }

    pub fn as_int(&self, term: Term) -> Option<i64> {
        match self.as_const(term)? {
            Const::Int(value) => Some(value),
            _ => None,
        }
    }

    pub fn not(&mut self, term: Term) -> Term {
        match *self.kind(term) {
            TermKind::Not(inner) => inner,
            TermKind::Const(value) => {
                let value = !truth(value);
                self.bool(value)
            }
            _ => self.make(TermKind::Not(term)),
        }
    }

    pub fn and(&mut self, parts: impl IntoIterator<Item = Term>) -> Term {
        self.join(parts, true)
    }

    pub fn or(&mut self, parts: impl IntoIterator<Item = Term>) -> Term {
        self.join(parts, false)
    }

    fn join(&mut self, parts: impl IntoIterator<Item = Term>, all: bool) -> Term {
        let mut flat: SmallVec<[Term; 6]> = SmallVec::new();
        for part in parts {
            match self.kind(part) {
                // What is too large to be looked into is not copied either.
                TermKind::And(inner) if all && !self.is_huge(part) => {
                    flat.extend(inner.iter().copied());
                }
                TermKind::Or(inner) if !all && !self.is_huge(part) => {
                    flat.extend(inner.iter().copied());
                }
                TermKind::Const(value) if truth(*value) == all => {}
                TermKind::Const(_) => return self.bool(!all),
                _ => flat.push(part),
            }
        }
        flat.sort_unstable();
        flat.dedup();
        let clashes = |&term: &Term| match *self.kind(term) {
            TermKind::Not(inner) => flat.binary_search(&inner).is_ok(),
            _ => false,
        };
        if flat.iter().any(clashes) {
            return self.bool(!all);
        }
        match flat.as_slice() {
            [] => self.bool(all),
            [one] => *one,
            parts => {
                if let Some(known) = self.find_join(all, parts) {
                    self.refresh(known);
                    return known;
                }
                let parts = parts.into();
                self.make(if all { TermKind::And(parts) } else { TermKind::Or(parts) })
            }
        }
    }

    /// The conjunction (or disjunction) of these parts, if it was made before.
    fn find_join(&self, all: bool, parts: &[Term]) -> Option<Term> {
        let is_it = |term: &Term| match self.kind(*term) {
            TermKind::And(of) => all && **of == *parts,
            TermKind::Or(of) => !all && **of == *parts,
            _ => false,
        };
        self.ids.find(hash_of_join(all, parts), is_it).copied()
    }

    pub fn compare(&mut self, op: CompareOp, left: Term, right: Term) -> Term {
        use CompareOp as Op;
        let (base, left, right, negate) = match op {
            Op::Eq | Op::Lt | Op::LtE | Op::Is | Op::In => (op, left, right, false),
            Op::NotEq => (Op::Eq, left, right, true),
            Op::IsNot => (Op::Is, left, right, true),
            Op::NotIn => (Op::In, left, right, true),
            Op::Gt => (Op::Lt, right, left, false),
            Op::GtE => (Op::LtE, right, left, false),
        };
        let (left, right) = if matches!(base, Op::Eq | Op::Is) && right < left {
            (right, left)
        } else {
            (left, right)
        };
        let known = match (self.as_const(left), self.as_const(right)) {
            (Some(a), Some(b)) => compare(base, a, b),
            _ => None,
        };
        let term = match known {
            Some(value) => self.bool(value),
            None => self.make(TermKind::Compare(base, left, right)),
        };
        if negate { self.not(term) } else { term }
    }

    pub fn binary(&mut self, op: BinaryOp, left: Term, right: Term) -> Term {
        let known = match (self.as_const(left), self.as_const(right)) {
            (Some(a), Some(b)) => arithmetic(op, a, b),
            _ => None,
        };
        match known {
            Some(value) => self.constant(value),
            None if op == BinaryOp::Add && self.as_int(left) == Some(0) => right,
            None if op == BinaryOp::Add && self.as_int(right) == Some(0) => left,
            None => self.make(TermKind::Binary(op, left, right)),
        }
    }

    /// A process group takes this arithmetic for a rank, so that is what it is.
    pub fn tell_kind(&mut self, term: Term, kind: RankKind) {
        let is_number = matches!(self.kind(term), TermKind::Binary(..) | TermKind::Opaque { .. });
        if is_number && self.rank_kind(term).is_none() {
            self.told.insert(term, kind);
            self.evaluated.get_mut().clear();
            if kind.differs() {
                let facts = &mut self.facts[term.0 as usize];
                facts.taint = facts.taint.with(Taint::RANK);
            }
        }
    }

    /// Which rank number a term is, if it is one.
    pub fn rank_kind(&self, term: Term) -> Option<RankKind> {
        if let Some(kind) = self.told.get(&term) {
            return Some(*kind);
        }
        match self.kind(term) {
            TermKind::Rank(kind) => Some(*kind),
            TermKind::SpawnIndex => Some(RankKind::LocalRank),
            TermKind::Attribute(_, name) | TermKind::Parameter { name, .. } => rank_by_name(name),
            TermKind::Item(of, key) if self.is_own_rank(*of, *key) => Some(RankKind::Rank),
            TermKind::Binary(BinaryOp::Mod, left, right) => {
                let left = self.rank_kind(*left)?;
                let by = self.rank_kind(*right)?;
                (left == RankKind::Rank
                    && matches!(by, RankKind::DeviceCount | RankKind::LocalWorldSize))
                .then_some(RankKind::LocalRank)
            }
            TermKind::Binary(BinaryOp::Add, left, right) => {
                let product = |t: Term| {
                    matches!(self.kind(t), TermKind::Binary(BinaryOp::Mul, a, b)
                        if self.rank_kind(*a).is_some() || self.rank_kind(*b).is_some())
                };
                let local = |t: Term| {
                    matches!(self.rank_kind(t), Some(RankKind::LocalRank | RankKind::Rank))
                };
                (product(*left) && local(*right) || product(*right) && local(*left))
                    .then_some(RankKind::Rank)
            }
            _ => None,
        }
    }

    /// The term's value on a sample rank of a distributed run, if the text settles it.
    pub fn evaluate(&self, term: Term, sample: Sample) -> Option<Const> {
        let evaluate = || self.evaluate_with(term, sample, &|_| None, EVALUATED_DEPTH_MAX);
        if let TermKind::Const(value) = self.kind(term) {
            return Some(*value);
        }
        let Some(index) = SAMPLES.iter().position(|known| *known == sample) else {
            return evaluate();
        };
        let known = self.evaluated.borrow().get(&term).and_then(|by_sample| by_sample[index]);
        known.unwrap_or_else(|| {
            let value = evaluate();
            self.evaluated.borrow_mut().entry(term).or_default()[index] = Some(value);
            value
        })
    }

    /// As `evaluate`, with the values of further terms known.
    pub fn evaluate_with(
        &self,
        term: Term,
        sample: Sample,
        known: &dyn Fn(Term) -> Option<Const>,
        depth: u32,
    ) -> Option<Const> {
        if let Some(value) = known(term) {
            return Some(value);
        }
        if depth == 0 || self.is_huge(term) {
            return None;
        }
        let value = |t: Term| self.evaluate_with(t, sample, known, depth - 1);
        let holds = |parts: &[Term], all: bool| {
            three_valued(parts.iter().map(|&p| value(p).map(truth)), all).map(Const::Bool)
        };
        match self.kind(term) {
            TermKind::Const(value) => Some(*value),
            TermKind::Rank(kind) => Some(Const::Int(kind.of(sample))),
            TermKind::Opaque { .. } => Some(Const::Int(self.told.get(&term)?.of(sample))),
            TermKind::SpawnIndex => Some(Const::Int(sample.local_rank)),
            TermKind::Distributed => Some(Const::Bool(true)),
            TermKind::Attribute(_, name) | TermKind::Parameter { name, .. } => {
                value_by_name(name, sample)
            }
            TermKind::Item(of, key) if self.is_own_rank(*of, *key) => Some(Const::Int(sample.rank)),
            TermKind::Binary(op, left, right) => match self.told.get(&term) {
                Some(kind) => Some(Const::Int(kind.of(sample))),
                None => arithmetic(*op, value(*left)?, value(*right)?),
            },
            TermKind::Negative(of) => match value(*of)? {
                Const::Int(n) => Some(Const::Int(n.checked_neg()?)),
                _ => None,
            },
            TermKind::Compare(op, left, right) => self.evaluate_compare(*op, *left, *right, &value),
            TermKind::Not(of) => Some(Const::Bool(!truth(value(*of)?))),
            TermKind::And(parts) => holds(parts, true),
            TermKind::Or(parts) => holds(parts, false),
            _ => None,
        }
    }

    /// `opt.gpu_ranks[device]`: of the ranks that run here, this process's own.
    fn is_own_rank(&self, list: Term, key: Term) -> bool {
        let is_list = matches!(self.kind(list),
            TermKind::Attribute(_, name) | TermKind::Parameter { name, .. }
                if matches!(&**name, "ranks" | "gpu_ranks" | "device_ranks"));
        is_list && self.as_const(key).is_none()
    }

    fn evaluate_compare(
        &self,
        op: CompareOp,
        left: Term,
        right: Term,
        value: &dyn Fn(Term) -> Option<Const>,
    ) -> Option<Const> {
        if op == CompareOp::Is {
            let other = if left == self.none { right } else { left };
            if (left == self.none || right == self.none) && self.is_something(other) {
                return Some(Const::Bool(false));
            }
        }
        if op == CompareOp::In
            && let TermKind::Tuple(items) = self.kind(right)
        {
            let wanted = value(left)?;
            let hits =
                items.iter().map(|&i| value(i).and_then(|v| compare(CompareOp::Eq, wanted, v)));
            return three_valued(hits, false).map(Const::Bool);
        }
        if op == CompareOp::In
            && let Some(bounds) = self.range_bounds(right)
        {
            let number = |t: Term| match value(t)? {
                Const::Int(number) => Some(number),
                _ => None,
            };
            let (from, to) = bounds;
            let from = from.map_or(Some(0), number)?;
            return Some(Const::Bool((from..number(to)?).contains(&number(left)?)));
        }
        // The launcher's variables are texts: `os.environ["RANK"] == "0"`.
        let as_number = |known: Const| match known {
            Const::Str(text) => text.parse().map_or(known, Const::Int),
            _ => known,
        };
        match (value(left)?, value(right)?) {
            (a @ Const::Int(_), b @ Const::Str(_)) => compare(op, a, as_number(b)),
            (a @ Const::Str(_), b @ Const::Int(_)) => compare(op, as_number(a), b),
            (a, b) => compare(op, a, b),
        }
        .map(Const::Bool)
    }

    /// The bounds of a range of numbers: `range(to)`, `range(from, to)`.
    pub fn range_bounds(&self, term: Term) -> Option<(Option<Term>, Term)> {
        match self.kind(term) {
            TermKind::Apply(name, parts) if &**name == "range" => match **parts {
                [to] => Some((None, to)),
                [from, to] => Some((Some(from), to)),
                _ => None,
            },
            _ => None,
        }
    }

    /// Certainly not `None`.
    pub fn is_something(&self, term: Term) -> bool {
        matches!(
            self.kind(term),
            TermKind::Object(_)
                | TermKind::Function { .. }
                | TermKind::Class(_)
                | TermKind::Module(_)
                | TermKind::Tuple(_)
                | TermKind::Inner(_)
                | TermKind::Text(_)
                | TermKind::Rank(_)
                | TermKind::SpawnIndex
        ) || matches!(self.as_const(term), Some(c) if c != Const::None)
    }
}

impl RankKind {
    fn of(self, sample: Sample) -> i64 {
        match self {
            RankKind::Rank => sample.rank,
            RankKind::LocalRank => sample.local_rank,
            RankKind::NodeRank => sample.node_rank,
            RankKind::WorldSize => sample.world_size,
            RankKind::LocalWorldSize | RankKind::DeviceCount => sample.local_world_size,
        }
    }

    /// Differs between ranks.
    pub fn differs(self) -> bool {
        matches!(self, RankKind::Rank | RankKind::LocalRank | RankKind::NodeRank)
    }
}

/// What a parameter or attribute of this name holds in distributed code, where nothing else
/// tells (names counted over 42 repositories).
pub fn rank_by_name(name: &str) -> Option<RankKind> {
    let name = name.trim_start_matches('_').as_bytes();
    let mut lower = [0; RANK_NAME_BYTES_MAX];
    let lower = lower.get_mut(..name.len())?;
    lower.copy_from_slice(name);
    lower.make_ascii_lowercase();
    Some(match &*lower {
        b"rank" | b"global_rank" | b"ddp_rank" | b"dist_rank" | b"distributed_rank"
        | b"world_rank" | b"process_index" => RankKind::Rank,
        b"local_rank"
        | b"ddp_local_rank"
        | b"gpu"
        | b"gpu_id"
        | b"proc_id"
        | b"local_process_index" => RankKind::LocalRank,
        b"node_rank" | b"machine_rank" => RankKind::NodeRank,
        b"world_size"
        | b"ddp_world_size"
        | b"distributed_world_size"
        | b"num_replicas"
        | b"nranks"
        | b"n_ranks"
        | b"num_processes" => RankKind::WorldSize,
        b"ngpus_per_node" | b"n_gpus_per_node" | b"local_world_size" | b"nproc_per_node" => {
            RankKind::LocalWorldSize
        }
        _ => return None,
    })
}

/// The longest of the names above.
const RANK_NAME_BYTES_MAX: usize = "distributed_world_size".len();

/// What a tensor has by the program's text, whatever its numbers are.
fn is_of_the_program(name: &str) -> bool {
    matches!(
        name,
        "requires_grad" | "dtype" | "device" | "ndim" | "is_cuda" | "is_leaf" | "grad_fn"
    )
}

/// What has this name differs between ranks: a rank, or a test of one.
fn tells_ranks_apart(name: &str) -> bool {
    if let Some(kind) = rank_by_name(name) {
        return kind.differs();
    }
    let on = |sample| value_by_name(name, sample);
    on(SAMPLES[0]) != on(SAMPLES[3])
}

fn value_by_name(name: &str, sample: Sample) -> Option<Const> {
    if let Some(kind) = rank_by_name(name) {
        return Some(Const::Int(kind.of(sample)));
    }
    match name.trim_start_matches('_') {
        "distributed"
        | "is_distributed"
        | "multiprocessing_distributed"
        | "use_ddp"
        | "ddp"
        | "is_ddp"
        | "use_distributed"
        | "distributed_run" => Some(Const::Bool(true)),
        "is_main_process"
        | "is_master"
        | "master_process"
        | "is_main"
        | "main_process"
        | "is_global_zero"
        | "is_world_process_zero" => Some(Const::Bool(sample.rank == 0)),
        "is_local_main_process" | "is_local_master" | "is_local_process_zero" => {
            Some(Const::Bool(sample.local_rank == 0))
        }
        _ => None,
    }
}

pub fn truth(value: Const) -> bool {
    match value {
        Const::None => false,
        Const::Bool(value) => value,
        Const::Int(value) => value != 0,
        Const::Float(bits) => f64::from_bits(bits.0) != 0.0,
        Const::Str(text) => !text.is_empty(),
    }
}

/// `and` (`all`) or `or` of what holds, does not hold, or is not known.
pub(super) fn three_valued(parts: impl Iterator<Item = Option<bool>>, all: bool) -> Option<bool> {
    let mut unknown = false;
    for part in parts {
        match part {
            Some(value) if value != all => return Some(!all),
            Some(_) => {}
            None => unknown = true,
        }
    }
    (!unknown).then_some(all)
}

fn number(value: Const) -> Option<f64> {
    match value {
        Const::Bool(value) => Some(f64::from(u8::from(value))),
        Const::Int(value) => Some(value as f64),
        Const::Float(bits) => Some(f64::from_bits(bits.0)),
        _ => None,
    }
}

pub(super) fn compare(op: CompareOp, left: Const, right: Const) -> Option<bool> {
    match op {
        CompareOp::Eq => Some(match (number(left), number(right)) {
            (Some(a), Some(b)) => a.total_cmp(&b).is_eq(),
            _ => left == right,
        }),
        CompareOp::Is => Some(left == right),
        CompareOp::Lt => Some(number(left)? < number(right)?),
        CompareOp::LtE => Some(number(left)? <= number(right)?),
        CompareOp::In => match (left, right) {
            (Const::Str(a), Const::Str(b)) => Some(b.contains(a.as_str())),
            _ => None,
        },
        _ => None,
    }
}

fn arithmetic(op: BinaryOp, left: Const, right: Const) -> Option<Const> {
    if let (Const::Str(a), Const::Str(b), BinaryOp::Add) = (left, right, op) {
        return Some(Const::Str(Name::new(&format!("{a}{b}"))));
    }
    let int = |c: Const| match c {
        Const::Int(n) => Some(n),
        Const::Bool(b) => Some(i64::from(b)),
        _ => None,
    };
    if let (Some(a), Some(b)) = (int(left), int(right)) {
        let value = match op {
            BinaryOp::Add => a.checked_add(b)?,
            BinaryOp::Sub => a.checked_sub(b)?,
            BinaryOp::Mul => a.checked_mul(b)?,
            BinaryOp::FloorDiv if b != 0 => a.checked_div_euclid(b)?,
            BinaryOp::Mod if b != 0 => a.checked_rem_euclid(b)?,
            BinaryOp::Div if b != 0 => {
                return Some(Const::Float(Bits((a as f64 / b as f64).to_bits())));
            }
            BinaryOp::Pow if (0..63).contains(&b) => a.checked_pow(b as u32)?,
            BinaryOp::BitAnd => a & b,
            BinaryOp::BitOr => a | b,
            BinaryOp::BitXor => a ^ b,
            _ => return None,
        };
        return Some(Const::Int(value));
    }
    let (a, b) = (number(left)?, number(right)?);
    let value = match op {
        BinaryOp::Add => a + b,
        BinaryOp::Sub => a - b,
        BinaryOp::Mul => a * b,
        BinaryOp::Div if b != 0.0 => a / b,
        _ => return None,
    };
    Some(Const::Float(Bits(value.to_bits())))
}

/// Visits the terms that a term depends on.
fn each_part(kind: &TermKind, mut visit: impl FnMut(Term)) {
    match kind {
        TermKind::Method { receiver: of, .. }
        | TermKind::Attribute(of, _)
        | TermKind::Negative(of)
        | TermKind::Not(of) => visit(*of),
        TermKind::Item(a, b) | TermKind::Binary(_, a, b) | TermKind::Compare(_, a, b) => {
            visit(*a);
            visit(*b);
        }
        TermKind::Apply(_, parts)
        | TermKind::And(parts)
        | TermKind::Or(parts)
        | TermKind::Tuple(parts)
        | TermKind::Text(parts) => parts.iter().copied().for_each(visit),
        _ => {}
    }
}

fn hash_of(kind: &TermKind) -> u64 {
    match kind {
        TermKind::And(parts) => hash_of_join(true, parts),
        TermKind::Or(parts) => hash_of_join(false, parts),
        _ => {
            let mut hasher = FxHasher::default();
            kind.hash(&mut hasher);
            hasher.finish()
        }
    }
}

fn hash_of_join(all: bool, parts: &[Term]) -> u64 {
    let mut hasher = FxHasher::default();
    (all, parts).hash(&mut hasher);
    hasher.finish()
}

fn merge(into: &mut Origins, from: &[EventId]) {
    if into.is_empty() && from.len() <= ORIGINS_MAX && from.is_sorted_by(|a, b| a < b) {
        into.extend_from_slice(from);
        return;
    }
    for &event in from {
        if let Err(at) = into.binary_search(&event)
            && into.len() < ORIGINS_MAX
        {
            into.insert(at, event);
        }
    }
}
