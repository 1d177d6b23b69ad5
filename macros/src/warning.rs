//! Warnings. A macro on stable Rust has none of its own, so it uses something deprecated at the
//! user's token, whose note is the text. Only the attribute can do that: the compiler says nothing
//! about deprecated things in the output of a derive.

use proc_macro2::{Span, TokenStream};
use quote::quote_spanned;
use syn::DeriveInput;
use syn::spanned::Spanned;

use crate::ast::{Definition, Errors, Field};
use crate::kind;

/// A device that a model remembers is right for one replica and wrong for the others.
pub(crate) fn stored_devices(item: &TokenStream) -> TokenStream {
    // Most models do not mention one, and are then parsed by the derive alone.
    if !item.to_string().contains("Device") {
        return TokenStream::new();
    }
    let Ok(input) = syn::parse2::<DeriveInput>(item.clone()) else { return TokenStream::new() };
    // The derive reports the errors.
    let definition = Definition::read(&input, &mut Errors::default());
    let fields = definition.variants.iter().flat_map(|variant| &variant.fields);
    let devices =
        fields.filter(|field| field.attrs.skip.is_none() && kind::is_named(field.ty, &["Device"]));
    devices.map(stored_device).collect()
}

fn stored_device(field: &Field<'_>) -> TokenStream {
    let note = format!(
        "`{}` remembers one device, and replicas live on several; use the device of the data \
         (`x.device()`) in `forward`, or mark the field `#[dp(skip)]`",
        field.name()
    );
    let conditions = field.outer.iter().filter(|attr| attr.path().is_ident("cfg"));
    let span = Span::call_site().located_at(field.ty.span());
    quote_spanned! {span=>
        #(#conditions)*
        const _: () = {
            #[deprecated(note = #note)]
            #[allow(non_upper_case_globals)]
            const a_stored_device: () = ();
            a_stored_device
        };
    }
}
