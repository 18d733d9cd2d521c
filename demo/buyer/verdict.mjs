// What became of the purchase, as a table, and whether all of it is right.

import { isDeepStrictEqual } from "node:util";
import { Checks } from "../checks.mjs";
import { read, write } from "../exact.mjs";
import { table } from "../table.mjs";
import { ROUNDS } from "./model.mjs";

const isRound = ({ kind }) => kind === "plan";
const sum = (list, of) => list.reduce((total, item) => total + of(item), 0);
const heard = (requests) => requests.filter(({ answer }) => answer === "heard");
const ofRound = (requests, round) => requests.filter((request) => request.round === round);
const inputTokens = (requests) => sum(heard(requests), ({ usage }) => usage.prompt_tokens);
const outputTokens = (requests) => sum(heard(requests), ({ usage }) => usage.completion_tokens);

/** The malformed calls of the log, with the round of each. */
const mistakesIn = (log) =>
  log
    .filter(({ event_type }) => event_type === "plan.completed")
    .flatMap(({ payload }, index) => payload.calls.filter(({ error }) => error).map((call) => ({ round: index + 1, ...call })));

/** The table at the end. */
export function summary({ run, log, requests, ledger, letters, kills }) {
  const entries = [...ledger];
  const effects = entries.map(([, entry]) => entry.effects);
  const completed = (list) => `${list.filter(({ status }) => status === "completed").length} of ${list.length} completed`;
  const mistakes = mistakesIn(log);
  const rounds = [...new Set(requests.map(({ round }) => round))];
  const byRound = [
    ["", "asked", "answer", "tokens in", "tokens out", "malformed"],
    ...rounds.map((round) => {
      const asked = ofRound(requests, round);
      const answers = asked.map(({ answer }) => answer).join(" ");
      const wrong = mistakes.filter((mistake) => mistake.round === round).map(({ error }) => error.reason);
      return [`round ${round}`, asked.length, answers, inputTokens(asked), outputTokens(asked), wrong.join(" ") || "-"];
    }),
  ];
  const byKey = [
    ["", "key", "calls", "answer", "effects"],
    ...entries.map(([key, { tool, calls, answers, effects }]) => [tool, `${key.slice(0, 16)}…`, calls, answers.join(" "), effects]),
  ];
  const lost = requests.length - heard(requests).length;
  const totals = [
    ["runs", completed([run])],
    ["steps", completed(run.steps)],
    ["rounds", completed(run.steps.filter(isRound))],
    ["model calls", `${requests.length}: ${heard(requests).length} answers heard, ${lost} lost to a kill`],
    ["tokens", `${run.usage.input_tokens} in, ${run.usage.output_tokens} out`],
    ["mistakes", `${mistakes.length}, told to the model and mended by it`],
    ["effects", `${sum(effects, (count) => count)} under ${entries.length} keys, at most ${Math.max(0, ...effects)} per key`],
    ["log entries", log.length],
    ["dead letters", letters.length],
    ["kills survived", kills],
  ];
  return [table(byRound), "", table(byKey), "", table(totals, { left: true })].join("\n");
}

/** Everything that must be true. */
export function check({ order, run, log, listed, letters, requests, ledger, killedRound, atKills, by, costCentre }) {
  const checks = new Checks();
  const same = (what, found, wanted) => !isDeepStrictEqual(found, wanted) && `${what} is ${write(found)}, not ${write(wanted)}`;
  const [first, second] = atKills;
  const rounds = Array.from({ length: ROUNDS }, (_, index) => index + 1);

  checks.expect("the run completed, there is no other, and nothing needed a dead letter", [
    run.status !== "completed" && `${run.run_id} is ${run.status}: ${write(run.error)}`,
    same("the list of runs", listed.map(({ run_id }) => run_id), [run.run_id]),
    same("the dead letters", letters, []),
  ]);

  checks.expect("the model was asked once for each round, and once more only for the one in which Dormouse was killed", [
    same("the answers by round", rounds.map((round) => ofRound(requests, round).map(({ answer }) => answer)), rounds.map((round) => (round === killedRound ? ["lost", "heard"] : ["heard"]))),
    same("the number of requests", requests.length, ROUNDS + 1),
    same("the rounds of the run", run.steps.filter(isRound).map(({ id, status }) => `${id} ${status}`), rounds.map((round) => `round-${round} completed`)),
    same("the rounds of the log", log.filter(({ event_type }) => event_type === "plan.completed").length, ROUNDS),
  ]);

  const [lost, again] = ofRound(requests, killedRound);
  checks.expect("asked again, it was asked with the same words; each later time with the same words and more", [
    same("the request that came again", again?.text, lost?.text),
    ...heard(requests).map(({ round, messages }, index, all) => {
      const before = all[index - 1]?.messages ?? [];
      return same(`what round ${round} begins with`, messages.slice(0, before.length), before);
    }),
  ]);

  checks.expect("the run's tokens are those that the model counted for the answers that were heard", [
    same("tokens in", run.usage.input_tokens, inputTokens(requests)),
    same("tokens out", run.usage.output_tokens, outputTokens(requests)),
  ]);

  const mistakes = mistakesIn(log);
  checks.expect("both mistakes were told to the model, with the reason, and neither reached anybody", [
    same("the mistakes", mistakes.map(({ name, error }) => [name, error.reason]), [["payments_charge", "invalid_arguments"], ["bank_transfer", "unknown_tool"]]),
    ...mistakes.map(({ round, error }) => {
      const told = ofRound(requests, round + 1)[0]?.messages.at(-1);
      return same(`what the model is told after round ${round}`, told && [told.role, read(told.content)], ["tool", { error }]);
    }),
    same("what has a step", run.steps.filter((step) => !isRound(step)).map(({ kind, name }) => name ?? kind), ["vendors.quote", "vendors.quote", "approval", "payments.charge"]),
  ]);

  const calls = run.steps.filter(({ kind }) => kind === "tool");
  checks.expect("every call took effect exactly once, under its own key", [
    ...calls.map((step) => {
      const entry = ledger.get(step.idempotency_key);
      return !(entry?.tool === step.name && entry.effects === 1 && entry.calls === 1) && `${step.id}: ${write(entry ?? null)}`;
    }),
    same("the number of keys that the endpoints saw", ledger.size, calls.length),
  ]);

  checks.expect("no kill changed what the log had, and nothing was added while the person was awaited", [
    same("the log after the first kill", first.after.slice(0, first.before.length), first.before),
    same("the log after the second kill", second.after, second.before),
  ]);

  const decisions = log.filter(({ event_type }) => event_type === "approval.decided").map(({ payload }) => payload);
  const charge = [...ledger.values()].find(({ tool }) => tool === "payments.charge");
  const quote = calls.map(({ result }) => result).find(({ vendor }) => vendor === "sudviti");
  const { order_id, currency } = order;
  const agreed = { order_id, vendor: quote.vendor, amount: quote.total, currency, cost_centre: costCentre };
  checks.expect("the person decided once, and nothing was paid before; what was paid is what was quoted, to the last digit", [
    same("the decisions", decisions.map(({ decision, decided_by, data }) => [decision, decided_by, data]), [["approved", by, { cost_centre: costCentre }]]),
    same("the charges before the decision", second.charges, 0),
    same("the charge", charge && read(charge.body), agreed),
  ]);

  checks.expect("the input and the output came back digit for digit and letter for letter", [
    same("the input", run.input, order),
    same("the output", run.output, { order_id, vendor: quote.vendor, paid: quote.total, receipt: `rcp-${write(order_id)}`, agreed_by: by }),
  ]);

  checks.expectWholeLogs([log]);
  return checks;
}
