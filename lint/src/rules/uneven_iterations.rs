use crate::analysis::facts::Wrapper;
use crate::analysis::{Call, Const, Event, ExitKind, LoopNode, Node, SAMPLES, Term, Via};
use crate::prelude::*;
use crate::table::{CollectiveKind, Flag, Role};

declare_rule! {
    /// Ranks train over shares of the data that may differ in length.
    ///
    /// `files[rank::world]` gives some ranks one item more than others wherever the number of
    /// items does not divide evenly. Every training step reduces gradients with all ranks: the
    /// rank with one step more waits for others that have left the loop, until the timeout.
    /// `DistributedSampler` pads the shares; `join` lets ranks that are done answer for the
    /// others; a number of steps that all ranks agree on works for streams.
    ///
    /// An `all_gather` of as many rows as a rank happens to have is the same mistake: all ranks
    /// must give tensors of one size.
    ///
    /// ```python bad
    /// import glob
    /// import torch
    /// import torch.distributed as dist
    /// from torch.nn.parallel import DistributedDataParallel as DDP
    ///
    /// dist.init_process_group("nccl")
    /// model = DDP(torch.nn.Linear(8, 8))
    /// shards = sorted(glob.glob("shards/*.pt"))[dist.get_rank() :: dist.get_world_size()]
    /// for path in shards:  # ~ uneven-iterations
    ///     model(torch.load(path, map_location="cpu")).sum().backward()
    /// ```
    /// ```python good
    /// import glob
    /// import torch
    /// import torch.distributed as dist
    /// from torch.nn.parallel import DistributedDataParallel as DDP
    ///
    /// dist.init_process_group("nccl")
    /// model = DDP(torch.nn.Linear(8, 8))
    /// shards = sorted(glob.glob("shards/*.pt"))[dist.get_rank() :: dist.get_world_size()]
    /// with model.join():
    ///     for path in shards:
    ///         model(torch.load(path, map_location="cpu")).sum().backward()
    /// ```
    /// ```rust bad
    /// use tch_ddp::{Ddp, Launch, ProcessGroup};
    ///
    /// fn main() -> anyhow::Result<()> {
    ///     let group = ProcessGroup::init(&Launch::from_env()?, Default::default())?;
    ///     let vs = tch::nn::VarStore::new(group.device());
    ///     let net = tch::nn::linear(vs.root(), 8, 8, Default::default());
    ///     let ddp = Ddp::new(net, vs, &group, Default::default())?;
    ///     let paths: Vec<_> = std::fs::read_dir("shards")?.collect();
    ///     let (rank, world) = (group.rank(), group.world_size());
    ///     for path in paths.iter().skip(rank).step_by(world) { //~ uneven-iterations
    ///         let rows = tch::Tensor::read_npy(path)?;
    ///         let out = ddp.run(|m| rows.apply(m))?;
    ///         ddp.backward(&out.sum(tch::Kind::Float))?;
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
    ///     let net = tch::nn::linear(vs.root(), 8, 8, Default::default());
    ///     let ddp = Ddp::new(net, vs, &group, Default::default())?;
    ///     for step in 0..100 {
    ///         let rows = tch::Tensor::read_npy(format!("shards/{}-{step}.npy", group.rank()))?;
    ///         let out = ddp.run(|m| rows.apply(m))?;
    ///         ddp.backward(&out.sum(tch::Kind::Float))?;
    ///     }
    ///     Ok(())
    /// }
    /// ```
    ///
    /// # Known limits
    /// Shares are recognised by a stride of the number of ranks, `items[rank::world]`, a test
    /// `i % world == rank`, parts of a rounded-up length and `array_split`; other ways to share
    /// data are unknown. Sizes are followed through masks, `cat` and lists that a loop over a
    /// share fills. A program that anywhere counts
    /// modulo the number of ranks is taken to make its shares equal, and so is a loop that can
    /// be left early.
    pub static RULE = {
        name: "uneven-iterations",
        level: Level::Warning,
        harm: Harm::Hang,
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
    for (event, forward) in program.forwards() {
        let Via::Wrapper(wrapper) = forward.via else { continue };
        let trains = program.wrapper_kind(wrapper) == Some(Wrapper::Ddp)
            && event.modes.grad
            && !event.modes.join
            && program.trained().contains(&event.id);
        if !trains || program.is_orphan(event) {
            continue;
        }
        if let Some(node) = uneven_loop(program, event) {
            tell(program, report, event, node);
        }
    }
    for (event, call) in program.calls(Role::Collective) {
        if gathers_ragged(program, event, call) && !program.is_orphan(event) {
            tell_ragged(program, report, event);
        }
    }
}

/// A gather of tensors whose sizes nobody told each other before.
fn gathers_ragged(program: &Program<'_>, event: &Event<'_>, call: &Call<'_>) -> bool {
    let kind = call.row.and_then(|row| row.kind);
    let gathers = matches!(kind, Some(CollectiveKind::AllGather | CollectiveKind::Gather));
    let given = ["tensor", "input_tensor", "input"]
        .iter()
        .find_map(|name| call.argument(name).known())
        .and_then(|argument| argument.value.single());
    let is_ragged = given.is_some_and(|term| program.is_ragged(term));
    let agreed = || {
        program.calls(Role::Collective).any(|(other, _)| {
            other.id < event.id && other.site != event.site && other.frame == event.frame
        })
    };
    gathers && !program.has_flag(call, Flag::Objects) && is_ragged && !agreed()
}

fn tell_ragged(program: &Program<'_>, report: &mut Report<'_>, event: &Event<'_>) {
    let called = program.callee_text(event).unwrap_or("the gather");
    report
        .at(event.site, format!("`{called}` gets a tensor whose size may differ between ranks"))
        .why(
            "it needs the same size on all ranks: with other sizes it fails, hangs or gives \
             numbers out of place",
        )
        .help(
            "gather the sizes first and pad to the longest, or gather objects \
             (`all_gather_object`), or reduce what is needed of it on each rank",
        );
}

/// The loop around a step whose number of runs differs between ranks.
fn uneven_loop<'a>(program: &'a Program<'_>, event: &Event<'_>) -> Option<&'a LoopNode> {
    let around = program.loops(event.loops).map(|(_, node)| node);
    around.into_iter().find(|node| {
        node.over.is_some_and(|over| is_uneven(program, over))
            && !can_be_left(program.tree(), node.site)
    })
}

