// Dead letters: how each comes to be, and how a person settles it once.

import assert from "node:assert/strict";
import test from "node:test";
import { schemasOf } from "./support/contract.mjs";
import { eventKey, rawAt } from "./support/json.mjs";
import { typesOf, verifyLog } from "./support/log.mjs";
import { unique, worldOfFile } from "./support/runtime.mjs";
import { until } from "./support/until.mjs";

const world = worldOfFile();
const FAST = { max_attempts: 2, base: "PT0.01S", jitter: "none" };

async function toolOf(stem, answers, more = {}) {
  const name = unique(stem);
  if (answers) world.sink.on(`/${name}`, answers);
  await world.dev.putTool(name, { description: stem, http: { url: `${world.sink.url}/${name}` }, retry: FAST, ...more });
  return name;
}
const one = (tool, args = {}, more = {}) => ({ plan: { steps: [{ id: "a", tool, arguments: args, ...more }, { id: "z", emit: { type: "after", data: "{{ steps.a.result }}" } }], output: "{{ steps.a.result }}" } });

/** A run that its only letter holds. */
async function held(tool, args, more) {
  const run = await world.dev.runToEnd(one(tool, args, more), "blocked");
  const letters = await world.dev.deadLetters(run.run_id);
  assert.equal(letters.length, 1);
  const id = letters[0].dead_letter_id;
  return { run, run_id: run.run_id, letter: letters[0], id, path: `/v1/dead-letters/${id}` };
}
const get = (path) => world.dev.ok("GET", path);
const openLetter = async (runId) => (await world.dev.ok("GET", `/v1/dead-letters?run_id=${runId}&status=open`)).items[0];

test("every reason that a step can be dead-lettered for, with its envelope, errors and attempts", async () => {
  const schemas = schemasOf(world.anonymous);
  const integer = { parameters: { type: "object", properties: { n: { type: "integer" } } } };
  const cases = {
    unknown_tool: [unique("no-tool"), 0],
    // It was tried, and found that it cannot be sent.
    invalid_arguments: [await toolOf("invalid-arguments", undefined, integer), 1],
    rejected_by_tool: [await toolOf("rejected", { status: 422, body: { why: "no" } }), 1],
    retries_exhausted: [await toolOf("exhausted", { status: 503 }), 2],
    outcome_unknown: [await toolOf("unknown", { close: true }, { effect: "at_most_once" }), 1],
    invalid_result: [await toolOf("invalid-result", { body: "garbage" }), 1],
    undeliverable: [await toolOf("undeliverable", undefined, { http: { url: "http://10.0.0.1/" } }), 1],
  };
  for (const [reason, [tool, attempts]] of Object.entries(cases)) {
    const args = { n: "é 1" };
    const { run, run_id, letter, path } = await held(tool, args);
    assert.equal(letter.reason, reason);
    const text = (await world.dev.get(path)).text;
    assert.deepEqual(JSON.parse(text), letter, "the list and the letter agree");
    await schemas.check("dead-letter", letter);
    await schemas.check("envelope", letter.envelope);
    assert.deepEqual([letter.status, letter.run_id, letter.step_index, letter.settled_at], ["open", run_id, 0, null]);
    assert.deepEqual(letter.envelope.payload, { tool, arguments: args });
    assert.equal(letter.envelope.idempotency_key, eventKey(run_id, 0, rawAt(text, "envelope", "payload")));
    assert.equal(letter.attempts.length, attempts, reason);
    const sent = ["undeliverable", "invalid_arguments"].includes(reason) ? 0 : attempts;
    assert.equal(world.sink.to(`/${tool}`).length, sent, reason);
    assert.equal(run.usage.tool_calls, sent, `${reason}: what was not sent is no call`);
    for (const { at, outcome, error } of letter.attempts) assert.ok(at && outcome && error, `${reason}: ${JSON.stringify(letter.attempts)}`);
    if (reason === "invalid_arguments") assert.deepEqual(letter.errors.map(({ pointer }) => pointer), ["/payload/arguments/n"]);
    assert.equal(run.steps[0].status, "dead_lettered");
    assert.equal(run.steps[0].attempts, attempts);
    const entries = await verifyLog(world.dev, run_id);
    const opened = entries.find(({ event_type }) => event_type === "dead_letter.opened");
    assert.deepEqual([opened.step_index, opened.payload.reason, opened.payload.dead_letter_id], [0, reason, letter.dead_letter_id]);
    assert.deepEqual(entries.find(({ event_type }) => event_type === "run.blocked").payload.dead_letter_ids, [letter.dead_letter_id]);
    const found = await get(`/v1/dead-letters?reason=${reason}&limit=200`);
    assert.ok(found.items.some(({ dead_letter_id }) => dead_letter_id === letter.dead_letter_id));
    assert.ok(found.items.every((item) => item.reason === reason));
  }
});

