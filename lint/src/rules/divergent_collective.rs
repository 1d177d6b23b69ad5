use crate::analysis::rankflow::{Ahead, Divergence};
use crate::analysis::{Event, Reach, Sample, Taint};
use crate::prelude::*;
use crate::table::Role;

declare_rule! {
    /// Some ranks run a collective that others do not run.
    ///
    /// Every rank of a group must call the same collectives in the same order. A collective
    /// that only some reach hangs until the timeout (30 minutes by default), or pairs with
    /// another one and gives a wrong result without a word (measured: an `all_reduce` under a
    /// guard paired with a later one and gave 10 + 2 = 12).
    ///
    /// The check compares what each class of ranks runs, callees included. Arms that call the
    /// same are fine; so are exits by an error, which end the whole job.
    ///
    /// ```python bad
    /// import torch
    /// import torch.distributed as dist
    ///
    /// dist.init_process_group("gloo")
    /// total = torch.ones(1)
    /// if dist.get_rank() == 0:
    ///     dist.all_reduce(total)  # ~ divergent-collective
    /// ```
    /// ```python good
    /// import torch
    /// import torch.distributed as dist
    ///
    /// dist.init_process_group("gloo")
    /// total = torch.ones(1)
    /// dist.all_reduce(total)
    /// if dist.get_rank() == 0:
    ///     print(total)
    /// ```
    /// ```rust bad
    /// use tch_ddp::{Launch, ProcessGroup};
    ///
    /// fn main() -> anyhow::Result<()> {
    ///     let group = ProcessGroup::init(&Launch::from_env()?, Default::default())?;
    ///     if group.is_main() {
    ///         group.barrier()?; //~ divergent-collective
    ///     }
    ///     Ok(())
    /// }
    /// ```
    /// ```rust good
    /// use tch_ddp::{Launch, ProcessGroup};
    ///
    /// fn main() -> anyhow::Result<()> {
    ///     let group = ProcessGroup::init(&Launch::from_env()?, Default::default())?;
    ///     if group.is_main() {
    ///         println!("ready");
    ///     }
    ///     group.barrier()?;
    ///     Ok(())
    /// }
    /// ```
    ///
    /// # Known limits
    /// Calls that lead nowhere do no collective, and unknown conditions are the same on all
    /// ranks. Collectives of sub-groups whose ranks are not written down are not compared.
    pub static RULE = {
        name: "divergent-collective",
        level: Level::Error,
        harm: Harm::Hang,
        tier: 1,
        languages: BOTH,
        fix: FixKind::No,
        check,
    };
}

fn check(program: &Program<'_>, report: &mut Report<'_>) {
    if !program.is_distributed() || starts_on_some(program) {
        return;
    }
    for divergence in program.divergences() {
        tell(program, report, &divergence);
    }
}

fn tell(program: &Program<'_>, report: &mut Report<'_>, divergence: &Divergence) {
    let event = program.event(divergence.event);
    let site = match divergence.undecided {
        // Some ranks left before.
        Some(parted) if !holds(program, parted, event) => program.head_of(parted),
        _ => program.guarded_site(event),
    };
    let (does, does_not) = match divergence.undecided {
        Some(_) => ("some ranks".to_owned(), "the other ranks".to_owned()),
        None => (
            ranks(divergence.does, divergence.does_not),
            ranks(divergence.does_not, divergence.does),
        ),
    };
    let name = program.step_name(divergence.event);
    let shown = |steps: &[Ahead]| program.sequence_text(steps, site);
    let draft = report
        .at(
            site,
            format!(
                "only {does} {} `{name}` here ({does}: {}; {does_not}: {})",
                if does.starts_with("rank ") { "runs" } else { "run" },
                shown(&divergence.trace),
                shown(&divergence.other_trace),
            ),
        )
        .why(consequence(program, divergence, site, (&does, &does_not)))
        .help("let every rank call it, and test the rank around what is done with the result");
    let tested = program
        .conditions(event.path)
        .find(|node| program.terms().taint(node.condition).has(Taint::RANK))
        .map(|node| node.site)
        .or(divergence.undecided);
    let draft =
        if site == event.site { draft } else { draft.related(event.site, "it is run here") };
    let draft = match tested {
        Some(test) if test != event.site => draft.related(test, "the ranks part here"),
        _ => draft,
    };
    if let Some(instead) = divergence.instead {
        draft.related(program.event(instead).site, format!("{does_not} run this instead"));
    }
}

