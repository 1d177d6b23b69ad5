//! The hook for pre-commit, in a scratch repository.

use std::path::Path;
use std::process::{Command, Output};

use crate::{ddp_lint, is_there, root, succeed, told, tool};

fn git(folder: &Path, arguments: &[&str]) {
    let identity = ["-c", "user.name=x", "-c", "user.email=x@example.org"];
    succeed(Command::new("git").current_dir(folder).args(identity).args(arguments));
}

/// A repository that holds the hooks as they are in this checkout, committed or not.
fn hooks(folder: &Path) -> String {
    std::fs::create_dir(folder).expect("a folder");
    let name = ".pre-commit-hooks.yaml";
    std::fs::copy(root().join(name), folder.join(name)).expect("the hooks are there");
    git(folder, &["init", "--quiet"]);
    git(folder, &["add", "."]);
    git(folder, &["commit", "--quiet", "-m", "Hooks"]);
    let head = Command::new("git").current_dir(folder).args(["rev-parse", "HEAD"]).output();
    String::from_utf8(head.expect("git runs").stdout).expect("a hash").trim().to_owned()
}

#[test]
fn the_hook_stops_a_faulty_commit() {
    let Some(pre_commit) = tool("pre-commit") else { return };
    if !is_there("git") {
        return;
    }
    let scratch = tempfile::tempdir().expect("a scratch folder");
    let revision = hooks(&scratch.path().join("hooks"));
    let repository = scratch.path().join("repository");
    std::fs::create_dir(&repository).expect("a folder");
    git(&repository, &["init", "--quiet"]);
    let config = format!(
        "repos:\n- repo: {}\n  rev: {revision}\n  hooks:\n  - id: ddp-lint-system\n",
        scratch.path().join("hooks").display()
    );
    std::fs::write(repository.join(".pre-commit-config.yaml"), config).expect("a file");
    std::fs::write(repository.join("a.py"), "x = 1\n").expect("a file");
    let path = std::env::var_os("PATH").unwrap_or_default();
    let programs = ddp_lint().parent().map(Path::to_owned);
    let folders = programs.into_iter().chain(std::env::split_paths(&path));
    let path = std::env::join_paths(folders).expect("a PATH");
    let run = || -> Output {
        git(&repository, &["add", "."]);
        Command::new(&pre_commit)
            .arg("run")
            .current_dir(&repository)
            .env("PATH", &path)
            .env("PRE_COMMIT_HOME", scratch.path().join("cache"))
            .output()
            .expect("pre-commit runs")
    };
    let clean = run();
    assert!(clean.status.success(), "{}", told(&clean));
    assert!(told(&clean).contains("Passed"), "{}", told(&clean));
    std::fs::write(repository.join("a.py"), "x = 1  # ddp-lint: allow(oops)\n").expect("a file");
    let faulty = run();
    assert_eq!(faulty.status.code(), Some(1), "{}", told(&faulty));
    assert!(told(&faulty).contains("unknown-suppression"), "{}", told(&faulty));
}
