//! The Pythons on `PATH`, and the torch that they may have. Only asks; installs nothing.

use std::path::{MAIN_SEPARATOR_STR, Path, PathBuf};
use std::process::Command;

use anyhow::{Result, bail};

use super::libtorch::Libtorch;

/// torch 2.13 has wheels for the Pythons from 3.10 to 3.14.
const OLDEST: (u32, u32) = (3, 10);
const NEWEST: (u32, u32) = (3, 14);

/// Names under which a Python is looked for, the user's default first.
const NAMES: [&str; 7] =
    ["python3", "python", "python3.13", "python3.12", "python3.11", "python3.10", "python3.14"];

/// Prints the folder of the torch that `import torch` would take, without importing it: that takes
/// seconds. A folder called `torch` in the working directory is not an installation.
const FIND_TORCH: &str = "\
import sys, importlib.util
sys.path = [p for p in sys.path if p]
spec = importlib.util.find_spec('torch')
print((spec and spec.submodule_search_locations or [''])[0])";

/// The first usable torch of a Python on `PATH`.
pub(crate) fn torch_on_path() -> Option<Libtorch> {
    NAMES.iter().find_map(|name| {
        let folder = PathBuf::from(ask(name, FIND_TORCH)?);
        Libtorch::inspect(&folder).ok()
    })
}

/// The Python that a libtorch belongs to: `ENVIRONMENT/lib/pythonX.Y/site-packages/torch`.
pub(crate) fn of(libtorch: &Path) -> Option<PathBuf> {
    let libtorch = libtorch.canonicalize().ok()?;
    let python = libtorch.ancestors().nth(4)?.join("bin/python3");
    (libtorch.ends_with("site-packages/torch") && python.exists()).then_some(python)
}

/// A Python that torch has wheels for.
pub(crate) fn find() -> Result<&'static str> {
    let mut unfit = None;
    for name in NAMES {
        match version(name) {
            Some(found) if (OLDEST..=NEWEST).contains(&found) => return Ok(name),
            Some(found) => unfit = unfit.or(Some((name, found))),
            None => {}
        }
    }
    let install = "install one (Debian, Ubuntu: `apt-get install python3 python3-venv`; macOS: \
                   `brew install python@3.13`), or unpack libtorch 2.13.0 yourself and set \
                   LIBTORCH to it";
    if let Some((name, (major, minor))) = unfit {
        bail!(
            "`{name}` on PATH is Python {major}.{minor}; torch {} has packages for Python 3.10 to \
             3.14\n  {install}",
            super::TORCH
        );
    }
    bail!("no Python 3 found on PATH; libtorch comes as a Python package\n  {install}")
}

fn version(name: &str) -> Option<(u32, u32)> {
    let text = ask(name, "import sys; print(*sys.version_info[:2])")?;
    let (major, minor) = text.split_once(' ')?;
    Some((major.parse().ok()?, minor.parse().ok()?))
}

/// What a short program prints, trimmed; `None` when this Python does not run it.
pub(crate) fn ask(python: &str, program: &str) -> Option<String> {
    // At the root of the disk, because modules in the caller's folder would shadow others.
    let answer = Command::new(python)
        .args(["-c", program])
        .current_dir(MAIN_SEPARATOR_STR)
        .output()
        .ok()
        .filter(|output| output.status.success())?;
    let text = String::from_utf8(answer.stdout).ok()?;
    Some(text.trim().to_owned()).filter(|text| !text.is_empty())
}
