use crate::analysis::devices::Device;
use crate::analysis::{Call, Event, Object, ObjectClass, Value};
use crate::prelude::*;
use crate::table::{Flag, Role};

declare_rule! {
    /// A tensor on the CPU is given to a collective over NCCL.
    ///
    /// NCCL moves memory between GPUs: `No backend type associated with device type cpu`, in
    /// older versions `Tensors must be CUDA and dense`.
    ///
    /// ```python bad
    /// import os
    /// import torch
    /// import torch.distributed as dist
    ///
    /// torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    /// dist.init_process_group("nccl")
    /// count = torch.tensor([3.0])
    /// dist.all_reduce(count)  # ~ cpu-tensor-on-nccl
    /// ```
    /// ```python good
    /// import os
    /// import torch
    /// import torch.distributed as dist
    ///
    /// torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    /// dist.init_process_group("nccl")
    /// count = torch.tensor([3.0], device="cuda")
    /// dist.all_reduce(count)
    /// ```
    /// ```rust bad
    /// use tch::Tensor;
    /// use tch_ddp::{Backend, GroupOptions, Launch, ProcessGroup};
    ///
    /// fn main() -> anyhow::Result<()> {
    ///     let options = GroupOptions { backend: Backend::Nccl, ..Default::default() };
    ///     let group = ProcessGroup::init(&Launch::from_env()?, options)?;
    ///     let count = Tensor::from(3.0);
    ///     group.all_reduce(&count)?; //~ cpu-tensor-on-nccl
    ///     Ok(())
    /// }
    /// ```
    /// ```rust good
    /// use tch::Tensor;
    /// use tch_ddp::{Backend, GroupOptions, Launch, ProcessGroup};
    ///
    /// fn main() -> anyhow::Result<()> {
    ///     let options = GroupOptions { backend: Backend::Nccl, ..Default::default() };
    ///     let group = ProcessGroup::init(&Launch::from_env()?, options)?;
    ///     let count = Tensor::from(3.0).to_device(group.device());
    ///     group.all_reduce(&count)?;
    ///     Ok(())
    /// }
    /// ```
    ///
    /// # Known limits
    /// A group that was started without a backend, or with `cpu:gloo,cuda:nccl`, takes tensors
    /// of both kinds, and so may one of `new_group`. Tensors whose device the text does not
    /// settle are silent.
    pub static RULE = {
        name: "cpu-tensor-on-nccl",
        level: Level::Error,
        harm: Harm::Crash,
        tier: 1,
        languages: BOTH,
        fix: FixKind::No,
        check,
    };
}

fn check(program: &Program<'_>, report: &mut Report<'_>) {
    if !program.uses_only_nccl() || program.changes_default_device() {
        return;
    }
    for (event, call) in program.calls(Role::Collective) {
        if program.has_flag(call, Flag::Objects) || in_own_group(program, call) {
            continue;
        }
        // Another backend may be meant where something speaks of it.
        if program.runs_only_alone(event.path) || asks_for_gloo(program, event) {
            continue;
        }
        let row = call.row;
        let sent = row.and_then(|r| r.input).into_iter().chain(row.and_then(|r| r.output));
        for name in sent {
            let Some(argument) = call.argument(&name).known() else { continue };
            let Some(made) = cpu_tensor(program, &argument.value) else { continue };
            let text = program.text(program.site_of(event.site.file, argument.expr));
            report
                .at(event.site, format!("`{text}` is on the CPU, and the group talks over NCCL"))
                .why("NCCL takes tensors on GPUs alone: this raises")
                .help(match program.language {
                    Language::Python => {
                        "make the tensor on this rank's GPU: `device=\"cuda\"`, or move it there"
                    }
                    Language::Rust => "move it to this rank's GPU: `.to_device(group.device())`",
                })
                .related(made, "made here, on the CPU");
            break;
        }
    }
}

fn in_own_group(program: &Program<'_>, call: &Call<'_>) -> bool {
    call.arguments.iter().any(|a| {
        a.spread
            || a.name.is_some_and(|n| matches!(&*n, "group" | "process_group" | "pg"))
                && a.value.single() != Some(program.terms().none)
    })
}

fn asks_for_gloo(program: &Program<'_>, event: &Event<'_>) -> bool {
    program.conditions(event.path).any(|node| {
        let text = program.text(node.site);
        text.contains("backend") || text.contains("gloo") || text.contains("is_cuda")
    })
}

