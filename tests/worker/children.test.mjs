// Runs that start runs: a parent gets each child's result once, and nothing below it outlives it.

import assert from "node:assert/strict";
import { after, afterEach, before, describe, test } from "node:test";
import { assertOneEffect, assertQuiet, assertRunIsRight, countOf, eachOf } from "./support/checks.mjs";
import { ENDED } from "./support/client.mjs";
import { heldTool } from "./support/held.mjs";
import { rawAt } from "./support/json.mjs";
import { lives } from "./support/lives.mjs";
import { verifyLog } from "./support/log.mjs";
import { randomOf } from "./support/random.mjs";
import { unique } from "./support/runtime.mjs";
import { seamsOf } from "./support/seams.mjs";
import { blockerOf, release, standingChecks } from "./support/standing.mjs";
import { setTreeCount } from "./support/store.mjs";
import { until } from "./support/until.mjs";

const pause = (ms) => new Promise((done) => setTimeout(done, ms));
/** As text, so that no digit is lost. */
const echo = ({ text }) => ({ body: text });

let world;
before(async () => {
  world = await lives();
});
afterEach(standingChecks(() => world));
after(() => world?.end());

/** Stores a tool of a path of its name, and answers the name. */
async function toolOf(stem, answers = echo, more = {}) {
  const name = unique(stem);
  world.sink.on(`/${name}`, answers);
  await world.dev.putTool(name, { http: { method: "POST", url: `${world.sink.url}/${name}` }, ...more });
  return name;
}

/** Stores an agent with a fixed plan, and answers its name. */
async function agentOf(stem, steps, { output, ...more } = {}) {
  const name = unique(stem);
  await world.dev.putAgent(name, { planner: { kind: "plan", steps, ...(output !== undefined && { output }) }, ...more });
  return name;
}

const child = (agent, more = {}, input = {}) => ({ id: "child", run: { agent, input }, ...more });
const planned = (...steps) => ({ plan: { steps } });
const done = { id: "done", emit: { type: "done" } };
const payloads = (log, type) => log.filter(({ event_type }) => event_type === type).map(({ payload }) => payload);

/** Waits until the child of a step exists, and answers its id. */
const childOf = (runId, index = 0) =>
  until(
    async () => {
      const id = (await world.dev.run(runId)).steps[index].child_run_id;
      return id && (await world.dev.get(`/v1/runs/${id}`)).status === 200 && id;
    },
    { what: `${runId} has a child`, every: 10 },
  );

/** Starts a run whose first step is a child run, and waits until that is in one of the states. */
async function startWithChild(body, states) {
  const { run_id } = await world.dev.startRun(body);
  const childId = await childOf(run_id);
  if (states) await world.dev.untilRun(childId, states);
  return { run_id, childId };
}

const letterOf = (runId) =>
  until(async () => (await world.dev.deadLetters(runId)).find(({ status }) => status === "open"), { what: `${runId} has a dead letter` });

/** The runs below a run, as far as they exist: those that were asked for by any of them. */
async function below(runId) {
  const found = [];
  for (const { run_id } of payloads(await world.dev.log(runId), "child.requested")) {
    const answer = await world.dev.get(`/v1/runs/${run_id}`);
    if (answer.status === 404) continue;
    found.push(answer.json, ...(await below(run_id)));
  }
  return found;
}

/** Waits until a run and all below it have ended, with nothing under way; answers those below. */
const allEnded = (runId) =>
  until(
    async () => {
      const family = [await world.dev.run(runId), ...(await below(runId))];
      return family.every(({ ended_at }) => ended_at !== null) && family.slice(1);
    },
    { what: `all below ${runId} have ended`, every: 150 },
  );

