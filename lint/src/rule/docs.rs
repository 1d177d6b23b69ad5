//! A rule's documentation as text: summary, examples, what is shown to users.

use std::fmt::Write as _;

use super::Rule;
use crate::marks;
use crate::model::Language;

/// A fenced example of a rule's documentation.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Block {
    pub language: Language,
    pub kind: BlockKind,
    /// With its marks; ends with a line end.
    pub text: String,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum BlockKind {
    /// Holds the marked findings.
    Bad,
    /// Holds none.
    Good,
    /// What the fixes make of the `bad` block before it.
    Fixed,
}

impl Rule {
    /// The documentation as Markdown, with marks.
    fn source(&self) -> String {
        self.docs.lines().fold(String::new(), |mut text, line| {
            text.push_str(line.strip_prefix(' ').unwrap_or(line).trim_end());
            text.push('\n');
            text
        })
    }

    /// The documentation as Markdown, as users read it: no marks, and before each example a
    /// line that says what it is.
    pub fn markdown(&self) -> String {
        let mut shown = String::new();
        let mut fence: Option<Language> = None;
        for line in self.source().lines() {
            if let Some(language) = fence {
                if line.starts_with("```") {
                    fence = None;
                }
                let text = marks::strip(line, language);
                if text.is_empty() && !line.is_empty() {
                    continue;
                }
                shown.push_str(&text);
            } else if let Some((language, kind)) = open_fence(line) {
                fence = Some(language);
                let (name, sign) = match language {
                    Language::Python => ("Python", "python"),
                    Language::Rust => ("Rust", "rust"),
                };
                let kind = match kind {
                    BlockKind::Bad => "at fault",
                    BlockKind::Good => "right",
                    BlockKind::Fixed => "mended",
                };
                let _ = write!(shown, "{name}, {kind}:\n\n```{sign}");
            } else {
                shown.push_str(line);
            }
            shown.push('\n');
        }
        shown
    }

    /// The first sentence: what the fault is.
    pub fn summary(&self) -> String {
        let source = self.source();
        let paragraph = source.trim_start().split("\n\n").next().unwrap_or_default();
        paragraph.trim().replace('\n', " ")
    }

    /// The `bad`, `good` and `fixed` examples, in order.
    pub fn blocks(&self) -> Vec<Block> {
        let mut blocks = Vec::new();
        let mut open: Option<Block> = None;
        for line in self.source().lines() {
            match &mut open {
                None => {
                    open = open_fence(line).map(|(language, kind)| Block {
                        language,
                        kind,
                        text: String::new(),
                    });
                }
                Some(_) if line.starts_with("```") => blocks.extend(open.take()),
                Some(block) => {
                    block.text.push_str(line);
                    block.text.push('\n');
                }
            }
        }
        blocks
    }
}

/// ```` ```python bad ````.
fn open_fence(line: &str) -> Option<(Language, BlockKind)> {
    let mut words = line.strip_prefix("```")?.split_whitespace();
    let language = match words.next()? {
        "python" => Language::Python,
        "rust" => Language::Rust,
        _ => return None,
    };
    let kind = match words.next()? {
        "bad" => BlockKind::Bad,
        "good" => BlockKind::Good,
        "fixed" => BlockKind::Fixed,
        _ => return None,
    };
    Some((language, kind))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::finding::{Harm, Level};
    use crate::rule::{BOTH, FixKind};

    const DOCS: &str = " Something is\n wrong.\n\n It hurts.\n\n ```python bad\n if a:\n     b()  # ~ some-fault\n ```\n ```rust good\n c();\n ```\n ```text\n error text\n ```\n";

    static RULE: Rule = Rule {
        name: "some-fault",
        docs: DOCS,
        level: Level::Error,
        harm: Harm::Hang,
        tier: 1,
        languages: BOTH,
        fix: FixKind::No,
        check: |_, _| {},
        file: "",
        line: 0,
    };

    #[test]
    fn examples_keep_their_indentation_and_marks() {
        let blocks = RULE.blocks();
        assert_eq!(blocks.len(), 2);
        assert_eq!(blocks[0].text, "if a:\n    b()  # ~ some-fault\n");
        assert_eq!((blocks[0].language, blocks[0].kind), (Language::Python, BlockKind::Bad));
        assert_eq!((blocks[1].language, blocks[1].kind), (Language::Rust, BlockKind::Good));
    }

    #[test]
    fn users_see_no_marks() {
        assert_eq!(RULE.summary(), "Something is wrong.");
        let shown = RULE.markdown();
        assert!(shown.contains("Python, at fault:\n\n```python\nif a:\n    b()\n```\n"), "{shown}");
        assert!(shown.contains("```text\nerror text\n```"), "{shown}");
    }
}
