use crate::analysis::devices::Device;
use crate::analysis::{Call, Event, Reach, TermKind, Value};
use crate::prelude::*;
use crate::table::{Flag, Role};

declare_rule! {
    /// No process chooses its device.
    ///
    /// A bare `.cuda()` or `"cuda"` means the current device, and that is device 0 in every
    /// process until `torch.cuda.set_device` says otherwise. All ranks then train on one GPU:
    /// `Duplicate GPU detected`, or `CUDA out of memory`. Where tensors name their device, calls
    /// without one (`empty_cache()`, `synchronize()`, collectives of objects) still open a
    /// context on device 0 in every process, a few hundred MiB each.
    ///
    /// ```python bad
    /// import torch.distributed as dist
    /// import torch.nn as nn
    /// from torch.nn.parallel import DistributedDataParallel as DDP
    ///
    /// dist.init_process_group("nccl")
    /// model = DDP(nn.Linear(8, 1).cuda())  # ~ missing-set-device
    /// ```
    /// ```python good
    /// import os
    /// import torch
    /// import torch.distributed as dist
    /// import torch.nn as nn
    /// from torch.nn.parallel import DistributedDataParallel as DDP
    ///
    /// torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    /// dist.init_process_group("nccl")
    /// model = DDP(nn.Linear(8, 1).cuda())
    /// ```
    /// ```rust bad
    /// use tch_ddp::{Backend, GroupOptions, Launch, ProcessGroup};
    ///
    /// fn main() -> anyhow::Result<()> {
    ///     tch::Cuda::synchronize(-1); //~ missing-set-device
    ///     let options = GroupOptions { backend: Backend::Nccl, ..Default::default() };
    ///     let group = ProcessGroup::init(&Launch::from_env()?, options)?;
    ///     Ok(())
    /// }
    /// ```
    /// ```rust good
    /// use tch_ddp::{Backend, GroupOptions, Launch, ProcessGroup};
    ///
    /// fn main() -> anyhow::Result<()> {
    ///     let options = GroupOptions { backend: Backend::Nccl, ..Default::default() };
    ///     let group = ProcessGroup::init(&Launch::from_env()?, options)?;
    ///     tch::Cuda::synchronize(-1);
    ///     Ok(())
    /// }
    /// ```
    ///
    /// # Known limits
    /// In Rust, where a device always has its index, `device-zero-on-every-rank` answers most of
    /// this. One finding for each program, at the first place that matters. A program that speaks of
    /// `CUDA_VISIBLE_DEVICES`, sets any device, or starts its group with `device_id` is silent.
    /// A bare `barrier()` is silent: NCCL takes a device that the process has used.
    pub static RULE = {
        name: "missing-set-device",
        level: Level::Error,
        harm: Harm::Crash,
        tier: 1,
        languages: BOTH,
        fix: FixKind::No,
        check,
    };
}

fn check(program: &Program<'_>, report: &mut Report<'_>) {
    if program.language == Language::Rust {
        return check_tch(program, report);
    }
    if !program.is_distributed() || !program.uses_nccl() || chooses_a_device(program) {
        return;
    }
    let of_rank = names_devices_of_ranks(program);
    let moved = program.calls(Role::Move).filter(|(e, _)| runs(program, e)).filter(|(_, call)| {
        program.moved_to(call).contains(&Device::Current) && is_module(program, call)
    });
    if let Some((event, _)) = moved.min_by_key(|(event, _)| event.id) {
        if names_other_devices(program) && !of_rank {
            return;
        }
        tell(
            program,
            report,
            event,
            "the model goes to the current device, which is device 0 in every process",
        );
        return;
    }
    if of_rank {
        if let Some(event) = first_on_current_device(program) {
            warn(program, report, event);
        }
    } else if let Some(event) = first_tensor_on_current_device(program)
        && !names_other_devices(program)
    {
        tell(
            program,
            report,
            event,
            "this is on the current device, which is device 0 in every process",
        );
    }
}

/// tch: `Cuda::synchronize(-1)` means the current device. The group of tch-ddp sets that; tch
/// itself has no way to.
fn check_tch(program: &Program<'_>, report: &mut Report<'_>) {
    let sets = |(_, call): &(&Event<'_>, &Call<'_>)| {
        call.name.is_some_and(|name| name.starts_with("tch_ddp."))
    };
    let mut groups = program.calls(Role::InitGroup);
    let Some(first) = groups.next() else { return };
    let over_nccl = program.uses_nccl() || first.1.name.is_some_and(|n| n.contains("nccl"));
    if !program.is_distributed() || !over_nccl || program.chooses_visible_devices() {
        return;
    }
    let early = program.calls(Role::CurrentDevice).find(|(event, call)| {
        let index = call.argument("device_index").known().and_then(|a| a.value.single());
        let is_current = index.is_some_and(|t| program.terms().as_int(t) == Some(-1));
        let before = !sets(&first) || event.id < first.0.id;
        is_current
            && before
            && !program.is_orphan(event)
            && program.reach(event.path) == Reach::Every
    });
    let Some((event, _)) = early else { return };
    report
        .at(event.site, "this uses the current device, which is device 0 in every process")
        .level(Level::Warning)
        .harm(Harm::Waste)
        .why("every process of the node opens a context on GPU 0, which fills it")
        .help(if sets(&first) {
            "start the process group first: it makes this rank's device the current one"
        } else {
            "name the device: `Cuda::synchronize(local_rank as i64)`"
        })
        .related(first.0.site, "the process group starts here");
}

