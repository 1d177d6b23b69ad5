//! Suppression comments: `ddp-lint: allow(rule, …) -- reason` and `allow-file(…)`.
//!
//! A comment counts on the first or last line of the statement that holds the finding, on the
//! finding's own line, or alone on the line above either. Comments that suppress nothing, or
//! name no rule, are findings of their own.

mod add;
mod directive;
mod statements;

use rustc_hash::{FxHashMap, FxHashSet};

pub use add::additions;
pub(crate) use directive::is_spoken_of;

use crate::finding::{Applicability, Edit, Finding, Fix};
use crate::lines::Lines;
use crate::model::{Language, Site, Span};
use crate::nearest::nearest;
use crate::project::SourceFile;
use crate::rules::{self, RULES};
use directive::{Directive, Verb, directives};
use statements::{Statement, Statements};

const UNUSED: &str = "unused-suppression";
const UNKNOWN: &str = "unknown-suppression";

/// Drops the findings in `file` that its comments suppress and adds what is to be said about
/// the comments. `runs` tells which rules run; in a file that no program reaches (`is_reached`)
/// none did, and nothing is said about comments that suppress nothing.
pub fn apply(
    file: &SourceFile,
    findings: Vec<Finding>,
    runs: impl Fn(&str) -> bool,
    is_reached: bool,
) -> Vec<Finding> {
    let directives = directives(file);
    if directives.is_empty() {
        return findings;
    }
    let mut allows = Allows::new(file, &directives);
    let mut kept = allows.filter(findings);
    kept.extend(allows.filter(unknown(file, &directives)));
    if is_reached {
        let unused = allows.unused(&runs);
        kept.extend(allows.filter(unused));
    }
    kept.retain(|finding| runs(finding.rule));
    kept
}

/// The name of a rule that a suppression comment holds at `offset`, and where it stands.
pub fn rule_at(file: &SourceFile, offset: u32) -> Option<(String, Span)> {
    let at = Span { start: offset, end: offset };
    let named = directives(file).into_iter().flat_map(|directive| directive.rules);
    let mut found = named.filter(|named| named.span.contains(at));
    found.next().map(|named| (named.name, named.span))
}

/// The lines on which a comment suppresses a finding at a place: the comment stands on one of
/// `on`, or alone directly above one of `below`.
#[derive(Debug)]
struct Reach {
    on: [u32; 3],
    below: [u32; 2],
}

/// Finds the reach of suppressions for places in one file.
struct Reaches<'f> {
    lines: Lines<'f>,
    statements: Statements,
    /// By start.
    comments: Vec<Span>,
}

impl<'f> Reaches<'f> {
    fn new(file: &'f SourceFile) -> Self {
        let (lines, statements) = (Lines::new(&file.text), Statements::of(&file.module));
        let mut comments: Vec<Span> = file.module.comments.iter().map(|c| c.span).collect();
        comments.sort_unstable();
        Self { lines, statements, comments }
    }

    fn of(&self, place: Span) -> Reach {
        let own = self.lines.line_at(place.start);
        let Some(statement) = self.statement(place) else {
            return Reach { on: [own; 3], below: [own; 2] };
        };
        let first = self.lines.line_at(statement.span.start);
        let last = match statement.body {
            Some(body) => self.last_of_header(first, body),
            None => self.lines.line_at(statement.span.end.max(1) - 1),
        };
        Reach { on: [first, last, own], below: [first, own] }
    }

    /// The statement that holds the place; for a place in a comment, the one before it on its
    /// line.
    fn statement(&self, place: Span) -> Option<Statement> {
        let n_begun = self.comments.partition_point(|comment| comment.start <= place.start);
        let in_comment = n_begun > 0 && self.comments[n_begun - 1].contains(place);
        let line = self.lines.line_at(place.start);
        let is_here = |before: &Statement| self.lines.line_at(before.span.end) == line;
        let before = in_comment.then(|| self.statements.before(place)).flatten();
        before.filter(is_here).or_else(|| self.statements.around(place))
    }

    /// The last line of a compound statement's header: the last before its body that holds
    /// more than a comment.
    fn last_of_header(&self, first: u32, body: u32) -> u32 {
        let body_line = self.lines.line_at(body);
        let is_code = |line: &u32| {
            let text = self.lines.line(*line).trim_start();
            !(text.is_empty() || text.starts_with('#') || text.starts_with("//"))
        };
        (first..body_line).rev().find(is_code).unwrap_or(first)
    }
}

