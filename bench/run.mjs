// The benchmark. It prints tables and writes results/latest.json; it asserts nothing. README.md says how to read it.
import { accessSync, closeSync, constants, existsSync, fdatasyncSync, mkdirSync, mkdtempSync, openSync, readFileSync, readdirSync, rmSync, statfsSync, unlinkSync, writeFileSync, writeSync } from "node:fs";
import { fileURLToPath } from "node:url";
import { gzipSync } from "node:zlib";
import { parseArgs } from "node:util";
import os from "node:os";
import path from "node:path";
import { Sink } from "./lib/sink.mjs";
import { System, freePort, killAll } from "./lib/system.mjs";
import { measure } from "./lib/load.mjs";
import { fsyncsPerRun, fsyncsPerWait } from "./lib/fsyncs.mjs";
import { suspendAndWake } from "./lib/suspend.mjs";
import { crash } from "./lib/crash.mjs";
import { render } from "./lib/report.mjs";
import { median } from "./lib/stats.mjs";

const USAGE = `npm run bench -- [options]
  --quick              few rounds, few runs: a look, not a measurement
  --rounds N           rounds of W1 (5; quick 1)
  --runs N             runs with many lanes in a repetition (400; quick 96)
  --runs-one-lane N    runs with one lane in a repetition (100; quick 30)
  --lanes N            lanes of W1 and W3 (32)
  --store LIST         disk,shm
  --disk-dir DIR       where "disk" is (the system's temporary directory)
  --systems LIST       of dormouse,workflow,floor,floor-do,floor-wd (W1: the first three; W2: all; W3: dormouse,workflow,floor-wd)
  --parts LIST         of w1,fsyncs,w2,w3 (all)
  --waiting N          waiting runs of W2 (1000; quick 100), on the first store; 10000 wants \`ulimit -n 20000\`
  --wait-rounds N      rounds of W2 (3; quick 1)
  --idle S             how long W2 watches the waiting runs' CPU (10; quick 4); 65 has the cron's minute in it
  --tries N            of W3, for each system (5; quick 1)
  --kills-in-recovery N   more SIGKILLs while W3 recovers (0)
  --patience S         how long W3 waits for the last run (20)
  --product DIR        the checkout whose Dormouse is measured (this one)
  --build NAME         which of its builds (deploy)`;

const { values: given } = parseArgs({
  options: {
    help: { type: "boolean" },
    quick: { type: "boolean", default: false },
    rounds: { type: "string" },
    runs: { type: "string" },
    "runs-one-lane": { type: "string" },
    lanes: { type: "string", default: "32" },
    store: { type: "string", default: "disk,shm" },
    "disk-dir": { type: "string", default: os.tmpdir() },
    systems: { type: "string" },
    parts: { type: "string", default: "w1,fsyncs,w2,w3" },
    waiting: { type: "string" },
    "wait-rounds": { type: "string" },
    idle: { type: "string" },
    tries: { type: "string" },
    "kills-in-recovery": { type: "string", default: "0" },
    patience: { type: "string", default: "20" },
    build: { type: "string", default: "deploy" },
    product: { type: "string", default: fileURLToPath(new URL("..", import.meta.url)) },
  },
});
if (given.help) {
  console.log(USAGE);
  process.exit(0);
}

const count = (name, full, quick) => {
  const value = Number(given[name] ?? (given.quick ? quick : full));
  if (!Number.isInteger(value) || value < 0) throw new Error(`--${name} wants a number, not ${given[name]}`);
  return value;
};
const list = (text, allowed, name) => {
  const items = text.split(",").filter((item) => item !== "");
  for (const item of items) if (!allowed.includes(item)) throw new Error(`--${name} knows ${allowed.join(", ")}, not ${item}`);
  return items;
};
const options = {
  rounds: count("rounds", 5, 1),
  runs: count("runs", 400, 96),
  runsOneLane: count("runs-one-lane", 100, 30),
  lanes: count("lanes"),
  waiting: count("waiting", 1000, 100),
  waitRounds: count("wait-rounds", 3, 1),
  idleMs: count("idle", 10, 4) * 1000,
  tries: count("tries", 5, 1),
  killsInRecovery: count("kills-in-recovery"),
  patienceMs: count("patience") * 1000,
  warmUp: given.quick ? 48 : 96,
  fsyncRuns: given.quick ? 20 : 40,
};
const product = path.resolve(given.product);
const parts = list(given.parts, ["w1", "fsyncs", "w2", "w3"], "parts");
const known = ["dormouse", "workflow", "floor", "floor-do", "floor-wd"];
const chosen = given.systems === undefined ? null : list(given.systems, known, "systems");
const notes = [];
const hasDormouse = existsSync(path.join(product, "scripts", "runtime.mjs"));
if (!hasDormouse) notes.push("dormouse is left out: no scripts/runtime.mjs in the product's directory");
const present = (names) => names.filter((name) => name !== "dormouse" || hasDormouse);
const systems = present(chosen ?? ["dormouse", "workflow", "floor"]);
const crashSystems = present(chosen ?? ["dormouse", "workflow", "floor-wd"]);
const waitSystems = present(chosen ?? known);
const fsyncSystems = present(chosen ?? ["dormouse", "workflow", "floor", "floor-wd"]);

