//! Text edits that keep quotes, comments, indentation and line ends.
//!
//! Each answers `None` where the text gives no safe way: a file with syntax errors, a
//! statement that shares its line. The result of an edit that is given always parses.

mod arguments;
mod imports;
mod statements;

use crate::finding::Edit;
use crate::model::{Site, Span, Stmt, StmtKind};
use crate::project::SourceFile;

pub use imports::Reached;

/// Makes edits of one Python file.
pub struct Editor<'p> {
    file: &'p SourceFile,
}

impl<'p> Editor<'p> {
    pub fn new(file: &'p SourceFile) -> Self {
        Self { file }
    }

    /// A string literal in the quotes that the file mostly uses.
    pub fn string(&self, value: &str) -> String {
        let count = |quote| self.file.text.matches(quote).count();
        let quote = if count('\'') > count('"') { '\'' } else { '"' };
        let mut literal = String::with_capacity(value.len() + 2);
        literal.push(quote);
        for character in value.chars() {
            match character {
                '\n' => literal.push_str("\\n"),
                '\r' => literal.push_str("\\r"),
                _ => {
                    if character == quote || character == '\\' {
                        literal.push('\\');
                    }
                    literal.push(character);
                }
            }
        }
        literal.push(quote);
        literal
    }

    /// The innermost statement that holds a place; a header's place belongs to the whole
    /// compound statement.
    pub fn statement_at(&self, at: Span) -> Option<&'p Stmt> {
        let mut found = None;
        let mut body = Some(&self.file.module.body[..]);
        while let Some(stmts) = body.take() {
            let Some(stmt) = stmts.iter().find(|stmt| stmt.span.contains(at)) else { break };
            found = Some(stmt);
            body = self
                .bodies(stmt)
                .into_iter()
                .find(|body| body.iter().any(|inner| inner.span.contains(at)));
        }
        found
    }

    fn bodies(&self, stmt: &'p Stmt) -> Vec<&'p [Stmt]> {
        let module = &self.file.module;
        match &stmt.kind {
            StmtKind::If { body, otherwise, .. } | StmtKind::Loop { body, otherwise, .. } => {
                vec![body, otherwise]
            }
            StmtKind::With { body, .. } | StmtKind::Block(body) => vec![body],
            StmtKind::Match { arms, .. } => arms.iter().map(|arm| &arm.body[..]).collect(),
            StmtKind::Try { body, handlers, otherwise, finally } => {
                let handlers = handlers.iter().map(|handler| &handler.body[..]);
                [&body[..], otherwise, finally].into_iter().chain(handlers).collect()
            }
            StmtKind::Function(index) => vec![&module.function(*index).body],
            StmtKind::Class(index) => vec![&module.class(*index).body],
            _ => Vec::new(),
        }
    }

    fn text(&self) -> &'p str {
        &self.file.text
    }

    fn is_sound(&self) -> bool {
        self.file.module.errors.is_empty()
    }

    fn edit(&self, start: usize, end: usize, replacement: impl Into<String>) -> Edit {
        let site = Site { file: self.file.id, span: Span::new(start, end) };
        Edit { site, replacement: replacement.into() }
    }

    fn insertion(&self, at: usize, text: impl Into<String>) -> Edit {
        self.edit(at, at, text)
    }

    /// As the file's first line ends.
    fn line_end(&self) -> &'static str {
        match self.text().find(['\n', '\r']).map(|at| &self.text().as_bytes()[at..]) {
            Some([b'\r', b'\n', ..]) => "\r\n",
            Some([b'\r', ..]) => "\r",
            _ => "\n",
        }
    }

    /// One level of indentation, as the file's first indented block has it.
    fn indent_unit(&self) -> &'p str {
        let mut unit = None;
        for stmt in &self.file.module.body {
            let inner = self.bodies(stmt).into_iter().flatten().next();
            let Some(inner) = inner.filter(|inner| self.begins_line(inner.span)) else { continue };
            let indent = self.indentation(inner.span);
            if !indent.is_empty() {
                unit = Some(indent);
                break;
            }
        }
        unit.unwrap_or("    ")
    }

    fn line_start(&self, at: usize) -> usize {
        let start = self.text()[..at].rfind(['\n', '\r']).map_or(0, |end| end + 1);
        if start == 0 && self.text().starts_with('\u{feff}') {
            '\u{feff}'.len_utf8()
        } else {
            start
        }
    }

    /// The end of the line that `at` is on, before its line end.
    fn line_stop(&self, at: usize) -> usize {
        self.text()[at..].find(['\n', '\r']).map_or(self.text().len(), |length| at + length)
    }

    /// Nothing but white space stands before it on its line.
    fn begins_line(&self, at: Span) -> bool {
        let start = at.start as usize;
        self.text()[self.line_start(start)..start].trim().is_empty()
    }

    /// Nothing but a comment stands behind it on its line.
    fn ends_line(&self, at: Span) -> bool {
        let end = at.end as usize;
        let rest = self.text()[end..self.line_stop(end)].trim_start();
        rest.is_empty() || rest.starts_with('#')
    }

    /// What stands before the first code of the line.
    fn indentation(&self, at: Span) -> &'p str {
        let start = self.line_start(at.start as usize);
        let line = &self.text()[start..self.line_stop(start)];
        &line[..line.len() - line.trim_start().len()]
    }
}

#[cfg(test)]
mod tests;
#[cfg(test)]
mod tree_tests;
