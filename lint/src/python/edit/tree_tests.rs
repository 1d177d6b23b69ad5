//! Edits many places of real code where it is present; everything that comes out parses.

use super::tests::{apply, file};
use super::*;
use crate::model::{Expr, ExprKind};
use crate::python::lower::tree_tests::{python_files, torch};
use crate::python::walk::{self, Node};

/// Places of a file that are edited, spread over it.
const PLACES_PER_FILE: usize = 3;

fn spread<T>(all: Vec<T>) -> impl Iterator<Item = T> {
    let step = all.len().div_ceil(PLACES_PER_FILE).max(1);
    all.into_iter().step_by(step)
}

fn edit_calls(text: &str, source: &SourceFile) -> usize {
    let editor = Editor::new(source);
    let mut calls: Vec<&Expr> = Vec::new();
    walk::everything(&source.module, |_, node| {
        if let Node::Expr(expr @ Expr { kind: ExprKind::Call { .. }, .. }) = node {
            calls.push(expr);
        }
    });
    // Inside an f-string the file's quotes and line ends may not be allowed.
    calls.retain(|call| !text[call.span.range()].contains(['{', '}']));
    let mut n_edits = 0;
    for call in spread(calls) {
        let ExprKind::Call { arguments, .. } = &call.kind else { unreachable!("kept calls only") };
        let set = editor.set_keyword(call, "added", "1").expect("calls take keywords");
        let after = apply(text, set);
        assert_eq!(after.matches("added=1").count(), 1 + text.matches("added=1").count());
        n_edits += 1;
        for index in 0..arguments.len() {
            let removed = editor.remove_argument(call, index).expect("arguments can go");
            apply(text, removed);
            n_edits += 1;
        }
    }
    n_edits
}

fn edit_statements(text: &str, source: &SourceFile) -> usize {
    let editor = Editor::new(source);
    let mut stmts: Vec<&Stmt> = Vec::new();
    walk::everything(&source.module, |_, node| {
        if let Node::Stmt(stmt) = node {
            stmts.push(stmt);
        }
    });
    let mut n_edits = 0;
    // A lambda's body is a statement of the model alone.
    stmts.retain(|stmt| editor.statement_at(stmt.span).is_some_and(|s| s.span == stmt.span));
    // Imports from the future stay first.
    stmts.retain(|stmt| !text[stmt.span.range()].starts_with("from __future__"));
    for stmt in spread(stmts) {
        let edits = [
            editor.guard(stmt.span, "guard"),
            editor.insert_before(stmt, "new()").map(|edit| vec![edit]),
            editor.insert_after(stmt, "if new:\n    new()").map(|edit| vec![edit]),
            editor.add_import("import new").map(|edit| vec![edit]),
        ];
        for edits in edits.into_iter().flatten() {
            apply(text, edits);
            n_edits += 1;
        }
    }
    n_edits
}

#[test]
fn edits_of_torch_itself_parse() {
    let Some(torch) = torch() else {
        eprintln!("skipped: torch is not installed (cargo x setup)");
        return;
    };
    let mut n_edits = 0;
    for path in python_files(&torch.join("nn")).into_iter().step_by(4) {
        let text = std::fs::read_to_string(path).unwrap();
        let source = file(&text);
        n_edits += edit_calls(&text, &source) + edit_statements(&text, &source);
    }
    assert!(n_edits > 300, "{n_edits}");
}
