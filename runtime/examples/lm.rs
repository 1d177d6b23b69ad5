//! A small transformer that learns to continue a text, letter by letter, and can be interrupted and
//! resumed: snapshots hold the model, the optimizer's state, the progress and the random states.
//!
//! ```text
//! ddp-run --nproc-per-node 2 -- target/release/examples/lm --text book.txt --epochs 3
//! ```
//!
//! Started again with the same `--out`, it goes on where the last snapshot was taken.

use std::path::PathBuf;

use anyhow::{Context, Result, ensure};
use clap::Parser;
use tch::nn::{self, Module};
use tch::{Device, Kind, Tensor};
use tch_ddp::optim::{AdamW, AdamWConfig};
use tch_ddp::{
    Ddp, DdpOptions, DistributedSampler, GroupOptions, Launch, ProcessGroup, Progress, Snapshots,
    main_println, seed_everything,
};

const N_BYTES: i64 = 256;

/// A small transformer that learns to continue a text.
#[derive(Debug, Parser)]
struct Arguments {
    /// The text to learn; without it, this program's own source.
    #[arg(long)]
    text: Option<PathBuf>,
    /// How often the text is read.
    #[arg(long, default_value_t = 2)]
    epochs: u64,
    /// Passages per step and rank.
    #[arg(long, default_value_t = 16)]
    batch_size: usize,
    /// Letters per passage.
    #[arg(long, default_value_t = 32)]
    context: i64,
    /// Width of the model, a multiple of 4.
    #[arg(long, default_value_t = 64)]
    width: i64,
    /// Number of blocks.
    #[arg(long, default_value_t = 2)]
    depth: usize,
    /// Steps between snapshots.
    #[arg(long, default_value_t = 100)]
    snapshot_every: u64,
    /// Folder for snapshots.
    #[arg(long, default_value = "out/lm")]
    out: PathBuf,
}

#[derive(Debug)]
struct Block {
    norm1: nn::LayerNorm,
    attention: nn::Linear,
    project: nn::Linear,
    norm2: nn::LayerNorm,
    widen: nn::Linear,
    narrow: nn::Linear,
}

#[derive(Debug)]
struct Model {
    letters: nn::Embedding,
    places: Tensor,
    blocks: Vec<Block>,
    norm: nn::LayerNorm,
    head: nn::Linear,
}

const N_HEADS: i64 = 4;

impl Block {
    fn new(root: &nn::Path<'_>, width: i64) -> Self {
        let config = nn::LinearConfig::default();
        let norm =
            |name: &str| nn::layer_norm(root / name, vec![width], nn::LayerNormConfig::default());
        Self {
            norm1: norm("norm1"),
            attention: nn::linear(root / "attention", width, 3 * width, config),
            project: nn::linear(root / "project", width, width, config),
            norm2: norm("norm2"),
            widen: nn::linear(root / "widen", width, 4 * width, config),
            narrow: nn::linear(root / "narrow", 4 * width, width, config),
        }
    }

    /// `[batch, letters, width]` in and out.
    fn forward(&self, x: &Tensor, train: bool) -> Tensor {
        let (batch, letters, width) = (x.size()[0], x.size()[1], x.size()[2]);
        let parts = self.attention.forward(&self.norm1.forward(x)).chunk(3, -1);
        let heads =
            |part: &Tensor| part.view([batch, letters, N_HEADS, width / N_HEADS]).transpose(1, 2);
        let (query, key, value) = (heads(&parts[0]), heads(&parts[1]), heads(&parts[2]));
        let dropout = if train { 0.1 } else { 0.0 };
        let seen = Tensor::scaled_dot_product_attention::<Tensor>(
            &query, &key, &value, None, dropout, true, None, false,
        );
        let seen = seen.transpose(1, 2).contiguous().view([batch, letters, width]);
        let x = x + self.project.forward(&seen);
        &x + self.narrow.forward(&self.widen.forward(&self.norm2.forward(&x)).gelu("none"))
    }
}

