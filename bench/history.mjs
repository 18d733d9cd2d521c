// How a run with a long log behaves: to feed, to load, to append to, to read. It prints a table and asserts nothing.
//
// Usage: npm run bench:history -- [--entries N] [--dir DIR]

import { mkdtempSync, readdirSync, rmSync, statSync } from "node:fs";
import os from "node:os";
import path from "node:path";
import { fileURLToPath } from "node:url";
import { parseArgs } from "node:util";
import { treeMemory } from "./lib/proc.mjs";
import { Sink } from "./lib/sink.mjs";
import { System, freePort, killAll, request } from "./lib/system.mjs";
import { median } from "./lib/stats.mjs";

const { values: given } = parseArgs({
  options: { entries: { type: "string", default: "20000" }, dir: { type: "string", default: os.tmpdir() } },
});
const wanted = Number(given.entries);
const PER_REQUEST = 100;
/** Entries of a step: a request, a claim, a result. */
const PER_STEP = 3;
const TIMES = 5;

const sink = new Sink();
await sink.listen();
const stateDir = mkdtempSync(path.join(given.dir, "dormouse-history-"));
const product = fileURLToPath(new URL("..", import.meta.url));
// The local build: only there can an object be dropped on request.
const system = new System({ name: "dormouse", stateDir, port: await freePort(), sink: sink.url, product, build: "local" });

async function ask(method, target, body, headers = {}) {
  const { status, text } = await request(system.agent, method, system.base + target, body, { authorization: "Bearer dev-key", ...headers }, 120_000);
  if (status >= 300) throw new Error(`${method} ${target} answered ${status}: ${text.slice(0, 500)}`);
  return text === "" ? undefined : text;
}
/** Bytes of the largest database: that of the only run. */
function storedBytes() {
  const files = readdirSync(stateDir, { recursive: true }).filter((name) => /\.sqlite$/.test(name));
  return Math.max(...files.map((name) => statSync(path.join(stateDir, name)).size));
}
const json = async (...all) => JSON.parse(await ask(...all));

const rows = [];
const tell = (what, figure) => rows.push([what, figure]);
const ms = (value) => `${value.toFixed(value < 10 ? 1 : 0)} ms`;
const mib = (bytes) => (bytes === null ? "unknown" : `${(bytes / 2 ** 20).toFixed(0)} MiB`);
async function timed(work) {
  const began = performance.now();
  const answer = await work();
  return { answer, took: performance.now() - began };
}
/** The median of a few times, each after `before`. */
async function often(work, before = () => {}) {
  const times = [];
  for (let time = 0; time < TIMES; time += 1) {
    await before();
    times.push((await timed(work)).took);
  }
  return median(times);
}

try {
  await system.start();
  await ask("PUT", "/v1/tools/history", { http: { method: "POST", url: sink.url } });
  await ask("PUT", "/v1/agents/history", { tools: ["history"], planner: { kind: "external" }, limits: { max_steps: 10_000 } });
  const { run_id } = await json("POST", "/v1/runs", { agent: "history" });
  const log = `/v1/runs/${run_id}/events`;
  const lastSeq = async () => (await json("GET", `${log}?order=desc&limit=1`)).last_seq;
  let step = 0;
  const feed = (count) => {
    const envelopes = Array.from({ length: count }, () => {
      const envelope = { event_type: "tool.requested", run_id, step_index: step, payload: { tool: "history", arguments: { r: "history", s: step } } };
      step += 1;
      return envelope;
    });
    return ask("POST", "/v1/envelopes", envelopes);
  };
  /** Waits until no step is under way: then the log grows no more by itself. */
  const settled = async () => {
    while ((await json("GET", `/v1/runs/${run_id}`)).steps.some(({ status }) => status !== "completed")) {
      await new Promise((done) => setTimeout(done, 500));
    }
  };
  // The object is dropped just after this is answered.
  const evict = async () => {
    await ask("POST", `/dev/runs/${run_id}/evict`);
    await new Promise((done) => setTimeout(done, 50));
  };

  await feed(PER_REQUEST);
  await settled();
  tell("memory of the runtime with a short log", mib(treeMemory(system.pid)));
  const short = { append: await often(() => feed(1)), load: await often(() => ask("GET", log), evict) };

  const began = performance.now();
  const batches = [];
  const steps = Math.min(Math.ceil(wanted / PER_STEP), 10_000 - PER_REQUEST);
  while (step < steps) batches.push((await timed(() => feed(Math.min(PER_REQUEST, steps - step)))).took);
  await settled();
  const seconds = (performance.now() - began) / 1_000;
  const entries = await lastSeq();
  tell("entries of the log, steps", `${entries}, ${step}`);
  tell("to feed and run them", `${seconds.toFixed(0)} s`);
  tell(`${PER_REQUEST} envelopes, the first ten and the last ten requests`, `${ms(median(batches.slice(0, 10)))}, ${ms(median(batches.slice(-10)))}`);
  tell("memory of the runtime after it", mib(treeMemory(system.pid)));
  await system.kill();
  tell("the run's database", `${(storedBytes() / 1e6).toFixed(1)} MB`);
  await system.start();
  const unloaded = treeMemory(system.pid);
  await ask("GET", `${log}?order=desc&limit=1`);
  tell("memory of a new runtime before and after it loaded the log", `${mib(unloaded)}, ${mib(treeMemory(system.pid))}`);
  for (let time = 0; time < TIMES; time += 1) {
    await evict();
    await ask("GET", `${log}?order=desc&limit=1`);
  }
  tell(`the same after ${TIMES} times more`, mib(treeMemory(system.pid)));
  tell("first page of the log after the object left memory", `${ms(await often(() => ask("GET", log), evict))} (short log: ${ms(short.load)})`);
  tell("the same from memory", ms(await often(() => ask("GET", log))));
  tell("the last 50 entries", ms(await often(() => ask("GET", `${log}?order=desc&limit=50`))));
  tell("one more envelope", `${ms(await often(() => feed(1)))} (short log: ${ms(short.append)})`);
  await settled();
  let pages = 0;
  const { took: all } = await timed(async () => {
    for (let cursor = ""; cursor !== null; pages += 1) {
      cursor = (await json("GET", `${log}?limit=200${cursor && `&cursor=${cursor}`}`)).next_cursor;
    }
  });
  tell(`all ${entries} entries in ${pages} pages`, ms(all));
  let lines = 0;
  const { took: inLines } = await timed(async () => {
    for (let after = 0, more = true; more; ) {
      const text = await ask("GET", `${log}?after=${after}`, undefined, { accept: "application/x-ndjson" });
      const read = text.split("\n").length - 1;
      lines += read;
      after += read;
      more = read === 2_000;
    }
  });
  tell(`${lines} entries as lines`, ms(inLines));
  const { answer: run, took: view } = await timed(() => ask("GET", `/v1/runs/${run_id}`));
  tell(`the run itself, ${(run.length / 1e6).toFixed(1)} MB`, ms(view));
  tell("memory of the runtime at the end", mib(treeMemory(system.pid)));
} finally {
  const width = Math.max(0, ...rows.map(([what]) => what.length));
  for (const [what, figure] of rows) console.log(`${what.padEnd(width)}  ${figure}`);
  await killAll();
  sink.close();
  rmSync(stateDir, { recursive: true, force: true });
}
