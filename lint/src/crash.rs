//! Bugs of our own: caught, told with the way to report them, and kept from other files.

use std::cell::{Cell, RefCell};
use std::fmt;
use std::panic::{self, AssertUnwindSafe};

/// A panic while something was done for the user.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Crash {
    /// What was being done: "rule `x` on `train.py`".
    pub doing: String,
    /// The panic's message and place.
    pub message: String,
}

impl fmt::Display for Crash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "internal error in {}: {}\n  this is a bug in ddp-lint {}, please report it with this \
             text and, if you can, the file; everything else has been checked",
            self.doing,
            self.message,
            env!("CARGO_PKG_VERSION")
        )
    }
}

thread_local! {
    static CATCHING: Cell<bool> = const { Cell::new(false) };
    static LAST: RefCell<Option<String>> = const { RefCell::new(None) };
}

/// Makes caught panics silent; others are printed as before. To be called once, by a binary.
pub fn install_hook() {
    let default = panic::take_hook();
    panic::set_hook(Box::new(move |info| {
        if !CATCHING.get() {
            return default(info);
        }
        let place = info.location().map_or(String::new(), |place| format!(" ({place})"));
        LAST.set(Some(format!("{}{place}", words(info.payload()))));
    }));
}

/// Runs `work`; a panic inside becomes a `Crash`.
pub(crate) fn catch<T>(doing: impl Fn() -> String, work: impl FnOnce() -> T) -> Result<T, Crash> {
    let outer = CATCHING.replace(true);
    let result = panic::catch_unwind(AssertUnwindSafe(work));
    CATCHING.set(outer);
    result.map_err(|payload| {
        let message = LAST.take().unwrap_or_else(|| words(&*payload));
        Crash { doing: doing(), message }
    })
}

fn words(payload: &dyn std::any::Any) -> String {
    let text = payload.downcast_ref::<&str>().copied();
    let text = text.or_else(|| payload.downcast_ref::<String>().map(String::as_str));
    text.unwrap_or("a panic without words").to_owned()
}
