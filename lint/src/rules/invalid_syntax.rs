use crate::prelude::*;
use crate::project::Project;

declare_rule! {
    /// A file of a program that uses torch or tch does not parse.
    ///
    /// What can be read of it is analysed all the same; what cannot is not checked.
    ///
    /// ```python bad
    /// import torch
    ///
    /// rank = 0
    /// if rank = 0:  # ~ invalid-syntax
    ///     torch.save({}, "model.pt")
    /// ```
    /// ```python good
    /// import torch
    ///
    /// rank = 0
    /// if rank == 0:
    ///     torch.save({}, "model.pt")
    /// ```
    /// ```rust bad
    /// use tch::Tensor;
    ///
    /// fn main() {
    ///     let = Tensor::new(); //~ invalid-syntax
    /// }
    /// ```
    /// ```rust good
    /// use tch::Tensor;
    ///
    /// fn main() {
    ///     let x = Tensor::new();
    /// }
    /// ```
    ///
    /// # Known limits
    /// Files that mention neither torch nor tch, and that no such program reaches, are left to
    /// other tools.
    pub static RULE = {
        name: "invalid-syntax",
        level: Level::Error,
        harm: Harm::Crash,
        tier: 1,
        languages: BOTH,
        fix: FixKind::No,
        check,
    };
}

/// Errors are a matter of files, not of programs: see `errors`.
fn check(_: &Program<'_>, _: &mut Report<'_>) {}

/// The errors of all files that use torch or tch, or are part of a program that does.
pub(crate) fn errors(project: &Project, is_part: impl Fn(FileId) -> bool) -> Vec<Finding> {
    let mut report = Report::new(&RULE);
    for file in &project.files {
        let is_sound = file.module.errors.is_empty();
        if is_sound || (!is_part(file.id) && !file.mentions_torch) {
            continue;
        }
        for error in &file.module.errors {
            let site = Site { file: file.id, span: error.span };
            report
                .at(site, error.message.clone())
                .why("the file does not parse, so the program does not start")
                .help(
                    "mend the syntax; the rest of the file was checked as far as it could be read",
                );
        }
    }
    report.into_findings()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_rest_of_the_file_is_still_checked() {
        check_python(
            "
import torch
model = torch.nn.DataParallel(torch.nn.Linear(2, 2))  # ~ data-parallel-in-use
rank = 1
if rank = 0:  # ~ invalid-syntax: ==
    print('main')
for _ in range(3):
    model(torch.ones(1, 2)).sum().backward()
",
        );
    }

    #[test]
    fn a_helper_without_torch_counts_where_such_a_program_reaches_it() {
        check_files(&[
            ("helper.py", "def f(:  # ~ invalid-syntax\n    pass\n"),
            (
                "main.py",
                "import torch\nimport helper\nif __name__ == '__main__':\n    print(torch)\n",
            ),
        ]);
    }

    #[test]
    fn a_file_that_has_nothing_to_do_with_torch_is_silent() {
        check_files(&[
            ("old.py", "print 'hello'\n"),
            ("main.py", "import torch\nif __name__ == '__main__':\n    print(torch)\n"),
        ]);
    }

    #[test]
    fn an_old_keyword_argument_counts() {
        check_python(
            "import torch\nx = torch.ones(2)\nx.cuda(0, async=True)  # ~ invalid-syntax\n",
        );
    }

    #[test]
    fn correct_files_are_silent() {
        check_python("import torch\nasync def f():\n    match 1:\n        case 1: pass\n");
        check_rust("use tch::Tensor;\nfn main() { let x = Tensor::new(); }\n");
    }

    #[test]
    fn a_decorator_behind_an_error_is_no_error() {
        check_python(
            "
import torch
class Blocks:
    @staticmethod
    def read(text):
        parts = text.split('_')随便写的一行  # ~ invalid-syntax
另外一行，没有意义；  # ~ invalid-syntax
        options = {}
        return options

    @staticmethod
    def write(block):
        return block
",
        );
    }
}
