// A key of a field on the struct.
use tch::{Tensor, nn};
use tch_ddp::data_parallel;


#[data_parallel]
#[dp(skip)]
struct Net {
    fc: nn::Linear,
    mean: Tensor,
}

fn main() {}
