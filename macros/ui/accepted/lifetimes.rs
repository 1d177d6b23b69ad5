//! A model that borrows.
#![cfg_attr(not(test), allow(unused))]

use tch::{Tensor, nn};
use tch_ddp::data_parallel;

#[cfg(test)]
use super::{fields, layer, learnable};

#[data_parallel]
struct Head<'b, 's: 'b> {
    body: &'b nn::Linear,
    scale: &'s Tensor,
    name: &'static str,
}

#[test]
fn borrowed_layers_and_tensors_are_found() {
    let vs = nn::VarStore::new(tch::Device::Cpu);
    let (body, scale) = (layer(&vs, "body"), learnable());
    let head = Head { body: &body, scale: &scale, name: "head" };
    let report = head.register(&vs.root()).unwrap();
    assert_eq!(fields(&report), ["body.ws", "body.bs", "scale"]);
    assert_eq!(head.name, "head");
}

#[cfg(not(test))]
fn main() {}
