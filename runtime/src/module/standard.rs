//! The walk through the standard library's containers, and the types that hold no tensors.
//! Elements are named by their index, maps are walked in the order of their keys.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, HashMap, VecDeque};
use std::fmt::Display;
use std::marker::PhantomData;
use std::rc::Rc;
use std::sync::{Arc, Mutex, RwLock, TryLockError};

use tch::Tensor;

use super::{Hidden, Replicable, Visitor};
use crate::walk::sorted;

impl Replicable for Tensor {
    fn visit(&self, visitor: &mut Visitor<'_>) {
        visitor.tensor(self);
    }
}

macro_rules! no_tensors {
    ($($type:ty),+ $(,)?) => {$(
        impl Replicable for $type {
            fn visit(&self, _: &mut Visitor<'_>) {}
        }
    )+};
}

no_tensors!(
    (),
    bool,
    char,
    str,
    String,
    u8,
    u16,
    u32,
    u64,
    u128,
    usize,
    i8,
    i16,
    i32,
    i64,
    i128,
    isize,
    f32,
    f64,
    std::path::Path,
    std::path::PathBuf,
    std::time::Duration,
    std::time::Instant,
    tch::Device,
    tch::Kind,
    tch::Reduction,
    tch::nn::Init,
    tch::nn::LinearConfig,
    tch::nn::EmbeddingConfig,
    tch::nn::LayerNormConfig,
    tch::nn::GroupNormConfig,
    tch::nn::BatchNormConfig,
    tch::nn::RNNConfig,
);

impl<ND> Replicable for tch::nn::ConvConfigND<ND> {
    fn visit(&self, _: &mut Visitor<'_>) {}
}

impl<ND> Replicable for tch::nn::ConvTransposeConfigND<ND> {
    fn visit(&self, _: &mut Visitor<'_>) {}
}

impl<T: ?Sized> Replicable for PhantomData<T> {
    fn visit(&self, _: &mut Visitor<'_>) {}
}

/// A `Cell` can only be read by copying, and a tensor cannot be copied: it holds none.
impl<T: Copy> Replicable for Cell<T> {
    fn visit(&self, _: &mut Visitor<'_>) {}
}

impl<T: Replicable> Replicable for Option<T> {
    fn visit(&self, visitor: &mut Visitor<'_>) {
        if let Some(value) = self {
            value.visit(visitor);
        }
    }
}

impl<T: Replicable + ?Sized> Replicable for Box<T> {
    fn visit(&self, visitor: &mut Visitor<'_>) {
        (**self).visit(visitor);
    }
}

impl<T: Replicable> Replicable for [T] {
    fn visit(&self, visitor: &mut Visitor<'_>) {
        for (k, element) in self.iter().enumerate() {
            visitor.key(&k);
            element.visit(visitor);
            visitor.leave();
        }
    }
}

impl<T: Replicable, const N: usize> Replicable for [T; N] {
    fn visit(&self, visitor: &mut Visitor<'_>) {
        self.as_slice().visit(visitor);
    }
}

impl<T: Replicable> Replicable for Vec<T> {
    fn visit(&self, visitor: &mut Visitor<'_>) {
        self.as_slice().visit(visitor);
    }
}

impl<T: Replicable> Replicable for VecDeque<T> {
    fn visit(&self, visitor: &mut Visitor<'_>) {
        for (k, element) in self.iter().enumerate() {
            visitor.key(&k);
            element.visit(visitor);
            visitor.leave();
        }
    }
}

macro_rules! maps {
    ($([$($generics:tt)*] $type:ty),+ $(,)?) => {$(
        impl<K: Ord + Display, V: Replicable, $($generics)*> Replicable for $type {
            fn visit(&self, visitor: &mut Visitor<'_>) {
                for (key, value) in sorted(self.iter()) {
                    visitor.key(key);
                    value.visit(visitor);
                    visitor.leave();
                }
            }
        }
    )+};
}

maps!([] BTreeMap<K, V>, [S] HashMap<K, V, S>);

macro_rules! shared {
    ($([$($lifetime:lifetime)?] $type:ty),+ $(,)?) => {$(
        impl<$($lifetime,)? T: Replicable + ?Sized> Replicable for $type {
            fn visit(&self, visitor: &mut Visitor<'_>) {
                if visitor.replaces() {
                    visitor.hidden(Hidden::Shared);
                } else {
                    (**self).visit(visitor);
                }
            }
        }
    )+};
}

shared!(['a] &'a T, [] Rc<T>, [] Arc<T>);

impl<T: Replicable + ?Sized> Replicable for &mut T {
    fn visit(&self, visitor: &mut Visitor<'_>) {
        (**self).visit(visitor);
    }
}

impl<T: Replicable> Replicable for RefCell<T> {
    fn visit(&self, visitor: &mut Visitor<'_>) {
        match self.try_borrow() {
            Ok(value) => value.visit(visitor),
            Err(_) => visitor.hidden(Hidden::Locked),
        }
    }
}

macro_rules! locks {
    ($($type:ident $read:ident),+) => {$(
        impl<T: Replicable> Replicable for $type<T> {
            fn visit(&self, visitor: &mut Visitor<'_>) {
                match self.$read() {
                    Ok(value) => value.visit(visitor),
                    Err(TryLockError::Poisoned(broken)) => broken.into_inner().visit(visitor),
                    Err(TryLockError::WouldBlock) => visitor.hidden(Hidden::Locked),
                }
            }
        }
    )+};
}

locks!(Mutex try_lock, RwLock try_read);

macro_rules! tuples {
    ($($name:ident $index:tt),+) => {
        impl<$($name: Replicable),+> Replicable for ($($name,)+) {
            fn visit(&self, visitor: &mut Visitor<'_>) {
                $(
                    visitor.enter(stringify!($index));
                    self.$index.visit(visitor);
                    visitor.leave();
                )+
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
