use crate::analysis::devices::Device;
use crate::analysis::facts::Wrapper;
use crate::analysis::{Event, Reach, Term};
use crate::prelude::*;
use crate::table::{Flag, Role};

declare_rule! {
    /// Wrapping, moving, converting or building the optimizer happens in the wrong order.
    ///
    /// `DistributedDataParallel` takes the parameters as they are when it is made: the process
    /// group must exist, the module must be on its device and in its dtype, `SyncBatchNorm`
    /// must be in place. An optimizer that makes its state at once (Adagrad) must be built from
    /// parameters that stay where they are. Otherwise: `Default process group has not been
    /// initialized`, or `Expected all tensors to be on the same device`, or hooks that never
    /// fire after a change of dtype (measured: gradients stay local, no error).
    ///
    /// ```python bad
    /// import torch.distributed as dist
    /// import torch.nn as nn
    /// from torch.nn.parallel import DistributedDataParallel as DDP
    ///
    /// model = DDP(nn.Linear(8, 1))  # ~ wrong-wrap-order
    /// dist.init_process_group("nccl")
    /// ```
    /// ```python good
    /// import torch.distributed as dist
    /// import torch.nn as nn
    /// from torch.nn.parallel import DistributedDataParallel as DDP
    ///
    /// dist.init_process_group("nccl")
    /// model = DDP(nn.Linear(8, 1))
    /// ```
    /// ```rust bad
    /// use tch::{nn, Device};
    /// use tch_ddp::{Backend, Ddp, GroupOptions, Launch, ProcessGroup};
    ///
    /// fn main() -> anyhow::Result<()> {
    ///     let options = GroupOptions { backend: Backend::Nccl, ..Default::default() };
    ///     let group = ProcessGroup::init(&Launch::from_env()?, options)?;
    ///     let vs = nn::VarStore::new(Device::Cpu);
    ///     let net = nn::linear(vs.root(), 8, 1, Default::default());
    ///     let ddp = Ddp::new(net, vs, &group, Default::default())?; //~ wrong-wrap-order
    ///     Ok(())
    /// }
    /// ```
    /// ```rust good
    /// use tch::nn;
    /// use tch_ddp::{Backend, Ddp, GroupOptions, Launch, ProcessGroup};
    ///
    /// fn main() -> anyhow::Result<()> {
    ///     let options = GroupOptions { backend: Backend::Nccl, ..Default::default() };
    ///     let group = ProcessGroup::init(&Launch::from_env()?, options)?;
    ///     let vs = nn::VarStore::new(group.device());
    ///     let net = nn::linear(vs.root(), 8, 1, Default::default());
    ///     let ddp = Ddp::new(net, vs, &group, Default::default())?;
    ///     Ok(())
    /// }
    /// ```
    ///
    /// # Known limits
    /// A move that changes nothing, such as `.cuda()` of a module that is on its device, is
    /// fine and silent. In Rust the wrapper owns the store, so that most of this does not
    /// compile; what is left is a store that stays on the CPU.
    pub static RULE = {
        name: "wrong-wrap-order",
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
        return store_on_cpu(program, report);
    }
    before_group(program, report);
    converted_after(program, report);
    changed_after(program, report);
    state_before_move(program, report);
}

/// tch-ddp: the store is still on the CPU, and the group talks over NCCL.
fn store_on_cpu(program: &Program<'_>, report: &mut Report<'_>) {
    if !program.uses_only_nccl() {
        return;
    }
    for (event, call) in program.calls(Role::WrapDdp) {
        let store = call.argument("vs").known().and_then(|a| a.value.single());
        let Some(made) = store.and_then(|store| program.object_of(store)) else { continue };
        let device = program.made_with(made, "device");
        let on_cpu = device.is_some_and(|device| program.devices(device) == [Device::Cpu]);
        let moves = program.calls(Role::Move).any(|(moved, moving)| {
            moved.id < event.id
                && moving.receiver.as_ref().is_none_or(|r| r.terms().any(|t| Some(t) == store))
        });
        if !on_cpu || moves || program.is_orphan(event) {
            continue;
        }
        report
            .at(event.site, "the model is wrapped while its variables are on the CPU")
            .why("the group talks over NCCL, which takes tensors on GPUs alone")
            .help("make the store on this rank's device: `nn::VarStore::new(group.device())`")
            .related(made.site, "the store is made on the CPU here");
    }
}

