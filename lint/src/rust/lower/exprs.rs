//! Expressions.

use super::patterns::negative;
use super::{Lower, Spanned, Tail, node, stmt};
use crate::model::{
    Argument, BinaryOp, BoolOp, CollectionKind, CompareOp, Expr, ExprKind, FunctionIndex, Literal,
    Name, Parameter, ParameterKind, Span, Spread, Stmt, StmtKind, UnaryOp,
};

/// Grow the stack when less than this is left.
pub(super) const RED_ZONE: usize = 128 * 1024;
/// By this much.
pub(super) const STACK: usize = 2 * 1024 * 1024;

type Expressions = syn::punctuated::Punctuated<syn::Expr, syn::Token![,]>;

impl Lower<'_> {
    pub(super) fn expr(&mut self, expr: &syn::Expr) -> Expr {
        self.spanned(expr).0
    }

    fn boxed(&mut self, expr: &syn::Expr) -> Box<Expr> {
        Box::new(self.expr(expr))
    }

    pub(super) fn spanned(&mut self, expr: &syn::Expr) -> Spanned {
        stacker::maybe_grow(RED_ZONE, STACK, || self.operand(expr))
    }

    /// What binds tightest: names, literals, calls and what is in brackets.
    fn operand(&mut self, expr: &syn::Expr) -> Spanned {
        match expr {
            syn::Expr::Path(expr) => self.path(expr.qself.as_ref(), &expr.path),
            syn::Expr::Lit(expr) => self.literal(&expr.lit),
            syn::Expr::Call(expr) => self.call(expr),
            syn::Expr::MethodCall(expr) => self.method_call(expr),
            syn::Expr::Field(expr) => {
                let (value, start) = self.spanned(&expr.base);
                let (name, name_span) = self.member_name(&expr.member);
                let kind = ExprKind::Attribute { value: Box::new(value), name, name_span };
                node(start.to(name_span), kind)
            }
            syn::Expr::Index(expr) => self.index(expr),
            syn::Expr::Macro(expr) => self.macro_expr(&expr.mac),
            syn::Expr::Struct(expr) => self.struct_literal(expr),
            syn::Expr::Closure(expr) => self.closure(expr),
            syn::Expr::Await(expr) => {
                let (value, start) = self.spanned(&expr.base);
                let span = start.to(self.at(expr.await_token.span));
                node(span, ExprKind::Await(Box::new(value)))
            }
            syn::Expr::Try(expr) => {
                let (value, start) = self.spanned(&expr.expr);
                let span = start.to(self.at(expr.question_token.span));
                node(span, ExprKind::Try(Box::new(value)))
            }
            syn::Expr::Array(expr) => {
                let span = self.group(expr.bracket_token.span);
                self.collection(CollectionKind::List, &expr.elems, span)
            }
            syn::Expr::Tuple(expr) => {
                let span = self.group(expr.paren_token.span);
                self.collection(CollectionKind::Tuple, &expr.elems, span)
            }
            syn::Expr::Repeat(expr) => {
                let span = self.group(expr.bracket_token.span);
                self.repeat(&expr.expr, &expr.len, span)
            }
            _ => self.operation(expr),
        }
    }

    fn operation(&mut self, expr: &syn::Expr) -> Spanned {
        match expr {
            syn::Expr::Reference(expr) => {
                self.transparent(self.at(expr.and_token.span), &expr.expr)
            }
            syn::Expr::RawAddr(expr) => self.transparent(self.at(expr.and_token.span), &expr.expr),
            syn::Expr::Paren(expr) => {
                self.transparent(self.group(expr.paren_token.span), &expr.expr)
            }
            syn::Expr::Group(expr) => self.spanned(&expr.expr),
            syn::Expr::Cast(expr) => {
                let (value, start) = self.spanned(&expr.expr);
                let (_, end) = self.ty(&expr.ty);
                (value, start.to(end))
            }
            syn::Expr::Unary(expr) => self.unary(expr),
            syn::Expr::Binary(expr) if super::stmts::assign_op(&expr.op).is_none() => {
                self.binary(expr)
            }
            syn::Expr::Range(expr) => self.range(expr),
            syn::Expr::Let(expr) => {
                let start = self.at(expr.let_token.span);
                let pattern = Box::new(self.pattern(&expr.pat).0);
                let (value, end) = self.spanned(&expr.expr);
                node(start.to(end), ExprKind::Let { pattern, value: Box::new(value) })
            }
            syn::Expr::Infer(expr) => {
                let span = self.at(expr.underscore_token.span);
                node(span, ExprKind::Name(Name::new("_")))
            }
            syn::Expr::Yield(expr) => {
                let start = self.at(expr.yield_token.span);
                let value = expr.expr.as_ref().map(|value| self.spanned(value));
                let span = value.as_ref().map_or(start, |(_, end)| start.to(*end));
                node(span, ExprKind::Yield(value.map(|(value, _)| Box::new(value))))
            }
            syn::Expr::Verbatim(tokens) => {
                node(self.tokens_span(tokens), ExprKind::Opaque(Vec::new()))
            }
            _ => self.flow(expr),
        }
    }

    /// Control flow used as an expression.
    fn flow(&mut self, expr: &syn::Expr) -> Spanned {
        match expr {
            syn::Expr::If(expr) => self.if_expr(expr),
            syn::Expr::Match(expr) => {
                let (subject, arms, span) = self.match_parts(expr, Tail::Value);
                node(span, ExprKind::Match { subject: Box::new(subject), arms })
            }
            syn::Expr::Loop(expr) => {
                let span = self.at(expr.loop_token.span);
                self.with_value(span, |lower, name, out| {
                    lower.loop_statement(expr, Some(name), out)
                })
            }
            syn::Expr::Block(expr) if expr.label.is_some() => {
                let span = self.open(expr.block.brace_token.span);
                self.with_value(span, |lower, name, out| lower.labelled(expr, Some(name), out))
            }
            syn::Expr::Block(expr) => self.block_expr(&expr.block, None),
            syn::Expr::Unsafe(expr) => {
                self.block_expr(&expr.block, Some(self.at(expr.unsafe_token.span)))
            }
            syn::Expr::Const(expr) => {
                self.block_expr(&expr.block, Some(self.at(expr.const_token.span)))
            }
            syn::Expr::Async(expr) => {
                self.scoped_block(&expr.block, self.at(expr.async_token.span))
            }
            syn::Expr::TryBlock(expr) => {
                self.scoped_block(&expr.block, self.at(expr.try_token.span))
            }
            // Assignments, jumps and loops without a value.
            _ => {
                let mut body = Vec::new();
                self.expr_statement(expr, None, &mut body);
                let span = joined(&body);
                node(span, ExprKind::Block { body, has_value: false })
            }
        }
    }

    fn transparent(&mut self, around: Span, inner: &syn::Expr) -> Spanned {
        let (expr, outer) = self.spanned(inner);
        (expr, around.to(outer))
    }

    /// The value of a loop is the name that its `break`s assign to. No source text can spell it.
    fn with_value(
        &mut self,
        at: Span,
        lower: impl FnOnce(&mut Self, Name, &mut Vec<Stmt>) -> bool,
    ) -> Spanned {
        let name = Name::new(&format!("<loop {}>", at.start));
        let mut body = Vec::new();
        let has_value = lower(self, name, &mut body);
        let span = joined(&body);
        if has_value {
            let value = Expr::new(at, ExprKind::Name(name));
            body.push(stmt(at, StmtKind::Expr(value)));
        }
        node(span.to(at), ExprKind::Block { body, has_value })
    }

    fn block_expr(&mut self, block: &syn::Block, keyword: Option<Span>) -> Spanned {
        let braces = self.group(block.brace_token.span);
        let span = keyword.map_or(braces, |keyword| keyword.to(braces));
        let mut body = Vec::new();
        let has_value = self.block(block, Tail::Value, &mut body);
        node(span, ExprKind::Block { body, has_value })
    }

    /// `break` cannot leave an `async` or `try` block.
    fn scoped_block(&mut self, block: &syn::Block, keyword: Span) -> Spanned {
        let loops = std::mem::take(&mut self.loops);
        let result = self.block_expr(block, Some(keyword));
        self.loops = loops;
        result
    }

    fn if_expr(&mut self, expr: &syn::ExprIf) -> Spanned {
        let start = self.at(expr.if_token.span);
        let test = self.boxed(&expr.cond);
        let (then, mut end) = self.block_expr(&expr.then_branch, None);
        let otherwise = if let Some((_, branch)) = &expr.else_branch {
            let (otherwise, outer) = self.spanned(branch);
            end = outer;
            otherwise
        } else {
            let span = Span { start: end.end, end: end.end };
            Expr::new(span, ExprKind::Block { body: Vec::new(), has_value: false })
        };
        let kind =
            ExprKind::Conditional { test, then: Box::new(then), otherwise: Box::new(otherwise) };
        node(start.to(end), kind)
    }

    pub(super) fn arguments(&mut self, expressions: &Expressions) -> Vec<Argument> {
        expressions.iter().map(|expr| self.argument(expr)).collect()
    }

    pub(super) fn argument(&mut self, expr: &syn::Expr) -> Argument {
        let (value, span) = self.spanned(expr);
        Argument { name: None, value, spread: Spread::No, span }
    }

    fn call(&mut self, expr: &syn::ExprCall) -> Spanned {
        let (callee, start) = self.spanned(&expr.func);
        let arguments = self.arguments(&expr.args);
        let span = start.to(self.group(expr.paren_token.span));
        node(span, ExprKind::Call { callee: Box::new(callee), arguments })
    }

    fn method_call(&mut self, expr: &syn::ExprMethodCall) -> Spanned {
        let (receiver, start) = self.spanned(&expr.receiver);
        let name_span = self.at(expr.method.span());
        let name = super::name_of(&expr.method);
        let kind = ExprKind::Attribute { value: Box::new(receiver), name, name_span };
        let callee = Box::new(Expr::new(start.to(name_span), kind));
        let arguments = self.arguments(&expr.args);
        let span = start.to(self.group(expr.paren_token.span));
        node(span, ExprKind::Call { callee, arguments })
    }

    fn index(&mut self, expr: &syn::ExprIndex) -> Spanned {
        let (value, start) = self.spanned(&expr.expr);
        let span = start.to(self.group(expr.bracket_token.span));
        let index = match &*expr.index {
            syn::Expr::Range(range) => self.slice(range),
            index => self.expr(index),
        };
        node(span, ExprKind::Index { value: Box::new(value), index: Box::new(index) })
    }

    fn slice(&mut self, range: &syn::ExprRange) -> Expr {
        let mut span = self.limits(&range.limits);
        let mut bound = |lower: &mut Self, expr: &syn::Expr| {
            let (expr, outer) = lower.spanned(expr);
            span = span.to(outer);
            Box::new(expr)
        };
        let lower = range.start.as_ref().map(|expr| bound(self, expr));
        let upper = range.end.as_ref().map(|expr| bound(self, expr));
        Expr::new(span, ExprKind::Slice { lower, upper, step: None })
    }

    fn limits(&self, limits: &syn::RangeLimits) -> Span {
        let spans: &[proc_macro2::Span] = match limits {
            syn::RangeLimits::HalfOpen(token) => &token.spans,
            syn::RangeLimits::Closed(token) => &token.spans,
        };
        self.at(spans[0]).to(self.at(spans[spans.len() - 1]))
    }

    pub(super) fn range(&mut self, expr: &syn::ExprRange) -> Spanned {
        let dots = self.limits(&expr.limits);
        let mut span = dots;
        let is_plain = expr.start.is_some()
            && expr.end.is_some()
            && matches!(expr.limits, syn::RangeLimits::HalfOpen(_));
        let end_name = match expr.limits {
            syn::RangeLimits::HalfOpen(_) => "end",
            syn::RangeLimits::Closed(_) => "last",
        };
        let start_name = if expr.end.is_some() { None } else { Some("start") };
        let bounds = [(&expr.start, start_name), (&expr.end, Some(end_name))];
        let mut arguments = Vec::with_capacity(2);
        for (bound, name) in bounds {
            let Some(bound) = bound else { continue };
            let mut argument = self.argument(bound);
            argument.name = if is_plain { None } else { name.map(Name::new) };
            span = span.to(argument.span);
            arguments.push(argument);
        }
        let callee = Box::new(Expr::new(dots, ExprKind::Name(Name::new("range"))));
        node(span, ExprKind::Call { callee, arguments })
    }

    fn unary(&mut self, expr: &syn::ExprUnary) -> Spanned {
        let (value, outer) = self.spanned(&expr.expr);
        let boxed = Box::new;
        match &expr.op {
            syn::UnOp::Not(token) => {
                node(self.at(token.span).to(outer), ExprKind::Not(boxed(value)))
            }
            syn::UnOp::Neg(token) => {
                let kind = ExprKind::Unary { op: UnaryOp::Minus, value: boxed(value) };
                node(self.at(token.span).to(outer), kind)
            }
            syn::UnOp::Deref(token) => (value, self.at(token.span).to(outer)),
            _ => node(outer, ExprKind::Opaque(vec![value])),
        }
    }

    fn binary(&mut self, expr: &syn::ExprBinary) -> Spanned {
        let (left, start) = self.spanned(&expr.left);
        let (right, end) = self.spanned(&expr.right);
        let span = start.to(end);
        if let Some(op) = bool_op(&expr.op) {
            let values = match left.kind {
                // `a && b && c` is one condition; `(a && b) && c` means the same.
                ExprKind::Bool { op: inner, mut values } if inner == op => {
                    values.push(right);
                    values
                }
                _ => vec![left, right],
            };
            return node(span, ExprKind::Bool { op, values });
        }
        if let Some(op) = compare_op(&expr.op) {
            let kind = ExprKind::Compare { left: Box::new(left), rest: vec![(op, right)] };
            return node(span, kind);
        }
        match binary_op(&expr.op) {
            Some(op) => {
                let (left, right) = (Box::new(left), Box::new(right));
                node(span, ExprKind::Binary { op, left, right })
            }
            None => node(span, ExprKind::Opaque(vec![left, right])),
        }
    }

    pub(super) fn collection(
        &mut self,
        kind: CollectionKind,
        elements: &Expressions,
        span: Span,
    ) -> Spanned {
        let items = elements.iter().map(|element| self.expr(element)).collect();
        node(span, ExprKind::Collection { kind, items })
    }

    pub(super) fn repeat(&mut self, value: &syn::Expr, count: &syn::Expr, span: Span) -> Spanned {
        let (value, outer) = self.spanned(value);
        let list = ExprKind::Collection { kind: CollectionKind::List, items: vec![value] };
        let left = Box::new(Expr::new(outer, list));
        let right = self.boxed(count);
        node(span, ExprKind::Binary { op: BinaryOp::Mul, left, right })
    }

    fn struct_literal(&mut self, expr: &syn::ExprStruct) -> Spanned {
        let (path, start) = self.path(expr.qself.as_ref(), &expr.path);
        let mut fields = Vec::with_capacity(expr.fields.len());
        for field in &expr.fields {
            let (name, _) = self.member_name(&field.member);
            fields.push((name, self.expr(&field.expr)));
        }
        let base = expr.rest.as_ref().map(|base| self.boxed(base));
        let span = start.to(self.group(expr.brace_token.span));
        node(span, ExprKind::Construct { path: Box::new(path), fields, base })
    }

    fn closure(&mut self, expr: &syn::ExprClosure) -> Spanned {
        let first = self.at(expr.inputs_begin.span);
        let start = match (expr.asyncness, expr.capture) {
            (Some(token), _) => self.at(token.span),
            (None, Some(token)) => self.at(token.span),
            (None, None) => first,
        };
        let start = start.to(expr.constness.map_or(start, |token| self.at(token.span)));
        let index = self.add_function(Name::new("<lambda>"), first, start);
        let parameters = expr.inputs.iter().map(|input| self.parameter(input)).collect();
        let returns = self.return_type(&expr.output);
        let loops = std::mem::take(&mut self.loops);
        let mut body = Vec::new();
        self.branch(&expr.body, Tail::Return, &mut body);
        self.loops = loops;
        let mut span = start.to(self.at(expr.inputs_end.span));
        span = match &*expr.body {
            syn::Expr::Block(block) => span.to(self.group(block.block.brace_token.span)),
            _ => body.iter().fold(span, |span, statement| span.to(statement.span)),
        };
        self.finish_closure(index, span, parameters, body);
        let function = self.function_mut(index);
        function.returns = returns;
        function.is_async = expr.asyncness.is_some();
        node(span, ExprKind::Lambda(index))
    }

    fn finish_closure(
        &mut self,
        index: FunctionIndex,
        span: Span,
        parameters: Vec<Parameter>,
        body: Vec<Stmt>,
    ) {
        let function = self.function_mut(index);
        function.name_span = span;
        function.span = span;
        function.parameters = parameters;
        function.body = body;
    }

    /// A parameter that is a pattern, with or without a type.
    pub(super) fn parameter(&mut self, pattern: &syn::Pat) -> Parameter {
        let (inner, annotation) = match pattern {
            syn::Pat::Type(pattern) => (&*pattern.pat, Some(&*pattern.ty)),
            pattern => (pattern, None),
        };
        let (pattern, mut span) = self.pattern(inner);
        let annotation = annotation.map(|ty| {
            let (ty, outer) = self.ty(ty);
            span = span.to(outer);
            ty
        });
        let (name, pattern) = match pattern.kind {
            ExprKind::Name(name) => (name, None),
            _ => (Name::new("_"), Some(pattern)),
        };
        let kind = ParameterKind::Positional;
        Parameter { name, pattern, span, annotation, default: None, kind }
    }

    pub(super) fn literal(&mut self, literal: &syn::Lit) -> Spanned {
        let span = self.at(literal.span());
        let value = match literal {
            syn::Lit::Str(text) => Some(Literal::Str(Name::new(&text.value()))),
            syn::Lit::ByteStr(_) | syn::Lit::CStr(_) => Some(Literal::Bytes),
            syn::Lit::Byte(byte) => Some(Literal::Int(i64::from(byte.value()))),
            syn::Lit::Char(char) => Some(Literal::Str(Name::new(&char.value().to_string()))),
            syn::Lit::Bool(bool) => Some(Literal::Bool(bool.value)),
            syn::Lit::Int(number) => return int(number, span),
            syn::Lit::Float(number) => return float(number, span),
            _ => None,
        };
        let kind = value.map_or(ExprKind::Opaque(Vec::new()), ExprKind::Literal);
        node(span, kind)
    }
}

