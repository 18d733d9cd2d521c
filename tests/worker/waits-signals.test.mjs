// Signals: kept when they come early, taken once and in order, never lost, and never in two ways.

import assert from "node:assert/strict";
import { describe, test } from "node:test";
import { assertOneEffect, assertQuiet, countOf, eachOf } from "./support/checks.mjs";
import { heldTool } from "./support/held.mjs";
import { rawAt } from "./support/json.mjs";
import { randomOf } from "./support/random.mjs";
import { unique, worldOfFile } from "./support/runtime.mjs";
import { seamsOf } from "./support/seams.mjs";
import { until } from "./support/until.mjs";
import { assertProblem, assertSignals, assertStanding, diagnosis, kindsOf, release, signal, signalled, toolOf, typesAt } from "./support/waits.mjs";

const world = worldOfFile();

const pause = (ms) => new Promise((done) => setTimeout(done, ms));
const wait = (id, names, more = {}) => ({ id, wait_for: names, ...more });
/** Independent steps, all begun at once. */
const beside = (...steps) => steps.map((step) => ({ depends_on: [], ...step }));
const startWith = (plan, more = {}) => world.dev.startRun({ plan, ...more });
const statusOf = async (runId, step) => (await world.dev.run(runId)).steps[step].status;

describe("before, at and after its wait", () => {
  test("a signal sent with the start, during the step before, or after it, is taken by its wait", async (t) => {
    const { dev } = world;
    const random = randomOf(t);
    const tool = await toolOf(world, "before", { body: {}, delay: 250 });
    const plan = {
      steps: [{ id: "work", tool }, wait("paid", "paid", { timeout: "PT10M" })],
      output: "{{ steps.paid.result }}",
    };
    // With the start, soon after it, as the step ends, and when the wait has long begun.
    const moments = [() => 0, () => 10, () => 100, () => 230 + random.below(60), () => 600];
    const runs = Array.from({ length: 50 }, (_, n) => ({ n, after: moments[n % moments.length]() }));
    const ids = await eachOf(runs, 25, async ({ n, after }) => {
      const { run_id } = await startWith(plan);
      await pause(after);
      // Its own idea of the time has no say.
      await signalled(dev, run_id, "paid", { n, sent_at: "2001-01-01T00:00:00Z" });
      return run_id;
    });
    await eachOf(ids, 8, async (runId, n) => {
      const run = await dev.untilRun(runId);
      assert.deepEqual([run.status, run.output.n], ["completed", n]);
      const { log } = await assertStanding(world, runId, { many: n >= moments.length });
      assert.deepEqual([countOf(log, "signal.received"), countOf(log, "signal.consumed", 1)], [1, 1]);
      const [ended] = log.filter(({ event_type }) => event_type === "wait.ended");
      assert.deepEqual(ended.payload, { kind: "signal", outcome: "received" });
      assertOneEffect(world.sink, run, { once: true });
    });
  });

  test("what came early is in the mailbox until its wait begins, also when the run is dropped from memory", async () => {
    const { dev } = world;
    const seams = seamsOf(dev);
    const tool = await heldTool(world);
    const { run_id } = await startWith({ steps: [{ id: "work", tool: tool.name }, wait("paid", "paid")], output: "{{ steps.paid.result }}" });
    await tool.called(1);
    const accepted = await signalled(dev, run_id, "paid", { cents: 7 });
    assert.deepEqual(accepted, { run_id, name: "paid", seq: accepted.seq });
    for (let n = 0; n < 2; n += 1) {
      const run = await dev.run(run_id);
      assert.deepEqual(run.mailbox.map(({ seq, name }) => ({ seq, name })), [{ seq: accepted.seq, name: "paid" }]);
      assert.ok(Date.parse(run.mailbox[0].received_at) >= Date.parse(run.created_at));
      await seams.evict(run_id);
    }
    tool.releaseAll();
    const run = await dev.untilRun(run_id);
    assert.deepEqual([run.output, run.mailbox], [{ cents: 7 }, []]);
    const { log } = await assertStanding(world, run_id);
    assert.deepEqual(typesAt(log, 1), ["wait.started", "signal.consumed", "wait.ended"]);
    assert.equal(log.find(({ event_type }) => event_type === "signal.consumed").payload.received_seq, accepted.seq);
  });

  test("signals of one name are taken in the order in which they came, those of others are left", async () => {
    const { dev } = world;
    const tool = await heldTool(world);
    const waits = ["b", "a", ["a", "b"], "a", ["c", "b"], "a"].map((names, n) => wait(`w${n}`, names));
    const output = Object.fromEntries(waits.map(({ id }) => [id, `{{ steps.${id}.result }}`]));
    const { run_id } = await startWith({ steps: [{ id: "work", tool: tool.name }, ...waits], output });
    await tool.called(1);
    for (const [name, n] of [["a", 1], ["b", 1], ["a", 2], ["unwanted", 1], ["a", 3], ["b", 2], ["A", 1]]) {
      await signalled(dev, run_id, name, { n });
    }
    tool.releaseAll();
    await until(async () => (await statusOf(run_id, 6)) === "waiting", { what: "all but the last wait have theirs" });
    assert.deepEqual((await dev.run(run_id)).mailbox.map(({ name }) => name), ["unwanted", "A"]);
    await signalled(dev, run_id, "a", { n: 4 });
    const run = await dev.untilRun(run_id);
    assert.deepEqual(run.output, {
      w0: { n: 1 },
      w1: { n: 1 },
      w2: { signal: "a", payload: { n: 2 } },
      w3: { n: 3 },
      w4: { signal: "b", payload: { n: 2 } },
      w5: { n: 4 },
    });
    await assertStanding(world, run_id);
  });
});

