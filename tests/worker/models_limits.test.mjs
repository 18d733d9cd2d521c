// What a run may use up: at a limit it stands still, says so, and goes on when the limit is raised.

import assert from "node:assert/strict";
import { afterEach, describe, test } from "node:test";
import { countOf, eachOf } from "./support/checks.mjs";
import { openapiOf } from "./support/contract.mjs";
import { typesOf, verifyLog } from "./support/log.mjs";
import { PROVIDERS, SECRETS, agentOf, asked, call, echo, errorIn, json, llmOfFile, payloads, resultsOf, toolOf, valueIn } from "./support/models.mjs";
import { unique, worldOfFile } from "./support/runtime.mjs";
import { seamsOf } from "./support/seams.mjs";
import { blockerOf, release, standingChecks } from "./support/standing.mjs";
import { until } from "./support/until.mjs";
import { assertProblem, signalled } from "./support/waits.mjs";

const world = worldOfFile({ vars: SECRETS });
const llm = llmOfFile();

afterEach(standingChecks(() => world));

const agentWith = (provider, turns, options) => agentOf(world, llm, provider, turns, options);
const startOf = (agent, input = "Go.") => world.dev.startRun({ agent, input });
const raise = (runId, limits) => world.dev.post(`/v1/runs/${runId}/limits`, limits);

/** Waits until a run stands at a limit, and answers what it says of that. */
async function stopped(runId, limit) {
  const run = await until(
    async () => {
      const found = await world.dev.run(runId);
      const ended = ["completed", "failed", "cancelled", "blocked"].includes(found.status);
      return (ended || (found.status === "waiting" && found.waiting_for.some(({ kind }) => kind === "limit"))) && found;
    },
    { what: `${runId} stands at ${limit}`, within: 40_000 },
  );
  assert.deepEqual([run.status, run.waiting_for.map(({ kind }) => kind)], ["waiting", ["limit"]], JSON.stringify(run));
  const blocker = await blockerOf(world.dev, runId);
  assert.deepEqual([blocker.kind, blocker.moving], ["limit", false]);
  assert.ok(blocker.detail.length > 0);
  assert.equal(blocker.release, `POST /v1/runs/${runId}/limits`);
  const reached = payloads(await verifyLog(world.dev, runId), "limit.reached").at(-1);
  assert.equal(reached.limit, limit, JSON.stringify(reached));
  assert.ok(reached.used <= reached.value || limit === "max_tokens", JSON.stringify(reached));
  return { run, reached, blocker };
}

/** Nothing restarts a run that stands at a limit: not a sweep, an eviction, time, an old message, nor a start of others. */
async function staysStopped(runId, requests) {
  const before = requests().length;
  const seams = seamsOf(world.dev);
  await seams.sweep();
  await seams.evict(runId);
  await seams.advance(runId, "P1D");
  await seams.redeliver(runId, 0, 2);
  const other = await agentWith("openai", [{ text: "ok" }]);
  await world.dev.runToEnd({ agent: other.agent, input: "Go." });
  assert.equal(requests().length, before, "it is not asked again");
  assert.equal((await world.dev.run(runId)).status, "waiting");
}

