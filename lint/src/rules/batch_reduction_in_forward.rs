use rustc_hash::FxHashMap;

use crate::analysis::facts::Wrapper;
use crate::analysis::models::RanIn;
use crate::analysis::{
    ArgumentValue, Event, Forward, FunctionRef, ObjectClass, ObjectId, Term, TermKind, Value, Via,
};
use crate::model::{
    Argument, BinaryOp, Expr, ExprKind, Function, Literal, Parameter, ParameterKind, Part, Stmt,
    StmtKind,
};
use crate::prelude::*;
use crate::table::Role;

declare_rule! {
    /// Forward takes its part of the batch for the whole, under `DataParallel`.
    ///
    /// `DataParallel` splits each tensor along its first dimension and copies everything else to
    /// all replicas. A hidden state of a recurrent layer is split over its layers (`Expected
    /// hidden size (2, 16, 128), got (1, 32, 128)`); lengths in a Python list come whole; padded
    /// outputs have another length on each replica; a mean or a comparison over the batch sees
    /// the samples of one device.
    ///
    /// ```python bad
    /// import torch
    /// import torch.nn as nn
    ///
    ///
    /// class Net(nn.Module):
    ///     def __init__(self):
    ///         super().__init__()
    ///         self.rnn = nn.GRU(8, 8, 2, batch_first=True)
    ///
    ///     def forward(self, x, h):
    ///         return self.rnn(x, h)
    ///
    ///
    /// model = nn.DataParallel(Net())
    /// h = torch.zeros(2, 32, 8)
    /// for x in []:
    ///     y, h = model(x, h)  # ~ batch-reduction-in-forward
    /// ```
    /// ```python good
    /// import torch
    /// import torch.nn as nn
    ///
    ///
    /// class Net(nn.Module):
    ///     def __init__(self):
    ///         super().__init__()
    ///         self.rnn = nn.GRU(8, 8, 2, batch_first=True)
    ///
    ///     def forward(self, x, h):
    ///         y, h = self.rnn(x, h.transpose(0, 1).contiguous())
    ///         return y, h.transpose(0, 1).contiguous()
    ///
    ///
    /// model = nn.DataParallel(Net())
    /// h = torch.zeros(32, 2, 8)
    /// for x in []:
    ///     y, h = model(x, h)
    /// ```
    /// ```rust bad
    /// use tch::{nn, Device, Kind, Tensor};
    /// use tch_ddp::DataParallel;
    ///
    /// struct Centred(nn::Linear);
    ///
    /// impl Centred {
    ///     fn forward(&self, x: &Tensor) -> Tensor {
    ///         x - x.mean_dim([0i64].as_slice(), true, Kind::Float) //~ batch-reduction-in-forward
    ///     }
    /// }
    ///
    /// fn main() -> anyhow::Result<()> {
    ///     let devices = [Device::Cuda(0), Device::Cuda(1)];
    ///     let net = |p: &nn::Path| Centred(nn::linear(p / "fc", 4, 4, Default::default()));
    ///     let parallel = DataParallel::new(&devices, net)?;
    ///     let x = Tensor::read_npy("x.npy")?;
    ///     parallel.run(&[&x], |m, xs| m.forward(&xs[0]))?;
    ///     Ok(())
    /// }
    /// ```
    /// ```rust good
    /// use tch::{nn, Device, Kind, Tensor};
    /// use tch_ddp::DataParallel;
    ///
    /// struct Centred(nn::Linear);
    ///
    /// impl Centred {
    ///     fn forward(&self, x: &Tensor) -> Tensor {
    ///         x - x.mean_dim([-1i64].as_slice(), true, Kind::Float)
    ///     }
    /// }
    ///
    /// fn main() -> anyhow::Result<()> {
    ///     let devices = [Device::Cuda(0), Device::Cuda(1)];
    ///     let net = |p: &nn::Path| Centred(nn::linear(p / "fc", 4, 4, Default::default()));
    ///     let parallel = DataParallel::new(&devices, net)?;
    ///     let x = Tensor::read_npy("x.npy")?;
    ///     parallel.run(&[&x], |m, xs| m.forward(&xs[0]))?;
    ///     Ok(())
    /// }
    /// ```
    ///
    /// # Known limits
    /// Under `DistributedDataParallel` each process has a whole batch of its own: silent.
    pub static RULE = {
        name: "batch-reduction-in-forward",
        level: Level::Warning,
        harm: Harm::Wrong,
        tier: 2,
        languages: BOTH,
        fix: FixKind::No,
        check,
    };
}

const WHY_SPLIT: &str =
    "`DataParallel` splits every tensor along its first dimension, which must be the batch";

/// Modules are followed this deep into one another.
const DEPTH_MAX: u32 = 3;

fn check(program: &Program<'_>, report: &mut Report<'_>) {
    if program.language == Language::Rust {
        return check_tch(program, report);
    }
    for (event, forward) in program.forwards() {
        let Via::Wrapper(wrapper) = forward.via else { continue };
        if program.wrapper_kind(wrapper) == Some(Wrapper::Dp) && splits_first(program, wrapper) {
            check_arguments(program, report, event, forward, wrapper);
        }
    }
    for (wrapper, parts) in program.wrapped_models(Wrapper::Dp) {
        for (position, &part) in parts.iter().enumerate() {
            check_part(program, report, wrapper, part, position == 0);
        }
    }
}

/// tch-ddp's `DataParallel`: what its closure and the model's methods do with a part of the batch.
fn check_tch(program: &Program<'_>, report: &mut Report<'_>) {
    for (event, forward) in program.forwards() {
        if let Via::Wrapper(wrapper) = forward.via
            && program.wrapper_kind(wrapper) == Some(Wrapper::Dp)
        {
            check_states(program, report, event, wrapper);
        }
    }
    for (wrapper, parts) in program.wrapped_models(Wrapper::Dp) {
        let Some(&part) = parts.first() else { continue };
        for (function, is_entry) in run_through(program, wrapper, part) {
            let definition = program.function(function);
            let locals = Locals::of(definition);
            let code = Code { program, part, function, definition, locals, wrapper };
            check_reductions_of_tch(&code, report, is_entry);
        }
    }
}

