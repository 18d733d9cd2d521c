// The client's Idempotency-Key: the same request once, whatever happens, and nobody else's.

import assert from "node:assert/strict";
import test from "node:test";
import { unique, worldOfFile } from "./support/runtime.mjs";
import { verifyLog } from "./support/log.mjs";
import { until } from "./support/until.mjs";

const world = worldOfFile();
const SLEEP = { steps: [{ id: "nap", sleep: "P1D" }] };

async function toolOf(client, stem, answers) {
  const name = unique(stem);
  if (answers) world.sink.on(`/${name}`, answers);
  await client.putTool(name, { description: stem, http: { url: `${world.sink.url}/${name}` } });
  return name;
}

/** A run that a dead letter holds: its id and the letter's. */
async function heldRun(client) {
  const { run_id } = await client.runToEnd({ plan: { steps: [{ id: "a", tool: unique("nothing"), arguments: {} }] } }, "blocked");
  return { run_id, letter: (await client.deadLetters(run_id))[0].dead_letter_id };
}

function assertReused(answer, what) {
  assert.equal(answer.status, 422, `${what}: ${answer.text}`);
  assert.equal(answer.json.type, "/problems/idempotency-key-reused", what);
}

test("a repeated request is answered as the first was, and is carried out once", async () => {
  const tool = await toolOf(world.dev, "once");
  const body = { plan: { steps: [{ id: "a", tool, arguments: { n: 1 } }] }, tags: { t: "x" } };
  const key = unique("key");
  const first = await world.dev.post("/v1/runs", body, { idempotencyKey: key });
  assert.equal(first.status, 202);
  assert.equal(first.replayed, null);
  await world.dev.untilRun(first.json.run_id);
  for (const sent of [key, `"${key}"`]) {
    const again = await world.dev.post("/v1/runs", body, { idempotencyKey: sent });
    assert.equal(again.status, 202);
    assert.equal(again.replayed, "true");
    assert.equal(again.text, first.text, "the same body, byte for byte");
    assert.equal(again.location, first.location);
  }
  assert.equal(world.sink.to(`/${tool}`).length, 1);
  assertReused(await world.dev.post("/v1/runs", { ...body, tags: { t: "y" } }, { idempotencyKey: key }), "another body");
  const other = await world.dev.post("/v1/runs", body, { idempotencyKey: `${key}x` });
  assert.notEqual(other.json.run_id, first.json.run_id);
});

test("a key answers its run when that has failed, and when its agent's definition has changed since", async () => {
  const broken = await toolOf(world.dev, "failed", { status: 400 });
  const body = { plan: { steps: [{ id: "a", tool: broken, arguments: {}, on_failure: "fail" }] } };
  const key = unique("key");
  const { run_id } = await world.dev.startRun(body, { idempotencyKey: key });
  assert.equal((await world.dev.untilRun(run_id)).status, "failed");
  const again = await world.dev.post("/v1/runs", body, { idempotencyKey: key });
  assert.deepEqual([again.status, again.json.run_id, again.replayed], [202, run_id, "true"]);
  assert.equal(world.sink.to(`/${broken}`).length, 1);

  const agent = unique("changing");
  await world.dev.putAgent(agent, { planner: { kind: "plan", ...SLEEP } });
  const agentKey = unique("key");
  const first = await world.dev.post("/v1/runs", { agent }, { idempotencyKey: agentKey });
  await world.dev.putAgent(agent, { planner: { kind: "external" } });
  const second = await world.dev.post("/v1/runs", { agent }, { idempotencyKey: agentKey });
  assert.equal(second.text, first.text);
  await world.dev.putAgent(agent, { planner: { kind: "external" }, input_schema: { type: "string" } });
  const third = await world.dev.post("/v1/runs", { agent }, { idempotencyKey: agentKey });
  assert.equal(third.status, 202, `the agent takes other inputs now, the answer was given before: ${third.text}`);
  assert.equal(third.text, first.text);
  await world.dev.delete(`/v1/agents/${agent}`);
  const fourth = await world.dev.post("/v1/runs", { agent }, { idempotencyKey: agentKey });
  assert.equal(fourth.status, 202, `the agent was deleted, the answer was given before: ${fourth.text}`);
  assert.equal(fourth.text, first.text);
});

