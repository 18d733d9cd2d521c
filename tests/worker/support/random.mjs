// Random numbers that can be had again: `SEED=… npm test`.

export function randomOf(test) {
  const seed = Number(process.env.SEED ?? Date.now() % 1_000_000_007);
  test.diagnostic(`SEED=${seed}`);
  return seeded(seed);
}

/** The numbers of a seed. */
export function seeded(seed) {
  let state = seed >>> 0;
  /** From 0 to less than 1 (mulberry32). */
  const next = () => {
    state = (state + 0x6d2b79f5) >>> 0;
    let t = Math.imul(state ^ (state >>> 15), 1 | state);
    t = (t + Math.imul(t ^ (t >>> 7), 61 | t)) ^ t;
    return ((t ^ (t >>> 14)) >>> 0) / 4_294_967_296;
  };
  return { next, below: (bound) => Math.floor(next() * bound) };
}
