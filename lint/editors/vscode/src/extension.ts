// The extension: starts the server and connects it to the editor.
import * as vscode from "vscode";
import { LanguageClient, LanguageClientOptions, ServerOptions } from "vscode-languageclient/node";

import { serverProgram, serverSettings } from "./server";

let client: LanguageClient | undefined;

export async function activate(context: vscode.ExtensionContext): Promise<void> {
  const log = vscode.window.createOutputChannel("ddp-lint", { log: true });
  context.subscriptions.push(
    log,
    vscode.commands.registerCommand("ddp-lint.restart", () => restart(log)),
    vscode.commands.registerCommand("ddp-lint.showLog", () => log.show()),
    vscode.workspace.onDidChangeConfiguration(async (event) => {
      if (event.affectsConfiguration("ddp-lint.path")) {
        await restart(log);
      } else if (event.affectsConfiguration("ddp-lint")) {
        await client?.sendNotification("workspace/didChangeConfiguration", {
          settings: { "ddp-lint": settings() },
        });
      }
    }),
  );
  await start(log);
}

export async function deactivate(): Promise<void> {
  await client?.stop();
  client = undefined;
}

async function restart(log: vscode.LogOutputChannel): Promise<void> {
  await deactivate();
  await start(log);
}

async function start(log: vscode.LogOutputChannel): Promise<void> {
  const folders = (vscode.workspace.workspaceFolders ?? []).map((folder) => folder.uri.fsPath);
  const configuration = vscode.workspace.getConfiguration("ddp-lint");
  const command = serverProgram(configuration.get("path", "ddp-lint"), folders);
  const run: ServerOptions = { command, args: ["server"] };
  const options: LanguageClientOptions = {
    documentSelector: [
      { scheme: "file", language: "python" },
      { scheme: "file", language: "rust" },
    ],
    outputChannel: log,
    initializationOptions: settings(),
  };
  client = new LanguageClient("ddp-lint", "ddp-lint", run, options);
  try {
    await client.start();
  } catch (error) {
    client = undefined;
    const choice = await vscode.window.showErrorMessage(
      `ddp-lint could not be started as \`${command}\`. Install it with \`pip install ddp-lint\` or ` +
        "`cargo install ddp-lint`, or set `ddp-lint.path`.",
      "Show the log",
    );
    log.error(String(error));
    if (choice !== undefined) {
      log.show();
    }
  }
}

function settings() {
  const configuration = vscode.workspace.getConfiguration("ddp-lint");
  return serverSettings((name, fallback) => configuration.get(name, fallback));
}
