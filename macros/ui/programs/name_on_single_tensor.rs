// A pattern on one tensor.
use tch::{Tensor, nn};
use tch_ddp::data_parallel;


#[data_parallel]
struct Net {
    fc: nn::Linear,
    #[dp(name = "H_{k}")]
    extra: Option<Tensor>,
}

fn main() {}
