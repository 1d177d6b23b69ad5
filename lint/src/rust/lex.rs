//! A small lexer of its own: `syn` drops comments and stops at the first fault.
//!
//! It never fails and knows only what comments, bracket pairs and item borders need; it must
//! not be used to understand code.

use crate::model::{Comment, Span};

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum TokenKind {
    Ident,
    Lifetime,
    Literal,
    Punct(u8),
    Open(u8),
    Close(u8),
    /// Doc comments are no comments here: they are told by `doc`.
    Comment {
        doc: bool,
        block: bool,
    },
    /// A string, character or block comment without an end; runs to the end of the text.
    Endless,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Token {
    pub(crate) kind: TokenKind,
    pub(crate) start: usize,
    pub(crate) end: usize,
}

impl Token {
    pub(crate) fn text<'t>(&self, text: &'t str) -> &'t str {
        &text[self.start..self.end]
    }

    pub(crate) fn is_punct(&self, sign: u8) -> bool {
        self.kind == TokenKind::Punct(sign)
    }

    pub(crate) fn span(&self) -> Span {
        Span::new(self.start, self.end)
    }
}

/// All tokens of a text, comments among them, white space left out.
pub(crate) fn tokens(text: &str) -> Tokens<'_> {
    Tokens { text, bytes: text.as_bytes(), at: 0 }
}

pub(crate) struct Tokens<'t> {
    text: &'t str,
    bytes: &'t [u8],
    at: usize,
}

impl Iterator for Tokens<'_> {
    type Item = Token;

    fn next(&mut self) -> Option<Token> {
        while self.bytes.get(self.at).is_some_and(u8::is_ascii_whitespace) {
            self.at += 1;
        }
        let start = self.at;
        let kind = match *self.bytes.get(self.at)? {
            b'/' if self.peek(1) == Some(b'/') => self.line_comment(),
            b'/' if self.peek(1) == Some(b'*') => self.block_comment(),
            b'"' => self.string(1),
            b'\'' => self.quote(1),
            byte if byte.is_ascii_digit() => self.number(),
            byte if is_word(byte) => self.word(),
            byte @ (b'(' | b'[' | b'{') => self.sign(TokenKind::Open(byte)),
            byte @ (b')' | b']' | b'}') => self.sign(TokenKind::Close(byte)),
            byte => self.sign(TokenKind::Punct(byte)),
        };
        Some(Token { kind, start, end: self.at })
    }
}