describe("a limit", () => {
  /** A model that calls something new in each round until the nth, and then answers. */
  const upTo = (tool, rounds) => (_, number) => (number < rounds ? { calls: [call(tool, { number })] } : { text: `after ${number}` });

  test("of rounds: it stops there, says so, and goes on where it was when it is raised", async () => {
    await eachOf(PROVIDERS, 3, async (provider) => {
      const tool = await toolOf(world, "rounds", echo);
      const { agent, requests } = await agentWith(provider, upTo(tool, 9), { tools: [tool], limits: { max_rounds: 7 } });
      const { run_id } = await startOf(agent);
      const { reached, blocker } = await stopped(run_id, "max_rounds");
      assert.deepEqual([reached.value, reached.used], [7, 7]);
      assert.equal(requests().length, 7);
      assert.match(blocker.detail, /max_rounds|7/);
      await staysStopped(run_id, requests);

      const answer = await raise(run_id, { max_rounds: 8, comment: "once more" });
      assert.equal(answer.status, 200, answer.text);
      assert.equal(answer.json.run_id, run_id);
      await until(() => requests().length === 8, { what: "one round more" });
      await stopped(run_id, "max_rounds");
      assert.equal(requests().length, 8, "the count goes on");
      assert.equal((await raise(run_id, { max_rounds: 100 })).status, 200);
      const run = await world.dev.untilRun(run_id);
      assert.deepEqual([run.status, run.output, requests().length], ["completed", "after 9", 10]);
      const log = await verifyLog(world.dev, run_id);
      assert.deepEqual([countOf(log, "limit.reached"), countOf(log, "limit.raised")], [2, 2]);
      assert.equal(world.sink.to(`/${tool}`).length, 9);
      assert.deepEqual(resultsOf(requests(), 9).map((result) => valueIn(result).number), [8]);
    });
  });

  test("of steps: the calls that are too many wait, and are made when it is raised", async () => {
    const tool = await toolOf(world, "steps", echo);
    const calls = Array.from({ length: 6 }, (_, n) => call(tool, { n }));
    const { agent, requests } = await agentWith("openai", [{ calls }, { text: "ok" }], { tools: [tool], limits: { max_steps: 4 } });
    const { run_id } = await startOf(agent);
    await stopped(run_id, "max_steps");
    assert.equal(world.sink.to(`/${tool}`).length, 3, "the round itself is one of the four");
    assert.equal(requests().length, 1);
    await staysStopped(run_id, requests);
    assert.equal((await raise(run_id, { max_steps: 7 })).status, 200);
    await until(() => world.sink.to(`/${tool}`).length === 6, { what: "the rest is called" });
    await stopped(run_id, "max_steps");
    assert.equal(requests().length, 1, "the next round would be the eighth");
    assert.equal((await raise(run_id, { max_steps: 8 })).status, 200);
    const run = await world.dev.untilRun(run_id);
    assert.equal(run.status, "completed");
    assert.deepEqual(resultsOf(requests(), 1).map((result) => valueIn(result).n), [0, 1, 2, 3, 4, 5]);
  });

  test("of tokens: never more than one answer beyond, and what is used is told", async () => {
    await eachOf(PROVIDERS, 3, async (provider) => {
      const tool = await toolOf(world, "tokens", echo);
      const script = (_, number) => ({ usage: { input: 100 * (number + 1), output: 50 }, ...(number < 5 ? { calls: [call(tool, { number })] } : { text: "ok" }) });
      const { agent, requests } = await agentWith(provider, script, { tools: [tool], limits: { max_tokens: 600 } });
      const { run_id } = await startOf(agent);
      const { run, reached } = await stopped(run_id, "max_tokens");
      // 150, 250 and 350 are 750; after two rounds another of the last size would still have been within 650.
      const used = run.usage.input_tokens + run.usage.output_tokens;
      assert.equal(reached.used, used);
      assert.equal(reached.value, 600);
      const last = 100 * requests().length + 50;
      assert.ok(used - last <= 600, `${used} of 600, the last of ${last}`);
      assert.equal((await raise(run_id, { max_tokens: 100_000 })).status, 200);
      const ended = await world.dev.untilRun(run_id);
      assert.deepEqual([ended.status, ended.output, requests().length], ["completed", "ok", 6]);
      assert.equal(ended.usage.input_tokens + ended.usage.output_tokens, 100 * 21 + 50 * 6);
    });
  });

  test("of tokens counts those of its children", async () => {
    const child = await agentWith("openai", [{ text: "child", usage: { input: 400, output: 100 } }]);
    const { agent, requests } = await agentWith("openai", [{ usage: { input: 50, output: 10 }, calls: [{ name: "start_run", arguments: { agent: child.agent, input: "go" } }] }, { text: "never" }], {
      planner: { engine_tools: ["start_run"] },
      limits: { max_tokens: 300 },
    });
    const { run_id } = await startOf(agent);
    const { reached } = await stopped(run_id, "max_tokens");
    assert.equal(reached.used, 560);
    assert.equal(requests().length, 1);
    await world.dev.ok("POST", `/v1/runs/${run_id}/cancel`);
  });

  test("can only be raised, by what there is, while the run lives", async () => {
    const openapi = await openapiOf(world.dev);
    const tool = await toolOf(world, "raise", echo);
    const { agent } = await agentWith("openai", upTo(tool, 3), { tools: [tool], limits: { max_rounds: 2 } });
    const { run_id } = await startOf(agent);
    await stopped(run_id, "max_rounds");
    for (const body of [{}, { max_rounds: 1 }, { max_rounds: 0 }, { max_rounds: "9" }, { max_roundz: 9 }, { max_rounds: 1.5 }, { comment: "only" }, { deadline: "P1D" }]) {
      const answer = await raise(run_id, body);
      openapi.check("POST /v1/runs/{run_id}/limits", answer);
      assert.equal(answer.status, 422, `${JSON.stringify(body)}: ${answer.text}`);
    }
    assert.equal((await world.dev.run(run_id)).status, "waiting");
    const first = await world.dev.post(`/v1/runs/${run_id}/limits`, { max_rounds: 9 }, { idempotencyKey: "raise-1" });
    openapi.check("POST /v1/runs/{run_id}/limits", first);
    const again = await world.dev.post(`/v1/runs/${run_id}/limits`, { max_rounds: 9 }, { idempotencyKey: "raise-1" });
    assert.deepEqual([first.status, again.status, again.replayed], [200, 200, "true"]);
    assertProblem(await world.dev.post(`/v1/runs/${run_id}/limits`, { max_rounds: 10 }, { idempotencyKey: "raise-1" }), 422, "idempotency-key-reused");
    assert.equal((await world.dev.untilRun(run_id)).status, "completed");
    const log = await verifyLog(world.dev, run_id);
    assert.equal(countOf(log, "limit.raised"), 1);
    const late = await raise(run_id, { max_rounds: 20 });
    openapi.check("POST /v1/runs/{run_id}/limits", late);
    assert.equal(late.status, 409);
    assert.equal((await raise("run_00000000000000000000000000000000", { max_rounds: 20 })).status, 404);
    const stranger = await world.tenant(unique("stranger"));
    assert.equal((await stranger.post(`/v1/runs/${run_id}/limits`, { max_rounds: 20 })).status, 404);
    assert.equal((await (await world.keyFor("dev", "reader")).post(`/v1/runs/${run_id}/limits`, { max_rounds: 20 })).status, 403);
  });

  test("holds across a restart, and so does its count", async () => {
    const tool = await toolOf(world, "restart", echo);
    const { agent, requests } = await agentWith("anthropic", upTo(tool, 5), { tools: [tool], limits: { max_rounds: 3 } });
    const { run_id } = await startOf(agent);
    await stopped(run_id, "max_rounds");
    await world.restart();
    await stopped(run_id, "max_rounds");
    assert.equal(requests().length, 3);
    assert.equal((await raise(run_id, { max_rounds: 4 })).status, 200);
    await until(() => requests().length === 4, { what: "one more" });
    await stopped(run_id, "max_rounds");
    await world.restart();
    assert.equal((await raise(run_id, { max_rounds: 6 })).status, 200);
    const run = await world.dev.untilRun(run_id);
    assert.deepEqual([run.status, run.output, requests().length], ["completed", "after 5", 6]);
  });

  test("release as the diagnosis names it", async () => {
    const tool = await toolOf(world, "named", echo);
    const { agent } = await agentWith("openai", upTo(tool, 3), { tools: [tool], limits: { max_rounds: 2 } });
    const { run_id } = await startOf(agent);
    const { blocker } = await stopped(run_id, "max_rounds");
    await release(world.dev, blocker, { max_rounds: 9 });
    assert.equal((await world.dev.untilRun(run_id)).status, "completed");
  });

  test("is not lifted by a signal, nor by a pause and a resume", async () => {
    const tool = await toolOf(world, "signal", echo);
    const { agent, requests } = await agentWith("openai", upTo(tool, 9), { tools: [tool], limits: { max_rounds: 3 } });
    const { run_id } = await startOf(agent);
    await stopped(run_id, "max_rounds");
    await signalled(world.dev, run_id, "anything", { n: 1 });
    await world.dev.ok("POST", `/v1/runs/${run_id}/pause`);
    assert.equal((await world.dev.run(run_id)).status, "paused");
    await world.dev.ok("POST", `/v1/runs/${run_id}/resume`);
    await staysStopped(run_id, requests);
    await stopped(run_id, "max_rounds");
  });

  test("raised while the run is paused, it goes on when it is resumed", async () => {
    const tool = await toolOf(world, "paused", echo);
    const { agent, requests } = await agentWith("openai", upTo(tool, 4), { tools: [tool], limits: { max_rounds: 3 } });
    const { run_id } = await startOf(agent);
    await stopped(run_id, "max_rounds");
    await world.dev.ok("POST", `/v1/runs/${run_id}/pause`);
    assert.equal((await raise(run_id, { max_rounds: 9 })).status, 200);
    assert.equal((await world.dev.run(run_id)).status, "paused");
    const other = await agentWith("openai", [{ text: "ok" }]);
    await world.dev.runToEnd({ agent: other.agent, input: "Go." });
    assert.equal(requests().length, 3);
    await world.dev.ok("POST", `/v1/runs/${run_id}/resume`);
    assert.equal((await world.dev.untilRun(run_id)).status, "completed");
    assert.equal(requests().length, 5);
  });

  test("reached, a run can be cancelled, and nothing starts it again", async () => {
    const tool = await toolOf(world, "cancelled", echo);
    const { agent, requests } = await agentWith("openai", upTo(tool, 9), { tools: [tool], limits: { max_rounds: 3 } });
    const { run_id } = await startOf(agent);
    await stopped(run_id, "max_rounds");
    await world.dev.ok("POST", `/v1/runs/${run_id}/cancel`);
    assert.equal((await world.dev.untilRun(run_id)).status, "cancelled");
    assert.equal((await raise(run_id, { max_rounds: 9 })).status, 409);
    assert.equal(requests().length, 3);
  });

  test("of a deadline ends it, as it does with any run", async () => {
    const { agent, model } = await agentWith("openai", [{ hold: new Promise(() => {}), text: "never" }], { limits: { deadline: "PT1H" } });
    const { run_id } = await startOf(agent);
    await asked(llm, model, 1);
    await seamsOf(world.dev).advance(run_id, "PT2H");
    const run = await until(async () => {
      const found = await world.dev.run(run_id);
      return ["failed", "cancelled", "waiting"].includes(found.status) && found;
    }, { what: "the deadline is over" });
    assert.notEqual(run.status, "completed");
    if (run.status === "waiting") await world.dev.ok("POST", `/v1/runs/${run_id}/cancel`);
  });
});

