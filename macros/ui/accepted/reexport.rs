//! The runtime under another name.
#![cfg_attr(not(test), allow(unused))]

mod toolkit {
    pub(crate) use tch_ddp as ddp;
}

use tch::{Tensor, nn};
use toolkit::ddp::{TensorOutput, data_parallel};

#[cfg(test)]
use super::{fields, learnable};

#[data_parallel(crate = "self::toolkit::ddp")]
struct Net {
    scale: Tensor,
}

#[derive(TensorOutput)]
#[dp(crate = "self::toolkit::ddp")]
struct Out(Tensor);

#[data_parallel(crate = "toolkit::ddp")]
impl Net {
    fn forward(&self, x: &Tensor) -> Out {
        Out(x * &self.scale)
    }
}

#[test]
fn generated_code_goes_through_the_given_path() {
    let vs = nn::VarStore::new(tch::Device::Cpu);
    let net = Net { scale: learnable() };
    assert_eq!(fields(&net.register(&vs.root()).unwrap()), ["scale"]);
    assert_eq!(net.forward(&Tensor::from(2f32)).0.size(), [2]);
}

#[cfg(not(test))]
fn main() {}
