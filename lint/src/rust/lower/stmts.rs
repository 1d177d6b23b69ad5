//! Statements, blocks and the control flow that Rust allows in expressions.

use super::{LoopContext, Lower, Tail, stmt};
use crate::model::{Arm, BinaryOp, Expr, ExprKind, LoopHeader, Name, Span, Stmt, StmtKind};

impl Lower<'_> {
    /// Lowers the statements of a block. True when the last one holds the block's value.
    pub(super) fn block(&mut self, block: &syn::Block, tail: Tail, out: &mut Vec<Stmt>) -> bool {
        let count = block.stmts.len();
        let mut has_value = false;
        for (index, statement) in block.stmts.iter().enumerate() {
            let is_last = index + 1 == count;
            has_value = self.statement(statement, if is_last { tail } else { Tail::Drop }, out);
        }
        has_value
    }

    /// A block as a list of statements, nothing becoming of its value.
    pub(super) fn unit_block(&mut self, block: &syn::Block) -> Vec<Stmt> {
        let mut out = Vec::new();
        self.block(block, Tail::Drop, &mut out);
        out
    }

    fn statement(&mut self, statement: &syn::Stmt, tail: Tail, out: &mut Vec<Stmt>) -> bool {
        match statement {
            syn::Stmt::Local(local) => {
                if !super::items::is_test_only(&local.attrs) {
                    self.local(local, out);
                }
                false
            }
            syn::Stmt::Item(item) => {
                self.item(item, out);
                false
            }
            syn::Stmt::Expr(expr, None) => self.tail(expr, tail, out),
            syn::Stmt::Expr(expr, Some(semi)) => {
                let end = self.at(semi.span);
                self.expr_statement(expr, Some(end), out);
                false
            }
            syn::Stmt::Macro(statement) => {
                let end = statement.semi_token.map(|semi| self.at(semi.span));
                let is_tail = end.is_none();
                self.macro_statement(
                    &statement.mac,
                    end,
                    if is_tail { tail } else { Tail::Drop },
                    out,
                )
            }
        }
    }

    fn local(&mut self, local: &syn::Local, out: &mut Vec<Stmt>) {
        let span = self.at(local.let_token.span).to(self.at(local.semi_token.span));
        let (pattern, annotation) = match &local.pat {
            syn::Pat::Type(pattern) => (&*pattern.pat, Some(&*pattern.ty)),
            pattern => (pattern, None),
        };
        let annotation = annotation.map(|ty| self.ty(ty).0);
        let Some(init) = &local.init else {
            let targets = vec![self.pattern(pattern).0];
            out.push(stmt(span, StmtKind::Assign { targets, value: None, annotation }));
            return;
        };
        let value = self.expr(&init.expr);
        let (pattern, pattern_span) = self.pattern(pattern);
        let Some((_, diverge)) = &init.diverge else {
            let targets = vec![pattern];
            let value = Some(value);
            out.push(stmt(span, StmtKind::Assign { targets, value, annotation }));
            return;
        };
        let test = Expr::new(
            pattern_span.to(value.span),
            ExprKind::Let { pattern: Box::new(pattern), value: Box::new(value) },
        );
        let mut otherwise = Vec::new();
        self.branch(diverge, Tail::Drop, &mut otherwise);
        out.push(stmt(span, StmtKind::If { test, body: Vec::new(), otherwise }));
    }

    /// An expression in statement position. `end` is its semicolon.
    pub(super) fn expr_statement(
        &mut self,
        expr: &syn::Expr,
        end: Option<Span>,
        out: &mut Vec<Stmt>,
    ) {
        let from = out.len();
        self.expr_statement_here(expr, out);
        if let (Some(end), true) = (end, out.len() > from) {
            let last = out.len() - 1;
            out[last].span = out[last].span.to(end);
        }
    }

    fn expr_statement_here(&mut self, expr: &syn::Expr, out: &mut Vec<Stmt>) {
        stacker::maybe_grow(super::exprs::RED_ZONE, super::exprs::STACK, || match expr {
            syn::Expr::If(expr) => self.if_statement(expr, Tail::Drop, out),
            syn::Expr::Match(expr) => self.match_statement(expr, Tail::Drop, out),
            syn::Expr::While(expr) => self.while_statement(expr, out),
            syn::Expr::ForLoop(expr) => self.for_statement(expr, out),
            syn::Expr::Loop(expr) => _ = self.loop_statement(expr, None, out),
            syn::Expr::Block(expr) if expr.label.is_some() => _ = self.labelled(expr, None, out),
            syn::Expr::Block(expr) => self.block_statement(&expr.block, Tail::Drop, out),
            syn::Expr::Unsafe(expr) => self.block_statement(&expr.block, Tail::Drop, out),
            syn::Expr::Const(expr) => self.block_statement(&expr.block, Tail::Drop, out),
            syn::Expr::Assign(expr) => self.assign(expr, out),
            syn::Expr::Binary(expr) if assign_op(&expr.op).is_some() => self.aug_assign(expr, out),
            syn::Expr::Return(_) | syn::Expr::Break(_) | syn::Expr::Continue(_) => {
                self.jump(expr, out);
            }
            syn::Expr::Macro(expr) => {
                self.macro_statement(&expr.mac, None, Tail::Drop, out);
            }
            syn::Expr::Paren(expr) => self.expr_statement_here(&expr.expr, out),
            syn::Expr::Group(expr) => self.expr_statement_here(&expr.expr, out),
            // A lone `;`.
            syn::Expr::Verbatim(tokens) if tokens.is_empty() => {}
            _ => {
                let (expr, span) = self.spanned(expr);
                out.push(stmt(span, StmtKind::Expr(expr)));
            }
        });
    }

    /// The last expression of a block. True when a statement `Expr` with the value was added.
    pub(super) fn tail(&mut self, expr: &syn::Expr, tail: Tail, out: &mut Vec<Stmt>) -> bool {
        if tail == Tail::Drop || is_unit(expr) {
            self.expr_statement(expr, None, out);
            return false;
        }
        if let syn::Expr::Macro(expr) = expr {
            return self.macro_statement(&expr.mac, None, tail, out);
        }
        if tail == Tail::Return {
            match expr {
                syn::Expr::If(expr) => return self.none(|s| s.if_statement(expr, tail, out)),
                syn::Expr::Match(expr) => return self.none(|s| s.match_statement(expr, tail, out)),
                syn::Expr::Block(expr) if expr.label.is_none() => {
                    return self.none(|s| s.block_statement(&expr.block, tail, out));
                }
                syn::Expr::Unsafe(expr) => {
                    return self.none(|s| s.block_statement(&expr.block, tail, out));
                }
                syn::Expr::Loop(_) => return self.loop_tail(expr, out),
                syn::Expr::Paren(expr) => return self.tail(&expr.expr, tail, out),
                syn::Expr::Group(expr) => return self.tail(&expr.expr, tail, out),
                _ => {}
            }
        }
        let (value, span) = self.spanned(expr);
        out.push(value_statement(value, span, tail));
        tail == Tail::Value
    }

    /// A loop that gives no value is left by `return` alone.
    fn loop_tail(&mut self, expr: &syn::Expr, out: &mut Vec<Stmt>) -> bool {
        let (value, span) = self.spanned(expr);
        match value.kind {
            ExprKind::Block { body, has_value: false } => out.extend(body),
            _ => out.push(value_statement(value, span, Tail::Return)),
        }
        false
    }

    fn none(&mut self, lower: impl FnOnce(&mut Self)) -> bool {
        lower(self);
        false
    }

    /// A body that is a block or (after `else`, in an arm) another expression.
    pub(super) fn branch(&mut self, expr: &syn::Expr, tail: Tail, out: &mut Vec<Stmt>) -> bool {
        match expr {
            syn::Expr::Block(expr) if expr.label.is_none() => self.block(&expr.block, tail, out),
            _ => self.tail(expr, tail, out),
        }
    }

    fn if_statement(&mut self, expr: &syn::ExprIf, tail: Tail, out: &mut Vec<Stmt>) {
        let start = self.at(expr.if_token.span);
        let test = self.expr(&expr.cond);
        let mut body = Vec::new();
        self.block(&expr.then_branch, tail, &mut body);
        let mut end = self.group(expr.then_branch.brace_token.span);
        let mut otherwise = Vec::new();
        if let Some((_, branch)) = &expr.else_branch {
            self.branch(branch, tail, &mut otherwise);
            end = match &**branch {
                syn::Expr::Block(block) => self.group(block.block.brace_token.span),
                _ => otherwise.last().map_or(end, |last| last.span),
            };
        }
        out.push(stmt(start.to(end), StmtKind::If { test, body, otherwise }));
    }

    fn match_statement(&mut self, expr: &syn::ExprMatch, tail: Tail, out: &mut Vec<Stmt>) {
        let (subject, arms, span) = self.match_parts(expr, tail);
        out.push(stmt(span, StmtKind::Match { subject, arms }));
    }

    pub(super) fn match_parts(
        &mut self,
        expr: &syn::ExprMatch,
        tail: Tail,
    ) -> (Expr, Vec<Arm>, Span) {
        let span = self.at(expr.match_token.span).to(self.group(expr.brace_token.span));
        let subject = self.expr(&expr.expr);
        let arms = expr.arms.iter().filter(|arm| !super::items::is_test_only(&arm.attrs));
        (subject, arms.map(|arm| self.arm(arm, tail)).collect(), span)
    }

    fn arm(&mut self, arm: &syn::Arm, tail: Tail) -> Arm {
        let (pattern, guard) = match &arm.pat {
            syn::Pat::Guard(pattern) => (&*pattern.pat, Some(&*pattern.guard)),
            pattern => (pattern, None),
        };
        let (pattern, start) = self.pattern(pattern);
        let guard = guard.map(|guard| self.expr(guard));
        let mut body = Vec::new();
        let has_value = self.branch(&arm.body, tail, &mut body);
        let mut end = match &*arm.body {
            syn::Expr::Block(block) => self.group(block.block.brace_token.span),
            _ => body.last().map_or(self.at(arm.fat_arrow_token.spans[1]), |last| last.span),
        };
        if let Some(comma) = arm.comma {
            end = end.to(self.at(comma.span));
        }
        if !has_value
            && tail == Tail::Value
            && body.last().is_none_or(|last| matches!(last.kind, StmtKind::Expr(_)))
        {
            let close = Span { start: end.end, end: end.end };
            body.push(stmt(close, StmtKind::Pass));
        }
        Arm { span: start.to(end), pattern, guard, body }
    }

    fn while_statement(&mut self, expr: &syn::ExprWhile, out: &mut Vec<Stmt>) {
        let span = self.at(expr.while_token.span).to(self.group(expr.body.brace_token.span));
        let header = LoopHeader::While { test: self.expr(&expr.cond) };
        self.push_loop(header, &expr.body, expr.label.as_ref(), None, span, out);
    }

    fn for_statement(&mut self, expr: &syn::ExprForLoop, out: &mut Vec<Stmt>) {
        let span = self.at(expr.for_token.span).to(self.group(expr.body.brace_token.span));
        let target = self.pattern(&expr.pat).0;
        let header = LoopHeader::For { target, iter: self.expr(&expr.expr) };
        self.push_loop(header, &expr.body, expr.label.as_ref(), None, span, out);
    }

    pub(super) fn loop_statement(
        &mut self,
        expr: &syn::ExprLoop,
        value: Option<Name>,
        out: &mut Vec<Stmt>,
    ) -> bool {
        let span = self.at(expr.loop_token.span).to(self.group(expr.body.brace_token.span));
        let label = expr.label.as_ref();
        self.push_loop(LoopHeader::Forever, &expr.body, label, value, span, out)
    }

    fn push_loop(
        &mut self,
        header: LoopHeader,
        body: &syn::Block,
        label: Option<&syn::Label>,
        value: Option<Name>,
        span: Span,
        out: &mut Vec<Stmt>,
    ) -> bool {
        let span = label.map_or(span, |label| self.label_span(label).to(span));
        let label = label.map(|label| label.name.ident.to_string());
        self.loops.push(LoopContext { label, value, is_block: false, has_value: false });
        let body = self.unit_block(body);
        let context = self.loops.pop();
        out.push(stmt(span, StmtKind::Loop { header, body, otherwise: Vec::new() }));
        context.is_some_and(|context| context.has_value)
    }

    pub(super) fn label_span(&self, label: &syn::Label) -> Span {
        self.at(label.name.apostrophe).to(self.at(label.name.ident.span()))
    }

    /// `'a: { .. }` as a loop that ends after one round. True when `value` is assigned.
    pub(super) fn labelled(
        &mut self,
        expr: &syn::ExprBlock,
        value: Option<Name>,
        out: &mut Vec<Stmt>,
    ) -> bool {
        let braces = self.group(expr.block.brace_token.span);
        let span = expr.label.as_ref().map_or(braces, |label| self.label_span(label).to(braces));
        let label = expr.label.as_ref().map(|label| label.name.ident.to_string());
        self.loops.push(LoopContext { label, value, is_block: true, has_value: false });
        let mut body = Vec::new();
        let tail = if value.is_some() { Tail::Value } else { Tail::Drop };
        let mut has_value = false;
        if self.block(&expr.block, tail, &mut body)
            && let (Some(name), Some(last)) = (value, body.pop())
            && let StmtKind::Expr(value) = last.kind
        {
            body.push(assign_name(name, value));
            has_value = true;
        }
        let close = Span { start: span.end - 1, end: span.end };
        body.push(stmt(close, StmtKind::Break));
        has_value |= self.loops.pop().is_some_and(|context| context.has_value);
        let header = LoopHeader::Forever;
        out.push(stmt(span, StmtKind::Loop { header, body, otherwise: Vec::new() }));
        has_value
    }

    fn block_statement(&mut self, block: &syn::Block, tail: Tail, out: &mut Vec<Stmt>) {
        let span = self.group(block.brace_token.span);
        let mut body = Vec::new();
        self.block(block, tail, &mut body);
        out.push(stmt(span, StmtKind::Block(body)));
    }

    fn assign(&mut self, expr: &syn::ExprAssign, out: &mut Vec<Stmt>) {
        let (target, start) = self.spanned(&expr.left);
        let (value, end) = self.spanned(&expr.right);
        let kind = StmtKind::Assign { targets: vec![target], value: Some(value), annotation: None };
        out.push(stmt(start.to(end), kind));
    }

    fn aug_assign(&mut self, expr: &syn::ExprBinary, out: &mut Vec<Stmt>) {
        let Some(op) = assign_op(&expr.op) else { return };
        let (target, start) = self.spanned(&expr.left);
        let (value, end) = self.spanned(&expr.right);
        out.push(stmt(start.to(end), StmtKind::AugAssign { target, op, value }));
    }

    fn jump(&mut self, expr: &syn::Expr, out: &mut Vec<Stmt>) {
        match expr {
            syn::Expr::Return(expr) => {
                let mut span = self.at(expr.return_token.span);
                let value = expr.expr.as_ref().map(|value| {
                    let (value, outer) = self.spanned(value);
                    span = span.to(outer);
                    value
                });
                out.push(stmt(span, StmtKind::Return(value)));
            }
            syn::Expr::Break(expr) => self.break_statement(expr, out),
            syn::Expr::Continue(expr) => {
                let mut span = self.at(expr.continue_token.span);
                if let Some(label) = &expr.label {
                    span = span.to(self.at(label.ident.span()));
                }
                let to_outer = self.leaves_innermost(expr.label.as_ref());
                let kind = if to_outer { StmtKind::Break } else { StmtKind::Continue };
                out.push(stmt(span, kind));
            }
            _ => {}
        }
    }

    /// A `continue` of a loop further out leaves this one.
    fn leaves_innermost(&self, label: Option<&syn::Lifetime>) -> bool {
        let Some(innermost) = self.loops.last() else { return false };
        match label {
            None => innermost.is_block,
            Some(label) => !innermost.is_called(label),
        }
    }

    fn break_statement(&mut self, expr: &syn::ExprBreak, out: &mut Vec<Stmt>) {
        let mut span = self.at(expr.break_token.span);
        if let Some(label) = &expr.label {
            span = span.to(self.at(label.ident.span()));
        }
        if let Some(value) = &expr.expr {
            let (value, outer) = self.spanned(value);
            let target = self.loops.iter_mut().rev().find(|context| match &expr.label {
                None => !context.is_block,
                Some(label) => context.is_called(label),
            });
            let name = target.and_then(|context| {
                context.has_value |= context.value.is_some();
                context.value
            });
            match name {
                Some(name) => out.push(assign_name(name, value)),
                None => out.push(stmt(outer, StmtKind::Expr(value))),
            }
        }
        out.push(stmt(span, StmtKind::Break));
    }
}

