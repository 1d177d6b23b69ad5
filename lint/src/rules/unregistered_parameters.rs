use rustc_hash::FxHashSet;

use crate::analysis::{Call, EventKind, Object, ObjectClass, Term, TermKind};
use crate::model::Expr;
use crate::prelude::*;
use crate::table::{Flag, Role};

declare_rule! {
    /// Parameters or sub-modules are kept in a plain list, tuple or dict.
    ///
    /// A module knows only what is assigned to its attributes or held by `ModuleList`,
    /// `ModuleDict`, `ParameterList` or `ParameterDict`. The rest is neither moved with it nor
    /// saved, neither broadcast nor reduced: each rank keeps its own values (measured).
    ///
    /// In Rust a tensor that requires a gradient and that no `nn::Path` registered has the same
    /// fate; `#[data_parallel]` with `register` names such tensors.
    ///
    /// ```python bad
    /// import torch.nn as nn
    /// from torch.nn.parallel import DistributedDataParallel as DDP
    ///
    ///
    /// class Net(nn.Module):
    ///     def __init__(self):
    ///         super().__init__()
    ///         self.layers = [nn.Linear(8, 8) for _ in range(3)]  # ~ unregistered-parameters
    ///         self.head = nn.Linear(8, 1)
    ///
    ///     def forward(self, x):
    ///         for layer in self.layers:
    ///             x = layer(x)
    ///         return self.head(x)
    ///
    ///
    /// model = DDP(Net())
    /// ```
    /// ```python good
    /// import torch.nn as nn
    /// from torch.nn.parallel import DistributedDataParallel as DDP
    ///
    ///
    /// class Net(nn.Module):
    ///     def __init__(self):
    ///         super().__init__()
    ///         self.layers = nn.ModuleList([nn.Linear(8, 8) for _ in range(3)])
    ///         self.head = nn.Linear(8, 1)
    ///
    ///     def forward(self, x):
    ///         for layer in self.layers:
    ///             x = layer(x)
    ///         return self.head(x)
    ///
    ///
    /// model = DDP(Net())
    /// ```
    /// ```rust bad
    /// use tch::{Kind, Tensor, nn};
    ///
    /// struct Scale { weights: Vec<Tensor> }
    ///
    /// fn build(device: tch::Device) -> Scale {
    ///     let one = || Tensor::ones([4], (Kind::Float, device)).set_requires_grad(true); //~ unregistered-parameters
    ///     Scale { weights: vec![one(), one()] }
    /// }
    ///
    /// fn train(vs: nn::VarStore, group: &tch_ddp::ProcessGroup) {
    ///     let scale = build(vs.device());
    ///     let ddp = tch_ddp::Ddp::new(scale, vs, group, Default::default()).unwrap();
    /// }
    /// ```
    /// ```rust good
    /// use tch::{Tensor, nn};
    ///
    /// struct Scale { weights: Vec<Tensor> }
    ///
    /// fn build(p: &nn::Path) -> Scale {
    ///     let p = p / "weights";
    ///     Scale { weights: vec![p.ones("0", &[4]), p.ones("1", &[4])] }
    /// }
    ///
    /// fn train(vs: nn::VarStore, group: &tch_ddp::ProcessGroup) {
    ///     let scale = build(&vs.root());
    ///     let ddp = tch_ddp::Ddp::new(scale, vs, group, Default::default()).unwrap();
    /// }
    /// ```
    ///
    /// # Known limits
    /// Lists whose contents come from places that are not seen stay silent. So do lists whose
    /// items the module holds in another, registered way.
    pub static RULE = {
        name: "unregistered-parameters",
        level: Level::Error,
        harm: Harm::Wrong,
        tier: 1,
        languages: BOTH,
        fix: FixKind::No,
        check,
    };
}

