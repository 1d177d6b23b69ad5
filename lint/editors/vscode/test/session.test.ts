// A whole session over the protocol library that the editor's client is built on. DDP_LINT names the
// program; without it the one that cargo built in this checkout is taken.
import assert from "node:assert/strict";
import * as child_process from "node:child_process";
import * as fs from "node:fs";
import * as os from "node:os";
import * as path from "node:path";
import { after, before, test } from "node:test";
import { pathToFileURL } from "node:url";
import {
  CodeAction,
  CodeActionRequest,
  createProtocolConnection,
  Diagnostic,
  DidChangeTextDocumentNotification,
  DidOpenTextDocumentNotification,
  DocumentDiagnosticReportKind,
  DocumentDiagnosticRequest,
  ExitNotification,
  InitializedNotification,
  InitializeRequest,
  ProtocolConnection,
  ShutdownRequest,
  StreamMessageReader,
  StreamMessageWriter,
} from "vscode-languageserver-protocol/node";
import { TextDocument } from "vscode-languageserver-textdocument";

const BUILT = path.resolve("../../../target/debug/ddp-lint");
const program = process.env.DDP_LINT ?? BUILT;
const skip = fs.existsSync(program) ? false : `no ${program}: build it with cargo, or set DDP_LINT`;

const CLEAN = 'if __name__ == "__main__":\n    x = "é🦀"\n';
const FAULT = CLEAN.replace(/\n$/, "  # ddp-lint: allow(unknown-suppression)\n");
const TRAIN = `from model import build

if __name__ == "__main__":
    model = build()
    print(model.classes)
`;
const MODEL = `import torch

class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.classes = 10

def build():
    return Net()
`;

let folder: string;
let server: child_process.ChildProcess;
let connection: ProtocolConnection;

const uri = (name: string) => pathToFileURL(path.join(folder, name)).toString();

before(async () => {
  if (skip) {
    return;
  }
  folder = fs.mkdtempSync(path.join(os.tmpdir(), "ddp-lint-"));
  const files = { "setup.py": "", "a.py": CLEAN, "train.py": TRAIN, "model.py": MODEL };
  for (const [name, text] of Object.entries(files)) {
    fs.writeFileSync(path.join(folder, name), text);
  }
  server = child_process.spawn(program, ["server"], {
    env: { ...process.env, XDG_CACHE_HOME: path.join(folder, ".cache") },
    stdio: ["pipe", "pipe", "inherit"],
  });
  connection = createProtocolConnection(
    new StreamMessageReader(server.stdout!),
    new StreamMessageWriter(server.stdin!),
  );
  connection.listen();
  const result = await connection.sendRequest(InitializeRequest.type, {
    processId: process.pid,
    rootUri: null,
    workspaceFolders: [{ uri: pathToFileURL(folder).toString(), name: "scratch" }],
    capabilities: { textDocument: { diagnostic: {} } },
  });
  assert.ok(result.capabilities.diagnosticProvider);
  await connection.sendNotification(InitializedNotification.type, {});
});

after(async () => {
  if (skip) {
    return;
  }
  const ended = new Promise((resolve) => server.on("exit", resolve));
  await connection.sendRequest(ShutdownRequest.type);
  await connection.sendNotification(ExitNotification.type);
  assert.equal(await ended, 0);
  fs.rmSync(folder, { recursive: true });
});

async function open(name: string, text: string): Promise<void> {
  await connection.sendNotification(DidOpenTextDocumentNotification.type, {
    textDocument: { uri: uri(name), languageId: "python", version: 1, text },
  });
}

async function change(name: string, version: number, text: string): Promise<void> {
  await connection.sendNotification(DidChangeTextDocumentNotification.type, {
    textDocument: { uri: uri(name), version },
    contentChanges: [{ text }],
  });
}

async function pull(name: string): Promise<Diagnostic[]> {
  const report = await connection.sendRequest(DocumentDiagnosticRequest.type, {
    textDocument: { uri: uri(name) },
  });
  assert.equal(report.kind, DocumentDiagnosticReportKind.Full);
  return report.kind === DocumentDiagnosticReportKind.Full ? report.items : [];
}

/** The text after the preferred fix of a diagnostic. */
async function mend(name: string, text: string, diagnostic: Diagnostic): Promise<string> {
  const actions = (await connection.sendRequest(CodeActionRequest.type, {
    textDocument: { uri: uri(name) },
    range: diagnostic.range,
    context: { diagnostics: [diagnostic] },
  })) as CodeAction[];
  const preferred = actions.find((action) => action.isPreferred);
  const edits = preferred?.edit?.changes?.[uri(name)] ?? [];
  assert.ok(edits.length > 0, JSON.stringify(actions));
  const document = TextDocument.create(uri(name), "python", 0, text);
  return TextDocument.applyEdits(document, edits);
}

test("a fault is seen, mended and gone", { skip }, async () => {
  await open("a.py", CLEAN);
  assert.deepEqual(await pull("a.py"), []);
  await change("a.py", 2, FAULT);
  const [diagnostic] = await pull("a.py");
  assert.equal(diagnostic.code, "unused-suppression");
  const mended = await mend("a.py", FAULT, diagnostic);
  assert.equal(mended, CLEAN);
  await change("a.py", 3, mended);
  assert.deepEqual(await pull("a.py"), []);
});

test("an unsaved change in one file is a fault in another, and is mended there", { skip }, async () => {
  await open("train.py", TRAIN);
  assert.deepEqual(await pull("train.py"), []);
  await open("model.py", MODEL);
  await change("model.py", 2, MODEL.replace("return Net()", "return torch.nn.DataParallel(Net())"));
  const [fault] = await pull("train.py");
  assert.equal(fault.code, "attribute-of-wrapped-model");
  const mended = await mend("train.py", TRAIN, fault);
  assert.equal(mended, TRAIN.replace("model.classes", "model.module.classes"));
  await change("train.py", 2, mended);
  assert.deepEqual(await pull("train.py"), []);
});
