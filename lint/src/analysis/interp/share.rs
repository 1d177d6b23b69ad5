//! Shares: what a rank picks of common data for itself, by its rank, so that nothing says that
//! all ranks have equally many.

use super::{Interpreter, ObjectClass};
use crate::analysis::term::{RankKind, Taint, Term, TermKind};
use crate::analysis::value::Value;
use crate::model::{BinaryOp, CompareOp, Expr, ExprKind, Site};

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
