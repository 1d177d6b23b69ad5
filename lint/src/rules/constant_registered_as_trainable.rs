use crate::analysis::{Call, Event, Term};
use crate::prelude::*;
use crate::table::Role;

declare_rule! {
    /// A constant, such as a mask or a counter, is registered as a trainable variable.
    ///
    /// `var_copy`, `zeros` and `ones` register variables with gradients: the optimizer changes the
    /// mask (weight decay alone does), and `Ddp` reduces its gradient in each step. A counter that
    /// no loss reaches is an unused parameter, for which the reducer waits: `Expected to have
    /// finished reduction in the prior iteration`. `entry(..).or_zeros_no_train(..)` and
    /// `or_ones_no_train` register trainable variables, whatever their names say (tch 0.26).
    ///
    /// ```rust bad
    /// use tch::{Kind, Tensor, nn};
    ///
    /// fn causal(p: &nn::Path, n: i64) -> Tensor {
    ///     let mask = Tensor::ones([n, n], (Kind::Float, p.device())).tril(0);
    ///     p.var_copy("mask", &mask) //~ constant-registered-as-trainable
    /// }
    /// ```
    /// ```rust good
    /// use tch::{Kind, Tensor, nn};
    ///
    /// fn causal(p: &nn::Path, n: i64) -> Tensor {
    ///     let mask = Tensor::ones([n, n], (Kind::Float, p.device())).tril(0);
    ///     p.add("mask", mask, false)
    /// }
    /// ```
    ///
    /// # Known limits
    /// Constants are known by how they are made (`tril`, `arange`, `eye`) or by their names (`mask`,
    /// `step`, `running_mean`).
    pub static RULE = {
        name: "constant-registered-as-trainable",
        level: Level::Error,
        harm: Harm::Wrong,
        tier: 2,
        languages: RUST,
        fix: FixKind::No,
        check,
    };
}

fn check(program: &Program<'_>, report: &mut Report<'_>) {
    for (event, call) in program.calls(Role::RegisterParameter) {
        let Some(method) = call.name.and_then(|n| n.as_str().rsplit('.').next()) else { continue };
        if method == "add" && !is_trainable(program, call) {
            continue;
        }
        if method.ends_with("_no_train") {
            tell_entry(report, event, method);
            continue;
        }
        let Some(what) = constant(program, call, method) else { continue };
        let called = program.callee_text(event).unwrap_or(method);
        report
            .at(event.site, format!("`{called}` registers {what} as a trainable variable"))
            .why(
                "the optimizer changes it, and its gradient is reduced in each step; without a \
                 gradient the reducer waits for it",
            )
            .help(instead(method));
    }
}

fn tell_entry(report: &mut Report<'_>, event: &Event<'_>, method: &str) {
    report
        .at(
            event.site,
            format!("`{method}` registers a trainable variable, whatever its name says"),
        )
        .why("tch passes `trainable = true` there (0.26): the optimizer changes the tensor")
        .help("use the path's own: `p.zeros_no_train(name, dims)` or `p.add(name, tensor, false)`");
}

fn instead(method: &str) -> &'static str {
    match method.trim_start_matches("f_") {
        "zeros" => "register it with `zeros_no_train`",
        "ones" => "register it with `ones_no_train`",
        _ => "register it with `p.add(name, tensor, false)`",
    }
}

/// `path.add(name, tensor, true)`; anything but a known `true` may be `false`.
fn is_trainable(program: &Program<'_>, call: &Call<'_>) -> bool {
    let given = call.argument("trainable").known();
    given.is_some_and(|a| a.value.single() == Some(program.terms().yes))
}

/// What constant a call registers, in words.
fn constant(program: &Program<'_>, call: &Call<'_>, method: &str) -> Option<String> {
    let name = call.argument("name").known().and_then(|a| a.value.single());
    let name = name.and_then(|t| program.terms().as_str(t));
    if let Some(tensor) = call.argument("tensor").known().and_then(|a| a.value.single())
        && let Some(maker) = constant_maker(program, tensor)
    {
        return Some(format!("what `{maker}` makes"));
    }
    let name = name?;
    let is_filled =
        matches!(method.trim_start_matches("f_"), "zeros" | "ones" | "var_copy" | "add");
    (is_filled && is_constant_name(&name)).then(|| format!("`{name}`"))
}

