// The `vscode` module for tests: an editor without windows. Its data types are jest-mock-vscode's;
// here is what moves: documents and their events, diagnostics, providers and commands.
import { createTextDocument, createVSCodeMock } from "jest-mock-vscode";
import type * as api from "vscode";
import { CancellationTokenSource } from "vscode-languageserver-protocol/node";
import { TextDocument } from "vscode-languageserver-textdocument";
import { URI, Utils } from "vscode-uri";

type Listener = (...values: unknown[]) => unknown;

/** What the client asks for and the tests do not look at: an event that never comes. */
function never(): api.Disposable {
  return { dispose() {} };
}

const mock = createVSCodeMock({
  fn: (given?: Listener) => given ?? never,
} as unknown as Parameters<typeof createVSCodeMock>[0]);

const opened = new mock.EventEmitter<api.TextDocument>();
const changed = new mock.EventEmitter<api.TextDocumentChangeEvent>();
const commands = new Map<string, Listener>();
const collections: Map<string, readonly api.Diagnostic[]>[] = [];
const codeActions: api.CodeActionProvider[] = [];
const hovers: api.HoverProvider[] = [];
const documents: api.TextDocument[] = [];
const logged: string[] = [];
const configuration = new Map<string, unknown>();
const file = (path: string): api.Uri => URI.file(path);

class TabInputText {
  constructor(readonly uri: api.Uri) {}
}

const tabsChanged = new mock.EventEmitter<api.TabChangeEvent>();
const tabGroups = {
  onDidChangeTabs: tabsChanged.event,
  get all() {
    return [{ tabs: documents.map((document) => ({ input: new TabInputText(document.uri) })) }];
  },
};

function collection(): api.DiagnosticCollection {
  const held = new Map<string, readonly api.Diagnostic[]>();
  collections.push(held);
  const set = (uri: api.Uri, diagnostics?: readonly api.Diagnostic[]) =>
    void held.set(uri.toString(), diagnostics ?? []);
  const remove = (uri: api.Uri) => void held.delete(uri.toString());
  const has = (uri: api.Uri) => held.has(uri.toString());
  const clear = () => held.clear();
  return { set, delete: remove, has, clear, dispose: clear } as api.DiagnosticCollection;
}

function kept<T>(list: T[]) {
  return (_selector: unknown, provider: T) => {
    list.push(provider);
    return new mock.Disposable(() => list.splice(list.indexOf(provider), 1));
  };
}

function outputChannel(): Partial<api.LogOutputChannel> {
  const log = (text: string) => void logged.push(text);
  return { append: log, appendLine: log, error: log, warn: log, info: log, show() {}, dispose() {} };
}

Object.assign(mock.commands, {
  registerCommand(name: string, run: Listener) {
    commands.set(name, run);
    return new mock.Disposable(() => commands.delete(name));
  },
  executeCommand: async (name: string, ...values: unknown[]) => commands.get(name)?.(...values),
});
Object.assign(mock.languages, {
  createDiagnosticCollection: collection,
  registerCodeActionsProvider: kept(codeActions),
  registerHoverProvider: kept(hovers),
  match: (selector: api.DocumentFilter[], document: api.TextDocument) =>
    selector.some((filter) => filter.language === document.languageId) ? 10 : 0,
});
Object.assign(mock.window, {
  createOutputChannel: outputChannel,
  tabGroups,
  showErrorMessage: async (text: string) => void logged.push(text),
});
Object.assign(mock.workspace, {
  onDidOpenTextDocument: opened.event,
  onDidChangeTextDocument: changed.event,
  textDocuments: documents,
  createFileSystemWatcher: () => ({
    onDidCreate: never,
    onDidChange: never,
    onDidDelete: never,
    dispose() {},
  }),
  getConfiguration: () => ({
    get: (name: string, fallback: unknown) => configuration.get(name) ?? fallback,
  }),
});

const token = () => new CancellationTokenSource().token as api.CancellationToken;

/** What a person does in the editor, and sees there. */
const person = {
  logged,
  configuration,
  run: (command: string) => mock.commands.executeCommand(command),
  openFolder(path: string) {
    const folder = { uri: file(path), name: "scratch", index: 0 };
    (mock.workspace as unknown as { setWorkspaceFolders(f: unknown[]): void }).setWorkspaceFolders([
      folder,
    ]);
  },
  open(path: string, text: string): api.TextDocument {
    const document = createTextDocument(file(path), text, "python", 1);
    documents.push(document);
    tabsChanged.fire({ opened: [{} as api.Tab], closed: [], changed: [] });
    opened.fire(document);
    return document;
  },
  /** Replaces the whole text; the document that holds the new one takes the old one's place. */
  type(old: api.TextDocument, text: string): api.TextDocument {
    const document = createTextDocument(old.uri, text, "python", old.version + 1);
    documents.splice(documents.indexOf(old), 1, document);
    const range = new mock.Range(old.positionAt(0), old.positionAt(old.getText().length));
    const change = { range, rangeOffset: 0, rangeLength: old.getText().length, text };
    changed.fire({ document, contentChanges: [change], reason: undefined });
    return document;
  },
  seen: (document: api.TextDocument): api.Diagnostic[] =>
    collections.flatMap((held) => [...(held.get(document.uri.toString()) ?? [])]),
  /** The text after the preferred fix of a diagnostic. */
  async mend(document: api.TextDocument, diagnostic: api.Diagnostic): Promise<string> {
    const context = { diagnostics: [diagnostic], only: undefined, triggerKind: 1 };
    const given = codeActions.map((provider) =>
      provider.provideCodeActions(document, diagnostic.range, context, token()),
    );
    const actions = (await Promise.all(given)).flatMap((list) => (list ?? []) as api.CodeAction[]);
    const edits = actions.find((action) => action.isPreferred)?.edit?.get(document.uri) ?? [];
    const places = edits.map(({ range, newText }) => ({ range, newText }));
    const text = TextDocument.create("", "python", 0, document.getText());
    return TextDocument.applyEdits(text, places);
  },
  async hover(document: api.TextDocument, position: api.Position): Promise<string> {
    const given = hovers.map((provider) => provider.provideHover(document, position, token()));
    const contents = (await Promise.all(given)).flatMap((hover) => hover?.contents ?? []);
    return contents.map((content) => (content as api.MarkdownString).value).join("\n");
  },
};

/** Data types that the library above lacks and the client needs. */
const types = {
  CancellationError: class extends Error {},
  CancellationTokenSource,
  CodeActionTriggerKind: { Invoke: 1, Automatic: 2 },
  Hover: class {
    contents: unknown[];
    constructor(contents: unknown, readonly range?: api.Range) {
      this.contents = [contents].flat();
    }
  },
  InlayHint: class {},
  TabInputText,
  TabInputTextDiff: class {},
  TabInputCustom: class {},
  Uri: Object.assign(URI, { joinPath: Utils.joinPath }),
  RelativePattern: class {
    constructor(readonly baseUri: api.Uri, readonly pattern: string) {}
  },
};

export = {
  ...mock,
  ...types,
  version: "1.91.0",
  env: { language: "en", appName: "test" },
  extensions: { getExtension: never, all: [] },
  person,
};
