// A forward that returns a struct without the derive.
use tch::{Tensor, nn};
use tch_ddp::data_parallel;


struct Net {
    fc: nn::Linear,
}

struct Tagged {
    logits: Tensor,
}

#[data_parallel]
impl Net {
    fn forward(&self, x: &Tensor) -> Tagged {
        Tagged { logits: x.apply(&self.fc) }
    }
}

fn main() {}
