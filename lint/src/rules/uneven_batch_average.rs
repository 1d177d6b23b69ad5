use crate::analysis::{ArgumentValue, Const, SAMPLES, Value};
use crate::prelude::*;
use crate::table::Role;

declare_rule! {
    /// The batch size depends on the rank, and the gradients are averaged as if it did not.
    ///
    /// `DistributedDataParallel` averages over ranks, not over samples: a rank with one sample
    /// weighs as much as a rank with four, so its sample counts four times. The recipe that
    /// gives rank 0 a smaller batch when its GPU is full does this, and its true global batch
    /// is `1 + 7 * 4 = 29`, not 25. Weight the loss by counts (`n_i * W / N`), or give every
    /// rank the same batch. Look first at why the first GPU is full: other processes' contexts
    /// on it, or checkpoints loaded without `map_location`.
    ///
    /// ```python bad
    /// import torch.distributed as dist
    /// from torch.utils.data import DataLoader
    ///
    /// dist.init_process_group("nccl")
    /// batch = 1 if dist.get_rank() == 0 else 4
    /// loader = DataLoader([0, 1, 2, 3], batch_size=batch)  # ~ uneven-batch-average
    /// ```
    /// ```python good
    /// import torch.distributed as dist
    /// from torch.utils.data import DataLoader
    ///
    /// dist.init_process_group("nccl")
    /// batch = 32 // dist.get_world_size()
    /// loader = DataLoader([0, 1, 2, 3], batch_size=batch)
    /// ```
    /// ```rust bad
    /// use tch_ddp::{DistributedSampler, Launch, ProcessGroup};
    ///
    /// fn main() -> anyhow::Result<()> {
    ///     let group = ProcessGroup::init(&Launch::from_env()?, Default::default())?;
    ///     let batch = if group.rank() == 0 { 1 } else { 4 };
    ///     let sampler = DistributedSampler::new(1000, &group).batch_size(batch); //~ uneven-batch-average
    ///     Ok(())
    /// }
    /// ```
    /// ```rust good
    /// use tch_ddp::{DistributedSampler, Launch, ProcessGroup};
    ///
    /// fn main() -> anyhow::Result<()> {
    ///     let group = ProcessGroup::init(&Launch::from_env()?, Default::default())?;
    ///     let batch = 32 / group.world_size();
    ///     let sampler = DistributedSampler::new(1000, &group).batch_size(batch);
    ///     Ok(())
    /// }
    /// ```
    ///
    /// # Known limits
    /// Any collective whose result goes into the loss is taken for the weighting.
    pub static RULE = {
        name: "uneven-batch-average",
        level: Level::Error,
        harm: Harm::Wrong,
        tier: 1,
        languages: BOTH,
        fix: FixKind::No,
        check,
    };
}

fn check(program: &Program<'_>, report: &mut Report<'_>) {
    if !program.is_distributed() || program.weights_by_counts() {
        return;
    }
    for (site, value) in program.batch_sizes() {
        if !program.depends_on_rank(&value) {
            continue;
        }
        let sizes = sizes(program, &value);
        let message = match sizes {
            Some((first, other)) => format!(
                "rank 0 takes batches of {first}, other ranks of {other}, \
                 and all gradients count the same"
            ),
            None => "the batch size depends on the rank, and all gradients count the same".into(),
        };
        let why = match sizes {
            Some((first, other)) => format!(
                "gradients are averaged over ranks, not samples; on 8 ranks the true global \
                 batch is {first} + 7*{other} = {}",
                first + 7 * other
            ),
            None => "gradients are averaged over ranks, not samples: the small batch weighs too \
                     much"
                .to_owned(),
        };
        report.at(site, message).why(why).help(match program.language {
            Language::Python => {
                "look first at why GPU 0 is full (`torch.cuda.set_device`, `map_location`); \
                 else scale each rank's loss by its count times world size over the total"
            }
            Language::Rust => {
                "look first at why GPU 0 is full; else use `ddp.weighted(Weight::of(n))`, \
                 which is exact for unequal counts"
            }
        });
    }
}

fn sizes(program: &Program<'_>, value: &Value) -> Option<(i64, i64)> {
    let on = |sample| match program.value_on(value, sample) {
        Some(Const::Int(n)) => Some(n),
        _ => None,
    };
    let (first, other) = (on(SAMPLES[0])?, on(SAMPLES[1])?);
    (first != other).then_some((first, other))
}

impl<'p> Program<'p> {
    /// Where batches get their size: loaders, builders of samplers, random batches.
    pub(super) fn batch_sizes(&self) -> Vec<(Site, Value)> {
        let mut found = Vec::new();
        let is_size = |a: &&ArgumentValue<'_>| a.name.is_some_and(|n| &*n == "batch_size");
        for event in self.events() {
            let crate::analysis::EventKind::Call(call) = &event.kind else { continue };
            match call.role {
                Role::Loader | Role::DistributedSampler | Role::OtherSampler => {
                    let given = call.arguments.iter().find(is_size);
                    found.extend(given.map(|a| (event.site, a.value.clone())));
                }
                Role::Random if self.language == Language::Rust => {
                    let size = self.random_batch(call);
                    found
                        .extend(size.map(|v| (self.trained_at(event.id).unwrap_or(event.site), v)));
                }
                _ => {}
            }
        }
        found.extend(self.built_batch_sizes());
        found
    }

