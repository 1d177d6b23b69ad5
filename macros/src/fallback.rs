//! What is emitted beside errors: the same impls, empty, so that code which uses the type does not
//! fail a second time for the want of them.

use proc_macro2::TokenStream;
use quote::quote;
use syn::{DeriveInput, Error};

use crate::ast::Definition;
use crate::{construct, expand};

pub(crate) fn replicable(
    definition: &Definition<'_>,
    krate: &TokenStream,
    error: &Error,
) -> TokenStream {
    let input = definition.original;
    let errors = error.to_compile_error();
    let (generics, ty, clause) = input.generics.split_for_impl();
    let ident = &input.ident;
    let new = construct::stub(definition, krate);
    let register = expand::register(definition, krate);
    quote! {
        #errors
        #[automatically_derived]
        impl #generics #krate::Replicable for #ident #ty #clause {
            fn visit(&self, _: &mut #krate::Visitor<'_>) {}
        }
        #register
        #new
    }
}

pub(crate) fn tensor_output(
    input: &DeriveInput,
    krate: &TokenStream,
    error: &Error,
) -> TokenStream {
    let errors = error.to_compile_error();
    let (generics, ty, clause) = input.generics.split_for_impl();
    let ident = &input.ident;
    let (out, out_mut) = expand::output_signatures(krate);
    quote! {
        #errors
        #[automatically_derived]
        impl #generics #krate::TensorOutput for #ident #ty #clause {
            #out {}
            #out_mut {}
        }
    }
}
