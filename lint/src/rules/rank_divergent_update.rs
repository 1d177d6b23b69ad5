use crate::analysis::facts::Wrapper;
use crate::analysis::{Call, Event, ObjectId, Reach, TermKind, Value};
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
        Role::InitParameter,
        Role::CallsArgument,
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
                let (alone, who) = match reach {
                    Reach::Main => ("rank 0 alone runs", "rank 0"),
                    _ => ("only some ranks run", "they"),
                };
                let site = program.guarded_site(event);
                let step = program.step_text(event.id, site);
                let draft = report
                    .at(
                        site,
                        format!(
                            "{alone} `{called}`: the replicas part here ({who}: {step}; the other \
                             ranks: nothing of the kind)"
                        ),
                    )
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
        // `model.apply(init_weights)`
        Role::CallsArgument if !initialises(program, call) => false,
        Role::OptimizerStep | Role::SchedulerStep | Role::FusedStep => {
            program.wraps_with(Wrapper::Ddp) && event.modes.grad
        }
        Role::InitParameter => {
            program.language == Language::Rust && is_variable_of_wrapper(program, receiver)
        }
        _ => receiver.terms().any(|term| {
            let wrapper = match *program.terms().kind(term) {
                TermKind::Inner(id) => Some(id),
                _ => program.wrapper_of(term).map(|(id, _)| id),
            };
            let around = wrapper.or_else(|| wrapper_around(program, event, term));
            around.is_some_and(|id| program.wrapper_kind(id) == Some(Wrapper::Ddp))
        }),
    }
}

/// tch: one of the variables of the store that a wrapper lends.
fn is_variable_of_wrapper(program: &Program<'_>, value: &Value) -> bool {
    [Role::Parameters, Role::NamedParameters].iter().any(|&role| {
        program.calls_behind(value, role).iter().any(|(_, call)| {
            let store = call.receiver.as_ref().and_then(Value::single);
            let of = store.and_then(|store| program.attribute_now(store, "<of>"));
            of.is_some_and(|of| {
                of.terms().any(|t| matches!(program.wrapper_of(t), Some((_, Wrapper::Ddp))))
            })
        })
    })
}

/// `model.apply(f)`, where `f` draws parameters anew.
fn initialises(program: &Program<'_>, call: &Call<'_>) -> bool {
    let is_apply = call.name.is_some_and(|n| n.ends_with("Module.apply"));
    let given = call.arguments.first().and_then(|a| a.value.single());
    let Some(TermKind::Function { function, .. }) = given.map(|t| program.terms().kind(t)) else {
        return false;
    };
    is_apply
        && program
            .calls(Role::InitParameter)
            .any(|(event, _)| program.frame(event.frame).function == Some(*function))
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

    #[test]
    fn a_state_loaded_by_one_rank_counts() {
        check_python(
            r#"
import os
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP
class T:
    def __init__(self, g):
        self.rank = dist.get_rank()
        self.core = torch.nn.Linear(8, 8).cuda()
        self.net = DDP(self.core, device_ids=[g])
        self.resume()
    def resume(self):
        if self.rank == 0:
            state = torch.load("w.pt", map_location="cpu")
            self.core.load_state_dict(state)  # ~ rank-divergent-update
    def fit(self):
        opt = torch.optim.SGD(self.net.parameters(), 0.1)
        for i in range(100):
            loss = self.net(torch.randn(4, 8).cuda()).pow(2).mean()
            opt.zero_grad(); loss.backward(); opt.step()
if __name__ == "__main__":
    dist.init_process_group("nccl")
    g = int(os.environ["LOCAL_RANK"])
    torch.cuda.set_device(g)
    torch.manual_seed(dist.get_rank())
    T(g).fit()
"#,
        );
    }

    #[test]
    fn weights_drawn_anew_by_one_rank_count() {
        check_python(
            r#"
import os
import torch
import torch.nn as nn
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP
def weights(m):
    if isinstance(m, nn.Linear):
        nn.init.xavier_uniform_(m.weight)
def main():
    dist.init_process_group("nccl")
    rank, g = dist.get_rank(), int(os.environ["LOCAL_RANK"])
    torch.cuda.set_device(g)
    torch.manual_seed(rank)
    net = nn.Sequential(nn.Linear(8, 8)).cuda()
    net = DDP(net, device_ids=[g])
    if rank == 0:
        net.module.apply(weights)  # ~ rank-divergent-update
    opt = torch.optim.SGD(net.parameters(), 0.1)
    for i in range(100):
        loss = net(torch.randn(4, 8).cuda()).pow(2).mean()
        opt.zero_grad(); loss.backward(); opt.step()
if __name__ == "__main__":
    main()
"#,
        );
    }

    #[test]
    fn a_helper_that_returns_early_counts() {
        check_files(&[
            (
                "restore.py",
                r#"
import torch
def restore(model, path, rank):
    if rank != 0:
        return
    model.load_state_dict(torch.load(path, map_location="cpu"))  # ~ rank-divergent-update
"#,
            ),
            (
                "main.py",
                r#"
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP
from restore import restore
def main():
    dist.init_process_group("nccl")
    net = DDP(torch.nn.Linear(4, 4).cuda())
    restore(net, "w.pt", dist.get_rank())
    for _ in range(10):
        net(torch.randn(2, 4).cuda()).mean().backward()
if __name__ == "__main__":
    main()
"#,
            ),
        ]);
    }

    #[test]
    fn a_state_that_is_broadcast_is_silent() {
        check_python(
            r#"
import os
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP
def main():
    dist.init_process_group("nccl")
    rank, g = dist.get_rank(), int(os.environ["LOCAL_RANK"])
    torch.cuda.set_device(g)
    torch.manual_seed(rank)
    net = DDP(torch.nn.Linear(8, 8).cuda(), device_ids=[g])
    if rank == 0:
        net.module.load_state_dict(torch.load("w.pt", map_location="cpu"))
    for p in net.parameters():
        dist.broadcast(p.data, 0)
    opt = torch.optim.SGD(net.parameters(), 0.1)
    for i in range(100):
        loss = net(torch.randn(4, 8).cuda()).pow(2).mean()
        opt.zero_grad(); loss.backward(); opt.step()
main()
"#,
        );
    }

    #[test]
    fn an_early_return_round_the_step_counts() {
        check_python(
            "
import os
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset
class Agent:
    def __init__(self):
        self.rank = dist.get_rank()
        self.net = DDP(nn.Linear(4, 1).cuda())
        self.opt = torch.optim.Adam(self.net.parameters())
    def learn(self, x):
        self.opt.zero_grad()
        self.net(x).mean().backward()
        self.apply()
    def apply(self):
        if self.rank != 0:
            return
        self.opt.step()  # ~ rank-divergent-update
dist.init_process_group('nccl')
torch.cuda.set_device(int(os.environ['LOCAL_RANK']))
agent = Agent()
for _ in range(10):
    agent.learn(torch.rand(2, 4, device='cuda'))
",
        );
        check_python(
            "
import os
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset
class Agent:
    def __init__(self):
        self.rank = dist.get_rank()
        self.net = DDP(nn.Linear(4, 1).cuda())
        self.opt = torch.optim.Adam(self.net.parameters())
    def learn(self, x):
        self.opt.zero_grad()
        self.net(x).mean().backward()
        self.apply()
    def apply(self):
        self.opt.step()
dist.init_process_group('nccl')
torch.cuda.set_device(int(os.environ['LOCAL_RANK']))
agent = Agent()
for _ in range(10):
    agent.learn(torch.rand(2, 4, device='cuda'))
",
        );
    }
}
