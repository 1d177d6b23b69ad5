// A model as a type parameter that has no attribute itself.
use tch::{Tensor, nn};
use tch_ddp::data_parallel;


struct Plain {
    fc: nn::Linear,
}

#[data_parallel]
struct Net<B> {
    backbone: Vec<B>,
    scale: Tensor,
}

fn build(vs: &nn::VarStore, scale: Tensor) -> tch_ddp::Result<Net<Plain>> {
    let fc = nn::linear(vs.root(), 2, 2, Default::default());
    let net = Net { backbone: vec![Plain { fc }], scale };
    net.register(&vs.root())?;
    Ok(net)
}

fn main() {}
