//! What the runtime offers beside the plain step: hooks, checks, collectives, groups, plans,
//! samplers, optimizers and snapshots, each on real ranks.
#![cfg(feature = "torch")]

use std::collections::BTreeMap;
use std::num::NonZeroU64;
use std::time::Duration;

use anyhow::{Result, bail, ensure};
use ddp_tests::test_name;
use ddp_tests::torch::models::{batch, fill, gradient_difference, mlp, store, value_difference};
use ddp_tests::torch::{Rank, Ranks, report};
use tch::nn::{self, Module, ModuleT, OptimizerConfig};
use tch::{Device, Kind, Reduction, Tensor};
use tch_ddp::optim::{self, Optimizer};
use tch_ddp::{
    BatchPlan, BufferSync, CommHook, Compress, DataParallel, Ddp, DdpOptions, DistributedSampler,
    EvaluationSampler, EventWriter, GradBucket, ProcessGroup, Progress, ReduceOp,
    Reduction as HookReduction, Snapshots, Weight, main_only,
};

const TIMEOUT: Duration = Duration::from_mins(1);

type Net = nn::Sequential;

fn wrapped(group: &ProcessGroup, kind: Kind, options: DdpOptions) -> Result<Ddp<Net>> {
    let vs = store(kind);
    let net = mlp(&vs);
    fill(&vs);
    Ok(Ddp::new(net, vs, group, options)?)
}

/// This rank's part of a batch of 4 rows per rank.
fn loss(ddp: &Ddp<Net>, kind: Kind) -> Result<Tensor> {
    let (rank, world) = (ddp.rank() as i64, ddp.group().world_size() as i64);
    let (x, y) = batch(4 * world, kind);
    let (x, y) = (x.narrow(0, 4 * rank, 4), y.narrow(0, 4 * rank, 4));
    Ok(ddp.run(|net| net.forward(&x))?.mse_loss(&y, Reduction::Mean))
}

/// The gradients of one process on the batch of all ranks.
fn alone(world: usize, kind: Kind) -> nn::VarStore {
    let (x, y) = batch(4 * world as i64, kind);
    let vs = store(kind);
    let net = mlp(&vs);
    fill(&vs);
    net.forward(&x).mse_loss(&y, Reduction::Mean).backward();
    vs
}

fn numbers(tensor: &Tensor) -> Vec<f64> {
    Vec::try_from(&tensor.to_kind(Kind::Double).view(-1)).expect("a list of numbers")
}

#[test]
fn collectives_do_what_they_say() {
    Ranks::new(test_name!(), 3).run(|rank| {
        let group = rank.group(TIMEOUT)?;
        let own = group.rank() as f64;
        let one = |value: f64| Tensor::from_slice(&[value]);

        for (op, expected) in [
            (ReduceOp::Sum, 6.0),
            (ReduceOp::Average, 2.0),
            (ReduceOp::Product, 6.0),
            (ReduceOp::Min, 1.0),
            (ReduceOp::Max, 3.0),
        ] {
            let tensor = one(own + 1.0);
            group.all_reduce_op(&tensor, op)?;
            ensure!(numbers(&tensor) == [expected], "{op:?} gives {tensor:?}");
            let tensor = one(own + 1.0);
            group.reduce(&tensor, 1, op)?;
            ensure!(group.rank() != 1 || numbers(&tensor) == [expected], "reduce by {op:?}");
        }
        let integers = Tensor::from_slice(&[1i64]);
        ensure!(group.all_reduce_op(&integers, ReduceOp::Average).is_err(), "integers average");

        let work = group.all_reduce_async(&integers)?;
        work.wait()?;
        ensure!(integers.int64_value(&[0]) == 3, "an asynchronous sum");

        let tensor = one(own);
        group.broadcast(&tensor, 2)?;
        ensure!(numbers(&tensor) == [2.0], "broadcast");

        let gathered = group.all_gather(&one(own))?;
        ensure!(numbers(&Tensor::cat(&gathered, 0)) == [0.0, 1.0, 2.0], "all_gather");
        let ragged = group.all_gather_ragged(&Tensor::full(
            [group.rank() as i64, 2],
            own,
            (Kind::Double, Device::Cpu),
        ))?;
        let shapes: Vec<_> = ragged.iter().map(Tensor::size).collect();
        ensure!(shapes == [[0, 2], [1, 2], [2, 2]], "all_gather_ragged: {shapes:?}");
        ensure!(numbers(&ragged[2]) == [2.0; 4], "all_gather_ragged");

        let on_root = group.gather(&one(own * 10.0), 0)?;
        ensure!(on_root.is_some() == group.is_main(), "gather");
        if let Some(parts) = on_root {
            ensure!(numbers(&Tensor::cat(&parts, 0)) == [0.0, 10.0, 20.0], "gather");
        }
        let parts = [one(5.0), one(6.0), one(7.0)];
        let mine = one(0.0);
        group.scatter(&mine, if group.rank() == 1 { &parts } else { &[] }, 1)?;
        ensure!(numbers(&mine) == [5.0 + own], "scatter");
        group.reduce_scatter(&mine, &parts)?;
        ensure!(numbers(&mine) == [3.0 * (5.0 + own)], "reduce_scatter");

        // A ring of messages.
        let (next, last) = ((group.rank() + 1) % 3, (group.rank() + 2) % 3);
        let received = one(-1.0);
        let work = group.recv_async(&received, last, 7)?;
        group.send(&one(own), next, 7)?;
        work.wait()?;
        ensure!(numbers(&received) == [last as f64], "send and recv");

        let words = group.all_gather_object(&format!("rank {}", group.rank()))?;
        ensure!(words == ["rank 0", "rank 1", "rank 2"], "objects: {words:?}");
        group.monitored_barrier(TIMEOUT)?;
        Ok(())
    });
}

