// What a tool is sent: headers, keys, bodies, query strings, secrets; and where it may not be sent.

import assert from "node:assert/strict";
import test from "node:test";
import { canonical, eventKey, rawAt, sha256 } from "./support/json.mjs";
import { logTexts, verifyLog } from "./support/log.mjs";
import { ADMIN_TOKEN, startWorld, unique, worldOfFile } from "./support/runtime.mjs";
import { startSink } from "./support/sink.mjs";
import { until } from "./support/until.mjs";

const CANARY = "canary-7f3";
const world = worldOfFile({
  vars: {
    TENANT_SECRETS: JSON.stringify({
      dev: { PAY_KEY: CANARY, PATH: "a/b c?d#e", QUERY: "x&y=z é", "with.dot-_1": "dotted", BREAKS: "one\r\nX-Injected: two" },
      other: { PAY_KEY: "of-the-other" },
    }),
  },
});

async function toolOf(stem, more = {}, http = {}) {
  const name = unique(stem);
  await world.dev.putTool(name, { description: stem, http: { url: `${world.sink.url}/${name}`, ...http }, ...more });
  return name;
}
const one = (tool, args = {}, more = {}) => ({ plan: { steps: [{ id: "a", tool, arguments: args, ...more }] } });

test("the contract's vectors of keys are what these tests compute", () => {
  const vectors = [
    ['["run_0192f3c4a5b67c8d9e0f112233445566",0,{"arguments":{"amount":5},"tool":"payments.charge"}]', "667e3f58d69eb653569cfa48e80292e7782b200ac58dbe8e51206ed6d39f6410"],
    ['["run_0192f3c4a5b67c8d9e0f112233445566",2,{"arguments":{"a":1,"b":[1,2.5,1e+21],"id":18446744073709551616,"t":"€é\\n"},"tool":"x"}]', "2126515fb1747ea3085e88d83f2f476f8fdd5bed1f2efc67fca054a97b3e6473"],
    ['["run_0192f3c4a5b67c8d9e0f112233445566",3,{}]', "c5e4a8f9a1e7cde6ddefb5c6cd3f95bc261240e121da7bbdcd57145af9275fd7"],
  ];
  for (const [text, key] of vectors) assert.equal(sha256(canonical(text)), key);
});

test("the server refuses a wrong key and names the one of the vectors", async () => {
  const run_id = "run_0192f3c4a5b67c8d9e0f112233445566";
  for (const [step_index, payload, key] of [
    [0, '{"tool":"payments.charge","arguments":{"amount":5}}', "667e3f58d69eb653569cfa48e80292e7782b200ac58dbe8e51206ed6d39f6410"],
    [2, '{"arguments":{"b":[1,2.5,1e21],"a":1.0,"id":18446744073709551616,"t":"\\u20ac\\u00e9\\n"},"tool":"x"}', "2126515fb1747ea3085e88d83f2f476f8fdd5bed1f2efc67fca054a97b3e6473"],
  ]) {
    const body = (sent) => `{"event_type":"tool.requested","run_id":"${run_id}","step_index":${step_index},"idempotency_key":"${sent}","payload":${payload}}`;
    const wrong = await world.dev.post("/v1/envelopes", body("0".repeat(64)));
    assert.equal(wrong.status, 422);
    const flaw = wrong.json.errors.find(({ pointer }) => pointer === "/idempotency_key");
    assert.ok(flaw?.message.includes(key), wrong.text);
    const right = await world.dev.post("/v1/envelopes", body(key));
    assert.deepEqual(right.json.errors.map(({ pointer }) => pointer), ["/run_id"], "there is no such run, and nothing else is wrong");
  }
});

