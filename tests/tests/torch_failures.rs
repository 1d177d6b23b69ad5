//! Nothing fails silently and nothing hangs: whatever goes wrong on one rank ends all of them with
//! an error that names the rank, the step and the parameter.
#![cfg(feature = "torch")]

use std::collections::BTreeMap;
use std::time::Duration;

use anyhow::{Result, bail, ensure};
use ddp_tests::test_name;
use ddp_tests::torch::models::{batch, fill, mlp, store};
use ddp_tests::torch::{Outcome, Rank, Ranks, report};
use tch::nn::{self, Module, OptimizerConfig};
use tch::{Kind, Reduction, Tensor};
use tch_ddp::{Ddp, DdpOptions, ProcessGroup};

const TIMEOUT: Duration = Duration::from_secs(8);

type Net = nn::Sequential;

fn wrapped(group: &ProcessGroup, options: DdpOptions) -> Result<Ddp<Net>> {
    let vs = store(Kind::Float);
    let net = mlp(&vs);
    fill(&vs);
    Ok(Ddp::new(net, vs, group, options)?)
}

fn loss(ddp: &Ddp<Net>) -> Result<Tensor> {
    let (x, y) = batch(4, Kind::Float);
    Ok(ddp.run(|net| net.forward(&x))?.mse_loss(&y, Reduction::Mean))
}

/// Trains 6 steps; rank 1 does `act` before its step 3.
fn train(rank: &Rank, act: impl Fn() -> Result<()>) -> Result<()> {
    let group = rank.group(TIMEOUT)?;
    let ddp = wrapped(&group, DdpOptions::default())?;
    let mut opt = nn::Sgd::default().build(ddp.vars(), 0.1)?;
    for step in 0..6 {
        if step == 3 && group.rank() == 1 {
            act()?;
        }
        let loss = loss(&ddp)?;
        ddp.backward_step(&mut opt, &loss)?;
    }
    Ok(())
}

/// Every rank but `culprit` ended by itself, unsuccessfully, saying all of `words`.
fn assert_others_say(outcomes: &[Outcome], culprit: usize, words: &[&str]) {
    for (rank, outcome) in outcomes.iter().enumerate().filter(|(rank, _)| *rank != culprit) {
        let ok = outcome.is_failure()
            && words.iter().all(|word| outcome.output.contains(word))
            && outcome.output.contains(&format!("rank {rank}, step "));
        assert!(ok, "rank {rank} should fail saying {words:?}\n{}", report(outcomes));
    }
}

fn signal_self(signal: &str) {
    let pid = std::process::id().to_string();
    let _ = std::process::Command::new("kill").args([signal, &pid]).status();
    std::thread::sleep(Duration::from_millis(100));
}

#[test]
fn a_killed_rank_is_named_with_the_step() {
    for (world, culprit) in [(2, 1), (3, 1)] {
        let outcomes = Ranks::new(test_name!(), world).outcomes(|rank| {
            train(rank, || {
                signal_self("-KILL");
                Ok(())
            })
        });
        let Some(outcomes) = outcomes else { continue };
        assert_others_say(&outcomes, culprit, &["step 3: ", "rank 1 did not answer"]);
    }
}

#[test]
fn the_death_of_the_rank_that_keeps_the_store_is_named() {
    let outcomes = Ranks::new(test_name!(), 3).outcomes(|rank| {
        let group = rank.group(TIMEOUT)?;
        if group.is_main() {
            signal_self("-KILL");
        }
        group.barrier()?;
        Ok(())
    });
    let Some(outcomes) = outcomes else { return };
    assert_others_say(&outcomes, 0, &["rank 0, which keeps the ranks' store, died"]);
}

#[test]
fn a_stopped_rank_is_named_within_the_timeout() {
    let outcomes = Ranks::new(test_name!(), 2).timeout(Duration::from_secs(20)).outcomes(|rank| {
        train(rank, || {
            signal_self("-STOP");
            Ok(())
        })
    });
    let Some(outcomes) = outcomes else { return };
    assert_others_say(&outcomes, 1, &["step 3: ", "rank 1 did not answer"]);
    assert!(outcomes[0].elapsed < TIMEOUT + Duration::from_secs(6), "{}", report(&outcomes));
}

