// A tool that takes its time says so, and reports later: once, by whatever way, and whatever died meanwhile.

import assert from "node:assert/strict";
import { after, afterEach, before, describe, test } from "node:test";
import { assertOneEffect, assertQuiet, assertRunIsRight, countOf, eachOf } from "./support/checks.mjs";
import { clientOf } from "./support/client.mjs";
import { openapiOf, schemasOf } from "./support/contract.mjs";
import { rawAt } from "./support/json.mjs";
import { lives } from "./support/lives.mjs";
import { typesOf, verifyLog } from "./support/log.mjs";
import { troubleIn, unique } from "./support/runtime.mjs";
import { seamsOf } from "./support/seams.mjs";
import { startSink } from "./support/sink.mjs";
import { blockerOf, standingChecks } from "./support/standing.mjs";
import { until } from "./support/until.mjs";

let world;
before(async () => {
  world = await lives();
});
afterEach(standingChecks(() => world));
after(async () => {
  await world?.end();
  assert.deepEqual(troubleIn((world?.lines ?? []).map((text) => ({ text }))), []);
});

const SOON = { base: "PT0.01S", max_wait: "PT0.01S", jitter: "none" };
const ACCEPTED = { status: 202 };

/** Stores a tool that answers 202 (or as told), and answers its name, which is its path as well. */
async function slowTool(stem, answers = ACCEPTED, more = {}) {
  const name = unique(stem);
  world.sink.on(`/${name}`, answers);
  await world.dev.putTool(name, { http: { method: "POST", url: `${world.sink.url}/${name}` }, retry: { max_attempts: 3, ...SOON }, ...more });
  return name;
}

/** A plan that calls the tool and then goes on. */
const planOf = (tool, more = {}) => ({
  plan: { steps: [{ id: "act", tool, arguments: { tool }, ...more }, { id: "after", emit: { type: "went.on" } }], output: "{{ steps.act.result }}" },
});

/** Waits until a tool was called `times` times, and answers the last call. */
const calledAt = (tool, times = 1) =>
  until(() => world.sink.to(`/${tool}`).length >= times && world.sink.to(`/${tool}`)[times - 1], { what: `${times} calls of ${tool}`, every: 10 });

const awaited = (runId) =>
  until(async () => (await world.dev.run(runId)).waiting_for.some(({ kind }) => kind === "callback"), { what: `${runId} waits for a callback`, every: 10 });

/** Starts a run of one call and waits until its callback is awaited. */
async function startAwaiting(tool, more) {
  const { run_id } = await world.dev.startRun(planOf(tool, more));
  const call = await calledAt(tool);
  await awaited(run_id);
  return { run_id, call };
}

const tokenOf = (call) => call.headers["dormouse-callback"].split("/").at(-1);
/** As the tool does it: without any key. */
const callBack = (call, body, options) => clientOf(world.url, undefined).post(new URL(call.headers["dormouse-callback"]).pathname, body, options);
const succeeded = (result) => ({ status: "succeeded", result });
const failed = (retryable, message = "no stock") => ({ status: "failed", error: { message }, ...(retryable !== undefined && { retryable }) });
const expect = async (answer, status) => {
  const { text, ...rest } = await answer;
  assert.equal(rest.status, status, text);
  return { text, ...rest };
};
const payloads = (log, type) => log.filter(({ event_type }) => event_type === type).map(({ payload }) => payload);

