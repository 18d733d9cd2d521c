// What must hold after every test of durability, whatever was broken in it.

import assert from "node:assert/strict";

const END_TYPES = ["run.completed", "run.failed", "run.cancelled"];

/** Lines that a runtime writes when WebAssembly died, or when a promise was left open. */
const SIGNS_OF_TROUBLE = [
  /\bhung\b/i,
  /hanging promise/i,
  /never generate a response/i,
  /time not implemented/i,
  /RuntimeError: unreachable|unreachable executed/i,
  /cannot perform I\/O on behalf of a different/i,
];

/** The lines (texts, or `{ text }`) that tell of trouble. */
export const troubling = (lines) =>
  lines.map((line) => line.text ?? String(line)).filter((line) => SIGNS_OF_TROUBLE.some((sign) => sign.test(line)));

export function assertQuiet(lines) {
  assert.deepEqual(troubling(lines), [], "the runtime's log tells of hung or dead code");
}

/**
 * A log counts from 1 without a gap, each entry names the one before, and nothing follows the end but
 * the retry of a failed run.
 */
export function assertWholeLog(log) {
  let previous;
  for (const [index, entry] of log.entries()) {
    assert.equal(entry.seq, index + 1, `entry ${index} of ${entry.run_id} has seq ${entry.seq}`);
    if (previous) assert.equal(entry.prev_hash, previous.hash, `entry ${entry.seq} of ${entry.run_id} is not chained`);
    assert.equal(new Set([entry.run_id, log[0].run_id]).size, 1, "a log holds one run's entries");
    previous = entry;
  }
  for (const [place, { event_type }] of log.entries()) {
    if (!END_TYPES.includes(event_type) || place === log.length - 1) continue;
    const follows = `${event_type}, ${log[place + 1].event_type}`;
    assert.equal(follows, "run.failed, run.retried", `${log[0].run_id} goes on after its end`);
  }
}

export const countOf = (log, eventType, stepIndex) =>
  log.filter((entry) => entry.event_type === eventType && (stepIndex === undefined || entry.step_index === stepIndex)).length;

/** The calls that a sink got for a run, by the index of the step. */
export function callsByStep(sink, runId) {
  const steps = new Map();
  for (const call of sink.calls) {
    if (call.headers["dormouse-run-id"] !== runId) continue;
    const index = Number(call.headers["dormouse-step-index"]);
    steps.set(index, [...(steps.get(index) ?? []), call]);
  }
  return steps;
}

/**
 * Every tool step of a completed run took effect once: the sink was called, every call of a step bore
 * the step's key, so that exactly one of them was the "first", and no two steps shared a key.
 * With `once` no step was called a second time at all.
 */
export function assertOneEffect(sink, run, { once = false } = {}) {
  const byStep = callsByStep(sink, run.run_id);
  const tools = run.steps.filter((step) => step.kind === "tool");
  for (const step of tools) {
    const calls = byStep.get(step.step_index) ?? [];
    const where = `${run.run_id} step ${step.step_index} (${step.id})`;
    assert.ok(calls.length > 0, `${where} was never called`);
    if (once) assert.equal(calls.length, 1, `${where} was called ${calls.length} times`);
    assert.deepEqual([...new Set(calls.map((call) => call.key))], [step.idempotency_key], `keys of ${where}`);
    assert.equal(calls.filter((call) => call.delivery === "first").length, 1, `${where} took effect not exactly once`);
  }
  assert.equal(new Set(tools.map((step) => step.idempotency_key)).size, tools.length, "two steps share a key");
  const known = new Set(tools.map((step) => step.step_index));
  for (const index of byStep.keys()) assert.ok(known.has(index), `${run.run_id} called a step ${index} that it does not have`);
}

/** A completed run, its log and its effects. Answers the log. */
export async function assertRunIsRight(client, sink, runId, options) {
  const run = await client.run(runId);
  assert.equal(run.status, "completed", `${runId}: ${JSON.stringify(run)}`);
  for (const step of run.steps) assert.equal(step.status, "completed", `${runId} step ${step.step_index}: ${JSON.stringify(step)}`);
  const log = await client.log(runId);
  assertWholeLog(log);
  for (const step of run.steps.filter(({ kind }) => kind === "tool")) {
    assert.equal(countOf(log, "tool.completed", step.step_index), 1, `${runId} step ${step.step_index} completed once`);
  }
  assert.equal(countOf(log, "dead_letter.opened"), 0, `${runId} has dead letters`);
  assertOneEffect(sink, run, options);
  return log;
}

/** A run that has ended owes nothing any more. `mailbox`: signals that came and that nothing waited for. */
export async function assertAtRest(client, runId, { mailbox = 0 } = {}) {
  const internals = await client.ok("GET", `/dev/runs/${runId}/internals`);
  const owed = { leases: internals.leases, outbox: internals.outbox, timers: internals.timers, mailbox: internals.mailbox.length };
  assert.deepEqual(owed, { leases: [], outbox: [], timers: [], mailbox }, `${runId} still owes something`);
}

/** A plan of `count` steps of one tool, each with its own arguments. */
export const stepsOf = (tool, count) => ({
  steps: Array.from({ length: count }, (_, i) => ({ id: `s${i}`, tool, arguments: { i } })),
});

/** Does `work` for each item, at most `width` at a time. Answers what they answered, in order. */
export async function eachOf(items, width, work) {
  const answers = new Array(items.length);
  let next = 0;
  const worker = async () => {
    while (next < items.length) {
      const index = next;
      next += 1;
      answers[index] = await work(items[index], index);
    }
  };
  await Promise.all(Array.from({ length: width }, worker));
  return answers;
}
