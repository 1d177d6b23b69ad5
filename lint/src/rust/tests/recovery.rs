//! What is still read of Rust files that do not parse.

use crate::model::{Expr, ExprKind, Module};
use crate::rust::dump::dump;
use crate::rust::lex::DEPTH_MAX;
use crate::rust::lower;

/// Lowers broken text: the dump, and each error as the text it points at and its message.
#[track_caller]
fn check_broken(text: &str, expected: &str, errors: &[(&str, &str)]) {
    let module = lower(text, "crate");
    super::corpus::check_spans(text, &module);
    assert_eq!(dump(&module).trim_end(), super::unindent(expected), "\n{text}");
    let found: Vec<_> = module
        .errors
        .iter()
        .map(|error| (&text[error.span.range()], error.message.as_str()))
        .collect();
    assert_eq!(found, errors, "\n{text}");
}

#[test]
fn a_broken_body_leaves_the_other_items() {
    check_broken(
        "fn a() { f() }\nfn b() -> T { let x = ; }\nfn c() { g() }\n",
        "
        fn a()
          f()
        fn b() -> T
          return opaque<>
        fn c()
          g()
        ",
        &[(";", "this does not parse: expected an expression")],
    );
}

#[test]
fn a_bracket_left_open_ends_at_the_indentation() {
    let expected = "
        fn a(x: i64)
          return opaque<>
        fn b()
          g()
        ";
    let unclosed = [("(", "this `(` is not closed")];
    check_broken("fn a(x: i64) {\n    f(x;\n}\n\nfn b() {\n    g()\n}\n", expected, &unclosed);
    let unclosed = [("{", "this `{` is not closed")];
    check_broken("fn a(x: i64) {\n    if x {\n}\n\nfn b() {\n    g()\n}\n", expected, &unclosed);
    check_broken("fn a(x: i64) {\n    f()\n\nfn b() {\n    g()\n}\n", expected, &unclosed);
}

#[test]
fn the_last_function_may_be_unfinished() {
    check_broken(
        "fn b() {\n    g()\n}\n\nfn a(x: i64) {\n    f(\n",
        "
        fn b()
          g()
        fn a(x: i64)
          return opaque<>
        ",
        &[("(", "this `(` is not closed")],
    );
}

