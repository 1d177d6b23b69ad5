//! Training on several ranks gives the gradients of one process on all their samples.
#![cfg(feature = "torch")]

use std::time::Duration;

use anyhow::{Result, ensure};
use ddp_tests::test_name;
use ddp_tests::torch::models::{batch, fill, gradient_difference, mlp, store};
use ddp_tests::torch::{Rank, Ranks};
use tch::nn::{self, Module, OptimizerConfig};
use tch::{Kind, Reduction, Tensor};
use tch_ddp::{Ddp, DdpOptions, Weight};

const TIMEOUT: Duration = Duration::from_secs(30);

/// The gradients of one process on the whole batch.
fn alone(x: &Tensor, y: &Tensor, kind: Kind) -> nn::VarStore {
    let vs = store(kind);
    let net = mlp(&vs);
    fill(&vs);
    net.forward(x).mse_loss(y, Reduction::Mean).backward();
    vs
}

fn gradients_equal_one_process(rank: &Rank, kind: Kind, tolerance: f64) -> Result<()> {
    let group = rank.group(TIMEOUT)?;
    let (world, rank) = (group.world_size() as i64, group.rank() as i64);
    let rows = 5;
    let (x, y) = batch(rows * world, kind);
    let alone = alone(&x, &y, kind);

    let vs = store(kind);
    let net = mlp(&vs);
    if group.is_main() {
        fill(&vs); // The others must get these values from rank 0.
    }
    let ddp = Ddp::new(net, vs, &group, DdpOptions::default())?;
    for _ in 0..3 {
        // Buckets are rebuilt in the second step; every step must be exact.
        ddp.zero_grad()?;
        let (x, y) = (x.narrow(0, rank * rows, rows), y.narrow(0, rank * rows, rows));
        let loss = ddp.run(|net| net.forward(&x))?.mse_loss(&y, Reduction::Mean);
        ddp.backward(&loss)?;
        let difference = gradient_difference(ddp.vars(), &alone)?;
        ensure!(difference <= tolerance, "gradients differ by {difference:e}");
    }
    Ok(())
}

#[test]
fn gradients_of_1_to_4_ranks_equal_one_process_in_float32() {
    for world in 1..=4 {
        Ranks::new(test_name!(), world)
            .run(|rank| gradients_equal_one_process(rank, Kind::Float, 1e-6));
    }
}

#[test]
fn gradients_of_1_to_4_ranks_equal_one_process_in_float64() {
    for world in 1..=4 {
        Ranks::new(test_name!(), world)
            .run(|rank| gradients_equal_one_process(rank, Kind::Double, 1e-12));
    }
}

#[test]
fn accumulated_gradients_equal_one_process() {
    Ranks::new(test_name!(), 2).run(|rank| {
        let group = rank.group(TIMEOUT)?;
        let (x, y) = batch(24, Kind::Double);
        let alone = alone(&x, &y, Kind::Double);
        let vs = store(Kind::Double);
        let net = mlp(&vs);
        fill(&vs);
        let mut opt = nn::Sgd::default().build(&vs, 0.0)?;
        let ddp = Ddp::new(net, vs, &group, DdpOptions::default())?;
        let micro = |k: i64| -> Result<Tensor> {
            let first = (group.rank() as i64 * 4 + k) * 3;
            let (x, y) = (x.narrow(0, first, 3), y.narrow(0, first, 3));
            Ok(ddp.run(|net| net.forward(&x))?.mse_loss(&y, Reduction::Mean) / 4.0)
        };
        for _ in 0..2 {
            for k in 0..3 {
                ddp.no_sync(|| -> Result<()> { Ok(ddp.backward(&micro(k)?)?) })?;
            }
            ddp.backward(&micro(3)?)?;
            let difference = gradient_difference(ddp.vars(), &alone)?;
            ensure!(difference <= 1e-12, "gradients differ by {difference:e}");
            ddp.step(&mut opt)?;
        }
        Ok(())
    });
}

#[test]
fn weighted_steps_are_exact_and_so_is_a_plain_step_after_them() {
    Ranks::new(test_name!(), 2).run(|rank| {
        let group = rank.group(TIMEOUT)?;
        let rows = [3i64, 7][group.rank()];
        let first = [0i64, 3][group.rank()];
        let (x, y) = batch(10, Kind::Double);
        let alone_all = alone(&x, &y, Kind::Double);
        let vs = store(Kind::Double);
        let net = mlp(&vs);
        fill(&vs);
        let ddp = Ddp::new(net, vs, &group, DdpOptions::default())?;
        let loss_of = |first: i64, rows: i64| -> Result<Tensor> {
            let (x, y) = (x.narrow(0, first, rows), y.narrow(0, first, rows));
            Ok(ddp.run(|net| net.forward(&x))?.mse_loss(&y, Reduction::Mean))
        };
        for _ in 0..2 {
            ddp.zero_grad()?;
            ddp.weighted(Weight::of(rows)).backward(&loss_of(first, rows)?)?;
            let difference = gradient_difference(ddp.vars(), &alone_all)?;
            ensure!(difference <= 1e-12, "weighted gradients differ by {difference:e}");

            ddp.zero_grad()?;
            ddp.backward(&loss_of(group.rank() as i64 * 5, 5)?)?;
            let difference = gradient_difference(ddp.vars(), &alone_all)?;
            ensure!(difference <= 1e-12, "plain gradients differ by {difference:e}");
        }
        // Weights of unreduced passes count in the step that reduces them.
        ddp.zero_grad()?;
        ddp.no_sync(|| -> Result<()> {
            Ok(ddp.weighted(Weight::of(2)).backward(&loss_of(first, 2)?)?)
        })?;
        let rest = ddp.weighted(Weight::of(rows - 2));
        rest.backward(&loss_of(first + 2, rows - 2)?)?;
        let difference = gradient_difference(ddp.vars(), &alone_all)?;
        ensure!(difference <= 1e-12, "accumulated gradients differ by {difference:e}");
        Ok(())
    });
}
