// A model decides: each answer is recorded once, what it wants is done, and each call gets its result.

import assert from "node:assert/strict";
import { afterEach, describe, test } from "node:test";
import { assertOneEffect, countOf, eachOf } from "./support/checks.mjs";
import { schemasOf } from "./support/contract.mjs";
import { heldTool } from "./support/held.mjs";
import { rawAt } from "./support/json.mjs";
import { logTexts, typesOf, verifyLog } from "./support/log.mjs";
import { LLM_KEY, PROVIDERS, SECRETS, SOON, agentOf, asked, call, echo, errorIn, json, llmOfFile, offered, payloads, resultsOf, toolOf, valueIn } from "./support/models.mjs";
import { unique, worldOfFile } from "./support/runtime.mjs";
import { seamsOf } from "./support/seams.mjs";
import { blockerOf, standingChecks } from "./support/standing.mjs";
import { until } from "./support/until.mjs";
import { signalled } from "./support/waits.mjs";

const world = worldOfFile({ vars: SECRETS });
const llm = llmOfFile();

afterEach(standingChecks(() => world));

const agentWith = (provider, turns, options) => agentOf(world, llm, provider, turns, options);
const startOf = (agent, input = "Buy a part.") => world.dev.startRun({ agent, input });
const endOf = (agent, input = "Buy a part.") => world.dev.runToEnd({ agent, input });

/** Fails unless a run of the agent completes; answers the run and its verified log. */
async function completes(agent, input) {
  const { run_id } = await startOf(agent, input);
  return completed(run_id);
}

async function completed(runId) {
  const run = await world.dev.untilRun(runId, ["completed", "failed", "cancelled", "blocked"]);
  assert.equal(run.status, "completed", JSON.stringify(run));
  return { run, log: await verifyLog(world.dev, runId) };
}

