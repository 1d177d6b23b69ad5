//! The code behind `#[data_parallel]`: an implementation of `Replicable` that lists the fields, and
//! the method `register`. Emits calls, never an algorithm, and few of them: what is written here
//! once per field is what the compiler works on, so it is one reference and no more.

use std::mem;

use proc_macro2::{Ident, Literal, Span, TokenStream};
use quote::quote;
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
    let tags = Tags::new(definition, krate);
    let visit = walk(definition, &tags);
    let register = register(definition, krate);
    quote! {
        #[automatically_derived]
        #[allow(clippy::all, clippy::pedantic, unused_imports, unused_qualifications)]
        impl #impl_generics #krate::Replicable for #ident #ty #clause {
            fn visit(&self, __visitor: &mut #krate::Visitor<'_>) {
                use #krate::Unknown as _;
                #visit
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
    // Only with parameters can it fail to hold; without, it would be proved for nothing.
    let demand =
        input.generics.type_params().next().map(|_| quote!(where Self: #krate::Replicable,));
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
            #demand
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

/// The statements that visit each field in turn.
fn walk(definition: &Definition<'_>, tags: &Tags<'_>) -> TokenStream {
    if let [only @ Variant { ident: None, .. }] = definition.variants.as_slice() {
        return walk_fields(only, tags);
    }
    if definition.variants.is_empty() {
        return quote!(match *self {});
    }
    let arms = definition.variants.iter().map(|variant| {
        let pattern = pattern(variant);
        let fields = walk_fields(variant, tags);
        quote!(#pattern => { #fields })
    });
    quote!(match self { #(#arms)* })
}

/// Fields about which nothing was declared come in one call, by type; the compiler takes by far the
/// shortest for that.
fn walk_fields<'a>(variant: &'a Variant<'a>, tags: &Tags<'_>) -> TokenStream {
    let mut statements = TokenStream::new();
    let mut run = Run::default();
    for field in variant.fields.iter().filter(|field| !holds_nothing(field)) {
        if is_plain(variant, field) {
            if run.is_full() {
                statements.extend(run.finish(variant, tags));
            }
            run.push(field);
        } else {
            statements.extend(run.finish(variant, tags));
            statements.extend(declared(variant, field, tags));
        }
    }
    statements.extend(run.finish(variant, tags));
    statements
}

/// Neighbours that are visited in one call.
#[derive(Default)]
struct Run<'a> {
    names: Vec<String>,
    /// The group of each.
    order: Vec<u8>,
    /// The fields of each type.
    groups: Vec<(&'a Type, Vec<&'a Field<'a>>)>,
}

impl<'a> Run<'a> {
    /// A group's number must fit into a byte.
    fn is_full(&self) -> bool {
        self.groups.len() > usize::from(u8::MAX)
    }

    fn push(&mut self, field: &'a Field<'a>) {
        let known = self.groups.iter().position(|(ty, _)| *ty == field.ty);
        let group = known.unwrap_or_else(|| {
            self.groups.push((field.ty, Vec::new()));
            self.groups.len() - 1
        });
        self.groups[group].1.push(field);
        self.names.push(field.name());
        self.order.push(group as u8);
    }

    fn finish(&mut self, variant: &Variant<'_>, tags: &Tags<'_>) -> Option<TokenStream> {
        let krate = tags.krate;
        let Self { names, order, groups } = mem::take(self);
        let names = names.join(" ");
        let order = Literal::byte_string(&order);
        let groups = groups.iter().map(|(ty, fields)| {
            let tag = tags.of(ty);
            let fields = fields.iter().map(|field| reference(variant, field));
            quote!((#tag, [#(#fields,)*]))
        });
        (!names.is_empty())
            .then(|| quote!(#krate::fields(__visitor, #names, #order, &[#(&#groups,)*]);))
    }
}

/// A number or truth value without a declaration: it has no part in the walk.
fn holds_nothing(field: &Field<'_>) -> bool {
    field.attrs.says_nothing() && kind::is_primitive(field.ty)
}

fn is_plain(variant: &Variant<'_>, field: &Field<'_>) -> bool {
    field.attrs.says_nothing() && !variant.is_newtype
}

fn reference(variant: &Variant<'_>, field: &Field<'_>) -> TokenStream {
    let (member, binding) = (&field.member, &field.binding);
    if variant.ident.is_none() {
        quote!(&self.#member)
    } else {
        // The pattern made it a reference.
        quote!(#binding)
    }
}

/// The visit of a field that does not simply add its own name.
fn declared(variant: &Variant<'_>, field: &Field<'_>, tags: &Tags<'_>) -> TokenStream {
    let krate = tags.krate;
    let name = field.name();
    if field.attrs.skip.is_some() {
        return quote!(#krate::skipped(__visitor, #name););
    }
    let (tag, value) = (tags.of(field.ty), reference(variant, field));
    let show = quote!(#krate::Walk::walk(&#tag, #value, __visitor););
    match enter(variant, field, &name, krate) {
        Some(enter) => quote!(#enter #show __visitor.leave();),
        None => show,
    }
}

fn enter(
    variant: &Variant<'_>,
    field: &Field<'_>,
    name: &str,
    krate: &TokenStream,
) -> Option<TokenStream> {
    let attrs = &field.attrs;
    let is_declared = attrs.param.is_some() || attrs.buffer.is_some();
    let role = match (attrs.param, attrs.buffer) {
        (Some(_), _) => quote!(#krate::Role::Parameter),
        (_, Some(_)) => quote!(#krate::Role::Buffer),
        _ => quote!(#krate::Role::Undeclared),
    };
    Some(match (&attrs.rename, &attrs.name) {
        (Some(rename), _) => quote!(__visitor.enter_as(#name, #rename, #role);),
        (_, Some(pattern)) => quote!(__visitor.enter_pattern(#name, #pattern, #role);),
        _ if variant.is_newtype && !is_declared => return None,
        _ if variant.is_newtype => quote!(__visitor.enter_transparent(#name, #role);),
        _ => quote!(__visitor.enter_as(#name, #name, #role);),
    })
}

/// The ways in which the types of the fields are walked.
struct Tags<'a> {
    krate: &'a TokenStream,
    params: Params<'a>,
    /// The user wrote the bounds, so nothing is known about what parameters implement.
    own_bounds: bool,
}

impl<'a> Tags<'a> {
    fn new(definition: &'a Definition<'_>, krate: &'a TokenStream) -> Self {
        let params = Params::of(&definition.original.generics);
        Self { krate, params, own_bounds: definition.attrs.bound.is_some() }
    }

    /// The tag of a type. Containers are looked through here, because the choice between walk and
    /// no walk is made per type: in a `Vec<(Known, Unknown)>` the first would be lost with the
    /// second.
    fn of(&self, ty: &Type) -> TokenStream {
        let krate = self.krate;
        match kind::shape(ty) {
            Shape::Option(inner) | Shape::Box(inner) => {
                let walk = self.of(inner);
                quote!(#krate::Inside(#walk))
            }
            Shape::List(inner) => {
                let walk = self.of(inner);
                quote!(#krate::Each::<#inner, _>(#walk, #krate::PhantomData))
            }
            Shape::Map(key, inner) => {
                let walk = self.of(inner);
                quote!(#krate::Sorted::<#key, #inner, _>(#walk, #krate::PhantomData))
            }
            Shape::Tuple(parts) => {
                let walks = parts.into_iter().map(|part| self.of(part));
                quote!((#(#walks,)*))
            }
            Shape::Leaf if self.params.is_one(ty) && !self.own_bounds => quote!(#krate::Own),
            Shape::Leaf => quote!(#krate::Probe::<#ty>::TAG),
        }
    }
}
