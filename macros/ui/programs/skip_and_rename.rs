// A name for what is not registered.
use tch::{Tensor, nn};
use tch_ddp::data_parallel;


#[data_parallel]
struct Net {
    fc: nn::Linear,
    #[dp(skip, rename = "memory")]
    extra: Tensor,
}

fn main() {}