    /// `sampler.batch_size(n)`.
    fn built_batch_sizes(&self) -> impl Iterator<Item = (Site, Value)> + '_ {
        self.objects().iter().filter(|o| o.role == Role::DistributedSampler).filter_map(|o| {
            let size = self.attribute_now(self.term_of(o.id), "batch_size")?;
            Some((o.site, size.clone()))
        })
    }

    /// The step that trains on what an event drew.
    fn trained_at(&self, drawn: crate::analysis::EventId) -> Option<Site> {
        [Role::FusedStep, Role::Backward].into_iter().find_map(|role| {
            let uses = |call: &crate::analysis::Call<'p>| {
                let given = call.arguments.iter().map(|a| &a.value).chain(&call.receiver);
                given.into_iter().any(|value| value.comes_from(self.terms(), drawn))
            };
            self.calls(role).find(|(_, call)| uses(call)).map(|(event, _)| event.site)
        })
    }

    /// `Tensor::randint(n, [batch], ..)`: rows drawn at random.
    fn random_batch(&self, call: &crate::analysis::Call<'p>) -> Option<Value> {
        if !call.name?.contains("randint") {
            return None;
        }
        let size = call.arguments.iter().find(|a| a.name.is_some_and(|n| &*n == "size"))?;
        self.contents(size.value.single()?).into_iter().next()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_recipe_for_a_full_gpu_counts_and_tells_the_true_batch() {
        check_python(
            "
import argparse, os, torch
import torch.distributed as dist
from torch.utils.data import DataLoader
p = argparse.ArgumentParser()
p.add_argument('-b', '--batch-size', default=32, type=int)
args = p.parse_args()
def main_worker(gpu, args):
    dist.init_process_group('nccl')
    args.rank = int(os.environ['RANK'])
    args.batch_size = 4
    if args.rank == 0:
        args.batch_size = 1
    loader = DataLoader(list(range(100)), batch_size=args.batch_size)  # ~ uneven-batch-average: batches of 1
    for x in loader:
        pass
torch.multiprocessing.spawn(main_worker, nprocs=8, args=(args,))
for _ in range(1):
    pass
",
        );
    }

    #[test]
    fn a_helper_that_builds_the_loader_counts() {
        check_files(&[
            (
                "data.py",
                "
from torch.utils.data import DataLoader
def make_loader(dataset, size):
    return DataLoader(dataset, size)  # ~ uneven-batch-average
",
            ),
            (
                "main.py",
                "
import torch.distributed as dist
from data import make_loader
if __name__ == '__main__':
    dist.init_process_group('nccl')
    rank = dist.get_rank()
    make_loader([1, 2, 3], 8 if rank > 0 else 2)
",
            ),
        ]);
    }

    #[test]
    fn a_loss_weighted_by_counts_is_silent() {
        check_python(
            "
import torch
import torch.distributed as dist
from torch.utils.data import DataLoader
dist.init_process_group('nccl')
rank = dist.get_rank()
net = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(2, 2))
for x in DataLoader([torch.ones(2)] * 9, batch_size=1 if rank == 0 else 4):
    n = torch.tensor(float(len(x)))
    total = n.clone()
    dist.all_reduce(total)
    loss = net(x).mean() * n * dist.get_world_size() / total
    loss.backward()
",
        );
    }

    #[test]
    fn an_equal_share_of_a_total_is_silent() {
        check_python(
            "
import torch.distributed as dist
from torch.utils.data import DataLoader
dist.init_process_group('nccl')
total = 256
for x in DataLoader([1, 2], batch_size=total // dist.get_world_size()):
    pass
",
        );
    }

    #[test]
    fn weights_in_rust_are_silent() {
        check_rust(
            "
use tch_ddp::{Ddp, DistributedSampler, Launch, ProcessGroup, Weight};
fn main() -> anyhow::Result<()> {
    let group = ProcessGroup::init(&Launch::from_env()?, Default::default())?;
    let vs = tch::nn::VarStore::new(group.device());
    let net = tch::nn::seq_t();
    let ddp = Ddp::new(net, vs, &group, Default::default())?;
    let mut opt = tch::nn::Adam::default().build(ddp.vars(), 1e-3)?;
    let batch = if group.rank() == 0 { 1 } else { 4 };
    let sampler = DistributedSampler::new(100, &group).batch_size(batch);
    for rows in sampler.epoch(0) {
        let loss = ddp.forward_t(&rows, true).mean(tch::Kind::Float);
        ddp.weighted(Weight::of(batch)).backward_step(&mut opt, &loss)?;
    }
    Ok(())
}
",
        );
    }

    #[test]
    fn a_validation_loader_on_one_rank_is_silent() {
        check_python(
            "
import torch.distributed as dist
from torch.utils.data import DataLoader
dist.init_process_group('nccl')
if dist.get_rank() == 0:
    val = DataLoader([1, 2], batch_size=1)
train = DataLoader([1, 2], batch_size=4)
for x in train:
    pass
",
        );
    }
}
