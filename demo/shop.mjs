// A small shop: five HTTP endpoints with the moods of real ones. It keeps a ledger of what it was asked
// and what it did, so that the demo can count effects at the place where they happen.

import { createServer } from "node:http";
import { setTimeout as sleep } from "node:timers/promises";
import { read, write } from "./exact.mjs";

/** What each endpoint does. What it was sent, it gives back: the demo compares that with the orders. */
const ENDPOINTS = {
  "stock.reserve": ({ order_id, lines }) => ({ reservation_id: `rsv-${write(order_id)}`, order_id, lines }),

  async "warehouse.pick"({ reservation_id, lines }) {
    await sleep(2_000 + 1_000 * Math.random());
    return { reservation_id, parcels: lines.length, lines };
  },

  "payments.charge": ({ order_id, amount, currency }) => ({ charge_id: `chg-${write(order_id)}`, amount, currency }),

  "couriers.book": ({ order_id, label, note }) => ({ tracking: `trk-${write(order_id)}`, label, note }),

  "invoices.print": ({ order_id, customer, lines, total }) => ({ invoice_id: `inv-${write(order_id)}`, customer, lines, total }),
};

/** What an endpoint says instead of doing its work; `call` counts the calls with this key, from 1. */
const TROUBLES = {
  "payments.charge": (_arguments, call) => call <= 2 && problem(503, "the till is being restarted"),

  "couriers.book": (_arguments, call) => call === 1 && problem(429, "one at a time, please", { "retry-after": "1" }),

  "invoices.print": ({ customer: { company, vat_number } }) =>
    company && !vat_number && problem(422, `/customer/vat_number: ${company} is a company, so the invoice needs its VAT number`),
};

function problem(status, detail, headers = {}) {
  const body = write({ type: "about:blank", status, detail });
  return { status, headers: { "content-type": "application/problem+json", ...headers }, body };
}

/**
 * Opens the shop on a free port.
 *
 * `ledger` has an entry for each Idempotency-Key:
 * `{ tool, order, body, answers: [200, 503, "lost", …], effects }`.
 */
export async function openShop({ key }) {
  const ledger = new Map();

  /** Does the work of one endpoint, and writes down that it did. */
  async function act(entry, given) {
    entry.effects += 1;
    const result = await ENDPOINTS[entry.tool](given);
    return { status: 200, headers: { "content-type": "application/json" }, body: write(result) };
  }

  async function answer(entry, body) {
    if (entry.body !== body) return problem(422, "this Idempotency-Key belongs to another request");
    const given = read(body);
    const trouble = TROUBLES[entry.tool]?.(given, entry.calls);
    if (trouble) return trouble;
    // A call that comes again gets the answer of the first one, even while that is still at work.
    entry.done ??= act(entry, given);
    return entry.done;
  }

  const server = createServer(async (request, response) => {
    let body = "";
    for await (const piece of request.setEncoding("utf8")) body += piece;

    const tool = request.url.slice(1);
    const idempotencyKey = request.headers["idempotency-key"];
    let reply;
    if (!Object.hasOwn(ENDPOINTS, tool)) reply = problem(404, `there is no ${tool}`);
    else if (request.headers.authorization !== `Bearer ${key}`) reply = problem(401, "who is calling?");
    else if (!idempotencyKey) reply = problem(400, "an Idempotency-Key is needed");
    else {
      if (!ledger.has(idempotencyKey)) {
        ledger.set(idempotencyKey, { tool, order: write(read(body).order_id), body, calls: 0, effects: 0, answers: [] });
      }
      const entry = ledger.get(idempotencyKey);
      const call = entry.calls;
      entry.calls += 1;
      response.on("close", () => (entry.answers[call] = response.writableFinished ? response.statusCode : "lost"));
      reply = await answer(entry, body);
    }
    response.writeHead(reply.status, reply.headers).end(reply.body);
  });

  await new Promise((listening) => server.listen(0, "127.0.0.1", listening));
  return {
    url: `http://127.0.0.1:${server.address().port}`,
    ledger,
    close() {
      server.close();
      server.closeAllConnections();
    },
  };
}
