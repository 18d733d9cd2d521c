// Timers: many of one run, none at all, very long ones, and those that fell due while nobody was there.

import assert from "node:assert/strict";
import { mkdtemp, rm } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { after, before, describe, test } from "node:test";
import { assertQuiet, assertRunIsRight, callsByStep, countOf, eachOf, stepsOf } from "./support/checks.mjs";
import { clientOf } from "./support/client.mjs";
import { freePort, startServer } from "./support/group.mjs";
import { heldTool } from "./support/held.mjs";
import { unique, worldOfFile } from "./support/runtime.mjs";
import { seamsOf } from "./support/seams.mjs";
import { startSink } from "./support/sink.mjs";
import { ageIndex, loseAlarm } from "./support/store.mjs";
import { until } from "./support/until.mjs";
import { assertStanding, diagnosis, kindsOf, RETRY, signal, signalled, toolOf } from "./support/waits.mjs";

const SECOND = 1_000;
const DAY = 86_400 * SECOND;
/** The longest that may pass between a start and what was overdue by then. */
const WAKE_MS = 5 * SECOND;

const world = worldOfFile();

const startWith = (plan, more = {}) => world.dev.startRun({ plan, ...more });
const go = (step) => ({ on_timeout: "continue", ...step });
const beside = (...steps) => steps.map((step) => ({ depends_on: [], ...step }));

/** When each timer of a run was due, and which entry tells that it fired: by the entry's place. */
function firings(log) {
  const fired = [];
  const timers = new Map();
  for (const { seq, step_index, event_type, payload, timestamp } of log) {
    if (event_type === "wait.started" || event_type === "approval.requested") timers.set(step_index, payload.until);
    if (event_type === "tool.retry_scheduled") timers.set(step_index, payload.retry_at);
    const claimed = event_type === "tool.claimed" && payload.attempt > 1;
    const ended = event_type === "wait.ended" && payload.outcome !== "received";
    if (ended || claimed || event_type === "approval.expired") {
      fired.push({ seq, step: step_index, due: Date.parse(timers.get(step_index)), at: Date.parse(timestamp), by: claimed ? "worker" : "alarm" });
    }
  }
  return fired;
}

