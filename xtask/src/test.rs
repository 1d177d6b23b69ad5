//! `cargo x test`: everything that can be tested, then one line that counts.

use std::process::ExitCode;

use anyhow::Result;

use crate::cargo::{cargo, relay, show};
use crate::setup;
use crate::workspace::Workspace;

/// Sets up, then tests all members. The last line is `N passed, M failed`; the exit status is 0
/// only when nothing failed.
pub(crate) fn run(workspace: &Workspace) -> Result<ExitCode> {
    setup::run(workspace)?;
    // One build for all members: built one by one, shared crates would be compiled once for each
    // set of features that the members ask for. The programs that must not compile are an
    // exception, because they are checked against a tch that is built without libtorch.
    let selections: [&[&str]; 2] = [
        &["--workspace", "--features", "ddp-tests/torch"],
        &["--package", "tch-ddp-macros-ui", "--features", "ui"],
    ];
    let mut total = Count::default();
    for selection in selections {
        total.add(&test(workspace, selection)?);
    }
    println!("{} passed, {} failed", total.passed, total.failed);
    Ok(if total.failed == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Tests of all kinds, over several test programs.
#[derive(Debug, Default, PartialEq, Eq)]
struct Count {
    passed: u64,
    failed: u64,
}

impl Count {
    fn add(&mut self, other: &Count) {
        self.passed += other.passed;
        self.failed += other.failed;
    }
}

/// Runs one `cargo test`, passing on what it prints.
fn test(workspace: &Workspace, selection: &[&str]) -> Result<Count> {
    let mut command = cargo(workspace);
    command.args(["test", "--no-fail-fast"]).args(selection);
    let shown = show(&command);
    eprintln!("{shown}");
    let mut count = Count::default();
    let status = relay(&mut command, |line| {
        if let Some(result) = parse_result(line) {
            count.add(&result);
        }
    })?;
    if !status.success() && count.failed == 0 {
        eprintln!("error: `{shown}` ended with {status}: something did not build, or a test died");
        count.failed = 1;
    }
    Ok(count)
}

/// The counts of a test program's last line: `test result: ok. 3 passed; 1 failed; …`.
fn parse_result(line: &str) -> Option<Count> {
    let (_, counts) = line.strip_prefix("test result: ")?.split_once(". ")?;
    let number = |name: &str| {
        let part = counts.split(';').find_map(|part| part.trim().strip_suffix(name))?;
        part.trim().parse().ok()
    };
    Some(Count { passed: number("passed")?, failed: number("failed")? })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn results_of_test_programs_are_read() {
        let line = "test result: ok. 15 passed; 0 failed; 0 ignored; 0 measured; 2 filtered out; \
                    finished in 0.01s";
        assert_eq!(parse_result(line), Some(Count { passed: 15, failed: 0 }));
        let line = "test result: FAILED. 7 passed; 6 failed; 0 ignored; 0 measured; 0 filtered out";
        assert_eq!(parse_result(line), Some(Count { passed: 7, failed: 6 }));
        assert_eq!(parse_result("running 3 tests"), None);
        assert_eq!(parse_result("  test result: ok. 1 passed; 0 failed"), None);
    }
}
