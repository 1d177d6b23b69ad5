use rustc_hash::FxHashSet;

use crate::analysis::facts::Wrapper;
use crate::analysis::models::{Access, Around, Mention, RanIn};
use crate::analysis::{
    ClassRef, Event, EventKind, FunctionRef, ObjectId, Taint, Term, TermKind, Value, Via,
};
use crate::model::{BinaryOp, Expr, ExprKind, Literal, LoopHeader, Part, Stmt, StmtKind};
use crate::prelude::*;
use crate::python::edit::Editor;
use crate::table::Role;

declare_rule! {
    /// A layer of the wrapped model takes no part in its forward.
    ///
    /// `DistributedDataParallel` waits for the gradient of every parameter. One that never comes
    /// stops the next step: `Expected to have finished reduction in the prior iteration before
    /// starting a new one. This error indicates that your module has parameters that were not
    /// used in producing loss`. A layer that runs by chance, on some steps or some ranks only,
    /// does the same now and then.
    ///
    /// ```python bad
    /// import torch.nn as nn
    /// from torch.nn.parallel import DistributedDataParallel as DDP
    ///
    ///
    /// class Net(nn.Module):
    ///     def __init__(self):
    ///         super().__init__()
    ///         self.body = nn.Linear(8, 8)
    ///         self.extra = nn.Linear(8, 8)  # ~ unused-submodule
    ///         self.head = nn.Linear(8, 1)
    ///
    ///     def forward(self, x):
    ///         return self.head(self.body(x))
    ///
    ///
    /// model = DDP(Net())
    /// for x in []:
    ///     model(x).sum().backward()
    /// ```
    /// ```python good
    /// import torch.nn as nn
    /// from torch.nn.parallel import DistributedDataParallel as DDP
    ///
    ///
    /// class Net(nn.Module):
    ///     def __init__(self):
    ///         super().__init__()
    ///         self.body = nn.Linear(8, 8)
    ///         self.head = nn.Linear(8, 1)
    ///
    ///     def forward(self, x):
    ///         return self.head(self.body(x))
    ///
    ///
    /// model = DDP(Net())
    /// for x in []:
    ///     model(x).sum().backward()
    /// ```
    ///
    /// # Known limits
    /// A layer counts as used where its name is read outside of the constructor. A model that
    /// freezes parameters in a way that is not seen stays silent.
    pub static RULE = {
        name: "unused-submodule",
        level: Level::Error,
        harm: Harm::Crash,
        tier: 2,
        languages: PYTHON,
        fix: FixKind::No,
        check,
    };
}

fn check(program: &Program<'_>, report: &mut Report<'_>) {
    if program.language != Language::Python {
        return;
    }
    for (wrapper, parts) in program.wrapped_models(Wrapper::Ddp) {
        if !waits_for_all(program, wrapper) || keeps_all_in_graph(program) {
            continue;
        }
        for &part in &parts {
            check_part(program, report, wrapper, part);
        }
        check_chance(program, report, wrapper);
        check_rounds(program, report, wrapper);
        check_outputs(program, report, wrapper);
    }
}

/// The wrapper is trained and was not told that parameters may go unused.
fn waits_for_all(program: &Program<'_>, wrapper: ObjectId) -> bool {
    let off = |name| matches!(program.wrapper_option(wrapper, name), Some(None | Some(false)));
    let told = program.models().mentions().any(|m| {
        matches!(
            &*m.name,
            "_set_static_graph"
                | "_ddp_params_and_buffers_to_ignore"
                | "_set_params_and_buffers_to_ignore_for_model"
        )
    });
    off("find_unused_parameters")
        && off("static_graph")
        && off("skip_all_reduce_unused_params")
        && !told
        && program.trains_through(wrapper)
}

/// A term with weight zero over all parameters keeps each of them in the graph.
fn keeps_all_in_graph(program: &Program<'_>) -> bool {
    let files = program.project().files.iter().filter(|f| program.reaches(f.id));
    let mut found = false;
    for file in files.filter(|f| f.text.contains("parameters(")) {
        for function in &file.module.functions {
            each_expr(&function.body, &mut |expr| {
                found = found || is_zero_times_parameters(expr, &file.text);
            });
        }
        each_expr(&file.module.body, &mut |expr| {
            found = found || is_zero_times_parameters(expr, &file.text);
        });
    }
    found
}

