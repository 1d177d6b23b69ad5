//! Reads files with syntax errors: each top-level statement by itself, mended where a small
//! change of its text makes the rest of it readable.
//!
//! A mend is kept only if it leaves fewer errors. It serves reading; it is no advice.

use ruff_python_ast::ModModule;
use ruff_python_ast::token::{TokenKind, Tokens};
use ruff_python_parser::{
    LexicalErrorType, Mode, ParseError as RuffError, ParseErrorType, ParseOptions, Parsed,
    parse_unchecked,
};
use ruff_text_size::{Ranged, TextSize};

use super::map::{self, Map, Patch};
use super::scan::{self, Unclosed, first_word};
use crate::model::{ParseError, Span};
use crate::python::errors::{self, Cause, Kind, Told};

/// Stands for `async` where it is used as a name. As long, and in no one's program.
pub(super) const ASYNC_STAND_IN: &str = "a5ync";

/// Mends that are tried in one statement, and errors that are looked at for one.
const TRIES_MAX: usize = 24;

/// A part of a file that was parsed by itself.
pub(super) struct Piece {
    pub(super) parsed: Parsed<ModModule>,
    pub(super) map: Map,
}

pub(super) fn parse(text: &str) -> Parsed<ModModule> {
    parse_unchecked(text, ParseOptions::from(Mode::Module))
        .try_into_module()
        .expect("module mode gives a module")
}

pub(super) fn recover(text: &str) -> (Vec<Piece>, Vec<ParseError>) {
    let mut told = Vec::new();
    let pieces = scan::chunks(text).into_iter().map(|range| {
        let (piece, errors) = Mending::new(&text[range.clone()], range.start).run();
        told.extend(errors);
        piece
    });
    let pieces = pieces.collect();
    (pieces, errors::merge(text, told))
}

/// Text of one piece with the patches made so far.
struct State {
    patches: Vec<Patch>,
    text: String,
    parsed: Parsed<ModModule>,
    map: Map,
    /// Where each statement or header starts, in order.
    statements: Vec<usize>,
}

impl State {
    fn new(text: &str, base: usize, patches: Vec<Patch>) -> Self {
        let patched = map::apply(text, &patches);
        let parsed = parse(&patched);
        Self {
            map: Map::new(base, &patches),
            statements: statements(parsed.tokens()),
            text: patched,
            parsed,
            patches,
        }
    }

    fn errors(&self) -> &[RuffError] {
        self.parsed.errors()
    }

    /// The start of the statement that `at` lies in or stands at the end of.
    fn statement_at(&self, at: usize) -> usize {
        let index = self.statements.partition_point(|start| *start <= at);
        index.checked_sub(1).map_or(0, |index| self.statements[index])
    }
}

fn statements(tokens: &Tokens) -> Vec<usize> {
    let mut starts = Vec::new();
    let mut is_start = true;
    for token in tokens {
        match token.kind() {
            TokenKind::Newline => is_start = true,
            TokenKind::NonLogicalNewline
            | TokenKind::Comment
            | TokenKind::Indent
            | TokenKind::Dedent
            | TokenKind::EndOfFile => {}
            _ => {
                if is_start {
                    starts.push(token.start().to_usize());
                }
                is_start = false;
            }
        }
    }
    starts
}

struct Mend {
    patches: Vec<Patch>,
    /// The statement that is at fault, and what to say if not what its first error says.
    statement: usize,
    message: Option<(usize, &'static str)>,
}

struct Mending<'a> {
    text: &'a str,
    base: usize,
    state: State,
    /// Offsets in `text` of errors that a mend was tried for.
    tried: Vec<u32>,
    told: Vec<Told>,
}

impl<'a> Mending<'a> {
    fn new(text: &'a str, base: usize) -> Self {
        let state = State::new(text, base, Vec::new());
        Self { text, base, state, tried: Vec::new(), told: Vec::new() }
    }

