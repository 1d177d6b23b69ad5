//! The live table below the lines: one row per rank, as many as the terminal has room for.
//! Makes text; the console thread shows it.

use std::io::IsTerminal;
use std::time::Duration;

use crate::cli::View;
use crate::group::{Doing, Group, Rank};
use crate::sys::{self, Seen};

/// Whether the run is shown live: asked for, or a terminal that can move its cursor.
pub(crate) fn is_live(view: View, term: Option<&str>) -> bool {
    match view {
        View::Live => true,
        View::Plain => false,
        View::Auto => {
            let able = term.is_some_and(|term| !term.is_empty() && term != "dumb");
            able && std::io::stderr().is_terminal() && std::io::stdout().is_terminal()
        }
    }
}

/// Columns and rows of the terminal.
pub(crate) fn terminal_size() -> (usize, usize) {
    match rustix::termios::tcgetwinsize(std::io::stderr()) {
        Ok(size) if size.ws_col > 0 && size.ws_row > 0 => {
            (usize::from(size.ws_col), usize::from(size.ws_row))
        }
        _ => (80, 24),
    }
}

/// What the head of the table says.
pub(crate) struct Head<'a> {
    pub run_id: &'a str,
    pub world_size: usize,
    pub restart: usize,
    pub max_restarts: usize,
    pub since_start: Duration,
}

/// The rows of the table.
pub(crate) fn rows(head: &Head<'_>, group: &Group, size: (usize, usize)) -> Vec<String> {
    let (columns, terminal_rows) = size;
    let room = (terminal_rows / 2).saturating_sub(2).max(1);
    let mut rows = vec![fit(&title(head, group), columns)];
    // What needs a look comes first: what has failed or is stopped, then what runs.
    let mut ranks: Vec<&Rank> = group.ranks.iter().collect();
    if ranks.len() > room {
        ranks.sort_by_key(|rank| (urgency(rank), rank.seat.rank));
        ranks.truncate(room);
        ranks.sort_by_key(|rank| rank.seat.rank);
    }
    for rank in &ranks {
        let last = rank.tail.last().unwrap_or_default();
        rows.push(fit(&format!("{:>5}  {:<14} {last}", rank.seat.rank, state(rank)), columns));
    }
    let hidden = group.ranks.len() - ranks.len();
    if hidden > 0 {
        rows.push(fit(&format!("       and {hidden} more ranks"), columns));
    }
    rows
}

fn title(head: &Head<'_>, group: &Group) -> String {
    let count = |wanted: fn(&Rank) -> bool| group.ranks.iter().filter(|rank| wanted(rank)).count();
    let running = count(|rank| rank.doing == Doing::Running);
    let done = count(Rank::succeeded);
    let elsewhere = match head.world_size - group.ranks.len().min(head.world_size) {
        0 => String::new(),
        other => format!(" · {other} on other nodes"),
    };
    let secs = head.since_start.as_secs();
    format!(
        "── {} · {running} running, {done} done{elsewhere} · restarts {}/{} · {}:{:02}:{:02} ",
        head.run_id,
        head.restart,
        head.max_restarts,
        secs / 3600,
        secs / 60 % 60,
        secs % 60
    )
}

fn urgency(rank: &Rank) -> u8 {
    match rank.doing {
        Doing::Stopped(_) => 0,
        Doing::Ended { seen, .. } if seen != Seen::Exited(0) => 0,
        Doing::Running => 1,
        Doing::Ended { .. } => 2,
    }
}

fn state(rank: &Rank) -> String {
    match rank.doing {
        Doing::Running => "running".to_owned(),
        Doing::Stopped(_) => "stopped".to_owned(),
        Doing::Ended { seen: Seen::Exited(0), .. } => "done".to_owned(),
        Doing::Ended { seen: Seen::Exited(code), .. } => format!("exit code {code}"),
        Doing::Ended { seen: Seen::Killed(signal), .. } => sys::signal_name(signal),
        Doing::Ended { .. } => "ended".to_owned(),
    }
}

/// Cuts a row to the width of the terminal; what would move the cursor is left out.
fn fit(row: &str, columns: usize) -> String {
    let mut plain = String::new();
    let mut letters = row.chars();
    while let Some(letter) = letters.next() {
        match letter {
            // An escape sequence ends with its first letter.
            '\x1b' => {
                letters.find(char::is_ascii_alphabetic);
            }
            '\t' => plain.push(' '),
            letter if letter.is_control() => {}
            letter => plain.push(letter),
        }
    }
    plain.chars().take(columns.saturating_sub(1)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_fit_and_move_no_cursor() {
        assert_eq!(fit("\x1b[31mred\x1b[0m\tand\x07 more", 9), "red and ");
        assert_eq!(fit("überlang", 6), "überl");
    }

    #[test]
    fn a_live_view_needs_a_terminal_or_a_wish() {
        assert!(is_live(View::Live, None));
        assert!(!is_live(View::Plain, Some("xterm")));
        assert!(!is_live(View::Auto, Some("dumb")));
    }
}
