//! `#[data_parallel]` itself: adds the derive to a definition, checks the return types of an
//! `impl` block, and says where it belongs otherwise. The item stays as it was written.

use proc_macro2::{Delimiter, Span, TokenStream, TokenTree};
use quote::{format_ident, quote, quote_spanned};
use syn::spanned::Spanned;
use syn::{
    Error, ImplItem, ImplItemFn, Item, ItemImpl, Path, ReturnType, Type, parse_quote_spanned,
};

use crate::ast::Errors;
use crate::{attr, valid, warning};

pub(crate) fn data_parallel(args: &TokenStream, item: TokenStream) -> TokenStream {
    if let Err(error) = attr::check_args(args) {
        let error = error.to_compile_error();
        return quote!(#error #item);
    }
    let krate = attr::crate_path(args);
    if is_definition(&item) {
        let attrs = attr::as_item_attr(args);
        let warnings = warning::stored_devices(&item);
        return quote! {
            #[derive(#krate::DeriveReplicable)]
            #attrs
            #item
            #warnings
        };
    }
    match syn::parse2::<Item>(item.clone()) {
        Ok(Item::Impl(block)) => {
            let checks = implementation(&block, args, &krate);
            quote!(#item #checks)
        }
        Ok(other) => {
            let message = format!(
                "`#[data_parallel]` belongs on the struct or enum that holds the layers, or on an \
                 `impl` block with its `forward`, not on {}",
                noun(&other)
            );
            let error = Error::new(Span::call_site(), message).to_compile_error();
            quote!(#error #item)
        }
        // What does not parse is an error of the compiler already.
        Err(_) => item,
    }
}

/// Whether the item is a struct, an enum or a union, told by its first words: the derive parses it,
/// and once is enough.
fn is_definition(item: &TokenStream) -> bool {
    let mut tokens = item.clone().into_iter().peekable();
    while let Some(token) = tokens.next() {
        match token {
            // An attribute: its brackets are the next token.
            TokenTree::Punct(_) => drop(tokens.next()),
            TokenTree::Ident(word) if word == "pub" => {
                tokens.next_if(|next| matches!(next, TokenTree::Group(_)));
            }
            TokenTree::Ident(word) => {
                return word == "struct"
                    || word == "enum"
                    || word == "union" && matches!(tokens.peek(), Some(TokenTree::Ident(_)));
            }
            // What a macro's `$vis:vis` or `$item:item` stands for.
            TokenTree::Group(group) if group.delimiter() == Delimiter::None => {
                if is_definition(&group.stream()) {
                    return true;
                }
            }
            TokenTree::Group(_) | TokenTree::Literal(_) => return false,
        }
    }
    false
}

fn noun(item: &Item) -> &'static str {
    match item {
        Item::Fn(_) => "a function (a model made of closures goes to `Ddp::new` as it is)",
        Item::Trait(_) => "a trait",
        Item::Mod(_) => "a module",
        Item::Type(_) => "an alias (put it where the type is defined)",
        _ => "this item",
    }
}

/// Code that compiles only if every `forward*` of the block returns tensors.
fn implementation(block: &ItemImpl, args: &TokenStream, krate: &TokenStream) -> TokenStream {
    let mut errors = Errors::default();
    attr::refuse_on_impl(args, &mut errors);
    let mut checks = TokenStream::new();
    for method in block.items.iter().filter_map(forward) {
        let ReturnType::Type(_, ty) = &method.sig.output else {
            errors.push(Error::new(
                method.sig.ident.span(),
                "this forward returns nothing, so no gradient can come back through it; return the \
                 tensors that the loss is made of",
            ));
            continue;
        };
        let found = errors.len();
        valid::output_type(ty, &mut errors);
        if errors.len() == found && !mentions_impl(ty) {
            checks.extend(check(block, method, ty, krate));
        }
    }
    let errors = errors.finish().err().map(|error| error.to_compile_error());
    quote!(#errors #checks)
}

fn forward(item: &ImplItem) -> Option<&ImplItemFn> {
    match item {
        ImplItem::Fn(method) if method.sig.ident.to_string().starts_with("forward") => Some(method),
        _ => None,
    }
}

/// `impl Trait` cannot be named outside of a signature.
fn mentions_impl(ty: &Type) -> bool {
    struct Finder(bool);
    impl<'t> syn::visit::Visit<'t> for Finder {
        fn visit_type_impl_trait(&mut self, _: &'t syn::TypeImplTrait) {
            self.0 = true;
        }
    }
    let mut finder = Finder(false);
    syn::visit::Visit::visit_type(&mut finder, ty);
    finder.0
}

/// A function that is never called and demands the trait of the return type, at its tokens.
fn check(block: &ItemImpl, method: &ImplItemFn, ty: &Type, krate: &TokenStream) -> TokenStream {
    let (impl_generics, _, impl_clause) = block.generics.split_for_impl();
    let self_ty = &block.self_ty;
    let (generics, _, clause) = method.sig.generics.split_for_impl();
    let of_trait = block.trait_.as_ref().map(|(path, _)| path);
    let ty = of_trait.map_or_else(|| ty.clone(), |path| qualified(ty, path));
    let prefix = of_trait.and_then(|path| path.segments.last()).map(|last| &last.ident);
    let prefix = prefix.map(ToString::to_string).unwrap_or_default();
    let name = format_ident!("__data_parallel_{}_{}", prefix, method.sig.ident);
    let demand = quote_spanned!(ty.span()=> #krate::returns_tensors::<#ty>(););
    quote! {
        #[automatically_derived]
        #[allow(dead_code, non_snake_case, clippy::all, clippy::pedantic)]
        impl #impl_generics #self_ty #impl_clause {
            #[doc(hidden)]
            fn #name #generics () #clause {
                #demand
            }
        }
    }
}

/// The return type with `Self::Output` written as `<Self as Trait>::Output`.
fn qualified(ty: &Type, of_trait: &Path) -> Type {
    let Type::Path(path) = ty else { return ty.clone() };
    let segments: Vec<_> = path.path.segments.iter().collect();
    match segments.as_slice() {
        [first, second] if path.qself.is_none() && first.ident == "Self" => {
            parse_quote_spanned!(ty.span()=> <Self as #of_trait>::#second)
        }
        _ => ty.clone(),
    }
}
