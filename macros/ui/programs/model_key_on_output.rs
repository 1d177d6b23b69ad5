// Keys of a model on the fields of an output.
use tch::Tensor;
use tch_ddp::TensorOutput;

#[derive(TensorOutput)]
struct Out {
    #[dp(buffer)]
    logits: Tensor,
    #[dp(rename = "state")]
    hidden: Tensor,
    #[dp(count = "3")]
    layers: Vec<Tensor>,
}

fn main() {}
