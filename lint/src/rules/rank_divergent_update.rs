use crate::analysis::facts::Wrapper;
use crate::analysis::{Call, Event, ObjectId, Reach};
use crate::prelude::*;
use crate::table::{CollectiveKind, Role};

declare_rule! {
    /// Weights, optimizer or scheduler change on some ranks only.
    ///
    /// After the wrap nothing makes the replicas equal again: what rank 0 alone loads,
    /// initialises or steps stays its own, and the others go on with the old weights.
    ///
    /// ```python bad
    /// import torch
    /// import torch.distributed as dist
    /// from torch.nn.parallel import DistributedDataParallel as DDP
    ///
    /// dist.init_process_group("nccl")
    /// model = DDP(torch.nn.Linear(2, 2))
    /// if dist.get_rank() == 0:
    ///     model.load_state_dict(torch.load("last.pt", map_location="cpu"))  # ~ rank-divergent-update
    /// ```
    /// ```python good
    /// import torch
    /// import torch.distributed as dist
    /// from torch.nn.parallel import DistributedDataParallel as DDP
    ///
    /// dist.init_process_group("nccl")
    /// model = DDP(torch.nn.Linear(2, 2))
    /// model.load_state_dict(torch.load("last.pt", map_location="cpu"))
    /// ```
    /// ```rust bad
    /// use tch_ddp::{Ddp, Launch, ProcessGroup};
    ///
    /// fn main() -> anyhow::Result<()> {
    ///     let group = ProcessGroup::init(&Launch::from_env()?, Default::default())?;
    ///     let vs = tch::nn::VarStore::new(group.device());
    ///     let ddp = Ddp::new(tch::nn::seq_t(), vs, &group, Default::default())?;
    ///     let mut opt = tch::nn::Adam::default().build(ddp.vars(), 1e-3)?;
    ///     if group.is_main() {
    ///         opt.step(); //~ rank-divergent-update
    ///     }
    ///     Ok(())
    /// }
    /// ```
    /// ```rust good
    /// use tch_ddp::{Ddp, Launch, ProcessGroup};
    ///
    /// fn main() -> anyhow::Result<()> {
    ///     let group = ProcessGroup::init(&Launch::from_env()?, Default::default())?;
    ///     let vs = tch::nn::VarStore::new(group.device());
    ///     let ddp = Ddp::new(tch::nn::seq_t(), vs, &group, Default::default())?;
    ///     let mut opt = tch::nn::Adam::default().build(ddp.vars(), 1e-3)?;
    ///     opt.step();
    ///     Ok(())
    /// }
    /// ```
    ///
    /// # Known limits
    /// A broadcast that every rank runs later is taken to make the replicas equal.
    pub static RULE = {
        name: "rank-divergent-update",
        level: Level::Error,
        harm: Harm::Wrong,
        tier: 1,
        languages: BOTH,
        fix: FixKind::No,
        check,
    };
}

fn check(program: &Program<'_>, report: &mut Report<'_>) {
    if !program.is_distributed() {
        return;
    }
    let roles = [
        Role::LoadStateDict,
        Role::OptimizerStep,
        Role::FusedStep,
        Role::SchedulerStep,
        Role::Load,
    ];
    for role in roles {
        for (event, call) in program.calls(role) {
            if program.is_orphan(event) || !updates_a_replica(program, event, call) {
                continue;
            }
            let reach = program.reach(event.path);
            let parted =
                matches!(reach, Reach::Main | Reach::LocalMain | Reach::Others | Reach::Some);
            if parted && !is_mended(program, event) && !others_do_too(program, event, role) {
                let called = program.callee_text(event).unwrap_or("this");
                let who = if reach == Reach::Main { "rank 0 alone" } else { "some ranks only" };
                let site = program.guarded_site(event);
                let draft = report
                    .at(site, format!("{who} runs `{called}`: the replicas part here"))
                    .why("nothing makes the replicas equal again; they train different models")
                    .help("let every rank do it, or broadcast the result to all ranks");
                if site != event.site {
                    draft.related(event.site, "it is run here");
                }
            }
        }
    }
}

