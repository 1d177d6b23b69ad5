use crate::analysis::Via;
use crate::analysis::facts::Wrapper;
use crate::prelude::*;

declare_rule! {
    /// A training step calls the module inside the wrapper instead of the wrapper.
    ///
    /// `DistributedDataParallel` prepares the reduction of gradients in its own forward. A
    /// forward through `.module` goes around it: each rank steps with its own gradients, the
    /// replicas drift apart, and no message says so (measured on torch 2.13: no error, no
    /// reduction). Under `DataParallel` the inputs are not scattered: only the first GPU works.
    ///
    /// ```python bad
    /// import torch.nn as nn
    /// from torch.nn.parallel import DistributedDataParallel as DDP
    ///
    /// ddp = DDP(nn.Linear(8, 1))
    /// for x in range(10):
    ///     ddp.module(x).sum().backward()  # ~ forward-bypasses-wrapper
    /// ```
    /// ```python good
    /// import torch.nn as nn
    /// from torch.nn.parallel import DistributedDataParallel as DDP
    ///
    /// ddp = DDP(nn.Linear(8, 1))
    /// for x in range(10):
    ///     ddp(x).sum().backward()
    /// ```
    /// ```rust bad
    /// fn train(net: Net, vs: nn::VarStore, group: &tch_ddp::ProcessGroup, x: &tch::Tensor) {
    ///     let ddp = tch_ddp::Ddp::new(net, vs, group, Default::default()).unwrap();
    ///     let loss = ddp.module().forward(x); //~ forward-bypasses-wrapper
    ///     ddp.backward(&loss).unwrap();
    /// }
    /// ```
    /// ```rust good
    /// fn train(net: Net, vs: nn::VarStore, group: &tch_ddp::ProcessGroup, x: &tch::Tensor) {
    ///     let ddp = tch_ddp::Ddp::new(net, vs, group, Default::default()).unwrap();
    ///     let loss = ddp.run(|m| m.forward(x)).unwrap();
    ///     ddp.backward(&loss).unwrap();
    /// }
    /// ```
    ///
    /// # Known limits
    /// Only wrappers that the program is seen to make are known. Under `no_grad`, `.module` is
    /// the recommended form and stays silent, and so does a method that only works on outputs
    /// of the wrapper's own forward.
    pub static RULE = {
        name: "forward-bypasses-wrapper",
        level: Level::Error,
        harm: Harm::Wrong,
        tier: 1,
        languages: BOTH,
        fix: FixKind::No,
        check,
    };
}

