//! The model as compact text and a check of its spans, for tests.

use std::fmt::Write;

use crate::model::{
    Arm, ClassIndex, Clause, Expr, ExprKind, FormatPiece, Function, FunctionIndex, Handler, Import,
    Imported, Literal, LoopHeader, Module, Parameter, ParameterKind, Span, Spread, Stmt, StmtKind,
};

/// One line per statement, indented; every operator with its own parentheses.
pub(super) fn dump(module: &Module) -> String {
    let mut out = Dump { module, text: String::new(), indent: 0 };
    out.body(&module.body);
    out.text
}

struct Dump<'a> {
    module: &'a Module,
    text: String,
    indent: usize,
}

impl Dump<'_> {
    fn line(&mut self, text: &str) {
        let _ = writeln!(self.text, "{:1$}{text}", "", self.indent * 2);
    }

    fn body(&mut self, body: &[Stmt]) {
        for stmt in body {
            self.stmt(stmt);
        }
    }

    fn block(&mut self, header: &str, body: &[Stmt]) {
        self.line(header);
        self.indent += 1;
        self.body(body);
        self.indent -= 1;
    }

    fn stmt(&mut self, stmt: &Stmt) {
        match &stmt.kind {
            StmtKind::If { test, body, otherwise } => {
                self.block(&format!("if {}:", self.expr(test)), body);
                self.tail("else:", otherwise);
            }
            StmtKind::Loop { header, body, otherwise } => {
                self.block(&self.header(header), body);
                self.tail("else:", otherwise);
            }
            StmtKind::With { items, body } => {
                let items = items.iter().map(|item| {
                    let target = item.target.as_ref().map(|t| format!(" as {}", self.expr(t)));
                    self.expr(&item.context) + &target.unwrap_or_default()
                });
                let items = items.collect::<Vec<_>>().join(", ");
                self.block(&format!("with {items}:"), body);
            }
            StmtKind::Match { subject, arms } => {
                self.line(&format!("match {}:", self.expr(subject)));
                self.indent += 1;
                for arm in arms {
                    self.arm(arm);
                }
                self.indent -= 1;
            }
            StmtKind::Try { body, handlers, otherwise, finally } => {
                self.block("try:", body);
                for handler in handlers {
                    self.block(&self.handler(handler), &handler.body);
                }
                self.tail("else:", otherwise);
                self.tail("finally:", finally);
            }
            StmtKind::Function(index) => self.function(*index),
            StmtKind::Class(index) => {
                let class = self.module.class(*index);
                self.decorators(&class.decorators);
                self.block(
                    &format!("class {}({}):", class.name, self.exprs(&class.bases)),
                    &class.body,
                );
            }
            StmtKind::Block(body) => self.block("block:", body),
            kind => {
                let text = self.simple(kind);
                self.line(&text);
            }
        }
    }

    fn header(&self, header: &LoopHeader) -> String {
        match header {
            LoopHeader::For { target, iter } => {
                format!("for {} in {}:", self.expr(target), self.expr(iter))
            }
            LoopHeader::While { test } => format!("while {}:", self.expr(test)),
            LoopHeader::Forever => "loop:".to_owned(),
        }
    }

    fn handler(&self, handler: &Handler) -> String {
        let types = handler.types.as_ref().map(|t| format!(" {}", self.expr(t)));
        let name = handler.name.map(|name| format!(" as {name}"));
        format!("except{}{}:", types.unwrap_or_default(), name.unwrap_or_default())
    }

    fn tail(&mut self, header: &str, body: &[Stmt]) {
        if !body.is_empty() {
            self.block(header, body);
        }
    }

    fn arm(&mut self, arm: &Arm) {
        let guard = arm.guard.as_ref().map(|g| format!(" if {}", self.expr(g)));
        let pattern = self.expr(&arm.pattern);
        self.block(&format!("case {pattern}{}:", guard.unwrap_or_default()), &arm.body);
    }

    fn decorators(&mut self, decorators: &[Expr]) {
        for decorator in decorators {
            let text = format!("@{}", self.expr(decorator));
            self.line(&text);
        }
    }

    fn function(&mut self, index: FunctionIndex) {
        let function = self.module.function(index);
        self.decorators(&function.decorators);
        let flags = [(function.is_async, "async "), (function.is_generator, "generator ")];
        let flags: String = flags.iter().filter(|f| f.0).map(|f| f.1).collect();
        let class = function.class.map(|c| format!("{}.", self.module.class(c).name));
        let returns = function.returns.as_ref().map(|r| format!(" -> {}", self.expr(r)));
        let header = format!(
            "{flags}def {}{}({}){}:",
            class.unwrap_or_default(),
            function.name,
            self.parameters(function),
            returns.unwrap_or_default()
        );
        self.block(&header, &function.body);
    }

    fn parameters(&self, function: &Function) -> String {
        function.parameters.iter().map(|p| self.parameter(p)).collect::<Vec<_>>().join(", ")
    }

    fn parameter(&self, parameter: &Parameter) -> String {
        let sign = match parameter.kind {
            ParameterKind::Positional => "",
            ParameterKind::KeywordOnly => "/",
            ParameterKind::Rest => "*",
            ParameterKind::Keywords => "**",
        };
        let annotation = parameter.annotation.as_ref().map(|a| format!(": {}", self.expr(a)));
        let default = parameter.default.as_ref().map(|d| format!(" = {}", self.expr(d)));
        let parts = [annotation.unwrap_or_default(), default.unwrap_or_default()].concat();
        format!("{sign}{}{parts}", parameter.name)
    }

    fn simple(&self, kind: &StmtKind) -> String {
        let optional = |word: &str, value: &Option<Expr>| match value {
            Some(value) => format!("{word} {}", self.expr(value)),
            None => word.to_owned(),
        };
        match kind {
            StmtKind::Expr(value) => self.expr(value),
            StmtKind::Assign { targets, value, annotation } => {
                let mut parts: Vec<_> = targets.iter().map(|t| self.expr(t)).collect();
                if let Some(annotation) = annotation {
                    let _ = write!(parts[0], ": {}", self.expr(annotation));
                }
                parts.extend(value.iter().map(|v| self.expr(v)));
                parts.join(" = ")
            }
            StmtKind::AugAssign { target, op, value } => {
                format!("{} {op:?}= {}", self.expr(target), self.expr(value))
            }
            StmtKind::Return(value) => optional("return", value),
            StmtKind::Raise(value) => optional("raise", value),
            StmtKind::Assert { test, message } => {
                optional(&format!("assert {}", self.expr(test)), message)
            }
            StmtKind::Break => "break".to_owned(),
            StmtKind::Continue => "continue".to_owned(),
            StmtKind::Pass => "pass".to_owned(),
            StmtKind::Outer(names) => format!("outer {names:?}"),
            StmtKind::Delete(targets) => format!("del {}", self.exprs(targets)),
            StmtKind::Import(node) => import(node),
            other => format!("{other:?}"),
        }
    }

    fn exprs(&self, exprs: &[Expr]) -> String {
        exprs.iter().map(|e| self.expr(e)).collect::<Vec<_>>().join(", ")
    }

    fn optional(&self, expr: Option<&Expr>) -> String {
        expr.map(|e| self.expr(e)).unwrap_or_default()
    }

    fn expr(&self, expr: &Expr) -> String {
        match &expr.kind {
            ExprKind::Name(name) => name.to_string(),
            ExprKind::Attribute { value, name, .. } => format!("{}.{name}", self.expr(value)),
            ExprKind::Call { callee, arguments } => {
                let arguments = arguments.iter().map(|argument| {
                    let value = self.expr(&argument.value);
                    match (argument.name, argument.spread) {
                        (Some(name), _) => format!("{name}={value}"),
                        (None, Spread::No) => value,
                        (None, Spread::Items) => format!("*{value}"),
                        (None, Spread::Keywords) => format!("**{value}"),
                    }
                });
                let arguments = arguments.collect::<Vec<_>>().join(", ");
                format!("{}({arguments})", self.expr(callee))
            }
            ExprKind::Index { value, index } => {
                format!("{}[{}]", self.expr(value), self.expr(index))
            }
            ExprKind::Slice { lower, upper, step } => format!(
                "{}:{}:{}",
                self.optional(lower.as_deref()),
                self.optional(upper.as_deref()),
                self.optional(step.as_deref())
            ),
            ExprKind::Literal(Literal::Str(text)) => format!("{text:?}"),
            ExprKind::Literal(literal) => format!("{literal:?}"),
            ExprKind::Compare { left, rest } => {
                let rest = rest.iter().map(|(op, e)| format!(" {op:?} {}", self.expr(e)));
                format!("({}{})", self.expr(left), rest.collect::<String>())
            }
            ExprKind::Bool { op, values } => {
                let values: Vec<_> = values.iter().map(|v| self.expr(v)).collect();
                format!("({})", values.join(&format!(" {op:?} ")))
            }
            ExprKind::Not(value) => format!("not({})", self.expr(value)),
            ExprKind::Binary { op, left, right } => {
                format!("({} {op:?} {})", self.expr(left), self.expr(right))
            }
            ExprKind::Unary { op, value } => format!("{op:?}({})", self.expr(value)),
            _ => self.other(expr),
        }
    }

    fn other(&self, expr: &Expr) -> String {
        match &expr.kind {
            ExprKind::Conditional { test, then, otherwise } => {
                let (test, then) = (self.expr(test), self.expr(then));
                format!("({then} if {test} else {})", self.expr(otherwise))
            }
            ExprKind::Collection { kind, items } => format!("{kind:?}[{}]", self.exprs(items)),
            ExprKind::Dict(items) => {
                let items = items.iter().map(|(key, value)| match key {
                    Some(key) => format!("{}: {}", self.expr(key), self.expr(value)),
                    None => format!("**{}", self.expr(value)),
                });
                format!("{{{}}}", items.collect::<Vec<_>>().join(", "))
            }
            ExprKind::Comprehension { kind, element, clauses } => {
                let clauses: String = clauses.iter().map(|clause| self.clause(clause)).collect();
                format!("{kind:?}<{}{clauses}>", self.expr(element))
            }
            ExprKind::Lambda(index) => {
                let function = self.module.function(*index);
                let body: Vec<_> = function.body.iter().map(|s| self.simple(&s.kind)).collect();
                format!("lambda({}: {})", self.parameters(function), body.join("; "))
            }
            ExprKind::Format(pieces) => {
                let pieces = pieces.iter().map(|piece| match piece {
                    FormatPiece::Text(text) => format!("{text:?}"),
                    FormatPiece::Value(value) => self.expr(value),
                });
                format!("Format<{}>", pieces.collect::<Vec<_>>().join(", "))
            }
            ExprKind::Await(value) => format!("await({})", self.expr(value)),
            ExprKind::Yield(value) => format!("yield({})", self.optional(value.as_deref())),
            ExprKind::Starred(value) => format!("*({})", self.expr(value)),
            ExprKind::Walrus { target, value } => {
                format!("({} := {})", self.expr(target), self.expr(value))
            }
            ExprKind::Opaque(parts) => format!("?[{}]", self.exprs(parts)),
            other => format!("{other:?}"),
        }
    }

    fn clause(&self, clause: &Clause) -> String {
        let (target, iter) = (self.expr(&clause.target), self.expr(&clause.iter));
        let tests = clause.tests.iter().map(|test| format!(" if {}", self.expr(test)));
        format!(" for {target} in {iter}{}", tests.collect::<Vec<_>>().concat())
    }
}

