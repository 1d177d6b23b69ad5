use crate::analysis::{Call, Const, Event, Reach, SAMPLES, Term, TermKind};
use crate::prelude::*;
use crate::table::{Flag, Role};

declare_rule! {
    /// One rank of each node writes the same file.
    ///
    /// The guard asks for the local rank, or for the rank modulo the devices of a node: every
    /// node has such a rank. On several nodes with a shared file system the writes interleave
    /// and damage the file, as without a guard.
    ///
    /// ```python bad
    /// import os
    /// import torch
    /// import torch.distributed as dist
    ///
    /// dist.init_process_group("gloo", rank=int(os.environ["SLURM_PROCID"]))
    /// local_rank = int(os.environ["SLURM_LOCALID"])
    /// model = torch.nn.Linear(8, 1)
    /// if local_rank == 0:  # ~ local-rank-guard-on-shared-file
    ///     torch.save(model.state_dict(), "model.pt")
    /// ```
    /// ```python good
    /// import os
    /// import torch
    /// import torch.distributed as dist
    ///
    /// dist.init_process_group("gloo", rank=int(os.environ["SLURM_PROCID"]))
    /// model = torch.nn.Linear(8, 1)
    /// if dist.get_rank() == 0:
    ///     torch.save(model.state_dict(), "model.pt")
    /// ```
    /// ```rust bad
    /// use tch::{nn, Device};
    ///
    /// fn main() -> anyhow::Result<()> {
    ///     let launch = tch_ddp::Launch::from_env()?;
    ///     let group = tch_ddp::ProcessGroup::init(&launch, Default::default())?;
    ///     let vs = nn::VarStore::new(group.device());
    ///     println!("node {}", std::env::var("SLURM_NODEID")?);
    ///     if launch.local_rank() == 0 { //~ local-rank-guard-on-shared-file
    ///         vs.save("model.ot").expect("the folder is writable");
    ///     }
    ///     Ok(())
    /// }
    /// ```
    /// ```rust good
    /// use tch::{nn, Device};
    ///
    /// fn main() -> anyhow::Result<()> {
    ///     let launch = tch_ddp::Launch::from_env()?;
    ///     let group = tch_ddp::ProcessGroup::init(&launch, Default::default())?;
    ///     let vs = nn::VarStore::new(group.device());
    ///     println!("node {}", std::env::var("SLURM_NODEID")?);
    ///     if group.is_main() {
    ///         vs.save("model.ot").expect("the folder is writable");
    ///     }
    ///     Ok(())
    /// }
    /// ```
    ///
    /// # Known limits
    /// A warning where the program speaks of several nodes (a node rank, Slurm), else advice:
    /// on one node the two ranks are the same. A path under `/tmp` is each node's own. In a
    /// program that starts its processes on one node the rule is silent.
    pub static RULE = {
        name: "local-rank-guard-on-shared-file",
        level: Level::Warning,
        harm: Harm::Corrupt,
        tier: 2,
        languages: BOTH,
        fix: FixKind::No,
        check,
    };
}

fn check(program: &Program<'_>, report: &mut Report<'_>) {
    let several = program.shows_several_nodes();
    let starts_its_own = program.calls(Role::Spawn).next().is_some();
    if !program.is_distributed() || starts_its_own && (!several || ranks_on_one_node(program)) {
        return;
    }
    for role in [Role::Save, Role::WriteFile] {
        for (event, call) in program.calls(role) {
            let handled =
                program.has_flag(call, Flag::SelfGuarding) || program.has_flag(call, Flag::Hidden);
            let shared = program.names_a_shared_file(call) && !is_on_the_node(program, call);
            if handled || !shared || program.is_orphan(event) {
                continue;
            }
            if program.reach(event.path) != Reach::LocalMain || is_staged(program, call) {
                continue;
            }
            let Some(guard) = guard(program, event) else { continue };
            let called = program.callee_text(event).unwrap_or("this");
            let draft = report
                .at(guard, format!("the first rank of each node runs `{called}`"))
                .why("on several nodes that is one process for each, and they write one file")
                .help(match program.language {
                    Language::Python => "ask for the global rank: `dist.get_rank() == 0`",
                    Language::Rust => "ask for the global rank: `group.is_main()`",
                })
                .related(event.site, "the file is written here");
            if !several {
                draft.level(Level::Advice);
            }
        }
    }
}

