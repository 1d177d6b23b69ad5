use crate::analysis::{Const, Event, EventKind, Object, PathId, Sample, Term, TermKind};
use crate::prelude::*;

declare_rule! {
    /// `.module` is read of a model that is not wrapped on this path.
    ///
    /// A model that is wrapped only on several devices has no `.module` on one:
    /// `AttributeError: 'Net' object has no attribute 'module'`.
    ///
    /// ```python bad
    /// import torch
    /// import torch.nn as nn
    ///
    /// model = nn.Linear(8, 1)
    /// if torch.cuda.device_count() > 1:
    ///     model = nn.DataParallel(model)
    /// torch.save(model.module.state_dict(), "model.pt")  # ~ module-of-unwrapped-model
    /// ```
    /// ```python good
    /// import torch
    /// import torch.nn as nn
    ///
    /// model = nn.Linear(8, 1)
    /// if torch.cuda.device_count() > 1:
    ///     model = nn.DataParallel(model)
    /// bare = model.module if isinstance(model, nn.DataParallel) else model
    /// torch.save(bare.state_dict(), "model.pt")
    /// ```
    ///
    /// # Known limits
    /// Where another setting guards the read, it is taken for the one that guards the wrap.
    pub static RULE = {
        name: "module-of-unwrapped-model",
        level: Level::Error,
        harm: Harm::Crash,
        tier: 1,
        languages: PYTHON,
        fix: FixKind::No,
        check,
    };
}

fn check(program: &Program<'_>, report: &mut Report<'_>) {
    for event in program.events() {
        let EventKind::AttributeRead { of, name, .. } = &event.kind else { continue };
        if &**name != "module" || program.wrapper_of(*of).is_some() {
            continue;
        }
        let Some(object) = bare_model(program, *of) else { continue };
        let Some(wrapper) = wrapper_elsewhere(program, *of) else { continue };
        if is_settled_by_settings(program, event.path, wrapper) || is_tried(program, event) {
            continue;
        }
        let receiver = program.receiver_text(event).unwrap_or("the model");
        if is_asked_about(program, event.path, receiver) {
            continue;
        }
        report
            .at(
                event.site,
                format!("`{receiver}` is not always wrapped, and then has no `.module`"),
            )
            .why("where it is not wrapped, this raises AttributeError")
            .help(format!(
                "unwrap only what is wrapped: \
                 `{receiver}.module if hasattr({receiver}, \"module\") else {receiver}`"
            ))
            .related(wrapper.site, "wrapped here, under a condition")
            .related(object.site, "the model that is read where it is not wrapped");
    }
}

/// A module of a known class that has no attribute of its own called `module`.
fn bare_model<'a, 'p>(program: &'a Program<'p>, of: Term) -> Option<&'a Object<'p>> {
    if !matches!(program.terms().kind(of), TermKind::Object(_)) || !program.is_module(of) {
        return None;
    }
    let object = program.object_of(of)?;
    if program.stores_on(of).any(|(_, name, _)| &*name == "module") {
        return None;
    }
    match program.class_of(object) {
        Some(class) => (program.class_member(class, "module").is_none()
            && program.class_member(class, "__getattr__").is_none())
        .then_some(object),
        None => Some(object),
    }
}

/// A wrapper that the program makes around this very model.
fn wrapper_elsewhere<'a, 'p>(program: &'a Program<'p>, module: Term) -> Option<&'a Object<'p>> {
    program.objects().iter().find(|object| {
        program.wrapper_kind(object.id).is_some()
            && program.wrapped_module(object.id).is_some_and(|m| m.terms().any(|t| t == module))
    })
}

/// Further settings guard the read: they may be what decides about the wrap.
fn is_settled_by_settings(program: &Program<'_>, path: PathId, wrapper: &Object<'_>) -> bool {
    let of_wrap: Vec<Term> = program.conditions(wrapper.path).map(|n| n.condition).collect();
    program.conditions(path).any(|node| {
        let negated = of_wrap.iter().any(|&t| {
            node.condition == t
                || *program.terms().kind(node.condition) == TermKind::Not(t)
                || *program.terms().kind(t) == TermKind::Not(node.condition)
        });
        // `if not args.distributed or rank == 0`: lets the unwrapped one through, too.
        let unwrapped = |term: Term| of_wrap.contains(&term).then_some(Const::Bool(false));
        let alone = Sample::of_one_node(0, 1);
        let passes = program.terms().evaluate_with(node.condition, alone, &unwrapped, 64);
        let negated = negated || passes == Some(Const::Bool(true));
        !negated && program.is_setting(node.condition)
    })
}

