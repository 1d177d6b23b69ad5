//! Behaviour of `lower` on files with syntax errors: what is still read and what is told.

use super::super::dump::dump;
use super::lower;

/// Errors as `line: message at "text"`.
fn check(source: &str, expected: &str, errors: &[&str]) {
    let module = lower(source);
    super::tests::check_spans(source, &module);
    let told: Vec<_> = module
        .errors
        .iter()
        .map(|error| {
            let line = source[..error.span.start as usize].matches('\n').count() + 1;
            format!("{line}: {} at {:?}", error.message, &source[error.span.range()])
        })
        .collect();
    assert_eq!(told, errors, "of\n{source}");
    assert_eq!(dump(&module).trim_end(), expected.trim(), "of\n{source}");
    for error in &module.errors {
        let message = &error.message;
        assert!(!message.ends_with('.') && !message.starts_with(char::is_uppercase), "{message}");
    }
}

const PRINT: &str = "`print` without parentheses: this file is Python 2 and is read only in part; \
                     port it to Python 3";
const ASYNC: &str = "`async` is a keyword since Python 3.7 and cannot be a name (the argument of \
                     `.cuda(..)` and `.to(..)` is `non_blocking` now)";
const OPEN: &str = "this bracket is not closed";
const COMPARE: &str = "a comparison needs `==`, `=` only assigns";

#[test]
fn an_assignment_as_condition_is_read_as_a_comparison() {
    check(
        "if args.rank = 0:\n    save(x)\nelif a=1: b\nwhile x = 2:\n    y\nassert z = 3\n",
        "
if (args.rank Eq Int(0)):
  save(x)
else:
  if (a Eq Int(1)):
    b
while (x Eq Int(2)):
  y
assert (z Eq Int(3))",
        &[
            &format!("1: {COMPARE} at \"=\""),
            &format!("3: {COMPARE} at \"=\""),
            &format!("4: {COMPARE} at \"=\""),
            &format!("6: {COMPARE} at \"=\""),
        ],
    );
}

#[test]
fn async_as_a_name_is_read_and_told_once() {
    check(
        "x = x.cuda(async=True)\ndef f():\n    y.async(async)\n    async for z in w: pass\n",
        "
x = x.cuda(async=Bool(true))
def f():
  y.async(async)
  for z in w:
    pass",
        &[&format!("1: {ASYNC} at \"async\"")],
    );
}