test("an expression that cannot be evaluated is a dead letter that names its place", async () => {
  const tool = await toolOf("expression");
  const run = await world.dev.runToEnd({ plan: { steps: [{ id: "a", tool, arguments: { deep: { x: ["{{ input.missing.more }}"] } } }] }, input: {} }, "blocked");
  const [letter] = await world.dev.deadLetters(run.run_id);
  assert.equal(letter.reason, "invalid_arguments");
  assert.deepEqual(letter.errors.map(({ pointer }) => pointer), ["/payload/arguments/deep/x/0"]);
  assert.equal(world.sink.to(`/${tool}`).length, 0);
  await world.dev.ok("POST", `/v1/dead-letters/${letter.dead_letter_id}/redeliver`, { body: { payload: { tool, arguments: { fixed: 1 } } } });
  assert.equal((await world.dev.untilRun(run.run_id)).status, "completed");
  assert.deepEqual(world.sink.to(`/${tool}`).map(({ json }) => json), [{ fixed: 1 }]);
  await verifyLog(world.dev, run.run_id);
});

test("redelivered unchanged, the tool gets the same key, and the run goes on", async () => {
  const tool = await toolOf("mended", [{ status: 500 }, { status: 500 }, { body: { ok: 1 } }]);
  const { run_id, path, letter } = await held(tool, { n: 1 });
  const answer = await world.dev.post(`${path}/redeliver`);
  assert.equal(answer.status, 200);
  assert.equal(answer.json.status, "redelivered");
  assert.ok(answer.json.settled_at);
  const run = await world.dev.untilRun(run_id);
  assert.deepEqual([run.status, run.output], ["completed", { ok: 1 }]);
  const calls = world.sink.to(`/${tool}`);
  assert.deepEqual(calls.map(({ key }) => key), Array(3).fill(letter.envelope.idempotency_key));
  assert.equal(run.steps[0].attempts, 3, "attempts of before are not forgotten");
  const entries = await verifyLog(world.dev, run_id);
  assert.equal(typesOf(entries).filter((type) => type === "dead_letter.settled").length, 1);
  assert.equal(typesOf(entries).filter((type) => type === "tool.requested").length, 1);
  assert.deepEqual(await openLetter(run_id), undefined);
  assert.equal((await get(path)).status, "redelivered");
});

test("redelivered repaired, the tool gets new arguments under a new key, and the log tells", async () => {
  const tool = await toolOf("repaired", ({ json }) => (json.qty < 0 ? { status: 422, body: { error: "qty" } } : { body: { taken: json.qty } }));
  const { run_id, path, letter } = await held(tool, { qty: -1 });
  const payload = { tool, arguments: { qty: 1 } };
  const answer = await world.dev.post(`${path}/redeliver`, { payload });
  assert.deepEqual([answer.status, answer.json.status], [200, "redelivered"]);
  const run = await world.dev.untilRun(run_id);
  assert.deepEqual([run.status, run.output], ["completed", { taken: 1 }]);
  const calls = world.sink.to(`/${tool}`);
  assert.deepEqual(calls.map(({ json }) => json.qty), [-1, 1]);
  assert.equal(calls[0].key, letter.envelope.idempotency_key);
  assert.equal(calls[1].key, eventKey(run_id, 0, JSON.stringify(payload)));
  assert.equal(run.steps[0].idempotency_key, calls[1].key);
  const entries = await verifyLog(world.dev, run_id);
  const requested = entries.filter(({ event_type }) => event_type === "tool.requested");
  assert.deepEqual(requested.map(({ payload: { arguments: args } }) => args), [{ qty: -1 }, { qty: 1 }]);
  const settled = entries.find(({ event_type }) => event_type === "dead_letter.settled");
  assert.deepEqual(settled.payload.settlement.redelivered.payload, payload);
  assert.equal(settled.step_index, 0);
});