describe("many timers of one run", { concurrency: true }, () => {
  /** Registered in this order: long ones before short ones, and two of the same length. */
  const parallel = async () => {
    const flaky = await toolOf(world, "flaky", (call, n) => (call.headers["dormouse-attempt"] === "1" ? { status: 503 } : { body: { n } }), {
      retry: { max_attempts: 2, base: "PT0.2S", max_wait: "PT1M", jitter: "none" },
    });
    const lazy = await toolOf(world, "lazy", { status: 202, body: {} }, { callback_timeout: "PT0.8S", retry: { max_attempts: 1 } });
    return {
      steps: beside(
        go({ id: "a", wait_for: "a", timeout: "PT3S" }),
        go({ id: "b", wait_for: "b", timeout: "PT0.2S" }),
        go({ id: "c", wait_for: "c", timeout: "PT1S" }),
        go({ id: "d", wait_for: "d", timeout: "PT0.2S" }),
        { id: "e", tool: flaky },
        go({ id: "f", approval: { prompt: "Well?" }, timeout: "PT0.6S" }),
        { id: "g", sleep: "PT0.5S" },
        { id: "h", tool: lazy, on_failure: "continue" },
        { id: "i", sleep: "P1D", when: "{{ input.long }}" },
      ),
      output: "{{ steps.f.result.decision }}",
    };
  };

  async function assertOrder(runId, expected) {
    const { run, log } = await assertStanding(world, runId);
    assert.deepEqual([run.status, run.output], ["completed", "expired"], JSON.stringify(run));
    const fired = firings(log);
    assert.deepEqual(fired.map(({ step }) => run.steps[step].id).sort(), expected, "each fired once");
    for (const { step, due, at, by } of fired) assert.ok(at >= due - (by === "worker" ? 20 : 0), `step ${step} fired ${due - at} ms early`);
    const byAlarm = fired.filter(({ by }) => by === "alarm");
    assert.deepEqual(byAlarm, byAlarm.toSorted((x, y) => x.due - y.due || x.step - y.step || x.seq - y.seq), "in the order of their times");
    for (const worker of fired.filter(({ by }) => by === "worker")) {
      for (const other of byAlarm) if (other.due < worker.due - 20) assert.ok(other.seq < worker.seq, `step ${other.step} was due before step ${worker.step}`);
    }
    return { run, log, fired };
  }

  test("fire in the order of their times, whatever the order in which they were set", async () => {
    const { run_id } = await startWith(await parallel(), { input: { long: false } });
    await world.dev.untilRun(run_id);
    const { log } = await assertOrder(run_id, ["a", "b", "c", "d", "e", "f", "g", "h"]);
    const started = log.filter(({ event_type }) => event_type === "wait.started").map(({ step_index }) => step_index);
    assert.deepEqual(started.slice(0, 4), [0, 1, 2, 3], "the longest was set first");
  });

  test("keep their times when one of them is ended early, and when the run is dropped from memory again and again", async () => {
    const { dev } = world;
    const { run_id } = await startWith(await parallel(), { input: { long: false } });
    const { waiting_for } = await dev.run(run_id);
    await signalled(dev, run_id, "a");
    await signalled(dev, run_id, "c");
    await until(
      async () => {
        await seamsOf(dev).evict(run_id);
        const run = await dev.run(run_id);
        for (const { step_index, kind, until: at } of run.waiting_for) {
          const before = waiting_for.find((one) => one.step_index === step_index && one.kind === kind);
          if (before) assert.equal(at, before.until, `step ${step_index} was due at another time before`);
        }
        return run.status === "completed";
      },
      { what: "the run is over", every: 150 },
    );
    const { fired, log } = await assertOrder(run_id, ["b", "d", "e", "f", "g", "h"]);
    assert.equal(fired.length + countOf(log, "signal.consumed"), 8);
  });

  test("all that fell due while nobody looked happen in their order", async () => {
    const { dev } = world;
    const { run_id } = await startWith(await parallel(), { input: { long: true } });
    await until(async () => kindsOf(await diagnosis(dev, run_id)).includes("callback@7"), { what: "the tool answered 202" });
    await seamsOf(dev).advance(run_id, "P2D");
    await dev.untilRun(run_id);
    await assertOrder(run_id, ["a", "b", "c", "d", "e", "f", "g", "h", "i"]);
  });

  test("one set later and due sooner is not held up by the one that was there", async () => {
    const { dev, sink } = world;
    const [tool, callback] = [await toolOf(world, "sooner"), await toolOf(world, "calls-back", { status: 202, body: {} })];
    const ways = ["signal", "approval", "callback", "resume"];
    const first = {
      signal: { wait_for: "go" },
      approval: { approval: { prompt: "Well?" } },
      callback: { tool: callback },
      resume: { sleep: "PT0.1S" },
    };
    const ids = await eachOf(ways, 4, async (way) => {
      const { run_id } = await startWith({
        steps: [
          { id: "long", depends_on: [], sleep: "P30D" },
          { id: "first", depends_on: [], ...first[way] },
          { id: "short", sleep: "PT0.2S" },
          { id: "act", tool },
        ],
      });
      if (way === "resume") {
        await dev.ok("POST", `/v1/runs/${run_id}/pause`);
        await until(async () => Date.now() > Date.parse((await dev.run(run_id)).waiting_for[1].until), { what: "the sleep is past due" });
        assert.equal((await dev.run(run_id)).status, "paused");
        await dev.ok("POST", `/v1/runs/${run_id}/resume`);
        return run_id;
      }
      const { blockers } = await until(
        async () => {
          const told = await diagnosis(dev, run_id);
          return told.blockers[1].kind === way && told;
        },
        { what: `${run_id} waits for ${way}` },
      );
      const path = {
        signal: () => blockers[1].release.split(" ")[1],
        approval: () => blockers[1].release.split(" ")[1],
        callback: () => new URL(callsByStep(sink, run_id).get(1)[0].headers["dormouse-callback"]).pathname,
      }[way]();
      const body = { signal: {}, approval: { decision: "approved" }, callback: { status: "succeeded", result: 1 } }[way];
      await dev.ok("POST", path, { body });
      return run_id;
    });
    for (const runId of ids) {
      await until(async () => callsByStep(sink, runId).has(3), { what: `${runId} goes on` });
      await until(async () => (await dev.run(runId)).steps[3].status === "completed", { what: `${runId} is told` });
      const { run } = await assertStanding(world, runId);
      assert.deepEqual(run.waiting_for.map(({ kind, step_index }) => [kind, step_index]), [["timer", 0]]);
    }
  });
});

