//! What failed: from exit codes and error files to the report with the root cause.
//! Knows nothing of processes; the wire format between nodes is here too.

use std::fmt::Write as _;
use std::fs;
use std::path::Path;
use std::time::{Duration, SystemTime};

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::sys;

/// How a rank failed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum How {
    /// It ended with an exit code other than 0.
    Exit(i32),
    /// A signal ended it that the launcher did not send.
    Signal(i32),
    /// It wrote its error file but had not ended yet when the launcher ended it.
    Reported,
    /// It was stopped (SIGSTOP) for longer than `--stop-timeout` allows, in seconds.
    Stopped(u64),
    /// It never ran: what was missing.
    NotStarted(String),
    /// Its node's launcher is gone or was told to end.
    Node(String),
}

/// A failed rank.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Failure {
    pub rank: usize,
    pub local_rank: usize,
    pub host: String,
    pub pid: i32,
    pub how: How,
    /// Time since the failure when this was written; clocks of nodes need not agree.
    pub age: Duration,
    /// Time from the start of the attempt to the failure.
    pub after: Duration,
    pub error_file: Option<String>,
    pub message: Option<String>,
    pub last_lines: Vec<String>,
    /// Folder of its log files.
    pub logs: Option<String>,
    /// Exit code of the launcher if this is the root cause.
    pub code: u8,
}

/// torchelastic's error file as far as we need it.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct ErrorFile {
    pub message: String,
    /// When it was written, to a finer grain than the second that stands in it.
    pub written: SystemTime,
}

impl ErrorFile {
    /// Reads the file; `None` if there is none. One that is no JSON is shown as it is.
    pub(crate) fn read(path: &Path) -> Option<Self> {
        let written = Self::written(path)?;
        let text = String::from_utf8_lossy(&fs::read(path).ok()?).into_owned();
        let message = match serde_json::from_str::<Value>(&text) {
            Ok(value) => message(&value).unwrap_or(text),
            Err(_) => text,
        };
        Some(Self { message: message.trim_end().to_owned(), written })
    }

    /// When the file was written, if it is there.
    pub(crate) fn written(path: &Path) -> Option<SystemTime> {
        path.metadata().and_then(|data| data.modified()).ok()
    }
}

/// The trace if there is one (it ends with the message), else the message.
fn message(file: &Value) -> Option<String> {
    let message = file.get("message")?;
    let inner = || {
        let trace = message.get("extraInfo").and_then(|info| info.get("py_callstack"));
        let trace = trace.and_then(Value::as_str).filter(|trace| !trace.trim().is_empty());
        let plain = message.get("message").and_then(Value::as_str);
        match (trace, plain) {
            (Some(trace), Some(plain)) if !trace.contains(plain) => {
                Some(format!("{plain}\n{trace}"))
            }
            (Some(text), _) | (None, Some(text)) => Some(text.to_owned()),
            (None, None) => None,
        }
    };
    message.as_str().map(str::to_owned).or_else(inner)
}

impl Failure {
    /// The exit code of the launcher that this failure leads to.
    pub(crate) fn exit_code(how: &How) -> u8 {
        match how {
            How::Exit(code) => u8::try_from(*code).ok().filter(|code| *code != 0).unwrap_or(1),
            How::Signal(signal) => u8::try_from(128 + signal).unwrap_or(1),
            How::Stopped(_) => 128 + signal_hook::consts::SIGSTOP as u8,
            How::Reported | How::NotStarted(_) | How::Node(_) => 1,
        }
    }

    /// The failure in a few words: `exit code 3`.
    pub(crate) fn short(&self) -> String {
        match &self.how {
            How::Exit(code) => format!("exit code {code}"),
            How::Signal(signal) => format!("killed by {}", sys::signal_name(*signal)),
            How::Reported => "reported an error and was ended before it could exit".to_owned(),
            How::Stopped(secs) => format!("stopped (SIGSTOP) for {secs} s"),
            How::NotStarted(why) | How::Node(why) => why.clone(),
        }
    }

    /// Whether it failed because another rank was gone already.
    pub(crate) fn is_consequence(&self) -> bool {
        let says = |text: &str| LOST_PEER.iter().any(|words| text.contains(words));
        let ended_itself = matches!(self.how, How::Exit(_) | How::Reported | How::Signal(6));
        let last_lines = || self.last_lines.iter().any(|line| says(line));
        ended_itself && self.message.as_deref().map_or_else(last_lines, says)
    }

    fn hint(&self) -> Option<&'static str> {
        match self.how {
            How::Signal(9) => Some(
                "SIGKILL is often the kernel's doing when memory is full: see dmesg, and the \
                 memory limit of the job or container",
            ),
            How::Signal(7) => Some(
                "SIGBUS often means that shared memory is full: see df /dev/shm (Docker: \
                 --shm-size)",
            ),
            How::Signal(6) => Some(
                "SIGABRT: the program ended itself; NCCL's watchdog does so when a collective \
                 times out",
            ),
            How::Exit(127) => Some("127 means that a command was not found"),
            _ => None,
        }
    }
}