fn check(program: &Program<'_>, report: &mut Report<'_>) {
    let parallel =
        program.is_distributed() || program.wraps_with(crate::analysis::facts::Wrapper::Dp);
    if !parallel {
        return;
    }
    let registered = registered(program);
    for event in program.events() {
        let EventKind::AttributeStore { of, name, value, .. } = &event.kind else { continue };
        if !holds_parameters_of_a_model(program, *of, *name) {
            continue;
        }
        let Some(lost) = value.terms().find_map(|t| {
            if is_plain_container(program, t) {
                return lost_item(program, t, &registered, 3);
            }
            // In Python the attribute itself registers it.
            let alone = program.language == Language::Rust && program.requires_grad(t);
            alone.then_some(t)
        }) else {
            continue;
        };
        let what = if program.is_module(lost) { "sub-modules" } else { "parameters" };
        let instead = match (program.language, what) {
            (Language::Rust, _) => {
                "create them on an `nn::Path`, or annotate the struct with `#[data_parallel]` \
                 and call `register`"
            }
            (_, "sub-modules") => "hold them in an `nn.ModuleList` or `nn.ModuleDict`",
            _ => "hold them in an `nn.ParameterList` or `nn.ParameterDict`",
        };
        let made = trainable_made(program, lost);
        let message = format!("`{name}` keeps {what} where the model does not see them");
        let draft = report
            .at(made.unwrap_or(event.site), message)
            .why("they are neither broadcast nor reduced: each rank trains its own, unsaved")
            .help(instead);
        if made.is_some() {
            draft.related(event.site, "kept here");
        } else if let Some(object) = program.object_of(lost) {
            draft.related(object.site, "one of them is made here");
        }
    }
}

/// Where Rust code makes a tensor trainable by hand.
fn trainable_made(program: &Program<'_>, tensor: Term) -> Option<Site> {
    let makes = |call: &Call<'_>| call.result.single() == Some(tensor);
    let of_rust = program.language == Language::Rust;
    let (event, _) = program.calls(Role::RequiresGrad).find(|(_, call)| makes(call))?;
    of_rust.then_some(event.site)
}

/// A module of the project; in Rust an un-annotated struct that is one, or is wrapped.
fn holds_parameters_of_a_model(program: &Program<'_>, of: Term, name: Name) -> bool {
    let Some(object) = program.object_of(of) else { return false };
    let Some(class) = program.class_of(object) else { return false };
    if program.language == Language::Python {
        return program.is_module_class(class);
    }
    let definition = program.class(class);
    let annotated =
        definition.decorators.iter().any(|d| d.last_name().is_some_and(|n| &*n == "data_parallel"));
    let is_wrapped = program.objects().iter().any(|o| {
        program.wrapper_kind(o.id).is_some()
            && program.wrapped_module(o.id).is_some_and(|m| m.terms().any(|t| t == of))
    });
    let skipped = definition.fields.iter().any(|field| {
        let text = |d: &Expr| program.text(Site { file: class.file, span: d.span });
        field.name == name && field.decorators.iter().any(|d| text(d).contains("skip"))
    });
    (!annotated || skipped) && (is_wrapped || program.is_module_class(class))
}

fn is_plain_container(program: &Program<'_>, term: Term) -> bool {
    match program.terms().kind(term) {
        TermKind::Tuple(_) => true,
        TermKind::Object(id) => {
            matches!(program.object(*id).class, ObjectClass::List | ObjectClass::Dict)
        }
        _ => false,
    }
}

/// Something with parameters in a container that nothing else registers.
fn lost_item(
    program: &Program<'_>,
    container: Term,
    registered: &FxHashSet<Term>,
    depth: u32,
) -> Option<Term> {
    if depth == 0 || registered.contains(&container) {
        return None;
    }
    program.contents(container).iter().flat_map(|v| v.terms().collect::<Vec<_>>()).find_map(|t| {
        if registered.contains(&t) {
            return None;
        }
        if is_plain_container(program, t) {
            return lost_item(program, t, registered, depth - 1);
        }
        has_parameters(program, t).then_some(t)
    })
}

/// A parameter, or a module that surely has some.
fn has_parameters(program: &Program<'_>, term: Term) -> bool {
    if program.language == Language::Rust {
        return program.requires_grad(term);
    }
    let Some(object) = program.object_of(term) else { return false };
    match object.role {
        Role::Parameter => true,
        Role::Layer => object.row.is_none_or(|row| !row.has(Flag::NoParameters)),
        _ => class_has_parameters(program, object, term),
    }
}

