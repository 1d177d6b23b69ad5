//! `--watch`: checks again whenever a file changes.

use std::io::IsTerminal as _;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{self, Receiver};
use std::time::{Duration, Instant};

use notify::{Event, EventKind, RecursiveMode, Watcher as _};

use super::args::Check;
use super::{Environment, Status, check, fail, say, tell};
use crate::config::FILE_NAMES;
use crate::driver::{Request, is_foreign, root_of};
use crate::linter::language_of;

/// Editors write a file in several steps; a run waits until they are done.
const QUIET: Duration = Duration::from_millis(50);

/// Clears the screen and what is above it, and goes to the first line.
const CLEAR: &str = "\x1b[2J\x1b[3J\x1b[H";

pub(super) fn run(check: &Check, environment: &Environment, request: &Request) -> Status {
    let (sender, events) = mpsc::channel();
    let watcher = notify::recommended_watcher(move |event| {
        // The receiver lives as long as the program.
        let _ = sender.send(event);
    });
    let mut watcher = match watcher {
        Ok(watcher) => watcher,
        Err(error) => return fail(&format!("files cannot be watched: {error}")),
    };
    let roots: std::collections::BTreeSet<PathBuf> =
        request.paths.iter().map(|path| root_of(path)).collect();
    for root in &roots {
        if let Err(error) = watcher.watch(root, RecursiveMode::Recursive) {
            return fail(&format!("{} cannot be watched: {error}", root.display()));
        }
    }
    loop {
        let start = Instant::now();
        if std::io::stdout().is_terminal() {
            say(CLEAR);
        }
        check::once(check, environment, request);
        say(&format!("checked in {} ms; waiting for changes\n", start.elapsed().as_millis()));
        if let Err(why) = wait(&events) {
            return fail(&why);
        }
    }
}

/// Returns when a file that matters has changed and things are quiet again.
fn wait(events: &Receiver<notify::Result<Event>>) -> Result<(), String> {
    let mut changed = false;
    loop {
        let event = if changed {
            match events.recv_timeout(QUIET) {
                Ok(event) => event,
                Err(_) => return Ok(()),
            }
        } else {
            events.recv().map_err(|_| "files are no longer watched".to_owned())?
        };
        match event {
            Ok(event) => changed |= matters(&event),
            Err(error) => tell(&format!("note: some changes may go unseen: {error}")),
        }
    }
}

fn matters(event: &Event) -> bool {
    let is_change = !matches!(event.kind, EventKind::Access(_));
    let is_ours = |path: &PathBuf| {
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        let is_source = language_of(&name).is_some() || FILE_NAMES.contains(&&*name);
        !is_foreign(path) && (is_source || is_other_folder(path))
    };
    is_change && event.paths.iter().any(is_ours)
}

/// A folder that is gone may have held sources. One that is new may hold some that came before
/// it was watched.
fn is_other_folder(path: &Path) -> bool {
    path.is_dir() || (path.extension().is_none() && !path.exists())
}
