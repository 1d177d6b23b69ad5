//! Reads a configuration out of the text of a TOML file.

use std::fmt;
use std::ops::Range;
use std::path::{Path, PathBuf};

use serde::Deserialize;
use toml::Spanned;
use toml::de::{DeTable, DeValue, ValueDeserializer};

use super::{Config, KEYS, Kind, Selector};
use crate::finding::Level;
use crate::lines::{Lines, Position, Unit};
use crate::nearest::nearest;
use crate::table::{Row, Table};

/// What is wrong with a configuration, and where.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ConfigError {
    pub path: PathBuf,
    pub position: Position,
    pub message: String,
}

impl fmt::Display for ConfigError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Position { line, column } = self.position;
        write!(f, "{}:{line}:{column}: {}", self.path.display(), self.message)
    }
}

impl std::error::Error for ConfigError {}

/// The configuration in a file, if it holds one. The file's name says where to look:
/// `pyproject.toml` under `[tool.ddp-lint]`, `Cargo.toml` under
/// `[package.metadata.ddp-lint]` or `[workspace.metadata.ddp-lint]`, any other at the top.
///
/// # Errors
/// Every mistake, in source order. A broken file that does not mention ddp-lint is other
/// tools' business and counts as none.
pub fn parse(path: &Path, text: &str) -> Result<Option<Config>, Vec<ConfigError>> {
    let places: &[&[&str]] = match path.file_name().and_then(|name| name.to_str()) {
        Some("pyproject.toml") => &[&["tool", "ddp-lint"]],
        Some("Cargo.toml") => {
            &[&["package", "metadata", "ddp-lint"], &["workspace", "metadata", "ddp-lint"]]
        }
        _ => &[&[]],
    };
    if !places[0].is_empty() && !text.contains("ddp-lint") {
        return Ok(None);
    }
    let mut reader = Reader { path, lines: Lines::new(text), errors: Vec::new() };
    let document = match DeTable::parse(text) {
        Ok(document) => document.into_inner(),
        Err(error) => {
            reader.complain(error.span().unwrap_or_default(), error.message().to_owned());
            return Err(reader.errors);
        }
    };
    let Some(table) = places.iter().find_map(|place| descend(&document, place)) else {
        return Ok(None);
    };
    let config = reader.config(table);
    reader.errors.sort_by_key(|error| error.position);
    if reader.errors.is_empty() { Ok(Some(config)) } else { Err(reader.errors) }
}

fn descend<'t, 'i>(table: &'t DeTable<'i>, place: &[&str]) -> Option<&'t DeTable<'i>> {
    let [first, rest @ ..] = place else { return Some(table) };
    let (_, value) = table.iter().find(|(key, _)| key.get_ref() == first)?;
    match value.get_ref() {
        DeValue::Table(inner) => descend(inner, rest),
        _ => None,
    }
}

struct Reader<'t> {
    path: &'t Path,
    lines: Lines<'t>,
    errors: Vec<ConfigError>,
}

type Value<'i> = Spanned<DeValue<'i>>;

