//! Notebooks: the code cells in order are one Python file; places are cell and line.
//!
//! What only IPython understands becomes a statement that does nothing, byte for byte as
//! long, so that all other code keeps its place.

use serde_json::Value;

use super::lower::Scan;

/// Commands that run the Python behind them.
const PYTHON_COMMANDS: [&str; 9] =
    ["capture", "debug", "lprun", "memit", "mprun", "prun", "python", "time", "timeit"];

/// Where the cells of a notebook begin in its text.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Cells {
    /// First line (from 1) of each code cell, and the cell's number (from 1, all kinds
    /// counted).
    starts: Vec<(u32, u32)>,
}

impl Cells {
    /// The cell (from 1) and the line in it (from 1) of a line of the whole text.
    pub fn place(&self, line: u32) -> (u32, u32) {
        let index = self.starts.partition_point(|(start, _)| *start <= line);
        match index.checked_sub(1).map(|index| self.starts[index]) {
            Some((start, cell)) => (cell, line - start + 1),
            None => (1, line),
        }
    }
}

/// The text of the code cells, each ended with a line end; empty for a notebook of another
/// language. An error says why the bytes are no notebook.
pub fn read(bytes: &[u8]) -> Result<(String, Cells), String> {
    let document: Value = serde_json::from_slice(bytes)
        .map_err(|error| format!("this notebook is no JSON: {error}"))?;
    let cells = cells(&document).ok_or("this notebook has no list `cells`")?;
    let mut text = String::new();
    let mut starts = Vec::new();
    let mut line = 1;
    let is_code = |cell: &Value| cell["cell_type"] == "code" && is_python(&document);
    for (cell, number) in cells.into_iter().zip(1..).filter(|(cell, _)| is_code(cell)) {
        let key = if cell["source"].is_null() { "input" } else { "source" };
        let source = source_of(&cell[key]);
        // Lone carriage returns would count as lines in Python alone.
        let source = source.replace("\r\n", "\n").replace('\r', "\n");
        let source = python_of(&source);
        starts.push((line, number));
        text.push_str(&source);
        if !source.is_empty() && !source.ends_with('\n') {
            text.push('\n');
        }
        line += source.lines().count() as u32;
    }
    Ok((text, Cells { starts }))
}

/// The cells of a notebook; before version 4 they are in worksheets.
fn cells(document: &Value) -> Option<Vec<&Value>> {
    if let Some(cells) = document["cells"].as_array() {
        return Some(cells.iter().collect());
    }
    let sheets = document["worksheets"].as_array()?;
    Some(sheets.iter().filter_map(|sheet| sheet["cells"].as_array()).flatten().collect())
}

fn is_python(document: &Value) -> bool {
    let metadata = &document["metadata"];
    let language =
        metadata["language_info"]["name"].as_str().or(metadata["kernelspec"]["language"].as_str());
    language.is_none_or(|language| language.to_ascii_lowercase().contains("python"))
}

/// One string, or a list of lines.
fn source_of(value: &Value) -> String {
    match value {
        Value::Array(lines) => lines.iter().filter_map(Value::as_str).collect(),
        other => other.as_str().unwrap_or_default().to_owned(),
    }
}

/// The cell as Python, as long as it was.
fn python_of(cell: &str) -> String {
    let command = cell.trim_start().strip_prefix("%%");
    let name = command.map(|rest| rest.split_whitespace().next().unwrap_or_default());
    match name {
        Some(name) if !PYTHON_COMMANDS.contains(&name) => {
            cell.split_inclusive('\n').map(|line| neutral("", line)).collect()
        }
        _ => without_commands(cell),
    }
}

/// `code`, then the rest of the line as a comment, as long as the line was.
fn neutral(code: &str, line: &str) -> String {
    let (line, end) = line.strip_suffix('\n').map_or((line, ""), |line| (line, "\n"));
    if line.len() <= code.len() {
        return format!("{code:.width$}{end}", width = line.len());
    }
    let mut kept = code.len() + 1;
    while !line.is_char_boundary(kept) {
        kept += 1;
    }
    let gap = kept - code.len() - 1;
    format!("{code}#{:gap$}{}{end}", "", &line[kept..])
}

/// What IPython alone understands, at the start of a statement or as a value.
enum Command {
    Statement(usize),
    Value(usize),
    /// `%time f(x)`: what stands behind the command is Python.
    Python(usize, usize),
}

fn without_commands(cell: &str) -> String {
    let mut python = String::with_capacity(cell.len());
    let mut copied = 0;
    let mut scan = Scan::new(cell);
    let mut next = Some(0);
    while let Some(at) = next {
        let found = if scan.is_balanced() { command(cell, at) } else { None };
        let (start, code) = match found {
            None => {
                next = scan.next_line();
                continue;
            }
            Some(Command::Statement(start)) => (start, "pass"),
            Some(Command::Value(start)) => (start, "0"),
            Some(Command::Python(start, end)) => {
                python.push_str(&cell[copied..start]);
                python.push_str("0;");
                python.extend(std::iter::repeat_n(' ', end - start - 2));
                copied = end;
                scan.skip_to(end);
                next = scan.next_line();
                continue;
            }
        };
        let end = command_end(cell, start);
        let code = if end - start < code.len() { "0" } else { code };
        python.push_str(&cell[copied..start]);
        for (index, line) in cell[start..end].split_inclusive('\n').enumerate() {
            python.push_str(&neutral(if index == 0 { code } else { "" }, line));
        }
        copied = end;
        scan.skip_to(end);
        next = scan.next_line();
    }
    python.push_str(&cell[copied..]);
    python
}