describe("what is sent", () => {
  test("a payload comes back digit for digit, whatever it is; none is null", async () => {
    const { dev } = world;
    const texts = [
      '{"id":18446744073709551616,"neg":-9223372036854775809,"e":1e+21,"d":0.1000}',
      '{"€":"é\\n😀","ключ":["订单",""]}',
      "[]",
      "{}",
      "null",
      "0",
      '"text"',
      "false",
    ];
    const plan = { steps: [wait("s", "x")], output: { got: "{{ steps.s.result }}" } };
    await eachOf(texts, 4, async (text) => {
      const { run_id } = await startWith(plan);
      const answer = await dev.post(`/v1/runs/${run_id}/signals/x`, `{"payload":${text}}`);
      assert.equal(answer.status, 202, answer.text);
      await dev.untilRun(run_id, "completed");
      const run = await dev.get(`/v1/runs/${run_id}`);
      const bare = (value) => JSON.stringify(value);
      assert.deepEqual(JSON.parse(rawAt(run.text, "output", "got")), JSON.parse(text));
      if (/\d{10}/.test(text)) for (const digits of text.match(/\d{10,}/g)) assert.ok(rawAt(run.text, "output", "got").includes(digits), run.text);
      const { log } = await assertStanding(world, run_id);
      assert.equal(bare(log.find(({ event_type }) => event_type === "signal.received").payload.payload), bare(JSON.parse(text)));
    });
    for (const body of [undefined, "", "{}"]) {
      const { run_id } = await startWith(plan);
      assert.equal((await dev.post(`/v1/runs/${run_id}/signals/x`, body)).status, 202);
      assert.deepEqual((await dev.untilRun(run_id, "completed")).output, { got: null });
    }
  });

  test("a payload of 512 KiB is carried whole to the step after, one of a byte more is refused", async () => {
    const { dev, sink } = world;
    const tool = await toolOf(world, "large");
    const plan = { steps: [wait("s", "x"), { id: "use", tool, arguments: { got: "{{ steps.s.result }}" } }] };
    const limit = 512 * 1024;
    // The arguments are this and a few bytes, and they have the same bound.
    const { run_id } = await startWith({ steps: [wait("s", "x")] });
    assertProblem(await signal(dev, run_id, "x", "a".repeat(limit - 1)), 413, "too-large");
    assert.deepEqual((await dev.run(run_id)).mailbox, []);
    await signalled(dev, run_id, "x", "é".repeat((limit - 2) / 2));
    assert.equal(Buffer.byteLength((await dev.untilRun(run_id, "completed")).output), limit - 2);
    assertProblem(await signal(dev, (await startWith(plan)).run_id, "x", "a".repeat(1024 * 1024)), 413, "too-large");

    const used = await startWith(plan);
    await signalled(dev, used.run_id, "x", "b".repeat(limit - 20));
    await dev.untilRun(used.run_id, "completed");
    assert.equal(sink.to(`/${tool}`)[0].json.got.length, limit - 20);
    await assertStanding(world, run_id);
    await assertStanding(world, used.run_id);
  });

  test("what is no signal is refused with its place, stored nowhere, and the wait stays open", async () => {
    const { dev } = world;
    const { run_id } = await startWith({ steps: [wait("s", "x")] });
    const path = `/v1/runs/${run_id}/signals/x`;
    for (const [body, status, type, pointer] of [
      ["{", 400, "invalid-json"],
      ['{"payload":"\\u0000"}', 400, "invalid-json"],
      ['{"payload":"\\ud800"}', 400, "invalid-json"],
      ['{"payload":1e999}', 400, "invalid-json"],
      ['{"payload":1,"payload":2}', 400, "invalid-json"],
      ["[]", 422, "invalid-signal", ""],
      ["7", 422, "invalid-signal", ""],
      ['{"payload":1,"paylod":2}', 422, "invalid-signal", "/paylod"],
      ['{"id":7}', 422, "invalid-signal", "/id"],
    ]) {
      const problem = assertProblem(await dev.post(path, body), status, type);
      if (pointer !== undefined) assert.ok(problem.errors.some((error) => error.pointer === pointer), `${body}: ${JSON.stringify(problem)}`);
    }
    const run = await dev.run(run_id);
    assert.deepEqual([run.status, run.mailbox], ["waiting", []]);
    await signalled(dev, run_id, "x", "right");
    assert.equal((await dev.untilRun(run_id)).output, "right");
    assert.equal((await assertStanding(world, run_id)).log.filter(({ event_type }) => event_type === "signal.received").length, 1);
  });

  test("names: every allowed one reaches its wait, however it is written in the path; others are refused", async () => {
    const { dev } = world;
    const names = ["a", "Z9", "quote.received", "order:42", "_-_", "-", "...", "a..b", "S".repeat(128)];
    const waits = names.map((name, n) => wait(`w${n}`, name));
    const { run_id } = await startWith({ steps: beside(...waits), output: waits.map(({ id }) => `{{ steps.${id}.result }}`) });
    for (const [n, name] of names.entries()) {
      const encoded = [...Buffer.from(name)].map((byte) => `%${byte.toString(16).padStart(2, "0")}`).join("");
      assert.equal((await signalled(dev, run_id, n % 2 && name !== "..." ? encoded : name, n)).name, name);
    }
    const run = await dev.untilRun(run_id, "completed");
    assert.deepEqual(run.output, names.map((_, n) => n));
    await assertStanding(world, run_id);

    const other = await startWith({ steps: [wait("s", "x")] });
    for (const name of ["S".repeat(129), "a%20b", "%C3%A9", "a%2Fb", "a%25", "a%22", "a%00", "%E8%AE%A2"]) {
      assertProblem(await signal(dev, other.run_id, name, 1), 422, "invalid-signal");
    }
    // A name of another case is another name: kept, to be seen by whoever looks.
    await signalled(dev, other.run_id, "X", 1);
    const seen = await dev.run(other.run_id);
    assert.deepEqual([seen.status, seen.mailbox.map(({ name }) => name)], ["waiting", ["X"]]);
    assert.deepEqual(kindsOf(await diagnosis(dev, other.run_id)), ["signal@0"]);
    await assertStanding(world, other.run_id);
  });
});