/// The methods of a model that ran inside its wrapper's forward, and whether the wrapper called
/// them itself.
fn run_through(program: &Program<'_>, wrapper: ObjectId, part: Term) -> Vec<(FunctionRef, bool)> {
    let class = program.object_of(part).and_then(|o| program.class_of(o));
    let mut found: Vec<(FunctionRef, bool)> = Vec::new();
    for event in program.events().iter().filter(|e| e.modes.wrapper == Some(wrapper)) {
        let frame = program.frame(event.frame);
        let (Some(function), true) = (frame.function, frame.class == class) else { continue };
        let is_inner = frame.caller.is_some_and(|id| program.frame(id).class == class);
        if class.is_some() && !found.iter().any(|(known, _)| *known == function) {
            found.push((function, !is_inner));
        }
    }
    found
}

/// States of recurrent layers that the wrapper splits over their layers.
fn check_states(
    program: &Program<'_>,
    report: &mut Report<'_>,
    event: &Event<'_>,
    wrapper: ObjectId,
) {
    let Some(module) = program.wrapped_module(wrapper).and_then(Value::single) else { return };
    let Some(class) = program.object_of(module).and_then(|o| program.class_of(o)) else { return };
    let Some(ExprKind::Call { arguments, .. }) = event.expr.map(|e| &e.kind) else { return };
    let [inputs, closure] = arguments.as_slice() else { return };
    let ExprKind::Collection { items, .. } = &inputs.value.kind else { return };
    let ExprKind::Lambda(closure) = &closure.value.kind else { return };
    let closure = program.project().file(event.site.file).module.function(*closure);
    let Some(parts) = closure.parameters.get(1).map(|p| p.name) else { return };
    each_call(&closure.body, &mut |_, callee, given| {
        let ExprKind::Attribute { name, .. } = &callee.kind else { return };
        let member = program.class_member(class, name).map(|t| program.terms().kind(t));
        let Some(TermKind::Function { function, .. }) = member else { return };
        let definition = program.function(*function);
        let taken = definition.parameters.iter().filter(|p| &*p.name != "self");
        for (parameter, argument) in taken.zip(given) {
            let Some(item) = part_of(&argument.value, parts).and_then(|i| items.get(i)) else {
                continue;
            };
            let Some(met) = state_met(program, module, definition, parameter.name) else {
                continue;
            };
            let text = program.text(Site { file: event.site.file, span: item.span });
            let text = text.trim_start_matches('&');
            report
                .at(event.site, format!("the hidden state `{text}` is split over its layers"))
                .harm(Harm::Crash)
                .why(WHY_SPLIT)
                .help(
                    "pass it with the batch first, and transpose it in forward: \
                     `h.transpose(0, 1).contiguous()`",
                )
                .related(
                    Site { file: function.file, span: met },
                    "the recurrent layer takes it as it came",
                )
                .related(program.object(wrapper).site, "wrapped here");
        }
    });
}

/// `1` of `xs[1]`.
fn part_of(expr: &Expr, parts: Name) -> Option<usize> {
    let ExprKind::Index { value, index } = &expr.kind else { return None };
    let is_it = matches!(&value.kind, ExprKind::Name(name) if *name == parts);
    match index.literal() {
        Some(Literal::Int(index)) if is_it => usize::try_from(*index).ok(),
        _ => None,
    }
}

/// Where a recurrent layer of the model takes a parameter for its state, never transposed.
fn state_met(
    program: &Program<'_>,
    module: Term,
    definition: &Function,
    parameter: Name,
) -> Option<Span> {
    let locals = Locals::of(definition);
    let mut met = None;
    let mut transposes = false;
    each_call(&definition.body, &mut |expr, callee, arguments| {
        let ExprKind::Attribute { value, name, .. } = &callee.kind else { return };
        let moves = matches!(&**name, "transpose" | "permute" | "swapaxes" | "swapdims" | "select");
        transposes |= moves && locals.comes_from(value, parameter);
        let takes_state = matches!(&**name, "seq_init" | "step") && arguments.len() == 2;
        let layer = own_module(program, module, value);
        if takes_state
            && layer.is_some_and(|layer| is_recurrent(program, layer))
            && locals.comes_from(&arguments[1].value, parameter)
        {
            met = met.or(Some(expr.span));
        }
    });
    met.filter(|_| !transposes)
}

/// As `check_reductions`, in methods of tch tensors.
fn check_reductions_of_tch(code: &Code<'_, '_>, report: &mut Report<'_>, is_entry: bool) {
    each_expr(&code.definition.body, &mut |expr| {
        let ExprKind::Call { callee, arguments } = &expr.kind else { return };
        let ExprKind::Attribute { value, name, .. } = &callee.kind else { return };
        let Some(first) = arguments.first().map(|a| &a.value) else { return };
        let reduces = matches!(&**name, "mean_dim" | "std_dim" | "var_dim" | "median_dim");
        if reduces && is_first_dim(first) && is_rows(code, value, is_entry, 8) {
            tell_reduced(code, report, expr, value);
        }
        let Some(right) = transposed(first).filter(|_| matches!(&**name, "matmul" | "mm")) else {
            return;
        };
        if is_rows(code, value, is_entry, 8) && is_rows(code, right, is_entry, 8) {
            tell_compared(code, report, expr);
        }
    });
}

fn tell_reduced(code: &Code<'_, '_>, report: &mut Report<'_>, expr: &Expr, of: &Expr) {
    let text = code.program.text(code.site(of.span));
    report
        .at(code.site(expr.span), format!("`{text}` is reduced over one replica's samples"))
        .why("each replica sees its part of the batch: the result differs from one device's")
        .help("return the samples' own values, and reduce outside the model")
        .related(code.wrapped_at(), "the model is wrapped here");
}

