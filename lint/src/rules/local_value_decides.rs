use crate::analysis::rankflow::{Ahead, LocalDecision};
use crate::analysis::{Call, EventKind, ObjectClass, Taint, Term, TermKind, Value};
use crate::model::CompareOp;
use crate::prelude::*;
use crate::table::Role;

declare_rule! {
    /// Each rank decides by its own data whether to go on with what all must do together.
    ///
    /// A loss, a NaN test, a clock or the existence of a file differs between ranks. Where it
    /// ends a loop of training steps, or stands around a collective, some ranks go on and
    /// others do not: the run hangs, or calls pair wrongly. So does an error that is caught
    /// around a training step (out of memory) and that one rank alone has; an error that ends
    /// the run is fine.
    ///
    /// ```python bad
    /// import torch
    /// import torch.distributed as dist
    /// from torch.nn.parallel import DistributedDataParallel as DDP
    ///
    /// dist.init_process_group("nccl")
    /// model = DDP(torch.nn.Linear(2, 2))
    /// for step in range(100):
    ///     loss = model(torch.rand(2, 2)).sum()
    ///     loss.backward()
    ///     if loss.item() < 0.1:  # ~ local-value-decides
    ///         break
    /// ```
    /// ```python good
    /// import torch
    /// import torch.distributed as dist
    /// from torch.nn.parallel import DistributedDataParallel as DDP
    ///
    /// dist.init_process_group("nccl")
    /// model = DDP(torch.nn.Linear(2, 2))
    /// for step in range(100):
    ///     loss = model(torch.rand(2, 2)).sum()
    ///     loss.backward()
    ///     mean = loss.detach()
    ///     dist.all_reduce(mean)
    ///     if mean.item() < 0.1:
    ///         break
    /// ```
    /// ```rust bad
    /// use tch_ddp::{Ddp, Launch, ProcessGroup};
    ///
    /// fn main() -> anyhow::Result<()> {
    ///     let group = ProcessGroup::init(&Launch::from_env()?, Default::default())?;
    ///     let started = std::time::Instant::now();
    ///     for step in 0..100 {
    ///         if started.elapsed().as_secs() > 60 { //~ local-value-decides
    ///             break;
    ///         }
    ///         group.barrier()?;
    ///     }
    ///     Ok(())
    /// }
    /// ```
    /// ```rust good
    /// use tch_ddp::{Ddp, Launch, ProcessGroup};
    ///
    /// fn main() -> anyhow::Result<()> {
    ///     let group = ProcessGroup::init(&Launch::from_env()?, Default::default())?;
    ///     for step in 0..100 {
    ///         if step > 60 {
    ///             break;
    ///         }
    ///         group.barrier()?;
    ///     }
    ///     Ok(())
    /// }
    /// ```
    ///
    /// # Known limits
    /// A value that went through a collective is the same on all ranks. Contents of a file are
    /// taken to be the same on all ranks; whether it exists is not.
    pub static RULE = {
        name: "local-value-decides",
        level: Level::Error,
        harm: Harm::Hang,
        tier: 1,
        languages: BOTH,
        fix: FixKind::No,
        check,
    };
}

const DISK: &str = "its own look at the disk";
const CLOCK: &str = "its own clock";
const DATA: &str = "its own data";

fn check(program: &Program<'_>, report: &mut Report<'_>) {
    if !program.is_distributed() {
        return;
    }
    for decision in program.local_decisions() {
        if is_about_loading(program, &decision)
            || is_decided_by_the_parent(program, &decision)
            || n_parts(program, decision.condition) > N_PARTS_MAX
            || looks_from_afar(program, decision.condition)
            || decision.is_caught && ends_here(&decision)
            || asks_whether_there_is(program, decision.condition)
            || !decision.is_caught && all_may_have_it(program, decision.condition)
            || asks_for_an_input(program, decision.condition)
            || asks_for_the_form(program, decision.condition)
            || !decision.is_caught && is_vague(program, &decision)
        {
            continue;
        }
        if decision.is_caught {
            tell_caught(program, report, &decision);
        } else {
            tell(program, report, &decision);
        }
    }
}

/// A rank that gets into the handler does nothing more with the others: it ends.
fn ends_here(decision: &LocalDecision) -> bool {
    !decision.trace.iter().any(|step| matches!(step, Ahead::Does(_)))
}

