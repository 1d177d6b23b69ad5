//! The seam between Rust and C++, as each side declares it.

use std::collections::BTreeMap;

use super::tokens::{Kind, closing, tokens};

/// Functions that a C++ header declares at its top level or in `extern "C"`, with the number of
/// their parameters.
pub fn declarations(header: &str) -> BTreeMap<String, usize> {
    let code = without_bodies(&without_comments(header));
    let statements = code.split(';').map(str::trim);
    let functions = statements.filter(|text| !text.starts_with("typedef")).filter_map(function);
    functions.collect()
}

fn function(statement: &str) -> Option<(String, usize)> {
    let (before, after) = statement.split_once('(')?;
    let name = before.trim_end().rsplit(|c: char| !(c.is_alphanumeric() || c == '_')).next()?;
    let parameters = after.rsplit_once(')')?.0;
    (!name.is_empty()).then(|| (name.to_owned(), count(parameters)))
}

/// Parameters of a C function: commas outside of parentheses, plus one.
fn count(parameters: &str) -> usize {
    if matches!(parameters.trim(), "" | "void") {
        return 0;
    }
    let mut depth = 0_i32;
    let commas = parameters.chars().filter(|c| {
        depth += i32::from(*c == '(') - i32::from(*c == ')');
        *c == ',' && depth == 0
    });
    commas.count() + 1
}

fn without_comments(header: &str) -> String {
    let mut code = String::new();
    let mut rest = header;
    while let Some(start) = rest.find("/*") {
        code.push_str(&rest[..start]);
        rest = rest[start..].split_once("*/").map_or("", |(_, rest)| rest);
    }
    code.push_str(rest);
    let lines = code.lines().filter(|line| !line.trim_start().starts_with('#'));
    lines.map(|line| line.split("//").next().unwrap_or_default()).collect::<Vec<_>>().join("\n")
}

/// Drops what stands in braces, except in those of `extern "C" { … }` and of namespaces.
fn without_bodies(code: &str) -> String {
    let mut kept = String::new();
    let mut bodies = 0_usize;
    for c in code.chars() {
        let statement = kept.rsplit([';', '}']).next().unwrap_or_default().trim();
        let transparent = statement == "extern \"C\"" || statement.starts_with("namespace");
        match c {
            '{' if bodies == 0 && transparent => kept.push(';'),
            '{' => bodies += 1,
            '}' if bodies == 0 => kept.push(';'),
            '}' => bodies -= 1,
            _ if bodies == 0 => kept.push(c),
            _ => {}
        }
    }
    kept
}

/// Functions that a Rust source declares in `extern "C"` blocks, with the number of their
/// parameters.
pub fn foreign_functions(text: &str) -> Result<BTreeMap<String, usize>, String> {
    let tokens = tokens(text)?;
    let mut functions = BTreeMap::new();
    for (index, token) in tokens.iter().enumerate() {
        let opens_block = token.is("{")
            && index >= 2
            && tokens[index - 1].is_string()
            && tokens[index - 2].is("extern");
        if !opens_block {
            continue;
        }
        let end = closing(&tokens, index);
        for at in index..end {
            if !(tokens[at].is("fn") && tokens[at + 1].kind == Kind::Ident) {
                continue;
            }
            let parameters = &tokens[at + 3..closing(&tokens, at + 2)];
            // Only a colon between a name and its type is single; paths have two.
            let single = |colon: usize| {
                parameters[colon].is(":")
                    && !(colon > 0 && parameters[colon - 1].is(":"))
                    && !parameters.get(colon + 1).is_some_and(|next| next.is(":"))
            };
            let n_parameters = (0..parameters.len()).filter(|&colon| single(colon)).count();
            functions.insert(tokens[at + 1].text.clone(), n_parameters);
        }
    }
    Ok(functions)
}

#[cfg(test)]
mod tests {
    use super::*;

    const HEADER: &str = r#"
#pragma once
#include <cstdint>
/* not_this(int a); */
extern "C" {
// nor_this(int a);
struct ddp_error { int code; void (*free)(void*); };
typedef void (*ddp_callback)(void* context, int status);
ddp_error* ddp_init(const char* host, uint16_t port, ddp_callback done) noexcept;
void ddp_close(void) noexcept;
inline int ddp_one() { return one(2); }
}
"#;

    const RUST: &str = r#"
unsafe extern "C" {
    /// Joins.
    fn ddp_init(host: *const std::ffi::c_char, port: u16, done: Callback) -> *mut Error;
    fn ddp_close();
    safe fn ddp_one() -> i32;
}
fn ddp_init_twice(a: u8) {}
"#;

    #[test]
    fn both_sides_are_read() {
        let expected: BTreeMap<String, usize> =
            [("ddp_init", 3), ("ddp_close", 0)].map(|(name, n)| (name.to_owned(), n)).into();
        let mut rust = foreign_functions(RUST).unwrap();
        assert_eq!(rust.remove("ddp_one"), Some(0));
        assert_eq!(rust, expected);
        let mut header = declarations(HEADER);
        header.remove("ddp_one");
        assert_eq!(header, expected);
    }

    #[test]
    fn a_missing_function_and_another_number_of_parameters_are_seen() {
        let less = HEADER.replace("void ddp_close(void) noexcept;", "");
        assert!(!declarations(&less).contains_key("ddp_close"));
        let more = HEADER.replace("uint16_t port,", "uint16_t port, int timeout,");
        assert_eq!(declarations(&more)["ddp_init"], 4);
    }
}
