// Models that say anything at all: every request to them obeys the rules of its form, nothing is done that
// they did not say, and every run ends, or says truly what holds it.

import assert from "node:assert/strict";
import { afterEach, test } from "node:test";
import { isDeepStrictEqual } from "node:util";
import { countOf, eachOf } from "./support/checks.mjs";
import { verifyLog } from "./support/log.mjs";
import { PROVIDERS, SECRETS, json, llmOfFile, payloads } from "./support/models.mjs";
import { randomOf, seeded } from "./support/random.mjs";
import { unique, worldOfFile } from "./support/runtime.mjs";
import { seamsOf } from "./support/seams.mjs";
import { standingChecks } from "./support/standing.mjs";
import { until } from "./support/until.mjs";

const world = worldOfFile({ vars: SECRETS });
const llm = llmOfFile();

afterEach(standingChecks(() => world));

const RUNS = 90;
const SCHEMA = { type: "object", required: ["n"], properties: { n: { type: "integer" }, tags: { type: "array", items: { type: "string" } } }, additionalProperties: false };
const ARGUMENTS = [
  '{"n":1}', '{"n":18446744073709551616}', '{"n":-0}', '{"n":2,"tags":["a","é😀"]}', '{"n":3,"tags":[]}', // right
  "", " ", "null", "{}", '{"n":"1"}', '{"n":1.5}', '{"n":1,"more":2}', '{"tags":"a"}', '{"n":1', "{'n':1}", '{"n":1}}', '```json\n{"n":1}\n```',
  '"{\\"n\\":1}"', "[]", "[1]", "true", "7", '{"n":1e999}', '{"n":NaN}', '{"n":1,"n":2}', '{"__proto__":{"n":1},"n":4}', '{"n":1}{"n":2}', "\u0001", "undefined", '{"n":1,}',
  '{"tags":["\\u0000"],"n":1}', '{"tags":["\\ud800"],"n":1}', `{"n":5,"tags":["${"x".repeat(3_000)}"]}`, "[".repeat(5_000),
];
const IDS = [undefined, undefined, undefined, "", null, "call_1", "call_1", "call_r1_1", "a b", "é", "x".repeat(300)];
const FINISHES = [undefined, undefined, undefined, undefined, "stop", "tool_calls", "length", "eos"];
const TEXTS = [undefined, undefined, "", " \n", "Hm.", "Überlegen… 😀", '{"n":1}', '{"output":{"n":1}}', "```json\n{}\n```", "<tool_call>{}</tool_call>", "x".repeat(5_000)];

