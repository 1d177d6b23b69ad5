//! The tree of `mod` items, found by tokens: files need not parse for this.

use std::collections::BTreeMap;

use rayon::prelude::*;
use rustc_hash::{FxHashMap, FxHashSet};

use super::RustFile;
use crate::model::FileId;
use crate::rust::lex::{self, Token, TokenKind};

/// `mod name;`, or `mod name { .. }`.
#[derive(PartialEq, Eq, Debug)]
pub(super) struct Declaration {
    name: String,
    /// Inline modules around it, outermost first.
    inside: Vec<String>,
    /// `#[path = ".."]`
    path: Option<String>,
    test_only: bool,
    is_inline: bool,
}

struct FileModules<'t> {
    path: &'t str,
    declarations: Vec<Declaration>,
    has_main: bool,
}

pub(super) struct Tree<'t> {
    files: FxHashMap<FileId, FileModules<'t>>,
    by_path: BTreeMap<&'t str, FileId>,
}

/// What a crate's root reaches.
pub(super) struct Walk {
    /// With module paths, the root first.
    pub(super) files: Vec<(FileId, String)>,
    pub(super) modules: FxHashMap<String, FileId>,
    pub(super) test_only: Vec<FileId>,
}

struct Step {
    file: FileId,
    module_path: String,
    /// Children stand beside the file, not in a folder of its name.
    owns_folder: bool,
    test_only: bool,
}

impl<'t> Tree<'t> {
    pub(super) fn new(files: &[RustFile<'t>]) -> Self {
        let modules = |file: &RustFile<'t>| {
            let (declarations, has_main) = scan(file.text);
            (file.id, FileModules { path: file.path, declarations, has_main })
        };
        Self {
            files: files.par_iter().map(modules).collect(),
            by_path: files.iter().map(|file| (file.path, file.id)).collect(),
        }
    }

    pub(super) fn find(&self, path: &str) -> Option<FileId> {
        self.by_path.get(path).copied()
    }

    /// Files right in a folder (`prefix` ends in `/` or is empty), and `*/main.rs` below it.
    pub(super) fn targets_in(&self, prefix: &str) -> Vec<(String, FileId)> {
        let inside = self.by_path.range(prefix..).take_while(|(path, _)| path.starts_with(prefix));
        let target = |(path, file): (&&str, &FileId)| {
            let inner = path[prefix.len()..].strip_suffix(".rs")?;
            let name = inner.strip_suffix("/main").unwrap_or(inner);
            (!name.contains('/')).then(|| (name.to_owned(), *file))
        };
        inside.filter_map(target).collect()
    }

    pub(super) fn has_main(&self, file: FileId) -> bool {
        self.files.get(&file).is_some_and(|file| file.has_main)
    }

    /// Those of the files that no other of them declares as a module.
    pub(super) fn roots(&self, files: impl Iterator<Item = FileId>) -> FxHashSet<FileId> {
        let files: FxHashSet<FileId> = files.collect();
        let mut roots = files.clone();
        for &file in &files {
            // Where a file stands decides what it can declare: as a root, or as a module.
            for owns_folder in [true, false] {
                let step = Step {
                    file,
                    module_path: "crate".into(),
                    owns_folder: owns_folder || self.is_mod_rs(file),
                    test_only: false,
                };
                for child in self.children(&step) {
                    if child.file != file {
                        roots.remove(&child.file);
                    }
                }
            }
        }
        roots
    }

    fn is_mod_rs(&self, file: FileId) -> bool {
        self.files.get(&file).is_some_and(|file| file.path.ends_with("mod.rs"))
    }

