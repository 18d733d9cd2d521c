// `npm run demo`: a dozen orders, a shop with moods, a SIGKILL in the middle, one dead letter repaired.
// Ends with a table and a check of everything; exit code 1 if anything is off. README.md tells more.

import { mkdtemp, readFile, readdir, rm } from "node:fs/promises";
import { tmpdir } from "node:os";
import { basename, join } from "node:path";
import { setTimeout as sleep } from "node:timers/promises";
import { Dormouse } from "./dormouse.mjs";
import { read } from "./exact.mjs";
import { openShop } from "./shop.mjs";
import { Screen } from "./screen.mjs";
import { check, summary } from "./verdict.mjs";

const HERE = import.meta.dirname;
const SHOP_KEY = "shop-key-1234";
const PATIENCE_MS = 60_000;
const POLL_MS = 200;

/** What the customer with the faulty order said when asked. */
const VAT_NUMBER = "EL094259216";

const orders = read(await readFile(join(HERE, "orders.json"), "utf8"));
const temporary = await mkdtemp(join(tmpdir(), "dormouse-demo-"));
const stateDir = join(temporary, "state");
const shop = await openShop({ key: SHOP_KEY });
const dormouse = new Dormouse({
  STATE_DIR: stateDir,
  TMPDIR: temporary,
  TEMP: temporary,
  ALLOWED_INWARD_HOSTS: new URL(shop.url).host,
  TENANT_SECRETS: JSON.stringify({ dev: { SHOP_URL: shop.url, SHOP_KEY } }),
});
const screen = new Screen(process.stdout);

async function demo() {
  await dormouse.start();
  screen.say(`Dormouse on ${dormouse.url}, the shop on ${shop.url}, state in ${stateDir}`);

  for (const kind of ["tools", "agents"]) {
    for (const file of await readdir(join(HERE, "definitions", kind))) {
      const definition = read(await readFile(join(HERE, "definitions", kind, file), "utf8"));
      await dormouse.put(`/v1/${kind}/${basename(file, ".json")}`, definition);
    }
  }

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

  const logs = await Promise.all(placed.map(readLog));
  const listed = (await dormouse.get("/v1/runs?limit=200")).items;
  const letters = (await dormouse.get("/v1/dead-letters")).items;
  const seen = { orders, placed, again, runs, logs, listed, letters, ledger: shop.ledger, vatNumber: VAT_NUMBER, kills: 1 };
  screen.say(`\n${summary(seen)}\n`);
  const checks = check(seen);
  for (const { what, wrong } of checks) screen.say([`${wrong.length ? "✗" : "✓"} ${what}`, ...wrong.map((line) => `    ${line}`)].join("\n"));
  return checks.every(({ wrong }) => wrong.length === 0);
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

/** A run's whole log. */
async function readLog(id) {
  const entries = [];
  for (;;) {
    const { items } = await dormouse.get(`/v1/runs/${id}/events?limit=200&after=${entries.length}`);
    if (items.length === 0) return entries;
    entries.push(...items);
  }
}

async function cleanUp() {
  shop.close();
  await dormouse.close();
  await rm(temporary, { recursive: true, force: true, maxRetries: 5 });
}

let stopping = false;

/** Cleans up and ends the process, once: whoever is later finds it under way. */
async function end(exitCode) {
  if (stopping) return;
  stopping = true;
  await cleanUp();
  process.exit(exitCode);
}

for (const signal of ["SIGINT", "SIGTERM", "SIGHUP", "disconnect"]) process.on(signal, () => end(130));
process.stdout.on("error", () => end(1));

try {
  const allIsRight = await demo();
  await end(allIsRight ? 0 : 1);
} catch (error) {
  if (!stopping) console.error(`${error.stack}\n\nThe last that Dormouse wrote:\n${dormouse.log}`);
  await end(1);
}
