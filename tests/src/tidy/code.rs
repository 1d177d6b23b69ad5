//! Checks of Rust sources: who may name whom, length, what may not be left behind.

use std::collections::BTreeSet;

use super::Complaint;
use super::tokens::{Kind, Token, closing, tokens};

const LINES_MAX: usize = 70;
const COLUMNS_MAX: usize = 100;

/// A name, and the places (a file, or a folder with a final `/`) that alone may use it.
struct Layer {
    name: &'static str,
    /// The name may go on: `ruff_` stands for all crates that begin so.
    is_prefix: bool,
    homes: &'static [&'static str],
}

const LAYERS: [Layer; 5] = [
    Layer { name: "ruff_", is_prefix: true, homes: &["lint/src/python.rs", "lint/src/python/"] },
    Layer {
        name: "syn",
        is_prefix: false,
        homes: &["lint/src/rust.rs", "lint/src/rust/", "macros/"],
    },
    Layer { name: "lsp_types", is_prefix: false, homes: &["lint/src/lsp.rs", "lint/src/lsp/"] },
    Layer { name: "lsp_server", is_prefix: false, homes: &["lint/src/lsp.rs", "lint/src/lsp/"] },
    Layer { name: "unsafe", is_prefix: false, homes: &["runtime/src/ffi.rs"] },
];

/// Names that are used outside the layer they belong to; `path` is relative to the checkout.
pub fn layers(path: &str, text: &str) -> Vec<Complaint> {
    each(text, |tokens, index| {
        let token = &tokens[index];
        let broken = LAYERS.iter().find(|layer| {
            let named = if layer.is_prefix {
                token.text.starts_with(layer.name)
            } else {
                token.text == layer.name
            };
            let at_home =
                |home: &&str| path == *home || (home.ends_with('/') && path.starts_with(*home));
            token.kind == Kind::Ident && named && !layer.homes.iter().any(at_home)
        })?;
        Some(format!("`{}` belongs in {} only", token.text, broken.homes.join(" and ")))
    })
}

/// Functions that do not fit on a screen.
pub fn long_functions(text: &str) -> Vec<Complaint> {
    each(text, |tokens, index| {
        let name = tokens.get(index + 1).filter(|name| name.kind == Kind::Ident)?;
        let open = body(tokens, index + 2).filter(|_| tokens[index].is("fn"))?;
        let lines = tokens[closing(tokens, open)].line - tokens[index].line + 1;
        let too_long = format!("`{}` has {lines} lines, at most {LINES_MAX}", name.text);
        (lines > LINES_MAX).then_some(too_long)
    })
}

/// The brace that opens the body of a function whose name ends before `start`.
fn body(tokens: &[Token], start: usize) -> Option<usize> {
    let mut index = start;
    while let Some(token) = tokens.get(index) {
        match token.kind {
            Kind::Open if token.text == "{" => return Some(index),
            Kind::Open => index = closing(tokens, index),
            Kind::Close => return None,
            _ if token.is(";") => return None,
            _ => {}
        }
        index += 1;
    }
    None
}

/// Lines that are wider than the formatter would leave them: it does not break texts and comments.
/// Texts over several lines, such as the programs in tests, are what they are.
pub fn long_lines(text: &str) -> Vec<Complaint> {
    let exempt = lines_in_texts(text);
    let lines = text.lines().map(documented).enumerate();
    let lines = lines.map(|(index, line)| (index + 1, line.chars().count()));
    let wide = lines.filter(|(line, columns)| *columns > COLUMNS_MAX && !exempt.contains(line));
    wide.map(|(line, columns)| {
        Complaint::new(line, format!("{columns} columns, at most {COLUMNS_MAX}"))
    })
    .collect()
}

/// Of a documentation line, the line that it documents with: its examples are code of their own.
fn documented(line: &str) -> &str {
    let doc = line.trim_start();
    let inside = doc.strip_prefix("///").or_else(|| doc.strip_prefix("//!"));
    let line = inside.map_or(line, |inside| inside.strip_prefix(' ').unwrap_or(inside));
    unmarked(line)
}

/// A line without the mark that says what is found there: it is no part of the example.
fn unmarked(line: &str) -> &str {
    let at = ["//~ ", "# ~ "].iter().filter_map(|mark| line.find(mark)).min();
    at.map_or(line, |at| line[..at].trim_end())
}

fn lines_in_texts(text: &str) -> BTreeSet<usize> {
    let tokens = tokens(text).unwrap_or_default();
    let texts = tokens.iter().filter(|token| token.is_string());
    let extents = texts.map(|text| (text.line, text.line + text.text.matches('\n').count()));
    extents.filter(|(start, end)| start < end).flat_map(|(start, end)| start..=end).collect()
}

/// Tests that do not run and code that is not there yet.
pub fn unfinished(text: &str) -> Vec<Complaint> {
    let mut complaints = each(text, |tokens, index| {
        let token = &tokens[index];
        let next_is = |text: &str| tokens.get(index + 1).is_some_and(|next| next.is(text));
        if matches!(token.text.as_str(), "todo" | "unimplemented") && next_is("!") {
            return Some(format!("`{}!` is left", token.text));
        }
        let attribute = index >= 2 && tokens[index - 1].is("[") && tokens[index - 2].is("#");
        (attribute && token.is("ignore")).then(|| "a test is switched off".to_owned())
    });
    // Spelled in two parts, so that this file does not complain about itself.
    let words = [concat!("TO", "DO"), concat!("FIX", "ME"), concat!("XX", "X")];
    for (index, line) in text.lines().enumerate() {
        if let Some(word) = words.iter().find(|word| line.contains(**word)) {
            complaints.push(Complaint::new(index + 1, format!("{word} is left")));
        }
    }
    complaints
}

