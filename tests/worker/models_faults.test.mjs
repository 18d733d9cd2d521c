// Providers fail: another model is tried, or the same one later, as the log tells; and no secret is told.

import assert from "node:assert/strict";
import { afterEach, describe, test } from "node:test";
import { assertOneEffect, countOf, eachOf } from "./support/checks.mjs";
import { freePort } from "./support/group.mjs";
import { verifyLog } from "./support/log.mjs";
import { LLM_KEY, PROVIDERS, SECRETS, SOON, TOOL_KEY, agentOf, asked, assertSecret, call, everythingOf, llmOfFile, payloads, toolOf } from "./support/models.mjs";
import { unique, worldOfFile } from "./support/runtime.mjs";
import { seamsOf } from "./support/seams.mjs";
import { blockerOf, standingChecks } from "./support/standing.mjs";
import { until } from "./support/until.mjs";

const world = worldOfFile({ vars: SECRETS });
const llm = llmOfFile();

afterEach(standingChecks(() => world));

const agentWith = (provider, turns, options) => agentOf(world, llm, provider, turns, options);

async function completed(runId) {
  const run = await world.dev.untilRun(runId, ["completed", "failed", "cancelled", "blocked"]);
  assert.equal(run.status, "completed", JSON.stringify(run));
  return { run, log: await verifyLog(world.dev, runId) };
}
const completes = async (agent) => completed((await world.dev.startRun({ agent, input: "Go." })).run_id);

/** An agent with two models, and the scripts of both. */
async function agentOfTwo([one, oneTurns], [two, twoTurns], planner = {}) {
  const [first, second, agent] = [unique("first"), unique("second"), unique("two")];
  llm.on(first, oneTurns);
  llm.on(second, twoTurns);
  const models = [llm.model(one, first, { api_key: "{{ secrets.LLM_KEY }}" }), llm.model(two, second, { api_key: "{{ secrets.LLM_KEY }}" })];
  const { tools, ...rest } = planner;
  await world.dev.putAgent(agent, { tools: tools ?? [], planner: { kind: "model", models, retry: SOON, ...rest } });
  return { agent, first, second };
}

const triesOf = (payload) => payload.tries.map(({ model, outcome, status_code }) => [model, outcome, status_code ?? null]);

/** Waits until a run is about to ask again, and answers what its log says of that. */
const retryOf = (runId, count = 1) =>
  until(
    async () => {
      const found = payloads(await world.dev.log(runId), "plan.retry_scheduled");
      return found.length >= count && found[count - 1];
    },
    { what: `${runId} is to ask again` },
  );

