// Values pass through digit for digit and character for character, or are refused; sizes are counted
// in bytes, and what is too large is told before anything is done.

import assert from "node:assert/strict";
import test from "node:test";
import { logTexts, verifyLog } from "./support/log.mjs";
import { rawAt, eventKey } from "./support/json.mjs";
import { unique, worldOfFile } from "./support/runtime.mjs";

const world = worldOfFile();
const VALUE_MAX = 512 * 1024;

async function toolOf(stem, answers, more = {}) {
  const name = unique(stem);
  if (answers) world.sink.on(`/${name}`, answers);
  await world.dev.putTool(name, { description: stem, http: { url: `${world.sink.url}/${name}` }, ...more });
  return name;
}

/** Starts a run with an input given as text; the plan hands it to a tool whole. */
function requestOf(tool, input, args = '"{{ input }}"') {
  return `{"plan":{"steps":[{"id":"a","tool":"${tool}","arguments":${args}}]},"input":${input}}`;
}

/** The raw texts of one value wherever a run shows it. */
async function everywhere(runId) {
  const shown = (await world.dev.get(`/v1/runs/${runId}`)).text;
  const log = await logTexts(world.dev, runId);
  const of = (type) => log.find((line) => JSON.parse(line).event_type === type);
  return {
    shownInput: rawAt(shown, "input"),
    shownResult: rawAt(shown, "steps", 0, "result"),
    shownOutput: rawAt(shown, "output"),
    loggedInput: rawAt(of("run.created"), "payload", "input"),
    loggedArguments: rawAt(of("tool.requested"), "payload", "arguments"),
    loggedResult: rawAt(of("tool.completed"), "payload", "result"),
    loggedOutput: rawAt(of("run.completed"), "payload", "output"),
    requested: of("tool.requested"),
  };
}

const NUMBERS = [
  "9007199254740993",
  "7300000000000000017",
  "18446744073709551615",
  "18446744073709551616",
  "-9223372036854775809",
  "123456789012345678901234567890123456789012345678901234567890",
  "0.1",
  "1.0",
  "1.10",
  "100.00",
  "1E5",
  "1e5",
  "1e+5",
  "1e-7",
  "1.5E-10",
  "1E400".replace("400", "300"),
  "0.30000000000000004",
  "3.141592653589793238462643383279",
  "5e-324",
  "1.7976931348623157e308",
  "-0",
  "-0.0",
  "0",
  "0e0",
];
const STRINGS = [
  "",
  "plain",
  "é",
  "e\u0301",
  "😀👩‍👩‍👧",
  "订单-7",
  "שלום",
  "\u202eabc",
  "\u2028\u2029",
  "\ufeff",
  "\ufffd",
  "\uffff",
  "\u0001\u001f\u007f\u0085",
  "tab\tnewline\nquote\"backslash\\slash/",
  "{{ not an expression in data }}",
  "7300000000000000017",
  "null",
];

test("numbers keep their digits and texts their characters, everywhere", async () => {
  const members = [
    ...NUMBERS.map((number, n) => `"n${n}":${number}`),
    ...STRINGS.map((text, n) => `"s${n}":${JSON.stringify(text)}`),
    `"list":[${NUMBERS.join(",")}]`,
    '"deep":{"a":{"b":[[[{"c":1E5}]]]}}',
    '"":1',
    '"a.b":2',
    '"é\\"\\\\":3',
    '"__proto__":{"x":4}',
    '"10":5',
    '"9":6',
    '"constructor":7',
    '"empty":{}',
    '"none":[]',
    '"t":true,"f":false,"z":null',
  ];
  const value = `{${members.join(",")}}`;
  const tool = await toolOf("digits", () => ({ body: value }));
  const { run_id } = await world.dev.startRun(requestOf(tool, value));
  const run = await world.dev.untilRun(run_id);
  assert.equal(run.status, "completed", JSON.stringify(run.error));
  const [call] = world.sink.to(`/${tool}`);
  assert.equal(call.text, value, "the tool's body");
  const all = await everywhere(run_id);
  const { requested, ...texts } = all;
  for (const [where, text] of Object.entries(texts)) assert.equal(text, value, where);
  assert.equal(call.key, eventKey(run_id, 0, rawAt(requested, "payload")), "the key is made from the exact digits");
  await verifyLog(world.dev, run_id);
});

