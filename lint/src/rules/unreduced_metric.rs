use rustc_hash::FxHashSet;

use crate::analysis::term::ORIGINS_MAX;
use crate::analysis::{
    Call, Event, EventId, EventKind, LoopNode, Object, Taint, Term, TermKind, Value,
};
use crate::model::{BinaryOp, CompareOp};
use crate::prelude::*;
use crate::table::Role;

declare_rule! {
    /// A metric over one rank's share of the data stands for the whole.
    ///
    /// With a `DistributedSampler` each rank sees its share of the validation data. What it
    /// counts there is its own: rank 0's number is logged as if it were the model's, the "best"
    /// checkpoint is picked by a part of the data, and a scheduler that watches the number cuts
    /// the learning rate on one rank and not on another, so that the ranks drift apart.
    /// Add up counts and sums over ranks first.
    ///
    /// ```python bad
    /// import torch
    /// from torch.nn.parallel import DistributedDataParallel as DDP
    /// from torch.utils.data import DataLoader, DistributedSampler, TensorDataset
    ///
    /// torch.distributed.init_process_group("gloo")
    /// data = TensorDataset(torch.ones(64, 2), torch.ones(64))
    /// loader = DataLoader(data, sampler=DistributedSampler(data, shuffle=False))
    /// model = DDP(torch.nn.Linear(2, 2)).eval()
    /// hits = seen = 0
    /// with torch.no_grad():
    ///     for x, y in loader:
    ///         hits += (model(x).argmax(1) == y).sum().item()
    ///         seen += len(y)
    /// accuracy = hits / seen  # ~ unreduced-metric
    /// if torch.distributed.get_rank() == 0:
    ///     print(accuracy)
    /// ```
    /// ```python good
    /// import torch
    /// from torch.nn.parallel import DistributedDataParallel as DDP
    /// from torch.utils.data import DataLoader, DistributedSampler, TensorDataset
    ///
    /// torch.distributed.init_process_group("gloo")
    /// data = TensorDataset(torch.ones(64, 2), torch.ones(64))
    /// loader = DataLoader(data, sampler=DistributedSampler(data, shuffle=False))
    /// model = DDP(torch.nn.Linear(2, 2)).eval()
    /// counts = torch.zeros(2)
    /// with torch.no_grad():
    ///     for x, y in loader:
    ///         counts += torch.tensor([(model(x).argmax(1) == y).sum(), len(y)])
    /// torch.distributed.all_reduce(counts)
    /// if torch.distributed.get_rank() == 0:
    ///     print(counts[0] / counts[1])
    /// ```
    /// ```rust bad
    /// use tch::nn::{self, Module};
    /// use tch::{Kind, Tensor};
    /// use tch_ddp::{Ddp, DistributedSampler, Launch, ProcessGroup};
    ///
    /// fn main() -> anyhow::Result<()> {
    ///     let group = ProcessGroup::init(&Launch::from_env()?, Default::default())?;
    ///     let vs = nn::VarStore::new(group.device());
    ///     let net = nn::linear(vs.root(), 4, 4, Default::default());
    ///     let ddp = Ddp::new(net, vs, &group, Default::default())?;
    ///     let data = Tensor::read_npy("held_out.npy")?;
    ///     let sampler = DistributedSampler::new(64, &group).shuffle(false);
    ///     let (mut total, mut n) = (0., 0.);
    ///     for rows in sampler.epoch(0) {
    ///         let x = data.index_select(0, &rows);
    ///         total += tch::no_grad(|| ddp.module().forward(&x)).sum(Kind::Float).double_value(&[]);
    ///         n += 1.;
    ///     }
    ///     let mean = total / n; //~ unreduced-metric
    ///     if group.is_main() {
    ///         println!("{mean}");
    ///     }
    ///     Ok(())
    /// }
    /// ```
    /// ```rust good
    /// use tch::nn::{self, Module};
    /// use tch::{Kind, Tensor};
    /// use tch_ddp::{Ddp, DistributedSampler, Launch, ProcessGroup};
    ///
    /// fn main() -> anyhow::Result<()> {
    ///     let group = ProcessGroup::init(&Launch::from_env()?, Default::default())?;
    ///     let vs = nn::VarStore::new(group.device());
    ///     let net = nn::linear(vs.root(), 4, 4, Default::default());
    ///     let ddp = Ddp::new(net, vs, &group, Default::default())?;
    ///     let data = Tensor::read_npy("held_out.npy")?;
    ///     let sampler = DistributedSampler::new(64, &group).shuffle(false);
    ///     let mut total = Tensor::zeros([1], (Kind::Float, group.device()));
    ///     for rows in sampler.epoch(0) {
    ///         let x = data.index_select(0, &rows);
    ///         total += tch::no_grad(|| ddp.module().forward(&x)).sum(Kind::Float);
    ///     }
    ///     group.all_reduce(&total)?;
    ///     if group.is_main() {
    ///         println!("{}", total.double_value(&[0]));
    ///     }
    ///     Ok(())
    /// }
    /// ```
    ///
    /// # Known limits
    /// Running losses of the training loop are silent, schedulers aside. A collective over
    /// anything of the loader counts for all that is computed from it.
    pub static RULE = {
        name: "unreduced-metric",
        level: Level::Warning,
        harm: Harm::Wrong,
        tier: 2,
        languages: BOTH,
        fix: FixKind::No,
        check,
    };
}

