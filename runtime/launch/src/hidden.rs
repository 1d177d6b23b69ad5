//! Two modes in which the launcher starts itself: `__rank` becomes a rank, `__guard` outlives
//! the launcher. They exist so that all of it is safe code: what `fork` would allow between
//! fork and exec is done here by an ordinary process.

use std::ffi::{OsStr, OsString};
use std::io::{BufRead, Write};
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
/// what it starts itself, and dead as soon as the launcher is.
pub(crate) fn rank_command(program: &Program) -> Command {
    let mut command = this_program(RANK);
    command
        .arg(std::process::id().to_string())
        .arg(&program.path)
        .arg(&program.name)
        .args(&program.args)
        .stdin(Stdio::null())
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
    let error = Command::new(path).arg0(name).args(rest).exec();
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

    /// Says that a group is there (`true`), or gone and its number free again (`false`).
    pub(crate) fn tell(&mut self, group: Pid, there: bool) {
        let sign = if there { '+' } else { '-' };
        if let Some(orders) = &mut self.orders {
            let _ = orders.write_all(format!("{sign}{}\n", group.as_raw_nonzero()).as_bytes());
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