test("a call carries its key, its trace, its run, its step and its attempt", async () => {
  const tool = await toolOf("headers", { retry: { max_attempts: 3, base: "PT0.02S", jitter: "none" } });
  world.sink.on(`/${tool}`, (call) => (call.json.n === 2 && call.headers["dormouse-attempt"] === "1" ? { status: 503 } : { body: { n: call.json.n } }));
  const parent = "4bf92f3577b34da6a3ce929d0e0e4736";
  const steps = [1, 2].map((n) => ({ id: `s${n}`, tool, arguments: { n } }));
  const { run_id, trace_id } = await world.dev.startRun({ plan: { steps } }, { headers: { traceparent: `00-${parent}-00f067aa0ba902b7-01` } });
  assert.equal((await world.dev.untilRun(run_id)).status, "completed");
  assert.notEqual(trace_id, parent, "a run is a trace of its own");
  const entries = await verifyLog(world.dev, run_id);
  assert.ok(entries[0].payload.started_by.startsWith(`00-${parent}-`), "linked to the request that started it");
  const calls = world.sink.to(`/${tool}`);
  assert.equal(calls.length, 3);
  const texts = await logTexts(world.dev, run_id);
  const spans = new Set();
  for (const [place, [step, attempt]] of [[0, 1], [1, 1], [1, 2]].entries()) {
    const { headers, method, text } = calls[place];
    assert.equal(method, "POST");
    assert.equal(headers["content-type"], "application/json");
    assert.equal(headers["dormouse-run-id"], run_id);
    assert.equal(headers["dormouse-step-index"], String(step));
    assert.equal(headers["dormouse-attempt"], String(attempt));
    assert.match(headers.traceparent, new RegExp(`^00-${trace_id}-[0-9a-f]{16}-01$`));
    spans.add(headers.traceparent);
    assert.equal(text, `{"n":${step + 1}}`);
    const requested = texts.find((line) => {
      const { event_type, step_index } = JSON.parse(line);
      return event_type === "tool.requested" && step_index === step;
    });
    const key = eventKey(run_id, step, rawAt(requested, "payload"));
    assert.equal(headers["idempotency-key"], key, "the key is the SHA-256 of [run_id, step_index, payload]");
    assert.equal(key, eventKey(run_id, step, JSON.stringify({ tool, arguments: { n: step + 1 } })));
  }
  assert.equal(spans.size, 3, "each attempt is a span of its own");
  const run = await world.dev.run(run_id);
  assert.deepEqual(run.steps.map(({ idempotency_key }) => idempotency_key), [calls[0].key, calls[1].key]);
  assert.deepEqual(run.steps.map(({ attempts }) => attempts), [1, 2]);
  assert.equal(run.usage.tool_calls, 3);
});

test("two steps of the same call have two keys, and so have two runs", async () => {
  const tool = await toolOf("keys");
  const steps = ["a", "b"].map((id) => ({ id, tool, arguments: { same: 1 } }));
  await Promise.all([1, 2].map(() => world.dev.runToEnd({ plan: { steps } })));
  assert.equal(new Set(world.sink.to(`/${tool}`).map(({ key }) => key)).size, 4);
});

test("the arguments of GET and DELETE are the query, those of POST, PUT and PATCH the body", async () => {
  const args = '{"q":"a b&c=d/é😀+%","n":18446744073709551616,"e":1E5,"f":1.50,"t":true,"z":null,"l":["x",2,null],"none":[],"o":{"k":[1,{"m":"é"}]},"":"empty","a[b]":"odd"}';
  const query = [
    ["q", "a b&c=d/é😀+%"],
    ["n", "18446744073709551616"],
    ["e", "1E5"],
    ["f", "1.50"],
    ["t", "true"],
    ["z", ""],
    ["l", "x"],
    ["l", "2"],
    ["l", ""],
    ["o", '{"k":[1,{"m":"é"}]}'],
    ["", "empty"],
    ["a[b]", "odd"],
  ];
  for (const method of ["GET", "DELETE", "POST", "PUT", "PATCH"]) {
    const tool = await toolOf(`by-${method.toLowerCase()}`, {}, { method });
    const path = `/${tool}`;
    const { run_id } = await world.dev.startRun(`{"plan":{"steps":[{"id":"a","tool":"${tool}","arguments":"{{ input }}"}]},"input":${args}}`);
    const run = await world.dev.untilRun(run_id);
    assert.equal(run.status, "completed", `${method}: ${JSON.stringify(run.error)}`);
    const [call] = world.sink.to(path);
    assert.equal(call.method, method);
    if (method === "GET" || method === "DELETE") {
      assert.equal(call.text, "", method);
      assert.deepEqual([...call.searchParams], query, method);
      assert.equal(call.headers["content-type"], undefined);
    } else {
      assert.equal(call.text, args, method);
      assert.equal(call.search, "", method);
    }
    assert.equal(call.key, run.steps[0].idempotency_key);
  }
  // A query of the tool's own URL stays.
  const own = await toolOf("own-query", {}, { method: "GET", url: `${world.sink.url}/own-query?v=1` });
  await world.dev.runToEnd(one(own, { a: 2 }));
  assert.deepEqual([...world.sink.to("/own-query")[0].searchParams], [["v", "1"], ["a", "2"]]);
  // What no query can carry is a dead letter, not a guess.
  for (const input of ['[1,2]', '"text"', `{"a":${JSON.stringify("x".repeat(20_000))}}`]) {
    const { run_id } = await world.dev.startRun(`{"plan":{"steps":[{"id":"a","tool":"${own}","arguments":"{{ input }}"}]},"input":${input}}`);
    await world.dev.untilRun(run_id, "blocked");
    const [letter] = await world.dev.deadLetters(run_id);
    assert.equal(letter.reason, "invalid_arguments");
    await verifyLog(world.dev, run_id);
  }
  assert.equal(world.sink.to("/own-query").length, 1);
});

