//! Which versions of torch a project runs on: what its requirements state.
//!
//! No I/O: texts come in, the driver finds and reads them.

use std::sync::LazyLock;

use aho_corasick::AhoCorasick;

use crate::config::TorchVersion;

/// The newest release that the rules know.
pub const NEWEST: TorchVersion = TorchVersion { major: 2, minor: 13 };

/// Files at a project's root that may state requirements; `requirements*.txt` too.
pub const FILE_NAMES: [&str; 10] = [
    "pyproject.toml",
    "setup.py",
    "setup.cfg",
    "environment.yml",
    "environment.yaml",
    "Pipfile",
    "Pipfile.lock",
    "pdm.lock",
    "poetry.lock",
    "uv.lock",
];

/// Words without which no program of either language trains with torch.
const WORDS: [&str; 11] = [
    "torch",
    "tch::",
    "tch_ddp",
    "use tch",
    "crate tch",
    "lightning",
    "accelerate",
    "transformers",
    "mmengine",
    "mmcv",
    "deepspeed",
];

/// The text speaks of torch, tch or a framework upon them. Most texts do not, and nothing can be
/// found in a program of such texts.
pub fn is_mentioned(text: &str) -> bool {
    static SEARCH: LazyLock<AhoCorasick> =
        LazyLock::new(|| AhoCorasick::new(WORDS).expect("a few short words"));
    SEARCH.is_match(text)
}

/// A file of that name may state requirements.
pub fn is_statement(name: &str) -> bool {
    let (stem, ending) = name.rsplit_once('.').unwrap_or((name, ""));
    FILE_NAMES.contains(&name) || (stem.starts_with("requirements") && ending == "txt")
}

/// Releases that a project may run on.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct TorchRange {
    pub first: TorchVersion,
    /// The release after the last; none: no end is stated.
    pub end: Option<TorchVersion>,
}

impl Default for TorchRange {
    /// Nothing is stated: the newest.
    fn default() -> Self {
        Self::exactly(NEWEST)
    }
}

impl TorchRange {
    pub fn exactly(version: TorchVersion) -> Self {
        Self { first: version, end: Some(after(version)) }
    }

    /// Some release of `first..=last` is among these.
    pub fn touches(self, first: TorchVersion, last: TorchVersion) -> bool {
        self.first <= last && self.end.is_none_or(|end| first < end)
    }

    /// The releases that all of the texts allow, if one speaks of torch.
    pub fn stated<'t>(texts: impl IntoIterator<Item = &'t str>) -> Option<Self> {
        let of_text = |text| locked(text).into_iter().chain(str::lines(text).filter_map(line));
        let bounds = texts.into_iter().flat_map(of_text).reduce(Bounds::and)?;
        let oldest = TorchVersion { major: 0, minor: 0 };
        Some(Self { first: bounds.first.unwrap_or(oldest), end: bounds.end })
    }
}

