// Where the server is looked for, and what it is told.
import assert from "node:assert/strict";
import * as fs from "node:fs";
import * as os from "node:os";
import * as path from "node:path";
import { test } from "node:test";

import { serverProgram, serverSettings } from "../src/server";

test("a bare name is looked for in the workspace's virtual environment", () => {
  const folder = fs.mkdtempSync(path.join(os.tmpdir(), "ddp-lint-"));
  assert.equal(serverProgram("ddp-lint", [folder]), "ddp-lint");
  const program = path.join(folder, ".venv", "bin", "ddp-lint");
  fs.mkdirSync(path.dirname(program), { recursive: true });
  fs.writeFileSync(program, "");
  assert.equal(serverProgram("ddp-lint", ["/none", folder], "linux"), program);
  assert.equal(serverProgram("", [folder], "linux"), program);
  assert.equal(serverProgram("ddp-lint", [folder], "win32"), "ddp-lint");
  fs.rmSync(folder, { recursive: true });
});

test("a path stands for itself", () => {
  assert.equal(serverProgram("/opt/ddp-lint", ["/w"]), "/opt/ddp-lint");
  assert.equal(serverProgram("tools/ddp-lint", ["/w"]), path.join("/w", "tools/ddp-lint"));
  assert.equal(serverProgram("tools/ddp-lint", []), "tools/ddp-lint");
});

test("every setting of the server is declared in package.json", () => {
  const manifest = JSON.parse(fs.readFileSync("package.json", "utf8"));
  const declared = manifest.contributes.configuration.properties;
  const settings = serverSettings((_, fallback) => fallback);
  for (const [name, fallback] of Object.entries(settings)) {
    assert.deepEqual(declared[`ddp-lint.${name}`]?.default, fallback, name);
  }
});
