//! One rank fails in every way at every phase of a run; the other always ends by itself, with an
//! error that names the rank or the timeout, and whatever is on disk is whole.
#![cfg(feature = "torch")]

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Result, bail, ensure};
use ddp_tests::test_name;
use ddp_tests::torch::models::{batch, fill, mlp, store, value_difference};
use ddp_tests::torch::{Rank, Ranks, report};
use tch::nn::{self, Module, OptimizerConfig};
use tch::{Kind, Reduction, Tensor};
use tch_ddp::{Ddp, DdpOptions};

const TIMEOUT: Duration = Duration::from_secs(3);
const PHASES: [&str; 6] = ["construction", "forward", "backward", "step", "checkpoint", "exit"];

fn signal_self(signal: &str) {
    let pid = std::process::id().to_string();
    let _ = std::process::Command::new("kill").args([signal, &pid]).status();
    std::thread::sleep(Duration::from_millis(200));
}

/// `Ok(true)`: end early as if all were well.
fn fail(rank: &Rank, how: &str) -> Result<bool> {
    std::fs::write(rank.folder.join("failed"), "")?;
    match how {
        "killed" => signal_self("-KILL"),
        "stopped" => signal_self("-STOP"),
        "panicked" => panic!("a bug of the user"),
        "returned" => return Ok(true),
        // libtorch throws a C++ exception for shapes that do not fit.
        "threw" => {
            let left = Tensor::zeros([2, 3], (Kind::Float, tch::Device::Cpu));
            let _ = left.f_mm(&left)?;
        }
        other => bail!("unknown failure {other}"),
    }
    Ok(false)
}

fn run(rank: &Rank, phase: &str, how: &str) -> Result<()> {
    let result = train(rank, phase, how);
    if result.is_err() && rank.launch.rank() == 0 {
        std::fs::write(rank.folder.join("heard"), "")?;
    }
    result
}

fn train(rank: &Rank, phase: &str, how: &str) -> Result<()> {
    let group = rank.group(TIMEOUT)?;
    let is_bad = group.rank() == 1;
    let fails_at = |at: &str, step: usize| is_bad && phase == at && step == 2;
    if fails_at("construction", 2) && fail(rank, how)? {
        return Ok(());
    }
    let vs = store(Kind::Float);
    let net = mlp(&vs);
    fill(&vs);
    let mut opt = nn::Sgd::default().build(&vs, 0.1)?;
    let ddp = Ddp::new(net, vs, &group, DdpOptions::default())?;
    let (x, y) = batch(4, Kind::Float);
    let path = rank.folder.join("model.safetensors");
    for step in 0..4 {
        let out = ddp.run(|net| -> Result<Option<Tensor>> {
            if fails_at("forward", step) && fail(rank, how)? {
                return Ok(None);
            }
            Ok(Some(net.forward(&x)))
        })??;
        let Some(out) = out else { return Ok(()) };
        let loss = out.mse_loss(&y, Reduction::Mean);
        if fails_at("backward", step) && fail(rank, how)? {
            return Ok(());
        }
        ddp.backward(&loss)?;
        if fails_at("step", step) && fail(rank, how)? {
            return Ok(());
        }
        ddp.step(&mut opt)?;
        if fails_at("checkpoint", step) && fail(rank, how)? {
            return Ok(());
        }
        ddp.save(&path)?;
    }
    if fails_at("exit", 2) && fail(rank, how)? {
        return Ok(());
    }
    // What a program does last: wait for the others.
    group.barrier()?;
    Ok(())
}

/// Rank 1 fails in each phase in turn; rank 0 must end by itself, saying `words`.
fn in_each_phase(test: &str, how: &str, words: &str) {
    for phase in PHASES {
        // A stopped rank has to be killed in the end; every other one ends before its peer.
        let grace = Duration::from_secs(if how == "stopped" { 1 } else { 15 });
        let case = Ranks::new(test, 2).value(phase).timeout(Duration::from_secs(40)).grace(grace);
        let outcomes =
            case.outcomes_then(|rank| run(rank, phase, how), |folder| check_files(folder, phase));
        let Some(outcomes) = outcomes else { continue };
        let other = &outcomes[0];
        let ok = other.is_failure() && other.output.contains(words);
        assert!(ok, "{phase}, {how}: rank 0 should say `{words}`\n{}", report(&outcomes));
    }
}

/// The last checkpoint is whole, and nothing half-written lies beside it.
fn check_files(folder: &Path, phase: &str) {
    let files = std::fs::read_dir(folder).expect("the folder is there").flatten();
    let names: Vec<_> = files.map(|file| file.file_name().to_string_lossy().into_owned()).collect();
    let torn = names.iter().find(|name| name.contains(".tmp-"));
    assert_eq!(torn, None, "{phase}: among {names:?}");
    let written = |name: &str| folder.join(name).metadata().and_then(|file| file.modified());
    if let (Ok(failed), Ok(heard)) = (written("failed"), written("heard")) {
        let took = heard.duration_since(failed).unwrap_or_default();
        // The timeout of the collective, the roll call, and room for a busy machine.
        assert!(took < TIMEOUT + Duration::from_secs(8), "{phase}: heard of it after {took:?}");
    }
    if phase != "construction" {
        let named = Tensor::read_safetensors(folder.join("model.safetensors"));
        assert_eq!(named.expect("the checkpoint loads").len(), 4, "{phase}: variables");
    }
}

