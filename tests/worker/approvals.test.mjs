// A person is asked before something happens, and what happens is what the person saw.

import assert from "node:assert/strict";
import { afterEach, describe, test } from "node:test";
import { assertOneEffect, assertQuiet, callsByStep, countOf, eachOf } from "./support/checks.mjs";
import { openapiOf, schemasOf } from "./support/contract.mjs";
import { deliver, messageOf } from "./support/deliver.mjs";
import { canonical, rawAt, sha256 } from "./support/json.mjs";
import { typesOf, verifyLog } from "./support/log.mjs";
import { randomOf } from "./support/random.mjs";
import { unique, worldOfFile } from "./support/runtime.mjs";
import { seamsOf } from "./support/seams.mjs";
import { blockerOf, release, standingChecks } from "./support/standing.mjs";
import { until } from "./support/until.mjs";

const world = worldOfFile();
const pause = (ms) => new Promise((done) => setTimeout(done, ms));
const echo = ({ json }) => ({ body: json });

afterEach(standingChecks(() => world));

/** Stores a tool whose calls need a person's leave, and answers its name, which is its path as well. */
async function guarded(stem, answers = echo, more = {}) {
  const name = unique(stem);
  world.sink.on(`/${name}`, answers);
  await world.dev.putTool(name, { http: { method: "POST", url: `${world.sink.url}/${name}` }, requires_approval: true, ...more });
  return name;
}

const planned = (...steps) => ({ plan: { steps } });
const ask = (id, more = {}) => ({ id, approval: { prompt: `What of ${id}?` }, ...more });

/** Waits until a run asks for `count` approvals, and answers their ids in the order of the steps. */
function asked(runId, count = 1) {
  return until(
    async () => {
      const { waiting_for } = await world.dev.run(runId);
      const ids = waiting_for.filter(({ kind }) => kind === "approval").map(({ approval_id }) => approval_id);
      return ids.length === count && ids;
    },
    { what: `${runId} asks for ${count} approvals`, every: 20 },
  );
}

/** Starts a run and answers it with the approvals that it asks for. */
async function startAsking(body, count = 1, options) {
  const { run_id } = await world.dev.startRun(body, options);
  return { run_id, ids: await asked(run_id, count) };
}

const decide = (client, id, decision, more = {}, options) => client.post(`/v1/approvals/${id}`, { decision, ...more }, options);
const approvalOf = (id) => world.dev.ok("GET", `/v1/approvals/${id}`);
const callsTo = (tool) => world.sink.to(`/${tool}`);
const payloads = (log, type) => log.filter(({ event_type }) => event_type === type).map(({ payload }) => payload);
const untilStep = (runId, index, status) =>
  until(async () => (await world.dev.run(runId)).steps[index].status === status, { what: `step ${index} of ${runId} is ${status}`, every: 20 });

/** Does both at nearly the same time; in the first two rounds one after the other, so that each way is met. */
async function inTurns(round, random, one, other) {
  const late = (which) => (round % 3 === which ? pause(random.below(8)) : undefined);
  if (round === 0) return [await one(), await other()];
  if (round === 1) {
    const last = await other();
    return [await one(), last];
  }
  return Promise.all([Promise.resolve(late(0)).then(one), Promise.resolve(late(1)).then(other)]);
}

/** Fails unless a decision came too late, and says of the one that stands what the approval says. */
async function assertTold(answer, id) {
  assert.equal(answer.status, 409, answer.text);
  const { status, decided_by, decided_at } = await approvalOf(id);
  const { type, ...told } = answer.json;
  assert.equal(type, "/problems/already-decided");
  assert.deepEqual([told.approval_status, told.decided_by, told.decided_at], [status, decided_by, decided_at]);
}

