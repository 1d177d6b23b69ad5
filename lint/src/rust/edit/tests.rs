//! Edits of Rust texts in many layouts; every result parses.

use super::{Editor, Reached, is_operand};
use crate::finding::Edit;
use crate::fixes::edited;
use crate::model::{Expr, ExprKind, FileId, Span, Stmt};
use crate::project::SourceFile;
use crate::rust::lower;
use crate::rust::tests::corpus;

fn file(text: &str) -> SourceFile {
    let module = lower(text, "crate");
    assert!(module.errors.is_empty(), "{text}\n{:?}", module.errors);
    let path = "src/main.rs".to_owned();
    SourceFile::new(FileId(0), path, text.into(), module, true)
}

/// A text whose `«` and `»` stand around the place to edit.
struct Marked {
    file: SourceFile,
    at: Span,
}

impl Marked {
    fn new(marked: &str) -> Self {
        let start = marked.find('«').expect("a mark");
        let text = marked.replace('«', "");
        let end = text.find('»').expect("an end mark");
        Self { file: file(&text.replace('»', "")), at: Span::new(start, end) }
    }

    fn editor(&self) -> Editor<'_> {
        Editor::new(&self.file)
    }

    fn statement(&self) -> &Stmt {
        self.editor().statement_at(self.at).expect("a statement")
    }

    /// Makes the edits; the result must parse.
    #[track_caller]
    fn apply(&self, edits: impl IntoIterator<Item = Edit>) -> String {
        let mut edits: Vec<Edit> = edits.into_iter().collect();
        edits.sort_by_key(|edit| edit.site);
        let new = edited(&self.file.text, &edits.iter().collect::<Vec<_>>());
        let module = lower(&new, "crate");
        assert!(module.errors.is_empty(), "{new}\n{:?}", module.errors);
        new
    }

    /// The call that the marks stand around.
    fn with_call<T>(&self, act: impl FnOnce(&Expr) -> T) -> T {
        let mut act = Some(act);
        let mut result = None;
        corpus::walk(&self.file.module, &mut |expr| {
            if expr.span == self.at
                && matches!(expr.kind, ExprKind::Call { .. })
                && let Some(act) = act.take()
            {
                result = Some(act(expr));
            }
        });
        result.expect("a call between the marks")
    }
}

#[track_caller]
fn wraps(marked: &str, expected: &str) {
    let marked = Marked::new(marked);
    let edits = marked.editor().guard(marked.at, "ok").expect("can be wrapped");
    assert_eq!(marked.apply(edits), expected);
}

#[track_caller]
fn cannot_wrap(marked: &str) {
    let marked = Marked::new(marked);
    assert_eq!(marked.editor().guard(marked.at, "ok"), None);
}

#[test]
fn a_statement_on_its_own_line_is_wrapped_and_indented() {
    wraps(
        "fn f() {\n    a();\n    «b»();\n    c();\n}\n",
        "fn f() {\n    a();\n    if ok {\n        b();\n    }\n    c();\n}\n",
    );
}

#[test]
fn any_place_inside_names_the_statement() {
    wraps(
        "fn f() -> R {\n    vs.save(«x»)?;\n    Ok(())\n}\n",
        "fn f() -> R {\n    if ok {\n        vs.save(x)?;\n    }\n    Ok(())\n}\n",
    );
    wraps(
        "impl A {\n    fn f(&self) {\n        a(«b»);\n    }\n}\n",
        "impl A {\n    fn f(&self) {\n        if ok {\n            a(b);\n        }\n    }\n}\n",
    );
    wraps(
        "fn f() {\n    println!(\"{«x»}\");\n}\n",
        "fn f() {\n    if ok {\n        println!(\"{x}\");\n    }\n}\n",
    );
}

