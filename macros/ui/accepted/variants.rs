//! Every kind of variant, and enums without fields or without variants.
#![cfg_attr(not(test), allow(unused))]

use tch::{Tensor, nn};
use tch_ddp::data_parallel;

#[cfg(test)]
use super::{fields, layer, learnable};

#[data_parallel]
enum Stage {
    Plain(nn::Linear),
    Pair(nn::Linear, Tensor),
    Cross { inner: Box<nn::Linear>, gain: Option<Tensor> },
    Nothing,
}

#[data_parallel]
#[derive(Debug, Clone, Copy, PartialEq)]
enum Mode {
    Fast,
    Slow,
}

#[data_parallel]
enum Never {}

#[data_parallel]
struct Net {
    stages: Vec<Stage>,
    mode: Mode,
    never: Option<Never>,
}

#[test]
fn the_live_variant_is_walked() {
    let vs = nn::VarStore::new(tch::Device::Cpu);
    let net = Net {
        stages: vec![
            Stage::Plain(layer(&vs, "a")),
            Stage::Pair(layer(&vs, "b"), learnable()),
            Stage::Cross { inner: Box::new(layer(&vs, "c")), gain: Some(learnable()) },
            Stage::Nothing,
        ],
        mode: Mode::Slow,
        never: None,
    };
    let report = net.register(&vs.root()).unwrap();
    let late: Vec<_> = report.late().collect();
    assert_eq!(late, ["stages.1.1", "stages.2.gain"]);
    assert_eq!(fields(&report).len(), 8);
    assert_ne!(net.mode, Mode::Fast);
    assert!(net.never.is_none());
}

#[cfg(not(test))]
fn main() {}
