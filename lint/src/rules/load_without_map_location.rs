use crate::analysis::devices::Device;
use crate::analysis::{Call, Event, Given, Reach, Term, Value};
use crate::prelude::*;
use crate::python::edit::Editor;
use crate::table::Role;

declare_rule! {
    /// Every rank loads a checkpoint to the device it was saved from.
    ///
    /// `torch.load` puts each tensor back where it was: what rank 0 saved from its GPU goes to
    /// GPU 0 again, in every process of a node. That GPU fills up (`CUDA out of memory`, with
    /// several processes of the same user on it), and a node with fewer GPUs fails with
    /// `Attempting to deserialize object on CUDA device`.
    ///
    /// ```python bad
    /// import os
    /// import torch
    /// import torch.distributed as dist
    ///
    /// torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    /// dist.init_process_group("nccl")
    /// model = torch.nn.Linear(8, 1).cuda()
    /// model.load_state_dict(torch.load("model.pt"))  # ~ load-without-map-location
    /// ```
    /// ```python fixed
    /// import os
    /// import torch
    /// import torch.distributed as dist
    ///
    /// torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    /// dist.init_process_group("nccl")
    /// model = torch.nn.Linear(8, 1).cuda()
    /// model.load_state_dict(torch.load("model.pt", map_location="cpu"))
    /// ```
    /// ```rust bad
    /// use tch::CModule;
    ///
    /// fn main() -> anyhow::Result<()> {
    ///     let launch = tch_ddp::Launch::from_env()?;
    ///     let group = tch_ddp::ProcessGroup::init(&launch, Default::default())?;
    ///     let teacher = CModule::load("teacher.pt")?; //~ load-without-map-location
    ///     Ok(())
    /// }
    /// ```
    /// ```rust good
    /// use tch::CModule;
    ///
    /// fn main() -> anyhow::Result<()> {
    ///     let launch = tch_ddp::Launch::from_env()?;
    ///     let group = tch_ddp::ProcessGroup::init(&launch, Default::default())?;
    ///     let teacher = CModule::load_on_device("teacher.pt", group.device())?;
    ///     Ok(())
    /// }
    /// ```
    ///
    /// # Known limits
    /// tch's `VarStore::load` copies to the store's device and is silent. Of Python:
    /// Only what goes into a model or an optimizer counts, not data sets and random states. A
    /// file of each rank (its path contains the rank) goes back to that rank's device: silent.
    pub static RULE = {
        name: "load-without-map-location",
        level: Level::Warning,
        harm: Harm::Waste,
        tier: 1,
        languages: BOTH,
        fix: FixKind::Unsafe,
        check,
    };
}

fn check(program: &Program<'_>, report: &mut Report<'_>) {
    if !program.is_distributed() {
        return;
    }
    if program.language == Language::Rust {
        return check_modules(program, report);
    }
    if !uses_gpus(program) {
        return;
    }
    for (event, call) in program.calls(Role::Load) {
        let is_torch = call.name.is_some_and(|n| matches!(&*n, "torch.load" | "torch.jit.load"));
        if !is_torch || has_map_location(program, call) || !runs_on_every_rank(program, event) {
            continue;
        }
        if !program.names_a_shared_file(call)
            || is_published(program, call)
            || !is_state(program, event, call)
        {
            continue;
        }
        let file = program.file_text(call, event).unwrap_or_else(|| "the file".to_owned());
        report
            .at(event.site, format!("every rank loads {file} to the device it was saved from"))
            .why("what rank 0 saved goes to GPU 0 in every process: that GPU fills up")
            .help("load to the CPU: `map_location=\"cpu\"`; `load_state_dict` moves what it copies")
            .fix(fix(program, event));
    }
}

/// What others put on the web, as a rule from the CPU.
fn is_published(program: &Program<'_>, call: &Call<'_>) -> bool {
    let is_url = |term: Term| {
        let text = program.terms().as_str(term);
        text.is_some_and(|t| t.starts_with("http://") || t.starts_with("https://"))
    };
    let of = |value: &Value| value.terms().any(is_url);
    program.file_argument(call).is_some_and(|file| {
        of(file)
            || file
                .terms()
                .filter_map(|t| program.object_of(t))
                .any(|opened| opened.arguments.iter().any(|a| of(&a.value)))
    })
}

/// tch: `CModule::load`, which names no device.
fn check_modules(program: &Program<'_>, report: &mut Report<'_>) {
    for (event, call) in program.calls(Role::Load) {
        let named = call.name.map_or("", |name| name.as_str());
        let loads = matches!(named, "tch.CModule.load" | "tch.CModule.load_data");
        if !loads || !runs_on_every_rank(program, event) || is_gloo(program) {
            continue;
        }
        let file = program.file_text(call, event).unwrap_or_else(|| "the module".to_owned());
        let called = program.callee_text(event).unwrap_or("CModule::load");
        report
            .at(event.site, format!("every rank loads {file} to the device it was saved from"))
            .why("what was saved from a GPU goes to GPU 0 in every process: that GPU fills up")
            .help(format!("name this rank's device: `{called}_on_device(.., group.device())`"));
    }
}