#[test]
fn every_line_of_a_long_statement_is_indented() {
    wraps(
        "fn f() {\n\t«a(\n\t\tb,\n\n\t\tc, // why\n\t)\n\t.d();»\n}\n",
        "fn f() {\n\tif ok {\n\t\ta(\n\t\t\tb,\n\n\t\t\tc, // why\n\t\t)\n\t\t.d();\n\t}\n}\n",
    );
    wraps(
        "fn f() {\r\n  «a(\r\n    b);»\r\n}\r\n",
        "fn f() {\r\n  if ok {\r\n    a(\r\n      b);\r\n  }\r\n}\r\n",
    );
}

#[test]
fn strings_over_several_lines_keep_their_text() {
    wraps(
        "fn f() {\n    «println!(\"a\n  b\",\n        c);»\n}\n",
        "fn f() {\n    if ok {\n        println!(\"a\n  b\",\n            c);\n    }\n}\n",
    );
}

#[test]
fn statements_that_share_a_line_are_wrapped_in_it() {
    wraps("fn f() { a(); «b();» c(); }", "fn f() { a(); if ok { b(); } c(); }");
    wraps("fn f() { «b()» }", "fn f() { if ok { b() } }");
    wraps(
        "fn f() {\n    for x in y { «println!()» }\n}\n",
        "fn f() {\n    for x in y { if ok { println!() } }\n}\n",
    );
    wraps(
        "fn f() {\n    x.iter().for_each(|x| «println!(\"{x}\")»);\n}\n",
        "fn f() {\n    x.iter().for_each(|x| if ok { println!(\"{x}\") });\n}\n",
    );
}

#[test]
fn arms_are_wrapped_before_their_comma() {
    wraps(
        "fn f() {\n    match x {\n        1 => «a»(),\n        _ => {}\n    }\n}\n",
        "fn f() {\n    match x {\n        1 => if ok { a() },\n        _ => {}\n    }\n}\n",
    );
}

#[test]
fn the_last_statement_of_a_function_without_a_type_is_wrapped() {
    wraps("fn f() {\n    «a()»\n}\n", "fn f() {\n    if ok {\n        a()\n    }\n}\n");
    wraps(
        "fn f() {\n    a(); // why\n    «b(); »// more\n}\n"
            .replace("»", "")
            .replace("b(); ", "b();» ")
            .as_str(),
        "fn f() {\n    a(); // why\n    if ok {\n        b();\n    } // more\n}\n",
    );
}

#[test]
fn control_flow_is_wrapped_whole() {
    wraps(
        "fn f() {\n    «for x in y {\n        a(x);\n    }»\n    b();\n}\n",
        "fn f() {\n    if ok {\n        for x in y {\n            a(x);\n        }\n    }\n    \
             b();\n}\n",
    );
    wraps(
        "fn f() {\n    «if a {\n        b();\n    } else {\n        c();\n    }»\n}\n",
        "fn f() {\n    if ok {\n        if a {\n            b();\n        } else {\n            \
             c();\n        }\n    }\n}\n",
    );
}

#[test]
fn attributes_belong_to_their_statement() {
    wraps(
        "fn f() {\n    #[cfg(unix)]\n    «a();»\n}\n",
        "fn f() {\n    if ok {\n        #[cfg(unix)]\n        a();\n    }\n}\n",
    );
    inserts(
        "fn f() {\n    #[a] #[b(c)]\n    «d();»\n}\n",
        Some("fn f() {\n    n();\n    #[a] #[b(c)]\n    d();\n}\n"),
        Some("fn f() {\n    #[a] #[b(c)]\n    d();\n    n();\n}\n"),
    );
    removes("fn f() {\n    #[a]\n    «d();»\n}\n", Some("fn f() {\n}\n"));
}

