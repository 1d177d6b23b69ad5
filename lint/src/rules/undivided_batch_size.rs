use crate::analysis::{ArgumentValue, Const, Object, Term, TermKind, Value};
use crate::model::{BinaryOp, Expr, ExprKind, Literal};
use crate::prelude::*;
use crate::table::Role;

declare_rule! {
    /// A total batch size is used whole by each process, or a schedule counts the steps of one
    /// process that takes all data.
    ///
    /// With a `DistributedSampler` each rank takes its share of the data: an epoch has
    /// `len(loader)` steps, not `len(dataset) / batch_size`. A schedule made for the latter
    /// stretches by the number of ranks, and never reaches its end. And a batch size that is
    /// meant as the total of all ranks has to be divided by their number.
    ///
    /// ```python bad
    /// import torch
    /// from torch.nn.parallel import DistributedDataParallel as DDP
    /// from torch.utils.data import DataLoader, DistributedSampler, TensorDataset
    ///
    /// torch.distributed.init_process_group("nccl")
    /// data = TensorDataset(torch.ones(64, 2))
    /// loader = DataLoader(data, batch_size=8, sampler=DistributedSampler(data))
    /// model = DDP(torch.nn.Linear(2, 2))
    /// optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    /// steps = 10 * len(data) // 8
    /// schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.1, total_steps=steps)  # ~ undivided-batch-size
    /// ```
    /// ```python good
    /// import torch
    /// from torch.nn.parallel import DistributedDataParallel as DDP
    /// from torch.utils.data import DataLoader, DistributedSampler, TensorDataset
    ///
    /// torch.distributed.init_process_group("nccl")
    /// data = TensorDataset(torch.ones(64, 2))
    /// loader = DataLoader(data, batch_size=8, sampler=DistributedSampler(data))
    /// model = DDP(torch.nn.Linear(2, 2))
    /// optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    /// steps = 10 * len(loader)
    /// schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.1, total_steps=steps)
    /// ```
    /// ```rust bad
    /// use tch_ddp::{DistributedSampler, Launch, ProcessGroup};
    ///
    /// const TOTAL_BATCH: usize = 256;
    ///
    /// fn main() -> anyhow::Result<()> {
    ///     let group = ProcessGroup::init(&Launch::from_env()?, Default::default())?;
    ///     let sampler = DistributedSampler::new(1000, &group).batch_size(TOTAL_BATCH); //~ undivided-batch-size
    ///     Ok(())
    /// }
    /// ```
    /// ```rust good
    /// use tch_ddp::{DistributedSampler, Launch, ProcessGroup};
    ///
    /// const TOTAL_BATCH: usize = 256;
    ///
    /// fn main() -> anyhow::Result<()> {
    ///     let group = ProcessGroup::init(&Launch::from_env()?, Default::default())?;
    ///     let batch = TOTAL_BATCH / group.world_size();
    ///     let sampler = DistributedSampler::new(1000, &group).batch_size(batch);
    ///     Ok(())
    /// }
    /// ```
    ///
    /// # Known limits
    /// A batch size is taken for a total by its name (`total`, `global`, `effective`), by the
    /// help text of its option, or by the comment on its field. Schedules of one's own, made of
    /// a function, are silent.
    pub static RULE = {
        name: "undivided-batch-size",
        level: Level::Warning,
        harm: Harm::Wrong,
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
    let sharded: Vec<&Object<'_>> = program.shares().collect();
    if program.language == Language::Rust {
        return check_tch(program, report, &sharded);
    }
    for loader in &sharded {
        whole_total(program, report, loader);
    }
    for (site, arguments) in schedules(program) {
        for argument in arguments {
            let Some(loader) = sharded.iter().find(|l| counts_all_data(program, argument, l))
            else {
                continue;
            };
            report
                .at(site, "this schedule counts the steps of one process that takes all data")
                .why(
                    "the sampler gives each rank a share, so an epoch has fewer steps: warm-up \
                     and decay stretch by the number of ranks",
                )
                .help("count `len(loader)` steps per epoch, or divide by the number of ranks, too")
                .related(loader.site, "each rank takes only its share here");
            break;
        }
    }
}

/// What schedules are made with: those of torch, of frameworks, and classes made of them.
fn schedules<'a>(program: &'a Program<'_>) -> Vec<(Site, Vec<&'a Value>)> {
    let mut found = Vec::new();
    for (event, call) in program.calls(Role::Scheduler) {
        // In a helper that computes the schedule: where that is asked for.
        let frame = program.frame(event.frame);
        let by_function = call.arguments.iter().any(|a| {
            let kind = a.value.single().map(|t| program.terms().kind(t));
            matches!(kind, Some(TermKind::Function { closure: Some(of), .. }) if *of == frame.id)
        });
        let site = frame.call.filter(|_| by_function && frame.caller.is_some());
        let values = call.arguments.iter().map(|a| &a.value).collect();
        found.push((site.unwrap_or(event.site), values));
    }
    for object in program.objects().iter().filter(|o| o.role == Role::Scheduler) {
        found.push((object.site, object.arguments.iter().map(|a| &a.value).collect()));
    }
    found
}

