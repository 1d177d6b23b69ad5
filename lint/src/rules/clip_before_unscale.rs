use crate::analysis::{Call, Event};
use crate::prelude::*;
use crate::python::edit::Editor;
use crate::table::Role;

declare_rule! {
    /// Gradients are clipped while they are still multiplied by the loss scale.
    ///
    /// After `scaler.scale(loss).backward()` all gradients carry the scale, 65536 at the start.
    /// A norm of 1 is then cut to almost nothing, and how much is cut changes with the scale:
    /// the model hardly learns. Call `scaler.unscale_(optimizer)` first; `scaler.step` knows
    /// that it was called.
    ///
    /// ```python bad
    /// import torch
    /// from torch.nn.parallel import DistributedDataParallel as DDP
    ///
    /// model = DDP(torch.nn.Linear(2, 2))
    /// optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    /// scaler = torch.amp.GradScaler()
    /// for step in range(100):
    ///     loss = model(torch.rand(4, 2)).sum()
    ///     scaler.scale(loss).backward()
    ///     torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)  # ~ clip-before-unscale
    ///     scaler.step(optimizer)
    ///     scaler.update()
    /// ```
    /// ```python fixed
    /// import torch
    /// from torch.nn.parallel import DistributedDataParallel as DDP
    ///
    /// model = DDP(torch.nn.Linear(2, 2))
    /// optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    /// scaler = torch.amp.GradScaler()
    /// for step in range(100):
    ///     loss = model(torch.rand(4, 2)).sum()
    ///     scaler.scale(loss).backward()
    ///     scaler.unscale_(optimizer)
    ///     torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    ///     scaler.step(optimizer)
    ///     scaler.update()
    /// ```
    ///
    /// # Known limits
    /// Any `unscale_` between the backward and the clipping counts.
    pub static RULE = {
        name: "clip-before-unscale",
        level: Level::Error,
        harm: Harm::Wrong,
        tier: 3,
        languages: PYTHON,
        fix: FixKind::Unsafe,
        check,
    };
}

fn check(program: &Program<'_>, report: &mut Report<'_>) {
    let scaled: Vec<&Event<'_>> = program
        .calls(Role::Backward)
        .filter(|(_, call)| is_scaled(program, call))
        .map(|(event, _)| event)
        .collect();
    for (clip, call) in program.calls(Role::ClipGradients) {
        let Some(backward) = scaled.iter().rev().find(|b| precedes(program, b, clip)) else {
            continue;
        };
        let undone = [Role::Unscale, Role::ScalerStep, Role::OptimizerStep]
            .iter()
            .any(|&role| program.calls(role).any(|(e, _)| backward.id < e.id && e.id < clip.id));
        let Some((step, stepped)) = program
            .calls(Role::ScalerStep)
            .find(|(e, _)| e.id > clip.id && precedes(program, clip, e))
        else {
            continue;
        };
        if undone || knows_the_scale(program, call) {
            continue;
        }
        let draft = report
            .at(clip.site, "gradients are clipped while they are multiplied by the loss scale")
            .why(
                "the scale (65536 at first) makes every norm huge, so clipping leaves almost \
                 nothing of each update",
            )
            .help("call `scaler.unscale_(optimizer)` between the backward and the clipping")
            .related(backward.site, "the scaled loss is differentiated here");
        if let Some(edit) = unscale_first(program, clip, step, stepped) {
            draft.unsafe_fix("unscale the gradients before they are clipped", vec![edit]);
        }
    }
}

/// The differentiated value went through a gradient scaler that is not switched off.
fn is_scaled(program: &Program<'_>, call: &Call<'_>) -> bool {
    let values = call.receiver.iter().chain(call.arguments.iter().map(|a| &a.value));
    values.flat_map(|value| program.calls_behind(value, Role::ScaleLoss)).any(|(_, scale)| {
        let Some(scaler) = scale.receiver.as_ref() else { return false };
        program.live_terms(scaler).any(|term| {
            program.object_of(term).is_some_and(|object| {
                object.role == Role::GradScaler
                    && program
                        .made_with(object, "enabled")
                        .is_none_or(|on| on.single() != Some(program.terms().no))
            })
        })
    })
}

/// Both happen in one run, in this order, on settings that can hold together.
fn precedes(program: &Program<'_>, first: &Event<'_>, second: &Event<'_>) -> bool {
    first.id < second.id
        && program.root_frame(first) == program.root_frame(second)
        && program.can_both_hold_paths(first.path, second.path)
}

/// The bound itself is multiplied by something of the scaler.
fn knows_the_scale(program: &Program<'_>, call: &Call<'_>) -> bool {
    let bound = call.argument_at(1, "max_norm").known().or(call.argument("clip_value").known());
    bound.is_some_and(|bound| bound.value.taint(program.terms()).has(crate::analysis::Taint::LOCAL))
}

