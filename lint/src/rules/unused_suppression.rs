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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_holds_for_nothing_counts() {
        check_python("x = 1  # ddp-lint: allow(unguarded-save)  # ~ unused-suppression\n");
        check_python(
            "
# ddp-lint: allow(missing-set-epoch)  # ~ unused-suppression
def train(loader):
    for x in loader:
        print(x)
",
        );
    }

    #[test]
    fn one_name_of_two_counts() {
        check_python(
            "
import torch
net = torch.nn.DataParallel(torch.nn.Linear(2, 2))
# ddp-lint: allow(data-parallel-in-use, unguarded-save)  # ~ unused-suppression
other = torch.nn.DataParallel(torch.nn.Linear(2, 2))
",
        );
    }

    #[test]
    fn a_fault_that_is_another_files_counts() {
        check_files(&[
            ("nets.py", "import torch\nnet = torch.nn.DataParallel(torch.nn.Linear(2, 2))\n"),
            (
                "main.py",
                "
import torch
# ddp-lint: allow(data-parallel-in-use)  # ~ unused-suppression
from nets import net
net(torch.ones(2, 2))
",
            ),
        ]);
    }

    #[test]
    fn what_holds_for_a_finding_is_silent() {
        check_python(
            "
import torch
net = torch.nn.DataParallel(torch.nn.Linear(2, 2))  # ddp-lint: allow(data-parallel-in-use)
",
        );
        check_files(&[
            (
                "nets.py",
                "
import torch
# ddp-lint: allow(data-parallel-in-use)
net = torch.nn.DataParallel(torch.nn.Linear(2, 2))
",
            ),
            ("main.py", "from nets import net\nprint(net)\n"),
        ]);
    }

    #[test]
    fn text_that_is_no_comment_is_silent() {
        check_python("x = '# ddp-lint: allow(unguarded-save)'\n");
    }
}
