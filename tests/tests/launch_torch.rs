//! The launcher with real process groups: one Python program under every launcher, and a run
//! that survives ten kills. Needs the torch that `cargo x setup` installs.
#![cfg(feature = "torch")]

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::Command;

use ddp_tests::launch::random::{kill_at_random, was_resumed_after};
use ddp_tests::launch::{
    Launcher, TwoMachines, all_succeed, ddp_run, difference, some_port, torchrun,
};
use ddp_tests::{binaries, repository};

/// Importing torch takes long when the cores are busy.
const LIMIT_S: f64 = 300.0;

/// Folder of `python` and `torchrun`.
fn bin() -> Option<PathBuf> {
    Some(torchrun()?.parent()?.to_path_buf())
}

fn train_py() -> String {
    repository::root().join("tests/src/launch/train.py").display().to_string()
}

/// The training program and where it puts its result.
fn program(bin: &Path, result: &Path, more: &[&str]) -> Vec<String> {
    let python = bin.join("python").display().to_string();
    let result = result.display().to_string();
    let mut words = vec![python, train_py(), "--result".to_owned(), result];
    words.extend(more.iter().map(|word| (*word).to_owned()));
    words
}

/// `torchrun` on this machine, without Python between it and the program.
fn under_torchrun(bin: &Path, args: &[&str], program: &[String]) -> Launcher {
    let mut command = Command::new(bin.join("torchrun"));
    command.args(["--standalone", "--no-python"]).args(args).args(program);
    Launcher::new(&command)
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
    let same = |name: &str| {
        let difference = difference(&folder.path().join(name), &folder.path().join("ddp-run"));
        assert!(difference < 1e-6, "{name} differs by {difference}");
    };

    // The store that is not built on libuv must find its port free too.
    own(&["-n", "2"], "old-store").env("USE_LIBUV", "0").run(LIMIT_S).ended(0, &[]);
    same("old-store");

    under_torchrun(&bin, &["--nproc-per-node", "2"], &program("torchrun"))
        .run(LIMIT_S)
        .ended(0, &[]);
    same("torchrun");

    let mut inner = vec![binaries::ddp_run().display().to_string()];
    inner.extend(program("inside-torchrun"));
    under_torchrun(&bin, &["--nproc-per-node", "2"], &inner).run(LIMIT_S).ended(0, &[]);
    same("inside-torchrun");

    let job = std::process::id();
    let slurm = |task: usize| {
        own(&[], "slurm").envs(&format!(
            "SLURM_JOB_ID={job} SLURM_STEP_ID=0 SLURM_NNODES=1 SLURM_NTASKS=2 \
             SLURM_PROCID={task} SLURM_LOCALID={task} SLURM_NODEID=0 SLURM_TASKS_PER_NODE=2"
        ))
    };
    all_succeed((0..2).map(|task| slurm(task).start()), LIMIT_S);
    same("slurm");

    let port = some_port();
    let open_mpi = |task: usize| {
        own(&[], "open-mpi").envs(&format!(
            "OMPI_COMM_WORLD_RANK={task} OMPI_COMM_WORLD_SIZE=2 MASTER_PORT={port} \
             OMPI_COMM_WORLD_LOCAL_RANK={task} OMPI_COMM_WORLD_LOCAL_SIZE=2"
        ))
    };
    all_succeed((0..2).map(|task| open_mpi(task).start()), LIMIT_S);
    same("open-mpi");

    if let Some(machines) = TwoMachines::new() {
        let start = |node: usize| {
            let interface = machines.interface(node);
            let launcher = machines.launcher(node, "-n 1", &program("two-machines"));
            launcher.env("GLOO_SOCKET_IFNAME", &interface).start()
        };
        all_succeed((0..2).map(start), LIMIT_S);
        same("two-machines");
    }
}

#[test]
fn every_flag_of_torchrun_is_taken_or_told() {
    let Some(bin) = bin() else { return };
    let help = Command::new(bin.join("torchrun")).arg("--help").output().unwrap();
    let help = String::from_utf8_lossy(&help.stdout).into_owned();
    let flags: BTreeSet<_> = help
        .lines()
        .filter(|line| line.starts_with("  -"))
        .filter_map(|line| line.split([' ', ',']).find(|word| word.starts_with("--")))
        .collect();
    assert!(flags.len() > 20, "{help}");
    let page = repository::read(&repository::root().join("docs/launching.md"));
    let untold: Vec<_> =
        flags.iter().filter(|flag| **flag != "--help" && !page.contains(**flag)).collect();
    assert_eq!(untold, Vec::<&&str>::new());
}

#[test]
fn every_variable_of_torchrun_is_set() {
    let Some(bin) = bin() else { return };
    let script = ["sh", "-c", "env"].map(str::to_owned);
    let names = |out: &str| -> BTreeSet<String> {
        let lines = out.lines().map(|line| line.strip_prefix("[rank 0] ").unwrap_or(line));
        lines.filter_map(|line| line.split_once('=')).map(|(name, _)| name.to_owned()).collect()
    };
    let outer = under_torchrun(&bin, &["--nproc-per-node", "1"], &script).run(LIMIT_S);
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

/// How many kills the run must survive.
const KILLS: usize = 10;

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
    // Importing torch takes seconds: let the kills that may hit the start hit the training too.
    kill_at_random(&mut started, &logs, KILLS, 12.0);
    started.wait(4.0 * LIMIT_S).ended(0, &["restart 10 of 10"]);

    was_resumed_after(KILLS, &logs);
    let difference = difference(&path("stormy"), &path("calm"));
    assert!(difference <= 1e-5, "the parameters differ by {difference}");
}
