//! The open documents: what the editor holds, which may differ from what is on the disk.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use lsp_types::TextDocumentContentChangeEvent;

use super::convert;
use crate::lines::{Lines, Unit};

#[derive(Clone, Debug)]
pub(super) struct Document {
    pub(super) text: Arc<str>,
    pub(super) version: i32,
}

#[derive(Debug, Default)]
pub(super) struct Documents {
    by_path: BTreeMap<PathBuf, Document>,
}

impl Documents {
    pub(super) fn get(&self, path: &Path) -> Option<&Document> {
        self.by_path.get(path)
    }

    pub(super) fn paths(&self) -> impl Iterator<Item = &PathBuf> {
        self.by_path.keys()
    }

    pub(super) fn open(&mut self, path: PathBuf, text: &str, version: i32) {
        self.by_path.insert(path, Document { text: text.into(), version });
    }

    pub(super) fn close(&mut self, path: &Path) -> bool {
        self.by_path.remove(path).is_some()
    }

    /// Applies changes in order; one without a range replaces the whole text. Changes to a
    /// document that is not open are dropped.
    pub(super) fn change(
        &mut self,
        path: &Path,
        version: i32,
        changes: Vec<TextDocumentContentChangeEvent>,
        unit: Unit,
    ) -> bool {
        let Some(document) = self.by_path.get_mut(path) else { return false };
        let mut text = document.text.to_string();
        for change in changes {
            match change.range {
                None => text = change.text,
                Some(range) => {
                    let span = convert::span(&Lines::new(&text), range, unit);
                    text.replace_range(span.range(), &change.text);
                }
            }
        }
        document.text = text.into();
        document.version = version;
        true
    }

    /// The texts by path.
    pub(super) fn overlay(&self) -> BTreeMap<PathBuf, Arc<str>> {
        let texts = self.by_path.iter();
        texts.map(|(path, document)| (path.clone(), document.text.clone())).collect()
    }
}

#[cfg(test)]
mod tests {
    use lsp_types::{Position, Range};

    use super::*;

    #[test]
    fn changes_apply_one_after_another() {
        let mut documents = Documents::default();
        let path = Path::new("/a.py");
        documents.open(path.to_owned(), "one\r\nzwei 🦀 drei\n", 1);
        let change = |range: Option<[u32; 4]>, text: &str| TextDocumentContentChangeEvent {
            range: range.map(|[line, character, end_line, end]| Range {
                start: Position { line, character },
                end: Position { line: end_line, character: end },
            }),
            range_length: None,
            text: text.to_owned(),
        };
        let changes = vec![
            change(Some([0, 3, 1, 0]), " and "),
            change(Some([0, 13, 0, 15]), "crab"),
            change(Some([7, 0, 9, 9]), "!"),
        ];
        assert!(documents.change(path, 2, changes, Unit::Utf16));
        assert_eq!(&*documents.get(path).unwrap().text, "one and zwei crab drei\n!");
        assert!(documents.change(path, 3, vec![change(None, "new")], Unit::Utf16));
        assert_eq!(&*documents.get(path).unwrap().text, "new");
        assert!(!documents.change(Path::new("/b.py"), 1, Vec::new(), Unit::Utf16));
    }
}