    fn run(mut self) -> (Piece, Vec<Told>) {
        for _ in 0..TRIES_MAX {
            let Some(mend) = self.proposal() else { break };
            let told = self.tell_mend(&mend);
            if self.attempt(mend.patches) {
                self.told.push(told);
            }
        }
        let mut is_first = self.told.is_empty();
        for error in self.state.errors().iter().take(TRIES_MAX) {
            if is_first || !is_about_indentation(error) {
                self.told.push(self.tell(error));
            }
            is_first = false;
        }
        (Piece { parsed: self.state.parsed, map: self.state.map }, self.told)
    }

    /// A mend of the first error that one is known for and was not tried for.
    fn proposal(&mut self) -> Option<Mend> {
        let unclosed = scan::unclosed(&self.state.text);
        for error in self.state.errors().iter().take(TRIES_MAX) {
            let place = self.place(error);
            if self.tried.contains(&place) {
                continue;
            }
            if let Some(mend) = self.mend(error, unclosed.as_ref()) {
                self.tried.push(place);
                return Some(mend);
            }
        }
        None
    }

    fn place(&self, error: &RuffError) -> u32 {
        self.state.map.in_piece(error.start().to_u32())
    }

    fn mend(&self, error: &RuffError, unclosed: Option<&Unclosed>) -> Option<Mend> {
        let at = error.start().to_usize();
        let rest = &self.state.text[at..];
        let statement = self.state.statement_at(at);
        let simple = |patches| Some(Mend { patches, statement, message: None });
        if first_word(rest) == "async" && rest.starts_with("async") {
            return simple(self.async_names());
        }
        if rest.starts_with('=') && !rest.starts_with("==") && self.is_condition(statement) {
            return simple(vec![self.patch(at, at, "=")]);
        }
        let line = scan::line_start(self.text, (self.place(error) as usize).min(self.text.len()));
        if errors::is_conflict_marker(scan::line_at(self.text, line)) {
            return simple(self.conflict_markers());
        }
        if statement == at && errors::is_notebook_command(rest) {
            let end = at + scan::line_at(rest, 0).len();
            return simple(vec![self.patch(at, end, "")]);
        }
        if let ParseErrorType::Lexical(LexicalErrorType::UnclosedStringError) = error.error
            && (rest.starts_with("\"\"\"") || rest.starts_with("'''"))
        {
            let end = at + scan::line_at(&self.state.text, at).len();
            return simple(vec![self.patch(end, end, &rest[..3])]);
        }
        if error.error == ParseErrorType::UnexpectedIndentation
            && let Some((statement, patch)) = self.plain_header(error.start())
        {
            return Some(Mend { patches: vec![patch], statement, message: None });
        }
        self.closing_brackets(at, unclosed?)
    }

    /// In terms of the unpatched text.
    fn patch(&self, start: usize, end: usize, replacement: &str) -> Patch {
        Patch {
            start: self.state.map.in_piece(start as u32) as usize,
            end: self.state.map.in_piece(end as u32) as usize,
            replacement: replacement.to_owned(),
        }
    }

    fn is_condition(&self, statement: usize) -> bool {
        matches!(first_word(&self.state.text[statement..]), "if" | "elif" | "while" | "assert")
    }

    /// Every `async` that does not begin an asynchronous statement.
    fn async_names(&self) -> Vec<Patch> {
        let tokens: Vec<_> = self.state.parsed.tokens().iter().collect();
        let is_name = |index: usize| {
            let next = tokens.get(index + 1).map(|token| token.kind());
            !matches!(next, Some(TokenKind::Def | TokenKind::With | TokenKind::For))
        };
        let found = tokens
            .iter()
            .enumerate()
            .filter(|(index, token)| token.kind() == TokenKind::Async && is_name(*index));
        found
            .map(|(_, token)| {
                self.patch(token.start().to_usize(), token.end().to_usize(), ASYNC_STAND_IN)
            })
            .collect()
    }

