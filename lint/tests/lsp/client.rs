//! A small editor: starts the server, sends messages, waits for answers.

use std::collections::HashMap;
use std::io::{BufReader, Write as _};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{self, Receiver};
use std::time::{Duration, Instant};

use serde_json::{Value, json};

/// Longer waits are a hang.
const PATIENCE: Duration = Duration::from_mins(5);

pub(crate) struct Client {
    server: Child,
    input: ChildStdin,
    output: Receiver<Value>,
    n_requests: i64,
    /// What was published last, by URI.
    pub(crate) published: HashMap<String, Vec<Value>>,
    /// Requests of the server that were seen.
    pub(crate) asked: Vec<Value>,
    /// Messages to the user.
    pub(crate) shown: Vec<String>,
    folder: tempfile::TempDir,
}

impl Client {
    /// A server that was started in a folder with these files, and initialised.
    pub(crate) fn new(files: &[(&str, &str)], capabilities: &Value) -> Self {
        Self::with_options(files, capabilities, &Value::Null)
    }

    pub(crate) fn with_options(
        files: &[(&str, &str)],
        capabilities: &Value,
        options: &Value,
    ) -> Self {
        let mut client = Self::started(files);
        let folder = client.folder.path().to_owned();
        let result = client.request(
            "initialize",
            &json!({
                "processId": null,
                "capabilities": capabilities,
                "initializationOptions": options,
                "workspaceFolders": [{ "uri": uri(&folder), "name": "scratch" }],
            }),
        );
        assert_eq!(result["serverInfo"]["name"], "ddp-lint");
        client.notify("initialized", &json!({}));
        client
    }

    /// A server that nothing was sent to.
    pub(crate) fn started(files: &[(&str, &str)]) -> Self {
        let folder = tempfile::tempdir().expect("a scratch folder");
        std::fs::write(folder.path().join("setup.py"), "").expect("a file");
        for (path, text) in files {
            let path = folder.path().join(path);
            std::fs::create_dir_all(path.parent().expect("a folder")).expect("a folder");
            std::fs::write(path, text).expect("a file");
        }
        let mut server = Command::new(env!("CARGO_BIN_EXE_ddp-lint"))
            .arg("server")
            .env("XDG_CACHE_HOME", folder.path().join(".cache"))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("the server starts");
        let input = server.stdin.take().expect("piped");
        let stdout = server.stdout.take().expect("piped");
        let (sender, output) = mpsc::channel();
        std::thread::spawn(move || {
            let mut stdout = BufReader::new(stdout);
            while let Some(message) = read(&mut stdout) {
                if sender.send(message).is_err() {
                    return;
                }
            }
        });
        Self {
            server,
            input,
            output,
            n_requests: 0,
            published: HashMap::new(),
            asked: Vec::new(),
            shown: Vec::new(),
            folder,
        }
    }

    pub(crate) fn path(&self, path: &str) -> PathBuf {
        self.folder.path().join(path)
    }

    pub(crate) fn uri(&self, path: &str) -> String {
        uri(&self.path(path))
    }

    pub(crate) fn process(&self) -> u32 {
        self.server.id()
    }

    pub(crate) fn send_bytes(&mut self, bytes: &[u8]) {
        self.input.write_all(bytes).expect("the server reads");
    }

    pub(crate) fn send(&mut self, message: &Value) {
        self.send_bytes(framed(message).as_bytes());
    }

    pub(crate) fn notify(&mut self, method: &str, params: &Value) {
        self.send(&json!({ "jsonrpc": "2.0", "method": method, "params": params }));
    }

    /// Sends a request without waiting; gives its id.
    pub(crate) fn ask(&mut self, method: &str, params: &Value) -> i64 {
        self.n_requests += 1;
        let id = self.n_requests;
        self.send(&json!({ "jsonrpc": "2.0", "id": id, "method": method, "params": params }));
        id
    }

    /// The result of a request; what comes in between is taken note of.
    #[track_caller]
    pub(crate) fn request(&mut self, method: &str, params: &Value) -> Value {
        let answer = self.answer(method, params);
        assert!(answer.get("error").is_none(), "{method}: {answer}");
        answer["result"].clone()
    }

    /// The error code of a request that must fail.
    #[track_caller]
    pub(crate) fn refusal(&mut self, method: &str, params: &Value) -> i64 {
        let answer = self.answer(method, params);
        answer["error"]["code"].as_i64().unwrap_or_else(|| panic!("{method}: {answer}"))
    }

    #[track_caller]
    fn answer(&mut self, method: &str, params: &Value) -> Value {
        let id = self.ask(method, params);
        self.answer_to(id)
    }

    #[track_caller]
    pub(crate) fn answer_to(&mut self, id: i64) -> Value {
        let start = Instant::now();
        loop {
            let message = self.next(start);
            if message["id"] == id && message.get("method").is_none() {
                return message;
            }
            self.take(message);
        }
    }

    #[track_caller]
    fn next(&mut self, start: Instant) -> Value {
        self.try_next(start).expect("the server answers in time")
    }

