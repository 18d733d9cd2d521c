// Runs: what they look like, what their plans do, how they are found, and how they are cancelled.

import assert from "node:assert/strict";
import test from "node:test";
import { schemasOf } from "./support/contract.mjs";
import { logTexts, typesOf, verifyLog } from "./support/log.mjs";
import { unique, worldOfFile } from "./support/runtime.mjs";
import { until } from "./support/until.mjs";

const world = worldOfFile();

/** Stores a tool whose calls go to a path of its name, and answers the name. */
async function toolOf(stem, answers, more = {}) {
  const name = unique(stem);
  if (answers) world.sink.on(`/${name}`, answers);
  await world.dev.putTool(name, { description: stem, http: { url: `${world.sink.url}/${name}` }, ...more });
  return name;
}

const echo = ({ json }) => ({ body: json });
const advance = (runId, duration) => world.dev.ok("POST", `/dev/runs/${runId}/clock`, { body: { advance: duration } });

test("a started run is shown whole, found at its Location, and the same when asked again", async () => {
  const schemas = schemasOf(world.anonymous);
  const tool = await toolOf("whole");
  const body = { plan: { steps: [{ id: "first", tool, arguments: { n: 1 } }, { id: "nap", sleep: "P1D" }] }, input: { a: [1] }, tags: { order: "42" } };
  const answer = await world.dev.post("/v1/runs", body);
  assert.equal(answer.status, 202);
  assert.equal(answer.location, `/v1/runs/${answer.json.run_id}`);
  assert.equal(answer.replayed, null);
  await schemas.check("run", answer.json);
  const { run_id } = answer.json;
  const run = await world.dev.untilRun(run_id, "waiting");
  await schemas.check("run", run);
  assert.deepEqual(run.input, { a: [1] });
  assert.deepEqual(run.tags, { order: "42" });
  assert.equal(run.agent, null);
  assert.equal(run.ended_at, null);
  assert.match(run.trace_id, /^[0-9a-f]{32}$/);
  assert.deepEqual(
    run.steps.map(({ step_index, id, kind, name, status, attempts }) => ({ step_index, id, kind, name, status, attempts })),
    [
      { step_index: 0, id: "first", kind: "tool", name: tool, status: "completed", attempts: 1 },
      { step_index: 1, id: "nap", kind: "sleep", name: null, status: "waiting", attempts: 0 },
    ],
  );
  assert.deepEqual(run.steps[0].result, { ok: true });
  assert.equal(run.waiting_for.length, 1);
  assert.equal(run.waiting_for[0].step_index, 1);
  assert.equal(run.waiting_for[0].kind, "timer");
  assert.equal(Date.parse(run.waiting_for[0].until) - Date.parse(run.updated_at), 86_400_000);
  assert.equal(run.usage.tool_calls, 1);
  assert.deepEqual(await world.dev.run(run_id), run, "looking changes nothing");
  await advance(run_id, "P1D");
  const ended = await world.dev.untilRun(run_id);
  assert.equal(ended.status, "completed");
  assert.deepEqual(ended.waiting_for, []);
  assert.ok(ended.ended_at >= ended.created_at);
  assert.ok(ended.usage.waiting_ms >= 86_400_000, `${ended.usage.waiting_ms}`);
  const entries = await verifyLog(world.dev, run_id);
  assert.equal(typesOf(entries)[0], "run.created");
  assert.equal(typesOf(entries).at(-1), "run.completed");
  for (const type of ["run.started", "tool.requested", "tool.completed", "run.waiting", "wait.started", "wait.ended"]) {
    assert.ok(typesOf(entries).includes(type), `${type} is missing from ${typesOf(entries)}`);
  }
});

