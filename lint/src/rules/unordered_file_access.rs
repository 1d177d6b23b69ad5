use crate::analysis::{Call, Event, EventId, Reach, Taint, Value};
use crate::prelude::*;
use crate::python::edit::Editor;
use crate::table::{CollectiveKind, Flag, Role};

declare_rule! {
    /// One rank writes what others read, and nothing makes the others wait.
    ///
    /// Rank 0 saves, downloads or prepares a file; the other ranks go straight on to reading
    /// it, and find nothing, an old file or half a file. A barrier between the two puts them in
    /// order; any other collective that all ranks run does so too.
    ///
    /// ```python bad
    /// import torch
    /// import torch.distributed as dist
    ///
    /// dist.init_process_group("nccl")
    /// model = torch.nn.Linear(2, 2)
    /// if dist.get_rank() == 0:
    ///     torch.save(model.state_dict(), "start.pt")
    /// model.load_state_dict(torch.load("start.pt", map_location="cpu"))  # ~ unordered-file-access
    /// ```
    /// ```python fixed
    /// import torch
    /// import torch.distributed as dist
    ///
    /// dist.init_process_group("nccl")
    /// model = torch.nn.Linear(2, 2)
    /// if dist.get_rank() == 0:
    ///     torch.save(model.state_dict(), "start.pt")
    /// dist.barrier()
    /// model.load_state_dict(torch.load("start.pt", map_location="cpu"))
    /// ```
    /// ```rust bad
    /// use tch_ddp::{Launch, ProcessGroup};
    ///
    /// fn main() -> anyhow::Result<()> {
    ///     let group = ProcessGroup::init(&Launch::from_env()?, Default::default())?;
    ///     let mut vs = tch::nn::VarStore::new(group.device());
    ///     if group.is_main() {
    ///         vs.save("start.safetensors")?;
    ///     }
    ///     vs.load("start.safetensors")?; //~ unordered-file-access
    ///     Ok(())
    /// }
    /// ```
    /// ```rust good
    /// use tch_ddp::{Launch, ProcessGroup};
    ///
    /// fn main() -> anyhow::Result<()> {
    ///     let group = ProcessGroup::init(&Launch::from_env()?, Default::default())?;
    ///     let mut vs = tch::nn::VarStore::new(group.device());
    ///     if group.is_main() {
    ///         vs.save("start.safetensors")?;
    ///     }
    ///     group.barrier()?;
    ///     vs.load("start.safetensors")?;
    ///     Ok(())
    /// }
    /// ```
    ///
    /// # Known limits
    /// Writer and reader are matched by the same path expression, or by the same data set; files
    /// that other programs write are unknown.
    pub static RULE = {
        name: "unordered-file-access",
        level: Level::Error,
        harm: Harm::Crash,
        tier: 2,
        languages: BOTH,
        fix: FixKind::Unsafe,
        check,
    };
}

const WRITERS: [Role; 6] =
    [Role::Save, Role::WriteFile, Role::Download, Role::Unpack, Role::Open, Role::Dataset];
const READERS: [Role; 5] =
    [Role::Load, Role::ReadFile, Role::Open, Role::Dataset, Role::LoadStateDict];

fn check(program: &Program<'_>, report: &mut Report<'_>) {
    if !program.is_distributed() {
        return;
    }
    let meetings = meetings(program);
    let writes: Vec<_> = WRITERS
        .iter()
        .flat_map(|role| program.calls(*role))
        .filter(|(event, call)| {
            is_done_by_one(program, event) && writes(program, call) && !program.is_orphan(event)
        })
        .collect();
    for (write, writer) in writes {
        let reads = READERS.iter().flat_map(|role| program.calls(*role));
        let first = reads
            .filter(|(read, reader)| {
                read.id > write.id
                    && !program.has_flag(reader, Flag::Hidden)
                    && reads_it(program, writer, reader)
                    && others_get_there(program, write, read)
                    && !program.is_orphan(read)
            })
            .min_by_key(|(read, _)| read.id);
        let Some((read, _)) = first else { continue };
        let ordered = meetings.iter().any(|&at| write.id < at && at < read.id);
        if !ordered && !read.modes.caught {
            tell(program, report, write, read);
        }
    }
}

fn is_done_by_one(program: &Program<'_>, event: &Event<'_>) -> bool {
    matches!(program.reach(event.path), Reach::Main | Reach::LocalMain)
}

fn writes(program: &Program<'_>, call: &Call<'_>) -> bool {
    match call.role {
        Role::Open => opens_for(program, call, &['w', 'x', 'a']),
        Role::Dataset => downloads(program, call),
        _ => true,
    }
}

fn downloads(program: &Program<'_>, call: &Call<'_>) -> bool {
    let yes = program.terms().yes;
    call.argument("download").known().is_some_and(|a| a.value.terms().any(|t| t == yes))
}

