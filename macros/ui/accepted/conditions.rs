//! Fields and variants that are compiled away.
#![cfg_attr(not(test), allow(unused))]

use tch::{Tensor, nn};
use tch_ddp::data_parallel;

#[cfg(test)]
use super::{fields, learnable};

#[data_parallel]
struct Net {
    #[cfg(any())]
    missing: DoesNotExist,
    #[cfg(any(unix, not(unix)))]
    scale: Tensor,
    #[cfg_attr(any(unix, not(unix)), dp(rename = "offset"))]
    shift: Tensor,
}

#[data_parallel]
enum Stage {
    #[cfg(any())]
    Missing(DoesNotExist),
    Plain(Net),
}

#[test]
fn only_what_is_there_is_walked() {
    let vs = nn::VarStore::new(tch::Device::Cpu);
    let Stage::Plain(net) = Stage::Plain(Net { scale: learnable(), shift: learnable() });
    let report = Stage::Plain(net).register(&vs.root()).unwrap();
    assert_eq!(fields(&report), ["scale", "shift"]);
    assert_eq!(report.late().last(), Some("offset"));
}

#[cfg(not(test))]
fn main() {}