test("an unstarted run is refused with the place that is wrong, and leaves nothing behind", async () => {
  const tenant = await world.tenant(unique("runs-refused"));
  const step = { id: "a", sleep: "PT0S" };
  for (const [body, pointer] of [
    [{}, ""],
    [[], ""],
    [{ agent: "a", plan: { steps: [step] } }, ""],
    [{ agent: 7 }, "/agent"],
    [{ agent: "A@" }, "/agent"],
    [{ plan: {} }, "/plan/steps"],
    [{ plan: { steps: [] } }, "/plan/steps"],
    [{ plan: { steps: [{ id: "a" }] } }, "/plan/steps/0"],
    [{ plan: { steps: [{ sleep: "PT0S" }] } }, "/plan/steps/0/id"],
    [{ plan: { steps: [{ ...step, tool: "t", arguments: {} }] } }, "/plan/steps/0"],
    [{ plan: { steps: [{ ...step, slepe: "PT0S" }] } }, "/plan/steps/0/slepe"],
    [{ plan: { steps: [{ id: "a", sleep: "-PT1S" }] } }, "/plan/steps/0/sleep"],
    [{ plan: { steps: [{ id: "a", sleep: "P11Y" }] } }, "/plan/steps/0/sleep"],
    [{ plan: { steps: [{ id: "a", sleep: "P3651D" }] } }, undefined],
    [{ plan: { steps: [{ id: "a", sleep: "soon" }] } }, "/plan/steps/0/sleep"],
    [{ plan: { steps: [{ id: "a", sleep_until: "tomorrow" }] } }, "/plan/steps/0/sleep_until"],
    [{ plan: { steps: [{ ...step, depends_on: ["zz"] }] } }, "/plan/steps/0/depends_on/0"],
    [{ plan: { steps: [step, { ...step }] } }, "/plan/steps/1/id"],
    [{ plan: { steps: [{ ...step, when: "{{ input.x" }] } }, "/plan/steps/0/when"],
    [{ plan: { steps: [{ id: "a", tool: "t", arguments: { x: "{{ steps.zz.result }}" } }] } }, "/plan/steps/0/arguments/x"],
    [{ plan: { steps: [step], output: "{{ nothing }}" } }, "/plan/output"],
    [{ plan: { steps: [step] }, tags: { a: 1 } }, "/tags/a"],
    [{ plan: { steps: [step] }, tags: { a: "é".repeat(129) } }, "/tags/a"],
    [{ plan: { steps: [step] }, tags: Object.fromEntries(Array.from({ length: 33 }, (_, n) => [`t${n}`, "x"])) }, "/tags"],
    [{ plan: { steps: Array.from({ length: 501 }, (_, n) => ({ id: `s${n}`, sleep: "PT0S" })) } }, "/plan/steps"],
  ]) {
    const answer = await tenant.post("/v1/runs", body);
    assert.equal(answer.status, 422, `${JSON.stringify(body).slice(0, 200)}: ${answer.text.slice(0, 300)}`);
    if (pointer === undefined) continue;
    const told = answer.json.errors.map((error) => error.pointer);
    assert.ok(told.some((place) => place === pointer || place.startsWith(`${pointer}/`)), `${pointer}: ${answer.text.slice(0, 500)}`);
  }
  assert.deepEqual((await tenant.ok("GET", "/v1/runs")).items, []);
  const most = { steps: Array.from({ length: 500 }, (_, n) => ({ id: `s${n}`, emit: { type: "x", data: n } })), output: "{{ run.run_id }}" };
  const run = await tenant.runToEnd({ plan: most, tags: { a: "é".repeat(128) } });
  assert.equal(run.output, run.run_id);
  assert.equal(run.steps.length, 500);
});

