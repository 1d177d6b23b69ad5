//! Names, attributes and items: what they lead to.

use super::{Interpreter, Key, ObjectClass};
use crate::analysis::event::EventKind;
use crate::analysis::term::{FrameId, RankKind, Taint, Term, TermKind};
use crate::analysis::value::{Alternative, Value};
use crate::model::{Expr, ExprKind, Name, Site};
use crate::project::Resolution;
use crate::table::Role;

impl<'p> Interpreter<'p> {
    pub(super) fn name(&mut self, name: Name, site: Site) -> Value {
        if let Some(value) = self.local(name) {
            return value;
        }
        let frame = self.frame();
        let file = frame.file;
        if let Some(class) = frame.class_body
            && let Some(value) = self.read(&Key::Attribute(class, name))
        {
            return value;
        }
        if let Some(value) = self.global(file, name) {
            return value;
        }
        if let Some(imported) = self.imported_macro(file, name) {
            return self.value(imported);
        }
        let term = match &*name {
            "Self" if self.is_rust() => match self.frame().class {
                Some(class) => self.terms.make(TermKind::Class(class)),
                None => self.fresh(site, Taint::NONE, &[]),
            },
            "crate" if self.is_rust() => self.terms.make(TermKind::Package(name)),
            _ => self.terms.make(TermKind::Outside(name)),
        };
        self.value(term)
    }

    /// `info!` under `use log::info`.
    fn imported_macro(&mut self, file: crate::model::FileId, name: Name) -> Option<Term> {
        let bare = name.strip_suffix('!').filter(|_| self.is_rust())?;
        let found = self.global(file, Name::new(bare))?.single()?;
        match *self.terms.kind(found) {
            TermKind::Outside(path) => {
                let path = Name::new(&format!("{path}!"));
                // What guards its arguments is no call of them.
                let is_plain = self.table.get(path).is_some_and(|r| r.role != Role::MainOnly);
                is_plain.then(|| self.terms.make(TermKind::Outside(path)))
            }
            _ => None,
        }
    }

    fn local(&self, name: Name) -> Option<Value> {
        self.frame().function?;
        let mut at: Option<FrameId> = Some(self.frame);
        while let Some(id) = at {
            if let Some(value) = self.read(&Key::Variable(id, name)) {
                return Some(value);
            }
            at = self.frames[id.0 as usize].closure;
        }
        None
    }

    pub(super) fn global(&mut self, file: crate::model::FileId, name: Name) -> Option<Value> {
        if let Some(value) = self.read(&Key::Global(file, name)) {
            return Some(value);
        }
        for star in self.star_imports.get(&file).cloned().unwrap_or_default() {
            match *self.terms.kind(star) {
                TermKind::Module(from) if from != file => {
                    if let Some(value) = self.read(&Key::Global(from, name)) {
                        return Some(value);
                    }
                }
                TermKind::Outside(module) => {
                    let dotted = Name::new(&format!("{module}.{name}"));
                    if self.table.get(dotted).is_some() {
                        let term = self.terms.make(TermKind::Outside(dotted));
                        return Some(self.value(term));
                    }
                }
                _ => {}
            }
        }
        None
    }

    /// `of.name`, for each thing `of` may be.
    pub(super) fn attribute_value(
        &mut self,
        of: &Value,
        name: Name,
        site: Site,
        expr: Option<&'p Expr>,
    ) -> Value {
        if let [only] = of.alternatives.as_slice() {
            let (when, term) = (only.when, only.term);
            let value = self.attribute(term, name, site, expr);
            return self.when(when, value);
        }
        let mut alternatives: Vec<Alternative> = Vec::new();
        for alternative in of.alternatives.clone() {
            self.push_path(alternative.when, site);
            let value = self.attribute(alternative.term, name, site, expr);
            self.pop_path();
            let value = self.when(alternative.when, value);
            alternatives.extend(value.alternatives);
        }
        Value { alternatives: alternatives.into() }
    }

