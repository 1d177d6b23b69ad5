//! Bytes to text: byte order marks, declared encodings, files that are no text.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::linter::language_of;
use crate::model::{Language, ParseError, Span};
use crate::python::notebook::{self, Cells};

/// Larger files are generated or data.
const FILE_BYTES_MAX: u64 = 8 << 20;

const BYTE_ORDER_MARK: &[u8] = b"\xef\xbb\xbf";

/// What became of a file.
pub(super) enum Outcome {
    Text(Read),
    /// Left out on purpose: why.
    Skipped(String),
    /// Why.
    Failed(String),
}

#[derive(Debug)]
pub(super) struct Read {
    pub(super) text: Arc<str>,
    pub(super) error: Option<ParseError>,
    pub(super) byte_order_mark: bool,
    pub(super) frozen: Option<&'static str>,
    pub(super) cells: Option<Cells>,
}

/// The text of a file as the linter takes it, with what went wrong. `held` stands for what is on
/// the disk.
pub fn read_text(path: &Path, held: Option<&str>) -> Option<(Arc<str>, Option<ParseError>)> {
    let outcome = match held {
        Some(text) => decode(path, text.as_bytes()),
        None => read(path, &BTreeMap::new()),
    };
    match outcome {
        Outcome::Text(read) => Some((read.text, read.error)),
        Outcome::Skipped(_) | Outcome::Failed(_) => None,
    }
}

pub(super) fn read(path: &Path, overlay: &BTreeMap<PathBuf, Arc<str>>) -> Outcome {
    if let Some(text) = overlay.get(path) {
        return decode(path, text.as_bytes());
    }
    let bytes = std::fs::metadata(path).and_then(|metadata| {
        if metadata.len() > FILE_BYTES_MAX {
            return Ok(None);
        }
        std::fs::read(path).map(Some)
    });
    match bytes {
        Ok(Some(bytes)) => decode(path, &bytes),
        Ok(None) => Outcome::Skipped(format!("larger than {} MiB, left out", FILE_BYTES_MAX >> 20)),
        Err(error) => Outcome::Failed(error.to_string()),
    }
}

fn decode(path: &Path, bytes: &[u8]) -> Outcome {
    let byte_order_mark = bytes.starts_with(BYTE_ORDER_MARK);
    let bytes = bytes.strip_prefix(BYTE_ORDER_MARK).unwrap_or(bytes);
    let mut read =
        Read { text: Arc::from(""), error: None, byte_order_mark, frozen: None, cells: None };
    let error = |at: usize, message: String| Some(ParseError { span: Span::new(at, at), message });
    let path = path.to_string_lossy();
    if let Some(at) = bytes.iter().position(|byte| *byte == 0) {
        read.error = error(0, format!("this is no text: byte {at} is zero"));
        read.frozen = Some("it is no text");
        return Outcome::Text(read);
    }
    if path.ends_with(".ipynb") {
        match notebook::read(bytes) {
            Ok((text, cells)) => (read.text, read.cells) = (text.into(), Some(cells)),
            Err(message) => read.error = error(0, message),
        }
        read.frozen = Some("notebooks are not edited");
        return Outcome::Text(read);
    }
    read.text = match std::str::from_utf8(bytes) {
        Ok(text) => text.into(),
        Err(_) if language_of(&path) == Some(Language::Python) && declares_latin_1(bytes) => {
            read.frozen = Some("it is not encoded in UTF-8");
            bytes.iter().map(|byte| char::from(*byte)).collect::<String>().into()
        }
        Err(wrong) => {
            let at = wrong.valid_up_to();
            read.error = error(at, format!("this is not UTF-8: byte {at} is 0x{:02x}", bytes[at]));
            read.frozen = Some("it is not encoded in UTF-8");
            String::from_utf8_lossy(bytes).into()
        }
    };
    Outcome::Text(read)
}

/// The first two lines hold `coding: latin-1` or another name of it (PEP 263).
fn declares_latin_1(bytes: &[u8]) -> bool {
    let lines = bytes.split(|byte| *byte == b'\n').take(2);
    lines.map(String::from_utf8_lossy).any(|line| {
        let Some((before, after)) = line.split_once("coding") else { return false };
        let Some(after) = after.strip_prefix([':', '=']) else { return false };
        let is_name = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
        let name: String = after.trim_start().chars().take_while(|c| is_name(*c)).collect();
        let name = name.to_ascii_lowercase().replace('_', "-");
        // Windows-1252 differs from Latin-1 in characters that are no part of code.
        let known = ["latin-1", "latin1", "iso-8859-1", "iso8859-1", "iso-8859-15", "cp1252"];
        before.trim_start().starts_with('#') && known.contains(&name.as_str())
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn decoded(path: &str, bytes: &[u8]) -> Read {
        match decode(Path::new(path), bytes) {
            Outcome::Text(read) => read,
            Outcome::Skipped(why) | Outcome::Failed(why) => panic!("{why}"),
        }
    }

    #[test]
    fn a_byte_order_mark_is_taken_off() {
        let read = decoded("a.py", b"\xef\xbb\xbfx = 1");
        assert_eq!((&*read.text, read.byte_order_mark), ("x = 1", true));
        assert!(read.error.is_none() && read.frozen.is_none());
    }

    #[test]
    fn a_declared_encoding_is_honoured() {
        let read =
            decoded("a.py", b"#!/usr/bin/python\n# -*- coding: ISO_8859_1 -*-\nx = '\xe9'\n");
        assert!(read.text.ends_with("x = 'é'\n"));
        assert!(read.error.is_none() && read.frozen.is_some());
        let undeclared = decoded("a.py", b"a = 1\nb = 2\n# coding: latin-1\nx = '\xe9'\n");
        assert!(undeclared.error.is_some());
    }

    #[test]
    fn what_is_no_text_is_an_error_at_its_place() {
        let read = decoded("a.rs", b"// \xff\nfn main() {}\n");
        assert_eq!(read.error.unwrap().span, Span::new(3, 3));
        assert!(read.text.contains("fn main"), "{}", read.text);
        let binary = decoded("a.py", b"\x7fELF\0\0");
        assert_eq!(binary.error.unwrap().message, "this is no text: byte 4 is zero");
        assert_eq!(&*binary.text, "");
    }
}
