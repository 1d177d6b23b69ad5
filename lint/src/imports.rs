//! How the files of a project find each other: both languages' resolution as one.

use rustc_hash::FxHashMap;

use crate::model::FileId;
use crate::project::{Imports, Resolution, SourceFile};

/// Resolves by path alone.
pub struct ByPath {
    by_path: FxHashMap<String, FileId>,
    paths: Vec<String>,
}

impl ByPath {
    pub fn new(files: &[SourceFile]) -> Self {
        Self {
            by_path: files.iter().map(|f| (f.path.clone(), f.id)).collect(),
            paths: files.iter().map(|f| f.path.clone()).collect(),
        }
    }

    fn below(&self, folder: &str, dotted: &str) -> Resolution {
        let path = dotted.replace('.', "/");
        let base = if folder.is_empty() { path } else { format!("{folder}/{path}") };
        for candidate in [format!("{base}.py"), format!("{base}/__init__.py")] {
            if let Some(&file) = self.by_path.get(&candidate) {
                return Resolution::File(file);
            }
        }
        let prefix = format!("{base}/");
        if !dotted.is_empty() && self.paths.iter().any(|p| p.starts_with(&prefix)) {
            return Resolution::Package;
        }
        Resolution::External
    }
}

fn folder(path: &str) -> &str {
    path.rsplit_once('/').map_or("", |(folder, _)| folder)
}

impl Imports for ByPath {
    fn resolve(&self, from: FileId, entry: FileId, level: u32, dotted: &str) -> Resolution {
        let here = &self.paths[from.0 as usize];
        if level > 0 {
            let mut base = folder(here);
            for _ in 1..level {
                base = folder(base);
            }
            if dotted.is_empty() {
                let init = format!("{base}/__init__.py");
                return self
                    .by_path
                    .get(&init)
                    .map_or(Resolution::Package, |&f| Resolution::File(f));
            }
            return self.below(base, dotted);
        }
        let entry = folder(&self.paths[entry.0 as usize]);
        for base in [entry, folder(here), "", "src"] {
            let found = self.below(base, dotted);
            if found != Resolution::External {
                return found;
            }
        }
        Resolution::External
    }

    fn submodule(&self, parent: FileId, _entry: FileId, name: &str) -> Resolution {
        let path = &self.paths[parent.0 as usize];
        if !path.ends_with("__init__.py") {
            return Resolution::External;
        }
        self.below(folder(path), name)
    }
}