#[test]
fn values_and_bindings_are_not_wrapped() {
    cannot_wrap("fn f() { let x = «a()»; }");
    cannot_wrap("fn f() { let Some(x) = «a()» else { return }; }");
    cannot_wrap("fn f() -> T { «a()» }");
    cannot_wrap("fn f() -> T { if x { «a()» } else { b() } }");
    cannot_wrap("fn f() { let x = if y { «a()» } else { b() }; }");
    cannot_wrap("fn f() { let x = match y { 1 => «a()», _ => b() }; }");
    cannot_wrap("fn f() { x.map(|y| «a»(y)); }".replace("«a»(y)", "«y»").as_str());
    cannot_wrap("fn f() { let x = loop { break «a()»; }; }");
    cannot_wrap("const X: i64 = «1»;");
    cannot_wrap("«use a::b;»");
    cannot_wrap("«fn» f() {}");
}

#[track_caller]
fn replaces(marked: &str, text: &str, expected: &str) {
    let marked = Marked::new(marked);
    assert_eq!(marked.apply([marked.editor().replace(marked.at, text)]), expected);
}

#[test]
fn replacements_get_parentheses_where_they_need_them() {
    replaces("fn f() { g(«x»); }", "a + b", "fn f() { g(a + b); }");
    replaces("fn f() { «x».g(); }", "a + b", "fn f() { (a + b).g(); }");
    replaces("fn f() { «x».g(); }", "a.b(c + d)?", "fn f() { a.b(c + d)?.g(); }");
    replaces("fn f() { «x».g(); }", "&a", "fn f() { (&a).g(); }");
    replaces("fn f() { y = «x»; }", "a + b", "fn f() { y = a + b; }");
    replaces("fn f() { y = 2 * «x»; }", "a + b", "fn f() { y = 2 * (a + b); }");
    replaces("fn f() { y = «x» == z; }", "a && b", "fn f() { y = (a && b) == z; }");
    replaces("fn f() { y == «x»; }", "a && b", "fn f() { y == (a && b); }");
    replaces("fn f() { -«x»; }", "a - b", "fn f() { -(a - b); }");
    replaces("fn f() { if «x» { y } }", "a || b", "fn f() { if a || b { y } }");
    replaces("fn f() { «x» as i64; }", "a + b", "fn f() { (a + b) as i64; }");
    replaces("fn f() { «x»[0]; }", "a as B", "fn f() { (a as B)[0]; }");
    replaces("fn f() { (|y| «x», 1); }", "a + b", "fn f() { (|y| a + b, 1); }");
    replaces(
        "fn f() { match y { 1 => «x», _ => z } }",
        "a + b",
        "fn f() { match y { 1 => a + b, _ => z } }",
    );
    replaces("fn f() { S { y: «x» } }", "a + b", "fn f() { S { y: a + b } }");
    replaces("fn f() { g(&«x»); }", "ddp.vars()", "fn f() { g(&ddp.vars()); }");
    replaces("fn f() { y..«x»; }", "a + b", "fn f() { y..(a + b); }");
}

#[test]
fn operands() {
    for text in [
        "x",
        "a.b",
        "a::b",
        "f(x)",
        "a.b::<C>(d)".trim_end_matches("::<C>(d)"),
        "[1, 2]",
        "(a + b)",
        "x?",
        "m!(a)",
        "\"s\"",
        "1.5",
    ] {
        assert!(is_operand(text), "{text}");
    }
    for text in [
        "a + b",
        "-1",
        "&a",
        "!a",
        "a as b",
        "|x| y",
        "a..b",
        "if a { b } else { c }",
        "A { b }",
        "return x",
    ] {
        assert!(!is_operand(text), "{text}");
    }
}

#[test]
fn texts_go_around_expressions() {
    let marked = Marked::new("fn f() { g(«x + 1», y); }");
    let edits = marked.editor().surround(marked.at, "h(", ")");
    assert_eq!(marked.apply(edits), "fn f() { g(h(x + 1), y); }");
}

