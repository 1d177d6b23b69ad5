//! The runtime against Python's own torch: the same training, the same samples, the same launcher.
#![cfg(feature = "torch")]

use std::num::NonZeroU64;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Result, bail, ensure};
use ddp_tests::test_name;
use ddp_tests::torch::models::{self, batch, fill, store};
use ddp_tests::torch::python::{self, Reference};
use ddp_tests::torch::{Rank, Ranks};
use serde_json::json;
use tch::nn::{self, Module, ModuleT, OptimizerConfig};
use tch::{Device, Kind, Reduction, Tensor};
use tch_ddp::{Ddp, DdpOptions, DistributedSampler, ProcessGroup, Weight};

const TIMEOUT: Duration = Duration::from_mins(5);
const ROWS: i64 = 8;

/// Inputs and targets of the whole batch of both ranks.
fn data(model: &str) -> (Tensor, Tensor) {
    let count =
        |n: i64, period: i64| Tensor::arange(n, (Kind::Int64, Device::Cpu)).remainder(period);
    match model {
        "mlp" | "wide" => batch(2 * ROWS, Kind::Float),
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
/// Enough for the buckets to be rebuilt; here they are what counts.
const N_STEPS_WIDE: usize = 3;

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
        "wide" => Box::new(models::wide(&vs)),
        _ => Box::new(models::words(&vs)),
    };
    fill(&vs);
    let lr = 0.05;
    let mut opt = match optimizer {
        "sgd" => nn::Sgd { momentum: 0.9, ..nn::Sgd::default() }.build(&vs, lr)?,
        _ => nn::AdamW::default().build(&vs, lr)?,
    };
    let n_steps = if model == "wide" { N_STEPS_WIDE } else { N_STEPS };
    let ddp = Ddp::new(net, vs, group, DdpOptions::default())?;
    ddp.save(folder.join("start.safetensors"))?;
    let (x, y) = data(model);
    if group.is_main() {
        Tensor::write_safetensors(&[("x", &x), ("y", &y)], folder.join("data.safetensors"))?;
        let case = json!({"model": model, "optimizer": optimizer, "steps": n_steps, "lr": lr});
        std::fs::write(folder.join("case.json"), case.to_string())?;
    }
    let first = group.rank() as i64 * ROWS;
    let (mine, targets) = (x.narrow(0, first, ROWS), y.narrow(0, first, ROWS));
    let mut losses = Vec::new();
    for _ in 0..n_steps {
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
    let n_steps = ours.losses.len();
    ensure!(theirs.losses.len() == n_steps, "{name}: {} losses", theirs.losses.len());
    for (step, (ours, theirs)) in ours.losses.iter().zip(&theirs.losses).enumerate() {
        ensure!((ours - theirs).abs() <= 1e-5, "{name}, step {step}: {ours} here, {theirs} there");
    }
    let (first, last) = (ours.losses[0], ours.losses[n_steps - 1]);
    ensure!(
        n_steps < N_STEPS || first > last + 1e-3,
        "{name}: nothing was learnt: {:?}",
        ours.losses
    );
    ensure!(
        ours.buckets == theirs.buckets,
        "{name}: buckets {:?} here, {:?} there",
        ours.buckets,
        theirs.buckets
    );
    ensure!(n_steps == N_STEPS || ours.buckets.len() > 1, "{name}: buckets {:?}", ours.buckets);
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
        all.push(train(rank, &group, "wide", "sgd")?);
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

/// Traps into which both fall in the same way: the function of `traps.py` and of
/// [`walk_into`], and what this runtime says on all ranks. Nothing where it gets it right instead.
const TRAPS: [(&str, Option<&str>); 13] = [
    ("unused_parameter", Some("`second.weight` got no gradient")),
    ("other_order", None),
    (
        "other_shapes",
        Some("`w` is parameter [1, 1] Float on rank 0 but parameter [2, 1] Float on rank 1"),
    ),
    ("other_names", Some("`a` (parameter [1] Float) is on rank 0 but not on rank 1")),
    ("kind_changed", Some("the kind of `first.weight` changed after wrapping")),
    ("frozen_late", Some("the requires_grad flag of `second.weight` changed after wrapping")),
    ("second_backward", Some("backward without a forward pass through `run`")),
    ("bypassed", Some("backward without a forward pass through `run`")),
    ("added_late", Some("the store has 3 variables but had 2 when it was wrapped")),
    ("outside", Some("a trainable tensor of shape [1] that is in no wrapped store")),
    ("drifted", Some("`first.weight` has another value on rank 1 than on rank 0")),
    ("uneven_batches", None),
    ("joined_adam", None),
];

/// Two layers without bias, of which the model decides what it uses.
fn two_layers(group: &ProcessGroup) -> Result<Ddp<(nn::Linear, nn::Linear)>> {
    two_layers_with(group, DdpOptions::default())
}

fn two_layers_with(
    group: &ProcessGroup,
    options: DdpOptions,
) -> Result<Ddp<(nn::Linear, nn::Linear)>> {
    let vs = store(Kind::Float);
    let config = nn::LinearConfig { bias: false, ..nn::LinearConfig::default() };
    let first = nn::linear(vs.root() / "first", 1, 1, config);
    let second = nn::linear(vs.root() / "second", 1, 1, config);
    Ok(Ddp::new((first, second), vs, group, options)?)
}

/// Walks into a trap as `traps.py` does. The error, or a proof that all went well.
fn walk_into(trap: &str, group: &ProcessGroup) -> Result<()> {
    let x = Tensor::full([1, 1], group.rank() as f64 + 1.0, (Kind::Float, Device::Cpu));
    let used = |(first, second): &(nn::Linear, nn::Linear)| {
        (first.forward(&x) + second.forward(&x)).sum(None)
    };
    match trap {
        "unused_parameter" => {
            let ddp = two_layers(group)?;
            ddp.backward(&ddp.run(|(first, _)| first.forward(&x).sum(None))?)?;
        }
        "other_order" => {
            let vs = store(Kind::Float);
            for name in if group.is_main() { ["a", "b"] } else { ["b", "a"] } {
                let _ = vs.root().zeros(name, &[1]);
            }
            let ddp = Ddp::new((), vs, group, DdpOptions::default())?;
            let variables = ddp.vars().variables();
            let (a, b) = (&variables["a"], &variables["b"]);
            ddp.backward(&ddp.run(|()| (a * 1.0 + b * 10.0).sum(None))?)?;
            let grads = (a.grad().double_value(&[0]), b.grad().double_value(&[0]));
            ensure!(grads == (1.0, 10.0), "gradients are mixed up: {grads:?}");
        }
        "other_names" => {
            let vs = store(Kind::Float);
            let _ = vs.root().zeros(if group.is_main() { "a" } else { "b" }, &[1]);
            let _ = Ddp::new((), vs, group, DdpOptions::default())?;
        }
        "kind_changed" => {
            let ddp = two_layers(group)?;
            for tensor in ddp.vars().variables().values_mut() {
                let double = tensor.to_kind(Kind::Double);
                tensor.set_data(&double);
            }
            ddp.run(|_| ())?;
        }
        "frozen_late" => {
            let ddp = two_layers(group)?;
            let _ = ddp.module().1.ws.set_requires_grad(false);
            ddp.backward(&ddp.run(used)?)?;
        }
        "second_backward" => {
            let ddp = two_layers(group)?;
            let loss = ddp.run(used)?;
            ddp.backward(&loss)?;
            ddp.backward(&loss)?;
        }
        "bypassed" => {
            let ddp = two_layers(group)?;
            ddp.backward(&used(ddp.module()))?;
        }
        "joined_adam" => {
            let ddp = two_layers(group)?;
            let mut opt = nn::Adam::default().build(ddp.vars(), 0.1)?;
            let step = |opt: &mut nn::Optimizer| -> Result<()> {
                let loss = ddp.run(used)?.square();
                Ok(ddp.weighted(Weight::of(1)).backward_step(opt, &loss)?)
            };
            for _ in 0..[4, 1][group.rank()] {
                step(&mut opt)?;
            }
            ddp.join(&mut opt)?;
            step(&mut opt)?;
            let all = group.all_gather(&ddp.module().0.ws)?;
            ensure!(all[0] == all[1], "the ranks differ: {all:?}");
        }
        other => walk_into_more(other, group, &x)?,
    }
    Ok(())
}

fn walk_into_more(trap: &str, group: &ProcessGroup, x: &Tensor) -> Result<()> {
    let used = |(first, second): &(nn::Linear, nn::Linear)| {
        (first.forward(x) + second.forward(x)).sum(None)
    };
    match trap {
        "other_shapes" => {
            let vs = store(Kind::Float);
            let _ = vs.root().zeros("w", &[1 + group.rank() as i64, 1]);
            let _ = Ddp::new((), vs, group, DdpOptions::default())?;
        }
        "added_late" => {
            let ddp = two_layers(group)?;
            let late = ddp.vars().root().zeros("late", &[1]);
            ddp.backward(&ddp.run(|layers| used(layers) + (&late * x).sum(None))?)?;
        }
        "outside" => {
            let ddp = two_layers(group)?;
            let factor = Tensor::ones([1], (Kind::Float, Device::Cpu)).set_requires_grad(true);
            for _ in 0..2 {
                ddp.backward(&ddp.run(|layers| (used(layers) * &factor).sum(None))?)?;
            }
        }
        "drifted" => {
            let options = DdpOptions { check_every: NonZeroU64::new(1), ..DdpOptions::default() };
            let ddp = two_layers_with(group, options)?;
            ddp.backward(&ddp.run(used)?)?;
            if group.rank() == 1 {
                let mut weight = ddp.module().0.ws.shallow_clone();
                let _ = tch::no_grad(|| weight.g_add_scalar_(1e-3));
            }
            let _ = ddp.run(used)?;
        }
        "uneven_batches" => {
            let rows = [&[1f32][..], &[2.0, 2.0, 5.0]][group.rank()];
            let x = Tensor::from_slice(rows).unsqueeze(1);
            let ddp = two_layers(group)?;
            let out = ddp.run(|(first, second)| first.forward(&x) + second.forward(&x))?;
            ddp.weighted(Weight::of(rows.len() as i64)).backward(&out.mean(None))?;
            let gradient = ddp.module().0.ws.grad().double_value(&[0, 0]);
            ensure!(
                (gradient - 2.5).abs() < 1e-6,
                "the mean of all samples is 2.5, the gradient {gradient}"
            );
        }
        other => bail!("unknown trap {other}"),
    }
    Ok(())
}

/// The same traps in Python's DDP: it raises nothing, and the ranks' values show the damage.
fn python_is_silent(python: &Path, folder: &Path) -> Result<()> {
    let file = folder.join("traps.json");
    python::torchrun(python, "traps.py", std::slice::from_ref(&file), 2)?;
    let traps: serde_json::Value = serde_json::from_str(&std::fs::read_to_string(&file)?)?;
    for (name, _) in TRAPS {
        let (error, values) = (&traps[name]["error"], &traps[name]["values"]);
        if name == "other_shapes" {
            // One rank is told; the other waits for it until the timeout (by default half an hour).
            let of_0 = error[0].as_str().unwrap_or_default();
            ensure!(of_0.contains("Timed out") && error[1].is_string(), "{name}: {error}");
            continue;
        }
        ensure!(*error == json!([null, null]), "{name}: Python is not silent: {error}");
        match name {
            // The mean of 1 and 10 for both, on both ranks.
            "other_order" => ensure!(*values == json!([[5.5, 5.5], [5.5, 5.5]]), "{values}"),
            // The mean of the ranks' means, 1 and 3; that of all samples is 2.5.
            "uneven_batches" => ensure!(*values == json!([2.0, 2.0]), "{name}: {values}"),
            _ => ensure!(values[0] != values[1], "{name}: the ranks agree after all: {values}"),
        }
    }
    Ok(())
}

#[test]
fn pythons_ddp_is_silent_where_the_runtime_names_what_is_wrong() {
    Ranks::new(test_name!(), 2).timeout(TIMEOUT).run(|rank| {
        let Some(python) = python::python() else { return Ok(()) };
        for (trap, expected) in TRAPS {
            // Of its own, because an error ends a group.
            let group = rank.group(TIMEOUT)?;
            match (walk_into(trap, &group), expected) {
                (Ok(()), None) => {}
                (Ok(()), Some(_)) => bail!("{trap}: no error"),
                (Err(error), None) => bail!("{trap}: {error}"),
                (Err(error), Some(words)) => {
                    ensure!(error.to_string().contains(words), "{trap}: {error}");
                }
            }
        }
        let group = rank.group(TIMEOUT)?;
        if group.is_main() {
            python_is_silent(&python, &rank.folder)?;
        }
        group.barrier()?;
        Ok(())
    });
}

#[test]
fn samples_are_dealt_as_pythons_sampler_deals_them() {
    let Some(python) = python::python() else { return };
    // Cases from a fixed linear congruential generator: the same in every run.
    let mut state = 12_345u64;
    let mut draw = |below: u64| {
        state =
            state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) % below
    };
    let cases: Vec<[u64; 6]> = (0..500)
        .map(|_| {
            let world = 1 + draw(8);
            [1 + draw(60), world, draw(world), draw(1 << 40), draw(100), draw(4)]
        })
        .collect();
    let folder = tempfile::tempdir().expect("a temporary folder");
    let (input, output) = (folder.path().join("cases.json"), folder.path().join("indices.json"));
    std::fs::write(&input, json!(cases).to_string()).expect("the folder is writable");
    let status = python::command(&python)
        .args([python::script_path("sampler.py"), input, output.clone()])
        .status()
        .expect("Python starts");
    assert!(status.success(), "sampler.py failed");
    let text = std::fs::read_to_string(&output).expect("sampler.py wrote it");
    let theirs: Vec<Vec<i64>> = serde_json::from_str(&text).expect("lists of indices");
    assert_eq!(theirs.len(), cases.len());
    for (case, theirs) in cases.iter().zip(theirs) {
        let [n, world, rank, seed, epoch, flags] = *case;
        let ours = DistributedSampler::with_replicas(n as usize, world as usize, rank as usize)
            .seed(seed)
            .shuffle(flags & 1 == 0)
            .drop_last(flags & 2 == 0)
            .indices(epoch);
        assert_eq!(ours, theirs, "n {n}, {world} ranks, rank {rank}, seed {seed}, epoch {epoch}");
    }
}
