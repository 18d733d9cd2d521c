// A run's log as a live stream: what clients see of it, when it ends, and what is left when they go.

import assert from "node:assert/strict";
import http from "node:http";
import { mkdtemp, rm } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import test from "node:test";
import { assertQuiet, stepsOf } from "./support/checks.mjs";
import { clientOf } from "./support/client.mjs";
import { freePort, startServer } from "./support/group.mjs";
import { heldTool } from "./support/held.mjs";
import { logTexts } from "./support/log.mjs";
import { startWorld, unique, worldOfFile } from "./support/runtime.mjs";
import { seamsOf } from "./support/seams.mjs";
import { startSink } from "./support/sink.mjs";
import { followToEnd, openStream, watch } from "./support/stream.mjs";
import { until } from "./support/until.mjs";

const world = worldOfFile();
const NAP = { plan: { steps: [{ id: "nap", sleep: "P1D" }] } };

/** Fails unless the frames are the run's log from entry `from` on, text for text. */
async function assertIsLog(client, runId, frames, from = 1) {
  const texts = await logTexts(client, runId);
  assert.deepEqual(frames.map(({ data }) => data), texts.slice(from - 1));
  for (const [place, frame] of frames.entries()) {
    const entry = JSON.parse(frame.data);
    assert.equal(frame.id, String(from + place));
    assert.equal(frame.id, String(entry.seq));
    assert.equal(frame.type ?? frame.event, entry.event_type);
  }
}

/** How many calls the run's object got so far, less those that asked for it. */
function callCounter(client, runId) {
  const seams = seamsOf(client);
  let own = 0;
  return async () => {
    own += 1;
    return (await seams.internals(runId)).operations.calls - own;
  };
}

/** Waits until nobody asks the run's object any more. */
async function untilNobodyAsks(client, runId) {
  const calls = callCounter(client, runId);
  let [last, quiet] = [-1, 0];
  await until(
    async () => {
      const now = await calls();
      quiet = now === last ? quiet + 1 : 0;
      last = now;
      return quiet >= 12;
    },
    { what: `nobody asks ${runId}`, every: 250 },
  );
}

test("an EventSource sees each entry as it comes, and stops for good when the run has ended", async () => {
  const held = await heldTool(world);
  const { run_id } = await world.dev.startRun({ plan: stepsOf(held.name, 3) });
  const source = watch(world.dev, run_id);
  for (let step = 0; step < 3; step += 1) {
    await held.holds(step);
    await until(() => source.has("tool.requested", step + 1) && source.has("tool.completed", step), { what: `step ${step} is seen`, every: 5 });
    assert.ok(!source.has("run.completed"));
    held.release();
  }
  await until(() => source.has("run.completed"), { what: "the end is seen", every: 5 });
  await until(() => source.isOver, { what: "the source gives up" });
  assert.equal(source.opened, 1);
  await assertIsLog(world.dev, run_id, source.seen);
});

test("a stream that begins later, or is taken up again, goes on where it was left", async () => {
  const held = await heldTool(world);
  const { run_id } = await world.dev.startRun({ plan: stepsOf(held.name, 2) });
  await held.holds(0);
  const first = await openStream(world.dev, run_id);
  const seen = await first.frames(2);
  first.leave();
  held.release();
  await held.holds(1);
  // The address is that of the first request still: the header says what came since.
  const second = await openStream(world.dev, run_id, { query: "?after=0", lastEventId: seen.at(-1).id });
  seen.push(...(await second.frames(3)));
  second.leave();
  const third = await openStream(world.dev, run_id, { query: `?after=${seen.at(-1).id}` });
  held.releaseAll();
  seen.push(...(await third.frames()));
  await assertIsLog(world.dev, run_id, seen);
});

test("two readers see the same, each at its own place", async () => {
  const held = await heldTool(world);
  const { run_id } = await world.dev.startRun({ plan: stepsOf(held.name, 2) });
  const [all, part] = [await openStream(world.dev, run_id), await openStream(world.dev, run_id, { query: "?after=1" })];
  held.releaseAll();
  const [whole, rest] = await Promise.all([all.frames(), part.frames()]);
  await assertIsLog(world.dev, run_id, whole);
  assert.deepEqual(rest, whole.slice(1));
});