/// The event, or the call that leads to it, stands inside a statement.
fn holds(program: &Program<'_>, statement: Site, event: &Event<'_>) -> bool {
    let inside = |site: Site| site.file == statement.file && statement.span.contains(site.span);
    let mut at = Some(event.frame);
    let mut found = inside(event.site);
    while let Some(frame) = at.filter(|_| !found).map(|frame| program.frame(frame)) {
        found = frame.call.is_some_and(inside);
        at = frame.caller;
    }
    found
}

/// Whether it hangs, or what it pairs with.
fn consequence(
    program: &Program<'_>,
    divergence: &Divergence,
    site: Site,
    (does, does_not): (&str, &str),
) -> String {
    let Some(instead) = divergence.instead else {
        return format!("{does_not} never call it: {does} wait until the timeout");
    };
    let (name, other) = (program.step_name(divergence.event), program.step_name(instead));
    let place = program.place_text(program.event(instead).site, site);
    if name == other {
        return format!(
            "it pairs with the `{other}` in {place} that {does_not} run meanwhile and gives a \
             wrong result, or hangs"
        );
    }
    format!(
        "meanwhile {does_not} run `{other}` in {place}: it hangs, or the two pair and give a \
         wrong result"
    )
}

/// Only some ranks join the group: the program gives ranks different roles.
fn starts_on_some(program: &Program<'_>) -> bool {
    program.calls(Role::InitGroup).any(|(event, _)| program.reach(event.path) != Reach::Every)
}

