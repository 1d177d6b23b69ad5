//! What a forward pass may return so that its tensors can be found: the trait
//! [`TensorOutput`] and its implementations for tensors and for what people put around them.
//! Structs get it by `#[derive(TensorOutput)]`; no scalar may ever implement it.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::marker::PhantomData;

use tch::Tensor;
use tch::nn::{GRUState, LSTMState};

use crate::walk::sorted;

/// The output of a forward pass, seen as a list of tensors in a fixed order.
///
/// The reduction must know which tensors the backward pass will start from (for unused
/// parameters and for a static graph), and `DataParallel` must join the outputs of its replicas.
/// Implemented for [`Tensor`], tuples of up to 12, `Option`, `Vec`, arrays, `Box`, `VecDeque`, maps
/// (in the order of their keys), `Result`, `()`, `PhantomData` and the states of tch's recurrent
/// layers; derive it for structs and enums of these.
#[diagnostic::on_unimplemented(
    message = "`{Self}` cannot be returned from `forward`: it is not made of tensors",
    label = "not a tensor, nor a tuple, `Option`, `Vec` or derived struct of tensors",
    note = "return the tensor itself and read its number outside (`f64::try_from(&loss)`)",
    note = "for a struct of your own: `#[derive(tch_ddp::TensorOutput)]`; for a part of it that \
            is no tensor: `#[dp(skip)]` on that field",
    note = "for a struct of another crate: return a tuple of its tensors"
)]
pub trait TensorOutput {
    /// Appends the tensors in a fixed order.
    fn tensors<'a>(&'a self, out: &mut Vec<&'a Tensor>);

    /// Appends the same tensors in the same order, to be replaced in place.
    fn tensors_mut<'a>(&'a mut self, out: &mut Vec<&'a mut Tensor>);
}

impl TensorOutput for Tensor {
    fn tensors<'a>(&'a self, out: &mut Vec<&'a Tensor>) {
        out.push(self);
    }

    fn tensors_mut<'a>(&'a mut self, out: &mut Vec<&'a mut Tensor>) {
        out.push(self);
    }
}

impl TensorOutput for () {
    fn tensors<'a>(&'a self, _: &mut Vec<&'a Tensor>) {}

    fn tensors_mut<'a>(&'a mut self, _: &mut Vec<&'a mut Tensor>) {}
}

impl<T: ?Sized> TensorOutput for PhantomData<T> {
    fn tensors<'a>(&'a self, _: &mut Vec<&'a Tensor>) {}

    fn tensors_mut<'a>(&'a mut self, _: &mut Vec<&'a mut Tensor>) {}
}

impl<T: TensorOutput, E> TensorOutput for Result<T, E> {
    fn tensors<'a>(&'a self, out: &mut Vec<&'a Tensor>) {
        if let Ok(value) = self {
            value.tensors(out);
        }
    }

    fn tensors_mut<'a>(&'a mut self, out: &mut Vec<&'a mut Tensor>) {
        if let Ok(value) = self {
            value.tensors_mut(out);
        }
    }
}

impl<T: TensorOutput + ?Sized> TensorOutput for Box<T> {
    fn tensors<'a>(&'a self, out: &mut Vec<&'a Tensor>) {
        (**self).tensors(out);
    }

    fn tensors_mut<'a>(&'a mut self, out: &mut Vec<&'a mut Tensor>) {
        (**self).tensors_mut(out);
    }
}

macro_rules! each_element {
    ($([$($generics:tt)*] $type:ty),+ $(,)?) => {$(
        impl<T: TensorOutput, $($generics)*> TensorOutput for $type {
            fn tensors<'a>(&'a self, out: &mut Vec<&'a Tensor>) {
                for element in self.iter() {
                    element.tensors(out);
                }
            }

            fn tensors_mut<'a>(&'a mut self, out: &mut Vec<&'a mut Tensor>) {
                for element in self.iter_mut() {
                    element.tensors_mut(out);
                }
            }
        }
    )+};
}

each_element!([] Option<T>, [] Vec<T>, [] VecDeque<T>, [const N: usize] [T; N]);

impl<K: Ord, T: TensorOutput> TensorOutput for BTreeMap<K, T> {
    fn tensors<'a>(&'a self, out: &mut Vec<&'a Tensor>) {
        for value in self.values() {
            value.tensors(out);
        }
    }

    fn tensors_mut<'a>(&'a mut self, out: &mut Vec<&'a mut Tensor>) {
        for value in self.values_mut() {
            value.tensors_mut(out);
        }
    }
}

impl<K: Ord, T: TensorOutput, S> TensorOutput for HashMap<K, T, S> {
    fn tensors<'a>(&'a self, out: &mut Vec<&'a Tensor>) {
        for (_, value) in sorted(self) {
            value.tensors(out);
        }
    }

    fn tensors_mut<'a>(&'a mut self, out: &mut Vec<&'a mut Tensor>) {
        for (_, value) in sorted(self) {
            value.tensors_mut(out);
        }
    }
}

impl TensorOutput for LSTMState {
    fn tensors<'a>(&'a self, out: &mut Vec<&'a Tensor>) {
        self.0.tensors(out);
    }

    fn tensors_mut<'a>(&'a mut self, out: &mut Vec<&'a mut Tensor>) {
        self.0.tensors_mut(out);
    }
}

impl TensorOutput for GRUState {
    fn tensors<'a>(&'a self, out: &mut Vec<&'a Tensor>) {
        self.0.tensors(out);
    }

    fn tensors_mut<'a>(&'a mut self, out: &mut Vec<&'a mut Tensor>) {
        self.0.tensors_mut(out);
    }
}

macro_rules! tuples {
    ($($name:ident $index:tt),+) => {
        impl<$($name: TensorOutput),+> TensorOutput for ($($name,)+) {
            fn tensors<'a>(&'a self, out: &mut Vec<&'a Tensor>) {
                $(self.$index.tensors(out);)+
            }

            fn tensors_mut<'a>(&'a mut self, out: &mut Vec<&'a mut Tensor>) {
                $(self.$index.tensors_mut(out);)+
            }
        }
    };
}

tuples!(A 0);
tuples!(A 0, B 1);
tuples!(A 0, B 1, C 2);
tuples!(A 0, B 1, C 2, D 3);
tuples!(A 0, B 1, C 2, D 3, E 4);
tuples!(A 0, B 1, C 2, D 3, E 4, F 5);
tuples!(A 0, B 1, C 2, D 3, E 4, F 5, G 6);
tuples!(A 0, B 1, C 2, D 3, E 4, F 5, G 6, H 7);
tuples!(A 0, B 1, C 2, D 3, E 4, F 5, G 6, H 7, I 8);
tuples!(A 0, B 1, C 2, D 3, E 4, F 5, G 6, H 7, I 8, J 9);
tuples!(A 0, B 1, C 2, D 3, E 4, F 5, G 6, H 7, I 8, J 9, K 10);
tuples!(A 0, B 1, C 2, D 3, E 4, F 5, G 6, H 7, I 8, J 9, K 10, L 11);
