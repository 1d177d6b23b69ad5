use rustc_hash::{FxHashMap, FxHashSet};

use crate::analysis::facts::Wrapper;
use crate::analysis::{
    ArgumentValue, Call, Const, Event, EventKind, Forward, Object, SAMPLES, Taint, Term, TermKind,
    Value, Via,
};
use crate::model::BinaryOp;
use crate::prelude::*;
use crate::table::{Flag, Role};

declare_rule! {
    /// The batch size depends on the rank, and the gradients are averaged as if it did not.
    ///
    /// `DistributedDataParallel` averages over ranks, not over samples: a rank with one sample
    /// weighs as much as a rank with four, so its sample counts four times. The recipe that
    /// gives rank 0 a smaller batch when its GPU is full does this, and its true global batch
    /// is `1 + 7 * 4 = 29`, not 25. Weight the loss by counts (`n_i * W / N`), or give every
    /// rank the same batch. The same happens where a loss is divided by this rank's own count of
    /// tokens or mask entries (a warning): reduce the count first. Look first at why the first GPU
    /// is full: other processes' contexts on it, or checkpoints loaded without `map_location`.
    ///
    /// ```python bad
    /// import torch.distributed as dist
    /// from torch.utils.data import DataLoader
    ///
    /// dist.init_process_group("nccl")
    /// batch = 1 if dist.get_rank() == 0 else 4
    /// loader = DataLoader([0, 1, 2, 3], batch_size=batch)  # ~ uneven-batch-average
    /// ```
    /// ```python good
    /// import torch.distributed as dist
    /// from torch.utils.data import DataLoader
    ///
    /// dist.init_process_group("nccl")
    /// batch = 32 // dist.get_world_size()
    /// loader = DataLoader([0, 1, 2, 3], batch_size=batch)
    /// ```
    /// ```rust bad
    /// use tch_ddp::{DistributedSampler, Launch, ProcessGroup};
    ///
    /// fn main() -> anyhow::Result<()> {
    ///     let group = ProcessGroup::init(&Launch::from_env()?, Default::default())?;
    ///     let batch = if group.rank() == 0 { 1 } else { 4 };
    ///     let sampler = DistributedSampler::new(1000, &group).batch_size(batch); //~ uneven-batch-average
    ///     Ok(())
    /// }
    /// ```
    /// ```rust good
    /// use tch_ddp::{DistributedSampler, Launch, ProcessGroup};
    ///
    /// fn main() -> anyhow::Result<()> {
    ///     let group = ProcessGroup::init(&Launch::from_env()?, Default::default())?;
    ///     let batch = 32 / group.world_size();
    ///     let sampler = DistributedSampler::new(1000, &group).batch_size(batch);
    ///     Ok(())
    /// }
    /// ```
    ///
    /// # Known limits
    /// Any collective whose result goes into the loss is taken for the weighting.
    pub static RULE = {
        name: "uneven-batch-average",
        level: Level::Error,
        harm: Harm::Wrong,
        tier: 1,
        languages: BOTH,
        fix: FixKind::No,
        check,
    };
}

fn check(program: &Program<'_>, report: &mut Report<'_>) {
    uneven_chunks(program, report);
    if !program.is_distributed() || program.weights_by_counts() {
        return;
    }
    divided_by_own_counts(program, report);
    for (site, value) in program.batch_sizes() {
        if !program.depends_on_rank(&value)
            || is_capped(program, &value)
            || only_evaluates(program, site)
        {
            continue;
        }
        let sizes = sizes(program, &value);
        let message = match sizes {
            Some((first, other)) => format!(
                "rank 0 takes batches of {first}, other ranks of {other}, \
                 and all gradients count the same"
            ),
            None => "the batch size depends on the rank, and all gradients count the same".into(),
        };
        let why = match sizes {
            Some((first, other)) => format!(
                "gradients are averaged over ranks, not samples; on 8 ranks the true global \
                 batch is {first} + 7*{other} = {}",
                first + 7 * other
            ),
            None => "gradients are averaged over ranks, not samples: the small batch weighs too \
                     much"
                .to_owned(),
        };
        report.at(site, message).why(why).help(match program.language {
            Language::Python => {
                "look first at why GPU 0 is full (`torch.cuda.set_device`, `map_location`); \
                 else scale each rank's loss by its count times world size over the total"
            }
            Language::Rust => {
                "look first at why GPU 0 is full; else use `ddp.weighted(Weight::of(n))`, \
                 which is exact for unequal counts"
            }
        });
    }
}

