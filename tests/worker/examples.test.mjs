// The planners in examples/ are what strangers copy: they are run as they are, each in a process of its own.

import assert from "node:assert/strict";
import { spawn } from "node:child_process";
import { createHmac } from "node:crypto";
import { once } from "node:events";
import { readFile, readdir } from "node:fs/promises";
import { basename, join } from "node:path";
import { afterEach, describe, test } from "node:test";
import { newNode } from "../../scripts/node.mjs";
import { root } from "../../scripts/steps.mjs";
import { assertOneEffect } from "./support/checks.mjs";
import { verifyLog } from "./support/log.mjs";
import { worldOfFile } from "./support/runtime.mjs";
import { standingChecks } from "./support/standing.mjs";
import { until } from "./support/until.mjs";
import { signalled } from "./support/waits.mjs";

const EXAMPLES = join(root, "examples");
const ENCODED = `whsec_${Buffer.from("thirty-two bytes are a good key.").toString("base64")}`;
const PLAIN = "a secret that is used as it is";

const PLANNERS = [
  { name: "planner.py", command: () => ["python3", [join(EXAMPLES, "planner.py")]] },
  // Older ones of Node 22 want the flag; newer ones take it.
  { name: "planner.ts", command: () => [newNode(), ["--experimental-strip-types", "--no-warnings", join(EXAMPLES, "planner.ts")]] },
];

const world = worldOfFile({ vars: { TENANT_SECRETS: JSON.stringify({ dev: { PLANNER_SECRET: ENCODED, PLAIN_SECRET: PLAIN } }) } });
afterEach(standingChecks(() => world));

/** Stores the tools of the examples, with their endpoints at this address. */
async function toolsAt(url) {
  for (const file of await readdir(join(EXAMPLES, "tools"))) {
    const text = await readFile(join(EXAMPLES, "tools", file), "utf8");
    await world.dev.putTool(basename(file, ".json"), JSON.parse(text.replace("http://127.0.0.1:9000", url)));
  }
}

/** Starts an example that serves, on a free port unless `env` has one, and gives its address. It ends with the test. */
async function serve(t, [command, args], env) {
  const child = spawn(command, args, { env: { ...process.env, PORT: "0", ...env }, stdio: ["ignore", "pipe", "pipe"] });
  const ended = once(child, "close");
  let output = "";
  for (const stream of [child.stdout, child.stderr]) stream.setEncoding("utf8").on("data", (piece) => (output += piece));
  const end = async () => {
    child.kill();
    await ended;
  };
  t.after(end);
  const found = await until(
    () => {
      assert.equal(child.exitCode, null, output);
      return / on (http:\S+)/.exec(output);
    },
    { what: `${args.at(-1)} serves` },
  );
  return { url: found[1], output: () => output, end };
}

/** Stores the agent of the examples with its planner at this address, and its tools at the sink. */
async function agentAt(url, secretName = "PLANNER_SECRET") {
  const { sink } = world;
  sink.on("/north.quote", ({ json }) => ({ body: { cents: 120 * json.quantity } }));
  sink.on("/south.quote", ({ json }) => ({ body: { cents: 100 * json.quantity } }));
  sink.on("/payments.charge", ({ json }) => ({ body: { receipt: 7, ...json } }));
  await toolsAt(sink.url);
  const agent = JSON.parse(await readFile(join(EXAMPLES, "agents", "buyer.json"), "utf8"));
  assert.equal(agent.planner.signing_secret, "{{ secrets.PLANNER_SECRET }}");
  Object.assign(agent.planner, { url: `${url}/next`, signing_secret: `{{ secrets.${secretName} }}` });
  await world.dev.putAgent("buyer", agent);
}

const buy = (quantity) => world.dev.startRun({ agent: "buyer", input: { part: "M8", quantity } });

/** Waits until the run waits for the signal, sends it, and gives the run when it has completed. */
async function ship(run_id) {
  await until(async () => (await world.dev.run(run_id)).waiting_for.some(({ kind }) => kind === "signal"), { what: "the goods are waited for" });
  await signalled(world.dev, run_id, "order.shipped", { parcel: "p-1" });
  const run = await world.dev.untilRun(run_id, ["completed", "failed", "cancelled", "blocked"]);
  assert.equal(run.status, "completed", JSON.stringify(run));
  await verifyLog(world.dev, run_id);
  return run;
}

