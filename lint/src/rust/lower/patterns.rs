//! Patterns as expressions: names bind, literals and paths test.

use super::{Lower, Spanned, name_of, node};
use crate::model::{
    Argument, BoolOp, CollectionKind, Expr, ExprKind, Literal, Name, Span, Spread, UnaryOp,
};

impl Lower<'_> {
    pub(super) fn pattern(&mut self, pattern: &syn::Pat) -> Spanned {
        stacker::maybe_grow(super::exprs::RED_ZONE, super::exprs::STACK, || {
            self.pattern_here(pattern)
        })
    }

    fn pattern_here(&mut self, pattern: &syn::Pat) -> Spanned {
        match pattern {
            syn::Pat::Ident(pattern) => self.name_pattern(pattern),
            syn::Pat::Wild(pattern) => {
                let span = self.at(pattern.underscore_token.span);
                node(span, ExprKind::Name(Name::new("_")))
            }
            syn::Pat::Rest(pattern) => rest(self.dots(pattern.dot2_token)),
            syn::Pat::Lit(pattern) => self.literal(&pattern.lit),
            syn::Pat::Path(pattern) => self.path_pattern(pattern),
            syn::Pat::Paren(pattern) => {
                let (expr, _) = self.pattern(&pattern.pat);
                (expr, self.group(pattern.paren_token.span))
            }
            syn::Pat::Reference(pattern) => {
                let start = self.at(pattern.and_token.span);
                let (expr, outer) = self.pattern(&pattern.pat);
                (expr, start.to(outer))
            }
            syn::Pat::Type(pattern) => {
                let (expr, outer) = self.pattern(&pattern.pat);
                let (_, ty) = self.ty(&pattern.ty);
                (expr, outer.to(ty))
            }
            syn::Pat::Or(pattern) => self.or_pattern(pattern),
            syn::Pat::Tuple(pattern) => {
                let span = self.group(pattern.paren_token.span);
                self.collection_pattern(CollectionKind::Tuple, &pattern.elems, span)
            }
            syn::Pat::Slice(pattern) => {
                let span = self.group(pattern.bracket_token.span);
                self.collection_pattern(CollectionKind::List, &pattern.elems, span)
            }
            syn::Pat::TupleStruct(pattern) => self.call_pattern(pattern),
            syn::Pat::Struct(pattern) => self.struct_pattern(pattern),
            syn::Pat::Range(pattern) => self.range(pattern),
            syn::Pat::Guard(pattern) => {
                let (left, start) = self.pattern(&pattern.pat);
                let (right, end) = self.spanned(&pattern.guard);
                node(start.to(end), ExprKind::Opaque(vec![left, right]))
            }
            syn::Pat::Macro(pattern) => {
                node(self.macro_span(&pattern.mac), ExprKind::Opaque(Vec::new()))
            }
            syn::Pat::Const(pattern) => {
                let start = self.at(pattern.const_token.span);
                let span = start.to(self.group(pattern.block.brace_token.span));
                node(span, ExprKind::Opaque(Vec::new()))
            }
            syn::Pat::Verbatim(tokens) => {
                node(self.tokens_span(tokens), ExprKind::Opaque(Vec::new()))
            }
            _ => node(Span::default(), ExprKind::Opaque(Vec::new())),
        }
    }

    fn dots(&self, token: syn::Token![..]) -> Span {
        self.at(token.spans[0]).to(self.at(token.spans[1]))
    }

    fn name_pattern(&mut self, pattern: &syn::PatIdent) -> Spanned {
        let span = self.at(pattern.ident.span());
        let start = match (pattern.by_ref, pattern.mutability) {
            (Some(token), _) => self.at(token.span),
            (None, Some(token)) => self.at(token.span),
            (None, None) => span,
        };
        let name = name_of(&pattern.ident);
        if let Some((_, inner)) = &pattern.subpat {
            let target = Box::new(Expr::new(span, ExprKind::Name(name)));
            let (value, end) = self.pattern(inner);
            let kind = ExprKind::Walrus { target, value: Box::new(value) };
            return (Expr::new(span.to(end), kind), start.to(end));
        }
        if name == "None" {
            let kind = ExprKind::Literal(Literal::None);
            return (Expr::new(span, kind), start.to(span));
        }
        let expr = Expr::new(span, ExprKind::Name(name));
        let tests = name.starts_with(char::is_uppercase)
            && pattern.by_ref.is_none()
            && pattern.mutability.is_none();
        // A constant or a variant that a `use` brought in.
        let expr = if tests { Expr::new(span, ExprKind::Opaque(vec![expr])) } else { expr };
        (expr, start.to(span))
    }

    fn path_pattern(&mut self, pattern: &syn::ExprPath) -> Spanned {
        let (expr, outer) = self.path(pattern.qself.as_ref(), &pattern.path);
        match expr.kind {
            ExprKind::Name(_) => node(outer, ExprKind::Opaque(vec![expr])),
            _ => (expr, outer),
        }
    }

    fn or_pattern(&mut self, pattern: &syn::PatOr) -> Spanned {
        let mut span: Option<Span> = pattern.leading_vert.map(|token| self.at(token.span));
        let mut values = Vec::with_capacity(pattern.cases.len());
        for case in &pattern.cases {
            let (value, outer) = self.pattern(case);
            span = Some(span.map_or(outer, |span| span.to(outer)));
            values.push(value);
        }
        node(span.unwrap_or_default(), ExprKind::Bool { op: BoolOp::Or, values })
    }

    fn collection_pattern(
        &mut self,
        kind: CollectionKind,
        elements: &syn::punctuated::Punctuated<syn::Pat, syn::Token![,]>,
        span: Span,
    ) -> Spanned {
        let items = elements.iter().map(|element| self.pattern(element).0).collect();
        node(span, ExprKind::Collection { kind, items })
    }

    fn call_pattern(&mut self, pattern: &syn::PatTupleStruct) -> Spanned {
        let (callee, start) = self.path(pattern.qself.as_ref(), &pattern.path);
        let mut arguments = Vec::with_capacity(pattern.elems.len());
        for element in &pattern.elems {
            let (value, span) = self.pattern(element);
            arguments.push(Argument { name: None, value, spread: Spread::No, span });
        }
        let span = start.to(self.group(pattern.paren_token.span));
        node(span, ExprKind::Call { callee: Box::new(callee), arguments })
    }

    fn struct_pattern(&mut self, pattern: &syn::PatStruct) -> Spanned {
        let (path, start) = self.path(pattern.qself.as_ref(), &pattern.path);
        let mut fields = Vec::with_capacity(pattern.fields.len());
        for field in &pattern.fields {
            let (name, _) = self.member_name(&field.member);
            fields.push((name, self.pattern(&field.pat).0));
        }
        let span = start.to(self.group(pattern.brace_token.span));
        node(span, ExprKind::Construct { path: Box::new(path), fields, base: None })
    }
}

fn rest(span: Span) -> Spanned {
    let name = Expr::new(span, ExprKind::Name(Name::new("_")));
    node(span, ExprKind::Starred(Box::new(name)))
}

/// A negative number in a pattern, which `syn` keeps as one literal.
pub(super) fn negative(literal: Literal, span: Span) -> Spanned {
    let number = Span { start: span.start + 1, end: span.end };
    let value = Box::new(Expr::new(number, ExprKind::Literal(literal)));
    node(span, ExprKind::Unary { op: UnaryOp::Minus, value })
}
