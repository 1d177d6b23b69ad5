use crate::analysis::{Call, Event, Reach, TermKind};
use crate::prelude::*;
use crate::table::{Flag, Role};

declare_rule! {
    /// Every rank writes the same file.
    ///
    /// The writes interleave: the file is truncated, mixed, or from another rank than the one
    /// that logged it. A reader then fails with `PytorchStreamReader failed reading zip
    /// archive` or `unexpected EOF`.
    ///
    /// Guards count wherever they are: in a caller, as an early return, in a helper such as
    /// `save_on_master`, in a decorator, a property, a flag or an object that is `None` off
    /// rank 0.
    ///
    /// ```python bad
    /// import torch
    /// import torch.distributed as dist
    ///
    /// dist.init_process_group("nccl")
    /// model = torch.nn.Linear(8, 1)
    /// torch.save(model.state_dict(), "model.pt")  # ~ unguarded-save
    /// ```
    /// ```python good
    /// import torch
    /// import torch.distributed as dist
    ///
    /// dist.init_process_group("nccl")
    /// model = torch.nn.Linear(8, 1)
    /// if dist.get_rank() == 0:
    ///     torch.save(model.state_dict(), "model.pt")
    /// ```
    /// ```rust bad
    /// use tch::nn;
    ///
    /// fn main() -> anyhow::Result<()> {
    ///     let group = tch_ddp::ProcessGroup::init(&tch_ddp::Launch::from_env()?, Default::default())?;
    ///     let vs = nn::VarStore::new(group.device());
    ///     vs.save("model.safetensors")?; //~ unguarded-save
    ///     Ok(())
    /// }
    /// ```
    /// ```rust good
    /// use tch::nn;
    ///
    /// fn main() -> anyhow::Result<()> {
    ///     let group = tch_ddp::ProcessGroup::init(&tch_ddp::Launch::from_env()?, Default::default())?;
    ///     let vs = nn::VarStore::new(group.device());
    ///     if group.is_main() {
    ///         vs.save("model.safetensors")?;
    ///     }
    ///     Ok(())
    /// }
    /// ```
    ///
    /// # Known limits
    /// A path with the rank in it is one file for each rank, and a buffer in memory is no file.
    /// Functions that nothing is seen to call may be guarded by their callers: silent. A test
    /// of something unknown that may be a rank test is taken for one.
    pub static RULE = {
        name: "unguarded-save",
        level: Level::Error,
        harm: Harm::Corrupt,
        tier: 1,
        languages: BOTH,
        fix: FixKind::No,
        check,
    };
}

fn check(program: &Program<'_>, report: &mut Report<'_>) {
    if !program.is_distributed() {
        return;
    }
    for role in [Role::Save, Role::WriteFile] {
        for (event, call) in program.calls(role) {
            let launched = is_written_when_launched(program, event, call);
            if launched || is_written_by_all(program, event, call) {
                let called = program.callee_text(event).unwrap_or("this");
                let mut message = match program.file_text(call, event) {
                    Some(path) => format!("every rank writes {path} here, with `{called}`"),
                    None => format!("every rank runs `{called}` on one file"),
                };
                if launched {
                    message += " where a launcher such as torchrun starts the ranks";
                }
                let asked = program.asked_who_starts(event).filter(|_| launched);
                let draft = report
                    .at(asked.unwrap_or(event.site), message)
                    .why("the writes of several processes interleave and damage the file");
                let draft = match asked {
                    Some(_) => draft.related(event.site, "it is written here"),
                    None => draft,
                };
                draft.help(match program.language {
                    Language::Python => {
                        "let rank 0 alone write it: `if dist.get_rank() == 0:`, \
                             and put a barrier before others read it"
                    }
                    Language::Rust => {
                        "let rank 0 alone write it: `if group.is_main() { .. }`, \
                             or use `ddp.save(path)`"
                    }
                });
            }
        }
    }
}

