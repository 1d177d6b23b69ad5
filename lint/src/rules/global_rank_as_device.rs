use rustc_hash::FxHashSet;

use crate::analysis::{Call, Event, FunctionRef, RankKind, Taint, Term, TermKind, Value};
use crate::prelude::*;
use crate::table::Role;

declare_rule! {
    /// The global rank is used as the index of a device.
    ///
    /// Ranks count over all nodes, devices on each: on the second node of 8 GPUs rank 8 asks
    /// for device 8, which is not there: `CUDA error: invalid device ordinal`.
    ///
    /// ```python bad
    /// import torch
    /// import torch.distributed as dist
    ///
    /// dist.init_process_group("nccl")
    /// torch.cuda.set_device(dist.get_rank())  # ~ global-rank-as-device
    /// ```
    /// ```python good
    /// import os
    /// import torch
    /// import torch.distributed as dist
    ///
    /// dist.init_process_group("nccl")
    /// torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    /// ```
    /// ```rust bad
    /// use tch::{Device, nn};
    ///
    /// fn main() -> anyhow::Result<()> {
    ///     let launch = tch_ddp::Launch::from_env()?;
    ///     let group = tch_ddp::ProcessGroup::init(&launch, Default::default())?;
    ///     let vs = nn::VarStore::new(Device::Cuda(launch.rank())); //~ global-rank-as-device
    ///     Ok(())
    /// }
    /// ```
    /// ```rust good
    /// use tch::nn;
    ///
    /// fn main() -> anyhow::Result<()> {
    ///     let launch = tch_ddp::Launch::from_env()?;
    ///     let group = tch_ddp::ProcessGroup::init(&launch, Default::default())?;
    ///     let vs = nn::VarStore::new(group.device());
    ///     Ok(())
    /// }
    /// ```
    ///
    /// # Known limits
    /// One finding for each function. The index that `mp.spawn` gives is the rank on its node,
    /// and in a program that starts its processes so, on one node, it is the global rank too:
    /// silent. So is `rank % device_count()`.
    pub static RULE = {
        name: "global-rank-as-device",
        level: Level::Error,
        harm: Harm::Crash,
        tier: 2,
        languages: BOTH,
        fix: FixKind::No,
        check,
    };
}

fn check(program: &Program<'_>, report: &mut Report<'_>) {
    if !program.is_distributed() {
        return;
    }
    let one_node = program.calls(Role::Spawn).next().is_some() && !program.shows_several_nodes();
    if one_node {
        return;
    }
    let mut told: FxHashSet<(FileId, Option<FunctionRef>)> = FxHashSet::default();
    for event in program.events() {
        let Some(call) = event.call() else { continue };
        if is_only_node(program, event)
            || program.runs_in_parent(event) && !program.frame(event.frame).orphan
            || !indices(program, call).iter().any(|i| is_global(program, i))
        {
            continue;
        }
        if told.insert((event.site.file, program.frame(event.frame).function)) {
            report
                .at(event.site, "the global rank chooses the device")
                .why("on the second node it is larger than the number of devices there")
                .help(match program.language {
                    Language::Python => {
                        "use the rank on the node: `int(os.environ[\"LOCAL_RANK\"])`"
                    }
                    Language::Rust => {
                        "use `group.device()`, or `Device::Cuda(launch.local_rank())`"
                    }
                });
        }
    }
}

/// Behind a test that the devices of this node are enough for the ranks.
fn is_only_node(program: &Program<'_>, event: &Event<'_>) -> bool {
    let counts = |kind: &TermKind| matches!(kind, TermKind::Rank(RankKind::DeviceCount));
    let ranks =
        |kind: &TermKind| matches!(kind, TermKind::Rank(RankKind::Rank | RankKind::WorldSize));
    program.tests(event.path, &|kind| match *kind {
        TermKind::Compare(_, a, b) => {
            program.mentions(a, &counts) && program.mentions(b, &ranks)
                || program.mentions(a, &ranks) && program.mentions(b, &counts)
        }
        _ => false,
    }) || program.runs_only_alone(event.path)
}