/// A group of tch-ddp that was asked to stay on the CPU.
fn is_gloo(program: &Program<'_>) -> bool {
    program.mentions_text(&["Backend::Gloo"])
}

fn uses_gpus(program: &Program<'_>) -> bool {
    let on_gpu = |d: &Device| matches!(d, Device::Current | Device::Fixed(_) | Device::OfRank);
    program.calls(Role::SetDevice).next().is_some()
        || program.calls(Role::Move).any(|(_, call)| program.moved_to(call).iter().any(on_gpu))
}

fn has_map_location(program: &Program<'_>, call: &Call<'_>) -> bool {
    match call.argument("map_location") {
        Given::Known(given) => given.value.single() != Some(program.terms().none),
        Given::Absent => false,
        Given::Opaque => true,
    }
}

fn runs_on_every_rank(program: &Program<'_>, event: &Event<'_>) -> bool {
    !program.is_orphan(event)
        && matches!(program.reach(event.path), Reach::Every | Reach::Others | Reach::Some)
}

/// What is loaded goes into a model or an optimizer, or is the model.
fn is_state(program: &Program<'_>, event: &Event<'_>, call: &Call<'_>) -> bool {
    let loads = program.calls(Role::LoadStateDict).any(|(_, load)| {
        let state = load.value_at(0, "state_dict");
        state.is_some_and(|state| program.origins_behind(state).contains(&event.id))
    });
    let is_model = |value: &Value| value == &call.result;
    loads
        || program
            .calls(Role::WrapDdp)
            .any(|(_, wrap)| wrap.value_at(0, "module").is_some_and(is_model))
}

