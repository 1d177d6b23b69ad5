// A key of another library.
use tch::{Tensor, nn};
use tch_ddp::data_parallel;


#[data_parallel]
struct Net {
    fc: nn::Linear,
    #[dp(ignore)]
    extra: Tensor,
}

fn main() {}
