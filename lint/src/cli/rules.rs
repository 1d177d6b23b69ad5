//! `ddp-lint rules`: what there is to find.

use std::fmt::Write as _;

use serde_json::{Value, json};

use super::args::Rules;
use super::{Status, say};
use crate::finding::{Harm, Level};
use crate::model::Language;
use crate::rule::{FixKind, Rule};
use crate::rules::RULES;

pub(super) fn run(arguments: &Rules) -> Status {
    if arguments.markdown {
        say(&markdown())
    } else if arguments.json {
        say(&format!(
            "{:#}\n",
            Value::from(RULES.iter().map(|rule| json(rule)).collect::<Vec<_>>())
        ))
    } else {
        say(&table())
    }
}

fn table() -> String {
    let width = RULES.iter().map(|rule| rule.name.len()).max().unwrap_or_default();
    RULES.iter().fold(String::new(), |mut text, rule| {
        let (name, level, summary) = (rule.name, level(rule.level), rule.summary());
        let languages = languages(rule, ["py", "rs"]);
        let _ = writeln!(text, "{name:width$}  {level:7}  {languages:5}  {summary}");
        text
    })
}

/// All documentation: the text of `docs/rules.md`.
pub(crate) fn markdown() -> String {
    let mut text = String::from(
        "# The rules of ddp-lint\n\n\
         <!-- Written by `ddp-lint rules --markdown`; edit the documentation of the rules. -->\n\n\
         An *error* crashes, hangs, damages a file or gives wrong numbers; a *warning* is waste, \
         a race or\nbad practice; *advice* is a matter of choice and never changes the exit \
         status. Any rule's level can\nbe set in the configuration, and any finding allowed \
         where it stands:\n`# ddp-lint: allow(rule) -- reason` (Rust: `//`).\n\n\
         | rule | level | what the user suffers | languages | fix | what is found |\n\
         |---|---|---|---|---|---|\n",
    );
    for rule in RULES {
        let _ = writeln!(
            text,
            "| [`{name}`](#{name}) | {} | {} | {} | {} | {} |",
            level(rule.level),
            harm(rule.harm),
            languages(rule, ["Python", "Rust"]),
            fix(rule.fix),
            rule.summary().replace('|', "\\|"),
            name = rule.name,
        );
    }
    for rule in RULES {
        let _ = write!(text, "\n## {}\n\n{}", rule.name, lowered(&rule.markdown()));
        let _ = writeln!(
            text,
            "\n*{}; {}; {}; {}.*",
            level(rule.level),
            harm(rule.harm),
            languages(rule, ["Python", "Rust"]),
            match rule.fix {
                FixKind::No => "no fix",
                FixKind::Safe => "safe fix",
                FixKind::Unsafe => "fix that needs a look",
            },
        );
    }
    text
}

/// Headings go two levels down, below that of the rule.
fn lowered(markdown: &str) -> String {
    let mut in_block = false;
    markdown.lines().fold(String::new(), |mut text, line| {
        in_block ^= line.starts_with("```");
        if line.starts_with('#') && !in_block {
            text.push_str("##");
        }
        text.push_str(line);
        text.push('\n');
        text
    })
}

fn json(rule: &Rule) -> Value {
    json!({
        "name": rule.name,
        "summary": rule.summary(),
        "level": rule.level,
        "harm": rule.harm,
        "tier": rule.tier,
        "languages": rule.languages.iter().map(|language| match language {
            Language::Python => "python",
            Language::Rust => "rust",
        }).collect::<Vec<_>>(),
        "fix": fix(rule.fix),
        "docs": rule.markdown(),
    })
}

fn languages(rule: &Rule, names: [&str; 2]) -> String {
    let name = |language: &Language| match language {
        Language::Python => names[0],
        Language::Rust => names[1],
    };
    rule.languages.iter().map(name).collect::<Vec<_>>().join(" ")
}

pub(super) fn level(level: Level) -> &'static str {
    match level {
        Level::Error => "error",
        Level::Warning => "warning",
        Level::Advice => "advice",
    }
}

pub(super) fn harm(harm: Harm) -> &'static str {
    match harm {
        Harm::Hang => "hang",
        Harm::Wrong => "wrong numbers",
        Harm::Crash => "crash",
        Harm::Corrupt => "damaged file",
        Harm::Waste => "waste",
        Harm::Noise => "noise",
    }
}

fn fix(fix: FixKind) -> &'static str {
    match fix {
        FixKind::No => "no",
        FixKind::Safe => "safe",
        FixKind::Unsafe => "unsafe",
    }
}