test("a number in an argument of its own keeps its digits, and a string stays a string", async () => {
  const tool = await toolOf("alone");
  for (const number of NUMBERS) {
    const { run_id } = await world.dev.startRun(requestOf(tool, `{"id":${number},"text":"${number}"}`, `{"whole":"{{ input.id }}","fixed":${number},"text":"{{ input.text }}","inside":"<{{ input.id }}>"}`));
    assert.equal((await world.dev.untilRun(run_id)).status, "completed");
    const call = world.sink.calls.findLast(({ headers }) => headers["dormouse-run-id"] === run_id);
    assert.equal(rawAt(call.text, "whole"), number, "whole");
    assert.equal(rawAt(call.text, "fixed"), number, "fixed in the plan");
    assert.equal(rawAt(call.text, "text"), `"${number}"`);
    assert.equal(rawAt(call.text, "inside"), `"<${number}>"`, "inside a text");
  }
});

test("numbers written in a plan, a repaired payload, a person's result and an envelope keep their digits", async () => {
  const list = `[${NUMBERS.join(",")}]`;
  const tool = await toolOf("written");
  const planner = `"steps":[{"id":"a","tool":"${tool}","arguments":{"l":${list}}},{"id":"e","emit":{"type":"t","data":${list}}}],"output":{"o":${list}}`;
  const agent = unique("written");
  const put = await world.dev.put(`/v1/agents/${agent}`, `{"planner":{"kind":"plan",${planner}}}`);
  assert.equal(put.status, 201, put.text);
  assert.ok(put.text.includes(list), "the stored agent");
  for (const [what, body] of [["a stored agent", `{"agent":"${agent}"}`], ["a plan in the request", `{"plan":{${planner}}}`]]) {
    const { run_id } = await world.dev.startRun(body);
    await world.dev.untilRun(run_id);
    const call = world.sink.calls.findLast(({ headers }) => headers["dormouse-run-id"] === run_id);
    assert.equal(rawAt(call.text, "l"), list, `arguments of ${what}`);
    assert.equal(rawAt((await world.dev.get(`/v1/runs/${run_id}`)).text, "output", "o"), list, `output of ${what}`);
    const emitted = (await logTexts(world.dev, run_id)).find((line) => line.includes('"event.emitted"'));
    assert.equal(rawAt(emitted, "payload", "data"), list, `emitted by ${what}`);
    await verifyLog(world.dev, run_id);
  }
  const held = async () => {
    const run = await world.dev.runToEnd({ plan: { steps: [{ id: "a", tool: unique("none"), arguments: {} }] } }, "blocked");
    return [run.run_id, `/v1/dead-letters/${(await world.dev.deadLetters(run.run_id))[0].dead_letter_id}`];
  };
  const [repaired, first] = await held();
  await world.dev.ok("POST", `${first}/redeliver`, { body: `{"payload":{"tool":"${tool}","arguments":{"l":${list}}}}` });
  await world.dev.untilRun(repaired);
  assert.equal(rawAt(world.sink.to(`/${tool}`).at(-1).text, "l"), list, "a repaired payload");
  const [resolved, second] = await held();
  await world.dev.ok("POST", `${second}/resolve`, { body: `{"result":${list}}` });
  await world.dev.untilRun(resolved);
  assert.equal(rawAt((await world.dev.get(`/v1/runs/${resolved}`)).text, "output"), list, "a person's result");
  await verifyLog(world.dev, repaired);
  await verifyLog(world.dev, resolved);

  await world.dev.putAgent(agent, { planner: { kind: "external" }, tools: [tool] });
  const { run_id } = await world.dev.startRun({ agent });
  await world.dev.ok("POST", "/v1/envelopes", { body: `{"event_type":"tool.requested","run_id":"${run_id}","step_index":0,"payload":{"tool":"${tool}","arguments":{"l":${list}}}}` });
  await world.dev.ok("POST", "/v1/envelopes", { body: `{"event_type":"plan.completed","run_id":"${run_id}","step_index":null,"payload":{"output":${list}}}` });
  await world.dev.untilRun(run_id);
  assert.equal(rawAt(world.sink.to(`/${tool}`).at(-1).text, "l"), list, "an envelope's arguments");
  assert.equal(rawAt((await world.dev.get(`/v1/runs/${run_id}`)).text, "output"), list, "an envelope's output");
  // What is refused is kept as it came.
  const refused = await world.dev.post("/v1/envelopes", `{"event_type":"no.such","run_id":"${run_id}","payload":${list}}`);
  const kept = await world.dev.get(`/v1/dead-letters/${refused.json.rejected[0].dead_letter_id}`);
  assert.equal(rawAt(kept.text, "envelope", "payload"), list, "a dead letter's envelope");
  const listed = await world.dev.get(`/v1/dead-letters?run_id=${run_id}`);
  assert.equal(rawAt(listed.text, "items", 0, "envelope", "payload"), list, "a listed letter's envelope");
});