/** A turn that a model might take. */
function turnOf(random, provider, names) {
  const one = (list) => list[random.below(list.length)];
  const roll = random.below(100);
  if (roll < 12) {
    return one([
      { status: 503 }, { status: 500, body: "oops", headers: { "content-type": "text/plain" } }, { status: 429, headers: { "retry-after": "0" } }, { status: 529 }, { close: true },
      { body: "" }, { body: "<html>" }, { body: "null" }, { body: "[]" }, { body: "{}" }, { body: '{"error":{"message":"late","code":500}}' }, { body: '{"error":"late"}' },
      { body: '{"choices":[]}' }, { body: '{"choices":[{"message":null}]}' }, { body: '{"choices":[{"message":{"role":"assistant","content":null,"tool_calls":null}}]}' },
      { body: '{"choices":[{"message":{"role":"assistant","content":[{"type":"text","text":"parts"}]},"finish_reason":"stop"}]}' },
      { body: '{"type":"message","content":[],"stop_reason":"end_turn"}' }, { body: '{"type":"message","content":"text","stop_reason":"end_turn"}' }, { body: '{"type":"message","content":[{"type":"tool_use"}],"stop_reason":"tool_use"}' },
      { body: '{"type":"message","content":[{"type":"server_tool_use","id":"s1","name":"web_search","input":{}},{"type":"text","text":"t"}],"stop_reason":"end_turn"}' },
      { body: '{"output":[],"status":"completed"}' }, { body: '{"output":null}' }, { body: '{"output":[{"type":"function_call"}],"status":"completed"}' }, { body: '{"output":[{"type":"web_search_call","id":"ws_1"}],"status":"completed"}' },
      { body: '{"output":[{"type":"message","role":"assistant","content":[{"type":"output_text","text":"t"}]}],"status":"in_progress"}' },
      { body: 'data: {"choices":[]}\n\ndata: [DONE]\n\n', headers: { "content-type": "text/event-stream" } },
    ]);
  }
  const usage = one([undefined, undefined, null, { input: 0, output: 0 }, { input: 1_000, output: 3 }]);
  const finish = one(FINISHES);
  if (roll < 24) return { text: one(TEXTS), usage, finish, ...(random.below(4) === 0 && { refusal: "I will not." }) };
  const calls = Array.from({ length: 1 + random.below(5) }, () => {
    const id = one(IDS);
    const given = one(ARGUMENTS);
    const name = one([names.tool, names.tool, names.tool, names.fails, names.fails, "sleep", "wait_for", "emit", "start_run", "finish", "nobody", "", `${names.tool} `, names.tool.toUpperCase(), "a.b", "日本"]);
    const right = {
      sleep: one(['{"duration":"PT0S"}', '{"duration":"PT1H"}', '{"until":"2001-01-01T00:00:00Z"}', '{"duration":"soon"}']),
      wait_for: one(['{"signals":["go"],"timeout":"PT0S"}', '{"signals":["go"],"timeout":"P1D"}', '{"signals":[]}']),
      emit: one(['{"type":"a.b","data":18446744073709551616}', '{"data":1}']),
      start_run: one([`{"agent":"${names.child}"}`, '{"agent":"nobody-here"}', '{"agent":7}']),
      finish: one(['{"output":{"n":1}}', '{"output":{"n":"x"}}', "{}"]),
    }[name];
    const text = right ?? given;
    let asJson = false;
    try {
      asJson = text !== "" && JSON.parse(text) !== undefined && !/1e999|ud800|u0000/.test(text);
    } catch {
      // No JSON: only as a text.
    }
    // Anthropic sends values; the others texts, and now and then an object.
    const arguments_ = provider === "anthropic" ? (asJson ? json(text) : random.below(3) === 0 ? undefined : text) : random.below(12) === 0 ? undefined : text;
    return { name, arguments: arguments_, ...(id !== undefined && { id }) };
  });
  return { text: one(TEXTS), calls, usage, finish, ...(provider !== "openai" && random.below(4) === 0 && { reasoning: "Let me think." }) };
}

