//! The `cargo ddp-run` command: builds a package's program, then launches it.

use std::process::ExitCode;

fn main() -> ExitCode {
    ddp_run::run_cargo(std::env::args_os().collect())
}
