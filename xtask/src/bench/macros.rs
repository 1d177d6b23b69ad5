//! What `#[data_parallel]` adds to the time that rustc takes for a model of forty fields: the same
//! file without it, with it, and with the trait implemented by hand, in turns. Measures whole runs
//! of rustc, so what the generated code costs later, in checks and in code generation, is in it.

use std::env;
use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use serde_json::Value;

use crate::cargo::{cargo, show, succeed};
use crate::setup;
use crate::workspace::Workspace;

/// Ten fields of each of four kinds.
const FIELDS_PER_KIND: usize = 10;

/// How the model gets its walk.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Walk {
    None,
    Attribute,
    ByHand,
}

const WALKS: [Walk; 3] = [Walk::None, Walk::Attribute, Walk::ByHand];

/// What is compiled, and how.
struct Task {
    what: &'static str,
    crate_type: &'static str,
    emit: &'static str,
}

const TASKS: [Task; 4] = [
    Task { what: "program, cargo check", crate_type: "bin", emit: "metadata" },
    Task { what: "program, cargo build", crate_type: "bin", emit: "link" },
    Task { what: "model alone, cargo check", crate_type: "lib", emit: "metadata" },
    Task { what: "model alone, cargo build", crate_type: "lib", emit: "link" },
];

pub(crate) fn run(workspace: &Workspace, rounds: usize) -> Result<()> {
    setup::run(workspace)?;
    let libraries = Libraries::build(workspace)?;
    let folder = env::temp_dir().join(format!("ddp-bench-macro-{}", std::process::id()));
    fs::create_dir_all(&folder).with_context(|| format!("cannot make {}", folder.display()))?;
    let result = measure(&libraries, &folder, rounds.max(1));
    fs::remove_dir_all(&folder)?;
    result
}

fn measure(libraries: &Libraries, folder: &Path, rounds: usize) -> Result<()> {
    println!(
        "a model of {} fields with its constructor and forward pass, alone and in a program that \
         trains it with `Ddp`; {rounds} runs of each, in turns, medians",
        4 * FIELDS_PER_KIND
    );
    println!("{:<26} {:>10} {:>20} {:>20}", "", "without", "the attribute adds", "by hand adds");
    for task in &TASKS {
        let compile = |walk: Walk| {
            let source = if task.crate_type == "bin" { program(walk) } else { model(walk) };
            fs::write(folder.join("model.rs"), source)?;
            libraries.compile(folder, task)
        };
        // One turn first that does not count: it brings the libraries into memory.
        let mut times = [const { Vec::new() }; 3];
        for round in 0..=rounds {
            for (walk, times) in WALKS.into_iter().zip(&mut times) {
                let took = compile(walk)?;
                if round > 0 {
                    times.push(took.as_secs_f64() * 1e3);
                }
            }
        }
        let without = median(&mut times[0].clone());
        let [attribute, by_hand] = [1, 2].map(|k| added(&times[0], &times[k], without));
        println!("{:<26} {without:>7.0} ms {attribute:>20} {by_hand:>20}", task.what);
    }
    Ok(())
}

/// The median of what a run takes longer than the one beside it.
fn added(without: &[f64], with: &[f64], median_without: f64) -> String {
    let mut more: Vec<f64> =
        with.iter().zip(without).map(|(with, without)| with - without).collect();
    let more = median(&mut more);
    format!("{more:.1} ms, {:.1} %", more / median_without * 100.0)
}

/// tch and the runtime, built as for a user's program in development.
struct Libraries {
    tch: PathBuf,
    tch_ddp: PathBuf,
    /// Folders with what the two link to, as `-L` takes them.
    native: Vec<String>,
}

impl Libraries {
    fn build(workspace: &Workspace) -> Result<Libraries> {
        let mut build = cargo(workspace);
        build.args(["build", "--package", "tch-ddp"]);
        succeed(&mut build)?;
        // Once more, for the list of what there is now.
        build.args(["--message-format", "json", "--quiet"]);
        let output = build.output().with_context(|| format!("cannot start `{}`", show(&build)))?;
        let list = String::from_utf8_lossy(&output.stdout);
        let library = |name: &str| {
            let path = list.lines().find_map(|line| library_of(line, name));
            path.with_context(|| format!("`{}` tells of no library {name}", show(&build)))
        };
        let native = list.lines().flat_map(native_folders).collect();
        Ok(Libraries { tch: library("tch")?, tch_ddp: library("tch_ddp")?, native })
    }

