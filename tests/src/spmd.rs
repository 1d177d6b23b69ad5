//! Small random SPMD programs: made from a seed, written in Python and in Rust, and played by a
//! simulator that knows whether their ranks meet. The linter is measured against it.

pub mod generate;
pub mod program;
pub mod python;
pub mod rust;
pub mod simulate;
mod write;

use std::sync::Arc;

use ddp_lint::config::{Overrides, Selector, Settings};
use ddp_lint::linter::{self, Input, Source};
use ddp_lint::model::Language;

use program::Program;

/// The program's text in a language.
pub fn text(program: &Program, language: Language) -> String {
    match language {
        Language::Python => python::write(program),
        Language::Rust => rust::write(program),
    }
}

/// Rules that say that ranks part ways.
const RULES: [&str; 3] = ["divergent-collective", "divergent-forward", "local-value-decides"];

/// What the linter says of a program, in this process: messages of the rules about rank flow.
///
/// # Panics
/// A bug of the linter.
pub fn lint(text: &str, language: Language) -> Vec<String> {
    let path = match language {
        Language::Python => "main.py",
        Language::Rust => "main.rs",
    };
    let source = Source { path: path.into(), text: text.into(), reported: true, error: None };
    let input = Input { sources: vec![source], ..Input::default() };
    let (project, crashes) = linter::load(input);
    assert!(crashes.is_empty(), "{crashes:?}");
    let select = RULES.iter().map(|rule| Selector::Rule(rule)).collect();
    let settings = Settings::new(None, &Overrides { select: Some(select), ..Overrides::default() });
    let settings = Arc::new(settings);
    let outcome = linter::lint(&project, &|_| &settings);
    assert!(outcome.crashes.is_empty(), "{:?}", outcome.crashes);
    outcome.findings.into_iter().map(|finding| finding.message).collect()
}
