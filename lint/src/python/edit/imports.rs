//! Imports, and how a file can name what another module holds.

use super::{Edit, Editor};
use crate::model::{Expr, ExprKind, Import, Imported, Name, Stmt, StmtKind};
use crate::python::walk::{self, Node};

/// How a file can name something, and what it lacks for that.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Reached {
    /// `dist`, `torch.distributed`, `DistributedSampler`.
    pub name: String,
    /// The import to add, if there is none.
    pub import: Option<Edit>,
}

impl Editor<'_> {
    /// How the file can name the module or member `dotted`. Without an import that leads
    /// there, adds `import` (`import torch.distributed as dist`), which binds `binding`;
    /// where another thing has that name, the whole `dotted` module is imported instead.
    pub fn reach(&self, dotted: &str, import: &str, binding: &str) -> Option<Reached> {
        if let Some(name) = self.known_as(dotted) {
            return Some(Reached { name, import: None });
        }
        if !self.is_taken(Name::new(binding)) {
            let import = Some(self.add_import(import)?);
            return Some(Reached { name: binding.to_owned(), import });
        }
        let (module, root) = match import.strip_prefix("from ") {
            Some(from) => (from.split_whitespace().next()?, dotted),
            None => (dotted, dotted),
        };
        let first = root.split('.').next()?;
        if self.is_taken(Name::new(first)) {
            return None;
        }
        let import = Some(self.add_import(&format!("import {module}"))?);
        Some(Reached { name: dotted.to_owned(), import })
    }

    /// Adds an import line below the first imports of the file, its docstring and its
    /// `__future__` imports.
    pub fn add_import(&self, line: &str) -> Option<Edit> {
        if !self.is_sound() {
            return None;
        }
        let body = &self.file.module.body;
        let is_import = |stmt: &&Stmt| matches!(stmt.kind, StmtKind::Import(_));
        let is_docstring = |stmt: &&Stmt| {
            matches!(stmt.kind, StmtKind::Pass)
                && !self.text()[stmt.span.range()].starts_with("pass")
        };
        let n_docstrings = usize::from(body.first().as_ref().is_some_and(is_docstring));
        let end = self.line_end();
        if let Some(last) = body[n_docstrings..].iter().take_while(is_import).last() {
            let stop = self.statement_line_stop(last);
            return Some(self.insertion(stop, format!("{end}{line}")));
        }
        match (body.first().filter(is_docstring), body.get(n_docstrings)) {
            (Some(docstring), _) => {
                let stop = self.statement_line_stop(docstring);
                Some(self.insertion(stop, format!("{end}{end}{line}")))
            }
            (None, Some(first)) => {
                let start = self.line_start(first.span.start as usize);
                Some(self.insertion(start, format!("{line}{end}{end}")))
            }
            (None, None) => {
                let text = self.text();
                let gap = if text.is_empty() || text.ends_with(['\n', '\r']) { "" } else { end };
                Some(self.insertion(text.len(), format!("{gap}{line}{end}")))
            }
        }
    }

    /// The end of the line that a statement ends on; behind `a; b` that of `b`.
    fn statement_line_stop(&self, stmt: &Stmt) -> usize {
        let end = stmt.span.end;
        let on_line = self.line_stop(end as usize);
        let body = self.file.module.body.iter();
        let mut stop = on_line;
        for other in body.filter(|other| other.span.start >= end) {
            if other.span.start as usize > stop {
                break;
            }
            stop = self.line_stop(other.span.end as usize);
        }
        stop
    }

    fn top_imports(&self) -> impl Iterator<Item = &Import> {
        self.file.module.body.iter().filter_map(|stmt| match &stmt.kind {
            StmtKind::Import(import) if import.level == 0 => Some(import),
            _ => None,
        })
    }

    /// The shortest name that the file's top-level imports give a module or member.
    pub fn known_as(&self, dotted: &str) -> Option<String> {
        let names = self.top_imports().filter_map(|import| {
            let target = match import.what {
                Imported::All => return None,
                Imported::Member(member) => format!("{}.{member}", import.module),
                Imported::Module => bound_module(import, dotted)?.to_owned(),
            };
            let rest = dotted.strip_prefix(&target)?;
            let is_below = rest.is_empty() || rest.starts_with('.');
            is_below.then(|| format!("{}{rest}", import.binding))
        });
        names.min_by_key(String::len)
    }

    /// The file uses the name for something.
    fn is_taken(&self, wanted: Name) -> bool {
        let mut is_taken = false;
        walk::everything(&self.file.module, |_, node| {
            is_taken |= match node {
                Node::Expr(Expr { kind: ExprKind::Name(name), .. }) => *name == wanted,
                Node::Stmt(Stmt { kind: StmtKind::Import(import), .. }) => import.binding == wanted,
                _ => false,
            };
        });
        let module = &self.file.module;
        let parameters = module.functions.iter().flat_map(|function| &function.parameters);
        is_taken
            || module.functions.iter().any(|function| function.name == wanted)
            || module.classes.iter().any(|class| class.name == wanted)
            || parameters.into_iter().any(|parameter| parameter.name == wanted)
    }
}

/// The module that `import` binds, if `dotted` can be had from it.
fn bound_module<'i>(import: &'i Import, dotted: &str) -> Option<&'i str> {
    let module = import.module.as_str();
    let first = module.split('.').next()?;
    if *import.binding != *first || module == first && first == "torch" {
        return Some(module);
    }
    // `import a.b` makes `a.b` and its members known, not other modules below `a`; but torch
    // imports its own modules.
    let is_member = |rest: &str| rest.is_empty() || !rest[1..].contains('.');
    let is_known = first == "torch" || dotted.strip_prefix(module).is_some_and(is_member);
    is_known.then_some(first)
}
