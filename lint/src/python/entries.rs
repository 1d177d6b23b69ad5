//! Which Python files of a project start a program.

use rayon::prelude::*;
use rustc_hash::{FxHashMap, FxHashSet};

use super::walk::{self, Node};
use crate::model::{
    Argument, Expr, ExprKind, FileId, Import, Imported, Language, Module, Name, Stmt, StmtKind,
};
use crate::project::{Imports, Project, Resolution, SourceFile};

/// Calls that a file makes at its top level only if it is meant to be run. So are loops with
/// calls in them.
const WORK: [&str; 13] = [
    "DataLoader",
    "DataParallel",
    "DistributedDataParallel",
    "Fire",
    "backward",
    "cuda",
    "fit",
    "init_process_group",
    "load_state_dict",
    "parse_args",
    "parse_known_args",
    "step",
    "zero_grad",
];

/// Files that start a program, in file order: those with `if __name__ == "__main__"`, files
/// that nothing imports and that work at their top level, `__main__.py`, notebooks, targets of
/// `mp.spawn`, and the console scripts of `pyproject.toml`, `setup.cfg` and `setup.py`.
pub fn entries(project: &Project) -> Vec<FileId> {
    let modules = &*project.imports;
    let python: Vec<&SourceFile> =
        project.files.iter().filter(|file| file.module.language == Language::Python).collect();
    let imported = imported(modules, &python);
    let mut found: FxHashSet<FileId> = python
        .par_iter()
        .filter(|file| {
            file.module.has_main
                || file.path.rsplit('.').next() == Some("ipynb")
                || file.path.rsplit('/').next() == Some("__main__.py")
                || (!imported.contains(&file.id) && works_at_top(file))
        })
        .map(|file| file.id)
        .collect();
    for file in &python {
        found.extend(spawned(modules, file));
    }
    let setups = python.iter().map(|file| (&*file.path, &*file.text));
    let manifests = project.manifests.iter().map(|(path, text)| (&**path, &**text));
    for (path, text) in manifests.chain(setups) {
        found.extend(super::config::scripts(path, text).iter().filter_map(|script| {
            let folder = path.rsplit_once('/').map_or("", |(folder, _)| folder);
            modules.named_in_folder(folder, script)
        }));
    }
    let mut found: Vec<FileId> = found.into_iter().collect();
    found.sort();
    found
}

/// What of one file decides which files start a program, beside the imports between files.
#[derive(PartialEq, Eq, Debug)]
pub struct Start {
    has_main: bool,
    works_at_top: bool,
    /// What it hands to `mp.spawn`, and the functions that it defines.
    spawned: Option<(Vec<Vec<Name>>, FxHashSet<Name>)>,
    scripts: Vec<String>,
}

/// Files that are equal in this, and in their imports, play the same part in `entries`.
pub fn start(file: &SourceFile) -> Start {
    let mut spawned = Vec::new();
    visit_spawned(file, |target, _| spawned.extend(target.path()));
    Start {
        has_main: file.module.has_main,
        works_at_top: works_at_top(file),
        spawned: (!spawned.is_empty()).then(|| (spawned, functions(file))),
        scripts: super::config::scripts(&file.path, &file.text),
    }
}

/// Files that another file imports.
fn imported(modules: &dyn Imports, files: &[&SourceFile]) -> FxHashSet<FileId> {
    let by_file = files.par_iter().flat_map_iter(|file| {
        let resolve = |(level, dotted): (u32, Name)| match modules
            .resolve(file.id, file.id, level, &dotted)
        {
            Resolution::File(found) if found != file.id => Some(found),
            _ => None,
        };
        targets(&file.module).into_iter().filter_map(resolve)
    });
    by_file.collect()
}

/// The modules and members that a file imports, each once.
fn targets(module: &Module) -> FxHashSet<(u32, Name)> {
    let mut targets = FxHashSet::default();
    for import in walk::imports(module) {
        targets.insert((import.level, import.module));
        if let Imported::Member(member) = import.what {
            let dot = if import.module.is_empty() { "" } else { "." };
            let below = Name::new(&format!("{}{dot}{member}", import.module));
            targets.insert((import.level, below));
        }
    }
    targets
}

/// Names of the functions that the top level of a file defines.
fn functions(file: &SourceFile) -> FxHashSet<Name> {
    let mut names = FxHashSet::default();
    for stmt in &file.module.body {
        if let StmtKind::Function(index) = stmt.kind {
            names.insert(file.module.function(index).name);
        }
    }
    names
}

