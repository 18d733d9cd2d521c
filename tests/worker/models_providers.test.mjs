// The same agent against servers that others wrote: what they take for a request, and make of an answer.

import assert from "node:assert/strict";
import { spawn } from "node:child_process";
import { mkdtempSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { after, afterEach, before, describe, test } from "node:test";
import { fileURLToPath } from "node:url";
import { command, commandsOrReason } from "../llm/python.mjs";
import { assertOneEffect, countOf } from "./support/checks.mjs";
import { freePort } from "./support/group.mjs";
import { verifyLog } from "./support/log.mjs";
import { SOON, payloads, toolOf } from "./support/models.mjs";
import { unique, worldOfFile } from "./support/runtime.mjs";
import { standingChecks } from "./support/standing.mjs";
import { until } from "./support/until.mjs";

const world = worldOfFile();
afterEach(standingChecks(() => world));

let folder;
let python;
before(async () => {
  folder = mkdtempSync(join(tmpdir(), "dormouse-models-"));
  python = await commandsOrReason("requirements.txt");
});
after(() => rmSync(folder, { recursive: true, force: true }));

/** Says why a test cannot be, where it cannot. */
function missing(t) {
  if (python.commands) return false;
  console.log(`skipped: ${python.why}`);
  t.skip(python.why);
  return true;
}

/** Starts a server and waits until it answers; it ends with the test. */
async function serve(t, name, args, port, health = "/") {
  const child = spawn(command(python.commands, name), args, { cwd: folder, stdio: ["ignore", "pipe", "pipe"], env: { ...process.env, PYTHONUNBUFFERED: "1", NO_PROXY: "*" } });
  let output = "";
  for (const stream of [child.stdout, child.stderr]) stream.on("data", (chunk) => (output += chunk));
  const ended = new Promise((done) => child.on("exit", done));
  t.after(async () => {
    child.kill("SIGKILL");
    await ended;
  });
  const url = `http://127.0.0.1:${port}`;
  try {
    await until(async () => (await fetch(`${url}${health}`)).status < 500, { what: `${name} answers`, within: 60_000 });
  } catch (error) {
    error.message += `: ${output}`;
    throw error;
  }
  return { url, output: () => output };
}

const saved = (name, content) => {
  const path = join(folder, name);
  writeFileSync(path, JSON.stringify(content, null, 1));
  return path;
};

const QUOTE = { type: "object", required: ["part"], properties: { part: { type: "string" }, count: { type: "integer" } }, additionalProperties: false };

/** Two tools as the models of this file call them; what they echo goes to the model. */
async function tools() {
  const of = async (stem) => toolOf(world, stem, ({ json }) => ({ body: { ...json, of: stem } }), { parameters: QUOTE, description: `The ${stem}` });
  return { quote: await of("quote"), stock: await of("stock") };
}

/** Runs an agent with one model to its end, and holds it to what must be so whoever the model is. */
async function runWith(model, { quote, stock }, { input, rounds = 2, calls = 2, retries = 0 }) {
  const agent = unique("bought");
  await world.dev.putAgent(agent, {
    tools: [quote, stock],
    planner: {
      kind: "model",
      system: "You buy parts.",
      models: [{ api_key: "not-looked-at", ...(model.provider === "anthropic" && { parameters: { max_tokens: 100 } }), ...model }],
      retry: SOON,
    },
  });
  const run = await world.dev.runToEnd({ agent, input: input ?? `Buy it, ${agent}.` }, ["completed", "failed", "cancelled", "blocked"], { within: 30_000 });
  assert.equal(run.status, "completed", JSON.stringify(run));
  const log = await verifyLog(world.dev, run.run_id);
  assertOneEffect(world.sink, run, { once: true });
  assert.equal(run.steps.filter(({ kind }) => kind === "plan").length, rounds, JSON.stringify(run.steps));
  assert.equal(run.steps.filter(({ kind }) => kind === "tool").length, calls);
  assert.equal(countOf(log, "plan.retry_scheduled"), retries);
  assert.equal(run.usage.model_calls, rounds + retries);
  assert.ok(run.usage.input_tokens > 0 && run.usage.output_tokens >= 0, JSON.stringify(run.usage));
  const ids = payloads(log, "plan.completed").flatMap(({ calls: made }) => (made ?? []).map(({ id }) => id));
  assert.equal(new Set(ids).size, ids.length, "each call has an id of its own");
  return { run, log };
}

const ARGUMENTS = { quote: { part: "p-1" }, stock: { part: "p-2", count: 3 } };

/** Both were called, each with its own arguments. */
function assertBothCalled({ quote, stock }, times = 1) {
  assert.deepEqual(world.sink.to(`/${quote}`).map(({ json }) => json), Array(times).fill(ARGUMENTS.quote));
  assert.deepEqual(world.sink.to(`/${stock}`).map(({ json }) => json), Array(times).fill(ARGUMENTS.stock));
}

const FORMS = {
  openai: (url) => ({ provider: "openai", base_url: `${url}/v1` }),
  openai_responses: (url) => ({ provider: "openai_responses", base_url: `${url}/v1` }),
  anthropic: (url) => ({ provider: "anthropic", base_url: url }),
};

describe("llm-mock-api", () => {
  const both = ({ quote, stock }) => [{ name: quote, args: ARGUMENTS.quote }, { name: stock, args: ARGUMENTS.stock }];

  test("by rules of its own in a file: two calls side by side, then the answer, in all three forms", async (t) => {
    if (missing(t)) return;
    const offered = await tools();
    const rules = Object.keys(FORMS).map((form) => ({ when: { model: `/^of-${form}$/` }, replies: [{ text: "Let me see.", tools: both(offered) }, "It costs 45."] }));
    const port = await freePort();
    const { url } = await serve(t, "llm-mock-api", ["start", "-p", String(port), "-H", "127.0.0.1", "-r", saved("rules.json5", { rules })], port);
    for (const [number, [form, modelAt]] of Object.entries(FORMS).entries()) {
      const { run } = await runWith({ ...modelAt(url), name: `of-${form}` }, offered, {});
      assert.equal(run.output, "It costs 45.", form);
      assertBothCalled(offered, number + 1);
    }
  });

  test("an error, then thoughts and calls, then an error in the middle, then the answer, in all three forms", async (t) => {
    if (missing(t)) return;
    const offered = await tools();
    const replies = [
      { error: { status: 503, message: "not yet" } },
      { reasoning: "First the price.", tools: both(offered) },
      { error: { status: 500, message: "gone" } },
      { text: "It costs 45." },
    ];
    const rules = Object.fromEntries(Object.keys(FORMS).map((form) => [`err-${form}`, replies]));
    const port = await freePort();
    const script = fileURLToPath(new URL("../llm/llm_mock_api_server.py", import.meta.url));
    const { url } = await serve(t, "python", [script, String(port), saved("errors.json", rules)], port);
    for (const [number, [form, modelAt]] of Object.entries(FORMS).entries()) {
      const { run, log } = await runWith({ ...modelAt(url), name: `err-${form}` }, offered, { retries: 2 });
      assert.equal(run.output, "It costs 45.", form);
      assertBothCalled(offered, number + 1);
      const [first, second] = payloads(log, "plan.retry_scheduled");
      assert.deepEqual([first.tries[0].status_code, second.tries[0].status_code], [503, 500], form);
      assert.match(first.error.message, /not yet/, form);
    }
  });
});

describe("stubllm", () => {
  const asCalls = (calls) => ({ tool_calls: calls.map(({ id, name, arguments: given }) => ({ ...(id && { id }), type: "function", function: { name, arguments: given } })) });
  const both = ({ quote, stock }, ids = ["call_a", "call_b"]) =>
    asCalls([
      { id: ids[0], name: quote, arguments: JSON.stringify(ARGUMENTS.quote) },
      { id: ids[1], name: stock, arguments: JSON.stringify(ARGUMENTS.stock) },
    ]);

  /** Serves sequences, each for a model of its own. */
  async function started(t, sequences) {
    const fixtures = Object.entries(sequences).map(([model, [provider, sequence]]) => ({ name: model, match: { provider, model }, sequence }));
    const port = await freePort();
    const server = await serve(t, "stubllm", ["serve", "--port", String(port), "--log-level", "warning", "--fixture-file", saved("fixtures.json", { fixtures })], port, "/health");
    return { ...server, counts: async () => (await (await fetch(`${server.url}/_stats`)).json()).fixture_call_counts };
  }

  test("two calls side by side, then the answer; an error first; ids that are all alike", async (t) => {
    if (missing(t)) return;
    const offered = await tools();
    const answer = { content: "It costs 45." };
    const sequences = {};
    for (const provider of ["openai", "anthropic"]) {
      sequences[`plain-${provider}`] = [provider, [both(offered), answer]];
      sequences[`errors-${provider}`] = [provider, [{ http_status: 429, error_message: "Slow down." }, both(offered), { http_status: provider === "openai" ? 503 : 529, error_message: "Overloaded" }, answer]];
      // Without ids it gives all calls the same one.
      sequences[`alike-${provider}`] = [provider, [both(offered, []), both(offered, []), answer]];
    }
    const server = await started(t, sequences);
    let times = 0;
    for (const provider of ["openai", "anthropic"]) {
      const of = (name) => ({ ...FORMS[provider](server.url), name: `${name}-${provider}` });
      const plain = await runWith(of("plain"), offered, {});
      assert.equal(plain.run.output, "It costs 45.", provider);
      const errors = await runWith(of("errors"), offered, { retries: 2 });
      assert.match(payloads(errors.log, "plan.retry_scheduled")[0].error.message, /Slow down/, provider);
      await runWith(of("alike"), offered, { rounds: 3, calls: 4 });
      times += 4;
      assertBothCalled(offered, times);
    }
    assert.deepEqual(await server.counts(), {
      "plain-openai": 2, "errors-openai": 4, "alike-openai": 3,
      "plain-anthropic": 2, "errors-anthropic": 4, "alike-anthropic": 3,
    }, "each was asked once for each round");
  });

  test("malformed arguments are told back, and the other call of the round is made", async (t) => {
    if (missing(t)) return;
    const offered = await tools();
    const { quote, stock } = offered;
    const malformed = {
      truncated: '{"part": "p-1"',
      fenced: '```json\n{"part":"p-1"}\n```',
      empty: "",
      "encoded-twice": JSON.stringify(JSON.stringify(ARGUMENTS.quote)),
      "of-the-wrong-type": '{"part":1}',
      python: "{'part': 'p-1'}",
    };
    const turns = (text) => [
      asCalls([{ id: "call_a", name: quote, arguments: text }, { id: "call_b", name: stock, arguments: JSON.stringify(ARGUMENTS.stock) }]),
      asCalls([{ id: "call_a", name: quote, arguments: JSON.stringify(ARGUMENTS.quote) }]),
      { content: "It costs 45." },
    ];
    const server = await started(t, Object.fromEntries(Object.entries(malformed).map(([what, text]) => [what, ["openai", turns(text)]])));
    for (const [number, what] of Object.keys(malformed).entries()) {
      const { run, log } = await runWith({ ...FORMS.openai(server.url), name: what }, offered, { rounds: 3, calls: 2 });
      assert.equal(run.output, "It costs 45.", what);
      assertBothCalled(offered, number + 1);
      const [first] = payloads(log, "plan.completed");
      assert.equal(first.calls[0].error.reason, "invalid_arguments", what);
      assert.equal(first.calls[1].error ?? null, null, what);
    }
    assert.deepEqual(await server.counts(), Object.fromEntries(Object.keys(malformed).map((what) => [what, 3])));
  });

  test("a wrong key and a request that it finds fault with are asked once", async (t) => {
    if (missing(t)) return;
    const offered = await tools();
    const sequences = Object.fromEntries(
      ["openai", "anthropic"].flatMap((provider) => [401, 400].map((status) => [`${status}-${provider}`, [provider, [{ http_status: status, error_message: `It is a ${status}.` }, { content: "again" }]]])),
    );
    const server = await started(t, sequences);
    for (const [name, [provider]] of Object.entries(sequences)) {
      const agent = unique("refused");
      await world.dev.putAgent(agent, { tools: [offered.quote], planner: { kind: "model", models: [{ ...FORMS[provider](server.url), name, api_key: "not-looked-at", parameters: { max_tokens: 10 } }], retry: SOON } });
      const run = await world.dev.runToEnd({ agent, input: "Go." }, ["completed", "failed", "blocked"]);
      assert.equal(run.status, "blocked", name);
      const [letter] = await world.dev.deadLetters(run.run_id);
      assert.equal(letter.reason, "model_failed", name);
      assert.match(letter.message, new RegExp(`It is a ${name.slice(0, 3)}\\.`));
      await world.dev.ok("POST", `/v1/dead-letters/${letter.dead_letter_id}/redeliver`);
      assert.equal((await world.dev.untilRun(run.run_id)).output, "again", name);
    }
    assert.deepEqual(await server.counts(), Object.fromEntries(Object.keys(sequences).map((name) => [name, 2])));
  });
});

describe("fakellm", () => {
  test("turns of a conversation that it counts itself: an error, two calls, an error, the answer from the results", async (t) => {
    if (missing(t)) return;
    const offered = await tools();
    const { quote, stock } = offered;
    const calls = [{ name: quote, arguments: ARGUMENTS.quote }, { name: stock, arguments: ARGUMENTS.stock }];
    const of = (model) => ({ model_matches: model });
    const rules = Object.keys(FORMS)
      .filter((form) => form !== "openai_responses")
      .flatMap((form) => [
        { name: `${form} asks`, when: { ...of(`plain-${form}`), turn: 1, tools_include: quote }, respond: { content: "Let me see.", tool_calls: calls } },
        // It answers only to what its tools said.
        { name: `${form} answers`, when: { ...of(`plain-${form}`), turn: 2, tool_result_contains: '"of":"stock"' }, respond: { content: "It costs 45." } },
        { name: `${form} 529`, when: { ...of(`errors-${form}`), turn: 1 }, respond: { status: 529, error: "Overloaded" } },
        { name: `${form} asks after`, when: { ...of(`errors-${form}`), turn: 2 }, respond: { tool_calls: calls } },
        { name: `${form} 500`, when: { ...of(`errors-${form}`), turn: 3 }, respond: { status: 500, error: "Oh no" } },
        { name: `${form} answers after`, when: { ...of(`errors-${form}`), turn: 4, tool_result_contains: "p-2" }, respond: { content: "At last." } },
      ]);
    const port = await freePort();
    const { url } = await serve(t, "fakellm", ["serve", "--port", String(port), "--config", saved("fakellm.yaml", { version: 1, rules })], port, "/_fakellm/stats");
    let times = 0;
    for (const form of ["openai", "anthropic"]) {
      const plain = await runWith({ ...FORMS[form](url), name: `plain-${form}` }, offered, { input: `Plainly, ${form}.` });
      assert.equal(plain.run.output, "It costs 45.", form);
      const errors = await runWith({ ...FORMS[form](url), name: `errors-${form}` }, offered, { input: `With errors, ${form}.`, retries: 2 });
      assert.equal(errors.run.output, "At last.", form);
      assert.deepEqual(payloads(errors.log, "plan.retry_scheduled").map(({ tries }) => tries[0].status_code), [529, 500], form);
      times += 2;
      assertBothCalled(offered, times);
    }
    const stats = await (await fetch(`${url}/_fakellm/stats`)).json();
    assert.equal(stats.total_requests, 12);
    assert.deepEqual(Object.values(stats.by_rule), Array(12).fill(1), "each rule once, and none fell through");
    // One conversation each: what was said first stays first.
    assert.deepEqual(Object.values(stats.conversations).map(({ turn }) => turn).sort(), [2, 2, 4, 4]);
  });
});
