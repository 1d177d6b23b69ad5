//! A stack of blocks beside a raw parameter and an optional layer.
#![expect(clippy::needless_pass_by_value, reason = "much of the code for tch takes paths so")]

use ddp_tests::test_name;
use tch::{Kind, Tensor, nn};
use tch_ddp::data_parallel;

use super::common::{Shape, classes, linear, names, waves};

const WIDTH: i64 = 6;

#[data_parallel]
struct Block {
    norm: nn::LayerNorm,
    mlp: (nn::Linear, nn::Linear),
}

#[data_parallel]
struct Vit {
    patch: nn::Conv2D,
    class_token: Tensor,
    blocks: Vec<Block>,
    head: Option<nn::Linear>,
}

impl Block {
    fn new(p: nn::Path) -> Self {
        Self {
            norm: nn::layer_norm(&p / "norm", vec![WIDTH], nn::LayerNormConfig::default()),
            mlp: (linear(&p / "up", WIDTH, 2 * WIDTH), linear(&p / "down", 2 * WIDTH, WIDTH)),
        }
    }

    fn forward(&self, x: &Tensor) -> Tensor {
        x + x.apply(&self.norm).apply(&self.mlp.0).tanh().apply(&self.mlp.1)
    }
}

impl Vit {
    fn new(vs: nn::Path, n_blocks: i64, n_classes: Option<i64>) -> Self {
        let blocks = &vs / "blocks";
        let stride = nn::ConvConfig { stride: 4, ..nn::ConvConfig::default() };
        Self {
            patch: nn::conv2d(&vs / "patch", 1, WIDTH, 4, stride),
            class_token: vs.zeros("cls", &[1, 1, WIDTH]),
            blocks: (0..n_blocks).map(|k| Block::new(&blocks / k)).collect(),
            head: n_classes.map(|n| linear(&vs / "head", WIDTH, n)),
        }
    }

    fn forward(&self, x: &Tensor) -> Tensor {
        let x = x.apply(&self.patch).flatten(2, -1).transpose(1, 2);
        let token = self.class_token.expand([x.size()[0], 1, WIDTH], true);
        let x = self.blocks.iter().fold(Tensor::cat(&[token, x], 1), |x, it| it.forward(&x));
        x.mean_dim(1, false, Kind::Double).apply_opt(&self.head)
    }
}

#[test]
fn two_ranks_train_a_stack_of_blocks_as_one_process_does() {
    let shape = Shape {
        build: |p| {
            let net = Vit::new(p.clone(), 2, Some(3));
            net.register(p)?;
            Ok(net)
        },
        forward: Vit::forward,
        loss: |logits, y| logits.cross_entropy_for_logits(y),
        batch: || (waves(&[1, 8, 8], 0.23), classes(&[], 3)),
        unused: false,
    };
    shape.trains_alike(test_name!());
}

#[test]
fn names_are_those_of_the_constructor_and_nothing_is_registered_twice() {
    let vs = nn::VarStore::new(tch::Device::Cpu);
    let net = Vit::new(vs.root(), 1, None);
    let report = net.register(&vs.root()).unwrap();
    assert_eq!(report.late().count(), 0);
    let entry = report.entries.iter().find(|entry| entry.field == "class_token").unwrap();
    assert_eq!(entry.name.as_deref(), Some("cls"));
    let entry = report.entries.iter().find(|entry| entry.field == "blocks[0].mlp.1.bs").unwrap();
    assert_eq!(entry.name.as_deref(), Some("blocks.0.down.bias"));
    assert_eq!(names(&vs).len(), 9);
}
