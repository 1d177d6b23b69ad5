//! Maps in the order of their keys.
#![cfg_attr(not(test), allow(unused))]

use std::collections::{BTreeMap, HashMap, VecDeque};

use tch::{Tensor, nn};
use tch_ddp::data_parallel;

#[cfg(test)]
use super::{fields, learnable};

#[data_parallel]
struct Net {
    by_name: HashMap<String, Tensor>,
    by_number: BTreeMap<u8, (Tensor, f64)>,
    by_pair: HashMap<(u8, u8), Tensor>,
    queue: VecDeque<Tensor>,
    #[dp(name = "expert_{k}")]
    experts: HashMap<&'static str, Tensor>,
}

#[cfg(test)]
fn net() -> Net {
    Net {
        by_name: ["b", "c", "a"].map(|key| (key.to_owned(), learnable())).into(),
        by_number: [(10, (learnable(), 1.0)), (9, (learnable(), 2.0))].into(),
        by_pair: [((0, 0), learnable())].into(),
        queue: [learnable()].into(),
        experts: [("law", learnable()), ("art", learnable())].into(),
    }
}

#[test]
fn keys_name_the_variables() {
    let vs = nn::VarStore::new(tch::Device::Cpu);
    let report = net().register(&vs.root()).unwrap();
    let late: Vec<_> = report.late().collect();
    assert_eq!(
        late,
        [
            "by_name.a",
            "by_name.b",
            "by_name.c",
            "by_number.9.0",
            "by_number.10.0",
            "queue.0",
            "expert_art",
            "expert_law"
        ]
    );
    assert!(fields(&report).contains(&"by_pair"), "reported as opaque");
}

#[test]
fn a_dot_in_a_key_is_refused() {
    let vs = nn::VarStore::new(tch::Device::Cpu);
    let mut net = net();
    net.by_name.insert("v1.5".to_owned(), learnable());
    let error = net.register(&vs.root()).unwrap_err().to_string();
    assert!(error.contains("`by_name[v1.5]`") && error.contains("keys without dots"), "{error}");
    assert!(vs.is_empty());
}

#[cfg(not(test))]
fn main() {}
