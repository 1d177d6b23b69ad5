// A model that owns its optimizer, inside of containers.
use tch::nn;
use tch_ddp::data_parallel;


#[data_parallel]
struct Net {
    fc: nn::Linear,
    extra: Option<Box<nn::Optimizer>>,
}

fn main() {}
