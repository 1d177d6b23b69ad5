//! The program model: one small syntax tree that both languages lower to.
//!
//! Front ends build it, the interpreter walks it, rules read it. It holds no facts that
//! need more than one file; those are computed by `analysis`. Nothing here names a parser.

mod walk;

use std::fmt;

pub use crate::name::Name;
pub use walk::{Part, any_expr};

/// A byte range in one file, end exclusive.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug, Default)]
pub struct Span {
    pub start: u32,
    pub end: u32,
}

impl Span {
    pub fn new(start: impl TryInto<u32>, end: impl TryInto<u32>) -> Self {
        let clip = |n: Option<u32>| n.unwrap_or(u32::MAX);
        Self { start: clip(start.try_into().ok()), end: clip(end.try_into().ok()) }
    }

    pub fn range(self) -> std::ops::Range<usize> {
        self.start as usize..self.end as usize
    }

    pub fn contains(self, other: Span) -> bool {
        self.start <= other.start && other.end <= self.end
    }

    #[must_use]
    pub fn to(self, other: Span) -> Span {
        Span { start: self.start.min(other.start), end: self.end.max(other.end) }
    }
}

#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub struct FileId(pub u32);

/// A place in the project. Also the identity of the expression that stands there.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub struct Site {
    pub file: FileId,
    pub span: Span,
}

#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Language {
    Python,
    Rust,
}

/// One lowered source file. What could not be parsed is missing from `body` and told in
/// `errors`; lowering itself never fails.
#[derive(Debug)]
pub struct Module {
    pub language: Language,
    /// Top-level statements, functions and classes as `Define`s among them, in source order.
    /// Rust items count as statements; the interpreter hoists `Define` and `Import` there.
    pub body: Vec<Stmt>,
    /// Arena: every function, method, lambda and closure of the file.
    pub functions: Vec<Function>,
    /// Arena: every class; in Rust every struct, enum and trait.
    pub classes: Vec<Class>,
    /// Rust `impl` blocks. The project attaches them to classes, also across files.
    pub impls: Vec<Impl>,
    /// Comments in source order, without the comment sign; for suppressions and declarations.
    pub comments: Vec<Comment>,
    pub errors: Vec<ParseError>,
    /// Has `if __name__ == "__main__"` (Python), or a `fn main` (Rust).
    pub has_main: bool,
}

#[derive(Debug, Clone)]
pub struct Comment {
    /// From the comment sign to the end of the comment.
    pub span: Span,
    /// The text behind the sign, trimmed.
    pub text: Box<str>,
    /// Nothing but white space stands before it on its line.
    pub own_line: bool,
}

#[derive(Debug, Clone)]
pub struct ParseError {
    pub span: Span,
    /// Lowercase, no final stop.
    pub message: String,
}

/// Index into `Module::functions` of the same file.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct FunctionIndex(pub u32);
/// Index into `Module::classes` of the same file.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct ClassIndex(pub u32);

#[derive(Debug)]
pub struct Function {
    /// `<lambda>` for lambdas and closures.
    pub name: Name,
    pub name_span: Span,
    /// Decorators or attributes included.
    pub span: Span,
    pub parameters: Vec<Parameter>,
    /// A lambda's body is one `Return`. In Rust the tail expression is a `Return` with
    /// `StmtKind::Return` spanning that expression.
    pub body: Vec<Stmt>,
    /// Python decorators; Rust attributes, `#[a::b(c)]` as the call `a.b(c)` where it parses.
    pub decorators: Vec<Expr>,
    /// The class that directly holds it.
    pub class: Option<ClassIndex>,
    /// Python return annotation; Rust return type.
    pub returns: Option<Expr>,
    pub is_async: bool,
    /// Contains `yield`.
    pub is_generator: bool,
}