fn tell_compared(code: &Code<'_, '_>, report: &mut Report<'_>, expr: &Expr) {
    report
        .at(code.site(expr.span), "samples are compared with those of one replica only")
        .why("each replica sees its part of the batch: the other parts' samples are missing")
        .help("return the features, and compare them outside the model")
        .related(code.wrapped_at(), "the model is wrapped here");
}

/// `0`, `[0]`, `[0i64].as_slice()`, `Some(&[0])`.
fn is_first_dim(expr: &Expr) -> bool {
    match &expr.kind {
        ExprKind::Literal(Literal::Int(0)) => true,
        ExprKind::Collection { items, .. } => {
            matches!(items.as_slice(), [item] if is_first_dim(item))
        }
        ExprKind::Call { callee, arguments } => match (&callee.kind, arguments.as_slice()) {
            (ExprKind::Attribute { value, name, .. }, []) => {
                matches!(&**name, "as_slice" | "as_ref") && is_first_dim(value)
            }
            (ExprKind::Name(name), [given]) => &**name == "Some" && is_first_dim(&given.value),
            _ => false,
        },
        _ => false,
    }
}

/// `x` of `x.tr()`, `x.t_copy()`, `x.transpose(0, 1)`.
fn transposed(expr: &Expr) -> Option<&Expr> {
    let ExprKind::Call { callee, arguments } = &expr.kind else { return None };
    let ExprKind::Attribute { value, name, .. } = &callee.kind else { return None };
    let swaps = arguments.len() == 2
        && arguments.iter().all(|a| matches!(a.value.literal(), Some(Literal::Int(0 | 1))));
    match &**name {
        "tr" | "t_copy" if arguments.is_empty() => Some(value),
        "transpose" if swaps => Some(value),
        _ => None,
    }
}

/// As `is_batch`, of tch: a name counts as it was last set above.
fn is_rows(code: &Code<'_, '_>, expr: &Expr, is_entry: bool, depth: u32) -> bool {
    let again = |e: &Expr| depth > 0 && is_rows(code, e, is_entry, depth - 1);
    let is_plain = |layer: &Expr| {
        own_module(code.program, code.part, layer).is_some_and(|layer| {
            let object = code.program.object_of(layer);
            object.is_some_and(|o| matches!(o.role, Role::Layer | Role::Sequential))
                && !is_recurrent(code.program, layer)
        })
    };
    match &expr.kind {
        ExprKind::Name(name) => {
            let set = code.locals.set.get(name).map(Vec::as_slice).unwrap_or_default();
            match set.iter().rfind(|(_, value)| value.span.end <= expr.span.start) {
                Some((_, value)) => again(value),
                None => is_entry && code.definition.parameters.iter().any(|p| p.name == *name),
            }
        }
        ExprKind::Call { callee, arguments } => {
            let ExprKind::Attribute { value, name, .. } = &callee.kind else { return false };
            let first = arguments.first().map(|a| &a.value);
            match &**name {
                "apply" | "apply_t" => first.is_some_and(is_plain) && again(value),
                "forward" | "forward_t" => is_plain(value) && first.is_some_and(again),
                "relu" | "gelu" | "silu" | "tanh" | "sigmoid" | "dropout" | "to_kind"
                | "shallow_clone" | "leaky_relu" | "elu" => again(value),
                _ => false,
            }
        }
        _ => false,
    }
}

/// The wrapper splits along dimension 0.
fn splits_first(program: &Program<'_>, wrapper: ObjectId) -> bool {
    let call = program.constructor(program.object(wrapper));
    call.is_some_and(|call| match call.argument("dim") {
        crate::analysis::Given::Known(dim) => {
            dim.value.single().is_some_and(|t| program.terms().as_int(t) == Some(0))
        }
        given => given.is_absent(),
    })
}

/// What the wrapped model is given.
fn check_arguments(
    program: &Program<'_>,
    report: &mut Report<'_>,
    event: &Event<'_>,
    forward: &Forward<'_>,
    wrapper: ObjectId,
) {
    let Some(module) = program.wrapped_module(wrapper).and_then(Value::single) else { return };
    let Some((_, definition)) = forward_of(program, module) else { return };
    for (parameter, argument) in filled(definition, &forward.arguments) {
        let text = program.text(Site { file: event.site.file, span: argument.expr.span });
        let text = if text.len() < 40 { text } else { &parameter.name };
        let is_none = argument.value.terms().all(|t| t == program.terms().none);
        if is_none || argument.spread {
            continue;
        }
        let hidden = met_by(program, module, parameter.name, Meets::Hidden, DEPTH_MAX);
        let draft = if let Some(met) = hidden {
            report
                .at(event.site, format!("the hidden state `{text}` is split over its layers"))
                .harm(Harm::Crash)
                .why(WHY_SPLIT)
                .help(
                    "pass it with the batch first, and transpose it in forward: \
                     `h.transpose(0, 1).contiguous()`",
                )
                .related(met, "the recurrent layer takes it as it came")
        } else if is_list_of_numbers(program, event, argument) {
            let met = met_by(program, module, parameter.name, Meets::Lengths, DEPTH_MAX);
            let Some(met) = met else { continue };
            report
                .at(event.site, format!("`{text}` is a list: every replica gets all of it"))
                .why("`DataParallel` splits tensors only; the lengths do not fit a replica's part")
                .help(format!("pass a tensor: `torch.as_tensor({text})`"))
                .related(met, "used as the lengths of the batch here")
        } else {
            continue;
        };
        draft.related(program.object(wrapper).site, "wrapped here");
    }
}

/// The forward of a module, where it is the project's.
fn forward_of<'p>(program: &Program<'p>, module: Term) -> Option<(FunctionRef, &'p Function)> {
    let class = program.class_of(program.object_of(module)?)?;
    match *program.terms().kind(program.class_member(class, "forward")?) {
        TermKind::Function { function, .. } => Some((function, program.function(function))),
        _ => None,
    }
}

