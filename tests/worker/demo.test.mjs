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

/** Starts the demo without a terminal, its temporary files in a directory of their own. Without acts: all. */
function startDemo(t, ...acts) {
  const temporary = mkdtempSync(join(tmpdir(), "dormouse-demo-test-"));
  const child = spawn(newNode(), [join(root, "demo", "demo.mjs"), ...acts], {
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

/** Until the demo has said so. */
async function says(demo, text) {
  while (!demo.output.includes(text)) {
    await Promise.race([once(demo.child.stdout, "data"), demo.ended]);
    assert.equal(demo.child.exitCode ?? demo.child.signalCode, null, demo.output);
  }
}

const count = (text, pattern) => text.match(pattern)?.length ?? 0;

test("the demo plays its acts, and everything in them is right", { timeout: 180_000 }, async (t) => {
  const demo = startDemo(t);
  const [code] = await demo.ended;
  assert.equal(code, 0, demo.output);
  const acts = demo.output.split(/^(?:Second|Third) act: .*$/m);
  assert.equal(acts.length, 3, demo.output);
  assert.doesNotMatch(demo.output, /^✗ |\x1b/m);
  assert.deepEqual(demo.left(), []);

  await t.test("the orders survive the kill and every step takes effect once", () => {
    const [orders] = acts;
    const table = rows(orders);
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

    assert.match(orders, /kill -9 with \d+ of 60 steps done/);
    assert.equal(count(orders, /^✓ /gm), 6);
  });

  await t.test("the claim waits for days while nothing runs", () => {
    const [, claims] = acts;
    const table = rows(claims);
    assert.deepEqual(table.runs, ["2 of 2 completed"]);
    assert.deepEqual(table.steps, ["7 of 7 completed"]);
    assert.deepEqual(table.effects, ["3 under 3 keys, at most 1 per key"]);
    assert.deepEqual(table["stops survived"], ["5"]);
    assert.match(table.waited[0], /^2 d .* by the claim's clock, of which the demo moved it by 2 d$/);
    for (const [tool, answer] of [["garage.estimate", "202"], ["bank.transfer", "200"], ["post.letter", "200"]]) {
      assert.deepEqual(table[tool].slice(1), ["1", answer, "1"], tool);
    }

    assert.equal(count(claims, /^■ off/gm), 5);
    assert.equal(count(claims, /^▶ on/gm), 6);
    const waits = [...claims.matchAll(/^⏸ waits at step (\d); .*\n +(\w+): /gm)].map(([, step, kind]) => `${step} ${kind}`);
    assert.deepEqual(waits, ["0 callback", "1 timer", "2 approval", "3 child", "4 signal"]);
    assert.match(claims, /calls back: ECONNREFUSED/);
    assert.match(claims, /calls back again, .*: 200\. The same call once more: 410\./);
    assert.match(claims, /Looking changes nothing: the approval is pending, the log has (\d+) entries and had \1\./);
    assert.match(claims, /presses Approve: 303, then 200 “Approved”/);
    assert.match(claims, /Reject, there: 409 “Approved”/);
    assert.match(claims, /│ amount: 1970\.90$/m);
    assert.equal(count(claims, /^✓ /gm), 10);
  });

  await t.test("the model is corrected, and asked once for each round that is recorded", () => {
    const [, , buyer] = acts;
    const table = rows(buyer);
    assert.deepEqual(table.runs, ["1 of 1 completed"]);
    assert.deepEqual(table.steps, ["10 of 10 completed"]);
    assert.deepEqual(table.rounds, ["6 of 6 completed"]);
    assert.deepEqual(table["model calls"], ["7: 6 answers heard, 1 lost to a kill"]);
    assert.match(table.tokens[0], /^\d+ in, \d+ out$/);
    assert.deepEqual(table.effects, ["3 under 3 keys, at most 1 per key"]);
    assert.deepEqual(table["dead letters"], ["0"]);
    assert.deepEqual(table["kills survived"], ["2"]);
    const wrong = { 2: "invalid_arguments", 3: "unknown_tool" };
    for (let round = 1; round <= 6; round += 1) {
      const [asked, answers, , , malformed] = table[`round ${round}`];
      assert.deepEqual([asked, answers, malformed], round === 2 ? ["2", "lost heard", wrong[2]] : ["1", "heard", wrong[round] ?? "-"]);
    }

    assert.equal(count(buyer, /^▶ on/gm), 3);
    assert.equal(count(buyer, /^round \d {2}the model is asked$/gm), 6);
    assert.match(buyer, /kill -9, while the model thinks about round 2\.[^]*kill -9, while a person is awaited\./);
    assert.match(buyer, /✗ payments_charge, invalid_arguments: This is not JSON/);
    assert.match(buyer, /✗ bank_transfer, unknown_tool: there is no tool "bank_transfer"/);
    assert.match(buyer, /The run is completed: .*"paid":1070\.50,/);
    assert.equal(count(buyer, /^✓ /gm), 10);
  });
});

test("the demo cleans up when it is interrupted", { timeout: 60_000 }, async (t) => {
  const demo = startDemo(t, "orders");
  await says(demo, "orders placed");
  const url = /Dormouse on (\S+),/.exec(demo.output)[1];
  demo.child.kill("SIGINT");
  const [code] = await demo.ended;
  assert.equal(code, 130, demo.output);
  assert.deepEqual(demo.left(), []);
  await assert.rejects(fetch(`${url}/healthz`), "the runtime still answers");
});

test("the demo cleans up when it is interrupted while its runtime is off", { timeout: 60_000 }, async (t) => {
  const demo = startDemo(t, "claims");
  await says(demo, "calls back: ECONNREFUSED");
  const port = /nothing listens on port (\d+)/.exec(demo.output)[1];
  demo.child.kill("SIGINT");
  const [code] = await demo.ended;
  assert.equal(code, 130, demo.output);
  assert.deepEqual(demo.left(), []);
  await assert.rejects(fetch(`http://127.0.0.1:${port}/healthz`), "the runtime was started again");
});

test("the demo cleans up when it is interrupted while its model thinks", { timeout: 60_000 }, async (t) => {
  const demo = startDemo(t, "buyer");
  await says(demo, "round 2  the model is asked");
  const url = /Dormouse is started on (\S+),/.exec(demo.output)[1];
  demo.child.kill("SIGINT");
  const [code] = await demo.ended;
  assert.equal(code, 130, demo.output);
  assert.deepEqual(demo.left(), []);
  await assert.rejects(fetch(`${url}/healthz`), "the runtime still answers");
});