#[test]
fn an_object_of_one_rank_reaches_all() {
    Ranks::new(test_name!(), 2).run(|rank| {
        let group = rank.group(TIMEOUT)?;
        let word = group.is_main().then(|| "hello".to_owned());
        ensure!(group.broadcast_object(word.as_ref(), 0)? == "hello", "an object");
        let missing = group.broadcast_object::<String>(None, 1);
        ensure!(missing.is_err_and(|e| e.to_string().contains("rank 1 gave no value")), "no value");
        Ok(())
    });
}

#[test]
fn a_collective_that_nobody_waits_for_is_warned_about() {
    let outcomes = Ranks::new(test_name!(), 2).outcomes(|rank| {
        let group = rank.group(TIMEOUT)?;
        let tensor = Tensor::from_slice(&[1i64]);
        drop(group.all_reduce_async(&tensor)?);
        group.barrier()?;
        Ok(())
    });
    let Some(outcomes) = outcomes else { return };
    for (rank, outcome) in outcomes.iter().enumerate() {
        let words = format!("rank {rank}: an asynchronous all_reduce was dropped without");
        let ok = outcome.is_success() && outcome.output.contains(&words);
        assert!(ok, "{}", report(&outcomes));
    }
}

#[test]
fn events_and_progress_are_those_of_rank_0() {
    Ranks::new(test_name!(), 2).run(|rank| {
        let group = rank.group(TIMEOUT)?;
        let folder = rank.folder.join(format!("events-{}", group.rank()));
        let mut events = EventWriter::new(&folder, &group)?;
        events.scalar("loss", 0.5, 3)?;
        events.flush()?;
        ensure!(folder.exists() == group.is_main(), "events of rank {}", group.rank());
        if group.is_main() {
            let file = std::fs::read_dir(&folder)?.next().expect("one file")?.path();
            let bytes = std::fs::read(file)?;
            // Each record is its length (8 bytes), a checksum, the data, and a checksum.
            let first = u64::from_le_bytes(bytes[..8].try_into()?) as usize;
            let second = u64::from_le_bytes(bytes[first + 16..first + 24].try_into()?) as usize;
            ensure!(bytes.len() == first + second + 32, "two records");
            let data = &bytes[first + 28..first + 28 + second];
            ensure!(data.windows(4).any(|tag| tag == b"loss"), "the tag is in {data:?}");
            ensure!(data.ends_with(&0.5f32.to_le_bytes()), "the value is in {data:?}");
        }
        ensure!(group.progress_bar(3).is_hidden() || group.is_main(), "a bar on another rank");
        Ok(())
    });
}

#[test]
fn gradients_flow_through_collectives() {
    Ranks::new(test_name!(), 3).run(|rank| {
        let group = rank.group(TIMEOUT)?;
        let factor = group.rank() as f64 + 1.0;
        let input = || Tensor::from_slice(&[2.0, 3.0]).set_requires_grad(true);

        let x = input();
        let sum = group.all_reduce_differentiable(&(&x * factor))?;
        ensure!(numbers(&sum) == [12.0, 18.0], "forward: {sum:?}");
        (sum * factor).sum(Kind::Double).backward();
        // Each output's gradient is `factor`; summed over ranks, then scaled on the way in.
        ensure!(numbers(&x.grad()) == [6.0 * factor; 2], "backward: {:?}", numbers(&x.grad()));

        let x = input();
        let all = group.all_gather_differentiable(&(&x * factor))?;
        ensure!(all.size() == [3, 2], "stacked: {:?}", all.size());
        (all.square().sum(Kind::Double) * factor).backward();
        let expected: Vec<f64> =
            [2.0, 3.0].map(|value| 6.0 * 2.0 * value * factor * factor).to_vec();
        ensure!(numbers(&x.grad()) == expected, "backward: {:?}", numbers(&x.grad()));
        Ok(())
    });
}

#[test]
fn groups_of_some_ranks_train_apart() {
    Ranks::new(test_name!(), 4).run(|rank| {
        let group = rank.group(TIMEOUT)?;
        let pair = group.split(group.rank() % 2)?;
        ensure!(pair.world_size() == 2 && pair.rank() == group.rank() / 2, "a pair");
        ensure!(pair.global_rank() == group.rank(), "the global rank stays");
        let ranks = pair.all_gather_object(&group.rank())?;
        ensure!(ranks == [group.rank() % 2, group.rank() % 2 + 2], "the pair is {ranks:?}");

        let ddp = wrapped(&pair, Kind::Double, DdpOptions::default())?;
        ddp.backward(&loss(&ddp, Kind::Double)?)?;
        let difference = gradient_difference(ddp.vars(), &alone(2, Kind::Double))?;
        ensure!(difference <= 1e-12, "gradients of the pair differ by {difference:e}");

        let reversed = group.subgroup(&[3, 1])?;
        ensure!(reversed.is_some() == (group.rank() % 2 == 1), "only members get a group");
        if let Some(reversed) = reversed {
            ensure!(reversed.rank() == [0, 1, 0, 0][group.rank()], "in the order given");
        }
        let twice = group.subgroup(&[1, 1]);
        ensure!(twice.is_err_and(|e| e.to_string().contains("each once")), "a rank twice");
        let other = group.subgroup(&[group.rank()]);
        ensure!(other.is_err_and(|e| e.to_string().contains("disagree")), "different lists");
        Ok(())
    });
}

