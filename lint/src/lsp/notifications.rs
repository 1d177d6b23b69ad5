//! What the client tells: documents, files, folders, settings.

use std::io::Write;
use std::path::PathBuf;

use lsp_types::{
    DidChangeConfigurationParams, DidChangeTextDocumentParams, DidChangeWatchedFilesParams,
    DidChangeWorkspaceFoldersParams, DidCloseTextDocumentParams, DidOpenTextDocumentParams, Uri,
};
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use super::convert;
use super::server::Server;

/// Files whose changes matter.
const WATCHED: [&str; 7] = [
    "**/*.{py,pyi,ipynb,rs}",
    "**/{ddp-lint,pyproject,Cargo}.toml",
    "**/Cargo.lock",
    "**/requirements*.txt",
    "**/setup.cfg",
    "**/environment.{yml,yaml}",
    "**/.gitignore",
];

/// Takes a notification. One that cannot be read, or that is not known, changes nothing.
pub(super) fn note<W: Write>(server: &mut Server<W>, method: &str, params: Value) {
    match method {
        "initialized" => {
            register(server);
            ask_for_settings(server);
        }
        "textDocument/didOpen" => with(params, |params: DidOpenTextDocumentParams| {
            let document = params.text_document;
            with_path(&document.uri, |path| {
                server.state.touch(&path);
                server.state.documents.open(path, &document.text, document.version);
            });
        }),
        "textDocument/didChange" => with(params, |params: DidChangeTextDocumentParams| {
            let document = params.text_document;
            let unit = server.client.unit;
            with_path(&document.uri, |path| {
                let changes = params.content_changes;
                if server.state.documents.change(&path, document.version, changes, unit) {
                    server.state.touch(&path);
                }
            });
        }),
        "textDocument/didClose" => with(params, |params: DidCloseTextDocumentParams| {
            with_path(&params.text_document.uri, |path| {
                if !server.state.documents.close(&path) {
                    return;
                }
                if path.is_file() && server.state.is_inside(&path) {
                    server.state.touch(&path);
                } else {
                    server.state.invalidate();
                }
            });
        }),
        "workspace/didChangeWatchedFiles" => with(params, |params: DidChangeWatchedFilesParams| {
            for change in params.changes {
                with_path(&change.uri, |path| server.state.touch_on_disk(&path));
            }
        }),
        "workspace/didChangeWorkspaceFolders" => {
            with(params, |params: DidChangeWorkspaceFoldersParams| {
                for folder in &params.event.removed {
                    with_path(&folder.uri, |path| {
                        server.state.folders.remove(&path);
                    });
                }
                let added = params.event.added.iter();
                server.state.folders.extend(added.filter_map(|folder| convert::path(&folder.uri)));
                server.state.invalidate();
            });
        }
        "workspace/didChangeConfiguration" => {
            with(params, |params: DidChangeConfigurationParams| {
                match params.settings.get("ddp-lint") {
                    Some(settings) => server.take_settings(settings),
                    None => ask_for_settings(server),
                }
            });
        }
        _ => {}
    }
}

fn with<T: DeserializeOwned>(params: Value, take: impl FnOnce(T)) {
    if let Ok(params) = serde_json::from_value(params) {
        take(params);
    }
}

fn with_path(uri: &Uri, take: impl FnOnce(PathBuf)) {
    if let Some(path) = convert::path(uri) {
        take(path);
    }
}

fn register<W: Write>(server: &mut Server<W>) {
    if !server.client.registers_watchers {
        return;
    }
    let watchers: Vec<Value> =
        WATCHED.iter().map(|pattern| json!({ "globPattern": pattern })).collect();
    server.ask(
        "client/registerCapability",
        &json!({ "registrations": [{
            "id": "ddp-lint-files",
            "method": "workspace/didChangeWatchedFiles",
            "registerOptions": { "watchers": watchers },
        }]}),
    );
}

fn ask_for_settings<W: Write>(server: &mut Server<W>) {
    if server.client.has_configuration {
        let items = json!({ "items": [{ "section": "ddp-lint" }] });
        server.asked_settings = Some(server.ask("workspace/configuration", &items));
    }
}
