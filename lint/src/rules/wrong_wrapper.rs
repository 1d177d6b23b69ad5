use crate::analysis::facts::Wrapper;
use crate::analysis::{EventId, EventKind, PathId, Term, TermKind};
use crate::prelude::*;
use crate::table::Role;

declare_rule! {
    /// A wrapper is put around something that it cannot wrap, or without what it needs.
    ///
    /// `DistributedDataParallel` around a `DataParallel`, or inside one, copies and reduces
    /// twice and fails. Over a module without a trainable parameter it raises
    /// `DistributedDataParallel is not needed when a module doesn't have any parameters that
    /// require a gradient`. `SyncBatchNorm` without a process group, or under `DataParallel`,
    /// stays an ordinary BatchNorm or raises.
    ///
    /// ```python bad
    /// import torch.nn as nn
    /// from torch.nn.parallel import DistributedDataParallel as DDP
    ///
    /// model = DDP(nn.DataParallel(nn.Linear(8, 1)))  # ~ wrong-wrapper
    /// ```
    /// ```python good
    /// import torch.nn as nn
    /// from torch.nn.parallel import DistributedDataParallel as DDP
    ///
    /// model = DDP(nn.Linear(8, 1))
    /// ```
    ///
    /// # Known limits
    /// Frozen modules are recognised by `requires_grad` over all of their own parameters.
    pub static RULE = {
        name: "wrong-wrapper",
        level: Level::Error,
        harm: Harm::Crash,
        tier: 1,
        languages: PYTHON,
        fix: FixKind::No,
        check,
    };
}

fn check(program: &Program<'_>, report: &mut Report<'_>) {
    for object in program.objects() {
        let Some(kind) = program.wrapper_kind(object.id) else { continue };
        let Some(module) = program.wrapped_module(object.id) else { continue };
        for alternative in &module.alternatives {
            let inside = program.wrapper_of(alternative.term);
            if let Some((inner, other)) = inside
                && other != kind
                && program.can_hold_at(alternative.when, object.path)
            {
                let (outer, inner_name) = names(kind, other);
                report
                    .at(object.site, format!("`{outer}` is put around a `{inner_name}`"))
                    .why("both copy the model and reduce its gradients: they do not go together")
                    .help(format!("wrap the bare model once: `{outer}(model.module)`"))
                    .related(program.object(inner).site, "wrapped here before");
            }
        }
        if kind == Wrapper::Ddp
            && let (Some(module), Some(event)) = (module.single(), object.event)
            && let Some(frozen) = frozen_before(program, module, event)
            && !asks_for_gradients(program, object.path)
        {
            report
                .at(object.site, "no parameter of this module requires a gradient")
                .why("`DistributedDataParallel` refuses a module with nothing to reduce")
                .help("use the frozen module as it is, without a wrapper")
                .related(frozen, "frozen here");
        }
    }
    check_sync_batch_norm(program, report);
    check_sync_layers(program, report);
}

fn names(outer: Wrapper, inner: Wrapper) -> (&'static str, &'static str) {
    let name = |w| match w {
        Wrapper::Ddp => "DistributedDataParallel",
        Wrapper::Dp => "DataParallel",
    };
    (name(outer), name(inner))
}

/// `if any(p.requires_grad for p in model.parameters())` around the wrap.
fn asks_for_gradients(program: &Program<'_>, path: PathId) -> bool {
    program.conditions(path).any(|node| {
        let text = program.text(node.site);
        text.lines().next().is_some_and(|test| test.contains("requires_grad"))
    })
}

/// Where all parameters of a module were frozen before an event, and none of them thawed since,
/// nor new ones given to it: `net.fc = nn.Linear(..)`.
fn frozen_before(program: &Program<'_>, module: Term, before: EventId) -> Option<Site> {
    let mut frozen = None;
    for change in program.gradient_switches() {
        if change.event >= before || !is_part(program, change.of, module) {
            continue;
        }
        if change.on {
            frozen = None;
        } else if change.of == module && change.reaches_all {
            frozen = Some((change.event, change.site));
        }
    }
    let (since, site) = frozen?;
    let is_new = |&id: &EventId| {
        let value = match &program.event(id).kind {
            EventKind::AttributeStore { value, .. } => Some(value),
            EventKind::Call(call) => call.arguments.last().map(|a| &a.value),
            _ => None,
        };
        since < id
            && id < before
            && value.is_some_and(|v| v.terms().any(|t| program.has_parameters(t)))
    };
    let parts = program.modules_within(module);
    let renewed = parts.iter().any(|&part| program.stored_on(part).iter().any(is_new));
    (!renewed).then_some(site)
}

/// `model.head` of `model`, or the model.
fn is_part(program: &Program<'_>, part: Term, module: Term) -> bool {
    if program.modules_within(module).contains(&part) {
        return true;
    }
    match program.terms().kind(part) {
        TermKind::Attribute(of, _) | TermKind::Item(of, _) => is_part(program, *of, module),
        _ => program.stores_on(module).any(|(_, _, value)| value.terms().any(|t| t == part)),
    }
}

