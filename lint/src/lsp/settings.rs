//! The client's settings for the server.

use std::path::PathBuf;

use serde::Deserialize;
use serde_json::Value;

use super::state::ClientSettings;
use crate::config::{Overrides, Selector};
use crate::driver::ConfigChoice;

/// `ddp-lint` in an editor's settings.
#[derive(Deserialize, Default)]
#[serde(rename_all = "camelCase", default)]
struct Shape {
    /// Path of a configuration that holds for all files.
    config: Option<PathBuf>,
    /// Use no configuration file.
    isolated: bool,
    select: Option<Vec<String>>,
    ignore: Vec<String>,
    extend_select: Vec<String>,
    exclude: Vec<String>,
    target_torch: Option<String>,
}

/// `null` and what other tools put there count as nothing.
pub(super) fn read(settings: &Value) -> Result<ClientSettings, String> {
    if !settings.is_object() {
        return Ok(ClientSettings::default());
    }
    let shape = Shape::deserialize(settings).map_err(|error| error.to_string())?;
    let selectors = |names: &[String]| names.iter().map(|name| Selector::parse(name)).collect();
    for pattern in &shape.exclude {
        crate::config::check_pattern(pattern)?;
    }
    let config = match shape.config {
        Some(path) if !path.as_os_str().is_empty() => ConfigChoice::File(path),
        _ if shape.isolated => ConfigChoice::Isolated,
        _ => ConfigChoice::Closest,
    };
    let overrides = Overrides {
        select: shape.select.as_deref().map(selectors).transpose()?,
        ignore: selectors(&shape.ignore)?,
        extend_select: selectors(&shape.extend_select)?,
        exclude: shape.exclude,
        target_torch: shape.target_torch.as_deref().map(str::parse).transpose()?,
        ..Overrides::default()
    };
    Ok(ClientSettings { config, overrides })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn settings_are_those_of_the_command_line() {
        let read = |settings| read(&settings);
        assert_eq!(read(json!(null)), Ok(ClientSettings::default()));
        assert_eq!(read(json!({ "other": 1 })), Ok(ClientSettings::default()));
        let settings = read(json!({ "ignore": ["all"], "targetTorch": "2.0" })).unwrap();
        assert_eq!(settings.overrides.ignore, [Selector::All]);
        assert_eq!(settings.overrides.target_torch.unwrap().to_string(), "2.0");
        assert!(read(json!({ "ignore": ["no-such-rule"] })).is_err());
        assert!(read(json!({ "ignore": 5 })).is_err());
        let file = read(json!({ "config": "/x/ddp-lint.toml" })).unwrap();
        assert_eq!(file.config, ConfigChoice::File("/x/ddp-lint.toml".into()));
    }
}
