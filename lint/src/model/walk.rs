//! The parts that statements and expressions are made of, one level down, for code that looks
//! for something in a body. It decides nothing.

use super::{
    Arm, ClassIndex, Expr, ExprKind, FormatPiece, FunctionIndex, LoopHeader, Stmt, StmtKind,
};

/// Something that stands directly inside a statement or expression.
#[derive(Clone, Copy, Debug)]
pub enum Part<'m> {
    Expr(&'m Expr),
    /// Written to, not read: the target of an assignment, a loop or a `with`.
    Target(&'m Expr),
    Block(&'m [Stmt]),
    /// A function or lambda that is defined here.
    Function(FunctionIndex),
    Class(ClassIndex),
}

impl Stmt {
    /// Calls a function for each part, in source order.
    pub fn each_part<'m>(&'m self, each: &mut dyn FnMut(Part<'m>)) {
        match &self.kind {
            StmtKind::Expr(value) => each(Part::Expr(value)),
            StmtKind::Assign { targets, value, .. } => {
                each_of(each, value);
                for target in targets {
                    each(Part::Target(target));
                }
            }
            StmtKind::AugAssign { target, value, .. } => {
                each(Part::Expr(value));
                each(Part::Target(target));
            }
            StmtKind::If { test, body, otherwise } => {
                each(Part::Expr(test));
                each(Part::Block(body));
                each(Part::Block(otherwise));
            }
            StmtKind::Loop { header, body, otherwise } => {
                match header {
                    LoopHeader::For { target, iter } => {
                        each(Part::Expr(iter));
                        each(Part::Target(target));
                    }
                    LoopHeader::While { test } => each(Part::Expr(test)),
                    LoopHeader::Forever => {}
                }
                each(Part::Block(body));
                each(Part::Block(otherwise));
            }
            StmtKind::With { items, body } => {
                for item in items {
                    each(Part::Expr(&item.context));
                    if let Some(target) = &item.target {
                        each(Part::Target(target));
                    }
                }
                each(Part::Block(body));
            }
            StmtKind::Match { subject, arms } => {
                each(Part::Expr(subject));
                each_arm(arms, each);
            }
            StmtKind::Try { body, handlers, otherwise, finally } => {
                each(Part::Block(body));
                for handler in handlers {
                    each(Part::Block(&handler.body));
                }
                each(Part::Block(otherwise));
                each(Part::Block(finally));
            }
            StmtKind::Return(value) | StmtKind::Raise(value) => each_of(each, value),
            StmtKind::Assert { test, message } => {
                each_of(each, [test].into_iter().chain(message));
            }
            StmtKind::Function(index) => each(Part::Function(*index)),
            StmtKind::Class(index) => each(Part::Class(*index)),
            StmtKind::Delete(targets) => each_of(each, targets),
            StmtKind::Block(body) => each(Part::Block(body)),
            StmtKind::Break
            | StmtKind::Continue
            | StmtKind::Import(_)
            | StmtKind::Outer(_)
            | StmtKind::Pass => {}
        }
    }
}

impl Expr {
    /// Calls a function for each part, in source order.
    pub fn each_part<'m>(&'m self, each: &mut dyn FnMut(Part<'m>)) {
        match &self.kind {
            ExprKind::Name(_) | ExprKind::Literal(_) => {}
            ExprKind::Attribute { value, .. }
            | ExprKind::Not(value)
            | ExprKind::Unary { value, .. }
            | ExprKind::Await(value)
            | ExprKind::Starred(value)
            | ExprKind::Try(value) => each(Part::Expr(value)),
            ExprKind::Call { callee, arguments } => {
                each(Part::Expr(callee));
                each_of(each, arguments.iter().map(|a| &a.value));
            }
            ExprKind::Index { value, index } => each_of(each, [&**value, &**index]),
            ExprKind::Slice { lower, upper, step } => {
                each_of(each, [lower, upper, step].into_iter().flatten().map(|e| &**e));
            }
            ExprKind::Compare { left, rest } => {
                each(Part::Expr(left));
                each_of(each, rest.iter().map(|(_, e)| e));
            }
            ExprKind::Bool { values: items, .. }
            | ExprKind::Collection { items, .. }
            | ExprKind::Opaque(items) => each_of(each, items),
            ExprKind::Binary { left, right, .. } => each_of(each, [&**left, &**right]),
            ExprKind::Conditional { test, then, otherwise } => {
                each_of(each, [&**test, &**then, &**otherwise]);
            }
            ExprKind::Dict(items) => {
                for (key, value) in items {
                    each_of(each, key.iter().chain([value]));
                }
            }
            ExprKind::Comprehension { element, clauses, .. } => {
                for clause in clauses {
                    each(Part::Expr(&clause.iter));
                    each(Part::Target(&clause.target));
                    each_of(each, &clause.tests);
                }
                each(Part::Expr(element));
            }
            ExprKind::Lambda(index) => each(Part::Function(*index)),
            ExprKind::Format(pieces) => {
                for piece in pieces {
                    if let FormatPiece::Value(value) = piece {
                        each(Part::Expr(value));
                    }
                }
            }
            ExprKind::Yield(value) => each_of(each, value.as_deref()),
            ExprKind::Walrus { target, value } | ExprKind::Let { pattern: target, value } => {
                each(Part::Expr(value));
                each(Part::Target(target));
            }
            ExprKind::Block { body, .. } => each(Part::Block(body)),
            ExprKind::Match { subject, arms } => {
                each(Part::Expr(subject));
                each_arm(arms, each);
            }
            ExprKind::Construct { fields, base, .. } => {
                each_of(each, fields.iter().map(|(_, value)| value));
                each_of(each, base.as_deref());
            }
        }
    }

    /// Calls a function for this expression and every one inside it; not for what the bodies of
    /// lambdas and blocks hold.
    pub fn each_inside<'m>(&'m self, each: &mut dyn FnMut(&'m Expr)) {
        each(self);
        self.each_part(&mut |part| match part {
            Part::Expr(inner) | Part::Target(inner) => inner.each_inside(each),
            Part::Block(_) | Part::Function(_) | Part::Class(_) => {}
        });
    }

    /// This expression or one inside it is so.
    pub fn holds<'m>(&'m self, wanted: &mut dyn FnMut(&'m Expr) -> bool) -> bool {
        let mut found = false;
        self.each_inside(&mut |expr| found = found || wanted(expr));
        found
    }
}

/// Some expression in these statements is so. What functions and classes hold that are defined
/// there is not part of them.
pub fn any_expr<'m>(body: &'m [Stmt], wanted: &mut dyn FnMut(&'m Expr) -> bool) -> bool {
    body.iter().any(|statement| {
        let mut found = false;
        statement.each_part(&mut |part| found = found || any_in_part(part, wanted));
        found
    })
}

fn any_in_part<'m>(part: Part<'m>, wanted: &mut dyn FnMut(&'m Expr) -> bool) -> bool {
    match part {
        Part::Expr(expr) | Part::Target(expr) => {
            let mut found = wanted(expr);
            expr.each_part(&mut |part| found = found || any_in_part(part, wanted));
            found
        }
        Part::Block(body) => any_expr(body, wanted),
        Part::Function(_) | Part::Class(_) => false,
    }
}

fn each_of<'m>(each: &mut dyn FnMut(Part<'m>), exprs: impl IntoIterator<Item = &'m Expr>) {
    exprs.into_iter().for_each(|expr| each(Part::Expr(expr)));
}