impl Tokens<'_> {
    fn peek(&self, ahead: usize) -> Option<u8> {
        self.bytes.get(self.at + ahead).copied()
    }

    fn sign(&mut self, kind: TokenKind) -> TokenKind {
        self.at += 1;
        kind
    }

    fn line_comment(&mut self) -> TokenKind {
        let rest = &self.text[self.at..];
        let line = &rest[..rest.find('\n').unwrap_or(rest.len())];
        self.at += line.len();
        // Four slashes and more are an ordinary comment again.
        let doc = line.starts_with("//!") || line.starts_with("///") && !line.starts_with("////");
        TokenKind::Comment { doc, block: false }
    }

    fn block_comment(&mut self) -> TokenKind {
        let rest = &self.text[self.at..];
        let doc = rest.starts_with("/*!")
            || rest.starts_with("/**") && !rest.starts_with("/***") && !rest.starts_with("/**/");
        let mut depth = 0;
        loop {
            match (self.peek(0), self.peek(1)) {
                (Some(b'/'), Some(b'*')) => (depth, self.at) = (depth + 1, self.at + 2),
                (Some(b'*'), Some(b'/')) => (depth, self.at) = (depth - 1, self.at + 2),
                (Some(_), _) => self.at += 1,
                (None, _) => return TokenKind::Endless,
            }
            if depth == 0 {
                return TokenKind::Comment { doc, block: true };
            }
        }
    }

    /// `prefix` bytes, the opening quote among them, stand before the text.
    fn string(&mut self, prefix: usize) -> TokenKind {
        self.at += prefix;
        loop {
            match self.peek(0) {
                Some(b'"') => return self.sign(TokenKind::Literal),
                Some(b'\\') => self.at = self.bytes.len().min(self.at + 2),
                Some(_) => self.at += 1,
                None => return TokenKind::Endless,
            }
        }
    }

    fn raw_string(&mut self, hashes: usize) -> TokenKind {
        let end = format!("\"{}", "#".repeat(hashes));
        let from = self.at + hashes + 1;
        if let Some(length) = self.text[from..].find(&end) {
            self.at = from + length + end.len();
            TokenKind::Literal
        } else {
            self.at = self.bytes.len();
            TokenKind::Endless
        }
    }

    /// A character or a lifetime. `prefix` counts the quote.
    fn quote(&mut self, prefix: usize) -> TokenKind {
        self.at += prefix;
        let mut chars = self.text[self.at..].chars();
        match (chars.next(), chars.next()) {
            (Some('\\'), escaped) => {
                self.at += 1 + escaped.map_or(0, char::len_utf8);
                // The rest of `\x7f` and `\u{1f600}`: it stands on the same line.
                let rest = &self.text.as_bytes()[self.at..];
                let length = rest.iter().position(|&byte| byte == b'\'' || byte == b'\n');
                match length.filter(|&length| rest[length] == b'\'') {
                    Some(length) => {
                        self.at += length + 1;
                        TokenKind::Literal
                    }
                    None => TokenKind::Punct(b'\''),
                }
            }
            (Some(only), Some('\'')) => {
                self.at += only.len_utf8() + 1;
                TokenKind::Literal
            }
            (Some(first), _) if first.is_alphabetic() || first == '_' => {
                while self.peek(0).is_some_and(is_word) {
                    self.at += 1;
                }
                TokenKind::Lifetime
            }
            _ => TokenKind::Punct(b'\''),
        }
    }

    fn number(&mut self) -> TokenKind {
        loop {
            match (self.peek(0), self.peek(1)) {
                (Some(byte), _) if is_word(byte) => self.at += 1,
                (Some(b'.'), Some(next)) if next.is_ascii_digit() => self.at += 1,
                _ => return TokenKind::Literal,
            }
        }
    }

    fn word(&mut self) -> TokenKind {
        let start = self.at;
        while self.peek(0).is_some_and(is_word) {
            self.at += 1;
        }
        let word = &self.text[start..self.at];
        match (word, self.peek(0)) {
            ("b" | "c", Some(b'"')) => self.string(1),
            ("b", Some(b'\'')) => self.quote(1),
            ("r" | "br" | "cr", Some(b'"' | b'#')) => {
                let rest = &self.bytes[self.at..];
                let hashes = rest.iter().take_while(|&&byte| byte == b'#').count();
                match rest.get(hashes) {
                    Some(b'"') => self.raw_string(hashes),
                    // A raw identifier.
                    Some(&byte) if word == "r" && hashes == 1 && is_word(byte) => {
                        self.at += 1;
                        self.word();
                        TokenKind::Ident
                    }
                    _ => TokenKind::Ident,
                }
            }
            _ => TokenKind::Ident,
        }
    }
}

/// Every byte of a character outside ASCII counts as part of a word.
fn is_word(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || byte == b'_' || byte >= 0x80
}

pub(crate) fn comment(text: &str, token: &Token, block: bool) -> Comment {
    let mut inner = token.text(text);
    if block {
        inner = inner.strip_prefix("/*").unwrap_or(inner);
        inner = inner.strip_suffix("*/").unwrap_or(inner);
    } else {
        inner = inner.trim_start_matches('/');
    }
    let before = &text[..token.start];
    let line = &before[before.rfind('\n').map_or(0, |at| at + 1)..];
    Comment {
        span: token.span(),
        text: inner.trim().into(),
        own_line: line.trim_start_matches('\u{feff}').trim().is_empty(),
    }
}

/// What one pass over a text tells.
pub(crate) struct Scan {
    pub(crate) comments: Vec<Comment>,
    /// Brackets pair up, and strings and comments end.
    pub(crate) balanced: bool,
    /// How deep the syntax tree can get at most.
    pub(crate) depth: usize,
    /// Where that passes `DEPTH_MAX`.
    pub(crate) too_deep_at: Option<usize>,
}

/// Deeper trees are refused, since every later pass recurses over them.
pub(crate) const DEPTH_MAX: usize = 1000;

/// Bodies of macro calls do not count for `depth`: they are scanned when they are read.
pub(crate) fn scan(text: &str) -> Scan {
    let mut scan = Scan { comments: Vec::new(), balanced: true, depth: 0, too_deep_at: None };
    let mut depth = Depth::default();
    let mut open: Vec<u8> = Vec::new();
    for token in tokens(text) {
        match token.kind {
            TokenKind::Comment { doc: true, .. } => continue,
            TokenKind::Comment { block, .. } => {
                scan.comments.push(comment(text, &token, block));
                continue;
            }
            TokenKind::Open(sign) => open.push(sign),
            TokenKind::Close(sign) => {
                scan.balanced &= open.pop().is_some_and(|opened| closes(opened, sign));
            }
            TokenKind::Endless => scan.balanced = false,
            _ => {}
        }
        depth.token(&token, token.text(text));
        if depth.most > DEPTH_MAX && scan.too_deep_at.is_none() {
            scan.too_deep_at = Some(token.start);
        }
    }
    scan.balanced &= open.is_empty();
    scan.depth = depth.most;
    scan
}

