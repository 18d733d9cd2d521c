// One process at a time may use a state directory: the serving Node, and the workerd that it started.

import { execFileSync } from "node:child_process";
import { mkdirSync, readFileSync, renameSync, rmSync, writeFileSync } from "node:fs";
import { join } from "node:path";

/**
 * Takes the directory or throws. A lock whose process is gone is taken over, and a workerd that a
 * killed process left behind is ended first: it still holds the databases.
 */
export async function lockState(directory) {
  mkdirSync(directory, { recursive: true });
  const path = join(directory, "lock");
  for (let attempt = 0; attempt < 3; attempt += 1) {
    try {
      writeFileSync(path, identity(process.pid), { flag: "wx" });
      return {
        /** Notes the workerd that this process has started. */
        addWorkerd() {
          const lines = [identity(process.pid), ...workerds(process.pid).map(identity)];
          writeFileSync(`${path}.new`, lines.filter(Boolean).join("\n"));
          renameSync(`${path}.new`, path);
        },
        unlock: () => rmSync(path, { force: true }),
      };
    } catch (error) {
      if (error.code !== "EEXIST") throw error;
    }
    const [holder, ...started] = readLock(path);
    if (holder && isAlive(holder)) {
      throw new Error(
        `${directory} is in use by another Dormouse (process ${Number.parseInt(holder, 10)}): stop it, or set STATE_DIR to another directory`,
      );
    }
    for (const process of started) await end(process);
    rmSync(path, { force: true });
  }
  throw new Error(`${directory} could not be locked`);
}

function readLock(path) {
  try {
    return readFileSync(path, "utf8").split("\n");
  } catch {
    return [];
  }
}

const isAlive = (who) => identity(Number.parseInt(who, 10)) === who;

async function end(who) {
  for (let waited = 0; waited < 5_000 && isAlive(who); waited += 50) {
    if (waited === 0) process.kill(Number.parseInt(who, 10), "SIGKILL");
    await new Promise((done) => setTimeout(done, 50));
  }
}

/**
 * A live process by number and, where the system tells, by its start time: numbers are used again.
 * One that was killed and whose parent has not taken notice yet (a zombie) is not alive.
 */
function identity(pid) {
  try {
    process.kill(pid, 0);
  } catch (error) {
    if (error.code !== "EPERM") return undefined;
  }
  let stat;
  try {
    stat = readFileSync(`/proc/${pid}/stat`, "utf8");
  } catch {
    return `${pid}`;
  }
  const [state, ...fields] = stat.slice(stat.lastIndexOf(")") + 2).split(" ");
  return state === "Z" || state === "X" ? undefined : `${pid} ${fields[18]}`;
}

/** The workerd processes that `pid` started; none where the system cannot tell. */
function workerds(pid) {
  const numbers = (text) => text.trim().split(/\s+/).filter(Boolean).map(Number);
  try {
    const started = numbers(readFileSync(`/proc/${pid}/task/${pid}/children`, "utf8"));
    return started.filter((child) => readFileSync(`/proc/${child}/comm`, "utf8").trim() === "workerd");
  } catch {
    // Not Linux, or not told.
  }
  try {
    return numbers(execFileSync("pgrep", ["-P", String(pid), "workerd"], { encoding: "utf8" }));
  } catch {
    return [];
  }
}
