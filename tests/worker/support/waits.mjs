// Runs that wait: what holds them, what is told of it, and what must hold of them at any time.

import assert from "node:assert/strict";
import { assertAtRest, assertWholeLog, callsByStep } from "./checks.mjs";
import { schemasOf } from "./contract.mjs";
import { verifyLog } from "./log.mjs";
import { unique } from "./runtime.mjs";

const ENDS = ["completed", "failed", "cancelled"];
const schemas = new Map();

/** Stores a tool whose calls go to a path of its name, and answers the name. */
export async function toolOf(world, stem, answers, more = {}) {
  const name = unique(stem);
  if (answers) world.sink.on(`/${name}`, answers);
  await world.dev.putTool(name, { http: { method: "POST", url: `${world.sink.url}/${name}` }, ...more });
  return name;
}

/** A retry policy without chance. */
export const RETRY = { max_attempts: 3, base: "PT60S", max_wait: "PT10M", jitter: "none" };

export const signal = (client, runId, name, payload, options) =>
  client.post(`/v1/runs/${runId}/signals/${name}`, payload === undefined ? undefined : { payload }, options);

/** As `signal`, where anything but an acceptance is a fault of the test. */
export async function signalled(client, runId, name, payload, options) {
  const answer = await signal(client, runId, name, payload, options);
  assert.equal(answer.status, 202, `${runId} ${name}: ${answer.text}`);
  return answer.json;
}

/** A problem of that status and type, as the contract has it. */
export function assertProblem(answer, status, type) {
  assert.equal(answer.status, status, answer.text);
  assert.match(answer.headers.get("content-type"), /^application\/problem\+json/);
  assert.deepEqual([answer.json.status, answer.json.type], [status, `/problems/${type}`], answer.text);
  return answer.json;
}

/** What the run says of why it stands still, held against its schema. */
export async function diagnosis(client, runId) {
  const told = await client.ok("GET", `/v1/runs/${runId}/diagnosis`);
  if (!schemas.has(client.url)) schemas.set(client.url, schemasOf(client));
  await schemas.get(client.url).check("diagnosis", told);
  assert.equal(told.run_id, runId);
  return told;
}

/** `kind@step` of each blocker. */
export const kindsOf = (told) => told.blockers.map(({ kind, step_index }) => (step_index === null ? kind : `${kind}@${step_index}`));

/** Makes the call that a blocker names. */
export async function release(client, blocker, body = {}) {
  assert.ok(blocker.release, `nothing releases ${JSON.stringify(blocker)}`);
  const [method, path] = blocker.release.split(" ");
  return client.ok(method, path, { body });
}

/** Each signal was received once, and consumed once at most, by the first that waited for it. */
export function assertSignals(log) {
  const received = log.filter(({ event_type }) => event_type === "signal.received");
  const consumed = log.filter(({ event_type }) => event_type === "signal.consumed");
  const bySeq = new Map(received.map((entry) => [entry.seq, entry.payload]));
  const taken = new Set();
  for (const { seq, step_index, payload } of consumed) {
    const at = `${log[0].run_id} entry ${seq}`;
    assert.ok(payload.received_seq < seq, `${at} consumes what had not come`);
    assert.equal(bySeq.get(payload.received_seq)?.name, payload.name, `${at} consumes another signal`);
    assert.ok(!taken.has(payload.received_seq), `${at} consumes ${payload.received_seq} once more`);
    taken.add(payload.received_seq);
    const older = received.find((entry) => entry.payload.name === payload.name && entry.seq < payload.received_seq && !taken.has(entry.seq));
    assert.equal(older, undefined, `${at} leaves an older ${payload.name} behind`);
    assert.equal(consumed.filter((entry) => entry.step_index === step_index).length, 1, `step ${step_index} took several signals`);
  }
  return { received, consumed, unread: received.filter(({ seq }) => !taken.has(seq)) };
}

/**
 * What must hold of a run at any time, and of one that has ended: its log is whole, each of its steps
 * took effect once at most, its signals are accounted for, and it owes nothing, or something wakes it.
 * One of `many` alike is spared the hashes and schemas of its log.
 */
export async function assertStanding(world, runId, { client = world.dev, many = false } = {}) {
  const run = await client.run(runId);
  const log = await (many ? client.log(runId) : verifyLog(client, runId));
  assertWholeLog(log);
  const { unread } = assertSignals(log);
  assert.deepEqual(run.mailbox.map(({ seq, name }) => [seq, name]), unread.map(({ seq, payload }) => [seq, payload.name]), `the mailbox of ${runId}`);
  for (const [step, calls] of callsByStep(world.sink, runId)) {
    const keys = new Set(calls.map(({ key }) => key));
    assert.deepEqual([...keys], [run.steps[step].idempotency_key], `keys of ${runId} step ${step}`);
    assert.equal(calls.filter(({ delivery }) => delivery === "first").length, 1, `${runId} step ${step} took effect not exactly once`);
  }
  if (client.key === world.dev.key) {
    const internals = await world.dev.ok("GET", `/dev/runs/${runId}/internals`);
    assert.equal(new Set(internals.outbox).size, internals.outbox.length, `${runId} wants several workers for one step`);
    if (ENDS.includes(run.status)) await assertAtRest(world.dev, runId, { mailbox: unread.length });
    else {
      const outside = run.waiting_for.some(({ kind }) => ["approval", "signal", "callback", "child", "dead_letter"].includes(kind));
      const owned = [...internals.leases, ...internals.outbox, ...internals.timers];
      assert.ok(outside || run.status === "paused" || owned.length > 0, `nothing wakes ${runId}: ${JSON.stringify(run)}`);
    }
  }
  return { run, log };
}

/** The kinds of the entries of one step, or of the run as a whole, in order. */
export const typesAt = (log, stepIndex) => log.filter((entry) => entry.step_index === stepIndex).map(({ event_type }) => event_type);
