//! The table of exactness: every way of training, on 1 to 4 ranks, in three kinds, ends with the
//! parameters of one process that saw the same samples.
#![cfg(feature = "torch")]

use std::time::Duration;

use anyhow::{Result, ensure};
use ddp_tests::test_name;
use ddp_tests::torch::Ranks;
use ddp_tests::torch::models::{N_INPUTS, N_TARGETS, batch, fill, store};
use tch::nn::{self, Module, ModuleT, OptimizerConfig};
use tch::{Kind, Reduction, Tensor};
use tch_ddp::{Ddp, DdpOptions, ProcessGroup, SyncBatchNorm, Weight};

const TIMEOUT: Duration = Duration::from_mins(2);
const LR: f64 = 0.2;
const N_STEPS: usize = 4;
/// Rows of the data that all cases deal out.
const N_ROWS: i64 = 256;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Case {
    Plain,
    BucketViews,
    StaticGraph,
    Accumulation,
    Unused,
    Frozen,
    Tied,
    BatchNorm,
    SyncBatchNorm,
    UnevenBatches,
    UnevenSteps,
    TwoModels,
}

const CASES: [Case; 12] = [
    Case::Plain,
    Case::BucketViews,
    Case::StaticGraph,
    Case::Accumulation,
    Case::Unused,
    Case::Frozen,
    Case::Tied,
    Case::BatchNorm,
    Case::SyncBatchNorm,
    Case::UnevenBatches,
    Case::UnevenSteps,
    Case::TwoModels,
];

impl Case {
    fn options(self) -> DdpOptions {
        DdpOptions {
            find_unused_parameters: self == Case::Unused,
            gradient_as_bucket_view: self == Case::BucketViews,
            static_graph: self == Case::StaticGraph,
            ..DdpOptions::default()
        }
    }

    /// Rows that a rank takes in a step; none where it has run out of data.
    fn rows(self, rank: usize, step: usize) -> i64 {
        match self {
            Case::UnevenBatches => [1, 4, 4, 4][rank],
            Case::UnevenSteps if step >= [4, 2, 1, 0][rank] => 0,
            _ => 4,
        }
    }

    fn first_row(self, rank: usize, step: usize, world: usize) -> i64 {
        let steps_before = (0..step).map(|s| (0..world).map(|r| self.rows(r, s)).sum::<i64>());
        let ranks_before = (0..rank).map(|r| self.rows(r, step));
        steps_before.sum::<i64>() + ranks_before.sum::<i64>()
    }
}

/// A model that does what the case is about.
#[derive(Debug)]
struct Net {
    case: Case,
    first: nn::Linear,
    second: nn::Linear,
    spare: Option<nn::Linear>,
    norm: Option<Norm>,
}

#[derive(Debug)]
enum Norm {
    Alone(nn::BatchNorm),
    Synced(SyncBatchNorm),
}

impl Net {
    fn new(vs: &nn::VarStore, case: Case, group: Option<&ProcessGroup>) -> Self {
        let root = vs.root();
        let config = nn::LinearConfig::default();
        let norm = matches!(case, Case::BatchNorm | Case::SyncBatchNorm).then(|| {
            let config = nn::BatchNormConfig::default();
            let path = &root / "norm";
            match group.filter(|_| case == Case::SyncBatchNorm) {
                None => Norm::Alone(nn::batch_norm1d(path, 16, config)),
                Some(group) => Norm::Synced(SyncBatchNorm::new(&path, 16, config, group)),
            }
        });
        let first = nn::linear(&root / "first", N_INPUTS, 16, config);
        let spare =
            (case == Case::Unused).then(|| nn::linear(&root / "spare", 16, N_TARGETS, config));
        let second = nn::linear(&root / "second", 16, N_TARGETS, config);
        for mut tensor in vs.variables().into_values() {
            // tch makes running statistics in float32, whatever the store's kind.
            let converted = tensor.to_kind(vs.kind());
            tensor.set_data(&converted);
        }
        fill(vs);
        if case == Case::Frozen {
            let _ = first.ws.set_requires_grad(false);
        }
        if case == Case::Tied {
            let mut variables = vs.variables_.lock().expect("nobody panicked");
            let again = first.ws.shallow_clone();
            variables.named_variables.insert("again.weight".to_owned(), again);
        }
        Self { case, first, second, spare, norm }
    }