test("arguments that turn out to be no object are a dead letter, and nothing is sent", async () => {
  const tool = await toolOf("any-value");
  for (const input of ["[1,2]", '"text"', "7", "null", "true"]) {
    const { run_id } = await world.dev.startRun(`{"plan":{"steps":[{"id":"a","tool":"${tool}","arguments":"{{ input }}"}]},"input":${input}}`);
    await world.dev.untilRun(run_id, ["blocked"]);
    await verifyLog(world.dev, run_id);
    const calls = world.sink.calls.filter(({ headers }) => headers["dormouse-run-id"] === run_id);
    assert.deepEqual(calls, []);
    assert.equal((await world.dev.deadLetters(run_id))[0].reason, "invalid_arguments");
  }
});

test("a tool's own headers go along, and its secrets are filled in", async () => {
  const headers = { Authorization: "Bearer {{ secrets.PAY_KEY }}", "X-Dots": "{{secrets.with.dot-_1}}!", "X-Plain": "plain", Accept: "application/vnd.pay+json" };
  const tool = await toolOf("secrets", {}, { headers, url: `${world.sink.url}/secrets/{{ secrets.PATH }}?q={{ secrets.QUERY }}` });
  const run = await world.dev.runToEnd(one(tool));
  assert.equal(run.status, "completed", JSON.stringify(run));
  const call = world.sink.calls.find(({ headers: sent }) => sent["dormouse-run-id"] === run.run_id);
  assert.equal(call.headers.authorization, `Bearer ${CANARY}`);
  assert.equal(call.headers["x-dots"], "dotted!");
  assert.equal(call.headers["x-plain"], "plain");
  assert.equal(call.headers.accept, "application/vnd.pay+json");
  assert.equal(call.searchParams.get("q"), "x&y=z é", "a secret adds no parameter");
  assert.deepEqual([...call.searchParams.keys()], ["q"]);
  assert.equal(decodeURIComponent(call.path), "/secrets/a/b c?d#e", "nor a query or a fragment");
});

test("a secret that is missing, of another tenant or unusable sends nothing", async () => {
  const cases = [
    ["{{ secrets.NOBODY }}", /NOBODY/],
    ["{{ secrets.BREAKS }}", /BREAKS/],
  ];
  for (const [value, message] of cases) {
    const tool = await toolOf("no-secret", {}, { headers: { "X-Key": value } });
    const run = await world.dev.runToEnd(one(tool), "blocked");
    assert.equal(world.sink.to(`/${tool}`).length, 0);
    const [letter] = await world.dev.deadLetters(run.run_id);
    assert.match(letter.message, message);
    assert.doesNotMatch(JSON.stringify(letter), /Injected/);
  }
  const other = await world.tenant("other");
  await other.putTool("pay", { description: "x", http: { url: `${world.sink.url}/of-other`, headers: { "X-Key": "{{ secrets.PAY_KEY }}" } } });
  await other.runToEnd(one("pay"));
  assert.equal(world.sink.to("/of-other")[0].headers["x-key"], "of-the-other");
});