fn opens_for(program: &Program<'_>, call: &Call<'_>, modes: &[char]) -> bool {
    let mode = call.argument("mode").known().and_then(|a| a.value.single());
    let text = mode.and_then(|t| program.terms().as_str(t));
    match text {
        Some(text) => text.contains(modes),
        None => false,
    }
}

fn reads_it(program: &Program<'_>, writer: &Call<'_>, reader: &Call<'_>) -> bool {
    if writer.role == Role::Dataset || reader.role == Role::Dataset {
        return writer.role == reader.role
            && writer.name == reader.name
            && !downloads(program, reader)
            && same(root(program, writer), root(program, reader));
    }
    if reader.role == Role::Open {
        let mode = reader.argument("mode").known().and_then(|a| a.value.single());
        let text = mode.and_then(|t| program.terms().as_str(t));
        if text.is_some_and(|t| !t.contains('r')) {
            return false;
        }
    }
    same(program.file_argument(writer), program.file_argument(reader))
        && program.names_a_shared_file(reader)
}

fn root<'c, 'p>(program: &Program<'p>, call: &'c Call<'p>) -> Option<&'c Value> {
    program.file_argument(call).or_else(|| call.value_at(0, "root"))
}

fn same(a: Option<&Value>, b: Option<&Value>) -> bool {
    match (a.and_then(Value::single), b.and_then(Value::single)) {
        (Some(a), Some(b)) => a == b,
        _ => false,
    }
}

/// Ranks that did not write get to the reading.
fn others_get_there(program: &Program<'_>, write: &Event<'_>, read: &Event<'_>) -> bool {
    let wrote = program.runs_on(write.path);
    let reads = program.runs_on(read.path);
    let other = wrote.iter().zip(reads).any(|(w, r)| *w == Some(false) && r != Some(false));
    let shared_conditions = || {
        let of_ranks = |c| program.terms().taint(c).has(Taint::RANK);
        program
            .conditions(write.path)
            .filter(|node| !of_ranks(node.condition))
            .all(|node| program.can_hold_at(node.condition, read.path))
    };
    other && shared_conditions() && !program.hangs_on_unseen_test(read.path)
}

/// Places that all ranks pass together.
fn meetings(program: &Program<'_>) -> Vec<EventId> {
    let collectives = program.calls(Role::Collective).filter(|(_, call)| {
        !matches!(
            call.row.and_then(|row| row.kind),
            Some(CollectiveKind::Send | CollectiveKind::Recv)
        )
    });
    let hidden = program
        .events()
        .iter()
        .filter_map(|event| match &event.kind {
            crate::analysis::EventKind::Call(call) => Some((event, call)),
            _ => None,
        })
        .filter(|(_, call)| {
            matches!(
                call.role,
                Role::WrapDdp | Role::NewGroup | Role::InitGroup | Role::DestroyGroup
            ) || call.row.is_some_and(|row| row.has(Flag::Hidden))
        });
    let steps = program.trained().iter().copied();
    collectives
        .map(|(event, _)| event.id)
        .chain(hidden.map(|(event, _)| event.id))
        .chain(steps)
        .collect()
}

fn tell(program: &Program<'_>, report: &mut Report<'_>, write: &Event<'_>, read: &Event<'_>) {
    let writes = program.callee_text(write).unwrap_or("this");
    let [mine, theirs] = [write, read].map(|event| program.step_text(event.id, read.site));
    let help = match program.language {
        Language::Python => "put `dist.barrier()` between them, where every rank passes",
        Language::Rust => "put `group.barrier()?` between them, where every rank passes",
    };
    let draft = report
        .at(
            read.site,
            format!(
                "the other ranks do not wait until rank 0 has written what is read here (rank 0: \
                 {mine}, {theirs}; the other ranks: {theirs})"
            ),
        )
        .why(format!(
            "rank 0 may still be in `{writes}`: they find no file, an old one or half of it"
        ))
        .help(help)
        .related(write.site, "rank 0 alone writes it here");
    if let Some(edits) = wait_before(program, read) {
        draft.unsafe_fix("wait for all ranks before the file is read", edits);
    }
}

/// A barrier before the reading, where all ranks come by.
fn wait_before(program: &Program<'_>, read: &Event<'_>) -> Option<Vec<Edit>> {
    if program.language != Language::Python || program.reach(read.path) != Reach::Every {
        return None;
    }
    let editor = Editor::new(program.project().file(read.site.file));
    let statement = editor.statement_at(read.site.span)?;
    let import = "import torch.distributed as dist";
    let dist = editor.reach("torch.distributed", import, "dist")?;
    let barrier = editor.insert_before(statement, &format!("{}.barrier()\n", dist.name))?;
    Some(dist.import.into_iter().chain([barrier]).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_checkpoint_read_back_in_another_file_counts() {
        check_files(&[
            (
                "io_utils.py",
                "
import torch
import torch.distributed as dist
def keep(net, path):
    if dist.get_rank() == 0:
        torch.save(net.state_dict(), path)
def fetch(net, path):
    net.load_state_dict(torch.load(path, map_location='cpu'))  # ~ unordered-file-access
",
            ),
            (
                "main.py",
                "
import torch
import torch.distributed as dist
from io_utils import keep, fetch
if __name__ == '__main__':
    dist.init_process_group('nccl')
    net = torch.nn.Linear(1, 1)
    keep(net, 'runs/best.pt')
    fetch(net, 'runs/best.pt')
",
            ),
        ]);
    }

    #[test]
    fn a_data_set_downloaded_by_rank_0_alone_counts() {
        check_python(
            "
import os
import torch.distributed as dist
from torchvision.datasets import CIFAR10
dist.init_process_group('nccl')
if int(os.environ['RANK']) == 0:
    CIFAR10('data', train=True, download=True)
train = CIFAR10('data', train=True)  # ~ unordered-file-access
",
        );
    }

    #[test]
    fn an_index_written_with_open_counts() {
        check_python(
            "
import json, os
import torch.distributed as dist
dist.init_process_group('gloo')
index = os.path.join('data', 'index.json')
if dist.get_rank() == 0:
    with open(index, 'w') as file:
        json.dump({}, file)
with open(index) as file:  # ~ unordered-file-access
    print(json.load(file))
",
        );
    }

    #[test]
    fn anything_that_all_ranks_run_between_is_an_order() {
        check_python(
            "
import torch
import torch.distributed as dist
dist.init_process_group('nccl')
rank = dist.get_rank()
net = torch.nn.Linear(1, 1)
if rank == 0:
    torch.save(net.state_dict(), 'a.pt')
net = torch.nn.parallel.DistributedDataParallel(net)
torch.load('a.pt', map_location='cpu')
if rank == 0:
    torch.save(net.state_dict(), 'b.pt')
total = torch.ones(1)
dist.all_reduce(total)
torch.load('b.pt', map_location='cpu')
",
        );
    }

    #[test]
    fn other_files_and_the_writers_own_reading_are_silent() {
        check_python(
            "
import torch
import torch.distributed as dist
dist.init_process_group('nccl')
rank = dist.get_rank()
net = torch.nn.Linear(1, 1)
if rank == 0:
    torch.save(net.state_dict(), 'a.pt')
    torch.load('a.pt', map_location='cpu')
torch.load('b.pt', map_location='cpu')
torch.save(net.state_dict(), f'{rank}.pt')
torch.load(f'{rank}.pt', map_location='cpu')
",
        );
    }

    #[test]
    fn what_is_read_before_it_is_written_is_silent() {
        check_python(
            "
import argparse, torch
import torch.distributed as dist
args = argparse.ArgumentParser().parse_args()
dist.init_process_group('nccl')
net = torch.nn.Linear(1, 1)
if args.resume:
    net.load_state_dict(torch.load('last.pt', map_location='cpu'))
for epoch in range(3):
    if dist.get_rank() == 0:
        torch.save(net.state_dict(), 'last.pt')
",
        );
    }

    #[test]
    fn a_list_written_by_a_started_process_counts() {
        check_python(
            "
import json, os
import torch.distributed as dist
import torch.multiprocessing as mp
class Rows:
    def __init__(self, root, gpu):
        self.listing = os.path.join(root, 'list.json')
        if gpu == 0:
            with open(self.listing, 'w') as file:
                json.dump(sorted(os.listdir(root)), file)
        with open(self.listing) as file:  # ~ unordered-file-access
            self.names = json.load(file)
def work(gpu, n):
    dist.init_process_group('nccl', init_method='tcp://localhost:9999', rank=gpu, world_size=n)
    print(Rows('data', gpu).names)
if __name__ == '__main__':
    mp.spawn(work, nprocs=2, args=(2,))
",
        );
    }

    #[test]
    fn a_vocabulary_built_in_another_file_counts() {
        check_files(&[
            (
                "vocab.py",
                r#"
import json
def build(lines, path):
    with open(path, "w") as out:
        json.dump(sorted({w for line in lines for w in line.split()}), out)
def read(path):
    with open(path) as text:  # ~ unordered-file-access
        return json.load(text)
"#,
            ),
            (
                "main.py",
                r#"
import torch.distributed as dist
from vocab import build, read
def main(lines):
    dist.init_process_group("gloo")
    if dist.get_rank() == 0:
        build(lines, "vocab.json")
    return read("vocab.json")
if __name__ == "__main__":
    main(["a b", "b c"])
"#,
            ),
        ]);
    }
}
