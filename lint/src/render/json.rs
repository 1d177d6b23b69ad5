//! A JSON array of findings, one per line group, in the shape of `Plain`.

use super::Plain;

pub(super) fn render(findings: &[Plain<'_>]) -> String {
    let json = serde_json::to_string_pretty(findings);
    let mut text = json.unwrap_or_else(|error| unreachable!("findings are plain data: {error}"));
    text.push('\n');
    text
}
