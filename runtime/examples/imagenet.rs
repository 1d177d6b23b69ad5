//! ImageNet training as people know it from PyTorch's example, on any number of ranks, with equal or
//! unequal shares of the batch.
//!
//! ```text
//! ddp-run --nproc-per-node 4 -- target/release/examples/imagenet -a resnet50 -b 256 -j 4 DATA
//! target/release/examples/imagenet --multiprocessing-distributed --world-size 1 --rank 0 DATA
//! target/release/examples/imagenet --dummy 512 -b 32 --epochs 1       # no data needed
//! ```
//!
//! `DATA` holds `train/CLASS/*.jpg` and `val/CLASS/*.jpg`. `-b` is the batch of all ranks together
//! and `-j` the loading threads of a rank. `--batch-share 1:4:4:4` gives rank 0 the smallest part (it
//! also saves and prints); gradients stay exact because every rank's loss is weighted by its rows.

use std::path::{Path, PathBuf};
use std::process::{Child, Command};
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use clap::Parser;
use tch::nn::{self, ModuleT};
use tch::{Device, Kind, Tensor, vision};
use tch_ddp::optim::{Sgd, SgdConfig};
use tch_ddp::{
    BatchPlan, Ddp, DdpOptions, DistributedSampler, EvaluationSampler, GroupOptions, Launch,
    Prefetch, ProcessGroup, Progress, Snapshots, Weight, main_println, seed_everything,
};

/// ImageNet training on any number of ranks.
#[derive(Debug, Clone, Parser)]
struct Arguments {
    /// Folder with `train` and `val`.
    data: Option<PathBuf>,
    /// resnet18, resnet34, resnet50, resnet101 or resnet152.
    #[arg(short, long, default_value = "resnet18")]
    arch: String,
    /// Images per step of all ranks together.
    #[arg(short, long, default_value_t = 256)]
    batch_size: usize,
    /// Threads per rank that load images.
    #[arg(short = 'j', long, default_value_t = 4)]
    workers: usize,
    #[arg(long, default_value_t = 90)]
    epochs: u64,
    /// Initial learning rate; a tenth of it every 30 epochs.
    #[arg(long, default_value_t = 0.1)]
    lr: f64,
    #[arg(long, default_value_t = 0.9)]
    momentum: f64,
    #[arg(long, default_value_t = 1e-4)]
    weight_decay: f64,
    #[arg(long, default_value_t = 0)]
    seed: u64,
    /// Meeting point of the ranks with --multiprocessing-distributed.
    #[arg(long, default_value = "tcp://127.0.0.1:29512")]
    dist_url: String,
    /// Number of nodes with --multiprocessing-distributed.
    #[arg(long, default_value_t = 1)]
    world_size: usize,
    /// Number of this node with --multiprocessing-distributed.
    #[arg(long, default_value_t = 0)]
    rank: usize,
    /// Start one rank per GPU of this node (or --ranks-per-node).
    #[arg(long)]
    multiprocessing_distributed: bool,
    /// Ranks per node with --multiprocessing-distributed; the number of GPUs otherwise.
    #[arg(long)]
    ranks_per_node: Option<usize>,
    /// Use this GPU only, alone.
    #[arg(long)]
    gpu: Option<usize>,
    /// Folder of snapshots to go on from and to write to.
    #[arg(long)]
    resume: Option<PathBuf>,
    /// Only measure the accuracy on the validation set.
    #[arg(short, long)]
    evaluate: bool,
    /// Shares of the batch by rank, as in 1:4:4:4.
    #[arg(long)]
    batch_share: Option<String>,
    /// Train on so many random images instead of a folder.
    #[arg(long)]
    dummy: Option<usize>,
    /// Side of the random images in pixels.
    #[arg(long, default_value_t = 224)]
    dummy_side: i64,
    /// Steps per epoch at most.
    #[arg(long)]
    steps: Option<usize>,
}

/// Where images come from; shared by the loading threads.
#[derive(Debug)]
enum Source {
    Files { paths: Vec<(PathBuf, i64)>, n_classes: i64 },
    Random { n: usize, side: i64 },
}

impl Source {
    fn open(arguments: &Arguments, part: &str) -> Result<Self> {
        if let Some(n) = arguments.dummy {
            return Ok(Source::Random { n, side: arguments.dummy_side });
        }
        let data =
            arguments.data.as_ref().context("give the folder with train and val, or --dummy N")?;
        let folder = data.join(part);
        let mut classes = sorted_entries(&folder)?;
        classes.retain(|path| path.is_dir());
        let mut paths = Vec::new();
        for (class, folder) in classes.iter().enumerate() {
            paths.extend(sorted_entries(folder)?.into_iter().map(|path| (path, class as i64)));
        }
        ensure!(!paths.is_empty(), "there is no image in {}", folder.display());
        Ok(Source::Files { paths, n_classes: classes.len() as i64 })
    }

    fn len(&self) -> usize {
        match self {
            Source::Files { paths, .. } => paths.len(),
            Source::Random { n, .. } => *n,
        }
    }

