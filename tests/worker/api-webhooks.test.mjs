// Real payloads as inputs of runs: each comes back character for character in the tool's request, in
// the log and in the run.

import assert from "node:assert/strict";
import { createRequire } from "node:module";
import test from "node:test";
import { logTexts, verifyTexts } from "./support/log.mjs";
import { rawAt, readJson } from "./support/json.mjs";
import { until } from "./support/until.mjs";
import { worldOfFile } from "./support/runtime.mjs";

const world = worldOfFile();
const webhooks = createRequire(import.meta.url)("@octokit/webhooks-examples");
const AT_ONCE = 8;

const examples = webhooks.flatMap(({ name, examples: list }) => list.map((payload, n) => ({ name: `${name} ${n}`, text: JSON.stringify(payload) })));

test("the webhooks of GitHub come back exactly", async () => {
  assert.equal(examples.length, 329, "the pinned version holds so many examples");
  await world.dev.putTool("hook", { description: "takes a webhook", http: { url: `${world.sink.url}/hook` } });
  const plan = '{"steps":[{"id":"a","tool":"hook","arguments":"{{ input }}"}]}';
  const left = [...examples];
  const worker = async () => {
    for (let example = left.pop(); example; example = left.pop()) {
      const { name, text } = example;
      const started = await world.dev.post("/v1/runs", `{"plan":${plan},"input":${text}}`);
      assert.equal(started.status, 202, `${name}: ${started.text.slice(0, 300)}`);
      const { run_id } = started.json;
      assert.equal(rawAt(started.text, "input"), text, `${name}: the answer`);
      // Waits at the tool first: that asks nothing of the Worker.
      await until(() => world.sink.calls.some(({ headers }) => headers["dormouse-run-id"] === run_id), { what: `${name} reaches the tool` });
      await world.dev.untilRun(run_id, "completed", { every: 100 });
      const calls = world.sink.calls.filter(({ headers }) => headers["dormouse-run-id"] === run_id);
      assert.deepEqual(calls.map((call) => call.text === text), [true], `${name}: the tool's body`);
      assert.equal(rawAt((await world.dev.get(`/v1/runs/${run_id}`)).text, "input"), text, `${name}: the run`);
      const log = await logTexts(world.dev, run_id);
      const entry = (type) => log.find((line) => nodeType(line) === type);
      assert.equal(rawAt(entry("run.created"), "payload", "input"), text, `${name}: the log's input`);
      assert.equal(rawAt(entry("tool.requested"), "payload", "arguments"), text, `${name}: the log's arguments`);
      await verifyTexts(world.dev, run_id, log);
    }
  };
  await Promise.all(Array.from({ length: AT_ONCE }, worker));
  assert.equal(world.sink.to("/hook").length, examples.length);
});

/** The type of an entry, from its text. */
function nodeType(line) {
  return readJson(line).members.find(([name]) => name === "event_type")[1].value;
}
