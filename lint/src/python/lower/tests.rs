//! Behaviour of `lower`: each kind of syntax, places, comments, broken and deep input.

use super::super::dump::dump;
use super::super::walk::{self, Node};
use super::{DEPTH_MAX, lower};
use crate::model::Module;

fn check(source: &str, expected: &str) {
    let module = lower(source);
    assert!(module.errors.is_empty(), "{source}\n{:?}", module.errors);
    check_spans(source, &module);
    assert_eq!(dump(&module).trim_end(), expected.trim(), "of\n{source}");
}

/// Each pair: an expression and what it is lowered to.
fn check_expr(pairs: &[(&str, &str)]) {
    for (source, expected) in pairs {
        check(source, expected);
    }
}

/// Nodes lie within their parents and on character boundaries. Returns the deepest nesting.
pub(super) fn check_spans(source: &str, module: &Module) -> usize {
    let mut deepest = 0;
    walk::everything(module, |place, node| {
        let (at, what) = match node {
            Node::Stmt(stmt) => (stmt.span, "statement"),
            Node::Expr(expr) => (expr.span, "expression"),
            Node::Part(at, what) => (at, what),
        };
        let parent = place.parent;
        assert!(parent.contains(at), "{what} {at:?} leaves {parent:?} in\n{source}");
        assert!(source.get(at.range()).is_some(), "{what} {at:?} cuts a character in\n{source}");
        deepest = deepest.max(place.depth);
    });
    deepest
}

#[test]
fn names_attributes_calls() {
    check_expr(&[
        ("a", "a"),
        ("a.b.c", "a.b.c"),
        ("f()", "f()"),
        ("f(a, *b, k=c, **d)", "f(a, *b, k=c, **d)"),
        ("f(k=1, *rest)", "f(k=Int(1), *rest)"),
        ("f(x for x in y)", "f(Generator<x for x in y>)"),
        ("f(a)(b).c", "f(a)(b).c"),
        ("x[0]", "x[Int(0)]"),
        ("x[1:2, ::3, ...]", "x[Tuple[Int(1):Int(2):, ::Int(3), Ellipsis]]"),
        ("x[a:]", "x[a::]"),
        ("x[*y]", "x[Tuple[*(y)]]"),
    ]);
}

#[test]
fn literals() {
    check_expr(&[
        (
            "x = 1, 0xff, 1_000, 2.5, 1e3",
            "x = Tuple[Int(1), Int(255), Int(1000), Float(2.5), Float(1000.0)]",
        ),
        ("x = 9223372036854775807", "x = Int(9223372036854775807)"),
        ("x = 9223372036854775808", "x = ?[]"),
        ("x = 3j", "x = ?[]"),
        ("x = True, False, None, ...", "x = Tuple[Bool(true), Bool(false), None, Ellipsis]"),
        ("x = 'a\\n' \"b\" r'\\d'", "x = \"a\\nb\\\\d\""),
        ("x = b'a' b'b'", "x = Bytes"),
        ("x = u'ü'", "x = \"ü\""),
    ]);
    let long = format!("x = '{}'", "y".repeat(super::STRING_BYTES_MAX + 1));
    check(&long, "x = ?[]");
}

#[test]
fn operators() {
    check_expr(&[
        ("a + b * c", "(a Add (b Mul c))"),
        ("a - b - c", "((a Sub b) Sub c)"),
        ("a ** b ** c", "(a Pow (b Pow c))"),
        ("a // b / c % d @ e", "((((a FloorDiv b) Div c) Mod d) MatMul e)"),
        ("a << b >> c & d | e ^ f", "((((a LShift b) RShift c) BitAnd d) BitOr (e BitXor f))"),
        ("-a + ~b - +c", "((Minus(a) Add Invert(b)) Sub Plus(c))"),
        ("not a and b or c", "((not(a) And b) Or c)"),
        ("a and b and c", "(a And b And c)"),
        ("a < b <= c", "(a Lt b LtE c)"),
        ("a == b", "(a Eq b)"),
        ("a != b", "(a NotEq b)"),
        ("a > b >= c", "(a Gt b GtE c)"),
        ("a is b", "(a Is b)"),
        ("a is not b", "(a IsNot b)"),
        ("a in b", "(a In b)"),
        ("a not in b", "(a NotIn b)"),
        ("a if t else b if u else c", "(a if t else (b if u else c))"),
        ("(x := f())", "(x := f())"),
    ]);
}

