//! How Rust expressions lower to the program model.

use super::{check_body, check_expr, check_pattern};

#[test]
fn references_derefs_casts_and_parentheses_fall_away() {
    check_expr("&x", "x");
    check_expr("&mut x", "x");
    check_expr("*x", "x");
    check_expr("x as i64", "x");
    check_expr("&(*x as i64)", "x");
    check_expr("(&raw const x)", "x");
}

#[test]
fn paths_are_attributes_from_the_left() {
    check_expr("nn::Linear::new(p)", "nn.Linear.new(p)");
    check_expr("Vec::<i64>::new()", "Vec.new()");
    check_expr("x.collect::<Vec<_>>()", "x.collect()");
    check_expr("::tch::Tensor::new()", "tch.Tensor.new()");
    check_expr("<Net as nn::Module>::forward(&net, x)", "Net.forward(net, x)");
    check_expr("<[i64]>::len(x)", "[i64].len(x)");
    check_expr("Self::new()", "Self.new()");
    check_expr("r#type::r#fn()", "type.fn()");
}

#[test]
fn self_and_super_in_paths_are_not_the_receiver() {
    check_expr("self::sampler()", "crate.data.sampler()");
    check_expr("super::sampler()", "crate.sampler()");
    check_expr("crate::model::Net", "crate.model.Net");
    check_expr("self.sampler", "self.sampler");
}

#[test]
fn literals() {
    check_expr("1_000i64", "1000");
    check_expr("0xff", "255");
    check_expr("1f32", "1.0");
    check_expr("1e-3", "0.001");
    check_expr("-1", "-1");
    check_expr("\"a\\n\"", "\"a\\n\"");
    check_expr("r#\"a\"b\"#", "\"a\\\"b\"");
    check_expr("b\"a\"", "b\"\"");
    check_expr("c\"a\"", "b\"\"");
    check_expr("b'a'", "97");
    check_expr("'a'", "\"a\"");
    check_expr("true", "true");
    check_expr("None", "None");
    check_expr("Option::None", "Option.None");
    check_expr("99999999999999999999", "opaque<>");
}

#[test]
fn operators() {
    check_expr("a + b * c", "(a + (b * c))");
    check_expr("(a + b) * c", "((a + b) * c)");
    check_expr("a / \"weight\"", "(a / \"weight\")");
    check_expr("a % b ^ c", "((a % b) ^ c)");
    check_expr("a & b | c << d >> e", "((a & b) | ((c << d) >> e))");
    check_expr("a - b", "(a - b)");
    check_expr("!a", "!a");
    check_expr("-a", "-a");
}

#[test]
fn conditions() {
    check_expr("a == 0", "(a == 0)");
    check_expr("a != 0 && b < 1 && c", "((a != 0) && (b < 1) && c)");
    check_expr("a <= 0 || b > 1 && c >= 2", "((a <= 0) || ((b > 1) && (c >= 2)))");
}

#[test]
fn calls_fields_and_indices() {
    check_expr("f(a, &b)", "f(a, b)");
    check_expr("x.view([-1, 784]).apply(&self.fc)", "x.view([-1, 784]).apply(self.fc)");
    check_expr("x.0.1", "x.0.1");
    check_expr("x[i]", "x[i]");
    check_expr("x[1..n]", "x[1:n]");
    check_expr("x[..=n]", "x[:n]");
    check_expr("x[..]", "x[:]");
    check_expr("x?.y", "x?.y");
    check_expr("x.await", "x.await");
    check_expr("(self.loss)(a)", "self.loss(a)");
}

#[test]
fn ranges_call_range() {
    check_expr("a..b", "range(a, b)");
    check_expr("a..=b", "range(a, last=b)");
    check_expr("a..", "range(start=a)");
    check_expr("..b", "range(end=b)");
    check_expr("..=b", "range(last=b)");
    check_expr("..", "range()");
}

