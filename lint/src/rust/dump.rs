//! The model as compact text, for expected values in tests.

use std::fmt::Write;

use crate::model::{
    Argument, Arm, BinaryOp, BoolOp, Class, CollectionKind, CompareOp, Expr, ExprKind, FormatPiece,
    Function, FunctionIndex, Imported, Literal, LoopHeader, Module, Spread, Stmt, StmtKind,
    UnaryOp,
};

/// Statements of the file, then its `impl`s.
pub(super) fn dump(module: &Module) -> String {
    let dump = Dump { module };
    let mut out = String::new();
    dump.stmts(&module.body, 0, &mut out);
    for block in &module.impls {
        let of_trait = block.of_trait.as_ref().map(|name| format!("{} for ", dump.expr(name)));
        let target = dump.expr(&block.target);
        let _ = writeln!(out, "impl {}{target}", of_trait.unwrap_or_default());
        for &method in &block.methods {
            dump.function(module.function(method), 1, &mut out);
        }
    }
    out
}

struct Dump<'m> {
    module: &'m Module,
}

impl Dump<'_> {
    fn stmts(&self, stmts: &[Stmt], depth: usize, out: &mut String) {
        for stmt in stmts {
            self.stmt(&stmt.kind, depth, out);
        }
    }

    fn stmt(&self, kind: &StmtKind, depth: usize, out: &mut String) {
        let inner = depth + 1;
        let text = match kind {
            StmtKind::Expr(expr) => self.expr(expr),
            StmtKind::Assign { targets, value, annotation } => {
                let targets: Vec<_> = targets.iter().map(|target| self.expr(target)).collect();
                let ty = annotation.as_ref().map(|ty| format!(": {}", self.expr(ty)));
                let value = value.as_ref().map(|value| format!(" = {}", self.expr(value)));
                let (ty, value) = (ty.unwrap_or_default(), value.unwrap_or_default());
                format!("{}{ty}{value}", targets.join(" = "))
            }
            StmtKind::AugAssign { target, op, value } => {
                format!("{} {}= {}", self.expr(target), binary(*op), self.expr(value))
            }
            StmtKind::If { test, body, otherwise } => {
                line(depth, &format!("if {}", self.expr(test)), out);
                self.stmts(body, inner, out);
                if !otherwise.is_empty() {
                    line(depth, "else", out);
                    self.stmts(otherwise, inner, out);
                }
                return;
            }
            StmtKind::Loop { header, body, .. } => {
                let header = match header {
                    LoopHeader::For { target, iter } => {
                        format!("for {} in {}", self.expr(target), self.expr(iter))
                    }
                    LoopHeader::While { test } => format!("while {}", self.expr(test)),
                    LoopHeader::Forever => "loop".into(),
                };
                line(depth, &header, out);
                return self.stmts(body, inner, out);
            }
            StmtKind::Match { subject, arms } => {
                line(depth, &format!("match {}", self.expr(subject)), out);
                for arm in arms {
                    line(inner, &self.arm_head(arm), out);
                    self.stmts(&arm.body, inner + 1, out);
                }
                return;
            }
            StmtKind::Block(body) => {
                line(depth, "block", out);
                return self.stmts(body, inner, out);
            }
            StmtKind::Function(index) => {
                return self.function(self.module.function(*index), depth, out);
            }
            StmtKind::Class(index) => return self.class(self.module.class(*index), depth, out),
            _ => self.simple(kind),
        };
        line(depth, &text, out);
    }

    fn class(&self, class: &Class, depth: usize, out: &mut String) {
        self.decorators(&class.decorators, depth, out);
        let mut head = format!("{:?} {}", class.kind, class.name);
        for base in &class.bases {
            let _ = write!(head, " < {}", self.expr(base));
        }
        if !class.variants.is_empty() {
            let names: Vec<_> = class.variants.iter().map(|name| name.as_str()).collect();
            let _ = write!(head, " ({})", names.join(", "));
        }
        line(depth, &head, out);
        for field in &class.fields {
            self.decorators(&field.decorators, depth + 1, out);
            let ty = field.annotation.as_ref().map_or(String::new(), |ty| self.expr(ty));
            line(depth + 1, &format!(".{}: {ty}", field.name), out);
        }
        for &method in &class.methods {
            self.function(self.module.function(method), depth + 1, out);
        }
    }

    fn simple(&self, kind: &StmtKind) -> String {
        let with = |word: &str, value: &Option<Expr>| match value {
            Some(value) => format!("{word} {}", self.expr(value)),
            None => word.into(),
        };
        match kind {
            StmtKind::Return(value) => with("return", value),
            StmtKind::Raise(value) => with("raise", value),
            StmtKind::Break => "break".into(),
            StmtKind::Continue => "continue".into(),
            StmtKind::Pass => "pass".into(),
            StmtKind::Assert { test, message } => {
                let message = message.as_ref().map(|text| format!(", {}", self.expr(text)));
                format!("assert {}{}", self.expr(test), message.unwrap_or_default())
            }
            StmtKind::Import(import) => {
                let what = match &import.what {
                    Imported::Module => "module".into(),
                    Imported::Member(name) => format!(".{name}"),
                    Imported::All => ".*".into(),
                };
                format!("import {} {what} as {}", import.module, import.binding)
            }
            _ => unreachable!("rust has no such statement: {kind:?}"),
        }
    }

    fn decorators(&self, decorators: &[Expr], depth: usize, out: &mut String) {
        for decorator in decorators {
            line(depth, &format!("@{}", self.expr(decorator)), out);
        }
    }

    fn function(&self, function: &Function, depth: usize, out: &mut String) {
        self.decorators(&function.decorators, depth, out);
        line(depth, &self.head("fn ", function), out);
        self.stmts(&function.body, depth + 1, out);
    }

    fn head(&self, keyword: &str, function: &Function) -> String {
        let parameters: Vec<_> = function
            .parameters
            .iter()
            .map(|parameter| {
                let pattern = parameter.pattern.as_ref().map(|p| format!("={}", self.expr(p)));
                let ty = parameter.annotation.as_ref().map(|ty| format!(": {}", self.expr(ty)));
                let (pattern, ty) = (pattern.unwrap_or_default(), ty.unwrap_or_default());
                format!("{}{pattern}{ty}", parameter.name)
            })
            .collect();
        let returns = function.returns.as_ref().map(|ty| format!(" -> {}", self.expr(ty)));
        let is_async = if function.is_async { "async " } else { "" };
        let returns = returns.unwrap_or_default();
        format!("{is_async}{keyword}{}({}){returns}", function.name, parameters.join(", "))
    }

    fn arm_head(&self, arm: &Arm) -> String {
        let guard = arm.guard.as_ref().map(|guard| format!(" if {}", self.expr(guard)));
        format!("{}{} =>", self.expr(&arm.pattern), guard.unwrap_or_default())
    }

    /// Statements in one line: `{ a; b; => value }`.
    fn inline(&self, body: &[Stmt], has_value: bool) -> String {
        let mut text = String::new();
        self.stmts(body, 0, &mut text);
        let mut lines: Vec<String> = text.lines().map(|line| line.trim().to_owned()).collect();
        if has_value && let Some(last) = lines.last_mut() {
            *last = format!("=> {last}");
        }
        format!("{{ {} }}", lines.join("; "))
    }

    fn lambda(&self, index: FunctionIndex) -> String {
        let function = self.module.function(index);
        format!("{} {}", self.head("", function), self.inline(&function.body, false))
    }

    fn list(&self, items: &[Expr]) -> String {
        items.iter().map(|item| self.expr(item)).collect::<Vec<_>>().join(", ")
    }

    fn arguments(&self, arguments: &[Argument]) -> String {
        let argument = |argument: &Argument| {
            assert_eq!(argument.spread, Spread::No);
            let name = argument.name.map(|name| format!("{name}=")).unwrap_or_default();
            format!("{name}{}", self.expr(&argument.value))
        };
        arguments.iter().map(argument).collect::<Vec<_>>().join(", ")
    }

    fn expr(&self, expr: &Expr) -> String {
        let one = |expr: &Expr| self.expr(expr);
        let maybe = |e: &Option<Box<Expr>>| e.as_ref().map_or(String::new(), |e| self.expr(e));
        match &expr.kind {
            ExprKind::Name(name) => name.to_string(),
            ExprKind::Attribute { value, name, .. } => format!("{}.{name}", one(value)),
            ExprKind::Call { callee, arguments } => {
                format!("{}({})", one(callee), self.arguments(arguments))
            }
            ExprKind::Index { value, index } => format!("{}[{}]", one(value), one(index)),
            ExprKind::Slice { lower, upper, .. } => format!("{}:{}", maybe(lower), maybe(upper)),
            ExprKind::Literal(literal) => literal_text(literal),
            ExprKind::Compare { left, rest } => {
                let mut text = one(left);
                for (op, right) in rest {
                    let _ = write!(text, " {} {}", compare(*op), one(right));
                }
                format!("({text})")
            }
            ExprKind::Bool { op, values } => {
                let op = if *op == BoolOp::And { " && " } else { " || " };
                format!("({})", values.iter().map(one).collect::<Vec<_>>().join(op))
            }
            ExprKind::Not(value) => format!("!{}", one(value)),
            ExprKind::Binary { op, left, right } => {
                format!("({} {} {})", one(left), binary(*op), one(right))
            }
            ExprKind::Unary { op: UnaryOp::Minus, value } => format!("-{}", one(value)),
            ExprKind::Collection { kind: CollectionKind::Tuple, items } => {
                format!("({},)", self.list(items))
            }
            ExprKind::Collection { kind: CollectionKind::List, items } => {
                format!("[{}]", self.list(items))
            }
            _ => self.rare(expr),
        }
    }

    fn rare(&self, expr: &Expr) -> String {
        let one = |expr: &Expr| self.expr(expr);
        match &expr.kind {
            ExprKind::Conditional { test, then, otherwise } => {
                format!("if {} {} else {}", one(test), one(then), one(otherwise))
            }
            ExprKind::Lambda(index) => self.lambda(*index),
            ExprKind::Format(pieces) => {
                let piece = |piece: &FormatPiece| match piece {
                    FormatPiece::Text(text) => format!("{text:?}"),
                    FormatPiece::Value(value) => one(value),
                };
                format!("f<{}>", pieces.iter().map(piece).collect::<Vec<_>>().join(" "))
            }
            ExprKind::Await(value) => format!("{}.await", one(value)),
            ExprKind::Yield(value) => {
                format!("yield {}", value.as_ref().map_or(String::new(), |value| one(value)))
            }
            ExprKind::Starred(value) => format!("*{}", one(value)),
            ExprKind::Try(value) => format!("{}?", one(value)),
            ExprKind::Walrus { target, value } => format!("{} @ {}", one(target), one(value)),
            ExprKind::Let { pattern, value } => format!("(let {} = {})", one(pattern), one(value)),
            ExprKind::Block { body, has_value } => self.inline(body, *has_value),
            ExprKind::Match { subject, arms } => {
                let arm =
                    |arm: &Arm| format!("{} {}", self.arm_head(arm), self.inline(&arm.body, false));
                let arms: Vec<_> = arms.iter().map(arm).collect();
                format!("match {} {{ {} }}", one(subject), arms.join(", "))
            }
            ExprKind::Construct { path, fields, base } => {
                let mut parts: Vec<_> =
                    fields.iter().map(|(name, value)| format!("{name}: {}", one(value))).collect();
                parts.extend(base.as_ref().map(|base| format!("..{}", one(base))));
                format!("{} {{ {} }}", one(path), parts.join(", "))
            }
            ExprKind::Opaque(parts) => format!("opaque<{}>", self.list(parts)),
            kind => unreachable!("rust has no such expression: {kind:?}"),
        }
    }
}

