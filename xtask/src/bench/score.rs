//! The score: counted by a program that is not part of this project, on cases that are not either.

use std::path::Path;
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail};

use crate::cargo::release_linter;
use crate::workspace::Workspace;

/// Prints the score; without the folder `../shared` it says so, which is no error.
pub(crate) fn run(workspace: &Workspace, repos: Option<&Path>) -> Result<()> {
    let shared = workspace.root().join("../shared");
    let scorer = shared.join("score/score.py");
    if !scorer.is_file() {
        println!("score: skipped, there is no `../shared/score/score.py` beside this checkout");
        return Ok(());
    }
    let lint = format!("{} check", release_linter(workspace)?.display());
    for cases in ["cases", "rust-cases"] {
        let folder = shared.join(cases);
        println!("\n{cases}");
        score(&scorer, &["cases".as_ref(), folder.as_ref()], &lint)?;
    }
    let Some(repos) = repos else {
        println!(
            "\ntruth: skipped, no `--repos` (or DDP_LINT_CORPUS) names checked-out repositories"
        );
        return Ok(());
    };
    if !repos.is_dir() {
        bail!("`{}` is no folder of repositories", repos.display());
    }
    println!("\ntruth");
    let judged = shared.join("corpus/truth.tsv");
    score(&scorer, &["truth".as_ref(), judged.as_ref(), "--repos".as_ref(), repos.as_ref()], &lint)
}

/// Runs the scorer. It ends with 0 or 1 (targets met or not), with anything else when it failed.
fn score(scorer: &Path, arguments: &[&std::ffi::OsStr], lint: &str) -> Result<()> {
    let mut command = Command::new("python3");
    command.arg(scorer).args(arguments).args(["--lint", lint]).stdin(Stdio::null());
    let status = command.status().context("cannot start python3, which runs the scorer")?;
    match status.code() {
        Some(0) => println!("its targets are met"),
        Some(1) => println!("its targets are not met"),
        _ => bail!("`{}` failed ({status})", scorer.display()),
    }
    Ok(())
}