fn import(import: &Import) -> String {
    let dots = ".".repeat(import.level as usize);
    let Import { module, binding, .. } = import;
    match import.what {
        Imported::Module => format!("import {dots}{module} as {binding}"),
        Imported::Member(member) => format!("from {dots}{module} import {member} as {binding}"),
        Imported::All => format!("from {dots}{module} import *{binding}"),
    }
}

/// Every node of the tree, parents first, each with the span that must hold it.
pub(super) struct Walk<'a, F: FnMut(Span, Span, &str)> {
    module: &'a Module,
    visit: F,
    depth: usize,
    deepest: usize,
}

impl<F: FnMut(Span, Span, &str)> Walk<'_, F> {
    /// Visits everything; returns the deepest nesting.
    pub(super) fn all(module: &'_ Module, whole: Span, visit: F) -> usize {
        let mut walk = Walk { module, visit, depth: 0, deepest: 0 };
        walk.body(&module.body, whole);
        walk.deepest
    }

    fn body(&mut self, body: &[Stmt], parent: Span) {
        self.enter();
        for stmt in body {
            (self.visit)(parent, stmt.span, "statement");
            self.stmt(stmt);
        }
        self.depth -= 1;
    }

    fn enter(&mut self) {
        self.depth += 1;
        self.deepest = self.deepest.max(self.depth);
    }

    fn exprs<'e>(&mut self, exprs: impl IntoIterator<Item = &'e Expr>, parent: Span) {
        self.enter();
        for expr in exprs {
            (self.visit)(parent, expr.span, "expression");
            self.expr(expr);
        }
        self.depth -= 1;
    }

    fn stmt(&mut self, stmt: &Stmt) {
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
                    (self.visit)(at, arm.span, "arm");
                    self.exprs(arm.guard.iter().chain([&arm.pattern]), arm.span);
                    self.body(&arm.body, arm.span);
                }
            }
            StmtKind::Try { body, handlers, otherwise, finally } => {
                self.body(body, at);
                for handler in handlers {
                    (self.visit)(at, handler.span, "handler");
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

    fn header(&mut self, header: &LoopHeader, at: Span) {
        match header {
            LoopHeader::For { target, iter } => self.exprs([target, iter], at),
            LoopHeader::While { test } => self.exprs([test], at),
            LoopHeader::Forever => {}
        }
    }

    fn class(&mut self, index: ClassIndex, parent: Span) {
        let class = self.module.class(index);
        (self.visit)(parent, class.span, "class");
        (self.visit)(class.span, class.name_span, "class name");
        self.exprs(class.bases.iter().chain(&class.decorators), class.span);
        for field in &class.fields {
            (self.visit)(class.span, field.span, "field");
            self.exprs(field.annotation.iter().chain(&field.default), field.span);
        }
        self.body(&class.body, class.span);
    }

    fn function(&mut self, index: FunctionIndex, parent: Span) {
        let function = self.module.function(index);
        (self.visit)(parent, function.span, "function");
        (self.visit)(function.span, function.name_span, "function name");
        self.exprs(function.decorators.iter().chain(&function.returns), function.span);
        for parameter in &function.parameters {
            (self.visit)(function.span, parameter.span, "parameter");
            let parts = parameter.annotation.iter().chain(&parameter.default);
            self.exprs(parts, parameter.span);
        }
        self.body(&function.body, function.span);
    }

    fn expr(&mut self, expr: &Expr) {
        let at = expr.span;
        match &expr.kind {
            ExprKind::Attribute { value, name_span, .. } => {
                (self.visit)(at, *name_span, "attribute name");
                self.exprs([&**value], at);
            }
            ExprKind::Call { callee, arguments } => {
                self.exprs([&**callee], at);
                for argument in arguments {
                    (self.visit)(at, argument.span, "argument");
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
            ExprKind::Name(_) | ExprKind::Literal(_) => {}
            other => panic!("{other:?} is not Python"),
        }
    }
}
