// Serves the built Worker locally. Started by start.mjs, in a Node that is new enough.

import { main, root } from "./steps.mjs";
import { startRuntime } from "./runtime.mjs";
import { join, resolve } from "node:path";

/** What the environment hands to the Worker as it is. */
const PASSED_ON = [
  "ADMIN_TOKEN",
  "TEST_SEAMS",
  "IDEMPOTENCY_CACHE",
  "TENANT_SECRETS",
  "SIGNING_KEY",
  "PUBLIC_URL",
  ...Object.keys(process.env).filter((name) => name.startsWith("OTEL_EXPORTER_OTLP_")),
];

await main(async () => {
  const port = Number(process.env.PORT || 8787);
  if (!Number.isInteger(port) || port < 0 || port > 65535) throw new Error(`PORT=${process.env.PORT} is not a port`);
  const stateDir = resolve(process.env.STATE_DIR || join(root, ".dormouse", "state"));
  const vars = {
    DEV_API_KEY: process.env.DEV_API_KEY || "dev-key",
    ALLOWED_INWARD_HOSTS: process.env.ALLOWED_INWARD_HOSTS ?? "localhost,127.0.0.1",
    ...Object.fromEntries(PASSED_ON.filter((name) => process.env[name] !== undefined).map((name) => [name, process.env[name]])),
  };

  const runtime = await startRuntime({ port, stateDir, vars });
  let stopping = false;
  const stop = async () => {
    if (stopping) return;
    stopping = true;
    await runtime.dispose();
    process.exit(0);
  };
  for (const signal of ["SIGINT", "SIGTERM", "SIGHUP"]) {
    // Miniflare's own listener would end the process while it is being disposed of.
    process.removeAllListeners(signal);
    process.on(signal, stop);
  }
  // Started by another process, end with it.
  process.on("disconnect", stop);

  for (const [queue, c] of Object.entries(runtime.consumers)) {
    const dlq = c.deadLetterQueue ? `then to ${c.deadLetterQueue}` : "then dropped";
    console.log(`queue ${queue}: batch ${c.maxBatchSize}, wait ${c.maxBatchTimeout} s, ${c.maxRetries} retries, ${dlq}`);
  }
  console.log(`state: ${stateDir}`);
  await untilHealthy(runtime.url);
  console.log(`Dormouse is ready on http://localhost:${new URL(runtime.url).port}`);
});

async function untilHealthy(url) {
  let last = "no answer";
  for (let attempt = 0; attempt < 100; attempt += 1) {
    try {
      const response = await fetch(`${url}/healthz`, { signal: AbortSignal.timeout(5_000) });
      if (response.status === 200) return;
      last = `status ${response.status}`;
    } catch (error) {
      last = error.message;
    }
    await new Promise((done) => setTimeout(done, 100));
  }
  console.error(`GET /healthz does not answer 200 (${last}); serving all the same`);
}
