// Conversations that grow long, and answers and results that are large: nothing is cut in silence.

import assert from "node:assert/strict";
import { afterEach, describe, test } from "node:test";
import { assertOneEffect, countOf, eachOf } from "./support/checks.mjs";
import { verifyLog } from "./support/log.mjs";
import { PROVIDERS, SECRETS, agentOf, asked, call, echo, errorIn, json, llmOfFile, payloads, resultsOf, toolOf, valueIn } from "./support/models.mjs";
import { unique, worldOfFile } from "./support/runtime.mjs";
import { seamsOf } from "./support/seams.mjs";
import { standingChecks } from "./support/standing.mjs";
import { until } from "./support/until.mjs";

const world = worldOfFile({ vars: SECRETS });
const llm = llmOfFile();

afterEach(standingChecks(() => world));

const agentWith = (provider, turns, options) => agentOf(world, llm, provider, turns, options);

async function completed(runId) {
  const run = await world.dev.untilRun(runId, ["completed", "failed", "cancelled", "blocked"], { within: 40_000 });
  assert.equal(run.status, "completed", JSON.stringify(run).slice(0, 3_000));
  return { run, log: await verifyLog(world.dev, runId) };
}
const completes = async (agent, input = "Go.") => completed((await world.dev.startRun({ agent, input })).run_id);

const isSummary = ({ conversation: { messages, tools } }) => tools.length === 0 && /Sum up/.test(messages.at(-1).text ?? "");

describe("a conversation that grows long", () => {
  const ROUNDS = 24;
  /** Each round adds about 2,000 bytes. */
  const talk = (tool, summary) => {
    let round = 0;
    return (request) => {
      if (isSummary(request)) return summary();
      const number = round;
      round += 1;
      return number < ROUNDS ? { text: `Round ${number}.`, calls: [call(tool, { number, fill: "x".repeat(500) })] } : { text: "the end" };
    };
  };

  test("is summed up in a recorded step, and stays within its window", async () => {
    await eachOf(PROVIDERS, 3, async (provider) => {
      const tool = await toolOf(world, "talk", ({ json: { number } }) => ({ body: { number, fill: "y".repeat(1_500) } }));
      let summaries = 0;
      const { agent, requests } = await agentWith(provider, talk(tool, () => ({ text: `summary number ${(summaries += 1)}`, usage: { input: 1_000, output: 10 } })), {
        tools: [tool],
        model: { context_tokens: 4_000 },
        planner: { system: "You talk." },
      });
      const { run, log } = await completes(agent, "The first message, which is never forgotten.");
      assert.equal(run.output, "the end");
      assert.ok(summaries >= 2, `${summaries} summaries`);
      const steps = run.steps.filter(({ id }) => id.startsWith("summary-"));
      assert.equal(steps.length, summaries);
      for (const step of steps) assert.deepEqual([step.kind, step.status], ["plan", "completed"]);
      const ranges = log.filter(({ event_type, payload }) => event_type === "plan.requested" && payload.summarises).map(({ payload }) => payload.summarises);
      assert.equal(ranges.length, summaries);
      for (const [n, { from_round, to_round }] of ranges.entries()) {
        assert.ok(from_round <= to_round);
        if (n > 0) assert.equal(from_round, ranges[n - 1].to_round + 1, "each round is summed up once");
      }
      // Four bytes a token, and the rules of the form hold in each.
      for (const request of requests()) assert.ok(request.text.length < 4 * 4_000 + 4_000, `${request.text.length} bytes`);
      for (const request of requests()) assert.match(request.conversation.messages[0].text, /^The first message, which is never forgotten\./);
      const last = requests().at(-1).conversation.messages;
      assert.match(last[0].text, new RegExp(`summary number ${summaries}`));
      // All effects were made, each once, and the log has them all.
      assert.deepEqual(world.sink.to(`/${tool}`).map(({ json: { number } }) => number), Array.from({ length: ROUNDS }, (_, n) => n));
      assert.equal(countOf(log, "tool.completed"), ROUNDS);
      assertOneEffect(world.sink, run, { once: true });
      assert.equal(run.usage.model_calls, requests().length);
    });
  });

  test("whose summary is none, or cannot be had, loses nothing", async () => {
    const tool = await toolOf(world, "nosum", ({ json: { number } }) => ({ body: { number, fill: "y".repeat(1_500) } }));
    let tries = 0;
    const { agent, requests } = await agentWith("openai", talk(tool, () => ((tries += 1) === 1 ? { status: 503 } : tries === 2 ? { text: " " } : { text: "summed up" })), { tools: [tool], model: { context_tokens: 4_000 } });
    const { run_id } = await world.dev.startRun({ agent, input: "Go." });
    const run = await world.dev.untilRun(run_id, ["completed", "failed", "blocked"], { within: 40_000 });
    assert.equal(run.status, "completed", JSON.stringify(run).slice(0, 2_000));
    assert.ok(tries >= 3);
    for (const request of requests()) assert.ok(request.text.length < 24_000);
    assert.deepEqual(world.sink.to(`/${tool}`).length, ROUNDS);
  });

  test("survives a restart in its middle", async () => {
    const tool = await toolOf(world, "across", ({ json: { number } }) => ({ body: { number, fill: "y".repeat(1_500) } }));
    let letGo;
    const hold = new Promise((done) => (letGo = done));
    let number = 0;
    let summaries = 0;
    const { agent, requests } = await agentWith(
      "anthropic",
      (request) => {
        if (isSummary(request)) return { text: `summary ${(summaries += 1)}`, hold: summaries === 1 ? undefined : hold };
        number += 1;
        return number <= 16 ? { calls: [call(tool, { number })] } : { text: "the end" };
      },
      { tools: [tool], model: { context_tokens: 4_000 } },
    );
    const { run_id } = await world.dev.startRun({ agent, input: "Go." });
    await until(() => summaries === 2, { what: "the second summary is asked for" });
    const before = requests().length;
    await seamsOf(world.dev).evict(run_id);
    letGo();
    const { run } = await completed(run_id);
    assert.ok(requests().length > before);
    assert.deepEqual(world.sink.to(`/${tool}`).map(({ json: given }) => given.number), Array.from({ length: 16 }, (_, n) => n + 1));
    assertOneEffect(world.sink, run, { once: true });
  });
});