describe("a tool that answered 202", () => {
  test("is waited for at the URL that its call bore, and what it reports there is the result", async () => {
    const { dev, sink } = world;
    const openapi = await openapiOf(dev);
    const schemas = schemasOf(dev);
    const tool = await slowTool("plain");
    const { run_id, call } = await startAwaiting(tool);
    const run = await dev.run(run_id);
    await schemas.check("run", run);
    assert.equal(run.status, "waiting");
    assert.deepEqual([run.steps[0].status, run.steps[0].attempts], ["waiting", 1]);
    const [{ kind, step_index, until: at }] = run.waiting_for;
    assert.deepEqual([run.waiting_for.length, kind, step_index], [1, "callback", 0]);
    const [{ timestamp }] = (await dev.log(run_id)).filter(({ event_type }) => event_type === "wait.started");
    assert.equal(Date.parse(at) - Date.parse(timestamp), 86_400_000, "callback_timeout is P1D unless told otherwise");
    const blocker = await blockerOf(dev, run_id);
    assert.deepEqual([blocker.kind, blocker.step_index, blocker.until, blocker.moving], ["callback", 0, at, false]);
    assert.match(blocker.release, /^POST \/v1\/callbacks\//);

    assert.ok(call.headers["dormouse-callback"].startsWith(`${world.url}/v1/callbacks/`), call.headers["dormouse-callback"]);
    // Looking is no report.
    for (const method of ["GET", "HEAD", "PUT", "DELETE", "OPTIONS"]) {
      const answer = await clientOf(world.url, undefined).call(method, new URL(call.headers["dormouse-callback"]).pathname);
      assert.deepEqual([answer.status, answer.headers.get("allow")], [405, "POST"], method);
    }
    assert.equal((await dev.run(run_id)).status, "waiting");

    const told = await expect(callBack(call, '{"status":"succeeded","result":{"id":18446744073709551617,"rate":1.50,"t":"€ 😀"}}'), 200);
    openapi.check("POST /v1/callbacks/{token}", told);
    assert.deepEqual([told.json.run_id, told.json.step_index], [run_id, 0]);
    const ended = await dev.untilRun(run_id, "completed");
    const text = (await dev.get(`/v1/runs/${run_id}`)).text;
    assert.equal(rawAt(text, "output", "id"), "18446744073709551617");
    assert.equal(rawAt(text, "output", "rate"), "1.50");
    assert.equal(ended.output.t, "€ 😀");
    const log = await verifyLog(dev, run_id);
    const types = typesOf(log);
    assert.ok(types.indexOf("wait.started") < types.indexOf("callback.received"));
    assert.ok(types.indexOf("callback.received") < types.indexOf("tool.completed"));
    assert.deepEqual(payloads(log, "callback.received").map((p) => [p.attempt, p.status]), [[1, "succeeded"]]);
    await assertRunIsRight(dev, sink, run_id, { once: true });
    const again = await expect(callBack(call, succeeded({ id: 1 })), 410);
    openapi.check("POST /v1/callbacks/{token}", again);
    assert.equal(again.json.type, "/problems/callback-gone");
  });

  test("reports once: of twenty reports at the same time one counts, and one sent again with its key is answered again", async () => {
    const { dev } = world;
    const tool = await slowTool("twice");
    const many = await startAwaiting(tool);
    const answers = await Promise.all(Array.from({ length: 20 }, (_, n) => callBack(many.call, n % 2 ? succeeded({ n }) : failed(n % 4 === 0, `${n}`))));
    assert.deepEqual(answers.map(({ status }) => status).sort(), [200, ...Array(19).fill(410)], answers.map(({ text }) => text).join("\n"));
    const won = answers.findIndex(({ status }) => status === 200);
    const log = await dev.log(many.run_id);
    assert.equal(countOf(log, "callback.received"), 1);
    assert.equal(payloads(log, "callback.received")[0].status, won % 2 ? "succeeded" : "failed");
    if (won % 2) assert.deepEqual((await dev.untilRun(many.run_id, "completed")).output, { n: won });
    else await dev.ok("POST", `/v1/runs/${many.run_id}/cancel`);

    const other = await slowTool("keyed");
    const { run_id, call } = await startAwaiting(other);
    const send = (result, idempotencyKey) => callBack(call, succeeded(result), { idempotencyKey });
    const first = await Promise.all(Array.from({ length: 10 }, () => expect(send({ n: 1 }, "k1"), 200)));
    assert.equal(first.filter(({ replayed }) => replayed === null).length, 1);
    assert.equal(new Set(first.map(({ text }) => text)).size, 1);
    await dev.untilRun(run_id, "completed");
    assert.equal((await expect(send({ n: 1 }, "k1"), 200)).replayed, "true");
    assert.equal((await expect(send({ n: 2 }, "k1"), 422)).json.type, "/problems/idempotency-key-reused");
    await expect(send({ n: 1 }, "k2"), 410);
    assert.equal(countOf(await dev.log(run_id), "callback.received"), 1);
  });

  test("fails for good: a dead letter, the run's failure or neither, as the step says", async () => {
    const { dev } = world;
    const tool = await slowTool("fails");
    const { run_id, call } = await startAwaiting(tool);
    await expect(callBack(call, failed(undefined, "no such account")), 200);
    await dev.untilRun(run_id, "blocked");
    const [letter] = await dev.deadLetters(run_id);
    const full = await dev.ok("GET", `/v1/dead-letters/${letter.dead_letter_id}`);
    assert.deepEqual([full.reason, full.status, full.step_index], ["rejected_by_tool", "open", 0]);
    assert.match(JSON.stringify(full), /no such account/);
    const blocker = await blockerOf(dev, run_id);
    assert.deepEqual([blocker.kind, blocker.dead_letter_id], ["dead_letter", letter.dead_letter_id]);
    await expect(callBack(call, succeeded({})), 410);
    await dev.ok("POST", `/v1/dead-letters/${letter.dead_letter_id}/redeliver`, { body: {} });
    const second = await calledAt(tool, 2);
    assert.equal(second.key, call.key);
    assert.notEqual(tokenOf(second), tokenOf(call));
    await expect(callBack(call, failed(false)), 410);
    await awaited(run_id);
    await expect(callBack(second, succeeded({ n: 2 })), 200);
    assert.deepEqual((await dev.untilRun(run_id, "completed")).output, { n: 2 });

    for (const [on_failure, status] of [["fail", "failed"], ["continue", "completed"]]) {
      const name = await slowTool("ends");
      const started = await startAwaiting(name, { on_failure });
      await expect(callBack(started.call, failed(false)), 200);
      const run = await dev.untilRun(started.run_id);
      assert.deepEqual([run.status, run.steps[0].status], [status, "failed"]);
      assert.match(run.steps[0].error.message, /no stock/);
      await expect(callBack(started.call, succeeded({})), 410);
    }
  });

  test("fails for now: it is called again with the same key and another token, as often as its policy allows", async () => {
    const { dev } = world;
    const tool = await slowTool("retryable");
    const { run_id, call } = await startAwaiting(tool);
    await expect(callBack(call, failed(true)), 200);
    const second = await calledAt(tool, 2);
    await expect(callBack(second, failed(true)), 200);
    const third = await calledAt(tool, 3);
    assert.deepEqual([call, second, third].map(({ headers }) => headers["dormouse-attempt"]), ["1", "2", "3"]);
    assert.equal(new Set([call, second, third].map(({ key }) => key)).size, 1);
    assert.equal(new Set([call, second, third].map(tokenOf)).size, 3);
    await expect(callBack(third, failed(true)), 200);
    await dev.untilRun(run_id, "blocked");
    const [letter] = await dev.deadLetters(run_id);
    assert.equal(letter.reason, "retries_exhausted");
    await dev.ok("POST", `/v1/dead-letters/${letter.dead_letter_id}/discard`);
    assert.equal((await dev.untilRun(run_id)).status, "failed");
    for (const used of [call, second, third]) await expect(callBack(used, succeeded({})), 410);
    await verifyLog(dev, run_id);
  });

  test("must fit the tool's result schema, and is awaited until it does", async () => {
    const { dev } = world;
    const openapi = await openapiOf(dev);
    const result = { type: "object", required: ["id"], properties: { id: { type: "integer" }, lines: { type: "array", items: { type: "string" } } } };
    const tool = await slowTool("checked", ACCEPTED, { result });
    const { run_id, call } = await startAwaiting(tool);
    for (const [body, status, pointer] of [
      [succeeded({}), 422, "/result/id"],
      [succeeded({ id: "7" }), 422, "/result/id"],
      [succeeded({ id: 7, lines: ["a", 1] }), 422, "/result/lines/1"],
      [succeeded(null), 422, "/result"],
      [{ status: "succeeded" }, 422, "/result"],
      [{ status: "done", result: { id: 7 } }, 422, "/status"],
      [{ result: { id: 7 } }, 422, "/status"],
      [{ ...succeeded({ id: 7 }), extra: 1 }, 422, "/extra"],
      [{ ...succeeded({ id: 7 }), error: {} }, 422, "/error"],
      [{ ...succeeded({ id: 7 }), retryable: true }, 422, "/retryable"],
      [{ status: "failed" }, 422, "/error"],
      [{ status: "failed", error: "no" }, 422, "/error"],
      [{ status: "failed", error: {}, result: {} }, 422, "/result"],
      [{ status: "failed", error: {}, retryable: "yes" }, 422, "/retryable"],
      ["[]", 422],
      ["null", 422],
      ["", 400],
      ["{", 400],
      ['{"status":"succeeded","result":{"id":1e999}}', 400],
      ['{"status":"succeeded","status":"failed","error":{}}', 400],
      [succeeded({ id: 7, text: "x".repeat(524_289) }), 413],
      ["x".repeat(1_048_577), 413],
    ]) {
      const answer = await callBack(call, body);
      const what = JSON.stringify(body).slice(0, 100);
      assert.equal(answer.status, status, `${what}: ${answer.text.slice(0, 500)}`);
      openapi.check("POST /v1/callbacks/{token}", answer);
      if (!pointer) continue;
      const told = answer.json.errors.map((error) => error.pointer);
      assert.ok(told.some((at) => at === pointer || pointer.startsWith(`${at}/`)), `${what}: ${answer.text}`);
    }
    const other = await callBack(call, succeeded({ id: 7 }), { headers: { "content-type": "application/xml" } });
    assert.equal(other.status, 415);
    assert.equal((await dev.run(run_id)).status, "waiting");
    assert.equal(countOf(await dev.log(run_id), "callback.received"), 0);
    const large = { id: 7, text: "é".repeat(250_000) };
    await expect(callBack(call, succeeded(large)), 200);
    assert.deepEqual((await dev.untilRun(run_id, "completed")).output, large);
    await verifyLog(dev, run_id);
  });

  test("and says that it will not call back is done", async () => {
    const { dev, sink } = world;
    for (const [answer, result] of [
      [{ status: 202, headers: { "dormouse-callback": "none" } }, null],
      [{ status: 202, headers: { "Dormouse-Callback": "None" }, body: { queued: 7 } }, { queued: 7 }],
    ]) {
      const tool = await slowTool("none", answer);
      const run = await dev.runToEnd(planOf(tool));
      assert.deepEqual([run.status, run.output], ["completed", result]);
      await assertRunIsRight(dev, sink, run.run_id, { once: true });
      await expect(callBack(await calledAt(tool), succeeded({})), 410);
    }
    // Any other 2xx is an answer, whatever the tool says of callbacks.
    const tool = await slowTool("now", { status: 200, headers: { "dormouse-callback": "later" }, body: { now: true } });
    assert.deepEqual((await dev.runToEnd(planOf(tool))).output, { now: true });
  });
});

test("a token opens one step, and nothing else does", async () => {
  const { dev } = world;
  const tools = [await slowTool("mine"), await slowTool("yours")];
  const [mine, yours] = [await startAwaiting(tools[0]), await startAwaiting(tools[1])];
  const token = tokenOf(mine.call);
  const anonymous = clientOf(world.url, undefined);
  const [claims, mac] = token.split(".");
  const read = JSON.parse(Buffer.from(claims, "base64url"));
  const forge = (changed) => `${Buffer.from(JSON.stringify({ ...read, ...changed })).toString("base64url")}.${mac}`;
  const tokens = [
    token.slice(0, -1), token.slice(1), `${token}A`, claims, `${claims}.`, `.${mac}`, mac, `${token}.${mac}`,
    `${claims}.${tokenOf(yours.call).split(".")[1]}`, `${tokenOf(yours.call).split(".")[0]}.${mac}`,
    ...[3, claims.length - 2, claims.length + 3, token.length - 3].map((at) => token.slice(0, at) + (token[at] === "A" ? "B" : "A") + token.slice(at + 1)),
    ...Object.keys(read).map((name) => forge({ [name]: typeof read[name] === "number" ? read[name] + 1 : `${read[name]}0` })),
    forge({}).replace(mac, Buffer.alloc(32).toString("base64url")),
    token.toLowerCase(), encodeURIComponent(`${token}\n`), "x".repeat(5_000), "%00", "..", "-",
  ].filter((forged) => forged !== token);
  const texts = new Set();
  for (const forged of tokens) {
    const answer = await anonymous.post(`/v1/callbacks/${forged}`, succeeded({ forged: true }));
    assert.equal(answer.status, 404, `${forged.slice(0, 200)}: ${answer.text}`);
    if (!forged.startsWith("..")) texts.add(answer.text);
  }
  assert.equal(texts.size, 1, "nothing tells how near a token came");
  // A forged one is not even read: what is wrong with the body is not told.
  assert.equal((await anonymous.post(`/v1/callbacks/${token.slice(0, -2)}`, "{")).status, 404);
  for (const path of ["/v1/callbacks/", "/v1/callbacks", `/v1/callbacks/${token}/`, `/v1/callbacks//${token}`]) {
    assert.equal((await anonymous.post(path, succeeded({}))).status, 404, path);
  }
  for (const { run_id } of [mine, yours]) {
    const run = await dev.run(run_id);
    assert.equal(run.status, "waiting");
    assert.equal(countOf(await dev.log(run_id), "callback.received"), 0);
  }
  // Neither is a key asked for, nor does a wrong one get in the way.
  await expect(callBack(mine.call, succeeded({ n: 1 }), { headers: { authorization: "Bearer wrong" } }), 200);
  assert.deepEqual((await dev.untilRun(mine.run_id, "completed")).output, { n: 1 });
  assert.equal((await dev.run(yours.run_id)).status, "waiting");
  await dev.ok("POST", `/v1/runs/${yours.run_id}/cancel`);
  await expect(callBack(yours.call, succeeded({})), 410);
  const run = await dev.run(yours.run_id);
  assert.deepEqual([run.status, run.steps[0].status, run.steps[0].result], ["cancelled", "cancelled", null]);
});

describe("a callback that overtakes its call's answer", () => {
  const ANSWERS = {
    "a 202": ACCEPTED,
    "a 200 with another result": { body: { from: "answer" } },
    "a 503": { status: 503 },
    "a 400": { status: 400 },
    "a 202 that says none": { status: 202, headers: { "dormouse-callback": "none" } },
    "a closed connection": { close: true },
  };

  test("is what counts, whatever the answer is then", async () => {
    const { dev, sink } = world;
    const cases = Object.entries(ANSWERS).flatMap(([what, answer]) => ["idempotent", "at_most_once"].map((effect) => ({ what, answer, effect })));
    await eachOf(cases, 6, async ({ what, answer, effect }) => {
      const told = [];
      const tool = await slowTool("early", async (call) => {
        told.push(await callBack(call, succeeded({ from: "callback" })));
        // The run has gone on before the tool answers at all.
        await until(async () => (await dev.run(call.headers["dormouse-run-id"])).status === "completed", { what: `${what}: completed`, every: 10 });
        return answer;
      }, { effect });
      const { run_id } = await dev.startRun(planOf(tool));
      const run = await dev.untilRun(run_id);
      assert.deepEqual([run.status, run.output], ["completed", { from: "callback" }], `${what}, ${effect}`);
      await until(() => sink.to(`/${tool}`)[0].aborted !== undefined && told.length > 0, { what: "the answer" });
      assert.deepEqual(told.map(({ status }) => status), [200], `${what}, ${effect}`);
      const log = await assertRunIsRight(dev, sink, run_id, { once: true });
      assert.equal(countOf(log, "callback.received"), 1);
      assert.equal(countOf(log, "wait.started"), 0, "nothing was waited for");
      await expect(callBack(sink.to(`/${tool}`)[0], succeeded({})), 410);
    });
  });

  test("may say that it failed, and that counts as well", async () => {
    const { dev, sink } = world;
    await eachOf([["a 202", ACCEPTED], ["a 200", { body: { late: true } }], ["a 503", { status: 503 }]], 3, async ([what, answer]) => {
      const tool = await slowTool("early-no", async (call, number) => {
        if (number > 0) return { body: { second: true } };
        await callBack(call, failed(true));
        return answer;
      });
      const run = await dev.runToEnd(planOf(tool));
      assert.deepEqual([run.status, run.output], ["completed", { second: true }], what);
      assert.deepEqual(sink.to(`/${tool}`).map(({ headers }) => headers["dormouse-attempt"]), ["1", "2"]);
      assertOneEffect(sink, run);
      const final = await slowTool("early-never", async (call) => {
        await callBack(call, failed(false));
        return answer;
      });
      const blocked = await dev.runToEnd(planOf(final), ["blocked", "completed", "failed"]);
      assert.equal(blocked.status, "blocked", what);
      assert.equal(sink.to(`/${final}`).length, 1);
      assert.equal((await dev.deadLetters(blocked.run_id)).length, 1);
    });
  });

  test("spares the tool the retry that its answer had asked for", async () => {
    const { dev, sink } = world;
    for (const answer of [{ status: 503, headers: { "retry-after": "3600" } }, { status: 429, headers: { "retry-after": "3600" } }]) {
      const tool = await slowTool("spared", answer);
      const { run_id } = await dev.startRun(planOf(tool));
      await until(async () => (await dev.run(run_id)).steps[0].status === "retrying", { what: "the step waits for its retry" });
      assert.equal((await blockerOf(dev, run_id)).kind, "retry");
      await expect(callBack(await calledAt(tool), succeeded({ acted: true })), 200);
      assert.deepEqual((await dev.untilRun(run_id, "completed")).output, { acted: true });
      await seamsOf(dev).advance(run_id, "PT2H");
      await assertRunIsRight(dev, sink, run_id, { once: true });
    }
  });
});

describe("a callback that does not come in time", () => {
  const soonLate = { callback_timeout: "PT1H" };

  test("is a call without an answer: made again with the same key and another token", async () => {
    const { dev } = world;
    const seams = seamsOf(dev);
    const tool = await slowTool("late", ACCEPTED, soonLate);
    const { run_id, call } = await startAwaiting(tool);
    await seams.advance(run_id, "PT59M");
    assert.equal((await dev.run(run_id)).waiting_for[0].kind, "callback");
    await seams.advance(run_id, "PT1M1S");
    const second = await calledAt(tool, 2);
    assert.equal(second.key, call.key);
    assert.notEqual(tokenOf(second), tokenOf(call));
    await awaited(run_id);
    // The first attempt's no says nothing of the second, which is under way.
    await expect(callBack(call, failed(false)), 410);
    await expect(callBack(call, failed(true)), 410);
    assert.equal((await dev.run(run_id)).waiting_for[0].kind, "callback");
    // But its yes does: the step is done, whichever attempt did it.
    await expect(callBack(call, succeeded({ by: 1 })), 200);
    assert.deepEqual((await dev.untilRun(run_id, "completed")).output, { by: 1 });
    await expect(callBack(second, succeeded({ by: 2 })), 410);
    const log = await verifyLog(dev, run_id);
    assert.equal(countOf(log, "tool.completed"), 1);
    assert.deepEqual(payloads(log, "wait.ended").map(({ outcome }) => outcome), ["timed_out", "received"]);
  });

  test("counts late after a later attempt has failed, too", async () => {
    const { dev } = world;
    const seams = seamsOf(dev);
    const tool = await slowTool("late-yes", ACCEPTED, soonLate);
    const { run_id, call } = await startAwaiting(tool);
    await seams.advance(run_id, "PT1H");
    const second = await calledAt(tool, 2);
    await awaited(run_id);
    await expect(callBack(second, failed(true)), 200);
    await calledAt(tool, 3);
    await awaited(run_id);
    await expect(callBack(call, succeeded({ by: 1 })), 200);
    assert.deepEqual((await dev.untilRun(run_id, "completed")).output, { by: 1 });
  });

  test("ends as a dead letter when the policy allows no more, and a late report settles that", async () => {
    const { dev, sink } = world;
    const seams = seamsOf(dev);
    const once = { ...soonLate, retry: { max_attempts: 1, ...SOON } };
    const timedOut = async (more) => {
      const tool = await slowTool("given-up", ACCEPTED, { ...once, ...more });
      const { run_id, call } = await startAwaiting(tool);
      await seams.advance(run_id, "PT1H");
      await dev.untilRun(run_id, "blocked");
      const [letter] = await dev.deadLetters(run_id);
      return { tool, run_id, call, letter };
    };
    for (const [effect, reason] of [["idempotent", "retries_exhausted"], ["at_most_once", "outcome_unknown"]]) {
      const { tool, run_id, call, letter } = await timedOut({ effect, result: { type: "object" } });
      assert.equal(letter.reason, reason);
      await seams.advance(run_id, "P30D");
      assert.equal(sink.to(`/${tool}`).length, 1, "it is not called again");
      await expect(callBack(call, failed(true)), 410);
      await expect(callBack(call, succeeded("no object")), 422);
      assert.equal((await dev.run(run_id)).status, "blocked");
      await expect(callBack(call, succeeded({ late: true })), 200);
      assert.deepEqual((await dev.untilRun(run_id, "completed")).output, { late: true });
      assert.notEqual((await dev.ok("GET", `/v1/dead-letters/${letter.dead_letter_id}`)).status, "open");
      const second = await dev.post(`/v1/dead-letters/${letter.dead_letter_id}/resolve`, { result: {} });
      assert.equal(second.status, 409);
      const log = await verifyLog(dev, run_id);
      assert.equal(countOf(log, "dead_letter.settled"), 1);
    }
    // A person was faster.
    const resolved = await timedOut({});
    await dev.ok("POST", `/v1/dead-letters/${resolved.letter.dead_letter_id}/resolve`, { body: { result: { by: "hand" } } });
    await dev.untilRun(resolved.run_id, "completed");
    await expect(callBack(resolved.call, succeeded({ late: true })), 410);
    assert.deepEqual((await dev.run(resolved.run_id)).output, { by: "hand" });
    // Repaired arguments are another call: what the first reports is not of it.
    const repaired = await timedOut({});
    await dev.ok("POST", `/v1/dead-letters/${repaired.letter.dead_letter_id}/redeliver`, { body: { payload: { tool: repaired.tool, arguments: { other: 1 } } } });
    const other = await calledAt(repaired.tool, 2);
    await awaited(repaired.run_id);
    await expect(callBack(repaired.call, succeeded({ old: true })), 410);
    await expect(callBack(other, succeeded({ repaired: true })), 200);
    assert.deepEqual((await dev.untilRun(repaired.run_id, "completed")).output, { repaired: true });
  });

  test("of a tool that can be asked is asked for", async () => {
    const { dev, sink } = world;
    const seams = seamsOf(dev);
    const verify = { verify: { http: { method: "GET", url: `${sink.url}/ask-late` } } };
    sink.on("/ask-late", [{ body: { found: true } }]);
    const tool = await slowTool("asked", ACCEPTED, { ...soonLate, effect: "at_most_once", ...verify });
    const { run_id, call } = await startAwaiting(tool);
    await seams.advance(run_id, "PT1H");
    assert.deepEqual((await dev.untilRun(run_id, "completed")).output, { found: true });
    assert.deepEqual(sink.to("/ask-late").map(({ key, headers }) => [key, headers["dormouse-callback"]]), [[call.key, undefined]]);
    assert.equal(sink.to(`/${tool}`).length, 1);
    await expect(callBack(call, succeeded({})), 410);
  });
});

test("a run that is paused takes a callback and goes on when it is resumed; one that has ended takes none", async () => {
  const { dev, sink } = world;
  const tool = await slowTool("paused");
  const { run_id, call } = await startAwaiting(tool);
  await dev.ok("POST", `/v1/runs/${run_id}/pause`);
  const seams = seamsOf(dev);
  await seams.advance(run_id, "P3D");
  const { blockers } = await dev.ok("GET", `/v1/runs/${run_id}/diagnosis`);
  assert.deepEqual(blockers.map(({ kind }) => kind), ["paused", "callback"]);
  await expect(callBack(call, succeeded({ n: 1 })), 200);
  const paused = await dev.run(run_id);
  assert.deepEqual([paused.status, paused.steps[0].status, paused.steps[1].status], ["paused", "completed", "scheduled"]);
  await dev.ok("POST", `/v1/runs/${run_id}/resume`);
  await dev.untilRun(run_id, "completed");
  await assertRunIsRight(dev, sink, run_id, { once: true });

  // Cancelled while its call is under way, which then answers 202.
  let letGo;
  const slow = await slowTool("cancelled", () => new Promise((done) => (letGo = () => done(ACCEPTED))));
  const cancelled = await dev.startRun(planOf(slow));
  const held = await calledAt(slow);
  await dev.ok("POST", `/v1/runs/${cancelled.run_id}/cancel`);
  await expect(callBack(held, succeeded({})), 410);
  letGo();
  await until(async () => (await seams.internals(cancelled.run_id)).leases.length === 0, { what: "the worker came back" });
  await expect(callBack(held, succeeded({})), 410);
  const run = await dev.run(cancelled.run_id);
  assert.deepEqual([run.status, run.waiting_for, run.output], ["cancelled", [], null]);
  assert.equal(countOf(await dev.log(cancelled.run_id), "wait.started"), 0);

  // Failed by its deadline.
  const agent = unique("in-time");
  const name = await slowTool("deadline");
  await dev.putAgent(agent, { tools: [name], planner: { kind: "plan", steps: [{ id: "a", tool: name, arguments: {} }] }, limits: { deadline: "PT1H" } });
  const late = await dev.startRun({ agent });
  const lateCall = await calledAt(name);
  await awaited(late.run_id);
  await seams.advance(late.run_id, "PT1H");
  assert.equal((await dev.untilRun(late.run_id)).status, "failed");
  await expect(callBack(lateCall, succeeded({})), 410);
});

test("the worker that made the call is lost, and the callback comes all the same: one effect, one completion", async () => {
  const { sink } = world;
  const dev = world.dev;
  const hang = () => slowTool("lost", [{ hang: true }, ACCEPTED]);
  const [early, once, no, second, waits, keyed] = [
    await hang(),
    await slowTool("lost-once", { hang: true }, { effect: "at_most_once", timeout: "PT1S" }),
    await hang(),
    await slowTool("lost-again", [{ hang: true }, { hang: true }]),
    await slowTool("lost-waits"),
    await slowTool("lost-keyed"),
  ];
  const started = {};
  for (const tool of [early, once, no, second, waits, keyed]) {
    const { run_id } = await dev.startRun(planOf(tool));
    started[tool] = { run_id, call: await calledAt(tool) };
  }
  await awaited(started[waits].run_id);
  await awaited(started[keyed].run_id);
  await expect(callBack(started[keyed].call, succeeded({ keyed: 1 }), { idempotencyKey: "over-a-restart" }), 200);
  await world.kill();
  await world.start();

  // Before anybody has noticed that the worker is gone.
  await expect(callBack(started[early].call, succeeded({ by: 1 })), 200);
  await expect(callBack(started[once].call, succeeded({ by: 1 })), 200);
  await expect(callBack(started[waits].call, succeeded({ by: 1 })), 200);
  for (const tool of [early, once, waits]) {
    const run = await dev.untilRun(started[tool].run_id, "completed");
    assert.deepEqual(run.output, { by: 1 });
  }
  const replay = await expect(callBack(started[keyed].call, succeeded({ keyed: 1 }), { idempotencyKey: "over-a-restart" }), 200);
  assert.equal(replay.replayed, "true");
  await expect(callBack(started[no].call, failed(true)), 200);
  const retried = await calledAt(no, 2);
  assert.deepEqual([retried.key, retried.headers["dormouse-attempt"]], [started[no].call.key, "2"]);
  await awaited(started[no].run_id);
  await expect(callBack(retried, succeeded({ by: 2 })), 200);
  await dev.untilRun(started[no].run_id, "completed");

  // While another worker makes the call again, under the same number.
  const again = await calledAt(second, 2);
  assert.deepEqual([again.key, again.headers["dormouse-attempt"]], [started[second].call.key, "1"]);
  await expect(callBack(started[second].call, succeeded({ by: 1 })), 200);
  assert.deepEqual((await dev.untilRun(started[second].run_id, "completed")).output, { by: 1 });
  await expect(callBack(again, succeeded({ by: 1 })), 410);

  // Long after: the leases of all that died are over.
  for (const tool of [early, once, waits]) {
    await seamsOf(dev).advance(started[tool].run_id, "PT10M");
    await assertRunIsRight(dev, sink, started[tool].run_id, { once: true });
  }
  for (const tool of [second, keyed]) await assertRunIsRight(dev, sink, started[tool].run_id);
  for (const { run_id } of Object.values(started)) {
    const log = await verifyLog(dev, run_id);
    assert.equal(countOf(log, "tool.completed"), 1, run_id);
  }
});

test("the worker dies between the tool's 202 and its report: the callback finds the step all the same", async () => {
  const { dev, sink } = world;
  const seams = seamsOf(dev);
  const [early, late] = [await slowTool("after-tool"), await slowTool("after-tool")];
  await seams.arm("consumer.after_tool", "error", { times: 2 });
  const runs = [];
  for (const tool of [early, late]) runs.push({ tool, run_id: (await dev.startRun(planOf(tool))).run_id, call: await calledAt(tool) });
  await until(async () => Object.keys(await seams.armed()).length === 0 || (await seams.armed())["consumer.after_tool"]?.times === 0, { what: "both workers died" });
  await seams.disarm();
  await expect(callBack(runs[0].call, succeeded({ by: 1 })), 200);
  assert.deepEqual((await dev.untilRun(runs[0].run_id, "completed")).output, { by: 1 });
  // The other is called once more, under the same number, and answers 202 again.
  const again = await calledAt(late, 2);
  assert.deepEqual([again.key, again.headers["dormouse-attempt"]], [runs[1].call.key, "1"]);
  await awaited(runs[1].run_id);
  await expect(callBack(runs[1].call, succeeded({ by: 1 })), 200);
  assert.deepEqual((await dev.untilRun(runs[1].run_id, "completed")).output, { by: 1 });
  await seams.advance(runs[0].run_id, "PT10M");
  await assertRunIsRight(dev, sink, runs[0].run_id, { once: true });
  await assertRunIsRight(dev, sink, runs[1].run_id);
});

test("an object evicted while it waits, and copies of its message, change nothing", async () => {
  const { dev, sink } = world;
  const seams = seamsOf(dev);
  const tool = await slowTool("evicted");
  const { run_id, call } = await startAwaiting(tool);
  await seams.redeliver(run_id, 0, 3);
  await until(async () => (await seams.internals(run_id)).duplicates_suppressed >= 3, { what: "copies turned away" });
  await seams.evict(run_id);
  await seams.redeliver(run_id, 0, 2);
  await until(async () => (await seams.internals(run_id)).duplicates_suppressed >= 2, { what: "copies turned away" });
  await seams.sweep();
  await awaited(run_id);
  await seams.evict(run_id);
  await expect(callBack(call, succeeded({ n: 1 })), 200);
  await seams.evict(run_id);
  await expect(callBack(call, succeeded({ n: 1 })), 410);
  await dev.untilRun(run_id, "completed");
  await assertRunIsRight(dev, sink, run_id, { once: true });
});

test("a redirect to another origin takes no token along", async (t) => {
  const { dev, sink } = world;
  const elsewhere = await startSink();
  t.after(() => elsewhere.close());
  const tool = await slowTool("moved", { status: 307, headers: { location: `${elsewhere.url}/other` } });
  const run = await dev.runToEnd(planOf(tool));
  assert.equal(run.status, "completed");
  assert.deepEqual(elsewhere.calls.map(({ headers }) => headers["dormouse-callback"]), [undefined]);
  assert.notEqual(sink.to(`/${tool}`)[0].headers["dormouse-callback"], undefined);
});

test("no token is told anywhere: not in a run, its log, its diagnosis or its dead letters, and not in what the server wrote", async () => {
  const { dev, sink } = world;
  // Such as a gateway that shows in its error what it was sent.
  const showing = (status) => (call) => ({ status, body: JSON.stringify({ sent: call.headers }), headers: { "content-type": "application/json", "retry-after": "3600" } });
  const [rejects, retries] = [await slowTool("shows", showing(400)), await slowTool("shows", showing(503))];
  await dev.runToEnd(planOf(rejects), "blocked");
  const { run_id } = await dev.startRun(planOf(retries));
  await until(async () => (await dev.run(run_id)).steps[0].status === "retrying", { what: "the step waits for its retry" });
  const tokens = sink.calls.map((call) => call.headers["dormouse-callback"] && tokenOf(call)).filter(Boolean);
  assert.ok(tokens.length > 40);
  const macs = tokens.map((token) => token.split(".")[1]);
  const told = [];
  const look = (where, text) => {
    for (const mac of macs) if (text.includes(mac)) told.push(where);
  };
  const ids = new Set(sink.calls.map(({ headers }) => headers["dormouse-run-id"]).filter(Boolean));
  await eachOf([...ids], 8, async (id) => {
    for (const path of ["", "/events?limit=200", "/diagnosis"]) look(`run${path}`, (await dev.get(`/v1/runs/${id}${path}`)).text);
    const letters = await dev.get(`/v1/dead-letters?run_id=${id}`);
    look("dead letters", letters.text);
    for (const { dead_letter_id } of letters.json.items) look("dead letter", (await dev.get(`/v1/dead-letters/${dead_letter_id}`)).text);
  });
  for (const line of world.lines) look("server's output", line);
  assert.deepEqual(told, []);
});

test("no line of any of these servers tells of hung or dead code", () => assertQuiet(world.lines));
