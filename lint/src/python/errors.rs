//! Syntax errors in our own words, few of them.

use ruff_python_ast::token::TokenKind;
use ruff_python_parser::{
    InterpolatedStringErrorType, LexicalErrorType, ParseError as RuffError, ParseErrorType,
};
use ruff_text_size::Ranged;

use crate::model::{ParseError, Span};

/// Errors that are told of one file; the first ones are those to mend first.
const ERRORS_MAX: usize = 5;

/// What is told once for a file, however often it occurs.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Kind {
    Python2,
    Async,
    Conflict,
    Other,
}

pub(super) struct Told {
    pub(super) kind: Kind,
    /// Where the broken statement starts.
    pub(super) statement: u32,
    pub(super) error: ParseError,
}

const LONE_DECORATOR: &str = "no function or class follows this decorator";

/// An error with the text that it is in.
pub(super) struct Cause<'a> {
    pub(super) error: &'a RuffError,
    pub(super) text: &'a str,
    /// Start of the statement that holds the error.
    pub(super) statement: usize,
}

/// One error per statement and, of those that a whole file shares, one per file. What else is
/// wrong with Python 2 follows from its age.
pub(super) fn merge(text: &str, told: Vec<Told>) -> Vec<ParseError> {
    let mut kinds = Vec::new();
    let mut statements = Vec::new();
    let mut errors = Vec::new();
    let mut told = told;
    if told.iter().any(|told| told.kind == Kind::Python2) {
        told.retain(|told| told.kind != Kind::Other);
    }
    told.sort_by_key(|told| told.error.span.start);
    // Behind an error, a decorator is parted from its function by what could not be read.
    let first = told.first().map(|told| told.error.span.start);
    told.retain(|told| {
        Some(told.error.span.start) == first || told.error.message != LONE_DECORATOR
    });
    for Told { kind, statement, mut error } in told {
        let is_new = !statements.contains(&statement) && !kinds.contains(&kind);
        statements.push(statement);
        if kind != Kind::Other {
            kinds.push(kind);
        }
        if is_new && errors.len() < ERRORS_MAX {
            error.span = visible(text, error.span);
            errors.push(error);
        }
    }
    errors
}

/// A place that can be shown: not the line end behind it, not the spaces before it.
pub(super) fn visible(text: &str, span: Span) -> Span {
    let (start, end) = (span.start as usize, span.end as usize);
    let Some(at) = text.get(start..end) else { return span };
    if !at.trim().is_empty() {
        let line = at.find(['\n', '\r']).unwrap_or(at.len());
        return Span::new(start, start + at[..line].trim_end().len());
    }
    let after = &text[end..];
    if !at.is_empty() && !at.contains(['\n', '\r']) && !after.starts_with(['\n', '\r']) {
        let length = after.chars().next().map_or(0, char::len_utf8);
        return Span::new(end, end + length);
    }
    let before = text[..start].trim_end();
    let length = before.chars().next_back().map_or(0, char::len_utf8);
    Span::new(before.len() - length, before.len())
}

pub(super) fn is_conflict_marker(line: &str) -> bool {
    let line = line.trim_end();
    line.starts_with("<<<<<<< ") || line.starts_with(">>>>>>> ") || line == "======="
}

/// `%matplotlib`, `!pip`, `?help`: commands of notebooks, also in scripts made of them.
pub(super) fn is_notebook_command(rest: &str) -> bool {
    let name = rest.trim_start_matches(['%', '!', '?']);
    name.len() < rest.len() && name.starts_with(|c: char| c.is_alphabetic())
}

