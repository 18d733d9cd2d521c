// What a model says wrongly is never done, guessed or mended: it is told what was wrong, a bounded number
// of times, and then a person is.

import assert from "node:assert/strict";
import { afterEach, describe, test } from "node:test";
import { assertOneEffect, countOf, eachOf } from "./support/checks.mjs";
import { schemasOf } from "./support/contract.mjs";
import { canonical, rawAt } from "./support/json.mjs";
import { typesOf, verifyLog } from "./support/log.mjs";
import { PROVIDERS, SECRETS, agentOf, call, echo, errorIn, json, llmOfFile, offered, payloads, resultsOf, toolOf, valueIn } from "./support/models.mjs";
import { worldOfFile } from "./support/runtime.mjs";
import { blockerOf, standingChecks } from "./support/standing.mjs";

const world = worldOfFile({ vars: SECRETS });
const llm = llmOfFile();

afterEach(standingChecks(() => world));

/** The forms in which arguments are text. */
const TEXTUAL = ["openai", "openai_responses"];
const OBJECT = { type: "object" };
const agentWith = (provider, turns, options) => agentOf(world, llm, provider, turns, options);
const callsTo = (tool) => world.sink.to(`/${tool}`);

async function completes(agent) {
  const run = await world.dev.runToEnd({ agent, input: "Go." }, ["completed", "failed", "cancelled", "blocked"]);
  assert.equal(run.status, "completed", JSON.stringify(run));
  return { run, log: await verifyLog(world.dev, run.run_id) };
}

/** Each case in each form in which it can be said. */
const matrix = (providers, cases) => providers.flatMap((provider) => cases.map((given) => [provider, given]));