    fn compile(&self, folder: &Path, task: &Task) -> Result<Duration> {
        let mut rustc = Command::new(env::var_os("RUSTC").unwrap_or_else(|| "rustc".into()));
        rustc.current_dir(folder).arg("model.rs");
        rustc.args(["--crate-name", "model", "--edition", "2024"]);
        rustc.args(["--crate-type", task.crate_type, "--emit", task.emit]);
        rustc.args(["-C", "debuginfo=line-tables-only"]);
        rustc.args(self.native.iter().flat_map(|folder| ["-L", folder]));
        for (name, path) in [("tch", &self.tch), ("tch_ddp", &self.tch_ddp)] {
            rustc.arg("--extern").arg(format!("{name}={}", path.display()));
            let libraries = path.parent().unwrap_or(folder);
            for folder in [libraries.to_owned(), libraries.join("deps")] {
                rustc.arg("-L").arg(format!("dependency={}", folder.display()));
            }
        }
        let began = Instant::now();
        let output = rustc.output().with_context(|| format!("cannot start `{}`", show(&rustc)))?;
        let took = began.elapsed();
        if !output.status.success() {
            bail!("the model does not compile\n{}", String::from_utf8_lossy(&output.stderr));
        }
        Ok(took)
    }
}

/// The file of a library with this name, if a line of cargo's messages tells of it.
fn library_of(line: &str, name: &str) -> Option<PathBuf> {
    let message: Value = serde_json::from_str(line).ok()?;
    if message["reason"] != "compiler-artifact" || message["target"]["name"] != name {
        return None;
    }
    let files = message["filenames"].as_array()?.iter().filter_map(Value::as_str);
    files.map(PathBuf::from).find(|file| file.extension().is_some_and(|it| it == "rlib"))
}

/// The folders that a build script names, if a line of cargo's messages is about one.
fn native_folders(line: &str) -> Vec<String> {
    let message: Value = serde_json::from_str(line).unwrap_or_default();
    let folders = message["linked_paths"].as_array().into_iter().flatten();
    folders.filter_map(|folder| Some(folder.as_str()?.to_owned())).collect()
}

/// A model with its constructor and its forward pass.
fn model(walk: Walk) -> String {
    let [mut fields, mut built, mut applied, mut walked] = [const { String::new() }; 4];
    for k in 0..FIELDS_PER_KIND {
        let _ = write!(
            fields,
            "layer{k}: nn::Linear,\n norm{k}: Option<nn::LayerNorm>,\n blocks{k}: Vec<nn::Linear>,\
             \n scale{k}: Tensor,\n"
        );
        let _ = write!(
            built,
            "layer{k}: nn::linear(p / \"layer{k}\", width, width, Default::default()),\n\
             norm{k}: Some(nn::layer_norm(p / \"norm{k}\", vec![width], Default::default())),\n\
             blocks{k}: (0..3)\n\
             .map(|i| nn::linear(p / \"blocks{k}\" / i, width, width, Default::default()))\n\
             .collect(),\n\
             scale{k}: p.ones(\"scale{k}\", &[width]),\n"
        );
        let _ = write!(
            applied,
            "let x = x.apply(&self.layer{k}).apply_opt(&self.norm{k}).relu();\n\
             let x = self.blocks{k}.iter().fold(x, |x, block| &x + x.apply(block).relu());\n\
             let x = x * &self.scale{k};\n"
        );
        for field in ["layer", "norm", "blocks", "scale"] {
            let _ = write!(
                walked,
                "visitor.enter(\"{field}{k}\");\nself.{field}{k}.visit(visitor);\n\
                 visitor.leave();\n"
            );
        }
    }
    let attribute = if walk == Walk::Attribute { ATTRIBUTE } else { "" };
    let by_hand = format!(
        "impl tch_ddp::Replicable for Net {{\n\
         fn visit(&self, visitor: &mut tch_ddp::module::Visitor<'_>) {{\n{walked}}}\n}}\n"
    );
    format!(
        "use tch::{{Tensor, nn}};\n\
         {attribute}#[derive(Debug)]\npub struct Net {{\n{fields}}}\n\
         impl Net {{\n\
         pub fn new(p: &nn::Path, width: i64) -> Net {{\nNet {{\n{built}}}\n}}\n\
         pub fn forward(&self, x: &Tensor) -> Tensor {{\n\
         let x = x.shallow_clone();\n{applied}x\n}}\n\
         }}\n{}",
        if walk == Walk::ByHand { by_hand.as_str() } else { "" }
    )
}

