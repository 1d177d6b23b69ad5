//! Which crate and module a file is, and where a path leads, from texts and paths alone.
//!
//! Must not touch the file system: files that are not in the list do not exist.

mod manifest;
mod modules;

use rustc_hash::{FxHashMap, FxHashSet};

use crate::model::FileId;
use crate::project::Resolution;

pub use manifest::{TchVersion, tch_version};

/// A Rust file of the project. Paths are relative to the project root, with `/`.
#[derive(Clone, Copy, Debug)]
pub struct RustFile<'t> {
    pub id: FileId,
    pub path: &'t str,
    pub text: &'t str,
}

/// A `Cargo.toml`. One that does not parse counts as absent.
#[derive(Clone, Copy, Debug)]
pub struct Manifest<'t> {
    pub path: &'t str,
    pub text: &'t str,
}

#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum CrateKind {
    Library,
    Binary,
    Example,
    Test,
    Bench,
    BuildScript,
    /// A file, with its modules, that no `Cargo.toml` claims.
    Lone,
}

#[derive(Debug)]
pub struct Crate {
    /// As code spells it: `my_net` of the package `my-net`.
    pub name: String,
    pub kind: CrateKind,
    pub root: FileId,
    /// All files, the root first; the others in the order of their paths.
    pub files: Vec<FileId>,
    /// Dotted module path to file; inline modules lead to the file that holds them.
    modules: FxHashMap<String, FileId>,
    package: Option<usize>,
}

/// All crates of a project.
#[derive(Debug, Default)]
pub struct Crates {
    all: Vec<Crate>,
    packages: Vec<Package>,
    /// Crates that hold a file, by the order of `all`, and its module path in the first.
    places: FxHashMap<FileId, Place>,
    /// Files that only tests compile.
    test_only: FxHashSet<FileId>,
    /// Files of crates that use tch, or that such crates use.
    relevant: FxHashSet<FileId>,
}

#[derive(Debug)]
struct Package {
    /// The crates that its code may name, by the name it uses.
    dependencies: FxHashMap<String, usize>,
    library: Option<usize>,
}

#[derive(Debug)]
struct Place {
    module_path: String,
    crates: Vec<usize>,
}

impl Crates {
    /// `files` are in the order of their ids. Cost is linear in the text.
    pub fn new(files: &[RustFile<'_>], manifests: &[Manifest<'_>]) -> Self {
        let tree = modules::Tree::new(files);
        let manifests = manifest::read(manifests, &tree);
        let mut builder = Builder { tree: &tree, result: Self::default() };
        for manifest in &manifests {
            builder.package(manifest);
        }
        builder.rest(files, &manifests);
        builder.link(&manifests);
        let mut result = builder.result;
        result.relevant = relevant(&result, files);
        result
    }

    pub fn crates(&self) -> &[Crate] {
        &self.all
    }

    /// `crate`, `crate.data` …; by the customs of cargo where no `mod` item claims the file.
    pub fn module_path(&self, file: FileId) -> &str {
        self.places.get(&file).map_or("crate", |place| &place.module_path)
    }

    /// Roots of what can be run: binaries, examples, integration tests, and lone files with a
    /// `fn main`. A crate of another kind runs only as part of these, or is a library.
    pub fn entries(&self) -> Vec<FileId> {
        let runs = |krate: &&Crate| match krate.kind {
            CrateKind::Binary | CrateKind::Example | CrateKind::Test => true,
            CrateKind::Lone => self.lone_main(krate),
            CrateKind::Library | CrateKind::Bench | CrateKind::BuildScript => false,
        };
        let mut entries: Vec<FileId> =
            self.all.iter().filter(runs).map(|krate| krate.root).collect();
        entries.sort_by_key(|file| file.0);
        entries.dedup();
        entries
    }

    fn lone_main(&self, krate: &Crate) -> bool {
        self.places.get(&krate.root).is_some_and(|place| place.crates.len() == 1)
            && krate.modules.contains_key(MAIN)
    }

    /// Libraries, but for those that the tables describe.
    pub fn libraries(&self) -> impl Iterator<Item = &Crate> {
        let is_known = |krate: &Crate| is_known_crate(&krate.name);
        self.all.iter().filter(move |k| k.kind == CrateKind::Library && !is_known(k))
    }

    /// The file is part of a crate that uses tch, or of one that such a crate uses. Other files
    /// need not be lowered.
    pub fn is_relevant(&self, file: FileId) -> bool {
        self.relevant.contains(&file)
    }

    /// Declared by `#[cfg(test)] mod x;` alone.
    pub fn is_test_only(&self, file: FileId) -> bool {
        self.test_only.contains(&file)
    }

