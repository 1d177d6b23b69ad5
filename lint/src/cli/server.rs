//! `ddp-lint server`: the language server over standard streams.

use super::Status;
use crate::lsp;

pub(super) fn run() -> Status {
    let in_due_form = lsp::serve(std::io::stdin(), std::io::stdout());
    if in_due_form { Status::Clean } else { Status::Findings }
}
