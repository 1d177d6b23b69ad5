//! `--watch`: a run after each change.

use std::io::{BufRead as _, BufReader};
use std::process::{Child, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::Duration;

use crate::support::{FAULT, Scratch};

/// Longer waits are a hang.
const PATIENCE: Duration = Duration::from_mins(5);

/// Ends the program when the test is done with it.
struct Watcher(Child);

impl Drop for Watcher {
    fn drop(&mut self) {
        // It may have ended already.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// What one run printed.
#[track_caller]
fn run(lines: &Receiver<String>) -> Vec<String> {
    let mut printed = Vec::new();
    loop {
        let line = lines.recv_timeout(PATIENCE).expect("a run ends in time");
        let is_last = line.starts_with("checked in ") && line.ends_with(" ms; waiting for changes");
        printed.push(line);
        if is_last {
            return printed;
        }
    }
}

#[test]
fn files_are_checked_again_when_they_change() {
    let scratch = Scratch::new(&[("a.py", "x = 1\n")]);
    let mut command = scratch.command();
    command.args(["check", "--watch", "--output-format", "concise"]);
    let mut watcher = Watcher(command.stdout(Stdio::piped()).spawn().expect("the program starts"));
    let stdout = BufReader::new(watcher.0.stdout.take().expect("piped"));
    let (sender, lines) = channel();
    std::thread::spawn(move || {
        for line in stdout.lines().map_while(Result::ok) {
            if sender.send(line).is_err() {
                return;
            }
        }
    });
    let first = run(&lines);
    assert!(first[0].starts_with("no errors or warnings"), "{first:?}");
    scratch.write("a.py", FAULT);
    let second = run(&lines);
    assert!(second[0].starts_with("a.py:1:"), "{second:?}");
    // What is no source changes nothing; the next run is that after the next change.
    scratch.write("notes.txt", "x");
    scratch.write("sub/b.py", FAULT);
    let third = run(&lines);
    assert!(third.iter().any(|line| line.starts_with("sub/b.py:1:")), "{third:?}");
}