describe("no time at all", () => {
  test("a sleep of nothing, of a millisecond or until the past is due now, while the system is busy", async () => {
    const { dev } = world;
    const tool = await toolOf(world, "busy", { body: {}, delay: 100 });
    const hourAgo = new Date(Date.now() - 3_600_000).toISOString();
    const naps = [
      { sleep: "PT0S" },
      { sleep: "P0D" },
      { sleep: "PT0.001S" },
      { sleep: "PT0.0009S" },
      { sleep_until: hourAgo },
      { sleep_until: "{{ input.hour_ago }}" },
      { sleep_until: "1970-01-01T00:00:00Z" },
      { sleep_until: hourAgo.replace("Z", "+00:00") },
      { sleep_until: "{{ run.created_at }}" },
      go({ wait_for: "nothing", timeout: "PT0S" }),
      go({ approval: { prompt: "Well?" }, timeout: "PT0S" }),
      go({ approval: { prompt: "Well?" }, timeout: "PT0.001S" }),
    ];
    const kinds = [...naps, ...naps, { tool }, { tool }, { tool }, { tool }, { tool }, { tool }, { tool }, { tool }];
    const bodies = Array.from({ length: 2 * kinds.length }, (_, n) => kinds[n % kinds.length]).map((step) => ({
      plan: { steps: [{ id: "first", ...step }, { id: "then", emit: { type: "went.on", data: 1 } }] },
      input: { hour_ago: hourAgo },
    }));
    const ids = await eachOf(bodies, 24, async (body) => (await dev.startRun(body)).run_id);
    await eachOf(ids, 8, async (runId, n) => {
      assert.equal((await dev.untilRun(runId)).status, "completed", JSON.stringify(bodies[n]));
      const { log } = await assertStanding(world, runId, { many: n >= kinds.length });
      assert.ok(countOf(log, "wait.ended", 0) + countOf(log, "approval.expired", 0) + countOf(log, "tool.completed", 0) === 1);
    });
  });

  test("what is negative, beyond ten years or no duration is refused where it is said, with its place", async () => {
    const { dev } = world;
    const tool = (more) => ({ http: { method: "POST", url: "http://127.0.0.1/" }, ...more });
    const plan = (step) => ({ plan: { steps: [{ id: "s", ...step }] } });
    const approval = { prompt: "Well?" };
    const places = {
      "/plan/steps/0/sleep": (d) => ["POST", "/v1/runs", plan({ sleep: d })],
      "/plan/steps/0/timeout": (d) => ["POST", "/v1/runs", plan({ wait_for: "x", timeout: d })],
      "/plan/steps/0/timeout#approval": (d) => ["POST", "/v1/runs", plan({ approval, timeout: d })],
      "/planner/steps/0/sleep": (d) => ["PUT", "/v1/agents/too-long", { planner: { kind: "plan", steps: [{ id: "s", sleep: d }] } }],
      "/limits/deadline": (d) => ["PUT", "/v1/agents/too-long", { planner: { kind: "external" }, limits: { deadline: d } }],
      "/timeout": (d) => ["PUT", "/v1/tools/too-long", tool({ timeout: d })],
      "/callback_timeout": (d) => ["PUT", "/v1/tools/too-long", tool({ callback_timeout: d })],
      "/retry/base": (d) => ["PUT", "/v1/tools/too-long", tool({ retry: { base: d } })],
      "/retry/max_wait": (d) => ["PUT", "/v1/tools/too-long", tool({ retry: { max_wait: d } })],
    };
    const wrong = ["-PT1S", "P-1D", "P10Y1D", "P11Y", "P3651D", "PT315360001S", `P${"9".repeat(30)}D`, "9e18", "5 parsecs", "PT1e3S", "1", "", "P", -1, 1_000, 9e18, null, ["PT1S"]];
    for (const [place, request] of Object.entries(places)) {
      const [pointer] = place.split("#");
      for (const duration of wrong) {
        const [method, path, body] = request(duration);
        const answer = await dev.call(method, path, { body });
        assert.equal(answer.status, 422, `${place} ${duration}: ${answer.text}`);
        assert.ok(answer.json.errors.some((error) => error.pointer === pointer), `${place} ${duration}: ${answer.text}`);
      }
    }
    assert.equal((await dev.get("/v1/tools/too-long")).status, 404);
    assert.equal((await dev.get("/v1/agents/too-long")).status, 404);
    // The bounds themselves are allowed.
    for (const [duration, ...allowed] of [["P10Y", "/plan/steps/0/sleep", "/plan/steps/0/timeout", "/planner/steps/0/sleep", "/limits/deadline", "/retry/base"], ["P365D", "/callback_timeout"], ["PT10M", "/timeout"]]) {
      for (const place of allowed) {
        const [method, path, body] = places[place](duration);
        const answer = await dev.call(method, path.replace("too-long", unique("longest")), { body });
        assert.ok([201, 202].includes(answer.status), `${place} ${duration}: ${answer.text}`);
        if (answer.status === 202) await dev.ok("POST", `/v1/runs/${answer.json.run_id}/cancel`);
      }
    }
    for (const [place, duration] of [["/callback_timeout", "P365DT1S"], ["/timeout", "PT10M1S"]]) {
      const [method, path, body] = places[place](duration);
      assert.equal((await dev.call(method, path, { body })).status, 422, `${place} ${duration}`);
    }
  });

  test("a sleep until a time beyond ten years is refused, or held for a person: it does not sleep", async () => {
    const { dev } = world;
    for (const at of ["2099-01-01T00:00:00Z", "9999-12-31T23:59:59Z"]) {
      const fixed = await dev.post("/v1/runs", { plan: { steps: [{ id: "s", sleep_until: at }] } });
      const given = await dev.post("/v1/runs", { plan: { steps: [{ id: "s", sleep_until: "{{ input.at }}" }] }, input: { at } });
      for (const answer of [fixed, given]) {
        if (answer.status === 422) continue;
        assert.equal(answer.status, 202, answer.text);
        const run = await dev.untilRun(answer.json.run_id, ["blocked", "waiting", "failed", "completed"]);
        assert.equal(run.status, "blocked", JSON.stringify(run));
        assert.equal((await dev.deadLetters(run.run_id))[0].reason, "invalid_arguments");
      }
    }
  });
});

