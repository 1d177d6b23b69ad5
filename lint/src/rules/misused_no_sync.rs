use crate::analysis::{Call, Const, Event, ObjectId, Term, TermKind};
use crate::model::{BinaryOp, CompareOp};
use crate::prelude::*;
use crate::table::Role;

declare_rule! {
    /// `no_sync` does not do what it is meant for.
    ///
    /// `DistributedDataParallel` decides in the *forward* whether the backward will reduce.
    /// `no_sync` around the backward alone changes nothing (a warning). Around the very
    /// micro-step after which the optimizer steps, it leaves each rank with gradients of its
    /// own: the ranks' weights drift apart (an error).
    ///
    /// ```python bad
    /// import torch
    /// from torch.nn.parallel import DistributedDataParallel as DDP
    ///
    /// torch.distributed.init_process_group("nccl")
    /// model = DDP(torch.nn.Linear(2, 2))
    /// optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    /// for step in range(100):
    ///     loss = model(torch.rand(4, 2)).sum()
    ///     if (step + 1) % 4 == 0:
    ///         loss.backward()
    ///         optimizer.step()
    ///         optimizer.zero_grad()
    ///     else:
    ///         with model.no_sync():
    ///             loss.backward()  # ~ misused-no-sync
    /// ```
    /// ```python good
    /// import contextlib
    /// import torch
    /// from torch.nn.parallel import DistributedDataParallel as DDP
    ///
    /// torch.distributed.init_process_group("nccl")
    /// model = DDP(torch.nn.Linear(2, 2))
    /// optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    /// for step in range(100):
    ///     steps = (step + 1) % 4 == 0
    ///     with contextlib.nullcontext() if steps else model.no_sync():
    ///         model(torch.rand(4, 2)).sum().backward()
    ///     if steps:
    ///         optimizer.step()
    ///         optimizer.zero_grad()
    /// ```
    /// ```rust bad
    /// use tch::nn::{self, Module};
    /// use tch::{Kind, Tensor};
    /// use tch_ddp::Ddp;
    ///
    /// fn accumulate(ddp: &Ddp<nn::Linear>, batches: &[Tensor]) -> anyhow::Result<()> {
    ///     for x in batches {
    ///         let loss = ddp.run(|m| m.forward(x))?.mean(Kind::Float);
    ///         ddp.no_sync(|| loss.backward()); //~ misused-no-sync
    ///     }
    ///     Ok(())
    /// }
    /// ```
    /// ```rust good
    /// use tch::nn::{self, Module};
    /// use tch::{Kind, Tensor};
    /// use tch_ddp::Ddp;
    ///
    /// fn accumulate(ddp: &Ddp<nn::Linear>, batches: &[Tensor]) -> anyhow::Result<()> {
    ///     for x in batches {
    ///         ddp.no_sync(|| {
    ///             let loss = ddp.run(|m| m.forward(x))?.mean(Kind::Float);
    ///             ddp.backward(&loss)
    ///         })?;
    ///     }
    ///     Ok(())
    /// }
    /// ```
    ///
    /// # Known limits
    /// Whether the step falls on an unsynced round is tried for small numbers; conditions on
    /// anything but the round and a constant or one setting are taken to be right.
    pub static RULE = {
        name: "misused-no-sync",
        level: Level::Warning,
        harm: Harm::Waste,
        tier: 2,
        languages: BOTH,
        fix: FixKind::No,
        check,
    };
}

fn check(program: &Program<'_>, report: &mut Report<'_>) {
    forward_outside(program, report);
    step_unsynced(program, report);
}

/// Only the backward is inside: the forward has decided already.
fn forward_outside(program: &Program<'_>, report: &mut Report<'_>) {
    for (backward, call) in program.calls(Role::Backward) {
        let forwards = program.wrappers_behind(call);
        let outside = !forwards.is_empty() && forwards.iter().all(|(f, _)| !f.modes.no_sync);
        if !backward.modes.no_sync || !outside {
            continue;
        }
        report
            .at(backward.site, "`no_sync` around the backward alone has no effect")
            .why("the wrapper decides in its forward whether the backward reduces gradients")
            .help("put the forward under `no_sync`, too")
            .related(forwards[0].0.site, "the forward runs outside `no_sync`");
    }
}

