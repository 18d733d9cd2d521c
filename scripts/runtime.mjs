// Runs the built Worker on workerd through Miniflare, with the bindings that wrangler.toml names.
// Shared by `npm start`, the Worker's tests, the demo and the benchmarks. Needs the Node of launch.mjs.

import { createHash } from "node:crypto";
import { existsSync, readFileSync, readdirSync, renameSync, writeFileSync } from "node:fs";
import { join, relative, resolve, sep } from "node:path";
import { root } from "./steps.mjs";
import { lockState } from "./lock.mjs";

// Miniflare would otherwise record each invocation in a store of its own (two more fsyncs a run).
process.env.X_LOCAL_OBSERVABILITY ??= "false";
process.env.X_LOCAL_EXPLORER ??= "false";
process.env.WRANGLER_SEND_METRICS ??= "false";

// The local broker hands over one batch at a time: a consumer that waited for a slow tool would hold
// up every other run, and so would a backlog handed over in small portions.
const LOCAL_VARS = { CONSUMER_PATIENCE_MS: "5" };
const LOCAL_BATCH_SIZE = 100;

const MODULE_TYPES = { ".mjs": "ESModule", ".js": "ESModule", ".wasm": "CompiledWasm" };

/**
 * Starts the Worker and waits until workerd listens.
 *
 * @param {object} options
 * @param {number} [options.port] 0 takes a free one
 * @param {string} options.stateDir where queues' objects, SQLite and KV persist
 * @param {Record<string, string>} [options.vars] over those of wrangler.toml
 * @param {"local" | "deploy"} [options.build]
 * @param {boolean} [options.cron] call `scheduled` at each full minute
 * @param {(text: string, level: string) => void} [options.onLog] each line the Worker writes
 * @param {Function} [options.outbound] answers the Worker's outgoing requests instead of the network
 * @param {number} [options.inspectorPort] where a profiler may attach
 */
export async function startRuntime({
  port = 0,
  host = "127.0.0.1",
  stateDir,
  vars = {},
  build = "local",
  cron = true,
  onLog,
  outbound,
  inspectorPort,
}) {
  if (!stateDir) throw new Error("startRuntime needs a stateDir");
  const state = resolve(stateDir);
  const lock = await lockState(state);
  try {
    const { Miniflare, convertV4MiniflareOptions, Log, LogLevel } = await import("miniflare");
    const worker = await workerOptions();
    for (const consumer of Object.values(worker.queueConsumers)) consumer.maxBatchSize = LOCAL_BATCH_SIZE;
    const converted = convertV4MiniflareOptions({
      host,
      port,
      inspectorPort,
      cf: false,
      telemetry: { enabled: false },
      log: new Log(LogLevel.WARN),
      ...(onLog && { handleStructuredLogs: ({ message, level }) => onLog(message, level) }),
      workers: [
        {
          ...worker,
          name: "dormouse",
          bindings: { ...worker.bindings, ...LOCAL_VARS, ...vars },
          modulesRoot: join(root, "build", build),
          modules: modulesOf(join(root, "build", build)),
          ...(outbound && { outboundService: outbound }),
        },
      ],
    });
    const miniflare = new Miniflare({ ...converted, resourcePersistencePath: state });
    try {
      const url = (await miniflare.ready).href.replace(/\/$/, "");
      lock.addWorkerd();
      const stopCron = cron ? everyMinute(() => runCron(miniflare)) : () => {};
      return {
        url,
        miniflare,
        consumers: worker.queueConsumers,
        scheduled: () => runCron(miniflare),
        async dispose() {
          stopCron();
          await miniflare.dispose();
          lock.unlock();
        },
      };
    } catch (error) {
      await miniflare.dispose();
      throw error;
    }
  } catch (error) {
    lock.unlock();
    throw error;
  }
}

/** The entry module first, then everything beside it. */
function modulesOf(directory) {
  const entry = join(directory, "worker.mjs");
  if (!existsSync(entry)) throw new Error(`${relative(root, entry)} is missing: run \`npm run build\` or \`npm start\` first`);
  const files = readdirSync(directory, { recursive: true }).map((name) => join(directory, name));
  const typed = files
    .map((path) => ({ type: MODULE_TYPES[path.slice(path.lastIndexOf("."))], path }))
    .filter(({ type, path }) => type && path !== entry);
  return [{ type: "ESModule", path: entry }, ...typed].map((module) => ({
    ...module,
    contents: readFileSync(module.path),
    path: module.path.split(sep).join("/"),
  }));
}

/**
 * What wrangler makes of wrangler.toml. Loading wrangler takes a second, so its answer is kept in build/
 * by content, unless there are secrets beside it that would be kept too.
 */
async function workerOptions() {
  const read = (name) => (existsSync(join(root, name)) ? readFileSync(join(root, name), "utf8") : "");
  if ([".dev.vars", ".env", ".env.local"].some(read)) return optionsFromWrangler();

  const content = createHash("sha256").update(read("wrangler.toml")).update(read("package-lock.json")).digest("hex");
  const kept = join(root, "build", "worker-options.json");
  try {
    const { madeOf, options } = JSON.parse(readFileSync(kept, "utf8"));
    if (madeOf === content) return options;
  } catch {
    // Not there yet, or not whole.
  }
  const options = await optionsFromWrangler();
  writeFileSync(`${kept}.${process.pid}`, JSON.stringify({ madeOf: content, options }));
  renameSync(`${kept}.${process.pid}`, kept);
  return options;
}

async function optionsFromWrangler() {
  const { unstable_getMiniflareWorkerOptions } = await import("wrangler");
  const { workerOptions } = unstable_getMiniflareWorkerOptions(join(root, "wrangler.toml"));
  const { modulesRules, cronTriggers, ...options } = workerOptions;
  return JSON.parse(JSON.stringify(options));
}

async function runCron(miniflare) {
  const worker = await miniflare.getWorker();
  return worker.scheduled({ cron: "* * * * *", scheduledTime: new Date() });
}

/** Calls `work` at each full minute, never twice at once. Returns how to stop. */
function everyMinute(work) {
  let timer;
  const plan = () => {
    timer = setTimeout(async () => {
      try {
        await work();
      } catch (error) {
        console.error(`cron: ${error.message}`);
      }
      if (timer) plan();
    }, 60_000 - (Date.now() % 60_000));
    timer.unref();
  };
  plan();
  return () => {
    clearTimeout(timer);
    timer = undefined;
  };
}