    fn n_classes(&self) -> i64 {
        match self {
            Source::Files { n_classes, .. } => *n_classes,
            Source::Random { .. } => 10,
        }
    }

    /// Images `[n, 3, side, side]` and their classes `[n]`.
    fn load(&self, rows: &Tensor) -> Result<(Tensor, Tensor)> {
        let rows = Vec::<i64>::try_from(rows)?;
        let (mut images, mut classes) = (Vec::new(), Vec::new());
        for row in rows {
            match self {
                Source::Files { paths, .. } => {
                    let (path, class) = &paths[row as usize];
                    let image = vision::imagenet::load_image_and_resize224(path)
                        .with_context(|| format!("cannot read {}", path.display()))?;
                    images.push(image);
                    classes.push(*class);
                }
                Source::Random { side, .. } => {
                    // Each class has a pattern, so that there is something to learn.
                    let class = row % 10;
                    let wave = Tensor::arange(side * side, (Kind::Float, Device::Cpu));
                    let wave = (wave * (0.1 + class as f64 * 0.05) + row as f64).sin();
                    images.push(wave.view([1, *side, *side]).expand([3, *side, *side], false));
                    classes.push(class);
                }
            }
        }
        Ok((Tensor::stack(&images, 0), Tensor::from_slice(&classes)))
    }
}

fn sorted_entries(folder: &Path) -> Result<Vec<PathBuf>> {
    let entries =
        std::fs::read_dir(folder).with_context(|| format!("cannot read {}", folder.display()))?;
    let mut paths: Vec<PathBuf> =
        entries.map(|entry| Ok(entry?.path())).collect::<std::io::Result<_>>()?;
    paths.sort();
    Ok(paths)
}

fn main() -> Result<()> {
    let arguments = Arguments::parse();
    let launch = Launch::from_env()?;
    if arguments.multiprocessing_distributed && launch.launcher() == tch_ddp::Launcher::Alone {
        return start_ranks(&arguments);
    }
    let group = ProcessGroup::init(&launch, GroupOptions::default())?;
    let device = arguments.gpu.map_or(group.device(), Device::Cuda);
    let train_source = Arc::new(Source::open(&arguments, "train")?);
    let test_source = Arc::new(Source::open(&arguments, "val")?);
    let plan = match &arguments.batch_share {
        None => BatchPlan::shares(&group, arguments.batch_size, &vec![1.0; group.world_size()])?,
        Some(shares) => {
            let shares: Vec<f64> = shares
                .split(':')
                .map(|share| share.trim().parse().with_context(|| format!("share `{share}`")))
                .collect::<Result<_>>()?;
            BatchPlan::shares(&group, arguments.batch_size, &shares)?
        }
    };
    main_println!(group, "batch {} as {:?}", plan.global_batch(), plan.sizes());

    seed_everything(arguments.seed, group.rank());
    let vs = nn::VarStore::new(device);
    let net = resnet(&arguments.arch, &vs.root(), train_source.n_classes())?;
    let config = SgdConfig {
        lr: arguments.lr,
        momentum: arguments.momentum,
        weight_decay: arguments.weight_decay,
        ..SgdConfig::default()
    };
    let mut opt = Sgd::new(&vs, config)?;
    let mut ddp = Ddp::new(net, vs, &group, DdpOptions::default())?;
    let folder = arguments.resume.clone().unwrap_or_else(|| PathBuf::from("out/imagenet"));
    let snapshots = Snapshots::new(folder);
    let mut progress = match &arguments.resume {
        None => Progress::default(),
        Some(_) => snapshots.load_latest(&mut ddp, Some(&mut opt))?.unwrap_or_default(),
    };
    if arguments.evaluate {
        return evaluate(&arguments, &ddp, &test_source);
    }
    while progress.epoch < arguments.epochs {
        opt.set_lr(arguments.lr * 0.1f64.powi((progress.epoch / 30) as i32));
        progress.step +=
            train_epoch(&arguments, &ddp, &mut opt, &train_source, &plan, progress.epoch)?;
        progress.epoch += 1;
        evaluate(&arguments, &ddp, &test_source)?;
        snapshots.save(&ddp, Some(&opt), progress)?;
    }
    Ok(())
}

type Net = Box<dyn ModuleT>;

fn resnet(arch: &str, root: &nn::Path<'_>, n_classes: i64) -> Result<Net> {
    use vision::resnet::{resnet18, resnet34, resnet50, resnet101, resnet152};
    Ok(match arch {
        "resnet18" => Box::new(resnet18(root, n_classes)),
        "resnet34" => Box::new(resnet34(root, n_classes)),
        "resnet50" => Box::new(resnet50(root, n_classes)),
        "resnet101" => Box::new(resnet101(root, n_classes)),
        "resnet152" => Box::new(resnet152(root, n_classes)),
        other => bail!("unknown -a {other}: resnet18, resnet34, resnet50, resnet101 or resnet152"),
    })
}

