// The return type depends on a parameter that promises nothing.
use tch::{Tensor, nn};
use tch_ddp::data_parallel;


trait Head {
    type Out;
    fn apply(&self, x: &Tensor) -> Self::Out;
}

struct Net<H> {
    fc: nn::Linear,
    head: H,
}

#[data_parallel]
impl<H: Head> Net<H> {
    fn forward(&self, x: &Tensor) -> (Tensor, H::Out) {
        let x = x.apply(&self.fc);
        let out = self.head.apply(&x);
        (x, out)
    }
}

fn main() {}