describe("a model that goes in circles", () => {
  test("is stopped when the same call brought the same answer often enough", async () => {
    for (const [what, answer] of [["the same result", { body: [] }], ["the same 404", { status: 404, body: { detail: "no such thing" } }]]) {
      const tool = await toolOf(world, "noop", answer);
      const { agent, requests } = await agentWith("openai", () => ({ calls: [call(tool, { x: 1 })] }), { tools: [tool] });
      const { run_id } = await startOf(agent);
      const { reached } = await stopped(run_id, "max_repeats");
      assert.equal(reached.value, 5, what);
      // The first one is no repetition.
      assert.equal(requests().length, 6, what);
      await staysStopped(run_id, requests);
      assert.equal((await raise(run_id, { max_repeats: 7 })).status, 200);
      await until(() => requests().length === 8, { what: "two rounds more" });
      await stopped(run_id, "max_repeats");
      assert.equal(requests().length, 8, what);
      await world.dev.ok("POST", `/v1/runs/${run_id}/cancel`);
    }
  });

  test("of two calls in turn is stopped too", async () => {
    const tool = await toolOf(world, "pingpong", { body: { ok: 1 } });
    const { agent, requests } = await agentWith("anthropic", (_, number) => ({ calls: [call(tool, { side: number % 2 })] }), { tools: [tool], limits: { max_rounds: 50 } });
    const { run_id } = await startOf(agent);
    await stopped(run_id, "max_repeats");
    assert.ok(requests().length <= 8, `${requests().length} rounds`);
    await world.dev.ok("POST", `/v1/runs/${run_id}/cancel`);
  });

  test("is not, while something new comes of it", async () => {
    let n = 0;
    const tool = await toolOf(world, "progress", () => ({ body: { n: (n += 1) } }));
    const { agent, requests } = await agentWith("openai", (_, number) => (number < 15 ? { calls: [call(tool, { x: 1 })] } : { text: "ok" }), { tools: [tool] });
    const { run_id } = await startOf(agent);
    assert.equal((await world.dev.untilRun(run_id)).status, "completed");
    assert.equal(requests().length, 16);
  });

  test("is not, while it waits for the world in between", async () => {
    const seams = seamsOf(world.dev);
    const tool = await toolOf(world, "poll", { body: { state: "pending" } });
    const rounds = 8;
    const { agent, requests } = await agentWith(
      "openai",
      (_, number) => (number < rounds ? { calls: [call(tool, {}), { name: "sleep", arguments: { duration: "PT1H" } }] } : { text: "ok" }),
      { tools: [tool], planner: { engine_tools: ["sleep"] } },
    );
    const { run_id } = await startOf(agent);
    for (let n = 1; n <= rounds; n += 1) {
      await until(async () => {
        const run = await world.dev.run(run_id);
        return requests().length === n && run.status === "waiting" && run.steps.filter(({ status }) => status !== "completed").every(({ kind }) => kind === "sleep");
      }, { what: `it sleeps for the ${n}th time` });
      await seams.advance(run_id, "PT1H1M");
    }
    assert.equal((await world.dev.untilRun(run_id)).status, "completed");
  });

  test("is stopped by a cancel in its third round, for good", async () => {
    let letGo;
    const third = new Promise((done) => (letGo = done));
    const tool = await toolOf(world, "third", { body: [] });
    const { agent, model, requests } = await agentWith("openai", (_, number) => ({ calls: [call(tool, { x: 1 })], hold: number === 2 ? third : undefined }), { tools: [tool] });
    const { run_id } = await startOf(agent);
    await asked(llm, model, 3);
    await world.dev.ok("POST", `/v1/runs/${run_id}/cancel`);
    letGo();
    await world.dev.untilRun(run_id, "cancelled");
    const late = await world.dev.post(`/v1/runs/${run_id}/signals/go`, { payload: 1 });
    assert.equal(late.status, 409);
    await seamsOf(world.dev).sweep();
    const other = await agentWith("openai", [{ text: "ok" }]);
    await world.dev.runToEnd({ agent: other.agent, input: "Go." });
    assert.equal(requests().length, 3);
    assert.equal(world.sink.to(`/${tool}`).length, 2);
  });
});

