//! Measures a step of `Ddp`, and compares it with Python's own DDP on the same machine.
//!
//! ```text
//! target/release/examples/bench_ddp --compare path/to/python     # a table, both in turn
//! ddp-run --nproc-per-node 2 -- target/release/examples/bench_ddp --model mlp256
//! ```
//!
//! Each rank uses one thread. The last line of rank 0 is
//! `steps_per_second=… compute_ms=… all_reduce_ms=… peak_mib=…`: whole steps; the same step without
//! any communication; the reduction of as many bytes alone; the largest resident memory.
//! `bench_ddp.py` beside this file prints the same for Python.

use std::net::TcpListener;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::Instant;

use anyhow::{Context, Result, bail, ensure};
use clap::Parser;
use tch::nn::{self, ModuleT};
use tch::{Device, Kind, Reduction, Tensor, vision};
use tch_ddp::optim::{Optimizer, Sgd, SgdConfig};
use tch_ddp::{Backend, Ddp, DdpOptions, GroupOptions, Launch, ProcessGroup};

const MODELS: [&str; 4] = ["mlp64", "mlp256", "mlp1024", "resnet18"];
const LR: f64 = 1e-3;

/// Measures a step of `Ddp`.
#[derive(Debug, Parser)]
struct Arguments {
    /// mlp64, mlp256, mlp1024 (seven layers of that width) or resnet18.
    #[arg(long, default_value = "mlp256")]
    model: String,
    /// Steps to measure.
    #[arg(long)]
    steps: Option<usize>,
    /// Compare with this Python's DDP, on two ranks, and print a table.
    #[arg(long)]
    compare: Option<PathBuf>,
    /// Rounds of the comparison; the best of each is shown.
    #[arg(long, default_value_t = 3)]
    rounds: usize,
}

type Net = Box<dyn ModuleT>;

fn build(model: &str, root: &nn::Path<'_>) -> Result<Net> {
    if model == "resnet18" {
        return Ok(Box::new(vision::resnet::resnet18(root, 10)));
    }
    let width: i64 =
        model.strip_prefix("mlp").unwrap_or(model).parse().context("unknown --model")?;
    let mut net = nn::seq_t();
    for layer in 0..7 {
        let linear = nn::linear(root / layer, width, width, nn::LinearConfig::default());
        net = net.add(linear).add_fn(Tensor::relu);
    }
    Ok(Box::new(net))
}

fn batch(model: &str) -> Result<(Tensor, Tensor)> {
    let floats = |shape: &[i64]| Tensor::randn(shape, (Kind::Float, Device::Cpu));
    if model == "resnet18" {
        return Ok((floats(&[8, 3, 64, 64]), floats(&[8, 10])));
    }
    let width: i64 =
        model.strip_prefix("mlp").unwrap_or(model).parse().context("unknown --model")?;
    Ok((floats(&[32, width]), floats(&[32, width])))
}

fn n_steps(arguments: &Arguments) -> usize {
    let usual = match arguments.model.as_str() {
        "mlp64" => 1500,
        "mlp256" => 500,
        "mlp1024" => 60,
        _ => 30,
    };
    arguments.steps.unwrap_or(usual)
}

/// Milliseconds per call, after a few that do not count.
fn timed(n: usize, mut call: impl FnMut() -> Result<()>) -> Result<f64> {
    for _ in 0..n.div_ceil(5).clamp(3, 50) {
        call()?;
    }
    let started = Instant::now();
    for _ in 0..n {
        call()?;
    }
    Ok(started.elapsed().as_secs_f64() * 1e3 / n as f64)
}

fn main() -> Result<()> {
    let arguments = Arguments::parse();
    if let Some(python) = &arguments.compare {
        return compare(python, arguments.rounds);
    }
    tch::set_num_threads(1);
    tch::manual_seed(0);
    let options = GroupOptions { backend: Backend::Gloo, ..GroupOptions::default() };
    let group = ProcessGroup::init(&Launch::from_env()?, options)?;
    let (x, y) = batch(&arguments.model)?;
    let n = n_steps(&arguments);

    let vs = nn::VarStore::new(Device::Cpu);
    let net = build(&arguments.model, &vs.root())?;
    let config = SgdConfig { lr: LR, ..SgdConfig::default() };
    let mut opt = Sgd::new(&vs, config)?;
    let ddp = Ddp::new(net, vs, &group, DdpOptions::default())?;
    let step_ms = timed(n, || {
        let loss = ddp.run(|net| net.forward_t(&x, true))?.mse_loss(&y, Reduction::Mean);
        Ok(ddp.backward_step(&mut opt, &loss)?)
    })?;
    let peak_mib = peak_mib()?;
    let n_numbers: usize = ddp.vars().trainable_variables().iter().map(Tensor::numel).sum();
    let (net, vs) = ddp.into_parts();
    let mut opt = Sgd::new(&vs, config)?;
    let compute_ms = timed(n.div_ceil(3), || {
        for variable in vs.trainable_variables() {
            let mut grad = variable.grad();
            if grad.defined() {
                let _ = grad.zero_();
            }
        }
        net.forward_t(&x, true).mse_loss(&y, Reduction::Mean).backward();
        Ok(opt.step()?)
    })?;
    let flat = Tensor::zeros([n_numbers as i64], (Kind::Float, Device::Cpu));
    let all_reduce_ms = timed(n.div_ceil(3), || Ok(group.all_reduce(&flat)?))?;
    group.barrier()?;
    if group.is_main() {
        let steps_per_second = 1e3 / step_ms;
        println!(
            "steps_per_second={steps_per_second:.2} compute_ms={compute_ms:.3} \
             all_reduce_ms={all_reduce_ms:.3} peak_mib={peak_mib:.0}"
        );
    }
    Ok(())
}

