//! The headers that the runtime's feature `nccl` needs beyond those that come with torch: two small
//! packages, put into our own environment. Someone else's Python is only told what it lacks.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};

use super::{python, venv};
use crate::cargo::succeed;

/// Of the CUDA release that torch 2.13's packages are built with; 3.3 MB together.
const PACKAGES: [&str; 2] = ["nvidia-cuda-crt==13.0.*", "nvidia-cuda-cccl==13.0.*"];

/// What the shim includes, in the order of packages: NCCL's own, CUDA's runtime, its compiler's and
/// its C++ library's. torch brings the first two.
const NEEDED: [&str; 4] = ["nccl.h", "cuda_runtime_api.h", "crt/host_config.h", "nv/target"];

/// Installs the headers beside the given libtorch, unless they are there.
pub(crate) fn headers(libtorch: &Path) -> Result<()> {
    let packages = libtorch.parent().context("libtorch lies at the root of the disk")?;
    if missing(packages).is_none() {
        eprintln!("headers of NCCL and CUDA: {}", packages.join("nvidia").display());
        return Ok(());
    }
    let wanted = PACKAGES.join(" ");
    let python = python::of(libtorch).filter(|_| venv::is_ours(libtorch));
    let Some(python) = python else {
        bail!(
            "`{}` is not this project's own, so nothing is installed there\n  install `{wanted}` \
             into its Python, or name the folders of NCCL's and CUDA's headers in NCCL_INCLUDE",
            libtorch.display()
        );
    };
    eprintln!("fetching {wanted} (3.3 MB) into {}", packages.display());
    let mut pip = Command::new(python);
    pip.args(["-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-input"]);
    succeed(pip.arg("--no-deps").args(PACKAGES))?;
    match missing(packages) {
        None => Ok(()),
        Some(header) => bail!(
            "pip reported success, but `{header}` is in none of the folders below `{}`\n  name the \
             folder that has it in NCCL_INCLUDE",
            packages.join("nvidia").display()
        ),
    }
}

/// The first header that is in none of the folders that the runtime's build looks at.
fn missing(packages: &Path) -> Option<&'static str> {
    let nvidia = packages.join("nvidia");
    let folders: Vec<PathBuf> = ["nccl/include", "cu13/include", "cu13/include/cccl"]
        .iter()
        .map(|folder| nvidia.join(folder))
        .collect();
    let absent = |header: &&str| !folders.iter().any(|folder| folder.join(header).is_file());
    NEEDED.into_iter().find(absent)
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn first_missing_header_is_named() {
        let packages = std::env::temp_dir().join(format!("ddp-lint-nccl-{}", std::process::id()));
        assert_eq!(missing(&packages), Some("nccl.h"));
        for header in [
            "nccl/include/nccl.h",
            "cu13/include/cuda_runtime_api.h",
            "cu13/include/crt/host_config.h",
        ] {
            let path = packages.join("nvidia").join(header);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, "").unwrap();
        }
        assert_eq!(missing(&packages), Some("nv/target"));
        let target = packages.join("nvidia/cu13/include/cccl/nv");
        fs::create_dir_all(&target).unwrap();
        fs::write(target.join("target"), "").unwrap();
        assert_eq!(missing(&packages), None);
        fs::remove_dir_all(packages).unwrap();
    }
}
