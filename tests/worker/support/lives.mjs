// Servers one after another on the same state and port, and a client that outlives them.

import { mkdtemp, rm } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { clientOf } from "./client.mjs";
import { freePort, startServer } from "./group.mjs";
import { startSink } from "./sink.mjs";

/** `env`: further variables of the servers. */
export async function lives({ env } = {}) {
  const [sink, port, stateDir] = [await startSink(), await freePort(), await mkdtemp(join(tmpdir(), "dormouse-crash-"))];
  const output = [];
  let server = await startServer({ port, stateDir, env });
  const client = clientOf(server.url, "dev-key");
  return {
    sink,
    client,
    /** As worlds call it. */
    dev: client,
    url: server.url,
    stateDir,
    /** What all of them but the one that lives wrote. */
    output,
    /** What all of them wrote. */
    get lines() {
      return [...output, ...server.output];
    },
    async kill() {
      await server.signal("SIGKILL");
      output.push(...server.output);
    },
    async start() {
      server = await startServer({ port, stateDir, env });
    },
    async end() {
      await server.signal("SIGTERM");
      output.push(...server.output);
      await sink.close();
      await rm(stateDir, { recursive: true, force: true });
    },
  };
}
