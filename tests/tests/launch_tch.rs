//! A tch program of our own runtime under every launcher, with and without `ddp-run`, and killed
//! ten times in one training. The ranks are this very test program.
#![cfg(feature = "torch")]

use std::fs;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use ddp_tests::launch::random::{kill_at_random, was_resumed_after};
use ddp_tests::launch::{Launcher, TwoMachines, all_succeed, ddp_run, some_port};
use tch::nn::{self, Module, OptimizerConfig};
use tch::{Device, Kind, Tensor};
use tch_ddp::{Ddp, DdpOptions, GroupOptions, Launch, ProcessGroup};

const LIMIT_S: f64 = 300.0;

/// How many kills the run must survive.
const KILLS: usize = 10;

/// What the rank's program is told by its environment.
fn told(name: &str) -> Option<String> {
    std::env::var(format!("DDP_TEST_{name}")).ok()
}

/// The rank's program, if this test was started as one: trains, resumes from its checkpoint, and
/// writes the parameters at the end.
#[test]
fn child_that_trains() {
    let Some(result) = told("RESULT") else { return };
    let steps: i64 = told("STEPS").map_or(30, |steps| steps.parse().unwrap());
    train(&result, steps, told("CHECKPOINT").as_deref()).unwrap();
}

fn train(result: &str, steps: i64, checkpoint: Option<&str>) -> anyhow::Result<()> {
    let launch = Launch::from_env()?;
    let group = ProcessGroup::init(&launch, GroupOptions::default())?;
    let restart = std::env::var("TORCHELASTIC_RESTART_COUNT").ok();
    let slow = checkpoint.is_some() && restart.is_some_and(|count| count != KILLS.to_string());
    let mut vs = nn::VarStore::new(Device::Cpu);
    vs.set_kind(Kind::Double);
    let root = vs.root();
    // Kept with the parameters, so that both are of the same step however the program ends.
    let done = root.zeros_no_train("done", &[1]);
    let net = nn::seq()
        .add(nn::linear(&root / "in", 6, 12, nn::LinearConfig::default()))
        .add_fn(Tensor::tanh)
        .add(nn::linear(&root / "out", 12, 1, nn::LinearConfig::default()));
    tch::no_grad(|| {
        for (number, (_, mut value)) in sorted(&vs).into_iter().enumerate() {
            let wave = Tensor::arange(value.numel() as i64, (Kind::Double, Device::Cpu));
            let wave = (wave * 0.7 + number as f64).sin() * 0.5;
            value.copy_(&wave.view_as(&value));
        }
    });
    let mut opt = nn::Sgd::default().build(&vs, 0.05)?;
    let _ = tch::no_grad(|| done.shallow_clone().zero_());
    let mut ddp = Ddp::new(net, vs, &group, DdpOptions::default())?;
    if let Some(path) = checkpoint.filter(|path| Path::new(path).exists()) {
        ddp.load(path)?;
    }
    let first = done.double_value(&[0]) as i64;
    println!("begins at step {first}");
    for step in first..steps {
        let seed = (step * 7 + launch.rank() as i64) as f64;
        let x = Tensor::arange(16 * 6, (Kind::Double, Device::Cpu)).view([16, 6]);
        let x = (x * 0.37 + seed).sin();
        let y = x.sum_dim_intlist([1_i64].as_slice(), true, Kind::Double).sin();
        let loss = (ddp.run(|net| net.forward(&x))? - y).square().mean(Kind::Double);
        ddp.backward_step(&mut opt, &loss)?;
        let _ = tch::no_grad(|| done.shallow_clone().fill_((step + 1) as f64));
        if let Some(path) = checkpoint {
            ddp.save(path)?;
        }
        if slow {
            std::thread::sleep(Duration::from_millis(50));
        }
    }
    if launch.is_main() {
        let all: Vec<Tensor> = sorted(ddp.vars()).iter().map(|(_, v)| v.flatten(0, -1)).collect();
        let values = Vec::<f64>::try_from(Tensor::cat(&all, 0))?;
        let lines: Vec<String> = values.iter().map(|value| format!("{value:.15e}")).collect();
        fs::write(result, lines.join("\n"))?;
    }
    Ok(())
}

