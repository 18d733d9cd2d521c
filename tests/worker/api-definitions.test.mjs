// Tools and agents: immutable versions, what is refused, and their lists.

import assert from "node:assert/strict";
import { readFileSync, readdirSync } from "node:fs";
import test from "node:test";
import { unique, worldOfFile } from "./support/runtime.mjs";

const world = worldOfFile();
const schemas = new URL("../../schemas/", import.meta.url);
const tool = (more = {}) => ({ description: "x", http: { method: "POST", url: `${world.sink.url}/tool` }, ...more });
const plan = (name, args = {}) => ({ steps: [{ id: "a", tool: name, arguments: args }] });

test("a tool and an agent have versions that never change", async () => {
  for (const [kind, first, second] of [
    ["tools", tool(), tool({ description: "y" })],
    ["agents", { planner: { kind: "external" } }, { planner: { kind: "external" }, description: "y" }],
  ]) {
    const path = `/v1/${kind}/${unique("versions")}`;
    const made = await world.dev.put(path, first);
    assert.equal(made.status, 201);
    assert.equal(made.json.version, 1);
    assert.equal(made.location, path);
    // The same once more, whatever the order of its members.
    const reordered = Object.fromEntries(Object.entries(first).reverse());
    for (const same of [first, reordered]) {
      const again = await world.dev.put(path, same);
      assert.deepEqual([again.status, again.json.version], [200, 1]);
      assert.equal(again.json.created_at, made.json.created_at);
    }
    const changed = await world.dev.put(path, second);
    assert.deepEqual([changed.status, changed.json.version], [200, 2]);
    const back = await world.dev.put(path, first);
    assert.deepEqual([back.status, back.json.version], [200, 3]);
    const get = async (query = "") => (await world.dev.get(path + query)).json;
    assert.equal((await get()).version, 3);
    for (const [version, definition] of [[1, first], [2, second], [3, first]]) {
      const { name, version: told, created_at, ...rest } = await get(`?version=${version}`);
      assert.equal(told, version);
      assert.ok(path.endsWith(`/${name}`) && created_at);
      assert.deepEqual(rest, JSON.parse(JSON.stringify(definition)));
    }
    assert.equal((await world.dev.get(`${path}?version=4`)).status, 404);
    assert.equal((await world.dev.delete(path)).status, 204);
    assert.equal((await world.dev.get(path)).status, 404);
    const listed = await world.dev.get(`/v1/${kind}?limit=200`);
    assert.ok(!listed.json.items.some(({ name }) => path.endsWith(`/${name}`)));
    // A name that is used again gives no old version's number to another definition.
    const reborn = await world.dev.put(path, second);
    assert.equal(reborn.json.version, 4);
    assert.equal((await get("?version=3")).description, first.description);
  }
});

test("a definition keeps its numbers' digits", async () => {
  const path = `/v1/tools/${unique("digits")}`;
  const text = `{"description":"x","parameters":{"type":"object","properties":{"id":{"maximum":18446744073709551616,"multipleOf":1E-2}}},"http":{"url":"${world.sink.url}/t"}}`;
  const made = await world.dev.put(path, text);
  assert.equal(made.status, 201, made.text);
  for (const answer of [made, await world.dev.get(path)]) {
    assert.match(answer.text, /"maximum":18446744073709551616,"multipleOf":1E-2/);
  }
});