struct Allows<'f> {
    file: &'f SourceFile,
    reaches: Reaches<'f>,
    directives: &'f [Directive],
    /// Unbroken runs of lines that hold nothing but comments: first and last line, sorted.
    comment_runs: Vec<(u32, u32)>,
    /// For each rule the `allow` comments that name it: their line and which they are, sorted.
    by_line: FxHashMap<&'f str, Vec<(u32, Used)>>,
    /// For each rule the `allow-file` comments that name it.
    by_file: FxHashMap<&'f str, Vec<Used>>,
    used: FxHashSet<Used>,
}

/// Index of a directive and of a rule within it.
type Used = (usize, usize);

impl<'f> Allows<'f> {
    fn new(file: &'f SourceFile, directives: &'f [Directive]) -> Self {
        let reaches = Reaches::new(file);
        let comment_runs = comment_runs(file, &reaches.lines);
        let mut by_line = FxHashMap::<&str, Vec<(u32, Used)>>::default();
        let mut by_file = FxHashMap::<&str, Vec<Used>>::default();
        for (index, directive) in directives.iter().enumerate() {
            let line = reaches.lines.line_at(directive.comment.start);
            for (rule, named) in directive.rules.iter().enumerate() {
                let name = named.name.as_str();
                match directive.verb {
                    Verb::Allow => by_line.entry(name).or_default().push((line, (index, rule))),
                    Verb::AllowFile => by_file.entry(name).or_default().push((index, rule)),
                    Verb::Other => {}
                }
            }
        }
        for found in by_line.values_mut() {
            found.sort_unstable();
        }
        let used = FxHashSet::default();
        Self { file, reaches, directives, comment_runs, by_line, by_file, used }
    }

    /// The findings that no comment suppresses.
    fn filter(&mut self, findings: Vec<Finding>) -> Vec<Finding> {
        findings.into_iter().filter(|finding| !self.suppresses(finding)).collect()
    }

    fn suppresses(&mut self, finding: &Finding) -> bool {
        let mut found = Vec::new();
        if let Some(named) = self.by_line.get(finding.rule) {
            for (first, last) in self.lines_for(&self.reaches.of(finding.site.span)) {
                let start = named.partition_point(|(line, _)| *line < first);
                let inside = named[start..].iter().take_while(|(line, _)| *line <= last);
                found.extend(inside.map(|(_, used)| *used));
            }
        }
        if found.is_empty() {
            found.extend(self.by_file.get(finding.rule).into_iter().flatten());
        }
        self.used.extend(&found);
        !found.is_empty()
    }

    /// The lines of `on`, and the unbroken comment lines above those of `below`: first and last.
    fn lines_for(&self, reach: &Reach) -> impl Iterator<Item = (u32, u32)> + use<> {
        let above = reach.below.map(|below| {
            let n_runs = self.comment_runs.partition_point(|(first, _)| *first < below);
            let run = n_runs.checked_sub(1).map(|last| self.comment_runs[last]);
            // Without comments above, the range is empty.
            run.filter(|(_, last)| *last + 1 >= below)
                .map_or((below, below - 1), |(first, _)| (first, below - 1))
        });
        reach.on.map(|line| (line, line)).into_iter().chain(above)
    }

    fn unused(&self, runs: &impl Fn(&str) -> bool) -> Vec<Finding> {
        let mut findings = Vec::new();
        for (index, directive) in self.directives.iter().enumerate() {
            for (position, named) in directive.rules.iter().enumerate() {
                let known = rules::find(&named.name).is_some();
                let used = self.used.contains(&(index, position));
                // What would be told about this very comment is not known yet.
                if known && !used && named.name != UNUSED && runs(&named.name) {
                    findings.push(self.unused_finding(directive, position));
                }
            }
        }
        findings
    }

    fn unused_finding(&self, directive: &Directive, position: usize) -> Finding {
        let named = &directive.rules[position];
        let place = match directive.verb {
            Verb::AllowFile => "in this file",
            _ => "here",
        };
        let mut finding = finding(
            UNUSED,
            self.site(named.span),
            format!("`{}` finds nothing {place} that this comment could allow", named.name),
        );
        finding.why = "a suppression that is left over hides the next fault of that kind".into();
        finding.help = "remove it; a comment counts on the first or last line of the statement, \
                        or alone on the line above it"
            .into();
        let removed = directive.without(position, &self.file.text);
        finding.fix = Some(Fix {
            applicability: Applicability::Safe,
            title: "remove the suppression".to_owned(),
            edits: vec![Edit { site: self.site(removed), replacement: String::new() }],
        });
        finding
    }

