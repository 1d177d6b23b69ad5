//! A rough look at broken text: where statements begin, which brackets stay open.
//!
//! Knows strings, comments and brackets, not grammar, and must work on any text.

use std::ops::Range;

/// Reads bytes; keeps which brackets are open and where code was seen last.
pub(in crate::python) struct Scan<'a> {
    bytes: &'a [u8],
    at: usize,
    /// Offset of each open bracket and the byte that closes it.
    open: Vec<(usize, u8)>,
    /// End of the last code byte: no space, no comment.
    code_end: usize,
}

impl<'a> Scan<'a> {
    pub(in crate::python) fn new(text: &'a str) -> Self {
        Self { bytes: text.as_bytes(), at: 0, open: Vec::new(), code_end: 0 }
    }

    pub(in crate::python) fn is_balanced(&self) -> bool {
        self.open.is_empty()
    }

    /// Leaves out the text up to `at`.
    pub(in crate::python) fn skip_to(&mut self, at: usize) {
        self.at = at;
    }

    /// Reads to the start of the next line that is not inside a string. `None` at the end.
    pub(in crate::python) fn next_line(&mut self) -> Option<usize> {
        while !self.step()? {}
        Some(self.at)
    }

    /// Reads a byte, a string or a comment; answers whether a line ended. `None` at the end.
    fn step(&mut self) -> Option<bool> {
        let byte = *self.bytes.get(self.at)?;
        self.at += 1;
        match byte {
            b'\n' => return Some(true),
            b'\r' if self.bytes.get(self.at) != Some(&b'\n') => return Some(true),
            b' ' | b'\t' | b'\r' | 0x0c => return Some(false),
            b'#' => {
                self.at += line_length(&self.bytes[self.at..]);
                return Some(false);
            }
            b'\\' => self.at += line_end_length(&self.bytes[self.at..]),
            b'\'' | b'"' => self.string(byte),
            b'(' => self.open.push((self.at - 1, b')')),
            b'[' => self.open.push((self.at - 1, b']')),
            b'{' => self.open.push((self.at - 1, b'}')),
            b')' | b']' | b'}' if self.open.last().is_some_and(|open| open.1 == byte) => {
                self.open.pop();
            }
            _ => {}
        }
        self.code_end = self.at;
        Some(false)
    }

    /// Skips a string whose first quote was read; one without an end ends with its line.
    fn string(&mut self, quote: u8) {
        let rest = &self.bytes[self.at..];
        let triple = rest.starts_with(&[quote, quote]);
        let mut at = if triple { 2 } else { 0 };
        while let Some(&byte) = rest.get(at) {
            at += 1;
            match byte {
                b'\\' => at += line_end_length(&rest[at..]).max(1),
                b'\n' | b'\r' if !triple => {
                    at -= 1;
                    break;
                }
                _ if byte == quote && !triple => break,
                _ if byte == quote && rest[at..].starts_with(&[quote, quote]) => {
                    at += 2;
                    break;
                }
                _ => {}
            }
        }
        self.at = self.bytes.len().min(self.at + at);
    }
}

/// The text begins with a bracket: the length up to where it closes.
pub(in crate::python) fn bracketed(text: &str) -> Option<usize> {
    let mut scan = Scan::new(text);
    scan.step()?;
    while !scan.is_balanced() {
        scan.step()?;
    }
    text.starts_with(['(', '[', '{']).then_some(scan.at)
}

fn line_length(bytes: &[u8]) -> usize {
    bytes.iter().position(|byte| matches!(byte, b'\n' | b'\r')).unwrap_or(bytes.len())
}

fn line_end_length(bytes: &[u8]) -> usize {
    match bytes {
        [b'\r', b'\n', ..] => 2,
        [b'\r' | b'\n', ..] => 1,
        _ => 0,
    }
}

