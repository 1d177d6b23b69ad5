use crate::analysis::{Const, TermKind};
use crate::model::ExprKind;
use crate::prelude::*;
use crate::table::Role;

declare_rule! {
    /// Every rank of a distributed program takes the first GPU.
    ///
    /// `Device::cuda_if_available()` is `Cuda(0)`, in every process. All ranks then share one
    /// device: it runs out of memory, and NCCL refuses (`Duplicate GPU detected`).
    /// `group.device()` is the local rank's device, and already current.
    ///
    /// ```rust bad
    /// use tch_ddp::{Launch, ProcessGroup};
    ///
    /// fn main() -> anyhow::Result<()> {
    ///     let group = ProcessGroup::init(&Launch::from_env()?, Default::default())?;
    ///     let device = tch::Device::cuda_if_available(); //~ device-zero-on-every-rank
    ///     let vs = tch::nn::VarStore::new(device);
    ///     Ok(())
    /// }
    /// ```
    /// ```rust good
    /// use tch_ddp::{Launch, ProcessGroup};
    ///
    /// fn main() -> anyhow::Result<()> {
    ///     let group = ProcessGroup::init(&Launch::from_env()?, Default::default())?;
    ///     let vs = tch::nn::VarStore::new(group.device());
    ///     Ok(())
    /// }
    /// ```
    ///
    /// # Known limits
    /// Inside a module's forward a fixed device belongs to `fixed-device-in-forward`.
    pub static RULE = {
        name: "device-zero-on-every-rank",
        level: Level::Error,
        harm: Harm::Crash,
        tier: 1,
        languages: RUST,
        fix: FixKind::No,
        check,
    };
}

fn check(program: &Program<'_>, report: &mut Report<'_>) {
    if !program.is_distributed() {
        return;
    }
    for role in [Role::MakeTensor, Role::Random] {
        for (event, call) in program.calls(role) {
            let named = call.arguments.iter().find(|a| {
                let is_plain = matches!(a.expr.kind, ExprKind::Name(_));
                is_plain
                    && a.value.single().is_some_and(|t| {
                        matches!(program.terms().kind(t), TermKind::Outside(name)
                            if name.starts_with("tch.kind.") && name.ends_with("_CUDA"))
                    })
            });
            let Some(named) = named.filter(|_| event.modes.forward.is_none()) else { continue };
            if !program.is_guarded(event.path) && !program.is_in_layer_closure(event) {
                tell(program, report, Site { file: event.site.file, span: named.expr.span });
            }
        }
    }
    for role in [Role::FirstDevice, Role::MakeDevice] {
        for (event, call) in program.calls(role) {
            let first = call.arguments.first().and_then(|a| a.value.single());
            let is_zero =
                first.is_some_and(|t| *program.terms().kind(t) == TermKind::Const(Const::Int(0)));
            let fixed = role == Role::FirstDevice
                || is_zero && call.name.is_some_and(|n| n.ends_with("Cuda"));
            let in_forward = event.modes.forward.is_some() || program.is_in_layer_closure(event);
            if fixed && !in_forward && !program.is_guarded(event.path) {
                tell(program, report, event.site);
            }
        }
    }
}

fn tell(program: &Program<'_>, report: &mut Report<'_>, site: Site) {
    let text = program.text(site);
    report
        .at(site, format!("`{text}` is the first GPU, on every rank"))
        .why("all ranks of a node share one device: memory runs out, NCCL refuses")
        .help("use `group.device()`: the local rank's device, already current");
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_fixed_index_counts_and_the_local_rank_does_not() {
        check_rust(
            "
use tch::Device;
fn main() -> anyhow::Result<()> {
    let group = tch_ddp::ProcessGroup::init(&tch_ddp::Launch::from_env()?, Default::default())?;
    let a = tch::nn::VarStore::new(Device::Cuda(0)); //~ device-zero-on-every-rank
    let b = tch::nn::VarStore::new(Device::Cuda(group.local_rank()));
    let c = tch::nn::VarStore::new(Device::Cpu);
    Ok(())
}
",
        );
    }

    #[test]
    fn a_program_with_one_process_is_silent() {
        check_rust(
            "
fn main() {
    let vs = tch::nn::VarStore::new(tch::Device::cuda_if_available());
}
",
        );
    }
}