    fn forward(&self, x: &Tensor, step: usize) -> Tensor {
        let mut hidden = self.first.forward(x).tanh();
        if self.case == Case::Tied {
            // The same weight there and back again.
            hidden = hidden.matmul(&self.first.ws).matmul(&self.first.ws.tr()).tanh();
        }
        match &self.norm {
            Some(Norm::Alone(norm)) => hidden = norm.forward_t(&hidden, true),
            Some(Norm::Synced(norm)) => hidden = norm.forward_t(&hidden, true),
            None => {}
        }
        match &self.spare {
            Some(spare) if step % 2 == 1 => spare.forward(&hidden),
            _ => self.second.forward(&hidden),
        }
    }
}

fn loss(out: &Tensor, y: &Tensor) -> Tensor {
    out.mse_loss(y, Reduction::Mean)
}

/// One process over all samples of a step.
fn alone(case: Case, kind: Kind, world: usize) -> Result<nn::VarStore> {
    let (x, y) = batch(N_ROWS, kind);
    let vs = store(kind);
    let net = Net::new(&vs, case, None);
    let mut opt = nn::Sgd { momentum: 0.9, ..nn::Sgd::default() }.build(&vs, LR)?;
    for step in 0..N_STEPS {
        let first = case.first_row(0, step, world);
        let rows: i64 = (0..world).map(|rank| case.rows(rank, step)).sum::<i64>();
        let (x, y) = (x.narrow(0, first, rows), y.narrow(0, first, rows));
        opt.zero_grad();
        if case == Case::BatchNorm {
            backward_by_shares(&vs, &net, (&x, &y), step, world);
        } else {
            loss(&net.forward(&x, step), &y).backward();
        }
        opt.step();
    }
    Ok(vs)
}

/// What batch statistics of each rank's own share mean: the mean of the shares' gradients, all from
/// the same running statistics, of which those of the first share go on.
fn backward_by_shares(
    vs: &nn::VarStore,
    net: &Net,
    (x, y): (&Tensor, &Tensor),
    step: usize,
    world: usize,
) {
    let mut running: Vec<Tensor> = vs.variables().into_values().collect();
    running.retain(|tensor| !tensor.requires_grad());
    let copies = || -> Vec<Tensor> { running.iter().map(Tensor::copy).collect() };
    let set = |values: &[Tensor]| {
        for (tensor, value) in running.iter().zip(values) {
            tensor.shallow_clone().copy_(value);
        }
    };
    let before = copies();
    let mut of_first = None;
    for (x, y) in x.chunk(world as i64, 0).iter().zip(y.chunk(world as i64, 0)) {
        set(&before);
        (loss(&net.forward(x, step), &y) / world as f64).backward();
        of_first.get_or_insert_with(copies);
    }
    set(&of_first.unwrap_or(before));
}

fn together(case: Case, kind: Kind, group: &ProcessGroup) -> Result<nn::VarStore> {
    let (world, rank) = (group.world_size(), group.rank());
    let (x, y) = batch(N_ROWS, kind);
    let vs = store(kind);
    let net = Net::new(&vs, case, Some(group));
    let mut opt = nn::Sgd { momentum: 0.9, ..nn::Sgd::default() }.build(&vs, LR)?;
    let ddp = Ddp::new(net, vs, group, case.options())?;
    for step in 0..N_STEPS {
        let (first, rows) = (case.first_row(rank, step, world), case.rows(rank, step));
        if rows == 0 {
            break;
        }
        let share = |from: i64, rows: i64| (x.narrow(0, from, rows), y.narrow(0, from, rows));
        let pass = |from: i64, rows: i64| -> Result<Tensor> {
            let (x, y) = share(from, rows);
            Ok(loss(&ddp.run(|net| net.forward(&x, step))?, &y))
        };
        match case {
            Case::Accumulation => {
                for micro in 0..3 {
                    ddp.no_sync(|| -> Result<()> {
                        Ok(ddp.backward(&(pass(first + micro, 1)? / 4.0))?)
                    })?;
                }
                ddp.backward(&(pass(first + 3, 1)? / 4.0))?;
                ddp.step(&mut opt)?;
            }
            Case::UnevenBatches | Case::UnevenSteps => {
                let loss = pass(first, rows)?;
                ddp.weighted(Weight::of(rows)).backward_step(&mut opt, &loss)?;
            }
            _ => ddp.backward_step(&mut opt, &pass(first, rows)?)?,
        }
    }
    if case == Case::UnevenSteps {
        ddp.join(&mut opt)?;
    }
    if case == Case::BatchNorm {
        // The next forward pass would begin with the buffers of rank 0.
        ddp.run(|_| ())?;
    }
    let (_, vs) = ddp.into_parts();
    Ok(vs)
}

