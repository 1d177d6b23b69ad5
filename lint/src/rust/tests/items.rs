//! How Rust items lower to the program model.

use super::{check, lowered};
use crate::model::Span;
use crate::rust::lower;

#[test]
fn use_trees() {
    check(
        "use tch::{nn, nn::ModuleT, Device, Tensor as T};",
        "
        import tch .nn as nn
        import tch.nn .ModuleT as ModuleT
        import tch .Device as Device
        import tch .Tensor as T
    ",
    );
    check("use tch;", "import tch module as tch");
    check(
        "use a::b::{self, self as c, d::*};",
        "
        import a .b as b
        import a .b as c
        import a.b.d .* as 
    ",
    );
    check("use std::fmt::Write as _;", "import std.fmt .Write as _");
    check(
        "extern crate tch; extern crate tch as t;",
        "
        import tch module as tch
        import tch module as t
    ",
    );
}

#[test]
fn use_paths_are_absolute() {
    check("use crate::model::Net;", "import crate.model .Net as Net");
    check("use super::model::Net;", "import crate.model .Net as Net");
    check("use super::*;", "import crate .* as ");
    check("use self::inner::f;", "import crate.data.inner .f as f");
    check("use ::data::f;", "import data .f as f");
    check("use super::super::f;", "import crate .f as f");
}

#[test]
fn use_paths_may_start_at_names_of_this_file() {
    check(
        "mod part; use part::f;",
        "
        import crate.data.part module as part
        import crate.data.part .f as f
    ",
    );
    check(
        "use tch::nn; use nn::Module;",
        "
        import tch .nn as nn
        import tch.nn .Module as Module
    ",
    );
    check(
        "use Mode::*; enum Mode { Train, Eval }",
        "
        import crate.data.Mode .* as 
        Enum Mode (Train, Eval)
    ",
    );
    check(
        "use Mode::Train; enum Mode { Train }",
        "
        import crate.data.Mode .Train as Train
        Enum Mode (Train)
    ",
    );
}

#[test]
fn inline_modules_are_flattened() {
    check(
        "mod inner { use super::f; use super::super::g; fn h() { self::i(); super::j() } } fn \
             k() { inner::h() }",
        "
        import crate.data module as inner
        import crate.data .f as f
        import crate .g as g
        fn h()
          crate.data.i()
          crate.data.j()
        fn k()
          inner.h()
    ",
    );
    check("#[cfg(test)] mod tests { fn f() {} }", "");
    check(
        "mod a; #[path = \"x.rs\"] pub mod b;",
        "
        import crate.data.a module as a
        import crate.data.b module as b
    ",
    );
}

