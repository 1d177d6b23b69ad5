//! A definition that comes out of another macro.
#![cfg_attr(not(test), allow(unused))]

use tch::{Tensor, nn};
use tch_ddp::{TensorOutput, data_parallel};

#[cfg(test)]
use super::{fields, learnable};

macro_rules! model {
    ($name:ident<$($param:ident),*> { $($field:ident: $type:ty = $new:literal),+ }) => {
        #[data_parallel]
        struct $name<$($param),*> {
            $(#[dp(rename = $new)] $field: $type,)+
        }

        #[derive(TensorOutput)]
        struct Out($($type),+);
    };
}

model!(Net<> { scale: Tensor = "a", list: Option<Vec<Tensor>> = "b" });

#[test]
fn types_from_a_macro_are_looked_through() {
    let vs = nn::VarStore::new(tch::Device::Cpu);
    let net = Net { scale: learnable(), list: Some(vec![learnable()]) };
    let report = net.register(&vs.root()).unwrap();
    assert_eq!(fields(&report), ["scale", "list[0]"]);
    assert_eq!(report.late().collect::<Vec<_>>(), ["a", "b.0"]);
    let mut found = Vec::new();
    let out = Out(net.scale, net.list);
    out.tensors(&mut found);
    assert_eq!(found.len(), 2);
}

#[cfg(not(test))]
fn main() {}
