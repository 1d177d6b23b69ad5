//! Format strings: text and values, with the names that stand inside the string.
//!
//! The grammar is that of `std::fmt`.

use super::macros::MacroArgument;
use super::{Lower, name_of};
use crate::model::{Expr, ExprKind, FormatPiece, Name, Span};

/// A piece of the text between the quotes. Offsets count from the start of the literal.
#[derive(Debug, PartialEq)]
enum Piece {
    Text(String),
    Next,
    Position(usize),
    Named { name: String, at: usize },
}

impl Lower<'_> {
    /// The place reaches from the string to the last argument.
    pub(super) fn format(&mut self, text: &syn::LitStr, arguments: &[&MacroArgument]) -> Expr {
        let literal = self.at(text.span());
        let source = &self.text[literal.range()];
        let mut span = literal;
        let mut values: Vec<(Option<Name>, Option<Expr>)> = Vec::with_capacity(arguments.len());
        for argument in arguments {
            let lowered = self.macro_argument(argument);
            span = span.to(lowered.span);
            values.push((argument.name.as_ref().map(name_of), Some(lowered.value)));
        }
        let mut pieces = Vec::new();
        let mut next = 0;
        for piece in split(source) {
            let value = match piece {
                Piece::Text(text) => {
                    pieces.push(FormatPiece::Text(text.into()));
                    continue;
                }
                Piece::Next => {
                    next += 1;
                    values.get_mut(next - 1).and_then(|(_, value)| value.take())
                }
                Piece::Position(index) => values.get_mut(index).and_then(|(_, v)| v.take()),
                Piece::Named { name, at } => {
                    let name = Name::new(&name);
                    let given = values.iter_mut().find(|(given, _)| *given == Some(name));
                    if let Some((_, value)) = given {
                        value.take()
                    } else {
                        let start = literal.start as usize + at;
                        let span = Span::new(start, start + name.len());
                        Some(Expr::new(span, ExprKind::Name(name)))
                    }
                }
            };
            // A value that is shown twice is there once: it is computed once.
            pieces.extend(value.map(FormatPiece::Value));
        }
        let unused = values.into_iter().filter_map(|(_, value)| value);
        pieces.extend(unused.map(FormatPiece::Value));
        Expr::new(span, ExprKind::Format(pieces))
    }
}

/// Splits a string literal as it stands in the source, quotes and escapes included.
fn split(source: &str) -> Vec<Piece> {
    let raw = source.starts_with('r');
    let quote = source.find('"').map_or(source.len(), |at| at + 1);
    let end = source.rfind('"').unwrap_or(source.len()).max(quote);
    let inner = &source[quote..end];
    let mut pieces = Vec::new();
    let mut text = String::new();
    let mut rest = inner;
    while let Some(char) = rest.chars().next() {
        let at = quote + inner.len() - rest.len();
        rest = &rest[char.len_utf8()..];
        match char {
            '{' | '}' if rest.starts_with(char) => {
                text.push(char);
                rest = &rest[1..];
            }
            '{' => {
                if !text.is_empty() {
                    pieces.push(Piece::Text(std::mem::take(&mut text)));
                }
                let length = rest.find('}').unwrap_or(rest.len());
                placeholder(&rest[..length], at + 1, &mut pieces);
                rest = rest.get(length + 1..).unwrap_or("");
            }
            '\\' if !raw => rest = escape(rest, &mut text),
            _ => text.push(char),
        }
    }
    if !text.is_empty() {
        pieces.push(Piece::Text(text));
    }
    pieces
}

/// Handles what stands behind a backslash; returns what is left.
fn escape<'s>(rest: &'s str, text: &mut String) -> &'s str {
    let mut chars = rest.chars();
    let Some(char) = chars.next() else { return rest };
    match char {
        'n' => text.push('\n'),
        'r' => text.push('\r'),
        't' => text.push('\t'),
        '0' => text.push('\0'),
        '\n' | '\r' => return chars.as_str().trim_start(),
        'x' => {
            let digits = chars.as_str().get(..2).unwrap_or("");
            let code = u32::from_str_radix(digits, 16).ok().and_then(char::from_u32);
            text.extend(code);
            return &chars.as_str()[digits.len()..];
        }
        'u' => {
            let code = chars.as_str();
            let length = code.find('}').unwrap_or(code.len());
            let digits = code[..length].trim_start_matches('{').replace('_', "");
            text.extend(u32::from_str_radix(&digits, 16).ok().and_then(char::from_u32));
            return code.get(length + 1..).unwrap_or("");
        }
        other => text.push(other),
    }
    chars.as_str()
}

/// `name:spec`, `0:>width$`, `:.*` …: what it takes from the arguments, in that order.
fn placeholder(inner: &str, at: usize, pieces: &mut Vec<Piece>) {
    let (argument, spec) = inner.split_once(':').unwrap_or((inner, ""));
    if spec.contains(".*") {
        // The precision comes first.
        pieces.push(Piece::Next);
    }
    let name = argument.trim();
    let start = at + argument.len() - argument.trim_start().len();
    if name.is_empty() {
        pieces.push(Piece::Next);
    } else if let Ok(index) = name.parse() {
        pieces.push(Piece::Position(index));
    } else {
        let name = name.strip_prefix("r#").unwrap_or(name);
        pieces.push(Piece::Named { name: name.to_owned(), at: start });
    }
    named_counts(spec, at + argument.len() + 1, pieces);
}

/// `width$` and `prec$` of a format spec.
fn named_counts(spec: &str, at: usize, pieces: &mut Vec<Piece>) {
    for (dollar, _) in spec.match_indices('$') {
        let before = &spec[..dollar];
        let start = before
            .rfind(|c: char| !c.is_alphanumeric() && c != '_')
            .map_or(0, |last| last + before[last..].chars().next().map_or(1, char::len_utf8));
        // A fill and its alignment, or the flag `0`, may stand right before a name.
        let name = before[start..].trim_start_matches(|c: char| c.is_ascii_digit());
        if name.is_empty() {
            if let Ok(index) = before[start..].parse() {
                pieces.push(Piece::Position(index));
            }
        } else {
            let at = at + dollar - name.len();
            pieces.push(Piece::Named { name: name.to_owned(), at });
        }
    }
}
