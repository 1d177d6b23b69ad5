//! Speed of the linter beside a named peer: same folder, taken in turns, medians.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};

use crate::cargo::{release_linter, succeed};
use crate::setup;
use crate::workspace::Workspace;

/// The peer's release; another one may be faster or slower.
const RUFF: &str = "0.14.0";

pub(crate) fn run(workspace: &Workspace, folder: Option<PathBuf>, runs: usize) -> Result<()> {
    let folder = match folder {
        Some(folder) => folder,
        None => setup::run(workspace)?,
    };
    if !folder.is_dir() {
        bail!("`{}` is no folder", folder.display());
    }
    let ours = release_linter(workspace)?;
    let ruff = ruff()?;
    let mut contestants = [
        Contestant::new("ddp-lint check --isolated", &ours, &["check", "--isolated"]),
        Contestant::new(
            &format!("ruff {RUFF} check --no-cache --isolated --select F"),
            &ruff,
            &["check", "--no-cache", "--isolated", "--select", "F", "--quiet"],
        ),
    ];
    // One turn first that does not count: it brings the files into memory.
    for contestant in &contestants {
        contestant.run(&folder)?;
    }
    for _ in 0..runs.max(1) {
        for contestant in &mut contestants {
            let took = contestant.run(&folder)?;
            contestant.times.push(took);
        }
    }
    println!("medians of {} runs each, in turns, on {}", runs.max(1), folder.display());
    for contestant in contestants {
        let median = super::median(contestant.times);
        println!("{:>10.0} ms  {}", median.as_secs_f64() * 1e3, contestant.name);
    }
    Ok(())
}

struct Contestant {
    name: String,
    program: PathBuf,
    arguments: Vec<String>,
    times: Vec<Duration>,
}

impl Contestant {
    fn new(name: &str, program: &Path, arguments: &[&str]) -> Contestant {
        Contestant {
            name: name.to_owned(),
            program: program.to_owned(),
            arguments: arguments.iter().map(|&argument| argument.to_owned()).collect(),
            times: Vec::new(),
        }
    }

    /// One run; findings (exit status 1) are fine, anything else is not a result.
    fn run(&self, folder: &Path) -> Result<Duration> {
        let began = Instant::now();
        let status = Command::new(&self.program)
            .args(&self.arguments)
            .arg(folder)
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .status()
            .with_context(|| format!("cannot start `{}`", self.program.display()))?;
        if !matches!(status.code(), Some(0 | 1)) {
            bail!("`{}` failed on `{}` ({status})", self.name, folder.display());
        }
        Ok(began.elapsed())
    }
}

/// The peer, in a small environment of its own in the user's cache; installed when missing.
fn ruff() -> Result<PathBuf> {
    let venv = setup::cache()?.join(format!("ruff-{RUFF}"));
    let parts = if cfg!(windows) { ["Scripts", "ruff.exe"] } else { ["bin", "ruff"] };
    let ruff = venv.join(parts[0]).join(parts[1]);
    if !ruff.is_file() {
        eprintln!("fetching ruff {RUFF} (13 MB) into {}", venv.display());
        let python = setup::python()?;
        succeed(Command::new(python).args(["-m", "venv", "--clear"]).arg(&venv))?;
        let mut install = Command::new(venv.join(parts[0]).join("python"));
        install.args(["-m", "pip", "install", "--quiet", "--disable-pip-version-check"]);
        succeed(install.arg(format!("ruff=={RUFF}")))?;
    }
    Ok(ruff)
}
