//! Work that only rank 0 does, or does first: printing, progress, and whatever else must happen
//! once.

use indicatif::{ProgressBar, ProgressStyle};

use crate::error::{Error, Result};
use crate::group::ProcessGroup;

impl ProcessGroup {
    /// Runs `work` on rank 0 while the others wait, then on the others: to download or prepare
    /// what all of them read. A collective. An error of rank 0 reaches all ranks.
    ///
    /// # Errors
    /// `work` failed on this rank or on rank 0, or a rank failed.
    pub fn main_first<T, E: std::fmt::Display>(
        &self,
        work: impl FnOnce() -> Result<T, E>,
    ) -> Result<T> {
        let text = |error: E| error.to_string();
        if self.is_main() {
            let done = work().map_err(text);
            let outcome = done.as_ref().map(|_| ()).map_err(Clone::clone);
            self.agree(outcome)?;
            return done.map_err(|reason| failed_first(&reason));
        }
        match self.agree(Ok(()))? {
            Some((_, reason)) => Err(failed_first(&reason)),
            None => work().map_err(|error| Error::Argument(text(error))),
        }
    }

    /// A progress bar over `n_steps` on rank 0, and one that shows nothing on the others.
    pub fn progress_bar(&self, n_steps: u64) -> ProgressBar {
        if !self.is_main() {
            return ProgressBar::hidden();
        }
        let style = ProgressStyle::with_template("{bar:30} {pos}/{len} {msg} {eta} left");
        let bar = ProgressBar::new(n_steps);
        match style {
            Ok(style) => bar.with_style(style),
            Err(_) => bar,
        }
    }
}

fn failed_first(reason: &str) -> Error {
    Error::Argument(format!("what rank 0 does first failed: {reason}"))
}

/// Runs statements on rank 0 only; the first argument is anything with `is_main()`.
///
/// A collective inside would hang the other ranks' next one.
///
/// ```no_run
/// # fn main() -> tch_ddp::Result<()> {
/// # let group = tch_ddp::ProcessGroup::init(&tch_ddp::Launch::alone(), Default::default())?;
/// tch_ddp::main_only!(group, println!("training on {} ranks", group.world_size()));
/// # Ok(()) }
/// ```
#[macro_export]
macro_rules! main_only {
    ($group:expr, $($body:tt)*) => {
        if $group.is_main() {
            $($body)*;
        }
    };
}

/// `println!` on rank 0 only; the first argument is anything with `is_main()`.
#[macro_export]
macro_rules! main_println {
    ($group:expr $(, $($text:tt)*)?) => {
        if $group.is_main() {
            println!($($($text)*)?);
        }
    };
}
