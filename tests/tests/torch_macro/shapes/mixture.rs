//! Generics, an enum, a trait object and experts, some of which no row is sent to.

use ddp_tests::test_name;
use tch::{Device, Kind, Tensor, nn};
use tch_ddp::data_parallel;

use super::common::{ROWS, Shape, linear, names, waves};

trait Backbone {
    fn forward(&self, x: &Tensor) -> Tensor;
}

#[data_parallel]
struct Mlp(nn::Linear);

#[data_parallel]
struct Cross {
    gain: Vec<Tensor>,
    inner: nn::Linear,
}

#[data_parallel]
enum Stage {
    Plain(Mlp),
    Cross(Box<Cross>),
}

#[data_parallel]
struct Moe<B: Backbone, const N: usize> {
    backbone: B,
    stages: Vec<Stage>,
    experts: [Option<Mlp>; N],
    act: Box<dyn Fn(&Tensor) -> Tensor + Send>,
}

impl Backbone for Mlp {
    fn forward(&self, x: &Tensor) -> Tensor {
        x.apply(&self.0)
    }
}

fn moe(p: &nn::Path) -> Moe<Mlp, 3> {
    let gain = Tensor::ones([4], (p.kind(), p.device())).set_requires_grad(true);
    let cross = Cross { gain: vec![gain], inner: linear(p / "cross", 4, 4) };
    Moe {
        backbone: Mlp(linear(p / "backbone", 4, 4)),
        stages: vec![Stage::Plain(Mlp(linear(p / "plain", 4, 4))), Stage::Cross(Box::new(cross))],
        experts: [
            Some(Mlp(linear(p / "experts" / 0, 4, 4))),
            None,
            Some(Mlp(linear(p / "experts" / 2, 4, 4))),
        ],
        act: Box::new(Tensor::tanh),
    }
}

impl<B: Backbone, const N: usize> Moe<B, N> {
    /// Rows whose first number is positive go to expert 2, the others to expert 0; an expert
    /// without rows does nothing.
    fn forward(&self, x: &Tensor) -> Tensor {
        let mut y = self.backbone.forward(x);
        for stage in &self.stages {
            y = match stage {
                Stage::Plain(mlp) => (self.act)(&mlp.forward(&y)),
                Stage::Cross(cross) => (y * &cross.gain[0]).apply(&cross.inner),
            };
        }
        let is_positive = x.select(1, 0).gt(0.0);
        for (expert, chosen) in [(2, &is_positive), (0, &is_positive.logical_not())] {
            let rows = chosen.nonzero().squeeze_dim(1);
            if let Some(Some(expert)) = self.experts.get(expert).filter(|_| rows.numel() > 0) {
                y = y.index_copy(0, &rows, &expert.forward(&y.index_select(0, &rows)));
            }
        }
        y
    }
}

/// All rows of the first rank go to one expert, all of the second to the other.
fn batch() -> (Tensor, Tensor) {
    let first_half = Tensor::arange(ROWS, (Kind::Int64, Device::Cpu)).lt(ROWS / 2);
    let offset = first_half.to_kind(Kind::Double) * 4.0 - 2.0;
    (waves(&[4], 0.41) + offset.unsqueeze(1), waves(&[4], 0.73))
}

#[test]
fn two_ranks_train_a_mixture_with_an_idle_expert_as_one_process_does() {
    let shape = Shape {
        build: |p| {
            let net = moe(p);
            net.register(p)?;
            Ok(net)
        },
        forward: Moe::forward,
        loss: |y, target| (y - target).square().mean(Kind::Double),
        batch,
        unused: true,
    };
    shape.trains_alike(test_name!());
}

#[test]
fn walks_go_through_parameters_enums_and_arrays() {
    let vs = nn::VarStore::new(Device::Cpu);
    let report = moe(&vs.root()).register(&vs.root()).unwrap();
    let fields: Vec<_> = report.entries.iter().map(|entry| entry.field.as_str()).collect();
    let expected = [
        "backbone.ws",
        "backbone.bs",
        "stages[0].ws",
        "stages[0].bs",
        "stages[1].gain[0]",
        "stages[1].inner.ws",
        "stages[1].inner.bs",
        "experts[0].ws",
        "experts[0].bs",
        "experts[2].ws",
        "experts[2].bs",
        "act",
    ];
    assert_eq!(fields, expected);
    assert!(names(&vs).contains(&"stages.1.gain.0".to_owned()));
}