#[test]
fn collections_and_comprehensions() {
    check_expr(&[
        ("()", "Tuple[]"),
        ("(a,)", "Tuple[a]"),
        ("a, *b", "Tuple[a, *(b)]"),
        ("[a, b]", "List[a, b]"),
        ("{a, *b}", "Set[a, *(b)]"),
        ("{}", "{}"),
        ("{a: b, **c}", "{a: b, **c}"),
        ("[x for x in y if x if z]", "List<x for x in y if x if z>"),
        ("{x for x, w in y for z in x}", "Set<x for Tuple[x, w] in y for z in x>"),
        ("{k: v for k, v in y}", "Dict<Tuple[k, v] for Tuple[k, v] in y>"),
        ("(x async for x in y)", "Generator<x for x in y>"),
    ]);
}

#[test]
fn format_strings() {
    check_expr(&[
        ("f''", "Format<>"),
        ("f'a{b}c{d.e()!r}'", "Format<\"a\", b, \"c\", d.e()>"),
        ("f'{x:{width}.{p}f}'", "Format<x, width, p>"),
        ("f'{x=}'", "Format<\"x=\", x>"),
        ("f'{{{x}}}'", "Format<\"{\", x, \"}\">"),
        ("'a' f'b{c}' 'd' f'e'", "Format<\"ab\", c, \"de\">"),
        ("f'{f\"{a}\"}'", "Format<Format<a>>"),
        ("t'{a}'", "Format<a>"),
    ]);
}

#[test]
fn lambdas_await_yield() {
    check("f = lambda x, *y, z=1: x", "f = lambda(x, *y, /z = Int(1): return x)");
    check("f = lambda: 0", "f = lambda(: return Int(0))");
    let source = "
async def f():
    await g()
    x = yield
    yield x
def h():
    y = yield from  g()
    return lambda: (yield)
";
    let expected = "
async generator def f():
  await(g())
  x = yield()
  yield(x)
generator def h():
  y = yield(*(g()))
  return lambda(: return yield())
";
    check(source, expected);
    let module = lower(source);
    assert!(module.functions[2].is_generator, "the lambda itself yields");
}

#[test]
fn assignments() {
    check_expr(&[
        ("a = b = c", "a = b = c"),
        ("a, (b, *c) = d", "Tuple[a, Tuple[b, *(c)]] = d"),
        ("a.b = x[0] = c", "a.b = x[Int(0)] = c"),
        ("a: int = 1", "a: int = Int(1)"),
        ("self.a: T", "self.a: T"),
        ("a += 1", "a Add= Int(1)"),
        ("a[i] **= 2", "a[i] Pow= Int(2)"),
        ("a @= b", "a MatMul= b"),
        ("type X[T] = list[T]", "X = list[T]"),
        ("del a, b[0]", "del a, b[Int(0)]"),
        ("assert a, 'b'", "assert a \"b\""),
        ("global a, b", "outer [\"a\", \"b\"]"),
        ("pass; a; b", "pass\na\nb"),
        ("'a docstring'", "pass"),
    ]);
}

#[test]
fn imports() {
    check_expr(&[
        ("import a", "import a as a"),
        ("import a.b.c", "import a.b.c as a"),
        ("import a.b as c, d", "import a.b as c\nimport d as d"),
        ("from a.b import c, d as e", "from a.b import c as c\nfrom a.b import d as e"),
        ("from . import a", "from . import a as a"),
        ("from ...a import (b,)", "from ...a import b as b"),
        ("from a import *", "from a import *"),
    ]);
}

#[test]
fn control_flow() {
    check(
        "
if a:
    b
elif c:
    d
else:
    e
for x, y in z:
    continue
else:
    f
while True:
    break
try:
    a
except (B, C) as d:
    raise
except D:
    raise E from d
except:
    pass
else:
    g
finally:
    h
try:
    a
except* B:
    b
",
        "
if a:
  b
else:
  if c:
    d
  else:
    e
for Tuple[x, y] in z:
  continue
else:
  f
while Bool(true):
  break
try:
  a
except Tuple[B, C] as d:
  raise
except D:
  raise E
except:
  pass
else:
  g
finally:
  h
try:
  a
except B:
  b
",
    );
}

