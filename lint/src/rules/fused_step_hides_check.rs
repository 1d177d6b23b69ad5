use crate::prelude::*;
use crate::table::Role;

declare_rule! {
    /// tch's fused `backward_step` is used on the output of a `Ddp`.
    ///
    /// `opt.backward_step(&loss)` zeroes, runs backward and steps in one call. The reduction
    /// happens inside, but nothing can check it before the step: an unused parameter, a
    /// changed dtype or a failed peer is found one step late, or never (measured). The wrapper's
    /// own `ddp.backward_step(&mut opt, &loss)` checks, then steps.
    ///
    /// ```rust bad
    /// use tch::nn::ModuleT;
    ///
    /// fn main() -> anyhow::Result<()> {
    ///     let group = tch_ddp::ProcessGroup::init(&tch_ddp::Launch::from_env()?, Default::default())?;
    ///     let vs = tch::nn::VarStore::new(group.device());
    ///     let ddp = tch_ddp::Ddp::new(tch::nn::seq_t(), vs, &group, Default::default())?;
    ///     let mut opt = tch::nn::Adam::default().build(ddp.vars(), 1e-3)?;
    ///     let loss = ddp.forward_t(&tch::Tensor::new(), true).mean(tch::Kind::Float);
    ///     opt.backward_step(&loss); //~ fused-step-hides-check
    ///     Ok(())
    /// }
    /// ```
    /// ```rust good
    /// use tch::nn::ModuleT;
    ///
    /// fn main() -> anyhow::Result<()> {
    ///     let group = tch_ddp::ProcessGroup::init(&tch_ddp::Launch::from_env()?, Default::default())?;
    ///     let vs = tch::nn::VarStore::new(group.device());
    ///     let ddp = tch_ddp::Ddp::new(tch::nn::seq_t(), vs, &group, Default::default())?;
    ///     let mut opt = tch::nn::Adam::default().build(ddp.vars(), 1e-3)?;
    ///     let loss = ddp.forward_t(&tch::Tensor::new(), true).mean(tch::Kind::Float);
    ///     ddp.backward_step(&mut opt, &loss)?;
    ///     Ok(())
    /// }
    /// ```
    ///
    /// # Known limits
    /// The loss must be seen to come from a wrapper.
    pub static RULE = {
        name: "fused-step-hides-check",
        level: Level::Warning,
        harm: Harm::Wrong,
        tier: 1,
        languages: RUST,
        fix: FixKind::No,
        check,
    };
}

fn check(program: &Program<'_>, report: &mut Report<'_>) {
    for (event, call) in program.calls(Role::FusedStep) {
        let is_optimizers = call.name.is_some_and(|n| n.starts_with("tch.nn.Optimizer"));
        if !is_optimizers {
            continue;
        }
        let through = program.wrappers_behind(call);
        let wrapped = through.iter().any(|&(_, wrapper)| program.steps_wrapper(call, wrapper));
        if wrapped {
            let called = program.callee_text(event).unwrap_or("backward_step");
            report
                .at(event.site, format!("`{called}` steps before the reduction is checked"))
                .why("an unused parameter or a failed peer is found one step late, or never")
                .help("use the wrapper's own: `ddp.backward_step(&mut opt, &loss)?`");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_without_a_wrapper_is_silent() {
        check_rust(
            "
use tch::nn::ModuleT;
fn main() {
    let vs = tch::nn::VarStore::new(tch::Device::Cpu);
    let net = tch::nn::seq_t();
    let mut opt = tch::nn::Adam::default().build(&vs, 1e-3).unwrap();
    let loss = net.forward_t(&tch::Tensor::new(), true).mean(tch::Kind::Float);
    opt.backward_step(&loss);
}
",
        );
    }

    #[test]
    fn the_clipping_form_counts() {
        check_rust(
            "
fn train(net: Net, vs: tch::nn::VarStore, group: &tch_ddp::ProcessGroup, x: &tch::Tensor) {
    let ddp = tch_ddp::Ddp::new(net, vs, group, Default::default()).unwrap();
    let mut opt = tch::nn::Adam::default().build(ddp.vars(), 1e-3).unwrap();
    let out = ddp.run(|m| m.forward(x)).unwrap();
    opt.backward_step_clip(&out.mean(tch::Kind::Float), 1.0); //~ fused-step-hides-check
}
",
        );
    }
}
