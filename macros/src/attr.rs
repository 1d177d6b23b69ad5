//! The `#[dp(..)]` attributes of fields and definitions. Unknown and misplaced keys are errors
//! that say what is known and where a key belongs.

use proc_macro2::{Span, TokenStream};
use quote::quote;
use syn::meta::ParseNestedMeta;
use syn::parse::{ParseStream, Parser};
use syn::punctuated::Punctuated;
use syn::spanned::Spanned;
use syn::{Attribute, Error, Expr, Ident, LitStr, Path, Token, Type, WherePredicate};

use crate::ast::Errors;

/// The keys of a field.
const FIELD_KEYS: &[&str] =
    &["param", "buffer", "skip", "rename", "name", "count", "shape", "init", "build"];
/// The keys of a struct or enum.
const ITEM_KEYS: &[&str] = &["bound", "crate", "new", "register"];

#[derive(Default)]
pub(crate) struct FieldAttrs {
    pub(crate) param: Option<Span>,
    pub(crate) buffer: Option<Span>,
    pub(crate) skip: Option<Span>,
    pub(crate) rename: Option<LitStr>,
    pub(crate) name: Option<LitStr>,
    /// How the generated constructor makes the field.
    pub(crate) count: Option<Code>,
    pub(crate) shape: Option<Code>,
    pub(crate) init: Option<Code>,
    pub(crate) build: Option<Code>,
    /// Something of it could not be read, so what seems to be missing may not be.
    pub(crate) broken: bool,
}

/// An expression given as text.
pub(crate) struct Code {
    pub(crate) expr: Expr,
    pub(crate) span: Span,
}

impl FieldAttrs {
    pub(crate) fn read(attrs: &[Attribute], errors: &mut Errors) -> Self {
        let mut read = Self::default();
        let n_errors = errors.len();
        each_key(attrs, errors, |key, meta| match key {
            "param" => set(&mut read.param, meta, flag),
            "buffer" => set(&mut read.buffer, meta, flag),
            "skip" => set(&mut read.skip, meta, flag),
            "rename" => set(&mut read.rename, meta, text),
            "name" => set(&mut read.name, meta, text),
            "count" => set(&mut read.count, meta, code),
            "shape" => set(&mut read.shape, meta, code),
            "init" => set(&mut read.init, meta, code),
            "build" => set(&mut read.build, meta, code),
            other => Err(unknown(meta, other, FIELD_KEYS, ITEM_KEYS, "the struct or enum itself")),
        });
        read.broken = errors.len() > n_errors;
        read
    }

    /// Whether the walk is to treat the field like one without attributes.
    pub(crate) fn says_nothing(&self) -> bool {
        let is_declared = self.param.is_some() || self.buffer.is_some() || self.skip.is_some();
        !is_declared && self.rename.is_none() && self.name.is_none()
    }
}

#[derive(Default)]
pub(crate) struct ItemAttrs {
    /// Replaces the bounds that would be put on type parameters.
    pub(crate) bound: Option<Vec<WherePredicate>>,
    /// Where `tch_ddp` is to be found.
    pub(crate) krate: Option<Path>,
    /// The arguments of the generated constructor.
    pub(crate) new: Option<Constructor>,
    /// What the method `register` is called instead.
    pub(crate) register: Option<Ident>,
}

pub(crate) struct Constructor {
    pub(crate) span: Span,
    pub(crate) args: Vec<(Ident, Type)>,
}

impl ItemAttrs {
    pub(crate) fn read(attrs: &[Attribute], errors: &mut Errors) -> Self {
        let mut read = Self::default();
        each_key(attrs, errors, |key, meta| match key {
            "bound" => set(&mut read.bound, meta, |meta| {
                let text = text(meta)?;
                let parser = Punctuated::<WherePredicate, Token![,]>::parse_terminated;
                let bounds = text.parse_with(parser).map_err(|error| {
                    let help = "expected where-clauses, as in `bound = \"B: Backbone\"`";
                    Error::new(text.span(), format!("{error}; {help}"))
                })?;
                Ok(bounds.into_iter().collect())
            }),
            "crate" => set(&mut read.krate, meta, |meta| text(meta)?.parse()),
            "new" => set(&mut read.new, meta, constructor),
            "register" => set(&mut read.register, meta, |meta| text(meta)?.parse()),
            other => Err(unknown(meta, other, ITEM_KEYS, FIELD_KEYS, "a field")),
        });
        read
    }

    /// On an enum's variant no key has a meaning.
    pub(crate) fn refuse(attrs: &[Attribute], errors: &mut Errors) {
        for attr in attrs.iter().filter(|attr| attr.path().is_ident("dp")) {
            errors.push(Error::new_spanned(
                attr,
                "`#[dp(..)]` says nothing about a variant; it belongs on a field of it or on the \
                 enum itself",
            ));
        }
    }
}

