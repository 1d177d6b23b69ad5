use crate::analysis::facts::Wrapper;
use crate::analysis::{
    ClassRef, Const, Event, EventKind, ObjectClass, ObjectId, Term, TermKind, Value,
};
use crate::model::{Class, Expr, ExprKind, Field};
use crate::prelude::*;
use crate::table::Role;

declare_rule! {
    /// A module's forward returns something that is not a tensor.
    ///
    /// `DataParallel` gathers what the replicas return: tensors, and tuples, lists and dicts of
    /// them. A string, a number or an object of one's own fails in `gather` (`TypeError: ..
    /// object is not iterable`), and a number per replica comes back as a vector. Under
    /// `DistributedDataParallel` each rank keeps its own output; only with
    /// `find_unused_parameters=True` must the wrapper find the tensors in it.
    ///
    /// In Rust `#[data_parallel]` on the `impl` rejects such outputs at compile time.
    ///
    /// ```python bad
    /// import torch.nn as nn
    ///
    ///
    /// class Net(nn.Module):
    ///     def __init__(self):
    ///         super().__init__()
    ///         self.fc = nn.Linear(8, 8)
    ///
    ///     def forward(self, x):
    ///         return self.fc(x), "logits"  # ~ non-tensor-forward-output
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
    ///     def forward(self, x):
    ///         return self.fc(x), x
    ///
    ///
    /// model = nn.DataParallel(Net())
    /// ```
    /// ```rust bad
    /// use tch::{Tensor, nn};
    ///
    /// struct Net { fc: nn::Linear }
    ///
    /// impl Net {
    ///     fn new(p: &nn::Path) -> Net { Net { fc: nn::linear(p, 2, 2, Default::default()) } }
    ///     fn forward(&self, x: &Tensor) -> (Tensor, String) {
    ///         (x.apply(&self.fc), "logits".to_string()) //~ non-tensor-forward-output
    ///     }
    /// }
    ///
    /// fn main() {
    ///     let devices = [tch::Device::Cpu, tch::Device::Cpu];
    ///     let parallel = tch_ddp::DataParallel::new(&devices, |p| Net::new(p)).unwrap();
    ///     let x = Tensor::new();
    ///     parallel.run(&[&x], |m, xs| m.forward(&xs[0])).unwrap();
    /// }
    /// ```
    /// ```rust good
    /// use tch::{Tensor, nn};
    ///
    /// struct Net { fc: nn::Linear }
    ///
    /// impl Net {
    ///     fn new(p: &nn::Path) -> Net { Net { fc: nn::linear(p, 2, 2, Default::default()) } }
    ///     fn forward(&self, x: &Tensor) -> (Tensor, Option<Tensor>) {
    ///         (x.apply(&self.fc), None)
    ///     }
    /// }
    ///
    /// fn main() {
    ///     let devices = [tch::Device::Cpu, tch::Device::Cpu];
    ///     let parallel = tch_ddp::DataParallel::new(&devices, |p| Net::new(p)).unwrap();
    ///     let x = Tensor::new();
    ///     parallel.run(&[&x], |m, xs| m.forward(&xs[0])).unwrap();
    /// }
    /// ```
    ///
    /// # Known limits
    /// Values that are not seen to be anything else are taken for tensors.
    pub static RULE = {
        name: "non-tensor-forward-output",
        level: Level::Error,
        harm: Harm::Crash,
        tier: 1,
        languages: BOTH,
        fix: FixKind::No,
        check,
    };
}

fn check(program: &Program<'_>, report: &mut Report<'_>) {
    for event in program.events() {
        let EventKind::Return { value } = &event.kind else { continue };
        if event.modes.forward != Some(event.frame) {
            continue;
        }
        let Some((wrapper, kind)) = program.wrapper_around(event) else { continue };
        if !is_outermost(program, event, wrapper) || !gathers(program, wrapper, kind) {
            continue;
        }
        let odd = odd_part(program, value, kind, 3).or_else(|| odd_by_type(program, event));
        let Some(what) = odd else { continue };
        let message = format!("forward returns {what}, not only tensors");
        let draft = report.at(event.site, message);
        let draft = match kind {
            Wrapper::Dp => draft
                .why("`DataParallel` gathers the outputs of its replicas, and gathers only tensors")
                .help("return tensors, or tuples, lists and dicts of them; make the rest outside"),
            Wrapper::Ddp => draft
                .why("`find_unused_parameters` looks for tensors in the output, and finds none")
                .help("return tensors, or tuples, lists, dicts and dataclasses of them"),
        };
        draft.related(program.object(wrapper).site, "wrapped here");
    }
}

/// What of a declared type is no tensor: `Result<(Tensor, usize)>`.
fn odd_by_type(program: &Program<'_>, event: &Event<'_>) -> Option<String> {
    let function = program.frame(event.frame).function?;
    let declared = program.function(function).returns.as_ref()?;
    if program.language != Language::Rust {
        return None;
    }
    odd_type(program, function.file, declared).map(str::to_owned)
}