/// A range whose length is another number on some rank.
fn counts_by_rank(program: &Program<'_>, over: Term) -> bool {
    let terms = program.terms();
    let Some((from, to)) = terms.range_bounds(over) else { return false };
    let lengths = SAMPLES.map(|sample| {
        let number = |term| match terms.evaluate(term, sample) {
            Some(Const::Int(number)) => Some(number),
            _ => None,
        };
        let from = from.map_or(Some(0), number)?;
        Some(number(to)?.saturating_sub(from).max(0))
    });
    lengths.iter().all(Option::is_some) && lengths.iter().any(|length| *length != lengths[0])
}

fn is_uneven(program: &Program<'_>, over: Term) -> bool {
    if counts_by_rank(program, over) {
        return true;
    }
    let made_equal = || {
        program.counts_by_world() && !program.terms().any(|kind| program.picks_one_in_world(kind))
    };
    let is_share = program.is_uneven_share(over)
        || program.loaders_behind(over).iter().any(|&loader| program.is_uneven_share(loader));
    is_share && !made_equal()
}

/// The loop at this place holds a `break`, or a return, of its own.
fn can_be_left(tree: &[Node], site: Site) -> bool {
    tree.iter().any(|node| match node {
        Node::Loop { site: at, body, .. } => *at == site && leaves(body) || can_be_left(body, site),
        Node::Branch { then, otherwise, .. } => {
            can_be_left(then, site) || can_be_left(otherwise, site)
        }
        Node::Try { body, handlers, .. } => {
            can_be_left(body, site) || handlers.iter().any(|h| can_be_left(&h.body, site))
        }
        Node::Call { body, .. } => can_be_left(body, site),
        _ => false,
    })
}

