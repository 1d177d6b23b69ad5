//! The command line program: arguments to work, results to streams and an exit status.
//!
//! Both binaries are this. It decides what is said where, not what is found.

mod allow;
mod args;
mod check;
mod config;
mod explain;
mod fix;
mod rules;
mod server;
mod terminal;
mod version;
mod watch;

use std::ffi::OsString;
use std::io::{self, Write as _};
use std::path::PathBuf;
use std::process::ExitCode;

use clap::{CommandFactory as _, Parser as _};

use args::{Arguments, Command};

/// What a run came to; the exit status.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Status {
    /// Nothing at level error or warning.
    Clean = 0,
    /// Findings at level error or warning.
    Findings = 1,
    /// The work could not be done.
    Failure = 2,
}

/// Where and how the program was started.
#[derive(Debug)]
struct Environment {
    folder: PathBuf,
    /// As `cargo ddp-lint`.
    is_cargo: bool,
}

/// All of the program.
pub fn main() -> ExitCode {
    crate::crash::install_hook();
    let (words, is_cargo) = words(std::env::args_os().collect());
    let arguments = match Arguments::try_parse_from(words) {
        Ok(arguments) => arguments,
        Err(error) => {
            // Help and version go to standard output and are no failure.
            let _ = error.print();
            let status = if error.use_stderr() { Status::Failure } else { Status::Clean };
            return ExitCode::from(status as u8);
        }
    };
    let status = match std::env::current_dir() {
        Ok(folder) => run(arguments, &Environment { folder, is_cargo }),
        Err(error) => fail(&format!("the current folder cannot be read: {error}")),
    };
    ExitCode::from(status as u8)
}

/// Cargo calls `cargo-ddp-lint ddp-lint …`: the second word is its own.
fn words(mut words: Vec<OsString>) -> (Vec<OsString>, bool) {
    let program = words.first().map(PathBuf::from).unwrap_or_default();
    let is_cargo = program.file_stem().is_some_and(|stem| stem == "cargo-ddp-lint");
    if is_cargo && words.get(1).is_some_and(|word| word == "ddp-lint") {
        words.remove(1);
    }
    (words, is_cargo)
}

fn run(arguments: Arguments, environment: &Environment) -> Status {
    let pool = rayon::ThreadPoolBuilder::new().stack_size(THREAD_STACK_BYTES);
    // Fails only when a pool exists already, which is as good.
    let _ = pool.build_global();
    match arguments.command {
        None => check::run(&arguments.check, environment),
        Some(Command::Check(check)) => check::run(&check, environment),
        Some(Command::Explain(explain)) => explain::run(&explain),
        Some(Command::Rules(rules)) => rules::run(&rules),
        Some(Command::Config(config)) => config::run(&config),
        Some(Command::Server) => server::run(),
        Some(Command::Completions { shell }) => {
            let mut script = Vec::new();
            clap_complete::generate(shell, &mut Arguments::command(), "ddp-lint", &mut script);
            say(&String::from_utf8_lossy(&script))
        }
        Some(Command::Man) => {
            let mut page = Vec::new();
            match clap_mangen::Man::new(Arguments::command()).render(&mut page) {
                Ok(()) => say(&String::from_utf8_lossy(&page)),
                Err(error) => fail(&format!("the manual page cannot be made: {error}")),
            }
        }
    }
}

/// Deeply nested sources take deep recursion. Only what is used is taken from memory.
const THREAD_STACK_BYTES: usize = 64 << 20;

/// Prints to standard output. A reader that has gone away is no failure.
fn say(text: &str) -> Status {
    let mut stdout = io::stdout().lock();
    match stdout.write_all(text.as_bytes()).and_then(|()| stdout.flush()) {
        Ok(()) => Status::Clean,
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Status::Clean,
        Err(error) => fail(&format!("standard output cannot be written: {error}")),
    }
}

/// Prints to standard error, where nothing can be done about failures.
fn tell(text: &str) {
    let _ = writeln!(io::stderr(), "{text}");
}

fn fail(why: &str) -> Status {
    tell(&format!("error: {why}"));
    Status::Failure
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_line_is_consistent() {
        Arguments::command().debug_assert();
    }

    #[test]
    fn cargo_passes_its_own_word_first() {
        let words = |words: &[&str]| {
            let (words, is_cargo) = super::words(words.iter().map(Into::into).collect());
            let words: Vec<String> =
                words.iter().map(|word| word.to_string_lossy().into_owned()).collect();
            (words.join(" "), is_cargo)
        };
        assert_eq!(
            words(&["/bin/cargo-ddp-lint", "ddp-lint", "a"]),
            ("/bin/cargo-ddp-lint a".into(), true)
        );
        assert_eq!(words(&["cargo-ddp-lint", "a"]), ("cargo-ddp-lint a".into(), true));
        assert_eq!(words(&["ddp-lint", "ddp-lint"]), ("ddp-lint ddp-lint".into(), false));
    }
}