fn tell(program: &Program<'_>, report: &mut Report<'_>, decision: &LocalDecision) {
    let site = condition_site(program, decision.condition, decision.site);
    let source = source_of(program, decision.condition);
    let shown = |steps| program.sequence_text(steps, site);
    let draft = report
        .at(
            site,
            format!(
                "each rank decides this by {source} (where it holds: {}; where not: {})",
                shown(&decision.trace),
                shown(&decision.other_trace)
            ),
        )
        .why(consequence(program, decision, site))
        .help(
            "let all ranks agree first: reduce or broadcast the value, \
             or let rank 0 decide and broadcast its decision",
        );
    if let Some(event) = decision.event {
        draft.related(program.event(event).site, "all ranks must do this together");
    }
}

fn tell_caught(program: &Program<'_>, report: &mut Report<'_>, decision: &LocalDecision) {
    let site = decision.site;
    let shown = |steps| program.sequence_text(steps, site);
    let draft = report
        .at(
            site,
            format!(
                "an error that one rank alone has leads it past the others (it: {}; the others: \
                 {})",
                shown(&decision.trace),
                shown(&decision.other_trace)
            ),
        )
        .why(consequence(program, decision, site))
        .help(
            "let the error end the run, or reduce a flag so that all ranks learn of it and go on \
             alike",
        );
    if let Some(Ahead::Does(event)) = decision.other_trace.first() {
        draft.related(program.event(*event).site, "all ranks must do this together");
    }
}

/// Where the ranks that disagree get stuck.
fn consequence(program: &Program<'_>, decision: &LocalDecision, near: Site) -> String {
    let event = |steps: &[Ahead]| {
        steps.iter().find_map(|step| match step {
            Ahead::Does(event) => Some(*event),
            Ahead::Leaves(_) => None,
        })
    };
    let told = |event| {
        let place = program.place_text(program.event(event).site, near);
        format!("`{}` in {place}", program.step_name(event))
    };
    match (event(&decision.trace), event(&decision.other_trace)) {
        (Some(a), Some(b)) if program.event(a).site != program.event(b).site => format!(
            "where the ranks disagree, some wait in {} and others in {}: the two pair wrongly, or \
             hang",
            told(a),
            told(b)
        ),
        (Some(one), _) | (None, Some(one)) => format!(
            "where the ranks disagree, those that go on wait in {} for the others: it hangs",
            told(one)
        ),
        (None, None) => {
            "where the ranks disagree, some go on to what all must do together: it hangs".to_owned()
        }
    }
}

/// A file test before what a framework loads by itself: every rank sees the same disk there, or
/// the framework says so.
fn is_about_loading(program: &Program<'_>, decision: &LocalDecision) -> bool {
    if source_of(program, decision.condition) != DISK {
        return false;
    }
    let Some(event) = decision.event else { return true };
    match &program.event(event).kind {
        EventKind::Call(call) => {
            call.role != Role::Collective
                || call.name.is_none_or(|n| {
                    let plain = n.strip_prefix("torch.distributed.");
                    !(plain.is_some_and(|n| !n.contains('.')) || n.starts_with("tch_ddp."))
                })
        }
        _ => true,
    }
}

/// The process that starts the ranks looks, and all of them do as it says.
fn is_decided_by_the_parent(program: &Program<'_>, decision: &LocalDecision) -> bool {
    let origins = program.terms().origins(decision.condition);
    decision.event.is_some_and(|event| program.event(event).modes.spawned)
        && !origins.is_empty()
        && origins.iter().all(|&origin| !program.event(origin).modes.spawned)
}

/// `if let Some(loss) = loss`, of tch: whether the model was asked for it.
fn asks_whether_there_is(program: &Program<'_>, condition: Term) -> bool {
    program.language == Language::Rust
        && match program.terms().kind(condition) {
            TermKind::Not(inner) => asks_whether_there_is(program, *inner),
            TermKind::Compare(CompareOp::Is, a, b) => [*a, *b].contains(&program.terms().none),
            _ => false,
        }
}

/// More events than this between a clock or disk and a decision: what came of it is a setting.
const N_ORIGINS_MAX: usize = 10;

/// A clock or the disk had a part in it long ago, in a name or a count.
fn looks_from_afar(program: &Program<'_>, condition: Term) -> bool {
    program.terms().origins(condition).len() > N_ORIGINS_MAX
        && matches!(source_of(program, condition), DISK | CLOCK)
}