fn works_at_top(file: &SourceFile) -> bool {
    let own = functions(file);
    let mut works = false;
    let mut loops = Vec::new();
    walk::top_level(&file.module, |_, node| {
        if let Node::Stmt(Stmt { kind: StmtKind::Loop { .. }, span }) = node {
            loops.push(*span);
        }
        let Node::Expr(Expr { kind: ExprKind::Call { callee, arguments }, span }) = node else {
            return;
        };
        let is_own = |expr: &Expr| matches!(expr.kind, ExprKind::Name(name) if own.contains(&name));
        let is_class = |expr: &Expr| {
            matches!(expr.kind, ExprKind::Name(name)
                if file.module.classes.iter().any(|class| class.name == name))
        };
        works |= match &callee.kind {
            ExprKind::Name(name) => is_own(callee) && !name.starts_with('_'),
            // `app.run(main)`, `Trainer().fit()`
            ExprKind::Attribute { name, value, .. } => {
                name == "run" && arguments.iter().any(|argument| is_own(&argument.value))
                    || matches!(&value.kind, ExprKind::Call { callee, .. } if is_class(callee))
            }
            _ => false,
        };
        works |= loops.iter().any(|at| at.contains(*span));
        works |= callee.last_name().is_some_and(|name| WORK.binary_search(&&*name).is_ok());
    });
    works
}

/// Files whose functions this file hands to `mp.spawn`.
fn spawned(modules: &dyn Imports, file: &SourceFile) -> Vec<FileId> {
    let mut found = Vec::new();
    visit_spawned(file, |target, bindings| found.extend(file_of(modules, file, target, bindings)));
    found
}

/// Visits what a file hands to `mp.spawn`, with the file's imports.
fn visit_spawned(file: &SourceFile, mut visit: impl FnMut(&Expr, &FxHashMap<Name, &Import>)) {
    if !file.text.contains("spawn") && !file.text.contains("start_processes") {
        return;
    }
    let bindings: FxHashMap<Name, &Import> =
        walk::imports(&file.module).into_iter().map(|import| (import.binding, import)).collect();
    walk::everything(&file.module, |_, node| {
        if let Node::Expr(Expr { kind: ExprKind::Call { callee, arguments }, .. }) = node
            && starts_processes(callee, &bindings)
            && let Some(target) = target(arguments)
        {
            visit(target, &bindings);
        }
    });
}

fn starts_processes(callee: &Expr, bindings: &FxHashMap<Name, &Import>) -> bool {
    let Some(path) = callee.path() else { return false };
    let (first, last) = (path[0], path[path.len() - 1]);
    let import = bindings.get(&first);
    let starts = |name: Name| name == "spawn" || name == "start_processes";
    let is_start = starts(last)
        || import.is_some_and(|import| {
            matches!(import.what, Imported::Member(member) if path.len() == 1 && starts(member))
        });
    let is_multiprocessing = |name: &str| name.contains("multiprocessing");
    is_start
        && (path.iter().any(|part| is_multiprocessing(part))
            || import.is_some_and(|import| {
                is_multiprocessing(&import.module)
                    || matches!(import.what, Imported::Member(name) if is_multiprocessing(&name))
            }))
}

/// The function that is started: the first argument or `fn`, also inside `partial(..)`.
fn target(arguments: &[Argument]) -> Option<&Expr> {
    let named = arguments.iter().find(|argument| argument.name.is_some_and(|name| name == "fn"));
    let first = arguments.first().filter(|argument| argument.name.is_none());
    let target = &named.or(first)?.value;
    match &target.kind {
        ExprKind::Call { callee, arguments } if callee.last_name()? == "partial" => {
            Some(&arguments.first()?.value)
        }
        _ => Some(target),
    }
}

