// The whole server is killed between any two things of a round: a model is asked once for each round that
// was recorded, and what it wanted takes effect once.

import assert from "node:assert/strict";
import { after, afterEach, before, describe, test } from "node:test";
import { assertOneEffect, assertQuiet, assertWholeLog, countOf, eachOf } from "./support/checks.mjs";
import { heldTool } from "./support/held.mjs";
import { lives } from "./support/lives.mjs";
import { verifyLog } from "./support/log.mjs";
import { LLM_KEY, PROVIDERS, SECRETS, TOOL_KEY, agentOf, asked, assertSecret, call, errorIn, everythingOf, llmOfFile, payloads, resultsOf, toolOf, valueIn } from "./support/models.mjs";
import { randomOf } from "./support/random.mjs";
import { unique } from "./support/runtime.mjs";
import { seamsOf } from "./support/seams.mjs";
import { standingChecks } from "./support/standing.mjs";
import { until } from "./support/until.mjs";

const pause = (ms) => new Promise((done) => setTimeout(done, ms));

const llm = llmOfFile();
let world;
before(async () => {
  world = await lives({ env: SECRETS });
});
afterEach(standingChecks(() => world));
after(() => world?.end());

const agentWith = (provider, turns, options) => agentOf(world, llm, provider, turns, options);
const startOf = (agent) => world.dev.startRun({ agent, input: "Go." });
async function restart() {
  await world.kill();
  await world.start();
}
/** Waits for an entry of a run's log. */
const logged = (runId, type, count = 1) =>
  until(async () => countOf(await world.dev.log(runId), type) >= count, { what: `${count} ${type} of ${runId}`, every: 5 });

async function completed(runId) {
  const run = await world.dev.untilRun(runId, ["completed", "failed", "cancelled", "blocked"], { within: 60_000 });
  assert.equal(run.status, "completed", JSON.stringify(run));
  const log = await verifyLog(world.dev, runId);
  for (const { step_index, kind } of run.steps) if (kind === "plan") assert.equal(countOf(log, "plan.completed", step_index), 1);
  return { run, log };
}