test("escapes in a request are the characters they stand for", async () => {
  const tool = await toolOf("escapes");
  const { run_id } = await world.dev.startRun(requestOf(tool, '{"t":"\\u00e9\\ud83d\\ude00\\u0041\\/\\b\\f\\n\\r\\t\\u001f"}'));
  await world.dev.untilRun(run_id);
  const [call] = world.sink.to(`/${tool}`);
  assert.deepEqual(call.json, { t: "é😀A/\b\f\n\r\t\u001f" });
  assert.deepEqual((await world.dev.run(run_id)).input, call.json);
});

test("NUL, half a surrogate pair, endless numbers and broken UTF-8 are refused with their place", async () => {
  const tenant = await world.tenant(unique("values-refused"));
  const request = (input) => `{"plan":{"steps":[{"id":"a","sleep":"PT0S"}]},"input":${input}}`;
  for (const [input, pointer] of [
    ['{"t":"a\\u0000b"}', "/input/t"],
    ['{"l":[0,{"x":"\\u0000"}]}', "/input/l/1/x"],
    ['{"t":"\\ud83d"}', "/input/t"],
    ['{"t":"\\ude00\\ud83d"}', "/input/t"],
    ['{"w":1e400}', "/input/w"],
    ['{"w":-1e400}', "/input/w"],
    ['{"l":[1,2,1e999]}', "/input/l/2"],
    ['{"a\\u0000":1}', undefined],
    ['{"d":1,"d":2}', "/input/d"],
    ['{"n":01}', undefined],
    ['{"n":+1}', undefined],
    ['{"n":.5}', undefined],
    ['{"n":NaN}', undefined],
    ['{"n":Infinity}', undefined],
    ["{'t':1}", undefined],
    ['{"t":1,}', undefined],
    ['"\t"', undefined],
    ["// no\n1", undefined],
    ["tru", undefined],
    ["", undefined],
  ]) {
    const answer = await tenant.post("/v1/runs", request(input));
    assert.equal(answer.status, 400, `${input}: ${answer.text}`);
    assert.equal(answer.json.type, "/problems/invalid-json");
    assert.ok(answer.json.errors.length > 0);
    if (pointer) assert.equal(answer.json.errors[0].pointer, pointer, input);
  }
  for (const bytes of [[0xff, 0xfe], [0xc3], [0xed, 0xa0, 0xbd], [0xf0, 0x9f, 0x98], [0xc0, 0x80]]) {
    const body = Buffer.concat([Buffer.from('{"plan":{"steps":[{"id":"a","sleep":"PT0S"}]},"input":"'), Buffer.from(bytes), Buffer.from('"}')]);
    assert.equal((await tenant.post("/v1/runs", body)).status, 400, String(bytes));
  }
  assert.equal((await tenant.post("/v1/runs", request("1"), { headers: { "content-type": "application/json; charset=utf-8" } })).status, 202);
  assert.equal((await tenant.ok("GET", "/v1/runs")).items.length, 1, "what was refused left nothing behind");
});

test("a value may nest as deep as the limit, and no deeper", async () => {
  const nested = (depth) => `${"[".repeat(depth)}1${"]".repeat(depth)}`;
  const tool = await toolOf("deep", ({ text }) => ({ body: text }));
  // The request's own frame around the input counts as well.
  const { run_id } = await world.dev.startRun(requestOf(tool, nested(100), '{"v":"{{ input }}"}'));
  const run = await world.dev.untilRun(run_id);
  assert.equal(run.status, "completed", JSON.stringify(run.error));
  assert.equal(rawAt((await world.dev.get(`/v1/runs/${run_id}`)).text, "output", "v"), nested(100));
  await verifyLog(world.dev, run_id);
  for (const depth of [129, 1_000, 100_000]) {
    const answer = await world.dev.post("/v1/runs", requestOf(tool, nested(depth)));
    assert.equal(answer.status, 400, `${depth}: ${answer.text.slice(0, 200)}`);
  }
  assert.equal((await world.dev.get("/healthz")).status, 200);
});

