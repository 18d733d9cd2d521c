// The same work as a Cloudflare Workflow: three `step.do`, defaults throughout.
import { WorkflowEntrypoint } from "cloudflare:workers";

export class Three extends WorkflowEntrypoint {
  async run(event, step) {
    const run = event.payload.r;
    for (let n = 1; n <= 3; n += 1) {
      await step.do(`call ${n}`, async () => {
        const answer = await fetch(this.env.SINK, {
          method: "POST",
          headers: { "content-type": "application/json", "idempotency-key": `${run}-${n}` },
          body: JSON.stringify({ r: run, s: n }),
        });
        return answer.json();
      });
    }
  }
}

export default {
  async fetch(request, env) {
    const { pathname } = new URL(request.url);
    if (pathname === "/runs" && request.method === "POST") {
      const { r } = await request.json();
      await env.FLOW.create({ id: r, params: { r } });
      return Response.json({ id: r }, { status: 202 });
    }
    if (pathname.startsWith("/runs/")) {
      const instance = await env.FLOW.get(pathname.slice(6));
      const { status } = await instance.status();
      return Response.json({ status: status === "complete" ? "completed" : status });
    }
    return new Response("ok");
  },
};