for (const provider of PROVIDERS) {
  describe(`${provider}: killed`, () => {
    test("while the model thinks: it is asked again, with the same words, and one answer counts", async () => {
      const tool = await toolOf(world, "thinking", { body: { ok: 1 } });
      const never = new Promise(() => {});
      const { agent, model, requests } = await agentWith(provider, [{ hold: never, calls: [call(tool, { n: 0 })] }, { calls: [call(tool, { n: 1 })] }, { text: "ok" }], { tools: [tool] });
      const { run_id } = await startOf(agent);
      await asked(llm, model, 1);
      await restart();
      const { run, log } = await completed(run_id);
      assert.equal(requests().length, 3);
      assert.equal(requests()[1].text, requests()[0].text);
      assert.deepEqual(world.sink.to(`/${tool}`).map(({ json: { n } }) => n), [1]);
      assert.equal(run.usage.model_calls >= 2, true);
      assert.equal(countOf(log, "plan.claimed", 0), 2);
      // A lost worker is no attempt of the model's.
      assert.equal(countOf(log, "plan.retry_scheduled"), 0);
    });

    test("after its answer is recorded: it is not asked for that again", async () => {
      const tool = await heldTool(world);
      const { agent, requests } = await agentWith(provider, [{ calls: [call(tool.name, { n: 1 }), call(tool.name, { n: 2 })] }, { text: "ok" }], { tools: [tool.name] });
      const { run_id } = await startOf(agent);
      await tool.called(2);
      await restart();
      tool.releaseAll();
      const { run } = await completed(run_id);
      assert.equal(requests().length, 2);
      assertOneEffect(world.sink, run);
      assert.equal(resultsOf(requests(), 1).length, 2);
    });

    test("after one tool of two has run: that one is not called again", async () => {
      const done = await toolOf(world, "done", { body: { done: 1 } });
      const tool = await heldTool(world);
      const failed = await toolOf(world, "failed", { status: 403 });
      const { agent, requests } = await agentWith(provider, [{ calls: [call(done), call(failed), call(tool.name), call("nobody")] }, { text: "ok" }], { tools: [done, failed, tool.name] });
      const { run_id } = await startOf(agent);
      await tool.called(1);
      await logged(run_id, "tool.completed");
      await logged(run_id, "tool.failed");
      await restart();
      tool.releaseAll();
      const { run } = await completed(run_id);
      assert.equal(requests().length, 2);
      assert.deepEqual([world.sink.to(`/${done}`).length, world.sink.to(`/${failed}`).length], [1, 1]);
      const results = resultsOf(requests(), 1);
      assert.deepEqual([valueIn(results[0]), valueIn(results[2])], [{ done: 1 }, { ok: true }]);
      errorIn(results[1]);
      assert.equal(errorIn(results[3]).reason, "unknown_tool");
      assert.equal(run.steps.length, 5);
    });

    test("as the results go to the model: they go again, the same", async () => {
      const tool = await toolOf(world, "results", ({ json: { n } }) => ({ body: { n } }));
      const never = new Promise(() => {});
      const { agent, model, requests } = await agentWith(provider, [{ calls: [call(tool, { n: 1 }), call(tool, { n: 2 })] }, { hold: never, text: "lost" }, { text: "ok" }], { tools: [tool] });
      const { run_id } = await startOf(agent);
      await asked(llm, model, 2);
      await restart();
      const { run } = await completed(run_id);
      assert.equal(run.output, "ok");
      assert.equal(requests().length, 3);
      assert.equal(requests()[2].text, requests()[1].text);
      assertOneEffect(world.sink, run, { once: true });
    });

    test("while it waits: for a person, a signal, a time", async () => {
      const { agent, requests } = await agentWith(
        provider,
        [
          { calls: [{ name: "ask_person", arguments: { prompt: "Well?" } }, { name: "wait_for", arguments: { signals: ["go"] } }, { name: "sleep", arguments: { duration: "P3D" } }] },
          { text: "ok" },
        ],
        { planner: { engine_tools: ["ask_person", "wait_for", "sleep"] } },
      );
      const { run_id } = await startOf(agent);
      const waiting = await until(async () => {
        const run = await world.dev.run(run_id);
        return run.waiting_for.length === 3 && run;
      }, { what: "three waits" });
      await restart();
      assert.deepEqual((await world.dev.run(run_id)).waiting_for, waiting.waiting_for);
      const { approval_id } = waiting.waiting_for.find(({ kind }) => kind === "approval");
      await world.dev.ok("POST", `/v1/approvals/${approval_id}`, { body: { decision: "approved" } });
      await restart();
      await world.dev.ok("POST", `/v1/runs/${run_id}/signals/go`, { body: { payload: { n: 1 } } });
      await restart();
      assert.equal(requests().length, 1);
      await seamsOf(world.dev).advance(run_id, "P3D");
      await completed(run_id);
      assert.equal(requests().length, 2);
      const [person, signal] = resultsOf(requests(), 1);
      assert.equal(valueIn(person).decision, "approved");
      assert.deepEqual(valueIn(signal).payload, { n: 1 });
    });

    test("while it waits to ask again: it does, once, when it is time", async () => {
      const { agent, requests } = await agentWith(provider, [{ status: 529, headers: { "retry-after": "3600" } }, { text: "ok" }]);
      const { run_id } = await startOf(agent);
      await logged(run_id, "plan.retry_scheduled");
      const before = payloads(await world.dev.log(run_id), "plan.retry_scheduled");
      await restart();
      const run = await world.dev.run(run_id);
      assert.deepEqual([run.status, run.steps[0].status, requests().length], ["running", "retrying", 1]);
      assert.deepEqual(payloads(await world.dev.log(run_id), "plan.retry_scheduled"), before);
      await world.dev.ok("POST", `/v1/runs/${run_id}/cancel`);
    });
  });
}

test("at a limit it stays there, and goes on afterwards", async () => {
  const tool = await toolOf(world, "limit", ({ json: { n } }) => ({ body: { n } }));
  const { agent, requests } = await agentWith("openai", (_, n) => (n < 4 ? { calls: [call(tool, { n })] } : { text: "ok" }), { tools: [tool], limits: { max_rounds: 2 } });
  const { run_id } = await startOf(agent);
  await logged(run_id, "limit.reached");
  await restart();
  assert.deepEqual((await world.dev.run(run_id)).waiting_for.map(({ kind }) => kind), ["limit"]);
  assert.equal(requests().length, 2);
  await world.dev.ok("POST", `/v1/runs/${run_id}/limits`, { body: { max_rounds: 10 } });
  await restart();
  const { run } = await completed(run_id);
  assert.equal(requests().length, 5);
  assertOneEffect(world.sink, run, { once: true });
});

test("with a dead letter of a malformed call: it is there afterwards, and can be mended", async () => {
  const tool = await toolOf(world, "letter", { body: { ok: 1 } });
  const bad = { calls: [call(tool, '{"n":')] };
  const { agent, requests } = await agentWith("openai", [bad, bad, bad, { text: "ok" }], { tools: [tool] });
  const { run_id } = await startOf(agent);
  await world.dev.untilRun(run_id, "blocked");
  await restart();
  assert.equal((await world.dev.run(run_id)).status, "blocked");
  const [letter] = await world.dev.deadLetters(run_id);
  await world.dev.ok("POST", `/v1/dead-letters/${letter.dead_letter_id}/redeliver`, { body: { payload: { tool, arguments: { n: 1 } } } });
  await completed(run_id);
  assert.deepEqual(world.sink.to(`/${tool}`).map(({ json }) => json), [{ n: 1 }]);
  assert.equal(requests().length, 4);
});