/// The file that defines a function, as far as one import leads.
fn file_of(
    modules: &dyn Imports,
    file: &SourceFile,
    function: &Expr,
    bindings: &FxHashMap<Name, &Import>,
) -> Option<FileId> {
    let path = function.path()?;
    let Some(import) = bindings.get(&path[0]) else {
        return functions(file).contains(path.first()?).then_some(file.id);
    };
    let mut parts = vec![import.module];
    if let Imported::Member(member) = import.what {
        parts.push(member);
    }
    parts.extend(&path[1..]);
    parts.retain(|part| !part.is_empty());
    // The last name is the function; what is before it is the module.
    let module: Vec<&str> = parts[..parts.len() - 1].iter().map(|part| &**part).collect();
    let module = module.join(".");
    match modules.resolve(file.id, file.id, import.level, &module) {
        Resolution::File(found) => Some(found),
        Resolution::Package | Resolution::External => None,
    }
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use super::*;
    use crate::python::{Modules, lower};
    use crate::torch::TorchRange;

    fn check(files: &[(&str, &str)], manifests: &[(&str, &str)], expected: &[&str]) {
        let files: Vec<SourceFile> = files
            .iter()
            .zip(0..)
            .map(|((path, text), id)| {
                SourceFile::new(FileId(id), (*path).to_owned(), (*text).into(), lower(text), true)
            })
            .collect();
        let imports = Box::new(Modules::new(&files));
        let manifests = manifests.iter().map(|(path, text)| ((*path).to_owned(), (*text).into()));
        let project = Project {
            root: PathBuf::new(),
            files,
            torch: TorchRange::default(),
            manifests: manifests.collect(),
            crates: std::sync::Arc::default(),
            imports,
            shared: crate::analysis::shared::Shared::default(),
        };
        let found = entries(&project);
        let found: Vec<&str> = found.iter().map(|id| &*project.file(*id).path).collect();
        assert_eq!(found, expected);
    }

    #[test]
    fn files_that_run() {
        check(
            &[
                ("a.py", "def f(): pass\nif __name__ == '__main__':\n    f()\n"),
                ("b.py", "def main(): pass\nmain()\n"),
                ("c.py", "for x in y:\n    model(x)\n"),
                ("d.py", "import fire\ndef f(): pass\nfire.Fire(f)\n"),
                ("e.py", "def f(): pass\napp.run(f)\n"),
                ("f/__main__.py", "import x\n"),
                ("g.ipynb", ""),
                ("h.py", "args = parser.parse_args()\n"),
            ],
            &[],
            &["a.py", "b.py", "c.py", "d.py", "e.py", "f/__main__.py", "g.ipynb", "h.py"],
        );
    }

    #[test]
    fn files_that_are_only_imported() {
        check(
            &[
                ("a.py", "def f():\n    loss.backward()\nclass A:\n    x = 1\n"),
                ("b.py", "import logging\nlogger = logging.getLogger()\nfor x in y: z = x\n"),
                ("c.py", "def _f(): pass\n_f()\n"),
                ("opts.py", "args = parser.parse_args()\n"),
                ("p/__init__.py", "def f(): pass\nf()\n"),
                ("p/q.py", "def f(): pass\nf()\n"),
                ("main.py", "import opts\nfrom p import q\nif __name__ == '__main__': q.f()\n"),
            ],
            &[],
            &["main.py"],
        );
    }

    #[test]
    fn targets_of_spawn() {
        check(
            &[
                (
                    "a.py",
                    "import torch.multiprocessing as mp\nfrom w.one import f\n\
                     def g():\n    mp.spawn(f, nprocs=2)\n",
                ),
                (
                    "b.py",
                    "from torch.multiprocessing import spawn as go\nimport two\ngo(fn=two.f)\n",
                ),
                (
                    "c.py",
                    "import torch\nfrom functools import partial\nfrom . import three\n\
                     torch.multiprocessing.start_processes(partial(three.f, 1))\n",
                ),
                (
                    "d.py",
                    "import torch.multiprocessing as mp\ndef f(): pass\ndef g(): mp.spawn(f)\n",
                ),
                ("e.py", "import game, four\ndef g(): game.spawn(four.f)\n"),
                ("four.py", "def f(): pass"),
                ("three.py", "def f(): pass"),
                ("two.py", "def f(): pass"),
                ("w/one.py", "def f(): pass"),
            ],
            &[],
            &["d.py", "three.py", "two.py", "w/one.py"],
        );
    }

    #[test]
    fn console_scripts() {
        let toml =
            "[project.scripts]\na = 'app.one:main'\n[tool.poetry.scripts]\nb = 'app.two:f'\n";
        let setup = "setup(entry_points={'console_scripts': ['c = app.three:main']})";
        check(
            &[
                ("src/app/__init__.py", ""),
                ("src/app/one.py", "def main(): pass"),
                ("src/app/three.py", "def main(): pass"),
                ("src/app/two.py", "def f(): pass"),
                ("setup.py", setup),
            ],
            &[("pyproject.toml", toml), ("bad/pyproject.toml", "[")],
            &["src/app/one.py", "src/app/three.py", "src/app/two.py"],
        );
    }
}
