//! How messages to users are written: lowercase, no final stop.

use super::Complaint;
use super::tokens::{Token, closing, tokens};

/// Methods whose first text is shown to users.
const METHODS: [&str; 2] = ["context", "with_context"];

/// Methods of a rule's report. Other things have methods of these names, too: the help of a command
/// line option is a sentence.
const REPORT_METHODS: [&str; 7] =
    ["at", "why", "help", "related", "safe_fix", "unsafe_fix", "title"];

/// Macros whose first text is shown to users.
const MACROS: [&str; 3] = ["bail", "anyhow", "ensure"];

/// Capitalised words that a message may begin with.
const NAMES: [&str; 8] =
    ["Python", "Rust", "Cargo", "Gloo", "Slurm", "Linux", "Lightning", "Accelerate"];

/// Messages in a Rust source that begin like a sentence or end like one; `path` is relative to the
/// checkout.
pub fn messages(path: &str, text: &str) -> Vec<Complaint> {
    let tokens = match tokens(text) {
        Ok(tokens) => tokens,
        Err(error) => return vec![Complaint::new(1, error)],
    };
    let reports = path.starts_with("lint/src/rules/");
    let mut methods = METHODS.to_vec();
    methods.extend(REPORT_METHODS.iter().filter(|_| reports));
    let mut complaints = Vec::new();
    for open in (0..tokens.len()).filter(|&index| opens_message(&tokens, index, &methods)) {
        let inside = &tokens[open..closing(&tokens, open)];
        let Some(message) = inside.iter().find(|token| token.is_string()) else { continue };
        if let Some(what) = fault(&content(&message.text)) {
            complaints.push(Complaint::new(message.line, format!("{what}: {}", message.text)));
        }
    }
    complaints
}

/// Whether the parenthesis at `index` holds a message: `.why(…)`, `bail!(…)`, `#[error(…)]`.
fn opens_message(tokens: &[Token], index: usize, methods: &[&str]) -> bool {
    let before = |offset: usize| index.checked_sub(offset).map(|index| &tokens[index]);
    let is = |offset: usize, text: &str| before(offset).is_some_and(|token| token.is(text));
    let named = |offset: usize, names: &[&str]| {
        before(offset).is_some_and(|token| names.iter().any(|name| token.is(name)))
    };
    tokens[index].is("(")
        && ((named(1, methods) && is(2, "."))
            || (is(1, "!") && named(2, &MACROS))
            || (is(1, "error") && is(2, "[") && is(3, "#")))
}

/// What stands between the quotes, with continued lines joined.
fn content(literal: &str) -> String {
    let inside = literal.split_once('"').map_or("", |(_, rest)| rest);
    let inside = inside.rsplit_once('"').map_or("", |(inside, _)| inside);
    inside.replace("\\n", "\n")
}

/// What is wrong with a message, if something is.
pub fn fault(message: &str) -> Option<&'static str> {
    let first = message.split(|c: char| !c.is_alphanumeric()).next().unwrap_or_default();
    let mut letters = first.chars();
    let capital = letters.next().is_some_and(char::is_uppercase);
    // `NCCL` and `DataParallel` are names; `The` is the beginning of a sentence.
    if capital && letters.all(char::is_lowercase) && !NAMES.contains(&first) {
        return Some("a message begins in lower case");
    }
    let end = message.trim_end();
    let stops = end.ends_with('.') && !end.ends_with("..");
    stops.then_some("a message has no final stop")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn complains(code: &str, n: usize) {
        assert_eq!(
            messages("lint/src/rules/x.rs", &format!("fn f() {{ {code} }}")).len(),
            n,
            "{code}"
        );
    }

    #[test]
    fn sentences_are_complained_about_wherever_messages_stand() {
        complains("report.at(site, \"The loader has no sampler\")", 1);
        complains("report.at(site, format!(\"`{name}` is bad.\"))", 1);
        complains("draft.why(\"each rank repeats the work.\")", 1);
        complains("bail!(\"Cannot read\")", 1);
        complains("file.with_context(|| format!(\"Cannot read `{}`\", path))", 1);
        complains("return Err(anyhow!(\"no such file.\"))", 1);
        let derived = "enum E { #[error(\"Rank {0} died.\")] Died(u8) }";
        assert_eq!(messages("runtime/src/error.rs", derived).len(), 1);
        let option = "fn f() { option.help(\"Shows the version.\") }";
        assert_eq!(messages("lint/src/cli.rs", option), []);
    }

    #[test]
    fn fragments_and_names_are_fine() {
        complains("report.at(site, format!(\"`{name}` is bad\"))", 0);
        complains(
            "draft.why(\"NCCL waits\").help(\"DistributedSampler gives each rank a part\")",
            0,
        );
        complains("bail!(\"Python 3.8 is too old\")", 0);
        complains("bail!(\"write `#[dp(..)]` or ..\")", 0);
        complains("bail!(kind)", 0);
        complains("println!(\"Done.\"); at(1, \"A sentence.\"); list.join(\"Two.\")", 0);
    }
}
