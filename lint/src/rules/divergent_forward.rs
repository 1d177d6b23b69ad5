use crate::analysis::facts::Wrapper;
use crate::analysis::{Event, ObjectId, Reach, Term, Via};
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
        let Via::Wrapper(wrapper) = forward.via else { continue };
        if program.wrapper_kind(wrapper) != Some(Wrapper::Ddp) || program.is_orphan(event) {
            continue;
        }
        let reach = program.reach(event.path);
        if matches!(reach, Reach::Every | Reach::Nobody) || in_every_arm(program, event, wrapper) {
            continue;
        }
        let trains = event.modes.grad && program.trained().contains(&event.id);
        let buffers = if syncs_buffers(program, wrapper) {
            has_buffers(program, wrapper)
        } else {
            Some(false)
        };
        let level = if trains || buffers == Some(true) { Level::Error } else { Level::Advice };
        let called = program.callee_text(event).unwrap_or("the wrapper");
        let who = match reach {
            Reach::Main => "rank 0 alone runs",
            Reach::LocalMain => "only the first rank of each node runs",
            _ => "only some ranks run",
        };
        let why = if trains {
            "its backward reduces gradients with all ranks, and the others never come"
        } else {
            "the forward of a wrapper broadcasts buffers: that pairs with another collective of \
             the other ranks, or hangs"
        };
        let receiver = program.receiver_text(event).unwrap_or("model");
        let help = match program.language {
            Language::Python => format!(
                "evaluate on every rank, or call `{receiver}.module(..)` in eval mode under no_grad"
            ),
            Language::Rust => "evaluate on every rank, or call `ddp.module()` under no_grad".into(),
        };
        let draft = report
            .at(
                event.site,
                format!("{who} the wrapped forward `{called}` ({})", trace(program, event)),
            )
            .level(level)
            .why(why)
            .help(help);
        let draft = match way_past_the_wrapper(program, event) {
            Some(edit) if !trains => {
                draft.unsafe_fix("call the module inside the wrapper", vec![edit])
            }
            _ => draft,
        };
        let tested = program
            .conditions(event.path)
            .find(|node| program.terms().taint(node.condition).has(crate::analysis::Taint::RANK));
        if let Some(node) = tested {
            draft.related(node.site, "the ranks part here");
        }
    }
}

/// What the ranks do from here on: those that run the forward, and the others.
fn trace(program: &Program<'_>, event: &Event<'_>) -> String {
    let next = program
        .calls(Role::Collective)
        .map(|(later, _)| later)
        .filter(|later| later.id > event.id && program.reach(later.path) == Reach::Every)
        .min_by_key(|later| later.id);
    let then = match next {
        Some(later) => {
            let name = program.callee_text(later).unwrap_or("a collective");
            format!("{name} in line {}", program.line_of(later.site))
        }
        None => "nothing more".to_owned(),
    };
    let called = program.callee_text(event).unwrap_or("the wrapper");
    let line = program.line_of(event.site);
    format!("they: {called} in line {line}, {then}; the other ranks: {then}")
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