test("a key belongs to one tenant", async () => {
  const tenants = [await world.tenant(unique("key")), await world.tenant(unique("key"))];
  // Ids that could blur when they are joined with a key.
  const blurred = [];
  for (const id of ["blur.a", "blur.a-b", "blur", "blur.b"]) blurred.push(await world.tenant(id));
  for (const [one, two] of [tenants, blurred.slice(0, 2), blurred.slice(2)]) {
    const paths = {};
    for (const client of [one, two]) {
      const path = unique("wall");
      paths[client.key] = path;
      await client.putTool("wall", { description: "x", http: { url: `${world.sink.url}/${path}` } });
    }
    for (const key of ["1", "telegram:p1:100", "b-1", "a.1", "-b:1", ".a:1"]) {
      const body = (secret) => ({ plan: { steps: [{ id: "a", tool: "wall", arguments: { secret } }] }, input: { secret } });
      const ours = await one.post("/v1/runs", body("alpha"), { idempotencyKey: key });
      const theirs = await two.post("/v1/runs", body("beta"), { idempotencyKey: key });
      assert.deepEqual([ours.status, theirs.status, theirs.replayed], [202, 202, null], key);
      assert.notEqual(theirs.json.run_id, ours.json.run_id);
      assert.doesNotMatch(theirs.text, /alpha/);
      // The very body of the other tenant is another request of one's own.
      assertReused(await two.post("/v1/runs", body("alpha"), { idempotencyKey: key }), key);
      assert.equal((await two.post("/v1/runs", body("beta"), { idempotencyKey: key })).json.run_id, theirs.json.run_id);
      assert.equal((await two.get(`/v1/runs/${ours.json.run_id}`)).status, 404);
      await one.untilRun(ours.json.run_id);
      await two.untilRun(theirs.json.run_id);
    }
    const secrets = (client) => world.sink.to(`/${paths[client.key]}`).map(({ json }) => json.secret);
    assert.deepEqual(secrets(one), Array(6).fill("alpha"));
    assert.deepEqual(secrets(two), Array(6).fill("beta"));
  }
  // Envelopes and settlements too.
  const [one, two] = tenants;
  const external = async (client) => {
    await client.putAgent("outside", { planner: { kind: "external" } });
    return (await client.startRun({ agent: "outside" })).run_id;
  };
  const done = (run_id, output) => ({ event_type: "plan.completed", run_id, step_index: null, payload: { output } });
  const runs = [await external(one), await external(two)];
  const a = await one.post("/v1/envelopes", done(runs[0], "alpha"), { idempotencyKey: "1" });
  const b = await two.post("/v1/envelopes", done(runs[1], "beta"), { idempotencyKey: "1" });
  assert.deepEqual([a.status, b.status, b.replayed], [202, 202, null]);
  assert.equal((await two.untilRun(runs[1])).output, "beta");
  const held = [await heldRun(one), await heldRun(two)];
  for (const [index, client] of tenants.entries()) {
    const answer = await client.post(`/v1/dead-letters/${held[index].letter}/resolve`, { result: index }, { idempotencyKey: "1" });
    assert.deepEqual([answer.status, answer.replayed], [200, null]);
    assert.equal((await client.untilRun(held[index].run_id)).output, index);
  }
});

test("another body is a mismatch at all times, the same body the same run", async () => {
  let release;
  const busy = new Promise((resolve) => {
    release = resolve;
  });
  const tool = await toolOf(world.dev, "busy", async () => {
    await busy;
    return { body: {} };
  });
  const body = (amount) => ({ plan: { steps: [{ id: "a", tool, arguments: { amount } }] } });
  const idempotencyKey = unique("key");
  const first = await world.dev.post("/v1/runs", body(10), { idempotencyKey });
  assert.equal(first.status, 202);
  await until(() => world.sink.to(`/${tool}`).length === 1);
  for (const when of ["while it runs", "after it has ended"]) {
    assertReused(await world.dev.post("/v1/runs", body(11), { idempotencyKey }), when);
    const same = await world.dev.post("/v1/runs", body(10), { idempotencyKey });
    assert.deepEqual([same.status, same.json.run_id], [202, first.json.run_id], when);
    release();
    await world.dev.untilRun(first.json.run_id);
  }
  assert.deepEqual(world.sink.to(`/${tool}`).map(({ json }) => json.amount), [10]);
});

test("a mismatch is told before the run is born, and the same body brings it to life", async () => {
  const tool = await toolOf(world.dev, "unborn");
  const body = (amount) => ({ plan: { steps: [{ id: "a", tool, arguments: { amount } }] } });
  const idempotencyKey = unique("key");
  await world.dev.ok("POST", "/dev/failpoints", { body: { name: "front.after_commit", action: "error", times: 1 } });
  const lost = await world.dev.post("/v1/runs", body(10), { idempotencyKey });
  await world.dev.ok("DELETE", "/dev/failpoints");
  assert.equal(lost.status, 503, lost.text);
  assert.ok(Number(lost.headers.get("retry-after")) > 0);
  assertReused(await world.dev.post("/v1/runs", body(11), { idempotencyKey }), "after a lost answer");
  const again = await world.dev.post("/v1/runs", body(10), { idempotencyKey });
  assert.equal(again.status, 202);
  await world.dev.ok("POST", "/dev/sweep");
  const run = await world.dev.untilRun(again.json.run_id, undefined, { within: 45_000 });
  assert.equal(run.status, "completed");
  assert.equal(world.sink.to(`/${tool}`).length, 1);
  await verifyLog(world.dev, run.run_id);
});

