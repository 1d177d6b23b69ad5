//! New suppression comments: where they go and how they read.

use rustc_hash::{FxHashMap, FxHashSet};

use super::Reaches;
use super::directive::{Directive, Verb, directives};
use crate::finding::{Edit, Finding};
use crate::model::{Language, Site, Span};
use crate::project::SourceFile;

/// Longer lines get the comment above them.
const COLUMNS_MAX: usize = 100;

/// Where a suppression comment for a finding stands.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Spot {
    /// The first line of the statement, from 1.
    line: u32,
    /// The statement is all of that line, and no comment follows it: one can.
    is_whole_statement: bool,
    /// The end of the list of an `allow(…)` that stands on that line.
    list_end: Option<u32>,
}

/// The edits that suppress these findings of a file, one per statement. Where the line lies
/// inside a text of several lines the result is no comment: check it.
pub fn additions(file: &SourceFile, findings: &[&Finding]) -> Vec<Edit> {
    let reaches = Reaches::new(file);
    let mut rules_of: FxHashMap<u32, (Spot, Vec<&str>)> = FxHashMap::default();
    for (finding, spot) in findings.iter().zip(spots(file, &reaches, findings)) {
        let (_, rules) = rules_of.entry(spot.line).or_insert((spot, Vec::new()));
        if !rules.contains(&finding.rule) {
            rules.push(finding.rule);
        }
    }
    let mut edits: Vec<Edit> = rules_of
        .into_values()
        .map(|(spot, rules)| edit(file, &reaches, spot, &rules.join(", ")))
        .collect();
    edits.sort_by_key(|edit| edit.site);
    edits
}

fn spots(file: &SourceFile, reaches: &Reaches<'_>, findings: &[&Finding]) -> Vec<Spot> {
    let lines = &reaches.lines;
    let line_of = |span: Span| lines.line_at(span.start);
    let commented: FxHashSet<u32> =
        file.module.comments.iter().map(|comment| line_of(comment.span)).collect();
    let directives = directives(file);
    let lists: FxHashMap<u32, u32> =
        directives.iter().filter_map(|one| Some((line_of(one.comment), list_end(one)?))).collect();
    findings
        .iter()
        .map(|finding| {
            let [first, last, _] = reaches.of(finding.site.span).on;
            Spot {
                line: first,
                is_whole_statement: first == last && !commented.contains(&first),
                list_end: lists.get(&first).copied(),
            }
        })
        .collect()
}

fn list_end(directive: &Directive) -> Option<u32> {
    let last = directive.rules.last()?;
    (directive.verb == Verb::Allow).then_some(last.span.end)
}

fn edit(file: &SourceFile, reaches: &Reaches<'_>, spot: Spot, rules: &str) -> Edit {
    let at = |offset: usize, replacement: String| {
        let site = Site { file: file.id, span: Span::new(offset, offset) };
        Edit { site, replacement }
    };
    if let Some(end) = spot.list_end {
        return at(end as usize, format!(", {rules}"));
    }
    let (sign, gap) = match file.module.language {
        Language::Python => ("#", "  "),
        Language::Rust => ("//", " "),
    };
    let comment = format!("{sign} ddp-lint: allow({rules})");
    let range = reaches.lines.range(spot.line);
    let code = &file.text[range.clone()];
    let n_columns = code.chars().count() + gap.len() + comment.chars().count();
    if spot.is_whole_statement && n_columns <= COLUMNS_MAX {
        let end = range.start + code.trim_end().len();
        return at(end, format!("{gap}{comment}"));
    }
    let full = &file.text[reaches.lines.full_range(spot.line)];
    let line_end = if full.ends_with("\r\n") { "\r\n" } else { "\n" };
    let indent = &code[..code.len() - code.trim_start().len()];
    at(range.start, format!("{indent}{comment}{line_end}"))
}
