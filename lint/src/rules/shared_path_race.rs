use crate::analysis::{Call, Event, Reach};
use crate::prelude::*;
use crate::table::{Flag, Role};

declare_rule! {
    /// All ranks create, download, unpack or remove the same path at once.
    ///
    /// The first rank creates the folder, the others raise `FileExistsError`, also behind a
    /// test that it does not exist; downloads and archives are written by several processes at
    /// once, and a rank may read half a file.
    ///
    /// ```python bad
    /// import os
    /// import torch.distributed as dist
    ///
    /// dist.init_process_group("nccl")
    /// if not os.path.exists("out"):
    ///     os.makedirs("out")  # ~ shared-path-race
    /// ```
    /// ```python good
    /// import os
    /// import torch.distributed as dist
    ///
    /// dist.init_process_group("nccl")
    /// os.makedirs("out", exist_ok=True)
    /// ```
    /// ```rust bad
    /// fn main() -> anyhow::Result<()> {
    ///     let group = tch_ddp::ProcessGroup::init(&tch_ddp::Launch::from_env()?, Default::default())?;
    ///     std::fs::create_dir("out")?; //~ shared-path-race
    ///     Ok(())
    /// }
    /// ```
    /// ```rust good
    /// fn main() -> anyhow::Result<()> {
    ///     let group = tch_ddp::ProcessGroup::init(&tch_ddp::Launch::from_env()?, Default::default())?;
    ///     std::fs::create_dir_all("out")?;
    ///     Ok(())
    /// }
    /// ```
    ///
    /// # Known limits
    /// What a local rank 0 does is one process for each node, and fine.
    pub static RULE = {
        name: "shared-path-race",
        level: Level::Warning,
        harm: Harm::Crash,
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
    let roles =
        [Role::MakeDirectory, Role::RemovePath, Role::Download, Role::Unpack, Role::Dataset];
    for role in roles {
        for (event, call) in program.calls(role) {
            if races(program, call) && is_done_by_all(program, event) {
                tell(program, report, event, role);
            }
        }
    }
}

fn is_done_by_all(program: &Program<'_>, event: &Event<'_>) -> bool {
    !program.is_orphan(event)
        && program.reach(event.path) == Reach::Every
        && !program.hangs_on_unseen_test(event.path)
        && !program.main_goes_first(event)
        && !event.modes.caught
}

/// Several processes that do this at once get into each other's way.
fn races(program: &Program<'_>, call: &Call<'_>) -> bool {
    let terms = program.terms();
    let is_on = |name: &str| {
        call.argument(name).known().is_some_and(|a| a.value.terms().any(|t| t == terms.yes))
    };
    let has_rank = call
        .arguments
        .iter()
        .chain(&[])
        .any(|a| a.value.taint(terms).has(crate::analysis::Taint::RANK));
    let tolerant = call.argument("exist_ok").known().is_some()
        || is_on("ignore_errors")
        || call.name.is_some_and(|n| n.ends_with("create_dir_all"))
        || program.has_flag(call, Flag::Atomic)
        || call.arguments.iter().any(|a| a.spread);
    match call.role {
        Role::Dataset => is_on("download") && !has_rank,
        Role::MakeDirectory | Role::RemovePath => {
            !tolerant && !has_rank && program.names_a_shared_file(call)
        }
        _ => !tolerant && !has_rank,
    }
}

fn tell(program: &Program<'_>, report: &mut Report<'_>, event: &Event<'_>, role: Role) {
    let called = program.callee_text(event).unwrap_or("this");
    let (message, help) = match role {
        Role::MakeDirectory => (
            format!("all ranks create the same folder with `{called}`"),
            match program.language {
                Language::Python => "write `os.makedirs(path, exist_ok=True)`",
                Language::Rust => "write `std::fs::create_dir_all(path)`",
            },
        ),
        Role::RemovePath => (
            format!("all ranks remove the same path with `{called}`"),
            "let rank 0 alone remove it, and put a barrier behind",
        ),
        Role::Download | Role::Dataset => (
            format!("all ranks download to the same place with `{called}`"),
            "let rank 0 (or each local rank 0) download first, and the others wait in a barrier",
        ),
        _ => (
            format!("all ranks unpack to the same place with `{called}`"),
            "let rank 0 alone unpack, and the others wait in a barrier",
        ),
    };
    report
        .at(event.site, message)
        .why("the ranks get into each other's way: one fails, or reads half a file")
        .help(help);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_download_in_a_helper_of_another_file_counts() {
        check_files(&[
            (
                "data.py",
                "
import torchvision
def load(root):
    return torchvision.datasets.MNIST(root, download=True)  # ~ shared-path-race: download
",
            ),
            (
                "main.py",
                "
import torch
from data import load
if __name__ == '__main__':
    torch.distributed.init_process_group('nccl')
    load('data')
",
            ),
        ]);
    }

    #[test]
    fn guards_and_tolerant_calls_are_silent() {
        check_python(
            "
import os, pathlib, torchvision
import torch.distributed as dist
dist.init_process_group('nccl')
rank = dist.get_rank()
local = int(os.environ['LOCAL_RANK'])
os.makedirs('a', exist_ok=True)
pathlib.Path('b').mkdir(exist_ok=True, parents=True)
os.makedirs(f'c/{rank}')
if rank == 0:
    os.makedirs('d')
if local == 0:
    torchvision.datasets.MNIST('data', download=True)
dist.barrier()
data = torchvision.datasets.MNIST('data', download=local == 0)
for _ in range(2):
    pass
",
        );
    }

    #[test]
    fn one_process_is_silent() {
        check_python("import os, torch\nos.makedirs('a')\nfor _ in range(2):\n    torch.ones(1)\n");
    }
}
