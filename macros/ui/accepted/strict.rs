//! Generated code under the strictest lints.
#![forbid(unsafe_code)]
#![deny(warnings, unused, clippy::all, clippy::pedantic, unused_qualifications, missing_docs)]
#![deny(unreachable_pub, single_use_lifetimes, trivial_casts, unused_results)]
#![cfg_attr(not(test), allow(unused))]

use tch::{Tensor, nn};
use tch_ddp::{TensorOutput, data_parallel};

#[cfg(test)]
use super::{fields, layer, learnable};

#[data_parallel(new(width: i64))]
struct Net {
    #[dp(build = "nn::linear(path, width, width, nn::LinearConfig::default())")]
    layer: nn::Linear,
    #[dp(param, count = "2", shape = "[width]", init = "0.0")]
    weights: Vec<Tensor>,
}

#[data_parallel]
enum Stage {
    Plain(Net),
    Layers(Vec<(nn::Linear, Option<Tensor>)>),
}

#[derive(TensorOutput)]
struct Out {
    logits: Tensor,
}

#[data_parallel]
impl Net {
    fn forward(&self, x: &Tensor) -> Out {
        Out { logits: x.apply(&self.layer) * &self.weights[0] }
    }
}

#[test]
fn nothing_is_warned_about() {
    let vs = nn::VarStore::new(tch::Device::Cpu);
    let net = Net::new(&vs.root(), 2).unwrap();
    let x = Tensor::zeros([1, 2], (tch::Kind::Float, tch::Device::Cpu));
    assert_eq!(net.forward(&x).logits.size(), [1, 2]);
    let stages = [Stage::Plain(net), Stage::Layers(vec![(layer(&vs, "a"), Some(learnable()))])];
    let report = stages[1].register(&(vs.root() / "stages")).unwrap();
    assert!(fields(&report).contains(&"0[0].1") || fields(&report).contains(&"[0].1"));
}

#[cfg(not(test))]
fn main() {}
