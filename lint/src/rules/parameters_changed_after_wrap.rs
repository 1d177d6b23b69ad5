use crate::analysis::facts::{GradientSwitch, Wrapper};
use crate::analysis::{Event, EventId, EventKind, Object, Term, TermKind, Value, Via};
use crate::prelude::*;
use crate::table::{Flag, Role};

declare_rule! {
    /// The parameters of a model change after `DistributedDataParallel` took them.
    ///
    /// The wrapper takes the trainable parameters as they are when it is made. One that is
    /// thawed, added or replaced later is not reduced: the ranks drift apart, silently. One that
    /// is frozen later is waited for: `Expected to have finished reduction in the prior
    /// iteration`. One that is initialised again gets another value on each rank.
    ///
    /// ```python bad
    /// import torch.nn as nn
    /// from torch.nn.parallel import DistributedDataParallel as DDP
    ///
    /// net = nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 1))
    /// net[0].requires_grad_(False)
    /// model = DDP(net)
    /// for epoch in range(10):
    ///     if epoch == 5:
    ///         net[0].requires_grad_(True)  # ~ parameters-changed-after-wrap
    ///     for x in []:
    ///         model(x).sum().backward()
    /// ```
    /// ```python good
    /// import torch.nn as nn
    /// from torch.nn.parallel import DistributedDataParallel as DDP
    ///
    /// net = nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 1))
    /// net[0].requires_grad_(False)
    /// model = DDP(net)
    /// for epoch in range(10):
    ///     if epoch == 5:
    ///         net[0].requires_grad_(True)
    ///         model = DDP(net)
    ///     for x in []:
    ///         model(x).sum().backward()
    /// ```
    /// ```rust bad
    /// use tch::nn;
    /// use tch_ddp::{Ddp, Launch, ProcessGroup};
    ///
    /// fn main() -> anyhow::Result<()> {
    ///     let group = ProcessGroup::init(&Launch::from_env()?, Default::default())?;
    ///     let vs = nn::VarStore::new(group.device());
    ///     let encoder = nn::linear(vs.root() / "encoder", 8, 8, Default::default());
    ///     let ddp = Ddp::new(encoder, vs, &group, Default::default())?;
    ///     let p = ddp.vars().root() / "head";
    ///     let head = nn::linear(p, 8, 2, Default::default()); //~ parameters-changed-after-wrap
    ///     Ok(())
    /// }
    /// ```
    /// ```rust good
    /// use tch::nn;
    /// use tch_ddp::{Ddp, Launch, ProcessGroup};
    ///
    /// fn main() -> anyhow::Result<()> {
    ///     let group = ProcessGroup::init(&Launch::from_env()?, Default::default())?;
    ///     let vs = nn::VarStore::new(group.device());
    ///     let encoder = nn::linear(vs.root() / "encoder", 8, 8, Default::default());
    ///     let head = nn::linear(vs.root() / "head", 8, 2, Default::default());
    ///     let ddp = Ddp::new((encoder, head), vs, &group, Default::default())?;
    ///     Ok(())
    /// }
    /// ```
    ///
    /// # Known limits
    /// A whole model that is frozen and thawed in turn, as in the training of a GAN, is fine and
    /// silent. A change of dtype is told by `wrong-wrap-order`.
    pub static RULE = {
        name: "parameters-changed-after-wrap",
        level: Level::Error,
        harm: Harm::Wrong,
        tier: 1,
        languages: BOTH,
        fix: FixKind::No,
        check,
    };
}

/// A wrapper with what is inside it.
struct Wrapped<'a, 'p> {
    object: &'a Object<'p>,
    event: EventId,
    /// The whole model first.
    parts: Vec<Term>,
}

fn check(program: &Program<'_>, report: &mut Report<'_>) {
    if program.language != Language::Python {
        check_registrations(program, report);
        return check_kinds(program, report);
    }
    let switches = program.gradient_switches();
    for (id, parts) in program.wrapped_models(Wrapper::Ddp) {
        let object = program.object(id);
        let (Some(event), false) = (object.event, parts.is_empty()) else { continue };
        let wrapped = Wrapped { object, event, parts };
        if !program.trains_through(id) {
            continue;
        }
        check_switches(program, report, &wrapped, &switches);
        check_stores(program, report, &wrapped);
        check_initialisation(program, report, &wrapped);
    }
}

