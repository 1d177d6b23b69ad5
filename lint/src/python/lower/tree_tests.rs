//! Lowers large trees of real code where they are present.

use std::path::{Path, PathBuf};

use super::lower;
use super::tests::check_spans;

pub(in crate::python) fn python_files(root: &Path) -> Vec<PathBuf> {
    ignore::WalkBuilder::new(root)
        .standard_filters(false)
        .build()
        .filter_map(|entry| Some(entry.ok()?.into_path()))
        .filter(|path| path.extension().is_some_and(|ending| ending == "py"))
        .collect()
}

/// Reads all files of a tree; returns how many there are and how many have errors.
fn lower_tree(root: &Path) -> (usize, usize) {
    let (mut n_files, mut n_broken) = (0, 0);
    for path in python_files(root) {
        let Ok(text) = std::fs::read_to_string(&path) else { continue };
        let module = lower(&text);
        check_spans(&text, &module);
        n_files += 1;
        n_broken += usize::from(!module.errors.is_empty());
    }
    (n_files, n_broken)
}

pub(in crate::python) fn torch() -> Option<PathBuf> {
    let cache = std::env::var_os("XDG_CACHE_HOME").map(PathBuf::from);
    let cache = cache.or_else(|| Some(PathBuf::from(std::env::var_os("HOME")?).join(".cache")))?;
    let lib = cache.join("ddp-lint/torch-2.13.0/venv/lib");
    let pythons = std::fs::read_dir(lib).ok()?.flatten();
    pythons.map(|python| python.path().join("site-packages/torch")).find(|torch| torch.is_dir())
}

#[test]
fn torch_itself_is_read_without_errors() {
    let Some(torch) = torch() else {
        eprintln!("skipped: torch is not installed (cargo x setup)");
        return;
    };
    for folder in ["nn", "distributed", "utils/data", "optim"] {
        let (n_files, n_broken) = lower_tree(&torch.join(folder));
        assert!(n_files > 20, "{folder}");
        assert_eq!(n_broken, 0, "{folder}");
    }
}

#[test]
fn whole_programs_are_read_without_errors() {
    let cases = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../shared/cases");
    if !cases.is_dir() {
        eprintln!("skipped: ../shared/cases is absent");
        return;
    }
    let (n_files, n_broken) = lower_tree(&cases);
    assert!(n_files > 100);
    assert_eq!(n_broken, 0);
}
