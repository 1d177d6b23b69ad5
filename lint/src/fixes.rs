//! Applies the edits of fixes to texts.
//!
//! A fix is applied whole or not at all; fixes that touch the same text wait for the next
//! round. No I/O: texts in, texts out.

use crate::finding::{Edit, Fix};
use crate::model::FileId;
use crate::project::Project;

/// What one round of fixes did.
#[derive(Debug, Default)]
pub struct Round {
    /// The new texts of the files that changed, in file order.
    pub texts: Vec<(FileId, String)>,
    /// Fixes that were applied.
    pub n_applied: usize,
    /// Fixes that overlap an applied one; they need another round.
    pub n_waiting: usize,
}

/// Applies the fixes in the order given. Equal fixes (the same edits for two findings) count
/// once each and change the text once.
pub fn apply<'f>(project: &Project, fixes: impl IntoIterator<Item = &'f Fix>) -> Round {
    let mut round = Round::default();
    let mut accepted: Vec<&Edit> = Vec::new();
    for fix in fixes {
        if !is_sound(project, fix) {
            continue;
        }
        if accept(&mut accepted, fix) {
            round.n_applied += 1;
        } else {
            round.n_waiting += 1;
        }
    }
    accepted.sort_by_key(|edit| edit.site);
    for edits in accepted.chunk_by(|a, b| a.site.file == b.site.file) {
        let file = project.file(edits[0].site.file);
        round.texts.push((file.id, edited(&file.text, edits)));
    }
    round
}

/// Adds the edits of a fix to those that are made, unless they clash with one.
pub fn accept<'f>(accepted: &mut Vec<&'f Edit>, fix: &'f Fix) -> bool {
    if fix.edits.iter().any(|edit| accepted.iter().any(|other| clash(edit, other))) {
        return false;
    }
    for edit in &fix.edits {
        if !accepted.contains(&edit) {
            accepted.push(edit);
        }
    }
    true
}

/// The text with the edits made; they are sorted and do not overlap.
pub fn edited(text: &str, edits: &[&Edit]) -> String {
    let mut new = String::with_capacity(text.len());
    let mut at = 0;
    for edit in edits {
        let range = edit.site.span.range();
        new.push_str(&text[at..range.start]);
        new.push_str(&edit.replacement);
        at = range.end;
    }
    new.push_str(&text[at..]);
    new
}

/// Guards the user's text against a bug of ours: all edits lie inside their files, on character
/// boundaries, and apart from each other.
fn is_sound(project: &Project, fix: &Fix) -> bool {
    let fits = |edit: &Edit| {
        project
            .files
            .get(edit.site.file.0 as usize)
            .is_some_and(|file| file.text.get(edit.site.span.range()).is_some())
    };
    let apart = |index: usize, edit: &Edit| {
        fix.edits[..index].iter().all(|other| other == edit || !clash(edit, other))
    };
    fix.edits.iter().enumerate().all(|(index, edit)| fits(edit) && apart(index, edit))
}

/// Two edits that cannot both be made. The same edit twice is one edit (two fixes that add
/// the same import); two insertions at one place have no order, so they clash, while an
/// insertion goes before what is replaced there.
fn clash(a: &Edit, b: &Edit) -> bool {
    if a.site.file != b.site.file || a == b {
        return false;
    }
    let (a, b) = (a.site.span, b.site.span);
    a.start.max(b.start) < a.end.min(b.end)
        || (a == b && a.start == a.end)
        || (a.start == a.end && b.start < a.start && a.start < b.end)
        || (b.start == b.end && a.start < b.start && b.start < a.end)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::finding::Applicability;
    use crate::model::{Site, Span};
    use crate::rule::testing::project;

    fn edit(file: u32, start: u32, end: u32, replacement: &str) -> Edit {
        let site = Site { file: FileId(file), span: Span { start, end } };
        Edit { site, replacement: replacement.to_owned() }
    }

    fn fix(edits: Vec<Edit>) -> Fix {
        Fix { applicability: Applicability::Safe, title: "mend it".to_owned(), edits }
    }

    fn apply_to(files: &[(&str, &str)], fixes: &[Fix]) -> (Vec<String>, usize, usize) {
        let round = apply(&project(files), fixes);
        let texts = round.texts.into_iter().map(|(_, text)| text).collect();
        (texts, round.n_applied, round.n_waiting)
    }

    #[test]
    fn a_fix_changes_several_files_at_once() {
        let files = [("a.py", "one two"), ("b.py", "three")];
        let fixes = [fix(vec![edit(1, 0, 5, "3"), edit(0, 4, 7, "2"), edit(0, 0, 0, "0 ")])];
        assert_eq!(apply_to(&files, &fixes), (vec!["0 one 2".into(), "3".into()], 1, 0));
    }

    #[test]
    fn a_fix_that_overlaps_waits_whole() {
        let files = [("a.py", "one two three")];
        let fixes = [
            fix(vec![edit(0, 4, 7, "2")]),
            fix(vec![edit(0, 0, 3, "1"), edit(0, 5, 6, "W")]),
            fix(vec![edit(0, 5, 5, "x")]),
            fix(vec![edit(0, 8, 13, "3")]),
        ];
        assert_eq!(apply_to(&files, &fixes), (vec!["one 2 3".into()], 2, 2));
    }

    #[test]
    fn the_same_edit_of_two_fixes_is_made_once() {
        let files = [("a.py", "one two")];
        let import = edit(0, 0, 0, "import os\n");
        let fixes = [
            fix(vec![import.clone(), edit(0, 0, 3, "1")]),
            fix(vec![import.clone(), edit(0, 4, 7, "2")]),
            fix(vec![import]),
        ];
        // An insertion and a replacement at one place have an order: the insertion is first.
        assert_eq!(apply_to(&files, &fixes), (vec!["import os\n1 2".into()], 3, 0));
    }

    #[test]
    fn two_insertions_at_one_place_do_not_mix() {
        let files = [("a.py", "one")];
        let fixes = [fix(vec![edit(0, 0, 0, "a")]), fix(vec![edit(0, 0, 0, "b")])];
        assert_eq!(apply_to(&files, &fixes), (vec!["aone".into()], 1, 1));
    }

    #[test]
    fn edits_outside_the_text_are_refused() {
        let files = [("a.py", "é")];
        let fixes = [
            fix(vec![edit(0, 1, 2, "")]),
            fix(vec![edit(0, 0, 9, "")]),
            fix(vec![edit(7, 0, 0, "")]),
            fix(vec![edit(0, 0, 2, "a"), edit(0, 0, 1, "b")]),
        ];
        assert_eq!(apply_to(&files, &fixes), (vec![], 0, 0));
    }
}
