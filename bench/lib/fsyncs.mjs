// fsyncs a run, one run at a time: counted by strace on the workerd process. The count doesn't depend on how busy the machine is.
import { spawn } from "node:child_process";
import { readFileSync, rmSync } from "node:fs";
import { setTimeout as sleep } from "node:timers/promises";
import path from "node:path";
import { closedLoop, notCompleted } from "./load.mjs";

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

export async function fsyncsPerRun(system, sink, { runs }) {
  sink.reset();
  sink.delayMs = 0;
  await system.start();
  await system.prepare();
  await closedLoop(system, sink, { lanes: 1, runs: 5 });
  await sleep(500);
  const pid = system.workerd();
  if (pid === null) return { not_measured: "no workerd process was found" };
  const file = path.join(path.dirname(system.stateDir), `strace-${system.name}-${system.port}.txt`);
  const tracer = await strace(pid, file);
  if (tracer.problem) return { not_measured: tracer.problem };
  const { ids, failures } = await closedLoop(system, sink, { lanes: 1, runs });
  const unfinished = await notCompleted(system, ids);
  await sleep(300);
  await tracer.stop();
  const { fsync, fdatasync } = counts(file);
  rmSync(file, { force: true });
  return { runs: ids.length, fsync, fdatasync, per_run: (fsync + fdatasync) / ids.length, not_completed: unfinished, failures };
}