/// Data copied from elsewhere: each node wants its own. Not what the program wrote before.
fn is_staged(program: &Program<'_>, call: &Call<'_>) -> bool {
    let copies = call.name.is_some_and(|n| n.starts_with("shutil.copy") || &*n == "shutil.move");
    let source = call.arguments.first().map(|a| &a.value);
    let is_own = || {
        program.calls(Role::Save).any(|(_, save)| {
            program.file_argument(save).is_some_and(|file| {
                file.terms().any(|t| source.is_some_and(|s| s.terms().any(|u| u == t)))
            })
        })
    };
    copies && !is_own()
}

/// The global rank is the index that `mp.spawn` gives.
fn ranks_on_one_node(program: &Program<'_>) -> bool {
    let is_index = |term: Term| *program.terms().kind(term) == TermKind::SpawnIndex;
    let mut ranks =
        program.calls(Role::InitGroup).filter_map(|(_, call)| call.argument("rank").known());
    let first = ranks.next();
    first.is_some_and(|a| a.value.terms().all(is_index))
        && ranks.all(|a| a.value.terms().all(is_index))
}

/// The innermost test that surely lets the first rank of each node through, and no other.
fn guard(program: &Program<'_>, event: &Event<'_>) -> Option<Site> {
    program
        .conditions(event.path)
        .find(|node| asks_for_local_rank(program, node.condition))
        .map(|node| node.site)
}

fn asks_for_local_rank(program: &Program<'_>, condition: Term) -> bool {
    if let TermKind::And(parts) = program.terms().kind(condition) {
        return parts.iter().any(|&part| asks_for_local_rank(program, part));
    }
    let expected = [true, false, true, false].map(|holds| Some(Const::Bool(holds)));
    SAMPLES.map(|sample| program.terms().evaluate(condition, sample)) == expected
}

