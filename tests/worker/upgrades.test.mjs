// Two releases overlap, and definitions change under runs that wait: each run keeps to what it began
// with, what is not understood is kept, and a log that cannot be read holds up its own run alone.

import assert from "node:assert/strict";
import { describe, test } from "node:test";
import { assertOneEffect, assertQuiet, assertRunIsRight, callsByStep, countOf, stepsOf } from "./support/checks.mjs";
import { clientOf } from "./support/client.mjs";
import { deliver, messageOf, send } from "./support/deliver.mjs";
import { heldTool } from "./support/held.mjs";
import { unique, worldOfFile } from "./support/runtime.mjs";
import { seamsOf } from "./support/seams.mjs";
import { ageIndex, putRow, rowsOf } from "./support/store.mjs";
import { until } from "./support/until.mjs";
import { assertProblem, assertStanding, diagnosis, kindsOf, RETRY, signal, signalled, toolOf } from "./support/waits.mjs";

const world = worldOfFile({ vars: { CONSUMER_PATIENCE_MS: "60000" } });

/** Answers the first call of each step with `first`. */
const firstly = (first) => (call) => (call.delivery === "first" ? first : { body: { ok: true } });

describe("definitions change while a run waits", () => {
  const waits = {
    sleep: [async () => ({ sleep: "PT1H" }), "timer", ({ runId }) => seamsOf(world.dev).advance(runId, "PT1H")],
    signal: [async () => ({ wait_for: "x" }), "signal", ({ runId }) => signalled(world.dev, runId, "x")],
    approval: [async () => ({ approval: { prompt: "Well?" } }), "approval", ({ path }) => world.dev.ok("POST", path, { body: { decision: "approved" } })],
    backoff: [
      async () => ({ tool: await toolOf(world, "backoff", firstly({ status: 503 }), { retry: RETRY }) }),
      "retry",
      ({ runId }) => seamsOf(world.dev).advance(runId, "PT3M"),
    ],
    "dead letter": [
      async () => ({ tool: await toolOf(world, "letter", firstly({ status: 422 })) }),
      "dead_letter",
      ({ path }) => world.dev.ok("POST", path, { body: {} }),
    ],
    "paused sleep": [
      async () => ({ sleep: "PT1H" }),
      "timer",
      async ({ runId }) => {
        await world.dev.ok("POST", `/v1/runs/${runId}/pause`);
        await seamsOf(world.dev).advance(runId, "PT1H");
        await world.dev.ok("POST", `/v1/runs/${runId}/resume`);
      },
    ],
  };

  for (const [name, [step, kind, release]] of Object.entries(waits)) {
    test(`${name}: the run keeps to the agent and the tools with which it began`, async () => {
      const { dev, sink } = world;
      const [agent, first, last, wrong] = ["agent", "first", "last", "wrong"].map(unique);
      const tool = (path, parameters) => ({ http: { method: "POST", url: `${sink.url}/${path}` }, ...(parameters && { parameters }) });
      const planner = (...steps) => ({ planner: { kind: "plan", steps } });
      for (const one of [first, last, wrong]) await dev.putTool(one, tool(one));
      const wait = { id: "wait", ...(await step()) };
      const one = await dev.putAgent(agent, planner({ id: "t1", tool: first }, wait, { id: "t2", tool: last, arguments: { n: 1 } }));
      assert.equal(one.version, 1);
      const { run_id: runId } = await dev.startRun({ agent });
      const blocker = await until(
        async () => {
          const { blockers } = await diagnosis(dev, runId);
          return blockers[0]?.kind === kind && blockers[0];
        },
        { what: `${runId} waits` },
      );

      // Another step between; a field more for the last tool, and another place; then neither is left.
      await dev.putAgent(agent, planner({ id: "t1", tool: first }, { id: "tx", tool: wrong }, { id: "t2", tool: last }));
      await dev.putTool(last, tool(wrong, { type: "object", required: ["m"], additionalProperties: false }));
      await dev.putAgent(agent, planner({ id: "tx", tool: wrong }));
      await dev.putTool(last, { ...tool(wrong), requires_approval: true });
      const newest = await dev.runToEnd({ agent });
      assert.equal(newest.agent, `${agent}@3`);
      for (const gone of [`tools/${last}`, `agents/${agent}`]) assert.ok([200, 204].includes((await dev.delete(`/v1/${gone}`)).status), gone);
      await seamsOf(dev).evict(runId);

      await release({ runId, path: blocker.release?.split(" ")[1] });
      const run = await dev.untilRun(runId);
      assert.deepEqual([run.status, run.agent], ["completed", `${agent}@1`], JSON.stringify(run));
      const { log } = await assertStanding(world, runId);
      const calls = callsByStep(sink, runId);
      assert.deepEqual([calls.get(0).length, calls.get(2).map(({ path, json }) => [path, json])], [1, [[`/${last}`, { n: 1 }]]]);
      assert.equal(sink.to(`/${wrong}`).filter(({ headers }) => headers["dormouse-run-id"] === runId).length, 0);
      assert.equal(countOf(log, "dead_letter.opened"), kind === "dead_letter" ? 1 : 0);
    });
  }

  test("a child keeps to its own, and a retry to what failed", async () => {
    const { dev, sink } = world;
    const [child, parent, tool, other] = ["child", "parent", "tool", "other"].map(unique);
    sink.on(`/${tool}`, firstly({ status: 422 }));
    for (const one of [tool, other]) await dev.putTool(one, { http: { method: "POST", url: `${sink.url}/${one}` } });
    await dev.putAgent(child, { planner: { kind: "plan", steps: [{ id: "nap", sleep: "PT1H" }, { id: "act", tool, on_failure: "fail" }] } });
    await dev.putAgent(parent, { planner: { kind: "plan", steps: [{ id: "run", run: { agent: child } }] } });
    const { run_id } = await dev.startRun({ agent: parent });
    const below = await until(async () => (await dev.run(run_id)).steps[0].child_run_id, { what: "the child" });
    await dev.untilRun(below, "waiting");
    await dev.putAgent(child, { planner: { kind: "plan", steps: [{ id: "act", tool: other }] } });
    await dev.putTool(tool, { http: { method: "POST", url: `${sink.url}/${other}` } });
    await seamsOf(dev).advance(below, "PT1H");
    await dev.untilRun(below, "failed");
    await until(async () => (await dev.run(run_id)).status === "blocked", { what: "the parent is told" });
    assert.equal((await dev.post(`/v1/runs/${below}/retry`)).status, 200);
    assert.equal((await dev.untilRun(below)).agent, `${child}@1`);
    assert.equal((await dev.untilRun(run_id)).status, "completed", "what the child's failure opened is settled by its success");
    assert.deepEqual(callsByStep(sink, below).get(1).map(({ path }) => path), [`/${tool}`, `/${tool}`]);
    await assertStanding(world, below);
    await assertStanding(world, run_id);
  });
});