test("redelivered while it still fails, it is a dead letter again, with its history and new tries", async () => {
  const tool = await toolOf("still-failing", { status: 503 });
  const first = await held(tool, { n: 1 });
  await world.dev.ok("POST", `${first.path}/redeliver`);
  const second = await until(() => openLetter(first.run_id));
  assert.notEqual(second.dead_letter_id, first.id);
  assert.equal(second.reason, "retries_exhausted");
  assert.equal(world.sink.to(`/${tool}`).length, 4, "the policy's attempts, counted anew");
  assert.deepEqual(
    second.attempts.map(({ outcome, status_code }) => [outcome, status_code]),
    [["retry_scheduled", 503], ["failed", 503], ["redelivered", null], ["retry_scheduled", 503], ["failed", 503]],
    "what went before is there",
  );
  assert.equal(new Set(world.sink.to(`/${tool}`).map(({ key }) => key)).size, 1);
  const letters = await world.dev.deadLetters(first.run_id);
  assert.deepEqual(letters.map(({ status }) => status), ["open", "redelivered"], "newest first");
  await verifyLog(world.dev, first.run_id);
  // And a repair that is wrong itself.
  world.sink.on(`/${tool}`, { status: 400 });
  await world.dev.ok("POST", `/v1/dead-letters/${second.dead_letter_id}/redeliver`, { body: { payload: { tool, arguments: { n: 2 } } } });
  const third = await until(() => openLetter(first.run_id));
  assert.equal(third.reason, "rejected_by_tool");
  assert.deepEqual(third.envelope.payload.arguments, { n: 2 });
  world.sink.on(`/${tool}`, { body: { at: "last" } });
  await world.dev.ok("POST", `/v1/dead-letters/${third.dead_letter_id}/redeliver`);
  assert.deepEqual((await world.dev.untilRun(first.run_id)).output, { at: "last" });
  assert.equal(world.sink.to(`/${tool}`).length, 6);
  await verifyLog(world.dev, first.run_id);
});

test("a tool that comes to exist is found by a redelivery, and a repair may name another tool", async () => {
  const late = unique("late");
  const { run_id, path } = await held(late, { n: 1 });
  const early = await world.dev.post(`${path}/redeliver`);
  assert.equal(early.status, 422);
  assert.deepEqual(early.json.errors.map(({ pointer }) => pointer), ["/payload/tool"]);
  assert.equal((await get(path)).status, "open", "what could not be done settles nothing");
  await world.dev.putTool(late, { description: "late", http: { url: `${world.sink.url}/${late}` } });
  await world.dev.ok("POST", `${path}/redeliver`);
  assert.equal((await world.dev.untilRun(run_id)).status, "completed");
  assert.equal(world.sink.to(`/${late}`).length, 1);

  const broken = await toolOf("broken", { status: 400 });
  const other = await toolOf("other");
  const second = await held(broken);
  for (const [payload, pointer] of [
    [{ tool: unique("nobody"), arguments: {} }, "/payload/tool"],
    [{ tool: other }, "/payload"],
    [{ arguments: {} }, "/payload"],
    [{ tool: other, arguments: {}, more: 1 }, "/payload/more"],
    [{ tool: other, arguments: "text" }, "/payload/arguments"],
    ["text", "/payload"],
    [[], "/payload"],
  ]) {
    const refused = await world.dev.post(`${second.path}/redeliver`, { payload });
    assert.equal(refused.status, 422, JSON.stringify(payload));
    assert.ok(refused.json.errors.every((error) => error.pointer.startsWith(pointer)), refused.text);
  }
  assert.equal((await world.dev.post(`${second.path}/redeliver`, { paylod: {} })).status, 422);
  await world.dev.ok("POST", `${second.path}/redeliver`, { body: { payload: { tool: other, arguments: {} } } });
  assert.equal((await world.dev.untilRun(second.run_id)).status, "completed");
  assert.equal(world.sink.to(`/${other}`).length, 1);
  await verifyLog(world.dev, second.run_id);
});

test("a run that is redelivered stays on its tools' versions", async () => {
  const tool = await toolOf("version", { status: 400 });
  const { run_id, path } = await held(tool);
  await world.dev.putTool(tool, { description: "2", http: { url: `${world.sink.url}/${tool}-2` } });
  world.sink.on(`/${tool}`, { body: { version: 1 } });
  world.sink.on(`/${tool}-2`, { body: { version: 2 } });
  await world.dev.ok("POST", `${path}/redeliver`);
  assert.deepEqual((await world.dev.untilRun(run_id)).output, { version: 1 });
});

