//! Patterns of `case`.

use ruff_python_ast::{self as ast, Pattern as Node, Singleton};
use ruff_text_size::Ranged;

use super::{DEPTH_MAX, Lowering, opaque};
use crate::model::{BoolOp, Expr, ExprKind, Literal, Name, Span};

impl Lowering<'_> {
    pub(super) fn pattern(&mut self, node: &Node) -> Expr {
        let at = self.span(node.range());
        if self.depth >= DEPTH_MAX {
            return opaque(at);
        }
        self.depth += 1;
        let kind = match node {
            Node::MatchValue(node) => self.expr(&node.value).kind,
            Node::MatchSingleton(node) => ExprKind::Literal(match node.value {
                Singleton::None => Literal::None,
                Singleton::True => Literal::Bool(true),
                Singleton::False => Literal::Bool(false),
            }),
            Node::MatchOr(node) => {
                ExprKind::Bool { op: BoolOp::Or, values: self.patterns(&node.patterns) }
            }
            Node::MatchAs(node) => self.capture(node),
            Node::MatchStar(node) => {
                ExprKind::Starred(Box::new(self.binding(node.name.as_ref(), at)))
            }
            Node::MatchSequence(node) => ExprKind::Opaque(self.patterns(&node.patterns)),
            Node::MatchMapping(node) => {
                let mut parts = self.exprs(&node.keys);
                parts.extend(node.patterns.iter().map(|pattern| self.pattern(pattern)));
                parts.extend(node.rest.as_ref().map(|rest| self.binding(Some(rest), at)));
                ExprKind::Opaque(parts)
            }
            Node::MatchClass(node) => {
                let mut parts = vec![self.expr(&node.cls)];
                let keywords = node.arguments.keywords.iter().map(|keyword| &keyword.pattern);
                let arguments = node.arguments.patterns.iter().chain(keywords);
                parts.extend(arguments.map(|pattern| self.pattern(pattern)));
                ExprKind::Opaque(parts)
            }
        };
        self.depth -= 1;
        Expr::new(at, kind)
    }

    fn patterns(&mut self, nodes: &[Node]) -> Vec<Expr> {
        nodes.iter().map(|node| self.pattern(node)).collect()
    }

    fn capture(&mut self, node: &ast::PatternMatchAs) -> ExprKind {
        let at = self.span(node.range);
        match &node.pattern {
            None => self.binding(node.name.as_ref(), at).kind,
            Some(pattern) => {
                let mut parts = vec![self.pattern(pattern)];
                parts.extend(node.name.as_ref().map(|name| self.binding(Some(name), at)));
                ExprKind::Opaque(parts)
            }
        }
    }

    /// The name that a pattern binds; `_` binds none.
    fn binding(&self, identifier: Option<&ast::Identifier>, at: Span) -> Expr {
        match identifier {
            Some(id) => Expr::new(self.span(id.range), ExprKind::Name(self.name(id))),
            None => Expr::new(at, ExprKind::Name(Name::new("_"))),
        }
    }
}