/// The value, or what a list is made of, may be a tensor on the CPU. Gives where it is made.
fn cpu_tensor(program: &Program<'_>, value: &Value) -> Option<Site> {
    value.terms().find_map(|term| {
        let list = program.object_of(term).filter(|o| o.class == ObjectClass::List);
        match list {
            Some(list) => cpu_slots(program, list),
            None if program.tensor_device(term) == Some(Device::Cpu) => {
                let made = program.maker(term).map(|(event, _)| event.id);
                let first = program.terms().origins(term).first().copied();
                made.or(first).map(|event| program.event(event).site)
            }
            None => None,
        }
    })
}

/// A list that is filled with tensors on the CPU where it is written. What it holds later is
/// what the collective put there.
fn cpu_slots(program: &Program<'_>, list: &Object<'_>) -> Option<Site> {
    let is_inside = |event: &Event<'_>| {
        event.site.file == list.site.file && list.site.span.contains(event.site.span)
    };
    let moves = program.calls(Role::Move).any(|(event, _)| is_inside(event));
    let made = |role| {
        program.calls(role).find(|(event, call)| {
            let device = call.result.single().and_then(|term| program.tensor_device(term));
            is_inside(event) && device == Some(Device::Cpu)
        })
    };
    let (event, _) = made(Role::MakeTensor).or_else(|| made(Role::Random))?;
    (!moves).then_some(event.site)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_dict_of_numbers_in_a_helper_counts() {
        check_files(&[
            (
                "meters.py",
                "
import torch.distributed as dist
def average(values):
    for key in values:
        dist.all_reduce(values[key])  # ~ cpu-tensor-on-nccl: `values[key]`
        values[key] /= dist.get_world_size()
    return values
",
            ),
            (
                "main.py",
                "
import torch
from meters import average
torch.distributed.init_process_group(backend='nccl')
for step in range(3):
    loss = torch.nn.Linear(2, 2)(torch.ones(2)).sum()
    average({'loss': torch.tensor(loss.item()), 'n': torch.ones(1)})
",
            ),
        ]);
    }

    #[test]
    fn a_list_of_slots_counts() {
        check_python(
            "
import torch
import torch.distributed as dist
dist.init_process_group('nccl')
mine = torch.zeros(4).cuda()
slots = [torch.zeros(4) for _ in range(dist.get_world_size())]
dist.all_gather(slots, mine)  # ~ cpu-tensor-on-nccl: `slots`
",
        );
    }

    #[test]
    fn what_is_computed_on_the_cpu_counts() {
        check_python(
            "
import torch
import torch.distributed as dist
class Meter:
    def __init__(self):
        self.total, self.n = 0.0, 0
    def add(self, loss, n):
        self.total += loss.item() * n
        self.n += n
    def sync(self):
        both = torch.as_tensor([self.total, self.n], dtype=torch.float64)
        dist.all_reduce(both)  # ~ cpu-tensor-on-nccl
dist.init_process_group('nccl')
meter = Meter()
for _ in range(3):
    meter.add(torch.nn.Linear(2, 2)(torch.ones(2)).sum(), 1)
meter.sync()
",
        );
    }

    #[test]
    fn numbers_that_were_added_up_count() {
        check_python(
            "
import torch
import torch.distributed as dist
def mean(value, n):
    tensor = torch.tensor(value)
    dist.all_reduce(tensor)  # ~ cpu-tensor-on-nccl
    return tensor / n
def evaluate(net, batches):
    right, seen = 0, 0
    for x, y in batches:
        right += (net(x.cuda()).argmax(1).cpu() == y).sum().item()
        seen += y.size(0)
    both = torch.FloatTensor([right, seen])
    dist.all_reduce(both)  # ~ cpu-tensor-on-nccl
    return mean(right / seen, dist.get_world_size())
dist.init_process_group('nccl')
evaluate(torch.nn.Linear(2, 2).cuda(), [(torch.ones(2, 2), torch.ones(2))])
",
        );
    }

    #[test]
    fn tensors_on_gpus_are_silent() {
        check_python(
            "
import os, torch
import torch.distributed as dist
device = torch.device('cuda', int(os.environ['LOCAL_RANK']))
dist.init_process_group('nccl')
a = torch.tensor([1.0], device=device)
b = torch.tensor([1.0]).to(device)
c = torch.zeros_like(a)
d = torch.tensor(a)
e = torch.cuda.FloatTensor([1.0])
f = torch.ByteTensor([1]).to('cuda')
for value in (a, b, c, d, e, f):
    dist.all_reduce(value)
dist.broadcast(torch.ones(1).cuda(), 0)
",
        );
    }

    #[test]
    fn other_backends_and_objects_are_silent() {
        check_python(
            "
import torch
import torch.distributed as dist
dist.init_process_group('cpu:gloo,cuda:nccl')
dist.all_reduce(torch.ones(1))
",
        );
        check_python(
            "
import torch
import torch.distributed as dist
dist.init_process_group('nccl')
side = dist.new_group(backend='gloo')
dist.all_reduce(torch.ones(1), group=side)
out = [None, None]
dist.all_gather_object(out, {'n': torch.ones(1)})
",
        );
    }

    #[test]
    fn counters_of_tch_count_unless_they_are_moved() {
        check_rust(
            "
use tch::{Device, Kind, Tensor};
use tch_ddp::{Backend, GroupOptions, Launch, ProcessGroup};
fn total(pg: &ProcessGroup, n: i64) -> i64 {
    let n = Tensor::from_slice(&[n, 1]);
    pg.all_reduce(&n).unwrap(); //~ cpu-tensor-on-nccl: `n`
    n.int64_value(&[0])
}
fn main() {
    let mut options = GroupOptions::default();
    options.backend = Backend::Nccl;
    let pg = ProcessGroup::init(&Launch::from_env().unwrap(), options).unwrap();
    total(&pg, 4);
    let zeros = Tensor::zeros([2], (Kind::Float, Device::Cpu));
    pg.broadcast(&zeros, 0).unwrap(); //~ cpu-tensor-on-nccl: `zeros`
    let here = Tensor::zeros([2], (Kind::Float, pg.device()));
    pg.all_reduce(&here).unwrap();
    let moved = Tensor::from(3i64).to_device(pg.device());
    pg.all_reduce(&moved).unwrap();
}
",
        );
        check_rust(
            "
use tch::Tensor;
use tch_ddp::{Backend, GroupOptions, Launch, ProcessGroup};
fn main() {
    for backend in [Backend::Auto, Backend::Gloo] {
        let options = GroupOptions { backend, ..GroupOptions::default() };
        let pg = ProcessGroup::init(&Launch::from_env().unwrap(), options).unwrap();
        pg.all_reduce(&Tensor::from(1.0)).unwrap();
    }
}
",
        );
    }

    #[test]
    fn what_is_moved_before_is_silent() {
        check_files(&[
            (
                "reduce.py",
                "
import torch.distributed as dist
def total(tensor, device):
    if tensor.device.type != 'cuda':
        tensor = tensor.to(device)
    dist.all_reduce(tensor)
    return tensor
",
            ),
            (
                "main.py",
                "
import torch
from reduce import total
torch.distributed.init_process_group('nccl')
total(torch.ones(1).cuda(), 'cuda')
",
            ),
        ]);
    }

    #[test]
    fn outputs_collected_on_the_cpu_count() {
        check_python(
            r#"
import os
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP
@torch.no_grad()
def predict(net, xs):
    outs = []
    for x in xs:
        outs.append(net(x.cuda()).cpu())
    mine = torch.cat(outs)
    bins = [torch.empty_like(mine) for _ in range(dist.get_world_size())]
    dist.all_gather(bins, mine)  # ~ cpu-tensor-on-nccl
    return torch.cat(bins)
def main():
    dist.init_process_group("nccl")
    g = int(os.environ["LOCAL_RANK"])
    torch.cuda.set_device(g)
    torch.manual_seed(dist.get_rank())
    net = DDP(torch.nn.Linear(8, 8).cuda(), device_ids=[g])
    opt = torch.optim.SGD(net.parameters(), 0.1)
    for _ in range(10):
        loss = net(torch.randn(4, 8).cuda()).pow(2).mean()
        opt.zero_grad(); loss.backward(); opt.step()
    predict(net, [torch.randn(4, 8) for _ in range(3)])
if __name__ == "__main__":
    main()
"#,
        );
    }

    #[test]
    fn a_number_drawn_by_python_counts() {
        check_python(
            r#"
import os
import random
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP
def shared_seed():
    s = torch.tensor(random.randint(0, 2 ** 31), dtype=torch.int64)
    dist.broadcast(s, 0)  # ~ cpu-tensor-on-nccl
    return int(s)
class Main:
    def __init__(self):
        dist.init_process_group(backend="nccl", init_method="env://")
        self.g = int(os.environ["LOCAL_RANK"])
        torch.cuda.set_device(self.g)
        torch.manual_seed(shared_seed() + dist.get_rank())
        self.net = DDP(torch.nn.Linear(8, 8).cuda(), device_ids=[self.g])
    def run(self):
        opt = torch.optim.SGD(self.net.parameters(), 0.1)
        for _ in range(10):
            loss = self.net(torch.randn(4, 8).cuda()).pow(2).mean()
            opt.zero_grad(); loss.backward(); opt.step()
if __name__ == "__main__":
    Main().run()
"#,
        );
    }
}
