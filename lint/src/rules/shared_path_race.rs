use crate::analysis::{Call, Event, Reach};
use crate::prelude::*;
use crate::python::edit::Editor;
use crate::table::{Flag, Role};

declare_rule! {
    /// All ranks create, download, unpack or remove the same path at once.
    ///
    /// The first rank creates the folder, the others raise `FileExistsError`, also behind a
    /// test that it does not exist; downloads and archives are written by several processes at
    /// once, and a rank may read half a file.
    ///
    /// ```python bad
    /// import os
    /// import torch.distributed as dist
    ///
    /// dist.init_process_group("nccl")
    /// if not os.path.exists("out"):
    ///     os.makedirs("out")  # ~ shared-path-race
    /// ```
    /// ```python fixed
    /// import os
    /// import torch.distributed as dist
    ///
    /// dist.init_process_group("nccl")
    /// if not os.path.exists("out"):
    ///     os.makedirs("out", exist_ok=True)
    /// ```
    /// ```rust bad
    /// fn main() -> anyhow::Result<()> {
    ///     let group = tch_ddp::ProcessGroup::init(&tch_ddp::Launch::from_env()?, Default::default())?;
    ///     std::fs::create_dir("out")?; //~ shared-path-race
    ///     Ok(())
    /// }
    /// ```
    /// ```rust good
    /// fn main() -> anyhow::Result<()> {
    ///     let group = tch_ddp::ProcessGroup::init(&tch_ddp::Launch::from_env()?, Default::default())?;
    ///     std::fs::create_dir_all("out")?;
    ///     Ok(())
    /// }
    /// ```
    ///
    /// # Known limits
    /// What a local rank 0 does is one process for each node, and fine.
    pub static RULE = {
        name: "shared-path-race",
        level: Level::Warning,
        harm: Harm::Crash,
        tier: 1,
        languages: BOTH,
        fix: FixKind::Safe,
        check,
    };
}

fn check(program: &Program<'_>, report: &mut Report<'_>) {
    if !program.is_distributed() {
        return;
    }
    let roles =
        [Role::MakeDirectory, Role::RemovePath, Role::Download, Role::Unpack, Role::Dataset];
    for role in roles {
        for (event, call) in program.calls(role) {
            if races(program, call) && is_done_by_all(program, event) {
                tell(program, report, event, call);
            }
        }
    }
}

fn is_done_by_all(program: &Program<'_>, event: &Event<'_>) -> bool {
    !program.is_orphan(event)
        && program.reach(event.path) == Reach::Every
        && !program.hangs_on_unseen_test(event.path)
        && !program.main_goes_first(event)
        && !event.modes.caught
}

/// Several processes that do this at once get into each other's way.
fn races(program: &Program<'_>, call: &Call<'_>) -> bool {
    let terms = program.terms();
    let is_on = |name: &str| {
        call.argument(name).known().is_some_and(|a| a.value.terms().any(|t| t == terms.yes))
    };
    let has_rank = call
        .arguments
        .iter()
        .chain(&[])
        .any(|a| a.value.taint(terms).has(crate::analysis::Taint::RANK));
    let tolerant = call.argument("exist_ok").known().is_some()
        || is_on("ignore_errors")
        || call.name.is_some_and(|n| n.ends_with("create_dir_all"))
        || program.has_flag(call, Flag::Atomic)
        || call.arguments.iter().any(|a| a.spread);
    match call.role {
        Role::Dataset => is_on("download") && !has_rank,
        Role::MakeDirectory | Role::RemovePath => {
            !tolerant && !has_rank && program.names_a_shared_file(call)
        }
        _ => !tolerant && !has_rank,
    }
}

