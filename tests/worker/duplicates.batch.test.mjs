// One bad message in a batch is its own matter.

import assert from "node:assert/strict";
import { describe, test } from "node:test";
import { assertQuiet, assertRunIsRight, stepsOf } from "./support/checks.mjs";
import { deliver, messageOf, send } from "./support/deliver.mjs";
import { heldTool } from "./support/held.mjs";
import { unique, worldOfFile } from "./support/runtime.mjs";
import { seamsOf } from "./support/seams.mjs";
import { until } from "./support/until.mjs";

const GOOD = 9;
const PLACE_OF_BAD = 7;

/** Nine runs of one step whose messages nobody has delivered, and those messages. */
async function nineUndelivered(world) {
  const { dev } = world;
  const seams = seamsOf(dev);
  const tool = await heldTool(world);
  await seams.arm("outbox.before_send", "error", { times: GOOD });
  const runs = await Promise.all(Array.from({ length: GOOD }, () => dev.startRun({ plan: stepsOf(tool.name, 1) })));
  assert.equal((await seams.armed())["outbox.before_send"].times, 0, "no message was sent");
  await seams.disarm();
  const messages = await Promise.all(runs.map(async ({ run_id }) => messageOf(await dev.log(run_id), 0)));
  tool.releaseAll();
  return { tool, runs, messages };
}

/** The messages with the bad one as the eighth. */
const withBad = (messages, bad) => messages.toSpliced(PLACE_OF_BAD, 0, bad);

const letterIds = async (client) =>
  (await client.ok("GET", "/v1/dead-letters?limit=200")).items.map(({ dead_letter_id }) => dead_letter_id);

/** What `work` adds to the dead letters of a client. */
async function lettersAddedBy(client, work) {
  const before = new Set(await letterIds(client));
  await work();
  return until(
    async () => {
      const fresh = (await letterIds(client)).filter((id) => !before.has(id));
      return fresh.length > 0 && Promise.all(fresh.map((id) => client.ok("GET", `/v1/dead-letters/${id}`)));
    },
    { what: "a dead letter" },
  );
}

/** Edits the envelope of a message. */
const edited = (message, edit) => {
  const value = JSON.parse(message);
  edit(value.envelope);
  return JSON.stringify(value);
};

/** Every bad message: how it is made of a good one, whose letter it becomes, and what is kept. */
const BAD = {
  "is not JSON": { body: () => "not json {", keeps: (letter) => assert.equal(letter.envelope, "not json {") },
  "is empty": { body: () => "", keeps: (letter) => assert.equal(letter.envelope, "") },
  "is JSON of another shape": {
    body: () => '{"order":9007199254740993,"items":[1]}',
    keeps: (letter, raw) => assert.ok(raw.includes("9007199254740993"), raw),
  },
  "breaks its schema in two places": {
    tenant: "dev",
    body: (good) => edited(good, (envelope) => Object.assign(envelope, { step_index: "three", timestamp: 5 })),
    keeps(letter) {
      assert.deepEqual([letter.envelope.step_index, letter.envelope.timestamp], ["three", 5]);
      const pointers = letter.errors.map(({ pointer }) => pointer).sort();
      assert.deepEqual(pointers, ["/envelope/step_index", "/envelope/timestamp"]);
    },
  },
  "has a key that is not of its payload": {
    tenant: "dev",
    body: (good) => edited(good, (envelope) => Object.assign(envelope, { idempotency_key: "0".repeat(64) })),
    keeps: (letter) => assert.ok(letter.errors.some(({ pointer }) => pointer.endsWith("/idempotency_key")), JSON.stringify(letter.errors)),
  },
  "names a tenant that does not exist": {
    body: (good) => edited(good, (envelope) => Object.assign(envelope, { tenant_id: "nobody" })),
    keeps: (letter) => assert.equal((letter.envelope.envelope ?? letter.envelope).tenant_id, "nobody"),
  },
  "breaks its schema for a tenant that does not exist": {
    body: (good) => edited(good, (envelope) => Object.assign(envelope, { tenant_id: "nobody", step_index: -1 })),
    keeps: (letter) => assert.equal((letter.envelope.envelope ?? letter.envelope).step_index, -1),
  },
  "is an object and no text": {
    body: () => ({ hello: "world", n: 1 }),
    keeps: (letter, raw) => assert.ok(raw.includes('"hello"') && raw.includes("world"), raw),
  },
  "is bytes": {
    body: () => new TextEncoder().encode("bytes of a stranger"),
    keeps: (letter, raw) => assert.ok(raw.includes("bytes of a stranger"), raw),
  },
};

