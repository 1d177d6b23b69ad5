use crate::analysis::models::Access;
use crate::analysis::{ClassRef, Event, EventKind, Object, ObjectId, RankKind, Term, TermKind};
use crate::prelude::*;
use crate::table::Role;

declare_rule! {
    /// An attribute or method of the model is looked up on its wrapper.
    ///
    /// The wrapper holds the model under `.module` and passes nothing on. A read or call raises
    /// `AttributeError: 'DistributedDataParallel' object has no attribute ..`; a write lands on
    /// the wrapper, and the model never sees it.
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
    /// ddp = DDP(Net())
    /// print(ddp.fc.weight)  # ~ attribute-of-wrapped-model
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
    /// ddp = DDP(Net())
    /// print(ddp.module.fc.weight)
    /// ```
    ///
    /// # Known limits
    /// The wrapped class must be known. Attributes that the project itself sets on the wrapper
    /// and reads there are fine, and so are wrapper subclasses with `__getattr__`.
    pub static RULE = {
        name: "attribute-of-wrapped-model",
        level: Level::Error,
        harm: Harm::Crash,
        tier: 1,
        languages: PYTHON,
        fix: FixKind::Safe,
        check,
    };
}

/// What the wrappers themselves have, beside the methods in the tables.
const OWN: &[&str] = &[
    "module",
    "device_ids",
    "output_device",
    "device",
    "dim",
    "src_device_obj",
    "process_group",
    "broadcast_buffers",
    "find_unused_parameters",
    "require_backward_grad_sync",
    "require_forward_param_sync",
    "gradient_as_bucket_view",
    "static_graph",
    "reducer",
    "logger",
    "bucket_bytes_cap",
    "training",
    "forward",
    "parameters_to_ignore",
    "is_multi_device_module",
    "device_type",
    "mixed_precision",
    "ddp_uneven_inputs_config",
    "modules_buffers",
    "scatter",
    "gather",
    "replicate",
    "parallel_apply",
    "dump_patches",
    "call_super_init",
];

fn check(program: &Program<'_>, report: &mut Report<'_>) {
    for event in program.events() {
        match &event.kind {
            EventKind::AttributeRead { of, name, .. } => read(program, report, event, *of, *name),
            EventKind::AttributeStore { of, name, .. } => store(program, report, event, *of, *name),
            _ => {}
        }
    }
}

fn read(program: &Program<'_>, report: &mut Report<'_>, event: &Event<'_>, of: Term, name: Name) {
    let Some(wrapper) = foreign(program, of, name) else { return };
    let has = inner_has(program, wrapper, name)
        || holds_unseen_model(program, event, wrapper) && !is_set_somewhere(program, name);
    if !has || program.stores_on(of).any(|(_, n, _)| n == name) {
        return;
    }
    let asked = |kind: &TermKind| match kind {
        TermKind::Apply(test, parts) => &**test == "hasattr" && parts[0] == of,
        _ => false,
    };
    if program.tests(event.path, &asked) {
        return;
    }
    let Some(receiver) = program.receiver_text(event) else { return };
    let object = program.object(wrapper);
    let kind = if object.role == Role::WrapDp { "DataParallel" } else { "DistributedDataParallel" };
    let class = inner_class(program, wrapper).map(|c| program.class(c).name);
    let class = class.map_or("the model", |name| name.as_str());
    report
        .at(event.site, format!("`{name}` belongs to `{class}`, not to its wrapper `{receiver}`"))
        .why(format!("`{kind}` has no attribute `{name}`: this raises AttributeError"))
        .help(format!("read it through the wrapper: `{receiver}.module.{name}`"))
        .related(object.site, "wrapped here")
        .fix(through_module(event, receiver));
}

