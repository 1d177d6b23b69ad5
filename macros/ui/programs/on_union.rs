// A union.
use tch::{Tensor, nn};
use tch_ddp::data_parallel;


use std::mem::ManuallyDrop;

#[data_parallel]
union Either {
    fc: ManuallyDrop<nn::Linear>,
    mean: ManuallyDrop<Tensor>,
}

fn main() {}