/// Sends gradients as they are, and averages them itself.
struct Mean;

impl CommHook for Mean {
    fn name(&self) -> String {
        "mean".to_owned()
    }

    fn reduce(&self, bucket: GradBucket, group: &ProcessGroup) -> tch_ddp::Result<HookReduction> {
        group.all_reduce(&bucket.gradients)?;
        Ok(HookReduction::Done(bucket.gradients / group.world_size() as f64))
    }
}

/// Fails in the second step.
struct Broken;

impl CommHook for Broken {
    fn name(&self) -> String {
        "broken".to_owned()
    }

    fn reduce(&self, _: GradBucket, _: &ProcessGroup) -> tch_ddp::Result<HookReduction> {
        Err(tch_ddp::Error::Argument("the hook has a bug".to_owned()))
    }
}

#[test]
fn hooks_take_over_the_reduction() {
    fn largest_error(group: &ProcessGroup, hook: impl CommHook) -> Result<f64> {
        let mut ddp = wrapped(group, Kind::Float, DdpOptions::default())?;
        ddp.set_comm_hook(hook)?;
        let mut largest = 0f64;
        for _ in 0..3 {
            ddp.zero_grad()?;
            ddp.backward(&loss(&ddp, Kind::Float)?)?;
            let alone = alone(group.world_size(), Kind::Float);
            largest = largest.max(gradient_difference(ddp.vars(), &alone)?);
        }
        Ok(largest)
    }
    Ranks::new(test_name!(), 2).run(|rank| {
        let group = rank.group(TIMEOUT)?;
        let exact = largest_error(&group, Mean)?;
        ensure!(exact <= 1e-6, "a hook that averages: {exact:e}");
        let half = largest_error(&group, Compress::fp16())?;
        ensure!(half > 1e-8 && half <= 5e-4, "half precision: {half:e}");
        let brain = largest_error(&group, Compress::bf16())?;
        ensure!(brain > half && brain <= 5e-3, "brain floats: {brain:e}");

        let mut ddp = wrapped(&group, Kind::Float, DdpOptions::default())?;
        let other = if group.is_main() {
            ddp.set_comm_hook(Mean)
        } else {
            ddp.set_comm_hook(Compress::fp16())
        };
        ensure!(other.is_err_and(|e| e.to_string().contains("rank 1 by `compress")), "two hooks");
        ddp.set_comm_hook(Broken)?;
        let broken = ddp.backward(&loss(&ddp, Kind::Float)?);
        ensure!(broken.is_err_and(|e| e.to_string().contains("the hook has a bug")), "a bug");
        Ok(())
    });
}

#[test]
fn a_parameter_changed_on_one_rank_is_named_on_all() {
    Ranks::new(test_name!(), 3).run(|rank| {
        let group = rank.group(TIMEOUT)?;
        let options = DdpOptions { check_every: NonZeroU64::new(2), ..DdpOptions::default() };
        let ddp = wrapped(&group, Kind::Float, options)?;
        let mut opt = nn::Sgd::default().build(ddp.vars(), 0.1)?;
        for _ in 0..4 {
            ddp.backward_step(&mut opt, &loss(&ddp, Kind::Float)?)?;
        }
        if group.rank() == 2 {
            let mut bias = ddp.vars().variables().remove("second.bias").expect("it is there");
            let _ = tch::no_grad(|| bias.g_add_scalar_(1e-6));
        }
        let Err(error) = loss(&ddp, Kind::Float) else { bail!("nothing was noticed") };
        let words = "`second.bias` has another value on rank 2 than on rank 0 before step 4";
        ensure!(error.to_string().contains(words), "{error}");
        Ok(())
    });
}

#[test]
fn a_trainable_tensor_outside_of_the_store_is_an_error() {
    Ranks::new(test_name!(), 2).run(|rank| {
        let group = rank.group(TIMEOUT)?;
        let scale = Tensor::from_slice(&[1.5f32, 2.5]).set_requires_grad(true);
        let train = |options: DdpOptions| -> Result<()> {
            let ddp = wrapped(&group, Kind::Float, options)?;
            let mut opt = nn::Sgd::default().build(ddp.vars(), 0.1)?;
            for _ in 0..2 {
                let (x, y) = batch(4, Kind::Float);
                // An input that requires a gradient is fine: it is new in every step.
                let x = x.set_requires_grad(true);
                let out = ddp.run(|net| net.forward(&x))?;
                let loss = out.mse_loss(&y, Reduction::Mean);
                ddp.backward_step(&mut opt, &loss)?;
            }
            for _ in 0..2 {
                let loss =
                    (ddp.run(|net| net.forward(&batch(4, Kind::Float).0))? * &scale).mean(None);
                ddp.backward_step(&mut opt, &loss)?;
            }
            Ok(())
        };
        let allowed = DdpOptions { allow_unwrapped_parameters: true, ..DdpOptions::default() };
        train(allowed)?;
        let ddp = wrapped(&group, Kind::Float, DdpOptions::default())?;
        let mut opt = nn::Sgd::default().build(ddp.vars(), 0.1)?;
        let mut step = || -> Result<()> {
            let out = ddp.run(|net| net.forward(&batch(4, Kind::Float).0))?;
            ddp.backward_step(&mut opt, &(out * &scale).mean(None))?;
            Ok(())
        };
        step()?;
        let Err(error) = step() else { bail!("it was trained on each rank alone") };
        ensure!(error.to_string().contains("a trainable tensor of shape [2]"), "{error}");
        Ok(())
    });
}

