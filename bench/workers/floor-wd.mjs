// The floor with crash safety: the run's object stores the run and a watchdog alarm in one commit, answers, and makes the calls itself.
// After a crash the alarm fires by itself and the run goes on after its last stored step. A run that waits needs no alarm and has none.
import { DurableObject } from "cloudflare:workers";

const WATCHDOG_MS = 5000;

export class Run extends DurableObject {
  busy = false;
  constructor(ctx, env) {
    super(ctx, env);
    ctx.storage.sql.exec("CREATE TABLE IF NOT EXISTS steps (step INTEGER PRIMARY KEY, result TEXT)");
  }
  put(step, result) {
    this.ctx.storage.sql.exec("INSERT OR REPLACE INTO steps VALUES (?, ?)", step, result);
  }
  last() {
    return this.ctx.storage.sql.exec("SELECT MAX(step) AS n FROM steps").toArray()[0].n;
  }
  start(run, wait) {
    this.put(0, JSON.stringify({ run, wait }));
    this.ctx.storage.setAlarm(Date.now() + WATCHDOG_MS);
    this.ctx.waitUntil(this.work());
  }
  go() {
    this.put(2, "go");
    this.ctx.storage.setAlarm(Date.now() + WATCHDOG_MS);
    this.ctx.waitUntil(this.work());
  }
  async work() {
    if (this.busy) return;
    this.busy = true;
    try {
      const [{ result }] = this.ctx.storage.sql.exec("SELECT result FROM steps WHERE step = 0").toArray();
      const { run, wait } = JSON.parse(result);
      for (let step = this.last() + 1; step <= 3; step += 1) {
        if (wait && step === 2) return this.ctx.storage.deleteAlarm();
        const answer = await fetch(this.env.SINK, {
          method: "POST",
          headers: { "content-type": "application/json", "idempotency-key": `${run}-${step}` },
          body: JSON.stringify({ r: run, s: step }),
        });
        this.put(step, await answer.text());
      }
      this.put(4, "done");
      this.ctx.storage.deleteAlarm();
    } finally {
      this.busy = false;
    }
  }
  async alarm() {
    if (this.last() === 4) return;
    this.ctx.storage.setAlarm(Date.now() + WATCHDOG_MS);
    await this.work();
  }
  // As in floor-do.mjs: who asks is the driver, and only when all is at rest.
  status() {
    return this.last() === 4 ? "completed" : this.last() === 1 ? "waiting" : "running";
  }
}

const object = (env, run) => env.RUN.get(env.RUN.idFromName(run));

export default {
  async fetch(request, env) {
    const { pathname } = new URL(request.url);
    if (pathname === "/runs" && request.method === "POST") {
      const { r, wait } = await request.json();
      await object(env, r).start(r, wait);
      return Response.json({ id: r }, { status: 202 });
    }
    if (pathname.endsWith("/go")) {
      await object(env, pathname.split("/")[2]).go();
      return new Response(null, { status: 202 });
    }
    if (pathname.startsWith("/runs/")) {
      return Response.json({ status: await object(env, pathname.slice(6)).status() });
    }
    return new Response("ok");
  },
};
