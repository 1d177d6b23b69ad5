//! Calls of the outside world: what the tables say they do.

use super::attribute::is_wrapper;
use super::{Interpreter, Key, ObjectClass};
use crate::analysis::event::{ArgumentValue, Call, Event, EventId, EventKind, ExitKind, Node, Via};
use crate::analysis::term::{Const, RankKind, Taint, Term, TermKind};
use crate::analysis::value::Value;
use crate::model::{CompareOp, Expr, ExprKind, Name, Part, Site, Stmt, any_expr};
use crate::table::{Flag, Role, Row};

/// One call of the outside world, while its meaning is worked out.
struct Outside<'p> {
    role: Role,
    row: Option<&'p Row>,
    name: Option<Name>,
    receiver: Option<Term>,
    arguments: Vec<ArgumentValue<'p>>,
    site: Site,
    expr: Option<&'p Expr>,
}

impl<'p> Outside<'p> {
    fn has(&self, flag: Flag) -> bool {
        self.row.is_some_and(|row| row.has(flag))
    }

    fn first(&self) -> Option<&Value> {
        self.arguments.iter().find(|a| a.position == Some(0)).map(|a| &a.value)
    }

    fn named(&self, name: &str) -> Option<&ArgumentValue<'p>> {
        self.arguments.iter().find(|a| a.name.is_some_and(|n| &*n == name))
    }
}

impl<'p> Interpreter<'p> {
    pub(super) fn call_outside(
        &mut self,
        name: Name,
        arguments: Vec<ArgumentValue<'p>>,
        site: Site,
        expr: Option<&'p Expr>,
    ) -> Value {
        if let Some(value) = self.built_in(&name, &arguments, site) {
            return value;
        }
        let row = self.table.get(name);
        let role = row.map_or(Role::Plain, |r| r.role);
        let is_ragged = self.gives_ragged(name, None, &arguments);
        let is_own = self.reads_by_rank(name, row, &arguments);
        let call = Outside { role, row, name: Some(name), receiver: None, arguments, site, expr };
        let mut value = self.perform(call);
        if is_own {
            value = self.share(site, &[value]);
        }
        self.note_parts(name, &value);
        if is_ragged {
            self.note_ragged(&value);
        }
        value
    }

    pub(super) fn call_method_of(
        &mut self,
        receiver: Term,
        method: Name,
        arguments: Vec<ArgumentValue<'p>>,
        site: Site,
        expr: Option<&'p Expr>,
    ) -> Value {
        if let Some(value) = self.container_method(receiver, &method, &arguments, site) {
            return value;
        }
        if let Some(value) = self.then(receiver, &method, &arguments, site) {
            return value;
        }
        if let Some(value) = self.iterator_method(receiver, &method, &arguments, site, expr) {
            return value;
        }
        let is_ragged = self.gives_ragged(method, Some(receiver), &arguments);
        let value = match self.method_row(receiver, method) {
            None => self.call_unknown_method(receiver, method, arguments, site, expr),
            Some(row) => {
                let (role, name, row) = (row.role, row.name, Some(row));
                let receiver = Some(receiver);
                self.perform(Outside { role, row, name, receiver, arguments, site, expr })
            }
        };
        if is_ragged {
            self.note_ragged(&value);
        }
        value
    }

    /// Rust: `condition.then(|| ..)` runs its closure where the condition holds.
    fn then(
        &mut self,
        receiver: Term,
        method: &str,
        arguments: &[ArgumentValue<'p>],
        site: Site,
    ) -> Option<Value> {
        let [closure] = arguments else { return None };
        let is_closure =
            closure.value.terms().any(|t| matches!(self.terms.kind(t), TermKind::Function { .. }));
        if method != "then" || !self.is_rust() || !is_closure {
            return None;
        }
        let receiver = self.value(receiver);
        let condition = self.condition(&receiver);
        let (mut made, function) = (None, closure.value.clone());
        self.fork(
            condition,
            site,
            |this| {
                made = Some(this.call_value(&function, Vec::new(), site, None));
                this.terms.yes
            },
            |this| this.terms.yes,
        );
        let nothing = self.nothing();
        Some(match made {
            Some(made) => self.join_bounded(condition, &made, &nothing, site),
            None => nothing,
        })
    }

    /// The row of a method, by the receiver's type where that is known.
    fn method_row(&self, receiver: Term, method: Name) -> Option<&'p Row> {
        let table = &self.table;
        let known = match self.terms.kind(receiver) {
            TermKind::Object(id) => match self.object(*id).class {
                ObjectClass::Outside(class) => {
                    return table.method(class, method).or_else(|| table.any_method(method));
                }
                ObjectClass::Project(class) => self
                    .class_roles
                    .get(&class)
                    .and_then(|(_, base)| *base)
                    .and_then(|base| table.method(base, method)),
                _ => return None,
            },
            TermKind::Inner(_) => table.method(Name::new("torch.nn.Module"), method),
            TermKind::Outside(_) | TermKind::Module(_) | TermKind::Package(_) => return None,
            TermKind::Const(Const::Str(_)) | TermKind::Text(_) => {
                let row = table.any_method(method);
                return row.filter(|row| matches!(row.role, Role::Passthrough | Role::PathExists));
            }
            _ => {
                let tensor = self.is_rust().then(|| Name::new("tch.Tensor"));
                let of = self.types.get(&receiver).copied().or(tensor);
                of.and_then(|of| table.method(of, method))
            }
        };
        known.or_else(|| table.any_method(method))
    }

    fn call_unknown_method(
        &mut self,
        receiver: Term,
        method: Name,
        arguments: Vec<ArgumentValue<'p>>,
        site: Site,
        expr: Option<&'p Expr>,
    ) -> Value {
        if let TermKind::Inner(wrapper) = *self.terms.kind(receiver) {
            return self.forward_method(receiver, wrapper, method, arguments, site, expr);
        }
        self.run_callbacks(&arguments, site);
        let takes_turns = method == "step_by"
            && arguments.iter().any(|a| self.strides(&self.value(receiver), &a.value));
        let first = arguments.first().and_then(|a| a.value.single());
        let mut from: Vec<Value> = arguments.into_iter().map(|a| a.value).collect();
        from.push(self.value(receiver));
        self.give_away(&from);
        self.grow_text((Some(receiver), &method), &from, site, expr);
        if takes_turns {
            return self.share(site, &from);
        }
        let result = self.derived_value(site, &from);
        if let (Some(key), Some(term)) = (first, result.single())
            && from.len() == 2
            && matches!(&*method, "get" | "pop")
        {
            self.item_of.insert(term, (receiver, key));
        }
        let cuts = matches!(&*method, "take" | "truncate" | "chunks_exact" | "narrow");
        if cuts { self.cut(site, result) } else { result }
    }

    /// `wrapper.module.step(x)` where the module's class is unknown.
    fn forward_method(
        &mut self,
        receiver: Term,
        wrapper: crate::analysis::term::ObjectId,
        method: Name,
        arguments: Vec<ArgumentValue<'p>>,
        site: Site,
        expr: Option<&'p Expr>,
    ) -> Value {
        let value = self.forward(receiver, Via::Inner(wrapper), None, arguments, site, expr);
        let last = self.events.iter_mut().rev().find(|e| e.site == site);
        if let Some(event) = last
            && let EventKind::Forward(forward) = &mut event.kind
            && !super::call::is_forward(&method)
        {
            forward.method = Some(method);
        }
        value
    }