test("resolved, the run goes on with a person's result, which must fit the tool's schema", async () => {
  const tool = await toolOf("resolved", { status: 400 }, { result: { type: "object", required: ["id"], properties: { id: { type: "integer" } } } });
  const { run_id, path } = await held(tool);
  for (const body of [{}, { result: { id: "x" } }, { result: null }, { result: {}, more: 1 }, { reslt: {} }, []]) {
    const refused = await world.dev.post(`${path}/resolve`, body);
    assert.equal(refused.status, 422, JSON.stringify(body));
  }
  assert.equal((await world.dev.post(`${path}/resolve`)).status, 400);
  assert.equal((await get(path)).status, "open");
  const answer = await world.dev.post(`${path}/resolve`, { result: { id: 7, by: "hand" } });
  assert.deepEqual([answer.status, answer.json.status], [200, "resolved"]);
  const run = await world.dev.untilRun(run_id);
  assert.deepEqual([run.status, run.output], ["completed", { id: 7, by: "hand" }]);
  assert.equal(run.steps[0].status, "completed");
  const entries = await verifyLog(world.dev, run_id);
  assert.deepEqual(entries.find(({ event_type }) => event_type === "dead_letter.settled").payload.settlement, { resolved: { result: { id: 7, by: "hand" } } });
  assert.deepEqual(entries.find(({ event_type }) => event_type === "event.emitted").payload.data, { id: 7, by: "hand" });
  assert.equal(world.sink.to(`/${tool}`).length, 1);
  // Any JSON where no schema says otherwise.
  for (const result of [null, false, 0, "", []]) {
    const other = await held(unique("nobody"));
    await world.dev.ok("POST", `${other.path}/resolve`, { body: { result } });
    assert.deepEqual((await world.dev.untilRun(other.run_id)).output, result);
  }
});

test("discarded, the step fails, and its run with it", async () => {
  const tool = await toolOf("discarded", { status: 400, body: "no" });
  const { run_id, path, id } = await held(tool);
  for (const body of [{ coment: "x" }, { comment: 1 }, []]) assert.equal((await world.dev.post(`${path}/discard`, body)).status, 422);
  const answer = await world.dev.post(`${path}/discard`, { comment: "not worth it é" });
  assert.deepEqual([answer.status, answer.json.status], [200, "discarded"]);
  const run = await world.dev.untilRun(run_id);
  assert.equal(run.status, "failed");
  assert.deepEqual(run.steps.map(({ status }) => status), ["failed", "cancelled"]);
  assert.equal(run.error.step_index, 0);
  const entries = await verifyLog(world.dev, run_id);
  const settled = entries.find(({ event_type }) => event_type === "dead_letter.settled");
  assert.deepEqual(settled.payload.settlement, { discarded: { comment: "not worth it é" } });
  assert.equal(settled.payload.dead_letter_id, id);
  assert.equal(typesOf(entries).at(-1), "run.failed");
});

test("a letter is settled once: whoever comes second is told how it was", async () => {
  const settlements = [["redeliver", undefined], ["resolve", { result: 1 }], ["discard", {}]];
  for (const [first, body] of settlements) {
    const tool = await toolOf("settled", [{ status: 400 }, { body: 1 }]);
    const { run_id, path } = await held(tool);
    await world.dev.ok("POST", `${path}/${first}`, { body });
    const status = { redeliver: "redelivered", resolve: "resolved", discard: "discarded" }[first];
    for (const [second, other] of settlements) {
      const answer = await world.dev.post(`${path}/${second}`, other);
      assert.equal(answer.status, 409, `${second} after ${first}`);
      assert.equal(answer.json.type, "/problems/already-settled");
      assert.equal(answer.json.dead_letter_status, status);
      assert.ok(answer.json.settled_at);
    }
    await world.dev.untilRun(run_id);
    assert.equal((await get(path)).status, status);
    assert.equal((await verifyLog(world.dev, run_id)).filter(({ event_type }) => event_type === "dead_letter.settled").length, 1);
  }
});

test("of many settlements at once, one stands", async () => {
  const tool = await toolOf("racing", [{ status: 400 }, { body: { by: "tool" } }]);
  const { run_id, path } = await held(tool);
  const answers = await Promise.all(
    Array.from({ length: 18 }, (_, n) => {
      const [end, body] = [["redeliver", undefined], ["resolve", { result: { by: "hand" } }], ["discard", {}]][n % 3];
      return world.dev.post(`${path}/${end}`, body);
    }),
  );
  const taken = answers.filter(({ status }) => status === 200);
  assert.equal(taken.length, 1, answers.map(({ status }) => status).join());
  assert.ok(answers.every(({ status }) => status === 200 || status === 409));
  const winner = taken[0].json.status;
  for (const { status, json } of answers) if (status === 409) assert.equal(json.dead_letter_status, winner);
  const run = await world.dev.untilRun(run_id);
  assert.equal(run.status, winner === "discarded" ? "failed" : "completed");
  assert.equal(world.sink.to(`/${tool}`).length, winner === "redelivered" ? 2 : 1);
  await verifyLog(world.dev, run_id);
});

