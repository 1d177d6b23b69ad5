//! Real code: nothing panics, and places nest.

use std::path::{Path, PathBuf};

use crate::model::{
    Expr, ExprKind, FormatPiece, Function, FunctionIndex, LoopHeader, Module, Span, Stmt, StmtKind,
};
use crate::rust::lower;

/// Calls a function for every expression of a module.
pub(crate) fn walk(module: &Module, visit: &mut dyn FnMut(&Expr)) {
    Walk { module, visit, check: &mut |_, _| {} }.module(Span::new(0, u32::MAX));
}

/// Checks that places lie in the text, on letter borders, and inside their parents.
pub(super) fn check_spans(text: &str, module: &Module) {
    let mut check = |parent: Span, span: Span| {
        let range = span.range();
        assert!(range.start <= range.end && range.end <= text.len(), "{range:?}");
        assert!(text.get(range).is_some(), "{span:?} cuts a letter");
        assert!(
            parent.contains(span),
            "{:?} is not inside {:?}",
            &text[span.range()],
            &text[parent.range()]
        );
    };
    Walk { module, visit: &mut |_| {}, check: &mut check }.module(Span::new(0, text.len()));
    for error in &module.errors {
        assert!(text.get(error.span.range()).is_some(), "{error:?}");
    }
}

struct Walk<'m, 'v> {
    module: &'m Module,
    visit: &'v mut dyn FnMut(&Expr),
    check: &'v mut dyn FnMut(Span, Span),
}

impl Walk<'_, '_> {
    fn module(&mut self, whole: Span) {
        let module = self.module;
        self.stmts(whole, &module.body);
        for block in &module.impls {
            (self.check)(whole, block.span);
            self.expr(whole, &block.target);
            block.decorators.iter().for_each(|decorator| self.expr(block.span, decorator));
            block.methods.iter().for_each(|&method| self.function(block.span, method));
        }
    }

    fn stmts(&mut self, parent: Span, stmts: &[Stmt]) {
        for stmt in stmts {
            self.stmt(parent, stmt);
        }
    }