/// tch: a path of the store that a wrapper lends gets new variables.
fn check_registrations(program: &Program<'_>, report: &mut Report<'_>) {
    for (event, call, path) in program.registrations() {
        let wrapper = program.wrapper_of(path.root).filter(|(_, kind)| *kind == Wrapper::Ddp);
        let Some((wrapper, _)) = wrapper.filter(|_| call.role != Role::RegisterBuffer) else {
            continue;
        };
        let wrapped = program.object(wrapper).site;
        let site = site_beside(program, event, wrapped);
        let called = program.callee_text(event).unwrap_or("this");
        report
            .at(site, format!("`{called}` registers parameters after the model was wrapped"))
            .why(
                "the optimizer trains them, and nothing broadcasts or reduces them: the ranks \
                 drift apart without an error",
            )
            .help("build all layers on the store before `Ddp::new`")
            .related(wrapped, "wrapped here");
    }
}

/// tch: the dtype of the variables below a path of the store that a wrapper lends.
fn check_kinds(program: &Program<'_>, report: &mut Report<'_>) {
    for (event, call) in program.calls(Role::ChangeKind) {
        let path = call.receiver.as_ref().and_then(Value::single);
        let root = path.and_then(|path| program.variable_path(path)).map(|path| path.root);
        let Some((wrapper, Wrapper::Ddp)) = root.and_then(|root| program.wrapper_of(root)) else {
            continue;
        };
        report
            .at(event.site, "the dtype of the model changes after it was wrapped")
            .why("the reduction was set up for the old dtype: gradients stay on each rank, or fail")
            .help("change it on the store before `Ddp::new`")
            .related(program.object(wrapper).site, "wrapped here");
    }
}

/// The call that leads to an event in the function that wraps, if that is one of its callers.
fn site_beside(program: &Program<'_>, event: &Event<'_>, wrapped: Site) -> Site {
    let (mut site, mut at) = (event.site, Some(event.frame));
    while let Some(frame) = at.map(|id| program.frame(id)) {
        let holds = frame.function.is_some_and(|function| {
            function.file == wrapped.file && program.function(function).span.contains(wrapped.span)
        });
        if holds {
            return site;
        }
        let Some(call) = frame.call else { break };
        (site, at) = (call, frame.caller);
    }
    event.site
}

/// Thawed or frozen after the wrap.
fn check_switches(
    program: &Program<'_>,
    report: &mut Report<'_>,
    wrapped: &Wrapped<'_, '_>,
    switches: &[GradientSwitch],
) {
    for &switch in switches {
        let event = program.event(switch.event);
        // `model.parameters()` of the wrapper are those of the whole model.
        let of_wrapper = program.wrapper_of(switch.of).is_some_and(|(w, _)| w == wrapped.object.id);
        let of = if of_wrapper { wrapped.parts[0] } else { switch.of };
        let switch = GradientSwitch { of, ..switch };
        if !is_after(program, wrapped, event) || !wrapped.parts.contains(&switch.of) {
            continue;
        }
        let whole = switch.of == wrapped.parts[0];
        let frozen_at_wrap = switches
            .iter()
            .rev()
            .find(|s| s.event < wrapped.event && reaches(program, s.of, switch.of));
        let frozen_at_wrap = frozen_at_wrap.filter(|s| !s.on);
        let name = program.receiver_text(event).unwrap_or("the module");
        if let (true, Some(frozen)) = (switch.on, frozen_at_wrap) {
            report
                .at(event.site, "parameters that were frozen at the wrap are thawed after it")
                .why(
                    "`DistributedDataParallel` does not know them: their gradients stay on each \
                     rank, and the ranks drift apart without an error",
                )
                .help("wrap the model again after the change: `model = DDP(model.module, ..)`")
                .related(frozen.site, "frozen here")
                .related(wrapped.object.site, "wrapped here");
        } else if !switch.on && !whole && switch.reaches_all && frozen_at_wrap.is_none() {
            let looks = program.wrapper_option(wrapped.object.id, "find_unused_parameters");
            let is_thawed =
                switches.iter().any(|s| s.event > switch.event && s.on && s.of == switch.of);
            let trains_on = program.forwards().any(|(e, f)| {
                e.id > switch.event
                    && f.via == Via::Wrapper(wrapped.object.id)
                    && program.trained().contains(&e.id)
            });
            if !matches!(looks, Some(None | Some(false))) || is_thawed || !trains_on {
                continue;
            }
            report
                .at(event.site, "a part of the model is frozen after it was wrapped")
                .harm(Harm::Crash)
                .why(
                    "`DistributedDataParallel` still waits for a gradient of each of its \
                     parameters, and raises at the next step",
                )
                .help(format!("freeze before the wrap, or wrap again after `{name}` changes"))
                .related(wrapped.object.site, "wrapped here");
        }
    }
}

