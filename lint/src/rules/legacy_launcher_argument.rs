use crate::analysis::models::Access;
use crate::analysis::{ArgumentValue, Call, Event};
use crate::prelude::*;
use crate::python::edit::Editor;
use crate::table::Role;

declare_rule! {
    /// The local rank comes from `--local_rank` alone.
    ///
    /// `torchrun` passes no such argument: `LOCAL_RANK` is in the environment, and a program
    /// that never reads it has its default on every rank, so that all take device 0 or train
    /// alone. `torch.distributed.launch` of torch 2 passes `--local-rank`, which a parser that
    /// knows `--local_rank` only rejects: `unrecognized arguments: --local-rank=0`.
    ///
    /// ```python bad
    /// import argparse
    /// import torch
    ///
    /// parser = argparse.ArgumentParser()
    /// parser.add_argument("--local_rank", type=int, default=0)  # ~ legacy-launcher-argument
    /// args = parser.parse_args()
    /// torch.cuda.set_device(args.local_rank)
    /// torch.distributed.init_process_group("nccl")
    /// ```
    /// ```python fixed
    /// import argparse
    /// import torch
    ///
    /// parser = argparse.ArgumentParser()
    /// parser.add_argument("--local_rank", "--local-rank", type=int, default=0)
    /// args = parser.parse_args()
    /// torch.cuda.set_device(args.local_rank)
    /// torch.distributed.init_process_group("nccl")
    /// ```
    /// ```python good
    /// import os
    /// import torch
    ///
    /// torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    /// torch.distributed.init_process_group("nccl")
    /// ```
    ///
    /// # Known limits
    /// A program that reads `LOCAL_RANK` anywhere is taken to use it. The fix lets
    /// `torch.distributed.launch` start the program again; torchrun needs `LOCAL_RANK` read.
    pub static RULE = {
        name: "legacy-launcher-argument",
        level: Level::Error,
        harm: Harm::Crash,
        tier: 1,
        languages: PYTHON,
        fix: FixKind::Safe,
        check,
    };
}

fn check(program: &Program<'_>, report: &mut Report<'_>) {
    if !program.is_distributed() || reads_environment(program) {
        return;
    }
    for (event, call) in program.calls(Role::AddArgument) {
        let says = |wanted: &str| call.arguments.iter().any(|a| is_text(program, a, wanted));
        if !says("--local_rank") {
            continue;
        }
        let both = says("--local-rank");
        let unused = !program
            .models()
            .mentions()
            .any(|m| &*m.name == "local_rank" && m.access == Access::Read);
        if unused {
            report
                .at(event.site, "`--local_rank` is accepted here, and nothing reads it")
                .level(Level::Advice)
                .why("`torch.distributed.launch` of torch 2 passes `--local-rank`, and it fails")
                .help("start with torchrun, and leave the argument out");
            continue;
        }
        let draft = report.at(event.site, "the local rank comes from `--local_rank` alone");
        if both {
            draft
                .level(Level::Advice)
                .why("torchrun passes no such argument: every rank keeps the default")
                .help("read `int(os.environ[\"LOCAL_RANK\"])`, which every launcher sets");
        } else {
            draft
                .why(
                    "torchrun passes no such argument, and `torch.distributed.launch` of torch 2 \
                     passes `--local-rank`, which this parser rejects",
                )
                .help("read `int(os.environ[\"LOCAL_RANK\"])`, which every launcher sets")
                .fix(accept_both(program, event, call));
        }
    }
}

/// `add_argument("--local_rank", "--local-rank", ..)`: what it is called stays as it is.
fn accept_both(program: &Program<'_>, event: &Event<'_>, call: &Call<'_>) -> Option<Fix> {
    let option = call.arguments.iter().find(|a| is_text(program, a, "--local_rank"))?;
    let is_written = event.expr.is_some_and(|call| call.span.contains(option.expr.span));
    option.expr.literal().filter(|_| is_written)?;
    let editor = Editor::new(program.project().file(event.site.file));
    let replacement = format!(", {}", editor.string("--local-rank"));
    let end = option.expr.span.end;
    let site = Site { file: event.site.file, span: Span { start: end, end } };
    Some(Fix {
        applicability: Applicability::Safe,
        title: "accept `--local-rank`, too".to_owned(),
        edits: vec![Edit { site, replacement }],
    })
}

fn is_text(program: &Program<'_>, argument: &ArgumentValue<'_>, wanted: &str) -> bool {
    argument.position.is_some()
        && argument
            .value
            .single()
            .and_then(|t| program.terms().as_str(t))
            .is_some_and(|text| &*text == wanted)
}