fn after(version: TorchVersion) -> TorchVersion {
    TorchVersion { minor: version.minor + 1, ..version }
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
struct Bounds {
    first: Option<TorchVersion>,
    end: Option<TorchVersion>,
}

impl Bounds {
    fn and(self, other: Self) -> Self {
        let end = match (self.end, other.end) {
            (Some(a), Some(b)) => Some(a.min(b)),
            (a, b) => a.or(b),
        };
        Self { first: self.first.max(other.first), end }
    }
}

/// Lines of a lock file between a package's name and its version.
const LOCK_LINES_MAX: usize = 12;

/// What a lock file holds: from the oldest to the newest release of torch in it, which may be
/// several for several platforms.
fn locked(text: &str) -> Option<Bounds> {
    let lines: Vec<&str> = text.lines().map(str::trim).collect();
    let version = |index: usize| {
        let following = lines[index + 1..].iter().take(LOCK_LINES_MAX);
        let mut following = following.take_while(|line| !line.starts_with(['[', '}']));
        let value = following.find_map(|line| {
            line.strip_prefix("version = ").or_else(|| line.strip_prefix("\"version\": "))
        })?;
        bound(value.trim_matches(['"', '\'', ',']))
    };
    let is_torch = |line: &str| matches!(line, "name = \"torch\"" | "\"torch\": {");
    let found = (0..lines.len()).filter(|index| is_torch(lines[*index])).filter_map(version);
    found.reduce(|a, b| Bounds { first: a.first.min(b.first), end: a.end.max(b.end) })
}

/// What a line says of torch: a requirement of pip, conda or poetry.
fn line(line: &str) -> Option<Bounds> {
    let line = line.split('#').next()?;
    ["pytorch", "torch"].iter().find_map(|name| {
        line.match_indices(name).find_map(|(at, _)| {
            let before = line[..at].chars().next_back();
            let rest = &line[at + name.len()..];
            let in_word = |c: char| c.is_alphanumeric() || matches!(c, '_' | '-' | '.' | '/');
            let alone = !before.is_some_and(in_word) && !rest.starts_with(in_word);
            alone.then(|| requirement(rest)).flatten()
        })
    })
}

/// What stands behind the name: `[extra]>=1.8,<2`, `=1.12`, ` = "^2.0"`.
fn requirement(rest: &str) -> Option<Bounds> {
    let rest: String = rest.chars().filter(|c| !c.is_whitespace()).collect();
    let rest = match rest.strip_prefix('[') {
        Some(extras) => extras.split_once(']')?.1,
        None => &rest,
    };
    let specification = match rest.strip_prefix('=') {
        // TOML: the specification is quoted, alone or as `version` of a table.
        Some(value) if value.starts_with(['"', '\'']) => &value[1..],
        Some(table) if table.starts_with('{') => &table.split_once("version=")?.1[1..],
        _ => rest,
    };
    let specification = specification.split(['"', '\'', ';', '@', ')']).next()?;
    let bounds = specification.split(',').filter_map(bound);
    bounds.reduce(Bounds::and)
}

/// One comparison: `>=1.8.1`, `==1.12.*`, `^2.0`, `1.13`.
fn bound(part: &str) -> Option<Bounds> {
    let number = part.find(|c: char| c.is_ascii_digit())?;
    let (operator, release) = part.split_at(number);
    let release = release.split(|c: char| !(c.is_ascii_digit() || c == '.')).next()?;
    let numbers: Vec<u32> = release.split('.').filter_map(|part| part.parse().ok()).collect();
    let version =
        TorchVersion { major: *numbers.first()?, minor: numbers.get(1).copied().unwrap_or(0) };
    let next_major = TorchVersion { major: version.major + 1, minor: 0 };
    // With a patch number the minor release is the last that may change.
    let compatible = if numbers.len() > 2 { after(version) } else { next_major };
    let (first, end) = match operator.trim() {
        ">=" | ">" => (Some(version), None),
        // A patch number means that some releases of this minor one are allowed.
        "<" if numbers.get(2).is_some_and(|patch| *patch > 0) => (None, Some(after(version))),
        "<" => (None, Some(version)),
        "<=" => (None, Some(after(version))),
        "~=" => (Some(version), Some(compatible)),
        "^" => (Some(version), Some(next_major)),
        "~" | "==" | "===" | "=" | "" => (Some(version), Some(after(version))),
        _ => return None,
    };
    Some(Bounds { first, end })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stated(text: &str) -> String {
        let range = TorchRange::stated([text]).unwrap_or_default();
        let end = range.end.map_or("…".to_owned(), |end| end.to_string());
        format!("{}..{end}", range.first)
    }

    #[test]
    fn requirements_of_every_tool_are_read() {
        let cases = [
            ("torch", "2.13..2.14"),
            ("numpy\ntorch>=1.8.1\n", "1.8..…"),
            ("torch==1.12.1+cu113", "1.12..1.13"),
            ("torch >= 1.5, < 2.0  # why", "1.5..2.0"),
            ("torch<1.9.1", "0.0..1.10"),
            ("torch~=1.8", "1.8..2.0"),
            ("torch~=1.8.0", "1.8..1.9"),
            ("torch[opt]<=2.1; python_version > '3.8'", "0.0..2.2"),
            ("    install_requires=['torch>=1.3', 'torchvision>=0.4'],", "1.3..…"),
            ("dependencies = [\"torch>=2.0,<2.3\"]", "2.0..2.3"),
            ("torch = \"^1.10\"", "1.10..2.0"),
            ("torch = { version = \">=1.7\", optional = true }", "1.7..…"),
            ("  - pytorch=1.7.1", "1.7..1.8"),
            ("  - pytorch::pytorch==2.0.1", "2.0..2.1"),
            ("torchvision==0.9\npytorch-lightning>=1.0\nhttps://pytorch.org/whl", "2.13..2.14"),
            ("# torch==1.0", "2.13..2.14"),
            ("[[package]]\nname = \"torch\"\nversion = \"2.1.0+cu121\"\n", "2.1..2.2"),
            (
                "name = \"torch\"\nversion = \"2.1.0\"\n[[package]]\nname = \"torch\"\n\
                 version = \"2.4.1\"\n",
                "2.1..2.5",
            ),
            ("name = \"torch\"\n[[package]]\nversion = \"9.0\"", "2.13..2.14"),
            ("\"torch\": {\n \"hashes\": [\n],\n \"version\": \"==1.13.1\"\n},", "1.13..1.14"),
        ];
        for (text, expected) in cases {
            assert_eq!(stated(text), expected, "{text}");
        }
    }

    #[test]
    fn all_texts_count() {
        let range = TorchRange::stated(["torch>=1.5", "torch<1.12"]).unwrap_or_default();
        let v = |major, minor| TorchVersion { major, minor };
        assert!(range.touches(v(1, 5), v(1, 11)) && range.touches(v(1, 11), v(1, 11)));
        assert!(!range.touches(v(1, 12), v(2, 0)) && !range.touches(v(1, 0), v(1, 4)));
        assert!(TorchRange::stated(["torch>=1.5"]).unwrap_or_default().touches(v(2, 0), v(2, 1)));
        assert!(TorchRange::default().touches(NEWEST, NEWEST));
        assert!(!TorchRange::default().touches(v(1, 5), v(1, 11)));
    }
}