describe("the next model is tried", () => {
  const FAULTS = {
    "529, overloaded": { status: 529, error: { type: "overloaded_error", message: "Overloaded" } },
    "429 with a long Retry-After": { status: 429, headers: { "retry-after": "3600" } },
    "503": { status: 503, error: { message: "Loading model" } },
    "a quota that is gone": { status: 429, error: { type: "insufficient_quota", code: "insufficient_quota", message: "You exceeded your current quota, please check your plan and billing details." } },
    "401": { status: 401, error: { code: "invalid_api_key", message: "Incorrect API key provided" } },
    "a context that is too long": { status: 400, error: { code: "context_length_exceeded", message: "This model's maximum context length is 8192 tokens" } },
    "no such model": { status: 404, error: { code: "model_not_found", message: "The model does not exist" } },
    "an answer that is no JSON": { body: "<html>Bad gateway</html>", headers: { "content-type": "text/html" } },
    "a closed connection": { close: true },
  };
  for (const provider of PROVIDERS) {
    test(`${provider}: after ${Object.keys(FAULTS).join("; ")}; or a refusal`, async () => {
      const other = provider === "openai" ? "anthropic" : "openai";
      const refusal = provider === "anthropic" ? { text: "I can't.", finish: "refusal" } : { refusal: "I can't help with that.", finish: provider === "openai" ? "stop" : "completed" };
      await eachOf([...Object.entries(FAULTS), ["a refusal", refusal]], 3, async ([what, fault]) => {
        const { agent, first, second } = await agentOfTwo([provider, [fault]], [other, [{ text: "from the second" }]]);
        const { run, log } = await completes(agent);
        assert.equal(run.output, "from the second", what);
        assert.deepEqual([llm.of(first).length, llm.of(second).length], [1, 1], what);
        const [told] = payloads(log, "plan.completed");
        assert.deepEqual(told.tries.map(({ model }) => model), [first, second], what);
        assert.notEqual(told.tries[0].outcome, told.tries[1].outcome, what);
        if (fault.status) assert.equal(told.tries[0].status_code, fault.status, what);
        if (fault.error?.code && provider !== "anthropic") assert.equal(told.tries[0].code, fault.error.code, what);
        assert.ok(told.tries[0].message?.length > 0, `${what}: why it was left`);
        assert.deepEqual([countOf(log, "plan.retry_scheduled"), run.usage.model_calls], [0, 2], what);
      });
    });
  }

  test("in the middle of a conversation of the first: the second is shown it in its own form", async () => {
    await eachOf([["openai", "anthropic"], ["anthropic", "openai_responses"], ["openai_responses", "anthropic"], ["anthropic", "openai"], ["openai", "openai_responses"], ["openai_responses", "openai"]], 3, async ([one, two]) => {
      const tool = await toolOf(world, "shared", { body: { ok: 1 } });
      const { agent, first, second } = await agentOfTwo(
        [one, [{ reasoning: one === "openai" ? undefined : "Hm.", text: "One.", calls: [call(tool, { n: 1 }), call(tool, { n: 2 })] }, { status: 529 }, { text: "the end" }]],
        [two, [{ calls: [call(tool, { n: 3 })] }, { text: "the end" }]],
        { tools: [tool] },
      );
      const { run } = await completes(agent);
      assert.equal(run.output, "the end", `${one} then ${two}`);
      assertOneEffect(world.sink, run, { once: true });
      // Which one is asked in the third round is left open: one of them has just failed.
      const last = [...llm.of(first), ...llm.of(second)].sort((a, b) => a.at - b.at).at(-1);
      const { messages } = last.conversation;
      assert.deepEqual(messages.map(({ role }) => role), ["user", "assistant", "results", "assistant", "results"]);
      assert.equal(messages[1].text, "One.");
      assert.deepEqual([messages[1].calls.length, messages[3].calls.length], [2, 1]);
    });
  });

  test("one that has just failed is not asked first by the next runs, until it has rested", async () => {
    const [bad, good, agent] = [unique("bad"), unique("good"), unique("pair")];
    llm.on(bad, () => ({ status: 503 }));
    llm.on(good, () => ({ text: "ok" }));
    const models = [bad, good].map((name) => llm.model("openai", name));
    await world.dev.putAgent(agent, { planner: { kind: "model", models, retry: SOON } });
    const runs = [];
    for (let n = 0; n < 12; n += 1) runs.push(await completes(agent));
    assert.equal(llm.of(good).length, 12);
    assert.ok(llm.of(bad).length < 12, `it was asked ${llm.of(bad).length} times`);
    // Each run says what was tried, and what was left out.
    for (const { log } of runs) assert.ok(payloads(log, "plan.completed")[0].tries.length >= 1);
    const left = runs.at(-1).log.flatMap((entry) => (entry.event_type === "plan.completed" ? entry.payload.tries : []));
    assert.equal(left.at(-1).model, good);
  });
});

