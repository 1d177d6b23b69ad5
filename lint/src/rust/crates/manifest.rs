//! What a `Cargo.toml` says: targets, dependencies, the version of tch.

use toml::{Table, Value};

use super::modules::{Tree, join};
use super::{CrateKind, Manifest};
use crate::model::FileId;

pub(super) struct Package {
    pub(super) name: String,
    /// Empty, or ends in `/`.
    folder: String,
    pub(super) targets: Vec<Target>,
    pub(super) dependencies: Vec<Dependency>,
}

pub(super) struct Target {
    pub(super) name: String,
    pub(super) kind: CrateKind,
    pub(super) root: FileId,
}

pub(super) struct Dependency {
    /// What code calls it.
    pub(super) name: String,
    /// What its own `Cargo.toml` calls it.
    pub(super) package: String,
}

impl Package {
    /// The file lies where this package keeps the modules of its library or binary.
    pub(super) fn holds_source(&self, path: &str) -> bool {
        path.strip_prefix(&self.folder).is_some_and(|inner| inner.starts_with("src/"))
    }
}

/// All packages; those in folders further down come later.
pub(super) fn read(manifests: &[Manifest<'_>], tree: &Tree<'_>) -> Vec<Package> {
    let tables: Vec<(&str, Table)> = manifests
        .iter()
        .filter_map(|manifest| Some((folder_of(manifest.path), manifest.text.parse().ok()?)))
        .collect();
    let mut packages: Vec<Package> =
        tables.iter().filter_map(|(folder, table)| package(folder, table, &tables, tree)).collect();
    packages.sort_by(|a, b| a.folder.cmp(&b.folder));
    packages
}

/// With its final `/`, or empty.
fn folder_of(path: &str) -> &str {
    &path[..path.rfind('/').map_or(0, |at| at + 1)]
}

fn package(
    folder: &str,
    table: &Table,
    tables: &[(&str, Table)],
    tree: &Tree<'_>,
) -> Option<Package> {
    let name = table.get("package")?.get("name")?.as_str()?.to_owned();
    let mut targets = Targets { folder, table, tree, found: Vec::new() };
    targets.library(&name);
    targets.binaries(&name);
    targets.kind("example", "examples/", CrateKind::Example);
    targets.kind("test", "tests/", CrateKind::Test);
    targets.kind("bench", "benches/", CrateKind::Bench);
    targets.build_script();
    let targets = targets.found;
    let dependencies = dependencies(folder, table, tables);
    Some(Package { name, folder: folder.to_owned(), targets, dependencies })
}

struct Targets<'t> {
    folder: &'t str,
    table: &'t Table,
    tree: &'t Tree<'t>,
    found: Vec<Target>,
}

impl Targets<'_> {
    fn add(&mut self, name: &str, kind: CrateKind, root: FileId) {
        let is_new =
            |target: &Target| target.root != root && (target.name != name || target.kind != kind);
        if self.found.iter().all(is_new) {
            self.found.push(Target { name: name.to_owned(), kind, root });
        }
    }

    fn find(&self, path: &str) -> Option<FileId> {
        self.tree.find(&join(self.folder, path))
    }

    fn library(&mut self, package: &str) {
        let given = self.table.get("lib");
        let text = |key: &str| given.and_then(|lib| lib.get(key)).and_then(Value::as_str);
        let path = text("path").unwrap_or("src/lib.rs");
        if let Some(root) = self.find(path) {
            self.add(text("name").unwrap_or(package), CrateKind::Library, root);
        }
    }

    fn binaries(&mut self, package: &str) {
        self.given("bin", "src/bin/", CrateKind::Binary, Some(package));
        if self.discovers("autobins") {
            if let Some(root) = self.find("src/main.rs") {
                self.add(package, CrateKind::Binary, root);
            }
            self.discover("src/bin/", CrateKind::Binary);
        }
    }

    fn kind(&mut self, key: &str, folder: &str, kind: CrateKind) {
        self.given(key, folder, kind, None);
        if self.discovers(&format!("auto{}", folder.trim_end_matches('/'))) {
            self.discover(folder, kind);
        }
    }

    fn discovers(&self, key: &str) -> bool {
        let value = self.table.get("package").and_then(|package| package.get(key));
        value.and_then(Value::as_bool).unwrap_or(true)
    }

    fn discover(&mut self, folder: &str, kind: CrateKind) {
        for (name, root) in self.tree.targets_in(&format!("{}{folder}", self.folder)) {
            self.add(&name, kind, root);
        }
    }

    /// `[[bin]]` and its kin. `main` names the binary that `src/main.rs` is.
    fn given(&mut self, key: &str, folder: &str, kind: CrateKind, main: Option<&str>) {
        let items = self.table.get(key).and_then(Value::as_array);
        for item in items.into_iter().flatten() {
            let Some(name) = item.get("name").and_then(Value::as_str) else { continue };
            let root = match item.get("path").and_then(Value::as_str) {
                Some(path) => self.find(path),
                None => self
                    .find(&format!("{folder}{name}.rs"))
                    .or_else(|| self.find(&format!("{folder}{name}/main.rs")))
                    .or_else(|| (main == Some(name)).then(|| self.find("src/main.rs")).flatten()),
            };
            if let Some(root) = root {
                self.add(name, kind, root);
            }
        }
    }

    fn build_script(&mut self) {
        let given = self.table.get("package").and_then(|package| package.get("build"));
        let path = given.and_then(Value::as_str).unwrap_or("build.rs");
        if let Some(root) = self.find(path) {
            self.add("build", CrateKind::BuildScript, root);
        }
    }
}

