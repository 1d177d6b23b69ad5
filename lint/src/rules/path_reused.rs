use rustc_hash::{FxHashMap, FxHashSet};

use crate::analysis::registration::VariablePath;
use crate::analysis::{Call, Event, EventKind};
use crate::prelude::*;
use crate::rust::edit::Editor;
use crate::table::Role;

declare_rule! {
    /// Two layers are built on one `nn::Path` without a name of their own.
    ///
    /// Each wants to register a `weight` there. tch renames the second one to `weight__2`, where
    /// the number is the size of the store at that moment: the names depend on the order in which
    /// layers are built. A checkpoint then loads into the wrong layer as soon as that order
    /// changes, and the names tell nobody what they are (`cannot find weight__7`).
    ///
    /// ```rust bad
    /// use tch::nn;
    ///
    /// struct Net { hidden: nn::Linear, out: nn::Linear }
    ///
    /// impl Net {
    ///     fn new(vs: &nn::Path) -> Net {
    ///         let hidden = nn::linear(vs, 8, 16, Default::default());
    ///         let out = nn::linear(vs, 16, 2, Default::default()); //~ path-reused
    ///         Net { hidden, out }
    ///     }
    /// }
    /// ```
    /// ```rust fixed
    /// use tch::nn;
    ///
    /// struct Net { hidden: nn::Linear, out: nn::Linear }
    ///
    /// impl Net {
    ///     fn new(vs: &nn::Path) -> Net {
    ///         let hidden = nn::linear(vs / "hidden", 8, 16, Default::default());
    ///         let out = nn::linear(vs / "out", 16, 2, Default::default());
    ///         Net { hidden, out }
    ///     }
    /// }
    /// ```
    ///
    /// # Known limits
    /// Recurrent layers use other names (`weight_ih_l0`), and clash only among themselves. Paths
    /// that are not known to be one and the same are silent.
    pub static RULE = {
        name: "path-reused",
        level: Level::Warning,
        harm: Harm::Corrupt,
        tier: 1,
        languages: RUST,
        fix: FixKind::Unsafe,
        check,
    };
}

/// What a call registers below its path.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Variables {
    /// `weight`, in most layers with a `bias`.
    Layer,
    /// `weight_ih_l0` and so on.
    Recurrent,
    /// A tensor under this name.
    Named(Name),
}

type Built<'r, 'p> = (&'r Event<'p>, &'r Call<'p>, Variables);

fn check(program: &Program<'_>, report: &mut Report<'_>) {
    let mut by_path: FxHashMap<VariablePath, Vec<Built<'_, '_>>> = FxHashMap::default();
    let mut order = Vec::new();
    for (event, call, path) in program.registrations() {
        let Some(variables) = variables(program, call) else { continue };
        if let Some(site) = program.repeated_on(event, &path) {
            tell_repeated(program, report, event, site);
        }
        let built = by_path.entry(path.clone()).or_default();
        if built.is_empty() {
            order.push(path);
        }
        built.push((event, call, variables));
    }
    for path in order {
        tell_clashes(program, report, &by_path[&path]);
    }
}

fn variables(program: &Program<'_>, call: &Call<'_>) -> Option<Variables> {
    if call.role == Role::Layer {
        let name = call.name?;
        let recurrent = name.ends_with(".lstm") || name.ends_with(".gru");
        return Some(if recurrent { Variables::Recurrent } else { Variables::Layer });
    }
    let name = call.argument("name").known()?.value.single()?;
    Some(Variables::Named(program.terms().as_str(name)?))
}

fn clash(a: Variables, b: Variables) -> bool {
    let is_weight = |name: Name| &*name == "weight";
    match (a, b) {
        (Variables::Layer, Variables::Named(name)) | (Variables::Named(name), Variables::Layer) => {
            is_weight(name)
        }
        _ => a == b,
    }
}

/// One finding for each function and path.
fn tell_clashes(program: &Program<'_>, report: &mut Report<'_>, built: &[Built<'_, '_>]) {
    let mut told = FxHashSet::default();
    for (index, second) in built.iter().enumerate() {
        let function = program.frame(second.0.frame).function;
        let Some(first) = clashing(program, &built[..index], second) else { continue };
        if !told.insert(function) {
            continue;
        }
        let (event, call, variables) = *second;
        let what = registered(variables);
        let made = program.callee_text(event).unwrap_or("this");
        let here: Vec<_> =
            built.iter().filter(|b| program.frame(b.0.frame).function == function).collect();
        report
            .at(event.site, format!("`{made}` registers {what} on a path that has one already"))
            .why(WHY)
            .help(help(program, event, call))
            .related(first.0.site, "registered here first")
            .fix(separate(program, &here));
    }
}

