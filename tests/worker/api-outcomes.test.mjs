// What the answer to a tool call leads to: retries and their waits, effects, and what is final.

import assert from "node:assert/strict";
import { createServer } from "node:net";
import test from "node:test";
import { typesOf, verifyLog } from "./support/log.mjs";
import { unique, worldOfFile } from "./support/runtime.mjs";
import { until } from "./support/until.mjs";

const world = worldOfFile();
const FAST = { max_attempts: 3, base: "PT0.01S", max_wait: "PT0.02S", jitter: "none" };

async function toolOf(stem, answers, { http = {}, ...more } = {}) {
  const name = unique(stem);
  if (answers) world.sink.on(`/${name}`, answers);
  await world.dev.putTool(name, { description: stem, http: { url: `${world.sink.url}/${name}`, ...http }, retry: FAST, ...more });
  return name;
}
const one = (tool, more = {}) => ({ plan: { steps: [{ id: "a", tool, arguments: {}, ...more }] } });

/** Runs one call of a tool until it has ended or is held; how often it was called must agree everywhere. */
async function outcomeOf(tool, more, options) {
  const run = await world.dev.runToEnd(one(tool, more), ["completed", "failed", "blocked"], options);
  const calls = world.sink.calls.filter(({ headers, path }) => headers["dormouse-run-id"] === run.run_id && path === `/${tool}`);
  const entries = await verifyLog(world.dev, run.run_id);
  const [letter] = await world.dev.deadLetters(run.run_id);
  return { run, step: run.steps[0], calls, entries, letter };
}

function assertAttempts({ run, step, calls, entries, letter }, attempts, what) {
  assert.equal(calls.length, attempts, `${what}: calls`);
  assert.equal(step.attempts, attempts, `${what}: the run`);
  assert.equal(run.usage.tool_calls, attempts, `${what}: the usage`);
  assert.equal(entries.filter(({ event_type }) => event_type === "tool.claimed").length, attempts, `${what}: the log`);
  assert.equal(new Set(calls.map(({ key }) => key)).size, 1, `${what}: one key`);
  assert.deepEqual(calls.map(({ headers }) => headers["dormouse-attempt"]), calls.map((_, n) => `${n + 1}`), what);
  if (letter) assert.equal(letter.attempts.length, attempts, `${what}: the dead letter`);
}

const FINAL = [400, 401, 403, 404, 405, 409, 410, 413, 415, 422, 451];
const PASSING = [408, 425, 429, 500, 502, 503, 504, 529];

test("a final status is not tried again, a passing one as often as the policy says", async () => {
  for (const status of FINAL) {
    const outcome = await outcomeOf(await toolOf(`final-${status}`, { status, body: { error: "why" } }));
    assert.equal(outcome.letter.reason, "rejected_by_tool", `${status}`);
    assert.equal(outcome.letter.attempts[0].status_code, status);
    assert.match(outcome.letter.message, /why/);
    assertAttempts(outcome, 1, `${status}`);
  }
  for (const status of PASSING) {
    const outcome = await outcomeOf(await toolOf(`passing-${status}`, { status }));
    assert.equal(outcome.letter.reason, "retries_exhausted", `${status}`);
    assert.deepEqual(outcome.letter.attempts.map(({ status_code }) => status_code), [status, status, status]);
    assertAttempts(outcome, 3, `${status}`);
  }
  for (const status of PASSING) {
    const outcome = await outcomeOf(await toolOf(`mended-${status}`, [{ status }, { status }, { body: { ok: 1 } }]));
    assert.deepEqual([outcome.run.status, outcome.run.output], ["completed", { ok: 1 }], `${status}`);
    assertAttempts(outcome, 3, `${status} twice`);
  }
});

test("a 2xx is a success whatever it says, with a JSON body or none", async () => {
  for (const [answer, result] of [
    [{ status: 200, body: { error: "looks bad" } }, { error: "looks bad" }],
    [{ status: 201, body: [1] }, [1]],
    [{ status: 200, headers: { "content-type": "text/plain" }, body: '{"a":1}' }, { a: 1 }],
    [{ status: 200, headers: { "content-type": "application/vnd.x+json" }, body: '{"a":1}' }, { a: 1 }],
    [{ status: 204 }, null],
    [{ status: 200, body: "" }, null],
    [{ status: 202, headers: { "dormouse-callback": "none" }, body: { queued: true } }, { queued: true }],
  ]) {
    const outcome = await outcomeOf(await toolOf("success", answer));
    assert.deepEqual([outcome.run.status, outcome.run.output], ["completed", result], JSON.stringify(answer));
    assertAttempts(outcome, 1, JSON.stringify(answer));
  }
});

