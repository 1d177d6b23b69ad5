//! What goes to the package registry: each crate packages without a warning.

use std::process::Command;

use crate::{root, succeed};

const CRATES: [&str; 4] = ["ddp-lint", "ddp-run", "tch-ddp-macros", "tch-ddp"];

#[test]
fn crates_package_without_warnings() {
    // Without the network the crates that others depend on are known all the same: they are
    // packaged together.
    let mut command = Command::new(env!("CARGO"));
    command.args(["package", "--no-verify", "--allow-dirty", "--offline"]);
    command.args(CRATES.iter().flat_map(|name| ["--package", *name]));
    let scratch = tempfile::tempdir().expect("a scratch folder");
    let told = succeed(command.current_dir(root()).arg("--target-dir").arg(scratch.path()));
    assert!(!told.contains("warning"), "{told}");
    for name in CRATES {
        let package = format!("{name}-{}.crate", env!("CARGO_PKG_VERSION"));
        let package = scratch.path().join("package").join(package);
        let listed = succeed(Command::new("tar").arg("-tzf").arg(&package));
        for needed in ["README.md", "LICENSE-MIT", "LICENSE-APACHE", "Cargo.toml"] {
            assert!(listed.lines().any(|line| line.ends_with(&format!("/{needed}"))), "{listed}");
        }
    }
}
