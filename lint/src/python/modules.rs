//! Which file of the project an import means.
//!
//! Works on paths alone, as Python would find them, and where a project changes the search
//! path, as its layout suggests. A name that is known to come from outside resolves only where
//! Python itself would prefer the project's file.

pub mod search_path;

use std::sync::{PoisonError, RwLock};

use rayon::prelude::*;
use rustc_hash::{FxHashMap, FxHashSet};

use super::known::{Known, known};
use super::walk;
use crate::model::{FileId, Language, Name};
use crate::project::{Imports, Resolution, SourceFile, Vantage};

/// Folders below the root that hold packages without being one.
const SOURCE_FOLDERS: [&str; 3] = ["src", "lib", "python"];

/// The Python files of a project by what imports call them.
#[derive(Debug, Default)]
pub struct Modules {
    /// Each file's path, by `FileId`.
    paths: Vec<Box<str>>,
    /// `a/b` is the file `a/b/__init__.py`, else `a/b.py`, else `a/b.pyi`.
    by_name: FxHashMap<Box<str>, FileId>,
    /// Folders that hold Python files, also further down; the root is not among them.
    folders: FxHashSet<Box<str>>,
    /// Folders with an `__init__.py`.
    packages: FxHashSet<Box<str>>,
    /// Last names of modules and folders: no other first name can resolve.
    names: FxHashSet<Box<str>>,
    /// Folders that directly hold a package and are none themselves, by the package's name.
    holders: FxHashMap<Box<str>, Vec<Box<str>>>,
    /// Folders that some file adds to `sys.path`.
    search_path: Vec<Box<str>>,
    /// Well-known packages that a folder of the project only shares the name with.
    namesakes: FxHashSet<Box<str>>,
    /// By `FileId`: which folder a file stands in.
    folder_of: Vec<u32>,
    /// Absolute imports that somebody asked for: folders of importer and entry, dotted path.
    resolved: RwLock<FxHashMap<(u32, u32, Name), Resolution>>,
}

impl Modules {
    pub fn new(files: &[SourceFile]) -> Self {
        let python = |file: &&SourceFile| file.module.language == Language::Python;
        let files_of = || files.iter().filter(python).map(|file| (file.id, &*file.path));
        let mut modules = Self::of_paths(files_of());
        for file in files.iter().filter(python) {
            modules.extend_search_path(file);
        }
        modules.find_namesakes(files);
        modules
    }