test("steps run in the listed order, and each sees what went before", async () => {
  const tool = await toolOf("order", echo);
  const plan = {
    steps: [
      { id: "one", tool, arguments: { n: 1, from: "{{ input.who }}" } },
      { id: "two", tool, arguments: { n: 2, before: "{{ steps.one.result }}", text: "of {{ steps.one.result.from }} and {{ input.count }}" } },
      { id: "told", emit: { type: "order.placed", data: { two: "{{ steps.two.result.n }}" } } },
    ],
    output: { all: "{{ steps.two.result }}", run: "{{ run.run_id }}", tag: "{{ run.tags.order }}", told: "{{ steps.told.result }}" },
  };
  const run = await world.dev.runToEnd({ plan, input: { who: "😀 é", count: 3 }, tags: { order: "42" } });
  assert.equal(run.status, "completed", JSON.stringify(run.error));
  const calls = world.sink.to(`/${tool}`).map(({ json }) => json);
  const first = { n: 1, from: "😀 é" };
  const second = { n: 2, before: first, text: "of 😀 é and 3" };
  assert.deepEqual(calls, [first, second]);
  assert.deepEqual(run.output, { all: second, run: run.run_id, tag: "42", told: null });
  const entries = await verifyLog(world.dev, run.run_id);
  assert.deepEqual(entries.find(({ event_type }) => event_type === "event.emitted").payload, { type: "order.placed", data: { two: 2 } });
});

test("a string that is one expression keeps the value's type", async () => {
  const tool = await toolOf("types", echo);
  const input = { n: 1.5, big: 3, t: true, z: null, s: "7", l: [1, "a"], o: { p: {} } };
  const args = Object.fromEntries(Object.keys(input).map((name) => [name, `{{ input.${name} }}`]));
  const run = await world.dev.runToEnd({
    plan: { steps: [{ id: "a", tool, arguments: { ...args, mixed: "<{{ input.n }}|{{ input.t }}|{{ input.s }}>", index: "{{ input.l[1] }}", none: "{{ input.x ?? 'else' }}" } }] },
    input,
  });
  assert.deepEqual(run.output, { ...input, mixed: "<1.5|true|7>", index: "a", none: "else" });
});

test("the output is the plan's, or else the last step's result", async () => {
  const tool = await toolOf("output", echo);
  const a = { id: "a", tool, arguments: { n: 1 } };
  const nap = { id: "nap", sleep: "PT0S" };
  const output = async (plan) => (await world.dev.runToEnd({ plan, input: { x: 1 } })).output;
  assert.deepEqual(await output({ steps: [nap, a] }), { n: 1 });
  assert.equal(await output({ steps: [a, nap] }), null);
  assert.deepEqual(await output({ steps: [nap], output: { fixed: [1, "{{ input.x }}"] } }), { fixed: [1, 1] });
  assert.equal(await output({ steps: [nap], output: "{{ input.x }}" }), 1);
  const missing = await world.dev.runToEnd({ plan: { steps: [nap], output: "{{ input.y }}" }, input: {} });
  assert.equal(missing.status, "failed");
  assert.match(missing.error.message, /y/);
});

test("a step whose `when` is false is skipped, and what follows goes on", async () => {
  const tool = await toolOf("when", echo);
  const plan = {
    steps: [
      { id: "yes", when: "{{ input.n > 1 && input.s == 'x' }}", tool, arguments: { ran: "yes" } },
      { id: "no", when: "{{ input.n < 1 }}", tool, arguments: { ran: "no" } },
      { id: "nap", when: "{{ input.off }}", sleep: "P1D" },
      { id: "last", tool, arguments: { no: "{{ steps.no.result }}" } },
    ],
  };
  const run = await world.dev.runToEnd({ plan, input: { n: 2, s: "x", off: false } });
  assert.equal(run.status, "completed", JSON.stringify(run));
  assert.deepEqual(run.steps.map(({ status }) => status), ["completed", "skipped", "skipped", "completed"]);
  assert.deepEqual(world.sink.to(`/${tool}`).map(({ json }) => json), [{ ran: "yes" }, { no: null }]);
  const entries = await verifyLog(world.dev, run.run_id);
  const skipped = entries.filter(({ event_type }) => event_type === "step.skipped");
  assert.deepEqual(skipped.map(({ step_index, payload }) => [step_index, payload.reason]), [[1, "when"], [2, "when"]]);
});

