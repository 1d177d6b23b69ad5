//! The private virtual environment with torch in the user's cache folder, shared by all clones.
//!
//! It is ours: a broken one is deleted and made anew. Nothing outside its folder is touched.

use std::env;
use std::fs::{self, File, TryLockError};
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, anyhow, bail};

use super::libtorch::Libtorch;
use super::{TORCH, pip, python};

/// What the packages take on disk, and what they take together with the wheels while they are
/// being unpacked (Linux on x86-64, measured).
const INSTALLED_GB: f64 = 4.7;
const PEAK_GB: f64 = 7.5;

/// The virtual environment's torch; made first when it is missing or broken.
pub(crate) fn ensure() -> Result<Libtorch> {
    let home = home()?;
    let venv = home.join("venv");
    fs::create_dir_all(&home)
        .with_context(|| format!("cannot make the cache folder `{}`", home.display()))?;
    let _lock = lock(&home)?;
    match inspect(&venv) {
        Ok(libtorch) => return Ok(libtorch),
        Err(Broken::Missing) => {}
        Err(Broken::Because(reason)) => {
            eprintln!("the environment `{}` is broken ({reason}): making it anew", venv.display());
            remove(&venv)?;
        }
    }
    let python = python::find()?;
    require_space(python, &home)?;
    create(python, &venv)?;
    pip::install_torch(&home, &interpreter(&venv))?;
    inspect(&venv).map_err(|broken| match broken {
        Broken::Missing => anyhow!("pip installed no torch in `{}`", venv.display()),
        Broken::Because(reason) => anyhow!(
            "pip reported success, but the environment is broken: {reason}\n  its log is `{}`",
            pip::log_file(&home).display()
        ),
    })
}

/// Whether a libtorch that an earlier setup linked can still be used: one in our own environment
/// may have been left half-finished since.
pub(crate) fn usable(libtorch: &Libtorch) -> bool {
    let Ok(home) = home() else { return true };
    !is_ours(&libtorch.folder) || inspect(&home.join("venv")).is_ok()
}

/// Whether a folder is inside our own environment.
pub(crate) fn is_ours(folder: &Path) -> bool {
    let venv = home().and_then(|home| Ok(fs::canonicalize(home.join("venv"))?));
    venv.is_ok_and(|venv| fs::canonicalize(folder).is_ok_and(|folder| folder.starts_with(venv)))
}

enum Broken {
    Missing,
    Because(String),
}

impl Broken {
    fn because(reason: impl Into<String>) -> Broken {
        Broken::Because(reason.into())
    }
}

/// Of torch's environment, its lock and its log.
fn home() -> Result<PathBuf> {
    Ok(cache()?.join(format!("torch-{TORCH}")))
}

/// This project's part of the user's cache folder: `$XDG_CACHE_HOME/ddp-lint`, by default under
/// `~/.cache`.
pub(crate) fn cache() -> Result<PathBuf> {
    let absolute = |name| env::var_os(name).map(PathBuf::from).filter(|path| path.is_absolute());
    let cache = absolute("XDG_CACHE_HOME")
        .or_else(|| absolute("HOME").map(|home| home.join(".cache")))
        .or_else(|| absolute("LOCALAPPDATA"))
        .context("no cache folder: set HOME or XDG_CACHE_HOME to an absolute path")?;
    Ok(cache.join("ddp-lint"))
}

/// Held until the returned file is dropped, also when the process dies.
fn lock(home: &Path) -> Result<File> {
    let path = home.join("lock");
    let file =
        File::create(&path).with_context(|| format!("cannot write in `{}`", home.display()))?;
    match file.try_lock() {
        Ok(()) => return Ok(file),
        Err(TryLockError::WouldBlock) => {
            eprintln!("another `cargo x setup` is at work on `{}`: waiting for it", home.display());
        }
        Err(TryLockError::Error(error)) => {
            return Err(error).with_context(|| format!("cannot lock `{}`", path.display()));
        }
    }
    file.lock().with_context(|| format!("cannot lock `{}`", path.display()))?;
    Ok(file)
}

fn inspect(venv: &Path) -> Result<Libtorch, Broken> {
    if !venv.exists() {
        return Err(Broken::Missing);
    }
    let site = site_packages(venv).ok_or_else(|| Broken::because("it has no site-packages"))?;
    if python::ask(&interpreter(venv).to_string_lossy(), "print(1)").is_none() {
        return Err(Broken::because("its Python does not run"));
    }
    let libtorch = Libtorch::inspect(&site.join("torch"))
        .map_err(|problem| Broken::because(format!("in its folder torch, {problem}")))?;
    check_record(&site)?;
    Ok(libtorch)
}