/// `try: model.module except AttributeError: model`.
fn is_tried(program: &Program<'_>, event: &Event<'_>) -> bool {
    let around = program.frame(event.frame).function.map_or_else(
        || &*program.project().file(event.site.file).text,
        |f| program.text(Site { file: f.file, span: program.function(f).span }),
    );
    let catches = ["AttributeError", "except:", "except Exception"];
    event.modes.caught && catches.iter().any(|word| around.contains(word))
}

/// Some function is asked about the model before: `if is_wrapped(self.model)`.
fn is_asked_about(program: &Program<'_>, path: PathId, receiver: &str) -> bool {
    program.conditions(path).any(|node| {
        let text = program.text(node.site);
        let head = text.split(":\n").next().unwrap_or(text);
        let words: String = head.split_whitespace().collect();
        let given = |sign: &str| {
            words.match_indices(sign).any(|(at, _)| {
                let rest = words[at + sign.len()..].strip_prefix(receiver);
                rest.is_some_and(|rest| rest.starts_with([',', ')']))
            })
        };
        given("(") || given(",")
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_helper_that_saves_in_another_file_counts() {
        check_files(&[
            (
                "ckpt.py",
                "
import torch
def save(net, path):
    torch.save(net.module.state_dict(), path)  # ~ module-of-unwrapped-model: `net`
",
            ),
            (
                "main.py",
                "
import argparse
import torch
from torch.nn.parallel import DistributedDataParallel as DDP
from ckpt import save

def main(args):
    net = torch.nn.Linear(3, 3)
    if args.distributed:
        torch.distributed.init_process_group('nccl')
        net = DDP(net)
    for epoch in range(3):
        net(torch.ones(1, 3))
    save(net, 'last.pt')

if __name__ == '__main__':
    main(argparse.ArgumentParser().parse_args())
",
            ),
        ]);
    }

    #[test]
    fn the_same_condition_is_silent() {
        check_python(
            "
import argparse, torch
args = argparse.ArgumentParser().parse_args()
args.distributed = args.world > 1
model = torch.nn.Linear(3, 3)
if args.distributed:
    model = torch.nn.parallel.DistributedDataParallel(model)
for _ in range(3):
    state = model.module.state_dict() if args.distributed else model.state_dict()
",
        );
    }

    #[test]
    fn tests_for_the_wrapper_are_silent() {
        check_python(
            "
import torch
from torch.nn import DataParallel
from torch.nn.parallel import DistributedDataParallel
model = torch.nn.Linear(3, 3)
if torch.cuda.device_count() > 1:
    model = DataParallel(model)
def unwrap(m):
    return m.module if isinstance(m, (DataParallel, DistributedDataParallel)) else m
for _ in range(3):
    print(unwrap(model).weight)
    print(getattr(model, 'module', model).weight)
    if hasattr(model, 'module'):
        print(model.module.weight)
",
        );
    }

    #[test]
    fn a_test_by_a_function_that_is_not_understood_is_silent() {
        check_python(
            "
import torch
from torch.nn.parallel import DistributedDataParallel
WRAPPERS = __import__('registry').load()
def is_wrapper(model):
    return isinstance(model, tuple(WRAPPERS.values()))
class Runner:
    def __init__(self, cfg):
        self.model = torch.nn.Linear(2, 2)
        if cfg.distributed:
            self.model = DistributedDataParallel(self.model)
    def bare(self):
        if is_wrapper(self.model):
            return self.model.module
        return self.model.module if is_wrapper(
            self.model) else self.model
Runner(__import__('conf').load()).bare()
",
        );
    }

    #[test]
    fn the_arm_without_the_wrap_counts() {
        check_python(
            "
import argparse, torch
args = argparse.ArgumentParser().parse_args()
model = torch.nn.Linear(2, 2)
if args.distributed:
    model = torch.nn.parallel.DistributedDataParallel(model)
if args.distributed:
    state = model.state_dict()
else:
    state = model.module.state_dict()  # ~ module-of-unwrapped-model
",
        );
    }

    #[test]
    fn an_attribute_that_is_called_module_is_silent() {
        check_python(
            "
import torch
class Holder(torch.nn.Module):
    def __init__(self, inner):
        super().__init__()
        self.module = inner
    def forward(self, x):
        return self.module(x)
ema = Holder(torch.nn.Linear(3, 3))
for _ in range(3):
    print(ema.module.weight)
",
        );
    }

    #[test]
    fn a_trainer_that_wraps_under_a_flag_counts() {
        check_python(
            "
import torch
class Trainer:
    def __init__(self, model, gpus):
        self.model = model
        if len(gpus) > 1:
            self.model = torch.nn.DataParallel(self.model, gpus)
    def snapshot(self):
        return self.model.module.state_dict()  # ~ module-of-unwrapped-model: self.model
trainer = Trainer(torch.nn.Linear(2, 2), [int(g) for g in input().split()])
for _ in range(3):
    trainer.snapshot()
",
        );
    }

    #[test]
    fn an_unconditional_wrap_is_silent() {
        check_python(
            "
import torch
model = torch.nn.Linear(2, 2)
model = torch.nn.DataParallel(model)
for _ in range(3):
    print(model.module.weight)
",
        );
    }

    #[test]
    fn a_factory_in_another_file_counts() {
        check_files(&[
            (
                "builder.py",
                "
import torch
import torch.nn as nn
def build(arch, parallel=False):
    net = nn.Sequential(nn.Linear(6, 6), nn.ReLU(), nn.Linear(6, 2))
    net.cuda()
    if parallel and torch.cuda.device_count() > 1:
        return nn.DataParallel(net)
    return net
",
            ),
            (
                "run.py",
                r#"
import sys
import torch
from builder import build
def main(argv):
    net = build("mlp", parallel="--dp" in argv)
    opt = torch.optim.SGD(net.parameters(), lr=0.1)
    for _ in range(4):
        loss = net(torch.randn(10, 6).cuda()).pow(2).sum()
        opt.zero_grad()
        loss.backward()
        opt.step()
    torch.save(net.module.state_dict(), "mlp.pth")  # ~ module-of-unwrapped-model
main(sys.argv)
"#,
            ),
        ]);
    }

    #[test]
    fn a_read_that_is_tried_is_silent() {
        check_python(
            r#"
import torch
import torch.nn as nn
net = nn.Linear(3, 3).cuda()
if torch.cuda.device_count() > 1:
    net = nn.DataParallel(net)
opt = torch.optim.SGD(net.parameters(), lr=.1)
for _ in range(5):
    loss = net(torch.randn(6, 3).cuda()).mean()
    opt.zero_grad(); loss.backward(); opt.step()
try:
    weights = net.module.state_dict()
except AttributeError:
    weights = net.state_dict()
torch.save(weights, "w.pt")
"#,
        );
    }

    #[test]
    fn a_guard_that_lets_a_single_process_through_counts() {
        check_python(
            "
import hydra
import torch
import torch.distributed as dist
from omegaconf import DictConfig
from torch.nn.parallel import DistributedDataParallel as DDP
class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.body = torch.nn.Linear(3, 3)
    def forward(self, x):
        return self.body(x)
@hydra.main(config_path='conf', config_name='run')
def main(cfg: DictConfig):
    net = Net()
    if cfg.distributed:
        dist.init_process_group('nccl')
        torch.cuda.set_device(dist.get_rank() % torch.cuda.device_count())
        net = DDP(net.cuda())
    opt = torch.optim.SGD(net.parameters(), lr=cfg.lr)
    net(torch.rand(2, 3)).sum().backward()
    opt.step()
    if not cfg.distributed or dist.get_rank() == 0:
        torch.save(net.module.state_dict(), cfg.out)  # ~ module-of-unwrapped-model
if __name__ == '__main__':
    main()
",
        );
        check_python(
            "
import hydra
import torch
import torch.distributed as dist
from omegaconf import DictConfig
from torch.nn.parallel import DistributedDataParallel as DDP
class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.body = torch.nn.Linear(3, 3)
    def forward(self, x):
        return self.body(x)
@hydra.main(config_path='conf', config_name='run')
def main(cfg: DictConfig):
    net = Net()
    if cfg.distributed:
        dist.init_process_group('nccl')
        torch.cuda.set_device(dist.get_rank() % torch.cuda.device_count())
        net = DDP(net.cuda())
    opt = torch.optim.SGD(net.parameters(), lr=cfg.lr)
    net(torch.rand(2, 3)).sum().backward()
    opt.step()
    if not cfg.distributed or dist.get_rank() == 0:
        torch.save((net.module if cfg.distributed else net).state_dict(), cfg.out)
if __name__ == '__main__':
    main()
",
        );
    }
}