test("steps that do not depend on each other run side by side, within the agent's limit", async () => {
  let inside = 0;
  let most = 0;
  const slow = async () => {
    inside += 1;
    most = Math.max(most, inside);
    // Nothing answers before as many are inside as may be.
    await until(() => most >= 3, { within: 10_000 });
    inside -= 1;
    return { body: {} };
  };
  const tool = await toolOf("beside", slow);
  const agent = unique("beside-agent");
  const steps = Array.from({ length: 6 }, (_, n) => ({ id: `s${n}`, depends_on: [], tool, arguments: { n } }));
  steps.push({ id: "last", depends_on: steps.map(({ id }) => id), tool, arguments: { n: 6 } });
  await world.dev.putAgent(agent, { planner: { kind: "plan", steps }, limits: { max_parallel: 3 } });
  const run = await world.dev.runToEnd({ agent });
  assert.equal(run.status, "completed");
  assert.equal(most, 3);
  const calls = world.sink.to(`/${tool}`);
  assert.equal(calls.length, 7);
  assert.equal(calls.at(-1).json.n, 6);
  assert.deepEqual(calls.map(({ json }) => json.n).sort(), [0, 1, 2, 3, 4, 5, 6]);
  await verifyLog(world.dev, run.run_id);
});

test("depends_on makes the order, whatever the list's", async () => {
  const tool = await toolOf("depends", echo);
  const step = (id, ...depends_on) => ({ id, depends_on, tool, arguments: { id } });
  const plan = { steps: [step("d", "b", "c"), step("b", "a"), step("c", "a"), step("a")] };
  const run = await world.dev.runToEnd({ plan });
  assert.equal(run.status, "completed");
  const order = world.sink.to(`/${tool}`).map(({ json }) => json.id);
  assert.deepEqual([order[0], order.slice(1, 3).sort().join(), order[3]], ["a", "b,c", "d"]);
});

test("sleeps end when they are due and not before; a time that has passed is due now", async () => {
  const far = new Date(Date.now() + 40 * 86_400_000).toISOString();
  const plan = (step) => ({ plan: { steps: [{ id: "nap", ...step }] }, input: { until: far } });
  for (const step of [{ sleep: "P40D" }, { sleep_until: far }, { sleep_until: "{{ input.until }}" }]) {
    const run = await world.dev.startRun(plan(step));
    assert.equal((await world.dev.untilRun(run.run_id, "waiting")).waiting_for[0].kind, "timer");
    await advance(run.run_id, "P39D");
    assert.equal((await world.dev.run(run.run_id)).status, "waiting");
    await advance(run.run_id, "P2D");
    const ended = await world.dev.untilRun(run.run_id);
    assert.deepEqual([ended.status, ended.output], ["completed", null]);
  }
  for (const step of [{ sleep: "PT0S" }, { sleep_until: "2001-01-01T00:00:00Z" }, { sleep_until: "2001-01-01T00:00:00+05:00" }]) {
    assert.equal((await world.dev.runToEnd(plan(step))).status, "completed");
  }
  const noTime = await world.dev.runToEnd(
    { plan: { steps: [{ id: "nap", sleep_until: "{{ input.at }}" }] }, input: { at: "noon" } },
    ["blocked", "failed"],
  );
  assert.equal(noTime.status, "blocked");
  assert.equal((await world.dev.deadLetters(noTime.run_id))[0].errors[0].pointer, "/sleep_until");
  // A real wait of the clock on the wall.
  const started = Date.now();
  const short = await world.dev.runToEnd(plan({ sleep: "PT1S" }));
  assert.equal(short.status, "completed");
  assert.ok(Date.now() - started >= 1_000);
});

