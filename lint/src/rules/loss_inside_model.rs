use crate::analysis::facts::Wrapper;
use crate::analysis::{Event, EventId, ObjectId, Value, Via};
use crate::prelude::*;
use crate::table::Role;

declare_rule! {
    /// The loss is computed inside the wrapped model.
    ///
    /// Under `DataParallel` each replica returns its own loss, and the gathered loss is a
    /// vector with one element per device: `backward()` fails with `grad can be implicitly
    /// created only for scalar outputs`. Under `DistributedDataParallel` it is legal; outside
    /// the model it is easier to weight, log and replace (advice).
    ///
    /// ```python bad
    /// import torch.nn as nn
    ///
    ///
    /// class Net(nn.Module):
    ///     def __init__(self):
    ///         super().__init__()
    ///         self.fc = nn.Linear(8, 8)
    ///         self.criterion = nn.CrossEntropyLoss()
    ///
    ///     def forward(self, x, y):
    ///         return self.criterion(self.fc(x), y)
    ///
    ///
    /// model = nn.DataParallel(Net())
    /// for x, y in []:
    ///     loss = model(x, y)
    ///     loss.backward()  # ~ loss-inside-model
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
    ///         return self.fc(x)
    ///
    ///
    /// criterion = nn.CrossEntropyLoss()
    /// model = nn.DataParallel(Net())
    /// for x, y in []:
    ///     loss = criterion(model(x), y)
    ///     loss.backward()
    /// ```
    /// ```rust bad
    /// use tch::{Tensor, nn};
    ///
    /// struct Net { fc: nn::Linear }
    ///
    /// impl Net {
    ///     fn forward(&self, x: &Tensor, y: &Tensor) -> Tensor {
    ///         x.apply(&self.fc).cross_entropy_for_logits(y) //~ loss-inside-model
    ///     }
    /// }
    ///
    /// fn train(net: Net, vs: nn::VarStore, group: &tch_ddp::ProcessGroup, x: &Tensor, y: &Tensor) {
    ///     let ddp = tch_ddp::Ddp::new(net, vs, group, Default::default()).unwrap();
    ///     let loss = ddp.run(|m| m.forward(x, y)).unwrap();
    ///     ddp.backward(&loss).unwrap();
    /// }
    /// ```
    /// ```rust good
    /// use tch::{Tensor, nn};
    ///
    /// struct Net { fc: nn::Linear }
    ///
    /// impl Net {
    ///     fn forward(&self, x: &Tensor) -> Tensor {
    ///         x.apply(&self.fc)
    ///     }
    /// }
    ///
    /// fn train(net: Net, vs: nn::VarStore, group: &tch_ddp::ProcessGroup, x: &Tensor, y: &Tensor) {
    ///     let ddp = tch_ddp::Ddp::new(net, vs, group, Default::default()).unwrap();
    ///     let loss = ddp.run(|m| m.forward(x)).unwrap().cross_entropy_for_logits(y);
    ///     ddp.backward(&loss).unwrap();
    /// }
    /// ```
    ///
    /// # Known limits
    /// A reduction of the gathered loss anywhere before its backward silences the error.
    pub static RULE = {
        name: "loss-inside-model",
        level: Level::Error,
        harm: Harm::Crash,
        tier: 1,
        languages: BOTH,
        fix: FixKind::No,
        check,
    };
}

fn check(program: &Program<'_>, report: &mut Report<'_>) {
    for (event, _) in program.calls(Role::Loss) {
        let Some((wrapper, kind)) = program.wrapper_around(event) else { continue };
        if event.modes.forward.is_none() || !event.modes.grad {
            continue;
        }
        let through = program.forwards().filter(|(_, f)| f.via == Via::Wrapper(wrapper));
        let Some((outer, _)) = through
            .filter(|(e, f)| {
                program.trained().contains(&e.id) && gives(program, &f.result, event.id)
            })
            .last()
        else {
            continue;
        };
        match kind {
            Wrapper::Ddp => {
                report
                    .at(event.site, "the loss is computed inside the wrapped model")
                    .level(Level::Advice)
                    .harm(Harm::Noise)
                    .why("it is harder to weight over ranks, to log and to replace there")
                    .help("return the outputs, and compute the loss from them outside");
            }
            Wrapper::Dp if gathers_itself(program, wrapper) => {}
            Wrapper::Dp => vector_loss(program, report, outer.id, event),
        }
    }
}

