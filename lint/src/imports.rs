//! How the files of a project find each other: each language's resolution for its files.

use std::sync::Arc;

use crate::model::{FileId, Language};
use crate::project::{Imports, Resolution, SourceFile, Vantage};
use crate::python::Modules;
use crate::rust::crates::Crates;

/// Asks the front end of the importing file's language.
pub struct ByLanguage {
    /// By file id.
    languages: Vec<Language>,
    python: Modules,
    rust: Arc<Crates>,
}

impl ByLanguage {
    pub fn new(files: &[SourceFile], rust: Arc<Crates>) -> Self {
        let languages = files.iter().map(|file| file.module.language).collect();
        Self { languages, python: Modules::new(files), rust }
    }

    fn is_rust(&self, file: FileId) -> bool {
        self.languages[file.0 as usize] == Language::Rust
    }
}

impl Imports for ByLanguage {
    fn resolve(&self, from: FileId, entry: FileId, level: u32, dotted: &str) -> Resolution {
        if self.is_rust(from) {
            return self.rust.resolve(from, Some(entry), dotted);
        }
        self.python.resolve(from, entry, level, dotted)
    }

    fn submodule(&self, parent: FileId, entry: FileId, name: &str) -> Resolution {
        if self.is_rust(parent) {
            let dotted = format!("{}.{name}", self.rust.module_path(parent));
            return self.rust.resolve(parent, Some(entry), &dotted);
        }
        self.python.submodule(parent, entry, name)
    }

    fn vantage(&self, entry: FileId) -> Vantage {
        if self.is_rust(entry) { Vantage::Entry(entry) } else { self.python.vantage(entry) }
    }

    fn named_in_folder(&self, folder: &str, dotted: &str) -> Option<FileId> {
        self.python.named_in_folder(folder, dotted)
    }

    fn beyond_paths(&self) -> Vec<String> {
        self.python.beyond_paths()
    }
}