#[test]
fn a_killed_rank_is_named_in_each_phase() {
    in_each_phase(&test_name!(), "killed", "rank 1 did not answer");
}

#[test]
fn a_stopped_rank_is_named_in_each_phase() {
    in_each_phase(&test_name!(), "stopped", "rank 1 did not answer");
}

#[test]
fn a_rank_that_panics_is_named_in_each_phase() {
    in_each_phase(&test_name!(), "panicked", "rank 1 panicked");
}

#[test]
fn a_rank_that_returns_early_is_named_in_each_phase() {
    in_each_phase(&test_name!(), "returned", "rank 1 left the group");
}

#[test]
fn a_rank_whose_libtorch_throws_is_named_in_each_phase() {
    in_each_phase(&test_name!(), "threw", "rank 1 left the group");
}

/// Outlives the ranks, unlike their shared folder.
fn torn_folder(delay_ms: u64) -> PathBuf {
    std::env::temp_dir().join(format!("tch-ddp-torn-{delay_ms}"))
}

#[test]
fn a_rank_killed_while_saving_leaves_a_whole_checkpoint() {
    const N_SAVES: usize = 400;
    for delay_ms in [30, 60, 110, 200] {
        let case = Ranks::new(test_name!(), 1).value(delay_ms.to_string());
        let outcomes = case.outcomes(|rank| {
            let group = rank.group(TIMEOUT)?;
            let vs = store(Kind::Float);
            // Large enough that a save is often under way.
            let mut weight = vs.root().zeros("weight", &[1 << 20]);
            let ddp = Ddp::new((), vs, &group, DdpOptions::default())?;
            let path = torn_folder(delay_ms).join("model.safetensors");
            let _ = tch::no_grad(|| weight.fill_(0.0));
            ddp.save(&path)?;
            std::thread::spawn(move || {
                std::thread::sleep(Duration::from_millis(delay_ms));
                signal_self("-KILL");
            });
            for number in 1..N_SAVES {
                let _ = tch::no_grad(|| weight.fill_(number as f64));
                ddp.save(&path)?;
            }
            std::thread::sleep(Duration::from_secs(2));
            Ok(())
        });
        let Some(outcomes) = outcomes else { continue };
        assert!(!outcomes[0].is_success(), "{}", report(&outcomes));
        let folder = torn_folder(delay_ms);
        let path = folder.join("model.safetensors");
        let named = Tensor::read_safetensors(&path).expect("the checkpoint is whole");
        let (low, high) = (named[0].1.min(), named[0].1.max());
        assert_eq!(low, high, "the checkpoint mixes two saves");
        let torn = std::fs::read_dir(&folder).expect("the folder is readable").flatten();
        let torn = torn.filter(|file| file.file_name().to_string_lossy().contains(".tmp-")).count();
        assert!(torn <= 1, "{torn} half-written files");
        // The next save takes the half-written file of the killed process away.
        tch_ddp::write_atomically(&path, |to| std::fs::write(to, "").map_err(|e| e.to_string()))
            .expect("the folder is writable");
        let left = std::fs::read_dir(&folder).expect("the folder is readable").count();
        assert_eq!(left, 1, "files beside the checkpoint");
        std::fs::remove_dir_all(&folder).expect("it was there");
    }
}

#[test]
fn a_group_can_be_left_and_joined_again() {
    Ranks::new(test_name!(), 2).run(|rank| {
        let alone = store(Kind::Float);
        let net = mlp(&alone);
        fill(&alone);
        let (x, y) = batch(4, Kind::Float);
        nn::Sgd::default()
            .build(&alone, 0.1)?
            .backward_step(&net.forward(&x).mse_loss(&y, Reduction::Mean));
        let started = Instant::now();
        for _ in 0..5 {
            let group = rank.group(TIMEOUT)?;
            let vs = store(Kind::Float);
            let net = mlp(&vs);
            fill(&vs);
            let mut opt = nn::Sgd::default().build(&vs, 0.1)?;
            let ddp = Ddp::new(net, vs, &group, DdpOptions::default())?;
            let out = ddp.run(|net| net.forward(&x))?;
            ddp.backward_step(&mut opt, &out.mse_loss(&y, Reduction::Mean))?;
            ensure!(value_difference(ddp.vars(), &alone)? <= 1e-6, "another result");
        }
        ensure!(started.elapsed() < Duration::from_secs(20), "leaving takes too long");
        Ok(())
    });
}
