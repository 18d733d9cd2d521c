// Who may come in, what a refusal looks like, and what every answer carries.

import assert from "node:assert/strict";
import { request } from "node:http";
import test from "node:test";
import { openapiOf, schemasOf } from "./support/contract.mjs";
import { unique, worldOfFile } from "./support/runtime.mjs";
import { verifyLog } from "./support/log.mjs";

const world = worldOfFile();
const SLEEP = { steps: [{ id: "nap", sleep: "P1D" }] };
const UUID = "0192f3c4a5b67c8d9e0f112233445566";

/** One request as it is, which `fetch` would tidy up: any path, any header as often as wanted. */
function raw(method, path, { headers = {}, body } = {}) {
  const { hostname, port } = new URL(world.url);
  return new Promise((resolve, reject) => {
    const sent = request({ hostname, port, method, path, headers, agent: false }, async (response) => {
      let text = "";
      for await (const chunk of response) text += chunk;
      resolve({ status: response.statusCode, headers: new Headers(Object.entries(response.headers).map(([k, v]) => [k, String(v)])), text });
    });
    sent.on("error", reject);
    sent.end(body);
  });
}

/** Every operation under /v1 with its variables filled in. */
async function operations(fill) {
  const { operations } = await openapiOf(world.anonymous);
  return operations
    .map((operation) => operation.split(" "))
    .filter(([, path]) => path.startsWith("/v1/"))
    .map(([method, path]) => ({ method, path, filled: path.replaceAll(/\{([a-z_]+)\}/g, (_, name) => fill(name)) }));
}

/** Opened by a token in the path and by no key. */
const isOpenedByToken = (path) => path.includes("{token}");
const isOperators = (path) => path.startsWith("/v1/tenants");

test("without a key in force every operation answers 401, and tells nothing", async () => {
  const revoked = await world.tenant(unique("doors-revoked"));
  assert.equal((await revoked.get("/v1/runs")).status, 200);
  const ofKey = `/v1/tenants/${revoked.tenantId}/keys/${revoked.keyId}`;
  assert.equal((await world.operator.delete(ofKey)).status, 204);
  const other = await world.tenant(unique("doors-other"));
  const halfOther = `${other.key.slice(0, -3)}AAA`;
  const expected = (await world.anonymous.get("/v1/runs")).text;
  for (const { method, path, filled } of await operations(() => "x")) {
    if (isOpenedByToken(path)) continue;
    for (const key of [undefined, "", "wrong", revoked.key, halfOther, `${other.key}x`, "dmk_nobody.x.y"]) {
      const body = method === "GET" || method === "DELETE" ? undefined : "no JSON";
      const answer = await world.anonymous.with(key).call(method, filled, { body });
      assert.equal(answer.status, 401, `${method} ${filled} with ${key}: ${answer.text}`);
      assert.equal(answer.text, expected);
      assert.equal(answer.headers.get("www-authenticate"), "Bearer");
    }
  }
});

test("the operator's token opens /v1/tenants and the letters that no tenant owns, a tenant's key all the rest", async () => {
  const admin = await world.tenant(unique("doors-admin"), "admin");
  for (const { method, path, filled } of await operations(() => "x")) {
    if (isOpenedByToken(path)) continue;
    const body = method === "GET" || method === "DELETE" ? undefined : {};
    const asOperator = (await world.operator.call(method, filled, { body })).status;
    const asTenant = (await admin.call(method, filled, { body })).status;
    const asDev = (await world.dev.call(method, filled, { body })).status;
    const opens = isOperators(path) || path.startsWith("/v1/dead-letters");
    assert.equal(asOperator === 401, !opens, `${method} ${path} as the operator: ${asOperator}`);
    assert.equal(asTenant === 401, isOperators(path), `${method} ${path} as a tenant's admin: ${asTenant}`);
    assert.equal(asDev === 401, isOperators(path), `${method} ${path} as dev: ${asDev}`);
  }
});