fn is_zero_times_parameters(expr: &Expr, text: &str) -> bool {
    let ExprKind::Binary { op: BinaryOp::Mul, left, right } = &expr.kind else { return false };
    let is_zero = |e: &Expr| match e.literal() {
        Some(Literal::Int(0)) => true,
        Some(Literal::Float(f)) => f.abs() < f64::MIN_POSITIVE,
        _ => false,
    };
    (is_zero(left) || is_zero(right))
        && text.get(expr.span.range()).is_some_and(|t| t.contains("parameters("))
}

/// Every expression of a body, nested functions left out.
fn each_expr<'m>(body: &'m [Stmt], each: &mut dyn FnMut(&'m Expr)) {
    for statement in body {
        statement.each_part(&mut |part| match part {
            Part::Expr(expr) | Part::Target(expr) => expr.each_inside(each),
            Part::Block(body) => each_expr(body, each),
            Part::Function(_) | Part::Class(_) => {}
        });
    }
}

/// The layers of one module that its forward does not reach.
fn check_part(program: &Program<'_>, report: &mut Report<'_>, wrapper: ObjectId, part: Term) {
    let Some(class) = program.object_of(part).and_then(|o| program.class_of(o)) else { return };
    let lineage = program.lineage(class);
    if !has_seen_forward(program, class) || uses_children(program, &lineage) {
        return;
    }
    for &event in program.stored_on(part) {
        let event = program.event(event);
        let EventKind::AttributeStore { name, value, .. } = &event.kind else { continue };
        let Some(layer) = value.single() else { continue };
        let is_last = program.attribute_now(part, name) == Some(value);
        if !is_last || !program.has_parameters(layer) || is_used(program, &lineage, *name) {
            continue;
        }
        if is_held_elsewhere(program, part, *name, layer) || program.may_be_frozen(layer) {
            continue;
        }
        let model = program.class(class).name;
        report
            .at(event.site, format!("`{name}` is never used in the forward of `{model}`"))
            .why(
                "`DistributedDataParallel` waits for a gradient of each of its parameters, and \
                 raises at the next step when it did not come",
            )
            .help(format!(
                "use `{name}` in `forward` or remove it; else wrap with \
                 `find_unused_parameters=True`"
            ))
            .related(program.object(wrapper).site, "the model is wrapped here");
    }
}

/// The class has a forward of the project that runs, and no unseen base.
fn has_seen_forward(program: &Program<'_>, class: ClassRef) -> bool {
    let forward = program.class_member(class, "forward");
    let function = forward.and_then(|t| as_function(program, t));
    function.is_some_and(|f| program.ran_in(f) == RanIn::Forward)
        && program.has_known_bases(class)
        && program.class_member(class, "__getattr__").is_none()
}

fn as_function(program: &Program<'_>, term: Term) -> Option<FunctionRef> {
    match program.terms().kind(term) {
        TermKind::Function { function, .. } => Some(*function),
        _ => None,
    }
}

/// The forward walks over what the module holds, whatever the names.
fn uses_children(program: &Program<'_>, lineage: &[ClassRef]) -> bool {
    let models = program.models();
    let in_forward = |m: &Mention| m.function.is_none_or(|f| program.ran_in(f) != RanIn::Elsewhere);
    let walked = models.mentions().any(|m| match &*m.name {
        "modules" | "named_modules" | "get_submodule" => in_forward(m) && m.function.is_some(),
        "children" | "named_children" | "_modules" => true,
        "__dict__" => m.of_self && m.class.is_some_and(|c| lineage.contains(&c)),
        _ => false,
    });
    walked
        || models.dynamic().any(|d| {
            d.prefix.is_empty()
                && (d.of_self && d.class.is_some_and(|c| lineage.contains(&c))
                    || d.method.is_some_and(|m| program.ran_in(m) == RanIn::Forward))
        })
}

/// Some code reads the attribute, other than to set up its weights.
fn is_used(program: &Program<'_>, lineage: &[ClassRef], name: Name) -> bool {
    let models = program.models();
    let read = models.mentions().any(|m| {
        m.name == name
            && m.access != Access::Written
            && is_about(m, lineage)
            && (m.function.is_some_and(|f| program.ran_in(f) != RanIn::Elsewhere)
                || !only_sets_up(m))
            && !is_for_evaluation(program, m)
    });
    read || models.dynamic().any(|d| !d.prefix.is_empty() && name.starts_with(&*d.prefix))
}

