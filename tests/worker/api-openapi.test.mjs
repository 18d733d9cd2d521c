// Every operation of the OpenAPI document, asked once so that it succeeds and held against what the
// document says of it. An operation without a case here fails.

import assert from "node:assert/strict";
import test from "node:test";
import { openapiOf } from "./support/contract.mjs";
import { unique, worldOfFile } from "./support/runtime.mjs";

const world = worldOfFile();
const SLEEP = { steps: [{ id: "nap", sleep: "P1D" }] };
const EXTERNAL = { tools: [], planner: { kind: "external" } };

/** A run that a dead letter holds, and that letter's id. */
async function blocked() {
  const plan = { steps: [{ id: "a", tool: unique("no-such-tool"), arguments: {} }] };
  const run = await world.dev.runToEnd({ plan }, "blocked");
  const [{ dead_letter_id }] = await world.dev.deadLetters(run.run_id);
  return { run, dead_letter_id };
}

/** The id of an approval that a new run asks for. */
async function asked() {
  const run = await world.dev.startRun({ plan: { steps: [{ id: "a", approval: { prompt: "Well?" } }] } });
  return run.waiting_for[0].approval_id;
}

/** The path of a link to a new approval. */
async function linkPath() {
  const { url } = await world.dev.ok("POST", `/v1/approvals/${await asked()}/links`, { body: {} });
  return new URL(url).pathname;
}

/** The path of the callback of a call that was answered with 202. */
async function callbackPath() {
  const tool = unique("later-tool");
  await world.dev.putTool(tool, { http: { url: `${world.sink.url}/${tool}` } });
  world.sink.on(`/${tool}`, () => ({ status: 202 }));
  const run = await world.dev.startRun({ plan: { steps: [{ id: "a", tool }] } });
  await world.dev.untilRun(run.run_id, "waiting");
  return new URL(world.sink.to(`/${tool}`)[0].headers["dormouse-callback"]).pathname;
}

const newTool = () => ({ description: "x", http: { method: "POST", url: `${world.sink.url}/tool` } });

async function newTenant() {
  const tenant_id = unique("openapi-tenant");
  await world.operator.ok("POST", "/v1/tenants", { body: { tenant_id } });
  return tenant_id;
}

