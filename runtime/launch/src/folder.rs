//! The run's folder: a folder per attempt and rank for logs and error files, and `run.json`,
//! the state of the run for whoever looks from outside.

use std::fs::{self, DirBuilder};
use std::io;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

use serde::Serialize;

use crate::failure::{Failure, How};
use crate::trouble::Trouble;

/// Where files of this run go.
pub(crate) struct Folder {
    path: PathBuf,
    temporary: bool,
    state_file: Option<PathBuf>,
}

impl Folder {
    /// A new folder for the run in the log directory; its name may get a number behind it.
    pub(crate) fn create(log_dir: &Path, run_id: &str) -> Result<Self, Trouble> {
        let log_dir = &absolute(log_dir)?;
        fs::create_dir_all(log_dir).map_err(|error| unusable(log_dir, &error))?;
        let name: String =
            run_id.chars().map(|c| if c == '/' || c.is_control() { '_' } else { c }).collect();
        for number in 0.. {
            let path = match number {
                0 => log_dir.join(&name),
                _ => log_dir.join(format!("{name}-{number}")),
            };
            match fs::create_dir(&path) {
                Ok(()) => {
                    let state_file = Some(path.join("run.json"));
                    return Ok(Self { path, temporary: false, state_file });
                }
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
                Err(error) => return Err(unusable(log_dir, &error)),
            }
        }
        unreachable!("there are more numbers than folders")
    }

    /// The folder that node 0 has made, on this node: the same one if the disk is shared.
    pub(crate) fn join(log_dir: &Path, name: &str, launcher: usize) -> Result<Self, Trouble> {
        let path = absolute(log_dir)?.join(name);
        fs::create_dir_all(&path).map_err(|error| unusable(log_dir, &error))?;
        let state_file = Some(path.join(format!("run-{launcher}.json")));
        Ok(Self { path, temporary: false, state_file })
    }

    /// A folder for error files only, gone with the run.
    pub(crate) fn temporary(keep: bool) -> io::Result<Self> {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let name = format!("ddp-run-{}-{}", std::process::id(), now.as_nanos());
        let path = std::env::temp_dir().join(name);
        DirBuilder::new().mode(0o700).create(&path)?;
        Ok(Self { path, temporary: !keep, state_file: None })
    }

    /// Whether its files are still there after the run.
    pub(crate) fn stays(&self) -> bool {
        !self.temporary
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// Its last part, which the other nodes use too.
    pub(crate) fn name(&self) -> String {
        self.path.file_name().unwrap_or_default().to_string_lossy().into_owned()
    }

    /// The folder of a rank in an attempt.
    pub(crate) fn of_rank(&self, attempt: usize, rank: usize) -> PathBuf {
        self.path.join(format!("attempt_{attempt}")).join(rank.to_string())
    }

    /// Writes the state; a reader sees the old one or the new one, never a half.
    pub(crate) fn write_state(&self, state: &State) -> io::Result<()> {
        let Some(path) = &self.state_file else { return Ok(()) };
        let mut text = serde_json::to_string_pretty(state)?;
        text.push('\n');
        let new = path.with_extension("json.new");
        fs::write(&new, text)?;
        fs::rename(&new, path)
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        if self.temporary {
            let _ = fs::remove_dir_all(&self.path);
        }
    }
}

/// Makes a folder and those above it.
pub(crate) fn make(path: &Path) -> Result<(), Trouble> {
    fs::create_dir_all(path).map_err(|error| cannot_make(path, &error))
}

pub(crate) fn cannot_make(path: &Path, error: &io::Error) -> Trouble {
    Trouble::work(format!(
        "cannot create {}: {error}; make room there or give another --log-dir",
        path.display()
    ))
}

/// A rank may change its working directory before it writes its error file.
fn absolute(log_dir: &Path) -> Result<PathBuf, Trouble> {
    std::path::absolute(log_dir).map_err(|error| unusable(log_dir, &error))
}

fn unusable(log_dir: &Path, error: &io::Error) -> Trouble {
    Trouble::work(format!(
        "the log directory {} cannot be used: {error}; give another --log-dir, or make room there",
        log_dir.display()
    ))
}

/// Content of `run.json`.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct State {
    pub run_id: String,
    pub command: String,
    pub host: String,
    pub launcher_pid: u32,
    pub status: Status,
    pub world_size: usize,
    pub restarts: usize,
    pub max_restarts: usize,
    pub started_unix_s: u64,
    pub changed_unix_s: u64,
    pub exit_code: Option<u8>,
    /// Root causes of the attempts that failed, oldest first.
    pub root_causes: Vec<Cause>,
}

/// A root cause, for readers of `run.json`.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Cause {
    pub restart: usize,
    pub rank: usize,
    pub host: String,
    pub pid: i32,
    pub how: How,
    pub unix_s: f64,
    /// Time from the start of the attempt.
    pub after_s: f64,
    pub message: Option<String>,
    pub last_lines: Vec<String>,
}

impl Cause {
    pub(crate) fn new(failure: &Failure, restart: usize) -> Self {
        let at = SystemTime::now().checked_sub(failure.age).unwrap_or(UNIX_EPOCH);
        Self {
            restart,
            rank: failure.rank,
            host: failure.host.clone(),
            pid: failure.pid,
            how: failure.how.clone(),
            unix_s: at.duration_since(UNIX_EPOCH).unwrap_or_default().as_secs_f64(),
            after_s: failure.after.as_secs_f64(),
            message: failure.message.clone(),
            last_lines: failure.last_lines.clone(),
        }
    }
}

/// What a run is doing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Status {
    Waiting,
    Running,
    Restarting,
    Succeeded,
    Failed,
    Ended,
}

/// Seconds since 1970.
pub(crate) fn unix_now_s() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_used_name_gets_a_number() {
        let log_dir = tempfile::tempdir().unwrap();
        let names: Vec<_> =
            (0..3).map(|_| Folder::create(log_dir.path(), "a/b").unwrap().name()).collect();
        assert_eq!(names, ["a_b", "a_b-1", "a_b-2"]);
    }

    #[test]
    fn a_log_directory_that_cannot_be_made_is_named() {
        let error = Folder::create(Path::new("/proc/no/such"), "x").err().unwrap();
        assert!(error.text.contains("/proc/no/such cannot be used"), "{error}");
    }

    #[test]
    fn temporary_folders_go() {
        let folder = Folder::temporary(false).unwrap();
        let path = folder.path().to_owned();
        assert!(path.is_dir());
        drop(folder);
        assert!(!path.exists());
    }
}
