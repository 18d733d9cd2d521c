// A system under test: how to start and kill it, how to start a run on it and how to read a run's status.
import { spawn } from "node:child_process";
import { createServer } from "node:net";
import { fileURLToPath } from "node:url";
import { setTimeout as sleep } from "node:timers/promises";
import http from "node:http";
import { tree } from "./proc.mjs";

const HOST = fileURLToPath(new URL("./host.mjs", import.meta.url));
const running = new Set();

export function freePort() {
  return new Promise((resolve, reject) => {
    const server = createServer();
    server.on("error", reject);
    server.listen(0, "127.0.0.1", () => {
      const { port } = server.address();
      server.close(() => resolve(port));
    });
  });
}

/** One HTTP request on a kept-alive connection. */
export function request(agent, method, url, body, headers = {}, timeoutMs = 30_000) {
  return new Promise((resolve, reject) => {
    const payload = body === undefined ? undefined : JSON.stringify(body);
    const call = http.request(
      url,
      {
        agent,
        method,
        headers: payload === undefined ? headers : { "content-type": "application/json", "content-length": Buffer.byteLength(payload), ...headers },
      },
      (answer) => {
        let text = "";
        answer.setEncoding("utf8");
        answer.on("data", (piece) => (text += piece));
        answer.on("end", () => resolve({ status: answer.statusCode, text }));
        answer.on("error", reject);
        answer.on("close", () => reject(new Error("the answer was cut short")));
      },
    );
    call.on("error", reject);
    call.setTimeout(timeoutMs, () => call.destroy(new Error(`${method} ${url} was not answered within ${timeoutMs} ms`)));
    call.end(payload);
  });
}

/** How each system is spoken to. `start` gives the body of a start request, `id` finds the run's id in the answer. */
const PLAIN = {
  alive: "/",
  startPath: "/runs",
  body: (run, wait) => ({ r: run, wait }),
  id: (answer) => answer.id,
  statusPath: (id) => `/runs/${id}`,
  wakePath: (id) => `/runs/${id}/go`,
  headers: {},
  prepare: async () => {},
};

const DORMOUSE = {
  alive: "/healthz",
  startPath: "/v1/runs",
  body: (run, wait) => ({ agent: wait ? "bench-wait" : "bench", input: { r: run } }),
  id: (answer) => answer.run_id,
  statusPath: (id) => `/v1/runs/${id}`,
  wakePath: (id) => `/v1/runs/${id}/signals/go`,
  headers: { authorization: "Bearer dev-key" },
  async prepare(put, sink) {
    const names = ["bench.first", "bench.second", "bench.third"];
    for (const name of names) {
      await put(`/v1/tools/${name}`, {
        description: "Calls the benchmark's sink",
        parameters: { type: "object" },
        result: { type: "object" },
        http: { method: "POST", url: sink },
        effect: "idempotent",
      });
    }
    const call = (n) => ({ id: `call${n}`, tool: names[n - 1], arguments: { r: "{{ input.r }}", s: n } });
    await put("/v1/agents/bench", {
      description: "Three calls, one after another",
      tools: names,
      planner: { kind: "plan", steps: [call(1), call(2), call(3)] },
    });
    await put("/v1/agents/bench-wait", {
      description: "A call, a wait for a signal, a call",
      tools: names,
      planner: { kind: "plan", steps: [call(1), { id: "wait", wait_for: "go" }, call(3)] },
    });
  },
};

export class System {
  constructor({ name, stateDir, port, sink, product, build }) {
    Object.assign(this, { name, stateDir, port, sink, product, build });
    this.speaks = name === "dormouse" ? DORMOUSE : PLAIN;
    this.base = `http://127.0.0.1:${port}`;
    this.agent = new http.Agent({ keepAlive: true, maxSockets: 128 });
  }

