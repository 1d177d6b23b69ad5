//! Shares: what a rank picks of common data for itself, by its rank, so that nothing says that
//! all ranks have equally many.

use super::{Interpreter, ObjectClass};
use crate::analysis::event::ArgumentValue;
use crate::analysis::term::{RankKind, Taint, Term, TermKind};
use crate::analysis::value::Value;
use crate::model::{BinaryOp, CompareOp, Expr, ExprKind, Name, Site};
use crate::table::{Role, Row};

/// Parts of a number that are looked into.
const ROUNDED_DEPTH_MAX: u32 = 6;

impl<'p> Interpreter<'p> {
    /// `[rank::world]`: every rank gets what is left for it. With an upper bound somebody
    /// counted, and the shares are taken for equal.
    pub(super) fn is_rank_slice(&mut self, index: &'p Expr) -> bool {
        let ExprKind::Slice { lower: Some(lower), upper: None, step: Some(step) } = &index.kind
        else {
            return false;
        };
        let (lower, step) = (self.eval_quietly(lower), self.eval_quietly(step));
        self.strides(&lower, &step)
    }

    /// `[rank * per : (rank + 1) * per]`, where `per` is rounded up: the last rank has less.
    pub(super) fn is_rank_chunk(&mut self, index: &'p Expr) -> bool {
        let ExprKind::Slice { lower: Some(lower), upper: Some(upper), step: None } = &index.kind
        else {
            return false;
        };
        let (lower, upper) = (self.eval_quietly(lower), self.eval_quietly(upper));
        let by_rank = |value: &Value| value.taint(&self.terms).has(Taint::RANK);
        by_rank(&lower)
            && by_rank(&upper)
            && lower.single().is_some_and(|term| self.rounds_up(term, ROUNDED_DEPTH_MAX))
    }

    /// `ceil(n / world)`, `(n + world - 1) // world`, `-(-n // world)` and what is made of it.
    fn rounds_up(&self, term: Term, depth: u32) -> bool {
        if depth == 0 {
            return false;
        }
        let counts_ranks = |by: Term| {
            let kind = self.terms.rank_kind(by);
            matches!(kind, Some(RankKind::WorldSize | RankKind::LocalWorldSize))
        };
        match self.terms.kind(term) {
            TermKind::Apply(name, parts) if name.ends_with("ceil") => parts.iter().any(|&part| {
                matches!(self.terms.kind(part), TermKind::Binary(BinaryOp::Div, _, by)
                    if counts_ranks(*by))
            }),
            TermKind::Binary(BinaryOp::FloorDiv, of, by) if counts_ranks(*by) => {
                matches!(
                    self.terms.kind(*of),
                    TermKind::Binary(BinaryOp::Add | BinaryOp::Sub, ..) | TermKind::Negative(_)
                )
            }
            TermKind::Binary(_, a, b) => {
                self.rounds_up(*a, depth - 1) || self.rounds_up(*b, depth - 1)
            }
            TermKind::Negative(of) => self.rounds_up(*of, depth - 1),
            TermKind::Apply(_, parts) => parts.iter().any(|&p| self.rounds_up(p, depth - 1)),
            _ => false,
        }
    }

    /// `array_split(items, world)[rank]`: the first parts have one item more.
    pub(super) fn is_uneven_part(&self, of: &Value, index: &Value) -> bool {
        let is_parts = of.single().is_some_and(|term| self.uneven_parts.contains(&term));
        is_parts && index.taint(&self.terms).has(Taint::RANK)
    }