#[test]
fn buffers_follow_rank_0_as_the_options_say() {
    Ranks::new(test_name!(), 2).run(|rank| {
        let group = rank.group(TIMEOUT)?;
        for (buffers, expected) in [
            (BufferSync::EveryForward, [0, 0]),
            (BufferSync::AtInit, [0, 1]),
            (BufferSync::Never, [5, 6]),
        ] {
            let vs = store(Kind::Float);
            let net = nn::linear(vs.root() / "layer", 6, 2, nn::LinearConfig::default());
            let mut buffer = vs.root().zeros_no_train("seen", &[1]);
            if buffers == BufferSync::Never {
                let _ = buffer.fill_(group.rank() as f64 + 5.0);
            }
            let options = DdpOptions { buffers, ..DdpOptions::default() };
            let ddp = Ddp::new(net, vs, &group, options)?;
            if buffers != BufferSync::Never {
                let _ = buffer.fill_(group.rank() as f64);
            }
            // Evaluation on one rank only: no collective.
            if group.is_main() {
                let _ = tch::no_grad(|| ddp.run(|net| net.forward(&batch(2, Kind::Float).0)))?;
            }
            let _ = ddp.run(|net| net.forward(&batch(2, Kind::Float).0))?;
            let seen = buffer.int64_value(&[0]);
            ensure!(seen == expected[group.rank()], "{buffers:?}: {seen}");
        }
        Ok(())
    });
}

/// Trains an embedding with sparse gradients and a layer on top; by `world` shares of the rows, or
/// all of them in one process.
fn train_sparse(group: Option<&ProcessGroup>, world: i64, declared: bool) -> Result<nn::VarStore> {
    let vs = store(Kind::Float);
    let config = nn::EmbeddingConfig { sparse: true, ..nn::EmbeddingConfig::default() };
    let words = nn::embedding(vs.root() / "words", 12, 6, config);
    let head = nn::linear(vs.root() / "head", 6, 2, nn::LinearConfig::default());
    fill(&vs);
    let mut opt = nn::Sgd::default().build(&vs, 0.5)?;
    let rows = 6;
    let ids = Tensor::arange(rows * world, (Kind::Int64, Device::Cpu)).remainder(7);
    let (_, y) = batch(rows * world, Kind::Float);
    let Some(group) = group else {
        for _ in 0..3 {
            let out = head.forward(&words.forward(&ids));
            opt.backward_step(&out.mse_loss(&y, Reduction::Mean));
        }
        return Ok(vs);
    };
    let sparse_parameters = if declared { vec!["words.weight".to_owned()] } else { Vec::new() };
    let options = DdpOptions { sparse_parameters, ..DdpOptions::default() };
    let ddp = Ddp::new((words, head), vs, group, options)?;
    let first = rows * group.rank() as i64;
    let (ids, y) = (ids.narrow(0, first, rows), y.narrow(0, first, rows));
    for _ in 0..3 {
        let out = ddp.run(|(words, head)| head.forward(&words.forward(&ids)))?;
        ddp.backward(&out.mse_loss(&y, Reduction::Mean))?;
        ensure!(ddp.vars().variables()["words.weight"].grad().is_sparse(), "a dense gradient");
        ddp.step(&mut opt)?;
    }
    Ok(ddp.into_parts().1)
}

#[test]
fn declared_sparse_gradients_equal_one_process_and_others_are_an_error() {
    Ranks::new(test_name!(), 3).run(|rank| {
        let group = rank.group(TIMEOUT)?;
        let difference =
            value_difference(&train_sparse(Some(&group), 3, true)?, &train_sparse(None, 3, true)?)?;
        ensure!(difference <= 1e-6, "sparse gradients differ by {difference:e}");
        let vs = store(Kind::Float);
        let _ = vs.root().zeros("w", &[1]);
        let sparse_parameters = vec!["v".to_owned()];
        let options = DdpOptions { sparse_parameters, ..DdpOptions::default() };
        let unknown = Ddp::new((), vs, &group, options);
        ensure!(unknown.is_err_and(|e| e.to_string().contains("names `v`")), "an unknown name");
        let Err(error) = train_sparse(Some(&group), 3, false) else { bail!("undeclared") };
        let words = "the gradient of `words.weight` is sparse; name it in `sparse_parameters`";
        ensure!(error.to_string().contains(words), "{error}");
        Ok(())
    });
}