describe("a child run", () => {
  test("gives its output to the step that started it, and both know each other", async () => {
    const { dev, sink } = world;
    const tool = await toolOf("work");
    const grandchild = await agentOf("grandchild", [{ id: "work", tool, arguments: { from: "{{ input.n }}" } }]);
    const agent = await agentOf(
      "child",
      [{ id: "below", run: { agent: grandchild, input: { n: "{{ input.n }}" } } }, { id: "work", tool, arguments: { before: "{{ steps.below.result }}" } }],
      { output: { got: "{{ steps.work.result.before }}", of: "{{ run.run_id }}" } },
    );
    // A later version is none of this run's.
    const body = `{"plan":{"steps":[{"id":"child","run":{"agent":"${agent}@1","input":{"n":18446744073709551617}}},{"id":"after","tool":"${tool}","arguments":{"child":"{{ steps.child.result }}"}}]}}`;
    await dev.putAgent(agent, { planner: { kind: "plan", steps: [done] } });
    const { run_id, childId } = await startWithChild(body, "completed");
    const run = await dev.untilRun(run_id, "completed");
    assert.equal(rawAt((await dev.get(`/v1/runs/${run_id}`)).text, "steps", 0, "result", "got", "from"), "18446744073709551617");
    assert.equal(run.steps[0].result.of, childId);
    const [one, two] = await below(run_id);
    assert.deepEqual([run.steps[0].kind, run.steps[0].name, run.steps[0].child_run_id], ["run", `${agent}@1`, childId]);
    assert.equal(run.parent, undefined);
    assert.deepEqual(one.parent, { run_id, step_index: 0, root_run_id: run_id, depth: 1 });
    assert.deepEqual(two.parent, { run_id: childId, step_index: 0, root_run_id: run_id, depth: 2 });
    assert.deepEqual([one.run_id, one.agent, one.status], [childId, `${agent}@1`, "completed"]);
    assert.equal(one.steps[0].child_run_id, two.run_id);
    assert.equal(new Set([run, one, two].map(({ trace_id }) => trace_id)).size, 3);
    const log = await verifyLog(dev, run_id);
    for (const type of ["child.requested", "child.started", "child.ended"]) assert.deepEqual(payloads(log, type).map((p) => p.run_id), [childId], type);
    for (const { run_id: id } of [run, one, two]) {
      await verifyLog(dev, id);
      assertOneEffect(sink, await dev.run(id), { once: true });
    }
    const listed = (await dev.ok("GET", "/v1/runs?limit=10")).items.map((item) => item.run_id);
    for (const { run_id: id } of [run, one, two]) assert.ok(listed.includes(id), `${id} is listed`);
    for (const body of [{ ...planned(done), parent: { run_id } }, { ...planned(done), parent_run_id: run_id }]) {
      assert.equal((await dev.post("/v1/runs", body)).status, 422, "nobody is made a child from outside");
    }
  });

  test("is one for each step: the same agent with the same input, large, and at once", async () => {
    const { dev } = world;
    const agent = await agentOf("same", [done], { output: { id: "{{ run.run_id }}", text: "{{ input.text }}" } });
    const text = "é".repeat(120_000);
    const steps = ["a", "b", "c"].map((id) => ({ id, depends_on: [], run: { agent, input: { text: "{{ input.text }}" } } }));
    const run = await dev.runToEnd({ plan: { steps, output: ["a", "b", "c"].map((id) => `{{ steps.${id}.result.id }}`) }, input: { text } });
    assert.equal(run.status, "completed");
    assert.deepEqual(run.output, run.steps.map(({ child_run_id }) => child_run_id));
    assert.equal(new Set(run.output).size, 3);
    assert.deepEqual(run.steps.map(({ result }) => result.text === text), [true, true, true]);
  });

  test("side by side with nine others is one of at most three, and each result is in its place", async () => {
    const { dev } = world;
    let [inside, most] = [0, 0];
    const tool = await toolOf("beside", async ({ json }) => {
      inside += 1;
      most = Math.max(most, inside);
      // Nothing answers before as many are inside as may be.
      await until(() => most >= 3, { within: 10_000, every: 5 });
      inside -= 1;
      return { body: json };
    });
    const agent = await agentOf("beside", [{ id: "work", tool, arguments: { n: "{{ input.n }}" } }]);
    const steps = Array.from({ length: 10 }, (_, n) => ({ id: `s${n}`, depends_on: [], run: { agent, input: { n } } }));
    const parent = await agentOf("ten", steps, { limits: { max_parallel: 3 }, output: steps.map(({ id }) => `{{ steps.${id}.result.n }}`) });
    const run = await dev.runToEnd({ agent: parent });
    assert.equal(run.status, "completed");
    assert.equal(most, 3);
    assert.deepEqual(run.output, steps.map((_, n) => n));
    const log = await verifyLog(dev, run.run_id);
    let open = 0;
    for (const { event_type } of log) {
      open += event_type === "child.requested" ? 1 : event_type === "child.ended" ? -1 : 0;
      assert.ok(open <= 3, "more than three at once");
    }
  });
});

