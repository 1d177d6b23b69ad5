//! Outputs of every kind.
#![cfg_attr(not(test), allow(unused))]

use std::collections::HashMap;

use tch::{Tensor, nn};
use tch_ddp::{TensorOutput, data_parallel};

#[derive(TensorOutput)]
struct Plain {
    logits: Tensor,
    hidden: Option<Vec<Tensor>>,
    #[dp(skip)]
    lengths: Vec<usize>,
}

#[derive(TensorOutput)]
struct Generic<T, S>
where
    S: Send,
{
    value: T,
    state: Box<[(S, Tensor); 2]>,
}

#[derive(TensorOutput)]
enum Either {
    One(Tensor),
    Two { first: Tensor, second: Plain },
    Neither,
}

#[derive(TensorOutput)]
struct Nothing;

#[derive(TensorOutput)]
#[dp(bound = "")]
struct Tagged<T>(Tensor, std::marker::PhantomData<T>);

struct Net;

#[data_parallel]
impl Net {
    fn forward(&self) -> Result<Either, tch::TchError> {
        Ok(Either::Neither)
    }
    fn forward_states(&self) -> (nn::LSTMState, nn::GRUState, HashMap<String, Plain>) {
        let t = || Tensor::from(1.0);
        let plain = Plain { logits: t(), hidden: None, lengths: vec![1] };
        (nn::LSTMState((t(), t())), nn::GRUState(t()), [("a".to_owned(), plain)].into())
    }
    fn forward_generic<T: TensorOutput>(&self, value: T) -> Option<Generic<T, Nothing>> {
        let t = || (Nothing, Tensor::from(1.0));
        Some(Generic { value, state: Box::new([t(), t()]) })
    }
    fn forward_iter<'a>(&'a self, x: &'a Tensor) -> impl Iterator<Item = Tensor> + 'a {
        x.split(1, 0).into_iter()
    }
}

fn count(output: &impl TensorOutput) -> usize {
    let mut found = Vec::new();
    output.tensors(&mut found);
    found.len()
}

#[test]
fn the_tensors_are_counted() {
    let t = || Tensor::from(1.0);
    assert_eq!(count(&Net.forward().unwrap()), 0);
    assert_eq!(count(&Net.forward_states()), 4);
    assert_eq!(count(&Net.forward_generic(vec![t(), t(), t()])), 5);
    let second = Plain { logits: t(), hidden: Some(vec![t()]), lengths: Vec::new() };
    assert!(second.lengths.is_empty());
    assert_eq!(count(&vec![Either::One(t()), Either::Two { first: t(), second }]), 4);
    assert_eq!(
        Net.forward_iter(&Tensor::zeros([3], (tch::Kind::Float, tch::Device::Cpu))).count(),
        3
    );
    assert_eq!(count(&Tagged::<u8>(t(), std::marker::PhantomData)), 1);
}

#[cfg(not(test))]
fn main() {}