describe("a repeated request", () => {
  test("the same key is the same signal; with another body it is refused; of another run or name it is another", async () => {
    const { dev } = world;
    const steps = [wait("one", "x"), wait("two", "x"), wait("three", "y")];
    const output = "{{ steps.two.result }}";
    const [first, second] = [await startWith({ steps, output }), await startWith({ steps, output })];
    const idempotencyKey = unique("signal");
    const send = (runId, name, payload, key = idempotencyKey) => signal(dev, runId, name, payload, { idempotencyKey: key });

    const answers = await Promise.all(Array.from({ length: 20 }, () => send(first.run_id, "x", { n: 1, m: [2] })));
    assert.deepEqual([...new Set(answers.map(({ status, text }) => `${status} ${text}`))].length, 1, answers.map(({ text }) => text).join("\n"));
    assert.equal(answers[0].status, 202);
    assert.equal(answers.filter(({ replayed }) => replayed === null).length, 1);
    assert.equal(answers.filter(({ replayed }) => replayed === "true").length, 19);
    // The order of members is no difference; a key may be quoted.
    const reordered = await dev.post(`/v1/runs/${first.run_id}/signals/x`, '{ "payload": { "m": [2], "n": 1 } }', { idempotencyKey: `"${idempotencyKey}"` });
    assert.deepEqual([reordered.status, reordered.replayed, reordered.text], [202, "true", answers[0].text]);
    assert.equal((await dev.run(first.run_id)).steps[1].status, "waiting", "a replay is no second signal");

    assertProblem(await send(first.run_id, "x", { n: 2 }), 422, "idempotency-key-reused");
    assert.equal((await send(first.run_id, "y", { n: 2 })).replayed, null);
    assert.equal((await send(second.run_id, "x", { n: 3 })).replayed, null);
    assert.equal((await send(first.run_id, "x", { n: 4 }, unique("signal"))).replayed, null);
    assert.equal((await dev.untilRun(first.run_id)).status, "completed");
    // Also when the run has ended since.
    const late = await send(first.run_id, "x", { n: 1, m: [2] });
    assert.deepEqual([late.status, late.replayed, late.text], [202, "true", answers[0].text]);
    assertProblem(await send(first.run_id, "x", { n: 2 }), 422, "idempotency-key-reused");
    assertProblem(await send(first.run_id, "x", { n: 9 }, unique("signal")), 409, "run-ended");
    const { log } = await assertStanding(world, first.run_id);
    assert.equal(countOf(log, "signal.received"), 3);
    await dev.ok("POST", `/v1/runs/${second.run_id}/cancel`);
    await assertStanding(world, second.run_id);
  });
});