    fn of_paths<'p>(files: impl Iterator<Item = (FileId, &'p str)>) -> Self {
        let mut modules = Self::default();
        for (id, path) in files {
            modules.add(id, path);
        }
        modules.number_folders();
        for package in &modules.packages {
            let (holder, name) = split(package);
            if !modules.packages.contains(holder) {
                modules.holders.entry(name.into()).or_default().push(holder.into());
            }
        }
        modules
    }

    fn number_folders(&mut self) {
        let mut numbers = FxHashMap::default();
        for path in &self.paths {
            let next = numbers.len() as u32;
            self.folder_of.push(*numbers.entry(split(path).0).or_insert(next));
        }
    }

    fn add(&mut self, id: FileId, path: &str) {
        let index = id.0 as usize;
        if self.paths.len() <= index {
            self.paths.resize(index + 1, Box::default());
        }
        self.paths[index] = path.into();
        let Some((stem, ending)) = path.rsplit_once('.') else { return };
        if !matches!(ending, "py" | "pyi") {
            return;
        }
        let (mut folder, name) = split(stem);
        let module = if name == "__init__" { folder } else { stem };
        if name == "__init__" {
            self.packages.insert(folder.into());
        }
        self.names.insert(split(module).1.into());
        // A package comes before a module, source before a stub.
        let rank = |path: &str| (!path.contains("/__init__."), path.ends_with('i'));
        let other = self.by_name.get(module).map(|other| rank(&self.paths[other.0 as usize]));
        if other.is_none_or(|other| rank(path) < other) {
            self.by_name.insert(module.into(), id);
        }
        while !folder.is_empty() && self.folders.insert(folder.into()) {
            self.names.insert(split(folder).1.into());
            folder = split(folder).0;
        }
    }

    /// Folders named where a file changes `sys.path`, relative to it or to a folder above it.
    fn extend_search_path(&mut self, file: &SourceFile) {
        for literal in search_path::literals(file) {
            let parts = literal.split(['/', '\\']).filter(|part| !matches!(*part, "" | "." | ".."));
            let below = parts.collect::<Vec<_>>().join("/");
            if below.is_empty() {
                continue;
            }
            let mut bases = folders_up(split(&file.path).0);
            let found = bases.find_map(|base| {
                let folder =
                    if base.is_empty() { below.clone() } else { format!("{base}/{below}") };
                self.folders.contains(folder.as_str()).then_some(folder)
            });
            if let Some(folder) = found.filter(|f| !self.search_path.iter().any(|o| **o == **f)) {
                self.search_path.push(folder.into());
            }
        }
    }

    /// A folder `paddle` of code for Paddle is not Paddle: most of what is imported from a
    /// well-known package is not in it.
    fn find_namesakes(&mut self, files: &[SourceFile]) {
        let python = files.par_iter().filter(|file| file.module.language == Language::Python);
        let met = python.flat_map_iter(|file| {
            let imports = walk::imports(&file.module).into_iter();
            imports.filter_map(|import| {
                let module = import.module.as_str();
                let asked = import.level == 0
                    && module.contains('.')
                    && self.names.contains(first(module))
                    && known(first(module)) == Known::Package;
                asked.then(|| (first(module), self.absolute(file.id, file.id, module)))
            })
        });
        let met: Vec<(&str, Resolution)> = met.collect();
        let mut counts: FxHashMap<&str, (usize, usize)> = FxHashMap::default();
        for (package, found) in met {
            let (inside, outside) = counts.entry(package).or_default();
            *inside += usize::from(found != Resolution::External);
            *outside += usize::from(found == Resolution::External);
        }
        let namesakes = counts.into_iter().filter(|(_, (inside, outside))| inside < outside);
        self.namesakes = namesakes.map(|(name, _)| name.into()).collect();
    }

    fn folder(&self, file: FileId) -> &str {
        self.paths.get(file.0 as usize).map_or("", |path| split(path).0)
    }

    fn below(&self, folder: &str, dotted: &str) -> Resolution {
        let mut path = String::with_capacity(folder.len() + 1 + dotted.len());
        path.push_str(folder);
        for part in dotted.split('.').filter(|part| !part.is_empty()) {
            if !path.is_empty() {
                path.push('/');
            }
            path.push_str(part);
        }
        match self.by_name.get(path.as_str()) {
            Some(&file) => Resolution::File(file),
            None if self.folders.contains(path.as_str()) => Resolution::Package,
            None => Resolution::External,
        }
    }

    fn file_below(&self, folder: &str, dotted: &str) -> Option<Resolution> {
        match self.below(folder, dotted) {
            Resolution::File(file) => Some(Resolution::File(file)),
            Resolution::Package | Resolution::External => None,
        }
    }

    fn relative(&self, from: FileId, level: u32, dotted: &str) -> Resolution {
        let mut folder = self.folder(from);
        for _ in 1..level {
            if folder.is_empty() {
                return Resolution::External;
            }
            folder = split(folder).0;
        }
        if dotted.is_empty() && folder.is_empty() {
            return self.by_name.get("").map_or(Resolution::Package, |&id| Resolution::File(id));
        }
        self.below(folder, dotted)
    }

    /// The folder that holds the outermost package of `folder`, and that package's name.
    fn package_root<'f>(&self, folder: &'f str) -> Option<(&'f str, &'f str)> {
        let mut outermost = None;
        let mut at = folder;
        while self.packages.contains(at) && !at.is_empty() {
            let (parent, name) = split(at);
            outermost = Some((parent, name));
            at = parent;
        }
        outermost
    }

    /// A name of the standard library or of a well-known package is the project's own only
    /// beside the entry, inside a package of that name, or as a package at the usual place.
    fn known_name(&self, from: FileId, entry: FileId, dotted: &str, kind: Known) -> Resolution {
        let beside_entry = || self.file_below(self.folder(entry), dotted);
        let own_package = || {
            let (parent, name) = self.package_root(self.folder(from))?;
            if name == first(dotted) { self.file_below(parent, dotted) } else { None }
        };
        let usual_place = || {
            let roots = std::iter::once("").chain(SOURCE_FOLDERS);
            let mut roots = roots.filter(|root| self.is_package_in(root, first(dotted)));
            roots.find_map(|root| self.file_below(root, dotted))
        };
        let found = match kind {
            Known::Loaded => None,
            Known::Standard => beside_entry().or_else(own_package),
            _ if self.namesakes.contains(first(dotted)) => None,
            _ => beside_entry()
                .or_else(own_package)
                .or_else(|| self.nearest(&self.search_path, from, dotted))
                .or_else(usual_place),
        };
        found.unwrap_or(Resolution::External)
    }

    fn is_package_in(&self, folder: &str, name: &str) -> bool {
        let holders = self.holders.get(name);
        holders.is_some_and(|holders| holders.iter().any(|holder| **holder == *folder))
    }

    /// An import without leading dots whose first name something in the project has.
    fn absolute(&self, from: FileId, entry: FileId, dotted: &str) -> Resolution {
        match known(first(dotted)) {
            Known::No => self.unknown_name(from, entry, dotted),
            kind => self.known_name(from, entry, dotted, kind),
        }
    }

    fn unknown_name(&self, from: FileId, entry: FileId, dotted: &str) -> Resolution {
        let beside_entry = self.below(self.folder(entry), dotted);
        if beside_entry != Resolution::External {
            return beside_entry;
        }
        let roots = || folders_up(self.folder(from)).chain(SOURCE_FOLDERS);
        if let Some(file) = roots().find_map(|root| self.file_below(root, dotted)) {
            return file;
        }
        let holders = self.holders.get(first(dotted)).map_or(&[][..], Vec::as_slice);
        let elsewhere = self.nearest(&self.search_path, from, dotted);
        if let Some(file) = elsewhere.or_else(|| self.nearest(holders, from, dotted)) {
            return file;
        }
        let folders = roots().map(|root| self.below(root, dotted));
        let mut found = folders.filter(|found| *found != Resolution::External);
        found.next().unwrap_or(Resolution::External)
    }

    /// Among folders that hold the module, the one that shares most of its path with the
    /// importing file. None if two are as near.
    fn nearest(&self, holders: &[Box<str>], from: FileId, dotted: &str) -> Option<Resolution> {
        let here = self.folder(from);
        let shared = |folder: &str| {
            let pairs = here.split('/').zip(folder.split('/'));
            pairs.take_while(|(a, b)| a == b).count()
        };
        let found = holders.iter().filter_map(|holder| {
            let file = self.file_below(holder, dotted)?;
            Some((shared(holder), file))
        });
        let found: Vec<_> = found.collect();
        let best = found.iter().map(|found| found.0).max()?;
        let mut nearest = found.iter().filter(|found| found.0 == best);
        match (nearest.next(), nearest.next()) {
            (Some(found), None) => Some(found.1),
            _ => None,
        }
    }
}