/// Under `if not self.training`: no gradient comes from there.
fn is_for_evaluation(program: &Program<'_>, mention: &Mention) -> bool {
    mention.tests.iter().any(|&(test, holds)| match program.text(test) {
        "not self.training" => holds,
        "self.training" => !holds,
        _ => false,
    })
}

/// The mention may be about an instance of the class.
fn is_about(mention: &Mention, lineage: &[ClassRef]) -> bool {
    if mention.of_self {
        return mention.class.is_some_and(|class| lineage.contains(&class));
    }
    // Settings have names of their own.
    mention.of.is_none_or(|of| {
        !matches!(
            &*of,
            "args" | "opt" | "opts" | "cfg" | "conf" | "config" | "hparams" | "hp" | "params"
        )
    })
}

/// Initialises, moves, counts or freezes: `self.fc.weight.data.normal_()`, `self.fc.to(device)`.
fn only_sets_up(mention: &Mention) -> bool {
    let [Some(around), outer] = &mention.around else { return false };
    let into_init = |around: &Around| match around {
        Around::Argument(path) => path.iter().any(|n| n.contains("init")),
        Around::Attribute(_) => true,
        _ => false,
    };
    match around {
        Around::Attribute(name) => match &**name {
            "weight" | "bias" => outer.as_ref().is_some_and(into_init),
            "parameters" | "named_parameters" | "requires_grad_" | "apply" | "state_dict"
            | "load_state_dict" | "to" | "cuda" | "cpu" | "half" | "float" | "train" | "eval"
            | "modules" | "named_modules" | "reset_parameters" | "zero_grad" => {
                *outer == Some(Around::Callee)
            }
            "data" | "in_features" | "out_features" | "in_channels" | "out_channels"
            | "num_features" => true,
            _ => false,
        },
        // A bare parameter: `nn.init.normal_(self.scale)`.
        Around::Argument(_) => into_init(around),
        _ => false,
    }
}

/// Another name, list or module holds the same layer.
fn is_held_elsewhere(program: &Program<'_>, part: Term, name: Name, layer: Term) -> bool {
    program.events().iter().any(|event| match &event.kind {
        EventKind::AttributeStore { of, name: other, value, .. } => {
            (*of != part || *other != name) && value.terms().any(|t| t == layer)
        }
        EventKind::Call(call) if matches!(call.role, Role::Sequential | Role::ModuleList) => {
            call.arguments.iter().flat_map(|a| a.value.terms()).any(|t| {
                t == layer
                    || program.contents(t).iter().any(|held| held.terms().any(|t| t == layer))
            })
        }
        _ => false,
    })
}

/// Layers whose output is returned, but goes into no loss.
fn check_outputs(program: &Program<'_>, report: &mut Report<'_>, wrapper: ObjectId) {
    let trained: Vec<&Event<'_>> = program
        .forwards()
        .filter(|(event, forward)| {
            forward.via == Via::Wrapper(wrapper) && program.trained().contains(&event.id)
        })
        .map(|(event, _)| event)
        .collect();
    // Another call may well use what this one drops.
    let [event] = trained.as_slice() else { return };
    let Some(module) = program.wrapped_module(wrapper).and_then(Value::single) else { return };
    for (position, name) in dropped_items(program, event) {
        let Some(layer) = layer_of_output(program, module, position) else { continue };
        report
            .at(event.site, format!("`{layer}` gets no gradient: `{name}` goes into no loss"))
            .why(
                "`DistributedDataParallel` waits for a gradient of each of its parameters, and \
                 raises at the next step when it did not come",
            )
            .help(format!(
                "use `{name}` in the loss, leave `{layer}` out of the forward in training, or \
                 wrap with `find_unused_parameters=True`"
            ))
            .related(program.object(wrapper).site, "the model is wrapped here");
    }
}

/// The items of a forward's result that its caller never reads: `y, _ = model(x)`.
fn dropped_items(program: &Program<'_>, event: &Event<'_>) -> Vec<(usize, Name)> {
    let file = program.project().file(event.site.file);
    let statement = Editor::new(file).statement_at(event.site.span);
    let Some(StmtKind::Assign { targets, value: Some(value), .. }) = statement.map(|s| &s.kind)
    else {
        return Vec::new();
    };
    let [Expr { kind: ExprKind::Collection { items, .. }, .. }] = targets.as_slice() else {
        return Vec::new();
    };
    if value.span != event.site.span {
        return Vec::new();
    }
    let bodies = file.module.functions.iter().map(|f| f.body.as_slice());
    let bodies: Vec<&[Stmt]> = bodies.chain([file.module.body.as_slice()]).collect();
    let is_read = |name: Name| bodies.iter().any(|body| n_reads(body, name) > 0);
    let names = items.iter().enumerate().filter_map(|(position, item)| match &item.kind {
        ExprKind::Name(name) => Some((position, *name)),
        _ => None,
    });
    names.filter(|(_, name)| !is_read(*name)).collect()
}