describe("an approval that guards a call", () => {
  // As it stands: digits that a double would lose, an exponent, an order of members, what is not ASCII.
  const ARGUMENTS =
    '{"to":"acct-7","amount":18446744073709551617,"rate":1.50,"tiny":1e-7,"neg":-9007199254740993,"note":"€ é \\u0001 😀","lines":[{"b":1,"a":2}]}';

  test("shows the tool, the arguments digit for digit and their digest, and nothing is called before", async () => {
    const { dev } = world;
    const openapi = await openapiOf(dev);
    const schemas = schemasOf(dev);
    const tool = await guarded("exact");
    const body = `{"plan":{"steps":[{"id":"pay","tool":"${tool}","arguments":${ARGUMENTS.replace('"acct-7"', '"{{ input.to }}"')}}]},"input":{"to":"acct-7"}}`;
    const { run_id, ids } = await startAsking(body);
    const digest = sha256(canonical(ARGUMENTS));

    const answer = await dev.get(`/v1/approvals/${ids[0]}`);
    openapi.check("GET /v1/approvals/{approval_id}", answer);
    await schemas.check("approval", answer.json);
    const { approval_id, created_at, prompt, arguments: shown, ...rest } = answer.json;
    assert.deepEqual(rest, {
      status: "pending", run_id, step_index: 0, step_id: "pay", schema: null, tool, arguments_digest: digest,
      until: null, data: null, comment: null, decided_by: null, decided_at: null,
    });
    assert.equal(approval_id, ids[0]);
    assert.ok(prompt.includes(tool), prompt);
    assert.deepEqual(shown, JSON.parse(ARGUMENTS));
    for (const name of ["amount", "rate", "tiny", "neg"]) assert.equal(rawAt(answer.text, "arguments", name), rawAt(ARGUMENTS, name), name);
    assert.equal(canonical(answer.text, { path: ["arguments"] }), canonical(ARGUMENTS));
    const listed = await dev.get(`/v1/approvals?run_id=${run_id}`);
    openapi.check("GET /v1/approvals", listed);
    assert.equal(rawAt(listed.text, "items", 0, "arguments", "amount"), "18446744073709551617");
    assert.equal(listed.json.items[0].arguments_digest, digest);

    const run = await dev.run(run_id);
    assert.equal(run.status, "waiting");
    assert.equal(run.usage.tool_calls, 0);
    assert.equal(run.steps[0].status, "waiting");
    assert.deepEqual(run.waiting_for, [{ kind: "approval", step_index: 0, approval_id: ids[0], until: null }]);
    const blocker = await blockerOf(dev, run_id);
    assert.deepEqual(
      [blocker.kind, blocker.step_index, blocker.approval_id, blocker.release, blocker.moving],
      ["approval", 0, ids[0], `POST /v1/approvals/${ids[0]}`, false],
    );
    assert.equal(callsTo(tool).length, 0, "called before anybody decided");

    const decided = await dev.post(`/v1/approvals/${ids[0]}`, { decision: "approved", comment: "fine", decided_by: "ana@example.com" });
    openapi.check("POST /v1/approvals/{approval_id}", decided);
    assert.equal(decided.status, 200);
    assert.deepEqual([decided.json.status, decided.json.decided_by, decided.json.comment], ["approved", "ana@example.com", "fine"]);
    const ended = await dev.untilRun(run_id);
    assert.equal(ended.status, "completed");
    const calls = callsTo(tool);
    assert.equal(calls.length, 1);
    assert.equal(canonical(calls[0].text), canonical(ARGUMENTS), "what was called is what was shown");
    assert.equal(rawAt(calls[0].text, "amount"), "18446744073709551617");

    const log = await verifyLog(dev, run_id);
    assert.deepEqual(payloads(log, "approval.requested").map((p) => [p.approval_id, p.tool, p.arguments_digest]), [[ids[0], tool, digest]]);
    assert.deepEqual(payloads(log, "approval.decided").map((p) => [p.approval_id, p.decision, p.decided_by, p.arguments_digest]), [[ids[0], "approved", "ana@example.com", digest]]);
    assert.deepEqual(payloads(log, "tool.claimed").map((p) => p.arguments_digest), [digest]);
    const types = typesOf(log);
    assert.ok(types.indexOf("approval.decided") < types.indexOf("tool.claimed"));
    assertOneEffect(world.sink, ended, { once: true });
    assert.deepEqual(await approvalOf(ids[0]), decided.json, "as the decision was answered");
  });

  test("approved twenty times at once by two people is one call and one decision", async () => {
    const { dev, sink } = world;
    let letGo;
    const held = new Promise((done) => (letGo = done));
    const tool = await guarded("refund", async () => (await held, { body: { refunded: true } }));
    const people = [await world.keyFor("dev", "operator"), await world.keyFor("dev", "operator")];
    const { run_id, ids } = await startAsking(planned({ id: "refund", tool, arguments: { order: "o-91", cents: 4500 } }));
    const twenty = await Promise.all(Array.from({ length: 20 }, (_, i) => decide(people[i % 2], ids[0], "approved")));
    await until(() => callsTo(tool).length > 0, { what: "the call", every: 5 });
    // While the tool is busy, and again when it is done.
    const busy = await Promise.all(people.map((person) => decide(person, ids[0], "approved")));
    letGo();
    await dev.untilRun(run_id, "completed");
    const late = await Promise.all(Array.from({ length: 5 }, (_, i) => decide(people[i % 2], ids[0], i % 2 ? "approved" : "rejected")));

    const won = twenty.filter(({ status }) => status === 200);
    assert.equal(won.length, 1, twenty.map(({ status }) => status).join(" "));
    assert.ok(people.some(({ keyId }) => keyId === won[0].json.decided_by), `${won[0].json.decided_by} is one of the two keys`);
    for (const answer of [...twenty.filter((answer) => answer !== won[0]), ...busy, ...late]) await assertTold(answer, ids[0]);

    const seams = seamsOf(dev);
    await seams.redeliver(run_id, 0, 3);
    await until(async () => (await seams.internals(run_id)).duplicates_suppressed >= 3, { what: "copies turned away" });
    const log = await dev.log(run_id);
    assert.equal(countOf(log, "approval.decided"), 1);
    assert.equal(countOf(log, "tool.claimed"), 1);
    assertOneEffect(sink, await dev.run(run_id), { once: true });
  });

  test("the same decision with one Idempotency-Key is one decision and the same answer, also after the end", async () => {
    const { dev } = world;
    const tool = await guarded("keyed");
    const { run_id, ids } = await startAsking(planned({ id: "a", tool, arguments: { n: 1 } }));
    const send = (decision = "approved") => decide(dev, ids[0], decision, { comment: "once" }, { idempotencyKey: "one" });
    const answers = await Promise.all(Array.from({ length: 20 }, () => send()));
    assert.deepEqual([...new Set(answers.map(({ status }) => status))], [200], answers.map(({ text }) => text).join("\n"));
    assert.equal(new Set(answers.map(({ text }) => text)).size, 1, "one answer");
    assert.equal(answers.filter(({ replayed }) => replayed === null).length, 1);
    await dev.untilRun(run_id, "completed");
    const again = await send();
    assert.deepEqual([again.status, again.replayed, again.text], [200, "true", answers[0].text]);
    const other = await send("rejected");
    assert.deepEqual([other.status, other.json.type], [422, "/problems/idempotency-key-reused"]);
    await assertTold(await decide(dev, ids[0], "approved", { comment: "once" }, { idempotencyKey: "two" }), ids[0]);
    assert.equal(callsTo(tool).length, 1);
    assert.equal(countOf(await dev.log(run_id), "approval.decided"), 1);
  });

  test("cannot be given other arguments along with the decision", async () => {
    const { dev } = world;
    const tool = await guarded("along");
    const { run_id, ids } = await startAsking(planned({ id: "pay", tool, arguments: { to: "acct-7", amount: 82000 } }));
    for (const [more, pointer] of [
      [{ arguments: { to: "acct-7", amount: 820000 } }, "/arguments"],
      [{ tool: "other" }, "/tool"],
      [{ arguments_digest: sha256("{}") }, "/arguments_digest"],
      [{ payload: {} }, "/payload"],
    ]) {
      const answer = await decide(dev, ids[0], "approved", more);
      assert.equal(answer.status, 422, answer.text);
      assert.deepEqual(answer.json.errors.map((error) => error.pointer), [pointer]);
    }
    for (const body of ["{}", "[]", '"approved"', '{"decision":"yes"}', '{"decision":"APPROVED"}', '{"decision":true}', '{"decision":"approved","decided_by":""}']) {
      assert.equal((await dev.post(`/v1/approvals/${ids[0]}`, body)).status, 422, body);
    }
    assert.equal((await dev.post(`/v1/approvals/${ids[0]}`, "")).status, 400);
    assert.equal((await dev.post(`/v1/approvals/${ids[0]}`, '{"decision":"approved","decision":"rejected"}')).status, 400);
    assert.equal((await approvalOf(ids[0])).status, "pending");
    assert.equal(callsTo(tool).length, 0);
    assert.equal((await decide(dev, ids[0], "approved")).status, 200);
    await dev.untilRun(run_id, "completed");
    assert.deepEqual(callsTo(tool).map(({ json }) => json.amount), [82000]);
  });

  test("is good for one call: repaired arguments need another, as they were none", async () => {
    const { dev } = world;
    // It takes nothing the first two times.
    const tool = await guarded("repair", [{ status: 422 }, { status: 422 }, { body: { ok: true } }]);
    const { run_id, ids: [first] } = await startAsking(planned({ id: "pay", tool, arguments: { amount: 82000 } }));
    await decide(dev, first, "approved");
    await dev.untilRun(run_id, "blocked");
    const letterOf = async () => (await dev.deadLetters(run_id)).find(({ status }) => status === "open").dead_letter_id;
    await dev.ok("POST", `/v1/dead-letters/${await letterOf()}/redeliver`, { body: { payload: { tool, arguments: { amount: 820000 } } } });
    const [second] = await asked(run_id);
    assert.notEqual(second, first);
    const [one, two] = [await approvalOf(first), await approvalOf(second)];
    assert.deepEqual([one.status, one.arguments.amount], ["approved", 82000]);
    assert.deepEqual([two.status, two.arguments.amount], ["pending", 820000]);
    assert.deepEqual([one, two].map((a) => a.arguments_digest), [82000, 820000].map((amount) => sha256(`{"amount":${amount}}`)));

    // The old one opens nothing, and neither do copies of either message.
    await assertTold(await decide(dev, first, "approved"), first);
    const log = await dev.log(run_id);
    const messages = log.filter(({ event_type }) => event_type === "tool.requested").map((entry) => messageOf([entry], 0));
    assert.equal(messages.length, 2);
    const said = await deliver(world, [...messages, ...messages]);
    assert.deepEqual(said.acked, [0, 1, 2, 3]);
    assert.equal(callsTo(tool).length, 1, "called without leave");

    await decide(dev, second, "approved");
    await dev.untilRun(run_id, "blocked");
    // As it was: what was approved is what is called.
    await dev.ok("POST", `/v1/dead-letters/${await letterOf()}/redeliver`, { body: {} });
    await dev.untilRun(run_id, "completed");
    assert.deepEqual(callsTo(tool).map(({ json }) => json.amount), [82000, 820000, 820000]);
    const whole = await verifyLog(dev, run_id);
    const claimed = payloads(whole, "tool.claimed").map((p) => p.arguments_digest);
    assert.deepEqual(claimed, [one.arguments_digest, two.arguments_digest, two.arguments_digest]);
    assert.equal(countOf(whole, "approval.decided"), 2);
  });

  test("is good for one tool: the same arguments for another need another", async () => {
    const { dev } = world;
    const small = await guarded("small", { status: 422 });
    const large = await guarded("large");
    const { run_id, ids: [first] } = await startAsking(planned({ id: "pay", tool: small, arguments: { amount: 5 } }));
    await decide(dev, first, "approved");
    await dev.untilRun(run_id, "blocked");
    const [letter] = await dev.deadLetters(run_id);
    await dev.ok("POST", `/v1/dead-letters/${letter.dead_letter_id}/redeliver`, { body: { payload: { tool: large, arguments: { amount: 5 } } } });
    const run = await dev.untilRun(run_id, ["waiting", "completed", "failed", "blocked"]);
    assert.equal(callsTo(large).length, 0, `${large} was called with the leave that was given for ${small}`);
    assert.equal(run.status, "waiting");
    const [second] = await asked(run_id);
    assert.equal((await approvalOf(second)).tool, large);
    await decide(dev, second, "approved");
    await dev.untilRun(run_id, "completed");
    assert.equal(callsTo(large).length, 1);
  });

  test("holds against copies, evictions, the sweeper, time, a new version of the tool, and a restart", async () => {
    const { sink } = world;
    const tool = await guarded("held");
    const { run_id, ids } = await startAsking(planned({ id: "a", tool, arguments: { n: 1 } }));
    const seams = seamsOf(world.dev);
    await world.dev.putTool(tool, { http: { method: "POST", url: `${sink.url}/${tool}-v2` }, requires_approval: false });
    await seams.redeliver(run_id, 0, 3);
    await until(async () => (await seams.internals(run_id)).duplicates_suppressed >= 3, { what: "copies turned away" });
    await seams.evict(run_id);
    await seams.redeliver(run_id, 0, 2);
    await until(async () => (await seams.internals(run_id)).duplicates_suppressed >= 2, { what: "copies turned away" });
    await seams.advance(run_id, "P300D");
    await seams.sweep();
    assert.equal((await world.dev.run(run_id)).status, "waiting");

    const approved = await startAsking(planned({ id: "a", tool: `${tool}@1`, arguments: { n: 2 } }, { id: "b", wait_for: "go" }));
    assert.equal((await decide(world.dev, approved.ids[0], "approved")).status, 200);
    await untilStep(approved.run_id, 0, "completed");
    await world.restart();

    const after = seamsOf(world.dev);
    await after.sweep();
    await after.redeliver(run_id, 0, 3);
    await after.redeliver(approved.run_id, 0, 3);
    await until(async () => (await after.internals(run_id)).duplicates_suppressed >= 3, { what: "copies turned away" });
    await until(async () => (await after.internals(approved.run_id)).duplicates_suppressed >= 3, { what: "copies turned away" });
    assert.deepEqual(callsTo(tool).map(({ json }) => json.n), [2]);
    assert.deepEqual(await asked(run_id), ids, "the same approval");
    assert.equal((await decide(world.dev, ids[0], "approved")).status, 200);
    await world.dev.untilRun(run_id, "completed");
    assert.deepEqual(callsTo(tool).map(({ json }) => json.n), [2, 1], "the version with which the run started");
    assert.equal(sink.to(`/${tool}-v2`).length, 0);
    await world.dev.ok("POST", `/v1/runs/${approved.run_id}/signals/go`);
    await world.dev.untilRun(approved.run_id, "completed");
  });

  test("of an external planner's step is for that step's envelope and no other", async () => {
    const { dev } = world;
    const tool = await guarded("outside");
    const agent = unique("outsider");
    await dev.putAgent(agent, { tools: [tool], planner: { kind: "external" } });
    const { run_id } = await dev.startRun({ agent });
    const envelope = (amount) => ({ schema_version: "1", event_type: "tool.requested", run_id, step_index: 0, payload: { tool, arguments: { amount } } });
    await dev.ok("POST", "/v1/envelopes", { body: envelope(82000) });
    const [id] = await asked(run_id);
    assert.equal((await dev.post("/v1/envelopes", envelope(82000))).status, 202, "the same once more");
    assert.equal((await dev.post("/v1/envelopes", envelope(820000))).status, 422, "another in its place");
    assert.deepEqual(await asked(run_id), [id]);
    assert.equal(callsTo(tool).length, 0);
    await decide(dev, id, "approved");
    await untilStep(run_id, 0, "completed");
    await dev.ok("POST", "/v1/envelopes", { body: { schema_version: "1", event_type: "plan.completed", run_id, step_index: null, payload: { output: 1 } } });
    await dev.untilRun(run_id, "completed");
    assert.deepEqual(callsTo(tool).map(({ json }) => json.amount), [82000]);
  });

  test("rejected means not called: the run fails, goes on where the step says so, and asks anew when retried", async () => {
    const { dev } = world;
    const tool = await guarded("reject");
    const after = { id: "after", emit: { type: "went.on" } };
    const of = (more) => planned({ id: "pay", tool, arguments: { n: 1 }, ...more }, after);
    const rejected = async (more) => {
      const started = await startAsking(of(more));
      const answer = await decide(dev, started.ids[0], "rejected", { comment: "too much" });
      assert.deepEqual([answer.status, answer.json.status], [200, "rejected"]);
      return { ...started, run: await dev.untilRun(started.run_id) };
    };
    const { run, run_id } = await rejected({});
    assert.equal(run.status, "failed");
    assert.equal(run.error.step_id, "pay");
    assert.match(run.error.message, /too much/);
    assert.deepEqual(run.steps.map(({ status }) => status), ["failed", "cancelled"]);
    assert.deepEqual(await dev.deadLetters(run_id), [], "nothing is to be mended");
    const goesOn = await rejected({ on_failure: "continue" });
    assert.deepEqual([goesOn.run.status, goesOn.run.steps[0].status], ["completed", "failed"]);
    assert.equal(callsTo(tool).length, 0);

    await dev.ok("POST", `/v1/runs/${run_id}/retry`);
    const [again] = await asked(run_id);
    assert.equal(callsTo(tool).length, 0, "a retry is no leave");
    await decide(dev, again, "approved");
    assert.equal((await dev.untilRun(run_id)).status, "completed");
    assert.equal(callsTo(tool).length, 1);
  });

  test("rejected, with on_reject of its step", async () => {
    const { dev } = world;
    const tool = await guarded("on-reject");
    for (const [on_reject, status] of [["continue", "completed"], ["fail", "failed"]]) {
      const { run_id, ids } = await startAsking(planned({ id: "pay", tool, arguments: { n: 1 }, on_reject }, { id: "after", emit: { type: "went.on" } }));
      await decide(dev, ids[0], "rejected");
      const run = await dev.untilRun(run_id);
      assert.deepEqual([run.status, run.steps[0].status], [status, "failed"]);
    }
    assert.equal(callsTo(tool).length, 0);
  });

  test("too large for a queue's message is shown whole and good for the same bytes", async () => {
    const { dev } = world;
    const tool = await guarded("bulky");
    const args = { text: "é".repeat(150_000) };
    const { run_id, ids } = await startAsking({ ...planned({ id: "a", tool, arguments: { text: "{{ input.text }}" } }), input: args });
    const shown = await approvalOf(ids[0]);
    assert.deepEqual(shown.arguments, args);
    assert.equal(shown.arguments_digest, sha256(JSON.stringify(args)));
    await decide(dev, ids[0], "approved");
    await dev.untilRun(run_id, "completed");
    assert.deepEqual(callsTo(tool).map(({ json }) => json), [args]);
  });
});