/// The largest resident memory of this process so far.
fn peak_mib() -> Result<f64> {
    let status = std::fs::read_to_string("/proc/self/status")?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
    let kib: f64 = line.and_then(|l| l.trim().strip_suffix(" kB")?.parse().ok()).unwrap_or(0.0);
    Ok(kib / 1024.0)
}

/// One measurement's last line, by name.
fn numbers(output: &str) -> Result<Vec<(String, f64)>> {
    let line = output.lines().rfind(|line| line.starts_with("steps_per_second="));
    let line = line.with_context(|| format!("no measurement in:\n{output}"))?;
    line.split(' ')
        .map(|word| {
            let (name, value) = word.split_once('=').context("name=value")?;
            Ok((name.to_owned(), value.parse()?))
        })
        .collect()
}

fn value(numbers: &[(String, f64)], name: &str) -> f64 {
    numbers.iter().find(|(other, _)| other == name).map_or(f64::NAN, |(_, value)| *value)
}

/// Runs this program on two ranks.
fn run_ours(model: &str) -> Result<Vec<(String, f64)>> {
    let listener = TcpListener::bind("127.0.0.1:0")?;
    let port = listener.local_addr()?.port();
    let mut socket = Some(std::os::fd::OwnedFd::from(listener));
    let mut ranks = Vec::new();
    for rank in 0..2 {
        let mut command = Command::new(std::env::current_exe()?);
        command
            .args(["--model", model])
            .env("RANK", rank.to_string())
            .env("LOCAL_RANK", rank.to_string())
            .env("WORLD_SIZE", "2")
            .env("MASTER_ADDR", "127.0.0.1")
            .env("MASTER_PORT", port.to_string())
            .env("OMP_NUM_THREADS", "1")
            .stdout(Stdio::piped());
        if let Some(socket) = socket.take() {
            command.stdin(socket).env("TCH_DDP_LISTEN_FD", "0");
        }
        ranks.push(command.spawn()?);
    }
    let mut output = String::new();
    for rank in ranks {
        let ended = rank.wait_with_output()?;
        ensure!(ended.status.success(), "a rank ended with {}", ended.status);
        output.push_str(&String::from_utf8_lossy(&ended.stdout));
    }
    numbers(&output)
}

fn run_python(python: &PathBuf, model: &str) -> Result<Vec<(String, f64)>> {
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/examples/bench_ddp.py");
    let output = Command::new(python)
        .args(["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"])
        .args([script, "--model", model])
        .env("OMP_NUM_THREADS", "1")
        .output()?;
    if !output.status.success() {
        bail!("bench_ddp.py failed:\n{}", String::from_utf8_lossy(&output.stderr));
    }
    numbers(&String::from_utf8_lossy(&output.stdout))
}

/// Both in turn, so that a change of the machine's pace meets both.
fn compare(python: &PathBuf, rounds: usize) -> Result<()> {
    println!(
        "| model | tch-ddp steps/s | Python steps/s | ratio | step / (compute + reduction) \
         | tch-ddp MiB | Python MiB |"
    );
    println!("|---|--:|--:|--:|--:|--:|--:|");
    for model in MODELS {
        let (mut ours, mut theirs) = (Vec::new(), Vec::new());
        for _ in 0..rounds {
            ours.push(run_ours(model)?);
            theirs.push(run_python(python, model)?);
        }
        let best = |all: &[Vec<(String, f64)>], name: &str| -> f64 {
            let values = all.iter().map(|numbers| value(numbers, name));
            if name == "steps_per_second" {
                values.fold(0.0, f64::max)
            } else {
                values.fold(f64::MAX, f64::min)
            }
        };
        let (a, b) = (best(&ours, "steps_per_second"), best(&theirs, "steps_per_second"));
        let apart = best(&ours, "compute_ms") + best(&ours, "all_reduce_ms");
        println!(
            "| {model} | {a:.1} | {b:.1} | {:.2} | {:.2} | {:.0} | {:.0} |",
            a / b,
            1e3 / a / apart,
            best(&ours, "peak_mib"),
            best(&theirs, "peak_mib")
        );
    }
    Ok(())
}