describe("arguments that are not JSON", () => {
  const BROKEN = {
    truncated: '{"where": "id=4"',
    "single quotes": "{'where':'id=4'}",
    "a comma too many": '{"where":"id=4",}',
    "words after it": '{"where":"id=4"} done',
    "words before it": 'Sure: {"where":"id=4"}',
    fenced: '```json\n{"where":"id=4"}\n```',
    "an object in a name": '{"{"tagIds":[4,7]}',
    "quotes not escaped": '{"where":"say "hi""}',
    "a line break in a string": '{"where":"line1\nline2"}',
    "a word of another language": "True",
    "names without quotes": "{where:1}",
    "two objects": '{"where":"id=4"}{"where":"id=5"}',
    "a comment": '{"where":"id=4" /* all */}',
    "no number": '{"where":NaN}',
    "half a surrogate pair": '{"where":"\\ud83d"}',
    "an array": '["id=4"]',
    "a number": "4",
    "a string": '"id=4"',
    "nested too deep": "[".repeat(200_000),
    "an object nested too deep": `${'{"a":'.repeat(50_000)}1${"}".repeat(50_000)}`,
  };

  test("nothing is called until they are, and the model is told where and why", async () => {
    await eachOf(matrix(TEXTUAL, Object.entries(BROKEN)), 4, async ([provider, [what, text]]) => {
      const where = `${provider}, ${what}`;
      const tool = await toolOf(world, "delete_rows", { body: { deleted: 1 } }, { parameters: { ...OBJECT, properties: { where: { type: "string" } } } });
      const { agent, requests } = await agentWith(provider, [{ calls: [call(tool, text)] }, { calls: [call(tool, '{"where":"id=4"}')] }, { text: "ok" }], { tools: [tool] });
      const { run, log } = await completes(agent);
      assert.deepEqual(callsTo(tool).map(({ json: given }) => given), [{ where: "id=4" }], where);
      assert.equal(requests().length, 3, where);
      const error = errorIn(resultsOf(requests(), 1)[0]);
      assert.equal(error.reason, "invalid_arguments", where);
      if (!["an array", "a number", "a string"].includes(what)) assert.match(error.message, /\d/, `${where}: the place is told: ${error.message}`);
      assert.ok(Buffer.byteLength(resultsOf(requests(), 1)[0].content) < 4_000, `${where}: what is quoted is bounded`);
      assert.ok(requests()[1].text.length < 12_000, `${where}: what is shown again is bounded: ${requests()[1].text.length}`);
      // The broken one is no step, and no request.
      assert.deepEqual(run.steps.map(({ id, kind }) => [id, kind]), [["round-1", "plan"], ["round-2", "plan"], ["round-2.1", "tool"], ["round-3", "plan"]], where);
      assert.deepEqual(payloads(log, "tool.requested"), [{ tool, arguments: { where: "id=4" } }], where);
      // As it was said, it is in the log.
      const [{ answer, calls }] = payloads(log, "plan.completed");
      assert.deepEqual(answer, JSON.parse(requests()[0].answer), where);
      assert.equal(calls[0].error.reason, "invalid_arguments", where);
      assert.equal(calls[0].intent ?? null, null, where);
    });
  });

  test("the other calls of the round are made, and each has its result in its place", async () => {
    await eachOf(TEXTUAL, 2, async (provider) => {
      const [a, b, c] = [await toolOf(world, "a", echo), await toolOf(world, "b", echo), await toolOf(world, "c", echo)];
      const { agent, requests } = await agentWith(
        provider,
        [{ text: "All three.", calls: [call(a, { n: 1 }), call(b, '{"{"tagIds":[4,7]}'), call(c, { n: 3 })] }, { calls: [call(b, { n: 2 })] }, { text: "ok" }],
        { tools: [a, b, c] },
      );
      const { run } = await completes(agent);
      const results = resultsOf(requests(), 1);
      assert.deepEqual([valueIn(results[0]), valueIn(results[2])], [{ n: 1 }, { n: 3 }]);
      assert.equal(errorIn(results[1]).reason, "invalid_arguments");
      assert.deepEqual([a, b, c].map((tool) => callsTo(tool).map(({ json: { n } }) => n)), [[1], [2], [3]]);
      // Its place in the round, not its number among the good ones.
      assert.deepEqual(run.steps.filter(({ kind }) => kind === "tool").map(({ id, name }) => [id, name]), [["round-1.1", a], ["round-1.3", c], ["round-2.1", b]]);
      assertOneEffect(world.sink, run, { once: true });
    });
  });

  test("an object where a string should be is an object", async () => {
    await eachOf(TEXTUAL, 2, async (provider) => {
      const tool = await toolOf(world, "object", echo);
      const { agent } = await agentWith(provider, [{ calls: [call(tool, json('{"id":18446744073709551616}'), { asObject: true })] }, { text: "ok" }], { tools: [tool] });
      await completes(agent);
      assert.deepEqual(callsTo(tool).map(({ text }) => rawAt(text, "id")), ["18446744073709551616"]);
    });
  });

  test("of Anthropic: an input that is no object", async () => {
    for (const input of [json("[1]"), json("4"), json("true"), "id=4", json('{"a":"\\ud83d"}')]) {
      const tool = await toolOf(world, "input", echo);
      const { agent, requests } = await agentWith("anthropic", [{ calls: [call(tool, input)] }, { text: "ok" }], { tools: [tool] });
      const { run_id } = await world.dev.startRun({ agent, input: "Go." });
      const run = await world.dev.untilRun(run_id, ["completed", "failed", "blocked"]);
      assert.equal(callsTo(tool).length, 0);
      // An answer that is no JSON as a whole may be the provider's fault instead.
      if (typeof input === "string" || !JSON.stringify(input).includes("ud83d")) {
        assert.equal(run.status, "completed", JSON.stringify(run));
        assert.equal(errorIn(resultsOf(requests(), 1)[0]).reason, "invalid_arguments");
      }
    }
  });
});