describe("an approval step", () => {
  test("hands the decision on, with data that fits its schema", async () => {
    const { dev } = world;
    const openapi = await openapiOf(dev);
    const schema = {
      type: "object", required: ["amount"], additionalProperties: false,
      properties: { amount: { type: "integer", maximum: 100 }, lines: { type: "array", items: { type: "string" } } },
    };
    const step = { id: "ok", approval: { prompt: "Pay {{ input.sum }} to {{ input.who }}?", schema } };
    const { run_id, ids } = await startAsking({ ...planned(step), input: { sum: 9007199254740993n.toString(), who: "Bo" } });
    const shown = await approvalOf(ids[0]);
    assert.deepEqual([shown.prompt, shown.tool, shown.arguments, shown.arguments_digest], ["Pay 9007199254740993 to Bo?", null, null, null]);
    assert.deepEqual(shown.schema, schema);
    for (const [data, pointer] of [
      [undefined, "/data"],
      [null, "/data"],
      ["x", "/data"],
      [{}, "/data/amount"],
      [{ amount: 101 }, "/data/amount"],
      [{ amount: 1.5 }, "/data/amount"],
      [{ amount: 1, more: 1 }, "/data/more"],
      [{ amount: 1, lines: ["a", 2] }, "/data/lines/1"],
    ]) {
      const answer = await decide(dev, ids[0], "approved", { data });
      openapi.check("POST /v1/approvals/{approval_id}", answer);
      assert.equal(answer.status, 422, `${JSON.stringify(data)}: ${answer.text}`);
      assert.ok(answer.json.errors.some((error) => error.pointer === pointer || pointer.startsWith(`${error.pointer}/`)), `${pointer}: ${answer.text}`);
      assert.equal((await approvalOf(ids[0])).status, "pending");
    }
    const big = '{"decision":"approved","data":{"amount":-18446744073709551617},"comment":"ja","decided_by":"Cy"}';
    assert.equal((await dev.post(`/v1/approvals/${ids[0]}`, big)).status, 200);
    const run = await dev.get(`/v1/runs/${(await dev.untilRun(run_id)).run_id}`);
    assert.equal(rawAt(run.text, "output", "data", "amount"), "-18446744073709551617");
    const { decision, decided_by, comment } = run.json.output;
    assert.deepEqual([decision, decided_by, comment], ["approved", "Cy", "ja"]);
    assert.deepEqual(run.json.steps[0].result, run.json.output);
    assert.equal(rawAt((await dev.get(`/v1/approvals/${ids[0]}`)).text, "data", "amount"), "-18446744073709551617");
    await verifyLog(dev, run_id);
  });

  test("rejected fails the run, or is a result where the step says so; data is not asked of a no", async () => {
    const { dev } = world;
    const schema = { type: "object", required: ["n"] };
    const run = async (more, body) => {
      const { run_id, ids } = await startAsking(planned(ask("ok", { ...more, approval: { prompt: "?", schema } })));
      if (body.data) assert.equal((await decide(dev, ids[0], "rejected", { data: { wrong: 1 } })).status, 422, "data that is given must fit");
      const answer = await decide(dev, ids[0], "rejected", body);
      assert.equal(answer.status, 200, answer.text);
      await verifyLog(dev, run_id);
      return dev.untilRun(run_id);
    };
    const failed = await run({}, { comment: "no", decided_by: "Di" });
    assert.equal(failed.status, "failed");
    assert.match(failed.error.message, /Di.*no/);
    assert.deepEqual(await dev.deadLetters(failed.run_id), []);
    assert.equal((await run({ on_reject: "fail" }, {})).status, "failed");
    const goesOn = await run({ on_reject: "continue" }, { data: { n: 1 }, comment: "no", decided_by: "Di" });
    assert.equal(goesOn.status, "completed");
    assert.deepEqual(goesOn.output, { decision: "rejected", data: { n: 1 }, decided_by: "Di", comment: "no" });
    assert.equal(goesOn.steps[0].status, "completed");
  });

  test("expires by itself: decided by nobody, and nobody can decide it then", async () => {
    const { dev } = world;
    const seams = seamsOf(dev);
    const after = { id: "after", emit: { type: "went.on" } };
    const expired = async (more) => {
      const { run_id, ids } = await startAsking(planned(ask("ok", { timeout: "P7D", ...more }), after));
      const { until: at, created_at } = await approvalOf(ids[0]);
      assert.equal(Date.parse(at) - Date.parse(created_at), 7 * 86_400_000);
      assert.equal((await blockerOf(dev, run_id)).until, at);
      await seams.advance(run_id, "P6DT23H");
      assert.equal((await approvalOf(ids[0])).status, "pending");
      await seams.advance(run_id, "PT1H1S");
      const run = await dev.untilRun(run_id);
      const approval = await approvalOf(ids[0]);
      assert.deepEqual([approval.status, approval.decided_by, approval.comment, approval.data], ["expired", null, null, null]);
      for (const decision of ["approved", "rejected"]) await assertTold(await decide(dev, ids[0], decision), ids[0]);
      const log = await verifyLog(dev, run_id);
      assert.equal(countOf(log, "approval.expired"), 1);
      assert.equal(countOf(log, "approval.decided"), 0);
      return run;
    };
    const failed = await expired({});
    assert.deepEqual([failed.status, failed.error.step_id], ["failed", "ok"]);
    assert.equal((await expired({ on_timeout: "fail" })).status, "failed");
    const goesOn = await expired({ on_timeout: "continue" });
    assert.equal(goesOn.status, "completed");
    assert.deepEqual(goesOn.steps[0].result, { decision: "expired", data: null, decided_by: null, comment: null });
    const atOnce = await dev.runToEnd(planned(ask("ok", { timeout: "PT0S" })));
    assert.equal(atOnce.status, "failed");
  });

  test("each of three, asked side by side and answered in any order, gets its own answer", async (t) => {
    const { dev, sink } = world;
    const seams = seamsOf(dev);
    const random = randomOf(t);
    const tool = unique("three");
    sink.on(`/${tool}`, (call) => ({ body: call.json, delay: random.below(15) }));
    await dev.putTool(tool, { http: { method: "POST", url: `${sink.url}/${tool}` } });
    const names = ["a", "b", "c"];
    const steps = names.flatMap((name) => [
      { id: `before-${name}`, depends_on: [], tool, arguments: { before: name } },
      { id: name, depends_on: [`before-${name}`], approval: { prompt: name.toUpperCase() } },
      { id: `after-${name}`, depends_on: [name], tool, arguments: { from: name, value: `{{ steps.${name}.result.data }}` } },
    ]);
    await eachOf(Array.from({ length: 30 }), 10, async (_, round) => {
      const { run_id, ids } = await startAsking({ plan: { steps } }, 3);
      const order = [0, 1, 2].sort(() => random.next() - 0.5);
      for (const [answered, at] of order.entries()) {
        if (round % 2) await seams.evict(run_id);
        assert.equal((await decide(dev, ids[at].replace(/.{4}$/, "0000"), "approved")).status, 404);
        const answer = await decide(dev, ids[at], "approved", { data: `${names[at].toUpperCase()}!` });
        assert.deepEqual([answer.status, answer.json.prompt, answer.json.step_id], [200, names[at].toUpperCase(), names[at]]);
        const { steps } = await dev.run(run_id);
        const open = names.filter((_, place) => steps[place * 3 + 1].status === "waiting");
        assert.deepEqual(open, names.filter((_, place) => !order.slice(0, answered + 1).includes(place)), "only those that were answered");
      }
      const run = await dev.untilRun(run_id, "completed", { every: 20 });
      for (const [at, name] of names.entries()) {
        assert.equal(run.steps[at * 3 + 1].result.data, `${name.toUpperCase()}!`);
        assert.deepEqual(run.steps[at * 3 + 2].result, { from: name, value: `${name.toUpperCase()}!` });
      }
      assertOneEffect(sink, run, { once: true });
    });
  });
});

