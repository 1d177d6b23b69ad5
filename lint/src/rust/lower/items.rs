//! Items: functions, types, `impl`s, modules and constants.

use super::{Lower, Tail, name_of, stmt};
use crate::model::{
    Argument, Class, ClassIndex, ClassKind, Expr, ExprKind, Field, FunctionIndex, Impl, Import,
    Imported, Name, Parameter, ParameterKind, Span, Spread, Stmt, StmtKind,
};

impl Lower<'_> {
    pub(super) fn items(&mut self, items: &[syn::Item], out: &mut Vec<Stmt>) {
        for item in items {
            self.item(item, out);
        }
    }

    pub(super) fn item(&mut self, item: &syn::Item, out: &mut Vec<Stmt>) {
        if is_test_only(item_attrs(item)) {
            return;
        }
        match item {
            syn::Item::Fn(item) => self.function_item(item, out),
            syn::Item::Struct(item) => {
                let span = self.item_span(&item.attrs, &item.vis, item.struct_token.span);
                let end = match (&item.fields, item.semi_token) {
                    (syn::Fields::Named(fields), _) => self.group(fields.brace_token.span),
                    (_, Some(semi)) => self.at(semi.span),
                    (_, None) => self.at(item.ident.span()),
                };
                let fields = self.fields(&item.fields, "");
                let head = Head { attrs: &item.attrs, ident: &item.ident, span: span.to(end) };
                self.class(&head, ClassKind::Struct, fields, out);
            }
            syn::Item::Union(item) => {
                let span = self.item_span(&item.attrs, &item.vis, item.union_token.span);
                let end = self.group(item.fields.brace_token.span);
                let fields = self.fields(&syn::Fields::Named(item.fields.clone()), "");
                let head = Head { attrs: &item.attrs, ident: &item.ident, span: span.to(end) };
                self.class(&head, ClassKind::Struct, fields, out);
            }
            syn::Item::Enum(item) => self.enum_item(item, out),
            syn::Item::Trait(item) => self.trait_item(item, out),
            syn::Item::Impl(item) => self.impl_item(item, out),
            syn::Item::Mod(item) => self.module_item(item, out),
            syn::Item::Use(item) => {
                let span = self.item_span(&item.attrs, &item.vis, item.use_token.span);
                self.use_item(item, span.to(self.at(item.semi_token.span)), out);
            }
            syn::Item::ExternCrate(item) => self.extern_crate(item, out),
            syn::Item::Macro(item) if item.ident.is_none() => {
                let end = item.semi_token.map(|semi| self.at(semi.span));
                self.item_macro(&item.mac, end, out);
            }
            _ => self.value_item(item, out),
        }
    }

    /// Constants, statics and type aliases: names with a value.
    fn value_item(&mut self, item: &syn::Item, out: &mut Vec<Stmt>) {
        let (ident, ty, value, span) = match item {
            syn::Item::Const(item) => {
                let start = self.item_span(&item.attrs, &item.vis, item.const_token.span);
                let span = start.to(self.at(item.semi_token.span));
                (&item.ident, Some(&*item.ty), Value::Expr(&item.expr), span)
            }
            syn::Item::Static(item) => {
                let start = self.item_span(&item.attrs, &item.vis, item.static_token.span);
                let span = start.to(self.at(item.semi_token.span));
                (&item.ident, Some(&*item.ty), Value::Expr(&item.expr), span)
            }
            syn::Item::Type(item) => {
                let start = self.item_span(&item.attrs, &item.vis, item.type_token.span);
                let span = start.to(self.at(item.semi_token.span));
                (&item.ident, None, Value::Type(&item.ty), span)
            }
            _ => return,
        };
        let name_span = self.at(ident.span());
        let target = Expr::new(name_span, ExprKind::Name(name_of(ident)));
        let assign = self.constant(target, ty, value);
        out.push(stmt(span, assign));
    }

    fn constant(&mut self, target: Expr, ty: Option<&syn::Type>, value: Value<'_>) -> StmtKind {
        let annotation = ty.map(|ty| self.ty(ty).0);
        let value = match value {
            Value::Expr(expr) => self.expr(expr),
            Value::Type(ty) => self.ty(ty).0,
        };
        StmtKind::Assign { targets: vec![target], value: Some(value), annotation }
    }

    /// From the first attribute that is no doc comment, or the visibility, to the keyword.
    fn item_span(
        &self,
        attrs: &[syn::Attribute],
        vis: &syn::Visibility,
        keyword: proc_macro2::Span,
    ) -> Span {
        let mut span = self.at(keyword);
        match vis {
            syn::Visibility::Public(token) => span = span.to(self.at(token.span)),
            syn::Visibility::Restricted(vis) => span = span.to(self.at(vis.pub_token.span)),
            syn::Visibility::Inherited => {}
        }
        match attrs.iter().find(|attr| !is_doc(attr)) {
            Some(attr) => span.to(self.at(attr.pound_token.span)),
            None => span,
        }
    }

    fn function_item(&mut self, item: &syn::ItemFn, out: &mut Vec<Stmt>) {
        let span = self.item_span(&item.attrs, &item.vis, signature_start(&item.sig));
        let span = span.to(self.group(item.block.brace_token.span));
        if self.is_file_level() && item.sig.ident == "main" {
            self.module.has_main = true;
        }
        let index = self.function(&item.sig, &item.block, &item.attrs, span, None);
        out.push(stmt(span, StmtKind::Function(index)));
    }

    fn is_file_level(&self) -> bool {
        self.inline == 0 && self.function_depth == 0
    }

    fn function(
        &mut self,
        signature: &syn::Signature,
        block: &syn::Block,
        attrs: &[syn::Attribute],
        span: Span,
        class: Option<ClassIndex>,
    ) -> FunctionIndex {
        let name_span = self.at(signature.ident.span());
        let index = self.add_function(name_of(&signature.ident), name_span, span);
        self.push_generics(&signature.generics);
        let decorators = self.decorators(attrs);
        let parameters = signature.inputs.iter().map(|input| self.input(input)).collect();
        let returns = self.return_type(&signature.output);
        let loops = std::mem::take(&mut self.loops);
        self.function_depth += 1;
        let body = self.function_body(block, returns.is_some());
        self.function_depth -= 1;
        self.loops = loops;
        self.generics.pop();
        let function = self.function_mut(index);
        function.decorators = decorators;
        function.parameters = parameters;
        function.returns = returns;
        function.body = body;
        function.class = class;
        function.is_async = signature.asyncness.is_some();
        index
    }

    fn function_body(&mut self, block: &syn::Block, returns: bool) -> Vec<Stmt> {
        let mut body = Vec::new();
        let span = self.group(block.brace_token.span);
        if self.lost.iter().any(|lost| lost.start == span.start + 1) {
            // Nothing is known of a body that did not parse.
            let value = Expr::new(span, ExprKind::Opaque(Vec::new()));
            body.push(stmt(span, StmtKind::Return(Some(value))));
            return body;
        }
        self.block(block, if returns { Tail::Return } else { Tail::Drop }, &mut body);
        body
    }

    fn input(&mut self, input: &syn::FnArg) -> Parameter {
        let receiver = match input {
            syn::FnArg::Receiver(receiver) => receiver,
            syn::FnArg::Typed(input) => {
                let pattern = syn::Pat::Type(input.clone());
                return self.parameter(&pattern);
            }
        };
        let mut span = self.at(receiver.self_token.span);
        let mut annotation = None;
        match &receiver.kind {
            syn::ReceiverKind::Reference(token, ..) => span = span.to(self.at(token.span)),
            syn::ReceiverKind::Typed(_, ty) => {
                let (ty, outer) = self.ty(ty);
                span = span.to(outer);
                annotation = Some(ty);
            }
            _ => {}
        }
        let kind = ParameterKind::Positional;
        Parameter { name: Name::new("self"), pattern: None, span, annotation, default: None, kind }
    }

    fn class(
        &mut self,
        head: &Head<'_>,
        kind: ClassKind,
        fields: Vec<Field>,
        out: &mut Vec<Stmt>,
    ) -> ClassIndex {
        let decorators = self.decorators(head.attrs);
        let index = ClassIndex(self.module.classes.len() as u32);
        self.derives(&decorators, head);
        self.module.classes.push(Class {
            name: name_of(head.ident),
            name_span: self.at(head.ident.span()),
            span: head.span,
            bases: Vec::new(),
            decorators,
            fields,
            methods: Vec::new(),
            body: Vec::new(),
            kind,
            variants: Vec::new(),
        });
        out.push(stmt(head.span, StmtKind::Class(index)));
        index
    }

    /// Each derived trait is an `impl` without methods.
    fn derives(&mut self, decorators: &[Expr], head: &Head<'_>) {
        for decorator in decorators {
            let ExprKind::Call { callee, arguments } = &decorator.kind else { continue };
            if !callee.path().is_some_and(|path| path.len() == 1 && path[0] == "derive") {
                continue;
            }
            for argument in arguments {
                let Some(of_trait) = copy_path(&argument.value) else { continue };
                let name_span = self.at(head.ident.span());
                self.module.impls.push(Impl {
                    span: argument.span,
                    target: Expr::new(name_span, ExprKind::Name(name_of(head.ident))),
                    of_trait: Some(of_trait),
                    decorators: Vec::new(),
                    methods: Vec::new(),
                });
            }
        }
    }

    fn fields(&mut self, fields: &syn::Fields, prefix: &str) -> Vec<Field> {
        let mut out = Vec::with_capacity(fields.len());
        for (index, field) in fields.iter().enumerate() {
            let (annotation, outer) = self.ty(&field.ty);
            let (name, span) = match &field.ident {
                Some(ident) => (name_of(ident).as_str().to_owned(), self.at(ident.span())),
                None => (index.to_string(), outer),
            };
            let span = match &field.vis {
                syn::Visibility::Public(token) => self.at(token.span).to(span),
                syn::Visibility::Restricted(vis) => self.at(vis.pub_token.span).to(span),
                syn::Visibility::Inherited => span,
            };
            let name = Name::new(&format!("{prefix}{name}"));
            let decorators = self.decorators(&field.attrs);
            let span = span.to(outer);
            let annotation = Some(annotation);
            out.push(Field { name, span, annotation, default: None, decorators });
        }
        out
    }

    fn enum_item(&mut self, item: &syn::ItemEnum, out: &mut Vec<Stmt>) {
        let span = self.item_span(&item.attrs, &item.vis, item.enum_token.span);
        let mut fields = Vec::new();
        for variant in &item.variants {
            fields.extend(self.fields(&variant.fields, &format!("{}.", name_of(&variant.ident))));
        }
        let span = span.to(self.group(item.brace_token.span));
        let head = Head { attrs: &item.attrs, ident: &item.ident, span };
        let index = self.class(&head, ClassKind::Enum, fields, out);
        let variants = item.variants.iter().map(|variant| name_of(&variant.ident)).collect();
        self.module.classes[index.0 as usize].variants = variants;
    }

    fn trait_item(&mut self, item: &syn::ItemTrait, out: &mut Vec<Stmt>) {
        let start = item.unsafety.map_or(item.trait_token.span, |token| token.span);
        let span = self.item_span(&item.attrs, &item.vis, start);
        let span = span.to(self.group(item.brace_token.span));
        let head = Head { attrs: &item.attrs, ident: &item.ident, span };
        let index = self.class(&head, ClassKind::Trait, Vec::new(), out);
        self.push_generics(&item.generics);
        let bases = item.supertraits.iter().filter_map(|bound| match bound {
            syn::TypeParamBound::Trait(bound) => Some(self.type_path(&bound.path).0),
            _ => None,
        });
        let bases = bases.collect();
        let mut methods = Vec::new();
        for member in &item.items {
            let syn::TraitItem::Fn(method) = member else { continue };
            let Some(block) = &method.default else { continue };
            if is_test_only(&method.attrs) {
                continue;
            }
            let vis = syn::Visibility::Inherited;
            let span = self.item_span(&method.attrs, &vis, signature_start(&method.sig));
            let span = span.to(self.group(block.brace_token.span));
            methods.push(self.function(&method.sig, block, &method.attrs, span, Some(index)));
        }
        self.generics.pop();
        let class = &mut self.module.classes[index.0 as usize];
        class.bases = bases;
        class.methods = methods;
    }

    fn impl_item(&mut self, item: &syn::ItemImpl, out: &mut Vec<Stmt>) {
        let vis = syn::Visibility::Inherited;
        let start = item.unsafety.map_or(item.impl_token.span, |token| token.span);
        let span = self.item_span(&item.attrs, &vis, start);
        let span = span.to(self.group(item.brace_token.span));
        self.push_generics(&item.generics);
        let target = self.ty(&item.self_ty).0;
        let of_trait = item.trait_.as_ref().map(|(path, _)| self.type_path(path).0);
        let decorators = self.decorators(&item.attrs);
        let mut methods = Vec::new();
        for member in &item.items {
            self.impl_member(member, &target, &mut methods, out);
        }
        self.generics.pop();
        self.module.impls.push(Impl { span, target, of_trait, decorators, methods });
    }

    fn impl_member(
        &mut self,
        member: &syn::ImplItem,
        target: &Expr,
        methods: &mut Vec<FunctionIndex>,
        out: &mut Vec<Stmt>,
    ) {
        let (ident, ty, value, span) = match member {
            syn::ImplItem::Fn(method) => {
                if !is_test_only(&method.attrs) {
                    let start = signature_start(&method.sig);
                    let span = self.item_span(&method.attrs, &method.vis, start);
                    let span = span.to(self.group(method.block.brace_token.span));
                    let attrs = &method.attrs;
                    methods.push(self.function(&method.sig, &method.block, attrs, span, None));
                }
                return;
            }
            syn::ImplItem::Const(item) => {
                let start = self.item_span(&item.attrs, &item.vis, item.const_token.span);
                let span = start.to(self.at(item.semi_token.span));
                (&item.ident, Some(&item.ty), Value::Expr(&item.expr), span)
            }
            syn::ImplItem::Type(item) => {
                let start = self.item_span(&item.attrs, &item.vis, item.type_token.span);
                let span = start.to(self.at(item.semi_token.span));
                (&item.ident, None, Value::Type(&item.ty), span)
            }
            _ => return,
        };
        let name_span = self.at(ident.span());
        let Some(mut class) = copy_path(target) else { return };
        place(&mut class, name_span);
        let name = name_of(ident);
        let kind = ExprKind::Attribute { value: Box::new(class), name, name_span };
        let assign = self.constant(Expr::new(name_span, kind), ty, value);
        out.push(stmt(span, assign));
    }

    fn module_item(&mut self, item: &syn::ItemMod, out: &mut Vec<Stmt>) {
        let span = self.item_span(&item.attrs, &item.vis, item.mod_token.span);
        let binding = name_of(&item.ident);
        let (module, end) = match &item.content {
            None => (format!("{}.{binding}", self.module_path), self.at(item.ident.span())),
            Some((brace, _)) => (self.module_path.to_owned(), self.group(brace.span)),
        };
        let end = item.semi.map_or(end, |semi| self.at(semi.span));
        let import =
            Import { module: Name::new(&module), level: 0, what: Imported::Module, binding };
        out.push(stmt(span.to(end), StmtKind::Import(import)));
        if let Some((_, items)) = &item.content {
            self.inline += 1;
            self.items(items, out);
            self.inline -= 1;
        }
    }

    fn extern_crate(&mut self, item: &syn::ItemExternCrate, out: &mut Vec<Stmt>) {
        let start = self.item_span(&item.attrs, &item.vis, item.extern_token.span);
        let module = name_of(&item.ident);
        let module = if module == "self" { Name::new("crate") } else { module };
        let binding = item.rename.as_ref().map_or(module, |(_, rename)| name_of(rename));
        let import = Import { module, level: 0, what: Imported::Module, binding };
        let span = start.to(self.at(item.semi_token.span));
        out.push(stmt(span, StmtKind::Import(import)));
    }

    pub(super) fn decorators(&mut self, attrs: &[syn::Attribute]) -> Vec<Expr> {
        attrs.iter().filter(|attr| !is_doc(attr)).map(|attr| self.decorator(attr)).collect()
    }

    fn decorator(&mut self, attr: &syn::Attribute) -> Expr {
        let (path, start) = self.path(None, attr.meta.path());
        let (arguments, span) = match &attr.meta {
            syn::Meta::Path(_) => return path,
            syn::Meta::NameValue(meta) => {
                let argument = self.argument(&meta.value);
                let span = start.to(argument.span);
                (vec![argument], span)
            }
            syn::Meta::List(meta) => {
                let span = start.to(self.delimiter_span(&meta.delimiter));
                (self.attribute_arguments(&meta.tokens), span)
            }
        };
        Expr::new(span, ExprKind::Call { callee: Box::new(path), arguments })
    }

    fn attribute_arguments(&mut self, tokens: &proc_macro2::TokenStream) -> Vec<Argument> {
        self.macro_arguments(tokens).unwrap_or_else(|| {
            let span = self.tokens_span(tokens);
            let value = Expr::new(span, ExprKind::Opaque(Vec::new()));
            vec![Argument { name: None, value, spread: Spread::No, span }]
        })
    }
}

