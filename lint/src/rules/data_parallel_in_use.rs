use crate::model::ExprKind;
use crate::prelude::*;
use crate::table::Role;

declare_rule! {
    /// The program trains with `DataParallel`.
    ///
    /// One process drives all devices: the model is copied to them at every step, Python's lock
    /// is shared, and the first device holds every output. `DistributedDataParallel` is faster
    /// even on one machine (PyTorch's own documentation recommends it).
    ///
    /// ```python bad
    /// import torch.nn as nn
    ///
    /// model = nn.DataParallel(nn.Linear(8, 1))  # ~ data-parallel-in-use
    /// ```
    /// ```python good
    /// import torch.nn as nn
    /// from torch.nn.parallel import DistributedDataParallel
    ///
    /// model = DistributedDataParallel(nn.Linear(8, 1))
    /// ```
    /// ```rust bad
    /// fn main() -> anyhow::Result<()> {
    ///     let devices = [tch::Device::Cuda(0), tch::Device::Cuda(1)];
    ///     let parallel = tch_ddp::DataParallel::new(&devices, |p| Net::new(p))?; //~ data-parallel-in-use
    ///     Ok(())
    /// }
    /// ```
    /// ```rust good
    /// fn main() -> anyhow::Result<()> {
    ///     let device = tch::Device::Cpu;
    ///     let vs = tch::nn::VarStore::new(device);
    ///     Ok(())
    /// }
    /// ```
    ///
    /// # Known limits
    /// Copies of gradients between several stores that a program makes by hand are not seen.
    pub static RULE = {
        name: "data-parallel-in-use",
        level: Level::Advice,
        harm: Harm::Waste,
        tier: 1,
        languages: BOTH,
        fix: FixKind::No,
        check,
    };
}

fn check(program: &Program<'_>, report: &mut Report<'_>) {
    by_hand(program, report);
    for role in [Role::WrapDp, Role::FunctionalDp] {
        for (event, call) in program.calls(role) {
            let name = call.name.map_or("DataParallel", |name| name.as_str());
            let name = name.rsplit('.').next().unwrap_or(name);
            report
                .at(event.site, format!("`{name}` runs all devices from one process"))
                .why("the model is copied at every step and the first device holds all outputs")
                .help("move to `DistributedDataParallel`: one process for each device");
        }
    }
    for object in program.objects() {
        let is_subclass = object.role == Role::WrapDp && program.class_of(object).is_some();
        if is_subclass {
            report
                .at(object.site, "a subclass of `DataParallel` runs all devices from one process")
                .why("the model is copied at every step and the first device holds all outputs")
                .help("move to `DistributedDataParallel`: one process for each device");
        }
    }
}

/// tch: a gradient goes to another device, in one process: replicas by hand.
fn by_hand(program: &Program<'_>, report: &mut Report<'_>) {
    if program.language != Language::Rust || program.is_distributed() {
        return;
    }
    for (event, _) in program.calls(Role::Move) {
        let Some(ExprKind::Call { callee, .. }) = event.expr.map(|e| &e.kind) else { continue };
        let ExprKind::Attribute { value, .. } = &callee.kind else { continue };
        let ExprKind::Call { callee, .. } = &value.kind else { continue };
        if callee.last_name().is_some_and(|name| &*name == "grad") {
            report
                .at(event.site, "gradients are copied between devices of one process by hand")
                .why("the first device waits for all others, and holds their gradients too")
                .help("move to `tch_ddp::Ddp`: one process for each device");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_subclass_of_the_project_counts() {
        check_files(&[
            (
                "balanced.py",
                "
from torch.nn.parallel import DataParallel
class Balanced(DataParallel):
    def __init__(self, first, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.first = first
",
            ),
            (
                "train.py",
                "
import torch
from balanced import Balanced
model = Balanced(2, torch.nn.Linear(3, 3))  # ~ data-parallel-in-use
for x in range(3):
    model(x)
",
            ),
        ]);
    }

    #[test]
    fn the_functional_form_counts() {
        check_python(
            "
import torch
from torch.nn.parallel import data_parallel
net = torch.nn.Linear(3, 3)
for x in range(3):
    data_parallel(net, x, [0, 1])  # ~ data-parallel-in-use
",
        );
    }

    #[test]
    fn a_function_of_the_project_of_that_name_is_not_torchs() {
        check_python(
            "
def DataParallel(model):
    return model
net = DataParallel(object())
",
        );
    }

    #[test]
    fn an_alias_and_a_condition_do_not_hide_it() {
        check_python(
            "
import sys
import torch.nn as tnn
net = tnn.Linear(2, 2)
if len(sys.argv) > 1:
    net = tnn.DataParallel(net, device_ids=[0, 1]).cuda()  # ~ data-parallel-in-use
for _ in range(2):
    net(1)
",
        );
    }

    #[test]
    fn a_wrap_in_a_helper_of_another_file_counts() {
        check_files(&[
            (
                "parallel.py",
                "
from torch import nn
class Spread:
    def __init__(self, gpus):
        self.gpus = gpus
    def __call__(self, net):
        return nn.DataParallel(net, self.gpus) if self.gpus else net  # ~ data-parallel-in-use
",
            ),
            (
                "main.py",
                "
import torch
from parallel import Spread
spread = Spread([0, 1])
net = spread(torch.nn.Linear(3, 3).cuda())
net(torch.randn(4, 3).cuda()).sum().backward()
",
            ),
        ]);
    }

    #[test]
    fn the_wrapper_of_several_processes_is_silent() {
        check_python(
            "
import torch
from torch.nn.parallel import DistributedDataParallel as DataParallel
torch.distributed.init_process_group('gloo')
net = DataParallel(torch.nn.Linear(3, 3))
net(torch.randn(4, 3)).sum().backward()
",
        );
    }
}
