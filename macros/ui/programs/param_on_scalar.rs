// A number that is to train.
use tch::nn;
use tch_ddp::data_parallel;


#[data_parallel]
struct Net {
    fc: nn::Linear,
    #[dp(param)]
    extra: f64,
}

fn main() {}
