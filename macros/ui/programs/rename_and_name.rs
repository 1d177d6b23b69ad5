// Two ways to name.
use tch::{Tensor, nn};
use tch_ddp::data_parallel;


#[data_parallel]
struct Net {
    fc: nn::Linear,
    #[dp(rename = "w", name = "w_{k}")]
    extra: Vec<Tensor>,
}

fn main() {}
