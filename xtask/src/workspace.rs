//! Where things lie in a clone of this project. Knows paths, does nothing.

use std::env;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

/// A checkout of this project.
pub(crate) struct Workspace {
    root: PathBuf,
}

impl Workspace {
    /// The checkout that `cargo x` was called in.
    ///
    /// Cargo names the folder at run time; the one known at compile time would be wrong after the
    /// checkout moved.
    pub(crate) fn find() -> Result<Workspace> {
        let package = env::var_os("CARGO_MANIFEST_DIR")
            .map_or_else(|| PathBuf::from(env!("CARGO_MANIFEST_DIR")), PathBuf::from);
        let root = package.parent().context("the package xtask lies at the root of the disk")?;
        Ok(Workspace { root: root.to_path_buf() })
    }

    pub(crate) fn root(&self) -> &Path {
        &self.root
    }

    /// The link to libtorch that `.cargo/config.toml` hands to build scripts.
    pub(crate) fn libtorch_link(&self) -> PathBuf {
        self.root.join(".libtorch")
    }
}