/// The round after which the optimizer steps is itself unsynced.
fn step_unsynced(program: &Program<'_>, report: &mut Report<'_>) {
    for (entered, call) in program.calls(Role::NoSync) {
        let Some(wrapper) = wrapper_of(program, call) else { continue };
        let trained: Vec<&Event<'_>> = program
            .forwards()
            .filter(|(event, f)| {
                program.ddp_of(f) == Some(wrapper) && program.trained().contains(&event.id)
            })
            .map(|(event, _)| event)
            .collect();
        if trained.is_empty() || !trained.iter().any(|f| f.modes.no_sync && f.id > entered.id) {
            continue;
        }
        let steps =
            program.optimizer_steps().filter(|(_, step)| program.steps_wrapper(step, wrapper));
        let steps: Vec<&Event<'_>> = steps.map(|(event, _)| event).collect();
        let never = trained.iter().all(|f| f.modes.no_sync) && is_unconditional(program, entered);
        let step = if never {
            steps.first()
        } else {
            steps.iter().find(|step| meets_unsynced(program, entered, step, &trained))
        };
        let Some(step) = step else { continue };
        report
            .at(entered.site, "the optimizer steps on gradients that `no_sync` kept local")
            .level(Level::Error)
            .harm(Harm::Wrong)
            .why("each rank steps by gradients of its own, and the ranks' weights drift apart")
            .help(
                "leave `no_sync` for the last micro-step before each step: test the same \
                 condition for both",
            )
            .related(step.site, "the optimizer steps here");
    }
}

fn wrapper_of(program: &Program<'_>, call: &Call<'_>) -> Option<ObjectId> {
    let receiver = call.receiver.as_ref()?.single()?;
    program.wrapper_of(receiver).map(|(id, _)| id)
}

/// Conditions of the one event that the other does not stand under, both ways.
fn conditions_apart(program: &Program<'_>, one: &Event<'_>, other: &Event<'_>) -> Vec<Term> {
    let of = |event: &Event<'_>| -> Vec<Term> {
        program.conditions(event.path).map(|node| node.condition).collect()
    };
    let (one, other) = (of(one), of(other));
    let alone = |list: &[Term], rest: &[Term]| -> Vec<Term> {
        list.iter().copied().filter(|condition| !rest.contains(condition)).collect()
    };
    let mut apart = alone(&one, &other);
    apart.extend(alone(&other, &one));
    apart
}

fn is_unconditional(program: &Program<'_>, entered: &Event<'_>) -> bool {
    program.conditions(entered.path).all(|node| node.condition == program.terms().yes)
}

