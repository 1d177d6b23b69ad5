//! Questions about data and training: which loaders are trained on, what is sharded, what a
//! rank's own share of the data went into.

use super::facts::Wrapper;
use super::{
    Call, Event, EventId, EventKind, Forward, LoopId, LoopNode, Object, Program, SAMPLES, Taint,
    Term, TermKind, Value, Via,
};
use crate::model::{BinaryOp, CompareOp, Expr, FileId, Language, Name, Site};
use crate::table::Role;

/// Terms are looked into this far.
const DEPTH_MAX: u32 = 12;
/// Terms are taken apart into so many parts.
const PARTS_MAX: usize = 256;

impl<'p> Program<'p> {
    /// The forward of a DDP wrapper whose gradients a backward reduces.
    pub fn reduced_by(&self, backward: &Event<'p>) -> Option<EventId> {
        let call = backward.call()?;
        let values = call.receiver.iter().chain(call.arguments.iter().map(|a| &a.value));
        let mut origins = values.flat_map(|value| value.origins(self.terms()));
        origins.find(|&origin| {
            let event = self.event(origin);
            let EventKind::Forward(forward) = &event.kind else { return false };
            let Via::Wrapper(wrapper) = forward.via else { return false };
            event.modes.grad
                && !event.modes.no_sync
                && self.wrapper_kind(wrapper) == Some(Wrapper::Ddp)
        })
    }

    /// What a value may be in a distributed run.
    pub fn live_terms<'v>(&'v self, value: &'v Value) -> impl Iterator<Item = Term> + 'v {
        let can_hold = |when: Term| {
            SAMPLES
                .iter()
                .any(|&sample| self.terms().evaluate(when, sample).is_none_or(super::term::truth))
        };
        value.alternatives.iter().filter(move |a| can_hold(a.when)).map(|a| a.term)
    }

    /// The events behind a value, those of what a container holds included.
    pub fn origins_of(&self, value: &Value) -> super::term::Origins {
        self.run.deep_origins(value)
    }

    /// The wrapper that a forward runs, or goes round.
    pub fn ddp_of(&self, forward: &Forward<'p>) -> Option<super::ObjectId> {
        let (Via::Wrapper(id) | Via::Inner(id) | Via::Alias(id)) = forward.via else {
            return None;
        };
        (self.wrapper_kind(id) == Some(Wrapper::Ddp)).then_some(id)
    }

    /// The forwards of a distributed model whose outputs feed a backward.
    pub fn ddp_training(&self) -> impl Iterator<Item = (&Event<'p>, &Forward<'p>)> {
        self.forwards().filter(|(event, forward)| {
            event.modes.grad && self.ddp_of(forward).is_some() && self.trained().contains(&event.id)
        })
    }

