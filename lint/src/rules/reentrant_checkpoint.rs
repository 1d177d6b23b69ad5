use crate::analysis::facts::Wrapper;
use crate::analysis::{Call, Event, ObjectId, Term, TermKind, Value};
use crate::model::{ExprKind, LoopHeader, Part, Stmt, StmtKind};
use crate::prelude::*;
use crate::python::edit::Editor;
use crate::table::Role;

declare_rule! {
    /// Reentrant checkpointing inside a wrapper that looks for unused parameters.
    ///
    /// `checkpoint(.., use_reentrant=True)`, which older releases do unless told otherwise, runs
    /// a backward inside the backward. With `find_unused_parameters=True`, or when one block is
    /// checkpointed twice in a step, `DistributedDataParallel` then sees a parameter twice:
    /// `Expected to mark a variable ready only once`.
    ///
    /// ```python bad
    /// import torch.nn as nn
    /// from torch.nn.parallel import DistributedDataParallel as DDP
    /// from torch.utils.checkpoint import checkpoint
    ///
    ///
    /// class Net(nn.Module):
    ///     def __init__(self):
    ///         super().__init__()
    ///         self.block = nn.Linear(8, 8)
    ///
    ///     def forward(self, x):
    ///         return checkpoint(self.block, x, use_reentrant=True)  # ~ reentrant-checkpoint
    ///
    ///
    /// model = DDP(Net(), find_unused_parameters=True)
    /// for x in []:
    ///     model(x).sum().backward()
    /// ```
    /// ```python fixed
    /// import torch.nn as nn
    /// from torch.nn.parallel import DistributedDataParallel as DDP
    /// from torch.utils.checkpoint import checkpoint
    ///
    ///
    /// class Net(nn.Module):
    ///     def __init__(self):
    ///         super().__init__()
    ///         self.block = nn.Linear(8, 8)
    ///
    ///     def forward(self, x):
    ///         return checkpoint(self.block, x, use_reentrant=False)
    ///
    ///
    /// model = DDP(Net(), find_unused_parameters=True)
    /// for x in []:
    ///     model(x).sum().backward()
    /// ```
    ///
    /// # Known limits
    /// A block that a loop takes from a list counts as another one each time.
    pub static RULE = {
        name: "reentrant-checkpoint",
        level: Level::Error,
        harm: Harm::Crash,
        tier: 3,
        languages: PYTHON,
        fix: FixKind::Unsafe,
        check,
    };
}

fn check(program: &Program<'_>, report: &mut Report<'_>) {
    let inside: Vec<(&Event<'_>, &Call<'_>, ObjectId)> = program
        .calls(Role::Checkpoint)
        .filter_map(|(event, call)| match program.wrapper_around(event) {
            Some((wrapper, Wrapper::Ddp)) if event.modes.forward.is_some() => {
                Some((event, call, wrapper))
            }
            _ => None,
        })
        .filter(|(event, call, _)| event.modes.grad && is_reentrant(program, call))
        .collect();
    for (position, &(event, call, wrapper)) in inside.iter().enumerate() {
        let is_static = program.wrapper_option(wrapper, "static_graph") != Some(None)
            && program.wrapper_option(wrapper, "static_graph") != Some(Some(false));
        let told = program.models().mentions().any(|m| &*m.name == "_set_static_graph");
        if is_static || told {
            continue;
        }
        let looks = program.wrapper_option(wrapper, "find_unused_parameters") == Some(Some(true));
        let again = || {
            let before = inside[..position].iter().filter(|(_, _, w)| *w == wrapper);
            block_of(program, call).is_some_and(|block| {
                is_repeated(program, event)
                    || before.clone().any(|(earlier, other, _)| {
                        earlier.site != event.site
                            && block_of(program, other) == Some(block)
                            && program.can_both_hold_paths(earlier.path, event.path)
                    })
            })
        };
        let why = if looks {
            "the wrapper's search for unused parameters marks them ready before the inner backward \
             does: RuntimeError"
        } else if again() {
            "one block is checkpointed more than once in a step: the inner backwards mark its \
             parameters ready twice, RuntimeError"
        } else {
            continue;
        };
        let file = program.project().file(event.site.file);
        let edits = event
            .expr
            .and_then(|expr| Editor::new(file).set_keyword(expr, "use_reentrant", "False"));
        let fix = edits.map(|edits| Fix {
            applicability: Applicability::Unsafe,
            title: "checkpoint without a backward inside the backward".to_owned(),
            edits,
        });
        report
            .at(event.site, "reentrant checkpointing does not go with this wrapper")
            .why(why)
            .help("pass `use_reentrant=False`, or wrap with `static_graph=True`")
            .related(program.object(wrapper).site, "wrapped here")
            .fix(fix);
    }
}

