//! Parameters in a list: registered by hand, or never.

use ddp_tests::test_name;
use tch::{Kind, Tensor, nn};
use tch_ddp::data_parallel;

use super::common::{ROWS, Shape, names, waves};

#[data_parallel]
struct Axial {
    weights: Vec<Tensor>,
}

fn by_hand(p: &nn::Path) -> Axial {
    let weights = p / "weights";
    Axial { weights: (0..2).map(|k| weights.ones(&k.to_string(), &[4])).collect() }
}

fn never(p: &nn::Path) -> Axial {
    let one = || Tensor::ones([4], (p.kind(), p.device())).set_requires_grad(true);
    Axial { weights: (0..2).map(|_| one()).collect() }
}

impl Axial {
    fn forward(&self, x: &Tensor) -> Tensor {
        self.weights.iter().fold(x.shallow_clone(), |x, w| (x * w).tanh())
    }
}

const SHAPE: Shape<Axial, Tensor> = Shape {
    build: |p| {
        let net = never(p);
        net.register(p)?;
        Ok(net)
    },
    forward: Axial::forward,
    loss: |y, target| (y - target).square().mean(Kind::Double),
    batch: || (waves(&[4], 0.41), waves(&[4], 0.73)),
    unused: false,
};

#[test]
fn two_ranks_train_a_list_of_tensors_as_one_process_does() {
    SHAPE.trains_alike(test_name!());
}

#[test]
fn two_ranks_train_a_list_registered_by_hand_as_one_process_does() {
    let build = |p: &nn::Path<'_>| {
        let net = by_hand(p);
        anyhow::ensure!(net.register(p)?.late().count() == 0, "registered twice");
        Ok(net)
    };
    Shape { build, ..SHAPE }.trains_alike(test_name!());
}

#[test]
fn both_lists_end_under_the_same_names() {
    let (hand, late) = (nn::VarStore::new(tch::Device::Cpu), nn::VarStore::new(tch::Device::Cpu));
    by_hand(&hand.root()).register(&hand.root()).unwrap();
    let report = never(&late.root()).register(&late.root()).unwrap();
    assert_eq!(names(&hand), ["weights.0", "weights.1"]);
    assert_eq!(names(&late), names(&hand));
    assert!(report.to_string().contains("weights[1]  weights.1  parameter, registered now"));
    assert_eq!(ROWS % 2, 0);
}
