// Messages that come twice, late, or while the run is busy.

import assert from "node:assert/strict";
import { createHash } from "node:crypto";
import { describe, test } from "node:test";
import { assertAtRest, assertOneEffect, assertQuiet, assertRunIsRight, assertWholeLog, countOf, stepsOf } from "./support/checks.mjs";
import { deliver, messageOf } from "./support/deliver.mjs";
import { heldTool } from "./support/held.mjs";
import { unique, worldOfFile } from "./support/runtime.mjs";
import { seamsOf } from "./support/seams.mjs";
import { until } from "./support/until.mjs";

// As deployed: the consumer waits for its messages, so that what it says of each is the outcome.
const PATIENT = { CONSUMER_PATIENCE_MS: "60000" };
const world = worldOfFile();

const logText = (client, runId) => client.get(`/v1/runs/${runId}/events?limit=200`).then(({ text }) => text);
const suppressed = (seams, runId) => seams.internals(runId).then((internals) => internals.duplicates_suppressed);

test("a step delivered again while it runs, after it ended and after its run ended is done once", async () => {
  const { dev, sink } = world;
  const seams = seamsOf(dev);
  const tool = await heldTool(world);
  const { run_id } = await dev.startRun({ plan: stepsOf(tool.name, 2) });
  await tool.called(1);

  await seams.redeliver(run_id, 0, 3);
  await until(async () => (await suppressed(seams, run_id)) === 3, { what: "three copies turned away" });
  assert.equal(sink.to(tool.path).length, 1);
  assert.equal(countOf(await dev.log(run_id), "tool.claimed", 0), 1, "one attempt");

  tool.release();
  await tool.called(2);
  await seams.redeliver(run_id, 0, 3);
  await until(async () => (await suppressed(seams, run_id)) === 6, { what: "six copies turned away" });

  tool.release();
  await dev.untilRun(run_id, "completed");
  const ended = await logText(dev, run_id);
  await seams.redeliver(run_id, 0, 2);
  await seams.redeliver(run_id, 1, 2);
  await until(async () => (await suppressed(seams, run_id)) === 10, { what: "ten copies turned away" });

  assert.equal(await logText(dev, run_id), ended, "the log after the end");
  const log = await assertRunIsRight(dev, sink, run_id, { once: true });
  const completed = log.filter((entry) => entry.event_type === "tool.completed");
  assert.deepEqual(completed.map(({ payload }) => [payload.attempt, payload.duplicates_suppressed ?? 0]), [[1, 3], [1, 0]]);
  await assertAtRest(dev, run_id);
});

test("ten copies in one batch are one call", async () => {
  const { dev, sink } = world;
  const seams = seamsOf(dev);
  const tool = await heldTool(world);
  // The run's own message is not sent: the ten are the first that any worker hears of the step.
  await seams.arm("outbox.before_send", "error");
  const { run_id } = await dev.startRun({ plan: stepsOf(tool.name, 1) });
  await seams.redeliver(run_id, 0, 10);
  await tool.called(1);
  await until(async () => (await suppressed(seams, run_id)) >= 9, { what: "nine copies turned away" });
  tool.releaseAll();
  await dev.untilRun(run_id, "completed");
  await assertRunIsRight(dev, sink, run_id, { once: true });
  await seams.disarm();
});

test("a copy of a step that waits for its next try does not bring it forward", async () => {
  const { dev, sink } = world;
  const seams = seamsOf(dev);
  const name = unique("later");
  sink.on(`/${name}`, [{ status: 503, headers: { "retry-after": "600" } }, { body: { ok: true } }]);
  await dev.putTool(name, { http: { method: "POST", url: `${sink.url}/${name}` } });
  const { run_id } = await dev.startRun({ plan: stepsOf(name, 1) });
  await until(async () => (await dev.run(run_id)).steps[0].status === "retrying", { what: "the step waits for its retry" });
  const before = await suppressed(seams, run_id);
  await seams.redeliver(run_id, 0, 5);
  await until(async () => (await suppressed(seams, run_id)) === before + 5, { what: "five early copies turned away" });
  assert.equal(sink.to(`/${name}`).length, 1);
  await seams.advance(run_id, "PT601S");
  await dev.untilRun(run_id, "completed");
  const [first, second] = sink.to(`/${name}`);
  assert.equal(second.key, first.key);
  assert.equal(sink.to(`/${name}`).length, 2);
});