describe("the same model is asked again", () => {
  test("when it says so: Retry-After in seconds, as a date of either form, and in milliseconds", async () => {
    const imf = (ms) => new Date(Date.now() + ms).toUTCString();
    const rfc850 = (ms) => {
      const date = new Date(Date.now() + ms);
      const days = ["Sunday", "Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday"];
      const [, day, month, year, time] = date.toUTCString().split(/,? /);
      return `${days[date.getUTCDay()]}, ${day}-${month}-${year.slice(2)} ${time} GMT`;
    };
    const cases = [
      [{ "retry-after": "3600" }, 3_600_000],
      [{ "retry-after": imf(3_600_000) }, 3_600_000],
      [{ "retry-after": rfc850(3_600_000) }, 3_600_000],
      [{ "retry-after-ms": "1800000" }, 1_800_000],
      [{ "retry-after-ms": "1800000", "retry-after": "3600" }, 1_800_000],
    ];
    await eachOf(PROVIDERS.flatMap((provider) => [429, 503].flatMap((status) => cases.map(([headers, ms]) => ({ provider, status, headers, ms })))), 4, async ({ provider, status, headers, ms }) => {
      const where = `${provider} ${status} ${JSON.stringify(headers)}`;
      const { agent, requests } = await agentWith(provider, [{ status, headers }, { text: "ok" }]);
      const { run_id } = await world.dev.startRun({ agent, input: "Go." });
      const told = await retryOf(run_id);
      assert.equal(told.wait_source, "retry_after", where);
      // A date is told in whole seconds, and some time has passed since it was.
      assert.ok(told.wait_ms <= ms && told.wait_ms > ms - 60_000, `${where}: ${told.wait_ms}`);
      assert.deepEqual(triesOf(told).map(([, , code]) => code), [status], where);
      const run = await world.dev.run(run_id);
      assert.deepEqual([run.status, run.steps[0].status], ["running", "retrying"], where);
      assert.equal((await blockerOf(world.dev, run_id)).kind, "retry", where);
      assert.equal(requests().length, 1, where);
      await seamsOf(world.dev).advance(run_id, "PT1H1M");
      // The model may still have to rest on the clock of the tenant.
      await world.dev.ok("POST", `/v1/runs/${run_id}/cancel`);
    });
  });

  test("after a short Retry-After, and no sooner", async () => {
    await eachOf(PROVIDERS, 3, async (provider) => {
      const { agent, requests } = await agentWith(provider, [{ status: 429, headers: { "retry-after": "1" } }, { text: "ok" }]);
      const { run, log } = await completes(agent);
      assert.equal(run.output, "ok");
      assert.equal(requests().length, 2);
      const [told] = payloads(log, "plan.retry_scheduled");
      assert.deepEqual([told.wait_source, told.wait_ms], ["retry_after", 1_000]);
      const again = log.filter(({ event_type }) => event_type === "plan.claimed")[1];
      assert.ok(again.timestamp >= told.retry_at, `asked at ${again.timestamp}, before ${told.retry_at}`);
      assert.equal(run.steps[0].attempts, 2);
    });
  });

  test("with a backoff of its own where nothing is said", async () => {
    await eachOf(PROVIDERS, 3, async (provider) => {
      const { agent, requests } = await agentWith(provider, [{ status: 500 }, { close: true }, { text: "ok" }], { planner: { retry: { max_attempts: 3, base: "PT0.01S", max_wait: "PT0.02S", jitter: "none" } } });
      const { log } = await completes(agent);
      assert.equal(requests().length, 3);
      assert.deepEqual(payloads(log, "plan.retry_scheduled").map(({ attempt, wait_source }) => [attempt, wait_source]), [[1, "backoff"], [2, "backoff"]]);
      assert.deepEqual(requests().map(({ text }) => text), Array(3).fill(requests()[0].text), "with the same words");
    });
  });

  test("max_attempts counts the first one, on all pages alike; then a person is asked", async () => {
    await eachOf([1, 2, 4], 3, async (max_attempts) => {
      const { agent, model, requests } = await agentWith("openai", () => ({ status: 503, error: { message: "down for repairs" } }), { planner: { retry: { ...SOON, max_attempts } } });
      const { run_id } = await world.dev.startRun({ agent, input: "Go." });
      const run = await world.dev.untilRun(run_id, "blocked", { within: 60_000 });
      assert.deepEqual([run.steps[0].status, run.steps[0].attempts], ["dead_lettered", requests().length]);
      assert.ok(requests().length <= max_attempts, `asked ${requests().length} times`);
      const [letter] = await world.dev.deadLetters(run_id);
      assert.ok(["retries_exhausted", "model_failed"].includes(letter.reason), letter.reason);
      assert.match(letter.message, /503/);
      assert.match(letter.message, /down for repairs/);
      assert.equal((await blockerOf(world.dev, run_id)).kind, "dead_letter");
      assert.equal(countOf(await verifyLog(world.dev, run_id), "plan.failed"), 1);
      assert.ok(requests().every(({ model: asked }) => asked === model));
      await world.dev.ok("POST", `/v1/dead-letters/${letter.dead_letter_id}/discard`, { body: { comment: "enough" } });
      assert.equal((await world.dev.untilRun(run_id)).status, "failed");
    });
  });
});

