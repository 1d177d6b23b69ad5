use crate::prelude::*;
use crate::table::{CollectiveKind, Flag, Role};

declare_rule! {
    /// The result of `all_gather` goes into the loss, but no gradient flows through it.
    ///
    /// `torch.distributed.all_gather` gives detached tensors, this rank's own among them: the
    /// gathered part of the loss trains nothing (measured). Put the own tensor back into its
    /// slot, or use `torch.distributed.nn.all_gather`.
    ///
    /// ```python bad
    /// import torch
    /// import torch.distributed as dist
    /// from torch.nn.parallel import DistributedDataParallel as DDP
    ///
    /// dist.init_process_group("nccl")
    /// model = DDP(torch.nn.Linear(2, 2))
    /// z = model(torch.rand(4, 2))
    /// parts = [torch.zeros_like(z) for _ in range(dist.get_world_size())]
    /// dist.all_gather(parts, z)  # ~ gather-without-grad
    /// loss = (z @ torch.cat(parts).t()).sum()
    /// loss.backward()
    /// ```
    /// ```python good
    /// import torch
    /// import torch.distributed as dist
    /// import torch.distributed.nn
    /// from torch.nn.parallel import DistributedDataParallel as DDP
    ///
    /// dist.init_process_group("nccl")
    /// model = DDP(torch.nn.Linear(2, 2))
    /// z = model(torch.rand(4, 2))
    /// parts = torch.distributed.nn.all_gather(z)
    /// loss = (z @ torch.cat(parts).t()).sum()
    /// loss.backward()
    /// ```
    ///
    /// # Known limits
    /// A program that writes its own tensor back into the gathered list is silent.
    pub static RULE = {
        name: "gather-without-grad",
        level: Level::Error,
        harm: Harm::Wrong,
        tier: 2,
        languages: PYTHON,
        fix: FixKind::No,
        check,
    };
}

fn check(program: &Program<'_>, report: &mut Report<'_>) {
    let terms = program.terms();
    for (event, call) in program.calls(Role::Collective) {
        let row_gathers = call.row.and_then(|r| r.kind) == Some(CollectiveKind::AllGather);
        let flows =
            program.has_flag(call, Flag::Differentiable) || program.has_flag(call, Flag::Objects);
        if !row_gathers || flows || !event.modes.grad {
            continue;
        }
        // What is gathered must be something that is trained.
        let input = call.row.and_then(|r| r.input);
        let sent = input.and_then(|name| call.argument(&name).known());
        let trains = sent.is_some_and(|a| {
            a.value.origins(terms).iter().any(|origin| program.trained().contains(origin))
        });
        let used = program.calls(Role::Backward).find(|(_, backward)| {
            backward.receiver.as_ref().is_some_and(|loss| loss.comes_from(terms, event.id))
        });
        let (true, Some((backward, _))) = (trains, used) else { continue };
        if puts_own_back(program, event.site) {
            continue;
        }
        let called = program.callee_text(event).unwrap_or("all_gather");
        report
            .at(event.site, format!("no gradient flows through `{called}` into the loss"))
            .why("the gathered tensors are detached, this rank's own too: they train nothing")
            .help(
                "use `torch.distributed.nn.all_gather`, or put the own tensor back: \
                 `parts[rank] = z`",
            )
            .related(backward.site, "the loss that it goes into");
    }
}

