use crate::analysis::facts::Wrapper;
use crate::analysis::{Call, Event, EventKind, Term, TermKind, Value, Via};
use crate::model::{BinaryOp, ExprKind};
use crate::prelude::*;
use crate::table::Role;

declare_rule! {
    /// A loss is summed over the batch, and the wrapper averages gradients over the ranks.
    ///
    /// `DistributedDataParallel` divides by the number of ranks. With a mean in each rank that
    /// gives the mean over all samples; with a sum it gives the sum over all samples divided by
    /// the number of ranks: the gradient is that many times smaller than one process would have
    /// (measured).
    ///
    /// ```python bad
    /// import torch
    /// import torch.distributed as dist
    /// import torch.nn as nn
    /// from torch.nn.parallel import DistributedDataParallel as DDP
    ///
    /// dist.init_process_group("gloo")
    /// model = DDP(nn.Linear(8, 1))
    /// criterion = nn.MSELoss(reduction="sum")
    /// loss = criterion(model(torch.ones(2, 8)), torch.ones(2, 1))
    /// loss.backward()  # ~ summed-loss-scale
    /// ```
    /// ```python good
    /// import torch
    /// import torch.distributed as dist
    /// import torch.nn as nn
    /// from torch.nn.parallel import DistributedDataParallel as DDP
    ///
    /// dist.init_process_group("gloo")
    /// model = DDP(nn.Linear(8, 1))
    /// criterion = nn.MSELoss(reduction="sum")
    /// loss = criterion(model(torch.ones(2, 8)), torch.ones(2, 1))
    /// (loss * dist.get_world_size()).backward()
    /// ```
    /// ```rust bad
    /// use tch::nn::{self, Module};
    /// use tch::{Reduction, Tensor};
    /// use tch_ddp::Ddp;
    ///
    /// fn step(ddp: &Ddp<nn::Linear>, opt: &mut nn::Optimizer, x: &Tensor) -> anyhow::Result<()> {
    ///     let loss = ddp.run(|m| m.forward(x))?.mse_loss(x, Reduction::Sum);
    ///     ddp.backward_step(opt, &loss)?; //~ summed-loss-scale
    ///     Ok(())
    /// }
    /// ```
    /// ```rust good
    /// use tch::nn::{self, Module};
    /// use tch::{Reduction, Tensor};
    /// use tch_ddp::Ddp;
    ///
    /// fn step(ddp: &Ddp<nn::Linear>, opt: &mut nn::Optimizer, x: &Tensor) -> anyhow::Result<()> {
    ///     let loss = ddp.run(|m| m.forward(x))?.mse_loss(x, Reduction::Mean);
    ///     ddp.backward_step(opt, &loss)?;
    ///     Ok(())
    /// }
    /// ```
    ///
    /// # Known limits
    /// A loss that is divided or multiplied by anything is silent: sums that are divided by a
    /// number of tokens are another matter.
    pub static RULE = {
        name: "summed-loss-scale",
        level: Level::Advice,
        harm: Harm::Wrong,
        tier: 3,
        languages: BOTH,
        fix: FixKind::No,
        check,
    };
}

fn check(program: &Program<'_>, report: &mut Report<'_>) {
    let is_tch = program.language == Language::Rust;
    let fused = program.calls(Role::FusedStep).filter(|_| is_tch);
    for (event, call) in program.calls(Role::Backward).chain(fused) {
        let Some(loss) = loss_of(program, call) else { continue };
        if !comes_from_wrapper(program, loss) {
            continue;
        }
        let made = if is_tch { summed_by_tch(program, loss) } else { summed(program, loss) };
        let Some((made, _)) = made else { continue };
        report
            .at(event.site, "this loss is a sum, and the wrapper averages gradients over the ranks")
            .why(
                "with n ranks the gradient is n times smaller than that of one process on all \
                  samples",
            )
            .help(if is_tch {
                "use the mean, or multiply the loss by `group.world_size() as f64`"
            } else {
                "use the mean, or multiply the loss by `dist.get_world_size()`"
            })
            .related(made.site, "summed here");
    }
}

