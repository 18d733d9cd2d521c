// A panic costs the request that it happens in and no other; a trap costs what was in flight, and is
// over with the next request. Nothing is ever left hanging.

import assert from "node:assert/strict";
import { describe, test } from "node:test";
import { assertAtRest, assertQuiet, assertRunIsRight, assertWholeLog, countOf, eachOf, stepsOf } from "./support/checks.mjs";
import { send } from "./support/deliver.mjs";
import { faultyWorld } from "./support/faulty.mjs";
import { heldTool } from "./support/held.mjs";
import { startWorld, unique } from "./support/runtime.mjs";
import { seamsOf } from "./support/seams.mjs";
import { until } from "./support/until.mjs";

const world = faultyWorld();

/** A tool that answers at once. */
async function quickTool(over, options = {}) {
  const name = unique("quick");
  await over.dev.putTool(name, { http: { method: "POST", url: `${over.sink.url}/${name}` }, ...options });
  return name;
}

/** Fifty requests of every kind, side by side: `{ what, answer }` of each. */
function fifty(client, tool, known) {
  const kinds = [
    (i) => client.get(`/v1/runs/${known[i % known.length]}`),
    () => client.get("/v1/runs?limit=5"),
    (i) => client.get(`/v1/runs/${known[i % known.length]}/events`),
    (i) => client.put(`/v1/tools/fifty-${i % 5}`, { http: { method: "POST", url: "http://127.0.0.1:1/" } }),
    () => client.get("/healthz"),
    () => client.get("/v1/dead-letters"),
    () => client.get("/openapi.json"),
    (i) => client.post("/v1/runs", { plan: stepsOf(tool, 2) }, { idempotencyKey: unique(`fifty-${i}`) }),
  ];
  return Promise.all(
    Array.from({ length: 50 }, async (_, i) => {
      const answer = await kinds[i % kinds.length](i);
      return { what: `${i}: kind ${i % kinds.length}`, answer };
    }),
  );
}

const failures = (answered) =>
  answered.filter(({ answer }) => answer.status >= 400).map(({ what, answer }) => `${what}: ${answer.status} ${answer.text}`);

const runsOf = (answered) => answered.map(({ answer }) => answer.json?.run_id).filter((id) => id !== undefined);

/** Strikes one new run at a failpoint while fifty requests run, and answers all of them. */
async function struckAmongFifty(point, action) {
  const { dev } = world;
  const seams = seamsOf(dev);
  const [quick, held] = [await quickTool(world), await heldTool(world)];
  const known = (await eachOf(Array(4).fill(0), 4, () => dev.runToEnd({ plan: stepsOf(quick, 2) }))).map(({ run_id }) => run_id);
  const texts = await Promise.all(known.map((id) => dev.get(`/v1/runs/${id}`)));
  // One call is on its way all the while.
  const underWay = await dev.startRun({ plan: stepsOf(held.name, 2) });
  await held.called(1);

  await seams.arm(point, action);
  const tag = unique("struck");
  const body = { plan: { steps: [{ id: "nap", sleep: "PT0.01S" }, { id: "act", tool: quick, arguments: {} }] }, tags: { tag } };
  // The struck run goes first, and the fifty follow at once.
  const struck = dev.post("/v1/runs", body, { idempotencyKey: tag });
  const answered = await fifty(dev, quick, known);
  const first = await struck;
  // The fault strikes one of those that pass the point, and is used up by it.
  await until(async () => ((await seams.armed())[point]?.times ?? 0) === 0, { what: `${action} at ${point} struck` });

  const again = await until(
    async () => {
      const answer = await dev.post("/v1/runs", body, { idempotencyKey: tag });
      return answer.status === 202 && answer;
    },
    { what: "the struck request is answered when it is sent again" },
  );
  const listed = (await dev.ok("GET", `/v1/runs?tag.tag=${tag}`)).items.map(({ run_id }) => run_id);
  assert.deepEqual(listed, [again.json.run_id], "one run, whatever became of the first answer");
  // What was stored before is as it was.
  for (const [i, id] of known.entries()) assert.equal((await dev.get(`/v1/runs/${id}`)).text, texts[i].text);
  held.releaseAll();
  for (const runId of [underWay.run_id, again.json.run_id, ...runsOf(answered)]) {
    await dev.untilRun(runId, ["completed", "failed", "cancelled", "blocked"], { within: 60_000 });
    await assertRunIsRight(dev, world.sink, runId);
    await assertAtRest(dev, runId);
  }
  return { first, answered, underWay };
}

