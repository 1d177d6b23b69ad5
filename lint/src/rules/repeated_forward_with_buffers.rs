use crate::analysis::facts::Wrapper;
use crate::analysis::{Event, EventId, Via};
use crate::config::TorchVersion;
use crate::model::{ExprKind, Part};
use crate::prelude::*;
use crate::python::edit::Editor;
use crate::table::Role;

declare_rule! {
    /// A wrapped model with buffers runs forward twice before one backward.
    ///
    /// Before torch 2.13 each forward of `DistributedDataParallel` copies rank 0's buffers into
    /// the others in place. Buffers that the first forward keeps for its backward (BatchNorm's
    /// running statistics) are then changed under it: `one of the variables needed for gradient
    /// computation has been modified by an inplace operation`. torch 2.13 does not (measured).
    ///
    /// ```python bad
    /// # torch: 1.13
    /// import torch.nn as nn
    /// from torch.nn.parallel import DistributedDataParallel as DDP
    ///
    /// net = DDP(nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8)))
    /// for real, fake in []:
    ///     on_real = net(real)
    ///     on_fake = net(fake)  # ~ repeated-forward-with-buffers
    ///     (on_real.mean() - on_fake.mean()).backward()
    /// ```
    /// ```python good
    /// # torch: 1.13
    /// import torch.nn as nn
    /// from torch.nn.parallel import DistributedDataParallel as DDP
    ///
    /// net = DDP(nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8)), broadcast_buffers=False)
    /// for real, fake in []:
    ///     on_real = net(real)
    ///     on_fake = net(fake)
    ///     (on_real.mean() - on_fake.mean()).backward()
    /// ```
    ///
    /// # Known limits
    /// Which releases count comes from `--target-torch` or from what the project requires.
    pub static RULE = {
        name: "repeated-forward-with-buffers",
        level: Level::Error,
        harm: Harm::Crash,
        tier: 3,
        languages: PYTHON,
        fix: FixKind::No,
        check,
    };
}

const FIRST: TorchVersion = TorchVersion { major: 0, minor: 4 };
const LAST: TorchVersion = TorchVersion { major: 2, minor: 12 };

fn check(program: &Program<'_>, report: &mut Report<'_>) {
    if !program.project().torch.touches(FIRST, LAST) {
        return;
    }
    for (wrapper, parts) in program.wrapped_models(Wrapper::Ddp) {
        let option = |name| program.wrapper_option(wrapper, name);
        let syncs = matches!(option("broadcast_buffers"), Some(None | Some(true)))
            && matches!(option("forward_sync_buffers"), Some(None | Some(true)));
        let Some(&layer) = parts.iter().find(|&&part| keeps_statistics(program, part)) else {
            continue;
        };
        if !syncs {
            continue;
        }
        let forwards: Vec<&Event<'_>> = program
            .forwards()
            .filter(|(e, f)| f.via == Via::Wrapper(wrapper) && e.modes.grad)
            .map(|(e, _)| e)
            .collect();
        for (first, second) in pairs(&forwards) {
            if !meet(program, first.id, second.id) {
                continue;
            }
            let name = program.callee_text(second).unwrap_or("the model");
            let draft = report
                .at(
                    second.site,
                    format!("`{name}` runs forward again before the backward of the first"),
                )
                .why(
                    "each forward copies rank 0's buffers in place, those too that the first \
                     forward keeps for its backward: RuntimeError",
                )
                .help(
                    "wrap with `broadcast_buffers=False`, run both batches in one forward, or \
                     take a backward after each",
                )
                .related(first.site, "the first forward");
            if let Some(layer) = program.object_of(layer) {
                draft.related(layer.site, "this layer has buffers");
            }
        }
        for forward in forwards.iter().filter(|forward| runs_again(program, forward)) {
            let name = program.callee_text(forward).unwrap_or("the model");
            report
                .at(
                    forward.site,
                    format!("`{name}` runs forward several times before one backward"),
                )
                .why(
                    "each forward copies rank 0's buffers in place, those too that the first \
                     forward keeps for its backward: RuntimeError",
                )
                .help("wrap with `broadcast_buffers=False`, or run all of it in one forward");
        }
    }
}