#[track_caller]
fn changes_call(
    marked: &str,
    change: impl FnOnce(&Editor<'_>, &Expr) -> Option<Vec<Edit>>,
    expected: &str,
) {
    let marked = Marked::new(marked);
    let edits = marked.with_call(|call| change(&marked.editor(), call)).expect("can be changed");
    assert_eq!(marked.apply(edits), expected);
}

#[test]
fn receivers_are_replaced_whole() {
    let change = |text: &'static str| {
        move |editor: &Editor<'_>, call: &Expr| {
            editor.replace_receiver(call, text).map(|edit| vec![edit])
        }
    };
    changes_call(
        "fn f() { «opt.backward_step(&loss)»; }",
        change("ddp"),
        "fn f() { ddp.backward_step(&loss); }",
    );
    changes_call("fn f() { «(a + b).c()»; }", change("x"), "fn f() { x.c(); }");
    changes_call(
        "fn f() { «(*self.net).forward(x)»; }",
        change("self.ddp"),
        "fn f() { self.ddp.forward(x); }",
    );
    changes_call(
        "fn f() { «a?\n    .b::<C>(x)»; }",
        change("y + 1"),
        "fn f() { (y + 1)\n    .b::<C>(x); }",
    );
    changes_call(
        "fn f() { «a // why.\n    .b()»; }",
        change("x"),
        "fn f() { x // why.\n    .b(); }",
    );
    let marked = Marked::new("fn f() { «a::b(x)»; }");
    assert_eq!(marked.with_call(|call| marked.editor().replace_receiver(call, "y")), None);
}

#[test]
fn arguments_are_replaced_and_added() {
    let replace = |editor: &Editor<'_>, call: &Expr| {
        editor.replace_arguments(call, "a, &b").map(|edit| vec![edit])
    };
    changes_call("fn f() { «g(x, (y, z))»; }", replace, "fn f() { g(a, &b); }");
    changes_call("fn f() { «g::<(A, B)>()»; }", replace, "fn f() { g::<(A, B)>(a, &b); }");
    changes_call("fn f() { «x.g(y)(z)»; }", replace, "fn f() { x.g(y)(a, &b); }");
    changes_call("fn f() { «println![\"{}\", x]»; }", replace, "fn f() { println![a, &b]; }");
    let add = |editor: &Editor<'_>, call: &Expr| editor.add_argument(call, "b");
    changes_call("fn f() { «g()»; }", add, "fn f() { g(b); }");
    changes_call("fn f() { «g( )»; }", add, "fn f() { g(b); }");
    changes_call("fn f() { «g(a)»; }", add, "fn f() { g(a, b); }");
    changes_call("fn f() { «g(a,)»; }", add, "fn f() { g(a, b,); }");
    changes_call(
        "fn f() {\n    «g(\n        a,\n        c, // why\n    )»;\n}",
        add,
        "fn f() {\n    g(\n        a,\n        c,\n        b, // why\n    );\n}",
    );
}

#[track_caller]
fn inserts(marked: &str, before: Option<&str>, after: Option<&str>) {
    let marked = Marked::new(marked);
    let editor = marked.editor();
    let made = |edit: Option<Edit>| edit.map(|edit| marked.apply([edit]));
    assert_eq!(made(editor.insert_before(marked.statement(), "n();")).as_deref(), before);
    assert_eq!(made(editor.insert_after(marked.statement(), "n();")).as_deref(), after);
}