    /// The value, under a further condition.
    pub(super) fn when(&mut self, when: Term, mut value: Value) -> Value {
        if when != self.terms.yes {
            for alternative in &mut value.alternatives {
                alternative.when = self.terms.and([when, alternative.when]);
            }
        }
        value
    }

    fn attribute(&mut self, term: Term, name: Name, site: Site, expr: Option<&'p Expr>) -> Value {
        let is_wrapper = self.object_of(term).is_some_and(|o| is_wrapper(o.role));
        let value = self.attribute_inner(term, name, site);
        if is_wrapper || &*name == "module" {
            let kind = EventKind::AttributeRead { of: term, name, result: value.clone() };
            self.push_event(kind, site, expr);
        }
        value
    }

    fn attribute_inner(&mut self, term: Term, name: Name, site: Site) -> Value {
        if let TermKind::Object(id) = *self.terms.kind(term)
            && is_wrapper(self.object(id).role)
            && &*name == "module"
        {
            let inner = self.terms.make(TermKind::Inner(id));
            return self.value(inner);
        }
        if let Some(value) = self.read(&Key::Attribute(term, name)) {
            return value;
        }
        match self.terms.kind(term).clone() {
            TermKind::Object(id) => match self.object(id).class {
                ObjectClass::Project(class) => self.member(term, class, name, site),
                ObjectClass::Arguments => self.parsed_argument(term, name),
                _ => self.plain_attribute(term, name),
            },
            TermKind::Inner(id) => self.inner_attribute(id, term, name, site),
            TermKind::Class(class) => match self.class_member(class, name) {
                Some(found) => self.value(found),
                None => self.plain_attribute(term, name),
            },
            TermKind::Module(file) => self.module_member(file, name, site),
            TermKind::Package(path) => self.package_member(path, name),
            TermKind::Outside(path) => {
                let dotted = Name::new(&format!("{path}.{name}"));
                let term = self.terms.make(TermKind::Outside(dotted));
                self.value(term)
            }
            TermKind::Apply(apply, parts) if &*apply == "super" => {
                self.super_member(parts[0], parts[1], name)
            }
            _ => self.plain_attribute(term, name),
        }
    }

    fn plain_attribute(&mut self, term: Term, name: Name) -> Value {
        let term = self.terms.make(TermKind::Attribute(term, name));
        self.value(term)
    }

    /// A member of an instance of a class of the project.
    fn member(
        &mut self,
        object: Term,
        class: crate::analysis::term::ClassRef,
        name: Name,
        site: Site,
    ) -> Value {
        let Some(found) = self.class_member(class, name) else {
            return match self.declared_field(object, class, name, site) {
                Some(value) => value,
                None => self.plain_attribute(object, name),
            };
        };
        let TermKind::Function { function, closure, bound: None } = *self.terms.kind(found) else {
            return self.value(found);
        };
        let definition = self.function(function);
        if definition.has_decorator("staticmethod") {
            return self.value(found);
        }
        let receiver = if definition.has_decorator("classmethod") {
            self.terms.make(TermKind::Class(class))
        } else {
            object
        };
        let method = TermKind::Function { function, closure, bound: Some(receiver) };
        let method = self.terms.make(method);
        let is_property = definition.has_decorator("property")
            || definition.has_decorator("cached_property")
            || definition.has_decorator("lazy_property");
        if is_property {
            return self.call_term(method, Vec::new(), site, None);
        }
        self.value(method)
    }

    /// Rust: a field that nobody is seen to fill, by its declared type.
    fn declared_field(
        &mut self,
        object: Term,
        class: crate::analysis::term::ClassRef,
        name: Name,
        site: Site,
    ) -> Option<Value> {
        if !self.is_rust() || class.file != self.file() {
            return None;
        }
        let fields = &self.project.file(class.file).module.class(class.index).fields;
        let annotation = fields.iter().find(|field| field.name == name)?.annotation.as_ref()?;
        let value = self.typed(annotation, site)?;
        self.write(Key::Attribute(object, name), value.clone());
        Some(value)
    }

