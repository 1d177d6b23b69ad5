// A whole session of the extension: the editor's own language client with the real server, in an
// editor without windows. DDP_LINT names the program; without it the one that cargo built in this
// checkout is taken.
import assert from "node:assert/strict";
import * as fs from "node:fs";
import * as os from "node:os";
import * as path from "node:path";
import { after, before, test } from "node:test";
import { setTimeout as sleep } from "node:timers/promises";
import type { Diagnostic, TextDocument } from "vscode";

import { activate, deactivate } from "../src/extension";
import editor = require("./editor");

const { person } = editor;
const BUILT = path.resolve("../../../target/debug/ddp-lint");
const program = process.env.DDP_LINT ?? BUILT;
const skip = fs.existsSync(program) ? false : `no ${program}: build it with cargo, or set DDP_LINT`;
const LIMIT_MS = 60_000;

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

before(async () => {
  if (skip) {
    return;
  }
  folder = fs.mkdtempSync(path.join(os.tmpdir(), "ddp-lint-"));
  const files = { "setup.py": "", "a.py": CLEAN, "train.py": TRAIN, "model.py": MODEL };
  for (const [name, text] of Object.entries(files)) {
    fs.writeFileSync(path.join(folder, name), text);
  }
  process.env.XDG_CACHE_HOME = path.join(folder, ".cache");
  person.openFolder(folder);
  person.configuration.set("path", program);
  await activate({ subscriptions: [] } as never);
});

after(async () => {
  if (skip) {
    return;
  }
  await deactivate();
  fs.rmSync(folder, { recursive: true });
});

const open = (name: string, text: string) => person.open(path.join(folder, name), text);

/** The diagnostics of a document, once there are so many. */
async function see(document: TextDocument, n: number): Promise<Diagnostic[]> {
  const until = Date.now() + LIMIT_MS;
  while (person.seen(document).length !== n) {
    assert.ok(Date.now() < until, JSON.stringify([person.seen(document), person.logged]));
    await sleep(20);
  }
  return person.seen(document);
}

/** The rule's name. */
const rule = (diagnostic: Diagnostic) => (diagnostic.code as { value: string }).value;

test("a fault is seen, explained, mended and gone", { skip }, async () => {
  let document = open("a.py", CLEAN);
  document = person.type(document, FAULT);
  const [fault] = await see(document, 1);
  assert.equal(rule(fault), "unused-suppression");
  assert.match(await person.hover(document, fault.range.start), /unused-suppression/);
  const mended = await person.mend(document, fault);
  assert.equal(mended, CLEAN);
  document = person.type(document, mended);
  await see(document, 0);
});

test("an unsaved change in one file is a fault in another, and is mended there", { skip }, async () => {
  let train = open("train.py", TRAIN);
  let model = open("model.py", MODEL);
  model = person.type(model, MODEL.replace("return Net()", "return torch.nn.DataParallel(Net())"));
  const [fault] = await see(train, 1);
  assert.equal(rule(fault), "attribute-of-wrapped-model");
  const mended = await person.mend(train, fault);
  assert.equal(mended, TRAIN.replace("model.classes", "model.module.classes"));
  train = person.type(train, mended);
  await see(train, 0);
});

test("a program that does not start is named, and a right path starts it again", { skip }, async () => {
  person.configuration.set("path", path.join(folder, "missing"));
  await person.run("ddp-lint.restart");
  const told = person.logged.filter((text) => text.includes("could not be started"));
  assert.match(told.join("\n"), /missing/);
  person.configuration.set("path", program);
  await person.run("ddp-lint.restart");
  await see(open("again.py", FAULT), 1);
});
