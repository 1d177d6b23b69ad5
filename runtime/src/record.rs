//! Tells the launcher why this rank ended: writes the error file that torchrun and `ddp-run` show
//! with the root cause. A file that cannot be written never hides the error itself.

use std::backtrace::{Backtrace, BacktraceStatus};
use std::fmt::Display;
use std::fs;
use std::panic::{self, PanicHookInfo};
use std::path::PathBuf;
use std::sync::{Mutex, Once, PoisonError};
use std::thread;
use std::time::{SystemTime, UNIX_EPOCH};

use serde_json::json;

use crate::checkpoint::write_atomically;

/// Where the launcher looks for this rank's error; torchelastic's name.
const ERROR_FILE: &str = "TORCHELASTIC_ERROR_FILE";

/// Runs the program of this rank and tells the launcher how it failed, as `@record` does in Python.
///
/// `torchrun` and `ddp-run` give each rank a file for this (`TORCHELASTIC_ERROR_FILE`), show what
/// stands in it, and take the rank that wrote it first for the one that failed first. Written are
/// the error that `program` returns, with its causes (`{error:#}`), and panics of any thread; the
/// latter also without `record`, from [`ProcessGroup::init`](crate::ProcessGroup::init) on.
/// Nothing is written without that variable.
///
/// ```no_run
/// fn main() -> anyhow::Result<()> {
///     tch_ddp::record(train)
/// }
///
/// fn train() -> anyhow::Result<()> {
///     let launch = tch_ddp::Launch::from_env()?;
/// #   let _ = launch;
///     Ok(())
/// }
/// ```
///
/// # Errors
/// What `program` returned, unchanged.
pub fn record<T, E: Display>(program: impl FnOnce() -> Result<T, E>) -> Result<T, E> {
    record_panics();
    let result = program();
    if let Err(error) = &result {
        write(&format!("{error:#}"), "");
    }
    result
}

/// Reports panics from now on, beside what is done about them already; once per process.
pub(crate) fn record_panics() {
    static INSTALLED: Once = Once::new();
    if std::env::var_os(ERROR_FILE).is_none() {
        return;
    }
    INSTALLED.call_once(|| {
        let before = panic::take_hook();
        panic::set_hook(Box::new(move |info| {
            // First: the time of the file tells who failed first, and printing may take long.
            report(info);
            before(info);
        }));
    });
}

fn report(info: &PanicHookInfo<'_>) {
    // A thread's panic is often followed by that of the thread that waited for it.
    static EARLIER: Mutex<Option<String>> = Mutex::new(None);
    let thread = thread::current();
    let place = info.location().map_or_else(String::new, |location| format!(" at {location}"));
    let said = info.payload_as_str().unwrap_or("(no text)");
    let text = format!("thread '{}' panicked{place}: {said}", thread.name().unwrap_or("unnamed"));
    let backtrace = Backtrace::capture();
    let mut details = match backtrace.status() {
        BacktraceStatus::Captured => backtrace.to_string(),
        _ => String::new(),
    };
    let mut earlier = EARLIER.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(earlier) = &*earlier {
        details = format!("before that, {earlier}\n{details}");
    }
    write(&text, &details);
    *earlier = Some(text);
}

/// Writes torchelastic's error file: torchrun shows the call stack only, so it begins with the
/// message.
fn write(message: &str, details: &str) {
    let Some(path) = std::env::var_os(ERROR_FILE).filter(|path| !path.is_empty()) else { return };
    let seconds = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
    let stack = format!("{message}\n{details}");
    let file = json!({
        "message": {
            "message": message,
            "extraInfo": { "py_callstack": stack.trim_end(), "timestamp": seconds.to_string() },
        }
    });
    let path = PathBuf::from(path);
    // In one step: torchrun itself fails over half a file.
    let written = write_atomically(&path, |temporary| {
        fs::write(temporary, file.to_string()).map_err(|error| error.to_string())
    });
    if let Err(error) = written {
        eprintln!("tch-ddp: cannot tell the launcher in {}: {error}", path.display());
    }
}