#[derive(Debug)]
pub struct Parameter {
    /// `self` for Rust receivers. Patterns other than a name: `_`, with `pattern` set.
    pub name: Name,
    pub pattern: Option<Expr>,
    pub span: Span,
    pub annotation: Option<Expr>,
    pub default: Option<Expr>,
    pub kind: ParameterKind,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ParameterKind {
    Positional,
    KeywordOnly,
    /// `*args`
    Rest,
    /// `**kwargs`
    Keywords,
}

#[derive(Debug)]
pub struct Class {
    pub name: Name,
    pub name_span: Span,
    pub span: Span,
    /// Python bases; Rust: the derived and implemented traits are in `Impl`s instead.
    pub bases: Vec<Expr>,
    pub decorators: Vec<Expr>,
    /// Declared fields: Rust struct fields (tuple structs: `0`, `1` …), Python annotated class
    /// attributes (dataclasses).
    pub fields: Vec<Field>,
    /// Methods written inside the class body (Python) or the trait (Rust defaults).
    pub methods: Vec<FunctionIndex>,
    /// Python class body, `Define`s included; empty in Rust.
    pub body: Vec<Stmt>,
    pub kind: ClassKind,
    /// Rust enum variants by name; empty elsewhere.
    pub variants: Vec<Name>,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ClassKind {
    Class,
    Struct,
    Enum,
    Trait,
}

#[derive(Debug)]
pub struct Field {
    pub name: Name,
    pub span: Span,
    pub annotation: Option<Expr>,
    pub default: Option<Expr>,
    pub decorators: Vec<Expr>,
}

/// `impl Trait for Type { .. }`
#[derive(Debug)]
pub struct Impl {
    pub span: Span,
    /// The type as a path expression; generics as `Index`.
    pub target: Expr,
    pub of_trait: Option<Expr>,
    pub decorators: Vec<Expr>,
    pub methods: Vec<FunctionIndex>,
}

#[derive(Debug)]
pub struct Stmt {
    pub span: Span,
    pub kind: StmtKind,
}

#[derive(Debug)]
pub enum StmtKind {
    Expr(Expr),
    /// `a = b = value`; Rust `let` (pattern as target). `value` is `None` for a bare
    /// declaration. A target is a name, attribute, index, or a collection of targets.
    Assign {
        targets: Vec<Expr>,
        value: Option<Expr>,
        annotation: Option<Expr>,
    },
    AugAssign {
        target: Expr,
        op: BinaryOp,
        value: Expr,
    },
    If {
        test: Expr,
        body: Vec<Stmt>,
        otherwise: Vec<Stmt>,
    },
    Loop {
        header: LoopHeader,
        body: Vec<Stmt>,
        otherwise: Vec<Stmt>,
    },
    With {
        items: Vec<WithItem>,
        body: Vec<Stmt>,
    },
    Match {
        subject: Expr,
        arms: Vec<Arm>,
    },
    Try {
        body: Vec<Stmt>,
        handlers: Vec<Handler>,
        otherwise: Vec<Stmt>,
        finally: Vec<Stmt>,
    },
    Return(Option<Expr>),
    Break,
    Continue,
    Raise(Option<Expr>),
    Assert {
        test: Expr,
        message: Option<Expr>,
    },
    Import(Import),
    Function(FunctionIndex),
    Class(ClassIndex),
    /// Python `global` and `nonlocal`.
    Outer(Vec<Name>),
    Delete(Vec<Expr>),
    /// Statements of their own scope (a Rust block, an inline `mod`).
    Block(Vec<Stmt>),
    Pass,
}

#[derive(Debug)]
pub enum LoopHeader {
    For {
        target: Expr,
        iter: Expr,
    },
    While {
        test: Expr,
    },
    /// Rust `loop`.
    Forever,
}

#[derive(Debug)]
pub struct WithItem {
    pub context: Expr,
    pub target: Option<Expr>,
}

#[derive(Debug)]
pub struct Arm {
    pub span: Span,
    /// Names bind, literals and paths test, `_` is the name `_`; alternatives are a
    /// `Bool { op: Or }`. Anything else: `Opaque`.
    pub pattern: Expr,
    pub guard: Option<Expr>,
    pub body: Vec<Stmt>,
}

#[derive(Debug)]
pub struct Handler {
    pub span: Span,
    pub types: Option<Expr>,
    pub name: Option<Name>,
    pub body: Vec<Stmt>,
}

/// One bound name of an import statement (a statement with several names is lowered to
/// several of these, in order).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Import {
    /// Dotted; empty for `from . import x`. Rust paths are dotted and absolute:
    /// `crate`, `self`, `super` already resolved (`crate` is spelled `crate`).
    pub module: Name,
    /// Leading dots of a relative Python import; 0 otherwise.
    pub level: u32,
    pub what: Imported,
    /// The name that is bound here (empty for `All`).
    pub binding: Name,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Imported {
    /// `import a.b` binds `a`; `import a.b as c` binds the module `a.b`.
    Module,
    /// `from module import name`.
    Member(Name),
    /// `from module import *`.
    All,
}

#[derive(Debug)]
pub struct Expr {
    pub span: Span,
    pub kind: ExprKind,
}

#[derive(Debug)]
pub enum ExprKind {
    Name(Name),
    /// `value.name`; Rust `value.name` and the path `value::name` alike.
    Attribute {
        value: Box<Expr>,
        name: Name,
        name_span: Span,
    },
    /// Rust macros that parse as expressions are calls of the name with its `!`:
    /// `println!(..)` calls `println!`, its format string lowered to `Format`.
    Call {
        callee: Box<Expr>,
        arguments: Vec<Argument>,
    },
    Index {
        value: Box<Expr>,
        index: Box<Expr>,
    },
    Slice {
        lower: Option<Box<Expr>>,
        upper: Option<Box<Expr>>,
        step: Option<Box<Expr>>,
    },
    Literal(Literal),
    Compare {
        left: Box<Expr>,
        rest: Vec<(CompareOp, Expr)>,
    },
    Bool {
        op: BoolOp,
        values: Vec<Expr>,
    },
    Not(Box<Expr>),
    Binary {
        op: BinaryOp,
        left: Box<Expr>,
        right: Box<Expr>,
    },
    /// `-x`, `+x`, `~x`.
    Unary {
        op: UnaryOp,
        value: Box<Expr>,
    },
    /// Python `a if t else b`; Rust `if` used as a value (arms are `Block`s).
    Conditional {
        test: Box<Expr>,
        then: Box<Expr>,
        otherwise: Box<Expr>,
    },
    /// Tuple, list, set; Rust arrays and `vec![..]` are lists.
    Collection {
        kind: CollectionKind,
        items: Vec<Expr>,
    },
    /// `None` as key: `**spread`.
    Dict(Vec<(Option<Expr>, Expr)>),
    Comprehension {
        kind: CollectionKind,
        /// Dict comprehensions: a tuple of key and value.
        element: Box<Expr>,
        clauses: Vec<Clause>,
    },
    /// Lambda or closure.
    Lambda(FunctionIndex),
    /// f-string, `format!`-like text: pieces of text and values.
    Format(Vec<FormatPiece>),
    Await(Box<Expr>),
    Yield(Option<Box<Expr>>),
    /// `*x` in a collection or call position that is not an argument.
    Starred(Box<Expr>),
    /// Rust `x?`.
    Try(Box<Expr>),
    /// Python `(x := value)`.
    Walrus {
        target: Box<Expr>,
        value: Box<Expr>,
    },
    /// Rust `if let P = v`, `while let`: true when the pattern matches, and binds.
    Let {
        pattern: Box<Expr>,
        value: Box<Expr>,
    },
    /// Rust block, loop or jump used as an expression; the value is the last statement's if
    /// that is `StmtKind::Expr`, and `has_value` is set (no trailing semicolon).
    Block {
        body: Vec<Stmt>,
        has_value: bool,
    },
    /// Rust `match` used as a value; each arm's body is as in `Block`.
    Match {
        subject: Box<Expr>,
        arms: Vec<Arm>,
    },
    /// Rust struct literal.
    Construct {
        path: Box<Expr>,
        fields: Vec<(Name, Expr)>,
        base: Option<Box<Expr>>,
    },
    /// Something that only its parts are known of.
    Opaque(Vec<Expr>),
}

#[derive(Debug)]
pub struct Argument {
    pub name: Option<Name>,
    pub value: Expr,
    pub spread: Spread,
    pub span: Span,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Spread {
    No,
    /// `*x`
    Items,
    /// `**x`
    Keywords,
}

#[derive(Debug)]
pub struct Clause {
    pub target: Expr,
    pub iter: Expr,
    pub tests: Vec<Expr>,
}

#[derive(Debug)]
pub enum FormatPiece {
    Text(Box<str>),
    Value(Expr),
}

#[derive(Clone, PartialEq, Debug)]
pub enum Literal {
    None,
    Bool(bool),
    Int(i64),
    Float(f64),
    Str(Name),
    Bytes,
    Ellipsis,
}

#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum CompareOp {
    Eq,
    NotEq,
    Lt,
    LtE,
    Gt,
    GtE,
    Is,
    IsNot,
    In,
    NotIn,
}

#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum BoolOp {
    And,
    Or,
}

#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum UnaryOp {
    Minus,
    Plus,
    Invert,
}