/// Two models in one program, as in a GAN: a maker, and a judge through which it is trained.
struct Pair {
    maker: (nn::VarStore, nn::Linear, nn::Optimizer),
    judge: (nn::VarStore, nn::Linear, nn::Optimizer),
}

impl Pair {
    fn new(kind: Kind) -> Result<Self> {
        let make = |inputs: i64, outputs: i64| -> Result<_> {
            let vs = store(kind);
            let net = nn::linear(vs.root() / "layer", inputs, outputs, nn::LinearConfig::default());
            fill(&vs);
            let opt = nn::Sgd::default().build(&vs, LR)?;
            Ok((vs, net, opt))
        };
        Ok(Self { maker: make(N_INPUTS, N_TARGETS)?, judge: make(N_TARGETS, 1)? })
    }
}

fn two_models_alone(kind: Kind, world: usize) -> Result<Vec<nn::VarStore>> {
    let (x, y) = batch(N_ROWS, kind);
    let n = 4 * world as i64;
    let Pair { maker, judge } = Pair::new(kind)?;
    let ((maker_vs, maker, mut maker_opt), (judge_vs, judge, mut judge_opt)) = (maker, judge);
    for step in 0..N_STEPS as i64 {
        let (x, y) = (x.narrow(0, step * n, n), y.narrow(0, step * n, n));
        let made = maker.forward(&x);
        let gap = judge.forward(&y) - judge.forward(&made.detach());
        judge_opt.backward_step(&gap.square().mean(None));
        maker_opt.backward_step(&judge.forward(&made).square().mean(None));
    }
    Ok(vec![maker_vs, judge_vs])
}

fn two_models_together(kind: Kind, group: &ProcessGroup) -> Result<Vec<nn::VarStore>> {
    let (x, y) = batch(N_ROWS, kind);
    let (rank, world, n) = (group.rank() as i64, group.world_size() as i64, 4);
    let Pair { maker, judge } = Pair::new(kind)?;
    let ((maker_vs, maker, mut maker_opt), (judge_vs, judge, mut judge_opt)) = (maker, judge);
    let maker = Ddp::new(maker, maker_vs, group, DdpOptions::default())?;
    let judge = Ddp::new(judge, judge_vs, group, DdpOptions::default())?;
    for step in 0..N_STEPS as i64 {
        let first = (step * world + rank) * n;
        let (x, y) = (x.narrow(0, first, n), y.narrow(0, first, n));
        let made = maker.run(|net| net.forward(&x))?;
        let both = Tensor::cat(&[&y, &made.detach()], 0);
        let marks = judge.run(|net| net.forward(&both))?;
        let gap = marks.narrow(0, 0, n) - marks.narrow(0, n, n);
        judge.backward_step(&mut judge_opt, &gap.square().mean(None))?;
        let mark = judge.run(|net| net.forward(&made))?;
        maker.backward_step(&mut maker_opt, &mark.square().mean(None))?;
        // The judge's gradients of the maker's step are thrown away.
        judge.zero_grad()?;
    }
    Ok(vec![maker.into_parts().1, judge.into_parts().1])
}