describe("what holds a child holds its parent", () => {
  test("and the parent's diagnosis names the call that releases it, three levels down", async () => {
    const { dev } = world;
    const seams = seamsOf(dev);
    const broken = await toolOf("broken", [{ status: 400 }, { body: {} }]);
    const waits = {
      signal: { step: { id: "w", wait_for: ["go", "stop"] }, path: /^POST \/v1\/runs\/RUN\/signals\/go$/ },
      approval: { step: { id: "w", approval: { prompt: "May it?" } }, path: /^POST \/v1\/approvals\/apr_[0-9a-f]{32}$/, body: { decision: "approved" } },
      dead_letter: { step: { id: "w", tool: broken, arguments: {} }, path: /^POST \/v1\/dead-letters\/dl_[0-9a-f]{32}\/redeliver$/, body: {} },
      paused: { step: { id: "w", wait_for: "go" }, path: /^POST \/v1\/runs\/RUN\/resume$/ },
      timer: { step: { id: "w", sleep: "P1D" } },
    };
    await eachOf(Object.entries(waits), 5, async ([kind, { step, path, body }]) => {
      const leaf = await agentOf("leaf", [step]);
      const middle = await agentOf("middle", [child(leaf)]);
      const { run_id, childId } = await startWithChild(planned(child(middle)));
      const leafId = await childOf(childId);
      await dev.untilRun(leafId, ["waiting", "blocked"]);
      if (kind === "paused") await dev.ok("POST", `/v1/runs/${leafId}/pause`);
      const own = await blockerOf(dev, leafId, kind === "paused" ? null : 0);
      assert.equal(own.kind, kind);
      for (const id of [run_id, childId]) {
        const run = await dev.run(id);
        assert.deepEqual([run.status, run.waiting_for.map((waited) => waited.kind)], ["waiting", ["child"]]);
        const blocker = await blockerOf(dev, id);
        assert.deepEqual([blocker.kind, blocker.step_index, blocker.child_run_id], ["child", 0, run.steps[0].child_run_id]);
        assert.equal(blocker.release, own.release, `${kind}: what releases the leaf releases all`);
        assert.ok(blocker.detail.includes(leafId) && blocker.detail.includes(kind), blocker.detail);
        if (path) assert.match(blocker.release.replace(leafId, "RUN"), path);
      }
      if (kind === "timer") await seams.advance(leafId, "P1D");
      else await release(dev, await blockerOf(dev, run_id), body);
      // What was paused waits for what it waited for before.
      if (kind === "paused") await release(dev, await blockerOf(dev, run_id));
      for (const id of [leafId, childId, run_id]) assert.equal((await dev.untilRun(id)).status, "completed", kind);
      for (const id of [leafId, childId, run_id]) assert.equal(countOf(await verifyLog(dev, id), "run.completed"), 1);
    });
  });

  test("a parent that is paused hears of the end, and goes on when it is resumed", async () => {
    const { dev } = world;
    const agent = await agentOf("hears", [{ id: "w", wait_for: "go" }]);
    const { run_id, childId } = await startWithChild(planned(child(agent), child(agent, { id: "second" })), "waiting");
    await dev.ok("POST", `/v1/runs/${run_id}/pause`);
    await dev.ok("POST", `/v1/runs/${childId}/signals/go`, { body: { payload: 7 } });
    await until(async () => (await dev.run(run_id)).steps[0].status === "completed", { what: "the parent was told" });
    assert.deepEqual((await dev.run(run_id)).steps.map(({ result, child_run_id }) => [result, child_run_id]), [[7, childId], [null, undefined]]);
    await dev.ok("POST", `/v1/runs/${run_id}/resume`);
    await dev.ok("POST", `/v1/runs/${await childOf(run_id, 1)}/signals/go`, { body: { payload: 8 } });
    assert.equal((await dev.untilRun(run_id, "completed")).output, 8);
  });
});

