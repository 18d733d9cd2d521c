// The HTTP endpoints that tools call. They act once per Idempotency-Key, and keep a ledger of what they were
// asked and what they did, so that the demo can count effects at the place where they happen.

import { createServer } from "node:http";
import { read, write } from "./exact.mjs";

export function problem(status, detail, headers = {}) {
  const body = write({ type: "about:blank", status, detail });
  return { status, headers: { "content-type": "application/problem+json", ...headers }, body };
}

/**
 * Opens them on a free port.
 *
 * `works` has what each endpoint does with what it is sent: what that returns is the answer. An endpoint
 * that returns nothing will call back: it is handed the URL for it, and answers 202.
 * `troubles` has what an endpoint says instead; `call` counts the calls with this key, from 1.
 * `subject` tells what a request is about.
 *
 * `ledger` has an entry for each Idempotency-Key:
 * `{ tool, subject, body, answers: [200, 503, "lost", …], effects }`.
 */
export async function openEndpoints({ key, works, troubles = {}, subject }) {
  const ledger = new Map();

  /** Does the work of one endpoint, and writes down that it did. */
  async function act(entry, given, callback) {
    entry.effects += 1;
    const result = await works[entry.tool](given, callback);
    if (result === undefined) return { status: 202, headers: {}, body: "" };
    return { status: 200, headers: { "content-type": "application/json" }, body: write(result) };
  }

  async function answer(entry, body, callback) {
    if (entry.body !== body) return problem(422, "this Idempotency-Key belongs to another request");
    const given = read(body);
    const trouble = troubles[entry.tool]?.(given, entry.calls);
    if (trouble) return trouble;
    // A call that comes again gets the answer of the first one, even while that is still at work.
    entry.done ??= act(entry, given, callback);
    return entry.done;
  }

  const server = createServer(async (request, response) => {
    let body = "";
    for await (const piece of request.setEncoding("utf8")) body += piece;

    const tool = request.url.slice(1);
    const idempotencyKey = request.headers["idempotency-key"];
    let reply;
    if (!Object.hasOwn(works, tool)) reply = problem(404, `there is no ${tool}`);
    else if (request.headers.authorization !== `Bearer ${key}`) reply = problem(401, "who is calling?");
    else if (!idempotencyKey) reply = problem(400, "an Idempotency-Key is needed");
    else {
      if (!ledger.has(idempotencyKey)) {
        ledger.set(idempotencyKey, { tool, subject: subject(read(body)), body, calls: 0, effects: 0, answers: [] });
      }
      const entry = ledger.get(idempotencyKey);
      const call = entry.calls;
      entry.calls += 1;
      response.on("close", () => (entry.answers[call] = response.writableFinished ? response.statusCode : "lost"));
      reply = await answer(entry, body, request.headers["dormouse-callback"]);
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
