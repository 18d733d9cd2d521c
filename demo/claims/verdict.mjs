// What became of the claim, as a table, and whether all of it is right.

import { isDeepStrictEqual } from "node:util";
import { Checks } from "../checks.mjs";
import { read, write } from "../exact.mjs";
import { table } from "../table.mjs";

/** Milliseconds for people: `2 d 0 h 0 min 17 s`, or `0.21 s`. */
export function duration(ms) {
  if (ms < 60_000) return `${(ms / 1_000).toFixed(2)} s`;
  const units = [["d", 86_400], ["h", 3_600], ["min", 60], ["s", 1]];
  let left = Math.round(ms / 1_000);
  const parts = units.map(([unit, seconds]) => {
    const count = Math.floor(left / seconds);
    left -= count * seconds;
    return [count, unit];
  });
  const first = parts.findIndex(([count]) => count > 0);
  const last = parts.findLastIndex(([count]) => count > 0);
  return parts.slice(first, last + 1).map((part) => part.join(" ")).join(" ");
}

/** The table at the end. */
export function summary({ runs, logs, ledger, stops, movedMs, upMs, tookMs }) {
  const [claim, payment] = runs;
  const entries = [...ledger];
  const effects = entries.map(([, entry]) => entry.effects);
  const completed = (list) => `${list.filter(({ status }) => status === "completed").length} of ${list.length} completed`;
  const total = effects.reduce((sum, count) => sum + count, 0);
  const byKey = [
    ["", "key", "calls", "answer", "effects"],
    ...entries.map(([key, { tool, calls, answers, effects }]) => [tool, `${key.slice(0, 16)}…`, calls, answers.join(" "), effects]),
  ];
  const totals = [
    ["runs", completed(runs)],
    ["steps", completed(runs.flatMap((run) => run.steps))],
    ["effects", `${total} under ${entries.length} keys, at most ${Math.max(0, ...effects)} per key`],
    ["log entries", logs.flat().length],
    ["stops survived", stops],
    ["waited", `${duration(claim.usage.waiting_ms)} by the claim's clock, of which the demo moved it by ${duration(movedMs)}`],
    ["ran", `${duration(claim.usage.active_ms + payment.usage.active_ms)}: the claim ${duration(claim.usage.active_ms)}, its payment ${duration(payment.usage.active_ms)}`],
    ["Dormouse was up", `${duration(upMs)} of the ${duration(tookMs)} that this act took`],
  ];
  return [table(byKey), "", table(totals, { left: true })].join("\n");
}

/** Everything that must be true. */
export function check(seen) {
  const { claim, estimate, cleared, runs, listed, logs, ledger, whileOff, diagnoses, callbacks, page, payment, movedMs, upMs } = seen;
  const [desk, payer] = runs;
  const checks = new Checks();
  const same = (what, found, wanted) => !isDeepStrictEqual(found, wanted) && `${what} is ${write(found)}, not ${write(wanted)}`;

  checks.expect("the claim and its payment completed, and there is no other run", [
    ...runs.map((run) => run.status !== "completed" && `${run.run_id} is ${run.status}: ${write(run.error)}`),
    same("the list of runs", listed.map((run) => run.run_id).sort(), runs.map((run) => run.run_id).sort()),
    same("the payment's parent", [payer.parent?.run_id, payer.parent?.step_index], [desk.run_id, 3]),
  ]);

  checks.expect("the claim, the estimate and the clearing came back digit for digit and letter for letter", [
    same("the input", desk.input, claim),
    same("the claim", desk.output?.claim, claim),
    same("the estimate", desk.output?.estimate, estimate),
    same("the clearing", desk.output?.cleared, cleared),
  ]);

  const calls = runs.flatMap((run) => run.steps.filter((step) => step.kind === "tool"));
  checks.expect("every call took effect exactly once, under its own key", [
    ...calls.map((step) => {
      const entry = ledger.get(step.idempotency_key);
      return !(entry?.tool === step.name.replace(/@.*/, "") && entry.effects === 1) && `${step.id}: ${write(entry ?? null)}`;
    }),
    calls.length !== 3 && `${calls.length} steps call a tool`,
    ledger.size !== calls.length && `the endpoints saw ${ledger.size} keys`,
  ]);

  checks.expect("while Dormouse was off nothing ran, and after it each log was what it had been", whileOff);

  const expected = [
    ["callback", "POST /v1/callbacks/{token}"],
    ["timer", null],
    ["approval", `POST /v1/approvals/${page.stands.approval_id}`],
    ["child", `POST /v1/approvals/${payment.approval.approval_id}`],
    ["signal", `POST /v1/runs/${desk.run_id}/signals/payment.cleared`],
  ];
  checks.expect("each wait was explained, with the call that releases it", [
    same("what was said", diagnoses.map(({ blockers }) => blockers.map(({ kind, release }) => [kind, release])), expected.map((one) => [one])),
  ]);

  checks.expect("the garage's report counted once", [same("what it was answered", callbacks, [200, 410])]);

  checks.expect("looking at the page changed nothing, the first answer stands, the second came too late", [
    same("the statuses", page.statuses, [200, 200, 303, 200, 409]),
    same("the log after looking", page.after, page.before),
    same("the approval after looking", page.status, "pending"),
    same("what stands", [page.stands.status, page.stands.decided_by, page.stands.comment], ["approved", page.by, page.typed.Comment]),
    same("the form's data", page.stands.data, { payout: read(page.typed["Payout in EUR"]), ground: page.typed["On what ground"], inform: true }),
    logs[0].filter((entry) => entry.event_type === "approval.decided").length !== 1 && "the log has not exactly one decision",
  ]);

  const { approval, decided } = payment;
  const sent = [...ledger.values()].find((entry) => entry.tool === "bank.transfer");
  checks.expect("the bank was sent exactly the arguments that were approved, and not before", [
    same("what the bank was sent", sent && read(sent.body), approval.arguments),
    same("the amount", write(approval.arguments.amount), page.typed["Payout in EUR"]),
    same("before the decision", payment.sentBefore, 0),
    same("the decision", [decided.status, decided.decided_by, decided.arguments_digest], ["approved", payment.by, approval.arguments_digest]),
  ]);

  checks.expect("the claim slept its two days, and nothing ran for longer than Dormouse was up", [
    !(desk.usage.waiting_ms >= movedMs) && `it waited ${desk.usage.waiting_ms} ms`,
    !(desk.usage.active_ms + payer.usage.active_ms <= upMs) && `${desk.usage.active_ms} and ${payer.usage.active_ms} ms in ${upMs} ms`,
  ]);

  checks.expectWholeLogs(logs);
  return checks;
}