/// The largest relative difference of any variable: the norm of the difference over the norm, and
/// the largest difference over the largest value.
fn difference(left: &nn::VarStore, right: &nn::VarStore) -> Result<(f64, f64, String)> {
    let right = right.variables();
    let mut largest = (0f64, 0f64, String::new());
    for (name, tensor) in left.variables() {
        let other = right[&name].to_kind(Kind::Double);
        let apart = tensor.to_kind(Kind::Double) - &other;
        let relative = |of: &dyn Fn(&Tensor) -> Tensor| -> Result<f64> {
            Ok(f64::try_from(of(&apart))? / f64::try_from(of(&other))?.max(f64::MIN_POSITIVE))
        };
        let by_element = relative(&|tensor| tensor.abs().max())?;
        let by_norm = relative(&Tensor::norm)?;
        largest.1 = if by_element.is_nan() { by_element } else { largest.1.max(by_element) };
        if by_norm > largest.0 || by_norm.is_nan() {
            (largest.0, largest.2) = (by_norm, name);
        }
    }
    Ok(largest)
}

fn check(case: Case, kind: Kind, tolerance: f64, group: &ProcessGroup) -> Result<()> {
    let world = group.world_size();
    let pairs = if case == Case::TwoModels {
        let alone = two_models_alone(kind, world)?;
        alone.into_iter().zip(two_models_together(kind, group)?).collect()
    } else {
        vec![(alone(case, kind, world)?, together(case, kind, group)?)]
    };
    for (alone, together) in pairs {
        let (apart, by_element, name) = difference(&together, &alone)?;
        if group.is_main() {
            eprintln!(
                "{world} ranks, {kind:?}, {case:?}: {apart:.1e}, by element {by_element:.1e}"
            );
        }
        ensure!(
            apart <= tolerance,
            "{world} ranks, {kind:?}, {case:?}: `{name}` differs by {apart:e}"
        );
        // An element of 7 significant bits may be two roundings off; not so with more bits.
        ensure!(
            kind == Kind::BFloat16 || by_element <= tolerance,
            "{world} ranks, {kind:?}, {case:?}: an element differs by {by_element:e}"
        );
    }
    Ok(())
}

fn whole_table(world: usize) {
    Ranks::new(format!("every_case_equals_one_process_on_{world}_ranks"), world)
        .timeout(TIMEOUT)
        .run(|rank| {
            let group = rank.group(TIMEOUT)?;
            for (kind, tolerance) in
                [(Kind::Float, 1e-6), (Kind::Double, 1e-12), (Kind::BFloat16, 2e-2)]
            {
                for case in CASES {
                    check(case, kind, tolerance, &group)?;
                }
            }
            Ok(())
        });
}

#[test]
fn every_case_equals_one_process_on_1_ranks() {
    whole_table(1);
}

#[test]
fn every_case_equals_one_process_on_2_ranks() {
    whole_table(2);
}

#[test]
fn every_case_equals_one_process_on_3_ranks() {
    whole_table(3);
}

#[test]
fn every_case_equals_one_process_on_4_ranks() {
    whole_table(4);
}

#[test]
fn optimizer_state_stays_equal_after_uneven_steps() {
    Ranks::new(test_name!(), 3).run(|rank| {
        let group = rank.group(TIMEOUT)?;
        let vs = store(Kind::Double);
        let net = nn::linear(vs.root() / "layer", N_INPUTS, N_TARGETS, nn::LinearConfig::default());
        fill(&vs);
        let mut opt = nn::Adam::default().build(&vs, 0.05)?;
        let ddp = Ddp::new(net, vs, &group, DdpOptions::default())?;
        let (x, y) = batch(4, Kind::Double);
        let scale = group.rank() as f64 + 1.0;
        let step = |opt: &mut nn::Optimizer| -> Result<()> {
            let out = ddp.run(|net| net.forward(&(&x * scale)))?;
            ddp.weighted(Weight::of(4)).backward_step(opt, &loss(&out, &y))?;
            Ok(())
        };
        for _ in 0..[5, 2, 0][group.rank()] {
            step(&mut opt)?;
        }
        let stood_in = ddp.join(&mut opt)?;
        ensure!(stood_in == [0, 3, 5][group.rank()], "stood in for {stood_in} steps");
        // One common step with Adam's state: Python's `join` leaves the ranks apart here.
        step(&mut opt)?;
        let names: std::collections::BTreeMap<_, _> = ddp.vars().variables().into_iter().collect();
        for (name, tensor) in names {
            let all = group.all_gather(&tensor)?;
            ensure!(all.iter().all(|other| *other == all[0]), "`{name}` differs between ranks");
        }
        Ok(())
    });
}