#[test]
fn clipped_steps_equal_those_of_one_process() {
    type Clip = fn(&mut nn::Optimizer);
    type Step = fn(&Ddp<Net>, &mut nn::Optimizer, &Tensor) -> tch_ddp::Result<()>;
    let all: [(&str, Clip, Step); 4] = [
        ("value", |opt| opt.clip_grad_value(0.02), |d, o, l| d.backward_step_clip(o, l, 0.02)),
        ("norm", |opt| opt.clip_grad_norm(0.1), |d, o, l| d.backward_step_clip_norm(o, l, 0.1)),
        (
            "weighted value",
            |opt| opt.clip_grad_value(0.02),
            |d, o, l| d.weighted(Weight::of(4)).backward_step_clip(o, l, 0.02),
        ),
        (
            "weighted norm",
            |opt| opt.clip_grad_norm(0.1),
            |d, o, l| d.weighted(Weight::of(4)).backward_step_clip_norm(o, l, 0.1),
        ),
    ];
    Ranks::new(test_name!(), 2).run(|rank| {
        let group = rank.group(TIMEOUT)?;
        for (name, clip, step) in all {
            let alone = store(Kind::Double);
            let net = mlp(&alone);
            fill(&alone);
            let (x, y) = batch(8, Kind::Double);
            let mut alone_opt = nn::Sgd::default().build(&alone, 0.5)?;
            let ddp = wrapped(&group, Kind::Double, DdpOptions::default())?;
            let mut opt = nn::Sgd::default().build(ddp.vars(), 0.5)?;
            for _ in 0..3 {
                alone_opt.zero_grad();
                net.forward(&x).mse_loss(&y, Reduction::Mean).backward();
                let whole = alone.variables()["second.weight"].grad().copy();
                clip(&mut alone_opt);
                let clipped = alone.variables()["second.weight"].grad();
                ensure!(whole != clipped, "{name}: the limit cuts nothing");
                alone_opt.step();
                step(&ddp, &mut opt, &loss(&ddp, Kind::Double)?)?;
            }
            let difference = value_difference(ddp.vars(), &alone)?;
            ensure!(difference <= 1e-12, "{name}: differs by {difference:e}");
        }
        Ok(())
    });
}

#[test]
fn statistics_tell_the_times_of_a_step() {
    Ranks::new(test_name!(), 2).run(|rank| {
        let group = rank.group(TIMEOUT)?;
        let ddp = wrapped(&group, Kind::Float, DdpOptions::default())?;
        let mut opt = nn::Sgd::default().build(ddp.vars(), 0.1)?;
        ensure!(ddp.stats()?.n_iterations == 0, "before the first step");
        let started = std::time::Instant::now();
        for _ in 0..12 {
            ddp.backward_step(&mut opt, &loss(&ddp, Kind::Float)?)?;
        }
        let whole = started.elapsed();
        let stats = ddp.stats()?;
        // c10d looks at every step of the first ten.
        ensure!(stats.n_iterations >= 10 && stats.n_iterations <= 12, "{stats:?}");
        ensure!(stats.bucket_bytes == [(6 * 16 + 16 + 16 * 2 + 2) * 4], "{stats:?}");
        for time in [stats.forward, stats.backward_compute, stats.backward_communication] {
            ensure!(!time.is_zero() && time < whole, "{stats:?} in {whole:?}");
        }
        ensure!(stats.overlap <= stats.backward_communication, "{stats:?}");
        Ok(())
    });
}

#[test]
fn a_parameter_that_no_rank_uses_stays_without_gradient_where_that_is_declared() {
    Ranks::new(test_name!(), 2).run(|rank| {
        let group = rank.group(TIMEOUT)?;
        let unused = DdpOptions { find_unused_parameters: true, ..DdpOptions::default() };
        let fixed = DdpOptions { static_graph: true, ..DdpOptions::default() };
        for options in [unused, fixed] {
            let vs = store(Kind::Double);
            let net = mlp(&vs);
            let spare = vs.root().zeros("spare", &[3]);
            fill(&vs);
            let ddp = Ddp::new(net, vs, &group, options.clone())?;
            for step in 0..4 {
                ddp.zero_grad()?;
                let (x, y) = batch(8, Kind::Double);
                let first = 4 * group.rank() as i64;
                let (x, y) = (x.narrow(0, first, 4), y.narrow(0, first, 4));
                let out = ddp.run(|net| net.forward(&x))?;
                ddp.backward(&out.mse_loss(&y, Reduction::Mean))?;
                ensure!(!spare.grad().defined(), "{options:?}, step {step}: a gradient");
                let alone = alone(2, Kind::Double);
                for (name, tensor) in alone.variables() {
                    let grad = ddp.vars().variables()[&name].grad();
                    let apart = f64::try_from((grad - tensor.grad()).abs().max())?;
                    ensure!(apart <= 1e-12, "{options:?}, step {step}: `{name}` by {apart:e}");
                }
            }
        }
        Ok(())
    });
}

#[test]
fn plans_agree_on_all_ranks_and_samplers_follow_them() {
    Ranks::new(test_name!(), 3).run(|rank| {
        let group = rank.group(TIMEOUT)?;
        let own = [1, 4, 4][group.rank()];
        let plan = BatchPlan::explicit(&group, own)?;
        ensure!(plan.sizes() == [1, 4, 4] && plan.global_batch() == 9, "{plan:?}");
        let zero = BatchPlan::explicit(&group, group.rank());
        ensure!(zero.is_err_and(|e| e.to_string().contains("rank 0 is 0")), "a size of 0");
        let plan = BatchPlan::proportional(&group, 10, [1.0, 2.0, 2.0][group.rank()])?;
        ensure!(plan.sizes() == [2, 4, 4], "{plan:?}");
        let plan = BatchPlan::by_memory(&group, 9)?;
        ensure!(plan.global_batch() == 9, "{plan:?}");
        let edge = [1usize, 10, 20][group.rank()];
        let attempt = |n: usize| if n <= edge { Ok(()) } else { Err("out of memory") };
        let plan = BatchPlan::probe(&group, 16, 0.1, attempt)?;
        ensure!(plan.sizes() == [1, 9, 14], "{plan:?}");
        let attempt = |_: usize| if group.rank() == 1 { Err("no memory at all") } else { Ok(()) };
        let none = BatchPlan::probe(&group, 16, 0.1, attempt);
        ensure!(none.is_err_and(|e| e.to_string().contains("rank 1 cannot do")), "no sample");

        let plan = BatchPlan::explicit(&group, own)?;
        let sampler = DistributedSampler::with_plan(100, &plan).seed(5);
        ensure!(sampler.len() == 12, "{} steps", sampler.len());
        let steps: Vec<Vec<i64>> =
            sampler.epoch(3).map(|rows| Vec::try_from(&rows)).collect::<Result<_, _>>()?;
        ensure!(steps.iter().all(|rows| rows.len() == own), "a step of another size");
        let all = group.all_gather_object(&steps.concat())?;
        let mut rows = all.concat();
        ensure!(rows.len() == 108, "{} rows", rows.len());
        rows.sort_unstable();
        rows.dedup();
        ensure!(rows == (0..100).collect::<Vec<_>>(), "every sample is read");
        let whole = DistributedSampler::with_plan(100, &plan).drop_last(true);
        ensure!(whole.len() == 11, "{} whole steps", whole.len());
        Ok(())
    });
}