    /// Gives arguments the names of the parameters they fill, tells the call, and works out
    /// what it gives.
    fn perform(&mut self, mut call: Outside<'p>) -> Value {
        if let Some(row) = call.row {
            for argument in &mut call.arguments {
                if argument.name.is_none()
                    && let Some(position) = argument.position
                {
                    argument.name = row.params.get(position).copied();
                }
            }
        }
        if call.role == Role::Plain
            && !call.row.is_some_and(|r| r.is_class() || r.has(Flag::Hidden))
        {
            return self.perform_plain(&call);
        }
        if call.role == Role::Passthrough {
            let given: Vec<Value> = call.arguments.iter().map(|a| a.value.clone()).collect();
            if let Some(share) = self.share_by_stride(&call, &given) {
                return share;
            }
            let passed = self.pass_through(&call);
            let cuts = call.name.is_some_and(|n| n.ends_with("islice"));
            return if cuts { self.cut(call.site, passed) } else { passed };
        }
        let event = self.tell(&call);
        let value = self.effect(&call, event);
        self.set_result(event, &value);
        value
    }

    fn perform_plain(&mut self, call: &Outside<'p>) -> Value {
        self.run_callbacks(&call.arguments, call.site);
        let receiver = call.receiver.map(|t| self.value(t));
        let given: Vec<Value> =
            call.arguments.iter().map(|a| a.value.clone()).chain(receiver).collect();
        self.give_away(&given);
        let method = call.name.map_or("", |name| name.as_str());
        self.grow_text((call.receiver, method), &given, call.site, call.expr);
        if let Some(share) = self.share_by_stride(call, &given) {
            return share;
        }
        if let Some(value) = self.given_receiver(call).or_else(|| self.pure(call)) {
            return value;
        }
        let Some(returns) = call.row.and_then(|r| r.returns) else {
            let taint = if call.has(Flag::Local) { Taint::LOCAL } else { Taint::NONE };
            return self.result(call, None, taint);
        };
        self.typed_result(call, returns, None, Taint::NONE)
    }

    /// `name.push_str(x)`, `path.push(x)` of Rust: the text or path depends on that, too.
    fn grow_text(
        &mut self,
        (receiver, method): (Option<Term>, &str),
        given: &[Value],
        site: Site,
        expr: Option<&'p Expr>,
    ) {
        let grows = matches!(
            method.rsplit('.').next(),
            Some("push" | "push_str" | "insert_str" | "set_extension" | "set_file_name")
        );
        let is_text = receiver.is_some_and(|receiver| match self.terms.kind(receiver) {
            TermKind::Const(_) | TermKind::Text(_) | TermKind::Apply(..) => true,
            TermKind::Opaque { .. } | TermKind::Binary(..) => !self.types.contains_key(&receiver),
            _ => false,
        });
        if !self.is_rust() || !grows || !is_text {
            return;
        }
        let Some(ExprKind::Call { callee, .. }) = expr.map(|e| &e.kind) else { return };
        let ExprKind::Attribute { value, .. } = &callee.kind else { return };
        if let ExprKind::Name(name) = value.kind {
            let grown = self.derived_value(site, given);
            self.assign_name(name, grown);
        }
    }

    /// `range(rank, n, world)`, `islice(items, rank, None, world)`.
    fn share_by_stride(&mut self, call: &Outside<'p>, given: &[Value]) -> Option<Value> {
        let at = |position: usize| {
            call.arguments.iter().find(|a| a.position == Some(position)).map(|a| &a.value)
        };
        let (start, step) = match &*call.name? {
            "range" | "builtins.range" => (at(0)?, at(2)?),
            "itertools.islice" => (at(1)?, at(3)?),
            _ => return None,
        };
        self.strides(start, step).then(|| self.share(call.site, given))
    }

    /// The receiver, where the row says that the call gives it back; a builder's is noted on.
    fn given_receiver(&mut self, call: &Outside<'p>) -> Option<Value> {
        let row = call.row.filter(|row| row.gives_receiver)?;
        let receiver = call.receiver?;
        Some(if row.has(Flag::Builder) { self.built(call, receiver) } else { self.value(receiver) })
    }

    fn pure(&mut self, call: &Outside<'p>) -> Option<Value> {
        if !call.has(Flag::Pure) || call.row.is_some_and(|r| r.returns.is_some()) {
            return None;
        }
        let mut parts: Vec<Term> = Vec::new();
        parts.extend(call.receiver);
        for argument in &call.arguments {
            parts.push(argument.value.single()?);
        }
        let name = call.row?.name?;
        // A sum over what a list holds depends on that, its length does not.
        if &*name != "len" && parts.iter().any(|&part| self.holds_origins(part)) {
            return None;
        }
        let term = self.terms.make(TermKind::Apply(name, parts.into()));
        Some(self.value(term))
    }

    fn holds_origins(&self, container: Term) -> bool {
        let object = self.object_of(container);
        object.is_some_and(|o| matches!(o.class, ObjectClass::List | ObjectClass::Dict))
            && !self.deep_facts(container, 3).1.is_empty()
    }

    fn tell(&mut self, call: &Outside<'p>) -> EventId {
        let receiver = call.receiver.map(|t| self.value(t));
        let told = Call {
            role: call.role,
            row: call.row,
            name: call.row.and_then(|r| r.name).or(call.name),
            receiver,
            arguments: call.arguments.clone(),
            result: self.nothing(),
        };
        self.push_event(EventKind::Call(told), call.site, call.expr)
    }

    /// An opaque result that depends on what went in, and on the call itself.
    fn result(&mut self, call: &Outside<'p>, event: Option<EventId>, more: Taint) -> Value {
        let mut from: Vec<Value> = call.arguments.iter().map(|a| a.value.clone()).collect();
        from.extend(call.receiver.map(|t| self.value(t)));
        let term = self.derived(call.site, &from.iter().collect::<Vec<_>>());
        let origins: Vec<EventId> = event.into_iter().collect();
        let taint = self.terms.taint(term).with(more);
        let term = self.fresh(call.site, taint, &origins);
        self.value(term)
    }

    /// A schedule that a function of the project computes: what that reads around itself counts
    /// as given to the call.
    fn note_closures(&mut self, call: &Outside<'p>, event: EventId) {
        let mut seen = Vec::new();
        for argument in &call.arguments {
            let term = argument.value.single();
            let Some(&TermKind::Function { function, closure: Some(frame), .. }) =
                term.map(|t| self.terms.kind(t))
            else {
                continue;
            };
            for name in names_read(&self.function(function).body) {
                let Some(value) = self.store.get(&Key::Variable(frame, name)).cloned() else {
                    continue;
                };
                let (name, expr) = (Some(name), argument.expr);
                seen.push(ArgumentValue { name, position: None, expr, value, spread: false });
            }
        }
        if let EventKind::Call(told) = &mut self.events[event.0 as usize].kind {
            told.arguments.extend(seen);
        }
    }

    /// What a process group is told of ranks holds for the whole program.
    fn note_ranks(&mut self, call: &Outside<'p>) {
        for (name, kind) in [("rank", RankKind::Rank), ("world_size", RankKind::WorldSize)] {
            let given = call.arguments.iter().find(|a| a.name.is_some_and(|n| &*n == name));
            if let Some(term) = given.and_then(|a| a.value.single()) {
                self.terms.tell_kind(term, kind);
            }
        }
    }

