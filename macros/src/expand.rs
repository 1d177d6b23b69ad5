//! The code behind `#[data_parallel]`: an implementation of `Replicable` that visits each field
//! in turn, and the method `register`. Emits calls, never an algorithm.

use proc_macro2::{Ident, Span, TokenStream};
use quote::{format_ident, quote, quote_spanned};
use syn::spanned::Spanned;
use syn::{DeriveInput, Generics, Type, WherePredicate, parse_quote};

use crate::ast::{Definition, Errors, Field, Variant};
use crate::kind::{self, Params, Shape};
use crate::{attr, construct, fallback, valid};

pub(crate) fn replicable(input: &DeriveInput) -> TokenStream {
    let mut errors = Errors::default();
    let definition = Definition::read(input, &mut errors);
    valid::model(&definition, &mut errors);
    let krate = attr::private(definition.attrs.krate.as_ref());
    match errors.finish() {
        Ok(()) => model(&definition, &krate),
        Err(error) => fallback::replicable(&definition, &krate, &error),
    }
}

fn model(definition: &Definition<'_>, krate: &TokenStream) -> TokenStream {
    let input = definition.original;
    let bounds = walk_bounds(definition, &quote!(#krate::Replicable));
    let generics = with_bounds(&input.generics, bounds);
    let (impl_generics, ty, clause) = generics.split_for_impl();
    let ident = &input.ident;
    let new = construct::constructor(definition, krate);
    let walk = Walk::new(definition, krate);
    let visit = walk.arms(definition, Mode::Shared);
    let visit_mut = walk.arms(definition, Mode::Mutable);
    let register = register(definition, krate);
    quote! {
        #[automatically_derived]
        #[allow(clippy::all, clippy::pedantic, unused_qualifications)]
        impl #impl_generics #krate::Replicable for #ident #ty #clause {
            fn visit(&self, __visitor: &mut #krate::Visitor<'_>) {
                use #krate::{Opaque as _, Walk as _};
                #visit
            }

            fn visit_mut(&mut self, __visitor: &mut #krate::Visitor<'_>) {
                use #krate::{OpaqueMut as _, WalkMut as _};
                #visit_mut
            }
        }
        #register
        #new
    }
}

/// The inherent method, which needs no import; it is as visible as the type.
pub(crate) fn register(definition: &Definition<'_>, krate: &TokenStream) -> TokenStream {
    let input = definition.original;
    let default = || Ident::new("register", Span::call_site());
    let method = definition.attrs.register.clone().unwrap_or_else(default);
    let (impl_generics, ty, clause) = input.generics.split_for_impl();
    let (ident, vis) = (&input.ident, &input.vis);
    quote! {
        #[automatically_derived]
        #[allow(dead_code, unused_qualifications)]
        impl #impl_generics #ident #ty #clause {
            /// Registers what the fields hold and the store does not know yet; to be called right
            /// after building, before any `load`. See `tch_ddp::module::register`.
            #vis fn #method(
                &self,
                root: &#krate::tch::nn::Path<'_>,
            ) -> #krate::Result<#krate::Registered>
            where
                Self: #krate::Replicable,
            {
                #krate::register(self, root)
            }
        }
    }
}

