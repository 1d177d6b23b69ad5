use crate::analysis::{Call, Event, EventKind, Object, Reach, Taint, Term, TermKind, Value};
use crate::prelude::*;
use crate::python::edit::Editor;
use crate::table::Role;

declare_rule! {
    /// Every rank trains on the whole data set, because nothing splits it.
    ///
    /// Without a `DistributedSampler` each process walks all samples: one epoch does the work
    /// of as many epochs as there are ranks, learning rate schedules are off by that factor,
    /// and where all ranks shuffle by one seed they even train on the same batches.
    ///
    /// ```python bad
    /// import torch
    /// import torch.distributed as dist
    /// from torch.nn.parallel import DistributedDataParallel as DDP
    /// from torch.utils.data import DataLoader, TensorDataset
    ///
    /// dist.init_process_group("nccl")
    /// model = DDP(torch.nn.Linear(2, 2))
    /// data = TensorDataset(torch.ones(64, 2))
    /// loader = DataLoader(data, batch_size=8, shuffle=True)  # ~ missing-distributed-sampler
    /// for (x,) in loader:
    ///     model(x).sum().backward()
    /// ```
    /// ```python fixed
    /// import torch
    /// import torch.distributed as dist
    /// from torch.nn.parallel import DistributedDataParallel as DDP
    /// from torch.utils.data import DataLoader, TensorDataset
    ///
    /// dist.init_process_group("nccl")
    /// model = DDP(torch.nn.Linear(2, 2))
    /// data = TensorDataset(torch.ones(64, 2))
    /// loader = DataLoader(data, batch_size=8, sampler=torch.utils.data.DistributedSampler(data))
    /// for (x,) in loader:
    ///     model(x).sum().backward()
    /// ```
    /// ```python good
    /// import torch
    /// import torch.distributed as dist
    /// from torch.nn.parallel import DistributedDataParallel as DDP
    /// from torch.utils.data import DataLoader, DistributedSampler, TensorDataset
    ///
    /// dist.init_process_group("nccl")
    /// model = DDP(torch.nn.Linear(2, 2))
    /// data = TensorDataset(torch.ones(64, 2))
    /// sampler = DistributedSampler(data)
    /// loader = DataLoader(data, batch_size=8, sampler=sampler)
    /// for epoch in range(10):
    ///     sampler.set_epoch(epoch)
    ///     for (x,) in loader:
    ///         model(x).sum().backward()
    /// ```
    /// ```rust bad
    /// use tch::nn::{self, ModuleT};
    ///
    /// fn train(vs: nn::VarStore, group: &tch_ddp::ProcessGroup) -> anyhow::Result<()> {
    ///     let m = tch::vision::mnist::load_dir("data")?;
    ///     let net = nn::linear(vs.root(), 784, 10, Default::default());
    ///     let ddp = tch_ddp::Ddp::new(net, vs, group, Default::default())?;
    ///     for (x, y) in m.train_iter(64).shuffle() { //~ missing-distributed-sampler
    ///         let loss = ddp.forward_t(&x, true).cross_entropy_for_logits(&y);
    ///         ddp.backward(&loss)?;
    ///     }
    ///     Ok(())
    /// }
    /// ```
    /// ```rust good
    /// use tch::nn::{self, ModuleT};
    ///
    /// fn train(vs: nn::VarStore, group: &tch_ddp::ProcessGroup) -> anyhow::Result<()> {
    ///     let m = tch::vision::mnist::load_dir("data")?;
    ///     let net = nn::linear(vs.root(), 784, 10, Default::default());
    ///     let ddp = tch_ddp::Ddp::new(net, vs, group, Default::default())?;
    ///     let n = m.train_images.size()[0] as usize;
    ///     let sampler = tch_ddp::DistributedSampler::new(n, group).batch_size(64);
    ///     for batch in sampler.epoch(0) {
    ///         let x = m.train_images.index_select(0, &batch);
    ///         let y = m.train_labels.index_select(0, &batch);
    ///         let loss = ddp.forward_t(&x, true).cross_entropy_for_logits(&y);
    ///         ddp.backward(&loss)?;
    ///     }
    ///     Ok(())
    /// }
    /// ```
    ///
    /// # Known limits
    /// In Rust tch's own iterators count, and permutations that a function makes and walks over
    /// without any word of ranks. In Python:
    /// Only loaders of torch whose data is known to be the same on every rank, and which feed
    /// a training step of a `DistributedDataParallel` model. Data sets that read the rank,
    /// iterable data sets, samplers of one's own and seeds that hold the rank are silent.
    pub static RULE = {
        name: "missing-distributed-sampler",
        level: Level::Error,
        harm: Harm::Wrong,
        tier: 1,
        languages: BOTH,
        fix: FixKind::Unsafe,
        check,
    };
}

