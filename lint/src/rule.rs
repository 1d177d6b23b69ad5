//! What a rule is, how it is declared and how it reports.
//!
//! A rule reads a program and reports places. It knows nothing of configuration,
//! suppressions or output; the linter applies those to what it reports.

mod docs;
#[cfg(test)]
pub(crate) mod testing;

use rustc_hash::FxHashMap;

use crate::analysis::Program;
use crate::finding::{Applicability, Edit, Finding, Fix, Harm, Level, Related};
use crate::model::{Language, Site};

pub use docs::{Block, BlockKind};

/// One rule. Declared with [`declare_rule!`](crate::declare_rule), listed in
/// [`RULES`](crate::rules::RULES).
pub struct Rule {
    /// Names the fault and reads after "allow": `unguarded-save`.
    pub name: &'static str,
    /// The documentation as written, one leading space per line.
    pub docs: &'static str,
    /// Of a finding that says nothing else.
    pub level: Level,
    /// Of a finding that says nothing else.
    pub harm: Harm,
    /// 1: part of the first release.
    pub tier: u8,
    pub languages: &'static [Language],
    /// The most that its fixes ask of the user.
    pub fix: FixKind,
    pub check: fn(&Program<'_>, &mut Report<'_>),
    pub file: &'static str,
    pub line: u32,
}

/// Both languages, for `Rule::languages`.
pub const BOTH: &[Language] = &[Language::Python, Language::Rust];
/// Python only, for `Rule::languages`.
pub const PYTHON: &[Language] = &[Language::Python];
/// Rust only, for `Rule::languages`.
pub const RUST: &[Language] = &[Language::Rust];

/// Whether a rule can mend what it finds.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum FixKind {
    No,
    /// Same meaning, nothing to look at.
    Safe,
    /// Some of its fixes need a look.
    Unsafe,
}

/// Declares a rule: its documentation, its data, and a test named `examples` that runs the
/// documentation's `bad`, `good` and `fixed` blocks through the whole linter.
///
/// The fields are those of [`Rule`], in any order; `check` alone names the function of that
/// name.
#[macro_export]
macro_rules! declare_rule {
    (
        $(#[doc = $docs:literal])+
        pub static $rule:ident = { $($field:ident $(: $value:expr)?),* $(,)? };
    ) => {
        $(#[doc = $docs])+
        pub(crate) static $rule: $crate::rule::Rule = $crate::rule::Rule {
            docs: concat!($($docs, "\n"),+),
            file: file!(),
            line: line!(),
            $($field $(: $value)?),*
        };

        #[cfg(test)]
        #[test]
        fn examples() {
            $crate::rule::testing::examples(&$rule);
        }
    };
}

/// What one rule has to say about one program.
pub struct Report<'r> {
    rule: &'r Rule,
    findings: Vec<Finding>,
    /// Index into `findings`.
    by_site: FxHashMap<Site, usize>,
    /// Takes what is said about a site a second time.
    spare: Finding,
}

impl<'r> Report<'r> {
    pub(crate) fn new(rule: &'r Rule) -> Self {
        let nowhere =
            Site { file: crate::model::FileId(u32::MAX), span: crate::model::Span::default() };
        Self {
            rule,
            findings: Vec::new(),
            by_site: FxHashMap::default(),
            spare: finding_of(rule, nowhere, String::new()),
        }
    }

    /// Reports a place: what is wrong, lowercase, no final stop, in the user's own names.
    /// The first report of a place stands; later ones of the same rule are dropped.
    pub fn at(&mut self, site: Site, message: impl Into<String>) -> Draft<'_> {
        let finding = finding_of(self.rule, site, message.into());
        if self.by_site.contains_key(&site) {
            self.spare = finding;
            return Draft { finding: &mut self.spare };
        }
        let index = self.findings.len();
        self.by_site.insert(site, index);
        self.findings.push(finding);
        Draft { finding: &mut self.findings[index] }
    }

    pub fn rule(&self) -> &'r Rule {
        self.rule
    }

    pub(crate) fn into_findings(self) -> Vec<Finding> {
        self.findings
    }
}

