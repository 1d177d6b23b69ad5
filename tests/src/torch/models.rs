//! Small models and batches that every process builds alike, without random numbers.

use anyhow::{Result, ensure};
use tch::nn;
use tch::{Device, Kind, Tensor};

/// Columns of the inputs that [`batch`] makes.
pub const N_INPUTS: i64 = 6;
/// Columns of its targets.
pub const N_TARGETS: i64 = 2;

/// Inputs `[rows, N_INPUTS]` and targets `[rows, N_TARGETS]`, between -1 and 1.
pub fn batch(rows: i64, kind: Kind) -> (Tensor, Tensor) {
    let waves = |columns: i64, pace: f64| {
        let steps = Tensor::arange(rows * columns, (Kind::Double, Device::Cpu));
        (steps * pace).sin().to_kind(kind).view([rows, columns])
    };
    (waves(N_INPUTS, 0.7), waves(N_TARGETS, 1.3))
}

/// Two linear layers with a tanh between them: `first` and `second`.
pub fn mlp(vs: &nn::VarStore) -> nn::Sequential {
    let root = vs.root();
    nn::seq()
        .add(nn::linear(&root / "first", N_INPUTS, 16, nn::LinearConfig::default()))
        .add_fn(Tensor::tanh)
        .add(nn::linear(&root / "second", 16, N_TARGETS, nn::LinearConfig::default()))
}

/// Gives every variable values that depend only on its name and place.
pub fn fill(vs: &nn::VarStore) {
    for (name, mut tensor) in vs.variables() {
        let seed: f64 = name.bytes().map(f64::from).sum();
        let steps = Tensor::arange(tensor.numel() as i64, (Kind::Double, Device::Cpu));
        let values = ((steps * 0.37 + seed).cos() * 0.3).view(tensor.size().as_slice());
        tch::no_grad(|| tensor.copy_(&values));
    }
}

/// An empty store on the CPU whose new variables have the given kind.
pub fn store(kind: Kind) -> nn::VarStore {
    let mut vs = nn::VarStore::new(Device::Cpu);
    vs.set_kind(kind);
    vs
}

/// The largest difference between two stores' gradients, compared by name.
///
/// # Errors
/// A gradient is undefined.
pub fn gradient_difference(left: &nn::VarStore, right: &nn::VarStore) -> Result<f64> {
    let right = right.variables();
    let mut largest = 0f64;
    for (name, tensor) in left.variables() {
        if !tensor.requires_grad() {
            continue;
        }
        let (a, b) = (tensor.grad(), right[&name].grad());
        ensure!(a.defined() && b.defined(), "`{name}` has no gradient");
        largest = largest.max(f64::try_from((a - b).abs().max())?);
    }
    Ok(largest)
}

/// The largest difference between two stores' values, compared by name.
///
/// # Errors
/// A value cannot be read.
pub fn value_difference(left: &nn::VarStore, right: &nn::VarStore) -> Result<f64> {
    let right = right.variables();
    let mut largest = 0f64;
    for (name, tensor) in left.variables() {
        let difference = (tensor - &right[&name]).abs().max();
        largest = largest.max(f64::try_from(difference)?);
    }
    Ok(largest)
}

/// A convolution with batch statistics over images `[n, 1, 4, 4]`; 3 classes.
pub fn conv(vs: &nn::VarStore) -> nn::SequentialT {
    let root = vs.root();
    let padded = nn::ConvConfig { padding: 1, ..nn::ConvConfig::default() };
    nn::seq_t()
        .add(nn::conv2d(&root / "conv", 1, 4, 3, padded))
        .add(nn::batch_norm2d(&root / "norm", 4, nn::BatchNormConfig::default()))
        .add_fn(|x| x.relu().flatten(1, -1))
        .add(nn::linear(&root / "head", 4 * 16, 3, nn::LinearConfig::default()))
}

/// The mean of 11 words' embeddings, normalised, over `[n, words]`; the next word.
pub fn words(vs: &nn::VarStore) -> nn::SequentialT {
    let root = vs.root();
    nn::seq_t()
        .add(nn::embedding(&root / "embed", 11, 8, nn::EmbeddingConfig::default()))
        .add_fn(|x| x.mean_dim(1, false, None))
        .add(nn::layer_norm(&root / "norm", vec![8], nn::LayerNormConfig::default()))
        .add(nn::linear(&root / "head", 8, 11, nn::LinearConfig::default()))
}

/// Five linear layers, three of them of 1.4 MB: several gradient buckets.
pub fn wide(vs: &nn::VarStore) -> nn::SequentialT {
    const WIDTH: i64 = 600;
    let mut net = nn::seq_t();
    let widths = [N_INPUTS, WIDTH, WIDTH, WIDTH, WIDTH, N_TARGETS];
    for (layer, pair) in widths.windows(2).enumerate() {
        let path = vs.root() / format!("layer{layer}");
        net = net.add(nn::linear(path, pair[0], pair[1], nn::LinearConfig::default()));
        net = net.add_fn(Tensor::tanh);
    }
    net
}