/// An earlier call that meets a call, in one round of the loops around them.
fn clashing<'b, 'r, 'p>(
    program: &Program<'p>,
    earlier: &'b [Built<'r, 'p>],
    second: &Built<'r, 'p>,
) -> Option<&'b Built<'r, 'p>> {
    let function = |built: &Built<'_, '_>| program.frame(built.0.frame).function;
    let meets = |first: &&Built<'_, '_>| {
        clash(first.2, second.2)
            && first.0.site != second.0.site
            && first.0.loops == second.0.loops
            && program.can_both_hold_paths(first.0.path, second.0.path)
            && !in_other_arms(program, first.0, second.0)
    };
    let near = earlier.iter().find(|first| function(first) == function(second) && meets(first));
    near.or_else(|| earlier.iter().find(meets))
}

const WHY: &str = "tch renames the second to `weight__2`, by the order of construction: \
                   checkpoints hang on that order, and load into the wrong layer when it changes";

fn registered(variables: Variables) -> String {
    match variables {
        Variables::Layer => "a `weight`".to_owned(),
        Variables::Recurrent => "a `weight_ih_l0`".to_owned(),
        Variables::Named(name) => format!("a `{name}`"),
    }
}

fn help(program: &Program<'_>, event: &Event<'_>, call: &Call<'_>) -> String {
    let Some(path) = path_text(program, event, call) else {
        return "give each tensor a name of its own".to_owned();
    };
    let name = field(program, call).map_or_else(|| "name".to_owned(), |n| n.to_string());
    format!("give each layer a path of its own: `{path} / \"{name}\"`")
}

fn path_text<'p>(program: &Program<'p>, event: &Event<'p>, call: &Call<'p>) -> Option<&'p str> {
    let path = call.argument("vs").known()?;
    Some(program.text(Site { file: event.site.file, span: path.expr.span }))
}

/// One test lets the one run and keeps the other from it.
fn in_other_arms(program: &Program<'_>, a: &Event<'_>, b: &Event<'_>) -> bool {
    program.conditions(a.path).any(|of_a| {
        program.conditions(b.path).any(|of_b| {
            of_a.site == of_b.site && of_a.frame == of_b.frame && of_a.condition != of_b.condition
        })
    })
}

/// `site`: the call in the loop's body, of the layer itself or of what builds it.
fn tell_repeated(program: &Program<'_>, report: &mut Report<'_>, event: &Event<'_>, site: Site) {
    let called = if site == event.site { program.callee_text(event) } else { None };
    let built = called.map_or_else(
        || "what this builds stands on the same path in each round of the loop".to_owned(),
        |made| format!("`{made}` is built on the same path in each round of the loop"),
    );
    let draft =
        report.at(site, built).why(WHY).help("give each round a path of its own: `path / i`");
    if site != event.site {
        draft.related(event.site, "one of the layers");
    }
}

/// A name for each layer's path: that of the field which keeps it.
fn separate(program: &Program<'_>, built: &[&Built<'_, '_>]) -> Option<Fix> {
    let mut names = Vec::new();
    let mut edits = Vec::new();
    let mut sites = Vec::new();
    for (event, call, variables) in built {
        if sites.contains(&event.site) {
            continue;
        }
        sites.push(event.site);
        if *variables == Variables::Recurrent {
            continue;
        }
        let name = field(program, call)?;
        let path = call.argument("vs").known()?;
        if names.contains(&name) {
            return None;
        }
        names.push(name);
        let editor = Editor::new(program.project().file(event.site.file));
        edits.extend(editor.surround(path.expr.span, "", &format!(" / \"{name}\"")));
    }
    edits.retain(|edit| !edit.replacement.is_empty());
    let title = "give each layer a path of its own; old checkpoints no longer load".to_owned();
    (names.len() > 1).then_some(Fix { applicability: Applicability::Unsafe, title, edits })
}

