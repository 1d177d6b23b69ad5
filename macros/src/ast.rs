//! A definition as the later stages see it: variants of fields with their attributes parsed.
//! A struct is one variant. Reading collects every error and never stops at the first.

use proc_macro2::Span;
use quote::format_ident;
use syn::{Attribute, Data, DeriveInput, Error, Fields, Ident, Index, Member, Type};

use crate::attr::{FieldAttrs, ItemAttrs};

pub(crate) struct Definition<'a> {
    pub(crate) original: &'a DeriveInput,
    pub(crate) attrs: ItemAttrs,
    pub(crate) variants: Vec<Variant<'a>>,
}

pub(crate) struct Variant<'a> {
    /// `None` for the only variant of a struct.
    pub(crate) ident: Option<&'a Ident>,
    pub(crate) fields: Vec<Field<'a>>,
    /// A tuple of one field, which adds nothing to names.
    pub(crate) is_newtype: bool,
}

pub(crate) struct Field<'a> {
    pub(crate) member: Member,
    /// The variable that generated code binds the field to.
    pub(crate) binding: Ident,
    pub(crate) ty: &'a Type,
    /// The attributes as written.
    pub(crate) outer: &'a [Attribute],
    pub(crate) attrs: FieldAttrs,
}

impl<'a> Definition<'a> {
    pub(crate) fn read(original: &'a DeriveInput, errors: &mut Errors) -> Self {
        let attrs = ItemAttrs::read(&original.attrs, errors);
        let variants = match &original.data {
            Data::Struct(data) => vec![Variant::read(None, &data.fields, errors)],
            Data::Enum(data) => data
                .variants
                .iter()
                .map(|variant| {
                    ItemAttrs::refuse(&variant.attrs, errors);
                    Variant::read(Some(&variant.ident), &variant.fields, errors)
                })
                .collect(),
            Data::Union(data) => {
                errors.push(Error::new_spanned(
                    data.union_token,
                    "a union cannot be walked, because nothing says which field is live; hold the \
                     layers in a struct or an enum",
                ));
                Vec::new()
            }
        };
        Self { original, attrs, variants }
    }
}

impl<'a> Variant<'a> {
    fn read(ident: Option<&'a Ident>, fields: &'a Fields, errors: &mut Errors) -> Self {
        let is_newtype = matches!(fields, Fields::Unnamed(unnamed) if unnamed.unnamed.len() == 1);
        let fields = fields
            .iter()
            .enumerate()
            .map(|(k, field)| Field {
                member: match &field.ident {
                    Some(ident) => Member::Named(ident.clone()),
                    None => Member::Unnamed(Index::from(k)),
                },
                binding: format_ident!("__field{k}", span = Span::mixed_site()),
                ty: &field.ty,
                outer: &field.attrs,
                attrs: FieldAttrs::read(&field.attrs, errors),
            })
            .collect();
        Self { ident, fields, is_newtype }
    }
}

impl Field<'_> {
    /// The field as people write it, without the `r#` of a raw identifier.
    pub(crate) fn name(&self) -> String {
        match &self.member {
            Member::Named(ident) => {
                let text = ident.to_string();
                text.strip_prefix("r#").map_or(text.clone(), str::to_owned)
            }
            Member::Unnamed(index) => index.index.to_string(),
        }
    }
}

/// The errors met so far.
#[derive(Default)]
pub(crate) struct Errors(Vec<Error>);

impl Errors {
    pub(crate) fn push(&mut self, error: Error) {
        self.0.push(error);
    }

    pub(crate) fn len(&self) -> usize {
        self.0.len()
    }

    /// All of them as one, which prints each at its place.
    pub(crate) fn finish(self) -> Result<(), Error> {
        let combined = self.0.into_iter().reduce(|mut all, error| {
            all.combine(error);
            all
        });
        combined.map_or(Ok(()), Err)
    }
}
