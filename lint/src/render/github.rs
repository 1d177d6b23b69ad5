//! Annotations of GitHub Actions: workflow commands on standard output.

use std::fmt::Write as _;

use super::Plain;
use crate::finding::Level;

pub(super) fn render(findings: &[Plain<'_>]) -> String {
    findings.iter().fold(String::new(), |mut text, finding| {
        let command = match finding.level {
            Level::Error => "error",
            Level::Warning => "warning",
            Level::Advice => "notice",
        };
        let place = &finding.place;
        let mut properties = format!(
            "file={},line={},col={}",
            property(&place.path),
            place.start.line,
            place.start.column
        );
        // GitHub drops columns of annotations over several lines, and wants none with `endLine`.
        if place.end.line == place.start.line {
            let _ = write!(properties, ",endColumn={}", place.end.column);
        } else {
            let _ = write!(properties, ",endLine={}", place.end.line);
        }
        let title = property(&format!("ddp-lint: {}", finding.rule));
        let sentences = [finding.message, finding.why, finding.help];
        let said: Vec<&str> = sentences.into_iter().filter(|words| !words.is_empty()).collect();
        let message = data(&said.join("\n"));
        let _ = writeln!(text, "::{command} {properties},title={title}::{message}");
        text
    })
}

/// Escapes the message of a workflow command.
fn data(text: &str) -> String {
    text.replace('%', "%25").replace('\r', "%0D").replace('\n', "%0A")
}

/// Escapes a property of a workflow command.
fn property(text: &str) -> String {
    data(text).replace(':', "%3A").replace(',', "%2C")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_github_reads_as_syntax_is_escaped() {
        assert_eq!(data("50%\r\nof it: a, b"), "50%25%0D%0Aof it: a, b");
        assert_eq!(property("a,b:c%"), "a%2Cb%3Ac%25");
    }
}