for (const point of ["front.after_commit", "consumer.received", "consumer.claimed", "consumer.after_tool", "alarm.entered", "outbox.before_send"]) {
  test(`a panic at ${point} costs none of fifty other requests anything`, async () => {
    const before = world.lines.length;
    const { first, answered, underWay } = await struckAmongFifty(point, "panic");
    const failed = failures([{ what: "the run", answer: first }, ...answered]);
    // The panic may be any one request's that passes the point, and then that one is told.
    assert.ok(failed.length <= (point.startsWith("front") || point.startsWith("outbox") ? 1 : 0), failed.join("\n"));
    for (const { answer } of answered.filter(({ answer }) => answer.status >= 500)) {
      assert.equal(answer.headers.get("content-type"), "application/problem+json");
      assert.doesNotMatch(answer.text, /panic|failpoint|\.rs/, "the cause is not told to clients");
    }
    assert.equal(world.sink.calls.filter(({ headers }) => headers["dormouse-run-id"] === underWay.run_id).length, 2, "the call under way went on");
    const told = world.lines.slice(before).map(({ text }) => text).filter((text) => /panic/i.test(text));
    assert.ok(told.some((text) => /\.rs:\d+/.test(text)), `the log tells where it panicked: ${told.join("\n")}`);
  });
}

