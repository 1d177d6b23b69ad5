use rustc_hash::FxHashSet;

use crate::analysis::facts::Wrapper;
use crate::analysis::models::{Access, Around, Mention, RanIn};
use crate::analysis::{
    Call, ClassRef, Event, EventId, EventKind, ObjectClass, ObjectId, Term, TermKind, Value,
};
use crate::model::{Expr, ExprKind, StmtKind};
use crate::prelude::*;
use crate::python::edit::Editor;
use crate::table::{Flag, Role};

declare_rule! {
    /// A tensor that forward uses is a plain attribute, not a buffer.
    ///
    /// `.cuda()` and `.to(device)` move parameters and buffers only; a plain tensor, or a list
    /// of tensors (of buffers, too: the move replaces those), stays where it was made:
    /// `Expected all tensors to be on the same device, but found at least two devices`. Nor is
    /// it broadcast, saved or copied to the replicas of `DataParallel`.
    ///
    /// ```python bad
    /// import torch
    /// import torch.nn as nn
    /// from torch.nn.parallel import DistributedDataParallel as DDP
    ///
    ///
    /// class Net(nn.Module):
    ///     def __init__(self):
    ///         super().__init__()
    ///         self.fc = nn.Linear(8, 8)
    ///         self.scale = torch.ones(8)  # ~ unregistered-tensor-state
    ///
    ///     def forward(self, x):
    ///         return self.fc(x) * self.scale
    ///
    ///
    /// model = DDP(Net().cuda())
    /// ```
    /// ```python fixed
    /// import torch
    /// import torch.nn as nn
    /// from torch.nn.parallel import DistributedDataParallel as DDP
    ///
    ///
    /// class Net(nn.Module):
    ///     def __init__(self):
    ///         super().__init__()
    ///         self.fc = nn.Linear(8, 8)
    ///         self.register_buffer("scale", torch.ones(8), persistent=False)
    ///
    ///     def forward(self, x):
    ///         return self.fc(x) * self.scale
    ///
    ///
    /// model = DDP(Net().cuda())
    /// ```
    ///
    /// In Rust a tensor that a constructor draws at random, and that no path registers, is another
    /// one on each rank: the ranks then compute different functions.
    ///
    /// ```rust bad
    /// use tch::{Kind, Tensor, nn};
    ///
    /// struct Features { frequencies: Tensor, out: nn::Linear }
    ///
    /// impl Features {
    ///     fn new(p: &nn::Path) -> Features {
    ///         let options = (Kind::Float, p.device());
    ///         let frequencies = Tensor::randn([2, 8], options); //~ unregistered-tensor-state
    ///         Features { frequencies, out: nn::linear(p / "out", 8, 1, Default::default()) }
    ///     }
    /// }
    ///
    /// fn wrap(vs: nn::VarStore, group: &tch_ddp::ProcessGroup) -> anyhow::Result<()> {
    ///     let net = Features::new(&vs.root());
    ///     let ddp = tch_ddp::Ddp::new(net, vs, group, Default::default())?;
    ///     Ok(())
    /// }
    /// ```
    /// ```rust good
    /// use tch::{Kind, Tensor, nn};
    ///
    /// struct Features { frequencies: Tensor, out: nn::Linear }
    ///
    /// impl Features {
    ///     fn new(p: &nn::Path) -> Features {
    ///         let drawn = Tensor::randn([2, 8], (Kind::Float, p.device()));
    ///         let frequencies = p.add("frequencies", drawn, false);
    ///         Features { frequencies, out: nn::linear(p / "out", 8, 1, Default::default()) }
    ///     }
    /// }
    ///
    /// fn wrap(vs: nn::VarStore, group: &tch_ddp::ProcessGroup) -> anyhow::Result<()> {
    ///     let net = Features::new(&vs.root());
    ///     let ddp = tch_ddp::Ddp::new(net, vs, group, Default::default())?;
    ///     Ok(())
    /// }
    /// ```
    ///
    /// # Known limits
    /// In Rust a seed that all ranks share makes the tensor the same on all: silent. In Python:
    /// Only tensors that the constructor surely makes, with at least one dimension, are looked
    /// at. A tensor that forward hands to a function of the project may be moved there: silent.
    pub static RULE = {
        name: "unregistered-tensor-state",
        level: Level::Error,
        harm: Harm::Crash,
        tier: 1,
        languages: BOTH,
        fix: FixKind::Unsafe,
        check,
    };
}