/// The loss that gradients are taken of; of a loss that the runtime weights, nothing.
fn loss_of(program: &Program<'_>, call: &Call<'_>) -> Option<Term> {
    if program.language == Language::Python {
        return call.receiver.as_ref()?.single();
    }
    let weights = call.receiver.as_ref().and_then(|r| program.object_in(r)).is_some_and(|object| {
        program.outside_class(object).is_some_and(|name| name.ends_with("Weighted"))
    });
    let given = call.argument("loss").known().map(|a| &a.value);
    given.or(call.receiver.as_ref()).filter(|_| !weights)?.single()
}

fn comes_from_wrapper(program: &Program<'_>, loss: Term) -> bool {
    program.terms().origins(loss).iter().any(|&origin| {
        matches!(&program.event(origin).kind, EventKind::Forward(forward)
            if matches!(forward.via, Via::Wrapper(id)
                if program.wrapper_kind(id) == Some(Wrapper::Ddp)))
    })
}

/// The call that sums, if the loss is what it gave and nothing else.
fn summed<'e, 'p>(program: &'e Program<'p>, loss: Term) -> Option<(&'e Event<'p>, &'e Call<'p>)> {
    if let TermKind::Apply(name, parts) = program.terms().kind(loss) {
        // `criterion(..).sum()` of a loss for each sample.
        let (made, call) = program.maker(*parts.first()?)?;
        let each = call.role == Role::Loss && reduction(program, call).as_deref() == Some("none");
        return (name.ends_with(".sum") && parts.len() == 1 && each).then_some((made, call));
    }
    let (event, call) = program.maker(loss)?;
    match call.role {
        Role::ScaleLoss => summed(program, call.value_at(0, "outputs")?.single()?),
        Role::Loss => (reduction(program, call)? == "sum").then_some((event, call)),
        _ => None,
    }
}

/// As `summed`, of tch: a loss that is told to sum, the sum of one for each sample, the sum of
/// squares or absolute values, and several of them added.
fn summed_by_tch<'e, 'p>(
    program: &'e Program<'p>,
    loss: Term,
) -> Option<(&'e Event<'p>, &'e Call<'p>)> {
    if let Some((BinaryOp::Add, left, right)) = program.arithmetic_of(loss) {
        let first = summed_by_tch(program, left)?;
        return summed_by_tch(program, right).map(|_| first);
    }
    let (event, call) = program.maker(loss)?;
    let receiver = call.receiver.as_ref().and_then(Value::single);
    match call.role {
        Role::Loss => is_told(program, call, "Sum").then_some((event, call)),
        Role::Reduce => {
            let sums = call.name.is_some_and(|name| name.ends_with(".sum"));
            let of_each = receiver
                .and_then(|term| program.maker(term))
                .is_some_and(|(_, made)| made.role == Role::Loss && is_told(program, made, "None"));
            (sums && (of_each || sums_pointwise(event))).then_some((event, call))
        }
        Role::ChangeKind | Role::Passthrough => summed_by_tch(program, receiver?),
        _ => None,
    }
}

/// `Reduction::Sum`.
fn is_told(program: &Program<'_>, call: &Call<'_>, reduction: &str) -> bool {
    let told = call.argument("reduction").known().and_then(|a| a.value.single());
    told.is_some_and(|told| {
        matches!(program.terms().kind(told), TermKind::Outside(name) | TermKind::Apply(name, _)
            if name.ends_with(&format!("Reduction.{reduction}")))
    })
}

/// `(out - y).square().sum(..)`.
fn sums_pointwise(event: &Event<'_>) -> bool {
    let Some(ExprKind::Call { callee, .. }) = event.expr.map(|e| &e.kind) else { return false };
    let ExprKind::Attribute { value, .. } = &callee.kind else { return false };
    let ExprKind::Call { callee, .. } = &value.kind else { return false };
    callee
        .last_name()
        .is_some_and(|name| matches!(&*name, "square" | "abs" | "pow" | "pow_tensor_scalar"))
}

