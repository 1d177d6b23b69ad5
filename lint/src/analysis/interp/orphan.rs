//! Code that nothing in the program is seen to call: it runs with unknown arguments, and
//! what it is guarded by is unknown.

use rustc_hash::{FxHashMap, FxHashSet};

use super::call::Callee;
use super::{Interpreter, Key, ObjectClass};
use crate::analysis::event::{Tree, Via};
use crate::analysis::term::{ClassRef, FunctionRef, ObjectId, Origins, Taint, Term, TermKind};
use crate::analysis::value::Value;
use crate::model::{ClassIndex, FileId, FunctionIndex, Language, Name, Site};

impl Interpreter<'_> {
    /// A project without an entry: all files run, as if imported.
    pub(crate) fn run_library(&mut self, language: Language) -> Tree {
        let files: Vec<_> = self
            .project
            .files
            .iter()
            .filter(|f| f.module.language == language)
            .map(|f| f.id)
            .collect();
        for file in files {
            self.run_file(file);
        }
        std::mem::take(&mut self.tree).into()
    }

    /// Runs every function of the reached files that did not run.
    pub(crate) fn run_orphans(&mut self, owned: &FxHashSet<FileId>) -> Vec<(FunctionRef, Tree)> {
        let mut trees = Vec::new();
        self.run_wrapped_forwards();
        let mut files: Vec<_> =
            self.files_run.iter().copied().filter(|file| owned.contains(file)).collect();
        files.sort_unstable();
        let mut objects = FxHashMap::default();
        for file in files {
            let count = self.project.file(file).module.functions.len();
            for index in 0..count {
                let function = FunctionRef { file, index: FunctionIndex(index as u32) };
                if self.visits.contains_key(&function) || self.function(function).name == "<lambda>"
                {
                    continue;
                }
                let ((), tree) = self.grow(|this| this.run_orphan(function, &mut objects));
                trees.push((function, tree));
            }
        }
        trees
    }

    /// Wrapped modules whose forward never ran: it will, through the wrapper.
    fn run_wrapped_forwards(&mut self) {
        let wrappers: Vec<ObjectId> = self
            .objects
            .iter()
            .filter(|o| super::attribute::is_wrapper(o.role))
            .map(|o| o.id)
            .collect();
        for wrapper in wrappers {
            let term = self.term_of(wrapper);
            let Some(callee) = self.forward_of(term) else { continue };
            if self.visits.contains_key(&callee.function) {
                continue;
            }
            let site = self.object(wrapper).site;
            self.as_orphan(site, |this| {
                this.forward(term, Via::Wrapper(wrapper), None, Vec::new(), site, None);
            });
        }
    }

    fn run_orphan(&mut self, function: FunctionRef, objects: &mut FxHashMap<ClassRef, Term>) {
        let definition = self.function(function);
        let site = Site { file: function.file, span: definition.name_span };
        let class = definition.class.map(|index| ClassRef { file: function.file, index });
        let class = class.or_else(|| self.class_by_impl(function));
        let bound = match class {
            Some(class) if definition.has_receiver() || self.takes_self(function) => {
                Some(*objects.entry(class).or_insert_with(|| self.lone_instance(class, site)))
            }
            _ => None,
        };
        if self.visits.contains_key(&function) {
            return;
        }
        self.as_orphan(site, |this| {
            let callee = Callee { function, closure: None, bound };
            let is_forward = bound.is_some_and(|b| this.is_module(b))
                && super::call::is_forward(&definition.name);
            match bound {
                Some(module) if is_forward => {
                    this.forward(module, Via::Bare, Some(callee), Vec::new(), site, None);
                }
                _ => {
                    this.call_function(callee, &[], site, None);
                }
            }
        });
    }

    /// Runs something in a frame that nobody is seen to call.
    fn as_orphan(&mut self, site: Site, body: impl FnOnce(&mut Self)) {
        let caller = self.frame;
        let mut frame = match self.frames.first() {
            Some(frame) => frame.clone(),
            None => return,
        };
        frame.id = crate::analysis::term::FrameId(self.frames.len() as u32);
        frame.file = site.file;
        frame.orphan = true;
        frame.function = None;
        frame.caller = None;
        frame.call = None;
        frame.path_base = self.path.len();
        frame.trail_base = self.store.mark();
        self.push_frame(frame);
        let modes = self.modes;
        body(self);
        self.modes = modes;
        self.frame = caller;
    }

    /// An instance of a class whose constructor gets unknown arguments.
    fn lone_instance(&mut self, class: ClassRef, site: Site) -> Term {
        let existing = self
            .objects
            .iter()
            .find(|o| o.class == ObjectClass::Project(class))
            .map(|o| self.term_of(o.id));
        if let Some(term) = existing {
            return term;
        }
        let object = self.new_object(site, ObjectClass::Project(class), Vec::new(), None);
        let constructor = self.class_member(class, Name::new("__init__"));
        if let Some(constructor) = constructor
            && let TermKind::Function { function, closure, .. } = *self.terms.kind(constructor)
        {
            self.as_orphan(site, |this| {
                let callee = Callee { function, closure, bound: Some(object) };
                this.call_function(callee, &[], site, None);
            });
        }
        object
    }

    /// Rust: the class whose `impl` holds a function.
    pub(super) fn class_by_impl(&self, function: FunctionRef) -> Option<ClassRef> {
        let name = self.impl_types.get(&function)?;
        let named = self.classes_by_name.get(name)?;
        named.iter().find(|c| c.file == function.file).or(named.first()).copied()
    }

    /// Rust: which type each `impl` function belongs to, and where types are.
    pub(super) fn index_impls(&mut self) {
        let rust = self.project.files.iter().filter(|f| f.module.language == Language::Rust);
        for file in rust {
            for (index, class) in file.module.classes.iter().enumerate() {
                let class_ref = ClassRef { file: file.id, index: ClassIndex(index as u32) };
                self.classes_by_name.entry(class.name).or_default().push(class_ref);
            }
            for block in &file.module.impls {
                let Some(name) = block.target.last_name() else { continue };
                self.impls.entry(name).or_default().push((file.id, block));
                for &index in &block.methods {
                    self.impl_types.insert(FunctionRef { file: file.id, index }, name);
                }
            }
        }
    }

    fn takes_self(&self, function: FunctionRef) -> bool {
        self.function(function).parameters.first().is_some_and(|p| p.name == "self")
    }

    pub(crate) fn term_of(&self, object: ObjectId) -> Term {
        self.object_terms[object.0 as usize]
    }

    /// Where attributes of a term are kept: those of `Inner` on the module itself.
    pub(crate) fn stored(&self, term: Term) -> Term {
        self.stored_on(term)
    }

    pub(crate) fn deep_facts_of(&self, term: Term) -> (Taint, Origins) {
        self.deep_facts(term, 3)
    }

    /// The events behind a value, those of a container's contents included.
    pub(crate) fn deep_origins(&self, value: &Value) -> Origins {
        let mut all = Origins::new();
        for term in value.terms() {
            all.extend(self.deep_facts(term, 3).1);
        }
        all
    }

    /// Everything a list or dict is known to hold.
    pub(crate) fn contents_of(&self, container: Term) -> Vec<Value> {
        self.contents(container)
    }

    /// What a dict or list is known to hold under known keys.
    pub(crate) fn items_now(&self, container: Term) -> Vec<(Term, Value)> {
        self.store.items(container)
    }

    pub(crate) fn now(&self, key: &Key) -> Option<&Value> {
        self.store.get(key)
    }

    pub(crate) fn is_tensor(&self, term: Term) -> bool {
        self.types.get(&term).is_some_and(|t| matches!(&**t, "torch.Tensor" | "tch.Tensor"))
    }

    pub(crate) fn member_of(&self, class: ClassRef, name: Name) -> Option<Term> {
        self.class_member(class, name)
    }
}
