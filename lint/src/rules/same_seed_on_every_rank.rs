use crate::analysis::{Call, Event, EventId, EventKind, Reach, Taint, Value};
use crate::prelude::*;
use crate::table::Role;

declare_rule! {
    /// All ranks draw the same random training inputs, because all use one seed.
    ///
    /// One seed for building the model is right, and a sampler wants it. But noise, cameras or
    /// time steps drawn in the training step are then the same on every rank: several devices
    /// do the work of one. Seed again with the rank once the model is built.
    ///
    /// ```python bad
    /// import torch
    /// import torch.distributed as dist
    /// from torch.nn.parallel import DistributedDataParallel as DDP
    ///
    /// dist.init_process_group("nccl")
    /// torch.manual_seed(42)  # ~ same-seed-on-every-rank
    /// model = DDP(torch.nn.Linear(2, 2))
    /// for step in range(100):
    ///     model(torch.randn(8, 2)).sum().backward()
    /// ```
    /// ```python good
    /// import torch
    /// import torch.distributed as dist
    /// from torch.nn.parallel import DistributedDataParallel as DDP
    ///
    /// dist.init_process_group("nccl")
    /// torch.manual_seed(42)
    /// model = DDP(torch.nn.Linear(2, 2))
    /// torch.manual_seed(42 + dist.get_rank())
    /// for step in range(100):
    ///     model(torch.randn(8, 2)).sum().backward()
    /// ```
    /// ```rust bad
    /// use tch::{Kind, Tensor, nn};
    /// use tch_ddp::{Ddp, Launch, ProcessGroup};
    ///
    /// struct Noisy { out: nn::Linear }
    ///
    /// impl Noisy {
    ///     fn forward(&self, x: &Tensor) -> Tensor {
    ///         (x + x.randn_like()).apply(&self.out)
    ///     }
    /// }
    ///
    /// fn train(net: Noisy, vs: nn::VarStore, x: &Tensor) -> anyhow::Result<()> {
    ///     let group = ProcessGroup::init(&Launch::from_env()?, Default::default())?;
    ///     tch::manual_seed(1); //~ same-seed-on-every-rank
    ///     let ddp = Ddp::new(net, vs, &group, Default::default())?;
    ///     let loss = ddp.run(|m| m.forward(x))?.mean(Kind::Float);
    ///     ddp.backward(&loss)?;
    ///     Ok(())
    /// }
    /// ```
    /// ```rust good
    /// use tch::{Kind, Tensor, nn};
    /// use tch_ddp::{Ddp, Launch, ProcessGroup};
    ///
    /// struct Noisy { out: nn::Linear }
    ///
    /// impl Noisy {
    ///     fn forward(&self, x: &Tensor) -> Tensor {
    ///         (x + x.randn_like()).apply(&self.out)
    ///     }
    /// }
    ///
    /// fn train(net: Noisy, vs: nn::VarStore, x: &Tensor) -> anyhow::Result<()> {
    ///     let group = ProcessGroup::init(&Launch::from_env()?, Default::default())?;
    ///     tch::manual_seed(1);
    ///     let ddp = Ddp::new(net, vs, &group, Default::default())?;
    ///     tch::manual_seed(1 + group.rank() as i64);
    ///     let loss = ddp.run(|m| m.forward(x))?.mean(Kind::Float);
    ///     ddp.backward(&loss)?;
    ///     Ok(())
    /// }
    /// ```
    ///
    /// # Known limits
    /// Only numbers drawn in the training step that go into the model. Dropout, and
    /// augmentation inside data sets, are silent. A generator given to the call is taken to be
    /// seeded by rank.
    pub static RULE = {
        name: "same-seed-on-every-rank",
        level: Level::Warning,
        harm: Harm::Waste,
        tier: 2,
        languages: BOTH,
        fix: FixKind::No,
        check,
    };
}