/// How often a body reads a name, nested functions left out.
fn n_reads(body: &[Stmt], name: Name) -> usize {
    let mut count = 0;
    for statement in body {
        statement.each_part(&mut |part| match part {
            Part::Expr(expr) => expr.each_inside(&mut |e| {
                count += usize::from(matches!(&e.kind, ExprKind::Name(n) if *n == name));
            }),
            Part::Block(body) => count += n_reads(body, name),
            Part::Target(_) | Part::Function(_) | Part::Class(_) => {}
        });
    }
    count
}

/// The layer that makes one item of what a module returns, and nothing else.
fn layer_of_output(program: &Program<'_>, module: Term, position: usize) -> Option<Name> {
    let class = program.class_of(program.object_of(module)?)?;
    let forward = as_function(program, program.class_member(class, "forward")?)?;
    let body = &program.function(forward).body;
    let mut returned = Vec::new();
    let mut values: Vec<(&Expr, &Expr)> = Vec::new();
    each_statement(body, &mut |statement| match &statement.kind {
        StmtKind::Return(Some(value)) => returned.push(value),
        StmtKind::Assign { targets, value: Some(value), .. } => {
            values.extend(targets.iter().map(|target| (target, value)));
        }
        _ => {}
    });
    let [Expr { kind: ExprKind::Collection { items, .. }, .. }] = returned.as_slice() else {
        return None;
    };
    let mut item = items.get(position)?;
    if let ExprKind::Name(name) = &item.kind {
        let mut set = values.iter().filter(|(target, _)| {
            target.holds(&mut |e| matches!(&e.kind, ExprKind::Name(n) if n == name))
        });
        let (_, value) = set.next().filter(|_| n_reads(body, *name) == 1)?;
        if set.next().is_some() {
            return None;
        }
        item = value;
    }
    let ExprKind::Call { callee, .. } = &item.kind else { return None };
    let ExprKind::Attribute { value, name, .. } = &callee.kind else { return None };
    let is_own = matches!(&value.kind, ExprKind::Name(n) if &**n == "self");
    let layer = program.attribute_now(module, name).filter(|_| is_own)?.single()?;
    let lineage = program.lineage(class);
    let mentioned = program.models().mentions().filter(|m| {
        m.name == *name
            && is_about(m, &lineage)
            && m.function.is_some_and(|f| program.ran_in(f) != RanIn::Elsewhere)
    });
    (mentioned.count() == 1 && program.has_parameters(layer) && !program.may_be_frozen(layer))
        .then_some(*name)
}

fn each_statement<'m>(body: &'m [Stmt], each: &mut dyn FnMut(&'m Stmt)) {
    for statement in body {
        each(statement);
        statement.each_part(&mut |part| {
            if let Part::Block(body) = part {
                each_statement(body, each);
            }
        });
    }
}

/// Layers that run only where a random draw says so.
fn check_chance(program: &Program<'_>, report: &mut Report<'_>, wrapper: ObjectId) {
    for event in program.events() {
        let EventKind::Test { value, .. } = &event.kind else { continue };
        let is_inside = event.modes.wrapper == Some(wrapper) && event.modes.forward.is_some();
        if !is_inside || !event.modes.grad || !value.taint(program.terms()).has(Taint::RANDOM) {
            continue;
        }
        if !is_drawn(program, event, value) {
            continue;
        }
        let Some(name) = layer_behind(program, event) else { continue };
        report
            .at(event.site, format!("`{name}` runs on some steps only, by chance"))
            .why(
                "on a step without it its parameters get no gradient, and \
                 `DistributedDataParallel` raises at the next step",
            )
            .help(
                "run the layer always and scale its output by the draw, or wrap with \
                 `find_unused_parameters=True`",
            )
            .related(program.object(wrapper).site, "the model is wrapped here");
    }
}