/** How to ask each operation, and the statuses of what it then answers, in order. */
const CASES = {
  "POST /v1/runs": [[202], async () => [await world.dev.post("/v1/runs", { plan: SLEEP, input: {} })]],
  "GET /v1/runs": [[200], async () => [await world.dev.get("/v1/runs?status=waiting&limit=3")]],
  "GET /v1/runs/{run_id}": [
    [200],
    async () => {
      const run = await world.dev.startRun({ plan: SLEEP });
      return [await world.dev.get(`/v1/runs/${run.run_id}`)];
    },
  ],
  "GET /v1/runs/{run_id}/events": [
    [200, 200, 204],
    async () => {
      const { run_id } = await world.dev.startRun({ plan: SLEEP });
      const path = `/v1/runs/${run_id}/events`;
      const ended = await world.dev.runToEnd({ plan: { steps: [{ id: "a", sleep: "PT0S" }] } });
      const seen = { accept: "text/event-stream", "last-event-id": "1000" };
      return [
        await world.dev.get(path),
        await world.dev.get(path, { headers: { accept: "application/x-ndjson" } }),
        await world.dev.get(`/v1/runs/${ended.run_id}/events`, { headers: seen }),
      ];
    },
  ],
  "POST /v1/runs/{run_id}/cancel": [
    [200, 200],
    async () => {
      const { run_id } = await world.dev.startRun({ plan: SLEEP });
      const path = `/v1/runs/${run_id}/cancel`;
      return [await world.dev.post(path, { comment: "enough" }), await world.dev.post(path)];
    },
  ],
  "POST /v1/runs/{run_id}/signals/{name}": [
    [202, 422, 422],
    async () => {
      const { run_id } = await world.dev.startRun({ plan: SLEEP });
      const path = `/v1/runs/${run_id}/signals`;
      return [
        await world.dev.post(`${path}/go`, { payload: { n: 1 } }),
        await world.dev.post(`${path}/go`, { payloat: 1 }),
        await world.dev.post(`${path}/a%20b`, {}),
      ];
    },
  ],
  ...Object.fromEntries(
    ["pause", "resume"].map((word) => [
      `POST /v1/runs/{run_id}/${word}`,
      [
        [200, 200, 409],
        async () => {
          const { run_id } = await world.dev.startRun({ plan: SLEEP });
          const path = `/v1/runs/${run_id}/${word}`;
          const answers = [await world.dev.post(path, { comment: "a while" }), await world.dev.post(path)];
          await world.dev.post(`/v1/runs/${run_id}/cancel`);
          return [...answers, await world.dev.post(path)];
        },
      ],
    ]),
  ),
  "POST /v1/runs/{run_id}/limits": [
    [200, 422, 409],
    async () => {
      const { run_id } = await world.dev.startRun({ plan: SLEEP });
      const path = `/v1/runs/${run_id}/limits`;
      const answers = [await world.dev.post(path, { max_steps: 1_000 }), await world.dev.post(path, { max_steps: 999 })];
      await world.dev.post(`/v1/runs/${run_id}/cancel`);
      return [...answers, await world.dev.post(path, { max_steps: 1_001 })];
    },
  ],
  "POST /v1/runs/{run_id}/retry": [
    [409, 200],
    async () => {
      const { run_id } = await world.dev.startRun({ plan: SLEEP });
      const failed = await world.dev.runToEnd({ plan: { steps: [{ id: "w", wait_for: "x", timeout: "PT0S" }] } }, "failed");
      return [await world.dev.post(`/v1/runs/${run_id}/retry`), await world.dev.post(`/v1/runs/${failed.run_id}/retry`)];
    },
  ],
  "GET /v1/runs/{run_id}/diagnosis": [
    [200],
    async () => {
      const { run_id } = await world.dev.startRun({ plan: SLEEP });
      return [await world.dev.get(`/v1/runs/${run_id}/diagnosis`)];
    },
  ],
  "GET /v1/approvals": [
    [200],
    async () => {
      await asked();
      return [await world.dev.get("/v1/approvals?status=pending&limit=3")];
    },
  ],
  "GET /v1/approvals/{approval_id}": [[200], async () => [await world.dev.get(`/v1/approvals/${await asked()}`)]],
  "POST /v1/approvals/{approval_id}": [
    [422, 200, 409],
    async () => {
      const path = `/v1/approvals/${await asked()}`;
      return [
        await world.dev.post(path, { decision: "maybe" }),
        await world.dev.post(path, { decision: "approved", data: { n: 1 }, comment: "yes", decided_by: "a person" }),
        await world.dev.post(path, { decision: "rejected" }),
      ];
    },
  ],
  "POST /v1/approvals/{approval_id}/links": [
    [201, 422, 409],
    async () => {
      const approval = await asked();
      const path = `/v1/approvals/${approval}/links`;
      const answers = [await world.dev.post(path, { expires_in: "P1D" }), await world.dev.post(path, { expires_in: "P1000D" })];
      await world.dev.post(`/v1/approvals/${approval}`, { decision: "rejected" });
      return [...answers, await world.dev.post(path)];
    },
  ],
  "GET /approvals/{token}": [
    [200, 404],
    async () => [await world.anonymous.get(await linkPath()), await world.anonymous.get("/approvals/none")],
  ],
  "POST /approvals/{token}": [
    [422, 303, 409, 404],
    async () => {
      const path = await linkPath();
      const headers = { "content-type": "application/x-www-form-urlencoded" };
      const send = (path, body) => world.anonymous.call("POST", path, { body, headers });
      const decision = "decision=approved&decided_by=A+person";
      return [await send(path, "decision=approved"), await send(path, decision), await send(path, decision), await send("/approvals/none", decision)];
    },
  ],
  "POST /v1/callbacks/{token}": [
    [422, 200, 410, 404],
    async () => {
      const path = await callbackPath();
      const done = { status: "succeeded", result: { n: 1 } };
      return [
        await world.anonymous.post(path, { status: "done" }),
        await world.anonymous.post(path, done),
        await world.anonymous.post(path, done),
        await world.anonymous.post("/v1/callbacks/none", done),
      ];
    },
  ],
  "GET /v1/tools": [[200], async () => [await world.dev.get("/v1/tools")]],
  "PUT /v1/tools/{name}": [
    [201, 200, 200],
    async () => {
      const path = `/v1/tools/${unique("put-tool")}`;
      return [
        await world.dev.put(path, newTool()),
        await world.dev.put(path, newTool()),
        await world.dev.put(path, { ...newTool(), description: "y" }),
      ];
    },
  ],
  "GET /v1/tools/{name}": [
    [200, 200, 404],
    async () => {
      const name = unique("get-tool");
      await world.dev.putTool(name, newTool());
      const path = `/v1/tools/${name}`;
      return [await world.dev.get(path), await world.dev.get(`${path}?version=1`), await world.dev.get(`${path}?version=2`)];
    },
  ],
  "DELETE /v1/tools/{name}": [
    [204, 404],
    async () => {
      const name = unique("delete-tool");
      await world.dev.putTool(name, newTool());
      return [await world.dev.delete(`/v1/tools/${name}`), await world.dev.delete(`/v1/tools/${name}`)];
    },
  ],
  "GET /v1/agents": [[200], async () => [await world.dev.get("/v1/agents")]],
  "PUT /v1/agents/{name}": [
    [201, 200, 200],
    async () => {
      const path = `/v1/agents/${unique("put-agent")}`;
      return [
        await world.dev.put(path, { planner: { kind: "plan", ...SLEEP } }),
        await world.dev.put(path, { planner: { kind: "plan", ...SLEEP } }),
        await world.dev.put(path, EXTERNAL),
      ];
    },
  ],
  "GET /v1/agents/{name}": [
    [200, 404],
    async () => {
      const name = unique("get-agent");
      await world.dev.putAgent(name, EXTERNAL);
      return [await world.dev.get(`/v1/agents/${name}`), await world.dev.get(`/v1/agents/${name}?version=9`)];
    },
  ],
  "DELETE /v1/agents/{name}": [
    [204, 404],
    async () => {
      const name = unique("delete-agent");
      await world.dev.putAgent(name, EXTERNAL);
      return [await world.dev.delete(`/v1/agents/${name}`), await world.dev.delete(`/v1/agents/${name}`)];
    },
  ],
  "POST /v1/envelopes": [
    [202, 422],
    async () => {
      const name = unique("envelope-agent");
      await world.dev.putAgent(name, EXTERNAL);
      const { run_id } = await world.dev.startRun({ agent: name });
      const done = { schema_version: "1", event_type: "plan.completed", run_id, step_index: null, payload: { output: 1 } };
      return [await world.dev.post("/v1/envelopes", done), await world.dev.post("/v1/envelopes", { ...done, event_type: "no.such" })];
    },
  ],
  "GET /v1/dead-letters": [
    [200],
    async () => {
      const { run } = await blocked();
      const answer = await world.dev.get(`/v1/dead-letters?run_id=${run.run_id}`);
      assert.equal(answer.json.items.length, 1);
      return [answer];
    },
  ],
  "GET /v1/dead-letters/{dead_letter_id}": [
    [200],
    async () => [await world.dev.get(`/v1/dead-letters/${(await blocked()).dead_letter_id}`)],
  ],
  "POST /v1/dead-letters/{dead_letter_id}/redeliver": [
    [422, 200, 409],
    async () => {
      const { dead_letter_id } = await blocked();
      const path = `/v1/dead-letters/${dead_letter_id}/redeliver`;
      const tool = unique("late-tool");
      await world.dev.putTool(tool, newTool());
      return [
        await world.dev.post(path),
        await world.dev.post(path, { payload: { tool, arguments: {} } }),
        await world.dev.post(path, { payload: { tool, arguments: {} } }),
      ];
    },
  ],
  "POST /v1/dead-letters/{dead_letter_id}/resolve": [
    [200, 409],
    async () => {
      const path = `/v1/dead-letters/${(await blocked()).dead_letter_id}/resolve`;
      return [await world.dev.post(path, { result: { ok: 1 } }), await world.dev.post(path, { result: { ok: 1 } })];
    },
  ],
  "POST /v1/dead-letters/{dead_letter_id}/discard": [
    [200, 409],
    async () => {
      const path = `/v1/dead-letters/${(await blocked()).dead_letter_id}/discard`;
      return [await world.dev.post(path, { comment: "no" }), await world.dev.post(path)];
    },
  ],
  "POST /v1/tenants": [
    [201, 409, 422],
    async () => {
      const body = { tenant_id: unique("post-tenant") };
      return [
        await world.operator.post("/v1/tenants", body),
        await world.operator.post("/v1/tenants", body),
        await world.operator.post("/v1/tenants", { tenant_id: "No" }),
      ];
    },
  ],
  "POST /v1/tenants/{tenant_id}/keys": [
    [201, 404],
    async () => {
      const path = `/v1/tenants/${await newTenant()}/keys`;
      return [
        await world.operator.post(path, { name: "ours", role: "reader" }),
        await world.operator.post("/v1/tenants/nobody-here/keys", { name: "ours" }),
      ];
    },
  ],
  "DELETE /v1/tenants/{tenant_id}/keys/{key_id}": [
    [204, 404],
    async () => {
      const path = `/v1/tenants/${await newTenant()}/keys`;
      const { key_id } = await world.operator.ok("POST", path, { body: { name: "ours" } });
      return [await world.operator.delete(`${path}/${key_id}`), await world.operator.delete(`${path}/key_unknown`)];
    },
  ],
  "PUT /v1/secrets/{name}": [[204], async () => [await world.dev.put("/v1/secrets/PAY_KEY", { value: "shh" })]],
  "GET /healthz": [[200], async () => [await world.anonymous.get("/healthz")]],
  "GET /openapi.json": [[200], async () => [await world.anonymous.get("/openapi.json")]],
  "GET /schemas/{name}.json": [
    [200, 404],
    async () => [await world.anonymous.get("/schemas/envelope.json"), await world.anonymous.get("/schemas/nothing.json")],
  ],
  "GET /problems/{name}": [
    [200, 404],
    async () => [await world.anonymous.get("/problems/not-found"), await world.anonymous.get("/problems/nothing")],
  ],
};

