//! Trains a small CNN on the UCI digits, alone or on several ranks.
//!
//! ```text
//! cargo run --release --example digits
//! ddp-run --nproc-per-node 2 -- target/release/examples/digits --out out/two
//! torchrun --standalone --no-python --nproc-per-node 2 target/release/examples/digits
//! ```
//!
//! Flags: `--data FILE` (digits.csv), `--epochs N`, `--batch-size N` (per rank), `--lr X`,
//! `--seed N`, `--dtype float32|float64`, `--out DIR`.
//!
//! One process with twice the batch size walks the same global batches as two ranks, so that both
//! end with the same parameters up to rounding: the sampler deals rows out like cards, and the
//! model has no dropout and no batch statistics.
//!
//! Rank 0 shows a progress bar (without a terminal a line per epoch), prints (last line:
//! `final accuracy=… samples_per_second=…`) and writes to `--out`: `loss.csv`
//! (`step,epoch,loss`, the mean over all ranks), `loss.json` (the same, with the settings),
//! `model.safetensors` (the final parameters) and TensorBoard event files.

use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::Instant;

use anyhow::{Context, Result, bail};
use clap::{Parser, ValueEnum};
use tch::nn::{self, ModuleT, OptimizerConfig};
use tch::{Kind, Tensor};
use tch_ddp::{
    Ddp, DdpOptions, DistributedSampler, EventWriter, GroupOptions, Launch, ProcessGroup,
    main_println, write_atomically,
};

/// Every fifth image is held out for the test.
const TEST_EVERY: usize = 5;

const DIGITS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../fixtures/digits/digits.csv");

/// Trains a small CNN on the UCI digits, alone or on several ranks.
#[derive(Debug, Parser)]
struct Arguments {
    /// The data: 64 pixels from 0 to 16 and the digit per line.
    #[arg(long, default_value = DIGITS)]
    data: PathBuf,
    /// How often every image is seen.
    #[arg(long, default_value_t = 12)]
    epochs: u64,
    /// Images per step and rank.
    #[arg(long, default_value_t = 32)]
    batch_size: usize,
    /// Learning rate of the optimizer (Adam).
    #[arg(long, default_value_t = 2e-3)]
    lr: f64,
    /// Seed of the initial parameters and of the order of the images.
    #[arg(long, default_value_t = 0)]
    seed: u64,
    /// Kind of the parameters.
    #[arg(long, value_enum, default_value = "float32")]
    dtype: Dtype,
    /// Folder for results.
    #[arg(long, default_value = "out/digits")]
    out: PathBuf,
}

#[derive(Debug, Clone, Copy, ValueEnum)]
enum Dtype {
    Float32,
    Float64,
}

impl Dtype {
    fn kind(self) -> Kind {
        match self {
            Dtype::Float32 => Kind::Float,
            Dtype::Float64 => Kind::Double,
        }
    }
}

/// Images `[n, 1, 8, 8]` between 0 and 1, and their digits `[n]`.
struct Images {
    pixels: Tensor,
    digits: Tensor,
}

impl Images {
    fn n(&self) -> usize {
        self.digits.size()[0] as usize
    }

    fn rows(&self, rows: &Tensor) -> (Tensor, Tensor) {
        let rows = rows.to_device(self.digits.device());
        (self.pixels.index_select(0, &rows), self.digits.index_select(0, &rows))
    }
}

struct Step {
    epoch: u64,
    loss: f64,
}

fn main() -> Result<()> {
    let arguments = Arguments::parse();
    let launch = Launch::from_env()?;
    let group = ProcessGroup::init(&launch, GroupOptions::default())?;
    let (train_set, test_set) = read_images(&arguments, &group)?;
    tch::manual_seed(arguments.seed as i64);
    let mut vs = nn::VarStore::new(group.device());
    vs.set_kind(arguments.dtype.kind());
    let net = cnn(&vs.root());
    let mut opt = nn::Adam::default().build(&vs, arguments.lr)?;
    let ddp = Ddp::new(net, vs, &group, DdpOptions::default())?;
    main_println!(
        ddp,
        "{} images on {} ranks, {} per step and rank, on {:?}",
        train_set.n(),
        group.world_size(),
        arguments.batch_size,
        group.device()
    );

    let started = Instant::now();
    let steps = train(&arguments, &ddp, &mut opt, &train_set)?;
    let seconds = started.elapsed().as_secs_f64();
    let samples = (train_set.n() as u64 * arguments.epochs) as f64;
    let accuracy = accuracy(&ddp, &test_set)?;
    ddp.save(arguments.out.join("model.safetensors"))?;
    if ddp.is_main() {
        write_losses(&arguments, &group, &steps)?;
        let rate = samples / seconds;
        println!("final accuracy={accuracy:.4} samples_per_second={rate:.0}");
    }
    Ok(())
}

fn cnn(root: &nn::Path<'_>) -> impl ModuleT + use<> {
    let padded = nn::ConvConfig { padding: 1, ..nn::ConvConfig::default() };
    nn::seq_t()
        .add(nn::conv2d(root / "conv1", 1, 16, 3, padded))
        .add_fn(Tensor::relu)
        .add(nn::conv2d(root / "conv2", 16, 32, 3, padded))
        .add_fn(|x| x.relu().max_pool2d_default(2).flatten(1, -1))
        .add(nn::linear(root / "hidden", 32 * 4 * 4, 64, nn::LinearConfig::default()))
        .add_fn(Tensor::relu)
        .add(nn::linear(root / "digit", 64, 10, nn::LinearConfig::default()))
}

