//! `pip install torch`, with progress that also shows in a log file, and errors in plain words.

use std::fs::{self, File};
use std::io::{BufRead, BufReader, IsTerminal, Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow};
use indicatif::{ProgressBar, ProgressStyle};

use super::TORCH;

/// Without a terminal a line is printed this often, so that a log shows that it moves.
const REPORT_EVERY: Duration = Duration::from_secs(15);

pub(crate) fn log_file(home: &Path) -> PathBuf {
    home.join("pip.log")
}

/// Installs torch with the given interpreter; wheels are unpacked beside the environment, because
/// the system's temporary folder is often a small disk in memory.
pub(crate) fn install_torch(home: &Path, interpreter: &Path) -> Result<()> {
    eprintln!(
        "fetching torch {TORCH} from the Python package index, once for all clones: a download of \
         about 2.8 GB that takes 4.7 GB of disk with its CUDA parts\n  into {}",
        home.display()
    );
    let scratch = home.join("wheels");
    let _ = fs::remove_dir_all(&scratch);
    fs::create_dir_all(&scratch).with_context(|| format!("cannot make `{}`", scratch.display()))?;
    let outcome = run_pip(home, interpreter, &scratch);
    let _ = fs::remove_dir_all(&scratch);
    outcome
}

fn run_pip(home: &Path, interpreter: &Path, scratch: &Path) -> Result<()> {
    let log = log_file(home);
    let file = File::create(&log).with_context(|| format!("cannot write `{}`", log.display()))?;
    let mut pip = Command::new(interpreter)
        .args(["-m", "pip", "install", "--no-cache-dir", "--progress-bar", "off"])
        .args(["--disable-pip-version-check", "--no-input"])
        .arg(format!("torch=={TORCH}"))
        // Newer releases of pip go on with a broken download; older ones ignore the variable.
        .env("PIP_RESUME_RETRIES", "10")
        .env("TMPDIR", scratch)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .with_context(|| format!("cannot start `{}`", interpreter.display()))?;
    let transcript = Transcript::new(file);
    let readers = [
        pip.stdout.take().map(|out| transcript.follow(out)),
        pip.stderr.take().map(|err| transcript.follow(err)),
    ];
    let success = watch(&mut pip, home, scratch, &transcript)?;
    for reader in readers.into_iter().flatten() {
        let _ = reader.join();
    }
    if success {
        return Ok(());
    }
    Err(explain(&transcript.text(), &log))
}

/// What pip says, kept for the explanation of a failure and written to the log as it comes.
#[derive(Clone)]
struct Transcript {
    inner: Arc<Mutex<(String, File)>>,
}

impl Transcript {
    fn new(log: File) -> Transcript {
        Transcript { inner: Arc::new(Mutex::new((String::new(), log))) }
    }

    fn follow(&self, stream: impl Read + Send + 'static) -> thread::JoinHandle<()> {
        let transcript = self.clone();
        thread::spawn(move || {
            for line in BufReader::new(stream).split(b'\n').map_while(Result::ok) {
                transcript.push(&String::from_utf8_lossy(&line));
            }
        })
    }

    fn push(&self, line: &str) {
        if let Ok(mut inner) = self.inner.lock() {
            inner.0.push_str(line);
            inner.0.push('\n');
            // A full disk is reported by pip itself.
            let _ = writeln!(inner.1, "{line}");
        }
    }

    fn text(&self) -> String {
        self.inner.lock().map(|inner| inner.0.clone()).unwrap_or_default()
    }

    /// The step that pip is at: the file that it downloads, or the unpacking of all of them.
    fn step(&self) -> String {
        let text = self.text();
        for line in text.lines().rev().map(str::trim) {
            if line.starts_with("Installing collected packages") {
                return "unpacking".to_owned();
            }
            if let Some(file) = line.strip_prefix("Downloading ") {
                let name = file.rsplit('/').next().unwrap_or(file);
                return format!("downloading {}", name.split('-').next().unwrap_or(name));
            }
        }
        "asking the index".to_owned()
    }
}