test("a secret comes back from no route, and is in no log", async () => {
  const headers = { Authorization: `Bearer {{ secrets.PAY_KEY }}` };
  const echoing = await toolOf("echoing", { retry: { max_attempts: 2, base: "PT0S" } }, { headers });
  const runs = [];
  // Tools that answer with what they were sent, as errors do.
  for (const answer of [
    (call) => ({ status: 400, body: `you sent ${call.headers.authorization}` }),
    (call) => ({ status: 422, headers: { "content-type": "application/problem+json" }, body: { title: "no", detail: `key ${call.headers.authorization}` } }),
    (call) => ({ status: 503, body: call.headers.authorization }),
    (call) => ({ status: 200, body: `not JSON ${call.headers.authorization}` }),
    (call) => ({ status: 200, headers: { "content-type": call.headers.authorization }, body: "not JSON" }),
    (call) => ({ status: 400, body: `${"x".repeat(1_000)}${call.headers.authorization}` }),
    () => ({ close: true }),
    (call) => ({ status: 302, headers: { location: `${world.sink.url}/elsewhere?${call.headers.authorization}` } }),
  ]) {
    world.sink.on(`/${echoing}`, answer);
    runs.push((await world.dev.runToEnd(one(echoing), "blocked")).run_id);
  }
  const refused = await toolOf("refused", { retry: { max_attempts: 1 } }, { headers, url: "http://127.0.0.1:9/{{ secrets.PAY_KEY }}" });
  runs.push((await world.dev.runToEnd(one(refused), "blocked")).run_id);
  const blocked = await toolOf("inward", {}, { headers, url: "http://10.0.0.1/{{ secrets.PAY_KEY }}" });
  runs.push((await world.dev.runToEnd(one(blocked), "blocked")).run_id);
  assert.ok(world.sink.to(`/${echoing}`).every(({ headers: sent }) => sent.authorization === `Bearer ${CANARY}`));

  const texts = [];
  const read = async (path, options) => texts.push([path, (await world.dev.get(path, options)).text]);
  for (const run_id of runs) {
    await read(`/v1/runs/${run_id}`);
    await read(`/v1/runs/${run_id}/events?limit=200`);
    await read(`/v1/runs/${run_id}/events`, { headers: { accept: "application/x-ndjson" } });
    await read(`/v1/dead-letters?run_id=${run_id}`);
    for (const { dead_letter_id } of await world.dev.deadLetters(run_id)) await read(`/v1/dead-letters/${dead_letter_id}`);
    await read(`/dev/runs/${run_id}/internals`);
  }
  for (const list of ["/v1/dead-letters?limit=200", "/v1/runs?limit=200", "/v1/tools?limit=200", `/v1/tools/${echoing}`, `/v1/tools/${blocked}`, "/openapi.json"]) await read(list);
  for (const [path, text] of texts) {
    for (const secret of [CANARY, ADMIN_TOKEN, "of-the-other"]) assert.ok(!text.includes(secret), `${path}: ${text.slice(Math.max(0, text.indexOf(secret) - 100), text.indexOf(secret) + 50)}`);
  }
  for (const { text } of world.lines) assert.ok(!text.includes(CANARY) && !text.includes(ADMIN_TOKEN), text);
  // Cut in the middle it is none either.
  for (const [path, text] of texts) assert.doesNotMatch(text, /canary-7/, path);
});

test("inward addresses are not called, in any spelling, unless they are allowed", async () => {
  const closed = await startWorld({ vars: { ALLOWED_INWARD_HOSTS: "" } });
  try {
    const { port } = closed.sink;
    const spellings = [
      `http://127.0.0.1:${port}/`,
      `http://localhost:${port}/`,
      `http://LOCALHOST:${port}/`,
      `http://localhost.:${port}/`,
      `http://a.localhost:${port}/`,
      `http://127.1:${port}/`,
      `http://2130706433:${port}/`,
      `http://0x7f000001:${port}/`,
      `http://017700000001:${port}/`,
      `http://0.0.0.0:${port}/`,
      `http://[::1]:${port}/`,
      `http://[::ffff:127.0.0.1]:${port}/`,
      "http://169.254.169.254/latest/meta-data/",
      "http://10.0.0.1/",
      "http://192.168.1.1/",
      "http://metadata.google.internal/",
      "http://[fd00::1]/",
    ];
    for (const [n, url] of spellings.entries()) {
      const put = await closed.dev.put(`/v1/tools/inward-${n}`, { description: "x", http: { url } });
      if (put.status === 422) continue;
      assert.equal(put.status, 201, put.text);
      const run = await closed.dev.runToEnd(one(`inward-${n}`), "blocked");
      assert.equal(run.steps[0].attempts, 1, `${url} is not tried again`);
      const [letter] = await closed.dev.deadLetters(run.run_id);
      assert.match(letter.message, /address/, url);
      await verifyLog(closed.dev, run.run_id);
    }
    assert.equal(closed.sink.calls.length, 0, "nothing was called");
  } finally {
    await closed.close();
  }
});