fn int(number: &syn::LitInt, span: Span) -> Spanned {
    match number.base10_digits().parse::<i64>() {
        // `1f32` is an integer to `syn`.
        Ok(value) if number.suffix().starts_with('f') => {
            node(span, ExprKind::Literal(Literal::Float(value as f64)))
        }
        Ok(value) if value < 0 => negative(Literal::Int(value.wrapping_neg()), span),
        Ok(value) => node(span, ExprKind::Literal(Literal::Int(value))),
        Err(_) => node(span, ExprKind::Opaque(Vec::new())),
    }
}

fn float(number: &syn::LitFloat, span: Span) -> Spanned {
    match number.base10_digits().parse::<f64>() {
        Ok(value) if value.is_sign_negative() => negative(Literal::Float(-value), span),
        Ok(value) => node(span, ExprKind::Literal(Literal::Float(value))),
        Err(_) => node(span, ExprKind::Opaque(Vec::new())),
    }
}

/// The place from the first statement to the last.
fn joined(body: &[Stmt]) -> Span {
    let first = body.first().map_or(Span::default(), |first| first.span);
    body.iter().fold(first, |span, statement| span.to(statement.span))
}

fn bool_op(op: &syn::BinOp) -> Option<BoolOp> {
    match op {
        syn::BinOp::And(_) => Some(BoolOp::And),
        syn::BinOp::Or(_) => Some(BoolOp::Or),
        _ => None,
    }
}