/// Tables of dependencies, those of single platforms among them.
fn dependency_tables(table: &Table) -> impl Iterator<Item = &Table> {
    let kinds = ["dependencies", "dev-dependencies", "dev_dependencies"];
    let platforms = table.get("target").and_then(Value::as_table);
    let platforms = platforms.into_iter().flat_map(Table::values).filter_map(Value::as_table);
    std::iter::once(table)
        .chain(platforms)
        .flat_map(move |table| kinds.into_iter().filter_map(|kind| table.get(kind)?.as_table()))
}

fn dependencies(folder: &str, table: &Table, tables: &[(&str, Table)]) -> Vec<Dependency> {
    let workspace = tables
        .iter()
        .filter(|(root, table)| folder.starts_with(root) && table.contains_key("workspace"))
        .max_by_key(|(root, _)| root.len())
        .and_then(|(_, table)| workspace_dependencies(table));
    let inherited = |name: &str, given: &Value| {
        let inherits = given.get("workspace").and_then(Value::as_bool) == Some(true);
        inherits.then(|| workspace?.get(name)).flatten().and_then(renamed)
    };
    dependency_tables(table)
        .flatten()
        .map(|(name, given)| Dependency {
            name: name.clone(),
            package: renamed(given).or_else(|| inherited(name, given)).unwrap_or(name).to_owned(),
        })
        .collect()
}

fn workspace_dependencies(table: &Table) -> Option<&Table> {
    table.get("workspace")?.get("dependencies")?.as_table()
}

fn renamed(given: &Value) -> Option<&str> {
    given.get("package")?.as_str()
}

/// A version of tch, as far as it decides what tch offers.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct TchVersion {
    pub major: u32,
    pub minor: u32,
}

impl TchVersion {
    /// The `(major, minor)` of the libtorch that it binds, by tch's change log.
    pub fn torch(self) -> Option<(u32, u32)> {
        match (self.major, self.minor) {
            (0, minor @ 14..) => Some((2, minor - 13)),
            (0, 11..=13) => Some((2, 0)),
            (0, 9 | 10) => Some((1, 13)),
            (0, minor @ 4..=8) => Some((1, minor + 4)),
            _ => None,
        }
    }
}

/// The version of tch that texts of `Cargo.lock` or `Cargo.toml` ask for; a lock file decides,
/// then the highest that is asked for.
pub fn tch_version<'t>(texts: impl IntoIterator<Item = &'t str>) -> Option<TchVersion> {
    let mut locked = None;
    let mut asked = None;
    for text in texts {
        let Ok(table) = text.parse::<Table>() else { continue };
        locked = locked.max(locked_version(&table));
        let tables = dependency_tables(&table).chain(workspace_dependencies(&table));
        for (name, given) in tables.flatten() {
            if renamed(given).unwrap_or(name) == "tch" {
                let version = given.as_str().or_else(|| given.get("version")?.as_str());
                asked = asked.max(version.and_then(first_version));
            }
        }
    }
    locked.or(asked)
}

fn locked_version(table: &Table) -> Option<TchVersion> {
    let packages = table.get("package")?.as_array()?;
    let is_tch = |package: &&Value| package.get("name").and_then(Value::as_str) == Some("tch");
    let versions = packages.iter().filter(is_tch).filter_map(|package| package.get("version"));
    versions.filter_map(Value::as_str).filter_map(first_version).max()
}

/// The first version that a requirement names: `0.26` of `>=0.26, <0.28`.
fn first_version(requirement: &str) -> Option<TchVersion> {
    let first = requirement.split(',').next()?;
    let mut numbers = first.trim_start_matches(|c: char| !c.is_ascii_digit()).split('.');
    let major = numbers.next()?.parse().ok()?;
    let minor = numbers.next()?.trim_end_matches(|c: char| !c.is_ascii_digit()).parse().ok()?;
    Some(TchVersion { major, minor })
}
