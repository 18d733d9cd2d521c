// A client of the HTTP API that shows everything of an answer: status, headers, text, JSON.

import { until } from "./until.mjs";

export const ENDED = ["completed", "failed", "cancelled"];

/**
 * @param {string} url of the Worker
 * @param {string | undefined} key sent as `Authorization: Bearer`; undefined sends none
 */
export function clientOf(url, key) {
  /**
   * One request. `body` is sent as it is when it is a string or a Buffer, else as JSON.
   * The answer: `{ status, headers, text, json, location, replayed }`; `json` is undefined when the text is none.
   */
  async function call(method, path, { body, headers = {}, idempotencyKey, redirect = "manual" } = {}) {
    const raw = body === undefined || typeof body === "string" || Buffer.isBuffer(body) ? body : JSON.stringify(body);
    const response = await fetch(`${url}${path}`, {
      method,
      redirect,
      headers: {
        ...(key !== undefined && { authorization: `Bearer ${key}` }),
        ...(raw !== undefined && { "content-type": "application/json" }),
        ...(idempotencyKey !== undefined && { "idempotency-key": idempotencyKey }),
        ...headers,
      },
      body: raw,
    });
    const text = await response.text();
    let json;
    try {
      json = JSON.parse(text);
    } catch {
      // Not JSON.
    }
    return {
      status: response.status,
      headers: response.headers,
      text,
      json,
      location: response.headers.get("location"),
      replayed: response.headers.get("idempotent-replayed"),
    };
  }

  /** As `call`, but throws unless the status is in the 200s; answers the JSON. */
  async function ok(method, path, options) {
    const answer = await call(method, path, options);
    if (answer.status < 200 || answer.status > 299) {
      throw new Error(`${method} ${path}: ${answer.status} ${answer.text.slice(0, 2_000)}`);
    }
    return answer.json;
  }

  const client = {
    url,
    key,
    call,
    ok,
    get: (path, options) => call("GET", path, options),
    post: (path, body, options) => call("POST", path, { body, ...options }),
    put: (path, body, options) => call("PUT", path, { body, ...options }),
    delete: (path, options) => call("DELETE", path, options),

    /** Stores a tool and answers it. */
    putTool: (name, tool) => ok("PUT", `/v1/tools/${name}`, { body: tool }),
    putAgent: (name, agent) => ok("PUT", `/v1/agents/${name}`, { body: agent }),
    /** Starts a run and answers it as it was then. */
    startRun: (body, options) => ok("POST", "/v1/runs", { body, ...options }),
    run: (runId) => ok("GET", `/v1/runs/${runId}`),
    /** The run's whole log, oldest first. */
    async log(runId) {
      const entries = [];
      for (let cursor = 0; cursor !== null; ) {
        const page = await ok("GET", `/v1/runs/${runId}/events?limit=200&after=${cursor}`);
        entries.push(...page.items);
        cursor = page.next_cursor;
      }
      return entries;
    },
    /** Waits until the run is in one of the states, and answers it. */
    async untilRun(runId, states = ENDED, options = {}) {
      const wanted = [states].flat();
      let run;
      try {
        return await until(
          async () => {
            run = await client.run(runId);
            return wanted.includes(run.status) && run;
          },
          { what: `${runId} is ${wanted.join(" or ")}`, ...options },
        );
      } catch (error) {
        error.message += `; it is ${JSON.stringify(run)?.slice(0, 2_000)}`;
        throw error;
      }
    },
    /** Starts a run and waits until it ended (or is in one of `states`). */
    async runToEnd(body, states = ENDED, options = {}) {
      const { run_id } = await client.startRun(body, options);
      return client.untilRun(run_id, states, options);
    },
    /** The dead letters of a run, newest first. */
    deadLetters: async (runId) => (await ok("GET", `/v1/dead-letters?run_id=${runId}&limit=200`)).items,
    /** A client of the same Worker with another key. */
    with: (other) => clientOf(url, other),
  };
  return client;
}