fn binary(op: BinaryOp) -> &'static str {
    match op {
        BinaryOp::Add => "+",
        BinaryOp::Sub => "-",
        BinaryOp::Mul => "*",
        BinaryOp::Div => "/",
        BinaryOp::FloorDiv => "//",
        BinaryOp::Mod => "%",
        BinaryOp::Pow => "**",
        BinaryOp::MatMul => "@",
        BinaryOp::BitAnd => "&",
        BinaryOp::BitOr => "|",
        BinaryOp::BitXor => "^",
        BinaryOp::LShift => "<<",
        BinaryOp::RShift => ">>",
    }
}

fn compare(op: CompareOp) -> &'static str {
    match op {
        CompareOp::Eq => "==",
        CompareOp::NotEq => "!=",
        CompareOp::Lt => "<",
        CompareOp::LtE => "<=",
        CompareOp::Gt => ">",
        CompareOp::GtE => ">=",
        CompareOp::Is | CompareOp::IsNot | CompareOp::In | CompareOp::NotIn => "in",
    }
}

fn line(depth: usize, text: &str, out: &mut String) {
    let _ = writeln!(out, "{}{text}", "  ".repeat(depth));
}

fn literal_text(literal: &Literal) -> String {
    match literal {
        Literal::None => "None".into(),
        Literal::Bool(value) => value.to_string(),
        Literal::Int(value) => value.to_string(),
        Literal::Float(value) => format!("{value:?}"),
        Literal::Str(text) => format!("{text:?}"),
        Literal::Bytes => "b\"\"".into(),
        Literal::Ellipsis => "...".into(),
    }
}
