// The attribute on a function that returns a model.
use tch::{Tensor, nn};
use tch_ddp::data_parallel;


#[data_parallel]
fn model(p: nn::Path) -> impl nn::Module {
    let fc = nn::linear(p, 2, 2, Default::default());
    nn::func(move |x: &Tensor| x.apply(&fc))
}

fn main() {}
