//! A finding with paths, lines and columns instead of spans: what the machine formats print.

use std::path::{Component, Path};

use rustc_hash::FxHashMap;
use serde::Serialize;

use super::{Item, Look};
use crate::driver::Loaded;
use crate::finding::{Applicability, Harm, Level};
use crate::lines::{Lines, Position, Unit};
use crate::model::{FileId, Site};

/// The shape of a finding in JSON.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct Plain<'w> {
    pub rule: &'static str,
    pub level: Level,
    pub harm: Harm,
    pub message: &'w str,
    pub why: &'w str,
    pub help: &'w str,
    #[serde(flatten)]
    pub place: Place,
    pub related: Vec<PlainRelated<'w>>,
    pub fix: Option<PlainFix<'w>>,
}

/// Lines and columns from 1, columns in characters, `end` exclusive.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct Place {
    /// With `/`, relative to the working directory.
    pub path: String,
    /// The cell of a notebook, from 1; lines count from its first.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cell: Option<u32>,
    pub start: Position,
    pub end: Position,
}

#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct PlainRelated<'w> {
    #[serde(flatten)]
    pub place: Place,
    pub message: &'w str,
}

#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct PlainFix<'w> {
    pub applicability: Applicability,
    pub title: &'w str,
    pub edits: Vec<PlainEdit<'w>>,
}

#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct PlainEdit<'w> {
    #[serde(flatten)]
    pub place: Place,
    pub replacement: &'w str,
}

impl Place {
    /// `path:line:column`, with the cell of a notebook.
    pub fn shown(&self) -> String {
        let Position { line, column } = self.start;
        match self.cell {
            Some(cell) => format!("{}:cell {cell}:{line}:{column}", self.path),
            None => format!("{}:{line}:{column}", self.path),
        }
    }
}

/// All items, in order.
pub(super) fn all<'w>(items: &[Item<'w>], look: &Look) -> Vec<Plain<'w>> {
    let mut places = Places { look, lines: FxHashMap::default() };
    items.iter().map(|item| places.plain(*item)).collect()
}

/// Remembers the lines of files.
struct Places<'w, 'l> {
    look: &'l Look,
    lines: FxHashMap<(*const Loaded, FileId), Lines<'w>>,
}

impl<'w> Places<'w, '_> {
    fn plain(&mut self, item: Item<'w>) -> Plain<'w> {
        let Item { finding, loaded } = item;
        let related = finding.related.iter().map(|related| PlainRelated {
            place: self.place(loaded, related.site),
            message: &related.message,
        });
        let related = related.collect();
        let fix = finding.fix.as_ref().map(|fix| PlainFix {
            applicability: fix.applicability,
            title: &fix.title,
            edits: fix
                .edits
                .iter()
                .map(|edit| PlainEdit {
                    place: self.place(loaded, edit.site),
                    replacement: &edit.replacement,
                })
                .collect(),
        });
        Plain {
            rule: finding.rule,
            level: finding.level,
            harm: finding.harm,
            message: &finding.message,
            why: &finding.why,
            help: &finding.help,
            place: self.place(loaded, finding.site),
            related,
            fix,
        }
    }

    fn place(&mut self, loaded: &'w Loaded, site: Site) -> Place {
        let facts = loaded.facts(site.file);
        let text = &loaded.project.file(site.file).text;
        let lines = self
            .lines
            .entry((std::ptr::from_ref(loaded), site.file))
            .or_insert_with(|| Lines::new(text));
        let mut start = lines.position(site.span.start, Unit::Character);
        let mut end = lines.position(site.span.end, Unit::Character);
        let mut cell = None;
        if let Some(cells) = &facts.cells {
            let (number, line) = cells.place(start.line);
            cell = Some(number);
            end.line = end.line - start.line + line;
            start.line = line;
        }
        Place { path: relative_path(&facts.path, &self.look.folder), cell, start, end }
    }
}

/// `path` as seen from `folder`, with `/`; both absolute.
pub fn relative_path(path: &Path, folder: &Path) -> String {
    let common = path
        .components()
        .zip(folder.components())
        .take_while(|(path, folder)| path == folder)
        .count();
    let up = folder.components().skip(common).map(|_| Component::ParentDir);
    let down = path.components().skip(common);
    // Nothing but the root in common (another drive): the absolute path says more.
    if common <= 1 && folder.components().count() > 1 {
        return path.to_string_lossy().replace('\\', "/");
    }
    let parts = up.chain(down).map(|part| part.as_os_str().to_string_lossy().into_owned());
    let relative = parts.collect::<Vec<_>>().join("/");
    if relative.is_empty() { ".".to_owned() } else { relative }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_are_seen_from_the_folder() {
        let relative = |path: &str, folder: &str| relative_path(Path::new(path), Path::new(folder));
        assert_eq!(relative("/a/b/c.py", "/a/b"), "c.py");
        assert_eq!(relative("/a/b/c.py", "/a/d/e"), "../../b/c.py");
        assert_eq!(relative("/a/c.py", "/"), "a/c.py");
        assert_eq!(relative("/x/c.py", "/a/b"), "/x/c.py");
        assert_eq!(relative("/a", "/a"), ".");
    }
}
