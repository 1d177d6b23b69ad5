// One key in two attributes.
use tch::{Tensor, nn};
use tch_ddp::data_parallel;


#[data_parallel]
struct Net {
    fc: nn::Linear,
    #[dp(rename = "a")]
    #[dp(rename = "b")]
    extra: Tensor,
}

fn main() {}
