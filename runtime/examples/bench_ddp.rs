//! Measures a step of `Ddp`, and compares it with Python's own DDP on the same machine.
//!
//! ```text
//! target/release/examples/bench_ddp --compare path/to/python          # a table, both in turn
//! target/release/examples/bench_ddp --compare path/to/python --link   # over a slow link; root
//! ddp-run --nproc-per-node 2 -- target/release/examples/bench_ddp --model mlp256
//! ```
//!
//! Each rank uses one thread. The last line of rank 0 is
//! `steps_per_second=… compute_ms=… all_reduce_ms=… peak_mib=…`: whole steps; the same step without
//! any communication; the reduction of as many bytes alone; the largest resident memory.
//! `bench_ddp.py` beside this file prints the same for Python.
//!
//! With `--link` the two ranks are in network namespaces of their own, with a link between them
//! whose rate makes the reduction take as long as the computing: there the wait for the network
//! costs no processor time, and what is left of it beside the backward pass is seen.

use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
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
#[derive(Debug, Clone, Parser)]
struct Arguments {
    /// mlp64, mlp256, mlp1024 (seven layers of that width) or resnet18 [default: mlp256; all where
    /// they are compared].
    #[arg(long)]
    model: Option<String>,
    /// Steps to measure.
    #[arg(long)]
    steps: Option<usize>,
    /// Rows (images) of each rank's batch [default: 32; 8 images, but 32 with `--link`].
    #[arg(long)]
    rows: Option<i64>,
    /// Momentum of the SGD.
    #[arg(long, default_value_t = 0.0)]
    momentum: f64,
    /// Compare with this Python's DDP, on two ranks, and print a table.
    #[arg(long)]
    compare: Option<PathBuf>,
    /// Rounds of the comparison; the best of each is shown.
    #[arg(long, default_value_t = 3)]
    rounds: usize,
    /// Compare over a link that needs as long for the gradients as the ranks for computing them.
    /// Needs root, `ip` and `tc`.
    #[arg(long, requires = "compare")]
    link: bool,
}

impl Arguments {
    fn model(&self) -> &str {
        self.model.as_deref().unwrap_or("mlp256")
    }

    /// What both programs of a comparison are given.
    fn of_model(&self, model: &str) -> Vec<String> {
        let mut words = vec!["--model".to_owned(), model.to_owned()];
        let numbers = [
            ("--steps", self.steps.map(|n| n.to_string())),
            ("--rows", self.rows.map(|n| n.to_string())),
            ("--momentum", Some(self.momentum.to_string())),
        ];
        for (name, value) in numbers {
            words.extend(value.into_iter().flat_map(|value| [name.to_owned(), value]));
        }
        words
    }
}

type Net = Box<dyn ModuleT>;

fn width(model: &str) -> Result<i64> {
    model.strip_prefix("mlp").unwrap_or(model).parse().context("unknown --model")
}

fn build(model: &str, root: &nn::Path<'_>) -> Result<Net> {
    if model == "resnet18" {
        return Ok(Box::new(vision::resnet::resnet18(root, 10)));
    }
    let width = width(model)?;
    let mut net = nn::seq_t();
    for layer in 0..7 {
        let linear = nn::linear(root / layer, width, width, nn::LinearConfig::default());
        net = net.add(linear).add_fn(Tensor::relu);
    }
    Ok(Box::new(net))
}

fn batch(model: &str, rows: Option<i64>) -> Result<(Tensor, Tensor)> {
    let floats = |shape: &[i64]| Tensor::randn(shape, (Kind::Float, Device::Cpu));
    if model == "resnet18" {
        let rows = rows.unwrap_or(8);
        return Ok((floats(&[rows, 3, 64, 64]), floats(&[rows, 10])));
    }
    let (rows, width) = (rows.unwrap_or(32), width(model)?);
    Ok((floats(&[rows, width]), floats(&[rows, width])))
}

