//! Writes edited files: whole or not at all.

use std::fs;
use std::io::{self, Write as _};
use std::path::Path;

use super::FileFacts;

/// Replaces the file's text. The old text stays if writing fails; permissions and links stay
/// as they are.
pub fn write(facts: &FileFacts, text: &str) -> io::Result<()> {
    let mark = if facts.byte_order_mark { "\u{feff}" } else { "" };
    let path = facts.path.canonicalize()?;
    replace(&path, &[mark.as_bytes(), text.as_bytes()])
}

fn replace(path: &Path, parts: &[&[u8]]) -> io::Result<()> {
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    let scratch = path.with_file_name(format!(".{name}.{}.ddp-lint", std::process::id()));
    let written = (|| {
        let mut file = fs::File::create_new(&scratch)?;
        for part in parts {
            file.write_all(part)?;
        }
        file.set_permissions(fs::metadata(path)?.permissions())?;
        fs::rename(&scratch, path)
    })();
    if written.is_err() {
        let _ = fs::remove_file(&scratch);
    }
    written
}
