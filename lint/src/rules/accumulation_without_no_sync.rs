use rustc_hash::FxHashSet;

use crate::analysis::{Event, EventKind, LoopNode, ObjectClass, ObjectId, TermKind};
use crate::prelude::*;
use crate::table::Role;

declare_rule! {
    /// Gradients are reduced on every micro-step, though the optimizer steps every n-th.
    ///
    /// Each backward through `DistributedDataParallel` sends all gradients over the network.
    /// Where several of them accumulate before one step, only the last has to: under
    /// `model.no_sync()` the others add up locally. The result is the same, the traffic is a
    /// fraction. Forward and backward both belong under it.
    ///
    /// ```python bad
    /// import torch
    /// from torch.nn.parallel import DistributedDataParallel as DDP
    ///
    /// torch.distributed.init_process_group("nccl")
    /// model = DDP(torch.nn.Linear(2, 2))
    /// optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    /// for step in range(100):
    ///     model(torch.rand(4, 2)).sum().backward()  # ~ accumulation-without-no-sync
    ///     if (step + 1) % 4 == 0:
    ///         optimizer.step()
    ///         optimizer.zero_grad()
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
    /// use tch::nn::{self, Module, OptimizerConfig};
    /// use tch::{Kind, Tensor};
    /// use tch_ddp::{Ddp, Launch, ProcessGroup};
    ///
    /// fn main() -> anyhow::Result<()> {
    ///     let group = ProcessGroup::init(&Launch::from_env()?, Default::default())?;
    ///     let vs = nn::VarStore::new(group.device());
    ///     let net = nn::linear(vs.root(), 4, 4, Default::default());
    ///     let ddp = Ddp::new(net, vs, &group, Default::default())?;
    ///     let mut opt = nn::Adam::default().build(ddp.vars(), 1e-3)?;
    ///     for step in 0..100 {
    ///         let x = Tensor::rand([2, 4], (Kind::Float, group.device()));
    ///         let loss = ddp.run(|m| m.forward(&x))?.mean(Kind::Float);
    ///         ddp.backward(&loss)?; //~ accumulation-without-no-sync
    ///         if (step + 1) % 4 == 0 {
    ///             ddp.step(&mut opt)?;
    ///         }
    ///     }
    ///     Ok(())
    /// }
    /// ```
    /// ```rust good
    /// use tch::nn::{self, Module, OptimizerConfig};
    /// use tch::{Kind, Tensor};
    /// use tch_ddp::{Ddp, Launch, ProcessGroup};
    ///
    /// fn main() -> anyhow::Result<()> {
    ///     let group = ProcessGroup::init(&Launch::from_env()?, Default::default())?;
    ///     let vs = nn::VarStore::new(group.device());
    ///     let net = nn::linear(vs.root(), 4, 4, Default::default());
    ///     let ddp = Ddp::new(net, vs, &group, Default::default())?;
    ///     let mut opt = nn::Adam::default().build(ddp.vars(), 1e-3)?;
    ///     for step in 0..100 {
    ///         let x = Tensor::rand([2, 4], (Kind::Float, group.device()));
    ///         let micro = || {
    ///             let loss = ddp.run(|m| m.forward(&x))?.mean(Kind::Float);
    ///             ddp.backward(&loss)
    ///         };
    ///         if (step + 1) % 4 == 0 {
    ///             micro()?;
    ///             ddp.step(&mut opt)?;
    ///         } else {
    ///             ddp.no_sync(micro)?;
    ///         }
    ///     }
    ///     Ok(())
    /// }
    /// ```
    ///
    /// # Known limits
    /// Only where the step hangs on a count of rounds, or stands behind a loop over a range.
    /// Programs that set `require_backward_grad_sync` are silent.
    pub static RULE = {
        name: "accumulation-without-no-sync",
        level: Level::Warning,
        harm: Harm::Waste,
        tier: 3,
        languages: BOTH,
        fix: FixKind::No,
        check,
    };
}

