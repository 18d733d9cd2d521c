// Runs one system in a process group of its own, so that the driver can count its CPU and kill it as a whole.
// It is told what to run by one JSON argument, says "ready" over IPC, and ends when the driver goes away.
import { readFile } from "node:fs/promises";
import { fileURLToPath, pathToFileURL } from "node:url";
import path from "node:path";

const { system, port, stateDir, sink, product, build } = JSON.parse(process.argv[2]);
const workers = fileURLToPath(new URL("../workers/", import.meta.url));

const OWN_WORKERS = {
  floor: {
    durableObjects: { ROW: { className: "Row", useSQLite: true } },
    queueProducers: { WORK: "work" },
    queueConsumers: { work: { maxBatchSize: 32, maxBatchTimeout: 0, maxRetries: 3 } },
  },
  "floor-do": { durableObjects: { RUN: { className: "Run", useSQLite: true } } },
  "floor-wd": { durableObjects: { RUN: { className: "Run", useSQLite: true } } },
  workflow: { workflows: { FLOW: { name: "three", className: "Three" } } },
};

async function startOwn() {
  const { Miniflare, convertV4MiniflareOptions } = await import("miniflare");
  const file = path.join(workers, `${system}.mjs`);
  const miniflare = new Miniflare(
    convertV4MiniflareOptions({
      host: "127.0.0.1",
      port,
      cf: false,
      resourcePersistencePath: stateDir,
      unsafeLocalExplorer: false,
      unsafeObservability: false,
      telemetry: { enabled: false },
      workers: [
        {
          name: system,
          modules: [{ type: "ESModule", path: `${system}.mjs`, contents: await readFile(file, "utf8") }],
          compatibilityDate: "2026-11-01",
          bindings: { SINK: sink },
          ...OWN_WORKERS[system],
        },
      ],
    }),
  );
  return String(await miniflare.ready);
}

async function startDormouse() {
  const { startRuntime } = await import(pathToFileURL(path.join(product, "scripts", "runtime.mjs")));
  const { url } = await startRuntime({
    port,
    stateDir,
    build,
    // Seams exist in the local build alone.
    vars: { ALLOWED_INWARD_HOSTS: "127.0.0.1,localhost", DEV_API_KEY: "dev-key", TEST_SEAMS: "1" },
  });
  return String(url);
}

process.on("disconnect", () => process.kill(-process.pid, "SIGKILL"));
try {
  const url = await (system === "dormouse" ? startDormouse() : startOwn());
  process.send({ ready: url });
} catch (error) {
  process.send({ failed: String(error?.stack ?? error) });
}
