//! `#[data_parallel]` and `#[derive(TensorOutput)]` on real tensors: what they accept, register and
//! replicate, and that the shapes in which people write tch models train on two ranks as in one
//! process. One test program, because linking several takes longer than running them.
#![cfg(feature = "torch")]

mod accepts;
mod density;
mod preflight;
mod register;
mod replicate;
mod shapes;
