//! All source files of one project, lowered, and how they find each other.
//!
//! No I/O: files come in as text. Discovery and reading belong to the driver.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::model::{FileId, Module};

#[derive(Debug)]
pub struct SourceFile {
    pub id: FileId,
    /// Relative to the project root, with `/`.
    pub path: String,
    pub text: Arc<str>,
    pub module: Module,
    /// Inside the paths that the user named; others are read for facts only.
    pub reported: bool,
}

#[derive(Debug, Default)]
pub struct Project {
    pub root: PathBuf,
    pub files: Vec<SourceFile>,
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
