use crate::analysis::{ArgumentValue, RankKind, Taint};
use crate::prelude::*;
use crate::table::Role;

declare_rule! {
    /// A distributed sampler is told another rank or number of replicas than the run has.
    ///
    /// With the local rank for the global one, every node reads the shards of the first node;
    /// with the devices of one node for the world size, the nodes repeat each other; with the
    /// rank in the seed, the ranks permute differently and their shards overlap.
    ///
    /// ```python bad
    /// import os
    /// from torch.utils.data import DistributedSampler
    /// import torch.distributed as dist
    ///
    /// local_rank = int(os.environ["LOCAL_RANK"])
    /// sampler = DistributedSampler(range(8), num_replicas=dist.get_world_size(), rank=local_rank)  # ~ wrong-replica-arguments
    /// ```
    /// ```python good
    /// from torch.utils.data import DistributedSampler
    /// import torch.distributed as dist
    ///
    /// sampler = DistributedSampler(range(8), num_replicas=dist.get_world_size(), rank=dist.get_rank())
    /// ```
    /// ```rust bad
    /// use tch_ddp::{DistributedSampler, Launch, ProcessGroup};
    ///
    /// fn main() -> anyhow::Result<()> {
    ///     let group = ProcessGroup::init(&Launch::from_env()?, Default::default())?;
    ///     let sampler = DistributedSampler::with_replicas(8, group.world_size(), group.local_rank()); //~ wrong-replica-arguments
    ///     Ok(())
    /// }
    /// ```
    /// ```rust good
    /// use tch_ddp::{DistributedSampler, Launch, ProcessGroup};
    ///
    /// fn main() -> anyhow::Result<()> {
    ///     let group = ProcessGroup::init(&Launch::from_env()?, Default::default())?;
    ///     let sampler = DistributedSampler::with_replicas(8, group.world_size(), group.rank());
    ///     Ok(())
    /// }
    /// ```
    ///
    /// # Known limits
    /// The first argument of a function started by `mp.spawn` is both ranks on one node.
    pub static RULE = {
        name: "wrong-replica-arguments",
        level: Level::Error,
        harm: Harm::Wrong,
        tier: 1,
        languages: BOTH,
        fix: FixKind::No,
        check,
    };
}

fn check(program: &Program<'_>, report: &mut Report<'_>) {
    for (event, call) in program.calls(Role::DistributedSampler) {
        let rank = call.argument("rank").known();
        let replicas = call.argument("num_replicas").known();
        let per_node = replicas.is_some_and(|a| is(program, a, RankKind::DeviceCount));
        if let Some(rank) = rank
            && is(program, rank, RankKind::LocalRank)
            && !per_node
            && !program.spawned_on_one_node(&rank.value)
            && !is_rank_of_group(program, rank)
        {
            report
                .at(event.site, "the sampler is told the local rank for the global one")
                .why("on a second node every rank repeats the samples of the first")
                .help("give it the global rank, or leave `rank` and `num_replicas` out");
        }
        if per_node && rank.is_some_and(|a| is(program, a, RankKind::Rank)) {
            report
                .at(event.site, "the sampler is told the devices of one node for the world size")
                .why("on a second node the ranks are outside the range, or repeat samples")
                .help("give it the world size, or leave `rank` and `num_replicas` out");
        }
        if let Some(seed) = call.argument("seed").known()
            && seed.value.taint(program.terms()).has(Taint::RANK)
        {
            report
                .at(event.site, "the sampler's seed differs between ranks")
                .why("each rank permutes differently, so their shards overlap and miss samples")
                .help("give every rank the same seed: the sampler takes the rank by itself");
        }
    }
    seeds_of_builders(program, report);
}