describe("what decides first stands", () => {
  test("approve and reject at the same time: called exactly where approved", async (t) => {
    const { dev } = world;
    const random = randomOf(t);
    const tool = await guarded("both");
    const wins = { approved: 0, rejected: 0 };
    await eachOf(Array.from({ length: 60 }), 12, async (_, i) => {
      const { run_id, ids: [id] } = await startAsking(planned({ id: "a", tool, arguments: { i } }));
      const order = i % 2 ? ["approved", "rejected"] : ["rejected", "approved"];
      const first = decide(dev, id, order[0], { decided_by: order[0] });
      // The first two one after the other, so that each way is met in any case.
      await (i < 2 ? first : pause(random.below(6)));
      const answers = [await Promise.all([first, decide(dev, id, order[1], { decided_by: order[1] })])].flat();
      const won = answers.findIndex(({ status }) => status === 200);
      assert.ok(won >= 0, answers.map(({ text }) => text).join("\n"));
      await assertTold(answers[1 - won], id);
      const run = await dev.untilRun(run_id, undefined, { every: 20 });
      const approval = await approvalOf(id);
      assert.equal(approval.status, order[won]);
      assert.equal(approval.decided_by, order[won]);
      assert.equal(run.status, order[won] === "approved" ? "completed" : "failed");
      assert.equal(callsByStep(world.sink, run_id).get(0)?.length ?? 0, order[won] === "approved" ? 1 : 0);
      assert.equal(countOf(await dev.log(run_id), "approval.decided"), 1);
      wins[order[won]] += 1;
    });
    t.diagnostic(JSON.stringify(wins));
    assert.ok(wins.approved > 0 && wins.rejected > 0, "both orders were met");
  });

  const standsAlone = async (answer, run_id, id) => {
    const run = await world.dev.untilRun(run_id, undefined, { every: 20 });
    const approval = await approvalOf(id);
    const log = await world.dev.log(run_id);
    const [decided, expired] = [countOf(log, "approval.decided"), countOf(log, "approval.expired")];
    if (answer.status === 200) {
      assert.deepEqual([approval.status, approval.decided_by, decided, expired], ["rejected", "Ed", 1, 0]);
      assert.match(run.error.message, /Ed/);
    } else {
      await assertTold(answer, id);
      assert.deepEqual([approval.status, approval.decided_by, decided, expired], ["expired", null, 0, 1]);
    }
    assert.equal(run.status, "failed");
    return approval.status;
  };
  const tell = (t, outcomes) => t.diagnostic(outcomes.map((status) => status[0]).join(""));

  test("a no at the moment of expiry is a no or came too late, never both", async (t) => {
    const { dev } = world;
    const seams = seamsOf(dev);
    const random = randomOf(t);
    const outcomes = await eachOf(Array.from({ length: 40 }), 8, async (_, i) => {
      const { run_id, ids: [id] } = await startAsking(planned(ask("a", { timeout: "PT1H" })));
      const expire = () => seams.advance(run_id, "PT1H");
      const reject = () => decide(dev, id, "rejected", { decided_by: "Ed" });
      const [answer] = await inTurns(i, random, reject, expire);
      return standsAlone(answer, run_id, id);
    });
    tell(t, outcomes);
    assert.equal(new Set(outcomes).size, 2, "both orders were met");
  });

  test("so it is when the alarm itself is what expires it", async (t) => {
    const { dev } = world;
    const random = randomOf(t);
    const outcomes = await eachOf(Array.from({ length: 40 }), 40, async () => {
      const { run_id } = await dev.startRun(planned(ask("a", { timeout: "PT1S" })));
      const [{ approval_id: id, until: at }] = (await dev.run(run_id)).waiting_for;
      await pause(Date.parse(at) - Date.now() - 20 + random.below(40));
      return standsAlone(await decide(dev, id, "rejected", { decided_by: "Ed" }), run_id, id);
    });
    tell(t, outcomes);
  });

  test("approve and cancel at the same time: nothing is begun after the cancel, and one of them is told", async (t) => {
    const { dev } = world;
    const random = randomOf(t);
    const tool = await guarded("cancelled");
    const outcomes = await eachOf(Array.from({ length: 40 }), 8, async (_, i) => {
      const { run_id, ids: [id] } = await startAsking(planned({ id: "a", tool, arguments: { i } }, ask("b")));
      const [answer, cancelled] = await inTurns(
        i,
        random,
        () => decide(dev, id, "approved"),
        () => dev.post(`/v1/runs/${run_id}/cancel`),
      );
      assert.equal(cancelled.status, 200);
      await dev.untilRun(run_id, "cancelled");
      const approval = await approvalOf(id);
      const calls = callsByStep(world.sink, run_id).get(0)?.length ?? 0;
      if (answer.status === 200) {
        assert.equal(approval.status, "approved");
        assert.ok(calls <= 1);
      } else {
        await assertTold(answer, id);
        assert.deepEqual([approval.status, approval.decided_by, calls], ["cancelled", null, 0]);
      }
      return approval.status;
    });
    tell(t, outcomes);
    assert.equal(new Set(outcomes).size, 2, "both orders were met");
  });

  test("an approval ends with its run, however that ends", async () => {
    const { dev, sink } = world;
    const seams = seamsOf(dev);
    const tool = await guarded("ends");
    const bad = unique("bad");
    sink.on(`/${bad}`, { status: 400 });
    await dev.putTool(bad, { http: { method: "POST", url: `${sink.url}/${bad}` } });
    const agent = unique("in-time");
    await dev.putAgent(agent, { tools: [tool], planner: { kind: "plan", steps: [{ id: "a", tool, arguments: {} }] }, limits: { deadline: "P1D" } });
    const cancelled = await startAsking(planned({ id: "a", tool, arguments: {} }, ask("b")));
    await dev.ok("POST", `/v1/runs/${cancelled.run_id}/cancel`);
    const failed = await startAsking(planned({ id: "a", depends_on: [], tool, arguments: {} }, ask("b", { depends_on: [] }), { id: "go", depends_on: [], wait_for: "go" }, { id: "bad", depends_on: ["go"], tool: bad, arguments: {}, on_failure: "fail" }), 2);
    await dev.ok("POST", `/v1/runs/${failed.run_id}/signals/go`);
    const late = await startAsking({ agent });
    await seams.advance(late.run_id, "P1D");
    for (const [{ run_id, ids }, status] of [[cancelled, "cancelled"], [failed, "failed"], [late, "failed"]]) {
      const run = await dev.untilRun(run_id);
      assert.equal(run.status, status);
      assert.deepEqual(run.waiting_for, []);
      for (const id of ids) {
        const approval = await approvalOf(id);
        assert.deepEqual([approval.status, approval.decided_by], ["cancelled", null]);
        for (const decision of ["approved", "rejected"]) await assertTold(await decide(dev, id, decision), id);
        await until(async () => {
          const { items } = await dev.ok("GET", `/v1/approvals?run_id=${run_id}&status=cancelled`);
          return items.some(({ approval_id }) => approval_id === id);
        }, { what: `${id} is listed as cancelled` });
      }
      await verifyLog(dev, run_id);
    }
    assert.equal(callsTo(tool).length, 0);
  });

  test("a paused run takes the decision and acts when it is resumed", async () => {
    const { dev } = world;
    const tool = await guarded("paused");
    const { run_id, ids } = await startAsking(planned({ id: "a", tool, arguments: { n: 1 } }));
    await dev.ok("POST", `/v1/runs/${run_id}/pause`);
    assert.equal((await decide(dev, ids[0], "approved")).status, 200);
    const seams = seamsOf(dev);
    await seams.redeliver(run_id, 0, 2);
    await until(async () => (await seams.internals(run_id)).duplicates_suppressed >= 2, { what: "copies turned away" });
    assert.equal(callsTo(tool).length, 0, "called while paused");
    const { blockers } = await dev.ok("GET", `/v1/runs/${run_id}/diagnosis`);
    const paused = blockers.find(({ kind }) => kind === "paused");
    assert.equal(paused.release, `POST /v1/runs/${run_id}/resume`);
    await release(dev, paused);
    await dev.untilRun(run_id, "completed");
    assert.equal(callsTo(tool).length, 1);
  });
});