/// The parameters behind `self` that arguments fill.
fn filled<'f, 'p>(
    definition: &'f Function,
    arguments: &'f [ArgumentValue<'p>],
) -> impl Iterator<Item = (&'f Parameter, &'f ArgumentValue<'p>)> {
    let parameters = definition.parameters.iter().skip(1).enumerate();
    parameters.filter_map(move |(position, parameter)| {
        let is_plain = parameter.kind == ParameterKind::Positional;
        let fills = |a: &&ArgumentValue<'p>| {
            a.name == Some(parameter.name) || is_plain && a.position == Some(position)
        };
        Some((parameter, arguments.iter().find(fills)?))
    })
}

fn is_list_of_numbers(
    program: &Program<'_>,
    event: &Event<'_>,
    argument: &ArgumentValue<'_>,
) -> bool {
    let made = argument.value.single().is_some_and(|t| {
        let is_list = match program.terms().kind(t) {
            TermKind::Tuple(items) => !items.is_empty(),
            _ => program.object_of(t).is_some_and(|o| o.class == ObjectClass::List),
        };
        is_list
            && !program.contents(t).iter().flat_map(Value::terms).any(|item| {
                program.is_tensor(item) || matches!(program.terms().kind(item), TermKind::Tuple(_))
            })
    });
    let caller = program.frame(event.frame).function.map(|f| program.function(f));
    let locals = caller.map(Locals::of).unwrap_or_default();
    made || is_list_expr(argument.expr, &locals, 3)
        || caller.is_some_and(|caller| is_collated_list(program, event, caller, argument.expr))
}

/// `[len(s) for s in texts]`, `sizes.tolist()`, `list(map(len, texts))`, or a name for one.
fn is_list_expr(expr: &Expr, locals: &Locals<'_>, depth: u32) -> bool {
    let counts = |e: &Expr| {
        let ExprKind::Call { callee, .. } = &e.kind else { return false };
        callee.last_name().is_some_and(|n| matches!(&*n, "len" | "int" | "size" | "item"))
    };
    match &expr.kind {
        ExprKind::Name(name) => locals.set.get(name).is_some_and(|set| {
            depth > 0 && set.iter().all(|(_, value)| is_list_expr(value, locals, depth - 1))
        }),
        ExprKind::Comprehension { element, .. } => counts(element),
        ExprKind::Call { callee, arguments } => {
            let first = arguments.first().map(|a| &a.value);
            let maps_len = |e: &Expr| match &e.kind {
                ExprKind::Call { callee, arguments } => {
                    callee.last_name().is_some_and(|n| &*n == "map")
                        && arguments
                            .first()
                            .and_then(|a| a.value.last_name())
                            .is_some_and(|n| &*n == "len")
                }
                _ => false,
            };
            match callee.last_name().as_deref() {
                Some("tolist") => arguments.is_empty(),
                Some("list") => {
                    first.is_some_and(|e| maps_len(e) || is_list_expr(e, locals, depth))
                }
                Some("sorted") => first.is_some_and(|e| is_list_expr(e, locals, depth)),
                _ => false,
            }
        }
        _ => false,
    }
}

/// An item of a loader whose collate function makes a list at that position.
fn is_collated_list(
    program: &Program<'_>,
    event: &Event<'_>,
    caller: &Function,
    expr: &Expr,
) -> bool {
    let ExprKind::Name(name) = &expr.kind else { return false };
    let Some(position) = position_in_loop(&caller.body, event.site.span, *name) else {
        return false;
    };
    let collates = |call: &crate::analysis::Call<'_>| {
        let function = call.argument("collate_fn").known()?.value.single()?;
        match *program.terms().kind(function) {
            TermKind::Function { function, .. } => Some(program.function(function)),
            _ => None,
        }
    };
    let mut loaders = program.calls(Role::Loader).map(|(_, call)| call).peekable();
    loaders.peek().is_some()
        && loaders.all(|call| {
            collates(call).is_some_and(|definition| {
                let locals = Locals::of(definition);
                let mut listed = false;
                each_return(&definition.body, &mut |value| {
                    if let ExprKind::Collection { items, .. } = &value.kind {
                        let item = items.get(position);
                        listed |= item.is_some_and(|e| is_list_expr(e, &locals, 3));
                    }
                });
                listed
            })
        })
}

/// Which part of the item of the loop around a place a name is: 1 for `b` in `for a, b in ..`.
fn position_in_loop(body: &[Stmt], at: Span, name: Name) -> Option<usize> {
    body.iter().filter(|s| s.span.contains(at)).find_map(|statement| {
        let mut found = None;
        statement.each_part(&mut |part| match part {
            Part::Block(body) => found = found.or_else(|| position_in_loop(body, at, name)),
            Part::Target(target) if matches!(statement.kind, StmtKind::Loop { .. }) => {
                let ExprKind::Collection { items, .. } = &target.kind else { return };
                // `for i, (a, b) in enumerate(loader)`
                let inner = items.iter().find_map(|item| match &item.kind {
                    ExprKind::Collection { items, .. } => Some(items),
                    _ => None,
                });
                let is_it = |e: &Expr| matches!(&e.kind, ExprKind::Name(n) if *n == name);
                found = found.or_else(|| inner.unwrap_or(items).iter().position(is_it));
            }
            _ => {}
        });
        found
    })
}

/// What a parameter of a forward may come to be.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Meets {
    /// The hidden state of a recurrent layer.
    Hidden,
    /// The lengths of padded sequences.
    Lengths,
}