#[derive(Clone, Copy)]
enum Value<'s> {
    Expr(&'s syn::Expr),
    Type(&'s syn::Type),
}

struct Head<'s> {
    attrs: &'s [syn::Attribute],
    ident: &'s proc_macro2::Ident,
    span: Span,
}

fn is_doc(attr: &syn::Attribute) -> bool {
    attr.path().is_ident("doc")
}

fn signature_start(signature: &syn::Signature) -> proc_macro2::Span {
    let safety = match &signature.safety {
        syn::Safety::Safe(token) => Some(token.span),
        syn::Safety::Unsafe(token) => Some(token.span),
        syn::Safety::Default => None,
    };
    let first = signature.constness.map(|token| token.span);
    let first = first.or(signature.asyncness.map(|token| token.span)).or(safety);
    let abi = signature.abi.as_ref().map(|abi| abi.extern_token.span);
    first.or(abi).unwrap_or(signature.fn_token.span)
}

/// A path without its generic arguments.
fn copy_path(expr: &Expr) -> Option<Expr> {
    let kind = match &expr.kind {
        ExprKind::Name(name) => ExprKind::Name(*name),
        ExprKind::Attribute { value, name, name_span } => {
            let value = Box::new(copy_path(value)?);
            ExprKind::Attribute { value, name: *name, name_span: *name_span }
        }
        ExprKind::Index { value, .. } => return copy_path(value),
        _ => return None,
    };
    Some(Expr::new(expr.span, kind))
}

