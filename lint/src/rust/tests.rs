//! What each form of Rust lowers to.

pub(super) mod corpus;
mod expressions;
mod items;
mod recovery;
mod statements;

use super::dump::dump;
use super::lower;
use crate::model::Module;

/// Lowers text that must parse.
fn lowered(text: &str) -> Module {
    let module = lower(text, "crate.data");
    assert!(module.errors.is_empty(), "{text}\n{:?}", module.errors);
    corpus::check_spans(text, &module);
    module
}

#[track_caller]
fn check(text: &str, expected: &str) {
    assert_eq!(dump(&lowered(text)).trim_end(), unindent(expected), "\n{text}");
}

/// Lowers the body of a function that returns something.
#[track_caller]
fn check_body(body: &str, expected: &str) {
    let text = format!("fn f() -> T {{ {body} }}");
    let dumped = dump(&lowered(&text));
    let lines: Vec<&str> =
        dumped.lines().skip(1).map(|line| line.strip_prefix("  ").unwrap_or(line)).collect();
    assert_eq!(lines.join("\n"), unindent(expected), "\n{body}");
}

#[track_caller]
fn check_expr(expr: &str, expected: &str) {
    check_body(&format!("let it = {expr}; it"), &format!("it = {expected}\nreturn it"));
}

#[track_caller]
fn check_pattern(pattern: &str, expected: &str) {
    let body = format!("if let {pattern} = v {{}} 0");
    check_body(&body, &format!("if (let {expected} = v)\nreturn 0"));
}

/// Removes the first line if empty, and the indentation of the first line from all.
fn unindent(text: &str) -> String {
    let text = text.trim_start_matches('\n').trim_end();
    let margin = text.len() - text.trim_start().len();
    let line = |line: &str| line.get(margin..).unwrap_or("").to_owned();
    text.lines().map(line).collect::<Vec<_>>().join("\n")
}
