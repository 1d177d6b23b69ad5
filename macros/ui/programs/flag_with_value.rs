// A value for a key that takes none.
use tch::{Tensor, nn};
use tch_ddp::data_parallel;


#[data_parallel]
struct Net {
    fc: nn::Linear,
    #[dp(skip = true)]
    extra: Tensor,
}

fn main() {}