    /// Where a dotted path leads, seen from a file that runs as part of an entry.
    pub fn resolve(&self, from: FileId, entry: Option<FileId>, dotted: &str) -> Resolution {
        match self.resolve_prefix(from, entry, dotted) {
            Some((file, "")) => Resolution::File(file),
            _ => Resolution::External,
        }
    }

    /// The longest part of a dotted path that is a module, and what follows it:
    /// `crate.data.Mode.Train` is the file of `crate.data` and `Mode.Train`.
    pub fn resolve_prefix<'d>(
        &self,
        from: FileId,
        entry: Option<FileId>,
        dotted: &'d str,
    ) -> Option<(FileId, &'d str)> {
        let home = self.home(from, entry)?;
        let (first, rest) = dotted.split_once('.').unwrap_or((dotted, ""));
        if first == "crate" {
            return Some(self.all[home].longest(rest));
        }
        // What these are is known by name, also where the project holds their source.
        if is_known_crate(first) {
            return None;
        }
        let package = self.all[home].package.map(|package| &self.packages[package]);
        if let Some(&other) = package.and_then(|package| package.dependencies.get(first))
            && other != home
        {
            return Some(self.all[other].longest(rest));
        }
        // Before the 2018 edition paths of `use` start at the crate's root.
        let krate = &self.all[home];
        krate.modules.contains_key(&format!("crate.{first}")).then(|| krate.longest(dotted))
    }

    /// The crate as part of which a file is read: the entry's own, if it holds the file.
    fn home(&self, from: FileId, entry: Option<FileId>) -> Option<usize> {
        let place = self.places.get(&from)?;
        let of_entry = |&&index: &&usize| Some(self.all[index].root) == entry;
        place.crates.iter().find(of_entry).or(place.crates.first()).copied()
    }
}

/// The tables say what its names are; its source is not looked into.
fn is_known_crate(name: &str) -> bool {
    matches!(name, "tch" | "tch_ddp" | "tch_ddp_macros")
}

/// Stands among the modules of a crate whose root has a `fn main`. No path can spell it.
const MAIN: &str = "fn main";

impl Crate {
    fn longest<'d>(&self, rest: &'d str) -> (FileId, &'d str) {
        let mut ends: Vec<usize> = rest.match_indices('.').map(|(at, _)| at).collect();
        ends.push(rest.len());
        for &end in ends.iter().rev() {
            if end > 0
                && let Some(&file) = self.modules.get(&format!("crate.{}", &rest[..end]))
            {
                return (file, rest[end..].trim_start_matches('.'));
            }
        }
        (self.root, rest)
    }
}

struct Builder<'t> {
    tree: &'t modules::Tree<'t>,
    result: Crates,
}

impl Builder<'_> {
    fn package(&mut self, manifest: &manifest::Package) {
        let index = self.result.packages.len();
        let mut library = None;
        for target in &manifest.targets {
            let number = self.add(target.root, &target.name, target.kind, Some(index));
            if target.kind == CrateKind::Library {
                library = Some(number);
            }
        }
        self.result.packages.push(Package { dependencies: FxHashMap::default(), library });
    }

    fn add(&mut self, root: FileId, name: &str, kind: CrateKind, package: Option<usize>) -> usize {
        let index = self.result.all.len();
        let walk = self.tree.walk(root);
        let mut modules = walk.modules;
        if self.tree.has_main(root) {
            modules.insert(MAIN.into(), root);
        }
        for (file, module_path) in &walk.files {
            let place = self
                .result
                .places
                .entry(*file)
                .or_insert_with(|| Place { module_path: module_path.clone(), crates: Vec::new() });
            place.crates.push(index);
        }
        let tests = walk.test_only.into_iter();
        self.result.test_only.extend(tests);
        let files = walk.files.into_iter().map(|(file, _)| file).collect();
        let name = name.replace('-', "_");
        self.result.all.push(Crate { name, kind, root, files, modules, package });
        index
    }

    /// Files that no target reaches: those inside a package by layout, the others as crates of
    /// their own.
    fn rest(&mut self, files: &[RustFile<'_>], manifests: &[manifest::Package]) {
        let unclaimed: Vec<_> =
            files.iter().filter(|file| !self.result.places.contains_key(&file.id)).collect();
        let roots: FxHashSet<FileId> = self.tree.roots(unclaimed.iter().map(|file| file.id));
        for file in unclaimed {
            let home = manifests.iter().rposition(|package| package.holds_source(file.path));
            let owner = home.and_then(|home| {
                self.result.all.iter().position(|krate| krate.package == Some(home))
            });
            if let Some(owner) = owner {
                let module_path = module_path_by_layout(file.path);
                let krate = &mut self.result.all[owner];
                krate.modules.entry(module_path.clone()).or_insert(file.id);
                krate.files.push(file.id);
                let place = Place { module_path, crates: vec![owner] };
                self.result.places.insert(file.id, place);
            } else if roots.contains(&file.id) {
                let stem = file.path.rsplit('/').next().unwrap_or(file.path);
                let stem = stem.strip_suffix(".rs").unwrap_or(stem);
                self.add(file.id, stem, CrateKind::Lone, None);
            }
        }
    }

    /// Ties the names of dependencies to the crates of this project.
    fn link(&mut self, manifests: &[manifest::Package]) {
        let library_of = |name: &str| {
            let index = manifests.iter().position(|package| package.name == name)?;
            self.result.packages[index].library
        };
        let dependencies: Vec<FxHashMap<String, usize>> = manifests
            .iter()
            .map(|package| {
                let others = package.dependencies.iter().filter_map(|dependency| {
                    Some((dependency.name.replace('-', "_"), library_of(&dependency.package)?))
                });
                let own = library_of(&package.name)
                    .map(|library| (self.result.all[library].name.clone(), library));
                others.chain(own).collect()
            })
            .collect();
        for (package, dependencies) in self.result.packages.iter_mut().zip(dependencies) {
            package.dependencies = dependencies;
        }
    }
}