#[test]
fn collections() {
    check_expr("[a, b]", "[a, b]");
    check_expr("(a, b)", "(a, b,)");
    check_expr("()", "(,)");
    check_expr("[0; n]", "([0] * n)");
    check_expr("vec![a, b]", "[a, b]");
    check_expr("vec![]", "[]");
    check_expr("vec![None; n]", "([None] * n)");
}

#[test]
fn struct_literals() {
    check_expr("Net { conv1, fc: f() }", "Net { conv1: conv1, fc: f() }");
    check_expr(
        "nn::LinearConfig { bias: false, ..Default::default() }",
        "nn.LinearConfig { bias: false, ..Default.default() }",
    );
    check_expr("Pair { 0: a, 1: b }", "Pair { 0: a, 1: b }");
}

#[test]
fn closures() {
    check_expr("|x| x.relu()", "<lambda>(x) { return x.relu() }");
    check_expr(
        "move |x: &Tensor, _| -> T { f(); x }",
        "<lambda>(x: Tensor, _) -> T { f(); return x }",
    );
    check_expr("|(a, b)| a", "<lambda>(_=(a, b,)) { return a }");
    check_expr("|| total += 1", "<lambda>() { total += 1 }");
    check_expr("|| x = 1", "<lambda>() { x = 1 }");
    check_expr("|x| if x { 1 } else { 2 }", "<lambda>(x) { if x; return 1; else; return 2 }");
    check_expr("async move |x| x.await", "async <lambda>(x) { return x.await }");
}

#[test]
fn control_flow_as_value() {
    check_expr("if a { b } else { c }", "if a { => b } else { => c }");
    check_expr(
        "if a { b } else if c { d } else { e }",
        "if a { => b } else if c { => d } else { => e }",
    );
    check_expr("{ f(); x }", "{ f(); => x }");
    check_expr("{ f(); }", "{ f() }");
    check_expr("unsafe { x }", "{ => x }");
    check_expr("async move { x }", "{ => x }");
    check_expr("match x { 1 => a, _ => { f(); } }", "match x { 1 => { a }, _ => { f(); pass } }");
    check_expr(
        "match x { Some(v) => v, None => return 1 }",
        "match x { Some(v) => { v }, None => { return 1 } }",
    );
    check_expr("f(return x)", "f({ return x })");
}

#[test]
fn loops_as_value_are_what_break_assigns() {
    check_body(
        "let it = loop { if a { break f(); } }; it",
        "
        it = { loop; if a; <loop 23> = f(); break; => <loop 23> }
        return it
        ",
    );
    check_body(
        "let it = 'a: { if a { break 'a 1; } 2 }; it",
        "
        it = { loop; if a; <loop 27> = 1; break; <loop 27> = 2; break; => <loop 27> }
        return it
        ",
    );
}

#[test]
fn format_strings() {
    check_expr("format!(\"a{}b{}\", x, y + 1)", "f<\"a\" x \"b\" (y + 1)>");
    check_expr("format!(\"{x}\")", "f<x>");
    check_expr("format!(\"{0}-{1}-{0}\", a, b)", "f<a \"-\" b \"-\">");
    check_expr("format!(\"{loss:.3} {name}\", name = f())", "f<loss \" \" f()>");
    check_expr("format!(\"{:>width$.prec$}\", x)", "f<x width prec>");
    check_expr("format!(\"{:.*}\", n, x)", "f<n x>");
    check_expr("format!(\"{:1$}\", x, w)", "f<x w>");
    check_expr("format!(\"{{}} \\u{41}\\x42\\\"\")", "f<\"{} AB\\\"\">");
    check_expr("format!(r\"\\{x}\")", "f<\"\\\\\" x>");
    check_expr("format!(\"{}\", x, )", "f<x>");
    check_expr("format!(\"a\\\n   b\")", "f<\"ab\">");
    check_expr("format!(\"\")", "f<>");
    check_expr("format!(\"ä{x:?}\")", "f<\"ä\" x>");
    check_expr("format!(\"{\", x)", "f<x>");
}