#[test]
fn statements_are_inserted_in_blocks() {
    inserts(
        "fn f() {\n    a();\n    b(«x»);\n}\n",
        Some("fn f() {\n    a();\n    n();\n    b(x);\n}\n"),
        Some("fn f() {\n    a();\n    b(x);\n    n();\n}\n"),
    );
    inserts(
        "fn f() { a(); «b()» }",
        Some("fn f() { a(); n(); b() }"),
        Some("fn f() { a(); b(); n(); }"),
    );
    inserts("fn f() -> T { «b()» }", Some("fn f() -> T { n(); b() }"), None);
    inserts(
        "fn f() -> T { return «b()» }",
        Some("fn f() -> T { n(); return b() }"),
        Some("fn f() -> T { return b(); n(); }"),
    );
    inserts(
        "fn f() {\n    «for x in y {}»\n}\n",
        Some("fn f() {\n    n();\n    for x in y {}\n}\n"),
        Some("fn f() {\n    for x in y {}\n    n();\n}\n"),
    );
    inserts(
        "fn f() { «m! { x }» }",
        Some("fn f() { n(); m! { x } }"),
        Some("fn f() { m! { x } n(); }"),
    );
    inserts("fn f() { match x { 1 => «a()», _ => {} } }", None, None);
    inserts("fn f() { let g = |x| «h(x)»; }", None, None);
    inserts(
        "fn f() { let x = if y { «z» } else { 1 }; }",
        Some("fn f() { let x = if y { n(); z } else { 1 }; }"),
        None,
    );
    inserts(
        "fn f() {\n    «let x = a\n        .b();»\n}\n",
        Some("fn f() {\n    n();\n    let x = a\n        .b();\n}\n"),
        Some("fn f() {\n    let x = a\n        .b();\n    n();\n}\n"),
    );
}

#[test]
fn inserted_lines_have_the_margin_of_their_block() {
    let marked = Marked::new("fn f() {\n    {\n        «a();»\n    }\n}\n");
    let edit =
        marked.editor().insert_before(marked.statement(), "if x {\n    y();\n}").expect("a block");
    assert_eq!(
        marked.apply([edit]),
        "fn f() {\n    {\n        if x {\n            y();\n        }\n        a();\n    }\n}\n"
    );
}

#[track_caller]
fn removes(marked: &str, expected: Option<&str>) {
    let marked = Marked::new(marked);
    let edit = marked.editor().remove(marked.statement());
    assert_eq!(edit.map(|edit| marked.apply([edit])).as_deref(), expected);
}

#[test]
fn statements_are_removed_with_their_lines() {
    removes(
        "fn f() {\n    a();\n    «b»();\n    c();\n}\n",
        Some("fn f() {\n    a();\n    c();\n}\n"),
    );
    removes("fn f() {\n    «a(\n        b,\n    );»\n}\n", Some("fn f() {\n}\n"));
    removes("fn f() { a(); «b();» c(); }", Some("fn f() { a();  c(); }"));
    removes("fn f() {\n    «a();» // why\n}\n", Some("fn f() {\n     // why\n}\n"));
    removes("fn f() -> T { «a()» }", None);
    removes("fn f() { match x { 1 => «a()», _ => {} } }", None);
}

#[track_caller]
fn attributes(marked: &str, expected: &str) {
    let marked = Marked::new(marked);
    let item = marked.file.module.classes.first().map_or(marked.at, |class| class.span);
    assert_eq!(marked.apply([marked.editor().add_attribute(item, "#[a]")]), expected);
}

#[test]
fn attributes_go_above_items_and_below_their_docs() {
    attributes("/// Docs.\npub struct «A»;\n", "/// Docs.\n#[a]\npub struct A;\n");
    attributes("#[derive(Debug)]\nstruct «A»;\n", "#[a]\n#[derive(Debug)]\nstruct A;\n");
    attributes("mod m {\n    struct «A»;\n}\n", "mod m {\n    #[a]\n    struct A;\n}\n");
    attributes("fn f() {} struct «A»;\n", "fn f() {} #[a] struct A;\n");
}

#[track_caller]
fn adds_use(marked: &str, path: &str, expected: Option<&str>) {
    let marked = Marked::new(marked);
    let edit = marked.editor().add_use(marked.at, path);
    let made = edit.map(|edit| marked.apply([edit]));
    assert_eq!(made.as_deref(), expected);
}

