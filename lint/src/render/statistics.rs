//! How often each rule found something.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use serde_json::json;

use super::{Format, Item};
use crate::finding::Level;

#[derive(Default)]
struct Count {
    n_findings: usize,
    n_fixable: usize,
    level: Option<Level>,
}

pub(super) fn render(format: Format, items: &[Item<'_>]) -> String {
    let mut by_rule: BTreeMap<&str, Count> = BTreeMap::new();
    for item in items {
        let count = by_rule.entry(item.finding.rule).or_default();
        count.n_findings += 1;
        count.n_fixable += usize::from(item.finding.fix.is_some());
        count.level = count.level.max(Some(item.finding.level));
    }
    let mut counts: Vec<(&str, Count)> = by_rule.into_iter().collect();
    counts.sort_by_key(|(rule, count)| (std::cmp::Reverse(count.n_findings), *rule));
    if format.is_for_people() { table(&counts) } else { machine(&counts) }
}

fn table(counts: &[(&str, Count)]) -> String {
    let width = counts.iter().map(|(_, count)| count.n_findings.to_string().len()).max();
    let width = width.unwrap_or_default();
    counts.iter().fold(String::new(), |mut text, (rule, count)| {
        let level = level(count.level);
        let fixable = match count.n_fixable {
            0 => String::new(),
            n if n == count.n_findings => "  fixable".to_owned(),
            n => format!("  {n} fixable"),
        };
        let _ = writeln!(text, "{:width$}  {level:7}  {rule}{fixable}", count.n_findings);
        text
    })
}

fn machine(counts: &[(&str, Count)]) -> String {
    let rows: Vec<_> = counts
        .iter()
        .map(|(rule, count)| {
            json!({
                "rule": rule,
                "level": level(count.level),
                "count": count.n_findings,
                "fixable": count.n_fixable,
            })
        })
        .collect();
    format!("{:#}\n", serde_json::Value::from(rows))
}

fn level(level: Option<Level>) -> &'static str {
    match level {
        Some(Level::Error) => "error",
        Some(Level::Warning) => "warning",
        Some(Level::Advice) | None => "advice",
    }
}
