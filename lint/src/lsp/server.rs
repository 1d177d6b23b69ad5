//! The loop: one message after another, answers in order.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::io::{BufReader, Read, Write};
use std::path::{Path, PathBuf};

use crossbeam_channel::{Receiver, unbounded};
use lsp_server::{ErrorCode, Message, Notification, Request, RequestId};
use lsp_types::{Diagnostic, InitializeParams};
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use super::capabilities::{self, Client, EXPLAIN};
use super::state::{News, State};
use super::transport::{self, Incoming};
use super::{actions, convert, diagnostics, documentation, hover, notifications};
use crate::crash::catch;
use crate::rules;

/// Serves until the client says so or is gone. True: the client took leave in due form.
pub fn serve(input: impl Read + Send + 'static, output: impl Write) -> bool {
    let (sender, receiver) = unbounded();
    let reader = std::thread::spawn(move || {
        let mut input = BufReader::new(input);
        while let Ok(Some(incoming)) = transport::read(&mut input) {
            if sender.send(incoming).is_err() {
                return;
            }
        }
    });
    let mut server = Server::new(receiver, output);
    server.run();
    // The reader may wait for input that never comes; it ends with the process.
    drop(reader);
    server.phase == Phase::Left
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Phase {
    /// Before `initialize`.
    Start,
    Running,
    /// After `shutdown`.
    Closing,
    /// After `exit` that followed `shutdown`.
    Left,
    Aborted,
}

/// A request that failed: code and words.
pub(super) struct Refusal(pub(super) ErrorCode, pub(super) String);

type Answer = Result<Value, Refusal>;

pub(super) struct Server<W> {
    incoming: Receiver<Incoming>,
    queue: VecDeque<Incoming>,
    output: W,
    phase: Phase,
    pub(super) client: Client,
    pub(super) state: State,
    /// What was published, by path, so that only changes are.
    published: BTreeMap<PathBuf, Vec<Diagnostic>>,
    /// Number of the last request to the client.
    n_asked: i32,
    /// The request that asked for settings.
    pub(super) asked_settings: Option<RequestId>,
}

impl<W: Write> Server<W> {
    fn new(incoming: Receiver<Incoming>, output: W) -> Self {
        Self {
            incoming,
            queue: VecDeque::new(),
            output,
            phase: Phase::Start,
            client: Client::new(&lsp_types::ClientCapabilities::default(), &Value::Null),
            state: State::default(),
            published: BTreeMap::new(),
            n_asked: 0,
            asked_settings: None,
        }
    }

    fn run(&mut self) {
        while !matches!(self.phase, Phase::Left | Phase::Aborted) {
            if self.queue.is_empty() {
                // Nothing more to answer: time to tell what is new.
                self.tell_news();
                match self.incoming.recv() {
                    Ok(incoming) => self.queue.push_back(incoming),
                    Err(_) => return,
                }
            }
            self.queue.extend(self.incoming.try_iter());
            if let Some(incoming) = self.queue.pop_front() {
                self.serve(incoming);
            }
        }
    }

    fn serve(&mut self, incoming: Incoming) {
        match incoming {
            Incoming::NoJson(why) => {
                self.refuse_unread(&Value::Null, ErrorCode::ParseError, &why);
            }
            Incoming::NoMessage(id) => {
                self.refuse_unread(&id, ErrorCode::InvalidRequest, "this is no message");
            }
            Incoming::Message(message) => match *message {
                Message::Request(request) => self.answer(request),
                Message::Notification(notification) => self.note(notification),
                Message::Response(response) => {
                    if self.asked_settings.as_ref() == Some(&response.id) {
                        self.asked_settings = None;
                        let settings = response.response_result.unwrap_or_default();
                        self.take_settings(&settings[0]);
                    }
                }
            },
        }
    }

    fn refuse_unread(&mut self, id: &Value, code: ErrorCode, why: &str) {
        let error = json!({ "code": code as i32, "message": why });
        self.send(&json!({ "jsonrpc": "2.0", "id": id, "error": error }));
    }

    fn answer(&mut self, request: Request) {
        let Request { id, method, params } = request;
        let answer = if self.is_cancelled(&id) {
            Err(Refusal(ErrorCode::RequestCanceled, "the client took the request back".into()))
        } else {
            let doing = || format!("the request `{method}`");
            match catch(doing, || self.answer_to(&method, params)) {
                Ok(answer) => answer,
                Err(crash) => {
                    // What was half done is done again.
                    self.state.invalidate();
                    Err(Refusal(ErrorCode::InternalError, crash.to_string()))
                }
            }
        };
        let message = match answer {
            Ok(result) => json!({ "jsonrpc": "2.0", "id": id, "result": result }),
            Err(Refusal(code, why)) => {
                let error = json!({ "code": code as i32, "message": why });
                json!({ "jsonrpc": "2.0", "id": id, "error": error })
            }
        };
        self.send(&message);
    }

    /// A cancellation of the request has come in behind it.
    fn is_cancelled(&mut self, id: &RequestId) -> bool {
        self.queue.extend(self.incoming.try_iter());
        let id = json!(id);
        self.queue.iter().any(|incoming| match incoming {
            Incoming::Message(message) => matches!(&**message, Message::Notification(n)
                if n.method == "$/cancelRequest" && n.params["id"] == id),
            _ => false,
        })
    }

    fn answer_to(&mut self, method: &str, params: Value) -> Answer {
        match (self.phase, method) {
            (Phase::Start, "initialize") => self.initialize(params),
            (Phase::Start, _) => {
                Err(Refusal(ErrorCode::ServerNotInitialized, "send `initialize` first".into()))
            }
            (Phase::Running, "shutdown") => {
                self.phase = Phase::Closing;
                Ok(Value::Null)
            }
            (Phase::Running, _) => self.answer_running(method, params),
            _ => Err(Refusal(ErrorCode::InvalidRequest, "the server is shutting down".into())),
        }
    }

    fn initialize(&mut self, params: Value) -> Answer {
        let sent = params["capabilities"].clone();
        let params: InitializeParams = parsed(params)?;
        self.client = Client::new(&params.capabilities, &sent);
        self.phase = Phase::Running;
        let folders = params.workspace_folders.unwrap_or_default();
        let folders = folders.iter().filter_map(|folder| convert::path(&folder.uri));
        self.state.folders = folders.collect();
        #[expect(deprecated, reason = "older clients send nothing else")]
        if let (true, Some(root)) = (self.state.folders.is_empty(), params.root_uri) {
            self.state.folders.extend(convert::path(&root));
        }
        if let Some(options) = params.initialization_options {
            self.take_settings(&options);
        }
        self.state.invalidate();
        Ok(json!({
            "capabilities": capabilities::server(self.client),
            "serverInfo": { "name": "ddp-lint", "version": env!("CARGO_PKG_VERSION") },
        }))
    }

    fn answer_running(&mut self, method: &str, params: Value) -> Answer {
        match method {
            "textDocument/codeAction" => {
                let params: lsp_types::CodeActionParams = parsed(params)?;
                self.state.update();
                let path = convert::path(&params.text_document.uri);
                let view = path.as_deref().and_then(|path| self.state.view(path));
                let actions = view.map(|view| {
                    let documents = &self.state.documents;
                    actions::actions(view, documents, params.range, &params.context, self.client)
                });
                Ok(json!(actions.unwrap_or_default()))
            }
            "textDocument/hover" => {
                let params: lsp_types::HoverParams = parsed(params)?;
                self.state.update();
                let at = params.text_document_position_params;
                let path = convert::path(&at.text_document.uri);
                let view = path.as_deref().and_then(|path| self.state.view(path));
                Ok(json!(view.and_then(|view| hover::hover(view, at.position, self.client))))
            }
            "textDocument/diagnostic" => {
                let params: lsp_types::DocumentDiagnosticParams = parsed(params)?;
                self.state.update();
                let path = convert::path(&params.text_document.uri);
                let items = path.map(|path| self.diagnostics(&path)).unwrap_or_default();
                Ok(report(&items, params.previous_result_id.as_deref()))
            }
            "workspace/diagnostic" => {
                let params: lsp_types::WorkspaceDiagnosticParams = parsed(params)?;
                self.state.update();
                Ok(self.workspace_report(&params))
            }
            "workspace/executeCommand" => {
                let params: lsp_types::ExecuteCommandParams = parsed(params)?;
                self.execute(&params)
            }
            _ => Err(Refusal(ErrorCode::MethodNotFound, format!("no method `{method}`"))),
        }
    }

    fn execute(&mut self, params: &lsp_types::ExecuteCommandParams) -> Answer {
        let wrong = |why: &str| Refusal(ErrorCode::InvalidParams, why.to_owned());
        if params.command != EXPLAIN {
            return Err(wrong("no such command"));
        }
        let name = params.arguments.first().and_then(Value::as_str);
        let rule = name.and_then(rules::find).ok_or_else(|| wrong("no such rule"))?;
        match documentation::uri(rule).filter(|_| self.client.shows_documents) {
            Some(uri) => {
                let params = json!({ "uri": uri, "takeFocus": true });
                self.ask("window/showDocument", &params);
            }
            None => self.notify(
                "window/showMessage",
                &json!({
                    "type": lsp_types::MessageType::INFO,
                    "message": format!("{}: {}", rule.name, rule.summary()),
                }),
            ),
        }
        Ok(Value::Null)
    }

    /// The diagnostics of a file, findings and mistakes in configurations alike.
    fn diagnostics(&self, path: &Path) -> Vec<Diagnostic> {
        if let Some(mistakes) = self.state.mistakes().get(path) {
            return diagnostics::of_mistakes(mistakes, path);
        }
        let view = self.state.view(path);
        let view = view.filter(|view| view.file.reported && !view.is_notebook());
        view.map(|view| diagnostics::of_file(view, self.client)).unwrap_or_default()
    }

    /// The files that have diagnostics.
    fn troubled(&self) -> BTreeSet<PathBuf> {
        let reported = self.state.reported();
        let troubled = reported.filter(|(_, view)| view.findings().next().is_some());
        let troubled = troubled.map(|(path, _)| path.to_owned());
        troubled.chain(self.state.mistakes().keys().cloned()).collect()
    }

    fn workspace_report(&mut self, params: &lsp_types::WorkspaceDiagnosticParams) -> Value {
        let mut known = BTreeMap::new();
        for previous in &params.previous_result_ids {
            known.extend(convert::path(&previous.uri).map(|path| (path, &*previous.value)));
        }
        // Those that the client knows may have become clean.
        let paths: BTreeSet<PathBuf> =
            self.troubled().into_iter().chain(known.keys().cloned()).collect();
        let items = paths.iter().filter_map(|path| {
            let mut report = report(&self.diagnostics(path), known.get(path).copied());
            report["uri"] = json!(convert::uri(path)?);
            report["version"] = json!(self.state.documents.get(path).map(|open| open.version));
            Some(report)
        });
        json!({ "items": items.collect::<Vec<_>>() })
    }

    /// Brings everything up to date and tells the client what is new.
    fn tell_news(&mut self) {
        if self.phase != Phase::Running {
            return;
        }
        if let Err(crash) = catch(|| "checking".to_owned(), || self.state.update()) {
            // What was half done is done again, with the next change.
            self.state.invalidate();
            self.log(&crash.to_string());
        }
        for problem in self.state.take_problems() {
            self.log(&problem);
        }
        let Some(news) = self.state.take_news() else { return };
        if !self.client.pulls {
            self.publish(news);
        } else if self.client.refreshes && news.from_outside {
            // After its own changes a client asks without being told to.
            self.ask("workspace/diagnostic/refresh", &Value::Null);
        }
    }

    fn publish(&mut self, news: News) {
        let mut paths = news.files;
        if news.in_all {
            paths.extend(self.troubled());
            paths.extend(self.published.keys().cloned());
        }
        for path in paths {
            let diagnostics = self.diagnostics(&path);
            let known = self.published.get(&path);
            if known.map_or(diagnostics.is_empty(), |known| *known == diagnostics) {
                continue;
            }
            let Some(uri) = convert::uri(&path) else { continue };
            let version = self.state.documents.get(&path).map(|open| open.version);
            let params = json!({ "uri": uri, "version": version, "diagnostics": diagnostics });
            self.notify("textDocument/publishDiagnostics", &params);
            if diagnostics.is_empty() {
                self.published.remove(&path);
            } else {
                self.published.insert(path, diagnostics);
            }
        }
    }

    fn note(&mut self, notification: Notification) {
        let Notification { method, params } = notification;
        match (self.phase, method.as_str()) {
            (Phase::Closing, "exit") => self.phase = Phase::Left,
            (_, "exit") => self.phase = Phase::Aborted,
            (Phase::Running, _) => {
                let doing = || format!("the notification `{method}`");
                let noted = catch(doing, || notifications::note(self, &method, params));
                if let Err(crash) = noted {
                    self.state.invalidate();
                    self.log(&crash.to_string());
                }
            }
            // Before `initialize` and after `shutdown` notifications are dropped.
            _ => {}
        }
    }

    pub(super) fn take_settings(&mut self, settings: &Value) {
        match super::settings::read(settings) {
            Ok(settings) if settings == self.state.settings => {}
            Ok(settings) => {
                self.state.settings = settings;
                self.state.invalidate();
            }
            Err(why) => self.warn(&format!("ddp-lint: settings are not used: {why}")),
        }
    }

    pub(super) fn warn(&mut self, message: &str) {
        let kind = lsp_types::MessageType::WARNING;
        self.notify("window/showMessage", &json!({ "type": kind, "message": message }));
    }

    pub(super) fn log(&mut self, message: &str) {
        let kind = lsp_types::MessageType::ERROR;
        self.notify("window/logMessage", &json!({ "type": kind, "message": message }));
    }

    pub(super) fn ask(&mut self, method: &str, params: &Value) -> RequestId {
        self.n_asked += 1;
        let mut message = json!({ "jsonrpc": "2.0", "id": self.n_asked, "method": method });
        if !params.is_null() {
            message["params"] = params.clone();
        }
        self.send(&message);
        RequestId::from(self.n_asked)
    }

    fn notify(&mut self, method: &str, params: &Value) {
        self.send(&json!({ "jsonrpc": "2.0", "method": method, "params": params }));
    }

    fn send(&mut self, message: &Value) {
        if transport::write(&mut self.output, message).is_err() {
            // Nobody listens any more.
            self.phase = Phase::Aborted;
        }
    }
}

/// The diagnostics of a file, or that they are those the client has.
fn report(items: &[Diagnostic], previous: Option<&str>) -> Value {
    let items = json!(items);
    let id = fingerprint(&items.to_string());
    if previous == Some(&*id) {
        json!({ "kind": "unchanged", "resultId": id })
    } else {
        json!({ "kind": "full", "resultId": id, "items": items })
    }
}

fn fingerprint(text: &str) -> String {
    use std::hash::{Hash as _, Hasher as _};
    let mut hasher = rustc_hash::FxHasher::default();
    text.hash(&mut hasher);
    format!("{:016x}", hasher.finish())
}

pub(super) fn parsed<T: DeserializeOwned>(params: Value) -> Result<T, Refusal> {
    serde_json::from_value(params)
        .map_err(|error| Refusal(ErrorCode::InvalidParams, error.to_string()))
}
