use rustc_hash::FxHashSet;

use crate::analysis::{Call, Event, LoopId, Reach, Taint};
use crate::prelude::*;
use crate::table::Role;

declare_rule! {
    /// Output or a checkpoint is tied to one rank's epoch, but the ranks' epochs differ.
    ///
    /// Where the batch size or the share of data depends on the rank, so does the number of
    /// steps in an epoch: rank 0 with batches of 1 beside batches of 4 is in its epoch 25 when
    /// the others have finished 100. What is printed, saved, evaluated or scheduled by rank 0's
    /// epochs then says nothing about the model. Count steps or samples that all ranks agree
    /// on, or give each rank a share in proportion to its batch.
    ///
    /// ```python bad
    /// import torch
    /// import torch.distributed as dist
    /// from torch.utils.data import DataLoader
    ///
    /// dist.init_process_group("nccl")
    /// rank = dist.get_rank()
    /// # ddp-lint: allow(uneven-batch-average)
    /// loader = DataLoader(range(100), batch_size=1 if rank == 0 else 4)
    /// for epoch in range(90):
    ///     for x in loader:
    ///         pass
    ///     if rank == 0:
    ///         torch.save({"epoch": epoch}, "last.pt")  # ~ uneven-epoch-output
    /// ```
    /// ```python good
    /// import torch
    /// import torch.distributed as dist
    /// from torch.utils.data import DataLoader
    ///
    /// dist.init_process_group("nccl")
    /// rank = dist.get_rank()
    /// loader = DataLoader(range(100), batch_size=4)
    /// for epoch in range(90):
    ///     for x in loader:
    ///         pass
    ///     if rank == 0:
    ///         torch.save({"epoch": epoch}, "last.pt")
    /// ```
    /// ```rust bad
    /// use tch_ddp::{DistributedSampler, Launch, ProcessGroup};
    ///
    /// fn main() -> anyhow::Result<()> {
    ///     let group = ProcessGroup::init(&Launch::from_env()?, Default::default())?;
    ///     let batch = if group.rank() == 0 { 1 } else { 4 };
    ///     // ddp-lint: allow(uneven-batch-average)
    ///     let sampler = DistributedSampler::new(1000, &group).batch_size(batch);
    ///     for epoch in 0..90 {
    ///         for rows in sampler.epoch(epoch) {
    ///             rows.print();
    ///         }
    ///         if group.is_main() {
    ///             println!("epoch {epoch}"); //~ uneven-epoch-output
    ///         }
    ///     }
    ///     Ok(())
    /// }
    /// ```
    /// ```rust good
    /// use tch_ddp::{DistributedSampler, Launch, ProcessGroup};
    ///
    /// fn main() -> anyhow::Result<()> {
    ///     let group = ProcessGroup::init(&Launch::from_env()?, Default::default())?;
    ///     let sampler = DistributedSampler::new(1000, &group).batch_size(4);
    ///     for epoch in 0..90 {
    ///         for rows in sampler.epoch(epoch) {
    ///             rows.print();
    ///         }
    ///         if group.is_main() {
    ///             println!("epoch {epoch}");
    ///         }
    ///     }
    ///     Ok(())
    /// }
    /// ```
    ///
    /// # Known limits
    /// A sampler of one's own that is given the batch size is taken for a proportional share.
    pub static RULE = {
        name: "uneven-epoch-output",
        level: Level::Error,
        harm: Harm::Wrong,
        tier: 1,
        languages: BOTH,
        fix: FixKind::No,
        check,
    };
}

