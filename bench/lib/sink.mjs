// The sink: the outside world that the runs' steps call. It notes every call's time, and can take its time to answer.
import http from "node:http";

export class Sink {
  delayMs = 0;
  calls = 0;
  open = 0;
  onCall = null;
  /** How often each idempotency key was seen, and which keys each (run, step) came with. */
  keys = new Map();
  steps = new Map();
  #waiting = new Map();
  #firsts = new Map();
  /** runs whose first call has come */
  begun = new Set();
  /** run -> time of its third call */
  done = new Map();
  /** runs whose third call has been answered */
  answered = new Set();

  async listen() {
    this.server = http.createServer((call, answer) => {
      const at = performance.now();
      let text = "";
      call.setEncoding("utf8");
      call.on("data", (piece) => (text += piece));
      call.on("end", () => this.#arrived(at, call.headers["idempotency-key"], text, answer));
      call.on("error", () => {});
    });
    this.server.keepAliveTimeout = 120_000;
    await new Promise((resolve) => this.server.listen(0, "127.0.0.1", resolve));
    this.url = `http://127.0.0.1:${this.server.address().port}/call`;
  }

  #arrived(at, key, text, answer) {
    const { r: run, s: step } = JSON.parse(text);
    this.calls += 1;
    this.open += 1;
    this.keys.set(key, (this.keys.get(key) ?? 0) + 1);
    const place = `${run}/${step}`;
    const known = this.steps.get(place);
    if (known === undefined) this.steps.set(place, new Set([key]));
    else known.add(key);
    if (step === 1) {
      this.begun.add(run);
      this.#firsts.get(run)?.();
      this.#firsts.delete(run);
    }
    if (step === 3 && !this.done.has(run)) {
      this.done.set(run, at);
      this.#waiting.get(run)?.(at);
      this.#waiting.delete(run);
    }
    const reply = () => {
      this.open -= 1;
      if (step === 3) this.answered.add(run);
      answer.writeHead(200, { "content-type": "application/json", "content-length": 11 });
      answer.end('{"ok":true}');
    };
    answer.on("error", () => {});
    if (this.delayMs > 0) setTimeout(reply, this.delayMs);
    else reply();
    this.onCall?.();
  }

  /** Resolves with the time of the run's third call, or with null when none comes in time. */
  third(run, timeoutMs) {
    if (this.done.has(run)) return Promise.resolve(this.done.get(run));
    return this.#await(this.#waiting, run, timeoutMs);
  }

  /** Resolves when the run's first call comes, with null when it doesn't in time. */
  first(run, timeoutMs) {
    if (this.begun.has(run)) return Promise.resolve();
    return this.#await(this.#firsts, run, timeoutMs);
  }

  #await(waiting, run, timeoutMs) {
    return new Promise((resolve) => {
      const timer = setTimeout(() => {
        waiting.delete(run);
        resolve(null);
      }, timeoutMs);
      waiting.set(run, (at) => {
        clearTimeout(timer);
        resolve(at);
      });
    });
  }

  reset() {
    this.calls = 0;
    this.onCall = null;
    this.keys.clear();
    this.steps.clear();
    this.done.clear();
    this.answered.clear();
    this.begun.clear();
    this.#firsts.clear();
    this.#waiting.clear();
  }

  close() {
    this.server.closeAllConnections();
    this.server.close();
  }
}