/// Layers that run in some rounds only, by what the training loop passes: `"a" if i % 2 else "b"`.
fn check_rounds(program: &Program<'_>, report: &mut Report<'_>, wrapper: ObjectId) {
    let terms = program.terms();
    let alternates = |kind: &TermKind| matches!(kind, TermKind::Binary(BinaryOp::Mod, ..));
    for event in program.events() {
        let EventKind::Test { condition, value } = &event.kind else { continue };
        let is_inside = event.modes.wrapper == Some(wrapper) && event.modes.forward.is_some();
        let whens = value.alternatives.iter().map(|a| a.when).chain([*condition]);
        let by_round = || {
            whens
                .into_iter()
                .any(|when| terms.taint(when) == Taint::NONE && program.mentions(when, &alternates))
        };
        if !is_inside || !event.modes.grad || !by_round() {
            continue;
        }
        let Some(name) = layer_behind(program, event) else { continue };
        report
            .at(event.site, format!("`{name}` runs in some rounds of the training only"))
            .why(
                "in a round without it its parameters get no gradient, and \
                 `DistributedDataParallel` raises at the next step",
            )
            .help("run all layers in each round, or wrap with `find_unused_parameters=True`")
            .related(program.object(wrapper).site, "the model is wrapped here");
    }
}

/// The test compares a random number itself, not something computed from data.
fn is_drawn(program: &Program<'_>, event: &Event<'_>, value: &Value) -> bool {
    let by_choice = value.origins(program.terms()).iter().any(|&origin| {
        matches!(&program.event(origin).kind, EventKind::Call(call)
            if call.role == Role::Random && call.name.is_some_and(|n| n.starts_with("random.")))
    });
    by_choice
        || event.expr.is_some_and(|test| {
            let text = program.text(Site { file: event.site.file, span: test.span });
            ["rand", "uniform", "bernoulli"].iter().any(|word| text.contains(word))
        })
}

/// The layer that a test in a forward decides about.
fn layer_behind(program: &Program<'_>, event: &Event<'_>) -> Option<Name> {
    let frame = program.frame(event.frame);
    let (receiver, function) = (frame.receiver?, frame.function?);
    let is_layer = |name: Name| {
        program.attribute_now(receiver, &name).is_some_and(|held| {
            held.terms().any(|layer| program.has_parameters(layer) && !program.may_be_frozen(layer))
        })
    };
    let mut inside = FxHashSet::default();
    let mut outside = FxHashSet::default();
    for mention in program.models().mentions() {
        let here = mention.of_self && mention.function == Some(function);
        if !here || mention.access == Access::Written || !is_layer(mention.name) {
            continue;
        }
        let under = mention.tests.iter().any(|(test, _)| *test == event.site);
        let set = if under { &mut inside } else { &mut outside };
        // Named twice under the test: perhaps once in each arm.
        if !set.insert(mention.name) && under {
            outside.insert(mention.name);
        }
    }
    let mut decided: Vec<Name> = inside.difference(&outside).copied().collect();
    decided.sort_unstable();
    decided.first().copied().or_else(|| {
        skipped_layer(&program.function(function).body, event.site.span, None, &is_layer)
    })
}

/// A layer that runs behind `if <test>: return x`, or an item of `for layer in self.layers` that
/// runs under the test or behind `if <test>: continue`.
fn skipped_layer(
    body: &[Stmt],
    test: Span,
    item: Option<(Name, Name)>,
    is_layer: &dyn Fn(Name) -> bool,
) -> Option<Name> {
    for (position, statement) in body.iter().enumerate() {
        let mut inner = item;
        match &statement.kind {
            StmtKind::If { test: of, body: arm, .. } if of.span == test => {
                let last = arm.last().map(|s| &s.kind);
                let leaves = matches!(last, Some(StmtKind::Continue | StmtKind::Return(_)));
                let decided = if leaves { &body[position + 1..] } else { arm };
                return run_in(decided, item, leaves, is_layer);
            }
            StmtKind::Loop { header: LoopHeader::For { target, iter }, .. } => {
                let mut list = None;
                iter.each_inside(&mut |e| list = own_name(e).or(list));
                let name = match &target.kind {
                    ExprKind::Name(name) => Some(*name),
                    // `for i, layer in enumerate(self.layers)`
                    ExprKind::Collection { items, .. } => items.last().and_then(Expr::last_name),
                    _ => None,
                };
                inner = name.zip(list).filter(|(_, list)| is_layer(*list));
            }
            _ => {}
        }
        let mut found = None;
        statement.each_part(&mut |part| {
            if let Part::Block(body) = part {
                found = found.or_else(|| skipped_layer(body, test, inner, is_layer));
            }
        });
        if found.is_some() {
            return found;
        }
    }
    None
}