/// Nothing shows that the ranks differ: it came of something unknown, or of files that all read,
/// and of nothing that a rank has for itself. A `uuid` names things and decides nothing.
fn all_may_have_it(program: &Program<'_>, condition: Term) -> bool {
    let origins = program.terms().origins(condition);
    let calls: Vec<_> = origins.iter().filter_map(|&o| program.event(o).call()).collect();
    let is_shared = |call: &&Call<'_>| match call.role {
        Role::Load | Role::Plain | Role::ReadFile | Role::Open => true,
        Role::Random => call.name.is_some_and(|name| name.starts_with("uuid.")),
        _ => false,
    };
    source_of(program, condition) == DATA
        && (is_of_one_file(program, condition) || calls.iter().all(is_shared))
}

/// `os.path.isdir(args.data)`: a folder that the command line names is there for all ranks.
fn asks_for_an_input(program: &Program<'_>, condition: Term) -> bool {
    let origins = program.terms().origins(condition);
    let mut tests = origins.iter().filter_map(|&origin| {
        program.event(origin).call().filter(|call| call.role == Role::PathExists)
    });
    let is_input = |call: &Call<'_>| {
        let given = call.receiver.as_ref().or(call.arguments.first().map(|a| &a.value));
        call.name.is_some_and(|n| n.ends_with("isdir") || n.ends_with("is_dir"))
            && given.and_then(Value::single).is_some_and(|t| {
                matches!(program.terms().kind(t), TermKind::Attribute(of, _)
                    if program.object_of(*of).is_some_and(|o| o.class == ObjectClass::Arguments))
            })
    };
    source_of(program, condition) == DISK && tests.all(is_input)
}

/// What kind of thing a value is, or whether there is one, is alike on all ranks.
fn asks_for_the_form(program: &Program<'_>, condition: Term) -> bool {
    let terms = program.terms();
    if terms.is_huge(condition) {
        return false;
    }
    match terms.kind(condition) {
        TermKind::And(parts) | TermKind::Or(parts) => parts
            .iter()
            .all(|&p| !terms.taint(p).has(Taint::LOCAL) || asks_for_the_form(program, p)),
        TermKind::Not(inner) => asks_for_the_form(program, *inner),
        TermKind::Compare(CompareOp::Is, a, b) => *a == terms.none || *b == terms.none,
        TermKind::Apply(name, _) => {
            matches!(&**name, "isinstance" | "hasattr" | "callable" | "issubclass")
        }
        _ => is_type_test(program, condition),
    }
}

fn is_type_test(program: &Program<'_>, condition: Term) -> bool {
    match *program.terms().kind(condition) {
        TermKind::Opaque { site, .. } => {
            let text = program.text(site);
            ["isinstance(", "hasattr(", "torch.is_tensor("].iter().any(|t| text.starts_with(t))
        }
        _ => false,
    }
}

/// Nothing shows that the ranks differ: items that a loop walks over, as many as there are
/// (`uneven-iterations` asks), steps that are counted, data of unknown descent.
fn is_vague(program: &Program<'_>, decision: &LocalDecision) -> bool {
    let terms = program.terms();
    if source_of(program, decision.condition) != DATA {
        return false;
    }
    let walks = program.text(decision.site).starts_with("for ")
        && terms.range_bounds(decision.condition).is_none();
    let is_local = |t: &Term| terms.taint(*t).has(Taint::LOCAL);
    let is_leaf =
        |t: &Term| matches!(terms.kind(*t), TermKind::Opaque { .. } | TermKind::Attribute(..));
    let parts = program.parts_of(decision.condition);
    let mut leaves = parts.iter().filter(|t| is_leaf(t) && is_local(t)).peekable();
    let counts = leaves.peek().is_some() && leaves.all(|&t| program.is_counter(t));
    let origins = terms.origins(decision.condition);
    let reads = origins.iter().any(|&origin| {
        program
            .event(origin)
            .call()
            .is_some_and(|c| matches!(c.role, Role::HostRead | Role::Reduce))
    });
    walks || origins.is_empty() || counts && !reads
}

/// What a file holds that all ranks read, and nothing of this rank's own went into it.
fn is_of_one_file(program: &Program<'_>, condition: Term) -> bool {
    let origins = program.terms().origins(condition);
    let own = [Role::Loss, Role::Random, Role::Time, Role::PathExists, Role::Reduce];
    let is_load = |&origin: &_| program.event(origin).call().is_some_and(|c| c.role == Role::Load);
    let is_own = |&origin: &_| match &program.event(origin).kind {
        EventKind::Call(call) => own.contains(&call.role),
        kind => matches!(kind, EventKind::Forward(_)),
    };
    origins.iter().any(is_load) && !origins.iter().any(is_own)
}

