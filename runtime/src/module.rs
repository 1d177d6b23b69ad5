//! How the runtime looks into a model: a walk over the tensors that its fields hold, with the
//! path and the name of each. The [`nn::VarStore`](tch::nn::VarStore) is the source of truth
//! about what trains; the walk is a cross-check and a source of names, and never decides alone.

mod layers;
mod register;
mod replicate;
mod standard;
mod store;
mod visitor;

pub use register::{Entry, Held, Registered, check, register};
pub use replicate::{replicate, unreached};
pub use visitor::{Hidden, Place, Role, Sink, Visitor};

/// A model whose tensors can be found: implemented by `#[data_parallel]`.
///
/// tch's layers, tensors, scalars and the standard containers of these implement it too.
/// Types whose tensors tch keeps private (`nn::Sequential`, `nn::LSTM`, `nn::Func` …) implement it
/// by reporting themselves as hidden: the store knows their variables.
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not known to hold tensors or to be free of them",
    label = "stands in a field that `#[data_parallel]` walks",
    note = "a model of your own: put `#[data_parallel]` on its definition",
    note = "a setting, a strategy or a type of another crate: `#[dp(skip)]` on the field, or \
            `#[dp(bound = \"\")]` on the struct to walk without this bound"
)]
pub trait Replicable {
    /// Shows every tensor to `visitor`, in the order of the fields.
    fn visit(&self, visitor: &mut Visitor<'_>);
}