#[test]
fn evaluation_reads_every_sample_once_and_gathers_in_order() {
    Ranks::new(test_name!(), 3).run(|rank| {
        let group = rank.group(TIMEOUT)?;
        for n in [0usize, 1, 2, 3, 10] {
            let sampler = EvaluationSampler::new(n, &group).batch_size(2);
            let rows: Vec<Tensor> = sampler.batches().collect();
            let own = match rows.len() {
                0 => Tensor::zeros([0], (Kind::Int64, Device::Cpu)),
                _ => Tensor::cat(&rows, 0),
            };
            let all = sampler.gather(&(own * 10), &group)?;
            let expected: Vec<i64> = (0..n as i64).map(|row| row * 10).collect();
            ensure!(Vec::<i64>::try_from(&all)? == expected, "{n} samples: {all:?}");
        }
        let sampler = EvaluationSampler::new(10, &group);
        let short = sampler.gather(&Tensor::from_slice(&[1i64]), &group);
        ensure!(short.is_err_and(|e| e.to_string().contains("1 rows for the 4 samples")), "short");
        Ok(())
    });
}

#[test]
fn fused_optimizers_equal_those_of_tch() {
    Ranks::new(test_name!(), 1).run(|rank| {
        let group = rank.group(TIMEOUT)?;
        let run = |make: &dyn Fn(&nn::VarStore) -> Result<Box<dyn Optimizer>>| -> Result<_> {
            let ddp = wrapped(&group, Kind::Double, DdpOptions::default())?;
            let mut opt = make(ddp.vars())?;
            for step in 0..8 {
                let loss = loss(&ddp, Kind::Double)?;
                ddp.backward(&loss)?;
                if step % 2 == 0 {
                    opt.clip_grad_norm(0.1);
                } else {
                    opt.clip_grad_value(0.05);
                }
                opt.step()?;
                ddp.zero_grad()?;
            }
            Ok(ddp.into_parts().1)
        };
        let sgd = nn::sgd(0.9, 0.0, 0.01, true);
        let tchs = run(&|vs| Ok(Box::new(sgd.build(vs, 0.1)?)))?;
        let config = optim::SgdConfig {
            lr: 0.1,
            momentum: 0.9,
            weight_decay: 0.01,
            nesterov: true,
            ..optim::SgdConfig::default()
        };
        let ours = run(&|vs| Ok(Box::new(optim::Sgd::new(vs, config)?)))?;
        let difference = value_difference(&ours, &tchs)?;
        ensure!(difference <= 1e-12, "SGD differs by {difference:e}");

        let tchs = run(&|vs| Ok(Box::new(nn::AdamW::default().build(vs, 0.01)?)))?;
        let config = optim::AdamWConfig { lr: 0.01, ..optim::AdamWConfig::default() };
        let ours = run(&|vs| Ok(Box::new(optim::AdamW::new(vs, config)?)))?;
        let difference = value_difference(&ours, &tchs)?;
        ensure!(difference <= 1e-12, "AdamW differs by {difference:e}");
        Ok(())
    });
}

/// Trains `n` steps with dropout-like noise from the global generator.
fn train(ddp: &Ddp<Net>, opt: &mut optim::AdamW, n: u64) -> Result<()> {
    for _ in 0..n {
        let (x, y) = batch(4, Kind::Float);
        let noise = Tensor::randn_like(&x) * 0.1;
        let out = ddp.run(|net| net.forward(&(x + noise)))?;
        ddp.backward_step(opt, &out.mse_loss(&y, Reduction::Mean))?;
    }
    Ok(())
}

fn all_values(ddp: &Ddp<Net>) -> BTreeMap<String, Vec<f64>> {
    ddp.vars().variables().iter().map(|(name, tensor)| (name.clone(), numbers(tensor))).collect()
}