fn n_steps(arguments: &Arguments) -> usize {
    let usual = match arguments.model() {
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
    match &arguments.compare {
        Some(python) if arguments.link => compare_over_link(python, &arguments),
        Some(python) => compare(python, &arguments),
        None => measure(&arguments),
    }
}

/// One rank's measurement.
fn measure(arguments: &Arguments) -> Result<()> {
    tch::set_num_threads(1);
    tch::manual_seed(0);
    let options = GroupOptions { backend: Backend::Gloo, ..GroupOptions::default() };
    let group = ProcessGroup::init(&Launch::from_env()?, options)?;
    let (x, y) = batch(arguments.model(), arguments.rows)?;
    let n = n_steps(arguments);

    let vs = nn::VarStore::new(Device::Cpu);
    let net = build(arguments.model(), &vs.root())?;
    let config = SgdConfig { lr: LR, momentum: arguments.momentum, ..SgdConfig::default() };
    let mut opt = Sgd::new(&vs, config)?;
    let ddp = Ddp::new(net, vs, &group, DdpOptions::default())?;
    let step_ms = timed(n, || {
        let loss = ddp.run(|net| net.forward_t(&x, true))?.mse_loss(&y, Reduction::Mean);
        Ok(ddp.backward_step(&mut opt, &loss)?)
    })?;
    let peak_mib = peak_mib()?;
    let n_numbers: usize = ddp.vars().trainable_variables().iter().map(Tensor::numel).sum();
    let (net, _vs) = ddp.into_parts();
    let compute_ms = timed(n.div_ceil(3), || {
        opt.zero_grad()?;
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
             all_reduce_ms={all_reduce_ms:.3} peak_mib={peak_mib:.0} n_numbers={n_numbers}"
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

/// Measurements of one program, each by name.
#[derive(Debug, Default)]
struct Runs(Vec<Vec<(String, f64)>>);

impl Runs {
    /// Adds the last line of a measurement.
    fn add(&mut self, output: &str) -> Result<()> {
        let line = output.lines().rfind(|line| line.starts_with("steps_per_second="));
        let line = line.with_context(|| format!("no measurement in:\n{output}"))?;
        let numbers = line.split(' ').map(|word| {
            let (name, value) = word.split_once('=').context("name=value")?;
            Ok((name.to_owned(), value.parse()?))
        });
        self.0.push(numbers.collect::<Result<_>>()?);
        Ok(())
    }

    fn values<'a>(&'a self, name: &'a str) -> impl Iterator<Item = f64> + 'a {
        let runs = self.0.iter().flatten();
        runs.filter(move |(other, _)| other == name).map(|(_, value)| *value)
    }

    fn steps_per_second(&self) -> f64 {
        self.values("steps_per_second").fold(0.0, f64::max)
    }

    fn least(&self, name: &str) -> f64 {
        self.values(name).fold(f64::MAX, f64::min)
    }

    /// A step's time over that of its parts one after the other; below 1 they overlap.
    fn step_over_parts(&self) -> f64 {
        1e3 / self.steps_per_second() / (self.least("compute_ms") + self.least("all_reduce_ms"))
    }
}

/// What a rank of both programs needs to find the other.
fn rank_variables(command: &mut Command, rank: usize, address: &str, port: u16) {
    command
        .env("RANK", rank.to_string())
        .env("WORLD_SIZE", "2")
        .env("MASTER_ADDR", address)
        .env("MASTER_PORT", port.to_string())
        .env("OMP_NUM_THREADS", "1")
        .stdout(Stdio::piped());
}

fn outputs(ranks: Vec<Child>) -> Result<String> {
    let mut output = String::new();
    for rank in ranks {
        let ended = rank.wait_with_output()?;
        ensure!(ended.status.success(), "a rank ended with {}", ended.status);
        output.push_str(&String::from_utf8_lossy(&ended.stdout));
    }
    Ok(output)
}

/// Runs this program on two ranks.
fn run_ours(words: &[String]) -> Result<String> {
    let listener = TcpListener::bind("127.0.0.1:0")?;
    let port = listener.local_addr()?.port();
    let mut socket = Some(std::os::fd::OwnedFd::from(listener));
    let mut ranks = Vec::new();
    for rank in 0..2 {
        let mut command = Command::new(std::env::current_exe()?);
        rank_variables(command.args(words), rank, "127.0.0.1", port);
        command.env("LOCAL_RANK", rank.to_string());
        if let Some(socket) = socket.take() {
            command.stdin(socket).env("TCH_DDP_LISTEN_FD", "0");
        }
        ranks.push(command.spawn()?);
    }
    outputs(ranks)
}

fn script() -> &'static str {
    concat!(env!("CARGO_MANIFEST_DIR"), "/examples/bench_ddp.py")
}

fn run_python(python: &Path, words: &[String]) -> Result<String> {
    let output = Command::new(python)
        .args(["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"])
        .arg(script())
        .args(words)
        .env("OMP_NUM_THREADS", "1")
        .output()?;
    if !output.status.success() {
        bail!("bench_ddp.py failed:\n{}", String::from_utf8_lossy(&output.stderr));
    }
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

fn models(arguments: &Arguments) -> Vec<&str> {
    arguments.model.as_deref().map_or(MODELS.to_vec(), |model| vec![model])
}

/// Both in turn, so that a change of the machine's pace meets both.
fn compare(python: &Path, arguments: &Arguments) -> Result<()> {
    println!(
        "| model | tch-ddp steps/s | Python steps/s | ratio | step / (compute + reduction) \
         | Python's | tch-ddp MiB | Python MiB |"
    );
    println!("|---|--:|--:|--:|--:|--:|--:|--:|");
    for model in models(arguments) {
        let words = arguments.of_model(model);
        let (mut ours, mut theirs) = (Runs::default(), Runs::default());
        for _ in 0..arguments.rounds {
            ours.add(&run_ours(&words)?)?;
            theirs.add(&run_python(python, &words)?)?;
        }
        let (a, b) = (ours.steps_per_second(), theirs.steps_per_second());
        println!(
            "| {model} | {a:.1} | {b:.1} | {:.2} | {:.2} | {:.2} | {:.0} | {:.0} |",
            a / b,
            ours.step_over_parts(),
            theirs.step_over_parts(),
            ours.least("peak_mib"),
            theirs.least("peak_mib")
        );
    }
    Ok(())
}

/// Two network namespaces with a link between them, removed at the end.
struct Network {
    names: [String; 2],
}

fn system(command: &str) -> Result<()> {
    let mut words = command.split(' ');
    let program = words.next().unwrap_or_default();
    let output = Command::new(program).args(words).output();
    let output = output.with_context(|| format!("`{program}` cannot be run"))?;
    let said = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "`{command}` (as root?): {}", said.trim());
    Ok(())
}

impl Network {
    const ADDRESS: &str = "10.79.0.1";
    const PORT: u16 = 29_500;

    fn new() -> Result<Self> {
        // Short, because names of network interfaces are made of them.
        let id = std::process::id() % 1_000_000;
        let network = Self { names: [format!("bench{id}a"), format!("bench{id}b")] };
        let [a, b] = &network.names;
        system(&format!("ip netns add {a}"))?;
        system(&format!("ip netns add {b}"))?;
        system(&format!("ip link add {a}0 netns {a} type veth peer name {b}0 netns {b}"))?;
        for (host, name) in [(1, a), (2, b)] {
            system(&format!("ip -n {name} addr add 10.79.0.{host}/24 dev {name}0"))?;
            system(&format!("ip -n {name} link set lo up"))?;
            system(&format!("ip -n {name} link set {name}0 up"))?;
        }
        Ok(network)
    }

    /// Limits both directions.
    fn set_rate(&self, mbit: f64) -> Result<()> {
        for name in &self.names {
            system(&format!(
                "tc -n {name} qdisc replace dev {name}0 root tbf rate {mbit:.0}mbit burst 512kb \
                 latency 400ms"
            ))?;
        }
        Ok(())
    }

    /// Runs a program as two ranks, one on each side.
    fn run(&self, program: &Path, words: &[String]) -> Result<String> {
        let mut ranks = Vec::new();
        for (rank, name) in self.names.iter().enumerate() {
            let mut command = Command::new("ip");
            command.args(["netns", "exec", name]).arg(program).args(words);
            rank_variables(&mut command, rank, Self::ADDRESS, Self::PORT);
            command
                .env("LOCAL_RANK", "0")
                .env("GLOO_SOCKET_IFNAME", format!("{name}0"))
                .stderr(Stdio::null());
            ranks.push(command.spawn()?);
        }
        outputs(ranks)
    }
}

impl Drop for Network {
    fn drop(&mut self) {
        for name in &self.names {
            let _ = system(&format!("ip netns del {name}"));
        }
    }
}

/// Both in turn over a link on which the reduction takes as long as the computing.
fn compare_over_link(python: &Path, arguments: &Arguments) -> Result<()> {
    println!(
        "| model | link Mbit/s | compute ms | reduction ms | tch-ddp steps/s | Python steps/s \
         | step / (compute + reduction) | Python's |"
    );
    println!("|---|--:|--:|--:|--:|--:|--:|--:|");
    let model = arguments.model.as_deref().unwrap_or("resnet18");
    let rows = arguments.rows.or(Some(32));
    let words = Arguments { rows, ..arguments.clone() }.of_model(model);
    let of_python: Vec<String> = [script().to_owned()].into_iter().chain(words.clone()).collect();
    let ourselves = std::env::current_exe()?;
    let network = Network::new()?;
    let mut free = Runs::default();
    free.add(&network.run(&ourselves, &words)?)?;
    // Two ranks send each other one float32 per number.
    let mbit = free.least("n_numbers") * 32.0 / (free.least("compute_ms") * 1e3);
    network.set_rate(mbit)?;
    let (mut ours, mut theirs) = (Runs::default(), Runs::default());
    for _ in 0..arguments.rounds {
        ours.add(&network.run(&ourselves, &words)?)?;
        theirs.add(&network.run(python, &of_python)?)?;
    }
    println!(
        "| {model} | {mbit:.0} | {:.0} | {:.0} | {:.2} | {:.2} | {:.2} | {:.2} |",
        ours.least("compute_ms"),
        ours.least("all_reduce_ms"),
        ours.steps_per_second(),
        theirs.steps_per_second(),
        ours.step_over_parts(),
        theirs.step_over_parts()
    );
    Ok(())
}