#[test]
fn functions() {
    check(
        "pub async fn f<T>(mut a: &Tensor, (b, c): (A, B), _: T) -> Result<()> { Ok(()) }",
        "
        async fn f(a: Tensor, _=(b, c,): (A, B,), _: T) -> Result[(,)]
          return Ok((,))
    ",
    );
    check(
        "#[inline] #[instrument(skip(x), level = \"debug\")] fn f() {}",
        "
        @inline
        @instrument(skip(x), level=\"debug\")
        fn f()
    ",
    );
    check("/// Docs.\nfn f() {}", "fn f()");
    check(
        "#[a = \"b\"] #[c::d(= =)] fn f() {}",
        "
        @a(\"b\")
        @c.d(opaque<>)
        fn f()
    ",
    );
}

#[test]
fn generics_are_annotated_with_their_bound() {
    check(
        "fn f<'p, P: Borrow<nn::Path<'p>>, M>(p: P, m: &M, n: Vec<M>) where M: Send + \
             nn::ModuleT {}",
        "
        fn f(p: Borrow[nn.Path], m: nn.ModuleT, n: Vec[nn.ModuleT])
    ",
    );
    check("fn f<A: Into<B>, B: Into<A>>(a: A) {}", "fn f(a: Into[B])");
    check(
        "impl<T: Module> Wrapper<T> { fn f(t: T) {} }",
        "
        impl Wrapper[Module]
          fn f(t: Module)
    ",
    );
}

#[test]
fn structs_and_enums() {
    check(
        "#[derive(Debug, Clone)] pub struct Net { pub conv: nn::Conv2D, #[dp(buffer)] freqs: \
             Tensor, rest: Vec<Block> }",
        "
        @derive(Debug, Clone)
        Struct Net
          .conv: nn.Conv2D
          @dp(buffer)
          .freqs: Tensor
          .rest: Vec[Block]
        impl Debug for Net
        impl Clone for Net
    ",
    );
    check(
        "struct Pair(pub Tensor, i64); struct Unit;",
        "
        Struct Pair
          .0: Tensor
          .1: i64
        Struct Unit
    ",
    );
    check(
        "enum Layer { Linear(nn::Linear), Conv { inner: nn::Conv2D }, None }",
        "
        Enum Layer (Linear, Conv, None)
          .Linear.0: nn.Linear
          .Conv.inner: nn.Conv2D
    ",
    );
    check(
        "union U { a: f32, b: u32 }",
        "
        Struct U
          .a: f32
          .b: u32
    ",
    );
}

#[test]
fn traits_and_impls() {
    check(
        "trait Model: nn::Module + Send { fn size(&self) -> i64; fn twice(&self) -> i64 { \
             self.size() * 2 } }",
        "
        Trait Model < nn.Module < Send
          fn twice(self) -> i64
            return (self.size() * 2)
    ",
    );
    check(
        "impl<'a> nn::ModuleT for Net<'a> { fn forward_t(&self, x: &Tensor, train: bool) -> \
             Tensor { x.shallow_clone() } }",
        "
        impl nn.ModuleT for Net
          fn forward_t(self, x: Tensor, train: bool) -> Tensor
            return x.shallow_clone()
    ",
    );
    check(
        "impl Net { const HIDDEN: i64 = 8; fn new(self: Box<Self>) {} }",
        "
        Net.HIDDEN: i64 = 8
        impl Net
          fn new(self: Box[Self])
    ",
    );
    check(
        "impl Iterator for Loader { type Item = (Tensor, Tensor); }",
        "
        Loader.Item = (Tensor, Tensor,)
        impl Iterator for Loader
    ",
    );
}

#[test]
fn constants_statics_and_aliases_are_assigned() {
    check(
        "const N: i64 = 8; static NAME: &str = \"a\"; type Res<T> = Result<T, E>;",
        "
        N: i64 = 8
        NAME: str = \"a\"
        Res = Result[(T, E,)]
    ",
    );
}

#[test]
fn item_macros() {
    check("thread_local! { static RANK: i64 = 0; }", "RANK: i64 = 0");
    check("lazy_static! { /// Docs.\n pub static ref RANK: i64 = rank(); }", "RANK: i64 = rank()");
    check("macro_rules! m { ($x:expr) => { $x }; }", "");
    check("m!(a, b);", "m!(a, b)");
}

#[test]
fn tests_are_skipped() {
    check("#[test] fn f() {} #[tokio::test] async fn g() {} #[cfg(all(test, unix))] fn h() {}", "");
    check(
        "#[cfg(not(test))] fn f() {} #[cfg(any(test, unix))] fn g() {}",
        "
        @cfg(not(test))
        fn f()
        @cfg(any(test, unix))
        fn g()
    ",
    );
    check("#![cfg(test)] fn f() {}", "");
    check("impl A { #[cfg(test)] fn f() {} }", "impl A");
}

#[test]
fn main_is_noticed_at_file_level_alone() {
    let has_main = |text: &str| lowered(text).has_main;
    assert!(has_main("fn main() {}"));
    assert!(has_main("#[tokio::main] async fn main() {}"));
    assert!(!has_main("mod a { fn main() {} }"));
    assert!(!has_main("fn f() { fn main() {} }"));
    assert!(!has_main("#[cfg(test)] fn main() {}"));
    assert!(!has_main("fn f() {}"));
}

#[test]
fn places_start_at_attributes_and_end_at_semicolons() {
    let text = "/// Docs.\n#[inline]\npub fn f() { let x = (a + b) * c; g(x) }";
    let module = lowered(text);
    let at = |span: Span| &text[span.range()];
    let function = &module.functions[0];
    assert_eq!(at(function.span), &text[10..]);
    assert_eq!(at(function.name_span), "f");
    assert_eq!(at(function.body[0].span), "let x = (a + b) * c;");
    assert_eq!(at(function.body[1].span), "g(x)");
    let crate::model::StmtKind::Assign { value: Some(value), .. } = &function.body[0].kind else {
        panic!("{:?}", function.body)
    };
    assert_eq!(at(value.span), "(a + b) * c");
    let crate::model::ExprKind::Binary { left, .. } = &value.kind else { panic!("{value:?}") };
    assert_eq!(at(left.span), "a + b");
}

#[test]
fn names_in_format_strings_have_their_own_place() {
    let text = "fn f() { println!(r#\"ä {loss:>width$} {0}\"#, x); }";
    let module = lowered(text);
    let mut names = Vec::new();
    super::corpus::walk(&module, &mut |expr| {
        if let crate::model::ExprKind::Name(name) = expr.kind {
            names.push((name.as_str(), &text[expr.span.range()]));
        }
    });
    names.retain(|(name, _)| *name != "println!");
    assert_eq!(names, [("loss", "loss"), ("width", "width"), ("x", "x")]);
}

#[test]
fn comments_are_found_and_docs_and_strings_are_not() {
    let text = "// a\n/// doc\nfn f() { g(\"// no\", r#\"/* no */ \"# , '\"'); /* b /* c */ */ \
         // d\n}\n//// e\n//! no\n/** no */\n/*** f */ /**/ struct A<'a>(&'a str); // 'x";
    let comments = lower(text, "crate").comments;
    let found: Vec<_> = comments.iter().map(|c| (&*c.text, c.own_line)).collect();
    assert_eq!(
        found,
        [
            ("a", true),
            ("b /* c */", false),
            ("d", false),
            ("e", true),
            ("** f", true),
            ("", false),
            ("'x", false)
        ]
    );
    assert_eq!(&text[comments[1].span.range()], "/* b /* c */ */");
}

#[test]
fn byte_order_mark_and_interpreter_line_keep_places() {
    for prefix in ["\u{feff}", "#!/usr/bin/env run\n", "\u{feff}#!/usr/bin/env run\n"] {
        let text = format!("{prefix}fn name() {{}}");
        let module = lowered(&text);
        assert_eq!(&text[module.functions[0].name_span.range()], "name");
    }
    check("#![allow(x)]\nfn f() {}", "fn f()");
}

#[test]
fn carriage_returns_and_wide_letters_keep_places() {
    let text = "fn f() {\r\n    let ä = \"😀\";\r\n    g(ä) // ü\r\n}\r\n";
    let module = lowered(text);
    assert_eq!(&text[module.functions[0].body[1].span.range()], "g(ä)");
    assert_eq!(&*module.comments[0].text, "ü");
}
