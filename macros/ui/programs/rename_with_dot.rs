// A dot in a name.
use tch::{Tensor, nn};
use tch_ddp::data_parallel;


#[data_parallel]
struct Net {
    fc: nn::Linear,
    #[dp(rename = "head.scale")]
    extra: Tensor,
}

fn main() {}
