//! The JSON schema of the configuration, for editors that complete and check TOML.

use serde_json::{Map, Value, json};

use super::{KEYS, Kind};
use crate::rules::RULES;

/// JSON schema (draft 7) of `ddp-lint.toml`; `[tool.ddp-lint]` has the same form.
pub fn schema() -> Value {
    let properties: Map<String, Value> = KEYS
        .iter()
        .map(|key| {
            let mut of_key = of_kind(key.kind);
            of_key["description"] = json!(key.docs);
            (key.name.to_owned(), of_key)
        })
        .collect();
    json!({
        "$schema": "http://json-schema.org/draft-07/schema#",
        "title": "ddp-lint",
        "description": "Configuration of ddp-lint",
        "type": "object",
        "properties": properties,
        "additionalProperties": false,
        "definitions": { "selector": { "enum": selectors() } },
    })
}

fn selectors() -> Vec<&'static str> {
    std::iter::once("all").chain(RULES.iter().map(|rule| rule.name)).collect()
}

fn of_kind(kind: Kind) -> Value {
    let rules = json!({ "type": "array", "items": { "$ref": "#/definitions/selector" } });
    match kind {
        Kind::Rules => rules,
        Kind::Patterns => json!({ "type": "array", "items": { "type": "string" } }),
        Kind::PatternRules => json!({ "type": "object", "additionalProperties": rules }),
        Kind::Version => {
            json!({ "type": "string", "pattern": r"^[0-9]+\.[0-9]+(\.[0-9]+)?(\+.*)?$" })
        }
        Kind::Levels => {
            let level = json!({ "enum": ["error", "warning", "advice", "off"] });
            let levels: Map<String, Value> =
                RULES.iter().map(|rule| (rule.name.to_owned(), level.clone())).collect();
            json!({ "type": "object", "properties": levels, "additionalProperties": false })
        }
        Kind::Names => json!({ "type": "object", "additionalProperties": { "type": "object" } }),
    }
}
