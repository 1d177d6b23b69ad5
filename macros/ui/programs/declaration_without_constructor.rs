// A declaration for a constructor that was not asked for.
use tch::{Tensor, nn};
use tch_ddp::data_parallel;


#[data_parallel]
struct Net {
    fc: nn::Linear,
    #[dp(param, shape = "[2]", init = "0.0")]
    extra: Tensor,
}

fn main() {}
