use crate::analysis::devices::Device;
use crate::analysis::facts::Wrapper;
use crate::analysis::{
    ArgumentValue, Call, Const, Event, ObjectClass, ObjectId, Term, TermKind, Value,
};
use crate::model::{Expr, ExprKind, StmtKind};
use crate::prelude::*;
use crate::python::edit::Editor;
use crate::table::Role;

declare_rule! {
    /// A wrapper is told other devices than its module is on.
    ///
    /// `DataParallel` wants the module on the first of its `device_ids`: `module must have its
    /// parameters and buffers on device cuda:1 (device_ids[0]) but found one of them on device:
    /// cuda:0`. `DistributedDataParallel` works on one device for each process: several ids
    /// raise `device_ids can only be None or contain a single element`, and a constant one
    /// puts all processes on the same device.
    ///
    /// ```python bad
    /// import torch.nn as nn
    ///
    /// model = nn.DataParallel(nn.Linear(8, 1), device_ids=[1, 2])
    /// model.cuda()  # ~ bad-device-ids
    /// ```
    /// ```python good
    /// import torch.nn as nn
    ///
    /// device_ids = [1, 2]
    /// model = nn.DataParallel(nn.Linear(8, 1), device_ids=device_ids)
    /// model.cuda(device_ids[0])
    /// ```
    ///
    /// # Known limits
    /// Device ids that are computed are unknown: silent. Ids from the command line are reported
    /// as a warning where the module goes to a fixed device.
    pub static RULE = {
        name: "bad-device-ids",
        level: Level::Error,
        harm: Harm::Crash,
        tier: 1,
        languages: PYTHON,
        fix: FixKind::No,
        check,
    };
}

fn check(program: &Program<'_>, report: &mut Report<'_>) {
    for role in [Role::WrapDp, Role::WrapDdp] {
        for (event, call) in program.calls(role) {
            let Some(ids) = call.argument("device_ids").known() else { continue };
            let wrapper = call.result.single().and_then(|term| program.wrapper_of(term));
            match wrapper {
                Some((id, Wrapper::Dp)) => check_dp(program, report, event, id, ids),
                Some((_, Wrapper::Ddp)) => check_ddp(program, report, event, ids),
                None => {}
            }
        }
    }
}

/// The first of the ids.
#[derive(Clone, Copy, PartialEq, Eq)]
enum First {
    Fixed(i64),
    /// A list from the command line.
    CommandLine,
    Unknown,
}

fn check_dp(
    program: &Program<'_>,
    report: &mut Report<'_>,
    wrap: &Event<'_>,
    wrapper: ObjectId,
    ids: &ArgumentValue<'_>,
) {
    let first = first_id(program, ids);
    let Some((event, call)) = last_move(program, wrap, wrapper) else { return };
    let Some(on) = index_of(program, &program.moved_to(call)) else { return };
    let text = program.text(program.site_of(wrap.site.file, ids.expr));
    let module = "the module goes to";
    match first {
        First::Fixed(first) if first != on => {
            report
                .at(event.site, format!("{module} `cuda:{on}`, but `device_ids[0]` is {first}"))
                .why(
                    "`DataParallel` raises at the first forward unless the module is on its first \
                      device",
                )
                .help(format!("put it on `device_ids[0]`: `.cuda({first})`"))
                .related(wrap.site, "wrapped here");
        }
        First::CommandLine if on == 0 && !program.chooses_visible_devices() => {
            let site = made_device(program, call).unwrap_or(event.site);
            report
                .at(site, format!("{module} `cuda:0`, whatever `{text}` says"))
                .level(Level::Warning)
                .why(
                    "`DataParallel` raises at the first forward unless the module is on the \
                     first of its `device_ids`",
                )
                .help(format!("put it on the first of them: `{text}[0]`"))
                .related(wrap.site, "wrapped here");
        }
        _ => {}
    }
}

fn first_id(program: &Program<'_>, ids: &ArgumentValue<'_>) -> First {
    let Some(term) = ids.value.single() else { return First::Unknown };
    if is_command_line(program, term) || is_parsed_text(program, term) {
        return First::CommandLine;
    }
    match items(program, ids).first() {
        Some(&first) => program.terms().as_int(first).map_or(First::Unknown, First::Fixed),
        None => First::Unknown,
    }
}

