// Runs paused, resumed, retried, cancelled and out of time, in every state in which that may find them.

import assert from "node:assert/strict";
import { describe, test } from "node:test";
import { assertQuiet, callsByStep, countOf, eachOf } from "./support/checks.mjs";
import { heldTool } from "./support/held.mjs";
import { randomOf } from "./support/random.mjs";
import { unique, worldOfFile } from "./support/runtime.mjs";
import { seamsOf } from "./support/seams.mjs";
import { until } from "./support/until.mjs";
import { assertProblem, assertStanding, diagnosis, kindsOf, RETRY, signal, signalled, toolOf } from "./support/waits.mjs";

const world = worldOfFile();

const ENDS = ["completed", "failed", "cancelled"];
/** What begins something. */
const BEGINNINGS = ["tool.requested", "tool.claimed", "wait.started", "approval.requested", "child.requested", "event.emitted"];

const pause = (ms) => new Promise((done) => setTimeout(done, ms));
const control = (runId, what, options) => world.dev.post(`/v1/runs/${runId}/${what}`, undefined, options);
const callsOf = (runId) => world.sink.calls.filter(({ headers }) => headers["dormouse-run-id"] === runId);
const seqOf = async (runId) => (await world.dev.ok("GET", `/v1/runs/${runId}/events?limit=1`)).last_seq;
const lastCall = (runId, step) => callsByStep(world.sink, runId).get(step).at(-1);
const callbackOf = (call) => new URL(call.headers["dormouse-callback"]).pathname;

/** Answers a call the first time, and differently from then on. */
const firstly = (first, then = { body: { ok: true } }) => (call) => (call.delivery === "first" ? first : then);

/**
 * Every state in which a run may be: its first step, the status, the first blocker, and what comes from
 * outside meanwhile that would move it.
 */
const STATES = {
  queued: {
    status: "queued",
    kind: "lease",
    step: async () => ({ tool: await toolOf(world, "queued") }),
    // Its message is not sent before its alarm does.
    around: async (start) => {
      const seams = seamsOf(world.dev);
      await seams.arm("outbox.before_send", "error", { times: 1_000 });
      try {
        return await start();
      } finally {
        await seams.disarm();
      }
    },
    meanwhile: ({ runId }) => seamsOf(world.dev).redeliver(runId, 0, 3),
  },
  running: {
    status: "running",
    kind: "lease",
    step: async (here) => {
      here.tool = await heldTool(world);
      return { tool: here.tool.name };
    },
    meanwhile: async ({ runId, tool }) => {
      tool.releaseAll();
      await until(async () => (await world.dev.run(runId)).steps[0].status === "completed", { what: "the call came back" });
    },
  },
  retrying: {
    status: "running",
    kind: "retry",
    step: async () => ({ tool: await toolOf(world, "retrying", firstly({ status: 503 }), { retry: RETRY }) }),
    meanwhile: ({ runId }) => seamsOf(world.dev).advance(runId, "PT3M"),
  },
  sleeping: {
    status: "waiting",
    kind: "timer",
    step: async () => ({ sleep: "PT1H" }),
    meanwhile: ({ runId }) => seamsOf(world.dev).advance(runId, "PT2H"),
  },
  "waiting for a signal": {
    status: "waiting",
    kind: "signal",
    step: async () => ({ wait_for: "x", timeout: "P2D" }),
    meanwhile: ({ runId }) => signalled(world.dev, runId, "x", 1),
  },
  "waiting for an approval": {
    status: "waiting",
    kind: "approval",
    step: async () => ({ approval: { prompt: "Well?" }, timeout: "P2D" }),
    meanwhile: ({ blocker }) => world.dev.ok("POST", blocker.release.split(" ")[1], { body: { decision: "approved" } }),
  },
  "waiting for leave to call": {
    status: "waiting",
    kind: "approval",
    step: async () => ({ tool: await toolOf(world, "guarded", undefined, { requires_approval: true }) }),
    meanwhile: ({ blocker }) => world.dev.ok("POST", blocker.release.split(" ")[1], { body: { decision: "approved" } }),
  },
  "waiting for a callback": {
    status: "waiting",
    kind: "callback",
    step: async () => ({ tool: await toolOf(world, "calls-back", { status: 202, body: {} }, { callback_timeout: "P2D" }) }),
    meanwhile: ({ runId }) => world.dev.ok("POST", callbackOf(lastCall(runId, 0)), { body: { status: "succeeded", result: 1 } }),
  },
  "waiting for a child": {
    status: "waiting",
    kind: "child",
    step: async () => {
      const [child, grandchild] = [unique("child"), unique("grandchild")];
      const approval = { id: "ask", approval: { prompt: "May the grandchild?" } };
      await world.dev.putAgent(grandchild, { planner: { kind: "plan", steps: [approval, { id: "then", tool: await toolOf(world, "deep") }] } });
      await world.dev.putAgent(child, { planner: { kind: "plan", steps: [{ id: "run", run: { agent: grandchild } }] } });
      return { run: { agent: child } };
    },
    meanwhile: async ({ runId, blocker }) => {
      await world.dev.ok("POST", blocker.release.split(" ")[1], { body: { decision: "approved" } });
      await until(async () => (await world.dev.run(runId)).steps[0].status === "completed", { what: "the parent is told of its child's end" });
    },
  },
  blocked: {
    status: "blocked",
    kind: "dead_letter",
    step: async () => ({ tool: await toolOf(world, "blocked", firstly({ status: 422 })) }),
    meanwhile: ({ blocker }) => world.dev.ok("POST", blocker.release.split(" ")[1], { body: {} }),
  },
};