describe("messages of a release to come", () => {
  const lettersOf = async (runId) => {
    const { items } = await world.dev.ok("GET", "/v1/dead-letters?reason=invalid_envelope&limit=200");
    const letters = await Promise.all(items.map(({ dead_letter_id }) => world.dev.ok("GET", `/v1/dead-letters/${dead_letter_id}`)));
    return letters.filter(({ envelope }) => envelope?.run_id === runId);
  };

  for (const queue of ["dormouse-work", "dormouse-dead"]) {
    test(`${queue}: a step's envelope of another schema_version is kept as it came, and the step is done all the same`, async () => {
      const { dev, sink } = world;
      const seams = seamsOf(dev);
      const tool = await toolOf(world, "future");
      // The run's own message is lost: only those from the future come, until the run sends it again.
      await seams.arm("outbox.before_send", "error", { times: 1_000 });
      const { run_id } = await dev.startRun({ plan: stepsOf(tool, 2) });
      const { envelope } = JSON.parse(messageOf(await dev.log(run_id), 0));
      const futures = [
        { envelope: { ...envelope, schema_version: "2" } },
        { envelope: { ...envelope, schema_version: "99", payload: { ...envelope.payload, urgency: "high" }, priority: 7 } },
        { envelope: { ...envelope, schema_version: 1 } },
        { reference: { ...envelope, payload: undefined, schema_version: "2", payload_ref: { bytes: 5, sha256: "0".repeat(64) } } },
      ];
      const said = await deliver(world, futures.map((body) => JSON.stringify(body)), { queue });
      assert.deepEqual([said.outcome, said.acked], ["ok", futures.map((_, n) => n)], JSON.stringify(said));
      assert.equal(sink.to(`/${tool}`).length, 0, "none of them is acted on");
      const letters = await until(async () => (await lettersOf(run_id)).length === futures.length && lettersOf(run_id), { what: "each is kept" });
      const kept = letters.map((letter) => JSON.stringify(letter.envelope)).sort();
      assert.deepEqual(kept, futures.map((body) => JSON.stringify(Object.values(body)[0])).sort(), "with all that came");
      for (const { status, errors } of letters) assert.deepEqual([status, errors.length > 0], ["open", true]);

      await seams.disarm();
      await seams.advance(run_id, "PT5S");
      await dev.untilRun(run_id, "completed");
      await assertRunIsRight(dev, sink, run_id, { once: true });
    });
  }

  test("an errand of another schema_version is kept, and the child is started all the same", async () => {
    const { dev } = world;
    const seams = seamsOf(dev);
    const child = unique("child");
    await dev.putAgent(child, { planner: { kind: "plan", steps: [{ id: "told", emit: { type: "done", data: 1 } }] } });
    await seams.arm("outbox.before_send", "error", { times: 1_000 });
    const { run_id, tenant_id = "dev", trace_id } = await dev.startRun({ plan: { steps: [{ id: "run", run: { agent: child } }] } });
    const child_run_id = (await dev.log(run_id)).find(({ event_type }) => event_type === "child.requested").payload.run_id;
    const errand = { schema_version: "2", tenant_id, trace_id, run_id, errand: { start_child: { step_index: 0, child_run_id } } };
    const unknown = { ...errand, schema_version: "1", errand: { adopt_child: { step_index: 0, child_run_id } } };
    const said = await deliver(world, [errand, unknown].map((message) => JSON.stringify({ errand: message })));
    assert.deepEqual([said.outcome, said.acked], ["ok", [0, 1]], JSON.stringify(said));
    assert.equal((await dev.get(`/v1/runs/${child_run_id}`)).status, 404, "none of them is acted on");
    assert.equal((await until(async () => (await lettersOf(run_id)).length === 2 && lettersOf(run_id), { what: "both are kept" })).length, 2);
    await seams.disarm();
    await seams.advance(run_id, "PT5S");
    assert.equal((await dev.untilRun(run_id)).status, "completed");
    await assertStanding(world, run_id);
    await assertStanding(world, child_run_id);
  });

  test("a batch of all kinds: each message has its own fate, and the good ones are worked on", async () => {
    const { dev, sink } = world;
    const tool = await heldTool(world);
    const before = (await world.operator.ok("GET", "/v1/dead-letters?limit=200")).items.length;
    const seams = seamsOf(dev);
    await seams.arm("outbox.before_send", "error", { times: 1_000 });
    const { run_id } = await dev.startRun({ plan: stepsOf(tool.name, 1) });
    const message = messageOf(await dev.log(run_id), 0);
    const { envelope } = JSON.parse(message);
    tool.releaseAll();
    const bodies = [
      JSON.stringify({ envelope: { ...envelope, schema_version: "2" } }),
      JSON.stringify({ telegram: envelope }),
      "no JSON at all",
      message,
      JSON.stringify({ envelope: { ...envelope, tenant_id: "nobody-of-that-name", schema_version: "3" } }),
      message,
    ];
    const said = await deliver(world, bodies);
    assert.deepEqual([said.outcome, said.acked.length], ["ok", bodies.length], JSON.stringify(said));
    await seams.disarm();
    await dev.untilRun(run_id, "completed");
    await assertRunIsRight(dev, sink, run_id, { once: true });
    const strays = await until(
      async () => {
        const { items } = await world.operator.ok("GET", "/v1/dead-letters?limit=200");
        return items.length >= before + 2 && items;
      },
      { what: "what names no tenant is the operator's" },
    );
    assert.equal(strays.length, before + 2);
    assert.equal((await lettersOf(run_id)).length, 2);
  });

  test("in the queues themselves: the future holds nothing up, and an index is none the worse for it", async () => {
    const { dev } = world;
    const tool = await toolOf(world, "after-future");
    const first = await dev.runToEnd({ plan: stepsOf(tool, 1), tags: { of: "future" } });
    const { envelope } = JSON.parse(messageOf(await dev.log(first.run_id), 0));
    await send(world, "WORK", JSON.stringify({ envelope: { ...envelope, schema_version: "7" } }));
    await send(world, "EVENTS", JSON.stringify({ schema_version: "7", tenant_id: "dev", run_id: first.run_id, status: "hibernating" }), "{", "[]");
    await send(world, "PLAN", JSON.stringify({ envelope: { ...envelope, schema_version: "7" } }));
    const second = await dev.runToEnd({ plan: stepsOf(tool, 1), tags: { of: "future" } });
    await until(async () => (await lettersOf(first.run_id)).length >= 1, { what: "it is kept" });
    const listed = await until(
      async () => {
        const { items } = await dev.ok("GET", "/v1/runs?tag.of=future");
        return items.every(({ status }) => status === "completed") && items;
      },
      { what: "the index knows how they ended" },
    );
    assert.deepEqual(listed.map(({ run_id }) => run_id), [second.run_id, first.run_id]);
    for (const { run_id } of [first, second]) assertOneEffect(world.sink, await dev.run(run_id), { once: true });
  });
});