fn check(program: &Program<'_>, report: &mut Report<'_>) {
    let splits_itself = program.calls(Role::Framework).next().is_some();
    if !program.is_distributed() || splits_itself {
        return;
    }
    if program.language == Language::Rust {
        return check_tch(program, report);
    }
    for loader in program.loaders() {
        let Some(event) = loader.event.map(|id| program.event(id)) else { continue };
        if !is_whole(program, loader) || program.reach(event.path) != Reach::Every {
            continue;
        }
        let Some((forward, _)) = program.training_fed_by(loader) else { continue };
        let together = program.can_both_hold_paths(event.path, forward.path);
        if !together || program.reach(forward.path) != Reach::Every {
            continue;
        }
        if another_is_sharded(program, loader) {
            continue;
        }
        let draft = report
            .at(loader.site, "every rank trains on the whole data set: nothing splits it")
            .why(
                "each process walks all samples, so one epoch does the work of as many epochs as \
                 there are ranks, and schedules are off by that factor",
            )
            .help(
                "give the loader `sampler=DistributedSampler(dataset)` instead of `shuffle`, and \
                 call `sampler.set_epoch(epoch)` at the start of each epoch",
            )
            .related(forward.site, "the model is trained on its batches here");
        if let Some(edits) = add_sampler(program, event) {
            draft.unsafe_fix("let a `DistributedSampler` split and shuffle the data", edits);
        }
    }
}

/// tch: batches of an iterator of tch, or of a permutation made at home.
fn check_tch(program: &Program<'_>, report: &mut Report<'_>) {
    let of_rank =
        |call: &Call<'_>| call.arguments.iter().any(|a| program.depends_on_rank(&a.value));
    if program.calls(Role::Seed).any(|(_, call)| of_rank(call)) {
        return;
    }
    for (event, forward) in program.ddp_training() {
        let is_apart = program
            .conditions(event.path)
            .any(|node| program.terms().taint(node.condition).has(Taint::RANK));
        if is_apart || forward.result.taint(program.terms()).has(Taint::RANK) {
            continue;
        }
        let Some(site) = whole_walk(program, event) else { continue };
        report
            .at(site, "every rank trains on the whole data set: nothing splits it")
            .why(
                "each process walks all samples, so one epoch does the work of as many epochs as \
                 there are ranks, and schedules are off by that factor",
            )
            .help(
                "walk over `DistributedSampler::new(n, &group).batch_size(b).epoch(epoch)`, which \
                 gives each rank its share of the indices",
            )
            .related(event.site, "the model is trained on its batches here");
    }
}

/// Where the loop around a training step walks over all data, if it surely does.
fn whole_walk(program: &Program<'_>, forward: &Event<'_>) -> Option<Site> {
    let terms = program.terms();
    for (_, node) in program.loops(forward.loops) {
        let Some(over) = node.over.filter(|&over| !terms.taint(over).has(Taint::RANK)) else {
            continue;
        };
        let loader = program.object_of(over).filter(|object| object.role == Role::Loader);
        if let Some(loader) = loader {
            let is_tch = program.outside_class(loader).is_some_and(|n| n.starts_with("tch."));
            return is_tch.then_some(loader.site);
        }
        let head = program.loop_head(node);
        if let Some(site) = whole_walk_of_method(program, head) {
            return Some(site);
        }
        let Some((site, text)) = program.made_by(over) else { continue };
        let in_steps = [".chunks(", ".chunks_exact(", ".split("].iter().any(|s| text.contains(s));
        let around = program.function_text(forward);
        let permutes = around.contains(".shuffle(") || around.contains("randperm(");
        let splits = ["rank", "world", "shard", "Sampler", "sampler."];
        let knows_ranks = splits.iter().any(|word| around.contains(word));
        if in_steps && permutes && !knows_ranks {
            return Some(site);
        }
    }
    None
}

