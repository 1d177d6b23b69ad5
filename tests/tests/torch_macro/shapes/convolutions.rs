//! Layers built on one path, as in the program that everyone copies: it works, with a warning.

use ddp_tests::test_name;
use tch::nn::{self, ModuleT};
use tch::{Kind, Tensor};
use tch_ddp::data_parallel;

use super::common::{Shape, classes, linear, names, waves};

#[data_parallel]
#[derive(Debug)]
struct Cnn {
    conv1: nn::Conv2D,
    conv2: nn::Conv2D,
    head: nn::Linear,
}

impl Cnn {
    fn new(vs: &nn::Path) -> Self {
        Self {
            conv1: nn::conv2d(vs, 1, 3, 3, nn::ConvConfig::default()),
            conv2: nn::conv2d(vs, 3, 4, 3, nn::ConvConfig::default()),
            head: linear(vs, 16, 5),
        }
    }
}

impl ModuleT for Cnn {
    fn forward_t(&self, x: &Tensor, train: bool) -> Tensor {
        let x = x.apply(&self.conv1).max_pool2d_default(2).relu();
        x.apply(&self.conv2).relu().flatten(1, -1).dropout(0.0, train).apply(&self.head)
    }
}

#[test]
fn two_ranks_train_a_flat_network_as_one_process_does() {
    let shape = Shape {
        build: |p| {
            let net = Cnn::new(p);
            net.register(p)?;
            Ok(net)
        },
        forward: |net, x| net.forward_t(x, true),
        loss: |logits, y| logits.cross_entropy_for_logits(y),
        batch: || (waves(&[1, 10, 10], 0.31), classes(&[], 5)),
        unused: false,
    };
    shape.trains_alike(test_name!());
}

#[test]
fn layers_on_one_path_are_warned_about_by_name() {
    let vs = nn::VarStore::new(tch::Device::Cpu);
    let report = Cnn::new(&vs.root()).register(&vs.root()).unwrap();
    assert_eq!(names(&vs).len(), 6);
    assert_eq!(report.late().count(), 0);
    let [warning] = report.warnings.as_slice() else { panic!("{:?}", report.warnings) };
    assert!(warning.contains("`bias__2` (and 3 more)"), "{warning}");
    assert!(warning.contains("each layer its own path"), "{warning}");
}

#[test]
fn layers_on_their_own_paths_are_not() {
    let vs = nn::VarStore::new(tch::Device::Cpu);
    let (conv, _) = (nn::conv2d(vs.root() / "a", 1, 1, 1, nn::ConvConfig::default()), Kind::Float);
    let net = Cnn { conv1: conv, conv2: conv2(&vs.root()), head: linear(vs.root() / "c", 1, 1) };
    assert!(net.register(&vs.root()).unwrap().warnings.is_empty());
}

fn conv2(p: &nn::Path) -> nn::Conv2D {
    nn::conv2d(p / "b", 1, 1, 1, nn::ConvConfig::default())
}
