// What a run asks of the platform, counted: the bill and the latency are made of these numbers.

import assert from "node:assert/strict";
import { execFileSync, spawn } from "node:child_process";
import { existsSync, readFileSync, readdirSync } from "node:fs";
import { join } from "node:path";
import { test } from "node:test";
import { fileURLToPath } from "node:url";
import { gzipSync } from "node:zlib";
import { stepsOf } from "./support/checks.mjs";
import { ASSUMED, priceOf } from "./support/price.mjs";
import { unique, worldOfFile } from "./support/runtime.mjs";
import { seamsOf } from "./support/seams.mjs";
import { until } from "./support/until.mjs";

const ROOT = fileURLToPath(new URL("../..", import.meta.url));
const world = worldOfFile({ vars: { IDEMPOTENCY_CACHE: "unsettled" } });

test("a tool", () => world.dev.putTool("straight", { http: { method: "POST", url: `${world.sink.url}/act` } }));

/** A run on the straight path, looked at only through the tenant's index, so that no count is disturbed. */
async function straightRun(count, headers) {
  const { dev, sink } = world;
  const tag = unique("tag");
  const before = sink.calls.length;
  const { run_id } = await dev.startRun({ plan: stepsOf("straight", count), tags: { tag } }, headers);
  await until(async () => (await dev.ok("GET", `/v1/runs?tag.tag=${tag}`)).items[0]?.status === "completed", {
    what: `a run of ${count} steps is listed as completed`,
  });
  assert.equal(sink.calls.length - before, count, "calls of the tool");
  return run_id;
}

/** Everything that a run of `count` steps made the platform do. */
async function operationsOf(count) {
  const seams = seamsOf(world.dev);
  const kvBefore = await seams.kvCounts();
  const runId = await straightRun(count);
  const told = (await seams.internals(runId)).operations;
  // The alarm that was set at the start is left to fire: moving it would be one more row.
  const fired = await until(
    async () => {
      const { operations } = await seams.internals(runId);
      return operations.alarms_fired >= told.alarms_set && operations;
    },
    { what: "the alarm fired" },
  );
  const kvAfter = await seams.kvCounts();
  return {
    ...told,
    // The one that asked for these counts is not the run's.
    calls: told.calls - 1,
    alarms_fired: fired.alarms_fired,
    commits_after_the_end: fired.commits - told.commits,
    kv_reads: kvAfter.reads - kvBefore.reads,
    kv_writes: kvAfter.writes - kvBefore.writes,
  };
}

/** The same as the platform bills it. The tenant's part: a run registered, and told of once. */
function billed(operations) {
  const TENANT = { calls: 2, rows: 2 };
  const consumers = operations.work_messages + operations.projections;
  const object_call = operations.calls + operations.alarms_fired + TENANT.calls;
  return {
    request: 1 + consumers,
    cpu_ms: ASSUMED.cpu_ms_of_request + consumers * ASSUMED.cpu_ms_of_consumer,
    object_call,
    object_ms: object_call * ASSUMED.object_ms_of_call,
    row_written: operations.rows_written + operations.alarms_set + TENANT.rows,
    queue_message: consumers,
    kv_read: operations.kv_reads,
    kv_write: operations.kv_writes,
  };
}