/// As `whole_walk`: a function called in the head of a loop makes batches of a permutation, and
/// knows of no rank.
fn whole_walk_of_method(program: &Program<'_>, head: Site) -> Option<Site> {
    program.events().iter().find_map(|event| {
        let frame = program.frame(event.frame);
        let call = frame.call.filter(|c| c.file == head.file && head.span.contains(c.span))?;
        let function = frame.function?;
        let text =
            program.text(Site { file: function.file, span: program.function(function).span });
        let has = |words: &[&str]| words.iter().any(|word| text.contains(word));
        let whole = has(&[".chunks(", ".chunks_exact(", ".split("])
            && has(&[".shuffle(", "randperm("])
            && !has(&["rank", "world", "shard", "Sampler", "sampler."]);
        whole.then_some(call)
    })
}

/// `sampler=DistributedSampler(data)` in the place of `shuffle=True`; whether `set_epoch` is
/// called is another rule's business.
fn add_sampler(program: &Program<'_>, event: &Event<'_>) -> Option<Vec<Edit>> {
    let call = event.call()?;
    let shuffle = call.arguments.iter().find(|a| a.name.is_some_and(|n| &*n == "shuffle"))?;
    let data = call.argument_at(0, "dataset").known()?;
    let has_sampler = ["sampler", "batch_sampler"].iter().any(|n| !call.argument(n).is_absent());
    if has_sampler || data.expr.path().is_none() {
        return None;
    }
    let file = event.site.file;
    let text = |span: Span| program.text(Site { file, span });
    let written = "shuffle=";
    let start = shuffle.expr.span.start.checked_sub(written.len() as u32)?;
    if text(Span::new(start, shuffle.expr.span.start)) != written {
        return None;
    }
    let editor = Editor::new(program.project().file(file));
    let import = "from torch.utils.data import DistributedSampler";
    let sampler =
        editor.reach("torch.utils.data.DistributedSampler", import, "DistributedSampler")?;
    let given = text(data.expr.span);
    let arguments = match text(shuffle.expr.span) {
        "True" => given.to_owned(),
        other => format!("{given}, shuffle={other}"),
    };
    let span = Span::new(start, shuffle.expr.span.end);
    let replacement = format!("sampler={}({arguments})", sampler.name);
    let mut edits = vec![Edit { site: Site { file, span }, replacement }];
    edits.extend(sampler.import);
    Some(edits)
}

/// The loader gives every rank all of its data, for sure.
fn is_whole(program: &Program<'_>, loader: &Object<'_>) -> bool {
    let is_torch = program.outside_class(loader).is_some_and(|n| n.ends_with("DataLoader"));
    if !is_torch || loader.arguments.iter().any(|a| a.spread) {
        return false;
    }
    let shuffles = program
        .made_with(loader, "shuffle")
        .is_some_and(|v| program.live_terms(v).all(|t| t == program.terms().yes));
    let draws = |name: &str| match program.made_with(loader, name) {
        Some(sampler) => program.live_terms(sampler).all(|t| takes_all(program, t)),
        None => true,
    };
    let by_rank = shuffles && (program.seeds_by_rank() || has_own_generator(program, loader));
    let data = program.made_with(loader, "dataset");
    draws("sampler")
        && draws("batch_sampler")
        && !by_rank
        && data.is_some_and(|data| is_same_everywhere(program, data, shuffles))
}

fn has_own_generator(program: &Program<'_>, loader: &Object<'_>) -> bool {
    program.made_with(loader, "generator").is_some_and(|v| v.single() != Some(program.terms().none))
}

/// No sampler, or one of torch that knows nothing of ranks.
fn takes_all(program: &Program<'_>, sampler: Term) -> bool {
    if sampler == program.terms().none {
        return true;
    }
    let Some(object) = program.object_of(sampler) else { return false };
    let known = ["RandomSampler", "SequentialSampler", "BatchSampler"];
    let is_known = program.outside_class(object).is_some_and(|n| {
        n.starts_with("torch.") && known.iter().any(|k| n.ends_with(&format!(".{k}")))
    });
    is_known
        && !object.arguments.iter().any(|a| {
            a.spread
                || a.value.taint(program.terms()).has(Taint::RANK)
                || a.name.is_some_and(|n| matches!(&*n, "generator" | "num_samples"))
        })
        && program
            .made_with(object, "sampler")
            .is_none_or(|inner| program.live_terms(inner).all(|t| takes_all(program, t)))
        && !program.seeds_by_rank()
}

