//! The calls to the operating system, each a few lines over `rustix`; no policy here.

use std::collections::HashMap;
use std::fs;
use std::io;
use std::os::fd::BorrowedFd;
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::process::{self, Pid, Signal, WaitId, WaitIdOptions};
use signal_hook::consts::signal;
use signal_hook::iterator::backend::SignalDelivery;
use signal_hook::iterator::exfiltrator::SignalOnly;

/// What a child is doing, as far as its parent can see.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Seen {
    Running,
    Stopped,
    Exited(i32),
    Killed(i32),
}

/// Looks at a child without reaping it, so that its process id stays taken and a signal to its
/// group can hit nobody else.
pub(crate) fn look(pid: Pid) -> Seen {
    let options = WaitIdOptions::EXITED
        | WaitIdOptions::STOPPED
        | WaitIdOptions::CONTINUED
        | WaitIdOptions::NOHANG
        | WaitIdOptions::NOWAIT;
    match process::waitid(WaitId::Pid(pid), options) {
        Ok(Some(status)) => match (status.exit_status(), status.terminating_signal()) {
            (Some(code), _) => Seen::Exited(code),
            (_, Some(signal)) => Seen::Killed(signal),
            _ if status.stopped() => Seen::Stopped,
            _ => Seen::Running,
        },
        _ => Seen::Running,
    }
}

/// Sends a signal to every process of a group; an empty group is no error.
pub(crate) fn signal_group(group: Pid, signal: i32) {
    if let Some(signal) = Signal::from_named_raw(signal) {
        let _ = process::kill_process_group(group, signal);
    }
}

/// Sends a signal to one process, if it still is.
pub(crate) fn signal_process(pid: Pid, signal: i32) {
    if let Some(signal) = Signal::from_named_raw(signal) {
        let _ = process::kill_process(pid, signal);
    }
}

/// Stops this very process (Ctrl-Z); returns when it is continued.
pub(crate) fn stop_self() {
    let _ = process::kill_process(process::getpid(), Signal::STOP);
}

/// Reaps a child that was not started here but handed over to us as an orphan.
pub(crate) fn reap(pid: Pid) -> bool {
    let options = WaitIdOptions::EXITED | WaitIdOptions::NOHANG;
    matches!(process::waitid(WaitId::Pid(pid), options), Ok(Some(_)))
}

/// `SIGKILL` for 9, and so on.
pub(crate) fn signal_name(number: i32) -> String {
    signal_hook::low_level::signal_name(number)
        .map_or_else(|| format!("signal {number}"), str::to_owned)
}

/// 9 for `SIGKILL` or `KILL`.
pub(crate) fn signal_number(name: &str) -> Option<i32> {
    let name = name.trim();
    let full = if name.starts_with("SIG") { name.to_owned() } else { format!("SIG{name}") };
    (1..=31).find(|&number| signal_hook::low_level::signal_name(number) == Some(&full))
}

/// Signals of this process as something to poll for.
pub(crate) struct Signals {
    delivery: SignalDelivery<UnixStream, SignalOnly>,
}

impl Signals {
    /// Takes over the signals that are not ignored: a launcher started by `nohup` must not die
    /// of SIGHUP because it listened to it.
    pub(crate) fn listen(numbers: &[i32]) -> io::Result<Self> {
        let ignored = ignored_signals();
        let (read, write) = UnixStream::pair()?;
        let mut wanted = vec![signal::SIGCHLD];
        let free = |number: i32| ignored & (1 << (number - 1)) == 0;
        wanted.extend(numbers.iter().copied().filter(|&number| free(number)));
        let delivery = SignalDelivery::with_pipe(read, write, SignalOnly, wanted)?;
        Ok(Self { delivery })
    }

    /// Signals since the last call.
    pub(crate) fn take(&mut self) -> Vec<i32> {
        self.delivery.pending().collect()
    }

    /// Becomes readable when a signal has arrived.
    pub(crate) fn stream(&self) -> &UnixStream {
        self.delivery.get_read()
    }
}

/// The set of signals that this process was told to ignore when it was started, as bits.
fn ignored_signals() -> u64 {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    line.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).unwrap_or(0)
}