    fn try_next(&mut self, start: Instant) -> Option<Value> {
        self.output.recv_timeout(PATIENCE.saturating_sub(start.elapsed())).ok()
    }

    fn take(&mut self, message: Value) {
        match message["method"].as_str() {
            Some("textDocument/publishDiagnostics") => {
                let params = &message["params"];
                let uri = params["uri"].as_str().expect("a URI").to_owned();
                let list = params["diagnostics"].as_array().expect("a list").clone();
                self.published.insert(uri, list);
            }
            Some("window/showMessage") => {
                self.shown.push(message["params"]["message"].to_string());
            }
            Some(_) if message.get("id").is_some() => {
                let reply = json!({ "jsonrpc": "2.0", "id": message["id"], "result": null });
                self.send(&reply);
                self.asked.push(message);
            }
            _ => {}
        }
    }

    /// Waits until the diagnostics published for a file satisfy a condition.
    #[track_caller]
    pub(crate) fn wait_for(&mut self, path: &str, is_met: impl Fn(&[Value]) -> bool) -> Vec<Value> {
        let uri = self.uri(path);
        let start = Instant::now();
        loop {
            let list = self.published.get(&uri).cloned().unwrap_or_default();
            if is_met(&list) {
                return list;
            }
            match self.try_next(start) {
                Some(message) => self.take(message),
                None => panic!("{path} has {list:#?}"),
            }
        }
    }

    /// Waits until exactly these rules are published for a file.
    #[track_caller]
    pub(crate) fn wait_for_rules(&mut self, path: &str, rules: &[&str]) -> Vec<Value> {
        self.wait_for(path, |list| {
            list.iter().map(|one| one["code"].as_str().unwrap_or("")).eq(rules.iter().copied())
        })
    }

    /// Takes note of everything that the server had to say about what was sent so far.
    pub(crate) fn settle(&mut self) {
        // News are told before the next message is waited for; two answers prove it.
        for _ in 0..2 {
            let params = json!({ "textDocument": { "uri": "untitled:x" },
                                 "position": { "line": 0, "character": 0 } });
            self.request("textDocument/hover", &params);
        }
    }

    pub(crate) fn open(&mut self, path: &str, text: &str) {
        let document =
            json!({ "uri": self.uri(path), "languageId": "x", "version": 1, "text": text });
        self.notify("textDocument/didOpen", &json!({ "textDocument": document }));
    }

    /// Replaces the whole text.
    pub(crate) fn replace(&mut self, path: &str, version: i32, text: &str) {
        self.change(path, version, &json!([{ "text": text }]));
    }

    pub(crate) fn change(&mut self, path: &str, version: i32, changes: &Value) {
        let document = json!({ "uri": self.uri(path), "version": version });
        let params = json!({ "textDocument": document, "contentChanges": changes });
        self.notify("textDocument/didChange", &params);
    }

    pub(crate) fn close(&mut self, path: &str) {
        let document = json!({ "uri": self.uri(path) });
        self.notify("textDocument/didClose", &json!({ "textDocument": document }));
    }

    /// All code actions for a range of one file.
    #[track_caller]
    pub(crate) fn actions(&mut self, path: &str, range: &Value, only: &Value) -> Vec<Value> {
        let mut context = json!({ "diagnostics": [] });
        if !only.is_null() {
            context["only"] = only.clone();
        }
        let document = json!({ "uri": self.uri(path) });
        let params = json!({ "textDocument": document, "range": range, "context": context });
        let result = self.request("textDocument/codeAction", &params);
        result.as_array().expect("a list").clone()
    }

    /// Takes leave in due form; the exit status.
    #[track_caller]
    pub(crate) fn leave(mut self) -> i32 {
        self.request("shutdown", &Value::Null);
        self.notify("exit", &Value::Null);
        self.ended()
    }

    #[track_caller]
    pub(crate) fn ended(mut self) -> i32 {
        let start = Instant::now();
        while start.elapsed() < PATIENCE {
            if let Some(status) = self.server.try_wait().expect("a child") {
                return status.code().expect("an exit status");
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        panic!("the server does not end");
    }
}

impl Drop for Client {
    fn drop(&mut self) {
        // It may have ended already.
        let _ = self.server.kill();
        let _ = self.server.wait();
    }
}

/// A message as it goes over the pipe.
pub(crate) fn framed(message: &Value) -> String {
    let body = message.to_string();
    format!("Content-Length: {}\r\n\r\n{body}", body.len())
}

pub(crate) fn uri(path: &Path) -> String {
    format!("file://{}", path.display())
}

fn read(stdout: &mut impl std::io::BufRead) -> Option<Value> {
    let mut length = 0;
    loop {
        let mut line = String::new();
        if stdout.read_line(&mut line).ok()? == 0 {
            return None;
        }
        if let Some(number) = line.strip_prefix("Content-Length: ") {
            length = number.trim().parse().ok()?;
        } else if line == "\r\n" {
            break;
        }
    }
    let mut body = vec![0; length];
    stdout.read_exact(&mut body).ok()?;
    serde_json::from_slice(&body).ok()
}
