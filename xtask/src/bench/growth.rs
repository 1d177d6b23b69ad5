//! How the linter's time grows with a project, and how it copes with deep and long code: made-up
//! projects, their times measured in one run and in turns.

use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};

use crate::cargo::release_linter;
use crate::workspace::Workspace;

/// Ten times the functions may take this many times the time.
const RATIO_MAX: f64 = 12.0;
/// A deep call graph or a long function is to be through by then.
const EXTREME_MAX: Duration = Duration::from_secs(1);

const SMALL: usize = 300;
/// Functions of one file of the project.
const PER_FILE: usize = 20;

#[derive(clap::Args)]
pub(crate) struct Options {
    /// Runs per project, taken in turns.
    #[arg(long, default_value_t = 7)]
    runs: usize,
    /// The linter to measure [default: this checkout's release build].
    #[arg(long)]
    program: Option<PathBuf>,
}

pub(crate) fn run(workspace: &Workspace, options: &Options) -> Result<()> {
    let program = if let Some(program) = &options.program {
        program.canonicalize().with_context(|| format!("no {}", program.display()))?
    } else {
        release_linter(workspace)?
    };
    let folder = workspace.root().join("target/bench-growth");
    let projects = [
        ("small", project(SMALL)),
        ("large", project(10 * SMALL)),
        ("calls 500 deep", vec![main_file(deep_calls(500))]),
        ("5,000 branches", vec![main_file(branches(5_000))]),
        ("5,000 early returns", vec![main_file(early_returns(5_000))]),
    ];
    let mut times = vec![Vec::new(); projects.len()];
    for (name, files) in &projects {
        write(&folder.join(name), files)?;
    }
    // The first turn brings the files into memory and does not count.
    for turn in 0..=options.runs.max(1) {
        for ((name, _), times) in projects.iter().zip(&mut times) {
            let took = time(&program, &folder.join(name))?;
            if turn > 0 {
                times.push(took);
            }
        }
    }
    let medians: Vec<Duration> = times.into_iter().map(super::median).collect();
    println!("medians of {} runs each, in turns", options.runs.max(1));
    for ((name, files), median) in projects.iter().zip(&medians) {
        let n_lines: usize = files.iter().map(|(_, text)| text.lines().count()).sum();
        println!("{:>10.0} ms  {name} ({n_lines} lines)", median.as_secs_f64() * 1e3);
    }
    let ratio = medians[1].as_secs_f64() / medians[0].as_secs_f64();
    let verdict = |good: bool| if good { "" } else { ", MISSED" };
    let held = verdict(ratio <= RATIO_MAX);
    println!(
        "{ratio:>10.1}     times as long for 10 times the functions (at most {RATIO_MAX}{held})"
    );
    for ((name, _), median) in projects.iter().zip(&medians).skip(2) {
        if *median > EXTREME_MAX {
            println!("            {name}: MISSED, more than {EXTREME_MAX:?}");
        }
    }
    fs::remove_dir_all(&folder).with_context(|| format!("cannot remove {}", folder.display()))
}

type File = (String, String);

fn main_file(text: String) -> File {
    ("main.py".to_owned(), text)
}

const HEAD: &str = "import sys\n\nimport torch\nimport torch.distributed as dist\n\n";

/// Functions that test ranks and settings, loop, reduce and call each other, in many files.
fn project(n_functions: usize) -> Vec<File> {
    let n_files = n_functions.div_ceil(PER_FILE);
    let mut files: Vec<File> = (0..n_files)
        .map(|file| {
            let mut text = String::from(HEAD);
            for index in (0..PER_FILE).rev() {
                let _ = write!(
                    text,
                    "def step{index}(model, t):\n    \
                     rank = dist.get_rank()\n    \
                     if rank == 0 and \"--verbose{index}\" in sys.argv:\n        \
                     print({index})\n    \
                     for turn in range(10):\n        \
                     if turn == {index}:\n            return t\n        \
                     dist.all_reduce(t)\n    \
                     torch.save(t, f\"{{rank}}-{file}-{index}.pt\")\n"
                );
                if index % 5 != 4 && index + 1 < PER_FILE {
                    let _ = writeln!(text, "    step{}(model, t)", index + 1);
                }
                text.push_str("    return model(t)\n\n\n");
            }
            (format!("part{file}.py"), text)
        })
        .collect();
    let mut main = String::from(HEAD);
    for file in 0..n_files {
        let _ = writeln!(main, "import part{file}");
    }
    main.push_str(
        "\nif __name__ == \"__main__\":\n    \
         dist.init_process_group(\"gloo\")\n    \
         model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(1, 1))\n    \
         t = torch.ones(1)\n",
    );
    for file in 0..n_files {
        for index in (0..PER_FILE).step_by(5) {
            let _ = writeln!(main, "    part{file}.step{index}(model, t)");
        }
    }
    files.push(main_file(main));
    files
}

/// A collective below that many calls, on rank 0 alone.
fn deep_calls(depth: usize) -> String {
    let mut text = format!("{HEAD}def f{depth}():\n    dist.barrier()\n\n\n");
    for index in (0..depth).rev() {
        let _ = write!(text, "def f{index}():\n    f{}()\n\n\n", index + 1);
    }
    text.push_str("dist.init_process_group(\"gloo\")\nif dist.get_rank() == 0:\n    f0()\n");
    text
}

fn branches(n: usize) -> String {
    let mut text = format!("{HEAD}def f(t):\n    total = 0\n");
    for index in 0..n {
        let _ = write!(text, "    if \"--a{index}\" in sys.argv:\n        total += {index}\n");
    }
    guarded(text)
}

fn early_returns(n: usize) -> String {
    let mut text = format!("{HEAD}def f(t):\n");
    for index in 0..n {
        let _ = write!(text, "    if \"--a{index}\" in sys.argv:\n        return {index}\n");
    }
    guarded(text)
}

/// Ends a function with a collective of rank 0 alone, and calls it.
fn guarded(mut text: String) -> String {
    text.push_str(
        "    if dist.get_rank() == 0:\n        dist.all_reduce(t)\n\n\n\
         dist.init_process_group(\"gloo\")\nf(torch.ones(1))\n",
    );
    text
}

fn write(folder: &Path, files: &[File]) -> Result<()> {
    if folder.exists() {
        fs::remove_dir_all(folder)
            .with_context(|| format!("cannot remove {}", folder.display()))?;
    }
    fs::create_dir_all(folder).with_context(|| format!("cannot make {}", folder.display()))?;
    // What marks the root of a project.
    fs::write(folder.join("ddp-lint.toml"), "")?;
    for (path, text) in files {
        fs::write(folder.join(path), text).with_context(|| format!("cannot write {path}"))?;
    }
    Ok(())
}

/// One run; findings (exit status 1) are fine, anything else is not a result.
fn time(program: &Path, folder: &Path) -> Result<Duration> {
    let began = Instant::now();
    let status = Command::new(program)
        .arg("check")
        .arg(folder)
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .status()
        .with_context(|| format!("cannot start `{}`", program.display()))?;
    if !matches!(status.code(), Some(0 | 1)) {
        bail!("the linter failed on `{}` ({status})", folder.display());
    }
    Ok(began.elapsed())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_project_has_the_functions_that_were_asked_for() {
        let n_functions = |n| {
            let files = project(n);
            files.iter().map(|(_, text)| text.matches("def ").count()).sum::<usize>()
        };
        assert_eq!((n_functions(100), n_functions(1000)), (100, 1000));
        assert_eq!(deep_calls(500).matches("def ").count(), 501);
        assert_eq!(early_returns(5_000).matches("return").count(), 5_000);
    }
}
