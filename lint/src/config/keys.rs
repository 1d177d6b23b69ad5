//! The keys of the configuration and their documentation: the only list of them.

/// One key of the configuration.
#[derive(Debug)]
pub struct Key {
    pub name: &'static str,
    pub kind: Kind,
    /// As it would be written.
    pub default: &'static str,
    pub docs: &'static str,
    pub example: &'static str,
}

/// What a key's value is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Kind {
    /// A list of rules, or `all`.
    Rules,
    /// A list of file patterns.
    Patterns,
    /// File patterns, each with a list of rules.
    PatternRules,
    Version,
    /// Rules, each with a level or "off".
    Levels,
    /// Rows for the tables of outside names.
    Names,
}

impl Kind {
    /// In words, for errors.
    pub fn expectation(self) -> &'static str {
        match self {
            Self::Rules => "a list of rules: [\"unguarded-save\"]",
            Self::Patterns => "a list of file patterns: [\"vendored/\"]",
            Self::PatternRules => {
                "a table of file patterns with lists of rules: { \"tests/*\" = [\"all\"] }"
            }
            Self::Version => "a version of torch: \"2.13\"",
            Self::Levels => {
                "a table of rules with \"error\", \"warning\", \"advice\" or \"off\": \
                 { unguarded-log = \"off\" }"
            }
            Self::Names => {
                "a table of dotted names: { \"mylib.is_main\" = { role = \"is-main\" } }"
            }
        }
    }
}

pub static KEYS: &[Key] = &[
    Key {
        name: "exclude",
        kind: Kind::Patterns,
        default: "[]",
        docs: "Files and folders that are not linted, as patterns of `.gitignore`, relative to \
            the folder of the configuration. They are still read for facts. Files that git \
            ignores and folders such as `.venv`, `node_modules`, `site-packages` and cargo's \
            `target` are left out anyway.",
        example: "exclude = [\"third_party/\", \"*_pb2.py\"]",
    },
    Key {
        name: "extend-select",
        kind: Kind::Rules,
        default: "[]",
        docs: "Rules that run as well, whatever `select` and `ignore` say.",
        example: "extend-select = [\"unused-suppression\"]",
    },
    Key {
        name: "ignore",
        kind: Kind::Rules,
        default: "[]",
        docs: "Rules that do not run.",
        example: "ignore = [\"unused-suppression\"]",
    },
    Key {
        name: "names",
        kind: Kind::Names,
        default: "{}",
        docs: "What names of your own libraries mean, in the form of the built-in tables: a \
            dotted name (a method of any receiver: `*.name`) with its role, for what the linter \
            cannot see in your sources. Functions in your sources need no row: the linter reads \
            them.",
        example: "[names.\"mylib.dist.is_main\"]\nrole = \"is-main\"",
    },
    Key {
        name: "per-file-ignores",
        kind: Kind::PatternRules,
        default: "{}",
        docs: "Rules whose findings are dropped in the files that match a pattern (of \
            `.gitignore`, relative to the folder of the configuration).",
        example: "per-file-ignores = { \"tests/\" = [\"unused-suppression\"] }",
    },
    Key {
        name: "rules",
        kind: Kind::Levels,
        default: "{}",
        docs: "The level of all findings of a rule: \"error\", \"warning\", \"advice\" or \
            \"off\".",
        example: "[rules]\nunused-suppression = \"off\"",
    },
    Key {
        name: "select",
        kind: Kind::Rules,
        default: "[\"all\"]",
        docs: "The rules that run.",
        example: "select = [\"unused-suppression\", \"unknown-suppression\"]",
    },
    Key {
        name: "target-torch",
        kind: Kind::Version,
        default: "what the project's requirements say, else the newest",
        docs: "The version of torch that the code is to run on. Some faults exist in some \
            versions only.",
        example: "target-torch = \"2.13\"",
    },
];
