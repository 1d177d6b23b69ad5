//! Text edits for fixes: indentation, semicolons, brackets and `use` items are handled here.
//!
//! Every answer leaves a file that parses if it parsed before. `None`: this cannot be done at
//! that place without changing more than was asked. The Python front end has the same names.

mod find;
mod uses;

use find::Found;

use crate::finding::Edit;
use crate::model::{Expr, ExprKind, Site, Span, Stmt, StmtKind};
use crate::project::SourceFile;
use crate::rust::lex::{self, Token, TokenKind};

/// Makes edits of one Rust file. Places are those of the program model.
pub struct Editor<'p> {
    file: &'p SourceFile,
    /// Without comments.
    tokens: Vec<Token>,
}

/// How a file can name something, and what it lacks for that.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Reached {
    /// `Ddp`, `nn::Adam`, `tch_ddp::Ddp`.
    pub name: String,
    /// The `use` item to add, if there is none.
    pub import: Option<Edit>,
}

impl<'p> Editor<'p> {
    pub fn new(file: &'p SourceFile) -> Self {
        let is_code = |token: &Token| !matches!(token.kind, TokenKind::Comment { .. });
        Self { file, tokens: lex::tokens(&file.text).filter(is_code).collect() }
    }

    fn text(&self) -> &'p str {
        &self.file.text
    }

    /// A string literal.
    pub fn string(&self, value: &str) -> String {
        format!("{value:?}")
    }

    /// Replaces an expression. The new text is put in parentheses where its operators would
    /// otherwise join those around it; it must not be a struct literal.
    pub fn replace(&self, expr: Span, text: &str) -> Edit {
        if self.binds_outside(expr) && !is_operand(text) {
            return self.edit(expr, format!("({text})"));
        }
        self.edit(expr, text)
    }

    /// Puts text around an expression: `f(` and `)`.
    pub fn surround(&self, expr: Span, before: &str, after: &str) -> Vec<Edit> {
        vec![self.insert(expr.start, before), self.insert(expr.end, after)]
    }

    /// Replaces the receiver of a method call, with all that belongs to it: `x` and `(a + b)`
    /// of `(a + b).f(x)`. None if the call has no receiver.
    pub fn replace_receiver(&self, call: &Expr, text: &str) -> Option<Edit> {
        let ExprKind::Call { callee, .. } = &call.kind else { return None };
        let ExprKind::Attribute { value, name_span, .. } = &callee.kind else { return None };
        let between = self.tokens_in(Span { start: value.span.end, end: name_span.start });
        let dot = between.iter().rposition(|token| token.is_punct(b'.'))?;
        // Brackets and operators of the receiver may stand between its value and the dot.
        let end = match dot {
            0 => value.span.end,
            _ => between[dot - 1].end as u32,
        };
        let receiver = Span { start: callee.span.start, end };
        let text = if is_operand(text) { text.to_owned() } else { format!("({text})") };
        Some(self.edit(receiver, text))
    }

    /// Replaces all arguments of a call or macro call by a text such as `a, &b`.
    pub fn replace_arguments(&self, call: &Expr, text: &str) -> Option<Edit> {
        Some(self.edit(self.between_brackets(call)?, text))
    }

    /// Adds an argument behind the others. `None` if `call` is no call.
    pub fn add_argument(&self, call: &Expr, text: &str) -> Option<Vec<Edit>> {
        let inside = self.between_brackets(call)?;
        let tokens = self.tokens_in(inside);
        let Some(last) = tokens.last() else { return Some(vec![self.edit(inside, text)]) };
        let last = if last.is_punct(b',') { &tokens[tokens.len() - 2] } else { last };
        let first = tokens[0];
        let separator = if self.starts_line(first.start) {
            format!(",{}{}", self.newline(), self.indentation(first.start))
        } else {
            ", ".into()
        };
        Some(vec![self.insert(last.end as u32, format!("{separator}{text}"))])
    }

    /// Takes an argument out of a call, with the comma behind or before it. `None` if the call
    /// has no such argument, or is a macro call whose arguments are not all its own.
    pub fn remove_argument(&self, call: &Expr, index: usize) -> Option<Vec<Edit>> {
        let inside = self.between_brackets(call)?;
        let ExprKind::Call { arguments, .. } = &call.kind else { return None };
        let argument = arguments.get(index)?.span;
        if !inside.contains(argument) {
            return None;
        }
        let behind = self.after(argument.end).filter(|token| token.is_punct(b','));
        let before = self.before(argument.start).filter(|token| token.is_punct(b','));
        let span = match (behind, before, arguments.get(index + 1)) {
            // The next argument takes its place.
            (Some(_), _, Some(next)) => Span { start: argument.start, end: next.span.start },
            (_, Some(comma), None) => Span { start: comma.start as u32, end: argument.end },
            (Some(comma), None, None) => Span::new(argument.start, comma.end),
            (None, None, None) => argument,
            (None, _, Some(_)) => return None,
        };
        Some(vec![self.edit(span, "")])
    }

    /// The innermost statement that holds a place.
    pub fn statement_at(&self, at: Span) -> Option<&'p Stmt> {
        Some(find::statement(&self.file.module, at)?.stmt)
    }

    /// Makes statements depend on a condition: `if test { .. }`. `at` reaches from the first to
    /// the last of several in a row, or is any place inside one. `None` for what binds names
    /// for later (`let`, items) and for the value of a block or function.
    pub fn guard(&self, at: Span, test: &str) -> Option<Vec<Edit>> {
        let run = find::run(&self.file.module, at);
        if run.is_empty() || run.iter().any(|found| self.is_value(found) || self.binds(found)) {
            return None;
        }
        let whole = run[0].stmt.span.to(run[run.len() - 1].stmt.span);
        let stmt = self.with_attributes(whole);
        let is_one_line = self.line_start(stmt.end as usize) <= stmt.start as usize;
        if is_one_line && !self.is_alone(stmt) {
            let before = self.insert(stmt.start, format!("if {test} {{ "));
            return Some(vec![before, self.insert(stmt.end, " }")]);
        }
        let (newline, margin) = (self.newline(), self.indentation(stmt.start as usize));
        let unit = self.unit();
        let head = format!("if {test} {{{newline}{margin}{unit}");
        let mut edits = vec![self.insert(stmt.start, head)];
        edits.extend(self.indent_lines(stmt, unit));
        edits.push(self.insert(stmt.end, format!("{newline}{margin}}}")));
        Some(edits)
    }

    /// Puts code, its semicolon included, before a statement of a block. Lines of `code` are
    /// indented by four spaces per level; they come out as the file has them. `None` where no
    /// block is: in `x => f()` or `|x| f(x)`.
    pub fn insert_before(&self, statement: &Stmt, code: &str) -> Option<Edit> {
        let stmt = self.with_attributes(statement.span);
        if !self.is_in_block(stmt) {
            return None;
        }
        Some(self.insert(stmt.start, format!("{}{}", self.laid_out(stmt, code), self.gap(stmt))))
    }

    /// Puts code, its semicolon included, behind a statement of a block. `None` where no block
    /// is, and behind the value of a block.
    pub fn insert_after(&self, statement: &Stmt, code: &str) -> Option<Edit> {
        let found = find::statement(&self.file.module, statement.span)?;
        let stmt = self.with_attributes(statement.span);
        if !self.is_in_block(stmt) || self.is_value(&found) {
            return None;
        }
        let semicolon = if self.needs_semicolon(&found) { ";" } else { "" };
        let (gap, code) = (self.gap(stmt), self.laid_out(stmt, code));
        Some(self.insert(stmt.end, format!("{semicolon}{gap}{code}")))
    }

    /// Removes a statement, and its lines if nothing else stands on them. `None` for the value
    /// of a block, and where no block is.
    pub fn remove(&self, statement: &Stmt) -> Option<Edit> {
        let found = find::statement(&self.file.module, statement.span)?;
        let stmt = self.with_attributes(statement.span);
        if !self.is_in_block(stmt) || self.is_value(&found) {
            return None;
        }
        let rest = &self.text()[stmt.end as usize..];
        let length = rest.find('\n').map_or(rest.len(), |at| at + 1);
        // A comment behind the statement stays.
        if self.is_alone(stmt) && rest[..length].trim().is_empty() {
            let start = self.line_start(stmt.start as usize);
            return Some(self.edit(Span::new(start, stmt.end as usize + length), ""));
        }
        Some(self.edit(stmt, ""))
    }

    /// Adds an attribute such as `#[data_parallel]` above an item, below its doc comments.
    pub fn add_attribute(&self, item: Span, attribute: &str) -> Edit {
        let gap = self.gap(item);
        self.insert(item.start, format!("{attribute}{gap}"))
    }

    /// Adds `use path;` to the module that holds a place, in its order. `None` if one of its
    /// `use` items names that path already. `path` is spelled as in Rust: `tch_ddp::Ddp`.
    pub fn add_use(&self, at: Span, path: &str) -> Option<Edit> {
        uses::add(self, at.start as usize, path)
    }

    /// The shortest name that the `use` items of the module around a place give to `dotted`
    /// (`tch.nn.Adam`).
    pub fn known_as(&self, at: Span, dotted: &str) -> Option<String> {
        uses::known_as(self, at.start as usize, dotted)
    }

    /// How a place can name `dotted`: by a name that `use` items give it, by a new `use` item,
    /// or by its whole path where another thing has its last name.
    pub fn reach(&self, at: Span, dotted: &str) -> Reached {
        uses::reach(self, at, dotted)
    }

    fn edit(&self, span: Span, replacement: impl Into<String>) -> Edit {
        Edit { site: Site { file: self.file.id, span }, replacement: replacement.into() }
    }

    fn insert(&self, at: u32, text: impl Into<String>) -> Edit {
        self.edit(Span { start: at, end: at }, text)
    }

    fn tokens_in(&self, span: Span) -> &[Token] {
        let from = self.tokens.partition_point(|token| token.start < span.start as usize);
        let to = self.tokens.partition_point(|token| token.start < span.end as usize);
        &self.tokens[from..to.max(from)]
    }

    fn before(&self, at: u32) -> Option<&Token> {
        let index = self.tokens.partition_point(|token| token.start < at as usize);
        self.tokens[..index].last()
    }

    fn after(&self, at: u32) -> Option<&Token> {
        let index = self.tokens.partition_point(|token| token.start < at as usize);
        self.tokens.get(index)
    }

    fn line_start(&self, at: usize) -> usize {
        self.text()[..at].rfind('\n').map_or(0, |at| at + 1)
    }

    fn indentation(&self, at: usize) -> &'p str {
        let line = &self.text()[self.line_start(at)..];
        &line[..line.len() - line.trim_start_matches([' ', '\t']).len()]
    }

    fn starts_line(&self, at: usize) -> bool {
        self.text()[self.line_start(at)..at].trim().is_empty()
    }

    fn newline(&self) -> &'static str {
        if self.text().contains("\r\n") { "\r\n" } else { "\n" }
    }

    /// One level of indentation, as the first indented line shows it.
    fn unit(&self) -> &'p str {
        let first_indented = self.tokens.iter().find_map(|token| {
            let indentation = self.indentation(token.start);
            (!indentation.is_empty() && self.starts_line(token.start)).then_some(indentation)
        });
        match first_indented {
            Some(tabs) if tabs.starts_with('\t') => "\t",
            Some("  ") => "  ",
            _ => "    ",
        }
    }

    /// No other code stands on the lines of a statement.
    fn is_alone(&self, span: Span) -> bool {
        let rest = &self.text()[span.end as usize..];
        let line = &rest[..rest.find('\n').unwrap_or(rest.len())];
        let line_end = span.end as usize + line.len();
        let next_is_far = self.after(span.end).is_none_or(|next| next.start >= line_end);
        self.starts_line(span.start as usize) && next_is_far
    }

    /// What separates a new statement or attribute from this one.
    fn gap(&self, stmt: Span) -> String {
        if self.starts_line(stmt.start as usize) {
            format!("{}{}", self.newline(), self.indentation(stmt.start as usize))
        } else {
            " ".into()
        }
    }

    /// Code with the file's line ends and indentation, at the margin of a statement.
    fn laid_out(&self, stmt: Span, code: &str) -> String {
        let code = code.trim_end();
        if !self.starts_line(stmt.start as usize) {
            return code.to_owned();
        }
        let margin = self.indentation(stmt.start as usize);
        let line = |line: &str| {
            let text = line.trim_start_matches(' ');
            let depth = (line.len() - text.len()) / 4;
            let margin = if text.is_empty() { "" } else { margin };
            format!("{margin}{}{text}", self.unit().repeat(depth))
        };
        let lines: Vec<String> = code.lines().map(line).collect();
        lines.join(self.newline()).strip_prefix(margin).unwrap_or(code).to_owned()
    }

    /// Indents the lines behind the first, but for those that begin inside a string.
    fn indent_lines(&self, span: Span, unit: &str) -> Vec<Edit> {
        let text = &self.text()[span.range()];
        let starts = text.match_indices('\n').map(|(at, _)| span.start as usize + at + 1);
        starts
            .filter(|&at| {
                let line = self.text()[at..].lines().next().unwrap_or("");
                !line.trim().is_empty() && !self.is_inside_token(at)
            })
            .map(|at| self.insert(at as u32, unit))
            .collect()
    }

    fn is_inside_token(&self, at: usize) -> bool {
        let index = self.tokens.partition_point(|token| token.start < at);
        self.tokens[..index].last().is_some_and(|token| token.end > at)
    }

    /// Something beside the expression binds tighter than an operator inside it would.
    fn binds_outside(&self, expr: Span) -> bool {
        let after = self.after(expr.end).is_some_and(|token| match token.kind {
            TokenKind::Punct(sign) => !matches!(sign, b',' | b';' | b'#'),
            TokenKind::Open(sign) => sign != b'{',
            TokenKind::Ident => matches!(token.text(self.text()), "as"),
            _ => false,
        });
        let before = self.before(expr.start).is_some_and(|token| {
            let ends_operator = token.end > token.start
                && !matches!(token.kind, TokenKind::Punct(b',' | b';' | b'|'));
            matches!(token.kind, TokenKind::Punct(_))
                && ends_operator
                && !self.ends_assignment(token)
        });
        after || before
    }

    /// `=` and `=>`, but not `==`, `<=`, `>=` and `!=`.
    fn ends_assignment(&self, token: &Token) -> bool {
        let before = self.text().as_bytes()[..token.start].last();
        match token.kind {
            TokenKind::Punct(b'=') => !matches!(before, Some(b'=' | b'<' | b'>' | b'!')),
            TokenKind::Punct(b'>') => before == Some(&b'='),
            TokenKind::Punct(b':') => before != Some(&b':'),
            _ => false,
        }
    }

    /// What stands between the brackets of a call.
    fn between_brackets(&self, call: &Expr) -> Option<Span> {
        let ExprKind::Call { callee, .. } = &call.kind else { return None };
        let tokens = self.tokens_in(Span { start: callee.span.end, end: call.span.end });
        let close = tokens.last().filter(|token| matches!(token.kind, TokenKind::Close(_)))?;
        let open = tokens[opening(tokens)?];
        Some(Span::new(open.end, close.start))
    }

    /// Other statements can stand before it.
    fn is_in_block(&self, stmt: Span) -> bool {
        self.before(stmt.start).is_none_or(|token| {
            matches!(
                token.kind,
                TokenKind::Open(b'{') | TokenKind::Close(b'}') | TokenKind::Punct(b';')
            )
        })
    }

    fn with_attributes(&self, stmt: Span) -> Span {
        let mut start = self.tokens.partition_point(|token| token.start < stmt.start as usize);
        while let Some(open) = self.attribute_before(start) {
            start = open;
        }
        let first = self.tokens.get(start).map_or(stmt.start, |token| token.start as u32);
        Span { start: stmt.start.min(first), end: stmt.end }
    }

    /// The index of the `#` of an attribute that ends right before a token.
    fn attribute_before(&self, index: usize) -> Option<usize> {
        let close = index.checked_sub(1)?;
        if self.tokens[close].kind != TokenKind::Close(b']') {
            return None;
        }
        let open = opening(&self.tokens[..index])?;
        let hash = open.checked_sub(1)?;
        self.tokens[hash].is_punct(b'#').then_some(hash)
    }

    /// Its value is that of its block or function, without `return`.
    fn is_value(&self, found: &Found<'_>) -> bool {
        let text = &self.text()[found.stmt.span.range()];
        match &found.stmt.kind {
            StmtKind::Return(Some(value)) if prints(value) => false,
            StmtKind::Return(_) => !text.starts_with("return"),
            StmtKind::Pass => true,
            _ => found.is_value,
        }
    }

    /// Names what later statements may need, or is a part of what does.
    fn binds(&self, found: &Found<'_>) -> bool {
        let is_let = |word: &str| self.text()[found.stmt.span.range()].starts_with(word);
        match &found.stmt.kind {
            StmtKind::Function(_) | StmtKind::Class(_) | StmtKind::Import(_) => true,
            // What `break` gives its loop has no statement of its own in the text.
            StmtKind::Assign { targets, .. } => {
                let own = |target: &Expr| match &target.kind {
                    ExprKind::Name(name) => name.starts_with('<'),
                    _ => false,
                };
                ["let ", "let\n", "const ", "static ", "type ", "pub "].into_iter().any(is_let)
                    || targets.iter().any(own)
            }
            StmtKind::If { .. } => is_let("let"),
            _ => false,
        }
    }

    fn needs_semicolon(&self, found: &Found<'_>) -> bool {
        let text = &self.text()[found.stmt.span.range()];
        match &found.stmt.kind {
            StmtKind::If { .. }
            | StmtKind::Loop { .. }
            | StmtKind::Match { .. }
            | StmtKind::Block(_)
            | StmtKind::Function(_)
            | StmtKind::Class(_) => false,
            StmtKind::Expr(Expr { kind: ExprKind::Call { callee, .. }, .. }) => {
                let is_macro = callee.last_name().is_some_and(|name| name.ends_with('!'));
                !(text.ends_with(';') || is_macro && text.ends_with('}'))
            }
            _ => !text.ends_with(';'),
        }
    }
}

