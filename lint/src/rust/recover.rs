//! Parsing that keeps what it can: one broken function body must not lose the other items.
//!
//! Text is only ever replaced by blanks of the same length, so places stay true.

use crate::model::{ParseError, Span};
use crate::rust::lex::{self, Token, TokenKind};

/// Items of a piece of the file that starts at `base`.
pub(super) struct Chunk {
    pub(super) base: usize,
    pub(super) items: Vec<syn::Item>,
    pub(super) attrs: Vec<syn::Attribute>,
}

#[derive(Default)]
pub(super) struct Parsed {
    pub(super) chunks: Vec<Chunk>,
    pub(super) errors: Vec<ParseError>,
    /// Bodies that were blanked out; the functions around them are there, empty.
    pub(super) lost: Vec<Span>,
}

/// More faults than this in one item, and the item is given up.
const ROUNDS_MAX: usize = 16;

pub(super) fn parse(text: &str, scan: &lex::Scan) -> Parsed {
    let text = &without_prefix(text);
    if scan.balanced
        && scan.too_deep_at.is_none()
        && let Ok(file) = parse_file(text, scan.depth)
    {
        let chunk = Chunk { base: 0, items: file.items, attrs: file.attrs };
        return Parsed { chunks: vec![chunk], ..Parsed::default() };
    }
    let mut parsed = Parsed::default();
    for piece in pieces(text, scan.balanced) {
        salvage(&text[piece.range()], piece.start as usize, &mut parsed);
    }
    parsed
}

/// A byte order mark and a `#!` line, blanked out.
fn without_prefix(text: &str) -> String {
    let mut text = text.replacen('\u{feff}', "   ", usize::from(text.starts_with('\u{feff}')));
    let line = text.trim_start();
    if line.starts_with("#!") && !line[2..].trim_start().starts_with('[') {
        let start = text.len() - line.len();
        let end = text[start..].find('\n').map_or(text.len(), |length| start + length);
        blank(&mut text, start..end);
    }
    text
}

fn blank(text: &mut String, range: std::ops::Range<usize>) {
    let blanks: String =
        text[range.clone()].bytes().map(|byte| if byte == b'\n' { '\n' } else { ' ' }).collect();
    text.replace_range(range, &blanks);
}

fn parse_file(text: &str, depth: usize) -> syn::Result<syn::File> {
    with_stack(depth, || syn::parse_str(text))
}

/// Runs the parser on a stack that is large enough for a tree of this depth.
pub(super) fn with_stack<T>(depth: usize, parse: impl FnOnce() -> T) -> T {
    let size = (depth + 32) * LEVEL_BYTES;
    stacker::maybe_grow(size, size, parse)
}

/// Stack that one level of nesting takes in the parser at most.
const LEVEL_BYTES: usize = if cfg!(debug_assertions) { 32 * 1024 } else { 8 * 1024 };

/// The top-level items of a text, roughly: what lies between two item borders.
fn pieces(text: &str, balanced: bool) -> Vec<Span> {
    let tokens: Vec<Token> = lex::tokens(text).collect();
    if tokens.iter().any(|token| token.kind == TokenKind::Endless) {
        // A quote without its other half turns text into strings and strings into text, so
        // only lines can be trusted.
        return split(text, line_starts(text));
    }
    let mut starts = Vec::new();
    let mut depth = 0_usize;
    let mut item = ItemState::default();
    // Doc comments belong to what follows them.
    let mut last_end = 0;
    for token in tokens.iter().filter(|token| !is_comment(token)) {
        let word = token.text(text);
        let at_margin = starts_line(text, token.start);
        if item.ended(token)
            || at_margin && starts_item(word) && !item.only_prefix && (depth == 0 || !balanced)
        {
            starts.push(last_end);
            item = ItemState::default();
            depth = 0;
        }
        match token.kind {
            TokenKind::Open(_) => depth += 1,
            TokenKind::Close(_) => depth = depth.saturating_sub(1),
            _ => {}
        }
        item.token(token, word, depth);
        last_end = token.end;
    }
    split(text, starts)
}

/// Where an item stands while its tokens go by.
#[expect(clippy::struct_excessive_bools, reason = "each is a fact of its own about the item")]
struct ItemState {
    /// Nothing but attributes, visibility and qualifiers so far.
    only_prefix: bool,
    in_attribute: bool,
    /// `use`, `const`, `static`, `type`: braces do not end it.
    needs_semicolon: bool,
    done: bool,
}

