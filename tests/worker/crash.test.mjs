// The whole server killed, again and again: nothing is lost, nothing is done twice.

import assert from "node:assert/strict";
import { after, before, describe, test } from "node:test";
import { assertQuiet, assertRunIsRight, assertWholeLog, countOf, eachOf, stepsOf } from "./support/checks.mjs";
import { lives } from "./support/lives.mjs";
import { randomOf } from "./support/random.mjs";
import { until } from "./support/until.mjs";

const pause = (ms) => new Promise((done) => setTimeout(done, ms));

/** As a careful client does it: the same request with the same key, until there is an answer. */
async function startSurely(client, body, idempotencyKey) {
  return until(
    async () => {
      const answer = await client.post("/v1/runs", body, { idempotencyKey });
      if (answer.status >= 500) return false;
      assert.equal(answer.status, 202, answer.text);
      return answer.json;
    },
    { what: `a run for ${idempotencyKey}`, within: 60_000, every: 100 },
  );
}

describe("the process group is killed", () => {
  let world;
  before(async () => {
    world = await lives();
  });
  after(() => world?.end());

  test("200 runs survive five kills at random moments", async (t) => {
    const { sink, client } = world;
    const RUNS = 200;
    const KILLS = 5;
    const random = randomOf(t);
    sink.on("/act", () => ({ body: { done: true }, delay: random.below(20) }));
    await client.putTool("act", { http: { method: "POST", url: `${sink.url}/act` }, effect: "idempotent" });

    let ended = 0;
    const runs = eachOf(Array.from({ length: RUNS }), 32, async (_, i) => {
      const { run_id } = await startSurely(client, { plan: stepsOf("act", 3), input: { i } }, `crash-${i}`);
      const run = await client.untilRun(run_id, ["completed", "failed", "cancelled", "blocked"], { within: 90_000, every: 100 });
      ended += 1;
      return run;
    });
    // Each kill falls somewhere into its own part of the work, so that none comes after the end.
    const kills = (async () => {
      for (let kill = 0; kill < KILLS; kill += 1) {
        const at = Math.floor(((kill + random.next() * 0.9) * RUNS * 3) / (KILLS + 0.5)) + 5;
        await until(() => sink.firsts("/act") >= at, { what: `${at} effects`, within: 60_000, every: 1 });
        await pause(random.below(40));
        await world.kill();
        t.diagnostic(`killed at ${sink.firsts("/act")} effects, ${ended} runs ended`);
        await world.start();
      }
    })();
    const [all] = await Promise.all([runs, kills]);

    assert.equal(new Set(all.map((run) => run.run_id)).size, RUNS, "each client key has a run of its own");
    assert.equal(sink.firsts("/act"), RUNS * 3, "effects");
    await eachOf(all, 16, ({ run_id }) => assertRunIsRight(client, sink, run_id));
    const letters = await client.ok("GET", "/v1/dead-letters?status=open");
    assert.deepEqual(letters.items, []);
    const replayed = await client.post("/v1/runs", { plan: stepsOf("act", 3), input: { i: 0 } }, { idempotencyKey: "crash-0" });
    assert.deepEqual([replayed.status, replayed.replayed, replayed.json.run_id], [202, "true", all[0].run_id]);
    t.diagnostic(`${sink.calls.length} calls for ${RUNS * 3} effects`);
  });

  test("a call that must not be made twice is never repeated when its worker is killed", async () => {
    const { sink, client } = world;
    const once = (name, extra) =>
      client.putTool(name, { http: { method: "POST", url: `${sink.url}/${name}` }, effect: "at_most_once", timeout: "PT1S", ...extra });
    const verify = (name) => ({ verify: { http: { method: "GET", url: `${sink.url}/${name}-verify` } } });
    await once("once");
    await once("done", verify("done"));
    await once("undone", verify("undone"));
    await once("unsure", verify("unsure"));
    // A call in flight when the server dies; one that comes after is answered.
    for (const name of ["once", "done", "undone", "unsure"]) sink.on(`/${name}`, [{ hang: true }, { body: { second: name } }]);
    sink.on("/done-verify", { body: { found: true } });
    sink.on("/undone-verify", { status: 404 });
    sink.on("/unsure-verify", { status: 409 });

    const ids = {};
    for (const name of ["once", "done", "undone", "unsure"]) {
      ids[name] = (await client.startRun({ plan: { steps: [{ id: "act", tool: name, arguments: { name } }] } })).run_id;
    }
    await until(() => Object.keys(ids).every((name) => sink.to(`/${name}`).length === 1), { what: "four calls in flight" });
    await world.kill();
    await world.start();

    const [blocked, done, undone, unsure] = await Promise.all([
      client.untilRun(ids.once, "blocked", { within: 30_000 }),
      client.untilRun(ids.done, "completed", { within: 30_000 }),
      client.untilRun(ids.undone, "completed", { within: 30_000 }),
      client.untilRun(ids.unsure, "blocked", { within: 30_000 }),
    ]);

    assert.equal(blocked.steps[0].status, "dead_lettered");
    const [letter] = await client.deadLetters(ids.once);
    assert.deepEqual([letter.reason, letter.status, letter.step_index], ["outcome_unknown", "open", 0]);
    assert.deepEqual(letter.envelope.payload, { tool: "once", arguments: { name: "once" } });
    assert.equal(sink.to("/once").length, 1);

    assert.deepEqual(done.output, { found: true });
    assert.equal(sink.to("/done").length, 1);
    assert.deepEqual(new Set(sink.to("/done-verify").map(({ key }) => key)), new Set([done.steps[0].idempotency_key]));

    assert.deepEqual(undone.output, { second: "undone" });
    assert.ok(sink.to("/undone-verify").length >= 1);
    assert.deepEqual(sink.to("/undone").map(({ key }) => key), Array(2).fill(undone.steps[0].idempotency_key));

    assert.equal((await client.deadLetters(ids.unsure))[0].reason, "outcome_unknown");
    assert.equal(sink.to("/unsure").length, 1);
    assert.equal(unsure.steps[0].attempts, 1);

    // A person says what became of it, and the run goes on.
    await client.ok("POST", `/v1/dead-letters/${letter.dead_letter_id}/resolve`, { body: { result: { settled: "by hand" } } });
    const resolved = await client.untilRun(ids.once);
    assert.deepEqual([resolved.status, resolved.output], ["completed", { settled: "by hand" }]);
    assert.equal(sink.to("/once").length, 1);
    for (const runId of Object.values(ids)) {
      const log = await client.log(runId);
      assertWholeLog(log);
      assert.equal(countOf(log, "tool.outcome_unknown"), 1, runId);
    }
  });

  test("killed after the tool acted and before that was recorded: the retry bears the same key", async () => {
    const { sink, client } = world;
    sink.on("/acted", [{ hang: true }, { body: { replayed: true } }]);
    await client.putTool("acted", { http: { method: "POST", url: `${sink.url}/acted` }, effect: "idempotent" });
    const { run_id } = await client.startRun({ plan: stepsOf("acted", 1) });
    await until(() => sink.to("/acted").length === 1, { what: "the call" });
    await world.kill();
    await world.start();
    const run = await client.untilRun(run_id, ["completed", "blocked"]);
    await assertRunIsRight(client, sink, run_id);
    assert.equal(run.steps[0].attempts, 1, "a lost worker is not an attempt of the tool");
    assert.equal(sink.to("/acted").length, 2);
  });

  test("no line of any of these servers tells of hung or dead code", async () => {
    await world.kill();
    assertQuiet(world.output);
    await world.start();
  });
});
