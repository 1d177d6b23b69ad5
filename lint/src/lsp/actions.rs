//! Code actions: mend this, mend all, allow it here, explain it.

use lsp_types::{
    CodeAction, CodeActionContext, CodeActionKind, CodeActionOrCommand, Command, Range,
    WorkspaceEdit,
};
use serde_json::json;

use super::capabilities::{Client, EXPLAIN, FIX_ALL};
use super::convert::{self, Target};
use super::diagnostics;
use super::documents::Documents;
use super::state::View;
use crate::finding::{Applicability, Edit, Finding};
use crate::lines::Lines;
use crate::suppress;

/// All actions for a range of a file.
pub(super) fn actions(
    view: View<'_>,
    documents: &Documents,
    range: Range,
    context: &CodeActionContext,
    client: Client,
) -> Vec<CodeActionOrCommand> {
    let lines = Lines::new(&view.file.text);
    let span = convert::span(&lines, range, client.unit);
    let offers = Offers { view, documents, lines, client };
    let mut actions = Vec::new();
    if wants(context, &CodeActionKind::QUICKFIX) {
        let touched = |finding: &&Finding| {
            let own = finding.site.span;
            own.start <= span.end && span.start <= own.end
        };
        let touched: Vec<&Finding> = view.findings().filter(touched).collect();
        actions.extend(touched.iter().filter_map(|finding| offers.fix(finding)));
        actions.extend(touched.iter().filter_map(|finding| offers.allow(finding)));
        actions.extend(touched.iter().map(|finding| explain(finding)));
    }
    if wants(context, &FIX_ALL) {
        actions.extend(offers.fix_all());
    }
    actions
}

/// The client wants actions of that kind: `source` stands for `source.fixAll.ddp-lint` too.
fn wants(context: &CodeActionContext, kind: &CodeActionKind) -> bool {
    let Some(only) = &context.only else { return true };
    only.iter().any(|wanted| {
        let rest = kind.as_str().strip_prefix(wanted.as_str());
        rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('.'))
    })
}

struct Offers<'s> {
    view: View<'s>,
    documents: &'s Documents,
    lines: Lines<'s>,
    client: Client,
}

impl Offers<'_> {
    fn fix(&self, finding: &Finding) -> Option<CodeActionOrCommand> {
        let fix = finding.fix.as_ref()?;
        let edit = self.edit(&fix.edits.iter().collect::<Vec<_>>())?;
        let diagnostic = diagnostics::of_finding(finding, self.view, &self.lines, self.client);
        Some(CodeActionOrCommand::CodeAction(CodeAction {
            title: format!("{} ({})", fix.title, finding.rule),
            kind: Some(CodeActionKind::QUICKFIX),
            diagnostics: Some(vec![diagnostic]),
            edit: Some(edit),
            is_preferred: Some(fix.applicability == Applicability::Safe),
            ..CodeAction::default()
        }))
    }

    fn allow(&self, finding: &Finding) -> Option<CodeActionOrCommand> {
        let edits = suppress::additions(self.view.file, &[finding]);
        let diagnostic = diagnostics::of_finding(finding, self.view, &self.lines, self.client);
        Some(CodeActionOrCommand::CodeAction(CodeAction {
            title: format!("allow {} here", finding.rule),
            kind: Some(CodeActionKind::QUICKFIX),
            diagnostics: Some(vec![diagnostic]),
            edit: Some(self.edit(&edits.iter().collect::<Vec<_>>())?),
            ..CodeAction::default()
        }))
    }

    /// One round of safe fixes; those that overlap wait for the next.
    fn fix_all(&self) -> Option<CodeActionOrCommand> {
        let mut edits: Vec<&Edit> = Vec::new();
        let fixes = self.view.findings().filter_map(|finding| finding.fix.as_ref());
        for fix in fixes.filter(|fix| fix.applicability == Applicability::Safe) {
            crate::fixes::accept(&mut edits, fix);
        }
        if edits.is_empty() {
            return None;
        }
        edits.sort_by_key(|edit| edit.site);
        Some(CodeActionOrCommand::CodeAction(CodeAction {
            title: "mend all that ddp-lint can mend safely".to_owned(),
            kind: Some(FIX_ALL),
            edit: Some(self.edit(&edits)?),
            ..CodeAction::default()
        }))
    }

    fn edit(&self, edits: &[&Edit]) -> Option<WorkspaceEdit> {
        let mut edits = edits.to_vec();
        edits.sort_by_key(|edit| edit.site);
        let target = |edit: &Edit| {
            let (file, path) = self.view.other(edit.site.file);
            let version = self.documents.get(path).map(|document| document.version);
            let is_editable = self.view.is_editable(edit.site.file);
            let uri = is_editable.then(|| convert::uri(path)).flatten()?;
            Some(Target { uri, lines: Lines::new(&file.text), version })
        };
        convert::workspace_edit(&edits, target, self.client.unit, self.client.versioned_edits)
    }
}

fn explain(finding: &Finding) -> CodeActionOrCommand {
    let title = format!("explain {}", finding.rule);
    CodeActionOrCommand::CodeAction(CodeAction {
        title: title.clone(),
        kind: Some(CodeActionKind::QUICKFIX),
        command: Some(Command {
            title,
            command: EXPLAIN.to_owned(),
            arguments: Some(vec![json!(finding.rule)]),
        }),
        ..CodeAction::default()
    })
}
