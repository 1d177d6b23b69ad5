//! What every rule needs: `use crate::prelude::*;`.

pub use crate::analysis::Program;
pub use crate::declare_rule;
pub use crate::finding::{Applicability, Edit, Finding, Fix, Harm, Level, Related};
pub use crate::model::{FileId, Language, Name, Site, Span};
pub use crate::rule::{BOTH, Draft, FixKind, PYTHON, RUST, Report, Rule};

#[cfg(test)]
pub(crate) use crate::rule::testing::{check_files, check_python, check_rust};