/// Where a forward hands its parameter on, as it came, as that.
fn met_by(
    program: &Program<'_>,
    module: Term,
    parameter: Name,
    meets: Meets,
    depth: u32,
) -> Option<Site> {
    let (function, definition) = forward_of(program, module)?;
    let locals = Locals::of(definition);
    let is_it = |e: &Expr, at: Span| match meets {
        Meets::Hidden => is_still(e, parameter, &locals, at),
        Meets::Lengths => locals.comes_from(e, parameter),
    };
    let mut met = None;
    each_call(&definition.body, &mut |expr, callee, arguments| {
        if met.is_some() {
            return;
        }
        let here = Site { file: function.file, span: expr.span };
        let packs = callee.last_name().is_some_and(|n| &*n == "pack_padded_sequence");
        if meets == Meets::Lengths && packs {
            let lengths = argument_of(arguments, 1, "lengths");
            met = lengths.filter(|e| is_it(e, expr.span)).map(|_| here);
            return;
        }
        // Each sample with its length: `zip(h, lengths)`.
        if meets == Meets::Lengths && matches!(&callee.kind, ExprKind::Name(n) if &**n == "zip") {
            let lengths = arguments.iter().skip(1).any(|a| is_it(&a.value, expr.span));
            met = lengths.then_some(here);
            return;
        }
        let Some(inner) = own_module(program, module, callee) else { return };
        if meets == Meets::Hidden && is_recurrent(program, inner) {
            let state = argument_of(arguments, 1, "hx");
            met = state.filter(|e| is_it(e, expr.span)).map(|_| here);
            return;
        }
        if depth > 0
            && let Some((_, definition)) = forward_of(program, inner)
        {
            let parameters = definition.parameters.iter().skip(1).enumerate();
            met = parameters.into_iter().find_map(|(position, parameter)| {
                let given = argument_of(arguments, position, &parameter.name)?;
                is_it(given, expr.span)
                    .then(|| met_by(program, inner, parameter.name, meets, depth - 1))?
            });
        }
    });
    met
}

/// The expression is the parameter itself, or a tuple of parameters, not given a new value.
fn is_still(expr: &Expr, parameter: Name, locals: &Locals<'_>, at: Span) -> bool {
    match &expr.kind {
        ExprKind::Name(name) => {
            *name == parameter
                && !locals
                    .set
                    .get(name)
                    .is_some_and(|set| set.iter().any(|(_, value)| value.span.end <= at.start))
        }
        ExprKind::Collection { items, .. } => {
            items.iter().any(|item| is_still(item, parameter, locals, at))
        }
        _ => false,
    }
}

fn argument_of<'a>(arguments: &'a [Argument], position: usize, name: &str) -> Option<&'a Expr> {
    let named = arguments.iter().find(|a| a.name.is_some_and(|n| &*n == name));
    named.or_else(|| arguments.get(position).filter(|a| a.name.is_none())).map(|a| &a.value)
}

/// The module that `self.rnn` is.
fn own_module(program: &Program<'_>, module: Term, callee: &Expr) -> Option<Term> {
    let ExprKind::Attribute { value, name, .. } = &callee.kind else { return None };
    let is_own = matches!(&value.kind, ExprKind::Name(n) if &**n == "self");
    let held = program.attribute_now(module, name).filter(|_| is_own)?.single()?;
    program.is_module(held).then_some(held)
}

fn is_recurrent(program: &Program<'_>, module: Term) -> bool {
    program.object_of(module).and_then(|o| program.outside_class(o)).is_some_and(|name| {
        let kind = name.strip_prefix("torch.nn.").or_else(|| name.strip_prefix("tch.nn."));
        matches!(kind, Some("LSTM" | "GRU" | "RNN"))
    })
}

/// What the names of a function are set to.
#[derive(Default)]
struct Locals<'f> {
    set: FxHashMap<Name, Vec<(Span, &'f Expr)>>,
}

impl<'f> Locals<'f> {
    fn of(definition: &'f Function) -> Self {
        let mut set: FxHashMap<Name, Vec<(Span, &'f Expr)>> = FxHashMap::default();
        each_pair(&definition.body, &mut |target, value| {
            target.each_inside(&mut |e| {
                if let ExprKind::Name(name) = &e.kind {
                    set.entry(*name).or_default().push((target.span, value));
                }
            });
        });
        Self { set }
    }

    /// The expression is computed from a parameter, by way of other names too.
    fn comes_from(&self, expr: &Expr, parameter: Name) -> bool {
        self.comes_from_within(expr, parameter, 4)
    }

    fn comes_from_within(&self, expr: &Expr, parameter: Name, depth: u32) -> bool {
        expr.holds(&mut |e| match &e.kind {
            ExprKind::Name(name) => {
                *name == parameter
                    || depth > 0
                        && self.set.get(name).is_some_and(|set| {
                            set.iter().any(|(_, v)| self.comes_from_within(v, parameter, depth - 1))
                        })
            }
            _ => false,
        })
    }
}

/// Code inside the forward of a model under `DataParallel`.
fn check_part(
    program: &Program<'_>,
    report: &mut Report<'_>,
    wrapper: ObjectId,
    part: Term,
    is_whole: bool,
) {
    let Some(class) = program.object_of(part).and_then(|o| program.class_of(o)) else { return };
    for class in program.lineage(class) {
        let module = &program.project().file(class.file).module;
        for &index in &program.class(class).methods {
            let function = FunctionRef { file: class.file, index };
            if program.ran_in(function) != RanIn::Forward {
                continue;
            }
            let definition = module.function(index);
            let locals = Locals::of(definition);
            let code = Code { program, part, function, definition, locals, wrapper };
            let is_forward = &*definition.name == "forward";
            if is_whole && is_forward {
                check_unpacking(&code, report);
            }
            check_reductions(&code, report, is_whole, is_forward);
        }
    }
}

/// A method of a wrapped module.
struct Code<'a, 'p> {
    program: &'a Program<'p>,
    part: Term,
    function: FunctionRef,
    definition: &'p Function,
    locals: Locals<'p>,
    wrapper: ObjectId,
}

impl Code<'_, '_> {
    fn site(&self, span: Span) -> Site {
        Site { file: self.function.file, span }
    }

