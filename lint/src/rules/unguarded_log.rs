use rustc_hash::FxHashSet;

use crate::analysis::{Call, Event, Reach, TermKind};
use crate::prelude::*;
use crate::table::{Flag, Role};

declare_rule! {
    /// Every rank prints, logs or draws a progress bar in a loop.
    ///
    /// A run on eight devices says everything eight times, and eight progress bars overwrite
    /// each other. A progress bar is a warning, prints and logs are advice; one finding for
    /// each function.
    ///
    /// ```python bad
    /// import torch.distributed as dist
    /// from tqdm import tqdm
    ///
    /// dist.init_process_group("nccl")
    /// for step in tqdm(range(100)):  # ~ unguarded-log
    ///     pass
    /// ```
    /// ```python good
    /// import torch.distributed as dist
    /// from tqdm import tqdm
    ///
    /// dist.init_process_group("nccl")
    /// for step in tqdm(range(100), disable=dist.get_rank() != 0):
    ///     pass
    /// ```
    /// ```rust bad
    /// fn main() -> anyhow::Result<()> {
    ///     let group = tch_ddp::ProcessGroup::init(&tch_ddp::Launch::from_env()?, Default::default())?;
    ///     for epoch in 0..10 {
    ///         println!("epoch {epoch}"); //~ unguarded-log
    ///     }
    ///     Ok(())
    /// }
    /// ```
    /// ```rust good
    /// fn main() -> anyhow::Result<()> {
    ///     let group = tch_ddp::ProcessGroup::init(&tch_ddp::Launch::from_env()?, Default::default())?;
    ///     for epoch in 0..10 {
    ///         if group.is_main() {
    ///             println!("epoch {epoch}");
    ///         }
    ///     }
    ///     Ok(())
    /// }
    /// ```
    ///
    /// # Known limits
    /// Programs that replace `print`, or silence their logger off rank 0, are silent, and so is
    /// text that names the rank.
    pub static RULE = {
        name: "unguarded-log",
        level: Level::Advice,
        harm: Harm::Noise,
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
    let mut told = FxHashSet::default();
    for (role, silenced) in [
        (Role::Progress, false),
        (Role::Print, program.replaces_print()),
        (Role::Log, program.silences_loggers()),
    ] {
        if silenced {
            continue;
        }
        for (event, call) in program.calls(role) {
            let place = (role, program.frame(event.frame).function, event.site.file);
            if is_said_by_all(program, event, call) && told.insert(place) {
                tell(program, report, event, role);
            }
        }
    }
}

fn is_said_by_all(program: &Program<'_>, event: &Event<'_>, call: &Call<'_>) -> bool {
    let in_loop = event.loops.is_some() || call.role == Role::Progress;
    in_loop
        && !program.is_orphan(event)
        && !program.has_flag(call, Flag::SelfGuarding)
        && program.reach(event.path) == Reach::Every
        && !program.hangs_on_unseen_test(event.path)
        && !program.runs_only_alone(event.path)
        && !names_rank(program, call)
}

/// The text tells the rank, or an argument (`disable=`) depends on it or is not known.
fn names_rank(program: &Program<'_>, call: &Call<'_>) -> bool {
    call.arguments.iter().any(|argument| {
        let switch = argument.name.is_some_and(|n| {
            matches!(&*n, "disable" | "file" | "position" | "main_process_only" | "desc")
        });
        let on = program.terms().no;
        argument.spread
            || program.tells_rank(&argument.value)
            || switch && argument.value.single() != Some(on) && !is_text(program, argument)
    })
}

fn is_text(program: &Program<'_>, argument: &crate::analysis::ArgumentValue<'_>) -> bool {
    argument.name.is_some_and(|n| &*n == "desc")
        && argument.value.single().is_some_and(|t| {
            matches!(program.terms().kind(t), TermKind::Const(_) | TermKind::Text(_))
        })
}

fn tell(program: &Program<'_>, report: &mut Report<'_>, event: &Event<'_>, role: Role) {
    let called = program.callee_text(event).unwrap_or("this");
    let (level, message, help) = match role {
        Role::Progress => (
            Level::Warning,
            format!("every rank draws the progress bar `{called}`"),
            "draw it on rank 0 alone: `disable=rank != 0`",
        ),
        Role::Print => (
            Level::Advice,
            format!("every rank runs `{called}` in this loop"),
            "let rank 0 alone print, or put the rank into the text",
        ),
        _ => (
            Level::Advice,
            format!("every rank logs with `{called}` in this loop"),
            "silence the logger off rank 0, or put the rank into its format",
        ),
    };
    let help = match program.language {
        Language::Rust if role == Role::Progress => "draw it on rank 0 alone",
        _ => help,
    };
    report
        .at(event.site, message)
        .level(level)
        .why("a run on several devices says the same several times")
        .help(help);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn prints_in_a_training_loop_are_told_once_per_function() {
        check_python(
            "
import torch
import torch.distributed as dist
def train(net, epochs):
    for epoch in range(epochs):
        loss = net(torch.ones(1, 2)).sum()
        print('loss', loss.item())  # ~ unguarded-log: every rank
        print('epoch', epoch)
dist.init_process_group('nccl')
train(torch.nn.Linear(2, 2), 3)
for _ in range(2):
    pass
",
        );
    }

    #[test]
    fn a_loss_on_the_device_of_the_rank_does_not_name_the_rank() {
        check_python(
            "
import os, torch
import torch.distributed as dist
dist.init_process_group('nccl')
gpu = int(os.environ['LOCAL_RANK'])
device = torch.device(f'cuda:{gpu}')
net = torch.nn.Linear(2, 2).to(device)
for step in range(10):
    x = torch.randn(4, 2, device=device)
    loss = net(x.to(device)).sum()
    print(f'step {step} loss {loss.item():.3f}')  # ~ unguarded-log
def other():
    for step in range(3):
        print(f'{device} {step}')
        print('on', gpu, 'step', step)
other()
",
        );
    }

    #[test]
    fn a_progress_bar_in_another_file_counts() {
        check_files(&[
            (
                "loop.py",
                "
import tqdm
def run(loader):
    for batch in tqdm.tqdm(loader, desc='train'):  # ~ unguarded-log: progress bar
        pass
",
            ),
            (
                "main.py",
                "
import torch
from loop import run
if __name__ == '__main__':
    torch.distributed.init_process_group('nccl')
    run(torch.utils.data.DataLoader([1, 2]))
",
            ),
        ]);
    }

    #[test]
    fn a_logger_with_handlers_on_rank_0_alone_is_silent() {
        check_files(&[
            (
                "log.py",
                "
import logging, sys
def setup(name, rank=0):
    logger = logging.getLogger(name)
    logger.setLevel(logging.DEBUG)
    logger.propagate = False
    if rank == 0:
        logger.addHandler(logging.StreamHandler(stream=sys.stdout))
    return logger
",
            ),
            (
                "main.py",
                "
import torch
from log import setup
if __name__ == '__main__':
    torch.distributed.init_process_group('nccl')
    logger = setup('train', torch.distributed.get_rank())
    for step in range(3):
        logger.info('step %d', step)
",
            ),
        ]);
    }

    #[test]
    fn a_replaced_print_is_silent() {
        check_files(&[
            (
                "quiet.py",
                "
import builtins
def only_on_main(is_main):
    builtin_print = builtins.print
    def print(*args, **kwargs):
        if is_main:
            builtin_print(*args, **kwargs)
    builtins.print = print
",
            ),
            (
                "main.py",
                "
import torch
from quiet import only_on_main
if __name__ == '__main__':
    torch.distributed.init_process_group('nccl')
    only_on_main(torch.distributed.get_rank() == 0)
    for step in range(3):
        print(step)
",
            ),
        ]);
    }

    #[test]
    fn the_rank_in_the_text_and_guards_are_silent() {
        check_python(
            "
import torch.distributed as dist
from tqdm import trange
dist.init_process_group('nccl')
rank = dist.get_rank()
for step in range(3):
    print(f'[{rank}] {step}')
    if rank == 0:
        print(step)
for step in trange(3, disable=rank > 0):
    pass
bar = trange(3) if rank == 0 else range(3)
for step in bar:
    pass
",
        );
    }

    #[test]
    fn outside_loops_and_outside_distribution_it_is_silent() {
        check_python(
            "
import torch.distributed as dist
dist.init_process_group('nccl')
print('start')
for step in range(3):
    pass
",
        );
        check_python(
            "
from tqdm import tqdm
for step in tqdm(range(3)):
    print(step)
",
        );
    }

    #[test]
    fn a_bar_with_some_arguments_filled_in_counts() {
        check_python(
            "
import os
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset
from functools import partial
from tqdm.auto import tqdm
bar = partial(tqdm, leave=False)
def main():
    dist.init_process_group('nccl')
    g = int(os.environ['LOCAL_RANK'])
    torch.cuda.set_device(g)
    ds = TensorDataset(torch.rand(64, 4))
    loader = DataLoader(ds, 8, sampler=DistributedSampler(ds, shuffle=False))
    net = DDP(nn.Linear(4, 1).cuda(), device_ids=[g])
    for (x,) in bar(loader):  # ~ unguarded-log
        net(x.cuda()).mean().backward()
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
from functools import partial
from tqdm.auto import tqdm
bar = partial(tqdm, leave=False)
def main():
    dist.init_process_group('nccl')
    g = int(os.environ['LOCAL_RANK'])
    torch.cuda.set_device(g)
    ds = TensorDataset(torch.rand(64, 4))
    loader = DataLoader(ds, 8, sampler=DistributedSampler(ds, shuffle=False))
    net = DDP(nn.Linear(4, 1).cuda(), device_ids=[g])
    for (x,) in bar(loader, disable=dist.get_rank() > 0):
        net(x.cuda()).mean().backward()
main()
",
        );
    }
}