impl Model {
    fn new(root: &nn::Path<'_>, arguments: &Arguments) -> Self {
        let width = arguments.width;
        Self {
            letters: nn::embedding(
                root / "letters",
                N_BYTES,
                width,
                nn::EmbeddingConfig::default(),
            ),
            places: root.randn("places", &[arguments.context, width], 0.0, 0.02),
            blocks: (0..arguments.depth)
                .map(|k| Block::new(&(root / "blocks" / k), width))
                .collect(),
            norm: nn::layer_norm(root / "norm", vec![width], nn::LayerNormConfig::default()),
            head: nn::linear(root / "head", width, N_BYTES, nn::LinearConfig::default()),
        }
    }

    /// Letters `[batch, n]` to marks for the next letter `[batch, n, 256]`.
    fn forward(&self, letters: &Tensor, train: bool) -> Tensor {
        let mut x = self.letters.forward(letters) + &self.places;
        for block in &self.blocks {
            x = block.forward(&x, train);
        }
        self.head.forward(&self.norm.forward(&x))
    }
}

fn main() -> Result<()> {
    let arguments = Arguments::parse();
    ensure!(arguments.width % N_HEADS == 0, "--width must be a multiple of {N_HEADS}");
    let group = ProcessGroup::init(&Launch::from_env()?, GroupOptions::default())?;
    let text = read_text(&arguments)?.to_device(group.device());
    // Dropout must differ between ranks.
    seed_everything(7, group.rank());
    let vs = nn::VarStore::new(group.device());
    let model = Model::new(&vs.root(), &arguments);
    let mut opt = AdamW::new(&vs, AdamWConfig { lr: 2e-3, ..AdamWConfig::default() })?;
    let mut ddp = Ddp::new(model, vs, &group, DdpOptions::default())?;
    let snapshots = Snapshots::new(&arguments.out);
    let start = snapshots.load_latest(&mut ddp, Some(&mut opt))?.unwrap_or_default();
    train(&arguments, &group, &ddp, &mut opt, &snapshots, &text, start)
}

fn train(
    arguments: &Arguments,
    group: &ProcessGroup,
    ddp: &Ddp<Model>,
    opt: &mut AdamW,
    snapshots: &Snapshots,
    text: &Tensor,
    start: Progress,
) -> Result<()> {
    let context = arguments.context;
    let n_passages = (text.size()[0] - 1) / context;
    ensure!(
        n_passages as usize >= group.world_size(),
        "the text is too short for {context} letters"
    );
    let sampler =
        DistributedSampler::new(n_passages as usize, group).batch_size(arguments.batch_size);
    let steps_per_epoch = sampler.len() as u64;
    let offsets = Tensor::arange(context + 1, (Kind::Int64, text.device()));
    let mut progress = start;
    while progress.epoch < arguments.epochs {
        let done = progress.step - progress.epoch * steps_per_epoch;
        let mut loss_sum = Tensor::zeros([2], (Kind::Float, Device::Cpu));
        for rows in sampler.epoch(progress.epoch).skip(done as usize) {
            let places = (rows.to_device(text.device()) * context).unsqueeze(1) + &offsets;
            let letters = text.take(&places);
            let (seen, next) = (letters.narrow(1, 0, context), letters.narrow(1, 1, context));
            let marks = ddp.run(|model| model.forward(&seen, true))?;
            let loss = marks.view([-1, N_BYTES]).cross_entropy_for_logits(&next.reshape([-1]));
            ddp.backward_step_clip_norm(opt, &loss, 1.0)?;
            progress.step += 1;
            loss_sum += Tensor::from_slice(&[f32::try_from(&loss)?, 1.0]);
            if progress.step.is_multiple_of(arguments.snapshot_every) {
                snapshots.save(ddp, Some(opt), progress)?;
            }
        }
        progress.epoch += 1;
        snapshots.save(ddp, Some(opt), progress)?;
        group.all_reduce(&loss_sum)?;
        let mean = loss_sum.double_value(&[0]) / loss_sum.double_value(&[1]).max(1.0);
        main_println!(group, "epoch {}: {:.3} nats per letter", progress.epoch, mean);
    }
    Ok(())
}

/// The text as bytes, `[n]`, Int64.
fn read_text(arguments: &Arguments) -> Result<Tensor> {
    let bytes = match &arguments.text {
        None => include_bytes!("lm.rs").to_vec(),
        Some(path) => {
            std::fs::read(path).with_context(|| format!("cannot read {}", path.display()))?
        }
    };
    Ok(Tensor::from_slice(&bytes).to_kind(Kind::Int64))
}
