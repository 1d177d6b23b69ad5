// A pattern where a name belongs.
use tch::{Tensor, nn};
use tch_ddp::data_parallel;


#[data_parallel]
struct Net {
    fc: nn::Linear,
    #[dp(rename = "H_{k}")]
    extra: Vec<Tensor>,
}

fn main() {}