#[test]
fn a_run_resumed_from_a_snapshot_goes_on_as_if_uninterrupted() {
    Ranks::new(test_name!(), 2).run(|rank| {
        let group = rank.group(TIMEOUT)?;
        let snapshots = Snapshots::new(rank.folder.join("snapshots"));
        let start = |seed: u64| -> Result<(Ddp<Net>, optim::AdamW)> {
            tch_ddp::seed_everything(seed, group.rank());
            let ddp = wrapped(&group, Kind::Float, DdpOptions::default())?;
            let opt = optim::AdamW::new(ddp.vars(), optim::AdamWConfig::default())?;
            Ok((ddp, opt))
        };
        let (ddp, mut opt) = start(1)?;
        train(&ddp, &mut opt, 3)?;
        snapshots.save(&ddp, Some(&opt), Progress { epoch: 0, step: 3 })?;
        train(&ddp, &mut opt, 2)?;
        let newest = snapshots.save(&ddp, Some(&opt), Progress { epoch: 1, step: 5 })?;
        train(&ddp, &mut opt, 4)?;
        let uninterrupted = all_values(&ddp);

        let (mut ddp, mut opt) = start(99)?;
        let progress = snapshots.load_latest(&mut ddp, Some(&mut opt))?;
        ensure!(progress == Some(Progress { epoch: 1, step: 5 }), "{progress:?}");
        train(&ddp, &mut opt, 4)?;
        ensure!(all_values(&ddp) == uninterrupted, "the resumed run differs");

        // A damaged newest snapshot: the one before it is taken.
        group.barrier()?;
        main_only!(group, {
            let path = newest.join("model.safetensors");
            let mut bytes = std::fs::read(&path)?;
            let last = bytes.len() - 1;
            bytes[last] ^= 1;
            std::fs::write(&path, bytes)?;
        });
        let (mut ddp, mut opt) = start(99)?;
        let progress = snapshots.load_latest(&mut ddp, Some(&mut opt))?;
        ensure!(progress == Some(Progress { epoch: 0, step: 3 }), "{progress:?}");
        train(&ddp, &mut opt, 6)?;
        ensure!(all_values(&ddp) == uninterrupted, "the run resumed earlier differs");

        let none = Snapshots::new(rank.folder.join("empty")).load_latest(&mut ddp, None)?;
        ensure!(none.is_none(), "there is none");
        Ok(())
    });
}

#[test]
fn old_snapshots_and_half_written_ones_are_removed() {
    Ranks::new(test_name!(), 1).run(|rank| {
        let group = rank.group(TIMEOUT)?;
        let folder = rank.folder.join("snapshots");
        let snapshots = Snapshots::new(&folder).keep(2);
        std::fs::create_dir_all(folder.join(".1.tmp-step-000000000001"))?;
        let ddp = wrapped(&group, Kind::Float, DdpOptions::default())?;
        for step in [1, 2, 3, 10] {
            snapshots.save(&ddp, None, Progress { epoch: 0, step })?;
        }
        let mut names: Vec<_> = std::fs::read_dir(&folder)?
            .map(|entry| Ok(entry?.file_name().to_string_lossy().into_owned()))
            .collect::<Result<_>>()?;
        names.sort();
        ensure!(names == ["step-000000000003", "step-000000000010"], "{names:?}");
        Ok(())
    });
}

#[test]
fn loading_gives_all_ranks_the_same_values_or_the_same_error() {
    fn load_error(rank: &Rank, ddp: &mut Ddp<Net>, file: &str) -> Result<String> {
        match ddp.load(rank.folder.join(file)) {
            Ok(()) => bail!("{file} was loaded"),
            Err(error) => Ok(error.to_string()),
        }
    }
    Ranks::new(test_name!(), 2).run(|rank| {
        let group = rank.group(TIMEOUT)?;
        let mut ddp = wrapped(&group, Kind::Float, DdpOptions::default())?;
        let before = all_values(&ddp);
        for file in ["a.safetensors", "b.ot"] {
            ddp.save(rank.folder.join(file))?;
        }
        if group.is_main() {
            let named = Tensor::read_safetensors(rank.folder.join("a.safetensors"))?;
            let write = |tensors: &[(String, Tensor)], file: &str| {
                Tensor::write_safetensors(tensors, rank.folder.join(file))
            };
            let prefixed: Vec<_> = named
                .iter()
                .map(|(name, tensor)| (format!("module.{name}"), tensor.shallow_clone()))
                .collect();
            write(&prefixed, "wrapped.safetensors")?;
            write(&prefixed[1..], "short.safetensors")?;
            let mut more: Vec<_> =
                named.iter().map(|(name, tensor)| (name.clone(), tensor.shallow_clone())).collect();
            more.push(("weights.0".to_owned(), Tensor::zeros([1], (Kind::Float, Device::Cpu))));
            write(&more, "more.safetensors")?;
            more.pop();
            more[0].1 = Tensor::zeros([3, 3, 3], (Kind::Float, Device::Cpu));
            write(&more, "shape.safetensors")?;
        }
        group.barrier()?;
        for file in ["a.safetensors", "b.ot", "wrapped.safetensors"] {
            let mut changed: Vec<_> = ddp.vars().variables().into_iter().collect();
            for (_, tensor) in &mut changed {
                let _ = tch::no_grad(|| tensor.fill_(9.0));
            }
            ddp.load(rank.folder.join(file))?;
            ensure!(all_values(&ddp) == before, "{file} gives other values");
        }
        // Loading must not cut the reduction off.
        ddp.backward(&loss(&ddp, Kind::Float)?)?;
        for (file, words) in [
            ("missing.safetensors", "there is no such file"),
            ("short.safetensors", "the file has no `"),
            ("more.safetensors", "the file has `weights.0`, which the model does not know"),
            ("shape.safetensors", "has shape [3, 3, 3] in the file"),
        ] {
            let error = load_error(rank, &mut ddp, file)?;
            ensure!(error.contains(words), "{file}: {error}");
        }
        let unwritable = ddp.save(rank.folder.join("a.safetensors/inside"));
        ensure!(unwritable.is_err_and(|e| e.to_string().contains("cannot save")), "unwritable");
        Ok(())
    });
}