const FILE_SYSTEMS = { 0xef53: "ext4", 0x58465342: "xfs", 0x9123683e: "btrfs", 0x794c7630: "overlay", 0x01021994: "tmpfs", 0x2fc12fc1: "zfs", 0xf2f52010: "f2fs", 0x6969: "nfs" };
function fileSystem(directory) {
  try {
    const { type } = statfsSync(directory);
    return FILE_SYSTEMS[type] ?? `file system 0x${type.toString(16)}`;
  } catch {
    return "unknown file system";
  }
}

function openStores() {
  const stores = [];
  for (const name of list(given.store, ["disk", "shm"], "store")) {
    const parent = name === "disk" ? given["disk-dir"] : "/dev/shm";
    try {
      accessSync(parent, constants.W_OK);
    } catch {
      notes.push(`${name} is left out: ${parent} can't be written`);
      continue;
    }
    const kind = fileSystem(parent);
    if (name === "disk" && kind === "tmpfs") notes.push(`"disk" is on tmpfs (${parent}): its fsync is free; give --disk-dir`);
    stores.push({ name, dir: mkdtempSync(path.join(parent, "dormouse-bench-")), where: `${kind} at ${parent}` });
  }
  return stores;
}

/** The store's own speed at this minute: the median of a 4 KiB write and its fdatasync, in ms. */
function probe(directory) {
  const file = path.join(directory, "probe");
  const fd = openSync(file, "w");
  const page = Buffer.alloc(4096, 1);
  const times = [];
  for (let i = 0; i < 100; i += 1) {
    const began = performance.now();
    writeSync(fd, page, 0, page.length, i * page.length);
    fdatasyncSync(fd);
    times.push(performance.now() - began);
  }
  closeSync(fd);
  unlinkSync(file);
  return median(times);
}

function versionOf(name) {
  for (const root of [fileURLToPath(new URL("..", import.meta.url)), product]) {
    try {
      return JSON.parse(readFileSync(path.join(root, "node_modules", name, "package.json"), "utf8")).version;
    } catch {
      // Look in the next place.
    }
  }
  return null;
}

/** Open files that a process may have; the systems inherit it. */
function openFilesLimit() {
  try {
    return Number(/^Max open files\s+(\d+)/m.exec(readFileSync("/proc/self/limits", "utf8"))?.[1]) || null;
  } catch {
    return null;
  }
}

function wasmSize() {
  const files = [];
  const look = (directory) => {
    for (const entry of readdirSync(directory, { withFileTypes: true })) {
      const full = path.join(directory, entry.name);
      if (entry.isDirectory()) look(full);
      else if (entry.name.endsWith(".wasm")) files.push(full);
    }
  };
  try {
    look(path.join(product, "build", given.build));
  } catch {
    return null;
  }
  if (files.length === 0) return null;
  const contents = files.map((file) => readFileSync(file));
  return {
    build: given.build,
    raw_bytes: contents.reduce((sum, bytes) => sum + bytes.length, 0),
    gzip_bytes: contents.reduce((sum, bytes) => sum + gzipSync(bytes, { level: 9 }).length, 0),
  };
}

const sink = new Sink();
await sink.listen();
const stores = openStores();
let fresh = 0;

/** Runs `job` on a system with empty state, and leaves nothing of it behind. */
async function withSystem(name, store, job) {
  const stateDir = path.join(store.dir, `${name}-${(fresh += 1)}`);
  mkdirSync(stateDir);
  const system = new System({ name, stateDir, port: await freePort(), sink: sink.url, product, build: given.build });
  try {
    return await job(system);
  } catch (error) {
    return { error: String(error?.message ?? error) };
  } finally {
    await system.kill();
    rmSync(stateDir, { recursive: true, force: true });
  }
}

async function tidy() {
  await killAll();
  sink.close();
  for (const store of stores) rmSync(store.dir, { recursive: true, force: true });
}
for (const signal of ["SIGINT", "SIGTERM"]) {
  process.once(signal, async () => {
    await tidy();
    process.exit(1);
  });
}

// Under `npm run bench` a launcher holds a channel to this process; when it is gone, nothing of the systems may stay.
process.once("disconnect", async () => {
  await tidy();
  process.exit(1);
});
process.channel?.unref();