/// `len(dataset) / batch_size` of a loader that gives each rank a share, and no number of ranks.
fn counts_all_data(program: &Program<'_>, value: &Value, loader: &Object<'_>) -> bool {
    let terms = program.terms();
    let Some(data) = program.made_with(loader, "dataset") else { return false };
    let Some(size) = program.made_with(loader, "batch_size").and_then(Value::single) else {
        return false;
    };
    if terms.as_int(size) == Some(1) || program.counts_ranks(value) {
        return false;
    }
    value.terms().any(|term| {
        let parts = program.parts_of(term);
        let counts = parts.iter().any(|&part| match terms.kind(part) {
            TermKind::Apply(name, of) => {
                &**name == "len" && of.iter().any(|t| data.terms().any(|d| d == *t))
            }
            _ => false,
        });
        counts && parts.contains(&size)
    })
}

/// The loader takes batches of a size that is meant for all ranks together.
fn whole_total(program: &Program<'_>, report: &mut Report<'_>, loader: &Object<'_>) {
    let is_size = |a: &&ArgumentValue<'_>| a.name.is_some_and(|n| &*n == "batch_size");
    let Some(size) = loader.arguments.iter().find(is_size) else { return };
    if program.counts_ranks(&size.value) {
        return;
    }
    let Some(term) = size.value.single() else { return };
    let Some(word) =
        total_by_name(program, size.expr, term).or_else(|| total_by_help(program, term))
    else {
        return;
    };
    let text = program.text(Site { file: loader.site.file, span: size.expr.span });
    report
        .at(loader.site, format!("each rank takes batches of `{text}`, which is {word}"))
        .why("the batch of one step is that size times the number of ranks")
        .help("divide it by the number of ranks: `batch_size // dist.get_world_size()`");
}

