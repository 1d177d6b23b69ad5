//! Types as expressions: references fall away, generic arguments are an `Index`.

use super::{Lower, Spanned, name_of, node};
use crate::model::{CollectionKind, Expr, ExprKind, Name, Span};

type Bounds = syn::punctuated::Punctuated<syn::TypeParamBound, syn::Token![+]>;

impl Lower<'_> {
    pub(super) fn ty(&mut self, ty: &syn::Type) -> Spanned {
        match ty {
            syn::Type::Path(ty) if ty.qself.is_some() => self.path(ty.qself.as_ref(), &ty.path),
            syn::Type::Path(ty) => self.type_path(&ty.path),
            syn::Type::Reference(ty) => {
                let (expr, outer) = self.ty(&ty.elem);
                let start = self.at(ty.and_token.span);
                (expr, start.to(outer))
            }
            syn::Type::Ptr(ty) => {
                let (expr, outer) = self.ty(&ty.elem);
                let start = self.at(ty.star_token.span);
                (expr, start.to(outer))
            }
            syn::Type::Paren(ty) => {
                let (expr, _) = self.ty(&ty.elem);
                (expr, self.group(ty.paren_token.span))
            }
            syn::Type::Group(ty) => self.ty(&ty.elem),
            syn::Type::Slice(ty) => self.list_type(&ty.elem, self.group(ty.bracket_token.span)),
            syn::Type::Array(ty) => self.list_type(&ty.elem, self.group(ty.bracket_token.span)),
            syn::Type::Tuple(ty) => {
                let items = ty.elems.iter().map(|ty| self.ty(ty).0).collect();
                let kind = ExprKind::Collection { kind: CollectionKind::Tuple, items };
                node(self.group(ty.paren_token.span), kind)
            }
            syn::Type::ImplTrait(ty) => self.bounds(ty.bounds.iter(), self.at(ty.impl_token.span)),
            syn::Type::TraitObject(ty) => {
                let start = ty.dyn_token.map_or(Span::default(), |token| self.at(token.span));
                self.bounds(ty.bounds.iter(), start)
            }
            syn::Type::FnPtr(ty) => {
                let start = self.at(ty.fn_token.span);
                let mut outer = start.to(self.group(ty.paren_token.span));
                if let syn::ReturnType::Type(_, ty) = &ty.output {
                    outer = outer.to(self.ty(ty).1);
                }
                node(outer, ExprKind::Opaque(Vec::new()))
            }
            syn::Type::Infer(ty) => {
                let span = self.at(ty.underscore_token.span);
                node(span, ExprKind::Name(Name::new("_")))
            }
            syn::Type::Never(ty) => node(self.at(ty.bang_token.span), ExprKind::Opaque(Vec::new())),
            syn::Type::Macro(ty) => {
                let span = self.macro_span(&ty.mac);
                node(span, ExprKind::Opaque(Vec::new()))
            }
            syn::Type::Verbatim(tokens) => {
                node(self.tokens_span(tokens), ExprKind::Opaque(Vec::new()))
            }
            _ => node(Span::default(), ExprKind::Opaque(Vec::new())),
        }
    }

    fn list_type(&mut self, element: &syn::Type, span: Span) -> Spanned {
        let items = vec![self.ty(element).0];
        node(span, ExprKind::Collection { kind: CollectionKind::List, items })
    }

    /// The first trait of several; markers and lifetimes come behind it.
    fn bounds<'b>(
        &mut self,
        bounds: impl Iterator<Item = &'b syn::TypeParamBound>,
        start: Span,
    ) -> Spanned {
        let mut first: Option<Expr> = None;
        let mut outer = start;
        for bound in bounds {
            let span = match bound {
                syn::TypeParamBound::Trait(bound) => {
                    let (expr, mut span) = self.type_path(&bound.path);
                    if let Some(paren) = bound.paren_token {
                        span = self.group(paren.span);
                    }
                    first.get_or_insert(expr);
                    span
                }
                syn::TypeParamBound::Lifetime(lifetime) => self.at(lifetime.ident.span()),
                syn::TypeParamBound::Verbatim(tokens) => self.tokens_span(tokens),
                syn::TypeParamBound::PreciseCapture(capture) => {
                    self.at(capture.use_token.span).to(self.at(capture.gt_token.spans[0]))
                }
                _ => continue,
            };
            outer = if outer == Span::default() { span } else { outer.to(span) };
        }
        let expr = first.unwrap_or_else(|| Expr::new(outer, ExprKind::Opaque(Vec::new())));
        (expr, outer)
    }

    pub(super) fn type_path(&mut self, path: &syn::Path) -> Spanned {
        if let Some(bound) = self.bound_of(path) {
            let span = self.at(path.segments[0].ident.span());
            // Generics inside a bound stay names: bounds may run in a circle.
            let scopes = std::mem::take(&mut self.generics);
            let (mut expr, _) = self.type_path(&bound);
            self.generics = scopes;
            respan(&mut expr, span);
            return (expr, span);
        }
        let mut parts = self.absolute_parts(path).into_iter();
        let Some((first, first_span)) = parts.next() else {
            return node(Span::default(), ExprKind::Opaque(Vec::new()));
        };
        let mut expr = Expr::new(first_span, ExprKind::Name(first));
        // Parts before the segments come from `self::` and `super::`; those have no arguments.
        let mut arguments = path.segments.iter().rev().map(|segment| &segment.arguments);
        let mut by_part: Vec<_> = arguments.by_ref().take(parts.len() + 1).collect();
        by_part.resize(parts.len() + 1, &syn::PathArguments::None);
        by_part.reverse();
        expr = self.with_arguments(expr, by_part[0]);
        for ((name, name_span), arguments) in parts.zip(&by_part[1..]) {
            let span = first_span.to(name_span);
            expr = Expr::new(span, ExprKind::Attribute { value: Box::new(expr), name, name_span });
            expr = self.with_arguments(expr, arguments);
        }
        let start = path.leading_colon.map_or(first_span, |colons| self.at(colons.spans[0]));
        let outer = start.to(expr.span);
        (expr, outer)
    }

    fn with_arguments(&mut self, value: Expr, arguments: &syn::PathArguments) -> Expr {
        let (mut items, arguments_span) = match arguments {
            syn::PathArguments::None => return value,
            syn::PathArguments::AngleBracketed(arguments) => {
                let items: Vec<Expr> =
                    arguments.args.iter().filter_map(|arg| self.generic_argument(arg)).collect();
                let open = self.at(arguments.lt_token.spans[0]);
                (items, open.to(self.at(arguments.gt_token.spans[0])))
            }
            // `Fn(A) -> B`
            syn::PathArguments::Parenthesized(arguments) => {
                let mut items: Vec<Expr> =
                    arguments.inputs.iter().map(|input| self.ty(&input.ty).0).collect();
                let mut span = self.group(arguments.paren_token.span);
                if let syn::ReturnType::Type(_, ty) = &arguments.output {
                    let (output, outer) = self.ty(ty);
                    items.push(output);
                    span = span.to(outer);
                }
                (items, span)
            }
        };
        let span = value.span.to(arguments_span);
        let index = match items.len() {
            0 => return Expr { span, ..value },
            1 => items.remove(0),
            _ => Expr::new(
                arguments_span,
                ExprKind::Collection { kind: CollectionKind::Tuple, items },
            ),
        };
        Expr::new(span, ExprKind::Index { value: Box::new(value), index: Box::new(index) })
    }

    fn generic_argument(&mut self, argument: &syn::GenericArgument) -> Option<Expr> {
        match argument {
            syn::GenericArgument::Type(ty) => Some(self.ty(ty).0),
            syn::GenericArgument::AssocType(argument) => Some(self.ty(&argument.ty).0),
            syn::GenericArgument::Const(expr) => Some(self.expr(expr)),
            _ => None,
        }
    }

    /// The bound of the generic that this path names.
    fn bound_of(&self, path: &syn::Path) -> Option<syn::Path> {
        let [segment] = path.segments.iter().collect::<Vec<_>>()[..] else { return None };
        if !segment.arguments.is_none() || path.leading_colon.is_some() {
            return None;
        }
        let text = segment.ident.to_string();
        self.generics.iter().rev().find_map(|scope| scope.get(&text)).cloned()
    }

    pub(super) fn push_generics(&mut self, generics: &syn::Generics) {
        let mut scope = rustc_hash::FxHashMap::default();
        let mut note = |name: String, bounds: &Bounds| {
            let bound = bounds.iter().find_map(|bound| match bound {
                syn::TypeParamBound::Trait(bound) if !is_marker(&bound.path) => Some(&bound.path),
                _ => None,
            });
            if let Some(bound) = bound {
                scope.entry(name).or_insert_with(|| bound.clone());
            }
        };
        for parameter in generics.type_params() {
            note(parameter.ident.to_string(), &parameter.bounds);
        }
        for predicate in generics.where_clause.iter().flat_map(|clause| &clause.predicates) {
            if let syn::WherePredicate::Type(predicate) = predicate
                && let syn::Type::Path(ty) = &predicate.bounded_ty
                && let Some(ident) = ty.path.get_ident()
            {
                note(ident.to_string(), &predicate.bounds);
            }
        }
        self.generics.push(scope);
    }
}

