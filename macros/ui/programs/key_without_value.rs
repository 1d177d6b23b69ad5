// A key without its value.
use tch::{Tensor, nn};
use tch_ddp::data_parallel;


#[data_parallel]
struct Net {
    fc: nn::Linear,
    #[dp(rename)]
    extra: Tensor,
}

fn main() {}
