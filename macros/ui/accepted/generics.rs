//! Type parameters, their associated types, defaults, bounds in either place.
#![cfg_attr(not(test), allow(unused))]

use tch::{Tensor, nn};
use tch_ddp::data_parallel;

#[cfg(test)]
use super::{fields, layer, learnable};

trait Body {
    type Layer;
}

struct Wide;

impl Body for Wide {
    type Layer = nn::Linear;
}

#[data_parallel]
struct Net<B: Body, H = nn::Linear>
where
    H: Send,
{
    layers: Vec<B::Layer>,
    twin: Option<<B as Body>::Layer>,
    head: H,
    scale: Vec<Tensor>,
}

#[test]
fn the_fields_behind_parameters_are_found() {
    let vs = nn::VarStore::new(tch::Device::Cpu);
    let net: Net<Wide> = Net {
        layers: vec![layer(&vs, "a")],
        twin: Some(layer(&vs, "b")),
        head: layer(&vs, "c"),
        scale: vec![learnable()],
    };
    let report = net.register(&vs.root()).unwrap();
    assert_eq!(
        fields(&report),
        ["layers[0].ws", "layers[0].bs", "twin.ws", "twin.bs", "head.ws", "head.bs", "scale[0]"]
    );
}

#[cfg(not(test))]
fn main() {}