test("no line of the runtime tells of hung or dead code", () => assertQuiet(world.lines));

describe("a log that this release cannot read", () => {
  const with99 = (body) => JSON.stringify({ ...JSON.parse(body), v: 99 });
  const withUnknown = (body) => {
    const row = JSON.parse(body);
    row.entries[0].event = { "step.dreamt": { of: "sheep" } };
    return JSON.stringify(row);
  };
  /** What is done to which of a run's rows, counted from either end. */
  const DAMAGE = {
    "its last row is of a form to come": { at: -1, change: with99 },
    "its first row is of a form to come": { at: 0, change: with99 },
    "a row in the middle is of a form to come": { at: 1, change: with99 },
    "it tells of something that is not known": { at: -1, change: withUnknown },
    "a row is no JSON": { at: -1, change: (body) => body.slice(0, -9) },
  };

  test("it freezes that run alone, says where, and the run goes on when it can be read again", async () => {
    const { sink } = world;
    const act = await toolOf(world, "thawed");
    const stranger = await world.tenant(unique("frozen"));
    const child = unique("frozen-child");
    await world.dev.putAgent(child, { planner: { kind: "plan", steps: [{ id: "w", wait_for: "go" }] } });
    const started = async (wait) => {
      const { run_id } = await world.dev.startRun({ plan: { steps: [{ id: "wait", ...wait }, { id: "act", tool: act }] } });
      await until(async () => !(await diagnosis(world.dev, run_id)).moving, { what: `${run_id} waits` });
      // A log of three turns, so that there is a middle.
      for (const name of ["unread", "unread"]) await signalled(world.dev, run_id, name);
      return run_id;
    };
    const frozen = await Promise.all(
      Object.entries(DAMAGE).map(async ([name, damage]) => ({ name, ...damage, id: await started({ wait_for: "go", timeout: "P1D" }) })),
    );
    const sleeper = { name: "a sleeper", at: -1, change: with99, id: await started({ sleep: "PT1.5S" }) };
    const parent = await world.dev.startRun({ plan: { steps: [{ id: "run", run: { agent: child } }] } });
    const childId = await until(async () => (await world.dev.run(parent.run_id)).steps[0].child_run_id, { what: "the child" });
    await world.dev.untilRun(childId, "waiting");
    frozen.push({ name: "a child", at: 0, change: with99, id: childId });
    const asked = await started({ approval: { prompt: "Well?" } });
    const { approval_id } = (await world.dev.run(asked)).waiting_for[0];
    frozen.push({ name: "one that asks", at: -1, change: with99, id: asked });
    const well = { sleep: await started({ sleep: "PT2.5S" }), signal: await started({ wait_for: "go", timeout: "P1D" }) };
    const older = await started({ sleep: "PT2.5S" });

    const all = [...frozen, sleeper];
    await world.restart(async () => {
      for (const run of all) {
        const rows = rowsOf(world.stateDir, run.id);
        run.row = rows.at(run.at % rows.length);
        putRow(world.stateDir, run.id, run.row.seq, run.change(run.row.body));
      }
      // What an earlier release wrote is read, though.
      for (const { seq, body } of rowsOf(world.stateDir, older)) {
        assert.equal(JSON.parse(body).v, 2);
        putRow(world.stateDir, older, seq, JSON.stringify({ ...JSON.parse(body), v: 1 }));
      }
    });

    const { dev } = world;
    const other = clientOf(world.url, stranger.key);
    for (const { id, name, row } of all) {
      for (const path of ["", "/events"]) {
        const problem = assertProblem(await dev.get(`/v1/runs/${id}${path}`), 409, "run-frozen");
        assert.equal(problem.seq, row.seq, name);
      }
      for (const what of ["pause", "resume", "retry", "cancel", "signals/go"]) assertProblem(await dev.post(`/v1/runs/${id}/${what}`), 409, "run-frozen");
      const answer = await dev.get(`/v1/runs/${id}/diagnosis`);
      assert.equal(answer.status, 200, answer.text);
      const [blocker] = answer.json.blockers;
      assert.deepEqual([answer.json.run_id, answer.json.moving, kindsOf(answer.json), blocker.release], [id, false, ["frozen"], null], name);
      assert.ok(blocker.detail.includes(`entry ${row.seq} `), `${name}: ${blocker.detail}`);
      for (const path of ["", "/diagnosis"]) assertProblem(await other.get(`/v1/runs/${id}${path}`), 404, "not-found");
    }
    assertProblem(await dev.post(`/v1/approvals/${approval_id}`, { decision: "approved" }), 409, "run-frozen");
    const above = await diagnosis(dev, parent.run_id);
    assert.deepEqual([above.status, kindsOf(above)], ["waiting", ["child@0"]]);
    assert.match(above.blockers[0].detail, /cannot be read/, "what holds the child holds its parent");

    // The others are none the worse for it.
    await signalled(dev, well.signal, "go");
    for (const id of [...Object.values(well), older]) {
      assert.equal((await dev.untilRun(id)).status, "completed");
      await assertStanding(world, id);
    }
    const listed = await dev.ok("GET", "/v1/runs?limit=200");
    for (const { id, name } of all) assert.ok(listed.items.some(({ run_id }) => run_id === id), `${name} is in the list`);
    // The sleeper was due before one of those was: nothing of it was carried out.
    for (const { id } of all) assert.equal(callsByStep(sink, id).size, 0);

    await world.restart(async () => {
      for (const { id, row } of all) putRow(world.stateDir, id, row.seq, row.body);
      ageIndex(world.stateDir, sleeper.id);
    });
    const again = world.dev;
    for (const { id, name } of frozen) {
      const told = await diagnosis(again, id);
      assert.equal(told.status, "waiting", name);
      if (id !== asked) assert.equal((await signal(again, id, "go")).status, 202);
      else await again.ok("POST", `/v1/approvals/${approval_id}`, { body: { decision: "approved" } });
    }
    // What fell due while it could not be read is found by the sweeper, if not before.
    assert.equal((await seamsOf(again).sweep()).unanswered, 0);
    for (const { id, name } of all) {
      assert.equal((await again.untilRun(id)).status, "completed", name);
      await assertStanding(world, id);
    }
    assert.equal((await again.untilRun(parent.run_id)).status, "completed");
    await assertStanding(world, parent.run_id);
  });

  test("its diagnosis is what the schema of diagnoses says", async () => {
    const { run_id } = await world.dev.startRun({ plan: { steps: [{ id: "w", wait_for: "x" }] } });
    let row;
    await world.restart(async () => {
      [row] = rowsOf(world.stateDir, run_id);
      putRow(world.stateDir, run_id, row.seq, with99(row.body));
    });
    const told = await diagnosis(world.dev, run_id);
    assert.deepEqual(kindsOf(told), ["frozen"]);
  });
});