impl Cause<'_> {
    pub(super) fn describe(&self) -> (Kind, String) {
        if self.word() == "async" {
            let message = "`async` is a keyword since Python 3.7 and cannot be a name \
                           (the argument of `.cuda(..)` and `.to(..)` is `non_blocking` now)";
            return (Kind::Async, message.to_owned());
        }
        let line = self.text[..self.at()].rfind('\n').map_or(0, |end| end + 1);
        if is_conflict_marker(self.text[line..].lines().next().unwrap_or_default()) {
            return (Kind::Conflict, "a merge conflict is not resolved here".to_owned());
        }
        match self.python2() {
            Some(what) => {
                let rest = "this file is Python 2 and is read only in part; port it to Python 3";
                (Kind::Python2, format!("{what}: {rest}"))
            }
            None => (Kind::Other, self.message()),
        }
    }

    fn at(&self) -> usize {
        self.error.start().to_usize()
    }

    fn rest(&self) -> &str {
        &self.text[self.at()..]
    }

    fn word(&self) -> &str {
        let end = self.rest().find(|c: char| !c.is_alphanumeric() && c != '_');
        &self.rest()[..end.unwrap_or(self.rest().len())]
    }

    /// What of Python 2 stands here, if anything.
    fn python2(&self) -> Option<&'static str> {
        let before = &self.text[self.statement.min(self.at())..self.at()];
        // Of `if x: print y` what stands behind the colon.
        let clause = before.rsplit([':', ';']).next().unwrap_or(before).trim_start();
        let next = self.rest().as_bytes().first().copied().unwrap_or(0);
        let is_literal_end = |letters: &str| {
            let start = before.len().saturating_sub(letters.len());
            before.get(start..).is_some_and(|end| end.eq_ignore_ascii_case(letters))
        };
        match self.error.error {
            _ if clause.trim_end() == "print" && clause != "print" => {
                Some("`print` without parentheses")
            }
            _ if clause.trim_end() == "exec" && clause != "exec" => {
                Some("`exec` without parentheses")
            }
            _ if self.word().eq_ignore_ascii_case("l")
                && before.ends_with(|c: char| c.is_ascii_hexdigit()) =>
            {
                Some("a number with the suffix `L`")
            }
            _ if matches!(next, b'"' | b'\'') && is_literal_end("ur") => {
                Some("a string with the prefix `ur`")
            }
            ParseErrorType::UnparenthesizedTupleExpression if clause.starts_with("raise ") => {
                Some("`raise` with a comma")
            }
            ParseErrorType::Lexical(LexicalErrorType::UnrecognizedToken { tok: '`' }) => {
                Some("a value in backticks")
            }
            ParseErrorType::Lexical(LexicalErrorType::OtherError(_)) if self.is_old_octal() => {
                Some("a number that starts with `0`")
            }
            ParseErrorType::ExpectedToken { found: TokenKind::Lpar, .. }
                if before.starts_with("def ") =>
            {
                Some("a parameter in parentheses")
            }
            _ if next == b'>' && before.ends_with('<') => Some("the operator `<>`"),
            _ => None,
        }
    }

    fn is_old_octal(&self) -> bool {
        let digits = self.rest().trim_start_matches(['0', '1', '2', '3', '4', '5', '6', '7']);
        let length = self.rest().len() - digits.len();
        length > 1 && self.rest().starts_with('0') && !digits.starts_with(['8', '9', '_'])
    }

    /// What stands at the error, for a sentence.
    fn found(&self) -> String {
        let text = &self.text[self.error.range()];
        match text.trim_end().lines().next() {
            None | Some("") if self.rest().is_empty() => "the end of the file".to_owned(),
            None | Some("") => "the end of the line".to_owned(),
            Some(text) if text.chars().count() > 24 => {
                format!("`{}…`", text.chars().take(24).collect::<String>())
            }
            Some(text) => format!("`{text}`"),
        }
    }

    fn message(&self) -> String {
        use ParseErrorType as Type;
        if self.is_assigning_condition() {
            return "a comparison needs `==`, `=` only assigns".to_owned();
        }
        let fixed = match &self.error.error {
            Type::ExpectedToken { expected, .. } => return self.expected(*expected),
            Type::Lexical(error) => return lexical(error),
            Type::FStringError(error) | Type::TStringError(error) => return interpolated(error),
            Type::OtherError(message) => return self.other(message),
            Type::ExpectedExpression => {
                return format!("a value is missing before {}", self.found());
            }
            Type::UnexpectedIndentation => "this line is indented, but nothing above opens a block",
            Type::SimpleStatementsOnSameLine => {
                return format!("{} does not continue the statement before it", self.found());
            }
            Type::SimpleAndCompoundStatementOnSameLine => {
                "a statement with a block needs a line of its own"
            }
            Type::EmptySlice => "an index is missing between `[` and `]`",
            Type::EmptyImportNames => "`import` names nothing",
            Type::EmptyDeleteTargets => "`del` names nothing",
            Type::EmptyGlobalNames => "`global` names nothing",
            Type::EmptyNonlocalNames => "`nonlocal` names nothing",
            Type::EmptyTypeParams => "the type parameter list is empty",
            Type::InvalidAssignmentTarget
            | Type::InvalidAugmentedAssignmentTarget
            | Type::InvalidAnnotatedAssignmentTarget
            | Type::InvalidNamedAssignmentTarget => {
                return format!("{} cannot be assigned to", self.found());
            }
            Type::InvalidDeleteTarget => return format!("{} cannot be deleted", self.found()),
            Type::PositionalAfterKeywordArgument | Type::PositionalAfterKeywordUnpacking => {
                "an argument without a name follows one with a name"
            }
            Type::InvalidArgumentUnpackingOrder => "`*` follows `**` in the arguments",
            Type::NonDefaultParamAfterDefaultParam => {
                "a parameter without a default follows one with a default"
            }
            Type::ParamAfterVarKeywordParam => "a parameter follows `**`",
            Type::VarParameterWithDefault => "a `*` parameter cannot have a default",
            Type::ExpectedKeywordParam => "no parameter follows the `*`",
            Type::UnparenthesizedNamedExpression
            | Type::UnparenthesizedTupleExpression
            | Type::UnparenthesizedGeneratorExpression => "this needs parentheses around it",
            Type::UnexpectedIpythonEscapeCommand => "notebook commands are not Python",
            _ => return format!("{} cannot stand here", self.found()),
        };
        fixed.to_owned()
    }

    fn is_assigning_condition(&self) -> bool {
        let statement = &self.text[self.statement..];
        let word = statement.split(|c: char| !c.is_alphanumeric()).next().unwrap_or_default();
        let is_assignment = self.rest().starts_with('=') && !self.rest().starts_with("==");
        is_assignment && matches!(word, "if" | "elif" | "while" | "assert")
    }

    fn expected(&self, expected: TokenKind) -> String {
        match expected {
            TokenKind::Newline => format!("{} does not continue the statement", self.found()),
            TokenKind::Dedent | TokenKind::Indent | TokenKind::EndOfFile => {
                "the indentation does not match".to_owned()
            }
            TokenKind::Name => format!("a name is missing before {}", self.found()),
            _ => format!("{expected} is missing before {}", self.found()),
        }
    }

    fn other(&self, message: &str) -> String {
        let message = message.trim_end_matches('.');
        match message {
            _ if message.starts_with("Missing closing") || message.starts_with("Missing '") => {
                "a bracket is not closed".to_owned()
            }
            _ if message.starts_with("Expected an indented block") => {
                "the block under this line is missing".to_owned()
            }
            "Expected a statement" if is_notebook_command(self.rest()) => {
                format!("{} begins a notebook command, which is not Python", self.found())
            }
            "Expected a statement" => format!("no statement begins with {}", self.found()),
            "Expected an identifier" | "Expected an import name" | "Expected a module name" => {
                format!("a name is missing before {}", self.found())
            }
            _ if message.starts_with("Expected an identifier, but found a keyword") => {
                format!("{} is a keyword and cannot be a name", self.found())
            }
            _ if message.starts_with("Expected `except` or `finally`") => {
                "this `try` has neither `except` nor `finally`".to_owned()
            }
            _ if message.ends_with("after decorator") => LONE_DECORATOR.to_owned(),
            _ => {
                let mut letters = message.chars();
                let first = letters.next().map(|c| c.to_ascii_lowercase());
                format!(
                    "not valid Python: {}{}",
                    first.map_or(String::new(), String::from),
                    letters.as_str()
                )
            }
        }
    }
}