/// What a call takes for the index of a device.
fn indices(program: &Program<'_>, call: &Call<'_>) -> Vec<Value> {
    let given = |position, name| call.value_at(position, name).cloned().into_iter().collect();
    match call.role {
        Role::SetDevice => call.arguments.iter().take(1).map(|a| a.value.clone()).collect(),
        Role::MakeDevice => call.arguments.iter().map(|a| a.value.clone()).collect(),
        Role::Move => given(0, "device"),
        Role::MakeTensor | Role::Random => {
            call.argument("device").known().map(|a| a.value.clone()).into_iter().collect()
        }
        Role::WrapDdp => {
            let ids = call.argument("device_ids").known().and_then(|a| a.value.single());
            ids.map(|ids| program.contents(ids)).unwrap_or_default()
        }
        _ => Vec::new(),
    }
}

fn is_global(program: &Program<'_>, index: &Value) -> bool {
    // A rank within a group that is not known may be that on the node.
    let is_other = |term: Term| {
        matches!(program.terms().kind(term), TermKind::Opaque { .. })
            && program.terms().taint(term).has(Taint::RANK)
    };
    index.terms().any(|term| is_global_term(program, term)) && !index.terms().any(is_other)
}

fn is_global_term(program: &Program<'_>, term: Term) -> bool {
    match program.terms().kind(term) {
        TermKind::Rank(kind) => *kind == RankKind::Rank,
        TermKind::Text(parts) => parts.iter().any(|&part| is_global_term(program, part)),
        // `node_rank * devices + local_rank`.
        TermKind::Binary(..) => {
            let made_of_known = !program.mentions(term, &|kind| {
                matches!(kind, TermKind::Attribute(..) | TermKind::Parameter { .. })
            });
            made_of_known && program.terms().rank_kind(term) == Some(RankKind::Rank)
        }
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_rank_in_a_group_of_the_node_is_silent() {
        check_files(&[
            (
                "comm.py",
                "
import torch.distributed as dist
GROUP = None
def get_local_rank():
    if GROUP is None:
        return dist.get_rank()
    return dist.get_rank(group=GROUP)
",
            ),
            (
                "main.py",
                "
import os, torch
import torch.distributed as dist
import comm
def work():
    rank = comm.get_local_rank()
    torch.cuda.set_device(rank)
if __name__ == '__main__':
    dist.init_process_group('nccl')
    node = int(os.environ['NODE_RANK'])
    for index in range(2):
        group = dist.new_group(list(range(index * 8, index * 8 + 8)))
        if index == node:
            comm.GROUP = group
    work()
",
            ),
        ]);
    }

    #[test]
    fn a_rank_of_the_environment_through_objects_counts() {
        check_files(&[
            (
                "launch.py",
                "
import os
class Context:
    def __init__(self):
        self.rank = int(os.environ['RANK'])
        self.world_size = int(os.environ['WORLD_SIZE'])
",
            ),
            (
                "main.py",
                "
import torch
from launch import Context
def build(context):
    net = torch.nn.Linear(2, 2).to(f'cuda:{context.rank}')  # ~ global-rank-as-device
    return torch.nn.parallel.DistributedDataParallel(net, device_ids=[context.rank])
if __name__ == '__main__':
    context = Context()
    torch.distributed.init_process_group('nccl', rank=context.rank)
    build(context)
",
            ),
        ]);
    }

    #[test]
    fn a_slurm_rank_counts() {
        check_python(
            "
import os, torch
rank = int(os.environ['SLURM_PROCID'])
torch.distributed.init_process_group('nccl', rank=rank)
device = torch.device('cuda', rank)  # ~ global-rank-as-device
net = torch.nn.Linear(2, 2).to(device)
",
        );
    }

    #[test]
    fn a_rank_out_of_a_dict_of_the_environment_counts() {
        check_python(
            "
import os, torch
env = {key: os.environ[key] for key in ('RANK', 'LOCAL_RANK', 'WORLD_SIZE')}
torch.distributed.init_process_group('nccl')
def place(rank):
    return torch.nn.Linear(2, 2).to(rank)  # ~ global-rank-as-device
def place_well(rank):
    return torch.nn.Linear(2, 2).to(rank)
place(int(env['RANK']))
place_well(int(env['LOCAL_RANK']))
",
        );
    }

    #[test]
    fn device_ids_count() {
        check_python(
            "
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP
def main(net):
    dist.init_process_group('nccl')
    rank = dist.get_rank()
    net = DDP(net, device_ids=[rank], output_device=rank)  # ~ global-rank-as-device
main(torch.nn.Linear(2, 2))
",
        );
    }

    #[test]
    fn a_rank_of_the_environment_counts_in_rust() {
        check_files(&[
            (
                "src/main.rs",
                "
mod place;
use tch::nn;
use tch_ddp::{Ddp, DdpOptions, GroupOptions, Launch, ProcessGroup};
fn main() -> anyhow::Result<()> {
    let group = ProcessGroup::init(&Launch::from_env()?, GroupOptions::default())?;
    let vs = nn::VarStore::new(place::device());
    let net = nn::linear(vs.root(), 2, 2, Default::default());
    let ddp = Ddp::new(net, vs, &group, DdpOptions::default())?;
    Ok(())
}
",
            ),
            (
                "src/place.rs",
                "
use std::env;
use tch::{Cuda, Device};
pub fn device() -> Device {
    let rank = env::var(\"RANK\").unwrap().parse::<usize>().unwrap();
    Device::Cuda(rank) //~ global-rank-as-device
}
pub fn spread() -> Device {
    let rank: usize = env::var(\"RANK\").unwrap().parse().unwrap();
    Device::Cuda(rank % Cuda::device_count() as usize)
}
pub fn local() -> Device {
    Device::Cuda(env::var(\"LOCAL_RANK\").unwrap().parse::<usize>().unwrap())
}
",
            ),
        ]);
    }

    #[test]
    fn a_rank_modulo_the_devices_is_silent() {
        check_python(
            "
import torch
import torch.distributed as dist
dist.init_process_group('nccl')
gpu = dist.get_rank() % torch.cuda.device_count()
torch.cuda.set_device(gpu)
net = torch.nn.Linear(2, 2).to(gpu)
other = torch.ones(2).to(torch.device('cuda', dist.get_rank() % 8))
",
        );
    }

    #[test]
    fn a_test_for_two_devices_does_not_excuse() {
        check_python(
            "
import os, sys, torch
if torch.cuda.device_count() < 2:
    sys.exit('two GPUs are needed')
torch.distributed.init_process_group('nccl')
torch.cuda.set_device(int(os.environ['RANK']))  # ~ global-rank-as-device
",
        );
    }

    #[test]
    fn started_processes_of_one_node_are_silent() {
        check_python(
            "
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
def work(rank, n):
    dist.init_process_group('nccl', rank=rank, world_size=n)
    torch.cuda.set_device(dist.get_rank())
    torch.nn.Linear(2, 2).to(rank)
if __name__ == '__main__':
    mp.spawn(work, args=(2,), nprocs=2)
",
        );
    }

    #[test]
    fn a_rank_of_unknown_kind_is_silent() {
        check_files(&[
            (
                "tools.py",
                "
import torch
def to_gpu(net, rank):
    return net.to(rank)
",
            ),
            (
                "main.py",
                "
import argparse, torch
from tools import to_gpu
args = argparse.ArgumentParser().parse_args()
torch.distributed.init_process_group('nccl')
to_gpu(torch.nn.Linear(2, 2), args.rank)
",
            ),
        ]);
    }

    #[test]
    fn a_least_number_of_devices_is_no_test_of_the_ranks() {
        check_python(
            "
import os, torch
if torch.cuda.device_count() >= 2:
    torch.cuda.set_device(int(os.environ['RANK']))  # ~ global-rank-as-device
    torch.distributed.init_process_group('nccl')
",
        );
    }
}