fn check(program: &Program<'_>, report: &mut Report<'_>) {
    if !program.is_distributed() {
        return;
    }
    if program.language == Language::Rust {
        return check_tch(program, report);
    }
    for library in [Library::Torch, Library::Numpy, Library::Python] {
        let Some(drawn) = drawn_for_training(program, library) else { continue };
        let seeds: Vec<_> =
            program.calls(Role::Seed).filter(|(_, call)| library.is_seeded_by(call)).collect();
        if seeds.iter().any(|(event, call)| may_differ(program, event, call)) {
            continue;
        }
        let Some((seed, _)) = seeds.last() else { continue };
        let drawn_text = program.callee_text(drawn).unwrap_or("this");
        report
            .at(helper_call(program, seed), "every rank is seeded alike")
            .why(format!(
                "`{drawn_text}` then gives all ranks the same numbers in each training step: \
                 several devices do the work of one"
            ))
            .help("add the rank to the seed once the model is built: `seed + dist.get_rank()`")
            .related(drawn.site, "training inputs are drawn here");
    }
}

/// tch: noise and dropout that the one generator of libtorch drives in the wrapped forward.
fn check_tch(program: &Program<'_>, report: &mut Report<'_>) {
    let seeds: Vec<_> = program
        .calls(Role::Seed)
        .filter(|(_, call)| call.name.is_some_and(|n| n.starts_with("tch.")))
        .collect();
    let differs =
        |call: &Call<'_>| call.arguments.iter().any(|a| program.depends_on_rank(&a.value));
    let is_apart = |event: &Event<'_>| program.reach(event.path) != Reach::Every;
    if seeds.iter().any(|(event, call)| differs(call) || is_apart(event)) {
        return;
    }
    let of_cpu =
        seeds.iter().rfind(|(_, call)| call.name.is_some_and(|n| &*n == "tch.manual_seed"));
    let Some((seed, call)) = of_cpu.or(seeds.last()) else { return };
    let is_known = |value: &Value| program.value_on_all(value).is_some();
    let drawn = drawn_in_forward(program).or_else(|| drawn_for_tch(program));
    let Some(drawn) = drawn else { return };
    if !call.arguments.iter().all(|a| is_known(&a.value)) {
        return;
    }
    report
        .at(seed.site, "every rank is seeded alike")
        .why(
            "noise and dropout masks of a training step are then the same on all ranks: their \
             batches differ less than they look",
        )
        .help(
            "add the rank once the model is built: `tch::manual_seed(seed + group.rank() as i64)`",
        )
        .related(drawn.site, "random numbers are drawn here");
}

/// A training forward of the wrapped model draws numbers, or drops some.
fn drawn_in_forward<'a, 'p>(program: &'a Program<'p>) -> Option<&'a Event<'p>> {
    let trains = program.ddp_training().next().is_some();
    let inside = |event: &Event<'_>| event.modes.wrapper.is_some() && event.modes.grad;
    let drops = |text: &str| text.contains(".dropout(") || text.contains("_dropout(");
    program.events().iter().filter(|_| trains).find(|event| match &event.kind {
        EventKind::Call(call) if call.role == Role::Random => inside(event),
        // The closures of a chain are seen where the chain is built.
        EventKind::Call(call) if call.role == Role::AddModule => drops(program.text(event.site)),
        _ => inside(event) && drops(program.function_text(event)),
    })
}

/// tch: noise drawn in a training step that goes into a distributed model.
fn drawn_for_tch<'a, 'p>(program: &'a Program<'p>) -> Option<&'a Event<'p>> {
    program.ddp_training().find_map(|(forward, call)| {
        let origins = program.origins_of(&call.result);
        let has_data = origins.iter().any(|&origin| match &program.event(origin).kind {
            EventKind::Call(c) => matches!(c.role, Role::SetEpoch | Role::Loader),
            _ => false,
        });
        let drawn = origins.iter().map(|&origin| program.event(origin)).find(|event| {
            let EventKind::Call(drawn) = &event.kind else { return false };
            let together = || {
                program.loops(event.loops).any(|(_, node)| program.is_within(forward, node.site))
            };
            drawn.role == Role::Random && is_noise(drawn) && together() && !program.is_orphan(event)
        });
        drawn.filter(|drawn| has_data && !is_shared_out(program, drawn.id))
    })
}

