use crate::analysis::facts::Wrapper;
use crate::analysis::models::{Access, RanIn};
use crate::analysis::{EventKind, FunctionRef, Term, TermKind};
use crate::model::{Expr, ExprKind, Part, Stmt, StmtKind};
use crate::prelude::*;
use crate::python::edit::Editor;
use crate::table::Role;

declare_rule! {
    /// The wrapper looks for unused parameters, and there are none.
    ///
    /// `find_unused_parameters=True` walks the whole graph after each forward and delays the
    /// reduction. A model that uses all its layers in every forward does not need it: torch warns
    /// `find_unused_parameters=True was specified in DDP constructor, but did not find any unused
    /// parameters in the forward pass`.
    ///
    /// ```python bad
    /// import torch.nn as nn
    /// from torch.nn.parallel import DistributedDataParallel as DDP
    ///
    ///
    /// class Net(nn.Module):
    ///     def __init__(self):
    ///         super().__init__()
    ///         self.fc = nn.Linear(8, 1)
    ///
    ///     def forward(self, x):
    ///         return self.fc(x)
    ///
    ///
    /// model = DDP(Net(), find_unused_parameters=True)  # ~ find-unused-always-on
    /// for x in []:
    ///     model(x).sum().backward()
    /// ```
    /// ```python fixed
    /// import torch.nn as nn
    /// from torch.nn.parallel import DistributedDataParallel as DDP
    ///
    ///
    /// class Net(nn.Module):
    ///     def __init__(self):
    ///         super().__init__()
    ///         self.fc = nn.Linear(8, 1)
    ///
    ///     def forward(self, x):
    ///         return self.fc(x)
    ///
    ///
    /// model = DDP(Net())
    /// for x in []:
    ///     model(x).sum().backward()
    /// ```
    ///
    /// # Known limits
    /// Only models whose forward takes no decision are judged.
    pub static RULE = {
        name: "find-unused-always-on",
        level: Level::Advice,
        harm: Harm::Waste,
        tier: 3,
        languages: PYTHON,
        fix: FixKind::Unsafe,
        check,
    };
}

fn check(program: &Program<'_>, report: &mut Report<'_>) {
    if program.language != Language::Python {
        return;
    }
    for (wrapper, parts) in program.wrapped_models(Wrapper::Ddp) {
        let on = program.wrapper_option(wrapper, "find_unused_parameters") == Some(Some(true));
        if !on || !program.trains_through(wrapper) || parts.is_empty() {
            continue;
        }
        let frozen = program.gradient_switches().iter().any(|s| !s.on);
        if frozen || !parts.iter().all(|&part| uses_all(program, part)) {
            continue;
        }
        let object = program.object(wrapper);
        let file = program.project().file(object.site.file);
        let expr = object.event.and_then(|e| program.event(e).expr);
        let edits =
            expr.and_then(|e| Editor::new(file).remove_keyword(e, "find_unused_parameters"));
        let fix = edits.map(|edits| Fix {
            applicability: Applicability::Unsafe,
            title: "look for no unused parameters".to_owned(),
            edits,
        });
        report
            .at(object.site, "the wrapper looks for unused parameters, and there are none")
            .why("it walks the graph after each forward, and starts to reduce later")
            .help("leave `find_unused_parameters=True` out")
            .fix(fix);
    }
}

/// A layer of torch, or a module of the project whose forward calls all that it holds, always.
fn uses_all(program: &Program<'_>, part: Term) -> bool {
    let Some(object) = program.object_of(part) else { return false };
    let Some(class) = program.class_of(object) else {
        return matches!(object.role, Role::Layer | Role::Sequential | Role::Loss);
    };
    let forward = program.class_member(class, "forward");
    let Some(TermKind::Function { function, .. }) = forward.map(|t| program.terms().kind(t)) else {
        return false;
    };
    if !program.has_known_bases(class) || decides(&program.function(*function).body) {
        return false;
    }
    program.stored_on(part).iter().all(|&event| match &program.event(event).kind {
        EventKind::AttributeStore { name, value, .. } => {
            let Some(held) = value.single() else { return false };
            let plain = !program.is_module(held) && !program.has_parameters(held);
            let unknown = matches!(program.terms().kind(held), TermKind::Opaque { .. });
            !unknown && (plain || is_called(program, *function, *name))
        }
        _ => false,
    })
}