test("a 409 is final, unless it says when to come back", async () => {
  const busy = await outcomeOf(await toolOf("busy", [{ status: 409, headers: { "retry-after": "0" } }, { body: { done: 1 } }]));
  assert.deepEqual([busy.run.status, busy.run.output], ["completed", { done: 1 }]);
  assertAttempts(busy, 2, "409 with Retry-After");
});

test("a connection that is refused, cut or silent is tried again", async () => {
  const cut = await outcomeOf(await toolOf("cut", { close: true }));
  assert.equal(cut.letter.reason, "retries_exhausted");
  assertAttempts(cut, 3, "cut");
  assert.deepEqual(cut.letter.attempts.map(({ status_code }) => status_code), [null, null, null]);
  const mended = await outcomeOf(await toolOf("cut-once", [{ close: true }, { body: { ok: 1 } }]));
  assert.equal(mended.run.status, "completed");
  assertAttempts(mended, 2, "cut once");

  const silent = await outcomeOf(await toolOf("silent", { hang: true }, { timeout: "PT0.2S" }));
  assert.equal(silent.letter.reason, "retries_exhausted");
  assertAttempts(silent, 3, "silent");
  await until(() => world.sink.to(`/${silent.step.name}`).every(({ aborted }) => aborted), { what: "a call that timed out is let go" });

  // A port on which nobody listens.
  const probe = createServer().listen(0, "127.0.0.1");
  await until(() => probe.listening);
  const { port } = probe.address();
  probe.close();
  const refused = await toolOf("refused", undefined, { http: { url: `http://127.0.0.1:${port}/` } });
  const none = await world.dev.runToEnd(one(refused), "blocked");
  assert.equal(none.steps[0].attempts, 3);
  const [letter] = await world.dev.deadLetters(none.run_id);
  assert.deepEqual([letter.reason, letter.attempts.length], ["retries_exhausted", 3]);
  // Speaks, but not TLS.
  const plain = await toolOf("no-tls", undefined, { http: { url: `https://127.0.0.1:${world.sink.port}/` } });
  const tls = await world.dev.runToEnd(one(plain), "blocked");
  assert.equal(tls.steps[0].attempts, 3);
  assert.equal((await world.dev.deadLetters(tls.run_id))[0].reason, "retries_exhausted");
});

test("an answer that is cut off in the middle is no result", async () => {
  let cuts = 0;
  const server = createServer((socket) => {
    socket.on("error", () => {});
    socket.once("data", () => {
      cuts += 1;
      socket.end(cuts < 3 ? 'HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 100\r\n\r\n{"half":' : "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}");
    });
  });
  server.listen(0, "127.0.0.1");
  await until(() => server.listening);
  try {
    const tool = await toolOf("half", undefined, { http: { url: `http://127.0.0.1:${server.address().port}/` } });
    const run = await world.dev.runToEnd(one(tool), ["completed", "blocked"]);
    assert.deepEqual([run.status, run.output, run.steps[0].attempts, cuts], ["completed", {}, 3, 3]);
  } finally {
    server.close();
  }
});

test("what is no HTTP is tried again and then given up", async () => {
  let connections = 0;
  const server = createServer((socket) => {
    connections += 1;
    socket.on("error", () => {});
    socket.once("data", () => socket.end("\u0000\u0001garbage\r\n\r\n"));
  });
  server.listen(0, "127.0.0.1");
  await until(() => server.listening);
  try {
    const tool = await toolOf("garbage", undefined, { http: { url: `http://127.0.0.1:${server.address().port}/` } });
    const run = await world.dev.runToEnd(one(tool), "blocked");
    assert.equal(run.steps[0].attempts, 3);
    assert.equal(connections, 3, "nobody below retries by itself");
    assert.equal((await world.dev.deadLetters(run.run_id))[0].reason, "retries_exhausted");
    await verifyLog(world.dev, run.run_id);
  } finally {
    server.close();
  }
});

