// A key that is nearly right.
use tch::{Tensor, nn};
use tch_ddp::data_parallel;


#[data_parallel]
struct Net {
    fc: nn::Linear,
    #[dp(para)]
    extra: Tensor,
}

fn main() {}
