// What must hold after every test, whatever it was about: of all runs, those that it started unseen too.

import assert from "node:assert/strict";
import { assertAtRest, assertWholeLog, callsByStep, eachOf } from "./checks.mjs";
import { ENDED } from "./client.mjs";
import { schemasOf } from "./contract.mjs";
import { until } from "./until.mjs";

/**
 * Answers a check of every run of the tenant `dev` that it has not looked at before. Each has a whole
 * log, and made no call that the log does not tell of; one that has ended owes nothing, and one that
 * has not says what it waits for.
 * @param {() => object} worldOf the world with `dev` and `sink`
 */
export function standingChecks(worldOf) {
  const seen = new Set();
  return async () => {
    const { dev, sink } = worldOf();
    const schemas = schemasOf(dev);
    const fresh = [];
    for (let cursor; cursor !== null; ) {
      const page = await dev.ok("GET", `/v1/runs?limit=200${cursor ? `&cursor=${encodeURIComponent(cursor)}` : ""}`);
      fresh.push(...page.items.map(({ run_id }) => run_id).filter((id) => !seen.has(id)));
      cursor = page.next_cursor;
    }
    await eachOf(fresh, 16, async (runId) => {
      seen.add(runId);
      const log = await dev.log(runId);
      assertWholeLog(log);
      for (const [step, calls] of callsByStep(sink, runId)) assertEntitled(log, step, calls);
      const run = await dev.run(runId);
      await schemas.check("run", run);
      const diagnosis = await dev.ok("GET", `/v1/runs/${runId}/diagnosis`);
      await schemas.check("diagnosis", diagnosis);
      if (ENDED.includes(run.status)) {
        assert.deepEqual([diagnosis.moving, diagnosis.blockers], [false, []], `${runId} has ended`);
        await until(() => assertAtRest(dev, runId).then(() => true), { what: `${runId} is at rest` });
      } else {
        assert.notDeepEqual(diagnosis.blockers, [], `${runId} is ${run.status}, and nothing is said to hold it`);
      }
    });
  };
}

/** Each call bears the key of a recorded intent, and each attempt was claimed before it was made. */
function assertEntitled(log, stepIndex, calls) {
  const where = `${log[0].run_id} step ${stepIndex}`;
  const own = log.filter(({ step_index }) => step_index === stepIndex);
  const of = (type) => own.filter(({ event_type }) => event_type === type);
  const keys = new Set(of("tool.requested").map(({ idempotency_key }) => idempotency_key));
  for (const { key } of calls) assert.ok(keys.has(key), `${where} was called with a key that is not its own`);
  for (const path of new Set(calls.map(({ path }) => path))) {
    const made = calls.filter((call) => call.path === path).length;
    const claims = of("tool.claimed").length;
    assert.ok(made <= claims, `${where} was called ${made} times at ${path}, and claimed ${claims} times`);
  }
}

/** The one thing that holds a run, or the one of a step. */
export async function blockerOf(client, runId, stepIndex) {
  const { blockers, moving } = await client.ok("GET", `/v1/runs/${runId}/diagnosis`);
  const of = stepIndex === undefined ? blockers : blockers.filter(({ step_index }) => step_index === stepIndex);
  assert.equal(of.length, 1, `blockers of ${runId}: ${JSON.stringify(blockers)}`);
  return { ...of[0], moving };
}

/** Makes the call that a diagnosis names. */
export function release(client, { release }, body) {
  const [method, path] = release.split(" ");
  return client.ok(method, path, { body });
}
