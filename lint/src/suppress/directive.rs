//! Reads `ddp-lint: …` out of comments.

use crate::model::{Comment, Span};
use crate::nearest::nearest;
use crate::project::SourceFile;

/// What may stand behind `ddp-lint:`.
const KNOWN_VERBS: [&str; 3] = ["allow", "allow-file", "uniform"];

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Verb {
    Allow,
    AllowFile,
    /// A declaration for the analysis, or a mistake.
    Other,
}

#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Directive {
    pub(crate) verb: Verb,
    /// The whole comment.
    pub(crate) comment: Span,
    /// Nothing but white space stands before the comment on its line.
    own_line: bool,
    /// From the comment sign before `ddp-lint:` to the comment's end.
    span: Span,
    pub(crate) rules: Vec<Named>,
    pub(crate) mistake: Option<Mistake>,
}

#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Named {
    pub(crate) name: String,
    pub(crate) span: Span,
}

#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Mistake {
    pub(crate) span: Span,
    pub(crate) message: String,
}

const SIGN: &str = "ddp-lint:";

/// Some comment of the file speaks to this program.
pub(crate) fn is_spoken_of(file: &SourceFile) -> bool {
    let text = |comment: &Comment| file.text.get(comment.span.range());
    file.module.comments.iter().filter_map(text).any(|text| text.contains(SIGN))
}

/// All directives of a file, in source order.
pub(crate) fn directives(file: &SourceFile) -> Vec<Directive> {
    let read = |comment: &Comment| {
        let text = file.text.get(comment.span.range())?;
        directive(text, comment)
    };
    file.module.comments.iter().filter_map(read).collect()
}

/// The directive in a comment: at its start, or behind a second comment sign.
fn directive(text: &str, comment: &Comment) -> Option<Directive> {
    let at =
        text.match_indices(SIGN).map(|(at, _)| at).find(|at| sign_before(text, *at).is_some())?;
    let start = sign_before(text, at)?;
    let base = comment.span.start;
    let span = |range: std::ops::Range<usize>| {
        Span::new(base as usize + range.start, base as usize + range.end)
    };
    let mut directive = Directive {
        verb: Verb::Other,
        comment: comment.span,
        own_line: comment.own_line,
        span: span(start..text.len()),
        rules: Vec::new(),
        mistake: None,
    };
    let verb_at = at + SIGN.len() + leading_space(&text[at + SIGN.len()..]);
    let is_verb = |c: char| c.is_ascii_alphanumeric() || c == '-' || c == '_';
    let length = text[verb_at..].find(|c| !is_verb(c)).unwrap_or(text.len() - verb_at);
    let verb = &text[verb_at..verb_at + length];
    let mistake = |range, message| Some(Mistake { span: span(range), message });
    directive.verb = match verb {
        "allow" => Verb::Allow,
        "allow-file" => Verb::AllowFile,
        known if KNOWN_VERBS.contains(&known) => return Some(directive),
        "" => {
            directive.mistake = mistake(at..at + SIGN.len(), "nothing follows `ddp-lint:`".into());
            return Some(directive);
        }
        _ => {
            let near = nearest(verb, KNOWN_VERBS)
                .map_or(String::new(), |near| format!("; did you mean `{near}`?"));
            let message = format!("`{verb}` is nothing that ddp-lint knows{near}");
            directive.mistake = mistake(verb_at..verb_at + length, message);
            return Some(directive);
        }
    };
    let open = verb_at + length + leading_space(&text[verb_at + length..]);
    let list = text[open..].strip_prefix('(').and_then(|rest| rest.split_once(')'));
    let Some((list, _)) = list else {
        let message = format!("`{verb}` needs the names of rules in brackets");
        directive.mistake = mistake(verb_at..verb_at + length, message);
        return Some(directive);
    };
    directive.rules = names(list, base as usize + open + 1);
    if directive.rules.is_empty() {
        let message = format!("`{verb}()` names no rule");
        directive.mistake = mistake(verb_at..verb_at + length, message);
    }
    Some(directive)
}

/// Where the comment sign before `at` begins, if nothing else stands between.
fn sign_before(text: &str, at: usize) -> Option<usize> {
    let before = text[..at].trim_end();
    let start = ["//", "/*", "#"].iter().find_map(|sign| before.strip_suffix(sign))?.len();
    // `#` inside a word, the URL in `https://` and documentation (`///`) are no such sign.
    let is_free = start == 0 || text[..start].ends_with(char::is_whitespace);
    is_free.then_some(start)
}

fn leading_space(text: &str) -> usize {
    text.len() - text.trim_start_matches([' ', '\t']).len()
}