fn check(program: &Program<'_>, report: &mut Report<'_>) {
    if !program.is_distributed() || switches_by_hand(program) {
        return;
    }
    let mut told = FxHashSet::default();
    for (backward, call) in program.calls(Role::Backward) {
        let counted = !program.counted_conditions(backward).is_empty();
        let Some((_, round)) = program.loops(backward.loops).next() else { continue };
        if counted || backward.modes.no_sync {
            continue;
        }
        let through = program.wrappers_behind(call);
        // Where another of them steps in each round, this backward is that one's own.
        if through.iter().any(|&(_, wrapper)| steps_each_round(program, round, wrapper)) {
            continue;
        }
        for (forward, wrapper) in through {
            if !program.is_within(forward, round.site) || uses_no_sync(program, wrapper) {
                continue;
            }
            let Some(step) = late_step(program, backward, round, wrapper) else { continue };
            // With and without a scaler, it is one loop to mend.
            if !told.insert((round.site, wrapper)) {
                continue;
            }
            report
                .at(backward.site, "every micro-step reduces all gradients, few of them step")
                .why(
                    "each backward sends all gradients over the network; only the last before a \
                      step has to",
                )
                .help(match program.language {
                    Language::Python => {
                        "run forward and backward of the other micro-steps under `model.no_sync()`"
                    }
                    Language::Rust => {
                        "run forward and backward of the other micro-steps inside \
                         `ddp.no_sync(|| ..)`"
                    }
                })
                .related(step.site, "the optimizer steps here, once in several rounds");
        }
    }
}

/// The switch behind `no_sync` is set by hand.
fn switches_by_hand(program: &Program<'_>) -> bool {
    program.events().iter().any(|event| {
        matches!(&event.kind, EventKind::AttributeStore { name, .. }
            if &**name == "require_backward_grad_sync")
    })
}

fn uses_no_sync(program: &Program<'_>, wrapper: ObjectId) -> bool {
    let this = program.term_of(wrapper);
    program.calls(Role::NoSync).any(|(_, call)| {
        call.receiver
            .as_ref()
            .is_none_or(|r| r.terms().any(|t| t == this || program.wrapper_of(t).is_none()))
    })
}

fn steps_each_round(program: &Program<'_>, round: &LoopNode, wrapper: ObjectId) -> bool {
    program.optimizer_steps().any(|(step, call)| {
        program.is_within(step, round.site)
            && program.counted_conditions(step).is_empty()
            && program.steps_wrapper(call, wrapper)
    })
}

/// A step of the wrapper's optimizer that waits for several rounds of the loop, where no other
/// step of it does not.
fn late_step<'a, 'p>(
    program: &'a Program<'p>,
    backward: &Event<'p>,
    round: &LoopNode,
    wrapper: ObjectId,
) -> Option<&'a Event<'p>> {
    let mut late = None;
    for (step, call) in program.optimizer_steps() {
        if !program.steps_wrapper(call, wrapper) {
            continue;
        }
        let waits = if program.is_within(step, round.site) {
            counts_rounds(program, step, backward)
        } else {
            walks_over_several(program, round) && follows(program, step, backward, round)
        };
        if !waits {
            return None;
        }
        late = late.or(Some(step));
    }
    late
}

/// The step hangs on a count that the backward does not hang on.
fn counts_rounds(program: &Program<'_>, step: &Event<'_>, backward: &Event<'_>) -> bool {
    let of_backward = program.counted_conditions(backward);
    program.counted_conditions(step).iter().any(|condition| !of_backward.contains(condition))
}

/// Over micro-batches: a range, not known to be of 1, or a list that grew before.
fn walks_over_several(program: &Program<'_>, round: &LoopNode) -> bool {
    let is_list = |term| program.object_of(term).is_some_and(|o| o.class == ObjectClass::List);
    round.over.is_some_and(is_list) || counts_to_a_range(program, round)
}

