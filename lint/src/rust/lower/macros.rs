//! Macro calls: well-known ones as what they do, others as calls if their body reads as
//! expressions or statements.

use proc_macro2::{Ident, TokenStream};
use syn::Token;
use syn::ext::IdentExt;
use syn::parse::{Parse, ParseStream, Parser};

use super::stmts::value_statement;
use super::{Lower, Spanned, Tail, name_of, node, stmt};
use crate::model::{
    Argument, BoolOp, CollectionKind, CompareOp, Expr, ExprKind, Name, Span, Spread, Stmt, StmtKind,
};
use crate::rust::{lex, recover};

/// Macro calls inside macro calls beyond this are opaque.
const NESTED_MAX: usize = 32;

type Comma<T> = syn::punctuated::Punctuated<T, Token![,]>;

/// `expr`, `name = expr`, `name: expr`, with the `%` and `?` of `tracing` allowed before `expr`.
pub(super) struct MacroArgument {
    pub(super) name: Option<Ident>,
    pub(super) value: syn::Expr,
}

impl Parse for MacroArgument {
    fn parse(input: ParseStream<'_>) -> syn::Result<Self> {
        let named_by_colon = input.peek2(Token![:]) && !input.peek2(Token![::]);
        let named_by_equals =
            input.peek2(Token![=]) && !input.peek2(Token![==]) && !input.peek2(Token![=>]);
        let mut name = None;
        if input.peek(Ident::peek_any) && (named_by_colon || named_by_equals) {
            name = Some(input.call(Ident::parse_any)?);
            if named_by_colon {
                input.parse::<Token![:]>()?;
            } else {
                input.parse::<Token![=]>()?;
            }
        }
        if input.peek(Token![%]) {
            input.parse::<Token![%]>()?;
        } else if input.peek(Token![?]) {
            input.parse::<Token![?]>()?;
        }
        Ok(Self { name, value: input.parse()? })
    }
}

/// `matches!(value, pattern if guard)`
struct Matches {
    value: syn::Expr,
    pattern: syn::Pat,
    guard: Option<syn::Expr>,
}

impl Parse for Matches {
    fn parse(input: ParseStream<'_>) -> syn::Result<Self> {
        let value = input.parse()?;
        input.parse::<Token![,]>()?;
        let pattern = syn::Pat::parse_multi_with_leading_vert(input)?;
        let guard = match input.parse::<Option<Token![if]>>()? {
            Some(_) => Some(input.parse()?),
            None => None,
        };
        input.parse::<Option<Token![,]>>()?;
        Ok(Self { value, pattern, guard })
    }
}

struct Repeat {
    value: syn::Expr,
    count: syn::Expr,
}

impl Parse for Repeat {
    fn parse(input: ParseStream<'_>) -> syn::Result<Self> {
        let value = input.parse()?;
        input.parse::<Token![;]>()?;
        Ok(Self { value, count: input.parse()? })
    }
}

/// The statics of `lazy_static!`.
struct LazyStatics(Vec<LazyStatic>);

struct LazyStatic {
    start: proc_macro2::Span,
    ident: Ident,
    ty: syn::Type,
    value: syn::Expr,
    semi: Token![;],
}

impl Parse for LazyStatics {
    fn parse(input: ParseStream<'_>) -> syn::Result<Self> {
        let mut statics = Vec::new();
        while !input.is_empty() {
            input.call(syn::Attribute::parse_outer)?;
            input.parse::<syn::Visibility>()?;
            let start = input.parse::<Token![static]>()?.span;
            input.parse::<Token![ref]>()?;
            let ident = input.parse()?;
            input.parse::<Token![:]>()?;
            let ty = input.parse()?;
            input.parse::<Token![=]>()?;
            let value = input.parse()?;
            statics.push(LazyStatic { start, ident, ty, value, semi: input.parse()? });
        }
        Ok(Self(statics))
    }
}

