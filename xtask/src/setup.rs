//! `cargo x setup`: finds libtorch, or fetches it once per user, and links it as `.libtorch`.
//!
//! Looked at, in this order: `LIBTORCH`, the link of an earlier setup, a Python on `PATH` that has
//! torch, the private virtual environment in the user's cache folder, which is made when missing.
//! Must never touch a libtorch or a Python that is not its own.

mod libtorch;
mod nccl;
mod pip;
mod python;
mod venv;

use std::env;
use std::ffi::OsString;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail};

use crate::workspace::Workspace;
use libtorch::Libtorch;

pub(crate) use nccl::headers as nccl_headers;
pub(crate) use python::{find as python, of as python_of};
pub(crate) use venv::cache;

/// The release that the runtime is written against; its c10d classes are not a stable interface.
pub(crate) const TORCH: &str = "2.13.0";

/// Sets the checkout up; does nothing that is already done. Returns libtorch's folder.
pub(crate) fn run(workspace: &Workspace) -> Result<PathBuf> {
    let link = workspace.libtorch_link();
    let (libtorch, origin) = find(&link)?;
    connect(&link, &libtorch.folder)?;
    require_compiler()?;
    eprintln!("libtorch {} ({origin}): {}", libtorch.version, libtorch.folder.display());
    Ok(libtorch.folder)
}

fn find(link: &Path) -> Result<(Libtorch, &'static str)> {
    if let Some(chosen) = chosen_by_user(env::var_os("LIBTORCH"), link) {
        return Ok((from_environment(&chosen)?, "from LIBTORCH"));
    }
    if let Ok(libtorch) = Libtorch::inspect(link)
        && venv::usable(&libtorch)
    {
        // The link itself is not the place: whoever reads the message wants to know where it is.
        let folder = fs::canonicalize(link).unwrap_or(libtorch.folder);
        return Ok((Libtorch { folder, ..libtorch }, "set up before"));
    }
    if let Some(libtorch) = python::torch_on_path() {
        return Ok((libtorch, "from the Python on PATH"));
    }
    Ok((venv::ensure()?, "in this user's cache"))
}

/// `LIBTORCH` as the user set it. Cargo sets it to our own link in every `cargo x`, which tells
/// nothing about what the user wants.
fn chosen_by_user(value: Option<OsString>, link: &Path) -> Option<PathBuf> {
    let value = value.filter(|value| !value.is_empty()).map(PathBuf::from)?;
    (value != link).then_some(value)
}

fn from_environment(folder: &Path) -> Result<Libtorch> {
    Libtorch::inspect(folder).map_err(|problem| {
        anyhow::anyhow!(
            "LIBTORCH is set to `{}`, but {problem}\n  either unset LIBTORCH, and `cargo x setup` \
             finds or fetches libtorch {TORCH}, or set it to a folder that holds it",
            folder.display()
        )
    })
}

/// Makes `link` lead to `folder`, replacing an older link in one step.
fn connect(link: &Path, folder: &Path) -> Result<()> {
    let folder = fs::canonicalize(folder)
        .with_context(|| format!("cannot resolve `{}`", folder.display()))?;
    if fs::canonicalize(link).is_ok_and(|current| current == folder) {
        return Ok(());
    }
    match fs::symlink_metadata(link) {
        Ok(metadata) if !metadata.file_type().is_symlink() => bail!(
            "`{}` is in the way: it is not a link that `cargo x setup` made\n  move it away and \
             run `cargo x setup` again",
            link.display()
        ),
        _ => {}
    }
    let fresh = link.with_extension(format!("{}.tmp", std::process::id()));
    symlink_folder(&folder, &fresh)
        .and_then(|()| fs::rename(&fresh, link))
        .with_context(|| format!("cannot make the link `{}`", link.display()))
}

#[cfg(unix)]
fn symlink_folder(target: &Path, link: &Path) -> io::Result<()> {
    std::os::unix::fs::symlink(target, link)
}

#[cfg(windows)]
fn symlink_folder(target: &Path, link: &Path) -> io::Result<()> {
    std::os::windows::fs::symlink_dir(target, link)
}

/// The runtime's C++ part needs a compiler; say so now rather than an hour into the build.
fn require_compiler() -> Result<()> {
    let named = env::var("CXX").ok();
    let names = named.as_deref().into_iter().chain(["c++", "g++", "clang++"]);
    let works = |name: &str| {
        let mut version = Command::new(name);
        version.arg("--version").stdout(Stdio::null()).stderr(Stdio::null());
        version.status().is_ok_and(|status| status.success())
    };
    if names.into_iter().any(works) {
        return Ok(());
    }
    bail!(
        "no C++ compiler found: neither `$CXX` nor c++, g++ or clang++ on PATH runs\n  install one \
         (Debian, Ubuntu: `apt-get install g++`; macOS: `xcode-select --install`)"
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn own_link_in_libtorch_counts_as_unset() {
        let link = Path::new("/clone/.libtorch");
        assert_eq!(chosen_by_user(Some("/clone/.libtorch".into()), link), None);
        assert_eq!(chosen_by_user(Some(OsString::new()), link), None);
        assert_eq!(chosen_by_user(None, link), None);
        let other = chosen_by_user(Some("/opt/libtorch".into()), link);
        assert_eq!(other, Some(PathBuf::from("/opt/libtorch")));
    }
}
