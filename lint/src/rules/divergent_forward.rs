use crate::analysis::facts::Wrapper;
use crate::analysis::{Event, ObjectId, Reach, SAMPLES, Taint, Term, Via};
use crate::model::ExprKind;
use crate::prelude::*;
use crate::table::{Flag, Role};

declare_rule! {
    /// Only some ranks run the forward of a `DistributedDataParallel` model.
    ///
    /// The wrapper's forward and backward are collectives. With gradients the other ranks wait
    /// for ever. Under `no_grad` a model with buffers (BatchNorm) still broadcasts them: the
    /// broadcast pairs with whatever the others call next. Rank-0 validation through the
    /// wrapper therefore aborts, hangs at the next barrier, or passes by luck (measured).
    /// SyncBatchNorm in training mode waits for the other ranks even in `model.module(x)`.
    ///
    /// ```python bad
    /// import torch
    /// import torch.distributed as dist
    /// from torch.nn.parallel import DistributedDataParallel as DDP
    ///
    /// dist.init_process_group("gloo")
    /// model = DDP(torch.nn.BatchNorm1d(8))
    /// if dist.get_rank() == 0:
    ///     with torch.no_grad():
    ///         model(torch.ones(2, 8))  # ~ divergent-forward
    /// ```
    /// ```python fixed
    /// import torch
    /// import torch.distributed as dist
    /// from torch.nn.parallel import DistributedDataParallel as DDP
    ///
    /// dist.init_process_group("gloo")
    /// model = DDP(torch.nn.BatchNorm1d(8))
    /// if dist.get_rank() == 0:
    ///     with torch.no_grad():
    ///         model.module(torch.ones(2, 8))
    /// ```
    /// ```rust bad
    /// use tch::nn::{self, ModuleT};
    /// use tch_ddp::{Ddp, Launch, ProcessGroup};
    ///
    /// fn main() -> anyhow::Result<()> {
    ///     let group = ProcessGroup::init(&Launch::from_env()?, Default::default())?;
    ///     let vs = nn::VarStore::new(group.device());
    ///     let net = nn::seq_t().add(nn::batch_norm1d(&vs.root(), 8, Default::default()));
    ///     let ddp = Ddp::new(net, vs, &group, Default::default())?;
    ///     if group.is_main() {
    ///         tch::no_grad(|| ddp.forward_t(&tch::Tensor::new(), false)); //~ divergent-forward
    ///     }
    ///     Ok(())
    /// }
    /// ```
    /// ```rust fixed
    /// use tch::nn::{self, ModuleT};
    /// use tch_ddp::{Ddp, Launch, ProcessGroup};
    ///
    /// fn main() -> anyhow::Result<()> {
    ///     let group = ProcessGroup::init(&Launch::from_env()?, Default::default())?;
    ///     let vs = nn::VarStore::new(group.device());
    ///     let net = nn::seq_t().add(nn::batch_norm1d(&vs.root(), 8, Default::default()));
    ///     let ddp = Ddp::new(net, vs, &group, Default::default())?;
    ///     if group.is_main() {
    ///         tch::no_grad(|| ddp.module().forward_t(&tch::Tensor::new(), false));
    ///     }
    ///     Ok(())
    /// }
    /// ```
    ///
    /// # Known limits
    /// Whether a model has buffers is known where its layers are seen; else it is advice.
    pub static RULE = {
        name: "divergent-forward",
        level: Level::Error,
        harm: Harm::Hang,
        tier: 1,
        languages: BOTH,
        fix: FixKind::Unsafe,
        check,
    };
}