/// `SyncBatchNorm` needs a process group, and `DistributedDataParallel` around it.
fn check_sync_batch_norm(program: &Program<'_>, report: &mut Report<'_>) {
    for (event, call) in program.calls(Role::ConvertSyncBatchNorm) {
        let no_group = program.calls(Role::InitGroup).next().is_none()
            && program.calls(Role::Framework).next().is_none()
            && !program.is_orphan(event)
            && !asks_for_ranks(program, event.path);
        if no_group {
            report
                .at(event.site, "`SyncBatchNorm` is used without a process group")
                .why("without one it stays an ordinary BatchNorm, or raises")
                .help("start a process group first, or leave the conversion out");
            continue;
        }
        let under_dp = program.objects().iter().any(|o| {
            program.wrapper_kind(o.id) == Some(Wrapper::Dp)
                && call.result.terms().any(|t| {
                    program.wrapped_module(o.id).is_some_and(|m| m.terms().any(|i| i == t))
                })
                && program.can_both_hold_paths(o.path, event.path)
        });
        if under_dp {
            report
                .at(event.site, "`SyncBatchNorm` is used under `DataParallel`")
                .why("it works with one process for each device only")
                .help("wrap the model in `DistributedDataParallel`");
        }
    }
}

/// Behind a test of whether there are ranks: `if RANK != -1:`.
fn asks_for_ranks(program: &Program<'_>, path: PathId) -> bool {
    program.tests(path, &|kind| {
        *kind == TermKind::Distributed
            || program.terms().find(kind).is_some_and(|t| program.terms().rank_kind(t).is_some())
    })
}

