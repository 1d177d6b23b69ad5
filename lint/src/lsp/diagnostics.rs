//! Findings as diagnostics.

use std::path::Path;

use lsp_types::{
    CodeDescription, Diagnostic, DiagnosticRelatedInformation, DiagnosticSeverity, DiagnosticTag,
    Location, NumberOrString, Position, Range,
};

use super::capabilities::Client;
use super::state::View;
use super::{convert, documentation};
use crate::config::ConfigError;
use crate::finding::{Finding, Harm, Level, Related};
use crate::lines::Lines;
use crate::rules;

/// What `source` says in every diagnostic.
pub(super) const SOURCE: &str = "ddp-lint";

/// The diagnostics of one file.
pub(super) fn of_file(view: View<'_>, client: Client) -> Vec<Diagnostic> {
    let lines = Lines::new(&view.file.text);
    view.findings().map(|finding| of_finding(finding, view, &lines, client)).collect()
}

pub(super) fn of_finding(
    finding: &Finding,
    view: View<'_>,
    lines: &Lines<'_>,
    client: Client,
) -> Diagnostic {
    let said = [&finding.message, &finding.why, &finding.help];
    let said: Vec<&str> = said.into_iter().map(String::as_str).filter(|s| !s.is_empty()).collect();
    let related = finding.related.iter().filter_map(|related| of_related(related, view, client));
    let related: Vec<_> = related.collect();
    Diagnostic {
        range: convert::range(lines, finding.site.span, client.unit),
        severity: Some(severity(finding.level)),
        code: Some(NumberOrString::String(finding.rule.to_owned())),
        code_description: rules::find(finding.rule)
            .and_then(documentation::uri)
            .map(|href| CodeDescription { href }),
        source: Some(SOURCE.to_owned()),
        message: said.join("\n"),
        related_information: (client.related_information && !related.is_empty()).then_some(related),
        tags: (finding.harm == Harm::Noise && finding.fix.is_some())
            .then(|| vec![DiagnosticTag::UNNECESSARY]),
        data: None,
    }
}

fn of_related(
    related: &Related,
    view: View<'_>,
    client: Client,
) -> Option<DiagnosticRelatedInformation> {
    let (file, path) = view.other(related.site.file);
    let range = convert::range(&Lines::new(&file.text), related.site.span, client.unit);
    let location = Location { uri: convert::uri(path)?, range };
    Some(DiagnosticRelatedInformation { location, message: related.message.clone() })
}

fn severity(level: Level) -> DiagnosticSeverity {
    match level {
        Level::Error => DiagnosticSeverity::ERROR,
        Level::Warning => DiagnosticSeverity::WARNING,
        Level::Advice => DiagnosticSeverity::INFORMATION,
    }
}

/// Mistakes in a configuration file.
pub(super) fn of_mistakes(mistakes: &[ConfigError], path: &Path) -> Vec<Diagnostic> {
    let text = std::fs::read_to_string(path).unwrap_or_default();
    let lines = Lines::new(&text);
    let of = |mistake: &ConfigError| {
        let line = mistake.position.line - 1;
        let start = Position { line, character: mistake.position.column - 1 };
        // Up to the end of the line: the error does not say more.
        let end = lines.line(mistake.position.line).chars().count() as u32;
        let end = Position { line, character: end.max(start.character) };
        Diagnostic {
            range: Range { start, end },
            severity: Some(DiagnosticSeverity::ERROR),
            source: Some(SOURCE.to_owned()),
            message: mistake.message.clone(),
            ..Diagnostic::default()
        }
    };
    mistakes.iter().map(of).collect()
}
