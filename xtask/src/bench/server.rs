//! Speed and memory of the language server while somebody types in a large workspace, and that it
//! then knows what a fresh run finds.

mod editor;
mod typing;

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use serde_json::Value;

use crate::cargo::release_linter;
use crate::workspace::Workspace;
use editor::Editor;
use typing::Typist;

/// What the figures are to be at most.
const MEDIAN_MS_MAX: f64 = 20.0;
const P99_MS_MAX: f64 = 60.0;
const MEMORY_MIB_MAX: f64 = 400.0;

#[derive(clap::Args)]
pub(crate) struct Options {
    /// Lines of the workspace; it is made of copies of the fixtures.
    #[arg(long, default_value_t = 100_000)]
    lines: usize,
    /// Edits, at random places of random files.
    #[arg(long, default_value_t = 1_000)]
    edits: usize,
    /// The linter to measure [default: this checkout's release build].
    #[arg(long)]
    program: Option<PathBuf>,
}

impl Default for Options {
    fn default() -> Self {
        Self { lines: 100_000, edits: 1_000, program: None }
    }
}

pub(crate) fn run(workspace: &Workspace, options: &Options) -> Result<()> {
    let program = if let Some(program) = &options.program {
        program.canonicalize().with_context(|| format!("no {}", program.display()))?
    } else {
        release_linter(workspace)?
    };
    let folder = workspace.root().join("target/bench-server");
    let mut texts = generate(&workspace.root().join("fixtures"), &folder, options.lines)?;
    let n_lines: usize = texts.values().map(|text| text.lines().count()).sum();
    println!("{n_lines} lines in {} files, {} edits", texts.len(), options.edits);

    let start = Instant::now();
    let mut editor = Editor::start(&program, &folder)?;
    let n_troubled = editor.workspace_diagnostics()?.len();
    let opened = start.elapsed();
    let mut times = Vec::with_capacity(options.edits);
    let mut typist = Typist::new(&texts);
    for _ in 0..options.edits {
        let edit = typist.next(&texts);
        let text = texts.get_mut(&edit.path).context("the typist knows the files")?;
        editor.open(&edit.path, text)?;
        let range = edit.replace_in(text);
        times.push(editor.change(&edit.path, &range, &edit.text)?);
    }
    let memory = editor.peak_memory_mib();
    let known = editor.workspace_diagnostics()?;
    editor.leave()?;
    times.sort_unstable();

    println!("{:>10.0} ms  until the whole workspace is known", ms(opened));
    println!("{n_troubled:>10}     files with findings");
    figure("ms ", "median from a keystroke to its findings", ms(at(&times, 0.5)), MEDIAN_MS_MAX);
    figure("ms ", "99th percentile", ms(at(&times, 0.99)), P99_MS_MAX);
    println!("{:>10.1} ms  the slowest", ms(at(&times, 1.0)));
    match memory {
        Some(memory) => figure("MiB", "peak memory", memory, MEMORY_MIB_MAX),
        None => println!("            peak memory: this system does not tell"),
    }
    for (path, text) in &texts {
        fs::write(folder.join(path), text).with_context(|| format!("cannot write {path}"))?;
    }
    compare(&known, &fresh(&program, &folder)?)?;
    println!("the findings after all edits are those of a fresh run");
    fs::remove_dir_all(&folder).with_context(|| format!("cannot remove {}", folder.display()))
}

fn figure(unit: &str, what: &str, value: f64, most: f64) {
    let verdict = if value <= most { "" } else { ", MISSED" };
    println!("{value:>10.1} {unit} {what} (at most {most}{verdict})");
}

fn ms(time: Duration) -> f64 {
    time.as_secs_f64() * 1e3
}

/// The time that a share of the sorted times does not exceed.
fn at(times: &[Duration], share: f64) -> Duration {
    let rank = (times.len() as f64 * share).ceil() as usize;
    times.get(rank.saturating_sub(1)).copied().unwrap_or_default()
}

/// Copies the fixtures' sources side by side until there are enough lines: one project with many
/// programs. The texts by path relative to `folder`.
fn generate(fixtures: &Path, folder: &Path, n_lines: usize) -> Result<BTreeMap<String, String>> {
    let mut originals = BTreeMap::new();
    for language in ["python", "rust"] {
        collect(&fixtures.join(language), fixtures, &mut originals)?;
    }
    if originals.is_empty() {
        bail!("no sources below `{}`", fixtures.display());
    }
    if folder.exists() {
        fs::remove_dir_all(folder)
            .with_context(|| format!("cannot remove {}", folder.display()))?;
    }
    let mut texts = BTreeMap::new();
    let mut n_written = 0;
    for copy in 0.. {
        if n_written >= n_lines {
            break;
        }
        for (path, text) in &originals {
            let path = format!("copy_{copy:03}/{path}");
            let target = folder.join(&path);
            fs::create_dir_all(target.parent().context("a file lies in a folder")?)?;
            fs::write(&target, text).with_context(|| format!("cannot write {path}"))?;
            if target.extension().is_some_and(|ending| ending != "toml") {
                n_written += text.lines().count();
                texts.insert(path, text.clone());
            }
        }
    }
    // What marks the root of the project.
    fs::write(folder.join("ddp-lint.toml"), "")?;
    Ok(texts)
}

