// A key of the struct on an impl block.
use tch::{Tensor, nn};
use tch_ddp::data_parallel;


struct Net {
    fc: nn::Linear,
}

#[data_parallel(new(size: i64))]
impl Net {
    fn forward(&self, x: &Tensor) -> Tensor {
        x.apply(&self.fc)
    }
}

fn main() {}
