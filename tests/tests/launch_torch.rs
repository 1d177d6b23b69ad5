//! The launcher with real process groups: one Python program under every launcher, and a run
//! that survives ten kills. Needs the torch that `cargo x setup` installs.
#![cfg(feature = "torch")]

mod launch_support;

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use ddp_tests::{binaries, repository};
use launch_support::{Launcher, Ran, Started, TwoMachines, ddp_run, kill, some_port};
use serde_json::Value;

/// Importing torch takes long when the cores are busy.
const LIMIT_S: f64 = 300.0;

/// Folder of `python` and `torchrun`, if libtorch is that of a Python installation.
fn bin() -> Option<PathBuf> {
    let torch = fs::canonicalize(repository::root().join(".libtorch")).ok()?;
    let bin = torch.ancestors().nth(4)?.join("bin");
    if bin.join("torchrun").exists() {
        return Some(bin);
    }
    eprintln!("skipped: the libtorch of this checkout belongs to no Python; see `cargo x setup`");
    None
}

fn train_py() -> String {
    repository::root().join("tests/tests/launch_support/train.py").display().to_string()
}

/// The training program and where it puts its result.
fn program(bin: &Path, result: &Path, more: &[&str]) -> Vec<String> {
    let python = bin.join("python").display().to_string();
    let result = result.display().to_string();
    let mut words = vec![python, train_py(), "--result".to_owned(), result];
    words.extend(more.iter().map(|word| (*word).to_owned()));
    words
}

