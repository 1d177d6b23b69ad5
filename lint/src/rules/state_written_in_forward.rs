use crate::analysis::facts::Wrapper;
use crate::analysis::models::{Access, Around, Mention, RanIn};
use crate::analysis::{ClassRef, Event, EventKind, FunctionRef, Taint, Term, TermKind, Value};
use crate::model::{Expr, ExprKind, Module, Part, Stmt, StmtKind};
use crate::prelude::*;
use crate::table::Role;

declare_rule! {
    /// Forward writes state of the model that something reads later.
    ///
    /// Under `DataParallel` forward runs on replicas that are thrown away: what is written to
    /// `self` there is lost, and a shared dict or list is filled by all replicas at once, each
    /// with its own part of the batch on its own device. Under `DistributedDataParallel` each
    /// rank has its own value.
    ///
    /// ```python bad
    /// import torch.nn as nn
    ///
    ///
    /// class Net(nn.Module):
    ///     def __init__(self):
    ///         super().__init__()
    ///         self.fc = nn.Linear(8, 8)
    ///         self.calls = 0
    ///
    ///     def forward(self, x):
    ///         self.calls += 1  # ~ state-written-in-forward
    ///         return self.fc(x) / self.calls
    ///
    ///
    /// model = nn.DataParallel(Net())
    /// ```
    /// ```python good
    /// import torch.nn as nn
    ///
    ///
    /// class Net(nn.Module):
    ///     def __init__(self):
    ///         super().__init__()
    ///         self.fc = nn.Linear(8, 8)
    ///
    ///     def forward(self, x, calls):
    ///         return self.fc(x) / calls
    ///
    ///
    /// model = nn.DataParallel(Net())
    /// for calls, x in enumerate([], 1):
    ///     model(x, calls)
    /// ```
    ///
    /// # Known limits
    /// What is written and read within one forward is left alone, and so is what is computed
    /// once and kept.
    pub static RULE = {
        name: "state-written-in-forward",
        level: Level::Warning,
        harm: Harm::Wrong,
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
    check_attributes(program, report);
    check_containers(program, report);
    check_hooks(program, report);
}

/// `self.x = ..` in a forward.
fn check_attributes(program: &Program<'_>, report: &mut Report<'_>) {
    let wrapped: Vec<_> = [Wrapper::Dp, Wrapper::Ddp]
        .into_iter()
        .flat_map(|kind| {
            let models = program.wrapped_models(kind).into_iter();
            models.map(move |(wrapper, parts)| (wrapper, kind, parts))
        })
        .collect();
    for event in program.events() {
        let EventKind::AttributeStore { of, name, value, augmented } = &event.kind else {
            continue;
        };
        let by_part = || {
            let (wrapper, kind, _) = wrapped.iter().find(|(_, _, parts)| parts.contains(of))?;
            let one = program.wrapped_module(*wrapper).and_then(Value::single);
            // Else the run through the wrapper would have told.
            (program.is_orphan(event) || one.is_none()).then_some((*wrapper, *kind))
        };
        let Some((wrapper, kind)) = program.wrapper_around(event).or_else(by_part) else {
            continue;
        };
        let is_own = event.modes.forward.is_some() && program.is_module(*of);
        if !is_own || name.starts_with("__") || converts_itself(program, event, *name) {
            continue;
        }
        let Some(class) = program.object_of(*of).and_then(|o| program.class_of(o)) else {
            continue;
        };
        let lineage = program.lineage(class);
        let builds_on_itself = (*augmented || mentions_itself(program, event, *name))
            && !is_set_before(program, event, *of, *name);
        let read_later = read_outside(program, &lineage, *name);
        let is_buffer = is_buffer(program, *of, *name);
        let draft = match kind {
            Wrapper::Dp => {
                // A buffer changed in place is shared with the first replica.
                if *augmented && is_buffer || !builds_on_itself && read_later.is_none() {
                    continue;
                }
                report
                    .at(event.site, format!("`{name}` is written on a replica, and lost"))
                    .why("`DataParallel` runs forward on copies of the model and throws them away")
                    .help(format!(
                        "return what forward computed, and keep `{name}` outside the model; \
                         or pass it to forward"
                    ))
            }
            Wrapper::Ddp => {
                let is_own = value.taint(program.terms()).has(Taint::LOCAL)
                    || !value.origins(program.terms()).is_empty();
                let agreed = is_agreed(program, *name, value);
                if !builds_on_itself || is_buffer || !is_own || read_later.is_none() || agreed {
                    continue;
                }
                report
                    .at(event.site, format!("`{name}` gathers over the data of one rank alone"))
                    .why("each rank has its own value, and the one that is read is not the total")
                    .help(format!(
                        "return what forward computed and reduce it over the ranks, \
                         or reduce `{name}` before it is read"
                    ))
            }
        };
        let draft = draft.related(program.object(wrapper).site, "an instance is wrapped here");
        if let Some(read) = read_later {
            draft.related(read, "read here");
        }
    }
}

/// The same forward sets the attribute anew before: nothing is carried over.
fn is_set_before(program: &Program<'_>, event: &Event<'_>, of: Term, name: Name) -> bool {
    program.stored_on(of).iter().map(|&id| program.event(id)).any(|earlier| {
        let is_anew = match &earlier.kind {
            EventKind::AttributeStore { name: n, augmented, .. } => {
                *n == name && !augmented && !mentions_itself(program, earlier, name)
            }
            _ => false,
        };
        is_anew
            && earlier.id < event.id
            && earlier.modes.forward == event.modes.forward
            && program.conditions(earlier.path).count() <= program.conditions(event.path).count()
    })
}

/// The value is written with the attribute itself: `self.n = self.n + 1`.
fn mentions_itself(program: &Program<'_>, event: &Event<'_>, name: Name) -> bool {
    let Some(function) = program.frame(event.frame).function else { return false };
    let body = &program.function(function).body;
    assigned_at(body, event.site.span).is_some_and(|value| {
        value.holds(&mut |e| match &e.kind {
            ExprKind::Attribute { value, name: n, .. } => *n == name && is_self(value),
            _ => false,
        })
    })
}

/// `self.x = self.x.to(device)`: the same content, where or as what it is needed.
fn converts_itself(program: &Program<'_>, event: &Event<'_>, name: Name) -> bool {
    let Some(function) = program.frame(event.frame).function else { return false };
    let body = &program.function(function).body;
    assigned_at(body, event.site.span).is_some_and(|value| is_conversion(value, name))
}

fn is_conversion(value: &Expr, of: Name) -> bool {
    let ExprKind::Call { callee, .. } = &value.kind else { return false };
    let ExprKind::Attribute { value: receiver, name, .. } = &callee.kind else { return false };
    let converts = matches!(
        &**name,
        "to" | "type_as"
            | "type"
            | "cuda"
            | "cpu"
            | "float"
            | "half"
            | "double"
            | "long"
            | "contiguous"
            | "detach"
    );
    let is_itself = matches!(&receiver.kind,
        ExprKind::Attribute { value, name, .. } if *name == of && is_self(value));
    converts && (is_itself || is_conversion(receiver, of))
}

/// The value of the assignment whose target is at a place.
fn assigned_at(body: &[Stmt], at: Span) -> Option<&Expr> {
    body.iter().find_map(|statement| {
        if let StmtKind::Assign { targets, value: Some(value), .. } = &statement.kind
            && targets.iter().any(|t| t.span == at)
        {
            return Some(value);
        }
        let mut found = None;
        statement.each_part(&mut |part| {
            if let Part::Block(body) = part {
                found = found.or_else(|| assigned_at(body, at));
            }
        });
        found
    })
}

fn is_self(expr: &Expr) -> bool {
    matches!(&expr.kind, ExprKind::Name(name) if &**name == "self")
}

fn is_buffer(program: &Program<'_>, of: Term, name: Name) -> bool {
    program.calls(Role::RegisterBuffer).any(|(_, call)| {
        call.receiver.as_ref().is_some_and(|r| r.terms().any(|t| t == of))
            && call
                .value_at(0, "name")
                .and_then(Value::single)
                .is_some_and(|t| program.terms().as_str(t).is_none_or(|n| n == name))
    })
}

/// Where code outside of every forward reads the attribute of this class.
fn read_outside(program: &Program<'_>, lineage: &[ClassRef], name: Name) -> Option<Site> {
    // Of another object: certain where no other kind of object has such an attribute.
    let is_unique = program.events().iter().all(|event| match &event.kind {
        EventKind::AttributeStore { of, name: stored, .. } if *stored == name => {
            let class = program.object_of(*of).and_then(|o| program.class_of(o));
            class.is_some_and(|c| program.lineage(c).iter().any(|c| lineage.contains(c)))
        }
        _ => true,
    });
    let is_read = |m: &&Mention| {
        let outside = m.function.is_none_or(|f| program.ran_in(f) == RanIn::Elsewhere);
        let is_other = is_unique
            && !m.of_self
            && !m.of.is_some_and(|of| matches!(&*of, "args" | "opt" | "cfg" | "config" | "torch"));
        let of_it = m.of_inner
            || is_other
            || m.of_self
                && m.class.is_some_and(|c| lineage.contains(&c))
                && !is_constructor(program, m);
        m.name == name && m.access == Access::Read && outside && of_it
    };
    program.models().mentions().find(is_read).map(|m| m.site)
}

fn is_constructor(program: &Program<'_>, mention: &Mention) -> bool {
    mention.function.is_some_and(|f| &*program.function(f).name == "__init__")
}

/// The ranks share it: some collective is given the attribute or what went into it.
fn is_agreed(program: &Program<'_>, name: Name, value: &Value) -> bool {
    let terms = program.terms();
    let of_collective =
        |origin| program.event(origin).call().is_some_and(|call| call.role == Role::Collective);
    value.origins(terms).into_iter().any(of_collective)
        || program.calls(Role::Collective).any(|(event, call)| {
            call.arguments.iter().any(|a| {
                let site = Site { file: event.site.file, span: a.expr.span };
                program
                    .text(site)
                    .split(|c: char| !c.is_alphanumeric() && c != '_')
                    .any(|w| w == &*name)
            })
        })
}

/// `self.cache.append(x)` and `self.stats["n"] += 1` in a forward under `DataParallel`.
fn check_containers(program: &Program<'_>, report: &mut Report<'_>) {
    let wrapped = program.wrapped_models(Wrapper::Dp);
    let classes: Vec<(ClassRef, Site)> = wrapped
        .iter()
        .flat_map(|(wrapper, parts)| parts.iter().map(move |&part| (*wrapper, part)))
        .filter_map(|(wrapper, part)| {
            let class = program.class_of(program.object_of(part)?)?;
            Some((class, program.object(wrapper).site))
        })
        .collect();
    for (class, wrapped_at) in classes {
        let lineage = program.lineage(class);
        for mention in program.models().mentions() {
            let here = mention.of_self && mention.class.is_some_and(|c| lineage.contains(&c));
            let in_forward = mention.function.is_some_and(|f| program.ran_in(f) == RanIn::Forward);
            if !here || !in_forward || !fills(mention) {
                continue;
            }
            let name = mention.name;
            let Some(read) = read_outside(program, &lineage, name) else { continue };
            report
                .at(mention.site, format!("all replicas fill `{name}` at once"))
                .why(
                    "`DataParallel` shares it between the copies of the model: entries of other \
                     devices are lost or mixed up",
                )
                .help(format!("return what forward computed instead of keeping it in `{name}`"))
                .related(wrapped_at, "an instance is wrapped here")
                .related(read, "read here");
        }
    }
}

/// The mention puts something into a list or dict.
fn fills(mention: &Mention) -> bool {
    let grows = |name: &str| {
        matches!(name, "append" | "extend" | "insert" | "update" | "setdefault" | "add")
    };
    mention.access == Access::ItemWritten
        || matches!(&mention.around,
            [Some(Around::Attribute(name)), Some(Around::Callee)] if grows(name))
}

/// Forward hooks that keep what passes by, on a module under `DataParallel`.
fn check_hooks(program: &Program<'_>, report: &mut Report<'_>) {
    if !program.wraps_with(Wrapper::Dp) || program.wraps_with(Wrapper::Ddp) {
        return;
    }
    let wrapped = program.wrapped_models(Wrapper::Dp);
    for (event, call) in program.calls(Role::RegisterHook) {
        let registers = call.name.is_some_and(|n| n.contains("register_forward"));
        // Hooks that are taken off again look at a model once, before it is trained.
        let taken_off = program
            .models()
            .mentions()
            .any(|m| m.site.file == event.site.file && &*m.name == "remove");
        if !registers || taken_off || program.is_orphan(event) {
            continue;
        }
        let module = call.receiver.as_ref().and_then(Value::single);
        let known = module.filter(|&t| matches!(program.terms().kind(t), TermKind::Object(_)));
        if known.is_some_and(|t| !wrapped.iter().any(|(_, parts)| parts.contains(&t))) {
            continue;
        }
        let hook =
            call.value_at(0, "hook").into_iter().flat_map(Value::terms).find_map(|t| match program
                .terms()
                .kind(t)
            {
                TermKind::Function { function, .. } => Some(*function),
                _ => None,
            });
        let Some((site, name)) = hook.and_then(|h| kept_by(program, h)) else { continue };
        let Some(read) = read_elsewhere(program, hook, name) else { continue };
        report
            .at(site, format!("the hooks of all replicas write to `{name}` at once"))
            .why(
                "under `DataParallel` each copy of the model calls the hook with its part of the \
                 batch: the last one wins, on whatever device it is",
            )
            .help(
                "return the features from forward, or use `DistributedDataParallel`, where each \
                 process has its own hooks",
            )
            .related(event.site, "registered here")
            .related(read, "read here");
    }
}

/// What a hook writes to that outlives it: an item or attribute of something not its own.
fn kept_by(program: &Program<'_>, hook: FunctionRef) -> Option<(Site, Name)> {
    let definition = program.function(hook);
    let text = &program.project().file(hook.file).text;
    // Kept for each device apart: nothing is lost.
    let apart = text.get(definition.span.range()).is_some_and(|t| t.contains("device"));
    if apart || definition.has_decorator("staticmethod") {
        return None;
    }
    let own: Vec<Name> = definition.parameters.iter().map(|p| p.name).collect();
    let site = |span| Site { file: hook.file, span };
    let mut kept = None;
    written_by(&definition.body, &own, &mut |span, name| {
        kept = kept.or(Some((site(span), name)));
    });
    kept
}

fn written_by(body: &[Stmt], own: &[Name], each: &mut dyn FnMut(Span, Name)) {
    let outlives = |e: &Expr| {
        let path = e.path()?;
        let (first, last) = (*path.first()?, *path.last()?);
        (first == "self" || !own.contains(&first)).then_some(last)
    };
    for statement in body {
        match &statement.kind {
            StmtKind::Assign { targets, .. } => {
                for target in targets {
                    let holder = match &target.kind {
                        ExprKind::Index { value, .. } => outlives(value),
                        ExprKind::Attribute { .. } => outlives(target),
                        _ => None,
                    };
                    if let Some(name) = holder {
                        each(target.span, name);
                    }
                }
            }
            StmtKind::Expr(Expr { kind: ExprKind::Call { callee, .. }, span }) => {
                if let ExprKind::Attribute { value, name, .. } = &callee.kind
                    && matches!(&**name, "append" | "extend" | "update")
                    && let Some(holder) = outlives(value)
                {
                    each(*span, holder);
                }
            }
            _ => statement.each_part(&mut |part| {
                if let Part::Block(body) = part {
                    written_by(body, own, each);
                }
            }),
        }
    }
}

/// Where something outside of the hook reads what it keeps: an attribute or a variable.
fn read_elsewhere(program: &Program<'_>, hook: Option<FunctionRef>, name: Name) -> Option<Site> {
    let hook = hook?;
    let within =
        |site: Site| site.file == hook.file && program.function(hook).span.contains(site.span);
    let by_attribute = program
        .models()
        .mentions()
        .find(|m| m.name == name && m.access == Access::Read && !within(m.site));
    if let Some(mention) = by_attribute {
        return Some(mention.site);
    }
    // A plain variable is read in the file of its hook, or where it is imported.
    let imports = |module: &Module| {
        module.body.iter().any(|s| matches!(&s.kind, StmtKind::Import(i) if i.binding == name))
    };
    let mut found = None;
    for file in program.project().files.iter().filter(|f| program.reaches(f.id)) {
        if file.id != hook.file && !imports(&file.module) {
            continue;
        }
        let bodies = file.module.functions.iter().map(|f| f.body.as_slice());
        for body in bodies.chain([file.module.body.as_slice()]) {
            each_name(body, &mut |span, read| {
                let site = Site { file: file.id, span };
                if read == name && !within(site) {
                    found = found.or(Some(site));
                }
            });
        }
    }
    found
}

/// The names that a body reads, nested functions left out.
fn each_name(body: &[Stmt], each: &mut dyn FnMut(Span, Name)) {
    for statement in body {
        statement.each_part(&mut |part| match part {
            Part::Expr(expr) => expr.each_inside(&mut |e| {
                if let ExprKind::Name(name) = &e.kind {
                    each(e.span, *name);
                }
            }),
            Part::Block(body) => each_name(body, each),
            Part::Target(_) | Part::Function(_) | Part::Class(_) => {}
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_constant_that_follows_its_input_is_silent() {
        check_python(
            "
import torch
class Anchors(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = torch.nn.Linear(4, 4)
        self.boxes = torch.ones(9, 4)
    def forward(self, x):
        self.boxes = self.boxes.type_as(x)
        self.boxes = self.boxes.to(x.device).float()
        return self.fc(x) + self.boxes
net = torch.nn.DataParallel(Anchors()).cuda()
for x in range(3):
    net(x).sum().backward()
",
        );
    }

    #[test]
    fn a_memory_kept_in_forward_counts() {
        check_files(&[
            (
                "memory.py",
                "
import torch
class Memory(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = torch.nn.Linear(2, 2)
        self.mean = torch.zeros(2)
        self.register_buffer('count', torch.zeros(1))
    def update(self, x):
        self.mean = 0.9 * self.mean + 0.1 * x.mean(0)  # ~ state-written-in-forward: `mean`
        self.count += 1
    def forward(self, x):
        x = self.fc(x)
        self.update(x)
        return x - self.mean
",
            ),
            (
                "main.py",
                "
import torch
from memory import Memory
class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.memory = Memory()
    def forward(self, x):
        return self.memory(x)
if __name__ == '__main__':
    net = torch.nn.DataParallel(Net()).cuda()
    for _ in range(3):
        net(torch.ones(4, 2)).sum().backward()
",
            ),
        ]);
    }

    #[test]
    fn what_is_read_through_the_wrapper_counts() {
        check_python(
            "
import torch
class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = torch.nn.Linear(2, 2)
        self.history = []
    def forward(self, x):
        y = self.fc(x)
        self.attention = y.softmax(-1)  # ~ state-written-in-forward: `attention`
        self.history.append(y.norm())  # ~ state-written-in-forward: `history`
        self.inner = y * 2
        return self.inner
    def report(self):
        return sum(self.history)
model = torch.nn.DataParallel(Net().cuda())
for _ in range(3):
    model(torch.ones(4, 2)).sum().backward()
    print(model.module.attention, model.module.report())
",
        );
    }

    #[test]
    fn what_another_object_reads_counts() {
        check_python(
            "
import torch
class Book(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = torch.nn.Linear(2, 2)
        self.usage = None
        self.last_shape = None
    def forward(self, x):
        self.usage = x.sum(0)  # ~ state-written-in-forward: `usage`
        self.last_shape = x
        return self.fc(x)
class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.book = Book()
    def forward(self, x):
        return self.book(x)
class Other:
    def __init__(self):
        self.last_shape = 3
model = torch.nn.DataParallel(Net().cuda())
other = Other()
for _ in range(3):
    model(torch.ones(4, 2)).sum().backward()
    net = model.module if hasattr(model, 'module') else model
    print(net.book.usage, other.last_shape)
",
        );
    }

    #[test]
    fn a_head_chosen_from_a_dict_counts() {
        check_python(
            "
import argparse, torch
class Plain(torch.nn.Module):
    def forward(self, x):
        return x
class Annealed(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.iter = 0
    def forward(self, x):
        self.iter += 1  # ~ state-written-in-forward: `iter`
        return x / self.iter
cfg = argparse.ArgumentParser().parse_args()
heads = {'plain': Plain(), 'annealed': Annealed()}
head = heads[cfg.head]
if cfg.many:
    head = torch.nn.DataParallel(head)
for x in []:
    head(x).sum().backward()
",
        );
    }

    #[test]
    fn hooks_that_fill_a_shared_dict_count() {
        check_files(&[
            (
                "taps.py",
                "
features = {}
def tap(name):
    def keep(module, inputs, output):
        features[name] = output.detach()  # ~ state-written-in-forward: `features`
    return keep
",
            ),
            (
                "main.py",
                "
import torch
from taps import features, tap
def main():
    net = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.ReLU())
    net[0].register_forward_hook(tap('first'))
    net = torch.nn.DataParallel(net).cuda()
    for _ in range(3):
        loss = net(torch.ones(4, 2)).sum() + read().sum()
        loss.backward()
def read():
    return features['first']
if __name__ == '__main__':
    main()
",
            ),
        ]);
    }

    #[test]
    fn a_total_of_one_rank_counts_under_ddp() {
        check_python(
            "
import torch
class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = torch.nn.Linear(2, 2)
        self.seen = 0.
        self.steps = 0
        self.last = None
    def forward(self, x):
        y = self.fc(x)
        self.seen += y.abs().mean().item()  # ~ state-written-in-forward: `seen`
        self.steps += 1
        self.last = y
        return y
torch.distributed.init_process_group('nccl')
model = torch.nn.parallel.DistributedDataParallel(Net().cuda())
for _ in range(3):
    model(torch.ones(4, 2)).sum().backward()
print(model.module.seen / model.module.steps, model.module.last)
",
        );
    }

    #[test]
    fn caches_and_criteria_are_silent() {
        check_python(
            "
import torch
class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = torch.nn.Linear(2, 2)
        self.mask = None
        self.size = 0
    def forward(self, x):
        if self.mask is None or self.size != x.size(1):
            self.mask = torch.ones(x.size(1), device=x.device)
            self.size = x.size(1)
        self.shape = x.shape
        self.part = x
        self.part = self.part * 2
        return self.fc(x) * self.mask + self.part
class Criterion(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.total = 0
    def forward(self, y):
        self.total += y.sum().item()
        return y.mean()
model, criterion = torch.nn.DataParallel(Net().cuda()), Criterion()
for _ in range(3):
    criterion(model(torch.ones(4, 2))).backward()
print(criterion.total)
",
        );
    }

    #[test]
    fn hooks_under_ddp_are_silent() {
        check_python(
            "
import torch
kept = {}
def hook(module, inputs, output):
    kept['y'] = output
net = torch.nn.Linear(2, 2)
net.register_forward_hook(hook)
torch.distributed.init_process_group('nccl')
net = torch.nn.parallel.DistributedDataParallel(net.cuda())
for _ in range(3):
    net(torch.ones(1, 2)).sum().backward()
    print(kept['y'])
",
        );
    }
}
