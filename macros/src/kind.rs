//! What can be told about a field from its type as it is written: which containers to look
//! through, and which types explain themselves. Names are judged by their last part, since a macro
//! cannot resolve them; what it cannot tell it leaves to the type checker.

use syn::visit::Visit;
use syn::{
    GenericArgument, Generics, Ident, PathArguments, Type, TypeParam, TypeParamBound, TypePath,
    WherePredicate,
};

/// How generated code looks into a value of a type.
pub(crate) enum Shape<'a> {
    Option(&'a Type),
    Box(&'a Type),
    /// Vec, VecDeque, array, slice: something with `iter`.
    List(&'a Type),
    /// A map, by key and value, whose keys sort and print.
    Map(&'a Type, &'a Type),
    Tuple(Vec<&'a Type>),
    Leaf,
}

/// The longest tuple that the runtime looks through.
const MOST_PARTS: usize = 12;

pub(crate) fn shape(ty: &Type) -> Shape<'_> {
    match bare(ty) {
        Type::Array(array) => Shape::List(&array.elem),
        Type::Slice(slice) => Shape::List(&slice.elem),
        Type::Tuple(tuple) if (1..=MOST_PARTS).contains(&tuple.elems.len()) => {
            Shape::Tuple(tuple.elems.iter().collect())
        }
        Type::Path(path) => match (last_name(path).as_str(), arguments(path).as_slice()) {
            ("Option", [inner]) => Shape::Option(inner),
            ("Box", [inner]) => Shape::Box(inner),
            ("Vec" | "VecDeque", [inner]) => Shape::List(inner),
            ("HashMap" | "BTreeMap", [key, value, ..]) if sorts_and_prints(key) => {
                Shape::Map(key, value)
            }
            _ => Shape::Leaf,
        },
        _ => Shape::Leaf,
    }
}

/// The type without parentheses and invisible groups.
pub(crate) fn bare(ty: &Type) -> &Type {
    match ty {
        Type::Paren(inner) => bare(&inner.elem),
        Type::Group(inner) => bare(&inner.elem),
        other => other,
    }
}

/// The last part of a path type: `Tensor` of `tch::Tensor`.
pub(crate) fn last_name(path: &TypePath) -> String {
    path.path.segments.last().map(|last| last.ident.to_string()).unwrap_or_default()
}

fn arguments(path: &TypePath) -> Vec<&Type> {
    let Some(last) = path.path.segments.last() else { return Vec::new() };
    let PathArguments::AngleBracketed(arguments) = &last.arguments else { return Vec::new() };
    let types = arguments.args.iter().filter_map(|argument| match argument {
        GenericArgument::Type(ty) => Some(ty),
        _ => None,
    });
    types.collect()
}

fn sorts_and_prints(key: &Type) -> bool {
    match bare(key) {
        Type::Reference(reference) => sorts_and_prints(&reference.elem),
        Type::Path(path) => {
            matches!(last_name(path).as_str(), "String" | "str" | "char" | "bool")
                || is_integer(&last_name(path))
        }
        _ => false,
    }
}

fn is_integer(name: &str) -> bool {
    let (sign, width) = name.split_at(name.len().min(1));
    matches!(sign, "i" | "u") && matches!(width, "8" | "16" | "32" | "64" | "128" | "size")
}

/// A number, a truth value or text, by its name.
pub(crate) fn is_scalar(ty: &Type) -> bool {
    match bare(ty) {
        Type::Reference(reference) => is_scalar(&reference.elem),
        Type::Path(path) => {
            let name = last_name(path);
            matches!(name.as_str(), "f32" | "f64" | "bool" | "char" | "str" | "String")
                || is_integer(&name)
        }
        _ => false,
    }
}

/// A number or truth value of the language itself, which no path can mean otherwise.
pub(crate) fn is_primitive(ty: &Type) -> bool {
    let Type::Path(path) = bare(ty) else { return false };
    let Some(name) = path.path.get_ident().filter(|_| path.qself.is_none()) else { return false };
    let name = name.to_string();
    matches!(name.as_str(), "f32" | "f64" | "bool" | "char") || is_integer(&name)
}

/// Calls `found` with every type that is written inside `ty`, itself included.
pub(crate) fn each_type<'a>(ty: &'a Type, found: &mut dyn FnMut(&'a Type)) {
    found(ty);
    match bare(ty) {
        Type::Array(array) => each_type(&array.elem, found),
        Type::Slice(slice) => each_type(&slice.elem, found),
        Type::Reference(reference) => each_type(&reference.elem, found),
        Type::Tuple(tuple) => tuple.elems.iter().for_each(|ty| each_type(ty, found)),
        Type::Path(path) => arguments(path).into_iter().for_each(|ty| each_type(ty, found)),
        _ => {}
    }
}

/// The type parameters of a definition that may stand for models: all but closures.
pub(crate) struct Params<'a>(Vec<&'a Ident>);

impl<'a> Params<'a> {
    pub(crate) fn of(generics: &'a Generics) -> Self {
        let clause = generics.where_clause.iter().flat_map(|clause| &clause.predicates);
        let is_closure = |param: &&TypeParam| {
            param.bounds.iter().any(is_fn_bound)
                || clause.clone().any(|predicate| {
                    matches!(predicate, WherePredicate::Type(it)
                        if is_ident(&it.bounded_ty, &param.ident)
                            && it.bounds.iter().any(is_fn_bound))
                })
        };
        let models = generics.type_params().filter(|param| !is_closure(param));
        Self(models.map(|param| &param.ident).collect())
    }

    /// The bounded types that a walk of `ty` needs: parameters and their associated types.
    pub(crate) fn in_type<'t>(&self, ty: &'t Type) -> Vec<&'t Type> {
        let mut search = Search { params: self, found: Vec::new() };
        search.visit_type(ty);
        search.found
    }

    /// Whether the type is a parameter or one of its associated types.
    pub(crate) fn is_one(&self, ty: &Type) -> bool {
        let Type::Path(path) = bare(ty) else { return false };
        let first = match &path.qself {
            Some(qself) => return self.is_one(&qself.ty),
            None => path.path.segments.first(),
        };
        path.path.leading_colon.is_none() && first.is_some_and(|it| self.0.contains(&&it.ident))
    }
}