test("an ended run's stream is its log, and after its last entry there is none", async () => {
  const { run_id } = await world.dev.runToEnd({ plan: { steps: [{ id: "a", emit: { type: "x", data: "line\nbreak" } }] } });
  const stream = await openStream(world.dev, run_id);
  assert.equal(stream.status, 200);
  assert.equal(stream.headers.get("content-type"), "text/event-stream; charset=utf-8");
  assert.equal(stream.headers.get("cache-control"), "no-store");
  assert.match(stream.headers.get("traceparent"), /^00-/);
  const frames = await stream.frames();
  await assertIsLog(world.dev, run_id, frames);
  const done = await openStream(world.dev, run_id, { lastEventId: frames.length });
  assert.equal(done.status, 204);
  const source = watch(world.dev, run_id, `?after=${frames.length}`);
  await until(() => source.isOver, { what: "the source gives up" });
  assert.deepEqual([source.opened, source.seen], [0, []]);
});

test("who may not see a stream, or asks for none that there is, is told before it begins", async () => {
  const { run_id } = await world.dev.startRun(NAP);
  const other = await world.tenant(unique("stream-other"), "reader");
  const headers = { accept: "text/event-stream" };
  const path = `/v1/runs/${run_id}/events`;
  for (const [client, target, more, status] of [
    [world.anonymous, path, {}, 401],
    [other, path, {}, 404],
    [world.dev, "/v1/runs/run_x/events", {}, 404],
    [world.dev, path, { "last-event-id": "x" }, 400],
    [world.dev, `${path}?order=desc`, {}, 400],
    [world.dev, `${path}?limit=1`, {}, 400],
  ]) {
    const answer = await client.get(target, { headers: { ...headers, ...more } });
    assert.equal(answer.status, status, target);
    assert.equal(answer.headers.get("content-type"), "application/problem+json; charset=utf-8");
  }
  const head = await world.dev.call("HEAD", path, { headers });
  assert.deepEqual([head.status, head.text], [200, ""]);
  await untilNobodyAsks(world.dev, run_id);
});

test("a run that rests is told of by comments, and by what ends its rest", async () => {
  const { run_id } = await world.dev.startRun(NAP);
  await world.dev.untilRun(run_id, "waiting");
  const stream = await openStream(world.dev, run_id);
  await until(async () => (await stream.next()).comment === ":", { what: "a comment", every: 0 });
  // The object may go meanwhile: the stream does not live in it.
  await seamsOf(world.dev).evict(run_id);
  await until(async () => (await stream.next()).comment === ":", { what: "a comment", every: 0 });
  await world.dev.ok("POST", `/v1/runs/${run_id}/cancel`);
  assert.equal((await stream.frames()).at(-1).event, "run.cancelled");
});

test("when the client goes away nobody asks any more", async () => {
  const { run_id } = await world.dev.startRun(NAP);
  await world.dev.untilRun(run_id, "waiting");
  const streams = await Promise.all(Array.from({ length: 10 }, () => openStream(world.dev, run_id)));
  await Promise.all(streams.map((stream) => stream.next()));
  for (const stream of streams) stream.leave();
  await untilNobodyAsks(world.dev, run_id);
  // Gone before the answer, or a moment after.
  await Promise.all(
    Array.from({ length: 100 }, async (_, i) => {
      const signal = AbortSignal.timeout(i % 20);
      const headers = { accept: "text/event-stream", authorization: `Bearer ${world.dev.key}` };
      const read = async () => (await fetch(`${world.url}/v1/runs/${run_id}/events`, { signal, headers })).text();
      await assert.rejects(read, /abort|timeout/i);
    }),
  );
  await untilNobodyAsks(world.dev, run_id);
  assertQuiet(world.lines);
});

