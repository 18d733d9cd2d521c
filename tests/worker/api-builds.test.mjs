// The test seams are where they are wanted and nowhere else.

import assert from "node:assert/strict";
import { existsSync, readFileSync, readdirSync } from "node:fs";
import { join } from "node:path";
import test from "node:test";
import { root } from "../../scripts/steps.mjs";
import { verifyLog } from "./support/log.mjs";
import { startWorld } from "./support/runtime.mjs";
import { until } from "./support/until.mjs";

const UUID = "0192f3c4a5b67c8d9e0f112233445566";
const ROUTES = [
  ["POST", `/dev/runs/run_${UUID}/clock`, { advance: "P3D" }],
  ["POST", `/dev/runs/run_${UUID}/evict`],
  ["POST", `/dev/runs/run_${UUID}/redeliver`, { step_index: 0, copies: 1 }],
  ["GET", `/dev/runs/run_${UUID}/internals`],
  ["POST", "/dev/failpoints", { name: "consumer.received", action: "error", times: 1 }],
  ["DELETE", "/dev/failpoints"],
  ["POST", "/dev/kv", { mode: "absent" }],
  ["POST", "/dev/sweep"],
  ["GET", "/dev"],
  ["GET", "/dev/"],
];
const NAMES = [
  "front.after_commit",
  "front.after_send",
  "consumer.received",
  "consumer.claimed",
  "consumer.after_tool",
  "consumer.settled",
  "alarm.entered",
  "outbox.before_send",
  "outbox.after_send",
  "no such seam",
];
const SLEEP = { plan: { steps: [{ id: "nap", sleep: "P1D" }] } };

const filesOf = (build) => {
  const directory = join(root, "build", build);
  return readdirSync(directory, { recursive: true })
    .filter((name) => /\.(wasm|m?js)$/.test(name))
    .map((name) => [name, readFileSync(join(directory, name)).toString("latin1")]);
};

/** A world in which a run sleeps, and the routes that would touch it. */
async function withSleeper(options, work) {
  const world = await startWorld({ withSink: false, ...options });
  try {
    const { run_id } = await world.dev.startRun(SLEEP);
    const routes = ROUTES.map(([method, path, body]) => [method, path.replace(`run_${UUID}`, run_id), body]);
    await work(world, run_id, routes);
  } finally {
    await world.close();
  }
}

async function assertClosed(world, run_id, routes) {
  for (const client of [world.dev, world.operator, world.anonymous]) {
    for (const [method, path, body] of routes) {
      const answer = await client.call(method, path, { body });
      assert.equal(answer.status, 404, `${method} ${path}: ${answer.text}`);
      assert.equal(answer.json.type, "/problems/not-found");
    }
  }
  const run = await world.dev.run(run_id);
  assert.equal(run.status, "waiting", "nothing happened to the run");
}

test("a build with the seams opens them with TEST_SEAMS=1 and not otherwise", async () => {
  const text = filesOf("local").map(([, content]) => content).join("");
  for (const name of NAMES) assert.ok(text.includes(name), `${name} is not how a seam is found in a build`);
  for (const TEST_SEAMS of ["", "0", "true"]) await withSleeper({ vars: { TEST_SEAMS } }, assertClosed);
  await withSleeper({}, async (world, run_id, routes) => {
    for (const [method, path, body] of routes.filter(([, path]) => !/^\/dev\/?$/.test(path))) {
      const answer = await world.dev.call(method, path, { body });
      assert.equal(answer.status, 200, `${method} ${path}: ${answer.text}`);
    }
  });
});

test("a deployed build has none of them, even with TEST_SEAMS=1", { skip: !existsSync(join(root, "build", "deploy", "worker.mjs")) && "build/deploy is not there: `npm run build` makes it" }, async () => {
  for (const [file, text] of filesOf("deploy")) {
    for (const name of [...NAMES, "has_test_seams", "Failpoint"]) {
      if (file === "worker.mjs" && name === "has_test_seams") continue; // It asks whether the core has it.
      assert.ok(!text.includes(name), `${file} of the deployed build holds ${name}`);
    }
  }
  await withSleeper({ build: "deploy", vars: { TEST_SEAMS: "1" } }, assertClosed);
});

test("without its secrets a deployment opens nothing", async () => {
  const world = await startWorld({ withSink: false, vars: { DEV_API_KEY: "", ADMIN_TOKEN: "" } });
  try {
    for (const key of [undefined, "", "dev-key", "undefined", "null"]) {
      const client = world.anonymous.with(key);
      assert.equal((await client.get("/v1/runs")).status, 401, key);
      assert.equal((await client.post("/v1/tenants", { tenant_id: "a" })).status, 401, key);
    }
    assert.equal((await world.anonymous.get("/healthz")).status, 200);
  } finally {
    await world.close();
  }
});

test("each queue's consumer is set up explicitly, has a last stop, and the last stop has a consumer", async () => {
  const toml = readFileSync(join(root, "wrangler.toml"), "utf8");
  const consumers = toml.split("[[queues.consumers]]").slice(1).map((part) => Object.fromEntries([...part.matchAll(/^(\w+) = (.+)$/gm)].map(([, name, value]) => [name, JSON.parse(value)])));
  const producers = toml.split("[[queues.producers]]").slice(1).map((part) => /^queue = "(.+)"$/m.exec(part)[1]);
  const names = consumers.map(({ queue }) => queue);
  assert.deepEqual(producers.toSorted(), names.toSorted(), "a queue without a consumer drops its messages");
  const world = await startWorld({ withSink: false });
  try {
    for (const { queue, max_batch_size, max_batch_timeout, max_retries, dead_letter_queue } of consumers) {
      const effective = world.runtime.consumers[queue];
      // The local broker hands over one batch at a time, so its batches are larger; the rest is as deployed.
      assert.ok(effective.maxBatchSize >= max_batch_size, queue);
      assert.deepEqual(
        [effective.maxBatchTimeout, effective.maxRetries, effective.deadLetterQueue],
        [max_batch_timeout, max_retries, dead_letter_queue],
        queue,
      );
      assert.ok(max_batch_size > 0 && max_batch_timeout >= 0 && max_retries > 0, queue);
      assert.ok(dead_letter_queue === undefined ? queue.endsWith("-dead") : names.includes(dead_letter_queue), queue);
    }
  } finally {
    await world.close();
  }
});

test("runs that a restart interrupts all finish, each with one effect", async () => {
  const world = await startWorld();
  try {
    const tool = "slow";
    world.sink.on(`/${tool}`, { delay: 150, dedupe: true, body: { ok: true } });
    await world.dev.putTool(tool, { description: "slow", http: { url: `${world.sink.url}/${tool}` }, retry: { base: "PT0.05S" } });
    const steps = ["a", "b", "c"].map((id) => ({ id, tool, arguments: { id } }));
    const runs = await Promise.all(Array.from({ length: 20 }, () => world.dev.startRun({ plan: { steps } })));
    await until(() => world.sink.calls.length >= 10, { what: "the runs are under way" });
    await world.restart();
    for (const { run_id } of runs) {
      const run = await until(
        async () => {
          await world.dev.ok("POST", "/dev/sweep");
          const shown = await world.dev.run(run_id);
          return shown.status === "completed" && shown;
        },
        { what: `${run_id} has ended`, within: 40_000, every: 200 },
      );
      assert.deepEqual(run.steps.map(({ status }) => status), ["completed", "completed", "completed"]);
      await verifyLog(world.dev, run_id);
    }
    assert.equal(world.sink.firsts(`/${tool}`), 60, "a step's call is first once: any other is known to the tool by its key");
  } finally {
    await world.close();
  }
});