/// `sampler.seed(..)`.
fn seeds_of_builders(program: &Program<'_>, report: &mut Report<'_>) {
    for object in program.objects().iter().filter(|o| o.role == Role::DistributedSampler) {
        let seed = program.attribute_now(program.term_of(object.id), "seed");
        if program.language == Language::Rust
            && seed.is_some_and(|s| s.taint(program.terms()).has(Taint::RANK))
        {
            report
                .at(object.site, "the sampler's seed differs between ranks")
                .why("each rank permutes differently, so their shards overlap and miss samples")
                .help("give every rank the same seed: the sampler takes the rank by itself");
        }
    }
}

/// The process group was told the same number for the rank.
fn is_rank_of_group(program: &Program<'_>, rank: &ArgumentValue<'_>) -> bool {
    program.calls(Role::InitGroup).any(|(_, call)| {
        let told = call.argument("rank").known().and_then(|a| a.value.single());
        told.is_some() && told == rank.value.single()
    })
}

fn is(program: &Program<'_>, argument: &ArgumentValue<'_>, kind: RankKind) -> bool {
    let found = |t| program.terms().rank_kind(t) == Some(kind);
    !argument.value.alternatives.is_empty() && argument.value.terms().all(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_rank_that_the_group_was_told_is_silent() {
        check_python(
            "
import os, torch
import torch.multiprocessing as mp
from torch.utils.data import DistributedSampler
node = int(os.environ.get('NODE_RANK', 0))
def evaluate(data, rank, world_size):
    return DistributedSampler(data, num_replicas=world_size, rank=rank, shuffle=False)
def work(rank, world_size):
    torch.distributed.init_process_group('gloo', rank=rank, world_size=world_size)
    evaluate([1, 2], rank, world_size)
if __name__ == '__main__':
    mp.spawn(work, args=(2,), nprocs=2)
",
        );
    }

    #[test]
    fn a_local_rank_through_objects_and_files_counts() {
        check_files(&[
            (
                "loader.py",
                "
from torch.utils.data.distributed import DistributedSampler
def make(dataset, cfg):
    return DistributedSampler(dataset, num_replicas=cfg.world_size, rank=cfg.local_rank)  # ~ wrong-replica-arguments
",
            ),
            (
                "main.py",
                "
import os, torch
from loader import make
class Config:
    def __init__(self):
        self.world_size = int(os.environ['WORLD_SIZE'])
        self.local_rank = int(os.environ['LOCAL_RANK'])
if __name__ == '__main__':
    torch.distributed.init_process_group('nccl')
    make([1], Config())
",
            ),
        ]);
    }

    #[test]
    fn a_seed_with_the_rank_counts() {
        check_python(
            "
import torch.distributed as dist
from torch.utils.data import DistributedSampler
dist.init_process_group('nccl')
for _ in range(2):
    DistributedSampler([1], seed=42 + dist.get_rank())  # ~ wrong-replica-arguments: seed
",
        );
    }

    #[test]
    fn the_index_that_spawn_gives_is_silent() {
        check_python(
            "
import torch
import torch.multiprocessing as mp
from torch.utils.data import DistributedSampler
def worker(gpu, n):
    torch.distributed.init_process_group('nccl', rank=gpu, world_size=n)
    DistributedSampler([1], num_replicas=n, rank=gpu)
if __name__ == '__main__':
    n = torch.cuda.device_count()
    mp.spawn(worker, nprocs=n, args=(n,))
",
        );
    }

    #[test]
    fn a_global_rank_computed_from_both_is_silent() {
        check_python(
            "
import argparse, torch
import torch.multiprocessing as mp
from torch.utils.data import DistributedSampler
def worker(gpu, per_node, args):
    args.rank = args.rank * per_node + gpu
    torch.distributed.init_process_group('nccl', rank=args.rank)
    DistributedSampler([1], num_replicas=args.world_size, rank=args.rank)
if __name__ == '__main__':
    args = argparse.ArgumentParser().parse_args()
    n = torch.cuda.device_count()
    mp.spawn(worker, nprocs=n, args=(n, args))
",
        );
    }

    #[test]
    fn the_index_of_a_spawn_is_local_where_the_rank_is_more() {
        check_python(
            "
import torch
import torch.multiprocessing as mp
from torch.utils.data.distributed import DistributedSampler
def work(index, nodes, node, devices):
    torch.distributed.init_process_group(
        'nccl', rank=node * devices + index, world_size=nodes * devices)
    DistributedSampler([1], num_replicas=nodes * devices, rank=index)  # ~ wrong-replica-arguments
def main(nodes, node):
    devices = torch.cuda.device_count()
    mp.spawn(work, nprocs=devices, args=(nodes, node, devices))
main(2, 0)
",
        );
    }

    #[test]
    fn settings_that_are_set_by_name_are_not_known() {
        check_files(&[
            (
                "settings.py",
                "
import os
class Box:
    pass
class Settings:
    def __init__(self, texts):
        self.run = Box()
        self.run.metrics = 'fid'
        self.run.rank = int(os.environ['LOCAL_RANK'])
        for name, text in texts.items():
            setattr(self.run, name, text)
",
            ),
            (
                "main.py",
                "
import json, torch
from torch.utils.data.distributed import DistributedSampler
from settings import Settings
torch.distributed.init_process_group('nccl')
run = Settings(json.load(open('run.json'))).run
if 'none' in run.lists:
    run.lists = []
if run.metrics == 'prdc' and 'prdc' in run.lists:
    DistributedSampler([1], rank=run.rank)  # ~ wrong-replica-arguments
",
            ),
        ]);
    }

    #[test]
    fn the_index_of_a_spawned_process_beside_the_node_counts() {
        check_python(
            "
import os
from dataclasses import dataclass
from functools import partial
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset
@dataclass
class Plan:
    nodes: int = 2
    per_node: int = 8
    node: int = int(os.environ.get('NODE', '0'))
    @property
    def total(self):
        return self.nodes * self.per_node
def work(slot, plan):
    me = plan.node * plan.per_node + slot
    dist.init_process_group('nccl', init_method='tcp://10.0.0.1:4000', rank=me, world_size=plan.total)
    torch.cuda.set_device(slot)
    items = TensorDataset(torch.rand(100, 4))
    sampler = DistributedSampler(items, num_replicas=plan.total, rank=slot)  # ~ wrong-replica-arguments
    loader = DataLoader(items, batch_size=5, sampler=sampler)
    net = DDP(torch.nn.Linear(4, 1).cuda(), device_ids=[slot])
    opt = torch.optim.SGD(net.parameters(), 0.1)
    for epoch in range(4):
        sampler.set_epoch(epoch)
        for (x,) in loader:
            opt.zero_grad()
            net(x.cuda()).sum().backward()
            opt.step()
if __name__ == '__main__':
    plan = Plan()
    mp.spawn(partial(work, plan=plan), nprocs=plan.per_node)
",
        );
    }

    #[test]
    fn the_rank_of_a_spawned_process_is_silent() {
        check_python(
            "
import os
from dataclasses import dataclass
from functools import partial
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset
@dataclass
class Plan:
    nodes: int = 2
    per_node: int = 8
    node: int = int(os.environ.get('NODE', '0'))
    @property
    def total(self):
        return self.nodes * self.per_node
def work(slot, plan):
    me = plan.node * plan.per_node + slot
    dist.init_process_group('nccl', init_method='tcp://10.0.0.1:4000', rank=me, world_size=plan.total)
    torch.cuda.set_device(slot)
    items = TensorDataset(torch.rand(100, 4))
    sampler = DistributedSampler(items, num_replicas=plan.total, rank=me)
    loader = DataLoader(items, batch_size=5, sampler=sampler)
    net = DDP(torch.nn.Linear(4, 1).cuda(), device_ids=[slot])
    opt = torch.optim.SGD(net.parameters(), 0.1)
    for epoch in range(4):
        sampler.set_epoch(epoch)
        for (x,) in loader:
            opt.zero_grad()
            net(x.cuda()).sum().backward()
            opt.step()
if __name__ == '__main__':
    plan = Plan()
    mp.spawn(partial(work, plan=plan), nprocs=plan.per_node)
",
        );
    }
}
