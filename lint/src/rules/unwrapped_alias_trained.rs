use crate::analysis::Via;
use crate::analysis::facts::Wrapper;
use crate::prelude::*;

declare_rule! {
    /// After the model was wrapped, training goes on with the bare model's name.
    ///
    /// `ddp = DDP(model)` leaves `model` what it was. A training forward through the old name
    /// goes around the wrapper: gradients are not reduced, and no message says so (measured).
    ///
    /// ```python bad
    /// import torch.nn as nn
    /// from torch.nn.parallel import DistributedDataParallel as DDP
    ///
    /// model = nn.Linear(8, 1)
    /// ddp = DDP(model)
    /// for x in range(10):
    ///     model(x).sum().backward()  # ~ unwrapped-alias-trained
    /// ```
    /// ```python good
    /// import torch.nn as nn
    /// from torch.nn.parallel import DistributedDataParallel as DDP
    ///
    /// model = nn.Linear(8, 1)
    /// model_without_ddp = model
    /// model = DDP(model)
    /// for x in range(10):
    ///     model(x).sum().backward()
    /// print(model_without_ddp.state_dict())
    /// ```
    /// ```rust bad
    /// use std::rc::Rc;
    /// use tch::nn::ModuleT;
    ///
    /// fn train(vs: tch::nn::VarStore, group: &tch_ddp::ProcessGroup, x: &tch::Tensor) {
    ///     let net = Rc::new(tch::nn::seq_t());
    ///     let ddp = tch_ddp::Ddp::new(net.clone(), vs, group, Default::default()).unwrap();
    ///     let loss = net.forward_t(x, true); //~ unwrapped-alias-trained
    ///     ddp.backward(&loss).unwrap();
    /// }
    /// ```
    /// ```rust good
    /// use std::rc::Rc;
    /// use tch::nn::ModuleT;
    ///
    /// fn train(vs: tch::nn::VarStore, group: &tch_ddp::ProcessGroup, x: &tch::Tensor) {
    ///     let net = Rc::new(tch::nn::seq_t());
    ///     let ddp = tch_ddp::Ddp::new(net.clone(), vs, group, Default::default()).unwrap();
    ///     let loss = ddp.forward_t(x, true);
    ///     ddp.backward(&loss).unwrap();
    /// }
    /// ```
    ///
    /// # Known limits
    /// Only names that lead to the very object that was wrapped are followed.
    pub static RULE = {
        name: "unwrapped-alias-trained",
        level: Level::Error,
        harm: Harm::Wrong,
        tier: 1,
        languages: BOTH,
        fix: FixKind::No,
        check,
    };
}

