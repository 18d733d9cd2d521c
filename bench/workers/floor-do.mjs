// The floor in the form that is quickest to wake: the run's object makes the calls itself, and nothing stands between it and the request.
// A wait is nothing at all: the object has stored its first result and has nothing to do. Nothing recovers here.
import { DurableObject } from "cloudflare:workers";

export class Run extends DurableObject {
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
    this.ctx.waitUntil(this.work());
  }
  go() {
    this.put(2, "go");
    this.ctx.waitUntil(this.work());
  }
  async work() {
    const [{ result }] = this.ctx.storage.sql.exec("SELECT result FROM steps WHERE step = 0").toArray();
    const { run, wait } = JSON.parse(result);
    for (let step = this.last() + 1; step <= 3; step += 1) {
      if (wait && step === 2) return;
      const answer = await fetch(this.env.SINK, {
        method: "POST",
        headers: { "content-type": "application/json", "idempotency-key": `${run}-${step}` },
        body: JSON.stringify({ r: run, s: step }),
      });
      this.put(step, await answer.text());
    }
    this.put(4, "done");
  }
  // A run with one result that nobody works on waits; who asks is the driver, and only when all is at rest.
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
