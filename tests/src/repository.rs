//! Where things lie in this checkout.

use std::path::{Path, PathBuf};

/// The root of the checkout.
pub fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("tests/ lies in the checkout")
}

/// A file or folder under `fixtures/`.
pub fn fixture(relative: &str) -> PathBuf {
    root().join("fixtures").join(relative)
}

/// All files below a folder with this ending, sorted; `target` and hidden folders are left out.
pub fn files(folder: &Path, ending: &str) -> Vec<PathBuf> {
    let visible = |entry: &walkdir::DirEntry| {
        let name = entry.file_name().to_string_lossy();
        entry.depth() == 0 || !(name.starts_with('.') || name == "target" || name == "node_modules")
    };
    let mut files: Vec<PathBuf> = walkdir::WalkDir::new(folder)
        .into_iter()
        .filter_entry(visible)
        .map(|entry| entry.expect("the checkout can be read").into_path())
        .filter(|path| path.extension().is_some_and(|found| found == ending))
        .collect();
    files.sort();
    files
}

/// The text of a file of the checkout.
#[track_caller]
pub fn read(path: &Path) -> String {
    std::fs::read_to_string(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}
