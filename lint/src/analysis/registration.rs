//! Where tch registers variables: which path of which store a layer or tensor stands on.

use super::{Call, Event, LoopNode, Program, Term, TermKind, Value};
use crate::model::Site;
use crate::table::Role;

/// A path, as the store (or whatever it begins with) and the names below it.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct VariablePath {
    /// A `VarStore`, the wrapper that lends it, or a path that a function is given.
    pub root: Term,
    /// From the root down.
    pub names: Vec<Term>,
}

/// Paths are followed this far up.
const DEPTH_MAX: usize = 64;

impl<'p> Program<'p> {
    /// Which path a value of type `nn::Path` is, where that is one whatever happens.
    pub fn variable_path(&self, path: Term) -> Option<VariablePath> {
        let single = |of: Term, name: &str| self.attribute_now(of, name).and_then(Value::single);
        let mut names = Vec::new();
        let mut at = path;
        for _ in 0..DEPTH_MAX {
            if let Some(parent) = single(at, "<parent>") {
                names.push(single(at, "<name>")?);
                at = parent;
                continue;
            }
            let Some(of) = single(at, "<of>") else { break };
            if !self.is_outside(at, "tch.nn.Path") {
                break;
            }
            if !self.is_outside(of, "tch.nn.Path") {
                at = self.lender(of);
                break;
            }
            // `set_group` gives the same path, in another group.
            let object = self.object_of(at)?;
            if let Some(name) = object.arguments.iter().find(|a| a.name.is_some_and(|n| &*n == "s"))
            {
                names.push(name.value.single()?);
            }
            at = of;
        }
        names.reverse();
        Some(VariablePath { root: at, names })
    }

    /// A store that a wrapper lends (`ddp.vars()`) stands for the wrapper; else the store.
    fn lender(&self, store: Term) -> Term {
        let of = self.attribute_now(store, "<of>").and_then(Value::single);
        of.filter(|&of| self.wrapper_of(of).is_some()).unwrap_or(store)
    }

    /// An instance of that outside class.
    pub fn is_outside(&self, term: Term, class: &str) -> bool {
        let object = self.object_of(term);
        object.and_then(|o| self.outside_class(o)).is_some_and(|name| &*name == class)
    }

    /// Every call that registers variables on a path of tch, with that path.
    pub fn registrations(&self) -> Vec<(&Event<'p>, &Call<'p>, VariablePath)> {
        let mut found = Vec::new();
        for event in self.events() {
            let Some(call) = event.call() else { continue };
            let path = match call.role {
                Role::Layer => call.argument("vs").known().map(|a| &a.value),
                Role::RegisterParameter | Role::RegisterBuffer => {
                    let on_path = |t: Term| self.is_outside(t, "tch.nn.Path");
                    call.receiver.as_ref().filter(|v| v.single().is_some_and(on_path))
                }
                _ => None,
            };
            if let Some(path) = path.and_then(Value::single)
                && let Some(path) = self.variable_path(path)
            {
                found.push((event, call, path));
            }
        }
        found
    }

    /// Where a loop runs an event again on a path that was there before the loop: the call in
    /// the loop's body that leads to the event.
    pub fn repeated_on(&self, event: &Event<'p>, path: &VariablePath) -> Option<Site> {
        let is_fixed = path.names.iter().all(|&name| self.terms().as_const(name).is_some());
        let mut loops = self.loops(event.loops).filter(|_| is_fixed);
        let (_, around) = loops.find(|(_, node)| self.is_older(path.root, event, node))?;
        let (mut site, mut at) = (event.site, event.frame);
        while at != around.frame {
            let frame = self.frame(at);
            site = frame.call?;
            at = frame.caller?;
        }
        Some(site)
    }

    /// Made by the function that runs the loop, or by one that calls it, outside of the loop.
    fn is_older(&self, root: Term, event: &Event<'p>, around: &LoopNode) -> bool {
        let Some(made) = self.object_of(root).map(|o| o.site) else { return false };
        if made.file == around.site.file && around.site.span.contains(made.span) {
            return false;
        }
        let mut at = Some(event.frame);
        let mut inside = true;
        while let Some(frame) = at.map(|id| self.frame(id)) {
            inside = inside && frame.id != around.frame;
            if self.holds(frame.function.map(|f| (f, frame.file)), made) {
                return !inside;
            }
            at = frame.caller;
        }
        false
    }

    fn holds(
        &self,
        function: Option<(super::FunctionRef, crate::model::FileId)>,
        site: Site,
    ) -> bool {
        function.is_some_and(|(function, file)| {
            file == site.file && self.function(function).span.contains(site.span)
        })
    }

    /// The text of the function in which an event stands.
    pub fn function_text(&self, event: &Event<'p>) -> &'p str {
        let frame = self.frame(event.frame);
        match frame.function {
            Some(function) => {
                let span = self.function(function).span;
                self.text(Site { file: function.file, span })
            }
            None => "",
        }
    }

    /// The source text that a value was worked out from, if it is known by that alone.
    pub fn made_by(&self, term: Term) -> Option<(Site, &'p str)> {
        match self.terms().kind(term) {
            TermKind::Opaque { site, .. } => Some((*site, self.text(*site))),
            _ => None,
        }
    }
}
