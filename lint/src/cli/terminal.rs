//! What the terminal can show.

use std::io::{self, IsTerminal as _};
use std::path::Path;

use super::args::Color;
use crate::render::Look;

/// Columns when the output is no terminal.
const WIDTH_ELSEWHERE: usize = 100;
const WIDTH_MIN: usize = 40;

/// How to print to standard output, or to a file.
pub(super) fn look(color: Color, advice: bool, to_file: bool, folder: &Path) -> Look {
    let is_terminal = !to_file && io::stdout().is_terminal();
    Look {
        folder: folder.to_owned(),
        color: !to_file && wants_color(color, is_terminal),
        unicode: !is_terminal || speaks_utf8(),
        width: width(is_terminal),
        advice,
    }
}

fn wants_color(color: Color, is_terminal: bool) -> bool {
    let set = |name: &str| std::env::var_os(name).is_some_and(|value| !value.is_empty());
    match color {
        Color::Always => true,
        Color::Never => false,
        Color::Auto if set("NO_COLOR") => false,
        Color::Auto if set("CLICOLOR_FORCE") || set("FORCE_COLOR") => true,
        Color::Auto => is_terminal && std::env::var_os("TERM").is_none_or(|term| term != "dumb"),
    }
}

/// Whether colours are wanted for standard output.
pub(super) fn color(color: Color) -> bool {
    wants_color(color, io::stdout().is_terminal())
}

fn speaks_utf8() -> bool {
    if cfg!(windows) {
        return true;
    }
    let set = ["LC_ALL", "LC_CTYPE", "LANG"]
        .iter()
        .find_map(|name| std::env::var(name).ok().filter(|value| !value.is_empty()));
    set.is_some_and(|locale| {
        let locale = locale.to_ascii_lowercase();
        locale.contains("utf-8") || locale.contains("utf8")
    })
}

fn width(is_terminal: bool) -> usize {
    let columns = std::env::var("COLUMNS").ok().and_then(|columns| columns.parse().ok());
    let width = match columns {
        Some(columns) => columns,
        None if is_terminal => {
            terminal_size::terminal_size().map_or(WIDTH_ELSEWHERE, |(width, _)| width.0.into())
        }
        None => WIDTH_ELSEWHERE,
    };
    width.max(WIDTH_MIN)
}