#[test]
fn uses_go_to_their_place_in_the_order() {
    let before = "use anyhow::Result;\nuse tch::{nn, Tensor};\n\nfn «f»() {}\n";
    adds_use(
        before,
        "tch_ddp::Ddp",
        Some("use anyhow::Result;\nuse tch::{nn, Tensor};\nuse tch_ddp::Ddp;\n\nfn f() {}\n"),
    );
    adds_use(
        before,
        "rand::Rng",
        Some("use anyhow::Result;\nuse rand::Rng;\nuse tch::{nn, Tensor};\n\nfn f() {}\n"),
    );
    adds_use(
        before,
        "aa::B",
        Some("use aa::B;\nuse anyhow::Result;\nuse tch::{nn, Tensor};\n\nfn f() {}\n"),
    );
}

#[test]
fn uses_join_the_group_of_other_crates() {
    adds_use(
        "use std::fs;\n\nuse tch::nn; // why\n\nuse crate::a;\n\nfn «f»() {}\n",
        "tch_ddp::Ddp",
        Some(
            "use std::fs;\n\nuse tch::nn; // why\nuse tch_ddp::Ddp;\n\nuse crate::a;\n\nfn f() \
                 {}\n",
        ),
    );
    adds_use(
        "use std::fs;\nfn «f»() {}\n",
        "tch_ddp::Ddp",
        Some("use std::fs;\nuse tch_ddp::Ddp;\nfn f() {}\n"),
    );
    adds_use(
        "pub use a::b;\nuse std::fs;\nfn «f»() {}\n",
        "aa::B",
        Some("pub use a::b;\nuse aa::B;\nuse std::fs;\nfn f() {}\n"),
    );
}

#[test]
fn a_use_that_is_there_is_not_added() {
    adds_use("use tch_ddp::Ddp;\nfn «f»() {}\n", "tch_ddp::Ddp", None);
    adds_use("use tch_ddp::{Launch, Ddp};\nfn «f»() {}\n", "tch_ddp::Ddp", None);
    adds_use("use tch_ddp::*;\nfn «f»() {}\n", "tch_ddp::Ddp", None);
    adds_use("use tch_ddp;\nfn «f»() {}\n", "tch_ddp", None);
    adds_use(
        "use tch_ddp::Ddp as D;\nfn «f»() {}\n",
        "tch_ddp::Ddp",
        Some("use tch_ddp::Ddp;\nuse tch_ddp::Ddp as D;\nfn f() {}\n"),
    );
    // A function's own `use` serves that function alone.
    adds_use(
        "fn g() { use a::B; }\nfn «f»() {}\n",
        "a::B",
        Some("use a::B;\n\nfn g() { use a::B; }\nfn f() {}\n"),
    );
}

#[test]
fn files_without_uses_get_one_at_the_top() {
    adds_use("fn «f»() {}\n", "a::B", Some("use a::B;\n\nfn f() {}\n"));
    adds_use(
        "//! Docs.\n//! More.\n\nfn «f»() {}\n",
        "a::B",
        Some("//! Docs.\n//! More.\n\nuse a::B;\n\nfn f() {}\n"),
    );
    adds_use(
        "#![allow(x)]\n/// Docs.\nfn «f»() {}\n",
        "a::B",
        Some("#![allow(x)]\n\nuse a::B;\n/// Docs.\nfn f() {}\n"),
    );
    adds_use(
        "//! Docs.\n#![allow(x)]\n\nfn «f»() {}\n",
        "a::B",
        Some("//! Docs.\n#![allow(x)]\n\nuse a::B;\n\nfn f() {}\n"),
    );
    adds_use(
        "#!/usr/bin/env run\nfn «f»() {}\n",
        "a::B",
        Some("#!/usr/bin/env run\n\nuse a::B;\nfn f() {}\n"),
    );
    adds_use(
        "#![allow(x)]\nuse z::Z;\nfn «f»() {}\n",
        "a::B",
        Some("#![allow(x)]\nuse a::B;\nuse z::Z;\nfn f() {}\n"),
    );
    adds_use("\u{feff}fn «f»() {}\n", "a::B", Some("\u{feff}use a::B;\n\nfn f() {}\n"));
}