test("a busy run burns no delivery: the lease is extended, copies are turned away, nothing is dead-lettered", async () => {
  const { dev, sink } = world;
  const seams = seamsOf(dev);
  const tool = await heldTool(world);
  const { run_id } = await dev.startRun({ plan: stepsOf(tool.name, 2) });
  await tool.called(1);
  // Longer than a first lease lasts, with copies all the while.
  let copies = 0;
  await until(
    async () => {
      await seams.redeliver(run_id, 0, 1);
      copies += 1;
      return countOf(await dev.log(run_id), "tool.lease_extended", 0) >= 3;
    },
    { what: "the lease is extended three times", within: 60_000, every: 250 },
  );
  const held = (await dev.log(run_id)).filter((entry) => entry.step_index === 0);
  const granted = held.find((entry) => entry.event_type === "tool.claimed");
  const last = held.findLast((entry) => entry.event_type === "tool.lease_extended");
  assert.ok(Date.parse(last.timestamp) > Date.parse(granted.payload.lease_until), "the call outlived its first lease");
  await until(async () => (await suppressed(seams, run_id)) === copies, { what: `${copies} copies turned away` });
  assert.deepEqual(await dev.deadLetters(run_id), []);

  tool.release();
  await tool.called(2);
  tool.release();
  const run = await dev.untilRun(run_id);
  assert.deepEqual(run.steps.map((step) => step.attempts), [1, 1]);
  const log = await assertRunIsRight(dev, sink, run_id, { once: true });
  assert.equal(countOf(log, "tool.lease_expired"), 0);
  // Deliveries and attempts are two numbers.
  assert.equal(log.find((entry) => entry.event_type === "tool.completed").payload.duplicates_suppressed, copies);
});

test("an object evicted in the middle of a call loses nothing", async () => {
  const { dev, sink } = world;
  const seams = seamsOf(dev);
  const tool = await heldTool(world);
  const { run_id } = await dev.startRun({ plan: stepsOf(tool.name, 2) });
  await tool.called(1);
  await seams.evict(run_id);
  await until(async () => (await dev.get(`/v1/runs/${run_id}`)).status === 200, { what: "the object is back" });
  await seams.redeliver(run_id, 0, 2);
  tool.release();
  await tool.called(2);
  await seams.evict(run_id);
  tool.release();
  await dev.untilRun(run_id);
  await assertRunIsRight(dev, sink, run_id, { once: true });
});