/// Top-level statements with the comments above them, so that one broken statement does not
/// spoil the others. Together they are the whole text.
pub(super) fn chunks(text: &str) -> Vec<Range<usize>> {
    let mut chunks = Vec::new();
    let mut start = 0;
    let mut is_decorated = false;
    let mut scan = Scan::new(text);
    let mut next = Some(text.len() - text.trim_start_matches('\u{feff}').len());
    while let Some(at) = next {
        let line = line_at(text, at);
        let is_code = !line.starts_with([' ', '\t', '\x0c', '#', ')', ']', '}', '\n', '\r']);
        if is_code && !line.is_empty() && (scan.open.is_empty() || is_surely_statement(line)) {
            scan.open.clear();
            if !continues(line) {
                if !is_decorated && !is_blank(&text[start..at]) {
                    chunks.push(start..at);
                    start = at;
                }
                is_decorated = line.starts_with('@');
            }
        }
        next = scan.next_line();
    }
    chunks.push(start..text.len());
    chunks
}

fn is_blank(text: &str) -> bool {
    text.trim_start_matches('\u{feff}').trim().is_empty()
}

/// Belongs to the statement above it.
fn continues(line: &str) -> bool {
    matches!(first_word(line), "else" | "elif" | "except" | "finally" | "case")
}

/// A line that cannot stand inside brackets.
fn is_surely_statement(line: &str) -> bool {
    let code = line.split('#').next().unwrap_or(line).trim();
    match first_word(code) {
        "def" | "class" | "import" | "return" | "try" | "raise" | "del" | "global" | "assert"
        | "pass" | "break" | "continue" | "elif" | "except" | "finally" | "nonlocal" => true,
        "from" => code.contains(" import "),
        "if" | "for" | "while" | "with" | "async" | "else" => code.ends_with(':'),
        _ => code.starts_with('@') || (is_assignment(code) && !code.ends_with([',', '(', '['])),
    }
}

/// Begins with a word that opens a block.
pub(super) fn is_header(text: &str) -> bool {
    matches!(
        first_word(text),
        "if" | "elif" | "while" | "with" | "match" | "case" | "for" | "def" | "class" | "except"
    )
}

fn is_assignment(code: &str) -> bool {
    let Some((target, value)) = code.split_once('=') else { return false };
    let is_target = |c: char| c.is_alphanumeric() || "_.[]'\" ,".contains(c);
    !value.starts_with('=') && target.chars().all(is_target)
}

/// A statement that leaves brackets open.
pub(super) struct Unclosed {
    /// What closes them.
    pub(super) closers: String,
    /// Where the closers belong: behind the last code before the next statement.
    pub(super) at: usize,
    /// Where the statement's first open bracket stands.
    pub(super) opener: usize,
}

/// The first statement whose brackets are still open where another one surely begins.
pub(super) fn unclosed(text: &str) -> Option<Unclosed> {
    let mut scan = Scan::new(text);
    loop {
        let next = scan.next_line();
        let first = scan.open.first().copied();
        if let Some((opener, _)) = first {
            let ends_here = next.is_none_or(|at| {
                let line = line_at(text, at);
                let first = line_at(text, line_start(text, opener));
                let opens_block = text[..scan.code_end].ends_with(':');
                (opens_block && is_header(first))
                    || (indentation(line) <= indentation(first) && is_surely_statement(line))
            });
            if ends_here {
                let closers = scan.open.iter().rev().map(|open| char::from(open.1)).collect();
                return Some(Unclosed { closers, at: scan.code_end, opener });
            }
        }
        next?;
    }
}

/// The block of this header stands behind it on the same line.
pub(super) fn has_inner_colon(header: &str) -> bool {
    let mut depth = 0;
    header.bytes().any(|byte| {
        match byte {
            b'(' | b'[' | b'{' => depth += 1,
            b')' | b']' | b'}' => depth -= 1,
            _ => {}
        }
        byte == b':' && depth == 0
    })
}

pub(super) fn line_start(text: &str, at: usize) -> usize {
    text[..at].rfind(['\n', '\r']).map_or(0, |end| end + 1)
}