describe("a child that does not complete", () => {
  /** An agent whose tool fails it as long as it is broken. */
  async function breaking(on_failure = "fail") {
    const state = { broken: true };
    const tool = await toolOf("breaking", ({ json }) => (state.broken ? { status: 422, body: { no: 1 } } : { body: json }));
    const agent = await agentOf("breaks", [{ id: "work", tool, arguments: { n: "{{ input.n }}" }, on_failure }]);
    return { state, tool, agent, mend: () => (state.broken = false) };
  }

  test("leaves a dead letter with its parent, or fails it, or nothing, as the step says", async () => {
    const { dev } = world;
    const { agent } = await breaking();
    const blocked = await startWithChild(planned(child(agent, {}, { n: 1 }), done), "failed");
    assert.equal((await dev.untilRun(blocked.run_id, ["blocked", ...ENDED])).status, "blocked");
    const letter = await letterOf(blocked.run_id);
    assert.deepEqual([letter.reason, letter.step_index], ["child_failed", 0]);
    const full = await dev.ok("GET", `/v1/dead-letters/${letter.dead_letter_id}`);
    assert.ok(full.message.includes(blocked.childId) && full.message.includes("422"), full.message);
    const listed = await dev.ok("GET", `/v1/dead-letters?reason=child_failed&run_id=${blocked.run_id}`);
    assert.equal(listed.items.length, 1);
    const blocker = await blockerOf(dev, blocked.run_id);
    assert.deepEqual([blocker.kind, blocker.dead_letter_id], ["dead_letter", letter.dead_letter_id]);
    assert.equal(countOf(await verifyLog(dev, blocked.run_id), "child.ended"), 1);
    assert.deepEqual((await dev.deadLetters(blocked.childId)), [], "the child itself has failed");
    await dev.ok("POST", `/v1/runs/${blocked.run_id}/cancel`);

    for (const [on_failure, status, steps] of [["fail", "failed", ["failed", "cancelled"]], ["continue", "completed", ["failed", "completed"]], ["dead_letter", "blocked", ["dead_lettered", "scheduled"]]]) {
      const run = await dev.runToEnd(planned(child(agent, { on_failure }, { n: 1 }), done), ["blocked", ...ENDED]);
      assert.deepEqual([run.status, run.steps.map((step) => step.status)], [status, steps], on_failure);
      assert.match(run.steps[0].error.message, /422/);
      if (status === "blocked") await dev.ok("POST", `/v1/runs/${run.run_id}/cancel`);
    }
  });

  test("is replaced by another when its letter is redelivered, resolved by a person, or given up", async () => {
    const { dev } = world;
    const { agent, mend, tool } = await breaking();
    const start = async () => {
      const started = await startWithChild(planned(child(agent, {}, { n: 1 }), done), "failed");
      await dev.untilRun(started.run_id, "blocked");
      return { ...started, letter: await letterOf(started.run_id) };
    };
    const [again, resolved, discarded] = [await start(), await start(), await start()];
    const repaired = await dev.post(`/v1/dead-letters/${again.letter.dead_letter_id}/redeliver`, { payload: { tool, arguments: {} } });
    assert.deepEqual([repaired.status, repaired.json.errors?.[0].pointer], [422, "/payload"]);
    mend();
    await dev.ok("POST", `/v1/dead-letters/${again.letter.dead_letter_id}/redeliver`);
    const run = await dev.untilRun(again.run_id, "completed");
    assert.deepEqual(run.steps[0].result, { n: 1 });
    assert.notEqual(run.steps[0].child_run_id, again.childId);
    const log = await verifyLog(dev, again.run_id);
    assert.deepEqual(payloads(log, "child.ended").map(({ status }) => status), ["failed", "completed"]);

    await dev.ok("POST", `/v1/dead-letters/${resolved.letter.dead_letter_id}/resolve`, { body: { result: { by: "hand" } } });
    assert.deepEqual((await dev.untilRun(resolved.run_id, "completed")).steps[0].result, { by: "hand" });
    await dev.ok("POST", `/v1/dead-letters/${discarded.letter.dead_letter_id}/discard`, { body: { comment: "no need" } });
    assert.equal((await dev.untilRun(discarded.run_id)).status, "failed");
    // The children that had failed can be retried, and nobody is told what they then come to.
    for (const { run_id, childId } of [again, resolved]) {
      const before = (await dev.log(run_id)).length;
      await dev.ok("POST", `/v1/runs/${childId}/retry`);
      await dev.untilRun(childId, "completed");
      assert.equal((await dev.log(run_id)).length, before);
    }
  });

  for (const evicted of [false, true]) {
    test(`settles its parent's letter when it is retried and completes, at the second try too${evicted ? ", evicted between" : ""}`, async () => {
      const { dev, sink } = world;
      const seams = seamsOf(dev);
      const { agent, mend, tool } = await breaking();
      const { run_id, childId } = await startWithChild(planned(child(agent, {}, { n: 1 }), done), "failed");
      await dev.untilRun(run_id, "blocked");
      const letter = await letterOf(run_id);
      await dev.ok("POST", `/v1/runs/${childId}/retry`);
      await until(() => sink.to(`/${tool}`).length === 2, { what: "the second call" });
      await dev.untilRun(childId, "failed");
      assert.equal((await dev.run(run_id)).status, "blocked");
      assert.equal((await letterOf(run_id)).dead_letter_id, letter.dead_letter_id);
      if (evicted) {
        await seams.evict(childId);
        await seams.evict(run_id);
      }
      mend();
      await dev.ok("POST", `/v1/runs/${childId}/retry`);
      await dev.untilRun(childId, "completed");
      const run = await dev.untilRun(run_id, "completed");
      assert.deepEqual([run.steps[0].result, run.steps[0].child_run_id], [{ n: 1 }, childId]);
      assert.notEqual((await dev.ok("GET", `/v1/dead-letters/${letter.dead_letter_id}`)).status, "open");
      assert.equal((await dev.post(`/v1/dead-letters/${letter.dead_letter_id}/redeliver`)).status, 409);
      const log = await dev.log(run_id);
      assert.equal(payloads(log, "child.ended").filter(({ status }) => status === "completed").length, 1);
      assert.equal(countOf(log, "dead_letter.settled"), 1);
    });
  }

  test("and is tried again by hand ends with its parent, as it would have before", async () => {
    const { dev } = world;
    const state = { broken: true };
    const tool = await toolOf("first", () => (state.broken ? { status: 422 } : { body: {} }));
    const agent = await agentOf("retried", [{ id: "first", tool, arguments: {}, on_failure: "fail" }, { id: "w", wait_for: "go" }]);
    const start = async () => {
      state.broken = true;
      const started = await startWithChild(planned(child(agent), done), "failed");
      await dev.untilRun(started.run_id, "blocked");
      state.broken = false;
      await dev.ok("POST", `/v1/runs/${started.childId}/retry`);
      await dev.untilRun(started.childId, "waiting");
      return { ...started, letter: await letterOf(started.run_id) };
    };
    const ways = {
      cancelled: ({ run_id }) => dev.ok("POST", `/v1/runs/${run_id}/cancel`),
      failed: ({ letter }) => dev.ok("POST", `/v1/dead-letters/${letter.dead_letter_id}/discard`),
    };
    const left = [];
    for (const [status, end] of Object.entries(ways)) {
      const started = await start();
      await end(started);
      assert.equal((await dev.untilRun(started.run_id)).status, status);
      const ended = await dev.untilRun(started.childId, ENDED, { within: 8_000 }).catch((error) => error.message);
      if (ended.status !== "cancelled") left.push(`the parent ${status}: its child goes on`);
    }
    assert.deepEqual(left, []);
  });

  test("since it was cancelled by hand is told as such; a parent that failed asks for another when it is retried", async () => {
    const { dev } = world;
    const agent = await agentOf("by-hand", [{ id: "w", wait_for: "go" }]);
    const blocked = await startWithChild(planned(child(agent)), "waiting");
    const goesOn = await startWithChild(planned(child(agent, { on_failure: "continue" }), done), "waiting");
    const fails = await startWithChild(planned(child(agent, { on_failure: "fail" }), done), "waiting");
    for (const { childId } of [blocked, goesOn, fails]) await dev.ok("POST", `/v1/runs/${childId}/cancel`);
    await dev.untilRun(blocked.run_id, "blocked");
    const letter = await letterOf(blocked.run_id);
    assert.equal(letter.reason, "child_failed");
    assert.match(letter.message, /cancelled/);
    assert.deepEqual(payloads(await dev.log(blocked.run_id), "child.ended").map(({ status }) => status), ["cancelled"]);
    assert.equal((await dev.untilRun(goesOn.run_id)).status, "completed");
    assert.equal((await dev.untilRun(fails.run_id)).status, "failed");
    await dev.ok("POST", `/v1/runs/${blocked.run_id}/cancel`);
    await dev.ok("POST", `/v1/runs/${fails.run_id}/retry`);
    const second = await until(async () => {
      const id = (await dev.run(fails.run_id)).steps[0].child_run_id;
      return id !== fails.childId && id;
    }, { what: "another child" });
    await dev.untilRun(second, "waiting");
    await dev.ok("POST", `/v1/runs/${second}/signals/go`, { body: { payload: 1 } });
    const run = await dev.untilRun(fails.run_id);
    assert.deepEqual([run.status, run.steps[0].result], ["completed", 1]);
  });
});

