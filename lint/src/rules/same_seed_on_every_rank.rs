use crate::analysis::{Call, Event, EventKind, Reach, Taint};
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
        languages: PYTHON,
        fix: FixKind::No,
        check,
    };
}

fn check(program: &Program<'_>, report: &mut Report<'_>) {
    if !program.is_distributed() {
        return;
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
}