test("a key is read from a Bearer header, once, and from nowhere else", async () => {
  for (const [headers, status] of [
    [{ authorization: "Bearer dev-key" }, 200],
    [{ authorization: "bearer dev-key" }, 200],
    [{ authorization: "Bearer  dev-key" }, 200],
    [{ authorization: "Basic dev-key" }, 401],
    [{ authorization: "dev-key" }, 401],
    [{ authorization: ["Bearer dev-key", "Bearer dev-key"] }, 401],
    [{ "x-api-key": "dev-key" }, 401],
    [{ cookie: "authorization=Bearer dev-key" }, 401],
  ]) {
    assert.equal((await raw("GET", "/v1/tools", { headers })).status, status, JSON.stringify(headers));
  }
  assert.equal((await raw("GET", "/v1/tools?key=dev-key&authorization=dev-key")).status, 401);
});

test("a role may do what the roles below it may, and no more", async () => {
  const tenantId = unique("doors-roles");
  const admin = await world.tenant(tenantId, "admin");
  const roles = ["reader", "operator", "developer", "admin"];
  const clients = { admin };
  for (const role of roles.slice(0, 3)) clients[role] = await world.keyFor(tenantId, role);
  // What it is to look, to operate and to develop, as the API's documents tell it.
  const least = ({ method, path }) => {
    if (method === "GET") return "reader";
    if (/\/(cancel|pause|resume|retry|limits|redeliver|resolve|discard|links)$/.test(path)) return "operator";
    if (/\/signals\/|^\/v1\/approvals\//.test(path)) return "operator";
    return path.startsWith("/v1/secrets") ? undefined : "developer";
  };
  for (const operation of await operations(() => "x")) {
    if (isOperators(operation.path) || isOpenedByToken(operation.path)) continue;
    const lowest = least(operation);
    if (!lowest) continue;
    for (const role of roles) {
      const body = operation.method === "GET" || operation.method === "DELETE" ? undefined : {};
      const answer = await clients[role].call(operation.method, operation.filled, { body });
      const refused = roles.indexOf(role) < roles.indexOf(lowest);
      assert.equal(answer.status === 403, refused, `${operation.method} ${operation.path} as ${role}: ${answer.status}`);
      if (refused) {
        assert.equal(answer.json.type, "/problems/forbidden");
        assert.equal(answer.json.role_needed, lowest);
      }
    }
  }
  // A key for which no role is named is that of an application.
  const made = await world.operator.ok("POST", `/v1/tenants/${tenantId}/keys`, { body: { name: "no role" } });
  assert.equal(made.role, "developer");
  assert.equal((await world.operator.post(`/v1/tenants/${tenantId}/keys`, { name: "x", role: "root" })).status, 422);
});

test("what is another tenant's is as what is missing, on every route and kind of id", async () => {
  const ours = await world.tenant(unique("doors-ours"));
  const theirs = await world.tenant(unique("doors-theirs"));
  const tool = unique("doors-tool");
  const agent = unique("doors-agent");
  await ours.putTool(tool, { description: "ours", http: { url: `${world.sink.url}/walls` } });
  await ours.putAgent(agent, { planner: { kind: "external" }, tools: [tool] });
  const sleeping = await ours.startRun({ plan: SLEEP, input: { secret: "alpha" } });
  const external = await ours.startRun({ agent });
  const held = await ours.runToEnd({ plan: { steps: [{ id: "a", tool: "none-such", arguments: { secret: "beta" } }] } }, "blocked");
  const [letter] = await ours.deadLetters(held.run_id);
  const strayAnswer = await ours.post("/v1/envelopes", { event_type: "tool.requested", run_id: `run_${UUID}`, payload: {} });
  const stray = strayAnswer.json.rejected[0].dead_letter_id;
  const asking = await ours.startRun({ plan: { steps: [{ id: "a", approval: { prompt: "alpha?" } }] } });
  const approval = asking.waiting_for[0].approval_id;
  const logs = async () => JSON.stringify(await Promise.all([sleeping, external, held, asking].map(({ run_id }) => verifyLog(ours, run_id))));
  const before = await logs();

  const known = {
    run_id: [sleeping.run_id, external.run_id, held.run_id, asking.run_id],
    dead_letter_id: [letter.dead_letter_id, stray],
    approval_id: [approval],
  };
  const missing = { run_id: `run_${UUID}`, dead_letter_id: `dl_${UUID}`, approval_id: `apr_${UUID}`, name: "missing" };
  const walls = [];
  for (const { method, path } of await operations((name) => name)) {
    if (isOperators(path) || isOpenedByToken(path) || path.startsWith("/v1/secrets") || !path.includes("{") || method === "PUT") continue;
    const variable = /\{([a-z_]+)\}/.exec(path)[1];
    const names = path.startsWith("/v1/tools") ? [tool] : [agent];
    const ids = variable === "name" ? names : known[variable];
    assert.ok(ids, `there is no case for {${variable}} of ${method} ${path}`);
    const decides = method === "POST" && path.endsWith("/{approval_id}");
    const body = path.endsWith("/resolve") ? { result: 1 } : path.endsWith("/limits") ? { max_steps: 1_000 } : decides ? { decision: "approved" } : method === "POST" ? {} : undefined;
    const ask = (id) => theirs.call(method, path.replace(`{${variable}}`, id).replace("{name}", "go"), { body });
    const nothing = await ask(missing[variable]);
    assert.equal(nothing.status, 404, `${method} ${path}`);
    for (const id of ids) {
      const answer = await ask(id);
      assert.equal(answer.status, 404, `${method} ${path} with ${id}: ${answer.text}`);
      assert.equal(answer.text, nothing.text, `${method} ${path} with ${id} differs from what is missing`);
      walls.push(`${method} ${path}`);
    }
    // The same ids are the owner's: the wall is what refused.
    if (method === "GET") for (const id of ids) assert.equal((await ours.get(path.replace(`{${variable}}`, id))).status, 200);
  }
  assert.ok(new Set(walls).size >= 10, `${walls}`);

  // Ids in bodies and queries.
  const none = await theirs.get(`/v1/dead-letters?run_id=${held.run_id}`);
  assert.deepEqual(none.json, { items: [], next_cursor: null });
  for (const list of ["/v1/runs", "/v1/tools", "/v1/agents"]) assert.deepEqual((await theirs.get(list)).json.items, [], list);
  const envelope = (run_id, more) => ({ schema_version: "1", event_type: "plan.completed", run_id, step_index: null, payload: { output: 1 }, ...more });
  const errors = async (body) => {
    const answer = await theirs.post("/v1/envelopes", body);
    assert.equal(answer.status, 422);
    return answer.json.errors;
  };
  assert.deepEqual(await errors(envelope(external.run_id)), await errors(envelope(`run_${UUID}`)));
  assert.notEqual((await errors(envelope(external.run_id, { tenant_id: ours.tenantId }))).length, 0);
  const foreignAgent = await theirs.post("/v1/runs", { agent });
  assert.equal(foreignAgent.status, 422);
  const foreignTool = await theirs.runToEnd({ plan: { steps: [{ id: "a", tool, arguments: {} }] } }, "blocked");
  assert.equal((await theirs.deadLetters(foreignTool.run_id))[0].reason, "unknown_tool");

  assert.equal(await logs(), before, "a run of ours changed");
  assert.equal(world.sink.to("/walls").length, 0);
  for (const id of known.dead_letter_id) {
    assert.equal((await world.operator.get(`/v1/dead-letters/${id}`)).status, 404, "the operator's desk holds no tenant's letters");
    assert.equal((await world.operator.post(`/v1/dead-letters/${id}/discard`)).status, 404);
  }
  const texts = [(await theirs.get("/v1/dead-letters")).text, (await theirs.get("/v1/runs")).text, (await world.operator.get("/v1/dead-letters?limit=200")).text];
  for (const text of texts) assert.doesNotMatch(text, /alpha|beta/);
});

test("a problem has the form of RFC 9457, and its type can be looked up", async () => {
  const schemas = schemasOf(world.anonymous);
  const plan = { plan: { steps: [] } };
  const big = `{"input":"${"x".repeat(1_100_000)}"}`;
  const ended = await world.dev.startRun({ plan: SLEEP });
  await world.dev.ok("POST", `/v1/runs/${ended.run_id}/cancel`);
  const settled = await world.dev.startRun({ plan: { steps: [{ id: "a", sleep: "PT0S" }] } });
  await world.dev.untilRun(settled.run_id);
  const cases = [
    [await world.dev.post("/v1/runs", "{"), 400, "invalid-json"],
    [await world.dev.post("/v1/runs", ""), 400, "invalid-json"],
    [await world.dev.post("/v1/runs", '{"plan":1,"plan":2}'), 400, "invalid-json"],
    [await world.dev.post("/v1/runs", `${"[".repeat(2_000)}${"]".repeat(2_000)}`), 400, "invalid-json"],
    [await world.anonymous.get("/v1/runs"), 401, "unauthorized"],
    [await world.dev.get("/v1/nothing"), 404, "not-found"],
    [await world.dev.get(`/v1/runs/run_${UUID}`), 404, "not-found"],
    [await world.dev.call("PATCH", "/v1/runs", { body: {} }), 405, "method-not-allowed"],
    [await world.dev.post(`/v1/runs/${settled.run_id}/cancel`), 409, "run-ended"],
    [await world.dev.post("/v1/runs", big), 413, "too-large"],
    [await world.dev.post("/v1/runs", plan), 422, "invalid-run"],
    [await world.dev.post("/v1/runs", { plan: SLEEP, inptu: 1 }), 422, "invalid-run"],
    [await world.dev.put(`/v1/tools/${unique("bad")}`, {}), 422, "invalid-tool"],
    [await world.dev.put(`/v1/agents/${unique("bad")}`, {}), 422, "invalid-agent"],
    [await world.dev.post("/v1/envelopes", []), 422, "invalid-envelope"],
    [await world.operator.post("/v1/tenants", { tenant_id: "A" }), 422, "invalid-tenant"],
  ];
  for (const [answer, status, type] of cases) {
    assert.equal(answer.status, status, `${type}: ${answer.text}`);
    assert.match(answer.headers.get("content-type"), /^application\/problem\+json/);
    assert.equal(answer.json.type, `/problems/${type}`, answer.text);
    assert.equal(answer.json.status, status);
    assert.ok(answer.json.title && answer.json.detail, answer.text);
    await schemas.check("problem", answer.json);
    const page = await world.anonymous.get(answer.json.type);
    assert.equal(page.status, 200, answer.json.type);
    assert.equal(page.json.title, answer.json.title);
    if (status === 422) {
      assert.ok(answer.json.errors.length > 0, answer.text);
      for (const { pointer, message } of answer.json.errors) assert.ok(/^($|\/)/.test(pointer) && message, answer.text);
    }
  }
  const typo = await world.dev.post("/v1/runs", { plan: SLEEP, inptu: 1 });
  assert.deepEqual(typo.json.errors.map(({ pointer }) => pointer), ["/inptu"]);
  const tooLarge = await world.dev.post("/v1/runs", big);
  assert.equal(tooLarge.json.limit_bytes, 1_048_576);
});

test("every answer continues the trace of its request, and is not cached by others", async () => {
  const trace = "4bf92f3577b34da6a3ce929d0e0e4736";
  const traceparent = `00-${trace}-00f067aa0ba902b7-01`;
  for (const [client, method, path, body] of [
    [world.anonymous, "GET", "/healthz"],
    [world.anonymous, "GET", "/v1/runs"],
    [world.dev, "GET", "/v1/runs"],
    [world.dev, "GET", "/nothing"],
    [world.dev, "POST", "/v1/runs", { plan: SLEEP }],
    [world.dev, "POST", "/v1/runs", "{"],
    [world.operator, "POST", "/v1/tenants", {}],
  ]) {
    const own = (await client.call(method, path, { body, headers: { traceparent } })).headers.get("traceparent");
    assert.match(own, new RegExp(`^00-${trace}-[0-9a-f]{16}-01$`), `${method} ${path}`);
    assert.notEqual(own, traceparent);
    for (const sent of [undefined, "nonsense", `00-${"0".repeat(32)}-00f067aa0ba902b7-01`, `ff-${trace}-00f067aa0ba902b7-01`]) {
      const headers = sent ? { traceparent: sent } : {};
      const begun = (await client.call(method, path, { body, headers })).headers.get("traceparent");
      assert.match(begun, /^00-(?!0{32})[0-9a-f]{32}-(?!0{16})[0-9a-f]{16}-[0-9a-f]{2}$/, `${method} ${path}`);
      assert.ok(!begun.includes(trace));
    }
  }
  assert.match((await world.dev.get("/v1/runs")).headers.get("cache-control"), /no-store/);
});

test("a body is JSON, whatever clients say by default, and is refused where they say otherwise", async () => {
  const body = JSON.stringify({ plan: SLEEP });
  const headers = (type) => ({ authorization: "Bearer dev-key", ...(type && { "content-type": type }) });
  for (const type of [undefined, "application/json", "Application/JSON; charset=UTF-8", "application/vnd.acme+json", "text/plain;charset=UTF-8", "application/x-www-form-urlencoded"]) {
    const answer = await raw("POST", "/v1/runs", { headers: headers(type), body });
    assert.equal(answer.status, 202, `${type}: ${answer.text}`);
  }
  for (const type of ["multipart/form-data; boundary=x", "application/xml", "image/png"]) {
    assert.equal((await raw("POST", "/v1/runs", { headers: headers(type), body })).status, 415, type);
  }
});

test("methods, paths and queries that lead nowhere are told apart", async () => {
  const wrong = await world.dev.call("PATCH", "/v1/tools/a", { body: {} });
  assert.equal(wrong.status, 405);
  assert.deepEqual(wrong.headers.get("allow").split(", ").sort(), ["DELETE", "GET", "HEAD", "PUT"]);
  const headers = { authorization: "Bearer dev-key" };
  for (const path of ["/v1/runs/", "/v1//runs", "//v1/runs", "/v1", "/", "/V1/runs", "/v1/tools/a/b", "/v1/runs/%", "/v1/tools/%FF", "/v1/runs/x/y/z"]) {
    assert.equal((await raw("GET", path, { headers })).status, 404, path);
  }
  const head = await raw("HEAD", "/v1/runs", { headers });
  assert.deepEqual([head.status, head.text], [200, ""]);
  for (const [path, parameter] of [
    ["/v1/runs?limit=0", "limit"],
    ["/v1/runs?limit=-1", "limit"],
    ["/v1/runs?limit=1.5", "limit"],
    ["/v1/runs?limit=ten", "limit"],
    ["/v1/runs?limit=1&limit=2", "limit"],
    ["/v1/runs?lmit=1", "lmit"],
    ["/v1/runs?status=done", "status"],
    ["/v1/runs?created_after=yesterday", "created_after"],
    ["/v1/runs?agent=A", "agent"],
    ["/v1/runs?tag.Order=1", "tag.Order"],
    ["/v1/runs?cursor=abc", "cursor"],
    ["/v1/tools?cursor=abc", "cursor"],
    ["/v1/tools/a?version=0", "version"],
    ["/v1/tools/a?version=one", "version"],
    ["/v1/dead-letters?reason=because", "reason"],
    ["/v1/dead-letters?status=shut", "status"],
    ["/v1/dead-letters?run_id=1", "run_id"],
    ["/v1/dead-letters?cursor=abc", "cursor"],
  ]) {
    const answer = await world.dev.get(path);
    assert.ok([400, 422].includes(answer.status), `${path}: ${answer.status} ${answer.text}`);
    assert.equal(answer.json.type, "/problems/invalid-query", path);
    assert.equal(answer.json.parameter, parameter, path);
  }
});

test("names with slashes, percents, quotes, other scripts and control characters are refused at the door", async () => {
  const tool = { description: "x", http: { url: `${world.sink.url}/t` } };
  const bad = ["a/b", "a%2Fb", "x_'y'", "p:1@h", "q#1", "w (1)", "..", ".", "é", "e\u0301", "订单-7", "😀", "a".repeat(65), "a".repeat(1_000), "a ", " a", "a\n", "A", "-a", "_a", "%00", "__proto__", "a\u200b"];
  for (const name of bad) {
    const at = encodeURIComponent(name);
    if (name === "." || name === "..") continue; // A URL has no such segment: it is resolved before it is sent.
    for (const kind of ["tools", "agents"]) {
      const put = await world.dev.put(`/v1/${kind}/${at}`, kind === "tools" ? tool : { planner: { kind: "external" } });
      assert.equal(put.status, 422, `${kind} ${name}: ${put.text}`);
      assert.equal((await world.dev.get(`/v1/${kind}/${at}`)).status, 404, `${kind} ${name}`);
      assert.equal((await world.dev.delete(`/v1/${kind}/${at}`)).status, 404, `${kind} ${name}`);
    }
    const step = await world.dev.post("/v1/runs", { plan: { steps: [{ id: name, sleep: "PT0S" }] } });
    assert.equal(step.status, 422, `a step ${name}`);
    assert.equal(step.json.errors[0].pointer, "/plan/steps/0/id");
    const tag = await world.dev.post("/v1/runs", { plan: SLEEP, tags: { [name]: "x" } });
    assert.equal(tag.status, 422, `a tag ${name}`);
  }
  for (const name of ["", "\u0000"]) {
    const step = await world.dev.post("/v1/runs", { plan: { steps: [{ id: name, sleep: "PT0S" }] } });
    assert.ok([400, 422].includes(step.status), step.text);
  }
  for (const path of ["/v1/tools/..", "/v1/tools/%2e%2e", "/v1/tools/."]) {
    const answer = await raw("PUT", path, { headers: { authorization: "Bearer dev-key", "content-type": "application/json" }, body: JSON.stringify(tool) });
    assert.ok([404, 405, 422].includes(answer.status), `${path}: ${answer.status}`);
  }
  // The longest name, and each character that a name may have.
  for (const name of ["a".repeat(64), "0.a_b-c", "7", "a..b"]) {
    assert.equal((await world.dev.put(`/v1/tools/${name}`, tool)).status, 201, name);
    assert.equal((await world.dev.get(`/v1/tools/${name}`)).json.name, name);
    const run = await world.dev.runToEnd({ plan: { steps: [{ id: name, tool: name, arguments: {} }] }, tags: { [name]: "é 😀" } });
    assert.equal(run.status, "completed");
    const found = await world.dev.get(`/v1/runs?tag.${name}=${encodeURIComponent("é 😀")}`);
    assert.deepEqual(found.json.items.map(({ run_id }) => run_id), [run.run_id], name);
  }
  for (const tenant_id of ["a:b", "a/b", "", "A", "é", "a".repeat(65), "..", "_x"]) {
    assert.equal((await world.operator.post("/v1/tenants", { tenant_id })).status, 422, tenant_id);
  }
});

test("ids have the form that the contract says, and others name nothing", async () => {
  const run = await world.dev.startRun({ plan: SLEEP });
  assert.match(run.run_id, /^run_[0-9a-f]{12}7[0-9a-f]{3}[89ab][0-9a-f]{15}$/);
  for (const id of ["1", "run_", "run_1", run.run_id.toUpperCase(), run.run_id.slice(4), `${run.run_id}0`, `${run.run_id}%20`, `%20${run.run_id}`, run.run_id.replace("run_", "evt_"), `${run.run_id}%00`]) {
    assert.equal((await world.dev.get(`/v1/runs/${id}`)).status, 404, id);
    assert.equal((await world.dev.get(`/v1/runs/${id}/events`)).status, 404, id);
    assert.equal((await world.dev.post(`/v1/runs/${id}/cancel`)).status, 404, id);
  }
  const second = await world.dev.startRun({ plan: SLEEP });
  assert.ok(second.run_id > run.run_id, "ids sort by the time of creation");
});

test("a revoked key is out at once, and its sisters stay", async () => {
  const tenantId = unique("doors-sisters");
  const one = await world.tenant(tenantId);
  const two = await world.keyFor(tenantId, "reader");
  const run = await one.startRun({ plan: SLEEP });
  assert.equal((await two.get(`/v1/runs/${run.run_id}`)).status, 200);
  await world.operator.ok("DELETE", `/v1/tenants/${tenantId}/keys/${one.keyId}`);
  assert.equal((await one.get("/v1/runs")).status, 401);
  assert.equal((await two.get(`/v1/runs/${run.run_id}`)).status, 200);
  // Of another tenant, a key's id opens nothing there.
  const other = await world.tenant(unique("doors-sisters"));
  assert.equal((await world.operator.delete(`/v1/tenants/${tenantId}/keys/${other.keyId}`)).status, 404);
  assert.equal((await other.get("/v1/runs")).status, 200);
  const wall = await world.anonymous.with(one.key.replace(tenantId, other.tenantId)).get("/v1/runs");
  assert.equal(wall.status, 401);
});
