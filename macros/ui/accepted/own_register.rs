//! A model with a method `register` of its own.
#![cfg_attr(not(test), allow(unused))]

use tch::{Tensor, nn};
use tch_ddp::data_parallel;

#[cfg(test)]
use super::learnable;

#[data_parallel(register = "register_tensors")]
struct Hub {
    scale: Tensor,
    users: Vec<String>,
}

impl Hub {
    fn register(&mut self, user: &str) -> usize {
        self.users.push(user.to_owned());
        self.users.len()
    }
}

#[test]
fn both_can_be_called() {
    let vs = nn::VarStore::new(tch::Device::Cpu);
    let mut hub = Hub { scale: learnable(), users: Vec::new() };
    assert_eq!(hub.register("a"), 1);
    assert_eq!(hub.register_tensors(&vs.root()).unwrap().late().count(), 1);
}

#[cfg(not(test))]
fn main() {}