/// The report: root cause first, then who else failed.
pub(crate) fn report(failures: &[Failure], world_size: usize, attempt: &str) -> String {
    let Some((root, others)) = failures.split_first() else { return String::new() };
    let mut text = String::new();
    if let How::NotStarted(why) | How::Node(why) = &root.how {
        let _ = writeln!(text, "{why}");
    } else {
        let (first, rest) = match world_size {
            0 | 1 => ("", String::new()),
            2 => (" first", ", so the other rank was ended".to_owned()),
            _ => (" first", format!(", so the other {} ranks were ended", world_size - 1)),
        };
        let _ = writeln!(text, "rank {} failed{first}: {}{rest}", root.rank, root.short());
        let _ = writeln!(
            text,
            "host {} · local rank {} · pid {} · after {:.1} s{attempt}",
            root.host,
            root.local_rank,
            root.pid,
            root.after.as_secs_f64()
        );
    }
    if let Some(hint) = root.hint() {
        let _ = writeln!(text, "{hint}");
    }
    if let Some(message) = &root.message {
        let file = root.error_file.as_ref().map_or_else(String::new, |file| format!(" ({file})"));
        let _ = writeln!(text, "its error{file}:\n{}", indented(message.lines()));
    }
    if !root.last_lines.is_empty() {
        let lines = root.last_lines.iter().map(String::as_str);
        let _ = writeln!(text, "last lines of rank {}:\n{}", root.rank, indented(lines));
    }
    if let Some(logs) = &root.logs {
        let _ = writeln!(text, "its log files are in {logs}");
    }
    let shown = 8;
    for other in others.iter().take(shown) {
        let later = root.age.saturating_sub(other.age).as_secs_f64();
        let _ = writeln!(text, "then rank {}: {} ({later:.2} s later)", other.rank, other.short());
    }
    if others.len() > shown {
        let _ = writeln!(text, "and {} more", others.len() - shown);
    }
    text.trim_end().to_owned()
}

fn indented<'a>(lines: impl Iterator<Item = &'a str>) -> String {
    lines.map(|line| format!("  | {line}")).collect::<Vec<_>>().join("\n")
}

/// Sorts the root cause first: the earliest failure that does not itself say that another rank
/// went away. The exception matters, as a rank's connections close before the kernel says that
/// it has ended: those who notice may have reported their error and ended by then.
pub(crate) fn sort(failures: &mut [Failure]) {
    failures.sort_by_key(|failure| (failure.is_consequence(), std::cmp::Reverse(failure.age)));
}

/// What Gloo, NCCL and the store say when the other end of a connection is gone.
const LOST_PEER: &[&str] = &[
    "Connection closed by peer",
    "Connection reset by peer",
    "Broken pipe",
    "ncclRemoteError",
    "remote process exit",
    "Connection was likely closed",
];

#[cfg(test)]
mod tests {
    use super::*;

    fn failure(rank: usize, how: How, age_ms: u64) -> Failure {
        Failure {
            rank,
            local_rank: rank,
            host: "h".into(),
            pid: 7,
            code: Failure::exit_code(&how),
            how,
            age: Duration::from_millis(age_ms),
            after: Duration::from_secs(2),
            error_file: None,
            message: None,
            last_lines: vec!["last".into()],
            logs: None,
        }
    }

    #[test]
    fn the_earliest_failure_is_the_root_cause() {
        let mut failures = [failure(0, How::Exit(1), 100), failure(2, How::Signal(11), 350)];
        sort(&mut failures);
        let text = report(&failures, 4, "");
        assert!(text.starts_with("rank 2 failed first: killed by SIGSEGV, so the other 3 ranks"));
        assert!(text.contains("then rank 0: exit code 1 (0.25 s later)"), "{text}");
        assert_eq!(failures[0].code, 139);
    }

    #[test]
    fn who_lost_a_peer_is_not_the_root_cause() {
        let mut victim = failure(0, How::Exit(1), 350);
        victim.message = Some("RuntimeError: [pair.cc:553] Connection closed by peer".into());
        let mut failures = [victim.clone(), failure(1, How::Signal(9), 330)];
        sort(&mut failures);
        assert_eq!(failures[0].rank, 1);
        // Its last lines count where there is no error file.
        victim.last_lines = vec![victim.message.take().unwrap()];
        assert!(victim.is_consequence());
        // Alone it is all there is to tell.
        let mut failures = [victim];
        sort(&mut failures);
        assert_eq!(failures[0].rank, 0);
    }

    #[test]
    fn exit_codes_are_kept() {
        let code = |how| Failure::exit_code(&how);
        assert_eq!(
            [code(How::Exit(3)), code(How::Signal(9)), code(How::Stopped(5))],
            [3, 137, 147]
        );
    }

    #[test]
    fn error_files_of_torchelastic_and_others_are_read() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("error.json");
        assert_eq!(ErrorFile::read(&path), None);
        let with_info = |info: &str| {
            format!(r#"{{"message": {{"message": "E: x", "extraInfo": {{{info}}}}}}}"#)
        };
        for (text, message) in [
            (with_info(r#""py_callstack": "Trace\nE: x\n", "timestamp": "1""#), "Trace\nE: x"),
            (with_info(r#""py_callstack": "frames", "timestamp": "1""#), "E: x\nframes"),
            (with_info(""), "E: x"),
            (r#"{"message": "plain", "timestamp": 1}"#.to_owned(), "plain"),
            ("no json\n".to_owned(), "no json"),
        ] {
            fs::write(&path, text).unwrap();
            assert_eq!(ErrorFile::read(&path).unwrap().message, message);
        }
    }
}
