// What a wait and its wake ask of the platform: rows, alarms, calls of the run's object, messages. It prints a table and asserts nothing.
//
// Usage: npm run bench:operations

import { mkdtempSync, rmSync } from "node:fs";
import { setTimeout as sleep } from "node:timers/promises";
import os from "node:os";
import path from "node:path";
import { fileURLToPath } from "node:url";
import { Sink } from "./lib/sink.mjs";
import { System, freePort, killAll, request } from "./lib/system.mjs";

const sink = new Sink();
await sink.listen();
const stateDir = mkdtempSync(path.join(os.tmpdir(), "dormouse-operations-"));
const product = fileURLToPath(new URL("..", import.meta.url));
// The local build: only there can an object's counts be read.
const system = new System({ name: "dormouse", stateDir, port: await freePort(), sink: sink.url, product, build: "local" });

async function ask(method, target, body) {
  const { status, text } = await request(system.agent, method, system.base + target, body, { authorization: "Bearer dev-key" });
  if (status >= 300) throw new Error(`${method} ${target} answered ${status}: ${text.slice(0, 500)}`);
  return text === "" ? undefined : JSON.parse(text);
}

/** What the run and the cache did so far. The object forgets its counts when it leaves memory, after 10 s of rest. */
class Counted {
  #asked = 0;
  constructor(runId, kv) {
    Object.assign(this, { runId, kv });
  }
  async read() {
    const { operations } = await ask("GET", `/dev/runs/${this.runId}/internals`);
    const kv = await ask("GET", "/dev/kv");
    this.#asked += 1;
    // Those that asked for these counts are not the run's.
    return { ...operations, calls: operations.calls - this.#asked, kv_reads: kv.reads - this.kv.reads, kv_writes: kv.writes - this.kv.writes };
  }
}
async function started(steps) {
  const kv = await ask("GET", "/dev/kv");
  const { run_id } = await ask("POST", "/v1/runs", { plan: { steps }, input: {} });
  return new Counted(run_id, kv);
}
const minus = (a, b) => Object.fromEntries(Object.keys(a).map((what) => [what, a[what] - b[what]]));

// An alarm that stands is due after 3 s; by then what is told to the index has been told, too.
const SETTLED_MS = 5_000;
const call = (s) => ({ id: `call${s}`, tool: "bench.first", arguments: { r: "operations", s } });
const wait = { id: "wait", wait_for: "go" };

try {
  await system.start();
  await system.prepare();
  const warm = await started([call(1), wait, call(3)]);
  await sleep(1_000);
  await ask("POST", `/v1/runs/${warm.runId}/signals/go`, {});
  await sleep(SETTLED_MS);

  const two = await started([call(1), call(3)]);
  await sleep(SETTLED_MS);
  const straight = await two.read();
  const run = await started([call(1), wait, call(3)]);
  await sleep(SETTLED_MS);
  const waiting = await run.read();
  await ask("POST", `/v1/runs/${run.runId}/signals/go`, {});
  await sleep(SETTLED_MS);
  const ended = await run.read();

  const columns = [
    ["a call, then waiting", waiting],
    ["the wake, a call, the end", minus(ended, waiting)],
    ["all of it", ended],
    ["two calls, no wait", straight],
    ["so the wait adds", minus(ended, straight)],
  ];
  const lines = [["", ...columns.map(([what]) => what)], ...Object.keys(ended).map((what) => [what, ...columns.map(([, counts]) => counts[what])])];
  const widths = lines[0].map((_, column) => Math.max(...lines.map((line) => String(line[column]).length)));
  for (const line of lines) console.log(line.map((cell, column) => (column === 0 ? String(cell).padEnd(widths[0]) : String(cell).padStart(widths[column]))).join("  "));
} finally {
  await killAll();
  sink.close();
  rmSync(stateDir, { recursive: true, force: true });
}
