use crate::analysis::facts::Wrapper;
use crate::analysis::{Call, Event, Term, TermKind};
use crate::prelude::*;
use crate::python::edit::Editor;
use crate::table::Role;

declare_rule! {
    /// A test whether a model is wrapped knows one wrapper, and the program uses the other.
    ///
    /// `isinstance(model, DataParallel)` is false for a `DistributedDataParallel`: neither
    /// derives from the other. What was to be unwrapped stays wrapped, and its state is saved
    /// with the prefix `module.`, or an attribute is not found: `'DistributedDataParallel'
    /// object has no attribute 'encode'`.
    ///
    /// ```python bad
    /// import torch.nn as nn
    ///
    ///
    /// def unwrap(model):
    ///     if isinstance(model, nn.DataParallel):  # ~ isinstance-misses-ddp
    ///         return model.module
    ///     return model
    ///
    ///
    /// model = nn.parallel.DistributedDataParallel(nn.Linear(8, 1))
    /// print(unwrap(model).weight)
    /// ```
    /// ```python fixed
    /// import torch.nn as nn
    ///
    ///
    /// def unwrap(model):
    ///     if isinstance(model, (nn.DataParallel, nn.parallel.DistributedDataParallel)):
    ///         return model.module
    ///     return model
    ///
    ///
    /// model = nn.parallel.DistributedDataParallel(nn.Linear(8, 1))
    /// print(unwrap(model).weight)
    /// ```
    ///
    /// # Known limits
    /// Only tests that lead to `.module` count. A function that also tests for the other
    /// wrapper, or asks `hasattr(model, "module")`, is silent.
    pub static RULE = {
        name: "isinstance-misses-ddp",
        level: Level::Warning,
        harm: Harm::Wrong,
        tier: 2,
        languages: PYTHON,
        fix: FixKind::Safe,
        check,
    };
}

/// Functions longer than this do more than unwrap.
const N_LINES_MAX: usize = 15;

fn check(program: &Program<'_>, report: &mut Report<'_>) {
    for (event, call) in program.calls(Role::TypeTest) {
        let [_, classes] = call.arguments.as_slice() else { continue };
        let Some(class) = classes.value.single() else { continue };
        let named = wrappers_of(program, class);
        let [known] = named[..] else { continue };
        let other = if known == Wrapper::Dp { Wrapper::Ddp } else { Wrapper::Dp };
        let misses = may_be(program, call, other, known);
        if !misses || !unwraps(program, event) || tests_the_other(program, event, other) {
            continue;
        }
        let text = program.text(program.site_of(event.site.file, classes.expr));
        report
            .at(event.site, format!("`{text}` does not match a `{}`", name_of(other)))
            .why(format!(
                "the program wraps its model with `{}`, which this test takes for unwrapped",
                name_of(other)
            ))
            .help("test for both wrappers")
            .fix(fix(program, event, classes.expr, other));
    }
}

fn name_of(wrapper: Wrapper) -> &'static str {
    match wrapper {
        Wrapper::Ddp => "DistributedDataParallel",
        Wrapper::Dp => "DataParallel",
    }
}

/// The wrappers among the classes that a test names.
fn wrappers_of(program: &Program<'_>, class: Term) -> Vec<Wrapper> {
    let mut found = Vec::new();
    let classes = match program.terms().kind(class) {
        TermKind::Tuple(items) => items.to_vec(),
        _ => vec![class],
    };
    for class in classes {
        let TermKind::Outside(name) = program.terms().kind(class) else { continue };
        match program.table().get(*name).map(|row| row.role) {
            Some(Role::WrapDdp) => found.push(Wrapper::Ddp),
            Some(Role::WrapDp) => found.push(Wrapper::Dp),
            _ => {}
        }
    }
    found
}

/// What is tested is the other wrapper, or unknown where the program knows the other alone.
fn may_be(program: &Program<'_>, call: &Call<'_>, other: Wrapper, known: Wrapper) -> bool {
    let Some(object) = call.value_at(0, "object") else { return false };
    let kinds: Vec<Option<Wrapper>> =
        object.terms().map(|t| program.wrapper_of(t).map(|(_, kind)| kind)).collect();
    let is_unknown =
        object.terms().all(|t| program.object_of(t).is_none() && !program.is_module(t));
    kinds.contains(&Some(other))
        || is_unknown && program.wraps_with(other) && !program.wraps_with(known)
}

/// The test leads to `.module`.
fn unwraps(program: &Program<'_>, event: &Event<'_>) -> bool {
    let editor = Editor::new(program.project().file(event.site.file));
    let statement = editor.statement_at(event.site.span);
    let text = statement.map_or("", |s| program.text(Site { file: event.site.file, span: s.span }));
    let in_function = || {
        function_text(program, event)
            .is_some_and(|text| text.lines().count() <= N_LINES_MAX && text.contains(".module"))
    };
    text.contains(".module") || in_function()
}

fn function_text<'p>(program: &Program<'p>, event: &Event<'p>) -> Option<&'p str> {
    let function = program.frame(event.frame).function?;
    let span = program.function(function).span;
    Some(program.text(Site { file: function.file, span }))
}