test("a client that does not read is not read for", async (t) => {
  const [count, size] = [120, 200_000];
  const tool = unique("large");
  await world.dev.putTool(tool, { http: { url: `${world.sink.url}/large` } });
  const agent = unique("large");
  await world.dev.putAgent(agent, { tools: [tool], planner: { kind: "external" }, limits: { max_steps: count } });
  const { run_id } = await world.dev.startRun({ agent });
  for (let step = 0; step < count; step += 4) {
    const four = [0, 1, 2, 3].map((more) => ({
      event_type: "tool.requested",
      run_id,
      step_index: step + more,
      payload: { tool, arguments: { text: "x".repeat(size) } },
    }));
    await world.dev.ok("POST", "/v1/envelopes", { body: four });
  }
  await until(async () => (await world.dev.log(run_id)).filter(({ event_type }) => event_type === "tool.completed").length === count, {
    what: "all steps are over",
    every: 500,
  });
  await world.dev.ok("POST", `/v1/runs/${run_id}/cancel`);
  const pages = Math.ceil((count * size) / 1_048_576);
  const calls = callCounter(world.dev, run_id);
  const before = await calls();
  const response = await new Promise((done, fail) => {
    const headers = { accept: "text/event-stream", authorization: `Bearer ${world.dev.key}` };
    http.get(`${world.url}/v1/runs/${run_id}/events`, { headers }, done).on("error", fail);
  });
  // What the sockets between hold is sent, and no more.
  await untilNobodyAsks(world.dev, run_id);
  const looks = (await calls()) - before - 13;
  assert.ok(looks < pages - 3, `${looks} of ${pages} pages were read for nobody`);
  let text = "";
  for await (const piece of response.setEncoding("utf8")) text += piece;
  t.diagnostic(`${looks} of ${pages} pages were read before the client read`);
  assert.equal(text.match(/^id: /gm).length, (await world.dev.log(run_id)).length);
});

test("a stream breaks with the instance that it hangs on, and is taken up by the next", async (t) => {
  const faulty = await startWorld();
  t.after(async () => {
    await faulty.close();
    assertQuiet(faulty.lines);
  });
  const { dev } = faulty;
  const { run_id } = await dev.startRun(NAP);
  await dev.untilRun(run_id, "waiting");
  const stream = await openStream(dev, run_id);
  const seen = await stream.frames(1);
  await seamsOf(dev).arm("front.after_commit", "overflow");
  await dev.post("/v1/runs", NAP);
  await assert.rejects(async () => {
    seen.push(...(await stream.frames()));
  });
  await dev.ok("POST", `/v1/runs/${run_id}/cancel`);
  const again = await openStream(dev, run_id, { lastEventId: seen.at(-1).id });
  seen.push(...(await again.frames()));
  await assertIsLog(dev, run_id, seen);
});

test("a reader outlives the server that it reads from", async (t) => {
  const [sink, port, stateDir] = [await startSink(), await freePort(), await mkdtemp(join(tmpdir(), "dormouse-stream-"))];
  let server = await startServer({ port, stateDir });
  const output = [];
  t.after(async () => {
    await server.signal("SIGTERM");
    output.push(...server.output);
    await sink.close();
    await rm(stateDir, { recursive: true, force: true });
    assertQuiet(output);
  });
  const client = clientOf(server.url, "dev-key");
  sink.on("/act", () => ({ body: {}, delay: 20 }));
  await client.putTool("act", { http: { url: `${sink.url}/act` } });
  const { run_id } = await client.startRun({ plan: stepsOf("act", 40) });
  let completed = 0;
  const followed = followToEnd(server.url, "dev-key", run_id, ({ event }) => (completed += event === "tool.completed" ? 1 : 0));
  for (const after of [5, 20]) {
    await until(() => completed >= after, { what: `${after} steps are seen`, every: 5 });
    await server.signal("SIGKILL");
    output.push(...server.output);
    server = await startServer({ port, stateDir });
  }
  const frames = await followed;
  assert.equal(frames.at(-1).event, "run.completed");
  await assertIsLog(client, run_id, frames);
});
