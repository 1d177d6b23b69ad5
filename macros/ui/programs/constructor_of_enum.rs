// A constructor for an enum.
use tch::{Tensor, nn};
use tch_ddp::data_parallel;


#[data_parallel(new(size: i64))]
enum Stage {
    Plain(nn::Linear),
    Scaled(nn::Linear, Tensor),
}

fn main() {}
