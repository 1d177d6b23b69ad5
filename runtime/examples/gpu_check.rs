//! Trains on CUDA tensors and compares with the CPU: one rank over NCCL, or two ranks of Gloo that
//! share a GPU (which NCCL refuses). `cargo x gpu-check` runs both.
//!
//! ```text
//! cargo run --release -p tch-ddp --features nccl --example gpu_check -- nccl
//! ```

use std::net::TcpListener;
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail, ensure};
use tch::nn::{self, Module, OptimizerConfig};
use tch::{Device, Kind, Reduction, Tensor};
use tch_ddp::{Backend, Ddp, DdpOptions, GroupOptions, Launch, ProcessGroup};

const ROWS: i64 = 8;
const N_STEPS: usize = 5;

fn main() -> Result<()> {
    let backend = std::env::args().nth(1).context("say which: nccl or gloo")?;
    let is_rank = std::env::var_os("RANK").is_some();
    match backend.as_str() {
        "nccl" => check(Backend::Nccl),
        "gloo" if is_rank => check(Backend::Gloo),
        "gloo" => start_two_ranks(),
        other => bail!("`{other}` is neither nccl nor gloo"),
    }
}

/// Two layers, with the same values in every process.
fn model(vs: &nn::VarStore) -> nn::Sequential {
    let root = vs.root();
    let net = nn::seq()
        .add(nn::linear(&root / "first", 16, 32, nn::LinearConfig::default()))
        .add_fn(Tensor::tanh)
        .add(nn::linear(&root / "second", 32, 4, nn::LinearConfig::default()));
    for (name, mut tensor) in vs.variables() {
        let seed: f64 = name.bytes().map(f64::from).sum();
        let steps = Tensor::arange(tensor.numel() as i64, (Kind::Float, tensor.device()));
        let values = ((steps * 0.37 + seed).cos() * 0.3).view(tensor.size().as_slice());
        tch::no_grad(|| tensor.copy_(&values));
    }
    net
}

fn data(rows: i64, device: Device) -> (Tensor, Tensor) {
    let waves = |columns: i64| {
        let steps = Tensor::arange(rows * columns, (Kind::Float, device));
        (steps * 0.7).sin().view([rows, columns])
    };
    (waves(16), waves(4))
}

/// Trains on this rank's share and compares with one process on the CPU.
fn check(backend: Backend) -> Result<()> {
    let options = GroupOptions { backend, ..GroupOptions::default() };
    let group = ProcessGroup::init(&Launch::from_env()?, options)?;
    // ddp-lint: allow(device-zero-on-every-rank) -- one GPU is enough for this check
    let device = Device::Cuda(0);
    let n = group.world_size();
    let sum = Tensor::full([3], group.rank() as i64 + 1, (Kind::Int64, device));
    group.all_reduce(&sum)?;
    ensure!(sum.int64_value(&[0]) as usize == n * (n + 1) / 2, "the sum of the ranks is {sum:?}");

    let vs = nn::VarStore::new(device);
    let net = model(&vs);
    let mut opt = nn::Sgd::default().build(&vs, 0.1)?;
    let ddp = Ddp::new(net, vs, &group, DdpOptions::default())?;
    let (x, y) = data(ROWS * group.world_size() as i64, device);
    let first = ROWS * group.rank() as i64;
    let (x, y) = (x.narrow(0, first, ROWS), y.narrow(0, first, ROWS));
    for _ in 0..N_STEPS {
        let loss = ddp.run(|net| net.forward(&x))?.mse_loss(&y, Reduction::Mean);
        ddp.backward_step(&mut opt, &loss)?;
    }
    let apart = difference(ddp.vars(), &alone(ROWS * group.world_size() as i64)?)?;
    // Sums are added up in another order on the GPU, and TF32 is off by default.
    ensure!(apart <= 1e-5, "the GPU's parameters differ from the CPU's by {apart:e}");
    group.barrier()?;
    if group.is_main() {
        println!("{backend:?}, {n} ranks on CUDA tensors: differs from the CPU by {apart:.1e}");
    }
    // A rank whose batch stayed on the CPU, last because it ends the group: all ranks are told.
    let on_cpu = x.to_device(Device::Cpu);
    let input = if group.rank() + 1 == n { &on_cpu } else { &x };
    let told = ddp.check_inputs(&[input]).and_then(|()| group.barrier());
    let told = told.err().map(|error| error.to_string()).unwrap_or_default();
    ensure!(told.contains("input 0 is on Cpu but the model is on Cuda"), "told: {told}");
    Ok(())
}

fn alone(rows: i64) -> Result<nn::VarStore> {
    let vs = nn::VarStore::new(Device::Cpu);
    let net = model(&vs);
    let mut opt = nn::Sgd::default().build(&vs, 0.1)?;
    let (x, y) = data(rows, Device::Cpu);
    for _ in 0..N_STEPS {
        opt.backward_step(&net.forward(&x).mse_loss(&y, Reduction::Mean));
    }
    Ok(vs)
}

fn difference(left: &nn::VarStore, right: &nn::VarStore) -> Result<f64> {
    let right = right.variables();
    let mut largest = 0f64;
    for (name, tensor) in left.variables() {
        let apart = (tensor.to_device(Device::Cpu) - &right[&name]).abs().max();
        largest = largest.max(f64::try_from(apart)?);
    }
    Ok(largest)
}

fn start_two_ranks() -> Result<()> {
    let listener = TcpListener::bind("127.0.0.1:0")?;
    let port = listener.local_addr()?.port();
    let mut socket = Some(std::os::fd::OwnedFd::from(listener));
    let mut ranks = Vec::new();
    for rank in 0..2 {
        let mut command = Command::new(std::env::current_exe()?);
        command
            .arg("gloo")
            .env("RANK", rank.to_string())
            .env("LOCAL_RANK", rank.to_string())
            .env("WORLD_SIZE", "2")
            .env("MASTER_ADDR", "127.0.0.1")
            .env("MASTER_PORT", port.to_string());
        match socket.take() {
            Some(socket) => command.stdin(socket).env("TCH_DDP_LISTEN_FD", "0"),
            None => command.stdin(Stdio::null()),
        };
        ranks.push(command.spawn()?);
    }
    for mut rank in ranks {
        let status = rank.wait()?;
        ensure!(status.success(), "a rank ended with {status}");
    }
    Ok(())
}