fn check(program: &Program<'_>, report: &mut Report<'_>) {
    let trained = program.trained();
    for (event, forward) in program.forwards() {
        let Via::Inner(wrapper) = forward.via else { continue };
        let Some(kind) = program.wrapper_kind(wrapper) else { continue };
        // A wrapper class of the project's own may reach into itself.
        let inside = program.frame(event.frame).receiver == Some(program.term_of(wrapper));
        if inside || !event.modes.grad || !trained.contains(&event.id) {
            continue;
        }
        let finishes_forward = forward.arguments.iter().any(|argument| {
            argument.value.origins(program.terms()).iter().any(|&origin| {
                program.forwards().any(|(e, f)| e.id == origin && f.via == Via::Wrapper(wrapper))
            })
        });
        if finishes_forward {
            continue;
        }
        let called = program.callee_text(event).unwrap_or("the inner module");
        let draft = report.at(event.site, format!("`{called}` goes around the wrapper"));
        match kind {
            Wrapper::Ddp => draft
                .why("the gradients of this forward are never reduced: each rank trains alone")
                .help(
                    "call the wrapper itself, and let the module's forward choose what to compute",
                ),
            Wrapper::Dp => draft
                .harm(Harm::Waste)
                .why("the input is not scattered: only the first GPU works")
                .help("call the wrapper itself, and let the module's forward do the work"),
        }
        .related(program.object(wrapper).site, "wrapped here");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_method_of_the_inner_module_counts() {
        check_python(
            r#"
import torch, torch.nn as nn
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

class Flow(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Linear(4, 4)
    def forward(self, x):
        return self.net(x)
    def log_prob(self, x):
        return -self.net(x).pow(2).sum(1)

dist.init_process_group("nccl")
flow = DistributedDataParallel(Flow().cuda())
opt = torch.optim.Adam(flow.parameters())
for step in range(100):
    x = torch.randn(4, 4).cuda()
    nll = -flow.module.log_prob(x).mean()  # ~ forward-bypasses-wrapper: flow.module.log_prob
    nll.backward()
    opt.step()
"#,
        );
    }

    #[test]
    fn an_alias_made_in_a_trainer_counts() {
        check_files(&[
            (
                "trainer.py",
                r"
class Trainer:
    def __init__(self, model, optimizer):
        self.wrapped = model
        self.core = model.module
        self.optimizer = optimizer

    def step(self, batch, target):
        prediction = self.core(batch)  # ~ forward-bypasses-wrapper
        loss = (prediction - target).abs().mean()
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
",
            ),
            (
                "main.py",
                r#"
import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel as Wrap
from trainer import Trainer

def main(loader):
    torch.distributed.init_process_group("gloo")
    model = Wrap(nn.Linear(2, 2))
    trainer = Trainer(model, torch.optim.SGD(model.parameters(), lr=0.1))
    for x, y in loader:
        trainer.step(x, y)

if __name__ == "__main__":
    main([])
"#,
            ),
        ]);
    }

    #[test]
    fn a_rust_trainer_that_goes_through_module_counts() {
        check_rust(
            r"
use tch::nn::ModuleT;
struct Learner { ddp: tch_ddp::Ddp<tch::nn::SequentialT>, opt: tch::nn::Optimizer }
impl Learner {
    fn learn(&mut self, x: &tch::Tensor, y: &tch::Tensor) -> anyhow::Result<()> {
        let inner = self.ddp.module();
        let loss = inner.forward_t(x, true).mse_loss(y, tch::Reduction::Mean); //~ forward-bypasses-wrapper
        self.ddp.backward_step(&mut self.opt, &loss)?;
        Ok(())
    }
}
fn main() -> anyhow::Result<()> {
    let group = tch_ddp::ProcessGroup::init(&tch_ddp::Launch::from_env()?, Default::default())?;
    let vs = tch::nn::VarStore::new(group.device());
    let net = tch::nn::seq_t();
    let ddp = tch_ddp::Ddp::new(net, vs, &group, Default::default())?;
    let opt = tch::nn::Adam::default().build(ddp.vars(), 1e-3)?;
    let mut learner = Learner { ddp, opt };
    learner.learn(&tch::Tensor::new(), &tch::Tensor::new())
}
",
        );
    }

    #[test]
    fn data_parallel_with_a_custom_step_counts() {
        check_python(
            r"
import torch
net = torch.nn.DataParallel(torch.nn.Linear(3, 3)).cuda()
opt = torch.optim.SGD(net.parameters(), 0.1)
for _ in range(3):
    out = net.module.forward(torch.rand(2, 3))  # ~ forward-bypasses-wrapper
    out.mean().backward()
    opt.step()
",
        );
    }

    #[test]
    fn evaluation_without_gradients_is_silent() {
        check_python(
            r#"
import torch
from torch.nn.parallel import DistributedDataParallel as DDP
torch.distributed.init_process_group("nccl")
model = DDP(torch.nn.Linear(3, 3).cuda())

@torch.no_grad()
def evaluate(loader):
    total = 0.0
    for x, y in loader:
        total += (model.module(x) - y).pow(2).mean().item()
    return total

for epoch in range(3):
    loss = model(torch.rand(2, 3)).mean()
    loss.backward()
    print(evaluate([]))
"#,
        );
    }

    #[test]
    fn a_loss_of_the_wrappers_output_is_silent() {
        check_python(
            r#"
import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

class Tagger(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(3, 3)
    def forward(self, x):
        return self.fc(x)
    def loss(self, out, y):
        return (out - y).pow(2).mean()

torch.distributed.init_process_group("nccl")
tagger = DDP(Tagger().cuda())
for x, y in []:
    out = tagger(x)
    tagger.module.loss(out, y).backward()
"#,
        );
    }
}
