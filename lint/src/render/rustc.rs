//! The JSON lines of `cargo check --message-format=json`, for editors that run it.
//!
//! One `compiler-message` per finding; suggestions carry rustc's applicability, so that
//! `cargo fix` and editors can apply them.

use serde_json::{Value, json};

use super::{Item, Look, Plain, plain_text};
use crate::finding::{Applicability, Level};
use crate::lines::{Lines, Unit};
use crate::model::Site;

pub(super) fn render(items: &[Item<'_>], findings: &[Plain<'_>], look: &Look) -> String {
    items.iter().zip(findings).fold(String::new(), |mut text, (item, finding)| {
        text.push_str(&message(*item, finding, look).to_string());
        text.push('\n');
        text
    })
}

fn message(item: Item<'_>, finding: &Plain<'_>, look: &Look) -> Value {
    let level = match finding.level {
        Level::Error => "error",
        Level::Warning => "warning",
        Level::Advice => "note",
    };
    let mut spans = vec![span(item, &finding.place.path, item.finding.site, true)];
    for (related, plain) in item.finding.related.iter().zip(&finding.related) {
        let mut span = span(item, &plain.place.path, related.site, false);
        span["label"] = json!(related.message);
        spans.push(span);
    }
    let mut children = Vec::new();
    let notes = [("note", finding.why), ("help", finding.help)];
    for (level, words) in notes.into_iter().filter(|(_, words)| !words.is_empty()) {
        children.push(child(level, words, &[]));
    }
    children.extend(suggestion(item, finding));
    let manifest = item.loaded.project.root().join("Cargo.toml");
    json!({
        "reason": "compiler-message",
        "package_id": format!("path+file://{}", item.loaded.project.root().display()),
        "manifest_path": manifest,
        "target": {
            "kind": ["lib"],
            "crate_types": ["lib"],
            "name": "ddp-lint",
            "src_path": item.loaded.facts(item.finding.file()).path,
            "edition": "2024",
            "doc": true,
            "doctest": false,
            "test": false,
        },
        "message": {
            "$message_type": "diagnostic",
            "message": finding.message,
            "code": { "code": format!("ddp::{}", finding.rule), "explanation": null },
            "level": level,
            "spans": spans,
            "children": children,
            "rendered": plain_text(item, look),
        },
    })
}

fn child(level: &str, message: &str, spans: &[Value]) -> Value {
    json!({
        "$message_type": "diagnostic",
        "message": message,
        "code": null,
        "level": level,
        "spans": spans,
        "children": [],
        "rendered": null,
    })
}

fn suggestion(item: Item<'_>, finding: &Plain<'_>) -> Option<Value> {
    let (fix, plain) = (item.finding.fix.as_ref()?, finding.fix.as_ref()?);
    let applicability = match fix.applicability {
        Applicability::Safe => "MachineApplicable",
        Applicability::Unsafe => "MaybeIncorrect",
    };
    let spans = fix.edits.iter().zip(&plain.edits).map(|(edit, plain)| {
        let mut span = span(item, &plain.place.path, edit.site, true);
        span["suggested_replacement"] = json!(edit.replacement);
        span["suggestion_applicability"] = json!(applicability);
        span
    });
    Some(child("help", &fix.title, &spans.collect::<Vec<_>>()))
}

fn span(item: Item<'_>, path: &str, site: Site, is_primary: bool) -> Value {
    let text = &item.loaded.project.file(site.file).text;
    let lines = Lines::new(text);
    let start = lines.position(site.span.start, Unit::Character);
    let end = lines.position(site.span.end, Unit::Character);
    let shown = (start.line..=end.line).map(|number| {
        let line = lines.line(number);
        let n_columns = line.chars().count() as u32 + 1;
        json!({
            "text": line,
            "highlight_start": if number == start.line { start.column } else { 1 },
            "highlight_end": if number == end.line { end.column } else { n_columns },
        })
    });
    json!({
        "file_name": path,
        "byte_start": site.span.start,
        "byte_end": site.span.end,
        "line_start": start.line,
        "line_end": end.line,
        "column_start": start.column,
        "column_end": end.column,
        "is_primary": is_primary,
        "text": shown.collect::<Vec<_>>(),
        "label": null,
        "suggested_replacement": null,
        "suggestion_applicability": null,
        "expansion": null,
    })
}