/// A loop or comprehension runs the forward, and one backward behind it goes through all rounds.
fn runs_again(program: &Program<'_>, forward: &Event<'_>) -> bool {
    let round = program.loops(forward.loops).next().map(|(_, node)| node.site);
    let within = |event: &Event<'_>| round.is_some_and(|site| program.is_within(event, site));
    let mut through = program
        .calls(Role::Backward)
        .filter(|(_, call)| {
            let values = call.receiver.iter().chain(call.arguments.iter().map(|a| &a.value));
            values.into_iter().any(|v| v.comes_from(program.terms(), forward.id))
        })
        .peekable();
    if through.peek().is_none() {
        return false;
    }
    let behind_loop = round.is_some_and(|site| repeats(program, site));
    in_comprehension(program, forward) || behind_loop && through.all(|(event, _)| !within(event))
}

/// A loop that is not of one round: over a range, or a list.
fn repeats(program: &Program<'_>, round: Site) -> bool {
    let text = program.text(round);
    text.starts_with("for ") && !text.lines().next().is_some_and(|head| head.contains("range(1)"))
}

/// `[model(x) for x in crops]`.
fn in_comprehension(program: &Program<'_>, forward: &Event<'_>) -> bool {
    let file = program.project().file(forward.site.file);
    let Some(statement) = Editor::new(file).statement_at(forward.site.span) else { return false };
    let mut found = false;
    statement.each_part(&mut |part| {
        if let Part::Expr(expr) = part {
            expr.each_inside(&mut |e| {
                found |= matches!(&e.kind, ExprKind::Comprehension { element, .. }
                    if element.span.contains(forward.site.span));
            });
        }
    });
    found
}

/// BatchNorm and the like, with the statistics that are buffers.
fn keeps_statistics(program: &Program<'_>, part: crate::analysis::Term) -> bool {
    program.has_buffers(part)
        && program.object_of(part).is_some_and(|layer| {
            layer.role == Role::Layer
                && !layer.arguments.iter().any(|a| {
                    a.name.is_some_and(|n| &*n == "track_running_stats")
                        && program.as_bool(&a.value) != Some(true)
                })
        })
}

/// Each forward with the one before it.
fn pairs<'e, 'p>(
    forwards: &'e [&'e Event<'p>],
) -> impl Iterator<Item = (&'e Event<'p>, &'e Event<'p>)> {
    forwards.windows(2).map(|pair| (pair[0], pair[1])).filter(|(a, b)| a.site != b.site)
}

/// One backward goes through both forwards, and none through the first alone between them.
fn meet(program: &Program<'_>, first: EventId, second: EventId) -> bool {
    let goes_through = |call: &crate::analysis::Call<'_>, forward| {
        let values = call.receiver.iter().chain(call.arguments.iter().map(|a| &a.value));
        values.into_iter().any(|v| v.comes_from(program.terms(), forward))
    };
    let mut backwards = program.calls(Role::Backward);
    let between = program
        .calls(Role::Backward)
        .any(|(event, call)| first < event.id && event.id < second && goes_through(call, first));
    !between
        && backwards.any(|(event, call)| {
            event.id > second && goes_through(call, first) && goes_through(call, second)
        })
}

#[cfg(test)]
mod tests {
    use super::*;