fn odd_type(program: &Program<'_>, file: FileId, declared: &Expr) -> Option<&'static str> {
    let again = |e: &Expr| odd_type(program, file, e);
    match &declared.kind {
        ExprKind::Collection { items, .. } => items.iter().find_map(again),
        ExprKind::Index { value, index } => {
            let text = program.text(Site { file, span: index.span });
            let is_tuple = text.starts_with('(') && text.ends_with(')');
            match (&*value.last_name()?, &index.kind) {
                // The error is no output.
                ("Result", ExprKind::Collection { items, .. }) if !is_tuple => {
                    again(items.first()?)
                }
                ("Result" | "Option" | "Vec" | "Box", _) => again(index),
                _ => None,
            }
        }
        _ => match &*declared.last_name()? {
            "String" | "str" => Some("a string"),
            "bool" | "f32" | "f64" | "i32" | "i64" | "u32" | "u64" | "usize" => Some("a number"),
            _ => None,
        },
    }
}

/// The forward that the wrapper itself calls, not that of a module inside.
fn is_outermost(program: &Program<'_>, event: &Event<'_>, wrapper: ObjectId) -> bool {
    let Some(module) = program.wrapped_module(wrapper) else { return false };
    let receiver = program.frame(event.frame).receiver;
    receiver.is_some_and(|r| module.terms().any(|t| t == r))
}

/// The wrapper looks into the output.
fn gathers(program: &Program<'_>, wrapper: ObjectId, kind: Wrapper) -> bool {
    let object = program.object(wrapper);
    let is_on = |value: &Value| value.single() == Some(program.terms().yes);
    kind == Wrapper::Dp
        || object.arguments.iter().any(|a| {
            let option = |t: Term| program.attribute_now(t, "find_unused_parameters");
            match a.name.as_deref() {
                Some("find_unused_parameters") => is_on(&a.value),
                Some("options") => a.value.single().and_then(option).is_some_and(is_on),
                _ => false,
            }
        })
}

/// What in an output is no tensor.
fn odd_part(program: &Program<'_>, value: &Value, kind: Wrapper, depth: u32) -> Option<String> {
    value.terms().find_map(|term| odd_term(program, term, kind, depth))
}

fn odd_term(program: &Program<'_>, term: Term, kind: Wrapper, depth: u32) -> Option<String> {
    if depth == 0 {
        return None;
    }
    match program.terms().kind(term) {
        TermKind::Const(Const::Str(_)) | TermKind::Text(_) => Some("a string".to_owned()),
        TermKind::Const(Const::Int(_) | Const::Float(_) | Const::Bool(_))
            if kind == Wrapper::Dp || program.language == Language::Rust =>
        {
            Some("a number".to_owned())
        }
        TermKind::Tuple(parts) => parts.iter().find_map(|&t| odd_term(program, t, kind, depth - 1)),
        TermKind::Object(id) => match program.object(*id).class {
            ObjectClass::List | ObjectClass::Dict => {
                program.contents(term).iter().find_map(|v| odd_part(program, v, kind, depth - 1))
            }
            ObjectClass::Project(class) => odd_object(program, class, kind),
            _ => None,
        },
        _ if kind == Wrapper::Dp || program.language == Language::Rust => {
            host_number(program, term)
        }
        _ => None,
    }
}

/// An instance of a class of the project: only named tuples of tensors can be gathered.
fn odd_object(program: &Program<'_>, class: ClassRef, kind: Wrapper) -> Option<String> {
    let definition = program.class(class);
    let named =
        |name: &str| definition.bases.iter().any(|b| b.last_name().is_some_and(|n| &*n == name));
    let is_dataclass =
        definition.decorators.iter().any(|d| d.last_name().is_some_and(|n| &*n == "dataclass"));
    if program.language == Language::Rust {
        return odd_field(definition);
    }
    if named("NamedTuple") || named("ModelOutput") {
        return None;
    }
    if definition
        .bases
        .iter()
        .any(|b| b.last_name().is_some_and(|n| matches!(&*n, "dict" | "OrderedDict" | "tuple")))
    {
        return None;
    }
    if kind == Wrapper::Ddp && is_dataclass {
        return None;
    }
    Some(format!("an object of class `{}`", definition.name))
}

/// A field of a Rust struct that surely holds no tensor; structs of tensors are what
/// `TensorOutput` is for.
fn odd_field(definition: &Class) -> Option<String> {
    let is_skipped = |field: &Field| !field.decorators.is_empty();
    let odd = definition.fields.iter().find(|field| {
        let class = field.annotation.as_ref().and_then(Expr::last_name);
        !is_skipped(field)
            && class.is_some_and(|name| {
                matches!(
                    &*name,
                    "bool" | "f32" | "f64" | "i32" | "i64" | "u32" | "u64" | "usize" | "String"
                )
            })
    })?;
    Some(format!("`{}`, whose `{}` is no tensor", definition.name, odd.name))
}

/// A number read off a tensor on the host.
fn host_number(program: &Program<'_>, term: Term) -> Option<String> {
    let is_read = program.calls(Role::HostRead).any(|(_, call)| call.result.single() == Some(term));
    is_read.then(|| "a number".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_number_read_off_a_tensor_counts() {
        check_python(
            "
import torch
class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = torch.nn.Linear(2, 2)
    def forward(self, x):
        y = self.fc(x)
        accuracy = (y > 0).float().mean().item()
        return {'out': y, 'accuracy': accuracy}  # ~ non-tensor-forward-output: a number
net = torch.nn.DataParallel(Net())
for _ in range(3):
    net(torch.ones(1, 2))
",
        );
    }

    #[test]
    fn an_object_of_another_file_counts() {
        check_files(&[
            (
                "result.py",
                "
class Result:
    def __init__(self, logits, loss):
        self.logits = logits
        self.loss = loss
",
            ),
            (
                "main.py",
                "
import torch
from result import Result
class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = torch.nn.Linear(2, 2)
    def forward(self, x):
        y = self.fc(x)
        return Result(y, y.sum())  # ~ non-tensor-forward-output: `Result`
if __name__ == '__main__':
    net = torch.nn.DataParallel(Net()).cuda()
    net(torch.ones(1, 2))
",
            ),
        ]);
    }

    #[test]
    fn containers_of_tensors_are_silent() {
        check_python(
            "
import torch
from typing import NamedTuple
class Out(NamedTuple):
    y: torch.Tensor
    z: torch.Tensor
class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = torch.nn.Linear(2, 2)
    def forward(self, x, kind=0):
        y = self.fc(x)
        if kind == 1:
            return [y, (y, x)]
        if kind == 2:
            return {'y': y, 'x': x}
        if kind == 3:
            return Out(y, x)
        return y, None
net = torch.nn.DataParallel(Net())
for kind in range(3):
    net(torch.ones(1, 2), kind)
",
        );
    }

    #[test]
    fn under_ddp_each_rank_keeps_its_output() {
        check_python(
            "
import torch
class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = torch.nn.Linear(2, 2)
    def forward(self, x):
        return self.fc(x), 'name'
net = torch.nn.parallel.DistributedDataParallel(Net())
for _ in range(3):
    net(torch.ones(1, 2))[0].sum().backward()
",
        );
    }

    #[test]
    fn under_ddp_with_find_unused_an_object_counts() {
        check_python(
            "
import torch
class Boxes:
    def __init__(self, tensor):
        self.tensor = tensor
class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = torch.nn.Linear(2, 2)
    def forward(self, x):
        return Boxes(self.fc(x))  # ~ non-tensor-forward-output: `Boxes`
net = torch.nn.parallel.DistributedDataParallel(Net(), find_unused_parameters=True)
for _ in range(3):
    net(torch.ones(1, 2)).tensor.sum().backward()
",
        );
    }

    #[test]
    fn an_inner_module_may_return_what_it_likes() {
        check_python(
            "
import torch
class Inner(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = torch.nn.Linear(2, 2)
    def forward(self, x):
        return self.fc(x), 'hidden'
class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = Inner()
    def forward(self, x):
        y, name = self.inner(x)
        return y
net = torch.nn.DataParallel(Net())
for _ in range(3):
    net(torch.ones(1, 2))
",
        );
    }

    #[test]
    fn objects_of_another_file_count() {
        check_files(&[
            (
                "detector.py",
                "
import torch.nn as nn
from structures import Boxes
class Detector(nn.Module):
    def __init__(self, k):
        super().__init__()
        self.stem = nn.Conv2d(3, 8, 3, padding=1)
        self.reg = nn.Conv2d(8, 4, 1)
        self.cls = nn.Conv2d(8, k, 1)
    def forward(self, images):
        f = self.stem(images).relu()
        boxes, scores = self.reg(f).flatten(2), self.cls(f).flatten(2)
        return [Boxes(b, s) for b, s in zip(boxes, scores)]  # ~ non-tensor-forward-output
",
            ),
            (
                "engine.py",
                r#"
import torch
import torch.nn as nn
from detector import Detector
class Engine:
    def __init__(self, model):
        self.model = nn.DataParallel(model).cuda()
        self.opt = torch.optim.SGD(self.model.parameters(), lr=0.02)
    def train_one_epoch(self, batches):
        for imgs in batches:
            out = self.model(imgs.cuda())
            loss = sum(b.xyxy.abs().mean() + b.scores.mean() for b in out)
            self.opt.zero_grad()
            loss.backward()
            self.opt.step()
if __name__ == "__main__":
    Engine(Detector(3)).train_one_epoch([torch.rand(4, 3, 16, 16) for _ in range(5)])
"#,
            ),
            (
                "structures.py",
                "
class Boxes:
    def __init__(self, xyxy, scores):
        self.xyxy = xyxy
        self.scores = scores
    def __len__(self):
        return self.xyxy.shape[0]
",
            ),
        ]);
    }
}