#[test]
fn rank_0_goes_first_and_its_failure_reaches_all() {
    Ranks::new(test_name!(), 2).run(|rank| {
        let group = rank.group(TIMEOUT)?;
        let file = rank.folder.join("prepared");
        let prepared = group.main_first(|| -> std::io::Result<bool> {
            if group.is_main() {
                std::thread::sleep(Duration::from_millis(200));
                std::fs::write(&file, "data")?;
            }
            Ok(file.exists())
        })?;
        ensure!(prepared, "the file was not there yet");
        let failed = group.main_first(|| if group.is_main() { Err("no network") } else { Ok(()) });
        ensure!(failed.is_err_and(|e| e.to_string().contains("no network")), "rank 0 failed");
        Ok(())
    });
}

#[test]
fn any_model_can_be_wrapped() {
    Ranks::new(test_name!(), 2).run(|rank| {
        let group = rank.group(TIMEOUT)?;
        let (x, y) = batch(4, Kind::Float);
        let options = DdpOptions::default;

        let vs = store(Kind::Float);
        let net = mlp(&vs);
        let ddp = Ddp::new(&net, vs, &group, options())?;
        let mut opt = nn::Sgd::default().build(ddp.vars(), 0.1)?;
        ddp.backward_step(
            &mut opt,
            &ddp.run(|net| net.forward(&x))?.mse_loss(&y, Reduction::Mean),
        )?;

        let vs = store(Kind::Float);
        let net = std::rc::Rc::new(mlp(&vs));
        let ddp = Ddp::new(net, vs, &group, options())?;
        ddp.backward(&ddp.run(|net| net.forward(&x))?.mse_loss(&y, Reduction::Mean))?;

        let vs = store(Kind::Float);
        let layer = nn::linear(vs.root(), 6, 2, nn::LinearConfig::default());
        let ddp = Ddp::new(nn::func_t(move |x, _| layer.forward(x)), vs, &group, options())?;
        ddp.backward(&ddp.forward_t(&x, true).mse_loss(&y, Reduction::Mean))?;
        ensure!(ddp.stats()?.bucket_bytes == [(12 + 2) * 4], "{:?}", ddp.stats()?);
        Ok(())
    });
}

#[test]
fn data_parallel_equals_one_process_and_ddp() {
    let step = |vs: &nn::VarStore, loss: &Tensor| -> Result<()> {
        nn::Sgd::default().build(vs, 0.1)?.backward_step(loss);
        Ok(())
    };
    Ranks::new(test_name!(), 2).run(|rank| {
        let group = rank.group(TIMEOUT)?;
        // 9 rows over two replicas: 5 and 4, as PyTorch splits them.
        let (x, y) = batch(9, Kind::Float);
        let reference = store(Kind::Float);
        let net = mlp(&reference);
        fill(&reference);
        let parallel = DataParallel::new(&[Device::Cpu; 2], |root| {
            nn::seq()
                .add(nn::linear(root / "first", 6, 16, nn::LinearConfig::default()))
                .add_fn(Tensor::tanh)
                .add(nn::linear(root / "second", 16, 2, nn::LinearConfig::default()))
        })?;
        fill(parallel.vars());
        let mut opt = parallel.optimizer(nn::Sgd::default(), 0.1)?;
        for _ in 0..3 {
            step(&reference, &net.forward(&x).mse_loss(&y, Reduction::Mean))?;
            let out = parallel.run(&[&x], |net, xs| net.forward(&xs[0]))?;
            opt.backward_step(&out.mse_loss(&y, Reduction::Mean));
            let difference = value_difference(parallel.vars(), &reference)?;
            ensure!(difference <= 1e-6, "replicas differ from one process by {difference:e}");
        }

        let ddp = wrapped(&group, Kind::Float, DdpOptions::default())?;
        let mut opt = nn::Sgd::default().build(ddp.vars(), 0.1)?;
        let (first, rows) = [(0, 5), (5, 4)][group.rank()];
        for _ in 0..3 {
            let (x, y) = (x.narrow(0, first, rows), y.narrow(0, first, rows));
            let out = ddp.run(|net| net.forward(&x))?;
            let weight = Weight::of(rows);
            ddp.weighted(weight).backward_step(&mut opt, &out.mse_loss(&y, Reduction::Mean))?;
        }
        let difference = value_difference(ddp.vars(), parallel.vars())?;
        ensure!(difference <= 1e-6, "ranks differ from replicas by {difference:e}");

        let (a, b) = parallel
            .run(&[&x, &y], |net, xs| (net.forward(&xs[0]), Some(xs[1].sum(Kind::Float))))?;
        ensure!(a.size() == [9, 2] && b.is_some_and(|b| b.size() == [2]), "gathered outputs");
        let uneven = parallel.run(&[&x, &y.narrow(0, 0, 3)], |net, xs| net.forward(&xs[0]));
        ensure!(uneven.is_err_and(|e| e.to_string().contains("9 rows")), "uneven inputs");
        let panicked = parallel.run(&[&x], |_, _| -> Tensor { panic!("a bug") });
        ensure!(panicked.is_err_and(|e| e.to_string().contains("panicked")), "a panic");
        Ok(())
    });
}
