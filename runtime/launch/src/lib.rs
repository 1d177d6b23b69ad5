//! `ddp-run` starts the ranks of a distributed program, watches them and ends or restarts them
//! together: torchrun's job, without Python and without libtorch.
//!
//! The library is there for the two commands (`ddp-run`, `cargo ddp-run`) and for tests; its API
//! may change at any time. See `docs/launching.md` for what the commands do.

use std::ffi::OsString;
use std::process::ExitCode;

#[cfg(target_os = "linux")]
mod cargo;
#[cfg(target_os = "linux")]
mod cli;
#[cfg(target_os = "linux")]
mod cluster;
#[cfg(target_os = "linux")]
mod course;
#[cfg(target_os = "linux")]
mod devices;
#[cfg(target_os = "linux")]
mod environment;
#[cfg(target_os = "linux")]
mod failure;
#[cfg(target_os = "linux")]
mod folder;
#[cfg(target_os = "linux")]
mod group;
#[cfg(target_os = "linux")]
mod hidden;
#[cfg(target_os = "linux")]
mod hostlist;
#[cfg(target_os = "linux")]
mod lines;
#[cfg(target_os = "linux")]
mod nodes;
#[cfg(target_os = "linux")]
mod output;
#[cfg(target_os = "linux")]
mod port;
#[cfg(target_os = "linux")]
mod program;
#[cfg(target_os = "linux")]
mod run;
#[cfg(target_os = "linux")]
mod sink;
#[cfg(target_os = "linux")]
mod sys;
#[cfg(target_os = "linux")]
mod trouble;
#[cfg(target_os = "linux")]
mod view;

/// The `ddp-run` command, given all of its command line; returns its exit code.
#[cfg(target_os = "linux")]
pub fn run(args: Vec<OsString>) -> ExitCode {
    use clap::Parser;

    if let Some(code) = hidden::run(&args) {
        return code;
    }
    match cli::Args::try_parse_from(args) {
        Ok(args) => start(&args),
        Err(error) => wrong_usage(&error),
    }
}

/// The `cargo ddp-run` command: builds a package's program first.
#[cfg(target_os = "linux")]
pub fn run_cargo(args: Vec<OsString>) -> ExitCode {
    if let Some(code) = hidden::run(&args) {
        return code;
    }
    match cargo::build(args) {
        Ok(args) => start(&args),
        Err(cargo::Stop::Usage(error)) => wrong_usage(&error),
        Err(cargo::Stop::Trouble(trouble)) => fail(&trouble),
    }
}

#[cfg(target_os = "linux")]
fn start(args: &cli::Args) -> ExitCode {
    match run::launch(args, &sys::environment()) {
        Ok(code) => ExitCode::from(code),
        Err(trouble) => fail(&trouble),
    }
}

#[cfg(target_os = "linux")]
fn fail(trouble: &trouble::Trouble) -> ExitCode {
    eprintln!("ddp-run: {trouble}");
    ExitCode::from(trouble.code)
}

#[cfg(target_os = "linux")]
fn wrong_usage(error: &clap::Error) -> ExitCode {
    // A closed standard output is the only way in which this can fail.
    let _ = error.print();
    ExitCode::from(if error.use_stderr() { 2 } else { 0 })
}

/// Process groups, parent-death signals and subreapers are Linux's.
#[cfg(not(target_os = "linux"))]
pub fn run(_args: Vec<OsString>) -> ExitCode {
    eprintln!("ddp-run: only Linux is supported; torchrun --no-python starts the same programs");
    ExitCode::from(1)
}

/// As `run`.
#[cfg(not(target_os = "linux"))]
pub fn run_cargo(args: Vec<OsString>) -> ExitCode {
    run(args)
}