describe("a fault that does not pass", () => {
  const FINAL = {
    "a quota that is gone": [{ status: 429, error: { type: "insufficient_quota", code: "insufficient_quota", message: "You exceeded your current quota" } }, /quota/i],
    "a wrong key": [{ status: 401, error: { code: "invalid_api_key", message: "Incorrect API key provided" } }, /key/i],
    "a context that is too long": [{ status: 400, error: { code: "context_length_exceeded", message: "maximum context length is 8192 tokens" } }, /context/i],
    "a bad request": [{ status: 400, error: { code: "invalid_value", message: "tools[0] is odd" } }, /tools\[0\] is odd/],
    "no such model": [{ status: 404, error: { code: "model_not_found", message: "The model does not exist" } }, /does not exist/],
  };
  for (const provider of PROVIDERS) {
    test(`${provider}: is asked once, and a person is told what to do`, async () => {
      await eachOf(Object.entries(FINAL), 3, async ([what, [fault, told]]) => {
        const where = `${provider}, ${what}`;
        const { agent, requests } = await agentWith(provider, [fault, { text: "again" }]);
        const { run_id } = await world.dev.startRun({ agent, input: "Go." });
        const run = await world.dev.untilRun(run_id, "blocked");
        assert.equal(requests().length, 1, where);
        assert.equal(run.steps[0].status, "dead_lettered", where);
        const [letter] = await world.dev.deadLetters(run_id);
        assert.deepEqual([letter.reason, letter.step_index], ["model_failed", 0], where);
        assert.match(letter.message, told, where);
        assert.match(letter.message, new RegExp(String(fault.status)), where);
        if (provider === "openai") {
          // Asked again it answers.
          await world.dev.ok("POST", `/v1/dead-letters/${letter.dead_letter_id}/redeliver`);
          const { run: ended } = await completed(run_id);
          assert.equal(ended.output, "again", where);
        } else {
          await world.dev.ok("POST", `/v1/dead-letters/${letter.dead_letter_id}/resolve`, { body: { result: { by: "hand" } } });
          const { run: ended } = await completed(run_id);
          assert.deepEqual([ended.output, requests().length], [{ by: "hand" }, 1], where);
        }
      });
    });
  }

  test("a model that nobody serves, a secret that nobody has, an address that is not called", async () => {
    const port = await freePort();
    const models = {
      "nobody listens": [{ base_url: `http://127.0.0.1:${port}/v1` }, /127\.0\.0\.1/],
      "no such secret": [{ api_key: "{{ secrets.NOBODY_KNOWS }}" }, /NOBODY_KNOWS/],
      "an inward address": [{ base_url: "http://169.254.169.254/v1" }, /169\.254|address/],
    };
    await eachOf(Object.entries(models), 3, async ([what, [model, told]]) => {
      const { agent, requests } = await agentWith("openai", [{ text: "never" }], { model, planner: { retry: { ...SOON, max_attempts: 2 } } });
      const { run_id } = await world.dev.startRun({ agent, input: "Go." });
      await world.dev.untilRun(run_id, "blocked");
      const [letter] = await world.dev.deadLetters(run_id);
      assert.match(letter.message, told, what);
      assert.equal(requests().length, 0, what);
      await world.dev.ok("POST", `/v1/dead-letters/${letter.dead_letter_id}/discard`, { body: {} });
    });
  });

  test("a refusal of the only model is told with what it said", async () => {
    for (const [provider, refusal] of [
      ["openai", { refusal: "I can't help with that.", finish: "stop" }],
      ["openai", { finish: "content_filter" }],
      ["openai_responses", { refusal: "I can't help with that." }],
      ["anthropic", { text: "I can't help with that.", finish: "refusal" }],
    ]) {
      const { agent, requests } = await agentWith(provider, [refusal]);
      const { run_id } = await world.dev.startRun({ agent, input: "Go." });
      await world.dev.untilRun(run_id, "blocked");
      const [letter] = await world.dev.deadLetters(run_id);
      assert.equal(letter.reason, "model_failed");
      assert.match(letter.message, /refus|would not|filter/i, `${provider}: ${letter.message}`);
      assert.equal(requests().length, 1);
      await world.dev.ok("POST", `/v1/dead-letters/${letter.dead_letter_id}/discard`, { body: {} });
    }
  });

  test("a call in an answer that was refused or cut off is not half done", async () => {
    const tool = await toolOf(world, "cut", {});
    const { agent, requests } = await agentWith("openai", [{ calls: [call(tool, '{"where":"id=4')], finish: "length" }, { text: "ok" }], { tools: [tool] });
    await completes(agent);
    assert.equal(world.sink.to(`/${tool}`).length, 0);
    assert.equal(requests().length, 2);
  });

  test("an answer that was cut off is asked for again", async () => {
    await eachOf(PROVIDERS, 3, async (provider) => {
      const { agent, requests } = await agentWith(provider, [{ text: "It is only hal", finish: "length" }, { text: "whole" }]);
      const { run } = await completes(agent);
      assert.equal(run.output, "whole");
      assert.equal(requests().length, 2);
      assert.match(requests()[1].conversation.messages.at(-1).text, /cut off|length|short/i);
    });
  });

  test("Anthropic's pause goes on where it was", async () => {
    const { agent, requests } = await agentWith("anthropic", [{ text: "Half", finish: "pause" }, { text: "whole" }]);
    const { run } = await completes(agent);
    assert.equal(run.output, "whole");
    const { messages } = requests()[1].conversation;
    assert.deepEqual([messages.at(-1).role, messages.at(-1).text], ["assistant", "Half"]);
  });

  test("a timeout is one, and the request is given up", async () => {
    let answer;
    const hold = new Promise((done) => (answer = done));
    const { agent, requests } = await agentWith("openai", [{ hold, text: "too late" }, { text: "in time" }], { model: { timeout: "PT1S" } });
    const { run, log } = await completes(agent);
    assert.equal(run.output, "in time");
    await until(() => requests()[0].aborted, { what: "the first request is given up" });
    answer();
    const [told] = payloads(log, "plan.retry_scheduled");
    assert.match(told.error.message, /time/i);
  });
});

