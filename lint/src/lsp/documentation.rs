//! The documentation of rules as files that editors and terminals can open, one per rule.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Mutex;

use lsp_types::Uri;

use super::convert;
use crate::rule::Rule;

/// Where the documentation of each rule lies that was asked for. Each diagnostic names its own, so
/// the disk must not be asked every time.
static KNOWN: Mutex<BTreeMap<&'static str, Option<Uri>>> = Mutex::new(BTreeMap::new());

/// The URI of a rule's documentation; the file is written when it is not there. None when
/// there is no place to write to.
pub(super) fn uri(rule: &Rule) -> Option<Uri> {
    // A panic while the lock was held leaves nothing half done.
    let mut known = KNOWN.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
    known.entry(rule.name).or_insert_with(|| convert::uri(&file(rule)?)).clone()
}

/// The same as a text.
pub fn link(rule: &Rule) -> Option<String> {
    uri(rule).map(|uri| uri.as_str().to_owned())
}

fn file(rule: &Rule) -> Option<PathBuf> {
    let folder = cache_folder()?.join("ddp-lint").join(env!("CARGO_PKG_VERSION")).join("rules");
    let path = folder.join(rule.name).with_extension("md");
    let text = format!("# {}\n\n{}", rule.name, rule.markdown());
    if std::fs::read_to_string(&path).is_ok_and(|old| old == text) {
        return Some(path);
    }
    std::fs::create_dir_all(&folder).ok()?;
    std::fs::write(&path, text).ok()?;
    Some(path)
}

fn cache_folder() -> Option<PathBuf> {
    let set = |name: &str| std::env::var_os(name).filter(|value| !value.is_empty());
    if let Some(folder) = set("XDG_CACHE_HOME") {
        return Some(folder.into());
    }
    if cfg!(windows) {
        return set("LOCALAPPDATA").map(PathBuf::from);
    }
    let home = PathBuf::from(set("HOME")?);
    Some(home.join(if cfg!(target_os = "macos") { "Library/Caches" } else { ".cache" }))
}
