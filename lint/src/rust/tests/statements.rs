//! How Rust statements lower to the program model.

use super::{check, check_body};

#[test]
fn bindings() {
    check_body("let x; x = 1; x", "x\nx = 1\nreturn x");
    check_body("let (mut a, _) = f(); a", "(a, _,) = f()\nreturn a");
    check_body("let Net { fc, .. } = net; fc", "Net { fc: fc } = net\nreturn fc");
    check_body("let _ = f(); 0", "_ = f()\nreturn 0");
    check_body("x.y = 1; a[0] = 2; *p = 3; 0", "x.y = 1\na[0] = 2\np = 3\nreturn 0");
    check_body("x += 1; x /= 2; x <<= 3; 0", "x += 1\nx /= 2\nx <<= 3\nreturn 0");
    check_body("(a, b) = (b, a); 0", "(a, b,) = (b, a,)\nreturn 0");
}

#[test]
fn let_else_binds_behind_itself() {
    check_body(
        "let Some(x) = y else { return 1; }; x",
        "
        if (let Some(x) = y)
        else
          return 1
        return x
        ",
    );
}

#[test]
fn conditions_and_loops() {
    check_body(
        "if a { f(); } else if let Some(b) = c { g(b) } else { h() }; 0",
        "
        if a
          f()
        else
          if (let Some(b) = c)
            g(b)
          else
            h()
        return 0
        ",
    );
    check_body(
        "for (i, x) in xs.iter().enumerate() { if i > 2 { continue; } break } 0",
        "
        for (i, x,) in xs.iter().enumerate()
          if (i > 2)
            continue
          break
        return 0
        ",
    );
    check_body(
        "while let Some(x) = it.next() { f(x) } while a && b {} loop { f(); } ",
        "
        while (let Some(x) = it.next())
          f(x)
        while (a && b)
        loop
          f()
        ",
    );
    check_body(
        "if a && let Some(b) = c { f(b) } 0",
        "if (a && (let Some(b) = c))\n  f(b)\nreturn 0",
    );
}

#[test]
fn labels_leave_the_innermost_loop() {
    check_body(
        "'a: for x in y { for z in x { if z { continue 'a; } break 'a; } continue 'a } 0",
        "
        for x in y
          for z in x
            if z
              break
            break
          continue
        return 0
        ",
    );
    check_body(
        "for x in y { 'a: { if x { break 'a; } f(); } } 0",
        "
        for x in y
          loop
            if x
              break
            f()
            break
        return 0
        ",
    );
}

#[test]
fn tails_return_inside_arms() {
    check_body(
        "if a { b } else { c }",
        "
        if a
          return b
        else
          return c
        ",
    );
    check_body(
        "match x { Ok(v) => v, Err(e) if e.fatal() => panic!(\"{e}\"), Err(_) => { f(); g() } }",
        "
        match x
          Ok(v) =>
            return v
          Err(e) if e.fatal() =>
            raise f<e>
          Err(_) =>
            f()
            return g()
        ",
    );
    check_body("{ f(); x }", "block\n  f()\n  return x");
    check_body("unsafe { x }", "block\n  return x");
    check_body("(x)", "return x");
    check_body("return x", "return x");
    check_body("return;", "return");
    check_body("vec![1]", "return [1]");
    check_body("x?", "return x?");
    check_body("for x in y {}", "for x in y");
}

#[test]
fn functions_without_a_type_return_nothing() {
    check("fn f() { g() }", "fn f()\n  g()");
    check(
        "fn f() { match x { 1 => a(), _ => {} } }",
        "fn f()\n  match x\n    1 =>\n      a()\n    _ =>",
    );
}

#[test]
fn errors_raise_and_asserts_assert() {
    check_body("panic!(); 0", "raise\nreturn 0");
    check_body("panic!(\"no {x}\"); 0", "raise f<\"no \" x>\nreturn 0");
    check_body("bail!(e)", "raise e");
    check_body("anyhow::bail!(\"rank {}\", r);", "raise f<\"rank \" r>");
    check_body("todo!()", "raise");
    check_body(
        "x.unwrap_or_else(|| unreachable!())",
        "return x.unwrap_or_else(<lambda>() { raise })",
    );
    check_body("let x = y.unwrap_or(panic!()); x", "x = y.unwrap_or({ raise })\nreturn x");
    check_body("assert!(a); 0", "assert a\nreturn 0");
    check_body("assert!(a, \"no {b}\"); 0", "assert a, f<\"no \" b>\nreturn 0");
    check_body("assert_eq!(a, b, \"{}\", c); 0", "assert (a == b), f<c>\nreturn 0");
    check_body("debug_assert_ne!(a, b); 0", "assert (a != b)\nreturn 0");
    check_body("ensure!(a > 0, \"no\"); 0", "assert (a > 0), f<\"no\">\nreturn 0");
    check_body("std::process::exit(1); 0", "std.process.exit(1)\nreturn 0");
}

#[test]
fn macros_as_statements() {
    check_body("println!(\"{x}\"); 0", "println!(f<x>)\nreturn 0");
    check_body("main_only! { println!(\"{x}\"); } 0", "main_only!({ println!(f<x>) })\nreturn 0");
    check("fn f() { println!() }", "fn f()\n  println!()");
    check_body("thing! { a b c } 0", "opaque<>\nreturn 0");
}

#[test]
fn items_inside_functions() {
    check_body(
        "use tch::nn; const N: i64 = 1; fn g() {} struct S; g(); 0",
        "
        import tch .nn as nn
        N: i64 = 1
        fn g()
        Struct S
        g()
        return 0
        ",
    );
}

#[test]
fn what_only_tests_compile_is_skipped() {
    check_body("#[cfg(test)] let x = 1; #[cfg(test)] fn g() {} 0", "return 0");
    check_body("match x { #[cfg(test)] 1 => a, _ => b }", "match x\n  _ =>\n    return b");
}