/// `fn tensors` and `fn tensors_mut` without their bodies.
pub(crate) fn output_signatures(krate: &TokenStream) -> (TokenStream, TokenStream) {
    let tensor = quote!(#krate::tch::Tensor);
    (
        quote!(fn tensors<'__a>(&'__a self, __out: &mut ::std::vec::Vec<&'__a #tensor>)),
        quote!(
            fn tensors_mut<'__a>(&'__a mut self, __out: &mut ::std::vec::Vec<&'__a mut #tensor>)
        ),
    )
}

/// The bounds that the walk puts on type parameters, at the tokens of the fields that need them.
pub(crate) fn walk_bounds(definition: &Definition<'_>, bound: &TokenStream) -> Vec<WherePredicate> {
    if let Some(bounds) = &definition.attrs.bound {
        return bounds.clone();
    }
    let params = Params::of(&definition.original.generics);
    let fields = definition.variants.iter().flat_map(|variant| &variant.fields);
    let mut found: Vec<&Type> = Vec::new();
    for ty in fields.filter(|it| it.attrs.skip.is_none()).flat_map(|it| params.in_type(it.ty)) {
        if !found.contains(&ty) {
            found.push(ty);
        }
    }
    found.into_iter().map(|ty| parse_quote!(#ty: #bound)).collect()
}

pub(crate) fn with_bounds(generics: &Generics, bounds: Vec<WherePredicate>) -> Generics {
    let mut generics = generics.clone();
    if !bounds.is_empty() {
        generics.make_where_clause().predicates.extend(bounds);
    }
    generics
}

/// A pattern that binds the fields of a variant that are not skipped.
pub(crate) fn pattern(variant: &Variant<'_>) -> TokenStream {
    let path = variant.ident.map_or_else(|| quote!(Self), |ident| quote!(Self::#ident));
    let fields = variant.fields.iter().filter(|field| field.attrs.skip.is_none()).map(|field| {
        let (member, binding) = (&field.member, &field.binding);
        quote!(#member: #binding)
    });
    quote!(#path { #(#fields,)* .. })
}

#[derive(Clone, Copy)]
enum Mode {
    Shared,
    Mutable,
}

/// Emits the walk of one definition.
struct Walk<'a> {
    krate: &'a TokenStream,
    params: Params<'a>,
    /// The user wrote the bounds, so nothing is known about what parameters implement.
    own_bounds: bool,
}

impl<'a> Walk<'a> {
    fn new(definition: &Definition<'a>, krate: &'a TokenStream) -> Self {
        let params = Params::of(&definition.original.generics);
        Self { krate, params, own_bounds: definition.attrs.bound.is_some() }
    }

    fn arms(&self, definition: &Definition<'_>, mode: Mode) -> TokenStream {
        if definition.variants.is_empty() {
            return quote!(match *self {});
        }
        let arms = definition.variants.iter().map(|variant| {
            let pattern = pattern(variant);
            let fields = variant.fields.iter().map(|field| self.field(variant, field, mode));
            quote!(#pattern => { #(#fields)* })
        });
        quote!(match self { #(#arms)* })
    }

    fn field(&self, variant: &Variant<'_>, field: &Field<'_>, mode: Mode) -> TokenStream {
        let krate = self.krate;
        let name = field.name();
        if field.attrs.skip.is_some() {
            return quote! {
                __visitor.enter(#name);
                __visitor.hidden(#krate::Hidden::Skipped);
                __visitor.leave();
            };
        }
        let value = self.value(&field.binding, field.ty, mode, 0);
        match self.enter(variant, field, &name) {
            Some(enter) => quote!(#enter #value __visitor.leave();),
            None => value,
        }
    }

    fn enter(&self, variant: &Variant<'_>, field: &Field<'_>, name: &str) -> Option<TokenStream> {
        let krate = self.krate;
        let attrs = &field.attrs;
        let role = match (attrs.param, attrs.buffer) {
            (Some(_), _) => Some(quote!(#krate::Role::Parameter)),
            (_, Some(_)) => Some(quote!(#krate::Role::Buffer)),
            _ => None,
        };
        let undeclared = quote!(#krate::Role::Undeclared);
        let role_or_none = role.clone().unwrap_or(undeclared);
        Some(match (&attrs.rename, &attrs.name, role) {
            (Some(rename), _, _) => quote!(__visitor.enter_as(#name, #rename, #role_or_none);),
            (_, Some(name_of), _) => {
                quote!(__visitor.enter_pattern(#name, #name_of, #role_or_none);)
            }
            (_, _, None) if variant.is_newtype => return None,
            (_, _, Some(role)) if variant.is_newtype => {
                quote!(__visitor.enter_transparent(#name, #role);)
            }
            (_, _, Some(role)) => quote!(__visitor.enter_as(#name, #name, #role);),
            (_, _, None) => quote!(__visitor.enter(#name);),
        })
    }

    /// Visits what the variable `value`, a reference, points at. Containers are looked through
    /// here, because the choice between walk and no walk is made per type: in a
    /// `Vec<(Known, Unknown)>` the first would be lost with the second.
    fn value(&self, value: &Ident, ty: &Type, mode: Mode, depth: usize) -> TokenStream {
        let inner = format_ident!("__inner{depth}", span = Span::mixed_site());
        let next = |ty: &Type| self.value(&inner, ty, mode, depth + 1);
        match kind::shape(ty) {
            Shape::Option(ty) => {
                let body = next(ty);
                quote!(if let ::core::option::Option::Some(#inner) = #value { #body })
            }
            Shape::Box(ty) => {
                let body = next(ty);
                let of = match mode {
                    Mode::Shared => quote!(&**#value),
                    Mode::Mutable => quote!(&mut **#value),
                };
                quote!({ let #inner = #of; #body })
            }
            Shape::List(ty) => {
                let body = next(ty);
                let entries = iterate(value, mode);
                quote!(for (__k, #inner) in #entries.enumerate() {
                    __visitor.key(&__k);
                    #body
                    __visitor.leave();
                })
            }
            Shape::Map(ty) => {
                let (body, krate) = (next(ty), self.krate);
                let entries = iterate(value, mode);
                quote!(for (__k, #inner) in #krate::sorted(#entries) {
                    __visitor.key(__k);
                    #body
                    __visitor.leave();
                })
            }
            Shape::Tuple(parts) => self.tuple(value, &parts, mode, depth),
            Shape::Leaf => self.leaf(value, ty, mode),
        }
    }

    fn tuple(&self, value: &Ident, parts: &[&Type], mode: Mode, depth: usize) -> TokenStream {
        let names: Vec<_> = (0..parts.len())
            .map(|k| format_ident!("__part{depth}_{k}", span = Span::mixed_site()))
            .collect();
        let visits = parts.iter().zip(&names).enumerate().map(|(k, (ty, part))| {
            let (visit, k) = (self.value(part, ty, mode, depth + 1), k.to_string());
            quote!(__visitor.enter(#k); #visit __visitor.leave();)
        });
        quote!({ let (#(#names,)*) = #value; #(#visits)* })
    }

    fn leaf(&self, value: &Ident, ty: &Type, mode: Mode) -> TokenStream {
        let krate = self.krate;
        let span = Span::call_site().located_at(ty.span());
        let bounded = self.params.is_one(ty) && !self.own_bounds;
        match (bounded, mode) {
            (true, Mode::Shared) => {
                quote_spanned!(span=> #krate::Replicable::visit(#value, __visitor);)
            }
            (true, Mode::Mutable) => {
                quote_spanned!(span=> #krate::Replicable::visit_mut(#value, __visitor);)
            }
            (false, Mode::Shared) => {
                quote_spanned!(span=> (&#krate::Field(#value)).visit(__visitor);)
            }
            (false, Mode::Mutable) => {
                quote_spanned!(span=> (&mut #krate::FieldMut(#value)).visit_mut(__visitor);)
            }
        }
    }
}

fn iterate(value: &Ident, mode: Mode) -> TokenStream {
    match mode {
        Mode::Shared => quote!(#value.iter()),
        Mode::Mutable => quote!(#value.iter_mut()),
    }
}