    pub(super) fn walk(&self, root: FileId) -> Walk {
        let mut walk =
            Walk { files: Vec::new(), modules: FxHashMap::default(), test_only: Vec::new() };
        let mut seen = FxHashSet::default();
        let first =
            Step { file: root, module_path: "crate".into(), owns_folder: true, test_only: false };
        let mut steps = vec![first];
        while let Some(step) = steps.pop() {
            walk.modules.entry(step.module_path.clone()).or_insert(step.file);
            if !seen.insert(step.file) {
                continue;
            }
            if step.test_only {
                walk.test_only.push(step.file);
            }
            self.note_inline(&step, &mut walk);
            let mut children = self.children(&step);
            children.reverse();
            walk.files.push((step.file, step.module_path));
            steps.append(&mut children);
        }
        walk
    }

    fn note_inline(&self, step: &Step, walk: &mut Walk) {
        let Some(file) = self.files.get(&step.file) else { return };
        for declaration in file.declarations.iter().filter(|declaration| declaration.is_inline) {
            let path = declaration.dotted(&step.module_path);
            walk.modules.entry(path).or_insert(step.file);
        }
    }

    fn children(&self, step: &Step) -> Vec<Step> {
        let Some(file) = self.files.get(&step.file) else { return Vec::new() };
        let mut children = Vec::new();
        for declaration in file.declarations.iter().filter(|declaration| !declaration.is_inline) {
            let child = self.locate(file.path, step.owns_folder, declaration);
            let Some((child, owns_folder)) = child else { continue };
            children.push(Step {
                file: child,
                module_path: declaration.dotted(&step.module_path),
                owns_folder,
                test_only: step.test_only || declaration.test_only,
            });
        }
        children
    }

    /// The file of a `mod x;`, and whether its own modules stand beside it.
    fn locate(
        &self,
        path: &str,
        owns_folder: bool,
        declaration: &Declaration,
    ) -> Option<(FileId, bool)> {
        let (folder, name) = path.rsplit_once('/').unwrap_or(("", path));
        let mut base = folder.to_owned();
        if !owns_folder {
            base = join(&base, name.strip_suffix(".rs").unwrap_or(name));
        }
        for inline in &declaration.inside {
            base = join(&base, inline);
        }
        if let Some(given) = &declaration.path {
            let from = if declaration.inside.is_empty() { folder } else { &base };
            if let Some(file) = self.find(&join(from, given)) {
                return Some((file, true));
            }
        }
        let name = &declaration.name;
        let beside = self.find(&join(&base, &format!("{name}.rs"))).map(|file| (file, false));
        beside.or_else(|| Some((self.find(&join(&base, &format!("{name}/mod.rs")))?, true)))
    }
}

impl Declaration {
    fn dotted(&self, module_path: &str) -> String {
        let mut dotted = module_path.to_owned();
        for part in self.inside.iter().chain([&self.name]) {
            dotted.push('.');
            dotted.push_str(part);
        }
        dotted
    }
}

/// Joins and resolves `.` and `..`.
pub(super) fn join(folder: &str, path: &str) -> String {
    let path = path.replace('\\', "/");
    let mut parts: Vec<&str> = folder.split('/').filter(|part| !part.is_empty()).collect();
    for part in path.split('/') {
        match part {
            "" | "." => {}
            ".." => _ = parts.pop(),
            part => parts.push(part),
        }
    }
    parts.join("/")
}

