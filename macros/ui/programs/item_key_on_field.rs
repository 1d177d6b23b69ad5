// A key of the struct on a field.
use tch::{Tensor, nn};
use tch_ddp::data_parallel;


#[data_parallel]
struct Net {
    fc: nn::Linear,
    #[dp(bound = "")]
    extra: Tensor,
}

fn main() {}
