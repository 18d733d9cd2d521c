// Agents whose planner is a model, asked at the scripted server of llm.mjs.

import assert from "node:assert/strict";
import { after, before } from "node:test";
import { FORMS, startLlm } from "./llm.mjs";
import { unique } from "./runtime.mjs";
import { until } from "./until.mjs";

export { json } from "./llm-wire.mjs";
export const PROVIDERS = FORMS.map(({ provider }) => provider);

/** The key of all models: none of it may be told anywhere, in whatever form. */
export const LLM_KEY = "sk-canary-91/Zq+x7==&k";
export const TOOL_KEY = "canary-7f3/Aa+b&c==";
/** The variables of a world with those secrets. */
export const SECRETS = { TENANT_SECRETS: JSON.stringify({ dev: { LLM_KEY, TOOL_KEY } }) };

/** A retry policy that waits for nothing that can be seen. */
export const SOON = { max_attempts: 3, base: "PT0.01S", max_wait: "PT0.01S", jitter: "none" };

/** The scripted models of a test file: no request of the file may break a rule of its form. Use its fields in tests only. */
export function llmOfFile() {
  const holder = {};
  before(async () => {
    holder.llm = await startLlm();
  });
  after(async () => {
    await holder.llm?.close();
    assert.deepEqual(holder.llm?.violations ?? [], [], "requests that a provider would refuse");
  });
  return new Proxy(holder, { get: (_, name) => holder.llm?.[name] });
}

/**
 * Stores an agent with one model of its own that has the script `turns`, and answers
 * `{ agent, model, requests() }`. `planner`, `model` and the rest are added to the definitions.
 */
export async function agentOf(world, llm, provider, turns, { tools = [], planner = {}, model = {}, name, ...more } = {}) {
  const id = name ?? unique("mind");
  llm.on(id, turns);
  const models = [llm.model(provider, id, { api_key: "{{ secrets.LLM_KEY }}", ...model })];
  await world.dev.putAgent(id, { tools, planner: { kind: "model", models, retry: SOON, ...planner }, ...more });
  return { agent: id, model: id, requests: () => llm.of(id) };
}

/** Stores a tool of a path of its name, and answers the name. `answers` as for a sink. */
export async function toolOf(world, stem, answers, more = {}) {
  const name = unique(stem);
  if (answers) world.sink.on(`/${name}`, answers);
  await world.dev.putTool(name, { http: { method: "POST", url: `${world.sink.url}/${name}` }, retry: SOON, ...more });
  return name;
}

/** The text of an echo, so that no digit is lost. */
export const echo = ({ text }) => ({ body: text });

/** A tool's name as providers take it. */
export const offered = (name) => name.replaceAll(/[^a-zA-Z0-9_-]/g, "_");

/** The call of a tool, as a model makes it. */
export const call = (name, given = {}, more = {}) => ({ name: offered(name), arguments: given, ...more });

/** The value of a result that is none of an error. */
export function valueIn(result) {
  assert.ok(result, "there is no such result");
  assert.notEqual(result.isError, true, result.content);
  return JSON.parse(result.content);
}

/** The error that a result tells of, in the one form in which they are told. */
export function errorIn(result) {
  assert.ok(result, "there is no such result");
  if (result.isError !== undefined) assert.equal(result.isError, true, `not marked as an error: ${result.content}`);
  const { error, ...rest } = JSON.parse(result.content);
  assert.deepEqual(rest, {}, result.content);
  assert.equal(typeof error?.reason, "string", result.content);
  assert.ok(error.message.length > 0, result.content);
  for (const flaw of error.errors ?? []) assert.deepEqual(Object.keys(flaw).sort(), ["message", "pointer"], result.content);
  return error;
}

/** The results that the nth request of a model ends with; fails unless they are those of the calls before, in order. */
export function resultsOf(requests, index) {
  const request = requests[index];
  assert.ok(request, `the model was asked ${requests.length} times`);
  const { messages, results } = request.conversation;
  const calls = messages.findLast(({ role }) => role === "assistant")?.calls ?? [];
  assert.deepEqual(results.map(({ id }) => id), calls.map(({ id }) => id), "each call has its result, in order");
  return results;
}

/** The entries of one kind, as their payloads. */
export const payloads = (log, type) => log.filter(({ event_type }) => event_type === type).map(({ payload }) => payload);

/** Waits until a model was asked so often, and answers the last of these requests. */
export async function asked(llm, model, times) {
  return until(() => llm.of(model).length >= times && llm.of(model)[times - 1], { what: `${model} is asked ${times} times`, every: 5 });
}

/** All that can be read of runs: themselves, their logs, diagnoses and dead letters, as text. */
export async function everythingOf(client, runIds) {
  const texts = [];
  for (const runId of runIds) {
    for (const path of [`/v1/runs/${runId}`, `/v1/runs/${runId}/diagnosis`, `/v1/dead-letters?run_id=${runId}&limit=200`]) texts.push((await client.get(path)).text);
    for (const headers of [{}, { accept: "application/x-ndjson" }]) texts.push((await client.get(`/v1/runs/${runId}/events?limit=200`, { headers })).text);
    const letters = JSON.parse(texts.at(-3)).items;
    for (const { dead_letter_id } of letters) texts.push((await client.get(`/v1/dead-letters/${dead_letter_id}`)).text);
  }
  return texts;
}

/** Fails where a secret, or its base64 or URL-encoded form, is in one of the texts. */
export function assertSecret(texts, secrets) {
  for (const secret of secrets) {
    const inner = (text) => [0, 1, 2].map((shift) => Buffer.from("x".repeat(shift) + text).toString("base64").slice(shift === 0 ? 0 : shift + 1, -4));
    const forms = [secret, JSON.stringify(secret).slice(1, -1), encodeURIComponent(secret), ...inner(secret), Buffer.from(secret).toString("base64url").slice(0, -2)];
    for (const text of texts) {
      for (const form of forms) {
        const at = text.indexOf(form);
        assert.equal(at, -1, `${form} is told: …${text.slice(Math.max(0, at - 200), at + 60)}`);
      }
    }
  }
}
