//! Imports, and the top level of files.

use super::{Frame, Interpreter};
use crate::analysis::term::{Const, FrameId, Term, TermKind};
use crate::analysis::value::Value;
use crate::model::{BinaryOp, FileId, Import, Imported, Name, Site};
use crate::project::Resolution;

/// Texts are taken apart this far.
const PIECES_MAX: usize = 6;

impl<'p> Interpreter<'p> {
    pub(super) fn import(&mut self, import: &'p Import, _site: Site) {
        match import.what {
            Imported::Module => self.import_module(import),
            Imported::Member(name) => {
                let value = self.import_member(import, name);
                self.assign_name(import.binding, value);
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

    fn import_member(&mut self, import: &'p Import, name: Name) -> Value {
        let below = if import.module.is_empty() {
            name
        } else {
            Name::new(&format!("{}.{name}", import.module))
        };
        let module = self.resolve(import.level, &import.module);
        if let Resolution::File(file) = module {
            self.run_file(file);
            if let Some(value) = self.global(file, name) {
                return value;
            }
        }
        match self.resolve(import.level, &below) {
            Resolution::External => {}
            found => {
                let term = self.module_term(found, below);
                return self.value(term);
            }
        }
        let term = match module {
            // Defined there later, or by means we do not see.
            Resolution::File(file) => {
                let module = self.terms.make(TermKind::Module(file));
                self.terms.make(TermKind::Attribute(module, name))
            }
            _ => self.terms.make(TermKind::Outside(below)),
        };
        self.value(term)
    }

    /// `eval("models." + name + ".build")`: one of the members of that name in the modules
    /// beside each other that were imported so far.
    pub(super) fn named_member(&mut self, text: &Value, site: Site) -> Option<Value> {
        let pieces = self.pieces_of(text.single()?, PIECES_MAX);
        let [Some(head), None, Some(tail)] = pieces.as_slice() else { return None };
        let (head, member) = (head.strip_suffix('.')?, tail.strip_prefix('.')?);
        let is_plain = |name: &str| name.chars().all(|c| c.is_alphanumeric() || c == '_');
        if !is_plain(head) || !is_plain(member) {
            return None;
        }
        let package = self.name(Name::new(head), site).single()?;
        let TermKind::Module(package) = *self.terms.kind(package) else { return None };
        let folder = self.project.file(package).path.strip_suffix("__init__.py")?;
        let is_beside = |path: &str| path.strip_prefix(folder).is_some_and(|p| !p.contains('/'));
        let beside: Vec<FileId> = self
            .project
            .files
            .iter()
            .filter(|f| f.id != package && is_beside(&f.path) && self.files_run.contains(&f.id))
            .map(|f| f.id)
            .collect();
        let member = Name::new(member);
        let found: Vec<Value> =
            beside.into_iter().filter_map(|file| self.global(file, member)).collect();
        self.one_of(found)
    }

    /// What a text is put together from; `None` where that is unknown.
    fn pieces_of(&self, text: Term, depth: usize) -> Vec<Option<Name>> {
        if depth == 0 {
            return vec![None];
        }
        match self.terms.kind(text) {
            TermKind::Const(Const::Str(text)) => vec![Some(*text)],
            TermKind::Binary(BinaryOp::Add, left, right) => {
                let mut pieces = self.pieces_of(*left, depth - 1);
                pieces.extend(self.pieces_of(*right, depth - 1));
                pieces
            }
            TermKind::Text(parts) => {
                parts.iter().flat_map(|&part| self.pieces_of(part, depth - 1)).collect()
            }
            _ => vec![None],
        }
    }

    fn import_all(&mut self, import: &'p Import) {
        let resolution = self.resolve(import.level, &import.module);
        let module = self.module_term(resolution, import.module);
        let file = self.file();
        self.add_star_imports(file, [module]);
        if let TermKind::Module(from) = *self.terms.kind(module) {
            self.copy_globals(from, file);
        }
    }

    fn copy_globals(&mut self, from: FileId, to: FileId) {
        let more = self.star_imports.get(&from).cloned().unwrap_or_default();
        self.add_star_imports(to, more);
    }

    /// Each once: modules that import all of each other would double their lists for ever.
    fn add_star_imports(&mut self, to: FileId, more: impl IntoIterator<Item = Term>) {
        let known = self.star_imports.entry(to).or_default();
        for module in more {
            if !known.contains(&module) {
                known.push(module);
            }
        }
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
            is_captured: false,
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

#[cfg(test)]
mod tests {
    use crate::analysis::{Program, entries, plan};
    use crate::rule::testing::project;
    use crate::table::Table;

    /// Each of these modules imports all of each other; a list that grew with each import would
    /// have 2^16 entries.
    #[test]
    fn modules_that_import_all_of_each_other_do_so_once() {
        let names: Vec<String> = (0..16).map(|index| format!("part{index}")).collect();
        let lines = |before: &str, after: &str| {
            let line = |name: &String| [before, name.as_str(), after].concat();
            names.iter().map(line).collect::<Vec<_>>().concat()
        };
        let everything = lines("use crate::", "::*;\n");
        let declared = lines("mod ", ";\n");
        let main = format!("{declared}{everything}fn main() {{ tch_ddp::Launch::from_env(); }}");
        let mut files = vec![("src/main.rs".to_owned(), main)];
        files.extend(names.iter().map(|name| (format!("src/{name}.rs"), everything.clone())));
        let files: Vec<(&str, &str)> =
            files.iter().map(|(path, text)| (path.as_str(), text.as_str())).collect();
        let project = project(&files);
        let planned = plan(&project, &entries(&project));
        let program = Program::new(&project, Table::built_in(), &planned[0]);
        let imports = &program.run.star_imports;
        assert_eq!(imports.len(), files.len());
        assert!(imports.values().all(|all| all.len() <= files.len()), "{imports:?}");
    }
}
