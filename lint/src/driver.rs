//! From paths to projects: finds project roots, files and configurations, and reads them.
//!
//! The only place that reads or writes the user's files. What it finds does not depend on the
//! order in which the file system lists things.

mod configs;
mod discover;
mod read;
mod write;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rayon::prelude::*;
use rustc_hash::FxHashMap;

use crate::config::{ConfigError, Overrides, Settings, TorchVersion};
use crate::crash::Crash;
use crate::linter::{self, Input, Outcome, Source};
use crate::model::FileId;
use crate::project::Project;
use crate::rust::crates::{self, tch_version};
use crate::torch::{self, TorchRange};

pub use crate::python::notebook::Cells;
pub use configs::ConfigChoice;
pub use discover::{absolute, default_paths, is_foreign, root_of};
pub use read::read_text;
pub use write::write;

/// What to lint, and under which settings.
#[derive(Clone, Debug, Default)]
pub struct Request {
    /// Files and folders, absolute.
    pub paths: Vec<PathBuf>,
    pub config: ConfigChoice,
    pub overrides: Overrides,
    /// Texts that stand for what is on the disk, by absolute path: standard input, unsaved
    /// buffers.
    pub overlay: BTreeMap<PathBuf, Arc<str>>,
}

/// All projects of a request, read and lowered.
#[derive(Default)]
pub struct Workspace {
    /// By root.
    pub projects: Vec<Loaded>,
    /// What is wrong with configurations. Files under a wrong one have the default settings.
    pub mistakes: Vec<ConfigError>,
    /// Paths that were asked for and are not there.
    pub missing: Vec<String>,
    /// What could not be read; the rest is there.
    pub problems: Vec<String>,
    /// What was left out on purpose and may surprise.
    pub notes: Vec<String>,
}

/// A project with what the driver knows of its files.
pub struct Loaded {
    pub project: Project,
    /// By file id.
    pub files: Vec<FileFacts>,
    pub crashes: Vec<Crash>,
}

/// What the driver knows of a file beyond its text.
#[derive(Clone, Debug)]
pub struct FileFacts {
    /// Absolute.
    pub path: PathBuf,
    pub settings: Arc<Settings>,
    /// The text on the disk begins with a byte order mark, which the lowered text lacks.
    pub byte_order_mark: bool,
    /// Why edits cannot be written back, if they cannot.
    pub frozen: Option<&'static str>,
    /// Of a notebook: where its cells begin.
    pub cells: Option<Cells>,
}

impl Loaded {
    pub fn facts(&self, id: FileId) -> &FileFacts {
        &self.files[id.0 as usize]
    }

    /// The findings of this project; crashes while it was read included.
    pub fn lint(&self) -> Outcome {
        let mut outcome =
            linter::lint(&self.project, &|file| self.files[file.id.0 as usize].settings.as_ref());
        outcome.crashes.splice(0..0, self.crashes.iter().cloned());
        outcome
    }

    /// The same project with some texts replaced.
    #[must_use]
    pub fn with_texts(&self, texts: &[(FileId, String)]) -> Self {
        let source = |file: &crate::project::SourceFile| Source {
            path: file.path.clone(),
            text: texts
                .iter()
                .find(|(id, _)| *id == file.id)
                .map_or_else(|| file.text.clone(), |(_, text)| Arc::from(text.as_str())),
            reported: file.reported,
            error: None,
        };
        let sources = self.project.files.iter().map(source).collect();
        let (project, crashes) = linter::load(Input {
            root: self.project.root.clone(),
            sources,
            manifests: self.project.manifests.clone(),
            torch: self.project.torch,
        });
        Self { project, files: self.files.clone(), crashes }
    }
}

/// Finds and reads everything that the request needs.
pub fn load(request: &Request) -> Workspace {
    let mut configs = configs::Configs::new(&request.config, &request.overrides);
    let found = discover::discover(request, &mut configs);
    let mut workspace = Workspace::default();
    for (root, files) in found.roots {
        load_project(root, files, request, &mut configs, &mut workspace);
    }
    workspace.mistakes = configs.into_mistakes();
    workspace.missing = found.missing;
    workspace.problems.extend(found.problems);
    workspace.notes.extend(found.notes);
    workspace
}

fn load_project(
    root: PathBuf,
    found: discover::Root,
    request: &Request,
    configs: &mut configs::Configs<'_>,
    workspace: &mut Workspace,
) {
    let discover::Root { files, manifests } = found;
    let files: Vec<(PathBuf, discover::Found)> = files.into_iter().collect();
    let texts: Vec<read::Outcome> =
        files.par_iter().map(|(path, _)| read::read(path, &request.overlay)).collect();
    let mut sources = Vec::with_capacity(files.len());
    let mut facts = FxHashMap::default();
    for ((path, found), text) in files.into_iter().zip(texts) {
        let read = match text {
            read::Outcome::Text(read) => read,
            read::Outcome::Skipped(why) => {
                if found.reported {
                    workspace.notes.push(format!("{}: {why}", path.display()));
                }
                continue;
            }
            read::Outcome::Failed(why) => {
                if found.reported {
                    workspace.problems.push(format!("cannot read {}: {why}", path.display()));
                }
                continue;
            }
        };
        let relative = relative(&path, &root);
        sources.push(Source {
            path: relative.clone(),
            text: read.text,
            reported: found.reported,
            error: read.error,
        });
        let of_file = FileFacts {
            settings: configs.of_file(&path),
            path,
            byte_order_mark: read.byte_order_mark,
            frozen: read.frozen,
            cells: read.cells,
        };
        facts.insert(relative, of_file);
    }
    let manifests: Vec<(String, Arc<str>)> = manifests
        .iter()
        .filter_map(|path| {
            Some((relative(path, &root), std::fs::read_to_string(path).ok()?.into()))
        })
        .collect();
    let target = configs.of_file(&root.join("any")).target_torch;
    let torch = target.map_or_else(|| stated_torch(&root, &manifests), TorchRange::exactly);
    let input = Input { root, sources, manifests, torch };
    let (project, crashes) = linter::load(input);
    // The linter leaves out what it does not need.
    let facts = project.files.iter().filter_map(|file| facts.remove(&file.path)).collect();
    workspace.projects.push(Loaded { project, files: facts, crashes });
}

/// What the files at the root state of torch; else what the project's tch binds.
fn stated_torch(root: &Path, manifests: &[(String, Arc<str>)]) -> TorchRange {
    let at_root = std::fs::read_dir(root).into_iter().flatten().flatten();
    let texts: Vec<String> = at_root
        .filter(|entry| torch::is_statement(&entry.file_name().to_string_lossy()))
        .filter_map(|entry| std::fs::read_to_string(entry.path()).ok())
        .collect();
    if let Some(stated) = TorchRange::stated(texts.iter().map(String::as_str)) {
        return stated;
    }
    let lock = std::fs::read_to_string(root.join("Cargo.lock")).ok();
    let manifests = manifests.iter().map(|(_, text)| &**text);
    tch_version(manifests.chain(lock.as_deref()))
        .and_then(crates::TchVersion::torch)
        .map(|(major, minor)| TorchRange::exactly(TorchVersion { major, minor }))
        .unwrap_or_default()
}

/// The path below `root`, with `/`.
fn relative(path: &Path, root: &Path) -> String {
    let relative = path.strip_prefix(root).unwrap_or(path);
    let parts = relative.components().map(|part| part.as_os_str().to_string_lossy());
    parts.collect::<Vec<_>>().join("/")
}
