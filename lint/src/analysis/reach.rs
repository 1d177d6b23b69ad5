//! Which files each program reaches by import, and which program answers for the code that
//! none of them is seen to call. Found without running anything.

use std::sync::LazyLock;

use aho_corasick::AhoCorasick;
use rayon::prelude::*;
use rustc_hash::{FxHashMap, FxHashSet};

use super::Entry;
use crate::model::{Arm, FileId, Handler, Import, Imported, Module, Name, Stmt, StmtKind};
use crate::project::{Project, Resolution, SourceFile, Vantage};
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
    let imports: Vec<Vec<Target>> =
        project.files.par_iter().map(|file| targets_of(&file.module)).collect();
    let mut by_vantage: FxHashMap<Option<Vantage>, Vec<usize>> = FxHashMap::default();
    for (index, entry) in entries.iter().enumerate() {
        let vantage = entry.file.map(|file| project.imports.vantage(file));
        by_vantage.entry(vantage).or_default().push(index);
    }
    let groups: Vec<Vec<usize>> = by_vantage.into_values().collect();
    let planned: Vec<(usize, Planned)> = groups
        .into_par_iter()
        .flat_map_iter(|group| {
            let mut edges = Edges { project, imports: &imports, known: FxHashMap::default() };
            group.into_iter().map(move |index| (index, edges.plan(entries[index])))
        })
        .collect();
    let mut planned = in_order(planned);
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
    static SEARCH: LazyLock<AhoCorasick> =
        LazyLock::new(|| AhoCorasick::new(WORDS).expect("a few short words"));
    SEARCH.is_match(text) || mentions_tch(text)
}

fn in_order(mut planned: Vec<(usize, Planned)>) -> Vec<Planned> {
    planned.sort_unstable_by_key(|(index, _)| *index);
    planned.into_iter().map(|(_, planned)| planned).collect()
}

/// Leading dots and dotted path of a module that an import may lead to.
type Target = (u32, Name);

/// Where the imports of each file lead in programs of one vantage, as far as somebody asked.
struct Edges<'a> {
    project: &'a Project,
    /// By file id.
    imports: &'a [Vec<Target>],
    known: FxHashMap<FileId, Vec<FileId>>,
}

impl Edges<'_> {
    fn plan(&mut self, entry: Entry) -> Planned {
        let files = self.reached(entry);
        let file = |id: &FileId| self.project.file(*id);
        // What no reported file is part of has nothing to tell.
        let is_asked = files.iter().any(|id| file(id).reported);
        let is_parallel = is_asked && files.iter().any(|id| file(id).speaks_of_several);
        Planned { entry, files, owned: FxHashSet::default(), is_parallel }
    }

    fn reached(&mut self, entry: Entry) -> FxHashSet<FileId> {
        let Some(first) = entry.file else {
            let of_language = |f: &&SourceFile| f.module.language == entry.language;
            return self.project.files.iter().filter(of_language).map(|f| f.id).collect();
        };
        let mut files = FxHashSet::default();
        let mut queue = vec![first];
        while let Some(file) = queue.pop() {
            if files.insert(file) {
                queue.extend(self.from(file, first));
            }
        }
        files
    }

    fn from(&mut self, file: FileId, entry: FileId) -> &[FileId] {
        self.known.entry(file).or_insert_with(|| {
            let resolved = self.imports[file.0 as usize].iter().filter_map(|(level, dotted)| {
                match self.project.imports.resolve(file, entry, *level, dotted) {
                    Resolution::File(found) => Some(found),
                    Resolution::Package | Resolution::External => None,
                }
            });
            let mut found: Vec<FileId> = resolved.collect();
            found.sort_unstable();
            found.dedup();
            found
        })
    }
}

/// The modules that the imports of a module may lead to, each once.
fn targets_of(module: &Module) -> Vec<Target> {
    let mut met = FxHashSet::default();
    let mut targets = Vec::new();
    for import in imports_of(module) {
        for dotted in self::targets(import) {
            if met.insert((import.level, dotted)) {
                targets.push((import.level, dotted));
            }
        }
    }
    targets
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
