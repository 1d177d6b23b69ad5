//! Classes of the project: definition, lookup of members, instances.

use super::call::Callee;
use super::{ClassInfo, Frame, Interpreter, Key, ObjectClass};
use crate::analysis::event::ArgumentValue;
use crate::analysis::term::{ClassRef, FrameId, FunctionRef, Taint, Term, TermKind};
use crate::analysis::value::Value;
use crate::model::{
    ClassIndex, Expr, ExprKind, FunctionIndex, Language, Name, ParameterKind, Site,
};
use crate::table::Role;

use rustc_hash::FxHashMap;

/// Bases are followed this far.
const ANCESTORS_MAX: usize = 24;
/// Commands of an application beyond these are not run.
const COMMANDS_MAX: usize = 32;

impl<'p> Interpreter<'p> {
    pub(super) fn define_class(&mut self, index: ClassIndex) {
        let file = self.file();
        let class = ClassRef { file, index };
        let definition = self.project.file(file).module.class(index);
        let term = self.terms.make(TermKind::Class(class));
        let bases: Vec<Term> =
            definition.bases.iter().filter_map(|base| self.eval_quietly(base).single()).collect();
        let closure = self.captured();
        let mut methods = FxHashMap::default();
        for &method in &definition.methods {
            let name = self.project.file(file).module.function(method).name;
            methods.insert(name, self.method_term(file, method, closure));
        }
        if self.project.file(file).module.language == Language::Rust {
            self.add_impls(definition.name, file, closure, &mut methods);
        }
        self.classes.insert(class, ClassInfo { term, bases, methods });
        let role = self.class_role(class);
        self.class_roles.insert(class, role);
        let value = self.value(term);
        self.assign_name(definition.name, value);
        self.class_body(class, term);
    }

    /// The frame whose variables a function that is defined here sees.
    fn captured(&mut self) -> Option<FrameId> {
        self.frame().function?;
        self.frame_mut().is_captured = true;
        Some(self.frame)
    }

    fn method_term(
        &mut self,
        file: crate::model::FileId,
        index: FunctionIndex,
        closure: Option<FrameId>,
    ) -> Term {
        let function = FunctionRef { file, index };
        self.apply_outside_decorators(function);
        let decorators = self.project_decorators(function);
        if !decorators.is_empty() {
            self.method_decorators.insert(function, decorators);
        }
        self.terms.make(TermKind::Function { function, closure, bound: None })
    }

    /// The decorators that are functions of the project, innermost first.
    fn project_decorators(&mut self, function: FunctionRef) -> Vec<(&'p Expr, Term)> {
        let definition = self.function(function);
        let mut found = Vec::new();
        for decorator in definition.decorators.iter().rev() {
            let is_function = |this: &Self, t: Term| {
                matches!(this.terms.kind(t), TermKind::Function { bound: None, .. })
            };
            let callee = decorator_path(decorator).and_then(|p| self.eval_quietly(p).single());
            if callee.is_some_and(|t| is_function(self, t))
                && let Some(term) = self.eval(decorator).single().filter(|&t| is_function(self, t))
            {
                found.push((decorator, term));
            }
        }
        found
    }