#[test]
fn printing_macros_are_calls() {
    check_expr("println!()", "println!()");
    check_expr("println!(\"{} {x}\", y)", "println!(f<y \" \" x>)");
    check_expr("write!(f, \"{}\", y)", "write!(f, f<y>)");
    check_expr("log::info!(target: \"a\", \"{x}\")", "log.info!(target=\"a\", f<x>)");
    check_expr(
        "tracing::info!(loss = %loss, ?x, \"done\")",
        "tracing.info!(loss=loss, x, f<\"done\">)",
    );
    check_expr("anyhow!(\"no {x}\")", "anyhow!(f<\"no \" x>)");
    check_expr("dbg!(x)", "dbg!(x)");
    check_expr("dbg!(\"{}\")", "dbg!(f<>)");
}

#[test]
fn other_macros_read_as_expressions_or_statements_or_not_at_all() {
    check_expr("max!(a, b + 1)", "max!(a, (b + 1))");
    check_expr("env!(\"RANK\")", "env!(\"RANK\")");
    check_expr("main_only! { let x = f(); x }", "main_only!({ x = f(); => x })");
    check_expr("json!({ \"a\": 1 })", "opaque<>");
    check_expr("hash! { a => b }", "opaque<>");
}

#[test]
fn matches_is_a_let() {
    check_expr("matches!(x, Some(_))", "(let Some(_) = x)");
    check_expr("matches!(x, A::B | A::C if y)", "((let (A.B || A.C) = x) && y)");
}

#[test]
fn patterns() {
    check_pattern("x", "x");
    check_pattern("_", "_");
    check_pattern("ref mut x", "x");
    check_pattern("&mut x", "x");
    check_pattern("(x)", "x");
    check_pattern("Some(x)", "Some(x)");
    check_pattern("Some(ref x)", "Some(x)");
    check_pattern("None", "None");
    check_pattern("MAX", "opaque<MAX>");
    check_pattern("Mode::Train", "Mode.Train");
    check_pattern("(a, .., b)", "(a, *_, b,)");
    check_pattern("[first, rest @ ..]", "[first, rest @ *_]");
    check_pattern("Point { x, y: 0, .. }", "Point { x: x, y: 0 }");
    check_pattern("A | B::C", "(opaque<A> || B.C)");
    check_pattern("1..=9", "range(1, last=9)");
    check_pattern("'a'..", "range(start=\"a\")");
    check_pattern("-1", "-1");
    check_pattern("-1.5", "-1.5");
    check_pattern("\"cuda\"", "\"cuda\"");
    check_pattern("n @ 1..3", "n @ range(1, 3)");
    check_pattern("Shape::Round { radius: Some(r) }", "Shape.Round { radius: Some(r) }");
    check_pattern("const { 1 }", "opaque<>");
    check_pattern("f!()", "opaque<>");
}

#[test]
fn types_keep_generics_and_lose_references() {
    check_body(
        "let a: &mut Vec<&'a Option<Tensor>> = b; a",
        "
        a: Vec[Option[Tensor]] = b
        return a
        ",
    );
    check_body("let a: [i64; 2]; a", "a: [i64]\nreturn a");
    check_body("let a: &[f64]; a", "a: [f64]\nreturn a");
    check_body("let a: HashMap<String, (A, B)>; a", "a: HashMap[(String, (A, B,),)]\nreturn a");
    check_body(
        "let a: Box<dyn Fn(&Tensor) -> Tensor + Send>; a",
        "a: Box[Fn[(Tensor, Tensor,)]]\nreturn a",
    );
    check_body("let a: <T as X>::Y; a", "a: T.Y\nreturn a");
    check_body("let a: fn(A) -> B; a", "a: opaque<>\nreturn a");
    check_body("let a: *const u8; a", "a: u8\nreturn a");
    check_body("let a: super::Net<'a>; a", "a: crate.Net\nreturn a");
    check_body("let a: Option<nn::Path<'a>>; a", "a: Option[nn.Path]\nreturn a");
    check_body("let a: impl Iterator<Item = Tensor>; a", "a: Iterator[Tensor]\nreturn a");
}