describe("what is large", () => {
  test("an answer, arguments and a result of hundreds of kilobytes come through whole", async () => {
    await eachOf(PROVIDERS, 3, async (provider) => {
      const tool = await toolOf(world, "large", echo);
      const text = `€${"ü".repeat(50_000)}`;
      const blob = "b".repeat(300_000);
      const { agent, requests } = await agentWith(provider, [{ text, calls: [call(tool, { blob }), call(tool, { n: 2 })] }, { text: blob }], { tools: [tool], model: { context_tokens: 10_000_000 } });
      const { run } = await completes(agent);
      assert.equal(run.output, blob);
      const sent = world.sink.to(`/${tool}`).find(({ text: body }) => body.length > 1_000);
      assert.deepEqual(sent.json, { blob });
      const { messages } = requests()[1].conversation;
      assert.equal(messages[1].text, text);
      assert.deepEqual(resultsOf(requests(), 1).map(valueIn), [{ blob }, { n: 2 }]);
    });
  });

  test("an answer beyond what can be kept is told with its bound, and nothing in it is done", async () => {
    for (const [provider, size] of [...PROVIDERS.map((each) => [each, 700_000]), ["openai", 20_000_000]]) {
      const tool = await toolOf(world, "toolarge", echo);
      const { agent, requests } = await agentWith(provider, () => ({ text: "x".repeat(size), calls: [call(tool)] }), { tools: [tool], planner: { retry: { max_attempts: 1 } } });
      const { run_id } = await world.dev.startRun({ agent, input: "Go." });
      const run = await world.dev.untilRun(run_id, ["blocked", "completed", "failed"], { within: 40_000 });
      assert.equal(run.status, "blocked", JSON.stringify(run).slice(0, 500));
      const [letter] = await world.dev.deadLetters(run_id);
      assert.match(letter.message, /524288 bytes/);
      assert.equal(world.sink.to(`/${tool}`).length, 0);
      assert.equal(requests().length, 1);
      await world.dev.ok("POST", `/v1/dead-letters/${letter.dead_letter_id}/discard`, { body: {} });
    }
  });

  test("more calls than a round can have: those that are too many are told so, the others are made", async () => {
    const tool = await toolOf(world, "many", echo);
    const { agent, requests } = await agentWith("openai", [{ calls: Array.from({ length: 140 }, (_, n) => call(tool, { n })) }, { text: "ok" }], { tools: [tool], limits: { max_steps: 1_000 } });
    const { run } = await completes(agent);
    const results = resultsOf(requests(), 1);
    assert.equal(results.length, 140);
    const made = world.sink.to(`/${tool}`).length;
    assert.equal(made, 128);
    for (const [n, result] of results.entries()) {
      if (n < 128) assert.deepEqual(valueIn(result), { n });
      else errorIn(result);
    }
    assertOneEffect(world.sink, run, { once: true });
  });

  test("a result that is an empty text, null, false or a text is told as it is", async () => {
    await eachOf(PROVIDERS, 3, async (provider) => {
      const texts = ['""', "null", "false", "0", '"plain text"', "[]"];
      const tool = await toolOf(world, "small", ({ json: { text } }) => ({ body: text, headers: { "content-type": "application/json" } }));
      const { agent, requests } = await agentWith(provider, [{ calls: texts.map((text) => call(tool, { text })) }, { text: "ok" }], { tools: [tool] });
      await completes(agent);
      const told = resultsOf(requests(), 1).map(({ content }) => content);
      assert.deepEqual(told.slice(1, 4), ["null", "false", "0"]);
      assert.match(told[0], /^("")?$/);
      assert.match(told[4], /^"?plain text"?$/);
      assert.equal(told[5], "[]");
    });
  });
});