/// From `at` to the end of its line, without the line end.
pub(super) fn line_at(text: &str, at: usize) -> &str {
    &text[at..at + line_length(&text.as_bytes()[at..])]
}

pub(super) fn indentation(line: &str) -> usize {
    line.len() - line.trim_start().len()
}

pub(super) fn first_word(text: &str) -> &str {
    let text = text.trim_start();
    let end = text.find(|c: char| !c.is_alphanumeric() && c != '_').unwrap_or(text.len());
    &text[..end]
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check_chunks(text: &str, expected: &[&str]) {
        let found: Vec<_> = chunks(text).into_iter().map(|chunk| &text[chunk]).collect();
        assert_eq!(found, expected);
        assert_eq!(found.concat(), text);
    }

    #[test]
    fn chunks_are_top_level_statements() {
        check_chunks("", &[""]);
        check_chunks("\n\n", &["\n\n"]);
        check_chunks("a\nb\n", &["a\n", "b\n"]);
        check_chunks("\u{feff}a\r\nb", &["\u{feff}a\r\n", "b"]);
        check_chunks("if a:\n  b\nelse:\n  c\nd", &["if a:\n  b\nelse:\n  c\n", "d"]);
        check_chunks("@a\n@b\ndef f():\n  x\ny", &["@a\n@b\ndef f():\n  x\n", "y"]);
        check_chunks("f(\na,\nb=1,\n)\nc", &["f(\na,\nb=1,\n)\n", "c"]);
        check_chunks("x = '''\na\n'''\ny", &["x = '''\na\n'''\n", "y"]);
        check_chunks("x = 1 + \\\ny\nz", &["x = 1 + \\\ny\n", "z"]);
        check_chunks("x = '('\ny  # (\nz", &["x = '('\n", "y  # (\n", "z"]);
    }

    #[test]
    fn open_brackets_end_with_a_sure_statement() {
        check_chunks("x = (1\ny = 2\n", &["x = (1\n", "y = 2\n"]);
        check_chunks("if (a:\n b\nelse:\n c\nd", &["if (a:\n b\nelse:\n c\n", "d"]);
        check_chunks("x = (1\nclass A: pass\nz", &["x = (1\n", "class A: pass\n", "z"]);
        check_chunks("f(a\nfor a in b\nif c)\nd", &["f(a\nfor a in b\nif c)\n", "d"]);
        check_chunks("f(a\nfor a in b:\n  c", &["f(a\n", "for a in b:\n  c"]);
    }

    #[test]
    fn unclosed_brackets_are_found() {
        let found = |text: &str| {
            unclosed(text).map(|it| [&text[..it.at], &it.closers, &text[it.at..]].concat())
        };
        assert_eq!(found("f(a)\ng([1, 2])"), None);
        assert_eq!(found("f(a # (\ny = 1\n").as_deref(), Some("f(a) # (\ny = 1\n"));
        assert_eq!(found("f(a, [b\n").as_deref(), Some("f(a, [b])\n"));
        assert_eq!(found("f(a,\n  k=1,\n  l=2)\n"), None);
        assert_eq!(found(" f(a,\n y = 1\n").as_deref(), Some(" f(a,)\n y = 1\n"));
        assert_eq!(found("if f(a:\n  g()\n").as_deref(), Some("if f(a:)\n  g()\n"));
    }

    #[test]
    fn brackets_close_outside_strings() {
        assert_eq!(bracketed("(a[')'] + ')') + (b)"), Some("(a[')'] + ')')".len()));
        assert_eq!(bracketed("(a"), None);
        assert_eq!(bracketed("a()"), None);
    }

    #[test]
    fn any_text_is_scanned() {
        for text in ["'", "\"\"\"", "\\", "'\\", "((", "))", "'''\\", "#", "\r", "ä'ö", "'ä\\"] {
            assert_eq!(chunks(text).last().unwrap().end, text.len());
            unclosed(text);
        }
    }
}
