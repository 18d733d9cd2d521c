// W2: a call, a wait for an event, a call. What a waiting run costs, how fast it wakes, and whether it survives SIGKILL.
import { lstatSync, readdirSync } from "node:fs";
import { setTimeout as sleep } from "node:timers/promises";
import path from "node:path";
import { nextRun } from "./load.mjs";
import { openFiles, treeMemory, treeSeconds, watchOthers } from "./proc.mjs";
import { quantile } from "./stats.mjs";

const TIMEOUT_MS = 15_000;
// workerd lets an object go after 10 s of rest; then its write-ahead log is folded in and its file closed.
export const REST_MS = 14_000;
// A system that takes no more runs is not asked for the rest.
const REFUSALS_IN_A_ROW = 100;
const ASKED_AFTER_RESTART = 50;
// Time for a run to end after its last call has arrived: to be answered, stored and told.
const PAUSE_MS = 30;

/** Calls `work` on each item, so many at a time, until there are none or it answers false. */
async function inLanes(lanes, items, work) {
  let next = 0;
  await Promise.all(
    Array.from({ length: lanes }, async () => {
      while (next < items.length) if ((await work(items[next++])) === false) next = items.length;
    }),
  );
}

/** Starts runs that come to wait for an event. `waiting` are those whose first call came. */
export async function suspend(system, sink, { lanes, runs }) {
  const waiting = [];
  const failures = [];
  let inARow = 0;
  const began = performance.now();
  await inLanes(lanes, Array.from({ length: runs }, nextRun), async (run) => {
    try {
      const first = sink.first(run, TIMEOUT_MS);
      const id = await system.startRun(run, true);
      if ((await first) === null) throw new Error(`no first call within ${TIMEOUT_MS} ms`);
      waiting.push({ run, id });
      inARow = 0;
    } catch (error) {
      failures.push(String(error.message ?? error));
      inARow += 1;
    }
    return inARow < REFUSALS_IN_A_ROW;
  });
  return { waiting, failures, seconds: (performance.now() - began) / 1000 };
}

/**
 * Sends each waiting run its event, and the next one when the call has arrived and the pause is over.
 * Gives the times to the call's arrival: from the sending, and from the answer that accepted the event.
 */
export async function wake(system, sink, lanes, runs, pauseMs = 0) {
  const latencies = [];
  const fromAccepted = [];
  const failures = [];
  const began = performance.now();
  await inLanes(lanes, runs, async ({ run, id }) => {
    const arrival = sink.third(run, TIMEOUT_MS);
    const sent = performance.now();
    try {
      await system.wake(id);
    } catch (error) {
      failures.push(String(error.message ?? error));
      return;
    }
    const accepted = performance.now();
    const at = await arrival;
    if (at === null) {
      failures.push(`no call within ${TIMEOUT_MS} ms of an event`);
      return;
    }
    latencies.push(at - sent);
    fromAccepted.push(at - accepted);
    if (pauseMs > 0) await sleep(pauseMs);
  });
  return { latencies, fromAccepted, failures, seconds: (performance.now() - began) / 1000 };
}

/** Asks each run for its status. Gives how many say that they wait. */
async function stillWaiting(system, lanes, runs) {
  const found = {};
  await inLanes(lanes, runs, async ({ id }) => {
    const status = await system.status(id).catch(() => "no answer");
    found[status] = (found[status] ?? 0) + 1;
  });
  const { waiting = 0, ...others } = found;
  return { waiting, others };
}

/** Bytes that the file system has given to what is below a directory: all, and without SQLite's write-ahead logs. */
function bytesBelow(directory) {
  let all = 0;
  let logs = 0;
  for (const name of readdirSync(directory, { recursive: true })) {
    try {
      const found = lstatSync(path.join(directory, name));
      if (!found.isFile()) continue;
      all += found.blocks * 512;
      if (/-(wal|shm)$/.test(name)) logs += found.blocks * 512;
    } catch {
      // Gone meanwhile.
    }
  }
  return { all, settled: all - logs };
}

const hundredths = (values) => values.map((ms) => Math.round(ms * 100) / 100);