/// `min(size, len(dataset))`: no rank is meant to take another size.
fn is_capped(program: &Program<'_>, value: &Value) -> bool {
    value.terms().any(|term| {
        let parts = program.parts_of(term);
        parts.iter().any(|&part| match program.terms().kind(part) {
            TermKind::Apply(name, _) => matches!(&**name, "min" | "len"),
            TermKind::Opaque { site, .. } => program.text(*site).starts_with("min("),
            _ => false,
        })
    })
}

/// A `DataParallel` that cuts the batch into chunks of different sizes, around a model that
/// averages over its own chunk: the mean of these means counts each device the same.
fn uneven_chunks(program: &Program<'_>, report: &mut Report<'_>) {
    let terms = program.terms();
    for wrapper in program.objects() {
        let is_dp = program.wrapper_kind(wrapper.id) == Some(Wrapper::Dp);
        let Some(sizes) = chunk_sizes(program, wrapper).filter(|_| is_dp) else { continue };
        let through = program.forwards().filter(|(event, forward)| {
            forward.via == Via::Wrapper(wrapper.id) && program.trained().contains(&event.id)
        });
        let averages = |forward: &Forward<'_>| {
            program.calls(Role::Loss).any(|(event, call)| {
                event.modes.wrapper == Some(wrapper.id)
                    && !is_unreduced(program, call)
                    && forward.result.comes_from(terms, event.id)
            })
        };
        let Some((outer, _)) = through.filter(|(_, f)| averages(f)).last() else { continue };
        let mean = program.calls(Role::Reduce).find(|(event, call)| {
            let mut given = call.receiver.iter().chain(call.arguments.iter().map(|a| &a.value));
            event.modes.forward.is_none()
                && call.name.is_some_and(|n| n.ends_with("mean"))
                && given.any(|value| value.comes_from(terms, outer.id))
        });
        let Some((mean, _)) = mean else { continue };
        report
            .at(mean.site, "the chunks of the devices differ in size, and their losses count alike")
            .why("a sample in the small chunk of the first device weighs more than the others")
            .help(
                "return the loss of each sample, or weight the losses by the chunks' sizes \
                 before they are averaged",
            )
            .related(sizes, "the sizes are given here");
    }
}

/// Where a wrapper of the project is told the sizes of its chunks.
fn chunk_sizes(program: &Program<'_>, wrapper: &Object<'_>) -> Option<Site> {
    let class = program.class_of(wrapper)?;
    let constructor = program.class_member(class, "__init__")?;
    let TermKind::Function { function, .. } = *program.terms().kind(constructor) else {
        return None;
    };
    let parameters = &program.function(function).parameters;
    let is_size = |a: &&ArgumentValue<'_>| {
        let by_position = || Some(parameters.get(a.position? + 1)?.name);
        let name = a.name.or_else(by_position);
        let is_named = name.is_some_and(|n| {
            matches!(&*n, "chunk_sizes" | "chunk_size" | "gpu0_bsz" | "gpu0_batch_size")
        });
        is_named && a.value.single() != Some(program.terms().none)
    };
    let given = wrapper.arguments.iter().find(is_size)?;
    Some(Site { file: wrapper.site.file, span: given.expr.span })
}

/// `reduction="none"`: a loss for each sample.
fn is_unreduced(program: &Program<'_>, call: &Call<'_>) -> bool {
    let made = call.receiver.as_ref().and_then(|r| program.object_in(r));
    let of_object = made.into_iter().flat_map(|o| &o.arguments);
    let none = |a: &ArgumentValue<'_>| {
        let told = a.value.single();
        match a.name.as_deref() {
            Some("reduction") => {
                told.and_then(|t| program.terms().as_str(t)).as_deref() == Some("none")
            }
            Some("reduce") => told == Some(program.terms().no),
            _ => false,
        }
    };
    call.arguments.iter().chain(of_object).any(none)
}

