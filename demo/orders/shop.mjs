// A small shop: five HTTP endpoints with the moods of real ones.

import { setTimeout as sleep } from "node:timers/promises";
import { openEndpoints, problem } from "../endpoints.mjs";
import { write } from "../exact.mjs";

/** What each endpoint does. What it was sent, it gives back: the demo compares that with the orders. */
const WORKS = {
  "stock.reserve": ({ order_id, lines }) => ({ reservation_id: `rsv-${write(order_id)}`, order_id, lines }),

  async "warehouse.pick"({ reservation_id, lines }) {
    await sleep(2_000 + 1_000 * Math.random());
    return { reservation_id, parcels: lines.length, lines };
  },

  "payments.charge": ({ order_id, amount, currency }) => ({ charge_id: `chg-${write(order_id)}`, amount, currency }),

  "couriers.book": ({ order_id, label, note }) => ({ tracking: `trk-${write(order_id)}`, label, note }),

  "invoices.print": ({ order_id, customer, lines, total }) => ({ invoice_id: `inv-${write(order_id)}`, customer, lines, total }),
};

/** What an endpoint says instead of doing its work. */
const TROUBLES = {
  "payments.charge": (_arguments, call) => call <= 2 && problem(503, "the till is being restarted"),

  "couriers.book": (_arguments, call) => call === 1 && problem(429, "one at a time, please", { "retry-after": "1" }),

  "invoices.print": ({ customer: { company, vat_number } }) =>
    company && !vat_number && problem(422, `/customer/vat_number: ${company} is a company, so the invoice needs its VAT number`),
};

export const openShop = ({ key }) =>
  openEndpoints({ key, works: WORKS, troubles: TROUBLES, subject: ({ order_id }) => write(order_id) });
