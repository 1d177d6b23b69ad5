//! All statements of a module with their extents: which one holds a place.

use std::cmp::Reverse;

use crate::model::{
    Arm, Expr, ExprKind, FormatPiece, Function, LoopHeader, Module, Span, Stmt, StmtKind,
};

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Statement {
    /// Decorators and attributes included.
    pub(crate) span: Span,
    /// Where the first statement inside a compound one begins.
    pub(crate) body: Option<u32>,
}

#[derive(Debug, Default)]
pub(crate) struct Statements {
    /// By start; of those that start together, the outer first.
    by_start: Vec<Statement>,
    /// For each of `by_start` the one around it.
    parents: Vec<Option<usize>>,
    /// By end, then by start.
    by_end: Vec<Statement>,
}

impl Statements {
    pub(crate) fn of(module: &Module) -> Self {
        let mut collector = Collector { module, all: Vec::new() };
        collector.block(&module.body);
        for function in &module.functions {
            collector.function(function);
        }
        for class in &module.classes {
            collector.block(&class.body);
        }
        let mut by_start = collector.all;
        let mut by_end = by_start.clone();
        by_start.sort_by_key(|one| (one.span.start, Reverse(one.span.end)));
        by_end.sort_by_key(|one| (one.span.end, one.span.start));
        let parents = parents(&by_start);
        Self { by_start, parents, by_end }
    }

    /// The innermost statement that holds the beginning of `place`.
    pub(crate) fn around(&self, place: Span) -> Option<Statement> {
        let holds = |index: &usize| place.start <= self.by_start[*index].span.end;
        let started = self.by_start.partition_point(|one| one.span.start <= place.start);
        let mut chain = std::iter::successors(started.checked_sub(1), |index| self.parents[*index]);
        chain.find(holds).map(|index| self.by_start[index])
    }

    /// The last statement that ends before `place`; of several that end there, the innermost.
    pub(crate) fn before(&self, place: Span) -> Option<Statement> {
        let n_ended = self.by_end.partition_point(|one| one.span.end <= place.start);
        n_ended.checked_sub(1).map(|last| self.by_end[last])
    }
}

/// Statements lie in each other or beside each other.
fn parents(by_start: &[Statement]) -> Vec<Option<usize>> {
    let mut open: Vec<usize> = Vec::new();
    let parent = |(index, one): (usize, &Statement)| {
        while open.last().is_some_and(|last| by_start[*last].span.end < one.span.end) {
            open.pop();
        }
        let parent = open.last().copied();
        open.push(index);
        parent
    };
    by_start.iter().enumerate().map(parent).collect()
}

struct Collector<'m> {
    module: &'m Module,
    all: Vec<Statement>,
}