test("forty agents survive five kills at random moments: each recorded round is one answer, each effect one", async (t) => {
  const RUNS = 40;
  const KILLS = 5;
  const ROUNDS = 4;
  const random = randomOf(t);
  const tool = unique("storm");
  world.sink.on(`/${tool}`, ({ json: { n } }) => ({ body: { n }, delay: random.below(25) }));
  await world.dev.putTool(tool, { http: { method: "POST", url: `${world.sink.url}/${tool}` } });
  // Each answer has ids of its own: what is in the log tells which one it was.
  const turn = ({ conversation: { messages } }) => {
    const round = (messages.length - 1) / 2;
    return { delayMs: random.below(30), ...(round < ROUNDS ? { calls: [call(tool, { n: 2 * round }), call(tool, { n: 2 * round + 1 })] } : { text: "ok" }) };
  };
  const agents = await eachOf(Array.from({ length: RUNS }), 8, (_, i) => agentWith(PROVIDERS[i % 3], turn, { tools: [tool] }));

  let ended = 0;
  const runs = eachOf(agents, 20, async ({ agent }, i) => {
    const { run_id } = await until(async () => {
      const answer = await world.dev.post("/v1/runs", { agent, input: "Go." }, { idempotencyKey: `storm-${i}` });
      return answer.status === 202 && answer.json;
    }, { what: `run ${i}`, within: 60_000, every: 100 });
    await world.dev.untilRun(run_id, ["completed", "failed", "cancelled", "blocked"], { within: 120_000, every: 100 });
    ended += 1;
    return run_id;
  });
  const total = RUNS * (ROUNDS * 3 + 1);
  const done = () => world.sink.firsts(`/${tool}`) + llm.requests.filter(({ model }) => agents.some((agent) => agent.model === model)).length;
  for (let kill = 0; kill < KILLS; kill += 1) {
    const at = Math.floor(((kill + random.next() * 0.8) * total) / (KILLS + 0.5)) + 5;
    await until(() => done() >= at, { what: `${at} things done`, within: 60_000, every: 1 });
    await pause(random.below(40));
    await world.kill();
    t.diagnostic(`killed at ${done()} of ${total}, ${ended} runs ended`);
    await world.start();
  }
  const ids = await runs;
  let asks = 0;
  await eachOf(ids, 8, async (runId, i) => {
    const { agent, requests } = agents[i];
    const run = await world.dev.run(runId);
    assert.equal(run.status, "completed", `${agent}: ${JSON.stringify(run).slice(0, 1_000)}`);
    assert.deepEqual(run.steps.map(({ id }) => id).filter((id) => !id.includes(".")), Array.from({ length: ROUNDS + 1 }, (_, n) => `round-${n + 1}`));
    assertOneEffect(world.sink, run);
    const log = await world.dev.log(runId);
    assertWholeLog(log);
    const answers = payloads(log, "plan.completed").map(({ answer }) => JSON.stringify(answer));
    assert.equal(answers.length, ROUNDS + 1);
    const given = requests().filter(({ answered }) => answered);
    for (const [round, answer] of answers.entries()) {
      const of = given.filter(({ conversation: { messages } }) => (messages.length - 1) / 2 === round);
      const recorded = of.filter((request) => JSON.stringify(JSON.parse(request.answer)) === answer);
      assert.equal(recorded.length, 1, `${agent} round ${round + 1}: the recorded answer is one that was given`);
      // Nobody is asked for a round that is recorded: the one that counts was the last.
      assert.equal(of.at(-1), recorded[0], `${agent} round ${round + 1} was asked for after its answer was recorded`);
      // All that were asked had been allowed to.
      const index = run.steps.findIndex(({ id }) => id === `round-${round + 1}`);
      const requested = requests().filter(({ conversation }) => conversation && (conversation.messages.length - 1) / 2 === round).length;
      assert.ok(requested <= countOf(log, "plan.claimed", index), `${agent} round ${round + 1}: ${requested} requests`);
      asks += requested;
    }
    for (const { conversation } of requests().slice(1)) for (const result of conversation.results) valueIn(result);
  });
  t.diagnostic(`${asks} requests for ${RUNS * (ROUNDS + 1)} rounds, ${world.sink.to(`/${tool}`).length} calls for ${RUNS * ROUNDS * 2} effects`);
  assertSecret([...(await everythingOf(world.dev, ids.slice(0, 3))), world.lines.join("\n")], [LLM_KEY, TOOL_KEY]);
});

test("no line of any of these servers tells of hung or dead code", () => assertQuiet(world.lines));
