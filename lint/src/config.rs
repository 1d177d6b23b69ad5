//! What a user may set: the configuration files, and the settings that follow from them and
//! from the command line.
//!
//! No I/O: texts come in, the driver finds and reads them.

mod keys;
mod parse;
mod schema;
mod settings;

use std::path::PathBuf;

pub use keys::{KEYS, Key, Kind};
pub use parse::{ConfigError, parse};
pub use schema::schema;
pub(crate) use settings::check_pattern;
pub use settings::{Overrides, Settings};

use crate::finding::Level;

/// The names of files that may hold a configuration, in the order in which they win within
/// one folder.
pub const FILE_NAMES: [&str; 3] = ["ddp-lint.toml", "pyproject.toml", "Cargo.toml"];

/// One configuration as written; nothing is resolved.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct Config {
    /// The file it was read from.
    pub path: PathBuf,
    pub select: Option<Vec<Selector>>,
    pub ignore: Vec<Selector>,
    pub extend_select: Vec<Selector>,
    /// Pattern and what is ignored in files that match it.
    pub per_file_ignores: Vec<(String, Vec<Selector>)>,
    pub exclude: Vec<String>,
    pub target_torch: Option<TorchVersion>,
    /// Rule and level; `None` is "off".
    pub levels: Vec<(&'static str, Option<Level>)>,
    /// Rows for the tables of outside names, as TOML.
    pub names: Option<String>,
}

/// What a list of rules may hold.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Selector {
    All,
    Rule(&'static str),
}

impl Selector {
    /// `Err` says what is wrong with the name, and what it was probably meant to be.
    pub fn parse(name: &str) -> Result<Self, String> {
        if name == "all" {
            return Ok(Self::All);
        }
        crate::rules::find(name).map(|rule| Self::Rule(rule.name)).ok_or_else(|| {
            let known = crate::rules::RULES.iter().map(|rule| rule.name).chain(["all"]);
            let hint = crate::nearest::nearest(name, known);
            let hint = hint.map_or_else(
                || "; `ddp-lint rules` lists them".to_owned(),
                |near| format!("; did you mean `{near}`?"),
            );
            format!("unknown rule `{name}`{hint}")
        })
    }
}

/// A release of torch, without the patch number.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct TorchVersion {
    pub major: u32,
    pub minor: u32,
}

impl std::str::FromStr for TorchVersion {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let wrong = || format!("`{text}` is no version of torch; write it as \"2.13\"");
        let release = text.split('+').next().unwrap_or_default();
        let parts: Vec<u32> = release
            .split('.')
            .map(|part| part.parse().map_err(|_| wrong()))
            .collect::<Result<_, _>>()?;
        match parts[..] {
            [major, minor] | [major, minor, _] => Ok(Self { major, minor }),
            _ => Err(wrong()),
        }
    }
}

impl std::fmt::Display for TorchVersion {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}.{}", self.major, self.minor)
    }
}