describe("the inbox", () => {
  const listAll = async (client, query, limit) => {
    const pages = [];
    for (let cursor; cursor !== null; ) {
      const page = await client.ok("GET", `/v1/approvals?limit=${limit}${query}${cursor ? `&cursor=${encodeURIComponent(cursor)}` : ""}`);
      pages.push(page.items.map(({ approval_id }) => approval_id));
      cursor = page.next_cursor;
    }
    return pages;
  };

  test("lists a tenant's approvals newest first, in pages, by status and by run", async () => {
    const tenant = await world.tenant(unique("inbox"));
    const steps = Array.from({ length: 20 }, (_, i) => ask(`s${i}`, { depends_on: [] }));
    const runs = [];
    for (let i = 0; i < 3; i += 1) runs.push(await tenant.startRun({ plan: { steps } }));
    const shown = [];
    for (const { run_id } of runs) {
      const { waiting_for } = await tenant.run(run_id);
      shown.push(waiting_for.map(({ approval_id }) => approval_id));
    }
    // What a run shows can be found at once, in each of the two ways.
    const pages = await listAll(tenant, "", 25);
    assert.deepEqual(pages.map(({ length }) => length), [25, 25, 10]);
    const ids = pages.flat();
    assert.deepEqual(new Set(ids), new Set(shown.flat()));
    assert.deepEqual(ids, [...ids].sort().reverse(), "newest first");
    assert.deepEqual(new Set((await listAll(tenant, `&run_id=${runs[1].run_id}`, 7)).flat()), new Set(shown[1]));
    for (const id of shown[0]) assert.equal((await tenant.get(`/v1/approvals/${id}`)).status, 200);

    const [approved, rejected] = [shown[0][3], shown[1][4]];
    await decide(tenant, approved, "approved");
    await decide(tenant, rejected, "rejected");
    const statuses = { approved: 1, rejected: 1, cancelled: 19, expired: 0, pending: 39 };
    for (const [status, count] of Object.entries(statuses)) {
      await until(async () => (await listAll(tenant, `&status=${status}`, 200)).flat().length === count, { what: `${count} are ${status}` });
    }
    assert.deepEqual((await listAll(tenant, `&status=approved&run_id=${runs[0].run_id}`, 50)).flat(), [approved]);
    assert.deepEqual((await listAll(tenant, `&status=approved&run_id=${runs[1].run_id}`, 50)).flat(), []);
    for (const query of ["status=open", "status=", "run_id=x", "cursor=x", "limit=0", "more=1", "status=pending&status=expired"]) {
      assert.equal((await tenant.get(`/v1/approvals?${query}`)).status, 400, query);
    }
  });

  test("knows what a run shows at once: in GET, in the log, in the diagnosis, and in the answer to the start", async () => {
    const { dev } = world;
    const body = planned(ask("a"));
    const ways = {
      "the run": async ({ run_id }) => (await dev.run(run_id)).waiting_for[0].approval_id,
      "the log": async ({ run_id }) => payloads(await dev.log(run_id), "approval.requested")[0].approval_id,
      "the diagnosis": async ({ run_id }) => (await blockerOf(dev, run_id)).approval_id,
      "the answer to the start": ({ waiting_for }) => waiting_for[0].approval_id,
    };
    for (const [way, find] of Object.entries(ways)) {
      // Whoever goes by the start's answer is the soonest: many of them, so that the index has no time.
      await eachOf(Array.from({ length: way === "the answer to the start" ? 80 : 16 }), 16, async (_, i) => {
        const run = await dev.startRun(body);
        const id = await find(run);
        if (i % 2) {
          const { items } = await dev.ok("GET", `/v1/approvals?status=pending&limit=200`);
          assert.ok(items.some(({ approval_id }) => approval_id === id), `${way}: ${id} is listed`);
        }
        const answer = await decide(dev, id, "approved");
        assert.equal(answer.status, 200, `${way}: ${answer.text}`);
      });
    }
  });

  test("finds approvals that ask much, and many of them at once", async () => {
    const { dev } = world;
    const tool = await guarded("much");
    const text = "x".repeat(15_000);
    const many = Array.from({ length: 12 }, (_, i) => ({ id: `s${i}`, depends_on: [], tool, arguments: { i, text } }));
    const first = await startAsking({ plan: { steps: many } }, 12);
    const long = await startAsking({ ...planned({ id: "long", approval: { prompt: "{{ input.text }}" } }), input: { text: "y".repeat(120_000) } });
    const wide = { type: "object", description: "z".repeat(60_000) };
    const schema = await startAsking(planned({ id: "wide", approval: { prompt: "?", schema: wide } }));
    const listed = async (runId) => new Set((await dev.ok("GET", `/v1/approvals?run_id=${runId}`)).items.map(({ approval_id }) => approval_id));
    const missing = [];
    for (const { run_id, ids } of [first, long, schema]) {
      const found = await listed(run_id);
      for (const id of ids) {
        if (!found.has(id)) missing.push(`${id} is not listed`);
        const answer = await decide(dev, id, "approved", run_id === schema.run_id ? { data: {} } : {});
        if (answer.status !== 200) missing.push(`${id} cannot be decided: ${answer.status}`);
      }
    }
    assert.deepEqual(missing, []);
    for (const { run_id } of [first, long, schema]) await dev.untilRun(run_id, "completed");
    assert.equal(callsTo(tool).length, 12);
  });

  test("opens nothing to another tenant, to nobody and to those who may only look", async () => {
    const { dev, anonymous } = world;
    const openapi = await openapiOf(dev);
    const tool = await guarded("closed");
    const { run_id, ids: [id] } = await startAsking(planned({ id: "a", tool, arguments: { n: 1 } }));
    const before = await dev.get(`/v1/runs/${run_id}/events`);
    const stranger = await world.tenant(unique("stranger"));
    const reader = await world.keyFor("dev", "reader");
    const revoked = await world.keyFor("dev", "admin");
    await world.operator.call("DELETE", `/v1/tenants/dev/keys/${revoked.keyId}`);
    const random = id.replace(/.{6}$/, "abcdef");
    const routes = [
      (client, name) => client.get(`/v1/approvals/${name}`),
      (client, name) => decide(client, name, "approved"),
      (client, name) => decide(client, name, "rejected"),
      (client, name) => client.post(`/v1/approvals/${name}/links`, {}),
    ];
    for (const route of routes) {
      const [foreign, unknown] = [await route(stranger, id), await route(stranger, random)];
      assert.deepEqual([foreign.status, foreign.text], [404, unknown.text], "as if there were none");
      for (const client of [anonymous, revoked, dev.with("wrong")]) assert.equal((await route(client, id)).status, 401);
      for (const name of [random, "apr_", "apr_x", id.toUpperCase(), id.slice(0, -1), `${id}0`, run_id, id.replace("apr_", "dl_"), "%00", "..%2Fruns", "-", "x".repeat(2000)]) {
        const answer = await route(dev, name);
        assert.equal(answer.status, 404, `${name}: ${answer.text}`);
      }
    }
    assert.deepEqual((await stranger.ok("GET", "/v1/approvals")).items, []);
    assert.deepEqual((await stranger.ok("GET", `/v1/approvals?run_id=${run_id}`)).items, []);
    assert.equal((await reader.get(`/v1/approvals/${id}`)).status, 200);
    assert.equal((await reader.get("/v1/approvals?status=pending&limit=1")).json.items[0].approval_id, id);
    for (const route of routes.slice(1)) {
      const answer = await route(reader, id);
      assert.deepEqual([answer.status, answer.json.type], [403, "/problems/forbidden"]);
    }
    openapi.check("POST /v1/approvals/{approval_id}", await routes[1](reader, id));
    assert.equal((await dev.get(`/v1/runs/${run_id}/events`)).text, before.text, "the log");
    assert.equal((await approvalOf(id)).status, "pending");
    assert.equal(callsTo(tool).length, 0);
    assert.equal((await decide(await world.keyFor("dev", "operator"), id, "approved")).status, 200);
    await dev.untilRun(run_id, "completed");
  });

  test("makes links that say until when they are good, and that change nothing", async () => {
    const { dev } = world;
    const openapi = await openapiOf(dev);
    const { run_id, ids: [id] } = await startAsking(planned(ask("a")));
    const before = await dev.get(`/v1/runs/${run_id}/events`);
    const link = (body) => dev.post(`/v1/approvals/${id}/links`, body);
    const made = [await link(undefined), await link({}), await link({ expires_in: "PT1H" }), await link({ decided_by: "Flo", expires_in: "P365D" })];
    for (const answer of made) {
      openapi.check("POST /v1/approvals/{approval_id}/links", answer);
      assert.equal(answer.status, 201);
      assert.ok(answer.json.url.startsWith(`${world.url}/`), answer.json.url);
      assert.ok(Date.parse(answer.json.expires_at) > Date.now());
    }
    assert.ok(Date.parse(made[2].json.expires_at) < Date.parse(made[0].json.expires_at));
    assert.equal(new Set(made.slice(1).map(({ json }) => json.url)).size, 3);
    for (const body of [{ expires_in: "PT0S" }, { expires_in: "-PT1S" }, { expires_in: "P366D" }, { expires_in: "soon" }, { expires_in: 5 }, { decided_by: "" }, { more: 1 }]) {
      assert.equal((await link(body)).status, 422, JSON.stringify(body));
    }
    // A link's token is no callback's.
    const token = made[0].json.url.split("/").at(-1);
    assert.equal((await world.anonymous.post(`/v1/callbacks/${token}`, { status: "succeeded", result: 1 })).status, 404);
    assert.equal((await dev.get(`/v1/runs/${run_id}/events`)).text, before.text, "the log");
    await decide(dev, id, "approved");
    await assertTold(await link({}), id);
  });
});

test("no line of the runtime tells of hung or dead code", () => assertQuiet(world.lines));
