//! What `#[data_parallel]` adds to the time that rustc takes for a model of forty fields: the same
//! file with and without the attribute, in turns. Measures whole runs of rustc, so whatever the
//! generated code costs later, in checks and in code generation, is in the figure.

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
    for (name, is_annotated) in [("plain.rs", false), ("annotated.rs", true)] {
        fs::write(folder.join(name), model(is_annotated))?;
    }
    println!("a model of {} fields, {rounds} runs of each, in turns", 4 * FIELDS_PER_KIND);
    println!("{:<28} {:>10} {:>10} {:>8}", "", "without", "with", "adds");
    for (what, emit) in [("cargo check (metadata)", "metadata"), ("cargo build (dev)", "link")] {
        let compile = |name: &str| libraries.compile(folder, name, emit);
        // One turn first that does not count: it brings the libraries into memory.
        compile("plain.rs")?;
        compile("annotated.rs")?;
        let mut pairs = Vec::new();
        for _ in 0..rounds {
            pairs.push((compile("plain.rs")?, compile("annotated.rs")?));
        }
        let mut ratios: Vec<f64> = pairs.iter().map(|(a, b)| b.div_duration_f64(*a)).collect();
        let [plain, annotated] = [0, 1].map(|side| {
            let times = pairs.iter().map(|pair| if side == 0 { pair.0 } else { pair.1 });
            median(&mut times.map(|time| time.as_secs_f64()).collect::<Vec<_>>())
        });
        let adds = (median(&mut ratios) - 1.0) * 100.0;
        println!("{what:<28} {:>7.0} ms {:>7.0} ms {adds:>6.1} %", plain * 1e3, annotated * 1e3);
    }
    Ok(())
}

/// tch and the runtime, built as for a user's program in development.
struct Libraries {
    tch: PathBuf,
    tch_ddp: PathBuf,
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
        Ok(Libraries { tch: library("tch")?, tch_ddp: library("tch_ddp")? })
    }

    fn compile(&self, folder: &Path, source: &str, emit: &str) -> Result<Duration> {
        let mut rustc = Command::new(env::var_os("RUSTC").unwrap_or_else(|| "rustc".into()));
        rustc.current_dir(folder).arg(source);
        rustc.args(["--crate-name", "model", "--crate-type", "lib", "--edition", "2024"]);
        rustc.args(["-C", "debuginfo=line-tables-only", "--emit", emit]);
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
            bail!("`{source}` does not compile\n{}", String::from_utf8_lossy(&output.stderr));
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

/// A model with its constructor and its forward pass.
fn model(is_annotated: bool) -> String {
    let [mut fields, mut built, mut applied] = [const { String::new() }; 3];
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
    }
    let attribute = if is_annotated { "#[tch_ddp::data_parallel]\n" } else { "" };
    format!(
        "use tch::{{Tensor, nn}};\n\
         {attribute}#[derive(Debug)]\npub struct Net {{\n{fields}}}\n\
         impl Net {{\n\
         pub fn new(p: &nn::Path, width: i64) -> Net {{\nNet {{\n{built}}}\n}}\n\
         pub fn forward(&self, x: &Tensor) -> Tensor {{\nlet x = x.shallow_clone();\n{applied}x\n}}\n\
         }}\n"
    )
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
    fn the_two_models_differ_in_the_attribute_alone() {
        let (plain, annotated) = (model(false), model(true));
        assert_eq!(annotated.replace("#[tch_ddp::data_parallel]\n", ""), plain);
        assert_ne!(annotated, plain);
        let is_field =
            |line: &&str| line.trim_start().starts_with("scale") && line.ends_with("Tensor,");
        assert_eq!(plain.lines().filter(is_field).count(), FIELDS_PER_KIND);
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