/// The data are the same on every rank, and can be indexed. Of a value nothing is known of,
/// `shuffles` settles the latter: an iterable data set refuses it.
fn is_same_everywhere(program: &Program<'_>, data: &Value, shuffles: bool) -> bool {
    program.live_terms(data).all(|term| is_same(program, term, shuffles, 6))
}

fn is_same(program: &Program<'_>, term: Term, shuffles: bool, depth: u32) -> bool {
    let terms = program.terms();
    if depth == 0 || terms.taint(term).has(Taint::RANK) {
        return false;
    }
    let Some(object) = program.object_of(term) else {
        let is_unfilled = matches!(terms.kind(term), TermKind::Parameter { .. });
        return shuffles && !is_unfilled && program.live_origins_are_plain(term);
    };
    let by_rank = program.stores_on(term).any(|(_, _, value)| value.taint(terms).has(Taint::RANK))
        || program.class_asks_for_rank(object);
    let parts_are = object.arguments.iter().all(|a| {
        !a.spread
            && !a.value.taint(terms).has(Taint::RANK)
            && a.value.terms().all(|t| match program.object_of(t) {
                Some(_) => is_same(program, t, true, depth - 1),
                None => true,
            })
    });
    !by_rank && parts_are && (shuffles || is_indexed(program, object))
}

/// A data set with items by number, not a stream.
fn is_indexed(program: &Program<'_>, object: &Object<'_>) -> bool {
    match program.class_of(object) {
        Some(class) => program.class_member(class, "__getitem__").is_some(),
        None => {
            object.role == Role::Dataset
                && !program.outside_class(object).is_some_and(|n| n.contains("Iterable"))
                && !program.derives_from(object, "torch.utils.data.IterableDataset")
                || matches!(object.class, crate::analysis::ObjectClass::List)
        }
    }
}

/// On another setting the program trains on a loader that splits its data: the settings that
/// lead here are not those of a distributed run, for all that is known.
fn another_is_sharded(program: &Program<'_>, loader: &Object<'_>) -> bool {
    let on_setting = program
        .conditions(loader.path)
        .any(|node| node.condition != program.terms().yes && program.is_setting(node.condition));
    on_setting
        && program.objects().iter().any(|other| {
            other.role == Role::DistributedSampler
                && !program.can_both_hold_paths(other.path, loader.path)
        })
}