/// Waits until one of the descriptors can be read or the time is over; says which are ready.
pub(crate) fn wait_readable(fds: &[BorrowedFd<'_>], timeout: Duration) -> Vec<bool> {
    let mut polled: Vec<_> =
        fds.iter().map(|fd| PollFd::from_borrowed_fd(*fd, PollFlags::IN)).collect();
    let timeout = Timespec {
        tv_sec: timeout.as_secs().min(3600) as i64,
        tv_nsec: i64::from(timeout.subsec_nanos()),
    };
    match rustix::event::poll(&mut polled, Some(&timeout)) {
        Ok(_) => polled.iter().map(|fd| !fd.revents().is_empty()).collect(),
        Err(_) => vec![false; fds.len()],
    }
}

/// A living process, as `/proc` tells it.
pub(crate) struct Process {
    pub pid: Pid,
    pub parent: i32,
    pub group: i32,
    pub name: String,
}

/// All living processes that can be seen; zombies are left out.
pub(crate) fn processes() -> Vec<Process> {
    let Ok(entries) = fs::read_dir("/proc") else { return Vec::new() };
    let process = |entry: io::Result<fs::DirEntry>| {
        let pid: i32 = entry.ok()?.file_name().to_str()?.parse().ok()?;
        parse_stat(&fs::read_to_string(format!("/proc/{pid}/stat")).ok()?)
    };
    entries.filter_map(process).collect()
}

/// Reads `pid (name) state parent group …`; the name may itself hold spaces and brackets.
fn parse_stat(stat: &str) -> Option<Process> {
    let (pid, rest) = stat.split_once(" (")?;
    let (name, rest) = rest.rsplit_once(") ")?;
    let mut fields = rest.split(' ');
    if matches!(fields.next()?, "Z" | "X") {
        return None;
    }
    Some(Process {
        pid: Pid::from_raw(pid.parse().ok()?)?,
        parent: fields.next()?.parse().ok()?,
        group: fields.next()?.parse().ok()?,
        name: name.to_owned(),
    })
}

/// Children of this process, zombies too: those we started and orphans handed over to us.
pub(crate) fn children() -> Vec<Pid> {
    let Ok(tasks) = fs::read_dir("/proc/self/task") else { return Vec::new() };
    let of_task = |task: io::Result<fs::DirEntry>| {
        let list = fs::read_to_string(task.ok()?.path().join("children")).ok()?;
        Some(list.split_whitespace().filter_map(|pid| pid.parse().ok()).collect::<Vec<i32>>())
    };
    tasks.filter_map(of_task).flatten().filter_map(Pid::from_raw).collect()
}

/// Who listens on a TCP port here, if that can be seen: `4711 (python)`.
pub(crate) fn port_holder(port: u16) -> Option<String> {
    let inodes: Vec<String> = ["/proc/net/tcp", "/proc/net/tcp6"]
        .iter()
        .filter_map(|table| fs::read_to_string(table).ok())
        .flat_map(|table| listening_inodes(&table, port))
        .map(|inode| format!("socket:[{inode}]"))
        .collect();
    processes().into_iter().find_map(|process| {
        let pid = process.pid.as_raw_nonzero();
        let holds = fs::read_dir(format!("/proc/{pid}/fd")).ok()?.flatten().any(|fd| {
            let target = fs::read_link(fd.path()).unwrap_or_default();
            inodes.iter().any(|inode| target.as_os_str() == inode.as_str())
        });
        holds.then(|| format!("{pid} ({})", process.name))
    })
}

/// Inodes of the sockets of a `/proc/net/tcp` table that hold a local port and have no peer.
fn listening_inodes(table: &str, port: u16) -> Vec<String> {
    let suffix = format!(":{port:04X}");
    table
        .lines()
        .map(|line| line.split_whitespace().collect::<Vec<_>>())
        .filter(|fields| fields.len() > 9 && fields[1].ends_with(&suffix) && fields[3] == "0A")
        .map(|fields| fields[9].to_owned())
        .collect()
}

/// This machine's name.
pub(crate) fn host_name() -> String {
    let name = fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    let name = name.trim();
    if name.is_empty() { "localhost".to_owned() } else { name.to_owned() }
}

/// Counts how often each second of waiting goes by: `wait_until(5 s, || done())`.
pub(crate) fn wait_until(limit: Duration, mut done: impl FnMut() -> bool) -> bool {
    let end = Instant::now() + limit;
    loop {
        if done() {
            return true;
        }
        if Instant::now() >= end {
            return false;
        }
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Environment of this process as text; what is no UTF-8 cannot be a setting of ours.
pub(crate) fn environment() -> HashMap<String, String> {
    let text = |(key, value): (std::ffi::OsString, std::ffi::OsString)| {
        Some((key.into_string().ok()?, value.into_string().ok()?))
    };
    std::env::vars_os().filter_map(text).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_with_brackets_do_not_shift_the_fields() {
        let process = parse_stat("12 (a) b (c) S 3 4 5 0").unwrap();
        assert_eq!((process.name.as_str(), process.parent, process.group), ("a) b (c", 3, 4));
        assert!(parse_stat("12 (x) Z 3 4").is_none());
    }

    #[test]
    fn signals_have_names_and_numbers() {
        assert_eq!(signal_name(9), "SIGKILL");
        assert_eq!(signal_number("TERM"), Some(15));
        assert_eq!(signal_number("SIGUSR1"), Some(10));
        assert_eq!(signal_number("SIGNOTHING"), None);
    }

    #[test]
    fn listeners_are_found_in_the_table_of_the_kernel() {
        let line = "0: 00000000:733C 00000000:0000 0A 0:0 00:0 0 0 0 4242 1";
        assert_eq!(listening_inodes(line, 0x733C), ["4242"]);
        assert!(listening_inodes(line, 1).is_empty());
    }
}
