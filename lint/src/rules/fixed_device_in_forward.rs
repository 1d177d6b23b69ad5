use crate::analysis::devices::Device;
use crate::analysis::{Call, Const, Event, Term, TermKind, Value};
use crate::prelude::*;
use crate::table::Role;

declare_rule! {
    /// A module's forward puts tensors on a fixed device.
    ///
    /// Each replica works on its own device: `"cuda:0"`, `.cuda(0)` or `Device::Cuda(0)` is the
    /// device of one of them. The others fail with `Expected all tensors to be on the same
    /// device`, or fill the first device with their tensors.
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
    ///
    ///     def forward(self, x):
    ///         mask = torch.ones(8, device="cuda:0")  # ~ fixed-device-in-forward
    ///         return self.fc(x) * mask
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
    ///
    ///     def forward(self, x):
    ///         mask = torch.ones(8, device=x.device)
    ///         return self.fc(x) * mask
    ///
    ///
    /// model = DDP(Net().cuda())
    /// ```
    /// ```rust bad
    /// use tch::{Device, Kind, Tensor, nn};
    ///
    /// struct Net { fc: nn::Linear }
    ///
    /// impl nn::Module for Net {
    ///     fn forward(&self, x: &Tensor) -> Tensor {
    ///         let mask = Tensor::ones([8], (Kind::Float, Device::Cuda(0))); //~ fixed-device-in-forward
    ///         x.apply(&self.fc) * mask
    ///     }
    /// }
    ///
    /// fn train(net: Net, vs: nn::VarStore, group: &tch_ddp::ProcessGroup) {
    ///     let ddp = tch_ddp::Ddp::new(net, vs, group, Default::default()).unwrap();
    /// }
    /// ```
    /// ```rust good
    /// use tch::{Kind, Tensor, nn};
    ///
    /// struct Net { fc: nn::Linear }
    ///
    /// impl nn::Module for Net {
    ///     fn forward(&self, x: &Tensor) -> Tensor {
    ///         let mask = Tensor::ones([8], (Kind::Float, x.device()));
    ///         x.apply(&self.fc) * mask
    ///     }
    /// }
    ///
    /// fn train(net: Net, vs: nn::VarStore, group: &tch_ddp::ProcessGroup) {
    ///     let ddp = tch_ddp::Ddp::new(net, vs, group, Default::default()).unwrap();
    /// }
    /// ```
    ///
    /// # Known limits
    /// Bare `.cuda()` and `"cuda"` mean the current device, which both wrappers set: they are
    /// right. The fix is offered where the forward's first input is a plain name.
    pub static RULE = {
        name: "fixed-device-in-forward",
        level: Level::Error,
        harm: Harm::Crash,
        tier: 1,
        languages: BOTH,
        fix: FixKind::Safe,
        check,
    };
}

fn check(program: &Program<'_>, report: &mut Report<'_>) {
    let parallel =
        program.is_distributed() || program.wraps_with(crate::analysis::facts::Wrapper::Dp);
    if !parallel {
        return;
    }
    let roles = [Role::MakeTensor, Role::Random, Role::Move];
    for role in roles {
        for (event, call) in program.calls(role) {
            let in_forward = event.modes.forward.is_some() || program.is_in_layer_closure(event);
            if !in_forward || is_in_constructor(program, event) {
                continue;
            }
            let Some((argument, device)) = fixed_device(program, call) else { continue };
            // "The first GPU, or none" is right for a module that no wrapper runs.
            let may_be_cpu = program.devices(&argument.value).contains(&Device::Cpu);
            if !may_be_cpu || program.wrapper_around(event).is_some() {
                tell(program, report, event, argument, &device);
            }
        }
    }
}

/// Constructors may run inside a forward frame of an outer module; devices there are another
/// matter.
fn is_in_constructor(program: &Program<'_>, event: &Event<'_>) -> bool {
    let function = program.frame(event.frame).function;
    function.is_some_and(|f| &*program.function(f).name == "__init__")
}

/// The argument that names a device with a fixed index, and what it says.
fn fixed_device<'e, 'p>(
    program: &Program<'p>,
    call: &'e Call<'p>,
) -> Option<(&'e crate::analysis::ArgumentValue<'p>, String)> {
    call.arguments.iter().find_map(|argument| {
        let is_device = argument.name.is_some_and(|n| matches!(&*n, "device" | "options"))
            || call.role == Role::Move && argument.position == Some(0)
            // tch: kind and device come as one tuple.
            || program.language == Language::Rust && argument.position.is_some();
        let says = is_device.then(|| fixed_index(program, &argument.value, call))??;
        Some((argument, says))
    })
}

