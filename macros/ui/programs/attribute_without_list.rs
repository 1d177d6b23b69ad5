// An attribute that says nothing.
use tch::{Tensor, nn};
use tch_ddp::data_parallel;


#[data_parallel]
struct Net {
    fc: nn::Linear,
    #[dp]
    extra: Tensor,
}

fn main() {}