describe("arguments that are absent", () => {
  const ABSENT = { empty: "", blank: "   ", null: null, missing: undefined, "an object": "{}", "the word null": "null", "line breaks": "\n\t" };
  const ofAnthropic = { "an object": {}, missing: undefined, null: null, empty: "" };
  const cases = [...matrix(TEXTUAL, Object.entries(ABSENT)), ...matrix(["anthropic"], Object.entries(ofAnthropic))];

  test("mean that there are none: a tool that wants none is called once, and {} is what the model is shown", async () => {
    await eachOf(cases, 4, async ([provider, [what, given]]) => {
      const where = `${provider}, ${what}`;
      const tool = await toolOf(world, "health", { body: { up: true } }, { parameters: { ...OBJECT, properties: {}, additionalProperties: false } });
      const { agent, requests } = await agentWith(provider, [{ calls: [{ name: offered(tool), arguments: given }] }, { text: "ok" }], { tools: [tool] });
      const { log } = await completes(agent);
      assert.deepEqual(callsTo(tool).map(({ text }) => text), ["{}"], where);
      assert.deepEqual(payloads(log, "tool.requested"), [{ tool, arguments: {} }], where);
      const shown = requests()[1].conversation.messages[1].calls[0].arguments;
      assert.deepEqual(shown, provider === "anthropic" ? {} : "{}", where);
      assert.deepEqual(valueIn(resultsOf(requests(), 1)[0]), { up: true }, where);
    });
  });

  test("are an error where the tool wants some: it is not called, and what is missing is named", async () => {
    await eachOf(cases, 4, async ([provider, [what, given]]) => {
      const where = `${provider}, ${what}`;
      const parameters = { ...OBJECT, required: ["to", "amount"], properties: { to: { type: "string" }, amount: { type: "integer" } } };
      const tool = await toolOf(world, "pay", {}, { parameters });
      const { agent, requests } = await agentWith(provider, [{ calls: [{ name: offered(tool), arguments: given }] }, { text: "ok" }], { tools: [tool] });
      await completes(agent);
      assert.equal(callsTo(tool).length, 0, where);
      const error = errorIn(resultsOf(requests(), 1)[0]);
      assert.equal(error.reason, "invalid_arguments", where);
      const told = JSON.stringify(error);
      assert.ok(told.includes("to") && told.includes("amount"), `${where}: ${told}`);
    });
  });
});