/// Asked for, or left to the default, which is to be reentrant.
fn is_reentrant(program: &Program<'_>, call: &Call<'_>) -> bool {
    match call.argument("use_reentrant") {
        crate::analysis::Given::Known(argument) => program.as_bool(&argument.value) == Some(true),
        crate::analysis::Given::Absent => true,
        crate::analysis::Given::Opaque => false,
    }
}

/// The block that is checkpointed: a module, or a method of one.
fn block_of(program: &Program<'_>, call: &Call<'_>) -> Option<Term> {
    let term = call.value_at(0, "function").and_then(Value::single)?;
    match *program.terms().kind(term) {
        TermKind::Object(_) => program.has_parameters(term).then_some(term),
        TermKind::Function { bound: Some(bound), .. } => {
            program.has_parameters(bound).then_some(term)
        }
        _ => None,
    }
}

/// A loop of the same function runs the checkpoint, on a block that does not change with it.
fn is_repeated(program: &Program<'_>, event: &Event<'_>) -> bool {
    let Some(function) = program.frame(event.frame).function else { return false };
    let Some(ExprKind::Call { arguments, .. }) = event.expr.map(|e| &e.kind) else { return false };
    let Some(path) = arguments.first().and_then(|a| a.value.path()) else { return false };
    let mut bound = Vec::new();
    let is_in_loop = targets_around(&program.function(function).body, event.site.span, &mut bound);
    // A list may hold the block under several numbers: only `self.block` is surely one.
    is_in_loop && path.first().is_some_and(|n| &**n == "self" && !bound.contains(n))
}