test("a redirect is a new destination", async () => {
  const elsewhere = await startSink();
  const guarded = await startWorld({ vars: { ALLOWED_INWARD_HOSTS: "127.0.0.1", TENANT_SECRETS: JSON.stringify({ dev: { PAY_KEY: CANARY } }) } });
  const local = `http://localhost:${elsewhere.port}`;
  try {
    const { sink, dev } = guarded;
    const put = (name, more = {}) => dev.putTool(name, { description: name, retry: { max_attempts: 2, base: "PT0S" }, http: { url: `${sink.url}/${name}`, method: "GET", headers: { Authorization: "Bearer {{ secrets.PAY_KEY }}" }, ...more } });
    // 127.0.0.1 is allowed here, localhost is not: what the guard tells apart is the name.
    const targets = {
      metadata: "http://169.254.169.254/latest/",
      canary: `${local}/canary`,
      ftp: "ftp://127.0.0.1/",
      file: "file:///etc/passwd",
    };
    for (const [name, location] of Object.entries(targets)) {
      for (const status of [302, 307, 308]) {
        const tool = unique(`to-${name}`);
        await put(tool);
        sink.on(`/${tool}`, { status, headers: { location } });
        const run = await dev.runToEnd(one(tool), "blocked");
        assert.equal(run.steps[0].attempts, 1, `${name} ${status}`);
        assert.ok(["undeliverable", "rejected_by_tool"].includes((await dev.deadLetters(run.run_id))[0].reason));
        await verifyLog(dev, run.run_id);
      }
    }
    // Three hops outward, then inward.
    await put("chain");
    for (const n of [1, 2, 3]) sink.on(n === 1 ? "/chain" : `/chain-${n}`, { status: 302, headers: { location: n === 3 ? `${local}/canary` : `/chain-${n + 1}` } });
    await dev.runToEnd(one("chain"), "blocked");
    assert.equal(sink.to("/chain-3").length, 1);
    // A loop ends.
    await put("loop");
    sink.on("/loop", { status: 302, headers: { location: "/loop" } });
    const loop = await dev.runToEnd(one("loop"), "blocked");
    assert.equal(loop.steps[0].attempts, 1);
    assert.ok(sink.to("/loop").length <= 10, `${sink.to("/loop").length}`);
    // A body is sent on only where the status says that method and body stay.
    for (const status of [301, 302, 303, 307, 308]) {
      const tool = `post-${status}`;
      await put(tool, { method: "POST" });
      sink.on(`/${tool}`, { status, headers: { location: `/after-${status}` } });
      const run = await dev.runToEnd(one(tool, { n: 1 }), ["completed", "blocked"]);
      const after = sink.to(`/after-${status}`);
      if (status >= 307) {
        assert.equal(run.status, "completed", `${status}`);
        assert.deepEqual(after.map(({ method, text, key }) => [method, text, key]), [["POST", '{"n":1}', run.steps[0].idempotency_key]]);
      } else {
        assert.equal(run.status, "blocked", `${status}`);
        assert.equal(after.length, 0, `${status}: a POST is not turned into a GET`);
      }
    }
    assert.equal(elsewhere.calls.length, 0, "the canary was called");
    for (const { text } of guarded.lines) assert.ok(!text.includes(CANARY), text);
  } finally {
    await guarded.close();
    await elsewhere.close();
  }
});

test("the tool's own headers do not go along to another host", async () => {
  const elsewhere = await startSink();
  try {
    const tool = await toolOf("moved", {}, { method: "GET", headers: { Authorization: "Bearer {{ secrets.PAY_KEY }}", "X-Own": "1" } });
    world.sink.on(`/${tool}`, { status: 307, headers: { location: `${elsewhere.url}/there` } });
    const run = await world.dev.runToEnd(one(tool));
    assert.equal(run.status, "completed");
    const [call] = elsewhere.to("/there");
    assert.equal(call.headers.authorization, undefined);
    assert.equal(call.headers["x-own"], undefined);
    assert.equal(call.key, run.steps[0].idempotency_key);
  } finally {
    await elsewhere.close();
  }
});

test("an endless answer is cut off at the limit", async () => {
  const { createServer } = await import("node:http");
  let sent = 0;
  const server = createServer((request, response) => {
    response.writeHead(200, { "content-type": "application/json" });
    response.write('"');
    const more = () => {
      while (!response.destroyed && response.write("x".repeat(65_536))) sent += 65_536;
    };
    response.on("drain", more);
    more();
  });
  server.listen(0, "127.0.0.1");
  await until(() => server.listening);
  try {
    const tool = await toolOf("endless", {}, { url: `http://127.0.0.1:${server.address().port}/` });
    const run = await world.dev.runToEnd(one(tool), "blocked");
    const [letter] = await world.dev.deadLetters(run.run_id);
    assert.equal(letter.reason, "invalid_result");
    assert.match(letter.message, /524288/);
    assert.ok(sent < 64 * 1024 * 1024, `${sent} bytes were taken`);
  } finally {
    server.closeAllConnections();
    server.close();
  }
});