const REDUCE: &str = "add up sums and counts over ranks with `dist.all_reduce` before this";
const REDUCE_TCH: &str = "add up sums and counts over ranks with `group.all_reduce` before this";

fn check(program: &Program<'_>, report: &mut Report<'_>) {
    if !program.is_distributed() {
        return;
    }
    watched_by_a_scheduler(program, report);
    for loader in program.shares() {
        of_a_share(program, report, loader);
    }
}

/// `ReduceLROnPlateau` fed with a number of this rank alone.
fn watched_by_a_scheduler(program: &Program<'_>, report: &mut Report<'_>) {
    let shares: Vec<EventId> = program.shares().filter_map(|l| l.event).collect();
    let trained: FxHashSet<EventId> = program.ddp_training().map(|(event, _)| event.id).collect();
    for (event, call) in program.calls(Role::SchedulerStep) {
        let watches = call.receiver.as_ref().is_some_and(|r| {
            r.terms().any(|t| {
                program.object_of(t).is_some_and(|o| {
                    program.derives_from(o, "torch.optim.lr_scheduler.ReduceLROnPlateau")
                })
            })
        });
        let Some(metric) = call.value_at(0, "metrics").filter(|_| watches) else { continue };
        let own = live_local(program, metric).any(|term| {
            program
                .terms()
                .origins(term)
                .iter()
                .any(|origin| shares.contains(origin) || trained.contains(origin))
        });
        if own && !program.runs_only_alone(event.path) {
            report
                .at(event.site, "each rank sets its learning rate by its own number")
                .why("the ranks' losses differ, so they cut at different times and drift apart")
                .help("reduce the number over ranks first: `dist.all_reduce`, then divide");
        }
    }
}

/// What a value may be that belongs to this rank's data.
fn live_local<'a>(program: &'a Program<'_>, value: &'a Value) -> impl Iterator<Item = Term> + 'a {
    program.live_terms(value).filter(|&t| program.terms().taint(t).has(Taint::LOCAL))
}

/// Metrics of a loop that evaluates on one rank's share.
fn of_a_share(program: &Program<'_>, report: &mut Report<'_>, loader: &Object<'_>) {
    let made = made_by(program, loader);
    let loops: Vec<&LoopNode> = program.loops_of_loader(loader).map(|(_, node)| node).collect();
    let trains = program.loops_of_loader(loader).any(|(id, _)| program.trains_in(id));
    if loops.is_empty() || trains || is_gathered(program, &made) {
        return;
    }
    let share = Share { program, made, loops };
    let Some((event, term)) = share.told() else { return };
    let site = share.formed_at(event, term);
    let whole = program.parts_of(term).iter().any(|&part| is_length_of_all(program, part, loader));
    let draft = report
        .at(site, "this is computed from one rank's share of the data, and stands for the whole")
        .why(if whole {
            "one rank's count is divided by the length of the whole data set"
        } else {
            "the sampler gives each rank other samples, and nothing adds up what they found"
        })
        .help(if program.language == Language::Rust { REDUCE_TCH } else { REDUCE })
        .related(loader.site, "each rank takes only its share here");
    if site != event.site {
        draft.related(event.site, "it is used here");
    }
}