describe("secrets", () => {
  test("are nowhere: not in runs, logs, dead letters, definitions, or what the Worker wrote", async () => {
    const headers = { Authorization: "Bearer {{ secrets.TOOL_KEY }}", "X-Again": "{{ secrets.TOOL_KEY }}" };
    const loud = ({ headers: sent }) => ({ error: `you sent ${sent.authorization} and ${sent["x-again"]}` });
    const ids = [];
    const agents = [];
    await eachOf(PROVIDERS, 3, async (provider) => {
      const tool = await toolOf(world, "loud", undefined, { http: { method: "POST", url: `${world.sink.url}/loud-${provider}`, headers }, timeout: "PT1S" });
      const other = await toolOf(world, "secretive", undefined, { http: { method: "POST", url: `${world.sink.url}/secretive-${provider}`, headers } });
      world.sink.on(`/loud-${provider}`, (sent, n) => (n === 0 ? { status: 500, body: loud(sent) } : n === 1 ? { hang: true } : { status: 401, body: loud(sent) }));
      world.sink.on(`/secretive-${provider}`, { body: { ok: 1 } });
      const echoing = (status) => ({ headers: sent }) => ({ status, error: { message: `Incorrect API key provided: ${sent.authorization ?? sent["x-api-key"]}`, code: `bad ${sent.authorization ?? sent["x-api-key"]}` } });
      const never = new Promise(() => {});
      const script = [echoing(500), () => ({ hold: never }), () => ({ calls: [call(tool), call(other)] }), echoing(401), () => ({ text: "ok" })];
      const { agent } = await agentWith(provider, (request, number) => script[number](request), {
        tools: [tool, other],
        model: { timeout: "PT1S", headers: { "X-Key-Again": "{{ secrets.LLM_KEY }}" } },
        planner: { retry: { ...SOON, max_attempts: 5 } },
      });
      agents.push(agent);
      const { run_id } = await world.dev.startRun({ agent, input: "Go." });
      ids.push(run_id);
      await world.dev.untilRun(run_id, "blocked");
      const [letter] = await world.dev.deadLetters(run_id);
      assert.equal(letter.reason, "model_failed");
      await world.dev.ok("POST", `/v1/dead-letters/${letter.dead_letter_id}/redeliver`);
      await completed(run_id);
      for (const request of llm.of(agent)) assert.equal(request.headers["x-key-again"], LLM_KEY, "it was sent");
      assert.equal(world.sink.to(`/secretive-${provider}`)[0].headers.authorization, `Bearer ${TOOL_KEY}`);
    });
    const texts = await everythingOf(world.dev, ids);
    for (const agent of agents) texts.push((await world.dev.get(`/v1/agents/${agent}`)).text);
    texts.push((await world.dev.get("/v1/agents?limit=200")).text, (await world.dev.get("/v1/tools?limit=200")).text, (await world.dev.get("/v1/runs?limit=200")).text);
    texts.push(world.lines.map(({ text }) => text).join("\n"));
    for (const runId of ids) texts.push(JSON.stringify(await seamsOf(world.dev).internals(runId)));
    assertSecret(texts, [LLM_KEY, TOOL_KEY]);
    // The names of arguments and headers stay to be seen.
    assert.ok(texts.some((text) => text.includes("secrets.LLM_KEY")));
  });

  test("a key that stands in a definition as it is, is masked as well", async () => {
    const plain = "sk-plain-canary-55/ab+cd==";
    const { agent } = await agentWith("openai", [{ text: "ok" }], { model: { api_key: plain } });
    const failing = await agentWith("openai", ({ headers }, number) => (number === 0 ? { status: 401, error: { message: `Incorrect API key provided: ${headers.authorization}` } } : { text: "ok" }), { model: { api_key: plain } });
    const good = await completes(agent);
    const { run_id } = await world.dev.startRun({ agent: failing.agent, input: "Go." });
    await world.dev.untilRun(run_id, "blocked");
    assert.equal(llm.of(failing.model)[0].headers.authorization, `Bearer ${plain}`);
    const texts = await everythingOf(world.dev, [run_id, good.run.run_id]);
    texts.push(world.lines.map(({ text }) => text).join("\n"));
    assertSecret(texts, [plain]);
    const [letter] = await world.dev.deadLetters(run_id);
    await world.dev.ok("POST", `/v1/dead-letters/${letter.dead_letter_id}/discard`, { body: {} });
  });
});

describe("what a run used", () => {
  test("counts each answer once, those of other models too, and no failed try's tokens", async () => {
    const tool = await toolOf(world, "usage", {});
    const { agent, second } = await agentOfTwo(
      ["openai", [{ status: 503 }, { status: 503 }]],
      ["anthropic", [{ calls: [call(tool)], usage: { input: 100, output: 20, cached: 60 } }, { text: "ok", usage: { input: 200, output: 30 } }]],
      { tools: [tool] },
    );
    const { run } = await completes(agent);
    assert.deepEqual([run.usage.input_tokens, run.usage.output_tokens], [300, 50]);
    assert.equal(llm.of(second).length, 2);
    await asked(llm, second, 2);
  });
});