/// A loader whose batches only go through models that are not trained on them.
fn only_evaluates(program: &Program<'_>, site: Site) -> bool {
    let Some(loader) = program.loaders().find(|l| l.site == site) else { return false };
    let loops: Vec<_> = program.loops_of_loader(loader).collect();
    let runs = program
        .forwards()
        .any(|(event, _)| loops.iter().any(|(_, node)| program.is_within(event, node.site)));
    runs && !loops.iter().any(|(id, _)| program.trains_in(*id))
}

/// The loss is divided by how many tokens or mask entries this rank has.
fn divided_by_own_counts(program: &Program<'_>, report: &mut Report<'_>) {
    let mut sums: FxHashMap<Term, (&Event<'_>, &Call<'_>)> = FxHashMap::default();
    for (event, call) in program.calls(Role::Reduce) {
        let counts = program.has_flag(call, Flag::Sum)
            || call.name.is_some_and(|n| n.ends_with("count_nonzero"));
        if let Some(term) = call.result.single().filter(|_| counts && takes_all(program, call)) {
            sums.insert(term, (event, call));
        }
    }
    let mut seen = FxHashSet::default();
    for (value, is_loss) in losses(program) {
        let quotients = program.live_terms(value).flat_map(|t| program.parts_of(t));
        for term in quotients.collect::<Vec<_>>() {
            if !seen.insert((term, is_loss)) {
                continue;
            }
            let Some((BinaryOp::Div, top, bottom)) = program.arithmetic_of(term) else {
                continue;
            };
            let parts = program.parts_of(bottom);
            let Some((count, call)) = parts.iter().find_map(|part| sums.get(part)) else {
                let counted = parts.iter().find_map(|&part| counted_items(program, part));
                if let Some(count) =
                    counted.filter(|_| is_sum_of_losses(program, top, is_loss, &sums))
                {
                    tell_own_count(program, report, term, count);
                }
                continue;
            };
            let weighs = weighs_the_loss(program, top, count, &sums);
            if is_own_count(program, count, call, weighs)
                && is_sum_of_losses(program, top, is_loss, &sums)
            {
                tell_own_count(program, report, term, count.site);
            }
        }
    }
}

/// `torch.as_tensor([sum(len(t["boxes"]) for t in targets)])`, or the number itself.
fn counted_items(program: &Program<'_>, term: Term) -> Option<Site> {
    let counts = |term: Term| match *program.terms().kind(term) {
        TermKind::Opaque { site, .. } => program.text(site).starts_with("sum(len(").then_some(site),
        _ => None,
    };
    if let Some(site) = counts(term) {
        return Some(site);
    }
    let (_, made) = program.maker(term).filter(|(_, call)| call.role == Role::MakeTensor)?;
    let data = made.arguments.iter().find(|a| a.position == Some(0))?.value.single()?;
    let held = program.contents(data);
    counts(data).or_else(|| held.iter().flat_map(Value::terms).find_map(counts))
}

fn tell_own_count(program: &Program<'_>, report: &mut Report<'_>, term: Term, count: Site) {
    let text = program.text(count);
    report
        .at(
            program.division_site(term).unwrap_or(count),
            format!("the loss is divided by this rank's own count `{text}`"),
        )
        .level(Level::Warning)
        .why(
            "the wrapper averages over ranks as equals, so a token on a rank with few of them \
             weighs more than one on a rank with many",
        )
        .help(
            "`all_reduce` the count, divide by it, and multiply by the number of ranks, which \
             the wrapper divides by",
        )
        .related(count, "counted on this rank alone");
}

/// No dimension is kept: one number comes out.
fn takes_all(program: &Program<'_>, call: &Call<'_>) -> bool {
    let of_method = call.receiver.is_some();
    let nothing = |a: &ArgumentValue<'_>| a.value.single() == Some(program.terms().none);
    call.arguments.iter().enumerate().all(|(position, a)| {
        !of_method && position == 0 || a.name.is_some_and(|n| &*n == "dtype") || nothing(a)
    })
}