fn check(program: &Program<'_>, report: &mut Report<'_>) {
    for (event, forward) in program.forwards() {
        let (Via::Wrapper(wrapper) | Via::Inner(wrapper) | Via::Alias(wrapper)) = forward.via
        else {
            continue;
        };
        if program.wrapper_kind(wrapper) != Some(Wrapper::Ddp) || !is_of_some(program, event) {
            continue;
        }
        if !matches!(forward.via, Via::Wrapper(_)) {
            if forward.method.is_none() && syncs_batches(program, event) {
                tell_inner(program, report, event);
            }
        } else if !in_every_arm(program, event, wrapper) {
            tell_wrapper(program, report, event, wrapper);
        }
    }
    for (event, _) in program.calls(Role::Backward) {
        let forward = program.reduced_by(event).map(|forward| program.event(forward));
        let on_all = forward.is_some_and(|f| program.reach(f.path) == Reach::Every);
        if on_all && is_of_some(program, event) && !others_reduce(program, event) {
            tell_backward(program, report, event);
        }
    }
}

/// Some ranks get there, others do not.
fn is_of_some(program: &Program<'_>, event: &Event<'_>) -> bool {
    !program.is_orphan(event) && !matches!(program.reach(event.path), Reach::Every | Reach::Nobody)
}

fn who(program: &Program<'_>, event: &Event<'_>) -> &'static str {
    match program.reach(event.path) {
        Reach::Main => "rank 0 alone runs",
        Reach::LocalMain => "only the first rank of each node runs",
        _ => "only some ranks run",
    }
}

fn tell_wrapper(
    program: &Program<'_>,
    report: &mut Report<'_>,
    event: &Event<'_>,
    wrapper: ObjectId,
) {
    let trains = event.modes.grad && program.trained().contains(&event.id);
    let buffers =
        if syncs_buffers(program, wrapper) { has_buffers(program, wrapper) } else { Some(false) };
    let level = if trains || buffers == Some(true) { Level::Error } else { Level::Advice };
    let called = program.callee_text(event).unwrap_or("the wrapper");
    let why = if trains {
        "its backward reduces gradients with all ranks, and the others never come"
    } else {
        "the forward of a wrapper broadcasts buffers: that pairs with another collective of the \
         other ranks, or hangs"
    };
    let receiver = program.receiver_text(event).unwrap_or("model");
    let help = match program.language {
        Language::Python => format!(
            "evaluate on every rank, or call `{receiver}.module(..)` in eval mode under no_grad"
        ),
        Language::Rust => "evaluate on every rank, or call `ddp.module()` under no_grad".into(),
    };
    let (who, trace) = (who(program, event), trace(program, event));
    let draft = report
        .at(event.site, format!("{who} the wrapped forward `{called}` ({trace})"))
        .level(level)
        .why(why)
        .help(help);
    let draft = match way_past_the_wrapper(program, event) {
        Some(edit) if !trains => draft.unsafe_fix("call the module inside the wrapper", vec![edit]),
        _ => draft,
    };
    tell_test(program, draft, event);
}

fn tell_inner(program: &Program<'_>, report: &mut Report<'_>, event: &Event<'_>) {
    let called = program.callee_text(event).unwrap_or("the module");
    let (who, trace) = (who(program, event), trace(program, event));
    let draft = report
        .at(event.site, format!("{who} `{called}` with SyncBatchNorm in training mode ({trace})"))
        .why(
            "SyncBatchNorm exchanges statistics with all ranks, inside the wrapper or not: it \
             waits for the others",
        )
        .help("evaluate on every rank, or call `eval()` on the module first");
    tell_test(program, draft, event);
}

fn tell_backward(program: &Program<'_>, report: &mut Report<'_>, event: &Event<'_>) {
    let called = program.callee_text(event).unwrap_or("backward");
    let (who, trace) = (who(program, event), trace(program, event));
    let draft = report
        .at(event.site, format!("{who} `{called}` ({trace})"))
        .why("it reduces gradients with all ranks, and the others never come")
        .help("run the backward on every rank; a rank without a loss can use `0 * outputs.sum()`");
    tell_test(program, draft, event);
}

fn tell_test(program: &Program<'_>, draft: Draft<'_>, event: &Event<'_>) {
    let of_rank = |condition| program.terms().taint(condition).has(Taint::RANK);
    if let Some(node) = program.conditions(event.path).find(|node| of_rank(node.condition)) {
        draft.related(node.site, "the ranks part here");
    }
}

