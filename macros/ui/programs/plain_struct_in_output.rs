// A struct of tensors that does not derive the trait.
use tch::Tensor;
use tch_ddp::TensorOutput;

struct Boxes {
    corners: Tensor,
}

#[derive(TensorOutput)]
struct Detected {
    scores: Tensor,
    boxes: Vec<Boxes>,
}

fn main() {}