/// `scaler.unscale_(optimizer)` above the clipping, in the words of the step behind it.
fn unscale_first(
    program: &Program<'_>,
    clip: &Event<'_>,
    step: &Event<'_>,
    stepped: &Call<'_>,
) -> Option<Edit> {
    if step.frame != clip.frame {
        return None;
    }
    let scaler = program.receiver_text(step)?;
    let optimizer = stepped.argument_at(0, "optimizer").known()?;
    let site = Site { file: step.site.file, span: optimizer.expr.span };
    let file = program.project().file(clip.site.file);
    let editor = Editor::new(file);
    let statement = editor.statement_at(clip.site.span)?;
    editor.insert_before(statement, &format!("{scaler}.unscale_({})\n", program.text(site)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_trainer_with_the_steps_in_methods_counts() {
        check_files(&[
            (
                "amp.py",
                "
from torch.cuda.amp import GradScaler
from torch.nn.utils import clip_grad_norm_
class Stepper:
    def __init__(self, optimizer, bound):
        self.optimizer, self.bound = optimizer, bound
        self.scaler = GradScaler()
    def __call__(self, loss, parameters):
        self.scaler.scale(loss).backward()
        if self.bound is not None:
            clip_grad_norm_(parameters, self.bound)  # ~ clip-before-unscale
        self.scaler.step(self.optimizer)
        self.scaler.update()
",
            ),
            (
                "main.py",
                "
import argparse, torch
from torch.nn.parallel import DistributedDataParallel as DDP
from amp import Stepper
parser = argparse.ArgumentParser()
parser.add_argument('--clip', type=float)
args = parser.parse_args()
net = DDP(torch.nn.Linear(1, 1))
step = Stepper(torch.optim.Adam(net.parameters()), args.clip)
for i in range(3):
    step(net(torch.ones(1, 1)).sum(), net.parameters())
",
            ),
        ]);
    }

    #[test]
    fn clipping_by_value_and_accumulation_count() {
        check_python(
            "
import torch
from torch.nn.parallel import DistributedDataParallel as DDP
net = DDP(torch.nn.Linear(1, 1))
opt = torch.optim.Adam(net.parameters())
grad_scaler = torch.cuda.amp.GradScaler(enabled=True)
for i in range(10):
    with torch.autocast('cuda'):
        out = net(torch.ones(1, 1)).sum() / 2
    grad_scaler.scale(out).backward()
    if (i + 1) % 2 == 0:
        torch.nn.utils.clip_grad_value_(net.parameters(), clip_value=0.5)  # ~ clip-before-unscale
        grad_scaler.step(opt)
        grad_scaler.update()
        opt.zero_grad()
",
        );
    }

    #[test]
    fn unscaled_first_in_a_helper_of_another_file_is_silent() {
        check_files(&[
            (
                "amp.py",
                "
import torch
class NativeScaler:
    def __init__(self):
        self._scaler = torch.cuda.amp.GradScaler()
    def __call__(self, loss, optimizer, clip=None, parameters=None):
        self._scaler.scale(loss).backward()
        if clip is not None:
            self._scaler.unscale_(optimizer)
            norm = torch.nn.utils.clip_grad_norm_(parameters, clip)
        self._scaler.step(optimizer)
        self._scaler.update()
",
            ),
            (
                "main.py",
                "
import torch
from torch.nn.parallel import DistributedDataParallel as DDP
from amp import NativeScaler
net = DDP(torch.nn.Linear(1, 1))
opt = torch.optim.Adam(net.parameters())
scale = NativeScaler()
for i in range(3):
    scale(net(torch.ones(1, 1)).sum(), opt, 1.0, net.parameters())
",
            ),
        ]);
    }

    #[test]
    fn the_branch_without_a_scaler_is_silent() {
        check_python(
            "
import argparse, torch
from torch.nn.parallel import DistributedDataParallel as DDP
args = argparse.ArgumentParser().parse_args()
net = DDP(torch.nn.Linear(1, 1))
opt = torch.optim.Adam(net.parameters())
scaler = torch.amp.GradScaler()
for i in range(3):
    loss = net(torch.ones(1, 1)).sum()
    if args.amp:
        scaler.scale(loss).backward()
        scaler.unscale_(opt)
        torch.nn.utils.clip_grad_norm_(net.parameters(), 1.0)
        scaler.step(opt)
        scaler.update()
    else:
        loss.backward()
        torch.nn.utils.clip_grad_norm_(net.parameters(), 1.0)
        opt.step()
",
        );
    }

    #[test]
    fn a_scaler_that_is_off_and_a_scaled_bound_are_silent() {
        check_python(
            "
import torch
from torch.nn.parallel import DistributedDataParallel as DDP
net = DDP(torch.nn.Linear(1, 1))
opt = torch.optim.Adam(net.parameters())
off = torch.amp.GradScaler(enabled=False)
on = torch.amp.GradScaler()
off.scale(net(torch.ones(1, 1)).sum()).backward()
torch.nn.utils.clip_grad_norm_(net.parameters(), 1.0)
off.step(opt)
on.scale(net(torch.ones(1, 1)).sum()).backward()
torch.nn.utils.clip_grad_norm_(net.parameters(), 1.0 * on.get_scale())
on.step(opt)
",
        );
    }

    #[test]
    fn unscaling_behind_the_clip_counts() {
        check_python(
            r#"
import os
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.nn.utils import clip_grad_norm_
def main(cfg=dict(clip=1.0, amp=True)):
    dist.init_process_group("nccl")
    g = int(os.environ["LOCAL_RANK"])
    torch.cuda.set_device(g)
    torch.manual_seed(dist.get_rank())
    net = DDP(torch.nn.Linear(8, 8).cuda(), device_ids=[g])
    opt = torch.optim.SGD(net.parameters(), 0.1)
    scaler = torch.cuda.amp.GradScaler() if cfg["amp"] else None
    for _ in range(10):
        with torch.cuda.amp.autocast(enabled=cfg["amp"]):
            loss = net(torch.randn(4, 8).cuda()).pow(2).mean()
        opt.zero_grad()
        if scaler is not None:
            scaler.scale(loss).backward()
            if cfg["clip"] > 0:
                clip_grad_norm_(net.parameters(), cfg["clip"])  # ~ clip-before-unscale
                scaler.unscale_(opt)
            scaler.step(opt)
            scaler.update()
        else:
            loss.backward()
            clip_grad_norm_(net.parameters(), cfg["clip"])
            opt.step()
if __name__ == "__main__":
    main()
"#,
        );
    }
}
