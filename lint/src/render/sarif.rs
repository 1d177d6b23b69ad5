//! SARIF 2.1.0, for code scanning: one run with all rules and all results.

use std::fmt::Write as _;

use serde_json::{Value, json};

use super::plain::{Place, PlainEdit, PlainFix};
use super::{Item, Plain};
use crate::baseline;
use crate::finding::Level;
use crate::rule::Rule;
use crate::rules::RULES;

const SCHEMA: &str = "https://json.schemastore.org/sarif-2.1.0.json";

pub(super) fn render(items: &[Item<'_>], findings: &[Plain<'_>]) -> String {
    let root = items.first().map(|item| item.loaded.project.root().to_owned());
    let fingerprints = baseline::fingerprints(items, &root.unwrap_or_default());
    let results: Vec<Value> =
        findings.iter().zip(fingerprints).map(|(finding, print)| result(finding, &print)).collect();
    let log = json!({
        "$schema": SCHEMA,
        "version": "2.1.0",
        "runs": [{
            "tool": { "driver": {
                "name": "ddp-lint",
                "semanticVersion": env!("CARGO_PKG_VERSION"),
                "rules": RULES.iter().map(|rule| descriptor(rule)).collect::<Vec<_>>(),
            }},
            "columnKind": "unicodeCodePoints",
            "results": results,
        }],
    });
    format!("{log:#}\n")
}

fn descriptor(rule: &Rule) -> Value {
    let markdown = rule.markdown();
    json!({
        "id": rule.name,
        "shortDescription": { "text": rule.summary() },
        "help": { "text": markdown, "markdown": markdown },
        "defaultConfiguration": { "level": level(rule.level) },
        "properties": { "harm": rule.harm, "tags": ["distributed"] },
    })
}

fn result(finding: &Plain<'_>, fingerprint: &str) -> Value {
    let said: Vec<&str> = [finding.message, finding.why, finding.help]
        .into_iter()
        .filter(|words| !words.is_empty())
        .collect();
    let mut result = json!({
        "ruleId": finding.rule,
        "ruleIndex": RULES.iter().position(|rule| rule.name == finding.rule),
        "level": level(finding.level),
        "message": { "text": said.join("\n") },
        "locations": [{ "physicalLocation": location(&finding.place) }],
        "partialFingerprints": { "ddp-lint/v1": fingerprint },
    });
    if !finding.related.is_empty() {
        let related = finding.related.iter().enumerate().map(|(index, related)| {
            json!({
                "id": index,
                "physicalLocation": location(&related.place),
                "message": { "text": related.message },
            })
        });
        result["relatedLocations"] = related.collect();
    }
    if let Some(fix) = &finding.fix {
        result["fixes"] = json!([fix_of(fix)]);
    }
    result
}

fn fix_of(fix: &PlainFix<'_>) -> Value {
    let changes: Vec<Value> = fix
        .edits
        .chunk_by(|a, b| a.place.path == b.place.path)
        .map(|edits| {
            json!({
                "artifactLocation": { "uri": uri(&edits[0].place.path) },
                "replacements": edits.iter().map(replacement).collect::<Vec<_>>(),
            })
        })
        .collect();
    json!({ "description": { "text": fix.title }, "artifactChanges": changes })
}

fn replacement(edit: &PlainEdit<'_>) -> Value {
    json!({
        "deletedRegion": region(&edit.place),
        "insertedContent": { "text": edit.replacement },
    })
}

fn location(place: &Place) -> Value {
    json!({ "artifactLocation": { "uri": uri(&place.path) }, "region": region(place) })
}

fn region(place: &Place) -> Value {
    json!({
        "startLine": place.start.line,
        "startColumn": place.start.column,
        "endLine": place.end.line,
        "endColumn": place.end.column,
    })
}

fn level(level: Level) -> &'static str {
    match level {
        Level::Error => "error",
        Level::Warning => "warning",
        Level::Advice => "note",
    }
}

/// A relative reference: what may not stand in one is percent-encoded.
fn uri(path: &str) -> String {
    let mut uri = String::with_capacity(path.len());
    for byte in path.bytes() {
        let plain = byte.is_ascii_alphanumeric() || b"-._~/!$&'()*+,;=@".contains(&byte);
        if plain {
            uri.push(char::from(byte));
        } else {
            let _ = write!(uri, "%{byte:02X}");
        }
    }
    uri
}

#[cfg(test)]
mod tests {
    #[test]
    fn paths_become_references() {
        assert_eq!(super::uri("a b/ü#?.py"), "a%20b/%C3%BC%23%3F.py");
        assert_eq!(super::uri("../src/main.rs"), "../src/main.rs");
    }
}