impl Default for ItemState {
    fn default() -> Self {
        Self { only_prefix: true, in_attribute: false, needs_semicolon: false, done: false }
    }
}

impl ItemState {
    fn ended(&self, next: &Token) -> bool {
        self.done && !next.is_punct(b';')
    }

    fn token(&mut self, token: &Token, word: &str, depth: usize) {
        if depth == 0 && matches!(token.kind, TokenKind::Close(b']')) && self.in_attribute {
            self.in_attribute = false;
            return;
        }
        if self.only_prefix && token.is_punct(b'#') {
            self.in_attribute = true;
        }
        if depth > 0 || self.in_attribute {
            return;
        }
        match token.kind {
            TokenKind::Punct(b';') => self.done = true,
            TokenKind::Close(b'}') if !self.needs_semicolon => self.done = true,
            TokenKind::Ident => {
                if self.only_prefix || self.needs_semicolon && word == "fn" {
                    self.needs_semicolon = matches!(word, "use" | "const" | "static" | "type");
                }
                self.only_prefix &= matches!(
                    word,
                    "pub" | "crate" | "unsafe" | "async" | "extern" | "default" | "const"
                );
            }
            _ => {}
        }
    }
}

fn is_comment(token: &Token) -> bool {
    matches!(token.kind, TokenKind::Comment { .. })
}

fn starts_line(text: &str, at: usize) -> bool {
    at == 0 || text.as_bytes()[at - 1] == b'\n'
}

fn starts_item(word: &str) -> bool {
    matches!(
        word,
        "#" | "async"
            | "const"
            | "enum"
            | "extern"
            | "fn"
            | "impl"
            | "macro_rules"
            | "mod"
            | "pub"
            | "static"
            | "struct"
            | "trait"
            | "type"
            | "union"
            | "unsafe"
            | "use"
    )
}

fn line_starts(text: &str) -> Vec<usize> {
    let mut starts = Vec::new();
    let mut at = 0;
    let mut attributes_from = None;
    for line in text.split_inclusive('\n') {
        let word_end = line.find(|c: char| !c.is_alphanumeric() && c != '_');
        let word = &line[..word_end.unwrap_or(0)];
        if line.starts_with('#') || line.starts_with("///") {
            attributes_from.get_or_insert(at);
        } else if starts_item(word) {
            starts.push(attributes_from.take().unwrap_or(at));
        } else if !line.trim().is_empty() {
            attributes_from = None;
        }
        at += line.len();
    }
    starts
}

fn split(text: &str, mut starts: Vec<usize>) -> Vec<Span> {
    if starts.first() != Some(&0) {
        starts.insert(0, 0);
    }
    let ends = starts.iter().skip(1).copied().chain([text.len()]);
    let pieces = starts.iter().zip(ends).map(|(&start, end)| Span::new(start, end));
    pieces.filter(|piece| !text[piece.range()].trim().is_empty()).collect()
}

/// Parses one piece, giving up what is broken in it.
fn salvage(piece: &str, base: usize, parsed: &mut Parsed) {
    let mut text = piece.to_owned();
    for _ in 0..ROUNDS_MAX {
        let fault = match try_parse(&text) {
            Ok(file) => {
                parsed.chunks.push(Chunk { base, items: file.items, attrs: file.attrs });
                return;
            }
            Err(fault) => fault,
        };
        let at = fault.span.start as usize;
        let error_span = Span::new(base + at, base + fault.span.end as usize);
        parsed.errors.push(ParseError { span: error_span, message: fault.message });
        match broken_region(&text, at) {
            Some(Region { range, close, is_body }) => {
                if is_body {
                    parsed.lost.push(Span::new(base + range.start, base + range.end));
                }
                let end = range.end;
                blank(&mut text, range);
                if close {
                    text.replace_range(end - 1..end, "}");
                }
            }
            None => return,
        }
    }
}

struct Fault {
    span: Span,
    message: String,
}

