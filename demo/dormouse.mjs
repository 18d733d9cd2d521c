// Dormouse as a process that can be stopped and killed, and a client of its HTTP API.

import { spawn } from "node:child_process";
import { once } from "node:events";
import { readFile, readdir } from "node:fs/promises";
import { basename, join } from "node:path";
import { setTimeout as sleep } from "node:timers/promises";
import { fileURLToPath } from "node:url";
import { read, write } from "./exact.mjs";

const SERVE = fileURLToPath(new URL("../scripts/serve.mjs", import.meta.url));
const READY = /Dormouse is ready on http:\/\/localhost:(\d+)/;

export class Dormouse {
  #key = "demo-key";
  #child;
  #port;
  #closed = false;
  /** The end of what the process wrote. */
  log = "";

  /** How long it was up: from when it answered to when its process had ended. */
  upMs = 0;

  /** `settings` are those of scripts/serve.mjs, such as STATE_DIR. */
  constructor(settings) {
    this.env = { ...process.env, PORT: "0", DEV_API_KEY: this.#key, ...settings };
  }

  get url() {
    return `http://127.0.0.1:${this.#port}`;
  }

  get port() {
    return this.#port;
  }

  /** From now on starts where it is now: whoever was told its address finds it again. */
  keepPort() {
    this.env.PORT = String(this.#port);
  }

  /** Starts the runtime on its state, in a process group of its own; done when it answers. */
  async start() {
    if (this.#closed) throw new Error("closed");
    const child = spawn(process.execPath, [SERVE], { env: this.env, detached: true, stdio: ["ignore", "pipe", "pipe", "ipc"] });
    this.#child = child;
    this.log = "";
    this.#port = await new Promise((ready, fail) => {
      const listen = (piece) => {
        this.log = (this.log + piece).slice(-4_000);
        const found = READY.exec(this.log);
        if (found) ready(found[1]);
      };
      child.stdout.setEncoding("utf8").on("data", listen);
      child.stderr.setEncoding("utf8").on("data", listen);
      child.once("error", fail);
      child.once("exit", () => fail(new Error("Dormouse did not start")));
    });
    const readyAt = performance.now();
    child.once("exit", () => (this.upMs += performance.now() - readyAt));
  }

  /** SIGTERM: it ends by itself, its state stays. Done when no process of its group is left. */
  async stop() {
    const child = this.#child;
    const ended = once(child, "exit");
    child.kill("SIGTERM");
    await ended;
    if (process.platform === "win32") return;
    for (let waited = 0; ; waited += 20) {
      try {
        process.kill(-child.pid, 0);
      } catch {
        return;
      }
      if (waited > 5_000) throw new Error("stopped, but a process of its group is left");
      await sleep(20);
    }
  }

  /** `kill -9`: Node, workerd and whatever else is in the group, at once and without a warning. */
  async kill() {
    const child = this.#child;
    if (!child?.pid || child.exitCode !== null || child.signalCode !== null) return;
    const ended = once(child, "exit");
    if (process.platform === "win32") spawn("taskkill", ["/pid", String(child.pid), "/t", "/f"]);
    else process.kill(-child.pid, "SIGKILL");
    await ended;
  }

  /** Ends it for good. */
  close() {
    this.#closed = true;
    return this.kill();
  }

  get = (path) => this.#call("GET", path);
  put = (path, body) => this.#call("PUT", path, body);
  post = (path, body, idempotencyKey) => this.#call("POST", path, body, idempotencyKey && { "idempotency-key": idempotencyKey });

  /** Stores the tools and the agents that `directory` has as files. */
  async define(directory) {
    for (const kind of ["tools", "agents"]) {
      for (const file of await readdir(join(directory, kind))) {
        const definition = read(await readFile(join(directory, kind, file), "utf8"));
        await this.put(`/v1/${kind}/${basename(file, ".json")}`, definition);
      }
    }
  }

  /** A run's whole log. */
  async history(runId) {
    const entries = [];
    for (;;) {
      const { items } = await this.get(`/v1/runs/${runId}/events?limit=200&after=${entries.length}`);
      if (items.length === 0) return entries;
      entries.push(...items);
    }
  }

  async #call(method, path, body, headers = {}) {
    const response = await fetch(this.url + path, {
      method,
      headers: { authorization: `Bearer ${this.#key}`, "content-type": "application/json", ...headers },
      body: body && write(body),
      signal: AbortSignal.timeout(20_000),
    });
    const text = await response.text();
    if (!response.ok) throw new Error(`${method} ${path} answered ${response.status}: ${text}`);
    return read(text);
  }
}
