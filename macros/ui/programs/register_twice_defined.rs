// A model with a method `register` of its own.
use tch::{Tensor, nn};
use tch_ddp::data_parallel;


#[data_parallel]
struct Net {
    fc: nn::Linear,
    scale: Tensor,
}

impl Net {
    fn register(&self) -> usize {
        2
    }
}

fn main() {}