test("on_failure says what a failed step does to its run", async () => {
  const broken = await toolOf("broken", { status: 400, body: { why: "no" } });
  const fine = await toolOf("fine", echo);
  const plan = (on_failure) => ({
    plan: { steps: [{ id: "a", tool: broken, arguments: {}, ...(on_failure && { on_failure }) }, { id: "b", tool: fine, arguments: { before: "{{ steps.a.result }}" } }] },
  });
  const failed = await world.dev.runToEnd(plan("fail"));
  assert.equal(failed.status, "failed");
  assert.equal(failed.error.step_index, 0);
  assert.equal(failed.error.step_id, "a");
  assert.deepEqual(failed.steps.map(({ status }) => status), ["failed", "cancelled"]);
  assert.equal(failed.steps[0].error.status_code, 400);
  assert.equal(failed.output, null);
  assert.deepEqual(await world.dev.deadLetters(failed.run_id), []);
  const onward = await world.dev.runToEnd(plan("continue"));
  assert.deepEqual([onward.status, onward.output], ["completed", { before: null }]);
  assert.deepEqual(onward.steps.map(({ status }) => status), ["failed", "completed"]);
  for (const on_failure of [undefined, "dead_letter"]) {
    const held = await world.dev.runToEnd(plan(on_failure), "blocked");
    assert.deepEqual(held.steps.map(({ status }) => status), ["dead_lettered", "scheduled"]);
    const [letter] = await world.dev.deadLetters(held.run_id);
    assert.equal(held.waiting_for[0].kind, "dead_letter");
    assert.equal(held.waiting_for[0].dead_letter_id, letter.dead_letter_id);
    await verifyLog(world.dev, held.run_id);
  }
  await verifyLog(world.dev, failed.run_id);
  await verifyLog(world.dev, onward.run_id);
});

test("a sibling of a dead letter goes on, and its result is kept", async () => {
  const broken = await toolOf("sibling-broken", { status: 400 });
  const fine = await toolOf("sibling-fine", echo);
  const steps = [
    { id: "bad", depends_on: [], tool: broken, arguments: {} },
    ...["a", "b", "c"].map((id) => ({ id, depends_on: [], tool: fine, arguments: { id } })),
  ];
  const run = await world.dev.runToEnd({ plan: { steps, output: "{{ steps.c.result }}" } }, "blocked");
  assert.deepEqual(run.steps.map(({ status }) => status), ["dead_lettered", "completed", "completed", "completed"]);
  const [letter] = await world.dev.deadLetters(run.run_id);
  await world.dev.ok("POST", `/v1/dead-letters/${letter.dead_letter_id}/resolve`, { body: { result: 1 } });
  assert.deepEqual((await world.dev.untilRun(run.run_id)).output, { id: "c" });
  assert.equal(world.sink.to(`/${fine}`).length, 3);
});

test("cancel ends a run once, and nothing is started after it", async () => {
  const tool = await toolOf("cancelled");
  const plan = { steps: [{ id: "nap", sleep: "P1D" }, { id: "a", tool, arguments: {} }] };
  const { run_id } = await world.dev.startRun({ plan });
  const cancelled = await world.dev.post(`/v1/runs/${run_id}/cancel`, { comment: "enough" });
  assert.equal(cancelled.status, 200);
  assert.equal(cancelled.json.status, "cancelled");
  assert.deepEqual(cancelled.json.steps.map(({ status }) => status), ["cancelled", "cancelled"]);
  const again = await world.dev.post(`/v1/runs/${run_id}/cancel`);
  assert.deepEqual([again.status, again.json.status], [200, "cancelled"]);
  await advance(run_id, "P2D");
  const later = await world.dev.run(run_id);
  assert.equal(later.status, "cancelled");
  assert.equal(world.sink.to(`/${tool}`).length, 0);
  const entries = await verifyLog(world.dev, run_id);
  const last = entries.filter(({ event_type }) => event_type === "run.cancelled");
  assert.equal(last.length, 1);
  assert.equal(last[0].payload.comment, "enough");
  const done = await world.dev.runToEnd({ plan: { steps: [{ id: "nap", sleep: "PT0S" }] } });
  const tooLate = await world.dev.post(`/v1/runs/${done.run_id}/cancel`);
  assert.equal(tooLate.status, 409);
  assert.equal(tooLate.json.run_status, "completed");
  for (const body of [{ coment: "x" }, { comment: 1 }, []]) {
    const other = await world.dev.startRun({ plan });
    assert.equal((await world.dev.post(`/v1/runs/${other.run_id}/cancel`, body)).status, 422);
    assert.equal((await world.dev.run(other.run_id)).status, "waiting");
  }
});