/// `x` of `self.x`.
fn own_name(expr: &Expr) -> Option<Name> {
    match &expr.kind {
        ExprKind::Attribute { value, name, .. } => {
            matches!(&value.kind, ExprKind::Name(n) if &**n == "self").then_some(*name)
        }
        _ => None,
    }
}

/// A layer that statements run: an item of a list of layers or, if `own`, one by its name.
fn run_in(
    body: &[Stmt],
    item: Option<(Name, Name)>,
    own: bool,
    is_layer: &dyn Fn(Name) -> bool,
) -> Option<Name> {
    let mut found = None;
    each_expr(body, &mut |expr| {
        let ExprKind::Call { callee, .. } = &expr.kind else { return };
        let by_item = match (&callee.kind, item) {
            (ExprKind::Name(name), Some((target, list))) => (*name == target).then_some(list),
            _ => None,
        };
        let by_name = own_name(callee).filter(|&name| own && is_layer(name));
        found = found.or(by_item).or(by_name);
    });
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_layer_of_an_inner_module_in_another_file_counts() {
        check_files(&[
            (
                "parts/neck.py",
                "
import torch.nn as nn
class Neck(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.reduce = nn.Conv2d(width, width, 1)
        self.refine = nn.Sequential(nn.Conv2d(width, width, 3), nn.ReLU())  # ~ unused-submodule: `refine`
        self.act = nn.ReLU()
        nn.init.zeros_(self.reduce.bias)
    def forward(self, x):
        return self.reduce(x)
",
            ),
            (
                "train.py",
                "
import torch, torch.nn as nn, torch.distributed as dist
from parts.neck import Neck
class Detector(nn.Module):
    def __init__(self):
        super().__init__()
        self.neck = Neck(8)
        self.head = nn.Linear(8, 2)
    def forward(self, x):
        return self.head(self.neck(x).mean((2, 3)))
def main():
    dist.init_process_group('gloo')
    net = nn.parallel.DistributedDataParallel(Detector())
    opt = torch.optim.SGD(net.parameters(), 0.1)
    for _ in range(3):
        net(torch.ones(1, 8, 4, 4)).sum().backward()
        opt.step()
if __name__ == '__main__':
    main()
",
            ),
        ]);
    }

    #[test]
    fn a_layer_that_only_the_initialisation_touches_counts() {
        check_python(
            "
import torch
class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.a = torch.nn.Linear(2, 2)
        self.old = torch.nn.Linear(2, 2)  # ~ unused-submodule
        self.gain = torch.nn.Parameter(torch.ones(2))  # ~ unused-submodule
        self.reset()
    def reset(self):
        torch.nn.init.normal_(self.old.weight)
        self.old.bias.data.zero_()
        torch.nn.init.ones_(self.gain)
    def forward(self, x):
        return self.a(x)
class Trainer:
    def __init__(self, rank):
        torch.distributed.init_process_group('nccl', rank=rank)
        self.net = torch.nn.parallel.DistributedDataParallel(Net().to(rank), device_ids=[rank])
    def fit(self, loader):
        for x in loader:
            loss = self.net(x).sum()
            loss.backward()
def worker(rank, world):
    Trainer(rank).fit([])
if __name__ == '__main__':
    torch.multiprocessing.spawn(worker, args=(2,), nprocs=2)
",
        );
    }

    #[test]
    fn a_layer_skipped_by_chance_counts() {
        check_python(
            "
import random, torch
class Block(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = torch.nn.Linear(2, 2)
        self.side = torch.nn.Linear(2, 2)
    def forward(self, x):
        y = self.fc(x)
        if self.training and random.random() < 0.5:  # ~ unused-submodule: `side`
            y = y + self.side(x)
        return y
class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.blocks = torch.nn.ModuleList([Block() for _ in range(4)])
    def forward(self, x):
        for block in self.blocks:
            if torch.rand(1).item() < 0.1:  # ~ unused-submodule: `blocks`
                continue
            x = block(x)
        return x
torch.distributed.init_process_group('gloo')
net = torch.nn.parallel.DistributedDataParallel(Net())
for _ in range(3):
    net(torch.ones(1, 2)).sum().backward()
",
        );
    }

    #[test]
    fn layers_left_out_by_chance_in_other_ways_count() {
        check_python(
            "
import random
import numpy as np, torch
from torch import nn
class Skip(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Linear(2, 2)
    def forward(self, x):
        if self.training and np.random.rand() < 0.2:  # ~ unused-submodule: `conv`
            return x
        return x + self.conv(x)
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.stem = nn.Linear(2, 2)
        self.skips = nn.ModuleList([Skip() for _ in range(4)])
        self.left, self.right = nn.Linear(2, 2), nn.Linear(2, 2)
    def forward(self, x, side):
        x = self.stem(x)
        for skip in self.skips:
            if not self.training or torch.rand(1) < 0.8:  # ~ unused-submodule: `skips`
                x = skip(x)
        if side == 'left':  # ~ unused-submodule
            return self.left(x)
        return self.right(x)
torch.distributed.init_process_group('gloo')
net = nn.parallel.DistributedDataParallel(Net())
for x in []:
    net(x, random.choice(['left', 'right'])).sum().backward()
",
        );
    }

    #[test]
    fn noise_by_chance_is_silent() {
        check_python(
            "
import random, torch
from torch import nn
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc, self.drop = nn.Linear(2, 2), nn.Dropout(0.1)
    def forward(self, x):
        if self.training and random.random() < 0.5:
            x = self.drop(x) + torch.randn_like(x)
        y = self.fc(x)
        if torch.rand(1) < 0.5:
            y = y.flip(0)
        return y
torch.distributed.init_process_group('gloo')
net = nn.parallel.DistributedDataParallel(Net())
for x in []:
    net(x).sum().backward()
",
        );
    }

    #[test]
    fn a_layer_for_evaluation_alone_counts() {
        check_python(
            "
import torch
class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.a = torch.nn.Linear(2, 2)
        self.aux = torch.nn.Linear(2, 2)
        self.late = torch.nn.Linear(2, 2)  # ~ unused-submodule: `late`
    def forward(self, x):
        x = self.a(x)
        if self.training:
            return x + self.aux(x)
        else:
            return self.late(x)
torch.distributed.init_process_group('gloo')
net = torch.nn.parallel.DistributedDataParallel(Net())
for _ in range(3):
    net(torch.ones(1, 2)).sum().backward()
",
        );
    }

    #[test]
    fn an_output_that_goes_into_no_loss_counts() {
        let program = |unpack: &str, loss: &str, mark: &str| {
            format!(
                "
import torch
from torch import nn
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Linear(2, 2)
        self.head = nn.Linear(2, 2)
        self.aux = nn.Sequential(nn.Linear(2, 2), nn.ReLU())
    def forward(self, x):
        x = torch.relu(self.body(x))
        side = self.aux(x)
        return self.head(x), side
def train(loader):
    torch.distributed.init_process_group('gloo')
    net = nn.parallel.DistributedDataParallel(Net())
    for x, y in loader:
        {unpack} = net(x){mark}
        loss = {loss}
        loss.backward()
train([])
"
            )
        };
        let mark = "  # ~ unused-submodule: `aux` gets no gradient";
        check_python(&program("out, _", "(out - y).sum()", mark));
        check_python(&program("out, side_out", "(out - y).sum()", mark));
        check_python(&program("out, side_out", "(out - y).sum() + side_out.sum()", ""));
        check_python(&program("both", "sum(b.sum() for b in both)", ""));
    }

    #[test]
    fn a_wrapper_that_expects_it_is_silent() {
        check_python(
            "
import argparse, torch
from torch.nn.parallel import DistributedDataParallel as DDP
class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.a = torch.nn.Linear(2, 2)
        self.b = torch.nn.Linear(2, 2)
    def forward(self, x):
        return self.a(x)
args = argparse.ArgumentParser().parse_args()
torch.distributed.init_process_group('gloo')
for net in (DDP(Net(), find_unused_parameters=True), DDP(Net(), static_graph=True),
            DDP(Net(), find_unused_parameters=args.unused)):
    net(torch.ones(1, 2)).sum().backward()
",
        );
    }

    #[test]
    fn layers_reached_by_another_way_are_silent() {
        check_python(
            "
import torch
from torch import nn
class Net(nn.Module):
    def __init__(self, aux, tied):
        super().__init__()
        self.emb = nn.Embedding(4, 4)
        self.inner = nn.Linear(4, 4)
        self.stack = nn.Sequential(self.inner, nn.ReLU())
        self.level0 = nn.Linear(4, 4)
        self.level1 = nn.Linear(4, 4)
        if aux:
            self.aux = nn.Linear(4, 4)
        self.frozen = nn.Linear(4, 4)
        for p in self.frozen.parameters():
            p.requires_grad = False
        self.mode = nn.Linear(4, 4)
        self.act = nn.ReLU()
    def forward(self, x):
        x = self.stack(self.emb(x))
        for i in range(2):
            x = getattr(self, f'level{i}')(x)
        if self.training and hasattr(self, 'aux'):
            x = x + self.aux(x)
        return self.finish(x)
    def finish(self, x):
        return self.mode(x)
torch.distributed.init_process_group('gloo')
net = nn.parallel.DistributedDataParallel(Net(True, False))
for _ in range(3):
    net(torch.ones(1, 2).long()).sum().backward()
",
        );
    }

    #[test]
    fn a_zero_weight_term_over_all_parameters_is_silent() {
        check_python(
            "
import torch
class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.a = torch.nn.Linear(2, 2)
        self.b = torch.nn.Linear(2, 2)
    def forward(self, x):
        return self.a(x)
torch.distributed.init_process_group('gloo')
net = torch.nn.parallel.DistributedDataParallel(Net())
for _ in range(3):
    loss = net(torch.ones(1, 2)).sum()
    loss = loss + 0 * sum(p.sum() for p in net.parameters())
    loss.backward()
",
        );
    }

    #[test]
    fn a_model_that_walks_over_its_children_is_silent() {
        check_python(
            "
import torch
class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.a = torch.nn.Linear(2, 2)
        self.b = torch.nn.Linear(2, 2)
    def forward(self, x):
        for layer in self.children():
            x = layer(x)
        return x
torch.distributed.init_process_group('gloo')
net = torch.nn.parallel.DistributedDataParallel(Net())
for _ in range(3):
    net(torch.ones(1, 2)).sum().backward()
",
        );
    }

    #[test]
    fn layers_of_another_file_count() {
        check_files(&[
            (
                "net.py",
                "
import torch.nn as nn
import torchvision
class Retrieval(nn.Module):
    def __init__(self):
        super().__init__()
        self.backbone = torchvision.models.resnet50()
        self.neck = nn.Sequential(nn.Linear(2048, 256), nn.BatchNorm1d(256))
        self.extra = nn.ModuleList([nn.Linear(256, 256) for _ in range(2)])  # ~ unused-submodule
    def extract(self, x):
        b = self.backbone
        x = b.maxpool(b.relu(b.bn1(b.conv1(x))))
        return b.layer4(b.layer3(b.layer2(b.layer1(x)))).mean((2, 3))
    def forward(self, x):
        return self.neck(self.extract(x))
",
            ),
            (
                "main.py",
                r#"
import os
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP
from net import Retrieval
def main():
    dist.init_process_group("nccl")
    g = int(os.environ["LOCAL_RANK"])
    torch.cuda.set_device(g)
    torch.manual_seed(dist.get_rank())
    m = DDP(Retrieval().cuda(), device_ids=[g])
    opt = torch.optim.SGD(m.parameters(), 0.1)
    for i in range(10):
        loss = m(torch.randn(4, 3, 64, 64).cuda()).mean()
        opt.zero_grad(); loss.backward(); opt.step()
if __name__ == "__main__":
    main()
"#,
            ),
        ]);
    }

    #[test]
    fn heads_that_take_turns_count() {
        check_python(
            r#"
import os
import torch
import torch.nn as nn
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP
class TwoHeads(nn.Module):
    def __init__(self):
        super().__init__()
        self.trunk = nn.Linear(8, 8)
        self.seg = nn.Linear(8, 2)
        self.depth = nn.Linear(8, 1)
    def forward(self, x, task):
        h = self.trunk(x)
        if task == "seg":  # ~ unused-submodule
            return self.seg(h)
        return self.depth(h)
def main():
    dist.init_process_group("nccl")
    g = int(os.environ["LOCAL_RANK"])
    torch.cuda.set_device(g)
    torch.manual_seed(dist.get_rank())
    m = DDP(TwoHeads().cuda(), device_ids=[g])
    opt = torch.optim.SGD(m.parameters(), 0.1)
    for i in range(10):
        loss = m(torch.randn(4, 8).cuda(), "seg" if i % 2 else "depth").mean()
        opt.zero_grad(); loss.backward(); opt.step()
if __name__ == "__main__":
    main()
"#,
        );
    }
}
