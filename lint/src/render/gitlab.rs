//! Code quality report of GitLab: a JSON array in Code Climate's form.

use serde_json::{Value, json};

use super::{Item, Plain};
use crate::baseline;
use crate::finding::Level;

pub(super) fn render(items: &[Item<'_>], findings: &[Plain<'_>]) -> String {
    let root = items.first().map(|item| item.loaded.project.root().to_owned());
    let fingerprints = baseline::fingerprints(items, &root.unwrap_or_default());
    let issues: Vec<Value> = findings
        .iter()
        .zip(fingerprints)
        .map(|(finding, fingerprint)| {
            let severity = match finding.level {
                Level::Error => "major",
                Level::Warning => "minor",
                Level::Advice => "info",
            };
            json!({
                "description": finding.message,
                "check_name": finding.rule,
                "fingerprint": fingerprint,
                "severity": severity,
                "location": {
                    "path": finding.place.path,
                    "lines": { "begin": finding.place.start.line, "end": finding.place.end.line },
                },
            })
        })
        .collect();
    format!("{:#}\n", Value::from(issues))
}