    fn wrapped_at(&self) -> Site {
        self.program.object(self.wrapper).site
    }
}

/// `pad_packed_sequence` without `total_length`, whose output is returned.
fn check_unpacking(code: &Code<'_, '_>, report: &mut Report<'_>) {
    each_assignment(&code.definition.body, &mut |target, value| {
        let ExprKind::Call { callee, arguments } = &value.kind else { return };
        let unpacks = callee.last_name().is_some_and(|n| &*n == "pad_packed_sequence");
        let total = argument_of(arguments, 3, "total_length");
        let ExprKind::Collection { items, .. } = &target.kind else { return };
        let Some(Expr { kind: ExprKind::Name(padded), .. }) = items.first() else { return };
        if !unpacks || total.is_some() || !is_returned(code.definition, *padded) {
            return;
        }
        report
            .at(
                code.site(value.span),
                format!("`{padded}` is padded to the longest of one replica"),
            )
            .harm(Harm::Crash)
            .why("the replicas return different lengths, and `DataParallel` cannot join them")
            .help("pass the length of the whole batch: `total_length=x.size(1)`")
            .related(code.wrapped_at(), "the model is wrapped here");
    });
}

/// The name goes out of the function in full length: through layers, not through an index.
fn is_returned(definition: &Function, name: Name) -> bool {
    let mut names = vec![name];
    each_assignment(&definition.body, &mut |target, value| {
        if let ExprKind::Name(target) = &target.kind
            && passes(value, &names)
        {
            names.push(*target);
        }
    });
    let mut returned = false;
    each_return(&definition.body, &mut |value| returned |= passes(value, &names));
    returned
}

fn passes(expr: &Expr, names: &[Name]) -> bool {
    match &expr.kind {
        ExprKind::Name(name) => names.contains(name),
        ExprKind::Collection { items, .. } => items.iter().any(|e| passes(e, names)),
        ExprKind::Binary { left, right, .. } => passes(left, names) || passes(right, names),
        ExprKind::Call { callee, arguments } => {
            let path = callee.path().unwrap_or_default();
            let is_layer = path.len() == 2 && &*path[0] == "self";
            let is_pointwise = path.last().is_some_and(|n| {
                matches!(&**n, "relu" | "tanh" | "sigmoid" | "dropout" | "log_softmax" | "softmax")
            });
            // An attention or pooling layer may take the time away.
            let one = arguments.len() == 1;
            (is_layer && one || is_pointwise) && arguments.iter().any(|a| passes(&a.value, names))
        }
        _ => false,
    }
}

/// Means over the batch, and comparisons of its samples with each other.
fn check_reductions(
    code: &Code<'_, '_>,
    report: &mut Report<'_>,
    is_whole: bool,
    is_forward: bool,
) {
    each_expr(&code.definition.body, &mut |expr| {
        // Further inside the first dimension may be another one.
        if let Some(of) = reduced_over_batch(expr).filter(|_| is_whole)
            && is_batch(code, of, is_forward, 4)
        {
            tell_reduced(code, report, expr, of);
        } else if let Some((left, right)) = product_with_transposed(expr)
            && is_batch(code, left, is_forward, 4)
            && is_batch(code, right, is_forward, 4)
        {
            tell_compared(code, report, expr);
        }
    });
}

/// `x.mean(0)`, `x.std(dim=0)`, `torch.mean(x, 0)`: what is reduced along dimension 0.
fn reduced_over_batch(expr: &Expr) -> Option<&Expr> {
    let ExprKind::Call { callee, arguments } = &expr.kind else { return None };
    let ExprKind::Attribute { value, name, .. } = &callee.kind else { return None };
    if !matches!(&**name, "mean" | "std" | "var" | "median") {
        return None;
    }
    let of_torch = matches!(&value.kind, ExprKind::Name(n) if &**n == "torch");
    let (of, position) = if of_torch { (&arguments.first()?.value, 1) } else { (&**value, 0) };
    let dim = argument_of(arguments, position, "dim")?;
    (dim.literal() == Some(&Literal::Int(0))).then_some(of)
}

/// `a @ b.t()`, `torch.mm(a, b.T)`: the two.
fn product_with_transposed(expr: &Expr) -> Option<(&Expr, &Expr)> {
    let (left, right) = match &expr.kind {
        ExprKind::Binary { op: BinaryOp::MatMul, left, right } => (&**left, &**right),
        ExprKind::Call { callee, arguments } => {
            let path = callee.path()?;
            match (path.first()?.as_str(), path.last()?.as_str(), arguments.as_slice()) {
                ("torch", "mm" | "matmul", [left, right]) => (&left.value, &right.value),
                _ => return None,
            }
        }
        _ => return None,
    };
    let right = match &right.kind {
        ExprKind::Attribute { value, name, .. } if &**name == "T" => value,
        ExprKind::Call { callee, arguments } => match &callee.kind {
            ExprKind::Attribute { value, name, .. } => {
                let swaps = arguments.len() == 2
                    && arguments
                        .iter()
                        .all(|a| matches!(a.value.literal(), Some(Literal::Int(0 | 1))));
                match &**name {
                    "t" if arguments.is_empty() => value,
                    "transpose" if swaps => value,
                    _ => return None,
                }
            }
            _ => return None,
        },
        _ => return None,
    };
    Some((left, right))
}

/// One row for each sample: an input of forward, or what a layer makes of it.
fn is_batch(code: &Code<'_, '_>, expr: &Expr, is_forward: bool, depth: u32) -> bool {
    let again = |e: &Expr| depth > 0 && is_batch(code, e, is_forward, depth - 1);
    match &expr.kind {
        ExprKind::Name(name) => match code.locals.set.get(name) {
            Some(set) => set.iter().all(|(target, value)| {
                target.end - target.start == name.len() as u32 && again(value)
            }),
            None => {
                is_forward && code.definition.parameters.iter().skip(1).any(|p| p.name == *name)
            }
        },
        ExprKind::Call { callee, arguments } => {
            if let Some(layer) = own_module(code.program, code.part, callee) {
                let object = code.program.object_of(layer);
                let is_plain =
                    object.is_some_and(|o| matches!(o.role, Role::Layer | Role::Sequential));
                return is_plain
                    && !is_recurrent(code.program, layer)
                    && arguments.first().is_some_and(|a| again(&a.value));
            }
            let path = callee.path().unwrap_or_default();
            match path.last().map(|n| n.as_str()) {
                Some("normalize" | "relu" | "dropout") if path.len() > 1 => {
                    arguments.first().is_some_and(|a| again(&a.value))
                }
                _ => false,
            }
        }
        _ => false,
    }
}

/// Each assignment, those of `a, b = x, y` one by one.
fn each_pair<'m>(body: &'m [Stmt], each: &mut dyn FnMut(&'m Expr, &'m Expr)) {
    each_assignment(body, &mut |target, value| match (&target.kind, &value.kind) {
        (
            ExprKind::Collection { items: targets, .. },
            ExprKind::Collection { items: values, .. },
        ) if targets.len() == values.len() => {
            targets.iter().zip(values).for_each(|(target, value)| each(target, value));
        }
        _ => each(target, value),
    });
}