test("of fifty at once, one run comes to be, and only its body is answered with it", async () => {
  const tool = await toolOf(world.dev, "fifty");
  const body = (amount) => ({ plan: { steps: [{ id: "a", tool, arguments: { amount } }] } });
  for (const round of [1, 2, 3]) {
    const idempotencyKey = unique("key");
    const answers = await Promise.all(
      Array.from({ length: 50 }, async (_, n) => {
        const amount = round * 100 + (n % 2);
        return { amount, answer: await world.dev.post("/v1/runs", body(amount), { idempotencyKey }) };
      }),
    );
    const taken = answers.filter(({ answer }) => answer.status === 202);
    const ids = new Set(taken.map(({ answer }) => answer.json.run_id));
    const winners = new Set(taken.map(({ amount }) => amount));
    assert.deepEqual([ids.size, winners.size], [1, 1], `round ${round}`);
    assert.equal(taken.length, 25, answers.map(({ answer }) => answer.status).join());
    assert.equal(new Set(taken.map(({ answer }) => answer.text)).size, 1);
    for (const { amount, answer } of answers) if (!winners.has(amount)) assertReused(answer, `${amount}`);
    const [run_id] = ids;
    await world.dev.untilRun(run_id);
    const calls = world.sink.to(`/${tool}`).filter(({ json }) => Math.floor(json.amount / 100) === round);
    assert.deepEqual(calls.map(({ json }) => json.amount), [...winners]);
    await verifyLog(world.dev, run_id);
  }
});

test("bodies that mean the same are the same, others are not", async () => {
  const start = (input, idempotencyKey) => world.dev.post("/v1/runs", `{"plan":${JSON.stringify(SLEEP)},"input":${input}}`, { idempotencyKey });
  const idempotencyKey = unique("key");
  const first = await start('{"a":1,"b":{"c":[1,2],"d":null}}', idempotencyKey);
  assert.equal(first.status, 202);
  for (const same of ['{ "b":{"d":null,"c":[1,2]},"a":1}', '{"a":1,\n"b":{"c":[1,2],"d":null}}', '{"\\u0061":1,"b":{"c":[1,2],"d":null}}']) {
    const answer = await start(same, idempotencyKey);
    assert.deepEqual([answer.status, answer.json.run_id], [202, first.json.run_id], same);
  }
  const members = await world.dev.post("/v1/runs", `{"input":{"b":{"c":[1,2],"d":null},"a":1},"plan":${JSON.stringify(SLEEP)}}`, { idempotencyKey });
  assert.equal(members.json.run_id, first.json.run_id);
  for (const other of [
    '{"a":1,"b":{"c":[2,1],"d":null}}',
    '{"a":1,"b":{"c":[1,2]}}',
    '{"a":"1","b":{"c":[1,2],"d":null}}',
    '{"a":1,"b":{"c":[1,2],"d":null},"e":null}',
    '{"a":true,"b":{"c":[1,2],"d":null}}',
    '{"a":2,"b":{"c":[1,2],"d":null}}',
  ]) {
    assertReused(await start(other, idempotencyKey), other);
  }
  // Digits beyond a double are meaning as well.
  const digits = unique("key");
  const big = await start('{"id":9007199254740993}', digits);
  assert.equal(big.status, 202);
  assertReused(await start('{"id":9007199254740992}', digits), "a neighbouring number");
  assert.equal((await start('{"id":9007199254740993}', digits)).json.run_id, big.json.run_id);
});

test("a step's key does not change with the order of its arguments' members", async () => {
  const tool = await toolOf(world.dev, "reordered");
  const agent = unique("outside");
  await world.dev.putAgent(agent, { planner: { kind: "external" }, tools: [tool] });
  const { run_id } = await world.dev.startRun({ agent });
  const envelope = (args) => `{"event_type":"tool.requested","run_id":"${run_id}","step_index":0,"payload":{"tool":"${tool}","arguments":${args}}}`;
  const sent = [];
  for (const args of ['{"a":1,"b":{"c":1,"d":2}}', '{"b":{"d":2,"c":1},"a":1}', '{"a":1, "b":{"c":1, "d":2}}']) {
    const answer = await world.dev.post("/v1/envelopes", envelope(args));
    assert.equal(answer.status, 202, answer.text);
    sent.push(answer.json.accepted[0].idempotency_key);
  }
  assert.equal(new Set(sent).size, 1);
  assert.equal((await world.dev.post("/v1/envelopes", envelope('{"a":2,"b":{"c":1,"d":2}}'))).status, 422);
  await until(async () => (await world.dev.run(run_id)).steps[0]?.status === "completed");
  assert.deepEqual(world.sink.to(`/${tool}`).map(({ key }) => key), [sent[0]]);
});