describe("arguments that do not fit", () => {
  const parameters = {
    ...OBJECT,
    properties: { tags: { type: "array", items: { type: "string" } }, meta: { type: "object" }, n: { type: "integer" }, content: { type: "string" } },
    additionalProperties: false,
  };
  const WRONG = {
    "a string where an array belongs": ['{"tags":"a"}', "/tags", /array/],
    "an array that was encoded twice": ['{"tags":"[\\"a\\",\\"b\\"]"}', "/tags", /array/],
    "an object that was encoded twice": ['{"meta":"{\\"k\\":1}"}', "/meta", /object/],
    "a number as a string": ['{"n":"5"}', "/n", /integer|number/],
    "a number with a fraction": ['{"n":5.5}', "/n", /integer|whole/],
    "a wrong item": ['{"tags":["a",2]}', "/tags/1", /string/],
    "an unknown member": ['{"content":"x","where":1}', "/where", /member/],
    "a number as content": ['{"content":12}', "/content", /string/],
  };

  test("are told with the place and what belongs there, and none is turned into what fits", async () => {
    await eachOf(matrix(PROVIDERS, Object.entries(WRONG)), 4, async ([provider, [what, [text, pointer, wanted]]]) => {
      const where = `${provider}, ${what}`;
      const tool = await toolOf(world, "strict", {}, { parameters });
      const { agent, requests } = await agentWith(provider, [{ calls: [call(tool, json(text))] }, { text: "ok" }], { tools: [tool] });
      await completes(agent);
      assert.equal(callsTo(tool).length, 0, where);
      const error = errorIn(resultsOf(requests(), 1)[0]);
      assert.equal(error.reason, "invalid_arguments", where);
      const flaw = error.errors.find((candidate) => candidate.pointer === pointer);
      assert.ok(flaw, `${where}: ${JSON.stringify(error)}`);
      assert.match(flaw.message, wanted, where);
    });
  });

  test("text that happens to be JSON stays the text that it is", async () => {
    await eachOf(matrix(PROVIDERS, ["[1,2]", '{"k":1}', "5", "null", "```json\n{}\n```"]), 4, async ([provider, content]) => {
      const tool = await toolOf(world, "text", echo, { parameters });
      const { agent } = await agentWith(provider, [{ calls: [call(tool, { content })] }, { text: "ok" }], { tools: [tool] });
      await completes(agent);
      assert.deepEqual(callsTo(tool).map(({ json: given }) => given), [{ content }], provider);
    });
  });

  test("the whole object as a string is none", async () => {
    await eachOf(TEXTUAL, 2, async (provider) => {
      const tool = await toolOf(world, "twice", {}, { parameters });
      const { agent, requests } = await agentWith(provider, [{ calls: [call(tool, JSON.stringify('{"content":"x"}'))] }, { text: "ok" }], { tools: [tool] });
      const { log } = await completes(agent);
      assert.equal(callsTo(tool).length, 0);
      assert.match(errorIn(resultsOf(requests(), 1)[0]).message, /string|twice/);
      assert.deepEqual(payloads(log, "plan.completed")[0].answer, JSON.parse(requests()[0].answer));
    });
  });
});

describe("tools that there are not", () => {
  test("are told with those that there are, and no near one is called; a good call of the round is made", async () => {
    const hidden = await toolOf(world, "hidden", {});
    await eachOf(PROVIDERS, 3, async (provider) => {
      const weather = await toolOf(world, "get_weather", { body: { sun: true } });
      const pay = await toolOf(world, "pay", {});
      const names = [weather.replace("weather", "wether"), weather.toUpperCase(), `functions.${weather}`, `${weather} `, ` ${weather}`, `${pay}__v2`, "", "x".repeat(5_000), `../${pay}`, "wetter_日本", hidden];
      const { agent, requests } = await agentWith(
        provider,
        [{ calls: [...names.map((name) => ({ name, arguments: {} })), call(weather, { city: "Bern" })] }, { calls: [call(weather, { city: "Rom" })] }, { text: "ok" }],
        { tools: [weather, pay] },
      );
      const { run } = await completes(agent);
      assert.deepEqual(callsTo(weather).map(({ json: { city } }) => city), ["Bern", "Rom"]);
      assert.deepEqual([callsTo(pay).length, callsTo(hidden).length], [0, 0]);
      const results = resultsOf(requests(), 1);
      for (const result of results.slice(0, -1)) {
        const error = errorIn(result);
        assert.equal(error.reason, "unknown_tool");
        assert.ok(error.message.includes(weather) && error.message.includes(pay), error.message);
        assert.ok(result.content.length < 2_000, "bounded");
      }
      assert.ok(!errorIn(results[0]).message.includes(hidden), "what this agent may not call is not named");
      assert.deepEqual(valueIn(results.at(-1)), { sun: true });
      assert.deepEqual(run.steps.map(({ id }) => id), ["round-1", `round-1.${names.length + 1}`, "round-2", "round-2.1", "round-3"]);
    });
  });

  test("characters that cannot be stored are one call's fault: the other calls are made, and its error is told", async () => {
    await eachOf(PROVIDERS, 3, async (provider) => {
      const good = await toolOf(world, "good", echo);
      const tool = await toolOf(world, "nul", echo);
      const turn = { calls: [call(good, { n: 1 }), { name: `${tool}\u0000`, arguments: {} }, call(tool, json('{"a":"x\\u0000y"}')), call(tool, json('{"a":"\\ud83d"}'))] };
      // In a form whose arguments are no text, such a number makes the whole answer unreadable.
      if (provider !== "anthropic") turn.calls.push(call(tool, json('{"a":1e400}')));
      const { agent, requests } = await agentWith(provider, [turn, { text: "ok" }], { tools: [good, tool] });
      const { run_id } = await world.dev.startRun({ agent, input: "Go." });
      await world.dev.untilRun(run_id, ["completed", "blocked"]);
      assert.deepEqual(callsTo(good).map(({ json: { n } }) => n), [1], `${provider}: the good call is made`);
      assert.equal(callsTo(tool).length, 0, provider);
      assert.equal(requests().length, 2, provider);
      for (const result of resultsOf(requests(), 1).slice(1)) errorIn(result);
    });
  });

  test("a tool of no call is not called because its name is in the text", async () => {
    const tool = await toolOf(world, "named", {});
    const { agent } = await agentWith("openai", [{ text: `<tool_call>{"name":"${tool}","arguments":{}}</tool_call>` }], { tools: [tool] });
    const { run } = await completes(agent);
    assert.equal(callsTo(tool).length, 0);
    assert.match(run.output, /tool_call/);
  });
});