describe("a child that cannot be", () => {
  test("is a dead letter that says why: no such agent, no such version, an input that does not fit", async () => {
    const { dev } = world;
    const missing = unique("missing");
    const input_schema = { type: "object", required: ["n"], properties: { n: { type: "integer" } } };
    const strict = await agentOf("strict", [done], { input_schema });
    const cases = [
      [child(missing), ["undeliverable", "unknown_agent"], "/run/agent"],
      [child(`${strict}@9`), ["undeliverable", "unknown_agent"], "/run/agent"],
      [child(strict, {}, {}), ["invalid_arguments"], "/run/input/n"],
      [child(strict, {}, { n: "x" }), ["invalid_arguments"], "/run/input/n"],
    ];
    for (const [step, reasons, pointer] of cases) {
      const { run_id } = await dev.startRun(planned(step, done));
      await dev.untilRun(run_id, "blocked");
      const letter = await letterOf(run_id);
      assert.ok(reasons.includes(letter.reason), letter.reason);
      assert.ok(letter.errors.some((error) => error.pointer === pointer || pointer.startsWith(`${error.pointer}/`)), JSON.stringify(letter.errors));
      const log = await verifyLog(dev, run_id);
      assert.equal(countOf(log, "child.started"), 0);
      for (const { run_id: id } of payloads(log, "child.requested")) assert.equal((await dev.get(`/v1/runs/${id}`)).status, 404, "no child was left behind");
      if (step.run.agent === missing) {
        await dev.putAgent(missing, { planner: { kind: "plan", steps: [done] } });
        await dev.ok("POST", `/v1/dead-letters/${letter.dead_letter_id}/redeliver`);
        assert.equal((await dev.untilRun(run_id)).status, "completed");
      } else {
        await dev.ok("POST", `/v1/dead-letters/${letter.dead_letter_id}/resolve`, { body: { result: 1 } });
        assert.equal((await dev.untilRun(run_id)).status, "completed");
      }
    }
    const goesOn = await dev.runToEnd(planned(child(unique("missing"), { on_failure: "continue" }), done));
    assert.equal(goesOn.status, "completed");
    const fails = await dev.runToEnd(planned(child(unique("missing"), { on_failure: "fail" }), done));
    assert.equal(fails.status, "failed");
  });

  test("is one too deep: no agent gets below its limit, nor below that of those above it", async () => {
    const { dev } = world;
    const own = unique("own-depth");
    // It starts itself, for ever; its own allowance is larger than that of the run at the top.
    const itself = async (name, other, limits) =>
      dev.putAgent(name, { planner: { kind: "plan", steps: [child(other, { on_failure: "continue" }), done] }, limits });
    await itself(own, own, { max_depth: 64 });
    for (const max_depth of [0, 1, 2, 3]) {
      const top = unique("top");
      await itself(top, own, { max_depth });
      const run = await dev.runToEnd({ agent: top });
      const family = await below(run.run_id);
      assert.deepEqual(family.map(({ parent }) => parent.depth), Array.from({ length: max_depth }, (_, n) => n + 1), `max_depth ${max_depth}`);
      const last = family.at(-1) ?? run;
      assert.equal(last.steps[0].error.reason, "fan_out_limit");
      assert.equal(run.status, "completed");
    }
    // Two that start each other, with no limit named: four levels.
    const [ping, pong] = [unique("ping"), unique("pong")];
    await dev.putAgent(ping, { planner: { kind: "plan", steps: [child(pong)] } });
    await dev.putAgent(pong, { planner: { kind: "plan", steps: [child(ping)] } });
    const { run_id } = await dev.startRun({ agent: ping });
    const last = await until(async () => {
      const family = await below(run_id);
      return family.length === 4 && family[3].status === "blocked" && family[3];
    }, { what: "the lowest is blocked" });
    assert.deepEqual(last.parent.depth, 4);
    const letter = await letterOf(last.run_id);
    assert.equal(letter.reason, "fan_out_limit");
    // From the top it is seen what holds it all.
    const blocker = await blockerOf(dev, run_id);
    assert.equal(blocker.release, `POST /v1/dead-letters/${letter.dead_letter_id}/redeliver`);
    await dev.ok("POST", `/v1/runs/${run_id}/cancel`);
    const family = await allEnded(run_id);
    assert.deepEqual(family.map(({ status }) => status), Array(4).fill("cancelled"));
    // An inline plan is bounded as well.
    const inline = await dev.startRun(planned(child(ping)));
    await until(async () => (await below(inline.run_id)).at(-1)?.status === "blocked", { what: "the lowest is blocked" });
    assert.equal((await below(inline.run_id)).length, 4);
    await dev.ok("POST", `/v1/runs/${inline.run_id}/cancel`);
    await allEnded(inline.run_id);
  });
});