fn each_assignment<'m>(body: &'m [Stmt], each: &mut dyn FnMut(&'m Expr, &'m Expr)) {
    for statement in body {
        match &statement.kind {
            StmtKind::Assign { targets, value: Some(value), .. } => {
                for target in targets {
                    each(target, value);
                }
            }
            StmtKind::AugAssign { target, value, .. } => each(target, value),
            _ => statement.each_part(&mut |part| {
                if let Part::Block(body) = part {
                    each_assignment(body, each);
                }
            }),
        }
    }
}

fn each_return<'m>(body: &'m [Stmt], each: &mut dyn FnMut(&'m Expr)) {
    for statement in body {
        match &statement.kind {
            StmtKind::Return(Some(value)) => each(value),
            _ => statement.each_part(&mut |part| {
                if let Part::Block(body) = part {
                    each_return(body, each);
                }
            }),
        }
    }
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

fn each_call<'m>(body: &'m [Stmt], each: &mut dyn FnMut(&'m Expr, &'m Expr, &'m [Argument])) {
    each_expr(body, &mut |expr| {
        if let ExprKind::Call { callee, arguments } = &expr.kind {
            each(expr, callee, arguments);
        }
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_state_of_a_layer_deeper_in_another_file_counts() {
        check_files(&[
            (
                "decoder.py",
                "
from torch import nn
class Decoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.lstm = nn.LSTM(4, 4)
    def forward(self, x, h, c):
        out, (h, c) = self.lstm(x, (h, c))
        return out, h, c
",
            ),
            (
                "main.py",
                "
import torch
from decoder import Decoder
class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.decoder = Decoder()
        self.fc = torch.nn.Linear(4, 4)
    def forward(self, x, state, cell):
        out, state, cell = self.decoder(x, state, c=cell)
        return self.fc(out), state, cell
class Trainer:
    def __init__(self):
        self.net = torch.nn.DataParallel(Model().cuda(), device_ids=[0, 1])
        self.joined = torch.nn.DataParallel(Model().cuda(), dim=1)
    def run(self, batches):
        h, c = torch.zeros(1, 8, 4), torch.zeros(1, 8, 4)
        for x in batches:
            y, h, c = self.net(x, h, c)  # ~ batch-reduction-in-forward: hidden state
            y, h, c = self.joined(x, h, c)
            y, _, _ = self.net(x, None, None)
class Language(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.rnn = torch.nn.LSTM(4, 4)
    def start(self, n):
        return (torch.zeros(1, n, 4), torch.zeros(1, n, 4))
    def forward(self, x, state):
        return self.rnn(x, state)
Trainer().run([])
language = Language()
split = torch.nn.DataParallel(language)
y, state = split(torch.ones(1, 8, 4), language.start(8))  # ~ batch-reduction-in-forward: hidden
",
            ),
        ]);
    }

    #[test]
    fn lengths_as_numbers_count() {
        check_python(
            "
import torch
from torch import nn
from torch.nn.utils.rnn import pack_padded_sequence as pack, pack_padded_sequence
class Encoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.rnn = nn.GRU(4, 4)
    def forward(self, x, lengths):
        sizes = torch.tensor(lengths)
        return self.rnn(pack_padded_sequence(x, sizes, batch_first=True))[1]
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.encoder = Encoder()
    def forward(self, x, lens):
        return self.encoder(x, lens)
model = nn.DataParallel(Net().cuda())
for x, texts in []:
    lens = [len(t) for t in texts]
    model(x, lens).sum().backward()  # ~ batch-reduction-in-forward: `lens` is a list
    model(x, torch.ones(3).long().tolist())  # ~ batch-reduction-in-forward: is a list
    model(x, torch.tensor(lens)).sum().backward()
def collate(rows):
    xs, ys = zip(*rows)
    sizes = sorted([len(x) for x in xs])
    return torch.stack(xs), sizes, torch.tensor(sizes)
def evaluate():
    for i, (x, sizes, exact) in enumerate(torch.utils.data.DataLoader([], 2, collate_fn=collate)):
        model(x.cuda(), sizes)  # ~ batch-reduction-in-forward: `sizes` is a list
        model(x.cuda(), exact)
evaluate()
",
        );
    }

    #[test]
    fn outputs_padded_to_the_part_of_a_replica_count() {
        let program = |more: &str, mark: &str, wrap: &str| {
            format!(
                "
import torch
from torch import nn
from torch.nn.utils import rnn as R
class Tagger(nn.Module):
    def __init__(self):
        super().__init__()
        self.rnn, self.fc = nn.GRU(4, 4), nn.Linear(4, 4)
    def forward(self, x, lengths):
        packed = R.pack_padded_sequence(x, lengths.cpu(), batch_first=True)
        out, _ = self.rnn(packed)
        out, _ = R.pad_packed_sequence(out, batch_first=True{more}){mark}
        scores = self.fc(out)
        return scores
torch.distributed.init_process_group('nccl')
model = {wrap}(Tagger().cuda())
for x, n in []:
    model(x, n).sum().backward()
"
            )
        };
        let mark = "  # ~ batch-reduction-in-forward: padded";
        check_python(&program("", mark, "nn.DataParallel"));
        check_python(&program(", total_length=x.size(1)", "", "nn.DataParallel"));
        check_python(&program("", "", "nn.parallel.DistributedDataParallel"));
    }

    #[test]
    fn means_and_products_over_the_batch_count() {
        check_python(
            "
import torch
import torch.nn.functional as F
class Contrast(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.body, self.text = torch.nn.Linear(4, 4), torch.nn.Linear(4, 4)
        self.weight = torch.nn.Parameter(torch.ones(4, 4))
    def forward(self, a, b):
        a = a - a.mean(0)
        za = F.normalize(self.body(b), dim=1)
        zb = F.normalize(self.text(b), dim=1)
        heads = torch.stack([za, zb]).mean(0)
        weights = self.weight.mean(0) + heads.mean(1)
        return za @ zb.t(), za @ self.weight.t(), weights  # ~ batch-reduction-in-forward: compared
model = torch.nn.DataParallel(Contrast().cuda())
for x, y in []:
    model(x, y)[0].sum().backward()
",
        );
    }

    #[test]
    fn a_centre_of_the_input_counts() {
        check_python(
            "
import torch
class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = torch.nn.Linear(4, 4)
    def forward(self, x):
        y = self.fc(x)
        spread = torch.std(y, dim=0)  # ~ batch-reduction-in-forward: `y`
        return y, x.mean(dim=0)  # ~ batch-reduction-in-forward: `x`
model = torch.nn.DataParallel(Net().cuda())
for x in []:
    model(x)[0].sum().backward()
",
        );
    }

    #[test]
    fn attention_and_other_dimensions_are_silent() {
        check_python(
            "
import torch
class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.q, self.k = torch.nn.Linear(4, 4), torch.nn.Linear(4, 4)
        self.rnn = torch.nn.GRU(4, 4)
    def forward(self, x, h, sizes):
        q, k = self.q(x), self.k(x)
        att = (q @ k.transpose(-2, -1)).softmax(-1).mean(1)
        h = h.permute(1, 0, 2)
        y, h = self.rnn(x, h)
        return att, y[0].mean(0), h.permute(1, 0, 2), torch.zeros(sizes)
model = torch.nn.DataParallel(Net().cuda())
for x, h in []:
    model(x, h, [4, 4])[0].sum().backward()
",
        );
    }

    #[test]
    fn lengths_that_a_collate_function_lists_count() {
        check_files(&[
            (
                "data.py",
                "
import torch
def collate(samples):
    toks = torch.nn.utils.rnn.pad_sequence([s[0] for s in samples], batch_first=True)
    sizes = [len(s[0]) for s in samples]
    return toks, sizes, torch.stack([s[1] for s in samples])
",
            ),
            (
                "net.py",
                "
import torch
from torch import nn
class Tagger(nn.Module):
    def __init__(self):
        super().__init__()
        self.e = nn.Embedding(99, 8)
        self.o = nn.Linear(8, 2)
    def forward(self, toks, sizes):
        h = self.e(toks)
        pooled = []
        for row, n in zip(h, sizes):
            pooled.append(row[:n].mean(0))
        return self.o(torch.stack(pooled))
",
            ),
            (
                "main.py",
                r#"
import torch
from torch import nn
from torch.utils.data import DataLoader
from data import collate
from net import Tagger
def main():
    ds = [(torch.randint(99, (i % 7 + 1,)), torch.tensor(i % 2)) for i in range(100)]
    loader = DataLoader(ds, batch_size=10, collate_fn=collate, shuffle=True)
    net = nn.DataParallel(Tagger()).cuda()
    opt = torch.optim.Adam(net.parameters())
    for epoch in range(3):
        for toks, sizes, y in loader:
            out = net(toks.cuda(), sizes)  # ~ batch-reduction-in-forward
            loss = nn.functional.cross_entropy(out, y.cuda())
            opt.zero_grad()
            loss.backward()
            opt.step()
if __name__ == "__main__":
    main()
"#,
            ),
        ]);
    }

    #[test]
    fn two_encoders_in_one_assignment_count() {
        check_python(
            r#"
import torch
import torch.nn as nn
class DualEncoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.text = nn.Linear(30, 16)
        self.image = nn.Linear(40, 16)
    def forward(self, t, i):
        zt, zi = self.text(t), self.image(i)
        sim = zt @ zi.t()  # ~ batch-reduction-in-forward
        return sim
def main():
    net = nn.DataParallel(DualEncoder()).cuda()
    opt = torch.optim.AdamW(net.parameters())
    for _ in range(100):
        s = net(torch.randn(64, 30).cuda(), torch.randn(64, 40).cuda())
        y = torch.arange(s.shape[1], device=s.device)
        loss = nn.functional.cross_entropy(s, y)
        opt.zero_grad()
        loss.backward()
        opt.step()
if __name__ == "__main__":
    main()
"#,
        );
    }

    #[test]
    fn comparisons_after_the_wrapper_has_gathered_are_silent() {
        check_python(
            r#"
import torch
import torch.nn as nn
class DualEncoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.text = nn.Linear(30, 16)
        self.image = nn.Linear(40, 16)
    def forward(self, t, i):
        return self.text(t), self.image(i)
def contrast(zt, zi):
    scores = (zt - zt.mean(0)) @ zi.t()
    return nn.functional.cross_entropy(scores, torch.arange(len(zt), device=zt.device))
def main():
    net = nn.DataParallel(DualEncoder()).cuda()
    opt = torch.optim.AdamW(net.parameters())
    for _ in range(100):
        zt, zi = net(torch.randn(64, 30).cuda(), torch.randn(64, 40).cuda())
        opt.zero_grad()
        contrast(zt, zi).backward()
        opt.step()
if __name__ == "__main__":
    main()
"#,
        );
    }
}
