use crate::analysis::{Call, Event, EventKind, PathNode, Term, Value};
use crate::prelude::*;
use crate::table::{CollectiveKind, Flag, Role};

declare_rule! {
    /// A collective still runs when its tensor is used, or its result is thrown away.
    ///
    /// With `async_op=True`, `isend` or `irecv` the call returns at once, and the tensor is in
    /// no defined state before `wait()`: sometimes the sum, sometimes one rank's own numbers.
    /// A reduction that gives back a new tensor leaves its argument as it was: whoever drops
    /// the result goes on with local numbers.
    ///
    /// ```python bad
    /// import torch
    /// import torch.distributed as dist
    ///
    /// dist.init_process_group("gloo")
    /// total = torch.ones(1)
    /// dist.all_reduce(total, async_op=True)  # ~ unwaited-collective
    /// print(total.item())
    /// ```
    /// ```python fixed
    /// import torch
    /// import torch.distributed as dist
    ///
    /// dist.init_process_group("gloo")
    /// total = torch.ones(1)
    /// dist.all_reduce(total, async_op=True).wait()
    /// print(total.item())
    /// ```
    /// ```python good
    /// import torch
    /// import torch.distributed as dist
    ///
    /// dist.init_process_group("gloo")
    /// total = torch.ones(1)
    /// work = dist.all_reduce(total, async_op=True)
    /// work.wait()
    /// print(total.item())
    /// ```
    /// ```rust bad
    /// use tch_ddp::{Launch, ProcessGroup};
    ///
    /// fn main() -> anyhow::Result<()> {
    ///     let group = ProcessGroup::init(&Launch::from_env()?, Default::default())?;
    ///     let total = tch::Tensor::ones([1], (tch::Kind::Float, group.device()));
    ///     let _work = group.all_reduce_async(&total)?; //~ unwaited-collective
    ///     total.print();
    ///     Ok(())
    /// }
    /// ```
    /// ```rust good
    /// use tch_ddp::{Launch, ProcessGroup};
    ///
    /// fn main() -> anyhow::Result<()> {
    ///     let group = ProcessGroup::init(&Launch::from_env()?, Default::default())?;
    ///     let total = tch::Tensor::ones([1], (tch::Kind::Float, group.device()));
    ///     let work = group.all_reduce_async(&total)?;
    ///     work.wait()?;
    ///     total.print();
    ///     Ok(())
    /// }
    /// ```
    ///
    /// # Known limits
    /// A handle that is kept in an attribute, given to unknown code or returned to an unknown
    /// caller may be waited for there; the rule is then silent.
    pub static RULE = {
        name: "unwaited-collective",
        level: Level::Error,
        harm: Harm::Wrong,
        tier: 2,
        languages: BOTH,
        fix: FixKind::Unsafe,
        check,
    };
}

fn check(program: &Program<'_>, report: &mut Report<'_>) {
    if coalesces(program) {
        return;
    }
    for (event, call) in program.calls(Role::Collective) {
        if is_lost_reduction(program, event, call) {
            tell_lost(program, report, event);
        } else if let Some(handle) = handle_of(program, event, call) {
            match waits_for(program, event, handle) {
                Waits::Never => tell_never(program, report, event, call),
                Waits::Sometimes(test) => tell_sometimes(program, report, event, test),
                Waits::MayBe => {}
            }
        }
    }
}

enum Waits {
    Never,
    /// Only where this condition holds.
    Sometimes(PathNode),
    /// Always, or nobody knows.
    MayBe,
}

/// The handle of a collective that still runs when the call returns.
fn handle_of(program: &Program<'_>, event: &Event<'_>, call: &Call<'_>) -> Option<Term> {
    let made = |term: &Term| program.object_of(*term).is_some_and(|o| o.event == Some(event.id));
    let given = call.result.single()?;
    if made(&given) {
        let object = program.object_of(given)?;
        return is_work(program.outside_class(object)?.as_str()).then_some(given);
    }
    let held = program.contents(given);
    held.iter().flat_map(Value::terms).find(made)
}

fn is_work(class: &str) -> bool {
    matches!(class.rsplit('.').next(), Some("Work" | "Request"))
}

fn waits_for(program: &Program<'_>, event: &Event<'_>, handle: Term) -> Waits {
    let mut conditional: Vec<PathNode> = Vec::new();
    let mut waits = 0;
    for (wait, call) in program.calls(Role::WaitHandle) {
        let on = call.receiver.iter().chain(call.arguments.iter().map(|a| &a.value));
        let mut waited = false;
        for value in on {
            let unknown =
                wait.id > event.id && value.terms().any(|term| program.object_of(term).is_none());
            if unknown {
                return Waits::MayBe;
            }
            waited |= holds(program, value, handle);
        }
        if waited {
            waits += 1;
            match extra_condition(program, event, wait) {
                Some(node) => conditional.push(node),
                None => return Waits::MayBe,
            }
        }
    }
    match conditional.as_slice() {
        [] if !escapes(program, handle) => Waits::Never,
        [only] if waits == 1 && is_real_choice(program, *only, handle) => Waits::Sometimes(*only),
        _ => Waits::MayBe,
    }
}

