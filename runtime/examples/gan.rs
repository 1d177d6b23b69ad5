//! Two wrapped models in one program: a GAN that learns to draw the UCI digits.
//!
//! ```text
//! ddp-run --nproc-per-node 2 -- target/release/examples/gan --epochs 5
//! ```
//!
//! Each model has a store, an optimizer and a `Ddp` of its own. In the maker's step the loss goes
//! through the judge as well; the gradients that the judge collects there are thrown away by
//! `zero_grad`, which also tells its wrapper that they were not meant.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use clap::Parser;
use tch::nn::{self, ModuleT, OptimizerConfig};
use tch::{Kind, Tensor};
use tch_ddp::{
    Ddp, DdpOptions, DistributedSampler, GroupOptions, Launch, ProcessGroup, main_println,
    seed_everything,
};

const N_NOISE: i64 = 16;
const N_PIXELS: i64 = 64;

const DIGITS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../fixtures/digits/digits.csv");

/// A GAN that learns to draw the UCI digits.
#[derive(Debug, Parser)]
struct Arguments {
    /// The data: 64 pixels from 0 to 16 and the digit per line.
    #[arg(long, default_value = DIGITS)]
    data: PathBuf,
    /// How often every image is seen.
    #[arg(long, default_value_t = 20)]
    epochs: u64,
    /// Images per step and rank.
    #[arg(long, default_value_t = 32)]
    batch_size: usize,
    /// Folder for results.
    #[arg(long, default_value = "out/gan")]
    out: PathBuf,
}

fn main() -> Result<()> {
    let arguments = Arguments::parse();
    let group = ProcessGroup::init(&Launch::from_env()?, GroupOptions::default())?;
    let images = read_images(&arguments.data)?.to_device(group.device());
    // The noise must differ between ranks; the models get rank 0's values when they are wrapped.
    seed_everything(1, group.rank());

    let vs = nn::VarStore::new(group.device());
    let net = maker(&vs.root());
    let mut maker_opt = nn::adam(0.5, 0.999, 0.0).build(&vs, 2e-4)?;
    let maker = Ddp::new(net, vs, &group, DdpOptions::default())?;
    let vs = nn::VarStore::new(group.device());
    let net = judge(&vs.root());
    let mut judge_opt = nn::adam(0.5, 0.999, 0.0).build(&vs, 2e-4)?;
    let judge = Ddp::new(net, vs, &group, DdpOptions::default())?;

    let sampler = DistributedSampler::new(images.size()[0] as usize, &group)
        .batch_size(arguments.batch_size)
        .drop_last(true);
    for epoch in 0..arguments.epochs {
        let (mut maker_loss, mut judge_loss) = (0.0, 0.0);
        for rows in sampler.epoch(epoch) {
            let real = images.index_select(0, &rows.to_device(group.device()));
            let n = real.size()[0];
            let noise = Tensor::randn([n, N_NOISE], (Kind::Float, group.device()));
            let made = maker.forward_t(&noise, true);

            // Both halves in one forward pass of the judge: one reduction.
            let marks = judge.forward_t(&Tensor::cat(&[&real, &made.detach()], 0), true);
            let truth = Tensor::cat(
                &[
                    Tensor::ones([n, 1], (Kind::Float, group.device())),
                    Tensor::zeros([n, 1], (Kind::Float, group.device())),
                ],
                0,
            );
            let loss = marks.binary_cross_entropy_with_logits::<Tensor>(
                &truth,
                None,
                None,
                tch::Reduction::Mean,
            );
            judge.backward_step(&mut judge_opt, &loss)?;
            judge_loss += f64::try_from(&loss)?;

            let loss = -judge.forward_t(&made, true).log_sigmoid().mean(Kind::Float);
            maker.backward_step(&mut maker_opt, &loss)?;
            judge.zero_grad()?;
            maker_loss += f64::try_from(&loss)?;
        }
        let n_steps = sampler.len() as f64;
        let losses = Tensor::from_slice(&[maker_loss / n_steps, judge_loss / n_steps]);
        group.all_reduce_op(&losses, tch_ddp::ReduceOp::Average)?;
        main_println!(
            group,
            "epoch {}: maker {:.4}, judge {:.4}",
            epoch + 1,
            losses.double_value(&[0]),
            losses.double_value(&[1])
        );
    }
    maker.save(arguments.out.join("maker.safetensors"))?;
    judge.save(arguments.out.join("judge.safetensors"))?;
    main_println!(group, "saved to {}", arguments.out.display());
    Ok(())
}

fn maker(root: &nn::Path<'_>) -> impl ModuleT + use<> {
    let config = nn::LinearConfig::default();
    nn::seq_t()
        .add(nn::linear(root / "first", N_NOISE, 128, config))
        .add_fn(Tensor::leaky_relu)
        .add(nn::linear(root / "second", 128, 128, config))
        .add_fn(Tensor::leaky_relu)
        .add(nn::linear(root / "pixels", 128, N_PIXELS, config))
        .add_fn(Tensor::sigmoid)
}

fn judge(root: &nn::Path<'_>) -> impl ModuleT + use<> {
    let config = nn::LinearConfig::default();
    nn::seq_t()
        .add(nn::linear(root / "first", N_PIXELS, 128, config))
        .add_fn(Tensor::leaky_relu)
        .add(nn::linear(root / "mark", 128, 1, config))
}

/// The pixels of all images, `[n, 64]`, between 0 and 1.
fn read_images(path: &Path) -> Result<Tensor> {
    let text =
        std::fs::read_to_string(path).with_context(|| format!("cannot read {}", path.display()))?;
    let mut pixels = Vec::new();
    for (index, line) in text.lines().enumerate() {
        for number in line.split(',').take(N_PIXELS as usize) {
            let pixel: f32 = number
                .trim()
                .parse()
                .with_context(|| format!("{}:{}: `{number}`", path.display(), index + 1))?;
            pixels.push(pixel / 16.0);
        }
    }
    Ok(Tensor::from_slice(&pixels).f_view([-1, N_PIXELS])?)
}
