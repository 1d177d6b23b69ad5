use crate::analysis::{Call, Event, LoopId, LoopNode, Object, Term, TermKind, Value};
use crate::prelude::*;
use crate::table::Role;

declare_rule! {
    /// A shuffling distributed sampler is never told the epoch.
    ///
    /// `DistributedSampler` permutes by its seed and its epoch. Without `set_epoch` every epoch
    /// has the same order and the same split between the ranks.
    ///
    /// ```python bad
    /// from torch.utils.data import DataLoader, DistributedSampler
    /// from model import model
    ///
    /// data = list(range(8))
    /// loader = DataLoader(data, sampler=DistributedSampler(data))
    /// for epoch in range(10):  # ~ missing-set-epoch
    ///     for x in loader:
    ///         model(x).backward()
    /// ```
    /// ```python good
    /// from torch.utils.data import DataLoader, DistributedSampler
    /// from model import model
    ///
    /// data = list(range(8))
    /// sampler = DistributedSampler(data)
    /// loader = DataLoader(data, sampler=sampler)
    /// for epoch in range(10):
    ///     sampler.set_epoch(epoch)
    ///     for x in loader:
    ///         model(x).backward()
    /// ```
    /// ```rust bad
    /// use tch_ddp::{DistributedSampler, Launch, ProcessGroup};
    ///
    /// fn main() -> anyhow::Result<()> {
    ///     let group = ProcessGroup::init(&Launch::from_env()?, Default::default())?;
    ///     let sampler = DistributedSampler::new(8, &group);
    ///     for epoch in 0..10 {
    ///         for rows in sampler.epoch(0) { //~ missing-set-epoch
    ///             rows.print();
    ///         }
    ///     }
    ///     Ok(())
    /// }
    /// ```
    /// ```rust good
    /// use tch_ddp::{DistributedSampler, Launch, ProcessGroup};
    ///
    /// fn main() -> anyhow::Result<()> {
    ///     let group = ProcessGroup::init(&Launch::from_env()?, Default::default())?;
    ///     let sampler = DistributedSampler::new(8, &group);
    ///     for epoch in 0..10 {
    ///         for rows in sampler.epoch(epoch) {
    ///             rows.print();
    ///         }
    ///     }
    ///     Ok(())
    /// }
    /// ```
    ///
    /// # Known limits
    /// A `set_epoch` of something that is not known counts for every sampler of the program.
    pub static RULE = {
        name: "missing-set-epoch",
        level: Level::Warning,
        harm: Harm::Wrong,
        tier: 1,
        languages: BOTH,
        fix: FixKind::No,
        check,
    };
}

/// Two loops whose heads are on at most so many lines are shown together.
const HEADS_LINES_MAX: usize = 3;

fn check(program: &Program<'_>, report: &mut Report<'_>) {
    match program.language {
        Language::Python => check_python_samplers(program, report),
        Language::Rust => check_rust_samplers(program, report),
    }
}

fn check_python_samplers(program: &Program<'_>, report: &mut Report<'_>) {
    for sampler in program.objects().iter().filter(|o| o.role == Role::DistributedSampler) {
        if program.class_of(sampler).is_some() || !shuffles(program, sampler) {
            continue;
        }
        if is_told_the_epoch(program, sampler) {
            continue;
        }
        let Some((inner, outer)) = epochs_over(program, sampler) else { continue };
        let yes = program.terms().yes;
        let counts = outer.over.is_some() || outer.condition.is_some_and(|c| c != yes);
        let site = if counts { heads(program, outer, inner) } else { given(program, sampler) };
        report
            .at(site, "every epoch has the same order: the sampler is never told the epoch")
            .why("without `set_epoch` the permutation and the split between ranks repeat")
            .help("call `sampler.set_epoch(epoch)` at the start of each epoch")
            .related(sampler.site, "the sampler is made here");
    }
}

fn shuffles(program: &Program<'_>, sampler: &Object<'_>) -> bool {
    let shuffle = sampler.arguments.iter().find(|a| a.name.is_some_and(|n| &*n == "shuffle"));
    match shuffle {
        Some(argument) => is_on(program, &argument.value),
        None => !sampler.arguments.iter().any(|a| a.spread),
    }
}