fn check(program: &Program<'_>, report: &mut Report<'_>) {
    if program.language != Language::Python {
        return check_random(program, report);
    }
    // Elsewhere new tensors may be made on the device at once.
    let has_default = || {
        program
            .models()
            .mentions()
            .any(|m| matches!(&*m.name, "set_default_device" | "set_default_tensor_type"))
    };
    if has_default() {
        return;
    }
    for kind in [Wrapper::Ddp, Wrapper::Dp] {
        for (wrapper, parts) in program.wrapped_models(kind) {
            if !runs_on_a_device(program, wrapper, kind, &parts) {
                continue;
            }
            for &part in &parts {
                check_part(program, report, kind, part);
            }
        }
    }
}

/// tch: random constants that no path registered.
fn check_random(program: &Program<'_>, report: &mut Report<'_>) {
    if !program.is_distributed() {
        return;
    }
    let wrapped = wrapped(program);
    for event in program.events() {
        let EventKind::AttributeStore { of, name, value, augmented: false } = &event.kind else {
            continue;
        };
        let Some(kept) = value.single() else { continue };
        if event.modes.forward.is_some() || !is_bare_model(program, &wrapped, *of) {
            continue;
        }
        let Some(drawn) = drawn_alone(program, kept) else { continue };
        report
            .at(drawn.site, format!("`{name}` is drawn on each rank anew, and registered nowhere"))
            .harm(Harm::Wrong)
            .why(
                "the wrapper broadcasts what the store holds, and this it does not: the ranks \
                 compute different functions of their inputs",
            )
            .help(format!("register it as a buffer: `p.add(\"{name}\", tensor, false)`"))
            .related(event.site, "kept here");
    }
}

/// A struct that a wrapper holds and that is not annotated: the macro sees to the tensors of one
/// that is.
fn is_bare_model(program: &Program<'_>, wrapped: &FxHashSet<Term>, of: Term) -> bool {
    let Some(class) = program.object_of(of).and_then(|o| program.class_of(o)) else { return false };
    let is_annotated = program
        .class(class)
        .decorators
        .iter()
        .any(|d| d.last_name().is_some_and(|n| &*n == "data_parallel"));
    !is_annotated && wrapped.contains(&of)
}

/// What wrappers hold: models, and what is in their fields or in lists that are fields.
fn wrapped(program: &Program<'_>) -> FxHashSet<Term> {
    let wrappers = program.objects().iter().filter(|o| program.wrapper_kind(o.id).is_some());
    let modules = wrappers.filter_map(|o| program.wrapped_module(o.id));
    let models: FxHashSet<Term> = modules.flat_map(Value::terms).collect();
    let mut all = models.clone();
    for event in program.events() {
        let EventKind::AttributeStore { of, value, .. } = &event.kind else { continue };
        if !models.contains(of) {
            continue;
        }
        for part in value.terms() {
            all.insert(part);
            if program.object_of(part).is_some_and(|o| o.class == ObjectClass::List) {
                all.extend(program.contents(part).iter().flat_map(Value::terms));
            }
        }
    }
    all
}

/// The call that drew a tensor, where nothing registered it and no seed makes it the same.
fn drawn_alone<'r, 'p>(program: &'r Program<'p>, kept: Term) -> Option<&'r Event<'p>> {
    let origins = program.terms().origins(kept).iter().map(|&id| program.event(id));
    let mut drawn = None;
    for event in origins {
        let Some(call) = event.call() else { continue };
        match call.role {
            Role::Random => drawn = drawn.or(Some(event)),
            Role::InitParameter if program.has_flag(call, Flag::Random) => {
                drawn = drawn.or(Some(event));
            }
            Role::RegisterParameter | Role::RegisterBuffer | Role::Collective => return None,
            _ => {}
        }
    }
    let drawn = drawn?;
    let is_trained = program.requires_grad(kept);
    let is_seeded = program.calls(Role::Seed).any(|(seed, call)| {
        seed.id < drawn.id && !call.arguments.iter().any(|a| program.depends_on_rank(&a.value))
    });
    (!is_trained && !is_seeded).then_some(drawn)
}

/// Something moves the model off the CPU.
fn runs_on_a_device(
    program: &Program<'_>,
    wrapper: ObjectId,
    kind: Wrapper,
    parts: &[Term],
) -> bool {
    let moves = program.calls(Role::Move).any(|(event, call)| {
        let is_part = |t: Term| match program.terms().kind(t) {
            TermKind::Inner(id) | TermKind::Object(id) if *id == wrapper => true,
            _ => parts.contains(&t),
        };
        let to_host = call.name.is_some_and(|n| n.ends_with(".cpu"))
            || call.arguments.first().is_some_and(|a| {
                program.text(Site { file: event.site.file, span: a.expr.span }).contains("cpu")
            });
        !to_host && call.receiver.as_ref().is_some_and(|r| r.terms().any(is_part))
    });
    let has_ids = program.object(wrapper).arguments.iter().any(|a| {
        a.name.is_some_and(|n| &*n == "device_ids")
            && a.value.single() != Some(program.terms().none)
    });
    moves || has_ids || kind == Wrapper::Dp
}

