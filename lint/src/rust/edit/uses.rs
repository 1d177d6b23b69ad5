//! Where a new `use` item goes.

use super::{Editor, Reached};
use crate::finding::Edit;
use crate::model::{Imported, Name, Span, StmtKind};
use crate::rust::lex::{Token, TokenKind};

/// A `use` item of the module in question.
struct Use {
    /// From its attributes or visibility on.
    start: usize,
    end: usize,
    /// Its path as written, without spaces.
    path: String,
}

pub(super) fn add(editor: &Editor<'_>, at: usize, path: &str) -> Option<Edit> {
    let region = region(editor, at);
    let items = uses(editor, &region);
    if is_bound(editor, &items, path) {
        return None;
    }
    let text = format!("use {path};");
    let newline = editor.newline();
    let group = group(editor, &items);
    if let Some(after) = group.iter().rfind(|item| order(&item.path) <= order(path)) {
        let margin = editor.indentation(after.start);
        let (at, head) = match line_end(editor, after.end) {
            Some(line_end) => (line_end, format!("{newline}{margin}")),
            None => (after.end, " ".into()),
        };
        return Some(editor.insert(at as u32, format!("{head}{text}")));
    }
    if let Some(first) = group.first() {
        let gap = if editor.starts_line(first.start) {
            format!("{newline}{}", editor.indentation(first.start))
        } else {
            " ".into()
        };
        return Some(editor.insert(first.start as u32, format!("{text}{gap}")));
    }
    Some(before_items(editor, &region, &text))
}

/// The tokens of the innermost module around a place, by index.
fn region(editor: &Editor<'_>, at: usize) -> std::ops::Range<usize> {
    let tokens = &editor.tokens;
    let mut region = 0..tokens.len();
    for open in (2..tokens.len()).take_while(|&index| tokens[index].start < at) {
        let is_module = tokens[open].kind == TokenKind::Open(b'{')
            && tokens[open - 1].kind == TokenKind::Ident
            && tokens[open - 2].text(editor.text()) == "mod";
        if !is_module {
            continue;
        }
        let close = matching(tokens, open);
        if close.is_some_and(|close| at <= tokens[close].start) {
            region = open + 1..close.unwrap_or(tokens.len());
        }
    }
    region
}

fn matching(tokens: &[Token], open: usize) -> Option<usize> {
    let mut depth = 0_usize;
    let length = tokens[open..].iter().position(|token| {
        match token.kind {
            TokenKind::Open(_) => depth += 1,
            TokenKind::Close(_) => depth -= 1,
            _ => {}
        }
        depth == 0
    });
    Some(open + length?)
}

/// `use` items right in a module, `pub` ones left out.
fn uses(editor: &Editor<'_>, region: &std::ops::Range<usize>) -> Vec<Use> {
    let tokens = &editor.tokens[region.clone()];
    let mut uses = Vec::new();
    let mut depth = 0_usize;
    let mut item_start = 0;
    for (index, token) in tokens.iter().enumerate() {
        match token.kind {
            TokenKind::Open(_) => depth += 1,
            TokenKind::Close(b'}') if depth == 1 => {
                depth = 0;
                item_start = index + 1;
            }
            TokenKind::Close(_) => depth = depth.saturating_sub(1),
            TokenKind::Punct(b';') if depth == 0 => item_start = index + 1,
            TokenKind::Ident if depth == 0 && token.text(editor.text()) == "use" => {
                let end = tokens[index..].iter().position(|token| token.is_punct(b';'));
                let Some(end) = end.map(|length| index + length) else { break };
                let is_public =
                    tokens[item_start..index].iter().any(|t| t.text(editor.text()) == "pub");
                if !is_public {
                    let path =
                        tokens[index + 1..end].iter().map(|t| t.text(editor.text())).collect();
                    let start = tokens[item_start].start;
                    uses.push(Use { start, end: tokens[end].end, path });
                }
            }
            _ => {}
        }
    }
    // Inner attributes belong to no item.
    let behind = inner_attributes_end(editor, region);
    for item in &mut uses {
        let first = tokens.iter().map(|token| token.start).find(|&start| start >= behind);
        item.start = item.start.max(first.unwrap_or(behind));
    }
    uses
}

/// What the `use` items bind: the name, and the dotted path; `None` for everything below it.
fn bindings<'e>(
    editor: &Editor<'e>,
    items: &[Use],
) -> impl Iterator<Item = (Option<Name>, String)> + use<'e> {
    let ranges: Vec<_> = items.iter().map(|item| item.start..item.end).collect();
    editor.file.module.body.iter().filter_map(move |stmt| {
        let StmtKind::Import(import) = &stmt.kind else { return None };
        let start = stmt.span.start as usize;
        ranges.iter().any(|range| range.contains(&start)).then_some(())?;
        Some(match &import.what {
            Imported::Member(member) => {
                (Some(import.binding), format!("{}.{member}", import.module))
            }
            Imported::Module => (Some(import.binding), import.module.to_string()),
            Imported::All => (None, import.module.to_string()),
        })
    })
}

/// The module binds the last name of the path to that path already.
fn is_bound(editor: &Editor<'_>, items: &[Use], path: &str) -> bool {
    let dotted = path.replace("::", ".");
    let (parent, last) = dotted.rsplit_once('.').unwrap_or(("", &dotted));
    bindings(editor, items).any(|(name, bound)| match name {
        Some(name) => name == last && bound == dotted,
        None => bound == parent,
    })
}