describe("the tool acted, and its answer was lost", () => {
  const LOST = {
    "it answered 503": { status: 503 },
    "it cut the connection": { close: true },
    "it answered too late": { delay: 1_500 },
  };

  for (const [what, answer] of Object.entries(LOST)) {
    test(`${what}: each attempt bears the key of the documented rule`, async () => {
      const { dev, sink } = world;
      const name = unique("lost");
      sink.on(`/${name}`, [answer, { body: { replayed: true } }]);
      await dev.putTool(name, {
        http: { method: "POST", url: `${sink.url}/${name}` },
        timeout: "PT0.5S",
        retry: { max_attempts: 3, base: "PT0.01S", max_wait: "PT0.01S" },
      });
      const [run, other] = await Promise.all([dev.runToEnd({ plan: stepsOf(name, 2) }), dev.runToEnd({ plan: stepsOf(name, 2) })]);
      for (const { run_id, steps } of [run, other]) {
        for (const { step_index, idempotency_key } of steps) {
          const payload = { arguments: { i: step_index }, tool: name };
          const canonical = JSON.stringify([run_id, step_index, payload]);
          assert.equal(idempotency_key, createHash("sha256").update(canonical).digest("hex"));
        }
        await assertRunIsRight(dev, sink, run_id);
      }
      assert.equal(sink.firsts(`/${name}`), 4);
      assert.equal(sink.to(`/${name}`).length, 5, "one call was made twice");
      const repeated = [...run.steps, ...other.steps].filter(({ attempts }) => attempts === 2);
      assert.equal(repeated.length, 1);
      assert.deepEqual(sink.withKey(repeated[0].idempotency_key).map(({ headers }) => headers["dormouse-attempt"]), ["1", "2"]);
    });

    test(`${what}: a call that must not be made twice waits for a person`, async () => {
      const { dev, sink } = world;
      const name = unique("lost-once");
      sink.on(`/${name}`, [answer, { body: { again: true } }]);
      await dev.putTool(name, { http: { method: "POST", url: `${sink.url}/${name}` }, timeout: "PT0.5S", effect: "at_most_once" });
      const run = await dev.runToEnd({ plan: stepsOf(name, 1) }, ["blocked", "completed", "failed"]);
      assert.equal(run.status, "blocked");
      const letters = await dev.deadLetters(run.run_id);
      assert.deepEqual(letters.map(({ reason }) => reason), ["outcome_unknown"]);
      const seams = seamsOf(dev);
      await seams.redeliver(run.run_id, 0, 3);
      await until(async () => (await suppressed(seams, run.run_id)) >= 3, { what: "copies turned away" });
      await seams.advance(run.run_id, "P30D");
      assert.equal((await dev.run(run.run_id)).status, "blocked");
      assert.equal(sink.to(`/${name}`).length, 1, "it was not repeated");
      assertWholeLog(await dev.log(run.run_id));
    });
  }
});

describe("messages of a run that has ended", () => {
  const patient = worldOfFile({ vars: PATIENT });

  test("are acknowledged at once, and change nothing", async () => {
    const { dev, sink } = patient;
    const seams = seamsOf(dev);
    sink.on("/act", { body: { ok: true } });
    await dev.putTool("act", { http: { method: "POST", url: `${sink.url}/act` } });
    const held = await heldTool(patient);
    const completed = await dev.runToEnd({ plan: stepsOf("act", 3) });
    const cancelled = await dev.startRun({ plan: stepsOf(held.name, 1) });
    await held.called(1);
    const late = messageOf(await dev.log(cancelled.run_id), 0);
    await dev.ok("POST", `/v1/runs/${cancelled.run_id}/cancel`);
    held.releaseAll();
    await dev.untilRun(cancelled.run_id, "cancelled");

    const logs = async () => [await logText(dev, completed.run_id), await logText(dev, cancelled.run_id)];
    // What was in flight at the cancel is recorded when it comes back, before the log is compared.
    await until(async () => (await seams.internals(cancelled.run_id)).leases.length === 0, { what: "the worker came back" });
    const before = await logs();
    const calls = sink.calls.length;
    const log = await dev.log(completed.run_id);
    const bodies = Array.from({ length: 20 }, (_, i) => (i < 15 ? messageOf(log, i % 3) : late));
    for (const attempts of [1, 2]) {
      const said = await deliver(patient, bodies, { attempts });
      assert.deepEqual(said, { outcome: "ok", acked: bodies.map((_, i) => i), retried: [], whole: undefined });
    }
    assert.deepEqual(await logs(), before, "the logs after the end");
    assert.equal(sink.calls.length, calls, "no tool was called again");
    assert.deepEqual((await dev.ok("GET", "/v1/dead-letters")).items, []);
    assert.ok((await suppressed(seams, completed.run_id)) >= 30);
    for (const runId of [completed.run_id, cancelled.run_id]) assertWholeLog(await dev.log(runId));
  });

  test("are no matter for a person even as the dead letters of their queue", async () => {
    const { dev, sink } = patient;
    const { run_id } = await dev.runToEnd({ plan: stepsOf("act", 1) });
    const before = await logText(dev, run_id);
    const message = messageOf(await dev.log(run_id), 0);
    const said = await deliver(patient, Array(5).fill(message), { attempts: 1, queue: "dormouse-dead" });
    assert.deepEqual(said.acked, [0, 1, 2, 3, 4]);
    assert.equal(await logText(dev, run_id), before);
    assert.deepEqual((await dev.ok("GET", "/v1/dead-letters")).items, []);
    assertOneEffect(sink, await dev.run(run_id), { once: true });
  });

  test("nothing of it is hung or dead in the log", () => assertQuiet(patient.lines));
});