/// `for _ in range(n)`, `for _ in 0..n`, n not known to be 1.
fn counts_to_a_range(program: &Program<'_>, round: &LoopNode) -> bool {
    if program.language == Language::Rust {
        let bounds = round.over.and_then(|over| program.terms().range_bounds(over));
        return bounds.is_some_and(|(_, to)| program.terms().as_int(to) != Some(1));
    }
    let text = program.text(program.loop_head(round));
    let Some(at) = text.find("range(") else { return false };
    let is_one = text[at + "range(".len()..].starts_with("1)");
    round.over.is_some_and(|over| !matches!(program.terms().kind(over), TermKind::Object(_)))
        && !is_one
}

/// The step stands behind the loop, in a loop around it.
fn follows(
    program: &Program<'_>,
    step: &Event<'_>,
    backward: &Event<'_>,
    round: &LoopNode,
) -> bool {
    let around: Vec<Site> = program.loops(backward.loops).skip(1).map(|(_, n)| n.site).collect();
    let outer = program.loops(step.loops).next().map(|(_, node)| node.site);
    outer.is_some_and(|site| around.contains(&site) && site != round.site) && step.id > backward.id
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_trainer_with_a_scaler_in_another_file_counts() {
        check_files(&[
            (
                "trainer.py",
                "
import torch
from torch.nn.parallel import DistributedDataParallel
class Trainer:
    def __init__(self, net, cfg):
        self.net = DistributedDataParallel(net)
        self.opt = torch.optim.AdamW(self.net.parameters(), lr=cfg.lr)
        self.scaler = torch.cuda.amp.GradScaler()
        self.every = cfg.accumulation
    def epoch(self, loader):
        for index, batch in enumerate(loader):
            loss = self.net(batch).mean() / self.every
            self.scaler.scale(loss).backward()  # ~ accumulation-without-no-sync
            if (index + 1) % self.every == 0 or index + 1 == len(loader):
                self.scaler.step(self.opt)
                self.scaler.update()
                self.opt.zero_grad(set_to_none=True)
",
            ),
            (
                "main.py",
                "
import argparse, torch
from trainer import Trainer
if __name__ == '__main__':
    parser = argparse.ArgumentParser()
    parser.add_argument('--accumulation', type=int, default=4)
    torch.distributed.init_process_group('nccl')
    trainer = Trainer(torch.nn.Linear(2, 2), parser.parse_args())
    trainer.epoch(torch.utils.data.DataLoader([1, 2]))
",
            ),
        ]);
    }

    #[test]
    fn a_loop_of_micro_steps_counts() {
        check_python(
            "
import torch
from torch.nn.parallel import DistributedDataParallel as DDP
torch.distributed.init_process_group('nccl')
net = DDP(torch.nn.Linear(2, 2))
opt = torch.optim.SGD(net.parameters(), lr=0.1)
for step in range(100):
    opt.zero_grad()
    for micro in range(8):
        loss = net(torch.rand(2, 2)).sum() / 8
        loss.backward()  # ~ accumulation-without-no-sync
    opt.step()
",
        );
    }

    #[test]
    fn a_counter_of_micro_steps_counts() {
        check_python(
            "
import torch
from torch.nn.parallel import DistributedDataParallel as DDP
EVERY = 4
def train(net, opt, batches):
    seen = 0
    for x in batches:
        net(x).sum().backward()  # ~ accumulation-without-no-sync
        seen += 1
        if seen == EVERY:
            opt.step()
            opt.zero_grad()
            seen = 0
torch.distributed.init_process_group('nccl')
net = DDP(torch.nn.Linear(2, 2))
train(net, torch.optim.SGD(net.parameters(), lr=0.1), torch.ones(64, 2, 2))
",
        );
    }

    #[test]
    fn every_round_steps_and_other_cycles_are_silent() {
        check_python(
            "
import torch
from torch.nn.parallel import DistributedDataParallel as DDP
torch.distributed.init_process_group('nccl')
critic, actor = DDP(torch.nn.Linear(2, 2)), DDP(torch.nn.Linear(2, 2))
of_critic = torch.optim.SGD(critic.parameters(), lr=0.1)
of_actor = torch.optim.SGD(actor.parameters(), lr=0.1)
for step in range(100):
    of_critic.zero_grad()
    critic(torch.rand(2, 2)).sum().backward()
    of_critic.step()
    if step % 5 == 0:
        of_actor.zero_grad()
        actor(torch.rand(2, 2)).sum().backward()
        of_actor.step()
    if step % 10 == 0:
        print(step)
",
        );
    }

    #[test]
    fn a_critic_trained_several_times_is_silent() {
        check_python(
            "
import torch
from torch.nn.parallel import DistributedDataParallel as DDP
torch.distributed.init_process_group('nccl')
critic, actor = DDP(torch.nn.Linear(2, 2)), DDP(torch.nn.Linear(2, 2))
of_critic = torch.optim.SGD(critic.parameters(), lr=0.1)
of_actor = torch.optim.SGD(actor.parameters(), lr=0.1)
for step in range(100):
    for _ in range(5):
        of_critic.zero_grad()
        critic(actor(torch.rand(2, 2)).detach()).sum().backward()
        of_critic.step()
    of_actor.zero_grad()
    critic(actor(torch.rand(2, 2))).sum().backward()
    of_actor.step()
",
        );
    }

    #[test]
    fn the_switch_set_by_hand_in_another_file_is_silent() {
        check_files(&[
            (
                "loop.py",
                "
import torch
def run(net, opt, n):
    for step in range(100):
        for micro in range(n):
            net.require_backward_grad_sync = micro == n - 1
            net(torch.rand(2, 2)).sum().backward()
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
run(net, torch.optim.SGD(net.parameters(), lr=0.1), 4)
",
            ),
        ]);
    }

    #[test]
    fn several_epochs_with_a_step_each_round_are_silent() {
        check_python(
            "
import torch
from torch.nn.parallel import DistributedDataParallel as DDP
torch.distributed.init_process_group('nccl')
net = DDP(torch.nn.Linear(2, 2))
opt = torch.optim.SGD(net.parameters(), lr=0.1)
def micro(x, steps):
    with torch.enable_grad():
        net(x).sum().backward()
    if steps % 1 == 0:
        opt.step()
        opt.zero_grad()
for epoch in range(3):
    for i in range(10):
        micro(torch.rand(2, 2), i)
",
        );
    }

    #[test]
    fn a_list_of_micro_batches_counts() {
        check_python(
            r#"
import os
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset
class LM:
    def __init__(self, cfg, g):
        self.cfg = cfg
        self.net = DDP(torch.nn.Linear(8, 8).cuda(), device_ids=[g])
        self.opt = torch.optim.AdamW(self.net.parameters(), lr=cfg["lr"])
    def update(self, batches):
        self.opt.zero_grad(set_to_none=True)
        for i, (x,) in enumerate(batches):
            loss = self.net(x.cuda()).pow(2).mean() / len(batches)
            loss.backward()  # ~ accumulation-without-no-sync
        torch.nn.utils.clip_grad_norm_(self.net.parameters(), 1.0)
        self.opt.step()
def main():
    dist.init_process_group("nccl")
    g = int(os.environ["LOCAL_RANK"])
    torch.cuda.set_device(g)
    ds = TensorDataset(torch.randn(100, 8))
    smp = DistributedSampler(ds)
    dl = DataLoader(ds, 4, sampler=smp)
    lm = LM({"lr": 1e-3}, g)
    for ep in range(3):
        smp.set_epoch(ep)
        chunk = []
        for b in dl:
            chunk.append(b)
            if len(chunk) == 4:
                lm.update(chunk)
                chunk = []
if __name__ == "__main__":
    main()
"#,
        );
    }
}