test("a key is good for one route, and each settlement for one letter", async () => {
  const key = unique("key");
  const one = await heldRun(world.dev);
  const two = await heldRun(world.dev);
  const resolve = (letter, result) => world.dev.post(`/v1/dead-letters/${letter}/resolve`, { result }, { idempotencyKey: key });
  const first = await resolve(one.letter, 1);
  assert.deepEqual([first.status, first.replayed], [200, null]);
  const other = await resolve(two.letter, 1);
  assert.deepEqual([other.status, other.replayed, other.json.dead_letter_id], [200, null, two.letter]);
  const again = await resolve(one.letter, 1);
  assert.deepEqual([again.status, again.replayed], [200, "true"]);
  assert.equal(again.json.dead_letter_id, one.letter);
  assertReused(await resolve(one.letter, 2), "another result");
  assert.equal((await world.dev.post(`/v1/dead-letters/${one.letter}/resolve`, { result: 1 })).status, 409, "without the key it is a second settlement");
  const run = await world.dev.post("/v1/runs", { plan: SLEEP }, { idempotencyKey: key });
  assert.deepEqual([run.status, run.replayed], [202, null]);
  const cancel = () => world.dev.post(`/v1/runs/${run.json.run_id}/cancel`, {}, { idempotencyKey: key });
  const cancelled = await cancel();
  assert.deepEqual([cancelled.status, cancelled.replayed], [200, null]);
  const cancelledAgain = await cancel();
  assert.deepEqual([cancelledAgain.status, cancelledAgain.replayed], [200, "true"]);
});

test("envelopes under a key are answered again, and a refusal is not kept twice", async () => {
  const idempotencyKey = unique("key");
  const bad = { event_type: "tool.requested", run_id: "run_nothing", payload: {} };
  const first = await world.dev.post("/v1/envelopes", bad, { idempotencyKey });
  const second = await world.dev.post("/v1/envelopes", bad, { idempotencyKey });
  assert.deepEqual([first.status, second.status, second.replayed], [422, 422, "true"]);
  assert.equal(second.text, first.text);
  assertReused(await world.dev.post("/v1/envelopes", { ...bad, step_index: 1 }, { idempotencyKey }), "another envelope");
  const letters = (await world.dev.ok("GET", "/v1/dead-letters?reason=invalid_envelope&limit=200")).items;
  const id = first.json.rejected[0].dead_letter_id;
  assert.equal(letters.filter(({ dead_letter_id }) => dead_letter_id === id).length, 1);
});

test("tenants and their keys are made once under a key", async () => {
  const idempotencyKey = unique("key");
  const tenant_id = unique("made-once");
  const make = (id) => world.operator.post("/v1/tenants", { tenant_id: id }, { idempotencyKey });
  const first = await make(tenant_id);
  const second = await make(tenant_id);
  assert.deepEqual([first.status, second.status, second.replayed], [201, 201, "true"]);
  assert.equal(second.text, first.text);
  assertReused(await make(`${tenant_id}-x`), "another tenant");
  const path = `/v1/tenants/${tenant_id}/keys`;
  const key = await world.operator.post(path, { name: "a", role: "admin" }, { idempotencyKey });
  const again = await world.operator.post(path, { name: "a", role: "admin" }, { idempotencyKey });
  assert.deepEqual([key.status, again.status, again.replayed], [201, 201, "true"]);
  assert.equal(again.text, key.text);
  assert.equal((await world.anonymous.with(again.json.key).get("/v1/runs")).status, 200);
  assertReused(await world.operator.post(path, { name: "b", role: "admin" }, { idempotencyKey }), "another key");
});

test("a key that cannot be one is refused, and the longest is kept", async () => {
  const start = (idempotencyKey) => world.dev.post("/v1/runs", { plan: SLEEP }, { idempotencyKey });
  for (const key of ["", '""', '"abc', "k".repeat(256)]) {
    const answer = await start(key);
    assert.equal(answer.status, 400, JSON.stringify(key));
    assert.equal(answer.json.type, "/problems/invalid-header");
  }
  for (const key of ["k".repeat(255), "a b", "a/b?c=d&e", "{}", "%00", "__proto__", "../x"]) {
    const first = await start(key);
    const second = await start(key);
    assert.deepEqual([first.status, second.json.run_id], [202, first.json.run_id], key);
  }
});
