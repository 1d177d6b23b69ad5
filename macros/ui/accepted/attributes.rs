//! Other attributes and derives before and after, and documentation.
#![cfg_attr(not(test), allow(unused))]

use tch::nn;
use tch_ddp::data_parallel;

#[cfg(test)]
use super::{fields, layer};

/// Documented.
#[derive(Debug)]
#[data_parallel]
#[must_use]
struct Before {
    /// Documented too.
    #[dp(rename = "first")]
    layer: nn::Linear,
    #[dp(skip)]
    #[expect(dead_code, reason = "only printed")]
    note: String,
}

#[data_parallel]
#[derive(Debug)]
#[repr(transparent)]
struct After(#[dp(rename = "second")] Before);

#[test]
fn the_order_does_not_matter() {
    let vs = nn::VarStore::new(tch::Device::Cpu);
    let before = Before { layer: layer(&vs, "a"), note: "hello".to_owned() };
    let after = After(before);
    let report = after.register(&vs.root()).unwrap();
    assert_eq!(fields(&report), ["0.layer.ws", "0.layer.bs", "0.note"]);
    assert!(format!("{after:?}").contains("hello"));
}

#[cfg(not(test))]
fn main() {}