#[track_caller]
fn text_of(path: &Path) -> String {
    fs::read_to_string(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

#[track_caller]
fn parameters(path: &Path) -> Vec<f64> {
    text_of(path).lines().map(|line| line.parse().unwrap()).collect()
}

/// The largest difference of two sets of parameters.
#[track_caller]
fn difference(left: &[f64], right: &[f64]) -> f64 {
    assert_eq!(left.len(), right.len());
    left.iter().zip(right).map(|(left, right)| (left - right).abs()).fold(0.0, f64::max)
}

fn torchrun(bin: &Path, args: &[&str], program: &[String]) -> Launcher {
    let mut command = Command::new(bin.join("torchrun"));
    command.args(["--standalone", "--no-python"]).args(args).args(program);
    Launcher::new(command)
}

#[track_caller]
fn all_succeed(started: Vec<Started>) -> Vec<Ran> {
    let ran: Vec<Ran> = started.into_iter().map(|started| started.wait(LIMIT_S)).collect();
    for ran in &ran {
        ran.ended(0, &[]);
    }
    ran
}

#[test]
fn one_program_trains_the_same_under_every_launcher() {
    let Some(bin) = bin() else { return };
    let folder = tempfile::tempdir().unwrap();
    let program = |name: &str| program(&bin, &folder.path().join(name), &[]);
    let own = |args: &[&str], name: &str| {
        let args = args.iter().map(|arg| (*arg).to_owned());
        ddp_run(args.chain(["--".to_owned()]).chain(program(name)))
    };

    own(&["-n", "2"], "ddp-run").run(LIMIT_S).ended(0, &[]);
    let reference = parameters(&folder.path().join("ddp-run"));
    let same = |name: &str| {
        let difference = difference(&parameters(&folder.path().join(name)), &reference);
        assert!(difference < 1e-6, "{name} differs by {difference}");
    };

    // The store that is not built on libuv must find its port free too.
    own(&["-n", "2"], "old-store").env("USE_LIBUV", "0").run(LIMIT_S).ended(0, &[]);
    same("old-store");

    torchrun(&bin, &["--nproc-per-node", "2"], &program("torchrun")).run(LIMIT_S).ended(0, &[]);
    same("torchrun");

    let mut inner = vec![binaries::ddp_run().display().to_string()];
    inner.extend(program("inside-torchrun"));
    torchrun(&bin, &["--nproc-per-node", "2"], &inner).run(LIMIT_S).ended(0, &[]);
    same("inside-torchrun");

    let job = std::process::id();
    let slurm = |task: usize| {
        own(&[], "slurm").envs(&format!(
            "SLURM_JOB_ID={job} SLURM_STEP_ID=0 SLURM_NNODES=1 SLURM_NTASKS=2 \
             SLURM_PROCID={task} SLURM_LOCALID={task} SLURM_NODEID=0 SLURM_TASKS_PER_NODE=2"
        ))
    };
    all_succeed((0..2).map(|task| slurm(task).start()).collect());
    same("slurm");

    let port = some_port();
    let open_mpi = |task: usize| {
        own(&[], "open-mpi").envs(&format!(
            "OMPI_COMM_WORLD_RANK={task} OMPI_COMM_WORLD_SIZE=2 MASTER_PORT={port} \
             OMPI_COMM_WORLD_LOCAL_RANK={task} OMPI_COMM_WORLD_LOCAL_SIZE=2"
        ))
    };
    all_succeed((0..2).map(|task| open_mpi(task).start()).collect());
    same("open-mpi");

    if let Some(machines) = TwoMachines::new() {
        let start = |node: usize| {
            let interface = machines.interface(node);
            let launcher = machines.launcher(node, "-n 1", &program("two-machines"));
            launcher.env("GLOO_SOCKET_IFNAME", &interface).start()
        };
        all_succeed((0..2).map(start).collect());
        same("two-machines");
    }
}

#[test]
fn every_variable_of_torchrun_is_set() {
    let Some(bin) = bin() else { return };
    let script = ["sh", "-c", "env"].map(str::to_owned);
    let names = |out: &str| -> BTreeSet<String> {
        let lines = out.lines().map(|line| line.strip_prefix("[rank 0] ").unwrap_or(line));
        lines.filter_map(|line| line.split_once('=')).map(|(name, _)| name.to_owned()).collect()
    };
    let outer = torchrun(&bin, &["--nproc-per-node", "1"], &script).run(LIMIT_S);
    let own = ddp_run(["-n", "1", "--"].into_iter().chain(["sh", "-c", "env"])).run(10.0);
    let missing: Vec<_> = names(&outer.out).difference(&names(&own.out)).cloned().collect();
    assert_eq!(missing, Vec::<String>::new());
    assert!(names(&own.out).contains("TORCHELASTIC_RUN_ID"));
}

#[test]
fn an_exception_is_reported_with_its_trace_and_before_its_victims() {
    let Some(bin) = bin() else { return };
    let folder = tempfile::tempdir().unwrap();
    let program = program(&bin, &folder.path().join("never"), &["--fail-at", "3"]);
    let args = ["-n", "2", "--"].map(str::to_owned);
    let ran = ddp_run(args.into_iter().chain(program)).run(LIMIT_S);
    let root = "rank 1 failed first";
    ran.ended(1, &[root, "its error:", "| ValueError: the batch of step 3 is empty"]);
}

/// Numbers that look random; the seed is printed so that a failure can be repeated.
struct Dice(u64);

impl Dice {
    fn new() -> Self {
        let seed = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_nanos() as u64;
        eprintln!("seed {seed}");
        Self(seed | 1)
    }

    /// A number from 0 to 1.
    fn roll(&mut self) -> f64 {
        self.0 =
            self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 11) as f64 / (1_u64 << 53) as f64
    }
}

/// How many kills the run must survive.
const KILLS: usize = 10;

/// The state of the run that logs here.
fn state(logs: &Path) -> Option<Value> {
    serde_json::from_str(&fs::read_to_string(logs.join("run.json")).ok()?).ok()
}

/// Kills a random rank of each attempt at a random moment.
fn kill_at_random(started: &mut Started, logs: &Path) {
    let mut dice = Dice::new();
    for n_killed in 0..KILLS {
        started.until("the attempt", |_| {
            state(logs)
                .is_some_and(|state| state["restarts"] == n_killed && state["status"] == "running")
        });
        // Every other kill hits the training, the others may hit the start as well.
        if n_killed % 2 == 0 {
            let log = logs.join(format!("attempt_{n_killed}/0/stdout.log"));
            let begun =
                |_: &[i32]| fs::read_to_string(&log).is_ok_and(|log| log.contains("begins"));
            started.until_within(LIMIT_S, "the training", begun);
            thread::sleep(Duration::from_secs_f64(3.0 * dice.roll()));
        } else {
            thread::sleep(Duration::from_secs_f64(12.0 * dice.roll()));
        }
        let mut ranks = started.ranks();
        while ranks.is_empty() {
            ranks = started.ranks();
        }
        let (_, victim) = ranks[(dice.roll() * ranks.len() as f64) as usize];
        kill("KILL", victim as u32);
    }
}

#[test]
fn ten_kills_do_not_change_the_result() {
    let Some(bin) = bin() else { return };
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name);
    let own = |args: &str, program: Vec<String>| {
        let args = args.split_whitespace().map(str::to_owned);
        ddp_run(args.chain(["--".to_owned()]).chain(program))
    };
    let steps = ["--steps", "800"];
    let calm = program(&bin, &path("calm"), &steps);
    own("-n 2", calm).run(LIMIT_S).ended(0, &[]);

    // Slow enough that no attempt that is going to be killed can reach the end.
    let checkpoint = path("checkpoint").display().to_string();
    let n_kills = KILLS.to_string();
    let slow = ["--checkpoint", &checkpoint, "--pause", "0.1", "--pause-until-restart", &n_kills];
    let stormy = program(&bin, &path("stormy"), &[&steps[..], &slow].concat());
    let args = format!(
        "-n 2 --max-restarts {KILLS} --max-restart-delay 0.1 --rdzv-id logs --log-dir {}",
        folder.path().display()
    );
    let mut started = own(&args, stormy).start();
    let logs = path("logs");
    kill_at_random(&mut started, &logs);
    started.wait(4.0 * LIMIT_S).ended(0, &["restart 10 of 10"]);

    let causes = state(&logs).unwrap()["root_causes"].as_array().unwrap().clone();
    assert_eq!(causes.len(), KILLS);
    for cause in &causes {
        assert_eq!(cause["how"]["signal"], 9, "{cause}");
    }
    let resumed = text_of(&logs.join("attempt_10/0/stdout.log"));
    assert!(!resumed.contains("begins at step 0\n"), "nothing was resumed: {resumed}");
    let difference = difference(&parameters(&path("stormy")), &parameters(&path("calm")));
    assert!(difference <= 1e-5, "the parameters differ by {difference}");
}