#[test]
fn with_statements() {
    check(
        "with a as b, c() as (d, e), f:\n    pass\nasync with (open(x) as y, z):\n    pass\n",
        "with a as b, c() as Tuple[d, e], f:\n  pass\nwith open(x) as y, z:\n  pass",
    );
}

#[test]
fn patterns() {
    check(
        "
match x:
    case 0 | -1 | 'a' | None | True:
        a
    case y if y > 1:
        b
    case m.RED:
        c
    case [p, *rest, _]:
        d
    case {'k': v, **others}:
        e
    case C(q, r=s):
        f
    case (1 | 2) as t:
        g
    case _:
        h
",
        "
match x:
  case (Int(0) Or Minus(Int(1)) Or \"a\" Or None Or Bool(true)):
    a
  case y if (y Gt Int(1)):
    b
  case m.RED:
    c
  case ?[p, *(rest), _]:
    d
  case ?[\"k\", v, others]:
    e
  case ?[C, q, s]:
    f
  case ?[(Int(1) Or Int(2)), t]:
    g
  case _:
    h
",
    );
}

#[test]
fn functions_and_classes() {
    let source = "
@a.b(c)
class Net(nn.Module, metaclass=M):
    size: int = 3
    name: str
    count = 0
    hook: F = field(default_factory=lambda: [])

    @property
    async def f(self, a, /, b: int = 1, *args: X, c, d=2, **kw) -> T:
        nonlocal z
        def inner():
            return self
        class Local: pass

    if flag:
        def g(self): ...
def free[T](x: T): return x
";
    check(
        source,
        "
@a.b(c)
class Net(nn.Module):
  size: int = Int(3)
  name: str
  count = Int(0)
  hook: F = field(default_factory=lambda(: return List[]))
  @property
  async def Net.f(self, a, b: int = Int(1), *args: X, /c, /d = Int(2), **kw) -> T:
    outer [\"z\"]
    def inner():
      return self
    class Local():
      pass
  if flag:
    def Net.g(self):
      Ellipsis
def free(x: T):
  return x
",
    );
    let module = lower(source);
    let net = &module.classes[0];
    let fields: Vec<_> = net.fields.iter().map(|field| &*field.name).collect();
    assert_eq!(fields, ["size", "name", "hook"]);
    assert!(net.fields[0].default.is_some() && net.fields[1].default.is_none());
    let methods: Vec<_> = net.methods.iter().map(|m| &*module.function(*m).name).collect();
    assert_eq!(methods, ["f", "g"]);
    assert!(source[net.span.range()].starts_with("@a.b(c)"), "a class starts at its decorator");
    assert_eq!(&source[net.name_span.range()], "Net");
    let f = module.function(net.methods[0]);
    assert!(source[f.span.range()].starts_with("@property"), "so does a function");
    assert!(f.has_receiver() && f.has_decorator("property"));
}

#[test]
fn main_guard_is_found() {
    for source in [
        "if __name__ == '__main__': f()",
        "if '__main__' == __name__: f()",
        "if __name__ == '__main__' and x: f()",
        "try:\n    if __name__ == '__main__': f()\nexcept E: pass",
    ] {
        assert!(lower(source).has_main, "{source}");
    }
    for source in [
        "if __name__ != '__main__': f()",
        "if name == '__main__': f()",
        "def f():\n    if __name__ == '__main__': g()",
    ] {
        assert!(!lower(source).has_main, "{source}");
    }
}

#[test]
fn comments_keep_place_and_text() {
    let source =
        "#!/usr/bin/python\nx = 1  # ddp-lint: uniform \n  ## two\nf(a,  # inside\n  '# no')";
    let module = lower(source);
    let comments: Vec<_> =
        module.comments.iter().map(|c| (&source[c.span.range()], &*c.text, c.own_line)).collect();
    assert_eq!(
        comments,
        [
            ("#!/usr/bin/python", "!/usr/bin/python", true),
            ("# ddp-lint: uniform ", "ddp-lint: uniform", false),
            ("## two", "two", true),
            ("# inside", "inside", false),
        ]
    );
}

#[test]
fn offsets_count_bytes_of_the_given_text() {
    for source in [
        "\u{feff}# c\r\nx = 'ä'\r\n\r\nif x:\r\n\ty = f(x)\r\n",
        "# c\rx = 'ä'\rif x:\r\ty = f(x)\r",
        "\u{c}# c\nx = 'ä' \\\n  'b'\nif x:\n        y = \\\n f(x)",
    ] {
        let module = lower(source);
        assert!(module.errors.is_empty(), "{source:?} {:?}", module.errors);
        check_spans(source, &module);
        assert_eq!(&source[module.comments[0].span.range()], "# c");
        assert!(module.comments[0].own_line, "{source:?}");
        assert!(source[module.body[1].span.range()].starts_with("if x:"), "{source:?}");
        assert!(source[module.body[1].span.range()].ends_with("f(x)"), "{source:?}");
    }
}

#[test]
fn empty_files() {
    for source in ["", "\n", "\u{feff}", "   ", "# only\n", "\\\n"] {
        let module = lower(source);
        assert!(module.body.is_empty(), "{source:?}");
    }
}

#[test]
fn deep_input_does_not_overflow() {
    let deep = 10_000;
    let terms = vec!["a"; 50_000];
    let sources = [
        format!("x = {}a{}", "(".repeat(deep), ")".repeat(deep)),
        format!("x = {}a{}", "[".repeat(deep), "]".repeat(deep)),
        format!("x = {}a{}", "f(".repeat(deep), ")".repeat(deep)),
        format!("x = {}", "(".repeat(deep)),
        format!("x = {}", "{".repeat(deep)),
        format!("x = {}", ")".repeat(deep)),
        format!("x = {}1", "-~".repeat(deep)),
        format!("x = {}1", "not ".repeat(deep)),
        format!("x = {}1", "lambda: ".repeat(deep)),
        format!("x = {}1", "lambda a, b: ".repeat(deep)),
        format!("x = {}", terms.join(" + ")),
        format!("x = {}", terms.join(" ** ")),
        format!("x = {}", terms.join(" if b else ")),
        format!("x = {}", terms.join(".")),
        format!("x = {}", terms.join(" < ")),
        format!("x = {}", terms.join(" and ")),
        format!("x = a{}", "[0]".repeat(deep)),
        format!("x = a{}", ".b()".repeat(deep)),
        format!("raise x from {}1", "-~".repeat(deep)),
        format!("if a: pass\n{}", "elif b: pass\n".repeat(deep)),
        format!("match x:\n  case {}a{}: pass", "[".repeat(deep), "]".repeat(deep)),
        format!("{}pass", "if a: ".repeat(deep)),
        (0..500).map(|n| " ".repeat(n) + "if a:\n").collect::<String>() + &" ".repeat(500) + "b",
        format!("x = {}", "'a' ".repeat(deep)),
        format!("x = {}a{}", "f'{".repeat(150), "}'".repeat(150)),
        format!("{}: x", "@a\n".repeat(deep)),
    ];
    for source in sources {
        let start = &source[..source.len().min(30)];
        let module = lower(&source);
        assert!(check_spans(&source, &module) <= DEPTH_MAX as usize + 5, "{start}");
    }
}

#[test]
fn long_chains_keep_their_terms() {
    let terms: Vec<_> = (0..1000).map(|n| format!("a{n}")).collect();
    check(&format!("x = {}", terms.join(" + ")), &format!("x = ?[{}]", terms.join(", ")));
    let clauses: Vec<_> = (0..99).map(|n| format!("elif a{n}: b{n}\n")).collect();
    let module = lower(&format!("if a: b\n{}else: c\n", clauses.concat()));
    let text = dump(&module);
    assert!(text.starts_with("match None:\n  case _ if a:\n    b\n  case _ if a0:\n    b0\n"));
    assert!(text.ends_with("  case _ if a98:\n    b98\n  case _:\n    c\n"), "{text}");
}
