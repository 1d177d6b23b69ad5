//! Which configuration governs a file: the closest one above it.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustc_hash::FxHashMap;

use crate::config::{self, Config, ConfigError, FILE_NAMES, Overrides, Settings};
use crate::lines::Position;

/// Where configurations come from.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub enum ConfigChoice {
    /// The closest one above each file.
    #[default]
    Closest,
    /// This one for all files.
    File(PathBuf),
    /// None.
    Isolated,
}

/// Finds configurations and remembers them.
pub(super) struct Configs<'r> {
    overrides: &'r Overrides,
    by_folder: FxHashMap<PathBuf, Arc<Settings>>,
    /// What governs every file, if something does.
    fixed: Option<Arc<Settings>>,
    bare: Arc<Settings>,
    mistakes: Vec<ConfigError>,
}

impl<'r> Configs<'r> {
    pub(super) fn new(choice: &ConfigChoice, overrides: &'r Overrides) -> Self {
        let bare = Arc::new(Settings::new(None, overrides));
        let mut configs = Self {
            overrides,
            by_folder: FxHashMap::default(),
            fixed: None,
            bare: bare.clone(),
            mistakes: Vec::new(),
        };
        configs.fixed = match choice {
            ConfigChoice::Closest => None,
            ConfigChoice::Isolated => Some(bare),
            ConfigChoice::File(path) => Some(configs.of_named(path)),
        };
        configs
    }

    pub(super) fn of_file(&mut self, path: &Path) -> Arc<Settings> {
        match (&self.fixed, path.parent()) {
            (Some(fixed), _) => fixed.clone(),
            (None, Some(folder)) => self.of_folder(folder),
            (None, None) => self.bare.clone(),
        }
    }

    fn of_folder(&mut self, folder: &Path) -> Arc<Settings> {
        if let Some(known) = self.by_folder.get(folder) {
            return known.clone();
        }
        let settings = match self.in_folder(folder) {
            Some(config) => Arc::new(Settings::new(Some(&config), self.overrides)),
            None => match folder.parent() {
                Some(parent) => self.of_folder(parent),
                None => self.bare.clone(),
            },
        };
        self.by_folder.insert(folder.to_owned(), settings.clone());
        settings
    }

    fn in_folder(&mut self, folder: &Path) -> Option<Config> {
        FILE_NAMES.iter().find_map(|name| {
            let path = folder.join(name);
            match std::fs::read_to_string(&path) {
                Ok(text) => self.parse(&path, &text),
                Err(error) if error.kind() == std::io::ErrorKind::NotFound => None,
                // Other tools' files may be anything; ours must be readable.
                Err(_) if *name != FILE_NAMES[0] => None,
                Err(error) => {
                    self.complain(&path, format!("cannot read it: {error}"));
                    None
                }
            }
        })
    }

    fn complain(&mut self, path: &Path, message: String) {
        let position = Position { line: 1, column: 1 };
        self.mistakes.push(ConfigError { path: path.to_owned(), position, message });
    }

    fn of_named(&mut self, path: &Path) -> Arc<Settings> {
        let config = match std::fs::read_to_string(path) {
            Ok(text) => {
                let n_mistakes = self.mistakes.len();
                let config = self.parse(path, &text);
                if config.is_none() && self.mistakes.len() == n_mistakes {
                    self.complain(path, "this holds no configuration of ddp-lint".to_owned());
                }
                config
            }
            Err(error) => {
                self.complain(path, format!("cannot read it: {error}"));
                None
            }
        };
        Arc::new(Settings::new(config.as_ref(), self.overrides))
    }

    fn parse(&mut self, path: &Path, text: &str) -> Option<Config> {
        match config::parse(path, text) {
            Ok(config) => config,
            Err(errors) => {
                self.mistakes.extend(errors);
                None
            }
        }
    }

    /// All that is wrong with the configurations that were read.
    pub(super) fn into_mistakes(self) -> Vec<ConfigError> {
        self.mistakes
    }
}
