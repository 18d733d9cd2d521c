// What happened, as a table, and whether all of it is right.

import { isDeepStrictEqual } from "node:util";
import { Checks } from "../checks.mjs";
import { write } from "../exact.mjs";
import { table } from "../table.mjs";

/** The table at the end. */
export function summary({ runs, logs, letters, ledger, kills }) {
  const entries = [...ledger.values()];
  const steps = runs.flatMap((run) => run.steps);
  const answers = (list) => list.flatMap((entry) => entry.answers);
  const count = (list, wanted) => list.filter((item) => item === wanted).length;
  const most = (list) => Math.max(0, ...list.map((entry) => entry.effects));
  const sum = (list) => list.reduce((total, entry) => total + entry.effects, 0);

  const statuses = [200, 503, 429, 422, "lost"];
  const line = (name, list) => {
    const given = answers(list);
    const told = statuses.map((status) => count(given, status));
    return [name, given.length, ...told, sum(list), most(list)];
  };
  const tools = [...new Set(steps.map((step) => step.name))];
  const byTool = [
    ["", "calls", ...statuses, "effects", "most per key"],
    ...tools.map((tool) => line(tool, entries.filter((entry) => entry.tool === tool))),
    line("all", entries),
  ];

  const retries = logs.flat().filter((entry) => entry.event_type === "tool.retry_scheduled").length;
  const totals = [
    ["runs", `${count(runs.map((run) => run.status), "completed")} of ${runs.length} completed`],
    ["steps", `${count(steps.map((step) => step.status), "completed")} of ${steps.length} completed`],
    ["calls", `${answers(entries).length}, of which ${retries} were answered with "later" and made again`],
    ["effects", `${sum(entries)}, at most ${most(entries)} per key`],
    ["log entries", logs.flat().length],
    ["dead letters", `${letters.length}, ${count(letters.map((letter) => letter.status), "redelivered")} repaired`],
    ["kills survived", kills],
  ];
  return [table(byTool), "", table(totals, { left: true })].join("\n");
}

/** Everything that must be true. */
export function check({ orders, placed, again, runs, logs, listed, letters, ledger, vatNumber }) {
  const checks = new Checks();
  const expect = (what, wrong) => checks.expect(what, wrong);
  const name = (order) => `order ${write(order.order_id)}`;

  expect("every run completed", runs.map((run) => run.status !== "completed" && `${run.run_id} is ${run.status}: ${write(run.error)}`));

  expect("no order was lost or doubled, though each was placed twice", [
    !isDeepStrictEqual(again, placed) && `placed again: ${again}`,
    !isDeepStrictEqual(listed.map((run) => run.run_id).sort(), [...placed].sort()) && `${listed.length} runs are listed`,
  ]);

  expect(
    "every id, amount and text came back digit for digit and letter for letter",
    orders.flatMap((order, index) => {
      const { input, output } = runs[index];
      const label = `${order.customer.name}, ${order.customer.address.city} (order ${write(order.order_id)})`;
      const { customer } = order;
      const repaired = customer.vat_number === "" ? { ...customer, vat_number: vatNumber } : customer;
      return [
        !isDeepStrictEqual(input, order) && `${name(order)}: input ${write(input)}`,
        !isDeepStrictEqual(output, { ...order, customer: repaired, label }) && `${name(order)}: output ${write(output)}`,
      ];
    }),
  );

  // The shop acts once per key by itself, so this counts by what was meant: had a repeated call come
  // with another key, the order would be charged twice here.
  const acted = [...ledger].filter(([, entry]) => entry.effects > 0);
  expect("every step took effect exactly once, under its own key", [
    ...acted.map(([key, { effects }]) => effects !== 1 && `key ${key}: ${effects} effects`),
    ...orders.flatMap((order, index) =>
      runs[index].steps.map((step) => {
        const keys = acted.filter(([, entry]) => entry.tool === step.name && entry.subject === write(order.order_id)).map(([key]) => key);
        return !isDeepStrictEqual(keys, [step.idempotency_key]) && `${name(order)}: ${step.name} took effect under ${keys.length} keys: ${keys}`;
      }),
    ),
    acted.length !== runs.flatMap((run) => run.steps).length && `${acted.length} effects`,
  ]);

  expect("there was one dead letter, and it is repaired", [
    letters.length !== 1 && `there were ${letters.length}`,
    ...letters.map((letter) => letter.status !== "redelivered" && `${letter.dead_letter_id} is ${letter.status}`),
  ]);

  checks.expectWholeLogs(logs);
  return checks;
}
