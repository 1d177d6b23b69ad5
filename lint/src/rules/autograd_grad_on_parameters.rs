use crate::analysis::facts::Wrapper;
use crate::analysis::{Call, Event, EventKind, Given, Term, TermKind, Value, Via};
use crate::prelude::*;
use crate::table::Role;

declare_rule! {
    /// Gradients of a wrapped model's parameters are taken with `autograd.grad`.
    ///
    /// `DistributedDataParallel` reduces gradients in hooks that only `backward()` runs. What
    /// `torch.autograd.grad` gives is the gradient of this rank's batch alone (measured); an
    /// update made of it differs between the ranks, silently.
    ///
    /// ```python bad
    /// import torch
    /// import torch.nn as nn
    /// from torch.nn.parallel import DistributedDataParallel as DDP
    ///
    /// model = DDP(nn.Linear(8, 1))
    /// for x in []:
    ///     loss = model(x).sum()
    ///     grads = torch.autograd.grad(loss, model.parameters())  # ~ autograd-grad-on-parameters
    ///     for p, g in zip(model.parameters(), grads):
    ///         p.data -= 0.1 * g
    /// ```
    /// ```python good
    /// import torch
    /// import torch.nn as nn
    /// from torch.nn.parallel import DistributedDataParallel as DDP
    ///
    /// model = DDP(nn.Linear(8, 1))
    /// for x in []:
    ///     model(x).sum().backward()
    ///     for p in model.parameters():
    ///         p.data -= 0.1 * p.grad
    /// ```
    ///
    /// # Known limits
    /// Gradients that go on into a loss (`create_graph=True`), or into a collective, are silent.
    pub static RULE = {
        name: "autograd-grad-on-parameters",
        level: Level::Error,
        harm: Harm::Wrong,
        tier: 3,
        languages: PYTHON,
        fix: FixKind::No,
        check,
    };
}

fn check(program: &Program<'_>, report: &mut Report<'_>) {
    for (event, call) in program.calls(Role::AutogradGrad) {
        let Some(outputs) = call.value_at(0, "outputs") else { continue };
        let Some(inputs) = call.value_at(1, "inputs") else { continue };
        let through =
            outputs.origins(program.terms()).into_iter().find_map(|origin| {
                match &program.event(origin).kind {
                    EventKind::Forward(forward) => match forward.via {
                        Via::Wrapper(id) if program.wrapper_kind(id) == Some(Wrapper::Ddp) => {
                            Some(id)
                        }
                        _ => None,
                    },
                    _ => None,
                }
            });
        let Some(wrapper) = through else { continue };
        if !are_parameters(program, inputs) || goes_on(program, event, call) {
            continue;
        }
        report
            .at(event.site, "these gradients are those of this rank's batch alone")
            .why(
                "`DistributedDataParallel` reduces gradients in hooks of `backward()`; \
                 `autograd.grad` runs none of them, and the ranks drift apart without an error",
            )
            .help(
                "call `loss.backward()` and read `p.grad`, or reduce them by hand: \
                 `dist.all_reduce(g)`, divided by the world size",
            )
            .related(program.object(wrapper).site, "the model is wrapped here");
    }
}

/// Parameters of a module, as a list or one by one.
fn are_parameters(program: &Program<'_>, inputs: &Value) -> bool {
    let is_one = |t: Term| match program.terms().kind(t) {
        TermKind::Attribute(of, name) => {
            program.is_module(*of) && matches!(&**name, "weight" | "bias")
        }
        _ => program.object_of(t).is_some_and(|o| o.role == Role::Parameter),
    };
    !program.modules_behind(inputs).is_empty()
        || inputs
            .terms()
            .any(|t| is_one(t) || program.contents(t).iter().flat_map(Value::terms).any(is_one))
}