/// Every rank draws for all, and takes its own part by its rank.
fn is_shared_out(program: &Program<'_>, drawn: EventId) -> bool {
    program.events().iter().filter_map(Event::call).any(|call| {
        let is_drawn = call.receiver.as_ref().is_some_and(|r| r.comes_from(program.terms(), drawn));
        is_drawn && call.arguments.iter().any(|a| program.depends_on_rank(&a.value))
    })
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Library {
    Torch,
    Numpy,
    Python,
}

impl Library {
    fn of(name: &str) -> Option<Library> {
        match name.split('.').next()? {
            "torch" => Some(Library::Torch),
            "numpy" => Some(Library::Numpy),
            "random" => Some(Library::Python),
            _ => None,
        }
    }

    /// Helpers of frameworks seed all three.
    fn is_seeded_by(self, call: &Call<'_>) -> bool {
        call.name.is_some_and(|name| Library::of(&name).is_none_or(|of| of == self))
    }
}

/// A number drawn in a training step that goes into a distributed model.
fn drawn_for_training<'a, 'p>(program: &'a Program<'p>, library: Library) -> Option<&'a Event<'p>> {
    for (forward, call) in program.ddp_training() {
        let origins: Vec<_> =
            call.arguments.iter().flat_map(|a| program.origins_of(&a.value)).collect();
        let has_data = origins.iter().any(
            |&o| matches!(&program.event(o).kind, EventKind::Call(c) if c.role == Role::Loader),
        );
        let drawn = origins.iter().map(|&o| program.event(o)).find(|event| {
            let EventKind::Call(drawn) = &event.kind else { return false };
            drawn.role == Role::Random
                && drawn.name.and_then(|n| Library::of(&n)) == Some(library)
                && drawn.argument("generator").is_absent()
                && (!has_data || is_noise(drawn))
                && program.loops(event.loops).next().is_some()
                && program.loops(event.loops).any(|(_, n)| program.is_within(forward, n.site))
                && !program.is_orphan(event)
        });
        if drawn.is_some() {
            return drawn;
        }
    }
    None
}

/// Noise, rather than a choice that all ranks may well make alike.
fn is_noise(call: &Call<'_>) -> bool {
    call.name.is_some_and(|name| {
        let last = name.rsplit('.').next().unwrap_or_default();
        matches!(
            last,
            "randn" | "randn_like" | "rand" | "rand_like" | "randint" | "randint_like" | "normal"
        )
    })
}

/// The seed holds the rank, the clock, or something not known; or only some ranks set it.
fn may_differ(program: &Program<'_>, event: &Event<'_>, call: &Call<'_>) -> bool {
    let specific = |name: &str| matches!(name, "device_specific" | "diff_rank_seed" | "rank");
    program.is_orphan(event)
        || program.reach(event.path) != Reach::Every
        || call.arguments.is_empty()
        || call.arguments.iter().any(|argument| {
            let taint = argument.value.taint(program.terms());
            argument.spread
                || argument.name.is_some_and(|n| specific(&n))
                || taint.has(Taint::RANK.with(Taint::LOCAL).with(Taint::RANDOM))
        })
}

/// A function that does nothing but seed stands for its call.
fn helper_call(program: &Program<'_>, seed: &Event<'_>) -> Site {
    let mut site = seed.site;
    let mut frame = program.frame(seed.frame);
    for _ in 0..3 {
        let only_seeds = program.events().iter().filter(|e| e.frame == frame.id).all(|event| {
            match &event.kind {
                EventKind::Call(call) => {
                    matches!(call.role, Role::Seed | Role::Plain | Role::SetDevice)
                }
                EventKind::Forward(_) => false,
                _ => true,
            }
        });
        let (true, Some(call), Some(caller)) = (only_seeds, frame.call, frame.caller) else {
            break;
        };
        if frame.function.is_none() {
            break;
        }
        site = call;
        frame = program.frame(caller);
    }
    site
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dropout_of_tch_counts_unless_seeds_differ() {
        let program = |again: &str, mark: &str| {
            [
                "
use tch::{nn, nn::ModuleT, Kind, Tensor};
use tch_ddp::{Ddp, GroupOptions, Launch, ProcessGroup};
const SEED: i64 = 3;
fn net(p: nn::Path) -> nn::SequentialT {
    nn::seq_t()
        .add(nn::linear(&p / \"a\", 4, 4, Default::default()))
        .add_fn_t(|x, train| x.relu().dropout(0.2, train))
        .add(nn::linear(&p / \"b\", 4, 1, Default::default()))
}
fn main() -> anyhow::Result<()> {
    let group = ProcessGroup::init(&Launch::from_env()?, GroupOptions::default())?;
    tch::manual_seed(SEED);",
                mark,
                "
    let vs = nn::VarStore::new(group.device());
    let ddp = Ddp::new(net(vs.root()), vs, &group, Default::default())?;",
                again,
                "
    let x = Tensor::read_npy(\"x.npy\")?;
    for _ in 0..10 {
        let loss = ddp.forward_t(&x, true).mean(Kind::Float);
        ddp.backward(&loss)?;
    }
    Ok(())
}
",
            ]
            .concat()
        };
        check_rust(&program("", " //~ same-seed-on-every-rank"));
        check_rust(&program("\n    tch::manual_seed(SEED + group.rank() as i64);", ""));
    }

    #[test]
    fn a_seed_for_the_initial_weights_alone_is_silent_in_rust() {
        check_rust(
            "
use tch::{nn, nn::Module, Kind, Tensor};
use tch_ddp::{Ddp, GroupOptions, Launch, ProcessGroup};
fn main() -> anyhow::Result<()> {
    let group = ProcessGroup::init(&Launch::from_env()?, GroupOptions::default())?;
    tch::manual_seed(0);
    let vs = nn::VarStore::new(group.device());
    let net = nn::linear(vs.root(), 2, 1, Default::default());
    let ddp = Ddp::new(net, vs, &group, Default::default())?;
    let loss = ddp.run(|m| m.forward(&Tensor::from_slice(&[1.0]))).unwrap().mean(Kind::Float);
    ddp.backward(&loss)?;
    Ok(())
}
",
        );
    }

    #[test]
    fn a_helper_in_another_file_counts_where_it_is_called() {
        check_files(&[
            (
                "utils.py",
                "
import random
import numpy
import torch
def fix(seed, deterministic=False):
    random.seed(seed)
    numpy.random.seed(seed)
    torch.manual_seed(seed)
    torch.cuda.manual_seed_all(seed)
    if deterministic:
        torch.backends.cudnn.deterministic = True
",
            ),
            (
                "main.py",
                "
import argparse, torch
from torch.nn.parallel import DistributedDataParallel as DDP
import utils
def main():
    parser = argparse.ArgumentParser()
    parser.add_argument('--seed', default=1, type=int)
    args = parser.parse_args()
    torch.distributed.init_process_group('nccl')
    utils.fix(args.seed)  # ~ same-seed-on-every-rank
    generator, critic = DDP(torch.nn.Linear(8, 8)), DDP(torch.nn.Linear(8, 1))
    for i in range(10):
        z = torch.randn(16, 8, device='cuda')
        loss = -critic(generator(z)).mean()
        loss.backward()
if __name__ == '__main__':
    main()
",
            ),
        ]);
    }

    #[test]
    fn noise_for_a_diffusion_step_counts() {
        check_python(
            "
import torch
import torch.multiprocessing as mp
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, DistributedSampler
def worker(rank, n, seed):
    torch.distributed.init_process_group('nccl', rank=rank, world_size=n)
    torch.manual_seed(seed)  # ~ same-seed-on-every-rank
    data = torch.ones(64, 4)
    sampler = DistributedSampler(data)
    net = DDP(torch.nn.Linear(4, 4).to(rank), device_ids=[rank])
    for epoch in range(3):
        sampler.set_epoch(epoch)
        for x in DataLoader(data, sampler=sampler):
            noise = torch.randn_like(x)
            (net(x + noise) - noise).pow(2).mean().backward()
if __name__ == '__main__':
    mp.spawn(worker, args=(4, 0), nprocs=4)
",
        );
    }

    #[test]
    fn a_seed_with_the_rank_is_silent() {
        check_files(&[
            (
                "seeds.py",
                "
import torch
import torch.distributed as dist
def seed_all(seed):
    torch.manual_seed(seed)
def reseed(seed):
    seed_all(seed * 1000 + dist.get_rank())
",
            ),
            (
                "main.py",
                "
import torch
from torch.nn.parallel import DistributedDataParallel as DDP
from seeds import reseed, seed_all
torch.distributed.init_process_group('nccl')
seed_all(0)
net = DDP(torch.nn.Linear(4, 4))
reseed(0)
for step in range(3):
    net(torch.randn(2, 4)).sum().backward()
",
            ),
        ]);
    }

    #[test]
    fn seeds_without_random_inputs_are_silent() {
        check_python(
            "
import random, numpy, torch
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, DistributedSampler
torch.distributed.init_process_group('nccl')
random.seed(0)
numpy.random.seed(0)
torch.manual_seed(0)
data = torch.randn(64, 4)
sampler = DistributedSampler(data)
net = DDP(torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Dropout()))
for epoch in range(3):
    sampler.set_epoch(epoch)
    for x in DataLoader(data, sampler=sampler):
        if random.random() < 0.5:
            x = x.flip(0)
        mix = numpy.random.beta(1, 1)
        net(x * mix).sum().backward()
",
        );
    }

    #[test]
    fn evaluation_inputs_and_generators_are_silent() {
        check_python(
            "
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP
dist.init_process_group('nccl')
torch.manual_seed(0)
own = torch.Generator().manual_seed(dist.get_rank())
net = DDP(torch.nn.Linear(4, 4))
for step in range(3):
    net(torch.randn(2, 4, generator=own)).sum().backward()
with torch.no_grad():
    for step in range(3):
        net(torch.randn(2, 4))
",
        );
    }

    #[test]
    fn a_seed_of_the_command_line_counts() {
        check_python(
            r#"
import argparse
import os
import random
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP
def set_seed(args):
    random.seed(args.seed)
    torch.manual_seed(args.seed)
    if args.n_gpu > 0:
        torch.cuda.manual_seed_all(args.seed)
def main():
    p = argparse.ArgumentParser()
    p.add_argument("--seed", type=int, default=42)
    p.add_argument("--noise", type=float, default=0.1)
    args = p.parse_args()
    dist.init_process_group("nccl")
    args.rank = dist.get_rank()
    args.n_gpu = 1
    g = int(os.environ["LOCAL_RANK"])
    torch.cuda.set_device(g)
    set_seed(args)  # ~ same-seed-on-every-rank
    net = DDP(torch.nn.Linear(3, 3).cuda(), device_ids=[g])
    opt = torch.optim.AdamW(net.parameters())
    for _ in range(100):
        t = torch.rand(16, 1, device="cuda")
        x = torch.randn(16, 3, device="cuda") * t
        loss = net(x).pow(2).mean()
        opt.zero_grad(); loss.backward(); opt.step()
if __name__ == "__main__":
    main()
"#,
        );
    }

    #[test]
    fn generators_seeded_in_a_loop_count() {
        check_python(
            "
import os
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset
import random
import numpy as np
def seed_all(n):
    for fn in (random.seed, np.random.seed, torch.manual_seed, torch.cuda.manual_seed_all):
        fn(n)
def main():
    dist.init_process_group('nccl')
    g = int(os.environ['LOCAL_RANK'])
    torch.cuda.set_device(g)
    seed_all(1234)  # ~ same-seed-on-every-rank
    net = DDP(nn.Linear(4, 1).cuda(), device_ids=[g])
    opt = torch.optim.SGD(net.parameters(), 0.1)
    for _ in range(100):
        noise = torch.randn(8, 4, device='cuda')
        opt.zero_grad()
        net(noise).mean().backward()
        opt.step()
main()
",
        );
        check_python(
            "
import os
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset
import random
import numpy as np
def seed_all(n):
    for fn in (random.seed, np.random.seed, torch.manual_seed, torch.cuda.manual_seed_all):
        fn(n)
def main():
    dist.init_process_group('nccl')
    g = int(os.environ['LOCAL_RANK'])
    torch.cuda.set_device(g)
    seed_all(1234 + dist.get_rank())
    net = DDP(nn.Linear(4, 1).cuda(), device_ids=[g])
    opt = torch.optim.SGD(net.parameters(), 0.1)
    for _ in range(100):
        noise = torch.randn(8, 4, device='cuda')
        opt.zero_grad()
        net(noise).mean().backward()
        opt.step()
main()
",
        );
    }
}