    const TRAIN: &str = "
import torch
from nets import Critic
def main():
    torch.distributed.init_process_group('nccl')
    critic = Critic().cuda()
    critic = torch.nn.parallel.DistributedDataParallel(critic, OPTIONS)
    for real, fake in []:
        BODY
if __name__ == '__main__':
    main()
";
    const NETS: &str = "
from torch import nn
class Critic(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.ModuleList([nn.Conv2d(3, 3, 1), NORM])
    def forward(self, x):
        for layer in self.body:
            x = layer(x)
        return x.mean()
";

    fn check_with(torch: &str, options: &str, norm: &str, body: &str) {
        let train = TRAIN.replace("OPTIONS", options).replace("BODY", body);
        let nets = NETS.replace("NORM", norm);
        check_files(&[("main.py", &format!("# torch: {torch}{train}")), ("nets.py", &nets)]);
    }

    const TWICE: &str = "a = critic(real)
        b = critic(fake)  # ~ repeated-forward-with-buffers
        (a - b).backward()";

    fn unmarked() -> String {
        TWICE.replace("  # ~ repeated-forward-with-buffers", "")
    }

    #[test]
    fn two_forwards_before_one_backward_count_on_older_releases() {
        check_with("1.13", "device_ids=[0]", "nn.BatchNorm2d(3)", TWICE);
        check_with("2.6", "broadcast_buffers=True", "nn.SyncBatchNorm(3)", TWICE);
        check_with("2.13", "device_ids=[0]", "nn.BatchNorm2d(3)", &unmarked());
    }

    #[test]
    fn the_losses_of_both_in_helpers_count() {
        check_python(
            "# torch: 2.0
import torch
from torch import nn
class Gan:
    def __init__(self):
        torch.distributed.init_process_group('nccl')
        net = nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2))
        self.d = nn.parallel.DistributedDataParallel(net.cuda())
        self.bce = nn.BCEWithLogitsLoss()
    def score(self, x, real):
        y = self.d(x)
        return self.bce(y, torch.ones_like(y) if real else torch.zeros_like(y))
    def step(self, real, fake):
        on_real = self.bce(self.d(real), torch.ones(1))
        on_fake = self.bce(self.d(fake), torch.zeros(1))  # ~ repeated-forward-with-buffers: self.d
        (on_real + on_fake).backward()
gan = Gan()
for real, fake in []:
    gan.step(real, fake)
",
        );
    }

    #[test]
    fn buffers_that_are_not_sent_are_silent() {
        check_with("1.13", "broadcast_buffers=False", "nn.BatchNorm2d(3)", &unmarked());
        check_with("1.13", "device_ids=[0]", "nn.GroupNorm(1, 3)", &unmarked());
        let plain = "nn.BatchNorm2d(3, track_running_stats=False)";
        check_with("1.13", "device_ids=[0]", plain, &unmarked());
    }

    #[test]
    fn a_backward_after_each_forward_is_silent() {
        let body = "critic(real).backward()
        critic(fake).backward()";
        check_with("1.13", "device_ids=[0]", "nn.BatchNorm2d(3)", body);
    }

    #[test]
    fn a_forward_without_gradient_is_silent() {
        let body = "a = critic(real)
        with torch.no_grad():
            b = critic(fake)
        (a - b).backward()";
        check_with("1.13", "device_ids=[0]", "nn.BatchNorm2d(3)", body);
    }

    #[test]
    fn two_models_are_silent() {
        check_python(
            "# torch: 1.13
import torch
from torch import nn
torch.distributed.init_process_group('nccl')
def make():
    return nn.parallel.DistributedDataParallel(nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2)))
a, b = make(), make()
for x in []:
    (a(x).sum() + b(x).sum()).backward()
",
        );
    }

    #[test]
    fn three_views_count() {
        check_python(
            r#"# torch: 1.12
import os
import torch
import torch.nn as nn
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP
class Embed(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(3, 8, 3)
        self.bn = nn.BatchNorm2d(8)
    def forward(self, x):
        return self.bn(self.conv(x)).mean((2, 3))
class Siamese:
    def __init__(self, g):
        self.net = DDP(Embed().cuda(), device_ids=[g])
        self.opt = torch.optim.SGD(self.net.parameters(), 0.1)
    def step(self, a, p, n):
        ea = self.net(a)
        ep = self.net(p)  # ~ repeated-forward-with-buffers
        en = self.net(n)  # ~ repeated-forward-with-buffers
        loss = nn.functional.triplet_margin_loss(ea, ep, en)
        self.opt.zero_grad()
        loss.backward()
        self.opt.step()
if __name__ == "__main__":
    dist.init_process_group("nccl")
    g = int(os.environ["LOCAL_RANK"])
    torch.cuda.set_device(g)
    torch.manual_seed(dist.get_rank())
    s = Siamese(g)
    for _ in range(10):
        s.step(*(torch.rand(4, 3, 16, 16).cuda() for _ in range(3)))
"#,
        );
    }

    #[test]
    fn a_comprehension_of_forwards_counts() {
        check_python(
            r#"# torch: 1.10
import os
import torch
import torch.nn as nn
import torch.distributed as dist
def main():
    dist.init_process_group("nccl")
    g = int(os.environ["LOCAL_RANK"])
    torch.cuda.set_device(g)
    torch.manual_seed(dist.get_rank())
    net = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4)).cuda()
    net = nn.parallel.DistributedDataParallel(net, device_ids=[g])
    opt = torch.optim.SGD(net.parameters(), 0.1)
    for _ in range(10):
        crops = [torch.randn(8, 4).cuda() for _ in range(2)]
        outs = [net(c) for c in crops]  # ~ repeated-forward-with-buffers
        loss = -nn.functional.cosine_similarity(outs[0], outs[1]).mean()
        opt.zero_grad()
        loss.backward()
        opt.step()
if __name__ == "__main__":
    main()
"#,
        );
    }
}
