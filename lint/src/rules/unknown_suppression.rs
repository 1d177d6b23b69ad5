//! Told by `suppress` when all rules have run; declared here for its documentation.

use crate::prelude::*;

declare_rule! {
    /// A suppression comment names no rule, or cannot be read.
    ///
    /// It suppresses nothing, though it looks as if it did: a mistyped rule, brackets left
    /// out, a word that ddp-lint does not know.
    ///
    /// ```python bad
    /// step = 1  # ddp-lint: allow(unguarded-saev) # ~ unknown-suppression
    /// ```
    /// ```python good
    /// step = 1  # a comment about ddp-lint: allow(anything) is no suppression
    /// ```
    /// ```rust bad
    /// fn main() {
    ///     let step = 1; // ddp-lint: allow unguarded-save //~ unknown-suppression
    /// }
    /// ```
    /// ```rust good
    /// fn main() {
    ///     let step = 1;
    /// }
    /// ```
    pub static RULE = {
        name: "unknown-suppression",
        level: Level::Warning,
        harm: Harm::Noise,
        tier: 1,
        languages: BOTH,
        fix: FixKind::No,
        check,
    };
}

fn check(_: &Program<'_>, _: &mut Report<'_>) {}