/// SyncBatchNorm is part of the model, and nothing put it into eval mode so far.
fn syncs_batches(program: &Program<'_>, event: &Event<'_>) -> bool {
    let before = |role| program.calls(role).any(|(other, _)| other.id < event.id);
    before(Role::ConvertSyncBatchNorm) && !before(Role::EvalMode)
}

/// The other ranks run a backward in another arm.
fn others_reduce(program: &Program<'_>, event: &Event<'_>) -> bool {
    let runs = |event: &Event<'_>| program.runs_on(event.path).map(|r| r != Some(false));
    let mine = runs(event);
    program.calls(Role::Backward).any(|(other, _)| {
        other.id != event.id
            && other.loops == event.loops
            && mine.iter().zip(runs(other)).all(|(a, b)| *a != b)
    })
}

/// What the ranks do from here on: those that run the forward, and the others.
fn trace(program: &Program<'_>, event: &Event<'_>) -> String {
    let runs = program.runs_on(event.path);
    let one = |wanted: &dyn Fn(Option<bool>) -> bool| {
        runs.iter().zip(SAMPLES).find(|(runs, _)| wanted(**runs)).map_or(SAMPLES[0], |(_, s)| s)
    };
    let (does, does_not) = (one(&|r| r != Some(false)), one(&|r| r == Some(false)));
    let (mine, theirs) = program.sequences(event.id, (does, does_not));
    let who = if does == SAMPLES[0] && runs[1..].iter().all(|r| *r == Some(false)) {
        "rank 0"
    } else {
        "they"
    };
    let told = |steps| program.sequence_text(steps, event.site);
    format!("{who}: {}; the other ranks: {}", told(&mine), told(&theirs))
}

/// The edit that calls the module inside: `model.module(x)`, `ddp.module().forward_t(x, false)`.
fn way_past_the_wrapper(program: &Program<'_>, event: &Event<'_>) -> Option<Edit> {
    let ExprKind::Call { callee, .. } = &event.expr?.kind else { return None };
    let (after, inserted) = match (program.language, &callee.kind) {
        (Language::Python, ExprKind::Name(_) | ExprKind::Attribute { .. }) => {
            (callee.span.end, ".module")
        }
        (Language::Rust, ExprKind::Attribute { value, name, .. })
            if matches!(&**name, "forward" | "forward_t") =>
        {
            (value.span.end, ".module()")
        }
        _ => return None,
    };
    let site = Site { file: event.site.file, span: Span::new(after, after) };
    Some(Edit { site, replacement: inserted.to_owned() })
}

/// Other ranks run the same wrapper's forward in another arm.
fn in_every_arm(program: &Program<'_>, event: &Event<'_>, wrapper: ObjectId) -> bool {
    let mine = program.runs_on(event.path).map(|r| r != Some(false));
    let mut all = mine;
    for (other, forward) in program.forwards() {
        let near = other.id != event.id
            && same_loops(program, other, event)
            && forward.via == Via::Wrapper(wrapper)
            && other.modes.grad == event.modes.grad;
        if near {
            let theirs = program.runs_on(other.path).map(|r| r != Some(false));
            let apart = mine.iter().zip(theirs).all(|(a, b)| !(*a && b));
            if apart {
                for (slot, runs) in all.iter_mut().zip(theirs) {
                    *slot |= runs;
                }
            }
        }
    }
    all == [true; 4]
}

/// The same loops stand around both, whichever call led into them.
fn same_loops(program: &Program<'_>, a: &Event<'_>, b: &Event<'_>) -> bool {
    let of = |event: &Event<'_>| program.loops(event.loops).map(|(_, node)| node.site);
    a.loops == b.loops || of(a).eq(of(b))
}

/// The wrapper broadcasts buffers in its forward.
fn syncs_buffers(program: &Program<'_>, wrapper: ObjectId) -> bool {
    !program.object(wrapper).arguments.iter().any(|a| {
        a.name.is_some_and(|n| matches!(&*n, "broadcast_buffers" | "forward_sync_buffers"))
            && a.value.single() == Some(program.terms().no)
    })
}