test("a run stays on the versions with which it started", async () => {
  const name = unique("pinned-tool");
  const agent = unique("pinned-agent");
  await world.dev.putTool(name, tool({ http: { url: `${world.sink.url}/pinned-1` } }));
  await world.dev.putAgent(agent, { planner: { kind: "plan", steps: [{ id: "nap", sleep: "P1D" }, { id: "a", tool: name, arguments: { v: 1 } }] } });
  const first = await world.dev.startRun({ agent });
  assert.equal(first.agent, `${agent}@1`);
  await world.dev.putTool(name, tool({ http: { url: `${world.sink.url}/pinned-2` } }));
  await world.dev.putAgent(agent, { planner: { kind: "plan", steps: [{ id: "a", tool: name, arguments: { v: 2 } }] } });
  const second = await world.dev.runToEnd({ agent });
  assert.equal(second.agent, `${agent}@2`);
  const old = await world.dev.startRun({ agent: `${agent}@1` });
  assert.equal(old.agent, `${agent}@1`);
  assert.equal(old.steps.length, 2);
  await world.dev.delete(`/v1/tools/${name}`);
  await world.dev.delete(`/v1/agents/${agent}`);
  await world.dev.ok("POST", `/dev/runs/${first.run_id}/clock`, { body: { advance: "P2D" } });
  const ended = await world.dev.untilRun(first.run_id);
  assert.equal(ended.status, "completed");
  assert.deepEqual(world.sink.to("/pinned-1").map(({ json }) => json), [{ v: 1 }]);
  assert.deepEqual(world.sink.to("/pinned-2").map(({ json }) => json), [{ v: 2 }]);
  // Its name is gone; its versions can still be named, for those who pinned one.
  assert.equal((await world.dev.get(`/v1/agents/${agent}?version=1`)).status, 200);
  assert.equal((await world.dev.startRun({ agent: `${agent}@1` })).agent, `${agent}@1`);
  for (const gone of [agent, `${agent}@99`, "no-such-agent"]) {
    const answer = await world.dev.post("/v1/runs", { agent: gone });
    assert.equal(answer.status, 422, answer.text);
    assert.deepEqual(answer.json.errors.map(({ pointer }) => pointer), ["/agent"]);
  }
});

test("a wrong definition is refused with every place that is wrong", async () => {
  const good = tool();
  for (const [definition, pointers] of [
    [{}, ["/http"]],
    [[], [""]],
    ["x", [""]],
    [null, [""]],
    [{ ...good, descripton: "x" }, ["/descripton"]],
    [{ ...good, http: { url: "ftp://a/" } }, ["/http/url"]],
    [{ ...good, http: { url: "/relative" } }, ["/http/url"]],
    [{ ...good, http: { url: "https://user:pass@a/" } }, ["/http/url"]],
    [{ ...good, http: { url: `${world.sink.url}/t`, method: "TRACE" } }, ["/http/method"]],
    [{ ...good, http: { url: `${world.sink.url}/t`, headers: { "Idempotency-Key": "x" } } }, ["/http/headers/Idempotency-Key"]],
    [{ ...good, http: { url: `${world.sink.url}/t`, headers: { "Dormouse-Run-Id": "x" } } }, ["/http/headers/Dormouse-Run-Id"]],
    [{ ...good, http: { url: `${world.sink.url}/t`, headers: { A: "b\r\nc: d" } } }, ["/http/headers/A"]],
    [{ ...good, timeout: "PT11M" }, ["/timeout"]],
    [{ ...good, timeout: "-PT1S" }, ["/timeout"]],
    [{ ...good, timeout: "30" }, ["/timeout"]],
    [{ ...good, callback_timeout: "P366D" }, ["/callback_timeout"]],
    [{ ...good, effect: "write" }, ["/effect"]],
    [{ ...good, parameters: { type: "objekt" } }, ["/parameters/type"]],
    [{ ...good, parameters: { $ref: "https://example.com/schema.json" } }, ["/parameters/$ref"]],
    [{ ...good, result: { pattern: "(" } }, ["/result/pattern"]],
    [{ ...good, requires_approval: "yes" }, ["/requires_approval"]],
    // A billion attempts, none, or half of one.
    ...[0, -1, 1.5, null, "3", 1_000_000_000].map((max_attempts) => [{ ...good, retry: { max_attempts } }, ["/retry/max_attempts"]]),
    [{ ...good, retry: { base: "-PT1S", max_wait: "1s", jitter: "some" } }, ["/retry/base", "/retry/max_wait", "/retry/jitter"]],
  ]) {
    const answer = await world.dev.put(`/v1/tools/${unique("wrong")}`, JSON.stringify(definition));
    assert.equal(answer.status, 422, `${JSON.stringify(definition)}: ${answer.text}`);
    const told = answer.json.errors.map(({ pointer }) => pointer).sort();
    assert.deepEqual(told, pointers.toSorted(), `${JSON.stringify(definition)}: ${answer.text}`);
  }
  for (const [definition, pointer] of [
    [{}, "/planner"],
    [{ planner: { kind: "no" } }, "/planner/kind"],
    [{ planner: { kind: "plan", steps: [] } }, "/planner/steps"],
    [{ planner: { kind: "plan", steps: [{ id: "a", sleep: "PT0S" }, { id: "a", sleep: "PT0S" }] } }, "/planner/steps/1/id"],
    [{ planner: { kind: "plan", steps: [{ id: "a", sleep: "PT0S", depends_on: ["b"] }] } }, "/planner/steps/0/depends_on/0"],
    [{ planner: { kind: "plan", steps: [{ id: "a", sleep: "PT0S", depends_on: ["b"] }, { id: "b", sleep: "PT0S", depends_on: ["a"] }] } }, undefined],
    [{ planner: { kind: "plan", steps: [{ id: "a", tool: "t", arguments: { x: "{{ input. }}" } }] } }, "/planner/steps/0/arguments/x"],
    [{ planner: { kind: "plan", steps: [{ id: "a", tool: "t", arguments: {} }] }, limits: { max_parallel: 0 } }, "/limits/max_parallel"],
    [{ planner: { kind: "plan", steps: [{ id: "a", wait_for: [] }] } }, "/planner/steps/0/wait_for"],
    [{ planner: { kind: "plan", steps: [{ id: "a", wait_for: "paid", timeout: "-PT1S" }] } }, "/planner/steps/0/timeout"],
    [{ planner: { kind: "plan", steps: [{ id: "a", approval: { prompt: "Sure?", schema: { type: "objekt" } } }] } }, "/planner/steps/0/approval/schema/type"],
    [{ planner: { kind: "plan", steps: [{ id: "a", run: { agent: "No" } }] } }, "/planner/steps/0/run/agent"],
  ]) {
    const answer = await world.dev.put(`/v1/agents/${unique("wrong")}`, definition);
    assert.equal(answer.status, 422, `${JSON.stringify(definition)}: ${answer.text}`);
    if (pointer !== undefined) assert.ok(answer.json.errors.some((error) => error.pointer === pointer), answer.text);
  }
});

