// A tool whose calls are answered when the test says so.

import { unique } from "./runtime.mjs";
import { until } from "./until.mjs";

/** Stores such a tool in `world`; `options` are of its definition. */
export async function heldTool(world, options = {}) {
  const name = unique("held");
  const path = `/${name}`;
  const waiting = [];
  let free = false;
  const answer = { body: { ok: true } };
  world.sink.on(path, () => (free ? answer : new Promise((release) => waiting.push(() => release(answer)))));
  await world.dev.putTool(name, {
    http: { method: "POST", url: `${world.sink.url}${path}` },
    // A call is held for as long as a test wants.
    timeout: "PT5M",
    ...options,
  });
  return {
    name,
    path,
    calls: () => world.sink.to(path),
    called: (times) => until(() => world.sink.to(path).length >= times, { what: `${times} calls of ${name}`, every: 5 }),
    /** Waits until a call of a step is held. */
    holds: (stepIndex) =>
      until(() => waiting.length > 0 && world.sink.to(path).at(-1).headers["dormouse-step-index"] === String(stepIndex), {
        what: `step ${stepIndex} calls ${name}`,
        every: 5,
      }),
    /** Answers the oldest call that waits. */
    release: () => waiting.shift()(),
    /** Answers all that wait, and from now on every call at once. */
    releaseAll() {
      free = true;
      for (const release of waiting.splice(0)) release();
    },
  };
}
