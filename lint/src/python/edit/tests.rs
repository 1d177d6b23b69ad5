//! Behaviour of the editor: each edit in many layouts; what comes out parses.

use super::*;
use crate::model::{Expr, ExprKind, FileId};
use crate::python::lower;
use crate::python::walk::{self, Node};

pub(super) fn file(text: &str) -> SourceFile {
    SourceFile::new(FileId(0), "a.py".to_owned(), text.into(), lower(text), true)
}

/// Makes the edits; the result must parse.
pub(super) fn apply(text: &str, edits: Vec<Edit>) -> String {
    let mut edits = edits;
    edits.sort_by_key(|edit| edit.site.span);
    let after = crate::fixes::edited(text, &edits.iter().collect::<Vec<_>>());
    let errors = lower(&after).errors;
    assert!(errors.is_empty(), "from\n{text}\nto\n{after}\n{errors:?}");
    after
}

/// The call of `f` in a text.
fn call(file: &SourceFile) -> &Expr {
    let mut found = None;
    walk::everything(&file.module, |_, node| {
        if let Node::Expr(expr @ Expr { kind: ExprKind::Call { callee, .. }, .. }) = node
            && callee.last_name().is_some_and(|name| name == "f")
        {
            found = Some(expr);
        }
    });
    found.expect("the text calls f")
}

