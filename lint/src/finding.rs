//! What the rules report: findings, their places and the edits that mend them.

use serde::{Deserialize, Serialize};

use crate::model::{FileId, Site};

/// How a finding counts. `Advice` never changes the exit status.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Level {
    Advice,
    Warning,
    Error,
}

/// What the user suffers.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Harm {
    /// Ranks wait for each other until a timeout.
    Hang,
    /// Silently wrong numbers.
    Wrong,
    Crash,
    /// A damaged or mixed file.
    Corrupt,
    /// Time or memory spent for nothing.
    Waste,
    Noise,
}

#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Applicability {
    /// Same meaning, nothing to look at.
    Safe,
    /// Needs a look.
    Unsafe,
}

#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Finding {
    /// The rule's name.
    pub rule: &'static str,
    pub level: Level,
    pub harm: Harm,
    pub site: Site,
    /// What is wrong: lowercase, no final stop, the user's own names.
    pub message: String,
    /// Why it hurts.
    pub why: String,
    /// What to do.
    pub help: String,
    pub related: Vec<Related>,
    pub fix: Option<Fix>,
}

#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Related {
    pub site: Site,
    pub message: String,
}

#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Fix {
    pub applicability: Applicability,
    /// What the fix does, as an order: "use the device of the input".
    pub title: String,
    /// Edits do not overlap; they may be in several files.
    pub edits: Vec<Edit>,
}

/// Replaces the text of `site` (empty: inserts before it).
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Edit {
    pub site: Site,
    pub replacement: String,
}

impl Finding {
    pub fn file(&self) -> FileId {
        self.site.file
    }
}
