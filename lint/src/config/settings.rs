//! The settings that hold for a file: a configuration with the command line over it.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use ignore::gitignore::{Gitignore, GitignoreBuilder};

use super::{Config, Selector, TorchVersion};
use crate::finding::Level;
use crate::rules::RULES;

/// What the command line says; it wins over configuration files.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct Overrides {
    pub select: Option<Vec<Selector>>,
    pub ignore: Vec<Selector>,
    pub extend_select: Vec<Selector>,
    pub per_file_ignores: Vec<(String, Vec<Selector>)>,
    pub exclude: Vec<String>,
    pub target_torch: Option<TorchVersion>,
    /// Patterns above are relative to this folder.
    pub folder: PathBuf,
}

/// What holds for the files that one configuration governs.
#[derive(Clone, Debug)]
pub struct Settings {
    /// The file that it came from.
    pub path: Option<PathBuf>,
    pub target_torch: Option<TorchVersion>,
    /// Rows for the tables of outside names, as TOML.
    pub names: Option<Arc<str>>,
    /// In the order of `RULES`.
    switches: Vec<Switch>,
    per_file_ignores: Vec<(Patterns, Vec<Selector>)>,
    exclude: Vec<Patterns>,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Switch {
    Off,
    /// At the level of each finding.
    On,
    At(Level),
}

#[derive(Clone, Debug)]
struct Patterns {
    folder: PathBuf,
    matcher: Gitignore,
}

impl Default for Settings {
    fn default() -> Self {
        Self::new(None, &Overrides::default())
    }
}

impl Settings {
    /// Patterns of the configuration are relative to the folder of its file.
    pub fn new(config: Option<&Config>, overrides: &Overrides) -> Self {
        let empty = Config::default();
        let config = config.unwrap_or(&empty);
        let folder = config.path.parent().unwrap_or(Path::new(""));
        let ignores = |folder: &Path, ignores: &[(String, Vec<Selector>)]| -> Vec<_> {
            let patterns = |pattern: &String| Patterns::new(folder, [pattern.as_str()]);
            ignores.iter().map(|(pattern, rules)| (patterns(pattern), rules.clone())).collect()
        };
        let mut per_file_ignores = ignores(folder, &config.per_file_ignores);
        per_file_ignores.extend(ignores(&overrides.folder, &overrides.per_file_ignores));
        Self {
            path: (!config.path.as_os_str().is_empty()).then(|| config.path.clone()),
            target_torch: overrides.target_torch.or(config.target_torch),
            names: config.names.as_deref().map(Arc::from),
            switches: switches(config, overrides),
            per_file_ignores,
            exclude: vec![
                Patterns::new(folder, config.exclude.iter().map(String::as_str)),
                Patterns::new(&overrides.folder, overrides.exclude.iter().map(String::as_str)),
            ],
        }
    }

    /// The rule may have findings in some file.
    pub fn runs(&self, rule: &str) -> bool {
        self.switch(rule) != Switch::Off
    }

    /// The level at which a finding counts that its rule gave `level`; `None`: not at all.
    /// The path is absolute, or relative as the configuration's own path is.
    pub fn level(&self, rule: &str, path: &Path, level: Level) -> Option<Level> {
        let is_ignored = self.per_file_ignores.iter().any(|(patterns, selectors)| {
            selectors.iter().any(|selector| selector.covers(rule)) && patterns.hold(path)
        });
        match self.switch(rule) {
            Switch::Off => None,
            _ if is_ignored => None,
            Switch::On => Some(level),
            Switch::At(level) => Some(level),
        }
    }

    /// The configuration leaves the file out, or a folder that it is in.
    pub fn excludes(&self, path: &Path) -> bool {
        self.exclude.iter().any(|patterns| patterns.hold(path))
    }