/// tch-ddp: samplers that take a total, and learning rates over all steps of one process.
fn check_tch(program: &Program<'_>, report: &mut Report<'_>, samplers: &[&Object<'_>]) {
    for sampler in samplers {
        let Some((file, expr)) = program.written_setting(sampler, "batch_size") else { continue };
        let size = program.setting(sampler, "batch_size");
        let Some(size) = size.filter(|size| !program.counts_ranks(size)) else { continue };
        let word = size.single().and_then(|term| {
            total_by_name(program, expr, term).or_else(|| total_by_comment(program, expr))
        });
        let Some(word) = word else { continue };
        let site = Site { file, span: expr.span };
        report
            .at(
                site,
                format!("each rank takes batches of `{}`, which is {word}", program.text(site)),
            )
            .why("the batch of one step is that size times the number of ranks")
            .help("divide it by the number of ranks: `batch_size / group.world_size()`");
    }
    for (event, call) in program.calls(Role::SchedulerStep) {
        let Some(rate) = call.argument("value").known() else { continue };
        let Some(sampler) = samplers.iter().find(|s| counts_all_rows(program, &rate.value, s))
        else {
            continue;
        };
        report
            .at(event.site, "this schedule counts the steps of one process that takes all data")
            .why(
                "the sampler gives each rank a share, so an epoch has fewer steps: warm-up and \
                 decay stretch by the number of ranks",
            )
            .help("count `sampler.len()` steps per epoch, or divide by the number of ranks, too")
            .related(sampler.site, "each rank takes only its share here");
    }
}

/// `rows / batch_size` of a sampler that gives each rank a share, and no number of ranks.
fn counts_all_rows(program: &Program<'_>, value: &Value, sampler: &Object<'_>) -> bool {
    let terms = program.terms();
    let Some(rows) = program.made_with(sampler, "dataset").and_then(Value::single) else {
        return false;
    };
    let Some(size) = program.setting(sampler, "batch_size").and_then(Value::single) else {
        return false;
    };
    if terms.as_int(size) == Some(1) || terms.as_const(rows).is_some() {
        return false;
    }
    let is_quotient = |part: Term| match program.arithmetic_of(part) {
        Some((BinaryOp::Div | BinaryOp::FloorDiv, above, below)) => {
            program.parts_of(above).contains(&rows) && program.parts_of(below).contains(&size)
        }
        _ => false,
    };
    !program.counts_ranks(value)
        && value.terms().any(|term| program.parts_of(term).into_iter().any(is_quotient))
}

/// The comment on the field that it is read from says that it is the total.
fn total_by_comment(program: &Program<'_>, expr: &Expr) -> Option<&'static str> {
    let ExprKind::Attribute { name, .. } = &expr.kind else { return None };
    let reached = program.project().files.iter().filter(|file| program.reaches(file.id));
    let mut comments = reached.flat_map(|file| {
        let fields = file.module.classes.iter().flat_map(|class| &class.fields);
        let named = fields.filter(|field| field.name == *name);
        named.map(|field| comment_above(program, file.id, field.span.start as usize))
    });
    let comment = comments.next()?;
    (comments.next().is_none() && says_total(&comment)).then_some("the total by its description")
}

/// The comments and attributes on the lines above a place.
fn comment_above(program: &Program<'_>, file: FileId, at: usize) -> String {
    let text = &program.project().file(file).text[..at];
    let above = text.lines().rev().skip(usize::from(!text.ends_with('\n')));
    let is_part = |line: &&str| {
        let line = line.trim_start();
        line.starts_with("//") || line.starts_with("#[")
    };
    above.take_while(is_part).collect::<Vec<_>>().join("\n").to_lowercase()
}

/// Its name says that it is the total.
fn total_by_name(program: &Program<'_>, expr: &Expr, term: Term) -> Option<&'static str> {
    let terms = program.terms();
    let written = match &expr.kind {
        ExprKind::Name(name) | ExprKind::Attribute { name, .. } => Some(*name),
        ExprKind::Index { index, .. } => match index.literal() {
            Some(Literal::Str(key)) => Some(*key),
            _ => None,
        },
        _ => None,
    };
    let name = match terms.kind(term) {
        TermKind::Attribute(_, name) | TermKind::Parameter { name, .. } => Some(*name),
        TermKind::Item(_, key) => terms.as_str(*key),
        TermKind::Const(Const::Int(_)) => None,
        // Read out of something unknown, not worked out here.
        TermKind::Opaque { .. } if !matches!(expr.kind, ExprKind::Name(_)) => None,
        _ => return None,
    };
    let is_total = |name: Name| {
        let name = name.to_ascii_lowercase();
        let has = |word: &str| name.contains(word);
        has("batch") && !has("per") && (has("total") || has("global") || has("effective"))
    };
    name.into_iter().chain(written).any(is_total).then_some("the total by its name")
}

/// The help text of its option says that it is the total.
fn total_by_help(program: &Program<'_>, term: Term) -> Option<&'static str> {
    let TermKind::Attribute(of, name) = *program.terms().kind(term) else { return None };
    let arguments = program.object_of(of)?;
    if arguments.class != crate::analysis::ObjectClass::Arguments {
        return None;
    }
    let named = |text: Name| {
        text.starts_with('-') && text.trim_start_matches('-').replace('-', "_") == *name
    };
    let help = program.calls(Role::AddArgument).find_map(|(_, call)| {
        let texts = call.arguments.iter().filter(|a| a.position.is_some());
        let mut texts = texts.filter_map(|a| program.terms().as_str(a.value.single()?));
        let dest = call.argument("dest").known().and_then(|a| a.value.single());
        let is_it = texts.any(named)
            || dest.and_then(|t| program.terms().as_str(t)).is_some_and(|dest| dest == name);
        let help = call.argument("help").known()?.value.single()?;
        is_it.then(|| program.terms().as_str(help))?
    })?;
    says_total(&help.to_ascii_lowercase()).then_some("the total of all ranks by its help text")
}

fn says_total(text: &str) -> bool {
    let has = |words: &[&str]| words.iter().any(|word| text.contains(word));
    has(&["total", "global", "effective", "across all", "over all", "of all gpus", "of all ranks"])
        && !has(&["per gpu", "per-gpu", "per device", "per-device", "per process", "each gpu"])
        && !has(&["per rank", "per-rank", "each rank", "each process"])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_schedule_from_another_file_counts() {
        check_files(&[
            (
                "optim.py",
                "
import math
from torch.optim import lr_scheduler
def cosine(optimizer, dataset, args):
    steps = math.ceil(len(dataset) / args.batch_size) * args.epochs
    return lr_scheduler.CosineAnnealingLR(optimizer, T_max=steps)  # ~ undivided-batch-size: schedule
",
            ),
            (
                "main.py",
                "
import argparse, torch
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader
from torch.utils.data.distributed import DistributedSampler
from optim import cosine
if __name__ == '__main__':
    parser = argparse.ArgumentParser()
    parser.add_argument('--batch-size', type=int, help='per GPU')
    args = parser.parse_args()
    torch.distributed.init_process_group('nccl')
    data = torch.utils.data.TensorDataset(torch.ones(8, 2))
    loader = DataLoader(data, args.batch_size, sampler=DistributedSampler(data))
    net = DDP(torch.nn.Linear(2, 2))
    schedule = cosine(torch.optim.SGD(net.parameters(), lr=1.0), data, args)
",
            ),
        ]);
    }

    #[test]
    fn names_and_help_texts_of_totals_count() {
        check_python(
            "
import argparse, torch
from torch.utils.data import DataLoader, DistributedSampler
parser = argparse.ArgumentParser()
parser.add_argument('-b', '--batch-size', type=int, default=256,
                    help='mini-batch size, this is the total batch size of all GPUs')
args = parser.parse_args()
torch.distributed.init_process_group('nccl')
GLOBAL_BATCH = 512
data = [1, 2, 3]
a = DataLoader(data, batch_size=args.batch_size, sampler=DistributedSampler(data))  # ~ undivided-batch-size: total of all ranks
b = DataLoader(data, batch_size=GLOBAL_BATCH, sampler=DistributedSampler(data))  # ~ undivided-batch-size: by its name
",
        );
    }

    #[test]
    fn a_total_out_of_a_configuration_in_another_file_counts() {
        check_files(&[
            (
                "config.py",
                "
import yaml
def read(path):
    with open(path) as file:
        return yaml.safe_load(file)
class Settings:
    def __init__(self):
        self.total_batch_size = 64
",
            ),
            (
                "main.py",
                "
import torch
from torch.utils.data import DataLoader, DistributedSampler
from config import Settings, read
settings, more = Settings(), read('a.yaml')
torch.distributed.init_process_group('nccl')
sampler = DistributedSampler([1, 2])
a = DataLoader([1, 2], settings.total_batch_size, sampler=sampler)  # ~ undivided-batch-size
b = DataLoader([1, 2], more['global_batch_size'], sampler=sampler)  # ~ undivided-batch-size
",
            ),
        ]);
    }

    #[test]
    fn divided_sizes_are_silent() {
        check_python(
            "
import argparse, torch
import torch.distributed as dist
from torch.utils.data import DataLoader, DistributedSampler
parser = argparse.ArgumentParser()
parser.add_argument('--batch-size', type=int, help='total over all GPUs')
parser.add_argument('--gpu', type=int)
args = parser.parse_args()
dist.init_process_group('nccl')
total_batch_size = 512
data = [1, 2, 3]
if args.gpu is not None:
    args.batch_size = int(args.batch_size / torch.cuda.device_count())
a = DataLoader(data, batch_size=args.batch_size, sampler=DistributedSampler(data))
size = total_batch_size // dist.get_world_size()
b = DataLoader(data, batch_size=size, sampler=DistributedSampler(data))
net = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(1, 1))
opt = torch.optim.SGD(net.parameters(), lr=1.0)
steps = len(data) // total_batch_size
torch.optim.lr_scheduler.OneCycleLR(opt, 0.1, total_steps=steps * 3)
",
        );
    }

    #[test]
    fn schedules_that_count_the_ranks_or_the_loader_are_silent() {
        check_python(
            "
import torch
import torch.distributed as dist
from torch.utils.data import DataLoader, DistributedSampler
dist.init_process_group('nccl')
data = [1, 2, 3]
loader = DataLoader(data, batch_size=4, sampler=DistributedSampler(data))
net = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(1, 1))
opt = torch.optim.SGD(net.parameters(), lr=1.0)
torch.optim.lr_scheduler.CosineAnnealingLR(opt, T_max=10 * len(loader))
torch.optim.lr_scheduler.CosineAnnealingLR(opt, len(data) // (4 * dist.get_world_size()))
torch.optim.lr_scheduler.StepLR(opt, step_size=30)
",
        );
    }

    #[test]
    fn a_schedule_computed_by_a_function_counts() {
        check_files(&[
            (
                "sched.py",
                "
import math
from torch.optim.lr_scheduler import LambdaLR
def warmup_cosine(opt, warmup, total):
    def f(step):
        if step < warmup:
            return step / max(1, warmup)
        return 0.5 * (1 + math.cos(math.pi * (step - warmup) / (total - warmup)))
    return LambdaLR(opt, f)
",
            ),
            (
                "train.py",
                r#"
import math
import os
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, TensorDataset, DistributedSampler
from sched import warmup_cosine
class Cfg:
    bs = 32
    epochs = 4
def main(cfg):
    dist.init_process_group("nccl")
    g = int(os.environ["LOCAL_RANK"])
    torch.cuda.set_device(g)
    ds = TensorDataset(torch.randn(1024, 3))
    smp = DistributedSampler(ds)
    dl = DataLoader(ds, batch_size=cfg.bs, sampler=smp)
    net = DDP(torch.nn.Linear(3, 3).cuda(), device_ids=[g])
    opt = torch.optim.AdamW(net.parameters())
    steps = math.ceil(len(ds) / cfg.bs)
    total = steps * cfg.epochs
    sch = warmup_cosine(opt, total // 10, total)  # ~ undivided-batch-size
    for ep in range(cfg.epochs):
        smp.set_epoch(ep)
        for (x,) in dl:
            loss = net(x.cuda()).mean()
            opt.zero_grad()
            loss.backward()
            opt.step()
            sch.step()
if __name__ == "__main__":
    main(Cfg)
"#,
            ),
        ]);
    }

    #[test]
    fn a_total_divided_by_the_gpus_of_a_node_is_silent() {
        check_python(
            r#"
import argparse
import os
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch.utils.data import DataLoader, TensorDataset, DistributedSampler
parser = argparse.ArgumentParser()
HELP = "mini-batch size, the total over all GPUs of the node"
parser.add_argument("--batch-size", default=256, type=int, help=HELP)
parser.add_argument("--workers", default=4, type=int)
parser.add_argument("--world-size", default=1, type=int)
parser.add_argument("--rank", default=0, type=int)
def work(gpu, n, args):
    args.rank = args.rank * n + gpu
    dist.init_process_group("nccl", world_size=args.world_size, rank=args.rank)
    torch.cuda.set_device(gpu)
    args.batch_size = int(args.batch_size / n)
    args.workers = int((args.workers + n - 1) / n)
    ds = TensorDataset(torch.randn(1024, 3))
    smp = DistributedSampler(ds)
    dl = DataLoader(ds, batch_size=args.batch_size, num_workers=args.workers, sampler=smp)
    net = torch.nn.Linear(3, 3).cuda(gpu)
    net = torch.nn.parallel.DistributedDataParallel(net, device_ids=[gpu])
    opt = torch.optim.SGD(net.parameters(), 0.1)
    sch = torch.optim.lr_scheduler.CosineAnnealingLR(opt, T_max=90 * len(dl))
    for ep in range(90):
        smp.set_epoch(ep)
        for (x,) in dl:
            loss = net(x.cuda(gpu, non_blocking=True)).mean()
            opt.zero_grad(); loss.backward(); opt.step(); sch.step()
def main():
    args = parser.parse_args()
    n = torch.cuda.device_count()
    args.world_size = n * args.world_size
    mp.spawn(work, nprocs=n, args=(n, args))
if __name__ == "__main__":
    main()
"#,
        );
    }
}
