//! Visits every statement and expression of a module, in no promised order within a node.

use crate::model::{
    ClassIndex, Expr, ExprKind, FormatPiece, FunctionIndex, Import, LoopHeader, Module, Span, Stmt,
    StmtKind,
};

#[derive(Clone, Copy)]
pub(super) enum Node<'a> {
    Stmt(&'a Stmt),
    Expr(&'a Expr),
    /// A place that is neither, and what it is.
    #[cfg_attr(not(test), expect(dead_code, reason = "tests check all places"))]
    Part(Span, &'static str),
}

/// Where a node stands: the span of its parent and how deep it is nested.
#[derive(Clone, Copy)]
#[cfg_attr(not(test), expect(dead_code, reason = "tests check all places"))]
pub(super) struct Place {
    pub(super) parent: Span,
    pub(super) depth: usize,
}

/// What of a module is visited.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Extent {
    Everything,
    TopLevel,
    Statements,
}

/// What runs when the module is imported: no bodies of functions.
pub(super) fn top_level<'a>(module: &'a Module, visit: impl FnMut(Place, Node<'a>)) {
    walk(module, Extent::TopLevel, visit);
}

/// Everything.
pub(super) fn everything<'a>(module: &'a Module, visit: impl FnMut(Place, Node<'a>)) {
    walk(module, Extent::Everything, visit);
}

/// All imports, wherever they stand.
pub(super) fn imports(module: &Module) -> Vec<&Import> {
    let mut imports = Vec::new();
    walk(module, Extent::Statements, |_, node| {
        if let Node::Stmt(Stmt { kind: StmtKind::Import(import), .. }) = node {
            imports.push(import);
        }
    });
    imports
}

fn walk<'a>(module: &'a Module, extent: Extent, visit: impl FnMut(Place, Node<'a>)) {
    let mut walk = Walk { module, extent, visit, depth: 0 };
    walk.body(&module.body, Span { start: 0, end: u32::MAX });
}

struct Walk<'a, F> {
    module: &'a Module,
    extent: Extent,
    visit: F,
    depth: usize,
}

