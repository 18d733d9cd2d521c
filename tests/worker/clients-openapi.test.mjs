// Clients that others wrote read the API's document as the Worker serves it, and hold the routes to it.

import assert from "node:assert/strict";
import { spawn } from "node:child_process";
import { mkdtempSync, readFileSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { after, before, test } from "node:test";
import { Response } from "miniflare";
import { startRuntime } from "../../scripts/runtime.mjs";
import { root } from "../../scripts/steps.mjs";
import { pythonCommand } from "../clients/python.mjs";
import { until } from "./support/until.mjs";

const KEY = "dev-key";
const ADMIN_TOKEN = "the-operator";
const config = (name) => join(root, "tests", "clients", name);

let folder;
let runtime;
const trouble = [];
/** The addresses that a tool was told to report to. */
const callbacks = [];

before(async () => {
  folder = mkdtempSync(join(tmpdir(), "dormouse-clients-"));
  runtime = await startRuntime({
    stateDir: join(folder, "state"),
    vars: { DEV_API_KEY: KEY, ADMIN_TOKEN },
    // Made-up tools have made-up addresses: none is called.
    outbound: (request) => {
      if (!request.url.endsWith("/later")) return Response.json({ price: 5 });
      callbacks.push(request.headers.get("dormouse-callback"));
      return new Response(null, { status: 202 });
    },
    onLog: (text) => {
      if (/panic|answered 5\d\d/.test(text)) trouble.push(text);
    },
  });
});

after(async () => {
  await runtime?.dispose();
  rmSync(folder, { recursive: true, force: true });
});

/** Calls the API as the tenant and wants success. */
async function call(method, path, body) {
  const response = await fetch(`${runtime.url}${path}`, {
    method,
    headers: { authorization: `Bearer ${KEY}`, "content-type": "application/json" },
    ...(body && { body: JSON.stringify(body) }),
  });
  const text = await response.text();
  assert.ok(response.ok, `${method} ${path} answered ${response.status}: ${text}`);
  return JSON.parse(text);
}

/** Runs a command to its end: its exit code and all that it wrote. */
function output(command, args, env) {
  return new Promise((done, fail) => {
    const child = spawn(command, args, { cwd: folder, env: { ...process.env, ...env }, stdio: ["ignore", "pipe", "pipe"] });
    let text = "";
    child.stdout.on("data", (chunk) => (text += chunk));
    child.stderr.on("data", (chunk) => (text += chunk));
    child.on("error", fail);
    child.on("close", (code) => done({ code, text }));
  });
}

const saved = (name, document) => {
  const path = join(folder, name);
  writeFileSync(path, JSON.stringify(document, null, 2));
  return path;
};

test("Redocly finds nothing to mend in the document", async () => {
  const path = saved("served.json", await call("GET", "/openapi.json"));
  const redocly = join(root, "node_modules", "@redocly", "cli", "bin", "cli.js");
  const { code, text } = await output(process.execPath, [redocly, "lint", path, "--config", config("redocly.yaml")], {
    REDOCLY_TELEMETRY: "off",
    REDOCLY_SUPPRESS_UPDATE_NOTICE: "true",
  });
  assert.equal(code, 0, text);
  assert.doesNotMatch(text, /warning was generated/i, text);
});

test("Schemathesis finds no answer that the document does not allow", { timeout: 300_000 }, async (t) => {
  const schemathesis = await pythonCommand(t, "schemathesis");
  if (!schemathesis) return;
  const path = saved("examples.json", await withRealExamples(await call("GET", "/openapi.json")));
  const report = join(folder, "report.json");
  const { code, text } = await output(
    schemathesis,
    ["--config-file", config("schemathesis.toml"), "run", path, "--url", runtime.url, "--checks", "all"].concat(
      ["--phases", "examples,coverage,fuzzing,stateful", "--max-examples", "15", "--seed", "20261201"],
      ["--no-color", "--continue-on-failure", "--report-json-path", report],
    ),
    { DORMOUSE_KEY: KEY, DORMOUSE_ADMIN_TOKEN: ADMIN_TOKEN },
  );
  assert.equal(code, 0, text);

  const { operations, test_cases, valid_rates } = JSON.parse(readFileSync(report, "utf8"));
  assert.equal(operations.tested, operations.total, text);
  const untaken = Object.entries(valid_rates)
    .filter(([, phases]) => Object.values(phases).every(({ accepted }) => accepted === 0))
    .map(([operation]) => operation);
  assert.deepEqual(untaken, [], "operations that refused everything");
  assert.equal(Object.keys(valid_rates).length, operations.total, "operations that were asked");
  assert.deepEqual(trouble, [], "in the Worker's log");
  t.diagnostic(`${test_cases.generated} requests over ${operations.tested} operations`);
});

/** The document with examples that name what is there, so that the first requests are carried out. */
async function withRealExamples(document) {
  const { paths, components } = document;
  const tool = { parameters: { properties: { amount: { minimum: 1 } } }, http: { url: "https://tools.example/" } };
  for (const name of ["echo", "vendor.quote", "payments.charge"]) await call("PUT", `/v1/tools/${name}`, tool);
  const buyer = { tools: ["payments.charge"], planner: { kind: "external" } };
  await call("PUT", "/v1/agents/buyer", { ...buyer, description: "The first version" });
  await call("PUT", "/v1/agents/buyer", buyer);

  const start = async () => (await call("POST", "/v1/runs", { agent: "buyer" })).run_id;
  const request = (run_id, amount) => ({
    event_type: "tool.requested",
    run_id,
    step_index: 0,
    payload: { tool: "payments.charge", arguments: { amount } },
  });
  const name = (path, id) => {
    const [{ $ref }] = paths[path].parameters;
    paths[path].parameters = [{ ...components.parameters[$ref.split("/").at(-1)], example: id }];
  };
  for (const settlement of ["redeliver", "resolve", "discard"]) {
    const run_id = await start();
    await call("POST", "/v1/envelopes", request(run_id, 0));
    const { items } = await call("GET", `/v1/dead-letters?run_id=${run_id}`);
    name(`/v1/dead-letters/{dead_letter_id}/${settlement}`, items[0].dead_letter_id);
  }
  name("/v1/runs/{run_id}/cancel", await start());
  name("/v1/runs/{run_id}/limits", await start());
  const timedOut = { steps: [{ id: "a", wait_for: "go", timeout: "PT0S" }] };
  name("/v1/runs/{run_id}/retry", (await call("POST", "/v1/runs", { plan: timedOut })).run_id);
  const asked = async () => {
    const plan = { steps: [{ id: "a", approval: { prompt: "Well?" } }] };
    return (await call("POST", "/v1/runs", { plan })).waiting_for[0].approval_id;
  };
  const link = async () => (await call("POST", `/v1/approvals/${await asked()}/links`, {})).url.split("/").at(-1);
  name("/v1/approvals/{approval_id}", await asked());
  name("/v1/approvals/{approval_id}/links", await asked());
  name("/approvals/{token}", await link());
  await call("PUT", "/v1/tools/later", { http: { url: "https://tools.example/later" } });
  await call("POST", "/v1/runs", { plan: { steps: [{ id: "a", tool: "later" }] } });
  await until(() => callbacks.length > 0, { what: "the tool is called" });
  name("/v1/callbacks/{token}", callbacks[0].split("/").at(-1));
  const envelopes = paths["/v1/envelopes"].post.requestBody.content["application/json"].examples;
  envelopes.one.value = request(await start(), 5);
  envelopes.several.value = [request(await start(), 5)];
  // One key for all examples would make each but the first another request under the same key.
  delete components.parameters.idempotency_key.example;
  return document;
}