fn check(program: &Program<'_>, report: &mut Report<'_>) {
    if !program.is_distributed() {
        return;
    }
    let epochs = uneven_epochs(program);
    if epochs.is_empty() {
        return;
    }
    let mut told = FxHashSet::default();
    for role in [Role::Save, Role::WriteFile, Role::Print, Role::Log, Role::TrackerLog] {
        for (event, call) in program.calls(role) {
            let innermost = program.loops(event.loops).next().map(|(id, _)| id);
            let Some(epoch) = innermost.filter(|id| epochs.contains(id)) else { continue };
            let keyed = matches!(program.reach(event.path), Reach::Main | Reach::LocalMain);
            if keyed && !counts_steps(program, call) && told.insert((role, epoch)) {
                tell(program, report, event, role);
            }
        }
    }
}

/// Loops around a loop over a loader whose length depends on the rank.
fn uneven_epochs(program: &Program<'_>) -> FxHashSet<LoopId> {
    let mut epochs = FxHashSet::default();
    let uneven: Vec<_> = program
        .objects()
        .iter()
        .filter(|o| matches!(o.role, Role::Loader | Role::DistributedSampler))
        .filter(|o| {
            let size = o
                .arguments
                .iter()
                .find(|a| a.name.is_some_and(|n| &*n == "batch_size"))
                .map(|a| &a.value)
                .or_else(|| program.attribute_now(program.term_of(o.id), "batch_size"));
            size.is_some_and(|size| program.depends_on_rank(size)) && !has_own_share(program, o)
        })
        .collect();
    for object in uneven {
        let term = program.term_of(object.id);
        let walked: Vec<LoopId> = program
            .all_loops()
            .filter(|(_, node)| {
                node.over.is_some_and(|over| {
                    over == term
                        || program.walks(over, term)
                        || object.event.is_some_and(|e| program.terms().origins(over).contains(&e))
                })
            })
            .map(|(id, _)| id)
            .collect();
        for inner in walked {
            epochs.extend(program.loops(Some(inner)).skip(1).map(|(id, _)| id));
        }
    }
    epochs
}

/// The sampler is of the project's own making, or shares are given to it.
fn has_own_share(program: &Program<'_>, loader: &crate::analysis::Object<'_>) -> bool {
    let given = |name: &str| loader.arguments.iter().find(|a| a.name.is_some_and(|n| &*n == name));
    if given("batch_sampler").is_some() {
        return true;
    }
    let Some(sampler) = given("sampler").and_then(|a| a.value.single()) else {
        return program.attribute_now(program.term_of(loader.id), "shares").is_some();
    };
    match program.object_of(sampler) {
        Some(object) => program.class_of(object).is_some(),
        None => program.as_none(sampler).is_none(),
    }
}

/// What is said counts steps or samples that a collective agreed on.
fn counts_steps(program: &Program<'_>, call: &Call<'_>) -> bool {
    let agreed = |event: &Event<'_>| event.call().is_some_and(|call| call.role == Role::Collective);
    call.arguments.iter().any(|a| {
        !a.value.taint(program.terms()).has(Taint::LOCAL)
            && a.value.origins(program.terms()).iter().any(|&origin| agreed(program.event(origin)))
    })
}

