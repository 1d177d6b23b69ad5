// A key of a field among the arguments of the attribute.
use tch::{Tensor, nn};
use tch_ddp::data_parallel;


#[data_parallel(buffer)]
struct Net {
    fc: nn::Linear,
    mean: Tensor,
}

fn main() {}