/// `SyncBatchNorm` layers that were made as such, inside a `DataParallel`.
fn check_sync_layers(program: &Program<'_>, report: &mut Report<'_>) {
    for (wrapper, parts) in program.wrapped_models(Wrapper::Dp) {
        let wrapper = program.object(wrapper);
        let layer = parts.iter().filter_map(|&part| program.object_of(part)).find(|layer| {
            program.outside_class(layer).is_some_and(|name| &*name == "torch.nn.SyncBatchNorm")
                && !asks_for_ranks(program, layer.path)
        });
        if let Some(layer) = layer {
            report
                .at(wrapper.site, "`DataParallel` is put around a model with `SyncBatchNorm`")
                .why("without a process group it raises, or stays an ordinary BatchNorm")
                .help("wrap the model in `DistributedDataParallel`, or use `BatchNorm` here")
                .related(layer.site, "a layer is made here");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_conversion_behind_a_test_for_ranks_is_silent() {
        check_python(
            "
import os, torch
RANK = int(os.getenv('RANK', '-1'))
net = torch.nn.Linear(2, 2)
if RANK == -1:
    net = torch.nn.DataParallel(net)
if RANK != -1:
    net = torch.nn.SyncBatchNorm.convert_sync_batchnorm(net)
for x in range(2):
    net(x).sum().backward()
",
        );
    }

    #[test]
    fn layers_made_as_sync_batch_norm_count() {
        check_files(&[
            (
                "nets/norm.py",
                "
import torch
if torch.__version__.startswith('0'):
    Norm = None
else:
    Norm = torch.nn.SyncBatchNorm
",
            ),
            (
                "nets/small.py",
                "
import torch.nn as nn
from .norm import Norm
class Small(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Conv2d(3, 8, 3), Norm(8))
    def forward(self, x):
        return self.body(x)
def build(config):
    return Small()
",
            ),
            ("nets/__init__.py", "import nets.small\n"),
            (
                "main.py",
                "
import argparse
import torch
import nets
class Full(torch.nn.Module):
    def __init__(self, net):
        super().__init__()
        self.net = net
    def forward(self, x):
        return self.net(x)
args = argparse.ArgumentParser().parse_args()
net = Full(eval('nets.' + args.name + '.build')(args))
if args.local_rank >= 0:
    torch.distributed.init_process_group('nccl')
    net = torch.nn.parallel.DistributedDataParallel(net)
else:
    net = torch.nn.DataParallel(net).cuda()  # ~ wrong-wrapper: with `SyncBatchNorm`
for x in range(2):
    net(x).sum().backward()
",
            ),
        ]);
    }

    #[test]
    fn a_frozen_module_with_a_thawed_head_is_silent() {
        check_python(
            "
import torch, torchvision
torch.distributed.init_process_group('gloo')
net = torchvision.models.resnet50()
net.requires_grad_(False)
net.fc.requires_grad_(True)
net = torch.nn.parallel.DistributedDataParallel(net)
for _ in range(2):
    net(torch.ones(2)).sum().backward()
",
        );
    }

    #[test]
    fn a_factory_that_may_wrap_already_counts() {
        check_files(&[
            (
                "zoo.py",
                "
import torch
def build(n):
    model = torch.nn.Linear(n, n)
    if torch.cuda.device_count() > 1:
        model = torch.nn.DataParallel(model)
    return model
",
            ),
            (
                "main.py",
                "
import torch
from torch.nn.parallel import DistributedDataParallel as DDP
from zoo import build
if __name__ == '__main__':
    torch.distributed.init_process_group('nccl')
    net = DDP(build(4).cuda())  # ~ wrong-wrapper: around a `DataParallel`
",
            ),
        ]);
    }

    #[test]
    fn a_frozen_module_counts() {
        check_python(
            "
import torch
from torch.nn.parallel import DistributedDataParallel as DDP
torch.distributed.init_process_group('nccl')
teacher = torch.nn.Linear(4, 4)
for p in teacher.parameters():
    p.requires_grad = False
teacher = DDP(teacher)  # ~ wrong-wrapper: requires a gradient
student = torch.nn.Linear(4, 4)
student.requires_grad_(False)
student.requires_grad_(True)
student = DDP(student)
",
        );
    }

    #[test]
    fn a_frozen_model_with_a_new_head_is_silent() {
        check_python(
            "
import torch, torchvision
torch.distributed.init_process_group('nccl')
net = torchvision.models.resnet18()
for p in net.parameters():
    p.requires_grad = False
net.fc = torch.nn.Linear(512, 10)
net = torch.nn.parallel.DistributedDataParallel(net.cuda())
other = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.Linear(2, 2))
other.requires_grad_(False)
other[1].requires_grad_(True)
other = torch.nn.parallel.DistributedDataParallel(other.cuda())
",
        );
    }

    #[test]
    fn the_two_wrappers_in_two_arms_are_silent() {
        check_python(
            "
import argparse, torch
args = argparse.ArgumentParser().parse_args()
net = torch.nn.Linear(2, 2)
if args.distributed:
    torch.distributed.init_process_group('nccl')
    net = torch.nn.SyncBatchNorm.convert_sync_batchnorm(net)
    net = torch.nn.parallel.DistributedDataParallel(net)
else:
    net = torch.nn.DataParallel(net)
for _ in range(2):
    net(torch.ones(2))
",
        );
    }

    #[test]
    fn a_partly_frozen_module_is_silent() {
        check_python(
            "
import torch
class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.body = torch.nn.Linear(2, 2)
        self.head = torch.nn.Linear(2, 2)
        for p in self.body.parameters():
            p.requires_grad = False
    def forward(self, x):
        return self.head(self.body(x))
torch.distributed.init_process_group('nccl')
net = torch.nn.parallel.DistributedDataParallel(Net())
for _ in range(2):
    net(torch.ones(2)).sum().backward()
",
        );
    }

    #[test]
    fn a_factory_in_another_file_counts() {
        check_files(&[
            (
                "build.py",
                "
import torch
from torch import nn
def backbone(width, gpus):
    net = nn.Sequential(nn.Linear(width, width), nn.Tanh())
    return nn.DataParallel(net) if gpus > 1 else net
",
            ),
            (
                "main.py",
                r#"
import os
import torch
from torch.nn.parallel import DistributedDataParallel
from build import backbone
def main():
    torch.distributed.init_process_group("nccl")
    gpu = int(os.environ["LOCAL_RANK"])
    torch.cuda.set_device(gpu)
    net = backbone(4, torch.cuda.device_count()).cuda()
    net = DistributedDataParallel(net, device_ids=[gpu])  # ~ wrong-wrapper
    net(torch.randn(2, 4).cuda()).mean().backward()
if __name__ == "__main__":
    main()
"#,
            ),
        ]);
    }

    #[test]
    fn a_wrap_that_asks_for_gradients_is_silent() {
        check_python(
            r#"
import os
import torch
import torch.nn as nn
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP
class Perc(nn.Module):
    def __init__(self):
        super().__init__()
        self.vgg = nn.Conv2d(3, 3, 1).requires_grad_(False)
        self.scale = nn.Parameter(torch.ones(1))
    def forward(self, x):
        return self.vgg(x).mean() * self.scale
def wrap(m, g):
    if any(p.requires_grad for p in m.parameters()):
        return DDP(m, device_ids=[g])
    return m
def main():
    dist.init_process_group("nccl")
    g = int(os.environ["LOCAL_RANK"])
    torch.cuda.set_device(g)
    torch.manual_seed(dist.get_rank())
    net = nn.Sequential(nn.Conv2d(3, 3, 3), nn.BatchNorm2d(3))
    net = DDP(nn.SyncBatchNorm.convert_sync_batchnorm(net).cuda(), device_ids=[g])
    crit = DDP(Perc().cuda(), device_ids=[g])
    fixed = wrap(nn.Conv2d(3, 3, 1).cuda().requires_grad_(False), g)
    opt = torch.optim.SGD([*net.parameters(), *crit.parameters()], 0.1)
    for _ in range(10):
        loss = crit(fixed(net(torch.rand(2, 3, 8, 8).cuda())))
        opt.zero_grad(); loss.sum().backward(); opt.step()
main()
"#,
        );
    }
}