/// The value is the handle, or a list that holds it.
fn holds(program: &Program<'_>, value: &Value, handle: Term) -> bool {
    value.terms().any(|term| {
        term == handle
            || program.contents(term).iter().any(|held| held.terms().any(|t| t == handle))
    })
}

/// A condition of the wait that the collective does not stand under.
fn extra_condition(program: &Program<'_>, event: &Event<'_>, wait: &Event<'_>) -> Option<PathNode> {
    let of_event: Vec<Site> = program.conditions(event.path).map(|node| node.site).collect();
    program
        .conditions(wait.path)
        .find(|node| node.condition != program.terms().yes && !of_event.contains(&node.site))
        .copied()
}

/// The condition may well not hold where the collective ran: no setting, no test of the handle.
fn is_real_choice(program: &Program<'_>, node: PathNode, handle: Term) -> bool {
    let terms = program.terms();
    let of_handle = program.mentions(node.condition, &|kind| terms.find(kind) == Some(handle));
    let in_while = program.all_loops().any(|(_, l)| l.condition == Some(node.condition));
    let counts = program.mentions(node.condition, &|kind| {
        terms.find(kind).is_some_and(|term| program.is_counter(term))
    });
    !of_handle && !in_while && (counts || !program.is_setting(node.condition))
}

/// Something else may wait for it.
fn escapes(program: &Program<'_>, handle: Term) -> bool {
    let stored = |value: &Value| holds(program, value, handle);
    program.is_given_away(handle)
        || program.events().iter().any(|event| match &event.kind {
            EventKind::AttributeStore { value, .. } => stored(value),
            EventKind::Return { value } => {
                stored(value)
                    && (program.is_orphan(event) || is_called_from_outside(program, event))
            }
            _ => false,
        })
}

/// The caller of the function that an event stands in is not in the program.
fn is_called_from_outside(program: &Program<'_>, event: &Event<'_>) -> bool {
    program.frame(event.frame).call.is_none()
}

/// A reduction that gives a new tensor, as a statement of its own.
fn is_lost_reduction(program: &Program<'_>, event: &Event<'_>, call: &Call<'_>) -> bool {
    let reduces = matches!(
        call.row.and_then(|row| row.kind),
        Some(CollectiveKind::AllReduce | CollectiveKind::Reduce)
    );
    reduces
        && program.has_flag(call, Flag::OutOfPlace)
        && !program.has_flag(call, Flag::Async)
        && program.is_dropped(event)
}

/// A manager that batches collectives waits for them itself.
fn coalesces(program: &Program<'_>) -> bool {
    let manages = |text: &str| text.contains("_coalescing_manager");
    program.project().files.iter().any(|f| program.reaches(f.id) && manages(&f.text))
}

fn name_of(program: &Program<'_>, event: &Event<'_>) -> String {
    program.callee_text(event).unwrap_or("the collective").to_owned()
}

fn tell_never(program: &Program<'_>, report: &mut Report<'_>, event: &Event<'_>, call: &Call<'_>) {
    let name = name_of(program, event);
    let is_async = call.argument("async_op").known().is_some();
    let help = match program.language {
        Language::Python if is_async => {
            format!(
                "write `work = {name}(..)` and `work.wait()` before the tensor is used, or leave out \
                 `async_op=True`"
            )
        }
        Language::Python => {
            format!("write `work = {name}(..)` and `work.wait()` before the tensor is used")
        }
        Language::Rust => {
            format!("write `let work = {name}(..)?;` and `work.wait()?;` before the tensor is used")
        }
    };
    let draft = report
        .at(event.site, format!("nothing waits for `{name}`, which still runs when it returns"))
        .why(
            "until `wait()` the tensor may hold this rank's own numbers, half of the sum, or all \
              of it",
        )
        .help(help);
    if let Some(edit) = wait_at_once(program, event) {
        draft.unsafe_fix("wait for it", vec![edit]);
    }
}

/// `.wait()` behind a call that is a statement of its own.
fn wait_at_once(program: &Program<'_>, event: &Event<'_>) -> Option<Edit> {
    if !program.is_dropped(event) {
        return None;
    }
    let end = event.site.span.end;
    let text = &program.project().file(event.site.file).text[end as usize..];
    let (behind, added) = match program.language {
        Language::Python => (0, ".wait()"),
        Language::Rust if text.starts_with('?') => (1, ".wait()?"),
        Language::Rust => return None,
    };
    let span = Span::new(end + behind, end + behind);
    Some(Edit { site: Site { file: event.site.file, span }, replacement: added.to_owned() })
}

fn tell_sometimes(
    program: &Program<'_>,
    report: &mut Report<'_>,
    event: &Event<'_>,
    test: PathNode,
) {
    let name = name_of(program, event);
    report
        .at(event.site, format!("`{name}` is waited for on one path only"))
        .why("where nobody waits, the tensor is used while it is still being reduced")
        .help("call `wait()` on every path that goes on to use the tensor")
        .related(test.site, "the wait hangs on this condition");
}

