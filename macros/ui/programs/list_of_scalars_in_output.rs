// A number inside of containers; the error points at the number.
use tch::Tensor;
use tch_ddp::TensorOutput;

#[derive(TensorOutput)]
struct Parsed {
    logits: Tensor,
    lengths: Option<Vec<(Tensor, i64)>>,
}

fn main() {}
