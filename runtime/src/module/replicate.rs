//! Makes one instance of a model compute with the tensors of another: the copies are part of the
//! autograd graph, so a gradient that reaches a replica reaches its source.

use std::collections::HashSet;

use tch::nn::VarStore;
use tch::{Device, Tensor};

use super::store::Identity;
use super::{Hidden, Place, Replicable, Sink, Visitor};
use crate::{Error, Result, ffi};

/// Replaces every tensor that `replica` holds by a copy on `device` of the one that `source` holds
/// in the same field.
///
/// While gradients are on, the backward pass through `replica` ends at the tensors of `source`.
/// Both must be instances of one model, built alike.
///
/// # Errors
/// If the two differ in their fields, or hold tensors where they cannot be replaced: in a type of
/// tch that keeps them private, behind shared ownership, or in a lock that is held.
pub fn replicate<M: Replicable + ?Sized>(
    source: &M,
    replica: &mut M,
    device: Device,
) -> Result<()> {
    // As what it is, the only reference: what is behind a shared one is not replaced.
    replicate_any(&source, &replica, device)
}

/// Not generic, so that it is compiled here and not once more with every model.
fn replicate_any(source: &dyn Replicable, replica: &dyn Replicable, device: Device) -> Result<()> {
    let mut tensors = Tensors::default();
    source.visit(&mut Visitor::new(&mut tensors));
    let mut exchange = Exchange { from: tensors.0.into_iter(), device, problems: Vec::new() };
    replica.visit(&mut Visitor::replacing(&mut exchange));
    let left = exchange.from.len();
    if left > 0 {
        exchange
            .problems
            .push(format!("{left} tensors of the source have no place in the replica"));
    }
    match exchange.problems {
        problems if problems.is_empty() => Ok(()),
        problems => Err(Error::Model { problems }),
    }
}

/// The trainable variables of the store that no field of the model shows, by name.
///
/// They live in types that the walk cannot enter, or in no field at all.
pub fn unreached<M: Replicable + ?Sized>(model: &M, vs: &VarStore) -> Vec<String> {
    unreached_any(&model, vs)
}

fn unreached_any(model: &dyn Replicable, vs: &VarStore) -> Vec<String> {
    let mut tensors = Tensors::default();
    model.visit(&mut Visitor::new(&mut tensors));
    let reached: HashSet<_> =
        tensors.0.iter().filter_map(|(_, tensor)| Identity::of(tensor)).collect();
    let mut names: Vec<_> = vs
        .variables()
        .into_iter()
        .filter(|(_, tensor)| tensor.requires_grad())
        .filter(|(_, tensor)| Identity::of(tensor).is_some_and(|it| !reached.contains(&it)))
        .map(|(name, _)| name)
        .collect();
    names.sort();
    names
}

#[derive(Default)]
struct Tensors(Vec<(String, Tensor)>);

impl Sink for Tensors {
    fn tensor(&mut self, place: Place<'_>, tensor: &Tensor) {
        self.0.push((place.field.to_owned(), tensor.shallow_clone()));
    }
}

struct Exchange {
    from: std::vec::IntoIter<(String, Tensor)>,
    device: Device,
    problems: Vec<String>,
}

impl Sink for Exchange {
    fn tensor(&mut self, place: Place<'_>, tensor: &Tensor) {
        match self.from.next() {
            Some((field, source)) if field == place.field => {
                let defined = source.defined().then(|| source.to_device(self.device));
                ffi::rebind(tensor, defined.as_ref().unwrap_or(&source));
            }
            Some((field, _)) => self.problems.push(format!(
                "the replica holds `{}` where the source holds `{field}`: build both alike",
                place.field
            )),
            None => self.problems.push(format!(
                "the replica holds `{}`, the source does not: build both alike",
                place.field
            )),
        }
    }

    fn hidden(&mut self, place: Place<'_>, why: Hidden) {
        let field = place.field;
        match why {
            Hidden::Opaque(_) | Hidden::Skipped => {}
            Hidden::Private(name) => self.problems.push(format!(
                "`{field}` cannot be replicated, because {name} keeps its tensors private: hold \
                 its layers in fields of your own"
            )),
            Hidden::Locked => {
                self.problems
                    .push(format!("`{field}` cannot be replicated while its lock is held"));
            }
            Hidden::Shared => self.problems.push(format!(
                "`{field}` cannot be replicated behind shared ownership: hold it by value or `Box`"
            )),
        }
    }
}