    fn site(&self, span: Span) -> Site {
        Site { file: self.file.id, span }
    }
}

/// Runs of lines that hold nothing but comments.
fn comment_runs(file: &SourceFile, lines: &Lines<'_>) -> Vec<(u32, u32)> {
    let own_lines = file.module.comments.iter().filter(|comment| comment.own_line);
    let mut spans: Vec<(u32, u32)> = own_lines
        .map(|comment| {
            let last = comment.span.end.max(1) - 1;
            (lines.line_at(comment.span.start), lines.line_at(last))
        })
        .collect();
    spans.sort_unstable();
    let mut runs: Vec<(u32, u32)> = Vec::new();
    for (first, last) in spans {
        match runs.last_mut() {
            Some(run) if first <= run.1 + 1 => run.1 = run.1.max(last),
            _ => runs.push((first, last)),
        }
    }
    runs
}

/// What is wrong with the comments themselves.
fn unknown(file: &SourceFile, directives: &[Directive]) -> Vec<Finding> {
    let site = |span| Site { file: file.id, span };
    let mut findings = Vec::new();
    for directive in directives {
        if let Some(mistake) = &directive.mistake {
            let mut finding = finding(UNKNOWN, site(mistake.span), mistake.message.clone());
            finding.help = match file.module.language {
                Language::Python => "write `# ddp-lint: allow(rule) -- reason`".into(),
                Language::Rust => "write `// ddp-lint: allow(rule) -- reason`".into(),
            };
            findings.push(finding);
        }
        for named in &directive.rules {
            if rules::find(&named.name).is_some() {
                continue;
            }
            let near = nearest(&named.name, RULES.iter().map(|rule| rule.name));
            let mut finding =
                finding(UNKNOWN, site(named.span), format!("`{}` is no rule", named.name));
            finding.help = near.map_or_else(
                || "`ddp-lint rules` lists the rules".to_owned(),
                |near| format!("did you mean `{near}`?"),
            );
            findings.push(finding);
        }
    }
    for finding in &mut findings {
        finding.why = "this comment suppresses nothing".into();
    }
    findings
}

