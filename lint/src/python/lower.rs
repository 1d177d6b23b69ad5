//! Lowers Python text to the program model. Never fails: what cannot be read is left out.
//!
//! What the model has no word for becomes its nearest word: `yield from x` yields a `Starred`,
//! a bare string (a docstring) is a `Pass`, `type X = ..` assigns, `except*` is `except`.

mod expr;
mod map;
mod pattern;
mod recover;
#[cfg(test)]
mod recover_tests;
mod scan;
mod shape;
mod stmt;
#[cfg(test)]
mod tests;
#[cfg(test)]
pub(super) mod tree_tests;

use ruff_python_ast as ast;
use ruff_python_ast::token::{Token, TokenKind};
use ruff_python_parser::Parsed;
use ruff_text_size::{Ranged, TextRange};

use map::Map;
use recover::{ASYNC_STAND_IN, Piece};
pub(super) use scan::{Scan, bracketed};

use crate::model::{
    Class, ClassIndex, Comment, Expr, ExprKind, Function, FunctionIndex, Language, Module, Name,
    ParseError, Span, Stmt,
};

/// Nesting of statements and expressions together that the model keeps. Deeper parts become
/// `Opaque` or are left out, so that walks of the model need no guard of their own. CPython
/// itself stops at 200 open brackets and at 100 levels of indentation.
pub const DEPTH_MAX: u32 = 200;

/// `elif` clauses that are lowered to nested `If`s; longer chains become one `Match`.
const ELIF_MAX: usize = 32;

/// Longer string literals are data, not facts: they are lowered to `Opaque`.
const STRING_BYTES_MAX: usize = 16 * 1024;

/// What is left of the stack before it grows, and by how much it grows.
const STACK_RED_BYTES: usize = 1024 * 1024;
const STACK_GROW_BYTES: usize = 4 * 1024 * 1024;

/// Lowers one file. Spans are byte offsets into `text`.
pub fn lower(text: &str) -> Module {
    stacker::maybe_grow(STACK_RED_BYTES, STACK_GROW_BYTES, || lower_here(text))
}

fn lower_here(text: &str) -> Module {
    let mut lowering = Lowering::new(text);
    if u32::try_from(text.len()).is_err() {
        let message = "this file is larger than 4 GiB: it is not read".to_owned();
        lowering.errors.push(ParseError { span: Span::default(), message });
        return lowering.finish(Vec::new());
    }
    let parsed = recover::parse(text);
    if parsed.errors().is_empty() {
        let body = lowering.piece(Piece { parsed, map: Map::default() });
        return lowering.finish(body);
    }
    drop_deep(parsed);
    let (pieces, errors) = recover::recover(text);
    lowering.errors = errors;
    let body = pieces.into_iter().flat_map(|piece| lowering.piece(piece)).collect();
    lowering.finish(body)
}

/// Dropping a deep tree recurses, so it gets a stack of a fitting size.
fn drop_deep(parsed: Parsed<ast::ModModule>) {
    let depth = shape::depth_bound(parsed.tokens());
    let needed = STACK_RED_BYTES.max(depth.saturating_mul(shape::DROP_BYTES_PER_LEVEL));
    if needed > shape::DROP_BYTES_MAX {
        // A file of megabytes of brackets: losing its memory is better than losing the process.
        std::mem::forget(parsed);
        return;
    }
    stacker::maybe_grow(needed, needed, || drop(parsed));
}

struct Lowering<'a> {
    text: &'a str,
    map: Map,
    functions: Vec<Function>,
    classes: Vec<Class>,
    comments: Vec<Comment>,
    errors: Vec<ParseError>,
    has_main: bool,
    /// The class whose body is being lowered; none inside its functions.
    class: Option<ClassIndex>,
    /// The function whose body is being lowered.
    function: Option<FunctionIndex>,
    depth: u32,
}

impl<'a> Lowering<'a> {
    fn new(text: &'a str) -> Self {
        Self {
            text,
            map: Map::default(),
            functions: Vec::new(),
            classes: Vec::new(),
            comments: Vec::new(),
            errors: Vec::new(),
            has_main: false,
            class: None,
            function: None,
            depth: 0,
        }
    }

    fn finish(self, body: Vec<Stmt>) -> Module {
        Module {
            language: Language::Python,
            body,
            functions: self.functions,
            classes: self.classes,
            impls: Vec::new(),
            comments: self.comments,
            errors: self.errors,
            has_main: self.has_main,
        }
    }

    /// Lowers what was parsed together.
    fn piece(&mut self, piece: Piece) -> Vec<Stmt> {
        self.map = piece.map;
        self.comments(piece.parsed.tokens());
        let body = self.body(&piece.parsed.syntax().body);
        drop_deep(piece.parsed);
        body
    }

    fn comments(&mut self, tokens: &[Token]) {
        for token in tokens.iter().filter(|token| token.kind() == TokenKind::Comment) {
            let span = self.span(token.range());
            let start = span.start as usize;
            let line = self.text[..start].rfind(['\n', '\r']).map_or(0, |end| end + 1);
            let before = self.text[line..start].trim_start_matches('\u{feff}');
            self.comments.push(Comment {
                span,
                text: self.text[span.range()].trim_start_matches('#').trim().into(),
                own_line: before.chars().all(char::is_whitespace),
            });
        }
    }

    fn span(&self, range: TextRange) -> Span {
        self.map.span(range)
    }

    fn name(&self, identifier: &ast::Identifier) -> Name {
        self.id(identifier.as_str())
    }

    fn id(&self, id: &str) -> Name {
        Name::new(if self.map.is_patched() && id == ASYNC_STAND_IN { "async" } else { id })
    }
}

fn opaque(span: Span) -> Expr {
    Expr::new(span, ExprKind::Opaque(Vec::new()))
}
