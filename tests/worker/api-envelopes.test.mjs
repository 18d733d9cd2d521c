// Envelopes: an agent outside decides, one bad one among many, and bad messages in the queues.

import assert from "node:assert/strict";
import test from "node:test";
import { schemasOf } from "./support/contract.mjs";
import { eventKey, rawAt } from "./support/json.mjs";
import { logTexts, typesOf, verifyLog } from "./support/log.mjs";
import { unique, worldOfFile } from "./support/runtime.mjs";
import { until } from "./support/until.mjs";

const world = worldOfFile();
const UUID = "0192f3c4a5b67c8d9e0f112233445566";

async function toolOf(stem, answers, more = {}) {
  const name = unique(stem);
  if (answers) world.sink.on(`/${name}`, answers);
  await world.dev.putTool(name, { description: stem, http: { url: `${world.sink.url}/${name}` }, ...more });
  return name;
}
async function outside(tools, more = {}) {
  const agent = unique("outside");
  await world.dev.putAgent(agent, { planner: { kind: "external" }, tools, ...more });
  return (await world.dev.startRun({ agent })).run_id;
}
const requested = (run_id, step_index, tool, args = {}, more = {}) => ({ schema_version: "1", event_type: "tool.requested", run_id, step_index, payload: { tool, arguments: args }, ...more });
const completed = (run_id, output) => ({ schema_version: "1", event_type: "plan.completed", run_id, step_index: null, payload: { output } });
const send = (body, options) => world.dev.post("/v1/envelopes", body, options);
const stepDone = (run_id, index) => until(async () => (await world.dev.run(run_id)).steps[index]?.status === "completed", { what: `step ${index} of ${run_id}` });

test("an agent outside drives its run to the end", async () => {
  const schemas = schemasOf(world.anonymous);
  const quote = await toolOf("quote", { body: { price: 18446744073709551615n.toString() } });
  const charge = await toolOf("charge", ({ json }) => ({ body: { charged: json.amount } }));
  const run_id = await outside([quote, charge]);
  const idle = await world.dev.run(run_id);
  assert.deepEqual(idle.steps, []);
  assert.ok(!["completed", "failed"].includes(idle.status));

  const first = await send(requested(run_id, 0, quote, { part: "x" }));
  assert.equal(first.status, 202);
  await schemas.check("accepted-envelopes", first.json);
  assert.deepEqual(first.json.rejected, []);
  const [accepted] = first.json.accepted;
  assert.deepEqual([accepted.run_id, accepted.step_index], [run_id, 0]);
  assert.equal(accepted.idempotency_key, eventKey(run_id, 0, JSON.stringify({ tool: quote, arguments: { part: "x" } })));
  assert.match(accepted.event_id, /^evt_[0-9a-f]{32}$/);
  await stepDone(run_id, 0);
  await send(requested(run_id, 1, charge, { amount: 5 }));
  await stepDone(run_id, 1);
  const between = await world.dev.run(run_id);
  assert.deepEqual(between.steps.map(({ result }) => result), [{ price: "18446744073709551615" }, { charged: 5 }]);
  assert.equal((await send(completed(run_id, { order: 7 }))).status, 202);
  const run = await world.dev.untilRun(run_id);
  assert.deepEqual([run.status, run.output], ["completed", { order: 7 }]);
  assert.deepEqual([quote, charge].map((name) => world.sink.to(`/${name}`).length), [1, 1]);
  assert.equal(world.sink.to(`/${quote}`)[0].key, accepted.idempotency_key);
  const entries = await verifyLog(world.dev, run_id);
  for (const type of ["tool.requested", "tool.completed", "plan.completed", "run.completed"]) assert.ok(typesOf(entries).includes(type), type);
});

test("an agent outside can give up, and its run fails with what it said", async () => {
  const run_id = await outside([]);
  for (const payload of [{}, { message: "" }, { message: 1 }, { message: "x", more: 1 }]) {
    assert.equal((await send({ event_type: "plan.failed", run_id, step_index: null, payload })).status, 422);
  }
  await send({ event_type: "plan.failed", run_id, step_index: null, payload: { message: "no vendor é" } });
  const run = await world.dev.untilRun(run_id);
  assert.equal(run.status, "failed");
  assert.match(run.error.message, /no vendor é/);
  await verifyLog(world.dev, run_id);
});

