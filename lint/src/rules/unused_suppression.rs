//! Told by `suppress` when all rules have run; declared here for its documentation.

use crate::prelude::*;

declare_rule! {
    /// A suppression comment suppresses nothing.
    ///
    /// What it was written for is gone, or the comment stands in the wrong place. Left where it
    /// is, it would hide the next fault of that kind. Only rules that ran are judged.
    ///
    /// A comment counts on the first or last line of the statement that holds the finding, on
    /// the finding's own line, or alone on the line above either (above decorators and
    /// attributes too). `allow-file` counts for the whole file.
    ///
    /// ```python bad
    /// step = 1  # ddp-lint: allow(unknown-suppression) # ~ unused-suppression
    /// ```
    /// ```python fixed
    /// step = 1
    /// ```
    /// ```rust bad
    /// fn main() {
    ///     // ddp-lint: allow(unknown-suppression) -- here is nothing //~ unused-suppression
    ///     let step = 1;
    /// }
    /// ```
    /// ```rust fixed
    /// fn main() {
    ///     let step = 1;
    /// }
    /// ```
    pub static RULE = {
        name: "unused-suppression",
        level: Level::Warning,
        harm: Harm::Noise,
        tier: 1,
        languages: BOTH,
        fix: FixKind::Safe,
        check,
    };
}

fn check(_: &Program<'_>, _: &mut Report<'_>) {}
