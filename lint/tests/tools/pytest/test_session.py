"""Whole sessions with pytest-lsp, with the capabilities of several editors.

pytest-lsp checks every message against the protocol. DDP_LINT names the program; run by
lint/tests/tools.
"""

import asyncio
import os
import pathlib

import pytest
import pytest_lsp
from lsprotocol import types
from pytest_lsp import ClientServerConfig, LanguageClient, client_capabilities

CLEAN = 'if __name__ == "__main__":\n    x = "é🦀"\n'
FAULT = CLEAN[:-1] + "  # ddp-lint: allow(unknown-suppression)\n"
TRAIN = """from model import build

if __name__ == "__main__":
    model = build()
    print(model.classes)
"""
MODEL = """import torch

class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.classes = 10

def build():
    return Net()
"""
WRAPPED = MODEL.replace("return Net()", "return torch.nn.DataParallel(Net())")
EDITORS = ["neovim@v0.7.0", "neovim@v0.11.0", "emacs@v29.1", "visual-studio-code@v1.65.2"]
# How each unit of columns is encoded, and how many bytes it has.
ENCODINGS = {"utf-8": ("utf-8", 1), "utf-16": ("utf-16-le", 2), "utf-32": ("utf-32-le", 4)}
PATIENCE_SECONDS = 120


@pytest.fixture
def folder(tmp_path: pathlib.Path) -> pathlib.Path:
    files = {"setup.py": "", "a.py": CLEAN, "train.py": TRAIN, "model.py": MODEL}
    for name, text in files.items():
        (tmp_path / name).write_text(text, encoding="utf-8")
    return tmp_path


@pytest_lsp.fixture(
    params=EDITORS, config=ClientServerConfig(server_command=[os.environ["DDP_LINT"], "server"])
)
async def client(lsp_client: LanguageClient, request, folder: pathlib.Path):
    @lsp_client.feature(types.CLIENT_REGISTER_CAPABILITY)
    def register(params: types.RegistrationParams) -> None:
        assert [one.method for one in params.registrations] == ["workspace/didChangeWatchedFiles"]

    folders = [types.WorkspaceFolder(uri=folder.as_uri(), name="scratch")]
    capabilities = client_capabilities(request.param)
    result = await lsp_client.initialize_session(
        types.InitializeParams(capabilities=capabilities, workspace_folders=folders)
    )
    assert result.server_info and result.server_info.name == "ddp-lint"
    lsp_client.encoding = ENCODINGS[result.capabilities.position_encoding]
    yield lsp_client
    await lsp_client.shutdown_session()


class Session:
    """One editor with its texts."""

    def __init__(self, client: LanguageClient, folder: pathlib.Path):
        self.client, self.folder = client, folder
        self.version = 0

    def uri(self, name: str) -> str:
        return (self.folder / name).as_uri()

    def open(self, name: str, text: str) -> None:
        document = types.TextDocumentItem(
            uri=self.uri(name), language_id="python", version=self.version, text=text
        )
        self.client.text_document_did_open(types.DidOpenTextDocumentParams(text_document=document))

    def change(self, name: str, text: str) -> None:
        self.version += 1
        document = types.VersionedTextDocumentIdentifier(uri=self.uri(name), version=self.version)
        whole = types.TextDocumentContentChangeWholeDocument(text=text)
        self.client.text_document_did_change(
            types.DidChangeTextDocumentParams(text_document=document, content_changes=[whole])
        )

    async def found(self, name: str, rules: list[str]) -> list[types.Diagnostic]:
        """Waits until exactly these rules are found in a file, told or asked for."""
        capabilities = self.client.capabilities.text_document
        pulls = capabilities is not None and capabilities.diagnostic is not None
        loop = asyncio.get_running_loop()
        end = loop.time() + PATIENCE_SECONDS
        while True:
            if pulls:
                document = types.TextDocumentIdentifier(uri=self.uri(name))
                report = await self.client.text_document_diagnostic_async(
                    types.DocumentDiagnosticParams(text_document=document)
                )
                found = list(report.items)
            else:
                found = list(self.client.diagnostics.get(self.uri(name), []))
            if [diagnostic.code for diagnostic in found] == rules:
                return found
            assert loop.time() < end, f"expected {rules} in {name}, found {found}"
            await asyncio.sleep(0.02)

    async def mend(self, name: str, text: str, diagnostic: types.Diagnostic) -> str:
        """The text after the preferred fix."""
        actions = await self.client.text_document_code_action_async(
            types.CodeActionParams(
                text_document=types.TextDocumentIdentifier(uri=self.uri(name)),
                range=diagnostic.range,
                context=types.CodeActionContext(diagnostics=[diagnostic]),
            )
        )
        edit = next(action.edit for action in actions or [] if action.is_preferred)
        edits = list((edit.changes or {}).get(self.uri(name), []))
        for change in edit.document_changes or []:
            edits.extend(change.edits)
        assert edits
        encoding, n_bytes = self.client.encoding
        lines = [line.encode(encoding) for line in text.splitlines(keepends=True)]
        for one in edits:
            start, end = one.range.start, one.range.end
            assert start.line == end.line
            line, new = lines[start.line], one.new_text.encode(encoding)
            before, after = line[: n_bytes * start.character], line[n_bytes * end.character :]
            lines[start.line] = before + new + after
        return b"".join(lines).decode(encoding)


@pytest.mark.asyncio
async def test_a_fault_is_seen_mended_and_gone(client: LanguageClient, folder: pathlib.Path):
    session = Session(client, folder)
    session.open("a.py", CLEAN)
    session.change("a.py", FAULT)
    [diagnostic] = await session.found("a.py", ["unused-suppression"])
    assert diagnostic.code_description and diagnostic.code_description.href.endswith(".md")
    mended = await session.mend("a.py", FAULT, diagnostic)
    assert mended == CLEAN
    session.change("a.py", mended)
    await session.found("a.py", [])
    assert not client.log_messages


@pytest.mark.asyncio
async def test_a_wrap_in_another_file(client: LanguageClient, folder: pathlib.Path):
    session = Session(client, folder)
    session.open("train.py", TRAIN)
    session.open("model.py", MODEL)
    session.change("model.py", WRAPPED)
    [diagnostic] = await session.found("train.py", ["attribute-of-wrapped-model"])
    assert (folder / "model.py").read_text() == MODEL, "nothing was saved"
    mended = await session.mend("train.py", TRAIN, diagnostic)
    assert mended == TRAIN.replace("model.classes", "model.module.classes")
    session.change("train.py", mended)
    await session.found("train.py", [])
    session.change("model.py", MODEL)
    session.change("train.py", TRAIN)
    await session.found("train.py", [])


@pytest.mark.asyncio
async def test_hover_explains_a_finding(client: LanguageClient, folder: pathlib.Path):
    session = Session(client, folder)
    session.open("a.py", FAULT)
    [diagnostic] = await session.found("a.py", ["unused-suppression"])
    hover = await client.text_document_hover_async(
        types.HoverParams(
            text_document=types.TextDocumentIdentifier(uri=session.uri("a.py")),
            position=diagnostic.range.start,
        )
    )
    assert hover and isinstance(hover.contents, types.MarkupContent)
    assert "unused-suppression" in hover.contents.value
    assert hover.range == diagnostic.range
