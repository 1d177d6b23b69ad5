//! Expressions.

use ruff_python_ast::{
    self as ast, Expr as Node, FStringPart, InterpolatedStringElement, Number, Operator,
};
use ruff_text_size::Ranged;

use super::{DEPTH_MAX, Lowering, STRING_BYTES_MAX, opaque};
use crate::model::{
    Argument, BinaryOp, BoolOp, Clause, CollectionKind, CompareOp, Expr, ExprKind, FormatPiece,
    Function, Literal, Name, Span, Spread, Stmt, StmtKind, UnaryOp,
};

impl Lowering<'_> {
    pub(super) fn expr(&mut self, node: &Node) -> Expr {
        let at = self.span(node.range());
        if self.depth >= DEPTH_MAX {
            return opaque(at);
        }
        self.depth += 1;
        let kind = match node {
            Node::Name(node) if node.id.is_empty() => ExprKind::Opaque(Vec::new()),
            Node::Name(node) => ExprKind::Name(self.id(&node.id)),
            Node::Attribute(node) => self.attribute(node),
            Node::Call(node) => self.call(node),
            Node::Subscript(node) => {
                ExprKind::Index { value: self.boxed(&node.value), index: self.boxed(&node.slice) }
            }
            Node::BinOp(node) => self.binary(node),
            Node::Compare(node) => self.compare(node),
            Node::BoolOp(node) => self.bool(node),
            Node::UnaryOp(node) => self.unary(node),
            Node::If(node) => ExprKind::Conditional {
                test: self.boxed(&node.test),
                then: self.boxed(&node.body),
                otherwise: self.boxed(&node.orelse),
            },
            Node::FString(node) => self.fstring(node),
            Node::TString(node) => self.tstring(node),
            _ => self.literal_or_collection(node),
        };
        self.depth -= 1;
        Expr::new(at, kind)
    }

    fn literal_or_collection(&mut self, node: &Node) -> ExprKind {
        match node {
            Node::StringLiteral(node) => match node.value.to_str() {
                text if text.len() > STRING_BYTES_MAX => ExprKind::Opaque(Vec::new()),
                text => ExprKind::Literal(Literal::Str(Name::new(text))),
            },
            Node::NumberLiteral(node) => number(&node.value),
            Node::BytesLiteral(_) => ExprKind::Literal(Literal::Bytes),
            Node::BooleanLiteral(node) => ExprKind::Literal(Literal::Bool(node.value)),
            Node::NoneLiteral(_) => ExprKind::Literal(Literal::None),
            Node::EllipsisLiteral(_) => ExprKind::Literal(Literal::Ellipsis),
            Node::Tuple(node) => self.collection(CollectionKind::Tuple, &node.elts),
            Node::List(node) => self.collection(CollectionKind::List, &node.elts),
            Node::Set(node) => self.collection(CollectionKind::Set, &node.elts),
            Node::Dict(node) => {
                let items = node.items.iter().map(|item| {
                    let key = self.optional(item.key.as_ref());
                    (key, self.expr(&item.value))
                });
                ExprKind::Dict(items.collect())
            }
            Node::ListComp(node) => {
                self.comprehension(CollectionKind::List, &node.elt, &node.generators)
            }
            Node::SetComp(node) => {
                self.comprehension(CollectionKind::Set, &node.elt, &node.generators)
            }
            Node::Generator(node) => {
                self.comprehension(CollectionKind::Generator, &node.elt, &node.generators)
            }
            Node::DictComp(node) => self.dict_comprehension(node),
            _ => self.rare(node),
        }
    }

    fn rare(&mut self, node: &Node) -> ExprKind {
        let boxed = |value: Option<Expr>| value.map(Box::new);
        match node {
            Node::Lambda(node) => self.lambda(node),
            Node::Await(node) => ExprKind::Await(self.boxed(&node.value)),
            Node::Yield(node) => {
                self.mark_generator();
                ExprKind::Yield(boxed(self.optional(node.value.as_deref())))
            }
            Node::YieldFrom(node) => {
                self.mark_generator();
                // From the `from`, so that the value keeps a place of its own.
                let Span { start, end } = self.span(node.range);
                let value = self.boxed(&node.value);
                let gap = start as usize + "yield".len()..value.span.start as usize;
                let from = self.text.get(gap.clone()).and_then(|gap| gap.find("from"));
                let start = from.map_or(value.span.start as usize, |from| gap.start + from);
                let starred = ExprKind::Starred(value);
                let starred = Expr::new(Span::new(start, end), starred);
                ExprKind::Yield(Some(Box::new(starred)))
            }
            Node::Starred(node) => ExprKind::Starred(self.boxed(&node.value)),
            Node::Named(node) => ExprKind::Walrus {
                target: self.boxed(&node.target),
                value: self.boxed(&node.value),
            },
            Node::Slice(node) => ExprKind::Slice {
                lower: boxed(self.optional(node.lower.as_deref())),
                upper: boxed(self.optional(node.upper.as_deref())),
                step: boxed(self.optional(node.step.as_deref())),
            },
            _ => ExprKind::Opaque(Vec::new()),
        }
    }

    pub(super) fn exprs(&mut self, nodes: &[Node]) -> Vec<Expr> {
        nodes.iter().map(|node| self.expr(node)).collect()
    }

    pub(super) fn optional(&mut self, node: Option<&Node>) -> Option<Expr> {
        node.map(|node| self.expr(node))
    }

    fn boxed(&mut self, node: &Node) -> Box<Expr> {
        Box::new(self.expr(node))
    }

    fn mark_generator(&mut self) {
        if let Some(function) = self.function {
            self.functions[function.0 as usize].is_generator = true;
        }
    }

    fn attribute(&mut self, node: &ast::ExprAttribute) -> ExprKind {
        if !node.attr.is_valid() {
            return ExprKind::Opaque(vec![self.expr(&node.value)]);
        }
        ExprKind::Attribute {
            value: self.boxed(&node.value),
            name: self.name(&node.attr),
            name_span: self.span(node.attr.range),
        }
    }

    fn call(&mut self, node: &ast::ExprCall) -> ExprKind {
        let callee = self.boxed(&node.func);
        let mut arguments = Vec::with_capacity(node.arguments.len());
        for argument in node.arguments.iter_source_order() {
            let (name, value, spread) = match argument {
                ast::ArgOrKeyword::Arg(Node::Starred(node)) => (None, &*node.value, Spread::Items),
                ast::ArgOrKeyword::Arg(node) => (None, node, Spread::No),
                ast::ArgOrKeyword::Keyword(node) => match &node.arg {
                    Some(arg) => (Some(self.name(arg)), &node.value, Spread::No),
                    None => (None, &node.value, Spread::Keywords),
                },
            };
            let value = self.expr(value);
            arguments.push(Argument { name, value, spread, span: self.span(argument.range()) });
        }
        ExprKind::Call { callee, arguments }
    }

    /// Chains such as `a + b + …` lean to the left. Short ones stay as they are; of long ones
    /// only the terms are kept, in one flat node.
    fn binary(&mut self, node: &ast::ExprBinOp) -> ExprKind {
        let mut length = 0;
        let mut first = &*node.left;
        while let Node::BinOp(inner) = first {
            length += 1;
            first = &inner.left;
        }
        if self.depth + length < DEPTH_MAX {
            return ExprKind::Binary {
                op: binary_op(node.op),
                left: self.boxed(&node.left),
                right: self.boxed(&node.right),
            };
        }
        let mut rights = vec![&*node.right];
        let mut left = &*node.left;
        while let Node::BinOp(inner) = left {
            rights.push(&inner.right);
            left = &inner.left;
        }
        let mut terms = vec![self.expr(left)];
        terms.extend(rights.into_iter().rev().map(|term| self.expr(term)));
        ExprKind::Opaque(terms)
    }

    fn compare(&mut self, node: &ast::ExprCompare) -> ExprKind {
        let left = self.boxed(&node.left);
        let rest = node.ops.iter().zip(&node.comparators);
        let rest = rest.map(|(op, right)| (compare_op(*op), self.expr(right))).collect();
        ExprKind::Compare { left, rest }
    }

    fn bool(&mut self, node: &ast::ExprBoolOp) -> ExprKind {
        let op = match node.op {
            ast::BoolOp::And => BoolOp::And,
            ast::BoolOp::Or => BoolOp::Or,
        };
        ExprKind::Bool { op, values: self.exprs(&node.values) }
    }

    fn unary(&mut self, node: &ast::ExprUnaryOp) -> ExprKind {
        let value = self.boxed(&node.operand);
        let op = match node.op {
            ast::UnaryOp::Not => return ExprKind::Not(value),
            ast::UnaryOp::USub => UnaryOp::Minus,
            ast::UnaryOp::UAdd => UnaryOp::Plus,
            ast::UnaryOp::Invert => UnaryOp::Invert,
        };
        ExprKind::Unary { op, value }
    }

    fn collection(&mut self, kind: CollectionKind, items: &[Node]) -> ExprKind {
        ExprKind::Collection { kind, items: self.exprs(items) }
    }

    fn comprehension(
        &mut self,
        kind: CollectionKind,
        element: &Node,
        generators: &[ast::Comprehension],
    ) -> ExprKind {
        let element = self.boxed(element);
        ExprKind::Comprehension { kind, element, clauses: self.clauses(generators) }
    }

    fn dict_comprehension(&mut self, node: &ast::ExprDictComp) -> ExprKind {
        let element = match node.key.as_deref() {
            None => self.expr(&node.value),
            Some(key) => {
                let (key, value) = (self.expr(key), self.expr(&node.value));
                let kind = CollectionKind::Tuple;
                let at = key.span.to(value.span);
                Expr::new(at, ExprKind::Collection { kind, items: vec![key, value] })
            }
        };
        ExprKind::Comprehension {
            kind: CollectionKind::Dict,
            element: Box::new(element),
            clauses: self.clauses(&node.generators),
        }
    }

    fn clauses(&mut self, generators: &[ast::Comprehension]) -> Vec<Clause> {
        let clauses = generators.iter().map(|generator| Clause {
            target: self.expr(&generator.target),
            iter: self.expr(&generator.iter),
            tests: self.exprs(&generator.ifs),
        });
        clauses.collect()
    }

    fn lambda(&mut self, node: &ast::ExprLambda) -> ExprKind {
        let Span { start, end } = self.span(node.range);
        let parameters = node.parameters.as_deref().map(|p| self.parameters(p));
        let index = self.open_function(Function {
            name: Name::new("<lambda>"),
            name_span: Span { start, end: end.min(start + "lambda".len() as u32) },
            span: Span { start, end },
            parameters: parameters.unwrap_or_default(),
            body: Vec::new(),
            decorators: Vec::new(),
            class: None,
            returns: None,
            is_async: false,
            is_generator: false,
        });
        self.inside(index, |lowering| {
            lowering.depth += 1;
            let kind = StmtKind::Return(Some(lowering.expr(&node.body)));
            lowering.depth -= 1;
            vec![Stmt { span: lowering.span(node.body.range()), kind }]
        });
        ExprKind::Lambda(index)
    }

    fn fstring(&mut self, node: &ast::ExprFString) -> ExprKind {
        let mut pieces = Vec::new();
        for part in &node.value {
            match part {
                FStringPart::Literal(text) => push_text(&mut pieces, text),
                FStringPart::FString(part) => self.pieces(&part.elements, &mut pieces),
            }
        }
        ExprKind::Format(pieces)
    }

    fn tstring(&mut self, node: &ast::ExprTString) -> ExprKind {
        let mut pieces = Vec::new();
        for part in &node.value {
            self.pieces(&part.elements, &mut pieces);
        }
        ExprKind::Format(pieces)
    }

    fn pieces(&mut self, elements: &[InterpolatedStringElement], pieces: &mut Vec<FormatPiece>) {
        for element in elements {
            match element {
                InterpolatedStringElement::Literal(text) => push_text(pieces, text),
                InterpolatedStringElement::Interpolation(element) => {
                    if let Some(debug) = &element.debug_text {
                        push_text(pieces, debug.as_str());
                    }
                    pieces.push(FormatPiece::Value(self.expr(&element.expression)));
                    self.widths(element, pieces);
                }
            }
        }
    }

    /// Values inside a format specification: `width` of `{x:{width}}`.
    fn widths(&mut self, element: &ast::InterpolatedElement, pieces: &mut Vec<FormatPiece>) {
        let Some(spec) = element.format_spec.as_deref() else { return };
        if self.depth >= DEPTH_MAX {
            return;
        }
        self.depth += 1;
        for inner in spec.elements.interpolations() {
            pieces.push(FormatPiece::Value(self.expr(&inner.expression)));
            self.widths(inner, pieces);
        }
        self.depth -= 1;
    }
}