test(`${RUNS} runs with models that say anything`, async (t) => {
  const random = randomOf(t);
  const { dev, sink } = world;
  const seams = seamsOf(dev);
  const names = { tool: unique("any"), fails: unique("fails"), child: unique("child") };
  sink.on(`/${names.tool}`, ({ text }) => ({ body: text }));
  sink.on(`/${names.fails}`, () => [{ status: 403 }, { status: 503 }, { body: "no json", headers: { "content-type": "text/plain" } }, { body: '"ok"' }][random.below(4)]);
  const quick = { base: "PT0.01S", max_wait: "PT0.01S", jitter: "none" };
  for (const name of [names.tool, names.fails]) await dev.putTool(name, { parameters: SCHEMA, http: { method: "POST", url: `${sink.url}/${name}` }, retry: { ...quick, max_attempts: 2 } });
  await dev.putAgent(names.child, { planner: { kind: "plan", steps: [{ id: "e", emit: { type: "x" } }], output: { n: 1 } } });

  const models = [];
  const agents = await eachOf(Array.from({ length: RUNS }), 8, async () => {
    const list = Array.from({ length: 1 + random.below(2) }, () => {
      const [provider, name] = [PROVIDERS[random.below(3)], unique("storm")];
      // Numbers of its own: a model says the same to a seed whatever the others do.
      const own = seeded(random.below(2 ** 31));
      llm.on(name, () => turnOf(own, provider, names));
      models.push(name);
      return llm.model(provider, name, { api_key: "{{ secrets.LLM_KEY }}" });
    });
    const agent = unique("anything");
    await dev.putAgent(agent, {
      tools: [names.tool, names.fails],
      planner: {
        kind: "model",
        models: list,
        engine_tools: ["sleep", "wait_for", "emit", "start_run"],
        ...(random.below(2) === 0 && { output_schema: { type: "object", required: ["n"], properties: { n: { type: "integer" } } } }),
        repair: { attempts: random.below(3) },
        retry: { ...quick, max_attempts: 2 + random.below(3) },
      },
      limits: { max_rounds: 12, max_steps: 40, max_parallel: 1 + random.below(4) },
    });
    return agent;
  });

  const ends = {};
  await eachOf(agents, 10, async (agent, i) => {
    const own = seeded(i);
    const { run_id } = await dev.startRun({ agent, input: { go: true } });
    // Whatever holds it is released, until it has ended or has had enough.
    for (let turn = 0; turn < 1_000; turn += 1) {
      const run = await until(
        async () => {
          const found = await dev.run(run_id);
          return !["queued", "running"].includes(found.status) && found;
        },
        // A model may have to rest.
        { what: `${run_id} stands`, within: 120_000, every: 20 },
      );
      if (["completed", "failed", "cancelled"].includes(run.status)) break;
      const told = await dev.ok("GET", `/v1/runs/${run_id}/diagnosis`);
      assert.ok(told.blockers.length > 0, `${run_id} is ${run.status}: ${JSON.stringify(told)}`);
      // It has gone on meanwhile by itself.
      if (told.moving) continue;
      const [blocker] = told.blockers;
      if (blocker.kind === "limit") {
        await dev.ok("POST", `/v1/runs/${run_id}/cancel`);
      } else if (blocker.kind === "dead_letter") {
        const letter = (await dev.deadLetters(run_id)).find(({ status }) => status === "open");
        const settle = (how, body) => dev.post(`/v1/dead-letters/${letter.dead_letter_id}/${how}`, body);
        const roll = own.below(4);
        const answer = roll === 0 ? await settle("discard", { comment: "no" }) : roll === 1 ? await settle("resolve", { result: { n: 9 } }) : roll === 2 && letter.reason === "invalid_arguments" ? await settle("redeliver", { payload: { tool: names.tool, arguments: { n: 8 } } }) : await settle("discard", {});
        assert.ok(answer.status < 300 || answer.status === 422, answer.text);
        if (answer.status === 422) await settle("discard", {});
      } else {
        assert.ok(["timer", "signal", "child", "retry"].includes(blocker.kind), JSON.stringify(told));
        await seams.advance(run_id, "P2D");
      }
    }
    const run = await dev.run(run_id);
    assert.ok(["completed", "failed", "cancelled"].includes(run.status), `${run_id} did not end: ${JSON.stringify(run).slice(0, 2_000)}`);
    ends[run.status] = (ends[run.status] ?? 0) + 1;

    const log = await verifyLog(dev, run_id);
    // Every call that was made is one that a model made, or a person.
    const said = payloads(log, "plan.completed").flatMap(({ calls }) => calls ?? []);
    for (const { payload, step_index } of log.filter(({ event_type }) => event_type === "tool.requested")) {
      const step = run.steps[step_index];
      assert.match(step.id, /^round-\d+\.\d+$/);
      const mended = countOf(log, "dead_letter.settled", step_index) > 0;
      const dead = countOf(log, "dead_letter.opened", step_index) > 0;
      if (!mended && !dead) assert.ok(said.some(({ intent, arguments: given }) => intent?.tool === payload.tool && isDeepStrictEqual(given, payload.arguments)), `${run_id} step ${step_index}`);
    }
    // What reached a tool fits its schema.
    for (const call of sink.calls.filter(({ headers }) => headers["dormouse-run-id"] === run_id)) {
      const { n, tags, ...more } = JSON.parse(call.text);
      assert.ok(Number.isInteger(n) && Object.keys(more).length === 0 && (tags === undefined || tags.every((tag) => typeof tag === "string")), call.text.slice(0, 300));
    }
    // A round is recorded once, and asked for by a claim.
    for (const step of run.steps.filter(({ kind }) => kind === "plan")) {
      assert.ok(countOf(log, "plan.completed", step.step_index) <= 1);
      assert.equal(step.attempts <= countOf(log, "plan.claimed", step.step_index), true, `${run_id} ${step.id}`);
    }
  });
  const refused = llm.requests.filter(({ complaint }) => complaint);
  assert.deepEqual(refused.map(({ provider, complaint, text }) => [provider, complaint, text.slice(0, 300)]), [], "requests that a provider would refuse");
  const faults = llm.requests.filter(({ model }) => models.includes(model)).length;
  t.diagnostic(`${JSON.stringify(ends)}, ${faults} requests, ${sink.calls.length} calls`);
});