fn lexical(error: &LexicalErrorType) -> String {
    match error {
        LexicalErrorType::UnclosedStringError => "this string is not closed".to_owned(),
        LexicalErrorType::IndentationError => {
            "this indentation matches no line above it".to_owned()
        }
        LexicalErrorType::UnrecognizedToken { tok } => format!("`{tok}` is not a sign of Python"),
        LexicalErrorType::LineContinuationError => {
            "nothing may follow the `\\` at the end of a line".to_owned()
        }
        LexicalErrorType::Eof => "the file ends inside a bracket".to_owned(),
        LexicalErrorType::InvalidByteLiteral => "a bytes literal holds only ASCII".to_owned(),
        LexicalErrorType::FStringError(error) | LexicalErrorType::TStringError(error) => {
            interpolated(error)
        }
        LexicalErrorType::UnicodeError
        | LexicalErrorType::MissingUnicodeLbrace
        | LexicalErrorType::MissingUnicodeRbrace => "this escape names no character".to_owned(),
        LexicalErrorType::StringError | LexicalErrorType::OtherError(_) => {
            "this is not a valid literal".to_owned()
        }
    }
}

fn interpolated(error: &InterpolatedStringErrorType) -> String {
    match error {
        InterpolatedStringErrorType::UnclosedLbrace => "a `{` of this f-string is not closed",
        InterpolatedStringErrorType::SingleRbrace => "a `}` in an f-string is written `}}`",
        InterpolatedStringErrorType::UnterminatedString
        | InterpolatedStringErrorType::UnterminatedTripleQuotedString => {
            "this f-string is not closed"
        }
        InterpolatedStringErrorType::LambdaWithoutParentheses => {
            "a lambda in an f-string needs parentheses"
        }
        InterpolatedStringErrorType::InvalidConversionFlag
        | InterpolatedStringErrorType::ConversionFlagNotImmediatelyAfterExclamation => {
            "`!` in an f-string is followed by `s`, `r` or `a`"
        }
        InterpolatedStringErrorType::NewlineInFormatSpec => {
            "the format of a value in an f-string cannot span lines"
        }
    }
    .to_owned()
}
