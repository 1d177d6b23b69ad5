//! What `#[data_parallel]` and `register` do with a model, on real tensors. No process groups.

use std::collections::HashMap;

use tch::nn::{self, OptimizerConfig};
use tch::{Device, Kind, Tensor};
use tch_ddp::module::{Held, Hidden};
use tch_ddp::{TensorOutput, data_parallel};

const CPU: (Kind, Device) = (Kind::Float, Device::Cpu);

fn names(vs: &nn::VarStore) -> Vec<String> {
    let mut names: Vec<_> = vs.variables().into_keys().collect();
    names.sort();
    names
}

fn learnable(size: &[i64]) -> Tensor {
    Tensor::ones(size, CPU).set_requires_grad(true)
}

#[data_parallel]
struct Axial {
    weights: Vec<Tensor>,
    #[dp(name = "H_{k}")]
    factors: Vec<Tensor>,
    #[dp(rename = "lm_head")]
    head: nn::Linear,
    dropout: f64,
}

impl Axial {
    fn new(vs: &nn::Path) -> Self {
        Axial {
            weights: (0..2).map(|_| learnable(&[4])).collect(),
            factors: (0..3).map(|k| learnable(&[1, k + 1])).collect(),
            head: nn::linear(vs / "head", 4, 2, nn::LinearConfig::default()),
            dropout: 0.1,
        }
    }
}

#[test]
fn tensors_in_lists_become_variables_named_by_index_or_pattern() {
    let vs = nn::VarStore::new(Device::Cpu);
    let model = Axial::new(&vs.root());
    let registered = model.register(&vs.root()).unwrap();
    let late: Vec<_> = registered.late().collect();
    assert_eq!(late, ["weights.0", "weights.1", "H_0", "H_1", "H_2"]);
    let expected = ["H_0", "H_1", "H_2", "head.bias", "head.weight", "weights.0", "weights.1"];
    assert_eq!(names(&vs), expected);
    assert_eq!(vs.trainable_variables().len(), 7);
    assert!(model.dropout < 1.0);
}

#[test]
fn registering_keeps_storage_and_an_older_optimizer_trains_it() {
    let vs = nn::VarStore::new(Device::Cpu);
    let model = Axial::new(&vs.root());
    let address = model.weights[0].data_ptr();
    let mut opt = nn::Sgd::default().build(&vs, 0.5).unwrap();
    model.register(&vs.root()).unwrap();
    assert_eq!(vs.variables()["weights.0"].data_ptr(), address);
    opt.backward_step(&model.weights[0].sum(Kind::Float));
    assert_eq!(Vec::<f32>::try_from(&model.weights[0]).unwrap(), [0.5; 4]);
}

#[test]
fn registering_twice_changes_nothing() {
    let vs = nn::VarStore::new(Device::Cpu);
    let model = Axial::new(&vs.root());
    model.register(&vs.root()).unwrap();
    let before = names(&vs);
    assert_eq!(model.register(&vs.root()).unwrap().late().count(), 0);
    assert_eq!(names(&vs), before);
}