    fn conflict_markers(&self) -> Vec<Patch> {
        let mut at = 0;
        let mut patches = Vec::new();
        for line in self.text.split_inclusive('\n') {
            if errors::is_conflict_marker(line) {
                let end = at + line.trim_end().len();
                patches.push(Patch { start: at, end, replacement: String::new() });
            }
            at += line.len();
        }
        patches
    }

    /// The header above an unexpected indentation could not be read: a plain one of its kind.
    fn plain_header(&self, indent: TextSize) -> Option<(usize, Patch)> {
        let tokens = self.state.parsed.tokens().iter();
        let before = tokens.take_while(|token| token.start() < indent);
        let end = before.filter(|token| token.kind() == TokenKind::Newline).last()?;
        let end = end.start().to_usize();
        let start = self.state.statement_at(end);
        let header = &self.state.text[start..end];
        let word = first_word(header);
        let name = first_word(&header[word.len()..]);
        let plain = match word {
            "if" | "elif" | "while" | "with" | "match" | "case" => format!("{word} _:"),
            "for" => "for _ in _:".to_owned(),
            "else" | "try" | "finally" | "except" => format!("{word}:"),
            "def" => format!("def {name}(*_):"),
            "class" => format!("class {name}:"),
            _ => return None,
        };
        (plain != header).then(|| (start, self.patch(start, end, &plain)))
    }

    /// Closes the brackets of a statement that another one follows; of a header, before its
    /// colon.
    fn closing_brackets(&self, at: usize, found: &Unclosed) -> Option<Mend> {
        if found.opener >= at.max(1) {
            return None;
        }
        let statement = self.state.statement_at(found.opener);
        let is_header = scan::is_header(&self.state.text[statement..])
            && !scan::has_inner_colon(&self.state.text[statement..found.opener]);
        let has_colon = is_header && self.state.text[..found.at].ends_with(':');
        let place = found.at - usize::from(has_colon);
        let colon = if is_header && !has_colon { ": pass" } else { "" };
        let patch = self.patch(place, place, &[&found.closers, colon].concat());
        let message = Some((found.opener, "this bracket is not closed"));
        Some(Mend { patches: vec![patch], statement, message })
    }

    /// Keeps the patches if they leave fewer errors.
    fn attempt(&mut self, new: Vec<Patch>) -> bool {
        let mut patches = self.state.patches.clone();
        patches.extend(new);
        patches.sort_by_key(|patch| (patch.start, patch.end));
        if patches.windows(2).any(|pair| pair[0].end > pair[1].start || pair[0] == pair[1]) {
            return false;
        }
        let state = State::new(self.text, self.base, patches);
        let is_better = state.errors().len() < self.state.errors().len();
        let other = if is_better { std::mem::replace(&mut self.state, state) } else { state };
        super::drop_deep(other.parsed);
        is_better
    }

    fn tell_mend(&self, mend: &Mend) -> Told {
        if let Some((at, message)) = mend.message {
            let start = self.base + self.state.map.in_piece(at as u32) as usize;
            let error =
                ParseError { span: Span::new(start, start + 1), message: message.to_owned() };
            return Told { kind: Kind::Other, statement: self.in_file(mend.statement), error };
        }
        let errors = self.state.errors();
        let first = errors.iter().find(|error| error.start().to_usize() >= mend.statement);
        self.tell(first.unwrap_or(&errors[0]))
    }

    fn tell(&self, error: &RuffError) -> Told {
        let statement = self.state.statement_at(error.start().to_usize());
        let cause = Cause { error, text: &self.state.text, statement };
        let (kind, message) = cause.describe();
        let error = ParseError { span: self.state.map.span(error.range()), message };
        Told { kind, statement: self.in_file(statement), error }
    }

    fn in_file(&self, at: usize) -> u32 {
        self.base as u32 + self.state.map.in_piece(at as u32)
    }
}

fn is_about_indentation(error: &RuffError) -> bool {
    matches!(
        error.error,
        ParseErrorType::UnexpectedIndentation
            | ParseErrorType::ExpectedToken { expected: TokenKind::Dedent, .. }
            | ParseErrorType::Lexical(LexicalErrorType::IndentationError)
    )
}
