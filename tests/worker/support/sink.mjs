// The tools' side of the tests: a real HTTP server that records what reaches it, and answers as told.

import { createServer } from "node:http";
import { once } from "node:events";

/**
 * Starts a sink on a free port of 127.0.0.1.
 *
 * What it answers to a call is, in this order: what was scripted for the call's `Idempotency-Key`,
 * then for its path (without query), then 200 with `{"ok":true}`. A script is an answer, a list of
 * answers (one a call; the last stays), or a function of the call and its number on that script.
 * An answer is `{ status = 200, headers = {}, body, delay = 0, close, hang, dedupe }`:
 *   - `body` is sent as it is when it is a string or a Buffer, else as JSON;
 *   - `delay` is in ms; `close` cuts the connection instead of answering; `hang` never answers
 *     (until the sink closes);
 *   - with `dedupe` a repeated `Idempotency-Key` gets the first answer again.
 */
export async function startSink() {
  const calls = [];
  const byPath = new Map();
  const byKey = new Map();
  const firsts = new Map();
  const waiting = new Set();

  const server = createServer(async (request, response) => {
    const chunks = [];
    try {
      for await (const chunk of request) chunks.push(chunk);
    } catch {
      return;
    }
    const { pathname, search, searchParams } = new URL(request.url, "http://sink");
    const bytes = Buffer.concat(chunks);
    const key = request.headers["idempotency-key"];
    const seen = key === undefined ? undefined : `${request.method} ${pathname} ${key}`;
    const call = {
      at: Date.now(),
      method: request.method,
      path: pathname,
      search,
      searchParams,
      url: request.url,
      headers: request.headers,
      rawHeaders: request.rawHeaders,
      key,
      delivery: seen !== undefined && firsts.has(seen) ? "replay" : "first",
      bytes,
      text: bytes.toString("utf8"),
      get json() {
        return JSON.parse(this.text);
      },
      aborted: false,
    };
    response.on("close", () => {
      call.aborted = !response.writableEnded;
    });
    calls.push(call);
    if (seen !== undefined && !firsts.has(seen)) firsts.set(seen, undefined);

    const script = byKey.get(key) ?? byPath.get(pathname) ?? { answers: { body: { ok: true } }, used: 0 };
    let answer = await next(script, call);
    if (answer.dedupe && seen !== undefined) {
      if (call.delivery === "replay" && firsts.get(seen)) answer = { ...firsts.get(seen), delay: 0 };
      else firsts.set(seen, answer);
    }
    await send(response, answer);
  });

  async function next(script, call) {
    const number = script.used;
    script.used += 1;
    const { answers } = script;
    if (typeof answers === "function") return (await answers(call, number)) ?? {};
    if (Array.isArray(answers)) return answers[Math.min(number, answers.length - 1)] ?? {};
    return answers;
  }

  async function send(response, { status = 200, headers = {}, body, delay = 0, close, hang }) {
    if (hang) {
      waiting.add(response);
      response.on("close", () => waiting.delete(response));
      return;
    }
    if (delay > 0) await new Promise((done) => setTimeout(done, delay));
    if (close) {
      response.destroy();
      return;
    }
    const raw = typeof body === "string" || Buffer.isBuffer(body) ? body : body === undefined ? "" : JSON.stringify(body);
    const type = raw.length > 0 && !("content-type" in headers) ? { "content-type": "application/json" } : {};
    response.writeHead(status, { ...type, ...headers, "content-length": Buffer.byteLength(raw) });
    response.end(raw);
  }

  server.keepAliveTimeout = 60_000;
  server.listen(0, "127.0.0.1");
  await once(server, "listening");
  const { port } = server.address();

  return {
    port,
    url: `http://127.0.0.1:${port}`,
    /** Every call since the start, oldest first. */
    calls,
    /** The calls of one path. */
    to: (path) => calls.filter((call) => call.path === path),
    /** The calls with one Idempotency-Key. */
    withKey: (key) => calls.filter((call) => call.key === key),
    /** How many calls were the first with their method, path and key. */
    firsts: (path) => calls.filter((call) => call.path === path && call.delivery === "first").length,
    /** Scripts a path's answers. */
    on(path, answers) {
      byPath.set(path, { answers, used: 0 });
    },
    /** Scripts the answers to one Idempotency-Key. */
    onKey(key, answers) {
      byKey.set(key, { answers, used: 0 });
    },
    async close() {
      for (const response of waiting) response.destroy();
      server.closeAllConnections();
      server.close();
      await once(server, "close").catch(() => {});
    },
  };
}
