// A world whose failpoints panic on purpose: its log may tell of that, and of nothing hung or dead.

import { after, before } from "node:test";
import { assertQuiet } from "./checks.mjs";
import { startWorld } from "./runtime.mjs";

/** As `worldOfFile`, where panics are to be expected. */
export function faultyWorld(options) {
  const holder = {};
  before(async () => {
    holder.world = await startWorld(options);
  });
  after(async () => {
    await holder.world?.close();
    assertQuiet(holder.world?.lines ?? []);
  });
  return new Proxy(holder, { get: (_, name) => holder.world?.[name] });
}