test("a key of a model that is written out is kept, and not shown", async () => {
  const name = unique("keyed");
  const planner = { kind: "model", models: [{ provider: "openai", name: "x", api_key: "sk-written-out" }] };
  const stored = await world.dev.put(`/v1/agents/${name}`, { planner });
  assert.equal(stored.status, 201, stored.text);
  const got = await world.dev.ok("GET", `/v1/agents/${name}`);
  assert.equal(got.planner.models[0].api_key, "[hidden]");
  const again = await world.dev.put(`/v1/agents/${name}`, { planner });
  assert.deepEqual([again.status, again.json.version], [200, 1], "what is kept is what was sent");
});

test("the project's own examples of definitions are taken, and its counter-examples are not", async () => {
  const files = (kind) => readdirSync(new URL(`${kind}/`, schemas)).filter((name) => name.endsWith(".json"));
  const read = (path) => JSON.parse(readFileSync(new URL(path, schemas), "utf8"));
  for (const file of files("counter-examples/tool")) {
    const { instance } = read(`counter-examples/tool/${file}`);
    assert.equal((await world.dev.put(`/v1/tools/${unique("ce")}`, JSON.stringify(instance))).status, 422, file);
  }
  for (const file of files("counter-examples/agent")) {
    const { instance } = read(`counter-examples/agent/${file}`);
    assert.equal((await world.dev.put(`/v1/agents/${unique("ce")}`, JSON.stringify(instance))).status, 422, file);
  }
  for (const file of files("counter-examples/run-request")) {
    const { instance } = read(`counter-examples/run-request/${file}`);
    assert.equal((await world.dev.post("/v1/runs", JSON.stringify(instance))).status, 422, file);
  }
  for (const file of ["smallest.json", "at-most-once.json"]) {
    assert.equal((await world.dev.put(`/v1/tools/${unique("ex")}`, read(`examples/tool/${file}`))).status, 201, file);
  }
  assert.equal((await world.dev.put(`/v1/agents/${unique("ex")}`, read("examples/agent/external.json"))).status, 201);
});

