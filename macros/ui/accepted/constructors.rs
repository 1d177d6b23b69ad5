//! Constructors from declarations, nested and on a sub-path.
#![cfg_attr(not(test), allow(unused))]

use tch::{Tensor, nn};
use tch_ddp::data_parallel;

const WIDTH: i64 = 3;

#[data_parallel(new(width: i64, rate: f64))]
struct Block {
    #[dp(build = "nn::linear(path, width, width, nn::LinearConfig::default())")]
    layer: nn::Linear,
    #[dp(param, shape = "[width]", init = "1.0", rename = "scale")]
    gain: Tensor,
    #[dp(
        buffer,
        shape = "vec![width; 2]",
        init = "nn::Init::Uniform { lo: rate, up: rate + 1.0 }"
    )]
    table: Tensor,
    rate: f64,
}

#[data_parallel(new(n_blocks: usize, rates: &[f64], name: impl Into<String>))]
struct Net {
    #[dp(count = "n_blocks", build = "Block::new(path, WIDTH, rates[k])?")]
    blocks: Vec<Block>,
    #[dp(count = "2", name = "extra_{k}", build = "Block::new(path, WIDTH, -0.5)?")]
    extra: Vec<Block>,
    #[dp(param, count = "n_blocks", shape = "[k as i64 + 1]", init = "-0.5")]
    weights: Vec<Tensor>,
    #[dp(build = "name.into()")]
    label: String,
    #[dp(skip, build = "None")]
    cache: Option<Tensor>,
}

#[test]
fn variables_are_named_and_filled_as_declared() {
    let vs = nn::VarStore::new(tch::Device::Cpu);
    let net = Net::new(&(vs.root() / "net"), 2, &[1.0, 5.0], "small").unwrap();
    let mut names: Vec<_> = vs.variables().into_keys().collect();
    names.sort();
    let of_block = |path: &str| {
        ["layer.bias", "layer.weight", "scale", "table"].map(|it| format!("net.{path}.{it}"))
    };
    let mut expected: Vec<_> =
        ["blocks.0", "blocks.1", "extra_0", "extra_1"].into_iter().flat_map(of_block).collect();
    expected.extend(["net.weights.0".to_owned(), "net.weights.1".to_owned()]);
    assert_eq!(names, expected);
    assert_eq!(vs.trainable_variables().len(), 4 * 3 + 2);
    assert_eq!(Vec::<f32>::try_from(&net.weights[1]).unwrap(), [-0.5, -0.5]);
    assert_eq!(f64::try_from(net.blocks[0].gain.sum(tch::Kind::Double)).unwrap(), 3.0);
    let table = &net.blocks[1].table;
    assert!(table.min().double_value(&[]) >= 5.0 && !table.requires_grad());
    assert_eq!((net.blocks[1].rate, net.label.as_str()), (5.0, "small"));
    assert!(net.cache.is_none() && net.extra.len() == 2);
    let report = net.register(&(vs.root() / "net")).unwrap();
    assert_eq!((report.late().count(), report.warnings.len()), (0, 0));
}

#[cfg(not(test))]
fn main() {}