/// A change of one module's parameters is a change of the other's.
fn reaches(program: &Program<'_>, changed: Term, other: Term) -> bool {
    changed == other
        || program.modules_within(changed).contains(&other)
        || program.modules_within(other).contains(&changed)
}

/// The event changes the model under this wrapper, and no new one is made afterwards.
fn is_after(program: &Program<'_>, wrapped: &Wrapped<'_, '_>, event: &Event<'_>) -> bool {
    let wrapped_again = program.objects().iter().any(|o| {
        o.id != wrapped.object.id
            && o.event.is_some_and(|made| made > event.id)
            && program.wrapper_kind(o.id) == Some(Wrapper::Ddp)
            && program.wrapped_module(o.id).is_some_and(|m| {
                m.terms()
                    .any(|t| reaches(program, t, wrapped.parts[0]) || is_inner(program, t, wrapped))
            })
    });
    event.id > wrapped.event
        && !wrapped_again
        && event.modes.forward.is_none_or(|_| event.modes.wrapper.is_none())
        && program.can_both_hold_paths(event.path, wrapped.object.path)
}

fn is_inner(program: &Program<'_>, term: Term, wrapped: &Wrapped<'_, '_>) -> bool {
    matches!(program.terms().kind(term), TermKind::Inner(id) if *id == wrapped.object.id)
}

/// A layer or parameter is added to the wrapped model, or replaced.
fn check_stores(program: &Program<'_>, report: &mut Report<'_>, wrapped: &Wrapped<'_, '_>) {
    for event in program.events() {
        let (of, name, value) = match &event.kind {
            EventKind::AttributeStore { of, name, value, .. } => (*of, Some(*name), value),
            EventKind::Call(call)
                if matches!(call.role, Role::AddModule | Role::RegisterParameter) =>
            {
                let of = call.receiver.as_ref().and_then(Value::single);
                let (Some(of), Some(value)) = (of, call.arguments.last().map(|a| &a.value)) else {
                    continue;
                };
                (of, None, value)
            }
            _ => continue,
        };
        let holds = is_inner(program, of, wrapped) || wrapped.parts.contains(&of);
        let new = value.terms().find(|&t| {
            program.has_parameters(t)
                && program.object_of(t).is_some_and(|o| o.event.is_none_or(|e| e > wrapped.event))
        });
        if !holds || new.is_none() || !is_after(program, wrapped, event) {
            continue;
        }
        let what = name.map_or_else(|| "a layer".to_owned(), |name| format!("`{name}`"));
        report
            .at(event.site, format!("{what} gets new parameters after the model was wrapped"))
            .why(
                "`DistributedDataParallel` does not know them: they are neither sent to the other \
                 ranks nor reduced, and the ranks drift apart without an error",
            )
            .help("change the model first, then wrap; or wrap again: `DDP(model.module, ..)`")
            .related(wrapped.object.site, "wrapped here");
    }
}

