// A count beside the tensor that a forward returns.
use tch::{Tensor, nn};
use tch_ddp::data_parallel;


struct Net {
    fc: nn::Linear,
}

#[data_parallel]
impl Net {
    fn forward_t(&self, x: &Tensor, train: bool) -> (Tensor, Option<usize>) {
        (x.apply_t(&self.fc, train), None)
    }
}

fn main() {}
