use crate::rust::dump::dump;
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