fn check_part(program: &Program<'_>, report: &mut Report<'_>, kind: Wrapper, part: Term) {
    let Some(class) = program.object_of(part).and_then(|o| program.class_of(o)) else { return };
    let moves_itself =
        ["_apply", "to", "cuda"].iter().any(|name| program.class_member(class, name).is_some());
    if moves_itself {
        return;
    }
    let lineage = program.lineage(class);
    for &event in program.stored_on(part) {
        let event = program.event(event);
        let EventKind::AttributeStore { name, value, augmented: false, .. } = &event.kind else {
            continue;
        };
        if event.modes.forward.is_some()
            || is_registered(program, part, *name)
            || !is_stored_once(program, &lineage, *name, event)
        {
            continue;
        }
        let Some(state) = state_of(program, part, value) else { continue };
        let Some(used) = use_in_forward(program, part, &lineage, *name, &state) else { continue };
        if is_moved(program, &state, kind) {
            continue;
        }
        tell(program, report, event, *name, &state, used);
    }
}

/// A buffer or parameter of that name exists: what is assigned takes its place.
fn is_registered(program: &Program<'_>, part: Term, name: Name) -> bool {
    let named = |call: &Call<'_>| {
        let given = call.value_at(0, "name").and_then(Value::single);
        given.and_then(|t| program.terms().as_str(t)) == Some(name)
            && call.receiver.as_ref().is_some_and(|r| r.terms().any(|t| t == part))
    };
    [Role::RegisterBuffer, Role::RegisterParameter]
        .into_iter()
        .any(|role| program.calls(role).any(|(_, call)| named(call)))
}

/// What is kept in the attribute.
enum State {
    /// A tensor, made by these calls.
    Tensor(Vec<EventId>),
    /// A list or dict of tensors.
    Container(Vec<EventId>),
    /// A list or dict of tensors that are buffers, too.
    Buffers,
}

fn state_of(program: &Program<'_>, part: Term, value: &Value) -> Option<State> {
    let term = value.single()?;
    let object = program.object_of(term);
    let is_container =
        object.is_some_and(|o| matches!(o.class, ObjectClass::List | ObjectClass::Dict));
    if !is_container {
        return made_here(program, term).map(State::Tensor);
    }
    let held: Vec<Term> = program.contents(term).iter().flat_map(Value::terms).collect();
    if held.is_empty() {
        return None;
    }
    if held.iter().all(|&t| is_buffer(program, part, t)) {
        return Some(State::Buffers);
    }
    let made: Option<Vec<Vec<EventId>>> = held.iter().map(|&t| made_here(program, t)).collect();
    made.map(|made| State::Container(made.concat()))
}

/// The calls that made a tensor with at least one dimension, if that is surely what it is.
fn made_here(program: &Program<'_>, term: Term) -> Option<Vec<EventId>> {
    let terms = program.terms();
    let composed = match terms.kind(term) {
        TermKind::Binary(..) | TermKind::Negative(_) | TermKind::Apply(..) => true,
        TermKind::Opaque { site, .. } => {
            is_arithmetic(program, *site) || is_arithmetic_inside(program, *site)
        }
        _ => false,
    };
    if !composed && !program.is_tensor(term) || program.requires_grad(term) {
        return None;
    }
    let mut made = Vec::new();
    for &origin in terms.origins(term) {
        let event = program.event(origin);
        let call = event.call()?;
        match call.role {
            Role::MakeTensor | Role::Random
                if call.result.terms().all(|t| program.is_tensor(t)) =>
            {
                if !has_dimensions(program, call) {
                    return None;
                }
                made.push(origin);
            }
            // A number, a parameter, or something from elsewhere.
            Role::HostRead | Role::Load | Role::ReadFile | Role::Parameter => return None,
            _ => {}
        }
    }
    (!made.is_empty()).then_some(made)
}

/// The value that is assigned here is computed: `2 * torch.ones(3)`.
fn is_arithmetic(program: &Program<'_>, site: Site) -> bool {
    let statement = Editor::new(program.project().file(site.file)).statement_at(site.span);
    let Some(StmtKind::Assign { value: Some(value), .. } | StmtKind::Return(Some(value))) =
        statement.map(|s| &s.kind)
    else {
        return false;
    };
    value.span == site.span
        && matches!(value.kind, ExprKind::Binary { .. } | ExprKind::Unary { .. })
}