test("commits, rows, calls, messages and alarms of runs of one, three and ten steps", async (t) => {
  await straightRun(1);
  const [one, three, ten] = [await operationsOf(1), await operationsOf(3), await operationsOf(10)];
  for (const [steps, operations] of [[1, one], [3, three], [10, ten]]) {
    t.diagnostic(`${steps} steps: ${JSON.stringify(operations)}`);
    // The start, the first claim, and each report: the last with the end of the run.
    assert.equal(operations.commits, steps + 2, "commits");
    assert.equal(operations.rows_written, operations.commits, "a transition is one row");
    assert.equal(operations.calls, steps + 2, "calls of the run's object");
    assert.equal(operations.work_messages, 1, "messages of the work queue");
    assert.equal(operations.projections, 1, "messages of the events queue");
    assert.equal(operations.alarms_set, 1, "alarms set");
    assert.equal(operations.alarms_fired, 1, "alarms fired");
    assert.equal(operations.commits_after_the_end, 0, "an ended run writes nothing");
    assert.deepEqual([operations.kv_reads, operations.kv_writes], [0, 0], "KV operations");
    assert.equal(operations.duplicates_suppressed, 0);
  }
  // The aims, whatever the exact counts become.
  assert.ok(three.commits <= 7, "a three-step run is at most seven commits");

  for (const [steps, operations] of [[1, one], [3, three], [10, ten]]) {
    const { usd, parts } = priceOf(billed(operations));
    const shares = Object.entries(parts).map(([what, part]) => `${what} ${(part / steps).toFixed(2)}`);
    t.diagnostic(`$${(usd / steps).toFixed(2)} per million steps in runs of ${steps}: ${shares.join(", ")}`);
  }
  const marginal = (priceOf(billed(ten)).usd - priceOf(billed(three)).usd) / 7;
  t.diagnostic(`$${marginal.toFixed(2)} per million further steps`);
  assert.ok(marginal <= 3, `a further step costs $${marginal} per million`);
  assert.ok(priceOf(billed(ten)).usd / 10 <= 3, "a step of a run of ten costs at most $3 per million");
});

test("a client's key costs the run's object nothing", async () => {
  const seams = seamsOf(world.dev);
  const runId = await straightRun(3, { idempotencyKey: unique("key") });
  const { operations } = await seams.internals(runId);
  assert.deepEqual([operations.commits, operations.rows_written, operations.alarms_set], [5, 5, 1]);
});

test("fsyncs of a three-step run", async (t) => {
  const RUNS = 10;
  await straightRun(3);
  const workerd = workerdOfThisProcess();
  const traced = workerd && (await strace(workerd));
  if (!traced) {
    t.diagnostic("not measured: strace is missing, or may not attach");
    return t.skip("strace cannot attach here");
  }
  for (let i = 0; i < RUNS; i += 1) await straightRun(3);
  const fsyncs = await traced.end();
  t.diagnostic(`${fsyncs} fsyncs for ${RUNS} three-step runs: ${fsyncs / RUNS} each`);
  assert.ok(fsyncs > 0, "strace saw nothing");
  assert.ok(fsyncs / RUNS <= 15, `${fsyncs / RUNS} fsyncs per run`);
});

function workerdOfThisProcess() {
  try {
    const listed = execFileSync("ps", ["-eo", "pid=,ppid=,comm="], { encoding: "utf8" });
    const rows = listed.split("\n").map((line) => line.trim().split(/\s+/));
    const found = rows.find(([, ppid, command]) => Number(ppid) === process.pid && command === "workerd");
    return found && Number(found[0]);
  } catch {
    return undefined;
  }
}

/** Attaches, and answers how to end with the count of syncs; undefined where that cannot be done. */
async function strace(pid) {
  const child = spawn("strace", ["-f", "-e", "trace=fsync,fdatasync", "-p", String(pid)], { stdio: ["ignore", "ignore", "pipe"] });
  let text = "";
  child.stderr.setEncoding("utf8").on("data", (chunk) => (text += chunk));
  const ended = new Promise((done) => {
    child.on("error", done);
    child.on("close", done);
  });
  let over = false;
  ended.then(() => (over = true));
  await until(() => over || text.includes("attached"), { what: "strace attaches" });
  if (over || /not permitted/.test(text)) return undefined;
  return {
    async end() {
      child.kill("SIGINT");
      await ended;
      // A call that another thread interrupts stands twice, the second time as resumed.
      return (text.match(/\b(?:fsync|fdatasync)\(\d+/g) ?? []).length;
    },
  };
}

test("the deployed modules are small enough for every plan", (t) => {
  const directory = join(ROOT, "build", "deploy");
  if (!existsSync(join(directory, "worker.mjs"))) return t.skip("build/deploy is missing: npm run build");
  const files = readdirSync(directory).filter((name) => /\.(mjs|js|wasm)$/.test(name));
  const sizes = Object.fromEntries(files.map((name) => [name, gzipSync(readFileSync(join(directory, name)), { level: 9 }).length]));
  const total = Object.values(sizes).reduce((sum, size) => sum + size, 0);
  t.diagnostic(`gzipped: ${JSON.stringify(sizes)}, ${total} bytes together`);
  assert.ok(total < 3_000_000, `${total} bytes gzipped`);
});
