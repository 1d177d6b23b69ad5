// The return type hides behind an associated type.
use tch::{Tensor, nn};
use tch_ddp::data_parallel;


trait Scorer {
    type Score;
    fn forward(&self, x: &Tensor) -> Self::Score;
}

struct Net {
    fc: nn::Linear,
}

#[data_parallel]
impl Scorer for Net {
    type Score = f64;
    fn forward(&self, x: &Tensor) -> Self::Score {
        x.apply(&self.fc).double_value(&[])
    }
}

fn main() {}