fn store(program: &Program<'_>, report: &mut Report<'_>, event: &Event<'_>, of: Term, name: Name) {
    let Some(wrapper) = foreign(program, of, name) else { return };
    let is_read_there = program.events().iter().any(|e| match &e.kind {
        EventKind::AttributeRead { of: on, name: read, .. } => *on == of && *read == name,
        _ => false,
    });
    if !inner_has(program, wrapper, name) || is_read_there {
        return;
    }
    let receiver = program.receiver_text(event).unwrap_or("the wrapper");
    report
        .at(event.site, format!("`{name}` is set on the wrapper `{receiver}`, not on the model"))
        .harm(Harm::Wrong)
        .why("the model's forward goes on reading its own value: the change has no effect")
        .help(format!("set it on the model: `{receiver}.module.{name}`"))
        .related(program.object(wrapper).site, "wrapped here")
        .fix(through_module(event, receiver));
}

/// The wrapper, if `name` is none of its own.
fn foreign(program: &Program<'_>, of: Term, name: Name) -> Option<ObjectId> {
    let (wrapper, _) = program.wrapper_of(of)?;
    if name.starts_with('_') || OWN.contains(&name.as_str()) {
        return None;
    }
    let object = program.object(wrapper);
    if let Some(class) = program.class_of(object)
        && (program.class_member(class, "__getattr__").is_some()
            || program.class_member(class, &name).is_some())
    {
        return None;
    }
    if is_never_made(program, object) {
        return None;
    }
    let own =
        object.row.and_then(|row| row.name).and_then(|class| program.table().method(class, name));
    own.is_none().then_some(wrapper)
}

/// Wrapped only where the run is distributed, and nothing in this program makes it so.
fn is_never_made(program: &Program<'_>, wrapper: &Object<'_>) -> bool {
    let asks = |kind: &TermKind| {
        matches!(kind, TermKind::Distributed | TermKind::Rank(RankKind::WorldSize))
    };
    wrapper.role == Role::WrapDdp
        && !program.is_distributed()
        && !program.is_library()
        && program.tests(wrapper.path, &asks)
}

fn inner_class(program: &Program<'_>, wrapper: ObjectId) -> Option<ClassRef> {
    let module = program.wrapped_module(wrapper)?;
    program.class_of(program.object_in(module)?)
}

/// The wrapped class is known, and has the attribute.
fn inner_has(program: &Program<'_>, wrapper: ObjectId, name: Name) -> bool {
    let Some(module) =
        program.wrapped_module(wrapper).and_then(super::super::analysis::value::Value::single)
    else {
        return false;
    };
    let Some(class) = inner_class(program, wrapper) else { return false };
    program.class_member(class, &name).is_some() || program.attribute_now(module, &name).is_some()
}

/// A model of a class that the project does not define: what the wrapper does not have itself is
/// the model's, or nobody's.
fn holds_unseen_model(program: &Program<'_>, event: &Event<'_>, wrapper: ObjectId) -> bool {
    let is_unseen = |term| program.object_of(term).is_none_or(|o| program.class_of(o).is_none());
    let is_plain = program.class_of(program.object(wrapper)).is_none();
    let module = program.wrapped_module(wrapper);
    // `unwrap(model).x`: whoever wrote that meant to be past the wrapper.
    let is_unwrapped = program.receiver_text(event).is_some_and(|text| text.ends_with(')'));
    is_plain
        && !is_unwrapped
        && !event.modes.caught
        && module.is_some_and(|m| m.terms().all(is_unseen))
}

/// Something gets an attribute of that name, perhaps the wrapper under another name.
fn is_set_somewhere(program: &Program<'_>, name: Name) -> bool {
    program.models().mentions().any(|m| m.name == name && m.access == Access::Written && !m.of_self)
}

