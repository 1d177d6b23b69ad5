//! The statement around a place, and what becomes of its value.

use crate::model::{
    Arm, Expr, ExprKind, FormatPiece, FunctionIndex, LoopHeader, Module, Span, Stmt, StmtKind,
};

#[derive(Clone, Copy)]
pub(super) struct Found<'m> {
    pub(super) stmt: &'m Stmt,
    /// Its value is the value of the block that it ends.
    pub(super) is_value: bool,
}

/// The innermost statement that holds a place.
pub(super) fn statement(module: &Module, at: Span) -> Option<Found<'_>> {
    let mut search = Search { module, at, found: None, ends_at: None, run: Vec::new() };
    search.module();
    search.found
}

/// The statements in a row from the first to the last byte of a place; else the innermost one
/// that holds it.
pub(super) fn run(module: &Module, at: Span) -> Vec<Found<'_>> {
    let start = Span { start: at.start, end: at.start };
    let end = Span { start: at.end, end: at.end };
    let mut search =
        Search { module, at: start, found: None, ends_at: Some(end.end), run: Vec::new() };
    search.module();
    if search.run.is_empty() {
        search.run.extend(statement(module, at));
    }
    search.run
}

struct Search<'m> {
    module: &'m Module,
    at: Span,
    found: Option<Found<'m>>,
    /// Where the last statement of the run ends that starts at `at`.
    ends_at: Option<u32>,
    run: Vec<Found<'m>>,
}

impl<'m> Search<'m> {
    fn module(&mut self) {
        self.stmts(&self.module.body, false);
        for block in &self.module.impls {
            for &method in &block.methods {
                self.function(method);
            }
        }
    }

    fn note_run(&mut self, stmts: &'m [Stmt], has_value: bool) {
        let Some(end) = self.ends_at else { return };
        let first = stmts.iter().position(|stmt| stmt.span.start == self.at.start);
        let last = stmts.iter().rposition(|stmt| stmt.span.end == end);
        if let (Some(first), Some(last)) = (first, last)
            && first <= last
        {
            let found = |(index, stmt)| {
                let is_last = index + 1 == stmts.len();
                Found { stmt, is_value: has_value && is_last }
            };
            self.run = stmts.iter().enumerate().take(last + 1).skip(first).map(found).collect();
        }
    }

    fn stmts(&mut self, stmts: &'m [Stmt], has_value: bool) {
        self.note_run(stmts, has_value);
        for (index, stmt) in stmts.iter().enumerate() {
            // The value of a `break` is a statement of its own, inside that of the `break`.
            let is_wider = |found: Found<'_>| stmt.span.contains(found.stmt.span);
            if !stmt.span.contains(self.at) || index > 0 && self.found.is_some_and(is_wider) {
                continue;
            }
            let is_last = index + 1 == stmts.len();
            self.found = Some(Found { stmt, is_value: has_value && is_last });
            self.stmt(stmt);
        }
    }

    fn function(&mut self, index: FunctionIndex) {
        let function = self.module.function(index);
        if !function.span.contains(self.at) {
            return;
        }
        self.stmts(&function.body, false);
    }

    fn stmt(&mut self, stmt: &'m Stmt) {
        match &stmt.kind {
            StmtKind::Expr(expr) => self.expr(expr),
            StmtKind::Assign { targets, value, .. } => self.exprs(targets.iter().chain(value)),
            StmtKind::AugAssign { target, value, .. } => self.exprs([target, value]),
            StmtKind::If { test, body, otherwise } => {
                self.expr(test);
                self.stmts(body, false);
                self.stmts(otherwise, false);
            }
            StmtKind::Loop { header, body, .. } => {
                match header {
                    LoopHeader::For { iter, .. } => self.expr(iter),
                    LoopHeader::While { test } => self.expr(test),
                    LoopHeader::Forever => {}
                }
                self.stmts(body, false);
            }
            StmtKind::Match { subject, arms } => {
                self.expr(subject);
                self.arms(arms, false);
            }
            StmtKind::Return(value) | StmtKind::Raise(value) => self.exprs(value),
            StmtKind::Assert { test, message } => self.exprs([test].into_iter().chain(message)),
            StmtKind::Function(index) => self.function(*index),
            StmtKind::Class(index) => {
                for &method in &self.module.class(*index).methods {
                    self.function(method);
                }
            }
            StmtKind::Block(body) => self.stmts(body, false),
            _ => {}
        }
    }

    fn arms(&mut self, arms: &'m [Arm], has_value: bool) {
        for arm in arms {
            self.exprs(&arm.guard);
            self.stmts(&arm.body, has_value);
        }
    }

    fn exprs(&mut self, exprs: impl IntoIterator<Item = &'m Expr>) {
        exprs.into_iter().for_each(|expr| self.expr(expr));
    }

    fn expr(&mut self, expr: &'m Expr) {
        if !expr.span.contains(self.at) {
            return;
        }
        match &expr.kind {
            ExprKind::Call { callee, arguments } => {
                self.expr(callee);
                self.exprs(arguments.iter().map(|argument| &argument.value));
            }
            ExprKind::Compare { left, rest } => {
                self.expr(left);
                self.exprs(rest.iter().map(|(_, right)| right));
            }
            ExprKind::Conditional { test, then, otherwise } => {
                self.exprs([&**test, then, otherwise]);
            }
            ExprKind::Lambda(index) => self.function(*index),
            ExprKind::Format(pieces) => {
                self.exprs(pieces.iter().filter_map(|piece| match piece {
                    FormatPiece::Value(value) => Some(value),
                    FormatPiece::Text(_) => None,
                }));
            }
            ExprKind::Block { body, has_value } => self.stmts(body, *has_value),
            ExprKind::Match { subject, arms } => {
                self.expr(subject);
                self.arms(arms, true);
            }
            ExprKind::Construct { fields, base, .. } => {
                self.exprs(fields.iter().map(|(_, value)| value));
                self.exprs(base.as_deref());
            }
            ExprKind::Bool { values, .. }
            | ExprKind::Collection { items: values, .. }
            | ExprKind::Opaque(values) => self.exprs(values),
            ExprKind::Index { value, index: other }
            | ExprKind::Binary { left: value, right: other, .. }
            | ExprKind::Let { pattern: value, value: other } => self.exprs([&**value, other]),
            ExprKind::Attribute { value, .. }
            | ExprKind::Not(value)
            | ExprKind::Unary { value, .. }
            | ExprKind::Await(value)
            | ExprKind::Try(value) => self.expr(value),
            ExprKind::Yield(value) => self.exprs(value.as_deref()),
            _ => {}
        }
    }
}