fn push_text(pieces: &mut Vec<FormatPiece>, text: &str) {
    match pieces.last_mut() {
        _ if text.is_empty() => {}
        Some(FormatPiece::Text(last)) => *last = [&**last, text].concat().into(),
        _ => pieces.push(FormatPiece::Text(text.into())),
    }
}

/// Integers beyond 64 bits and complex numbers are not known.
fn number(value: &Number) -> ExprKind {
    match value {
        Number::Int(value) => match value.as_i64() {
            Some(value) => ExprKind::Literal(Literal::Int(value)),
            None => ExprKind::Opaque(Vec::new()),
        },
        Number::Float(value) => ExprKind::Literal(Literal::Float(*value)),
        Number::Complex { .. } => ExprKind::Opaque(Vec::new()),
    }
}

pub(super) fn binary_op(op: Operator) -> BinaryOp {
    match op {
        Operator::Add => BinaryOp::Add,
        Operator::Sub => BinaryOp::Sub,
        Operator::Mult => BinaryOp::Mul,
        Operator::MatMult => BinaryOp::MatMul,
        Operator::Div => BinaryOp::Div,
        Operator::Mod => BinaryOp::Mod,
        Operator::Pow => BinaryOp::Pow,
        Operator::LShift => BinaryOp::LShift,
        Operator::RShift => BinaryOp::RShift,
        Operator::BitOr => BinaryOp::BitOr,
        Operator::BitXor => BinaryOp::BitXor,
        Operator::BitAnd => BinaryOp::BitAnd,
        Operator::FloorDiv => BinaryOp::FloorDiv,
    }
}

fn compare_op(op: ast::CmpOp) -> CompareOp {
    match op {
        ast::CmpOp::Eq => CompareOp::Eq,
        ast::CmpOp::NotEq => CompareOp::NotEq,
        ast::CmpOp::Lt => CompareOp::Lt,
        ast::CmpOp::LtE => CompareOp::LtE,
        ast::CmpOp::Gt => CompareOp::Gt,
        ast::CmpOp::GtE => CompareOp::GtE,
        ast::CmpOp::Is => CompareOp::Is,
        ast::CmpOp::IsNot => CompareOp::IsNot,
        ast::CmpOp::In => CompareOp::In,
        ast::CmpOp::NotIn => CompareOp::NotIn,
    }
}
