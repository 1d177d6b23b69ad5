//! Places in a repaired piece of a file, told as places in the file.

use ruff_text_size::TextRange;

use crate::model::Span;

/// One replacement in a piece, in offsets of the piece.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Patch {
    pub(super) start: usize,
    pub(super) end: usize,
    pub(super) replacement: String,
}

/// The text with the patches made; they are sorted and do not overlap.
pub(super) fn apply(text: &str, patches: &[Patch]) -> String {
    let mut patched = String::with_capacity(text.len() + 64);
    let mut at = 0;
    for patch in patches {
        patched.push_str(&text[at..patch.start]);
        patched.push_str(&patch.replacement);
        at = patch.end;
    }
    patched.push_str(&text[at..]);
    patched
}

/// From offsets of a patched piece to offsets of the file. Keeps the order of places, so
/// that what lies inside stays inside.
#[derive(Default)]
pub(super) struct Map {
    base: u32,
    /// Empty where nothing was patched.
    segments: Vec<Segment>,
}

/// The patched text from `patched` on comes from the piece from `start` on, up to `end` at most.
struct Segment {
    patched: u32,
    start: u32,
    end: u32,
}

impl Map {
    /// Of a piece that starts at `base`; the patches are sorted and do not overlap.
    pub(super) fn new(base: usize, patches: &[Patch]) -> Self {
        let mut segments = Vec::with_capacity(2 * patches.len() + 1);
        let mut at = 0;
        let mut patched = 0;
        for patch in patches {
            segments.push(Segment {
                patched: patched as u32,
                start: at as u32,
                end: patch.start as u32,
            });
            patched += patch.start - at;
            segments.push(Segment {
                patched: patched as u32,
                start: patch.start as u32,
                end: patch.end as u32,
            });
            patched += patch.replacement.len();
            at = patch.end;
        }
        if !patches.is_empty() {
            segments.push(Segment { patched: patched as u32, start: at as u32, end: u32::MAX });
        }
        Self { base: base as u32, segments }
    }

    pub(super) fn is_patched(&self) -> bool {
        !self.segments.is_empty()
    }

    pub(super) fn span(&self, range: TextRange) -> Span {
        Span { start: self.offset(range.start().to_u32()), end: self.offset(range.end().to_u32()) }
    }

    fn offset(&self, patched: u32) -> u32 {
        self.base + self.in_piece(patched)
    }

    pub(super) fn in_piece(&self, patched: u32) -> u32 {
        let index = self.segments.partition_point(|segment| segment.patched <= patched);
        let Some(segment) = index.checked_sub(1).map(|index| &self.segments[index]) else {
            return patched;
        };
        segment.end.min(segment.start + (patched - segment.patched))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn insertions_and_replacements_map_back() {
        // "abcdef" with "XY" before `c`, and `d` as "long".
        let patches = [
            Patch { start: 2, end: 2, replacement: "XY".into() },
            Patch { start: 3, end: 4, replacement: "long".into() },
        ];
        let map = Map::new(10, &patches);
        let patched = apply("abcdef", &patches);
        assert_eq!(patched, "abXYclongef");
        let offsets: Vec<u32> = (0..=patched.len() as u32).map(|at| map.offset(at)).collect();
        assert_eq!(offsets, [10, 11, 12, 12, 12, 13, 14, 14, 14, 14, 15, 16]);
        assert!(offsets.is_sorted());
        assert_eq!(Map::default().offset(7), 7);
    }
}
