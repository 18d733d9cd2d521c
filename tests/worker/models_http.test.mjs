// A service of somebody decides: it is sent the run's history, and answers with what is to be done next.

import assert from "node:assert/strict";
import { createHmac } from "node:crypto";
import { after, afterEach, before, describe, test } from "node:test";
import { assertOneEffect, countOf, eachOf } from "./support/checks.mjs";
import { schemasOf } from "./support/contract.mjs";
import { rawAt } from "./support/json.mjs";
import { typesOf, verifyLog } from "./support/log.mjs";
import { SOON, TOOL_KEY, assertSecret, echo, everythingOf, payloads, toolOf } from "./support/models.mjs";
import { unique, worldOfFile } from "./support/runtime.mjs";
import { seamsOf } from "./support/seams.mjs";
import { startSink } from "./support/sink.mjs";
import { blockerOf, standingChecks } from "./support/standing.mjs";
import { until } from "./support/until.mjs";
import { signalled } from "./support/waits.mjs";

const SIGNING_KEY = `whsec_${Buffer.from("a key of thirty-two bytes, really").toString("base64")}`;
const world = worldOfFile({ vars: { TENANT_SECRETS: JSON.stringify({ dev: { TOOL_KEY, SIGNING_KEY } }) } });

/** Where the services are: what reaches the world's own sink is held against the steps of tools. */
let services;
before(async () => {
  services = await startSink();
});
after(() => services?.close());
afterEach(standingChecks(() => world));

/** Stores an agent whose planner is a path of the sink with these answers, and answers both. */
async function agentOf(answers, { tools = [], planner = {}, ...more } = {}) {
  const agent = unique("service");
  services.on(`/${agent}`, answers);
  await world.dev.putAgent(agent, { tools, planner: { kind: "http", url: `${services.url}/${agent}`, retry: SOON, ...planner }, ...more });
  return { agent, requests: () => services.to(`/${agent}`) };
}

const intents = (...wanted) => ({ body: { intents: wanted } });
const output = (value) => ({ body: { output: value } });

/** Of what a request tells, the outcomes of its last round. */
const outcomesOf = (request) => request.json.history.at(-1).intents;

async function completed(runId) {
  const run = await world.dev.untilRun(runId, ["completed", "failed", "cancelled", "blocked"]);
  assert.equal(run.status, "completed", JSON.stringify(run));
  return { run, log: await verifyLog(world.dev, runId) };
}
const completes = async (agent, more = {}) => completed((await world.dev.startRun({ agent, input: "Go.", ...more })).run_id);