fn is_marker(path: &syn::Path) -> bool {
    path.segments.last().is_some_and(|segment| {
        ["Send", "Sync", "Sized", "Copy", "Clone", "Debug", "Unpin", "Default"]
            .iter()
            .any(|marker| segment.ident == marker)
    })
}

/// Moves a type to the place of the generic that it stands for.
fn respan(expr: &mut Expr, span: Span) {
    expr.span = span;
    match &mut expr.kind {
        ExprKind::Attribute { value, name_span, .. } => {
            *name_span = span;
            respan(value, span);
        }
        ExprKind::Index { value, index } => {
            respan(value, span);
            respan(index, span);
        }
        ExprKind::Collection { items, .. } | ExprKind::Opaque(items) => {
            for item in items {
                respan(item, span);
            }
        }
        _ => {}
    }
}

impl Lower<'_> {
    pub(super) fn return_type(&mut self, output: &syn::ReturnType) -> Option<Expr> {
        match output {
            syn::ReturnType::Default => None,
            syn::ReturnType::Type(_, ty) => Some(self.ty(ty).0),
        }
    }

    pub(super) fn tokens_span(&self, tokens: &proc_macro2::TokenStream) -> Span {
        let mut tokens = tokens.clone().into_iter();
        let Some(first) = tokens.next() else { return Span::default() };
        let first = self.at(first.span());
        tokens.last().map_or(first, |last| first.to(self.at(last.span())))
    }

    pub(super) fn member_name(&self, member: &syn::Member) -> (Name, Span) {
        match member {
            syn::Member::Named(ident) => (name_of(ident), self.at(ident.span())),
            syn::Member::Unnamed(index) => {
                (Name::new(&index.index.to_string()), self.at(index.span))
            }
        }
    }
}
