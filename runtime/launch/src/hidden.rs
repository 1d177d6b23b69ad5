//! Two modes in which the launcher starts itself: `__rank` becomes a rank, `__guard` outlives
//! the launcher. They exist so that all of it is safe code: what `fork` would allow between
//! fork and exec is done here by an ordinary process.

use std::ffi::{OsStr, OsString};
use std::io::BufRead;
use std::os::fd::AsFd;
use std::os::unix::process::CommandExt;
use std::process::{Child, ChildStdin, Command, ExitCode, Stdio};

use rustix::process::{self, Pid, Signal};

use crate::program::Program;
use crate::sys;

const RANK: &str = "__rank";
const GUARD: &str = "__guard";

/// Works through a hidden mode, if the command line asks for one.
pub(crate) fn run(args: &[OsString]) -> Option<ExitCode> {
    match args.get(1).map(OsString::as_os_str) {
        Some(mode) if mode == OsStr::new(RANK) => Some(become_rank(&args[2..])),
        Some(mode) if mode == OsStr::new(GUARD) => Some(guard()),
        _ => None,
    }
}

/// The command that starts this executable in a hidden mode; the link holds even when the file
/// has been replaced by a newer build meanwhile.
fn this_program(mode: &str) -> Command {
    let mut command = Command::new("/proc/self/exe");
    command.arg(mode);
    command
}

/// A command that becomes the rank: leader of its own process group, so that a signal reaches
/// what it starts itself, and dead as soon as the launcher is. It tells the guard of itself, so
/// that the guard knows of the group before the rank can start anything.
pub(crate) fn rank_command(program: &Program, guard: Option<&Guard>) -> Command {
    let mut command = this_program(RANK);
    command
        .arg(std::process::id().to_string())
        .arg(&program.path)
        .arg(&program.name)
        .args(&program.args)
        .stdin(guard.and_then(Guard::told_by_rank).unwrap_or_else(Stdio::null))
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .process_group(0);
    command
}

fn become_rank(args: &[OsString]) -> ExitCode {
    let [parent, path, name, rest @ ..] = args else { return ExitCode::from(2) };
    let parent = parent.to_str().and_then(|pid| pid.parse().ok()).and_then(Pid::from_raw);
    let bound = process::set_parent_process_death_signal(Some(Signal::KILL));
    if let Err(error) = bound {
        eprintln!("ddp-run: this rank could outlive its launcher: {error}");
    }
    // The launcher may have died before the line above: then nobody sends that signal.
    if parent.is_none() || process::getppid() != parent {
        return ExitCode::from(137);
    }
    // Without a guard this goes nowhere.
    let _ = write_order(&std::io::stdin(), '+', process::getpid());
    let error = Command::new(path).arg0(name).args(rest).stdin(Stdio::null()).exec();
    eprintln!("ddp-run: cannot start {}: {error}", path.display());
    ExitCode::from(if error.kind() == std::io::ErrorKind::NotFound { 127 } else { 126 })
}

/// A process that ends the ranks' groups should the launcher be killed: the ranks themselves
/// die with it anyway, but not what they have started.
pub(crate) struct Guard {
    child: Child,
    orders: Option<ChildStdin>,
}

impl Guard {
    /// Starts the guard; without one (no memory, no processes left) the run goes on unguarded.
    pub(crate) fn start() -> Option<Self> {
        let mut command = this_program(GUARD);
        command.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::null()).process_group(0);
        let mut child = command.spawn().ok()?;
        let orders = child.stdin.take();
        Some(Self { child, orders })
    }

    /// Standard input for a rank that is being started: it writes there that its group is there.
    fn told_by_rank(&self) -> Option<Stdio> {
        let orders = self.orders.as_ref()?.as_fd().try_clone_to_owned().ok()?;
        Some(Stdio::from(orders))
    }

    /// Says that a group is gone and its number free again.
    pub(crate) fn forget(&self, group: Pid) {
        if let Some(orders) = &self.orders {
            let _ = write_order(orders, '-', group);
        }
    }

    /// The guard's own process: no rank, and not to be ended with what ranks left behind.
    pub(crate) fn pid(&self) -> Pid {
        Pid::from_child(&self.child)
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        self.orders = None;
        let _ = self.child.wait();
    }
}

/// One line in one piece: several processes write to the guard.
fn write_order(orders: &impl AsFd, sign: char, group: Pid) -> rustix::io::Result<()> {
    let line = format!("{sign}{}\n", group.as_raw_nonzero());
    rustix::io::write(orders, line.as_bytes()).map(drop)
}

/// Reads which groups are there until the launcher is gone, then ends those that are left. A
/// group's number cannot have been given away in between: the launcher says that a group is gone
/// before it reaps its leader.
fn guard() -> ExitCode {
    let mut groups: Vec<Pid> = Vec::new();
    for line in std::io::stdin().lock().lines() {
        let Ok(line) = line else { break };
        let Some(group) = line.get(1..).and_then(|pid| pid.parse().ok()).and_then(Pid::from_raw)
        else {
            continue;
        };
        if line.starts_with('+') {
            groups.push(group);
        } else {
            groups.retain(|other| *other != group);
        }
    }
    for group in groups {
        sys::signal_group(group, signal_hook::consts::SIGKILL);
    }
    ExitCode::SUCCESS
}
