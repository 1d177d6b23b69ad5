//! Containers of other crates that are called like the standard library's and iterate like them.
#![cfg_attr(not(test), allow(unused))]

use tch::{Tensor, nn};
use tch_ddp::data_parallel;

#[cfg(test)]
use super::{fields, learnable};

mod small {
    pub struct Vec<T>(pub std::vec::Vec<T>);

    impl<'a, T> IntoIterator for &'a Vec<T> {
        type Item = &'a T;
        type IntoIter = std::slice::Iter<'a, T>;

        fn into_iter(self) -> Self::IntoIter {
            self.0.iter()
        }
    }

    impl<'a, T> IntoIterator for &'a mut Vec<T> {
        type Item = &'a mut T;
        type IntoIter = std::slice::IterMut<'a, T>;

        fn into_iter(self) -> Self::IntoIter {
            self.0.iter_mut()
        }
    }
}

#[data_parallel]
struct Net<'s> {
    scales: small::Vec<Option<Tensor>>,
    shared: Vec<&'s Tensor>,
}

#[test]
fn they_are_walked_too() {
    let vs = nn::VarStore::new(tch::Device::Cpu);
    let shared = learnable();
    let scales = small::Vec(vec![None, Some(learnable())]);
    let net = Net { scales, shared: vec![&shared] };
    let report = net.register(&vs.root()).unwrap();
    assert_eq!(fields(&report), ["scales[1]", "shared[0]"]);
    assert_eq!(report.late().collect::<Vec<_>>(), ["scales.1", "shared.0"]);
}

#[cfg(not(test))]
fn main() {}