    fn exprs<'e>(&mut self, parent: Span, exprs: impl IntoIterator<Item = &'e Expr>) {
        exprs.into_iter().for_each(|expr| self.expr(parent, expr));
    }

    fn function(&mut self, parent: Span, index: FunctionIndex) {
        let function: &Function = &self.module.functions[index.0 as usize];
        let span = function.span;
        (self.check)(parent, span);
        (self.check)(span, function.name_span);
        for parameter in &function.parameters {
            (self.check)(span, parameter.span);
            self.exprs(parameter.span, &parameter.pattern);
            self.exprs(parameter.span, &parameter.annotation);
        }
        self.exprs(span, &function.decorators);
        self.exprs(span, &function.returns);
        self.stmts(span, &function.body);
    }

    fn class(&mut self, parent: Span, index: crate::model::ClassIndex) {
        let class = self.module.class(index);
        (self.check)(parent, class.span);
        (self.check)(class.span, class.name_span);
        self.exprs(class.span, class.bases.iter().chain(&class.decorators));
        for field in &class.fields {
            (self.check)(class.span, field.span);
            self.exprs(field.span, &field.annotation);
            self.exprs(class.span, &field.decorators);
        }
        class.methods.iter().for_each(|&method| self.function(class.span, method));
    }

    fn stmt(&mut self, parent: Span, stmt: &Stmt) {
        let span = stmt.span;
        (self.check)(parent, span);
        match &stmt.kind {
            StmtKind::Expr(expr) => self.expr(span, expr),
            StmtKind::Assign { targets, value, annotation } => {
                self.exprs(span, targets.iter().chain(value).chain(annotation));
            }
            StmtKind::AugAssign { target, value, .. } => self.exprs(span, [target, value]),
            StmtKind::If { test, body, otherwise } => {
                self.expr(span, test);
                self.stmts(span, body);
                self.stmts(span, otherwise);
            }
            StmtKind::Loop { header, body, .. } => {
                match header {
                    LoopHeader::For { target, iter } => self.exprs(span, [target, iter]),
                    LoopHeader::While { test } => self.expr(span, test),
                    LoopHeader::Forever => {}
                }
                self.stmts(span, body);
            }
            StmtKind::Match { subject, arms } => {
                self.expr(span, subject);
                self.arms(span, arms);
            }
            StmtKind::Return(value) | StmtKind::Raise(value) => self.exprs(span, value),
            StmtKind::Assert { test, message } => {
                self.expr(span, test);
                self.exprs(span, message);
            }
            StmtKind::Function(index) => self.function(span, *index),
            StmtKind::Class(index) => self.class(span, *index),
            StmtKind::Block(body) => self.stmts(span, body),
            _ => {}
        }
    }

    fn arms(&mut self, parent: Span, arms: &[crate::model::Arm]) {
        for arm in arms {
            (self.check)(parent, arm.span);
            self.exprs(arm.span, [&arm.pattern].into_iter().chain(&arm.guard));
            self.stmts(arm.span, &arm.body);
        }
    }

    fn expr(&mut self, parent: Span, expr: &Expr) {
        let span = expr.span;
        (self.check)(parent, span);
        (self.visit)(expr);
        match &expr.kind {
            ExprKind::Attribute { value, name_span, .. } => {
                (self.check)(span, *name_span);
                self.expr(span, value);
            }
            ExprKind::Call { callee, arguments } => {
                self.expr(span, callee);
                for argument in arguments {
                    (self.check)(span, argument.span);
                    self.expr(argument.span, &argument.value);
                }
            }
            ExprKind::Slice { lower, upper, .. } => {
                self.exprs(span, lower.as_deref().into_iter().chain(upper.as_deref()));
            }
            ExprKind::Compare { left, rest } => {
                self.expr(span, left);
                self.exprs(span, rest.iter().map(|(_, right)| right));
            }
            ExprKind::Conditional { test, then, otherwise } => {
                self.exprs(span, [&**test, then, otherwise]);
            }
            ExprKind::Lambda(index) => self.function(span, *index),
            ExprKind::Format(pieces) => {
                for piece in pieces {
                    if let FormatPiece::Value(value) = piece {
                        self.expr(span, value);
                    }
                }
            }
            ExprKind::Block { body, .. } => self.stmts(span, body),
            ExprKind::Match { subject, arms } => {
                self.expr(span, subject);
                self.arms(span, arms);
            }
            ExprKind::Construct { path, fields, base } => {
                self.expr(span, path);
                self.exprs(span, fields.iter().map(|(_, value)| value));
                self.exprs(span, base.as_deref());
            }
            ExprKind::Bool { values, .. }
            | ExprKind::Collection { items: values, .. }
            | ExprKind::Opaque(values) => self.exprs(span, values),
            ExprKind::Index { value, index: other }
            | ExprKind::Binary { left: value, right: other, .. }
            | ExprKind::Walrus { target: value, value: other }
            | ExprKind::Let { pattern: value, value: other } => self.exprs(span, [&**value, other]),
            ExprKind::Not(value)
            | ExprKind::Unary { value, .. }
            | ExprKind::Await(value)
            | ExprKind::Starred(value)
            | ExprKind::Try(value) => self.expr(span, value),
            ExprKind::Yield(value) => self.exprs(span, value.as_deref()),
            _ => {}
        }
    }
}

fn rust_files(folder: &Path, files: &mut Vec<PathBuf>) {
    let Ok(entries) = std::fs::read_dir(folder) else { return };
    for entry in entries.flatten() {
        let path = entry.path();
        if path.is_dir() {
            rust_files(&path, files);
        } else if path.extension().is_some_and(|ending| ending == "rs") {
            files.push(path);
        }
    }
}

/// The sources of everything this workspace depends on, where cargo keeps them.
fn registry() -> Option<PathBuf> {
    let home = std::env::var_os("CARGO_HOME").map(PathBuf::from);
    let home = home.or_else(|| Some(PathBuf::from(std::env::var_os("HOME")?).join(".cargo")));
    let folder = home?.join("registry/src");
    folder.is_dir().then_some(folder)
}

#[test]
fn sources_of_dependencies_lower_with_nested_places() {
    let Some(folder) = registry() else {
        eprintln!("skipped: no cargo registry");
        return;
    };
    let mut files = Vec::new();
    rust_files(&folder, &mut files);
    files.sort();
    let step = if cfg!(debug_assertions) { 23 } else { 1 };
    for file in files.iter().step_by(step) {
        let Ok(text) = std::fs::read_to_string(file) else { continue };
        let module = lower(&text, "crate");
        let checked = std::panic::catch_unwind(|| check_spans(&text, &module));
        assert!(checked.is_ok(), "{}", file.display());
    }
}
