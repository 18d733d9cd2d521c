// What /proc knows: the CPU of a process tree, the CPU of everybody else, and who the children are. Elsewhere than on Linux all is null.
import { readFileSync, readdirSync } from "node:fs";
import { execFileSync } from "node:child_process";

const HZ = (() => {
  try {
    return Number(execFileSync("getconf", ["CLK_TCK"], { encoding: "utf8" })) || 100;
  } catch {
    return 100;
  }
})();

function read(file) {
  try {
    return readFileSync(file, "utf8");
  } catch {
    return null;
  }
}

function stat(pid) {
  const text = read(`/proc/${pid}/stat`);
  if (text === null) return null;
  // The command's name stands in brackets and may hold spaces and brackets itself.
  const open = text.indexOf("(");
  const close = text.lastIndexOf(")");
  const fields = text.slice(close + 2).split(" ");
  return {
    pid: Number(pid),
    name: text.slice(open + 1, close),
    parent: Number(fields[1]),
    group: Number(fields[2]),
    // User and system time, of the process and of the children it has waited for.
    ticks: Number(fields[11]) + Number(fields[12]) + Number(fields[13]) + Number(fields[14]),
  };
}

function all() {
  let names;
  try {
    names = readdirSync("/proc");
  } catch {
    return [];
  }
  return names
    .filter((name) => /^\d+$/.test(name))
    .map(stat)
    .filter((entry) => entry !== null);
}

/** A process and its descendants, by parent and by process group. */
export function tree(root) {
  const everyone = all();
  const chosen = new Set([root]);
  let before;
  do {
    before = chosen.size;
    for (const entry of everyone) {
      if (chosen.has(entry.parent) || entry.group === root) chosen.add(entry.pid);
    }
  } while (chosen.size > before);
  return everyone.filter((entry) => chosen.has(entry.pid));
}

/** CPU seconds used so far by a process and its descendants. */
export function treeSeconds(root) {
  const entries = tree(root);
  return entries.length === 0 ? null : entries.reduce((sum, entry) => sum + entry.ticks, 0) / HZ;
}

/** Bytes of memory of a process and its descendants, shared pages counted once in all. */
export function treeMemory(root) {
  let sum = null;
  for (const { pid } of tree(root)) {
    const found = /^Pss:\s+(\d+) kB/m.exec(read(`/proc/${pid}/smaps_rollup`) ?? "");
    if (found) sum = (sum ?? 0) + Number(found[1]) * 1024;
  }
  return sum;
}

/** Files, sockets and the like that a process and its descendants hold open. */
export function openFiles(root) {
  let sum = null;
  for (const { pid } of tree(root)) {
    try {
      sum = (sum ?? 0) + readdirSync(`/proc/${pid}/fd`).length;
    } catch {
      // Gone, or not ours to look at.
    }
  }
  return sum;
}

function machineSeconds() {
  const line = read("/proc/stat")?.split("\n", 1)[0];
  if (!line) return null;
  const [user, nice, system, , , irq, softirq, steal] = line.trim().split(/\s+/).slice(1).map(Number);
  return (user + nice + system + irq + softirq + (steal || 0)) / HZ;
}

/** Starts watching; the function it returns says how many cores others kept busy since. */
export function watchOthers() {
  const start = { at: process.hrtime.bigint(), machine: machineSeconds(), own: treeSeconds(process.pid) };
  return () => {
    const machine = machineSeconds();
    const own = treeSeconds(process.pid);
    if (machine === null || start.machine === null || own === null) return null;
    const seconds = Number(process.hrtime.bigint() - start.at) / 1e9;
    return Math.max(0, (machine - start.machine - (own - start.own)) / seconds);
  };
}