impl<'a, F: FnMut(Place, Node<'a>)> Walk<'a, F> {
    fn visit(&mut self, parent: Span, node: Node<'a>) {
        (self.visit)(Place { parent, depth: self.depth }, node);
    }

    fn body(&mut self, body: &'a [Stmt], parent: Span) {
        self.depth += 1;
        for stmt in body {
            self.visit(parent, Node::Stmt(stmt));
            self.stmt(stmt);
        }
        self.depth -= 1;
    }

    fn exprs(&mut self, exprs: impl IntoIterator<Item = &'a Expr>, parent: Span) {
        if self.extent == Extent::Statements {
            return;
        }
        self.depth += 1;
        for expr in exprs {
            self.visit(parent, Node::Expr(expr));
            self.expr(expr);
        }
        self.depth -= 1;
    }

    fn stmt(&mut self, stmt: &'a Stmt) {
        let at = stmt.span;
        match &stmt.kind {
            StmtKind::Expr(value) => self.exprs([value], at),
            StmtKind::Assign { targets, value, annotation } => {
                self.exprs(targets.iter().chain(value).chain(annotation), at);
            }
            StmtKind::AugAssign { target, value, .. } => self.exprs([target, value], at),
            StmtKind::If { test, body, otherwise } => {
                self.exprs([test], at);
                self.body(body, at);
                self.body(otherwise, at);
            }
            StmtKind::Loop { header, body, otherwise } => {
                self.header(header, at);
                self.body(body, at);
                self.body(otherwise, at);
            }
            StmtKind::With { items, body } => {
                for item in items {
                    self.exprs(item.target.iter().chain([&item.context]), at);
                }
                self.body(body, at);
            }
            StmtKind::Match { subject, arms } => {
                self.exprs([subject], at);
                for arm in arms {
                    self.visit(at, Node::Part(arm.span, "arm"));
                    self.exprs(arm.guard.iter().chain([&arm.pattern]), arm.span);
                    self.body(&arm.body, arm.span);
                }
            }
            StmtKind::Try { body, handlers, otherwise, finally } => {
                self.body(body, at);
                for handler in handlers {
                    self.visit(at, Node::Part(handler.span, "handler"));
                    self.exprs(&handler.types, handler.span);
                    self.body(&handler.body, handler.span);
                }
                self.body(otherwise, at);
                self.body(finally, at);
            }
            StmtKind::Return(value) | StmtKind::Raise(value) => self.exprs(value, at),
            StmtKind::Assert { test, message } => self.exprs(message.iter().chain([test]), at),
            StmtKind::Delete(targets) => self.exprs(targets, at),
            StmtKind::Function(index) => self.function(*index, at),
            StmtKind::Class(index) => self.class(*index, at),
            StmtKind::Block(body) => self.body(body, at),
            StmtKind::Break
            | StmtKind::Continue
            | StmtKind::Pass
            | StmtKind::Outer(_)
            | StmtKind::Import(_) => {}
        }
    }

    fn header(&mut self, header: &'a LoopHeader, at: Span) {
        match header {
            LoopHeader::For { target, iter } => self.exprs([target, iter], at),
            LoopHeader::While { test } => self.exprs([test], at),
            LoopHeader::Forever => {}
        }
    }

    fn class(&mut self, index: ClassIndex, parent: Span) {
        let class = self.module.class(index);
        self.visit(parent, Node::Part(class.span, "class"));
        self.visit(class.span, Node::Part(class.name_span, "class name"));
        self.exprs(class.bases.iter().chain(&class.decorators), class.span);
        for field in &class.fields {
            self.visit(class.span, Node::Part(field.span, "field"));
            self.exprs(field.annotation.iter().chain(&field.default), field.span);
        }
        self.body(&class.body, class.span);
    }

    fn function(&mut self, index: FunctionIndex, parent: Span) {
        let function = self.module.function(index);
        self.visit(parent, Node::Part(function.span, "function"));
        self.visit(function.span, Node::Part(function.name_span, "function name"));
        self.exprs(function.decorators.iter().chain(&function.returns), function.span);
        for parameter in &function.parameters {
            self.visit(function.span, Node::Part(parameter.span, "parameter"));
            let parts = parameter.annotation.iter().chain(&parameter.default);
            self.exprs(parts, parameter.span);
        }
        if self.extent != Extent::TopLevel {
            self.body(&function.body, function.span);
        }
    }

    fn expr(&mut self, expr: &'a Expr) {
        let at = expr.span;
        match &expr.kind {
            ExprKind::Attribute { value, name_span, .. } => {
                self.visit(at, Node::Part(*name_span, "attribute name"));
                self.exprs([&**value], at);
            }
            ExprKind::Call { callee, arguments } => {
                self.exprs([&**callee], at);
                for argument in arguments {
                    self.visit(at, Node::Part(argument.span, "argument"));
                    self.exprs([&argument.value], argument.span);
                }
            }
            ExprKind::Index { value, index } => self.exprs([&**value, &**index], at),
            ExprKind::Slice { lower, upper, step } => {
                self.exprs([lower, upper, step].into_iter().flatten().map(|e| &**e), at);
            }
            ExprKind::Compare { left, rest } => {
                self.exprs(rest.iter().map(|(_, e)| e).chain([&**left]), at);
            }
            ExprKind::Bool { values, .. } => self.exprs(values, at),
            ExprKind::Not(value)
            | ExprKind::Unary { value, .. }
            | ExprKind::Await(value)
            | ExprKind::Starred(value)
            | ExprKind::Try(value) => self.exprs([&**value], at),
            ExprKind::Binary { left, right, .. } => self.exprs([&**left, &**right], at),
            ExprKind::Conditional { test, then, otherwise } => {
                self.exprs([&**test, &**then, &**otherwise], at);
            }
            ExprKind::Collection { items, .. } | ExprKind::Opaque(items) => self.exprs(items, at),
            ExprKind::Dict(items) => {
                self.exprs(items.iter().flat_map(|(k, v)| k.iter().chain([v])), at);
            }
            ExprKind::Comprehension { element, clauses, .. } => {
                self.exprs([&**element], at);
                for clause in clauses {
                    let parts = [&clause.target, &clause.iter];
                    self.exprs(parts.into_iter().chain(&clause.tests), at);
                }
            }
            ExprKind::Lambda(index) => self.function(*index, at),
            ExprKind::Format(pieces) => {
                for piece in pieces {
                    if let FormatPiece::Value(value) = piece {
                        self.exprs([value], at);
                    }
                }
            }
            ExprKind::Yield(value) => self.exprs(value.as_deref(), at),
            ExprKind::Walrus { target, value } => self.exprs([&**target, &**value], at),
            // Leaves, and what Rust alone has.
            ExprKind::Name(_)
            | ExprKind::Literal(_)
            | ExprKind::Let { .. }
            | ExprKind::Block { .. }
            | ExprKind::Match { .. }
            | ExprKind::Construct { .. } => {}
        }
    }
}
