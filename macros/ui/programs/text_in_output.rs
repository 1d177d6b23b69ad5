// Text in one variant of an output.
use tch::Tensor;
use tch_ddp::TensorOutput;

#[derive(TensorOutput)]
enum Reply {
    Logits(Tensor),
    Refused(String),
}

fn main() {}
