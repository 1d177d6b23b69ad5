//! Types of other crates, without the attribute, beside known ones.
#![cfg_attr(not(test), allow(unused))]

use std::process::Command;

use tch::{Tensor, nn};
use tch_ddp::data_parallel;
use tch_ddp::module::{Held, Hidden};

#[cfg(test)]
use super::{layer, learnable};

#[data_parallel]
struct Net {
    mixed: Vec<(nn::Linear, Command, Option<Tensor>)>,
    object: Box<dyn std::any::Any>,
    modules: Vec<Box<dyn nn::Module>>,
}

#[test]
fn what_stands_beside_the_unknown_is_not_lost() {
    let vs = nn::VarStore::new(tch::Device::Cpu);
    let net = Net {
        mixed: vec![(layer(&vs, "a"), Command::new("true"), Some(learnable()))],
        object: Box::new(0u8),
        modules: vec![Box::new(layer(&vs, "b"))],
    };
    let report = net.register(&vs.root()).unwrap();
    assert_eq!(report.late().collect::<Vec<_>>(), ["mixed.0.2"]);
    let hidden: Vec<_> = report
        .entries
        .iter()
        .filter_map(|entry| match &entry.held {
            Held::Hidden(Hidden::Opaque(name)) => Some((entry.field.as_str(), *name)),
            Held::Hidden(Hidden::Private(name)) => Some((entry.field.as_str(), *name)),
            _ => None,
        })
        .collect();
    assert_eq!(
        hidden,
        [
            ("mixed[0].1", "std::process::Command"),
            ("object", "dyn core::any::Any"),
            ("modules[0]", "dyn nn::Module")
        ]
    );
}

#[cfg(not(test))]
fn main() {}
