// A pattern without its index.
use tch::{Tensor, nn};
use tch_ddp::data_parallel;


#[data_parallel]
struct Net {
    fc: nn::Linear,
    #[dp(name = "H")]
    extra: Vec<Tensor>,
}

fn main() {}