/// What a loss function, or the object that is one, is told of its reduction.
fn reduction(program: &Program<'_>, call: &Call<'_>) -> Option<String> {
    let terms = program.terms();
    let object = call.receiver.as_ref().and_then(|r| program.object_in(r));
    let arguments = object.map_or(&call.arguments, |object| &object.arguments);
    let named = |name: &str| arguments.iter().find(|a| a.name.is_some_and(|n| &*n == name));
    if let Some(average) = named("size_average")
        && average.value.single() == Some(terms.no)
    {
        return Some("sum".to_owned());
    }
    let given = named("reduction")?.value.single()?;
    terms.as_str(given).map(|text| text.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_loss_of_another_file_counts() {
        check_files(&[
            (
                "losses.py",
                "
import torch.nn.functional as F
def likelihood(output, target):
    return F.nll_loss(output, target, reduction='sum')
",
            ),
            (
                "main.py",
                "
import torch
from losses import likelihood
torch.distributed.init_process_group('gloo')
net = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(2, 2))
for x, y in [(torch.ones(2, 2), torch.ones(2))]:
    loss = likelihood(net(x), y)
    loss.backward()  # ~ summed-loss-scale
",
            ),
        ]);
    }

    #[test]
    fn scaled_and_older_spellings_count() {
        check_python(
            "
import torch
torch.distributed.init_process_group('gloo')
class Step:
    def __init__(self, net):
        self.net = torch.nn.parallel.DistributedDataParallel(net)
        self.scaler = torch.cuda.amp.GradScaler()
        self.old = torch.nn.MSELoss(size_average=False)
        self.each = torch.nn.L1Loss(reduction='none')
    def a(self, x):
        self.scaler.scale(self.old(self.net(x), x)).backward()  # ~ summed-loss-scale
    def b(self, x):
        self.each(self.net(x), x).sum().backward()  # ~ summed-loss-scale
step = Step(torch.nn.Linear(2, 2))
for _ in range(3):
    step.a(torch.ones(2))
    step.b(torch.ones(2))
",
        );
    }

    #[test]
    fn means_are_silent() {
        check_python(
            "
import torch
torch.distributed.init_process_group('gloo')
net = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(2, 2))
for _ in range(3):
    out = net(torch.ones(2, 2))
    torch.nn.functional.mse_loss(out, torch.ones(2, 2)).backward()
    torch.nn.MSELoss(reduction='mean')(out, torch.ones(2, 2)).backward()
    torch.nn.MSELoss(reduction='none')(out, torch.ones(2, 2)).mean().backward()
",
        );
    }

    #[test]
    fn a_factor_is_silent() {
        check_files(&[
            (
                "step.py",
                "
import torch.nn as nn
def run(net, x, n_tokens):
    loss = nn.CrossEntropyLoss(reduction='sum')(net(x), x)
    (loss / n_tokens).backward()
",
            ),
            (
                "main.py",
                "
import torch
import torch.distributed as dist
from step import run
dist.init_process_group('gloo')
net = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(2, 2))
for _ in range(3):
    run(net, torch.ones(2), 7)
    loss = torch.nn.MSELoss(reduction='sum')(net(torch.ones(2)), torch.ones(2))
    (dist.get_world_size() * loss).backward()
",
            ),
        ]);
    }

    #[test]
    fn one_process_is_silent() {
        check_python(
            "
import torch
net = torch.nn.DataParallel(torch.nn.Linear(2, 2))
for _ in range(3):
    torch.nn.MSELoss(reduction='sum')(net(torch.ones(2)), torch.ones(2)).backward()
",
        );
    }

    #[test]
    fn a_loss_beside_the_wrapper_is_silent() {
        check_python(
            "
import torch
torch.distributed.init_process_group('gloo')
net = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(2, 2))
own = torch.nn.Linear(2, 2)
for _ in range(3):
    net(torch.ones(2)).mean().backward()
    torch.nn.MSELoss(reduction='sum')(own(torch.ones(2)), torch.ones(2)).backward()
",
        );
    }
}