describe("a very long time", { concurrency: true }, () => {
  /** Each waits for `ms` in its way; `ended` counts the entries that tell that this is over. */
  const WAYS = {
    sleep: { kind: "timer", step: async (ms) => ({ sleep: `PT${ms / SECOND}S` }), ended: "wait.ended" },
    signal: { kind: "signal", step: async (ms) => go({ wait_for: "x", timeout: `PT${ms / SECOND}S` }), ended: "wait.ended" },
    approval: { kind: "approval", step: async (ms) => go({ approval: { prompt: "Well?" }, timeout: `PT${ms / SECOND}S` }), ended: "approval.expired" },
    callback: {
      kind: "callback",
      step: async (ms) => ({
        tool: await toolOf(world, "long-callback", { status: 202, body: {} }, { callback_timeout: `PT${ms / SECOND}S`, retry: { max_attempts: 1 } }),
        on_failure: "continue",
      }),
      ended: "wait.ended",
    },
    backoff: {
      kind: "retry",
      step: async (ms) => ({
        tool: await toolOf(world, "long-backoff", [{ status: 503 }, { body: { ok: true } }], {
          retry: { max_attempts: 2, base: `PT${ms / SECOND}S`, max_wait: `PT${ms / SECOND}S`, jitter: "none" },
        }),
      }),
      ended: "tool.completed",
    },
    "retry-after": {
      kind: "retry",
      step: async (ms) => ({
        tool: await toolOf(world, "long-after", [{ status: 429, headers: { "retry-after": String(Math.ceil(ms / SECOND)) } }, { body: { ok: true } }]),
      }),
      ended: "tool.completed",
    },
  };
  /** Longer than a queue delays, at the edge of 32 bits, and as long as may be. */
  const ALL = [50_000 * SECOND, 2_147_483_647, 2_147_483_648, 30 * DAY, 400 * DAY, 3_650 * DAY];
  const SOME = [50_000 * SECOND, 2_147_483_648, 365 * DAY];

  for (const [name, way] of Object.entries(WAYS)) {
    test(`${name}: it does not end early, and ends once`, async () => {
      const { dev } = world;
      const seams = seamsOf(dev);
      await eachOf(name === "sleep" ? ALL : SOME, 3, async (ms) => {
        const { run_id } = await startWith({ steps: [{ id: "long", ...(await way.step(ms)) }, { id: "then", emit: { type: "went.on", data: 1 } }] });
        const blocker = await until(
          async () => {
            const { blockers } = await diagnosis(dev, run_id);
            return blockers[0]?.kind === way.kind && blockers[0];
          },
          { what: `${run_id} waits` },
        );
        const wanted = name === "retry-after" ? Math.ceil(ms / SECOND) * SECOND : ms;
        assert.equal(Date.parse(blocker.until) - Date.parse(blocker.since), wanted, `${name} ${ms}`);
        const still = async (when) => {
          const run = await dev.run(run_id);
          assert.deepEqual([run.status === "waiting" || run.status === "running", run.steps[1].status], [true, "scheduled"], `${name} of ${ms} ${when}: ${JSON.stringify(run)}`);
          const internals = await seams.internals(run_id);
          assert.deepEqual([internals.timers.length, internals.outbox.length <= 1], [1, true], JSON.stringify(internals));
          assert.equal(internals.timers[0].at, blocker.until);
        };
        await still("at once");
        await seams.evict(run_id);
        await still("dropped from memory");
        const sent = async () => (await seams.internals(run_id)).operations.work_messages;
        await seams.advance(run_id, `PT${(wanted - 20 * SECOND) / SECOND}S`);
        await still("just before");
        const before = await sent();
        assert.equal(countOf(await dev.log(run_id), way.ended, 0), 0);
        await seams.advance(run_id, "PT21S");
        await dev.untilRun(run_id);
        const { log, run } = await assertStanding(world, run_id);
        assert.equal(run.status, "completed");
        assert.equal(countOf(log, way.ended, 0), 1, `${name} of ${ms} ended once`);
        const calls = callsByStep(world.sink, run_id).get(0) ?? [];
        assert.equal(calls.length, { retry: 2, callback: 1 }[way.kind] ?? 0);
        assert.ok((await sent()) - before <= 1, "one message for one wait");
      });
    });
  }

  test("a copy of a message that comes between changes nothing, nor does the sweeper", async () => {
    const { dev, sink } = world;
    const seams = seamsOf(dev);
    const tool = await toolOf(world, "between", [{ status: 503 }, { body: { ok: true } }], { retry: { ...RETRY, base: "PT25000S", max_wait: "P1D" } });
    const { run_id } = await startWith(stepsOf(tool, 1));
    await until(async () => kindsOf(await diagnosis(dev, run_id))[0] === "retry@0", { what: "it waits for its next attempt" });
    for (let hop = 0; hop < 4; hop += 1) {
      await seams.redeliver(run_id, 0, 3);
      await seams.evict(run_id);
      await seams.sweep();
      await seams.advance(run_id, "PT12000S");
      assert.equal(sink.to(`/${tool}`).length, 1);
      const { timers, leases } = await seams.internals(run_id);
      assert.deepEqual([timers.length, leases.length], [1, 0]);
    }
    await seams.advance(run_id, "PT2001S");
    await dev.untilRun(run_id, "completed");
    await seams.redeliver(run_id, 0, 3);
    const log = await assertRunIsRight(dev, sink, run_id);
    assert.equal(log.find(({ event_type }) => event_type === "tool.retry_scheduled").payload.wait_ms, 50_000_000);
    assert.equal(sink.to(`/${tool}`).length, 2);
    await assertStanding(world, run_id);
  });
});