/// The index of the bracket that the last token closes.
fn opening(tokens: &[Token]) -> Option<usize> {
    let mut depth = 0;
    tokens.iter().rposition(|token| {
        depth += match token.kind {
            TokenKind::Close(_) => 1,
            TokenKind::Open(_) => -1,
            _ => 0,
        };
        depth == 0
    })
}

/// A macro whose value is always `()`.
fn prints(value: &Expr) -> bool {
    let ExprKind::Call { callee, .. } = &value.kind else { return false };
    let names = [
        "print!",
        "println!",
        "eprint!",
        "eprintln!",
        "trace!",
        "debug!",
        "info!",
        "warn!",
        "error!",
    ];
    callee.last_name().is_some_and(|name| names.contains(&name.as_str()))
}

/// Needs no parentheses beside an operator or a `.`: a name, call, literal, bracketed thing.
fn is_operand(text: &str) -> bool {
    let mut depth = 0_usize;
    let mut starts = true;
    for token in lex::tokens(text) {
        let is_fine = match token.kind {
            TokenKind::Open(sign) => {
                depth += 1;
                sign != b'{' || depth > 1
            }
            TokenKind::Close(_) => {
                depth = depth.saturating_sub(1);
                true
            }
            _ if depth > 0 => true,
            TokenKind::Punct(sign) => !starts && matches!(sign, b'.' | b':' | b'?' | b'!'),
            TokenKind::Ident => !is_operator_word(token.text(text)),
            TokenKind::Literal => true,
            TokenKind::Lifetime | TokenKind::Endless => false,
            TokenKind::Comment { block, .. } => block,
        };
        if !is_fine {
            return false;
        }
        starts = false;
    }
    !text.contains("..")
}

fn is_operator_word(word: &str) -> bool {
    matches!(
        word,
        "as" | "async"
            | "break"
            | "continue"
            | "for"
            | "if"
            | "loop"
            | "match"
            | "move"
            | "return"
            | "unsafe"
            | "while"
    )
}

#[cfg(test)]
mod tests;