/** A new run in that state, with a deadline of a day and a tool that is called after its first step. */
async function arrive(name) {
  const { dev } = world;
  const { status, kind, step, around = (start) => start() } = STATES[name];
  const here = { name };
  const [first, next] = [await step(here), await toolOf(world, "next")];
  const agent = unique("agent");
  await dev.putAgent(agent, {
    planner: { kind: "plan", steps: [{ id: "first", ...first }, { id: "next", tool: next }], output: "{{ steps.next.result }}" },
    limits: { deadline: "P1D" },
  });
  return around(async () => {
    here.runId = (await dev.startRun({ agent })).run_id;
    let told;
    here.blocker = await until(
      async () => {
        told = await diagnosis(dev, here.runId);
        const [blocker] = told.blockers;
        // A child's blocker is told once that waits for somebody outside.
        const settled = told.status === status && blocker?.kind === kind && (name !== "waiting for a child" || /^POST/.test(blocker.release ?? ""));
        return settled && (name !== "running" || here.tool.calls().length > 0) && blocker;
      },
      { what: `a run that is ${name}` },
    ).catch((error) => {
      throw new Error(`${error.message}: ${JSON.stringify(told)}`);
    });
    assert.equal(told.moving, status === "queued" || status === "running");
    assert.equal(here.blocker.step_index, 0);
    return here;
  });
}

/** The ids of the runs below a run, level by level. */
async function below(runId) {
  const found = [];
  for (let next = runId; next; ) {
    const { steps } = await world.dev.run(next);
    next = steps[0].child_run_id;
    if (next) found.push(next);
  }
  return found;
}

/** Whatever might move a run that must not move. */
async function poke(runId) {
  const seams = seamsOf(world.dev);
  await seams.evict(runId);
  await seams.redeliver(runId, 0, 2);
  await seams.redeliver(runId, 1, 2);
  await seams.sweep();
}