/// The field that keeps what a call made.
fn field(program: &Program<'_>, call: &Call<'_>) -> Option<Name> {
    let layer = call.result.single()?;
    program.events().iter().find_map(|event| match &event.kind {
        EventKind::AttributeStore { name, value, .. } if value.single() == Some(layer) => {
            Some(*name)
        }
        _ => None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_chain_of_layers_counts_once() {
        check_rust(
            "
use tch::nn;
fn net(p: nn::Path) -> impl nn::Module {
    nn::seq()
        .add(nn::linear(&p, 4, 8, Default::default()))
        .add_fn(|x| x.relu())
        .add(nn::linear(&p, 8, 8, Default::default())) //~ path-reused: a `weight`
        .add(nn::linear(&p, 8, 1, Default::default()))
}
",
        );
    }

    #[test]
    fn a_convolution_and_its_norm_share_weight() {
        check_files(&[
            (
                "src/main.rs",
                "
mod blocks;
use tch::{nn, Device};
fn main() {
    let vs = nn::VarStore::new(Device::Cpu);
    let root = vs.root();
    let stem = blocks::conv_bn(&root.sub(\"stem\"), 3, 16);
    let next = blocks::conv_bn(&root.sub(\"next\"), 16, 32);
}
",
            ),
            (
                "src/blocks.rs",
                "
use tch::nn::{self, ModuleT};
pub fn conv_bn(path: &nn::Path, i: i64, o: i64) -> nn::SequentialT {
    let conv = nn::conv2d(path, i, o, 3, nn::ConvConfig { padding: 1, ..Default::default() });
    let norm = nn::batch_norm2d(path, o, Default::default()); //~ path-reused
    nn::seq_t().add(conv).add(norm)
}
",
            ),
        ]);
    }

    #[test]
    fn a_loop_over_one_path_counts() {
        check_rust(
            "
use std::borrow::Borrow;
use tch::nn;
struct Stack { layers: Vec<nn::Linear> }
impl Stack {
    fn new<'p, P: Borrow<nn::Path<'p>>>(p: P, depth: i64) -> Self {
        let p = p.borrow();
        let mut layers = Vec::new();
        for _ in 0..depth {
            layers.push(nn::linear(p, 8, 8, Default::default())); //~ path-reused: each round
        }
        Stack { layers }
    }
}
",
        );
    }

    #[test]
    fn blocks_built_in_a_loop_count_unless_the_path_is_indexed() {
        let program = |path: &str, mark: &str| {
            format!(
                "
use tch::nn;
struct Block {{ inner: nn::Linear }}
impl Block {{
    fn new(vs: &nn::Path) -> Block {{
        Block {{ inner: nn::linear(vs / \"inner\", 8, 8, Default::default()) }}
    }}
}}
fn blocks(vs: &nn::Path, n: usize) -> Vec<Block> {{
    let mut all = vec![];
    for i in 0..n {{
        all.push(Block::new(&({path})));{mark}
    }}
    all
}}
fn main() {{
    let vs = nn::VarStore::new(tch::Device::Cpu);
    blocks(&vs.root(), 4);
}}
"
            )
        };
        check_rust(&program("vs", " //~ path-reused: in each round"));
        check_rust(&program("vs / i", ""));
    }

    #[test]
    fn explicit_names_that_meet_count() {
        check_rust(
            "
use tch::{nn, Tensor};
struct Scale { weight: Tensor, gain: Tensor, fc: nn::Linear }
fn build(p: &nn::Path) -> Scale {
    let p = p / \"scale\";
    let weight = p.ones(\"weight\", &[4]);
    let gain = p.ones(\"gain\", &[4]);
    let fc = nn::linear(&p, 4, 4, Default::default()); //~ path-reused
    Scale { weight, gain, fc }
}
",
        );
    }

    #[test]
    fn arms_of_which_one_runs_are_silent() {
        check_rust(
            "
use tch::nn;
fn head(vs: nn::Path, deep: bool) -> nn::Sequential {
    let p = &vs / \"head\";
    if deep {
        nn::seq()
            .add(nn::linear(&p / 0, 8, 8, Default::default()))
            .add(nn::linear(&p / 1, 8, 2, Default::default()))
    } else {
        nn::seq().add(nn::linear(&p / 0, 8, 2, Default::default()))
    }
}
fn gated(vs: &nn::Path, narrow: bool) -> nn::Linear {
    if narrow {
        return nn::linear(vs, 8, 2, Default::default());
    }
    nn::linear(vs, 8, 16, Default::default())
}
",
        );
    }

    #[test]
    fn recurrent_layers_new_paths_and_stores_of_their_own_are_silent() {
        check_rust(
            "
use tch::{nn, Device};
struct Speller { rnn: nn::LSTM, out: nn::Linear, gate: nn::Linear }
impl Speller {
    fn new(vs: nn::Path) -> Self {
        let rnn = nn::lstm(&vs, 8, 16, Default::default());
        let out = nn::linear(&vs, 16, 4, Default::default());
        let vs = &vs / \"gate\";
        let gate = nn::linear(&vs, 16, 16, Default::default());
        Self { rnn, out, gate }
    }
}
fn main() {
    for seed in 0..3 {
        let actor = nn::VarStore::new(Device::Cpu);
        let critic = nn::VarStore::new(Device::Cpu);
        let a = nn::linear(actor.root(), 4, 2, Default::default());
        let c = nn::linear(critic.root(), 4, 1, Default::default());
        Speller::new(actor.root() / \"speller\");
    }
}
",
        );
    }
}