    fn switch(&self, rule: &str) -> Switch {
        let index = RULES.binary_search_by(|candidate| candidate.name.cmp(rule));
        index.map_or(Switch::Off, |index| self.switches[index])
    }
}

impl Selector {
    fn covers(self, rule: &str) -> bool {
        match self {
            Self::All => true,
            Self::Rule(name) => name == rule,
        }
    }
}

/// The command line's `select` replaces what the configuration says of which rules run; its
/// other lists add to it. A level in the configuration stays.
fn switches(config: &Config, overrides: &Overrides) -> Vec<Switch> {
    let covered =
        |selectors: &[Selector], rule: &str| selectors.iter().any(|selector| selector.covers(rule));
    let switch = |rule: &str| {
        let configured =
            config.levels.iter().find(|(name, _)| *name == rule).map(|(_, level)| level);
        let from_file = config.select.as_ref().is_none_or(|list| covered(list, rule))
            && !covered(&config.ignore, rule)
            && configured != Some(&None)
            || covered(&config.extend_select, rule);
        let selected = overrides.select.as_ref().map_or(from_file, |list| covered(list, rule));
        let ignored = covered(&overrides.ignore, rule);
        let runs = selected && !ignored || covered(&overrides.extend_select, rule);
        match configured {
            _ if !runs => Switch::Off,
            Some(Some(level)) => Switch::At(*level),
            _ => Switch::On,
        }
    };
    RULES.iter().map(|rule| switch(rule.name)).collect()
}

impl Patterns {
    fn new<'p>(folder: &Path, patterns: impl IntoIterator<Item = &'p str>) -> Self {
        // Built on an empty root: paths are made relative to `folder` before they are matched.
        let mut builder = GitignoreBuilder::new("");
        for pattern in patterns {
            // A pattern that is none was refused when the configuration was read.
            let _ = builder.add_line(None, pattern);
        }
        let matcher = builder.build().unwrap_or_else(|_| Gitignore::empty());
        Self { folder: folder.to_owned(), matcher }
    }

    fn hold(&self, path: &Path) -> bool {
        if self.matcher.is_empty() {
            return false;
        }
        let Ok(relative) = path.strip_prefix(&self.folder) else { return false };
        // The matcher refuses absolute paths by a panic.
        !relative.has_root()
            && self.matcher.matched_path_or_any_parents(relative, false).is_ignore()
    }
}

/// `Err` says what is wrong with a file pattern.
pub(crate) fn check_pattern(pattern: &str) -> Result<(), String> {
    GitignoreBuilder::new("").add_line(None, pattern).map(|_| ()).map_err(|error| match error {
        ignore::Error::Glob { err, .. } => err,
        other => other.to_string(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const USED: &str = "unused-suppression";
    const OTHER: &str = "unknown-suppression";

    fn config(text: &str) -> Config {
        crate::config::parse(Path::new("/p/ddp-lint.toml"), text).unwrap().unwrap()
    }

    fn runs(text: &str, overrides: &Overrides) -> (bool, bool) {
        let settings = Settings::new(Some(&config(text)), overrides);
        (settings.runs(USED), settings.runs(OTHER))
    }

    #[test]
    fn lists_say_which_rules_run() {
        let none = Overrides::default();
        assert_eq!(runs("", &none), (true, true));
        assert_eq!(runs("select = ['unused-suppression']", &none), (true, false));
        assert_eq!(runs("ignore = ['all']", &none), (false, false));
        let extended = "ignore = ['all']\nextend-select = ['unused-suppression']";
        assert_eq!(runs(extended, &none), (true, false));
        assert_eq!(runs("[rules]\nunused-suppression = 'off'", &none), (false, true));
    }

    #[test]
    fn the_command_line_wins() {
        let select = Overrides { select: Some(vec![Selector::Rule(USED)]), ..Overrides::default() };
        assert_eq!(runs("ignore = ['all']", &select), (true, false));
        let ignore = Overrides { ignore: vec![Selector::All], ..Overrides::default() };
        assert_eq!(runs("select = ['unused-suppression']", &ignore), (false, false));
        let extend =
            Overrides { extend_select: vec![Selector::Rule(OTHER)], ..Overrides::default() };
        assert_eq!(runs("select = ['unused-suppression']", &extend), (true, true));
    }

    #[test]
    fn levels_and_patterns_decide_per_file() {
        let text = "per-file-ignores = { 'tests/' = ['unused-suppression'] }\n\
                    exclude = ['*_pb2.py', '/vendored']\n\
                    [rules]\nunused-suppression = 'error'";
        let settings = Settings::new(Some(&config(text)), &Overrides::default());
        let level = |rule, path| settings.level(rule, Path::new(path), Level::Warning);
        assert_eq!(level(USED, "/p/train.py"), Some(Level::Error));
        assert_eq!(level(OTHER, "/p/train.py"), Some(Level::Warning));
        assert_eq!(level(USED, "/p/a/tests/b/c.py"), None);
        assert_eq!(level(OTHER, "/p/tests/c.py"), Some(Level::Warning));
        assert_eq!(level(USED, "/elsewhere/tests/c.py"), Some(Level::Error));
        assert!(settings.excludes(Path::new("/p/a/x_pb2.py")));
        assert!(settings.excludes(Path::new("/p/vendored/deep/x.py")));
        assert!(!settings.excludes(Path::new("/p/a/vendored/x.py")));
        assert!(!settings.excludes(Path::new("/q/x_pb2.py")));
    }
}
