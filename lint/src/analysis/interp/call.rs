//! Calls: binding arguments, running functions of the project, forwards of modules.

use smallvec::SmallVec;

use super::attribute::is_wrapper;
use super::{Frame, Interpreter, Key, ObjectClass};
use crate::analysis::event::{
    ArgumentValue, Call, EventId, EventKind, Forward, Modes, Node, PathId, Tree, Via,
};
use crate::analysis::term::{ClassRef, FrameId, FunctionRef, ObjectId, Taint, Term, TermKind};
use crate::analysis::value::{Alternative, Value};
use crate::model::{
    Argument, Expr, ExprKind, Function, Name, Parameter, ParameterKind, Site, Spread, Stmt,
    WithItem,
};
use crate::table::Role;

/// What a run of a function depends on.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub(super) struct MemoKey {
    function: FunctionRef,
    closure: Option<FrameId>,
    bound: Option<Term>,
    arguments: Vec<(Option<Name>, Value)>,
    modes: Modes,
    epoch: u64,
    known: u64,
    loops: Option<crate::analysis::event::LoopId>,
}

#[derive(Clone, Debug)]
pub(super) struct Memo {
    value: Value,
    tree: Tree,
}

/// A function to run: where it is, what it sees, its receiver.
#[derive(Clone, Copy)]
pub(super) struct Callee {
    pub(super) function: FunctionRef,
    pub(super) closure: Option<FrameId>,
    pub(super) bound: Option<Term>,
}

impl<'p> Interpreter<'p> {
    pub(super) fn call(
        &mut self,
        expr: &'p Expr,
        callee: &'p Expr,
        arguments: &'p [Argument],
    ) -> Value {
        let site = self.site(expr.span);
        if let ExprKind::Name(name) = &callee.kind
            && &**name == "super"
            && !self.is_rust()
        {
            return self.super_value(site);
        }
        if let Some(condition) = self.unknown_macro(callee, site) {
            // Whether and when a macro of the project runs its arguments is unknown.
            self.push_path(condition, site);
            let arguments = self.arguments(arguments);
            self.pop_path();
            let from: Vec<Value> = arguments.into_iter().map(|a| a.value).collect();
            return self.derived_value(site, &from);
        }
        let callee = self.eval(callee);
        let arguments = self.arguments(arguments);
        self.call_value(&callee, arguments, site, Some(expr))
    }

    fn unknown_macro(&mut self, callee: &'p Expr, site: Site) -> Option<Term> {
        let name = callee.last_name().filter(|n| self.is_rust() && n.ends_with('!'))?;
        let known = self.table.get(name).is_some()
            || self.eval_quietly(callee).single().is_some_and(|t| match self.terms.kind(t) {
                TermKind::Outside(name) => self.table.get(*name).is_some(),
                _ => false,
            });
        (!known).then(|| self.terms.make(TermKind::Parameter { site, name }))
    }