const say = (text) => process.stderr.write(`${text}\n`);
const result = {
  at: new Date().toISOString(),
  machine: { cpus: os.cpus().length, model: os.cpus()[0]?.model ?? null, memory_gib: Math.round(os.totalmem() / 2 ** 30), system: `${os.type()} ${os.release()}` },
  versions: { node: process.version, miniflare: versionOf("miniflare"), workerd: versionOf("workerd") },
  options,
  lanes: options.lanes,
  systems,
  wait_systems: waitSystems,
  stores: stores.map(({ name, where }) => ({ name, where })),
  notes,
  fdatasync_ms: [],
  w1: [],
  fsyncs: [],
  w2: [],
  wait_fsyncs: [],
  open_files_limit: openFilesLimit(),
  w3: [],
  wasm: wasmSize(),
};

if (parts.includes("w1")) {
  for (let round = 1; round <= options.rounds; round += 1) {
    for (const store of stores) {
      const speed = probe(store.dir);
      result.fdatasync_ms.push({ round, store: store.name, p50_ms: speed });
      // Every round starts with another system, so that none always has the same neighbour.
      for (let i = 0; i < systems.length; i += 1) {
        const name = systems[(i + round - 1) % systems.length];
        const entry = { system: name, store: store.name, round, ...(await withSystem(name, store, (system) => measure(system, sink, options))) };
        result.w1.push(entry);
        say(
          entry.error !== undefined
            ? `W1 round ${round} ${store.name} ${name}: ${entry.error}`
            : `W1 round ${round} ${store.name} ${name}: ${entry.runs_per_second.toFixed(0)} runs/s, p50 ${entry.p50_ms.toFixed(1)} ms, CPU ${entry.cpu_ms_per_run?.toFixed(1) ?? "-"} ms/run, others ${entry.others_cores_many_lanes?.toFixed(2) ?? "-"} cores, fdatasync ${speed.toFixed(2)} ms`,
        );
      }
    }
  }
}
if (parts.includes("fsyncs") && stores.length > 0) {
  for (const name of fsyncSystems) {
    const found = await withSystem(name, stores[0], (system) => fsyncsPerRun(system, sink, { runs: options.fsyncRuns }));
    result.fsyncs.push({ system: name, ...found, ...(found.error === undefined ? {} : { not_measured: found.error }) });
    say(`fsyncs ${name}: ${found.per_run?.toFixed(1) ?? found.not_measured ?? found.error}`);
  }
}
if (parts.includes("w2") && stores.length > 0) {
  for (const name of waitSystems) {
    const found = await withSystem(name, stores[0], (system) => fsyncsPerWait(system, sink, { runs: options.fsyncRuns }));
    result.wait_fsyncs.push({ system: name, ...found, ...(found.error === undefined ? {} : { not_measured: found.error }) });
    say(`fsyncs of a wait, ${name}: ${found.per_waiting_run?.toFixed(1) ?? found.not_measured ?? found.error}`);
  }
  for (let round = 1; round <= options.waitRounds; round += 1) {
    for (let i = 0; i < waitSystems.length; i += 1) {
      const name = waitSystems[(i + round - 1) % waitSystems.length];
      const entry = { system: name, store: stores[0].name, round, ...(await withSystem(name, stores[0], (system) => suspendAndWake(system, sink, options))) };
      result.w2.push(entry);
      say(
        entry.error !== undefined
          ? `W2 round ${round} ${name}: ${entry.error}`
          : `W2 round ${round} ${name}: ${entry.held} of ${entry.asked} held, ${entry.disk_bytes_per_run?.toFixed(0)} bytes a run, event to call p50 ${entry.event_p50_ms?.toFixed(1)} ms, ${entry.events_per_second.toFixed(0)} events/s, others ${entry.others_cores_one_lane?.toFixed(2) ?? "-"} cores, after kill -9 ${entry.woken_after_restart} of ${entry.asked_after_restart} woken, ${entry.waiting_after_restart} of ${entry.left_after_restart} waiting`,
      );
    }
  }
}
if (parts.includes("w3") && stores.length > 0) {
  for (let attempt = 1; attempt <= options.tries; attempt += 1) {
    const killAtCall = 300 + Math.floor(Math.random() * 100);
    for (const name of crashSystems) {
      const entry = { system: name, try: attempt, lanes: options.lanes, ...(await withSystem(name, stores[0], (system) => crash(system, sink, { ...options, killAtCall }))) };
      result.w3.push(entry);
      say(`W3 try ${attempt} ${name}: ${entry.error ?? `${entry.lost} of ${entry.acknowledged} lost, last third call ${entry.last_third_call_seconds?.toFixed(1) ?? "never"}`}`);
    }
  }
}
await tidy();

const results = fileURLToPath(new URL("./results/", import.meta.url));
mkdirSync(results, { recursive: true });
writeFileSync(path.join(results, "latest.json"), `${JSON.stringify(result, null, 2)}\n`);
console.log(`${result.machine.cpus} x ${result.machine.model}, node ${result.versions.node}, miniflare ${result.versions.miniflare}, workerd ${result.versions.workerd}`);
for (const note of notes) console.log(`note: ${note}`);
console.log(render(result));