test("what a tool says is kept exactly, or ends the step with a reason", async () => {
  const results = {
    '{"t":"😀 é"}': "completed",
    '{"n":18446744073709551616,"e":1E5}': "completed",
    "null": "completed",
    "7": "completed",
    '"text"': "completed",
    "": "completed",
    '{"t":"a\\u0000b"}': "invalid_result",
    '{"t":"\\ud83d"}': "invalid_result",
    '{"n":1e400}': "invalid_result",
    '{"a":1,"a":2}': "invalid_result",
    "not JSON": "invalid_result",
    '{"a":': "invalid_result",
    "<html></html>": "invalid_result",
    "{} {}": "invalid_result",
  };
  const bodies = Object.entries(results).map(([body, expected]) => [Buffer.from(body), expected]);
  bodies.push([Buffer.from([0x22, 0xff, 0xfe, 0x22]), "invalid_result"]);
  bodies.push([Buffer.from('"caf\xe9"', "latin1"), "invalid_result"]);
  bodies.push([Buffer.concat([Buffer.from(`"${"x".repeat(65_535)}`), Buffer.from("😀").subarray(0, 2)]), "invalid_result"]);
  bodies.push([Buffer.from("\ufeff{}"), undefined]);
  const tool = await toolOf("said", (call, number) => ({ body: bodies[number][0] }));
  for (const [body, expected] of bodies) {
    const run = await world.dev.runToEnd({ plan: { steps: [{ id: "a", tool, arguments: {} }] } }, ["completed", "blocked"]);
    const what = body.toString("latin1").slice(0, 60);
    if (expected === "completed") {
      assert.equal(run.status, "completed", what);
      const raw = rawAt((await world.dev.get(`/v1/runs/${run.run_id}`)).text, "output");
      assert.equal(raw, body.toString() || "null", what);
    } else if (expected) {
      assert.equal(run.status, "blocked", what);
      const [letter] = await world.dev.deadLetters(run.run_id);
      assert.equal(letter.reason, expected, what);
      assert.equal(letter.attempts.length, 1, what);
      assert.equal(letter.attempts[0].status_code, 200, what);
    }
    assert.equal(run.steps[0].attempts, 1);
    await verifyLog(world.dev, run.run_id);
  }
  assert.equal(world.sink.to(`/${tool}`).length, bodies.length, "nothing is sent twice");
});

/** Texts of so many bytes in JSON, quotes included. */
const TEXTS = {
  ascii: (bytes) => "x".repeat(bytes - 2),
  two: (bytes) => "é".repeat((bytes - 2) / 2),
  four: (bytes) => "😀".repeat((bytes - 2) / 4) + "x".repeat((bytes - 2) % 4),
};
const SIZES = [100_000, 126_900, 127_900, 128_100, 200_000, 400_000, VALUE_MAX];

test("an input of any size either runs to its end or is refused with the limit", async () => {
  const tool = await toolOf("sized", ({ text }) => ({ body: { bytes: Buffer.byteLength(text) } }));
  for (const size of SIZES) {
    for (const [kind, textOf] of Object.entries(TEXTS)) {
      const text = textOf(size);
      assert.equal(Buffer.byteLength(JSON.stringify(text)), size, kind);
      const { run_id } = await world.dev.startRun({ plan: { steps: [{ id: "a", tool, arguments: { size, kind, note: "{{ input }}" } }], output: "{{ steps.a.result.bytes }}" }, input: text });
      const run = await world.dev.untilRun(run_id, ["completed", "blocked", "failed"]);
      const call = world.sink.to(`/${tool}`).find(({ headers }) => headers["dormouse-run-id"] === run_id);
      if (size < VALUE_MAX) {
        assert.equal(run.status, "completed", `${size} ${kind}: ${JSON.stringify(run.error)}`);
        assert.equal(call.json.note, text, `${size} ${kind}`);
        assert.equal(run.output, call.bytes.length);
        assert.equal(run.input, text);
      } else {
        // With their frame the arguments are above the limit: a typed end, not a loss.
        assert.equal(run.status, "blocked", `${size} ${kind}`);
        assert.equal((await world.dev.deadLetters(run_id))[0].reason, "invalid_arguments");
        assert.equal(call, undefined);
      }
    }
  }
  const tenant = await world.tenant(unique("values-sizes"));
  for (const [kind, textOf] of Object.entries(TEXTS)) {
    for (const size of [VALUE_MAX + 1, VALUE_MAX + 4, 600_000, 1_000_000, 1_048_000]) {
      const text = kind === "two" && size % 2 ? textOf(size + 1) : textOf(size);
      const answer = await tenant.post("/v1/runs", { plan: { steps: [{ id: "a", sleep: "PT0S" }] }, input: text });
      assert.equal(answer.status, 413, `${size} ${kind}: ${answer.text.slice(0, 200)}`);
      assert.equal(answer.json.limit_bytes, VALUE_MAX);
      assert.match(answer.json.detail, /524288/);
    }
    const whole = await tenant.post("/v1/runs", { plan: { steps: [{ id: "a", sleep: "PT0S" }] }, input: textOf(1_100_000) });
    assert.deepEqual([whole.status, whole.json.limit_bytes], [413, 1_048_576], kind);
  }
  assert.deepEqual((await tenant.ok("GET", "/v1/runs")).items, [], "nothing was written");
});