fn tell(program: &Program<'_>, report: &mut Report<'_>, event: &Event<'_>, role: Role) {
    let what = match role {
        Role::Save | Role::WriteFile => "the file is written",
        Role::Print | Role::Log => "the output is written",
        _ => "the metric is logged",
    };
    report
        .at(event.site, format!("{what} by the epochs of one rank, but ranks differ in them"))
        .why(
            "batch sizes differ between ranks, so their epochs drift apart: one rank's says little",
        )
        .help(match program.language {
            Language::Python => {
                "give each rank a share of the data in proportion to its batch, \
                 or count steps that all ranks agree on"
            }
            Language::Rust => {
                "give the sampler shares in proportion to the batches (`BatchPlan`), \
                 or count steps that all ranks agree on"
            }
        });
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_print_of_the_epoch_counts() {
        check_python(
            "
import torch.distributed as dist
from torch.utils.data import DataLoader
dist.init_process_group('nccl')
rank = dist.get_rank()
size = 16
if rank == 0:
    size = 4
loader = DataLoader(list(range(100)), batch_size=size)  # ~ uneven-batch-average
for epoch in range(10):
    for x in loader:
        pass
    if rank == 0:
        print('finished', epoch)  # ~ uneven-epoch-output: the output
",
        );
    }

    #[test]
    fn a_training_function_in_another_file_counts() {
        check_files(&[
            (
                "engine.py",
                "
import torch
def fit(loader, rank, epochs):
    for epoch in range(epochs):
        step(loader)
        if rank == 0:
            torch.save({}, f'{epoch}.pt')  # ~ uneven-epoch-output: the file
def step(loader):
    for x in loader:
        pass
",
            ),
            (
                "main.py",
                "
import torch.distributed as dist
from torch.utils.data import DataLoader
from engine import fit
if __name__ == '__main__':
    dist.init_process_group('nccl')
    rank = dist.get_rank()
    loader = DataLoader([1, 2, 3], 1 if rank == 0 else 8)  # ~ uneven-batch-average
    fit(loader, rank, 3)
",
            ),
        ]);
    }

    #[test]
    fn equal_batches_are_silent() {
        check_python(
            "
import torch.distributed as dist
from torch.utils.data import DataLoader
dist.init_process_group('nccl')
rank = dist.get_rank()
loader = DataLoader(list(range(100)), batch_size=8)
for epoch in range(10):
    for x in loader:
        pass
    if rank == 0:
        print('finished', epoch)
",
        );
    }

    #[test]
    fn output_by_steps_is_silent() {
        check_python(
            "
import torch.distributed as dist
from torch.utils.data import DataLoader
dist.init_process_group('nccl')
rank = dist.get_rank()
loader = DataLoader(list(range(100)), batch_size=2 if rank == 0 else 8)  # ~ uneven-batch-average
for epoch in range(10):
    for step, x in enumerate(loader):
        if rank == 0 and step % 10 == 0:
            print('step', step)
",
        );
    }

    #[test]
    fn a_proportional_sampler_is_silent() {
        check_python(
            "
import torch.distributed as dist
from torch.utils.data import DataLoader, Sampler
class Share(Sampler):
    def __init__(self, data, sizes, rank):
        self.data, self.sizes, self.rank = data, sizes, rank
    def __iter__(self):
        return iter(range(self.rank, len(self.data), sum(self.sizes)))
dist.init_process_group('nccl')
rank = dist.get_rank()
size = 2 if rank == 0 else 8
data = list(range(100))
loader = DataLoader(data, batch_size=size, sampler=Share(data, [2, 8], rank))  # ~ uneven-batch-average
for epoch in range(10):
    for x in loader:
        pass
    if rank == 0:
        print('finished', epoch)
",
        );
    }

    #[test]
    fn a_hook_in_another_file_counts() {
        check_files(&[
            (
                "hooks.py",
                r#"
import torch
class SaveHook:
    def after_epoch(self, model, epoch, rank):
        if rank == 0 and epoch % 5 == 0:
            torch.save(model.module.state_dict(), f"{epoch}.pt")  # ~ uneven-epoch-output
"#,
            ),
            (
                "loaders.py",
                "
from torch.utils.data import DataLoader, DistributedSampler
def loader(data, rank):
    size = 1 if rank == 0 else 4
    return DataLoader(data, batch_size=size, sampler=DistributedSampler(data))
",
            ),
            (
                "main.py",
                r#"
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from hooks import SaveHook
from loaders import loader
def main(data):
    dist.init_process_group("nccl")
    rank = dist.get_rank()
    model = DistributedDataParallel(torch.nn.Linear(2, 2).cuda())
    batches, hook = loader(data, rank), SaveHook()
    for epoch in range(100):
        batches.sampler.set_epoch(epoch)
        for x in batches:
            model(x.cuda()).mean().backward()
        hook.after_epoch(model, epoch, rank)
if __name__ == "__main__":
    main([1, 2, 3])
"#,
            ),
        ]);
    }
}