    /// What the call gives, and does to the state.
    fn effect(&mut self, call: &Outside<'p>, event: EventId) -> Value {
        match call.role {
            Role::WrapDdp | Role::WrapDp => self.wrap(call, event),
            Role::WrapOther => self.wrap_otherwise(call, event),
            Role::Passthrough | Role::ConvertSyncBatchNorm => self.pass_through(call),
            // What can be cloned of a module in Rust is a reference to it.
            Role::Copy if self.is_rust() && self.is_held_object(call) => self.pass_through(call),
            Role::Copy => self.copy(call, event),
            Role::Rank => self.rank(RankKind::Rank, call),
            Role::LocalRank => self.rank(RankKind::LocalRank, call),
            Role::NodeRank => self.rank(RankKind::NodeRank, call),
            Role::WorldSize => self.rank(RankKind::WorldSize, call),
            Role::LocalWorldSize => self.rank(RankKind::LocalWorldSize, call),
            Role::DeviceCount => self.rank(RankKind::DeviceCount, call),
            Role::Scheduler => {
                self.note_closures(call, event);
                self.plain_effect(call, event)
            }
            Role::InitGroup => {
                self.note_ranks(call);
                self.plain_effect(call, event)
            }
            Role::IsDistributed if self.is_about_to_start() => self.value(self.terms.no),
            Role::IsDistributed => self.one(TermKind::Distributed),
            Role::IsMain if self.is_asked_of_part(call) => self.result(call, None, Taint::RANK),
            Role::IsMain => self.is_zero(RankKind::Rank),
            Role::IsLocalMain => self.is_zero(RankKind::LocalRank),
            Role::EnvRead => self.env_read(call, event),
            Role::Spawn => self.spawn(call, event),
            Role::CallsArgument | Role::Forward | Role::ApplyModule => {
                self.run_argument(call, event)
            }
            Role::NoGrad
            | Role::EnableGrad
            | Role::NoSync
            | Role::Join
            | Role::MainOnly
            | Role::MainFirst => self.mode(call, event),
            Role::ParseArguments => self.parsed(call, event),
            Role::Move
            | Role::ChangeKind
            | Role::TrainMode
            | Role::EvalMode
            | Role::RequiresGrad => self.changed_module(call, event),
            Role::RegisterParameter | Role::RegisterBuffer | Role::AddModule => {
                self.register(call, event)
            }
            Role::Collective => self.collective(call, event),
            Role::Exit => self.exit(call),
            Role::TypeTest => self.type_test(call, event),
            Role::Raise => {
                let site = call.site;
                self.tree.push(Node::Exit { kind: ExitKind::Error, site });
                self.falls = self.terms.no;
                self.nothing()
            }
            Role::Random | Role::Time | Role::PathExists => self.local_result(call, event),
            Role::Partial => self.partial(call, event),
            Role::Checkpoint => self.checkpointed(call, event),
            Role::ModuleList | Role::ParameterList | Role::Sequential => {
                self.module_list(call, event)
            }
            _ => self.plain_effect(call, event),
        }
    }

    fn one(&mut self, kind: TermKind) -> Value {
        let term = self.terms.make(kind);
        self.value(term)
    }

    fn rank(&mut self, kind: RankKind, call: &Outside<'p>) -> Value {
        // The rank within a sub-group is another number.
        let group = call.arguments.iter().any(|a| {
            !a.value.single().is_some_and(|t| self.terms.as_const(t) == Some(Const::None))
        });
        let group = group || self.is_asked_of_part(call);
        if group && matches!(kind, RankKind::Rank | RankKind::WorldSize) {
            return self.result(call, None, Taint::RANK);
        }
        self.one(TermKind::Rank(kind))
    }

    /// The receiver is a group of some ranks.
    fn is_asked_of_part(&self, call: &Outside<'p>) -> bool {
        let made = call.receiver.and_then(|term| self.object_of(term)).and_then(|o| o.event);
        made.and_then(|event| self.events[event.0 as usize].call())
            .is_some_and(|call| call.role == Role::NewGroup)
    }

    fn is_zero(&mut self, kind: RankKind) -> Value {
        let rank = self.rank_term(kind);
        let zero = self.terms.int(0);
        let term = self.terms.compare(CompareOp::Eq, rank, zero);
        self.value(term)
    }

    fn plain_effect(&mut self, call: &Outside<'p>, event: EventId) -> Value {
        self.run_callbacks(&call.arguments, call.site);
        let Some(row) = call.row else { return self.result(call, Some(event), Taint::NONE) };
        let class = if row.is_class() { row.name } else { row.returns };
        if let Some(class) = class {
            let taint = if row.has(Flag::Local) { Taint::LOCAL } else { Taint::NONE };
            return self.typed_result(call, class, Some(event), taint);
        }
        if let Some(value) = self.filled_at_random(call, event) {
            return value;
        }
        if let Some(value) = self.given_receiver(call).or_else(|| self.pure(call)) {
            return value;
        }
        let taint = if row.has(Flag::Local) { Taint::LOCAL } else { Taint::NONE };
        let value = self.result(call, Some(event), taint);
        let is_item = call.role == Role::HostRead
            && call.name.is_some_and(|n| matches!(n.rsplit('.').next(), Some("item")));
        if let (true, Some(term)) = (is_item, value.single()) {
            self.note_number(term, true);
        }
        if row.has(Flag::Uniform) { self.untainted(&value, call.site, event) } else { value }
    }

    /// `Tensor::empty(..).uniform_(0., 1.)` of tch: a tensor just made is random now.
    fn filled_at_random(&mut self, call: &Outside<'p>, event: EventId) -> Option<Value> {
        let receiver = call.receiver.filter(|_| self.is_rust() && call.has(Flag::Random))?;
        let is_new = call.role == Role::InitParameter
            && self.terms.origins(receiver).iter().any(|&origin| {
                matches!(&self.events[origin.0 as usize].kind, EventKind::Call(made)
                    if made.role == Role::MakeTensor && made.result.single() == Some(receiver))
            });
        if !is_new {
            return None;
        }
        let value = self.result(call, Some(event), Taint::RANDOM);
        if let Some(term) = value.single() {
            self.types.insert(term, Name::new("tch.Tensor"));
        }
        Some(value)
    }

    /// What a call of a class, or of something with a known result type, gives. Tensors are
    /// values with origins, not objects.
    fn typed_result(
        &mut self,
        call: &Outside<'p>,
        class: Name,
        event: Option<EventId>,
        taint: Taint,
    ) -> Value {
        if &*class == "self" {
            if call.has(Flag::Builder)
                && let Some(receiver) = call.receiver
            {
                return self.built(call, receiver);
            }
            return self.pass_through(call);
        }
        // `torch.FloatTensor` and its like make tensors.
        let is_old_maker = self.table.get(class).is_some_and(|row| {
            row.role == Role::MakeTensor && row.bases.iter().any(|base| *base == "torch.Tensor")
        });
        if is_old_maker || matches!(&*class, "torch.Tensor" | "tch.Tensor") {
            let value = self.result(call, event, taint);
            if let Some(term) = value.single() {
                let class = if is_old_maker { Name::new("torch.Tensor") } else { class };
                self.types.insert(term, class);
                if let Some(receiver) = call.receiver.filter(|_| self.is_rust()) {
                    self.method_of.insert(term, receiver);
                }
            }
            return value;
        }
        let made = ObjectClass::Outside(class);
        let object = self.new_object(call.site, made, call.arguments.clone(), event);
        if let Some(receiver) = call.receiver {
            let of = self.value(receiver);
            self.write(Key::Attribute(object, Name::new("<of>")), of);
        }
        self.value(object)
    }