fn command(cell: &str, at: usize) -> Option<Command> {
    let line = cell[at..].lines().next()?;
    let code = line.trim_start();
    let start = at + line.len() - code.len();
    if let Some(rest) = code.strip_prefix('%') {
        let name = rest.split_whitespace().next().unwrap_or_default();
        let body = rest[name.len()..].trim_start();
        if PYTHON_COMMANDS.contains(&name) && !body.is_empty() && !body.starts_with('-') {
            return Some(Command::Python(start, at + line.len() - body.len()));
        }
        return Some(Command::Statement(start));
    }
    if code.starts_with(['!', '?']) || is_help(code) {
        return Some(Command::Statement(start));
    }
    let (target, value) = code.split_once('=')?;
    let value = value.trim_start();
    let is_name = |c: char| c.is_alphanumeric() || "_., ".contains(c);
    let is_value = value.starts_with(['%', '!']) && target.chars().all(is_name);
    is_value.then(|| Command::Value(at + line.len() - value.len()))
}

/// A command goes on where its line ends with a backslash.
fn command_end(cell: &str, start: usize) -> usize {
    let mut end = start;
    for line in cell[start..].split_inclusive('\n') {
        end += line.len();
        if !line.trim_end().ends_with('\\') {
            return end - usize::from(line.ends_with('\n'));
        }
    }
    end
}

/// `name?`, `a.b??`.
fn is_help(code: &str) -> bool {
    let name = code.trim_end().trim_end_matches('?');
    name.len() < code.trim_end().len()
        && !name.is_empty()
        && name.chars().all(|c| c.is_alphanumeric() || c == '_' || c == '.')
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::python::lower;

    const NOTEBOOK: &str = r##"{"cells": [
        {"cell_type": "markdown", "source": ["# Title"]},
        {"cell_type": "code", "source": ["import torch\n", "%matplotlib inline\n", "torch.add?"]},
        {"cell_type": "code", "source": "%%bash\nls"},
        {"cell_type": "code", "source": []},
        {"cell_type": "code", "source": "files = !ls\nx != 1\n"}
    ]}"##;

    #[test]
    fn code_cells_are_one_file() {
        let (text, cells) = read(NOTEBOOK.as_bytes()).unwrap();
        let expected = "import torch\npass#lotlib inline\npass#.add?\n\
                        #%bash\n#s\nfiles = 0#s\nx != 1\n";
        assert_eq!(text, expected);
        assert_eq!(cells.place(1), (2, 1));
        assert_eq!(cells.place(3), (2, 3));
        assert_eq!(cells.place(5), (3, 2));
        assert_eq!(cells.place(7), (5, 2));
    }

    #[test]
    fn commands_become_statements_of_the_same_length() {
        for (cell, expected) in [
            ("if x:\n    !ls\ny", "if x:\n    0#s\ny"),
            ("!pip install \\\n  it's\nx", "pass#install \\\n# it's\nx"),
            ("%%time\nf(x)", "pass#e\nf(x)"),
            ("%time f(x)", "0;    f(x)"),
            ("%timeit -n 3 f(x)", "pass#it -n 3 f(x)"),
            ("%%writefile a.py\nf(ä)\n\n(", "#%writefile a.py\n#(ä)\n\n#"),
            ("%%html\nä", "#%html\n# "),
            ("!äö", "pass#"),
            ("!ä", "0# "),
            ("!", "0"),
            ("?f", "0#"),
            ("x = (a\n% b)", "x = (a\n% b)"),
            ("x = a \\\n% b", "x = a \\\n% b"),
            ("x = '''\n%a\n!b\n'''", "x = '''\n%a\n!b\n'''"),
            ("a, b = %run x", "a, b = 0#un x"),
            ("x == !y", "x == !y"),
        ] {
            let python = python_of(cell);
            assert_eq!(python, expected, "{cell}");
            assert_eq!(python.len(), cell.len(), "{cell}");
        }
        for cell in ["if x:\n    !ls\n", "%time f(x)", "!ä\nx", "y = !a 'b\nz"] {
            assert!(lower(&python_of(cell)).errors.is_empty(), "{cell}");
        }
    }

    #[test]
    fn older_and_foreign_notebooks() {
        let old = r#"{"worksheets": [{"cells":
            [{"cell_type": "code", "input": ["x\r\n", "y"]}]}]}"#;
        assert_eq!(read(old.as_bytes()).unwrap().0, "x\ny\n");
        let julia = r#"{"metadata": {"kernelspec": {"language": "julia"}},
            "cells": [{"cell_type": "code", "source": "x = 1;"}]}"#;
        assert_eq!(read(julia.as_bytes()).unwrap().0, "");
    }

    #[test]
    fn what_is_no_notebook_says_so() {
        assert!(read(b"{").unwrap_err().starts_with("this notebook is no JSON"));
        assert!(read(b"\xff").unwrap_err().starts_with("this notebook is no JSON"));
        assert!(read("[".repeat(10_000).as_bytes()).is_err());
        assert_eq!(read(b"[]").unwrap_err(), "this notebook has no list `cells`");
        let odd = r#"{"cells": [1, {}, {"cell_type": "code"},
            {"cell_type": "code", "source": [2]}]}"#;
        assert_eq!(read(odd.as_bytes()).unwrap().0, "");
    }
}