/// The function that makes a tensor which nobody trains.
fn constant_maker(program: &Program<'_>, tensor: Term) -> Option<&'static str> {
    let (_, text) = program.made_by(tensor)?;
    let makers = [
        ("tril", [".tril(", ".tril_("]),
        ("triu", [".triu(", ".triu_("]),
        ("arange", ["::arange(", "::arange_start("]),
        ("eye", ["::eye(", "::eye_m("]),
    ];
    // Frequencies that are scaled or learned from a range may well be trained.
    let is_plain = |maker: &str| maker != "arange" || !text.contains(['*', '/', '+']);
    makers
        .into_iter()
        .find(|(maker, spelled)| is_plain(maker) && spelled.iter().any(|s| text.contains(s)))
        .map(|(maker, _)| maker)
}

fn is_constant_name(name: &str) -> bool {
    matches!(
        name,
        "mask"
            | "causal_mask"
            | "attn_mask"
            | "attention_mask"
            | "tril"
            | "triu"
            | "step"
            | "steps"
            | "global_step"
            | "iteration"
            | "iterations"
            | "counter"
            | "count"
            | "num_batches_tracked"
            | "n_batches_tracked"
            | "position_ids"
            | "running_mean"
            | "running_var"
    ) || name.ends_with("_counter")
        || name.ends_with("_mask")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_step_counter_counts() {
        check_files(&[
            (
                "src/main.rs",
                "
mod model;
use tch::{nn, Device};
fn main() {
    let vs = nn::VarStore::new(Device::cuda_if_available());
    model::Schedule::new(&vs.root());
}
",
            ),
            (
                "src/model.rs",
                "
use tch::{nn, Tensor};
pub struct Schedule { step: Tensor, decay: Tensor }
impl Schedule {
    pub fn new(path: &nn::Path) -> Self {
        Self {
            step: path.zeros(\"step\", &[]), //~ constant-registered-as-trainable: `step`
            decay: path.ones(\"decay\", &[1]),
        }
    }
}
",
            ),
        ]);
    }

    #[test]
    fn a_triangle_behind_a_view_counts() {
        check_rust(
            "
use std::borrow::Borrow;
use tch::{nn, Kind, Tensor};
struct Attention { bias: Tensor }
impl Attention {
    fn new<'p, P>(p: P, n: i64) -> Attention where P: Borrow<nn::Path<'p>> {
        let p = p.borrow();
        let bias = Tensor::ones([n, n], (Kind::Float, p.device())).tril(0).view([1, 1, n, n]);
        let bias = p.var_copy(\"bias\", &bias); //~ constant-registered-as-trainable: `tril`
        Attention { bias }
    }
}
",
        );
    }

    #[test]
    fn add_with_true_counts() {
        check_rust(
            "
use tch::{nn, Kind, Tensor};
fn positions(vs: nn::Path, n: i64) -> Tensor {
    let ids = Tensor::arange(n, (Kind::Float, vs.device()));
    (&vs / \"embed\").add(\"ids\", ids, true) //~ constant-registered-as-trainable: `arange`
}
",
        );
    }

    #[test]
    fn an_entry_that_promises_not_to_train_counts() {
        check_rust(
            "
use tch::{nn, Tensor};
fn shared(p: &nn::Path) -> Tensor {
    p.entry(\"total\").or_zeros_no_train(&[4]) //~ constant-registered-as-trainable: `or_zeros_no_train`
}
",
        );
    }

    #[test]
    fn buffers_are_silent() {
        check_rust(
            "
use tch::{nn, Kind, Tensor};
fn buffers(p: &nn::Path, frozen: bool) -> Vec<Tensor> {
    let mask = Tensor::ones([4, 4], (Kind::Bool, p.device())).triu(1);
    vec![
        p.zeros_no_train(\"step\", &[]),
        p.add(\"mask\", mask.shallow_clone(), false),
        p.f_add(\"causal_mask\", mask, !frozen),
    ]
}
",
        );
    }

    #[test]
    fn trained_tensors_are_silent() {
        check_rust(
            "
use tch::{nn, Kind, Tensor};
fn parameters(p: &nn::Path, pretrained: &Tensor) -> Vec<Tensor> {
    let slopes = Tensor::arange(8, (Kind::Float, p.device())) * 0.1;
    vec![
        p.zeros(\"bias\", &[8]),
        p.ones(\"stepsize\", &[1]),
        p.zeros(\"mask_token\", &[1, 1, 8]),
        p.var_copy(\"embedding\", pretrained),
        p.var_copy(\"slopes\", &slopes),
        p.randn(\"mask\", &[4], 0., 0.02),
    ]
}
",
        );
    }
}