impl Reader<'_> {
    fn complain(&mut self, span: Range<usize>, message: String) {
        let position = self.lines.position(span.start as u32, Unit::Character);
        self.errors.push(ConfigError { path: self.path.to_owned(), position, message });
    }

    fn config(&mut self, table: &DeTable<'_>) -> Config {
        let mut config = Config { path: self.path.to_owned(), ..Config::default() };
        for (key, value) in table {
            let name = key.get_ref().as_ref();
            let Some(known) = KEYS.iter().find(|known| known.name == name) else {
                self.complain(key.span(), unknown_key(name));
                continue;
            };
            match name {
                "select" => config.select = Some(self.rules(value, known.kind)),
                "ignore" => config.ignore = self.rules(value, known.kind),
                "extend-select" => config.extend_select = self.rules(value, known.kind),
                "exclude" => config.exclude = self.patterns(value, known.kind),
                "per-file-ignores" => config.per_file_ignores = self.pattern_rules(value),
                "target-torch" => config.target_torch = self.version(value),
                "rules" => config.levels = self.levels(value),
                "names" => config.names = self.names(value),
                _ => unreachable!("`{name}` is a key that nothing reads"),
            }
        }
        config
    }

    fn expect(&mut self, value: &Value<'_>, kind: Kind) {
        let message =
            format!("this is a {}, but must be {}", value.get_ref().type_str(), kind.expectation());
        self.complain(value.span(), message);
    }

    fn strings(&mut self, value: &Value<'_>, kind: Kind) -> Vec<(Range<usize>, String)> {
        let DeValue::Array(items) = value.get_ref() else {
            self.expect(value, kind);
            return Vec::new();
        };
        let mut strings = Vec::new();
        for item in items {
            match item.get_ref() {
                DeValue::String(text) => strings.push((item.span(), text.to_string())),
                _ => self.expect(item, kind),
            }
        }
        strings
    }

    fn rules(&mut self, value: &Value<'_>, kind: Kind) -> Vec<Selector> {
        let mut selectors = Vec::new();
        for (span, name) in self.strings(value, kind) {
            match Selector::parse(&name) {
                Ok(selector) => selectors.push(selector),
                Err(message) => self.complain(span, message),
            }
        }
        selectors
    }

    fn patterns(&mut self, value: &Value<'_>, kind: Kind) -> Vec<String> {
        let strings = self.strings(value, kind);
        for (span, pattern) in &strings {
            self.check_pattern(span.clone(), pattern);
        }
        strings.into_iter().map(|(_, pattern)| pattern).collect()
    }

    fn check_pattern(&mut self, span: Range<usize>, pattern: &str) {
        if let Err(error) = super::settings::check_pattern(pattern) {
            self.complain(span, format!("`{pattern}` is no file pattern: {error}"));
        }
    }

    fn pattern_rules(&mut self, value: &Value<'_>) -> Vec<(String, Vec<Selector>)> {
        let DeValue::Table(table) = value.get_ref() else {
            self.expect(value, Kind::PatternRules);
            return Vec::new();
        };
        let mut ignores = Vec::new();
        for (pattern, rules) in table {
            self.check_pattern(pattern.span(), pattern.get_ref());
            ignores.push((pattern.get_ref().to_string(), self.rules(rules, Kind::Rules)));
        }
        ignores
    }

    fn version(&mut self, value: &Value<'_>) -> Option<super::TorchVersion> {
        let DeValue::String(text) = value.get_ref() else {
            self.expect(value, Kind::Version);
            return None;
        };
        text.parse().map_err(|message| self.complain(value.span(), message)).ok()
    }

    fn levels(&mut self, value: &Value<'_>) -> Vec<(&'static str, Option<Level>)> {
        let DeValue::Table(table) = value.get_ref() else {
            self.expect(value, Kind::Levels);
            return Vec::new();
        };
        let mut levels = Vec::new();
        for (rule, level) in table {
            let name = match Selector::parse(rule.get_ref()) {
                Ok(Selector::Rule(name)) => name,
                Ok(Selector::All) => {
                    let message = "`all` has no level; name the rules".to_owned();
                    self.complain(rule.span(), message);
                    continue;
                }
                Err(message) => {
                    self.complain(rule.span(), message);
                    continue;
                }
            };
            match level.get_ref().as_str() {
                Some("error") => levels.push((name, Some(Level::Error))),
                Some("warning") => levels.push((name, Some(Level::Warning))),
                Some("advice") => levels.push((name, Some(Level::Advice))),
                Some("off") => levels.push((name, None)),
                _ => self.complain(
                    level.span(),
                    "a level is \"error\", \"warning\", \"advice\" or \"off\"".to_owned(),
                ),
            }
        }
        levels
    }

    fn names(&mut self, value: &Value<'_>) -> Option<String> {
        let DeValue::Table(table) = value.get_ref() else {
            self.expect(value, Kind::Names);
            return None;
        };
        let n_errors = self.errors.len();
        for (name, row) in table {
            if let Err(error) = Row::deserialize(ValueDeserializer::from(row.clone())) {
                let span = error.span().unwrap_or_else(|| row.span());
                self.complain(span, format!("`{}`: {}", name.get_ref(), error.message()));
            }
        }
        if self.errors.len() > n_errors {
            return None;
        }
        // Serialised again: the table takes rows as a text of their own.
        let rows = toml::Table::deserialize(ValueDeserializer::from(value.clone()));
        let text = rows.ok().and_then(|rows| toml::to_string(&rows).ok())?;
        match Table::default().add(&text) {
            Ok(()) => Some(text),
            Err(error) => {
                self.complain(value.span(), error.message().to_owned());
                None
            }
        }
    }
}

fn unknown_key(name: &str) -> String {
    let known: Vec<&str> = KEYS.iter().map(|key| key.name).collect();
    let hint = nearest(name, known.iter().copied())
        .map_or(String::new(), |near| format!("; did you mean `{near}`?"));
    format!("unknown key `{name}`{hint}; the keys are {}", quoted(&known))
}