/// What is differentiated, and what functions of a training step give back: whether it is the
/// former.
fn losses<'a>(program: &'a Program<'_>) -> Vec<(&'a Value, bool)> {
    let mut found = Vec::new();
    for role in [Role::Backward, Role::FusedStep, Role::ScaleLoss] {
        for (_, call) in program.calls(role) {
            found.extend(call.receiver.iter().map(|value| (value, true)));
            found.extend(call.arguments.iter().map(|a| (&a.value, true)));
        }
    }
    for event in program.events() {
        let EventKind::Return { value } = &event.kind else { continue };
        let wrapper = event.modes.wrapper.and_then(|id| program.wrapper_kind(id));
        let of_model = wrapper == Some(Wrapper::Ddp) && event.modes.forward == Some(event.frame);
        let of_step = program
            .forwards_behind(value)
            .iter()
            .any(|f| program.trained().contains(f) && goes_through_ddp(program, *f));
        if event.modes.grad && (of_model || of_step) {
            found.push((value, of_model));
        }
    }
    found
}

fn goes_through_ddp(program: &Program<'_>, forward: crate::analysis::EventId) -> bool {
    match &program.event(forward).kind {
        EventKind::Forward(forward) => program.ddp_of(forward).is_some(),
        _ => false,
    }
}

/// A number of entries that belongs to this rank's data: of a mask, of labels that count.
fn is_own_count(program: &Program<'_>, event: &Event<'_>, call: &Call<'_>, weighs: bool) -> bool {
    let Some(counted) = call.receiver.as_ref().or(call.arguments.first().map(|a| &a.value)) else {
        return false;
    };
    let taint = counted.taint(program.terms());
    let compares =
        counted.terms().any(|t| program.mentions(t, &|kind| matches!(kind, TermKind::Compare(..))));
    let text = program.text(event.site).to_ascii_lowercase();
    let around = program.frame(event.frame).function.map(|f| {
        program.text(Site { file: f.file, span: program.function(f).span }).to_ascii_lowercase()
    });
    let has = |text: &str, words: &[&str]| words.iter().any(|word| text.contains(word));
    // A mask alone may count the same on every rank: patches left out at a fixed ratio.
    let is_mask = (weighs || text.contains("mask"))
        && around
            .as_ref()
            .is_some_and(|around| has(around, VARYING) || has(around, &["label", "-100"]));
    // A mask of lengths may take its size from an output.
    let of_lengths = is_mask && around.is_some_and(|around| around.contains("length"));
    taint.has(Taint::LOCAL.with(Taint::RANDOM))
        && (of_lengths || program.forwards_behind(counted).is_empty())
        && (compares || is_mask || has(&text, VARYING))
}

/// Words for what differs in number from sample to sample.
const VARYING: &[&str] = &[
    "!=",
    ".ne(",
    "pad",
    "valid",
    "length",
    "attention_mask",
    "ignore",
    "n_tokens",
    "num_tokens",
    "input_ids",
    "loss_mask",
];

/// `(loss * m).sum() / m.sum()`: what is counted weighs what is summed.
fn weighs_the_loss(
    program: &Program<'_>,
    top: Term,
    count: &Event<'_>,
    sums: &FxHashMap<Term, (&Event<'_>, &Call<'_>)>,
) -> bool {
    let parts = program.parts_of(top);
    let Some((sum, _)) = parts.iter().find_map(|part| sums.get(part)) else { return false };
    let (Some(summed), Some(counted)) = (program.receiver_text(sum), program.receiver_text(count))
    else {
        return false;
    };
    let summed = summed.trim_start_matches('(').trim_end_matches(')');
    summed.ends_with(&format!("* {counted}")) || summed.starts_with(&format!("{counted} *"))
}