fn finding(rule: &'static str, site: Site, message: String) -> Finding {
    let known = rules::find(rule);
    let rule = known.unwrap_or_else(|| unreachable!("`{rule}` is in the registry"));
    Finding {
        rule: rule.name,
        level: rule.level,
        harm: rule.harm,
        site,
        message,
        why: String::new(),
        help: String::new(),
        related: Vec::new(),
        fix: None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    use crate::rule::testing::project;

    /// Each `bad` in the source is a finding of a rule that comments call `BAD`. Gives the
    /// lines of those that are left, and of what is told about the comments.
    fn left(path: &str, source: &str) -> (Vec<u32>, Vec<u32>) {
        // Any real rule will do.
        let rule = UNKNOWN;
        let source = source.replace("BAD", rule);
        let project = project(&[(path, &source)]);
        let file = &project.files[0];
        assert!(file.module.errors.is_empty(), "{:?}", file.module.errors);
        let bad = |(at, _)| {
            let site = Site { file: file.id, span: Span::new(at, at + "bad".len()) };
            finding(rule, site, "bad".to_owned())
        };
        let kept = apply(file, source.match_indices("bad").map(bad).collect(), |_| true, true);
        let lines = Lines::new(&file.text);
        let (bad, told): (Vec<_>, Vec<_>) = kept.iter().partition(|f| f.message == "bad");
        let lines_of = |findings: Vec<&Finding>| {
            findings.iter().map(|f| lines.line_at(f.site.span.start)).collect()
        };
        (lines_of(bad), lines_of(told))
    }

    #[track_caller]
    fn suppressed(source: &str) {
        assert_eq!(left("main.py", source), (vec![], vec![]), "{source}");
    }

    #[test]
    fn a_comment_counts_on_the_first_or_last_line_of_the_statement() {
        suppressed("bad()  # ddp-lint: allow(BAD)\n");
        suppressed("f(  # ddp-lint: allow(BAD)\n    x,\n    bad,\n    y,\n)\n");
        suppressed("f(\n    x,\n    bad,\n    y,\n)  # ddp-lint: allow(BAD) -- why\n");
        suppressed("f(\n    bad,  # ddp-lint: allow(BAD)\n)\n");
        suppressed("bad(); bad()  # ddp-lint: allow(BAD)\n");
    }

    #[test]
    fn a_comment_counts_alone_on_the_line_above() {
        suppressed("# ddp-lint: allow(BAD)\nbad()\n");
        suppressed("# ddp-lint: allow(BAD)\n# more words\nf(\n    bad,\n)\n");
        suppressed("f(\n    # ddp-lint: allow(BAD)\n    bad,\n)\n");
        let apart = "# ddp-lint: allow(BAD)\n\nbad()\n";
        assert_eq!(left("main.py", apart), (vec![3], vec![1]));
        let behind_code = "x = 1  # ddp-lint: allow(BAD)\nbad()\n";
        assert_eq!(left("main.py", behind_code), (vec![2], vec![1]));
        let below = "bad()\n# ddp-lint: allow(BAD)\n";
        assert_eq!(left("main.py", below), (vec![1], vec![2]));
    }

    #[test]
    fn a_compound_statement_ends_with_its_header() {
        suppressed("if bad:  # ddp-lint: allow(BAD)\n    x()\n");
        suppressed("for x in f(\n    bad,\n):  # ddp-lint: allow(BAD)\n    x()\n");
        suppressed(
            "def f(\n    a=bad,\n    b=1,\n):  # ddp-lint: allow(BAD)\n    # x\n\n    x()\n",
        );
        let in_body = "if bad:\n    x()\n    y()  # ddp-lint: allow(BAD)\n";
        assert_eq!(left("main.py", in_body), (vec![1], vec![3]));
        let of_the_header = "if x:  # ddp-lint: allow(BAD)\n    bad()\n";
        assert_eq!(left("main.py", of_the_header), (vec![2], vec![1]));
    }

    #[test]
    fn a_comment_stands_above_decorators() {
        suppressed("# ddp-lint: allow(BAD)\n@wrap\n@other(\n    1\n)\ndef bad(self):\n    pass\n");
        suppressed(
            "class A:\n    # ddp-lint: allow(BAD)\n    @wrap\n    def bad(self):\n        pass\n",
        );
        suppressed("@wrap\n# ddp-lint: allow(BAD)\ndef bad():\n    pass\n");
        suppressed("# ddp-lint: allow(BAD)\n@wrap\nclass bad:\n    pass\n");
    }

    #[test]
    fn a_file_comment_counts_everywhere_in_the_file() {
        suppressed("x()\nbad()\n# ddp-lint: allow-file(BAD) -- generated\n\n\nbad()\n");
        // The nearer comment is the one that is used.
        let twice = "# ddp-lint: allow-file(BAD)\n\nbad()  # ddp-lint: allow(BAD)\n";
        assert_eq!(left("main.py", twice), (vec![], vec![1]));
    }

    #[test]
    fn only_the_named_rules_are_suppressed() {
        let other = "bad()  # ddp-lint: allow(no-such-rule)\n";
        assert_eq!(left("main.py", other), (vec![1], vec![1]));
        suppressed("bad()  # ddp-lint: allow(BAD, BAD)\n");
        let unused = "x()  # ddp-lint: allow(BAD)\n";
        assert_eq!(left("main.py", unused), (vec![], vec![1]));
        suppressed("x()  # ddp-lint: allow(BAD, unused-suppression)\n");
        suppressed("x()  # ddp-lint: uniform\n");
    }

    #[test]
    fn text_in_strings_is_no_comment() {
        let string = "x = \"# ddp-lint: allow-file(BAD)\"\nbad()\n";
        assert_eq!(left("main.py", string), (vec![2], vec![]));
    }

    #[test]
    fn many_comments_take_little_time() {
        // Comparing each with each would take minutes.
        let alone = "# ddp-lint: allow(BAD)\n".repeat(20_000);
        let behind = "bad()  # ddp-lint: allow(BAD)\n".repeat(20_000);
        let in_one = format!("class A:\n{}", "    bad  # x\n".repeat(20_000));
        assert_eq!(left("main.py", &alone).1.len(), 20_000);
        assert_eq!(left("main.py", &behind).0.len(), 0);
        assert_eq!(left("main.py", &in_one).0.len(), 20_000);
    }

    #[test]
    fn rules_that_did_not_run_are_not_judged() {
        let project = project(&[("a.py", "x()  # ddp-lint: allow(unknown-suppression)\n")]);
        let n_told = |runs: fn(&str) -> bool, is_reached| {
            apply(&project.files[0], Vec::new(), runs, is_reached).len()
        };
        assert_eq!(n_told(|_| true, true), 1);
        assert_eq!(n_told(|rule| rule != UNKNOWN, true), 0);
        assert_eq!(n_told(|_| true, false), 0);
    }
}