fn quoted(names: &[&str]) -> String {
    names.iter().map(|name| format!("`{name}`")).collect::<Vec<_>>().join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::TorchVersion;

    fn errors(path: &str, text: &str) -> Vec<String> {
        let errors = parse(Path::new(path), text).unwrap_err();
        errors.iter().map(ToString::to_string).collect()
    }

    const ALL: &str = r#"
select = ["all"]
ignore = ["unused-suppression"]
extend-select = ["unknown-suppression"]
exclude = ["third_party/"]
target-torch = "2.13"
per-file-ignores = { "tests/" = ["all"] }

[rules]
unused-suppression = "off"
unknown-suppression = "error"

[names."mylib.is_main"]
role = "is-main"
"#;

    #[test]
    fn every_key_is_read() {
        let config = parse(Path::new("a/ddp-lint.toml"), ALL).unwrap().unwrap();
        assert_eq!(config.select, Some(vec![Selector::All]));
        assert_eq!(config.ignore, [Selector::Rule("unused-suppression")]);
        assert_eq!(config.extend_select, [Selector::Rule("unknown-suppression")]);
        assert_eq!(config.exclude, ["third_party/"]);
        assert_eq!(config.target_torch, Some(TorchVersion { major: 2, minor: 13 }));
        assert_eq!(config.per_file_ignores, [("tests/".to_owned(), vec![Selector::All])]);
        let levels = [("unknown-suppression", Some(Level::Error)), ("unused-suppression", None)];
        assert_eq!(config.levels, levels);
        assert!(config.names.unwrap().contains("mylib.is_main"));
        for key in KEYS {
            assert!(ALL.contains(key.name), "{} is not tested", key.name);
        }
    }

    #[test]
    fn examples_of_keys_are_right() {
        for key in KEYS {
            // Rules of the examples are those of the whole linter.
            let config = parse(Path::new("ddp-lint.toml"), key.example);
            assert!(config.is_ok(), "{}: {config:?}", key.name);
        }
    }

    #[test]
    fn each_file_has_its_place() {
        let section = |header: &str| format!("[{header}]\nexclude = [\"x\"]\n");
        let found =
            |path: &str, header: &str| parse(Path::new(path), &section(header)).unwrap().is_some();
        assert!(found("pyproject.toml", "tool.ddp-lint"));
        assert!(!found("pyproject.toml", "tool.ruff"));
        assert!(found("Cargo.toml", "package.metadata.ddp-lint"));
        assert!(found("Cargo.toml", "workspace.metadata.ddp-lint"));
        assert!(!found("Cargo.toml", "dependencies.ddp-lint"));
        assert!(parse(Path::new("ddp-lint.toml"), "").unwrap().is_some());
        assert_eq!(parse(Path::new("pyproject.toml"), "broken ="), Ok(None));
    }

    #[test]
    fn a_mistake_names_file_line_key_and_the_nearest() {
        let unknown = errors("x/pyproject.toml", "[tool.ddp-lint]\n\nslect = []\nrules = 1\n");
        assert!(
            unknown[0]
                .starts_with("x/pyproject.toml:3:1: unknown key `slect`; did you mean `select`?"),
            "{unknown:?}"
        );
        assert!(unknown[0].contains("`per-file-ignores`"), "{unknown:?}");
        assert!(unknown[1].starts_with("x/pyproject.toml:4:9: this is a integer"), "{unknown:?}");
        let rule = errors("ddp-lint.toml", "ignore = [\n  \"unused-supression\",\n]");
        assert_eq!(
            rule,
            ["ddp-lint.toml:2:3: unknown rule `unused-supression`; did you mean \
                 `unused-suppression`?"]
        );
        let level = errors("ddp-lint.toml", "[rules]\nunused-suppression = \"warn\"");
        assert!(level[0].starts_with("ddp-lint.toml:2:22: a level is"), "{level:?}");
        let row = errors("ddp-lint.toml", "[names.\"a.b\"]\nrole = \"is-man\"");
        assert!(row[0].starts_with("ddp-lint.toml:2:8: `a.b`: unknown variant"), "{row:?}");
        let version = errors("ddp-lint.toml", "target-torch = \"new\"");
        assert!(version[0].contains("`new` is no version of torch"), "{version:?}");
        let pattern = errors("ddp-lint.toml", "exclude = [\"[z-a]\"]");
        assert!(pattern[0].contains("`[z-a]` is no file pattern"), "{pattern:?}");
        let syntax = errors("ddp-lint.toml", "select = [\n");
        assert!(syntax[0].starts_with("ddp-lint.toml:"), "{syntax:?}");
    }
}