test("max_attempts counts the first try, and every place says the same number", async () => {
  for (const max_attempts of [1, 2, 3, 7]) {
    const tool = await toolOf(`max-${max_attempts}`, { status: 503 }, { retry: { ...FAST, max_attempts } });
    const outcome = await outcomeOf(tool);
    assert.equal(outcome.letter.reason, "retries_exhausted");
    assertAttempts(outcome, max_attempts, `max_attempts ${max_attempts}`);
    const scheduled = outcome.entries.filter(({ event_type }) => event_type === "tool.retry_scheduled");
    assert.equal(scheduled.length, max_attempts - 1);
    assert.equal(outcome.entries.filter(({ event_type }) => event_type === "tool.failed").length, 1);
  }
  // Where nothing is said there are five, and a wait of zero is none.
  const standard = await outcomeOf(await toolOf("max-default", { status: 503 }, { retry: { base: "PT0S" } }));
  assertAttempts(standard, 5, "the default");
  const noMaximum = await outcomeOf(await toolOf("max-wait-zero", { status: 503 }, { retry: { max_attempts: 2, max_wait: "PT0S" } }));
  assertAttempts(noMaximum, 2, "max_wait zero");
});

test("nobody multiplies the attempts, whatever fails", async () => {
  for (const [what, answer] of [
    ["429", { status: 429 }],
    ["503", { status: 503 }],
    ["cut", { close: true }],
  ]) {
    const tool = await toolOf(`four-${what}`, answer, { retry: { ...FAST, max_attempts: 4 } });
    const outcome = await outcomeOf(tool);
    assertAttempts(outcome, 4, what);
    await world.dev.ok("POST", "/dev/sweep");
    await world.dev.ok("POST", `/dev/runs/${outcome.run.run_id}/redeliver`, { body: { step_index: 0, copies: 3 } });
    await world.dev.ok("POST", `/dev/runs/${outcome.run.run_id}/clock`, { body: { advance: "PT1H" } });
    assert.equal(world.sink.to(`/${tool}`).length, 4, `${what}, after sweeping and redelivery`);
  }
});

test("the count of attempts survives a restart", async () => {
  const tool = await toolOf("restarted", { status: 503 }, { retry: { max_attempts: 4, base: "PT30M", max_wait: "PT2H", jitter: "none" } });
  const { run_id } = await world.dev.startRun(one(tool));
  for (const attempts of [1, 2, 3]) {
    await until(async () => (await world.dev.run(run_id)).steps[0].status === "retrying" && world.sink.to(`/${tool}`).length === attempts, { what: `attempt ${attempts} has failed` });
    if (attempts === 2) await world.restart();
    await world.dev.ok("POST", `/dev/runs/${run_id}/clock`, { body: { advance: "PT3H" } });
  }
  const run = await world.dev.untilRun(run_id, "blocked");
  assert.equal(run.steps[0].attempts, 4);
  assert.equal(world.sink.to(`/${tool}`).length, 4);
  await verifyLog(world.dev, run_id);
});

test("retries of many runs do not come back together", async () => {
  const tool = await toolOf("jitter", (call) => (call.headers["dormouse-attempt"] === "1" ? { status: 503 } : { body: {} }), { retry: { max_attempts: 2, base: "PT1S", jitter: "full" } });
  const runs = await Promise.all(Array.from({ length: 50 }, () => world.dev.startRun(one(tool))));
  const waits = [];
  for (const { run_id } of runs) {
    const entries = await until(async () => {
      const found = await world.dev.log(run_id);
      return found.some(({ event_type }) => event_type === "tool.retry_scheduled") && found;
    });
    waits.push(entries.find(({ event_type }) => event_type === "tool.retry_scheduled").payload.wait_ms);
  }
  assert.ok(waits.every((ms) => ms >= 0 && ms <= 2_000), `${waits}`);
  for (const from of waits) {
    const together = waits.filter((ms) => ms >= from && ms < from + 100).length;
    assert.ok(together <= 20, `${together} of 50 within 100 ms: ${waits}`);
  }
});

test("the waits follow the policy", async () => {
  for (const [jitter, least, most] of [
    ["none", [2_000, 4_000, 5_000], [2_000, 4_000, 5_000]],
    ["equal", [1_000, 2_000, 2_500], [2_000, 4_000, 5_000]],
    ["full", [0, 0, 0], [2_000, 4_000, 5_000]],
    ["decorrelated", [1_000, 1_000, 1_000], [5_000, 5_000, 5_000]],
  ]) {
    const tool = await toolOf(`waits-${jitter}`, { status: 503 }, { retry: { max_attempts: 4, base: "PT1S", max_wait: "PT5S", jitter } });
    const { run_id } = await world.dev.startRun(one(tool));
    for (let attempts = 1; attempts <= 3; attempts += 1) {
      await until(async () => (await world.dev.log(run_id)).filter(({ event_type }) => event_type === "tool.retry_scheduled").length === attempts);
      await world.dev.ok("POST", `/dev/runs/${run_id}/clock`, { body: { advance: "PT10S" } });
    }
    await world.dev.untilRun(run_id, "blocked");
    const scheduled = (await verifyLog(world.dev, run_id)).filter(({ event_type }) => event_type === "tool.retry_scheduled");
    for (const [n, { payload, timestamp }] of scheduled.entries()) {
      assert.ok(payload.wait_ms >= least[n] && payload.wait_ms <= most[n], `${jitter}: wait ${n + 1} is ${payload.wait_ms}`);
      assert.equal(payload.wait_source, "backoff");
      assert.equal(Date.parse(payload.retry_at) - Date.parse(timestamp), payload.wait_ms);
    }
  }
});