describe("where there is no run that could take it", () => {
  test("unknown, foreign and ended runs: 404, 404 and 409, and nothing is stored", async () => {
    const { dev, anonymous } = world;
    const stranger = await world.tenant(unique("signals"));
    const reader = await world.keyFor(stranger.tenantId, "reader");
    const { run_id } = await startWith({ steps: [wait("s", "x")] });
    const never = `run_${"0192f3c4a5b67c8d9e0f112233445566"}`;
    const told = [];
    for (const [client, runId] of [[dev, never], [dev, "order-77"], [dev, "run_%00"], [stranger, run_id], [stranger, never], [reader, run_id]]) {
      const answer = await signal(client, runId, "x", { n: 1 });
      if (client !== reader) told.push(assertProblem(answer, 404, "not-found").detail);
      else assertProblem(answer, 403, "forbidden");
      const asked = await client.get(`/v1/runs/${runId}/diagnosis`);
      assertProblem(asked, 404, "not-found");
      if (client !== reader) {
        for (const control of ["pause", "resume", "retry", "cancel"]) assertProblem(await client.post(`/v1/runs/${runId}/${control}`), 404, "not-found");
      }
    }
    assert.equal(new Set(told).size, 1, "what is another's and what is nobody's look the same");
    assertProblem(await signal(anonymous, run_id, "x"), 401, "unauthorized");
    const before = await dev.run(run_id);
    assert.deepEqual([before.status, before.mailbox], ["waiting", []]);
    await signalled(dev, run_id, "x", { n: 2 });

    const failed = await startWith({ steps: [wait("s", "x", { timeout: "PT0S" })] });
    const cancelled = await startWith({ steps: [wait("s", "x")] });
    await dev.ok("POST", `/v1/runs/${cancelled.run_id}/cancel`);
    for (const [runId, status] of [[run_id, "completed"], [failed.run_id, "failed"], [cancelled.run_id, "cancelled"]]) {
      await dev.untilRun(runId, status);
      const events = (await dev.get(`/v1/runs/${runId}/events`)).text;
      for (let n = 0; n < 2; n += 1) {
        const problem = assertProblem(await signal(dev, runId, "x", { n }, { idempotencyKey: unique("ended") }), 409, "run-ended");
        assert.equal(problem.run_status, status);
      }
      assert.equal((await dev.get(`/v1/runs/${runId}/events`)).text, events);
      assert.deepEqual((await diagnosis(dev, runId)).blockers, []);
      await assertStanding(world, runId);
    }
  });

  test("a full mailbox says so and when to come again; what a step waits for has room all the same", async () => {
    const { dev } = world;
    const { run_id } = await startWith({ steps: [wait("b", "b"), wait("a", "a"), wait("hold", "end")], output: "{{ steps.a.result }}" });
    await eachOf(Array.from({ length: 1_000 }, (_, n) => n), 16, (n) => signalled(dev, run_id, "a", n));
    const idempotencyKey = unique("full");
    const full = await signal(dev, run_id, "a", "one more", { idempotencyKey });
    assertProblem(full, 429, "mailbox-full");
    assert.match(full.headers.get("retry-after"), /^[1-9]\d*$/);
    assert.equal((await dev.run(run_id)).mailbox.length, 1_000);

    // The diagnosis names the call that moves it, and that call must not be refused.
    const told = await diagnosis(dev, run_id);
    assert.deepEqual(kindsOf(told), ["signal@0"]);
    const answer = await dev.post(told.blockers[0].release.split(" ")[1], { payload: 0 });
    assert.equal(answer.status, 202, `a step waits for it: ${answer.text}`);
    await until(async () => (await statusOf(run_id, 1)) === "completed", { what: "the run took one of a" });
    const accepted = await signal(dev, run_id, "a", "one more", { idempotencyKey });
    assert.deepEqual([accepted.status, accepted.replayed], [202, null], "a refusal is not what a key stands for");
    assert.equal((await dev.run(run_id)).mailbox.length, 1_000);
    await signalled(dev, run_id, "end");
    const run = await dev.untilRun(run_id);
    const { log } = await assertStanding(world, run_id);
    const [oldest] = log.filter(({ event_type, payload }) => event_type === "signal.received" && payload.name === "a");
    assert.equal(run.output, oldest.payload.payload, "the oldest was taken");
  });

  test("signals of 8 MiB wait at most, and then there is room again", async () => {
    const { dev } = world;
    const { run_id } = await startWith({ steps: [wait("go", "go"), wait("first", "big"), wait("hold", "end")] });
    const big = "a".repeat(512 * 1024 - 2);
    await eachOf(Array(16).fill(0), 2, () => signalled(dev, run_id, "big", big));
    assertProblem(await signal(dev, run_id, "big", 1), 429, "mailbox-full");
    const answer = await signal(dev, run_id, "go");
    assert.equal(answer.status, 202, `a step waits for it: ${answer.text}`);
    await signalled(dev, run_id, "big", big);
    await dev.ok("POST", `/v1/runs/${run_id}/cancel`);
    assert.equal((await dev.untilRun(run_id)).status, "cancelled");
  });
});

