//! Imports, and the top level of files.

use super::{Frame, Interpreter};
use crate::analysis::term::{FrameId, Term, TermKind};
use crate::model::{FileId, Import, Imported, Name, Site};
use crate::project::Resolution;

impl<'p> Interpreter<'p> {
    pub(super) fn import(&mut self, import: &'p Import, _site: Site) {
        match import.what {
            Imported::Module => self.import_module(import),
            Imported::Member(name) => {
                let value = self.import_member(import, name);
                self.bind_import(import.binding, value);
            }
            Imported::All => self.import_all(import),
        }
    }

    fn bind_import(&mut self, binding: Name, term: Term) {
        let value = self.value(term);
        self.assign_name(binding, value);
    }

    fn import_module(&mut self, import: &'p Import) {
        let first = import.module.split('.').next().unwrap_or_default();
        let whole = self.resolve(import.level, &import.module);
        let alias = *import.binding != *first || !import.module.contains('.');
        if alias || self.is_rust() {
            let term = self.module_term(whole, import.module);
            self.bind_import(import.binding, term);
            return;
        }
        // `import a.b` runs `a.b` and binds `a`.
        self.module_term(whole, import.module);
        let head = Name::new(first);
        let resolved = self.resolve(import.level, first);
        let term = self.module_term(resolved, head);
        self.bind_import(import.binding, term);
    }

    fn module_term(&mut self, resolution: Resolution, dotted: Name) -> Term {
        match resolution {
            Resolution::File(file) => {
                self.run_file(file);
                self.terms.make(TermKind::Module(file))
            }
            Resolution::Package => self.terms.make(TermKind::Package(dotted)),
            Resolution::External => self.terms.make(TermKind::Outside(dotted)),
        }
    }

    fn resolve(&self, level: u32, dotted: &str) -> Resolution {
        self.project.imports.resolve(self.file(), self.entry, level, dotted)
    }

    fn import_member(&mut self, import: &'p Import, name: Name) -> Term {
        let below = if import.module.is_empty() {
            name
        } else {
            Name::new(&format!("{}.{name}", import.module))
        };
        let module = self.resolve(import.level, &import.module);
        if let Resolution::File(file) = module {
            self.run_file(file);
            if let Some(value) = self.global(file, name)
                && let Some(term) = value.single()
            {
                return term;
            }
        }
        match self.resolve(import.level, &below) {
            Resolution::External => {}
            found => return self.module_term(found, below),
        }
        match module {
            // Defined there later, or by means we do not see.
            Resolution::File(file) => {
                let module = self.terms.make(TermKind::Module(file));
                self.terms.make(TermKind::Attribute(module, name))
            }
            _ => self.terms.make(TermKind::Outside(below)),
        }
    }

    fn import_all(&mut self, import: &'p Import) {
        let resolution = self.resolve(import.level, &import.module);
        let module = self.module_term(resolution, import.module);
        let file = self.file();
        self.star_imports.entry(file).or_default().push(module);
        if let TermKind::Module(from) = *self.terms.kind(module) {
            self.copy_globals(from, file);
        }
    }

    fn copy_globals(&mut self, from: FileId, to: FileId) {
        let more = self.star_imports.get(&from).cloned().unwrap_or_default();
        self.star_imports.entry(to).or_default().extend(more);
    }

    /// Runs a file's top level, once.
    pub(super) fn run_file(&mut self, file: FileId) {
        if !self.files_run.insert(file) {
            return;
        }
        let id = FrameId(self.frames.len() as u32);
        let frame = Frame {
            id,
            file,
            function: None,
            caller: (id.0 > 0).then_some(self.frame),
            call: None,
            orphan: false,
            receiver: None,
            class: None,
            closure: None,
            class_body: None,
            outer_names: Vec::new(),
            exits: Vec::new(),
            path_base: self.path.len(),
            trail_base: self.store.mark(),
            yielded: Vec::new(),
            loop_exits: Vec::new(),
        };
        let caller = self.frame;
        self.push_frame(frame);
        let modes = self.modes;
        let body = &self.project.file(file).module.body;
        self.with_stack(|this| this.file_body(body));
        self.modes = modes;
        if id.0 > 0 {
            self.frame = caller;
        }
    }
}
