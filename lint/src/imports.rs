//! How the files of a project find each other: each language's resolution for its files.

use crate::model::FileId;
use crate::project::{Imports, Resolution, SourceFile};
use crate::python::Modules;

/// Asks the front end of the importing file's language.
pub struct ByLanguage {
    python: Modules,
}

impl ByLanguage {
    pub fn new(files: &[SourceFile]) -> Self {
        Self { python: Modules::new(files) }
    }
}

impl Imports for ByLanguage {
    fn resolve(&self, from: FileId, entry: FileId, level: u32, dotted: &str) -> Resolution {
        self.python.resolve(from, entry, level, dotted)
    }

    fn submodule(&self, parent: FileId, entry: FileId, name: &str) -> Resolution {
        self.python.submodule(parent, entry, name)
    }
}
