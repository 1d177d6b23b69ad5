//! From `syn`'s tree to the program model: one pass, no name resolution beyond `use`.
//!
//! Must not fail and must not look at other files.

mod exprs;
mod format;
mod items;
mod macros;
mod paths;
mod patterns;
mod stmts;
mod types;

use rustc_hash::FxHashMap;

use crate::model::{
    Comment, Expr, ExprKind, Function, FunctionIndex, Language, Module, Name, Span, Stmt, StmtKind,
};
use crate::rust::{lex, recover};

/// Lowers one file. `module_path` is its dotted path, `crate` or `crate.a.b`.
pub fn lower(text: &str, module_path: &str) -> Module {
    // Positions are kept per thread and pile up otherwise; nothing of `syn` outlives this call.
    proc_macro2::extra::invalidate_current_thread_spans();
    let scan = lex::scan(text);
    recover::with_stack(scan.depth.min(lex::DEPTH_MAX), || lower_scanned(text, module_path, scan))
}

fn lower_scanned(text: &str, module_path: &str, scan: lex::Scan) -> Module {
    let parsed = recover::parse(text, &scan);
    let mut lower = Lower::new(text, module_path, scan.comments);
    lower.lost = parsed.lost;
    lower.module.errors = parsed.errors;
    let skipped = parsed.chunks.iter().any(|chunk| items::is_test_only(&chunk.attrs));
    if !skipped {
        for chunk in &parsed.chunks {
            lower.note_names(&chunk.items);
        }
        let mut body = Vec::new();
        for chunk in parsed.chunks {
            lower.base = chunk.base;
            lower.items(&chunk.items, &mut body);
        }
        lower.module.body = body;
    }
    lower.module
}

/// An expression, and the place with everything transparent around it: `x` of `(&x)`, and `(&x)`.
type Spanned = (Expr, Span);

struct Lower<'t> {
    text: &'t str,
    /// Where the piece that is being lowered starts in `text`.
    base: usize,
    module: Module,
    module_path: &'t str,
    /// Inline modules around.
    inline: usize,
    /// What a first path segment in a `use` stands for, where this file says so.
    local_names: FxHashMap<String, String>,
    /// Bounds of the generics in scope.
    generics: Vec<FxHashMap<String, syn::Path>>,
    loops: Vec<LoopContext>,
    lost: Vec<Span>,
    macro_depth: usize,
    function_depth: usize,
}

struct LoopContext {
    label: Option<String>,
    /// Takes the value of `break v`.
    value: Option<Name>,
    has_value: bool,
    /// A labelled block, which `break` and `continue` without a label do not mean.
    is_block: bool,
}

impl LoopContext {
    fn is_called(&self, label: &syn::Lifetime) -> bool {
        self.label.as_ref().is_some_and(|own| label.ident == own.as_str())
    }
}

/// What becomes of the value of a tail expression.
#[derive(Clone, Copy, PartialEq)]
enum Tail {
    Drop,
    Value,
    Return,
}

impl<'t> Lower<'t> {
    fn new(text: &'t str, module_path: &'t str, comments: Vec<Comment>) -> Self {
        let module = Module {
            language: Language::Rust,
            body: Vec::new(),
            functions: Vec::new(),
            classes: Vec::new(),
            impls: Vec::new(),
            comments,
            errors: Vec::new(),
            has_main: false,
        };
        Self {
            text,
            base: 0,
            module,
            module_path,
            inline: 0,
            local_names: FxHashMap::default(),
            generics: Vec::new(),
            loops: Vec::new(),
            lost: Vec::new(),
            macro_depth: 0,
            function_depth: 0,
        }
    }

    fn at(&self, span: proc_macro2::Span) -> Span {
        let range = span.byte_range();
        Span::new(self.base + range.start, self.base + range.end)
    }

    fn open(&self, span: proc_macro2::extra::DelimSpan) -> Span {
        self.at(span.open())
    }

    fn group(&self, span: proc_macro2::extra::DelimSpan) -> Span {
        self.at(span.join())
    }

    /// Reserves the place first, so that a function stands before those inside it.
    fn add_function(&mut self, name: Name, name_span: Span, span: Span) -> FunctionIndex {
        let index = FunctionIndex(self.module.functions.len() as u32);
        self.module.functions.push(Function {
            name,
            name_span,
            span,
            parameters: Vec::new(),
            body: Vec::new(),
            decorators: Vec::new(),
            class: None,
            returns: None,
            is_async: false,
            is_generator: false,
        });
        index
    }

    fn function_mut(&mut self, index: FunctionIndex) -> &mut Function {
        &mut self.module.functions[index.0 as usize]
    }
}

fn node(span: Span, kind: ExprKind) -> Spanned {
    (Expr::new(span, kind), span)
}

fn stmt(span: Span, kind: StmtKind) -> Stmt {
    Stmt { span, kind }
}

/// Raw identifiers are called by their plain names.
fn name_of(ident: &proc_macro2::Ident) -> Name {
    let text = ident.to_string();
    Name::new(text.strip_prefix("r#").unwrap_or(&text))
}
