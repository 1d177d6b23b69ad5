//! Marks in test sources and documentation examples: which finding is expected where.
//!
//! `# ~ rule` in Python and `//~ rule` in Rust: a finding of that rule starts on this line.
//! Each `^` behind the `~` means one line up; `: words` must occur in the message. The
//! comparison is exact both ways.

use std::fmt::Write as _;

use crate::model::Language;

/// One expected finding.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Mark {
    /// From 1.
    pub line: u32,
    pub rule: String,
    /// Must occur in the message.
    pub words: Option<String>,
}

/// One finding, as marks see it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Found<'f> {
    pub line: u32,
    pub rule: &'f str,
    pub message: &'f str,
}

/// All marks of a text, in source order.
pub fn parse(text: &str, language: Language) -> Vec<Mark> {
    let mut marks = Vec::new();
    for (index, line) in text.lines().enumerate() {
        let Some(start) = first_mark(line, language) else { continue };
        let pieces = line[start..].split(sign(language));
        marks.extend(pieces.skip(1).filter_map(|piece| parse_one(piece, index as u32 + 1)));
    }
    marks
}

/// The text without marks, and without the lines that held nothing else.
pub fn strip(text: &str, language: Language) -> String {
    let mut stripped = String::with_capacity(text.len());
    for line in text.split_inclusive('\n') {
        let Some(start) = first_mark(line, language) else {
            stripped.push_str(line);
            continue;
        };
        let code = line[..start].trim_end();
        if !code.is_empty() {
            stripped.push_str(code);
            stripped.push_str(&line[line.trim_end_matches(['\n', '\r']).len()..]);
        }
    }
    stripped
}

/// `Err` holds the source, annotated with what was not expected (`+`) and what was missed (`-`).
pub fn compare(text: &str, marks: &[Mark], found: &[Found<'_>]) -> Result<(), String> {
    let mut left: Vec<&Mark> = marks.iter().collect();
    let mut notes: Vec<(u32, String)> = Vec::new();
    for finding in found {
        if let Some(met) = left.iter().position(|mark| meets(mark, finding)) {
            left.remove(met);
        } else {
            notes.push((finding.line, format!("+ {}: {}", finding.rule, finding.message)));
        }
    }
    notes.extend(left.iter().map(|mark| {
        let words = mark.words.as_ref().map_or(String::new(), |words| format!(": {words}"));
        (mark.line, format!("- {}{words}", mark.rule))
    }));
    if notes.is_empty() {
        return Ok(());
    }
    notes.sort();
    Err(annotate(text, &notes))
}

fn meets(mark: &Mark, finding: &Found<'_>) -> bool {
    mark.line == finding.line
        && mark.rule == finding.rule
        && mark.words.as_ref().is_none_or(|words| finding.message.contains(words.as_str()))
}

fn annotate(text: &str, notes: &[(u32, String)]) -> String {
    let mut shown = String::from("(+ not expected, - expected and missing)\n");
    for (index, line) in text.lines().enumerate() {
        let number = index as u32 + 1;
        let _ = writeln!(shown, "{number:4} | {line}");
        for (_, note) in notes.iter().filter(|(line, _)| *line == number) {
            let _ = writeln!(shown, "     ! {note}");
        }
    }
    let behind = text.lines().count() as u32;
    for (line, note) in notes.iter().filter(|(line, _)| *line > behind) {
        let _ = writeln!(shown, "     ! line {line}: {note}");
    }
    shown
}

fn sign(language: Language) -> &'static str {
    match language {
        Language::Python => "# ~",
        Language::Rust => "//~",
    }
}

/// Where the first mark of the line begins.
fn first_mark(line: &str, language: Language) -> Option<usize> {
    let sign = sign(language);
    line.match_indices(sign)
        .map(|(at, _)| at)
        .find(|at| parse_one(&line[at + sign.len()..], 1).is_some())
}

/// `^^ rule: words`, what stands behind the sign.
fn parse_one(piece: &str, line: u32) -> Option<Mark> {
    let rest = piece.trim_start_matches('^');
    let up = (piece.len() - rest.len()) as u32;
    let rest = rest.trim();
    let end = rest.find(|c: char| !(c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-'));
    let (rule, rest) = rest.split_at(end.unwrap_or(rest.len()));
    if rule.is_empty() {
        return None;
    }
    let words = rest.trim_start().strip_prefix(':').map(|words| words.trim().to_owned());
    Some(Mark { line: line.saturating_sub(up), rule: rule.to_owned(), words })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mark(line: u32, rule: &str, words: Option<&str>) -> Mark {
        Mark { line, rule: rule.into(), words: words.map(Into::into) }
    }

    const PYTHON: &str = "\
a()  # ~ one-rule  # ~ other: two words
b()  # plain comment
# ~^^ third
";

    #[test]
    fn marks_name_line_rule_and_words() {
        let expected = [
            mark(1, "one-rule", None),
            mark(1, "other", Some("two words")),
            mark(1, "third", None),
        ];
        assert_eq!(parse(PYTHON, Language::Python), expected);
        assert_eq!(
            parse("f(); //~ one\n//~^ two: x", Language::Rust),
            [mark(1, "one", None), mark(1, "two", Some("x"))]
        );
        assert_eq!(parse("f();  # ~ one", Language::Rust), []);
    }

    #[test]
    fn stripping_leaves_the_code_alone() {
        assert_eq!(strip(PYTHON, Language::Python), "a()\nb()  # plain comment\n");
        assert_eq!(strip("f(); //~ one\r\ng();", Language::Rust), "f();\r\ng();");
        assert_eq!(strip("x = 1 # ~5 of them\n", Language::Python), "x = 1\n");
    }

    #[test]
    fn the_comparison_is_exact_both_ways() {
        let text = "a()\nb()\n";
        let found = [Found { line: 2, rule: "one", message: "the `b` is bad" }];
        assert_eq!(compare(text, &[mark(2, "one", Some("`b`"))], &found), Ok(()));
        let wrong_words = compare(text, &[mark(2, "one", Some("`c`"))], &found).unwrap_err();
        assert!(wrong_words.contains("+ one: the `b` is bad"), "{wrong_words}");
        assert!(wrong_words.contains("- one: `c`"), "{wrong_words}");
        assert!(compare(text, &[], &found).is_err());
        assert!(compare(text, &[mark(2, "one", None), mark(2, "one", None)], &found).is_err());
        assert!(compare(text, &[mark(1, "one", None)], &found).is_err());
    }
}