fn finding_of(rule: &Rule, site: Site, message: String) -> Finding {
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

/// A finding while the rule still describes it. It is reported already.
pub struct Draft<'d> {
    finding: &'d mut Finding,
}

#[expect(
    clippy::return_self_not_must_use,
    reason = "the finding is in the report already; a chain may end after any call"
)]
impl Draft<'_> {
    /// For rules whose findings differ in level. Configuration still has the last word.
    pub fn level(self, level: Level) -> Self {
        self.finding.level = level;
        self
    }

    pub fn harm(self, harm: Harm) -> Self {
        self.finding.harm = harm;
        self
    }

    /// Why it hurts.
    pub fn why(self, why: impl Into<String>) -> Self {
        self.finding.why = why.into();
        self
    }

    /// What to do.
    pub fn help(self, help: impl Into<String>) -> Self {
        self.finding.help = help.into();
        self
    }

    /// Another place that is part of the story.
    pub fn related(self, site: Site, message: impl Into<String>) -> Self {
        self.finding.related.push(Related { site, message: message.into() });
        self
    }

    pub fn fix(self, fix: impl Into<Option<Fix>>) -> Self {
        self.finding.fix = fix.into();
        self
    }

    /// A fix that keeps the meaning; `title` is an order: "use the device of the input".
    pub fn safe_fix(self, title: impl Into<String>, edits: Vec<Edit>) -> Self {
        self.fix(Fix { applicability: Applicability::Safe, title: title.into(), edits })
    }

    /// A fix that needs a look; `title` is an order: "let only rank 0 save".
    pub fn unsafe_fix(self, title: impl Into<String>, edits: Vec<Edit>) -> Self {
        self.fix(Fix { applicability: Applicability::Unsafe, title: title.into(), edits })
    }
}

impl std::fmt::Debug for Rule {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("Rule").field(&self.name).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::{FileId, Span};

    static RULE: Rule = Rule {
        name: "some-fault",
        docs: "",
        level: Level::Warning,
        harm: Harm::Waste,
        tier: 1,
        languages: BOTH,
        fix: FixKind::No,
        check: |_, _| {},
        file: file!(),
        line: line!(),
    };

    #[test]
    fn sources_without_fault_and_mark_pass() {
        use crate::prelude::{check_files, check_python, check_rust};
        check_python("x = 1\n");
        check_rust("fn main() {}\n");
        check_files(&[("a.py", "import b\n"), ("b.py", "y = 2\n")]);
    }

    #[test]
    #[should_panic(expected = "- no-such-rule")]
    fn a_mark_that_nothing_meets_fails() {
        crate::prelude::check_python("x = 1  # ~ no-such-rule\n");
    }

    #[test]
    #[should_panic(expected = "no `bad` example for Python")]
    fn a_rule_without_examples_fails() {
        testing::examples(&RULE);
    }

    #[test]
    fn the_first_report_of_a_place_stands() {
        let site = |start: u32| Site { file: FileId(0), span: Span::new(start, start + 1) };
        let mut report = Report::new(&RULE);
        report.at(site(3), "first").why("because").related(site(9), "made here");
        report.at(site(3), "second").why("other").level(Level::Error);
        report.at(site(5), "elsewhere").level(Level::Advice).help("do this");
        let findings = report.into_findings();
        assert_eq!(findings.len(), 2);
        assert_eq!((&*findings[0].message, &*findings[0].why), ("first", "because"));
        assert_eq!((findings[0].level, findings[0].harm), (Level::Warning, Harm::Waste));
        assert_eq!(findings[0].related[0].message, "made here");
        assert_eq!((findings[1].level, &*findings[1].help), (Level::Advice, "do this"));
    }
}