impl Collector<'_> {
    fn block(&mut self, body: &[Stmt]) {
        for stmt in body {
            self.statement(stmt);
        }
    }

    fn function(&mut self, function: &Function) {
        let is_expression = &*function.name == "<lambda>"
            && matches!(&function.body[..], [Stmt { kind: StmtKind::Return(_), .. }]);
        match &function.body[..] {
            // The value of a lambda is part of the statement around it.
            [Stmt { kind: StmtKind::Return(Some(value)), .. }] if is_expression => self.expr(value),
            body => self.block(body),
        }
    }

    fn statement(&mut self, stmt: &Stmt) {
        let body = self.body_start(stmt);
        let span = match stmt.kind {
            StmtKind::Function(index) => stmt.span.to(self.module.function(index).span),
            StmtKind::Class(index) => stmt.span.to(self.module.class(index).span),
            _ => stmt.span,
        };
        self.all.push(Statement { span, body });
        self.inside(&stmt.kind);
    }

    fn body_start(&self, stmt: &Stmt) -> Option<u32> {
        let first = |body: &[Stmt]| body.first().map(|stmt| stmt.span.start);
        match &stmt.kind {
            StmtKind::If { body, .. }
            | StmtKind::Loop { body, .. }
            | StmtKind::With { body, .. }
            | StmtKind::Try { body, .. }
            | StmtKind::Block(body) => first(body),
            StmtKind::Match { arms, .. } => arms.first().map(|arm| arm.span.start),
            StmtKind::Function(index) => first(&self.module.function(*index).body),
            StmtKind::Class(index) => {
                let class = self.module.class(*index);
                let methods = class.methods.iter().map(|m| self.module.function(*m).span.start);
                let fields = class.fields.iter().map(|field| field.span.start);
                first(&class.body).into_iter().chain(methods).chain(fields).min()
            }
            _ => None,
        }
    }

    fn inside(&mut self, kind: &StmtKind) {
        match kind {
            StmtKind::Expr(value) | StmtKind::AugAssign { value, .. } => self.expr(value),
            StmtKind::Assign { value, .. } | StmtKind::Return(value) | StmtKind::Raise(value) => {
                self.exprs(value);
            }
            StmtKind::If { test, body, otherwise } => {
                self.expr(test);
                self.block(body);
                self.block(otherwise);
            }
            StmtKind::Loop { header, body, otherwise } => {
                match header {
                    LoopHeader::For { iter, .. } => self.expr(iter),
                    LoopHeader::While { test } => self.expr(test),
                    LoopHeader::Forever => {}
                }
                self.block(body);
                self.block(otherwise);
            }
            StmtKind::With { items, body } => {
                self.exprs(items.iter().map(|item| &item.context));
                self.block(body);
            }
            StmtKind::Match { subject, arms } => {
                self.expr(subject);
                self.arms(arms);
            }
            StmtKind::Try { body, handlers, otherwise, finally } => {
                self.block(body);
                for handler in handlers {
                    self.block(&handler.body);
                }
                self.block(otherwise);
                self.block(finally);
            }
            StmtKind::Assert { test, message } => {
                self.expr(test);
                self.exprs(message);
            }
            StmtKind::Delete(values) => self.exprs(values),
            StmtKind::Block(body) => self.block(body),
            // Functions and classes are collected from their arenas.
            _ => {}
        }
    }

    fn arms(&mut self, arms: &[Arm]) {
        for arm in arms {
            self.exprs(&arm.guard);
            self.block(&arm.body);
        }
    }

    fn exprs<'e>(&mut self, exprs: impl IntoIterator<Item = &'e Expr>) {
        for expr in exprs {
            self.expr(expr);
        }
    }

    /// Statements inside an expression: blocks and matches used as values.
    fn expr(&mut self, expr: &Expr) {
        match &expr.kind {
            ExprKind::Block { body, .. } => self.block(body),
            ExprKind::Match { subject, arms } => {
                self.expr(subject);
                self.arms(arms);
            }
            ExprKind::Conditional { test, then, otherwise } => {
                self.exprs([&**test, then, otherwise]);
            }
            ExprKind::Call { callee, arguments } => {
                self.expr(callee);
                self.exprs(arguments.iter().map(|argument| &argument.value));
            }
            ExprKind::Attribute { value, .. }
            | ExprKind::Not(value)
            | ExprKind::Unary { value, .. }
            | ExprKind::Await(value)
            | ExprKind::Starred(value)
            | ExprKind::Try(value)
            | ExprKind::Walrus { value, .. }
            | ExprKind::Let { value, .. } => self.expr(value),
            ExprKind::Yield(value) => self.exprs(value.as_deref()),
            ExprKind::Index { value, index } => self.exprs([&**value, index]),
            ExprKind::Slice { lower, upper, step } => {
                self.exprs([lower, upper, step].into_iter().filter_map(Option::as_deref));
            }
            ExprKind::Compare { left, rest } => {
                self.expr(left);
                self.exprs(rest.iter().map(|(_, value)| value));
            }
            ExprKind::Binary { left, right, .. } => self.exprs([&**left, right]),
            ExprKind::Bool { values, .. }
            | ExprKind::Collection { items: values, .. }
            | ExprKind::Opaque(values) => self.exprs(values),
            ExprKind::Dict(entries) => {
                self.exprs(entries.iter().flat_map(|(key, value)| key.iter().chain([value])));
            }
            ExprKind::Comprehension { element, clauses, .. } => {
                self.expr(element);
                for clause in clauses {
                    self.expr(&clause.iter);
                    self.exprs(&clause.tests);
                }
            }
            ExprKind::Format(pieces) => {
                for piece in pieces {
                    if let FormatPiece::Value(value) = piece {
                        self.expr(value);
                    }
                }
            }
            ExprKind::Construct { fields, base, .. } => {
                self.exprs(fields.iter().map(|(_, value)| value));
                self.exprs(base.as_deref());
            }
            ExprKind::Name(_) | ExprKind::Literal(_) | ExprKind::Lambda(_) => {}
        }
    }
}
