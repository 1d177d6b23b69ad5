//! Which files belong to a request: project roots, what git ignores, what nobody lints.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use ignore::{DirEntry, WalkBuilder};

use super::Request;
use super::configs::Configs;
use crate::linter::language_of;

/// What marks the root of a project.
const ROOT_MARKERS: [&str; 5] =
    ["ddp-lint.toml", "pyproject.toml", "setup.py", "Cargo.toml", ".git"];

/// Folders that hold other people's code or none.
const SKIPPED_FOLDERS: [&str; 12] = [
    ".git",
    ".hg",
    ".svn",
    ".venv",
    ".tox",
    ".nox",
    ".eggs",
    "__pycache__",
    "__pypackages__",
    "node_modules",
    "site-packages",
    "dist-packages",
];

/// Files that say what packages and crates there are.
const MANIFESTS: [&str; 3] = ["Cargo.toml", "pyproject.toml", "setup.cfg"];

/// How deep a file without a project may reach into the folders beside it.
const LOOSE_DEPTH_MAX: usize = 3;

/// A file of a project.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Found {
    /// Findings in it are wanted.
    pub(super) reported: bool,
}

/// What lies below a root, all absolute.
#[derive(Debug, Default)]
pub(super) struct Root {
    pub(super) files: BTreeMap<PathBuf, Found>,
    pub(super) manifests: BTreeSet<PathBuf>,
}

#[derive(Debug, Default)]
pub(super) struct Discovered {
    /// By their folder, absolute.
    pub(super) roots: BTreeMap<PathBuf, Root>,
    pub(super) problems: Vec<String>,
    pub(super) notes: Vec<String>,
    pub(super) missing: Vec<String>,
}

/// `path` made absolute against `folder`, without `.` and `..`; links stay.
pub fn absolute(path: &Path, folder: &Path) -> PathBuf {
    let mut absolute = PathBuf::new();
    for part in folder.join(path).components() {
        match part {
            std::path::Component::CurDir => {}
            std::path::Component::ParentDir => {
                absolute.pop();
            }
            part => absolute.push(part),
        }
    }
    absolute
}

/// The nearest folder at or above `path` that marks a project; else `path` itself, or the
/// folder of a file.
pub fn root_of(path: &Path) -> PathBuf {
    let folder = if path.is_dir() { path } else { path.parent().unwrap_or(path) };
    marked_root(folder).unwrap_or(folder).to_owned()
}

fn marked_root(folder: &Path) -> Option<&Path> {
    folder.ancestors().find(|folder| ROOT_MARKERS.iter().any(|marker| folder.join(marker).exists()))
}

/// The path lies in a folder of other people's code.
pub fn is_foreign(path: &Path) -> bool {
    path.components()
        .any(|part| part.as_os_str().to_str().is_some_and(|name| SKIPPED_FOLDERS.contains(&name)))
}

/// What is linted when no path is given: the cargo workspace around `folder` when cargo asks,
/// else `folder`.
pub fn default_paths(folder: &Path, is_cargo: bool) -> Vec<PathBuf> {
    let manifests = folder.ancestors().filter(|folder| folder.join("Cargo.toml").is_file());
    let is_workspace = |folder: &&Path| {
        let manifest = std::fs::read_to_string(folder.join("Cargo.toml")).unwrap_or_default();
        manifest.parse::<toml::Table>().is_ok_and(|table| table.contains_key("workspace"))
    };
    let workspace = is_cargo
        .then(|| manifests.clone().find(is_workspace).or_else(|| manifests.clone().next()))
        .flatten();
    vec![workspace.unwrap_or(folder).to_owned()]
}