/// The dividend is a sum over what the model gave; of a value that is only given back it must
/// not count hits.
fn is_sum_of_losses(
    program: &Program<'_>,
    top: Term,
    is_loss: bool,
    sums: &FxHashMap<Term, (&Event<'_>, &Call<'_>)>,
) -> bool {
    let parts = program.parts_of(top);
    let Some((event, _)) = parts.iter().find_map(|part| sums.get(part)) else {
        return is_loss && !program.forwards_behind(&Value::of(program.terms(), top)).is_empty();
    };
    let text = program.text(event.site).to_ascii_lowercase();
    let hits = ["==", "argmax", "correct", "acc", ".eq(", "hit", "match"];
    is_loss || !hits.iter().any(|word| text.contains(word))
}

fn sizes(program: &Program<'_>, value: &Value) -> Option<(i64, i64)> {
    let on = |sample| match program.value_on(value, sample) {
        Some(Const::Int(n)) => Some(n),
        _ => None,
    };
    let (first, other) = (on(SAMPLES[0])?, on(SAMPLES[1])?);
    (first != other).then_some((first, other))
}

impl<'p> Program<'p> {
    /// Where batches get their size: loaders, builders of samplers, random batches.
    pub(super) fn batch_sizes(&self) -> Vec<(Site, Value)> {
        let mut found = Vec::new();
        let is_size = |a: &&ArgumentValue<'_>| a.name.is_some_and(|n| &*n == "batch_size");
        for event in self.events() {
            let Some(call) = event.call() else { continue };
            match call.role {
                Role::Loader | Role::DistributedSampler | Role::OtherSampler => {
                    let given = call.arguments.iter().find(is_size);
                    found.extend(given.map(|a| (event.site, a.value.clone())));
                }
                // Where only some ranks draw, they draw as many.
                Role::Random if self.language == Language::Rust && !self.is_guarded(event.path) => {
                    let size = self.random_batch(call);
                    found
                        .extend(size.map(|v| (self.trained_at(event.id).unwrap_or(event.site), v)));
                }
                _ => {}
            }
        }
        found.extend(self.built_batch_sizes());
        found
    }

