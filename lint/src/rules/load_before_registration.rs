use crate::analysis::{Event, Term, Value};
use crate::prelude::*;
use crate::table::Role;

declare_rule! {
    /// Weights are loaded before `register` names the tensors that lists hold.
    ///
    /// `#[data_parallel]` generates `register`, which puts the tensors of `Vec<Tensor>` fields into
    /// the store. `vs.load` fills what the store holds at that moment. What is registered later
    /// keeps its initial values, silently (measured).
    ///
    /// ```rust bad
    /// use tch::{Tensor, nn};
    /// use tch_ddp::{Ddp, ProcessGroup, data_parallel};
    ///
    /// #[data_parallel]
    /// struct Scales { weights: Vec<Tensor> }
    ///
    /// fn resume(net: Scales, mut vs: nn::VarStore, group: &ProcessGroup) -> anyhow::Result<()> {
    ///     vs.load("start.ot")?; //~ load-before-registration
    ///     net.register(&vs.root())?;
    ///     let ddp = Ddp::new(net, vs, group, Default::default())?;
    ///     Ok(())
    /// }
    /// ```
    /// ```rust good
    /// use tch::{Tensor, nn};
    /// use tch_ddp::{Ddp, ProcessGroup, data_parallel};
    ///
    /// #[data_parallel]
    /// struct Scales { weights: Vec<Tensor> }
    ///
    /// fn resume(net: Scales, mut vs: nn::VarStore, group: &ProcessGroup) -> anyhow::Result<()> {
    ///     net.register(&vs.root())?;
    ///     vs.load("start.ot")?;
    ///     let ddp = Ddp::new(net, vs, group, Default::default())?;
    ///     Ok(())
    /// }
    /// ```
    ///
    /// # Known limits
    /// Layers that are built after a load are silent: so pretrained models get a new head.
    pub static RULE = {
        name: "load-before-registration",
        level: Level::Error,
        harm: Harm::Wrong,
        tier: 2,
        languages: RUST,
        fix: FixKind::No,
        check,
    };
}

fn check(program: &Program<'_>, report: &mut Report<'_>) {
    for (register, call) in program.calls(Role::RegisterModel) {
        let root = call.argument("root").known().and_then(|a| a.value.single());
        let Some(store) = root.and_then(|t| program.variable_path(t)).map(|path| path.root) else {
            continue;
        };
        let loads = loads_of(program, store);
        if loads.iter().any(|load| load.id > register.id) {
            continue;
        }
        for load in loads {
            if load.loops != register.loops
                || !program.can_both_hold_paths(load.path, register.path)
            {
                continue;
            }
            let called = program.callee_text(load).unwrap_or("load");
            let registered = program.callee_text(register).unwrap_or("register");
            report
                .at(load.site, format!("`{called}` runs before `{registered}`"))
                .why(
                    "it fills what the store holds now; what is registered later keeps its \
                     initial values",
                )
                .help("call `register` right after the model is built, before any load")
                .related(register.site, "registered here, too late");
        }
    }
}

/// The calls that load weights into a store.
fn loads_of<'r, 'p>(program: &'r Program<'p>, store: Term) -> Vec<&'r Event<'p>> {
    let of_store = |receiver: Option<Term>| receiver == Some(store);
    program
        .calls(Role::LoadStateDict)
        .filter(|(_, call)| of_store(call.receiver.as_ref().and_then(Value::single)))
        .map(|(event, _)| event)
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const HEAD: &str = "
use tch::{nn, Tensor};
use tch_ddp::{data_parallel, Ddp, GroupOptions, Launch, ProcessGroup};
#[data_parallel]
pub struct Mixer { gates: Vec<Tensor>, head: nn::Linear }
impl Mixer {
    pub fn new(p: &nn::Path) -> Mixer {
        let one = || Tensor::ones([4], (tch::Kind::Float, p.device())).set_requires_grad(true);
        Mixer { gates: vec![one(), one()], head: nn::linear(p / \"head\", 4, 2, Default::default()) }
    }
}
";

    fn program(body: &str) -> String {
        format!(
            "{HEAD}
fn main() -> anyhow::Result<()> {{
    let launch = Launch::from_env()?;
    let group = ProcessGroup::init(&launch, GroupOptions::default())?;
    let mut vs = nn::VarStore::new(group.device());
    let net = Mixer::new(&vs.root());
{body}
    let ddp = Ddp::new(net, vs, &group, Default::default())?;
    Ok(())
}}
"
        )
    }

    #[test]
    fn a_load_under_a_condition_counts() {
        check_rust(&program(
            "    if std::path::Path::new(\"a.ot\").exists() {
        vs.load(\"a.ot\")?; //~ load-before-registration
    }
    net.register(&vs.root())?;",
        ));
    }

    #[test]
    fn the_right_order_is_silent() {
        check_rust(&program("    net.register(&vs.root())?;\n    vs.load(\"a.ot\")?;"));
    }

    #[test]
    fn a_second_load_behind_is_silent() {
        check_rust(&program(
            "    vs.load(\"a.ot\")?;\n    net.register(&vs.root())?;\n    vs.load(\"a.ot\")?;",
        ));
    }

    #[test]
    fn another_store_is_silent() {
        check_rust(&program(
            "    let mut teacher = nn::VarStore::new(group.device());
    teacher.load(\"teacher.ot\")?;
    net.register(&vs.root())?;",
        ));
    }

    #[test]
    fn a_helper_that_loads_counts() {
        check_files(&[
            (
                "src/main.rs",
                "
mod restore;
use tch::{nn, Tensor};
#[tch_ddp::data_parallel]
struct Net { scales: Vec<Tensor> }
fn main() -> anyhow::Result<()> {
    let group = tch_ddp::ProcessGroup::init(&tch_ddp::Launch::from_env()?, Default::default())?;
    let mut vs = nn::VarStore::new(group.device());
    let net = Net { scales: vec![Tensor::ones([2], tch::kind::FLOAT_CPU)] };
    restore::restore(&mut vs)?;
    net.register(&(vs.root() / \"net\"))?;
    Ok(())
}
",
            ),
            (
                "src/restore.rs",
                "
pub fn restore(store: &mut tch::nn::VarStore) -> anyhow::Result<()> {
    store.load(\"last.safetensors\")?; //~ load-before-registration: `store.load`
    Ok(())
}
",
            ),
        ]);
    }

    #[test]
    fn a_register_of_the_project_is_silent() {
        check_rust(
            "
use tch::nn;
struct Hub;
impl Hub {
    fn register(&self, path: &nn::Path) {}
}
fn main() {
    let group = tch_ddp::ProcessGroup::init(&tch_ddp::Launch::from_env().unwrap(), Default::default());
    let mut vs = nn::VarStore::new(tch::Device::Cpu);
    vs.load(\"a.ot\").unwrap();
    Hub.register(&vs.root());
}
",
        );
    }
}
