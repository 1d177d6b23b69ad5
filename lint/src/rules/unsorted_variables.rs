use crate::analysis::{Event, EventId};
use crate::prelude::*;
use crate::table::{Flag, Role};

declare_rule! {
    /// The order of `vs.variables()` decides which tensors meet in a collective.
    ///
    /// `VarStore::variables` gives a `HashMap`: its order is another one in each process (measured).
    /// The first broadcast of one rank then meets that of another variable on the next rank: sizes
    /// do not match and the run fails, or they do and weights are exchanged silently.
    /// `trainable_variables()` keeps the order in which the variables were registered.
    ///
    /// ```rust bad
    /// use tch::nn;
    ///
    /// fn sync(vs: &nn::VarStore, group: &tch_ddp::ProcessGroup) -> anyhow::Result<()> {
    ///     for (_, variable) in vs.variables() { //~ unsorted-variables
    ///         group.broadcast(&variable, 0)?;
    ///     }
    ///     Ok(())
    /// }
    /// ```
    /// ```rust good
    /// use tch::nn;
    ///
    /// fn sync(vs: &nn::VarStore, group: &tch_ddp::ProcessGroup) -> anyhow::Result<()> {
    ///     let mut named: Vec<_> = vs.variables().into_iter().collect();
    ///     named.sort_by(|a, b| a.0.cmp(&b.0));
    ///     for (_, variable) in named {
    ///         group.broadcast(&variable, 0)?;
    ///     }
    ///     Ok(())
    /// }
    /// ```
    ///
    /// # Known limits
    /// A function that sorts anything, or makes a `BTreeMap`, is taken to sort the variables.
    pub static RULE = {
        name: "unsorted-variables",
        level: Level::Error,
        harm: Harm::Wrong,
        tier: 1,
        languages: RUST,
        fix: FixKind::No,
        check,
    };
}

fn check(program: &Program<'_>, report: &mut Report<'_>) {
    for (variables, call) in program.calls(Role::NamedParameters) {
        if !program.has_flag(call, Flag::Unordered) || sorts(program, variables) {
            continue;
        }
        let Some(driven) = driven(program, variables.id) else { continue };
        let called = program.callee_text(driven).unwrap_or("a collective");
        let source = program.callee_text(variables).unwrap_or("variables");
        report
            .at(variables.site, format!("the order of `{source}()` decides what `{called}` meets"))
            .why(
                "it is a `HashMap`, in another order in each process: the ranks pair different \
                 tensors",
            )
            .help("walk over `trainable_variables()`, or collect and sort by name first")
            .related(driven.site, "the collective that it drives");
    }
}

/// A collective that the variables reach one by one, in their order.
fn driven<'r, 'p>(program: &'r Program<'p>, variables: EventId) -> Option<&'r Event<'p>> {
    let terms = program.terms();
    program.calls(Role::Collective).find_map(|(event, call)| {
        let given = call.arguments.iter().any(|a| a.value.comes_from(terms, variables));
        let walked = || {
            program.loops(event.loops).any(|(_, node)| {
                node.over.is_some_and(|over| terms.origins(over).contains(&variables))
            })
        };
        ((given || walked()) && !sorts(program, event)).then_some(event)
    })
}

fn sorts(program: &Program<'_>, event: &Event<'_>) -> bool {
    let text = program.function_text(event);
    [".sort", "sorted(", "sorted_", "sort_", "BTreeMap"].iter().any(|word| text.contains(word))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_that_drive_reductions_count() {
        check_files(&[
            (
                "src/main.rs",
                "
mod average;
use tch::nn;
use tch_ddp::{GroupOptions, Launch, ProcessGroup};
fn main() -> anyhow::Result<()> {
    let group = ProcessGroup::init(&Launch::from_env()?, GroupOptions::default())?;
    let vs = nn::VarStore::new(group.device());
    let net = nn::linear(vs.root(), 2, 2, Default::default());
    average::average(&vs, &group)
}
",
            ),
            (
                "src/average.rs",
                "
use tch::nn::VarStore;
use tch_ddp::ProcessGroup;
pub fn average(store: &VarStore, pg: &ProcessGroup) -> anyhow::Result<()> {
    for v in store.variables().values() { //~ unsorted-variables: `pg.all_reduce`
        let gradient = v.grad();
        pg.all_reduce(&gradient)?;
    }
    Ok(())
}
",
            ),
        ]);
    }

    #[test]
    fn a_map_kept_in_a_variable_counts() {
        check_rust(
            "
use tch_ddp::ProcessGroup;
struct Trainer { vs: tch::nn::VarStore, group: ProcessGroup }
impl Trainer {
    fn spread(&self) {
        let all = self.vs.variables(); //~ unsorted-variables
        for (name, tensor) in all.iter() {
            if name.ends_with(\"running_mean\") {
                self.group.broadcast(tensor, 0).unwrap();
            }
        }
    }
}
",
        );
    }

    #[test]
    fn a_flat_buffer_of_all_counts() {
        check_rust(
            "
use tch::{nn::VarStore, Tensor};
fn reduce_all(vs: &VarStore, group: &tch_ddp::ProcessGroup) {
    let flat: Vec<Tensor> = vs.variables().values().map(|v| v.grad().flatten(0, -1)).collect(); //~ unsorted-variables
    let flat = Tensor::cat(&flat, 0);
    group.all_reduce(&flat).unwrap();
}
",
        );
    }

    #[test]
    fn a_helper_that_sorts_is_silent() {
        check_files(&[
            (
                "src/main.rs",
                "
mod named;
use tch_ddp::ProcessGroup;
fn spread(vs: &tch::nn::VarStore, group: &ProcessGroup) {
    for (_, v) in named::by_name(vs) {
        group.broadcast(&v, 0).unwrap();
    }
}
fn main() {}
",
            ),
            (
                "src/named.rs",
                "
use std::collections::BTreeMap;
pub fn by_name(vs: &tch::nn::VarStore) -> BTreeMap<String, tch::Tensor> {
    vs.variables().into_iter().collect()
}
",
            ),
        ]);
    }

    #[test]
    fn trainable_variables_are_silent() {
        check_rust(
            "
fn spread(vs: &tch::nn::VarStore, group: &tch_ddp::ProcessGroup) {
    for v in vs.trainable_variables() {
        group.broadcast(&v, 0).unwrap();
    }
}
",
        );
    }

    #[test]
    fn what_one_process_does_with_its_variables_is_silent() {
        check_rust(
            "
fn report(vs: &tch::nn::VarStore, group: &tch_ddp::ProcessGroup) {
    for (name, v) in vs.variables() {
        println!(\"{name}: {:?}\", v.size());
    }
    group.barrier().unwrap();
}
",
        );
    }
}
