//! Files of a program that cannot be read as their language.

use crate::prelude::*;
use crate::torch;

declare_rule! {
    /// A file of a program that uses torch or tch does not parse.
    ///
    /// It stops the program before it starts, on every rank. A recipe that is copied a lot
    /// tests the rank with `if args.rank = 0:`, which is no Python. The analysis goes on with
    /// what can be read of the file, so other findings may be missing.
    ///
    /// ```python bad
    /// import torch
    ///
    /// if args.rank = 0:  # ~ invalid-syntax
    ///     batch_size = 1
    /// ```
    /// ```python good
    /// import torch
    ///
    /// if args.rank == 0:
    ///     batch_size = 1
    /// ```
    /// ```rust bad
    /// use tch::Tensor;
    ///
    /// fn main() {
    ///     let rank = ; //~ invalid-syntax
    /// }
    /// ```
    /// ```rust good
    /// use tch::Tensor;
    ///
    /// fn main() {
    ///     let rank = 0;
    /// }
    /// ```
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

fn check(program: &Program<'_>, report: &mut Report<'_>) {
    let reached = || program.project().files.iter().filter(|file| program.reaches(file.id));
    if !reached().any(|file| torch::is_mentioned(&file.text)) {
        return;
    }
    for file in reached() {
        for error in &file.module.errors {
            report
                .at(Site { file: file.id, span: error.span }, error.message.clone())
                .why("the program ends here before any rank starts")
                .help("mend the syntax; what could not be read has not been checked");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_that_the_program_reaches_count() {
        check_files(&[
            (
                "main.py",
                "import torch\nimport model\nif __name__ == '__main__':\n    model.run()\n",
            ),
            ("model.py", "class Net(:  # ~ invalid-syntax\n    pass\n"),
            ("other/notes.py", "this is no Python\n"),
        ]);
    }

    #[test]
    fn programs_without_torch_are_other_tools_business() {
        check_python("x = = 1\n");
        check_rust("fn main() { let x = ; }\n");
    }
}
