//! The `ddp-run` command: everything is in the library.

use std::process::ExitCode;

fn main() -> ExitCode {
    ddp_run::run(std::env::args_os().collect())
}
