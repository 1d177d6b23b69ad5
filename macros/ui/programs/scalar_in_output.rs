// A number beside the tensors of an output.
use tch::Tensor;
use tch_ddp::TensorOutput;

#[derive(TensorOutput)]
struct Scored {
    logits: Tensor,
    loss: f64,
}

fn main() {}