/// The same inside a display or comprehension: `{k: torch.ones(k) / k for k in sizes}`.
fn is_arithmetic_inside(program: &Program<'_>, site: Site) -> bool {
    let statement = Editor::new(program.project().file(site.file)).statement_at(site.span);
    let Some(StmtKind::Assign { value: Some(value), .. }) = statement.map(|s| &s.kind) else {
        return false;
    };
    let is_filled = matches!(
        value.kind,
        ExprKind::Comprehension { .. } | ExprKind::Collection { .. } | ExprKind::Dict(_)
    );
    is_filled
        && value.holds(&mut |e| {
            e.span == site.span
                && matches!(e.kind, ExprKind::Binary { .. } | ExprKind::Unary { .. })
        })
}

/// Tensors without a dimension mix with those of any device.
fn has_dimensions(program: &Program<'_>, call: &Call<'_>) -> bool {
    let name = call.name.map_or("", |n| n.as_str());
    let name = name.rsplit('.').next().unwrap_or(name);
    let first = call.arguments.iter().find(|a| a.position == Some(0));
    let is_list = first.is_some_and(|a| {
        a.value.terms().all(|t| {
            matches!(program.terms().kind(t), TermKind::Tuple(items) if !items.is_empty())
                || program.object_of(t).is_some_and(|o| o.class == ObjectClass::List)
        })
    });
    match name {
        "tensor" | "as_tensor" | "Tensor" | "FloatTensor" | "LongTensor" => is_list,
        _ => call.arguments.iter().any(|a| {
            let is_empty =
                |t| matches!(program.terms().kind(t), TermKind::Tuple(i) if i.is_empty());
            a.position == Some(0) && !a.value.terms().any(is_empty)
        }),
    }
}

/// A tensor that the module registered as a buffer, by this or by a made-up name.
fn is_buffer(program: &Program<'_>, part: Term, term: Term) -> bool {
    let mut registered = program
        .calls(Role::RegisterBuffer)
        .filter(|(_, call)| call.receiver.as_ref().and_then(Value::single) == Some(part));
    if let TermKind::Opaque { site, .. } = program.terms().kind(term) {
        // `getattr(self, f"grid_{i}")`
        let text = program.text(*site);
        return text.starts_with("getattr(self,") && registered.next().is_some();
    }
    registered.any(|(_, call)| call.value_at(1, "tensor").and_then(Value::single) == Some(term))
}

/// The attribute is set at this place alone; elsewhere it might be moved.
fn is_stored_once(
    program: &Program<'_>,
    lineage: &[ClassRef],
    name: Name,
    event: &Event<'_>,
) -> bool {
    let here = program.frame(event.frame).function;
    !program.models().mentions().any(|m| {
        m.name == name
            && m.access == Access::Written
            && (!m.of_self || m.class.is_some_and(|c| lineage.contains(&c)))
            && m.function != here
    })
}

/// A place in forward where the tensor meets others.
fn use_in_forward(
    program: &Program<'_>,
    part: Term,
    lineage: &[ClassRef],
    name: Name,
    state: &State,
) -> Option<Site> {
    let reads: Vec<&Mention> = program
        .models()
        .mentions()
        .filter(|m| {
            m.name == name
                && m.of_self
                && m.access == Access::Read
                && m.class.is_some_and(|c| lineage.contains(&c))
                && m.function.is_some_and(|f| program.ran_in(f) == RanIn::Forward)
        })
        .collect();
    match state {
        State::Tensor(_) => {
            let hard = reads.iter().find(|m| is_hard(program, part, m))?;
            reads.iter().all(|m| !is_moved_here(m)).then_some(hard.site)
        }
        State::Container(_) | State::Buffers => {
            let in_hand = |m: &Mention| m.function.is_some_and(|f| !moves_something(program, f));
            reads.iter().all(|m| in_hand(m)).then(|| reads.first().map(|m| m.site))?
        }
    }
}

/// `self.mask.to(x.device)`, also after an index.
fn is_moved_here(mention: &Mention) -> bool {
    mention.around.iter().flatten().any(|around| match around {
        Around::Attribute(name) => MOVES.contains(&&**name),
        _ => false,
    })
}

const MOVES: &[&str] = &["to", "cuda", "type_as", "cpu", "new_tensor", "to_device"];