describe("a model that stays wrong", () => {
  const BROKEN = '{"where": "id=4"';

  test("is asked twice more; then its call is a dead letter, and the good calls of that round go on", async () => {
    await eachOf(PROVIDERS, 3, async (provider) => {
      const parameters = { ...OBJECT, required: ["where"], properties: { where: { type: "string" } } };
      const tool = await toolOf(world, "stubborn", { body: { deleted: 1 } }, { parameters });
      const good = await toolOf(world, "good", { body: { ok: 1 } });
      const bad = provider === "anthropic" ? json('{"where":18446744073709551616}') : BROKEN;
      const { agent, requests } = await agentWith(
        provider,
        (_, number) => (number < 10 ? { calls: [call(good, { number }), call(tool, bad)] } : { text: "never" }),
        { tools: [tool, good] },
      );
      const { run_id } = await world.dev.startRun({ agent, input: "Go." });
      const run = await world.dev.untilRun(run_id, "blocked");
      assert.equal(requests().length, 3, "two rounds to mend it");
      assert.equal(callsTo(tool).length, 0);
      assert.deepEqual(callsTo(good).map(({ json: { number } }) => number).sort(), [0, 1, 2]);
      const step = run.steps.at(-1);
      assert.deepEqual([step.id, step.kind, step.name, step.status], ["round-3.2", "tool", tool, "dead_lettered"]);
      const [letter] = await world.dev.deadLetters(run_id);
      await schemasOf(world.dev).check("dead-letter", letter);
      assert.deepEqual([letter.status, letter.reason, letter.step_index], ["open", "invalid_arguments", step.step_index]);
      assert.match(letter.message, /^the model's output stayed invalid/);
      assert.equal(letter.envelope.payload.tool, tool);
      if (provider === "anthropic") assert.equal(rawAt((await world.dev.get(`/v1/dead-letters/${letter.dead_letter_id}`)).text, "envelope", "payload", "arguments", "where"), "18446744073709551616");
      else assert.ok(JSON.stringify(letter.envelope.payload).includes("id=4"), "as it was written");
      const blocker = await blockerOf(world.dev, run_id);
      assert.deepEqual([blocker.kind, blocker.step_index], ["dead_letter", step.step_index]);

      // A person mends it: the tool is called, and the model gets the result in its place.
      llm.on(agent, [{ text: "thank you" }]);
      await world.dev.ok("POST", `/v1/dead-letters/${letter.dead_letter_id}/redeliver`, { body: { payload: { tool, arguments: { where: "id=4" } } } });
      const ended = await world.dev.untilRun(run_id, ["completed", "failed", "blocked"]);
      assert.deepEqual([ended.status, ended.output], ["completed", "thank you"], JSON.stringify(ended));
      assert.deepEqual(callsTo(tool).map(({ json: given }) => given), [{ where: "id=4" }]);
      assert.equal(requests().length, 4);
      const results = resultsOf(requests(), 3);
      assert.deepEqual(results.map(valueIn), [{ ok: 1 }, { deleted: 1 }]);
      const log = await verifyLog(world.dev, run_id);
      assert.equal(countOf(log, "dead_letter.opened"), 1);
      assert.equal(countOf(log, "dead_letter.settled"), 1);
    });
  });

  test("its unknown tool is a dead letter of that kind; a person's result or refusal goes to the model", async () => {
    for (const [settlement, body, check] of [
      ["resolve", { result: { by: "hand" } }, (result) => assert.deepEqual(valueIn(result), { by: "hand" })],
      ["discard", { comment: "no such thing" }, (result) => assert.match(errorIn(result).message, /no such thing|discard/)],
    ]) {
      const tool = await toolOf(world, "known", {});
      const { agent, requests } = await agentWith("openai", [...Array(3).fill({ calls: [{ name: "Get Weather!", arguments: {} }] }), { text: "ok" }], { tools: [tool] });
      const { run_id } = await world.dev.startRun({ agent, input: "Go." });
      await world.dev.untilRun(run_id, "blocked");
      assert.equal(requests().length, 3);
      const [letter] = await world.dev.deadLetters(run_id);
      assert.equal(letter.reason, "unknown_tool");
      assert.match(letter.message, /^the model's output stayed invalid/);
      await world.dev.ok("POST", `/v1/dead-letters/${letter.dead_letter_id}/${settlement}`, { body });
      const run = await world.dev.untilRun(run_id, ["completed", "failed", "blocked"]);
      assert.equal(run.status, "completed", JSON.stringify(run));
      assert.equal(requests().length, 4);
      check(resultsOf(requests(), 3)[0]);
    }
  });

  test("a payload that does not fit either is refused, and the dead letter stays open", async () => {
    const parameters = { ...OBJECT, required: ["where"], properties: { where: { type: "string" } } };
    const tool = await toolOf(world, "mend", { body: { deleted: 1 } }, { parameters });
    const { agent, requests } = await agentWith("openai", [...Array(3).fill({ calls: [call(tool, BROKEN)] }), { text: "ok" }], { tools: [tool] });
    const { run_id } = await world.dev.startRun({ agent, input: "Go." });
    await world.dev.untilRun(run_id, "blocked");
    const [{ dead_letter_id: id }] = await world.dev.deadLetters(run_id);
    // As it was it is no better, and neither is another that does not fit: there is a letter to settle afterwards.
    for (const body of [{ payload: { tool, arguments: { where: 4 } } }, {}]) {
      const open = (await world.dev.deadLetters(run_id)).find(({ status }) => status === "open");
      const answer = await world.dev.post(`/v1/dead-letters/${open.dead_letter_id}/redeliver`, body);
      assert.ok([200, 202, 422].includes(answer.status), answer.text);
      await world.dev.untilRun(run_id, "blocked");
    }
    assert.equal(callsTo(tool).length, 0);
    const last = (await world.dev.deadLetters(run_id)).find(({ status }) => status === "open");
    assert.ok(last, `one is open after ${id}`);
    await world.dev.ok("POST", `/v1/dead-letters/${last.dead_letter_id}/redeliver`, { body: { payload: { tool, arguments: { where: "id=4" } } } });
    await world.dev.untilRun(run_id, "completed");
    assert.deepEqual(callsTo(tool).map(({ json: given }) => given), [{ where: "id=4" }]);
    assert.equal(requests().length, 4);
  });

  test("rounds that are right in between start the count anew", async () => {
    const tool = await toolOf(world, "between", echo);
    const bad = { calls: [call(tool, BROKEN)] };
    const { agent, requests } = await agentWith("openai", [bad, bad, { calls: [call(tool, { n: 1 })] }, bad, bad, { calls: [call(tool, { n: 2 })] }, { text: "ok" }], { tools: [tool] });
    const { log } = await completes(agent);
    assert.equal(requests().length, 7);
    assert.equal(countOf(log, "dead_letter.opened"), 0);
    assert.deepEqual(callsTo(tool).map(({ json: { n } }) => n), [1, 2]);
  });

  test("may be given no round to mend it, or many", async () => {
    for (const attempts of [0, 1, 5]) {
      const tool = await toolOf(world, "attempts", {});
      const { agent, requests } = await agentWith("openai", () => ({ calls: [call(tool, BROKEN)] }), { tools: [tool], planner: { repair: { attempts } } });
      const { run_id } = await world.dev.startRun({ agent, input: "Go." });
      await world.dev.untilRun(run_id, "blocked");
      assert.equal(requests().length, attempts + 1);
      assert.equal(callsTo(tool).length, 0);
      await world.dev.ok("POST", `/v1/runs/${run_id}/cancel`);
    }
  });

  test("several wrong calls of its last round are as many dead letters, settled one by one", async () => {
    const tool = await toolOf(world, "several", echo);
    const turn = { calls: [call(tool, BROKEN), call(tool, { n: 1 }), call(tool, "True"), { name: "nobody", arguments: {} }] };
    const { agent, requests } = await agentWith("openai", [turn, turn, turn, { text: "ok" }], { tools: [tool] });
    const { run_id } = await world.dev.startRun({ agent, input: "Go." });
    await world.dev.untilRun(run_id, "blocked");
    const letters = (await world.dev.deadLetters(run_id)).sort((a, b) => a.step_index - b.step_index);
    assert.deepEqual(letters.map(({ reason }) => reason), ["invalid_arguments", "invalid_arguments", "unknown_tool"]);
    await world.dev.ok("POST", `/v1/dead-letters/${letters[0].dead_letter_id}/redeliver`, { body: { payload: { tool, arguments: { n: 0 } } } });
    await world.dev.ok("POST", `/v1/dead-letters/${letters[2].dead_letter_id}/discard`, { body: { comment: "no" } });
    assert.equal(requests().length, 3);
    await world.dev.ok("POST", `/v1/dead-letters/${letters[1].dead_letter_id}/resolve`, { body: { result: { n: 2 } } });
    const run = await world.dev.untilRun(run_id, ["completed", "failed", "blocked"]);
    assert.equal(run.status, "completed", JSON.stringify(run));
    const results = resultsOf(requests(), 3);
    assert.deepEqual(results.slice(0, 3).map(valueIn), [{ n: 0 }, { n: 1 }, { n: 2 }]);
    errorIn(results[3]);
    assert.deepEqual(callsTo(tool).map(({ json: { n } }) => n).sort(), [0, 1, 1, 1]);
  });
});

test("what a model said is in the log as it said it, and what was made of it beside it", async () => {
  const tool = await toolOf(world, "raw", echo);
  const said = '{ "b" : 1.50, "a":18446744073709551616,  "e":"\\u00e9" }';
  const { agent, requests } = await agentWith("openai", [{ calls: [call(tool, said)] }, { text: "ok" }], { tools: [tool] });
  const { run, log } = await completes(agent);
  assert.deepEqual(typesOf(log).slice(0, 5), ["run.created", "plan.requested", "run.started", "plan.claimed", "plan.completed"]);
  const [{ answer }] = payloads(log, "plan.completed");
  assert.equal(answer.choices[0].message.tool_calls[0].function.arguments, said);
  const [made] = callsTo(tool);
  assert.equal(canonical(made.text), canonical(said));
  assert.equal(requests().length, 2);
  assertOneEffect(world.sink, run, { once: true });
});