/// Finds the `mod` items of a file, and whether it has a `fn main` at its top level.
pub(super) fn scan(text: &str) -> (Vec<Declaration>, bool) {
    let mut scan = Scan { text, found: Vec::new(), braces: Vec::new(), attributes: None };
    if !text.contains("mod ") && !text.contains("fn main") {
        return (scan.found, false);
    }
    let is_comment = |token: &Token| matches!(token.kind, TokenKind::Comment { .. });
    let tokens: Vec<Token> = lex::tokens(text).filter(|token| !is_comment(token)).collect();
    let mut has_main = false;
    let mut at = 0;
    while let Some(token) = tokens.get(at) {
        match token.kind {
            TokenKind::Punct(b'#') => {
                at = scan.attribute(&tokens, at);
                continue;
            }
            TokenKind::Ident if token.text(text) == "mod" => scan.declaration(&tokens[at..]),
            TokenKind::Ident if token.text(text) == "fn" && scan.braces.is_empty() => {
                let name = tokens.get(at + 1).map(|name| name.text(text));
                has_main |=
                    name == Some("main") && scan.attributes.as_ref().is_none_or(|a| !a.test);
            }
            TokenKind::Open(b'{') => {
                let opens_module = at >= 2 && tokens[at - 2].text(text) == "mod";
                let name = opens_module.then(|| tokens[at - 1].text(text));
                scan.open(name);
            }
            TokenKind::Close(b'}') => {
                scan.braces.pop();
                scan.attributes = None;
            }
            TokenKind::Punct(b';') => scan.attributes = None,
            _ => {}
        }
        at += 1;
    }
    (scan.found, has_main)
}

struct Scan<'t> {
    text: &'t str,
    found: Vec<Declaration>,
    /// Braces around, those of inline modules with a name.
    braces: Vec<Brace<'t>>,
    attributes: Option<Attributes>,
}

struct Brace<'t> {
    module: Option<&'t str>,
    test_only: bool,
}

#[derive(Default)]
struct Attributes {
    path: Option<String>,
    test: bool,
}

impl<'t> Scan<'t> {
    /// Reads `#[..]` and returns the index behind it.
    fn attribute(&mut self, tokens: &[Token], start: usize) -> usize {
        let mut at = start + 1;
        let is_inner = tokens.get(at).is_some_and(|token| token.is_punct(b'!'));
        at += usize::from(is_inner);
        if tokens.get(at).is_none_or(|token| token.kind != TokenKind::Open(b'[')) {
            return start + 1;
        }
        let mut depth = 0_usize;
        let mut words = Vec::new();
        while let Some(token) = tokens.get(at) {
            match token.kind {
                TokenKind::Open(_) => depth += 1,
                TokenKind::Close(_) => depth = depth.saturating_sub(1),
                _ => words.push(token.text(self.text)),
            }
            at += 1;
            if depth == 0 {
                break;
            }
        }
        if !is_inner {
            let attributes = self.attributes.get_or_insert_default();
            attributes.test |= matches!(words[..], ["cfg", "test"] | ["cfg", "all", "test", ..]);
            let path = words.windows(3).find(|words| words[0] == "path" && words[1] == "=");
            if let Some(path) = path.and_then(|words| unquote(words[2])) {
                attributes.path = Some(path.to_owned());
            }
        }
        at
    }

    fn declaration(&mut self, tokens: &[Token]) {
        let (Some(name), Some(end)) = (tokens.get(1), tokens.get(2)) else { return };
        let is_inline = end.kind == TokenKind::Open(b'{');
        if name.kind != TokenKind::Ident || !is_inline && !end.is_punct(b';') {
            return;
        }
        let name = name.text(self.text);
        let attributes = self.attributes.as_ref();
        let inside = self.braces.iter().filter_map(|brace| brace.module).map(plain);
        self.found.push(Declaration {
            name: plain(name),
            inside: inside.collect(),
            path: attributes.and_then(|attributes| attributes.path.clone()),
            test_only: attributes.is_some_and(|attributes| attributes.test)
                || self.braces.iter().any(|brace| brace.test_only),
            is_inline,
        });
    }

    fn open(&mut self, module: Option<&'t str>) {
        let test_only = module.is_some() && self.attributes.as_ref().is_some_and(|a| a.test);
        self.braces.push(Brace { module, test_only });
        self.attributes = None;
    }
}

fn plain(name: &str) -> String {
    name.strip_prefix("r#").unwrap_or(name).to_owned()
}

fn unquote(literal: &str) -> Option<&str> {
    literal.trim_start_matches('r').trim_matches('#').strip_prefix('"')?.strip_suffix('"')
}