test("an input of exactly the limit is taken, and is shown and handed on whole", async () => {
  const tool = await toolOf("whole");
  for (const textOf of Object.values(TEXTS)) {
    const text = textOf(VALUE_MAX - 8);
    const value = { a: text }; // {"a":…} around it: 6 bytes
    const { run_id } = await world.dev.startRun({ plan: { steps: [{ id: "a", tool, arguments: "{{ input }}" }] }, input: value });
    const run = await world.dev.untilRun(run_id);
    assert.equal(run.status, "completed", JSON.stringify(run.error));
    const call = world.sink.to(`/${tool}`).find(({ headers }) => headers["dormouse-run-id"] === run_id);
    assert.equal(call.json.a, text);
    assert.equal((await world.dev.run(run_id)).input.a, text);
    await verifyLog(world.dev, run_id);
  }
});

test("a tool's result of any size is kept whole, or ends its step with a reason", async () => {
  for (const [kind, textOf] of Object.entries(TEXTS)) {
    const sizes = [...SIZES, VALUE_MAX + 2, 1_000_000];
    const tool = await toolOf(`result-${kind}`, ({ json }) => ({ body: JSON.stringify(textOf(json.size)) }));
    for (const size of sizes) {
      const { run_id } = await world.dev.startRun({ plan: { steps: [{ id: "a", tool, arguments: { size } }] } });
      const run = await world.dev.untilRun(run_id, ["completed", "blocked"]);
      if (size <= VALUE_MAX) {
        assert.equal(run.status, "completed", `${kind} ${size}`);
        assert.equal(run.output, textOf(size), `${kind} ${size}`);
        assert.equal(run.steps[0].result, run.output);
      } else {
        assert.equal(run.status, "blocked", `${kind} ${size}`);
        const [letter] = await world.dev.deadLetters(run_id);
        assert.equal(letter.reason, "invalid_result");
        assert.match(letter.message, /524288/);
      }
      assert.equal(run.steps[0].attempts, 1);
    }
  }
});

