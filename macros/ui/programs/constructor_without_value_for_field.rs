// Fields that the generated constructor cannot make.
use tch::{Tensor, nn};
use tch_ddp::data_parallel;


#[data_parallel(new(channels: i64))]
struct Net {
    #[dp(build = "nn::linear(path, channels, 2, Default::default())")]
    fc: nn::Linear,
    scale: Tensor,
    dropout: f64,
}

fn main() {}