for (const point of ["front.after_commit", "consumer.claimed", "alarm.entered"]) {
  test(`running out of stack at ${point} ends what is in flight with an answer, and nothing after it`, async (t) => {
    const { dev } = world;
    const before = world.lines.length;
    const { first, answered } = await struckAmongFifty(point, "overflow");
    assert.ok(world.lines.slice(before).some(({ text }) => /instance died/.test(text)), "the instance died");
    t.diagnostic(`${failures([{ what: "the run", answer: first }, ...answered]).length} of 51 requests were in flight and told so`);
    for (const { what, answer } of [{ what: "the run", answer: first }, ...answered]) {
      if (answer.status < 400) continue;
      assert.ok([500, 503].includes(answer.status), `${what}: ${answer.status} ${answer.text}`);
      assert.equal(answer.headers.get("content-type"), "application/problem+json", what);
      assert.match(answer.json.type, /^\/problems\//);
    }
    // Everything works, at once.
    const quick = await quickTool(world);
    assert.deepEqual(failures(await fifty(dev, quick, runsOf(answered).slice(0, 3).concat(first.json?.run_id ?? []))), []);
  });
}

test("requests in flight when the instance dies are told to come again, and then have their runs", async () => {
  const { dev, sink } = world;
  const seams = seamsOf(dev);
  const quick = await quickTool(world);
  const keys = Array.from({ length: 10 }, () => unique("in-flight"));
  const post = (key) => dev.post("/v1/runs", { plan: stepsOf(quick, 1), tags: { key } }, { idempotencyKey: key });
  // Ten that would wait for a minute, had the instance not died.
  await seams.arm("front.after_commit", "delay", { times: keys.length, delay_ms: 60_000 });
  const waiting = keys.map(post);
  await until(async () => (await seams.armed())["front.after_commit"].times === 0, { what: "ten requests are in flight" });
  await seams.arm("consumer.claimed", "overflow");
  const last = await dev.startRun({ plan: stepsOf(quick, 1) });

  for (const answer of await Promise.all(waiting)) {
    assert.deepEqual([answer.status, answer.json.type], [503, "/problems/interrupted"]);
    assert.ok(Number(answer.headers.get("retry-after")) >= 1);
  }
  const again = await Promise.all(keys.map(post));
  assert.deepEqual(again.map(({ status }) => status), Array(keys.length).fill(202));
  for (const [i, key] of keys.entries()) {
    const listed = (await dev.ok("GET", `/v1/runs?tag.key=${key}`)).items.map(({ run_id }) => run_id);
    assert.deepEqual(listed, [again[i].json.run_id]);
  }
  for (const runId of [last.run_id, ...again.map(({ json }) => json.run_id)]) {
    await dev.untilRun(runId, ["completed", "failed", "blocked"], { within: 60_000 });
    await assertRunIsRight(dev, sink, runId);
  }
});

test("a panic while an object is in the middle of a turn gives up what it had in memory, and only that", async () => {
  const { dev, sink } = world;
  const seams = seamsOf(dev);
  const tool = await heldTool(world);
  const { run_id } = await dev.startRun({ plan: stepsOf(tool.name, 3) });
  for (let step = 0; step < 3; step += 1) {
    await tool.called(step + 1);
    await seams.arm("consumer.settled", "panic");
    tool.release();
    await until(async () => (await seams.armed())["consumer.settled"].times === 0, { what: "the panic" });
  }
  await dev.untilRun(run_id, "completed", { within: 60_000 });
  await assertRunIsRight(dev, sink, run_id);
});

test("every path that needs a clock, a wait or a random number takes it", async () => {
  const { dev, sink } = world;
  const failing = async (retry, answer) => {
    const name = unique("retried");
    sink.on(`/${name}`, [answer, { body: { ok: true } }]);
    await dev.putTool(name, { http: { method: "POST", url: `${sink.url}/${name}` }, retry: { max_attempts: 3, ...retry } });
    return { id: name, tool: name, arguments: {}, depends_on: [] };
  };
  const base = { base: "PT0.02S", max_wait: "PT0.1S" };
  const inASecond = new Date(Date.now() + 1_000).toUTCString();
  const steps = [
    ...(await Promise.all(["full", "equal", "decorrelated", "none"].map((jitter) => failing({ ...base, jitter }, { status: 503 })))),
    await failing(base, { status: 429, headers: { "retry-after": "0" } }),
    await failing(base, { status: 503, headers: { "retry-after": inASecond } }),
    await failing(base, { status: 503, headers: { "retry-after": "no date at all" } }),
    await failing(base, { close: true }),
    { id: "nap", sleep: "PT0.05S", depends_on: [] },
    { id: "past", sleep_until: "2020-01-01T00:00:00Z", depends_on: [] },
    { id: "soon", sleep_until: new Date(Date.now() + 500).toISOString(), depends_on: [] },
    { id: "told", emit: { type: "clock.told", data: { at: 1 } }, depends_on: [] },
  ];
  const { run_id } = await dev.startRun({ plan: { steps } });
  await dev.untilRun(run_id, ["completed", "failed", "blocked"], { within: 30_000 });
  const log = await assertRunIsRight(dev, sink, run_id);
  assert.equal(countOf(log, "tool.retry_scheduled"), 8);
  for (const entry of log) assert.match(entry.timestamp, /^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z$/);

  const agent = unique("hurried");
  const slow = await heldTool(world);
  await dev.putAgent(agent, { planner: { kind: "plan", steps: [{ id: "s", sleep: "P1D" }] }, limits: { deadline: "PT0.5S" } });
  const late = await dev.runToEnd({ agent });
  assert.deepEqual([late.status, late.error.reason], ["failed", "deadline_exceeded"]);
  slow.releaseAll();
});

describe("healthy runs leave a clean log", () => {
  test("tools that never answer, runs cancelled during a call, clients that hang up", async () => {
    const { dev, sink } = world;
    const seams = seamsOf(dev);
    const before = world.lines.length;
    const mute = await quickTool(world, { timeout: "PT0.5S", retry: { max_attempts: 1 } });
    sink.on(`/${mute}`, { hang: true });
    const held = await heldTool(world);
    const quick = await quickTool(world);
    const each = Array.from({ length: 20 }, (_, i) => i);

    const timedOut = eachOf(each, 20, async () => {
      const run = await dev.runToEnd({ plan: stepsOf(mute, 1) }, ["blocked", "failed"], { within: 60_000 });
      assert.equal(run.status, "blocked");
      const [letter] = await dev.deadLetters(run.run_id);
      assert.equal(letter.reason, "retries_exhausted");
      return run.run_id;
    });
    const cancelled = eachOf(each, 20, async () => {
      const { run_id } = await dev.startRun({ plan: stepsOf(held.name, 2) });
      await until(() => held.calls().some(({ headers }) => headers["dormouse-run-id"] === run_id), { what: "the call" });
      await dev.ok("POST", `/v1/runs/${run_id}/cancel`);
      return run_id;
    });
    // A client that goes away after 10 ms, and comes back with its key.
    const hungUp = eachOf(each, 20, async (i) => {
      const key = unique("hung-up");
      const body = { plan: stepsOf(quick, 1), tags: { key } };
      const cut = (path, options) =>
        fetch(`${dev.url}${path}`, {
          ...options,
          headers: { authorization: `Bearer ${dev.key}`, "content-type": "application/json", "idempotency-key": key },
          signal: AbortSignal.timeout(i < 10 ? 10 : 1 + (i % 5)),
        }).then((response) => response.text()).catch(() => undefined);
      await cut("/v1/runs", { method: "POST", body: JSON.stringify(body) });
      const { run_id } = await dev.startRun(body, { idempotencyKey: key });
      await cut(`/v1/runs/${run_id}/events`, { method: "GET" });
      await cut(`/v1/runs?tag.key=${key}`, { method: "GET" });
      await dev.untilRun(run_id, "completed");
      assert.equal((await dev.ok("GET", `/v1/runs?tag.key=${key}`)).items.length, 1, "the run exists once");
      await assertRunIsRight(dev, sink, run_id, { once: true });
      return run_id;
    });
    const [silent, stopped] = await Promise.all([timedOut, cancelled, hungUp]);
    held.releaseAll();
    for (const runId of stopped) {
      await dev.untilRun(runId, "cancelled");
      await until(async () => (await seams.internals(runId)).leases.length === 0, { what: "the worker of a cancelled run" });
      assertWholeLog(await dev.log(runId));
      const steps = held.calls().filter(({ headers }) => headers["dormouse-run-id"] === runId);
      assert.deepEqual(steps.map(({ headers }) => headers["dormouse-step-index"]), ["0"], "no further effect after the cancel");
    }
    for (const runId of silent) assertWholeLog(await dev.log(runId));
    assertQuiet(world.lines.slice(before));
    const errors = world.lines.slice(before).filter(({ level }) => level === "error");
    assert.deepEqual(errors, [], "nothing of it is an error");
  });
});

describe("cold start", () => {
  test("fifty parallel first requests succeed, on a new and on a kept state, some clients hanging up", async () => {
    for (let round = 0; round < 5; round += 1) {
      const cold = await startWorld();
      try {
        for (const state of ["new", "kept"]) {
          const { dev } = cold;
          const target = { http: { method: "POST", url: `${cold.sink.url}/act` } };
          const gone = Array.from({ length: 5 }, (_, i) =>
            fetch(`${dev.url}/v1/runs?limit=${i + 1}`, {
              headers: { authorization: `Bearer ${dev.key}` },
              signal: AbortSignal.timeout(10),
            }).then((response) => response.text()).catch(() => undefined),
          );
          const kinds = [
            (i) => dev.put(`/v1/tools/act-${state}-${i}`, target),
            (i) => dev.post("/v1/runs", { plan: { steps: [{ id: "nap", sleep: "PT0.01S" }] }, tags: { state } }, { idempotencyKey: `${state}-${i}` }),
            () => dev.get("/v1/runs"),
            () => dev.get("/v1/tools"),
            () => dev.get("/healthz"),
            () => dev.get("/schemas/envelope.json"),
            () => dev.get("/v1/dead-letters"),
            (i) => cold.operator.post("/v1/tenants", { tenant_id: `t-${state}-${i}` }),
          ];
          const answered = Promise.all(
            Array.from({ length: 50 }, async (_, i) => ({ what: `round ${round}, ${state} state, ${i}`, answer: await kinds[i % kinds.length](i) })),
          );
          // The first batch of a queue comes together with the first requests.
          const batch = send(cold, "WORK", `first batch ${state}`, "and another");
          const all = await answered;
          await Promise.all([batch, ...gone]);
          assert.deepEqual(failures(all), []);
          for (const runId of runsOf(all)) await dev.untilRun(runId, "completed");
          await until(async () => (await cold.operator.get("/v1/dead-letters")).text.includes(`first batch ${state}`), { what: "the first batch" });
          if (state === "new") await cold.restart();
        }
        assertQuiet(cold.lines);
        assert.deepEqual(cold.lines.filter(({ level }) => level === "error"), []);
      } finally {
        await cold.close();
      }
    }
  });
});