test("an alarm that the platform lost is set anew by the sweeper, and by whoever touches the run", async () => {
  const { sink } = world;
  const tool = await toolOf(world, "lost");
  const plan = { steps: [{ id: "nap", sleep: "PT1S" }, { id: "act", tool }] };
  const [swept, touched] = [await startWith(plan), await startWith({ steps: [...beside({ id: "nap", sleep: "PT1S" }, { id: "s", wait_for: "x" }), { id: "act", depends_on: ["nap"], tool }] })];
  await world.restart(async () => {
    for (const { run_id } of [swept, touched]) loseAlarm(world.stateDir, run_id);
    ageIndex(world.stateDir, swept.run_id);
  });
  const { dev } = world;
  // An alarm counts as lost once it is three seconds late.
  const due = Date.parse(swept.waiting_for[0].until);
  await until(() => Date.now() > due + 3_100, { what: "the alarm is late" });
  const findings = await seamsOf(dev).sweep();
  assert.equal(findings.unanswered, 0);
  assert.equal(findings.rearmed, 1, JSON.stringify(findings));
  assert.equal((await signal(dev, touched.run_id, "x")).status, 202);
  for (const { run_id } of [swept, touched]) {
    await dev.untilRun(run_id, "completed");
    await assertStanding(world, run_id);
    assert.equal(callsByStep(sink, run_id).size, 1);
  }
});

