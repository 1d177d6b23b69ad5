//! The runtime against Python's own torch: the same training, the same samples, the same launcher.
#![cfg(feature = "torch")]

use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Result, ensure};
use ddp_tests::test_name;
use ddp_tests::torch::models::{self, batch, fill, store};
use ddp_tests::torch::python::{self, Reference};
use ddp_tests::torch::{Rank, Ranks};
use serde_json::json;
use tch::nn::{self, ModuleT, OptimizerConfig};
use tch::{Device, Kind, Reduction, Tensor};
use tch_ddp::{Ddp, DdpOptions, ProcessGroup};

const TIMEOUT: Duration = Duration::from_mins(5);
const ROWS: i64 = 8;

/// Inputs and targets of the whole batch of both ranks.
fn data(model: &str) -> (Tensor, Tensor) {
    let count =
        |n: i64, period: i64| Tensor::arange(n, (Kind::Int64, Device::Cpu)).remainder(period);
    match model {
        "mlp" => batch(2 * ROWS, Kind::Float),
        "conv" => {
            let x = (Tensor::arange(2 * ROWS * 16, (Kind::Float, Device::Cpu)) * 0.9).sin();
            (x.view([2 * ROWS, 1, 4, 4]), count(2 * ROWS, 3))
        }
        _ => (
            (count(2 * ROWS * 5, 7) + count(2 * ROWS * 5, 4)).view([2 * ROWS, 5]),
            count(2 * ROWS, 11),
        ),
    }
}

const N_STEPS: usize = 50;

/// What our ranks did in one case.
struct Ours {
    name: String,
    folder: PathBuf,
    losses: Vec<f64>,
    buckets: Vec<u64>,
}

fn train(rank: &Rank, group: &ProcessGroup, model: &str, optimizer: &str) -> Result<Ours> {
    let name = format!("{model}-{optimizer}");
    let folder = rank.folder.join(&name);
    let vs = store(Kind::Float);
    let net: Box<dyn ModuleT> = match model {
        "mlp" => Box::new(models::mlp(&vs)),
        "conv" => Box::new(models::conv(&vs)),
        _ => Box::new(models::words(&vs)),
    };
    fill(&vs);
    let lr = 0.05;
    let mut opt = match optimizer {
        "sgd" => nn::Sgd { momentum: 0.9, ..nn::Sgd::default() }.build(&vs, lr)?,
        _ => nn::AdamW::default().build(&vs, lr)?,
    };
    let ddp = Ddp::new(net, vs, group, DdpOptions::default())?;
    ddp.save(folder.join("start.safetensors"))?;
    let (x, y) = data(model);
    if group.is_main() {
        Tensor::write_safetensors(&[("x", &x), ("y", &y)], folder.join("data.safetensors"))?;
        let case = json!({"model": model, "optimizer": optimizer, "steps": N_STEPS, "lr": lr});
        std::fs::write(folder.join("case.json"), case.to_string())?;
    }
    let first = group.rank() as i64 * ROWS;
    let (mine, targets) = (x.narrow(0, first, ROWS), y.narrow(0, first, ROWS));
    let mut losses = Vec::new();
    for _ in 0..N_STEPS {
        let out = ddp.run(|net| net.forward_t(&mine, true))?;
        let loss = if targets.is_floating_point() {
            out.mse_loss(&targets, Reduction::Mean)
        } else {
            out.cross_entropy_for_logits(&targets)
        };
        ddp.backward_step(&mut opt, &loss)?;
        let mean = loss.detach() / 2.0;
        group.all_reduce(&mean)?;
        losses.push(f64::try_from(&mean)?);
    }
    Ok(Ours { name, folder, losses, buckets: ddp.stats()?.bucket_bytes })
}

fn compare(ours: &Ours, theirs: &Reference) -> Result<()> {
    let name = &ours.name;
    ensure!(theirs.losses.len() == N_STEPS, "{name}: {} losses", theirs.losses.len());
    for (step, (ours, theirs)) in ours.losses.iter().zip(&theirs.losses).enumerate() {
        ensure!((ours - theirs).abs() <= 1e-5, "{name}, step {step}: {ours} here, {theirs} there");
    }
    let (first, last) = (ours.losses[0], ours.losses[N_STEPS - 1]);
    ensure!(first > last + 1e-3, "{name}: nothing was learnt: {:?}", ours.losses);
    ensure!(
        ours.buckets == theirs.buckets,
        "{name}: buckets {:?} here, {:?} there",
        ours.buckets,
        theirs.buckets
    );
    Ok(())
}

#[test]
fn losses_of_50_steps_and_buckets_equal_those_of_pythons_ddp() {
    Ranks::new(test_name!(), 2).timeout(TIMEOUT).run(|rank| {
        let Some(python) = python::python() else { return Ok(()) };
        let group = rank.group(TIMEOUT)?;
        let mut all = Vec::new();
        for model in ["mlp", "conv", "words"] {
            for optimizer in ["sgd", "adamw"] {
                all.push(train(rank, &group, model, optimizer)?);
            }
        }
        if group.is_main() {
            let folders: Vec<_> = all.iter().map(|ours| ours.folder.clone()).collect();
            let references = python::run_reference(&python, &folders, 2)?;
            for (ours, theirs) in all.iter().zip(&references) {
                compare(ours, theirs)?;
            }
        }
        group.barrier()?;
        Ok(())
    });
}