#[test]
fn the_rank_that_keeps_the_store_is_named_when_it_is_stopped() {
    let outcomes = Ranks::new(test_name!(), 3).timeout(Duration::from_secs(25)).outcomes(|rank| {
        let group = rank.group(Duration::from_secs(2))?;
        if group.is_main() {
            signal_self("-STOP");
        }
        group.barrier()?;
        Ok(())
    });
    let Some(outcomes) = outcomes else { return };
    assert_others_say(&outcomes, 0, &["rank 0, which keeps the ranks' store, died or cannot be"]);
}

#[test]
fn a_rank_that_panics_is_named() {
    let outcomes =
        Ranks::new(test_name!(), 2).outcomes(|rank| train(rank, || panic!("a bug of the user")));
    let Some(outcomes) = outcomes else { return };
    assert_others_say(&outcomes, 1, &["rank 1 panicked after 3 steps"]);
}

#[test]
fn all_ranks_are_told_what_libtorch_refused_in_the_forward_pass_of_one() {
    let outcomes = Ranks::new(test_name!(), 3).outcomes(|rank| {
        let group = rank.group(TIMEOUT)?;
        let ddp = wrapped(&group, DdpOptions::default())?;
        let columns = if group.rank() == 1 { 5 } else { 6 };
        // tch panics here, as it does for inputs on another device than the model.
        let x = Tensor::zeros([4, columns], (Kind::Float, tch::Device::Cpu));
        ddp.check_inputs(&[&x])?;
        ddp.backward(&ddp.run(|net| net.forward(&x))?.sum(Kind::Float))?;
        Ok(())
    });
    let Some(outcomes) = outcomes else { return };
    let words = ["rank 1 panicked in its forward pass", "cannot be multiplied (4x5 and 6x16)"];
    assert_others_say(&outcomes, 1, &words);
}

#[test]
fn a_rank_that_returns_early_is_named() {
    for (world, culprit) in [(2, 0), (2, 1)] {
        let case = Ranks::new(test_name!(), world).value(culprit.to_string());
        let outcomes = case.outcomes(|rank| {
            let group = rank.group(TIMEOUT)?;
            if group.rank() == culprit {
                return Ok(());
            }
            group.barrier()?;
            Ok(())
        });
        let Some(outcomes) = outcomes else { continue };
        assert_others_say(&outcomes, culprit, &[&format!("rank {culprit} left the group")]);
    }
}

#[test]
fn a_rank_busy_elsewhere_is_named_when_the_others_time_out() {
    let outcomes = Ranks::new(test_name!(), 2).outcomes(|rank| {
        let group = rank.group(Duration::from_secs(2))?;
        if group.rank() == 1 {
            std::thread::sleep(Duration::from_secs(6));
            return Ok(());
        }
        group.barrier()?;
        Ok(())
    });
    let Some(outcomes) = outcomes else { return };
    assert_others_say(&outcomes, 1, &["rank 1 is alive but has been outside of any collective"]);
}

/// A model whose second head is used only where `use_both` says so.
fn two_heads(rank: &Rank, use_both: impl Fn(usize) -> bool) -> Result<()> {
    let group = rank.group(TIMEOUT)?;
    let vs = store(Kind::Float);
    let config = nn::LinearConfig::default();
    let used = nn::linear(vs.root() / "used", 6, 2, config);
    let spare = nn::linear(vs.root() / "spare", 6, 2, config);
    let mut opt = nn::Sgd::default().build(&vs, 0.1)?;
    let ddp = Ddp::new((used, spare), vs, &group, DdpOptions::default())?;
    let (x, _) = batch(4, Kind::Float);
    let both = use_both(group.rank());
    let out = ddp.run(|(used, spare)| {
        let out = used.forward(&x);
        if both { out + spare.forward(&x) } else { out }
    })?;
    ddp.backward_step(&mut opt, &out.sum(Kind::Float))?;
    eprintln!("stepped");
    Ok(())
}