/// A condition of more parts than people write: it tells by which ways a value came here.
const N_PARTS_MAX: usize = 12;

fn n_parts(program: &Program<'_>, condition: Term) -> usize {
    if program.terms().is_huge(condition) {
        return usize::MAX;
    }
    match program.terms().kind(condition) {
        TermKind::And(parts) | TermKind::Or(parts) => {
            parts.iter().fold(0, |sum: usize, &part| sum.saturating_add(n_parts(program, part)))
        }
        TermKind::Not(inner) => n_parts(program, *inner),
        _ => 1,
    }
}

/// The test itself rather than the whole statement, where it was told.
fn condition_site(program: &Program<'_>, condition: Term, statement: Site) -> Site {
    program
        .events()
        .iter()
        .find_map(|event| match &event.kind {
            EventKind::Test { condition: tested, .. }
                if *tested == condition
                    && event.site.file == statement.file
                    && statement.span.contains(event.site.span) =>
            {
                Some(event.site)
            }
            _ => None,
        })
        .unwrap_or(statement)
}

fn source_of(program: &Program<'_>, condition: Term) -> &'static str {
    let origins = program.terms().origins(condition);
    let of = |role: Role| {
        origins
            .iter()
            .any(|&origin| program.event(origin).call().is_some_and(|call| call.role == role))
    };
    let from_forward =
        origins.iter().any(|&o| matches!(program.event(o).kind, EventKind::Forward(_)));
    if of(Role::PathExists) {
        DISK
    } else if of(Role::Time) {
        CLOCK
    } else if from_forward || of(Role::Loss) {
        "its own loss or outputs"
    } else {
        DATA
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn settings_that_all_ranks_read_are_silent() {
        check_python(
            "
import uuid, yaml
import torch.distributed as dist
dist.init_process_group('gloo')
with open('run.yaml') as file:
    settings = yaml.safe_load(file)
settings['run'] = uuid.uuid4()
for step in range(100):
    if step % settings['period'] == 0:
        dist.barrier()
",
        );
    }

    #[test]
    fn folders_of_the_command_line_and_questions_of_form_are_silent() {
        check_python(
            "
import argparse, os, torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader
args = argparse.ArgumentParser().parse_args()
def gather(x):
    if isinstance(x, (tuple, list)):
        return [gather(part) for part in x]
    dist.all_reduce(x)
    return x
class Ahead:
    def __init__(self, loader):
        self.items = iter(loader)
    def next(self):
        try:
            self.batch = next(self.items)
        except StopIteration:
            self.batch = None
        return self.batch
dist.init_process_group('nccl')
model = DDP(torch.nn.Linear(2, 2))
if os.path.isdir(args.extra):
    gather(torch.ones(1))
ahead = Ahead(DataLoader([1, 2], sampler=torch.utils.data.DistributedSampler([1, 2])))
batch = ahead.next()
while batch is not None:
    gather(model(batch)).sum().backward()
    batch = ahead.next()
",
        );
    }

    #[test]
    fn what_the_parent_process_decides_is_silent() {
        check_python(
            "
import os, torch
import torch.distributed as dist
import torch.multiprocessing as mp
def work(rank, n, resume):
    dist.init_process_group('gloo', rank=rank, world_size=n)
    if resume:
        dist.barrier()
if __name__ == '__main__':
    if os.access('/tmp', os.W_OK):
        mp.spawn(work, nprocs=2, args=(2, os.path.exists('last.pt')))
",
        );
    }

    #[test]
    fn a_file_test_around_a_broadcast_counts() {
        check_python(
            "
import os, torch
import torch.distributed as dist
def resume(path):
    box = [None]
    if os.path.exists(path):  # ~ local-value-decides: disk
        dist.broadcast_object_list(box, src=0)
    return box[0]
dist.init_process_group('nccl')
resume('x.pt')
for _ in range(1):
    pass
",
        );
    }

    #[test]
    fn early_stopping_in_another_file_counts() {
        check_files(&[
            (
                "stop.py",
                "
class Stopper:
    def __init__(self):
        self.best = 1e9
        self.bad = 0
    def update(self, value):
        self.bad = 0 if value < self.best else self.bad + 1
        self.best = min(self.best, value)
        return self.bad > 3
",
            ),
            (
                "main.py",
                "
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP
from stop import Stopper
if __name__ == '__main__':
    dist.init_process_group('nccl')
    model = DDP(torch.nn.Linear(2, 2))
    stopper = Stopper()
    for step in range(100):
        loss = model(torch.rand(2, 2)).sum()
        loss.backward()
        if stopper.update(loss.item()):  # ~ local-value-decides
            break
",
            ),
        ]);
    }

    #[test]
    fn the_resume_idiom_is_silent() {
        check_python(
            "
import os, torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP
dist.init_process_group('nccl')
model = DDP(torch.nn.Linear(2, 2))
start = 0
if os.path.isfile('last.pt'):
    start = torch.load('last.pt', map_location='cpu')['epoch']
for step in range(start, 100):
    model(torch.rand(2, 2)).sum().backward()
",
        );
    }

    #[test]
    fn an_exit_by_error_is_silent() {
        check_python(
            "
import math, sys, torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP
dist.init_process_group('nccl')
model = DDP(torch.nn.Linear(2, 2))
for step in range(100):
    loss = model(torch.rand(2, 2)).sum()
    if not math.isfinite(loss.item()):
        print('loss is', loss.item())
        sys.exit(1)
    loss.backward()
",
        );
    }

    #[test]
    fn what_the_user_declares_uniform_is_silent() {
        check_python(
            "
import time, torch
import torch.distributed as dist
dist.init_process_group('gloo')
started = time.time()
while True:
    # ddp-lint: uniform
    if time.time() - started > 60:
        break
    dist.barrier()
while time.time() - started < 90:  # ddp-lint: uniform -- one clock for all processes
    dist.barrier()
while time.time() - started < 120:  # ~ local-value-decides: clock
    dist.barrier()
",
        );
        check_rust(
            "
use tch_ddp::{Launch, ProcessGroup};
fn main() -> anyhow::Result<()> {
    let group = ProcessGroup::init(&Launch::from_env()?, Default::default())?;
    let started = std::time::Instant::now();
    for step in 0..100 {
        // ddp-lint: uniform
        if started.elapsed().as_secs() > 60 {
            break;
        }
        group.barrier()?;
    }
    for step in 0..100 {
        // ddp-lint: uniform here says nothing of the line after the next

        if started.elapsed().as_secs() > 90 { //~ local-value-decides: out of the loop
            break;
        }
        group.barrier()?;
    }
    Ok(())
}
",
        );
    }

    #[test]
    fn both_sequences_are_told() {
        check_python(
            "
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP
dist.init_process_group('nccl')
model = DDP(torch.nn.Linear(2, 2))
for step in range(100):
    loss = model(torch.rand(2, 2)).sum()
    loss.backward()
    if loss.item() < 0.1:  # ~ local-value-decides: (where it holds: out of the loop, barrier in line 12; where not: model in line 8, backward in line 9)
        break
dist.barrier()
",
        );
    }

    #[test]
    fn an_error_caught_around_a_training_step_counts() {
        check_files(&[
            (
                "engine.py",
                "
import torch
def run(model, opt, rows):
    loss = model(rows).sum()
    opt.zero_grad()
    loss.backward()
    opt.step()
",
            ),
            (
                "main.py",
                "
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP
from engine import run
if __name__ == '__main__':
    dist.init_process_group('nccl')
    model = DDP(torch.nn.Linear(2, 2))
    opt = torch.optim.SGD(model.parameters(), 0.1)
    for rows in torch.rand(8, 2, 2):
        try:
            run(model, opt, rows)
        except torch.cuda.OutOfMemoryError:  # ~ local-value-decides: an error that one rank alone has
            torch.cuda.empty_cache()
            continue
        dist.all_reduce(rows)
",
            ),
        ]);
    }

    #[test]
    fn errors_that_end_the_run_or_that_all_ranks_have_are_silent() {
        check_python(
            "
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP
def step(model):
    model(torch.rand(2, 2)).sum().backward()
dist.init_process_group('nccl')
model = DDP(torch.nn.Linear(2, 2))
for _ in range(100):
    try:
        step(model)
    except RuntimeError as error:
        print('failed', error)
        raise
    try:
        step(model)
    except (KeyboardInterrupt, NotImplementedError):
        continue
    try:
        dist.barrier()
    except RuntimeError:
        pass
    try:
        rows = torch.load('rows.pt', map_location='cpu')
    except FileNotFoundError:
        rows = None
try:
    step(model)
except Exception as error:
    print('the end', error)
",
        );
    }

    #[test]
    fn a_loss_that_is_no_number_and_skips_the_backward_counts() {
        check_python(
            "
import random, torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP
def main():
    dist.init_process_group('nccl')
    model = DDP(torch.nn.Linear(2, 2))
    for step in range(100):
        loss = model(torch.rand(2, 2)).sum()
        if torch.isnan(loss):  # ~ local-value-decides: where not: backward in line 12
            continue
        loss.backward()
        if random.random() < 0.1:  # ~ local-value-decides
            dist.barrier()
main()
",
        );
    }

    #[test]
    fn a_stopper_that_starts_with_none_counts() {
        check_files(&[
            (
                "stop.py",
                "
class EarlyStopping:
    def __init__(self, patience):
        self.patience = patience
        self.counter = 0
        self.best = None
        self.early_stop = False
    def __call__(self, value):
        if self.best is None:
            self.best = value
        elif value > self.best:
            self.counter += 1
            if self.counter >= self.patience:
                self.early_stop = True
        else:
            self.best = value
            self.counter = 0
",
            ),
            (
                "main.py",
                "
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP
from stop import EarlyStopping
def main():
    dist.init_process_group('nccl')
    model = DDP(torch.nn.Linear(2, 2))
    stopper = EarlyStopping(3)
    agreed = EarlyStopping(3)
    last = None
    for step in range(100):
        loss = model(torch.rand(2, 2)).sum()
        loss.backward()
        stopper(loss.item())
        if stopper.early_stop:  # ~ local-value-decides
            break
        if last is not None:
            dist.barrier()
        last = loss.detach()
        mean = loss.detach().clone()
        dist.all_reduce(mean)
        agreed(mean.item())
        if agreed.early_stop:
            break
if __name__ == '__main__':
    main()
",
            ),
        ]);
    }

    #[test]
    fn a_stopper_that_starts_without_a_best_value_counts() {
        check_files(&[
            (
                "fit.py",
                r#"
import os
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset
from stopping import EarlyStopping
@torch.no_grad()
def validate(net, loader):
    net.eval()
    s = torch.zeros(2, device="cuda")
    for x, y in loader:
        s[0] += F.mse_loss(net(x.cuda()), y.cuda(), reduction="sum")
        s[1] += len(x)
    return (s[0] / s[1]).item()
def main():
    dist.init_process_group("nccl")
    g = int(os.environ["LOCAL_RANK"])
    torch.cuda.set_device(g)
    tr, va = (TensorDataset(torch.randn(100, 4), torch.randn(100, 1)) for _ in range(2))
    ts, vs = DistributedSampler(tr), DistributedSampler(va, shuffle=False)
    tl, vl = DataLoader(tr, 10, sampler=ts), DataLoader(va, 10, sampler=vs)
    net = DDP(torch.nn.Linear(4, 1).cuda(), device_ids=[g])
    opt = torch.optim.AdamW(net.parameters())
    es = EarlyStopping(patience=3)
    for epoch in range(50):
        ts.set_epoch(epoch)
        net.train()
        for x, y in tl:
            loss = F.mse_loss(net(x.cuda()), y.cuda())
            opt.zero_grad()
            loss.backward()
            opt.step()
        val = validate(net, vl)
        es(val)
        if es.early_stop:  # ~ local-value-decides
            break
if __name__ == "__main__":
    main()
"#,
            ),
            (
                "stopping.py",
                "
class EarlyStopping:
    def __init__(self, patience=5):
        self.patience = patience
        self.counter = 0
        self.best_score = None
        self.early_stop = False
    def __call__(self, val_loss):
        score = -val_loss
        if self.best_score is None or score > self.best_score:
            self.best_score = score
            self.counter = 0
        else:
            self.counter += 1
            if self.counter >= self.patience:
                self.early_stop = True
",
            ),
        ]);
    }

    #[test]
    fn seeded_alike_random_numbers_agree() {
        check_python(
            "
import random, torch
import torch.distributed as dist
random.seed(0)
dist.init_process_group('gloo')
for step in range(100):
    if random.random() < 0.1:
        dist.barrier()
",
        );
    }

    #[test]
    fn a_step_left_out_for_a_bad_loss_counts() {
        check_python(
            r#"
import os
import math
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP
def main():
    dist.init_process_group("nccl")
    g = int(os.environ["LOCAL_RANK"])
    torch.cuda.set_device(g)
    torch.manual_seed(dist.get_rank())
    net = DDP(torch.nn.Linear(4, 4).cuda(), device_ids=[g])
    opt = torch.optim.AdamW(net.parameters())
    for step in range(100):
        loss = net(torch.randn(4, 4).cuda()).pow(2).mean()
        if not math.isfinite(loss.item()):  # ~ local-value-decides
            opt.zero_grad()
            continue
        opt.zero_grad()
        loss.backward()
        opt.step()
if __name__ == "__main__":
    main()
"#,
        );
    }

    #[test]
    fn a_loss_in_the_condition_of_a_loop_counts() {
        check_python(
            "
import os
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset
def one_epoch(net, opt, loader):
    total = torch.zeros(1, device='cuda')
    for (x,) in loader:
        loss = net(x.cuda()).pow(2).mean()
        opt.zero_grad()
        loss.backward()
        opt.step()
        total += loss.detach()
    total /= len(loader)
    return total.item()
def main():
    dist.init_process_group('nccl')
    torch.cuda.set_device(int(os.environ['LOCAL_RANK']))
    data = TensorDataset(torch.rand(64, 4))
    sampler = DistributedSampler(data)
    loader = DataLoader(data, batch_size=8, sampler=sampler)
    net = DDP(torch.nn.Linear(4, 1).cuda())
    opt = torch.optim.SGD(net.parameters(), 0.01)
    epoch = 0
    while (score := one_epoch(net, opt, loader)) > 0.01:  # ~ local-value-decides
        epoch += 1
        sampler.set_epoch(epoch)
if __name__ == '__main__':
    main()
",
        );
        check_python(
            "
import os
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset
def one_epoch(net, opt, loader):
    total = torch.zeros(1, device='cuda')
    for (x,) in loader:
        loss = net(x.cuda()).pow(2).mean()
        opt.zero_grad()
        loss.backward()
        opt.step()
        total += loss.detach()
    dist.all_reduce(total)
    return total.item()
def main():
    dist.init_process_group('nccl')
    torch.cuda.set_device(int(os.environ['LOCAL_RANK']))
    data = TensorDataset(torch.rand(64, 4))
    sampler = DistributedSampler(data)
    loader = DataLoader(data, batch_size=8, sampler=sampler)
    net = DDP(torch.nn.Linear(4, 1).cuda())
    opt = torch.optim.SGD(net.parameters(), 0.01)
    epoch = 0
    while (score := one_epoch(net, opt, loader)) > 0.01:
        epoch += 1
        sampler.set_epoch(epoch)
if __name__ == '__main__':
    main()
",
        );
    }

    #[test]
    fn the_number_of_a_batch_is_the_same_for_all_ranks() {
        let program = |batches: &str| {
            r"
use anyhow::Result;
use tch::nn::{self, OptimizerConfig};
use tch::{Kind, Tensor};
use tch_ddp::{Ddp, DdpOptions, DistributedSampler, GroupOptions, Launch, ProcessGroup};

fn main() -> Result<()> {
    let group = ProcessGroup::init(&Launch::from_env()?, GroupOptions::default())?;
    let vs = nn::VarStore::new(group.device());
    let net = nn::linear(vs.root(), 4, 1, Default::default());
    let mut opt = nn::Sgd::default().build(&vs, 1e-3)?;
    let ddp = Ddp::new(net, vs, &group, DdpOptions::default())?;
    let x = Tensor::zeros([64, 4], (Kind::Float, group.device()));
    let sampler = DistributedSampler::new(64, &group).batch_size(8);
    for (step, rows) in BATCHES.enumerate() {
        let loss = ddp.run(|net| x.index_select(0, &rows).apply(net))?.mean(Kind::Float);
        ddp.backward_step(&mut opt, &loss)?;
        if step % 5 == 4 {
            group.all_reduce(&loss.detach())?;
        }
    }
    Ok(())
}
"
            .replace("BATCHES", batches)
        };
        for batches in [
            "sampler.epoch(0)",
            "sampler.epoch(0).take(20)",
            "(0..3).flat_map(|epoch| sampler.epoch(epoch)).take(20)",
        ] {
            check_rust(&program(batches));
        }
    }
}