for (const provider of PROVIDERS) {
  describe(`${provider}: rounds`, () => {
    test("a plain answer is the run's output, and all of it is in the log", async () => {
      const { agent, model, requests } = await agentWith(provider, [{ text: "Done. ", usage: { input: 31, output: 5, cached: 8 } }], {
        planner: { system: "You buy parts." },
        model: { headers: { "X-Extra": "yes" }, ...(provider === "anthropic" && { version: "2026-10-21" }) },
      });
      const { run, log } = await completes(agent, "Buy a part. ✓");
      assert.deepEqual([run.output, run.error], ["Done. ", null]);
      assert.deepEqual(run.steps.map(({ step_index, id, kind, name, status, attempts }) => [step_index, id, kind, name, status, attempts]), [
        [0, "round-1", "plan", model, "completed", 1],
      ]);
      assert.deepEqual([run.usage.model_calls, run.usage.input_tokens, run.usage.output_tokens, run.usage.tool_calls], [1, 31, 5, 0]);
      await schemasOf(world.dev).check("run", run);

      assert.deepEqual(typesOf(log), ["run.created", "plan.requested", "run.started", "plan.claimed", "plan.completed", "run.completed"]);
      assert.deepEqual(payloads(log, "plan.requested"), [{ round: 1, after_seq: 1 }]);
      const [{ answer, tries, ...told }] = payloads(log, "plan.completed");
      assert.deepEqual(answer, JSON.parse(requests()[0].answer), "the provider's answer, as it came");
      assert.equal(told.text, "Done. ");
      assert.deepEqual(told.calls ?? [], []);
      assert.equal(tries.length, 1);
      const [{ latency_ms, ...first }] = tries;
      assert.ok(Number.isInteger(latency_ms) && latency_ms >= 0);
      assert.deepEqual([first.provider, first.model, first.input_tokens, first.output_tokens], [provider, model, 31, 5]);

      const [request] = requests();
      assert.equal(requests().length, 1);
      assert.equal(provider === "anthropic" ? request.headers["x-api-key"] : request.headers.authorization, provider === "anthropic" ? LLM_KEY : `Bearer ${LLM_KEY}`);
      assert.equal(request.headers["x-extra"], "yes");
      if (provider === "anthropic") assert.equal(request.headers["anthropic-version"], "2026-10-21");
      assert.deepEqual(request.conversation.messages, [{ role: "user", text: "Buy a part. ✓" }]);
      assert.equal(request.conversation.system, "You buy parts.");
      assert.deepEqual(request.conversation.tools, []);
    });

    test("input that is no string is told as JSON, digit for digit; parameters go along", async () => {
      const { agent, requests } = await agentWith(provider, [{ text: "ok" }], { model: { parameters: { max_tokens: 77, metadata: { a: 1 } } } });
      const input = '{"id":18446744073709551616,"neg":-9007199254740993,"€":["é",1.50]}';
      const started = await world.dev.ok("POST", "/v1/runs", { body: `{"agent":"${agent}","input":${input}}` });
      await completed(started.run_id);
      const [{ text }] = requests()[0].conversation.messages;
      assert.deepEqual(JSON.parse(text), JSON.parse(input));
      assert.equal(rawAt(text, "id"), "18446744073709551616");
      assert.equal(rawAt(text, "neg"), "-9007199254740993");
      assert.deepEqual([requests()[0].body.max_tokens, requests()[0].body.metadata], [77, { a: 1 }]);
    });

    test("two calls of a round run side by side, and their results go back in the model's order", async () => {
      let second;
      const secondCalled = new Promise((done) => (second = done));
      // The first can only answer when the second has been called.
      const slow = await toolOf(world, "vendor.quote", async () => (await secondCalled, { body: '{"cents":4500,"id":9007199254740993}' }));
      const fast = await toolOf(world, "stock", () => (second(), { body: { left: 3 } }), {
        description: "What is left",
        parameters: { type: "object", required: ["part"], properties: { part: { type: "string" } } },
      });
      const { agent, model, requests } = await agentWith(
        provider,
        [{ text: "Let me see.", calls: [call(slow, { part: "p-1" }), call(fast, { part: "p-2" })] }, { text: "It is 45 euros." }],
        { tools: [slow, fast] },
      );
      const { run, log } = await completes(agent);
      assert.equal(run.output, "It is 45 euros.");
      assert.deepEqual(
        run.steps.map(({ step_index, id, kind, name, status }) => [step_index, id, kind, name, status]),
        [
          [0, "round-1", "plan", model, "completed"],
          [1, "round-1.1", "tool", slow, "completed"],
          [2, "round-1.2", "tool", fast, "completed"],
          [3, "round-2", "plan", model, "completed"],
        ],
      );
      assert.deepEqual([run.usage.model_calls, run.usage.tool_calls, run.usage.input_tokens, run.usage.output_tokens], [2, 2, 22, 14]);
      assertOneEffect(world.sink, run, { once: true });

      const [first, then] = requests();
      assert.equal(requests().length, 2);
      const { tools } = first.conversation;
      assert.deepEqual(tools.map(({ name }) => name).sort(), [offered(slow), offered(fast)].sort());
      const told = tools.find(({ name }) => name === offered(fast));
      assert.equal(told.description, "What is left");
      assert.deepEqual(told.parameters.properties, { part: { type: "string" } });
      assert.deepEqual(told.parameters.required, ["part"]);
      // The conversation grows at its end alone.
      assert.deepEqual(then.conversation.messages.slice(0, 1), first.conversation.messages);
      const [user, assistant, results, ...rest] = then.conversation.messages;
      assert.deepEqual([user.role, assistant.role, results.role, rest], ["user", "assistant", "results", []]);
      assert.equal(assistant.text, "Let me see.");
      assert.deepEqual(assistant.calls.map(({ name }) => name), [offered(slow), offered(fast)]);
      const [quote, stock] = resultsOf(requests(), 1);
      assert.deepEqual(valueIn(quote), { cents: 4500, id: Number("9007199254740993") });
      assert.equal(rawAt(quote.content, "id"), "9007199254740993");
      assert.deepEqual(valueIn(stock), { left: 3 });

      const requested = log.filter(({ event_type }) => event_type === "tool.requested");
      assert.deepEqual(requested.map(({ step_index, payload }) => [step_index, payload]), [
        [1, { tool: slow, arguments: { part: "p-1" } }],
        [2, { tool: fast, arguments: { part: "p-2" } }],
      ]);
      const [one, two] = payloads(log, "plan.completed");
      assert.equal(one.text, "Let me see.");
      assert.deepEqual(one.calls.map(({ id }) => id), assistant.calls.map(({ id }) => id));
      for (const { error } of one.calls) assert.equal(error ?? null, null);
      assert.deepEqual(one.answer, JSON.parse(first.answer));
      assert.deepEqual(two.answer, JSON.parse(then.answer));
      assert.deepEqual(payloads(log, "plan.requested").map(({ round }) => round), [1, 2]);
    });

    test("many rounds: each is asked once, with all that came before", async () => {
      const tool = await toolOf(world, "count", ({ json: { n } }) => ({ body: { n, next: n + 1 } }));
      const { agent, requests } = await agentWith(
        provider,
        (request, number) => (number < 12 ? { calls: [call(tool, { n: number })] } : { text: `${request.conversation.messages.length} messages` }),
        { tools: [tool] },
      );
      const { run, log } = await completes(agent);
      assert.equal(run.output, "25 messages");
      assert.equal(requests().length, 13);
      for (const [n, request] of requests().entries()) {
        const { messages } = request.conversation;
        assert.equal(messages.length, 1 + 2 * n);
        if (n > 0) {
          assert.deepEqual(messages.slice(0, -2), requests()[n - 1].conversation.messages, "what was said stays said");
          assert.deepEqual(valueIn(resultsOf(requests(), n)[0]), { n: n - 1, next: n });
        }
      }
      assert.equal(countOf(log, "plan.completed"), 13);
      assert.equal(countOf(log, "plan.claimed"), 13);
      assert.deepEqual(run.steps.map(({ id }) => id), Array.from({ length: 25 }, (_, i) => (i % 2 === 0 ? `round-${i / 2 + 1}` : `round-${(i + 1) / 2}.1`)));
      assertOneEffect(world.sink, run, { once: true });
    });

    test("what its model thought goes back to it unchanged", { skip: provider === "openai" && "a chat has no such thing" }, async () => {
      const tool = await toolOf(world, "think", { body: { ok: true } });
      const { agent, requests } = await agentWith(
        provider,
        [{ reasoning: "First A — then B.", text: "Hm.", calls: [call(tool, { a: 1 }), call(tool, { a: 2 })] }, { reasoning: "Now C.", calls: [call(tool, { a: 3 })] }, { text: "done" }],
        { tools: [tool] },
      );
      await completes(agent);
      const shown = (request) => (provider === "anthropic" ? request.body.messages.filter(({ role }) => role === "assistant").flatMap(({ content }) => content) : request.body.input);
      for (const [n, type] of [[0, provider === "anthropic" ? "thinking" : "reasoning"], [1, provider === "anthropic" ? "thinking" : "reasoning"]]) {
        const said = JSON.parse(requests()[n].answer);
        const thought = (provider === "anthropic" ? said.content : said.output).find((part) => part.type === type);
        const kept = shown(requests()[2]).filter((part) => part.type === type);
        assert.equal(kept.length, 2);
        const bare = ({ status, ...part }) => part;
        assert.deepEqual(bare(kept[n]), bare(thought));
      }
    });

    test("finish reasons, usage and text may be missing or wrong: the calls and the text say what is meant", async () => {
      const tool = await toolOf(world, "quirk", { body: { ok: 1 } });
      const turns = {
        "stop with calls": [{ calls: [call(tool)], finish: "stop" }, { text: "a" }],
        "calls announced, none made": [{ text: "a", finish: "tool_calls" }],
        "no usage": [{ calls: [call(tool)], usage: null }, { text: "a", usage: null }],
        "an unknown reason": [{ calls: [call(tool)], finish: provider === "openai_responses" ? "completed" : "eos" }, { text: "a", finish: provider === "openai_responses" ? "completed" : "eos" }],
        "white space beside calls": [{ text: " \n", calls: [call(tool)] }, { text: "a" }],
        "an empty text beside calls": [{ text: "", calls: [call(tool)] }, { text: "a" }],
      };
      await eachOf(Object.entries(turns), 3, async ([what, script]) => {
        const { agent, requests } = await agentWith(provider, script, { tools: [tool] });
        const { run } = await completes(agent);
        assert.equal(run.output, "a", what);
        assert.equal(requests().length, script.length, what);
        assert.equal(run.steps.filter(({ kind }) => kind === "tool").length, script.length - 1, what);
        assert.equal(run.usage.model_calls, script.length, what);
      });
    });

    test("an empty answer is no answer: it is asked for once more, and told so", async () => {
      for (const empty of [{}, { text: "" }, { text: "  \n" }]) {
        const { agent, requests } = await agentWith(provider, [empty, { text: "now" }]);
        const { run } = await completes(agent);
        assert.equal(run.output, "now");
        assert.equal(requests().length, 2);
        const { messages } = requests()[1].conversation;
        assert.equal(messages.at(-1).role, "user");
        assert.match(messages.at(-1).text, /empty/i);
      }
    });

    test("tools' names are mapped to what providers take and back, each to its own tool", async () => {
      const stem = unique("map");
      const names = [`${stem}.a`, `${stem}_a`, `${stem}-a`, `${stem}.${"x".repeat(60 - stem.length)}`];
      for (const name of names) {
        world.sink.on(`/${name}`, { body: JSON.stringify(name) });
        await world.dev.putTool(name, { description: name, http: { method: "POST", url: `${world.sink.url}/${name}` } });
      }
      const { agent, requests } = await agentWith(
        provider,
        ({ conversation: { tools } }, number) =>
          number === 0 ? { calls: names.map((name) => ({ name: tools.find(({ description }) => description === name).name, arguments: {} })) } : { text: "ok" },
        { tools: names },
      );
      const { run } = await completes(agent);
      assert.deepEqual(run.steps.slice(1, 5).map(({ name, result }) => [name, result]), names.map((name) => [name, name]));
      assert.deepEqual(resultsOf(requests(), 1).map(({ content }) => content.replaceAll('"', "")), names);
    });

    test("a stream is neither asked for nor taken: what comes as one is a fault, and nothing in it is done", async () => {
      const tool = await toolOf(world, "stream", { body: { ok: 1 } });
      const head = (index, id, given) => ({ choices: [{ index: 0, delta: { tool_calls: [{ index, id, type: "function", function: { name: tool, arguments: given } }] } }] });
      const chunks = [head(0, "A", '{"p":"a"}'), head(0, "B", '{"p":"é"}')].map((chunk) => `data: ${JSON.stringify(chunk)}\n\n`).join("");
      const { agent, requests } = await agentWith(
        provider,
        [{ body: `${chunks}data: [DONE]\n\n`, headers: { "content-type": "text/event-stream" } }, { calls: [call(tool, { p: "a" }), call(tool, { p: "é" })] }, { text: "ok" }],
        { tools: [tool] },
      );
      const { run, log } = await completes(agent);
      assert.equal(requests().length, 3);
      for (const { body } of requests()) assert.equal(body.stream ?? false, false);
      if (provider === "openai") assert.equal(requests()[0].body.stream, false);
      assert.deepEqual(world.sink.to(`/${tool}`).map(({ json: { p } }) => p).sort(), ["a", "é"]);
      assert.equal(countOf(log, "plan.retry_scheduled", 0), 1);
      assert.equal(run.steps[0].attempts, 2);
    });
  });

  describe(`${provider}: ids of calls`, () => {
    const variants = {
      "two alike": ["call_1", "call_1"],
      "two empty ones": ["", ""],
      "one that a made-up one might meet": ["call_1", "call_1_1", "call_1"],
      missing: [null, null],
      "odd ones": ["a b/é", "x".repeat(5_000), "ok-1"],
    };
    for (const [what, ids] of Object.entries(variants)) {
      test(`${what}: each call is made once, in the model's order, and has a result of its own`, async () => {
        const order = [];
        const tool = await toolOf(world, "append", ({ json: { v } }) => (order.push(v), { body: { v } }));
        const calls = ids.map((id, n) => call(tool, { v: `v${n}` }, { id }));
        // The same ids once more in the next round.
        const { agent, requests } = await agentWith(provider, [{ calls }, { calls }, { text: "ok" }], { tools: [tool], limits: { max_parallel: 1 } });
        const { run } = await completes(agent);
        const values = ids.map((_, n) => `v${n}`);
        assert.deepEqual(order, [...values, ...values]);
        assertOneEffect(world.sink, run, { once: true });
        for (const n of [1, 2]) assert.deepEqual(resultsOf(requests(), n).map((result) => valueIn(result).v), values);
        const sent = requests()[2].conversation.messages.filter(({ role }) => role === "assistant").flatMap(({ calls: made }) => made);
        assert.equal(new Set(sent.map(({ id }) => id)).size, 2 * ids.length, "no id is used twice");
        // A label that names one call is kept.
        if (ids[0] === "call_1") assert.equal(sent[0].id, "call_1");
        if (ids.includes("ok-1")) assert.equal(sent[2].id, "ok-1");
      });
    }
  });

  describe(`${provider}: numbers`, () => {
    test("keep their digits from the input to the model, the tool, the next request, the log and the output", async () => {
      const tool = await toolOf(world, "digits", echo);
      const texts = [
        '{"id":9007199254740993}',
        '{"id":7300000000000000017}',
        '{"id":18446744073709551615}',
        '{"id":18446744073709551616}',
        '{"id":"7300000000000000017"}',
        '{"id":-9223372036854775809,"v":0.1}',
      ];
      const output = "[9007199254740993,18446744073709551616,-9223372036854775809]";
      const { agent, requests } = await agentWith(
        provider,
        [{ calls: texts.map((text) => call(tool, json(text))) }, { calls: [{ name: "finish", arguments: json(`{"output":{"ids":${output}}}`) }] }],
        { tools: [tool], planner: { output_schema: { type: "object", required: ["ids"] } } },
      );
      const { run_id } = await world.dev.ok("POST", "/v1/runs", { body: `{"agent":"${agent}","input":{"id":18446744073709551615}}` });
      const { run } = await completed(run_id);
      const calls = world.sink.to(`/${tool}`);
      assert.equal(calls.length, texts.length);
      const logged = await logTexts(world.dev, run_id);
      const shown = (await world.dev.get(`/v1/runs/${run_id}`)).text;
      for (const [n, text] of texts.entries()) {
        const id = rawAt(text, "id");
        const step = run.steps.find((candidate) => candidate.id === `round-1.${n + 1}`);
        const made = calls.find(({ key }) => key === step.idempotency_key);
        assert.equal(rawAt(made.text, "id"), id, "the tool");
        assert.equal(rawAt(resultsOf(requests(), 1)[n].content, "id"), id, "the result for the model");
        const said = requests()[1].text;
        // What it said itself is shown to it again.
        const shownArguments = {
          openai: () => JSON.parse(rawAt(said, "messages", requests()[1].body.messages.findIndex(({ tool_calls }) => tool_calls), "tool_calls", n, "function", "arguments")),
          openai_responses: () => requests()[1].body.input.filter(({ type }) => type === "function_call")[n].arguments,
          anthropic: () => {
            const place = requests()[1].body.messages.findIndex(({ role }) => role === "assistant");
            const block = requests()[1].body.messages[place].content.map(({ type }, i) => [type, i]).filter(([type]) => type === "tool_use")[n][1];
            return rawAt(said, "messages", place, "content", block, "input");
          },
        }[provider]();
        assert.equal(rawAt(shownArguments, "id"), id, "the call in the next request");
        const entry = logged.find((line) => rawAt(line, "event_type") === '"tool.requested"' && rawAt(line, "step_index") === String(step.step_index));
        assert.equal(rawAt(entry, "payload", "arguments", "id"), id, "the log");
        assert.equal(rawAt(shown, "steps", step.step_index, "result", "id"), id, "the run");
      }
      assert.equal(rawAt(shown, "output", "ids").replaceAll(" ", ""), output);
      assert.ok(logged.some((line) => rawAt(line, "event_type") === '"run.completed"' && line.includes("18446744073709551616")));
      assert.equal(rawAt(requests()[0].conversation.messages[0].text, "id"), "18446744073709551615");
    });

    test("one that is no finite number is refused, and never sent as null", async () => {
      const tool = await toolOf(world, "infinite", echo);
      const { agent, requests } = await agentWith(provider, [{ calls: [call(tool, json('{"v":0.1,"w":1e400}'))] }, { text: "ok" }], { tools: [tool] });
      const { run_id } = await startOf(agent);
      const run = await world.dev.untilRun(run_id, ["completed", "failed", "blocked"]);
      assert.equal(world.sink.to(`/${tool}`).length, 0);
      // In a string it is one call's fault; in an answer that is JSON it may be the whole answer's.
      if (provider !== "anthropic") {
        assert.equal(run.status, "completed", JSON.stringify(run));
        assert.equal(errorIn(resultsOf(requests(), 1)[0]).reason, "invalid_arguments");
      }
    });
  });

  describe(`${provider}: what fails`, () => {
    test("each call has one result: what failed is told, and what went well is kept", async () => {
      const good = await toolOf(world, "good", { body: { ok: 1 } });
      const forbidden = await toolOf(world, "forbidden", { status: 403, body: { title: "No", detail: "not you" } });
      const down = await toolOf(world, "down", { status: 503 }, { retry: { ...SOON, max_attempts: 2 } });
      const guarded = await toolOf(world, "guarded", { body: { paid: 1 } }, { requires_approval: true });
      const odd = await toolOf(world, "odd", { body: { wrong: 1 } }, { result: { type: "object", required: ["right"] } });
      const names = [good, forbidden, down, guarded, odd, good];
      const { agent, requests } = await agentWith(provider, [{ calls: names.map((name, n) => call(name, { n })) }, { text: "so be it" }], { tools: [...new Set(names)] });
      const { run_id } = await startOf(agent);
      const approval = await until(async () => (await world.dev.run(run_id)).waiting_for.find(({ kind }) => kind === "approval"), { what: "leave is asked for" });
      await world.dev.ok("POST", `/v1/approvals/${approval.approval_id}`, { body: { decision: "rejected", comment: "too dear", decided_by: "ana" } });
      const { run, log } = await completed(run_id);
      assert.equal(run.output, "so be it");
      const results = resultsOf(requests(), 1);
      assert.deepEqual([valueIn(results[0]), valueIn(results[5])], [{ ok: 1 }, { ok: 1 }]);
      const errors = results.slice(1, 5).map(errorIn);
      assert.match(errors[0].message, /403|not you|No/);
      assert.match(errors[1].message, /503/);
      assert.match(errors[2].message, /reject/i);
      assert.match(results[3].content, /too dear/, "with what the person said");
      assert.match(JSON.stringify(errors[3]), /right/);
      assert.deepEqual(run.steps.map(({ status }) => status), ["completed", "completed", "failed", "failed", "failed", "failed", "completed", "completed"]);
      assert.deepEqual([good, forbidden, down, guarded, odd].map((name) => world.sink.to(`/${name}`).length), [2, 1, 2, 0, 1]);
      assert.equal(countOf(log, "dead_letter.opened"), 0, "the model has been told: no person need be");
      assert.deepEqual(await world.dev.deadLetters(run_id), []);
    });

    test("a wait that ran out and a tool that nobody knows do not take the others along", async () => {
      const seams = seamsOf(world.dev);
      const tool = await toolOf(world, "fine", { body: { ok: 1 } });
      const { agent, requests } = await agentWith(
        provider,
        [
          {
            calls: [
              call(tool, { n: 1 }),
              { name: "wait_for", arguments: { signals: ["paid"], timeout: "P7D" } },
              call("nobody-knows", { n: 3 }),
              { name: "sleep", arguments: { duration: "P1D" } },
              call(tool, { n: 5 }),
            ],
          },
          { text: "ok" },
        ],
        { tools: [tool], planner: { engine_tools: ["wait_for", "sleep"] } },
      );
      const { run_id } = await startOf(agent);
      await world.dev.untilRun(run_id, "waiting");
      assert.equal(requests().length, 1);
      await seams.advance(run_id, "P1D");
      await until(async () => (await world.dev.run(run_id)).waiting_for.length === 1, { what: "the sleep is over" });
      await seams.advance(run_id, "P7D");
      const { run } = await completed(run_id);
      const results = resultsOf(requests(), 1);
      assert.deepEqual([valueIn(results[0]), valueIn(results[4])], [{ ok: 1 }, { ok: 1 }]);
      assert.match(errorIn(results[1]).message, /time/i);
      assert.equal(errorIn(results[2]).reason, "unknown_tool");
      assert.notEqual(results[3].isError, true);
      // A call that nobody can carry out is no step.
      assert.equal(run.steps.filter(({ kind }) => kind === "tool").length, 2);
    });

    test("a call whose outcome is unknown, and that must not be repeated, goes to a person; then the model hears of it", async () => {
      const once = await toolOf(world, "once", [{ close: true }, { body: { never: 1 } }], { effect: "at_most_once" });
      const good = await toolOf(world, "beside", { body: { ok: 1 } });
      const { agent, requests } = await agentWith(provider, [{ calls: [call(once, { pay: 5 }), call(good)] }, { text: "ok" }], { tools: [once, good] });
      const { run_id } = await startOf(agent);
      const blocked = await world.dev.untilRun(run_id, "blocked");
      assert.equal(blocked.steps[2].status, "completed");
      const [letter] = await world.dev.deadLetters(run_id);
      assert.deepEqual([letter.reason, letter.step_index, letter.envelope.payload], ["outcome_unknown", 1, { tool: once, arguments: { pay: 5 } }]);
      assert.equal(requests().length, 1);
      await world.dev.ok("POST", `/v1/dead-letters/${letter.dead_letter_id}/resolve`, { body: { result: { settled: "by hand" } } });
      await completed(run_id);
      assert.deepEqual(resultsOf(requests(), 1).map(valueIn), [{ settled: "by hand" }, { ok: 1 }]);
      assert.equal(world.sink.to(`/${once}`).length, 1);
    });
  });

  describe(`${provider}: what it may do besides tools`, () => {
    const engine = (more) => ({ planner: { engine_tools: ["sleep", "wait_for", "ask_person", "start_run", "emit"], ...more } });

    test("sleep: for a duration, and until a time", async () => {
      const seams = seamsOf(world.dev);
      const { agent, requests } = await agentWith(
        provider,
        [{ calls: [{ name: "sleep", arguments: { duration: "P3D" } }] }, { calls: [{ name: "sleep", arguments: { until: "2001-01-01T00:00:00Z" } }] }, { text: "awake" }],
        engine(),
      );
      const { run_id } = await startOf(agent);
      const waiting = await world.dev.untilRun(run_id, "waiting");
      assert.deepEqual(waiting.steps.map(({ id, kind, status }) => [id, kind, status]), [["round-1", "plan", "completed"], ["round-1.1", "sleep", "waiting"]]);
      assert.equal((await blockerOf(world.dev, run_id)).kind, "timer");
      await seams.advance(run_id, "P3D");
      const { run } = await completed(run_id);
      assert.equal(run.output, "awake");
      assert.equal(requests().length, 3);
      for (const n of [1, 2]) assert.notEqual(resultsOf(requests(), n)[0].isError, true);
    });

    test("arguments that the engine's own tools do not take are told back like a tool's", async () => {
      const wrong = [
        ["sleep", {}],
        ["sleep", { duration: "3 days" }],
        ["sleep", { duration: "-P1D" }],
        ["sleep", { duration: "P1D", until: "2030-01-01T00:00:00Z" }],
        ["sleep", { duration: "P11Y" }],
        ["wait_for", { signals: [] }],
        ["wait_for", { signals: ["not a name!"] }],
        ["ask_person", {}],
        ["ask_person", { prompt: "?", schema: { type: "nonsense" } }],
        ["start_run", { input: 1 }],
        ["emit", { data: 1 }],
        ["emit", { type: "a.b", more: 1 }],
      ];
      const { agent, requests } = await agentWith(provider, [{ calls: wrong.map(([name, given]) => ({ name, arguments: given })) }, { text: "sorry" }], engine());
      const { run, log } = await completes(agent);
      assert.deepEqual(resultsOf(requests(), 1).map((result) => errorIn(result).reason), wrong.map(() => "invalid_arguments"));
      assert.deepEqual(run.steps.map(({ kind }) => kind), ["plan", "plan"]);
      assert.equal(countOf(log, "event.emitted"), 0);
    });

    test("wait_for: the first of several signals, with its payload; nothing is decided before", async () => {
      const { agent, requests } = await agentWith(provider, [{ calls: [{ name: "wait_for", arguments: { signals: ["paid", "refused"], timeout: "P7D" } }] }, { text: "ok" }], engine());
      const { run_id } = await startOf(agent);
      const waiting = await world.dev.untilRun(run_id, "waiting");
      assert.deepEqual(waiting.steps.map(({ kind }) => kind), ["plan", "wait_for"]);
      assert.equal(waiting.waiting_for[0].kind, "signal");
      const answer = await world.dev.post(`/v1/runs/${run_id}/signals/refused`, '{"payload":{"why":"no money","id":18446744073709551616}}');
      assert.equal(answer.status, 202);
      await completed(run_id);
      const [result] = resultsOf(requests(), 1);
      const { signal, payload } = valueIn(result);
      assert.deepEqual([signal, payload.why], ["refused", "no money"]);
      assert.equal(rawAt(result.content, "payload", "id"), "18446744073709551616");
    });

    test("ask_person: the answer's data fits the schema that the model gave, and a no is told as such", async () => {
      const schema = { type: "object", required: ["colour"], properties: { colour: { enum: ["red", "blue"] } } };
      const ask = (prompt) => ({ name: "ask_person", arguments: { prompt, schema, timeout: "P7D" } });
      const { agent, requests } = await agentWith(provider, [{ calls: [ask("Which colour?"), ask("Sure?")] }, { text: "ok" }], engine());
      const { run_id } = await startOf(agent);
      const approvals = await until(
        async () => {
          const { waiting_for } = await world.dev.run(run_id);
          return waiting_for.length === 2 && waiting_for;
        },
        { what: "both questions are asked" },
      );
      const [first, second] = approvals.sort((a, b) => a.step_index - b.step_index).map(({ approval_id }) => approval_id);
      const shown = await world.dev.ok("GET", `/v1/approvals/${first}`);
      assert.deepEqual([shown.prompt, shown.schema, shown.step_id], ["Which colour?", schema, "round-1.1"]);
      const decide = (id, body) => world.dev.post(`/v1/approvals/${id}`, body);
      assert.equal((await decide(first, { decision: "approved", data: { colour: "green" } })).status, 422);
      assert.equal((await decide(first, { decision: "approved", data: { colour: "blue" }, comment: "nice", decided_by: "ana" })).status, 200);
      assert.equal((await decide(second, { decision: "rejected", comment: "not today" })).status, 200);
      const { run } = await completed(run_id);
      assert.deepEqual(run.steps.map(({ kind }) => kind), ["plan", "approval", "approval", "plan"]);
      const [yes, no] = resultsOf(requests(), 1);
      const { decision, data, comment, decided_by } = valueIn(yes);
      assert.deepEqual({ decision, data, comment, decided_by }, { decision: "approved", data: { colour: "blue" }, comment: "nice", decided_by: "ana" });
      const refused = valueIn(no);
      assert.deepEqual([refused.decision, refused.comment], ["rejected", "not today"]);
    });

    test("start_run: the child's output is the result; one that fails or is not there is an error", async () => {
      const child = unique("child");
      await world.dev.putAgent(child, { planner: { kind: "plan", steps: [{ id: "e", emit: { type: "x" } }], output: { got: "{{ input.n }}" } } });
      const broken = unique("broken");
      await world.dev.putAgent(broken, { planner: { kind: "plan", steps: [{ id: "w", wait_for: "never", timeout: "PT0S" }] } });
      const start = (agent, input) => ({ name: "start_run", arguments: json(`{"agent":"${agent}","input":${input}}`) });
      const { agent, requests } = await agentWith(
        provider,
        [{ calls: [start(child, '{"n":18446744073709551616}'), start(broken, "{}"), start("nobody-is-called-this", "{}")] }, { text: "ok" }],
        engine(),
      );
      const { run_id } = await startOf(agent);
      const run = await world.dev.untilRun(run_id, ["completed", "failed", "blocked"]);
      assert.equal(run.status, "completed", JSON.stringify(run));
      const [good, failed, none] = resultsOf(requests(), 1);
      assert.equal(rawAt(good.content, "got"), "18446744073709551616");
      errorIn(failed);
      assert.match(errorIn(none).message, /nobody-is-called-this/);
      assert.deepEqual(run.steps.filter(({ kind }) => kind === "run").map(({ status }) => status).slice(0, 2), ["completed", "failed"]);
    });

    test("start_run: only the agents that its own agent names", async () => {
      const child = unique("allowed");
      await world.dev.putAgent(child, { planner: { kind: "plan", steps: [{ id: "e", emit: { type: "x" } }], output: 1 } });
      const other = unique("other");
      await world.dev.putAgent(other, { planner: { kind: "plan", steps: [{ id: "e", emit: { type: "x" } }] } });
      const { agent, requests } = await agentWith(
        provider,
        [{ calls: [{ name: "start_run", arguments: { agent: other } }, { name: "start_run", arguments: { agent: child } }] }, { text: "ok" }],
        { planner: { engine_tools: ["start_run"], agents: [child] } },
      );
      await completes(agent);
      const [refused, done] = resultsOf(requests(), 1);
      assert.equal(errorIn(refused).reason, "invalid_arguments");
      assert.equal(valueIn(done), 1);
      assert.deepEqual((await world.dev.ok("GET", `/v1/runs?agent=${other}`)).items, []);
    });

    test("emit: the event is in the log, digit for digit", async () => {
      const { agent, requests } = await agentWith(provider, [{ calls: [{ name: "emit", arguments: json('{"type":"order.placed","data":{"id":18446744073709551616}}') }] }, { text: "ok" }], engine());
      const { run } = await completes(agent);
      assert.deepEqual(run.steps.map(({ kind, status }) => [kind, status]), [["plan", "completed"], ["emit", "completed"], ["plan", "completed"]]);
      const line = (await logTexts(world.dev, run.run_id)).find((text) => rawAt(text, "event_type") === '"event.emitted"');
      assert.equal(rawAt(line, "payload", "data", "id"), "18446744073709551616");
      assert.notEqual(resultsOf(requests(), 1)[0].isError, true);
    });

    test("what its agent does not allow is not there", async () => {
      const tool = await toolOf(world, "only", { body: {} });
      const names = ["sleep", "wait_for", "ask_person", "start_run", "emit", "finish"];
      const { agent, requests } = await agentWith(provider, [{ calls: [...names.map((name) => ({ name, arguments: {} })), call(tool)] }, { text: "ok" }], { tools: [tool] });
      const { run } = await completes(agent);
      assert.deepEqual(requests()[0].conversation.tools.map(({ name }) => name), [offered(tool)]);
      const results = resultsOf(requests(), 1);
      assert.deepEqual(results.slice(0, 6).map((result) => errorIn(result).reason), names.map(() => "unknown_tool"));
      assert.deepEqual(run.steps.map(({ kind }) => kind), ["plan", "tool", "plan"]);
    });
  });

  describe(`${provider}: output that must fit a schema`, () => {
    const schema = { type: "object", required: ["colour", "n"], properties: { colour: { enum: ["red", "blue"] }, n: { type: "integer" } }, additionalProperties: false };
    const finish = (output) => ({ name: "finish", arguments: json(`{"output":${output}}`) });

    test("finish ends the run with it; one that does not fit, or is not alone, is told back", async () => {
      const tool = await toolOf(world, "paint", { body: { ok: 1 } });
      const { agent, requests } = await agentWith(
        provider,
        [
          { calls: [call(tool), finish('{"colour":"red","n":1}')] },
          { calls: [finish('{"colour":"green","n":"1"}')] },
          { text: "So:", calls: [finish('{"colour":"blue","n":18446744073709551616}')] },
        ],
        { tools: [tool], planner: { output_schema: schema } },
      );
      const { run, log } = await completes(agent);
      const shown = await world.dev.get(`/v1/runs/${run.run_id}`);
      assert.equal(rawAt(shown.text, "output", "n"), "18446744073709551616");
      assert.equal(run.output.colour, "blue");
      assert.equal(requests().length, 3);
      const [done, early] = resultsOf(requests(), 1);
      assert.deepEqual(valueIn(done), { ok: 1 });
      assert.match(errorIn(early).message, /alone/);
      const wrong = errorIn(resultsOf(requests(), 2)[0]);
      assert.equal(wrong.reason, "invalid_arguments");
      assert.deepEqual(wrong.errors.map(({ pointer }) => pointer).sort(), ["/output/colour", "/output/n"]);
      // To finish is no step.
      assert.deepEqual(run.steps.map(({ kind }) => kind), ["plan", "tool", "plan", "plan"]);
      assert.equal(countOf(log, "run.completed"), 1);
    });

    test("text that is the output is taken as it, and none other", async () => {
      const tool = await toolOf(world, "unused", { body: {} });
      const { agent, requests } = await agentWith(
        provider,
        [{ text: "It is red." }, { text: '```json\n{"colour":"red","n":1}\n```' }, { text: ' {"colour":"red","n":7300000000000000017}\n' }],
        { tools: [tool], planner: { output_schema: schema } },
      );
      const { run } = await completes(agent);
      assert.equal(requests().length, 3);
      assert.equal(rawAt((await world.dev.get(`/v1/runs/${run.run_id}`)).text, "output", "n"), "7300000000000000017");
      for (const n of [1, 2]) assert.equal(requests()[n].conversation.messages.at(-1).role, "user", "what was wrong is told");
      assert.match(requests()[1].conversation.messages.at(-1).text, /JSON/);
    });

    test("with nothing to call, the provider is asked for the form", async () => {
      const { agent, requests } = await agentWith(provider, [{ text: '{"colour":"red"}' }, { text: '{"colour":"red","n":3}' }], { planner: { output_schema: schema } });
      const { run } = await completes(agent);
      assert.deepEqual(run.output, { colour: "red", n: 3 });
      assert.deepEqual(requests()[0].conversation.tools, []);
      assert.deepEqual(requests()[0].conversation.schema, schema);
      assert.match(requests()[1].conversation.messages.at(-1).text, /"?n"?/);
    });

    test("a model that never gives it is asked twice more, and then a person is", async () => {
      const { agent, requests } = await agentWith(provider, () => ({ text: "It is red." }), { planner: { output_schema: schema } });
      const { run_id } = await startOf(agent);
      const run = await world.dev.untilRun(run_id, "blocked");
      assert.equal(requests().length, 3);
      const [letter] = await world.dev.deadLetters(run_id);
      assert.deepEqual([letter.reason, letter.step_index], ["invalid_result", run.steps.length - 1]);
      assert.match(letter.message, /stayed invalid/);
      await world.dev.ok("POST", `/v1/dead-letters/${letter.dead_letter_id}/resolve`, { body: { result: { colour: "blue", n: 9 } } });
      const { run: ended } = await completed(run_id);
      assert.deepEqual(ended.output, { colour: "blue", n: 9 });
      assert.equal(requests().length, 3);
    });
  });
}