impl Lower<'_> {
    pub(super) fn macro_span(&self, mac: &syn::Macro) -> Span {
        let start = mac.path.segments.first().map_or(mac.bang_token.span, |s| s.ident.span());
        self.at(start).to(self.delimiter_span(&mac.delimiter))
    }

    pub(super) fn delimiter_span(&self, delimiter: &syn::MacroDelimiter) -> Span {
        match delimiter {
            syn::MacroDelimiter::Paren(token) => self.group(token.span),
            syn::MacroDelimiter::Brace(token) => self.group(token.span),
            syn::MacroDelimiter::Bracket(token) => self.group(token.span),
        }
    }

    /// Parses the body of a macro, unless it is too deep for that.
    fn parse_body<P: Parser>(&self, parser: P, tokens: &TokenStream) -> Option<P::Output> {
        if tokens.is_empty() {
            return parser.parse2(TokenStream::new()).ok();
        }
        let depth = lex::scan(&self.text[self.tokens_span(tokens).range()]).depth;
        if depth > lex::DEPTH_MAX || self.macro_depth > NESTED_MAX {
            return None;
        }
        recover::with_stack(depth, || parser.parse2(tokens.clone()).ok())
    }

    fn nested<T>(&mut self, lower: impl FnOnce(&mut Self) -> T) -> T {
        self.macro_depth += 1;
        let result = lower(self);
        self.macro_depth -= 1;
        result
    }

    pub(super) fn macro_arguments(&mut self, tokens: &TokenStream) -> Option<Vec<Argument>> {
        let arguments = self.parse_body(Comma::<MacroArgument>::parse_terminated, tokens)?;
        Some(self.nested(|lower| {
            arguments.iter().map(|argument| lower.macro_argument(argument)).collect()
        }))
    }

    pub(super) fn macro_argument(&mut self, argument: &MacroArgument) -> Argument {
        let mut lowered = self.argument(&argument.value);
        if let Some(name) = &argument.name {
            lowered.name = Some(name_of(name));
            lowered.span = self.at(name.span()).to(lowered.span);
        }
        lowered
    }

    /// `end` is the semicolon. True when a statement `Expr` with the value was added.
    pub(super) fn macro_statement(
        &mut self,
        mac: &syn::Macro,
        end: Option<Span>,
        tail: Tail,
        out: &mut Vec<Stmt>,
    ) -> bool {
        let span = self.macro_span(mac);
        let whole = end.map_or(span, |end| span.to(end));
        if let Some(kind) = self.nested(|lower| lower.effect(mac)) {
            out.push(stmt(whole, kind));
            return false;
        }
        let (value, _) = self.macro_expr(mac);
        out.push(value_statement(value, whole, tail));
        tail == Tail::Value
    }

    pub(super) fn macro_expr(&mut self, mac: &syn::Macro) -> Spanned {
        let span = self.macro_span(mac);
        self.nested(|lower| {
            if let Some(kind) = lower.effect(mac) {
                let body = vec![stmt(span, kind)];
                return node(span, ExprKind::Block { body, has_value: false });
            }
            lower.known(mac, span).unwrap_or_else(|| lower.other(mac, span))
        })
    }

    /// Macros that end the function or demand something.
    fn effect(&mut self, mac: &syn::Macro) -> Option<StmtKind> {
        let name = mac.path.segments.last()?.ident.to_string();
        let skipped = match name.as_str() {
            "panic" | "bail" | "unreachable" | "todo" | "unimplemented" => 0,
            "assert" | "debug_assert" | "ensure" => 1,
            "assert_eq" | "assert_ne" | "debug_assert_eq" | "debug_assert_ne" => 2,
            _ => return None,
        };
        let arguments = self.parse_body(Comma::<MacroArgument>::parse_terminated, &mac.tokens)?;
        if arguments.len() < skipped {
            return None;
        }
        let arguments: Vec<&MacroArgument> = arguments.iter().collect();
        let (tested, rest) = arguments.split_at(skipped);
        let mut tested: Vec<Argument> =
            tested.iter().map(|argument| self.macro_argument(argument)).collect();
        let message = self.formatted(rest, true).into_iter().next().map(|first| first.value);
        let second = tested.pop();
        Some(match (tested.pop(), second) {
            (None, None) => StmtKind::Raise(message),
            (None, Some(test)) => StmtKind::Assert { test: test.value, message },
            (Some(left), Some(right)) => {
                let op = if name.ends_with("eq") { CompareOp::Eq } else { CompareOp::NotEq };
                let span = left.span.to(right.span);
                let left = Box::new(left.value);
                let kind = ExprKind::Compare { left, rest: vec![(op, right.value)] };
                StmtKind::Assert { test: Expr::new(span, kind), message }
            }
            (Some(_), None) => return None,
        })
    }

    /// Macros that are syntax for something the model knows.
    fn known(&mut self, mac: &syn::Macro, span: Span) -> Option<Spanned> {
        let name = mac.path.segments.last()?.ident.to_string();
        match name.as_str() {
            "vec" => {
                let list = Comma::<syn::Expr>::parse_terminated;
                if let Some(items) = self.parse_body(list, &mac.tokens) {
                    return Some(self.collection(CollectionKind::List, &items, span));
                }
                let repeat = self.parse_body(Repeat::parse, &mac.tokens)?;
                Some(self.repeat(&repeat.value, &repeat.count, span))
            }
            "format" | "format_args" => {
                let list = Comma::<MacroArgument>::parse_terminated;
                let arguments = self.parse_body(list, &mac.tokens)?;
                let arguments: Vec<&MacroArgument> = arguments.iter().collect();
                let mut text = self.formatted(&arguments, true);
                let is_text = text.len() == 1 && matches!(text[0].value.kind, ExprKind::Format(_));
                is_text.then(|| node(span, text.remove(0).value.kind))
            }
            "matches" => {
                let parts = self.parse_body(Matches::parse, &mac.tokens)?;
                let value = Box::new(self.expr(&parts.value));
                let pattern = Box::new(self.pattern(&parts.pattern).0);
                let test = ExprKind::Let { pattern, value };
                let Some(guard) = &parts.guard else { return Some(node(span, test)) };
                let values = vec![Expr::new(span, test), self.expr(guard)];
                Some(node(span, ExprKind::Bool { op: BoolOp::And, values }))
            }
            _ => None,
        }
    }

    fn other(&mut self, mac: &syn::Macro, span: Span) -> Spanned {
        let list = Comma::<MacroArgument>::parse_terminated;
        let arguments = if let Some(arguments) = self.parse_body(list, &mac.tokens) {
            let arguments: Vec<&MacroArgument> = arguments.iter().collect();
            let skipped = usize::from(name_is(mac, &["write", "writeln"])).min(arguments.len());
            let (before, rest) = arguments.split_at(skipped);
            let mut lowered: Vec<Argument> =
                before.iter().map(|argument| self.macro_argument(argument)).collect();
            lowered.extend(self.formatted(rest, name_is(mac, FORMATTING)));
            lowered
        } else if let Some(statements) = self.parse_body(syn::Block::parse_within, &mac.tokens) {
            let inner = self.tokens_span(&mac.tokens);
            let mut body = Vec::new();
            let block = syn::Block { brace_token: syn::token::Brace::default(), stmts: statements };
            let has_value = self.block(&block, Tail::Value, &mut body);
            let value = Expr::new(inner, ExprKind::Block { body, has_value });
            vec![Argument { name: None, value, spread: Spread::No, span: inner }]
        } else {
            return node(span, ExprKind::Opaque(Vec::new()));
        };
        let callee = Box::new(self.macro_callee(mac));
        node(span, ExprKind::Call { callee, arguments })
    }

    fn macro_callee(&self, mac: &syn::Macro) -> Expr {
        let mut parts = self.absolute_parts(&mac.path);
        if let Some((name, span)) = parts.last_mut() {
            *name = Name::new(&format!("{name}!"));
            *span = span.to(self.at(mac.bang_token.span));
        }
        let mut parts = parts.into_iter();
        let (first, start) = parts.next().unwrap_or((Name::new("!"), self.macro_span(mac)));
        let mut expr = Expr::new(start, ExprKind::Name(first));
        for (name, name_span) in parts {
            let kind = ExprKind::Attribute { value: Box::new(expr), name, name_span };
            expr = Expr::new(start.to(name_span), kind);
        }
        expr
    }

    /// Arguments from the format string on are one `Format`. Without `always` only a text with
    /// a brace counts as a format string.
    fn formatted(&mut self, arguments: &[&MacroArgument], always: bool) -> Vec<Argument> {
        let is_text = |argument: &&MacroArgument| match &argument.value {
            syn::Expr::Lit(syn::ExprLit { lit: syn::Lit::Str(text), .. }) => {
                argument.name.is_none() && (always || text.value().contains('{'))
            }
            _ => false,
        };
        let position = arguments.iter().position(is_text).unwrap_or(arguments.len());
        let (before, rest) = arguments.split_at(position);
        let mut lowered: Vec<Argument> =
            before.iter().map(|argument| self.macro_argument(argument)).collect();
        if let [text, values @ ..] = rest
            && let syn::Expr::Lit(syn::ExprLit { lit: syn::Lit::Str(text), .. }) = &text.value
        {
            let value = self.format(text, values);
            let span = value.span;
            lowered.push(Argument { name: None, value, spread: Spread::No, span });
        }
        lowered
    }

    /// A macro call where items stand.
    pub(super) fn item_macro(&mut self, mac: &syn::Macro, end: Option<Span>, out: &mut Vec<Stmt>) {
        if name_is(mac, &["lazy_static"]) {
            if let Some(statics) = self.parse_body(LazyStatics::parse, &mac.tokens) {
                for item in &statics.0 {
                    self.lazy_static(item, out);
                }
            }
            return;
        }
        let items = |input: ParseStream<'_>| input.parse::<syn::File>();
        match self.parse_body(items, &mac.tokens) {
            Some(file) if !file.items.is_empty() => {
                self.nested(|lower| lower.items(&file.items, out));
            }
            _ => {
                self.macro_statement(mac, end, Tail::Drop, out);
            }
        }
    }

    fn lazy_static(&mut self, item: &LazyStatic, out: &mut Vec<Stmt>) {
        let name_span = self.at(item.ident.span());
        let target = Expr::new(name_span, ExprKind::Name(name_of(&item.ident)));
        let annotation = Some(self.ty(&item.ty).0);
        let value = Some(self.expr(&item.value));
        let span = self.at(item.start).to(self.at(item.semi.span));
        out.push(stmt(span, StmtKind::Assign { targets: vec![target], value, annotation }));
    }
}

/// Their first text is always a format string.
const FORMATTING: &[&str] = &[
    "anyhow", "debug", "eprint", "eprintln", "error", "eyre", "info", "log", "print", "println",
    "trace", "warn", "write", "writeln",
];

fn name_is(mac: &syn::Macro, names: &[&str]) -> bool {
    mac.path.segments.last().is_some_and(|last| names.iter().any(|name| last.ident == name))
}