/// One device with an index; `"cuda:0" if torch.cuda.is_available() else "cpu"` is one, too.
fn fixed_index(program: &Program<'_>, value: &Value, call: &Call<'_>) -> Option<String> {
    let mut fixed = None;
    for term in value.terms() {
        let is_cpu = program.devices(&Value::of(program.terms(), term)) == [Device::Cpu];
        match fixed_index_of(program, term, call) {
            Some(index) if fixed.is_none() || fixed.as_ref() == Some(&index) => fixed = Some(index),
            None if is_cpu => {}
            _ => return None,
        }
    }
    fixed
}

fn fixed_index_of(program: &Program<'_>, term: Term, call: &Call<'_>) -> Option<String> {
    match program.terms().kind(term) {
        TermKind::Const(Const::Str(text)) => {
            let (kind, index) = text.split_once(':')?;
            (kind == "cuda" && index.parse::<u32>().is_ok()).then(|| text.to_string())
        }
        TermKind::Const(Const::Int(index))
            if takes_index(call) && program.language == Language::Python =>
        {
            Some(format!("cuda:{index}"))
        }
        TermKind::Tuple(parts) => {
            parts.iter().find_map(|&t| fixed_index(program, &Value::of(program.terms(), t), call))
        }
        TermKind::Object(_) => {
            let object = program.object_of(term)?;
            if program.constructor(object).is_none_or(|c| c.role != Role::MakeDevice) {
                return None;
            }
            let made = &object.arguments;
            let kind = &made.first()?.value;
            let Some(text) = kind.single() else { return fixed_index(program, kind, call) };
            match program.terms().kind(text) {
                TermKind::Const(Const::Str(kind)) if &**kind == "cuda" => {
                    let index = made.get(1).and_then(|a| a.value.single())?;
                    let index = program.terms().as_int(index)?;
                    Some(format!("cuda:{index}"))
                }
                TermKind::Const(Const::Int(index)) => Some(format!("cuda:{index}")),
                TermKind::Const(Const::Str(_)) => {
                    fixed_index(program, &Value::of(program.terms(), text), call)
                }
                _ => None,
            }
        }
        _ => None,
    }
}

/// `.cuda(0)` and `Device::Cuda(0)` take an index; `.to(0)` does too.
fn takes_index(call: &Call<'_>) -> bool {
    call.role == Role::Move
        || call.arguments.iter().any(|a| a.name.is_some_and(|n| &*n == "device"))
}

fn tell(
    program: &Program<'_>,
    report: &mut Report<'_>,
    event: &Event<'_>,
    argument: &crate::analysis::ArgumentValue<'_>,
    device: &str,
) {
    let input = first_input(program, event);
    let other = input.map_or("the input".to_owned(), |name| format!("`{name}`"));
    report
        .at(event.site, format!("`{device}` is fixed, but each replica has its own device"))
        .why("on every other device this mixes tensors of two devices, and fails")
        .help(format!("use the device of {other}"))
        .fix(fix(program, event, argument, input));
}

fn fix(
    program: &Program<'_>,
    event: &Event<'_>,
    argument: &crate::analysis::ArgumentValue<'_>,
    input: Option<Name>,
) -> Option<Fix> {
    let site = Site { file: event.site.file, span: argument.expr.span };
    // Only what is written at this place; a device kept elsewhere is another edit.
    let written = argument.expr.literal().is_some();
    if !written || program.language != Language::Python {
        return None;
    }
    let input = input?;
    Some(Fix {
        applicability: Applicability::Safe,
        title: format!("use the device of `{input}`"),
        edits: vec![Edit { site, replacement: format!("{input}.device") }],
    })
}

