//! What of a file decides which programs there are and which files they are made of. While it
//! stays, a change of the file is a matter of the programs that reach the file.

use crate::analysis::reach;
use crate::model::{Import, Language};
use crate::project::SourceFile;
use crate::python;
use crate::rust::crates::Shape;

#[derive(PartialEq, Eq, Debug)]
pub(super) struct Outline {
    imports: Vec<Import>,
    speaks_of_several: bool,
    own: OfLanguage,
}

#[derive(PartialEq, Eq, Debug)]
enum OfLanguage {
    Python {
        start: python::Start,
        /// Texts that go into `sys.path`.
        searched: Vec<&'static str>,
    },
    Rust(Shape),
}

impl Outline {
    pub(super) fn of(file: &SourceFile) -> Self {
        Self {
            imports: reach::imports_of(&file.module).into_iter().cloned().collect(),
            speaks_of_several: file.speaks_of_several,
            own: match file.module.language {
                Language::Python => OfLanguage::Python {
                    start: python::start(file),
                    searched: python::search_path::literals(file),
                },
                Language::Rust => OfLanguage::Rust(Shape::of(&file.text)),
            },
        }
    }

    /// The crates of the project are the same with the one as with the other.
    pub(super) fn has_crates_of(&self, other: &Self) -> bool {
        match (&self.own, &other.own) {
            (OfLanguage::Rust(own), OfLanguage::Rust(other)) => own == other,
            _ => true,
        }
    }
}
