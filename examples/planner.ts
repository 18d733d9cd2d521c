// A planner of kind `http`: Dormouse asks this service what a run does next.
//
//     PLANNER_SECRET=whsec_… PORT=9001 node planner.ts
//
// Node 22.18 or newer runs it as it is; from 22.6 on with --experimental-strip-types.
// It keeps nothing. All that it knows of a run comes with the request, so it may be restarted, run
// twice or be asked the same round again: the same history gives the same answer.

import { createHmac, timingSafeEqual } from "node:crypto";
import { createServer, type IncomingHttpHeaders } from "node:http";

type Outcome = { id: string; status: "succeeded" | "failed"; result?: any; error?: { reason: string; message: string } };
type Asked = {
  run: { run_id: string; input: { part: string; quantity: number } };
  round: number;
  history: { round: number; intents: Outcome[]; flaw: string | null }[];
};
type Intent = { id: string; tool: string; arguments: object } | { id: string; wait_for: string; timeout: string };
type Answer = { intents: Intent[] } | { output: unknown } | { failure: string };

const SECRET = process.env.PLANNER_SECRET ?? "";
if (SECRET === "") throw new Error("PLANNER_SECRET is not set");
const TOLERANCE_S = 5 * 60;
const BODY_MAX = 16 * 1024 * 1024;
const VENDORS = ["north", "south"];

/** Two quotes side by side, the cheaper one is paid, then the goods are waited for. */
function decide({ run, history }: Asked): Answer {
  const flaw = history.at(-1)?.flaw;
  // The last answer was none at all: a bug here, and saying the same again would not mend it.
  if (flaw) return { failure: `the planner was not understood: ${flaw}` };

  // What was wanted before, by the ids that this planner gave.
  const outcomes = new Map(history.flatMap((past) => past.intents).map((outcome) => [outcome.id, outcome]));
  if (outcomes.size === 0) {
    const { part, quantity } = run.input;
    return { intents: VENDORS.map((name) => ({ id: name, tool: `${name}.quote`, arguments: { part, quantity } })) };
  }

  // One that failed says why in `error`: a tool that refused, or an intent that did not fit its tool.
  const declined: Record<string, string> = {};
  const quotes: { vendor: string; cents: number }[] = [];
  for (const vendor of VENDORS) {
    const { status, result, error } = outcomes.get(vendor)!;
    if (status === "failed") declined[vendor] = error!.message;
    else quotes.push({ vendor, cents: result.cents });
  }
  // The order of VENDORS settles a draw: nothing here may be left to chance.
  const [best] = quotes.sort((a, b) => a.cents - b.cents);
  if (!best) return { failure: `nobody has a price: ${JSON.stringify(declined)}` };

  const charge = outcomes.get("charge");
  if (!charge) return { intents: [{ id: "charge", tool: "payments.charge", arguments: { to: best.vendor, cents: best.cents } }] };
  if (charge.status === "failed") return { failure: `not paid: ${charge.error!.message}` };

  const shipped = outcomes.get("shipped");
  // It may take days. Nothing runs meanwhile, this service neither.
  if (!shipped) return { intents: [{ id: "shipped", wait_for: "order.shipped", timeout: "P7D" }] };
  if (shipped.status === "failed") return { failure: `paid, but not shipped: ${shipped.error!.message}` };
  return { output: { vendor: best.vendor, paid: charge.result, shipped: shipped.result, declined } };
}

/** Whether these bytes come from whoever has the secret, and just now (standardwebhooks.com). */
function isSigned(headers: IncomingHttpHeaders, body: Buffer): boolean {
  const [id, sentAt, signatures] = ["webhook-id", "webhook-timestamp", "webhook-signature"].map((name) => String(headers[name] ?? ""));
  if (!/^\d{1,11}$/.test(sentAt) || Math.abs(Date.now() / 1000 - Number(sentAt)) > TOLERANCE_S) return false;
  const key = SECRET.startsWith("whsec_") ? Buffer.from(SECRET.slice(6), "base64") : Buffer.from(SECRET);
  const mac = createHmac("sha256", key).update(`${id}.${sentAt}.`).update(body).digest("base64");
  const wanted = Buffer.from(`v1,${mac}`);
  // There are several signatures while a secret is being changed; one is enough.
  const isWanted = (given: Buffer) => given.length === wanted.length && timingSafeEqual(given, wanted);
  return signatures.split(" ").some((one) => isWanted(Buffer.from(one)));
}

const server = createServer(async (request, response) => {
  const answer = (status: number, value: object) => response.writeHead(status, { "content-type": "application/json" }).end(JSON.stringify(value));
  try {
    const pieces: Buffer[] = [];
    let length = 0;
    for await (const piece of request) {
      length += piece.length;
      if (length > BODY_MAX) return answer(413, { detail: "that is too long" });
      pieces.push(piece);
    }
    const body = Buffer.concat(pieces);
    // The signature is of the bytes as they came: check first, read then.
    if (!isSigned(request.headers, body)) return answer(401, { detail: "the signature is not right" });
    answer(200, decide(JSON.parse(body.toString("utf8"))));
  } catch (error) {
    console.error(error);
    answer(500, { detail: "this planner has a bug" });
  }
});

server.listen(Number(process.env.PORT ?? 9001), "127.0.0.1", () => {
  const address = server.address();
  if (address && typeof address === "object") console.log(`planner on http://127.0.0.1:${address.port}`);
});