fn is_command_line(program: &Program<'_>, term: Term) -> bool {
    matches!(program.terms().kind(term), TermKind::Attribute(of, _)
        if program.object_of(*of).is_some_and(|o| o.class == ObjectClass::Arguments))
}

/// `[int(i) for i in text.split(",")]`, `list(map(int, text.split(",")))`.
fn is_parsed_text(program: &Program<'_>, term: Term) -> bool {
    let list = program.object_of(term).filter(|object| object.class == ObjectClass::List);
    let made = match *program.terms().kind(term) {
        TermKind::Opaque { site, .. } => Some(site),
        _ => list.map(|list| list.site),
    };
    made.is_some_and(|site| {
        let text = program.text(site);
        text.contains(".split(") && (text.contains("int(") || text.contains("map(int"))
    })
}

/// The ids of a list that is written out.
fn items(program: &Program<'_>, ids: &ArgumentValue<'_>) -> Vec<Term> {
    let Some(term) = ids.value.single() else { return Vec::new() };
    let is_list = matches!(program.terms().kind(term), TermKind::Tuple(_))
        || program.object_of(term).is_some_and(|o| o.class == ObjectClass::List);
    if !is_list {
        return Vec::new();
    }
    let items: Option<Vec<Term>> = program.contents(term).iter().map(Value::single).collect();
    items.unwrap_or_default()
}

/// The last move of the module or its wrapper before the wrapper is called.
fn last_move<'e, 'p>(
    program: &'e Program<'p>,
    wrap: &Event<'p>,
    wrapper: ObjectId,
) -> Option<(&'e Event<'p>, &'e Call<'p>)> {
    let module = program.wrapped_module(wrapper).and_then(Value::single);
    let mut held = vec![program.term_of(wrapper)];
    held.extend(module);
    let first_forward = program
        .forwards()
        .find(|(_, forward)| forward.module == held[0])
        .map(|(event, _)| event.id);
    program
        .calls(Role::Move)
        .filter(|(event, call)| {
            first_forward.is_none_or(|forward| event.id < forward)
                && program.can_both_hold_paths(event.path, wrap.path)
                && call.receiver.as_ref().is_some_and(|r| r.terms().any(|t| held.contains(&t)))
        })
        .filter(|(_, call)| program.moved_to(call) != [Device::Cpu])
        .last()
}

/// The index of the one device, the current one taken for the first.
fn index_of(program: &Program<'_>, devices: &[Device]) -> Option<i64> {
    let mut gpus = devices.iter().filter(|d| **d != Device::Cpu);
    let only = gpus.next().filter(|_| gpus.next().is_none())?;
    match only {
        Device::Fixed(index) => Some(*index),
        Device::Current if program.calls(Role::SetDevice).next().is_none() => Some(0),
        _ => None,
    }
}

/// Where the device that a module is moved to was made.
fn made_device(program: &Program<'_>, call: &Call<'_>) -> Option<Site> {
    let term = call.value_at(0, "device")?.single()?;
    let object = program.object_of(term)?;
    (object.role == Role::MakeDevice).then_some(object.site)
}

fn check_ddp(
    program: &Program<'_>,
    report: &mut Report<'_>,
    event: &Event<'_>,
    ids: &ArgumentValue<'_>,
) {
    let text = program.text(program.site_of(event.site.file, ids.expr));
    let items = items(program, ids);
    if items.len() > 1 || is_range(ids.expr) || is_range_kept(program, ids) {
        report
            .at(event.site, format!("`device_ids={text}` names several devices"))
            .why(
                "each process works on one device: `device_ids can only be None or contain a \
                  single element`",
            )
            .help("give it this process's device: `device_ids=[local_rank]`");
        return;
    }
    let [only] = items[..] else { return };
    let TermKind::Const(Const::Int(index)) = *program.terms().kind(only) else { return };
    if program.is_distributed() && !program.chooses_visible_devices() && !runs_alone(program) {
        report
            .at(event.site, format!("every process works on device {index}"))
            .why("the processes of a node share one device: memory runs out, NCCL refuses")
            .help("give it this process's device: `device_ids=[local_rank]`");
    }
}

