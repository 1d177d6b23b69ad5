use crate::analysis::facts::Wrapper;
use crate::analysis::models::{Around, Mention, RanIn};
use crate::analysis::{Call, Event, EventKind, FrameId, Term};
use crate::config::TorchVersion;
use crate::prelude::*;
use crate::table::Role;

declare_rule! {
    /// A module under `DataParallel` asks for its own parameters in its forward.
    ///
    /// Replicas hold their tensors as plain attributes: `self.parameters()` yields nothing
    /// there, so a penalty over it is silently zero, and `next(self.parameters())` raises
    /// `StopIteration`. On torch 1.5 to 1.11 a `ParameterList` or `ParameterDict` is empty on
    /// replicas too.
    ///
    /// ```python bad
    /// import torch.nn as nn
    ///
    ///
    /// class Net(nn.Module):
    ///     def __init__(self):
    ///         super().__init__()
    ///         self.fc = nn.Linear(8, 8)
    ///
    ///     def forward(self, x):
    ///         kind = next(self.parameters()).dtype  # ~ parameters-read-on-replica
    ///         return self.fc(x.to(kind))
    ///
    ///
    /// model = nn.DataParallel(Net())
    /// ```
    /// ```python good
    /// import torch.nn as nn
    ///
    ///
    /// class Net(nn.Module):
    ///     def __init__(self):
    ///         super().__init__()
    ///         self.fc = nn.Linear(8, 8)
    ///
    ///     def forward(self, x):
    ///         return self.fc(x.to(self.fc.weight.dtype))
    ///
    ///
    /// model = nn.DataParallel(Net())
    /// ```
    ///
    /// # Known limits
    /// Only forwards that are seen to run under `DataParallel` are looked at. The versions for
    /// `ParameterList` come from `--target-torch` or from what the project requires.
    pub static RULE = {
        name: "parameters-read-on-replica",
        level: Level::Error,
        harm: Harm::Wrong,
        tier: 1,
        languages: PYTHON,
        fix: FixKind::No,
        check,
    };
}

const LISTS_BROKEN_FROM: TorchVersion = TorchVersion { major: 1, minor: 5 };
const LISTS_BROKEN_TO: TorchVersion = TorchVersion { major: 1, minor: 11 };

fn check(program: &Program<'_>, report: &mut Report<'_>) {
    for role in [Role::Parameters, Role::NamedParameters] {
        for (event, call) in program.calls(role) {
            if on_replica(program, event) && receiver(call).is_some_and(|t| program.is_module(t)) {
                let read = program.callee_text(event).unwrap_or("parameters");
                report
                    .at(event.site, format!("`{read}()` is empty on a replica of `DataParallel`"))
                    .why("replicas hold tensors as plain attributes: this yields nothing, silently")
                    .help(
                        "read the attributes themselves (`self.fc.weight`), \
                         or compute this outside the model",
                    );
            }
        }
    }
    if program.project().torch.touches(LISTS_BROKEN_FROM, LISTS_BROKEN_TO) {
        check_lists(program, report);
    }
}

fn receiver(call: &Call<'_>) -> Option<Term> {
    call.receiver.as_ref()?.single()
}

fn on_replica(program: &Program<'_>, event: &Event<'_>) -> bool {
    event.modes.forward.is_some()
        && program.wrapper_around(event).is_some_and(|(_, kind)| kind == Wrapper::Dp)
}

/// Loops over lists of parameters inside a forward on a replica.
fn check_lists(program: &Program<'_>, report: &mut Report<'_>) {
    let frames: Vec<FrameId> = program
        .events()
        .iter()
        .filter(|event| on_replica(program, event))
        .filter_map(|event| event.modes.forward)
        .collect();
    for object in program.objects().iter().filter(|o| o.role == Role::ParameterList) {
        let list = program.term_of(object.id);
        let read = program.loops_over(list).find(|node| frames.contains(&node.frame));
        let name = program.events().iter().find_map(|event| match &event.kind {
            EventKind::AttributeStore { name, value, .. } if value.single() == Some(list) => {
                Some(*name)
            }
            _ => None,
        });
        let looked_up = || name.and_then(|name| looked_up(program, name));
        let Some(head) = read.map(|node| node.site).or_else(looked_up) else { continue };
        let name = name.map_or("the list", |n| n.as_str());
        let start = head.span.start;
        let head = Site { file: head.file, span: Span { start, end: start + 1 } };
        report
            .at(head, format!("`{name}` is empty on a replica of `DataParallel` before torch 1.12"))
            .why("torch 1.5 to 1.11 do not copy the parameters of a list: this loop does nothing")
            .help(
                "register each parameter under a name, \
                 `self.register_parameter(f\"H_{k}\", ..)`, or move to DistributedDataParallel",
            )
            .related(object.site, "the list is made here");
    }
}