/// The gradients are part of a graph again, or the ranks share them.
fn goes_on(program: &Program<'_>, event: &Event<'_>, call: &Call<'_>) -> bool {
    let keeps_graph = match call.argument("create_graph") {
        Given::Known(argument) => program.as_bool(&argument.value) != Some(false),
        given => !given.is_absent(),
    };
    keeps_graph
        || program
            .calls(Role::Collective)
            .any(|(later, _)| later.id > event.id && later.modes.forward.is_none())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_update_by_hand_in_another_file_counts() {
        check_files(&[
            (
                "update.py",
                "
from torch.autograd import grad
def sgd(net, loss, lr):
    params = [p for p in net.parameters() if p.requires_grad]
    for p, g in zip(params, grad(loss, params)):  # ~ autograd-grad-on-parameters
        p.data.sub_(lr * g)
",
            ),
            (
                "main.py",
                "
import torch
from update import sgd
def run(rank):
    torch.distributed.init_process_group('nccl', rank=rank)
    net = torch.nn.Linear(2, 2).to(rank)
    net = torch.nn.parallel.DistributedDataParallel(net, device_ids=[rank])
    for x in []:
        sgd(net, net(x).pow(2).mean(), 0.1)
if __name__ == '__main__':
    torch.multiprocessing.spawn(run, nprocs=2)
",
            ),
        ]);
    }

    #[test]
    fn single_weights_count() {
        check_python(
            "
import torch
class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.last = torch.nn.Linear(2, 2)
        self.scale = torch.nn.Parameter(torch.ones(1))
    def forward(self, x):
        return self.last(x) * self.scale
torch.distributed.init_process_group('gloo')
net = Net()
ddp = torch.nn.parallel.DistributedDataParallel(net)
for x in []:
    loss = ddp(x).sum()
    a = torch.autograd.grad(loss, net.last.weight, retain_graph=True)  # ~ autograd-grad-on-parameters
    b = torch.autograd.grad(loss, [net.scale])  # ~ autograd-grad-on-parameters
",
        );
    }

    #[test]
    fn gradients_of_inputs_are_silent() {
        check_python(
            "
import torch
torch.distributed.init_process_group('gloo')
ddp = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(2, 2))
for x in []:
    x.requires_grad_(True)
    y = ddp(x).sum()
    g, = torch.autograd.grad(y, x, create_graph=True)
    h, = torch.autograd.grad(outputs=y, inputs=[x])
    (y + g.norm()).backward()
",
        );
    }

    #[test]
    fn a_penalty_on_gradients_is_silent() {
        check_python(
            "
import torch
torch.distributed.init_process_group('gloo')
ddp = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(2, 2))
for x in []:
    y = ddp(x).sum()
    gs = torch.autograd.grad(y, list(ddp.parameters()), create_graph=True)
    (y + sum(g.norm() for g in gs)).backward()
",
        );
    }

    #[test]
    fn gradients_reduced_by_hand_are_silent() {
        check_python(
            "
import torch
import torch.distributed as dist
dist.init_process_group('gloo')
ddp = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(2, 2))
for x in []:
    gs = torch.autograd.grad(ddp(x).sum(), list(ddp.parameters()))
    for g in gs:
        dist.all_reduce(g)
",
        );
    }

    #[test]
    fn a_bare_model_is_silent() {
        check_python(
            "
import torch
torch.distributed.init_process_group('gloo')
net = torch.nn.Linear(2, 2)
other = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(2, 2))
for x in []:
    gs = torch.autograd.grad(net(x).sum(), list(net.parameters()))
    other(x).sum().backward()
",
        );
    }

    #[test]
    fn a_measure_of_two_losses_in_another_file_counts() {
        check_files(&[
            (
                "balance.py",
                "
from torch.autograd import grad
def weight_of(first, second, net):
    last = list(net.parameters())[-1]
    a = grad(first, last, retain_graph=True)[0]  # ~ autograd-grad-on-parameters
    b = grad(second, last, retain_graph=True)[0]  # ~ autograd-grad-on-parameters
    return a.norm() / (b.norm() + 1e-4)
",
            ),
            (
                "main.py",
                r#"
import torch
from torch.nn.parallel import DistributedDataParallel as DDP
from balance import weight_of
def main():
    torch.distributed.init_process_group("nccl")
    net = DDP(torch.nn.Linear(4, 2).cuda())
    opt = torch.optim.SGD(net.parameters(), lr=0.1)
    for _ in range(10):
        y = net(torch.randn(8, 4).cuda())
        first, second = y.square().mean(), y.abs().mean()
        (first + weight_of(first, second, net) * second).backward()
        opt.step()
if __name__ == "__main__":
    main()
"#,
            ),
        ]);
    }
}
