//! Rust's iterators and options: what closures make of their items.

use super::{Interpreter, ObjectClass};
use crate::analysis::event::ArgumentValue;
use crate::analysis::term::{Taint, Term, TermKind};
use crate::analysis::value::Value;
use crate::model::{Expr, ExprKind, Name, Site};

impl<'p> Interpreter<'p> {
    /// `items.map(|x| ..)` is a list of what the closure gives; of an `Option`, it is that itself.
    pub(super) fn iterator_method(
        &mut self,
        receiver: Term,
        method: &str,
        arguments: &[ArgumentValue<'p>],
        site: Site,
        expr: Option<&'p Expr>,
    ) -> Option<Value> {
        if !self.is_rust() {
            return None;
        }
        let is_list = self.object_of(receiver).is_some_and(|o| o.class == ObjectClass::List);
        let is_range = self.terms.range_bounds(receiver).is_some();
        match (method, arguments) {
            ("collect" | "peekable" | "fuse", []) if is_list || is_range => {
                Some(self.value(receiver))
            }
            // The number that a text spells: `env::var("RANK")?.parse()?`.
            ("parse" | "trim", []) if self.object_of(receiver).is_none() => {
                Some(self.value(receiver))
            }
            // Whatever is counted, the count is the same for all ranks.
            ("enumerate", []) => {
                // At a place of its own: what is made at one place is one value.
                let item = self.item_of_term(receiver).single()?;
                let index = self.fresh(site, Taint::NONE, &[]);
                self.counters.insert(index);
                let pair = self.terms.make(TermKind::Tuple(Box::new([index, item])));
                let pair = self.value(pair);
                let list = self.list(site, vec![pair], true);
                Some(self.value(list))
            }
            ("map", [closure]) => {
                let is_closure = |t: Term| matches!(self.terms.kind(t), TermKind::Function { .. });
                if receiver == self.terms.none || !closure.value.single().is_some_and(is_closure) {
                    return None;
                }
                let iterates = is_list || is_iterator(called_on(expr?)?);
                Some(self.mapped(receiver, closure, iterates, site))
            }
            ("fold", [start, closure]) => {
                let item = self.item_at(receiver, site);
                let given = [start.value.clone(), item];
                self.closure_given(closure, given.into(), site)
            }
            ("filter", [closure]) => {
                let item = self.item_at(receiver, site);
                let kept = self.closure_given(closure, vec![item], site)?.single()?;
                let of = [self.value(receiver)];
                self.is_rank_pick(kept).then(|| self.share(site, &of))
            }
            _ => None,
        }
    }

    /// What a closure gives for these values.
    fn closure_given(
        &mut self,
        closure: &ArgumentValue<'p>,
        values: Vec<Value>,
        site: Site,
    ) -> Option<Value> {
        let function = closure.value.single()?;
        if !matches!(self.terms.kind(function), TermKind::Function { .. }) {
            return None;
        }
        let arguments = values.into_iter().enumerate().map(|(position, value)| ArgumentValue {
            name: None,
            position: Some(position),
            expr: closure.expr,
            value,
            spread: false,
        });
        Some(self.call_value(&closure.value, arguments.collect(), site, None))
    }

    fn mapped(
        &mut self,
        receiver: Term,
        closure: &ArgumentValue<'p>,
        iterates: bool,
        site: Site,
    ) -> Value {
        let value = if iterates { self.item_at(receiver, site) } else { self.value(receiver) };
        let item = ArgumentValue {
            name: None,
            position: Some(0),
            expr: closure.expr,
            value,
            spread: false,
        };
        let made = self.call_value(&closure.value, vec![item], site, None);
        if !iterates {
            return made;
        }
        let list = self.list(site, vec![made], true);
        self.value(list)
    }
}

/// `x` of `x.method(..)`.
fn called_on(call: &Expr) -> Option<&Expr> {
    let ExprKind::Call { callee, .. } = &call.kind else { return None };
    match &callee.kind {
        ExprKind::Attribute { value, .. } => Some(value),
        _ => None,
    }
}

/// Written so that it can only be an iterator, not an `Option` or `Result`.
fn is_iterator(expr: &Expr) -> bool {
    let ExprKind::Call { callee, .. } = &expr.kind else { return false };
    match &callee.kind {
        ExprKind::Name(name) => *name == Name::new("range"),
        ExprKind::Attribute { value, name, .. } => match name.as_str() {
            "chain" | "chars" | "chunks" | "chunks_exact" | "drain" | "enumerate" | "epoch"
            | "into_iter" | "into_keys" | "into_values" | "iter" | "iter_mut" | "keys"
            | "lines" | "peekable" | "rev" | "skip" | "split" | "step_by" | "take"
            | "take_while" | "values" | "values_mut" | "windows" => true,
            "by_ref" | "cloned" | "copied" | "filter" | "filter_map" | "flat_map" | "inspect"
            | "map" | "zip" => is_iterator(value),
            _ => false,
        },
        _ => false,
    }
}