describe("the cache of outcomes is never the truth", () => {
  const cached = worldOfFile({ vars: { ...PATIENT, IDEMPOTENCY_CACHE: "all" } });

  for (const mode of ["normal", "absent", "error", "slow"]) {
    test(`KV ${mode}: ten parallel copies and ten creations with one key are one run, each step called once`, async (t) => {
      const { dev, sink } = cached;
      const seams = seamsOf(dev);
      await seams.kv(mode);
      t.after(() => seams.kv("normal"));
      const tool = await heldTool(cached);
      const body = { plan: stepsOf(tool.name, 2), tags: { mode } };
      const created = await Promise.all(
        Array.from({ length: 10 }, () => dev.post("/v1/runs", body, { idempotencyKey: `once-${mode}` })),
      );
      assert.deepEqual([...new Set(created.map(({ status }) => status))], [202], created.map(({ text }) => text).join("\n"));
      assert.equal(new Set(created.map(({ json }) => json.run_id)).size, 1, "one key, one run");
      const { run_id } = created[0].json;
      assert.equal((await dev.ok("GET", `/v1/runs?tag.mode=${mode}`)).items.length, 1);

      for (const step of [0, 1]) {
        await tool.called(step + 1);
        const message = messageOf(await dev.log(run_id), step);
        const copies = Promise.all([
          deliver(cached, Array(5).fill(message), { attempts: 1 }),
          deliver(cached, Array(5).fill(message), { attempts: 2 }),
        ]);
        const said = await copies;
        assert.deepEqual(said.map(({ acked }) => acked.length), [5, 5], JSON.stringify(said));
        assert.equal(sink.to(tool.path).length, step + 1, "the copies called nothing");
        tool.release();
      }
      await dev.untilRun(run_id, "completed", { within: 60_000 });
      const message = messageOf(await dev.log(run_id), 1);
      const after = await deliver(cached, Array(10).fill(message), { attempts: 2 });
      assert.equal(after.acked.length, 10);
      await assertRunIsRight(dev, sink, run_id, { once: true });
    });
  }

  test("an outcome of another attempt, or a cache emptied in the middle of a run, changes nothing", async () => {
    const { dev, sink } = cached;
    const tool = await heldTool(cached);
    const { run_id } = await dev.startRun({ plan: stepsOf(tool.name, 2) });
    await tool.called(1);
    const run = await dev.run(run_id);
    const kv = await cached.runtime.miniflare.getKVNamespace("OUTCOMES");
    const stale = { step_index: 0, token: 999, report: { completed: { result: { stale: true }, status_code: 200 } } };
    await kv.put(`outcome/dev/${run.steps[0].idempotency_key}`, JSON.stringify(stale));
    const message = messageOf(await dev.log(run_id), 0);
    const said = await deliver(cached, Array(10).fill(message), { attempts: 2 });
    assert.equal(said.acked.length, 10);
    assert.equal((await dev.run(run_id)).steps[0].status, "running", "the step is still its worker's");

    tool.release();
    await tool.called(2);
    for (const { name } of (await kv.list()).keys) await kv.delete(name);
    tool.release();
    const ended = await dev.untilRun(run_id, "completed");
    assert.deepEqual(ended.steps.map(({ result }) => result), [{ ok: true }, { ok: true }]);
    await assertRunIsRight(dev, sink, run_id, { once: true });
  });

  test("nothing of it is hung or dead in the log", () => assertQuiet(cached.lines));
});

test("no line of the runtime tells of hung or dead code", () => assertQuiet(world.lines));
