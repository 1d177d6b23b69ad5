//! Bounds of the user in place of those of the walk.
#![cfg_attr(not(test), allow(unused))]

use tch::nn;
use tch_ddp::{Replicable, data_parallel};

#[cfg(test)]
use super::{fields, layer};

struct Causal;

#[data_parallel(bound = "")]
struct Attention<S> {
    query: nn::Linear,
    strategy: S,
}

#[data_parallel(bound = "B: Replicable")]
struct Net<S, B> {
    body: B,
    attention: Attention<S>,
}

#[test]
fn a_strategy_without_the_trait_is_opaque_and_the_rest_is_walked() {
    let vs = nn::VarStore::new(tch::Device::Cpu);
    let attention = Attention { query: layer(&vs, "query"), strategy: Causal };
    let net = Net { body: layer(&vs, "body"), attention };
    let report = net.register(&vs.root()).unwrap();
    assert_eq!(
        fields(&report),
        ["body.ws", "body.bs", "attention.query.ws", "attention.query.bs", "attention.strategy"]
    );
    let Causal = net.attention.strategy;
}

#[cfg(not(test))]
fn main() {}