describe("many", () => {
  test("500 signals from 8 connections, some sent twice, are consumed once each in the order of acceptance", async () => {
    const { dev } = world;
    const COUNT = 500;
    const steps = Array.from({ length: COUNT }, (_, n) => wait(`w${n}`, "item"));
    const { run_id } = await startWith({ steps, output: steps.map(({ id }) => `{{ steps.${id}.result }}`) });
    // Every tenth is sent twice, the second time from wherever it comes.
    const sent = Array.from({ length: COUNT }, (_, n) => (n % 10 === 0 ? [n, n] : [n])).flat();
    const answers = await eachOf(sent, 8, (n) => signal(dev, run_id, "item", n, { idempotencyKey: `item-${n}` }));
    assert.ok(answers.every(({ status }) => status === 202), answers.find(({ status }) => status !== 202)?.text);
    assert.equal(answers.filter(({ replayed }) => replayed === "true").length, COUNT / 10);
    const run = await dev.untilRun(run_id);
    assert.equal(run.status, "completed");
    const { log } = await assertStanding(world, run_id);
    const { received, consumed } = assertSignals(log);
    assert.deepEqual([received.length, consumed.length], [COUNT, COUNT]);
    assert.deepEqual(run.output, received.map(({ payload }) => payload.payload), "in accepted order");
    assert.deepEqual(new Set(run.output), new Set(Array.from({ length: COUNT }, (_, n) => n)));
    const seqs = new Map(answers.map(({ json }, place) => [sent[place], json.seq]));
    for (const { seq, payload } of received) assert.equal(seqs.get(payload.payload), seq, "each sender was told its place");
  });

  test("signals come while the run works on the ones before: a tool gets each once and in order", async () => {
    const { dev, sink } = world;
    const COUNT = 100;
    const tool = await toolOf(world, "use", ({ json }) => ({ body: json }));
    const steps = Array.from({ length: COUNT }, (_, n) => [wait(`w${n}`, "item"), { id: `u${n}`, tool, arguments: { item: `{{ steps.w${n}.result }}` } }]).flat();
    const { run_id } = await startWith({ steps });
    await eachOf(Array.from({ length: COUNT }, (_, n) => n), 8, (n) => signalled(dev, run_id, "item", n, { idempotencyKey: `used-${n}` }));
    const run = await dev.untilRun(run_id, undefined, { within: 60_000 });
    const { log } = await assertStanding(world, run_id);
    const { received } = assertSignals(log);
    assert.deepEqual(sink.to(`/${tool}`).map(({ json }) => json.item), received.map(({ payload }) => payload.payload));
    assertOneEffect(sink, run, { once: true });
  });

  test("several steps that wait for one name get one signal each, the one that has waited longest first", async () => {
    const { dev } = world;
    const steps = [...beside(wait("p", "go"), wait("q", ["stop", "go"]), wait("r", "go")), wait("s", "go", { depends_on: ["p"] })];
    const output = Object.fromEntries(steps.map(({ id }) => [id, `{{ steps.${id}.result }}`]));
    const { run_id } = await startWith({ steps, output });
    const told = await diagnosis(dev, run_id);
    assert.deepEqual([told.moving, told.status, kindsOf(told)], [false, "waiting", ["signal@0", "signal@1", "signal@2"]]);
    assert.deepEqual((await dev.run(run_id)).waiting_for.map(({ kind, names }) => [kind, names]), [
      ["signal", ["go"]],
      ["signal", ["stop", "go"]],
      ["signal", ["go"]],
    ]);
    for (let n = 1; n <= 3; n += 1) {
      const before = await diagnosis(dev, run_id);
      await signalled(dev, run_id, "go", n);
      assert.ok(!kindsOf(await diagnosis(dev, run_id)).includes(kindsOf(before)[0]), `${n} released the first`);
    }
    await release(dev, (await diagnosis(dev, run_id)).blockers[0], { payload: 4 });
    const run = await dev.untilRun(run_id);
    assert.deepEqual(run.output, { p: 1, q: { signal: "go", payload: 2 }, r: 3, s: 4 });
    await assertStanding(world, run_id);
  });
});