    /// The loaders of the program.
    pub fn loaders(&self) -> impl Iterator<Item = &Object<'p>> {
        self.objects().iter().filter(|object| object.role == Role::Loader)
    }

    /// An argument that an object was made with.
    pub fn made_with<'o>(&self, object: &'o Object<'p>, name: &str) -> Option<&'o Value> {
        object.arguments.iter().find(|a| a.name.is_some_and(|n| &*n == name)).map(|a| &a.value)
    }

    /// The loops that walk over a loader.
    pub fn loops_of_loader(
        &self,
        loader: &Object<'p>,
    ) -> impl Iterator<Item = (LoopId, &LoopNode)> {
        let term = self.term_of(loader.id);
        self.all_loops()
            .filter(move |(_, node)| node.over.is_some_and(|over| self.walks(over, term)))
    }

    /// A training forward of a distributed model that is fed by this loader.
    pub fn training_fed_by(&self, loader: &Object<'p>) -> Option<(&Event<'p>, &Forward<'p>)> {
        let made = loader.event?;
        let loops: Vec<Site> = self.loops_of_loader(loader).map(|(_, node)| node.site).collect();
        self.ddp_training().find(|(event, forward)| {
            forward.arguments.iter().any(|a| self.origins_of(&a.value).contains(&made))
                || self.loops(event.loops).any(|(_, node)| loops.contains(&node.site))
        })
    }

    /// Something of a value says the rank itself: not merely data that differs between ranks.
    pub fn tells_rank(&self, value: &Value) -> bool {
        value.terms().any(|term| self.term_tells_rank(term, DEPTH_MAX))
    }

    fn term_tells_rank(&self, term: Term, depth: u32) -> bool {
        let terms = self.terms();
        if let Some(object) = self.object_of(term).filter(|_| depth > 0) {
            return self.run.deep_facts_of(term).0.has(Taint::RANK)
                || object
                    .arguments
                    .iter()
                    .flat_map(|a| a.value.terms())
                    .any(|t| self.term_tells_rank(t, depth / 2));
        }
        let any = |parts: &[Term]| parts.iter().any(|&t| self.term_tells_rank(t, depth - 1));
        match terms.kind(term) {
            _ if depth == 0 => false,
            TermKind::Text(parts) | TermKind::Tuple(parts) | TermKind::Apply(_, parts) => {
                any(parts)
            }
            TermKind::Binary(_, left, right) => any(&[*left, *right]),
            _ => {
                let taint = terms.taint(term);
                taint.has(Taint::RANK) && !taint.has(Taint::LOCAL.with(Taint::RANDOM))
            }
        }
    }

    /// Some seed differs between ranks.
    pub fn seeds_by_rank(&self) -> bool {
        self.calls(Role::Seed).any(|(event, call)| {
            call.arguments.iter().any(|a| a.spread || a.value.taint(self.terms()).has(Taint::RANK))
                || self.is_guarded(event.path)
        })
    }

    /// A sampler that gives each rank a share of its own, as the tables know them.
    pub fn is_distributed_sampler(&self, term: Term) -> bool {
        self.object_of(term).is_some_and(|o| {
            o.role == Role::DistributedSampler
                || o.arguments
                    .iter()
                    .any(|a| o.role == Role::OtherSampler && self.is_sharding(&a.value))
        })
    }

    fn is_sharding(&self, value: &Value) -> bool {
        value.terms().any(|term| self.is_distributed_sampler(term))
    }

    /// A loader that gives each rank a share of its own, by a sampler that is known.
    pub fn is_sharded(&self, loader: &Object<'p>) -> bool {
        ["sampler", "batch_sampler"]
            .iter()
            .any(|name| self.made_with(loader, name).is_some_and(|v| self.is_sharding(v)))
    }

    /// What gives each rank its share of the data: loaders with a sampler that does, and the
    /// samplers of tch-ddp, which are walked over themselves.
    pub fn shares(&self) -> impl Iterator<Item = &Object<'p>> {
        let is_rust = self.language == Language::Rust;
        self.objects().iter().filter(move |object| match object.role {
            Role::Loader => self.is_sharded(object),
            Role::DistributedSampler => is_rust,
            _ => false,
        })
    }

    /// What an object was made with, or what a builder's method set later.
    pub fn setting<'o>(&'o self, object: &'o Object<'p>, name: &str) -> Option<&'o Value> {
        let set = self.attribute_now(self.term_of(object.id), name);
        set.or_else(|| self.made_with(object, name))
    }

    /// What a builder's method was given, as it is written.
    pub fn written_setting(&self, object: &Object<'p>, name: &str) -> Option<(FileId, &'p Expr)> {
        self.run.settings.get(&(self.term_of(object.id), Name::new(name))).copied()
    }

    /// Inside a closure that is a layer of a model: `seq.add_fn(|x| ..)`, `nn::func(|x| ..)`.
    pub fn is_in_layer_closure(&self, event: &Event<'p>) -> bool {
        let Some(function) = self.frame(event.frame).function else { return false };
        let span = self.function(function).span;
        let is_layer = |call: &Call<'p>| {
            let makers = ["add_fn", "add_fn_t", ".func", ".func_t"];
            call.name.is_some_and(|name| makers.iter().any(|maker| name.ends_with(maker)))
        };
        self.language == Language::Rust
            && [Role::AddModule, Role::Layer].iter().any(|&role| {
                self.calls(role).any(|(built, call)| {
                    built.site.file == function.file
                        && is_layer(call)
                        && call.arguments.iter().any(|a| a.expr.span.contains(span))
                })
            })
    }

    /// The events of a role behind a value, with their calls.
    pub fn calls_behind(&self, value: &Value, role: Role) -> Vec<(&Event<'p>, &Call<'p>)> {
        let origins = self.origins_of(value);
        let calls = origins.into_iter().filter_map(|origin| match &self.event(origin).kind {
            EventKind::Call(call) if call.role == role => Some((self.event(origin), call)),
            _ => None,
        });
        calls.collect()
    }

    /// The events of forwards behind a value.
    pub fn forwards_behind(&self, value: &Value) -> Vec<EventId> {
        let mut forwards = self.origins_of(value).to_vec();
        forwards.retain(|&origin| matches!(self.event(origin).kind, EventKind::Forward(_)));
        forwards
    }

    /// The first line of a loop.
    pub fn loop_head(&self, node: &LoopNode) -> Site {
        self.head_of(node.site)
    }

    /// The first line of a statement.
    pub fn head_of(&self, site: Site) -> Site {
        let text = self.text(site);
        let length = text.find(['\n', '\r']).unwrap_or(text.len());
        let end = site.span.start + length as u32;
        Site { file: site.file, span: crate::model::Span { start: site.span.start, end } }
    }

    /// The names of outside classes and calls that a class of the project is made of.
    pub fn derives_from(&self, object: &Object<'p>, base: &str) -> bool {
        object
            .row
            .and_then(|row| row.name)
            .is_some_and(|name| self.table().is_a(name, Name::new(base)))
    }

    /// Where a quotient was first formed.
    pub fn division_site(&self, term: Term) -> Option<Site> {
        self.run.divisions.get(&term).copied()
    }

    /// The operator and operands of a computed value, opaque ones of Rust included.
    pub fn arithmetic_of(&self, term: Term) -> Option<(BinaryOp, Term, Term)> {
        match *self.terms().kind(term) {
            TermKind::Binary(op, left, right) => Some((op, left, right)),
            _ => self.run.arithmetic.get(&term).copied(),
        }
    }

    /// Where a quotient was formed that depends on just what a value depends on.
    pub fn division_behind(&self, value: Term) -> Option<Site> {
        let origins = self.terms().origins(value);
        let alike = |term: &Term| {
            let of = self.terms().origins(*term);
            of.len() <= origins.len()
                && of.len() + 2 >= origins.len()
                && of.iter().all(|origin| origins.contains(origin))
        };
        let sites = self.run.divisions.iter().filter(|(term, _)| alike(term));
        sites.map(|(_, site)| *site).max_by_key(|site| (site.file.0, site.span.start))
    }

    /// The terms that a term is written with, itself included.
    pub fn parts_of(&self, term: Term) -> Vec<Term> {
        let terms = self.terms();
        let mut parts = vec![term];
        let mut at = 0;
        while at < parts.len() && parts.len() < PARTS_MAX {
            let inner: Vec<Term> = match terms.kind(parts[at]) {
                TermKind::Attribute(of, _) | TermKind::Not(of) | TermKind::Negative(of) => {
                    vec![*of]
                }
                TermKind::Item(a, b) | TermKind::Binary(_, a, b) | TermKind::Compare(_, a, b) => {
                    vec![*a, *b]
                }
                TermKind::Opaque { .. } => match self.run.arithmetic.get(&parts[at]) {
                    Some((_, left, right)) => vec![*left, *right],
                    None => self.run.method_of.get(&parts[at]).copied().into_iter().collect(),
                },
                TermKind::Apply(_, inner)
                | TermKind::And(inner)
                | TermKind::Or(inner)
                | TermKind::Tuple(inner)
                | TermKind::Text(inner) => inner.to_vec(),
                _ => Vec::new(),
            };
            for part in inner {
                if !parts.contains(&part) {
                    parts.push(part);
                }
            }
            at += 1;
        }
        parts
    }

    /// A number of processes or devices went into a value.
    pub fn counts_ranks(&self, value: &Value) -> bool {
        value.terms().any(|term| {
            self.parts_of(term).iter().any(|&part| self.terms().rank_kind(part).is_some())
        })
    }

    /// The optimizers that an event steps.
    pub fn stepped(&self, call: &Call<'p>) -> Vec<&Object<'p>> {
        let value = match call.role {
            Role::ScalerStep => call.value_at(0, "optimizer"),
            _ => call.receiver.as_ref(),
        };
        value.into_iter().flat_map(Value::terms).filter_map(|t| self.object_of(t)).collect()
    }

    /// An optimizer that updates what this wrapper holds.
    pub fn updates(&self, optimizer: &Object<'p>, wrapper: super::ObjectId) -> bool {
        let Some(parameters) = self.made_with(optimizer, "params") else { return false };
        let held: Vec<Term> =
            self.wrapped_module(wrapper).into_iter().flat_map(Value::terms).collect();
        let this = self.term_of(wrapper);
        self.modules_behind(parameters)
            .into_iter()
            .any(|module| module == this || held.contains(&self.run.stored(module)))
    }

    /// A step that updates what a wrapper holds. Of tch: the wrapper's own step, or that of an
    /// optimizer which is not known to be built on another store.
    pub fn steps_wrapper(&self, step: &Call<'p>, wrapper: super::ObjectId) -> bool {
        if self.language != Language::Rust {
            return self.stepped(step).into_iter().any(|o| self.updates(o, wrapper));
        }
        let Some(receiver) = step.receiver.as_ref().and_then(Value::single) else { return true };
        if let Some((stepped, _)) = self.wrapper_of(receiver) {
            return stepped == wrapper;
        }
        let store = self.object_of(receiver).and_then(|o| self.made_with(o, "vs"));
        let Some(store) = store.and_then(Value::single) else { return true };
        let held = self.made_with(self.object(wrapper), "vs").and_then(Value::single);
        let of = self.attribute_now(store, "<of>").and_then(Value::single);
        of == Some(self.term_of(wrapper)) || held == Some(store) || self.object_of(store).is_none()
    }

    /// The events of optimizer steps, a gradient scaler's included.
    pub fn optimizer_steps(&self) -> impl Iterator<Item = (&Event<'p>, &Call<'p>)> {
        self.calls(Role::OptimizerStep).chain(self.calls(Role::ScalerStep))
    }

    /// The outermost frame of the run that an event belongs to: the entry's, or that of code
    /// nobody calls.
    pub fn root_frame(&self, event: &Event<'p>) -> super::FrameId {
        let mut at = event.frame;
        while let Some(caller) = self.frame(at).caller {
            at = caller;
        }
        at
    }

    /// The loops around an event stand in this order: whether the event is in the loop there.
    pub fn is_within(&self, event: &Event<'p>, site: Site) -> bool {
        self.loops(event.loops).any(|(_, node)| node.site == site)
    }

    /// The conditions of an event that count rounds: `(i + 1) % n == 0`, `seen + 1 == n`.
    pub fn counted_conditions(&self, event: &Event<'p>) -> Vec<Term> {
        let terms = self.terms();
        let counter = |t: Term| match *terms.kind(t) {
            TermKind::Binary(BinaryOp::Add, count, by) => {
                terms.as_int(by).is_some()
                    && terms.taint(count) == Taint::NONE
                    && matches!(terms.kind(count), TermKind::Opaque { .. })
            }
            _ => false,
        };
        let counts = |kind: &TermKind| match *kind {
            TermKind::Binary(BinaryOp::Mod, _, by) => terms.as_int(by) != Some(1),
            TermKind::Compare(CompareOp::Eq | CompareOp::LtE, a, b) => counter(a) || counter(b),
            _ => false,
        };
        self.conditions(event.path)
            .map(|node| node.condition)
            .filter(|&condition| self.mentions(condition, &counts))
            .collect()
    }

    /// The wrappers whose gradients a backward reduces, with their forwards.
    pub fn reduces(&self, call: &Call<'p>) -> Vec<(&Event<'p>, super::ObjectId)> {
        let mut through = self.wrappers_behind(call);
        through.retain(|(forward, _)| forward.modes.grad && !forward.modes.no_sync);
        through
    }

    /// Which wrappers a backward sends gradients through.
    pub fn wrappers_behind(&self, call: &Call<'p>) -> Vec<(&Event<'p>, super::ObjectId)> {
        let values = call.receiver.iter().chain(call.arguments.iter().map(|a| &a.value));
        let mut found: Vec<(&Event<'p>, super::ObjectId)> = Vec::new();
        for origin in values.flat_map(|value| self.forwards_behind(value)) {
            let event = self.event(origin);
            if let EventKind::Forward(forward) = &event.kind
                && let Via::Wrapper(id) = forward.via
                && self.wrapper_kind(id) == Some(Wrapper::Ddp)
                && !found.iter().any(|(known, _)| known.id == event.id)
            {
                found.push((event, id));
            }
        }
        found
    }
}