/// The same, given a name before.
fn is_range_kept(program: &Program<'_>, ids: &ArgumentValue<'_>) -> bool {
    let term = ids.value.single();
    if let Some((_, to)) = term.and_then(|term| program.terms().range_bounds(term)) {
        return program.terms().as_int(to) != Some(1);
    }
    let made = term.and_then(|term| match *program.terms().kind(term) {
        TermKind::Opaque { site, .. } => Some(site),
        _ => program.object_of(term).map(|object| object.site),
    });
    made.is_some_and(|made| {
        let statement = Editor::new(program.project().file(made.file)).statement_at(made.span);
        matches!(statement.map(|s| &s.kind), Some(StmtKind::Assign { value: Some(value), .. })
            if value.span == made.span && is_range(value))
    })
}

/// `range(n)`, `list(range(n))`, `[i for i in range(n)]`, of more than one as far as is known.
fn is_range(expr: &Expr) -> bool {
    match &expr.kind {
        ExprKind::Call { callee, arguments } => {
            let name = callee.path().filter(|path| path.len() == 1).map(|path| path[0]);
            match (name.as_deref(), arguments.as_slice()) {
                (Some("range"), [n]) => n.value.literal().is_none(),
                (Some("list" | "tuple"), [inner]) => is_range(&inner.value),
                _ => false,
            }
        }
        ExprKind::Comprehension { element, clauses, .. } => match clauses.as_slice() {
            [clause] => {
                clause.tests.is_empty()
                    && element.path().is_some()
                    && element.path() == clause.target.path()
                    && is_range(&clause.iter)
            }
            _ => false,
        },
        _ => false,
    }
}

