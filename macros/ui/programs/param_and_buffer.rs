// Two roles that exclude each other.
use tch::{Tensor, nn};
use tch_ddp::data_parallel;


#[data_parallel]
struct Net {
    fc: nn::Linear,
    #[dp(param, buffer)]
    extra: Tensor,
}

fn main() {}
