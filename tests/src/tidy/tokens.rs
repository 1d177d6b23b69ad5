//! Rust source as a flat list of tokens with their lines. Comments are not tokens.

use proc_macro2::{Delimiter, Group, TokenStream, TokenTree};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    Ident,
    Punct,
    Literal,
    Open,
    Close,
}

#[derive(Debug, Clone)]
pub(crate) struct Token {
    pub(crate) kind: Kind,
    pub(crate) text: String,
    /// From 1.
    pub(crate) line: usize,
}

impl Token {
    pub(crate) fn is(&self, text: &str) -> bool {
        self.kind != Kind::Literal && self.text == text
    }

    pub(crate) fn is_string(&self) -> bool {
        self.kind == Kind::Literal && self.text.ends_with(['"', '#'])
    }
}

/// All tokens of a source text; delimiters without text (of macro variables) are left out.
pub(crate) fn tokens(text: &str) -> Result<Vec<Token>, String> {
    let stream: TokenStream = text.parse().map_err(|error| format!("no tokens: {error}"))?;
    let mut flat = Vec::new();
    flatten(stream, &mut flat);
    Ok(flat)
}

fn flatten(stream: TokenStream, flat: &mut Vec<Token>) {
    for tree in stream {
        let line = tree.span().start().line;
        match tree {
            TokenTree::Group(group) => flatten_group(&group, flat),
            TokenTree::Ident(ident) => {
                flat.push(Token { kind: Kind::Ident, text: ident.to_string(), line });
            }
            TokenTree::Punct(punct) => {
                flat.push(Token { kind: Kind::Punct, text: punct.as_char().to_string(), line });
            }
            TokenTree::Literal(literal) => {
                flat.push(Token { kind: Kind::Literal, text: literal.to_string(), line });
            }
        }
    }
}

fn flatten_group(group: &Group, flat: &mut Vec<Token>) {
    let (open, close) = match group.delimiter() {
        Delimiter::Parenthesis => ("(", ")"),
        Delimiter::Brace => ("{", "}"),
        Delimiter::Bracket => ("[", "]"),
        Delimiter::None => return flatten(group.stream(), flat),
    };
    let start = group.span_open().start().line;
    flat.push(Token { kind: Kind::Open, text: open.into(), line: start });
    flatten(group.stream(), flat);
    let end = group.span_close().start().line;
    flat.push(Token { kind: Kind::Close, text: close.into(), line: end });
}

/// Index of the delimiter that closes the one at `open`.
pub(crate) fn closing(tokens: &[Token], open: usize) -> usize {
    let mut depth = 0_usize;
    for (index, token) in tokens.iter().enumerate().skip(open) {
        match token.kind {
            Kind::Open => depth += 1,
            Kind::Close if depth == 1 => return index,
            Kind::Close => depth -= 1,
            _ => {}
        }
    }
    unreachable!("proc-macro2 gives balanced delimiters")
}