const ATTRIBUTE: &str = "#[tch_ddp::data_parallel]\n";

/// The model in the smallest program that trains it on all ranks.
fn program(walk: Walk) -> String {
    model(walk)
        + r#"
use tch::nn::OptimizerConfig;
use tch_ddp::{Ddp, DdpOptions, DistributedSampler, GroupOptions, Launch, ProcessGroup};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let launch = Launch::from_env()?;
    let group = ProcessGroup::init(&launch, GroupOptions::default())?;
    let vs = nn::VarStore::new(group.device());
    let net = Net::new(&vs.root(), 64);
    let mut opt = nn::AdamW::default().build(&vs, 1e-3)?;
    let ddp = Ddp::new(net, vs, &group, DdpOptions::default())?;
    let x = Tensor::randn([1024, 64], (tch::Kind::Float, group.device()));
    let sampler = DistributedSampler::new(1024, &group).batch_size(32);
    for epoch in 0..10 {
        for rows in sampler.epoch(epoch) {
            let x = x.index_select(0, &rows);
            let y = ddp.run(|net| net.forward(&x))?;
            ddp.backward_step(&mut opt, &y.mse_loss(&x, tch::Reduction::Mean))?;
        }
        ddp.save("model.safetensors")?;
    }
    Ok(())
}
"#
}

fn median(numbers: &mut [f64]) -> f64 {
    numbers.sort_by(f64::total_cmp);
    let middle = numbers.len() / 2;
    if numbers.len().is_multiple_of(2) {
        f64::midpoint(numbers[middle - 1], numbers[middle])
    } else {
        numbers[middle]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_models_differ_in_their_walk_alone() {
        for source in [model, program] {
            let [plain, annotated, by_hand] = WALKS.map(source);
            assert_eq!(annotated.replace(ATTRIBUTE, ""), plain);
            assert_ne!(annotated, plain);
            let (start, rest) = by_hand.split_once("impl tch_ddp::Replicable").unwrap();
            let (walk, rest) = rest.split_once("\n}\n}\n").unwrap();
            assert_eq!(format!("{start}{rest}"), plain);
            assert_eq!(walk.matches(".visit(visitor)").count(), 4 * FIELDS_PER_KIND);
        }
        let is_field =
            |line: &&str| line.trim_start().starts_with("scale") && line.ends_with("Tensor,");
        assert_eq!(model(Walk::None).lines().filter(is_field).count(), FIELDS_PER_KIND);
    }

    #[test]
    fn what_is_added_is_compared_run_by_run() {
        // The machine was busier in the second round, for both.
        assert_eq!(added(&[100.0, 200.0, 100.0], &[105.0, 205.0, 105.0], 100.0), "5.0 ms, 5.0 %");
    }

    #[test]
    fn folders_to_link_from_are_found_in_cargos_messages() {
        let line = r#"{"reason":"build-script-executed","linked_paths":["native=/t/lib","/u"]}"#;
        assert_eq!(native_folders(line), ["native=/t/lib", "/u"]);
        assert!(native_folders("Compiling tch").is_empty());
    }

    #[test]
    fn libraries_are_found_in_cargos_messages() {
        let line = r#"{"reason":"compiler-artifact","target":{"name":"tch"},
            "filenames":["/t/libtch-1.rlib","/t/libtch-1.rmeta"]}"#;
        let line = line.replace('\n', "");
        assert_eq!(library_of(&line, "tch"), Some(PathBuf::from("/t/libtch-1.rlib")));
        assert_eq!(library_of(&line, "tch_ddp"), None);
        assert_eq!(library_of("Compiling tch", "tch"), None);
    }

    #[test]
    fn median_is_the_middle_or_between_the_two_middle_ones() {
        let near = |a: f64, b: f64| (a - b).abs() < 1e-12;
        assert!(near(median(&mut [9.0, 1.0, 4.0]), 4.0));
        assert!(near(median(&mut [9.0, 1.0, 4.0, 5.0]), 4.5));
    }
}