fn fix(program: &Program<'_>, event: &Event<'_>) -> Option<Fix> {
    let editor = Editor::new(program.project().file(event.site.file));
    let value = editor.string("cpu");
    Some(Fix {
        applicability: Applicability::Unsafe,
        title: "load to the CPU".to_owned(),
        edits: editor.set_keyword(event.expr?, "map_location", &value)?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn weights_from_the_web_are_silent() {
        check_python(
            "
import blobfile as bf
import torch
import torch.distributed as dist
dist.init_process_group('nccl')
torch.cuda.set_device(dist.get_rank() % 8)
net = torch.nn.Linear(2, 2)
with bf.BlobFile('https://example.org/net.pt', 'rb') as f:
    net.load_state_dict(torch.load(f))
net.cuda()
",
        );
    }

    #[test]
    fn a_resume_in_a_trainer_of_another_file_counts() {
        check_files(&[
            (
                "engine.py",
                "
import torch
class Engine:
    def __init__(self, net, opt):
        self.net, self.opt, self.start = net, opt, 0
    def resume(self, path):
        state = torch.load(path)  # ~ load-without-map-location: `path`
        self.net.load_state_dict(state['net'])
        self.opt.load_state_dict(state['opt'])
        self.start = state['epoch'] + 1
",
            ),
            (
                "main.py",
                "
import argparse, os, torch
from torch.nn.parallel import DistributedDataParallel as DDP
from engine import Engine
def main():
    parser = argparse.ArgumentParser()
    parser.add_argument('--resume')
    args = parser.parse_args()
    torch.distributed.init_process_group('nccl')
    torch.cuda.set_device(int(os.environ['LOCAL_RANK']))
    net = DDP(torch.nn.Linear(2, 2).cuda())
    engine = Engine(net, torch.optim.SGD(net.parameters(), 0.1))
    if args.resume:
        engine.resume(args.resume)
if __name__ == '__main__':
    main()
",
            ),
        ]);
    }

    #[test]
    fn none_and_a_whole_model_count() {
        check_python(
            "
import torch
import torch.multiprocessing as mp
def read(path, where=None):
    return torch.load(path, map_location=where)  # ~ load-without-map-location
def work(gpu, n):
    torch.distributed.init_process_group('nccl', rank=gpu, world_size=n)
    torch.cuda.set_device(gpu)
    net = read('model.pt')
    net = torch.nn.parallel.DistributedDataParallel(net, device_ids=[gpu])
    net(torch.ones(2)).sum().backward()
if __name__ == '__main__':
    mp.spawn(work, args=(2,), nprocs=2)
",
        );
    }

    #[test]
    fn modules_of_torch_script_count() {
        check_rust(
            "
use tch::{nn, CModule, Device};
struct Teacher { net: CModule }
impl Teacher {
    fn read(path: &str) -> Teacher {
        let mut net = CModule::load(path).unwrap(); //~ load-without-map-location: `path`
        net.to(Device::Cuda(0), tch::Kind::Float, false);
        Teacher { net }
    }
}
fn main() -> anyhow::Result<()> {
    let launch = tch_ddp::Launch::from_env()?;
    let group = tch_ddp::ProcessGroup::init(&launch, Default::default())?;
    let teacher = Teacher::read(\"teacher.pt\");
    let judge = CModule::load_on_device(\"judge.pt\", group.device())?;
    let mut vs = nn::VarStore::new(group.device());
    vs.load(\"start.ot\")?;
    if group.is_main() {
        CModule::load(\"shown.pt\")?;
    }
    Ok(())
}
",
        );
    }

    #[test]
    fn what_is_picked_from_the_file_counts() {
        check_python(
            "
import argparse, torch
import torch.distributed as dist
parser = argparse.ArgumentParser()
parser.add_argument('--pretrained')
args = parser.parse_args()
dist.init_process_group('nccl')
torch.cuda.set_device(dist.get_rank() % torch.cuda.device_count())
net = torch.nn.Linear(2, 2).cuda()
if args.pretrained:
    blob = torch.load(args.pretrained)  # ~ load-without-map-location
    wanted = {k[9:]: v for k, v in blob['state_dict'].items() if k.startswith('backbone.')}
    net.load_state_dict(wanted, strict=False)
net = torch.nn.parallel.DistributedDataParallel(net)
",
        );
    }

    #[test]
    fn map_locations_are_silent() {
        check_python(
            "
import os, torch
torch.distributed.init_process_group('nccl')
gpu = int(os.environ['LOCAL_RANK'])
net = torch.nn.Linear(2, 2).to(gpu)
for where in ('cpu', gpu, f'cuda:{gpu}', lambda storage, loc: storage):
    net.load_state_dict(torch.load('model.pt', map_location=where))
net.load_state_dict(torch.load('model.pt', 'cpu'))
",
        );
    }

    #[test]
    fn data_and_files_of_ranks_are_silent() {
        check_python(
            "
import torch
import torch.distributed as dist
dist.init_process_group('nccl')
torch.cuda.set_device(dist.get_rank() % torch.cuda.device_count())
features = torch.load('features.pt')
net = torch.nn.Linear(2, 2).cuda()
opt = torch.optim.Adam(net.parameters())
opt.load_state_dict(torch.load(f'opt-{dist.get_rank()}.pt'))
torch.set_rng_state(torch.load('rng.pt'))
for x in features:
    net(x).sum().backward()
",
        );
    }

    #[test]
    fn the_parent_and_one_rank_are_silent() {
        check_python(
            "
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
def work(gpu, n, state):
    dist.init_process_group('nccl', rank=gpu, world_size=n)
    torch.cuda.set_device(gpu)
    net = torch.nn.Linear(2, 2).cuda()
    net.load_state_dict(state)
    if dist.get_rank() == 0:
        net.load_state_dict(torch.load('late.pt'))
if __name__ == '__main__':
    mp.spawn(work, args=(2, torch.load('model.pt')), nprocs=2)
",
        );
    }

    #[test]
    fn the_arm_without_a_gpu_is_silent() {
        check_python(
            "
import argparse, torch
args = argparse.ArgumentParser().parse_args()
torch.distributed.init_process_group('nccl')
net = torch.nn.Linear(2, 2)
if args.gpu is not None:
    torch.cuda.set_device(args.gpu)
    net.cuda(args.gpu)
if args.gpu is None:
    state = torch.load('model.pt')
else:
    state = torch.load('model.pt', map_location=f'cuda:{args.gpu}')
net.load_state_dict(state)
",
        );
    }

    #[test]
    fn an_evaluator_in_another_file_counts() {
        check_files(&[
            (
                "evaluator.py",
                r#"
import torch
class Evaluator:
    def __init__(self, model):
        self.model = model
    def restore(self, path):
        state = torch.load(path, weights_only=True)  # ~ load-without-map-location
        self.model.load_state_dict(state["weights"])
"#,
            ),
            (
                "main.py",
                r#"
import os
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP
from evaluator import Evaluator
def main(path):
    dist.init_process_group("nccl")
    gpu = int(os.environ["LOCAL_RANK"])
    torch.cuda.set_device(gpu)
    net = torch.nn.Linear(4, 4).cuda()
    Evaluator(net).restore(path)
    model = DDP(net, device_ids=[gpu])
    model(torch.randn(2, 4).cuda()).mean().backward()
if __name__ == "__main__":
    main("best.pt")
"#,
            ),
        ]);
    }
}