describe("a parent that ends first", () => {
  test("by its deadline, by another step or by hand takes its children along; its deadline is theirs too", async () => {
    const { dev } = world;
    const seams = seamsOf(dev);
    const leaf = await agentOf("leaf", [{ id: "w", wait_for: "go" }], { limits: { deadline: "P9D" } });
    const middle = await agentOf("middle", [child(leaf)]);
    const timed = await agentOf("timed", [child(middle)], { limits: { deadline: "PT1H" } });
    const bad = await toolOf("bad", { status: 400 });
    const both = planned(
      { ...child(middle), depends_on: [] },
      { id: "go", depends_on: [], wait_for: "go" },
      { id: "bad", depends_on: ["go"], tool: bad, arguments: {}, on_failure: "fail" },
    );
    const endings = {
      deadline: [{ agent: timed }, (id) => seams.advance(id, "PT1H"), "failed"],
      "another step": [both, (id) => dev.ok("POST", `/v1/runs/${id}/signals/go`), "failed"],
      hand: [planned(child(middle)), (id) => dev.ok("POST", `/v1/runs/${id}/cancel`), "cancelled"],
    };
    await eachOf(Object.entries(endings), 3, async ([what, [body, end, status]]) => {
      const { run_id, childId } = await startWithChild(body);
      await dev.untilRun(await childOf(childId), "waiting");
      await end(run_id);
      const family = await allEnded(run_id);
      assert.deepEqual([(await dev.run(run_id)).status, family.map((run) => run.status)], [status, ["cancelled", "cancelled"]], what);
      for (const { run_id: id } of family) {
        const signal = await dev.post(`/v1/runs/${id}/signals/go`);
        assert.equal(signal.status, 409, what);
      }
    });
    // The child's own clock reaches the parent's deadline first.
    const { run_id, childId } = await startWithChild({ agent: timed });
    const leafId = await childOf(childId);
    await dev.untilRun(leafId, "waiting");
    await seams.advance(leafId, "PT59M");
    assert.equal((await dev.run(leafId)).status, "waiting");
    await seams.advance(leafId, "PT1M1S");
    const ended = await dev.untilRun(leafId);
    assert.deepEqual([ended.status, ended.error.reason], ["failed", "deadline_exceeded"]);
    await dev.untilRun(childId, "blocked");
    assert.equal((await letterOf(childId)).reason, "child_failed");
    assert.equal((await dev.post(`/v1/runs/${leafId}/retry`)).status, 409, "there is no time left");
    await dev.ok("POST", `/v1/runs/${run_id}/cancel`);
    await allEnded(run_id);
  });

  test("cancelled at any moment of its start leaves nothing at work below it", async (t) => {
    const { dev, sink } = world;
    const random = randomOf(t);
    const tool = await toolOf("tick", () => ({ body: {}, delay: 40 }));
    const ticks = Array.from({ length: 25 }, (_, n) => ({ id: `t${n}`, depends_on: n ? [`t${n - 1}`] : [], tool, arguments: { n } }));
    const leaf = await agentOf("ticks", ticks);
    const middle = await agentOf("ticks", [{ ...child(leaf), depends_on: [] }, ...ticks]);
    const heard = (family) => sink.to(`/${tool}`).filter(({ headers }) => family.includes(headers["dormouse-run-id"])).length;
    const sizes = { 0: 0, 1: 0, 2: 0 };
    const runs = await eachOf(Array.from({ length: 24 }), 8, async (_, i) => {
      const { run_id } = await dev.startRun(planned({ ...child(middle), depends_on: [] }, { id: "own", depends_on: [], tool, arguments: {} }));
      await pause(random.below(i % 2 ? 100 : 12));
      await dev.ok("POST", `/v1/runs/${run_id}/cancel`);
      const family = await allEnded(run_id);
      for (const run of family) assert.equal(run.status, "cancelled", `${run.run_id} of ${run_id}`);
      sizes[family.length] += 1;
      const ids = family.map((run) => run.run_id);
      return { run_id, ids, heard: heard(ids) };
    });
    t.diagnostic(`runs below: ${JSON.stringify(sizes)}`);
    // Whatever was under way is over by the time the last of them has ended; copies wake nothing.
    const seams = seamsOf(dev);
    await seams.sweep();
    await eachOf(runs, 8, async ({ run_id, ids, heard: before }) => {
      for (const id of ids) await seams.redeliver(id, 1, 2);
      const family = await below(run_id);
      assert.ok(family.every(({ status }) => status === "cancelled"), `below ${run_id}: ${family.map(({ status }) => status)}`);
      const born = family.filter((run) => !ids.includes(run.run_id));
      assert.ok(born.every(({ usage }) => usage.tool_calls === 0), "one that was born late, and cancelled, did nothing");
      assert.equal(heard(ids), before, `a call of a run below ${run_id} after its end`);
    });
  });

  test("cancelled between the wish for a child and its start, or before anything was sent", async () => {
    const { dev, sink } = world;
    const seams = seamsOf(dev);
    const tool = await toolOf("never");
    const agent = await agentOf("never", [{ id: "work", tool, arguments: {} }]);
    const start = async (failpoint, action) => {
      await seams.arm(failpoint, action, { times: 4, delay_ms: 400 });
      const runs = await Promise.all(Array.from({ length: 4 }, () => dev.startRun(planned(child(agent)))));
      for (const { run_id } of runs) await dev.ok("POST", `/v1/runs/${run_id}/cancel`);
      await seams.disarm();
      return runs;
    };
    const runs = [...(await start("consumer.received", "delay")), ...(await start("outbox.before_send", "error"))];
    for (const { run_id } of runs) {
      const run = await dev.run(run_id);
      assert.equal(run.status, "cancelled");
      const [{ run_id: id }] = payloads(await dev.log(run_id), "child.requested");
      // It does not exist, or it was born cancelled.
      const answer = await dev.get(`/v1/runs/${id}`);
      assert.ok(answer.status === 404 || answer.json.status === "cancelled", answer.text);
    }
    // With one message lost, the alarm calls the child off.
    const held = await heldTool(world);
    const holding = await agentOf("holding", [{ id: "work", tool: held.name, arguments: {} }, { id: "w", wait_for: "go" }]);
    const { run_id, childId } = await startWithChild(planned(child(holding)));
    await held.called(1);
    held.releaseAll();
    await dev.untilRun(childId, "waiting");
    await seams.arm("outbox.before_send", "error");
    await dev.ok("POST", `/v1/runs/${run_id}/cancel`);
    assert.equal((await dev.untilRun(childId)).status, "cancelled");
    await seams.disarm();
    assert.equal(sink.to(`/${tool}`).length, 0);
  });
});