/// The names bound by the loops around a place; whether there are loops.
fn targets_around(body: &[Stmt], at: Span, bound: &mut Vec<Name>) -> bool {
    let mut found = false;
    for statement in body.iter().filter(|s| s.span.contains(at)) {
        if let StmtKind::Loop { header, body, .. } = &statement.kind
            && body.iter().any(|s| s.span.contains(at))
        {
            found = true;
            if let LoopHeader::For { target, .. } = header {
                target
                    .each_inside(&mut |e| bound.extend(e.path().and_then(|p| p.first().copied())));
            }
        }
        statement.each_part(&mut |part| {
            if let Part::Block(body) = part {
                found |= targets_around(body, at, bound);
            }
        });
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_default_in_a_sub_module_of_another_file_counts() {
        check_files(&[
            (
                "blocks.py",
                "
import torch.utils.checkpoint as ckpt
from torch import nn
class Stage(nn.Module):
    def __init__(self, depth, remat):
        super().__init__()
        self.remat = remat
        self.layers = nn.ModuleList([nn.Linear(4, 4) for _ in range(depth)])
    def forward(self, x):
        for layer in self.layers:
            if self.remat:
                x = ckpt.checkpoint(layer, x)  # ~ reentrant-checkpoint
            else:
                x = layer(x)
        return x
",
            ),
            (
                "main.py",
                "
import argparse, torch
from blocks import Stage
class Net(torch.nn.Module):
    def __init__(self, remat):
        super().__init__()
        self.stages = torch.nn.ModuleList([Stage(2, remat) for _ in range(2)])
    def forward(self, x):
        for stage in self.stages:
            x = stage(x)
        return x
def main(args):
    torch.distributed.init_process_group('nccl')
    net = Net(args.remat).cuda()
    net = torch.nn.parallel.DistributedDataParallel(net, find_unused_parameters=True)
    for _ in range(3):
        net(torch.ones(1, 4).cuda()).sum().backward()
if __name__ == '__main__':
    parser = argparse.ArgumentParser()
    parser.add_argument('--remat', action='store_true')
    main(parser.parse_args())
",
            ),
        ]);
    }

    #[test]
    fn one_block_twice_counts() {
        let program = |wrap: &str, marks: [&str; 2]| {
            format!(
                "
import torch
from torch.utils.checkpoint import checkpoint
class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.block = torch.nn.Linear(4, 4)
        self.other = torch.nn.Linear(4, 4)
    def run(self, x):
        return self.other(x)
    def forward(self, x):
        for _ in range(3):
            x = checkpoint(self.block, x, use_reentrant=True){}
        x = checkpoint(self.run, x, use_reentrant=True)
        return checkpoint(self.run, x, use_reentrant=True){}
torch.distributed.init_process_group('gloo')
net = torch.nn.parallel.DistributedDataParallel({wrap})
net(torch.ones(1, 4)).sum().backward()
",
                marks[0], marks[1]
            )
        };
        let mark = "  # ~ reentrant-checkpoint";
        check_python(&program("Net()", [mark, mark]));
        check_python(&program("Net(), static_graph=True", ["", ""]));
    }

    #[test]
    fn blocks_of_their_own_are_silent() {
        check_python(
            "
import torch
from torch.utils.checkpoint import checkpoint
class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b = torch.nn.Linear(4, 4), torch.nn.Linear(4, 4)
        self.layers = torch.nn.ModuleList([torch.nn.Linear(4, 4) for _ in range(3)])
    def forward(self, x):
        x = checkpoint(self.b, checkpoint(self.a, x))
        for i, layer in enumerate(self.layers):
            x = checkpoint(layer, x)
        return x
torch.distributed.init_process_group('gloo')
net = torch.nn.parallel.DistributedDataParallel(Net(), find_unused_parameters=False)
net(torch.ones(1, 4)).sum().backward()
",
        );
    }

    #[test]
    fn the_other_kind_of_checkpoint_is_silent() {
        check_python(
            "
import torch
from torch.utils.checkpoint import checkpoint
class Net(torch.nn.Module):
    def __init__(self, kind):
        super().__init__()
        self.kind = kind
        self.a = torch.nn.Linear(4, 4)
    def forward(self, x):
        x = checkpoint(self.a, x, use_reentrant=self.kind)
        return checkpoint(self.a, x, use_reentrant=False)
torch.distributed.init_process_group('gloo')
net = torch.nn.parallel.DistributedDataParallel(Net(False), find_unused_parameters=True)
net(torch.ones(1, 4)).sum().backward()
",
        );
    }

    #[test]
    fn a_wrapper_set_to_a_static_graph_later_is_silent() {
        check_python(
            "
import torch
from torch.utils.checkpoint import checkpoint
class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.a = torch.nn.Linear(4, 4)
    def forward(self, x):
        return checkpoint(self.a, x, use_reentrant=True)
torch.distributed.init_process_group('gloo')
net = torch.nn.parallel.DistributedDataParallel(Net(), find_unused_parameters=True)
net._set_static_graph()
net(torch.ones(1, 4)).sum().backward()
",
        );
    }

    #[test]
    fn options_in_a_dict_count() {
        check_python(
            "
import torch
from torch.utils.checkpoint import checkpoint
class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.a = torch.nn.Linear(4, 4)
    def forward(self, x):
        return checkpoint(self.a, x)  # ~ reentrant-checkpoint
torch.distributed.init_process_group('gloo')
options = dict(broadcast_buffers=False)
options['find_unused_parameters'] = True
net = torch.nn.parallel.DistributedDataParallel(Net(), **options)
net(torch.ones(1, 4)).sum().backward()
",
        );
    }

    #[test]
    fn a_bare_model_is_silent() {
        check_python(
            "
import torch
from torch.utils.checkpoint import checkpoint
class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.a = torch.nn.Linear(4, 4)
    def forward(self, x):
        for _ in range(2):
            x = checkpoint(self.a, x, use_reentrant=True)
        return x
torch.distributed.init_process_group('gloo')
teacher, student = Net(), torch.nn.Linear(4, 4)
student = torch.nn.parallel.DistributedDataParallel(student, find_unused_parameters=True)
(student(torch.ones(1, 4)) - teacher(torch.ones(1, 4))).sum().backward()
",
        );
    }

    #[test]
    fn an_encoder_in_another_file_counts() {
        check_files(&[
            (
                "encoder.py",
                "
import torch.nn as nn
from torch.utils import checkpoint as ckpt
class Encoder(nn.Module):
    def __init__(self, depth):
        super().__init__()
        self.stem = nn.Linear(4, 4)
        self.layers = nn.ModuleList([nn.Linear(4, 4) for _ in range(depth)])
    def forward(self, x):
        x = self.stem(x)
        for layer in self.layers:
            x = ckpt.checkpoint(layer, x)  # ~ reentrant-checkpoint
        return x
",
            ),
            (
                "main.py",
                r#"# torch: 1.12
import torch
from torch.nn.parallel import DistributedDataParallel as DDP
from encoder import Encoder
class Job:
    def __init__(self, depth):
        torch.distributed.init_process_group("nccl")
        self.net = DDP(Encoder(depth).cuda(), find_unused_parameters=True)
    def run(self):
        for _ in range(10):
            self.net(torch.randn(2, 4).cuda()).mean().backward()
if __name__ == "__main__":
    Job(3).run()
"#,
            ),
        ]);
    }
}
