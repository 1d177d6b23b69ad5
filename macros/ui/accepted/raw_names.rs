//! Fields, types and variants with reserved words for names.
#![cfg_attr(not(test), allow(unused))]

use tch::{Tensor, nn};
use tch_ddp::data_parallel;

#[cfg(test)]
use super::learnable;

#[data_parallel]
struct Net {
    r#type: Tensor,
    r#match: Vec<Tensor>,
}

#[test]
fn names_have_no_r() {
    let vs = nn::VarStore::new(tch::Device::Cpu);
    let report =
        Net { r#type: learnable(), r#match: vec![learnable()] }.register(&vs.root()).unwrap();
    let late: Vec<_> = report.late().collect();
    assert_eq!(late, ["type", "match.0"]);
}

#[cfg(not(test))]
fn main() {}
