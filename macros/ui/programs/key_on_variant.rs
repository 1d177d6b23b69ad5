// A key on a variant of an enum.
use tch::{Tensor, nn};
use tch_ddp::data_parallel;


#[data_parallel]
enum Stage {
    #[dp(skip)]
    Plain(nn::Linear),
    Scaled(nn::Linear, Tensor),
}

fn main() {}