/// Compares the sizes of torch's libraries and headers with the list that pip writes last of all.
fn check_record(site: &Path) -> Result<(), Broken> {
    let text = distribution(site)
        .and_then(|folder| fs::read_to_string(folder.join("RECORD")).ok())
        .ok_or_else(|| Broken::because("torch's installation was not finished"))?;
    for line in text.lines().filter(|line| line.starts_with("torch/")) {
        let mut columns = line.rsplitn(3, ',');
        let size = columns.next().and_then(|size| size.parse::<u64>().ok());
        let path = columns.nth(1).unwrap_or_default().trim_matches('"');
        if !(path.starts_with("torch/lib/") || path.starts_with("torch/include/")) {
            continue;
        }
        let found = fs::metadata(site.join(path)).ok().map(|metadata| metadata.len());
        if size.is_some() && found != size {
            return Err(Broken::Because(format!("`{path}` is missing or cut short")));
        }
    }
    Ok(())
}

/// The folder that pip keeps its notes about torch in; the version may carry a suffix.
fn distribution(site: &Path) -> Option<PathBuf> {
    let names = fs::read_dir(site).ok()?.filter_map(Result::ok).map(|entry| entry.file_name());
    let mut names = names.filter_map(|name| name.into_string().ok());
    let name = names.find(|name| {
        name.strip_prefix("torch-").is_some_and(|rest| rest.ends_with(".dist-info"))
    })?;
    Some(site.join(name))
}

fn site_packages(venv: &Path) -> Option<PathBuf> {
    if cfg!(windows) {
        return Some(venv.join("Lib").join("site-packages")).filter(|path| path.is_dir());
    }
    let versions = fs::read_dir(venv.join("lib")).ok()?;
    let mut candidates =
        versions.filter_map(Result::ok).map(|version| version.path().join("site-packages"));
    candidates.find(|path| path.is_dir())
}

fn interpreter(venv: &Path) -> PathBuf {
    let parts = if cfg!(windows) { ["Scripts", "python.exe"] } else { ["bin", "python"] };
    venv.join(parts[0]).join(parts[1])
}

fn remove(venv: &Path) -> Result<()> {
    fs::remove_dir_all(venv)
        .with_context(|| format!("cannot delete `{}`; delete it by hand", venv.display()))
}

fn require_space(python: &str, home: &Path) -> Result<()> {
    let program = format!(
        "import shutil; print(shutil.disk_usage(bytes.fromhex('{}')).free)",
        hex(home.as_os_str().as_encoded_bytes())
    );
    // Where it cannot be told, pip will tell.
    let Some(free) = python::ask(python, &program).and_then(|text| text.parse::<u64>().ok()) else {
        return Ok(());
    };
    let free_gb = free as f64 / 1e9;
    if free_gb < PEAK_GB {
        bail!(
            "torch needs {PEAK_GB} GB of disk while it installs ({INSTALLED_GB} GB afterwards), \
             `{}` has {free_gb:.1} GB free\n  make room, or set XDG_CACHE_HOME to a folder on \
             another disk",
            home.display()
        );
    }
    Ok(())
}

/// A path as a program text can carry it, whatever characters it has.
fn hex(bytes: &[u8]) -> String {
    use std::fmt::Write;
    bytes.iter().fold(String::new(), |mut text, byte| {
        let _ = write!(text, "{byte:02x}");
        text
    })
}

fn create(python: &str, venv: &Path) -> Result<()> {
    let output = Command::new(python)
        .args(["-m", "venv"])
        .arg(venv)
        .output()
        .with_context(|| format!("cannot start `{python}`"))?;
    if output.status.success() {
        return Ok(());
    }
    let text = String::from_utf8_lossy(&output.stdout) + String::from_utf8_lossy(&output.stderr);
    // What it left would be taken for a broken environment at the next try.
    let _ = fs::remove_dir_all(venv);
    if text.contains("ensurepip") || text.contains("No module named venv") {
        bail!(
            "`{python}` cannot make virtual environments: its venv module is missing or lacks \
             pip\n  install it (Debian, Ubuntu: `apt-get install python3-venv`)"
        );
    }
    bail!("`{python} -m venv {}` failed:\n{}", venv.display(), text.trim_end())
}