fn tell_lost(program: &Program<'_>, report: &mut Report<'_>, event: &Event<'_>) {
    let name = name_of(program, event);
    report
        .at(event.site, format!("the result of `{name}` is thrown away"))
        .why("it gives back a new value and leaves its argument as it was: this rank's own numbers")
        .help(format!("assign it: `total = {name}(..)`"));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn handles_collected_in_a_helper_and_forgotten_count() {
        check_files(&[
            (
                "comm.py",
                "
import torch.distributed as dist
def average(net):
    works = []
    for p in net.parameters():
        works.append(dist.all_reduce(p.grad, async_op=True))  # ~ unwaited-collective
def average_well(net):
    works = []
    for p in net.parameters():
        works.append(dist.all_reduce(p.grad, async_op=True))
    for work in works:
        work.wait()
",
            ),
            (
                "main.py",
                "
import torch
import torch.distributed as dist
from comm import average, average_well
if __name__ == '__main__':
    dist.init_process_group('gloo')
    net = torch.nn.Linear(1, 1)
    for step in range(3):
        net(torch.ones(1)).sum().backward()
        average(net)
        average_well(net)
",
            ),
        ]);
    }

    #[test]
    fn a_wait_on_one_path_only_counts() {
        check_python(
            "
import torch
import torch.distributed as dist
dist.init_process_group('gloo')
for step, x in enumerate(torch.ones(8)):
    work = dist.all_reduce(x, async_op=True)  # ~ unwaited-collective: one path
    if step % 10 == 0:
        work.wait()
    print(x)
",
        );
    }

    #[test]
    fn sends_without_a_wait_count() {
        check_python(
            "
import torch
import torch.distributed as dist
dist.init_process_group('gloo')
rank = dist.get_rank()
box = torch.zeros(1)
if rank == 0:
    dist.isend(box, dst=1)  # ~ unwaited-collective
else:
    request = dist.irecv(box, src=0)
    request.wait()
",
        );
    }

    #[test]
    fn a_reduction_whose_result_is_dropped_counts() {
        check_python(
            "
import torch
from accelerate import Accelerator
accelerator = Accelerator()
loss = torch.ones(1)
accelerator.reduce(loss, reduction='mean')  # ~ unwaited-collective: thrown away
total = accelerator.reduce(loss)
print(loss, total)
",
        );
    }

    #[test]
    fn handles_that_somebody_may_wait_for_are_silent() {
        check_files(&[
            (
                "buckets.py",
                "
import torch
import torch.distributed as dist
class Buckets:
    def __init__(self):
        self.pending = []
        self.last = None
    def push(self, t):
        self.pending.append(dist.all_reduce(t, async_op=True))
        self.last = dist.broadcast(t, 0, async_op=True)
    def finish(self):
        for handle in self.pending:
            handle.wait()
        self.last.wait()
def start(t):
    return dist.all_gather([t], t, async_op=True)
def chained(t):
    return dist.all_reduce(t, async_op=True).get_future().then(lambda f: f.value()[0])
def both(t, wait):
    handle = dist.all_reduce(t, async_op=not wait)
    if handle is not None:
        handle.wait()
",
            ),
            (
                "main.py",
                "
import torch
import torch.distributed as dist
import elsewhere
from buckets import Buckets, start, chained, both
if __name__ == '__main__':
    dist.init_process_group('gloo')
    t = torch.ones(1)
    b = Buckets()
    b.push(t)
    b.finish()
    start(t).wait()
    chained(t)
    both(t, True)
    elsewhere.keep(dist.all_reduce(t, async_op=True))
    ops = [dist.P2POp(dist.isend, t, 1)]
    for request in dist.batch_isend_irecv(ops):
        request.wait()
",
            ),
        ]);
    }

    #[test]
    fn every_path_that_waits_is_silent() {
        check_python(
            "
import torch, sys
import torch.distributed as dist
dist.init_process_group('gloo')
t = torch.ones(1)
work = dist.all_reduce(t, async_op=True)
if len(sys.argv) > 1:
    work.wait()
    print(t)
else:
    work.wait()
dist.all_reduce(t)
dist.all_reduce(t, async_op=False)
",
        );
    }

    #[test]
    fn rust_handles_pushed_into_a_vector_count_unless_waited_for() {
        check_rust(
            "
use tch_ddp::{Launch, ProcessGroup};
fn reduce(group: &ProcessGroup, tensors: &[tch::Tensor]) -> anyhow::Result<()> {
    let mut running = Vec::new();
    for tensor in tensors {
        running.push(group.all_reduce_async(tensor)?); //~ unwaited-collective
    }
    Ok(())
}
fn reduce_well(group: &ProcessGroup, tensors: &[tch::Tensor]) -> anyhow::Result<()> {
    let mut running = Vec::new();
    for tensor in tensors {
        running.push(group.all_reduce_async(tensor)?);
    }
    for work in running {
        work.wait()?;
    }
    Ok(())
}
fn main() -> anyhow::Result<()> {
    let group = ProcessGroup::init(&Launch::from_env()?, Default::default())?;
    let tensors = [tch::Tensor::from(1.0)];
    reduce(&group, &tensors)?;
    reduce_well(&group, &tensors)
}
",
        );
    }
}
