// A bound that is not a where-clause.
use tch::{Tensor, nn};
use tch_ddp::data_parallel;


#[data_parallel(bound = "B")]
struct Net<B> {
    fc: nn::Linear,
    mean: Tensor,
    body: B,
}

fn main() {}