test("what is in flight when its run is cancelled is recorded when it comes back", async () => {
  let release;
  const held = new Promise((resolve) => {
    release = resolve;
  });
  const tool = await toolOf("in-flight", async () => {
    await held;
    return { body: { acted: true } };
  });
  const { run_id } = await world.dev.startRun({ plan: { steps: [{ id: "a", tool, arguments: {} }, { id: "b", tool, arguments: {} }] } });
  await until(() => world.sink.to(`/${tool}`).length === 1);
  assert.equal((await world.dev.post(`/v1/runs/${run_id}/cancel`)).status, 200);
  release();
  const entries = await until(async () => {
    const found = await world.dev.log(run_id);
    return found.some(({ event_type, step_index }) => event_type === "tool.completed" && step_index === 0) && found;
  }, { what: "the outcome of the call in flight is in the log" });
  assert.ok(entries.some(({ event_type }) => event_type === "run.cancelled"));
  assert.equal((await world.dev.run(run_id)).status, "cancelled");
  assert.equal(world.sink.to(`/${tool}`).length, 1);
  await verifyLog(world.dev, run_id);
});

test("Prefer: wait holds the answer until the run has ended, or for as long as was asked", async () => {
  const tool = await toolOf("prefer", { body: { ok: 1 }, delay: 300 });
  const plan = { steps: [{ id: "a", tool, arguments: {} }] };
  const ended = await world.dev.post("/v1/runs", { plan }, { headers: { prefer: "wait=10" } });
  assert.equal(ended.status, 200, ended.text);
  assert.equal(ended.json.status, "completed");
  assert.deepEqual(ended.json.output, { ok: 1 });
  const started = Date.now();
  const open = await world.dev.post("/v1/runs", { plan: { steps: [{ id: "nap", sleep: "P1D" }] } }, { headers: { prefer: "wait=1" } });
  assert.equal(open.status, 202);
  assert.ok(Date.now() - started >= 1_000);
  assert.equal(open.location, `/v1/runs/${open.json.run_id}`);
});

test("runs are listed newest first, page by page, without gaps or repeats", async () => {
  const tenant = await world.tenant(unique("runs-lists"));
  const plan = { steps: [{ id: "nap", sleep: "P1D" }] };
  // Many at the same instant.
  const started = await Promise.all(Array.from({ length: 23 }, (_, n) => tenant.startRun({ plan, tags: { n: `${n % 2}`, all: "yes" } })));
  const ids = started.map(({ run_id }) => run_id).sort().reverse();
  const listed = async (query) => {
    const items = [];
    for (let cursor = null, pages = 0; pages < 60; pages += 1) {
      const page = await tenant.ok("GET", `/v1/runs?${query}${cursor === null ? "" : `&cursor=${encodeURIComponent(cursor)}`}`);
      items.push(...page.items);
      cursor = page.next_cursor;
      if (cursor === null) return items;
    }
    throw new Error("the pages do not end");
  };
  const idsOf = (items) => items.map(({ run_id }) => run_id);
  for (const limit of [1, 2, 7, 22, 23, 24, 200]) assert.deepEqual(idsOf(await listed(`limit=${limit}`)), ids, `limit ${limit}`);
  assert.equal((await tenant.ok("GET", "/v1/runs?limit=5")).items.length, 5);
  const schemas = schemasOf(world.anonymous);
  for (const item of await listed("limit=200")) await schemas.check("run-summary", item);

  const odd = idsOf(await listed("limit=3&tag.n=1&tag.all=yes"));
  assert.deepEqual(odd, started.filter((_, n) => n % 2 === 1).map(({ run_id }) => run_id).sort().reverse());
  assert.deepEqual(await listed("tag.n=1&tag.all=no"), []);
  const [newest] = ids;
  await tenant.ok("POST", `/v1/runs/${newest}/cancel`);
  await until(async () => (await listed("status=cancelled")).length === 1, { what: "the list knows of the cancelled run" });
  assert.deepEqual(idsOf(await listed("status=cancelled")), [newest]);
  await until(async () => (await listed("status=waiting&limit=4")).length === 22);
  const middle = started.find(({ run_id }) => run_id === ids[11]).created_at;
  const after = idsOf(await listed(`created_after=${encodeURIComponent(middle)}`));
  assert.deepEqual(after, started.filter(({ created_at }) => created_at > middle).map(({ run_id }) => run_id).sort().reverse());
  const agent = unique("listed");
  await tenant.putAgent(agent, { planner: { kind: "plan", ...plan } });
  await tenant.putAgent(agent, { planner: { kind: "plan", ...plan }, description: "2" });
  const one = await tenant.startRun({ agent: `${agent}@1` });
  const two = await tenant.startRun({ agent });
  assert.deepEqual(idsOf(await listed(`agent=${agent}`)), [two.run_id, one.run_id]);
  assert.deepEqual(idsOf(await listed(`agent=${agent}@1`)), [one.run_id]);
  // A cursor is of one list with its filters.
  const page = await tenant.ok("GET", "/v1/runs?limit=2");
  assert.equal((await tenant.get(`/v1/runs?status=waiting&cursor=${encodeURIComponent(page.next_cursor)}`)).status, 400);
});

