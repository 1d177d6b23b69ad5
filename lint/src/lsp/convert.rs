//! Between the protocol's words and ours: places, paths, edits.

use std::collections::HashMap;
use std::fmt::Write as _;
use std::path::{Path, PathBuf};

use lsp_types::{
    DocumentChanges, OneOf, OptionalVersionedTextDocumentIdentifier, Position, Range,
    TextDocumentEdit, TextEdit, Uri, WorkspaceEdit,
};

use crate::finding::Edit;
use crate::lines::{self, Lines, Unit};
use crate::model::Span;

/// The place of a span, in the columns that the client counts.
pub(super) fn range(lines: &Lines<'_>, span: Span, unit: Unit) -> Range {
    Range { start: position(lines, span.start, unit), end: position(lines, span.end, unit) }
}

fn position(lines: &Lines<'_>, offset: u32, unit: Unit) -> Position {
    let position = lines.position(offset, unit);
    Position { line: position.line - 1, character: position.column - 1 }
}

/// The byte offset of a position; whatever lies outside the text is clamped.
pub(super) fn offset(lines: &Lines<'_>, position: Position, unit: Unit) -> u32 {
    let line = position.line.saturating_add(1);
    let column = position.character.saturating_add(1);
    lines.offset(lines::Position { line, column }, unit)
}

/// The bytes of a range; a range that ends before it starts is empty.
pub(super) fn span(lines: &Lines<'_>, range: Range, unit: Unit) -> Span {
    let start = offset(lines, range.start, unit);
    Span { start, end: offset(lines, range.end, unit).max(start) }
}

/// The path of a `file:` URI; others have none.
pub(super) fn path(uri: &Uri) -> Option<PathBuf> {
    let rest = uri.as_str().strip_prefix("file://")?;
    // A host may be named, and is this one.
    let path = &rest[rest.find('/')?..];
    let path = path.split(['?', '#']).next()?;
    let bytes = percent_decoded(path)?;
    let path = String::from_utf8(bytes).ok()?;
    let is_drive = path.as_bytes().get(2) == Some(&b':') && cfg!(windows);
    Some(PathBuf::from(if is_drive { &path[1..] } else { &path }))
}

fn percent_decoded(text: &str) -> Option<Vec<u8>> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let Some((&first, tail)) = rest.split_first() {
        if first == b'%' {
            let digits = std::str::from_utf8(tail.get(..2)?).ok()?;
            bytes.push(u8::from_str_radix(digits, 16).ok()?);
            rest = &tail[2..];
        } else {
            bytes.push(first);
            rest = tail;
        }
    }
    Some(bytes)
}

/// The `file:` URI of an absolute path.
pub(super) fn uri(path: &Path) -> Option<Uri> {
    let path = path.to_string_lossy().replace('\\', "/");
    let mut uri = String::from(if path.starts_with('/') { "file://" } else { "file:///" });
    for byte in path.bytes() {
        if byte.is_ascii_alphanumeric() || b"-._~/:".contains(&byte) {
            uri.push(char::from(byte));
        } else {
            let _ = write!(uri, "%{byte:02X}");
        }
    }
    uri.parse().ok()
}

/// A file that edits go to.
pub(super) struct Target<'t> {
    pub(super) uri: Uri,
    pub(super) lines: Lines<'t>,
    /// Of the open document.
    pub(super) version: Option<i32>,
}

/// The edits as one change of the workspace. `target` gives the file of an edit.
pub(super) fn workspace_edit<'t>(
    edits: &[&Edit],
    target: impl Fn(&Edit) -> Option<Target<'t>>,
    unit: Unit,
    with_versions: bool,
) -> Option<WorkspaceEdit> {
    let mut documents = Vec::new();
    for edits in edits.chunk_by(|a, b| a.site.file == b.site.file) {
        let target = target(edits[0])?;
        let edits: Vec<TextEdit> = edits
            .iter()
            .map(|edit| {
                let range = range(&target.lines, edit.site.span, unit);
                TextEdit { range, new_text: edit.replacement.clone() }
            })
            .collect();
        documents.push((target, edits));
    }
    if !with_versions {
        let changes = documents.into_iter().map(|(target, edits)| (target.uri, edits));
        #[expect(clippy::mutable_key_type, reason = "the protocol's type; no key changes")]
        let changes: HashMap<Uri, Vec<TextEdit>> = changes.collect();
        return Some(WorkspaceEdit { changes: Some(changes), ..WorkspaceEdit::default() });
    }
    let changes = documents.into_iter().map(|(target, edits)| TextDocumentEdit {
        text_document: OptionalVersionedTextDocumentIdentifier {
            uri: target.uri,
            version: target.version,
        },
        edits: edits.into_iter().map(OneOf::Left).collect(),
    });
    let changes = DocumentChanges::Edits(changes.collect());
    Some(WorkspaceEdit { document_changes: Some(changes), ..WorkspaceEdit::default() })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_and_uris_lead_to_each_other() {
        for path in ["/a/b c/ü#?.py", "/a%20b/:x", "/"] {
            assert_eq!(super::path(&uri(Path::new(path)).unwrap()), Some(path.into()), "{path}");
        }
        let of = |uri: &str| path(&uri.parse().unwrap());
        assert_eq!(of("file:///a%2Fb?x=1#y"), Some("/a/b".into()));
        assert_eq!(of("file://localhost/a"), Some("/a".into()));
        assert_eq!(of("untitled:Untitled-1"), None);
        assert_eq!(of("file:///%FF"), None);
    }

    #[test]
    fn places_outside_the_text_are_clamped() {
        let lines = Lines::new("é\n🦀x");
        let at = |line, character| Position { line, character };
        let far = Range { start: at(9, 9), end: at(0, 0) };
        assert_eq!(span(&lines, far, Unit::Utf16), Span { start: 8, end: 8 });
        let max = Range { start: at(0, u32::MAX), end: at(u32::MAX, u32::MAX) };
        assert_eq!(span(&lines, max, Unit::Utf16), Span { start: 2, end: 8 });
        let inside_a_pair = Range { start: at(1, 1), end: at(1, 2) };
        assert_eq!(span(&lines, inside_a_pair, Unit::Utf16), Span { start: 3, end: 7 });
    }
}