fn tell(program: &Program<'_>, report: &mut Report<'_>, event: &Event<'_>, call: &Call<'_>) {
    let called = program.callee_text(event).unwrap_or("this");
    let (message, help) = match call.role {
        Role::MakeDirectory => (
            format!("all ranks create the same folder with `{called}`"),
            match program.language {
                Language::Python => "write `os.makedirs(path, exist_ok=True)`",
                Language::Rust => "write `std::fs::create_dir_all(path)`",
            },
        ),
        Role::RemovePath => (
            format!("all ranks remove the same path with `{called}`"),
            "let rank 0 alone remove it, and put a barrier behind",
        ),
        Role::Download | Role::Dataset => (
            format!("all ranks download to the same place with `{called}`"),
            "let rank 0 (or each local rank 0) download first, and the others wait in a barrier",
        ),
        _ => (
            format!("all ranks unpack to the same place with `{called}`"),
            "let rank 0 alone unpack, and the others wait in a barrier",
        ),
    };
    report
        .at(event.site, message)
        .why("the ranks get into each other's way: one fails, or reads half a file")
        .help(help)
        .fix(tolerate(program, event, call));
}

/// `os.makedirs(path, exist_ok=True)`, also `path.mkdir(exist_ok=True)`.
fn tolerate(program: &Program<'_>, event: &Event<'_>, call: &Call<'_>) -> Option<Fix> {
    let name = call.name?;
    let takes_it = name.ends_with("makedirs") || name.ends_with("Path.mkdir");
    if call.role != Role::MakeDirectory || program.language != Language::Python || !takes_it {
        return None;
    }
    let editor = Editor::new(program.project().file(event.site.file));
    Some(Fix {
        applicability: Applicability::Safe,
        title: "let the folder exist already".to_owned(),
        edits: editor.set_keyword(event.expr?, "exist_ok", "True")?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_download_in_a_helper_of_another_file_counts() {
        check_files(&[
            (
                "data.py",
                "
import torchvision
def load(root):
    return torchvision.datasets.MNIST(root, download=True)  # ~ shared-path-race: download
",
            ),
            (
                "main.py",
                "
import torch
from data import load
if __name__ == '__main__':
    torch.distributed.init_process_group('nccl')
    load('data')
",
            ),
        ]);
    }

    #[test]
    fn guards_and_tolerant_calls_are_silent() {
        check_python(
            "
import os, pathlib, torchvision
import torch.distributed as dist
dist.init_process_group('nccl')
rank = dist.get_rank()
local = int(os.environ['LOCAL_RANK'])
os.makedirs('a', exist_ok=True)
pathlib.Path('b').mkdir(exist_ok=True, parents=True)
os.makedirs(f'c/{rank}')
if rank == 0:
    os.makedirs('d')
if local == 0:
    torchvision.datasets.MNIST('data', download=True)
dist.barrier()
data = torchvision.datasets.MNIST('data', download=local == 0)
for _ in range(2):
    pass
",
        );
    }

    #[test]
    fn one_process_is_silent() {
        check_python("import os, torch\nos.makedirs('a')\nfor _ in range(2):\n    torch.ones(1)\n");
    }

    #[test]
    fn a_folder_emptied_by_all_counts() {
        check_python(
            r#"
import os
import shutil
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP
def fresh(folder):
    if os.path.isdir(folder):
        shutil.rmtree(folder)  # ~ shared-path-race
    os.makedirs(folder)  # ~ shared-path-race
def main():
    dist.init_process_group("nccl")
    g = int(os.environ["LOCAL_RANK"])
    torch.cuda.set_device(g)
    torch.manual_seed(g)
    fresh("samples")
    dist.barrier()
    net = DDP(torch.nn.Linear(2, 2).cuda(), device_ids=[g])
    opt = torch.optim.SGD(net.parameters(), 0.1)
    for i in range(10):
        loss = net(torch.randn(4, 2).cuda()).mean()
        opt.zero_grad(); loss.backward(); opt.step()
if __name__ == "__main__":
    main()
"#,
        );
    }

    #[test]
    fn a_download_in_spawned_processes_counts() {
        check_python(
            r#"
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torchvision import datasets, transforms
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader
from torch.utils.data.distributed import DistributedSampler
class Job:
    def __init__(self, rank, world):
        self.rank, self.world = rank, world
    def data(self, split):
        download = True
        ds = datasets.MNIST("~/mnist", split == "train", download=download)  # ~ shared-path-race
        return ds
    def run(self):
        dist.init_process_group("nccl", rank=self.rank, world_size=self.world)
        torch.cuda.set_device(self.rank)
        ds = self.data("train")
        smp = DistributedSampler(ds, num_replicas=self.world, rank=self.rank)
        dl = DataLoader(ds, 64, sampler=smp)
        net = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(784, 10)).cuda()
        net = DDP(net, device_ids=[self.rank])
        opt = torch.optim.SGD(net.parameters(), 0.1)
        for e in range(3):
            smp.set_epoch(e)
            for x, y in dl:
                loss = torch.nn.functional.cross_entropy(net(x.cuda()), y.cuda())
                opt.zero_grad()
                loss.backward()
                opt.step()
def start(rank, world):
    Job(rank, world).run()
if __name__ == "__main__":
    mp.spawn(start, (torch.cuda.device_count(),), nprocs=torch.cuda.device_count())
"#,
        );
    }

    #[test]
    fn a_manager_that_lets_rank_0_go_first_is_silent() {
        check_python(
            r#"
import os
import pathlib
from contextlib import contextmanager
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP
from torchvision.datasets import CIFAR100
@contextmanager
def zero_first(rank):
    if rank not in (-1, 0):
        dist.barrier()
    yield
    if rank == 0:
        dist.barrier()
def main():
    dist.init_process_group("nccl")
    g = int(os.environ["LOCAL_RANK"])
    torch.cuda.set_device(g)
    os.makedirs("out", exist_ok=True)
    pathlib.Path("out/logs").mkdir(parents=True, exist_ok=True)
    with zero_first(g):
        ds = CIFAR100("d", download=True)
    if g == 0:
        os.mkdir("/tmp/x")
    dist.barrier()
    s = torch.utils.data.DistributedSampler(ds)
    dl = torch.utils.data.DataLoader(ds, 8, sampler=s)
    net = DDP(torch.nn.Linear(2, 2).cuda(), device_ids=[g])
    opt = torch.optim.SGD(net.parameters(), 0.1)
    for i in range(2):
        s.set_epoch(i)
        for x, y in dl:
            loss = net(x.cuda()).mean()
            opt.zero_grad(); loss.backward(); opt.step()
main()
"#,
        );
    }

    #[test]
    fn folders_made_in_another_file_count() {
        check_files(&[
            (
                "folders.py",
                "
import os
def prepare(root, names):
    for name in names:
        os.mkdir(os.path.join(root, name))  # ~ shared-path-race
",
            ),
            (
                "main.py",
                r#"
import torch.distributed as dist
from folders import prepare
def main():
    dist.init_process_group("gloo")
    prepare("out", ["images", "weights"])
    dist.barrier()
if __name__ == "__main__":
    main()
"#,
            ),
        ]);
    }

    #[test]
    fn a_return_inside_the_first_ones_turn_is_silent() {
        check_python(
            "
import contextlib
import os
import torch
import torch.distributed as dist
import torchvision
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, DistributedSampler
@contextlib.contextmanager
def leader_first():
    if dist.get_rank() != 0:
        dist.barrier()
    yield
    if dist.get_rank() == 0:
        dist.barrier()
def dataset(root):
    with leader_first():
        return torchvision.datasets.MNIST(root, download=True)
def main():
    dist.init_process_group('nccl')
    gpu = int(os.environ['LOCAL_RANK'])
    torch.cuda.set_device(gpu)
    data = dataset('data')
    sampler = DistributedSampler(data, shuffle=False)
    net = DDP(torch.nn.Linear(784, 10).cuda(), device_ids=[gpu])
    for x, y in DataLoader(data, sampler=sampler, batch_size=32):
        torch.nn.functional.cross_entropy(net(x.flatten(1).cuda()), y.cuda()).backward()
if __name__ == '__main__':
    main()
",
        );
        check_python(
            "
import os
import torch
import torch.distributed as dist
import torchvision
class Turn:
    def __enter__(self):
        if dist.get_rank() > 0:
            dist.barrier()
    def __exit__(self, *what):
        if dist.get_rank() == 0:
            dist.barrier()
def images(root, small):
    with Turn():
        if small:
            return torchvision.datasets.MNIST(root, download=True)
        found = torchvision.datasets.SVHN(root, download=True)
    dist.barrier()
    return found
dist.init_process_group('nccl')
torch.cuda.set_device(int(os.environ['LOCAL_RANK']))
images('data', os.environ.get('SMALL') == '1')
",
        );
    }

    #[test]
    fn a_package_that_is_run_counts() {
        check_files(&[
            (
                "proj/__init__.py",
                "
",
            ),
            (
                "proj/__main__.py",
                "
from .trainer import go
from .opts import parse
if __name__ == '__main__':
    go(parse())
",
            ),
            (
                "proj/opts.py",
                "
import argparse
from dataclasses import dataclass
@dataclass
class Opts:
    epochs: int = 3
    root: str = 'runs'
def parse() -> Opts:
    p = argparse.ArgumentParser()
    p.add_argument('--epochs', type=int, default=3)
    p.add_argument('--root', default='runs')
    return Opts(**vars(p.parse_args()))
",
            ),
            (
                "proj/trainer.py",
                "
import os
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset
from .opts import Opts
def go(o: Opts):
    dist.init_process_group('nccl')
    g = int(os.environ['LOCAL_RANK'])
    torch.cuda.set_device(g)
    out = os.path.join(o.root, 'a')
    if not os.path.isdir(out):
        os.makedirs(out)  # ~ shared-path-race
    ds = TensorDataset(torch.rand(64, 4))
    smp = DistributedSampler(ds)
    net = DDP(nn.Linear(4, 1).cuda(), device_ids=[g])
    opt = torch.optim.SGD(net.parameters(), 0.1)
    for e in range(o.epochs):
        smp.set_epoch(e)
        for (x,) in DataLoader(ds, 8, sampler=smp):
            opt.zero_grad()
            net(x.cuda()).mean().backward()
            opt.step()
",
            ),
        ]);
    }

    #[test]
    fn a_package_that_allows_for_the_folder_is_silent() {
        check_files(&[
            (
                "proj/__init__.py",
                "
",
            ),
            (
                "proj/__main__.py",
                "
from .trainer import go
from .opts import parse
if __name__ == '__main__':
    go(parse())
",
            ),
            (
                "proj/opts.py",
                "
import argparse
from dataclasses import dataclass
@dataclass
class Opts:
    epochs: int = 3
    root: str = 'runs'
def parse() -> Opts:
    p = argparse.ArgumentParser()
    p.add_argument('--epochs', type=int, default=3)
    p.add_argument('--root', default='runs')
    return Opts(**vars(p.parse_args()))
",
            ),
            (
                "proj/trainer.py",
                "
import os
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset
from .opts import Opts
def go(o: Opts):
    dist.init_process_group('nccl')
    g = int(os.environ['LOCAL_RANK'])
    torch.cuda.set_device(g)
    out = os.path.join(o.root, 'a')
    os.makedirs(out, exist_ok=True)
    ds = TensorDataset(torch.rand(64, 4))
    smp = DistributedSampler(ds)
    net = DDP(nn.Linear(4, 1).cuda(), device_ids=[g])
    opt = torch.optim.SGD(net.parameters(), 0.1)
    for e in range(o.epochs):
        smp.set_epoch(e)
        for (x,) in DataLoader(ds, 8, sampler=smp):
            opt.zero_grad()
            net(x.cuda()).mean().backward()
            opt.step()
",
            ),
        ]);
    }
}