fn try_parse(text: &str) -> Result<syn::File, Fault> {
    if let Some(fault) = lexical_fault(text) {
        return Err(fault);
    }
    let scan = lex::scan(text);
    if let Some(at) = scan.too_deep_at {
        let span = Span::new(at, at + 1);
        return Err(Fault { span, message: "this is nested too deeply to be read".into() });
    }
    parse_file(text, scan.depth).map_err(|error| {
        let span = place_of(&error, text);
        Fault { span, message: in_our_words(&error.to_string()) }
    })
}

const NO_TOKEN: &str = "cannot parse string into token stream";

/// At the end of the input `syn` has no place to point at: that is the last token.
fn place_of(error: &syn::Error, text: &str) -> Span {
    let range = error.span().byte_range();
    if error.to_string() == NO_TOKEN {
        let length = text[range.start..].chars().next().map_or(0, char::len_utf8);
        return Span::new(range.start, range.start + length);
    }
    if range.is_empty() || range.end > text.len() {
        return last_token(text);
    }
    Span::new(range.start, range.end)
}

fn in_our_words(message: &str) -> String {
    if message == NO_TOKEN {
        return "rust has no such token".into();
    }
    let message = message.trim_end_matches('.');
    let message = message
        .strip_prefix("unexpected token, ")
        .or(message.strip_prefix("unexpected end of input, "))
        .unwrap_or(message);
    // A list of everything that could stand here helps nobody.
    if message == "unexpected token" || message.matches(", ").count() > EXPECTED_MAX {
        return "this was not expected here".into();
    }
    format!("this does not parse: {}", lower_first(message))
}

const EXPECTED_MAX: usize = 4;

fn lower_first(message: &str) -> String {
    let mut chars = message.chars();
    chars.next().map_or_else(String::new, |first| first.to_lowercase().chain(chars).collect())
}

fn last_token(text: &str) -> Span {
    lex::tokens(text)
        .filter(|token| !is_comment(token))
        .last()
        .map_or(Span::default(), |t| t.span())
}

/// The first bracket without a partner, or a string or comment without an end.
fn lexical_fault(text: &str) -> Option<Fault> {
    let mut open: Vec<Token> = Vec::new();
    for token in lex::tokens(text) {
        let fault = |span, message: String| Some(Fault { span, message });
        match token.kind {
            TokenKind::Open(_) => open.push(token),
            TokenKind::Close(sign) => match open.pop() {
                Some(opened) if lex::closes(text.as_bytes()[opened.start], sign) => {}
                Some(opened) => {
                    let sign = opened.text(text);
                    return fault(opened.span(), format!("this `{sign}` is not closed"));
                }
                None => {
                    return fault(token.span(), format!("this `{}` closes nothing", sign as char));
                }
            },
            TokenKind::Endless => {
                let what = if token.text(text).starts_with('/') { "comment" } else { "string" };
                let span = Span::new(token.start, token.start + 1);
                return fault(span, format!("this {what} has no end"));
            }
            _ => {}
        }
    }
    let opened = open.pop()?;
    let message = format!("this `{}` is not closed", opened.text(text));
    Some(Fault { span: opened.span(), message })
}

struct Region {
    range: std::ops::Range<usize>,
    /// The last byte must become the `}` that is missing.
    close: bool,
    is_body: bool,
}

/// The part of one item to give up so that the rest may parse: the body of the innermost
/// function around the fault, else the member of the `impl`, `trait` or `mod` that holds it.
fn broken_region(text: &str, at: usize) -> Option<Region> {
    let tokens: Vec<Token> = lex::tokens(text).filter(|token| !is_comment(token)).collect();
    if let Some(body) = body_around(text, &tokens, at)
        && !text[body.span.clone()].trim().is_empty()
    {
        return Some(Region { range: body.span, close: !body.closed, is_body: true });
    }
    if tokens.last().is_some_and(|last| last.kind == TokenKind::Endless && last.start == at) {
        return Some(Region { range: at..text.len(), close: false, is_body: false });
    }
    let range = member_around(text, &tokens, at)?;
    Some(Region { range, close: false, is_body: false })
}

struct Body {
    /// Between the braces.
    span: std::ops::Range<usize>,
    closed: bool,
}

