//! Edits as somebody makes who types: mostly letters, now and then a line that makes or mends a
//! fault. The same in every run.

use std::collections::BTreeMap;

/// One change of a file.
#[derive(Debug)]
pub(super) struct Edit {
    pub(super) path: String,
    /// Bytes that go.
    start: usize,
    end: usize,
    pub(super) text: String,
}

/// The same bytes as lines and characters, from 0.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Range {
    pub(super) start: (usize, usize),
    pub(super) end: (usize, usize),
}

impl Edit {
    /// Makes the edit; the range that it replaced.
    pub(super) fn replace_in(&self, text: &mut String) -> Range {
        let place = |offset: usize| {
            let before = &text[..offset];
            let line = before.rfind('\n').map_or(0, |at| at + 1);
            (before.matches('\n').count(), before[line..].chars().count())
        };
        let range = Range { start: place(self.start), end: place(self.end) };
        text.replace_range(self.start..self.end, &self.text);
        range
    }
}

/// What is typed, beside letters.
const WORDS: [&str; 8] = [
    "\n",
    "(",
    ")",
    ".module",
    "\nimport torch\n",
    "\nmodel = torch.nn.DataParallel(model)\n",
    "  # ddp-lint: allow(unguarded-save)",
    "\nif rank == 0:\n    dist.barrier()\n",
];

pub(super) struct Typist {
    state: u64,
    paths: Vec<String>,
    /// Where the typing goes on: people type many letters at one place.
    at: Option<(String, usize)>,
    /// What was typed there, to be deleted again.
    n_typed: usize,
}

impl Typist {
    pub(super) fn new(texts: &BTreeMap<String, String>) -> Self {
        Self { state: 2_026, paths: texts.keys().cloned().collect(), at: None, n_typed: 0 }
    }

    fn below(&mut self, end: usize) -> usize {
        self.state = self
            .state
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        (self.state >> 33) as usize % end.max(1)
    }

    pub(super) fn next(&mut self, texts: &BTreeMap<String, String>) -> Edit {
        if let Some((path, offset)) = self.at.take() {
            if self.below(8) > 0 {
                return self.letter(path, offset);
            }
            // What was typed goes again in most cases, so that the files do not rot to noise.
            if self.below(4) > 0 {
                let start = offset - self.n_typed;
                return Edit { path, start, end: offset, text: String::new() };
            }
        }
        self.n_typed = 0;
        let index = self.below(self.paths.len());
        let path = self.paths[index].clone();
        let text = &texts[&path];
        let boundaries: Vec<usize> =
            text.char_indices().map(|(at, _)| at).chain([text.len()]).collect();
        let first = self.below(boundaries.len());
        let start = boundaries[first];
        match self.below(4) {
            0 => {
                let text = WORDS[self.below(WORDS.len())].to_owned();
                Edit { path, start, end: start, text }
            }
            1 => {
                let last = (first + self.below(20)).min(boundaries.len() - 1);
                Edit { path, start, end: boundaries[last], text: String::new() }
            }
            _ => self.letter(path, start),
        }
    }

    fn letter(&mut self, path: String, offset: usize) -> Edit {
        let letter = char::from(b'a' + self.below(26) as u8);
        self.n_typed += 1;
        self.at = Some((path.clone(), offset + 1));
        Edit { path, start: offset, end: offset, text: letter.to_string() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_edit_knows_the_lines_it_changes() {
        let mut text = "one\né🦀 two\n".to_owned();
        let edit = Edit { path: String::new(), start: 2, end: 10, text: "X".to_owned() };
        let range = edit.replace_in(&mut text);
        assert_eq!(range, Range { start: (0, 2), end: (1, 2) });
        assert_eq!(text, "onX two\n");
    }

    #[test]
    fn typing_is_the_same_in_every_run_and_stays_inside() {
        let original = BTreeMap::from([
            ("a.py".to_owned(), "é = 1\n".to_owned()),
            ("b.py".into(), String::new()),
        ]);
        let typed = || {
            let mut texts = original.clone();
            let mut typist = Typist::new(&texts);
            for _ in 0..500 {
                let edit = typist.next(&texts);
                edit.replace_in(texts.get_mut(&edit.path).unwrap());
            }
            texts
        };
        assert_eq!(typed(), typed());
        assert_ne!(typed(), original);
    }
}