/// The first input of the forward that directly holds the event.
fn first_input(program: &Program<'_>, event: &Event<'_>) -> Option<Name> {
    if event.modes.forward != Some(event.frame) {
        return None;
    }
    let function = program.function(program.frame(event.frame).function?);
    function.parameters.get(1).map(|p| p.name).filter(|n| !n.starts_with('_'))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_helper_of_forward_counts() {
        check_files(&[
            (
                "ops.py",
                "
import torch
def causal(n):
    return torch.tril(torch.ones(n, n)).cuda(0)  # ~ fixed-device-in-forward: cuda:0
",
            ),
            (
                "main.py",
                "
import torch
from ops import causal
class Attention(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.q = torch.nn.Linear(4, 4)
    def forward(self, x):
        return self.q(x) * causal(x.size(1))
model = torch.nn.DataParallel(Attention().cuda())
for _ in range(3):
    model(torch.ones(2, 4))
",
            ),
        ]);
    }

    #[test]
    fn a_device_fixed_at_construction_counts() {
        check_python(
            "
import torch
from torch.nn.parallel import DistributedDataParallel as DDP
class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = torch.nn.Linear(4, 4)
        self.dev = torch.device('cuda:1')
    def forward(self, x):
        noise = torch.randn(4, device=self.dev)  # ~ fixed-device-in-forward: cuda:1
        return self.fc(x) + noise
net = DDP(Net().cuda())
for _ in range(3):
    net(torch.ones(2, 4)).sum().backward()
",
        );
    }

    #[test]
    fn the_current_device_is_silent() {
        check_python(
            "
import torch
class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = torch.nn.Linear(4, 4)
    def forward(self, x):
        a = torch.ones(4).cuda()
        b = torch.ones(4, device='cuda')
        c = torch.ones(4).to(x.device)
        return self.fc(x) * a * b * c
net = torch.nn.DataParallel(Net())
for _ in range(3):
    net(torch.ones(2, 4)).sum().backward()
",
        );
    }

    #[test]
    fn a_program_on_one_device_is_silent() {
        check_python(
            "
import torch
class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = torch.nn.Linear(4, 4)
    def forward(self, x):
        return self.fc(x.cuda(0))
net = Net().cuda(0)
for _ in range(3):
    net(torch.ones(2, 4)).sum().backward()
",
        );
    }

    #[test]
    fn a_fixed_device_outside_forward_is_another_matter() {
        check_python(
            "
import torch
net = torch.nn.DataParallel(torch.nn.Linear(2, 2)).to('cuda:0')
for _ in range(3):
    net(torch.ones(2, 2, device='cuda:0')).sum().backward()
",
        );
    }

    #[test]
    fn a_sub_module_counts_too() {
        check_python(
            "
import torch
class Noise(torch.nn.Module):
    def forward(self, x):
        return x + torch.randn(x.shape).to('cuda:0')  # ~ fixed-device-in-forward
class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.noise = Noise()
        self.fc = torch.nn.Linear(4, 4)
    def forward(self, x):
        return self.fc(self.noise(x))
net = torch.nn.DataParallel(Net())
for _ in range(3):
    net(torch.ones(2, 4)).sum().backward()
",
        );
    }

    #[test]
    fn an_index_in_a_package_counts() {
        check_files(&[
            (
                "model/__init__.py",
                "
from torch import nn
from .loss_layers import NoiseLayer
class Generator(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(8, 8, 3, padding=1)
        self.noise = NoiseLayer(8)
    def forward(self, x):
        return self.noise(self.conv(x))
",
            ),
            (
                "model/loss_layers.py",
                "
import torch
from torch import nn
class NoiseLayer(nn.Module):
    def __init__(self, channel):
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(1, channel, 1, 1))
    def forward(self, image, noise=None):
        if noise is None:
            n, _, h, w = image.shape
            noise = torch.randn(n, 1, h, w).cuda(0)  # ~ fixed-device-in-forward
        return image + self.weight * noise
",
            ),
            (
                "train.py",
                r#"
import torch
from torch import nn, optim
from model import Generator
def train(args):
    g = nn.DataParallel(Generator()).cuda()
    opt = optim.Adam(g.parameters(), lr=0.001, betas=(0.0, 0.99))
    for i in range(args["iter"]):
        out = g(torch.randn(8, 8, 16, 16).cuda())
        opt.zero_grad()
        out.mean().backward()
        opt.step()
if __name__ == "__main__":
    train({"iter": 10})
"#,
            ),
        ]);
    }

    #[test]
    fn the_first_gpu_or_the_cpu_kept_in_the_model_counts() {
        check_python(
            r#"
import torch
import torch.nn as nn
class Attn(nn.Module):
    def __init__(self, dim, device):
        super().__init__()
        self.device = device
        self.q = nn.Linear(dim, dim)
    def forward(self, x):
        n = x.size(1)
        causal = torch.triu(torch.ones(n, n), 1).bool().to(self.device)  # ~ fixed-device-in-forward
        att = self.q(x) @ x.transpose(1, 2)
        return att.masked_fill(causal, float("-inf")).softmax(-1) @ x
def main():
    device = torch.device("cuda:0" if torch.cuda.is_available() else "cpu")
    net = Attn(16, device).to(device)
    net = nn.DataParallel(net)
    opt = torch.optim.Adam(net.parameters())
    for _ in range(10):
        loss = net(torch.randn(8, 7, 16, device=device)).pow(2).mean()
        opt.zero_grad()
        loss.backward()
        opt.step()
if __name__ == "__main__":
    main()
"#,
        );
    }
}