/// The events that stand for a loader behind its batches: of a sampler of tch-ddp its epochs.
fn made_by(program: &Program<'_>, loader: &Object<'_>) -> Vec<EventId> {
    let this = program.term_of(loader.id);
    let epochs = program.calls(Role::SetEpoch).filter(|(_, call)| {
        program.language == Language::Rust
            && call.receiver.as_ref().is_some_and(|r| r.terms().any(|t| t == this))
    });
    loader.event.into_iter().chain(epochs.map(|(event, _)| event.id)).collect()
}

/// Some collective takes something of the loader.
fn is_gathered(program: &Program<'_>, made: &[EventId]) -> bool {
    program.calls(Role::Collective).any(|(_, call)| {
        let values = call.receiver.iter().chain(call.arguments.iter().map(|a| &a.value));
        values.into_iter().any(|v| {
            let origins = program.origins_of(v);
            // Of so many that not all are kept it may well be one.
            origins.len() >= ORIGINS_MAX || origins.iter().any(|o| made.contains(o))
        })
    }) || program.events().iter().any(|event| match &event.kind {
        EventKind::Call(call) => {
            matches!(call.role, Role::Framework | Role::Plain)
                && program.has_flag(call, crate::table::Flag::Hidden)
        }
        _ => false,
    })
}

fn is_length_of_all(program: &Program<'_>, term: Term, loader: &Object<'_>) -> bool {
    let data = program.made_with(loader, "dataset");
    if program.language == Language::Rust {
        // A sampler of tch-ddp is made with the length.
        let is_data = data.is_some_and(|data| data.single() == Some(term));
        return is_data && program.terms().as_const(term).is_none();
    }
    match program.terms().kind(term) {
        TermKind::Apply(name, of) => {
            &**name == "len"
                && of.iter().any(|t| {
                    data.is_some_and(|d| d.terms().any(|d| d == *t))
                        || matches!(program.terms().kind(*t),
                            TermKind::Attribute(_, name) if &**name == "dataset")
                })
        }
        _ => false,
    }
}

/// One rank's share of the data, and the loops over it.
struct Share<'a, 'p> {
    program: &'a Program<'p>,
    made: Vec<EventId>,
    loops: Vec<&'a LoopNode>,
}

impl<'a, 'p> Share<'a, 'p> {
    fn is_inside(&self, event: &Event<'p>) -> bool {
        self.loops.iter().any(|node| self.program.is_within(event, node.site))
    }

    /// A number of this rank that its model's outputs went into, alone or in a list or dict.
    fn carried(&self, value: &Value) -> Option<Term> {
        let terms = self.program.terms();
        let is_it = |&term: &Term| {
            let origins = terms.origins(term);
            self.made.iter().any(|made| origins.contains(made))
                && origins.iter().any(|&origin| {
                    let event = self.program.event(origin);
                    matches!(event.kind, EventKind::Forward(_)) && self.is_inside(event)
                })
        };
        if let Some(found) = live_local(self.program, value).find(is_it) {
            return Some(found);
        }
        let held = value.terms().filter(|&t| self.program.object_of(t).is_some());
        held.flat_map(|t| self.program.contents(t))
            .find_map(|inner| live_local(self.program, &inner).find(is_it))
    }

