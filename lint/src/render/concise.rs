//! One line per finding: `path:line:column: level[rule] message`.

use std::fmt::Write as _;

use super::{Look, Plain};
use crate::finding::Level;

pub(super) fn render(findings: &[Plain<'_>], look: &Look) -> String {
    findings.iter().fold(String::new(), |mut text, finding| {
        let place = finding.place.shown();
        let (rule, message) = (finding.rule, finding.message);
        let level = level(finding.level, rule, look.color);
        let fixable = if finding.fix.is_some() { " [fixable]" } else { "" };
        let _ = writeln!(text, "{place}: {level} {message}{fixable}");
        text
    })
}

/// `error[rule]`, in colour if wanted.
fn level(level: Level, rule: &str, color: bool) -> String {
    let (word, paint) = match level {
        Level::Error => ("error", "\x1b[1;31m"),
        Level::Warning => ("warning", "\x1b[1;33m"),
        Level::Advice => ("advice", "\x1b[1;36m"),
    };
    if color { format!("{paint}{word}\x1b[0m[{rule}]") } else { format!("{word}[{rule}]") }
}
