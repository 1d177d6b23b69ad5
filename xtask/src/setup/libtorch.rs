//! What makes a folder a libtorch that this project can use. Only reads.

use std::fmt;
use std::fs;
use std::path::{Path, PathBuf};

/// A folder that holds a usable libtorch: the unpacked archive, or `torch` of a Python package.
#[derive(Debug, Clone)]
pub(crate) struct Libtorch {
    pub(crate) folder: PathBuf,
    /// As the folder states it, for example `2.13.0+cu130`.
    pub(crate) version: String,
}

/// Why a folder is no libtorch that can be used; reads after "but".
#[derive(Debug)]
pub(crate) enum Problem {
    NoFolder,
    NoLibtorch,
    WrongVersion(String),
    Incomplete(PathBuf),
}

/// Files that a build needs and that an interrupted installation may lack.
const NEEDED: [&str; 2] = [
    "include/torch/csrc/distributed/c10d/reducer.hpp",
    "include/torch/csrc/api/include/torch/all.h",
];

impl Libtorch {
    pub(crate) fn inspect(folder: &Path) -> Result<Libtorch, Problem> {
        if !folder.is_dir() {
            return Err(Problem::NoFolder);
        }
        let version = version_of(folder).ok_or(Problem::NoLibtorch)?;
        if !is_supported(&version) {
            return Err(Problem::WrongVersion(version));
        }
        let library = Path::new("lib").join(library_name());
        for file in NEEDED.iter().map(Path::new).chain([library.as_path()]) {
            if !folder.join(file).is_file() {
                return Err(Problem::Incomplete(file.to_path_buf()));
            }
        }
        Ok(Libtorch { folder: folder.to_path_buf(), version })
    }
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Problem::NoFolder => write!(f, "there is no such folder"),
            Problem::NoLibtorch => {
                write!(f, "it holds no libtorch: neither a `build-version` nor a `version.py`")
            }
            Problem::WrongVersion(version) => {
                write!(f, "it holds torch {version}, and this project needs {}", super::TORCH)
            }
            Problem::Incomplete(file) => write!(f, "it lacks `{}`", file.display()),
        }
    }
}

/// libtorch archives state their version in `build-version`, Python packages in `version.py`.
fn version_of(folder: &Path) -> Option<String> {
    if let Ok(text) = fs::read_to_string(folder.join("build-version")) {
        return Some(text.trim().to_owned());
    }
    let text = fs::read_to_string(folder.join("version.py")).ok()?;
    let line = text.lines().find(|line| line.starts_with("__version__"))?;
    line.split(['\'', '"']).nth(1).map(str::to_owned)
}

/// A patch release keeps c10d's classes, so it serves as well.
fn is_supported(version: &str) -> bool {
    let series = super::TORCH.rsplit_once('.').map_or(super::TORCH, |(series, _)| series);
    let rest = version.strip_prefix(series).and_then(|rest| rest.strip_prefix('.'));
    rest.is_some_and(|rest| {
        let patch = rest.split('+').next().unwrap_or_default();
        !patch.is_empty() && patch.bytes().all(|byte| byte.is_ascii_digit())
    })
}

pub(crate) fn library_name() -> &'static str {
    if cfg!(windows) {
        "torch_cpu.dll"
    } else if cfg!(target_os = "macos") {
        "libtorch_cpu.dylib"
    } else {
        "libtorch_cpu.so"
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_releases_of_the_pinned_series_are_supported() {
        for version in ["2.13.0", "2.13.1", "2.13.0+cu130", "2.13.0+cpu"] {
            assert!(is_supported(version), "{version}");
        }
        for version in ["2.12.0", "2.1.3", "2.130.0", "2.13", "2.13.0a0+git1", "3.13.0", ""] {
            assert!(!is_supported(version), "{version}");
        }
    }
}
