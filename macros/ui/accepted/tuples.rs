//! Tuple structs, newtypes and unit structs.
#![cfg_attr(not(test), allow(unused))]

use std::marker::PhantomData;

use tch::{Tensor, nn};
use tch_ddp::data_parallel;

#[cfg(test)]
use super::learnable;

#[data_parallel]
struct Unit;

#[data_parallel]
struct Newtype(Tensor);

#[data_parallel]
struct Pair<T>(#[dp(param)] Tensor, Newtype, Unit, PhantomData<T>);

#[test]
fn a_newtype_adds_nothing_to_a_name_and_a_tuple_its_numbers() {
    let vs = nn::VarStore::new(tch::Device::Cpu);
    let plain = learnable().set_requires_grad(false);
    let pair: Pair<u8> = Pair(plain, Newtype(learnable()), Unit, PhantomData);
    let report = pair.register(&vs.root()).unwrap();
    let late: Vec<_> = report.late().collect();
    assert_eq!(late, ["0", "1"]);
    assert_eq!(vs.trainable_variables().len(), 2);
    assert!(pair.0.requires_grad(), "declared to train");
}

#[cfg(not(test))]
fn main() {}
