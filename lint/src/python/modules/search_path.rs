//! Which texts in a file name folders for `sys.path`.

use rustc_hash::FxHashSet;

use crate::model::{Expr, ExprKind, Literal, Name, Span, Stmt, StmtKind};
use crate::project::SourceFile;
use crate::python::walk::{self, Node};

/// A file this short that changes `sys.path` does nothing else.
const PATH_FILE_BYTES_MAX: usize = 2048;

/// Texts that go into `sys.path`: those in calls of `sys.path.append(..)` and `insert(..)`
/// and in what is assigned to the names used there; all texts of a small file that is only
/// about the path.
pub fn literals(file: &SourceFile) -> Vec<&'static str> {
    if !file.text.contains("sys.path") {
        return Vec::new();
    }
    if file.text.len() <= PATH_FILE_BYTES_MAX {
        return texts(file, |_| true);
    }
    let mut places = Vec::new();
    walk::everything(&file.module, |_, node| {
        if let Node::Expr(expr @ Expr { kind: ExprKind::Call { callee, .. }, .. }) = node
            && callee.path().is_some_and(|path| is_path_change(&path))
        {
            places.push(expr.span);
        }
    });
    let is_in = |places: &[Span], at: Span| places.iter().any(|place| place.contains(at));
    let mut names: FxHashSet<Name> = FxHashSet::default();
    walk::everything(&file.module, |_, node| {
        if let Node::Expr(Expr { kind: ExprKind::Name(name), span }) = node
            && is_in(&places, *span)
        {
            names.insert(*name);
        }
    });
    walk::everything(&file.module, |_, node| {
        if let Node::Stmt(Stmt { kind: StmtKind::Assign { targets, .. }, span }) = node
            && targets.iter().any(|t| matches!(t.kind, ExprKind::Name(n) if names.contains(&n)))
        {
            places.push(*span);
        }
    });
    texts(file, |at| is_in(&places, at))
}

fn is_path_change(path: &[Name]) -> bool {
    let parts: Vec<&str> = path.iter().map(|part| part.as_str()).collect();
    matches!(parts[..], ["sys", "path", "append" | "insert" | "extend"] | [.., "addsitedir"])
}

fn texts(file: &SourceFile, wanted: impl Fn(Span) -> bool) -> Vec<&'static str> {
    let mut texts = Vec::new();
    walk::everything(&file.module, |_, node| {
        if let Node::Expr(Expr { kind: ExprKind::Literal(Literal::Str(text)), span }) = node
            && wanted(*span)
        {
            texts.push(text.as_str());
        }
    });
    texts
}