fn assign_name(name: Name, value: Expr) -> Stmt {
    let span = value.span;
    let targets = vec![Expr::new(span, ExprKind::Name(name))];
    stmt(span, StmtKind::Assign { targets, value: Some(value), annotation: None })
}

pub(super) fn value_statement(value: Expr, span: Span, tail: Tail) -> Stmt {
    match tail {
        Tail::Return => stmt(span, StmtKind::Return(Some(value))),
        Tail::Value | Tail::Drop => stmt(span, StmtKind::Expr(value)),
    }
}

/// Has no value or never gives it.
fn is_unit(expr: &syn::Expr) -> bool {
    match expr {
        syn::Expr::If(expr) => expr.else_branch.is_none(),
        syn::Expr::Binary(expr) => assign_op(&expr.op).is_some(),
        syn::Expr::Paren(expr) => is_unit(&expr.expr),
        syn::Expr::Group(expr) => is_unit(&expr.expr),
        syn::Expr::While(_)
        | syn::Expr::ForLoop(_)
        | syn::Expr::Assign(_)
        | syn::Expr::Return(_)
        | syn::Expr::Break(_)
        | syn::Expr::Continue(_) => true,
        _ => false,
    }
}

pub(super) fn assign_op(op: &syn::BinOp) -> Option<BinaryOp> {
    Some(match op {
        syn::BinOp::AddAssign(_) => BinaryOp::Add,
        syn::BinOp::SubAssign(_) => BinaryOp::Sub,
        syn::BinOp::MulAssign(_) => BinaryOp::Mul,
        syn::BinOp::DivAssign(_) => BinaryOp::Div,
        syn::BinOp::RemAssign(_) => BinaryOp::Mod,
        syn::BinOp::BitXorAssign(_) => BinaryOp::BitXor,
        syn::BinOp::BitAndAssign(_) => BinaryOp::BitAnd,
        syn::BinOp::BitOrAssign(_) => BinaryOp::BitOr,
        syn::BinOp::ShlAssign(_) => BinaryOp::LShift,
        syn::BinOp::ShrAssign(_) => BinaryOp::RShift,
        _ => return None,
    })
}
