//! The simulator against reality: random programs run for real with Python's torch over Gloo.
#![cfg(feature = "torch")]

use std::path::Path;
use std::process::Child;

use anyhow::{Context, Result, ensure};
use ddp_tests::spmd::generate;
use ddp_tests::spmd::program::Program;
use ddp_tests::spmd::python::write;
use ddp_tests::spmd::simulate::{Outcome, play};
use ddp_tests::torch::python;

/// Of each: programs whose ranks part, and programs whose ranks do not.
const N_OF_EACH: usize = 25;
const WORLD_SIZE: i64 = 2;
const TIMEOUT_S: &str = "3";

/// The first programs of each kind, by seed, with what the simulator says of them.
fn chosen() -> Vec<(Program, Outcome)> {
    let of_seed = |seed| {
        let program = generate::program(seed);
        let outcome = play(&program, WORLD_SIZE, 0);
        (program, outcome)
    };
    let parts = |(_, outcome): &(Program, Outcome)| *outcome == Outcome::Parts;
    let seeds = || (0_u64..).step_by(2).map(of_seed);
    let parting = seeds().filter(parts).take(N_OF_EACH);
    parting.chain(seeds().filter(|program| !parts(program)).take(N_OF_EACH)).collect()
}

fn start(python: &Path, folder: &Path, rank: i64, n: usize) -> Result<Child> {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/spmd/reality.py");
    python::command(python)
        .arg(script)
        .arg(folder)
        .args([n.to_string().as_str(), TIMEOUT_S])
        .envs([("RANK", rank.to_string()), ("LOCAL_RANK", rank.to_string())])
        .envs([("WORLD_SIZE", WORLD_SIZE.to_string().as_str()), ("OMP_NUM_THREADS", "1")])
        // Torch then says so where collectives pair that do not fit.
        .env("TORCH_DISTRIBUTED_DEBUG", "DETAIL")
        .stdout(std::process::Stdio::null())
        .stderr(std::process::Stdio::null())
        .spawn()
        .with_context(|| format!("cannot run {}", python.display()))
}

/// What each rank says of each program.
fn run_for_real(python: &Path, programs: &[(Program, Outcome)]) -> Result<Vec<Vec<String>>> {
    let folder = tempfile::tempdir()?;
    for (index, (program, _)) in programs.iter().enumerate() {
        std::fs::write(folder.path().join(format!("{index}.py")), write(program))?;
    }
    let ranks = (0..WORLD_SIZE).map(|rank| start(python, folder.path(), rank, programs.len()));
    for mut rank in ranks.collect::<Result<Vec<_>>>()? {
        ensure!(rank.wait()?.success(), "a rank of the harness failed");
    }
    let results = (0..WORLD_SIZE).map(|rank| -> Result<Vec<String>> {
        let text = std::fs::read_to_string(folder.path().join(format!("rank-{rank}.json")))?;
        Ok(serde_json::from_str::<serde_json::Value>(&text)?
            .as_array()
            .context("the harness writes a list")?
            .iter()
            .map(|word| word.as_str().unwrap_or_default().to_owned())
            .collect())
    });
    results.collect()
}

#[test]
fn the_simulator_and_gloo_agree_on_fifty_programs() -> Result<()> {
    let Some(python) = python::python() else { return Ok(()) };
    let programs = chosen();
    assert_eq!(programs.len(), 2 * N_OF_EACH);
    let said = run_for_real(&python, &programs)?;
    for (index, (program, expected)) in programs.iter().enumerate() {
        let words: Vec<&str> = said.iter().map(|rank| rank[index].as_str()).collect();
        let seen = if words.contains(&"failed") {
            Outcome::Fails
        } else if words.iter().all(|word| *word == "ended") {
            Outcome::Meets
        } else {
            Outcome::Parts
        };
        let text = write(program);
        assert_eq!(seen, *expected, "program {index}: torch said {words:?}\n{text}");
    }
    Ok(())
}