#[test]
fn an_unused_parameter_is_named_on_all_ranks_before_the_optimizer_steps() {
    let outcomes = Ranks::new(test_name!(), 2).outcomes(|rank| two_heads(rank, |_| false));
    let Some(outcomes) = outcomes else { return };
    for outcome in &outcomes {
        let ok = outcome.is_failure()
            && outcome.output.contains("`spare.bias`, `spare.weight` got no gradient")
            && !outcome.output.contains("stepped");
        assert!(ok, "{}", report(&outcomes));
    }
}

#[test]
fn a_parameter_unused_on_one_rank_is_named_on_all() {
    let outcomes = Ranks::new(test_name!(), 3).outcomes(|rank| two_heads(rank, |r| r != 1));
    let Some(outcomes) = outcomes else { return };
    for outcome in &outcomes {
        let ok = outcome.is_failure()
            && outcome.output.contains("rank 1")
            && outcome.output.contains("`spare.bias`, `spare.weight` got no gradient")
            && !outcome.output.contains("stepped");
        assert!(ok, "{}", report(&outcomes));
    }
}

#[test]
fn ranks_that_registered_in_another_order_still_agree_by_name() {
    Ranks::new(test_name!(), 2).run(|rank| {
        let group = rank.group(TIMEOUT)?;
        let vs = store(Kind::Double);
        let mut names = ["a", "b"];
        if group.rank() == 1 {
            names.reverse();
        }
        // Same shapes: c10d alone would average `a` of one rank with `b` of the other.
        let made = names.map(|name| vs.root().zeros(name, &[1]));
        let ddp = Ddp::new(made, vs, &group, DdpOptions::default())?;
        let variables = ddp.vars().variables();
        let (a, b) = (&variables["a"], &variables["b"]);
        let factor = [1.0, 3.0][group.rank()];
        let loss = ddp.run(|_| (a * factor + b * (10.0 * factor)).sum(Kind::Double))?;
        ddp.backward(&loss)?;
        assert_eq!((a.grad().double_value(&[0]), b.grad().double_value(&[0])), (2.0, 20.0));
        Ok(())
    });
}

/// All ranks run every case in a group of its own; each must fail on every rank with its words.
fn all_fail_saying(
    test: String,
    cases: &[(&str, &str)],
    body: impl Fn(&ProcessGroup, &str) -> Result<()>,
) {
    Ranks::new(test, 2).run(|rank| {
        for (case, words) in cases {
            let group = rank.group(TIMEOUT)?;
            let Err(error) = body(&group, case) else { bail!("{case}: no error") };
            drop(group);
            ensure!(error.to_string().contains(words), "{case}: {error}");
        }
        Ok(())
    });
}

#[test]
fn ranks_with_different_models_all_fail_naming_the_difference() {
    let cases = [
        ("shape", "`w` is parameter [2] Float on rank 0 but parameter [3] Float on rank 1"),
        ("kind", "`w` is parameter [2] Float on rank 0 but parameter [2] Double on rank 1"),
        ("name", "`w` (parameter [2] Float) is on rank 0 but not on rank 1"),
        ("frozen", "`w` is parameter [2] Float on rank 0 but frozen parameter [2] Float on rank 1"),
        ("extra", "`more` (parameter [1] Float) is on rank 1 but not on rank 0"),
        ("option", "`option find_unused_parameters` is false on rank 0 but true on rank 1"),
    ];
    all_fail_saying(test_name!(), &cases, |group, case| {
        let other = group.rank() == 1;
        let differs = |what: &str| other && case == what;
        let mut vs = store(if differs("kind") { Kind::Double } else { Kind::Float });
        let shape = if differs("shape") { 3 } else { 2 };
        let _ = vs.root().zeros(if differs("name") { "v" } else { "w" }, &[shape]);
        if differs("frozen") {
            vs.freeze();
        }
        let _ = vs.root().zeros("common", &[1]);
        if differs("extra") {
            let _ = vs.root().zeros("more", &[1]);
        }
        let options =
            DdpOptions { find_unused_parameters: differs("option"), ..DdpOptions::default() };
        Ddp::new((), vs, group, options)?;
        Ok(())
    });
}

