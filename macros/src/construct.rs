//! The constructor that `#[data_parallel(new(..))]` asks for: makes every field from its
//! declaration, in the order of the fields, so that random numbers fall as in a hand-written one.

use proc_macro2::TokenStream;
use quote::{quote, quote_spanned};
use syn::{Expr, Ident, Lit};

use crate::ast::{Definition, Field};
use crate::attr::{Code, Constructor};

pub(crate) fn constructor(definition: &Definition<'_>, krate: &TokenStream) -> Option<TokenStream> {
    let new = definition.attrs.new.as_ref()?;
    let [variant] = definition.variants.as_slice() else { return None };
    let fields = &variant.fields;
    let made = fields.iter().filter_map(|field| {
        let (binding, value) = (&field.binding, field_value(field, krate)?);
        Some(quote!(let #binding = #value;))
    });
    let given = fields.iter().map(|field| {
        let (member, binding) = (&field.member, &field.binding);
        let argument = argument_of(field, new).filter(|_| !is_made(field));
        let value = argument.unwrap_or(binding);
        quote!(#member: #value)
    });
    Some(function(
        definition,
        new,
        krate,
        &quote! {
            #(#made)*
            ::core::result::Result::Ok(Self { #(#given,)* })
        },
    ))
}

/// A constructor that only has the right signature.
pub(crate) fn stub(definition: &Definition<'_>, krate: &TokenStream) -> Option<TokenStream> {
    let new = definition.attrs.new.as_ref()?;
    Some(function(definition, new, krate, &quote!(::core::unreachable!())))
}

fn function(
    definition: &Definition<'_>,
    new: &Constructor,
    krate: &TokenStream,
    body: &TokenStream,
) -> TokenStream {
    let input = definition.original;
    let (impl_generics, ty, clause) = input.generics.split_for_impl();
    let (ident, vis) = (&input.ident, &input.vis);
    let args = new.args.iter().map(|(name, ty)| quote!(#name: #ty));
    quote! {
        #[automatically_derived]
        #[allow(dead_code, unused_variables, unused_qualifications)]
        #[allow(clippy::all, clippy::pedantic)]
        impl #impl_generics #ident #ty #clause {
            /// Builds the model with its variables under `root`, as its fields declare.
            #vis fn new(
                root: &#krate::tch::nn::Path<'_>,
                #(#args,)*
            ) -> #krate::Result<Self> {
                #body
            }
        }
    }
}

/// Whether the field's own declaration makes it.
pub(crate) fn is_made(field: &Field<'_>) -> bool {
    field.attrs.shape.is_some() || field.attrs.build.is_some()
}

/// The argument that has the field's name.
pub(crate) fn argument_of<'n>(field: &Field<'_>, new: &'n Constructor) -> Option<&'n Ident> {
    let name = field.name();
    new.args.iter().map(|(argument, _)| argument).find(|argument| **argument == name)
}

fn field_value(field: &Field<'_>, krate: &TokenStream) -> Option<TokenStream> {
    let attrs = &field.attrs;
    let one = if let Some(shape) = &attrs.shape {
        tensor(field, shape, krate)
    } else {
        let build = &attrs.build.as_ref()?.expr;
        let path = own_path(field);
        quote!({ let path = &#path; #build })
    };
    let Some(Code { expr: count, span }) = &attrs.count else { return Some(one) };
    let list = quote_spanned! {*span=>
        let __count: usize = #count;
    };
    Some(quote! {{
        #list
        (0..__count)
            .map(|k| #krate::Result::<_>::Ok(#one))
            .collect::<#krate::Result<_>>()?
    }})
}

/// A variable of a shape, in the field or, in a list, in element `k`.
fn tensor(field: &Field<'_>, shape: &Code, krate: &TokenStream) -> TokenStream {
    let (path, name) = variable(field);
    let init = field.attrs.init.as_ref().map(|init| init_value(&init.expr, krate));
    let expr = &shape.expr;
    let shape = quote_spanned!(shape.span=> let __shape: &[i64] = &#expr;);
    let made = if field.attrs.buffer.is_some() {
        quote! {
            let __value =
                #krate::tch::nn::f_init(__init, __shape, __path.device(), __path.kind())?;
            __path.add(#name, __value, false)
        }
    } else {
        quote!(__path.f_var(#name, __shape, __init)?)
    };
    quote! {{
        #shape
        let __init: #krate::tch::nn::Init = #init;
        let __path = &#path;
        #made
    }}
}

/// A number stands for a constant.
fn init_value(expr: &Expr, krate: &TokenStream) -> TokenStream {
    let number = match expr {
        Expr::Unary(negative) => &negative.expr,
        other => other,
    };
    match number {
        Expr::Lit(literal) if matches!(literal.lit, Lit::Float(_)) => {
            quote!(#krate::tch::nn::Init::Const(#expr))
        }
        _ => quote!(#expr),
    }
}

/// The path that holds the field's variable, and the variable's name there.
fn variable(field: &Field<'_>) -> (TokenStream, TokenStream) {
    let outer = field.attrs.rename.as_ref().map_or_else(|| field.name(), syn::LitStr::value);
    match (&field.attrs.name, &field.attrs.count) {
        (Some(_), _) => (quote!(root.clone()), element_name(field)),
        (None, Some(_)) => {
            (quote!((root / #outer)), quote!(&::std::string::ToString::to_string(&k)))
        }
        (None, None) => (quote!(root.clone()), quote!(#outer)),
    }
}

/// The path on which a sub-model in the field is built.
fn own_path(field: &Field<'_>) -> TokenStream {
    let outer = field.attrs.rename.as_ref().map_or_else(|| field.name(), syn::LitStr::value);
    match (&field.attrs.name, &field.attrs.count) {
        (Some(_), _) => {
            let name = element_name(field);
            quote!((root / #name))
        }
        (None, Some(_)) => quote!((root / #outer / k)),
        (None, None) => quote!((root / #outer)),
    }
}

fn element_name(field: &Field<'_>) -> TokenStream {
    let pattern = field.attrs.name.as_ref().map(syn::LitStr::value).unwrap_or_default();
    let (before, after) = pattern.split_once("{k}").unwrap_or((&pattern, ""));
    quote!(&::std::format!("{}{}{}", #before, k, #after))
}