/** Does what the run's diagnosis says, until the run has ended. Each thing must move it. */
async function drive(here, { most = 20 } = {}) {
  const { dev } = world;
  const { runId } = here;
  const seams = seamsOf(dev);
  const said = [];
  for (let turn = 0; turn < most; turn += 1) {
    const before = await seqOf(runId);
    const { status, blockers } = await diagnosis(dev, runId);
    if (ENDS.includes(status)) return { run: await dev.run(runId), said };
    const [blocker] = blockers;
    assert.ok(blocker, `${runId} is ${status}, and nothing holds it`);
    if (said.at(-1) !== blocker.kind) said.push(blocker.kind);
    const [, path] = (blocker.release ?? "").split(" ");
    if (path?.startsWith("/v1/callbacks/")) {
      await dev.ok("POST", callbackOf(lastCall(runId, blocker.step_index)), { body: { status: "succeeded", result: 1 } });
    } else if (path) {
      assert.match(blocker.release, /^POST \/v1\//, `${blocker.kind} names a call that moves it`);
      await dev.ok("POST", path, { body: path.includes("/approvals/") ? { decision: "approved" } : {} });
    } else if (blocker.kind === "timer" || blocker.kind === "retry") {
      await seams.advance(runId, `PT${Math.ceil((Date.parse(blocker.until) - Date.parse(blocker.since)) / 1_000) + 1}S`);
    } else if (blocker.kind === "lease") {
      if (here.tool) here.tool.releaseAll();
      // Its message was lost: it is sent again when nobody has claimed it in time.
      else if (blocker.until === null) await seams.advance(runId, "PT5S");
    }
    await until(async () => (await seqOf(runId)) > before, { what: `${JSON.stringify(blocker)} moves ${runId}` });
  }
  assert.fail(`${runId} has not ended after ${said}`);
}

const assertNothingBegan = (log, from, to = log.length) => {
  const begun = log.slice(from, to).filter(({ event_type }) => BEGINNINGS.includes(event_type));
  assert.deepEqual(begun.map(({ event_type, step_index }) => `${event_type}@${step_index}`), [], log[0].run_id);
};
const placeOf = (log, type) => {
  const place = log.findIndex(({ event_type }) => event_type === type);
  assert.ok(place >= 0, `no ${type} in ${log.map(({ event_type }) => event_type)}`);
  return place;
};

describe("the diagnosis of a run", () => {
  for (const name of Object.keys(STATES)) {
    test(`that is ${name} names what holds it, and that moves it`, async () => {
      const here = await arrive(name);
      const { run, said } = await drive(here);
      assert.equal(run.status, "completed");
      assert.equal(said[0], STATES[name].kind);
      await assertStanding(world, here.runId);
      assert.deepEqual((await diagnosis(world.dev, here.runId)).blockers, []);
    });
  }

  test("whose planner is outside names that, and that moves it", async () => {
    const { dev } = world;
    const [tool, agent] = [await toolOf(world, "outside"), unique("external")];
    await dev.putAgent(agent, { tools: [tool], planner: { kind: "external" } });
    const { run_id } = await dev.startRun({ agent });
    const told = await diagnosis(dev, run_id);
    assert.deepEqual([told.moving, kindsOf(told), told.blockers[0].release], [false, ["planner"], "POST /v1/envelopes"]);
    const send = (event_type, step_index, payload) => dev.ok("POST", "/v1/envelopes", { body: { event_type, run_id, step_index, payload } });
    await send("tool.requested", 0, { tool, arguments: {} });
    await until(async () => kindsOf(await diagnosis(dev, run_id))[0] === "planner", { what: "the planner's turn comes again" });
    assert.equal(callsOf(run_id).length, 1);
    await send("plan.completed", null, { output: 7 });
    assert.equal((await dev.untilRun(run_id)).output, 7);
    await assertStanding(world, run_id);
  });

  test("with several blockers names each, the run's own first", async () => {
    const { dev } = world;
    const held = await heldTool(world);
    const steps = [
      { sleep: "PT1H" },
      { wait_for: "x", timeout: "PT3H" },
      { approval: { prompt: "Well?" }, timeout: "PT2H" },
      { tool: held.name },
      { tool: await toolOf(world, "rejects", firstly({ status: 400 })) },
      { tool: await toolOf(world, "later", firstly({ status: 503 }), { retry: RETRY }) },
    ].map((step, n) => ({ id: `s${n}`, depends_on: [], ...step }));
    const { run_id } = await dev.startRun({ plan: { steps } });
    const all = ["timer@0", "signal@1", "approval@2", "lease@3", "dead_letter@4", "retry@5"];
    await until(async () => `${kindsOf(await diagnosis(dev, run_id))}` === `${all}`, { what: "all of them" });
    await control(run_id, "pause");
    const told = await diagnosis(dev, run_id);
    assert.deepEqual([told.status, kindsOf(told)], ["paused", ["paused", ...all]]);
    assert.ok(told.blockers.every(({ since }) => since !== null));
    held.releaseAll();
    await until(async () => !kindsOf(await diagnosis(dev, run_id)).includes("lease@3"), { what: "the call in flight is recorded" });
    assert.equal((await drive({ runId: run_id })).run.status, "completed");
    await assertStanding(world, run_id);
  });
});

describe("a run is paused", () => {
  for (const [name, { meanwhile }] of Object.entries(STATES)) {
    test(`while ${name}: what comes is recorded, nothing is begun before it is resumed, and then all of it`, async () => {
      const { dev } = world;
      const here = await arrive(name);
      const { runId } = here;
      const paused = await control(runId, "pause");
      assert.deepEqual([paused.status, paused.json.status, paused.json.run_id], [200, "paused", runId]);
      const calls = callsOf(runId).length;
      await poke(runId);
      await meanwhile(here);
      await poke(runId);
      const run = await dev.run(runId);
      assert.deepEqual([run.status, run.steps[1].status, callsOf(runId).length], ["paused", "scheduled", calls]);
      assert.deepEqual((await seamsOf(dev).internals(runId)).outbox, []);
      await assertStanding(world, runId);
      const told = await diagnosis(dev, runId);
      assert.deepEqual([told.moving, told.status, told.blockers[0].kind, told.blockers[0].release], [false, "paused", "paused", `POST /v1/runs/${runId}/resume`]);

      const resumed = await control(runId, "resume");
      assert.equal(resumed.status, 200);
      assert.notEqual(resumed.json.status, "paused");
      assert.equal((await drive(here)).run.status, "completed");
      const { log } = await assertStanding(world, runId);
      assertNothingBegan(log, placeOf(log, "run.paused"), placeOf(log, "run.resumed"));
      assert.deepEqual([countOf(log, "run.paused"), countOf(log, "run.resumed")], [1, 1]);
      assert.equal(callsByStep(world.sink, runId).get(1).length, 1);
    });
  }

  test("past due in several ways: when it is resumed, they happen in the order of their times", async () => {
    const { dev } = world;
    const waits = [
      { sleep: "PT5H" },
      { sleep: "PT1H" },
      { wait_for: "x", timeout: "PT4H", on_timeout: "continue" },
      { approval: { prompt: "Well?" }, timeout: "PT2H", on_timeout: "continue" },
      { wait_for: "y", timeout: "PT3H", on_timeout: "continue" },
      { sleep: "P3D" },
    ].map((step, n) => ({ id: `s${n}`, depends_on: [], ...step }));
    const tool = await toolOf(world, "after-five");
    const { run_id } = await dev.startRun({ plan: { steps: [...waits, { id: "next", depends_on: ["s0"], tool }] } });
    await control(run_id, "pause");
    await seamsOf(dev).advance(run_id, "P1D");
    // Stored before the timeout is recorded, so it wins, however late.
    await signalled(dev, run_id, "y", "late");
    await poke(run_id);
    assert.deepEqual((await dev.run(run_id)).waiting_for.map(({ step_index }) => step_index), [0, 1, 2, 3, 5]);
    await control(run_id, "resume");
    await until(() => callsOf(run_id).length === 1, { what: "the tool after them" });
    const { log } = await assertStanding(world, run_id);
    const ended = log.slice(placeOf(log, "run.resumed")).filter(({ event_type }) => ["wait.ended", "approval.expired"].includes(event_type));
    assert.deepEqual(ended.map(({ step_index }) => step_index), [1, 3, 2, 0]);
    assert.equal((await dev.run(run_id)).steps[4].result, "late");
    assert.equal((await drive({ runId: run_id })).run.status, "completed");
  });

  test("twenty times at once, and again: one entry each, and every answer is the same", async () => {
    const { dev } = world;
    const { run_id } = await dev.startRun({ plan: { steps: [{ id: "s", wait_for: "x" }] } });
    for (const [what, status] of [["pause", "paused"], ["resume", "waiting"], ["resume", "waiting"], ["pause", "paused"], ["cancel", "cancelled"]]) {
      const answers = await Promise.all(Array.from({ length: 20 }, () => control(run_id, what)));
      assert.deepEqual([...new Set(answers.map((answer) => `${answer.status} ${answer.json.status}`))], [`200 ${status}`], what);
    }
    const { log } = await assertStanding(world, run_id);
    const count = (type) => countOf(log, type);
    assert.deepEqual([count("run.paused"), count("run.resumed"), count("run.cancelled")], [2, 1, 1]);
    for (const what of ["pause", "resume"]) assert.equal(assertProblem(await control(run_id, what), 409, "run-ended").run_status, "cancelled");
  });

  test("and resumed by many at once: the log tells of turns, and the run gets to its end", async () => {
    const { dev } = world;
    const tool = await toolOf(world, "turns", { body: {}, delay: 20 });
    const steps = Array.from({ length: 12 }, (_, n) => ({ id: `s${n}`, tool, arguments: { n } }));
    const { run_id } = await dev.startRun({ plan: { steps } });
    const answers = await eachOf(Array.from({ length: 40 }, (_, n) => n), 6, (n) => control(run_id, n % 2 ? "resume" : "pause"));
    assert.ok(answers.every(({ status }) => status === 200), answers.find(({ status }) => status !== 200)?.text);
    await control(run_id, "resume");
    assert.equal((await dev.untilRun(run_id)).status, "completed");
    const { log } = await assertStanding(world, run_id);
    const turns = log.map(({ event_type }) => event_type).filter((type) => /^run\.(paused|resumed)$/.test(type));
    assert.ok(turns.every((type, n) => type === (n % 2 ? "run.resumed" : "run.paused")), `${turns}`);
    for (let from = 0, place; (place = log.findIndex((entry, n) => n >= from && entry.event_type === "run.paused")) >= 0; ) {
      from = log.findIndex((entry, n) => n > place && entry.event_type === "run.resumed");
      assertNothingBegan(log, place, from);
    }
    assert.equal(callsOf(run_id).length, 12);
  });

  test("under a key: a request that is sent again does nothing again, also where there was nothing to do", async () => {
    const { dev } = world;
    const { run_id } = await dev.startRun({ plan: { steps: [{ id: "s", wait_for: "x" }] } });
    const [first, second, third] = [unique("pause"), unique("pause"), unique("resume")];
    const send = (what, idempotencyKey, body = {}) => dev.post(`/v1/runs/${run_id}/${what}`, body, { idempotencyKey });
    const statusAfter = async (answer, replayed) => {
      assert.deepEqual([answer.status, answer.replayed], [200, replayed], answer.text);
      return (await dev.run(run_id)).status;
    };
    assert.equal(await statusAfter(await send("resume", third), null), "waiting", "nothing to resume");
    assert.equal(await statusAfter(await send("pause", first), null), "paused");
    assert.equal(await statusAfter(await send("pause", second), null), "paused", "it is paused already");
    assert.equal(await statusAfter(await send("resume", third), "true"), "paused", "a request from before the pause, sent again");
    assertProblem(await send("pause", first, { comment: "other" }), 422, "idempotency-key-reused");
    await dev.ok("POST", `/v1/runs/${run_id}/resume`);
    assert.equal(await statusAfter(await send("pause", first), "true"), "waiting");
    assert.equal(await statusAfter(await send("pause", second), "true"), "waiting", "a request from before the resumption, sent again");
    await control(run_id, "cancel");
  });
});

describe("a run is cancelled", () => {
  for (const name of Object.keys(STATES)) {
    test(`while ${name}: at once and for good, by many at once, and what comes later is told so`, async () => {
      const { dev } = world;
      const here = await arrive(name);
      const { runId, blocker } = here;
      const runs = [runId, ...(await below(runId))];
      const letters = await dev.deadLetters(runId);
      const answers = await Promise.all(Array.from({ length: 20 }, () => control(runId, "cancel")));
      assert.deepEqual([...new Set(answers.map((answer) => `${answer.status} ${answer.json.status}`))], ["200 cancelled"]);
      const calls = callsOf(runId).length;

      assertProblem(await signal(dev, runId, "x", 1), 409, "run-ended");
      for (const what of ["pause", "resume"]) assertProblem(await control(runId, what), 409, "run-ended");
      assertProblem(await control(runId, "retry"), 409, "run-not-failed");
      if (blocker.approval_id) {
        const problem = assertProblem(await dev.post(`/v1/approvals/${blocker.approval_id}`, { decision: "approved" }), 409, "already-decided");
        assert.deepEqual([problem.approval_status, problem.decided_by], ["cancelled", null]);
      }
      if (name === "waiting for a callback") {
        const problem = await dev.post(callbackOf(lastCall(runId, 0)), { status: "succeeded", result: 1 });
        assertProblem(problem, 410, "callback-gone");
      }
      for (const { dead_letter_id } of letters) {
        for (const [what, body] of [["redeliver", {}], ["resolve", { result: 1 }], ["discard", {}]]) {
          assert.equal((await dev.post(`/v1/dead-letters/${dead_letter_id}/${what}`, body)).status, 409, what);
        }
      }
      here.tool?.releaseAll();
      for (const id of runs) {
        assert.equal((await dev.untilRun(id, "cancelled")).status, "cancelled");
        await until(async () => countOf(await dev.log(id), "run.cancelled") === 1, { what: `${id} closes its log` });
      }
      const closed = (await dev.get(`/v1/runs/${runId}/events`)).text;
      await poke(runId);
      await seamsOf(dev).advance(runId, "P3D");
      for (const id of runs.slice(1)) await seamsOf(dev).advance(id, "P3D");
      assert.equal((await dev.get(`/v1/runs/${runId}/events`)).text, closed, "the log after the end");
      assert.equal(callsOf(runId).length, calls);
      for (const id of runs) {
        const { run, log } = await assertStanding(world, id);
        assert.ok(run.steps.every(({ status }) => ["cancelled", "completed"].includes(status)), JSON.stringify(run.steps));
        assertNothingBegan(log, log.findIndex(({ event_type }) => /^run\.cancel/.test(event_type)));
        assert.deepEqual((await diagnosis(dev, id)).blockers, []);
      }
      // What was in flight is recorded when it comes back.
      if (name === "running") assert.equal(countOf(await dev.log(runId), "tool.completed", 0), 1);
      assert.equal((await control(runId, "cancel")).status, 200);
    });
  }

  test("soon after its start: no call is begun after the answer", async (t) => {
    const { dev, sink } = world;
    const tool = await toolOf(world, "soon", { body: {}, delay: 150 });
    const plan = { steps: [0, 1, 2].map((n) => ({ id: `s${n}`, tool, arguments: { n } })) };
    const random = randomOf(t);
    const moments = [() => 0, () => 5, () => 50, () => 250, () => random.below(500)];
    const runs = Array.from({ length: 60 }, (_, n) => moments[n % moments.length]());
    const ended = await eachOf(runs, 20, async (after) => {
      const { run_id } = await dev.startRun({ plan });
      await pause(after);
      const answer = await control(run_id, "cancel");
      const answeredAt = Date.now();
      if (answer.status === 409) assert.equal(answer.json.run_status, "completed");
      else assert.deepEqual([answer.status, answer.json.status], [200, "cancelled"]);
      return { run_id, answeredAt, cancelled: answer.status === 200 };
    });
    let late = 0;
    await eachOf(ended, 8, async ({ run_id, answeredAt, cancelled }, n) => {
      await dev.untilRun(run_id, cancelled ? "cancelled" : "completed");
      await until(async () => /^run\.(cancelled|completed)$/.test((await dev.log(run_id)).at(-1).event_type), { what: `${run_id} is closed`, within: 10_000 });
      const { log } = await assertStanding(world, run_id, { many: n > 4 });
      if (!cancelled) return;
      const place = log.findIndex(({ event_type }) => /^run\.cancel/.test(event_type));
      assertNothingBegan(log, place);
      // Whoever had the step in hand may still make its call: one, and it is recorded.
      const calls = callsOf(run_id);
      const after = calls.filter(({ at }) => at > answeredAt + 5);
      late += after.length;
      assert.ok(after.length <= 1, `${run_id} made ${after.length} calls after it was cancelled`);
      for (const { headers } of calls) {
        const step = Number(headers["dormouse-step-index"]);
        assert.ok(countOf(log.slice(0, place), "tool.claimed", step) === 1, `step ${step} of ${run_id} was called and not claimed before`);
        assert.equal(countOf(log, "tool.completed", step), 1, `the call of step ${step} is recorded`);
      }
    });
    t.diagnostic(`${late} calls were on their way, ${ended.filter(({ cancelled }) => !cancelled).length} of ${ended.length} had completed, ${sink.to(`/${tool}`).length} calls in all`);
  });

  test("in the moment in which it would go on: either, and not both", async (t) => {
    const { dev } = world;
    const held = await heldTool(world);
    held.releaseAll();
    const next = await toolOf(world, "goes-on");
    const won = {};
    const race = async (kind, n) => {
      const first = kind === "approval" ? { approval: { prompt: "Well?" } } : { wait_for: "x" };
      const { run_id, waiting_for } = await dev.startRun({ plan: { steps: [{ id: "w", ...first }, { id: "next", tool: next }] } });
      const go = () => (kind === "approval" ? dev.post(`/v1/approvals/${waiting_for[0].approval_id}`, { decision: "approved" }) : signal(dev, run_id, "x", n));
      const both = [go, () => control(run_id, "cancel")];
      const answers = await Promise.all((n % 2 ? both : both.toReversed()).map((one) => one()));
      const [went, cancelled] = n % 2 ? answers : answers.toReversed();
      const run = await dev.untilRun(run_id);
      await until(async () => /^run\.(cancelled|completed)$/.test((await dev.log(run_id)).at(-1).event_type), { what: `${run_id} is closed` });
      const { log } = await assertStanding(world, run_id, { many: n > 1 });
      assert.ok([200, 202, 409].includes(went.status), went.text);
      if (went.status === 409) {
        assert.deepEqual([cancelled.status, run.status, callsOf(run_id).length], [200, "cancelled", 0]);
      } else if (cancelled.status === 200) {
        assert.equal(run.status, "cancelled");
        const place = log.findIndex(({ event_type }) => /^run\.cancel/.test(event_type));
        assertNothingBegan(log, place);
        assert.equal(callsOf(run_id).length, countOf(log.slice(0, place), "tool.claimed", 1));
      } else {
        assert.deepEqual([cancelled.status, run.status, callsOf(run_id).length], [409, "completed", 1]);
      }
      const outcome = `${kind}: ${went.status} ${cancelled.status} ${run.status}`;
      won[outcome] = (won[outcome] ?? 0) + 1;
    };
    await eachOf(Array.from({ length: 24 }, (_, n) => n), 6, (n) => race(n % 4 < 2 ? "approval" : "signal", n));
    t.diagnostic(JSON.stringify(won));
  });

  test("as its last call comes back: it is completed, or cancelled with the call recorded", async (t) => {
    const { dev } = world;
    const count = {};
    await eachOf(Array.from({ length: 12 }, (_, n) => n), 4, async (n) => {
      const tool = await heldTool(world);
      const { run_id } = await dev.startRun({ plan: { steps: [{ id: "s", tool: tool.name }] } });
      await tool.called(1);
      const both = [async () => tool.releaseAll(), () => control(run_id, "cancel")];
      const answers = await Promise.all((n % 2 ? both : both.toReversed()).map((one) => one()));
      const cancelled = answers.find((answer) => answer !== undefined);
      await until(async () => /^run\.(cancelled|completed)$/.test((await dev.log(run_id)).at(-1).event_type), { what: `${run_id} is closed` });
      const { run, log } = await assertStanding(world, run_id);
      assert.deepEqual([cancelled.status, run.status], cancelled.status === 200 ? [200, "cancelled"] : [409, "completed"]);
      assert.equal(countOf(log, "tool.completed", 0), 1);
      count[run.status] = (count[run.status] ?? 0) + 1;
    });
    t.diagnostic(JSON.stringify(count));
  });
});

describe("a run's deadline falls", () => {
  for (const name of Object.keys(STATES)) {
    for (const how of ["", ", paused"]) {
      test(`while ${name}${how}: it ends there, and a retry goes on from there`, async () => {
        const { dev } = world;
        const here = await arrive(name);
        const { runId, blocker } = here;
        const children = await below(runId);
        const keys = (await dev.run(runId)).steps.map((step) => step.idempotency_key);
        if (how) await control(runId, "pause");
        await seamsOf(dev).advance(runId, "P1DT1S");
        const failed = await dev.untilRun(runId, "failed");
        assert.deepEqual([failed.error.reason, failed.output], ["deadline_exceeded", null]);
        assert.ok(failed.steps.every(({ status }) => ["cancelled", "completed", "dead_lettered"].includes(status)), JSON.stringify(failed.steps));
        const calls = callsOf(runId).length;
        await poke(runId);
        assertProblem(await signal(dev, runId, "x", 1), 409, "run-ended");
        assertProblem(await control(runId, "cancel"), 409, "run-ended");
        if (blocker.approval_id && children.length === 0) {
          assertProblem(await dev.post(`/v1/approvals/${blocker.approval_id}`, { decision: "approved" }), 409, "already-decided");
        }
        if (name === "waiting for a callback") assertProblem(await dev.post(callbackOf(lastCall(runId, 0)), { status: "succeeded", result: 1 }), 410, "callback-gone");
        for (const id of children) assert.equal((await dev.untilRun(id)).status, "cancelled", "a child does not outlive its parent");
        assert.equal(callsOf(runId).length, calls);
        await assertStanding(world, runId);
        assert.deepEqual((await diagnosis(dev, runId)).blockers, []);

        const retried = await control(runId, "retry");
        assert.equal(retried.status, 200, retried.text);
        assert.equal(retried.json.error, null);
        const { run } = await drive(here);
        assert.equal(run.status, "completed", JSON.stringify(run.error));
        const { log } = await assertStanding(world, runId);
        assert.equal(countOf(log, "run.retried"), 1);
        assert.equal(callsByStep(world.sink, runId).get(1).length, 1);
        if (keys[0] !== null) assert.equal(run.steps[0].idempotency_key, keys[0], "the same intent has the same key");
      });
    }
  }

  test("with a call under way that must not be made twice: it is not made again by a retry", async () => {
    const { dev, sink } = world;
    for (const answer of ["held", "202"]) {
      const agent = unique("once");
      const options = { effect: "at_most_once", callback_timeout: "P2D" };
      const tool = answer === "held" ? await heldTool(world, options) : { name: await toolOf(world, "once", { status: 202, body: {} }, options) };
      await dev.putAgent(agent, { planner: { kind: "plan", steps: [{ id: "s", tool: tool.name }] }, limits: { deadline: "P1D" } });
      const { run_id } = await dev.startRun({ agent });
      await until(() => callsOf(run_id).length === 1, { what: "the call" });
      if (answer === "202") await until(async () => kindsOf(await diagnosis(dev, run_id))[0] === "callback@0", { what: "it waits for the callback" });
      await seamsOf(dev).advance(run_id, "P1DT1S");
      await dev.untilRun(run_id, "failed");
      tool.releaseAll?.();
      assert.equal((await control(run_id, "retry")).status, 200);
      const run = await dev.untilRun(run_id, ["blocked", "completed", "failed"]);
      assert.equal(callsOf(run_id).length, 1, `${answer}: it was called again`);
      assert.equal(run.status, "blocked");
      const [letter] = await dev.deadLetters(run_id);
      assert.equal(letter.reason, "outcome_unknown");
      await dev.ok("POST", `/v1/dead-letters/${letter.dead_letter_id}/resolve`, { body: { result: "settled" } });
      assert.equal((await dev.untilRun(run_id)).output, "settled");
      await assertStanding(world, run_id);
      assert.equal(sink.to(`/${tool.name}`).length, 1);
    }
  });
});

describe("a failed run is retried", () => {
  test("from the step that failed, under the same key, and nothing that was done is done again", async () => {
    const { dev, sink } = world;
    const failing = {
      rejected: [{ status: 422 }, { status: 400 }, { body: { ok: true } }],
      exhausted: [{ status: 503 }, { status: 503 }, { status: 503 }, { status: 503 }, { body: { ok: true } }],
    };
    for (const [how, answers] of Object.entries(failing)) {
      const done = await toolOf(world, "done");
      const broken = await toolOf(world, "broken", answers, { retry: { max_attempts: 2, base: "PT0S" } });
      const plan = {
        steps: [
          { id: "a", tool: done },
          { id: "b", tool: broken, on_failure: "fail", arguments: { of: "{{ steps.a.result.ok }}" } },
          { id: "c", tool: done, arguments: { n: 2 } },
          { id: "beside", depends_on: ["a"], sleep: "P1D" },
          { id: "asks", depends_on: ["a"], approval: { prompt: "Well?" }, on_failure: "continue" },
        ],
      };
      const { run_id } = await dev.startRun({ plan });
      let approvals = [];
      for (let retry = 0; retry < 2; retry += 1) {
        const failed = await dev.untilRun(run_id, "failed");
        assert.deepEqual([failed.error.step_id, failed.steps.map(({ status }) => status)], ["b", ["completed", "failed", "cancelled", "cancelled", "cancelled"]]);
        await assertStanding(world, run_id);
        const answers = await Promise.all(Array.from({ length: 10 }, () => control(run_id, "retry", { idempotencyKey: `${run_id}-${retry}` })));
        assert.deepEqual([...new Set(answers.map(({ status }) => status))], [200], answers.map(({ text }) => text).join("\n"));
        assert.equal(answers.filter(({ replayed }) => replayed === null).length, 1);
        assert.equal(answers[0].json.error, null);
      }
      await dev.untilRun(run_id, "waiting");
      const { run, log } = await assertStanding(world, run_id);
      assert.equal(countOf(log, "run.retried"), 2);
      assert.deepEqual(run.steps.map(({ status }) => status), ["completed", "completed", "completed", "waiting", "waiting"]);
      const calls = callsByStep(sink, run_id);
      assert.deepEqual([0, 1, 2].map((step) => calls.get(step).length), [1, answers.length, 1], how);
      approvals = log.filter(({ event_type }) => event_type === "approval.requested").map(({ payload }) => payload.approval_id);
      assert.equal(new Set(approvals).size, 3, "each time a person is asked anew");
      assertProblem(await dev.post(`/v1/approvals/${approvals[0]}`, { decision: "approved" }), 409, "already-decided");
      assert.equal((await drive({ runId: run_id })).run.status, "completed");
      await assertStanding(world, run_id);
    }
  });

  test("one that a wait failed waits again, and takes what came too late for the first time", async () => {
    const { dev } = world;
    const waits = {
      signal: { wait_for: "x", timeout: "PT0.3S" },
      approval: { approval: { prompt: "Well?" }, timeout: "PT0.3S" },
      child: { run: { agent: "fails-at-first" }, on_failure: "fail" },
    };
    await dev.putAgent("fails-at-first", { planner: { kind: "plan", steps: [{ id: "s", tool: await toolOf(world, "child-tool", firstly({ status: 422 })), on_failure: "fail" }] } });
    for (const [kind, wait] of Object.entries(waits)) {
      const held = await heldTool(world);
      // A call under way holds the run's end up, so that there is a moment between the failure and the end.
      const { run_id } = await dev.startRun({ plan: { steps: [{ id: "w", depends_on: [], ...wait }, { id: "h", depends_on: [], tool: held.name }], output: "{{ steps.w.result }}" } });
      await until(() => callsOf(run_id).length === 1, { what: "the call beside it" });
      await until(async () => (await dev.run(run_id)).steps[0].status === "failed", { what: `${kind} failed` });
      if (kind === "signal") await signalled(dev, run_id, "x", "late");
      assert.ok(!ENDS.includes((await dev.run(run_id)).status), "the call under way is waited for");
      held.releaseAll();
      const failed = await dev.untilRun(run_id);
      assert.deepEqual([failed.status, failed.error.step_id], ["failed", "w"]);
      const first = failed.steps[0].child_run_id;
      assert.equal((await control(run_id, "retry")).status, 200);
      if (kind === "child") {
        // The child fails under its new id as well, and another retry is not needed: its tool answers by now.
        await until(async () => ENDS.includes((await dev.run(run_id)).status), { what: "the second child is through" });
        const { status, steps } = await dev.run(run_id);
        assert.notEqual(steps[0].child_run_id, first, "another child, with effects of its own");
        if (status === "failed") assert.equal((await dev.run(steps[0].child_run_id)).status, "failed");
      } else {
        const { run } = await drive({ runId: run_id });
        assert.equal(run.status, "completed");
        assert.ok(kind === "signal" ? run.output === "late" : run.output.decision === "approved", JSON.stringify(run.output));
      }
      const { log } = await assertStanding(world, run_id);
      assert.equal(countOf(log, "tool.claimed", 1), callsByStep(world.sink, run_id).get(1).length);
      assert.equal(callsByStep(world.sink, run_id).get(1).filter(({ delivery }) => delivery === "first").length, 1);
    }
  });

  test("in any other state it is refused, and nothing changes", async () => {
    const { dev } = world;
    for (const name of Object.keys(STATES)) {
      const { runId, tool } = await arrive(name);
      for (const paused of [false, true]) {
        if (paused) await control(runId, "pause");
        const problem = assertProblem(await control(runId, "retry"), 409, "run-not-failed");
        assert.equal(problem.run_status, paused ? "paused" : STATES[name].status);
      }
      await control(runId, "cancel");
      assert.equal(assertProblem(await control(runId, "retry"), 409, "run-not-failed").run_status, "cancelled");
      tool?.releaseAll();
      assert.equal(countOf(await dev.log(runId), "run.retried"), 0);
    }
    const done = await dev.runToEnd({ plan: { steps: [{ id: "s", sleep: "PT0S" }] } });
    assert.equal(assertProblem(await control(done.run_id, "retry"), 409, "run-not-failed").run_status, "completed");
    // Without a key, one of many at once is carried out, and the others see a run that goes on.
    const tool = await toolOf(world, "once-more", [{ status: 422 }, { body: { ok: true }, delay: 200 }]);
    const failed = await dev.runToEnd({ plan: { steps: [{ id: "s", tool, on_failure: "fail" }] } });
    const answers = await Promise.all(Array.from({ length: 20 }, () => control(failed.run_id, "retry")));
    assert.deepEqual(answers.map(({ status }) => status).toSorted(), [200, ...Array(19).fill(409)]);
    assert.equal((await dev.untilRun(failed.run_id)).status, "completed");
    assert.equal(callsOf(failed.run_id).length, 2);
    await assertStanding(world, failed.run_id);
  });

  test("a run that ended by its output ends so again, and calls nothing", async () => {
    const { dev } = world;
    const tool = await toolOf(world, "fine");
    const { run_id } = await dev.runToEnd({ plan: { steps: [{ id: "s", tool }], output: "{{ input.missing }}" }, input: {} });
    assert.equal((await control(run_id, "retry")).status, 200);
    const run = await dev.untilRun(run_id);
    assert.deepEqual([run.status, run.error.reason, callsOf(run_id).length], ["failed", "invalid_output", 1]);
    await assertStanding(world, run_id);
  });
});

test("no line of the runtime tells of hung or dead code", () => assertQuiet(world.lines));
