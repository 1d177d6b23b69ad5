//! Statements: guards around them, others before and after them.

use super::{Edit, Editor};
use crate::model::{Span, Stmt, StmtKind};
use crate::python::lower::Scan;

impl Editor<'_> {
    /// Puts whole statements (one, or from the first to the last of several in a row) under
    /// `if test:`. `None` if they share a line with other code.
    pub fn guard(&self, statements: Span, test: &str) -> Option<Vec<Edit>> {
        if !self.is_sound() || !self.begins_line(statements) || !self.ends_line(statements) {
            return None;
        }
        let start = statements.start as usize;
        if self.is_elif(start) {
            return None;
        }
        let unit = self.indent_unit();
        let indent = self.indentation(statements);
        let header = format!("if {test}:{}{indent}{unit}", self.line_end());
        let mut edits = vec![self.insertion(start, header)];
        let inner = &self.text()[statements.range()];
        let mut scan = Scan::new(inner);
        while let Some(line) = scan.next_line() {
            let at = start + line;
            if !self.text()[at..self.line_stop(at)].trim().is_empty() {
                edits.push(self.insertion(at, unit));
            }
        }
        Some(edits)
    }

    /// Puts code before a statement. Lines of `code` end with `\n` and are indented by four
    /// spaces per level; they come out as the file has them. `None` for an `elif`.
    pub fn insert_before(&self, statement: &Stmt, code: &str) -> Option<Edit> {
        let start = statement.span.start as usize;
        if !self.is_sound() || self.is_elif(start) {
            return None;
        }
        if !self.begins_line(statement.span) {
            let code = format!("{}; ", code.trim_end());
            return is_simple(&code).then(|| self.insertion(start, code));
        }
        let indent = self.indentation(statement.span);
        let text = self.laid_out(code, indent);
        let text = format!("{}{}{indent}", text.strip_prefix(indent)?, self.line_end());
        Some(self.insertion(start, text))
    }

    /// Puts code behind a statement, below the comment on its last line.
    pub fn insert_after(&self, statement: &Stmt, code: &str) -> Option<Edit> {
        if !self.is_sound() {
            return None;
        }
        let end = statement.span.end as usize;
        if self.begins_line(statement.span) && self.ends_line(statement.span) {
            let text = self.laid_out(code, self.indentation(statement.span));
            return Some(self.insertion(self.line_stop(end), format!("{}{text}", self.line_end())));
        }
        let is_block = matches!(
            statement.kind,
            StmtKind::If { .. }
                | StmtKind::Loop { .. }
                | StmtKind::With { .. }
                | StmtKind::Match { .. }
                | StmtKind::Try { .. }
                | StmtKind::Function(_)
                | StmtKind::Class(_)
        );
        let code = format!("; {}", code.trim_end());
        (!is_block && is_simple(&code[2..])).then(|| self.insertion(end, code))
    }

    /// The clause of a chain, which is a statement of the model but none of Python.
    fn is_elif(&self, start: usize) -> bool {
        self.text()[start..].starts_with("elif")
    }

    /// The code with the file's indentation and line ends, without a line end at its end.
    fn laid_out(&self, code: &str, indent: &str) -> String {
        let unit = self.indent_unit();
        let lines = code.trim_end().lines().map(|line| {
            let rest = line.trim_start();
            let levels = (line.len() - rest.len()) / 4;
            if rest.is_empty() {
                String::new()
            } else {
                format!("{indent}{}{rest}", unit.repeat(levels))
            }
        });
        lines.collect::<Vec<_>>().join(self.line_end())
    }
}

/// One statement on one line that may stand behind a `;`.
fn is_simple(code: &str) -> bool {
    let code = code.trim_end();
    let is_compound = code.ends_with(':')
        || ["if ", "for ", "while ", "with ", "try:", "def ", "class ", "async ", "@"]
            .iter()
            .any(|word| code.starts_with(word));
    !code.contains('\n') && !is_compound && !code.contains('#')
}