/// Whether the wrapped module holds buffers; `None` where it is not known.
fn has_buffers(program: &Program<'_>, wrapper: ObjectId) -> Option<bool> {
    let module = program.wrapped_module(wrapper)?.single()?;
    holds_buffers(program, module, 8)
}

fn holds_buffers(program: &Program<'_>, module: Term, depth: u32) -> Option<bool> {
    let object = program.object_of(module)?;
    if object.row.is_some_and(|row| row.has(Flag::Buffers)) {
        return Some(true);
    }
    if depth == 0 {
        return None;
    }
    let mut known = true;
    let mut parts: Vec<Term> =
        program.contents(module).iter().flat_map(|v| v.terms().collect::<Vec<_>>()).collect();
    parts.extend(
        program.stores_on(module).flat_map(|(_, _, value)| value.terms().collect::<Vec<_>>()),
    );
    let registers = program
        .calls(Role::RegisterBuffer)
        .any(|(_, call)| call.receiver.as_ref().is_some_and(|r| r.terms().any(|t| t == module)));
    if registers {
        return Some(true);
    }
    for part in parts {
        if !program.is_module(part) {
            continue;
        }
        match holds_buffers(program, part, depth - 1) {
            Some(true) => return Some(true),
            Some(false) => {}
            None => known = false,
        }
    }
    known.then_some(false)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn validation_on_rank_0_in_another_file_counts() {
        check_files(&[
            (
                "val.py",
                "
import torch
@torch.no_grad()
def validate(net, loader):
    net.eval()
    for x in loader:
        net(x)  # ~ divergent-forward: rank 0 alone
",
            ),
            (
                "main.py",
                "
import torch
import torch.distributed as dist
from val import validate
class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.body = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.BatchNorm1d(2))
    def forward(self, x):
        return self.body(x)
if __name__ == '__main__':
    dist.init_process_group('nccl')
    net = torch.nn.parallel.DistributedDataParallel(Net().cuda())
    for epoch in range(3):
        net(torch.ones(2, 2)).sum().backward()
        if dist.get_rank() == 0:
            validate(net, [1])
        dist.barrier()
",
            ),
        ]);
    }

    #[test]
    fn without_buffers_it_is_advice() {
        check_python(
            "
import torch
import torch.distributed as dist
dist.init_process_group('nccl')
net = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(2, 2).cuda())
for epoch in range(3):
    net(torch.ones(2, 2)).sum().backward()
    if dist.get_rank() == 0:
        with torch.no_grad():
            net(torch.ones(2, 2))  # ~ divergent-forward
",
        );
    }

    #[test]
    fn the_inner_module_is_silent() {
        check_python(
            "
import torch
import torch.distributed as dist
dist.init_process_group('nccl')
net = torch.nn.parallel.DistributedDataParallel(torch.nn.BatchNorm1d(2).cuda())
for epoch in range(3):
    net(torch.ones(2, 2)).sum().backward()
    if dist.get_rank() == 0:
        net.eval()
        with torch.no_grad():
            net.module(torch.ones(2, 2))
        net.train()
",
        );
    }

    #[test]
    fn both_arms_that_train_are_silent() {
        check_python(
            "
import torch
import torch.distributed as dist
dist.init_process_group('nccl')
net = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(2, 2).cuda())
def train(net, log):
    loss = net(torch.ones(2, 2)).sum()
    loss.backward()
    if log is not None:
        print(loss)
for epoch in range(3):
    if dist.get_rank() == 0:
        train(net, 'log')
    else:
        train(net, None)
",
        );
    }

    #[test]
    fn synced_batch_norm_in_training_mode_counts_past_the_wrapper_too() {
        check_python(
            "
import torch
import torch.distributed as dist
dist.init_process_group('nccl')
net = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.BatchNorm1d(2)).cuda()
net = torch.nn.SyncBatchNorm.convert_sync_batchnorm(net)
model = torch.nn.parallel.DistributedDataParallel(net)
for epoch in range(3):
    model(torch.ones(2, 2)).sum().backward()
    if dist.get_rank() == 0:
        with torch.no_grad():
            model.module(torch.ones(2, 2))  # ~ divergent-forward: SyncBatchNorm in training mode
model.eval()
if dist.get_rank() == 0:
    with torch.no_grad():
        model.module(torch.ones(2, 2))
",
        );
    }

    #[test]
    fn a_backward_of_rank_0_alone_counts() {
        check_python(
            "
import torch
import torch.distributed as dist
dist.init_process_group('nccl')
rank = dist.get_rank()
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(2, 2).cuda())
for step in range(3):
    loss = model(torch.ones(2, 2)).sum()
    if rank == 0:
        loss.backward()  # ~ divergent-forward: rank 0 alone runs `loss.backward`
for step in range(3):
    loss = model(torch.ones(2, 2)).sum()
    if rank == 0:
        loss.backward()
    else:
        (0 * loss).backward()
",
        );
    }

    #[test]
    fn samples_drawn_under_a_computed_rank_count() {
        check_files(&[
            (
                "gan.py",
                r#"
import argparse
import torch
import torch.nn as nn
import torch.distributed as dist
import torch.multiprocessing as mp
from sampler import make_grid
def worker(gpu, args):
    rank = args.nr * args.gpus + gpu
    world = args.gpus * args.nodes
    dist.init_process_group("nccl", init_method=args.url, world_size=world, rank=rank)
    torch.cuda.set_device(gpu)
    torch.manual_seed(rank)
    G = nn.Sequential(nn.Linear(16, 32), nn.BatchNorm1d(32), nn.ReLU(), nn.Linear(32, 64)).cuda()
    G = nn.parallel.DistributedDataParallel(G, device_ids=[gpu])
    opt = torch.optim.Adam(G.parameters(), 2e-4)
    for it in range(args.iters):
        loss = G(torch.randn(8, 16).cuda()).pow(2).mean()
        opt.zero_grad()
        loss.backward()
        opt.step()
        if it % 100 == 0:
            if rank == 0:
                torch.save(make_grid(G, 4), f"g{it}.pt")
            dist.barrier()
if __name__ == "__main__":
    p = argparse.ArgumentParser()
    p.add_argument("--nodes", type=int, default=1)
    p.add_argument("--nr", type=int, default=0)
    p.add_argument("--gpus", type=int, default=4)
    p.add_argument("--iters", type=int, default=1000)
    p.add_argument("--url", default="tcp://10.0.0.1:2222")
    a = p.parse_args()
    mp.spawn(worker, args=(a,), nprocs=a.gpus)
"#,
            ),
            (
                "sampler.py",
                r#"
import torch
def make_grid(generator, n):
    generator.eval()
    with torch.inference_mode():
        z = torch.randn(n, 16, device="cuda")
        imgs = generator(z)  # ~ divergent-forward
    generator.train()
    return imgs.cpu()
"#,
            ),
        ]);
    }

    #[test]
    fn an_evaluation_by_all_ranks_is_silent() {
        check_python(
            r#"
import os
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP
def evaluate(net, rank):
    net.eval()
    with torch.no_grad():
        v = net(torch.randn(4, 4).cuda()).mean()
    dist.all_reduce(v)
    net.train()
    if rank != 0:
        return {}
    return {"v": v.item() / dist.get_world_size()}
def main():
    dist.init_process_group("nccl")
    g = int(os.environ["LOCAL_RANK"])
    rank = int(os.environ["RANK"])
    torch.cuda.set_device(g)
    torch.manual_seed(rank)
    net = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.BatchNorm1d(4))
    net = DDP(net.cuda(), device_ids=[g])
    opt = torch.optim.AdamW(net.parameters())
    for step in range(100):
        loss = net(torch.randn(4, 4).cuda()).pow(2).mean()
        opt.zero_grad(); loss.backward(); opt.step()
        stats = evaluate(net, rank)
        if stats:
            print(stats["v"])
if __name__ == "__main__":
    main()
"#,
        );
    }
}