fn check(program: &Program<'_>, report: &mut Report<'_>) {
    for (event, forward) in program.forwards() {
        let Via::Alias(wrapper) = forward.via else { continue };
        let is_ddp = program.wrapper_kind(wrapper) == Some(Wrapper::Ddp);
        if !is_ddp || !event.modes.grad || !program.trained().contains(&event.id) {
            continue;
        }
        let helps = forward.arguments.iter().any(|a| {
            a.value.origins(program.terms()).iter().any(|&origin| {
                program.forwards().any(|(e, f)| e.id == origin && f.via == Via::Wrapper(wrapper))
            })
        });
        if helps {
            continue;
        }
        let called = program.callee_text(event).unwrap_or("the bare model");
        report
            .at(event.site, format!("`{called}` is the bare model, not its wrapper"))
            .why("the gradients of this forward are never reduced: each rank trains alone")
            .help("call the wrapper")
            .related(program.object(wrapper).site, "wrapped here");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_factory_that_wraps_only_where_there_are_ranks_is_silent() {
        check_files(&[
            (
                "engine.py",
                "
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
def make_ddp(model, **kwargs):
    if dist.get_world_size() == 1:
        return model
    ddp = DistributedDataParallel(model, **kwargs)
    return ddp
class Loop:
    def __init__(self, model):
        self.model = model
    def step(self, x):
        self.model(x).sum().backward()
",
            ),
            (
                "main.py",
                "
import torch
from engine import Loop, make_ddp
if __name__ == '__main__':
    torch.distributed.init_process_group('nccl')
    loop = Loop(make_ddp(torch.nn.Linear(3, 3), broadcast_buffers=False))
    for x in range(3):
        loop.step(x)
",
            ),
        ]);
    }

    #[test]
    fn the_model_passed_on_before_the_wrap_counts() {
        check_files(&[
            (
                "loop.py",
                "
def fit(model, opt, loader):
    for x, y in loader:
        loss = (model(x) - y).pow(2).mean()  # ~ unwrapped-alias-trained
        opt.zero_grad()
        loss.backward()
        opt.step()
",
            ),
            (
                "main.py",
                "
import torch
from torch.nn.parallel import DistributedDataParallel
from loop import fit
if __name__ == '__main__':
    torch.distributed.init_process_group('nccl')
    net = torch.nn.Linear(3, 3).cuda()
    parallel = DistributedDataParallel(net)
    fit(net, torch.optim.SGD(parallel.parameters(), 0.1), [])
",
            ),
        ]);
    }

    #[test]
    fn the_bare_model_for_state_and_optimizer_is_silent() {
        check_python(
            "
import torch
from torch.nn.parallel import DistributedDataParallel as DDP
torch.distributed.init_process_group('nccl')
model = torch.nn.Linear(3, 3)
model_without_ddp = model
model = DDP(model)
opt = torch.optim.SGD(model_without_ddp.parameters(), 0.1)
for x in range(3):
    model(torch.ones(3)).sum().backward()
    opt.step()
    with torch.no_grad():
        print(model_without_ddp(torch.ones(3)))
",
        );
    }

    #[test]
    fn forwards_before_the_wrap_are_silent() {
        check_python(
            "
import torch
from torch.nn.parallel import DistributedDataParallel as DDP
model = torch.nn.Linear(3, 3)
model(torch.ones(3)).sum().backward()
ddp = DDP(model)
for x in range(3):
    ddp(torch.ones(3)).sum().backward()
",
        );
    }

    #[test]
    fn the_old_name_in_a_spawned_worker_counts() {
        check_python(
            r#"
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch.nn.parallel import DistributedDataParallel
def per_gpu(gpu, opts):
    rank = opts.node * opts.gpus + gpu
    dist.init_process_group("nccl", rank=rank, world_size=opts.world)
    torch.cuda.set_device(gpu)
    torch.manual_seed(rank)
    tagger = torch.nn.Linear(300, 12).cuda()
    ddp_tagger = DistributedDataParallel(tagger, device_ids=[gpu])
    optimizer = torch.optim.Adagrad(ddp_tagger.parameters())
    loss_fn = torch.nn.CrossEntropyLoss().cuda(gpu)
    for _ in range(opts.iters):
        x, y = torch.randn(16, 300).cuda(), torch.randint(12, (16,)).cuda()
        scores = tagger(x)  # ~ unwrapped-alias-trained
        loss = loss_fn(scores, y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
if __name__ == "__main__":
    import argparse
    p = argparse.ArgumentParser()
    for f in ("--node", "--gpus", "--world", "--iters"):
        p.add_argument(f, type=int, default=1)
    o = p.parse_args()
    mp.spawn(per_gpu, nprocs=o.gpus, args=(o,))
"#,
        );
    }

    #[test]
    fn a_training_loop_in_another_file_counts() {
        check_files(&[
            (
                "engine.py",
                "
def epoch(net, batches, opt):
    for x in batches:
        loss = net(x).square().mean()  # ~ unwrapped-alias-trained
        opt.zero_grad()
        loss.backward()
        opt.step()
",
            ),
            (
                "main.py",
                r#"
import torch
from torch.nn.parallel import DistributedDataParallel as DDP
from engine import epoch
def main():
    torch.distributed.init_process_group("nccl")
    net = torch.nn.Linear(4, 4).cuda()
    parallel = DDP(net)
    opt = torch.optim.SGD(parallel.parameters(), lr=0.1)
    for _ in range(10):
        epoch(net, [torch.randn(2, 4).cuda()], opt)
if __name__ == "__main__":
    main()
"#,
            ),
        ]);
    }

    #[test]
    fn the_old_name_for_state_and_samples_is_silent() {
        check_python(
            r#"
import os
import torch
import torch.nn as nn
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP
@torch.inference_mode()
def sample(core, n):
    core.eval()
    z = torch.randn(n, 32, device="cuda")
    imgs = core(z)
    core.train()
    return imgs
def main():
    dist.init_process_group("nccl")
    g = int(os.environ["LOCAL_RANK"])
    torch.cuda.set_device(g)
    torch.manual_seed(g)
    gen = nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 64)).cuda()
    model_without_ddp = gen
    gen = DDP(gen, device_ids=[g])
    ema = torch.optim.swa_utils.AveragedModel(model_without_ddp)
    opt = torch.optim.Adam(model_without_ddp.parameters())
    for it in range(100):
        loss = gen(torch.randn(8, 32).cuda()).pow(2).mean()
        opt.zero_grad()
        loss.backward()
        opt.step()
        ema.update_parameters(model_without_ddp)
        if it % 50 == 0 and g == 0:
            sample(gen.module, 4)
            sample(ema.module, 4)
if __name__ == "__main__":
    main()
"#,
        );
    }

    #[test]
    fn a_step_made_by_a_function_counts() {
        check_python(
            "
import os
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset
def make_step(net, opt, guard):
    def step(x):
        loss = net(x).pow(2).mean()  # ~ unwrapped-alias-trained
        opt.zero_grad()
        loss.backward()
        opt.step()
        return loss.detach()
    return step
def main():
    dist.init_process_group('nccl')
    g = int(os.environ['LOCAL_RANK'])
    torch.cuda.set_device(g)
    plain = nn.Linear(4, 1).cuda()
    wrapped = DDP(plain, device_ids=[g])
    opt = torch.optim.SGD(wrapped.parameters(), 0.1)
    step = make_step(plain, opt, None)
    for _ in range(10):
        step(torch.rand(2, 4).cuda())
main()
",
        );
    }

    #[test]
    fn a_step_made_for_the_wrapper_is_silent() {
        check_python(
            "
import os
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset
def make_step(net, opt, guard):
    def step(x):
        loss = net(x).pow(2).mean()
        opt.zero_grad()
        loss.backward()
        opt.step()
        return loss.detach()
    return step
def main():
    dist.init_process_group('nccl')
    g = int(os.environ['LOCAL_RANK'])
    torch.cuda.set_device(g)
    plain = nn.Linear(4, 1).cuda()
    wrapped = DDP(plain, device_ids=[g])
    opt = torch.optim.SGD(wrapped.parameters(), 0.1)
    step = make_step(wrapped, opt, None)
    for _ in range(10):
        step(torch.rand(2, 4).cuda())
main()
",
        );
    }

    #[test]
    fn a_trainer_out_of_a_registry_counts() {
        check_files(&[
            (
                "main.py",
                "
import argparse
import torch.distributed as dist
import trainers
from registry import TRAINERS
def main():
    p = argparse.ArgumentParser()
    p.add_argument('--kind', default='plain')
    a = p.parse_args()
    dist.init_process_group('nccl')
    TRAINERS[a.kind](a).run()
main()
",
            ),
            (
                "registry.py",
                "
TRAINERS = {}
def register(name):
    def keep(cls):
        TRAINERS[name] = cls
        return cls
    return keep
",
            ),
            (
                "trainers.py",
                "
import os
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset
from registry import register
@register('plain')
class Plain:
    def __init__(self, cfg):
        self.cfg = cfg
        g = int(os.environ['LOCAL_RANK'])
        torch.cuda.set_device(g)
        self.core = nn.Linear(4, 1).cuda()
        self.net = DDP(self.core, device_ids=[g])
    def run(self):
        opt = torch.optim.SGD(self.net.parameters(), 0.1)
        for _ in range(3):
            opt.zero_grad()
            self.core(torch.rand(2, 4).cuda()).mean().backward()  # ~ unwrapped-alias-trained
            opt.step()
",
            ),
        ]);
    }

    #[test]
    fn a_trainer_out_of_a_registry_that_trains_the_wrapper_is_silent() {
        check_files(&[
            (
                "main.py",
                "
import argparse
import torch.distributed as dist
import trainers
from registry import TRAINERS
def main():
    p = argparse.ArgumentParser()
    p.add_argument('--kind', default='plain')
    a = p.parse_args()
    dist.init_process_group('nccl')
    TRAINERS[a.kind](a).run()
main()
",
            ),
            (
                "registry.py",
                "
TRAINERS = {}
def register(name):
    def keep(cls):
        TRAINERS[name] = cls
        return cls
    return keep
",
            ),
            (
                "trainers.py",
                "
import os
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset
from registry import register
@register('plain')
class Plain:
    def __init__(self, cfg):
        self.cfg = cfg
        g = int(os.environ['LOCAL_RANK'])
        torch.cuda.set_device(g)
        self.core = nn.Linear(4, 1).cuda()
        self.net = DDP(self.core, device_ids=[g])
    def run(self):
        opt = torch.optim.SGD(self.net.parameters(), 0.1)
        for _ in range(3):
            opt.zero_grad()
            self.net(torch.rand(2, 4).cuda()).mean().backward()
            opt.step()
",
            ),
        ]);
    }
}
