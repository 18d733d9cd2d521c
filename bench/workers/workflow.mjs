// The same work as a Cloudflare Workflow: three `step.do` (or two around a `waitForEvent`), defaults throughout.
import { WorkflowEntrypoint } from "cloudflare:workers";

export class Three extends WorkflowEntrypoint {
  async run(event, step) {
    const { r: run, wait } = event.payload;
    const call = (n) =>
      step.do(`call ${n}`, async () => {
        const answer = await fetch(this.env.SINK, {
          method: "POST",
          headers: { "content-type": "application/json", "idempotency-key": `${run}-${n}` },
          body: JSON.stringify({ r: run, s: n }),
        });
        return answer.json();
      });
    await call(1);
    if (wait) await step.waitForEvent("wait", { type: "go", timeout: "7 days" });
    else await call(2);
    await call(3);
  }
}

export default {
  async fetch(request, env) {
    const { pathname } = new URL(request.url);
    if (pathname === "/runs" && request.method === "POST") {
      const { r, wait } = await request.json();
      await env.FLOW.create({ id: r, params: { r, wait } });
      return Response.json({ id: r }, { status: 202 });
    }
    if (pathname.endsWith("/go")) {
      const instance = await env.FLOW.get(pathname.split("/")[2]);
      await instance.sendEvent({ type: "go", payload: {} });
      return new Response(null, { status: 202 });
    }
    if (pathname.startsWith("/runs/")) {
      const instance = await env.FLOW.get(pathname.slice(6));
      const { status } = await instance.status();
      return Response.json({ status: status === "complete" ? "completed" : status });
    }
    return new Response("ok");
  },
};