const DAYS = ["Sunday", "Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday"];

/** A date in the form of RFC 850, and in that of asctime. */
function oldDates(date) {
  const [, day, month, year, time] = /^\w+, (\d+) (\w+) (\d+) (.*) GMT$/.exec(date.toUTCString());
  return {
    rfc850: `${DAYS[date.getUTCDay()]}, ${day}-${month}-${year.slice(2)} ${time} GMT`,
    asctime: `${DAYS[date.getUTCDay()].slice(0, 3)} ${month} ${String(Number(day)).padStart(2)} ${time} ${year}`,
  };
}

test("the next attempt is not before the time that Retry-After states, in any of its forms", async () => {
  const forms = {
    seconds: () => ["2", 2_000],
    imf: (date) => [date.toUTCString()],
    rfc850: (date) => [oldDates(date).rfc850],
    asctime: (date) => [oldDates(date).asctime],
  };
  await Promise.all(
    [429, 503].flatMap((status) =>
      Object.entries(forms).map(async ([form, header]) => {
        let stated;
        const tool = await toolOf(`after-${form}`, (call) => {
          if (call.headers["dormouse-attempt"] !== "1") return { body: {} };
          // Whole seconds: the header can say no less.
          const date = new Date(Math.ceil((call.at + 2_000) / 1_000) * 1_000);
          const [value, ms] = header(date);
          stated = ms === undefined ? date.getTime() : call.at + ms;
          return { status, headers: { "retry-after": value } };
        });
        const outcome = await outcomeOf(tool, {}, { within: 30_000 });
        assert.equal(outcome.run.status, "completed", form);
        assertAttempts(outcome, 2, form);
        assert.ok(outcome.calls[1].at >= stated, `${form}: ${outcome.calls[1].at - stated} ms before`);
        const { payload } = outcome.entries.find(({ event_type }) => event_type === "tool.retry_scheduled");
        assert.equal(payload.wait_source, "retry_after", form);
      }),
    ),
  );
});

test("a Retry-After that is absent, past or nonsense leaves the policy's own wait", async () => {
  for (const [value, source] of [
    [undefined, "backoff"],
    ["soon", "backoff"],
    ["-5", "backoff"],
    ["1.5", "backoff"],
    ["", "backoff"],
    ["0", "retry_after"],
    ["Sun, 06 Nov 1994 08:49:37 GMT", "retry_after"],
  ]) {
    const tool = await toolOf("odd-after", [{ status: 503, headers: value === undefined ? {} : { "retry-after": value } }, { body: {} }]);
    const outcome = await outcomeOf(tool);
    assert.equal(outcome.run.status, "completed", String(value));
    assertAttempts(outcome, 2, String(value));
    const { payload } = outcome.entries.find(({ event_type }) => event_type === "tool.retry_scheduled");
    assert.equal(payload.wait_source, source, String(value));
    assert.ok(payload.wait_ms >= 0);
  }
  // Longer than anyone means is bounded, and does not end the run.
  const tool = await toolOf("far-after", [{ status: 503, headers: { "retry-after": "99999999999999999999" } }, { body: {} }]);
  const { run_id } = await world.dev.startRun(one(tool));
  const waiting = await until(async () => {
    const run = await world.dev.run(run_id);
    return run.steps[0].status === "retrying" && run;
  });
  assert.equal(waiting.waiting_for[0].kind, "retry");
  assert.ok(Date.parse(waiting.waiting_for[0].until) > Date.now() + 300 * 86_400_000);
  assert.equal((await world.dev.post(`/v1/runs/${run_id}/cancel`)).status, 200);
});

