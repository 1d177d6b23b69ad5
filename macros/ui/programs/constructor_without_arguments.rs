// A constructor without its list of arguments.
use tch::{Tensor, nn};
use tch_ddp::data_parallel;


#[data_parallel(new)]
struct Net {
    #[dp(build = "nn::linear(path, 2, 2, Default::default())")]
    fc: nn::Linear,
    #[dp(buffer, shape = "[2]", init = "0.0")]
    mean: Tensor,
}

fn main() {}
