// A constructor for an output.
use tch::Tensor;
use tch_ddp::TensorOutput;

#[derive(TensorOutput)]
#[dp(new(size: i64))]
struct Out {
    logits: Tensor,
}

fn main() {}
