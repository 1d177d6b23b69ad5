//! The macros of tch-ddp: `#[data_parallel]` and `#[derive(TensorOutput)]`.
//!
//! They read a definition and emit calls into `tch_ddp::__private`; every decision that needs a
//! tensor is the runtime's. Stages: `ast` and `attr` read, `valid` objects, `expand` emits, and
//! `fallback` emits a stand-in beside the errors so that one mistake is one error.

mod ast;
mod attr;
mod attribute;
mod construct;
mod expand;
mod fallback;
mod kind;
mod output;
#[cfg(test)]
mod tests;
mod valid;
mod warning;

use proc_macro::TokenStream;
use syn::{DeriveInput, parse_macro_input};

/// Makes a tch model ready for `tch_ddp`: its tensors can be walked, named and registered.
///
/// Put it on the struct or enum that holds the layers. The definition stays as it is; the walk
/// covers layers, other annotated models, tensors, `Option`, `Vec`, arrays, tuples, `Box`, maps
/// with string or integer keys, and nestings of them. Settings and scalars need no attribute.
/// Fields may say more:
///
/// - `#[dp(param)]`: this tensor trains, even if it does not ask for a gradient yet
/// - `#[dp(buffer)]`: this tensor does not train and is the same on all ranks
/// - `#[dp(skip)]`: not looked into
/// - `#[dp(rename = "lm_head")]`: the name in the store, in place of the field's
/// - `#[dp(name = "H_{k}")]`: the names of a list's elements, `{k}` being the index or key
///
/// and the attribute itself takes: `bound = "B: Backbone"`, which replaces the bounds that the walk
/// puts on type parameters; `crate = "path"`, where `tch_ddp` is re-exported; `register = "name"`,
/// another name for the method; and `new(channels: i64, ..)`, which generates a constructor from
/// the declarations of the fields: `shape = "[channels, 2]"` with `init = "0.0"` for a tensor,
/// `build = "nn::linear(path, ..)"` for anything else, and `count = "3"` for lists of either, in
/// which `k` is the index.
///
/// Generates `register(&self, root: &nn::Path) -> tch_ddp::Result<Registered>`, to be called right
/// after building and before any `load`: it registers the tensors that the store does not know
/// (a `Vec<Tensor>` field `weights` as `weights.0`, `weights.1` …) and reports what each field is.
///
/// On an `impl` block it checks that every method whose name starts with `forward` returns tensors.
#[proc_macro_attribute]
pub fn data_parallel(args: TokenStream, item: TokenStream) -> TokenStream {
    attribute::data_parallel(&args.into(), item.into()).into()
}

/// The derive that `#[data_parallel]` stands for.
#[doc(hidden)]
#[proc_macro_derive(Replicable, attributes(dp))]
pub fn derive_replicable(input: TokenStream) -> TokenStream {
    expand::replicable(&parse_macro_input!(input as DeriveInput)).into()
}

/// Lets a struct or enum of tensors be returned from a forward pass.
///
/// Every field must be made of tensors: `Tensor`, `Option`, `Vec`, tuples and other types that
/// implement `TensorOutput`. `#[dp(skip)]` on a field leaves it out.
#[proc_macro_derive(TensorOutput, attributes(dp))]
pub fn derive_tensor_output(input: TokenStream) -> TokenStream {
    output::tensor_output(&parse_macro_input!(input as DeriveInput)).into()
}