/// The body of the innermost function around a place, its braces included. A body that is not
/// closed ends before the next line that is indented no deeper than the line of its `fn`.
fn body_around(text: &str, tokens: &[Token], at: usize) -> Option<Body> {
    let before = tokens.partition_point(|token| token.start < at);
    (0..before).rev().find_map(|index| {
        let named = tokens.get(index + 1).is_some_and(|next| next.kind == TokenKind::Ident);
        if !named || tokens[index].kind != TokenKind::Ident || tokens[index].text(text) != "fn" {
            return None;
        }
        let open = index + body_open(&tokens[index..])?;
        let margin = indentation(text, tokens[index].start);
        let (end, closed) = body_end(text, &tokens[open..], margin);
        let span = tokens[open].end..end;
        (span.start <= at + 1 && at <= end).then_some(Body { span, closed })
    })
}

/// Index of the `{` of the function whose `fn` is the first token; none without a body.
fn body_open(tokens: &[Token]) -> Option<usize> {
    let mut depth = 0_usize;
    for (index, token) in tokens.iter().enumerate() {
        match token.kind {
            TokenKind::Open(b'{') if depth == 0 => return Some(index),
            TokenKind::Punct(b';') if depth == 0 => return None,
            TokenKind::Open(_) => depth += 1,
            TokenKind::Close(_) => depth = depth.checked_sub(1)?,
            _ => {}
        }
    }
    None
}

fn body_end(text: &str, tokens: &[Token], margin: usize) -> (usize, bool) {
    let mut open: Vec<u8> = Vec::new();
    let mut clean = true;
    for token in tokens {
        let outdented = first_of_line(text, token.start)
            && indentation(text, token.start) <= margin
            && token.start > tokens[0].end;
        if outdented && !matches!(token.kind, TokenKind::Open(_)) {
            // By its indentation this line is behind the body.
            let closes = token.kind == TokenKind::Close(b'}');
            return (token.start, closes);
        }
        match token.kind {
            TokenKind::Open(sign) => open.push(sign),
            TokenKind::Close(sign) => {
                clean &= open.pop().is_some_and(|opened| lex::closes(opened, sign));
                if open.is_empty() && clean {
                    return (token.start, true);
                }
            }
            _ => {}
        }
    }
    (text.len(), false)
}

fn first_of_line(text: &str, at: usize) -> bool {
    let before = text.as_bytes()[..at].iter().rev();
    before.copied().find(|byte| !matches!(byte, b' ' | b'\t')).is_none_or(|byte| byte == b'\n')
}

fn indentation(text: &str, at: usize) -> usize {
    let line = text[..at].rfind('\n').map_or(0, |at| at + 1);
    text[line..].len() - text[line..].trim_start_matches([' ', '\t']).len()
}

/// The member of the outermost braces that holds a place.
fn member_around(text: &str, tokens: &[Token], at: usize) -> Option<std::ops::Range<usize>> {
    let first = tokens.first()?;
    let keyword = tokens.iter().find(|token| {
        matches!(token.text(text), "impl" | "trait" | "mod" | "fn" | "struct" | "enum" | "use")
    })?;
    if !matches!(keyword.text(text), "impl" | "trait" | "mod") {
        return None;
    }
    let open = tokens.iter().position(|token| token.kind == TokenKind::Open(b'{'))?;
    let inner_start = tokens[open].end;
    let margin = indentation(text, first.start);
    let (inner_end, closed) = body_end(text, &tokens[open..], margin);
    if !closed || at < inner_start || at >= inner_end {
        return None;
    }
    let inner = &text[inner_start..inner_end];
    let pieces = member_pieces(inner);
    let piece = pieces.iter().rfind(|piece| inner_start + piece.start as usize <= at)?;
    Some(inner_start + piece.start as usize..inner_start + piece.end as usize)
}

/// Members stand at the indentation of the first of them.
fn member_pieces(inner: &str) -> Vec<Span> {
    let Some(first) = lex::tokens(inner).find(|token| !is_comment(token)) else {
        return Vec::new();
    };
    let margin = indentation(inner, first.start);
    let mut starts = Vec::new();
    let mut attributes = false;
    let mut last_end = 0;
    for token in lex::tokens(inner).filter(|token| !is_comment(token)) {
        let at_margin =
            first_of_line(inner, token.start) && indentation(inner, token.start) == margin;
        if at_margin && starts_item(token.text(inner)) {
            if !attributes {
                starts.push(last_end);
            }
            attributes = token.is_punct(b'#');
        }
        last_end = token.end;
    }
    split(inner, starts)
}