/// The wrapper is made before the process group.
fn before_group(program: &Program<'_>, report: &mut Report<'_>) {
    let groups: Vec<&Event<'_>> = program.calls(Role::InitGroup).map(|(e, _)| e).collect();
    let with_roles = groups.iter().any(|g| program.reach(g.path) != Reach::Every);
    for (event, _) in program.calls(Role::WrapDdp) {
        if with_roles || program.is_orphan(event) || groups.iter().any(|g| g.id < event.id) {
            continue;
        }
        let later = groups.iter().find(|g| g.id > event.id && !program.is_orphan(g));
        if let Some(later) = later {
            report
                .at(event.site, "the model is wrapped before the process group exists")
                .why("`DistributedDataParallel` needs the group at once, and raises without it")
                .help("start the process group first")
                .related(later.site, "the group is started here, later");
        }
    }
}

fn converted_after(program: &Program<'_>, report: &mut Report<'_>) {
    for (event, call) in program.calls(Role::ConvertSyncBatchNorm) {
        let Some(module) = call.value_at(0, "module") else { continue };
        let wrapper = module.terms().find_map(|t| program.wrapper_of(t));
        if let Some((wrapper, Wrapper::Ddp)) = wrapper {
            report
                .at(event.site, "BatchNorm is converted after the model was wrapped")
                .harm(Harm::Wrong)
                .why("the wrapper holds the old layers: their parameters are reduced, not the new")
                .help("convert first, then wrap")
                .related(program.object(wrapper).site, "wrapped here");
        }
    }
}

/// The dtype changes after the wrap, or the device of a module that was on none.
fn changed_after(program: &Program<'_>, report: &mut Report<'_>) {
    for role in [Role::ChangeKind, Role::Move] {
        for (event, call) in program.calls(role) {
            let Some(receiver) =
                call.receiver.as_ref().and_then(super::super::analysis::value::Value::single)
            else {
                continue;
            };
            let Some((wrapper, Wrapper::Ddp)) = program.wrapper_of(receiver) else { continue };
            let object = program.object(wrapper);
            if object.event.is_none_or(|made| made >= event.id) {
                continue;
            }
            if role == Role::Move && stays_on_cpu(program, wrapper, event) {
                report
                    .at(object.site, "the model is wrapped before it is moved to its device")
                    .why(
                        "with `device_ids` all parameters must be on that device already: it \
                         raises ValueError",
                    )
                    .help("move the model first, then wrap")
                    .related(event.site, "moved here, later");
                continue;
            }
            let changes = role == Role::ChangeKind || never_moved(program, wrapper, event);
            if !changes {
                continue;
            }
            let what = if role == Role::ChangeKind { "dtype" } else { "device" };
            report
                .at(event.site, format!("the {what} of the model changes after it was wrapped"))
                .harm(Harm::Wrong)
                .why("the wrapper's hooks are on the old parameters: gradients are not reduced now")
                .help(format!("change the {what} first, then wrap"))
                .related(object.site, "wrapped here");
        }
    }
}

/// The wrapper gets `device_ids`, and nothing put the module or a part of it on a device before.
fn stays_on_cpu(
    program: &Program<'_>,
    wrapper: crate::analysis::ObjectId,
    event: &Event<'_>,
) -> bool {
    let object = program.object(wrapper);
    let ids = object.arguments.iter().find(|a| a.name.is_some_and(|n| &*n == "device_ids"));
    let has_ids = ids.is_some_and(|a| a.value.single() != Some(program.terms().none));
    let module = program.wrapped_module(wrapper).and_then(crate::analysis::Value::single);
    let Some(module) = module.filter(|_| has_ids) else { return false };
    let is_plain = program.object_of(module).is_some_and(|o| {
        o.event.is_some() && !o.arguments.iter().any(|a| a.name.is_some_and(|n| &*n == "device"))
    });
    let parts = program.modules_within(module);
    let moved = program.calls(Role::Move).any(|(earlier, call)| {
        earlier.id < event.id
            && call
                .receiver
                .as_ref()
                .is_some_and(|r| r.terms().any(|t| parts.contains(&t) || !program.is_module(t)))
    });
    is_plain && !moved && !moved_between(program, module, event)
}