/// The rank's program that fails on rank 1, if this test was started as one; rank 0 waits.
#[test]
fn child_that_fails() {
    let Some(how) = told("FAILURE") else { return };
    let run = || -> anyhow::Result<()> {
        let launch = Launch::from_env()?;
        let group = ProcessGroup::init(&launch, GroupOptions::default())?;
        if group.is_main() {
            std::thread::sleep(Duration::from_mins(1));
        }
        match how.as_str() {
            "error" => Err(std::io::Error::other("it has 0 rows"))?,
            "panic" => panic!("the batch is empty: it has 0 rows"),
            _ => {
                let loader = std::thread::Builder::new().name("loader".to_owned());
                let loader = loader.spawn(|| panic!("the batch is empty: it has 0 rows"))?;
                loader.join().expect("the loader works");
            }
        }
        Ok(())
    };
    let recorded = tch_ddp::record(|| run().map_err(|error| error.context("the batch is empty")));
    if recorded.is_err() {
        std::process::exit(3);
    }
}

/// Variables by name, the same on every rank.
fn sorted(vs: &nn::VarStore) -> Vec<(String, Tensor)> {
    let mut variables: Vec<_> = vs.variables().into_iter().collect();
    variables.sort_by(|left, right| left.0.cmp(&right.0));
    variables
}

/// The command line of a rank that trains.
fn program() -> Vec<String> {
    child("child_that_trains")
}

/// The command line of this test program as one of its children.
fn child(name: &str) -> Vec<String> {
    let own = std::env::current_exe().unwrap().display().to_string();
    [&own, "--exact", name, "--nocapture"].map(str::to_owned).to_vec()
}

fn own(args: &str) -> Launcher {
    let args = args.split_whitespace().map(str::to_owned);
    ddp_run(args.chain(["--".to_owned()]).chain(program()))
}

/// The program without a launcher, as `srun` and `mpirun` start it.
fn bare() -> Launcher {
    let program = program();
    let mut command = Command::new(&program[0]);
    command.args(&program[1..]);
    Launcher::new(&command)
}

#[track_caller]
fn same(left: &Path, right: &Path, tolerance: f64) {
    let difference = ddp_tests::launch::difference(left, right);
    assert!(difference <= tolerance, "{} differs by {difference}", left.display());
}

#[test]
fn a_tch_program_trains_the_same_under_every_launcher() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name);
    let told = |launcher: Launcher, name: &str| {
        launcher.env("DDP_TEST_RESULT", path(name).to_str().unwrap())
    };
    told(own("-n 2"), "ddp-run").run(LIMIT_S).ended(0, &[]);
    let reference = path("ddp-run");

    let port = some_port();
    let slurm = |task: usize, job: u32| {
        format!(
            "SLURM_JOB_ID={job} SLURM_STEP_ID=0 SLURM_NNODES=1 SLURM_NTASKS=2 SLURM_NODEID=0 \
             SLURM_PROCID={task} SLURM_LOCALID={task} SLURM_STEP_NODELIST=localhost \
             SLURM_STEP_TASKS_PER_NODE=2"
        )
    };
    let open_mpi = |task: usize| {
        format!(
            "OMPI_COMM_WORLD_RANK={task} OMPI_COMM_WORLD_SIZE=2 OMPI_COMM_WORLD_LOCAL_RANK={task} \
             OMPI_COMM_WORLD_LOCAL_SIZE=2 MASTER_ADDR=127.0.0.1 MASTER_PORT={port}"
        )
    };
    let job = std::process::id();
    let tasks = |name: &str, launcher: &dyn Fn() -> Launcher, env: &dyn Fn(usize) -> String| {
        all_succeed((0..2).map(|task| told(launcher(), name).envs(&env(task)).start()), LIMIT_S);
        same(&path(name), &reference, 1e-9);
    };
    tasks("srun-ddp-run", &|| own(""), &|task| slurm(task, job));
    tasks("srun", &bare, &|task| slurm(task, job + 1));
    tasks("mpirun-ddp-run", &|| own(""), &open_mpi);
    tasks("mpirun", &bare, &open_mpi);

    if let Some(torchrun) = ddp_tests::launch::torchrun() {
        let mut command = Command::new(torchrun);
        command.args(["--standalone", "--no-python", "--nproc-per-node", "2"]).args(program());
        told(Launcher::new(&command), "torchrun").run(LIMIT_S).ended(0, &[]);
        same(&path("torchrun"), &reference, 1e-9);
    }
    if let Some(machines) = TwoMachines::new() {
        let start = |node: usize| {
            let launcher = told(machines.launcher(node, "-n 1", &program()), "two-machines");
            launcher.env("GLOO_SOCKET_IFNAME", &machines.interface(node)).start()
        };
        all_succeed((0..2).map(start), LIMIT_S);
        same(&path("two-machines"), &reference, 1e-9);
    }
}