    /// `sampler.batch_size(n)`.
    fn built_batch_sizes(&self) -> impl Iterator<Item = (Site, Value)> + '_ {
        self.objects().iter().filter(|o| o.role == Role::DistributedSampler).filter_map(|o| {
            let size = self.attribute_now(self.term_of(o.id), "batch_size")?;
            Some((o.site, size.clone()))
        })
    }

    /// The step that trains on what an event drew.
    fn trained_at(&self, drawn: crate::analysis::EventId) -> Option<Site> {
        [Role::FusedStep, Role::Backward].into_iter().find_map(|role| {
            let uses = |call: &Call<'p>| {
                let given = call.arguments.iter().map(|a| &a.value).chain(&call.receiver);
                given.into_iter().any(|value| value.comes_from(self.terms(), drawn))
            };
            self.calls(role).find(|(_, call)| uses(call)).map(|(event, _)| event.site)
        })
    }

    /// `Tensor::randint(n, [batch], ..)`: rows drawn at random.
    fn random_batch(&self, call: &Call<'p>) -> Option<Value> {
        let name = call.name?.as_str().rsplit('.').next()?;
        let size = match name {
            "randint" | "randint_low" => {
                call.arguments.iter().find(|a| a.name.is_some_and(|n| &*n == "size"))?
            }
            "rand" | "randn" => call.arguments.first()?,
            _ => return None,
        };
        self.contents(size.value.single()?).into_iter().next()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_size_capped_by_the_data_is_silent() {
        check_python(
            "
import os
import torch.distributed as dist
from torch.utils.data import DataLoader
rank = int(os.environ['RANK'])
dist.init_process_group('nccl')
class Data:
    def __init__(self, rank):
        self.items = list(range(100))[rank::4]
    def __len__(self):
        return len(self.items)
def make(size, rank):
    data = Data(rank)
    return DataLoader(data, batch_size=min(size, len(data)))
for x in make(16, rank):
    pass
",
        );
    }

    #[test]
    fn the_recipe_for_a_full_gpu_counts_and_tells_the_true_batch() {
        check_python(
            "
import argparse, os, torch
import torch.distributed as dist
from torch.utils.data import DataLoader
p = argparse.ArgumentParser()
p.add_argument('-b', '--batch-size', default=32, type=int)
args = p.parse_args()
def main_worker(gpu, args):
    dist.init_process_group('nccl')
    args.rank = int(os.environ['RANK'])
    args.batch_size = 4
    if args.rank == 0:
        args.batch_size = 1
    loader = DataLoader(list(range(100)), batch_size=args.batch_size)  # ~ uneven-batch-average: batches of 1
    for x in loader:
        pass
torch.multiprocessing.spawn(main_worker, nprocs=8, args=(args,))
for _ in range(1):
    pass
",
        );
    }

    #[test]
    fn a_masked_mean_over_own_tokens_counts() {
        check_files(&[
            (
                "losses.py",
                "
import torch
import torch.nn.functional as F
class MaskedLoss(torch.nn.Module):
    def __init__(self, pad):
        super().__init__()
        self.pad = pad
    def forward(self, scores, target):
        mask = target.ne(self.pad)
        each = F.cross_entropy(scores.transpose(1, 2), target, reduction='none')
        return (each * mask).sum() / mask.sum().clamp(min=1)  # ~ uneven-batch-average: own count
",
            ),
            (
                "main.py",
                "
import torch
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader
from losses import MaskedLoss
if __name__ == '__main__':
    torch.distributed.init_process_group('nccl')
    net = DDP(torch.nn.Linear(2, 2))
    criterion = MaskedLoss(0)
    for ids, labels in DataLoader([1, 2]):
        loss = criterion(net(ids), labels)
        (loss / 2).backward()
",
            ),
        ]);
    }

    #[test]
    fn weights_summed_in_the_wrapped_model_count() {
        check_python(
            "
import torch
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader
class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.head = torch.nn.Linear(2, 2)
    def forward(self, ids, attention_mask):
        each = torch.nn.functional.cross_entropy(self.head(ids), ids, reduction='none')
        w = attention_mask[:, 1:].flatten()
        n = w.sum()
        return (each * w).sum() / n  # ~ uneven-batch-average: own count
torch.distributed.init_process_group('nccl')
net = DDP(Model())
for batch in DataLoader([1, 2]):
    net(batch['ids'], batch['mask']).backward()
",
        );
    }

    #[test]
    fn patches_masked_at_a_fixed_ratio_are_silent() {
        check_python(
            "
import torch
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader
class Reconstruct(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.net = torch.nn.Linear(2, 2)
    def forward(self, image, mask):
        off = torch.nn.functional.l1_loss(self.net(image), image, reduction='none')
        return (off * mask).sum() / (mask.sum() + 1e-5) / 3
torch.distributed.init_process_group('nccl')
net = DDP(Reconstruct())
for image, mask in DataLoader([1, 2]):
    net(image, mask).backward()
",
        );
    }

    #[test]
    fn counts_of_hits_and_means_of_each_sample_are_silent() {
        check_python(
            "
import torch
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader
def step(net, ids, labels):
    mask = labels != 0
    scores = net(ids)
    loss = ((scores - labels) * mask).sum(1) / mask.sum(1)
    hits = ((scores.argmax(-1) == labels) * mask).sum()
    return loss.mean(), hits / mask.sum()
torch.distributed.init_process_group('nccl')
net = DDP(torch.nn.Linear(2, 2))
for ids, labels in DataLoader([1, 2]):
    loss, accuracy = step(net, ids, labels)
    loss.backward()
",
        );
    }

    #[test]
    fn a_reduced_count_is_silent() {
        check_python(
            "
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader
dist.init_process_group('nccl')
net = DDP(torch.nn.Linear(2, 2))
for ids, labels in DataLoader([1, 2]):
    mask = (labels != 0).float()
    count = mask.sum()
    dist.all_reduce(count)
    loss = ((net(ids) - labels) * mask).sum() * dist.get_world_size() / count
    loss.backward()
",
        );
    }

    #[test]
    fn a_validation_loader_on_rank_0_is_silent() {
        check_python(
            "
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader
dist.init_process_group('nccl')
net = DDP(torch.nn.Linear(2, 2))
held_out = DataLoader([1, 2], batch_size=1 if dist.get_rank() == 0 else 8)
with torch.no_grad():
    for x in held_out:
        net.module(x)
",
        );
    }

    const CHUNKS: &str = "
import torch
from torch.nn.modules import Module
from torch.nn.parallel.parallel_apply import parallel_apply
from torch.nn.parallel.replicate import replicate
from torch.nn.parallel.scatter_gather import gather
class _Uneven(Module):
    def __init__(self, module, device_ids=None, output_device=None, dim=0, chunk_sizes=None):
        super(_Uneven, self).__init__()
        self.module = module
        self.device_ids = device_ids
        self.chunk_sizes = chunk_sizes
    def forward(self, *inputs):
        replicas = self.replicate(self.module, self.device_ids)
        outputs = self.parallel_apply(replicas, self.scatter(inputs))
        return self.gather(outputs, 0)
    def replicate(self, module, ids):
        return replicate(module, ids)
    def scatter(self, inputs):
        return [inputs]
    def parallel_apply(self, replicas, inputs):
        return parallel_apply(replicas, inputs)
    def gather(self, outputs, device):
        return gather(outputs, device)
def Parallel(module, device_ids=None, chunk_sizes=None):
    if chunk_sizes is None:
        return torch.nn.DataParallel(module, device_ids)
    return _Uneven(module, device_ids, None, 0, chunk_sizes)
";

    #[test]
    fn chunks_of_different_sizes_count() {
        let main = |reduction: &str| {
            format!(
                "
import argparse
import torch
from parallel import Parallel
class WithLoss(torch.nn.Module):
    def __init__(self, net):
        super().__init__()
        self.net = net
        self.loss = torch.nn.L1Loss(reduction='{reduction}')
    def forward(self, batch):
        out = self.net(batch['x'])
        return out, self.loss(out, batch['y'])
class Trainer:
    def __init__(self, net, opt):
        self.net = WithLoss(net)
        self.opt = opt
    def place(self, gpus, sizes):
        if len(gpus) > 1:
            self.net = Parallel(self.net, device_ids=gpus, chunk_sizes=sizes).to('cuda')
    def epoch(self, batches):
        for batch in batches:
            _, loss = self.net(batch)
            loss = loss.mean(){}
            loss.backward()
            self.opt.step()
opt = argparse.ArgumentParser().parse_args()
net = torch.nn.Linear(2, 2)
trainer = Trainer(net, torch.optim.SGD(net.parameters(), 0.1))
trainer.place(opt.gpus, opt.chunk_sizes)
for _ in range(3):
    trainer.epoch([])
",
                if reduction == "mean" { "  # ~ uneven-batch-average: chunks" } else { "" }
            )
        };
        check_files(&[("parallel.py", CHUNKS), ("main.py", &main("mean"))]);
        check_files(&[("parallel.py", CHUNKS), ("main.py", &main("none"))]);
    }

    #[test]
    fn a_helper_that_builds_the_loader_counts() {
        check_files(&[
            (
                "data.py",
                "
from torch.utils.data import DataLoader
def make_loader(dataset, size):
    return DataLoader(dataset, size)  # ~ uneven-batch-average
",
            ),
            (
                "main.py",
                "
import torch.distributed as dist
from data import make_loader
if __name__ == '__main__':
    dist.init_process_group('nccl')
    rank = dist.get_rank()
    make_loader([1, 2, 3], 8 if rank > 0 else 2)
",
            ),
        ]);
    }

    #[test]
    fn a_loss_weighted_by_counts_is_silent() {
        check_python(
            "
import torch
import torch.distributed as dist
from torch.utils.data import DataLoader
dist.init_process_group('nccl')
rank = dist.get_rank()
net = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(2, 2))
for x in DataLoader([torch.ones(2)] * 9, batch_size=1 if rank == 0 else 4):
    n = torch.tensor(float(len(x)))
    total = n.clone()
    dist.all_reduce(total)
    loss = net(x).mean() * n * dist.get_world_size() / total
    loss.backward()
",
        );
    }

    #[test]
    fn an_equal_share_of_a_total_is_silent() {
        check_python(
            "
import torch.distributed as dist
from torch.utils.data import DataLoader
dist.init_process_group('nccl')
total = 256
for x in DataLoader([1, 2], batch_size=total // dist.get_world_size()):
    pass
",
        );
    }

    #[test]
    fn weights_in_rust_are_silent() {
        check_rust(
            "
use tch_ddp::{Ddp, DistributedSampler, Launch, ProcessGroup, Weight};
fn main() -> anyhow::Result<()> {
    let group = ProcessGroup::init(&Launch::from_env()?, Default::default())?;
    let vs = tch::nn::VarStore::new(group.device());
    let net = tch::nn::seq_t();
    let ddp = Ddp::new(net, vs, &group, Default::default())?;
    let mut opt = tch::nn::Adam::default().build(ddp.vars(), 1e-3)?;
    let batch = if group.rank() == 0 { 1 } else { 4 };
    let sampler = DistributedSampler::new(100, &group).batch_size(batch);
    for rows in sampler.epoch(0) {
        let loss = ddp.forward_t(&rows, true).mean(tch::Kind::Float);
        ddp.weighted(Weight::of(batch)).backward_step(&mut opt, &loss)?;
    }
    Ok(())
}
",
        );
    }

    #[test]
    fn a_validation_loader_on_one_rank_is_silent() {
        check_python(
            "
import torch.distributed as dist
from torch.utils.data import DataLoader
dist.init_process_group('nccl')
if dist.get_rank() == 0:
    val = DataLoader([1, 2], batch_size=1)
train = DataLoader([1, 2], batch_size=4)
for x in train:
    pass
",
        );
    }

    #[test]
    fn a_number_of_boxes_counts() {
        check_python(
            r#"
import os
import torch
import torch.nn as nn
import torch.nn.functional as F
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP
class SetCriterion(nn.Module):
    def forward(self, outputs, targets):
        num_boxes = sum(len(t["boxes"]) for t in targets)
        num_boxes = torch.as_tensor([num_boxes], dtype=torch.float, device=outputs.device)
        gt = torch.cat([t["boxes"] for t in targets])
        l1 = F.l1_loss(outputs[: len(gt)], gt, reduction="none")
        return l1.sum() / num_boxes  # ~ uneven-batch-average
def batch():
    k = torch.randint(1, 4, (2,)).tolist()
    return torch.randn(8, 4).cuda(), [{"boxes": torch.rand(n, 4).cuda()} for n in k]
def main():
    dist.init_process_group("nccl")
    g = int(os.environ["LOCAL_RANK"])
    torch.cuda.set_device(g)
    torch.manual_seed(dist.get_rank())
    net, crit = DDP(nn.Linear(4, 4).cuda(), device_ids=[g]), SetCriterion()
    opt = torch.optim.SGD(net.parameters(), 0.1)
    for _ in range(10):
        x, t = batch()
        loss = crit(net(x), t)
        opt.zero_grad()
        loss.backward()
        opt.step()
if __name__ == "__main__":
    main()
"#,
        );
    }

    #[test]
    fn a_mask_of_lengths_counts() {
        check_python(
            r#"
import os
import torch
import torch.nn.functional as F
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP
def masked_l1(pred, target, lengths):
    mask = torch.arange(pred.shape[1], device=pred.device)[None] < lengths[:, None]
    diff = (pred - target).abs() * mask[..., None]
    frames = mask.sum()
    return diff.sum() / frames  # ~ uneven-batch-average
def main():
    dist.init_process_group("nccl")
    g = int(os.environ["LOCAL_RANK"])
    torch.cuda.set_device(g)
    torch.manual_seed(dist.get_rank())
    net = DDP(torch.nn.Linear(8, 8).cuda(), device_ids=[g])
    opt = torch.optim.SGD(net.parameters(), 0.1)
    for _ in range(10):
        x = torch.randn(4, 20, 8).cuda()
        n = torch.randint(5, 20, (4,)).cuda()
        loss = masked_l1(net(x), x, n)
        opt.zero_grad(); loss.backward(); opt.step()
if __name__ == "__main__":
    main()
"#,
        );
    }
}
