//! Finds the Python whose torch these tests link to, and runs its own DDP through torchrun.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};

/// Variables of a launch that must not reach a launch inside of it.
const LAUNCH_VARIABLES: [&str; 7] = [
    "RANK",
    "LOCAL_RANK",
    "WORLD_SIZE",
    "LOCAL_WORLD_SIZE",
    "MASTER_ADDR",
    "MASTER_PORT",
    "TCH_DDP_LISTEN_FD",
];

/// The Python of the environment that libtorch belongs to; `None` (with a message) for a libtorch
/// that came without Python.
pub fn python() -> Option<PathBuf> {
    let libdir = Path::new(env!("TCH_DDP_LIBDIR")).canonicalize().ok()?;
    // <environment>/lib/python3.x/site-packages/torch/lib
    let environment = libdir.ancestors().nth(5)?;
    let python = environment.join("bin/python3");
    if libdir.ends_with("site-packages/torch/lib") && python.exists() {
        return Some(python);
    }
    eprintln!("skipped: libtorch in {} belongs to no Python", libdir.display());
    None
}

/// A command of that Python without the variables of the launch this process is part of.
pub fn command(python: &Path) -> Command {
    let mut command = Command::new(python);
    for name in LAUNCH_VARIABLES {
        command.env_remove(name);
    }
    command
}

/// Runs one of the scripts beside this file on `world_size` ranks.
///
/// # Errors
/// It fails; with what it printed.
pub fn torchrun(
    python: &Path,
    script: &str,
    arguments: &[PathBuf],
    world_size: usize,
) -> Result<()> {
    let output = command(python)
        .args(["-m", "torch.distributed.run", "--standalone", "--nproc-per-node"])
        .arg(world_size.to_string())
        .arg(script_path(script))
        .args(arguments)
        .env("OMP_NUM_THREADS", "1")
        .output()
        .with_context(|| format!("cannot run {}", python.display()))?;
    let text = String::from_utf8_lossy(&output.stderr).into_owned();
    ensure!(output.status.success(), "{script} failed:\n{text}");
    Ok(())
}

/// Where a script beside this file is.
pub fn script_path(script: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("src/torch").join(script)
}

/// Runs `reference.py` on the cases in `folders` with Python's DDP on `world_size` ranks.
///
/// # Errors
/// It fails; with what it printed.
pub fn run_reference(
    python: &Path,
    folders: &[PathBuf],
    world_size: usize,
) -> Result<Vec<Reference>> {
    torchrun(python, "reference.py", folders, world_size)?;
    folders.iter().map(|folder| Reference::read(folder)).collect()
}

/// What Python's DDP did.
#[derive(Debug)]
pub struct Reference {
    /// The mean loss over the ranks, per step.
    pub losses: Vec<f64>,
    /// Sizes of the gradient buckets in bytes.
    pub buckets: Vec<u64>,
}

impl Reference {
    fn read(folder: &Path) -> Result<Self> {
        let result = std::fs::read_to_string(folder.join("python.json"))?;
        let result: serde_json::Value = serde_json::from_str(&result)?;
        let numbers = |key: &str| result[key].as_array().with_context(|| format!("no {key}"));
        let losses = numbers("losses")?.iter().filter_map(serde_json::Value::as_f64).collect();
        let buckets = numbers("buckets")?.iter().filter_map(serde_json::Value::as_u64).collect();
        Ok(Self { losses, buckets })
    }
}