test("no line of the runtime tells of hung or dead code", () => assertQuiet(world.lines));

describe("the process group is killed while runs wait", () => {
  let place;
  before(async () => {
    const [sink, port, stateDir] = [await startSink(), await freePort(), await mkdtemp(join(tmpdir(), "dormouse-waits-"))];
    let server = await startServer({ port, stateDir });
    const output = [];
    const end = async (name) => {
      await server.signal(name);
      output.push(...server.output);
    };
    place = {
      sink,
      dev: clientOf(server.url, "dev-key"),
      output,
      kill: () => end("SIGKILL"),
      start: async () => {
        server = await startServer({ port, stateDir });
      },
      close: async () => {
        await end("SIGTERM");
        await sink.close();
        await rm(stateDir, { recursive: true, force: true });
      },
    };
  });
  after(() => place?.close());

  test("what was overdue at the start fires within five seconds, what falls due later in its time, and nobody asks", async (t) => {
    const { sink, dev } = place;
    const put = (name, answers, more) => {
      sink.on(`/${name}`, answers);
      return dev.putTool(name, { http: { method: "POST", url: `${sink.url}/${name}` }, ...more });
    };
    const first = (answer) => (call) => (call.headers["dormouse-attempt"] === "1" ? answer : { body: { ok: true } });
    await put("act", { body: { ok: true } });
    await put("once-more", first({ status: 503 }), { retry: { max_attempts: 2, base: "PT300S", max_wait: "PT5S", jitter: "none" } });
    await put("asked-later", first({ status: 503, headers: { "retry-after": "5" } }));
    await put("calls-back", first({ status: 202, body: {} }), { callback_timeout: "PT5S", retry: { max_attempts: 2, base: "PT0S" } });
    await dev.putAgent("napper", { planner: { kind: "plan", steps: [{ id: "nap", sleep: "PT5S" }] } });
    await dev.putAgent("late", { planner: { kind: "plan", steps: [{ id: "nap", sleep: "P1D" }] }, limits: { deadline: "PT5S" } });
    const act = { id: "act", tool: "act" };
    const kinds = {
      timer: { sleep: "PT5S" },
      signal: go({ wait_for: "x", timeout: "PT5S" }),
      approval: go({ approval: { prompt: "Well?" }, timeout: "PT5S" }),
      callback: { tool: "calls-back" },
      retry: { tool: "once-more" },
      "retry#after": { tool: "asked-later" },
      child: { run: { agent: "napper" } },
      "child#deadline": { run: { agent: "late" }, on_failure: "continue" },
    };
    const startAll = () =>
      eachOf(Object.entries(kinds), 4, async ([kind, step]) => {
        const { run_id } = await dev.startRun({ plan: { steps: [{ id: "wait", ...step }, act] }, tags: { kind: kind.replace("#", "-") } });
        return { run_id, kind };
      });
    const held = async ({ run_id, kind }) => {
      const [wanted] = kind.split("#");
      const { blockers } = await until(
        async () => {
          const told = await diagnosis(dev, run_id);
          return told.blockers[0]?.kind === wanted && !/being started/.test(told.blockers[0].detail) && told;
        },
        { what: `${run_id} waits for ${kind}` },
      );
      return blockers[0].until === null ? 0 : Date.parse(blockers[0].until);
    };
    const actedOf = (runs) => runs.filter(({ run_id }) => callsByStep(sink, run_id).has(1));

    const overdue = await startAll();
    const mail = await dev.startRun({ plan: { steps: [{ id: "wait", wait_for: "never" }] } });
    const dues = await eachOf(overdue, 4, held);
    // These are killed with the others and fall due after the start.
    await until(() => Date.now() > Math.min(...dues.filter(Boolean)) - 2_500, { what: "some time passes before the second lot" });
    const later = await startAll();
    await eachOf(later, 4, held);
    assert.equal(actedOf(overdue).length, 0, "nothing was due before the kill");
    // What was accepted is there afterwards, whatever the last moment was.
    const accepted = await eachOf(Array.from({ length: 32 }, (_, n) => n), 8, (n) => signalled(dev, mail.run_id, "kept", n));
    await place.kill();
    await until(() => Date.now() > Math.max(...dues) + 500, { what: "all of the first lot are overdue" });

    await place.start();
    const started = Date.now();
    await until(() => actedOf(overdue).length === overdue.length, { what: "all that was overdue happened", within: 3 * WAKE_MS, every: 10 }).catch(() => {});
    const missing = overdue.filter((run) => !actedOf([run]).length).map(({ kind }) => kind);
    assert.deepEqual(missing, [], "overdue, and nothing woke them");
    const took = Date.now() - started;
    t.diagnostic(`the last of ${overdue.length} overdue waits was over ${took} ms after the start`);
    assert.ok(took < WAKE_MS, `overdue for ${took} ms after the start`);
    await until(() => actedOf(later).length === later.length, { what: `the rest: ${later.filter((run) => !actedOf([run]).length).map(({ kind }) => kind)}` });

    for (const { run_id, kind } of [...overdue, ...later]) {
      await dev.untilRun(run_id, "completed");
      const { log } = await assertStanding(place, run_id);
      for (const { step, due, at, by } of firings(log)) assert.ok(at >= due - (by === "worker" ? 20 : 0), `${kind} step ${step} fired ${due - at} ms early`);
    }
    const box = await dev.run(mail.run_id);
    assert.deepEqual(box.mailbox.map(({ seq }) => seq), accepted.map(({ seq }) => seq).sort((a, b) => a - b));
    await assertStanding(place, mail.run_id);
    await dev.ok("POST", `/v1/runs/${mail.run_id}/cancel`);
    const { unanswered, forgotten, resent } = await seamsOf(dev).sweep();
    assert.deepEqual({ unanswered, forgotten, resent }, { unanswered: 0, forgotten: 0, resent: 0 }, "the sweeper found something lost");
    assert.deepEqual((await dev.ok("GET", "/v1/dead-letters?status=open")).items, []);
  });

  test("no line of these servers tells of hung or dead code", async () => {
    await place.kill();
    assertQuiet(place.output);
    await place.start();
  });
});