fn names(list: &str, base: usize) -> Vec<Named> {
    let mut names = Vec::new();
    let mut at = 0;
    for piece in list.split(',') {
        let name = piece.trim();
        if !name.is_empty() {
            let start = base + at + (piece.len() - piece.trim_start().len());
            names.push(Named { name: name.to_owned(), span: Span::new(start, start + name.len()) });
        }
        at += piece.len() + 1;
    }
    names
}

impl Directive {
    /// What to delete so that the directive no longer names its rule number `position`: the
    /// name, or all of the directive when it is the only one.
    pub(crate) fn without(&self, position: usize, text: &str) -> Span {
        if self.rules.len() > 1 {
            let own = self.rules[position].span;
            return match self.rules.get(position + 1) {
                Some(next) => Span { start: own.start, end: next.span.start },
                None => Span { start: self.rules[position - 1].span.end, end: own.end },
            };
        }
        let before = &text[..self.span.start as usize];
        let space = before.len() - before.trim_end_matches([' ', '\t']).len();
        let start = self.span.start - space as u32;
        let alone = self.own_line && self.span.start == self.comment.start;
        let line_end = match &text[self.span.end as usize..] {
            rest if !alone => &rest[..0],
            rest if rest.starts_with("\r\n") => &rest[..2],
            rest if rest.starts_with(['\r', '\n']) => &rest[..1],
            rest => &rest[..0],
        };
        Span { start, end: self.span.end + line_end.len() as u32 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Option<Directive> {
        let span = Span::new(10usize, 10 + text.len());
        directive(text, &Comment { span, text: "".into(), own_line: true })
    }

    fn rules(text: &str) -> Vec<(String, u32)> {
        let rules = read(text).map_or(Vec::new(), |directive| directive.rules);
        rules.into_iter().map(|named| (named.name, named.span.start)).collect()
    }

    fn mistake(text: &str) -> String {
        read(text).unwrap().mistake.unwrap().message
    }

    #[test]
    fn rules_are_read_with_their_places() {
        let one = |name: &str, at| (name.to_owned(), at);
        assert_eq!(rules("# ddp-lint: allow(a-b)"), [one("a-b", 28)]);
        assert_eq!(
            rules("#ddp-lint:allow-file( a , b ) -- because (of x)"),
            [one("a", 32), one("b", 36)]
        );
        assert_eq!(rules("// ddp-lint: allow(a,)"), [one("a", 29)]);
        assert_eq!(rules("/* ddp-lint: allow(a) */"), [one("a", 29)]);
        assert_eq!(rules("# type: ignore  # ddp-lint: allow(a)"), [one("a", 44)]);
    }

    #[test]
    fn prose_is_no_directive() {
        assert_eq!(read("# see ddp-lint: allow(a)"), None);
        assert_eq!(read("// https://ddp-lint: allow(a)"), None);
        assert_eq!(read("# use `# ddp-lint: allow(a)`"), None);
        assert_eq!(read("# nothing"), None);
        assert_eq!(read("/// ddp-lint: allow(a)"), None);
    }

    #[test]
    fn mistakes_are_told() {
        assert_eq!(mistake("# ddp-lint:"), "nothing follows `ddp-lint:`");
        assert_eq!(mistake("# ddp-lint: allow"), "`allow` needs the names of rules in brackets");
        assert_eq!(mistake("# ddp-lint: allow(a"), "`allow` needs the names of rules in brackets");
        assert_eq!(mistake("# ddp-lint: allow( )"), "`allow()` names no rule");
        assert_eq!(
            mistake("# ddp-lint: alow(a)"),
            "`alow` is nothing that ddp-lint knows; did you mean `allow`?"
        );
        assert_eq!(read("# ddp-lint: uniform").unwrap().mistake, None);
    }

    #[test]
    fn removing_leaves_what_is_still_needed() {
        let remove = |text: &str, position: usize| {
            let start = text.find(['#', '/']).unwrap();
            let end = text.find('\n').unwrap_or(text.len());
            let own_line = text[..start].trim().is_empty();
            let comment = Comment { span: Span::new(start, end), text: "".into(), own_line };
            let removed = directive(&text[start..end], &comment).unwrap().without(position, text);
            format!("{}{}", &text[..removed.start as usize], &text[removed.end as usize..])
        };
        assert_eq!(remove("x  # ddp-lint: allow(a)\ny", 0), "x\ny");
        assert_eq!(remove("    # ddp-lint: allow(a) -- why\ny", 0), "y");
        assert_eq!(remove("x  # ddp-lint: allow(a, b)", 0), "x  # ddp-lint: allow(b)");
        assert_eq!(remove("x  # ddp-lint: allow(a, b)", 1), "x  # ddp-lint: allow(a)");
        assert_eq!(remove("x  # noqa  # ddp-lint: allow(a)", 0), "x  # noqa");
    }
}