#[test]
fn python_2_is_told_once() {
    check(
        "
print 'a' % f(x)
class A:
    def m(self):
        print >>sys.stderr, 'x'
        exec 'code' in ns
        raise E, 'msg'
    def n(self):
        try:
            a
        except E, e:
            b
        x = 0777
        y = 10L
        z = ur'x'
        s = `x`
        def t(a, (b, c)):
            return a
        if a <> b:
            return 5
y = 1
",
        "
print
(\"a\" Mod f(x))
class A():
  def A.m(self):
    Tuple[(print RShift sys.stderr), \"x\"]
    exec
    (\"code\" In ns)
    raise Tuple[E, \"msg\"]
  def A.n(self):
    try:
      a
    except Tuple[E, e]:
      b
    x = ?[]
    y = Int(10)
    L
    z = ur
    pass
    s = ?[]
    x
    def t(*_):
      return a
    if (a Lt ?[] Gt b):
      return Int(5)
y = Int(1)",
        &[&format!("2: {PRINT} at \"'a'\"")],
    );
}

#[test]
fn each_word_of_python_2_is_known() {
    for (source, what) in [
        ("exec 'a'", "`exec` without parentheses"),
        ("if x: print 'a', y", "`print` without parentheses"),
        ("def f(self): print self", "`print` without parentheses"),
        ("if x: raise E, 'a'", "`raise` with a comma"),
        ("x = 1L", "a number with the suffix `L`"),
        ("f(0xffL, 2)", "a number with the suffix `L`"),
        ("f(ur\"\"\"a\"\"\")", "a string with the prefix `ur`"),
        ("x = ur'a'", "a string with the prefix `ur`"),
        ("raise E, 'a'", "`raise` with a comma"),
        ("x = `y`", "a value in backticks"),
        ("x = 0777", "a number that starts with `0`"),
        ("def f((a, b)): pass", "a parameter in parentheses"),
        ("x = a <> b", "the operator `<>`"),
    ] {
        let errors = lower(source).errors;
        assert_eq!(errors.len(), 1, "{source} {errors:?}");
        assert!(errors[0].message.starts_with(what), "{source} {errors:?}");
    }
}

#[test]
fn open_brackets_end_before_the_next_statement() {
    check(
        "
def f(
    a = 1
x = (1, 2
class Net(nn.Module):
    def __init__(self:
        self.x = nn.Linear(1, [2,
        self.z = 3
    def forward(self, x): return self.x(x
if a and (b == 2:
    f(x)
else:
    z
for x in range(10:
    f(x)
w
",
        "
def f(a = Int(1)):
  pass
x = Tuple[Int(1), Int(2)]
class Net(nn.Module):
  def Net.__init__(self):
    self.x = nn.Linear(Int(1), List[Int(2)])
    self.z = Int(3)
  def Net.forward(self, x):
    return self.x(x)
if (a And (b Eq Int(2))):
  f(x)
else:
  z
for x in range(Int(10)):
  f(x)
w",
        // A file tells of its first five.
        &[
            &format!("2: {OPEN} at \"(\""),
            &format!("4: {OPEN} at \"(\""),
            &format!("6: {OPEN} at \"(\""),
            &format!("7: {OPEN} at \"(\""),
            &format!("9: {OPEN} at \"(\""),
        ],
    );
}

#[test]
fn what_is_being_typed_does_not_hide_the_rest() {
    check(
        "model = Net()\nmodel.\nopt = f(model)\nloss.backward(\nx = \nfor a in b\n  c\n@\n\
         def f(): pass\n",
        "
model = Net()
?[model]
opt = f(model)
loss.backward()
x = ?[]
for a in b:
  c
@?[]
def f():
  pass",
        &[
            "2: a name is missing before the end of the line at \".\"",
            &format!("4: {OPEN} at \"(\""),
            "5: a value is missing before the end of the line at \"=\"",
            "6: `:` is missing before the end of the line at \"b\"",
            "8: a value is missing before the end of the line at \"@\"",
        ],
    );
    check(
        "def f():\n    \"\"\"Text\n    x = 1\ndef g():\n    return 1\n",
        "def f():\n  pass\n  x = Int(1)\ndef g():\n  return Int(1)",
        &["2: this string is not closed at \"\\\"\\\"\\\"Text\""],
    );
    check(
        "def g():\n    f('unclosed\n    return 1\nx",
        "def g():\n  f(\"unclosed\")\n  return Int(1)\nx",
        &["2: this string is not closed at \"'unclosed\""],
    );
}

#[test]
fn conflicts_and_notebook_commands_are_left_out() {
    check(
        "<<<<<<< HEAD\nx = 1\n=======\nx = 2\n>>>>>>> branch\n%matplotlib inline\n!ls\ny = 3\n",
        "x = Int(1)\nx = Int(2)\ny = Int(3)",
        &[
            "1: a merge conflict is not resolved here at \"<<\"",
            "6: `%` begins a notebook command, which is not Python at \"%\"",
            "7: `!` begins a notebook command, which is not Python at \"!\"",
        ],
    );
}

#[test]
fn indentation_that_matches_nothing() {
    check(
        "def f():\n  a\n    b\n  c\n d\ne\n",
        "def f():\n  a\n  b\n  c\n  d\ne",
        &["3: this line is indented, but nothing above opens a block at \"b\""],
    );
    check(
        "if a:\nb\ntry:\n    c\nd\n",
        "if a:\nb\ntry:\n  c\nd",
        &[
            "1: the block under this line is missing at \":\"",
            "4: this `try` has neither `except` nor `finally` at \"c\"",
        ],
    );
}

#[test]
fn places_are_those_of_the_given_text() {
    let source = "\u{feff}if 'ä' = b:\r\n\tf(x)\r\ng(y,\r\nz = h(w)\r\n";
    let module = lower(source);
    super::tests::check_spans(source, &module);
    let texts: Vec<_> = module.body.iter().map(|stmt| &source[stmt.span.range()]).collect();
    assert_eq!(texts, ["if 'ä' = b:\r\n\tf(x)", "g(y,", "z = h(w)"]);
}

#[test]
fn every_kind_of_syntax_is_placed_behind_a_mend() {
    let chain = (0..99).map(|n| format!("    elif a{n}: b\n")).collect::<Vec<_>>().concat();
    let source = [
        "ä = 1\ndef f():\n    if q = 1: pass\n    if x: y\n",
        &chain,
        "    z = lambda a=1, *b: (yield from c), {**d}\n",
        "    match u:\n",
        "        case [v, *_] | {'k': w, **o} | C(p, q=r) as s if t: f'{x!r:{y}}'\n",
        "    async with g as h: del i[1:2, (j := k)]\n",
    ]
    .concat();
    let module = lower(&source);
    super::tests::check_spans(&source, &module);
    assert_eq!(module.errors.len(), 1, "{:?}", module.errors);
    for function in &module.functions {
        let name = &source[function.name_span.range()];
        assert!(*function.name == *name || name == "lambda", "{name}");
    }
}

#[test]
fn text_without_sense_gives_few_errors() {
    let sources = [
        "]]]]]]]]\n".repeat(300),
        "((((((((\n".repeat(300),
        "if = if\n".repeat(300),
        "print 'a', b\n".repeat(300),
        "x = 'ä\n".repeat(300),
        "\"\"\"\n".repeat(301),
        " a\n  b\n c\n   d\n".repeat(100),
        "\u{0}\u{1}\u{7f}\u{feff}".repeat(100),
        "{% for x in y %}\n<b>{{ x }}</b>\n".repeat(100),
        "async = async\n".repeat(200),
        "f(\n".repeat(200),
        "<<<<<<< a\n=======\n>>>>>>> b\n".repeat(100),
        "ü = (ß\n".repeat(200),
        "f'{".repeat(200),
    ];
    for source in sources {
        let module = lower(&source);
        super::tests::check_spans(&source, &module);
        assert!((1..=5).contains(&module.errors.len()), "{source}\n{:?}", module.errors);
    }
}

/// Every prefix of a program and the program without each of its characters.
#[test]
fn broken_programs_are_read_without_panic() {
    let source = "import a\n@b(c)\nclass D(e.F):\n  g: int = 0\n  def h(self, *i, **j):\n    \
                  if self.k[0] == 'l': return f'{m!r:>{n}}'\n    else:\n      with o() as p: \
                  pass\nfor q in [r for s in {}]:\n  try: t(u=lambda: \"\"\"ä\"\"\")\n  except \
                  (V, W) as x: raise\nmatch y:\n  case [z, _]: print(1)\n";
    assert!(lower(source).errors.is_empty());
    for (at, character) in source.char_indices() {
        let without = [&source[..at], &source[at + character.len_utf8()..]].concat();
        for text in [&source[..at], &without] {
            super::tests::check_spans(text, &lower(text));
        }
    }
}
