//! What a definition may not say, with what to do instead. Pushes every objection it has.

use syn::spanned::Spanned;
use syn::{Error, LitStr, Type};

use crate::ast::{Definition, Errors, Field};
use crate::attr::Code;
use crate::construct;
use crate::kind::{self, Shape};

pub(crate) fn model(definition: &Definition<'_>, errors: &mut Errors) {
    constructor(definition, errors);
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
    let attrs = &definition.attrs;
    let new = attrs.new.as_ref().map(|new| new.span);
    let register = attrs.register.as_ref().map(Spanned::span);
    for (key, span) in [("new", new), ("register", register)] {
        if let Some(span) = span {
            let message = format!(
                "`{key}` belongs on a model; an output is neither built nor \
                                   registered"
            );
            errors.push(Error::new(span, message));
        }
    }
    for field in definition.variants.iter().flat_map(|variant| &variant.fields) {
        let names = [
            ("param", field.attrs.param),
            ("buffer", field.attrs.buffer),
            ("rename", field.attrs.rename.as_ref().map(Spanned::span)),
            ("name", field.attrs.name.as_ref().map(Spanned::span)),
        ];
        let made = declarations(field).map(|(key, code)| (key, Some(code.span)));
        for (key, span) in names.into_iter().chain(made) {
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
        Shape::Option(inner) | Shape::Box(inner) | Shape::List(inner) | Shape::Map(_, inner) => {
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
        Shape::List(_) | Shape::Map(..) | Shape::Tuple(_) => false,
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

/// The declarations that make fields, and whether every field can be made.
fn constructor(definition: &Definition<'_>, errors: &mut Errors) {
    let fields = definition.variants.iter().flat_map(|variant| &variant.fields);
    let Some(new) = &definition.attrs.new else {
        for (key, code) in fields.flat_map(|field| declarations(field)) {
            let message = format!(
                "`{key}` is for the generated constructor; ask for it with \
                 `#[data_parallel(new(..))]` and its arguments"
            );
            errors.push(Error::new(code.span, message));
        }
        return;
    };
    if matches!(definition.original.data, syn::Data::Enum(_)) {
        let message = "an enum has no one way to be built; write its constructor by hand";
        return errors.push(Error::new(new.span, message));
    }
    for field in fields.filter(|field| !field.attrs.broken) {
        made(field, errors);
        if !construct::is_made(field) && construct::argument_of(field, new).is_none() {
            errors.push(Error::new_spanned(
                &field.member,
                "the generated constructor cannot make this field: give it `shape` and `init` (a \
                 tensor) or `build` (anything else), or add an argument of its name to `new(..)`",
            ));
        }
    }
}

fn declarations<'f>(field: &'f Field<'_>) -> impl Iterator<Item = (&'static str, &'f Code)> {
    let attrs = &field.attrs;
    [
        ("count", attrs.count.as_ref()),
        ("shape", attrs.shape.as_ref()),
        ("init", attrs.init.as_ref()),
        ("build", attrs.build.as_ref()),
    ]
    .into_iter()
    .filter_map(|(key, code)| Some((key, code?)))
}

/// Keys that need each other, or exclude each other.
fn made(field: &Field<'_>, errors: &mut Errors) {
    let attrs = &field.attrs;
    if let (Some(shape), Some(_)) = (&attrs.shape, &attrs.build) {
        errors.push(Error::new(
            shape.span,
            "`shape` makes a tensor and `build` anything else; keep one of them",
        ));
    }
    match (&attrs.shape, &attrs.init) {
        (Some(shape), None) => errors.push(Error::new(
            shape.span,
            "say with what the tensor starts: `init = \"0.0\"` or `init = \"nn::Init::..\"`",
        )),
        (None, Some(init)) => errors.push(Error::new(
            init.span,
            "`init` fills a tensor; give its size with `shape = \"[..]\"`",
        )),
        _ => {}
    }
    if let (Some(shape), None, None) = (&attrs.shape, attrs.param, attrs.buffer) {
        errors.push(Error::new(
            shape.span,
            "say whether the tensor trains: `param` if it does, `buffer` if it does not",
        ));
    }
    let is_list = matches!(kind::shape(field.ty), Shape::List(_));
    let is_array = matches!(kind::bare(field.ty), Type::Array(_));
    match &attrs.count {
        Some(count) if is_array => errors.push(Error::new(
            count.span,
            "an array has its length already; make it as a whole with `build`, or hold a `Vec`",
        )),
        Some(count) if is_single(field.ty) => {
            errors.push(Error::new(count.span, "`count` makes a list, and this field is none"));
        }
        None if is_list && attrs.shape.is_some() => errors.push(Error::new_spanned(
            &field.member,
            "this field is a list: give the number of its tensors with `count = \"..\"`",
        )),
        _ => {}
    }
}
