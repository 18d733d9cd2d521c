// What a round of a model costs beyond the provider's own time: latency, platform operations, bytes of log. And a run of
// very many rounds. It prints a table and asserts nothing.
//
// Usage: npm run bench:rounds -- [--runs N] [--rounds N] [--dir DIR]

import { createServer } from "node:http";
import { mkdtempSync, rmSync } from "node:fs";
import os from "node:os";
import path from "node:path";
import { fileURLToPath } from "node:url";
import { parseArgs } from "node:util";
import { System, freePort, killAll, request } from "./lib/system.mjs";

const { values: given } = parseArgs({
  options: {
    runs: { type: "string", default: "60" },
    rounds: { type: "string", default: "300" },
    dir: { type: "string", default: os.tmpdir() },
  },
});
/** Rounds with a call of a tool in each of the short runs; one more gives the answer. */
const SHORT_ROUNDS = 4;

/** A provider and a tool that answer at once, and note when. A request says by its own messages which round it is. */
class Provider {
  /** For each run: the times at which something arrived and was answered. */
  seen = new Map();
  requestBytes = [];
  server = createServer((incoming, answer) => this.#take(incoming, answer));

  async listen() {
    await new Promise((done) => this.server.listen(0, "127.0.0.1", done));
    this.url = `http://127.0.0.1:${this.server.address().port}`;
  }

  async #take(incoming, answer) {
    const arrived = performance.now();
    const parts = [];
    for await (const part of incoming) parts.push(part);
    const text = Buffer.concat(parts).toString();
    const send = (body) => answer.writeHead(200, { "content-type": "application/json" }).end(JSON.stringify(body));
    if (incoming.url === "/tool") {
      const { run } = JSON.parse(text);
      this.#note(run, "tool", arrived);
      return send({ ok: true, note: "x".repeat(200) });
    }
    const { messages } = JSON.parse(text);
    const { run, rounds } = JSON.parse(/\{.*?\}/.exec(messages.findLast(({ role }) => role === "user").content)[0]);
    const sumsUp = messages.at(-1).content.includes("Sum up the rounds");
    const log = this.seen.get(run);
    const done = log?.filter(({ what }) => what === "tool").length ?? 0;
    this.#note(run, sumsUp ? "summary" : "model", arrived);
    this.requestBytes.push(text.length);
    const call = { id: `c${done}`, type: "function", function: { name: "look", arguments: JSON.stringify({ run, n: done }) } };
    const more = !sumsUp && done < rounds;
    const message = more ? { role: "assistant", content: null, tool_calls: [call] } : { role: "assistant", content: "That is all." };
    send({
      object: "chat.completion",
      model: "m",
      choices: [{ index: 0, message, finish_reason: more ? "tool_calls" : "stop" }],
      usage: { prompt_tokens: Math.ceil(text.length / 4), completion_tokens: 20 },
    });
  }

  #note(run, what, at) {
    if (!this.seen.has(run)) this.seen.set(run, []);
    this.seen.get(run).push({ what, at });
  }
}

const provider = new Provider();
await provider.listen();
const stateDir = mkdtempSync(path.join(given.dir, "dormouse-rounds-"));
const product = fileURLToPath(new URL("..", import.meta.url));
const system = new System({ name: "dormouse", stateDir, port: await freePort(), sink: provider.url, product, build: "local" });

async function ask(method, target, body, headers = {}) {
  const { status, text } = await request(system.agent, method, system.base + target, body, { authorization: "Bearer dev-key", ...headers }, 120_000);
  if (status >= 300) throw new Error(`${method} ${target} answered ${status}: ${text.slice(0, 500)}`);
  return text === "" ? undefined : JSON.parse(text);
}

const rows = [];
const tell = (what, figure) => rows.push([what, figure]);
const at = (values, share) => values.toSorted((a, b) => a - b)[Math.min(values.length - 1, Math.floor(values.length * share))];
const ms = (value) => `${value.toFixed(1)} ms`;

async function ended(run_id) {
  for (;;) {
    const run = await ask("GET", `/v1/runs/${run_id}`);
    if (run.ended_at !== null || run.status === "blocked" || run.waiting_for.some(({ kind }) => kind === "limit")) return run;
    await new Promise((done) => setTimeout(done, 100));
  }
}