fn is_written_by_all(program: &Program<'_>, event: &Event<'_>, call: &Call<'_>) -> bool {
    let handled =
        program.has_flag(call, Flag::SelfGuarding) || program.has_flag(call, Flag::Hidden);
    !handled
        && !program.is_orphan(event)
        && matches!(program.reach(event.path), Reach::Every | Reach::Others)
        && !program.hangs_on_unseen_test(event.path)
        && program.names_a_shared_file(call)
        && !program.runs_only_alone(event.path)
        && !is_own_process(program, event)
        && !tells_the_rank(program, call)
        && !(is_left_to_the_first(program, event) && program.main_goes_first(event))
}

/// `save_pretrained(.., is_main_process=..)`: the callee guards itself by what it is told.
fn tells_the_rank(program: &Program<'_>, call: &Call<'_>) -> bool {
    call.arguments.iter().any(|a| {
        a.name.is_some_and(|n| n.contains("main_process") || n.contains("is_main"))
            && a.value.single() != Some(program.terms().yes)
    })
}

/// Written only where a file is missing or could not be read.
fn is_left_to_the_first(program: &Program<'_>, event: &Event<'_>) -> bool {
    program.tests_for_a_file(event.path)
        || program.tests(event.path, &|kind| matches!(kind, TermKind::Happened(_)))
}

/// The guard asks whether the program started the ranks itself, and lets all of them through
/// where a launcher did.
fn is_written_when_launched(program: &Program<'_>, event: &Event<'_>, call: &Call<'_>) -> bool {
    !program.has_flag(call, Flag::SelfGuarding)
        && !program.has_flag(call, Flag::Hidden)
        && program.names_a_shared_file(call)
        && program.all_run_when_launched(event)
}

