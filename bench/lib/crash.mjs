// W3: SIGKILL to the whole process group in the middle of the work, the same start command again, and a count of what became of every run.
import { setTimeout as sleep } from "node:timers/promises";
import { closedLoop, nextRun } from "./load.mjs";

export async function crash(system, sink, { lanes, killAtCall, killsInRecovery, patienceMs }) {
  sink.reset();
  sink.delayMs = 30;
  await system.start();
  await system.prepare();

  const acknowledged = new Map();
  const asked = new Set();
  const refused = [];
  let stopped = false;
  let killed;
  let callsInFlight = 0;
  let runsInFlight = 0;
  let callsAtKill = 0;
  const kill = new Promise((resolve) => {
    killed = resolve;
  });
  sink.onCall = () => {
    if (stopped || sink.calls < killAtCall) return;
    stopped = true;
    callsInFlight = sink.open;
    // More than the lanes: a lane goes on when the third call arrives, and that call takes its 30 ms.
    runsInFlight = asked.size - sink.answered.size;
    callsAtKill = sink.calls;
    system.kill().then(killed);
  };
  const lane = async () => {
    while (!stopped) {
      const run = nextRun();
      asked.add(run);
      try {
        acknowledged.set(run, await system.startRun(run));
      } catch (error) {
        if (!stopped) refused.push(String(error.message ?? error));
        if (refused.length > 20) throw new Error(`starts fail: ${refused[0]}`);
        continue;
      }
      await Promise.race([sink.third(run, 60_000), kill]);
    }
  };
  await Promise.all(Array.from({ length: lanes }, lane));
  await kill;
  sink.onCall = null;
  const doneBefore = sink.done.size;

  let upMs = await system.start();
  for (let i = 0; i < killsInRecovery; i += 1) {
    await sleep(Math.random() * 1500);
    await system.kill();
    upMs = await system.start();
  }
  const up = performance.now();
  const seconds = (at) => Math.max(0, (at - up) / 1000);

  // Nobody asks for anything while the runs recover: what finishes, finishes by itself.
  const waiting = [...acknowledged.keys()];
  const missing = () => waiting.filter((run) => !sink.done.has(run));
  while (missing().length > 0 && performance.now() - up < patienceMs) await sleep(20);
  const lost = missing();
  const lastThird = Math.max(...waiting.filter((run) => sink.done.has(run)).map((run) => sink.done.get(run)));

  // Then the statuses are read, only of runs whose work is done, until all say so.
  let open = waiting.filter((run) => sink.done.has(run));
  let lastCompleted = null;
  const readUntil = performance.now() + Math.max(5000, patienceMs - (performance.now() - up));
  while (open.length > 0 && performance.now() < readUntil) {
    const still = [];
    for (const run of open) {
      const status = await system.status(acknowledged.get(run)).catch(() => "unknown");
      if (status !== "completed") still.push(run);
    }
    open = still;
    if (open.length > 0) await sleep(50);
    else lastCompleted = performance.now();
  }

  const seen = [...sink.keys.values()];
  const twice = seen.filter((n) => n === 2).length;
  const thrice = seen.filter((n) => n > 2).length;
  const twoKeys = [...sink.steps.values()].filter((keys) => keys.size > 1).length;
  const strangers = [...sink.done.keys()].filter((run) => asked.has(run) && !acknowledged.has(run)).length;
  sink.delayMs = 0;
  const fresh = await closedLoop(system, sink, { lanes: 1, runs: 10 });
  return {
    kills: 1 + killsInRecovery,
    killed_at_call: callsAtKill,
    calls_in_flight: callsInFlight,
    runs_in_flight: runsInFlight,
    acknowledged: acknowledged.size,
    third_call_before_kill: doneBefore,
    completed: acknowledged.size - lost.length - open.length,
    lost: lost.length,
    work_done_but_not_completed: open.length,
    api_up_seconds: upMs / 1000,
    last_third_call_seconds: lost.length === 0 ? seconds(lastThird) : null,
    completed_seconds: lost.length === 0 && lastCompleted !== null ? seconds(lastCompleted) : null,
    keys_called_twice: twice,
    keys_called_more_often: thrice,
    keys_over_limit: seen.filter((n) => n > 2 + killsInRecovery).length,
    steps_with_two_keys: twoKeys,
    unacknowledged_runs_that_ran: strangers,
    refused_starts_before_kill: refused.length,
    new_runs_after: fresh.latencies.length,
  };
}