describe("a round", () => {
  test("whose message comes several times is asked for once", async () => {
    const seams = seamsOf(world.dev);
    const tool = await heldTool(world);
    let answer;
    const hold = new Promise((done) => (answer = done));
    const { agent, model, requests } = await agentWith("openai", [{ hold, calls: [call(tool.name)] }, { text: "ok" }], { tools: [tool.name] });
    const { run_id } = await startOf(agent);
    await asked(llm, model, 1);
    await seams.redeliver(run_id, 0, 5);
    // Those that came while it was asked are through when another run's round is.
    const other = await agentWith("openai", [{ text: "ok" }]);
    await endOf(other.agent);
    assert.equal(requests().length, 1);
    answer();
    await tool.called(1);
    await seams.redeliver(run_id, 0, 5);
    await endOf((await agentWith("openai", [{ text: "ok" }])).agent);
    tool.releaseAll();
    const { run } = await completed(run_id);
    await seams.redeliver(run_id, 2, 3);
    await endOf((await agentWith("openai", [{ text: "ok" }])).agent);
    assert.equal(requests().length, 2);
    assertOneEffect(world.sink, run, { once: true });
    assert.deepEqual((await world.dev.run(run_id)).updated_at, run.updated_at);
  });

  test("with one call costs four commits of one row, and a message of each queue", async () => {
    const tool = await toolOf(world, "priced", { body: {} });
    const { agent } = await agentWith("openai", [{ calls: [call(tool)] }, { text: "ok" }], { tools: [tool] });
    const { run_id } = await startOf(agent);
    await completed(run_id);
    const { operations } = await seamsOf(world.dev).internals(run_id);
    // Born 1, the round 4 (asked, answered, called, reported), the last one 2.
    assert.deepEqual([operations.commits, operations.rows_written], [7, 7]);
    assert.deepEqual([operations.plan_messages, operations.work_messages, operations.alarms_set], [2, 1, 1]);
  });

  test("is not begun after a cancel, and an answer that comes later does nothing", async () => {
    const tool = await toolOf(world, "late", { body: {} });
    let answer;
    const hold = new Promise((done) => (answer = done));
    const { agent, model, requests } = await agentWith("anthropic", [{ hold, calls: [call(tool)] }, { text: "ok" }], { tools: [tool] });
    const { run_id } = await startOf(agent);
    await asked(llm, model, 1);
    await world.dev.ok("POST", `/v1/runs/${run_id}/cancel`);
    answer();
    const closed = async () => {
      const shown = await world.dev.run(run_id);
      return shown.ended_at !== null && shown;
    };
    const run = await until(closed, { what: "the log is closed" });
    assert.equal(run.status, "cancelled");
    await endOf((await agentWith("openai", [{ text: "ok" }])).agent);
    assert.equal(world.sink.to(`/${tool}`).length, 0);
    assert.equal(requests().length, 1);
    assert.equal((await world.dev.run(run_id)).updated_at, run.updated_at);
  });

  test("of a paused run waits until it is resumed", async () => {
    const tool = await heldTool(world);
    const { agent, requests } = await agentWith("openai", [{ calls: [call(tool.name)] }, { text: "ok" }], { tools: [tool.name] });
    const { run_id } = await startOf(agent);
    await tool.called(1);
    await world.dev.ok("POST", `/v1/runs/${run_id}/pause`);
    tool.releaseAll();
    await until(async () => (await world.dev.run(run_id)).steps[1].status === "completed", { what: "the call is through" });
    await endOf((await agentWith("openai", [{ text: "ok" }])).agent);
    assert.equal(requests().length, 1);
    await world.dev.ok("POST", `/v1/runs/${run_id}/resume`);
    await completed(run_id);
    assert.equal(requests().length, 2);
  });

  test("of thirty calls: all are made once, also when bodies are slow or never end", async () => {
    const { createServer } = await import("node:http");
    const open = new Set();
    const seen = [];
    let widest = 0;
    // Headers at once, the body later, or never.
    const server = createServer(async (request, response) => {
      let text = "";
      for await (const chunk of request) text += chunk;
      const { n } = JSON.parse(text);
      seen.push(n);
      open.add(response);
      widest = Math.max(widest, open.size);
      response.on("close", () => open.delete(response));
      response.writeHead(200, { "content-type": "application/json" });
      response.write('{"n":');
      if (request.url === "/endless") return;
      setTimeout(() => response.end(`${n}}`), 400);
    });
    await new Promise((done) => server.listen(0, "127.0.0.1", done));
    try {
      const url = `http://127.0.0.1:${server.address().port}`;
      const [slow, endless] = [unique("slow"), unique("endless")];
      await world.dev.putTool(slow, { http: { method: "POST", url: `${url}/slow` }, retry: { max_attempts: 1 } });
      await world.dev.putTool(endless, { http: { method: "POST", url: `${url}/endless` }, timeout: "PT2S", retry: { max_attempts: 1 } });
      const names = Array.from({ length: 30 }, (_, n) => (n === 7 || n === 22 ? endless : slow));
      const { agent, requests } = await agentWith("openai", [{ calls: names.map((name, n) => call(name, { n })) }, { text: "ok" }], { tools: [slow, endless], limits: { max_parallel: 30 } });
      const { run } = await completes(agent);
      const results = resultsOf(requests(), 1);
      for (const [n, result] of results.entries()) {
        if (names[n] === slow) assert.deepEqual(valueIn(result), { n });
        else assert.match(errorIn(result).message, /time/i);
      }
      assert.deepEqual([...seen].sort((a, b) => a - b), names.map((_, n) => n), "each once");
      assert.equal(run.steps.filter(({ status }) => status === "failed").length, 2);
      assert.ok(widest > 1, "side by side");
    } finally {
      server.closeAllConnections();
      server.close();
    }
  });

  test("never has more calls in flight than its agent allows", async () => {
    let inFlight = 0;
    let widest = 0;
    const tool = await toolOf(world, "narrow", async () => {
      inFlight += 1;
      widest = Math.max(widest, inFlight);
      await new Promise((done) => setImmediate(done));
      inFlight -= 1;
      return { body: {}, delay: 5 };
    });
    const { agent } = await agentWith("openai", [{ calls: Array.from({ length: 20 }, (_, n) => call(tool, { n })) }, { text: "ok" }], { tools: [tool], limits: { max_parallel: 3 } });
    const { run, log } = await completes(agent);
    let open = 0;
    for (const { event_type } of log) {
      if (event_type === "tool.requested") open += 1;
      if (event_type === "tool.completed") open -= 1;
      assert.ok(open <= 3, `${open} steps at once`);
    }
    assertOneEffect(world.sink, run, { once: true });
  });

  test("of an approval-guarded call: what is approved is what the model said, digit for digit", async () => {
    const pay = await toolOf(world, "pay", echo, { requires_approval: true });
    const { agent, requests } = await agentWith("openai", [{ calls: [call(pay, json('{"to":"acct-7","amount":82000,"id":18446744073709551616}'))] }, { text: "ok" }], { tools: [pay] });
    const { run_id } = await startOf(agent);
    const { approval_id } = await until(async () => (await world.dev.run(run_id)).waiting_for.find(({ kind }) => kind === "approval"), { what: "leave is asked for" });
    const shown = await world.dev.get(`/v1/approvals/${approval_id}`);
    assert.equal(rawAt(shown.text, "arguments", "id"), "18446744073709551616");
    assert.equal(world.sink.to(`/${pay}`).length, 0);
    await world.dev.ok("POST", `/v1/approvals/${approval_id}`, { body: { decision: "approved" } });
    await completed(run_id);
    const [made] = world.sink.to(`/${pay}`);
    assert.equal(rawAt(made.text, "id"), "18446744073709551616");
    assert.equal(rawAt(made.text, "amount"), "82000");
    assert.equal(requests().length, 2, "it is not asked again");
  });

  test("takes signals that came early, as a plan does", async () => {
    const tool = await heldTool(world);
    const { agent, requests } = await agentWith("openai", [{ calls: [call(tool.name)] }, { calls: [{ name: "wait_for", arguments: { signals: ["paid"] } }] }, { text: "ok" }], {
      tools: [tool.name],
      planner: { engine_tools: ["wait_for"] },
    });
    const { run_id } = await startOf(agent);
    await tool.called(1);
    await signalled(world.dev, run_id, "paid", { cents: 7 });
    tool.releaseAll();
    await completed(run_id);
    const { signal, payload } = valueIn(resultsOf(requests(), 2)[0]);
    assert.deepEqual([signal, payload], ["paid", { cents: 7 }]);
  });
});