export async function suspendAndWake(system, sink, { lanes, waiting: asked, idleMs }) {
  sink.reset();
  sink.delayMs = 0;
  await system.start();
  await system.prepare();
  const warm = await suspend(system, sink, { lanes, runs: 2 * lanes });
  await wake(system, sink, lanes, warm.waiting);
  await sleep(REST_MS);
  const memoryBefore = treeMemory(system.pid);
  const bytesBefore = bytesBelow(system.stateDir);

  const cpuBefore = treeSeconds(system.pid);
  const othersSuspend = watchOthers();
  const { waiting, failures, seconds } = await suspend(system, sink, { lanes, runs: asked });
  const noiseSuspend = othersSuspend();
  const held = waiting.length;
  await sleep(REST_MS);
  const memory = treeMemory(system.pid);
  const files = openFiles(system.pid);
  const bytes = bytesBelow(system.stateDir);
  const cpuAfter = treeSeconds(system.pid);
  const idleFrom = { at: performance.now(), cpu: treeSeconds(system.pid) };
  await sleep(idleMs);
  const idleCpu = treeSeconds(system.pid);
  const idleSeconds = (performance.now() - idleFrom.at) / 1000;

  // Enough are left to show what a restart makes of them.
  const oneLane = waiting.splice(0, Math.min(Math.floor(held / 5), 500));
  const alone = waiting.splice(0, Math.min(Math.floor(held / 10), 200));
  const many = waiting.splice(0, Math.min(Math.floor((held * 2) / 5), 2000));
  const othersOne = watchOthers();
  const one = await wake(system, sink, 1, oneLane);
  const noiseOne = othersOne();
  await sleep(300);
  const apart = await wake(system, sink, 1, alone, PAUSE_MS);
  await sleep(300);
  const cpuWake = treeSeconds(system.pid);
  const othersMany = watchOthers();
  const all = await wake(system, sink, lanes, many);
  const noiseMany = othersMany();
  await sleep(300);
  const cpuWoken = treeSeconds(system.pid);

  await system.kill();
  const upMs = await system.start();
  const memoryAfter = treeMemory(system.pid);
  const survivors = waiting.splice(0, Math.min(ASKED_AFTER_RESTART, Math.ceil(waiting.length / 2)));
  const woken = await wake(system, sink, 1, survivors);
  // Last, because it brings every object back into memory.
  const rest = await stillWaiting(system, lanes, waiting);
  const each = (before, after, n, unit = 1) => (before === null || after === null || n === 0 ? null : ((after - before) * unit) / n);
  return {
    asked,
    held,
    failures: [...failures, ...one.failures, ...apart.failures, ...all.failures, ...woken.failures],
    suspends_per_second: held / seconds,
    suspend_cpu_ms_per_run: each(cpuBefore, cpuAfter, held, 1000),
    disk_bytes_per_run: each(bytesBefore.all, bytes.all, held),
    disk_bytes_per_run_without_logs: each(bytesBefore.settled, bytes.settled, held),
    memory_bytes_per_run: each(memoryBefore, memory, held),
    memory_bytes: memory,
    memory_bytes_after_restart: memoryAfter,
    open_files: files,
    idle_cores: each(idleFrom.cpu, idleCpu, idleSeconds),
    idle_seconds: idleSeconds,
    latencies_one_lane_ms: hundredths(one.latencies),
    from_accepted_one_lane_ms: hundredths(one.fromAccepted),
    latencies_apart_ms: hundredths(apart.latencies),
    event_p50_ms: quantile(one.latencies, 0.5),
    events_per_second: all.latencies.length / all.seconds,
    wake_cpu_ms_per_run: each(cpuWake, cpuWoken, all.latencies.length, 1000),
    not_woken: oneLane.length + alone.length + many.length - one.latencies.length - apart.latencies.length - all.latencies.length,
    others_cores_suspend: noiseSuspend,
    others_cores_one_lane: noiseOne,
    others_cores_many_lanes: noiseMany,
    up_after_kill_ms: upMs,
    asked_after_restart: survivors.length,
    woken_after_restart: woken.latencies.length,
    after_restart_p50_ms: quantile(woken.latencies, 0.5),
    left_after_restart: waiting.length,
    waiting_after_restart: rest.waiting,
    not_waiting_after_restart: rest.others,
  };
}