/// True, or true in some rounds of the loop that makes the samplers: `shuffle=split == "train"`.
fn is_on(program: &Program<'_>, shuffle: &Value) -> bool {
    let terms = program.terms();
    let by_round = |when: Term| match terms.kind(when) {
        TermKind::Happened(_) => true,
        TermKind::Not(inner) => matches!(terms.kind(*inner), TermKind::Happened(_)),
        _ => false,
    };
    shuffle.single() == Some(terms.yes)
        || shuffle.alternatives.iter().any(|a| a.term == terms.yes && by_round(a.when))
}

/// Some `set_epoch` reaches this sampler, or something unknown.
fn is_told_the_epoch(program: &Program<'_>, sampler: &Object<'_>) -> bool {
    let this = program.term_of(sampler.id);
    program.calls(Role::SetEpoch).any(|(_, call)| match &call.receiver {
        Some(receiver) => receiver.terms().any(|term| {
            term == this
                || program.object_of(term).is_none_or(|o| o.role != Role::DistributedSampler)
        }),
        None => true,
    })
}

/// The loop over a loader with this sampler, and a loop around it.
fn epochs_over<'a>(
    program: &'a Program<'_>,
    sampler: &Object<'_>,
) -> Option<(&'a LoopNode, &'a LoopNode)> {
    let term = program.term_of(sampler.id);
    let loaders: Vec<&Object<'_>> = program
        .objects()
        .iter()
        .filter(|o| o.role == Role::Loader)
        .filter(|o| o.arguments.iter().any(|a| a.value.terms().any(|t| t == term)))
        .collect();
    program.all_loops().find_map(|(id, node)| {
        let over = node.over?;
        let walks = loaders.iter().any(|l| program.walks(over, program.term_of(l.id)));
        let used = program.trains_in(id) || program.yields_in(node);
        let outer = (walks && used).then(|| around(program, id))??;
        // A sampler made anew in each round serves one epoch.
        (!is_made_in(program, sampler, outer)).then_some((node, outer))
    })
}

fn is_made_in(program: &Program<'_>, sampler: &Object<'_>, outer: &LoopNode) -> bool {
    let made = sampler.event.and_then(|event| program.event(event).loops);
    program.loops(made).any(|(_, node)| node.site == outer.site)
}

fn around<'a>(program: &'a Program<'_>, id: LoopId) -> Option<&'a LoopNode> {
    program.loops(Some(id)).nth(1).map(|(_, node)| node)
}

/// Where no loop counts epochs: where a loader gets the sampler.
fn given(program: &Program<'_>, sampler: &Object<'_>) -> Site {
    let term = program.term_of(sampler.id);
    let place = program.objects().iter().filter(|o| o.role == Role::Loader).find_map(|loader| {
        let argument = loader.arguments.iter().find(|a| a.value.terms().any(|t| t == term))?;
        Some(Site { file: loader.site.file, span: argument.expr.span })
    });
    place.unwrap_or(sampler.site)
}

/// The first line of the loop over epochs; down to that of the loop over batches where they
/// stand together.
fn heads(program: &Program<'_>, outer: &LoopNode, inner: &LoopNode) -> Site {
    let (mut head, below) = (program.loop_head(outer), program.loop_head(inner));
    let together = head.file == below.file
        && head.span.start <= below.span.start
        && program.text(outer.site).lines().take(HEADS_LINES_MAX).map(str::len).sum::<usize>()
            >= (below.span.end - head.span.start) as usize;
    if together {
        head.span.end = below.span.end;
    }
    head
}

fn check_rust_samplers(program: &Program<'_>, report: &mut Report<'_>) {
    for (event, call) in program.calls(Role::SetEpoch) {
        let Some(sampler) = call.receiver.as_ref().and_then(|r| program.object_in(r)) else {
            continue;
        };
        let quiet = program
            .setting(sampler, "shuffle")
            .is_some_and(|s| s.single() == Some(program.terms().no));
        if quiet || !is_always_the_same(program, event) {
            continue;
        }
        if event.loops.is_some() || walked_again(program, event) {
            report
                .at(event.site, "every epoch has the same order: the sampler gets a fixed epoch")
                .why("the permutation and the split between ranks repeat")
                .help("give it the loop's epoch: `sampler.epoch(epoch)`")
                .related(sampler.site, "the sampler is made here");
        }
    }
}

