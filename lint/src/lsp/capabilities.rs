//! What the client can do, and what the server offers it.

use lsp_types::{
    ClientCapabilities, CodeActionKind, CodeActionOptions, CodeActionProviderCapability,
    DiagnosticOptions, DiagnosticServerCapabilities, ExecuteCommandOptions,
    HoverProviderCapability, OneOf, PositionEncodingKind, ServerCapabilities,
    TextDocumentSyncCapability, TextDocumentSyncKind, TextDocumentSyncOptions,
    WorkspaceFoldersServerCapabilities, WorkspaceServerCapabilities,
};
use serde_json::Value;

use crate::lines::Unit;

/// The command behind the action "explain".
pub(super) const EXPLAIN: &str = "ddp-lint.explain";

/// The kind of the action that mends a whole document.
pub(super) const FIX_ALL: CodeActionKind = CodeActionKind::new("source.fixAll.ddp-lint");

/// What of the client matters.
#[expect(clippy::struct_excessive_bools, reason = "each is a capability of the protocol")]
#[derive(Clone, Copy, Debug)]
pub(super) struct Client {
    pub(super) unit: Unit,
    /// Asks for diagnostics; else they are pushed.
    pub(super) pulls: bool,
    /// Can be told to ask again.
    pub(super) refreshes: bool,
    /// Takes edits that name the version of their document.
    pub(super) versioned_edits: bool,
    pub(super) registers_watchers: bool,
    pub(super) has_configuration: bool,
    pub(super) shows_documents: bool,
    pub(super) related_information: bool,
}

impl Client {
    /// `sent`: the same capabilities as they came in.
    pub(super) fn new(capabilities: &ClientCapabilities, sent: &Value) -> Self {
        let text = capabilities.text_document.as_ref();
        let workspace = capabilities.workspace.as_ref();
        let window = capabilities.window.as_ref();
        let general = capabilities.general.as_ref();
        Self {
            unit: unit(general.and_then(|general| general.position_encodings.as_deref())),
            pulls: text.is_some_and(|text| text.diagnostic.is_some()),
            // The protocol calls it `diagnostics`, which the typed form does not know.
            refreshes: sent["workspace"]["diagnostics"]["refreshSupport"] == true,
            versioned_edits: workspace
                .and_then(|workspace| workspace.workspace_edit.as_ref())
                .and_then(|edit| edit.document_changes)
                .unwrap_or(false),
            registers_watchers: workspace
                .and_then(|workspace| workspace.did_change_watched_files)
                .and_then(|watched| watched.dynamic_registration)
                .unwrap_or(false),
            has_configuration: workspace
                .and_then(|workspace| workspace.configuration)
                .unwrap_or(false),
            shows_documents: window
                .and_then(|window| window.show_document.as_ref())
                .is_some_and(|show| show.support),
            related_information: text
                .and_then(|text| text.publish_diagnostics.as_ref())
                .and_then(|publish| publish.related_information)
                .unwrap_or(false),
        }
    }
}

/// The client's first choice that is known; UTF-16 is what everybody knows.
fn unit(encodings: Option<&[PositionEncodingKind]>) -> Unit {
    let known = |kind: &PositionEncodingKind| match kind.as_str() {
        "utf-8" => Some(Unit::Byte),
        "utf-16" => Some(Unit::Utf16),
        "utf-32" => Some(Unit::Character),
        _ => None,
    };
    encodings.into_iter().flatten().find_map(known).unwrap_or(Unit::Utf16)
}

pub(super) fn server(client: Client) -> ServerCapabilities {
    let encoding = match client.unit {
        Unit::Byte => PositionEncodingKind::UTF8,
        Unit::Utf16 => PositionEncodingKind::UTF16,
        Unit::Character => PositionEncodingKind::UTF32,
    };
    ServerCapabilities {
        position_encoding: Some(encoding),
        text_document_sync: Some(TextDocumentSyncCapability::Options(TextDocumentSyncOptions {
            open_close: Some(true),
            change: Some(TextDocumentSyncKind::INCREMENTAL),
            ..TextDocumentSyncOptions::default()
        })),
        hover_provider: Some(HoverProviderCapability::Simple(true)),
        code_action_provider: Some(CodeActionProviderCapability::Options(CodeActionOptions {
            code_action_kinds: Some(vec![CodeActionKind::QUICKFIX, FIX_ALL]),
            ..CodeActionOptions::default()
        })),
        execute_command_provider: Some(ExecuteCommandOptions {
            commands: vec![EXPLAIN.to_owned()],
            ..ExecuteCommandOptions::default()
        }),
        diagnostic_provider: client.pulls.then(|| {
            DiagnosticServerCapabilities::Options(DiagnosticOptions {
                identifier: Some("ddp-lint".to_owned()),
                inter_file_dependencies: true,
                workspace_diagnostics: true,
                ..DiagnosticOptions::default()
            })
        }),
        workspace: Some(WorkspaceServerCapabilities {
            workspace_folders: Some(WorkspaceFoldersServerCapabilities {
                supported: Some(true),
                change_notifications: Some(OneOf::Left(true)),
            }),
            ..WorkspaceServerCapabilities::default()
        }),
        ..ServerCapabilities::default()
    }
}
