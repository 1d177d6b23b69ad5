//! A filter for `tracing` that lets events through on rank 0 only. With feature `tracing`.

use tracing_core::{Level, Metadata};
use tracing_subscriber::layer::{Context, Filter};

use crate::group::ProcessGroup;

/// Silences a `tracing` layer off rank 0; warnings and errors of all ranks may pass.
///
/// ```no_run
/// use tracing_subscriber::prelude::*;
/// # fn main() -> tch_ddp::Result<()> {
/// # let group = tch_ddp::ProcessGroup::init(&tch_ddp::Launch::alone(), Default::default())?;
/// let layer = tracing_subscriber::fmt::layer().with_filter(tch_ddp::MainFilter::new(&group));
/// tracing_subscriber::registry().with(layer).init();
/// # Ok(()) }
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MainFilter {
    is_main: bool,
    warnings_of_all: bool,
}

impl MainFilter {
    /// Everything on rank 0 of the group, nothing elsewhere.
    pub fn new(group: &ProcessGroup) -> Self {
        Self { is_main: group.is_main(), warnings_of_all: false }
    }

    /// Lets the warnings and errors of all ranks through.
    #[must_use]
    pub fn warnings_of_all(mut self) -> Self {
        self.warnings_of_all = true;
        self
    }

    fn passes(self, level: Level) -> bool {
        self.is_main || (self.warnings_of_all && level <= Level::WARN)
    }
}

impl<S> Filter<S> for MainFilter {
    fn enabled(&self, metadata: &Metadata<'_>, _: &Context<'_, S>) -> bool {
        self.passes(*metadata.level())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_rank_0_speaks_except_for_warnings() {
        let main = MainFilter { is_main: true, warnings_of_all: false };
        let other = MainFilter { is_main: false, ..main };
        assert!(main.passes(Level::INFO) && !other.passes(Level::ERROR));
        let warns = other.warnings_of_all();
        assert!(warns.passes(Level::WARN) && warns.passes(Level::ERROR));
        assert!(!warns.passes(Level::INFO));
    }
}