#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum BinaryOp {
    Add,
    Sub,
    Mul,
    Div,
    FloorDiv,
    Mod,
    Pow,
    MatMul,
    BitAnd,
    BitOr,
    BitXor,
    LShift,
    RShift,
}

#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum CollectionKind {
    Tuple,
    List,
    Set,
    Dict,
    Generator,
}

impl Expr {
    pub fn new(span: Span, kind: ExprKind) -> Self {
        Self { span, kind }
    }

    /// `a.b.c` of a pure name chain, as its parts from the left.
    pub fn path(&self) -> Option<Vec<Name>> {
        match &self.kind {
            ExprKind::Name(name) => Some(vec![*name]),
            ExprKind::Attribute { value, name, .. } => {
                let mut path = value.path()?;
                path.push(*name);
                Some(path)
            }
            _ => None,
        }
    }

    /// The last name of a path, call or generic type: `Linear` of `nn.Linear(..)`.
    pub fn last_name(&self) -> Option<Name> {
        match &self.kind {
            ExprKind::Name(name) | ExprKind::Attribute { name, .. } => Some(*name),
            ExprKind::Call { callee, .. } => callee.last_name(),
            ExprKind::Index { value, .. } => value.last_name(),
            _ => None,
        }
    }

    pub fn literal(&self) -> Option<&Literal> {
        match &self.kind {
            ExprKind::Literal(literal) => Some(literal),
            _ => None,
        }
    }

    pub fn str(&self) -> Option<Name> {
        match self.literal()? {
            Literal::Str(text) => Some(*text),
            _ => None,
        }
    }
}

impl Function {
    /// The parameter is the receiver.
    pub fn has_receiver(&self) -> bool {
        self.class.is_some()
            && self.parameters.first().is_some_and(|p| p.kind == ParameterKind::Positional)
            && !self.has_decorator("staticmethod")
    }

    pub fn has_decorator(&self, name: &str) -> bool {
        self.decorators.iter().any(|d| d.last_name().is_some_and(|n| &*n == name))
    }
}

impl Module {
    pub fn function(&self, index: FunctionIndex) -> &Function {
        &self.functions[index.0 as usize]
    }

    pub fn class(&self, index: ClassIndex) -> &Class {
        &self.classes[index.0 as usize]
    }
}

impl fmt::Display for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self)
    }
}