describe("whatever breaks between a parent and its children", () => {
  /** Parents of three children each, all at once; their results, and nothing twice. */
  async function startFamilies(count, delay = () => 0) {
    const tool = await toolOf("effect", (call) => ({ body: call.json, delay: delay() }));
    const agent = await agentOf("effect", [{ id: "work", tool, arguments: { n: "{{ input.n }}" } }]);
    const steps = [0, 1, 2].map((n) => ({ id: `c${n}`, ...(n < 2 && { depends_on: [] }), run: { agent, input: { n } } }));
    const body = { plan: { steps, output: steps.map(({ id }) => `{{ steps.${id}.result.n }}`) } };
    const runs = await Promise.all(Array.from({ length: count }, () => world.dev.startRun(body)));
    return { tool, ids: runs.map(({ run_id }) => run_id) };
  }

  async function assertFamilies({ tool, ids }, options) {
    const { dev, sink } = world;
    await eachOf(ids, 6, async (id) => {
      const run = await dev.untilRun(id, ENDED, { within: 40_000 });
      assert.deepEqual([run.status, run.output], ["completed", [0, 1, 2]]);
      const log = await verifyLog(dev, id);
      for (const type of ["child.requested", "child.started", "child.ended"]) {
        const told = payloads(log, type).map(({ run_id }) => run_id);
        const asked = run.steps.map(({ child_run_id }) => child_run_id);
        // A child may end before its start is told.
        if (type === "child.started") assert.ok(told.length === new Set(told).size && told.every((child) => asked.includes(child)), type);
        else assert.deepEqual(told.toSorted(), asked.toSorted(), type);
      }
      const family = await below(id);
      assert.equal(family.length, 3, "as many as were asked for");
      for (const { run_id } of family) await assertRunIsRight(dev, sink, run_id, options);
    });
    assert.equal(sink.firsts(`/${tool}`), ids.length * 3);
  }

  for (const action of ["error", "panic"]) {
    test(`messages are lost and workers die (${action}): each result comes once`, async () => {
      const { dev } = world;
      const seams = seamsOf(dev);
      for (const [name, times] of [["outbox.before_send", 2], ["outbox.after_send", 2], ["consumer.received", 4], ["consumer.settled", 1], ["alarm.entered", 1]]) {
        // A panic at the front door is the client's to hear of.
        if (action === "panic" && name.startsWith("outbox.")) continue;
        await seams.arm(name, action, { times });
      }
      const families = await startFamilies(5);
      await assertFamilies(families);
      await seams.disarm();
    });
  }

  test("the server is killed in the middle: each result comes once; a tree that is full takes no more", async (t) => {
    const { sink } = world;
    const random = randomOf(t);
    const agent = await agentOf("small", [done], { output: "{{ run.run_id }}" });
    const more = Array.from({ length: 5 }, (_, n) => ({ id: `m${n}`, depends_on: ["go"], run: { agent, input: {} } }));
    const tree = await world.dev.startRun(planned(child(agent), { id: "go", wait_for: "go" }, ...more));
    await world.dev.untilRun(await childOf(tree.run_id), "completed");
    await until(async () => (await world.dev.run(tree.run_id)).steps[1].status === "waiting", { what: "the tree waits" });

    const families = await startFamilies(12, () => random.below(60));
    await until(() => sink.firsts(`/${families.tool}`) >= 9, { what: "the middle", every: 2 });
    await world.kill();
    // As if it had had all of its thousand but two.
    setTreeCount(world.stateDir, tree.run_id, 998);
    await world.start();
    await assertFamilies(families);

    const { dev } = world;
    await dev.ok("POST", `/v1/runs/${tree.run_id}/signals/go`);
    const run = await until(async () => {
      const run = await dev.run(tree.run_id);
      const steps = run.steps.slice(2);
      return steps.every(({ status }) => ["completed", "dead_lettered"].includes(status)) && run;
    }, { what: "two children, and three that may not be" });
    assert.equal(run.steps.filter(({ status }) => status === "dead_lettered").length, 3);
    assert.equal(run.status, "blocked");
    const letters = await dev.deadLetters(tree.run_id);
    assert.deepEqual(letters.map(({ reason }) => reason), Array(3).fill("fan_out_limit"));
    assert.match(letters[0].message, /1000/);
    // Asked again it is refused again; another tree is not concerned.
    await dev.ok("POST", `/v1/dead-letters/${letters[0].dead_letter_id}/redeliver`);
    const again = await until(async () => (await dev.deadLetters(tree.run_id)).find(({ status, dead_letter_id }) => status === "open" && letters.every((known) => known.dead_letter_id !== dead_letter_id)), { what: "another dead letter" });
    assert.equal(again.reason, "fan_out_limit");
    assert.equal((await dev.runToEnd(planned(child(agent)))).status, "completed");
    await dev.ok("POST", `/v1/runs/${tree.run_id}/cancel`);
  });
});

test("no line of any of these servers tells of hung or dead code", () => assertQuiet(world.lines));