test("a plan that is done waits for the steps that were asked for", async () => {
  let release;
  const gate = new Promise((resolve) => {
    release = resolve;
  });
  const slow = await toolOf("slow", async () => {
    await gate;
    return { body: { late: true } };
  });
  const run_id = await outside([slow]);
  const answer = await send([requested(run_id, 0, slow), completed(run_id, "done")]);
  assert.equal(answer.json.accepted.length, 2);
  await until(() => world.sink.to(`/${slow}`).length === 1);
  assert.ok(!["completed", "failed"].includes((await world.dev.run(run_id)).status));
  assert.equal((await send(requested(run_id, 1, slow))).status, 422, "the planner has said that it is done");
  release();
  const run = await world.dev.untilRun(run_id);
  assert.deepEqual([run.status, run.output, run.steps[0].result], ["completed", "done", { late: true }]);
});

test("a known envelope once more changes nothing, one that differs is refused", async () => {
  const tool = await toolOf("again");
  const run_id = await outside([tool]);
  const envelope = requested(run_id, 0, tool, { n: 1 });
  const answers = await Promise.all(Array.from({ length: 10 }, () => send(envelope)));
  assert.ok(answers.every(({ status }) => status === 202), answers.map(({ text }) => text).join("\n"));
  assert.equal(new Set(answers.map(({ json }) => json.accepted[0].idempotency_key)).size, 1);
  await stepDone(run_id, 0);
  assert.equal((await send(envelope)).status, 202);
  assert.equal(world.sink.to(`/${tool}`).length, 1);
  for (const other of [requested(run_id, 0, tool, { n: 2 }), requested(run_id, 2, tool), requested(run_id, 5, tool)]) {
    assert.equal((await send(other)).status, 422);
  }
  assert.equal((await send(completed(run_id, 1))).status, 202);
  await world.dev.untilRun(run_id);
  assert.equal((await send(envelope)).status, 202, "it is known, whatever became of its run");
  const late = await send(requested(run_id, 1, tool));
  assert.equal(late.status, 422);
  assert.deepEqual(late.json.errors.map(({ pointer }) => pointer), ["/run_id"]);
  assert.equal(world.sink.to(`/${tool}`).length, 1);
  const entries = await verifyLog(world.dev, run_id);
  assert.equal(typesOf(entries).filter((type) => type === "tool.requested").length, 1);
});

test("what an envelope gets wrong is refused with its place, kept, and touches no run", async () => {
  const tool = await toolOf("wrong");
  const run_id = await outside([tool]);
  const good = requested(run_id, 0, tool);
  const key = eventKey(run_id, 0, JSON.stringify(good.payload));
  const before = (await logTexts(world.dev, run_id)).join();
  for (const [more, pointer] of [
    [{ schema_version: "2" }, "/schema_version"],
    [{ schema_version: 1 }, "/schema_version"],
    [{ event_type: undefined }, "/event_type"],
    [{ event_type: "tool.asked" }, "/event_type"],
    [{ event_type: "tool.completed", payload: { attempt: 1, result: 1 } }, "/event_type"],
    [{ event_type: "run.completed", payload: { output: 1 } }, "/event_type"],
    [{ run_id: undefined }, "/run_id"],
    [{ run_id: "run_1" }, "/run_id"],
    [{ run_id: run_id.toUpperCase() }, "/run_id"],
    [{ run_id: `run_${UUID}` }, "/run_id"],
    [{ step_index: -1 }, "/step_index"],
    [{ step_index: "0" }, "/step_index"],
    [{ step_index: 0.5 }, "/step_index"],
    [{ step_index: null }, "/step_index"],
    [{ step_index: 1 }, "/step_index"],
    [{ payload: undefined }, "/payload"],
    [{ payload: "text" }, "/payload"],
    [{ payload: { tool } }, "/payload/arguments"],
    [{ payload: { arguments: {} } }, "/payload/tool"],
    [{ payload: { tool, arguments: "{}" } }, "/payload/arguments"],
    [{ payload: { tool, arguments: null } }, "/payload/arguments"],
    [{ payload: { tool, arguments: {}, more: 1 } }, "/payload/more"],
    [{ payload: { tool: "A b", arguments: {} } }, "/payload/tool"],
    [{ typo: 1 }, "/typo"],
    [{ event_id: "evt_1" }, "/event_id"],
    [{ trace_id: "0".repeat(32) }, "/trace_id"],
    [{ tenant_id: "somebody" }, "/tenant_id"],
    [{ timestamp: "yesterday" }, "/timestamp"],
    [{ idempotency_key: "short" }, "/idempotency_key"],
    [{ idempotency_key: key.replace(/^./, (digit) => (digit === "0" ? "1" : "0")) }, "/idempotency_key"],
  ]) {
    const answer = await send({ ...good, ...more });
    const what = JSON.stringify(more);
    assert.equal(answer.status, 422, `${what}: ${answer.text}`);
    assert.equal(answer.json.type, "/problems/invalid-envelope");
    assert.ok(answer.json.errors.some((error) => error.pointer === pointer), `${what}: ${answer.text}`);
    const [{ index, dead_letter_id, errors }] = answer.json.rejected;
    assert.equal(index, 0);
    assert.deepEqual(errors, answer.json.errors);
    const letter = await world.dev.ok("GET", `/v1/dead-letters/${dead_letter_id}`);
    assert.deepEqual([letter.reason, letter.status], ["invalid_envelope", "open"]);
    assert.deepEqual(letter.envelope, JSON.parse(JSON.stringify({ ...good, ...more })), "kept as it came");
    assert.deepEqual(letter.errors, errors);
  }
  for (const odd of ["7", '"text"', "null", "true"]) {
    const answer = await send(odd);
    assert.equal(answer.status, 422, odd);
    assert.ok(answer.json.rejected[0].dead_letter_id, odd);
  }
  assert.equal((await logTexts(world.dev, run_id)).join(), before);
  // What may be left out, or given rightly.
  const { trace_id } = await world.dev.run(run_id);
  const full = { ...good, event_id: `evt_${UUID}`, tenant_id: "dev", trace_id, timestamp: "2026-12-01T09:30:00+01:00", idempotency_key: key };
  const answer = await send(full);
  assert.equal(answer.status, 202, answer.text);
  assert.equal(answer.json.accepted[0].event_id, `evt_${UUID}`);
  await stepDone(run_id, 0);
});

