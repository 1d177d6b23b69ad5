// A value without quotes.
use tch::{Tensor, nn};
use tch_ddp::data_parallel;


#[data_parallel]
struct Net {
    fc: nn::Linear,
    #[dp(rename = head)]
    extra: Tensor,
}

fn main() {}