pub(super) fn discover(request: &Request, configs: &mut Configs<'_>) -> Discovered {
    let mut found = Discovered::default();
    for path in &request.paths {
        let is_inside = |folder: &&PathBuf| *folder != path && path.starts_with(folder);
        if path.is_dir() && request.paths.iter().find(is_inside).is_some_and(|f| f.is_dir()) {
            continue;
        }
        if request.overlay.contains_key(path) || path.is_file() {
            if language_of(&path.to_string_lossy()).is_none() {
                found.notes.push(format!("{}: neither Python nor Rust, left out", path.display()));
                continue;
            }
            let root = root_of(path);
            let root = found.roots.entry(root).or_default();
            root.files.insert(path.clone(), Found { reported: true });
        } else if path.is_dir() {
            let root = found.roots.entry(root_of(path)).or_default();
            let walked = walk(path, None, &mut found.problems);
            for file in walked.sources {
                let reported = !configs.of_file(&file).excludes(&file);
                let entry = root.files.entry(file).or_insert(Found { reported });
                entry.reported |= reported;
            }
            root.manifests.extend(walked.manifests);
        } else {
            found.missing.push(why_missing(path));
        }
    }
    for (folder, root) in &mut found.roots {
        if request.paths.contains(folder) {
            continue;
        }
        // Read for facts: what cannot be read there is nobody's problem.
        let depth = marked_root(folder).is_none().then_some(LOOSE_DEPTH_MAX);
        let walked = walk(folder, depth, &mut Vec::new());
        for file in walked.sources {
            root.files.entry(file).or_insert(Found { reported: false });
        }
        root.manifests.extend(walked.manifests);
    }
    found
}

fn why_missing(path: &Path) -> String {
    match std::fs::metadata(path) {
        Ok(_) => format!("{} is neither a file nor a folder", path.display()),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
            format!("no such file or folder: {}", path.display())
        }
        Err(error) => format!("cannot read {}: {error}", path.display()),
    }
}

#[derive(Default)]
struct Walked {
    sources: Vec<PathBuf>,
    manifests: Vec<PathBuf>,
}

/// All source files below a folder, but what git ignores and what nobody lints.
fn walk(folder: &Path, depth: Option<usize>, problems: &mut Vec<String>) -> Walked {
    let walker = WalkBuilder::new(folder)
        .max_depth(depth)
        // A person's own git settings must not change what is found.
        .git_global(false)
        .require_git(false)
        .filter_entry(is_wanted)
        .build();
    let mut walked = Walked::default();
    for entry in walker {
        match entry {
            Ok(entry) if is_manifest(&entry) => walked.manifests.push(entry.into_path()),
            Ok(entry) => walked.sources.extend(source_file(&entry, folder)),
            Err(error) => problems.push(format!("cannot read {error}")),
        }
    }
    walked
}

fn is_manifest(entry: &DirEntry) -> bool {
    entry.file_name().to_str().is_some_and(|name| MANIFESTS.contains(&name))
}

/// The entry's path, if it is a source file. Links to folders are not followed; links to files
/// count unless the file is below `folder` and met there anyway.
fn source_file(entry: &DirEntry, folder: &Path) -> Option<PathBuf> {
    let path = entry.path();
    language_of(path.to_str()?)?;
    let kind = entry.file_type()?;
    if kind.is_symlink() {
        let target = path.canonicalize().ok()?;
        let met_anyway = folder.canonicalize().is_ok_and(|folder| target.starts_with(folder));
        return (target.is_file() && !met_anyway).then(|| path.to_owned());
    }
    kind.is_file().then(|| path.to_owned())
}

fn is_wanted(entry: &DirEntry) -> bool {
    if entry.depth() == 0 || !entry.file_type().is_some_and(|kind| kind.is_dir()) {
        return true;
    }
    let path = entry.path();
    let Some(name) = entry.file_name().to_str() else { return true };
    let is_python_environment = path.join("pyvenv.cfg").is_file();
    // Cargo's output has this tag, whatever the folder is called.
    let is_cargo_output = path.join("CACHEDIR.TAG").is_file();
    // What setuptools copies, beside the sources themselves.
    let is_build = entry.depth() == 1
        && matches!(name, "build" | "dist")
        && path.with_file_name("setup.py").is_file();
    !(SKIPPED_FOLDERS.contains(&name) || is_python_environment || is_cargo_output || is_build)
}