/// The receiver is a wrapped model, or what trains one.
fn updates_a_replica(program: &Program<'_>, event: &Event<'_>, call: &Call<'_>) -> bool {
    let Some(receiver) = call.receiver.as_ref() else { return false };
    match call.role {
        Role::OptimizerStep | Role::SchedulerStep | Role::FusedStep => {
            program.wraps_with(Wrapper::Ddp) && event.modes.grad
        }
        _ => receiver.terms().any(|term| {
            let wrapper = program.wrapper_of(term).map(|(id, _)| id);
            let around = wrapper.or_else(|| wrapper_around(program, event, term));
            around.is_some_and(|id| program.wrapper_kind(id) == Some(Wrapper::Ddp))
        }),
    }
}

/// The wrapper that already holds a module when the event happens.
fn wrapper_around(
    program: &Program<'_>,
    event: &Event<'_>,
    term: crate::analysis::Term,
) -> Option<ObjectId> {
    let module = program.object_of(term)?;
    let module = program.term_of(module.id);
    program
        .objects()
        .iter()
        .find(|o| {
            program.wrapper_kind(o.id).is_some()
                && o.event.is_some_and(|made| made < event.id)
                && program.wrapped_module(o.id).is_some_and(|m| m.terms().any(|t| t == module))
        })
        .map(|o| o.id)
}

/// A broadcast behind it that every rank runs.
fn is_mended(program: &Program<'_>, event: &Event<'_>) -> bool {
    program.calls(Role::Collective).any(|(later, call)| {
        later.id > event.id
            && call.row.and_then(|r| r.kind) == Some(CollectiveKind::Broadcast)
            && program.reach(later.path) == Reach::Every
    })
}

/// The other ranks do the same in another arm.
fn others_do_too(program: &Program<'_>, event: &Event<'_>, role: Role) -> bool {
    let mine = program.runs_on(event.path).map(|r| r != Some(false));
    program.calls(role).any(|(other, _)| {
        let theirs = program.runs_on(other.path).map(|r| r != Some(false));
        other.id != event.id
            && other.loops == event.loops
            && mine.iter().zip(theirs).all(|(a, b)| *a != b)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_optimizer_step_under_a_guard_counts() {
        check_files(&[
            (
                "step.py",
                "
def update(opt, rank):
    if rank == 0:
        opt.step()  # ~ rank-divergent-update: rank 0 alone
    opt.zero_grad()
",
            ),
            (
                "main.py",
                "
import torch
import torch.distributed as dist
from step import update
if __name__ == '__main__':
    dist.init_process_group('nccl')
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(2, 2))
    opt = torch.optim.SGD(model.parameters(), 0.1)
    for _ in range(3):
        model(torch.ones(2)).sum().backward()
        update(opt, dist.get_rank())
",
            ),
        ]);
    }

    #[test]
    fn a_load_before_the_wrap_is_silent() {
        check_python(
            "
import torch
import torch.distributed as dist
dist.init_process_group('nccl')
model = torch.nn.Linear(2, 2)
if dist.get_rank() == 0:
    model.load_state_dict(torch.load('a.pt', map_location='cpu'))
model = torch.nn.parallel.DistributedDataParallel(model)
for _ in range(3):
    model(torch.ones(2)).sum().backward()
",
        );
    }

    #[test]
    fn a_load_that_is_broadcast_is_silent() {
        check_python(
            "
import torch
import torch.distributed as dist
dist.init_process_group('nccl')
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(2, 2))
if dist.get_rank() == 0:
    model.module.load_state_dict(torch.load('a.pt', map_location='cpu'))
for p in model.parameters():
    dist.broadcast(p.data, src=0)
for _ in range(3):
    model(torch.ones(2)).sum().backward()
",
        );
    }
}