test("a run with a plan of its own takes no envelopes", async () => {
  const tool = await toolOf("planned");
  const { run_id } = await world.dev.startRun({ plan: { steps: [{ id: "nap", sleep: "P1D" }, { id: "a", tool, arguments: {} }] } });
  for (const envelope of [requested(run_id, 0, tool), requested(run_id, 1, tool), requested(run_id, 2, tool), completed(run_id, 1), { event_type: "plan.failed", run_id, step_index: null, payload: { message: "x" } }]) {
    assert.equal((await send(envelope)).status, 422, JSON.stringify(envelope));
  }
  assert.equal((await world.dev.run(run_id)).status, "waiting");
  assert.equal(world.sink.to(`/${tool}`).length, 0);
});

test("a tool that the agent does not have is a dead letter of its step", async () => {
  const known = await toolOf("known");
  const unlisted = await toolOf("unlisted");
  const run_id = await outside([known]);
  for (const [index, tool] of [unlisted, unique("no-such")].entries()) {
    assert.equal((await send(requested(run_id, index, tool))).status, 202);
    const letters = await until(async () => {
      const found = await world.dev.deadLetters(run_id);
      return found.length === index + 1 && found;
    });
    assert.deepEqual([letters[0].reason, letters[0].step_index], ["unknown_tool", index]);
  }
  assert.equal((await world.dev.run(run_id)).status, "blocked");
  assert.equal(world.sink.to(`/${unlisted}`).length, 0);
  for (const letter of await world.dev.deadLetters(run_id)) {
    await world.dev.ok("POST", `/v1/dead-letters/${letter.dead_letter_id}/redeliver`, { body: { payload: { tool: known, arguments: {} } } });
  }
  await send(completed(run_id, null));
  assert.equal((await world.dev.untilRun(run_id)).status, "completed");
  assert.equal(world.sink.to(`/${known}`).length, 2);
  await verifyLog(world.dev, run_id);
});

test("an agent's limit of steps holds for one outside", async () => {
  const tool = await toolOf("limited");
  const run_id = await outside([tool], { limits: { max_steps: 2 } });
  const answer = await send([0, 1, 2, 3].map((index) => requested(run_id, index, tool)));
  assert.deepEqual([answer.json.accepted.length, answer.json.rejected.map(({ index }) => index)], [2, [2, 3]]);
  await until(() => world.sink.to(`/${tool}`).length === 2);
  await send(completed(run_id, 1));
  assert.equal((await world.dev.untilRun(run_id)).status, "completed");
  assert.equal(world.sink.to(`/${tool}`).length, 2);
});