#[test]
fn inline_modules_have_uses_of_their_own() {
    adds_use(
        "use a::B;\n\nmod m {\n    use a::C;\n\n    fn «f»() {}\n}\n",
        "a::B",
        Some("use a::B;\n\nmod m {\n    use a::B;\n    use a::C;\n\n    fn f() {}\n}\n"),
    );
    adds_use(
        "mod m {\n    fn «f»() {}\n}\n",
        "a::B",
        Some("mod m {\n    use a::B;\n\n    fn f() {}\n}\n"),
    );
    adds_use("mod m { fn «f»() {} }\n", "a::B", Some("mod m { use a::B; fn f() {} }\n"));
}

#[test]
fn uses_on_one_line() {
    adds_use(
        "use c::D; use e::F; fn «f»() {}",
        "a::B",
        Some("use a::B;\nuse c::D; use e::F; fn f() {}"),
    );
    adds_use(
        "use c::D; use e::F; fn «f»() {}",
        "d::E",
        Some("use c::D; use d::E; use e::F; fn f() {}"),
    );
    adds_use(
        "use c::D;\r\nfn «f»() {}\r\n",
        "d::E",
        Some("use c::D;\r\nuse d::E;\r\nfn f() {}\r\n"),
    );
    adds_use(
        "use c::{\n    D,\n    E,\n};\nfn «f»() {}\n",
        "d::E",
        Some("use c::{\n    D,\n    E,\n};\nuse d::E;\nfn f() {}\n"),
    );
    adds_use(
        "#[cfg(unix)]\nuse c::D;\nfn «f»() {}\n",
        "a::B",
        Some("use a::B;\n#[cfg(unix)]\nuse c::D;\nfn f() {}\n"),
    );
}

/// Every statement of this crate's own sources, wrapped, still parses.
#[test]
fn all_statements_of_real_code_can_be_edited() {
    let texts =
        [include_str!("../lower/stmts.rs"), include_str!("../crates.rs"), include_str!("uses.rs")];
    for text in texts {
        let file = file(text);
        let editor = Editor::new(&file);
        let mut places = Vec::new();
        corpus::walk(&file.module, &mut |expr| places.push(expr.span));
        places.sort();
        places.dedup();
        for at in places.into_iter().step_by(61) {
            let Some(stmt) = editor.statement_at(at) else { continue };
            let edits = [
                editor.guard(at, "ok"),
                editor.insert_before(stmt, "const _: () = ();").map(|edit| vec![edit]),
                editor.insert_after(stmt, "const _: () = ();").map(|edit| vec![edit]),
                editor.remove(stmt).map(|edit| vec![edit]),
                editor.add_use(at, "m::N").map(|edit| vec![edit]),
            ];
            for mut edits in edits.into_iter().flatten() {
                edits.sort_by_key(|edit| edit.site);
                let new = edited(text, &edits.iter().collect::<Vec<_>>());
                let errors = lower(&new, "crate").errors;
                assert!(errors.is_empty(), "{:?}: {edits:?} {errors:?}", &text[at.range()]);
            }
        }
    }
}

#[test]
fn several_statements_get_one_guard() {
    wraps(
        "fn f() {\n    a();\n    «b();\n    c();»\n    d();\n}\n",
        "fn f() {\n    a();\n    if ok {\n        b();\n        c();\n    }\n    d();\n}\n",
    );
    wraps("fn f() { «a(); b();» c(); }", "fn f() { if ok { a(); b(); } c(); }");
    wraps("fn f() { for x in y { «a(); b();» } }", "fn f() { for x in y { if ok { a(); b(); } } }");
    cannot_wrap("fn f() { «a(); let x = b();» c(x); }");
    cannot_wrap("fn f() -> T { «a(); b()» }");
}