    /// A builder's setter: noted on the object under the name of the parameter, or of the method
    /// where it has none (`.shuffle()`).
    fn built(&mut self, call: &Outside<'p>, receiver: Term) -> Value {
        let method = || call.name.and_then(|n| n.as_str().rsplit('.').next()).map(Name::new);
        let name = call.row.and_then(|r| r.params.first().copied()).or_else(method);
        let set = self.terms.bool(true);
        let value = call.first().cloned().unwrap_or_else(|| self.value(set));
        if let Some(name) = name {
            self.write(Key::Attribute(receiver, name), value);
            if let Some(argument) = call.arguments.first() {
                self.settings.insert((receiver, name), (call.site.file, argument.expr));
            }
        }
        self.value(receiver)
    }

    fn untainted(&mut self, _value: &Value, site: Site, event: EventId) -> Value {
        let term = self.terms.opaque(site, self.frame.0 | 1 << 29, Taint::NONE, &[event]);
        self.value(term)
    }

    fn local_result(&mut self, call: &Outside<'p>, event: EventId) -> Value {
        let taint = match call.role {
            Role::Random if call.has(Flag::Local) => Taint::RANDOM.with(Taint::LOCAL),
            Role::Random => Taint::RANDOM,
            _ => Taint::LOCAL,
        };
        if let Some(class) = call.row.and_then(|r| if r.is_class() { r.name } else { r.returns }) {
            return self.typed_result(call, class, Some(event), taint);
        }
        self.result(call, Some(event), taint)
    }

    fn wrap(&mut self, call: &Outside<'p>, event: EventId) -> Value {
        let class = call.row.and_then(|r| r.returns.or(r.name)).or(call.name);
        let class = ObjectClass::Outside(class.unwrap_or(Name::new("<wrapper>")));
        let wrapper = self.new_object(call.site, class, call.arguments.clone(), Some(event));
        let module = call.named("module").or_else(|| call.named("model")).map(|a| &a.value);
        let module = module.or_else(|| call.first()).cloned();
        // tch-ddp's `DataParallel` builds its replicas by a closure.
        let builder = call.arguments.iter().find(|a| {
            a.value.terms().any(|t| matches!(self.terms.kind(t), TermKind::Function { .. }))
        });
        let module = match builder.cloned() {
            Some(builder) if self.is_rust() => {
                Some(self.call_value(&builder.value, Vec::new(), call.site, None))
            }
            _ => module,
        };
        if let Some(module) = module {
            self.note_wrapped(wrapper, &module);
        }
        self.value(wrapper)
    }

    /// Books what a wrapper holds, and that the module is held.
    pub(super) fn note_wrapped(&mut self, wrapper: Term, module: &Value) {
        self.write(Key::Attribute(wrapper, Name::new("<module>")), module.clone());
        let holder = self.value(wrapper);
        for alternative in module.alternatives.clone() {
            let held = match self.terms.kind(alternative.term) {
                TermKind::Object(_)
                | TermKind::Opaque { .. }
                | TermKind::Parameter { .. }
                | TermKind::Attribute(..)
                | TermKind::Item(..) => alternative.term,
                _ => continue,
            };
            self.write(Key::Wrapper(held), holder.clone());
        }
    }

    /// Frameworks that wrap what they are given: the results are theirs, nothing is known.
    fn wrap_otherwise(&mut self, call: &Outside<'p>, event: EventId) -> Value {
        if call.arguments.len() < 2 {
            return self.result(call, Some(event), Taint::NONE);
        }
        let parts: Vec<Term> = (0..call.arguments.len())
            .map(|position| {
                let mut site = call.site;
                site.span.end = site.span.end.saturating_add(position as u32 + 1);
                self.fresh(site, Taint::NONE, &[event])
            })
            .collect();
        let term = self.terms.make(TermKind::Tuple(parts.into()));
        self.value(term)
    }

    fn pass_through(&mut self, call: &Outside<'p>) -> Value {
        let receiver_first = call.row.is_some_and(|r| r.gives_receiver);
        match (call.receiver, call.first()) {
            (Some(receiver), None) => self.value(receiver),
            (Some(receiver), _) if receiver_first => self.value(receiver),
            (_, Some(first)) => first.clone(),
            (None, None) => self.result(call, None, Taint::NONE),
        }
    }

    fn is_held_object(&self, call: &Outside<'p>) -> bool {
        call.receiver.is_some_and(|t| matches!(self.terms.kind(t), TermKind::Object(_)))
    }

    fn copy(&mut self, call: &Outside<'p>, event: EventId) -> Value {
        let original = call.receiver.or_else(|| call.first().and_then(Value::single));
        let Some(original) = original else {
            return self.result(call, Some(event), Taint::NONE);
        };
        let Some(object) = self.object_of(self.stored_on(original)) else {
            return self.result(call, Some(event), Taint::NONE);
        };
        let (class, arguments) = (object.class, object.arguments.clone());
        let copy = self.new_object(call.site, class, arguments, Some(event));
        let module = self.read(&Key::Attribute(original, Name::new("<module>")));
        if let Some(module) = module {
            self.write(Key::Attribute(copy, Name::new("<module>")), module);
        }
        let of = self.value(self.stored_on(original));
        self.write(Key::Attribute(copy, Name::new("<copy of>")), of);
        self.value(copy)
    }

    fn env_read(&mut self, call: &Outside<'p>, event: EventId) -> Value {
        let name = call.first().and_then(Value::single).and_then(|t| self.terms.as_str(t));
        match name {
            Some(name) => self.environment_value(&name),
            None => self.result(call, Some(event), Taint::NONE),
        }
    }

    /// Starts processes: the function runs once, as any of them.
    fn spawn(&mut self, call: &Outside<'p>, event: EventId) -> Value {
        let function = call
            .named("fn")
            .or_else(|| call.named("target"))
            .or_else(|| call.named("func"))
            .or_else(|| call.named("main_func"))
            .map(|a| a.value.clone())
            .or_else(|| call.first().cloned());
        let Some(function) = function else {
            return self.result(call, Some(event), Taint::NONE);
        };
        let mut values: Vec<Value> = Vec::new();
        if call.has(Flag::RankFirst) {
            values.push(self.one(TermKind::SpawnIndex));
        }
        let rest = call.named("args").and_then(|a| a.value.single());
        let rest = rest.and_then(|t| self.sequence(t));
        values.extend(rest.iter().flatten().cloned());
        let Some(expr) = call.expr.or_else(|| call.arguments.first().map(|a| a.expr)) else {
            return self.nothing();
        };
        let arguments: Vec<ArgumentValue<'p>> = values
            .into_iter()
            .enumerate()
            .map(|(position, value)| ArgumentValue {
                name: None,
                position: Some(position),
                expr,
                value,
                spread: false,
            })
            .collect();
        let outer = std::mem::replace(&mut self.modes.spawned, true);
        self.call_value(&function, arguments, call.site, None);
        self.modes.spawned = outer;
        self.plain_effect(
            &Outside {
                arguments: Vec::new(),
                role: Role::Spawn,
                row: call.row,
                name: call.name,
                receiver: call.receiver,
                site: call.site,
                expr: call.expr,
            },
            event,
        )
    }

    /// A function that is given a closure and runs it: the closure's value comes out.
    fn run_argument(&mut self, call: &Outside<'p>, event: EventId) -> Value {
        let wrapper = call.receiver.and_then(|t| match *self.terms.kind(t) {
            TermKind::Object(id) if is_wrapper(self.object(id).role) => Some(id),
            _ => None,
        });
        if call.role == Role::ApplyModule {
            return self.apply_module(call, event);
        }
        let closure = call.arguments.iter().find(|a| {
            a.value.terms().any(|t| matches!(self.terms.kind(t), TermKind::Function { .. }))
        });
        let Some(closure) = closure.cloned() else {
            return match (call.role, call.receiver) {
                (Role::Forward, Some(receiver)) => self.forward_receiver(call, receiver, wrapper),
                _ => self.plain_effect(call, event),
            };
        };
        let Some(wrapper) = wrapper.filter(|_| call.role == Role::Forward) else {
            let given = self.closure_arguments(call, &closure);
            return self.call_value(&closure.value, given, call.site, None);
        };
        self.run_in_wrapper(call, &closure, wrapper)
    }

