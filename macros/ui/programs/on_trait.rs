// The attribute on a trait.
use tch::{Tensor, nn};
use tch_ddp::data_parallel;


#[data_parallel]
trait Backbone {
    fn forward(&self, x: &Tensor) -> Tensor;
}

struct Net(nn::Linear);

fn main() {}