    /// An attribute of the module inside a wrapper; a method stays bound to the way there.
    fn inner_attribute(
        &mut self,
        wrapper: crate::analysis::term::ObjectId,
        inner: Term,
        name: Name,
        site: Site,
    ) -> Value {
        let holder = self.terms.make(TermKind::Object(wrapper));
        let module = self.read(&Key::Attribute(holder, Name::new("<module>")));
        let Some(module) = module.as_ref().and_then(Value::single) else {
            return self.plain_attribute(inner, name);
        };
        let value = match self.object_of(module).map(|o| o.class) {
            Some(ObjectClass::Project(_)) => self.attribute_inner(module, name, site),
            _ => match self.read(&Key::Attribute(module, name)) {
                Some(value) => value,
                None => return self.plain_attribute(inner, name),
            },
        };
        match value.single().map(|t| self.terms.kind(t).clone()) {
            Some(TermKind::Function { function, closure, bound: Some(receiver) })
                if receiver == module =>
            {
                let bound = Some(inner);
                let term = self.terms.make(TermKind::Function { function, closure, bound });
                self.value(term)
            }
            Some(TermKind::Attribute(of, _)) if of == module => self.plain_attribute(inner, name),
            _ => value,
        }
    }

    pub(super) fn module_member(
        &mut self,
        file: crate::model::FileId,
        name: Name,
        site: Site,
    ) -> Value {
        if let Some(value) = self.global(file, name) {
            return value;
        }
        let found = self.project.imports.submodule(file, self.entry, &name);
        if let Resolution::File(found) = found {
            self.run_file(found);
            let term = self.terms.make(TermKind::Module(found));
            return self.value(term);
        }
        let term = self.fresh(site, Taint::NONE, &[]);
        self.value(term)
    }

    fn package_member(&mut self, path: Name, name: Name) -> Value {
        let dotted = Name::new(&format!("{path}.{name}"));
        let term = match self.project.imports.resolve(self.file(), self.entry, 0, &dotted) {
            Resolution::File(file) => {
                self.run_file(file);
                self.terms.make(TermKind::Module(file))
            }
            Resolution::Package => self.terms.make(TermKind::Package(dotted)),
            Resolution::External => match self.member_by_path(path, name) {
                Some(value) => return value,
                None => self.terms.make(TermKind::Outside(dotted)),
            },
        };
        self.value(term)
    }

    /// `crate.item`: an item of the file that a path leads to.
    fn member_by_path(&mut self, path: Name, name: Name) -> Option<Value> {
        match self.project.imports.resolve(self.file(), self.entry, 0, &path) {
            Resolution::File(file) => {
                self.run_file(file);
                self.global(file, name)
            }
            _ => None,
        }
    }

    /// Where attributes of a term are kept: those of `Inner` on the module itself.
    pub(super) fn stored_on(&self, term: Term) -> Term {
        let TermKind::Inner(wrapper) = *self.terms.kind(term) else { return term };
        let module = Key::Attribute(self.object_terms[wrapper.0 as usize], Name::new("<module>"));
        self.store.get(&module).and_then(Value::single).unwrap_or(term)
    }

    /// What all that a container may be hold alike under a key.
    fn common_item(&mut self, of: &Value, key: Term) -> Option<Value> {
        let held: Option<Vec<Value>> =
            of.terms().map(|container| self.read(&Key::Item(container, key))).collect();
        if let Some([first, rest @ ..]) = held.as_deref() {
            return rest.iter().all(|other| other == first).then(|| first.clone());
        }
        let name = self.terms.as_str(key)?;
        let container = of.terms().next()?;
        crate::analysis::term::rank_by_name(&name)?;
        Some(self.plain_attribute(container, name))
    }