  /** Starts the process group and waits until its API answers. Gives the milliseconds that took. */
  async start({ timeoutMs = 60_000 } = {}) {
    const began = performance.now();
    const { name, port, stateDir, sink, product, build } = this;
    const child = spawn(process.execPath, [HOST, JSON.stringify({ system: name, port, stateDir, sink, product, build })], {
      detached: true,
      stdio: ["ignore", "pipe", "pipe", "ipc"],
      env: {
        ...process.env,
        X_LOCAL_OBSERVABILITY: "false",
        X_LOCAL_EXPLORER: "false",
        WRANGLER_SEND_METRICS: "false",
        CLOUDFLARE_CF_FETCH_ENABLED: "false",
      },
    });
    this.child = child;
    running.add(this);
    this.output = "";
    const keep = (piece) => (this.output = (this.output + piece).slice(-4000));
    child.stdout.on("data", keep);
    child.stderr.on("data", keep);
    let failure = null;
    child.on("message", (message) => {
      if (message.failed) failure = message.failed;
    });
    child.on("exit", (code, signal) => {
      failure ??= `ended with ${signal ?? code}`;
    });
    child.on("error", (error) => {
      failure ??= String(error);
    });
    // The API counts as up when it answers, whatever the launcher says.
    for (;;) {
      if (failure !== null) throw new Error(`${name} did not start: ${failure}\n${this.output}`);
      if (performance.now() - began > timeoutMs) throw new Error(`${name} did not answer within ${timeoutMs} ms\n${this.output}`);
      try {
        const { status } = await request(this.agent, "GET", this.base + this.speaks.alive, undefined, {}, 5000);
        if (status === 200) break;
      } catch {
        // Not yet.
      }
      await sleep(10);
    }
    return performance.now() - began;
  }

  async prepare() {
    const put = async (path, body) => {
      const { status, text } = await request(this.agent, "PUT", this.base + path, body, this.speaks.headers);
      if (status >= 300) throw new Error(`PUT ${path} answered ${status}: ${text}`);
    };
    await this.speaks.prepare(put, this.sink);
  }

  /** Starts a run (with `wait`, one that waits for an event after its first call). Resolves with its id once it is acknowledged. */
  async startRun(run, wait = undefined) {
    const { status, text } = await request(this.agent, "POST", this.base + this.speaks.startPath, this.speaks.body(run, wait), this.speaks.headers);
    if (status < 200 || status >= 300) throw new Error(`a start was answered with ${status}: ${text.slice(0, 500)}`);
    return this.speaks.id(JSON.parse(text));
  }

  /** Sends the event that a waiting run waits for. */
  async wake(id) {
    const { status, text } = await request(this.agent, "POST", this.base + this.speaks.wakePath(id), { payload: {} }, this.speaks.headers);
    if (status < 200 || status >= 300) throw new Error(`an event was answered with ${status}: ${text.slice(0, 500)}`);
  }

  async status(id) {
    const { status, text } = await request(this.agent, "GET", this.base + this.speaks.statusPath(id), undefined, this.speaks.headers);
    return status === 200 ? JSON.parse(text).status : `HTTP ${status}`;
  }

  get pid() {
    return this.child.pid;
  }

  /** The workerd process that does the work: the busiest one, should there be several. */
  workerd() {
    const found = tree(this.pid).filter((entry) => entry.name.startsWith("workerd"));
    return found.sort((a, b) => b.ticks - a.ticks)[0]?.pid ?? null;
  }

  /** SIGKILL to the whole group at once, and to whatever left it. Resolves when all of it is gone. */
  async kill() {
    const { child } = this;
    if (!child) return;
    this.child = null;
    const members = tree(child.pid).map((entry) => entry.pid);
    try {
      process.kill(-child.pid, "SIGKILL");
    } catch {
      // Gone already.
    }
    for (const pid of members) {
      try {
        process.kill(pid, "SIGKILL");
      } catch {
        // Gone with the group.
      }
    }
    if (child.exitCode === null && child.signalCode === null) await new Promise((resolve) => child.once("exit", resolve));
    for (let i = 0; i < 200 && members.some(alive); i += 1) await sleep(5);
    this.agent.destroy();
    this.agent = new http.Agent({ keepAlive: true, maxSockets: 128 });
    running.delete(this);
  }
}

function alive(pid) {
  try {
    process.kill(pid, 0);
    return true;
  } catch {
    return false;
  }
}

export async function killAll() {
  await Promise.all([...running].map((system) => system.kill()));
}