impl Program<'_> {
    /// A class of the project reads the rank somewhere in its methods.
    fn class_asks_for_rank(&self, object: &Object<'_>) -> bool {
        let Some(class) = self.class_of(object) else { return false };
        let reads = [Role::Rank, Role::WorldSize, Role::LocalRank, Role::RankAndWorldSize];
        reads.iter().any(|&role| {
            self.calls(role).any(|(event, _)| self.frame(event.frame).class == Some(class))
        }) || self.reads_rank_names(class)
    }

    /// The source of a class speaks of ranks.
    fn reads_rank_names(&self, class: crate::analysis::ClassRef) -> bool {
        let site = Site { file: class.file, span: self.class(class).span };
        let text = self.text(site);
        ["rank", "RANK", "world_size", "num_replicas"].iter().any(|word| text.contains(word))
    }

    /// Nothing that a value was made of splits data by itself.
    fn live_origins_are_plain(&self, term: Term) -> bool {
        self.origins_of(&Value::of(self.terms(), term)).iter().all(|&origin| {
            match &self.event(origin).kind {
                EventKind::Call(call) => {
                    !self.has_flag(call, crate::table::Flag::SelfSharding)
                        && !matches!(call.role, Role::WrapOther | Role::Framework)
                }
                _ => true,
            }
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_permutation_without_a_rank_counts() {
        let program = |mine: &str, mark: &str| {
            [
                "
mod steps;
use tch::{nn, Tensor};
use tch_ddp::{Ddp, GroupOptions, Launch, ProcessGroup};
fn main() -> anyhow::Result<()> {
    let pg = ProcessGroup::init(&Launch::from_env()?, GroupOptions::default())?;
    let vs = nn::VarStore::new(pg.device());
    let net = nn::linear(vs.root(), 2, 1, Default::default());
    let ddp = Ddp::new(net, vs, &pg, Default::default())?;
    let rows = Tensor::read_npy(\"rows.npy\")?;
    steps::epoch(&ddp, &rows, &pg, 1)
}
// file: src/steps.rs
use rand::{rngs::StdRng, seq::SliceRandom, SeedableRng};
use tch::{nn, nn::Module, Kind, Tensor};
use tch_ddp::{Ddp, ProcessGroup};
type Net = Ddp<nn::Linear>;
pub fn epoch(ddp: &Net, rows: &Tensor, pg: &ProcessGroup, seed: u64) -> anyhow::Result<()> {
    let mut order: Vec<i64> = (0..rows.size()[0]).collect();
    order.shuffle(&mut StdRng::seed_from_u64(seed));",
                mine,
                "
    for batch in order.chunks(32) {",
                mark,
                "
        let x = rows.index_select(0, &Tensor::from_slice(batch));
        let loss = ddp.run(|m| m.forward(&x))?.mean(Kind::Float);
        ddp.backward(&loss)?;
    }
    Ok(())
}
",
            ]
            .concat()
        };
        let check = |text: String| {
            let (main, steps) = text.split_once("// file: src/steps.rs\n").unwrap();
            check_files(&[("src/main.rs", main), ("src/steps.rs", steps)]);
        };
        check(program("", " //~ missing-distributed-sampler"));
        let share = "
    let share = order.len() / pg.world_size();
    let order: Vec<i64> = order[pg.rank() * share..(pg.rank() + 1) * share].to_vec();";
        check(program(share, ""));
    }

    #[test]
    fn evaluation_and_single_processes_are_silent_in_rust() {
        check_rust(
            "
use tch::{nn, nn::ModuleT, nn::OptimizerConfig};
fn main() -> anyhow::Result<()> {
    let m = tch::vision::mnist::load_dir(\"data\")?;
    let vs = nn::VarStore::new(tch::Device::Cpu);
    let net = nn::linear(vs.root(), 784, 10, Default::default());
    let mut opt = nn::Sgd::default().build(&vs, 0.1)?;
    for (x, y) in m.train_iter(64).shuffle() {
        opt.backward_step(&net.forward_t(&x, true).cross_entropy_for_logits(&y));
    }
    Ok(())
}
",
        );
        check_rust(
            "
use tch::nn::{self, ModuleT};
fn evaluate(ddp: &tch_ddp::Ddp<nn::Linear>) {
    let m = tch::vision::mnist::load_dir(\"data\").unwrap();
    let _guard = tch::no_grad_guard();
    for (x, y) in m.test_iter(64) {
        let loss = ddp.module().forward_t(&x, false).cross_entropy_for_logits(&y);
    }
}
",
        );
    }

    #[test]
    fn a_factory_and_a_trainer_in_other_files_count() {
        check_files(&[
            (
                "data.py",
                "
import torch.utils.data as tud
class Pairs(tud.Dataset):
    def __init__(self, n):
        self.n = n
    def __len__(self):
        return self.n
    def __getitem__(self, i):
        return i
def build(cfg, train):
    return tud.DataLoader(Pairs(1000), batch_size=cfg.batch, shuffle=train)  # ~ missing-distributed-sampler
",
            ),
            (
                "engine.py",
                "
from torch.nn.parallel import DistributedDataParallel
class Engine:
    def __init__(self, net, optimizer, gpu):
        self.net = DistributedDataParallel(net, device_ids=[gpu])
        self.optimizer = optimizer
    def fit(self, loader, epochs):
        for _ in range(epochs):
            self.one(loader)
    def one(self, loader):
        for i, batch in enumerate(loader):
            loss = self.net(batch.cuda()).mean()
            loss.backward()
            self.optimizer.step()
    def test(self, loader):
        for batch in loader:
            self.net(batch)
",
            ),
            (
                "main.py",
                "
import argparse, os, torch
from data import build
from engine import Engine
if __name__ == '__main__':
    parser = argparse.ArgumentParser()
    parser.add_argument('--batch', type=int, default=8)
    cfg = parser.parse_args()
    torch.distributed.init_process_group('nccl')
    gpu = int(os.environ['LOCAL_RANK'])
    net = torch.nn.Linear(1, 1).cuda(gpu)
    engine = Engine(net, torch.optim.SGD(net.parameters(), lr=0.1), gpu)
    engine.fit(build(cfg, True), 3)
",
            ),
        ]);
    }

    #[test]
    fn a_random_sampler_and_spawned_processes_count() {
        check_python(
            "
import torch
import torch.multiprocessing as mp
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, RandomSampler
from torchvision.datasets import CIFAR10
def worker(rank, n):
    torch.distributed.init_process_group('nccl', rank=rank, world_size=n)
    train = CIFAR10('data', train=True)
    test = CIFAR10('data', train=False)
    batches = DataLoader(train, 32, sampler=RandomSampler(train))  # ~ missing-distributed-sampler
    held_out = DataLoader(test, 32)
    net = DDP(torch.nn.Linear(2, 2).to(rank), device_ids=[rank])
    for epoch in range(2):
        for image, label in batches:
            torch.nn.functional.cross_entropy(net(image), label).backward()
        net.eval()
        with torch.no_grad():
            for image, label in held_out:
                net(image)
if __name__ == '__main__':
    mp.spawn(worker, args=(8,), nprocs=8)
",
        );
    }

    #[test]
    fn batches_drawn_by_next_count() {
        check_python(
            "
import torch
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader
def endless(loader):
    while True:
        for batch in loader:
            yield batch
torch.distributed.init_process_group('nccl')
model = DDP(torch.nn.Linear(1, 1))
first = DataLoader([1, 2, 3], shuffle=True)  # ~ missing-distributed-sampler
batches = endless(first)
second = DataLoader([1, 2, 3], shuffle=True)  # ~ missing-distributed-sampler
others = iter(second)
for step in range(100):
    model(next(batches)).sum().backward()
    model(next(others)).sum().backward()
",
        );
    }

    #[test]
    fn samplers_under_the_condition_of_the_wrap_are_silent() {
        check_python(
            "
import argparse, torch
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, DistributedSampler
args = argparse.ArgumentParser().parse_args()
data = [1, 2, 3]
model = torch.nn.Linear(1, 1)
if args.multi_gpu:
    torch.distributed.init_process_group('nccl')
    model = DDP(model)
    sampler = DistributedSampler(data)
    loader = DataLoader(data, sampler=sampler)
else:
    sampler = None
    loader = DataLoader(data, shuffle=True)
for epoch in range(3):
    if sampler is not None:
        sampler.set_epoch(epoch)
    for x in loader:
        model(x).sum().backward()
",
        );
    }

    #[test]
    fn data_sets_that_split_themselves_are_silent() {
        check_python(
            "
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, Dataset, IterableDataset, Subset
class Shard(Dataset):
    def __init__(self, files):
        self.files = files[dist.get_rank()::dist.get_world_size()]
    def __len__(self):
        return len(self.files)
    def __getitem__(self, i):
        return self.files[i]
class Stream(IterableDataset):
    def __iter__(self):
        yield from range(100)
dist.init_process_group('nccl')
model = DDP(torch.nn.Linear(1, 1))
everything = list(range(100))
mine = Subset(everything, range(dist.get_rank(), 100, dist.get_world_size()))
for data in [Shard(['a', 'b']), Stream(), mine]:
    for x in DataLoader(data, batch_size=2):
        model(x).sum().backward()
for x in DataLoader(Shard(['a', 'b']), shuffle=True):
    model(x).sum().backward()
for x in DataLoader(mine, shuffle=True):
    model(x).sum().backward()
",
        );
    }

    #[test]
    fn a_seed_of_its_own_on_each_rank_is_silent() {
        check_python(
            "
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader
dist.init_process_group('nccl')
torch.manual_seed(1234 + dist.get_rank())
model = DDP(torch.nn.Linear(1, 1))
for x in DataLoader([1, 2, 3], shuffle=True):
    model(x).sum().backward()
",
        );
    }

    #[test]
    fn evaluation_and_a_pass_on_rank_0_are_silent() {
        check_files(&[
            (
                "evaluate.py",
                "
import torch
@torch.no_grad()
def accuracy(model, loader):
    hits = 0
    for x, y in loader:
        hits += (model(x).argmax(1) == y).sum()
    return hits
",
            ),
            (
                "main.py",
                "
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, DistributedSampler
from evaluate import accuracy
if __name__ == '__main__':
    dist.init_process_group('nccl')
    model = DDP(torch.nn.Linear(1, 1))
    train, test = [(1, 2)] * 10, [(1, 2)] * 4
    sampler = DistributedSampler(train)
    for epoch in range(3):
        sampler.set_epoch(epoch)
        for x, y in DataLoader(train, sampler=sampler):
            (model(x) - y).sum().backward()
        if dist.get_rank() == 0:
            print(accuracy(model.module, DataLoader(test, shuffle=True)))
    accuracy(model, DataLoader(test))
",
            ),
        ]);
    }
}