impl Imports for Modules {
    fn resolve(&self, from: FileId, entry: FileId, level: u32, dotted: &str) -> Resolution {
        if self.paths.get(from.0 as usize).is_none_or(|path| path.is_empty()) {
            // Not a Python file.
            return Resolution::External;
        }
        if level > 0 {
            return self.relative(from, level, dotted);
        }
        if !self.names.contains(first(dotted)) {
            return Resolution::External;
        }
        let folder = |file: FileId| self.folder_of.get(file.0 as usize).copied();
        let (Some(here), Some(start)) = (folder(from), folder(entry)) else {
            return self.absolute(from, entry, dotted);
        };
        let key = (here, start, Name::new(dotted));
        let known = self.resolved.read().unwrap_or_else(PoisonError::into_inner).get(&key).copied();
        known.unwrap_or_else(|| {
            let found = self.absolute(from, entry, dotted);
            self.resolved.write().unwrap_or_else(PoisonError::into_inner).insert(key, found);
            found
        })
    }

    fn submodule(&self, parent: FileId, _entry: FileId, name: &str) -> Resolution {
        let Some(path) = self.paths.get(parent.0 as usize) else { return Resolution::External };
        let (folder, file) = split(path);
        if matches!(file, "__init__.py" | "__init__.pyi") {
            self.below(folder, name)
        } else {
            Resolution::External
        }
    }