/// What a rank may do wrong around a step, and what the error says.
const MISUSES: [(&str, &str); 9] = [
    ("second backward", "backward without a forward pass through `run`"),
    ("module instead of run", "backward without a forward pass through `run`"),
    ("tch's backward after module", "a backward pass that no `run` prepared"),
    ("freeze after wrapping", "the requires_grad flag of `first.bias` changed"),
    ("data replaced", "the kind of `first.bias` changed after wrapping"),
    ("new variable", "the store has 5 variables but had 4 when it was wrapped"),
    ("step without backward", "there is no reduced gradient to step with"),
    ("step on local gradients", "come from `no_sync` passes only"),
    ("forward in, backward out", "outside of `no_sync` but its forward pass was inside"),
];

fn misuse(case: &str, ddp: &Ddp<Net>) -> Result<()> {
    let mut opt = nn::Sgd::default().build(ddp.vars(), 0.1)?;
    let (x, _) = batch(4, Kind::Float);
    match case {
        "second backward" => {
            let loss = loss(ddp)?;
            ddp.backward(&loss)?;
            ddp.backward(&loss)?;
        }
        "module instead of run" => {
            ddp.backward(&ddp.module().forward(&x).sum(Kind::Float))?;
        }
        "tch's backward after module" => {
            ddp.module().forward(&x).sum(Kind::Float).backward();
            let _ = loss(ddp)?;
        }
        "freeze after wrapping" => {
            let _ = ddp.vars().variables()["first.bias"].set_requires_grad(false);
            let _ = loss(ddp)?;
        }
        "data replaced" => {
            let mut bias = ddp.vars().variables().remove("first.bias").expect("it is there");
            let double = bias.to_kind(Kind::Double);
            bias.set_data(&double);
            let _ = loss(ddp)?;
        }
        "new variable" => {
            let _ = ddp.vars().root().zeros("late", &[1]);
            let _ = loss(ddp)?;
        }
        "step without backward" => ddp.step(&mut opt)?,
        "step on local gradients" => {
            ddp.no_sync(|| -> Result<()> { Ok(ddp.backward(&loss(ddp)?)?) })?;
            ddp.step(&mut opt)?;
        }
        "forward in, backward out" => {
            let loss = ddp.no_sync(|| loss(ddp))?;
            ddp.backward(&loss)?;
        }
        other => panic!("unknown case {other}"),
    }
    Ok(())
}

#[test]
fn misuse_is_an_error_on_all_ranks_that_says_what_to_do() {
    all_fail_saying(test_name!(), &MISUSES, |group, case| {
        let ddp = wrapped(group, DdpOptions::default())?;
        if group.rank() == 1 {
            return misuse(case, &ddp);
        }
        // Rank 0 trains on and must hear of it.
        let mut opt = nn::Sgd::default().build(ddp.vars(), 0.1)?;
        for _ in 0..4 {
            ddp.backward_step(&mut opt, &loss(&ddp)?)?;
        }
        Ok(())
    });
}

#[test]
fn tchs_own_backward_and_fused_step_after_run_are_reduced_and_checked() {
    Ranks::new(test_name!(), 2).run(|rank| {
        let group = rank.group(TIMEOUT)?;
        let ddp = wrapped(&group, DdpOptions::default())?;
        let mut opt = nn::Sgd::default().build(ddp.vars(), 0.1)?;
        for _ in 0..3 {
            let loss = loss(&ddp)? * (group.rank() as f64 + 1.0);
            opt.backward_step(&loss);
        }
        let loss = loss(&ddp)?;
        loss.backward();
        ddp.step(&mut opt)?;
        assert_eq!(ddp.n_steps(), 4);
        let variables: BTreeMap<_, _> = ddp.vars().variables().into_iter().collect();
        for (name, tensor) in variables {
            let all = group.all_gather(&tensor)?;
            assert_eq!(all[0], all[1], "`{name}` differs between ranks");
        }
        Ok(())
    });
}