test("a letter of an ended run cannot be settled", async () => {
  const { run_id, path } = await held(unique("nobody"));
  await world.dev.ok("POST", `/v1/runs/${run_id}/cancel`);
  const before = (await verifyLog(world.dev, run_id)).length;
  for (const [end, body] of [["redeliver"], ["resolve", { result: 1 }], ["discard"]]) {
    const answer = await world.dev.post(`${path}/${end}`, body);
    assert.equal(answer.status, 409, answer.text);
  }
  assert.equal((await verifyLog(world.dev, run_id)).length, before);
});

test("several letters hold one run until the last is settled", async () => {
  const steps = ["a", "b", "c"].map((id) => ({ id, depends_on: [], tool: unique("nobody"), arguments: {} }));
  const { run_id } = await world.dev.runToEnd({ plan: { steps } }, "blocked");
  const letters = await until(async () => {
    const found = await world.dev.deadLetters(run_id);
    return found.length === 3 && found;
  });
  for (const [place, letter] of letters.entries()) {
    await world.dev.ok("POST", `/v1/dead-letters/${letter.dead_letter_id}/resolve`, { body: { result: letter.step_index } });
    const run = await world.dev.run(run_id);
    assert.equal(run.status, place === 2 ? "completed" : "blocked");
    assert.equal(run.waiting_for.length, 2 - place);
  }
  await verifyLog(world.dev, run_id);
});

test("letters are listed newest first, by run, reason and status, page by page", async () => {
  const tenant = await world.tenant(unique("letters"));
  const runs = [];
  for (let n = 0; n < 5; n += 1) runs.push(await tenant.runToEnd({ plan: { steps: [{ id: "a", tool: "nobody", arguments: { n } }] } }, "blocked"));
  for (let n = 0; n < 4; n += 1) await tenant.post("/v1/envelopes", { event_type: "no.such", n });
  const listed = async (query) => {
    const items = [];
    for (let cursor = null; ; ) {
      const page = await tenant.ok("GET", `/v1/dead-letters?${query}${cursor === null ? "" : `&cursor=${encodeURIComponent(cursor)}`}`);
      items.push(...page.items);
      cursor = page.next_cursor;
      if (cursor === null) return items;
    }
  };
  const idsOf = (items) => items.map(({ dead_letter_id }) => dead_letter_id);
  await until(async () => (await listed("limit=200")).length === 9, { what: "nine letters are listed" });
  const all = idsOf(await listed("limit=200"));
  assert.equal(new Set(all).size, 9);
  for (const limit of [1, 2, 4, 9]) assert.deepEqual(idsOf(await listed(`limit=${limit}`)), all, `limit ${limit}`);
  const times = (await listed("limit=200")).map(({ created_at }) => created_at);
  assert.deepEqual(times, times.toSorted().reverse());
  assert.equal((await listed("reason=unknown_tool&limit=2")).length, 5);
  assert.equal((await listed("reason=invalid_envelope&limit=3")).length, 4);
  assert.equal((await listed("reason=outcome_unknown")).length, 0);
  const [first] = await listed(`run_id=${runs[2].run_id}`);
  assert.deepEqual(first.envelope.payload.arguments, { n: 2 });
  await tenant.ok("POST", `/v1/dead-letters/${first.dead_letter_id}/discard`);
  assert.deepEqual(idsOf(await listed("status=discarded")), [first.dead_letter_id]);
  assert.equal((await listed("status=open&limit=3")).length, 8);
  assert.deepEqual(await listed(`run_id=${runs[2].run_id}&status=open`), []);
});

test("a letter stays as it is through a restart", async () => {
  const tool = await toolOf("restarted", [{ status: 400 }, { body: { ok: 1 } }]);
  const { run_id, path, letter } = await held(tool, { n: 18 });
  const text = (await world.dev.get(path)).text;
  await world.restart();
  assert.equal((await world.dev.get(path)).text, text);
  assert.deepEqual(await openLetter(run_id), letter);
  await world.dev.ok("POST", `${path}/redeliver`);
  assert.deepEqual((await world.dev.untilRun(run_id)).output, { ok: 1 });
  assert.equal(world.sink.to(`/${tool}`).length, 2);
});
