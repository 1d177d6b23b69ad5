use rustc_hash::FxHashSet;

use crate::analysis::{Call, Event, EventId, Reach};
use crate::prelude::*;
use crate::table::{Flag, Role};

declare_rule! {
    /// Every rank starts an experiment tracker or writes its event files.
    ///
    /// A run on eight devices shows up as eight runs, or eight writers append to one folder and
    /// the curves jump between ranks.
    ///
    /// ```python bad
    /// import torch.distributed as dist
    /// from torch.utils.tensorboard import SummaryWriter
    ///
    /// dist.init_process_group("nccl")
    /// writer = SummaryWriter("runs")  # ~ unguarded-tracker
    /// ```
    /// ```python good
    /// import torch.distributed as dist
    /// from torch.utils.tensorboard import SummaryWriter
    ///
    /// dist.init_process_group("nccl")
    /// writer = SummaryWriter("runs") if dist.get_rank() == 0 else None
    /// ```
    /// ```rust bad
    /// use tensorboard_rs::summary_writer::SummaryWriter;
    ///
    /// fn main() -> anyhow::Result<()> {
    ///     let group = tch_ddp::ProcessGroup::init(&tch_ddp::Launch::from_env()?, Default::default())?;
    ///     let writer = SummaryWriter::new("runs"); //~ unguarded-tracker
    ///     Ok(())
    /// }
    /// ```
    /// ```rust good
    /// use tensorboard_rs::summary_writer::SummaryWriter;
    ///
    /// fn main() -> anyhow::Result<()> {
    ///     let group = tch_ddp::ProcessGroup::init(&tch_ddp::Launch::from_env()?, Default::default())?;
    ///     let writer = group.is_main().then(|| SummaryWriter::new("runs"));
    ///     Ok(())
    /// }
    /// ```
    ///
    /// # Known limits
    /// A folder with the rank in its name is one for each rank, and fine.
    pub static RULE = {
        name: "unguarded-tracker",
        level: Level::Warning,
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
    let mut started = FxHashSet::default();
    for (event, call) in program.calls(Role::Tracker) {
        let tells_rank = call
            .arguments
            .iter()
            .any(|a| a.spread || a.value.taint(program.terms()).has(crate::analysis::Taint::RANK));
        if is_by_all(program, event, call) && !tells_rank {
            started.insert(event.id);
            let called = program.callee_text(event).unwrap_or("the tracker");
            report
                .at(event.site, format!("every rank starts the tracker `{called}`"))
                .why("the run shows up once for each rank, or several writers share one folder")
                .help("start it on rank 0 alone, and keep `None` on the others");
        }
    }
    uses_elsewhere(program, report, &started);
}

fn is_by_all(program: &Program<'_>, event: &Event<'_>, call: &Call<'_>) -> bool {
    !program.is_orphan(event)
        && !program.has_flag(call, Flag::SelfGuarding)
        && program.reach(event.path) == Reach::Every
        && !program.hangs_on_unseen_test(event.path)
}

/// Functions of other files that write to such a tracker on every rank.
fn uses_elsewhere(program: &Program<'_>, report: &mut Report<'_>, started: &FxHashSet<EventId>) {
    let mut told = FxHashSet::default();
    for (event, call) in program.calls(Role::TrackerLog) {
        let tracker = call.receiver.as_ref().and_then(|r| program.object_in(r));
        let Some(tracker) = tracker.filter(|t| t.event.is_some_and(|e| started.contains(&e)))
        else {
            continue;
        };
        let place = program.frame(event.frame).function;
        if tracker.site.file != event.site.file
            && is_by_all(program, event, call)
            && told.insert((event.site.file, place))
        {
            let called = program.callee_text(event).unwrap_or("the tracker");
            report
                .at(event.site, format!("every rank writes with `{called}`"))
                .why("each rank tells its own numbers under the same names")
                .help("write on rank 0 alone: `if writer is not None:`")
                .related(tracker.site, "every rank starts it here");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rank_out_of_a_list_of_ranks_guards() {
        check_python(
            "
import argparse, torch
from torch.utils.tensorboard import SummaryWriter
opt = argparse.ArgumentParser().parse_args()
def build(opt, device):
    if device >= 0:
        rank = opt.gpu_ranks[device]
    else:
        rank = -1
    if opt.tensorboard and rank <= 0:
        return SummaryWriter('runs')
def work(opt, device):
    torch.distributed.init_process_group('nccl', rank=opt.gpu_ranks[device])
    build(opt, device)
if __name__ == '__main__':
    for device in range(opt.world_size):
        torch.multiprocessing.Process(target=work, args=(opt, device)).start()
",
        );
    }

    #[test]
    fn a_tracker_in_a_trainer_of_another_file_counts() {
        check_files(&[
            (
                "trainer.py",
                "
import wandb
class Trainer:
    def __init__(self):
        self.run = wandb.init(project='x')  # ~ unguarded-tracker: wandb.init
",
            ),
            (
                "main.py",
                "
import torch
from trainer import Trainer
if __name__ == '__main__':
    torch.distributed.init_process_group('nccl')
    Trainer()
",
            ),
        ]);
    }

    #[test]
    fn functions_that_write_to_the_tracker_of_every_rank_count_once() {
        check_files(&[
            (
                "loop.py",
                "
import torch.distributed as dist
def train(writers, step):
    writer = writers['writer']
    if dist.get_rank() == 0:
        print('epoch done')
    writer.add_scalar('loss', 1, step)  # ~ unguarded-tracker: every rank writes
    writer.add_scalar('rate', 1, step)
def validate(writer):
    if dist.get_rank() == 0:
        writer.add_scalar('accuracy', 1, 0)
",
            ),
            (
                "main.py",
                "
import torch.distributed as dist
from tensorboardX import SummaryWriter
from loop import train, validate
def main():
    dist.init_process_group('nccl')
    box = {'writer': SummaryWriter('runs'), 'steps': 0}  # ~ unguarded-tracker: every rank starts
    train(box, 0)
    validate(box['writer'])
if __name__ == '__main__':
    main()
",
            ),
        ]);
    }

    #[test]
    fn guards_and_paths_with_the_rank_are_silent() {
        check_python(
            "
import torch.distributed as dist
from torch.utils.tensorboard import SummaryWriter
dist.init_process_group('nccl')
rank = dist.get_rank()
writer = None
if rank == 0:
    writer = SummaryWriter('runs')
own = SummaryWriter(f'runs/{rank}')
for _ in range(2):
    if writer is not None:
        writer.add_scalar('x', 1, 1)
",
        );
    }

    #[test]
    fn a_single_process_is_silent() {
        check_python(
            "
from torch.utils.tensorboard import SummaryWriter
writer = SummaryWriter('runs')
for _ in range(2):
    writer.add_scalar('x', 1, 1)
",
        );
    }

    #[test]
    fn a_logger_in_another_file_counts() {
        check_files(&[
            (
                "logger.py",
                "
from tensorboardX import SummaryWriter
class Logger:
    def __init__(self, cfg, rank):
        self.tb = SummaryWriter(cfg.logdir) if cfg.tensorboard else None  # ~ unguarded-tracker
    def log(self, k, v, s):
        if self.tb is not None:
            self.tb.add_scalar(k, v, s)
",
            ),
            (
                "main.py",
                r#"
import argparse
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch.nn.parallel import DistributedDataParallel as DDP
from logger import Logger
def run(rank, cfg):
    dist.init_process_group("nccl", init_method="tcp://127.0.0.1:6", rank=rank, world_size=cfg.n)
    torch.cuda.set_device(rank)
    torch.manual_seed(rank)
    lg = Logger(cfg, rank)
    net = DDP(torch.nn.Linear(8, 8).cuda(), device_ids=[rank])
    opt = torch.optim.SGD(net.parameters(), 0.1)
    for i in range(10):
        loss = net(torch.randn(4, 8).cuda()).pow(2).mean()
        opt.zero_grad(); loss.backward(); opt.step()
        lg.log("l", loss.item(), i)
if __name__ == "__main__":
    p = argparse.ArgumentParser()
    p.add_argument("--logdir")
    p.add_argument("--n", type=int)
    p.add_argument("--tensorboard", action="store_true")
    c = p.parse_args()
    mp.spawn(run, (c,), c.n)
"#,
            ),
        ]);
    }

    #[test]
    fn a_mode_by_rank_is_silent() {
        check_python(
            r#"
import os
import torch
import torch.distributed as dist
import wandb
from torch.nn.parallel import DistributedDataParallel as DDP
def main(cfg):
    dist.init_process_group("nccl")
    rank, g = dist.get_rank(), int(os.environ["LOCAL_RANK"])
    torch.cuda.set_device(g)
    torch.manual_seed(rank)
    wandb.init(project="seg", config=cfg, mode="disabled" if rank else "online")
    net = DDP(torch.nn.Linear(8, 8).cuda(), device_ids=[g])
    opt = torch.optim.SGD(net.parameters(), 0.1)
    for _ in range(10):
        loss = net(torch.randn(4, 8).cuda()).pow(2).mean()
        opt.zero_grad(); loss.backward(); opt.step()
        if rank == 0:
            wandb.log({"loss": loss.item()})
if __name__ == "__main__":
    main({"lr": 0.1})
"#,
        );
    }
}
