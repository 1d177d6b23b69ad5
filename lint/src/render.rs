//! Findings as text: one module per format.
//!
//! Pure: findings and sources in, text out. Nothing here decides what is reported.

mod concise;
mod full;
mod github;
mod gitlab;
mod json;
mod plain;
mod rustc;
mod sarif;
mod statistics;

use std::path::PathBuf;

use clap::ValueEnum;

use crate::driver::Loaded;
use crate::finding::{Finding, Level};
use crate::rule::Rule;

pub(crate) use full::plain_text;
pub use plain::{Place, Plain, relative_path};

/// How findings are printed.
#[derive(ValueEnum, Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Format {
    /// For people: source, places, why and what to do
    #[default]
    Full,
    /// One line per finding
    Concise,
    /// A JSON array
    Json,
    /// SARIF 2.1.0, for code scanning
    Sarif,
    /// Annotations of GitHub Actions
    Github,
    /// Code quality report of GitLab
    Gitlab,
    /// The JSON lines of rustc, for editors that run `cargo check`
    RustcJson,
}

/// A finding in its project.
#[derive(Clone, Copy)]
pub struct Item<'w> {
    pub finding: &'w Finding,
    pub loaded: &'w Loaded,
}

/// How and relative to what.
#[derive(Clone, Debug)]
pub struct Look {
    /// Paths are printed relative to this folder.
    pub folder: PathBuf,
    pub color: bool,
    /// Where the documentation of a rule lies, for terminals that show links.
    pub link: Option<fn(&Rule) -> Option<String>>,
    /// Draw with more than ASCII.
    pub unicode: bool,
    /// Columns of the terminal.
    pub width: usize,
    /// List advice instead of counting it; machine formats always list it.
    pub advice: bool,
}

impl Format {
    /// Made for people: advice is folded, a summary follows.
    pub fn is_for_people(self) -> bool {
        matches!(self, Self::Full | Self::Concise)
    }
}

/// All findings in one format; ends with a line end, unless there is nothing to say.
pub fn render(format: Format, items: &[Item<'_>], look: &Look) -> String {
    let listed: Vec<Item<'_>> = items
        .iter()
        .filter(|item| !format.is_for_people() || look.advice || item.finding.level > Level::Advice)
        .copied()
        .collect();
    match format {
        Format::Full => full::render(&listed, look),
        Format::Concise => concise::render(&plain::all(&listed, look), look),
        Format::Json => json::render(&plain::all(&listed, look)),
        Format::Sarif => sarif::render(&listed, &plain::all(&listed, look)),
        Format::Github => github::render(&plain::all(&listed, look)),
        Format::Gitlab => gitlab::render(&listed, &plain::all(&listed, look)),
        Format::RustcJson => rustc::render(&listed, &plain::all(&listed, look), look),
    }
}

/// How often each rule found something; JSON for machine formats.
pub fn statistics(format: Format, items: &[Item<'_>]) -> String {
    statistics::render(format, items)
}