    /// Calls a method through the decorators that the project put on it.
    pub(super) fn call_decorated(
        &mut self,
        callee: Callee,
        arguments: &[ArgumentValue<'p>],
        site: Site,
    ) -> Option<Value> {
        let decorators = self.method_decorators.get(&callee.function)?.clone();
        if callee.bound.is_none() || self.bare_methods.contains(&callee.function) {
            return None;
        }
        self.bare_methods.push(callee.function);
        let value = self.run_decorated(callee, &decorators, arguments, site);
        self.bare_methods.pop();
        value
    }

    fn run_decorated(
        &mut self,
        callee: Callee,
        decorators: &[(&'p Expr, Term)],
        arguments: &[ArgumentValue<'p>],
        site: Site,
    ) -> Option<Value> {
        let wrapped = self.wrapped_by(Callee { bound: None, ..callee }, decorators, site)?;
        let takes_self = self
            .function(wrapped.function)
            .parameters
            .first()
            .is_some_and(|p| p.kind == ParameterKind::Positional);
        if takes_self {
            let callee = Callee { bound: callee.bound, ..wrapped };
            return Some(self.call_function(callee, arguments, site, None));
        }
        // `def wrapper(*args, **kwargs)` gives on whatever comes: here the bound method does.
        let wrapped = self.wrapped_by(callee, decorators, site)?;
        Some(self.call_function(wrapped, arguments, site, None))
    }

    /// What decorators make of a function, if that is a function again.
    fn wrapped_by(
        &mut self,
        callee: Callee,
        decorators: &[(&'p Expr, Term)],
        site: Site,
    ) -> Option<Callee> {
        let Callee { function, closure, bound } = callee;
        let mut term = self.terms.make(TermKind::Function { function, closure, bound });
        for &(expr, decorator) in decorators {
            let value = self.value(term);
            let given = ArgumentValue { name: None, position: Some(0), expr, value, spread: false };
            term = self.call_term(decorator, vec![given], site, None).single()?;
        }
        match *self.terms.kind(term) {
            TermKind::Function { function, closure, bound } => {
                Some(Callee { function, closure, bound })
            }
            _ => None,
        }
    }

    /// `@torch.no_grad()` and the like on methods.
    fn apply_outside_decorators(&mut self, function: FunctionRef) {
        let definition = self.function(function);
        for decorator in &definition.decorators {
            let Some(path) = decorator_path(decorator) else { continue };
            let Some(term) = self.eval_quietly(path).single() else { continue };
            let TermKind::Outside(name) = *self.terms.kind(term) else { continue };
            if let Some(row) = self.table.get(name)
                && matches!(row.role, Role::NoGrad | Role::EnableGrad | Role::MainOnly)
            {
                self.function_marks.insert(function, row.role);
            }
        }
    }

    fn add_impls(
        &mut self,
        name: Name,
        file: crate::model::FileId,
        closure: Option<FrameId>,
        methods: &mut FxHashMap<Name, Term>,
    ) {
        let found = self.impls.get(&name).cloned().unwrap_or_default();
        let here = found.iter().any(|(f, _)| *f == file);
        for (at, block) in found {
            // The same name may stand for another type elsewhere: the own file wins.
            let elsewhere = at != file && here && block.of_trait.is_none();
            if elsewhere {
                continue;
            }
            for &method in &block.methods {
                let name = self.project.file(at).module.function(method).name;
                let term = self.method_term(at, method, closure);
                methods.entry(name).or_insert(term);
            }
        }
    }

    /// Runs the statements of a class body: its attributes are the class's.
    fn class_body(&mut self, class: ClassRef, term: Term) {
        let body = &self.project.file(class.file).module.class(class.index).body;
        if body.is_empty() {
            return;
        }
        let caller = self.frame;
        let outer = self.frame().clone();
        let frame = Frame {
            id: FrameId(self.frames.len() as u32),
            file: class.file,
            function: outer.function,
            caller: Some(caller),
            call: None,
            orphan: outer.orphan,
            receiver: None,
            class: Some(class),
            closure: outer.function.map(|_| caller).or(outer.closure),
            class_body: Some(term),
            is_captured: false,
            outer_names: Vec::new(),
            exits: Vec::new(),
            path_base: self.path.len(),
            trail_base: self.store.mark(),
            yielded: Vec::new(),
            loop_exits: Vec::new(),
        };
        self.push_frame(frame);
        self.block(body);
        self.frame = caller;
    }

    /// The class and its bases in the project, nearest first.
    pub(in crate::analysis) fn ancestors(&self, class: ClassRef) -> Vec<ClassRef> {
        let mut all = vec![class];
        let mut at = 0;
        while at < all.len() && all.len() < ANCESTORS_MAX {
            if let Some(info) = self.classes.get(&all[at]) {
                for &base in &info.bases {
                    if let TermKind::Class(base) = *self.terms.kind(base)
                        && !all.contains(&base)
                    {
                        all.push(base);
                    }
                }
            }
            at += 1;
        }
        all
    }

    /// A method or class attribute.
    pub(super) fn class_member(&self, class: ClassRef, name: Name) -> Option<Term> {
        self.ancestors(class).into_iter().find_map(|class| self.own_member(class, name))
    }

    fn own_member(&self, class: ClassRef, name: Name) -> Option<Term> {
        let info = self.classes.get(&class)?;
        let own = self.store.get(&Key::Attribute(info.term, name)).and_then(Value::single);
        own.filter(|&t| !matches!(self.terms.kind(t), TermKind::Function { .. }))
            .or_else(|| info.methods.get(&name).copied())
            .or(own)
    }

    /// The role of a class, and the outside base that it has it from.
    pub(super) fn class_role(&self, class: ClassRef) -> (Role, Option<Name>) {
        let mut nearest = None;
        for ancestor in self.ancestors(class) {
            let Some(info) = self.classes.get(&ancestor) else { continue };
            for &base in &info.bases {
                let TermKind::Outside(name) = *self.terms.kind(base) else { continue };
                let Some(row) = self.table.get(name) else { continue };
                if row.role != Role::Plain {
                    return (row.role, row.name);
                }
                nearest = nearest.or(row.name);
            }
        }
        if self.copies_data_parallel(class) {
            return (Role::WrapDp, Some(Name::new("torch.nn.parallel.DataParallel")));
        }
        (Role::Plain, nearest)
    }

    /// A project's own copy of `DataParallel`: it has all of its steps.
    fn copies_data_parallel(&self, class: ClassRef) -> bool {
        let steps = ["scatter", "replicate", "parallel_apply", "gather", "forward"];
        self.classes
            .get(&class)
            .is_some_and(|info| steps.iter().all(|&s| info.methods.contains_key(&Name::new(s))))
    }

    /// A neural network module: of the project, or a layer.
    pub(crate) fn is_module(&self, term: Term) -> bool {
        let Some(object) = self.object_of(term) else {
            return matches!(self.terms.kind(term), TermKind::Inner(_));
        };
        match object.class {
            ObjectClass::Outside(name) => {
                self.table.is_a(name, Name::new("torch.nn.Module"))
                    || matches!(object.role, Role::Layer | Role::Sequential | Role::ModuleList)
            }
            ObjectClass::Project(class) => self.is_module_class(class),
            _ => false,
        }
    }

    pub(crate) fn is_module_class(&self, class: ClassRef) -> bool {
        let module = Name::new("torch.nn.Module");
        let base = self.class_role(class).1;
        if base.is_some_and(|b| self.table.is_a(b, module)) {
            return true;
        }
        let file = self.project.file(class.file);
        file.module.language == Language::Rust
            && ["forward", "forward_t"]
                .iter()
                .any(|name| self.class_member(class, Name::new(name)).is_some())
    }

    pub(super) fn instantiate(
        &mut self,
        class: ClassRef,
        arguments: Vec<ArgumentValue<'p>>,
        site: Site,
    ) -> Value {
        let object = self.new_object(site, ObjectClass::Project(class), arguments.clone(), None);
        let constructor = self.class_member(class, Name::new("__init__"));
        if let Some(constructor) = constructor
            && let TermKind::Function { function, closure, .. } = *self.terms.kind(constructor)
        {
            let bound = Some(object);
            let bound = self.terms.make(TermKind::Function { function, closure, bound });
            self.call_term(bound, arguments, site, None);
        } else {
            self.fill_fields(class, object, &arguments);
        }
        self.value(object)
    }

    /// Dataclasses, named tuples and Rust tuple structs: arguments fill declared fields.
    fn fill_fields(&mut self, class: ClassRef, object: Term, arguments: &[ArgumentValue<'p>]) {
        let is_wrapper = super::attribute::is_wrapper(self.class_role(class).0);
        if is_wrapper && let Some(first) = arguments.first() {
            let module = first.value.clone();
            self.note_wrapped(object, &module);
        }
        let fields = &self.project.file(class.file).module.class(class.index).fields;
        for (position, field) in fields.iter().enumerate() {
            let given = arguments.iter().find(|a| {
                !a.spread
                    && (a.name == Some(field.name)
                        || a.name.is_none() && a.position == Some(position))
            });
            if let Some(given) = given {
                self.write(Key::Attribute(object, field.name), given.value.clone());
            }
        }
    }

    pub(super) fn super_value(&mut self, site: Site) -> Value {
        let frame = self.frame();
        let receiver = frame.receiver.or_else(|| {
            let closure = frame.closure?;
            self.frames[closure.0 as usize].receiver
        });
        let (Some(receiver), Some(class)) = (receiver, frame.class) else {
            let term = self.fresh(site, Taint::NONE, &[]);
            return self.value(term);
        };
        // The class that holds the running method, not the receiver's own.
        let class = match frame.function {
            Some(function) => self
                .function(function)
                .class
                .map_or(class, |index| ClassRef { file: function.file, index }),
            None => class,
        };
        let class = self.terms.make(TermKind::Class(class));
        let term =
            self.terms.make(TermKind::Apply(Name::new("super"), Box::new([receiver, class])));
        self.value(term)
    }

    pub(super) fn super_member(&mut self, receiver: Term, class: Term, name: Name) -> Value {
        let TermKind::Class(class) = *self.terms.kind(class) else { return self.nothing() };
        let above = self.ancestors(class);
        let found = above.into_iter().skip(1).find_map(|class| self.own_member(class, name));
        let term = match found.map(|t| (t, self.terms.kind(t).clone())) {
            Some((_, TermKind::Function { function, closure, .. })) => {
                let bound = Some(receiver);
                self.terms.make(TermKind::Function { function, closure, bound })
            }
            Some((term, _)) => term,
            None if &*name == "__init__" => {
                return self.outside_constructor(receiver, class);
            }
            None => self.terms.make(TermKind::Attribute(receiver, name)),
        };
        self.value(term)
    }

    /// `super().__init__` of an outside base: nothing runs; a wrapper subclass wraps.
    fn outside_constructor(&mut self, receiver: Term, class: ClassRef) -> Value {
        if super::attribute::is_wrapper(self.class_role(class).0)
            && let Some(object) = self.object_of(receiver)
        {
            // A subclass may take more in front of the module.
            let is_module = |a: &&ArgumentValue<'p>| a.value.terms().any(|t| self.is_module(t));
            let given = object.arguments.iter().find(is_module).or(object.arguments.first());
            if let Some(module) = given.map(|a| a.value.clone()) {
                self.note_wrapped(receiver, &module);
            }
        }
        let term = self.terms.make(TermKind::Outside(Name::new("object.__init__")));
        self.value(term)
    }

    pub(super) fn define_function(&mut self, index: FunctionIndex) {
        let file = self.file();
        let function = FunctionRef { file, index };
        let definition = self.function(function);
        let closure = self.captured();
        let term = self.terms.make(TermKind::Function { function, closure, bound: None });
        let mut value = self.value(term);
        if self.project.file(file).module.language == Language::Python
            && self.frame().class_body.is_none()
        {
            self.apply_outside_decorators(function);
            value = self.decorated(function, value);
        }
        self.assign_name(definition.name, value);
    }

    /// Decorators of the project are called; those of the outside leave the function as it is.
    fn decorated(&mut self, function: FunctionRef, mut value: Value) -> Value {
        let definition = self.function(function);
        for decorator in definition.decorators.iter().rev() {
            let Some(path) = decorator_path(decorator) else { continue };
            let Some(callee) = self.eval_quietly(path).single() else { continue };
            if let TermKind::Attribute(receiver, _) = *self.terms.kind(callee) {
                self.note_command(receiver, &value);
            }
            if !matches!(self.terms.kind(callee), TermKind::Function { .. }) {
                continue;
            }
            let site = self.site(decorator.span);
            let decorator_value = self.eval(decorator);
            let given = ArgumentValue {
                name: None,
                position: Some(0),
                expr: decorator,
                value: value.clone(),
                spread: false,
            };
            let new = self.call_value(&decorator_value, vec![given], site, None);
            if matches!(new.single().map(|t| self.terms.kind(t)), Some(TermKind::Function { .. })) {
                value = new;
            }
        }
        value
    }

    /// `@app.command()`: calling the application runs the function.
    fn note_command(&mut self, app: Term, function: &Value) {
        if self.is_application(app) {
            let key = (0..COMMANDS_MAX)
                .map(|n| command_key(app, n))
                .find(|key| self.store.get(key).is_none());
            if let Some(key) = key {
                self.write(key, function.clone());
            }
        }
    }

    fn is_application(&self, term: Term) -> bool {
        self.object_of(term)
            .is_some_and(|o| o.class == ObjectClass::Outside(Name::new("typer.Typer")))
    }

    /// `app()`: one of its commands runs, with what the command line says.
    pub(super) fn call_application(&mut self, app: Term, site: Site, expr: Option<&'p Expr>) {
        if !self.is_application(app) {
            return;
        }
        let given: Vec<_> = expr.map(|e| self.command_line_arguments(e)).into_iter().collect();
        for n in 0..COMMANDS_MAX {
            let Some(function) = self.store.get(&command_key(app, n)).cloned() else { break };
            self.call_value(&function, given.clone(), site, None);
        }
    }

    /// What the command line gives a function: any parameter may be filled from it.
    pub(super) fn command_line_arguments(&mut self, expr: &'p Expr) -> ArgumentValue<'p> {
        let site = self.site(expr.span);
        let line = self.new_object(site, ObjectClass::Arguments, Vec::new(), None);
        let value = self.value(line);
        ArgumentValue { name: None, position: None, expr, value, spread: true }
    }
}

fn command_key(app: Term, n: usize) -> Key {
    Key::Attribute(app, Name::new(&format!("<command {n}>")))
}

/// `@a.b` and `@a.b(..)` alike.
fn decorator_path(decorator: &Expr) -> Option<&Expr> {
    match &decorator.kind {
        ExprKind::Call { callee, .. } => callee.path().map(|_| &**callee),
        _ => decorator.path().map(|_| decorator),
    }
}