pub(super) fn known_as(editor: &Editor<'_>, at: usize, dotted: &str) -> Option<String> {
    let items = uses(editor, &region(editor, at));
    let names = bindings(editor, &items).filter_map(|(name, bound)| {
        let rest = dotted.strip_prefix(&bound)?;
        if !rest.is_empty() && !rest.starts_with('.') {
            return None;
        }
        match name {
            // For its trait methods alone.
            Some(name) if name == "_" => None,
            Some(name) => Some(format!("{name}{rest}").replace('.', "::")),
            None => rest.strip_prefix('.').map(|rest| rest.replace('.', "::")),
        }
    });
    names.min_by_key(String::len)
}

pub(super) fn reach(editor: &Editor<'_>, at: Span, dotted: &str) -> Reached {
    if let Some(name) = editor.known_as(at, dotted) {
        return Reached { name, import: None };
    }
    let path = dotted.replace('.', "::");
    let last = path.rsplit("::").next().unwrap_or(&path);
    if is_taken(editor, last) {
        return Reached { name: path, import: None };
    }
    let import = editor.add_use(at, &path);
    Reached { name: last.to_owned(), import }
}

/// Something at the top level of the file, or of its inline modules, has that name.
fn is_taken(editor: &Editor<'_>, name: &str) -> bool {
    let module = &editor.file.module;
    module.body.iter().any(|stmt| match &stmt.kind {
        StmtKind::Import(import) => import.binding == name,
        StmtKind::Function(index) => module.function(*index).name == name,
        StmtKind::Class(index) => module.class(*index).name == name,
        StmtKind::Assign { targets, .. } => targets
            .iter()
            .any(|target| target.path().is_some_and(|path| path.len() == 1 && path[0] == name)),
        _ => false,
    })
}

/// The last run of `use` items that stand close together and name other crates; else the last
/// run of any.
fn group<'u>(editor: &Editor<'_>, items: &'u [Use]) -> &'u [Use] {
    let is_far = |a: &Use, b: &Use| {
        let between = &editor.text()[a.end.min(b.start)..b.start];
        between.matches('\n').count() > 1
            && between.lines().skip(1).any(|line| line.trim().is_empty())
    };
    let runs: Vec<&[Use]> = items.chunk_by(|a, b| !is_far(a, b)).collect();
    let names_crates = |run: &&&[Use]| run.iter().any(|item| !is_near(&item.path));
    runs.iter().rfind(names_crates).or(runs.last()).copied().unwrap_or(&[])
}

/// Of the standard library, or of this crate.
fn is_near(path: &str) -> bool {
    let first = path.trim_start_matches("::").split("::").next().unwrap_or(path);
    matches!(first, "std" | "core" | "alloc" | "crate" | "self" | "super")
}

fn order(path: &str) -> Vec<&str> {
    path.trim_start_matches("::").split("::").collect()
}

/// The end of the line if only a comment follows.
fn line_end(editor: &Editor<'_>, at: usize) -> Option<usize> {
    let rest = &editor.text()[at..];
    let line = &rest[..rest.find('\n').unwrap_or(rest.len())];
    let line = line.strip_suffix('\r').unwrap_or(line);
    let behind = line.trim();
    (behind.is_empty() || behind.starts_with("//")).then_some(at + line.len())
}

/// Where the attributes `#![..]` of the module end, or its start.
fn inner_attributes_end(editor: &Editor<'_>, region: &std::ops::Range<usize>) -> usize {
    let tokens = &editor.tokens;
    let mut at = region.start;
    let mut end = 0;
    while at + 2 < region.end && tokens[at].is_punct(b'#') && tokens[at + 1].is_punct(b'!') {
        let Some(close) = matching(tokens, at + 2) else { break };
        end = tokens[close].end;
        at = close + 1;
    }
    end
}

/// A module without `use` items: above the first item and its comments, below what belongs to
/// the module itself.
fn before_items(editor: &Editor<'_>, region: &std::ops::Range<usize>, text: &str) -> Edit {
    let newline = editor.newline();
    let is_file = region.start == 0;
    let attributes = inner_attributes_end(editor, region);
    let opens = if is_file { 0 } else { editor.tokens[region.start - 1].end };
    let head = attributes.max(opens).max(if is_file { head_end(editor.text()) } else { 0 });
    let next = editor
        .tokens
        .get(region.start..)
        .and_then(|tokens| tokens.iter().find(|token| token.start >= head));
    if editor.text()[..head].trim_start_matches('\u{feff}').is_empty() {
        return editor.insert(head as u32, format!("{text}{newline}{newline}"));
    }
    if is_file {
        return editor.insert(head as u32, format!("{newline}{newline}{text}"));
    }
    match next {
        Some(next) if editor.starts_line(next.start) => {
            let margin = editor.indentation(next.start);
            editor.insert(head as u32, format!("{newline}{margin}{text}{newline}"))
        }
        _ => editor.insert(head as u32, format!(" {text}")),
    }
}

/// The end of the last line of `//!` comments, a `#!` line and a byte order mark at the top.
fn head_end(text: &str) -> usize {
    let mut at = if text.starts_with('\u{feff}') { '\u{feff}'.len_utf8() } else { 0 };
    let mut end = at;
    for line in text[at..].split_inclusive('\n') {
        let is_interpreter = at < 4 && line.starts_with("#!") && !line.starts_with("#![");
        if line.trim_start().starts_with("//!") || is_interpreter {
            end = at + line.trim_end().len();
        } else if !line.trim().is_empty() {
            break;
        }
        at += line.len();
    }
    end
}
