// The local server as a process group of its own, to be killed as a whole.

import { execFileSync, spawn } from "node:child_process";
import { createServer } from "node:net";
import { once } from "node:events";
import { fileURLToPath } from "node:url";
import { newNode } from "../../../scripts/node.mjs";
import { until } from "./until.mjs";

const SERVE = fileURLToPath(new URL("../../../scripts/serve.mjs", import.meta.url));

/** A port that nobody listens on now. */
export async function freePort() {
  const server = createServer().listen(0, "127.0.0.1");
  await once(server, "listening");
  const { port } = server.address();
  server.close();
  await once(server, "close");
  return port;
}

/**
 * Spawns scripts/serve.mjs without waiting until it serves.
 * @param {{ port: number, stateDir: string, env?: Record<string, string> }} options
 */
export function spawnServer({ port, stateDir, env = {} }) {
  const child = spawn(newNode(), [SERVE], {
    // A group of its own; the channel ends the server when this process ends, however it does.
    detached: true,
    stdio: ["ignore", "pipe", "pipe", "ipc"],
    env: {
      ...process.env,
      PORT: String(port),
      STATE_DIR: stateDir,
      DEV_API_KEY: "dev-key",
      ADMIN_TOKEN: "admin-token-of-the-tests",
      TEST_SEAMS: "1",
      ALLOWED_INWARD_HOSTS: "localhost,127.0.0.1",
      ...env,
    },
  });
  const output = [];
  for (const stream of [child.stdout, child.stderr]) {
    stream.setEncoding("utf8").on("data", (text) => output.push(...text.split("\n").filter(Boolean)));
  }
  const exited = new Promise((done) => child.on("exit", (code, signal) => done({ code, signal })));
  return {
    pid: child.pid,
    url: `http://127.0.0.1:${port}`,
    /** Lines of stdout and stderr. */
    output,
    exited,
    /** Signals every process of the group, and waits until none is left. */
    async signal(name) {
      try {
        process.kill(-child.pid, name);
      } catch (error) {
        if (error.code !== "ESRCH") throw error;
      }
      await exited;
      await until(() => membersOf(child.pid).length === 0, { what: `the group ${child.pid} is gone after ${name}` });
    },
  };
}

/** As `spawnServer`, and waits until it says that it is ready. */
export async function startServer(options) {
  const server = spawnServer(options);
  let gone;
  server.exited.then((how) => (gone = how));
  await until(
    () => {
      if (gone) return true;
      return server.output.some((line) => line.startsWith("Dormouse is ready on "));
    },
    { what: "the server is ready", within: 30_000 },
  );
  if (gone) throw new Error(`the server ended (${JSON.stringify(gone)}): ${server.output.join("\n")}`);
  return server;
}

/** The live processes of a group; those that only wait for their parent's notice are not alive. */
export function membersOf(group) {
  const listed = execFileSync("ps", ["-eo", "pid=,pgid=,stat=,comm="], { encoding: "utf8" });
  return listed
    .split("\n")
    .map((line) => line.trim().split(/\s+/))
    .filter(([, pgid, stat]) => Number(pgid) === group && !/^[ZX]/.test(stat))
    .map(([pid, , , command]) => ({ pid: Number(pid), command }));
}
