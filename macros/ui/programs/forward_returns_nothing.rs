// A forward that returns nothing.
use tch::{Tensor, nn};
use tch_ddp::data_parallel;


struct Net {
    fc: nn::Linear,
}

#[data_parallel]
impl Net {
    fn forward(&self, x: &Tensor) {
        x.apply(&self.fc).print();
    }
}

fn main() {}