/** Times from one arrival to the next: from the model's answer to the tool, and from the tool's to the model again. */
function gaps(log) {
  const toTool = [];
  const toModel = [];
  for (let index = 1; index < log.length; index += 1) {
    (log[index].what === "tool" ? toTool : toModel).push(log[index].at - log[index - 1].at);
  }
  return { toTool, toModel };
}

try {
  await system.start();
  await ask("PUT", "/v1/tools/look", {
    parameters: { type: "object", required: ["run", "n"], properties: { run: { type: "string" }, n: { type: "integer" } } },
    http: { url: `${provider.url}/tool` },
  });
  const agent = (context_tokens) => ({
    tools: ["look"],
    planner: { kind: "model", system: "You look.", models: [{ provider: "openai", name: "m", base_url: provider.url, context_tokens }] },
    limits: { max_steps: 10_000 },
  });
  await ask("PUT", "/v1/agents/looker", agent(1_000_000));
  await ask("PUT", "/v1/agents/forgetful", agent(4_000));

  const start = (name, run, rounds) => ask("POST", "/v1/runs", { agent: name, input: { run, rounds } });
  // Warm up, then one run after another.
  await ended((await start("looker", "warm", SHORT_ROUNDS)).run_id);
  const toTool = [];
  const toModel = [];
  let last;
  for (let number = 0; number < Number(given.runs); number += 1) {
    const { run_id } = await start("looker", `short-${number}`, SHORT_ROUNDS);
    last = await ended(run_id);
    const found = gaps(provider.seen.get(`short-${number}`));
    toTool.push(...found.toTool);
    toModel.push(...found.toModel);
  }
  tell("from the model's answer to its tool, p50 and p99", `${ms(at(toTool, 0.5))}, ${ms(at(toTool, 0.99))}`);
  tell("from the tool's answer to the model, p50 and p99", `${ms(at(toModel, 0.5))}, ${ms(at(toModel, 0.99))}`);
  const both = toTool.map((time, index) => time + (toModel[index] ?? 0));
  tell("a round with one call, beyond provider and tool, p50 and p99", `${ms(at(both, 0.5))}, ${ms(at(both, 0.99))}`);

  const internals = await ask("GET", `/dev/runs/${last.run_id}/internals`);
  tell(`operations of a run of ${SHORT_ROUNDS} such rounds and an answer`, JSON.stringify(internals.operations ?? internals.counts ?? internals));

  const many = Number(given.rounds);
  for (const [name, what] of [
    ["looker", `a run of ${many} rounds, nothing summed up`],
    ["forgetful", `the same with a window of 4,000 tokens`],
  ]) {
    provider.requestBytes = [];
    const began = performance.now();
    const { run_id } = await start(name, name, many);
    const run = await ended(run_id);
    const took = performance.now() - began;
    const found = gaps(provider.seen.get(name));
    const summaries = provider.seen.get(name).filter(({ what: kind }) => kind === "summary").length;
    const early = found.toModel.slice(0, 20);
    const late = found.toModel.slice(-20);
    let bytes = 0;
    let entries = 0;
    for (let cursor = ""; cursor !== null; ) {
      const page = await ask("GET", `/v1/runs/${run_id}/events?limit=200${cursor && `&cursor=${cursor}`}`);
      entries += page.items.length;
      bytes += JSON.stringify(page.items).length;
      cursor = page.next_cursor;
    }
    tell(what, `${run.status} in ${(took / 1000).toFixed(1)} s, ${summaries} summaries, ${run.usage.model_calls} model calls, ${run.usage.input_tokens} tokens in`);
    tell("  from a tool's answer to the model, the first and the last 20 (p50)", `${ms(at(early, 0.5))}, ${ms(at(late, 0.5))}`);
    tell("  largest request", `${Math.max(...provider.requestBytes)} bytes`);
    tell("  log, as it is shown", `${entries} entries, ${(bytes / many).toFixed(0)} bytes a round`);
  }
} finally {
  const width = Math.max(0, ...rows.map(([what]) => what.length));
  for (const [what, figure] of rows) console.log(`${what.padEnd(width)}  ${figure}`);
  await killAll();
  provider.server.closeAllConnections();
  provider.server.close();
  rmSync(stateDir, { recursive: true, force: true });
}
