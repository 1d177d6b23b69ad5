//! Values: what a variable may hold, each alternative with the condition under which it does.

use smallvec::{SmallVec, smallvec};

use super::event::EventId;
use super::term::{Origins, Taint, Term, Terms};

#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Alternative {
    /// A condition, as a term.
    pub when: Term,
    pub term: Term,
}

/// More alternatives than this are one opaque value.
pub const ALTERNATIVES_MAX: usize = 6;

#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Value {
    pub alternatives: SmallVec<[Alternative; 2]>,
}

impl Value {
    pub fn of(terms: &Terms, term: Term) -> Self {
        Self { alternatives: smallvec![Alternative { when: terms.yes, term }] }
    }

    /// The one term it is, whatever the path.
    pub fn single(&self) -> Option<Term> {
        match self.alternatives.as_slice() {
            [one] => Some(one.term),
            _ => None,
        }
    }

    pub fn terms(&self) -> impl Iterator<Item = Term> + '_ {
        self.alternatives.iter().map(|a| a.term)
    }

    pub fn taint(&self, terms: &Terms) -> Taint {
        self.alternatives
            .iter()
            .fold(Taint::NONE, |taint, a| taint.with(terms.taint(a.term)).with(terms.taint(a.when)))
    }

    pub fn origins(&self, terms: &Terms) -> Origins {
        let mut all = Origins::new();
        for term in self.terms() {
            all.extend(terms.origins(term).iter().copied());
        }
        all.sort_unstable();
        all.dedup();
        all
    }

    pub fn comes_from(&self, terms: &Terms, event: EventId) -> bool {
        self.terms().any(|t| terms.origins(t).contains(&event))
    }
}