/// A group of one process.
fn runs_alone(program: &Program<'_>) -> bool {
    program.calls(Role::InitGroup).any(|(_, call)| {
        let size = call.argument("world_size").known().and_then(|a| a.value.single());
        size.is_some_and(|t| program.terms().as_int(t) == Some(1))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_list_in_another_file_counts() {
        check_files(&[
            ("settings.py", "GPUS = (2, 3)\n"),
            (
                "main.py",
                "
import torch
from torch.nn import DataParallel
import settings
class Runner:
    def __init__(self, net):
        self.net = DataParallel(net, settings.GPUS).to('cuda')  # ~ bad-device-ids: `device_ids[0]` is 2
    def step(self, x):
        self.net(x).sum().backward()
runner = Runner(torch.nn.Linear(2, 2))
for _ in range(3):
    runner.step(torch.ones(2, 2))
",
            ),
        ]);
    }

    #[test]
    fn a_fixed_device_object_counts() {
        check_python(
            "
import torch
device = torch.device('cuda:0' if torch.cuda.is_available() else 'cpu')
net = torch.nn.Linear(2, 2)
net = net.to(device)  # ~ bad-device-ids
net = torch.nn.DataParallel(net, device_ids=[1, 3])
for _ in range(3):
    net(torch.ones(2, 2)).sum().backward()
",
        );
    }

    #[test]
    fn ids_of_the_command_line_are_a_warning() {
        check_files(&[
            (
                "options.py",
                "
import argparse
def parse():
    parser = argparse.ArgumentParser()
    parser.add_argument('--gpus', type=int, nargs='+', default=[0, 1])
    return parser.parse_args()
",
            ),
            (
                "main.py",
                "
import torch
from options import parse
def train(opts):
    net = torch.nn.DataParallel(torch.nn.Linear(2, 2), device_ids=opts.gpus)
    net.cuda()  # ~ bad-device-ids: whatever `opts.gpus` says
    for _ in range(3):
        net(torch.ones(2, 2)).sum().backward()
if __name__ == '__main__':
    train(parse())
",
            ),
        ]);
    }

    #[test]
    fn ids_in_a_text_are_a_warning() {
        check_python(
            "
import argparse, torch
parser = argparse.ArgumentParser()
parser.add_argument('--gpu-ids', default='1,2')
args = parser.parse_args()
ids = [int(text) for text in args.gpu_ids.split(',')]
more = list(map(int, args.gpu_ids.split(',')))
third = torch.nn.DataParallel(torch.nn.Linear(2, 2), device_ids=more)
third.cuda()  # ~ bad-device-ids: whatever `more` says
net = torch.nn.DataParallel(torch.nn.Linear(2, 2), device_ids=ids)
net = net.cuda()  # ~ bad-device-ids: whatever `ids` says
other = torch.nn.DataParallel(torch.nn.Linear(2, 2), device_ids=list(range(len(ids)))).cuda()
for _ in range(3):
    net(torch.ones(2, 2)).sum().backward()
    other(torch.ones(2, 2)).sum().backward()
",
        );
    }

    #[test]
    fn the_first_of_the_ids_is_silent() {
        check_python(
            "
import argparse, torch
args = argparse.ArgumentParser().parse_args()
ids = [1, 2]
a = torch.nn.DataParallel(torch.nn.Linear(2, 2), device_ids=ids).cuda(ids[0])
b = torch.nn.DataParallel(torch.nn.Linear(2, 2).to(f'cuda:{ids[0]}'), device_ids=ids)
c = torch.nn.DataParallel(torch.nn.Linear(2, 2), device_ids=args.gpus)
c.to(f'cuda:{args.gpus[0]}')
d = torch.nn.DataParallel(torch.nn.Linear(2, 2).cuda(), device_ids=[0, 1])
for _ in range(3):
    for net in (a, b, c, d):
        net(torch.ones(2, 2)).sum().backward()
",
        );
    }

    #[test]
    fn a_current_device_that_was_set_is_silent() {
        check_python(
            "
import torch
torch.cuda.set_device(1)
net = torch.nn.DataParallel(torch.nn.Linear(2, 2).cuda(), device_ids=[1, 2])
for _ in range(3):
    net(torch.ones(2, 2)).sum().backward()
",
        );
    }

    #[test]
    fn several_or_constant_ids_of_a_process_count() {
        check_python(
            "
import os, torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP
dist.init_process_group('nccl')
local_rank = int(os.environ['LOCAL_RANK'])
torch.cuda.set_device(local_rank)
n = torch.cuda.device_count()
a = DDP(torch.nn.Linear(2, 2).cuda(), device_ids=list(range(n)))  # ~ bad-device-ids: several
b = DDP(torch.nn.Linear(2, 2).cuda(), device_ids=[0, 1])  # ~ bad-device-ids: several
c = DDP(torch.nn.Linear(2, 2).cuda(), device_ids=[0])  # ~ bad-device-ids: every process
d = DDP(torch.nn.Linear(2, 2).cuda(), device_ids=[local_rank])
for _ in range(3):
    for net in (a, b, c, d):
        net(torch.ones(2, 2)).sum().backward()
",
        );
    }

    #[test]
    fn devices_chosen_in_the_environment_are_silent() {
        check_python(
            "
import os, torch
import torch.distributed as dist
os.environ['CUDA_VISIBLE_DEVICES'] = os.environ['LOCAL_RANK']
dist.init_process_group('nccl')
net = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(2, 2).cuda(), device_ids=[0])
for _ in range(3):
    net(torch.ones(2, 2)).sum().backward()
",
        );
    }

    #[test]
    fn a_range_with_a_name_counts() {
        check_python(
            r#"
import os
import torch
import torch.distributed as dist
from torch import nn
def main():
    local_rank = int(os.environ["LOCAL_RANK"])
    torch.cuda.set_device(local_rank)
    dist.init_process_group("nccl")
    torch.manual_seed(local_rank)
    gpus = list(range(torch.cuda.device_count()))
    net = nn.Linear(5, 5).cuda()
    net = nn.parallel.DistributedDataParallel(net, device_ids=gpus)  # ~ bad-device-ids
    opt = torch.optim.SGD(net.parameters(), lr=0.1)
    for _ in range(9):
        loss = net(torch.randn(3, 5).cuda()).mean()
        opt.zero_grad()
        loss.backward()
        opt.step()
if __name__ == "__main__":
    main()
"#,
        );
    }
}