/// In some round both the context is entered and the optimizer steps, for small numbers.
fn meets_unsynced(
    program: &Program<'_>,
    entered: &Event<'_>,
    step: &Event<'_>,
    trained: &[&Event<'_>],
) -> bool {
    let round = |event: &Event<'_>| program.loops(event.loops).next().map(|(_, n)| n.site);
    let in_round = round(entered).is_some() && round(entered) == round(step);
    // A synced forward of the same round mends it.
    let mended = trained.iter().any(|f| {
        !f.modes.no_sync
            && f.id < step.id
            && f.id > entered.id
            && program.can_both_hold_paths(f.path, step.path)
            && program.can_both_hold_paths(f.path, entered.path)
    });
    if !in_round || mended || step.id < entered.id {
        return false;
    }
    let conditions = conditions_apart(program, entered, step);
    if conditions.is_empty() {
        return true;
    }
    let Some((index, every)) = counted(program, &conditions) else { return false };
    (2..=4).any(|n| {
        (0..3 * n).any(|i| {
            let trial = Trial { program, index, every, values: (i, n) };
            conditions.iter().all(|&condition| trial.holds(condition, 24) == Some(true))
        })
    })
}

/// The round's number, and what it is counted by: the parts of `(i + 1) % n`.
fn counted(program: &Program<'_>, conditions: &[Term]) -> Option<(Term, Term)> {
    let terms = program.terms();
    conditions.iter().flat_map(|&c| program.parts_of(c)).find_map(|part| {
        let TermKind::Binary(BinaryOp::Mod, left, every) = *terms.kind(part) else { return None };
        let index = program.parts_of(left).into_iter().find(|&t| {
            terms.as_const(t).is_none() && !matches!(terms.kind(t), TermKind::Binary(..))
        })?;
        Some((index, every))
    })
}

/// One assignment of numbers to the round and its count.
struct Trial<'a, 'p> {
    program: &'a Program<'p>,
    index: Term,
    every: Term,
    values: (i64, i64),
}

impl Trial<'_, '_> {
    fn holds(&self, condition: Term, depth: u32) -> Option<bool> {
        if depth == 0 {
            return None;
        }
        let terms = self.program.terms();
        let holds = |t: Term| self.holds(t, depth - 1);
        match terms.kind(condition) {
            TermKind::Const(Const::Bool(value)) => Some(*value),
            TermKind::Not(inner) => holds(*inner).map(|b| !b),
            TermKind::And(parts) => joined(parts.iter().map(|&p| holds(p)), true),
            TermKind::Or(parts) => joined(parts.iter().map(|&p| holds(p)), false),
            TermKind::Compare(op, left, right) => {
                let (a, b) = (self.number(*left, depth)?, self.number(*right, depth)?);
                match op {
                    CompareOp::Eq | CompareOp::Is => Some(a == b),
                    CompareOp::Lt => Some(a < b),
                    CompareOp::LtE => Some(a <= b),
                    _ => None,
                }
            }
            _ => self.number(condition, depth).map(|n| n != 0),
        }
    }

    fn number(&self, term: Term, depth: u32) -> Option<i64> {
        if term == self.index {
            return Some(self.values.0);
        }
        let terms = self.program.terms();
        if term == self.every {
            return terms.as_int(term).or(Some(self.values.1));
        }
        if depth == 0 {
            return None;
        }
        match terms.kind(term) {
            TermKind::Const(_) => terms.as_int(term),
            TermKind::Binary(op, left, right) => {
                let (a, b) = (self.number(*left, depth - 1)?, self.number(*right, depth - 1)?);
                match op {
                    BinaryOp::Add => a.checked_add(b),
                    BinaryOp::Sub => a.checked_sub(b),
                    BinaryOp::Mul => a.checked_mul(b),
                    BinaryOp::Mod => a.checked_rem_euclid(b),
                    BinaryOp::FloorDiv => a.checked_div_euclid(b),
                    _ => None,
                }
            }
            _ => None,
        }
    }
}

fn joined(parts: impl Iterator<Item = Option<bool>>, all: bool) -> Option<bool> {
    let mut unknown = false;
    for part in parts {
        match part {
            Some(value) if value != all => return Some(!all),
            Some(_) => {}
            None => unknown = true,
        }
    }
    (!unknown).then_some(all)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_unsynced_last_round_of_tch_counts() {
        let program = |when: &str, mark: &str| {
            [
                "
use tch::{nn, nn::Module, nn::OptimizerConfig, Kind, Tensor};
use tch_ddp::{Ddp, GroupOptions, Launch, ProcessGroup};
const EVERY: usize = 4;
fn train(ddp: &Ddp<nn::Linear>, opt: &mut nn::Optimizer, rows: &[Tensor]) -> anyhow::Result<()> {
    for (i, x) in rows.iter().enumerate() {
        let micro = || {
            let loss = ddp.run(|m| m.forward(x))?.mean(Kind::Float);
            ddp.backward(&loss)
        };
        if ",
                when,
                " {
            ddp.no_sync(micro)?;",
                mark,
                "
        } else {
            micro()?;
        }
        if i % EVERY == EVERY - 1 {
            ddp.step(opt)?;
        }
    }
    Ok(())
}
fn main() -> anyhow::Result<()> {
    let group = ProcessGroup::init(&Launch::from_env()?, GroupOptions::default())?;
    let vs = nn::VarStore::new(group.device());
    let net = nn::linear(vs.root(), 2, 1, Default::default());
    let ddp = Ddp::new(net, vs, &group, Default::default())?;
    let mut opt = nn::Sgd::default().build(ddp.vars(), 0.1)?;
    train(&ddp, &mut opt, &[Tensor::read_npy(\"x.npy\")?])
}
",
            ]
            .concat()
        };
        check_rust(&program("i % EVERY == EVERY - 1", " //~ misused-no-sync: local"));
        check_rust(&program("i % EVERY != EVERY - 1", ""));
    }

    #[test]
    fn a_context_chosen_in_a_method_of_another_file_counts() {
        check_files(&[
            (
                "learner.py",
                "
from contextlib import nullcontext
class Learner:
    def __init__(self, model, every):
        self.model, self.every = model, every
    def losses(self, batch):
        return self.model(batch).mean() / self.every
    def back(self, loss, last):
        with nullcontext() if last else self.model.no_sync():
            loss.backward()  # ~ misused-no-sync: no effect
",
            ),
            (
                "main.py",
                "
import torch
from torch.nn.parallel import DistributedDataParallel as DDP
from learner import Learner
torch.distributed.init_process_group('nccl')
net = DDP(torch.nn.Linear(2, 2))
opt = torch.optim.SGD(net.parameters(), lr=0.1)
learner = Learner(net, 4)
for i in range(100):
    loss = learner.losses(torch.ones(2, 2))
    last = i % 4 == 3
    learner.back(loss, last)
    if last:
        opt.step()
",
            ),
        ]);
    }

    #[test]
    fn a_step_one_round_off_counts() {
        check_python(
            "
import argparse, torch
from torch.nn.parallel import DistributedDataParallel as DDP
args = argparse.ArgumentParser().parse_args()
torch.distributed.init_process_group('nccl')
net = DDP(torch.nn.Linear(2, 2))
opt = torch.optim.SGD(net.parameters(), lr=0.1)
for i, x in enumerate([torch.ones(2, 2)] * 64):
    if i % args.accumulate != 0:
        with net.no_sync():  # ~ misused-no-sync: kept local
            net(x).sum().backward()
    else:
        net(x).sum().backward()
    if (i + 1) % args.accumulate == 0:
        opt.step()
        opt.zero_grad()
",
        );
    }

    #[test]
    fn gradients_that_are_never_reduced_count() {
        check_files(&[
            (
                "loop.py",
                "
def run(net, opt, data):
    for batch in data:
        opt.zero_grad()
        with net.no_sync():  # ~ misused-no-sync: kept local
            for x in batch:
                net(x).sum().backward()
        opt.step()
",
            ),
            (
                "main.py",
                "
import torch
from torch.nn.parallel import DistributedDataParallel as DDP
from loop import run
torch.distributed.init_process_group('nccl')
net = DDP(torch.nn.Linear(2, 2))
run(net, torch.optim.SGD(net.parameters(), lr=0.1), torch.ones(3, 4, 2, 2))
",
            ),
        ]);
    }

    #[test]
    fn the_same_condition_for_both_is_silent() {
        check_python(
            "
import argparse, contextlib, torch
from torch.nn.parallel import DistributedDataParallel as DDP
args = argparse.ArgumentParser().parse_args()
torch.distributed.init_process_group('nccl')
net = DDP(torch.nn.Linear(2, 2))
opt = torch.optim.SGD(net.parameters(), lr=0.1)
data = torch.ones(64, 2, 2)
for i, x in enumerate(data):
    if (i + 1) % args.n != 0:
        with net.no_sync():
            net(x).sum().backward()
    else:
        net(x).sum().backward()
        opt.step()
        opt.zero_grad()
for i, x in enumerate(data):
    last = i % args.n == args.n - 1
    context = net.no_sync if not last else contextlib.nullcontext
    with context():
        net(x).sum().backward()
    if last:
        opt.step()
        opt.zero_grad()
",
        );
    }

    #[test]
    fn a_last_synced_forward_is_silent() {
        check_python(
            "
import torch
from torch.nn.parallel import DistributedDataParallel as DDP
torch.distributed.init_process_group('nccl')
net = DDP(torch.nn.Linear(2, 2))
opt = torch.optim.SGD(net.parameters(), lr=0.1)
data = torch.ones(64, 4, 2, 2)
for batch in data:
    with net.no_sync():
        for x in batch[:-1]:
            net(x).sum().backward()
    net(batch[-1]).sum().backward()
    opt.step()
",
        );
    }

    #[test]
    fn a_switch_that_is_one_round_early_counts() {
        check_python(
            r#"
import os
from contextlib import nullcontext
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP
def main(accum=4):
    dist.init_process_group("nccl")
    g = int(os.environ["LOCAL_RANK"])
    torch.cuda.set_device(g)
    torch.manual_seed(dist.get_rank())
    net = DDP(torch.nn.Linear(8, 8).cuda(), device_ids=[g])
    opt = torch.optim.SGD(net.parameters(), 0.1)
    for i in range(100):
        sync = i % accum == 0
        with nullcontext() if sync else net.no_sync():  # ~ misused-no-sync
            loss = net(torch.randn(4, 8).cuda()).mean() / accum
            loss.backward()
        if (i + 1) % accum == 0:
            opt.step()
            opt.zero_grad()
if __name__ == "__main__":
    main()
"#,
        );
    }
}
