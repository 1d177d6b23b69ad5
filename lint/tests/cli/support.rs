//! A scratch folder, and the program run in it.

use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use serde_json::Value;

/// A faulty line: its suppression names no rule. Two columns of it are not ASCII.
pub(crate) const FAULT: &str = "é🦀 = 1  # ddp-lint: allow(no-such-rule)\n";
/// What is found in it.
pub(crate) const RULE: &str = "unknown-suppression";
/// A line with a fault that can be mended: the suppression suppresses nothing.
pub(crate) const MENDABLE: &str = "x = 1  # ddp-lint: allow(unknown-suppression)\n";

/// A scratch folder that goes when it is dropped.
pub(crate) struct Scratch {
    folder: tempfile::TempDir,
}

/// What a run left behind.
#[derive(Debug)]
pub(crate) struct Run {
    pub(crate) status: i32,
    pub(crate) stdout: String,
    pub(crate) stderr: String,
}

impl Scratch {
    /// A folder that is the root of a project: what lies above it must not matter.
    pub(crate) fn new(files: &[(&str, &str)]) -> Self {
        let scratch = Self { folder: tempfile::tempdir().expect("a scratch folder") };
        scratch.write("setup.py", "");
        for (path, text) in files {
            scratch.write(path, text);
        }
        scratch
    }

    pub(crate) fn path(&self, path: &str) -> PathBuf {
        self.folder.path().join(path)
    }

    pub(crate) fn write(&self, path: &str, text: impl AsRef<[u8]>) {
        let path = self.path(path);
        std::fs::create_dir_all(path.parent().expect("a file has a folder")).expect("a folder");
        std::fs::write(path, text).expect("a file");
    }

    #[track_caller]
    pub(crate) fn read(&self, path: &str) -> String {
        std::fs::read_to_string(self.path(path)).expect("the file is there and text")
    }

    /// `ddp-lint` with these arguments, in the folder.
    #[track_caller]
    pub(crate) fn run(&self, arguments: &[&str]) -> Run {
        run(self.command().args(arguments), "")
    }

    #[track_caller]
    pub(crate) fn run_with_input(&self, arguments: &[&str], input: &str) -> Run {
        run(self.command().args(arguments), input)
    }

    /// The program, to be run in the folder as nobody's terminal.
    pub(crate) fn command(&self) -> Command {
        self.command_of(Path::new(env!("CARGO_BIN_EXE_ddp-lint")))
    }

    pub(crate) fn command_of(&self, program: &Path) -> Command {
        let mut command = Command::new(program);
        command.current_dir(self.folder.path());
        for name in ["NO_COLOR", "FORCE_COLOR", "CLICOLOR_FORCE", "FORCE_HYPERLINK", "COLUMNS"] {
            command.env_remove(name);
        }
        command
    }

    /// The findings as `--output-format json` prints them.
    #[track_caller]
    pub(crate) fn findings(&self, arguments: &[&str]) -> Vec<Value> {
        let run = self.run(&[&["--output-format", "json"], arguments].concat());
        assert!(matches!(run.status, 0 | 1), "{run:?}");
        match serde_json::from_str(&run.stdout) {
            Ok(Value::Array(findings)) => findings,
            _ => panic!("no JSON array: {run:?}"),
        }
    }

    /// Paths, lines and rules of the findings.
    #[track_caller]
    pub(crate) fn places(&self, arguments: &[&str]) -> Vec<String> {
        let place = |finding: &Value| {
            let text = |key: &str| finding[key].as_str().unwrap_or("?").to_owned();
            format!("{}:{} {}", text("path"), finding["start"]["line"], text("rule"))
        };
        self.findings(arguments).iter().map(place).collect()
    }
}

#[track_caller]
pub(crate) fn run(command: &mut Command, input: &str) -> Run {
    let mut child = command
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("the program starts");
    // Fails when the program reads nothing, which is its right.
    let _ = child.stdin.take().expect("piped").write_all(input.as_bytes());
    let output = child.wait_with_output().expect("the program ends");
    let text = |bytes| String::from_utf8(bytes).expect("the output is UTF-8");
    Run {
        status: output.status.code().expect("an exit status"),
        stdout: text(output.stdout),
        stderr: text(output.stderr),
    }
}
