//! A transformer's head with a configuration, many optional inputs and a struct for its output,
//! without `Debug` or `Clone`.

use std::borrow::Borrow;

use ddp_tests::test_name;
use tch::{Kind, Tensor, nn};
use tch_ddp::{TensorOutput, data_parallel};

use super::common::{Shape, classes, linear, names, waves};

enum Activation {
    Tanh,
    Gelu,
}

struct Config {
    width: i64,
    n_layers: i64,
    n_labels: i64,
    activation: Activation,
}

struct Dropout(f64);

#[data_parallel]
struct Encoder {
    layers: Vec<nn::Linear>,
    activation: Activation,
}

#[data_parallel]
pub(crate) struct TokenTagger {
    encoder: Encoder,
    dropout: Dropout,
    head: nn::Linear,
}

#[derive(TensorOutput)]
pub(crate) struct Tagged {
    pub(crate) logits: Tensor,
    pub(crate) hidden: Option<Vec<Tensor>>,
}

impl TokenTagger {
    fn new<'p, P: Borrow<nn::Path<'p>>>(p: P, config: Config) -> Self {
        let p = p.borrow();
        let layers = p / "encoder" / "layers";
        Self {
            encoder: Encoder {
                layers: (0..config.n_layers)
                    .map(|k| linear(&layers / k, config.width, config.width))
                    .collect(),
                activation: config.activation,
            },
            dropout: Dropout(0.1),
            head: linear(p / "head", config.width, config.n_labels),
        }
    }
}

#[data_parallel]
impl TokenTagger {
    pub(crate) fn forward_t(
        &self,
        embedded: Option<&Tensor>,
        mask: Option<&Tensor>,
        keep: bool,
        train: bool,
    ) -> Result<Tagged, tch::TchError> {
        let embedded = embedded.ok_or_else(|| tch::TchError::Shape("no input".to_owned()))?;
        let mut hidden = Vec::new();
        let mut x = embedded.shallow_clone();
        for layer in &self.encoder.layers {
            x = match self.encoder.activation {
                Activation::Tanh => x.apply(layer).tanh(),
                Activation::Gelu => x.apply(layer).gelu("none"),
            };
            hidden.push(x.shallow_clone());
        }
        let x = match mask {
            Some(mask) => x * mask.unsqueeze(-1),
            None => x,
        };
        let logits = x.dropout(self.dropout.0, train).apply(&self.head);
        Ok(Tagged { logits, hidden: keep.then_some(hidden) })
    }
}

fn tagger(p: &nn::Path, activation: Activation) -> TokenTagger {
    TokenTagger::new(p, Config { width: 6, n_layers: 2, n_labels: 3, activation })
}

#[test]
fn two_ranks_train_a_tagger_as_one_process_does() {
    let shape = Shape {
        build: |p| {
            let net = tagger(p, Activation::Tanh);
            net.register(p)?;
            Ok(net)
        },
        forward: |net, x| net.forward_t(Some(x), None, true, false).unwrap(),
        loss: |out: &Tagged, y| {
            let hidden =
                out.hidden.as_ref().map_or(Tensor::from(0.0), |it| it[0].square().mean(None));
            out.logits.view([-1, 3]).cross_entropy_for_logits(&y.view(-1)) + hidden * 0.1
        },
        batch: || (waves(&[4, 6], 0.37), classes(&[4], 3)),
        unused: false,
    };
    shape.trains_alike(test_name!());
}

#[test]
fn settings_need_no_attribute_and_are_reported_as_not_looked_into() {
    let vs = nn::VarStore::new(tch::Device::Cpu);
    let net = tagger(&vs.root(), Activation::Gelu);
    let report = net.register(&vs.root()).unwrap();
    assert!(report.warnings.is_empty());
    let text = report.to_string();
    assert!(text.contains("encoder.layers[1].ws  encoder.layers.1.weight  parameter"), "{text}");
    assert!(text.contains("opaque (torch_macro::shapes::tagger::Activation)"), "{text}");
    assert_eq!(names(&vs).len(), 6);
    let mut found = Vec::new();
    let x = Tensor::zeros([1, 6], (Kind::Float, tch::Device::Cpu));
    let out = net.forward_t(Some(&x), Some(&x.select(1, 0)), true, false).unwrap();
    out.tensors(&mut found);
    assert_eq!(found.len(), 3);
}