/// The wrapped module is made here, and nothing put it on a device before the wrap.
fn never_moved(
    program: &Program<'_>,
    wrapper: crate::analysis::ObjectId,
    event: &Event<'_>,
) -> bool {
    let Some(module) =
        program.wrapped_module(wrapper).and_then(super::super::analysis::value::Value::single)
    else {
        return false;
    };
    let has_ids = program
        .object(wrapper)
        .arguments
        .iter()
        .any(|a| a.spread || a.name.is_some_and(|n| &*n == "device_ids"));
    let known = program
        .object_of(module)
        .is_some_and(|o| o.event.is_some() || program.class_of(o).is_some());
    known && !has_ids && !moved_between(program, module, event)
}

fn moved_between(program: &Program<'_>, module: Term, before: &Event<'_>) -> bool {
    let default_device = program
        .calls(Role::MakeDevice)
        .any(|(_, c)| c.name.is_some_and(|n| n.contains("set_default_device")));
    default_device
        || program.calls(Role::Move).any(|(event, call)| {
            event.id < before.id
                && call.receiver.as_ref().is_some_and(|r| r.terms().any(|t| t == module))
        })
}

/// An optimizer that makes its state at once, and whose parameters move later.
fn state_before_move(program: &Program<'_>, report: &mut Report<'_>) {
    for (event, call) in program.calls(Role::Optimizer) {
        if !program.has_flag(call, Flag::EagerState) {
            continue;
        }
        let Some(parameters) = call.value_at(0, "params") else { continue };
        let modules = program.modules_behind(parameters);
        let moved = program.calls(Role::Move).find(|(later, moving)| {
            later.id > event.id
                && moving.receiver.as_ref().is_some_and(|r| r.terms().any(|t| modules.contains(&t)))
        });
        let Some((moved, moving)) = moved else { continue };
        let receiver =
            moving.receiver.as_ref().and_then(super::super::analysis::value::Value::single);
        if receiver.is_some_and(|module| moved_between(program, module, event)) {
            continue;
        }
        let name = call.name.map_or("the optimizer", Name::as_str);
        let name = name.rsplit('.').next().unwrap_or(name);
        report
            .at(event.site, format!("`{name}` is built before its parameters move to their device"))
            .why("it makes its state from the parameters at once: state and parameters are apart")
            .help("move the model first, then build the optimizer")
            .related(moved.site, "the model moves here, later");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_constructor_that_wraps_before_setup_counts() {
        check_python(
            "
import torch
import torch.distributed as dist
class Tuner:
    def __init__(self):
        self.net = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(2, 2).cuda())  # ~ wrong-wrap-order
    def setup(self):
        dist.init_process_group('nccl')
tuner = Tuner()
tuner.setup()
for _ in range(2):
    tuner.net(torch.ones(2)).sum().backward()
",
        );
    }

    #[test]
    fn a_dtype_changed_after_the_wrap_counts() {
        check_python(
            "
import torch
torch.distributed.init_process_group('nccl')
net = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(2, 2).cuda())
net = net.half()  # ~ wrong-wrap-order: dtype
for _ in range(2):
    net(torch.ones(2)).sum().backward()
",
        );
    }

    #[test]
    fn moves_that_change_nothing_are_silent() {
        check_python(
            "
import torch
torch.distributed.init_process_group('nccl')
net = torch.nn.Linear(2, 2).cuda()
net = torch.nn.parallel.DistributedDataParallel(net)
net.cuda()
opt = torch.optim.Adam(net.parameters())
for _ in range(2):
    net(torch.ones(2)).sum().backward()
",
        );
    }

    #[test]
    fn adagrad_before_the_move_counts_and_adam_does_not() {
        check_python(
            "
import torch
torch.distributed.init_process_group('nccl')
a = torch.nn.Linear(2, 2)
slow = torch.optim.Adagrad(a.parameters())  # ~ wrong-wrap-order: `Adagrad`
a = torch.nn.parallel.DistributedDataParallel(a.cuda())
b = torch.nn.Linear(2, 2)
fast = torch.optim.Adam(b.parameters())
b = torch.nn.parallel.DistributedDataParallel(b.cuda())
for _ in range(2):
    pass
",
        );
    }

    #[test]
    fn a_conversion_after_the_wrap_counts() {
        check_python(
            "
import torch
torch.distributed.init_process_group('nccl')
net = torch.nn.parallel.DistributedDataParallel(torch.nn.BatchNorm1d(2).cuda())
net = torch.nn.SyncBatchNorm.convert_sync_batchnorm(net)  # ~ wrong-wrap-order: BatchNorm
for _ in range(2):
    net(torch.ones(2)).sum().backward()
",
        );
    }

    #[test]
    fn a_factory_before_the_group_counts() {
        check_files(&[
            (
                "launch.py",
                r#"
import torch.distributed as dist
def start(url):
    dist.init_process_group("nccl", init_method=url)
"#,
            ),
            (
                "models.py",
                "
import torch
from torch.nn.parallel import DistributedDataParallel
def make(width):
    return DistributedDataParallel(torch.nn.Linear(width, width).cuda())  # ~ wrong-wrap-order
",
            ),
            (
                "main.py",
                r#"
import torch
from launch import start
from models import make
def main():
    net = make(8)
    start("env://")
    net(torch.randn(2, 8).cuda()).mean().backward()
if __name__ == "__main__":
    main()
"#,
            ),
        ]);
    }

    #[test]
    fn a_dtype_changed_in_another_file_counts() {
        check_files(&[
            (
                "precision.py",
                r#"
def lower(model, wanted):
    if wanted == "fp16":
        return model.half()  # ~ wrong-wrap-order
    return model
"#,
            ),
            (
                "main.py",
                r#"
import torch
from torch.nn.parallel import DistributedDataParallel as DDP
from precision import lower
def main():
    torch.distributed.init_process_group("nccl")
    net = lower(DDP(torch.nn.Linear(4, 4).cuda()), "fp16")
    net(torch.randn(2, 4).half().cuda()).mean().backward()
if __name__ == "__main__":
    main()
"#,
            ),
        ]);
    }

    #[test]
    fn a_move_behind_the_wrap_counts() {
        check_python(
            r#"
import os
import torch
import torch.nn as nn
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP
class App:
    def build(self):
        self.net = nn.Linear(4, 4)
        self.net = DDP(self.net, device_ids=[self.dev.index])  # ~ wrong-wrap-order
        self.net = self.net.to(self.dev)
    def main(self):
        dist.init_process_group("nccl")
        g = int(os.environ["LOCAL_RANK"])
        torch.cuda.set_device(g)
        torch.manual_seed(dist.get_rank())
        self.dev = torch.device("cuda", g)
        self.build()
        opt = torch.optim.SGD(self.net.parameters(), 0.1)
        for _ in range(10):
            loss = self.net(torch.randn(2, 4, device=self.dev)).mean()
            opt.zero_grad(); loss.backward(); opt.step()
if __name__ == "__main__":
    App().main()
"#,
        );
    }

    #[test]
    fn a_move_that_changes_nothing_is_silent() {
        check_python(
            r#"
import os
import torch
import torch.nn as nn
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP
def requires_grad(model, flag=True):
    for p in model.parameters():
        p.requires_grad = flag
def main():
    dist.init_process_group("nccl")
    g = int(os.environ["LOCAL_RANK"])
    torch.cuda.set_device(g)
    torch.manual_seed(dist.get_rank())
    gen, dis = nn.Linear(4, 4).cuda(), nn.Linear(4, 1).cuda()
    og, od = torch.optim.Adam(gen.parameters()), torch.optim.Adam(dis.parameters())
    gen, dis = DDP(gen, device_ids=[g]), DDP(dis, device_ids=[g])
    gen.cuda()
    gen.train()
    for _ in range(10):
        requires_grad(gen, False); requires_grad(dis, True)
        with torch.no_grad():
            fake = gen(torch.randn(4, 4).cuda())
        ld = dis(fake).mean() - dis(torch.randn(4, 4).cuda()).mean()
        od.zero_grad(); ld.backward(); od.step()
        requires_grad(gen, True); requires_grad(dis, False)
        lg = -dis(gen(torch.randn(4, 4).cuda())).mean()
        og.zero_grad(); lg.backward(); og.step()
main()
"#,
        );
    }
}