test("a log is read from any place, as pages and as lines, and stays as it is after the end", async () => {
  const tool = await toolOf("log", echo);
  const steps = Array.from({ length: 9 }, (_, n) => ({ id: `s${n}`, tool, arguments: { n } }));
  const { run_id } = await world.dev.runToEnd({ plan: { steps } });
  const entries = await verifyLog(world.dev, run_id);
  const path = `/v1/runs/${run_id}/events`;
  for (const limit of [1, 4, entries.length - 1, entries.length, 200]) {
    const seen = [];
    for (let cursor = "0"; cursor !== null; ) {
      const page = await world.dev.ok("GET", `${path}?limit=${limit}&after=${cursor}`);
      assert.ok(page.items.length <= limit);
      seen.push(...page.items);
      cursor = page.next_cursor;
    }
    assert.deepEqual(seen, entries, `limit ${limit}`);
  }
  for (const after of [0, 1, 5, entries.length - 1, entries.length, entries.length + 5, 99_999_999]) {
    const page = await world.dev.ok("GET", `${path}?after=${after}`);
    assert.deepEqual(page.items, entries.slice(after, after + 50), `after ${after}`);
  }
  for (const after of ["-1", "x", "1.5", ""]) assert.ok([400, 422].includes((await world.dev.get(`${path}?after=${after}`)).status), after);
  const lines = await world.dev.get(`${path}?after=3`, { headers: { accept: "application/x-ndjson" } });
  assert.match(lines.headers.get("content-type"), /^application\/x-ndjson/);
  assert.deepEqual(lines.text.trimEnd().split("\n").map((line) => JSON.parse(line)), entries.slice(3));
  const before = (await logTexts(world.dev, run_id)).join("\n");
  await world.dev.post(`/v1/runs/${run_id}/cancel`);
  await world.dev.ok("POST", `/dev/runs/${run_id}/redeliver`, { body: { step_index: 0, copies: 3 } });
  await world.dev.ok("POST", "/dev/sweep");
  await world.dev.ok("POST", `/dev/runs/${run_id}/evict`);
  assert.equal((await logTexts(world.dev, run_id)).join("\n"), before);
  assert.equal(world.sink.to(`/${tool}`).length, 9);
});

test("an agent's limits hold", async () => {
  const tool = await toolOf("limits", echo);
  const agent = unique("limited");
  const steps = ["a", "b", "c"].map((id) => ({ id, tool, arguments: {} }));
  const put = await world.dev.put(`/v1/agents/${agent}`, { planner: { kind: "plan", steps }, limits: { max_steps: 2 } });
  if (put.status === 201) {
    const answer = await world.dev.post("/v1/runs", { agent });
    assert.equal(answer.status, 422, "a plan of more steps than its agent allows is refused somewhere");
  } else {
    assert.equal(put.status, 422);
  }
  assert.equal(world.sink.to(`/${tool}`).length, 0);
});
