// fsyncs a run, one run at a time: counted by strace on the workerd process. The count doesn't depend on how busy the machine is.
import { spawn } from "node:child_process";
import { readFileSync, rmSync } from "node:fs";
import { setTimeout as sleep } from "node:timers/promises";
import path from "node:path";
import { closedLoop, notCompleted } from "./load.mjs";
import { REST_MS, suspend, wake } from "./suspend.mjs";

function strace(pid, file) {
  return new Promise((resolve) => {
    const tracer = spawn("strace", ["-f", "-c", "-e", "trace=fsync,fdatasync", "-o", file, "-p", String(pid)], { stdio: ["ignore", "ignore", "pipe"] });
    let said = "";
    const ended = new Promise((done) => tracer.once("exit", done));
    tracer.once("error", (error) => resolve({ problem: error.code === "ENOENT" ? "strace is not installed" : error.message }));
    tracer.once("exit", () => resolve({ problem: said.trim().slice(-200) || "strace ended at once" }));
    tracer.stderr.on("data", (piece) => {
      said += piece;
      if (/attached/.test(said))
        resolve({
          async stop() {
            tracer.kill("SIGINT");
            await ended;
          },
        });
    });
  });
}

function counts(file) {
  const found = { fsync: 0, fdatasync: 0 };
  for (const line of readFileSync(file, "utf8").split("\n")) {
    const fields = line.trim().split(/\s+/);
    const name = fields.at(-1);
    if (fields.length >= 5 && name in found) found[name] = Number(fields[3]);
  }
  return found;
}

/** Counts the fsyncs of workerd while `job` runs. */
async function counted(system, job) {
  const pid = system.workerd();
  if (pid === null) return { not_measured: "no workerd process was found" };
  const file = path.join(path.dirname(system.stateDir), `strace-${system.name}-${system.port}.txt`);
  const tracer = await strace(pid, file);
  if (tracer.problem) return { not_measured: tracer.problem };
  let done;
  try {
    done = await job();
    await sleep(300);
  } finally {
    await tracer.stop();
  }
  const { fsync, fdatasync } = counts(file);
  rmSync(file, { force: true });
  return { fsync, fdatasync, ...done };
}

export async function fsyncsPerRun(system, sink, { runs }) {
  sink.reset();
  sink.delayMs = 0;
  await system.start();
  await system.prepare();
  await closedLoop(system, sink, { lanes: 1, runs: 5 });
  await sleep(500);
  const whole = await counted(system, async () => {
    const { ids, failures } = await closedLoop(system, sink, { lanes: 1, runs });
    return { runs: ids.length, not_completed: await notCompleted(system, ids), failures };
  });
  if (whole.not_measured) return whole;
  return { ...whole, per_run: perRun(whole, whole.runs) };
}

const perRun = ({ fsync, fdatasync }, runs) => (fsync + fdatasync) / runs;

/** fsyncs of a run until it waits, of what follows when workerd lets its object go, and of its waking. */
export async function fsyncsPerWait(system, sink, { runs }) {
  sink.reset();
  sink.delayMs = 0;
  await system.start();
  await system.prepare();
  // These warm up, and are let go with the others.
  const { waiting: first } = await suspend(system, sink, { lanes: 1, runs: 5 });
  let waiting = [];
  const begun = await counted(system, async () => {
    ({ waiting } = await suspend(system, sink, { lanes: 1, runs }));
    return { runs: waiting.length };
  });
  if (begun.not_measured) return begun;
  const rested = await counted(system, () => sleep(REST_MS));
  const letGo = first.length + waiting.length;
  const woken = await counted(system, async () => ({ runs: (await wake(system, sink, 1, waiting)).latencies.length }));
  return {
    runs: begun.runs,
    per_waiting_run: perRun(begun, begun.runs),
    per_run_let_go: rested.not_measured ? null : perRun(rested, letGo),
    per_wake: woken.not_measured ? null : perRun(woken, woken.runs),
  };
}