test("of many envelopes the good ones are taken, and each bad one is named", async () => {
  const tool = await toolOf("many");
  const runs = await Promise.all(Array.from({ length: 9 }, () => outside([tool])));
  const batch = runs.flatMap((run_id) => [requested(run_id, 0, tool, { run_id }), completed(run_id, { run_id })]);
  const bad = [{ index: 3, envelope: 7 }, { index: 8, envelope: { event_type: "no.such" } }, { index: 15, envelope: requested(`run_${UUID}`, 0, tool) }];
  for (const { index, envelope } of bad) batch.splice(index, 0, envelope);
  const answer = await send(batch);
  assert.equal(answer.status, 202, answer.text);
  assert.equal(answer.json.accepted.length, 18);
  assert.deepEqual(answer.json.accepted.map(({ run_id }) => run_id), runs.flatMap((id) => [id, id]), "in the order of the request");
  assert.deepEqual(answer.json.rejected.map(({ index }) => index), bad.map(({ index }) => index));
  for (const { dead_letter_id, errors } of answer.json.rejected) {
    assert.ok(errors.length > 0);
    assert.equal((await world.dev.ok("GET", `/v1/dead-letters/${dead_letter_id}`)).reason, "invalid_envelope");
  }
  for (const run_id of runs) {
    assert.deepEqual((await world.dev.untilRun(run_id)).output, { run_id });
    await verifyLog(world.dev, run_id);
  }
  assert.equal(world.sink.to(`/${tool}`).length, 9);

  const allBad = await send([{ event_type: "no.such" }, requested(`run_${UUID}`, 0, tool)]);
  assert.equal(allBad.status, 422);
  assert.deepEqual(allBad.json.rejected.map(({ index }) => index), [0, 1]);
  assert.ok(allBad.json.errors.every(({ pointer }) => /^\/[01]/.test(pointer)), allBad.text);
});

test("at most a hundred envelopes at a time", async () => {
  const tool = await toolOf("hundred");
  const run_id = await outside([tool], { limits: { max_steps: 200, max_parallel: 100 } });
  const batch = (count) => Array.from({ length: count }, (_, index) => requested(run_id, index, tool));
  for (const body of [[], batch(101)]) {
    const answer = await send(body);
    assert.equal(answer.status, 422);
    assert.deepEqual(answer.json.errors.map(({ pointer }) => pointer), [""]);
  }
  assert.deepEqual((await world.dev.run(run_id)).steps, []);
  const answer = await send(batch(100));
  assert.deepEqual([answer.status, answer.json.accepted.length], [202, 100]);
  await send(completed(run_id, "all"));
  assert.equal((await world.dev.untilRun(run_id, undefined, { within: 40_000 })).status, "completed");
  assert.equal(world.sink.to(`/${tool}`).length, 100);
  await verifyLog(world.dev, run_id);
});

test("a kept envelope is handed in again, repaired, whole or as it was", async () => {
  const tool = await toolOf("kept");
  const run_id = await outside([tool]);
  const refused = async (envelope) => (await send(envelope)).json.rejected[0].dead_letter_id;
  const letter = (id) => world.dev.ok("GET", `/v1/dead-letters/${id}`);
  const wrongPayload = await refused({ ...requested(run_id, 0, tool), payload: { tool } });
  const again = await world.dev.post(`/v1/dead-letters/${wrongPayload}/redeliver`);
  assert.equal(again.status, 422, "as it was it is as wrong as it was");
  assert.equal((await letter(wrongPayload)).status, "open");
  assert.equal((await world.dev.post(`/v1/dead-letters/${wrongPayload}/resolve`, { result: 1 })).status, 409, "it belongs to no step");
  const repaired = await world.dev.post(`/v1/dead-letters/${wrongPayload}/redeliver`, { payload: { tool, arguments: { n: 1 } } });
  assert.deepEqual([repaired.status, repaired.json.status], [200, "redelivered"]);
  await stepDone(run_id, 0);
  assert.equal((await world.dev.post(`/v1/dead-letters/${wrongPayload}/discard`)).status, 409);
  // An envelope that came too early is right later.
  const early = await refused(requested(run_id, 2, tool));
  await send(requested(run_id, 1, tool));
  assert.equal((await world.dev.post(`/v1/dead-letters/${early}/redeliver`)).status, 200);
  await stepDone(run_id, 2);
  // One that is wrong elsewhere is replaced whole.
  const elsewhere = await refused({ ...requested(run_id, 3, tool), event_type: "tool.asked" });
  assert.equal((await world.dev.post(`/v1/dead-letters/${elsewhere}/redeliver`, { payload: requested(run_id, 3, tool) })).status, 200);
  await stepDone(run_id, 3);
  const discarded = await refused({ event_type: "no.such" });
  const gone = await world.dev.post(`/v1/dead-letters/${discarded}/discard`, { comment: "spam" });
  assert.deepEqual([gone.status, gone.json.status], [200, "discarded"]);
  assert.equal((await world.dev.post(`/v1/dead-letters/${discarded}/discard`)).status, 409);
  assert.equal(world.sink.to(`/${tool}`).length, 4);
  await verifyLog(world.dev, run_id);
});