/// The tensor, or a part or view of it, is used in a computation.
fn is_hard(program: &Program<'_>, part: Term, mention: &Mention) -> bool {
    let is_view = |name: &str| VIEWS.contains(&name);
    let is_layer = |name: &str| {
        let held = program.attribute_now(part, name).and_then(Value::single);
        held.and_then(|t| program.object_of(t)).is_some_and(|o| o.role == Role::Layer)
    };
    let of_torch = |around: &Around| match around {
        Around::Argument(path) => match &**path {
            [first, name] if &**first == "self" => is_layer(name),
            [first, _, ..] => matches!(&**first, "torch" | "F" | "nn" | "functional"),
            _ => false,
        },
        _ => false,
    };
    match &mention.around {
        [Some(Around::Slice), None | Some(Around::Operand | Around::Item | Around::Other)]
        | [Some(Around::Operand), _] => true,
        [Some(Around::Attribute(name)), Some(Around::Callee)] => is_view(name),
        [Some(Around::Slice), Some(outer)] => of_torch(outer),
        [Some(around), _] => of_torch(around),
        _ => false,
    }
}

/// Methods that give a tensor on the same device.
const VIEWS: &[&str] = &[
    "unsqueeze",
    "squeeze",
    "view",
    "reshape",
    "expand",
    "repeat",
    "transpose",
    "permute",
    "flatten",
    "clone",
    "detach",
    "index_select",
    "gather",
    "float",
    "long",
    "bool",
    "exp",
    "log",
    "sum",
    "mean",
    "softmax",
    "matmul",
    "mul",
    "add",
];

/// The function moves something: perhaps the items of the list.
fn moves_something(program: &Program<'_>, function: crate::analysis::FunctionRef) -> bool {
    program.models().mentions().any(|m| m.function == Some(function) && MOVES.contains(&&*m.name))
}

/// The run shows that the tensor is put on a device: at construction, which is enough with one
/// device for each process, or in forward.
fn is_moved(program: &Program<'_>, state: &State, kind: Wrapper) -> bool {
    let made = match state {
        State::Tensor(made) | State::Container(made) => made,
        State::Buffers => return false,
    };
    let terms = program.terms();
    let on_device = made.iter().any(|&event| match &program.event(event).kind {
        EventKind::Call(call) => call.arguments.iter().any(|a| {
            a.name.is_some_and(|n| &*n == "device") && a.value.single() != Some(terms.none)
        }),
        _ => false,
    });
    let moved = program.calls(Role::Move).any(|(event, call)| {
        let in_forward = event.modes.forward.is_some();
        (kind == Wrapper::Ddp || in_forward)
            && call
                .receiver
                .as_ref()
                .is_some_and(|r| r.origins(terms).iter().any(|o| made.contains(o)))
    });
    moved || on_device && kind == Wrapper::Ddp
}

fn tell(
    program: &Program<'_>,
    report: &mut Report<'_>,
    event: &Event<'_>,
    name: Name,
    state: &State,
    used: Site,
) {
    let (message, help) = match state {
        State::Tensor(_) => (
            format!("`{name}` is a plain tensor: the model does not move it with itself"),
            format!("register it: `self.register_buffer(\"{name}\", .., persistent=False)`"),
        ),
        State::Container(_) => (
            format!("`{name}` holds plain tensors: the model does not move them with itself"),
            "register each as a buffer, and read it by name: `getattr(self, f\"..\")`".to_owned(),
        ),
        State::Buffers => (
            format!("`{name}` keeps the buffers as they were: a move replaces them"),
            "read the buffers by name where they are used: `getattr(self, f\"..\")`".to_owned(),
        ),
    };
    let site = match state {
        State::Tensor(_) => event.site,
        _ => fill_of(program, event, name).unwrap_or(event.site),
    };
    let draft = report
        .at(site, message)
        .why("it stays on the device it was made on, and is neither saved nor broadcast")
        .help(help)
        .related(used, "used here, in forward");
    if let State::Tensor(_) = state {
        draft.fix(registration(program, event, name));
    }
}

/// Where the constructor puts something into a list that it made empty.
fn fill_of(program: &Program<'_>, event: &Event<'_>, name: Name) -> Option<Site> {
    let function = program.frame(event.frame).function;
    let fills = |m: &&Mention| {
        m.name == name
            && m.of_self
            && m.function == function
            && (m.access == Access::ItemWritten
                || matches!(&m.around[0], Some(Around::Attribute(n)) if &**n == "append"))
    };
    program.models().mentions().find(fills).map(|m| m.site)
}

