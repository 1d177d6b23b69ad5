//! Tensors whose size each rank decides for itself: rows that a mask picks, or as many as the
//! rank's own share of the data has.

use super::{Interpreter, Key, ObjectClass};
use crate::analysis::event::ArgumentValue;
use crate::analysis::term::{Taint, Term, TermKind};
use crate::analysis::value::Value;
use crate::model::{Expr, ExprKind, Name};

/// Pick as many as there happen to be.
const PICKS: [&str; 6] =
    ["argwhere", "flatnonzero", "masked_select", "nonzero", "unique", "unique_consecutive"];

/// Make one tensor of as many as a list holds.
const JOINS: [&str; 10] = [
    "array",
    "as_tensor",
    "asarray",
    "cat",
    "concat",
    "concatenate",
    "hstack",
    "stack",
    "tensor",
    "vstack",
];

/// Keep the number of rows.
const KEEPS: [&str; 16] = [
    "clone",
    "contiguous",
    "cpu",
    "cuda",
    "detach",
    "double",
    "float",
    "from_numpy",
    "half",
    "int",
    "long",
    "numpy",
    "shallow_clone",
    "to",
    "to_device",
    "to_kind",
];

impl<'p> Interpreter<'p> {
    /// `scores[scores > 0.5]`.
    pub(super) fn picks_by_mask(&self, index: &Expr, value: &Value) -> bool {
        let is_mask = |term: Term| {
            matches!(self.terms.kind(term), TermKind::Compare(..))
                && self.terms.taint(term).has(Taint::LOCAL)
        };
        let written = matches!(index.kind, ExprKind::Compare { .. } | ExprKind::Name(_));
        written && value.single().is_some_and(is_mask)
    }

    /// A call that gives something of a size that ranks may not agree on.
    pub(super) fn gives_ragged(
        &self,
        name: Name,
        receiver: Option<Term>,
        arguments: &[ArgumentValue<'p>],
    ) -> bool {
        let last = name.rsplit('.').next().unwrap_or_default();
        let first = || arguments.first().and_then(|a| a.value.single());
        if PICKS.contains(&last) {
            let of = receiver.or_else(first);
            return of.is_some_and(|term| self.terms.taint(term).has(Taint::LOCAL));
        }
        if JOINS.contains(&last) {
            return first().is_some_and(|term| self.ragged.contains(&term) || self.is_grown(term));
        }
        KEEPS.contains(&last)
            && receiver.or_else(first).is_some_and(|term| self.ragged.contains(&term))
    }

    pub(super) fn note_ragged(&mut self, value: &Value) {
        let is_made = |term: &Term| !matches!(self.terms.kind(*term), TermKind::Const(_));
        let made: Vec<Term> = value.terms().filter(is_made).collect();
        self.ragged.extend(made);
    }

    /// A list that a loop over the rank's own share adds to.
    fn is_grown(&self, list: Term) -> bool {
        let is_list = self.object_of(list).is_some_and(|o| o.class == ObjectClass::List);
        let items = self.store.get(&Key::Attribute(list, Name::new("<items>")));
        is_list && items.is_some_and(|items| items.taint(&self.terms).has(Taint::SHARE))
    }
}
