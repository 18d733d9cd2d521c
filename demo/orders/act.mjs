// The first act: a dozen orders, a shop with moods, a SIGKILL in the middle, one dead letter repaired.

import { readFile } from "node:fs/promises";
import { join } from "node:path";
import { setTimeout as sleep } from "node:timers/promises";
import { Dormouse } from "../dormouse.mjs";
import { read } from "../exact.mjs";
import { openShop } from "./shop.mjs";
import { check, summary } from "./verdict.mjs";

const HERE = import.meta.dirname;
const SHOP_KEY = "shop-key-1234";
const PATIENCE_MS = 60_000;
const POLL_MS = 200;

/** What the customer with the faulty order said when asked. */
const VAT_NUMBER = "EL094259216";

export async function open({ screen, temporary }) {
  const orders = read(await readFile(join(HERE, "orders.json"), "utf8"));
  const stateDir = join(temporary, "orders");
  const shop = await openShop({ key: SHOP_KEY });
  const dormouse = new Dormouse({
    STATE_DIR: stateDir,
    TMPDIR: temporary,
    TEMP: temporary,
    ALLOWED_INWARD_HOSTS: new URL(shop.url).host,
    TENANT_SECRETS: JSON.stringify({ dev: { SHOP_URL: shop.url, SHOP_KEY } }),
  });

  /** Tells whether all is as it should be. */
  async function play() {
    await dormouse.start();
    screen.say(`Dormouse on ${dormouse.url}, the shop on ${shop.url}, state in ${stateDir}`);
    await dormouse.define(HERE);

    const placed = await place(orders);
    screen.say(`${orders.length} orders placed`);

    const stepsOf = (runs) => runs.flatMap((run) => run.steps);
    const done = (runs) => stepsOf(runs).filter((step) => step.status === "completed").length;
    const atKill = await watch(placed, (runs) => done(runs) >= stepsOf(runs).length / 2);
    const inFlight = stepsOf(atKill).filter((step) => step.status === "running").length;
    await dormouse.kill();
    screen.say(`\n☠ kill -9 with ${done(atKill)} of ${stepsOf(atKill).length} steps done and ${inFlight} in flight`);

    await dormouse.start();
    screen.say("  started again on the same state");
    // Whoever places orders may have been killed too: placed again under the same keys, they are the same runs.
    const again = await place(orders);
    screen.say("  the same orders placed again: the same runs");

    const halted = await watch(placed, (runs) => runs.every((run) => ["completed", "blocked", "failed"].includes(run.status)));
    for (const { dead_letter_id } of halted.flatMap((run) => run.waiting_for)) await repair(dead_letter_id);

    const runs = await watch(placed, (runs) => runs.every((run) => ["completed", "failed"].includes(run.status)));
    screen.finish();

    const logs = await Promise.all(placed.map((id) => dormouse.history(id)));
    const listed = (await dormouse.get("/v1/runs?limit=200")).items;
    const letters = (await dormouse.get("/v1/dead-letters")).items;
    const seen = { orders, placed, again, runs, logs, listed, letters, ledger: shop.ledger, vatNumber: VAT_NUMBER, kills: 1 };
    screen.say(`\n${summary(seen)}\n`);
    return check(seen).report(screen);
  }

  /** One run for each order; the Idempotency-Key is the order's number. Gives the runs' ids. */
  function place(orders) {
    const start = async (input) => {
      const order = JSON.stringify(input.order_id);
      const run = await dormouse.post("/v1/runs", { agent: "order-desk", input, tags: { order } }, `order-${order}`);
      return run.run_id;
    };
    return Promise.all(orders.map(start));
  }

  /** Shows the runs until `enough` is true of them. */
  async function watch(ids, enough) {
    const until = Date.now() + PATIENCE_MS;
    for (;;) {
      const runs = await Promise.all(ids.map((id) => dormouse.get(`/v1/runs/${id}`)));
      screen.show(runs);
      if (enough(runs)) return runs;
      if (Date.now() > until) throw new Error(`not there after ${PATIENCE_MS / 1_000} s: ${runs.map((run) => run.status)}`);
      await sleep(POLL_MS);
    }
  }

  /** Reads what is wrong with a dead letter and sends it again with the VAT number filled in. */
  async function repair(id) {
    const { reason, message, errors, envelope } = await dormouse.get(`/v1/dead-letters/${id}`);
    screen.say(`\n✉ dead letter ${id}: ${reason}\n  ${message}`);
    for (const { pointer, message } of errors) screen.say(`  ${pointer}: ${message}`);

    const { payload } = envelope;
    payload.arguments.customer.vat_number = VAT_NUMBER;
    await dormouse.post(`/v1/dead-letters/${id}/redeliver`, { payload }, `repair-${id}`);
    screen.say(`  redelivered with /arguments/customer/vat_number = "${VAT_NUMBER}"`);
  }

  return {
    play,
    log: () => dormouse.log,
    async close() {
      shop.close();
      await dormouse.close();
    },
  };
}
