//! The live view, seen through a terminal emulator.

use std::io::{Read, Write};
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use ddp_tests::binaries;
use ddp_tests::launch::{Launcher, kill, shell};

const ROWS: u16 = 24;
const COLUMNS: u16 = 70;

/// A launcher whose standard streams are a terminal.
struct OnTerminal {
    child: Child,
    bytes: Arc<Mutex<Vec<u8>>>,
}

impl OnTerminal {
    fn start(args: &str, script: &str) -> Self {
        // Python's `pty` is a terminal that passes on all that is shown on it.
        let pty = "import os, pty, sys; \
                   sys.exit(os.waitstatus_to_exitcode(pty.spawn(sys.argv[1:])))";
        let size = format!("stty rows {ROWS} cols {COLUMNS}; exec \"$@\"");
        let mut command = Command::new("python3");
        command.args(["-c", pty, "sh", "-c", &size, "sh"]);
        command.arg(binaries::ddp_run()).args(args.split_whitespace());
        command.args(["--", "sh", "-c", script]).env("TERM", "xterm");
        let mut launcher = Launcher::new(&command);
        let mut child = launcher.command.stdin(Stdio::piped()).spawn().unwrap();
        let bytes = Arc::new(Mutex::new(Vec::new()));
        let (mut out, kept) = (child.stdout.take().unwrap(), Arc::clone(&bytes));
        thread::spawn(move || {
            let mut chunk = [0; 4096];
            while let Ok(count @ 1..) = out.read(&mut chunk) {
                kept.lock().unwrap().extend_from_slice(&chunk[..count]);
            }
        });
        Self { child, bytes }
    }

    /// What the terminal shows now.
    fn screen(&self) -> String {
        let mut parser = vt100::Parser::new(ROWS, COLUMNS, 0);
        parser.process(&self.bytes.lock().unwrap());
        parser.screen().contents()
    }

    #[track_caller]
    fn until(&self, is_so: impl Fn(&str) -> bool) -> String {
        let end = Instant::now() + Duration::from_secs(10);
        loop {
            let screen = self.screen();
            if is_so(&screen) {
                return screen;
            }
            assert!(Instant::now() < end, "after 10 s the terminal shows:\n{screen}");
            thread::sleep(Duration::from_millis(20));
        }
    }

    fn wait(mut self) -> (i32, String) {
        let code = self.child.wait().unwrap().code().unwrap();
        thread::sleep(Duration::from_millis(100));
        (code, self.screen())
    }
}

#[test]
fn a_terminal_shows_the_ranks_below_their_lines() {
    let folder = tempfile::tempdir().unwrap();
    let go = folder.path().join("go");
    let script = format!(
        "echo first line of $RANK; printf '\\033[1mstep %s\\033[0m of überlang %0100d\\n' $RANK 0; \
         [ $RANK = 1 ] && exit 0; while [ ! -e {} ]; do sleep 0.05; done",
        go.display()
    );
    let launcher = OnTerminal::start("-n 3 --max-restarts 2 --rdzv-id demo", &script);
    let screen = launcher.until(|screen| {
        screen.contains("2 running, 1 done") && screen.matches("step").count() == 6
    });
    assert!(screen.contains("── demo · 2 running, 1 done · restarts 0/2 · 0:00:0"), "{screen}");
    let rows: Vec<_> = screen.lines().collect();
    let table = &rows[rows.iter().position(|row| row.starts_with("──")).unwrap() + 1..];
    assert_eq!(table.len(), 3, "{screen}");
    assert!(table[0].starts_with("    0  running        step 0 of überlang 000"), "{screen}");
    assert!(table[1].starts_with("    1  done           step 1"), "{screen}");
    assert!(screen.contains("[rank 2] first line of 2\n"), "{screen}");
    std::fs::write(go, "").unwrap();
    let (code, screen) = launcher.wait();
    assert_eq!(code, 0);
    assert!(!screen.contains("──"), "the table is gone at the end:\n{screen}");
    assert!(screen.contains("[rank 2] first line of 2\n"), "{screen}");
}

#[test]
fn many_ranks_leave_room_for_lines_and_show_what_needs_a_look() {
    let script = "[ $RANK = 17 ] && exit 0; [ $RANK = 23 ] && kill -STOP $$; exec sleep 60";
    let mut launcher = OnTerminal::start("-n 30 --shutdown-timeout 2", script);
    let screen = launcher
        .until(|screen| screen.contains("23  stopped") && screen.contains("28 running, 1 done"));
    assert!(screen.contains("and 20 more ranks"), "{screen}");
    assert!(!screen.contains("17  done"), "{screen}");
    let python = launcher.child.id();
    let children = std::fs::read_to_string(format!("/proc/{python}/task/{python}/children"));
    kill("TERM", children.unwrap().trim().parse().unwrap());
    assert_eq!(launcher.child.wait().unwrap().code(), Some(143));
}

#[test]
fn a_progress_bar_is_one_row() {
    let script = "for i in 1 2 3 4 5; do printf '\\r%s0%% done' $i; sleep 0.1; done; sleep 0.3; \
                  echo; echo all done";
    let launcher = OnTerminal::start("-n 1", script);
    launcher.until(|screen| screen.contains("    0  running        40% done"));
    let (_, screen) = launcher.wait();
    assert_eq!(screen.matches("% done").count(), 1, "{screen}");
    assert!(screen.contains("[rank 0] 50% done\n[rank 0] all done"), "{screen}");
}

#[test]
fn ctrl_c_ends_the_run() {
    let mut launcher = OnTerminal::start("-n 2", "exec sleep 60");
    launcher.until(|screen| screen.contains("2 running, 0 done"));
    launcher.child.stdin.take().unwrap().write_all(b"\x03").unwrap();
    let (code, screen) = launcher.wait();
    assert_eq!(code, 130);
    assert!(screen.contains("SIGINT: passed on to the ranks"), "{screen}");
}

#[test]
fn no_terminal_means_plain_lines() {
    let ran = shell("-n 1", "echo line").run(5.0);
    assert_eq!((ran.out.as_str(), ran.err.as_str()), ("[rank 0] line\n", ""));
    let ran = shell("-n 1 --view live", "echo line; sleep 0.3").run(5.0);
    assert!(ran.err.contains("running"), "{}", ran.err);
}