struct Unknown(#[expect(dead_code, reason = "never looked into")] u8);

#[data_parallel]
struct Block {
    fc: nn::Linear,
    scale: Option<Tensor>,
}

impl Block {
    fn new(p: &nn::Path) -> Self {
        Self {
            fc: nn::linear(p / "fc", 2, 2, nn::LinearConfig::default()),
            scale: Some(learnable(&[2])),
        }
    }
}

#[data_parallel]
struct Mixed<const N: usize> {
    pairs: Vec<(nn::Linear, usize, Unknown)>,
    blocks: [Option<Block>; N],
    experts: HashMap<String, Block>,
    core: nn::Sequential,
    act: Box<dyn Fn(&Tensor) -> Tensor + Send>,
    mask: Tensor,
    #[dp(skip)]
    cache: Option<Tensor>,
}

fn mixed(vs: &nn::Path) -> Mixed<2> {
    let experts = ["b", "a"].map(|key| (key.to_owned(), Block::new(&(vs / "experts" / key))));
    Mixed {
        pairs: vec![(nn::linear(vs / "p0", 2, 2, nn::LinearConfig::default()), 1, Unknown(0))],
        blocks: [None, Some(Block::new(&(vs / "blocks" / 1)))],
        experts: experts.into(),
        core: nn::seq().add(nn::linear(vs / "core", 2, 2, nn::LinearConfig::default())),
        act: Box::new(Tensor::relu),
        mask: Tensor::ones([2, 2], (Kind::Bool, Device::Cpu)),
        cache: Some(Tensor::ones([1], CPU)),
    }
}

#[test]
fn containers_are_looked_through_and_what_is_hidden_is_said() {
    let vs = nn::VarStore::new(Device::Cpu);
    let model = mixed(&vs.root());
    let report = model.register(&vs.root()).unwrap();
    let seen = |field: &str| {
        let entry = report.entries.iter().find(|entry| entry.field == field);
        entry.map(|entry| (entry.name.clone().unwrap_or_default(), entry.held.clone()))
    };
    let parameter = |name: &str| Some((name.to_owned(), Held::Parameter));
    assert_eq!(seen("pairs[0].0.ws"), parameter("p0.weight"));
    assert_eq!(seen("blocks[1].scale"), parameter("blocks.1.scale"));
    assert_eq!(seen("experts[a].scale"), parameter("experts.a.scale"));
    assert_eq!(seen("mask"), Some((String::new(), Held::Constant)));
    assert_eq!(seen("cache"), Some((String::new(), Held::Hidden(Hidden::Skipped))));
    let private = Held::Hidden(Hidden::Private("nn::Sequential"));
    assert_eq!(seen("core"), Some((String::new(), private)));
    assert!(matches!(seen("pairs[0].2"), Some((_, Held::Hidden(Hidden::Opaque(_))))));
    assert!(matches!(seen("act"), Some((_, Held::Hidden(Hidden::Opaque(_))))));
    let late: Vec<_> = report.late().collect();
    assert_eq!(late, ["blocks.1.scale", "experts.a.scale", "experts.b.scale"]);
    assert!(model.cache.is_some());
    assert_eq!(Vec::<f32>::try_from((model.act)(&Tensor::from(-1f32).view(1))).unwrap(), [0.0]);
}

#[test]
fn derived_tensors_and_wrong_devices_are_refused_together_and_nothing_is_registered() {
    #[data_parallel]
    struct Derived {
        fused: Tensor,
        first: Tensor,
        #[dp(rename = "first")]
        second: Tensor,
    }
    let vs = nn::VarStore::new(Device::Cpu);
    let q = vs.root().zeros("q", &[2, 2]);
    let model = Derived {
        fused: Tensor::cat(&[&q, &q], 0),
        first: learnable(&[1]),
        second: learnable(&[2]),
    };
    let error = model.register(&vs.root()).unwrap_err().to_string();
    assert!(error.contains("2 problems"), "{error}");
    assert!(error.contains("`fused` is computed from other variables"), "{error}");
    assert!(error.contains("`second` and `first` would both be registered as `first`"), "{error}");
    assert_eq!(names(&vs), ["q"]);
}

#[derive(TensorOutput)]
struct Heard {
    logits: Tensor,
    hidden: Option<Vec<Tensor>>,
    range: (Tensor, Tensor),
    #[dp(skip)]
    steps: usize,
}

#[test]
fn outputs_are_flattened_in_the_order_of_the_fields() {
    let t = |x: f64| Tensor::from(x);
    let mut heard =
        Heard { logits: t(0.), hidden: Some(vec![t(1.), t(2.)]), range: (t(3.), t(4.)), steps: 7 };
    let mut found = Vec::new();
    heard.tensors(&mut found);
    let values: Vec<f64> = found.into_iter().map(|t| f64::try_from(t).unwrap()).collect();
    assert_eq!(values, [0., 1., 2., 3., 4.]);
    let mut slots = Vec::new();
    heard.tensors_mut(&mut slots);
    for slot in slots {
        *slot = &*slot + 10.;
    }
    let close = |value: f64, expected: f64| assert!((value - expected).abs() < 1e-6, "{value}");
    close(f64::try_from(&heard.range.1).unwrap(), 14.);
    close(f64::try_from(&heard.logits).unwrap() + heard.steps as f64, 17.);
    assert!(heard.hidden.is_some());
}
