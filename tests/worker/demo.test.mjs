// `npm run demo` is what newcomers see first: it must end well, and clean up when it is interrupted.

import assert from "node:assert/strict";
import { spawn } from "node:child_process";
import { once } from "node:events";
import { mkdtempSync, readdirSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { test } from "node:test";
import { newNode } from "../../scripts/node.mjs";
import { root } from "../../scripts/steps.mjs";

/** Starts the demo without a terminal, its temporary files in a directory of their own. */
function startDemo(t) {
  const temporary = mkdtempSync(join(tmpdir(), "dormouse-demo-test-"));
  const child = spawn(newNode(), [join(root, "demo", "demo.mjs")], {
    env: { ...process.env, TMPDIR: temporary, TEMP: temporary },
    stdio: ["ignore", "pipe", "pipe"],
  });
  const demo = { child, output: "", ended: once(child, "close"), left: () => readdirSync(temporary) };
  for (const stream of [child.stdout, child.stderr]) stream.setEncoding("utf8").on("data", (piece) => (demo.output += piece));
  t.after(async () => {
    child.kill();
    await demo.ended;
    rmSync(temporary, { recursive: true, force: true });
  });
  return demo;
}

/** The final tables, by the first word or words of their rows. */
const rows = (output) =>
  Object.fromEntries([...output.matchAll(/^ {2}(\S+(?: \S+)*) {2,}(.+)$/gm)].map(([, name, cells]) => [name, cells.split(/ {2,}/)]));

test("the demo survives its kill and every step takes effect once", { timeout: 60_000 }, async (t) => {
  const demo = startDemo(t);
  const [code] = await demo.ended;
  assert.equal(code, 0, demo.output);

  const table = rows(demo.output);
  assert.deepEqual(table.runs, ["12 of 12 completed"]);
  assert.deepEqual(table.steps, ["60 of 60 completed"]);
  assert.deepEqual(table.effects, ["60, at most 1 per key"]);
  assert.deepEqual(table["dead letters"], ["1, 1 repaired"]);
  assert.deepEqual(table["kills survived"], ["1"]);
  for (const tool of ["stock.reserve", "warehouse.pick", "payments.charge", "couriers.book", "invoices.print"]) {
    assert.deepEqual(table[tool].slice(-2), ["12", "1"], tool);
  }
  const [, , unavailable, tooMany, refused] = table.all.map(Number);
  assert.deepEqual([unavailable, tooMany, refused], [24, 12, 1]);

  assert.match(demo.output, /kill -9 with \d+ of 60 steps done/);
  assert.equal(demo.output.match(/^✓ /gm).length, 6);
  assert.doesNotMatch(demo.output, /^✗ |\x1b/m);
  assert.deepEqual(demo.left(), []);
});

test("the demo cleans up when it is interrupted", { timeout: 60_000 }, async (t) => {
  const demo = startDemo(t);
  while (!demo.output.includes("orders placed")) {
    await Promise.race([once(demo.child.stdout, "data"), demo.ended]);
    assert.equal(demo.child.exitCode ?? demo.child.signalCode, null, demo.output);
  }
  const url = /Dormouse on (\S+),/.exec(demo.output)[1];
  demo.child.kill("SIGINT");
  const [code] = await demo.ended;
  assert.equal(code, 130, demo.output);
  assert.deepEqual(demo.left(), []);
  await assert.rejects(fetch(`${url}/healthz`), "the runtime still answers");
});
