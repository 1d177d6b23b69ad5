//! All source files of one project, lowered, and how they find each other.
//!
//! No I/O: files come in as text. Discovery and reading belong to the driver.

use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};

use crate::analysis::models::Mentions;
use crate::analysis::reach;
use crate::analysis::shared::Shared;
use crate::model::{FileId, Module};
use crate::rust::crates::Crates;
use crate::torch::{self, TorchRange};

#[derive(Debug)]
pub struct SourceFile {
    pub id: FileId,
    /// Relative to the project root, with `/`.
    pub path: String,
    pub text: Arc<str>,
    pub module: Module,
    /// Inside the paths that the user named; others are read for facts only.
    pub reported: bool,
    /// The text speaks of torch, tch or a framework upon them.
    pub mentions_torch: bool,
    /// The text has a word without which no program runs on several ranks.
    pub speaks_of_several: bool,
    /// The attributes that it mentions, once somebody asks.
    pub(crate) mentions: OnceLock<Mentions>,
}

impl SourceFile {
    pub fn new(id: FileId, path: String, text: Arc<str>, module: Module, reported: bool) -> Self {
        let mentions_torch = torch::is_mentioned(&text);
        let speaks_of_several = reach::speaks_of_several(&text);
        let mentions = OnceLock::new();
        Self { id, path, text, module, reported, mentions_torch, speaks_of_several, mentions }
    }
}

pub struct Project {
    pub root: PathBuf,
    pub files: Vec<SourceFile>,
    /// The releases of torch that the project runs on.
    pub torch: TorchRange,
    /// `Cargo.toml`, `pyproject.toml` and `setup.cfg` files: path and text.
    pub manifests: Vec<(String, Arc<str>)>,
    /// The crates that the Rust files are.
    pub crates: Arc<Crates>,
    /// How the files' imports lead to each other.
    pub imports: Box<dyn Imports>,
    /// What programs ask about each other.
    pub shared: Shared,
}

/// Resolves imports between the files of a project.
pub trait Imports: Send + Sync {
    /// Where `dotted` leads in `from`, a file of the program that starts at `entry`.
    /// `level`: leading dots of a relative import.
    fn resolve(&self, from: FileId, entry: FileId, level: u32, dotted: &str) -> Resolution;

    /// The module `name` below the package or module that `parent` is.
    fn submodule(&self, parent: FileId, entry: FileId, name: &str) -> Resolution;

    /// Programs whose entries stand at places that are equal in this resolve alike.
    fn vantage(&self, entry: FileId) -> Vantage {
        Vantage::Entry(entry)
    }

    /// The file of a module that is named in a configuration file in `folder`.
    fn named_in_folder(&self, _folder: &str, _dotted: &str) -> Option<FileId> {
        None
    }

    /// What decides besides the files' paths: two that were made for the same files and agree in
    /// this resolve alike.
    fn beyond_paths(&self) -> Vec<String> {
        Vec::new()
    }
}

/// What of an entry decides where the imports of its program lead.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub enum Vantage {
    Entry(FileId),
    /// The folder that it stands in.
    Folder(Box<str>),
}

/// What an import path leads to.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Resolution {
    File(FileId),
    /// A folder of modules without an `__init__.py`.
    Package,
    External,
}

impl Project {
    pub fn file(&self, id: FileId) -> &SourceFile {
        &self.files[id.0 as usize]
    }

    pub fn root(&self) -> &Path {
        &self.root
    }
}
