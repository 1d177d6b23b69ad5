//! Paths in code and in `use` items.

use proc_macro2::Span as TokenSpan;

use super::{Lower, Spanned, name_of, node};
use crate::model::{Expr, ExprKind, Import, Imported, Literal, Name, Span, Stmt, StmtKind};

impl Lower<'_> {
    /// A path in an expression. Generic arguments are dropped.
    pub(super) fn path(&mut self, qself: Option<&syn::QSelf>, path: &syn::Path) -> Spanned {
        if let Some(qself) = qself {
            return self.qualified_path(qself, path);
        }
        let mut parts = self.absolute_parts(path).into_iter();
        let Some((first, first_span)) = parts.next() else {
            return node(Span::default(), ExprKind::Opaque(Vec::new()));
        };
        let start = path.leading_colon.map_or(first_span, |colons| self.at(colons.spans[0]));
        let is_none = path.segments.len() == 1 && first == "None";
        let kind = if is_none { ExprKind::Literal(Literal::None) } else { ExprKind::Name(first) };
        let mut expr = Expr::new(first_span, kind);
        for (name, name_span) in parts {
            let kind = ExprKind::Attribute { value: Box::new(expr), name, name_span };
            expr = Expr::new(first_span.to(name_span), kind);
        }
        let end = self.path_end(path).unwrap_or(expr.span);
        let outer = start.to(expr.span).to(end);
        (expr, outer)
    }

    /// `<T as Trait>::name` is `T.name`.
    fn qualified_path(&mut self, qself: &syn::QSelf, path: &syn::Path) -> Spanned {
        let start = self.at(qself.lt_token.span);
        let (mut expr, _) = self.ty(&qself.ty);
        for segment in path.segments.iter().skip(qself.position) {
            let name_span = self.at(segment.ident.span());
            let span = start.to(name_span);
            let name = name_of(&segment.ident);
            expr = Expr::new(span, ExprKind::Attribute { value: Box::new(expr), name, name_span });
        }
        let outer = start.to(expr.span).to(self.path_end(path).unwrap_or(start));
        (expr, outer)
    }

    /// Names and places of the segments. `self::` and `super::` are spelled from `crate` on,
    /// since the receiver is called `self`, too.
    pub(super) fn absolute_parts(&self, path: &syn::Path) -> Vec<(Name, Span)> {
        let mut segments = path.segments.iter().peekable();
        let mut parts = Vec::with_capacity(path.segments.len());
        let mut levels_up = None;
        let mut last: Option<TokenSpan> = None;
        if path.segments.len() > 1 {
            while let Some(segment) =
                segments.next_if(|segment| segment.ident == "self" || segment.ident == "super")
            {
                let up = usize::from(segment.ident == "super");
                levels_up = Some(levels_up.unwrap_or(0) + up);
                last = Some(segment.ident.span());
            }
        }
        if let (Some(levels_up), Some(last)) = (levels_up, last) {
            let span = self.at(last);
            let base = self.module_above(levels_up);
            parts.extend(base.split('.').map(|part| (Name::new(part), span)));
        }
        parts.extend(
            segments.map(|segment| (name_of(&segment.ident), self.at(segment.ident.span()))),
        );
        parts
    }

    /// The end of the path with the generic arguments of its last segment.
    fn path_end(&self, path: &syn::Path) -> Option<Span> {
        match &path.segments.last()?.arguments {
            syn::PathArguments::AngleBracketed(arguments) => {
                Some(self.at(arguments.gt_token.spans[0]))
            }
            syn::PathArguments::Parenthesized(arguments) => {
                Some(self.group(arguments.paren_token.span))
            }
            syn::PathArguments::None => None,
        }
    }

    /// The module that many `super`s above. Inline modules are flattened into the file's.
    fn module_above(&self, levels: usize) -> String {
        let mut path = self.module_path;
        for _ in 0..levels.saturating_sub(self.inline) {
            path = path.rsplit_once('.').map_or(path, |(parent, _)| parent);
        }
        path.to_owned()
    }

    pub(super) fn use_item(&mut self, item: &syn::ItemUse, span: Span, out: &mut Vec<Stmt>) {
        let mut leaves = Vec::new();
        collect_leaves(&item.tree, &mut Vec::new(), &mut leaves);
        for leaf in &leaves {
            if let Some(import) = self.import(leaf, item.leading_colon.is_some()) {
                out.push(Stmt { span, kind: StmtKind::Import(import) });
            }
        }
    }

    fn import(&self, leaf: &UseLeaf, is_external: bool) -> Option<Import> {
        let full = self.absolute(&leaf.path, is_external);
        let binding = Name::new(leaf.binding.as_deref().unwrap_or(""));
        if leaf.binding.is_none() {
            return Some(Import {
                module: Name::new(&full),
                level: 0,
                what: Imported::All,
                binding,
            });
        }
        let (module, what) = match full.rsplit_once('.') {
            Some((module, member)) => (module, Imported::Member(Name::new(member))),
            None if full.is_empty() => return None,
            None => (full.as_str(), Imported::Module),
        };
        Some(Import { module: Name::new(module), level: 0, what, binding })
    }

    /// The dotted path of `use` segments from `crate` or an outside crate on.
    fn absolute(&self, path: &[String], is_external: bool) -> String {
        let mut levels_up = None;
        let mut rest = path;
        while let [first, tail @ ..] = rest
            && (first == "self" || first == "super")
        {
            levels_up = Some(levels_up.unwrap_or(0) + usize::from(first == "super"));
            rest = tail;
        }
        let mut parts = Vec::with_capacity(path.len() + 2);
        match (levels_up, rest) {
            (Some(levels_up), _) => parts.push(self.module_above(levels_up)),
            (None, [first, tail @ ..]) if !is_external => {
                // The name may itself come from a `use`; a cycle is an error in Rust.
                parts.push(self.local_names.get(first).cloned().unwrap_or_else(|| first.clone()));
                rest = tail;
            }
            _ => {}
        }
        parts.extend(rest.iter().cloned());
        parts.join(".")
    }

    /// Notes what names mean at the start of a `use` path: modules and types of this file, and
    /// what other `use` items bind.
    pub(super) fn note_names(&mut self, items: &[syn::Item]) {
        let mut leaves = Vec::new();
        for item in items {
            let local = match item {
                syn::Item::Mod(item) => {
                    if let Some((_, items)) = &item.content
                        && !super::items::is_test_only(&item.attrs)
                    {
                        let path = self.module_path.to_owned();
                        self.local_names.insert(name_of(&item.ident).as_str().into(), path);
                        self.note_names(items);
                        continue;
                    }
                    &item.ident
                }
                syn::Item::Enum(item) => &item.ident,
                syn::Item::Use(item) if item.leading_colon.is_none() => {
                    collect_leaves(&item.tree, &mut Vec::new(), &mut leaves);
                    continue;
                }
                _ => continue,
            };
            let local = name_of(local);
            let path = format!("{}.{local}", self.module_path);
            self.local_names.entry(local.as_str().to_owned()).or_insert(path);
        }
        for leaf in leaves {
            let Some(binding) = leaf.binding.filter(|binding| *binding != leaf.path[0]) else {
                continue;
            };
            let path = self.absolute(&leaf.path, false);
            self.local_names.entry(binding).or_insert(path);
        }
    }
}

struct UseLeaf {
    path: Vec<String>,
    /// `None` for a glob.
    binding: Option<String>,
}

fn collect_leaves(tree: &syn::UseTree, path: &mut Vec<String>, leaves: &mut Vec<UseLeaf>) {
    let text = |ident: &proc_macro2::Ident| name_of(ident).as_str().to_owned();
    let mut leaf = |name: Option<&proc_macro2::Ident>, binding: Option<String>| {
        let mut path = path.clone();
        path.extend(name.filter(|name| *name != "self").map(text));
        let binding = binding.or_else(|| path.last().cloned());
        leaves.push(UseLeaf { path, binding });
    };
    match tree {
        syn::UseTree::Path(tree) => {
            path.push(text(&tree.ident));
            collect_leaves(&tree.tree, path, leaves);
            path.pop();
        }
        syn::UseTree::Name(tree) => leaf(Some(&tree.ident), None),
        syn::UseTree::Rename(tree) => leaf(Some(&tree.ident), Some(text(&tree.rename))),
        syn::UseTree::Glob(_) => leaves.push(UseLeaf { path: path.clone(), binding: None }),
        syn::UseTree::Group(tree) => {
            for tree in &tree.items {
                collect_leaves(tree, path, leaves);
            }
        }
    }
}