for (const { name, command } of PLANNERS) {
  describe(name, () => {
    test("buys from the cheaper vendor, once, and waits for the goods", async (t) => {
      for (const [secretName, secret] of [["PLANNER_SECRET", ENCODED], ["PLAIN_SECRET", PLAIN]]) {
        const { url } = await serve(t, command(), { PLANNER_SECRET: secret });
        await agentAt(url, secretName);
        const run = await ship((await buy(10)).run_id);
        assert.deepEqual(run.output, { vendor: "south", paid: { receipt: 7, to: "south", cents: 1000 }, shipped: { parcel: "p-1" }, declined: {} });
        assert.deepEqual(run.steps.map(({ id, kind }) => `${id} ${kind}`), [
          "round-1 plan", "round-1.1 tool", "round-1.2 tool", "round-2 plan", "round-2.1 tool", "round-3 plan", "round-3.1 wait_for", "round-4 plan",
        ]);
        assertOneEffect(world.sink, run, { once: true });
      }
    });

    test("hears in its history of an intent that does not fit, and buys elsewhere", async (t) => {
      const { url } = await serve(t, command(), { PLANNER_SECRET: ENCODED });
      await agentAt(url);
      const { length } = world.sink.to("/south.quote");
      const run = await ship((await buy(500)).run_id);
      assert.deepEqual([run.output.vendor, run.output.paid.cents, Object.keys(run.output.declined)], ["north", 60_000, ["south"]]);
      assert.match(run.output.declined.south, /quantity/);
      assert.equal(world.sink.to("/south.quote").length, length, "nothing was sent");
    });

    test("refuses a signature of another secret: a dead letter, and it goes on when that is put right", async (t) => {
      const wrong = await serve(t, command(), { PLANNER_SECRET: PLAIN });
      await agentAt(wrong.url);
      const { run_id } = await buy(1);
      await world.dev.untilRun(run_id, "blocked");
      const [letter] = await world.dev.deadLetters(run_id);
      assert.match(JSON.stringify(letter), /401/);
      assert.equal(letter.attempts.length, 1, "a refusal is not tried again");
      await wrong.end();
      await serve(t, command(), { PLANNER_SECRET: ENCODED, PORT: new URL(wrong.url).port });
      await world.dev.ok("POST", `/v1/dead-letters/${letter.dead_letter_id}/redeliver`);
      assert.equal((await ship(run_id)).output.vendor, "south");
    });

    test("takes a signature only whole, fresh, and of these bytes", async (t) => {
      const { url } = await serve(t, command(), { PLANNER_SECRET: PLAIN });
      const body = JSON.stringify({ schema_version: "1", run: { run_id: "r", input: { part: "é", quantity: 1 } }, round: 1, history: [], tools: [] });
      const now = Math.floor(Date.now() / 1000);
      const sign = (at, text = body, id = "msg_1") => `v1,${createHmac("sha256", PLAIN).update(`${id}.${at}.${text}`).digest("base64")}`;
      const send = async (at, signature, more = {}) => {
        const headers = { "content-type": "application/json", "webhook-id": "msg_1", "webhook-timestamp": String(at), "webhook-signature": signature, ...more };
        const response = await fetch(url, { method: "POST", headers, body });
        return { status: response.status, json: await response.json() };
      };
      const good = await send(now, sign(now));
      assert.equal(good.status, 200);
      assert.deepEqual(good.json.intents.map(({ tool }) => tool), ["north.quote", "south.quote"]);
      assert.equal((await send(now, `v1,AAAA v2,xyz ${sign(now)}`)).status, 200, "one of several is enough");
      const wrong = [
        [now, ""], [now, "v1,"], [now, sign(now).slice(3)], [now, sign(now).replace("v1", "v2")], [now, sign(now).slice(0, -1)], [now, `${sign(now)}A`],
        [now, sign(now, `${body} `)], [now, sign(now, body, "msg_2")], [now, sign(now - 1)],
        [now - 301, sign(now - 301)], [now + 330, sign(now + 330)], ["", sign("")], ["soon", sign("soon")], ["1e9", sign("1e9")], [`-${now}`, sign(`-${now}`)],
      ];
      for (const [at, signature] of wrong) assert.equal((await send(at, signature)).status, 401, `${at} ${signature}`);
    });
  });
}

test("external.py buys from outside, and started again it buys nothing", async (t) => {
  const { dev } = world;
  const shop = await serve(t, ["python3", [join(EXAMPLES, "shop.py")]], {});
  await toolsAt(shop.url);
  await dev.putAgent("outside-buyer", JSON.parse(await readFile(join(EXAMPLES, "agents", "outside-buyer.json"), "utf8")));
  const wanted = { vendor: "south", paid: { receipt: 1, to: "south", cents: 1100 } };
  for (const _ of ["first", "again"]) {
    const child = spawn("python3", [join(EXAMPLES, "external.py"), "42"], { env: { ...process.env, DORMOUSE_URL: world.url, DORMOUSE_KEY: dev.key }, stdio: ["ignore", "pipe", "pipe"] });
    let output = "";
    for (const stream of [child.stdout, child.stderr]) stream.setEncoding("utf8").on("data", (piece) => (output += piece));
    const [code] = await once(child, "close");
    assert.equal(code, 0, output);
    assert.deepEqual(JSON.parse(output), wanted);
  }
  const { items } = await dev.ok("GET", "/v1/runs?agent=outside-buyer");
  assert.equal(items.length, 1);
  const run = await dev.untilRun(items[0].run_id);
  assert.deepEqual([run.status, run.output], ["completed", wanted]);
  assert.equal(shop.output().match(/^paid/gm).length, 1);
  await verifyLog(dev, run.run_id);
});