/// `#[allow(…)]`, which stays behind when its cause is gone; `#[expect(…, reason = …)]` does not.
pub fn allowances(text: &str) -> Vec<Complaint> {
    each(text, |tokens, index| {
        let is = |offset: usize, text: &str| {
            tokens.get(index + offset).is_some_and(|token| token.is(text))
        };
        let start = if is(1, "!") { 2 } else { 1 };
        if !(is(0, "#") && is(start, "[")) {
            return None;
        }
        if is(start + 1, "allow") {
            return Some("use #[expect(.., reason = \"..\")] instead of #[allow(..)]".to_owned());
        }
        let end = closing(tokens, index + start);
        let reasoned = tokens[index..end].iter().any(|token| token.is("reason"));
        (is(start + 1, "expect") && !reasoned).then(|| "#[expect(..)] without a reason".to_owned())
    })
}

/// A file must open with what it is for.
pub fn missing_module_docs(text: &str) -> Vec<Complaint> {
    if text.starts_with("//!") || text.trim().is_empty() {
        return Vec::new();
    }
    vec![Complaint::new(1, "the file does not open with `//!` and what it is for")]
}

/// Calls `check` at every token; a text without tokens is a complaint of its own.
fn each(text: &str, mut check: impl FnMut(&[Token], usize) -> Option<String>) -> Vec<Complaint> {
    let tokens = match tokens(text) {
        Ok(tokens) => tokens,
        Err(error) => return vec![Complaint::new(1, error)],
    };
    (0..tokens.len())
        .filter_map(|index| {
            check(&tokens, index).map(|what| Complaint::new(tokens[index].line, what))
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lines(complaints: &[Complaint]) -> Vec<usize> {
        complaints.iter().map(|complaint| complaint.line).collect()
    }

    #[test]
    fn foreign_names_are_found_outside_their_layer_only() {
        let text = "use ruff_python_ast::Expr;\nuse syn::File;\nfn f() { unsafe { g() } }\n";
        assert_eq!(lines(&layers("lint/src/rules/some.rs", text)), [1, 2, 3]);
        assert_eq!(lines(&layers("lint/src/python/lower.rs", text)), [2, 3]);
        assert_eq!(lines(&layers("macros/src/expand.rs", text)), [1, 3]);
        assert_eq!(lines(&layers("runtime/src/ffi.rs", text)), [1, 2]);
        let harmless = "// syn and unsafe\n/// unsafe\nfn f() { g(\"syn ruff_x\", unsafe_code) }\n";
        assert_eq!(layers("lint/src/rules/some.rs", harmless), []);
        assert_eq!(lines(&layers("lint/src/lsp_types.rs", "use lsp_types::Range;")), [1]);
    }

    #[test]
    fn functions_are_measured_from_signature_to_brace() {
        let statements = |n: usize| "    g();\n".repeat(n);
        let fits = format!("fn f<T>(a: [u8; 2]) -> T\nwhere T: Copy,\n{{\n{}}}\n", statements(66));
        assert_eq!(long_functions(&fits), []);
        let long = format!("fn f<T>(a: [u8; 2]) -> T\nwhere T: Copy,\n{{\n{}}}\n", statements(67));
        assert_eq!(lines(&long_functions(&long)), [1]);
        let in_trait = format!("trait T {{ fn f(&self); }}\nmod m {{\n{}}}\n", statements(80));
        assert_eq!(long_functions(&in_trait), []);
        assert_eq!(
            long_functions(&format!("type F = fn(u8);\nstatic X: u8 = {{{}}};", fits.len())),
            []
        );
    }

    #[test]
    fn wide_lines_are_counted_in_characters() {
        assert_eq!(long_lines(&"é".repeat(100)), []);
        let wide = "a".repeat(101);
        assert_eq!(lines(&long_lines(&format!("\n{wide}"))), [2]);
        assert_eq!(lines(&long_lines(&format!("f(\"{wide}\")"))), [1]);
        assert_eq!(lines(&long_lines(&format!("f(r\"\n{wide}\n\")\n// {wide}"))), [4]);
        assert_eq!(long_lines(&format!("f(\"\n{wide}\n\")\n")), []);
        let fits = "a".repeat(100);
        assert_eq!(lines(&long_lines(&format!("    /// {fits}\n    /// {wide}"))), [2]);
    }

    #[test]
    fn unfinished_things_are_found() {
        let text =
            "#[ignore]\nfn a() { todo!() }\n#[ignore = \"slow\"]\nfn b() { unimplemented!() }\n";
        assert_eq!(lines(&unfinished(text)), [1, 2, 3, 4]);
        let note = format!("// {}: later\nfn a() {{}}", concat!("TO", "DO"));
        assert_eq!(lines(&unfinished(&note)), [1]);
        assert_eq!(unfinished("fn ignore(todo: u8) { walk.ignore(true) }"), []);
    }

    #[test]
    fn allowances_and_unreasoned_expectations_are_found() {
        let text = "#![allow(dead_code)]\n#[allow(unused)]\nfn f() {}\n#[expect(unused)]\n\
                    fn g() {}\n#[expect(unused, reason = \"so\")]\nfn h() { allow(1) }\n";
        assert_eq!(lines(&allowances(text)), [1, 2, 4]);
    }

    #[test]
    fn files_open_with_what_they_are_for() {
        assert_eq!(lines(&missing_module_docs("use std::fs;\n//! late")), [1]);
        assert_eq!(missing_module_docs("//! What it is for.\n"), []);
    }

    #[test]
    fn broken_sources_are_a_complaint() {
        assert_eq!(lines(&unfinished("fn f( {")), [1]);
    }
}
