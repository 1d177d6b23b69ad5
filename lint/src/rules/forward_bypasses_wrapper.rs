use crate::analysis::facts::Wrapper;
use crate::analysis::{Event, Forward, ObjectId, TermKind, Value, Via};
use crate::model::{ExprKind, Stmt, StmtKind};
use crate::prelude::*;
use crate::table::Role;

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
        if finishes_forward || gives_no_gradient(program, event, forward) {
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
    parts_alone(program, report);
}

/// A method that only hands out what the module holds, or a result that is cut off at once.
fn gives_no_gradient(program: &Program<'_>, event: &Event<'_>, forward: &Forward<'_>) -> bool {
    if program.language != Language::Python {
        return false;
    }
    let file = program.project().file(event.site.file);
    let after = file.text[event.site.span.end as usize..].trim_start();
    let cuts = [".argmax(", ".detach(", ".item(", ".tolist(", ".data", ".multinomial("];
    if cuts.iter().any(|cut| after.starts_with(cut)) {
        return true;
    }
    let Some(name) = forward.method else { return false };
    let wrapped = match forward.via {
        Via::Inner(wrapper) => program.wrapped_module(wrapper).and_then(Value::single),
        _ => None,
    };
    let class = wrapped.and_then(|t| program.object_of(t)).and_then(|o| program.class_of(o));
    let method = class.and_then(|class| program.class_member(class, &name));
    let Some(TermKind::Function { function, .. }) = method.map(|t| program.terms().kind(t)) else {
        return false;
    };
    let body = &program.function(*function).body;
    body.iter().all(|s| only_hands_out(s) || records_nothing(s))
}

/// `return self.head.weight`, `return getattr(self.layers[-1], "weight")`, or a docstring.
fn only_hands_out(statement: &Stmt) -> bool {
    let computes = |kind: &ExprKind| match kind {
        ExprKind::Call { callee, .. } => !matches!(callee.last_name(), Some(n) if &*n == "getattr"),
        ExprKind::Binary { .. } | ExprKind::Unary { .. } | ExprKind::Await(_) => true,
        _ => false,
    };
    match &statement.kind {
        StmtKind::Return(Some(value)) | StmtKind::Expr(value) => {
            !value.holds(&mut |e| computes(&e.kind))
        }
        StmtKind::Return(None) | StmtKind::Pass => true,
        _ => false,
    }
}

/// `with torch.no_grad():`
fn records_nothing(statement: &Stmt) -> bool {
    match &statement.kind {
        StmtKind::With { items, .. } => items.iter().any(|item| {
            item.context.holds(&mut |e| {
                matches!(e.last_name(), Some(n) if matches!(&*n, "no_grad" | "inference_mode"))
            })
        }),
        _ => false,
    }
}

/// A part of the wrapped module is trained by itself: no forward of the wrapper is in the graph.
fn parts_alone(program: &Program<'_>, report: &mut Report<'_>) {
    for (wrapper, parts) in program.wrapped_models(Wrapper::Ddp) {
        let made = program.object(wrapper).event;
        for (event, forward) in program.forwards() {
            let is_part = forward.via == Via::Bare
                && event.modes.wrapper.is_none()
                && event.modes.grad
                && made.is_some_and(|made| made < event.id)
                && parts.contains(&forward.module)
                && program.has_parameters(forward.module)
                && !program.may_be_frozen(forward.module);
            if !is_part || !is_reached_through(program, event, wrapper) {
                continue;
            }
            let alone = program.calls(Role::Backward).any(|(_, call)| {
                let values = call.receiver.iter().chain(call.arguments.iter().map(|a| &a.value));
                let forwards: Vec<_> =
                    values.flat_map(|value| program.forwards_behind(value)).collect();
                let by_wrapper = |&id: &_| match &program.event(id).kind {
                    crate::analysis::EventKind::Forward(f) => f.via == Via::Wrapper(wrapper),
                    _ => false,
                };
                forwards.contains(&event.id) && !forwards.iter().any(by_wrapper)
            });
            if !alone {
                continue;
            }
            let called = program.callee_text(event).unwrap_or("a part of the module");
            report
                .at(event.site, format!("`{called}` goes around the wrapper"))
                .why("the gradients of this forward are never reduced: each rank trains alone")
                .help(
                    "call the wrapper itself, and let the module's forward choose what to compute",
                )
                .related(program.object(wrapper).site, "wrapped here");
        }
    }
}