fn train_epoch(
    arguments: &Arguments,
    ddp: &Ddp<Net>,
    opt: &mut Sgd,
    source: &Arc<Source>,
    plan: &BatchPlan,
    epoch: u64,
) -> Result<u64> {
    let group = ddp.group();
    let sampler = DistributedSampler::with_plan(source.len(), plan).seed(arguments.seed);
    let n_steps = sampler.len().min(arguments.steps.unwrap_or(usize::MAX));
    let progress = group.progress_bar(n_steps as u64);
    let loader = {
        let source = Arc::clone(source);
        Prefetch::new(sampler.epoch(epoch).take(n_steps), arguments.workers, 2, move |rows| {
            source.load(&rows)
        })
    };
    let started = Instant::now();
    let mut loss_sum = Tensor::zeros([2], (Kind::Double, Device::Cpu));
    for batch in loader {
        let (x, y) = batch?;
        let (x, y) = (x.to_device(ddp.device()), y.to_device(ddp.device()));
        let n = y.size()[0];
        let loss = ddp.run(|net| net.forward_t(&x, true))?.cross_entropy_for_logits(&y);
        ddp.weighted(Weight::of(n)).backward_step(opt, &loss)?;
        loss_sum += Tensor::from_slice(&[f64::try_from(&loss)? * n as f64, n as f64]);
        progress.inc(1);
    }
    progress.finish_and_clear();
    group.all_reduce(&loss_sum)?;
    let (loss, n) = (loss_sum.double_value(&[0]), loss_sum.double_value(&[1]));
    let seconds = started.elapsed().as_secs_f64();
    main_println!(group, "epoch {}: loss {:.4}, {:.1} images/s", epoch + 1, loss / n, n / seconds);
    Ok(n_steps as u64)
}

/// The share of images whose class is the best guess, or among the five best.
fn evaluate(arguments: &Arguments, ddp: &Ddp<Net>, source: &Arc<Source>) -> Result<()> {
    let group = ddp.group();
    let sampler = EvaluationSampler::new(source.len(), group).batch_size(64);
    let loader = {
        let source = Arc::clone(source);
        Prefetch::new(sampler.batches(), arguments.workers, 2, move |rows| source.load(&rows))
    };
    let counts = Tensor::zeros([3], (Kind::Double, Device::Cpu));
    for batch in loader {
        let (x, y) = batch?;
        let (x, y) = (x.to_device(ddp.device()), y.to_device(ddp.device()));
        let best =
            tch::no_grad(|| ddp.run(|net| net.forward_t(&x, false)))?.topk(5, 1, true, true).1;
        let right = best.eq_tensor(&y.unsqueeze(1));
        let top1 = right.narrow(1, 0, 1).sum(Kind::Double).double_value(&[]);
        let top5 = right.sum(Kind::Double).double_value(&[]);
        let mut counts = counts.shallow_clone();
        counts += Tensor::from_slice(&[top1, top5, y.size()[0] as f64]);
    }
    group.all_reduce(&counts)?;
    let n = counts.double_value(&[2]);
    main_println!(
        group,
        "accuracy {:.2} % best, {:.2} % among five",
        100.0 * counts.double_value(&[0]) / n,
        100.0 * counts.double_value(&[1]) / n
    );
    Ok(())
}

/// Starts this program once per rank of this node and waits; one failure ends all.
fn start_ranks(arguments: &Arguments) -> Result<()> {
    let n_gpus = usize::try_from(tch::Cuda::device_count()).unwrap_or(0);
    let per_node = arguments.ranks_per_node.unwrap_or(n_gpus).max(1);
    let address =
        arguments.dist_url.strip_prefix("tcp://").context("--dist-url is tcp://host:port")?;
    let (host, port) = address.rsplit_once(':').context("--dist-url is tcp://host:port")?;
    let mut ranks: Vec<Child> = Vec::new();
    for local_rank in 0..per_node {
        let child = Command::new(std::env::current_exe()?)
            .args(std::env::args_os().skip(1))
            .env("RANK", (arguments.rank * per_node + local_rank).to_string())
            .env("LOCAL_RANK", local_rank.to_string())
            .env("WORLD_SIZE", (arguments.world_size * per_node).to_string())
            .env("LOCAL_WORLD_SIZE", per_node.to_string())
            .env("MASTER_ADDR", host)
            .env("MASTER_PORT", port)
            .spawn()?;
        ranks.push(child);
    }
    let mut failed = None;
    while !ranks.is_empty() && failed.is_none() {
        let mut running = Vec::new();
        for mut rank in ranks {
            match rank.try_wait()? {
                None => running.push(rank),
                Some(status) if status.success() => {}
                Some(status) => failed = Some(status),
            }
        }
        ranks = running;
        std::thread::sleep(Duration::from_millis(50));
    }
    for rank in &mut ranks {
        let _ = rank.kill();
        let _ = rank.wait();
    }
    match failed {
        None => Ok(()),
        Some(status) => bail!("a rank ended with {status}; its error is above"),
    }
}