test("one bad message in a batch of a queue costs the others nothing", async () => {
  const producer = await world.runtime.miniflare.getQueueProducer("WORK");
  const good = async () => {
    const tool = await toolOf("batch");
    const runs = [];
    for (let n = 0; n < 9; n += 1) {
      const { run_id } = await world.dev.startRun({ plan: { steps: [{ id: "nap", sleep: "P1D" }, { id: "a", tool, arguments: { n } }] } });
      runs.push(run_id);
    }
    return { tool, runs };
  };
  const nobody = { schema_version: "1", event_id: `evt_${UUID}`, event_type: "tool.requested", tenant_id: "nobody", trace_id: "1".repeat(32), run_id: `run_${UUID}`, step_index: 0, timestamp: "2026-12-01T00:00:00.000Z", payload: { tool: "x", arguments: {} } };
  nobody.idempotency_key = eventKey(nobody.run_id, 0, JSON.stringify(nobody.payload));
  const wrong = { envelope: { ...nobody, tenant_id: "dev", payload: { no: "tool" }, marker: "wrong-schema" } };
  const bad = ["no JSON at all \u{1f600}", JSON.stringify(wrong), JSON.stringify({ envelope: nobody }), "", "null", "[]", "{}"];
  for (const body of bad) {
    const { tool, runs } = await good();
    // Wakes nine runs, whose messages go into the queue around the bad one.
    await Promise.all([
      ...runs.slice(0, 7).map((id) => world.dev.ok("POST", `/dev/runs/${id}/clock`, { body: { advance: "P2D" } })),
      producer.send(body, { contentType: "text" }),
      ...runs.slice(7).map((id) => world.dev.ok("POST", `/dev/runs/${id}/clock`, { body: { advance: "P2D" } })),
    ]);
    for (const run_id of runs) {
      assert.equal((await world.dev.untilRun(run_id)).status, "completed", body);
      await verifyLog(world.dev, run_id);
    }
    assert.deepEqual(world.sink.to(`/${tool}`).map(({ json }) => json.n).sort(), [0, 1, 2, 3, 4, 5, 6, 7, 8], body);
  }
  const kept = await until(async () => {
    const { items } = await world.dev.ok("GET", "/v1/dead-letters?reason=invalid_envelope&limit=200");
    return items.find(({ envelope }) => envelope?.marker === "wrong-schema");
  }, { what: "the message of a wrong form is kept" });
  assert.deepEqual(kept.envelope, wrong.envelope, "as it came");
  // What names no tenant that exists is on the operator's desk, with its bytes.
  const desk = await until(async () => {
    const { items } = await world.operator.ok("GET", "/v1/dead-letters?limit=200");
    return items.length >= 6 && items;
  }, { what: "the other messages are kept" });
  const envelopes = desk.map(({ envelope }) => JSON.stringify(envelope));
  for (const body of [JSON.stringify(bad[0]), JSON.stringify(nobody), '""', "null", "[]", "{}"]) assert.ok(envelopes.includes(body), `${body} is not among ${envelopes}`);
  const [one] = desk;
  const path = `/v1/dead-letters/${one.dead_letter_id}`;
  assert.equal((await world.dev.get(path)).status, 404, "it is no tenant's");
  assert.equal((await world.operator.post(`${path}/discard`, { comment: "seen" })).json.status, "discarded");
});

test("a panic in the middle of a batch costs no second effect", async () => {
  const tool = await toolOf("panicking");
  const runs = [];
  for (let n = 0; n < 10; n += 1) {
    const { run_id } = await world.dev.startRun({ plan: { steps: [{ id: "nap", sleep: "P1D" }, { id: "a", tool, arguments: { n } }] } });
    runs.push(run_id);
  }
  await world.dev.ok("POST", "/dev/failpoints", { body: { name: "consumer.received", action: "panic", times: 1 } });
  try {
    await Promise.all(runs.map((id) => world.dev.ok("POST", `/dev/runs/${id}/clock`, { body: { advance: "P2D" } })));
    for (const run_id of runs) {
      assert.equal((await world.dev.untilRun(run_id, undefined, { within: 40_000 })).status, "completed");
      await verifyLog(world.dev, run_id);
    }
  } finally {
    await world.dev.ok("DELETE", "/dev/failpoints");
  }
  assert.deepEqual(world.sink.to(`/${tool}`).map(({ json }) => json.n).sort(), [0, 1, 2, 3, 4, 5, 6, 7, 8, 9]);
  assert.ok(world.lines.some(({ text }) => text.startsWith("panic: ")), "the failpoint was passed");
  assert.equal((await world.dev.get("/healthz")).status, 200);
});
