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
        link: (!to_file && shows_links(is_terminal)).then_some(crate::lsp::link),
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

/// Terminals that are known to show links (OSC 8) say who they are. FORCE_HYPERLINK decides for
/// the others, and against all with 0.
fn shows_links(is_terminal: bool) -> bool {
    let value = |name: &str| std::env::var(name).ok().filter(|value| !value.is_empty());
    if let Some(forced) = value("FORCE_HYPERLINK") {
        return forced != "0";
    }
    let programs = ["iTerm.app", "WezTerm", "vscode", "ghostty", "Hyper"];
    let is_known = value("TERM_PROGRAM").is_some_and(|name| programs.contains(&&*name))
        || ["KITTY_WINDOW_ID", "WT_SESSION", "KONSOLE_VERSION"].iter().any(|n| value(n).is_some())
        // GNOME's terminal and its relatives: from 0.50 on.
        || value("VTE_VERSION").and_then(|v| v.parse::<u32>().ok()).is_some_and(|v| v >= 5000);
    is_terminal && is_known && value("TERM").is_none_or(|term| term != "dumb")
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
