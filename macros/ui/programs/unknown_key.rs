// A key that does not exist.
use tch::{Tensor, nn};
use tch_ddp::data_parallel;


#[data_parallel]
struct Net {
    fc: nn::Linear,
    #[dp(frozen)]
    extra: Tensor,
}

fn main() {}