/// The weights are drawn again, on each rank for itself.
fn check_initialisation(program: &Program<'_>, report: &mut Report<'_>, wrapped: &Wrapped<'_, '_>) {
    // With one seed for all ranks the draws may well be the same.
    if program.calls(Role::Seed).next().is_some() {
        return;
    }
    for (event, call) in program.calls(Role::InitParameter) {
        let is_random = program.has_flag(call, Flag::Random);
        let Some(first) = call.value_at(0, "tensor").or(call.receiver.as_ref()) else { continue };
        let inside = |t: Term| is_inner(program, t, wrapped) || wrapped.parts.contains(&t);
        let of_part = first.terms().any(|t| match program.terms().kind(t) {
            TermKind::Attribute(of, _) => inside(*of),
            _ => false,
        });
        let of_all = program.modules_behind(first).into_iter().any(|module| {
            inside(module)
                || matches!(program.wrapper_of(module), Some((id, _)) if id == wrapped.object.id)
        });
        if !is_random || !(of_part || of_all) || !is_after(program, wrapped, event) {
            continue;
        }
        let synced = program.calls(Role::Collective).any(|(e, _)| e.id > event.id);
        let loaded = program.calls(Role::LoadStateDict).any(|(e, _)| e.id > event.id);
        if synced || loaded || program.is_orphan(event) {
            continue;
        }
        report
            .at(event.site, "weights are drawn again after the model was wrapped")
            .why(
                "the wrapper sends rank 0's parameters to the others once, when it is made: from \
                 here on each rank trains a model of its own",
            )
            .help("initialise first, then wrap")
            .related(wrapped.object.site, "wrapped here");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_layer_built_on_a_wrapped_store_counts() {
        check_files(&[
            (
                "src/main.rs",
                "
mod head;
use tch::nn;
use tch_ddp::{Ddp, DdpOptions, GroupOptions, Launch, ProcessGroup};
fn main() -> anyhow::Result<()> {
    let group = ProcessGroup::init(&Launch::from_env()?, GroupOptions::default())?;
    let vs = nn::VarStore::new(group.device());
    let body = nn::linear(vs.root() / \"body\", 8, 8, Default::default());
    let ddp = Ddp::new(body, vs, &group, DdpOptions::default())?;
    let head = head::Head::new(&(ddp.vars().root() / \"head\")); //~ parameters-changed-after-wrap
    let steps = ddp.vars().root().zeros_no_train(\"steps\", &[1]);
    Ok(())
}
",
            ),
            (
                "src/head.rs",
                "
use tch::{nn, Tensor};
pub struct Head { scale: Tensor, out: nn::Linear }
impl Head {
    pub fn new(p: &nn::Path) -> Head {
        let out = nn::linear(p / \"out\", 8, 2, Default::default());
        Head { scale: p.ones(\"scale\", &[2]), out }
    }
}
",
            ),
        ]);
    }

    #[test]
    fn a_second_store_and_its_own_wrapper_are_silent() {
        check_rust(
            "
use tch::nn;
use tch_ddp::{Ddp, GroupOptions, Launch, ProcessGroup};
fn main() -> anyhow::Result<()> {
    let group = ProcessGroup::init(&Launch::from_env()?, GroupOptions::default())?;
    let actor = nn::VarStore::new(group.device());
    let policy = nn::linear(actor.root(), 8, 2, Default::default());
    let policy = Ddp::new(policy, actor, &group, Default::default())?;
    let critic = nn::VarStore::new(policy.device());
    let value = nn::linear(critic.root(), 8, 1, Default::default());
    let value = Ddp::new(value, critic, &group, Default::default())?;
    Ok(())
}
",
        );
    }

    #[test]
    fn a_backbone_thawed_by_a_callback_counts() {
        check_files(&[
            (
                "net.py",
                "
import torch.nn as nn
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.backbone = nn.Sequential(nn.Linear(4, 4), nn.ReLU())
        self.head = nn.Linear(4, 1)
    def freeze(self, on):
        for p in self.backbone.parameters():
            p.requires_grad = not on
    def forward(self, x):
        return self.head(self.backbone(x))
def set_grad(module, on):
    for _, p in module.named_parameters():
        p.requires_grad_(on)  # ~ parameters-changed-after-wrap: thawed
",
            ),
            (
                "main.py",
                "
import torch
from torch.nn.parallel import DistributedDataParallel as DDP
from net import Net, set_grad
class Trainer:
    def __init__(self):
        torch.distributed.init_process_group('nccl')
        net = Net()
        set_grad(net.backbone, False)
        self.net = DDP(net.cuda())
    def on_epoch(self, epoch):
        if epoch == 3:
            set_grad(self.net.module.backbone, True)
    def fit(self, loader):
        for epoch in range(5):
            self.on_epoch(epoch)
            for x in loader:
                self.net(x).sum().backward()
if __name__ == '__main__':
    Trainer().fit([])
",
            ),
        ]);
    }

    #[test]
    fn a_head_replaced_after_the_wrap_counts() {
        check_python(
            "
import torch
from torch import nn
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.body, self.head = nn.Linear(2, 2), nn.Linear(2, 2)
    def forward(self, x):
        return self.head(self.body(x))
torch.distributed.init_process_group('gloo')
model = nn.parallel.DistributedDataParallel(Net())
model.module.head = nn.Linear(2, 5)  # ~ parameters-changed-after-wrap: `head`
model.module.add_module('extra', nn.Linear(2, 2))  # ~ parameters-changed-after-wrap
nn.init.normal_(model.module.body.weight)  # ~ parameters-changed-after-wrap: drawn again
for _ in range(3):
    model(torch.ones(1, 2)).sum().backward()
",
        );
    }

    #[test]
    fn a_part_frozen_after_the_wrap_counts() {
        let program = |options: &str, mark: &str| {
            format!(
                "
import torch
from torch import nn
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.body, self.head = nn.Linear(2, 2), nn.Linear(2, 2)
    def forward(self, x):
        return self.head(self.body(x))
torch.distributed.init_process_group('gloo')
net = Net()
model = nn.parallel.DistributedDataParallel(net{options})
for p in net.body.parameters():
    p.requires_grad = False{mark}
for _ in range(3):
    model(torch.ones(1, 2)).sum().backward()
"
            )
        };
        check_python(&program("", "  # ~ parameters-changed-after-wrap: frozen after"));
        check_python(&program(", find_unused_parameters=True", ""));
    }

    #[test]
    fn all_parameters_thawed_through_the_wrapper_count() {
        check_python(
            "
import torch, torchvision
from torch.nn.parallel import DistributedDataParallel as DDP
def main():
    torch.distributed.init_process_group('nccl')
    net = torchvision.models.resnet50()
    for name, p in net.named_parameters():
        if not name.startswith('fc'):
            p.requires_grad = False
    net = DDP(net.cuda(), device_ids=[int(input())])
    for epoch in range(10):
        if epoch == 3:
            for p in net.parameters():
                p.requires_grad = True  # ~ parameters-changed-after-wrap: thawed
        for x, y in []:
            torch.nn.functional.cross_entropy(net(x), y).backward()
if __name__ == '__main__':
    main()
",
        );
    }

    #[test]
    fn layers_chosen_by_name_count() {
        check_python(
            "
import torch, torchvision
torch.distributed.init_process_group('nccl')
model = torchvision.models.resnet18()
for n, p in model.named_parameters():
    p.requires_grad = n.startswith('fc')
model = torch.nn.parallel.DistributedDataParallel(model.cuda())
for epoch in range(5):
    if epoch == 2:
        for n, p in model.named_parameters():
            if 'layer4' in n:
                p.requires_grad = True  # ~ parameters-changed-after-wrap: thawed
    for x in []:
        model(x).sum().backward()
",
        );
    }

    #[test]
    fn a_new_wrapper_after_the_change_is_silent() {
        check_python(
            "
import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
torch.distributed.init_process_group('gloo')
net = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
net.requires_grad_(False)
net[1].requires_grad_(True)
model = DDP(net)
for epoch in range(3):
    if epoch == 1:
        for p in model.module.parameters():
            p.requires_grad = True
        model = DDP(model.module)
    model(torch.ones(1, 2)).sum().backward()
",
        );
    }

    #[test]
    fn the_turns_of_a_gan_are_silent() {
        check_python(
            "
import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
def requires_grad(model, flag=True):
    for p in model.parameters():
        p.requires_grad = flag
torch.distributed.init_process_group('gloo')
g, d = DDP(nn.Linear(2, 2)), DDP(nn.Linear(2, 1))
for _ in range(3):
    requires_grad(g, False)
    requires_grad(d, True)
    d(g(torch.ones(1, 2))).sum().backward()
    requires_grad(g, True)
    requires_grad(d, False)
    d(g(torch.ones(1, 2))).sum().backward()
",
        );
    }

    #[test]
    fn changes_before_the_wrap_are_silent() {
        check_python(
            "
import torch
from torch import nn
torch.distributed.init_process_group('gloo')
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.body, self.head = nn.Linear(2, 2), nn.Linear(2, 2)
    def forward(self, x):
        return self.head(self.body(x))
net = Net()
net.body.requires_grad_(False)
net.body.requires_grad_(True)
net.head = nn.Linear(2, 3)
nn.init.zeros_(net.head.bias)
nn.init.normal_(net.head.weight)
model = nn.parallel.DistributedDataParallel(net)
model.module.epoch = 3
for _ in range(3):
    model(torch.ones(1, 2)).sum().backward()
",
        );
    }

    #[test]
    fn a_part_frozen_in_another_file_counts() {
        check_files(&[
            (
                "stages.py",
                "
def freeze(part):
    for weight in part.parameters():
        weight.requires_grad_(False)  # ~ parameters-changed-after-wrap
def warm_up(model, step):
    if step == 100:
        freeze(model.module.encoder)
",
            ),
            (
                "main.py",
                r#"
import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from stages import warm_up
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.encoder = nn.Linear(4, 4)
        self.decoder = nn.Linear(4, 4)
    def forward(self, x):
        return self.decoder(self.encoder(x))
def main():
    torch.distributed.init_process_group("nccl")
    model = DDP(Net().cuda())
    opt = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(1000):
        warm_up(model, step)
        model(torch.randn(2, 4).cuda()).mean().backward()
        opt.step()
if __name__ == "__main__":
    main()
"#,
            ),
        ]);
    }

    #[test]
    fn a_callback_that_thaws_counts() {
        check_python(
            "
import os
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset
class Unfreezer:
    def __init__(self, part, at):
        self.part, self.at = part, at
    def __call__(self, epoch):
        if epoch == self.at:
            for w in self.part.parameters():
                w.requires_grad_(True)  # ~ parameters-changed-after-wrap
class Two(nn.Module):
    def __init__(self):
        super().__init__()
        self.stem = nn.Linear(4, 8)
        self.head = nn.Linear(8, 1)
    def forward(self, x):
        return self.head(self.stem(x))
def main():
    dist.init_process_group('nccl')
    g = int(os.environ['LOCAL_RANK'])
    torch.cuda.set_device(g)
    two = Two().cuda()
    for w in two.stem.parameters():
        w.requires_grad_(False)
    net = DDP(two, device_ids=[g])
    hooks = [Unfreezer(two.stem, 2)]
    opt = torch.optim.SGD(net.parameters(), 0.1)
    for e in range(5):
        for h in hooks:
            h(e)
        opt.zero_grad()
        net(torch.rand(4, 4).cuda()).mean().backward()
        opt.step()
main()
",
        );
    }

    #[test]
    fn a_callback_that_thaws_what_was_never_frozen_is_silent() {
        check_python(
            "
import os
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset
class Unfreezer:
    def __init__(self, part, at):
        self.part, self.at = part, at
    def __call__(self, epoch):
        if epoch == self.at:
            for w in self.part.parameters():
                w.requires_grad_(True)
class Two(nn.Module):
    def __init__(self):
        super().__init__()
        self.stem = nn.Linear(4, 8)
        self.head = nn.Linear(8, 1)
    def forward(self, x):
        return self.head(self.stem(x))
def main():
    dist.init_process_group('nccl')
    g = int(os.environ['LOCAL_RANK'])
    torch.cuda.set_device(g)
    two = Two().cuda()
    pass
    net = DDP(two, device_ids=[g])
    hooks = [Unfreezer(two.stem, 2)]
    opt = torch.optim.SGD(net.parameters(), 0.1)
    for e in range(5):
        for h in hooks:
            h(e)
        opt.zero_grad()
        net(torch.rand(4, 4).cuda()).mean().backward()
        opt.step()
main()
",
        );
    }
}
