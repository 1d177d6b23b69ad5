//! Whole sessions with pytest-lsp, as several editors.

use std::process::Command;

use crate::{ddp_lint, root, succeed, tool};

#[test]
fn sessions_with_pytest_lsp() {
    let Some(pytest) = tool("pytest") else { return };
    let scratch = tempfile::tempdir().expect("a scratch folder");
    let told = succeed(
        Command::new(pytest)
            .args(["-q", "-p", "no:cacheprovider", "--basetemp"])
            .arg(scratch.path().join("tests"))
            .arg("test_session.py")
            .current_dir(root().join("lint/tests/tools/pytest"))
            .env("DDP_LINT", ddp_lint())
            .env("PYTHONDONTWRITEBYTECODE", "1")
            .env("XDG_CACHE_HOME", scratch.path().join("cache")),
    );
    assert!(told.contains("12 passed"), "{told}");
}
