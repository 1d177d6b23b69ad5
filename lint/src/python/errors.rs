//! Syntax errors in our own words.

use ruff_python_parser::ParseError as RuffError;
use ruff_text_size::Ranged;

use crate::model::{ParseError, Span};

pub(super) fn report(_text: &str, errors: &[RuffError]) -> Vec<ParseError> {
    errors
        .iter()
        .map(|error| {
            let range = error.range();
            let span = Span { start: range.start().to_u32(), end: range.end().to_u32() };
            ParseError { span, message: error.error.to_string() }
        })
        .collect()
}
