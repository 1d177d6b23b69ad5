//! What the server knows: folders, projects, open documents, and what was found.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use super::documents::Documents;
use crate::config::{ConfigError, FILE_NAMES, Overrides};
use crate::crash::Crash;
use crate::driver::{self, ConfigChoice, FileFacts, Request};
use crate::finding::Finding;
use crate::linter::{Outcome, Session, language_of};
use crate::model::FileId;
use crate::project::SourceFile;

/// What the client's settings say.
#[derive(Clone, PartialEq, Debug, Default)]
pub(super) struct ClientSettings {
    pub(super) config: ConfigChoice,
    pub(super) overrides: Overrides,
}

#[derive(Default)]
pub(super) struct State {
    pub(super) folders: BTreeSet<PathBuf>,
    pub(super) documents: Documents,
    pub(super) settings: ClientSettings,
    projects: Vec<Project>,
    /// Mistakes in configurations, by file.
    mistakes: BTreeMap<PathBuf, Vec<ConfigError>>,
    /// Open documents whose text the projects do not know yet.
    changed: BTreeSet<PathBuf>,
    /// Everything must be read again.
    is_stale: bool,
    news: Option<News>,
    /// Our own bugs and what could not be read, not yet told.
    problems: Vec<String>,
}

/// What may differ from what the client was told.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(super) struct News {
    /// Files whose diagnostics may be others.
    pub(super) files: BTreeSet<PathBuf>,
    /// So may those of all files.
    pub(super) in_all: bool,
    /// Not only open documents changed, which the client knows, but files, folders or settings.
    pub(super) from_outside: bool,
}

/// A project and its findings.
struct Project {
    session: Session,
    facts: Vec<FileFacts>,
    by_path: BTreeMap<PathBuf, FileId>,
    /// In the order of files.
    findings: Vec<Finding>,
    /// Files whose texts are newer than the findings.
    changed: BTreeSet<FileId>,
    is_stale: bool,
}

/// A file of a project.
#[derive(Clone, Copy)]
pub(super) struct View<'s> {
    project: &'s Project,
    pub(super) file: &'s SourceFile,
}

impl<'s> View<'s> {
    /// The findings in this file.
    pub(super) fn findings(&self) -> std::slice::Iter<'s, Finding> {
        in_file(&self.project.findings, self.file.id).iter()
    }

    /// Another file of the same project, and its path.
    pub(super) fn other(&self, id: FileId) -> (&'s SourceFile, &'s Path) {
        (self.project.session.project().file(id), &self.project.facts[id.0 as usize].path)
    }

    /// Lines of a notebook are no lines of its file.
    pub(super) fn is_notebook(&self) -> bool {
        self.project.facts[self.file.id.0 as usize].cells.is_some()
    }

    /// Edits to that file can be offered.
    pub(super) fn is_editable(&self, id: FileId) -> bool {
        self.project.facts[id.0 as usize].frozen.is_none()
    }
}

/// Findings are sorted by path, and so are files.
fn in_file(findings: &[Finding], id: FileId) -> &[Finding] {
    let start = findings.partition_point(|finding| finding.file() < id);
    let end = findings.partition_point(|finding| finding.file() <= id);
    &findings[start..end]
}

impl Project {
    /// Lints again. Gives the files whose diagnostics may have changed, and our own bugs.
    fn lint(&mut self) -> (Vec<PathBuf>, Vec<Crash>) {
        let facts = &self.facts;
        let Outcome { findings, crashes } =
            self.session.lint(&|file| &facts[file.id.0 as usize].settings);
        let old = std::mem::replace(&mut self.findings, findings);
        let changed = std::mem::take(&mut self.changed);
        self.is_stale = false;
        // Places of a finding move with the text that they are in.
        let moves = |finding: &Finding| {
            finding.related.iter().any(|related| changed.contains(&related.site.file))
        };
        let is_new = |id: FileId| {
            let findings = in_file(&self.findings, id);
            changed.contains(&id) || findings != in_file(&old, id) || findings.iter().any(moves)
        };
        let ids = (0..facts.len()).map(|id| FileId(id as u32)).filter(|id| is_new(*id));
        (ids.map(|id| facts[id.0 as usize].path.clone()).collect(), crashes)
    }
}

impl State {
    /// Everything is to be read again before the next answer.
    pub(super) fn invalidate(&mut self) {
        self.is_stale = true;
    }

    /// A document was opened, changed or closed.
    pub(super) fn touch(&mut self, path: &Path) {
        self.changed.insert(path.to_owned());
    }

    /// A file was written, made or deleted, perhaps by others.
    pub(super) fn touch_on_disk(&mut self, path: &Path) {
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        let is_source = language_of(&name).is_some();
        let is_known = self.view(path).is_some();
        let is_settings = FILE_NAMES.contains(&&*name)
            || crate::torch::is_statement(&name)
            || name == ".gitignore";
        if self.documents.get(path).is_some() {
            // What the editor holds counts.
        } else if is_source && is_known && path.is_file() {
            self.changed.insert(path.to_owned());
        } else if is_source || is_settings || is_known || (path.extension().is_none()) {
            self.is_stale = true;
        }
    }

