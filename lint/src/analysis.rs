//! What a program does when it runs: the facts that rules read.

use crate::model::{FileId, Language};
use crate::project::Project;

/// One entry of a project and what it reaches.
pub struct Program<'p> {
    project: &'p Project,
    /// The file that runs; none in a library, which counts as one program.
    pub entry: Option<FileId>,
    pub language: Language,
}

impl<'p> Program<'p> {
    pub fn project(&self) -> &'p Project {
        self.project
    }
}

/// All programs of a project, in file order.
pub fn programs(project: &Project) -> Vec<Program<'_>> {
    let mut programs = Vec::new();
    for language in [Language::Python, Language::Rust] {
        let mut files = project.files.iter().filter(|file| file.module.language == language);
        let entries = files.clone().filter(|file| file.module.has_main);
        let before = programs.len();
        programs.extend(entries.map(|file| Program { project, entry: Some(file.id), language }));
        if programs.len() == before && files.next().is_some() {
            programs.push(Program { project, entry: None, language });
        }
    }
    programs
}
