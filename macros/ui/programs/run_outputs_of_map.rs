// An output of the wrong kind given to a function that wants one.
use std::collections::HashMap;

use tch::Tensor;
use tch_ddp::TensorOutput;

struct Counts(HashMap<String, i64>);

fn flatten(output: &impl TensorOutput) -> usize {
    let mut tensors = Vec::new();
    output.tensors(&mut tensors);
    tensors.len()
}

fn demo(logits: Tensor) -> usize {
    flatten(&(logits, Counts(HashMap::new())))
}

fn main() {}
