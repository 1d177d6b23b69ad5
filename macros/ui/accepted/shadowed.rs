//! Names of the prelude and of the runtime that mean something else here.
#![cfg_attr(not(test), allow(unused))]

use tch::{Tensor as T, nn as layers};
use tch_ddp::{TensorOutput as Returned, data_parallel as parallel};

#[cfg(test)]
use super::fields;

#[expect(dead_code, reason = "only shadow")]
mod shadows {
    pub(super) struct Option;
    pub(super) struct Result;
    pub(super) struct Visitor;
    pub(super) struct Replicable;
    pub(super) struct Role;
    pub(super) fn visit() {}
    pub(super) mod core {}
    pub(super) mod std {}
}

#[expect(unused_imports, reason = "only shadow")]
use shadows::*;

#[parallel(new(n: usize))]
struct Net {
    #[dp(param, count = "n", shape = "[1]", init = "0.0")]
    list: Vec<T>,
    #[dp(build = "(T::from(1f32).view(1), n)")]
    pair: (T, usize),
}

#[derive(Returned)]
struct Out(T);

#[parallel]
impl Net {
    fn forward(&self) -> Out {
        Out(&self.list[0] + &self.pair.0)
    }
}

#[test]
fn generated_code_does_not_care() {
    let vs = layers::VarStore::new(tch::Device::Cpu);
    let net = Net::new(&vs.root(), 2).unwrap();
    assert_eq!(fields(&net.register(&vs.root()).unwrap()), ["list[0]", "list[1]", "pair.0"]);
    assert_eq!(net.forward().0.size(), [1]);
}

#[cfg(not(test))]
fn main() {}