    fn vantage(&self, entry: FileId) -> Vantage {
        Vantage::Folder(self.folder(entry).into())
    }

    fn named_in_folder(&self, folder: &str, dotted: &str) -> Option<FileId> {
        let file = |found| match found {
            Resolution::File(file) => Some(file),
            Resolution::Package | Resolution::External => None,
        };
        let roots = SOURCE_FOLDERS.iter().map(|source| match folder {
            "" => (*source).to_owned(),
            _ => format!("{folder}/{source}"),
        });
        std::iter::once(folder.to_owned())
            .chain(roots)
            .chain(self.holders.get(first(dotted)).into_iter().flatten().map(ToString::to_string))
            .find_map(|root| file(self.below(&root, dotted)))
    }

    fn beyond_paths(&self) -> Vec<String> {
        let searched = self.search_path.iter().map(|folder| format!("search {folder}"));
        let mut namesakes: Vec<_> = self.namesakes.iter().map(|n| format!("not {n}")).collect();
        namesakes.sort();
        searched.chain(namesakes).collect()
    }
}

/// A folder, the folders above it, the root.
fn folders_up(folder: &str) -> impl Iterator<Item = &str> {
    std::iter::successors(Some(folder), |at| (!at.is_empty()).then(|| split(at).0))
}

/// Folder and name of a path; the folder of a top-level name is empty.
fn split(path: &str) -> (&str, &str) {
    path.rsplit_once('/').unwrap_or(("", path))
}