fn is_on_the_node(program: &Program<'_>, call: &Call<'_>) -> bool {
    let path = program.file_argument(call);
    path.is_some_and(|path| {
        path.terms().any(|term| {
            program.mentions(term, &|kind| {
                matches!(kind, TermKind::Const(Const::Str(text))
                    if ["/tmp", "/scratch", "/dev/shm"].iter().any(|dir| text.starts_with(dir)))
            })
        })
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn data_staged_on_each_node_is_silent() {
        check_python(
            "
import os, shutil
import torch.distributed as dist
dist.init_process_group('nccl', rank=int(os.environ['SLURM_PROCID']))
node = int(os.environ['SLURM_NODEID'])
local_rank = int(os.environ['LOCAL_RANK'])
def stage(source, target):
    if local_rank == 0:
        shutil.copyfile(source, target)
for name in ('train.zip', 'val.zip'):
    stage('/data/' + name, name)
",
        );
    }

    #[test]
    fn a_guard_in_a_caller_with_a_node_rank_counts() {
        check_files(&[
            (
                "files.py",
                "
import torch
def write(net, path):
    torch.save(net.state_dict(), path)
",
            ),
            (
                "train.py",
                "
import argparse, torch
import torch.distributed as dist
from files import write
parser = argparse.ArgumentParser()
parser.add_argument('--node_rank', type=int)
parser.add_argument('--local_rank', type=int)
args = parser.parse_args()
dist.init_process_group('gloo')
net = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(2, 2))
for epoch in range(3):
    net(torch.ones(2)).sum().backward()
    if epoch % 2 == 0 and args.local_rank == 0:  # ~ local-rank-guard-on-shared-file: `torch.save`
        write(net.module, 'net.pt')
",
            ),
        ]);
    }

    #[test]
    fn a_rank_modulo_the_devices_counts() {
        check_python(
            "
import json, os, torch
import torch.distributed as dist
import torch.multiprocessing as mp
def work(gpu, per_node, node_rank):
    rank = node_rank * per_node + gpu
    dist.init_process_group('gloo', rank=rank)
    if rank % torch.cuda.device_count() != 0:  # ~ local-rank-guard-on-shared-file
        return
    torch.save({'a': 1}, 'a.pt')
if __name__ == '__main__':
    n = torch.cuda.device_count()
    mp.spawn(work, nprocs=n, args=(n, int(os.environ['NODE_RANK'])))
",
        );
    }

    #[test]
    fn without_a_sign_of_several_nodes_it_is_advice() {
        check_python(
            "
import os, torch
torch.distributed.init_process_group('gloo')
chief = int(os.environ['LOCAL_RANK']) == 0
if chief:  # ~ local-rank-guard-on-shared-file
    torch.save({}, 'a.pt')
",
        );
    }

    #[test]
    fn global_ranks_and_own_files_are_silent() {
        check_python(
            "
import os, torch
import torch.distributed as dist
dist.init_process_group('gloo')
local, node = int(os.environ['LOCAL_RANK']), int(os.environ['NODE_RANK'])
if local == 0:
    torch.save({}, f'node-{node}.pt')
    torch.save({}, '/tmp/cache.pt')
if dist.get_rank() == 0:
    torch.save({}, 'a.pt')
if local == 0 and node == 0:
    torch.save({}, 'b.pt')
",
        );
    }

    #[test]
    fn a_rank_that_may_be_global_is_silent() {
        check_python(
            "
import argparse, os, torch
import torch.multiprocessing as mp
args = argparse.ArgumentParser().parse_args()
def work(gpu, args):
    args.rank += gpu
    torch.distributed.init_process_group('gloo', rank=args.rank)
    if args.rank == 0:
        torch.save({}, 'a.pt')
if __name__ == '__main__':
    if 'SLURM_JOB_ID' in os.environ:
        args.rank = int(os.environ['SLURM_NODEID']) * 8
    else:
        args.rank = 0
    mp.spawn(work, nprocs=8, args=(args,))
",
        );
    }

    #[test]
    fn ranks_on_one_node_under_slurm_are_silent() {
        check_python(
            "
import argparse, os, torch
import torch.multiprocessing as mp
args = argparse.ArgumentParser().parse_args()
def work(gpu, args):
    args.rank += gpu
    torch.distributed.init_process_group('gloo', rank=args.rank)
    if args.rank == 0:
        torch.save({}, 'a.pt')
if __name__ == '__main__':
    print(os.environ.get('SLURM_JOB_ID'))
    args.rank = 0
    mp.spawn(work, nprocs=8, args=(args,))
",
        );
    }

    #[test]
    fn processes_of_one_node_are_silent() {
        check_python(
            "
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
def work(gpu, n):
    dist.init_process_group('gloo', rank=gpu, world_size=n)
    if gpu == 0:
        torch.save({}, 'a.pt')
if __name__ == '__main__':
    mp.spawn(work, nprocs=2, args=(2,))
",
        );
    }

    #[test]
    fn folders_and_downloads_of_a_node_are_silent() {
        check_files(&[
            (
                "data.py",
                "
import os, torchvision
def fetch(root):
    os.makedirs(root, exist_ok=True)
    return torchvision.datasets.MNIST(root, download=True)
",
            ),
            (
                "main.py",
                "
import os, torch, data
torch.distributed.init_process_group('gloo', rank=int(os.environ['SLURM_PROCID']))
if int(os.environ['SLURM_LOCALID']) == 0:
    data.fetch('mnist')
torch.distributed.barrier()
",
            ),
        ]);
    }
}