fn through_module(event: &Event<'_>, receiver: &str) -> Option<Fix> {
    let expr = event.expr?;
    let crate::model::ExprKind::Attribute { value, .. } = &expr.kind else { return None };
    let at = Site { file: event.site.file, span: Span::new(value.span.end, value.span.end) };
    Some(Fix {
        applicability: Applicability::Safe,
        title: format!("go through `{receiver}.module`"),
        edits: vec![Edit { site: at, replacement: ".module".to_owned() }],
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rule::testing::{ACTOR_CRITIC, PPO};

    #[test]
    fn a_method_called_in_another_file_counts() {
        check_files(&[
            (
                "net.py",
                "
import torch
class Gan(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = torch.nn.Linear(2, 2)
    def forward(self, z):
        return self.fc(z)
    def mean_latent(self, n):
        return self.fc(torch.randn(n, 2)).mean(0)
",
            ),
            (
                "sample.py",
                "
def sample(generator, n):
    return generator.mean_latent(n)  # ~ attribute-of-wrapped-model: belongs to `Gan`
",
            ),
            (
                "main.py",
                "
import torch
from net import Gan
from sample import sample
if __name__ == '__main__':
    g = torch.nn.DataParallel(Gan()).cuda()
    sample(g, 16)
",
            ),
        ]);
    }

    #[test]
    fn an_attribute_set_on_the_wrapper_alone_counts() {
        check_python(
            "
import torch
from torch.nn.parallel import DistributedDataParallel
class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = torch.nn.Linear(2, 2)
        self.drop = 0.1
    def forward(self, x):
        return self.fc(x) * self.drop
net = DistributedDataParallel(Net())
for epoch in range(3):
    net.drop = 0.5  # ~ attribute-of-wrapped-model: is set on the wrapper
    net(torch.ones(1, 2)).sum().backward()
",
        );
    }

    #[test]
    fn a_conditional_wrap_counts_where_it_is_wrapped() {
        check_python(
            "
import argparse, torch
class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.head = torch.nn.Linear(2, 2)
    def forward(self, x):
        return self.head(x)
args = argparse.ArgumentParser().parse_args()
model = Net()
if args.multi_gpu:
    model = torch.nn.DataParallel(model)
    torch.nn.init.zeros_(model.head.weight)  # ~ attribute-of-wrapped-model
else:
    torch.nn.init.zeros_(model.head.weight)
for _ in range(2):
    model(torch.ones(1, 2))
",
        );
    }

    #[test]
    fn what_the_project_keeps_on_the_wrapper_is_silent() {
        check_python(
            "
import torch
class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = torch.nn.Linear(2, 2)
        self.names = []
    def forward(self, x):
        return self.fc(x)
model = torch.nn.DataParallel(Net())
model.names = ['a', 'b']
for x in range(3):
    print(model.names, model.device_ids, model.training)
",
        );
    }

    #[test]
    fn a_wrapper_that_passes_attributes_on_is_silent() {
        check_python(
            "
import torch
class Through(torch.nn.DataParallel):
    def __getattr__(self, name):
        try:
            return super().__getattr__(name)
        except AttributeError:
            return getattr(self.module, name)
class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = torch.nn.Linear(2, 2)
    def forward(self, x):
        return self.fc(x)
model = Through(Net())
for x in range(3):
    print(model.fc)
",
        );
    }

    #[test]
    fn the_wrappers_own_interface_is_silent() {
        check_python(
            "
import torch
from torch.nn.parallel import DistributedDataParallel as DDP
class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = torch.nn.Linear(2, 2)
    def forward(self, x):
        return self.fc(x)
model = DDP(Net())
model.require_backward_grad_sync = False
with model.no_sync():
    model(torch.ones(1, 2)).sum().backward()
for p in model.parameters():
    print(p, model.state_dict(), model.named_parameters())
",
        );
    }

    #[test]
    fn a_policy_that_acts_in_another_file_counts() {
        check_files(&[
            ("agent.py", ACTOR_CRITIC),
            ("ppo.py", PPO),
            (
                "rollout.py",
                "
import torch
def collect(policy, env, horizon, device):
    obs, batch = env.reset(), []
    for _ in range(horizon):
        t = torch.as_tensor(obs, device=device).float()
        action, value = policy.act(t)  # ~ attribute-of-wrapped-model
        obs, reward, done, _ = env.step(action.item())
        batch.append((t, action, reward, value))
        if done:
            obs = env.reset()
    return batch
",
            ),
        ]);
    }

    #[test]
    fn a_model_of_an_outside_class_counts() {
        check_python(
            r#"
import os
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP
from transformers import AutoModelForCausalLM, AutoTokenizer
def main():
    dist.init_process_group("nccl")
    lr = int(os.environ["LOCAL_RANK"])
    torch.cuda.set_device(lr)
    torch.manual_seed(dist.get_rank())
    tok = AutoTokenizer.from_pretrained("gpt2")
    model = AutoModelForCausalLM.from_pretrained("gpt2").to(lr)
    model = DDP(model, device_ids=[lr])
    opt = torch.optim.AdamW(model.parameters(), 1e-5)
    for i in range(100):
        ids = torch.randint(0, 1000, (2, 64), device=lr)
        loss = model(input_ids=ids, labels=ids).loss
        loss.backward()
        opt.step()
        opt.zero_grad()
    if dist.get_rank() == 0:
        model.save_pretrained("out")  # ~ attribute-of-wrapped-model
        tok.save_pretrained("out")
    dist.destroy_process_group()
if __name__ == "__main__":
    main()
"#,
        );
    }

    #[test]
    fn what_an_assertion_rules_out_is_silent() {
        check_python(
            "
import argparse
import torch
from torch.nn.parallel import DistributedDataParallel
class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.head = torch.nn.Linear(2, 2)
    def forward(self, x):
        return self.head(x)
def main(args, n_devices):
    many = n_devices > 1
    net = Net()
    if many:
        torch.distributed.init_process_group('nccl')
        net = DistributedDataParallel(net)
    if args.trace:
        assert (
            not args.fuse and not many and args.batch == 1
        ), 'traced in one process'
        net.head.trace = True
    print(net.head)  # ~ attribute-of-wrapped-model: belongs to `Net`
parser = argparse.ArgumentParser()
parser.add_argument('--devices', type=int)
args = parser.parse_args()
main(args, torch.cuda.device_count() if args.devices is None else args.devices)
",
        );
    }

    #[test]
    fn a_wrapper_class_of_the_project_counts() {
        check_python(
            "
import os
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset
class Wide(DDP):
    def __getattr__(self, name):
        try:
            return super().__getattr__(name)
        except AttributeError:
            return getattr(self.module, name)
class Narrow(DDP):
    pass
class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(4, 1)
        self.classes = ['a', 'b']
    def forward(self, x):
        return self.fc(x)
def main():
    dist.init_process_group('nccl')
    g = int(os.environ['LOCAL_RANK'])
    torch.cuda.set_device(g)
    net = Narrow(Model().cuda(), device_ids=[g])
    net(torch.rand(2, 4).cuda()).mean().backward()
    names = net.classes  # ~ attribute-of-wrapped-model
main()
",
        );
    }

    #[test]
    fn a_wrapper_class_that_passes_on_is_silent() {
        check_python(
            "
import os
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset
class Wide(DDP):
    def __getattr__(self, name):
        try:
            return super().__getattr__(name)
        except AttributeError:
            return getattr(self.module, name)
class Narrow(DDP):
    pass
class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(4, 1)
        self.classes = ['a', 'b']
    def forward(self, x):
        return self.fc(x)
def main():
    dist.init_process_group('nccl')
    g = int(os.environ['LOCAL_RANK'])
    torch.cuda.set_device(g)
    net = Wide(Model().cuda(), device_ids=[g])
    net(torch.rand(2, 4).cuda()).mean().backward()
    names = net.classes
main()
",
        );
    }

    #[test]
    fn a_program_of_one_process_is_silent() {
        check_files(&[
            (
                "net.py",
                "
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
def world():
    return dist.get_world_size() if dist.is_initialized() else 1
class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.head = torch.nn.Linear(2, 2)
    def forward(self, x):
        return self.head(x)
class Trainer:
    def __init__(self):
        self.many = world() > 1
        self.net = Net()
        if self.many:
            self.net = DistributedDataParallel(self.net)
",
            ),
            (
                "look.py",
                "
from net import Trainer
class Look(Trainer):
    def show(self):
        print(self.net.head)
if __name__ == '__main__':
    Look().show()
",
            ),
        ]);
    }
}