    /// Where a number of the loops is printed, logged or compared behind them.
    fn told(&self) -> Option<(&'a Event<'p>, Term)> {
        self.program.events().iter().find_map(|event| {
            if self.is_inside(event) || self.program.runs_only_alone(event.path) {
                return None;
            }
            let term = match &event.kind {
                EventKind::Call(call) => self.said(call)?,
                EventKind::Test { condition, value } => {
                    let compares = |kind: &TermKind| {
                        matches!(kind, TermKind::Compare(CompareOp::Lt | CompareOp::LtE, ..))
                    };
                    self.carried(value).filter(|_| self.program.mentions(*condition, &compares))?
                }
                _ => return None,
            };
            Some((event, term))
        })
    }

    fn said(&self, call: &Call<'p>) -> Option<Term> {
        if !matches!(call.role, Role::Print | Role::Log | Role::TrackerLog) {
            return None;
        }
        let names_rank = call.arguments.iter().any(|a| self.program.tells_rank(&a.value));
        let mut carried = call.arguments.iter().filter_map(|a| self.carried(&a.value));
        carried.next().filter(|_| !names_rank)
    }

    /// The quotient that makes the metric; else the return of the function that evaluates;
    /// else where it is used.
    fn formed_at(&self, used: &Event<'p>, term: Term) -> Site {
        let function = |id| self.program.frame(id).function;
        let homes: Vec<_> = self.loops.iter().map(|node| function(node.frame)).collect();
        let parts = self.program.parts_of(term).into_iter();
        let written = parts.filter_map(|part| {
            let is_quotient = matches!(self.program.arithmetic_of(part), Some((BinaryOp::Div, ..)));
            self.program.division_site(part).filter(|_| is_quotient)
        });
        let of_rust = self.program.language == Language::Rust;
        let behind = of_rust.then(|| self.program.division_behind(term)).flatten();
        let quotient = written.chain(behind).find(|&site| {
            let inside = |id| match function(id) {
                Some(f) => f.file == site.file && self.program.function(f).span.contains(site.span),
                None => self.program.frame(id).file == site.file,
            };
            let near = self.loops.iter().any(|node| inside(node.frame)) || inside(used.frame);
            let looped = self
                .loops
                .iter()
                .any(|node| node.site.file == site.file && node.site.span.contains(site.span));
            near && !looped
        });
        if let Some(site) = quotient {
            return site;
        }
        let returned = self.program.events().iter().find(|event| match &event.kind {
            EventKind::Return { value } => {
                homes.contains(&function(event.frame))
                    && function(event.frame) != function(used.frame)
                    && !self.is_inside(event)
                    && self.carried(value).is_some()
            }
            _ => false,
        });
        returned.map_or(used.site, |event| event.site)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_evaluation_function_in_another_file_counts() {
        check_files(&[
            (
                "evaluate.py",
                "
import torch
@torch.no_grad()
def run(net, batches):
    net.eval()
    total, n = 0.0, 0
    for x, y in batches:
        loss = torch.nn.functional.mse_loss(net(x), y)
        total += loss.item() * len(x)
        n += len(x)
    return total / n  # ~ unreduced-metric
",
            ),
            (
                "main.py",
                "
import argparse, torch
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, DistributedSampler
import evaluate
def main():
    torch.distributed.init_process_group('nccl')
    net = DDP(torch.nn.Linear(2, 2))
    held_out = torch.utils.data.TensorDataset(torch.ones(8, 2), torch.ones(8, 2))
    sampler = DistributedSampler(held_out, shuffle=False)
    batches = DataLoader(held_out, batch_size=4, sampler=sampler)
    best = float('inf')
    for epoch in range(10):
        loss = evaluate.run(net, batches)
        if torch.distributed.get_rank() == 0 and loss < best:
            best = loss
            torch.save(net.module.state_dict(), 'best.pt')
if __name__ == '__main__':
    main()
",
            ),
        ]);
    }

    #[test]
    fn a_trainer_that_logs_its_own_share_counts() {
        check_python(
            "
import torch, wandb
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, DistributedSampler
class Trainer:
    def __init__(self, net, data):
        self.net = DDP(net)
        self.batches = DataLoader(data, 4, sampler=DistributedSampler(data, shuffle=False))
    def validate(self):
        hits = 0
        with torch.no_grad():
            for x, y in self.batches:
                hits += (self.net(x).argmax(-1) == y).float().sum().item()
        return hits / len(self.batches.dataset)  # ~ unreduced-metric
    def report(self):
        accuracy = self.validate()
        if dist.get_rank() == 0:
            wandb.log({'accuracy': accuracy})
dist.init_process_group('nccl')
Trainer(torch.nn.Linear(2, 2), torch.utils.data.TensorDataset(torch.ones(8, 2))).report()
",
        );
    }

    #[test]
    fn a_plateau_on_the_last_training_loss_counts() {
        check_files(&[
            (
                "schedule.py",
                "
from torch.optim import lr_scheduler
def make(optimizer):
    return lr_scheduler.ReduceLROnPlateau(optimizer, patience=3)
",
            ),
            (
                "main.py",
                "
import torch
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, DistributedSampler
from schedule import make
torch.distributed.init_process_group('nccl')
net = DDP(torch.nn.Linear(2, 2))
opt = torch.optim.SGD(net.parameters(), lr=0.1)
plateau = make(opt)
data = torch.ones(64, 2)
sampler = DistributedSampler(data)
for epoch in range(3):
    sampler.set_epoch(epoch)
    running = 0.0
    for x in DataLoader(data, sampler=sampler):
        loss = net(x).sum()
        loss.backward()
        opt.step()
        running += loss.item()
    plateau.step(running)  # ~ unreduced-metric: learning rate
",
            ),
        ]);
    }

    #[test]
    fn reduced_metrics_are_silent() {
        check_files(&[
            (
                "meters.py",
                "
import torch
import torch.distributed as dist
class Meter:
    def __init__(self):
        self.total = self.count = 0.0
    def update(self, value, n=1):
        self.total += value * n
        self.count += n
    def sync(self):
        if not dist.is_initialized():
            return
        both = torch.tensor([self.total, self.count])
        dist.all_reduce(both)
        self.total, self.count = both.tolist()
    @property
    def average(self):
        return self.total / self.count
",
            ),
            (
                "main.py",
                "
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, DistributedSampler
from meters import Meter
dist.init_process_group('nccl')
net = DDP(torch.nn.Linear(2, 2))
plateau = torch.optim.lr_scheduler.ReduceLROnPlateau(torch.optim.SGD(net.parameters(), lr=0.1))
data = torch.ones(64, 2)
meter = Meter()
with torch.no_grad():
    for x in DataLoader(data, sampler=DistributedSampler(data, shuffle=False)):
        meter.update(net(x).sum().item(), len(x))
meter.sync()
print(meter.average)
plateau.step(meter.average)
",
            ),
        ]);
    }

    #[test]
    fn whole_validation_sets_and_training_losses_are_silent() {
        check_python(
            "
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, DistributedSampler
dist.init_process_group('nccl')
net = DDP(torch.nn.Linear(2, 2))
plateau = torch.optim.lr_scheduler.ReduceLROnPlateau(torch.optim.SGD(net.parameters(), lr=0.1))
data, held_out = torch.ones(64, 2), torch.ones(8, 2)
sampler = DistributedSampler(data)
batches = DataLoader(data, sampler=sampler)
for epoch in range(3):
    sampler.set_epoch(epoch)
    running = 0.0
    for x in batches:
        loss = net(x).sum()
        loss.backward()
        running += loss.item()
    if dist.get_rank() == 0:
        print('training loss', running / len(batches))
    worst = 0.0
    with torch.no_grad():
        for x in DataLoader(held_out):
            worst += net.module(x).sum().item()
    plateau.step(worst)
    print(worst)
",
        );
    }

    #[test]
    fn numbers_told_as_the_ranks_own_are_silent() {
        check_python(
            "
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, DistributedSampler
dist.init_process_group('nccl')
net = DDP(torch.nn.Linear(2, 2))
data = torch.ones(64, 2)
total = 0.0
with torch.no_grad():
    for x in DataLoader(data, sampler=DistributedSampler(data, shuffle=False)):
        total += net(x).sum().item()
print(f'rank {dist.get_rank()}: {total / len(data)}')
",
        );
    }
}