/// Calls `read` for each key of each `#[dp(..)]`; one bad key hides no other.
fn each_key(
    attrs: &[Attribute],
    errors: &mut Errors,
    mut read: impl FnMut(&str, &ParseNestedMeta<'_>) -> Result<(), Error>,
) {
    for attr in attrs.iter().filter(|attr| attr.path().is_ident("dp")) {
        let parsed = attr.parse_nested_meta(|meta| {
            if let Err(error) = read(&key_of(&meta), &meta) {
                errors.push(error);
                skip_value(&meta)?;
            }
            Ok(())
        });
        if let Err(error) = parsed {
            let help = "write it as `#[dp(skip)]` or `#[dp(rename = \"name\")]`";
            errors.push(Error::new(error.span(), format!("{error}; {help}")));
        }
    }
}

/// Passes over what follows a key, up to the next comma.
fn skip_value(meta: &ParseNestedMeta<'_>) -> Result<(), Error> {
    while !meta.input.is_empty() && !meta.input.peek(Token![,]) {
        meta.input.parse::<proc_macro2::TokenTree>()?;
    }
    Ok(())
}

fn set<T>(
    slot: &mut Option<T>,
    meta: &ParseNestedMeta<'_>,
    read: impl FnOnce(&ParseNestedMeta<'_>) -> Result<T, Error>,
) -> Result<(), Error> {
    if slot.is_some() {
        return Err(meta.error("this key was given before; keep one of them"));
    }
    *slot = Some(read(meta)?);
    Ok(())
}

fn flag(meta: &ParseNestedMeta<'_>) -> Result<Span, Error> {
    let end = meta.input.is_empty() || meta.input.peek(Token![,]);
    if end { Ok(meta.path.span()) } else { Err(meta.error("this key takes no value")) }
}

fn text(meta: &ParseNestedMeta<'_>) -> Result<LitStr, Error> {
    if !meta.input.peek(Token![=]) {
        let message = format!("this key takes a value: `{} = \"..\"`", key_of(meta));
        return Err(meta.error(message));
    }
    let value = meta.value()?;
    value.parse().map_err(|error| {
        Error::new(error.span(), format!("the value of `{}` goes in quotes", key_of(meta)))
    })
}

fn key_of(meta: &ParseNestedMeta<'_>) -> String {
    meta.path.get_ident().map(ToString::to_string).unwrap_or_default()
}

fn code(meta: &ParseNestedMeta<'_>) -> Result<Code, Error> {
    let text = text(meta)?;
    let expr = text
        .parse()
        .map_err(|error| Error::new(text.span(), format!("{error}; the quotes hold Rust code")))?;
    Ok(Code { expr, span: meta.path.span() })
}

fn constructor(meta: &ParseNestedMeta<'_>) -> Result<Constructor, Error> {
    if !meta.input.peek(syn::token::Paren) {
        return Err(meta.error("`new` takes the constructor's arguments: `new(channels: i64)`"));
    }
    let list;
    syn::parenthesized!(list in meta.input);
    let argument = |input: ParseStream<'_>| {
        let ident = input.parse::<Ident>()?;
        input.parse::<Token![:]>()?;
        Ok((ident, input.parse::<Type>()?))
    };
    let args = list.parse_terminated(argument, Token![,])?;
    Ok(Constructor { span: meta.path.span(), args: args.into_iter().collect() })
}

fn unknown(
    meta: &ParseNestedMeta<'_>,
    key: &str,
    known: &[&str],
    elsewhere: &[&str],
    place: &str,
) -> Error {
    let list = known.iter().map(|key| format!("`{key}`")).collect::<Vec<_>>().join(", ");
    if elsewhere.contains(&key) {
        return meta.error(format!("`{key}` is not expected here; it belongs on {place}"));
    }
    let hint = close(key, known).map(|near| format!(" (did you mean `{near}`?)"));
    let hint = hint.unwrap_or_default();
    meta.error(format!("unknown key; expected one of {list}{hint}"))
}

/// A known key that shares a long enough start with what was written, or contains it.
fn close<'k>(key: &str, known: &[&'k str]) -> Option<&'k str> {
    let aliases = [("parameter", "param"), ("ignore", "skip"), ("no_train", "buffer")];
    let alias = aliases.iter().find(|(from, _)| *from == key).map(|(_, to)| *to);
    let near =
        |known: &&&str| key.len() >= 3 && (known.starts_with(key) || key.starts_with(**known));
    alias.or_else(|| known.iter().find(near).copied()).filter(|near| known.contains(near))
}

/// The arguments of `#[data_parallel(..)]`, which are those of a `#[dp(..)]` on the definition.
pub(crate) fn as_item_attr(args: &TokenStream) -> Option<TokenStream> {
    (!args.is_empty()).then(|| quote!(#[dp(#args)]))
}

/// The hidden module by the `crate` key of the arguments; other keys are read later.
pub(crate) fn crate_path(args: &TokenStream) -> TokenStream {
    let mut krate = None;
    if args.is_empty() {
        return private(None);
    }
    let parser = syn::meta::parser(|meta| {
        if meta.path.is_ident("crate") {
            krate = Some(text(&meta)?.parse::<Path>()?);
            return Ok(());
        }
        skip_value(&meta)
    });
    // Errors are reported where the keys are read.
    let _ = parser.parse2(args.clone());
    private(krate.as_ref())
}

/// The hidden module that generated code calls.
pub(crate) fn private(krate: Option<&Path>) -> TokenStream {
    krate.map_or_else(|| quote!(::tch_ddp::__private), |path| quote!(#path::__private))
}

/// An `impl` block takes no key but `crate`.
pub(crate) fn refuse_on_impl(args: &TokenStream, errors: &mut Errors) {
    let parser = syn::meta::parser(|meta| {
        if !meta.path.is_ident("crate") {
            errors.push(meta.error("not expected on an `impl` block; it belongs on the struct"));
        }
        skip_value(&meta)
    });
    if let Err(error) = parser.parse2(args.clone()) {
        errors.push(error);
    }
}

/// Checks that the arguments are a list of keys, so that the error stands at the attribute itself.
pub(crate) fn check_args(args: &TokenStream) -> Result<(), Error> {
    if args.is_empty() {
        return Ok(());
    }
    let parser = syn::meta::parser(|meta| skip_value(&meta));
    parser.parse2(args.clone())
}
