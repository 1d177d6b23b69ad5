//! Closures as parameters, in boxes and as function pointers.
#![cfg_attr(not(test), allow(unused))]

use tch::{Tensor, nn};
use tch_ddp::data_parallel;

#[cfg(test)]
use super::layer;

#[data_parallel]
struct Net<F: Fn(&Tensor) -> Tensor, G>
where
    G: FnOnce() -> f64,
{
    layer: nn::Linear,
    act: F,
    start: Option<G>,
    boxed: Box<dyn Fn(&Tensor, bool) -> Tensor + Send>,
    pointer: fn(&Tensor) -> Tensor,
}

#[test]
fn a_closure_needs_no_attribute() {
    let vs = nn::VarStore::new(tch::Device::Cpu);
    let mut net = Net {
        layer: layer(&vs, "layer"),
        act: |x: &Tensor| x.relu(),
        start: Some(|| 2.0),
        boxed: Box::new(|x, _| x.tanh()),
        pointer: Tensor::sigmoid,
    };
    assert_eq!(net.register(&vs.root()).unwrap().entries.len(), 6);
    let x = Tensor::zeros([1], (tch::Kind::Float, tch::Device::Cpu));
    let y = (net.pointer)(&(net.boxed)(&(net.act)(&x), true));
    assert_eq!(f64::try_from(y).unwrap() + net.start.take().map_or(0.0, |it| it()), 2.5);
}

#[cfg(not(test))]
fn main() {}