#[test]
fn ten_kills_do_not_change_the_result() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name);
    let told = |launcher: Launcher, name: &str| {
        let result = path(name);
        launcher.env("DDP_TEST_RESULT", result.to_str().unwrap()).env("DDP_TEST_STEPS", "1500")
    };
    told(own("-n 2"), "calm").run(LIMIT_S).ended(0, &[]);
    let args = format!(
        "-n 2 --max-restarts {KILLS} --max-restart-delay 0.1 --rdzv-id logs --log-dir {}",
        folder.path().display()
    );
    let stormy = told(own(&args), "stormy");
    let checkpoint = path("checkpoint.safetensors");
    let mut started = stormy.env("DDP_TEST_CHECKPOINT", checkpoint.to_str().unwrap()).start();
    let logs = path("logs");
    kill_at_random(&mut started, &logs, KILLS, 3.0);
    started.wait(4.0 * LIMIT_S).ended(0, &["restart 10 of 10"]);

    was_resumed_after(KILLS, &logs);
    same(&path("stormy"), &path("calm"), 1e-5);
}

#[test]
fn errors_and_panics_are_reported_to_the_launcher() {
    let own = |how: &str| {
        let args = ["-n", "2", "--"].map(str::to_owned).into_iter();
        let launcher = ddp_run(args.chain(child("child_that_fails"))).env("DDP_TEST_FAILURE", how);
        launcher.env("RUST_BACKTRACE", "0").run(LIMIT_S)
    };
    let panicked = "tests/launch_tch.rs:";
    own("error").ended(3, &["rank 1 failed first", "its error", "| the batch is empty: it has 0"]);
    let said = format!("| thread 'child_that_fails' panicked at tests/{panicked}");
    own("panic").ended(101, &["rank 1 failed first", "its error", &said, "the batch is empty"]);
    let earlier = format!("| before that, thread 'loader' panicked at tests/{panicked}");
    own("thread").ended(101, &["rank 1 failed first", &said, "the loader works", &earlier]);
}

#[test]
fn torchrun_shows_what_a_rank_reports() {
    let Some(torchrun) = ddp_tests::launch::torchrun() else { return };
    for how in ["error", "panic"] {
        let mut command = Command::new(&torchrun);
        command.args(["--standalone", "--no-python", "--nproc-per-node", "2"]);
        command.args(child("child_that_fails"));
        let ran = Launcher::new(&command).env("DDP_TEST_FAILURE", how).run(LIMIT_S);
        ran.ended(1, &["Root Cause"]);
        let report = &ran.err[ran.err.find("Root Cause").unwrap()..];
        assert!(report.contains("rank      : 1"), "{report}");
        assert!(report.contains("the batch is empty: it has 0 rows"), "{report}");
    }
}
