//! Models without any struct: no attribute reaches them, and none is needed.

use anyhow::Result;
use ddp_tests::test_name;
use tch::nn::{self, ModuleT};
use tch::{Kind, Tensor};
use tch_ddp::data_parallel;
use tch_ddp::module::{Held, Hidden};

use super::common::{Shape, linear, waves};

#[expect(clippy::unnecessary_wraps, reason = "other builders can fail")]
fn mlp(p: &nn::Path) -> Result<Box<dyn ModuleT>> {
    let body = nn::seq_t()
        .add(linear(p / "first", 4, 8))
        .add_fn_t(|x, train| x.tanh().dropout(0.0, train))
        .add(linear(p / "second", 8, 4));
    let scale = p.ones("scale", &[4]);
    Ok(Box::new(nn::func_t(move |x, train| x.apply_t(&body, train) * &scale)))
}

#[test]
fn two_ranks_train_a_closure_as_one_process_does() {
    let shape = Shape {
        build: mlp,
        forward: |net, x| net.forward_t(x, true),
        loss: |y, target| (y - target).square().mean(Kind::Double),
        batch: || (waves(&[4], 0.41), waves(&[4], 0.73)),
        unused: false,
    };
    shape.trains_alike(test_name!());
}

#[test]
fn a_closure_inside_of_an_annotated_model_is_said_to_be_opaque() {
    #[data_parallel]
    struct Net {
        body: nn::FuncT<'static>,
        boxed: Box<dyn ModuleT>,
    }
    let vs = nn::VarStore::new(tch::Device::Cpu);
    let layer = linear(vs.root() / "layer", 1, 1);
    let net = Net {
        body: nn::func_t(move |x, _| x.apply(&layer)),
        boxed: Box::new(linear(vs.root() / "boxed", 1, 1)),
    };
    let report = net.register(&vs.root()).unwrap();
    let held: Vec<_> = report.entries.iter().map(|entry| entry.held.clone()).collect();
    let private = |name| Held::Hidden(Hidden::Private(name));
    assert_eq!(held, [private("nn::FuncT"), private("dyn nn::ModuleT")]);
    let x = Tensor::zeros([1], (Kind::Float, vs.device()));
    assert!(f64::try_from(net.body.forward_t(&x, false)).is_ok());
    assert_eq!(
        net.boxed.forward_t(&Tensor::zeros([2, 1], (Kind::Float, vs.device())), false).size(),
        [2, 1]
    );
}