describe("a batch of ten whose eighth", () => {
  // As deployed: the consumer waits, so that what it says of each message is the outcome.
  const world = worldOfFile({ vars: { CONSUMER_PATIENCE_MS: "60000" } });

  for (const [what, { body, keeps, tenant }] of Object.entries(BAD)) {
    test(`${what}: nine are done once, it alone is kept for a person`, async () => {
      const { dev, operator, sink } = world;
      const owner = tenant ? dev : operator;
      const stranger = tenant ? operator : dev;
      const { runs, messages } = await nineUndelivered(world);
      const others = await letterIds(stranger);
      let said;
      const letters = await lettersAddedBy(owner, async () => {
        said = await deliver(world, withBad(messages, body(messages[0])));
      });
      assert.deepEqual(said, { outcome: "ok", acked: [0, 1, 2, 3, 4, 5, 6, 7, 8, 9], retried: [], whole: undefined });
      assert.equal(letters.length, 1);
      const [letter] = letters;
      assert.deepEqual([letter.reason, letter.status], ["invalid_envelope", "open"]);
      assert.ok(letter.errors.length > 0 && letter.errors.every(({ message }) => message.length > 0), JSON.stringify(letter));
      keeps(letter, (await owner.get(`/v1/dead-letters/${letter.dead_letter_id}`)).text);
      assert.deepEqual(await letterIds(stranger), others, "nobody else has a letter of it");
      for (const { run_id } of runs) {
        await dev.untilRun(run_id);
        await assertRunIsRight(dev, sink, run_id, { once: true });
      }
    });
  }

  for (const [point, action] of [
    ["consumer.received", "panic"],
    ["consumer.claimed", "panic"],
    ["consumer.received", "error"],
  ]) {
    test(`meets ${action} at ${point}: it alone is tried again, no effect is doubled`, async () => {
      const { dev, sink } = world;
      const seams = seamsOf(dev);
      const { runs, messages } = await nineUndelivered(world);
      await seams.arm(point, action);
      const said = await deliver(world, messages);
      assert.equal(said.outcome, "ok");
      assert.equal(said.whole, undefined, "the batch as a whole is not tried again");
      assert.deepEqual([said.acked.length, said.retried.length], [GOOD - 1, 1], JSON.stringify(said));
      assert.ok(said.retried[0].delaySeconds >= 1);
      const struck = runs[said.retried[0].index];
      for (const { run_id } of runs) {
        await dev.untilRun(run_id);
        await assertRunIsRight(dev, sink, run_id, { once: true });
      }
      // It comes again, when the run has long gone on without it.
      const again = await deliver(world, [messages[said.retried[0].index]], { attempts: 2 });
      assert.deepEqual(again.acked, [0]);
      await assertRunIsRight(dev, sink, struck.run_id, { once: true });
    });
  }

  test("nothing is hung or dead in the log", () => assertQuiet(world.lines));
});

describe("through the queue itself", () => {
  const world = worldOfFile();

  test("bad messages among good ones are dead letters, and the good ones are done", async () => {
    const { dev, operator, sink } = world;
    const { runs, messages } = await nineUndelivered(world);
    const broken = edited(messages[0], (envelope) => Object.assign(envelope, { step_index: "x" }));
    const tag = unique("not json ");
    await send(world, "WORK", ...messages.slice(0, 4), tag, broken, ...messages.slice(4));
    for (const { run_id } of runs) {
      await dev.untilRun(run_id);
      await assertRunIsRight(dev, sink, run_id, { once: true });
    }
    const has = (client, wanted) =>
      until(async () => (await client.get("/v1/dead-letters?limit=200")).text.includes(wanted), { what: `a letter with ${wanted}` });
    await has(operator, tag);
    await has(dev, '"step_index":"x"');
  });

  test("what three queues gave up on is kept as well", async () => {
    const { operator } = world;
    const tag = unique("given up ");
    await send(world, "DEAD", tag);
    const [letter] = await until(
      async () => {
        const { items } = await operator.ok("GET", "/v1/dead-letters");
        const found = items.filter(({ envelope }) => envelope === tag);
        return found.length > 0 && found;
      },
      { what: "the letter of the last queue" },
    );
    assert.equal(letter.status, "open");
  });

  test("a step's message that a queue gave up on is sent again by its run", async () => {
    const { dev, sink } = world;
    const { runs, messages } = await nineUndelivered(world);
    await send(world, "DEAD", ...messages);
    for (const { run_id } of runs) {
      await dev.untilRun(run_id);
      await assertRunIsRight(dev, sink, run_id, { once: true });
    }
  });

  test("nothing is hung or dead in the log", () => assertQuiet(world.lines));
});
