// fsyncs a run, one run at a time: counted by strace on the workerd process. The count doesn't depend on how busy the machine is.
import { spawn } from "node:child_process";
import { readFileSync, rmSync } from "node:fs";
import { setTimeout as sleep } from "node:timers/promises";
import path from "node:path";
import { closedLoop, notCompleted } from "./load.mjs";
import { suspend } from "./suspend.mjs";

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
  whole.per_run = (whole.fsync + whole.fdatasync) / whole.runs;
  if (!system.canWait) return whole;
  const suspended = await counted(system, async () => ({ runs: (await suspend(system, sink, { lanes: 1, runs })).waiting.length }));
  whole.per_suspended_run = (suspended.fsync + suspended.fdatasync) / suspended.runs;
  return whole;
}
