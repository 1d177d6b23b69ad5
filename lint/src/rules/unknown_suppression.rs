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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_of_no_rule_counts() {
        check_python("x = 1  # ddp-lint: allow(unguarded-saves)  # ~ unknown-suppression\n");
        check_python(
            "
# ddp-lint: allow(E501)  # ~ unknown-suppression
def train():
    pass
",
        );
    }

    #[test]
    fn a_name_in_the_spelling_of_a_module_counts() {
        check_python("x = 1  # ddp-lint: allow(unguarded_save)  # ~ unknown-suppression\n");
    }

    #[test]
    fn one_name_of_two_counts() {
        check_python(
            "
import torch
# ddp-lint: allow(data-parallel-in-use, data-parallel)  # ~ unknown-suppression
net = torch.nn.DataParallel(torch.nn.Linear(2, 2))
",
        );
    }

    #[test]
    fn each_file_is_looked_at() {
        check_files(&[
            ("a.py", "import b\n# ddp-lint: allow(nothing)  # ~ unknown-suppression\n"),
            ("b.py", "x = 1  # ddp-lint: allow(anything)  # ~ unknown-suppression\n"),
        ]);
    }

    #[test]
    fn names_of_rules_are_silent() {
        check_python(
            "
import torch
net = torch.nn.DataParallel(torch.nn.Linear(2, 2))  # ddp-lint: allow(data-parallel-in-use)
",
        );
        check_files(&[
            ("a.py", "import b\n"),
            ("b.py", "x = 1  # noqa: E501\ny = 2  # type: ignore[name]\n"),
        ]);
    }
}