test("arguments and results are held against the tool's schemas, and inputs against the agent's", async () => {
  const name = unique("schemas");
  const parameters = { type: "object", required: ["amount"], properties: { amount: { type: "integer", minimum: 1 } }, additionalProperties: false };
  await world.dev.putTool(name, tool({ parameters, result: { type: "object", required: ["id"] }, http: { url: `${world.sink.url}/${name}` } }));
  world.sink.on(`/${name}`, ({ json }) => ({ body: json.amount === 7 ? { no: "id" } : { id: "x" } }));
  const good = await world.dev.runToEnd({ plan: plan(name, { amount: 5 }) });
  assert.deepEqual([good.status, good.output], ["completed", { id: "x" }]);
  const badArguments = await world.dev.runToEnd({ plan: plan(name, { amount: "5", more: 1 }) }, "blocked");
  const [letter] = await world.dev.deadLetters(badArguments.run_id);
  assert.equal(letter.reason, "invalid_arguments");
  assert.deepEqual(letter.errors.map(({ pointer }) => pointer).sort(), ["/payload/arguments/amount", "/payload/arguments/more"]);
  const badResult = await world.dev.runToEnd({ plan: plan(name, { amount: 7 }) }, "blocked");
  assert.equal((await world.dev.deadLetters(badResult.run_id))[0].reason, "invalid_result");
  assert.deepEqual(world.sink.to(`/${name}`).map(({ json }) => json.amount), [5, 7]);

  const agent = unique("input-schema");
  const input_schema = { type: "object", required: ["order"], properties: { order: { type: "integer" } } };
  await world.dev.putAgent(agent, { input_schema, planner: { kind: "plan", ...plan(name, { amount: "{{ input.order }}" }) } });
  const refused = await world.dev.post("/v1/runs", { agent, input: { order: "7" } });
  assert.equal(refused.status, 422);
  assert.deepEqual(refused.json.errors.map(({ pointer }) => pointer), ["/input/order"]);
  assert.equal((await world.dev.post("/v1/runs", { agent })).status, 422);
  assert.equal((await world.dev.post("/v1/runs", { agent, input: { order: 3 } })).status, 202);
});

test("lists of definitions are paged, newest first, without gaps or repeats", async () => {
  const tenant = await world.tenant(unique("definitions-lists"));
  const names = Array.from({ length: 7 }, (_, number) => `tool-${number}`);
  for (const name of names) await tenant.putTool(name, tool());
  await tenant.putTool("tool-3", tool({ description: "newer" }));
  for (const limit of [1, 2, 3, 7, 50]) {
    const seen = [];
    let cursor = null;
    do {
      const query = cursor === null ? "" : `&cursor=${encodeURIComponent(cursor)}`;
      const page = await tenant.ok("GET", `/v1/tools?limit=${limit}${query}`);
      assert.ok(page.items.length <= limit);
      seen.push(...page.items);
      cursor = page.next_cursor;
    } while (cursor !== null);
    assert.deepEqual(seen.map(({ name }) => name).sort(), names, `limit ${limit}`);
    const times = seen.map(({ created_at }) => created_at);
    assert.equal(seen.find(({ name }) => name === "tool-3").version, 2);
    if (limit === 50) assert.deepEqual(times, times.toSorted().reverse(), "newest first");
  }
  const tools = await tenant.ok("GET", "/v1/tools?limit=2");
  assert.equal((await tenant.get(`/v1/agents?cursor=${encodeURIComponent(tools.next_cursor)}`)).status, 400, "a cursor is of one list");
});
