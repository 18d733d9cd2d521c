// The floor: what the platform itself allows for three durable calls, with no engine at all.
// HTTP -> Queue -> a consumer that makes the calls and stores a row in the run's own SQLite object after each.
// Nothing recovers here: the local queue lives in memory, so a crash loses every message in flight.
import { DurableObject } from "cloudflare:workers";

export class Row extends DurableObject {
  constructor(ctx, env) {
    super(ctx, env);
    ctx.storage.sql.exec("CREATE TABLE IF NOT EXISTS steps (step INTEGER PRIMARY KEY, result TEXT)");
  }
  put(step, result) {
    this.ctx.storage.sql.exec("INSERT OR REPLACE INTO steps VALUES (?, ?)", step, result);
  }
  stored() {
    return this.ctx.storage.sql.exec("SELECT COUNT(*) AS n FROM steps").toArray()[0].n;
  }
}

const object = (env, run) => env.ROW.get(env.ROW.idFromName(run));

async function call(env, run, step) {
  const answer = await fetch(env.SINK, {
    method: "POST",
    headers: { "content-type": "application/json", "idempotency-key": `${run}-${step}` },
    body: JSON.stringify({ r: run, s: step }),
  });
  await object(env, run).put(step, await answer.text());
}

async function work(env, { r: run, wait, woken }) {
  if (!woken) await call(env, run, 1);
  if (wait) return;
  if (!woken) await call(env, run, 2);
  await call(env, run, 3);
  await object(env, run).put(4, "done");
}

export default {
  async fetch(request, env) {
    const { pathname } = new URL(request.url);
    if (pathname === "/runs" && request.method === "POST") {
      const { r, wait } = await request.json();
      await env.WORK.send({ r, wait });
      return Response.json({ id: r }, { status: 202 });
    }
    if (pathname.endsWith("/go")) {
      const run = pathname.split("/")[2];
      await object(env, run).put(2, "go");
      await env.WORK.send({ r: run, woken: true });
      return new Response(null, { status: 202 });
    }
    if (pathname.startsWith("/runs/")) {
      const n = await object(env, pathname.slice(6)).stored();
      // As in floor-do.mjs: who asks is the driver, and only when all is at rest.
      return Response.json({ status: n === 4 ? "completed" : n === 1 ? "waiting" : "running" });
    }
    return new Response("ok");
  },
  async queue(batch, env) {
    await Promise.all(
      batch.messages.map(async (message) => {
        await work(env, message.body);
        message.ack();
      }),
    );
  },
};