fn check_call(text: &str, expected: &str, edit: impl Fn(&Editor<'_>, &Expr) -> Option<Vec<Edit>>) {
    for (text, expected) in [
        (text.to_owned(), expected.to_owned()),
        (text.replace('\n', "\r\n"), expected.replace('\n', "\r\n")),
        (format!("\u{feff}ä = 'ö'\n{text}"), format!("\u{feff}ä = 'ö'\n{expected}")),
    ] {
        let file = file(&text);
        let edits = edit(&Editor::new(&file), call(&file)).expect("the edit is possible");
        assert_eq!(apply(&text, edits), expected, "of\n{text}");
    }
}

#[test]
fn keywords_are_added_in_the_layout_of_the_call() {
    for (text, expected) in [
        ("f()", "f(k=1)"),
        ("f( )", "f(k=1 )"),
        ("f(\n)", "f(k=1\n)"),
        ("f(  # c\n)", "f(k=1  # c\n)"),
        ("f(a)", "f(a, k=1)"),
        ("f(a, b=2)", "f(a, b=2, k=1)"),
        ("f(a,)", "f(a, k=1,)"),
        ("f((a))", "f((a), k=1)"),
        ("f(((a) ) )", "f(((a) ), k=1 )"),
        ("(f)(a)", "(f)(a, k=1)"),
        ("x.f (a)", "x.f (a, k=1)"),
        ("f(*a, **b)", "f(*a, **b, k=1)"),
        ("f(a)(b)", "f(a, k=1)(b)"),
        ("f('#, )')", "f('#, )', k=1)"),
        ("f(lambda: (x, y))", "f(lambda: (x, y), k=1)"),
        ("f(x for x in y)", "f((x for x in y), k=1)"),
        ("f((x) for x in (y))", "f(((x) for x in (y)), k=1)"),
        ("f((x for x in y))", "f((x for x in y), k=1)"),
        ("f([x for x in y])", "f([x for x in y], k=1)"),
        ("f(\n    a,\n    b,\n)", "f(\n    a,\n    b,\n    k=1,\n)"),
        ("f(\n    a,\n    b\n)", "f(\n    a,\n    b,\n    k=1\n)"),
        ("f(\n\ta,  # one\n\tb,  # two\n)", "f(\n\ta,  # one\n\tb,  # two\n\tk=1,\n)"),
        ("f(\n    a  # one\n)", "f(\n    a,  # one\n    k=1\n)"),
        ("f(\n    a\n    # later\n    ,\n)", "f(\n    a\n    # later\n    ,\n    k=1,\n)"),
        ("f(a,\n  b)", "f(a,\n  b,\n  k=1)"),
        ("f(a,\n  b, c)", "f(a,\n  b, c, k=1)"),
        ("f(\n    a, b\n)", "f(\n    a, b, k=1\n)"),
        ("f(a, [\n    1,\n])", "f(a, [\n    1,\n], k=1)"),
        ("f(a, \\\n  b)", "f(a, \\\n  b,\n  k=1)"),
        ("f(\n    a=(\n        1\n    ),\n)", "f(\n    a=(\n        1\n    ),\n    k=1,\n)"),
        ("f('''\n  (\n''')", "f('''\n  (\n''', k=1)"),
        ("@f(a)\ndef g(): pass", "@f(a, k=1)\ndef g(): pass"),
        ("g(f(a), b)", "g(f(a, k=1), b)"),
    ] {
        check_call(text, expected, |editor, call| editor.set_keyword(call, "k", "1"));
    }
}

#[test]
fn keywords_are_replaced() {
    for (text, expected) in [
        ("f(k=0)", "f(k=1)"),
        ("f(a, k = x[0](y), b=2)", "f(a, k = 1, b=2)"),
        ("f(k=(0))", "f(k=(1))"),
        ("f(\n    k=g(\n        2\n    ),  # why\n)", "f(\n    k=1,  # why\n)"),
    ] {
        check_call(text, expected, |editor, call| editor.set_keyword(call, "k", "1"));
    }
}

#[test]
fn arguments_are_removed_with_their_commas() {
    for (text, expected) in [
        ("f(k=1)", "f()"),
        ("f(k=1,)", "f()"),
        ("f(a, k=1)", "f(a)"),
        ("f(a, k=1,)", "f(a,)"),
        ("f(k=1, a=2)", "f(a=2)"),
        ("f(a, k=(1), b=2)", "f(a, b=2)"),
        ("f((a), k=1)", "f((a))"),
        ("f(\n    a,\n    k=1,\n    b=2,\n)", "f(\n    a,\n    b=2,\n)"),
        ("f(\n    a,\n    k=1,  # why\n)", "f(\n    a,\n)"),
        ("f(\n    # of a\n    a,\n    # of k\n    k=1\n)", "f(\n    # of a\n    a,\n    # of k\n)"),
        ("f(a,\n  k=1)", "f(a)"),
        ("f(a,  # one\n  k=1)", "f(a,  # one\n  )"),
        ("f(\n    k=g(\n        2\n    ),\n    a=1\n)", "f(\n    a=1\n)"),
        ("f(k=1,\n  a=2)", "f(a=2)"),
        ("f(k=1,  # one\n  a=2)", "f(  # one\n  a=2)"),
        ("f(a, *b, k=1, **c)", "f(a, *b, **c)"),
    ] {
        check_call(text, expected, |editor, call| editor.remove_keyword(call, "k"));
    }
    let file = file("f(a)");
    assert!(Editor::new(&file).remove_keyword(call(&file), "k").is_none());
    check_call("f((a), b)", "f(b)", |editor, call| editor.remove_argument(call, 0));
    check_call("f(*a, b)", "f(b)", |editor, call| editor.remove_argument(call, 0));
}

/// Edits the statement that begins with `s`.
fn check_statement(
    text: &str,
    expected: Option<&str>,
    edit: impl Fn(&Editor<'_>, &Stmt) -> Option<Vec<Edit>>,
) {
    for line_end in ["\n", "\r\n"] {
        if line_end == "\r\n" && !text.contains('\n') {
            continue;
        }
        let text = text.replace('\n', line_end);
        let expected = expected.map(|expected| expected.replace('\n', line_end));
        let file = file(&text);
        let editor = Editor::new(&file);
        let at = text.find("s(").expect("the text has a statement s(..)") as u32;
        let stmt = editor.statement_at(Span { start: at, end: at + 1 }).unwrap();
        let after = edit(&editor, stmt).map(|edits| apply(&text, edits));
        assert_eq!(after, expected, "of\n{text}");
    }
}

#[test]
fn statements_are_put_under_a_guard() {
    for (text, expected) in [
        ("s()", "if r == 0:\n    s()"),
        ("s()  # c\nx", "if r == 0:\n    s()  # c\nx"),
        ("def g():\n  x\n  s()\n", "def g():\n  x\n  if r == 0:\n    s()\n"),
        ("if x:\n\ts()\n", "if x:\n\tif r == 0:\n\t\ts()\n"),
        ("s(\n    a,\n\n    b,\n)", "if r == 0:\n    s(\n        a,\n\n        b,\n    )"),
        ("s('''\na\n  ''', b,\n  c)", "if r == 0:\n    s('''\na\n  ''', b,\n      c)"),
        ("s('a\\\nb')", "if r == 0:\n    s('a\\\nb')"),
        ("s(f'''{\nx}''')\n", "if r == 0:\n    s(f'''{\nx}''')\n"),
        (
            "for y in s():\n    x  # c\n    # d\n\n    z\nw",
            "if r == 0:\n    for y in s():\n        x  # c\n        # d\n\n        z\nw",
        ),
        ("s(a) \\\n  .b()", "if r == 0:\n    s(a) \\\n  .b()"),
        ("@s()\ndef g():\n    pass", "if r == 0:\n    @s()\n    def g():\n        pass"),
    ] {
        check_statement(text, Some(expected), |editor, stmt| editor.guard(stmt.span, "r == 0"));
    }
    for text in ["a; s()", "s(); a", "if x: s()", "if x: pass\nelif s(): pass", "s() = ("] {
        check_statement(text, None, |editor, stmt| editor.guard(stmt.span, "r == 0"));
    }
}

#[test]
fn several_statements_are_put_under_one_guard() {
    let text = "def g():\n    a()\n    # of b\n    b()\n    c()\n";
    let file = file(text);
    let body = &file.module.functions[0].body;
    let edits = Editor::new(&file).guard(body[0].span.to(body[1].span), "x").unwrap();
    let expected = "def g():\n    if x:\n        a()\n        # of b\n        b()\n    c()\n";
    assert_eq!(apply(text, edits), expected);
}

#[test]
fn statements_are_inserted_before() {
    for (text, expected) in [
        ("s()", "new()\ns()"),
        ("for x in y:\n  # c\n  s()\n", "for x in y:\n  # c\n  new()\n  s()\n"),
        ("for x in y: s()", "for x in y: new(); s()"),
        ("a; s()", "a; new(); s()"),
        ("@s()\ndef g(): pass", "new()\n@s()\ndef g(): pass"),
        ("\u{feff}s()", "\u{feff}new()\ns()"),
    ] {
        check_statement(text, Some(expected), |editor, stmt| {
            Some(vec![editor.insert_before(stmt, "new()")?])
        });
    }
    let elif = "if x: pass\nelif s(): pass";
    check_statement(elif, None, |editor, stmt| Some(vec![editor.insert_before(stmt, "new()")?]));
    let code = "if a:\n    b()\n    if c:\n        d()\n\ne()\n";
    check_statement(
        "def g():\n\ts()",
        Some("def g():\n\tif a:\n\t\tb()\n\t\tif c:\n\t\t\td()\n\n\te()\n\ts()"),
        |editor, stmt| Some(vec![editor.insert_before(stmt, code)?]),
    );
    check_statement("if x: s()", None, |editor, stmt| {
        Some(vec![editor.insert_before(stmt, code)?])
    });
}

#[test]
fn statements_are_inserted_after() {
    for (text, expected) in [
        ("s()", "s()\nnew()"),
        ("s()  # c\nx\n", "s()  # c\nnew()\nx\n"),
        ("if x:\n  s(\n    1\n  )\nelse: y", "if x:\n  s(\n    1\n  )\n  new()\nelse: y"),
        ("for x in s():\n    y\n\nz", "for x in s():\n    y\nnew()\n\nz"),
        ("s(); x", "s(); new(); x"),
        ("s();", "s(); new();"),
        ("if x: s()", "if x: s(); new()"),
        ("if s(): x", "if s(): x\nnew()"),
        ("if a: x\nelif s(): y\nelse: z", "if a: x\nelif s(): y\nelse: z\nnew()"),
    ] {
        check_statement(text, Some(expected), |editor, stmt| {
            Some(vec![editor.insert_after(stmt, "new()")?])
        });
    }
    check_statement("if s(): x;", None, |editor, stmt| {
        Some(vec![editor.insert_after(stmt, "new()")?])
    });
    check_statement("s(); x", None, |editor, stmt| {
        Some(vec![editor.insert_after(stmt, "if new:\n    pass")?])
    });
}

#[test]
fn imports_go_below_the_first_imports() {
    for (text, expected) in [
        ("", "import new\n"),
        ("# c", "# c\nimport new\n"),
        ("x = 1\n", "import new\n\nx = 1\n"),
        ("#!/bin/python\n# c\n\nx = 1\n", "#!/bin/python\n# c\n\nimport new\n\nx = 1\n"),
        ("'doc'\nx\n", "'doc'\n\nimport new\nx\n"),
        ("'''doc\n'''  # c\n", "'''doc\n'''  # c\n\nimport new\n"),
        (
            "import a\nfrom b import (\n    c,\n)  # d\n\nx\n",
            "import a\nfrom b import (\n    c,\n)  # d\nimport new\n\nx\n",
        ),
        (
            "'doc'\nfrom __future__ import a\nx\n",
            "'doc'\nfrom __future__ import a\nimport new\nx\n",
        ),
        ("import a; x = (\n1)\ny", "import a; x = (\n1)\nimport new\ny"),
        ("import a\nx\nimport b\n", "import a\nimport new\nx\nimport b\n"),
        ("pass\nimport a", "import new\n\npass\nimport a"),
        ("\u{feff}x", "\u{feff}import new\n\nx"),
        ("@a\ndef f(): pass", "import new\n\n@a\ndef f(): pass"),
    ] {
        for line_end in ["\n", "\r\n"] {
            if line_end == "\r\n" && !text.contains('\n') {
                continue;
            }
            let text = text.replace('\n', line_end);
            let file = file(&text);
            let edit = Editor::new(&file).add_import("import new").unwrap();
            let after = apply(&text, vec![edit]);
            assert_eq!(after, expected.replace('\n', line_end), "of\n{text}");
        }
    }
    assert!(Editor::new(&file("x = (")).add_import("import new").is_none());
}

#[test]
fn names_are_reached_by_imports_that_are_there() {
    for (text, dotted, name) in [
        ("import torch", "torch.distributed.barrier", "torch.distributed.barrier"),
        ("import torch as th", "torch.distributed", "th.distributed"),
        ("import torch.nn", "torch.distributed", "torch.distributed"),
        (
            "import torch\nimport torch.distributed as dist",
            "torch.distributed.barrier",
            "dist.barrier",
        ),
        ("from torch import distributed as d", "torch.distributed.barrier", "d.barrier"),
        ("from os import environ", "os.environ", "environ"),
        ("import os", "os.environ", "os.environ"),
        ("import os.path", "os.path.join", "os.path.join"),
    ] {
        let file = file(text);
        assert_eq!(Editor::new(&file).known_as(dotted).as_deref(), Some(name), "{text}");
    }
    for (text, dotted) in [
        ("import a", "a.b.c"),
        ("import a.x", "a.b.c"),
        ("import torchvision", "torch.distributed"),
        ("from . import os", "os.environ"),
        ("def f():\n    import os", "os.environ"),
        ("from os import *", "os.environ"),
    ] {
        assert_eq!(Editor::new(&file(text)).known_as(dotted), None, "{text}");
    }
}

#[test]
fn names_that_are_not_there_are_imported() {
    let reach = |text: &str| {
        let file = file(text);
        let import = "import torch.distributed as dist";
        let reached = Editor::new(&file).reach("torch.distributed", import, "dist")?;
        Some((reached.name, apply(text, reached.import.into_iter().collect())))
    };
    let found = |name: &str, text: &str| Some((name.to_owned(), text.to_owned()));
    assert_eq!(reach("import torch\n"), found("torch.distributed", "import torch\n"));
    assert_eq!(
        reach("import os\n"),
        found("dist", "import os\nimport torch.distributed as dist\n")
    );
    assert_eq!(
        reach("import os\ndist = 1\n"),
        found("torch.distributed", "import os\nimport torch.distributed\ndist = 1\n")
    );
    assert_eq!(reach("def f(dist, torch): pass\n"), None);
    let file = file("class DistributedSampler: pass\n");
    let sampler = "torch.utils.data.distributed.DistributedSampler";
    let import = "from torch.utils.data.distributed import DistributedSampler";
    let reached = Editor::new(&file).reach(sampler, import, "DistributedSampler").unwrap();
    assert_eq!(reached.name, sampler);
    let text = "import torch.utils.data.distributed\n\nclass DistributedSampler: pass\n";
    assert_eq!(apply(&file.text, reached.import.into_iter().collect()), text);
}

#[test]
fn strings_are_quoted_as_the_file_does() {
    let string = |text: &str, value: &str| Editor::new(&file(text)).string(value);
    assert_eq!(string("x = 'a'", "RANK"), "'RANK'");
    assert_eq!(string("x = \"a\"", "RANK"), "\"RANK\"");
    assert_eq!(string("", "a\"b\\\n"), "\"a\\\"b\\\\\\n\"");
}

#[test]
fn the_innermost_statement_is_found() {
    let text = "class A:\n    def f(self):\n        try:\n            x = lambda: y\n        \
                finally:\n            z\nwith w: v\n";
    let file = file(text);
    let editor = Editor::new(&file);
    let at = |what: &str| {
        let start = text.find(what).unwrap() as u32;
        let stmt = editor.statement_at(Span { start, end: start + 1 }).unwrap();
        &text[stmt.span.range()]
    };
    assert_eq!(at("y\n"), "x = lambda: y");
    assert_eq!(at("z"), "z");
    assert_eq!(at("v"), "v");
    assert_eq!(at("w:"), "with w: v");
}
