//! Which files each program reaches by import, and which program answers for the code that
//! none of them is seen to call. Found without running anything.

use rayon::prelude::*;
use rustc_hash::{FxHashMap, FxHashSet};

use super::Entry;
use crate::model::{Arm, FileId, Handler, Import, Imported, Module, Name, Stmt, StmtKind};
use crate::project::{Project, Resolution};
use crate::rust::crates::mentions_tch;

/// An entry with what it reaches.
#[derive(Clone, Debug)]
pub struct Planned {
    pub entry: Entry,
    pub files: FxHashSet<FileId>,
    /// Files whose uncalled code this program answers for.
    pub owned: FxHashSet<FileId>,
    /// Some reached file speaks of several devices or processes, and some is reported.
    pub is_parallel: bool,
}

/// Words without which no program wraps a model or runs on several ranks.
const WORDS: &[&str] = &[
    "DataParallel",
    "data_parallel",
    "distributed",
    "Distributed",
    "tch_ddp",
    "accelerate",
    "Accelerator",
    "lightning",
    "horovod",
    "deepspeed",
    "mmengine",
    "mmcv",
    "detectron2",
    "fabric",
    "Fabric",
    "mp.spawn",
    "spawn(",
    "mpi4py",
    "fairscale",
    "Trainer",
    "ignite",
    "composer",
    "apex",
];

/// The programs of a project, each with its files. Every reached file has one owner: a
/// program that is parallel, if any reaches it.
pub fn plan(project: &Project, entries: &[Entry]) -> Vec<Planned> {
    let imports: Vec<Vec<&Import>> =
        project.files.par_iter().map(|file| imports_of(&file.module)).collect();
    let parallel: Vec<bool> =
        project.files.par_iter().map(|file| speaks_of_several(&file.text)).collect();
    let mut planned: Vec<Planned> = entries
        .par_iter()
        .map(|&entry| {
            let files = reached(project, &imports, entry);
            // What no reported file is part of has nothing to tell.
            let is_asked = files.iter().any(|&f| project.file(f).reported);
            let is_parallel = is_asked && files.iter().any(|f| parallel[f.0 as usize]);
            Planned { entry, files, owned: FxHashSet::default(), is_parallel }
        })
        .collect();
    let mut owner: FxHashMap<FileId, usize> = FxHashMap::default();
    for wanted in [true, false] {
        for (index, program) in planned.iter().enumerate() {
            if program.is_parallel == wanted {
                for &file in &program.files {
                    owner.entry(file).or_insert(index);
                }
            }
        }
    }
    for (file, index) in owner {
        planned[index].owned.insert(file);
    }
    // A library of which programs reach everything has nothing of its own to tell.
    let libraries: FxHashSet<FileId> = project.crates.libraries().map(|k| k.root).collect();
    for program in &mut planned {
        let is_library = program.entry.file.is_some_and(|file| libraries.contains(&file));
        program.is_parallel &= !is_library || !program.owned.is_empty();
    }
    planned
}

/// The text has a word without which no program wraps a model or runs on several ranks.
pub fn speaks_of_several(text: &str) -> bool {
    // How tch registers variables matters in one process, too.
    WORDS.iter().any(|word| text.contains(word)) || mentions_tch(text)
}

fn reached(project: &Project, imports: &[Vec<&Import>], entry: Entry) -> FxHashSet<FileId> {
    let Some(first) = entry.file else {
        let of_language = |f: &&crate::project::SourceFile| f.module.language == entry.language;
        return project.files.iter().filter(of_language).map(|f| f.id).collect();
    };
    let mut files = FxHashSet::default();
    let mut queue = vec![first];
    while let Some(file) = queue.pop() {
        if !files.insert(file) {
            continue;
        }
        for import in &imports[file.0 as usize] {
            for dotted in targets(import) {
                let found = project.imports.resolve(file, first, import.level, &dotted);
                if let Resolution::File(found) = found {
                    queue.push(found);
                }
            }
        }
    }
    files
}

/// The modules that an import may lead to.
fn targets(import: &Import) -> Vec<Name> {
    let mut targets = vec![import.module];
    if let Imported::Member(name) = import.what {
        let below = if import.module.is_empty() {
            name
        } else {
            Name::new(&format!("{}.{name}", import.module))
        };
        targets.push(below);
    }
    let mut above = &*import.module;
    while let Some((shorter, _)) = above.rsplit_once('.') {
        targets.push(Name::new(shorter));
        above = shorter;
    }
    targets
}

/// All imports of a module, wherever they stand.
pub fn imports_of(module: &Module) -> Vec<&Import> {
    let mut found = Vec::new();
    collect(&module.body, &mut found);
    for function in &module.functions {
        collect(&function.body, &mut found);
    }
    for class in &module.classes {
        collect(&class.body, &mut found);
    }
    found
}

fn collect<'m>(body: &'m [Stmt], found: &mut Vec<&'m Import>) {
    for statement in body {
        match &statement.kind {
            StmtKind::Import(import) => found.push(import),
            StmtKind::If { body, otherwise, .. } | StmtKind::Loop { body, otherwise, .. } => {
                collect(body, found);
                collect(otherwise, found);
            }
            StmtKind::With { body, .. } | StmtKind::Block(body) => collect(body, found),
            StmtKind::Match { arms, .. } => {
                for Arm { body, .. } in arms {
                    collect(body, found);
                }
            }
            StmtKind::Try { body, handlers, otherwise, finally } => {
                collect(body, found);
                for Handler { body, .. } in handlers {
                    collect(body, found);
                }
                collect(otherwise, found);
                collect(finally, found);
            }
            _ => {}
        }
    }
}