/// `self.scale = v` as `self.register_buffer("scale", v, persistent=False)`.
fn registration(program: &Program<'_>, event: &Event<'_>, name: Name) -> Option<Fix> {
    let file = program.project().file(event.site.file);
    let editor = Editor::new(file);
    let statement = editor.statement_at(event.site.span)?;
    let StmtKind::Assign { targets, value: Some(value), .. } = &statement.kind else {
        return None;
    };
    let [Expr { kind: ExprKind::Attribute { value: of, .. }, .. }] = targets.as_slice() else {
        return None;
    };
    let text = |span: Span| file.text.get(span.range());
    let (of, value) = (text(of.span)?, text(value.span)?);
    let name = editor.string(&name);
    let replacement = format!("{of}.register_buffer({name}, {value}, persistent=False)");
    let site = Site { file: event.site.file, span: statement.span };
    Some(Fix {
        applicability: Applicability::Unsafe,
        title: "register the tensor as a buffer".to_owned(),
        edits: vec![Edit { site, replacement }],
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_buffer_that_is_assigned_anew_is_silent() {
        check_python(
            "
import torch
import torch.nn.functional as F
class Queue(torch.nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.fc = torch.nn.Linear(dim, dim)
        self.register_buffer('queue', torch.randn(dim, 64))
        self.queue = F.normalize(self.queue, dim=0)
    def forward(self, x):
        return self.fc(x) @ self.queue
net = torch.nn.parallel.DistributedDataParallel(Queue(8).cuda(), device_ids=[0])
for x in range(3):
    net(x).sum().backward()
",
        );
    }

    #[test]
    fn random_features_of_a_part_count_unless_a_seed_is_shared() {
        let program = |seed: &str, mark: &str| {
            [
                "
mod features;
use tch::nn;
use tch_ddp::{Ddp, DdpOptions, GroupOptions, Launch, ProcessGroup};
struct Net { features: features::Features, head: nn::Linear }
fn main() -> anyhow::Result<()> {
    let group = ProcessGroup::init(&Launch::from_env()?, GroupOptions::default())?;
    ",
                seed,
                "
    let vs = nn::VarStore::new(group.device());
    let head = nn::linear(vs.root() / \"head\", 4, 1, Default::default());
    let net = Net { features: features::Features::new(&vs.root()), head };
    let ddp = Ddp::new(net, vs, &group, DdpOptions::default())?;
    Ok(())
}
// file: src/features.rs
use tch::{nn, Kind, Tensor};
pub struct Features { basis: Tensor, grid: Tensor, scale: Tensor }
impl Features {
    pub fn new(p: &nn::Path) -> Self {
        let options = (Kind::Float, p.device());
        let basis = Tensor::rand([3, 4], options) * 6.28;",
                mark,
                "
        let grid = Tensor::linspace(0., 1., 8, options);
        let scale = p.add(\"scale\", Tensor::randn([4], options), false);
        Self { basis, grid, scale }
    }
}
",
            ]
            .concat()
        };
        let check = |text: String| {
            let (main, features) = text.split_once("// file: src/features.rs\n").unwrap();
            check_files(&[("src/main.rs", main), ("src/features.rs", features)]);
        };
        check(program("", " //~ unregistered-tensor-state: `basis`"));
        check(program("tch::manual_seed(7);", ""));
        let mark = " //~ unregistered-tensor-state: `basis`";
        check(program("tch::manual_seed(7 + group.rank() as i64);", mark));
    }

    #[test]
    fn annotated_structs_and_tensors_drawn_in_forward_are_silent() {
        check_rust(
            "
use tch::{nn, Kind, Tensor};
#[tch_ddp::data_parallel]
struct Noisy { #[dp(buffer)] basis: Tensor, out: nn::Linear }
impl Noisy {
    fn new(p: &nn::Path) -> Noisy {
        let basis = Tensor::randn([4], (Kind::Float, p.device()));
        Noisy { basis, out: nn::linear(p / \"out\", 4, 1, Default::default()) }
    }
    fn forward(&self, x: &Tensor) -> Tensor {
        (x + x.randn_like()).apply(&self.out)
    }
}
fn train(vs: nn::VarStore, group: &tch_ddp::ProcessGroup, x: &Tensor) {
    let ddp = tch_ddp::Ddp::new(Noisy::new(&vs.root()), vs, group, Default::default()).unwrap();
    let loss = ddp.run(|m| m.forward(x)).unwrap().mean(Kind::Float);
    ddp.backward(&loss).unwrap();
}
",
        );
    }

    #[test]
    fn a_list_of_buffers_counts() {
        check_python(
            "
import torch
class Head(torch.nn.Module):
    def __init__(self, sizes):
        super().__init__()
        self.fc = torch.nn.Linear(4, 4)
        self.register_buffer('grid', torch.arange(4.))
        self.grids = []
        for i, s in enumerate(sizes):
            self.register_buffer('grid%d' % i, torch.arange(0, 4, s))
            self.grids.append(getattr(self, 'grid%d' % i))  # ~ unregistered-tensor-state: buffers
        self.same = [self.grid]  # ~ unregistered-tensor-state: `same`
    def forward(self, xs):
        return [self.fc(x) + g + self.same[0] for x, g in zip(xs, self.grids)]
torch.distributed.init_process_group('nccl')
head = torch.nn.parallel.DistributedDataParallel(Head([1, 2]).cuda())
",
        );
    }

    #[test]
    fn position_codes_in_another_file_count() {
        check_files(&[
            (
                "positions.py",
                "
import math, torch
from torch import nn
class Positions(nn.Module):
    def __init__(self, width, length=512):
        super().__init__()
        pe = torch.zeros(length, width)
        at = torch.arange(0, length).unsqueeze(1).float()
        rate = torch.exp(torch.arange(0, width, 2).float() * -(math.log(10000.0) / width))
        pe[:, 0::2] = torch.sin(at * rate)
        self.pe = pe.unsqueeze(0)  # ~ unregistered-tensor-state: `pe`
        self.table = torch.linspace(0, 1, width) * 2  # ~ unregistered-tensor-state: `table`
        self.weights = [torch.ones(3), torch.zeros(3)]  # ~ unregistered-tensor-state: `weights`
    def forward(self, x):
        for w in self.weights:
            x = x * w.sum()
        return x + self.pe[:, :x.size(1)] + torch.relu(self.table)
",
            ),
            (
                "main.py",
                "
import os, torch
from positions import Positions
class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.positions = Positions(8)
        self.out = torch.nn.Linear(8, 1)
    def forward(self, x):
        return self.out(self.positions(x))
def main():
    gpu = int(os.environ['LOCAL_RANK'])
    torch.distributed.init_process_group('nccl')
    model = Net().to(gpu)
    model = torch.nn.parallel.DistributedDataParallel(model, device_ids=[gpu])
    model(torch.ones(1, 4, 8).to(gpu)).sum().backward()
if __name__ == '__main__':
    main()
",
            ),
        ]);
    }

    #[test]
    fn a_tensor_on_the_first_device_counts_under_data_parallel() {
        let program = |wrap: &str, mark: &str| {
            format!(
                "
import torch
class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = torch.nn.Linear(4, 4)
        self.anchors = torch.ones(4).cuda(){mark}
    def forward(self, x):
        return torch.add(self.fc(x), self.anchors)
torch.distributed.init_process_group('nccl')
net = {wrap}(Net().cuda())
"
            )
        };
        let mark = "  # ~ unregistered-tensor-state";
        check_python(&program("torch.nn.DataParallel", mark));
        check_python(&program("torch.nn.parallel.DistributedDataParallel", ""));
    }

    #[test]
    fn masks_kernels_and_rates_from_a_helper_count() {
        check_python(
            "
import torch
from torch import nn
class Net(nn.Module):
    def __init__(self, n):
        super().__init__()
        self.fc = nn.Linear(4, 4)
        self.tri = torch.tril(torch.ones(n, n))  # ~ unregistered-tensor-state: `tri`
        self.kernel = torch.FloatTensor([[1, 2], [3, 4]])  # ~ unregistered-tensor-state: `kernel`
        self.rates = self.make(n)  # ~ unregistered-tensor-state: `rates`
    def make(self, n):
        return 1.0 / (10000 ** (torch.arange(0, n, 2).float() / n))
    def forward(self, x):
        n = x.size(0)
        x = x.masked_fill(self.tri[:n, :n] == 0, -1e9)
        kernel = self.kernel.unsqueeze(0)
        return self.fc(nn.functional.conv1d(x, kernel)) + torch.outer(x, self.rates)
torch.distributed.init_process_group('nccl')
net = nn.parallel.DistributedDataParallel(Net(4).cuda())
",
        );
    }

    #[test]
    fn tensors_that_are_moved_are_silent() {
        check_python(
            "
import torch
class Net(torch.nn.Module):
    def __init__(self, device):
        super().__init__()
        self.fc = torch.nn.Linear(4, 4)
        self.a = torch.ones(4)
        self.b = torch.ones(4)
        self.c = torch.ones(4, device=device)
        self.d = torch.ones(4)
        self.e = torch.ones(4)
        self.f = [torch.ones(4)]
        self.g = torch.ones(4)
    def forward(self, x):
        d = self.d[None]
        x = x + self.a.to(x.device) + self.b[:2].type_as(x) + self.c + d.to(x)
        if self.e.device != x.device:
            self.e = self.e.to(x.device)
        x = x + sum(f.cuda() for f in self.f)
        return self.fc(x) + self.e + onto(self.g, x)
def onto(t, x):
    return t.to(x.device)
torch.distributed.init_process_group('nccl')
net = torch.nn.parallel.DistributedDataParallel(Net('cuda').cuda())
net(torch.ones(1, 4).cuda()).sum().backward()
",
        );
    }

    #[test]
    fn buffers_scalars_and_counts_are_silent() {
        check_python(
            "
import torch
class Net(torch.nn.Module):
    def __init__(self, n):
        super().__init__()
        self.fc = torch.nn.Linear(4, 4)
        self.register_buffer('mask', torch.ones(4))
        self.half = torch.tensor(0.5)
        self.size = torch.ones(4).shape[0]
        self.total = torch.ones(4).sum().item()
        self.w = torch.nn.Parameter(torch.ones(4))
        self.steps = torch.arange(4).tolist()
        self.idle = torch.ones(4)
    def forward(self, x):
        return self.fc(x) * self.mask * self.half / self.size + self.total + self.w * self.steps[0]
torch.distributed.init_process_group('nccl')
net = torch.nn.parallel.DistributedDataParallel(Net(3).cuda())
net(torch.ones(1, 4).cuda()).sum().backward()
",
        );
    }

    #[test]
    fn numbers_taken_out_by_index_are_silent() {
        check_python(
            "
import torch
class Noise(torch.nn.Module):
    def __init__(self, n):
        super().__init__()
        self.fc = torch.nn.Linear(4, 4)
        self.betas = torch.linspace(1e-4, 0.02, n)
        self.order = torch.arange(4)
    def forward(self, x, t):
        return self.fc(x[:, self.order]) * self.betas[t]
torch.distributed.init_process_group('nccl')
net = torch.nn.parallel.DistributedDataParallel(Noise(10).cuda())
for t in range(10):
    net(torch.ones(1, 4).cuda(), t).sum().backward()
",
        );
    }

    #[test]
    fn a_model_on_the_cpu_is_silent() {
        check_python(
            "
import torch
class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = torch.nn.Linear(4, 4)
        self.scale = torch.ones(4)
    def forward(self, x):
        return self.fc(x) * self.scale
torch.distributed.init_process_group('gloo')
net = torch.nn.parallel.DistributedDataParallel(Net())
net(torch.ones(1, 4)).sum().backward()
",
        );
    }

    #[test]
    fn kernels_in_a_dict_count() {
        check_python(
            r#"
import torch
from torch import nn
import torch.nn.functional as F
class Blur(nn.Module):
    def __init__(self, sizes=(3, 5)):
        super().__init__()
        self.kernels = {k: torch.ones(1, 1, k) / k for k in sizes}  # ~ unregistered-tensor-state
        self.sizes = sizes
        self.mix = nn.Conv2d(1, 1, 1)
    def forward(self, x):
        for k in self.sizes:
            x = F.conv2d(x, self.kernels[k], padding=k // 2)
        return self.mix(x)
if __name__ == "__main__":
    net = nn.DataParallel(Blur().cuda())
    opt = torch.optim.Adam(net.parameters())
    for _ in range(20):
        loss = net(torch.rand(8, 1, 16, 16).cuda()).mean()
        opt.zero_grad()
        loss.backward()
        opt.step()
"#,
        );
    }

    #[test]
    fn a_mask_of_a_part_in_another_file_counts() {
        check_files(&[
            (
                "attention.py",
                "
import torch
import torch.nn as nn
class CausalAttention(nn.Module):
    def __init__(self, dim, block):
        super().__init__()
        self.qkv = nn.Linear(dim, 3 * dim)
        self.bias = torch.tril(torch.ones(block, block))  # ~ unregistered-tensor-state
    def forward(self, x):
        T = x.shape[1]
        q, k, v = self.qkv(x).chunk(3, -1)
        a = (q @ k.transpose(-2, -1)).masked_fill(self.bias[:T, :T] == 0, -1e9)
        return a.softmax(-1) @ v
",
            ),
            (
                "gpt.py",
                "
import torch.nn as nn
from attention import CausalAttention
class GPT(nn.Module):
    def __init__(self, n, dim, block):
        super().__init__()
        self.h = nn.ModuleList([CausalAttention(dim, block) for _ in range(n)])
        self.ln = nn.LayerNorm(dim)
    def forward(self, x):
        for b in self.h:
            x = x + b(x)
        return self.ln(x)
",
            ),
            (
                "train.py",
                r#"
import torch
from torch.nn import DataParallel
from gpt import GPT
model = GPT(2, 32, 16).to("cuda")
model = DataParallel(model)
opt = torch.optim.AdamW(model.parameters())
for _ in range(10):
    loss = model(torch.randn(8, 16, 32, device="cuda")).pow(2).mean()
    opt.zero_grad()
    loss.backward()
    opt.step()
"#,
            ),
        ]);
    }
}
