//! Lowers Python text to the program model. Never fails: what cannot be read is left out.
//!
//! What the model has no word for becomes its nearest word: `yield from x` yields a `Starred`,
//! a bare string (a docstring) is a `Pass`, `type X = ..` assigns, `except*` is `except`.

mod expr;
mod pattern;
mod shape;
mod stmt;
#[cfg(test)]
mod tests;

use ruff_python_ast::{self as ast, token::TokenKind};
use ruff_python_parser::{Mode, ParseOptions, Parsed, parse_unchecked};
use ruff_text_size::{Ranged, TextRange};

use super::errors;
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
    let parsed = parse_unchecked(text, ParseOptions::from(Mode::Module))
        .try_into_module()
        .expect("module mode gives a module");
    lowering.errors = errors::report(text, parsed.errors());
    lowering.comments(&parsed);
    let body = lowering.body(&parsed.syntax().body);
    drop_deep(parsed);
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

    fn comments(&mut self, parsed: &Parsed<ast::ModModule>) {
        for token in parsed.tokens().iter().filter(|t| t.kind() == TokenKind::Comment) {
            let start = token.start().to_usize();
            let text = self.text[token.range()].trim_start_matches('#').trim();
            let line = self.text[..start].rfind(['\n', '\r']).map_or(0, |end| end + 1);
            let before = self.text[line..start].trim_start_matches('\u{feff}');
            self.comments.push(Comment {
                span: span(token.range()),
                text: text.into(),
                own_line: before.chars().all(char::is_whitespace),
            });
        }
    }
}

fn span(range: TextRange) -> Span {
    Span { start: range.start().to_u32(), end: range.end().to_u32() }
}

fn name(identifier: &ast::Identifier) -> Name {
    Name::new(identifier.as_str())
}

fn opaque(span: Span) -> Expr {
    Expr::new(span, ExprKind::Opaque(Vec::new()))
}
