//! Cuts a rank's output into whole lines and keeps the last ones. Bytes in, bytes out: what a
//! rank writes need not be text.

use std::collections::VecDeque;

/// Longest line that is kept whole; a longer one arrives in pieces.
const LINE_BYTES_MAX: usize = 1 << 20;

/// What ended a piece of output.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum End {
    /// A newline, also one with a carriage return before it.
    Newline,
    /// A carriage return alone: a progress bar that overwrites itself.
    Return,
    /// Nothing: the line is too long to wait for its end.
    Cut,
    /// The end of the stream.
    Stream,
}

/// The unfinished line of one stream.
#[derive(Default)]
pub(crate) struct Lines {
    pending: Vec<u8>,
}

impl Lines {
    /// Takes bytes and hands out the lines that are complete, in order.
    pub(crate) fn push(&mut self, bytes: &[u8], mut emit: impl FnMut(&[u8], End)) {
        if self.pending.is_empty() {
            let used = cut(bytes, &mut emit);
            self.pending.extend_from_slice(&bytes[used..]);
        } else {
            self.pending.extend_from_slice(bytes);
            let used = cut(&self.pending, &mut emit);
            self.pending.drain(..used);
        }
        if self.pending.len() > LINE_BYTES_MAX {
            emit(&self.pending, End::Cut);
            self.pending.clear();
        }
    }

    /// Hands out what is left when the stream has ended.
    pub(crate) fn finish(&mut self, mut emit: impl FnMut(&[u8], End)) {
        let rest = std::mem::take(&mut self.pending);
        match rest.strip_suffix(b"\r") {
            Some([]) => {}
            Some(rest) => emit(rest, End::Return),
            None if rest.is_empty() => {}
            None => emit(&rest, End::Stream),
        }
    }
}

/// Emits the complete lines of `bytes`; returns how many bytes they took.
fn cut(bytes: &[u8], emit: &mut impl FnMut(&[u8], End)) -> usize {
    let mut start = 0;
    let mut at = 0;
    while let Some(found) = bytes[at..].iter().position(|byte| matches!(byte, b'\n' | b'\r')) {
        let end = at + found;
        if bytes[end] == b'\n' {
            emit(&bytes[start..end], End::Newline);
            (start, at) = (end + 1, end + 1);
            continue;
        }
        match bytes.get(end + 1) {
            // What follows the carriage return decides what it is.
            None => break,
            Some(b'\n') => {
                emit(&bytes[start..end], End::Newline);
                (start, at) = (end + 2, end + 2);
            }
            Some(_) => {
                if end > start {
                    emit(&bytes[start..end], End::Return);
                }
                (start, at) = (end + 1, end + 1);
            }
        }
    }
    start
}

/// The last lines that a rank wrote, for the report of its failure.
pub(crate) struct Tail {
    lines: VecDeque<Vec<u8>>,
}

impl Tail {
    pub(crate) const LINES_MAX: usize = 20;
    const BYTES_MAX: usize = 2000;

    pub(crate) fn new() -> Self {
        Self { lines: VecDeque::with_capacity(Self::LINES_MAX) }
    }

    pub(crate) fn push(&mut self, line: &[u8], end: End) {
        if end == End::Return && line.is_empty() {
            return;
        }
        let mut kept = if self.lines.len() == Self::LINES_MAX {
            self.lines.pop_front().unwrap_or_default()
        } else {
            Vec::new()
        };
        kept.clear();
        kept.extend_from_slice(&line[..line.len().min(Self::BYTES_MAX)]);
        self.lines.push_back(kept);
    }

    /// The lines as text, oldest first.
    pub(crate) fn text(&self) -> Vec<String> {
        self.lines.iter().map(|line| String::from_utf8_lossy(line).into_owned()).collect()
    }

    /// The newest line as text.
    pub(crate) fn last(&self) -> Option<String> {
        self.lines.back().map(|line| String::from_utf8_lossy(line).into_owned())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pieces(chunks: &[&str]) -> Vec<(String, End)> {
        let mut lines = Lines::default();
        let mut out = Vec::new();
        let mut keep =
            |line: &[u8], end| out.push((String::from_utf8(line.to_vec()).unwrap(), end));
        for chunk in chunks {
            lines.push(chunk.as_bytes(), &mut keep);
        }
        lines.finish(&mut keep);
        out
    }

    #[test]
    fn lines_are_whole_however_they_arrive() {
        let text = "one\n\ntwo\r\n10%\r20%\rend";
        let whole = pieces(&[text]);
        let expected = [
            ("one", End::Newline),
            ("", End::Newline),
            ("two", End::Newline),
            ("10%", End::Return),
            ("20%", End::Return),
            ("end", End::Stream),
        ];
        assert_eq!(whole, expected.map(|(line, end)| (line.to_owned(), end)));
        for at in 0..text.len() {
            assert_eq!(pieces(&[&text[..at], &text[at..]]), whole, "cut at {at}");
        }
        let letters: Vec<String> = text.chars().map(String::from).collect();
        assert_eq!(pieces(&letters.iter().map(String::as_str).collect::<Vec<_>>()), whole);
    }

    #[test]
    fn endless_lines_do_not_fill_the_memory() {
        let long = "x".repeat(LINE_BYTES_MAX + 1);
        let out = pieces(&[&long, "y\n"]);
        assert_eq!((out.len(), out[0].1, out[1].0.as_str()), (2, End::Cut, "y"));
    }

    #[test]
    fn the_tail_keeps_the_last_lines() {
        let mut tail = Tail::new();
        for number in 0..50 {
            tail.push(number.to_string().as_bytes(), End::Newline);
        }
        let text = tail.text();
        assert_eq!((text.len(), text[0].as_str(), text[19].as_str()), (20, "30", "49"));
    }
}