    /// What is read from a path of this rank's own, or found there: as much as it has.
    pub(super) fn reads_by_rank(
        &self,
        name: Name,
        row: Option<&Row>,
        arguments: &[ArgumentValue<'p>],
    ) -> bool {
        let last = name.rsplit('.').next().unwrap_or_default();
        let lists = matches!(last, "glob" | "iglob" | "listdir" | "scandir");
        let loads = row.is_some_and(|row| matches!(row.role, Role::Load | Role::ReadFile));
        (lists || loads)
            && arguments.first().is_some_and(|a| a.value.taint(&self.terms).has(Taint::RANK))
    }

    /// Notes what splits items into parts of unequal size.
    pub(super) fn note_parts(&mut self, name: Name, parts: &Value) {
        let last = name.rsplit('.').next().unwrap_or_default();
        if matches!(last, "array_split" | "tensor_split") {
            self.uneven_parts.extend(parts.terms());
        }
    }

    /// A start by rank and a step of the number of ranks.
    pub(super) fn strides(&self, start: &Value, step: &Value) -> bool {
        let counts = |kind| matches!(kind, RankKind::WorldSize | RankKind::LocalWorldSize);
        start.taint(&self.terms).has(Taint::RANK)
            && step.single().and_then(|t| self.terms.rank_kind(t)).is_some_and(counts)
    }

    /// A value that is a rank's own share of others.
    pub(super) fn share(&mut self, site: Site, of: &[Value]) -> Value {
        let term = self.derived(site, &of.iter().collect::<Vec<_>>());
        let origins = self.terms.origins(term).to_vec();
        let taint = self.terms.taint(term).with(Taint::SHARE);
        let term = self.fresh(site, taint, &origins);
        self.value(term)
    }

    /// A share cut to a length: all ranks have equally many.
    pub(super) fn cut(&mut self, site: Site, share: Value) -> Value {
        let Some(term) = share.single() else { return share };
        let (taint, origins) = self.deep_facts(term, 3);
        if !taint.has(Taint::SHARE) {
            return share;
        }
        let instance = self.frame.0 | 1 << 27;
        let term = self.terms.opaque(site, instance, taint.without(Taint::SHARE), &origins);
        self.value(term)
    }

    /// A condition in force in this function picks items by rank.
    pub(super) fn picks_by_rank(&self) -> bool {
        let base = self.frame().path_base;
        let conditions = self.path.get(base..).unwrap_or_default();
        conditions.iter().any(|id| self.is_rank_pick(self.paths[id.0 as usize].condition))
    }

    /// A loop around, in this function, walks over a share.
    pub(super) fn walks_share(&self) -> bool {
        let mut at = self.loop_now;
        while let Some(id) = at {
            let node = &self.loops[id.0 as usize];
            if node.frame != self.frame {
                return false;
            }
            if node.over.is_some_and(|over| self.deep_facts(over, 3).0.has(Taint::SHARE)) {
                return true;
            }
            at = node.parent;
        }
        false
    }

    /// `i % world == rank`.
    pub(in crate::analysis) fn is_rank_pick(&self, condition: Term) -> bool {
        match self.terms.kind(condition) {
            TermKind::Compare(CompareOp::Eq, a, b) => {
                let is_rank = |t: Term| self.terms.rank_kind(t).is_some_and(RankKind::differs);
                let wraps = |t: Term| match self.terms.kind(t) {
                    TermKind::Binary(BinaryOp::Mod, left, by) => {
                        self.terms.rank_kind(*left).is_none()
                            && self.terms.as_const(*left).is_none()
                            && self.terms.rank_kind(*by).is_some()
                    }
                    _ => false,
                };
                is_rank(*a) && wraps(*b) || is_rank(*b) && wraps(*a)
            }
            TermKind::And(parts) => parts.iter().any(|&p| self.is_rank_pick(p)),
            TermKind::Not(inner) => self.is_rank_pick(*inner),
            _ => false,
        }
    }

    /// Notes objects that the outside world gets: what it does with them is unknown.
    pub(super) fn give_away<'v>(&mut self, values: impl IntoIterator<Item = &'v Value>) {
        for value in values {
            for term in value.terms() {
                let Some(object) = self.object_of(term) else { continue };
                let is_container = matches!(object.class, ObjectClass::List | ObjectClass::Dict);
                self.given_away.insert(term);
                if is_container {
                    let held: Vec<Term> = self
                        .contents(term)
                        .iter()
                        .flat_map(|v| v.terms().collect::<Vec<_>>())
                        .collect();
                    self.given_away.extend(held);
                }
            }
        }
    }
}
