//! What a definition may not say, with what to do instead. Pushes every objection it has.

use syn::spanned::Spanned;
use syn::{Error, LitStr, Type};

use crate::ast::{Definition, Errors, Field};
use crate::kind::{self, Shape};

pub(crate) fn model(definition: &Definition<'_>, errors: &mut Errors) {
    for field in definition.variants.iter().flat_map(|variant| &variant.fields) {
        roles(field, errors);
        names(field, errors);
        if field.attrs.skip.is_none() {
            owners(field, errors);
            declared_scalar(field, errors);
        }
    }
}

pub(crate) fn output(definition: &Definition<'_>, errors: &mut Errors) {
    for field in definition.variants.iter().flat_map(|variant| &variant.fields) {
        for (key, span) in [
            ("param", field.attrs.param),
            ("buffer", field.attrs.buffer),
            ("rename", field.attrs.rename.as_ref().map(Spanned::span)),
            ("name", field.attrs.name.as_ref().map(Spanned::span)),
        ] {
            if let Some(span) = span {
                let message = format!(
                    "`{key}` belongs on a model; a field of an output is \
                                       returned or has `#[dp(skip)]`"
                );
                errors.push(Error::new(span, message));
            }
        }
        if field.attrs.skip.is_none() {
            output_type(field.ty, errors);
        }
    }
}

/// Objects to every number, truth value and text written in a type that is to be returned.
pub(crate) fn output_type(ty: &Type, errors: &mut Errors) {
    for ty in returned(ty).into_iter().filter(|ty| kind::is_scalar(ty)) {
        errors.push(Error::new_spanned(
            ty,
            "not a tensor: only tensors are reduced and gathered over the ranks; return the tensor \
             and read its number outside, or compute the value where it is used (in a derived \
             struct, `#[dp(skip)]` keeps a field out)",
        ));
    }
}

/// The types whose values come out of a container: not the key of a map, nor an error.
fn returned(ty: &Type) -> Vec<&Type> {
    if let Some(ok) = kind::result_ok(ty) {
        return returned(ok);
    }
    match kind::shape(ty) {
        Shape::Option(inner) | Shape::Box(inner) | Shape::List(inner) | Shape::Map(inner) => {
            returned(inner)
        }
        Shape::Tuple(parts) => parts.into_iter().flat_map(returned).collect(),
        Shape::Leaf => vec![ty],
    }
}

fn roles(field: &Field<'_>, errors: &mut Errors) {
    let attrs = &field.attrs;
    if let (Some(_), Some(span)) = (attrs.param, attrs.buffer) {
        let message = "a tensor either trains (`param`) or does not (`buffer`); keep one of them";
        errors.push(Error::new(span, message));
    }
    let Some(skip) = attrs.skip else { return };
    let others = [
        ("param", attrs.param.is_some()),
        ("buffer", attrs.buffer.is_some()),
        ("rename", attrs.rename.is_some()),
        ("name", attrs.name.is_some()),
    ];
    for (key, _) in others.iter().filter(|(_, given)| *given) {
        let message = format!(
            "a skipped field is not registered, so `{key}` has no effect; keep \
                               one of them"
        );
        errors.push(Error::new(skip, message));
    }
}

fn names(field: &Field<'_>, errors: &mut Errors) {
    let attrs = &field.attrs;
    if let (Some(_), Some(name)) = (&attrs.rename, &attrs.name) {
        errors.push(Error::new(
            name.span(),
            "`rename` names the field and `name` each element of a list; keep one of them",
        ));
    }
    if let Some(rename) = &attrs.rename {
        part_of_name(rename, errors);
        if rename.value().contains("{k}") {
            errors.push(Error::new(
                rename.span(),
                format!("a pattern belongs in `name = {}`", rename.token()),
            ));
        }
    }
    if let Some(name) = &attrs.name {
        part_of_name(name, errors);
        let pattern = name.value();
        if pattern.matches('{').count() != 1 || !pattern.contains("{k}") {
            errors.push(Error::new(
                name.span(),
                "the pattern needs one `{k}`, where the index or key goes, as in `H_{k}`",
            ));
        }
        if is_single(field.ty) {
            errors.push(Error::new(
                name.span(),
                "`name` names the elements of a list, and this field is none; use `rename`",
            ));
        }
    }
}

fn part_of_name(text: &LitStr, errors: &mut Errors) {
    if text.value().is_empty() {
        errors.push(Error::new(text.span(), "a variable needs a name that is not empty"));
    }
    if text.value().contains('.') {
        errors.push(Error::new(
            text.span(),
            "a dot separates the parts of a variable's name, so a part cannot hold one; build the \
             field on a sub-path (`path / \"outer\"`) instead",
        ));
    }
}

/// Whether the type as written is certainly no list.
fn is_single(ty: &Type) -> bool {
    match kind::shape(ty) {
        Shape::Option(inner) | Shape::Box(inner) => is_single(inner),
        Shape::List(_) | Shape::Map(_) | Shape::Tuple(_) => false,
        Shape::Leaf => kind::is_scalar(ty) || kind::is_named(ty, &["Tensor"]),
    }
}

/// A model that owns what trains it cannot be handed to the wrapper together with its store.
fn owners(field: &Field<'_>, errors: &mut Errors) {
    kind::each_type(field.ty, &mut |ty| {
        let (what, why) = if kind::is_named(ty, &["VarStore"]) {
            ("VarStore", "the store that `Ddp::new(model, vs, ..)` takes")
        } else if kind::is_named(ty, &["Optimizer"]) {
            ("Optimizer", "the optimizer, which `backward_step` borrows beside the model")
        } else {
            return;
        };
        errors.push(Error::new_spanned(
            ty,
            format!(
                "a model cannot hold {why}: move its layers into a struct of their own, put \
                 `#[data_parallel]` on that one and keep the `{what}` beside it, or mark this \
                 field `#[dp(skip)]`"
            ),
        ));
    });
}

fn declared_scalar(field: &Field<'_>, errors: &mut Errors) {
    for (key, span) in [("param", field.attrs.param), ("buffer", field.attrs.buffer)] {
        if let Some(span) = span.filter(|_| kind::is_scalar(field.ty)) {
            errors.push(Error::new(
                span,
                format!(
                    "`{key}` needs a tensor, and this field holds none; drop it: settings need \
                         no attribute"
                ),
            ));
        }
    }
}
