//! Statements, functions, classes and imports.

use ruff_python_ast::{self as ast, ExceptHandler, Stmt as Node};
use ruff_text_size::{Ranged, TextRange};

use super::{DEPTH_MAX, ELIF_MAX, Lowering};
use crate::model::{
    Arm, Class, ClassIndex, ClassKind, Expr, ExprKind, Field, Function, FunctionIndex, Handler,
    Import, Imported, Literal, LoopHeader, Name, Parameter, ParameterKind, Stmt, StmtKind,
    WithItem,
};

impl Lowering<'_> {
    pub(super) fn body(&mut self, nodes: &[Node]) -> Vec<Stmt> {
        if self.depth >= DEPTH_MAX {
            return Vec::new();
        }
        self.depth += 1;
        let mut body = Vec::with_capacity(nodes.len());
        for node in nodes {
            self.stmt(node, &mut body);
        }
        self.depth -= 1;
        body
    }

    fn stmt(&mut self, node: &Node, body: &mut Vec<Stmt>) {
        let kind = match node {
            Node::Import(node) => return self.import(node, body),
            Node::ImportFrom(node) => return self.import_from(node, body),
            Node::FunctionDef(node) => StmtKind::Function(self.function(node)),
            Node::ClassDef(node) => StmtKind::Class(self.class(node)),
            Node::If(node) => self.if_stmt(node),
            Node::For(node) => self.for_loop(node),
            Node::While(node) => self.while_loop(node),
            Node::With(node) => self.with(node),
            Node::Match(node) => self.match_stmt(node),
            Node::Try(node) => self.try_stmt(node),
            _ => self.simple(node),
        };
        body.push(Stmt { span: self.span(node.range()), kind });
    }

    fn simple(&mut self, node: &Node) -> StmtKind {
        match node {
            Node::Expr(node) if node.value.is_string_literal_expr() => StmtKind::Pass,
            Node::Expr(node) => StmtKind::Expr(self.expr(&node.value)),
            Node::Assign(node) => StmtKind::Assign {
                targets: self.exprs(&node.targets),
                value: Some(self.expr(&node.value)),
                annotation: None,
            },
            Node::AnnAssign(node) => StmtKind::Assign {
                targets: vec![self.expr(&node.target)],
                value: self.optional(node.value.as_deref()),
                annotation: Some(self.expr(&node.annotation)),
            },
            Node::TypeAlias(node) => StmtKind::Assign {
                targets: vec![self.expr(&node.name)],
                value: Some(self.expr(&node.value)),
                annotation: None,
            },
            Node::AugAssign(node) => StmtKind::AugAssign {
                target: self.expr(&node.target),
                op: super::expr::binary_op(node.op),
                value: self.expr(&node.value),
            },
            Node::Return(node) => StmtKind::Return(self.optional(node.value.as_deref())),
            Node::Raise(node) => StmtKind::Raise(self.optional(node.exc.as_deref())),
            Node::Assert(node) => StmtKind::Assert {
                test: self.expr(&node.test),
                message: self.optional(node.msg.as_deref()),
            },
            Node::Delete(node) => StmtKind::Delete(self.exprs(&node.targets)),
            Node::Global(node) => {
                StmtKind::Outer(node.names.iter().map(|name| self.name(name)).collect())
            }
            Node::Nonlocal(node) => {
                StmtKind::Outer(node.names.iter().map(|name| self.name(name)).collect())
            }
            Node::Break(_) => StmtKind::Break,
            Node::Continue(_) => StmtKind::Continue,
            _ => StmtKind::Pass,
        }
    }

    fn if_stmt(&mut self, node: &ast::StmtIf) -> StmtKind {
        if self.depth <= 2 && self.function.is_none() && self.class.is_none() {
            self.has_main |= tests_main(&node.test);
        }
        if node.elif_else_clauses.len() > ELIF_MAX {
            return self.long_if(node);
        }
        let test = self.expr(&node.test);
        let body = self.body(&node.body);
        let depth = self.depth;
        let mut clauses = Vec::with_capacity(node.elif_else_clauses.len());
        for clause in &node.elif_else_clauses {
            self.depth += 1;
            let test = clause.test.as_ref().map(|test| self.expr(test));
            clauses.push((clause.start(), test, self.body(&clause.body)));
        }
        self.depth = depth;
        let mut otherwise = Vec::new();
        for (start, test, body) in clauses.into_iter().rev() {
            otherwise = match test {
                None => body,
                Some(test) => {
                    let span = self.span(TextRange::new(start, node.end()));
                    vec![Stmt { span, kind: StmtKind::If { test, body, otherwise } }]
                }
            };
        }
        StmtKind::If { test, body, otherwise }
    }

    /// `match None: case _ if test: ..`, which is as flat as the chain is in the source.
    fn long_if(&mut self, node: &ast::StmtIf) -> StmtKind {
        let first = (node.range(), Some(&*node.test), &node.body[..]);
        let rest = node
            .elif_else_clauses
            .iter()
            .map(|clause| (clause.range(), clause.test.as_ref(), &clause.body[..]));
        let arms = std::iter::once(first).chain(rest).map(|(range, test, body)| {
            let at = self.span(TextRange::empty(range.start()));
            let end = body.last().map_or(range.end(), Ranged::end);
            Arm {
                span: self.span(TextRange::new(range.start(), end)),
                pattern: Expr::new(at, ExprKind::Name(Name::new("_"))),
                guard: self.optional(test),
                body: self.body(body),
            }
        });
        let arms = arms.collect();
        let at = self.span(TextRange::empty(node.start()));
        StmtKind::Match { subject: Expr::new(at, ExprKind::Literal(Literal::None)), arms }
    }

    fn for_loop(&mut self, node: &ast::StmtFor) -> StmtKind {
        StmtKind::Loop {
            header: LoopHeader::For {
                target: self.expr(&node.target),
                iter: self.expr(&node.iter),
            },
            body: self.body(&node.body),
            otherwise: self.body(&node.orelse),
        }
    }

    fn while_loop(&mut self, node: &ast::StmtWhile) -> StmtKind {
        StmtKind::Loop {
            header: LoopHeader::While { test: self.expr(&node.test) },
            body: self.body(&node.body),
            otherwise: self.body(&node.orelse),
        }
    }

    fn with(&mut self, node: &ast::StmtWith) -> StmtKind {
        let items = node.items.iter().map(|item| WithItem {
            context: self.expr(&item.context_expr),
            target: self.optional(item.optional_vars.as_deref()),
        });
        let items = items.collect();
        StmtKind::With { items, body: self.body(&node.body) }
    }

    fn match_stmt(&mut self, node: &ast::StmtMatch) -> StmtKind {
        let subject = self.expr(&node.subject);
        let arms = node.cases.iter().map(|case| Arm {
            span: self.span(case.range),
            pattern: self.pattern(&case.pattern),
            guard: self.optional(case.guard.as_deref()),
            body: self.body(&case.body),
        });
        StmtKind::Match { subject, arms: arms.collect() }
    }

    fn try_stmt(&mut self, node: &ast::StmtTry) -> StmtKind {
        let body = self.body(&node.body);
        let handlers = node.handlers.iter().map(|ExceptHandler::ExceptHandler(handler)| Handler {
            span: self.span(handler.range),
            types: self.optional(handler.type_.as_deref()),
            name: handler.name.as_ref().map(|name| self.name(name)),
            body: self.body(&handler.body),
        });
        StmtKind::Try {
            handlers: handlers.collect(),
            body,
            otherwise: self.body(&node.orelse),
            finally: self.body(&node.finalbody),
        }
    }

    fn import(&self, node: &ast::StmtImport, body: &mut Vec<Stmt>) {
        for alias in node.names.iter().filter(|alias| alias.name.is_valid()) {
            let module = self.name(&alias.name);
            let binding = match &alias.asname {
                Some(asname) => self.name(asname),
                None => Name::new(module.split_once('.').map_or(&*module, |(head, _)| head)),
            };
            let import = Import { module, level: 0, what: Imported::Module, binding };
            body.push(Stmt { span: self.span(node.range), kind: StmtKind::Import(import) });
        }
    }

    fn import_from(&self, node: &ast::StmtImportFrom, body: &mut Vec<Stmt>) {
        let module = node.module.as_ref().map_or_else(|| Name::new(""), |name| self.name(name));
        for alias in node.names.iter().filter(|alias| alias.name.is_valid()) {
            let member = self.name(&alias.name);
            let (what, binding) = if member == "*" {
                (Imported::All, Name::new(""))
            } else {
                (
                    Imported::Member(member),
                    alias.asname.as_ref().map_or(member, |name| self.name(name)),
                )
            };
            let import = Import { module, level: node.level, what, binding };
            body.push(Stmt { span: self.span(node.range), kind: StmtKind::Import(import) });
        }
    }

    fn function(&mut self, node: &ast::StmtFunctionDef) -> FunctionIndex {
        let function = Function {
            name: self.name(&node.name),
            name_span: self.span(node.name.range),
            span: self.span(node.range),
            decorators: node.decorator_list.iter().map(|d| self.expr(&d.expression)).collect(),
            parameters: self.parameters(&node.parameters),
            returns: self.optional(node.returns.as_deref()),
            body: Vec::new(),
            class: self.class,
            is_async: node.is_async,
            is_generator: false,
        };
        let index = self.open_function(function);
        if let Some(class) = self.class {
            self.classes[class.0 as usize].methods.push(index);
        }
        self.inside(index, |lowering| lowering.body(&node.body));
        index
    }

    /// Takes a place in the arena before the body does, so that outer functions come first.
    pub(super) fn open_function(&mut self, function: Function) -> FunctionIndex {
        let index = FunctionIndex(self.functions.len() as u32);
        self.functions.push(function);
        index
    }

    pub(super) fn inside(
        &mut self,
        index: FunctionIndex,
        body: impl FnOnce(&mut Self) -> Vec<Stmt>,
    ) {
        let outer = (self.function.replace(index), self.class.take());
        let body = body(self);
        (self.function, self.class) = outer;
        self.functions[index.0 as usize].body = body;
    }

    pub(super) fn parameters(&mut self, node: &ast::Parameters) -> Vec<Parameter> {
        let mut parameters = Vec::with_capacity(node.len());
        for each in node.posonlyargs.iter().chain(&node.args) {
            parameters.push(self.parameter(each, ParameterKind::Positional));
        }
        if let Some(rest) = &node.vararg {
            parameters.push(self.collecting(rest, ParameterKind::Rest));
        }
        for each in &node.kwonlyargs {
            parameters.push(self.parameter(each, ParameterKind::KeywordOnly));
        }
        if let Some(keywords) = &node.kwarg {
            parameters.push(self.collecting(keywords, ParameterKind::Keywords));
        }
        parameters
    }

    fn parameter(&mut self, node: &ast::ParameterWithDefault, kind: ParameterKind) -> Parameter {
        Parameter {
            name: self.name(&node.parameter.name),
            pattern: None,
            span: self.span(node.range),
            annotation: self.optional(node.parameter.annotation.as_deref()),
            default: self.optional(node.default.as_deref()),
            kind,
        }
    }

    fn collecting(&mut self, node: &ast::Parameter, kind: ParameterKind) -> Parameter {
        Parameter {
            name: self.name(&node.name),
            pattern: None,
            span: self.span(node.range),
            annotation: self.optional(node.annotation.as_deref()),
            default: None,
            kind,
        }
    }

    fn class(&mut self, node: &ast::StmtClassDef) -> ClassIndex {
        let class = Class {
            name: self.name(&node.name),
            name_span: self.span(node.name.range),
            span: self.span(node.range),
            bases: self.exprs(node.bases()),
            decorators: node.decorator_list.iter().map(|d| self.expr(&d.expression)).collect(),
            fields: node.body.iter().filter_map(|stmt| self.field(stmt)).collect(),
            methods: Vec::new(),
            body: Vec::new(),
            kind: ClassKind::Class,
            variants: Vec::new(),
        };
        let index = ClassIndex(self.classes.len() as u32);
        self.classes.push(class);
        let outer = self.class.replace(index);
        let body = self.body(&node.body);
        self.class = outer;
        self.classes[index.0 as usize].body = body;
        index
    }

    fn field(&mut self, node: &Node) -> Option<Field> {
        let node = node.as_ann_assign_stmt()?;
        Some(Field {
            name: Name::new(&node.target.as_name_expr()?.id),
            span: self.span(node.range),
            annotation: Some(self.expr(&node.annotation)),
            default: self.optional(node.value.as_deref()),
            decorators: Vec::new(),
        })
    }
}

/// `__name__ == "__main__"`, either way round, alone or as a part of an `and`.
fn tests_main(test: &ast::Expr) -> bool {
    match test {
        ast::Expr::BoolOp(node) if node.op == ast::BoolOp::And => {
            node.values.iter().any(tests_main)
        }
        ast::Expr::Compare(node) if *node.ops == [ast::CmpOp::Eq] => {
            let sides = [&*node.left, &node.comparators[0]];
            sides.iter().any(|side| side.as_name_expr().is_some_and(|n| n.id == "__name__"))
                && sides
                    .iter()
                    .filter_map(|side| side.as_string_literal_expr())
                    .any(|text| text.value.to_str() == "__main__")
        }
        _ => false,
    }
}