    /// What a closure is given by the function that runs it: something of the receiver.
    fn closure_arguments(
        &mut self,
        call: &Outside<'p>,
        closure: &ArgumentValue<'p>,
    ) -> Vec<ArgumentValue<'p>> {
        let Some(receiver) = call.receiver else {
            // From the command line: `fire.Fire(main)`.
            let unknown = (!self.is_rust()).then(|| self.command_line_arguments(closure.expr));
            return unknown.into_iter().collect();
        };
        let of = self.value(receiver);
        let term = self.derived(call.site, &[&of]);
        let mut given = closure.clone();
        given.value = self.value(term);
        given.position = Some(0);
        given.name = None;
        vec![given]
    }

    /// `ddp.run(|m| m.forward(..))`: the closure runs as the wrapper's forward.
    fn run_in_wrapper(
        &mut self,
        call: &Outside<'p>,
        closure: &ArgumentValue<'p>,
        wrapper: crate::analysis::term::ObjectId,
    ) -> Value {
        let holder = self.terms.make(TermKind::Object(wrapper));
        let module = self.read(&Key::Attribute(holder, Name::new("<module>")));
        let module = module.unwrap_or_else(|| {
            let term = self.fresh(call.site, Taint::NONE, &[]);
            self.value(term)
        });
        let forward = crate::analysis::event::Forward {
            module: holder,
            via: Via::Wrapper(wrapper),
            method: None,
            arguments: Vec::new(),
            result: self.nothing(),
        };
        let event = self.push_event(EventKind::Forward(forward), call.site, call.expr);
        let modes = self.modes;
        self.modes.wrapper = Some(wrapper);
        self.modes.forward = Some(self.frame);
        let mut given = closure.clone();
        given.value = module;
        given.position = Some(0);
        given.name = None;
        let value = self.call_value(&closure.value, vec![given], call.site, None);
        self.modes = modes;
        let value = self.with_origin(value, Some(event), call.site);
        if let EventKind::Forward(forward) = &mut self.events[event.0 as usize].kind {
            forward.result = value.clone();
        }
        value
    }

    fn forward_receiver(
        &mut self,
        call: &Outside<'p>,
        receiver: Term,
        wrapper: Option<crate::analysis::term::ObjectId>,
    ) -> Value {
        let via = match (wrapper, self.wrapper_of(receiver)) {
            (Some(wrapper), _) => Via::Wrapper(wrapper),
            (None, Some(wrapper)) if self.modes.wrapper.is_none() => Via::Alias(wrapper),
            _ => match *self.terms.kind(receiver) {
                TermKind::Inner(wrapper) => Via::Inner(wrapper),
                _ => Via::Bare,
            },
        };
        self.forward(receiver, via, None, call.arguments.clone(), call.site, call.expr)
    }

    /// tch: `xs.apply(&net)`.
    fn apply_module(&mut self, call: &Outside<'p>, event: EventId) -> Value {
        let module = call.first().and_then(Value::single);
        let (Some(module), Some(receiver)) = (module, call.receiver) else {
            return self.result(call, Some(event), Taint::NONE);
        };
        let is_module = match self.terms.kind(module) {
            TermKind::Object(_) | TermKind::Inner(_) => true,
            _ => self.wrapper_of(module).is_some(),
        };
        if !is_module {
            return self.result(call, Some(event), Taint::NONE);
        }
        let wrapper = match *self.terms.kind(module) {
            TermKind::Object(id) if is_wrapper(self.object(id).role) => Some(id),
            _ => None,
        };
        let mut input = call.arguments[0].clone();
        input.value = self.value(receiver);
        input.name = None;
        let inner = Outside {
            role: call.role,
            row: call.row,
            name: call.name,
            receiver: Some(module),
            arguments: vec![input],
            site: call.site,
            expr: call.expr,
        };
        self.forward_receiver(&inner, module, wrapper)
    }

    /// Context managers, decorators and closure runners that switch a mode.
    fn mode(&mut self, call: &Outside<'p>, event: EventId) -> Value {
        let function = call
            .arguments
            .iter()
            .find(|a| {
                matches!(
                    a.value.single().map(|t| self.terms.kind(t)),
                    Some(TermKind::Function { .. })
                )
            })
            .cloned();
        let Some(function) = function else {
            let class = call.row.and_then(|r| r.name).or(call.name);
            let class = ObjectClass::Outside(class.unwrap_or(Name::new("<mode>")));
            let object = self.new_object(call.site, class, call.arguments.clone(), Some(event));
            if let Some(receiver) = call.receiver {
                let of = self.value(receiver);
                self.write(Key::Attribute(object, Name::new("<of>")), of);
            }
            return self.value(object);
        };
        if !self.is_rust() {
            return self.mark_function(call.role, &function.value);
        }
        let modes = self.modes;
        match call.role {
            Role::NoGrad => self.modes.grad = false,
            Role::EnableGrad => self.modes.grad = true,
            Role::NoSync => self.modes.no_sync = true,
            Role::Join => self.modes.join = true,
            _ => {}
        }
        let only_main = call.role == Role::MainOnly;
        if only_main {
            let is_main = self.is_zero(RankKind::Rank);
            let condition = self.condition(&is_main);
            self.push_path(condition, call.site);
        }
        let value = self.call_value(&function.value, Vec::new(), call.site, None);
        if only_main {
            self.pop_path();
        }
        self.modes = modes;
        value
    }

    /// `@torch.no_grad()` above a function.
    pub(super) fn call_as_decorator(
        &mut self,
        role: Role,
        arguments: &[ArgumentValue<'p>],
    ) -> Option<Value> {
        let decorates = matches!(role, Role::NoGrad | Role::EnableGrad | Role::MainOnly);
        let first = arguments.first()?;
        (decorates && arguments.len() == 1).then(|| self.mark_function(role, &first.value))
    }

    fn mark_function(&mut self, role: Role, function: &Value) -> Value {
        if let Some(TermKind::Function { function, .. }) =
            function.single().map(|t| self.terms.kind(t).clone())
        {
            self.function_marks.insert(function, role);
        }
        function.clone()
    }

    /// `parser.parse_args()`: an object whose fields are the arguments.
    fn parsed(&mut self, call: &Outside<'p>, event: EventId) -> Value {
        let object = self.new_object(call.site, ObjectClass::Arguments, Vec::new(), Some(event));
        if let Some(receiver) = call.receiver {
            let parser = self.value(receiver);
            self.write(Key::Attribute(object, Name::new("<of>")), parser);
        }
        let known_only = call.name.is_some_and(|n| n.ends_with("parse_known_args"));
        if known_only {
            let rest = self.fresh(call.site, Taint::NONE, &[]);
            let term = self.terms.make(TermKind::Tuple(Box::new([object, rest])));
            return self.value(term);
        }
        self.value(object)
    }

    /// Moves and mode switches give back the module itself; of a tensor, a new one.
    fn changed_module(&mut self, call: &Outside<'p>, event: EventId) -> Value {
        if let Some(receiver) = call.receiver {
            let is_object =
                matches!(self.terms.kind(receiver), TermKind::Object(_) | TermKind::Inner(_));
            if is_object || self.wrapper_of(receiver).is_some() {
                return self.value(receiver);
            }
        }
        if call.row.is_some_and(Row::is_class) {
            return self.plain_effect(call, event);
        }
        let value = self.result(call, None, Taint::NONE);
        if let (Some(of), Some(term)) =
            (call.receiver.and_then(|r| self.types.get(&r).copied()), value.single())
        {
            self.types.insert(term, of);
        }
        value
    }

    fn register(&mut self, call: &Outside<'p>, event: EventId) -> Value {
        let name = call.first().and_then(Value::single).and_then(|t| self.terms.as_str(t));
        let value = call.arguments.iter().find(|a| a.position == Some(1)).map(|a| a.value.clone());
        if let (Some(receiver), Some(name), Some(value)) = (call.receiver, name, value) {
            let holder = self.stored_on(receiver);
            self.write(Key::Attribute(holder, name), value);
        }
        self.plain_effect(call, event)
    }

    /// The result of a collective is the same on all ranks, and so is what it is written into.
    fn collective(&mut self, call: &Outside<'p>, event: EventId) -> Value {
        let output = call.row.and_then(|r| r.output);
        let written = output.and_then(|name| call.named(&name));
        let rooted = call.row.is_some_and(|r| {
            matches!(
                r.kind,
                Some(
                    crate::table::CollectiveKind::Reduce
                        | crate::table::CollectiveKind::Gather
                        | crate::table::CollectiveKind::Send
                        | crate::table::CollectiveKind::Recv
                        | crate::table::CollectiveKind::Scatter
                )
            )
        });
        let in_group = call.named("group").or_else(|| call.named("process_group"));
        let in_group = in_group.is_some_and(|a| a.value.single() != Some(self.terms.none));
        let uniform = !rooted && !in_group;
        let mut from: Vec<Value> = call.arguments.iter().map(|a| a.value.clone()).collect();
        from.extend(call.receiver.map(|t| self.value(t)));
        let refs: Vec<&Value> = from.iter().collect();
        let term = self.derived(call.site, &refs);
        let mut origins = self.terms.origins(term).to_vec();
        origins.push(event);
        origins.sort_unstable();
        let taint = if uniform { Taint::NONE } else { self.terms.taint(term) };
        let clean = self.terms.opaque(call.site, self.frame.0 | 1 << 29, taint, &origins);
        let clean = self.value(clean);
        if let Some(written) = written {
            self.overwrite(written.expr, &written.value, &clean);
        }
        self.handle(call, event).unwrap_or(clean)
    }

    /// What a collective gives beside its result: the handle of one that still runs.
    fn handle(&mut self, call: &Outside<'p>, event: EventId) -> Option<Value> {
        let row = call.row?;
        let is_async = row.has(Flag::Async)
            || call.named("async_op").is_some_and(|a| a.value.single() == Some(self.terms.yes));
        let work = || Name::new("torch.distributed.Work");
        let class = row.returns.or_else(|| (is_async && !row.has(Flag::OutOfPlace)).then(work))?;
        let class = ObjectClass::Outside(class);
        let object = self.new_object(call.site, class, call.arguments.clone(), Some(event));
        let value = self.value(object);
        if row.name.is_some_and(|n| n.ends_with("batch_isend_irecv")) {
            let list = self.list(call.site, vec![value], true);
            return Some(self.value(list));
        }
        Some(value)
    }

    /// Writes what a call put into its argument: the variable, and what the list holds.
    fn overwrite(&mut self, target: &'p Expr, old: &Value, new: &Value) {
        if let Some(list) = old.single()
            && self.object_of(list).is_some_and(|o| o.class == ObjectClass::List)
        {
            self.write(Key::Attribute(list, Name::new("<items>")), new.clone());
            if let Some(TermKind::Tuple(keys)) = self
                .read(&Key::Attribute(list, Name::new("<display>")))
                .and_then(|v| v.single())
                .map(|t| self.terms.kind(t).clone())
            {
                for key in keys {
                    self.write(Key::Item(list, key), new.clone());
                }
            }
            return;
        }
        match &target.kind {
            ExprKind::Name(_) | ExprKind::Attribute { .. } => self.assign_silently(target, new),
            _ => {}
        }
    }

    fn assign_silently(&mut self, target: &'p Expr, new: &Value) {
        match &target.kind {
            ExprKind::Name(name) => self.assign_name(*name, new.clone()),
            ExprKind::Attribute { value, name, .. } => {
                if let Some(of) = self.eval_quietly(value).single() {
                    self.write(Key::Attribute(self.stored_on(of), *name), new.clone());
                }
            }
            _ => {}
        }
    }

    fn exit(&mut self, call: &Outside<'p>) -> Value {
        let code = call.first().and_then(Value::single).and_then(|t| self.terms.as_const(t));
        let kind = match code {
            None if call.first().is_none() => ExitKind::Stop,
            Some(Const::None | Const::Int(0)) => ExitKind::Stop,
            _ => ExitKind::Error,
        };
        self.tree.push(Node::Exit { kind, site: call.site });
        self.falls = self.terms.no;
        self.nothing()
    }

    /// `checkpoint(block, x)`: runs the block on the other arguments.
    fn checkpointed(&mut self, call: &Outside<'p>, event: EventId) -> Value {
        let block = call.named("function").cloned();
        let runs =
            |t: Term| matches!(self.terms.kind(t), TermKind::Function { .. } | TermKind::Object(_));
        let Some(block) = block.filter(|b| b.value.terms().any(runs)) else {
            return self.plain_effect(call, event);
        };
        let given = call.arguments.iter().filter(|a| a.position.is_some_and(|p| p > 0) || a.spread);
        let given = given.map(|a| ArgumentValue {
            name: None,
            position: a.position.map(|p| p - 1),
            ..a.clone()
        });
        let given = given.collect();
        let value = self.call_value(&block.value, given, call.site, None);
        self.with_origin(value, Some(event), call.site)
    }

    fn partial(&mut self, call: &Outside<'p>, event: EventId) -> Value {
        let class = ObjectClass::Outside(Name::new("functools.partial"));
        let mut arguments = call.arguments.clone();
        // Names given by the table belong to `partial`, not to the function.
        for argument in &mut arguments {
            if argument.position.is_some() {
                argument.name = None;
            }
        }
        let object = self.new_object(call.site, class, arguments, Some(event));
        self.value(object)
    }

    /// `ModuleList([..])`: holds what it is given.
    fn module_list(&mut self, call: &Outside<'p>, event: EventId) -> Value {
        let made = self.plain_effect(call, event);
        let Some(list) = made.single() else { return made };
        let mut held: Vec<Value> = Vec::new();
        for argument in &call.arguments {
            match argument.value.single() {
                Some(term)
                    if self.object_of(term).is_some_and(|o| o.class == ObjectClass::List) =>
                {
                    held.extend(self.contents(term));
                }
                _ => held.push(argument.value.clone()),
            }
        }
        for value in held {
            self.add_item(list, &value);
        }
        made
    }

    /// Methods of lists and dicts of ours.
    fn container_method(
        &mut self,
        receiver: Term,
        method: &str,
        arguments: &[ArgumentValue<'p>],
        site: Site,
    ) -> Option<Value> {
        let object = self.object_of(receiver)?;
        let is_modules =
            matches!(object.role, Role::ModuleList | Role::ParameterList | Role::Sequential);
        if !matches!(object.class, ObjectClass::List | ObjectClass::Dict) && !is_modules {
            return None;
        }
        let last = arguments.last().map(|a| a.value.clone());
        match method {
            "append" | "add" | "push" | "insert" | "extend" | "appendleft" | "setdefault"
            | "update" | "push_back" => {
                let value = last?;
                let held = match (method, value.single()) {
                    ("extend" | "update", Some(list)) => self.contents(list),
                    _ => vec![value.clone()],
                };
                for value in held {
                    self.add_item(receiver, &value);
                }
                Some(if is_modules { self.value(receiver) } else { self.nothing() })
            }
            "items" if object.class == ObjectClass::Dict => {
                let held = self.contents(receiver);
                let pairs = held.into_iter().map(|value| self.pair(value, site)).collect();
                let list = self.list(site, pairs, true);
                Some(self.value(list))
            }
            "values" | "items" | "iter" | "copy" | "into_iter" | "iter_mut" if !is_modules => {
                let held = self.contents(receiver);
                let list = self.list(site, held, true);
                Some(self.value(list))
            }
            "get" | "pop" if !is_modules => {
                let key = arguments.first()?.value.single();
                let kept = key.and_then(|k| self.read(&Key::Item(receiver, k)));
                Some(kept.unwrap_or_else(|| {
                    let of = self.value(receiver);
                    let mut from = vec![of];
                    from.extend(last);
                    self.derived_value(site, &from)
                }))
            }
            _ => None,
        }
    }

    /// An item of a dict with a key that is not known.
    fn pair(&mut self, value: Value, site: Site) -> Value {
        let Some(term) = value.single() else { return value };
        let key = self.fresh(site, Taint::NONE, &[]);
        let pair = self.terms.make(TermKind::Tuple(Box::new([key, term])));
        self.value(pair)
    }

    /// `setattr` with names that are not known: constants of an object are its settings, and may
    /// be others now.
    fn overwrite_settings(&mut self, of: &Value) {
        for object in of.terms().collect::<Vec<_>>() {
            let mark = self.nothing();
            self.write(Key::Attribute(object, Name::new(super::store::SET_BY_NAME)), mark);
            for (name, value) in self.store.attributes(object) {
                let is_setting = value.terms().all(|term| match self.terms.kind(term) {
                    TermKind::Const(_) => true,
                    TermKind::Object(id) => self.object(*id).class == ObjectClass::List,
                    _ => false,
                });
                if is_setting {
                    let unknown = self.terms.make(TermKind::Attribute(object, name));
                    let unknown = self.value(unknown);
                    self.write(Key::Attribute(object, name), unknown);
                }
            }
        }
    }

    /// No group was made so far, and the function that asks makes it.
    fn is_about_to_start(&self) -> bool {
        let made = |event: &Event<'_>| event.call().is_some_and(|c| c.role == Role::InitGroup);
        if self.frame().orphan || self.events.iter().any(made) {
            return false;
        }
        let body = match self.frame().function {
            Some(function) => &self.function(function).body,
            None => &self.project.file(self.file()).module.body,
        };
        any_expr(body, &mut |expr| match &expr.kind {
            ExprKind::Call { callee, .. } => {
                callee.last_name().is_some_and(|name| &*name == "init_process_group")
            }
            _ => false,
        })
    }

    /// Built-in functions whose meaning is not a matter of tables.
    fn built_in(
        &mut self,
        name: &str,
        arguments: &[ArgumentValue<'p>],
        site: Site,
    ) -> Option<Value> {
        let first = arguments.first().map(|a| &a.value);
        match name {
            "hasattr" => self.has_attribute(first?, &arguments.get(1)?.value),
            "getattr" => self.get_attribute(arguments, site),
            "eval" => self.named_member(first?, site),
            "type" if arguments.len() == 1 && !self.is_rust() => Some(self.types_of(first?)),
            "setattr" => {
                let name = arguments.get(1)?.value.single();
                let Some(name) = name.and_then(|name| self.terms.as_str(name)) else {
                    self.overwrite_settings(first?);
                    return Some(self.nothing());
                };
                let value = arguments.get(2)?.value.clone();
                let expr = Some(arguments[0].expr);
                self.assign_attribute(&first?.clone(), name, &value, site, expr, false);
                Some(self.nothing())
            }
            "int" | "str" | "float" | "bool" if arguments.len() == 1 => {
                let term = first?.single()?;
                let converted = match (name, self.terms.as_const(term)) {
                    ("int", Some(Const::Str(text))) => text.parse().ok().map(Const::Int),
                    _ => None,
                };
                Some(match converted {
                    Some(value) => {
                        let term = self.terms.constant(value);
                        self.value(term)
                    }
                    None => first?.clone(),
                })
            }
            _ => self.built_in_sequence(name, arguments, site),
        }
    }

    /// Built-in functions that make or walk over sequences.
    fn built_in_sequence(
        &mut self,
        name: &str,
        arguments: &[ArgumentValue<'p>],
        site: Site,
    ) -> Option<Value> {
        let first = arguments.first().map(|a| &a.value);
        match name {
            "list" | "tuple" | "sorted" | "reversed" | "iter" | "next" | "enumerate"
                if arguments.len() == 1
                    && name != "enumerate"
                    && name != "next"
                    && first.and_then(Value::single).is_some_and(|t| self.walks_anew(name, t)) =>
            {
                first.cloned()
            }
            "dict" if !arguments.is_empty() && arguments.iter().all(|a| a.name.is_some()) => {
                let items = arguments.iter().filter_map(|a| Some((a.name?, a.value.clone())));
                let items: Vec<(Name, Value)> = items.collect();
                Some(self.dict_of(items, site))
            }
            "iter" | "next" if !arguments.is_empty() && !self.is_rust() => {
                let object = self.object_of(first?.single()?)?;
                let is_list = object.class == ObjectClass::List;
                match name {
                    _ if !is_list && object.role != Role::Loader => None,
                    "iter" => first.cloned(),
                    _ => Some(self.one_item(first?)),
                }
            }
            "list" | "dict" | "set" | "Vec.new" | "Vec.with_capacity"
                if arguments.is_empty() || name.starts_with("Vec") =>
            {
                let list = self.list(site, Vec::new(), true);
                Some(self.value(list))
            }
            "zip" => {
                let items: Option<Vec<Term>> = arguments.iter().map(|a| a.value.single()).collect();
                let from: Vec<Value> = arguments.iter().map(|a| self.one_item(&a.value)).collect();
                items?;
                let parts: Vec<Term> = from.iter().filter_map(Value::single).collect();
                let tuple = self.terms.make(TermKind::Tuple(parts.into()));
                let tuple = self.value(tuple);
                let list = self.list(site, vec![tuple], true);
                Some(self.value(list))
            }
            "range" => self.range(arguments),
            "enumerate" => {
                let item = self.one_item(first?);
                let index = self.fresh(site, Taint::NONE, &[]);
                self.counters.insert(index);
                let tuple = self.terms.make(TermKind::Tuple(Box::new([index, item.single()?])));
                let tuple = self.value(tuple);
                let list = self.list(site, vec![tuple], true);
                Some(self.value(list))
            }
            _ => None,
        }
    }

    /// What it gives walks over the same items as its argument.
    fn walks_anew(&self, name: &str, term: Term) -> bool {
        self.sequence(term).is_some() || name != "reversed" && self.is_range(term)
    }

    /// `range(n)`, `range(a, b)`: of each alternative of its bounds.
    fn range(&mut self, arguments: &[ArgumentValue<'p>]) -> Option<Value> {
        let plain = |a: &ArgumentValue<'p>| !a.spread && a.name.is_none();
        let strides = arguments.len() > 2;
        if arguments.is_empty() || strides || !arguments.iter().all(plain) {
            return None;
        }
        let mut ranges = vec![(self.terms.yes, Vec::new())];
        for argument in arguments {
            let mut longer = Vec::new();
            for (when, bounds) in &ranges {
                for alternative in &argument.value.alternatives {
                    let when = self.terms.and([*when, alternative.when]);
                    let mut bounds: Vec<Term> = bounds.clone();
                    bounds.push(alternative.term);
                    if when != self.terms.no {
                        longer.push((when, bounds));
                    }
                }
            }
            ranges = longer;
        }
        if ranges.is_empty() || ranges.len() > crate::analysis::value::ALTERNATIVES_MAX {
            return None;
        }
        let name = Name::new("range");
        let alternatives = ranges
            .into_iter()
            .map(|(when, bounds)| {
                let term = self.terms.make(TermKind::Apply(name, bounds.into()));
                crate::analysis::value::Alternative { when, term }
            })
            .collect();
        Some(Value { alternatives })
    }

    /// One item of what a value iterates over.
    fn one_item(&mut self, value: &Value) -> Value {
        let Some(term) = value.single() else {
            let site = Site { file: self.file(), span: crate::model::Span::default() };
            return self.derived_value(site, std::slice::from_ref(value));
        };
        self.item_of_term(term)
    }

    /// `type(x)`: the class of each thing that `x` may be.
    fn types_of(&mut self, value: &Value) -> Value {
        let mut alternatives = Vec::new();
        for alternative in value.alternatives.clone() {
            let class = self.object_of(self.stored_on(alternative.term)).map(|o| o.class);
            let kind = match class {
                Some(ObjectClass::Project(class)) => TermKind::Class(class),
                Some(ObjectClass::Outside(name)) => TermKind::Outside(name),
                _ => TermKind::Apply(Name::new("type"), [alternative.term].into()),
            };
            let term = self.terms.make(kind);
            alternatives.push(crate::analysis::value::Alternative { when: alternative.when, term });
        }
        Value { alternatives: alternatives.into() }
    }

    fn type_test(&mut self, call: &Outside<'p>, event: EventId) -> Value {
        let tested = match call.arguments.as_slice() {
            [object, class] => self.is_instance(&object.value, &class.value),
            _ => None,
        };
        tested.unwrap_or_else(|| self.plain_effect(call, event))
    }

    fn is_instance(&mut self, value: &Value, class: &Value) -> Option<Value> {
        let class = class.single()?;
        let classes: Vec<Term> = match self.terms.kind(class) {
            TermKind::Tuple(items) => items.to_vec(),
            _ => vec![class],
        };
        let mut alternatives = Vec::new();
        for alternative in value.alternatives.clone() {
            let known: Vec<Option<bool>> =
                classes.iter().map(|&c| self.is_instance_of(alternative.term, c)).collect();
            let term = if known.contains(&Some(true)) {
                self.terms.yes
            } else if known.iter().all(|k| *k == Some(false)) {
                self.terms.no
            } else {
                let parts = [alternative.term, class].into();
                self.terms.make(TermKind::Apply(Name::new("isinstance"), parts))
            };
            alternatives.push(crate::analysis::value::Alternative { when: alternative.when, term });
        }
        Some(Value { alternatives: alternatives.into() })
    }

    fn is_instance_of(&self, term: Term, class: Term) -> Option<bool> {
        let object = match self.terms.kind(term) {
            TermKind::Object(id) => self.object(*id),
            TermKind::Inner(_) => {
                let stored = self.stored_on(term);
                return (stored != term).then(|| self.is_instance_of(stored, class))?;
            }
            TermKind::Const(_) => return Some(false),
            _ => return None,
        };
        match (object.class, self.terms.kind(class)) {
            (ObjectClass::Outside(of), TermKind::Outside(wanted)) => {
                let canonical = self.table.get(*wanted).and_then(|r| r.name).unwrap_or(*wanted);
                Some(self.table.is_a(of, canonical))
            }
            (ObjectClass::Project(of), TermKind::Class(wanted)) => {
                Some(self.ancestors(of).contains(wanted))
            }
            (ObjectClass::Project(of), TermKind::Outside(wanted)) => {
                let canonical = self.table.get(*wanted).and_then(|r| r.name).unwrap_or(*wanted);
                let base = self.class_roles.get(&of).and_then(|(_, base)| *base)?;
                Some(self.table.is_a(base, canonical))
            }
            (ObjectClass::Outside(_), TermKind::Class(_)) => Some(false),
            _ => None,
        }
    }

    fn has_attribute(&mut self, value: &Value, name: &Value) -> Option<Value> {
        let name = name.single().and_then(|t| self.terms.as_str(t))?;
        let mut alternatives = Vec::new();
        for alternative in value.alternatives.clone() {
            let term = if let Some(known) = self.knows_attribute(alternative.term, name) {
                self.terms.bool(known)
            } else {
                let text = self.terms.constant(Const::Str(name));
                let parts = [alternative.term, text].into();
                self.terms.make(TermKind::Apply(Name::new("hasattr"), parts))
            };
            alternatives.push(crate::analysis::value::Alternative { when: alternative.when, term });
        }
        Some(Value { alternatives: alternatives.into() })
    }

    /// Whether an object has an attribute, where that is certain.
    fn knows_attribute(&self, term: Term, name: Name) -> Option<bool> {
        let object = self.object_of(term)?;
        if is_wrapper(object.role) && &*name == "module" {
            return Some(true);
        }
        if self.store.get(&Key::Attribute(term, name)).is_some() {
            return Some(true);
        }
        match object.class {
            ObjectClass::Project(class) if &*name == "module" => {
                Some(self.class_member(class, name).is_some())
            }
            ObjectClass::Outside(class) if &*name == "module" => {
                self.table.is_a(class, Name::new("torch.nn.Module")).then_some(false)
            }
            _ => None,
        }
    }

    fn get_attribute(&mut self, arguments: &[ArgumentValue<'p>], site: Site) -> Option<Value> {
        let of = arguments.first()?.value.clone();
        let name = arguments.get(1)?.value.single().and_then(|t| self.terms.as_str(t))?;
        let Some(default) = arguments.get(2).map(|a| a.value.clone()) else {
            return Some(self.attribute_value(&of, name, site, None));
        };
        let mut alternatives = Vec::new();
        for alternative in of.alternatives.clone() {
            let one = Value { alternatives: smallvec::smallvec![alternative] };
            let value = match self.knows_attribute(alternative.term, name) {
                Some(true) => self.attribute_value(&one, name, site, None),
                Some(false) => self.when(alternative.when, default.clone()),
                None => {
                    let term = self.terms.make(TermKind::Attribute(alternative.term, name));
                    let value = self.value(term);
                    self.when(alternative.when, value)
                }
            };
            alternatives.extend(value.alternatives);
        }
        Some(Value { alternatives: alternatives.into() })
    }
}

/// The names that a body reads, those of nested functions left out.
fn names_read(body: &[Stmt]) -> Vec<Name> {
    let mut names = Vec::new();
    for statement in body {
        statement.each_part(&mut |part| match part {
            Part::Expr(expr) => expr.each_inside(&mut |e| {
                if let ExprKind::Name(name) = &e.kind
                    && !names.contains(name)
                {
                    names.push(*name);
                }
            }),
            Part::Block(body) => names.extend(names_read(body)),
            Part::Target(_) | Part::Function(_) | Part::Class(_) => {}
        });
    }
    names
}