describe("children of children", () => {
  /** Waits until no run of an agent is under way, and answers them all. */
  async function family(agent) {
    return until(async () => {
      const found = [];
      for (let cursor; cursor !== null; ) {
        const page = await world.dev.ok("GET", `/v1/runs?agent=${agent}&limit=200${cursor ? `&cursor=${encodeURIComponent(cursor)}` : ""}`);
        found.push(...page.items);
        cursor = page.next_cursor;
      }
      return found.length > 0 && found.every(({ status }) => ["completed", "failed", "cancelled"].includes(status)) && found;
    }, { what: `all runs of ${agent} have ended`, within: 60_000 });
  }

  test("are bounded in depth: a start that is refused is an error for the model, and the tree ends", async () => {
    const agent = unique("tree");
    const refused = [];
    llm.on(agent, ({ conversation: { messages, results } }) => {
      if (results.length === 0) return { calls: [0, 1, 2].map((n) => ({ name: "start_run", arguments: { agent, input: `${messages[0].text}/${n}` } })) };
      for (const result of results) if (result.isError || result.content.startsWith('{"error"')) refused.push(errorIn(result));
      return { text: `done ${messages[0].text}` };
    });
    const models = [llm.model("openai", agent)];
    await world.dev.putAgent(agent, { planner: { kind: "model", models, engine_tools: ["start_run"] }, limits: { max_depth: 2 } });
    const { run_id } = await startOf(agent, "r");
    const run = await world.dev.untilRun(run_id, ["completed", "failed", "blocked"], { within: 60_000 });
    assert.equal(run.status, "completed", JSON.stringify(run));
    const runs = await family(agent);
    // The root, three children, nine grandchildren: those below are refused.
    assert.equal(runs.length, 13);
    assert.equal(refused.length, 27);
    for (const { message } of refused) assert.match(message, /depth|deep|level/i);
    assert.equal(llm.of(agent).length, 2 * 13);
  });

  test("that start each other are bounded too, and a cancel of the root ends all", async () => {
    const [ping, pong] = [unique("ping"), unique("pong")];
    for (const [name, other] of [[ping, pong], [pong, ping]]) {
      llm.on(name, ({ conversation: { results } }) => (results.length === 0 ? { calls: [{ name: "start_run", arguments: { agent: other, input: "go" } }] } : { calls: [{ name: "wait_for", arguments: { signals: ["never"] } }] }));
      await world.dev.putAgent(name, { planner: { kind: "model", models: [llm.model("anthropic", name, { api_key: "{{ secrets.LLM_KEY }}" })], engine_tools: ["start_run", "wait_for"] }, limits: { max_depth: 4 } });
    }
    const { run_id } = await startOf(ping, "go");
    await until(async () => {
      const all = [...(await world.dev.ok("GET", `/v1/runs?agent=${ping}`)).items, ...(await world.dev.ok("GET", `/v1/runs?agent=${pong}`)).items];
      return all.length === 5 && llm.of(ping).length + llm.of(pong).length === 6;
    }, { what: "the last of five has been refused a child, and waits" });
    await world.dev.ok("POST", `/v1/runs/${run_id}/cancel`);
    for (const agent of [ping, pong]) for (const { status } of await family(agent)) assert.equal(status, "cancelled");
    assert.equal(llm.of(ping).length + llm.of(pong).length, 6, "nobody was asked after that");
  });
});

test("a run of a hundred rounds keeps its digits and its order", async () => {
  const tool = await toolOf(world, "long", echo);
  const big = (n) => `184467440737095516${String(n).padStart(3, "0")}`;
  const { agent, requests } = await agentWith("openai", (_, number) => (number < 100 ? { calls: [call(tool, json(`{"id":${big(number)}}`))] } : { text: "ok" }), { tools: [tool], limits: { max_steps: 1_000 } });
  const { run_id } = await startOf(agent);
  const run = await world.dev.untilRun(run_id, ["completed", "failed", "blocked", "waiting"], { within: 60_000 });
  assert.equal(run.status, "completed", JSON.stringify(run).slice(0, 500));
  assert.equal(requests().length, 101);
  const { messages } = requests()[100].conversation;
  const results = messages.filter(({ role }) => role === "results").flatMap(({ results: of }) => of);
  assert.deepEqual(results.map(({ content }) => content.replaceAll(" ", "")), Array.from({ length: 100 }, (_, n) => `{"id":${big(n)}}`));
  assert.equal(typesOf(await world.dev.log(run_id)).filter((type) => type === "plan.completed").length, 101);
});