/// `LOCAL_RANK` stands in a reached file, or the program starts its ranks itself.
fn reads_environment(program: &Program<'_>) -> bool {
    let spawns = program
        .events()
        .iter()
        .any(|event| event.call().is_some_and(|call| call.role == Role::Spawn));
    let reads = program.project().files.iter().any(|file| {
        program.reaches(file.id)
            && ["\"LOCAL_RANK\"", "'LOCAL_RANK'"].iter().any(|word| file.text.contains(word))
    });
    spawns || reads
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_argument_that_nothing_reads_is_advice() {
        check_python(
            "
import argparse, os, torch
parser = argparse.ArgumentParser()
parser.add_argument('--local_rank', default=0, type=int, help='ignored')  # ~ legacy-launcher-argument: nothing reads it
args = parser.parse_args()
rank = int(os.environ['RANK'])
torch.distributed.init_process_group('nccl', rank=rank, world_size=int(os.environ['WORLD_SIZE']))
torch.cuda.set_device(rank % torch.cuda.device_count())
",
        );
    }

    #[test]
    fn a_helper_that_adds_the_argument_counts() {
        check_files(&[
            (
                "options.py",
                "
def add(group):
    group.add_argument('--local_rank', default=-1, type=int)  # ~ legacy-launcher-argument
",
            ),
            (
                "main.py",
                "
import argparse, torch
from options import add
if __name__ == '__main__':
    parser = argparse.ArgumentParser()
    add(parser.add_argument_group('dist'))
    args = parser.parse_args()
    torch.distributed.init_process_group('nccl')
",
            ),
        ]);
    }

    #[test]
    fn a_program_that_reads_the_environment_is_silent() {
        check_python(
            "
import argparse, os, torch
parser = argparse.ArgumentParser()
parser.add_argument('--local_rank', type=int, default=0)
args = parser.parse_args()
if 'LOCAL_RANK' in os.environ:
    args.local_rank = int(os.environ['LOCAL_RANK'])
torch.distributed.init_process_group('nccl')
for _ in range(2):
    pass
",
        );
    }

    #[test]
    fn both_spellings_are_advice() {
        check_python(
            "
import argparse, torch
parser = argparse.ArgumentParser()
parser.add_argument('--local_rank', '--local-rank', type=int)  # ~ legacy-launcher-argument
args = parser.parse_args()
torch.distributed.init_process_group('nccl')
for _ in range(2):
    pass
",
        );
    }

    #[test]
    fn options_of_a_class_in_a_package_count() {
        check_files(&[
            (
                "options/__init__.py",
                "
from .base import BaseOptions
",
            ),
            (
                "options/base.py",
                r#"
import argparse
class BaseOptions:
    def __init__(self):
        self.parser = argparse.ArgumentParser()
    def initialize(self):
        p = self.parser
        p.add_argument("--name", default="exp")
        p.add_argument("--local_rank", "-l", type=int, default=-1)  # ~ legacy-launcher-argument
        return p
    def parse(self):
        return self.initialize().parse_args()
"#,
            ),
            (
                "train.py",
                r#"
import os
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP
from options import BaseOptions
opt = BaseOptions().parse()
torch.cuda.set_device(opt.local_rank)
dist.init_process_group("nccl")
torch.manual_seed(dist.get_rank())
net = DDP(torch.nn.Linear(8, 8).cuda(), device_ids=[opt.local_rank])
optim = torch.optim.SGD(net.parameters(), 0.1)
for _ in range(10):
    loss = net(torch.randn(4, 8).cuda()).pow(2).mean()
    optim.zero_grad(); loss.backward(); optim.step()
"#,
            ),
        ]);
    }

    #[test]
    fn the_environment_as_a_default_is_silent() {
        check_python(
            r#"
import argparse
import os
import torch
import torch.distributed as dist
import yaml
from torch.nn.parallel import DistributedDataParallel as DDP
def parse_args():
    parser = argparse.ArgumentParser(description="train a detector")
    parser.add_argument("config")
    given = int(os.environ.get("LOCAL_RANK", 0))
    parser.add_argument("--local_rank", "--local-rank", type=int, default=given)
    args = parser.parse_args()
    with open(args.config) as f:
        args.cfg = yaml.safe_load(f)
    return args
def main():
    args = parse_args()
    torch.cuda.set_device(args.local_rank)
    dist.init_process_group(backend="nccl", init_method="env://")
    torch.manual_seed(dist.get_rank())
    net = DDP(torch.nn.Linear(8, 8).cuda(), device_ids=[args.local_rank])
    opt = torch.optim.SGD(net.parameters(), args.cfg["lr"])
    for _ in range(10):
        loss = net(torch.randn(4, 8).cuda()).pow(2).mean()
        opt.zero_grad(); loss.backward(); opt.step()
if __name__ == "__main__":
    main()
"#,
        );
    }

    #[test]
    fn another_destination_counts() {
        check_python(
            r#"
import argparse
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP
arg_list = argparse.ArgumentParser()
arg_list.add_argument("--local_rank", dest="gpu", default=0, type=int)  # ~ legacy-launcher-argument
arg_list.add_argument("--lr", default=0.1, type=float)
def main(a):
    torch.cuda.set_device(a.gpu)
    dist.init_process_group("nccl")
    torch.manual_seed(dist.get_rank())
    net = DDP(torch.nn.Linear(8, 8).cuda(), device_ids=[a.gpu])
    optim = torch.optim.SGD(net.parameters(), a.lr)
    for _ in range(10):
        loss = net(torch.randn(4, 8).cuda()).pow(2).mean()
        optim.zero_grad(); loss.backward(); optim.step()
if __name__ == "__main__":
    main(arg_list.parse_args())
"#,
        );
    }
}