fn tell(program: &Program<'_>, report: &mut Report<'_>, event: &Event<'_>, message: &str) {
    let draft = report
        .at(event.site, message)
        .why("all processes of a node share one GPU: NCCL refuses, or memory runs out")
        .help("choose the device first: `torch.cuda.set_device(int(os.environ[\"LOCAL_RANK\"]))`");
    if let Some((group, _)) = program.calls(Role::InitGroup).next() {
        draft.related(group.site, "the process group starts here, and no device is chosen");
    }
}

fn warn(program: &Program<'_>, report: &mut Report<'_>, event: &Event<'_>) {
    let text = program.callee_text(event).unwrap_or("this");
    report
        .at(
            event.site,
            format!("`{text}` uses the current device, which is device 0 in every process"),
        )
        .level(Level::Warning)
        .harm(Harm::Waste)
        .why("every process of the node opens a context on GPU 0, which fills it")
        .help("set the current device once, at the start: `torch.cuda.set_device(local_rank)`");
}

fn chooses_a_device(program: &Program<'_>) -> bool {
    let given = |call: &Call<'_>| {
        let id = call.argument("device_id");
        !id.is_absent() && id.known().is_none_or(|a| a.value.single() != Some(program.terms().none))
    };
    program.calls(Role::SetDevice).next().is_some()
        || program.calls(Role::Framework).next().is_some()
        || program.calls(Role::InitGroup).any(|(_, call)| given(call))
        || program.chooses_visible_devices()
        || program.changes_default_device()
}

/// In every process, and where there are several.
fn runs(program: &Program<'_>, event: &Event<'_>) -> bool {
    let beside_a_group = program
        .calls(Role::InitGroup)
        .any(|(group, _)| program.can_both_hold_paths(event.path, group.path));
    !program.is_orphan(event)
        && beside_a_group
        && matches!(program.reach(event.path), Reach::Every | Reach::Others | Reach::Some)
}

fn is_module(program: &Program<'_>, call: &Call<'_>) -> bool {
    let receiver = call.receiver.as_ref().and_then(Value::single);
    receiver.is_some_and(|term| program.is_module(term) || program.wrapper_of(term).is_some())
        && receiver.and_then(|term| program.object_of(term)).is_none_or(|o| o.role != Role::Loss)
}

/// The devices that a call names.
fn named(program: &Program<'_>, call: &Call<'_>) -> Vec<Device> {
    match call.role {
        Role::Move => program.moved_to(call),
        Role::MakeDevice => {
            call.result.single().map_or(Vec::new(), |_| program.devices(&call.result))
        }
        _ => call.argument("device").known().map(|a| program.devices(&a.value)).unwrap_or_default(),
    }
}

const PLACING: [Role; 4] = [Role::Move, Role::MakeDevice, Role::MakeTensor, Role::Random];

/// Some device depends on the rank.
fn names_devices_of_ranks(program: &Program<'_>) -> bool {
    let placed = PLACING.iter().any(|&role| {
        program.calls(role).any(|(_, call)| named(program, call).contains(&Device::OfRank))
    });
    placed
        || program.calls(Role::WrapDdp).any(|(_, call)| {
            let ids = call.argument("device_ids").known().and_then(|a| a.value.single());
            ids.is_some_and(|ids| {
                program.contents(ids).iter().any(|id| program.devices(id).contains(&Device::OfRank))
            })
        })
}

/// Modules or tensors go to devices that nothing is known of.
fn names_other_devices(program: &Program<'_>) -> bool {
    let is_other = |device: &Device| match device {
        // The device of another tensor is where that one is; a dtype is no device.
        Device::Other(term) => !program.mentions(*term, &|kind| match kind {
            TermKind::Attribute(_, name) => &**name == "device",
            TermKind::Outside(_) => true,
            _ => false,
        }),
        _ => false,
    };
    program
        .calls(Role::Move)
        .filter(|(_, call)| is_module(program, call))
        .any(|(_, call)| named(program, call).iter().any(is_other))
}

fn first_tensor_on_current_device<'e, 'p>(program: &'e Program<'p>) -> Option<&'e Event<'p>> {
    let roles = [Role::Move, Role::MakeTensor, Role::Random];
    let events = roles.iter().flat_map(|&role| program.calls(role)).filter(|(event, call)| {
        runs(program, event) && named(program, call).contains(&Device::Current)
    });
    events.map(|(event, _)| event).min_by_key(|event| event.id)
}