/// `ddp.module.encoder(x)`, or by a name that was set so.
fn is_reached_through(program: &Program<'_>, event: &Event<'_>, wrapper: ObjectId) -> bool {
    let is_inner = |text: &str| text.contains(".module.");
    if program.callee_text(event).is_some_and(is_inner) {
        return true;
    }
    let Some(name) = program.callee_text(event) else { return false };
    let made = program.object(wrapper).site;
    let file = program.project().file(event.site.file);
    made.file == event.site.file
        && file.text.lines().any(|line| {
            let value = line.trim_start().strip_prefix(name).and_then(|rest| {
                rest.trim_start().strip_prefix('=').filter(|rest| !rest.starts_with('='))
            });
            value.is_some_and(is_inner)
        })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rule::testing::{ACTOR_CRITIC, PPO};

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

    #[test]
    fn a_helper_that_unwraps_counts() {
        check_files(&[
            (
                "dist_utils.py",
                "
from torch.nn import DataParallel
from torch.nn.parallel import DistributedDataParallel
def unwrap(m):
    if isinstance(m, (DataParallel, DistributedDataParallel)):
        return m.module
    return m
",
            ),
            (
                "losses.py",
                "
from dist_utils import unwrap
def diffusion_loss(model, x, t):
    net = unwrap(model)
    eps = net(x + t)  # ~ forward-bypasses-wrapper
    return (eps - x).square().mean()
",
            ),
            (
                "train.py",
                r#"
import os
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP
from losses import diffusion_loss
def main():
    dist.init_process_group("nccl")
    local_rank = int(os.environ["LOCAL_RANK"])
    torch.cuda.set_device(local_rank)
    torch.manual_seed(1234 + dist.get_rank())
    model = DDP(torch.nn.Linear(16, 16).cuda(), device_ids=[local_rank])
    opt = torch.optim.Adam(model.parameters())
    for step in range(100):
        loss = diffusion_loss(model, torch.randn(4, 16).cuda(), torch.rand(4, 1).cuda())
        opt.zero_grad(set_to_none=True)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        opt.step()
if __name__ == "__main__":
    main()
"#,
            ),
        ]);
    }

    #[test]
    fn a_part_trained_by_itself_counts() {
        check_python(
            r#"
import os
import torch
import torch.nn as nn
import torch.distributed as dist
class Pix2Pix(nn.Module):
    def __init__(self):
        super().__init__()
        self.netG = nn.Conv2d(3, 3, 3, padding=1)
        self.netD = nn.Conv2d(3, 1, 3, padding=1)
    def forward(self, x):
        fake = self.netG(x)
        return fake, self.netD(fake)
def main():
    dist.init_process_group("nccl")
    g = int(os.environ["LOCAL_RANK"])
    torch.cuda.set_device(g)
    torch.manual_seed(g)
    m = nn.parallel.DistributedDataParallel(Pix2Pix().cuda(g), device_ids=[g])
    opt = torch.optim.Adam(m.module.netG.parameters(), lr=2e-4)
    for _ in range(20):
        img = torch.rand(2, 3, 32, 32).cuda(g)
        fake = m.module.netG(img)  # ~ forward-bypasses-wrapper
        loss = (fake - img).abs().mean()
        opt.zero_grad()
        loss.backward()
        opt.step()
if __name__ == "__main__":
    main()
"#,
        );
    }

    #[test]
    fn a_method_that_hands_out_a_weight_is_silent() {
        check_python(
            r#"
import argparse
import torch
import torch.nn as nn
import torch.multiprocessing as mp
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP
class VAE(nn.Module):
    def __init__(self):
        super().__init__()
        self.down = nn.Conv2d(3, 8, 3, padding=1)
        self.conv_out = nn.Conv2d(8, 3, 3, padding=1)
    def get_last_layer(self):
        return self.conv_out.weight
    def forward(self, x):
        return self.conv_out(self.down(x).relu())
def worker(rank, world, args):
    dist.init_process_group("nccl", world_size=world, rank=rank)
    torch.cuda.set_device(rank)
    torch.manual_seed(rank)
    vae = VAE().cuda(rank)
    vae = DDP(vae, device_ids=[rank])
    opt = torch.optim.Adam(vae.parameters(), lr=args.lr)
    for step in range(args.steps):
        img = torch.rand(4, 3, 64, 64, device=rank)
        rec = vae(img)
        nll = (rec - img).abs().mean()
        last = vae.module.get_last_layer()
        weight = 1.0 / (last.detach().norm() + 1e-4)
        loss = weight * nll
        opt.zero_grad()
        loss.backward()
        opt.step()
    dist.destroy_process_group()
if __name__ == "__main__":
    ap = argparse.ArgumentParser()
    ap.add_argument("--lr", type=float, default=1e-4)
    ap.add_argument("--steps", type=int, default=1000)
    a = ap.parse_args()
    n = torch.cuda.device_count()
    mp.spawn(worker, nprocs=n, args=(n, a), join=True)
"#,
        );
    }

    #[test]
    fn a_method_that_records_no_gradient_is_silent() {
        check_files(&[
            ("agent.py", ACTOR_CRITIC),
            ("ppo.py", PPO),
            (
                "rollout.py",
                "
import torch
def collect(policy, env, horizon, device):
    obs, batch = env.reset(), []
    for _ in range(horizon):
        t = torch.as_tensor(obs, device=device).float()
        action, value = policy.module.act(t)
        obs, reward, done, _ = env.step(action.item())
        batch.append((t, action, reward, value))
        if done:
            obs = env.reset()
    return batch
",
            ),
        ]);
    }
}
