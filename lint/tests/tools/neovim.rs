//! A whole session in real headless Neovim.

use std::process::Command;

use crate::{ddp_lint, is_there, root, succeed};

#[test]
fn a_session_in_neovim() {
    if !is_there("nvim") {
        return;
    }
    let scratch = tempfile::tempdir().expect("a scratch folder");
    let script = root().join("lint/editors/neovim/test.lua");
    let told = succeed(
        Command::new("nvim")
            .args(["--headless", "--clean", "-c"])
            .arg(format!("luafile {}", script.display()))
            .env("DDP_LINT", ddp_lint())
            .env("SCRATCH", scratch.path())
            .env("XDG_CACHE_HOME", scratch.path().join(".cache"))
            .env("XDG_STATE_HOME", scratch.path().join(".state")),
    );
    assert_eq!(told.matches("ok: ").count(), 4, "{told}");
}