test("a repaired payload, a person's result and an envelope are held to the same limits", async () => {
  const { run_id } = await world.dev.runToEnd({ plan: { steps: [{ id: "a", tool: unique("late"), arguments: {} }] } }, "blocked");
  const [letter] = await world.dev.deadLetters(run_id);
  const tool = await toolOf("repaired", ({ text }) => ({ body: { bytes: Buffer.byteLength(text) } }));
  const path = `/v1/dead-letters/${letter.dead_letter_id}`;
  for (const text of [TEXTS.ascii(600_000), TEXTS.four(600_000)]) {
    for (const [end, body] of [["redeliver", { payload: { tool, arguments: { text } } }], ["resolve", { result: text }]]) {
      const answer = await world.dev.post(`${path}/${end}`, body);
      assert.deepEqual([answer.status, answer.json.limit_bytes], [413, VALUE_MAX], end);
    }
  }
  assert.equal((await world.dev.ok("GET", path)).status, "open");
  const text = TEXTS.two(400_000);
  await world.dev.ok("POST", `${path}/redeliver`, { body: { payload: { tool, arguments: { text } } } });
  const run = await world.dev.untilRun(run_id);
  assert.equal(run.status, "completed");
  assert.equal(world.sink.to(`/${tool}`)[0].json.text, text);

  const held = await world.dev.runToEnd({ plan: { steps: [{ id: "a", tool: unique("late"), arguments: {} }] } }, "blocked");
  const [second] = await world.dev.deadLetters(held.run_id);
  await world.dev.ok("POST", `/v1/dead-letters/${second.dead_letter_id}/resolve`, { body: { result: text } });
  assert.equal((await world.dev.untilRun(held.run_id)).output, text);

  const agent = unique("outside");
  await world.dev.putAgent(agent, { planner: { kind: "external" }, tools: [tool] });
  const outside = await world.dev.startRun({ agent });
  const envelope = (args) => ({ event_type: "tool.requested", run_id: outside.run_id, step_index: 0, payload: { tool, arguments: args } });
  const tooLarge = await world.dev.post("/v1/envelopes", envelope({ text: TEXTS.four(600_000) }));
  assert.deepEqual([tooLarge.status, tooLarge.json.limit_bytes], [413, VALUE_MAX]);
  assert.equal((await world.dev.post("/v1/envelopes", envelope({ text }))).status, 202);
  await world.dev.ok("POST", "/v1/envelopes", { body: { event_type: "plan.completed", run_id: outside.run_id, step_index: null, payload: { output: text } } });
  assert.equal((await world.dev.untilRun(outside.run_id)).output, text);
  assert.equal(world.sink.to(`/${tool}`).findLast(() => true).json.text, text);
});

test("results of megabytes end their step with a reason, and the run stays readable", async () => {
  const sizes = [1_900_000, 2_100_000, 5_000_000, 30_000_000];
  const tool = await toolOf("megabytes", ({ json }) => ({ body: `"${"x".repeat(json.size)}"` }));
  for (const size of sizes) {
    const { run_id } = await world.dev.startRun({ plan: { steps: [{ id: "a", tool, arguments: { size } }, { id: "nap", sleep: "P1D" }] } });
    const run = await world.dev.untilRun(run_id, "blocked");
    const [letter] = await world.dev.deadLetters(run_id);
    assert.equal(letter.reason, "invalid_result", `${size}`);
    assert.match(letter.message, /524288/);
    assert.equal(run.steps[0].attempts, 1);
    const entries = await verifyLog(world.dev, run_id);
    assert.ok(JSON.stringify(entries).length < 20_000, "what was too large is not in the log");
    await world.dev.ok("POST", `/v1/dead-letters/${letter.dead_letter_id}/resolve`, { body: { result: { cut: true } } });
    assert.equal((await world.dev.untilRun(run_id, "waiting")).steps[0].status, "completed");
    assert.equal((await world.dev.post(`/v1/runs/${run_id}/cancel`)).status, 200);
    assert.equal((await world.dev.run(run_id)).status, "cancelled");
  }
  assert.equal(world.sink.to(`/${tool}`).length, sizes.length);
});

test("a run of many results stays readable as it grows", async () => {
  const tool = await toolOf("many", ({ json }) => ({ body: { n: json.n, text: "x".repeat(20_000) } }));
  const steps = Array.from({ length: 60 }, (_, n) => ({ id: `s${n}`, depends_on: [], tool, arguments: { n } }));
  const { run_id } = await world.dev.startRun({ plan: { steps, output: "{{ steps.s59.result.n }}" } });
  const run = await world.dev.untilRun(run_id, undefined, { within: 40_000 });
  assert.deepEqual([run.status, run.output], ["completed", 59]);
  assert.ok(run.steps.every(({ result }, n) => result.n === n && result.text.length === 20_000));
  const entries = await verifyLog(world.dev, run_id);
  assert.equal(entries.filter(({ event_type }) => event_type === "tool.completed").length, 60);
  assert.equal(world.sink.to(`/${tool}`).length, 60);
});

test("an output that grows beyond the limit ends its run with a reason", async () => {
  const tool = await toolOf("growing", () => ({ body: JSON.stringify("x".repeat(300_000)) }));
  const plan = { steps: [{ id: "a", tool, arguments: {} }], output: ["{{ steps.a.result }}", "{{ steps.a.result }}"] };
  const run = await world.dev.runToEnd({ plan });
  assert.equal(run.status, "failed");
  assert.match(run.error.message, /524288/);
  await verifyLog(world.dev, run.run_id);
});