fn first(dotted: &str) -> &str {
    dotted.split_once('.').map_or(dotted, |(first, _)| first)
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Tree {
        paths: Vec<&'static str>,
        modules: Modules,
    }

    fn tree(paths: &[&'static str]) -> Tree {
        let ids = (0..).map(FileId);
        let modules = Modules::of_paths(ids.zip(paths.iter().copied()));
        Tree { paths: paths.to_vec(), modules }
    }

    impl Tree {
        fn id(&self, path: &str) -> FileId {
            let index = self.paths.iter().position(|other| *other == path);
            FileId(index.unwrap_or_else(|| panic!("{path} is not in the tree")) as u32)
        }

        /// `from` imports in the program of `entry`: the path, `folder` or `outside`.
        fn find(&self, entry: &str, from: &str, import: &str) -> &'static str {
            let dotted = import.trim_start_matches('.');
            let level = (import.len() - dotted.len()) as u32;
            let found = self.modules.resolve(self.id(from), self.id(entry), level, dotted);
            match found {
                Resolution::File(id) => self.paths[id.0 as usize],
                Resolution::Package => "folder",
                Resolution::External => "outside",
            }
        }

        /// The entry itself imports.
        fn from(&self, entry: &str, import: &str) -> &'static str {
            self.find(entry, entry, import)
        }
    }

    #[test]
    fn relative_imports_go_up_by_their_dots() {
        let tree = tree(&["p/__init__.py", "p/a.py", "p/q/__init__.py", "p/q/b.py", "c.py"]);
        let from_b = |import| tree.find("c.py", "p/q/b.py", import);
        assert_eq!(from_b("."), "p/q/__init__.py");
        assert_eq!(from_b(".."), "p/__init__.py");
        assert_eq!(from_b("..a"), "p/a.py");
        assert_eq!(from_b("...c"), "c.py");
        assert_eq!(from_b("....c"), "outside", "above the root");
        assert_eq!(from_b(".torch"), "outside");
        assert_eq!(tree.find("c.py", "p/q/__init__.py", ".b"), "p/q/b.py");
        assert_eq!(tree.from("c.py", "."), "folder");
    }

    #[test]
    fn absolute_imports_start_beside_the_entry() {
        let tree = tree(&["tools/train.py", "tools/utils.py", "utils.py", "main.py", "m/x.py"]);
        assert_eq!(tree.from("tools/train.py", "utils"), "tools/utils.py");
        assert_eq!(tree.from("main.py", "utils"), "utils.py");
        assert_eq!(tree.find("main.py", "m/x.py", "utils"), "utils.py");
        assert_eq!(tree.find("tools/train.py", "m/x.py", "utils"), "tools/utils.py");
        assert_eq!(tree.from("tools/train.py", "m.x"), "m/x.py", "the root comes later");
        assert_eq!(tree.from("tools/train.py", "m"), "folder");
        assert_eq!(tree.from("main.py", "m.y"), "outside");
        assert_eq!(tree.from("main.py", "train"), "outside");
    }

    #[test]
    fn packages_come_before_modules_and_source_before_stubs() {
        let tree = tree(&["a.py", "a/__init__.py", "a/b.pyi", "a/b.py", "c.pyi", "main.py"]);
        assert_eq!(tree.from("main.py", "a"), "a/__init__.py");
        assert_eq!(tree.from("main.py", "a.b"), "a/b.py");
        assert_eq!(tree.from("main.py", "c"), "c.pyi");
        let submodule =
            |parent, name| tree.modules.submodule(tree.id(parent), tree.id("main.py"), name);
        assert_eq!(submodule("a/__init__.py", "b"), Resolution::File(tree.id("a/b.py")));
        assert_eq!(submodule("a.py", "b"), Resolution::External);
    }

    #[test]
    fn own_folder_and_the_folders_above_it() {
        let tree = tree(&[
            "x/lib/net/__init__.py",
            "x/lib/net/a.py",
            "x/lib/net/sub/__init__.py",
            "x/lib/net/sub/b.py",
            "x/lib/opts.py",
            "x/main.py",
        ]);
        let from_b = |import| tree.find("x/main.py", "x/lib/net/sub/b.py", import);
        assert_eq!(from_b("net.a"), "x/lib/net/a.py", "beside its package");
        assert_eq!(from_b("opts"), "x/lib/opts.py");
        assert_eq!(from_b("b"), "x/lib/net/sub/b.py");
        assert_eq!(tree.from("x/main.py", "net.a"), "x/lib/net/a.py", "the only such package");
        assert_eq!(tree.from("x/main.py", "opts"), "outside", "a mere module elsewhere");
    }

    fn texts(files: &[(&'static str, &str)]) -> Tree {
        let sources = files.iter().zip(0..).map(|((path, text), id)| {
            let module = crate::python::lower(text);
            SourceFile::new(FileId(id), (*path).to_owned(), (*text).into(), module, true)
        });
        let sources: Vec<_> = sources.collect();
        let paths = files.iter().map(|file| file.0).collect();
        Tree { paths, modules: Modules::new(&sources) }
    }

    #[test]
    fn a_changed_search_path_is_followed() {
        let init = "import sys, os.path as osp\n\
                    lib = osp.join(osp.dirname(__file__), '..', 'lib')\n\
                    def add_path(path):\n    sys.path.insert(0, path)\nadd_path(lib)\n";
        let filler = format!("x = 'three'\n{}", "# filler\n".repeat(300));
        let main = format!("import sys\nsys.path.append('./core')\n{filler}");
        let tree = texts(&[
            ("src/lib/models/model.py", ""),
            ("src/lib/datasets/factory.py", ""),
            ("src/tools/_init_paths.py", init),
            ("src/tools/main.py", "import _init_paths"),
            ("main.py", &main),
            ("core/raft.py", ""),
            ("core/utils/flow.py", ""),
            ("three/hidden.py", ""),
        ]);
        assert_eq!(tree.from("src/tools/main.py", "models.model"), "src/lib/models/model.py");
        let factory = "src/lib/datasets/factory.py";
        assert_eq!(tree.from("src/tools/main.py", "datasets.factory"), factory);
        assert_eq!(tree.from("main.py", "raft"), "core/raft.py");
        assert_eq!(tree.from("main.py", "utils.flow"), "core/utils/flow.py");
        assert_eq!(tree.from("main.py", "hidden"), "outside", "a text of no path");
    }

    #[test]
    fn a_folder_may_share_the_name_of_a_known_package() {
        let tree = texts(&[
            ("paddle/__init__.py", ""),
            ("paddle/train.py", "import paddle\nimport paddle.nn as nn\nfrom paddle.io import x"),
            ("timm/__init__.py", ""),
            ("timm/layers.py", "import timm._C"),
            ("main.py", "import timm.layers\nfrom timm.layers import x"),
        ]);
        assert_eq!(tree.from("paddle/train.py", "paddle"), "outside");
        assert_eq!(tree.from("main.py", "timm"), "timm/__init__.py");
    }

    #[test]
    fn source_folders_and_the_nearest_of_several() {
        let tree = tree(&[
            "src/app/__init__.py",
            "src/app/core.py",
            "tests/test_app.py",
            "one/deep/net/__init__.py",
            "two/deep/net/__init__.py",
            "two/run.py",
            "tie.py",
        ]);
        assert_eq!(tree.from("tests/test_app.py", "app.core"), "src/app/core.py");
        assert_eq!(tree.from("two/run.py", "net"), "two/deep/net/__init__.py");
        assert_eq!(tree.from("tie.py", "net"), "outside", "one of two");
    }

    #[test]
    fn known_names_are_not_the_projects() {
        let tree = tree(&[
            "experiments/old/torch.py",
            "utils/logging.py",
            "utils/foo.py",
            "datasets/coco.py",
            "torch/train.py",
            "tools/train.py",
            "sys.py",
            "main.py",
        ]);
        assert_eq!(tree.from("main.py", "torch"), "outside");
        assert_eq!(tree.from("main.py", "torch.nn"), "outside");
        assert_eq!(tree.from("torch/train.py", "torch"), "outside");
        assert_eq!(tree.find("main.py", "utils/foo.py", "logging"), "outside");
        assert_eq!(tree.from("main.py", "sys"), "outside");
        assert_eq!(tree.from("main.py", "datasets"), "outside", "the installed package wins");
        assert_eq!(tree.from("main.py", "datasets.coco"), "datasets/coco.py");
        assert_eq!(tree.from("tools/train.py", "datasets.coco"), "outside");
        assert_eq!(tree.from("utils/foo.py", "logging"), "utils/logging.py", "beside the entry");
    }

    #[test]
    fn the_project_may_be_a_known_package_itself() {
        let tree = tree(&[
            "src/accelerate/__init__.py",
            "src/accelerate/state.py",
            "examples/run.py",
            "timm/__init__.py",
            "timm/layers.py",
            "deep/er/peft/__init__.py",
            "deep/er/peft/lora.py",
        ]);
        assert_eq!(tree.from("examples/run.py", "accelerate.state"), "src/accelerate/state.py");
        assert_eq!(tree.from("examples/run.py", "timm"), "timm/__init__.py");
        assert_eq!(tree.from("examples/run.py", "peft"), "outside");
        let lora = "deep/er/peft/lora.py";
        assert_eq!(tree.find("examples/run.py", lora, "peft"), "deep/er/peft/__init__.py");
    }
}