fn leaves(body: &[Node]) -> bool {
    body.iter().any(|node| match node {
        Node::Exit { kind, .. } => matches!(kind, ExitKind::Break | ExitKind::Return),
        Node::Branch { then, otherwise, .. } => leaves(then) || leaves(otherwise),
        Node::Try { body, handlers, .. } => {
            leaves(body) || handlers.iter().any(|h| leaves(&h.body))
        }
        _ => false,
    })
}

fn tell(program: &Program<'_>, report: &mut Report<'_>, event: &Event<'_>, node: &LoopNode) {
    let help = match program.language {
        Language::Python => {
            let model = program.receiver_text(event).unwrap_or("model");
            format!(
                "give all ranks equally many: `DistributedSampler`, a share cut to \
                 `len(items) // world_size` items, a fixed number of steps, or `with {model}.join():`"
            )
        }
        Language::Rust => "give all ranks equally many: `DistributedSampler`, a share cut to \
                           `items.len() / world_size` items, or a fixed number of steps"
            .into(),
    };
    let others = program.sequence_text(&program.behind_loop(node.site), node.site);
    let step = program.step_text(event.id, node.site);
    report
        .at(
            node.site,
            format!(
                "ranks may run this training loop unequally often (those with a step more: \
                 {step}; the others: {others})"
            ),
        )
        .why(
            "each rank picks its own share of the items, and a rank with one step more waits for \
             the others in its backward: it hangs, or pairs with what they do meanwhile",
        )
        .help(help)
        .related(event.site, "every rank must run this step equally often");
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_generator_of_files_by_rank_in_another_file_counts() {
        check_files(&[
            (
                "stream.py",
                "
import glob, torch
def batches(rank, world):
    for path in sorted(glob.glob('part-*.pt'))[rank::world]:
        rows = torch.load(path, map_location='cpu')
        yield from rows.split(64)
",
            ),
            (
                "main.py",
                "
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP
from stream import batches
def main():
    dist.init_process_group('nccl')
    net = DDP(torch.nn.Linear(4, 4).cuda())
    for epoch in range(4):
        for rows in batches(dist.get_rank(), dist.get_world_size()):  # ~ uneven-iterations
            net(rows.cuda()).mean().backward()
if __name__ == '__main__':
    main()
",
            ),
        ]);
    }

    #[test]
    fn an_iterable_dataset_that_filters_by_rank_counts() {
        check_files(&[
            (
                "lines.py",
                "
import torch.distributed as dist
from torch.utils.data import IterableDataset
class Lines(IterableDataset):
    def __init__(self, path):
        self.path = path
        self.rank = dist.get_rank()
        self.world_size = dist.get_world_size()
    def __iter__(self):
        with open(self.path) as text:
            for i, line in enumerate(text):
                if i % self.world_size == self.rank:
                    yield line
",
            ),
            (
                "train.py",
                "
import torch
import torch.distributed as dist
from torch.utils.data import DataLoader
from torch.nn.parallel import DistributedDataParallel
from lines import Lines
class Trainer:
    def __init__(self, net):
        self.net = DistributedDataParallel(net)
        self.loader = DataLoader(Lines('corpus.txt'), batch_size=8)
    def fit(self):
        for step, rows in enumerate(self.loader):  # ~ uneven-iterations
            self.net(rows).sum().backward()
if __name__ == '__main__':
    dist.init_process_group('gloo')
    Trainer(torch.nn.Linear(2, 2)).fit()
",
            ),
        ]);
    }

    #[test]
    fn indices_that_step_by_the_number_of_ranks_count() {
        check_python(
            "
import torch
import torch.distributed as dist
from torch.utils.data import DataLoader, Subset
from torch.nn.parallel import DistributedDataParallel as DDP
dist.init_process_group('nccl')
rank, world = dist.get_rank(), dist.get_world_size()
data = torch.arange(1001)
mine = Subset(data, range(rank, len(data), world))
model = DDP(torch.nn.Linear(1, 1))
for x in DataLoader(mine, batch_size=4):  # ~ uneven-iterations
    model(x).sum().backward()
",
        );
    }

    #[test]
    fn a_list_filtered_by_rank_counts() {
        check_python(
            "
import os, torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP
dist.init_process_group('nccl')
rank = int(os.environ['RANK'])
world = int(os.environ['WORLD_SIZE'])
mine = [name for i, name in enumerate(os.listdir('rows')) if i % world == rank]
model = DDP(torch.nn.Linear(1, 1))
for name in mine:  # ~ uneven-iterations
    model(torch.load(name, map_location='cpu')).sum().backward()
",
        );
    }

    #[test]
    fn equal_shares_and_agreed_stops_are_silent() {
        check_python(
            "
import glob, torch
import torch.distributed as dist
from torch.utils.data import DataLoader, DistributedSampler
from torch.nn.parallel import DistributedDataParallel as DDP
dist.init_process_group('nccl')
rank, world = dist.get_rank(), dist.get_world_size()
model = DDP(torch.nn.Linear(1, 1))
files = glob.glob('*.pt')
data = torch.arange(100)
loader = DataLoader(data, sampler=DistributedSampler(data, num_replicas=world, rank=rank))
for x in loader:
    model(x).sum().backward()
step = 0
for path in files[rank::world]:
    model(torch.load(path, map_location='cpu')).sum().backward()
    step += 1
    if step == 100:
        break
for path in files[rank : 64 : world]:
    model(torch.load(path, map_location='cpu')).sum().backward()
mine = files[rank::world]
for path in mine[:8]:
    model(torch.load(path, map_location='cpu')).sum().backward()
with torch.no_grad():
    for path in files[rank::world]:
        model.module(torch.load(path, map_location='cpu'))
",
        );
    }

    #[test]
    fn shares_cut_to_a_common_length_are_silent() {
        check_python(
            "
import glob, torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP
dist.init_process_group('nccl')
rank, world = dist.get_rank(), dist.get_world_size()
model = DDP(torch.nn.Linear(1, 1))
files = sorted(glob.glob('*.pt'))
files = files[: len(files) - len(files) % world]
for path in files[rank::world]:
    model(torch.load(path, map_location='cpu')).sum().backward()
",
        );
    }

    #[test]
    fn parts_of_a_rounded_up_length_count() {
        check_python(
            "
import math, os
import numpy as np
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP
dist.init_process_group('nccl')
rank, world = dist.get_rank(), dist.get_world_size()
model = DDP(torch.nn.Linear(1, 1))
def step(name):
    model(torch.load(name, map_location='cpu')).sum().backward()
names = sorted(os.listdir('rows'))
per = math.ceil(len(names) / world)
for name in names[rank * per : (rank + 1) * per]:  # ~ uneven-iterations
    step(name)
each = (len(names) + world - 1) // world
begin = rank * each
for name in names[begin : begin + each]:  # ~ uneven-iterations
    step(name)
for name in np.array_split(names, world)[rank]:  # ~ uneven-iterations
    step(name)
for turn in range(100 + rank):  # ~ uneven-iterations
    step('same.pt')
",
        );
        check_python(
            "
import os, torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP
dist.init_process_group('nccl')
rank, world = dist.get_rank(), dist.get_world_size()
model = DDP(torch.nn.Linear(1, 1))
def step(name):
    model(torch.load(name, map_location='cpu')).sum().backward()
names = sorted(os.listdir('rows'))
for turn in range(100 + world):
    step('same.pt')
whole = len(names) // world
for name in names[rank * whole : (rank + 1) * whole]:
    step(name)
",
        );
    }

    #[test]
    fn a_share_that_an_object_keeps_or_a_generator_walks_over_counts() {
        check_files(&[
            (
                "data.py",
                "
import torch
class Rows:
    def __init__(self, items, rank, world):
        self.items = [x for i, x in enumerate(items) if i % world == rank]
    def __len__(self):
        return len(self.items)
    def __getitem__(self, i):
        return torch.tensor(float(self.items[i]))
def batches(names, rank, world):
    for name in names[rank::world]:
        rows = torch.load(name, map_location='cpu')
        for i in range(0, len(rows), 8):
            yield rows[i : i + 8]
",
            ),
            (
                "main.py",
                "
import os, torch
import torch.distributed as dist
from torch.utils.data import DataLoader
from torch.nn.parallel import DistributedDataParallel as DDP
from data import Rows, batches
dist.init_process_group('nccl')
rank, world = dist.get_rank(), dist.get_world_size()
model = DDP(torch.nn.Linear(1, 1))
for x in DataLoader(Rows(open('rows.txt'), rank, world), batch_size=4):  # ~ uneven-iterations
    model(x).sum().backward()
for x in batches(sorted(os.listdir('rows')), rank, world):  # ~ uneven-iterations
    model(x).sum().backward()
",
            ),
        ]);
    }

    #[test]
    fn a_gather_of_what_a_mask_or_a_share_gives_counts() {
        check_files(&[
            (
                "comm.py",
                "
import torch
import torch.distributed as dist
def everyone(t):
    parts = [torch.zeros_like(t) for _ in range(dist.get_world_size())]
    dist.all_gather(parts, t)  # ~ uneven-iterations: `dist.all_gather` gets a tensor
    return torch.cat(parts)
def padded(t):
    n = torch.tensor([t.shape[0]])
    sizes = [torch.zeros_like(n) for _ in range(dist.get_world_size())]
    dist.all_gather(sizes, n)
    whole = torch.zeros(max(int(s) for s in sizes))
    whole[: t.shape[0]] = t
    parts = [torch.zeros_like(whole) for _ in range(dist.get_world_size())]
    dist.all_gather(parts, whole)
    return parts
",
            ),
            (
                "main.py",
                "
import os, torch
import torch.distributed as dist
from comm import everyone, padded
dist.init_process_group('nccl')
rank, world = dist.get_rank(), dist.get_world_size()
net = torch.nn.Linear(4, 4)
scores = net(torch.rand(8, 4)).detach().sum(1)
hard = scores[scores > 0.5]
everyone(hard)
padded(hard)
outs = []
for name in sorted(os.listdir('rows'))[rank::world]:
    outs.append(net(torch.load(name, map_location='cpu')))
mine = torch.cat(outs).contiguous()
slots = [torch.empty_like(mine) for _ in range(world)]
dist.all_gather(slots, mine)  # ~ uneven-iterations
sizes = torch.tensor([len(outs), 1])
dist.all_gather([torch.zeros_like(sizes) for _ in range(world)], sizes)
mean = torch.cat(outs).mean()
dist.all_gather([torch.zeros_like(mean) for _ in range(world)], mean)
",
            ),
        ]);
    }

    #[test]
    fn files_of_a_ranks_own_count() {
        check_python(
            "
import glob, torch
import torch.distributed as dist
from torch.utils.data import DataLoader, TensorDataset
from torch.nn.parallel import DistributedDataParallel as DDP
dist.init_process_group('nccl')
rank = dist.get_rank()
model = DDP(torch.nn.Linear(1, 1))
state = torch.load(f'state-{rank}.pt', map_location='cpu')
rows = torch.load(f'part-{rank}.pt', map_location='cpu')
for epoch in range(state['epoch'], 10):
    for (x,) in DataLoader(TensorDataset(rows), batch_size=8):  # ~ uneven-iterations
        model(x).sum().backward()
    for (x,) in DataLoader(TensorDataset(rows), batch_size=8, drop_last=True):
        model(x).sum().backward()
    for name in sorted(glob.glob(f'shards/{rank}/*.pt')):  # ~ uneven-iterations
        model(torch.load(name, map_location='cpu')).sum().backward()
",
        );
    }
}