describe("a signal and its timeout", () => {
  /** Ships where the signal came, refunds where it did not, then waits to be closed. */
  const orders = async (timeout) => {
    const [ship, refund] = [await toolOf(world, "ship"), await toolOf(world, "refund")];
    return {
      ship,
      refund,
      plan: {
        steps: [
          wait("ok", "ok", { timeout, on_timeout: "continue" }),
          { id: "ship", when: "{{ steps.ok.result != null }}", tool: ship },
          { id: "refund", when: "{{ steps.ok.result == null }}", tool: refund },
          wait("hold", "close"),
        ],
      },
    };
  };
  const settled = (runId) => until(async () => (await statusOf(runId, 3)) === "waiting", { what: `${runId} took one branch` });

  /** One branch ran, once, and it is the one that the log says; the rest is in the mailbox. */
  async function assertOneBranch({ ship, refund }, runId, { late = 0, many = false } = {}) {
    const { sink } = world;
    const { run, log } = await assertStanding(world, runId, { many });
    const ended = log.filter(({ event_type, step_index }) => event_type === "wait.ended" && step_index === 0);
    assert.equal(ended.length, 1, `${runId} decided once`);
    const won = ended[0].payload.outcome === "received";
    assert.deepEqual(run.steps.slice(1, 3).map(({ status }) => status), won ? ["completed", "skipped"] : ["skipped", "completed"]);
    // A clock that jumps while a worker is at it takes the step from it: the call is then made again.
    const firsts = sink.calls.filter(({ headers, delivery }) => headers["dormouse-run-id"] === runId && delivery === "first");
    const calls = (name) => firsts.filter(({ path }) => path === `/${name}`).length;
    assert.deepEqual([calls(ship), calls(refund)], won ? [1, 0] : [0, 1], `${runId}: ${JSON.stringify(run.steps)}`);
    assert.equal(countOf(log, "signal.consumed", 0), won ? 1 : 0);
    assert.equal(run.mailbox.length, late + (won ? 0 : 1), `the mailbox of ${runId}`);
    // One append decides: a signal stored before the timeout was recorded is never passed over.
    const [received] = log.filter(({ event_type }) => event_type === "signal.received");
    assert.equal(won, received.seq < ended[0].seq, `${runId}: the signal is entry ${received.seq}, the end of the wait ${ended[0].seq}`);
    return won;
  }

  async function closed(branches, ids, t) {
    const { dev } = world;
    const won = await eachOf(ids, 8, async (runId, n) => {
      await settled(runId);
      // What comes after resumes nothing; it is kept, and to be seen.
      await signalled(dev, runId, "ok", "late");
      const { steps, mailbox } = await dev.run(runId);
      assert.equal(steps[3].status, "waiting");
      assert.equal(mailbox.at(-1).name, "ok");
      await seamsOf(dev).redeliver(runId, steps[1].status === "completed" ? 1 : 2, 2);
      await signalled(dev, runId, "close");
      assert.equal((await dev.untilRun(runId)).status, "completed");
      return assertOneBranch(branches, runId, { late: 1, many: n > 3 });
    });
    t.diagnostic(`${won.filter(Boolean).length} of ${ids.length} times the signal won`);
  }

  test("within 30 ms of each other, in real time: one branch, once", async (t) => {
    const random = randomOf(t);
    const branches = await orders("PT1S");
    const ids = await eachOf(Array.from({ length: 40 }), 40, async () => {
      const { run_id, waiting_for } = await startWith(branches.plan);
      const due = Date.parse(waiting_for[0].until);
      await pause(due - 30 + random.below(61) - Date.now());
      await signalled(world.dev, run_id, "ok", { paid: true });
      return run_id;
    });
    await closed(branches, ids, t);
  });

  test("at the same instant, by the clock: one branch, once", async (t) => {
    const { dev } = world;
    const seams = seamsOf(dev);
    const branches = await orders("PT1H");
    const ids = await eachOf(Array.from({ length: 24 }, (_, n) => n), 8, async (n) => {
      const { run_id } = await startWith(branches.plan);
      const both = [() => signalled(dev, run_id, "ok", { paid: true }), () => seams.advance(run_id, "PT1H")];
      await Promise.all((n % 2 ? both : both.reverse()).map((one) => one()));
      return run_id;
    });
    await closed(branches, ids, t);
  });

  test("a signal that is stored when the timeout has passed and is not recorded wins", async () => {
    const { dev } = world;
    const seams = seamsOf(dev);
    const branches = await orders("PT0.2S");
    // Alarms fail for a while: nobody records what falls due.
    await seams.arm("alarm.entered", "error", { times: 1_000 });
    const { run_id, waiting_for } = await startWith(branches.plan);
    const due = Date.parse(waiting_for[0].until);
    await until(() => Date.now() > due + 50, { what: "the timeout has passed", every: 10 });
    assert.equal(await statusOf(run_id, 0), "waiting");
    await signalled(dev, run_id, "ok", { paid: true });
    await seams.disarm();
    await settled(run_id);
    assert.equal(await assertOneBranch(branches, run_id), true);
  });

  test("of no time at all: what is in the mailbox wins, else it has timed out", async () => {
    const { dev } = world;
    const tool = await heldTool(world);
    const plan = (more) => ({ steps: [{ id: "work", tool: tool.name }, wait("s", "x", { timeout: "PT0S", ...more })], output: { s: "{{ steps.s.result }}" } });
    const [stored, none, failing, several] = await Promise.all([
      startWith(plan({})),
      startWith(plan({ on_timeout: "continue" })),
      startWith(plan({ on_timeout: "fail" })),
      startWith(plan({ wait_for: ["x", "y"], on_timeout: "continue" })),
    ]);
    await tool.called(4);
    await signalled(dev, stored.run_id, "x", "early");
    tool.releaseAll();
    assert.deepEqual((await dev.untilRun(stored.run_id)).output, { s: "early" });
    assert.deepEqual((await dev.untilRun(none.run_id)).output, { s: null });
    assert.deepEqual((await dev.untilRun(several.run_id)).output, { s: { signal: null, payload: null } });
    const failed = await dev.untilRun(failing.run_id);
    assert.deepEqual([failed.status, failed.error.reason, failed.error.step_index], ["failed", "timed_out", 1]);
    assert.deepEqual(failed.steps.map(({ status }) => status), ["completed", "failed"]);
    for (const { run_id } of [stored, none, failing, several]) await assertStanding(world, run_id);
  });
});

test("a signal to a paused run is taken at once, and nothing is begun by it before the run is resumed", async () => {
  const { dev, sink } = world;
  const tool = await toolOf(world, "paused");
  const { run_id } = await startWith({ steps: [wait("s", "x", { timeout: "PT1H" }), { id: "use", tool, arguments: { s: "{{ steps.s.result }}" } }, wait("t", "x")] });
  assert.equal((await dev.post(`/v1/runs/${run_id}/pause`)).json.status, "paused");
  await signalled(dev, run_id, "x", 1);
  await signalled(dev, run_id, "x", 2);
  await seamsOf(dev).advance(run_id, "PT2H");
  await seamsOf(dev).evict(run_id);
  await assertStanding(world, run_id);
  const told = await diagnosis(dev, run_id);
  assert.equal(told.blockers[0].kind, "paused");
  assert.equal(sink.to(`/${tool}`).length, 0);
  await release(dev, told.blockers[0]);
  const run = await dev.untilRun(run_id);
  assert.deepEqual([run.status, run.output, sink.to(`/${tool}`).map(({ json }) => json.s)], ["completed", 2, [1]]);
  await assertStanding(world, run_id);
});

test("no line of the runtime tells of hung or dead code", () => assertQuiet(world.lines));
