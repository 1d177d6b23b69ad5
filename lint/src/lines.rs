//! Where a byte offset stands: line and column, and back.
//!
//! Lines end with `\n`, `\r\n` or a lone `\r`, as Python and editors count them. A byte order
//! mark at the start of the text takes no column. Both directions accept any number and clamp.

/// What one column is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Unit {
    /// UTF-8 code units.
    Byte,
    /// UTF-16 code units: what editors speak by default.
    Utf16,
    /// Unicode scalar values: what the terminal and the machine formats print.
    Character,
}

/// Line and column, both from 1.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, serde::Serialize)]
pub struct Position {
    pub line: u32,
    pub column: u32,
}

/// The lines of one text.
#[derive(Clone, Debug)]
pub struct Lines<'t> {
    text: &'t str,
    /// Offset of each line's first byte.
    starts: Vec<u32>,
}

const BYTE_ORDER_MARK: char = '\u{feff}';

impl<'t> Lines<'t> {
    pub fn new(text: &'t str) -> Self {
        let bytes = text.as_bytes();
        let mut starts = vec![0];
        for (at, byte) in bytes.iter().enumerate() {
            let ends_line = *byte == b'\n' || (*byte == b'\r' && bytes.get(at + 1) != Some(&b'\n'));
            if ends_line {
                starts.push(u32::try_from(at + 1).unwrap_or(u32::MAX));
            }
        }
        Self { text, starts }
    }

    pub fn count(&self) -> u32 {
        self.starts.len() as u32
    }

    /// The line, from 1, that holds the byte at `offset`.
    pub fn line_at(&self, offset: u32) -> u32 {
        self.starts.partition_point(|start| *start <= offset) as u32
    }

    pub fn position(&self, offset: u32, unit: Unit) -> Position {
        let line = self.line_at(offset);
        let start = self.starts[line as usize - 1] as usize;
        let end = floor_boundary(self.text, offset as usize).max(start);
        let column = self.text[start..end].chars().map(|c| width(c, start, unit)).sum::<u32>() + 1;
        Position { line, column }
    }

    /// The byte offset of a position. A column behind the line's end gives that end, a line
    /// behind the last one the end of the text; a column inside a character gives its start.
    pub fn offset(&self, position: Position, unit: Unit) -> u32 {
        if position.line > self.count() {
            return self.text.len() as u32;
        }
        let range = self.range(position.line.max(1));
        let mut left = position.column.saturating_sub(1);
        let mut at = range.start;
        for c in self.text[range.clone()].chars() {
            let columns = width(c, range.start, unit);
            if columns > left || (left == 0 && columns > 0) {
                break;
            }
            left -= columns;
            at += c.len_utf8();
        }
        at as u32
    }

    /// The bytes of a line (from 1), without what ends it.
    pub fn range(&self, line: u32) -> std::ops::Range<usize> {
        let full = self.full_range(line);
        let text = self.text[full.clone()].trim_end_matches(['\n', '\r']);
        full.start..full.start + text.len()
    }

    /// The bytes of a line (from 1), with what ends it.
    pub fn full_range(&self, line: u32) -> std::ops::Range<usize> {
        let index = (line.clamp(1, self.count()) - 1) as usize;
        let start = self.starts[index] as usize;
        let end = self.starts.get(index + 1).map_or(self.text.len(), |end| *end as usize);
        start..end
    }

    /// The text of a line (from 1), without what ends it.
    pub fn line(&self, line: u32) -> &'t str {
        &self.text[self.range(line)]
    }
}

/// How many columns a character takes on a line that starts at `line_start`.
fn width(c: char, line_start: usize, unit: Unit) -> u32 {
    if c == BYTE_ORDER_MARK && line_start == 0 {
        return 0;
    }
    match unit {
        Unit::Byte => c.len_utf8() as u32,
        Unit::Utf16 => c.len_utf16() as u32,
        Unit::Character => 1,
    }
}

/// The nearest character boundary at or before `offset`.
pub(crate) fn floor_boundary(text: &str, offset: usize) -> usize {
    let mut at = offset.min(text.len());
    while !text.is_char_boundary(at) {
        at -= 1;
    }
    at
}

#[cfg(test)]
mod tests {
    use super::*;

    fn place(text: &str, offset: u32, unit: Unit) -> (u32, u32) {
        let position = Lines::new(text).position(offset, unit);
        (position.line, position.column)
    }

    #[test]
    fn every_kind_of_line_end_counts_once() {
        let text = "a\nb\r\nc\rd";
        assert_eq!(Lines::new(text).count(), 4);
        assert_eq!(place(text, 2, Unit::Byte), (2, 1));
        assert_eq!(place(text, 5, Unit::Byte), (3, 1));
        assert_eq!(place(text, 7, Unit::Byte), (4, 1));
        let lines = Lines::new(text);
        assert_eq!((1..=4).map(|n| lines.line(n)).collect::<Vec<_>>(), ["a", "b", "c", "d"]);
    }

    #[test]
    fn columns_follow_the_unit() {
        // é is 2 bytes, 1 unit of UTF-16; 🦀 is 4 bytes, 2 units.
        let text = "é🦀x";
        assert_eq!(place(text, 6, Unit::Byte), (1, 7));
        assert_eq!(place(text, 6, Unit::Utf16), (1, 4));
        assert_eq!(place(text, 6, Unit::Character), (1, 3));
    }

    #[test]
    fn a_byte_order_mark_takes_no_column() {
        let text = "\u{feff}x = 1\ny";
        assert_eq!(place(text, 3, Unit::Character), (1, 1));
        assert_eq!(Lines::new(text).offset(Position { line: 1, column: 1 }, Unit::Utf16), 3);
        assert_eq!(Lines::new(text).offset(Position { line: 1, column: 3 }, Unit::Utf16), 5);
    }

    #[test]
    fn positions_lead_back_to_every_character_boundary() {
        let text = "a\té\r\n🦀 b\n\nlast\r";
        let lines = Lines::new(text);
        for unit in [Unit::Byte, Unit::Utf16, Unit::Character] {
            for (at, c) in text.char_indices().filter(|(_, c)| !matches!(c, '\n' | '\r')) {
                let position = lines.position(at as u32, unit);
                assert_eq!(lines.offset(position, unit), at as u32, "{c:?} at {at}, {unit:?}");
            }
        }
    }

    #[test]
    fn places_outside_the_text_are_clamped() {
        let text = "ab\n🦀c";
        let lines = Lines::new(text);
        assert_eq!(lines.offset(Position { line: 1, column: 99 }, Unit::Utf16), 2);
        assert_eq!(lines.offset(Position { line: 9, column: 1 }, Unit::Utf16), 8);
        assert_eq!(lines.offset(Position { line: 0, column: 0 }, Unit::Utf16), 0);
        // The middle of a surrogate pair.
        assert_eq!(lines.offset(Position { line: 2, column: 2 }, Unit::Utf16), 3);
        assert_eq!(place(text, 999, Unit::Byte), (2, 6));
        // The middle of a character.
        assert_eq!(place(text, 5, Unit::Byte), (2, 1));
    }
}