fn train<M: ModuleT>(
    arguments: &Arguments,
    ddp: &Ddp<M>,
    opt: &mut nn::Optimizer,
    images: &Images,
) -> Result<Vec<Step>> {
    let group = ddp.group();
    // Whole batches only, so that every step averages equally many images on every rank.
    let whole = images.n() - images.n() % (arguments.batch_size * group.world_size());
    if whole == 0 {
        bail!("a global batch is larger than the {} images; lower --batch-size", images.n());
    }
    let sampler = DistributedSampler::new(images.n(), group)
        .batch_size(arguments.batch_size)
        .seed(arguments.seed)
        .drop_last(true);
    let n_batches = whole / (arguments.batch_size * group.world_size());
    let progress = group.progress_bar(arguments.epochs * n_batches as u64);
    let mut board = EventWriter::new(&arguments.out, group)?;
    let mut steps = Vec::new();
    for epoch in 0..arguments.epochs {
        for rows in sampler.epoch(epoch).take(n_batches) {
            let (x, y) = images.rows(&rows);
            let loss = ddp.forward_t(&x, true).cross_entropy_for_logits(&y);
            ddp.backward_step(opt, &loss)?;
            let mean = loss.detach().to_kind(Kind::Double) / group.world_size() as f64;
            group.all_reduce(&mean)?;
            let loss = f64::try_from(&mean)?;
            board.scalar("loss", loss, steps.len() as u64)?;
            steps.push(Step { epoch, loss });
            progress.set_message(format!("epoch {} loss {loss:.4}", epoch + 1));
            progress.inc(1);
        }
        // Where there is no terminal, no bar shows that it moves.
        if ddp.is_main() && progress.is_hidden() {
            let losses = &steps[steps.len() - n_batches..];
            let mean = losses.iter().map(|step: &Step| step.loss).sum::<f64>() / n_batches as f64;
            println!("epoch {} of {}: loss {mean:.4}", epoch + 1, arguments.epochs);
        }
    }
    board.flush()?;
    progress.finish();
    Ok(steps)
}

/// The share of the held-out images that are recognised; each rank looks at its part.
fn accuracy<M: ModuleT>(ddp: &Ddp<M>, images: &Images) -> Result<f64> {
    let (rank, world_size) = (ddp.rank() as i64, ddp.group().world_size() as i64);
    let mine = Tensor::arange_start_step(
        rank,
        images.n() as i64,
        world_size,
        (Kind::Int64, images.digits.device()),
    );
    let (x, y) = images.rows(&mine);
    let right = tch::no_grad(|| {
        let guess = ddp.forward_t(&x, false).argmax(1, false);
        guess.eq_tensor(&y).sum(Kind::Int64)
    });
    ddp.group().all_reduce(&right)?;
    Ok(i64::try_from(&right)? as f64 / images.n() as f64)
}

/// The images to train on and those held out, on this rank's device.
fn read_images(arguments: &Arguments, group: &ProcessGroup) -> Result<(Images, Images)> {
    let path = arguments.data.display();
    let text =
        fs::read_to_string(&arguments.data).with_context(|| format!("cannot read {path}"))?;
    let (mut train_rows, mut test_rows) = (Vec::new(), Vec::new());
    for (index, line) in text.lines().enumerate() {
        let row: Vec<f64> = line
            .split(',')
            .map(|number| number.trim().parse::<f64>())
            .collect::<Result<_, _>>()
            .with_context(|| format!("{path}:{}: not a list of numbers", index + 1))?;
        if row.len() != 65 {
            bail!("{path}:{}: {} numbers instead of 64 pixels and a digit", index + 1, row.len());
        }
        if index % TEST_EVERY == 0 { test_rows.push(row) } else { train_rows.push(row) }
    }
    let images = |rows: Vec<Vec<f64>>| {
        let n = rows.len() as i64;
        let all = Tensor::from_slice(&rows.concat()).view([n, 65]).to_device(group.device());
        let pixels = (all.narrow(1, 0, 64) / 16.0).view([n, 1, 8, 8]);
        Images {
            pixels: pixels.to_kind(arguments.dtype.kind()),
            digits: all.select(1, 64).to_kind(Kind::Int64),
        }
    };
    Ok((images(train_rows), images(test_rows)))
}

fn write_losses(arguments: &Arguments, group: &ProcessGroup, steps: &[Step]) -> Result<()> {
    let mut csv = "step,epoch,loss\n".to_owned();
    for (number, step) in steps.iter().enumerate() {
        writeln!(csv, "{number},{},{}", step.epoch, step.loss)?;
    }
    let losses: Vec<f64> = steps.iter().map(|step| step.loss).collect();
    let json = serde_json::json!({
        "world_size": group.world_size(),
        "batch_size_per_rank": arguments.batch_size,
        "epochs": arguments.epochs,
        "lr": arguments.lr,
        "seed": arguments.seed,
        "losses": losses,
    });
    write_text(&arguments.out.join("loss.csv"), &csv)?;
    write_text(&arguments.out.join("loss.json"), &format!("{json:#}\n"))
}

fn write_text(path: &Path, text: &str) -> Result<()> {
    let write = |to: &Path| fs::write(to, text).map_err(|error| error.to_string());
    write_atomically(path, write)
        .map_err(|reason| anyhow::anyhow!("cannot write {}: {reason}", path.display()))
}
