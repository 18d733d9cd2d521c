// W2: a call, a wait for an event, a call. What a waiting run costs, how fast it wakes, and whether it survives SIGKILL.
import { lstatSync, readdirSync } from "node:fs";
import { setTimeout as sleep } from "node:timers/promises";
import path from "node:path";
import { nextRun } from "./load.mjs";
import { treeMemory, treeSeconds, watchOthers } from "./proc.mjs";
import { quantile } from "./stats.mjs";

const TIMEOUT_MS = 15_000;
// workerd lets an object go after 10 s of rest; then its write-ahead log is folded in and its file closed.
const REST_MS = 14_000;

/** Calls `work` on each item, so many at a time. */
async function inLanes(lanes, items, work) {
  const left = [...items];
  await Promise.all(
    Array.from({ length: lanes }, async () => {
      while (left.length > 0) await work(left.shift());
    }),
  );
}

/** Starts runs that come to wait for an event. */
export async function suspend(system, sink, { lanes, runs }) {
  const waiting = [];
  const failures = [];
  const began = performance.now();
  await inLanes(lanes, Array.from({ length: runs }, nextRun), async (run) => {
    try {
      const first = sink.first(run, TIMEOUT_MS);
      const id = await system.startRun(run, true);
      if ((await first) === null) failures.push(`no first call within ${TIMEOUT_MS} ms`);
      else waiting.push({ run, id });
    } catch (error) {
      failures.push(String(error.message ?? error));
    }
  });
  return { waiting, failures, seconds: (performance.now() - began) / 1000 };
}

/** Sends each waiting run its event. Gives the times from the sending to the next call's arrival. */
async function wake(system, sink, lanes, runs) {
  const latencies = [];
  const began = performance.now();
  await inLanes(lanes, runs, async ({ run, id }) => {
    const arrival = sink.third(run, TIMEOUT_MS);
    const sent = performance.now();
    try {
      await system.wake(id);
    } catch {
      return;
    }
    const at = await arrival;
    if (at !== null) latencies.push(at - sent);
  });
  return { latencies, seconds: (performance.now() - began) / 1000 };
}

/** Bytes that the file system has given to what is below a directory. */
function bytesBelow(directory) {
  let sum = 0;
  for (const name of readdirSync(directory, { recursive: true })) {
    try {
      const found = lstatSync(path.join(directory, name));
      if (found.isFile()) sum += found.blocks * 512;
    } catch {
      // Gone meanwhile.
    }
  }
  return sum;
}

export async function suspendAndWake(system, sink, { lanes, suspended, wakeOneLane, wakeMany }) {
  sink.reset();
  sink.delayMs = 0;
  await system.start();
  await system.prepare();
  const warm = await suspend(system, sink, { lanes, runs: 2 * lanes });
  await wake(system, sink, lanes, warm.waiting);
  await sleep(REST_MS);
  const memoryBefore = treeMemory(system.pid);
  const bytesBefore = bytesBelow(system.stateDir);

  const { waiting, failures, seconds } = await suspend(system, sink, { lanes, runs: suspended });
  await sleep(REST_MS);
  const memory = treeMemory(system.pid);
  const bytes = bytesBelow(system.stateDir);
  const idleFrom = { at: performance.now(), cpu: treeSeconds(system.pid) };
  await sleep(4000);
  const idleCpu = treeSeconds(system.pid);
  const idleSeconds = (performance.now() - idleFrom.at) / 1000;

  const after = 20;
  const oneLane = waiting.splice(0, Math.min(wakeOneLane, Math.max(0, waiting.length - after)));
  const many = waiting.splice(0, Math.min(wakeMany, Math.max(0, waiting.length - after)));
  const othersOne = watchOthers();
  const one = await wake(system, sink, 1, oneLane);
  const noiseOne = othersOne();
  const othersMany = watchOthers();
  const all = await wake(system, sink, lanes, many);
  const noiseMany = othersMany();

  await system.kill();
  await system.start();
  const memoryAfter = treeMemory(system.pid);
  const survivors = waiting.slice(0, after);
  const woken = await wake(system, sink, 1, survivors);
  const n = suspended - failures.length;
  return {
    suspended: n,
    failures,
    suspends_per_second: n / seconds,
    disk_bytes_per_run: (bytes - bytesBefore) / n,
    memory_bytes_per_run: memory === null ? null : (memory - memoryBefore) / n,
    memory_bytes: memory,
    memory_bytes_after_restart: memoryAfter,
    idle_cores: idleCpu === null ? null : (idleCpu - idleFrom.cpu) / idleSeconds,
    event_p50_ms: quantile(one.latencies, 0.5),
    event_p99_ms: quantile(one.latencies, 0.99),
    events_per_second: all.latencies.length / all.seconds,
    not_woken: oneLane.length + many.length - one.latencies.length - all.latencies.length,
    others_cores_one_lane: noiseOne,
    others_cores_many_lanes: noiseMany,
    asked_after_restart: survivors.length,
    woken_after_restart: woken.latencies.length,
  };
}
