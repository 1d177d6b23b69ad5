// A size that is no list.
use tch::{Tensor, nn};
use tch_ddp::data_parallel;


#[data_parallel(new(channels: i64))]
struct Net {
    #[dp(build = "nn::linear(path, channels, 2, Default::default())")]
    fc: nn::Linear,
    #[dp(param, shape = "channels", init = "0.0")]
    scale: Tensor,
}

fn main() {}
