// The local server as a process: it ends as a whole, starts where it ended, and shares its state with
// nobody.

import assert from "node:assert/strict";
import { mkdtemp, readFile, rm } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { describe, test } from "node:test";
import { assertQuiet, assertRunIsRight, eachOf, stepsOf } from "./support/checks.mjs";
import { clientOf } from "./support/client.mjs";
import { freePort, membersOf, spawnServer, startServer } from "./support/group.mjs";
import { heldTool } from "./support/held.mjs";
import { startWorld, worldOfFile } from "./support/runtime.mjs";
import { startSink } from "./support/sink.mjs";
import { until } from "./support/until.mjs";

/** A state directory, a port and a sink, given up after the test. Whatever was started is killed. */
async function place(t) {
  const stateDir = await mkdtemp(join(tmpdir(), "dormouse-platform-"));
  const [port, sink, servers] = [await freePort(), await startSink(), []];
  t.after(async () => {
    for (const server of servers) await server.signal("SIGKILL");
    await sink.close();
    await rm(stateDir, { recursive: true, force: true });
  });
  return {
    sink,
    port,
    stateDir,
    client: clientOf(`http://127.0.0.1:${port}`, "dev-key"),
    async start() {
      servers.push(await startServer({ port, stateDir }));
      return servers.at(-1);
    },
    spawn(options) {
      servers.push(spawnServer({ port, stateDir, ...options }));
      return servers.at(-1);
    },
  };
}