fn class_has_parameters(program: &Program<'_>, object: &Object<'_>, term: Term) -> bool {
    let is_module = program.class_of(object).is_some_and(|c| program.is_module_class(c));
    is_module
        && program.stores_on(term).any(|(_, _, value)| {
            value.terms().any(|t| {
                program.object_of(t).is_some_and(|o| {
                    o.role == Role::Parameter
                        || matches!(o.role, Role::Layer)
                            && o.row.is_none_or(|row| !row.has(Flag::NoParameters))
                })
            })
        })
}

/// What modules hold in a way that registers it.
fn registered(program: &Program<'_>) -> FxHashSet<Term> {
    let mut registered = FxHashSet::default();
    for event in program.events() {
        match &event.kind {
            EventKind::AttributeStore { of, value, .. } if program.is_module(*of) => {
                let direct = value.terms().filter(|&t| !is_plain_container(program, t));
                registered.extend(direct);
            }
            EventKind::Call(call)
                if matches!(
                    call.role,
                    Role::ModuleList
                        | Role::Sequential
                        | Role::ParameterList
                        | Role::RegisterParameter
                        | Role::AddModule
                        | Role::RegisterBuffer
                ) =>
            {
                for argument in &call.arguments {
                    for term in argument.value.terms() {
                        registered.insert(term);
                        register_contents(program, term, &mut registered);
                    }
                }
                for term in call.result.terms() {
                    register_contents(program, term, &mut registered);
                }
            }
            _ => {}
        }
    }
    registered
}