    pub(super) fn arguments(&mut self, arguments: &'p [Argument]) -> Vec<ArgumentValue<'p>> {
        let mut values = Vec::with_capacity(arguments.len());
        let mut position = 0;
        for argument in arguments {
            let value = self.eval(&argument.value);
            if argument.spread == Spread::Items
                && let Some(parts) = value.single().and_then(|t| self.sequence(t))
            {
                for value in parts {
                    values.push(ArgumentValue {
                        name: None,
                        position: Some(position),
                        expr: &argument.value,
                        value,
                        spread: false,
                    });
                    position += 1;
                }
                continue;
            }
            if argument.spread == Spread::Keywords
                && let Some((named, is_whole)) = value.single().and_then(|t| self.known_items(t))
            {
                values.extend(named.into_iter().map(|(name, value)| ArgumentValue {
                    name: Some(name),
                    position: None,
                    expr: &argument.value,
                    value,
                    spread: false,
                }));
                if is_whole {
                    continue;
                }
            }
            let spread = argument.spread != Spread::No;
            let at = (argument.name.is_none() && !spread).then_some(position);
            position += usize::from(at.is_some());
            let (name, expr) = (argument.name, &argument.value);
            values.push(ArgumentValue { name, position: at, expr, value, spread });
        }
        values
    }

    /// Calls whatever the callee may be, each alternative under its condition.
    pub(super) fn call_value(
        &mut self,
        callee: &Value,
        arguments: Vec<ArgumentValue<'p>>,
        site: Site,
        expr: Option<&'p Expr>,
    ) -> Value {
        match callee.alternatives.as_slice() {
            [] => self.nothing(),
            [only] => {
                let when = only.when;
                let value = self.call_term(only.term, arguments, site, expr);
                if self.settle(when) == Some(true) { value } else { self.when(when, value) }
            }
            [first, rest @ ..] => {
                let (when, term) = (first.when, first.term);
                let rest = Value { alternatives: rest.iter().copied().collect() };
                let mut values = (None, None);
                {
                    let (a, b) = (&mut values.0, &mut values.1);
                    let more = arguments.clone();
                    self.fork(
                        when,
                        site,
                        |this| {
                            *a = Some(this.call_term(term, arguments, site, expr));
                            this.terms.yes
                        },
                        |this| {
                            *b = Some(this.call_value(&rest, more, site, expr));
                            this.terms.yes
                        },
                    );
                }
                match values {
                    (Some(a), Some(b)) => self.join_bounded(when, &a, &b, site),
                    (Some(only), None) | (None, Some(only)) => only,
                    (None, None) => self.nothing(),
                }
            }
        }
    }

    pub(super) fn call_term(
        &mut self,
        callee: Term,
        arguments: Vec<ArgumentValue<'p>>,
        site: Site,
        expr: Option<&'p Expr>,
    ) -> Value {
        match self.terms.kind(callee).clone() {
            TermKind::Function { function, closure, bound } => {
                self.call_bound(Callee { function, closure, bound }, arguments, site, expr)
            }
            TermKind::Class(class) => self.instantiate(class, arguments, site),
            TermKind::Object(id) => self.call_object(id, callee, arguments, site, expr),
            // tch-ddp's `module()` is a method; what it gives is the module.
            TermKind::Inner(_) if self.is_rust() && arguments.is_empty() => self.value(callee),
            TermKind::Inner(id) => {
                self.forward(callee, Via::Inner(id), None, arguments, site, expr)
            }
            TermKind::Outside(name) => self.call_outside(name, arguments, site, expr),
            TermKind::Attribute(receiver, name) => {
                self.call_method_of(receiver, name, arguments, site, expr)
            }
            _ => self.call_unknown(callee, arguments, site, expr),
        }
    }

    /// A method reached through a wrapper's inner module counts as a way round the wrapper.
    fn call_bound(
        &mut self,
        callee: Callee,
        arguments: Vec<ArgumentValue<'p>>,
        site: Site,
        expr: Option<&'p Expr>,
    ) -> Value {
        let definition = self.function(callee.function);
        let Some(bound) = callee.bound else {
            return self.call_function(callee, &arguments, site, None);
        };
        let via = match *self.terms.kind(bound) {
            TermKind::Inner(wrapper) => Via::Inner(wrapper),
            _ => match self.wrapper_of(bound) {
                Some(wrapper) if self.modes.wrapper.is_none() => Via::Alias(wrapper),
                _ if self.is_rust() && is_forward(&definition.name) => {
                    return self.forward(bound, Via::Bare, Some(callee), arguments, site, expr);
                }
                _ => return self.call_function(callee, &arguments, site, None),
            },
        };
        self.forward(bound, via, Some(callee), arguments, site, expr)
    }

    pub(super) fn wrapper_of(&self, module: Term) -> Option<ObjectId> {
        let value = self.read(&Key::Wrapper(module))?;
        let [only] = value.alternatives.as_slice() else { return None };
        if self.settle(only.when) != Some(true) {
            return None;
        }
        match *self.terms.kind(only.term) {
            TermKind::Object(id) => self.may_have_run(self.object(id).path).then_some(id),
            _ => None,
        }
    }

    /// The conditions in force leave room for those of something that ran before.
    fn may_have_run(&self, path: PathId) -> bool {
        let mut at = Some(path);
        while let Some(PathId(id)) = at {
            let node = &self.paths[id as usize];
            if self.settle(node.condition) == Some(false) {
                return false;
            }
            at = node.parent;
        }
        true
    }

    fn call_object(
        &mut self,
        id: ObjectId,
        term: Term,
        arguments: Vec<ArgumentValue<'p>>,
        site: Site,
        expr: Option<&'p Expr>,
    ) -> Value {
        let object = self.object(id);
        let (role, class, row) = (object.role, object.class, object.row);
        if is_wrapper(role) {
            return self.forward(term, Via::Wrapper(id), None, arguments, site, expr);
        }
        if let Some(marked) = self.call_as_decorator(role, &arguments) {
            return marked;
        }
        if let ObjectClass::Outside(name) = class
            && &*name == "functools.partial"
        {
            return self.call_partial(term, arguments, site, expr);
        }
        self.call_application(term, site, expr);
        if role == Role::Loss {
            return self.told_call((Role::Loss, row), Some(term), arguments, site, expr);
        }
        let is_module = self.is_module(term);
        if is_module {
            let via = match self.wrapper_of(term) {
                Some(wrapper) if self.modes.wrapper.is_none() => Via::Alias(wrapper),
                _ => Via::Bare,
            };
            return self.forward(term, via, None, arguments, site, expr);
        }
        if let ObjectClass::Project(class) = class
            && let Some(found) = self.class_member(class, Name::new("__call__"))
            && let TermKind::Function { function, closure, .. } = *self.terms.kind(found)
        {
            let callee = Callee { function, closure, bound: Some(term) };
            return self.call_function(callee, &arguments, site, None);
        }
        self.call_unknown(term, arguments, site, expr)
    }

    fn call_partial(
        &mut self,
        partial: Term,
        more: Vec<ArgumentValue<'p>>,
        site: Site,
        expr: Option<&'p Expr>,
    ) -> Value {
        let Some(object) = self.object_of(partial) else { return self.nothing() };
        let mut stored = object.arguments.clone();
        if stored.is_empty() {
            return self.call_unknown(partial, more, site, expr);
        }
        let function = stored.remove(0).value;
        for argument in &mut stored {
            argument.position = argument.position.map(|p| p.saturating_sub(1));
        }
        let first = stored.iter().filter(|a| a.position.is_some()).count();
        stored.extend(more.into_iter().map(|mut a| {
            a.position = a.position.map(|p| p + first);
            a
        }));
        self.call_value(&function, stored, site, expr)
    }

    /// Runs a module's forward, through its wrapper or past it, and tells that it ran.
    #[expect(clippy::needless_pass_by_value, reason = "every caller has a list of its own to give")]
    pub(super) fn forward(
        &mut self,
        module: Term,
        via: Via,
        method: Option<Callee>,
        arguments: Vec<ArgumentValue<'p>>,
        site: Site,
        expr: Option<&'p Expr>,
    ) -> Value {
        let forward = Forward {
            module,
            via,
            method: method.map(|m| self.function(m.function).name).filter(|n| !is_forward(n)),
            arguments: arguments.clone(),
            result: self.nothing(),
        };
        let told = self.modes.forward.is_none() || via != Via::Bare;
        let modes = self.modes;
        let callee = method.or_else(|| self.forward_of(module));
        if let Some(callee) = callee {
            self.apply_marks(callee.function);
        }
        let event = told.then(|| self.push_event(EventKind::Forward(forward), site, expr));
        self.modes = modes;
        if let Via::Wrapper(wrapper) = via {
            self.modes.wrapper = Some(wrapper);
        }
        let ran = match callee {
            Some(mut callee) => {
                callee.bound = Some(self.stored_on(callee.bound.unwrap_or(module)));
                Some(self.call_function(callee, &arguments, site, Some(())))
            }
            None => self.run_sequential(module, &arguments, site),
        };
        self.modes = modes;
        let value = if let Some(value) = ran {
            self.with_origin(value, event, site)
        } else {
            let mut from: Vec<Value> = arguments.iter().map(|a| a.value.clone()).collect();
            from.extend(event.map(|e| self.marked(e, site)));
            self.derived_value(site, &from)
        };
        if let Some(event) = event
            && let EventKind::Forward(forward) = &mut self.events[event.0 as usize].kind
        {
            forward.result = value.clone();
        }
        value
    }

    /// A `Sequential` runs what it holds, one behind the other. Layers of the outside world
    /// tell nothing: without a module of the project nothing is run.
    fn run_sequential(
        &mut self,
        module: Term,
        arguments: &[ArgumentValue<'p>],
        site: Site,
    ) -> Option<Value> {
        let inner = match *self.terms.kind(module) {
            TermKind::Object(id) if is_wrapper(self.object(id).role) => {
                self.read(&Key::Attribute(module, Name::new("<module>")))?.single()?
            }
            _ => self.stored_on(module),
        };
        if self.object_of(inner)?.role != Role::Sequential {
            return None;
        }
        let held = self.contents(inner);
        let is_ours =
            |term| self.object_of(term).is_some_and(|o| matches!(o.class, ObjectClass::Project(_)));
        let first = arguments.first()?;
        if !held.iter().any(|value| value.terms().any(is_ours)) {
            return None;
        }
        let forward = self.modes.forward.replace(self.frame);
        let mut given = first.clone();
        for layer in held {
            let value = self.call_value(&layer, vec![given.clone()], site, None);
            given = ArgumentValue { name: None, position: Some(0), value, ..first.clone() };
        }
        self.modes.forward = forward;
        Some(given.value)
    }

    /// A value that comes from one event alone.
    fn marked(&mut self, event: EventId, site: Site) -> Value {
        let term = self.terms.opaque(site, self.frame.0 | 1 << 30, Taint::LOCAL, &[event]);
        self.value(term)
    }

    /// Adds an event to what a value comes from.
    pub(super) fn with_origin(
        &mut self,
        value: Value,
        event: Option<EventId>,
        site: Site,
    ) -> Value {
        let Some(event) = event else { return value };
        let mut alternatives: SmallVec<[Alternative; 2]> = SmallVec::new();
        for alternative in &value.alternatives {
            let term = self.term_with_origin(alternative.term, event, site);
            alternatives.push(Alternative { when: alternative.when, term });
        }
        Value { alternatives }
    }

    fn term_with_origin(&mut self, term: Term, event: EventId, site: Site) -> Term {
        match self.terms.kind(term).clone() {
            TermKind::Tuple(items) => {
                let items: Vec<Term> = items
                    .iter()
                    .enumerate()
                    .map(|(i, &t)| {
                        let mut at = site;
                        at.span.end = at.span.end.saturating_add(i as u32);
                        self.term_with_origin(t, event, at)
                    })
                    .collect();
                self.terms.make(TermKind::Tuple(items.into()))
            }
            TermKind::Object(id) => {
                let class = self.object(id).class;
                if matches!(class, ObjectClass::List | ObjectClass::Dict) {
                    let marked = self.marked(event, site);
                    self.add_item(term, &marked);
                }
                if let ObjectClass::Project(class) = class
                    && self.is_rust()
                    && !self.is_module_class(class)
                {
                    self.mark_fields(term, class, event, site);
                }
                term
            }
            TermKind::Const(_) | TermKind::Function { .. } | TermKind::Class(_) => term,
            _ => {
                let taint = self.terms.taint(term).with(Taint::LOCAL);
                let mut origins: crate::analysis::term::Origins =
                    self.terms.origins(term).iter().copied().collect();
                origins.push(event);
                origins.sort_unstable();
                self.terms.opaque(site, self.frame.0 | 1 << 31, taint, &origins)
            }
        }
    }

    /// What the fields of a struct hold that a forward gave comes from that forward.
    fn mark_fields(&mut self, of: Term, class: ClassRef, event: EventId, site: Site) {
        let definition = self.project.file(class.file).module.class(class.index);
        for (position, field) in definition.fields.iter().enumerate() {
            let key = Key::Attribute(of, field.name);
            let Some(mut value) = self.read(&key) else { continue };
            let mut at = site;
            at.span.end = at.span.end.saturating_add(position as u32 + 1);
            for alternative in &mut value.alternatives {
                if !matches!(self.terms.kind(alternative.term), TermKind::Object(_)) {
                    alternative.term = self.term_with_origin(alternative.term, event, at);
                }
            }
            self.write(key, value);
        }
    }

    /// The forward method of a module's class.
    pub(super) fn forward_of(&mut self, module: Term) -> Option<Callee> {
        let module = match *self.terms.kind(module) {
            TermKind::Object(id) if is_wrapper(self.object(id).role) => {
                let value = self.read(&Key::Attribute(module, Name::new("<module>")))?;
                value.single()?
            }
            _ => self.stored_on(module),
        };
        let ObjectClass::Project(class) = self.object_of(module)?.class else { return None };
        let names: &[&str] = if self.is_rust() { &["forward_t", "forward"] } else { &["forward"] };
        names.iter().find_map(|name| {
            let found = self.class_member(class, Name::new(name))?;
            match *self.terms.kind(found) {
                TermKind::Function { function, closure, .. } => {
                    Some(Callee { function, closure, bound: Some(module) })
                }
                _ => None,
            }
        })
    }

    /// A call of something unknown: what goes in may come out; functions that go in may run.
    pub(super) fn call_unknown(
        &mut self,
        callee: Term,
        arguments: Vec<ArgumentValue<'p>>,
        site: Site,
        expr: Option<&'p Expr>,
    ) -> Value {
        if let Some(wrapper) = self.wrapper_of(callee)
            && self.modes.wrapper.is_none()
        {
            return self.forward(callee, Via::Alias(wrapper), None, arguments, site, expr);
        }
        self.run_callbacks(&arguments, site);
        let mut from: Vec<Value> = arguments.into_iter().map(|a| a.value).collect();
        from.push(self.value(callee));
        self.give_away(&from);
        self.derived_value(site, &from)
    }

    /// Functions handed to something unknown are assumed to be called, with unknown arguments.
    pub(super) fn run_callbacks(&mut self, arguments: &[ArgumentValue<'p>], site: Site) {
        for argument in arguments {
            let functions: Vec<Term> = argument
                .value
                .terms()
                .filter(|&t| matches!(self.terms.kind(t), TermKind::Function { .. }))
                .collect();
            for function in functions {
                self.call_term(function, Vec::new(), site, None);
            }
        }
    }

    /// Tells a call with a role; its result depends on what went in, and on the call.
    pub(super) fn told_call(
        &mut self,
        (role, row): (Role, Option<&'p crate::table::Row>),
        receiver: Option<Term>,
        arguments: Vec<ArgumentValue<'p>>,
        site: Site,
        expr: Option<&'p Expr>,
    ) -> Value {
        let name = None;
        let receiver = receiver.map(|t| self.value(t));
        let mut from: Vec<Value> = arguments.iter().map(|a| a.value.clone()).collect();
        from.extend(receiver.clone());
        let result = self.nothing();
        let call = Call { role, row, name, receiver, arguments, result };
        let event = self.push_event(EventKind::Call(call), site, expr);
        let term = self.derived(site, &from.iter().collect::<Vec<_>>());
        let taint = self.terms.taint(term);
        let term = self.fresh(site, taint, &[event]);
        let value = self.value(term);
        self.set_result(event, &value);
        value
    }

    pub(super) fn set_result(&mut self, event: EventId, value: &Value) {
        if let EventKind::Call(call) = &mut self.events[event.0 as usize].kind {
            call.result = value.clone();
        }
    }

    /// Calls a method by name, where the value is an instance of a class that has it.
    pub(super) fn call_method(&mut self, of: &Value, name: &str, site: Site) -> Option<Value> {
        let term = of.single()?;
        let ObjectClass::Project(class) = self.object_of(term)?.class else { return None };
        let found = self.class_member(class, Name::new(name))?;
        let TermKind::Function { function, closure, .. } = *self.terms.kind(found) else {
            return None;
        };
        let callee = Callee { function, closure, bound: Some(term) };
        Some(self.call_function(callee, &[], site, None))
    }

    /// Runs a function of the project.
    pub(super) fn call_function(
        &mut self,
        callee: Callee,
        arguments: &[ArgumentValue<'p>],
        site: Site,
        as_forward: Option<()>,
    ) -> Value {
        if as_forward.is_none()
            && let Some(value) = self.call_decorated(callee, arguments, site)
        {
            return value;
        }
        let definition = self.function(callee.function);
        if let Some(made) = self.make_generator(callee, arguments, definition, site) {
            return made;
        }
        let key = self.memo_key(callee, arguments);
        if let Some(known) = self.memo.get(&key).cloned() {
            if !known.tree.is_empty() {
                let function = callee.function;
                self.tree.push(Node::Call { function, site, body: known.tree });
            }
            return known.value;
        }
        if self.refuses(callee.function) {
            return self.unseen_call(callee, arguments, site);
        }
        let trail = self.store.mark();
        let ((value, _), tree) =
            self.grow(|this| this.run_function(callee, arguments, site, as_forward));
        let memo = Memo { value: value.clone(), tree: tree.clone() };
        if !self.store.lasting_write_since(trail) {
            self.memo.insert(key, memo.clone());
        }
        self.last_runs.insert(callee.function, memo);
        if !tree.is_empty() {
            self.tree.push(Node::Call { function: callee.function, site, body: tree });
        }
        value
    }

    fn memo_key(&self, callee: Callee, arguments: &[ArgumentValue<'p>]) -> MemoKey {
        MemoKey {
            function: callee.function,
            closure: callee.closure,
            bound: callee.bound,
            arguments: arguments.iter().map(|a| (a.name, a.value.clone())).collect(),
            modes: self.modes,
            epoch: self.epoch,
            known: self.known_hash,
            loops: self.loop_now,
        }
    }

    /// Recursion, depth and repetition have their limits.
    fn refuses(&self, function: FunctionRef) -> bool {
        self.active.get(&function).is_some_and(|&n| n > 0)
            || self.call_depth >= super::DEPTH_MAX
            || self.visits.get(&function).is_some_and(|&n| n >= super::VISITS_MAX)
            || self.steps > super::STEPS_MAX
    }

    /// A call that is not run: its effects are those of its last run, its value is opaque.
    fn unseen_call(
        &mut self,
        callee: Callee,
        arguments: &[ArgumentValue<'p>],
        site: Site,
    ) -> Value {
        let is_active = self.active.get(&callee.function).is_some_and(|&n| n > 0);
        if !is_active && let Some(memo) = self.last_runs.get(&callee.function).cloned() {
            if !memo.tree.is_empty() {
                let function = callee.function;
                self.tree.push(Node::Call { function, site, body: memo.tree });
            }
            return memo.value;
        }
        let from: Vec<Value> = arguments.iter().map(|a| a.value.clone()).collect();
        self.derived_value(site, &from)
    }

    fn run_function(
        &mut self,
        callee: Callee,
        arguments: &[ArgumentValue<'p>],
        site: Site,
        as_forward: Option<()>,
    ) -> (Value, Term) {
        *self.visits.entry(callee.function).or_default() += 1;
        *self.active.entry(callee.function).or_default() += 1;
        self.call_depth += 1;
        let (caller, modes) = (self.frame, self.modes);
        let frame = self.enter_function(callee, Some(site), self.frame().orphan);
        if as_forward.is_some() {
            self.modes.forward = Some(frame);
        }
        self.apply_marks(callee.function);
        self.bind(callee, arguments, site);
        let body = &self.function(callee.function).body;
        let outer_loops = std::mem::take(&mut self.frame_mut().loop_exits);
        let falls = self.with_stack(|this| this.block(body));
        self.frame_mut().loop_exits = outer_loops;
        self.frame = caller;
        let value = self.leave(frame, falls, site);
        self.forget_variables(frame);
        let mut value = self.generated(frame, site).unwrap_or(value);
        if self.sharing.contains(&callee.function) {
            value = self.share(site, &[value]);
        }
        self.modes = modes;
        self.call_depth -= 1;
        if let Some(active) = self.active.get_mut(&callee.function) {
            *active -= 1;
        }
        (value, falls)
    }

    pub(super) fn enter_function(
        &mut self,
        callee: Callee,
        call: Option<Site>,
        orphan: bool,
    ) -> FrameId {
        let definition = self.function(callee.function);
        let class = definition.class.map(|index| ClassRef { file: callee.function.file, index });
        let class = class.or_else(|| self.class_by_impl(callee.function));
        let class = class.or_else(|| self.receiver_class(callee.bound)).or_else(|| {
            let closure = callee.closure?;
            self.frames[closure.0 as usize].class
        });
        let caller = (!self.frames.is_empty()).then_some(self.frame);
        let frame = Frame {
            id: FrameId(self.frames.len() as u32),
            file: callee.function.file,
            function: Some(callee.function),
            caller,
            call,
            orphan,
            receiver: callee.bound,
            class,
            closure: callee.closure,
            class_body: None,
            is_captured: false,
            outer_names: Vec::new(),
            exits: Vec::new(),
            path_base: self.path.len(),
            trail_base: self.store.mark(),
            yielded: Vec::new(),
            loop_exits: Vec::new(),
        };
        self.push_frame(frame)
    }

    pub(super) fn push_frame(&mut self, frame: Frame) -> FrameId {
        let id = frame.id;
        self.frames.push(frame);
        self.frame = id;
        id
    }

    fn receiver_class(&self, bound: Option<Term>) -> Option<ClassRef> {
        match *self.terms.kind(bound?) {
            TermKind::Class(class) => Some(class),
            TermKind::Object(id) => match self.object(id).class {
                ObjectClass::Project(class) => Some(class),
                _ => None,
            },
            _ => None,
        }
    }

    /// `@torch.no_grad()` and the like, put on the function.
    fn apply_marks(&mut self, function: FunctionRef) {
        match self.function_marks.get(&function) {
            Some(Role::NoGrad) => self.modes.grad = false,
            Some(Role::EnableGrad) => self.modes.grad = true,
            _ => {}
        }
    }

    /// Nobody sees the variables of a function that has run, unless functions were made in it.
    fn forget_variables(&mut self, frame: FrameId) {
        let left = &self.frames[frame.0 as usize];
        if !left.is_captured {
            self.store.forget_variables(frame, left.trail_base);
        }
    }

    /// Joins a function's exits: its value, and the writes of exits taken early.
    fn leave(&mut self, frame: FrameId, falls: Term, site: Site) -> Value {
        let exits = std::mem::take(&mut self.frames[frame.0 as usize].exits);
        let no = self.terms.no;
        let alone = exits.len() == 1 && falls == no;
        let mut alternatives: Vec<Alternative> = Vec::new();
        for exit in &exits {
            for alternative in &exit.value.alternatives {
                let when = if alone {
                    alternative.when
                } else {
                    self.terms.and([exit.when, alternative.when])
                };
                if when == no {
                    continue;
                }
                match alternatives.iter_mut().find(|a| a.term == alternative.term) {
                    Some(same) => same.when = self.terms.or([same.when, when]),
                    None => alternatives.push(Alternative { when, term: alternative.term }),
                }
            }
        }
        if falls != no || exits.is_empty() {
            let when = if exits.is_empty() { self.terms.yes } else { falls };
            alternatives.push(Alternative { when, term: self.terms.none });
        }
        if !alone {
            for exit in exits {
                self.merge_branches(
                    exit.when,
                    Some(exit.writes),
                    Some(super::Writes::default()),
                    site,
                );
            }
        }
        if let [only] = alternatives.as_mut_slice() {
            only.when = self.terms.yes;
        }
        let value = Value { alternatives: alternatives.into() };
        if value.alternatives.len() > crate::analysis::value::ALTERNATIVES_MAX {
            return self.derived_value(site, &[value]);
        }
        value
    }

    fn bind(&mut self, callee: Callee, arguments: &[ArgumentValue<'p>], site: Site) {
        let definition = self.function(callee.function);
        let mut parameters = definition.parameters.as_slice();
        if let (Some(bound), Some((first, rest))) = (callee.bound, parameters.split_first()) {
            let value = self.value(bound);
            self.bind_one(first, value);
            parameters = rest;
        }
        let orphan = self.frame().orphan && arguments.is_empty();
        let mut position = 0;
        for parameter in parameters {
            let value = self.argument_for(parameter, &mut position, arguments, orphan, site);
            self.bind_one(parameter, value);
        }
    }

    fn argument_for(
        &mut self,
        parameter: &'p Parameter,
        position: &mut usize,
        arguments: &[ArgumentValue<'p>],
        orphan: bool,
        site: Site,
    ) -> Value {
        match parameter.kind {
            ParameterKind::Rest => {
                let rest: Vec<Value> = arguments
                    .iter()
                    .filter(|a| a.position.is_some_and(|p| p >= *position) || a.spread)
                    .map(|a| a.value.clone())
                    .collect();
                *position = usize::MAX;
                let open = arguments.iter().any(|a| a.spread) || orphan;
                if !open && rest.iter().all(|v| v.single().is_some()) {
                    let items: Vec<Term> = rest.iter().filter_map(Value::single).collect();
                    let term = self.terms.make(TermKind::Tuple(items.into()));
                    return self.value(term);
                }
                let list = self.list(site, rest, open);
                return self.value(list);
            }
            ParameterKind::Keywords => return self.parameter(parameter),
            _ => {}
        }
        let here = (parameter.kind == ParameterKind::Positional).then(|| {
            let here = *position;
            *position = position.saturating_add(1);
            here
        });
        let given = arguments.iter().find(|a| {
            !a.spread
                && (a.name == Some(parameter.name)
                    || a.name.is_none() && here.is_some() && a.position == here)
        });
        match (given, &parameter.default) {
            (Some(argument), _) => self.refined(argument.value.clone(), parameter),
            (None, Some(default)) if !orphan && !arguments.iter().any(|a| a.spread) => {
                self.eval(default)
            }
            _ => match arguments.iter().find_map(|a| self.command_line(a)) {
                Some(line) => self.option_of(line, parameter),
                None => self.parameter(parameter),
            },
        }
    }

    fn command_line(&self, argument: &ArgumentValue<'p>) -> Option<Term> {
        let line = argument.value.single().filter(|_| argument.spread)?;
        self.object_of(line).filter(|o| o.class == ObjectClass::Arguments).map(|_| line)
    }

    /// A parameter that the user may set when the program starts.
    fn option_of(&mut self, line: Term, parameter: &'p Parameter) -> Value {
        let site = self.site(parameter.span);
        let typed = parameter.annotation.as_ref().and_then(|a| self.typed(a, site));
        typed.unwrap_or_else(|| {
            let term = self.terms.make(TermKind::Attribute(line, parameter.name));
            self.value(term)
        })
    }

    /// An unknown argument of an annotated type takes the type.
    fn refined(&mut self, value: Value, parameter: &'p Parameter) -> Value {
        let vague = value.single().is_some_and(|t| {
            matches!(self.terms.kind(t), TermKind::Opaque { .. } | TermKind::Attribute(..))
                && self.terms.origins(t).is_empty()
                && self.terms.taint(t) == Taint::NONE
        });
        if vague && let Some(annotation) = &parameter.annotation {
            let site = self.site(parameter.span);
            if let Some(typed) = self.typed(annotation, site) {
                return typed;
            }
        }
        value
    }

    /// A parameter that nobody is seen to fill.
    fn parameter(&mut self, parameter: &'p Parameter) -> Value {
        let site = self.site(parameter.span);
        if let Some(annotation) = &parameter.annotation
            && let Some(typed) = self.typed(annotation, site)
        {
            return typed;
        }
        let term = self.terms.make(TermKind::Parameter { site, name: parameter.name });
        self.value(term)
    }

    fn bind_one(&mut self, parameter: &'p Parameter, value: Value) {
        if let Some(pattern) = &parameter.pattern {
            self.assign(pattern, &value, false);
        } else {
            let key = Key::Variable(self.frame, parameter.name);
            self.write(key, value);
        }
    }

    /// A generator used as a context manager is not run here but where `with` enters it.
    fn make_generator(
        &mut self,
        callee: Callee,
        arguments: &[ArgumentValue<'p>],
        definition: &'p Function,
        site: Site,
    ) -> Option<Value> {
        if !is_context_manager(definition) || self.entering_context {
            return None;
        }
        let class = ObjectClass::Outside(Name::new("contextlib.<manager>"));
        let object = self.new_object(site, class, arguments.to_vec(), None);
        let Callee { function, closure, bound } = callee;
        let term = self.terms.make(TermKind::Function { function, closure, bound });
        let function = self.value(term);
        self.write(Key::Attribute(object, Name::new("<function>")), function);
        Some(self.value(object))
    }

    /// What a generator's call gives: something that holds what it yields.
    fn generated(&mut self, frame: FrameId, site: Site) -> Option<Value> {
        let yielded = std::mem::take(&mut self.frames[frame.0 as usize].yielded);
        if yielded.is_empty() {
            return None;
        }
        let values = yielded.into_iter().map(|term| self.value(term)).collect();
        let list = self.list(site, values, true);
        Some(self.value(list))
    }

    pub(super) fn generator_call(&self, term: Term) -> Option<Term> {
        let object = self.object_of(term)?;
        (object.class == ObjectClass::Outside(Name::new("contextlib.<manager>"))).then_some(term)
    }

    /// Runs the generator of a context manager; at its `yield` the body of the `with` runs.
    pub(super) fn run_context_generator(
        &mut self,
        generator: Term,
        item: &'p WithItem,
        rest: &'p [WithItem],
        body: &'p [Stmt],
    ) -> Term {
        let function = self.read(&Key::Attribute(generator, Name::new("<function>")));
        let function =
            function.as_ref().and_then(Value::single).map(|t| self.terms.kind(t).clone());
        let Some(TermKind::Function { function, closure, bound }) = function else {
            return self.block(body);
        };
        let arguments = self.object_of(generator).map(|o| o.arguments.clone()).unwrap_or_default();
        let site = self.site(item.context.span);
        if self.refuses(function) {
            return self.with(rest, body);
        }
        self.with_bodies.push(super::WithBody {
            item,
            rest,
            body,
            frame: self.frame,
            falls: None,
            leave: None,
        });
        self.entering_context = true;
        let callee = Callee { function, closure, bound };
        self.entering_context = false;
        let ((_, _), tree) = self.grow(|this| this.run_function(callee, &arguments, site, None));
        if !tree.is_empty() {
            self.tree.push(Node::Call { function, site, body: tree });
        }
        let entered = self.with_bodies.pop();
        self.tree.extend(entered.as_ref().and_then(|b| b.leave.clone()));
        match entered.and_then(|b| b.falls) {
            Some(falls) => falls,
            None => self.with(rest, body),
        }
    }

    /// At a `yield`: the body of the `with` that waits for it, in its own frame.
    pub(super) fn run_yield_body(&mut self, value: &Value, _site: Site) {
        let Some(waiting) = self.with_bodies.last() else { return };
        if waiting.falls.is_some() || self.frame().caller != Some(waiting.frame) {
            return;
        }
        let (item, rest, body, frame) = (waiting.item, waiting.rest, waiting.body, waiting.frame);
        let index = self.with_bodies.len() - 1;
        self.with_bodies[index].falls = Some(self.terms.yes);
        let generator = std::mem::replace(&mut self.frame, frame);
        if let Some(target) = &item.target {
            self.assign(target, value, false);
        }
        let site = self.site(item.context.span);
        let (falls, leave) = self.held_open(site, |this| this.with(rest, body));
        self.with_bodies[index].falls = Some(falls);
        self.with_bodies[index].leave = leave;
        self.frame = generator;
    }
}

pub(in crate::analysis) fn is_forward(name: &str) -> bool {
    matches!(name, "forward" | "forward_t" | "__call__")
}

fn is_context_manager(definition: &Function) -> bool {
    definition.is_generator
        && (definition.has_decorator("contextmanager")
            || definition.has_decorator("asynccontextmanager"))
}
