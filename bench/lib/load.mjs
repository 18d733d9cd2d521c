// The closed loop: so many lanes, each starting its next run when the third call of its last one has arrived.
import { setTimeout as sleep } from "node:timers/promises";
import { treeSeconds, watchOthers } from "./proc.mjs";
import { quantile } from "./stats.mjs";

const RUN_TIMEOUT_MS = 30_000;
let serial = 0;
const stamp = Date.now().toString(36);

/** A name for a run that no other run of this benchmark has. */
export const nextRun = () => `b${stamp}${(serial += 1).toString(36)}`;

export async function closedLoop(system, sink, { lanes, runs }) {
  const latencies = [];
  const ids = [];
  const failures = [];
  let left = runs;
  const began = performance.now();
  let last = began;
  const lane = async () => {
    while (left > 0) {
      left -= 1;
      const run = nextRun();
      const arrival = sink.third(run, RUN_TIMEOUT_MS);
      const sent = performance.now();
      try {
        ids.push(await system.startRun(run));
      } catch (error) {
        failures.push(String(error.message ?? error));
        if (failures.length >= 5) left = 0;
        continue;
      }
      const at = await arrival;
      if (at === null) {
        failures.push(`no third call within ${RUN_TIMEOUT_MS} ms`);
        if (failures.length >= 5) left = 0;
      } else {
        latencies.push(at - sent);
        last = Math.max(last, at);
      }
    }
  };
  await Promise.all(Array.from({ length: lanes }, lane));
  return { latencies, ids, failures, seconds: (last - began) / 1000 };
}

/** Reads the status of the given runs until all are completed or the time is over. Gives how many are not. */
export async function notCompleted(system, ids, timeoutMs = 10_000) {
  let open = [...ids];
  const began = performance.now();
  for (;;) {
    const still = [];
    for (const id of open) if ((await system.status(id).catch(() => "unknown")) !== "completed") still.push(id);
    open = still;
    if (open.length === 0 || performance.now() - began > timeoutMs) return open.length;
    await sleep(50);
  }
}

/** W1 once: warm up, one lane for latency, many lanes for throughput and CPU. */
export async function measure(system, sink, { lanes, runs, runsOneLane, warmUp }) {
  sink.reset();
  sink.delayMs = 0;
  await system.start();
  await system.prepare();
  const failures = [];
  failures.push(...(await closedLoop(system, sink, { lanes, runs: warmUp })).failures);
  failures.push(...(await closedLoop(system, sink, { lanes: 1, runs: Math.ceil(warmUp / 8) })).failures);
  await sleep(300);

  const othersOne = watchOthers();
  const one = await closedLoop(system, sink, { lanes: 1, runs: runsOneLane });
  const noiseOne = othersOne();
  await sleep(300);

  // The pause on both sides gives the writes behind the last call to the runs they belong to.
  const cpuBefore = treeSeconds(system.pid);
  const othersMany = watchOthers();
  const many = await closedLoop(system, sink, { lanes, runs });
  const noiseMany = othersMany();
  await sleep(300);
  const cpuAfter = treeSeconds(system.pid);

  failures.push(...one.failures, ...many.failures);
  const unfinished = await notCompleted(system, many.ids.slice(-40));
  return {
    runs_per_second: many.latencies.length / many.seconds,
    p50_ms: quantile(one.latencies, 0.5),
    p99_ms: quantile(one.latencies, 0.99),
    cpu_ms_per_run: cpuBefore === null || cpuAfter === null ? null : ((cpuAfter - cpuBefore) * 1000) / many.latencies.length,
    others_cores_one_lane: noiseOne,
    others_cores_many_lanes: noiseMany,
    latencies_one_lane_ms: one.latencies.map((ms) => Math.round(ms * 100) / 100),
    runs_one_lane: one.latencies.length,
    runs_many_lanes: many.latencies.length,
    not_completed_of_last_40: unfinished,
    failures,
  };
}