fn register_contents(program: &Program<'_>, container: Term, registered: &mut FxHashSet<Term>) {
    for value in program.contents(container) {
        registered.extend(value.terms());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tensor_in_a_field_counts_unless_a_path_made_it() {
        let program = |scale: &str| {
            format!(
                "
use tch::nn::{{self, Module}};
use tch::{{Kind, Tensor}};
use tch_ddp::{{Ddp, ProcessGroup}};
struct Scaled {{ layer: nn::Linear, scale: Tensor }}
impl Scaled {{
    fn new(p: &nn::Path) -> Scaled {{
        let layer = nn::linear(p / \"layer\", 4, 4, Default::default());
        let scale = {scale};
        Scaled {{ layer, scale }}
    }}
}}
impl Module for Scaled {{
    fn forward(&self, x: &Tensor) -> Tensor {{ x.apply(&self.layer) * &self.scale }}
}}
fn train(vs: nn::VarStore, group: &ProcessGroup) {{
    let net = Scaled::new(&vs.root());
    let ddp = Ddp::new(net, vs, group, Default::default()).unwrap();
}}
"
            )
        };
        let ones = "Tensor::ones([1], (Kind::Float, p.device()))";
        let lost = program(&format!("{ones}.set_requires_grad(true)"));
        let mark = "grad(true); //~ unregistered-parameters: `scale`";
        check_rust(&lost.replace("grad(true);", mark));
        check_rust(&program("p.ones(\"scale\", &[1])"));
        check_rust(&program(ones));
    }

    #[test]
    fn appended_parameters_count() {
        check_python(
            "
import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel
class Density(nn.Module):
    def __init__(self, filters):
        super().__init__()
        self.factors = []  # ~ unregistered-parameters: keeps parameters
        for k in range(len(filters) + 1):
            self.factors.append(nn.Parameter(torch.zeros(3, 3)))
        self.gain = nn.Parameter(torch.ones(1))
    def forward(self, x):
        for factor in self.factors:
            x = x @ factor
        return x * self.gain
net = DistributedDataParallel(Density([3, 3]))
for _ in range(3):
    net(torch.ones(1, 3)).sum().backward()
",
        );
    }

    #[test]
    fn blocks_of_the_project_in_a_dict_count() {
        check_files(&[
            (
                "blocks.py",
                "
import torch
class Block(torch.nn.Module):
    def __init__(self, width):
        super().__init__()
        self.fc = torch.nn.Linear(width, width)
    def forward(self, x):
        return self.fc(x)
",
            ),
            (
                "net.py",
                "
import torch
from blocks import Block
class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.stages = {'low': Block(4), 'high': Block(8)}  # ~ unregistered-parameters: sub-modules
    def forward(self, x):
        return self.stages['low'](x)
",
            ),
            (
                "main.py",
                "
import torch
from net import Net
if __name__ == '__main__':
    model = torch.nn.DataParallel(Net())
    model(torch.ones(1, 4))
",
            ),
        ]);
    }

    #[test]
    fn registered_lists_are_silent() {
        check_python(
            "
import torch
from torch import nn
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.blocks = nn.ModuleList(nn.Linear(2, 2) for _ in range(3))
        self.scales = nn.ParameterList([nn.Parameter(torch.ones(1)) for _ in range(3)])
        self.order = [1, 2, 3]
        self.acts = [nn.ReLU(), nn.Tanh()]
    def forward(self, x):
        return x
net = nn.parallel.DistributedDataParallel(Net())
for _ in range(3):
    net(torch.ones(1, 2))
",
        );
    }

    #[test]
    fn a_list_of_what_is_registered_elsewhere_is_silent() {
        check_python(
            "
import torch
from torch import nn
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.a = nn.Linear(2, 2)
        self.b = nn.Linear(2, 2)
        self.both = [self.a, self.b]
        layers = [nn.Linear(2, 2), nn.Linear(2, 2)]
        self.body = nn.Sequential(*layers)
        self.layers = layers
    def forward(self, x):
        for layer in self.both:
            x = layer(x)
        return self.body(x)
net = nn.DataParallel(Net())
for _ in range(3):
    net(torch.ones(1, 2))
",
        );
    }

    #[test]
    fn a_plain_class_that_keeps_models_is_silent() {
        check_python(
            "
import torch
class Ensemble:
    def __init__(self):
        self.models = [torch.nn.Linear(2, 2) for _ in range(3)]
torch.distributed.init_process_group('gloo')
ensemble = Ensemble()
for model in ensemble.models:
    print(model)
",
        );
    }

    #[test]
    fn blocks_built_on_paths_are_silent_in_rust() {
        check_rust(
            r#"
use tch::{Tensor, nn};
struct Block { fc: nn::Linear }
struct Net { blocks: Vec<Block>, scales: Vec<Tensor> }
impl Net {
    fn new(p: &nn::Path) -> Net {
        let blocks = (0..3).map(|i| Block { fc: nn::linear(p / i, 4, 4, Default::default()) }).collect();
        let scales = vec![p.ones("a", &[1]), p.ones("b", &[1])];
        Net { blocks, scales }
    }
    fn forward(&self, x: &Tensor) -> Tensor { x.shallow_clone() }
}
fn main() -> anyhow::Result<()> {
    let group = tch_ddp::ProcessGroup::init(&tch_ddp::Launch::from_env()?, Default::default())?;
    let vs = nn::VarStore::new(group.device());
    let net = Net::new(&vs.root());
    let ddp = tch_ddp::Ddp::new(net, vs, &group, Default::default())?;
    Ok(())
}
"#,
        );
    }

    #[test]
    fn experts_in_a_list_count() {
        check_files(&[
            (
                "moe.py",
                "
import torch.nn as nn
class Experts(nn.Module):
    def __init__(self, width, n):
        super().__init__()
        self.gate = nn.Linear(width, n)
        self.experts = [nn.Linear(width, width) for _ in range(n)]  # ~ unregistered-parameters
    def forward(self, x):
        weights = self.gate(x).softmax(-1)
        return sum(w.unsqueeze(-1) * e(x) for w, e in zip(weights.unbind(-1), self.experts))
",
            ),
            (
                "main.py",
                r#"
import torch
from torch.nn.parallel import DistributedDataParallel as DDP
from moe import Experts
def main():
    torch.distributed.init_process_group("nccl")
    net = DDP(Experts(8, 4).cuda())
    for _ in range(10):
        net(torch.randn(2, 8).cuda()).mean().backward()
if __name__ == "__main__":
    main()
"#,
            ),
        ]);
    }
}
