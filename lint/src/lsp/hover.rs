//! Hover: what a finding means, and what a suppression allows.

use std::fmt::Write as _;

use lsp_types::{Hover, HoverContents, MarkupContent, MarkupKind, Position};

use super::capabilities::Client;
use super::convert;
use super::state::View;
use crate::finding::{Finding, Harm, Level};
use crate::lines::Lines;
use crate::model::Span;
use crate::rules;
use crate::suppress;

pub(super) fn hover(view: View<'_>, position: Position, client: Client) -> Option<Hover> {
    let lines = Lines::new(&view.file.text);
    let offset = convert::offset(&lines, position, client.unit);
    let at = Span { start: offset, end: offset };
    let findings: Vec<&Finding> =
        view.findings().filter(|finding| finding.site.span.contains(at)).collect();
    let named = suppress::rule_at(view.file, offset);
    let span = match (findings.first(), &named) {
        (Some(finding), _) => finding.site.span,
        (None, Some((_, span))) => *span,
        (None, None) => return None,
    };
    let mut text = findings.iter().map(|finding| of_finding(finding)).collect::<String>();
    let in_comment = named.as_ref().and_then(|(name, _)| rules::find(name));
    if let Some(rule) = in_comment.filter(|rule| !findings.iter().any(|f| f.rule == rule.name)) {
        let _ = writeln!(text, "**{}** is allowed here\n\n{}", rule.name, rule.markdown());
    }
    if text.is_empty() {
        return None;
    }
    let value = text;
    Some(Hover {
        contents: HoverContents::Markup(MarkupContent { kind: MarkupKind::Markdown, value }),
        range: Some(convert::range(&lines, span, client.unit)),
    })
}

fn of_finding(finding: &Finding) -> String {
    let level = match finding.level {
        Level::Error => "error",
        Level::Warning => "warning",
        Level::Advice => "advice",
    };
    let harm = match finding.harm {
        Harm::Hang => "hang",
        Harm::Wrong => "wrong numbers",
        Harm::Crash => "crash",
        Harm::Corrupt => "damaged file",
        Harm::Waste => "waste",
        Harm::Noise => "noise",
    };
    let mut text = format!("**{}** ({level}, {harm}): {}\n\n", finding.rule, finding.message);
    for words in [&finding.why, &finding.help] {
        if !words.is_empty() {
            let _ = write!(text, "{words}\n\n");
        }
    }
    if let Some(rule) = rules::find(finding.rule) {
        let _ = write!(text, "---\n\n{}\n", rule.markdown());
    }
    text
}
