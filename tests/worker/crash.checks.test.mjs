// The checks of these tests, checked: each sees what it is there for.

import assert from "node:assert/strict";
import { test } from "node:test";
import { assertOneEffect, assertQuiet, assertWholeLog } from "./support/checks.mjs";

const log = () =>
  ["run.created", "tool.requested", "tool.completed", "run.completed"].map((event_type, i) => ({
    run_id: "run_1",
    event_type,
    seq: i + 1,
    prev_hash: `h${i}`,
    hash: `h${i + 1}`,
  }));

test("a log with a gap, an entry twice, a broken chain or an entry after the end is not whole", () => {
  assertWholeLog(log());
  assertWholeLog(log().slice(0, 2));
  assert.throws(() => assertWholeLog(log().toSpliced(1, 1)));
  assert.throws(() => assertWholeLog(log().toSpliced(1, 0, log()[1])));
  assert.throws(() => assertWholeLog(log().with(2, { ...log()[2], prev_hash: "other" })));
  assert.throws(() => assertWholeLog([...log(), { ...log()[2], seq: 5, prev_hash: "h4", hash: "h5" }]));
  assert.throws(() => assertWholeLog(log().with(3, { ...log()[3], run_id: "run_2" })));
});

test("a step that was not called, called under two keys, or shares its key did not take effect once", () => {
  const run = {
    run_id: "run_1",
    steps: [0, 1].map((step_index) => ({ step_index, id: `s${step_index}`, kind: "tool", idempotency_key: `k${step_index}` })),
  };
  const call = (step, key, delivery) => ({
    headers: { "dormouse-run-id": "run_1", "dormouse-step-index": String(step) },
    key,
    delivery,
  });
  const right = [call(0, "k0", "first"), call(0, "k0", "replay"), call(1, "k1", "first")];
  assertOneEffect({ calls: right }, run);
  assert.throws(() => assertOneEffect({ calls: right }, run, { once: true }));
  assert.throws(() => assertOneEffect({ calls: right.slice(0, 2) }, run));
  assert.throws(() => assertOneEffect({ calls: [...right, call(1, "other", "first")] }, run));
  assert.throws(() => assertOneEffect({ calls: [...right, call(2, "k2", "first")] }, run));
  assert.throws(() => assertOneEffect({ calls: right }, { ...run, steps: run.steps.map((step) => ({ ...step, idempotency_key: "k0" })) }));
});

test("lines of hung or dead code are noticed", () => {
  assertQuiet(["all is well", { text: "GET answered 500" }]);
  for (const line of [
    "The script will never generate a response.",
    "your Worker's code had hung and would never generate a response",
    "RuntimeError: unreachable",
    "time not implemented on this platform",
  ]) {
    assert.throws(() => assertQuiet([{ text: line }]), line);
  }
});
