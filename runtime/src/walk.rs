//! How generated code looks into the fields of a model: one tag per type as it is written says how
//! values of it are walked, and the fields of that type come as one array of references. So a field
//! costs the compiler one reference; choices, loops and calls are made once per type.

use std::any::type_name;
use std::fmt::Display;
use std::marker::PhantomData;

use crate::module::{Hidden, Replicable, Visitor};

/// Ways to walk values of type `T`.
pub trait Walk<T: ?Sized> {
    fn walk(&self, value: &T, visitor: &mut Visitor<'_>);
}

/// Chooses a tag for `T` at compile time: `Probe::<T>::TAG` is the type's own constant where that
/// exists, and otherwise that of the trait. A constant, since a method would be called.
pub struct Probe<T: ?Sized>(PhantomData<T>);

/// The choice for types that can be walked.
impl<T: Replicable + ?Sized> Probe<T> {
    pub const TAG: Own = Own;
}

/// The choice for all others.
pub trait Unknown {
    const TAG: Opaque = Opaque;
}

impl<T: ?Sized> Unknown for Probe<T> {}

/// By the type's own implementation.
pub struct Own;

impl<T: Replicable + ?Sized> Walk<T> for Own {
    fn walk(&self, value: &T, visitor: &mut Visitor<'_>) {
        value.visit(visitor);
    }
}

/// Not at all; only said to be there.
pub struct Opaque;

impl<T: ?Sized> Walk<T> for Opaque {
    fn walk(&self, _: &T, visitor: &mut Visitor<'_>) {
        visitor.hidden(Hidden::Opaque(type_name::<T>()));
    }
}

/// Into an `Option` or a `Box`.
pub struct Inside<W>(pub W);

impl<T, W: Walk<T>> Walk<Option<T>> for Inside<W> {
    fn walk(&self, value: &Option<T>, visitor: &mut Visitor<'_>) {
        if let Some(value) = value {
            self.0.walk(value, visitor);
        }
    }
}

impl<T: ?Sized, W: Walk<T>> Walk<Box<T>> for Inside<W> {
    fn walk(&self, value: &Box<T>, visitor: &mut Visitor<'_>) {
        self.0.walk(value, visitor);
    }
}

/// Over the elements, `T`, of a list; of the standard library's or another.
pub struct Each<T, W>(pub W, pub PhantomData<T>);

#[expect(
    clippy::explicit_counter_loop,
    reason = "`enumerate` would be compiled with every model, for every list"
)]
impl<L, T, W> Walk<L> for Each<T, W>
where
    L: ?Sized,
    W: Walk<T>,
    for<'a> &'a L: IntoIterator<Item = &'a T>,
{
    fn walk(&self, list: &L, visitor: &mut Visitor<'_>) {
        let mut k = 0usize;
        for value in list {
            visitor.key(&k);
            self.0.walk(value, visitor);
            visitor.leave();
            k += 1;
        }
    }
}

/// Over the values, `V`, of a map, in the order of its keys.
pub struct Sorted<K, V, W>(pub W, pub PhantomData<(K, V)>);

impl<M, K, V, W> Walk<M> for Sorted<K, V, W>
where
    M: ?Sized,
    K: Ord + Display,
    W: Walk<V>,
    for<'a> &'a M: IntoIterator<Item = (&'a K, &'a V)>,
{
    fn walk(&self, map: &M, visitor: &mut Visitor<'_>) {
        for (key, value) in sorted(map) {
            visitor.key(key);
            self.0.walk(value, visitor);
            visitor.leave();
        }
    }
}

/// The entries of a map in the order of their keys.
pub(crate) fn sorted<K: Ord, V>(entries: impl IntoIterator<Item = (K, V)>) -> Vec<(K, V)> {
    let mut entries: Vec<_> = entries.into_iter().collect();
    entries.sort_by(|(a, _), (b, _)| a.cmp(b));
    entries
}

macro_rules! tuples {
    ($($type:ident $walk:ident $index:tt),+) => {
        impl<$($type, $walk: Walk<$type>),+> Walk<($($type,)+)> for ($($walk,)+) {
            fn walk(&self, value: &($($type,)+), visitor: &mut Visitor<'_>) {
                $(
                    visitor.enter(stringify!($index));
                    self.$index.walk(&value.$index, visitor);
                    visitor.leave();
                )+
            }
        }
    };
}

// The macro takes longer tuples for opaque: as many as the standard library prints.
tuples!(A Wa 0);
tuples!(A Wa 0, B Wb 1);
tuples!(A Wa 0, B Wb 1, C Wc 2);
tuples!(A Wa 0, B Wb 1, C Wc 2, D Wd 3);
tuples!(A Wa 0, B Wb 1, C Wc 2, D Wd 3, E We 4);
tuples!(A Wa 0, B Wb 1, C Wc 2, D Wd 3, E We 4, F Wf 5);
tuples!(A Wa 0, B Wb 1, C Wc 2, D Wd 3, E We 4, F Wf 5, G Wg 6);
tuples!(A Wa 0, B Wb 1, C Wc 2, D Wd 3, E We 4, F Wf 5, G Wg 6, H Wh 7);
tuples!(A Wa 0, B Wb 1, C Wc 2, D Wd 3, E We 4, F Wf 5, G Wg 6, H Wh 7, I Wi 8);
tuples!(A Wa 0, B Wb 1, C Wc 2, D Wd 3, E We 4, F Wf 5, G Wg 6, H Wh 7, I Wi 8, J Wj 9);
tuples!(
    A Wa 0, B Wb 1, C Wc 2, D Wd 3, E We 4, F Wf 5, G Wg 6, H Wh 7, I Wi 8, J Wj 9, K Wk 10
);
tuples!(
    A Wa 0, B Wb 1, C Wc 2, D Wd 3, E We 4, F Wf 5, G Wg 6, H Wh 7, I Wi 8, J Wj 9, K Wk 10,
    L Wl 11
);

/// Fields of one type, with the tag of the type.
pub trait Group {
    /// Walks the `k`-th of them.
    fn show(&self, k: usize, visitor: &mut Visitor<'_>);
}

impl<W: Walk<T>, T: ?Sized, const N: usize> Group for (W, [&T; N]) {
    fn show(&self, k: usize, visitor: &mut Visitor<'_>) {
        self.0.walk(self.1[k], visitor);
    }
}

/// Walks fields in their order: the next one is called what is next in `names`, which has spaces
/// between them, and is the next of the group that `order` says.
pub fn fields(visitor: &mut Visitor<'_>, names: &'static str, order: &[u8], groups: &[&dyn Group]) {
    let mut next = vec![0; groups.len()];
    for (name, &group) in names.split(' ').zip(order) {
        let group = usize::from(group);
        visitor.enter(name);
        groups[group].show(next[group], visitor);
        visitor.leave();
        next[group] += 1;
    }
}

/// A field with `#[dp(skip)]`.
pub fn skipped(visitor: &mut Visitor<'_>, name: &'static str) {
    visitor.enter(name);
    visitor.hidden(Hidden::Skipped);
    visitor.leave();
}