pub(crate) fn closes(open: u8, close: u8) -> bool {
    matches!((open, close), (b'(', b')') | (b'[', b']') | (b'{', b'}'))
}

/// An upper bound of the depth of the tree, from tokens alone: every sign or keyword can open
/// a level (`!!x`, `a.b.c`, `x + y + z`) that ends at the next `,` or `;` of its bracket pair;
/// a `<` may stay open over commas.
#[derive(Default)]
struct Depth {
    levels: Vec<Level>,
    top: Level,
    total: usize,
    most: usize,
    /// The token before was a word that can name a macro, then its `!`, then (for
    /// `macro_rules! name`) a name.
    head: Head,
    /// Bracket pairs open inside a macro call.
    skipping: usize,
    /// `#` or `#!` of an attribute.
    hash: bool,
    /// The end of the sign before.
    sign_end: usize,
    /// A `}` has just closed: what follows decides whether the statement is over.
    closed_block: bool,
}

#[derive(Default, Clone, Copy)]
struct Level {
    run: usize,
    angles: usize,
}

#[derive(Default, Clone, Copy, PartialEq)]
enum Head {
    #[default]
    No,
    Name,
    Bang,
}

impl Depth {
    fn token(&mut self, token: &Token, text: &str) {
        if self.skipping > 0 {
            // Even what is not parsed is a tree of bracket pairs.
            match token.kind {
                TokenKind::Open(_) => {
                    self.skipping += 1;
                    self.most = self.most.max(self.total + self.skipping);
                }
                TokenKind::Close(_) => self.skipping -= 1,
                _ => {}
            }
            return;
        }
        if std::mem::take(&mut self.closed_block) {
            let word = token.kind == TokenKind::Ident && !matches!(text, "else" | "as");
            if word || token.is_punct(b'#') || token.kind == TokenKind::Lifetime {
                self.reset(true);
            }
        }
        let head = std::mem::take(&mut self.head);
        let hash = std::mem::take(&mut self.hash);
        match token.kind {
            // An attribute is no part of the tree that it stands on.
            TokenKind::Punct(b'#') => self.hash = true,
            TokenKind::Punct(b'!') if hash => self.hash = true,
            TokenKind::Open(_) if hash => self.levels.push(std::mem::take(&mut self.top)),
            TokenKind::Open(_) if head == Head::Bang => {
                self.skipping = 1;
                self.add(1, 0);
            }
            TokenKind::Open(_) => {
                self.add(1, 0);
                self.levels.push(std::mem::take(&mut self.top));
            }
            TokenKind::Close(sign) => {
                self.reset(true);
                self.top = self.levels.pop().unwrap_or_default();
                self.closed_block = sign == b'}';
            }
            TokenKind::Punct(b',') => self.reset(false),
            TokenKind::Punct(b';') => self.reset(true),
            TokenKind::Punct(b'<') => self.add(0, 1),
            TokenKind::Punct(b'!') if head == Head::Name => self.head = Head::Bang,
            TokenKind::Punct(sign) => {
                // `..=`, `=>` and `::` are one sign.
                let joins = self.sign_end == token.start && b"=>.:".contains(&sign);
                self.add(usize::from(!joins), 0);
                self.sign_end = token.end;
            }
            TokenKind::Ident if is_keyword(text) => self.add(1, 0),
            TokenKind::Ident if head == Head::Bang => self.head = Head::Bang,
            TokenKind::Ident => self.head = Head::Name,
            _ => {}
        }
    }

    fn add(&mut self, run: usize, angles: usize) {
        self.top.run += run;
        self.top.angles += angles;
        self.total += run + angles;
        self.most = self.most.max(self.total);
    }

    fn reset(&mut self, angles: bool) {
        self.total -= std::mem::take(&mut self.top.run);
        if angles {
            self.total -= std::mem::take(&mut self.top.angles);
        }
    }
}

fn is_keyword(word: &str) -> bool {
    matches!(
        word,
        "as" | "async"
            | "await"
            | "box"
            | "break"
            | "const"
            | "dyn"
            | "else"
            | "fn"
            | "for"
            | "if"
            | "impl"
            | "in"
            | "let"
            | "loop"
            | "match"
            | "move"
            | "mut"
            | "ref"
            | "return"
            | "static"
            | "unsafe"
            | "while"
            | "yield"
    )
}
