//! The model as compact text, for tests.

use std::fmt::Write;

use crate::model::{
    Arm, Clause, Expr, ExprKind, FormatPiece, Function, FunctionIndex, Handler, Import, Imported,
    Literal, LoopHeader, Module, Parameter, ParameterKind, Spread, Stmt, StmtKind,
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
