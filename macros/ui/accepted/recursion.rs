//! A type that holds itself.
#![cfg_attr(not(test), allow(unused))]

use tch::nn;
use tch_ddp::data_parallel;

#[cfg(test)]
use super::{fields, layer};

#[data_parallel]
struct Tree<L> {
    layer: L,
    left: Option<Box<Tree<L>>>,
    right: Vec<Tree<L>>,
}

#[test]
fn the_walk_goes_down() {
    let vs = nn::VarStore::new(tch::Device::Cpu);
    let leaf = |name| Tree { layer: layer(&vs, name), left: None, right: Vec::new() };
    let tree =
        Tree { layer: layer(&vs, "a"), left: Some(Box::new(leaf("b"))), right: vec![leaf("c")] };
    let report = tree.register(&vs.root()).unwrap();
    assert_eq!(
        fields(&report),
        [
            "layer.ws",
            "layer.bs",
            "left.layer.ws",
            "left.layer.bs",
            "right[0].layer.ws",
            "right[0].layer.bs"
        ]
    );
}

#[cfg(not(test))]
fn main() {}