describe("a planning service", () => {
  test("is told of the run, the round, the tools and all that came before, under a key and a signature", async () => {
    const schemas = schemasOf(world.dev);
    const parameters = { type: "object", properties: { part: { type: "string" } } };
    const quote = await toolOf(world, "vendor.quote", echo, { description: "What it costs", parameters });
    const { agent, requests } = await agentOf([intents({ id: "a", tool: quote, arguments: { part: "p-1" } }, { tool: quote }), output({ done: true })], {
      tools: [quote],
      planner: { headers: { "X-Key": "{{ secrets.TOOL_KEY }}" }, signing_secret: "{{ secrets.SIGNING_KEY }}" },
    });
    const body = `{"agent":"${agent}","input":{"id":18446744073709551616},"tags":{"order":"42"}}`;
    const { run_id } = await world.dev.ok("POST", "/v1/runs", { body });
    const { run, log } = await completed(run_id);
    assert.deepEqual(run.output, { done: true });
    assert.deepEqual(run.steps.map(({ id, kind, status }) => [id, kind, status]), [
      ["round-1", "plan", "completed"], ["round-1.1", "tool", "completed"], ["round-1.2", "tool", "completed"], ["round-2", "plan", "completed"],
    ]);
    assert.deepEqual(typesOf(log).filter((type) => type.startsWith("plan.")), ["plan.requested", "plan.claimed", "plan.completed", "plan.requested", "plan.claimed", "plan.completed"]);
    assertOneEffect(world.sink, run, { once: true });

    const [first, second] = requests();
    assert.equal(requests().length, 2);
    for (const request of requests()) await schemas.check("planner-request", request.json);
    const { run: told, ...rest } = first.json;
    assert.deepEqual([told.run_id, told.agent, told.tags, told.trace_id], [run_id, `${agent}@1`, { order: "42" }, run.trace_id]);
    assert.equal(rawAt(first.text, "run", "input", "id"), "18446744073709551616");
    assert.deepEqual(rest, { schema_version: "1", round: 1, history: [], tools: [{ name: quote, description: "What it costs", parameters }] });
    assert.deepEqual(second.json.history.map(({ round }) => round), [1]);
    const [a, b] = outcomesOf(second);
    assert.deepEqual([a.id, a.status, a.result], ["a", "succeeded", { part: "p-1" }]);
    assert.deepEqual([b.status, b.result], ["succeeded", {}]);
    assert.notEqual(b.id, "a");

    for (const [n, request] of requests().entries()) {
      const step = run.steps[n * 3];
      assert.equal(request.key, step.idempotency_key);
      assert.equal(request.headers["x-key"], TOOL_KEY);
      assert.match(request.headers.traceparent, new RegExp(`^00-${run.trace_id}-`));
      const { "webhook-id": id, "webhook-timestamp": at, "webhook-signature": signature } = request.headers;
      const mac = createHmac("sha256", Buffer.from(SIGNING_KEY.slice("whsec_".length), "base64")).update(`${id}.${at}.${request.text}`).digest("base64");
      assert.ok(signature.split(" ").includes(`v1,${mac}`), "as Standard Webhooks sign");
    }
    assert.notEqual(first.headers["webhook-id"], second.headers["webhook-id"]);
    assertSecret([...(await everythingOf(world.dev, [run_id])), (await world.dev.get(`/v1/agents/${agent}`)).text], [TOOL_KEY, SIGNING_KEY]);
  });

  test("may want all that a plan may, and hears what became of it in its order", async () => {
    const seams = seamsOf(world.dev);
    const child = unique("child");
    await world.dev.putAgent(child, { planner: { kind: "plan", steps: [{ id: "e", emit: { type: "x" } }], output: { got: "{{ input.n }}" } } });
    const good = await toolOf(world, "good", echo);
    const bad = await toolOf(world, "bad", { status: 403, body: { detail: "not you" } });
    const { agent, requests } = await agentOf(
      [
        intents(
          { tool: good, arguments: { text: "{{ input }}" } },
          { sleep: "P1D" },
          { wait_for: ["paid", "refused"], timeout: "P7D" },
          { wait_for: "never", timeout: "PT1H" },
          { approval: { prompt: "Well?" } },
          { run: { agent: child, input: { n: 7 } } },
          { emit: { type: "order.placed", data: { n: 1 } } },
          { tool: bad },
        ),
        output("ok"),
      ],
      { tools: [good, bad] },
    );
    const { run_id } = await world.dev.startRun({ agent, input: "Go." });
    await signalled(world.dev, run_id, "refused", { why: "dear" });
    const approval = await until(async () => (await world.dev.run(run_id)).waiting_for.find(({ kind }) => kind === "approval"), { what: "a person is asked" });
    await world.dev.ok("POST", `/v1/approvals/${approval.approval_id}`, { body: { decision: "approved", data: { n: 2 } } });
    await until(async () => (await world.dev.run(run_id)).waiting_for.length === 2, { what: "two waits are left" });
    await seams.advance(run_id, "P1D");
    await completed(run_id);
    assert.equal(requests().length, 2);
    const told = outcomesOf(requests()[1]);
    assert.deepEqual(told.map(({ status }) => status), ["succeeded", "succeeded", "succeeded", "failed", "succeeded", "succeeded", "succeeded", "failed"]);
    assert.deepEqual(told[0].result, { text: "{{ input }}" }, "there are no expressions");
    assert.deepEqual(told[2].result, { signal: "refused", payload: { why: "dear" } });
    assert.equal(told[4].result.data.n, 2);
    assert.deepEqual(told[5].result, { got: 7 });
    assert.match(told[7].error.message, /403|not you/);
  });

  test("ends the run with an output, or with a failure that is told", async () => {
    for (const value of [null, 0, "", [], { a: 1 }]) {
      const { agent } = await agentOf([output(value)]);
      assert.deepEqual((await completes(agent)).run.output, value);
    }
    const { agent } = await agentOf([{ body: { failure: "the part is not made any more" } }]);
    const run = await world.dev.runToEnd({ agent, input: "Go." });
    assert.equal(run.status, "failed");
    assert.match(JSON.stringify(run.error), /not made any more/);
    await verifyLog(world.dev, run.run_id);
  });

  test("that wants what cannot be is told so, with the place; the rest of the round goes on", async () => {
    const tool = await toolOf(world, "strict", echo, { parameters: { type: "object", required: ["n"], properties: { n: { type: "integer" } } } });
    const { agent, requests } = await agentOf(
      [intents({ id: "good", tool, arguments: { n: 1 } }, { id: "wrong", tool, arguments: { n: "1" } }, { id: "unknown", tool: "nobody-knows", arguments: {} }, { id: "none", tool }), intents({ tool, arguments: { n: 2 } }), output("ok")],
      { tools: [tool] },
    );
    const { run } = await completes(agent);
    assert.deepEqual(world.sink.to(`/${tool}`).map(({ json: { n } }) => n), [1, 2]);
    const told = outcomesOf(requests()[1]);
    assert.deepEqual(told.map(({ id, status }) => [id, status]), [["good", "succeeded"], ["wrong", "failed"], ["unknown", "failed"], ["none", "failed"]]);
    assert.deepEqual(told.slice(1).map(({ error }) => error.reason), ["invalid_arguments", "unknown_tool", "invalid_arguments"]);
    assert.match(JSON.stringify(told[1].error), /\/arguments\/n/);
    assert.equal(run.steps.filter(({ kind }) => kind === "tool").length, 2);
  });

  test("whose answer is none is told so, in no part carried out, and a bounded number of times", async () => {
    const tool = await toolOf(world, "unused", echo);
    const good = { tool, arguments: {} };
    const wrong = [
      {},
      [],
      "text",
      { intents: [] },
      { intents: [good], output: 1 },
      { output: 1, failure: "x" },
      { intents: [good, 7] },
      { intents: [{ ...good, sleep: "PT1S" }] },
      { intents: [{ ...good, depends_on: [] }] },
      { intents: [{ sleep: "soon" }] },
      { intent: [good] },
    ];
    await eachOf(wrong, 4, async (body) => {
      const { agent, requests } = await agentOf([{ body: JSON.stringify(body) }, output("ok")], { tools: [tool] });
      const { run } = await completes(agent);
      assert.equal(run.output, "ok");
      assert.equal(requests().length, 2, JSON.stringify(body));
      const [round] = requests()[1].json.history;
      const flaws = [round.flaw, ...round.intents.map(({ error }) => error?.message)].filter(Boolean);
      assert.ok(flaws.length > 0, `${JSON.stringify(body)}: ${JSON.stringify(round)}`);
    });
    assert.equal(world.sink.to(`/${tool}`).length, 0);

    const stubborn = await agentOf({ body: { intents: [] } }, { planner: { repair: { attempts: 1 } } });
    const { run_id } = await world.dev.startRun({ agent: stubborn.agent, input: "Go." });
    await world.dev.untilRun(run_id, "blocked");
    assert.equal(stubborn.requests().length, 2);
    const [letter] = await world.dev.deadLetters(run_id);
    assert.match(letter.message, /stayed invalid/);
    await world.dev.ok("POST", `/v1/dead-letters/${letter.dead_letter_id}/resolve`, { body: { result: { by: "hand" } } });
    assert.deepEqual((await completed(run_id)).run.output, { by: "hand" });
  });

  test("that is down is asked again, under the same key and with the same words", async () => {
    const { agent, requests } = await agentOf([{ status: 503 }, { close: true }, output("ok")]);
    const { log } = await completes(agent);
    assert.equal(requests().length, 3);
    assert.equal(new Set(requests().map(({ key }) => key)).size, 1);
    assert.equal(new Set(requests().map(({ text }) => text)).size, 1);
    assert.deepEqual(requests().map(({ headers }) => headers["dormouse-attempt"]), ["1", "2", "3"]);
    assert.equal(countOf(log, "plan.retry_scheduled"), 2);
  });

  test("that says when is asked then", async () => {
    const { agent, requests } = await agentOf([{ status: 503, headers: { "retry-after": "3600" } }, output("ok")]);
    const { run_id } = await world.dev.startRun({ agent, input: "Go." });
    const told = await until(async () => payloads(await world.dev.log(run_id), "plan.retry_scheduled")[0], { what: "it is to be asked again" });
    assert.deepEqual([told.wait_source, told.wait_ms], ["retry_after", 3_600_000]);
    assert.equal((await blockerOf(world.dev, run_id)).kind, "retry");
    await seamsOf(world.dev).advance(run_id, "PT1H");
    await completed(run_id);
    assert.equal(requests().length, 2);
  });

  test("that refuses is not asked again until a person says so", async () => {
    for (const answer of [{ status: 401, body: { detail: "who are you" } }, { status: 404 }, { body: "<html>", headers: { "content-type": "text/html" } }, { status: 202 }]) {
      const { agent, requests } = await agentOf([answer, output("ok")], { planner: { retry: { max_attempts: 1 } } });
      const { run_id } = await world.dev.startRun({ agent, input: "Go." });
      const run = await world.dev.untilRun(run_id, ["blocked", "completed"]);
      if (run.status === "completed") {
        // What came was no JSON: that may be told to the service instead.
        assert.equal(requests().length, 2);
        continue;
      }
      assert.equal(requests().length, 1, JSON.stringify(answer));
      const [letter] = await world.dev.deadLetters(run_id);
      await world.dev.ok("POST", `/v1/dead-letters/${letter.dead_letter_id}/redeliver`);
      assert.equal((await completed(run_id)).run.output, "ok");
    }
  });

  test("has limits, as a model has", async () => {
    const tool = await toolOf(world, "limited", echo);
    let n = 0;
    const { agent, requests } = await agentOf(() => ((n += 1) <= 5 ? intents({ tool, arguments: { n } }) : output("ok")), { tools: [tool], limits: { max_rounds: 3 } });
    const { run_id } = await world.dev.startRun({ agent, input: "Go." });
    await until(async () => (await world.dev.run(run_id)).waiting_for.some(({ kind }) => kind === "limit"), { what: "the limit" });
    assert.equal(requests().length, 3);
    await world.dev.ok("POST", `/v1/runs/${run_id}/limits`, { body: { max_rounds: 10 } });
    await completed(run_id);
    assert.equal(requests().length, 6);
  });

  test("is restarted with nothing lost, and asked once for what is recorded", async () => {
    let letGo;
    const held = new Promise((done) => (letGo = done));
    const tool = await toolOf(world, "restart", async ({ json }) => (await held, { body: json }));
    const { agent, requests } = await agentOf([intents({ tool, arguments: { n: 1 } }), output("ok")], { tools: [tool] });
    const { run_id } = await world.dev.startRun({ agent, input: "Go." });
    await until(() => world.sink.to(`/${tool}`).length === 1, { what: "the tool is called" });
    await world.restart();
    letGo();
    const { run } = await completed(run_id);
    assert.equal(requests().length, 2);
    assertOneEffect(world.sink, run);
  });
});