fn each_arm<'m>(arms: &'m [Arm], each: &mut dyn FnMut(Part<'m>)) {
    for arm in arms {
        each_of(each, [&arm.pattern].into_iter().chain(&arm.guard));
        each(Part::Block(&arm.body));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::Module;

    fn names(module: &Module, body: &[Stmt], found: &mut Vec<String>) {
        for statement in body {
            statement.each_part(&mut |part| match part {
                Part::Expr(expr) | Part::Target(expr) => expr.each_inside(&mut |e| {
                    if let ExprKind::Name(name) = &e.kind {
                        found.push(name.to_string());
                    }
                }),
                Part::Block(body) => names(module, body, found),
                Part::Function(index) => names(module, &module.function(index).body, found),
                Part::Class(index) => names(module, &module.class(index).body, found),
            });
        }
    }

    #[test]
    fn every_name_of_a_body_is_met() {
        let source = "
for a in b:
    with c as d: e = [f for g in h if i]
    try: j()
    except K: l[m:n] = {o: p}
    else: q = r if s else (t, *u)
class V(w):
    def x(self): return f'{y}' and not z
while aa: ab += -ac; del ad
assert ae, af
";
        let module = crate::python::lower(source);
        let mut found = Vec::new();
        names(&module, &module.body, &mut found);
        let is_named = |wanted: &str| {
            any_expr(
                &module.body,
                &mut |e| matches!(&e.kind, ExprKind::Name(name) if &**name == wanted),
            )
        };
        assert!(is_named("ac") && is_named("f") && !is_named("y"));
        let expected = "b a c d h g i f e j o p l m n s r t u q y z aa ac ab ad ae af";
        let mut expected: Vec<&str> = expected.split(' ').collect();
        let mut found: Vec<&str> = found.iter().map(String::as_str).collect();
        expected.sort_unstable();
        found.sort_unstable();
        assert_eq!(found, expected);
    }
}
