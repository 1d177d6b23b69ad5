//! `ddp-lint config`: the keys of the configuration, from the list that the parser reads.

use std::fmt::Write as _;

use super::args::Config;
use super::{Status, fail, say};
use crate::config::{KEYS, Key, schema};
use crate::nearest::nearest;

pub(super) fn run(arguments: &Config) -> Status {
    if arguments.schema {
        return say(&format!("{:#}\n", schema()));
    }
    let Some(name) = &arguments.key else {
        let head = "Keys of `ddp-lint.toml`. They may also stand under `[tool.ddp-lint]` in \
                    pyproject.toml and under\n`[workspace.metadata.ddp-lint]` or \
                    `[package.metadata.ddp-lint]` in Cargo.toml. For each file the closest\n\
                    configuration above it holds, alone.\n";
        let keys = KEYS.iter().map(explanation).collect::<String>();
        return say(&format!("{head}{keys}"));
    };
    if let Some(key) = KEYS.iter().find(|key| key.name == name) {
        return say(explanation(key).trim_start());
    }
    let near = nearest(name, KEYS.iter().map(|key| key.name))
        .map_or(String::new(), |near| format!("; did you mean `{near}`?"));
    fail(&format!("`{name}` is no key of the configuration{near}"))
}

fn explanation(key: &Key) -> String {
    let mut text = format!("\n{}\n", key.name);
    for line in wrapped(key.docs, 92) {
        let _ = writeln!(text, "    {line}");
    }
    let _ = writeln!(text, "    default: {}", key.default);
    for (index, line) in key.example.lines().enumerate() {
        let lead = if index == 0 { "    example: " } else { "             " };
        let _ = writeln!(text, "{lead}{line}");
    }
    text
}

/// The words in lines of at most `width` characters.
pub(super) fn wrapped(words: &str, width: usize) -> Vec<String> {
    let mut lines = vec![String::new()];
    for word in words.split_whitespace() {
        let line = lines.last_mut().unwrap_or_else(|| unreachable!("there is a first line"));
        if line.is_empty() {
            line.push_str(word);
        } else if line.chars().count() + 1 + word.chars().count() <= width {
            line.push(' ');
            line.push_str(word);
        } else {
            lines.push(word.to_owned());
        }
    }
    lines
}