fn place(path: &mut Expr, span: Span) {
    path.span = span;
    if let ExprKind::Attribute { value, name_span, .. } = &mut path.kind {
        *name_span = span;
        place(value, span);
    }
}

/// Compiled by tests and benches alone.
pub(super) fn is_test_only(attrs: &[syn::Attribute]) -> bool {
    attrs.iter().any(|attr| {
        let path = attr.path();
        if path.is_ident("cfg") {
            return matches!(&attr.meta, syn::Meta::List(meta) if demands_test(&meta.tokens));
        }
        let last = path.segments.last().map(|segment| segment.ident.to_string());
        matches!(last.as_deref(), Some("test" | "bench" | "rstest" | "test_case"))
    })
}

/// `test`, or `all(..)` with it; not `any(test, ..)` and `not(test)`.
fn demands_test(tokens: &proc_macro2::TokenStream) -> bool {
    let mut tokens = tokens.clone().into_iter();
    match (tokens.next(), tokens.next()) {
        (Some(proc_macro2::TokenTree::Ident(ident)), None) => ident == "test",
        (
            Some(proc_macro2::TokenTree::Ident(ident)),
            Some(proc_macro2::TokenTree::Group(group)),
        ) if ident == "all" => {
            let items: Vec<_> = group.stream().into_iter().collect();
            items
                .split(|token| {
                    matches!(token, proc_macro2::TokenTree::Punct(sign) if sign.as_char() == ',')
                })
                .any(|item| demands_test(&item.iter().cloned().collect()))
        }
        _ => false,
    }
}

fn item_attrs(item: &syn::Item) -> &[syn::Attribute] {
    match item {
        syn::Item::Const(item) => &item.attrs,
        syn::Item::Enum(item) => &item.attrs,
        syn::Item::ExternCrate(item) => &item.attrs,
        syn::Item::Fn(item) => &item.attrs,
        syn::Item::Impl(item) => &item.attrs,
        syn::Item::Macro(item) => &item.attrs,
        syn::Item::Mod(item) => &item.attrs,
        syn::Item::Static(item) => &item.attrs,
        syn::Item::Struct(item) => &item.attrs,
        syn::Item::Trait(item) => &item.attrs,
        syn::Item::Type(item) => &item.attrs,
        syn::Item::Union(item) => &item.attrs,
        syn::Item::Use(item) => &item.attrs,
        _ => &[],
    }
}
