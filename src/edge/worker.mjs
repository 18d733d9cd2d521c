// The Worker's entry module: the classes that the platform wants to see, each handing over to the
// Rust core in WebAssembly, and the care for that core's instance.
//
// A panic in Rust unwinds and is an ordinary exception here. Anything else thrown out of WebAssembly
// (stack overflow, out of memory, an `unreachable`) leaves the instance unusable: every call in flight
// is answered, the next call gets a fresh instance, and each object rebuilds its inner part from storage.

import { DurableObject, WorkerEntrypoint } from "cloudflare:workers";
import * as core from "./index.js";

/** How to end the calls that are waiting for the instance in force. */
let waiting = new Set();
let broken = false;

core.onAbort(() => {
  broken = true;
  const lost = waiting;
  waiting = new Set();
  for (const abandon of lost) abandon();
});

/** What a caller may learn about a failure; the cause goes to the log. */
class Failure extends Error {
  constructor(place, cause, lost = false) {
    super(lost ? "the call was lost, its outcome is not known" : "internal error");
    this.name = "InternalError";
    this.lost = lost;
    console.error(`${place}: ${cause?.stack ?? cause}`);
  }
}

/** Calls into the core; throws nothing but `Failure`. Answers without a promise where the core does. */
function enter(place, call) {
  if (broken) {
    core.__wbg_reset_state();
    broken = false;
  }
  let answer;
  try {
    answer = call();
  } catch (cause) {
    throw new Failure(place, cause);
  }
  if (!(answer instanceof Promise)) return answer;
  return new Promise((resolve, reject) => {
    const abandon = () => reject(new Failure(place, "the WebAssembly instance died", true));
    waiting.add(abandon);
    answer.then(
      (value) => {
        waiting.delete(abandon);
        resolve(value);
      },
      (cause) => {
        waiting.delete(abandon);
        reject(new Failure(place, cause));
      },
    );
  });
}

function problem(status, type, title, headers = {}) {
  return new Response(JSON.stringify({ type: `/problems/${type}`, title, status }), {
    status,
    headers: { "content-type": "application/problem+json", ...headers },
  });
}

/** An answer whose body asks the core for its next piece when the client has taken the one before. */
function live({ status, headers, begun, rest }) {
  const encoder = new TextEncoder();
  let piece = begun;
  const body = new ReadableStream(
    {
      // Whatever is thrown here cuts the connection, so that the client knows of it.
      async pull(controller) {
        piece ??= await enter("stream", () => rest.next());
        if (piece === undefined) controller.close();
        else controller.enqueue(encoder.encode(piece));
        piece = undefined;
      },
      cancel() {
        try {
          enter("stream", () => rest.cancel());
        } catch {
          // It is in the log, and there is nobody to tell.
        }
      },
    },
    { highWaterMark: 0 },
  );
  return new Response(body, { status, headers });
}

export default class extends WorkerEntrypoint {
  async fetch(request) {
    try {
      const answer = await enter("fetch", () => core.fetch(request, this.env, this.ctx));
      return answer instanceof Response ? answer : live(answer);
    } catch (failure) {
      return failure.lost
        ? problem(503, "interrupted", "The request was interrupted; send it again with the same Idempotency-Key", { "retry-after": "1" })
        : problem(500, "internal-error", "Internal error");
    }
  }

  // Never throws: that would send messages again that were acknowledged one by one.
  async queue(batch) {
    try {
      await enter("queue", () => core.queue(batch, this.env, this.ctx));
    } catch {
      batch.retryAll({ delaySeconds: 1 });
    }
  }

  async scheduled(event) {
    try {
      await enter("scheduled", () => core.scheduled(event, this.env, this.ctx));
    } catch {
      // It is in the log; the next one comes in a minute.
    }
  }
}

/** A Durable Object class over a class of the core with `call(text)` and `alarm()`. */
function objectClass(name) {
  return class extends DurableObject {
    #inner;
    #generation;

    // Anything thrown is unexpected, so what the object holds in memory is given up with it.
    async #run(method, ...values) {
      try {
        return await enter(`${name}.${method}`, () => {
          if (!this.#inner || this.#generation !== core.generation) {
            this.#inner = new core[name](this.ctx, this.env);
            this.#generation = core.generation;
          }
          return this.#inner[method](...values);
        });
      } catch (failure) {
        this.#inner = undefined;
        throw failure;
      }
    }

    call(text) {
      return this.#run("call", text);
    }

    alarm() {
      return this.#run("alarm");
    }

    // Only a build with test seams can be told to drop an object. Aborting from within WebAssembly
    // would take the instance with it.
    evict() {
      if (core.has_test_seams?.()) setTimeout(() => this.ctx.abort("evicted by a test"), 0);
    }
  };
}

export class Run extends objectClass("RunObject") {}
export class Tenant extends objectClass("TenantObject") {}