/// The class that a sample stands for, beside another.
fn ranks(of: Sample, beside: Sample) -> String {
    if of.world_size == of.local_world_size {
        return match (of.rank, beside.rank) {
            (0, _) => "rank 0".to_owned(),
            (_, 0) => "the other ranks".to_owned(),
            (rank, _) => format!("rank {rank} of {}", of.world_size),
        };
    }
    match (of.rank == 0, of.local_rank == 0, beside.local_rank == 0) {
        (true, _, true) => "rank 0 of the first node",
        (true, _, false) => "rank 0",
        (false, true, _) if beside.rank == 0 => "other nodes",
        (false, true, false) => "the first ranks of the nodes",
        _ => "the other ranks",
    }
    .to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_test_of_whether_there_are_ranks_is_silent() {
        check_python(
            "
import os, torch
import torch.distributed as dist
RANK = int(os.getenv('RANK', '-1'))
LOCAL_RANK = int(os.getenv('LOCAL_RANK', '-1'))
def train(device):
    cuda = device.type != 'cpu'
    net = torch.nn.Linear(2, 2).to(device)
    if cuda and RANK != -1:
        net = torch.nn.parallel.DistributedDataParallel(net, device_ids=[LOCAL_RANK])
    return net
def pick(name):
    return torch.device('cuda:0' if name else 'cpu')
if __name__ == '__main__':
    device = pick(os.getenv('DEVICE'))
    if LOCAL_RANK != -1:
        device = torch.device('cuda', LOCAL_RANK)
        torch.cuda.set_device(LOCAL_RANK)
        dist.init_process_group('nccl')
    train(device)
",
        );
    }

    #[test]
    fn a_collective_one_call_away_from_the_guard_counts() {
        check_files(&[
            (
                "log.py",
                "
import torch.distributed as dist
def report(value):
    dist.all_reduce(value)
    print(value)
",
            ),
            (
                "main.py",
                "
import torch
import torch.distributed as dist
from log import report
def is_chief():
    return dist.get_rank() == 0
if __name__ == '__main__':
    dist.init_process_group('nccl')
    for step in range(10):
        if is_chief() and step % 5 == 0:
            report(torch.ones(1))  # ~ divergent-collective: only rank 0 runs `all_reduce` here (rank 0: all_reduce in log.py:4; the other ranks: nothing more)
",
            ),
        ]);
    }

    #[test]
    fn an_early_return_counts() {
        check_python(
            "
import torch
import torch.distributed as dist
def gather(value):
    if dist.get_rank() != 0:
        return None
    dist.barrier()  # ~ divergent-collective
    return value
dist.init_process_group('nccl')
gather(torch.ones(1))
for _ in range(1):
    pass
",
        );
    }

    #[test]
    fn arms_that_call_the_same_are_silent() {
        check_python(
            "
import torch
import torch.distributed as dist
dist.init_process_group('nccl')
rank = dist.get_rank()
box = torch.zeros(1)
if rank == 0:
    box = torch.ones(1)
    dist.broadcast(box, src=0)
else:
    dist.broadcast(box, src=0)
for _ in range(2):
    pass
",
        );
    }

    #[test]
    fn rank_0_first_with_balanced_barriers_is_silent() {
        check_python(
            "
from contextlib import contextmanager
import torch.distributed as dist
@contextmanager
def zero_first(rank):
    if rank not in (-1, 0):
        dist.barrier()
    yield
    if rank == 0:
        dist.barrier()
dist.init_process_group('nccl')
with zero_first(dist.get_rank()):
    data = open('x').read()
for _ in range(2):
    pass
",
        );
    }

    #[test]
    fn whether_it_is_distributed_at_all_is_no_rank_test() {
        check_python(
            "
import os, sys
import torch.distributed as dist
rank = int(os.environ.get('RANK', -1))
if rank != -1:
    dist.init_process_group('nccl')
    dist.barrier()
if rank == 0 and len(sys.argv) < 2:
    raise SystemExit('usage')
for _ in range(2):
    if dist.is_initialized():
        dist.barrier()
",
        );
    }

    #[test]
    fn each_guarded_collective_is_told() {
        check_rust(
            "
use tch_ddp::{Launch, ProcessGroup};
fn report(group: &ProcessGroup, total: &tch::Tensor) -> anyhow::Result<()> {
    if group.rank() != 0 {
        return Ok(());
    }
    group.all_reduce(total)?; //~ divergent-collective
    total.print();
    Ok(())
}
fn main() -> anyhow::Result<()> {
    let group = ProcessGroup::init(&Launch::from_env()?, Default::default())?;
    for epoch in 0..30 {
        report(&group, &tch::Tensor::from(1.0))?;
    }
    if group.is_main() {
        group.barrier()?; //~ divergent-collective
    }
    Ok(())
}
",
        );
    }

    #[test]
    fn loops_that_count_by_rank_are_run() {
        check_python(
            "
import torch
import torch.distributed as dist
def turns(world):
    for turn in range(world):
        if turn == dist.get_rank():
            print('my turn')
        dist.barrier()
dist.init_process_group('gloo')
rank, world = dist.get_rank(), dist.get_world_size()
turns(world)
for owner in range(world):
    if owner == rank:
        dist.barrier()
for owner in range(2):
    if owner == rank:
        dist.all_reduce(torch.ones(1))  # ~ divergent-collective
",
        );
    }

    #[test]
    fn a_number_of_runs_by_rank_counts() {
        check_rust(
            "
use tch_ddp::{Launch, ProcessGroup};
fn main() -> anyhow::Result<()> {
    let group = ProcessGroup::init(&Launch::from_env()?, Default::default())?;
    let times = if group.rank() == 0 { 2 } else { 1 };
    for _ in 0..times {
        group.barrier()?; //~ divergent-collective: rank 0 runs
    }
    Ok(())
}
",
        );
    }

    #[test]
    fn a_rank_tested_against_something_unknown_counts() {
        check_python(
            "
import argparse
import torch.distributed as dist
args = argparse.ArgumentParser().parse_args()
dist.init_process_group('gloo')
for _ in range(3):
    if dist.get_rank() == args.saver:
        dist.barrier()  # ~ divergent-collective: only some ranks
    # ddp-lint: uniform
    if dist.get_rank() == args.reader:
        dist.barrier()
",
        );
    }

    #[test]
    fn members_of_a_group_that_leave_each_other_alone_count() {
        check_python(
            "
import torch
import torch.distributed as dist
dist.init_process_group('gloo')
front = dist.new_group([0, 1])
rank = dist.get_rank()
if rank < 2:
    dist.all_reduce(torch.ones(1), group=front)
if rank == 1:
    dist.barrier(group=front)  # ~ divergent-collective
",
        );
    }

    #[test]
    fn a_sub_group_is_silent() {
        check_python(
            "
import torch
import torch.distributed as dist
dist.init_process_group('nccl')
evens = dist.new_group([0, 2])
if dist.get_rank() % 2 == 0:
    dist.all_reduce(torch.ones(1), group=evens)
for _ in range(2):
    pass
",
        );
    }

    #[test]
    fn what_follows_the_question_whether_the_group_is_there_runs() {
        check_python(
            "
import torch.distributed as dist
def setup():
    if dist.is_initialized():
        return
    dist.init_process_group('gloo')
    if dist.get_rank() == 0:
        dist.barrier()  # ~ divergent-collective
setup()
for _ in range(1):
    pass
",
        );
    }

    #[test]
    fn behind_a_decorator_for_rank_0_it_is_told_where_it_is_run() {
        check_python(
            "
import functools
import torch.distributed as dist
def main_only(body):
    @functools.wraps(body)
    def inner(*args, **kwargs):
        if dist.get_rank() == 0:
            return body(*args, **kwargs)
    return inner
@main_only
def report(text):
    dist.barrier()  # ~ divergent-collective
    print(text)
dist.init_process_group('gloo')
for step in range(3):
    report('here')
",
        );
    }

    #[test]
    fn what_accelerate_calls_the_main_process_is_rank_0() {
        check_python(
            "
import torch
from accelerate import Accelerator
accelerator = Accelerator()
loss = torch.ones(1)
if accelerator.is_main_process:
    print(accelerator.gather(loss))  # ~ divergent-collective: only rank 0 runs `gather`
if accelerator.process_index == 0:
    accelerator.wait_for_everyone()  # ~ divergent-collective
",
        );
    }

    #[test]
    fn parts_of_a_group_in_rust_count_for_their_members() {
        check_rust(
            "
use tch_ddp::{Launch, ProcessGroup};
fn main() -> anyhow::Result<()> {
    let group = ProcessGroup::init(&Launch::from_env()?, Default::default())?;
    let total = tch::Tensor::from(1.0);
    let front = group.subgroup(&[0, 1])?;
    if let Some(front) = &front {
        front.all_reduce(&total)?;
    }
    if group.rank() == 1 {
        if let Some(front) = &front {
            front.barrier()?; //~ divergent-collective
        }
    }
    Ok(())
}
",
        );
        check_rust(
            "
use tch_ddp::{Launch, ProcessGroup};
fn main() -> anyhow::Result<()> {
    let group = ProcessGroup::init(&Launch::from_env()?, Default::default())?;
    if group.rank() < 2 {
        group.subgroup(&[0, 1])?; //~ divergent-collective: `subgroup`
    }
    Ok(())
}
",
        );
    }

    #[test]
    fn a_metric_that_rank_0_alone_reports_counts() {
        check_files(&[
            (
                "metrics.py",
                "
import torch.distributed as dist
class Mean:
    def __init__(self):
        self.total = 0
    def add(self, value):
        self.total = self.total + value
    def value(self):
        dist.all_reduce(self.total)
        return self.total / dist.get_world_size()
",
            ),
            (
                "report.py",
                "
import torch.distributed as dist
def report(mean, epoch):
    if dist.get_rank():
        return
    print(epoch, mean.value().item())  # ~ divergent-collective
",
            ),
            (
                "main.py",
                r#"
import torch
import torch.distributed as dist
from metrics import Mean
from report import report
def main():
    dist.init_process_group("nccl")
    for epoch in range(3):
        mean = Mean()
        mean.add(torch.ones(1).cuda())
        report(mean, epoch)
if __name__ == "__main__":
    main()
"#,
            ),
        ]);
    }

    #[test]
    fn who_left_under_a_setting_is_kept_in_mind_where_the_setting_is_asked_again() {
        check_python(
            "
import argparse
import torch
import torch.distributed as dist
args = argparse.ArgumentParser().parse_args()
def evaluate(batches):
    if not args.sharded and dist.get_rank() != 0:
        return
    signal = torch.zeros(1)
    while True:
        if args.sharded:
            dist.broadcast(signal, src=0)
            if signal.item() == 0:
                break
        elif next(batches, None) is None:
            break
dist.init_process_group('gloo')
for epoch in range(args.epochs):
    evaluate(iter([]))
    if args.sharded or dist.get_rank() == 0:
        print('evaluated')
    dist.barrier()
",
        );
        check_python(
            "
import argparse
import torch
import torch.distributed as dist
args = argparse.ArgumentParser().parse_args()
def evaluate():
    if not args.sharded and dist.get_rank() != 0:
        return
    signal = torch.zeros(1)
    while True:
        dist.broadcast(signal, src=0)  # ~ divergent-collective: only rank 0 runs
        if signal.item() == 0:
            break
dist.init_process_group('gloo')
for epoch in range(args.epochs):
    evaluate()
    dist.barrier()
",
        );
    }

    #[test]
    fn settings_that_exclude_each_other_part_nobody() {
        check_python(
            "
import argparse
import torch.distributed as dist
args = argparse.ArgumentParser().parse_args()
def work():
    if args.mode == 'export' and dist.get_rank() == 0:
        return
    if args.mode == 'train':
        dist.barrier()
    if args.mode is None:
        dist.barrier()
dist.init_process_group('gloo')
work()
for step in range(args.steps):
    if args.limit and step == args.limit and dist.get_rank() != 0:
        break
    if args.limit is None:
        dist.barrier()
",
        );
        check_python(
            "
import argparse
import torch.distributed as dist
args = argparse.ArgumentParser().parse_args()
def work():
    if args.mode == 'export' and dist.get_rank() == 0:
        return
    if args.mode != 'train':
        dist.barrier()  # ~ divergent-collective
dist.init_process_group('gloo')
work()
for step in range(args.steps):
    print(step)
",
        );
    }

    #[test]
    fn a_switch_and_a_rank_part_members_of_a_group_in_rust() {
        check_rust(
            "
use tch_ddp::{Launch, ProcessGroup};
fn main() -> anyhow::Result<()> {
    let group = ProcessGroup::init(&Launch::from_env()?, Default::default())?;
    let quick = std::env::args().any(|a| a == \"--quick\");
    let all = group.subgroup(&(0..group.world_size()).collect::<Vec<_>>())?;
    if group.rank() != 0 && quick {
        return Ok(());
    }
    if let Some(all) = &all {
        if !quick {
            all.barrier()?;
        }
        all.barrier()?; //~ divergent-collective
    }
    Ok(())
}
",
        );
        check_rust(
            "
use tch_ddp::{Launch, ProcessGroup};
fn main() -> anyhow::Result<()> {
    let group = ProcessGroup::init(&Launch::from_env()?, Default::default())?;
    let quick = std::env::args().any(|a| a == \"--quick\");
    for epoch in 0..100 {
        if group.rank() != 0 && quick {
            continue;
        }
        while !quick && epoch > 3 {
            group.barrier()?;
        }
    }
    Ok(())
}
",
        );
    }
}