    pub(super) fn item(&mut self, of: &Value, index: &Value, site: Site) -> Value {
        if let Some(known) = self.variable_of_launcher(of, index) {
            return known;
        }
        let (Some(container), Some(key)) = (of.single(), index.single()) else {
            return match index.single().and_then(|key| self.common_item(of, key)) {
                Some(value) => value,
                None => self.derived_value(site, &[of.clone(), index.clone()]),
            };
        };
        if let Some(value) = self.read(&Key::Item(container, key)) {
            return value;
        }
        if self.is_environment(container)
            && let Some(name) = self.terms.as_str(key)
        {
            return self.environment_value(&name);
        }
        if let (TermKind::Tuple(items), Some(position)) =
            (self.terms.kind(container), self.terms.as_int(key))
            && let Some(&item) = items.get(if position < 0 {
                (items.len() as i64 + position).max(0) as usize
            } else {
                position as usize
            })
        {
            return self.value(item);
        }
        let held = self.contents(container);
        if let [only] = held.as_slice() {
            return only.clone();
        }
        // Under a key that is not known, one of all.
        if self.terms.as_const(key).is_none()
            && let Some(one) = self.one_of(held)
        {
            return one;
        }
        // `opt["rank"]`: as `opt.rank`.
        if let Some(name) = self.terms.as_str(key)
            && crate::analysis::term::rank_by_name(&name).is_some()
        {
            return self.plain_attribute(container, name);
        }
        let is_known = !matches!(self.terms.kind(container), TermKind::Object(_));
        if is_known && self.terms.origins(container).is_empty() {
            let term = self.terms.make(TermKind::Item(container, key));
            return self.value(term);
        }
        let item = self.derived_value(site, &[of.clone(), index.clone()]);
        if let Some(term) = item.single() {
            self.item_of.insert(term, (container, key));
        }
        item
    }

    /// `os.environ[v]` where `v` walks over the names that launchers give one number.
    fn variable_of_launcher(&mut self, of: &Value, index: &Value) -> Option<Value> {
        of.single().filter(|&t| self.is_environment(t))?;
        let mut kinds = index.terms().map(|t| Self::environment(&self.terms.as_str(t)?));
        let first = kinds.next()??;
        if kinds.any(|kind| kind != Some(first)) {
            return None;
        }
        let term = self.terms.make(TermKind::Rank(first));
        Some(self.value(term))
    }

    pub(super) fn environment_value(&mut self, name: &str) -> Value {
        let term = if let Some(kind) = Self::environment(name) {
            self.terms.make(TermKind::Rank(kind))
        } else {
            let dotted = Name::new(&format!("os.environ.{name}"));
            self.terms.make(TermKind::Outside(dotted))
        };
        self.value(term)
    }

    /// An argument of the command line: what `add_argument` says of it.
    pub(super) fn parsed_argument(&mut self, arguments: Term, name: Name) -> Value {
        let term = match &*name {
            "local_rank" | "local-rank" => self.terms.make(TermKind::Rank(RankKind::LocalRank)),
            _ => self.terms.make(TermKind::Attribute(arguments, name)),
        };
        self.value(term)
    }

    /// A value of an annotated type, if the type says anything.
    pub(super) fn typed(&mut self, annotation: &'p Expr, site: Site) -> Option<Value> {
        let annotation = match &annotation.kind {
            ExprKind::Index { value, index } => match value.last_name().as_deref() {
                Some(
                    "Rc" | "Arc" | "Box" | "Ref" | "RefMut" | "MutexGuard" | "Borrow" | "AsRef"
                    | "Into",
                ) => index,
                _ => annotation,
            },
            _ => annotation,
        };
        let base = match &annotation.kind {
            ExprKind::Index { value, .. } => value,
            ExprKind::Name(_) | ExprKind::Attribute { .. } => annotation,
            _ => return None,
        };
        base.path()?;
        let term = self.eval_quietly(base).single()?;
        let class = match *self.terms.kind(term) {
            TermKind::Class(class) => ObjectClass::Project(class),
            TermKind::Outside(name) => {
                let row = self.table.get(name)?;
                let canonical = row.name?;
                let vague =
                    matches!(&*canonical, "torch.nn.Module" | "torch.Tensor" | "tch.Tensor");
                if !row.is_class() || vague {
                    return None;
                }
                ObjectClass::Outside(canonical)
            }
            _ => return None,
        };
        let object = self.new_object(site, class, Vec::new(), None);
        Some(self.value(object))
    }
}

pub(in crate::analysis) fn is_wrapper(role: Role) -> bool {
    matches!(role, Role::WrapDdp | Role::WrapDp)
}