/// Calls that use the current device, tensors on it, collectives of objects.
fn first_on_current_device<'e, 'p>(program: &'e Program<'p>) -> Option<&'e Event<'p>> {
    let uses = program.calls(Role::CurrentDevice).filter(|(event, call)| {
        let touches = call.name.is_some_and(|name| {
            ["empty_cache", "synchronize", "ipc_collect"].iter().any(|end| name.ends_with(end))
        });
        touches && call.arguments.is_empty() && runs(program, event)
    });
    let objects = program
        .calls(Role::Collective)
        .filter(|(event, call)| program.has_flag(call, Flag::Objects) && runs(program, event))
        .filter(|(_, call)| {
            call.argument("device").is_absent() && call.argument("group").is_absent()
        });
    let uses = uses.chain(objects).map(|(event, _)| event);
    uses.chain(first_tensor_on_current_device(program)).min_by_key(|event| event.id)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_trainer_over_two_files_counts() {
        check_files(&[
            (
                "dist_setup.py",
                "
import torch.distributed as dist
def start(backend='nccl'):
    dist.init_process_group(backend=backend, init_method='env://')
",
            ),
            (
                "main.py",
                "
import torch
from torch.nn.parallel import DistributedDataParallel
from dist_setup import start
class Engine:
    def __init__(self, net):
        self.device = torch.device('cuda' if torch.cuda.is_available() else 'cpu')
        self.net = DistributedDataParallel(net.to(self.device))  # ~ missing-set-device
    def fit(self, batches):
        for x in batches:
            self.net(x.to(self.device)).sum().backward()
if __name__ == '__main__':
    start()
    Engine(torch.nn.Linear(2, 2)).fit([torch.ones(2, 2)])
",
            ),
        ]);
    }

    #[test]
    fn a_backend_from_the_command_line_counts() {
        check_python(
            "
import argparse, torch
import torch.distributed as dist
parser = argparse.ArgumentParser()
parser.add_argument('--dist-backend', default='nccl')
args = parser.parse_args()
dist.init_process_group(args.dist_backend)
net = torch.nn.Linear(2, 2).cuda()  # ~ missing-set-device
net = torch.nn.parallel.DistributedDataParallel(net)
for _ in range(3):
    net(torch.ones(2, 2).cuda()).sum().backward()
",
        );
    }

    #[test]
    fn a_context_on_device_0_is_a_warning() {
        check_python(
            "
import os, torch
import torch.distributed as dist
rank = int(os.environ['LOCAL_RANK'])
dist.init_process_group('nccl')
net = torch.nn.Linear(2, 2).to(f'cuda:{rank}')
net = torch.nn.parallel.DistributedDataParallel(net, device_ids=[rank], output_device=rank)
names = [None]
dist.broadcast_object_list(names)  # ~ missing-set-device: device 0
for _ in range(3):
    net(torch.ones(2, 2)).sum().backward()
    torch.cuda.synchronize()
",
        );
    }

    #[test]
    fn a_device_of_each_rank_is_silent() {
        check_python(
            "
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
def worker(gpu, world):
    dist.init_process_group('nccl', rank=gpu, world_size=world)
    net = torch.nn.Linear(2, 2).to(gpu)
    net = torch.nn.parallel.DistributedDataParallel(net, device_ids=[gpu])
    for _ in range(3):
        net(torch.ones(2, 2).to(gpu)).sum().backward()
    dist.barrier()
if __name__ == '__main__':
    mp.spawn(worker, args=(2,), nprocs=2)
",
        );
    }

    #[test]
    fn a_device_that_is_set_in_a_helper_is_silent() {
        check_files(&[
            (
                "env.py",
                "
import os, torch
def prepare():
    gpu = int(os.environ.get('LOCAL_RANK', 0))
    torch.cuda.set_device(gpu)
    torch.distributed.init_process_group('nccl')
",
            ),
            (
                "main.py",
                "
import torch, env
env.prepare()
net = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(2, 2).cuda())
for _ in range(3):
    net(torch.ones(2, 2).cuda()).sum().backward()
    torch.cuda.empty_cache()
",
            ),
        ]);
    }

    #[test]
    fn the_arm_of_one_process_is_silent() {
        check_python(
            "
import argparse, os, torch
import torch.distributed as dist
args = argparse.ArgumentParser().parse_args()
net = torch.nn.Linear(2, 2)
if args.distributed:
    dist.init_process_group('nccl')
    rank = int(os.environ['LOCAL_RANK'])
    net = torch.nn.parallel.DistributedDataParallel(net.to(rank), device_ids=[rank])
else:
    net = net.cuda()
for _ in range(3):
    net(torch.ones(2, 2)).sum().backward()
",
        );
    }

    #[test]
    fn gloo_on_the_cpu_and_visible_devices_are_silent() {
        check_python(
            "
import torch
torch.distributed.init_process_group('gloo')
net = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(2, 2))
for _ in range(3):
    net(torch.ones(2, 2)).sum().backward()
",
        );
        check_python(
            "
import os, torch
os.environ['CUDA_VISIBLE_DEVICES'] = os.environ['LOCAL_RANK']
torch.distributed.init_process_group('nccl')
net = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(2, 2).cuda())
for _ in range(3):
    net(torch.ones(2, 2)).sum().backward()
",
        );
    }
}