#[test]
fn a_broken_method_leaves_the_others() {
    let text = "
impl Net {
    fn new() -> Net {
        Net { a: }
    }

    fn size(&self) -> i64 {
        self.size(1
    }

    fn ok(&self) {
        f()
    }
}

fn after() {}
";
    check_broken(
        text,
        "
        fn after()
        impl Net
          fn new() -> Net
            return opaque<>
          fn size(self) -> i64
            return opaque<>
          fn ok(self)
            f()
        ",
        &[("(", "this `(` is not closed"), ("}", "this does not parse: expected an expression")],
    );
}

#[test]
fn a_broken_member_is_given_up_alone() {
    check_broken(
        "impl Net {\n    #[inline]\n    fn new(a b) {}\n    fn ok() {}\n}\n",
        "impl Net\n  fn ok()",
        &[("b", "this does not parse: expected `:`")],
    );
    check_broken(
        "mod inner {\n    struct A { x }\n    fn ok() {}\n}\n",
        "import crate module as inner\nfn ok()",
        &[("}", "this does not parse: expected `:`")],
    );
}

#[test]
fn a_broken_item_leaves_its_neighbours() {
    check_broken(
        "use tch::nn;\nstruct A { x: }\nconst N: [i64; 1] = [1];\nfn ok() {}\n",
        "
        import tch .nn as nn
        N: [i64] = [1]
        fn ok()
        ",
        &[("}", "this was not expected here")],
    );
    check_broken(
        "what is this\nfn ok() {}\n",
        "fn ok()",
        &[("is", "this does not parse: expected `!`")],
    );
}

#[test]
fn a_quote_without_its_other_half_ends_at_the_next_item() {
    check_broken(
        "fn a() {\n    f(\"x);\n}\n\n/// Says \"hi\".\n#[inline]\nfn b() {\n    g(\"y\")\n}\n",
        "
        fn a()
          return opaque<>
        @inline
        fn b()
          g(\"y\")
        ",
        &[("\"", "this string has no end")],
    );
    check_broken(
        "fn a() {}\n/* open\nfn b() {}\n",
        "fn a()\nfn b()",
        &[("/", "this comment has no end")],
    );
}

#[test]
fn doc_comments_stay_with_their_item() {
    check_broken(
        "/// A.\nstruct A;\n/// B.\n// Why.\nfn b() { ) }\n/// C.\n#[inline]\nfn c() {}\n",
        "
        Struct A
        fn b()
          return opaque<>
        @inline
        fn c()
        ",
        &[("{", "this `{` is not closed")],
    );
    check_broken(
        "impl A {\n    /// B.\n    fn b(x y) {}\n    /// C.\n    fn c() {}\n}\n",
        "impl A\n  fn c()",
        &[("y", "this does not parse: expected `:`")],
    );
    check_broken(
        "fn a() { \" }\n/// B.\nfn b() {}\n",
        "fn a()\n  return opaque<>\nfn b()",
        &[("\"", "this string has no end")],
    );
}

#[test]
fn stray_brackets_and_signs() {
    check_broken("}\nfn a() {}\n", "fn a()", &[("}", "this `}` closes nothing")]);
    check_broken(
        "fn a() { ` }\nfn b() {}\n",
        "fn a()\n  return opaque<>\nfn b()",
        &[("`", "rust has no such token")],
    );
    check_broken("", "", &[]);
    check_broken("fn", "", &[("fn", "this does not parse: expected identifier")]);
}

#[test]
fn every_prefix_of_a_program_lowers() {
    let text = include_str!("corpus.rs");
    for end in (0..text.len()).filter(|&end| text.is_char_boundary(end)).step_by(97) {
        let module = lower(&text[..end], "crate");
        super::corpus::check_spans(&text[..end], &module);
    }
}

#[test]
fn every_byte_may_be_missing() {
    let text = "use a::b;\nimpl<'a> N<'a> {\n    fn f(&self) -> T { g(\"{x}\\\"\", r#\"y\"#, \
         'c', |z| z?)[0] }\n}\n/* c */ fn h() {}\n";
    for at in 0..text.len() {
        let broken = format!("{}{}", &text[..at], &text[at + 1..]);
        let module = lower(&broken, "crate");
        super::corpus::check_spans(&broken, &module);
    }
}

fn deep(open: &str, middle: &str, close: &str, count: usize) -> String {
    format!("fn a() {{ x = {}{middle}{} }}\nfn b() {{}}\n", open.repeat(count), close.repeat(count))
}

const SHAPES: &[(&str, &str, &str)] = &[
    ("(", "1", ")"),
    ("[", "1", "]"),
    ("{", "1", "}"),
    ("!", "1", ""),
    ("-", "1", ""),
    ("&", "y", ""),
    ("", "1", " + 1"),
    ("", "y", ".z"),
    ("", "y", ".z()"),
    ("", "y", "?"),
    ("", "y", "()"),
    ("", "y", "[0]"),
    ("", "y", "::z"),
    ("y = ", "1", ""),
    ("|y| ", "1", ""),
    ("if y { 1 } else ", "{ 1 }", ""),
    ("if y { ", "1", " }"),
    ("match y { _ => ", "1", " }"),
    ("y(", "1", ")"),
    ("y::<", "z", ">"),
    ("return ", "1", ""),
    ("", "y", " as T"),
    ("vec![", "1", "]"),
    ("println!(\"{}\", ", "1", ")"),
    ("loop { ", "", " }"),
    ("unsafe { ", "", " }"),
    ("fn y() { ", "", " }"),
    ("async { ", "", " }"),
    ("S { a: ", "1", " }"),
    ("|_: A<", "B", ">| 1"),
];

#[test]
fn deep_nesting_is_read_or_refused() {
    for &(open, middle, close) in SHAPES {
        for count in [100, 240, 490, 980, 3000] {
            let text = deep(open, middle, close, count);
            let module = lower(&text, "crate");
            let has_b = module.functions.iter().any(|function| function.name == "b");
            assert!(has_b, "{open}{middle}{close} × {count}: {:?}", module.errors);
            assert!(depth(&module) <= 4 * DEPTH_MAX, "{open}{middle}{close} × {count}");
        }
    }
}

#[test]
fn code_that_people_write_is_not_too_deep() {
    let chain = format!("fn a() {{ nn::seq(){} }}", ".add(nn::linear(p / 1, a, b, c))".repeat(450));
    let sum = format!("fn a() {{ x = 1{} }}", " + y".repeat(500));
    let list = format!("fn a() {{ x = [{}] }}", "-1., a < b, ".repeat(300));
    let table = format!("static T: &[(i64, &str)] = &[{}];", "(-1, \"a\"), ".repeat(5000));
    let cases = format!("{}fn a() {{}}", "#[case(1, -2)]\n".repeat(1000));
    let letters = "'a'..='b' | ".repeat(450);
    let ranges = format!("fn a() {{ match x {{ {letters} 'c' => 1, _ => 2 }} }}");
    let arms = format!("fn a() {{ match x {{ {} }} }}", "A | B if c => { f() } ".repeat(2000));
    for text in [chain, sum, list, table, cases, ranges, arms] {
        assert_eq!(lower(&text, "crate").errors.len(), 0, "{}", &text[..60]);
    }
}

/// The deepest expression.
fn depth(module: &Module) -> usize {
    let mut deepest = 0;
    super::corpus::walk(module, &mut |expr| deepest = deepest.max(left_depth(expr)));
    deepest
}

fn left_depth(mut expr: &Expr) -> usize {
    let mut depth = 0;
    loop {
        depth += 1;
        expr = match &expr.kind {
            ExprKind::Attribute { value, .. }
            | ExprKind::Index { value, .. }
            | ExprKind::Not(value)
            | ExprKind::Try(value)
            | ExprKind::Unary { value, .. } => value,
            ExprKind::Call { callee, .. } => callee,
            ExprKind::Binary { left, .. } => left,
            _ => return depth,
        };
    }
}
