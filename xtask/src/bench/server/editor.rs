//! A small editor that asks for diagnostics after each keystroke and takes the time.

use std::collections::{BTreeMap, BTreeSet};
use std::io::{BufRead, BufReader, Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use serde_json::{Value, json};

use super::typing::Range;

pub(super) struct Editor {
    server: Child,
    input: ChildStdin,
    output: BufReader<ChildStdout>,
    root: PathBuf,
    n_requests: u64,
    n_changes: i64,
    open: BTreeSet<String>,
}

impl Editor {
    pub(super) fn start(program: &Path, root: &Path) -> Result<Self> {
        let mut server = Command::new(program)
            .arg("server")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .with_context(|| format!("cannot start {}", program.display()))?;
        let input = server.stdin.take().context("its input cannot be written")?;
        let output = server.stdout.take().context("its output cannot be read")?;
        let mut editor = Self {
            server,
            input,
            output: BufReader::new(output),
            root: root.to_owned(),
            n_requests: 0,
            n_changes: 1,
            open: BTreeSet::new(),
        };
        let folder = json!([{ "uri": editor.uri(""), "name": "workspace" }]);
        editor.request(
            "initialize",
            &json!({
                "processId": null,
                "workspaceFolders": folder,
                "capabilities": {
                    "general": { "positionEncodings": ["utf-32"] },
                    "textDocument": { "diagnostic": {} },
                },
            }),
        )?;
        editor.notify("initialized", &json!({}))?;
        Ok(editor)
    }

    /// Takes leave in due form.
    pub(super) fn leave(mut self) -> Result<()> {
        self.request("shutdown", &Value::Null)?;
        self.notify("exit", &Value::Null)?;
        let status = self.server.wait().context("the server does not end")?;
        if !status.success() {
            bail!("the server ended with {status}");
        }
        Ok(())
    }

    /// All diagnostics, by path.
    pub(super) fn workspace_diagnostics(&mut self) -> Result<BTreeMap<String, Vec<Value>>> {
        let answer = self.request("workspace/diagnostic", &json!({ "previousResultIds": [] }))?;
        let root = self.uri("");
        let reports = answer["items"].as_array().context("no reports")?;
        let report = |report: &Value| {
            let path = report["uri"].as_str()?.strip_prefix(&root)?.to_owned();
            Some((path, report["items"].as_array()?.clone()))
        };
        reports.iter().map(|one| report(one).context("a report without a list")).collect()
    }

    /// Opens a document if it is not open.
    pub(super) fn open(&mut self, path: &str, text: &str) -> Result<()> {
        if !self.open.insert(path.to_owned()) {
            return Ok(());
        }
        let is_rust = Path::new(path).extension().is_some_and(|ending| ending == "rs");
        let language = if is_rust { "rust" } else { "python" };
        let document =
            json!({ "uri": self.uri(path), "languageId": language, "version": 1, "text": text });
        self.notify("textDocument/didOpen", &json!({ "textDocument": document }))?;
        // The time of opening is not that of the next keystroke.
        self.diagnostics(path)
    }

    /// Replaces a range; the time until the document's diagnostics are there.
    pub(super) fn change(&mut self, path: &str, range: &Range, text: &str) -> Result<Duration> {
        self.n_changes += 1;
        let place =
            |(line, character): (usize, usize)| json!({ "line": line, "character": character });
        let change = json!({
            "range": { "start": place(range.start), "end": place(range.end) },
            "text": text,
        });
        let document = json!({ "uri": self.uri(path), "version": self.n_changes });
        let start = Instant::now();
        self.notify(
            "textDocument/didChange",
            &json!({ "textDocument": document, "contentChanges": [change] }),
        )?;
        self.diagnostics(path)?;
        Ok(start.elapsed())
    }

    fn diagnostics(&mut self, path: &str) -> Result<()> {
        let params = json!({ "textDocument": { "uri": self.uri(path) } });
        self.request("textDocument/diagnostic", &params).map(|_| ())
    }

    /// What the server held at most, where the system tells.
    pub(super) fn peak_memory_mib(&self) -> Option<f64> {
        let status = format!("/proc/{}/status", self.server.id());
        let status = std::fs::read_to_string(status).ok()?;
        let line = status.lines().find(|line| line.starts_with("VmHWM:"))?;
        let kib: f64 = line.split_whitespace().nth(1)?.parse().ok()?;
        Some(kib / 1024.0)
    }

    fn uri(&self, path: &str) -> String {
        format!("file://{}/{path}", self.root.display())
    }

    fn notify(&mut self, method: &str, params: &Value) -> Result<()> {
        self.send(&json!({ "jsonrpc": "2.0", "method": method, "params": params }))
    }

    fn request(&mut self, method: &str, params: &Value) -> Result<Value> {
        self.n_requests += 1;
        let id = self.n_requests;
        self.send(&json!({ "jsonrpc": "2.0", "id": id, "method": method, "params": params }))?;
        loop {
            let message = self.receive()?;
            if message["id"] != id || message.get("method").is_some() {
                continue;
            }
            if let Some(error) = message.get("error") {
                bail!("`{method}` failed: {error}");
            }
            return Ok(message["result"].clone());
        }
    }

    fn send(&mut self, message: &Value) -> Result<()> {
        let body = message.to_string();
        write!(self.input, "Content-Length: {}\r\n\r\n{body}", body.len())
            .and_then(|()| self.input.flush())
            .context("the server does not listen")
    }

    fn receive(&mut self) -> Result<Value> {
        let mut length = 0;
        loop {
            let mut line = String::new();
            if self.output.read_line(&mut line).context("the server cannot be read")? == 0 {
                bail!("the server is gone");
            }
            if let Some(number) = line.strip_prefix("Content-Length: ") {
                length = number.trim().parse().context("a length that is no number")?;
            } else if line == "\r\n" {
                break;
            }
        }
        let mut body = vec![0; length];
        self.output.read_exact(&mut body).context("the server is gone")?;
        serde_json::from_slice(&body).context("the server does not speak JSON")
    }
}