/// Where a forward looks something up in the list or dict: `self.scale[name]`.
fn looked_up(program: &Program<'_>, name: Name) -> Option<Site> {
    let is_item = |m: &&Mention| {
        m.name == name
            && m.of_self
            && m.around[0] == Some(Around::Item)
            && m.function.is_some_and(|f| program.ran_in(f) == RanIn::Forward)
    };
    program.models().mentions().find(is_item).map(|m| m.site)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_penalty_over_all_parameters_counts() {
        check_python(
            "
import torch
class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = torch.nn.Linear(2, 2)
    def penalty(self):
        total = 0
        for name, p in self.named_parameters():  # ~ parameters-read-on-replica
            total = total + p.norm()
        return total
    def forward(self, x):
        return self.fc(x), self.penalty()
net = torch.nn.DataParallel(Net()).cuda()
for _ in range(3):
    y, extra = net(torch.ones(1, 2))
    (y.sum() + extra.sum()).backward()
",
        );
    }

    #[test]
    fn a_sub_module_in_another_file_counts() {
        check_files(&[
            (
                "encoder.py",
                "
import torch
class Encoder(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = torch.nn.Linear(2, 2)
    def forward(self, x):
        device = next(self.parameters()).device  # ~ parameters-read-on-replica
        return self.fc(x.to(device))
",
            ),
            (
                "main.py",
                "
import torch
from encoder import Encoder
class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.encoder = Encoder()
    def forward(self, x):
        return self.encoder(x)
if __name__ == '__main__':
    net = torch.nn.DataParallel(Net())
    net(torch.ones(1, 2)).sum().backward()
",
            ),
        ]);
    }

    #[test]
    fn the_same_forward_under_ddp_is_silent() {
        check_python(
            "
import torch
class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = torch.nn.Linear(2, 2)
    def forward(self, x):
        return self.fc(x.to(next(self.parameters()).device))
net = torch.nn.parallel.DistributedDataParallel(Net())
for _ in range(3):
    net(torch.ones(1, 2)).sum().backward()
",
        );
    }

    #[test]
    fn parameters_for_the_optimizer_are_silent() {
        check_python(
            "
import torch
net = torch.nn.DataParallel(torch.nn.Linear(2, 2))
opt = torch.optim.SGD(net.parameters(), lr=0.1)
for _ in range(3):
    net(torch.ones(1, 2)).sum().backward()
    torch.nn.utils.clip_grad_norm_(net.parameters(), 1.0)
    opt.step()
",
        );
    }

    #[test]
    fn a_parameter_list_is_silent_on_newer_releases() {
        check_python(
            "
import torch
from torch import nn
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.h = nn.ParameterList([nn.Parameter(torch.ones(2)) for _ in range(3)])
    def forward(self, x):
        for h in self.h:
            x = x + h
        return x
net = nn.DataParallel(Net())
for _ in range(3):
    net(torch.ones(1, 2)).sum().backward()
",
        );
    }

    #[test]
    fn a_helper_in_another_file_counts() {
        check_files(&[
            (
                "layers.py",
                "
import torch
import torch.nn as nn
def dtype_of(module):
    return next(module.parameters()).dtype  # ~ parameters-read-on-replica
class TimeStep(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.mlp = nn.Sequential(nn.Linear(width, width), nn.SiLU(), nn.Linear(width, width))
        self.width = width
    def forward(self, t):
        emb = t[:, None].to(dtype_of(self))
        return self.mlp(emb.expand(-1, self.width))
",
            ),
            (
                "main.py",
                "
import torch
from torch.nn import DataParallel, Linear, Module
from layers import TimeStep
class Unet(Module):
    def __init__(self):
        super().__init__()
        self.time = TimeStep(16)
        self.out = Linear(16, 16)
    def forward(self, x, t):
        return self.out(x + self.time(t))
unet = DataParallel(Unet()).cuda()
opt = torch.optim.AdamW(unet.parameters())
for step in range(50):
    x = torch.randn(32, 16).cuda()
    t = torch.rand(32).cuda()
    loss = torch.nn.functional.mse_loss(unet(x, t), x)
    opt.zero_grad()
    loss.backward()
    opt.step()
",
            ),
        ]);
    }

    #[test]
    fn an_item_of_a_dict_of_parameters_counts() {
        check_python(
            r#"# torch: 1.9
import torch
import torch.nn as nn
class Adapters(nn.Module):
    def __init__(self, langs):
        super().__init__()
        self.scale = nn.ParameterDict({k: nn.Parameter(torch.ones(64)) for k in langs})
        self.fc = nn.Linear(64, 64)
    def forward(self, x, lang="en"):
        x = x * self.scale[lang]  # ~ parameters-read-on-replica
        return self.fc(x)
def run(cfg):
    m = Adapters(cfg["langs"])
    if cfg["n_gpu"] > 1:
        m = torch.nn.DataParallel(m)
    m.to("cuda")
    opt = torch.optim.Adam(m.parameters(), lr=cfg["lr"])
    for _ in range(10):
        loss = m(torch.randn(8, 64, device="cuda")).mean()
        opt.zero_grad(); loss.backward(); opt.step()
if __name__ == "__main__":
    run({"langs": ["en", "de"], "n_gpu": torch.cuda.device_count(), "lr": 1e-3})
"#,
        );
    }
}