/// Waits for pip and shows how far it is. Whether it succeeded.
fn watch(pip: &mut Child, home: &Path, scratch: &Path, transcript: &Transcript) -> Result<bool> {
    let bar = ProgressBar::new_spinner();
    bar.set_style(ProgressStyle::with_template("{spinner} {elapsed_precise} {msg}")?);
    let began = Instant::now();
    let mut next_report = REPORT_EVERY;
    loop {
        if let Some(status) = pip.try_wait().context("cannot wait for pip")? {
            bar.finish_and_clear();
            return Ok(status.success());
        }
        let step = transcript.step();
        let folder = if step == "unpacking" { home.join("venv") } else { scratch.to_path_buf() };
        let message = format!("{step}: {:.2} GB so far", size_of(&folder) as f64 / 1e9);
        bar.set_message(message.clone());
        bar.tick();
        if !std::io::stderr().is_terminal() && began.elapsed() >= next_report {
            eprintln!("  {:>4} s  {message}", began.elapsed().as_secs());
            next_report += REPORT_EVERY;
        }
        thread::sleep(Duration::from_millis(300));
    }
}

/// Bytes of all files below; files that vanish meanwhile count as nothing.
fn size_of(folder: &Path) -> u64 {
    let Ok(entries) = fs::read_dir(folder) else { return 0 };
    entries
        .filter_map(Result::ok)
        .filter_map(|entry| entry.metadata().ok().map(|metadata| (entry.path(), metadata)))
        .map(|(path, data)| if data.is_dir() { size_of(&path) } else { data.len() })
        .sum()
}

/// Words of pip that mean the network.
const NETWORK: [&str; 13] = [
    "(from versions: none)",
    "Failed to establish a new connection",
    "Temporary failure in name resolution",
    "Name or service not known",
    "Network is unreachable",
    "Connection refused",
    "Connection reset",
    "ConnectTimeoutError",
    "ReadTimeoutError",
    "ProxyError",
    "SSLError",
    "IncompleteRead",
    "Max retries exceeded",
];

fn explain(text: &str, log: &Path) -> anyhow::Error {
    let log = log.display();
    if text.contains("No space left on device") || text.contains("Errno 28") {
        return anyhow!(
            "the disk is full: torch needs 7.5 GB while it installs\n  make room, or set \
             XDG_CACHE_HOME to a folder on another disk; pip's log is `{log}`"
        );
    }
    if NETWORK.iter().any(|words| text.contains(words)) {
        return anyhow!(
            "the Python package index cannot be reached, or knows no torch at all\n  check the \
             network (behind a proxy: https_proxy; with a mirror: PIP_INDEX_URL) and run `cargo x \
             setup` again, or unpack libtorch {TORCH} yourself and set LIBTORCH to it; pip's log \
             is `{log}`"
        );
    }
    if text.contains("No matching distribution found") {
        return anyhow!(
            "there is no torch {TORCH} for this Python and machine\n  use Python 3.10 to 3.14 on \
             Linux (x86-64, aarch64) or macOS (arm64), or unpack libtorch {TORCH} yourself and set \
             LIBTORCH to it; pip's log is `{log}`"
        );
    }
    let tail: Vec<&str> = text.lines().rev().take(8).collect();
    let tail: Vec<&str> = tail.into_iter().rev().collect();
    anyhow!("pip failed; the end of its log `{log}`:\n{}", tail.join("\n"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn explains(pip_says: &str, words: &str) {
        let message = explain(pip_says, Path::new("pip.log")).to_string();
        assert!(message.contains(words), "{message}");
    }

    #[test]
    fn failures_of_pip_are_told_in_plain_words() {
        explains(
            "ERROR: Could not install packages due to an OSError: [Errno 28] No space left on \
             device",
            "the disk is full",
        );
        explains(
            "WARNING: Retrying after connection broken by 'NewConnectionError(': Failed to \
             establish a new connection: [Errno -3] Temporary failure in name resolution')'\n\
             ERROR: No matching distribution found for torch==2.13.0",
            "cannot be reached",
        );
        explains(
            "ERROR: Could not find a version that satisfies the requirement torch==2.13.0 (from \
             versions: 1.13.1, 2.0.0)\nERROR: No matching distribution found for torch==2.13.0",
            "no torch 2.13.0 for this Python and machine",
        );
        explains("one\ntwo\nERROR: something new", "two\nERROR: something new");
    }

    #[test]
    fn step_is_the_last_that_pip_named() {
        let log = std::env::temp_dir().join(format!("ddp-lint-step-{}", std::process::id()));
        let transcript = Transcript::new(File::create(&log).unwrap());
        assert_eq!(transcript.step(), "asking the index");
        transcript.push("Collecting torch==2.13.0");
        transcript.push("  Downloading https://index/ab/torch-2.13.0-cp311-x86_64.whl (526.6 MB)");
        assert_eq!(transcript.step(), "downloading torch");
        transcript.push("Installing collected packages: mpmath, torch");
        assert_eq!(transcript.step(), "unpacking");
        fs::remove_file(log).unwrap();
    }
}