// Each test has a server of its own, and most of them wait.
describe("the local server", { concurrency: 3 }, () => {
  for (const signal of ["SIGTERM", "SIGKILL"]) {
    test(`20 runs under way survive ${signal} and a new start`, async (t) => {
      const { sink, client, start } = await place(t);
      const server = await start();
      sink.on("/act", { body: { ok: true }, delay: 100 });
      await client.putTool("act", { http: { method: "POST", url: `${sink.url}/act` } });
      const ids = await eachOf(Array(20).fill(0), 10, async () => (await client.startRun({ plan: stepsOf("act", 3) })).run_id);
      await until(() => sink.calls.length >= 15, { what: "the runs are under way", every: 2 });
      await server.signal(signal);
      const reached = sink.calls.length;
      assert.ok(reached < 60, `all ${reached} calls were made before the end`);

      await start();
      for (const runId of ids) {
        await client.untilRun(runId, ["completed", "failed", "cancelled", "blocked"], { within: 60_000 });
        await assertRunIsRight(client, sink, runId);
      }
      t.diagnostic(`${reached} calls before ${signal}, ${sink.calls.length} in all`);
      assert.equal(sink.firsts("/act"), 60);
    });
  }

  test("it prints its queues' settings and where its state is before it is ready", async (t) => {
    const { start, stateDir, port } = await place(t);
    const { output } = await start();
    const queues = output.filter((line) => line.startsWith("queue "));
    for (const name of ["plan", "work", "events", "dead"]) {
      const line = queues.find((text) => text.startsWith(`queue dormouse-${name}:`));
      assert.match(line ?? "", /batch \d+, wait \d+ s, \d+ retries, then (to dormouse-dead|dropped)$/, `${name}: ${queues.join("\n")}`);
    }
    assert.ok(output.some((line) => line.includes(stateDir)), output.join("\n"));
    assert.ok(output.includes(`Dormouse is ready on http://localhost:${port}`));
  });

  test("a second start on the same state is refused, names the first, and does it no harm", async (t) => {
    const { client, start, spawn } = await place(t);
    const first = await start();
    const second = spawn({ port: await freePort() });
    const { code } = await second.exited;
    assert.notEqual(code, 0);
    const said = second.output.join("\n");
    assert.match(said, /in use by another Dormouse/);
    assert.ok(said.includes(String(first.pid)), said);
    assert.match(said, /STATE_DIR/, "it says what to do");
    assert.doesNotMatch(said, /is ready/);
    assert.equal((await client.get("/healthz")).status, 200);
  });

  test("a port that is taken is refused with a clear text", async (t) => {
    const { port, start, spawn } = await place(t);
    await start();
    const stateDir = await mkdtemp(join(tmpdir(), "dormouse-platform-"));
    t.after(() => rm(stateDir, { recursive: true, force: true }));
    const second = spawn({ stateDir });
    const { code } = await second.exited;
    assert.notEqual(code, 0);
    const said = second.output.join("\n");
    assert.match(said, /EADDRINUSE|in use/i);
    assert.ok(said.includes(String(port)), said);
  });

  for (const signal of ["SIGTERM", "SIGINT", "SIGHUP"]) {
    test(`${signal} to the server alone ends its whole group and gives the state back`, async (t) => {
      const { sink, client, start, stateDir } = await place(t);
      const server = await start();
      // A call in flight and a sleeping run hold nothing up.
      sink.on("/act", { hang: true });
      await client.putTool("act", { http: { method: "POST", url: `${sink.url}/act` } });
      await client.startRun({ plan: stepsOf("act", 1) });
      await client.startRun({ plan: { steps: [{ id: "nap", sleep: "P1D" }] } });
      await until(() => sink.calls.length === 1, { what: "the call" });
      assert.ok(membersOf(server.pid).some(({ command }) => command === "workerd"), JSON.stringify(membersOf(server.pid)));

      process.kill(server.pid, signal);
      const { code } = await server.exited;
      assert.equal(code, 0, server.output.join("\n"));
      await until(() => membersOf(server.pid).length === 0, { what: "the group is gone" });
      await assert.rejects(readFile(join(stateDir, "lock")), { code: "ENOENT" });
      assertQuiet(server.output);
    });
  }

  test("when the serving process alone is killed, the next start ends what it left and takes over", async (t) => {
    const { sink, client, start } = await place(t);
    const server = await start();
    await client.putTool("act", { http: { method: "POST", url: `${sink.url}/act` } });
    const { run_id } = await client.startRun({ plan: { steps: [{ id: "nap", sleep: "PT1S" }, ...stepsOf("act", 2).steps] } });
    process.kill(server.pid, "SIGKILL");
    await server.exited;
    const left = membersOf(server.pid);
    t.diagnostic(`left behind: ${JSON.stringify(left)}`);
    await start();
    assert.deepEqual(membersOf(server.pid), [], "what was left behind is gone");
    await client.untilRun(run_id);
    await assertRunIsRight(client, sink, run_id);
  });

  test("a sleep that ended while the server was down goes on after its start, without any request", async (t) => {
    const { sink, client, start } = await place(t);
    const server = await start();
    sink.on("/woken", { body: { ok: true } });
    await client.putTool("woken", { http: { method: "POST", url: `${sink.url}/woken` } });
    const started = await Promise.all(
      [1, 2, 3].map(() => client.startRun({ plan: { steps: [{ id: "nap", sleep: "PT2S" }, { id: "act", tool: "woken", arguments: {} }] } })),
    );
    const far = await client.startRun({ plan: { steps: [{ id: "nap", sleep: "P1D" }, { id: "act", tool: "woken", arguments: {} }] } });
    await server.signal("SIGKILL");
    const due = Math.max(...started.map(({ created_at }) => Date.parse(created_at))) + 2_000;
    await until(() => Date.now() > due + 100, { what: "the sleep is overdue" });
    assert.equal(sink.calls.length, 0, "nothing was called before");

    await start();
    // Nobody asks: the tool is called all the same.
    await until(() => new Set(sink.calls.map(({ key }) => key)).size === 3, { what: "three overdue sleepers act" });
    for (const { run_id } of started) {
      await client.untilRun(run_id);
      await assertRunIsRight(client, sink, run_id, { once: true });
    }
    assert.equal((await client.run(far.run_id)).status, "waiting");
  });

  test("many overdue sleepers and a restart in the middle of their waking", async (t) => {
    const world = await startWorld();
    t.after(() => world.close());
    const { sink } = world;
    sink.on("/woken", { body: { ok: true }, delay: 20 });
    await world.dev.putTool("woken", { http: { method: "POST", url: `${sink.url}/woken` } });
    const plan = { steps: [{ id: "nap", sleep: "PT1S" }, ...stepsOf("woken", 2).steps] };
    const ids = await eachOf(Array(60).fill(0), 20, async () => (await world.dev.startRun({ plan })).run_id);
    await until(() => sink.calls.length > 0, { what: "the first wakes", every: 2 });
    await world.restart();
    await until(() => sink.calls.length > 60, { what: "half of them acted", every: 2 });
    await world.restart();
    for (const runId of ids) {
      await world.dev.untilRun(runId, ["completed", "failed", "blocked"], { within: 60_000 });
      await assertRunIsRight(world.dev, sink, runId);
    }
    assert.equal(sink.firsts("/woken"), 120);
    assertQuiet(world.lines);
  });

  describe("slow tools", () => {
    const world = worldOfFile();

    test("thirty calls that are held do not hold up the run behind them", async () => {
      const { dev, sink } = world;
      const tool = await heldTool(world);
      const held = await Promise.all(Array.from({ length: 30 }, () => dev.startRun({ plan: stepsOf(tool.name, 1) })));
      await tool.called(30);
      await dev.putTool("quick", { http: { method: "POST", url: `${sink.url}/quick` } });
      const quick = await dev.runToEnd({ plan: stepsOf("quick", 3) });
      await assertRunIsRight(dev, sink, quick.run_id, { once: true });
      assert.equal(tool.calls().length, 30);
      assert.ok((await Promise.all(held.map(({ run_id }) => dev.run(run_id)))).every(({ status }) => status === "running"));
      tool.releaseAll();
      for (const { run_id } of held) {
        await dev.untilRun(run_id, "completed");
        await assertRunIsRight(dev, sink, run_id, { once: true });
      }
      assertQuiet(world.lines);
    });
  });
});