fn compare_op(op: &syn::BinOp) -> Option<CompareOp> {
    Some(match op {
        syn::BinOp::Eq(_) => CompareOp::Eq,
        syn::BinOp::Ne(_) => CompareOp::NotEq,
        syn::BinOp::Lt(_) => CompareOp::Lt,
        syn::BinOp::Le(_) => CompareOp::LtE,
        syn::BinOp::Gt(_) => CompareOp::Gt,
        syn::BinOp::Ge(_) => CompareOp::GtE,
        _ => return None,
    })
}

fn binary_op(op: &syn::BinOp) -> Option<BinaryOp> {
    Some(match op {
        syn::BinOp::Add(_) => BinaryOp::Add,
        syn::BinOp::Sub(_) => BinaryOp::Sub,
        syn::BinOp::Mul(_) => BinaryOp::Mul,
        syn::BinOp::Div(_) => BinaryOp::Div,
        syn::BinOp::Rem(_) => BinaryOp::Mod,
        syn::BinOp::BitXor(_) => BinaryOp::BitXor,
        syn::BinOp::BitAnd(_) => BinaryOp::BitAnd,
        syn::BinOp::BitOr(_) => BinaryOp::BitOr,
        syn::BinOp::Shl(_) => BinaryOp::LShift,
        syn::BinOp::Shr(_) => BinaryOp::RShift,
        _ => return None,
    })
}