test("every operation of the document answers as the document says", async (t) => {
  const openapi = await openapiOf(world.anonymous);
  assert.match(openapi.document.openapi, /^3\.1\./);
  assert.ok(openapi.operations.length > 0);
  for (const operation of openapi.operations) {
    await t.test(operation, async () => {
      assert.ok(CASES[operation], `there is no test of ${operation}`);
      const [statuses, ask] = CASES[operation];
      const answers = await ask();
      assert.deepEqual(
        answers.map(({ status }) => status),
        statuses,
        answers.map(({ text }) => text.slice(0, 300)).join("\n"),
      );
      for (const answer of answers) openapi.check(operation, answer);
    });
  }
});

test("what the document says of refusals is what is answered", async (t) => {
  const openapi = await openapiOf(world.anonymous);
  const reader = await world.tenant(unique("openapi-reader"), "reader");
  for (const operation of openapi.operations) {
    const [method, path] = operation.split(" ");
    if (!path.startsWith("/v1/")) continue;
    const filled = path.replaceAll(/\{[a-z_]+\}/g, "x");
    const body = method === "GET" || method === "DELETE" ? undefined : {};
    const client = path.startsWith("/v1/tenants") ? world.operator : world.dev;
    await t.test(operation, async () => {
      openapi.check(operation, await world.anonymous.call(method, filled, { body }));
      const refused = await reader.call(method, filled, { body });
      if (refused.status >= 400) openapi.check(operation, refused);
      if (body) openapi.check(operation, await client.call(method, filled, { body: "no JSON" }));
      openapi.check(operation, await client.call(method, `${filled}?no-such-parameter=1`, { body }));
      openapi.check(operation, await client.call(method, filled, { body, headers: { "idempotency-key": "" } }));
    });
  }
});