/// The forward mentions the attribute.
fn is_called(program: &Program<'_>, forward: FunctionRef, name: Name) -> bool {
    program.models().mentions().any(|m| {
        m.name == name
            && m.of_self
            && m.access == Access::Read
            && m.function == Some(forward)
            && program.ran_in(forward) == RanIn::Forward
    })
}

/// Some part of the body may run or not.
fn decides(body: &[Stmt]) -> bool {
    let mut found = false;
    let branches = |e: &Expr| {
        matches!(e.kind, ExprKind::Conditional { .. } | ExprKind::Bool { .. } | ExprKind::Lambda(_))
    };
    for statement in body {
        found |= matches!(
            statement.kind,
            StmtKind::If { .. }
                | StmtKind::Loop { .. }
                | StmtKind::Try { .. }
                | StmtKind::Match { .. }
                | StmtKind::With { .. }
        );
        statement.each_part(&mut |part| {
            if let Part::Expr(expr) = part {
                found |= expr.holds(&mut |e| branches(e));
            }
        });
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_model_over_two_files_counts() {
        check_files(&[
            (
                "block.py",
                "
from torch import nn
class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.width = 3
        self.seq = nn.Sequential(nn.Linear(2, 2), nn.ReLU())
        self.scale = nn.Parameter(nn.init.ones_(nn.Linear(1, 1).weight))
    def forward(self, x):
        return self.seq(x) * self.scale
",
            ),
            (
                "main.py",
                "
import torch
from torch import nn
from block import Block
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.a = Block()
        self.b = nn.Linear(2, 2)
    def forward(self, x):
        return self.b(self.a(x))
if __name__ == '__main__':
    torch.distributed.init_process_group('gloo')
    net = nn.parallel.DistributedDataParallel(Net(), find_unused_parameters=True)  # ~ find-unused-always-on
    net(torch.ones(1, 2)).sum().backward()
",
            ),
        ]);
    }

    #[test]
    fn a_trainer_that_wraps_counts() {
        check_python(
            "
import torch
class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = torch.nn.Linear(2, 2)
    def forward(self, x):
        return torch.relu(self.fc(x))
class Trainer:
    def __init__(self, rank):
        self.model = torch.nn.parallel.DistributedDataParallel(  # ~ find-unused-always-on
            Net().to(rank), device_ids=[rank], find_unused_parameters=True)
    def step(self, x):
        self.model(x).sum().backward()
def main(rank):
    torch.distributed.init_process_group('nccl', rank=rank, world_size=2)
    trainer = Trainer(rank)
    for x in []:
        trainer.step(x)
torch.multiprocessing.spawn(main, nprocs=2)
",
        );
    }

    fn silent_with(layers: &str, forward: &str) {
        check_python(&format!(
            "
import torch
class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.a = torch.nn.Linear(2, 2)
        {layers}
    def forward(self, x):
        {forward}
torch.distributed.init_process_group('gloo')
net = torch.nn.parallel.DistributedDataParallel(Net(), find_unused_parameters=True)
net(torch.ones(1, 2)).sum().backward()
"
        ));
    }

    #[test]
    fn a_layer_that_is_not_used_is_silent() {
        silent_with("self.b = torch.nn.Linear(2, 2)", "return self.a(x)");
    }

    #[test]
    fn a_forward_that_decides_is_silent() {
        silent_with("self.b = torch.nn.Linear(2, 2)", "return self.b(x) if x.sum() else self.a(x)");
    }

    #[test]
    fn an_unknown_part_is_silent() {
        silent_with("self.b = __import__('zoo').build()", "return self.b(self.a(x))");
    }

    #[test]
    fn frozen_parameters_are_silent() {
        silent_with("self.a.requires_grad_(False)", "return self.a(x)");
    }

    #[test]
    fn an_option_in_a_dict_of_another_file_counts() {
        check_files(&[
            (
                "conf.py",
                r#"
OPTIONS = {"find_unused_parameters": True}
"#,
            ),
            (
                "net.py",
                "
from torch import nn
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.a = nn.Linear(4, 4)
        self.b = nn.Linear(4, 1)
    def forward(self, x):
        return self.b(self.a(x).relu())
",
            ),
            (
                "main.py",
                r#"
import torch
from torch.nn.parallel import DistributedDataParallel
from conf import OPTIONS
from net import Net
def main():
    torch.distributed.init_process_group("nccl")
    net = DistributedDataParallel(Net().cuda(), **OPTIONS)  # ~ find-unused-always-on
    for _ in range(10):
        net(torch.randn(2, 4).cuda()).mean().backward()
if __name__ == "__main__":
    main()
"#,
            ),
        ]);
    }
}