test("at_most_once: what may have happened is not sent again, and a person is asked", async () => {
  for (const [what, answer] of [
    ["503", { status: 503 }],
    ["500", { status: 500 }],
    ["408", { status: 408 }],
    ["cut", { close: true }],
    ["silent", { hang: true }],
  ]) {
    const tool = await toolOf(`amo-${what}`, answer, { effect: "at_most_once", timeout: "PT0.3S" });
    const outcome = await outcomeOf(tool);
    assert.equal(outcome.run.status, "blocked", what);
    assert.equal(outcome.letter.reason, "outcome_unknown", what);
    assertAttempts(outcome, 1, what);
    assert.ok(typesOf(outcome.entries).includes("tool.outcome_unknown"), what);
    await world.dev.ok("POST", "/dev/sweep");
    await world.dev.ok("POST", `/dev/runs/${outcome.run.run_id}/redeliver`, { body: { step_index: 0, copies: 2 } });
    assert.equal(world.sink.to(`/${tool}`).length, 1, what);
    await world.dev.ok("POST", `/v1/dead-letters/${outcome.letter.dead_letter_id}/resolve`, { body: { result: { settled: what } } });
    assert.deepEqual((await world.dev.untilRun(outcome.run.run_id)).output, { settled: what });
    assert.equal(world.sink.to(`/${tool}`).length, 1, what);
  }
});

test("at_most_once: what surely did not happen is tried again, what is refused is final", async () => {
  for (const status of [429, 425]) {
    const outcome = await outcomeOf(await toolOf(`amo-${status}`, [{ status }, { body: { ok: 1 } }], { effect: "at_most_once" }));
    assert.equal(outcome.run.status, "completed", `${status}`);
    assertAttempts(outcome, 2, `${status}`);
  }
  const final = await outcomeOf(await toolOf("amo-400", { status: 400 }, { effect: "at_most_once" }));
  assert.equal(final.letter.reason, "rejected_by_tool");
  assertAttempts(final, 1, "400");
  const garbage = await outcomeOf(await toolOf("amo-garbage", { body: "garbage" }, { effect: "at_most_once" }));
  assert.equal(garbage.letter.reason, "invalid_result");
  assertAttempts(garbage, 1, "garbage");
});

test("read and idempotent tools are sent again after an unknown outcome, under the same key", async () => {
  for (const effect of ["read", "idempotent"]) {
    const outcome = await outcomeOf(await toolOf(effect, [{ close: true, dedupe: true }, { body: { ok: 1 } }], { effect }));
    assert.equal(outcome.run.status, "completed");
    assertAttempts(outcome, 2, effect);
  }
  // A tool that acted, lost its answer, and honours the key acts once.
  const acted = new Set();
  const tool = await toolOf("honours", (call) => {
    const first = !acted.has(call.key);
    acted.add(call.key);
    return first ? { close: true } : { body: { acted: acted.size } };
  });
  const outcome = await outcomeOf(tool);
  assert.deepEqual([outcome.run.status, outcome.run.output], ["completed", { acted: 1 }]);
});

test("verify: what became of a call is asked of the tool, with the call's key", async () => {
  const verify = (name) => ({ http: { url: `${world.sink.url}/${name}/verify` } });
  const cases = [
    ["done", { body: { charged: 5 } }, "completed", { charged: 5 }, 1],
    ["not-done", { status: 404 }, "completed", { second: true }, 2],
    ["unsure", { status: 500 }, "blocked", undefined, 1],
    ["silly", { body: "no JSON" }, "blocked", undefined, 1],
    ["teapot", { status: 418 }, "blocked", undefined, 1],
  ];
  for (const [what, answer, status, output, calls] of cases) {
    const name = unique(`verify-${what}`);
    world.sink.on(`/${name}`, [{ close: true }, { body: { second: true } }]);
    world.sink.on(`/${name}/verify`, answer);
    await world.dev.putTool(name, { description: what, http: { url: `${world.sink.url}/${name}` }, effect: "at_most_once", retry: FAST, verify: verify(name) });
    const run = await world.dev.runToEnd(one(name), ["completed", "blocked"]);
    assert.equal(run.status, status, `${what}: ${JSON.stringify(run.steps)}`);
    if (output) assert.deepEqual(run.output, output, what);
    else assert.equal((await world.dev.deadLetters(run.run_id))[0].reason, "outcome_unknown", what);
    assert.equal(world.sink.to(`/${name}`).length, calls, what);
    const asked = world.sink.to(`/${name}/verify`);
    assert.ok(asked.length >= 1, what);
    for (const call of asked) {
      assert.equal(call.method, "GET");
      assert.equal(call.key, run.steps[0].idempotency_key, `${what}: the same key`);
      assert.equal(call.headers["dormouse-run-id"], run.run_id);
    }
    const entries = await verifyLog(world.dev, run.run_id);
    assert.ok(typesOf(entries).includes("tool.outcome_unknown"), what);
  }
});