/// The output, or a field of it, comes from that.
fn gives(program: &Program<'_>, output: &Value, loss: EventId) -> bool {
    program.origins_of(output).contains(&loss)
        || output.terms().any(|term| {
            let class = program.object_of(term).and_then(|o| program.class_of(o));
            class.is_some_and(|class| {
                program.class(class).fields.iter().any(|field| {
                    let kept = program.attribute_now(term, &field.name);
                    kept.is_some_and(|kept| kept.comes_from(program.terms(), loss))
                })
            })
        })
}

/// A wrapper of the project that brings the outputs together in a way of its own.
fn gathers_itself(program: &Program<'_>, wrapper: ObjectId) -> bool {
    let class = program.class_of(program.object(wrapper));
    class.is_some_and(|class| {
        ["forward", "gather"].iter().any(|name| program.class_member(class, name).is_some())
    })
}

/// The backward of a gathered loss that nothing reduced.
fn vector_loss(program: &Program<'_>, report: &mut Report<'_>, outer: EventId, loss: &Event<'_>) {
    let terms = program.terms();
    let reduced = program.calls(Role::Reduce).any(|(event, call)| {
        event.modes.forward.is_none()
            && call
                .receiver
                .iter()
                .chain(call.arguments.iter().map(|a| &a.value))
                .any(|v| v.comes_from(terms, outer))
    });
    if reduced {
        return;
    }
    for (event, call) in program.calls(Role::Backward).chain(program.calls(Role::FusedStep)) {
        // An optimizer of tch takes the loss as its argument.
        let given = call.argument("loss").known();
        let Some(value) = given.map(|a| &a.value).or(call.receiver.as_ref()) else { continue };
        if !value.comes_from(terms, outer) {
            continue;
        }
        let written =
            given.map(|a| program.text(Site { file: event.site.file, span: a.expr.span }));
        let name = written.or_else(|| program.receiver_text(event)).unwrap_or("the loss");
        let name = name.trim_start_matches('&');
        report
            .at(event.site, format!("`{name}` has one element for each device, not one in all"))
            .why("each replica returns its own loss; backward of a vector raises RuntimeError")
            .help(match program.language {
                Language::Python => format!(
                    "compute the loss outside the model, or reduce it first: \
                     `{name}.mean().backward()`"
                ),
                Language::Rust => format!(
                    "compute the loss outside the model, or reduce it first: \
                     `{name}.mean(Kind::Float)`"
                ),
            })
            .related(loss.site, "the loss is computed here, inside the model");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_criterion_that_gathers_by_itself_is_silent() {
        check_python(
            "
import torch
from torch.nn.parallel import DataParallel
class ParallelCriterion(DataParallel):
    def forward(self, outputs, *targets):
        parts = [self.module(o, *targets) for o in outputs]
        return sum(parts) / len(parts)
class Criterion(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.ce = torch.nn.CrossEntropyLoss()
    def forward(self, out, y):
        return self.ce(out, y)
net = torch.nn.DataParallel(torch.nn.Linear(2, 2)).cuda()
criterion = ParallelCriterion(Criterion()).cuda()
for x, y in []:
    criterion(net(x), y).backward()
",
        );
    }

    #[test]
    fn a_functional_loss_in_a_helper_of_the_model_counts() {
        check_files(&[
            (
                "net.py",
                "
import torch
import torch.nn.functional as F
class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = torch.nn.Linear(2, 2)
    def objective(self, out, y):
        return F.mse_loss(out, y)
    def forward(self, x, y):
        out = self.fc(x)
        return out, self.objective(out, y)
",
            ),
            (
                "main.py",
                "
import torch
from net import Net
if __name__ == '__main__':
    model = torch.nn.DataParallel(Net()).cuda()
    for x, y in []:
        out, loss = model(x, y)
        loss.backward()  # ~ loss-inside-model: one element for each device
",
            ),
        ]);
    }

    #[test]
    fn a_reduced_loss_is_silent() {
        check_python(
            "
import torch
import torch.nn.functional as F
class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = torch.nn.Linear(2, 2)
    def forward(self, x, y):
        return F.cross_entropy(self.fc(x), y)
model = torch.nn.DataParallel(Net())
for x, y in []:
    loss = model(x, y)
    loss = loss.mean()
    loss.backward()
",
        );
    }

    #[test]
    fn under_ddp_it_is_advice() {
        check_python(
            "
import torch
class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = torch.nn.Linear(2, 2)
        self.loss = torch.nn.MSELoss()
    def forward(self, x, y):
        return self.loss(self.fc(x), y)  # ~ loss-inside-model: inside the wrapped model
model = torch.nn.parallel.DistributedDataParallel(Net())
for x, y in []:
    model(x, y).backward()
",
        );
    }

    #[test]
    fn a_criterion_that_is_its_own_module_is_silent() {
        check_python(
            "
import torch
class Criterion(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.ce = torch.nn.CrossEntropyLoss()
    def forward(self, out, y):
        return self.ce(out, y)
criterion = Criterion()
model = torch.nn.DataParallel(torch.nn.Linear(2, 2))
for x, y in []:
    criterion(model(x), y).backward()
",
        );
    }

    #[test]
    fn a_loss_computed_for_logging_only_is_silent() {
        check_python(
            "
import torch
class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = torch.nn.Linear(2, 2)
        self.mse = torch.nn.MSELoss()
    def forward(self, x, y):
        out = self.fc(x)
        with torch.no_grad():
            drift = self.mse(out, y)
        return out, drift
model = torch.nn.DataParallel(Net())
for x, y in []:
    out, drift = model(x, y)
    out.sum().backward()
    print(drift.mean())
",
        );
    }

    #[test]
    fn a_single_device_program_is_silent() {
        check_python(
            "
import torch
class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = torch.nn.Linear(2, 2)
        self.mse = torch.nn.MSELoss()
    def forward(self, x, y):
        return self.mse(self.fc(x), y)
model = Net()
for x, y in []:
    model(x, y).backward()
",
        );
    }

    #[test]
    fn a_module_that_holds_model_and_criterion_counts() {
        check_files(&[
            (
                "full_model.py",
                r#"
import torch.nn as nn
class ModelWithLoss(nn.Module):
    def __init__(self, model, loss):
        super().__init__()
        self.model = model
        self.loss = loss
    def forward(self, batch):
        outputs = self.model(batch["input"])
        return outputs, self.loss(outputs, batch["target"])
"#,
            ),
            (
                "trainer.py",
                "
import torch
from torch import nn
from full_model import ModelWithLoss
class BaseTrainer(object):
    def __init__(self, opt, model):
        self.opt = opt
        self.with_loss = ModelWithLoss(model, nn.L1Loss())
        self.optimizer = torch.optim.Adam(model.parameters(), opt.lr)
    def set_device(self, gpus):
        if len(gpus) > 1:
            self.with_loss = nn.DataParallel(self.with_loss, device_ids=gpus).cuda()
        else:
            self.with_loss = self.with_loss.cuda()
    def run_epoch(self, loader):
        for batch in loader:
            batch = {k: v.cuda(non_blocking=True) for k, v in batch.items()}
            output, loss = self.with_loss(batch)
            self.optimizer.zero_grad()
            loss.backward()  # ~ loss-inside-model
            self.optimizer.step()
",
            ),
            (
                "main.py",
                r#"
import argparse
import torch
from trainer import BaseTrainer
def main(opt):
    t = BaseTrainer(opt, torch.nn.Linear(4, 4))
    t.set_device([int(g) for g in opt.gpus.split(",")])
    for epoch in range(opt.epochs):
        t.run_epoch([{"input": torch.randn(8, 4), "target": torch.randn(8, 4)} for _ in range(5)])
if __name__ == "__main__":
    ap = argparse.ArgumentParser()
    ap.add_argument("--gpus", default="0,1")
    ap.add_argument("--lr", type=float, default=1e-3)
    ap.add_argument("--epochs", type=int, default=5)
    main(ap.parse_args())
"#,
            ),
        ]);
    }

    #[test]
    fn losses_in_a_dict_count() {
        check_python(
            r#"
import torch
import torch.nn as nn
import torch.nn.functional as F
class FaceNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.backbone = nn.Linear(100, 50)
        self.cls = nn.Linear(50, 10)
        self.box = nn.Linear(50, 4)
    def forward(self, img, cls_t=None, box_t=None):
        f = self.backbone(img).relu()
        if cls_t is None:
            return self.cls(f), self.box(f)
        cls = F.cross_entropy(self.cls(f), cls_t)
        return {"cls": cls, "box": F.smooth_l1_loss(self.box(f), box_t)}
def train(model, steps):
    opt = torch.optim.SGD(model.parameters(), lr=1e-2)
    for _ in range(steps):
        x, y = torch.randn(32, 100).cuda(), torch.randint(10, (32,)).cuda()
        losses = model(x, y, torch.rand(32, 4).cuda())
        total = losses["cls"] + 2.0 * losses["box"]
        opt.zero_grad()
        total.backward()  # ~ loss-inside-model
        opt.step()
if __name__ == "__main__":
    net = FaceNet().cuda()
    net = torch.nn.DataParallel(net, device_ids=list(range(torch.cuda.device_count())))
    train(net, 100)
"#,
        );
    }
}