/// The files of each group of connected crates in which tch is mentioned.
fn relevant(crates: &Crates, files: &[RustFile<'_>]) -> FxHashSet<FileId> {
    let n_packages = crates.packages.len();
    let mut group: Vec<usize> = (0..n_packages).collect();
    for (index, package) in crates.packages.iter().enumerate() {
        for &library in package.dependencies.values() {
            if let Some(other) = crates.all[library].package {
                let (from, to) = (group[index], group[other]);
                group.iter_mut().filter(|group| **group == from).for_each(|group| *group = to);
            }
        }
    }
    let group_of = |krate: usize| match crates.all[krate].package {
        Some(package) => group[package],
        None => n_packages + krate,
    };
    let groups_of = |file: &FileId| {
        let place = crates.places.get(file);
        place.into_iter().flat_map(|place| &place.crates).map(|&krate| group_of(krate))
    };
    let mentioned: FxHashSet<usize> = files
        .iter()
        .filter(|file| mentions_tch(file.text))
        .flat_map(|file| groups_of(&file.id).collect::<Vec<_>>())
        .collect();
    let is_relevant = |id: &FileId| groups_of(id).any(|group| mentioned.contains(&group));
    files.iter().map(|file| file.id).filter(is_relevant).collect()
}

/// What of a file's text decides which crates there are and what they are made of.
#[derive(PartialEq, Eq, Debug)]
pub struct Shape {
    declarations: Vec<modules::Declaration>,
    has_main: bool,
    mentions_tch: bool,
}

impl Shape {
    pub fn of(text: &str) -> Self {
        let (declarations, has_main) = modules::scan(text);
        Self { declarations, has_main, mentions_tch: mentions_tch(text) }
    }
}

/// The text has the word `tch` or `tch_ddp`. Cheap: comments and strings count, too.
pub fn mentions_tch(text: &str) -> bool {
    let is_word = |byte: &u8| byte.is_ascii_alphanumeric() || *byte == b'_';
    text.match_indices("tch").any(|(at, _)| {
        let before = text.as_bytes()[..at].last();
        let rest = &text.as_bytes()[at + 3..];
        let rest = rest.strip_prefix(b"_ddp").unwrap_or(rest);
        !before.is_some_and(is_word) && !rest.first().is_some_and(is_word)
    })
}

/// The module path of a file by the customs of cargo, for files that no `mod` item claims.
pub fn module_path_by_layout(path: &str) -> String {
    let path = path.strip_suffix(".rs").unwrap_or(path);
    let parts: Vec<&str> = path.split('/').collect();
    let roots = ["src", "examples", "tests", "benches"];
    let Some(root) = parts.iter().rposition(|part| roots.contains(part)) else {
        return "crate".into();
    };
    let mut inner = &parts[root + 1..];
    if parts[root] != "src" || inner.first() == Some(&"bin") {
        // Each of these files, or folders with a `main.rs`, is a crate of its own.
        let skipped = if parts[root] == "src" { 2 } else { 1 };
        inner = inner.get(skipped..).unwrap_or(&[]);
    }
    if let [head @ .., "mod" | "main" | "lib"] = inner {
        inner = head;
    }
    ["crate"].iter().chain(inner).copied().collect::<Vec<_>>().join(".")
}

#[cfg(test)]
mod tests;