struct Search<'s, 'p, 't> {
    params: &'s Params<'p>,
    found: Vec<&'t Type>,
}

impl<'t> Visit<'t> for Search<'_, '_, 't> {
    fn visit_type(&mut self, ty: &'t Type) {
        if self.params.is_one(ty) {
            return self.found.push(bare(ty));
        }
        match bare(ty) {
            // No value of these types can be looked into, whatever they mention.
            Type::FnPtr(_) | Type::TraitObject(_) | Type::ImplTrait(_) | Type::Ptr(_) => {}
            Type::Path(path) if last_name(path) == "PhantomData" => {}
            other => syn::visit::visit_type(self, other),
        }
    }
}

fn is_ident(ty: &Type, ident: &Ident) -> bool {
    matches!(bare(ty), Type::Path(path) if path.qself.is_none() && path.path.is_ident(ident))
}

fn is_fn_bound(bound: &TypeParamBound) -> bool {
    let TypeParamBound::Trait(bound) = bound else { return false };
    let last = bound.path.segments.last();
    last.is_some_and(|last| ["Fn", "FnMut", "FnOnce"].iter().any(|name| last.ident == name))
}

/// Whether the type is a path that ends in one of these names.
pub(crate) fn is_named(ty: &Type, names: &[&str]) -> bool {
    matches!(bare(ty), Type::Path(path) if names.contains(&last_name(path).as_str()))
}

/// `T` of `Result<T, ..>`.
pub(crate) fn result_ok(ty: &Type) -> Option<&Type> {
    match bare(ty) {
        Type::Path(path) if last_name(path) == "Result" => arguments(path).first().copied(),
        _ => None,
    }
}