/// The function tests for the other wrapper as well, or asks for the attribute.
fn tests_the_other(program: &Program<'_>, event: &Event<'_>, other: Wrapper) -> bool {
    let place = |e: &Event<'_>| (e.site.file, program.frame(e.frame).function);
    let beside = program.calls(Role::TypeTest).any(|(test, call)| {
        let class = call.arguments.get(1).and_then(|a| a.value.single());
        place(test) == place(event)
            && class.is_some_and(|class| wrappers_of(program, class).contains(&other))
    });
    let text = function_text(program, event)
        .unwrap_or_else(|| &program.project().file(event.site.file).text);
    // A test in an arm that does not run is not told.
    let named = match other {
        Wrapper::Ddp => text.contains("isinstance") && text.contains("DistributedDataParallel)"),
        Wrapper::Dp => text.contains(", DataParallel)") || text.contains(".DataParallel)"),
    };
    beside || named || text.contains("hasattr(")
}

fn fix(
    program: &Program<'_>,
    event: &Event<'_>,
    class: &crate::model::Expr,
    other: Wrapper,
) -> Option<Fix> {
    // One class that is written here.
    class.path()?;
    let editor = Editor::new(program.project().file(event.site.file));
    let (dotted, import) = match other {
        Wrapper::Ddp => (
            "torch.nn.parallel.DistributedDataParallel",
            "from torch.nn.parallel import DistributedDataParallel",
        ),
        Wrapper::Dp => ("torch.nn.DataParallel", "from torch.nn import DataParallel"),
    };
    let reached = editor.reach(dotted, import, name_of(other))?;
    let site = Site { file: event.site.file, span: class.span };
    let text = program.text(site);
    let mut edits = vec![Edit { site, replacement: format!("({text}, {})", reached.name) }];
    edits.extend(reached.import);
    Some(Fix {
        applicability: Applicability::Safe,
        title: "test for both wrappers".to_owned(),
        edits,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_helper_of_another_file_counts() {
        check_files(&[
            (
                "utils.py",
                "
import torch
def bare(net):
    if isinstance(net, torch.nn.DataParallel):  # ~ isinstance-misses-ddp: `torch.nn.DataParallel`
        net = net.module
    return net
",
            ),
            (
                "main.py",
                "
import torch, utils
from torch.nn.parallel import DistributedDataParallel as DDP
torch.distributed.init_process_group('gloo')
net = DDP(torch.nn.Linear(2, 2))
for _ in range(3):
    net(torch.ones(2)).sum().backward()
torch.save(utils.bare(net).state_dict(), f'{torch.distributed.get_rank()}.pt')
",
            ),
        ]);
    }

    #[test]
    fn an_early_return_and_the_reverse_count() {
        check_python(
            "
import torch
from torch.nn import DataParallel
from torch.nn.parallel import DistributedDataParallel
def unwrap(net):
    if not isinstance(net, DistributedDataParallel):  # ~ isinstance-misses-ddp: match a `DataParallel`
        return net
    return net.module
class Trainer:
    def __init__(self, net):
        self.net = DataParallel(net)
    def weight(self):
        return unwrap(self.net).weight
print(Trainer(torch.nn.Linear(2, 2)).weight())
",
        );
    }

    #[test]
    fn one_of_two_wrappers_counts() {
        check_python(
            "
import argparse, torch
args = argparse.ArgumentParser().parse_args()
net = torch.nn.Linear(2, 2)
if args.distributed:
    torch.distributed.init_process_group('gloo')
    net = torch.nn.parallel.DistributedDataParallel(net)
else:
    net = torch.nn.DataParallel(net)
bare = net.module if isinstance(net, torch.nn.DataParallel) else net  # ~ isinstance-misses-ddp
",
        );
    }

    #[test]
    fn tests_for_both_are_silent() {
        check_python(
            "
import torch
from torch.nn import DataParallel
from torch.nn.parallel import DistributedDataParallel as DDP
def first(net):
    return net.module if isinstance(net, (DataParallel, DDP)) else net
def second(net):
    if isinstance(net, DataParallel):
        return net.module
    elif isinstance(net, DDP):
        return net.module
    return net
def third(net):
    if isinstance(net, DataParallel) or hasattr(net, 'module'):
        return net.module
    return net
torch.distributed.init_process_group('gloo')
net = DDP(torch.nn.Linear(2, 2))
print(first(net), second(net), third(net))
",
        );
    }

    #[test]
    fn a_test_that_asks_for_the_wrapper_itself_is_silent() {
        check_python(
            "
import contextlib, torch
from torch.nn.parallel import DistributedDataParallel as DDP
torch.distributed.init_process_group('gloo')
net = DDP(torch.nn.Linear(2, 2))
assert not isinstance(net, torch.nn.DataParallel)
for _ in range(3):
    with net.no_sync() if isinstance(net, DDP) else contextlib.nullcontext():
        net(torch.ones(2)).sum().backward()
",
        );
    }

    #[test]
    fn the_wrapper_that_is_used_is_silent() {
        check_files(&[
            (
                "utils.py",
                "
import torch
def bare(net):
    return net.module if isinstance(net, torch.nn.DataParallel) else net
",
            ),
            (
                "main.py",
                "
import torch, utils
net = torch.nn.DataParallel(torch.nn.Linear(2, 2))
print(utils.bare(net).weight)
",
            ),
        ]);
    }
}