    /// Brings the findings up to date.
    pub(super) fn update(&mut self) {
        if !self.is_stale && self.changed.is_empty() {
            return;
        }
        let changed = std::mem::take(&mut self.changed);
        let mut news = self.news.take().unwrap_or_default();
        news.from_outside |= changed.iter().any(|path| self.documents.get(path).is_none());
        for path in changed {
            self.is_stale = self.is_stale || !self.take_over(&path);
        }
        if self.is_stale {
            (news.in_all, news.from_outside) = (true, true);
            self.read_all();
        }
        for project in &mut self.projects {
            if project.is_stale {
                let (files, crashes) = project.lint();
                news.files.extend(files);
                self.problems.extend(crashes.iter().map(ToString::to_string));
            }
        }
        self.news = Some(news);
    }

    /// What is new since the last time this was asked.
    pub(super) fn take_news(&mut self) -> Option<News> {
        self.news.take()
    }

    /// Gives the text of one file to its project. False: the file has no place in one.
    fn take_over(&mut self, path: &Path) -> bool {
        if !is_wanted(path) {
            return true;
        }
        let Some(project) = self.projects.iter_mut().find(|p| p.by_path.contains_key(path)) else {
            return self.documents.get(path).is_none();
        };
        let id = project.by_path[path];
        let held = self.documents.get(path).map(|document| &*document.text);
        let is_reported = project.session.project().file(id).reported;
        // Where cells begin is found out when the notebook is read.
        let is_notebook = project.facts[id.0 as usize].cells.is_some();
        if (held.is_some() && !is_reported) || is_notebook {
            return false;
        }
        let Some((text, error)) = driver::read_text(path, held) else { return false };
        project.session.set_text(id, text, error);
        project.changed.insert(id);
        project.is_stale = true;
        true
    }

    fn read_all(&mut self) {
        self.is_stale = false;
        self.projects.clear();
        let mut paths: Vec<PathBuf> =
            self.folders.iter().filter(|folder| folder.is_dir()).cloned().collect();
        // The walk would not find those that are new or outside the folders.
        paths.extend(self.documents.paths().filter(|path| is_wanted(path)).cloned());
        let mut overrides = self.settings.overrides.clone();
        // Patterns in the client's settings are seen from the first folder.
        overrides.folder = self.folders.first().cloned().unwrap_or_default();
        let workspace = driver::load(&Request {
            paths,
            config: self.settings.config.clone(),
            overrides,
            overlay: self.documents.overlay(),
        });
        self.mistakes.clear();
        for mistake in workspace.mistakes {
            self.mistakes.entry(mistake.path.clone()).or_default().push(mistake);
        }
        self.problems.extend(workspace.problems);
        for loaded in workspace.projects {
            self.problems.extend(loaded.crashes.iter().map(ToString::to_string));
            let files = loaded.project.files.iter().zip(&loaded.files);
            let by_path = files.map(|(file, facts)| (facts.path.clone(), file.id)).collect();
            self.projects.push(Project {
                session: Session::new(loaded.project),
                facts: loaded.files,
                by_path,
                findings: Vec::new(),
                changed: BTreeSet::new(),
                is_stale: true,
            });
        }
    }

    /// The file at a path, as part of the project that reports it.
    pub(super) fn view(&self, path: &Path) -> Option<View<'_>> {
        let views = || {
            self.projects.iter().filter_map(|project| {
                let id = *project.by_path.get(path)?;
                Some(View { project, file: project.session.project().file(id) })
            })
        };
        views().find(|view| view.file.reported).or_else(|| views().next())
    }

    /// All files in which findings are wanted, with their paths.
    pub(super) fn reported(&self) -> impl Iterator<Item = (&Path, View<'_>)> {
        self.projects.iter().flat_map(|project| {
            let files = project.session.project().files.iter().zip(&project.facts);
            files
                .filter(|(file, facts)| file.reported && facts.cells.is_none())
                .map(move |(file, facts)| (&*facts.path, View { project, file }))
        })
    }

    pub(super) fn mistakes(&self) -> &BTreeMap<PathBuf, Vec<ConfigError>> {
        &self.mistakes
    }

    pub(super) fn take_problems(&mut self) -> Vec<String> {
        std::mem::take(&mut self.problems)
    }

    /// The path lies in a folder that the editor has opened.
    pub(super) fn is_inside(&self, path: &Path) -> bool {
        self.folders.iter().any(|folder| path.starts_with(folder))
    }
}

/// A source that is not other people's.
fn is_wanted(path: &Path) -> bool {
    language_of(&path.to_string_lossy()).is_some() && !driver::is_foreign(path)
}
