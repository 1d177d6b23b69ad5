//! The code behind `#[derive(TensorOutput)]`: each field in turn, by its own implementation.

use proc_macro2::{Span, TokenStream};
use quote::{quote, quote_spanned};
use syn::DeriveInput;
use syn::spanned::Spanned;

use crate::ast::{Definition, Errors};
use crate::{attr, expand, fallback, valid};

pub(crate) fn tensor_output(input: &DeriveInput) -> TokenStream {
    let mut errors = Errors::default();
    let definition = Definition::read(input, &mut errors);
    valid::output(&definition, &mut errors);
    let krate = attr::private(definition.attrs.krate.as_ref());
    match errors.finish() {
        Ok(()) => output(&definition, &krate),
        Err(error) => fallback::tensor_output(input, &krate, &error),
    }
}

fn output(definition: &Definition<'_>, krate: &TokenStream) -> TokenStream {
    let input = definition.original;
    let bounds = expand::walk_bounds(definition, &quote!(#krate::TensorOutput));
    let generics = expand::with_bounds(&input.generics, bounds);
    let (impl_generics, ty, clause) = generics.split_for_impl();
    let ident = &input.ident;
    let (signature, signature_mut) = expand::output_signatures(krate);
    let tensors = arms(definition, krate, &quote!(tensors));
    let tensors_mut = arms(definition, krate, &quote!(tensors_mut));
    quote! {
        #[automatically_derived]
        #[allow(clippy::all, clippy::pedantic, unused_qualifications)]
        impl #impl_generics #krate::TensorOutput for #ident #ty #clause {
            #signature { #tensors }
            #signature_mut { #tensors_mut }
        }
    }
}

fn arms(definition: &Definition<'_>, krate: &TokenStream, method: &TokenStream) -> TokenStream {
    if definition.variants.is_empty() {
        return quote!(match *self {});
    }
    let arms = definition.variants.iter().map(|variant| {
        let pattern = expand::pattern(variant);
        let fields = variant.fields.iter().filter(|it| it.attrs.skip.is_none()).map(|field| {
            let span = Span::call_site().located_at(field.ty.span());
            let (ty, binding) = (field.ty, &field.binding);
            quote_spanned!(span=> <#ty as #krate::TensorOutput>::#method(#binding, __out);)
        });
        quote!(#pattern => { #(#fields)* })
    });
    quote!(match self { #(#arms)* })
}
