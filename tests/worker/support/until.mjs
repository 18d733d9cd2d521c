// Waiting for a condition, never for a time.

/**
 * Calls `look` until it answers something truthy, and answers that.
 *
 * An error that `look` throws counts as "not yet"; the last one is told when the time is up.
 */
export async function until(look, { what = String(look), within = 20_000, every = 25 } = {}) {
  const deadline = Date.now() + within;
  let last;
  for (;;) {
    try {
      last = undefined;
      const found = await look();
      if (found) return found;
    } catch (error) {
      last = error;
    }
    if (Date.now() > deadline) {
      throw new Error(`not within ${within} ms: ${what}`, { cause: last });
    }
    await new Promise((done) => setTimeout(done, every));
  }
}