/// In the same function a tensor is stored at the rank's place of a list.
fn puts_own_back(program: &Program<'_>, gather: Site) -> bool {
    let text = &program.project().file(gather.file).text;
    let after = text.get(gather.span.end as usize..).unwrap_or_default();
    let near: String = after.chars().take(400).collect();
    near.lines().any(|line| {
        let Some((left, right)) = line.split_once('=') else { return false };
        left.contains('[') && left.contains("rank") && !right.starts_with('=')
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_helper_that_gathers_counts() {
        check_files(&[
            (
                "comm.py",
                "
import torch
import torch.distributed as dist
def everyone(z):
    out = [torch.zeros_like(z) for _ in range(dist.get_world_size())]
    dist.all_gather(out, z)  # ~ gather-without-grad
    return torch.cat(out)
",
            ),
            (
                "main.py",
                "
import torch
from torch.nn.parallel import DistributedDataParallel as DDP
from comm import everyone
if __name__ == '__main__':
    torch.distributed.init_process_group('nccl')
    model = DDP(torch.nn.Linear(2, 2))
    for step in range(3):
        z = model(torch.rand(2, 2))
        loss = (z @ everyone(z).t()).logsumexp(1).mean()
        loss.backward()
",
            ),
        ]);
    }

    #[test]
    fn the_own_slot_put_back_is_silent() {
        check_python(
            "
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP
dist.init_process_group('nccl')
model = DDP(torch.nn.Linear(2, 2))
for step in range(3):
    z = model(torch.rand(2, 2))
    out = [torch.zeros_like(z) for _ in range(dist.get_world_size())]
    dist.all_gather(out, z)
    out[dist.get_rank()] = z
    torch.cat(out).sum().backward()
",
        );
    }

    #[test]
    fn a_gathered_metric_is_silent() {
        check_python(
            "
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP
dist.init_process_group('nccl')
model = DDP(torch.nn.Linear(2, 2))
for step in range(3):
    loss = model(torch.rand(2, 2)).sum()
    loss.backward()
    all_losses = [torch.zeros(1) for _ in range(dist.get_world_size())]
    dist.all_gather(all_losses, loss.detach())
    print(torch.stack(all_losses).mean())
",
        );
    }

    #[test]
    fn a_tensor_gathered_into_counts() {
        check_python(
            r#"
import os
import torch
import torch.distributed as dist
import torch.distributed.nn.functional as dfn
from torch.nn.parallel import DistributedDataParallel as DDP
def vicreg_var(z):
    full = torch.empty(z.shape[0] * dist.get_world_size(), z.shape[1], device=z.device)
    dist.all_gather_into_tensor(full, z)  # ~ gather-without-grad
    return torch.relu(1 - full.std(0)).mean()
def main():
    dist.init_process_group("nccl")
    g = int(os.environ["LOCAL_RANK"])
    torch.cuda.set_device(g)
    torch.manual_seed(dist.get_rank())
    net = DDP(torch.nn.Linear(8, 8).cuda(), device_ids=[g])
    opt = torch.optim.SGD(net.parameters(), 0.1)
    for _ in range(10):
        loss = vicreg_var(net(torch.randn(4, 8).cuda()))
        opt.zero_grad(); loss.backward(); opt.step()
if __name__ == "__main__":
    main()
"#,
        );
    }

    #[test]
    fn a_gather_with_a_backward_of_its_own_is_silent() {
        check_python(
            r#"
import os
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel as DDP
class Gather(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        out = [torch.zeros_like(x) for _ in range(dist.get_world_size())]
        dist.all_gather(out, x)
        return tuple(out)
    @staticmethod
    def backward(ctx, *grads):
        g = torch.stack(grads)
        dist.all_reduce(g)
        return g[dist.get_rank()]
def gather_plain(x):
    out = [torch.zeros_like(x) for _ in range(dist.get_world_size())]
    return torch.cat(out)
def main():
    dist.init_process_group("nccl")
    g = int(os.environ["LOCAL_RANK"])
    torch.cuda.set_device(g)
    torch.manual_seed(dist.get_rank())
    net = DDP(torch.nn.Linear(8, 8).cuda(), device_ids=[g])
    opt = torch.optim.SGD(net.parameters(), 0.1)
    for _ in range(10):
        z = F.normalize(net(torch.randn(4, 8).cuda()), dim=-1)
        zs = torch.cat(Gather.apply(z))
        loss = torch.logsumexp(zs @ zs.t(), 1).mean()
        opt.zero_grad()
        loss.backward()
        opt.step()
        hist = gather_plain(z.detach())
        if dist.get_rank() == 0:
            print(hist.mean().item())
if __name__ == "__main__":
    main()
"#,
        );
    }

    #[test]
    fn features_gathered_for_evaluation_are_silent() {
        check_files(&[
            (
                "gather.py",
                "
import torch
import torch.distributed as dist
def everything(x):
    parts = [torch.empty_like(x) for _ in range(dist.get_world_size())]
    dist.all_gather(parts, x.contiguous())
    return torch.cat(parts)
",
            ),
            (
                "main.py",
                r#"
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP
from gather import everything
def main():
    dist.init_process_group("nccl")
    net = DDP(torch.nn.Linear(4, 4).cuda())
    for _ in range(10):
        net(torch.randn(2, 4).cuda()).mean().backward()
    with torch.no_grad():
        features = everything(net(torch.randn(2, 4).cuda()))
    print(features.shape)
if __name__ == "__main__":
    main()
"#,
            ),
        ]);
    }

    #[test]
    fn an_object_that_gathers_counts() {
        check_python(
            "
import os
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel as DDP
class Pool:
    def __init__(self):
        self.n = dist.get_world_size()
    def __call__(self, z):
        parts = [torch.empty_like(z) for _ in range(self.n)]
        dist.all_gather(parts, z)  # ~ gather-without-grad
        parts = [p * 1.0 for p in parts]
        return torch.cat(parts)
def main():
    dist.init_process_group('nccl')
    gpu = int(os.environ['LOCAL_RANK'])
    torch.cuda.set_device(gpu)
    net = DDP(torch.nn.Linear(16, 8).cuda(), device_ids=[gpu])
    opt = torch.optim.SGD(net.parameters(), 0.1)
    pool = Pool()
    for _ in range(10):
        z = F.normalize(net(torch.rand(4, 16).cuda()), dim=1)
        everyone = pool(z)
        sims = z @ everyone.t()
        want = torch.arange(4, device='cuda') + 4 * dist.get_rank()
        loss = F.cross_entropy(sims, want)
        opt.zero_grad()
        loss.backward()
        opt.step()
if __name__ == '__main__':
    main()
",
        );
    }

    #[test]
    fn an_object_that_puts_the_own_part_back_is_silent() {
        check_python(
            "
import os
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel as DDP
class Pool:
    def __init__(self):
        self.n = dist.get_world_size()
    def __call__(self, z):
        parts = [torch.empty_like(z) for _ in range(self.n)]
        dist.all_gather(parts, z)
        parts[dist.get_rank()] = z
        return torch.cat(parts)
def main():
    dist.init_process_group('nccl')
    gpu = int(os.environ['LOCAL_RANK'])
    torch.cuda.set_device(gpu)
    net = DDP(torch.nn.Linear(16, 8).cuda(), device_ids=[gpu])
    opt = torch.optim.SGD(net.parameters(), 0.1)
    pool = Pool()
    for _ in range(10):
        z = F.normalize(net(torch.rand(4, 16).cuda()), dim=1)
        everyone = pool(z)
        sims = z @ everyone.t()
        want = torch.arange(4, device='cuda') + 4 * dist.get_rank()
        loss = F.cross_entropy(sims, want)
        opt.zero_grad()
        loss.backward()
        opt.step()
if __name__ == '__main__':
    main()
",
        );
    }
}