/// Whenever this place is run, the sampler gets one and the same number.
fn is_always_the_same(program: &Program<'_>, event: &Event<'_>) -> bool {
    let number = |call: &Call<'_>| {
        let epoch = call.value_at(0, "epoch").and_then(Value::single)?;
        program.terms().as_int(epoch)
    };
    let mut runs = program.calls(Role::SetEpoch).filter(|(other, _)| other.site == event.site);
    let first = runs.next().and_then(|(_, call)| number(call));
    first.is_some() && runs.all(|(_, call)| number(call) == first)
}

/// The batches are kept, and walked over in a loop over epochs.
fn walked_again(program: &Program<'_>, event: &Event<'_>) -> bool {
    program.all_loops().any(|(id, node)| {
        let keeps = node.over.is_some_and(|over| {
            program.origins_of(&Value::of(program.terms(), over)).contains(&event.id)
        });
        keeps && program.trains_in(id) && around(program, id).is_some()
    })
}

impl Program<'_> {
    /// A step of training stands in the loop.
    pub(super) fn trains_in(&self, wanted: LoopId) -> bool {
        [Role::Backward, Role::FusedStep, Role::OptimizerStep].iter().any(|&role| {
            self.calls(role).any(|(event, _)| self.loops(event.loops).any(|(id, _)| id == wanted))
        })
    }

    /// The loop hands its items on: whoever takes them may train.
    fn yields_in(&self, node: &LoopNode) -> bool {
        let function = self.frame(node.frame).function;
        function.is_some_and(|f| self.function(f).is_generator)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_trainer_in_another_file_counts() {
        check_files(&[
            (
                "data.py",
                "
from torch.utils.data import DataLoader, DistributedSampler
def loader(data):
    return DataLoader(data, 4, sampler=DistributedSampler(data))
",
            ),
            (
                "trainer.py",
                "
class Trainer:
    def __init__(self, loader):
        self.loader = loader
    def fit(self, n):
        for epoch in range(n):  # ~ missing-set-epoch
            self.one()
    def one(self):
        for x in self.loader:
            x.sum().backward()
",
            ),
            (
                "main.py",
                "
import torch
from data import loader
from trainer import Trainer
if __name__ == '__main__':
    torch.distributed.init_process_group('gloo')
    Trainer(loader([1, 2])).fit(3)
",
            ),
        ]);
    }

    #[test]
    fn set_epoch_in_a_hook_of_another_file_is_silent() {
        check_files(&[
            (
                "hooks.py",
                "
class EpochHook:
    def before(self, runner, epoch):
        if hasattr(runner.loader.sampler, 'set_epoch'):
            runner.loader.sampler.set_epoch(epoch)
",
            ),
            (
                "main.py",
                "
import torch
from torch.utils.data import DataLoader, DistributedSampler
from hooks import EpochHook
class Runner:
    def __init__(self):
        self.loader = DataLoader([1], sampler=DistributedSampler([1]))
        self.hook = EpochHook()
    def run(self):
        for epoch in range(3):
            self.hook.before(self, epoch)
            for x in self.loader:
                pass
if __name__ == '__main__':
    Runner().run()
",
            ),
        ]);
    }

    #[test]
    fn a_sampler_made_for_each_fold_is_silent() {
        check_python(
            "
from torch.utils.data import DataLoader, DistributedSampler
from model import model
for fold in range(5):
    data = list(range(fold, 100))
    loader = DataLoader(data, sampler=DistributedSampler(data))
    for x in loader:
        model(x).backward()
",
        );
    }

    #[test]
    fn no_shuffle_and_one_epoch_are_silent() {
        check_python(
            "
from torch.utils.data import DataLoader, DistributedSampler
fixed = DataLoader([1], sampler=DistributedSampler([1], shuffle=False))
for epoch in range(3):
    for x in fixed:
        pass
once = DataLoader([1], sampler=DistributedSampler([1]))
for x in once:
    pass
",
        );
    }

    #[test]
    fn an_endless_generator_is_told_at_the_sampler() {
        check_python(
            "
from torch.utils.data import DataLoader, DistributedSampler
def sample(loader):
    while True:
        for batch in loader:
            yield batch
data = [1, 2]
loader = DataLoader(data, sampler=DistributedSampler(data))  # ~ missing-set-epoch
batches = sample(loader)
for i in range(10):
    next(batches)
",
        );
    }

    #[test]
    fn loaders_in_a_dict_count() {
        check_files(&[
            (
                "pipeline/__init__.py",
                "
from .data import loaders
from .loop import fit
",
            ),
            (
                "pipeline/data.py",
                r#"
import torch
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler
def loaders(cfg):
    out = {}
    for split in ("train", "val"):
        ds = TensorDataset(torch.randn(64, 3))
        smp = DistributedSampler(ds, shuffle=split == "train")
        out[split] = DataLoader(ds, batch_size=cfg["bs"], sampler=smp)
    return out
"#,
            ),
            (
                "pipeline/loop.py",
                r#"
def fit(net, opt, loaders, epochs):
    for epoch in range(epochs):  # ~ missing-set-epoch
        for (x,) in loaders["train"]:
            loss = net(x.cuda()).mean()
            opt.zero_grad()
            loss.backward()
            opt.step()
"#,
            ),
            (
                "main.py",
                r#"
import os
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP
from pipeline import fit, loaders
def main():
    dist.init_process_group("nccl")
    g = int(os.environ["LOCAL_RANK"])
    torch.cuda.set_device(g)
    net = DDP(torch.nn.Linear(3, 3).cuda(), device_ids=[g])
    fit(net, torch.optim.AdamW(net.parameters()), loaders({"bs": 8}), 10)
if __name__ == "__main__":
    main()
"#,
            ),
        ]);
    }

    #[test]
    fn epochs_counted_by_hand_count() {
        check_python(
            r#"
import os
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, TensorDataset, DistributedSampler
class Fit:
    def __init__(self, cfg):
        self.cfg = cfg
        ds = TensorDataset(torch.randn(64, 3))
        self.sampler = DistributedSampler(ds, shuffle=True, drop_last=True)
        self.loader = DataLoader(ds, cfg.bs, sampler=self.sampler)
        self.net = DDP(torch.nn.Linear(3, 3).cuda(), device_ids=[cfg.gpu])
        self.opt = torch.optim.AdamW(self.net.parameters())
    def epoch(self, e):
        self.net.train()
        for i, (x,) in enumerate(self.loader):
            loss = self.net(x.cuda()).mean()
            self.opt.zero_grad(); loss.backward(); self.opt.step()
    def run(self):
        epoch = 0
        while epoch < self.cfg.epochs:  # ~ missing-set-epoch
            self.epoch(epoch)
            epoch += 1
def main():
    from argparse import Namespace
    dist.init_process_group("nccl")
    g = int(os.environ["LOCAL_RANK"])
    torch.cuda.set_device(g)
    Fit(Namespace(bs=8, gpu=g, epochs=10)).run()
if __name__ == "__main__":
    main()
"#,
        );
    }

    #[test]
    fn a_generator_that_hands_on_all_batches_counts() {
        check_python(
            "
import os
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset
import itertools
def forever(loader):
    for epoch in itertools.count():  # ~ missing-set-epoch
        yield from loader
def main():
    dist.init_process_group('nccl')
    g = int(os.environ['LOCAL_RANK'])
    torch.cuda.set_device(g)
    ds = TensorDataset(torch.rand(64, 4))
    sampler = DistributedSampler(ds)
    loader = DataLoader(ds, batch_size=8, sampler=sampler)
    net = DDP(nn.Linear(4, 1).cuda(), device_ids=[g])
    opt = torch.optim.SGD(net.parameters(), 0.1)
    for step, (x,) in enumerate(forever(loader)):
        opt.zero_grad()
        net(x.cuda()).mean().backward()
        opt.step()
        if step == 5000:
            break
main()
",
        );
    }

    #[test]
    fn a_generator_that_tells_the_epoch_is_silent() {
        check_python(
            "
import os
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset
import itertools
def forever(loader):
    for epoch in itertools.count():
        loader.sampler.set_epoch(epoch)
        yield from loader
def main():
    dist.init_process_group('nccl')
    g = int(os.environ['LOCAL_RANK'])
    torch.cuda.set_device(g)
    ds = TensorDataset(torch.rand(64, 4))
    sampler = DistributedSampler(ds)
    loader = DataLoader(ds, batch_size=8, sampler=sampler)
    net = DDP(nn.Linear(4, 1).cuda(), device_ids=[g])
    opt = torch.optim.SGD(net.parameters(), 0.1)
    for step, (x,) in enumerate(forever(loader)):
        opt.zero_grad()
        net(x.cuda()).mean().backward()
        opt.step()
        if step == 5000:
            break
main()
",
        );
    }
}