#[test]
fn arguments_are_removed_with_their_comma() {
    let at =
        |index: usize| move |editor: &Editor<'_>, call: &Expr| editor.remove_argument(call, index);
    changes_call("fn f() { «g(a, b)»; }", at(0), "fn f() { g(b); }");
    changes_call("fn f() { «g(a, b)»; }", at(1), "fn f() { g(a); }");
    changes_call("fn f() { «g(a, &b, c)»; }", at(1), "fn f() { g(a, c); }");
    changes_call("fn f() { «g(a)»; }", at(0), "fn f() { g(); }");
    changes_call("fn f() { «g(a,)»; }", at(0), "fn f() { g(); }");
    changes_call("fn f() { «g(a, b,)»; }", at(1), "fn f() { g(a,); }");
    changes_call(
        "fn f() {\n    «g(\n        a,\n        b,\n    )»;\n}",
        at(1),
        "fn f() {\n    g(\n        a,\n    );\n}",
    );
    let marked = Marked::new("fn f() { «g(a)»; }");
    assert_eq!(marked.with_call(|call| marked.editor().remove_argument(call, 1)), None);
}

#[test]
fn inserted_code_has_the_indentation_of_the_file() {
    let marked = Marked::new("fn f() {\r\n\t«a();»\r\n}\r\n");
    let edit =
        marked.editor().insert_after(marked.statement(), "if x {\n    y();\n\n    z();\n}\n");
    assert_eq!(
        marked.apply(edit),
        "fn f() {\r\n\ta();\r\n\tif x {\r\n\t\ty();\r\n\r\n\t\tz();\r\n\t}\r\n}\r\n"
    );
}

#[test]
fn names_are_found_in_use_items() {
    let known = |text: &str, dotted: &str| {
        let marked = Marked::new(text);
        marked.editor().known_as(marked.at, dotted)
    };
    let text =
        "use tch::{nn, nn::Adam, Tensor as T};\nuse tch_ddp::*;\nuse a::B as _;\nfn «f»() {}\n";
    assert_eq!(known(text, "tch.nn.Adam").as_deref(), Some("Adam"));
    assert_eq!(known(text, "tch.nn.Sgd").as_deref(), Some("nn::Sgd"));
    assert_eq!(known(text, "tch.Tensor").as_deref(), Some("T"));
    assert_eq!(known(text, "tch_ddp.Ddp").as_deref(), Some("Ddp"));
    assert_eq!(known(text, "tch.nnx"), None);
    assert_eq!(known(text, "a.B"), None);
    assert_eq!(known("use a::B;\nmod m { fn «f»() {} }\n", "a.B"), None);
}

#[test]
fn things_are_reached_by_name_by_use_or_by_path() {
    let reach = |text: &str, dotted: &str| {
        let marked = Marked::new(text);
        let Reached { name, import } = marked.editor().reach(marked.at, dotted);
        (name, import.map(|edit| marked.apply([edit])))
    };
    let name = |name: &str| (name.to_owned(), None);
    assert_eq!(reach("use tch_ddp::Ddp;\nfn «f»() {}\n", "tch_ddp.Ddp"), name("Ddp"));
    assert_eq!(
        reach("use tch::nn;\nfn «f»() {}\n", "tch_ddp.Ddp"),
        ("Ddp".into(), Some("use tch::nn;\nuse tch_ddp::Ddp;\nfn f() {}\n".into()))
    );
    assert_eq!(reach("struct Ddp;\nfn «f»() {}\n", "tch_ddp.Ddp"), name("tch_ddp::Ddp"));
    assert_eq!(reach("use other::Ddp;\nfn «f»() {}\n", "tch_ddp.Ddp"), name("tch_ddp::Ddp"));
}

#[test]
fn string_literals_are_escaped() {
    let file = file("fn f() {}");
    assert_eq!(Editor::new(&file).string("a\"b\\\n"), r#""a\"b\\\n""#);
}