describe("the models of a run", () => {
  test("may change in the middle of anything: an empty answer, a flaw, a malformed call, a summary", async () => {
    const pairs = PROVIDERS.flatMap((one) => PROVIDERS.filter((two) => two !== one).map((two) => [one, two]));
    await eachOf(pairs, 3, async ([one, two]) => {
      const tool = await toolOf(world, "change", echo, { parameters: { type: "object", properties: { n: { type: "integer" } } } });
      const [first, second, agent] = [unique("first"), unique("second"), unique("change")];
      // The first says something odd, then is overloaded: each time the second goes on.
      const odd = [{}, { text: "cut", finish: "length" }, { reasoning: one === "openai" ? undefined : "Hm.", calls: [call(tool, json('{"n":"x"}')), call("nobody"), call(tool, { n: 1 })] }];
      llm.on(first, (_, number) => (number % 2 === 0 ? (odd[number / 2] ?? { text: "the end" }) : { status: 503 }));
      llm.on(second, () => ({ text: "Hm.", calls: [call(tool, { n: 2 }, { id: "same" })] }));
      const models = [[one, first], [two, second]].map(([provider, name]) => llm.model(provider, name, { api_key: "{{ secrets.LLM_KEY }}" }));
      await world.dev.putAgent(agent, { tools: [tool], planner: { kind: "model", models, output_schema: undefined, repair: { attempts: 5 } }, limits: { max_repeats: 50 } });
      const { run } = await completes(agent);
      assert.equal(run.output, "the end", `${one}, ${two}`);
      assert.equal(llm.of(second).length, 3, `${one}, ${two}`);
      assertOneEffect(world.sink, run, { once: true });
    });
  });

  test("a run stays with the agent and the tools with which it began", async () => {
    const tool = await toolOf(world, "pinned", echo);
    let letGo;
    const hold = new Promise((done) => (letGo = done));
    const { agent, model, requests } = await agentWith("openai", [{ hold, calls: [call(tool, { n: 1 })] }, { text: "ok" }], { tools: [tool], planner: { system: "the old one" } });
    const { run_id } = await world.dev.startRun({ agent, input: "Go." });
    await asked(llm, model, 1);
    const other = unique("other");
    llm.on(other, [{ text: "never" }]);
    await world.dev.putAgent(agent, { planner: { kind: "model", system: "the new one", models: [llm.model("openai", other)] } });
    await world.dev.putTool(tool, { http: { method: "POST", url: `${world.sink.url}/elsewhere` }, parameters: { type: "object", required: ["z"] } });
    letGo();
    const { run } = await completed(run_id);
    assert.equal(run.agent, `${agent}@1`);
    assert.equal(requests()[1].conversation.system, "the old one");
    assert.equal(llm.of(other).length, 0);
    assert.deepEqual(world.sink.to(`/${tool}`).length, 1);
  });

  test("an answer that comes when its worker was given up does nothing", async () => {
    const seams = seamsOf(world.dev);
    const tool = await toolOf(world, "late", echo);
    let letGo;
    const hold = new Promise((done) => (letGo = done));
    const { agent, model, requests } = await agentWith("openai", [{ hold, calls: [call(tool, { n: "late" })] }, { calls: [call(tool, { n: "in time" })] }, { text: "ok" }], { tools: [tool] });
    const { run_id } = await world.dev.startRun({ agent, input: "Go." });
    await asked(llm, model, 1);
    await seams.advance(run_id, "PT1H");
    await asked(llm, model, 2);
    await until(() => world.sink.to(`/${tool}`).length === 1, { what: "the second answer's call" });
    letGo();
    const { run, log } = await completed(run_id);
    await until(() => requests()[0].answered, { what: "the late answer" });
    const other = await agentWith("openai", [{ text: "ok" }]);
    await completes(other.agent);
    assert.deepEqual(world.sink.to(`/${tool}`).map(({ json: { n } }) => n), ["in time"]);
    assert.equal(countOf(log, "plan.completed", 0), 1);
    assert.equal(countOf(log, "plan.lease_expired", 0), 1);
    assert.equal((await world.dev.run(run_id)).updated_at, run.updated_at);
    assert.equal(payloads(log, "plan.completed").length, 2);
  });

  test("an agent that is deleted meanwhile goes on in its runs, with its keys", async () => {
    const tool = await toolOf(world, "deleted", echo);
    let letGo;
    const hold = new Promise((done) => (letGo = done));
    const plain = "sk-literal-77";
    const { agent, model, requests } = await agentWith("openai", [{ hold, calls: [call(tool, { n: 1 })] }, { text: "ok" }], { tools: [tool], model: { api_key: plain } });
    const { run_id } = await world.dev.startRun({ agent, input: "Go." });
    await asked(llm, model, 1);
    await world.dev.ok("DELETE", `/v1/agents/${agent}`);
    letGo();
    await completed(run_id);
    assert.deepEqual(requests().map(({ headers }) => headers.authorization), [`Bearer ${plain}`, `Bearer ${plain}`]);
  });

  test("x-should-retry is the provider's last word", async () => {
    const no = await agentWith("openai", [{ status: 500, headers: { "x-should-retry": "false" } }, { text: "never" }]);
    const { run_id } = await world.dev.startRun({ agent: no.agent, input: "Go." });
    await world.dev.untilRun(run_id, "blocked");
    assert.equal(no.requests().length, 1);
    const [letter] = await world.dev.deadLetters(run_id);
    await world.dev.ok("POST", `/v1/dead-letters/${letter.dead_letter_id}/discard`, { body: {} });
    const yes = await agentWith("anthropic", [{ status: 400, headers: { "x-should-retry": "true" } }, { text: "ok" }]);
    await completes(yes.agent);
    assert.equal(yes.requests().length, 2);
  });

  test("a tenant's secrets and troubles are its own", async () => {
    const tenantId = unique("tenant");
    const stranger = await world.tenant(tenantId);
    const name = unique("shared");
    llm.on(name, (_, number) => (number < 4 ? { status: 503 } : { text: "ok" }));
    const definition = (more) => ({ planner: { kind: "model", models: [llm.model("openai", name, more)], retry: { max_attempts: 4, base: "PT0.01S", max_wait: "PT0.01S", jitter: "none" } } });
    await world.dev.putAgent(name, definition());
    const { run_id } = await world.dev.startRun({ agent: name, input: "Go." });
    await until(() => llm.of(name).length >= 3, { what: "it has failed three times for one tenant" });
    await stranger.putAgent(name, definition({ api_key: "{{ secrets.LLM_KEY }}" }));
    const other = await stranger.runToEnd({ agent: name, input: "Go." }, ["completed", "blocked"]);
    // The other tenant has no such secret, and is not given this one's.
    assert.equal(other.status, "blocked");
    assert.ok(llm.of(name).every(({ headers }) => headers.authorization === undefined));
    await world.dev.ok("POST", `/v1/runs/${run_id}/cancel`);
  });
});

test("a failed run that is retried asks again from the round that failed", async () => {
  const tool = await toolOf(world, "retried", echo);
  const { agent, requests } = await agentWith("openai", [{ calls: [call(tool, { n: 1 })] }, { status: 401, error: { message: "no" } }, { text: "ok" }], { tools: [tool] });
  const { run_id } = await world.dev.startRun({ agent, input: "Go." });
  await world.dev.untilRun(run_id, "blocked");
  const [letter] = await world.dev.deadLetters(run_id);
  await world.dev.ok("POST", `/v1/dead-letters/${letter.dead_letter_id}/discard`, { body: { comment: "no" } });
  assert.equal((await world.dev.untilRun(run_id)).status, "failed");
  await world.dev.ok("POST", `/v1/runs/${run_id}/retry`);
  const { run } = await completed(run_id);
  assert.deepEqual([run.output, requests().length], ["ok", 3]);
  assert.equal(world.sink.to(`/${tool}`).length, 1);
  assert.deepEqual(valueIn(resultsOf(requests(), 2)[0]), { n: 1 });
});
