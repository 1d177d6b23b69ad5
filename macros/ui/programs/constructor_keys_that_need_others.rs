// Declarations that lack their other half, all told at once.
use tch::{Tensor, nn};
use tch_ddp::data_parallel;


#[data_parallel(new(channels: i64))]
struct Net {
    #[dp(build = "nn::linear(path, channels, 2, Default::default())", init = "0.0")]
    fc: nn::Linear,
    #[dp(param, shape = "[channels]")]
    no_init: Tensor,
    #[dp(shape = "[channels]", init = "1.0")]
    no_role: Tensor,
    #[dp(param, shape = "[channels]", init = "1.0")]
    no_count: Vec<Tensor>,
    #[dp(param, count = "2", shape = "[channels]", init = "1.0")]
    no_list: Tensor,
    #[dp(param, count = "2", shape = "[channels]", init = "1.0")]
    fixed: [Tensor; 2],
    #[dp(param, build = "path.zeros(\"w\", &[1])", shape = "[channels]", init = "1.0")]
    both: Tensor,
}

fn main() {}
