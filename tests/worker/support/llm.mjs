// The providers' side of the tests: a scripted server of the three wire forms that models are asked in.

import { once } from "node:events";
import { createServer } from "node:http";
import { faultOf, neutral } from "./llm-rules.mjs";
import { answerOf, errorOf } from "./llm-wire.mjs";

/** `provider` of a model, by the path that it is asked at. */
const PROVIDERS = new Map([
  ["/v1/chat/completions", "openai"],
  ["/v1/responses", "openai_responses"],
  ["/v1/messages", "anthropic"],
]);

/** The forms, each with what is to be added to the server's address as `base_url`. */
export const FORMS = [
  { provider: "openai", base: "/v1" },
  { provider: "openai_responses", base: "/v1" },
  { provider: "anthropic", base: "" },
];

/**
 * Starts the server on a free port of 127.0.0.1. Who is asked is told by the request's `model`: each
 * has a script of its own, `llm.on(model, script)`. A script is a list of turns, one a request, or a
 * function of the request and its number on that script (from 0) that answers a turn.
 *
 * A turn is the same in all forms:
 *   - `text`, `calls: [{ id, name, arguments }]`, `refusal`, `reasoning`: what the model says. A call
 *     without the member `id` is given a new one; `id: null` leaves the field out. `arguments`: a string
 *     is sent as that string, `json(text)` as the JSON text that it is (where the form wants a string, as
 *     one), an object as its JSON, undefined leaves the field out. `asObject` on a call sends an object
 *     where the form has a string.
 *   - `finish`: stop, tool_calls, length, refusal, pause, or whatever the form itself knows.
 *   - `usage: { input, output }`, or null to leave it out.
 *   - `status`, `headers`, `error: { type, code, message }`: an error in the provider's own form;
 *   - `body`: sent as it is (a string) or as JSON, instead of all that.
 *   - `delayMs`, `hold` (a promise): when it is answered; `close`: the connection is cut instead.
 *
 * Each request must obey the rules of its form, or it is answered with 400 in that form, and the text of
 * the complaint is kept in `llm.violations`.
 */
export async function startLlm() {
  const requests = [];
  const scripts = new Map();
  const violations = [];
  let counter = 0;

  const server = createServer(async (incoming, response) => {
    const chunks = [];
    try {
      for await (const chunk of incoming) chunks.push(chunk);
    } catch {
      return;
    }
    const text = Buffer.concat(chunks).toString("utf8");
    const { pathname } = new URL(incoming.url, "http://llm");
    const provider = PROVIDERS.get(pathname);
    const request = {
      at: Date.now(),
      method: incoming.method,
      path: pathname,
      provider,
      headers: incoming.headers,
      /** The body as it came. */
      text,
      body: undefined,
      answered: false,
      aborted: false,
    };
    response.on("close", () => {
      request.aborted = !response.writableEnded;
    });
    requests.push(request);
    try {
      await answer(request, response);
    } catch (error) {
      violations.push(`the script of ${request.model} threw: ${error.stack}`);
      response.destroy();
    }
  });

  async function answer(request, response) {
    const complain = (message, { status = 400, type = "invalid_request_error", code = null } = {}) => {
      request.complaint = message;
      violations.push(`${request.provider ?? request.path} ${request.model ?? "?"}: ${message}`);
      send(request, response, { status, body: errorOf(request.provider, { type, code, message }) });
    };
    if (request.method !== "POST" || !request.provider) return complain(`no route ${request.method} ${request.path}`, { status: 404, type: "not_found_error" });
    try {
      request.body = JSON.parse(request.text);
    } catch (error) {
      return complain(`the body is not JSON: ${error.message}`);
    }
    request.model = request.body.model;
    const script = scripts.get(request.model);
    request.number = script?.used ?? 0;
    const fault = faultOf(request, script);
    if (fault) return complain(fault);
    request.conversation = neutral(request);
    if (!script) return complain(`the model ${request.model} does not exist`, { status: 404, type: "not_found_error", code: "model_not_found" });
    script.used += 1;
    const turn = typeof script.turns === "function" ? await script.turns(request, request.number) : script.turns[request.number];
    if (!turn) return complain(`the script of ${request.model} has no turn ${request.number}`);
    request.turn = turn;
    if (turn.hold) await turn.hold;
    if (turn.delayMs) await new Promise((done) => setTimeout(done, turn.delayMs));
    if (turn.close) {
      response.destroy();
      return;
    }
    if (turn.finish) script.lastFinish = turn.finish;
    else delete script.lastFinish;
    const status = turn.status ?? 200;
    const fallback = status >= 400 ? errorOf(request.provider, { status, ...turn.error }) : undefined;
    const body = turn.body ?? fallback ?? answerOf(request.provider, turn, request, () => (counter += 1));
    send(request, response, { status, headers: turn.headers, body });
  }

  function send(request, response, { status, headers = {}, body }) {
    const raw = typeof body === "string" ? body : JSON.stringify(body);
    request.status = status;
    request.answer = raw;
    request.answered = true;
    const type = "content-type" in headers ? {} : { "content-type": "application/json" };
    response.writeHead(status, { ...type, ...headers, "content-length": Buffer.byteLength(raw) });
    response.end(raw);
  }

  server.keepAliveTimeout = 60_000;
  server.listen(0, "127.0.0.1");
  await once(server, "listening");
  const url = `http://127.0.0.1:${server.address().port}`;

  return {
    url,
    /** Every request since the start, oldest first. */
    requests,
    /** What was wrong with requests: the rules of their form were broken. A test that means it to be takes it out. */
    violations,
    /** The requests to one model. */
    of: (model) => requests.filter((request) => request.model === model),
    /** Scripts a model. */
    on(model, turns) {
      scripts.set(model, { turns, used: 0 });
    },
    /** A model as an agent names it. */
    model(provider, name, more = {}) {
      const { base } = FORMS.find((form) => form.provider === provider);
      return { provider, name, base_url: `${url}${base}`, ...(provider === "anthropic" && { parameters: { max_tokens: 1_000 } }), ...more };
    },
    async close() {
      server.closeAllConnections();
      server.close();
      await once(server, "close").catch(() => {});
    },
  };
}