/// In a loop over ranks, or after a test that some file is this rank's own.
fn is_own_process(program: &Program<'_>, event: &Event<'_>) -> bool {
    program.tests(
        event.path,
        &|kind| matches!(kind, TermKind::Attribute(_, name) if name.contains("save_on_each")),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rank_out_of_several_launchers_variables_guards() {
        check_files(&[
            (
                "env.py",
                "
import os, torch
def from_env():
    rank = 0
    for name in ('RANK', 'PMI_RANK', 'SLURM_PROCID', 'OMPI_COMM_WORLD_RANK'):
        if name in os.environ:
            rank = int(os.environ[name])
            break
    return rank
def start():
    rank = 0
    if int(os.environ.get('WORLD_SIZE', 1)) > 1:
        if 'SLURM_PROCID' in os.environ:
            rank = from_env()
            torch.distributed.init_process_group('nccl', rank=rank)
        else:
            torch.distributed.init_process_group('nccl')
            rank = torch.distributed.get_rank()
    return dict(rank=rank, device='cuda')
",
            ),
            (
                "main.py",
                "
import argparse, torch, env
args = argparse.ArgumentParser().parse_args()
found = env.start()
args.rank = found['rank']
saver = None
if args.rank == 0:
    saver = open('args.yaml', 'w')
for epoch in range(3):
    if args.rank == 0:
        torch.save({}, 'a.pt')
",
            ),
        ]);
    }

    #[test]
    fn temporary_folders_and_callees_that_are_told_the_rank_are_silent() {
        check_python(
            "
import os, shutil, tempfile, torch
import torch.distributed as dist
dist.init_process_group('nccl')
is_main = dist.get_rank() == 0
def read(name):
    with tempfile.TemporaryDirectory() as folder:
        shutil.copyfile(name, os.path.join(folder, os.path.basename(name)))
for name in ('a.py', 'b.py'):
    read(name)
model = torch.hub.load('x', 'y')
model.save_pretrained('out', is_main_process=is_main)
",
        );
    }

    #[test]
    fn a_cache_that_rank_0_makes_first_is_silent() {
        check_files(&[
            (
                "order.py",
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
",
            ),
            (
                "main.py",
                "
import os, torch
import numpy as np
import torch.distributed as dist
from order import zero_first
class Data:
    def __init__(self, path):
        try:
            self.cache = np.load(path)
        except Exception:
            self.cache = self.scan(path)
    def scan(self, path):
        found = {}
        np.save(path, found)
        return found
dist.init_process_group('nccl')
with zero_first(int(os.environ['LOCAL_RANK'])):
    data = Data('labels.cache')
",
            ),
        ]);
    }

    #[test]
    fn a_save_in_a_helper_of_another_file_counts() {
        check_files(&[
            (
                "utils.py",
                "
import torch
def checkpoint(state, name):
    torch.save(state, name)  # ~ unguarded-save
",
            ),
            (
                "main.py",
                "
import torch
import torch.multiprocessing as mp
from utils import checkpoint

def work(rank, epochs):
    torch.distributed.init_process_group('nccl', rank=rank, world_size=2)
    net = torch.nn.Linear(2, 2)
    for epoch in range(epochs):
        checkpoint(net.state_dict(), f'epoch-{epoch}.pt')

if __name__ == '__main__':
    mp.spawn(work, args=(3,), nprocs=2)
",
            ),
        ]);
    }

    #[test]
    fn guards_in_callers_and_helpers_are_seen() {
        check_files(&[
            (
                "dist_utils.py",
                "
import torch
import torch.distributed as dist
def ready():
    return dist.is_available() and dist.is_initialized()
def rank():
    return dist.get_rank() if ready() else 0
def is_chief():
    return rank() == 0
def save_on_chief(*args, **kwargs):
    if is_chief():
        torch.save(*args, **kwargs)
",
            ),
            (
                "main.py",
                "
import torch
from dist_utils import is_chief, save_on_chief
def snapshot(net):
    if not is_chief():
        return
    torch.save(net.state_dict(), 'a.pt')
def write(net):
    torch.save(net.state_dict(), 'b.pt')
def main():
    torch.distributed.init_process_group('nccl')
    net = torch.nn.Linear(2, 2)
    for epoch in range(3):
        snapshot(net)
        save_on_chief(net.state_dict(), 'c.pt')
        if epoch % 2 == 0 and is_chief():
            write(net)
if __name__ == '__main__':
    main()
",
            ),
        ]);
    }

    #[test]
    fn a_rank_in_a_group_that_is_not_known_guards() {
        check_files(&[
            (
                "groups.py",
                "
import torch.distributed as dist
def rank(group=None):
    if group is None:
        group = dist.distributed_c10d._get_default_group()
    return dist.get_rank(group)
",
            ),
            (
                "main.py",
                "
import torch, groups
torch.distributed.init_process_group('gloo')
for epoch in range(3):
    if groups.rank() == 0:
        torch.save({}, 'a.pt')
",
            ),
        ]);
    }

    #[test]
    fn flags_and_none_objects_guard() {
        check_python(
            "
import os, torch
torch.distributed.init_process_group('nccl')
ddp_rank = int(os.environ['RANK'])
chief = ddp_rank == 0
class Saver:
    def __init__(self, folder):
        self.folder = folder
    def save(self, state):
        torch.save(state, self.folder)
saver = Saver('out') if chief else None
for step in range(10):
    if chief:
        torch.save({}, 'a.pt')
    if saver is not None:
        saver.save({})
",
        );
    }

    #[test]
    fn a_path_with_the_rank_is_silent() {
        check_python(
            "
import io, torch
import torch.distributed as dist
dist.init_process_group('nccl')
rank = dist.get_rank()
for step in range(3):
    torch.save({}, f'state-{rank}.pt')
    torch.save({}, 'state-%d.pt' % rank)
    torch.save({}, 'state-{}.pt'.format(dist.get_rank()))
    buffer = io.BytesIO()
    torch.save({}, buffer)
",
        );
    }

    #[test]
    fn the_arm_that_other_ranks_take_counts() {
        check_python(
            "
import argparse, torch
import torch.distributed as dist
args = argparse.ArgumentParser().parse_args()
dist.init_process_group('nccl')
for epoch in range(3):
    if args.ddp and dist.get_rank() == 0:
        torch.save({}, 'a.pt')
    else:
        torch.save({}, 'a.pt')  # ~ unguarded-save
",
        );
    }

    #[test]
    fn a_guard_that_asks_who_started_the_ranks_lets_all_through() {
        check_files(&[
            (
                "keep.py",
                "
import shutil, torch
def keep(state, best, name='last.pt'):
    torch.save(state, name)
    if best:
        shutil.copyfile(name, 'best.pt')
",
            ),
            (
                "main.py",
                "
import argparse, os, torch
import torch.distributed as dist
import torch.multiprocessing as mp
from keep import keep
parser = argparse.ArgumentParser()
parser.add_argument('--multiprocessing-distributed', action='store_true')
def main():
    args = parser.parse_args()
    if args.dist_url == 'env://' and args.world_size == -1:
        args.world_size = int(os.environ['WORLD_SIZE'])
    args.distributed = args.world_size > 1 or args.multiprocessing_distributed
    per_node = torch.cuda.device_count()
    if args.multiprocessing_distributed:
        args.world_size = per_node * args.world_size
        mp.spawn(work, nprocs=per_node, args=(per_node, args))
    else:
        work(args.gpu, per_node, args)
def work(gpu, per_node, args):
    if args.distributed:
        if args.rank == -1:
            args.rank = int(os.environ['RANK'])
        if args.multiprocessing_distributed:
            args.rank = args.rank * per_node + gpu
        dist.init_process_group('nccl', world_size=args.world_size, rank=args.rank)
    model = torch.nn.Linear(2, 2)
    for epoch in range(args.epochs):
        if not args.multiprocessing_distributed or (  # ~ unguarded-save: where a launcher such as torchrun starts the ranks
            args.multiprocessing_distributed and args.rank % per_node == 0
        ):
            keep(model.state_dict(), epoch == 3)
        if not args.distributed or args.rank == 0:
            torch.save(model.state_dict(), 'first.pt')
if __name__ == '__main__':
    main()
",
            ),
        ]);
    }

    #[test]
    fn what_only_runs_on_one_process_is_silent() {
        check_python(
            "
import argparse, torch
import torch.distributed as dist
args = argparse.ArgumentParser().parse_args()
if args.distributed:
    dist.init_process_group('nccl')
for epoch in range(3):
    if not args.distributed or dist.get_rank() == 0:
        torch.save({}, 'a.pt')
    if not args.distributed:
        torch.save({}, 'b.pt')
",
        );
    }

    #[test]
    fn methods_under_a_decorator_of_the_project_are_silent() {
        check_files(&[
            (
                "comm.py",
                "
import functools
import torch.distributed as dist
def rank():
    return dist.get_rank() if dist.is_initialized() else 0
def only_master(fn):
    @functools.wraps(fn)
    def wrapper(*a, **k):
        if rank() == 0:
            return fn(*a, **k)
    return wrapper
",
            ),
            (
                "io_.py",
                r#"
import pickle
import torch
from comm import only_master
@only_master
def dump(obj, path):
    pickle.dump(obj, open(path, "wb"))
class Saver:
    def __init__(self, net):
        self.net = net
    @only_master
    def __call__(self, tag):
        torch.save(self.net.state_dict(), tag + ".pt")
"#,
            ),
            (
                "main.py",
                r#"
import os
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP
from io_ import Saver, dump
class Ctx:
    def __init__(self):
        self.rank = dist.get_rank()
    @property
    def is_main(self):
        return not self.rank
def run():
    dist.init_process_group("nccl")
    g = int(os.environ["LOCAL_RANK"])
    torch.cuda.set_device(g)
    ctx = Ctx()
    net = DDP(torch.nn.Linear(2, 2).cuda(), device_ids=[g])
    opt = torch.optim.SGD(net.parameters(), 0.1)
    saver = Saver(net.module)
    log = open("log.txt", "a") if ctx.is_main else None
    for i in range(10):
        loss = net(torch.randn(4, 2).cuda()).mean()
        opt.zero_grad(); loss.backward(); opt.step()
        saver(f"w{i}")
        if log is not None: log.write(str(loss.item()))
    dump({"done": True}, "state.pkl")
    if ctx.is_main:
        torch.save(net.module.state_dict(), "final.pt")
run()
"#,
            ),
        ]);
    }

    #[test]
    fn a_command_of_an_application_counts() {
        check_python(
            "
import os
import torch
import torch.distributed as dist
import typer
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler
app = typer.Typer()
class Runtime:
    def __init__(self):
        dist.init_process_group('nccl')
        torch.cuda.set_device(int(os.environ['LOCAL_RANK']))
    @property
    def is_chief(self):
        return dist.get_rank() == 0
@app.command()
def fit(epochs: int = 3, out: str = 'weights.pt'):
    rt = Runtime()
    net = torch.nn.Linear(4, 2).cuda()
    net = DistributedDataParallel(net, device_ids=[torch.cuda.current_device()])
    data = TensorDataset(torch.rand(64, 4), torch.rand(64, 2))
    sampler = DistributedSampler(data)
    feed = DataLoader(data, batch_size=8, sampler=sampler)
    opt = torch.optim.SGD(net.parameters(), lr=0.1)
    for ep in range(epochs):
        sampler.set_epoch(ep)
        for a, b in feed:
            opt.zero_grad()
            torch.nn.functional.mse_loss(net(a.cuda()), b.cuda()).backward()
            opt.step()
    if epochs > 0:
        torch.save(net.module.state_dict(), out)  # ~ unguarded-save
if __name__ == '__main__':
    app()
",
        );
    }

    #[test]
    fn a_command_guarded_by_a_property_is_silent() {
        check_python(
            "
import os
import torch
import torch.distributed as dist
import typer
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler
app = typer.Typer()
class Runtime:
    def __init__(self):
        dist.init_process_group('nccl')
        torch.cuda.set_device(int(os.environ['LOCAL_RANK']))
    @property
    def is_chief(self):
        return dist.get_rank() == 0
@app.command()
def fit(epochs: int = 3, out: str = 'weights.pt'):
    rt = Runtime()
    net = torch.nn.Linear(4, 2).cuda()
    net = DistributedDataParallel(net, device_ids=[torch.cuda.current_device()])
    data = TensorDataset(torch.rand(64, 4), torch.rand(64, 2))
    sampler = DistributedSampler(data)
    feed = DataLoader(data, batch_size=8, sampler=sampler)
    opt = torch.optim.SGD(net.parameters(), lr=0.1)
    for ep in range(epochs):
        sampler.set_epoch(ep)
        for a, b in feed:
            opt.zero_grad()
            torch.nn.functional.mse_loss(net(a.cuda()), b.cuda()).backward()
            opt.step()
    if rt.is_chief:
        torch.save(net.module.state_dict(), out)
if __name__ == '__main__':
    app()
",
        );
    }

    #[test]
    fn the_rank_among_settings_of_one_of_several_sources_guards() {
        check_python(
            "
import os
import yaml
import torch
import torch.distributed as dist
def settings(path):
    if os.path.isfile(path):
        with open(path) as file:
            return yaml.load(file, Loader=yaml.SafeLoader)
    else:
        return yaml.load(path, Loader=yaml.SafeLoader)
def where():
    return dist.get_rank(), dist.get_world_size()
def parse(path):
    opt = settings(path)
    dist.init_process_group('nccl')
    opt['rank'], opt['world'] = where()
    return opt
opt = parse('conf.yml')
if opt['logger'].get('board') and 'debug' not in opt['name'] and opt['rank'] == 0:
    torch.save(opt, 'options.pt')
torch.save(opt, 'all.pt')  # ~ unguarded-save
",
        );
    }

    #[test]
    fn a_file_of_the_index_of_the_process_is_its_own() {
        check_python(
            "
import random
import torch
import torch.distributed as dist
class State:
    def __init__(self, shared):
        self.__dict__ = shared
def keep(folder, process_index):
    torch.save(random.getstate(), f'{folder}/random_{process_index}.pt')
dist.init_process_group('nccl')
state = State(__import__('shared').state())
keep('out', state.process_index)
",
        );
    }

    #[test]
    fn processes_started_in_a_loop_are_told_their_rank() {
        check_python(
            "
import os
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset
import torch.multiprocessing as mp
def serve(index, size, port):
    os.environ['MASTER_ADDR'], os.environ['MASTER_PORT'] = 'localhost', str(port)
    dist.init_process_group('gloo', rank=index, world_size=size)
    net = DDP(nn.Linear(4, 1))
    for _ in range(4):
        net(torch.rand(2, 4)).mean().backward()
    if index != 0:
        return
    torch.save(net.module.state_dict(), 'm.pt')
if __name__ == '__main__':
    crew = []
    for i in range(4):
        p = mp.Process(target=serve, args=(i, 4, 29501))
        p.start()
        crew.append(p)
    for p in crew:
        p.join()
",
        );
    }

    #[test]
    fn processes_started_in_a_loop_all_save() {
        check_python(
            "
import os
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset
import torch.multiprocessing as mp
def serve(index, size, port):
    os.environ['MASTER_ADDR'], os.environ['MASTER_PORT'] = 'localhost', str(port)
    dist.init_process_group('gloo', rank=index, world_size=size)
    net = DDP(nn.Linear(4, 1))
    for _ in range(4):
        net(torch.rand(2, 4)).mean().backward()
    torch.save(net.module.state_dict(), 'm.pt')  # ~ unguarded-save
if __name__ == '__main__':
    crew = []
    for i in range(4):
        p = mp.Process(target=serve, args=(i, 4, 29501))
        p.start()
        crew.append(p)
    for p in crew:
        p.join()
",
        );
    }

    #[test]
    fn a_callback_called_by_its_name_counts() {
        check_files(&[
            (
                "callbacks.py",
                "
import torch
class Callback:
    def on_start(self, trainer):
        pass
    def on_end(self, trainer):
        pass
class KeepBest(Callback):
    def __init__(self, path):
        self.path = path
    def on_end(self, trainer):
        print('saving', trainer.rank)
        torch.save(trainer.net.module.state_dict(), self.path)  # ~ unguarded-save
",
            ),
            (
                "main.py",
                "
import os
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset
from callbacks import Callback, KeepBest
class Trainer:
    def __init__(self, *callbacks: Callback):
        self.callbacks = list(callbacks)
        dist.init_process_group('nccl')
        self.rank = dist.get_rank()
        local = int(os.environ['LOCAL_RANK'])
        torch.cuda.set_device(local)
        self.net = DDP(nn.Linear(4, 1).cuda(), device_ids=[local])
    def emit(self, name):
        for callback in self.callbacks:
            getattr(callback, name)(self)
    def fit(self):
        self.emit('on_start')
        self.net(torch.rand(2, 4).cuda()).mean().backward()
        self.emit('on_end')
if __name__ == '__main__':
    Trainer(KeepBest('best.pt')).fit()
",
            ),
        ]);
    }

    #[test]
    fn a_callback_of_the_first_rank_is_silent() {
        check_files(&[
            (
                "callbacks.py",
                "
import torch
class Callback:
    def on_start(self, trainer):
        pass
    def on_end(self, trainer):
        pass
class KeepBest(Callback):
    def __init__(self, path):
        self.path = path
    def on_end(self, trainer):
        if trainer.rank:
            return
        torch.save(trainer.net.module.state_dict(), self.path)
",
            ),
            (
                "main.py",
                "
import os
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset
from callbacks import Callback, KeepBest
class Trainer:
    def __init__(self, *callbacks: Callback):
        self.callbacks = list(callbacks)
        dist.init_process_group('nccl')
        self.rank = dist.get_rank()
        local = int(os.environ['LOCAL_RANK'])
        torch.cuda.set_device(local)
        self.net = DDP(nn.Linear(4, 1).cuda(), device_ids=[local])
    def emit(self, name):
        for callback in self.callbacks:
            getattr(callback, name)(self)
    def fit(self):
        self.emit('on_start')
        self.net(torch.rand(2, 4).cuda()).mean().backward()
        self.emit('on_end')
if __name__ == '__main__':
    Trainer(KeepBest('best.pt')).fit()
",
            ),
        ]);
    }
}