fn collect(folder: &Path, root: &Path, texts: &mut BTreeMap<String, String>) -> Result<()> {
    let unreadable = || format!("cannot read {}", folder.display());
    for entry in fs::read_dir(folder).with_context(unreadable)? {
        let path = entry.with_context(unreadable)?.path();
        let ending = path.extension().and_then(|ending| ending.to_str());
        if path.is_dir() {
            collect(&path, root, texts)?;
        } else if matches!(ending, Some("py" | "rs" | "toml")) {
            let text = fs::read_to_string(&path)
                .with_context(|| format!("cannot read {}", path.display()))?;
            let path = path.strip_prefix(root).context("a fixture lies below the fixtures")?;
            texts.insert(path.to_string_lossy().replace('\\', "/"), text);
        }
    }
    Ok(())
}

/// What a fresh run finds: path, line, column and rule, sorted.
fn fresh(program: &Path, folder: &Path) -> Result<Vec<String>> {
    let output = Command::new(program)
        .args(["check", "--output-format", "json"])
        .current_dir(folder)
        .output()
        .with_context(|| format!("cannot start {}", program.display()))?;
    if !matches!(output.status.code(), Some(0 | 1)) {
        bail!("the fresh run failed: {}", String::from_utf8_lossy(&output.stderr));
    }
    let findings: Vec<Value> = serde_json::from_slice(&output.stdout).context("no JSON")?;
    let mut places: Vec<String> = findings
        .iter()
        .map(|finding| {
            let text = |key: &str| finding[key].as_str().unwrap_or("?").to_owned();
            let start = &finding["start"];
            format!("{}:{}:{} {}", text("path"), start["line"], start["column"], text("rule"))
        })
        .collect();
    places.sort();
    Ok(places)
}

/// Both must be the same; if not, the first differences are told.
fn compare(known: &BTreeMap<String, Vec<Value>>, fresh: &[String]) -> Result<()> {
    let mut places = Vec::new();
    for (path, diagnostics) in known {
        for diagnostic in diagnostics {
            let start = &diagnostic["range"]["start"];
            let number = |key: &str| start[key].as_u64().unwrap_or(0) + 1;
            let rule = diagnostic["code"].as_str().unwrap_or("?");
            places.push(format!("{path}:{}:{} {rule}", number("line"), number("character")));
        }
    }
    places.sort();
    if places == *fresh {
        return Ok(());
    }
    let only = |of: &[String], other: &[String]| {
        of.iter().filter(|place| !other.contains(place)).take(5).cloned().collect::<Vec<_>>()
    };
    bail!(
        "the server and a fresh run differ: only the server {:#?}, only the fresh run {:#?}",
        only(&places, fresh),
        only(fresh, &places)
    );
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_are_times_that_were_measured() {
        let ms = Duration::from_millis;
        let times: Vec<Duration> = (1..=200).map(ms).collect();
        assert_eq!(at(&times, 0.5), ms(100));
        assert_eq!(at(&times, 0.99), ms(198));
        assert_eq!(at(&times, 1.0), ms(200));
        assert_eq!(at(&[], 0.5), ms(0));
    }

    #[test]
    fn the_workspace_has_the_lines_that_were_asked_for() {
        let folder = tempfile::tempdir().unwrap();
        let fixtures = folder.path().join("fixtures");
        fs::create_dir_all(fixtures.join("python/one")).unwrap();
        fs::create_dir_all(fixtures.join("rust")).unwrap();
        fs::write(fixtures.join("python/one/a.py"), "a\nb\nc\n").unwrap();
        fs::write(fixtures.join("rust/Cargo.toml"), "[package]\n").unwrap();
        let texts = generate(&fixtures, &folder.path().join("out"), 7).unwrap();
        let paths: Vec<&String> = texts.keys().collect();
        let copy = |n: u8| format!("copy_00{n}/python/one/a.py");
        assert_eq!(paths, [&copy(0), &copy(1), &copy(2)]);
        assert!(folder.path().join("out/copy_002/rust/Cargo.toml").is_file());
    }

    #[test]
    fn a_difference_is_told() {
        let diagnostic = serde_json::json!({ "code": "a-rule",
            "range": { "start": { "line": 0, "character": 4 } } });
        let known = BTreeMap::from([("a.py".to_owned(), vec![diagnostic])]);
        compare(&known, &["a.py:1:5 a-rule".to_owned()]).unwrap();
        let told = compare(&known, &["b.py:1:5 a-rule".to_owned()]).unwrap_err().to_string();
        assert!(told.contains("b.py"), "{told}");
    }
}
