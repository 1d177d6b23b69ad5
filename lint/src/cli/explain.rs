//! `ddp-lint explain`: a rule's documentation, found by its name or by an error message.

use std::fmt::Write as _;

use super::args::Explain;
use super::rules::{harm, level};
use super::{Status, config, fail, say, terminal};
use crate::nearest::nearest;
use crate::rule::Rule;
use crate::rules::{self, RULES};

/// Share of an error text's words that a message must hold, in order.
const SHARE_MIN: f64 = 0.6;
/// Fewer words in common say nothing.
const N_WORDS_MIN: usize = 3;

pub(super) fn run(arguments: &Explain) -> Status {
    let color = terminal::color(arguments.color);
    let what = arguments.what.join(" ");
    let name = what.trim().trim_start_matches("ddp::").replace('_', "-");
    if let Some(rule) = rules::find(&name) {
        return say(&explanation(rule, color));
    }
    let found = by_message(&what);
    if found.is_empty() {
        let near = nearest(&name, RULES.iter().map(|rule| rule.name)).map_or_else(
            || "`ddp-lint rules` lists the rules".to_owned(),
            |near| format!("did you mean `{near}`?"),
        );
        return fail(&format!("no rule has that name or tells of that message; {near}"));
    }
    let texts: Vec<String> = found.iter().map(|rule| explanation(rule, color)).collect();
    say(&texts.join("\n"))
}

fn explanation(rule: &Rule, color: bool) -> String {
    let (bold, dim, plain) = if color { ("\x1b[1m", "\x1b[2m", "\x1b[0m") } else { ("", "", "") };
    let mut text =
        format!("{bold}{}{plain}  ({}, {})\n\n", rule.name, level(rule.level), harm(rule.harm));
    let mut paragraph = String::new();
    let mut in_block = false;
    let flush = |paragraph: &mut String, text: &mut String| {
        if !paragraph.is_empty() {
            for line in config::wrapped(paragraph, 96) {
                let _ = writeln!(text, "{line}");
            }
            paragraph.clear();
        }
    };
    for line in rule.markdown().lines() {
        if line.starts_with("```") {
            flush(&mut paragraph, &mut text);
            in_block = !in_block;
        } else if in_block {
            let _ = writeln!(text, "    {dim}{line}{plain}");
        } else if line.is_empty() {
            flush(&mut paragraph, &mut text);
            text.push('\n');
        } else if let Some(heading) = line.strip_prefix('#') {
            flush(&mut paragraph, &mut text);
            let _ = writeln!(text, "{bold}{}{plain}", heading.trim_start_matches('#').trim());
        } else if line.starts_with("- ") || line.starts_with("| ") {
            flush(&mut paragraph, &mut text);
            paragraph.push_str(line);
        } else {
            paragraph.push(' ');
            paragraph.push_str(line);
        }
    }
    flush(&mut paragraph, &mut text);
    text
}

/// The rules whose documentation quotes an error that the message resembles, best first.
fn by_message(message: &str) -> Vec<&'static Rule> {
    let message = words(message);
    let mut scored: Vec<(f64, &Rule)> = RULES
        .iter()
        .filter_map(|rule| {
            let quotes = quotes(&rule.markdown());
            let best = quotes.iter().map(|quote| likeness(&words(quote), &message));
            best.max_by(f64::total_cmp).filter(|best| *best >= SHARE_MIN).map(|best| (best, *rule))
        })
        .collect();
    scored.sort_by(|(a, first), (b, second)| b.total_cmp(a).then(first.name.cmp(second.name)));
    scored.into_iter().map(|(_, rule)| rule).collect()
}

/// The error texts in a documentation: lines of `text` blocks, and what stands in quotes.
fn quotes(markdown: &str) -> Vec<String> {
    let mut quotes = Vec::new();
    let mut prose = String::new();
    let mut block: Option<&str> = None;
    for line in markdown.lines() {
        match (block, line.strip_prefix("```")) {
            (None, Some(language)) => block = Some(language.trim()),
            (Some(_), Some(_)) => block = None,
            (Some("text"), None) => quotes.push(line.to_owned()),
            (Some(_), None) => {}
            (None, None) => {
                prose.push_str(line);
                prose.push(' ');
            }
        }
    }
    quotes.extend(prose.split('"').skip(1).step_by(2).map(str::to_owned));
    quotes
}

/// Words without what differs from case to case: numbers, addresses, punctuation.
fn words(text: &str) -> Vec<String> {
    text.split(|c: char| !(c.is_alphanumeric() || c == '_'))
        .filter(|word| !word.is_empty() && !word.starts_with(|c: char| c.is_ascii_digit()))
        .map(str::to_lowercase)
        .collect()
}

/// The share of the shorter text's words that the longer holds in the same order.
fn likeness(quote: &[String], message: &[String]) -> f64 {
    let (short, long) =
        if quote.len() <= message.len() { (quote, message) } else { (message, quote) };
    let common = longest_common(short, long);
    if common < N_WORDS_MIN.min(quote.len()).max(2) {
        return 0.0;
    }
    common as f64 / short.len() as f64
}

fn longest_common(a: &[String], b: &[String]) -> usize {
    let mut row = vec![0; b.len() + 1];
    for word in a {
        let mut diagonal = 0;
        for (index, other) in b.iter().enumerate() {
            let above = row[index + 1];
            row[index + 1] = if word == other { diagonal + 1 } else { above.max(row[index]) };
            diagonal = above;
        }
    }
    row[b.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn error_texts_are_known_by_their_words() {
        let quoted = words("Expected to have finished reduction in the prior iteration");
        let met = words(
            "RuntimeError: Expected to have finished reduction in the prior iteration before \
             starting a new one. Parameter indices which did not receive grad for rank 1: 3 4",
        );
        assert!(likeness(&quoted, &met) > 0.99);
        assert!(likeness(&quoted, &words("finished reduction in the prior")) > 0.99);
        assert!(likeness(&quoted, &words("expected a tensor in the list")) < SHARE_MIN);
        assert!(likeness(&quoted, &words("the")) < SHARE_MIN);
    }

    #[test]
    fn quotes_come_from_text_blocks_and_quoted_prose() {
        let docs = "It says \"module has no\nattribute\".\n\n```text\nfatal: x\n```\n\
            ```python\na = \"b\"\n```\n";
        assert_eq!(quotes(docs), ["fatal: x", "module has no attribute"]);
    }
}
